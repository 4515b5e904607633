"""CBOR as Burn uses it: a strict pull reader and the matching writer.

Own code, for two reasons. Safety: a general decoder builds whatever the bytes describe (tags, bignums, a hundred
million nested lists) and the checks come after; here the caller asks for the one thing it expects next, so nothing
unexpected is ever built and nesting is bounded. Speed: see `burnstore.formats.burnpack.fast_header`. The rules:

* definite lengths only, no tags, no simple values but false, true and null;
* integers are unsigned or negative of at most 64 bits; floats only where a float is asked for;
* text is UTF-8 (no lone surrogates: Python's strict decoder refuses them);
* lengths are checked against the bytes that are left before anything is allocated.

The encoder writes what ciborium writes for Burn: shortest integers, shortest float that keeps all bits.
"""

from __future__ import annotations

import struct
from typing import Union

from ...errors import CorruptError, FormatError, TruncatedError

_MAJOR_NAMES = ("unsigned integer", "negative integer", "byte string", "text", "array", "map", "tag", "simple value")
Tree = Union[None, bool, int, float, str, list["Tree"], dict[str, "Tree"]]  # noqa: UP007  # a recursive alias must be quoted inside
"""A value of CBOR as plain Python."""

_FALSE, _TRUE, _NULL, _F16, _F32, _F64 = 0xF4, 0xF5, 0xF6, 0xF9, 0xFA, 0xFB
_FRACTION = {2: 10, 4: 23}  # bits of the fraction of a half and of a single
_UINT, _NEGATIVE, _TEXT, _ARRAY, _MAP = 0, 1, 3, 4, 5


class CborReader:
    """Take one expected item after the other from ``data``; raise for anything else, with its offset."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end

    def at_end(self) -> bool:
        """Return whether every byte was taken."""
        return self.position == self.end

    def uint(self) -> int:
        """Take an unsigned integer."""
        return self._head(_UINT)

    def integer(self) -> int:
        """Take an integer of either sign."""
        if self._peek() >> 5 == _NEGATIVE:
            return -1 - self._head(_NEGATIVE)
        return self._head(_UINT)

    def text(self, longest: int | None = None, *, too_long: type[FormatError] = CorruptError) -> str:
        """Take a text string of at most ``longest`` bytes; raise ``too_long`` for a longer one."""
        start = self.position
        length = self._head(_TEXT)
        if longest is not None and length > longest:
            raise too_long(f"text of {length} bytes where at most {longest} are allowed", offset=start)
        self._need(length)
        raw = self.data[self.position : self.position + length]
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptError(f"text is not UTF-8: {error.reason}", offset=self.position + error.start) from None
        self.position += length
        return text

    def array(self) -> int:
        """Take the head of an array; return the number of items that follow."""
        return self._container(_ARRAY, 1)

    def map(self) -> int:
        """Take the head of a map; return the number of pairs that follow."""
        return self._container(_MAP, 2)

    def boolean(self) -> bool:
        """Take a bool."""
        byte = self._peek()
        if byte not in (_FALSE, _TRUE):
            raise self._unexpected("bool")
        self.position += 1
        return byte == _TRUE

    def null(self) -> bool:
        """Take a null if one is next; return whether there was one."""
        if self._peek() != _NULL:
            return False
        self.position += 1
        return True

    def float(self) -> float:
        """Take a float of any of the three widths."""
        byte = self._peek()
        if byte not in (_F16, _F32, _F64):
            raise self._unexpected("float")
        code, width = {_F16: (">e", 2), _F32: (">f", 4), _F64: (">d", 8)}[byte]
        self.position += 1
        self._need(width)
        raw = self.data[self.position : self.position + width]
        self.position += width
        (value,) = struct.unpack(code, raw)
        return _nan_of(raw) if value != value and width < 8 else float(value)

    def is_map(self) -> bool:
        """Return whether a map is next."""
        return self._peek() >> 5 == _MAP

    def tree(self, *, depth: int, nodes: int) -> Tree:
        """Take a small value of any kind: at most ``depth`` levels, ``nodes`` items in all, text of that many bytes."""
        return self._tree(depth, nodes, [nodes])

    def _tree(self, depth: int, longest: int, left: list[int]) -> Tree:
        major = self._peek() >> 5
        if major in (_ARRAY, _MAP):
            start = self.position
            count = self.array() if major == _ARRAY else self.map()
            left[0] -= count
            if depth == 0 or left[0] < 0:
                raise CorruptError("nested deeper or larger than anything Burn writes here", offset=start)
            if major == _ARRAY:
                return [self._tree(depth - 1, longest, left) for _ in range(count)]
            pairs: dict[str, Tree] = {}
            for _ in range(count):
                at = self.position
                key = self.text(longest)
                if key in pairs:
                    raise CorruptError(f"key {key!r} twice in one map", offset=at)
                pairs[key] = self._tree(depth - 1, longest, left)
            return pairs
        if major == _TEXT:
            return self.text(longest)
        if major in (_UINT, _NEGATIVE):
            return self.integer()
        if self._peek() not in (_NULL, _FALSE, _TRUE):
            raise self._unexpected("map, array, text, integer, bool or null")
        return None if self.null() else self.boolean()

    def _container(self, major: int, least_bytes_each: int) -> int:
        start = self.position
        count = self._head(major)
        if count * least_bytes_each > self.end - self.position:
            raise TruncatedError(
                f"{_MAJOR_NAMES[major]} of {count} items in {self.end - self.position} bytes", offset=start
            )
        return count

    def _peek(self) -> int:
        if self.position >= self.end:
            raise TruncatedError("the metadata ends inside an item", offset=self.position)
        return self.data[self.position]

    def _head(self, major: int) -> int:
        byte = self._peek()
        if byte >> 5 != major:
            raise self._unexpected(_MAJOR_NAMES[major])
        info = byte & 31
        if info < 24:
            self.position += 1
            return info
        if info > 27:
            what = "indefinite length" if info == 31 else "reserved length code"
            raise CorruptError(f"{_MAJOR_NAMES[major]} with {what}", offset=self.position)
        width = 1 << (info - 24)
        self.position += 1
        self._need(width)
        value = int.from_bytes(self.data[self.position : self.position + width], "big")
        self.position += width
        return value

    def _need(self, length: int) -> None:
        if length > self.end - self.position:
            raise TruncatedError(
                f"{length} bytes announced, {self.end - self.position} left in the metadata", offset=self.position
            )

    def _unexpected(self, wanted: str) -> CorruptError:
        byte = self._peek()
        found = {_FALSE: "bool", _TRUE: "bool", _NULL: "null", _F16: "float", _F32: "float", _F64: "float"}.get(
            byte, _MAJOR_NAMES[byte >> 5]
        )
        return CorruptError(f"expected {wanted}, found {found}", offset=self.position)


def _nan_of(raw: bytes) -> float:
    """Return a NaN of a half or single as a quiet double; what ``struct`` makes of it depends on Python's version."""
    bits = int.from_bytes(raw, "big")
    sign, width = bits >> (8 * len(raw) - 1), _FRACTION[len(raw)]
    fraction = (bits & (1 << width) - 1) << (52 - width) | 1 << 51
    return float(struct.unpack(">d", (sign << 63 | 0x7FF << 52 | fraction).to_bytes(8, "big"))[0])


