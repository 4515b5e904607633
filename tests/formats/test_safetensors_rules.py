"""Each rule of SafeTensors, by a file that breaks it and no other; the package judges the same file."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import safetensors
from hostile import at_most, in_little_memory, refused
from hypothesis import given, settings
from hypothesis import strategies as st

import burnstore as bs
from burnstore import Limits
from burnstore.errors import CorruptError, LimitError, TruncatedError, UnsupportedError

FOUR = b"\1\0\1\0"
T = '{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
MIB = 1 << 20


def file(header: str | bytes, body: bytes = FOUR, *, length: int | None = None) -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw) if length is None else length) + raw + body


def tensor(dtype: str = '"U8"', shape: str = "[4]", offsets: str = "[0,4]", more: str = "") -> str:
    return f'{{"a":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}{more}}}}}'


def package_takes(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return False
    return True


GOOD = {
    "plain": file(f'{{"a":{T}}}'),
    "padded": file(f'{{"a":{T}}}     '),
    "other white space at the end": file(f'{{"a":{T}}}\n\t\r'),
    "white space at the beginning": file(f' \n{{"a":{T}}}'),
    "600 spaces at the beginning": file(" " * 600 + f'{{"a":{T}}}'),
    "white space inside": file(f'{{ "a" :\n{T} }}'),
    "fields in another order": file('{"a":{"shape":[4],"data_offsets":[0,4],"dtype":"U8"}}'),
    "metadata": file(f'{{"__metadata__":{{"x":"1"}},"a":{T}}}'),
    "metadata last": file(f'{{"a":{T},"__metadata__":{{"x":"1"}}}}'),
    "metadata null": file(f'{{"__metadata__":null,"a":{T}}}'),
    "metadata empty": file(f'{{"__metadata__":{{}},"a":{T}}}'),
    "metadata alone": file('{"__metadata__":{"x":"1"}}', b""),
    "brackets in metadata": file(f'{{"__metadata__":{{"x":"}}}}[[["}},"a":{T}}}'),
    "no tensors": file("{}", b""),
    "tensors in another order": file(
        '{"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
    ),
    "no axes": file(tensor(shape="[]", offsets="[0,1]"), b"\1"),
    "no bytes at the start": file(f'{{"b":{T},"a":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}'),
    "no bytes at the end": file(f'{{"b":{T},"a":{{"dtype":"U8","shape":[0],"data_offsets":[4,4]}}}}'),
    "empty name": file(f'{{"":{T}}}'),
    "escaped name": file(f'{{"\\u0061\\/\\ud83d\\ude00\\u0000":{T}}}'),
    "delete in a name": file(f'{{"a\x7f":{T}}}'),
    "escaped dtype": file(tensor('"\\u00558"')),
    "escaped field": file('{"a":{"\\u0064type":"U8","shape":[4],"data_offsets":[0,4]}}'),
    "64 axes": file(tensor(shape=f"[4{',1' * 63}]")),
    "header of odd length": file(f'{{"a":{T}}}  '),
}

BAD: dict[str, tuple[str, type[bs.BurnstoreError], bytes]] = {
    "7 bytes": ("ST-01", TruncatedError, b"\0" * 7),
    "header longer than the file": ("ST-01", TruncatedError, file("{}", b"", length=3)),
    "header of 100,000,000 bytes announced": ("ST-01", TruncatedError, file("{}", b"", length=100_000_000)),
    "header of 100,000,001 bytes": ("ST-01", LimitError, file("{}", b"", length=100_000_001)),
    "header of 2^63 bytes": ("ST-01", LimitError, file("{}", b"", length=1 << 63)),
    "header of 2^64 - 1 bytes": ("ST-01", LimitError, file("{}", b"", length=(1 << 64) - 1)),
    "no header": ("ST-02", CorruptError, file("", b"")),
    "header of spaces": ("ST-02", CorruptError, file("   ", b"")),
    "not an object": ("ST-02", CorruptError, file("[]", b"")),
    "null": ("ST-02", CorruptError, file("null", b"")),
    "NUL behind": ("ST-02", CorruptError, file(f'{{"a":{T}}}\0')),
    "byte order mark": ("ST-02", CorruptError, file(f'\ufeff{{"a":{T}}}')),
    "UTF-16": ("ST-02", CorruptError, file(f'{{"a":{T}}}'.encode("utf-16-le"))),
    "not UTF-8": ("ST-02", CorruptError, file(b'{"\xff":' + T.encode() + b"}")),
    "surrogate in UTF-8": ("ST-02", CorruptError, file(b'{"\xed\xa0\x80":' + T.encode() + b"}")),
    "half a surrogate pair": ("ST-02", CorruptError, file(f'{{"\\ud800":{T}}}')),
    "low surrogate": ("ST-02", CorruptError, file(f'{{"\\ude00":{T}}}')),
    "newline in a name": ("ST-02", CorruptError, file(f'{{"a\nb":{T}}}')),
    "leading zero": ("ST-02", CorruptError, file(tensor(shape="[04]"))),
    "plus": ("ST-02", CorruptError, file(tensor(shape="[+4]"))),
    "comma at the end": ("ST-02", CorruptError, file(f'{{"a":{T},}}')),
    "NaN": ("ST-02", CorruptError, file(tensor(more=',"x":NaN'))),
    "beyond float64": ("ST-02", CorruptError, file(tensor(more=',"x":1e999'))),
    "metadata twice": ("ST-03", CorruptError, file(f'{{"__metadata__":{{}},"__metadata__":{{}},"a":{T}}}')),
    "field twice": ("ST-03", CorruptError, file(tensor(more=',"dtype":"U8"'))),
    "deep": ("ST-04", LimitError, file(tensor(more=f',"x":{"[" * 200}{"]" * 200}'))),
    "metadata with a number": ("ST-05", CorruptError, file(f'{{"__metadata__":{{"x":1}},"a":{T}}}')),
    "metadata with null": ("ST-05", CorruptError, file(f'{{"__metadata__":{{"x":null}},"a":{T}}}')),
    "metadata an array": ("ST-05", CorruptError, file(f'{{"__metadata__":[],"a":{T}}}')),
    "metadata a tensor": ("ST-05", CorruptError, file(f'{{"__metadata__":{T}}}')),
    "no dtype": ("ST-06", CorruptError, file('{"a":{"shape":[4],"data_offsets":[0,4]}}')),
    "no shape": ("ST-06", CorruptError, file('{"a":{"dtype":"U8","data_offsets":[0,4]}}')),
    "no offsets": ("ST-06", CorruptError, file('{"a":{"dtype":"U8","shape":[4]}}')),
    "descriptor a number": ("ST-06", CorruptError, file('{"a":4}')),
    "descriptor null": ("ST-06", CorruptError, file('{"a":null}')),
    "unknown dtype": ("ST-07", UnsupportedError, file(tensor('"X8"'))),
    "dtype in small letters": ("ST-07", UnsupportedError, file(tensor('"u8"'))),
    "dtype a number": ("ST-07", UnsupportedError, file(tensor("0"))),
    "dtype C128": ("ST-07", UnsupportedError, file(tensor('"C128"', "[1]", "[0,16]"), bytes(16))),
    "extent 4.0": ("ST-08", CorruptError, file(tensor(shape="[4.0]"))),
    "extent 4e0": ("ST-08", CorruptError, file(tensor(shape="[4e0]"))),
    "extent -4": ("ST-08", CorruptError, file(tensor(shape="[-4]"))),
    "extent true": ("ST-08", CorruptError, file(tensor(shape="[true]", offsets="[0,1]"), b"\1")),
    "extent a text": ("ST-08", CorruptError, file(tensor(shape='["4"]'))),
    "extent 2^64": ("ST-08", CorruptError, file(tensor(shape=f"[0,{1 << 64}]", offsets="[0,0]"), b"")),
    "extent of 5,000 digits": ("ST-02", CorruptError, file(tensor(shape=f"[{'9' * 5000}]"))),
    "shape a number": ("ST-08", CorruptError, file(tensor(shape="4"))),
    "product wraps 2^64": ("ST-08", CorruptError, file(tensor(shape=f"[{1 << 32},{1 << 32}]", offsets="[0,0]"), b"")),
    "product wraps before a zero": (
        "ST-08",
        CorruptError,
        file(tensor(shape=f"[{1 << 32},{1 << 32},0]", offsets="[0,0]"), b""),
    ),
    "bits wrap": ("ST-08", CorruptError, file(tensor('"F64"', f"[{1 << 61}]", "[0,0]"), b"")),
    "offset -0": ("ST-09", CorruptError, file(tensor(offsets="[-0,4]"))),
    "offset 0.0": ("ST-09", CorruptError, file(tensor(offsets="[0.0,4]"))),
    "three offsets": ("ST-09", CorruptError, file(tensor(offsets="[0,4,4]"))),
    "one offset": ("ST-09", CorruptError, file(tensor(offsets="[4]"))),
    "offsets reversed": ("ST-09", CorruptError, file(tensor(offsets="[4,0]"))),
    "offset of 2^63": ("ST-09", CorruptError, file(tensor(offsets=f"[0,{1 << 63}]"))),
    "too few bytes": ("ST-10", CorruptError, file(tensor(shape="[5]"))),
    "too many bytes": ("ST-10", CorruptError, file(tensor(shape="[3]"))),
    "half a byte": ("ST-10", CorruptError, file(tensor('"F4"', "[3]", "[0,1]"), b"\1")),
    "three quarters of a byte": ("ST-10", CorruptError, file(tensor('"F6_E2M3"', "[1]", "[0,1]"), b"\1")),
    "gap at the start": ("ST-11", CorruptError, file(tensor(shape="[2]", offsets="[2,4]"))),
    "gap": (
        "ST-11",
        CorruptError,
        file(
            '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}}'
        ),
    ),
    "overlap": (
        "ST-11",
        CorruptError,
        file(
            '{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}'
        ),
    ),
    "the same bytes": ("ST-11", CorruptError, file(f'{{"a":{T},"b":{T}}}')),
    "no bytes in the middle": (
        "ST-11",
        CorruptError,
        file(f'{{"a":{{"dtype":"U8","shape":[0],"data_offsets":[2,2]}},"b":{T}}}'),
    ),
    "no bytes beyond the end": (
        "ST-11",
        CorruptError,
        file(f'{{"a":{{"dtype":"U8","shape":[0],"data_offsets":[5,5]}},"b":{T}}}'),
    ),
    "a byte more": ("ST-12", CorruptError, file(f'{{"a":{T}}}', FOUR + b"\0")),
    "a byte less": ("ST-12", TruncatedError, file(f'{{"a":{T}}}', FOUR[:3])),
    "bytes without tensors": ("ST-12", CorruptError, file("{}", b"\0")),
    "a zip behind": ("ST-12", CorruptError, file(f'{{"a":{T}}}', FOUR + b"PK\5\6" + bytes(18))),
}

STRICTER: dict[str, tuple[str, type[bs.BurnstoreError], bytes]] = {
    "name twice": ("ST-03", CorruptError, file(f'{{"a":{T},"a":{T}}}')),
    "name twice, once with an escape": ("ST-03", CorruptError, file(f'{{"a":{T},"\\u0061":{T}}}')),
    "metadata key twice": ("ST-03", CorruptError, file(f'{{"__metadata__":{{"x":"1","x":"2"}},"a":{T}}}')),
    "deep unknown field": ("ST-04", LimitError, file(tensor(more=f',"x":{"[" * 20}{"]" * 20}'))),
    "unknown field": ("ST-06", UnsupportedError, file(tensor(more=',"x":1'))),
    "descriptor an array": ("ST-06", CorruptError, file('{"a":["U8",[4],[0,4]]}')),
    "dtype an object": ("ST-07", UnsupportedError, file(tensor('{"U8":null}'))),
    "65 axes": ("ST-08", LimitError, file(tensor(shape=f"[4{',1' * 64}]"))),
    "extent 2^63 beside a zero": ("ST-08", CorruptError, file(tensor(shape=f"[0,{1 << 63}]", offsets="[0,0]"), b"")),
    "product wraps behind a zero": (
        "ST-08",
        CorruptError,
        file(tensor(shape=f"[0,{1 << 32},{1 << 32}]", offsets="[0,0]"), b""),
    ),
    "name of 65,537 bytes": ("ST-13", LimitError, file(f'{{"{"x" * 65_537}":{T}}}')),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_the_package_takes_is_opened_and_the_same(name: str) -> None:
    with bs.open(GOOD[name], format="safetensors") as f:
        found = {key: (t.shape, t.to_bytes()) for key, t in f.items()}
    theirs = dict(safetensors.deserialize(GOOD[name]))
    assert found == {key: (tuple(value["shape"]), bytes(value["data"])) for key, value in theirs.items()}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_right_is_known_by_its_bytes(name: str) -> None:
    with bs.open(GOOD[name]) as f:
        assert f.format == "safetensors"


@pytest.mark.parametrize("name", BAD)
def test_what_the_package_refuses_is_refused_by_its_rule(name: str) -> None:
    rule, kind, data = BAD[name]
    assert not package_takes(data)
    with at_most(2):
        error = refused(data, kind, rule, tensor=_named(name, data), format="safetensors")
    assert error.rule == rule


@pytest.mark.parametrize("name", STRICTER)
def test_what_only_we_refuse_is_refused_by_a_rule_that_says_so(name: str) -> None:
    rule, kind, data = STRICTER[name]
    assert package_takes(data)
    refused(data, kind, rule, tensor=_named(name, data), format="safetensors")


def _named(name: str, data: bytes) -> str | None:
    """The tensor that the error about this file should name: that of any error but the ones about the whole."""
    rule = {**BAD, **STRICTER}[name][0]
    if rule in ("ST-01", "ST-02", "ST-03", "ST-04", "ST-05", "ST-12"):
        return None
    if rule == "ST-13":
        return "x" * 65_537
    return "b" if name in ("gap", "overlap", "the same bytes") else "a"


RANGES = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=5)


@settings(max_examples=1000)
@given(RANGES, st.integers(0, 8), st.booleans())
def test_ranges_are_judged_as_the_package_judges_them(
    ranges: list[tuple[int, int]], size: int, sizes_fit: bool
) -> None:
    """H12: overlap, gap, reversed, trailing byte, nothing at odd places; also such as lie end to end in any order."""
    if sizes_fit:
        ends = sorted({end for _, end in ranges})
        ranges = list(zip([0, *ends[:-1]], ends, strict=True))[::-1]
        size = ends[-1]
    described = {
        f"t{n}": {"dtype": "U8", "shape": [abs(end - start)], "data_offsets": [start, end]}
        for n, (start, end) in enumerate(ranges)
    }
    data = file(json.dumps(described), bytes(size))
    try:
        with bs.open(data) as f:
            found = {name: snapshot.to_bytes() for name, snapshot in f.items()}
    except bs.errors.FormatError as error:
        found = error.rule or ""
    assert package_takes(data) == isinstance(found, dict)
    if isinstance(found, str):
        assert found in ("ST-09", "ST-10", "ST-11", "ST-12")


@pytest.mark.parametrize("name", ["a\x1b[31m", "\u202egnp.x", "x" * 60_000, "a\nb", "\u0000"], ids=ascii)
def test_a_hostile_name_is_shown_escaped_and_short(name: str) -> None:
    twice = json.dumps({name: json.loads(T), "b": json.loads(T)})
    wrong = json.dumps({name: {"dtype": "?", "shape": [4], "data_offsets": [0, 4]}})
    for header in (twice, wrong):
        with pytest.raises(bs.errors.FormatError) as caught:
            bs.open(file(header))
        text = str(caught.value)
        assert text.replace("\n  hint: ", "").isprintable()
        assert len(text) < 1000


def test_a_header_whose_length_looks_like_text_is_no_index() -> None:
    padded = f'{{"__metadata__":{{"total_size":"1"}},"a":{T}}}'.ljust(0x7B20)
    with bs.open(file(padded)) as f:
        assert (list(f), f.metadata["total_size"]) == (["a"], "1")


def test_limits_can_be_lifted_and_lowered() -> None:
    rank = STRICTER["65 axes"][2]
    with bs.open(rank, limits=Limits(rank=65)) as f:
        assert len(f["a"].shape) == 65
    with bs.open(STRICTER["name of 65,537 bytes"][2], limits=Limits.trusted()) as f:
        assert len(f) == 1
    plain = GOOD["plain"]
    refused(plain, LimitError, "ST-01", limits=Limits(header_bytes=10))
    refused(plain, LimitError, "ST-01", limits=Limits(file_bytes=10))
    refused(plain, LimitError, None, tensor="a", limits=Limits(tensor_bytes=3))
    refused(plain, LimitError, "ST-04", limits=Limits(tensors=0))
    refused(plain, LimitError, "ST-13", tensor="a", limits=Limits(name_bytes=0))
    refused(GOOD["metadata"], LimitError, "ST-05", limits=Limits(metadata_entries=0))


def test_a_bool_that_is_neither_is_refused_when_it_is_read() -> None:
    data = file(tensor('"BOOL"'), b"\0\1\2\0")  # ST-14
    with bs.open(data) as f:
        for read in (f["a"].numpy, f["a"].to_bytes, f.numpy):
            with pytest.raises(CorruptError, match="found 2") as caught:
                read()
            assert caught.value.tensor == "a"


@pytest.mark.parametrize(
    ("metadata", "layout"),
    [
        (None, None),
        ({"format": "pt"}, "torch"),
        ({"format": "safetensors", "producer": "burn", "version": "0.22.1"}, "burn"),
        ({"format": "mlx"}, "mlx"),
        ({"format": "TensorFlow"}, "tf"),
        ({"format": "of another world"}, None),
        ({"format": "pt", "burnstore.layout": "burn"}, "burn"),
        ({"producer": "burn", "burnstore.layout": "torch"}, "torch"),
        ({"format": "pt", "burnstore.layout": "of another world"}, "of another world"),
    ],
)
def test_the_layout_is_what_the_texts_say(metadata: dict[str, str] | None, layout: str | None) -> None:
    header = {} if metadata is None else {"__metadata__": metadata}
    with bs.open(file(json.dumps(header), b"")) as f:
        assert f.layout == layout
        assert dict(f.metadata) == (metadata or {})


# --- H5, H6: no work that the file is not worth -----------------------------------------------------------------------

BOMBS: dict[str, tuple[str, Any]] = {
    "lists": ("LimitError", lambda: b"[" + b"[]," * (32 << 20)),
    "objects": ("LimitError", lambda: b"[" + b"{}," * (32 << 20)),
    "deep": ("LimitError", lambda: b"[" * 90_000_000),
    "strings": ("LimitError", lambda: b'{"__metadata__":{' + b'"a":"b",' * (12 << 20)),
    "one string": ("CorruptError", lambda: b'"' + b"x" * 90_000_000),
    "digits": ("CorruptError", lambda: b"1" * 90_000_000),
    "spaces": ("CorruptError", lambda: b" " * 90_000_000),
    "backslashes": ("CorruptError", lambda: b'"' + b"\\" * 90_000_000),
    "quotes": ("LimitError", lambda: b'"' * 90_000_000),
    "almost tensors": ("LimitError", lambda: b"{" + b',"a":{"dtype":"U8","shape":[1' * 1_900_000 + b"}"),
    "almost offsets": (
        "LimitError",
        lambda: b"{" + b',"a":{"dtype":"U8","shape":[],"data_offsets":[0,' * 1_300_000 + b"}",
    ),
    "almost names": ("CorruptError", lambda: b"{" + b',"a' * 3_000_000 + b"}"),
    "half pairs": ("CorruptError", lambda: b'{"\\u0041' + "é".encode() * 40_000_000 + b'":"\\ud800"}'),
    "not UTF-8": ("CorruptError", lambda: b"\xff" * 90_000_000),
}


@pytest.mark.matrix(every=10)
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_in_the_header_is_refused_in_little_time_and_memory(name: str) -> None:
    kind, make = BOMBS[name]
    data = file(make(), b"")

    def attempt() -> str:
        try:
            bs.open(data, format="safetensors")
        except bs.BurnstoreError as error:
            return type(error).__name__
        return "opened"

    answer, seconds = in_little_memory(700 * MIB, attempt)
    assert answer == kind
    assert seconds < 20


LENGTHS = [9, 100_000_000, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_header_length_that_lies_allocates_nothing(length: int) -> None:
    data = file("{}", b"", length=length)

    def attempt() -> str:
        with pytest.raises(bs.errors.FormatError) as caught:
            bs.open(data, format="safetensors")
        return type(caught.value).__name__

    answer, _ = in_little_memory(64 * MIB, attempt)
    assert answer in ("LimitError", "TruncatedError")


@pytest.mark.parametrize(
    "shape", [[1 << 40], [1 << 20, 1 << 20, 1 << 20], [4294967297, 4294967297], [1 << 31, 1 << 31], [1 << 62]]
)
def test_a_shape_that_lies_allocates_nothing(shape: list[int]) -> None:
    for end in (0, 4, 1 << 40):
        data = file(json.dumps({"a": {"dtype": "F64", "shape": shape, "data_offsets": [0, end]}}))
        with pytest.raises(bs.errors.FormatError):
            bs.open(data)
