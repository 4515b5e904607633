"""Our CBOR against cbor2: what we write it reads, what we read it reads the same, and what we refuse has a reason."""

from __future__ import annotations

import math
import struct
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnstore.errors import CorruptError, FormatError, TruncatedError
from burnstore.formats.codec.cbor import (
    CborReader,
    encode,
    encode_array_head,
    encode_float,
    encode_map_head,
    encode_text,
    encode_uint,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NUMBERS = st.integers(-(2**64), 2**64 - 1)
SOME = settings(max_examples=settings.default.max_examples // 2)  # of tests whose examples are slow to make
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5), max_leaves=30
    )


def in_canonical_order(tree: Any) -> Any:
    """The same tree, its maps in the order that cbor2's canonical form wants (shorter keys first)."""
    if isinstance(tree, list):
        return [in_canonical_order(item) for item in tree]
    if isinstance(tree, dict):
        keys = sorted(tree, key=lambda key: (len(encode_text(key)), encode_text(key)))
        return {key: in_canonical_order(tree[key]) for key in keys}
    return tree


def read_whole(data: bytes, depth: int = 40, nodes: int = 10_000) -> Any:
    reader = CborReader(data)
    tree = reader.tree(depth=depth, nodes=nodes)
    assert reader.at_end()
    return tree


@SOME
@given(trees(LEAVES | st.floats(allow_nan=False)))
def test_what_we_write_cbor2_reads(tree: Any) -> None:
    assert cbor2.loads(encode(tree)) == tree
    assert repr(cbor2.loads(encode(tree))) == repr(tree)  # 1 is not 1.0, nor True


@SOME
@given(trees(LEAVES | st.floats(allow_nan=False)))
def test_what_we_write_is_as_short_as_the_canonical_form(tree: Any) -> None:
    ordered = in_canonical_order(tree)
    assert encode(ordered) == cbor2.dumps(ordered, canonical=True)


@SOME
@given(trees(LEAVES))
def test_what_we_write_we_read(tree: Any) -> None:
    assert repr(read_whole(encode(tree))) == repr(tree)


@SOME
@given(trees(LEAVES), st.data())
def test_what_we_read_of_damaged_bytes_cbor2_reads_the_same(tree: Any, data: st.DataObject) -> None:
    damaged = bytearray(encode(tree))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    check_against_cbor2(bytes(damaged))


@given(st.binary(max_size=60))
def test_what_we_read_of_noise_cbor2_reads_the_same(data: bytes) -> None:
    check_against_cbor2(data)


def check_against_cbor2(data: bytes) -> None:
    reader = CborReader(data)
    try:
        tree = reader.tree(depth=20, nodes=1000)
    except FormatError as error:
        offset = error.offset or 0
    else:
        offset = reader.position
        assert repr(cbor2.loads(data[:offset])) == repr(tree)
    assert 0 <= offset <= len(data)


