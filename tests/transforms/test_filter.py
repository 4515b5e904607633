from __future__ import annotations

import pytest

from burnstore.errors import PatternError
from burnstore.transforms.filter import PathFilter


def test_an_empty_filter_matches_nothing():
    fresh = PathFilter()
    assert fresh.is_empty()
    assert not fresh.matches("anything")
    assert fresh.criteria_count() == 0
    assert repr(fresh) == "PathFilter.none()"


def test_match_all_matches_everything():
    everything = PathFilter.all()
    assert not everything.is_empty()
    assert everything.matches("") and everything.matches("a.b")
    assert everything.criteria_count() == 1
    assert repr(everything) == "PathFilter.all()"


def test_exact_paths_match_only_themselves():
    chosen = PathFilter.from_paths(["encoder.weight", "decoder.bias"])
    assert chosen.matches("encoder.weight")
    assert not chosen.matches("encoder.weight2")
    assert not chosen.matches("encoder")


def test_regular_expressions_are_searched_anywhere_and_combined_by_or():
    chosen = PathFilter.from_regex_patterns([r"^encoder\.", r"\.bias$"])
    assert chosen.matches("encoder.weight")
    assert chosen.matches("decoder.bias")
    assert not chosen.matches("decoder.weight")
    assert PathFilter().with_regex("weight").matches("a.weight.b")


def test_predicates_are_combined_by_or():
    chosen = PathFilter().with_predicates([lambda p, c: p.startswith("a"), lambda p, c: p.endswith("z")])
    assert chosen.matches("ab") and chosen.matches("bz")
    assert not chosen.matches("bb")


def test_all_kinds_of_criteria_work_together():
    chosen = PathFilter().with_full_path("x").with_regex("^y").with_predicate(lambda p, c: p == "z")
    assert all(map(chosen.matches, ["x", "y1", "z"]))
    assert not chosen.matches("w")
    assert chosen.criteria_count() == 3


def test_or_gives_a_new_filter_that_matches_what_either_does():
    first, second = PathFilter().with_regex("^a"), PathFilter().with_full_path("b")
    both = first | second
    assert both.matches("a1") and both.matches("b")
    assert not first.matches("b")
    assert (first | PathFilter.all()).matches("anything")
    assert first.or_(second).criteria_count() == 2


def test_clearing_drops_criteria_of_one_kind_or_all():
    full = PathFilter().with_full_path("a").with_regex("b").with_predicate(lambda p, c: True)
    assert full.copy().clear_paths().criteria_count() == 2
    assert full.copy().clear_regex().criteria_count() == 2
    assert full.copy().clear_predicates().criteria_count() == 2
    assert full.copy().clear().is_empty()
    assert PathFilter.all().clear().is_empty()
    assert full.criteria_count() == 3


def test_the_container_argument_has_bare_names_and_carries_burns_spelling():
    seen = []
    PathFilter().with_predicate(lambda p, c: bool(seen.append(c))).matches_with_container_path(
        "layers.0.weight", ["Struct:Model", "Vec", "Struct:Linear"]
    )
    (container,) = seen
    assert container == "Model.Vec.Linear"
    assert container.split(".")[-1] == "Linear"
    assert container.prefixed == "Struct:Model.Vec.Struct:Linear"
    assert container.entries == ("Struct:Model", "Vec", "Struct:Linear")


def test_the_seeds_predicate_matches_linear_layers():
    only_linear = PathFilter().with_predicate(lambda path, container: container.split(".")[-1] == "Linear")
    assert only_linear.matches_with_container("x.weight", "Struct:Linear")
    assert not only_linear.matches_with_container("x.weight", "Struct:Conv2d")
    assert not only_linear.matches("x.weight")


def test_segments_are_joined_to_a_path():
    assert PathFilter().with_full_path("a.b").matches_with_container_path(["a", "b"], [])


@pytest.mark.parametrize("pattern", ["[", "(", "*a", "(?P<n"])
def test_an_invalid_pattern_raises_where_it_is_given(pattern):
    with pytest.raises(PatternError, match="Invalid regex pattern"):
        PathFilter().with_regex(pattern)
    untouched = PathFilter()
    with pytest.raises(PatternError):
        untouched.with_regexes(["ok", pattern])
    assert untouched.is_empty()


def test_rust_named_groups_are_understood():
    assert PathFilter().with_regex(r"(?<layer>\d+)\.weight").matches("a.1.weight")
    assert PathFilter().with_regex(r"(?<=a)b").matches("ab")


@pytest.mark.parametrize(
    ("method", "argument"),
    [("with_regex", 3), ("with_full_path", b"x"), ("with_predicate", "x"), ("with_regexes", "abc"), ("or_", "x")],
)
def test_arguments_of_a_wrong_type_raise_at_the_call(method, argument):
    with pytest.raises(TypeError):
        getattr(PathFilter(), method)(argument)


def test_select_answers_for_all_and_names_criteria_that_matched_nothing():
    chosen = PathFilter().with_regex("^enc").with_regex("^dcoder").with_full_paths(["head", "haed"])
    selection = chosen.select([("encoder.w", ()), ("decoder.w", ()), ("head", ())])
    assert selection == [True, False, True]
    assert selection.unmatched == ["^dcoder", "haed"]
    assert PathFilter().select([("a", ())]) == [False]
    assert PathFilter.all().select([("a", ())]) == [True]


def test_select_agrees_with_matching_one_by_one():
    chosen = PathFilter().with_regex(r"\d").with_full_path("b").with_predicate(lambda p, c: c == "Linear")
    tensors = [("a1", ()), ("b", ()), ("c", ("Struct:Linear",)), ("d", ("Vec",))]
    assert chosen.select(tensors) == [chosen.matches_with_container_path(path, stack) for path, stack in tensors]


def test_the_text_shows_the_criteria():
    shown = repr(PathFilter().with_regex("^a").with_full_path("b").with_predicate(lambda p, c: True))
    assert "^a" in shown and "'b'" in shown and "predicates: 1" in shown
