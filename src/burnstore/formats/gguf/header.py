"""Read the header of a GGUF file: keys with typed values, then the tensors. Each length is checked before its use."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import (
    CorruptError,
    LimitError,
    TruncatedError,
    UnknownFormatError,
    UnsupportedError,
    counted,
    located,
    printable,
)
from ...io.source import Source
from ...limits import Limits
from .blocks import TYPES

MAGIC = b"GGUF"
MOST_HEADER_BYTES = 1 << 28
MOST_TENSORS = 1_000_000
MOST_DIMS = 4
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
ARCHITECTURE_KEY = "general.architecture"

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {
    0: ("u8", struct.Struct("<B"), "u1"),
    1: ("i8", struct.Struct("<b"), "i1"),
    2: ("u16", struct.Struct("<H"), "<u2"),
    3: ("i16", struct.Struct("<h"), "<i2"),
    4: ("u32", struct.Struct("<I"), "<u4"),
    5: ("i32", struct.Struct("<i"), "<i4"),
    6: ("f32", struct.Struct("<f"), "<f4"),
    BOOL: ("bool", struct.Struct("<B"), "u1"),
    10: ("u64", struct.Struct("<Q"), "<u8"),
    11: ("i64", struct.Struct("<q"), "<i8"),
    12: ("f64", struct.Struct("<d"), "<f8"),
}
"""The plain types of values by number: our name, how to read one, and the NumPy dtype of many."""
TYPE_NAMES = {number: entry[0] for number, entry in SCALARS.items()} | {STRING: "str"}
TYPE_NUMBERS = {name: number for number, name in TYPE_NAMES.items()}

_U32, _U64 = struct.Struct("<I").unpack_from, struct.Struct("<Q").unpack_from
_START = struct.Struct("<4sIQQ")
_FIRST_READ = 64 << 10
_LARGE = 1 << 20  # bytes of a header: from here on, few more are read than are needed
_WINDOW = 1 << 18  # bytes in which strings are looked for together
_FEW = 64  # strings that are passed one by one before it is tried again to pass many together
_MOST_DEPTH = 4  # of arrays in arrays; no known writer nests them
_LEAST_PAIR = 8 + 4 + 1  # a key of no characters, its type and one byte
_LEAST_TENSOR = 8 + 4 + 4 + 8


class _Chain:
    """Strings that follow one another, found for all of a range of bytes together.

    The length of a string below 256 is a byte and seven zeros, which text does not have. From a place that is the
    length of a string, the next such place is proved to be one if it is where the string ends.
    """

    def __init__(self, raw: bytes, start: int) -> None:
        self.start = start
        window = np.frombuffer(raw, np.uint8, min(len(raw) - start, _WINDOW), start)
        self.stop = start + len(window) - 8  # from here on, a length may be cut off
        zeros = window == 0
        for step in (1, 2, 3):  # two, four, then seven zeros in a row
            zeros = zeros[:-step] & zeros[step:]
        self.places = np.flatnonzero(zeros[1:])
        self.ends = self.places + 8 + window[self.places]
        self.breaks = np.flatnonzero(np.append(self.ends[:-1] != self.places[1:], True)[: len(self.ends)])

    def follow(self, at: int, most: int) -> tuple[int, int]:
        """Return how many strings from here on are known, at most this many, and where the last of them ends."""
        first = int(np.searchsorted(self.places, at - self.start))
        if first == len(self.places) or self.places[first] != at - self.start:
            return 0, at
        last = int(self.breaks[np.searchsorted(self.breaks, first)])
        count = min(last + 1 - first, most)
        return count, self.start + int(self.ends[first + count - 1])


class Header:
    """The bytes of a header, read as far as they are needed, and a position in them."""

    def __init__(self, source: Source, limits: Limits) -> None:
        self.source = source
        self.most = min(source.size, limits.header_bytes or 0)
        self.raw = source.read_at(0, min(source.size, _FIRST_READ))
        self.at = 0

    def need(self, count: int, what: str) -> int:
        """Return the position and move over this many bytes, which must be there."""
        start, stop = self.at, self.at + count
        if stop > len(self.raw):
            self._extend(stop, what)
        self.at = stop
        return start

    def _extend(self, stop: int, what: str) -> None:
        if stop > self.source.size:
            raise TruncatedError(
                f"File truncated: {what} ends at byte {stop}, the file at {self.source.size}",
                rule="GG-03",
                offset=self.at,
            )
        if stop > self.most:
            raise LimitError(f"a header of more than {self.most} bytes", rule="GG-02", offset=self.at)
        size = min(self.most, max(stop, len(self.raw) * (4 if len(self.raw) < _LARGE else 2)))
        self.raw += self.source.read_at(len(self.raw), size - len(self.raw))

    def u32(self, what: str) -> int:
        start = self.need(4, what)
        return int(_U32(self.raw, start)[0])

    def u64(self, what: str) -> int:
        start = self.need(8, what)
        return int(_U64(self.raw, start)[0])

    def text(self, what: str, most: int) -> str:
        """Return a string that is a name: UTF-8, and no longer than the limit."""
        start, length = self.at, self.u64(what)
        if length > most:
            raise LimitError(f"{what} of {length} bytes, more than the limit of {most}", rule="GG-03", offset=start)
        at = self.need(length, what)
        try:
            return self.raw[at : at + length].decode("utf-8")
        except UnicodeDecodeError:
            raise CorruptError(f"{what} is not UTF-8", rule="GG-03", offset=start) from None

    def skip_strings(self, count: int, what: str) -> None:
        """Move over strings; a vocabulary has some hundred thousand."""
        self._check_count(count, 8, what)
        done = 0
        while done < count:
            raw, at, most, chain = self.raw, self.at, len(self.raw) - 8, None
            while done < count and at <= most:
                passed = 0
                if count - done > _FEW:
                    chain = chain if chain is not None and at <= chain.stop else _Chain(raw, at)
                    passed, at = chain.follow(at, count - done)
                    done += passed
                stop = done if passed >= _FEW else min(done + _FEW, count)
                while done < stop and at <= most:
                    at += 8 + _U64(raw, at)[0]
                    done += 1
            self.need(at - self.at, what)
            if done < count:
                self.need(8, what)
                self.at -= 8

    def skip_value(self, kind: int, what: str, depth: int = 0) -> None:
        """Move over a value of this type."""
        if kind in SCALARS:
            at = self.need(SCALARS[kind][1].size, what)
            if kind == BOOL and self.raw[at] > 1:
                raise CorruptError(f"{what} is a bool of {self.raw[at]}", rule="GG-04", offset=at)
        elif kind == STRING:
            self.need(self.u64(what), what)
        elif kind == ARRAY:
            if depth == _MOST_DEPTH:
                raise CorruptError(f"{what} nests more than {_MOST_DEPTH} arrays", rule="GG-04", offset=self.at)
            inner, count = self.u32(what), self.u64(what)
            self._skip_array(inner, count, what, depth)
        else:
            raise CorruptError(f"{what} has the unknown type {kind}", rule="GG-04", offset=self.at)

    def _skip_array(self, inner: int, count: int, what: str, depth: int) -> None:
        if inner in SCALARS:
            size = SCALARS[inner][1].size
            self._check_count(count, size, what)
            at = self.need(count * size, what)
            if inner == BOOL and count and max(self.raw[at : at + count]) > 1:
                raise CorruptError(f"{what} has a bool that is neither 0 nor 1", rule="GG-04", offset=at)
        elif inner == STRING:
            self.skip_strings(count, what)
        elif inner == ARRAY:
            self._check_count(count, 12, what)
            for _ in range(count):
                self.skip_value(ARRAY, what, depth + 1)
        else:
            raise CorruptError(f"{what} is an array of the unknown type {inner}", rule="GG-04", offset=self.at)

    def _check_count(self, count: int, size: int, what: str) -> None:
        if count * size > self.source.size - self.at:
            raise TruncatedError(
                f"File truncated: {what} announces {count} elements, {self.source.size - self.at} bytes follow",
                rule="GG-04",
                offset=self.at,
            )


@dataclass(slots=True)
class TensorInfos:
    """The tensors as the header has them, in its order; shapes are row-major, offsets relative to the data."""

    names: list[str] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


class GgufMetadata(Mapping[str, str]):
    """The values of a header as text, decoded when they are asked for: a vocabulary is large and seldom needed.

    Strings are themselves, numbers as Python prints them, bools ``true`` or ``false``, arrays JSON. Bytes of a string
    that are not UTF-8 are shown as ``\\xff``.
    """

    def __init__(self, raw: bytes, places: dict[str, tuple[int, int]]) -> None:
        self._raw = raw
        self._places = places

    def __getitem__(self, key: str) -> str:
        kind, at = self._places[key]
        value, _ = _value(self._raw, kind, at)
        return value if isinstance(value, str) else _text(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __repr__(self) -> str:
        return f"<GgufMetadata of {counted(len(self), 'key')}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def value(self, key: str) -> Any:
        """Return a value with its own type; None if there is none."""
        place = self._places.get(key)
        return None if place is None else _value(self._raw, *place)[0]

    def types(self) -> dict[str, str]:
        """Return the types of all values that are not strings, such as ``u32`` or ``[f32]``."""
        return {key: type_name(self._raw, kind, at) for key, (kind, at) in self._places.items() if kind != STRING}


def type_name(raw: bytes, kind: int, at: int) -> str:
    """Return our name of a value's type."""
    if kind != ARRAY:
        return TYPE_NAMES[kind]
    inner, count = _U32(raw, at)[0], _U64(raw, at + 4)[0]
    return f"[{type_name(raw, inner, at + 12) if inner != ARRAY or count else 'u8'}]"


