from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore.errors import DuplicateNameError, PatternError
from burnstore.tensor.snapshot import TensorSnapshot
from burnstore.transforms.indices import contiguous_names, map_indices_contiguous, map_indices_contiguous_except
from burnstore.transforms.remap import KeyRemapper


def tensors(*names: str) -> list[TensorSnapshot]:
    return [TensorSnapshot.from_numpy(name, np.zeros(1, np.float32)) for name in names]


def test_a_pattern_renames_what_it_matches_and_pairs_say_so():
    renamed, pairs = (
        KeyRemapper().add_pattern(r"^encoder\.", "transformer.encoder.").remap(tensors("encoder.w", "decoder.w"))
    )
    assert [snapshot.path for snapshot in renamed] == ["transformer.encoder.w", "decoder.w"]
    assert pairs == [("transformer.encoder.w", "encoder.w"), ("decoder.w", "decoder.w")]


def test_patterns_work_one_after_the_other_on_the_whole_name():
    remapper = KeyRemapper.from_patterns([(r"^a\.", "b."), (r"^b\.", "c."), ("w", "ww")])
    assert remapper.remap_name("a.w.w") == "c.ww.ww"


def test_a_trace_names_the_rules_that_changed_a_name():
    remapper = KeyRemapper.from_patterns([(r"^h\.", "layer."), ("bias$", "b")]).add_names({"layer.0": "first"})
    assert remapper.trace("h.0") == [(r"^h\. => layer.", "layer.0"), ("layer.0 => first", "first")]
    assert remapper.trace("other") == []
    assert remapper.trace("h.bias")[-1][1] == remapper.remap_name("h.bias")


def test_no_rules_change_nothing():
    assert KeyRemapper().is_empty()
    renamed, pairs = KeyRemapper().remap(tensors("a"))
    assert renamed[0].path == "a" and pairs == [("a", "a")]


@pytest.mark.parametrize(
    ("replacement", "expected"),
    [
        ("layer$1.", "layer3.w"),
        ("layer${1}_x.", "layer3_x.w"),
        (r"layer\1.", "layer3.w"),
        (r"layer\g<1>0.", "layer30.w"),
        ("layer${1}0.", "layer30.w"),
        ("$0", "h.3.w"),
        ("$$1.", "$1.w"),
        ("a$.", "a$.w"),
        ("", "w"),
        (r"a\\1.", r"a\1.w"),
    ],
)
def test_replacements_take_groups_as_rust_and_python_write_them(replacement, expected):
    assert KeyRemapper().add_pattern(r"^h\.(\d+)\.", replacement).remap_name("h.3.w") == expected


@pytest.mark.parametrize("replacement", ["${n}", "$n", r"\g<n>"])
def test_replacements_take_groups_by_name(replacement):
    assert KeyRemapper().add_pattern(r"(?<n>\d+)", f"<{replacement}>").remap_name("a12") == "a<12>"
    assert KeyRemapper().add_pattern(r"(?P<n>\d+)", f"<{replacement}>").remap_name("a12") == "a<12>"


@pytest.mark.parametrize("replacement", ["$2", "${name}", "$1_x", r"\g<other>", r"\7"])
def test_a_group_that_does_not_exist_raises_where_it_is_given(replacement):
    with pytest.raises(PatternError, match="does not have"):
        KeyRemapper().add_pattern(r"(\d+)", replacement)


def test_a_group_that_took_no_part_is_nothing():
    assert KeyRemapper().add_pattern(r"a(x)?", "b$1").remap_name("a") == "b"


def test_an_invalid_pattern_raises_and_is_not_added():
    remapper = KeyRemapper()
    with pytest.raises(PatternError):
        remapper.add_pattern("[", "x")
    assert remapper.is_empty()


def test_compiled_patterns_are_taken_with_their_flags():
    assert KeyRemapper().add_pattern(re.compile("A", re.IGNORECASE), "b").remap_name("xa") == "xb"


def test_a_dictionary_renames_whole_names():
    remapper = KeyRemapper.from_dict({"a.b": "c", "x": "y"})
    assert [remapper.remap_name(name) for name in ("a.b", "a.b.c", "x")] == ["c", "a.b.c", "y"]


