"""Errors: one tree, each also the builtin one expects, carrying what it is about, through pickling too."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import burnstore as bs
from burnstore import errors
from burnstore.errors import BurnstoreError, CorruptError, ReadError, SaveError, located, printable

CLASSES = {
    name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, BurnstoreError)
}
FACTS = {"path": "model.bpk", "tensor": "a.b", "offset": 10, "rule": "BP-03", "hint": "do this"}


def make(kind: type[BurnstoreError], **facts: Any) -> BurnstoreError:
    more = {"stage": "write"} if issubclass(kind, SaveError) else {}
    return kind("what happened", **more, **facts)


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """The tree as the module's docstring draws it: name, then parent and builtin."""
    found: dict[str, tuple[str | None, str | None]] = {"BurnstoreError": (None, None)}
    above: list[tuple[int, str]] = [(-1, "BurnstoreError")]
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│ ]*)[├└]── (\w+)(?: \((\w+)\))?", line)
        if match:
            depth = len(match[1])
            above = [(at, name) for at, name in above if at < depth]
            found[match[2]] = (above[-1][1], match[3])
            above.append((depth, match[2]))
    return found


def test_the_tree_is_as_it_is_drawn() -> None:
    tree = drawn()
    assert set(tree) == set(CLASSES)
    for name, (parent, builtin) in tree.items():
        kind = CLASSES[name]
        assert parent is None or kind.__mro__[1] is CLASSES[parent]
        if builtin is not None:
            assert builtin in [base.__name__ for base in kind.__mro__]


def test_every_error_is_public() -> None:
    assert set(CLASSES) <= set(dir(bs.errors))


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_says_what_it_is_about(name: str) -> None:
    error = make(CLASSES[name], **FACTS)
    assert str(error) == "model.bpk: tensor 'a.b': what happened [BP-03, at byte 10]\n  hint: do this"
    assert {fact: getattr(error, fact) for fact in FACTS} == FACTS
    assert str(make(CLASSES[name])) == "what happened"


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_an_error_can_be_pickled_and_copied_with_all_it_carries(name: str) -> None:
    error = make(CLASSES[name], **FACTS)
    if isinstance(error, OSError):
        error.errno = 28
    error.__cause__ = OSError(28, "No space left")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert {fact: getattr(again, fact) for fact in FACTS} == FACTS
        assert again.message == "what happened"
        assert getattr(again, "errno", None) == getattr(error, "errno", None)
        assert getattr(again, "stage", None) == getattr(error, "stage", None)
        assert isinstance(again.__cause__, OSError)


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        ({"path": "m"}, "m: what happened"),
        ({"tensor": "t"}, "tensor 't': what happened"),
        ({"offset": 0}, "what happened [at byte 0]"),
        ({"rule": "BP-01"}, "what happened [BP-01]"),
        ({"hint": "h"}, "what happened\n  hint: h"),
    ],
)
def test_each_fact_has_its_place_in_the_text(fact: dict[str, Any], text: str) -> None:
    assert str(CorruptError("what happened", **fact)) == text


def test_the_layer_that_knows_a_fact_attaches_it_and_the_innermost_knows_best() -> None:
    with pytest.raises(CorruptError) as caught, located(path="outer", tensor="outer"), located(tensor="inner"):
        raise CorruptError("no", offset=0)
    assert (caught.value.path, caught.value.tensor, caught.value.offset) == ("outer", "inner", 0)


def test_an_offset_of_zero_is_a_fact() -> None:
    with pytest.raises(CorruptError) as caught, located(offset=7):
        raise CorruptError("no", offset=0)
    assert caught.value.offset == 0


def test_other_exceptions_pass_untouched() -> None:
    with pytest.raises(KeyError) as caught, located(path="p"):
        raise KeyError("mine")
    assert not hasattr(caught.value, "path")


def test_located_takes_known_facts_only() -> None:
    with pytest.raises(TypeError, match="colour"), located(colour="red"):
        pass


def test_an_os_error_of_ours_has_its_number_and_no_foreign_text() -> None:
    error = ReadError("reading failed", path="p")
    error.errno = 5
    assert (error.errno, str(error)) == (5, "p: reading failed")


def test_a_key_error_of_ours_is_printed_without_quotes() -> None:
    assert str(bs.errors.TensorNotFoundError("there is no tensor 'x'")) == "there is no tensor 'x'"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain.name", "plain.name"),
        ("größe 重み 🔥", "größe 重み 🔥"),
        ("a\nb\tc\r\0", r"a\nb\tc\r\x00"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("", ""),
    ],
)
def test_text_from_a_file_is_made_safe_to_print(text: str, shown: str) -> None:
    assert printable(text) == shown
    printable(text).encode("utf-8")


def test_long_text_is_shortened_with_its_length() -> None:
    shown = printable("a" * 1_000_000 + "END")
    assert len(shown) < 220
    assert "(1000003 characters)" in shown
    assert shown.endswith("END")
    assert printable("x" * 200) == "x" * 200


def test_names_in_messages_cannot_break_a_terminal() -> None:
    error = CorruptError("no", path="a\x1b[2Jb", tensor="c\nd")
    assert str(error) == r"a\x1b[2Jb: tensor 'c\nd': no"


def test_a_warning_points_to_the_caller_of_burnstore(tmp_path: Path) -> None:
    import numpy as np

    bs.save({"w": np.ones(2)}, tmp_path / "old.bpk", burn_version="0.19")
    with bs.open(tmp_path / "old.bpk") as file:
        stamp = dict(file.metadata)
    calls = (
        lambda: bs.save({"w": np.ones(2)}, tmp_path / "a.bpk", metadata=stamp),
        lambda: bs.serialize({"w": np.ones(2)}, format="burnpack", metadata=stamp),
        lambda: bs.convert(tmp_path / "old.bpk", tmp_path / "b.bpk"),
    )
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert [each.filename for each in caught] == [__file__]