def encode_uint(value: int, major: int = _UINT) -> bytes:
    """Encode the shortest head with this value."""
    if value < 24:
        return bytes((major << 5 | value,))
    if value < 1 << 8:
        return bytes((major << 5 | 24, value))
    if value < 1 << 16:
        return struct.pack(">BH", major << 5 | 25, value)
    if value < 1 << 32:
        return struct.pack(">BI", major << 5 | 26, value)
    return struct.pack(">BQ", major << 5 | 27, value)


def encode_text(text: str) -> bytes:
    """Encode a text string."""
    raw = text.encode("utf-8")
    return encode_uint(len(raw), _TEXT) + raw


def encode_array_head(count: int) -> bytes:
    """Encode the head of an array of ``count`` items."""
    return encode_uint(count, _ARRAY)


def encode_map_head(count: int) -> bytes:
    """Encode the head of a map of ``count`` pairs."""
    return encode_uint(count, _MAP)


def encode_float(value: float) -> bytes:
    """Encode the shortest of half, single and double that keeps every bit, the payload of a NaN included."""
    exact = struct.pack(">d", value)
    if value != value:
        bits = int.from_bytes(exact, "big")
        for head, (size, width) in zip((_F16, _F32), _FRACTION.items(), strict=True):
            exponent = (1 << 8 * size - 1) - (1 << width)
            short = (bits >> 63 << 8 * size - 1 | exponent | bits >> 52 - width & (1 << width) - 1).to_bytes(
                size, "big"
            )
            if struct.pack(">d", _nan_of(short)) == exact:
                return bytes((head,)) + short
        return bytes((_F64,)) + exact
    for head, code in ((_F16, ">e"), (_F32, ">f")):
        try:
            short = struct.pack(code, value)
        except OverflowError:
            continue
        if struct.pack(">d", struct.unpack(code, short)[0]) == exact:
            return bytes((head,)) + short
    return bytes((_F64,)) + exact


def encode(tree: Tree) -> bytes:
    """Encode a small tree of plain values, maps in the order given."""
    if tree is None:
        return bytes((_NULL,))
    if isinstance(tree, bool):
        return bytes((_TRUE if tree else _FALSE,))
    if isinstance(tree, int):
        return encode_uint(tree) if tree >= 0 else encode_uint(-1 - tree, _NEGATIVE)
    if isinstance(tree, float):
        return encode_float(tree)
    if isinstance(tree, str):
        return encode_text(tree)
    if isinstance(tree, list):
        return encode_array_head(len(tree)) + b"".join(map(encode, tree))
    return encode_map_head(len(tree)) + b"".join(encode_text(key) + encode(value) for key, value in tree.items())
