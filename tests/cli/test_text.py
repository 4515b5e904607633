from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore.cli.table import Column, render
from burnstore.cli.text import Screen, escape, escape_controls, shorten, size, width


@given(st.text(), st.text())
def test_escaped_texts_are_printable_and_differ_where_the_texts_do(one: str, other: str) -> None:
    assert escape(one).isprintable()
    assert escape(one)
    assert (escape(one) == escape(other)) == (one == other)
    assert (unicodedata.normalize("NFC", escape(one)) == unicodedata.normalize("NFC", escape(other))) == (one == other)


@given(st.text(alphabet='a\\"x1b[ \x1b\n\u0301e\u00e9\u3164'), st.text(alphabet='a\\"x1b[ \x1b\n\u0301e\u00e9\u3164'))
def test_escapes_cannot_be_imitated(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@given(st.text())
def test_messages_lose_nothing_but_commands(text: str) -> None:
    assert escape_controls(text).isprintable()
    if text.isprintable():
        assert escape_controls(text) == text


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=40), st.integers(0, 30))
def test_shortened_text_fits_and_keeps_both_ends(text: str, room: int) -> None:
    short = shorten(text, room)
    assert width(short) <= room
    if width(text) <= room:
        assert short == text
    elif room:
        head, _, tail = short.partition("…")
        assert text.startswith(head)
        assert text.endswith(tail)


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1048524, "1023.9 KiB"),
        (1048525, "1.0 MiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (1 << 20, "1.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 62, "4.0 EiB"),
        (1 << 72, "4096.0 EiB"),
    ],
)
def test_sizes_read_well(nbytes: int, shown: str) -> None:
    assert size(nbytes) == shown


COLUMNS = [
    Column("NAME", ["encoder.layers.0.attention.weight", "重み", "b"], least=10),
    Column("SHAPE", ["[1,2,3,4,5,6,7,8]", "[2]", "[]"], least=6),
    Column("BYTES", ["123456", "8", "4"], right=True, spare=1),
    Column("ID", ["aaaaaaaaaaaaa", "-", "-"], spare=2),
]


def test_a_table_is_aligned_by_cells_of_the_screen() -> None:
    lines = list(render(COLUMNS, Screen()))
    assert lines == [
        "NAME                               SHAPE               BYTES  ID",
        "encoder.layers.0.attention.weight  [1,2,3,4,5,6,7,8]  123456  aaaaaaaaaaaaa",
        "重み                               [2]                     8  -",
        "b                                  []                      4  -",
    ]


def test_a_table_gives_up_columns_and_then_the_middles_of_names() -> None:
    for columns in range(8, 100):
        *rows, last = render(COLUMNS, Screen(columns))
        if not last.startswith("(no room for "):
            rows.append(last)
        assert max(map(width, rows)) <= max(columns, 10)
        assert len(rows) == 4
    row = "encoder.layer…tention.weight  [1,2,3,4,5,6,7,8]  123456  aaaaaaaaaaaaa"
    assert list(render(COLUMNS, Screen(70)))[1] == row
    lines = list(render(COLUMNS, Screen(20)))
    assert lines[0].split() == ["NAME", "SHAPE"]
    assert lines[-1].startswith("(no room for BYTES, ID: ")


def test_an_empty_table_is_its_header() -> None:
    assert list(render([Column("NAME", [])], Screen())) == ["NAME"]