def test_the_names_of_a_mapping_are_swapped():
    remapper = KeyRemapper.from_dict({"a": "b", "b": "a", "c": "d", "d": "e"})
    assert remapper.remap_names(["a", "b", "c", "d"]).names == ["b", "a", "d", "e"]


def test_rules_that_match_nothing_are_named():
    remapper = KeyRemapper().add_pattern("^zzz", "a").add_pattern("^a", "b").add_names({"q": "r"})
    assert remapper.remap_names(["a", "c"]).unmatched == ["^zzz", "q"]


def test_two_tensors_under_one_name_are_refused_and_both_are_named():
    with pytest.raises(DuplicateNameError, match=r"'h\.0\.w' and 'h\.1\.w'") as caught:
        KeyRemapper().add_pattern(r"\.\d", "").remap(tensors("h.0.w", "h.1.w"))
    assert caught.value.tensor == "h.w"


def test_the_caller_may_choose_the_first_or_the_last():
    given_tensors = [TensorSnapshot.from_numpy(f"h.{i}.w", np.full(1, i, np.float32)) for i in range(3)]
    remapper = KeyRemapper().add_pattern(r"\.\d", "")
    assert remapper.remap(given_tensors, on_collision="first")[0][0].numpy()[0] == 0
    assert remapper.remap(given_tensors, on_collision="last")[0][0].numpy()[0] == 2
    with pytest.raises(ValueError, match="on_collision"):
        remapper.remap(given_tensors, on_collision="both")


def test_the_inverse_undoes_fixed_texts_in_reverse_order():
    remapper = (
        KeyRemapper().add_pattern(r"^old\.", "mid.").add_pattern(r"^mid\.", "new.").add_pattern(r"\.gamma$", ".weight")
    )
    inverse = remapper.inverse()
    for name in ("old.norm.gamma", "old.x"):
        assert inverse.remap_name(remapper.remap_name(name)) == name
    names = KeyRemapper.from_dict({"a": "b", "b": "a"})
    assert names.inverse().remap_name(names.remap_name("a")) == "a"


@pytest.mark.parametrize(
    ("pattern", "replacement"), [(r"(\d+)", "_$1"), (r"\d", "x"), ("a|b", "c"), ("a+", "b"), ("a", ""), (r"[ab]", "c")]
)
def test_what_cannot_be_undone_says_so(pattern, replacement):
    with pytest.raises(PatternError, match="cannot be inverted"):
        KeyRemapper().add_pattern(pattern, replacement).inverse()
    with pytest.raises(PatternError, match="cannot be inverted"):
        KeyRemapper.from_dict({"a": "c", "b": "c"}).inverse()


@pytest.mark.parametrize(
    ("pattern", "replacement", "name", "renamed"),
    [
        (r"^a\.", "b.", "a.b.a.w", "b.b.a.w"),
        (r"\.w$", ".v", "a.v.w", "a.v.v"),
        (r"\Aa\.", "", "a.w", "w"),
        (r"\.w\Z", "", "a.w", "a"),
        ("^a$", "b", "a", "b"),
        ("old", "new", "x.old.y", "x.new.y"),
        (r"^a\$", "$$b", "a$", "$b"),
    ],
)
def test_the_inverse_of_a_fixed_text_changes_the_same_place_alone(pattern, replacement, name, renamed):
    remapper = KeyRemapper().add_pattern(pattern, replacement)
    assert remapper.remap_name(name) == renamed
    assert remapper.inverse().remap_name(renamed) == name


@pytest.mark.parametrize("replacement", ["${0}x", r"\g<0>x", "x$0"])
def test_a_replacement_that_repeats_the_match_cannot_be_undone(replacement):
    with pytest.raises(PatternError, match="only fixed text for fixed text"):
        KeyRemapper().add_pattern("a", replacement).inverse()


