"""The strict face of JSON: what is refused, where, and before how much work."""

from __future__ import annotations

import json as standard
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore.errors import CorruptError, LimitError
from burnstore.io import json

ROOM = {"most_nodes": 1000, "most_strings": 1000}

REFUSED = {
    "nothing": "",
    "white space": " \n",
    "two values": "1 2",
    "comma at the end of an array": "[1,]",
    "comma at the end of an object": '{"a":1,}',
    "comment": "{/**/}",
    "single quotes": "{'a':1}",
    "key without quotes": "{a:1}",
    "NaN": "NaN",
    "Infinity": "[Infinity]",
    "-Infinity": "-Infinity",
    "leading zero": "01",
    "plus": "+1",
    "point at the end": "1.",
    "point at the beginning": ".5",
    "minus alone": "-",
    "hexadecimal": "0x10",
    "beyond float64": "1e999",
    "integer beyond float64": "9" * 400,
    "an integer of 5,000 digits": "1" * 5000,
    "control character": '"a\nb"',
    "NUL": '"\0"',
    "unknown escape": '"\\x41"',
    "half an escape": '"\\u12"',
    "high surrogate alone": '"\\ud800"',
    "low surrogate alone": '"\\ude00"',
    "high surrogate in a key": '{"\\ud800":1}',
    "surrogates the wrong way round": '["\\ude00\\ud83d"]',
    "string without an end": '"abc',
    "array without an end": "[1",
    "byte order mark": "\ufeff{}",
    "vertical tab as white space": "\v1",
    "no-break space": "\xa01",
    "closing bracket first": "]",
    "wrong bracket": "[}",
    "key twice": '{"a":1,"a":1}',
    "key twice, once with an escape": '{"a":1,"\\u0061":1}',
    "key twice, deeper": '[{"b":{"a":1,"a":2}}]',
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_what_is_not_strict_json_is_refused(text: str) -> None:
    with pytest.raises(CorruptError) as caught:
        json.parse(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_a_key_that_comes_twice_breaks_a_rule_of_its_own() -> None:
    with pytest.raises(CorruptError, match="'a' comes twice") as caught:
        json.parse('{"a":1,"a":2}', rule="XX-01", rule_of_keys="XX-02")
    assert caught.value.rule == "XX-02"
    with pytest.raises(CorruptError) as caught:
        json.parse('{"a":1', rule="XX-01", rule_of_keys="XX-02")
    assert (caught.value.rule, caught.value.offset) == ("XX-01", 6)


def test_an_offset_counts_bytes() -> None:
    with pytest.raises(CorruptError) as caught:
        json.parse('["é🔥",x]')
    assert caught.value.offset == len('["é🔥",'.encode())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-1", -1),
        (str(2**64 - 1), 2**64 - 1),
        (str(-(2**63)), -(2**63)),
        ('"\\ud83d\\ude00\\/\\u0000"', "😀/\0"),
        (' \t\r\n{"a" : [ 1 , null , true ] } ', {"a": [1, None, True]}),
        ('"\x7f"', "\x7f"),
    ],
)
def test_what_is_json_is_read(text: str, value: object) -> None:
    found = json.parse(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["-0", "1.0", "1e3", "4e0", str(2**64), str(-(2**63) - 1), "9" * 30])
def test_a_number_that_is_no_integer_of_64_bits_is_a_float(text: str) -> None:
    assert type(json.parse(text)) is float


@pytest.mark.parametrize(
    "raw", [b"\xff", b'"\xc0\x80"', b'"\xed\xa0\x80"', "{}".encode("utf-16"), b'"\xf0\x9f\x98"', "1".encode("utf-32")]
)
def test_what_is_not_utf_8_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptError):
        json.parse(json.decode(raw, **ROOM))


@pytest.mark.slow("bombs")
@pytest.mark.parametrize("depth", [17, 100, 10_000, 1_000_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('{"]]]]":[', "]}")])
def test_deep_nesting_is_refused_and_never_recursed_into(depth: int, opening: str, closing: str) -> None:
    for text in (opening * depth + "1" + closing * depth, opening * depth):
        with pytest.raises(LimitError, match="deep"):
            json.parse(text)


def test_brackets_in_strings_have_no_depth() -> None:
    text = standard.dumps({"[" * 100: "{" * 100 + '"\\' * 5})
    assert json.parse(text) == standard.loads(text)
    hidden = '{"' + "]" * 100_000 + '":' + "[" * 50_000
    with pytest.raises(LimitError):
        json.parse(hidden)


def test_sixteen_deep_is_allowed() -> None:
    assert json.parse("[" * 16 + "]" * 16)


def test_nodes_and_strings_are_counted_before_the_text_is_made() -> None:
    with pytest.raises(LimitError, match="brackets"):
        json.decode(b"[" * 1001, **ROOM)
    with pytest.raises(LimitError, match="brackets"):
        json.decode(b"[{" * 501 + b"\xff", **ROOM)
    with pytest.raises(LimitError, match="quotes"):
        json.decode(b'"' * 2001, **ROOM)
    bomb = b"[[],[]," * (14 << 20)
    started = time.process_time()
    with pytest.raises(LimitError):
        json.decode(bomb, most_nodes=4_000_000, most_strings=10)
    assert time.process_time() - started < 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(JSON, st.booleans())
def test_whatever_python_writes_is_read_as_it_was(value: object, ascii_only: bool) -> None:
    text = standard.dumps(value, ensure_ascii=ascii_only)
    assert json.parse(json.decode(text.encode(), most_nodes=10_000, most_strings=10_000)) == value


@given(st.text())
def test_a_quoted_text_is_what_it_was(text: str) -> None:
    assert standard.loads(json.quote(text)) == text


@given(st.text(alphabet='[]{}":,\\u0d8e1-.etrfalsn \n'))
def test_what_is_read_is_what_the_standard_library_reads(text: str) -> None:
    try:
        value = json.parse(text)
    except (CorruptError, LimitError):
        return
    assert value == standard.loads(text)
