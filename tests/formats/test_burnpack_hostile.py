"""Hostile metadata: lengths that lie, bombs, nesting, repeated keys, encodings (rows H5 .. H8, H11).

The tables give for every file the class and the rule of its refusal, and where the error must point.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile import (
    ARRAY,
    BYTES,
    EMPTY,
    FOUR,
    MAP,
    MIB,
    NULL,
    ONE_TENSOR,
    TEXT,
    array,
    at_most,
    block_size,
    descriptor,
    head,
    in_little_memory,
    mapping,
    pack,
    quantized,
    refused,
    scalar,
    scheme,
    tensors,
    text,
    uints,
)

import burnstore as bs
from burnstore.errors import CorruptError, LimitError, TruncatedError, UnknownFormatError, UnsupportedError


def test_the_files_that_are_made_wrong_below_are_right() -> None:
    assert bs.open(pack(ONE_TENSOR, FOUR))["t"].numpy().tolist() == [1, 2, 3, 4]
    block = mapping(("size", block_size()), ("dtype", text("F32")))
    for content in (scheme(), scheme(block=block), scheme(store=mapping(("PackedU32", b"\0")))):
        assert bs.open(pack(quantized(content), FOUR + b"\0\0\x80\x3f"))["t"].numpy().tolist() == [1, 2, 3, 4]
    assert bs.open(pack(scalar("UInt", b"\1"))).scalars["s"].value == 1


# ------------------------------------------------------------------------------- H5: lengths that lie

M = len(ONE_TENSOR)
ROOM = len(pack(ONE_TENSOR, FOUR)) - 10
LENGTHS: list[tuple[int, type[bs.errors.FormatError], str, int, str | None]] = [
    (0, TruncatedError, "BP-05", 10, None),
    (1, TruncatedError, "BP-05", 10, None),
    (7, TruncatedError, "BP-05", 12, None),
    (8, TruncatedError, "BP-05", 12, None),
    (9, TruncatedError, "BP-05", 19, None),
    (M - 1, TruncatedError, "BP-11", 53, "t"),
    (M + 1, CorruptError, "BP-04", 10 + M, None),
    (ROOM, CorruptError, "BP-04", 10 + M, None),
    (ROOM + 1, TruncatedError, "BP-03", 6, None),
    (100 * MIB, TruncatedError, "BP-03", 6, None),
    *((n, LimitError, "BP-03", 6, None) for n in (100 * MIB + 1, 2**31 - 1, 2**31, 2**32 - 1)),
    *(
        (int.from_bytes(magic, "little"), LimitError, "BP-03", 6, None)
        for magic in (b"NRUB", b"%PDF", b'{"__', b"\x80\x02}q", b"\x89HDF", b"\x7fELF")
    ),
    (int.from_bytes(b"PK\3\4", "little"), TruncatedError, "BP-03", 6, None),
]


@pytest.mark.parametrize(("length", "kind", "rule", "offset", "tensor"), LENGTHS)
def test_a_length_that_lies_is_refused(length: int, kind: Any, rule: str, offset: int, tensor: str | None) -> None:
    refused(pack(ONE_TENSOR, FOUR, length=length), kind, rule, offset=offset, tensor=tensor)


def _answer(path: Path) -> Callable[[], Any]:
    def answer() -> Any:
        try:
            bs.open(path).close()
        except bs.BurnstoreError as error:
            return type(error), error.rule, error.path
        return "opened"

    return answer


@pytest.mark.parametrize(
    ("size", "length", "kind", "rule", "memory"),
    [
        (6 << 30, 2**32 - 1, LimitError, "BP-03", 16 * MIB),
        (6 << 30, 2**31, LimitError, "BP-03", 16 * MIB),
        (2 << 30, 100 * MIB + 1, LimitError, "BP-03", 16 * MIB),
        (99 * MIB, 100 * MIB, TruncatedError, "BP-03", 16 * MIB),
        (256, 2**32 - 1, LimitError, "BP-03", 16 * MIB),
        (2 << 30, 15 * MIB, CorruptError, "BP-05", 256 * MIB),
        (2 << 30, 100 * MIB, CorruptError, "BP-05", 464 * MIB),  # not a lie: they are there, and are read
    ],
)
def test_a_length_that_lies_allocates_nothing(
    tmp_path: Path, size: int, length: int, kind: Any, rule: str, memory: int
) -> None:
    path = tmp_path / "lie.bpk"
    with open(path, "wb") as file:
        file.write(struct.pack("<4sHI", b"NRUB", 1, length))
        file.truncate(size)
    answer, seconds = in_little_memory(memory, _answer(path))
    assert answer == (kind, rule, str(path))
    assert seconds < 1


# ------------------------------------------------------------------------------- H6: bombs


def _tree(depth: int, item: bytes, key: bytes = b"") -> bytes:
    """Sixty-four of sixty-four of ... : small numbers that multiply."""
    for _ in range(depth):
        if key:
            item = head(MAP, 64) + b"".join(text(f"{key.decode()}{i}") + item for i in range(64))
        else:
            item = head(ARRAY, 64) + item * 64
    return item


ZEROS = 10_000_000
STARTS = b"\xa1gtensors\xb8\xff" + b"a" * 250 + b"\xa3edtypecF32eshape\x80"
BOMBS: dict[str, tuple[Callable[[], bytes], type[bs.errors.FormatError], str, str | None]] = {
    "tensors": (lambda: b"\xa1gtensors" + head(MAP, 10**7) + bytes(90 * 10**6), LimitError, "BP-07", None),
    "tensors, announced": (lambda: b"\xa1gtensors" + head(MAP, 10**7), TruncatedError, "BP-05", None),
    "tensors, 2^64": (lambda: b"\xa1gtensors" + head(MAP, 2**64 - 1), TruncatedError, "BP-05", None),
    "metadata": (
        lambda: b"\xa2gtensors\xa0hmetadata" + head(MAP, 10**6 + 1) + b"\x60\x60" * (10**6 + 1),
        LimitError,
        "BP-17",
        None,
    ),
    "scalars": (
        lambda: b"\xa2gtensors\xa0gscalars" + head(MAP, 10**6 + 1) + b"\x60\xa0" * (10**6 + 1),
        LimitError,
        "BP-18",
        None,
    ),
    "arrays at the top": (lambda: head(ARRAY, 10**7) + b"\x80" * 10**7, CorruptError, "BP-05", None),
    "maps at the top": (lambda: head(ARRAY, 10**7) + b"\xa0" * 10**7, CorruptError, "BP-05", None),
    "arrays for tensors": (lambda: b"\xa1gtensors" + head(ARRAY, 10**7) + b"\x80" * 10**7, CorruptError, "BP-05", None),
    "keys at the top": (lambda: head(MAP, 10**7) + b"\x60\xa0" * 10**7, UnsupportedError, "BP-05", None),
    "axes": (
        lambda: tensors(("t", descriptor(shape=head(ARRAY, ZEROS) + bytes(ZEROS)))),
        LimitError,
        "BP-10",
        "t",
    ),
    "axes, announced": (lambda: tensors(("t", descriptor(shape=head(ARRAY, 2**40)))), TruncatedError, "BP-10", "t"),
    "offsets": (
        lambda: tensors(("t", descriptor(offsets=head(ARRAY, ZEROS) + bytes(ZEROS)))),
        CorruptError,
        "BP-11",
        "t",
    ),
    "scheme of arrays": (lambda: quantized(scheme(block=_tree(4, b"\0"))), CorruptError, "BP-09", "t"),
    "scheme of maps": (lambda: quantized(scheme(block=_tree(3, b"\0", b"k"))), CorruptError, "BP-09", "t"),
    # Two that the quick scan of descriptors once took 170 bytes of memory, or hours, for each byte of.
    "zeros after a shape": (
        lambda: b"\xa1gtensors\xa1at\xa3edtypecF32eshape\x80" + bytes(ZEROS),
        CorruptError,
        "BP-06",
        "t",
    ),
    "zeros after many starts": (lambda: STARTS + bytes(ZEROS), CorruptError, "BP-06", "a"),
    "a name": (lambda: tensors((b"n" * 100_000_000, b"\xa0")), LimitError, "BP-08", None),
    "a dtype": (lambda: tensors(("t", descriptor(dtype=text(b"F" * 50_000_000)))), CorruptError, "BP-09", "t"),
    "a kind of scalar": (lambda: scalar("I" * 50_000_000, b"\0"), CorruptError, "BP-18", None),
    "a key of a scheme": (lambda: quantized(mapping((b"v" * 50_000_000, NULL))), CorruptError, "BP-09", "t"),
}


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_little_time_and_memory(tmp_path: Path, name: str) -> None:
    content, kind, rule, tensor = BOMBS[name]
    path = tmp_path / "bomb.bpk"
    path.write_bytes(pack(content()))

    def answer() -> Any:
        try:
            bs.open(path).close()
        except bs.BurnstoreError as error:
            return type(error), error.rule, error.tensor, error.path, len(str(error)) < 1000
        return "opened"

    # What is there must be read before it can be refused, so a long header costs some copies of itself.
    size = path.stat().st_size
    found, seconds = in_little_memory(256 * MIB if size < 60 * MIB else 64 * MIB + 4 * size, answer)
    assert found == (kind, rule, tensor, str(path), True)
    assert seconds < 2
    os.unlink(path)


LONG = 100_000_000
LONG_KEY = 40_000_000
LONG_TEXTS: dict[str, tuple[Callable[[], bytes], type[bs.errors.FormatError] | None, str | None, int]] = {
    "a key at the top": (lambda: mapping((b"k" * LONG_KEY, NULL)), UnsupportedError, "BP-05", 4),
    "a key of a descriptor": (lambda: tensors(("t", mapping((b"k" * LONG_KEY, NULL)))), UnsupportedError, "BP-06", 4),
    "the same key twice": (
        lambda: mapping(EMPTY, ("metadata", mapping(*[(b"k" * (LONG_KEY // 2), text(""))] * 2))),
        CorruptError,
        "BP-04",
        4,
    ),
    "a value": (lambda: mapping(EMPTY, ("metadata", mapping(("k", text(b"v" * LONG))))), None, None, 4),
    # Python needs four bytes for each character of a text with one such character in it.
    "a value, wide": (
        lambda: mapping(EMPTY, ("metadata", mapping(("k", text(b"v" * LONG + "\U0001f525".encode()))))),
        None,
        None,
        8,
    ),
}


@pytest.mark.slow("bombs")
@pytest.mark.parametrize("name", LONG_TEXTS)
def test_a_text_as_long_as_a_header_can_be_costs_a_few_copies(name: str) -> None:
    content, kind, rule, copies = LONG_TEXTS[name]
    data = pack(content())

    def answer() -> Any:
        try:
            bs.open(data).close()
        except bs.BurnstoreError as error:
            return type(error), error.rule, len(str(error)) < 1000
        return None

    found, seconds = in_little_memory(64 * MIB + copies * len(data), answer)
    assert found == (None if kind is None else (kind, rule, True))
    assert seconds < 2


@pytest.mark.slow("bombs")
def test_a_million_entries_are_read_in_time() -> None:
    entries = b"".join(b"\x66%06x\x60" % number for number in range(10**6))
    data = pack(b"\xa2gtensors\xa0hmetadata" + head(MAP, 10**6) + entries)
    started = time.process_time()
    assert len(bs.open(data).metadata) == 10**6
    assert time.process_time() - started < 0.05 + len(data) * 1e-6


@pytest.mark.parametrize("quick", [True, False])
def test_a_hundred_thousand_tensors_of_as_many_shapes_are_read_in_time(quick: bool) -> None:
    content = text("QFloat") + scheme()
    ends = 4 * 10_000
    parts = []
    for number, start in enumerate(range(0, ends, 4)):
        fields = [text("shape"), uints(0, number), text("data_offsets"), uints(start, start + 4)]
        fields = [text("dtype"), b"\xa1" + content, *fields] if quick else [*fields, text("dtype"), b"\xa1" + content]
        parts.append(text(f"{number:06}") + b"\xa3" + b"".join(fields))
    metadata = b"\xa1gtensors" + head(MAP, len(parts)) + b"".join(parts)
    started = time.process_time()
    error = refused(pack(metadata, bytes(ends)), CorruptError, "BP-14")
    assert "unaligned" in str(error)
    assert time.process_time() - started < 0.05 + len(metadata) * 1e-6


# ------------------------------------------------------------------------------- H7: nesting

DEPTHS = [10**2, 10**3, 10**4, 10**5, 10**6]
NESTS: dict[str, Callable[[int], bytes]] = {
    "arrays": lambda depth: b"\x81" * depth + b"\0",
    "maps": lambda depth: b"\xa1\x61a" * depth + b"\0",
    "tags": lambda depth: b"\xc1" * depth + b"\0",
    "endless arrays": lambda depth: b"\x9f" * depth + b"\xff" * depth,
    "endless maps": lambda depth: b"\xbf\x61a" * depth + b"\0" + b"\xff" * depth,
    "arrays and maps": lambda depth: b"\x81\xa1\x61a" * (depth // 2) + b"\0",
}
PLACES: dict[str, tuple[Callable[[bytes], bytes], set[str]]] = {
    "top": (lambda item: item, {"BP-05"}),
    "tensors": (lambda item: mapping(("tensors", item)), {"BP-05", "BP-06"}),
    "name": (lambda item: b"\xa1gtensors\xa1" + item + descriptor(), {"BP-08"}),
    "descriptor": (lambda item: tensors(("t", item)), {"BP-06"}),
    "dtype": (lambda item: tensors(("t", descriptor(dtype=item))), {"BP-09"}),
    "scheme": (lambda item: quantized(item), {"BP-09"}),
    "part of a scheme": (lambda item: quantized(scheme(block=item)), {"BP-09"}),
    "shape": (lambda item: tensors(("t", descriptor(shape=item))), {"BP-10"}),
    "extent": (lambda item: tensors(("t", descriptor(shape=array(item)))), {"BP-10"}),
    "offsets": (lambda item: tensors(("t", descriptor(offsets=item))), {"BP-11"}),
    "offset": (lambda item: tensors(("t", descriptor(offsets=array(b"\0", item)))), {"BP-11"}),
    "param_id": (lambda item: tensors(("t", descriptor(more=text("param_id") + item, keys=4))), {"BP-06"}),
    "metadata": (lambda item: mapping(EMPTY, ("metadata", item)), {"BP-17"}),
    "text": (lambda item: mapping(EMPTY, ("metadata", mapping(("a", item)))), {"BP-17"}),
    "scalars": (lambda item: mapping(EMPTY, ("scalars", item)), {"BP-18"}),
    "scalar": (lambda item: mapping(EMPTY, ("scalars", mapping(("a", item)))), {"BP-18"}),
    "number": (lambda item: scalar("Int", item), {"BP-18"}),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("nest", NESTS)
def test_nesting_of_any_depth_is_refused_where_it_begins(nest: str, place: str) -> None:
    put, rules = PLACES[place]
    for depth in DEPTHS:
        data = pack(put(NESTS[nest](depth)), FOUR)
        with at_most(2), pytest.raises(bs.errors.FormatError) as caught:
            bs.open(data)
        assert type(caught.value) in (CorruptError, UnsupportedError)
        assert caught.value.rule in rules
        assert caught.value.path == "<bytes>"
        assert caught.value.offset is None or caught.value.offset < 200


# ------------------------------------------------------------------------------- H8: repeated keys

TWICE: dict[str, tuple[bytes, str, str | None]] = {
    "tensors": (mapping(EMPTY, EMPTY), "BP-04", None),
    "metadata": (mapping(EMPTY, ("metadata", mapping()), ("metadata", mapping())), "BP-04", None),
    "scalars": (mapping(EMPTY, ("scalars", mapping()), ("scalars", mapping())), "BP-04", None),
    "a name": (tensors(("t", descriptor()), ("t", descriptor())), "BP-08", "t"),
    "a name, apart": (tensors(("t", descriptor()), ("u", descriptor()), ("t", descriptor())), "BP-08", "t"),
    "a name, long head": (b"\xa1gtensors\xa2at" + descriptor() + b"\x78\x01t" + descriptor(), "BP-08", "t"),
    "dtype": (tensors(("t", descriptor(more=text("dtype") + text("U8"), keys=4))), "BP-04", "t"),
    "shape": (tensors(("t", descriptor(more=text("shape") + uints(4), keys=4))), "BP-04", "t"),
    "data_offsets": (tensors(("t", descriptor(more=text("data_offsets") + uints(0, 4), keys=4))), "BP-04", "t"),
    "param_id": (tensors(("t", descriptor(more=(text("param_id") + b"\1") * 2, keys=5))), "BP-04", "t"),
    "param_id, null": (tensors(("t", descriptor(more=(text("param_id") + NULL) * 2, keys=5))), "BP-04", "t"),
    "Bool": (tensors(("t", descriptor(dtype=mapping(*[("Bool", text("Native"))] * 2)))), "BP-09", "t"),
    "QFloat": (tensors(("t", descriptor(dtype=mapping(*[("QFloat", scheme())] * 2)))), "BP-09", "t"),
    "value": (quantized(b"\xa6" + scheme()[1:] + text("value") + text("Q8S")), "BP-09", "t"),
    "block": (quantized(b"\xa6" + scheme()[1:] + text("block") + NULL), "BP-09", "t"),
    "PackedU32": (quantized(scheme(store=mapping(*[("PackedU32", b"\0")] * 2))), "BP-09", "t"),
    "size": (quantized(scheme(block=mapping(*[("size", block_size())] * 2, ("dtype", text("F32"))))), "BP-09", "t"),
    "len": (
        quantized(scheme(block=mapping(("size", mapping(*[("len", b"\1")] * 2)), ("dtype", text("F32"))))),
        "BP-09",
        "t",
    ),
    "a text": (mapping(EMPTY, ("metadata", mapping(*[("a", text("b"))] * 2))), "BP-04", None),
    "a text, long head": (mapping(EMPTY, ("metadata", b"\xa2\x61a\x60\x79\0\1a\x60")), "BP-04", None),
    "a scalar": (mapping(EMPTY, ("scalars", mapping(*[("a", mapping(("Int", b"\1")))] * 2))), "BP-04", None),
    "Int": (mapping(EMPTY, ("scalars", mapping(("a", mapping(*[("Int", b"\1")] * 2))))), "BP-18", None),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_key_that_comes_twice_is_refused(name: str) -> None:
    metadata, rule, tensor = TWICE[name]
    error = refused(pack(metadata, FOUR), CorruptError, rule, tensor=tensor)
    assert error.offset is not None
    assert 10 < error.offset < 10 + len(metadata)


# ------------------------------------------------------------------------------- H11: encodings

WHOLE = pack(ONE_TENSOR, FOUR)
ENCODED: dict[str, tuple[bytes, type[bs.errors.FormatError], str | None]] = {
    "keys in UTF-16": (pack(mapping(("tensors".encode("utf-16-le"), mapping()))), UnsupportedError, "BP-05"),
    "keys in UTF-16 with a mark": (pack(mapping(("tensors".encode("utf-16"), mapping()))), CorruptError, "BP-05"),
    "keys in UTF-32": (pack(mapping(("tensors".encode("utf-32-le"), mapping()))), UnsupportedError, "BP-05"),
    "a mark in a key": (pack(mapping((b"\xef\xbb\xbftensors", mapping()))), UnsupportedError, "BP-05"),
    "a mark before the metadata": (pack(b"\xef\xbb\xbf" + ONE_TENSOR, FOUR), CorruptError, "BP-05"),
    "a mark before the file": (b"\xef\xbb\xbf" + WHOLE, UnknownFormatError, None),
    "spaces before the metadata": (pack(b"  " + ONE_TENSOR, FOUR), CorruptError, "BP-05"),
    "spaces before the file": (b"  " + WHOLE, UnknownFormatError, None),
    "a NUL after the metadata": (pack(ONE_TENSOR + b"\0", FOUR), CorruptError, "BP-04"),
    "a space after the metadata": (pack(ONE_TENSOR + b" ", FOUR), CorruptError, "BP-04"),
    "a second item": (pack(ONE_TENSOR + ONE_TENSOR, FOUR), CorruptError, "BP-04"),
    "the tag of CBOR itself": (pack(b"\xd9\xd9\xf7" + ONE_TENSOR, FOUR), CorruptError, "BP-05"),
    "JSON": (pack(json.dumps({"tensors": {}}).encode()), CorruptError, "BP-05"),
    "msgpack": (pack(b"\x81\xa7tensors\x80"), CorruptError, "BP-05"),
    "metadata in bytes": (pack(head(BYTES, M) + ONE_TENSOR, FOUR), CorruptError, "BP-05"),
    "metadata in text": (pack(head(TEXT, M) + ONE_TENSOR, FOUR), CorruptError, "BP-05"),
    "metadata in an array": (pack(array(ONE_TENSOR), FOUR), CorruptError, "BP-05"),
    "keys in bytes": (pack(b"\xa1" + head(BYTES, 7) + b"tensors\xa0"), CorruptError, "BP-05"),
    "keys in capitals": (pack(mapping(("Tensors", mapping()))), UnsupportedError, "BP-05"),
    "keys as numbers": (pack(b"\xa1\0\xa0"), CorruptError, "BP-05"),
    "the magic number the other way round": (b"BURN" + WHOLE[4:], UnknownFormatError, None),
    "the magic number in small letters": (b"nrub" + WHOLE[4:], UnknownFormatError, None),
    "the version the other way round": (WHOLE[:4] + b"\0\1" + WHOLE[6:], UnsupportedError, "BP-02"),
    "the length the other way round": (WHOLE[:6] + WHOLE[9:5:-1] + WHOLE[10:], LimitError, "BP-03"),
    "version 0": (WHOLE[:4] + b"\0\0" + WHOLE[6:], UnsupportedError, "BP-02"),
    "version 65535": (WHOLE[:4] + b"\xff\xff" + WHOLE[6:], UnsupportedError, "BP-02"),
}


@pytest.mark.parametrize("name", ENCODED)
def test_another_encoding_is_refused(name: str) -> None:
    data, kind, rule = ENCODED[name]
    error = refused(data, kind, rule)
    assert rule != "BP-02" or error.offset == 4


def test_every_table_is_as_long_as_it_should_be() -> None:
    assert len(BOMBS) + len(LONG_TEXTS) >= 12
    assert len(list(itertools.product(NESTS, PLACES, DEPTHS))) > 250
