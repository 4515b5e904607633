"""JSON documents: equal to the json package where both read, strict where it is not, bounded before it builds."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore.errors import BurnstoreError, CorruptError, LimitError, TruncatedError
from burnstore.formats.codec.json_document import NumberText, NumberTexts, encode_bytes, encode_scalar, parse_document
from burnstore.formats.codec.window import NumberForm, Numbers
from burnstore.io.spool import Spool

U8 = NumberForm(np.dtype("u1"), 0, 255)
F32 = NumberForm(np.dtype("<i4"), -(1 << 31), (1 << 31) - 1, np.dtype("<f4"), bools=True)
I64 = NumberForm(np.dtype("<i8"), -(1 << 63), (1 << 63) - 1, np.dtype("<f8"), bools=True)


def decoded(data: bytes, *, depth: int = 64, nodes: int = 100_000, longest: int = 1 << 16, forms: Any = None) -> Any:
    return parse_document(data, forms or ["\0"], nodes=nodes, depth=depth, longest_text=longest)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=40)
)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=8), inner, max_size=20)
)


@given(trees, st.sampled_from([None, 0, 2, "\t"]), st.booleans())
def test_it_reads_what_the_package_writes(tree: Any, indent: Any, ascii_only: bool) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=ascii_only)
    assert decoded(text.encode("utf-8")) == tree


@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn \\u\n', max_size=60))
def test_text_of_any_kind_is_read_as_the_package_reads_it_or_refused(text: str) -> None:
    try:
        found = decoded(text.encode())
    except BurnstoreError:
        return
    assert repr(found) == repr(json.loads(text))


@given(st.binary(max_size=100))
def test_bytes_of_any_kind_raise_nothing_but_errors_of_burnstore(data: bytes) -> None:
    try:
        decoded(data)
    except BurnstoreError:
        return
    json.loads(data.decode("utf-8"))


SAMPLE = json.dumps(
    {"a": [1, -5, 1.5e-7, None, True, "t\u00e9\n"], "b": {"c": list(range(30)), "": {}}}, indent=1
).encode()


def test_a_document_cut_at_any_byte_is_refused() -> None:
    for length in range(len(SAMPLE)):
        with pytest.raises((TruncatedError, CorruptError)):
            decoded(SAMPLE[:length])


@pytest.mark.parametrize(
    "text",
    [
        *(
            "01",
            "-01",
            "+1",
            "1.",
            ".5",
            "1e",
            "1e+",
            "0x1",
            "1_0",
            "NaN",
            "Infinity",
            "-Infinity",
            "nan",
            "--1",
            "1-1",
        ),
        *("- 1", "1e5.5", "1.e5", "00", "tru", "nul", "True", "None", "'a'", "[1,]", "[,1]", "[1 2]", '{"a":1,}'),
        *('{"a" 1}', "{a:1}", '{"a":}', '{,"a":1}', "[1}", '{"a":1]', "1 2", "[] []", "{} x", "//", "/**/1", "\ufeff1"),
        *(
            '"\n"',
            '"\x00"',
            '"\\x41"',
            '"\\u12"',
            '"\\ud800"',
            '"\\udc00\\ud800"',
            '"',
            '"\\"',
            "[",
            "{",
            '{"a"',
            '{"a":',
        ),
        *("9" * 500, "1e999", "-1e999", "18446744073709551616", "-9223372036854775809", '{"a":1,"a":2}'),
        '{"a":1,"\\u0061":2}',
    ],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises((CorruptError, TruncatedError)):
        decoded(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("raw", [b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', '"a"'.encode("utf-16"), b"\xef\xbb\xbf1"])
def test_what_is_not_utf8_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptError):
        decoded(raw)


@pytest.mark.parametrize("depth", [100, 10_000, 1_000_000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_nesting_is_bounded_and_is_no_recursion(depth: int, opening: bytes) -> None:
    with pytest.raises(LimitError, match="nested"):
        decoded(opening * depth, depth=64, nodes=2_000_000)


@pytest.mark.parametrize("item", [b"null", b"[]", b"{}", b'""', b"1"])
def test_more_values_than_allowed_are_refused(item: bytes) -> None:
    with pytest.raises(LimitError):
        decoded(b"[" + b",".join([item] * 10_001) + b"]", nodes=10_000)


def test_text_beyond_the_limit_is_refused() -> None:
    assert decoded(json.dumps("é" * 5).encode(), longest=10) == "é" * 5
    for text in ("x" * 11, "é" * 6, "x" * 5_000_000):
        with pytest.raises(LimitError):
            decoded(json.dumps(text).encode(), longest=10)


def numbers(text: bytes, form: NumberForm) -> tuple[Numbers, np.ndarray]:
    spool = Spool()
    raw = b'{"v": ' + text + b"}"
    place = parse_document(raw, ["v"], nodes=20, depth=3, longest_text=10)["v"]
    if not isinstance(place, NumberText):
        raise CorruptError("no array of numbers")
    texts = NumberTexts(raw, spool)
    assert texts.nulls(place) is None
    found = texts.decode(place, form)
    assert found.count == texts.count(place)
    assert isinstance(found, Numbers)
    raw = spool.source("x").read_at(found.extent.offset, found.extent.nbytes)
    kept = {"float": form.floats, "bool": np.dtype(bool), "int": form.integers}[found.kind]
    return found, np.frombuffer(raw, kept)


@given(st.binary(min_size=1, max_size=500), st.sampled_from([None, 1]))
def test_bytes_spelled_out_come_back(data: bytes, indent: Any) -> None:
    assert numbers(json.dumps(list(data), indent=indent).encode(), U8)[1].tobytes() == data


@given(st.lists(st.integers(-(10**17), 10**17), min_size=1, max_size=200))
def test_integers_come_back(values: list[int]) -> None:
    found, array = numbers(json.dumps(values).encode(), I64)
    assert array.tolist() == values
    assert (found.low, found.high) == (min(values), max(values))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=100))
def test_floats_come_back_bit_for_bit(values: list[float]) -> None:
    assert numbers(json.dumps(values).encode(), I64)[1].tobytes() == np.array(values).tobytes()


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=100))
def test_single_floats_come_back_from_their_shortest_digits(values: list[float]) -> None:
    text = "[" + ",".join(_shortest(np.float32(value)) for value in values) + "]"
    assert numbers(text.encode(), F32)[1].tobytes() == np.array(values, "<f4").tobytes()


def _shortest(value: np.float32) -> str:
    text = str(value)
    return text if any(mark in text for mark in ".e") else f"{text}.0"


def test_long_arrays_are_decoded_by_the_piece() -> None:
    data = np.random.default_rng(1).integers(0, 256, 700_000, np.uint8)
    assert numbers(json.dumps(data.tolist(), indent=2).encode(), U8)[1].tobytes() == data.tobytes()
    floats = np.random.default_rng(2).normal(size=100_000)
    assert numbers(json.dumps(floats.tolist()).encode(), I64)[1].tobytes() == floats.tobytes()
    assert numbers(json.dumps([True, False] * 100_000).encode(), I64)[1].tolist() == [True, False] * 100_000


@pytest.mark.parametrize(
    "text",
    [
        *(
            "[1,,2]",
            "[1,2,]",
            "[1 2]",
            "[1;2]",
            "[01]",
            "[1,-]",
            "[-,1]",
            "[1,--2]",
            "[5-3]",
            "[1,+2]",
            "[256]",
            "[-1]",
        ),
        *(
            "[1,1.5]",
            "[1,true]",
            "[1,null]",
            "[1,[2]]",
            '[1,"2"]',
            "[1,2",
            "[1,0x2]",
            "[1, 2 3]",
            "[1,\x0b2]",
            "[1,2e1]",
        ),
    ],
)
def test_an_array_of_bytes_with_something_else_in_it_is_refused(text: str) -> None:
    with pytest.raises((CorruptError, TruncatedError)):
        numbers(text.encode(), U8)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "[1.5,2]",
            "[1.5,.5]",
            "[1.,2.5]",
            "[+1.5]",
            "[1.5,01.5]",
            "[1.5,-01.5]",
            "[1.5,1_0.0]",
            "[1.5,inf]",
            "[1.5 2.5]",
        ),
        *(
            "[1.5,]",
            "[1.5,true]",
            "[1e400]",
            "[1e39]",
            "[1.5,1e]",
            "[1.5,--1.0]",
            "[1.5,1.5.5]",
            "[true,tru]",
            "[true,1]",
        ),
    ],
)
def test_an_array_of_floats_with_something_else_in_it_is_refused(text: str) -> None:
    with pytest.raises((CorruptError, TruncatedError)):
        numbers(text.encode(), F32)


def test_an_exponent_may_have_leading_zeros() -> None:
    assert numbers(b"[1e-05,1.5E+007,-0.0]", I64)[1].tolist() == [1e-05, 1.5e7, -0.0]


def test_null_among_numbers_says_what_was_lost() -> None:
    with pytest.raises(CorruptError, match="NaN or an infinity"):
        numbers(b"[1.5,null,2.5]", F32)


@given(st.text(max_size=60))
def test_text_is_written_so_that_the_package_reads_it(text: str) -> None:
    assert json.loads(encode_scalar(text)) == text


@given(scalars)
def test_scalars_are_written_so_that_the_package_reads_them(value: Any) -> None:
    assert json.loads(encode_scalar(value)) == value


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        *(
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.001, "0.001"),
            (1e-5, "0.00001"),
            (1e-6, "1e-6"),
            (1e15, "1000000000000000.0"),
        ),
        *(
            (1e16, "1e16"),
            (1.5e16, "1.5e16"),
            (123456.75, "123456.75"),
            (-2.5e-7, "-2.5e-7"),
            (1.7976931348623157e308, "1.7976931348623157e308"),
        ),
        *((5e-324, "5e-324"), (0.1, "0.1"), (100.0, "100.0"), (1e22, "1e22"), (math.nan, "null"), (math.inf, "null")),
    ],
)
def test_floats_are_spelled_as_serde_json_spells_them(value: float, spelled: str) -> None:
    assert encode_scalar(value).decode() == spelled


def test_bytes_are_spelled_with_the_separator() -> None:
    assert encode_bytes(memoryview(bytes([0, 9, 10, 99, 100, 255])), b",\n ") == b"0,\n 9,\n 10,\n 99,\n 100,\n 255"