def _value(raw: bytes, kind: int, at: int) -> tuple[Any, int]:
    """Return a value that was checked, and where it ends."""
    if kind == STRING:
        length = _U64(raw, at)[0]
        return raw[at + 8 : at + 8 + length].decode("utf-8", "backslashreplace"), at + 8 + length
    if kind != ARRAY:
        _, one, dtype = SCALARS[kind]
        if kind == 6:
            return np.frombuffer(raw, dtype, 1, at)[0], at + 4
        value = one.unpack_from(raw, at)[0]
        return bool(value) if kind == BOOL else value, at + one.size
    inner, count = _U32(raw, at)[0], _U64(raw, at + 4)[0]
    at += 12
    if inner in SCALARS:
        array = np.frombuffer(raw, SCALARS[inner][2], count, at)
        values = array.astype(bool).tolist() if inner == BOOL else list(array) if inner == 6 else array.tolist()
        return values, at + array.nbytes
    values = []
    for _ in range(count):
        value, at = _value(raw, inner, at)
        values.append(value)
    return values, at


def _text(value: Any) -> str:
    """Return a value as text; a float32 in the shortest form that is still that number."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return (
            "[" + ",".join(json.dumps(v, ensure_ascii=False) if isinstance(v, str) else _text(v) for v in value) + "]"
        )
    return str(value) if np.isfinite(value) else {"nan": "NaN", "inf": "Infinity"}.get(str(value), "-Infinity")


def read_header(source: Source, limits: Limits) -> tuple[int, GgufMetadata, TensorInfos, int, int]:
    """Return the version, the metadata, the tensors, the alignment and where the header ends."""
    header = Header(source, limits)
    if source.size < _START.size:
        raise TruncatedError(f"expected a header of at least {_START.size} bytes, got {source.size}", rule="GG-01")
    magic, version, tensors, pairs = _START.unpack_from(header.raw, 0)
    if magic != MAGIC:
        raise UnknownFormatError("the file does not begin with GGUF", rule="GG-01", offset=0)
    _check_version(version)
    header.at = _START.size
    _check_counts(tensors, pairs, source, limits)
    places: dict[str, tuple[int, int]] = {}
    for _ in range(pairs):
        start = header.at
        key = header.text("a metadata key", limits.name_bytes)
        if key in places:
            raise CorruptError(f"the metadata key {printable(key)!r} comes twice", rule="GG-05", offset=start)
        kind = header.u32("a metadata type")
        places[key] = (kind, header.at)
        header.skip_value(kind, f"the metadata {printable(key, 80)!r}")
    metadata = GgufMetadata(header.raw, places)
    alignment = _alignment(metadata, places)
    infos = _read_tensors(header, tensors, limits)
    return version, GgufMetadata(header.raw[: header.at], places), infos, alignment, header.at


def _check_version(version: int) -> None:
    if version in (2, 3):
        return
    if version & 0xFFFF == 0:
        raise UnsupportedError(
            "the file is big-endian", rule="GG-01", offset=4, hint="convert it with gguf-convert-endian first"
        )
    hint = "convert it with a current llama.cpp first" if version == 1 else None
    raise UnsupportedError(f"version {version} of GGUF; 2 and 3 are read", rule="GG-01", offset=4, hint=hint)


def _check_counts(tensors: int, pairs: int, source: Source, limits: Limits) -> None:
    for count, most, what, offset in (
        (tensors, limits.tensors or 0, "tensors", 8),
        (pairs, limits.metadata_entries, "metadata entries", 16),
    ):
        if count > most:
            raise LimitError(f"{count} {what}, more than the limit of {most}", rule="GG-02", offset=offset)
    least = _START.size + tensors * _LEAST_TENSOR + pairs * _LEAST_PAIR
    if least > source.size:
        raise TruncatedError(
            f"File truncated: {tensors} tensors and {pairs} metadata entries need at least {least} bytes, "
            f"got {source.size}",
            rule="GG-02",
            offset=8,
        )


def _alignment(metadata: GgufMetadata, places: Mapping[str, tuple[int, int]]) -> int:
    if ALIGNMENT_KEY not in places:
        return DEFAULT_ALIGNMENT
    kind, at = places[ALIGNMENT_KEY]
    if kind != 4:
        raise CorruptError(f"{ALIGNMENT_KEY} is not a u32", rule="GG-06", offset=at)
    alignment = int(metadata.value(ALIGNMENT_KEY))
    if alignment < 1 or alignment & (alignment - 1):
        raise CorruptError(f"{ALIGNMENT_KEY} is {alignment}, not a power of two", rule="GG-06", offset=at)
    return alignment


def _read_tensors(header: Header, count: int, limits: Limits) -> TensorInfos:
    infos = TensorInfos()
    known: dict[tuple[tuple[int, ...], int], int] = {}
    taken: set[str] = set()
    for _ in range(count):
        start = header.at
        name = header.text("the name of a tensor", limits.name_bytes)
        with located(tensor=name):
            if name in taken:
                raise CorruptError("two tensors have this name", rule="GG-05", offset=start)
            taken.add(name)
            dims = header.u32("the number of axes")
            if dims > MOST_DIMS:
                raise CorruptError(f"{dims} axes; GGUF has at most {MOST_DIMS}", rule="GG-07", offset=header.at - 4)
            at = header.need(8 * dims + 12, "a tensor's shape, type and offset")
            *extents, kind, offset = struct.unpack_from(f"<{dims}QIQ", header.raw, at)
            shape = tuple(extents[::-1])
            size = known.get((shape, kind))
            if size is None:
                size = known[shape, kind] = _byte_length(shape, kind, limits, at)
        infos.names.append(name)
        infos.shapes.append(shape)
        infos.types.append(kind)
        infos.offsets.append(offset)
        infos.sizes.append(size)
    return infos


def _byte_length(shape: tuple[int, ...], kind: int, limits: Limits, at: int) -> int:
    block = TYPES.get(kind)
    if block is None:
        raise UnsupportedError(f"the type {kind} is not known here", rule="GG-08", offset=at)
    if math.prod(extent or 1 for extent in shape) >= 1 << 61:
        raise CorruptError(f"shape {list(shape)}: the byte length calculation overflows", rule="GG-07", offset=at)
    last = shape[-1] if shape else 1
    if last % block.elements:
        raise CorruptError(
            f"rows of {last} elements are not whole blocks of {block.name}, which have {block.elements}",
            rule="GG-08",
            offset=at,
        )
    size = math.prod(shape) // block.elements * block.nbytes
    if size > limits.tensor_bytes:
        raise LimitError(f"{size} bytes, more than the limit of {limits.tensor_bytes}", rule="GG-07")
    return size