def test_a_pattern_of_any_case_and_a_function_cannot_be_undone():
    with pytest.raises(PatternError, match="only fixed text for fixed text"):
        KeyRemapper().add_pattern(re.compile("^a", re.IGNORECASE), "b").inverse()
    with pytest.raises(PatternError, match="a rename by a function"):
        KeyRemapper().add_function(str.upper).inverse()


@given(
    st.text("ab.$\\^", min_size=1, max_size=4), st.text("cd.$\\^", min_size=1, max_size=4), st.text("ab.", max_size=9)
)
def test_a_fixed_text_at_the_start_comes_back_whatever_its_characters(old, new, rest):
    remapper = KeyRemapper().add_pattern("^" + re.escape(old), new.replace("$", "$$").replace("\\", "\\\\"))
    renamed = remapper.remap_name(old + rest)
    assert renamed == new + rest
    assert remapper.inverse().remap_name(renamed) == old + rest


def test_regex_pairs_do_what_the_rules_do():
    remapper = KeyRemapper().add_names({"a.b": "x$y"}).add_pattern("x", "z")
    again = KeyRemapper.from_compiled_patterns(remapper.to_regex_pairs())
    for name in ("a.b", "aab", "x"):
        assert again.remap_name(name) == remapper.remap_name(name)


INDEX_CASES = [
    (["fc.0", "fc.2", "fc.4"], ["fc.0", "fc.1", "fc.2"]),
    (["fc.0", "fc.1"], ["fc.0", "fc.1"]),
    (["encoder.0", "encoder.2", "decoder.1", "decoder.5"], ["encoder.0", "encoder.1", "decoder.0", "decoder.1"]),
    (["weight", "layer1.bias"], ["weight", "layer1.bias"]),
    ([], []),
    (["fc.2.w", "norm.w"], ["fc.0.w", "norm.w"]),
    (
        ["f.layers.0.cb.0", "f.layers.0.cb.2", "f.layers.2.cb.0", "f.layers.2.cb.2"],
        ["f.layers.0.cb.0", "f.layers.0.cb.1", "f.layers.1.cb.0", "f.layers.1.cb.1"],
    ),
    (
        ["a.0.b.0.c.0", "a.0.b.0.c.2", "a.0.b.2.c.0", "a.2.b.0.c.0"],
        ["a.0.b.0.c.0", "a.0.b.0.c.1", "a.0.b.1.c.0", "a.1.b.0.c.0"],
    ),
    (["layers.2", "layers.10"], ["layers.0", "layers.1"]),
    (["0.w", "2.w"], ["0.w", "1.w"]),
    (["a.99999999999999999999999.w"], ["a.99999999999999999999999.w"]),
    (["a.+3.w", "a.007.w"], ["a.0.w", "a.1.w"]),
]


@pytest.mark.parametrize(("names", "expected"), INDEX_CASES)
def test_indices_become_contiguous(names, expected):
    assert contiguous_names(names).names == expected
    renamed, pairs = map_indices_contiguous(tensors(*names))
    assert [snapshot.path for snapshot in renamed] == expected
    assert pairs == list(zip(expected, names, strict=True))


def test_indices_below_a_kept_prefix_stay():
    names = ["flows.0", "flows.2", "flows.4", "fc.0", "fc.2"]
    renamed, _ = map_indices_contiguous_except(tensors(*names), lambda prefix: prefix == "flows")
    assert [snapshot.path for snapshot in renamed] == ["flows.0", "flows.2", "flows.4", "fc.0", "fc.1"]


def test_each_level_is_decided_by_its_own_original_prefix():
    names = [f"flows.{i}.in_layers.{j}" for i in (0, 2) for j in (0, 2)]
    renamed = contiguous_names(names, lambda prefix: prefix == "flows.2.in_layers").names
    assert renamed == ["flows.0.in_layers.0", "flows.0.in_layers.1", "flows.1.in_layers.0", "flows.1.in_layers.2"]


def test_a_leading_index_has_the_empty_prefix():
    assert contiguous_names(["0.w", "2.w"], lambda prefix: prefix == "").names == ["0.w", "2.w"]


def test_indices_that_become_one_name_are_refused():
    with pytest.raises(DuplicateNameError):
        map_indices_contiguous(tensors("a.01", "a.1"))