@pytest.mark.parametrize("value", [0, 1, 23, 24, 255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
@pytest.mark.parametrize("major", [0, 3, 4, 5])
def test_a_head_is_the_shortest_that_holds_its_number(value: int, major: int) -> None:
    head = encode_uint(value, major)
    width = len(head) - 1
    assert head[0] >> 5 == major
    assert width == next(w for limit, w in [(24, 0), (2**8, 1), (2**16, 2), (2**32, 4), (2**64, 8)] if value < limit)
    if major == 0:
        assert CborReader(head).uint() == value
        assert cbor2.loads(head) == value


def test_longer_heads_than_needed_are_read() -> None:
    for head in ("05", "1805", "190005", "1a00000005", "1b0000000000000005"):
        assert CborReader(bytes.fromhex(head)).uint() == 5
        assert cbor2.loads(bytes.fromhex(head)) == 5


@given(NUMBERS)
def test_integers_of_both_signs_come_back(value: int) -> None:
    assert CborReader(encode(value)).integer() == value


@given(TEXT)
def test_text_comes_back(text: str) -> None:
    assert encode_text(text) == cbor2.dumps(text)
    assert CborReader(encode_text(text)).text() == text


@given(st.binary(min_size=8, max_size=8))
def test_floats_of_every_width_are_read_as_cbor2_reads_them(bits: bytes) -> None:
    for head, width in ((0xF9, 2), (0xFA, 4), (0xFB, 8)):
        data = bytes((head,)) + bits[:width]
        ours, theirs = CborReader(data).float(), cbor2.loads(data)
        assert ours == theirs or (math.isnan(ours) and math.isnan(theirs))
        assert math.copysign(1, ours) == math.copysign(1, theirs) or math.isnan(ours)


@given(st.floats())
def test_a_float_is_written_so_that_every_bit_comes_back(value: float) -> None:
    assert struct.pack("<d", CborReader(encode_float(value)).float()) == struct.pack("<d", value)


@pytest.mark.parametrize(
    ("method", "good"),
    [
        ("uint", "05"),
        ("integer", "25"),
        ("text", "6161"),
        ("array", "8105"),
        ("map", "a1616105"),
        ("boolean", "f5"),
        ("float", "f93c00"),
    ],
)
def test_only_the_expected_kind_of_item_is_taken(method: str, good: str) -> None:
    items = {
        "uint": "05",
        "negative": "25",
        "bytes": "4161",
        "text": "6161",
        "array": "8105",
        "map": "a1616105",
        "tag": "c005",
        "bool": "f4",
        "null": "f6",
        "undefined": "f7",
        "simple": "e5",
        "float": "fb3ff0000000000000",
        "break": "ff",
    }
    fitting = {"integer": {"uint", "negative"}, "boolean": {"bool"}}.get(method, {method})
    getattr(CborReader(bytes.fromhex(good)), method)()
    for kind, item in items.items():
        reader = CborReader(b"\0\0" + bytes.fromhex(item), 2)
        if kind in fitting:
            getattr(reader, method)()
            assert reader.position > 2
            continue
        with pytest.raises(CorruptError, match="expected") as caught:
            getattr(reader, method)()
        assert (caught.value.offset, reader.position) == (2, 2)


def test_null_is_taken_only_where_it_is() -> None:
    reader = CborReader(b"\xf6\x05")
    assert reader.null()
    assert not reader.null()
    assert reader.uint() == 5
    assert reader.at_end()


@pytest.mark.parametrize("major", range(6))
@pytest.mark.parametrize("info", [28, 29, 30, 31])
def test_indefinite_and_reserved_lengths_are_refused(major: int, info: int) -> None:
    data = bytes((major << 5 | info,)) + bytes(20)
    methods = {0: "uint", 1: "integer", 3: "text", 4: "array", 5: "map"}
    with pytest.raises(CorruptError):
        CborReader(data).tree(depth=5, nodes=50)
    if major in methods:
        with pytest.raises(CorruptError, match="indefinite length" if info == 31 else "reserved length code"):
            getattr(CborReader(data), methods[major])()


@pytest.mark.parametrize("tag", ["c0", "c2", "c3", "c6", "d8 1c", "d8 1d", "d9 0102", "d9 d9f7", "da 00000100"])
def test_tags_are_refused(tag: str) -> None:
    with pytest.raises(CorruptError):
        CborReader(bytes.fromhex(tag) + b"\x41\x01").tree(depth=5, nodes=50)


@pytest.mark.parametrize("text", ["ff", "c080", "eda080", "f4908080", "e28a", "80"])
def test_text_that_is_not_utf_8_is_refused(text: str) -> None:
    raw = bytes.fromhex(text)
    with pytest.raises(CorruptError, match="not UTF-8"):
        CborReader(encode_uint(len(raw), 3) + raw).text()


@SOME
@given(trees(LEAVES))
def test_an_item_that_is_cut_is_truncated(tree: Any) -> None:
    data = encode(tree)
    for length in range(len(data)):
        with pytest.raises(TruncatedError):
            CborReader(data[:length]).tree(depth=40, nodes=10_000)
        with pytest.raises(TruncatedError):
            CborReader(data + b"\0" * 20, 0, length).tree(depth=40, nodes=10_000)


@pytest.mark.parametrize("head", ["9b", "bb", "7b"])
def test_a_length_that_lies_is_refused_before_anything_is_allocated(head: str) -> None:
    for count in (2, 2**20, 2**40, 2**63, 2**64 - 1):
        data = bytes.fromhex(head) + count.to_bytes(8, "big") + b"\0"
        with pytest.raises(TruncatedError):
            CborReader(data).tree(depth=5, nodes=2**70)


def test_a_key_twice_in_a_map_is_refused() -> None:
    data = bytes.fromhex("a2 6161 01 6161 02")
    assert cbor2.loads(data) == {"a": 2}  # the last wins there
    with pytest.raises(CorruptError, match="key 'a' twice") as caught:
        CborReader(data).tree(depth=5, nodes=50)
    assert caught.value.offset == 4


def test_keys_that_are_no_text_are_refused() -> None:
    for key in (1, -1, True, None, 1.0, b"a", (1,)):
        with pytest.raises(CorruptError, match="expected text"):
            CborReader(cbor2.dumps({key: 1})).tree(depth=5, nodes=50)


def test_depth_and_size_are_bounded_without_recursion_trouble() -> None:
    for opening in (b"\x81", b"\xa1\x61a"):
        with pytest.raises(CorruptError, match="nested deeper"):
            CborReader(opening * 100_000 + b"\0").tree(depth=20, nodes=50)
    assert CborReader(b"\x81" * 5 + b"\0").tree(depth=5, nodes=50) == [[[[[0]]]]]
    with pytest.raises(CorruptError):
        CborReader(b"\x81" * 6 + b"\0").tree(depth=5, nodes=50)
    with pytest.raises(CorruptError):
        CborReader(encode_array_head(51) + bytes(51)).tree(depth=5, nodes=50)
    with pytest.raises(CorruptError):
        CborReader(encode_text("x" * 51)).tree(depth=5, nodes=50)


def test_text_longer_than_allowed_is_refused() -> None:
    assert CborReader(encode_text("abc")).text(3) == "abc"
    with pytest.raises(FormatError, match="at most 2") as caught:
        CborReader(encode_text("abc")).text(2)
    assert caught.value.offset == 0


def test_heads_say_how_many_items_follow() -> None:
    assert encode_array_head(3) == b"\x83"
    assert encode_map_head(300) == b"\xb9\x01\x2c"
    assert CborReader(encode_array_head(3) + bytes(3)).array() == 3
    assert CborReader(encode_map_head(2) + bytes(4)).map() == 2
    assert CborReader(b"\xa0").is_map()
    assert not CborReader(b"\x80").is_map()


def test_nothing_left_is_truncated() -> None:
    for method in ("uint", "integer", "text", "array", "map", "boolean", "float", "null", "is_map"):
        with pytest.raises(TruncatedError):
            getattr(CborReader(b""), method)()
