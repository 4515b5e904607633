"""The quick scan of a header: where it gives an answer, it is the strict reader's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import burnstore as bs
from burnstore.formats.safetensors.fast_header import read_header as scan_header
from burnstore.formats.safetensors.header import Columns, read_header

LIMITS = bs.Limits(tensors=100_000)


def header(entries: dict[str, tuple[str, list[int], list[int]]]) -> str:
    tree = {name: {"dtype": dtype, "shape": shape, "data_offsets": at} for name, (dtype, shape, at) in entries.items()}
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False)


def rows(columns: Columns) -> list[Any]:
    kinds = [columns.kinds[number] for number in columns.kind.tolist()]
    return [
        columns.metadata,
        *zip(columns.names, kinds, columns.starts.tolist(), columns.ends.tolist(), strict=True),
    ]


def assert_scanned(text: str) -> None:
    found = scan_header(text, LIMITS)
    assert found is not None, "it was left to the strict reader"
    assert rows(found) == rows(read_header(text, LIMITS))


TWO = header({"a.weight": ("F32", [16, 16], [0, 1024]), "b": ("BF16", [], [1024, 1026])})


def test_names_of_all_alphabets_are_scanned() -> None:
    names = ["größe", "層.0.重み", "🔥", "a b", "", "{[,]}:", "dtype", "x" * 300]
    assert_scanned(header({name: ("F32", [2, i], [i, i + 8]) for i, name in enumerate(names)}))


def test_each_of_very_many_shapes_is_scanned() -> None:
    entries = {f"t{i}": ("F32", [i % 97, i, i // 7], [i, 2 * i]) for i in range(20_000)}
    assert_scanned(header(entries))
    assert_scanned(
        header({f"{name}.{turn}": entry for turn in range(3) for name, entry in list(entries.items())[:500]})
    )


def test_offsets_of_any_size_are_scanned() -> None:
    ends = [0, 1, 9, 10, 99, 100, 12_345_678, 123_456_789, 10**17, 10**18 - 1]
    assert_scanned(header({f"t{end}": ("U8", [1], [start, end]) for start, end in zip([0, *ends], ends, strict=False)}))
    assert_scanned(header({f"t{end}": ("U8", [1], [0, end]) for end in ends}))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *[("[0,1024]", "[00,1024]"), ("[0,1024]", "[0,01024]"), ("[0,1024]", "[,1024]"), ("[0,1024]", "[0,]")],
        *[("[0,1024]", "[0]"), ("[0,1024]", "[0,1,1024]"), ("[0,1024]", "[-0,1024]"), ("[0,1024]", "[0,1e3]")],
        *[("[0,1024]", "[0, 1024]"), ("[0,1024]", "[9,1]"), ("[0,1024]", f"[0,{10**18}]"), ("[0,1024]", "[0,é]")],
        *[("[0,1024]", "[0;1024]"), ("},", "};"), ("]},", "]),"), ("]},", ")},"), ("]}}", "])}")],
        *[('s":[0', 's"é[0'), ('s":[0', 's"é0'), ('s":[0', 's"::0'), ("[16,16]", "[016,16]"), ("[16,16]", "[16,]")],
        *[("[16,16]", "[,16]"), ("[16,16]", f"[{10**18}]"), ("[16,16]", "[1]]"), ("[16,16]", "[1,1" + ",1" * 70 + "]")],
        *[("F32", "F33"), ("F32", "f32"), ("dtype", "dtypE"), ("shape", "shapE"), ("data_o", "dataXo"), ("}}", "}}}")],
        *[("},", "} ,"), ("},", "},,"), ("},", "}},"), (',"b"', ',x"b"'), ('"a.w', '"a\\u002ew'), ('"a.w', '"a\tw')],
        *[('"a.weight"', '"b"'), ('"a.weight"', '"__metadata__"'), ('"b":', '"b" :'), ('"b":', '"b"'), ("}}", "},}")],
        *[('{"a', '{,"a'), ('{"a', '"a'), ('"dtype":"F32","shape":[16,16]', '"shape":[16,16],"dtype":"F32"')],
    ],
)
def test_what_is_written_otherwise_is_left_to_the_strict_reader(old: str, new: str) -> None:
    assert_scanned(TWO)
    assert old in TWO
    assert scan_header(TWO.replace(old, new, 1), LIMITS) is None


@pytest.mark.parametrize("digits", range(8))
def test_a_descriptor_that_is_almost_as_one_before_is_judged_alone(digits: int) -> None:
    text = header({"a": ("F32", [10**digits], [0, 4]), "b": ("F32", [10**digits], [4, 8])})
    assert_scanned(text)
    before, _, after = text.rpartition("data_offsets")
    for wrong in ("data_ofsets", "data_offfsets", "dataoffsets", "data_offsetz"):
        assert scan_header(before + wrong + after, LIMITS) is None


def test_limits_are_left_to_the_strict_reader() -> None:
    for limits in (bs.Limits(tensors=1), bs.Limits(tensors=9, name_bytes=7), bs.Limits(tensors=9, rank=1)):
        assert scan_header(TWO, limits) is None
    assert scan_header(TWO, bs.Limits(tensors=2, name_bytes=8, rank=2)) is not None


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.text('",:{}[]0123 \\éaF', max_size=4)), max_size=4)
)
def test_no_change_of_a_header_fools_the_scan(changes: list[tuple[int, int, str]]) -> None:
    text = TWO
    for at, length, new in changes:
        text = text[: at % len(text)] + new + text[at % len(text) + length :] if text else new
    found = scan_header(text, LIMITS)
    if found is not None:
        assert rows(found) == rows(read_header(text, LIMITS))
