"""Mutants by structure: one field of the metadata is edited, and the lengths around it are put right, or not.

The metadata of a seed is parsed once into nodes that know their place and their role. In CBOR a container announces how
many items it has, not how many bytes, so a node is replaced by putting other bytes in its place.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

import cbor2

from .mutate import EDGES
from .seeds import BOOL_MAPS, PLAIN, pack, quantized_dtypes

UINT, NINT, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)

Splice = tuple[int, int, bytes]
"""Bytes to stand in place of those from start to end."""


def head(major: int, value: int, width: int | None = None) -> bytes:
    """The head of an item; ``width`` bytes for the value (0, 1, 2, 4, 8), as few as possible if None."""
    if width is None:
        width = next(w for w, most in ((0, 23), (1, 255), (2, 65535), (4, 2**32 - 1), (8, 2**64 - 1)) if value <= most)
    if width == 0:
        return bytes((major << 5 | value,))
    return bytes((major << 5 | {1: 24, 2: 25, 4: 26, 8: 27}[width],)) + value.to_bytes(width, "big")


@dataclass(frozen=True, slots=True)
class Node:
    """One item of the metadata."""

    major: int
    role: str
    start: int
    head_end: int
    end: int
    value: int
    children: tuple[Node, ...]

    def pairs(self) -> list[tuple[Node, Node]]:
        return list(zip(self.children[::2], self.children[1::2], strict=True))


_FIELD_ROLES = {"dtype": "dtype", "shape": "shape", "data_offsets": "offsets", "param_id": "param_id"}
_PART_ROLES = {"dtype": "scheme", "shape": "extent", "data_offsets": "offset"}


def _role(path: tuple[str, ...], *, is_key: bool) -> str:
    if not path:
        return "top"
    root, depth = path[0], len(path)
    if is_key:
        return "name" if root == "tensors" and depth == 2 else "key"
    if depth == 1:
        return root
    if root == "tensors":
        return "descriptor" if depth == 2 else (_FIELD_ROLES if depth == 3 else _PART_ROLES)[path[2]]
    if root == "metadata":
        return "metadata value"
    return "scalar" if depth == 2 else "scalar value"


def parse(data: bytes, at: int = 0, path: tuple[str, ...] = (), *, is_key: bool = False) -> Node:
    """The item at a place of well-formed metadata, with all that is in it."""
    first = data[at]
    major, info = first >> 5, first & 31
    width = 0 if info < 24 else 1 << (info - 24)
    head_end = at + 1 + width
    value = info if width == 0 else int.from_bytes(data[at + 1 : head_end], "big")
    children: list[Node] = []
    end = head_end
    if major in (BYTES, TEXT):
        end += value
    elif major == ARRAY:
        for number in range(value):
            children.append(parse(data, end, (*path, str(number))))
            end = children[-1].end
    elif major == MAP:
        for _ in range(value):
            key = parse(data, end)
            word = data[key.head_end : key.end].decode()
            children += (parse(data, end, (*path, word), is_key=True), parse(data, key.end, (*path, word)))
            end = children[-1].end
    return Node(major, _role(path, is_key=is_key), at, head_end, end, value, tuple(children))


@dataclass
class Seed:
    """A well-formed file, taken apart."""

    name: str
    data: bytes
    root: Node = field(init=False, repr=False)
    metadata: bytes = field(init=False, repr=False)
    unaligned: bool = field(init=False)
    body: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        (length,) = struct.unpack_from("<I", self.data, 6)
        self.metadata = self.data[10 : 10 + length]
        self.root = parse(self.metadata)
        self.body = self.data[-(-(10 + length) // 256) * 256 :]
        ends = [tree["data_offsets"][1] for tree in cbor2.loads(self.metadata)["tensors"].values()]
        self.unaligned = len(self.data) == 10 + length + max(ends, default=0)
        if self.unaligned:
            self.body = self.data[10 + length :]

    @cached_property
    def by_role(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = defaultdict(list)
        for node in self.nodes():
            found[node.role].append(node)
        return dict(found)

    @cached_property
    def roles(self) -> list[str]:
        return sorted(self.by_role)

    def nodes(self) -> Iterator[Node]:
        todo = [self.root]
        while todo:
            node = todo.pop()
            yield node
            todo.extend(node.children)

    @property
    def metadata_end(self) -> int:
        return 10 + len(self.metadata)


# ------------------------------------------------------------------------------- items to put in place of others

_TEXTS: list[Any] = [
    "",
    "a",
    "tensors",
    "dtype",
    "shape",
    "data_offsets",
    "param_id",
    "metadata",
    "scalars",
    "F32",
    "Bool",
]
_TEXTS += [
    "QFloat",
    "Native",
    "PackedU32",
    "Float",
    "Int",
    "UInt",
    "x" * 24,
    "x" * 256,
    "\0",
    "\n",
    "\ud7ff",
    "\u202e",
    "abcdeshape",
]
_JUNK: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1.0,
    0.5,
    float("nan"),
    b"",
    b"F32",
    [],
    {},
    [[]],
    {"a": {}},
    [0] * 70,
    cbor2.undefined,
]
_BAD_UTF8 = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3", b"\x80", b"\xf0\x80\x80\x80"]
_TAGS = (0, 1, 2, 3, 4, 5, 24, 25, 28, 29, 30, 35, 36, 37, 55799, 2**64 - 1)


def any_item(rng: Random) -> bytes:
    """An item that is legal CBOR, and out of place almost everywhere."""
    kind = rng.randrange(8)
    if kind < 3:
        return cbor2.dumps(rng.choice(_JUNK))
    if kind == 3:
        return cbor2.dumps(rng.choice(_TEXTS))
    if kind == 4:
        return any_uint(rng)
    if kind == 5:
        return head(NINT, rng.choice(EDGES) & (2**64 - 1))
    if kind == 6:
        return rng.choice((b"\xf9", b"\xfa", b"\xfb"))[:1] + rng.randbytes(8)
    return head(TAG, rng.choice(_TAGS)) + any_uint(rng)


def any_uint(rng: Random, value: int | None = None) -> bytes:
    """An unsigned integer, by choice of an edge, in any of its encodings."""
    value = rng.choice(EDGES) & (2**64 - 1) if value is None else value & (2**64 - 1)
    widths = [w for w, most in ((0, 23), (1, 255), (2, 65535), (4, 2**32 - 1), (8, 2**64 - 1)) if value <= most]
    return head(UINT, value, widths[0] if rng.random() < 0.6 else rng.choice(widths))


def _near(value: int, rng: Random) -> bytes:
    return any_uint(rng, max(0, value + rng.choice((-256, -8, -4, -1, 0, 1, 4, 8, 256))))


def _a_shape(rng: Random) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        return head(ARRAY, 0)
    if kind == 1:
        rank = rng.choice((1, 2, 3, 22, 23, 24, 63, 64, 65, 255, 1000))
        return head(ARRAY, rank) + b"\x01" * rank
    if kind == 2:
        wrapping = rng.choice(
            ([2**32, 2**32], [2**63, 2], [2**64 - 1, 2], [0, 2**64 - 1], [2**62, 0], [2**31, 2**31, 4])
        )
        return cbor2.dumps(wrapping)
    if kind == 3:
        return cbor2.dumps([rng.choice((0, 1, 2, 3, 4, 6, 8)) for _ in range(rng.randrange(4))])
    if kind == 4:
        return head(ARRAY, 2) + any_uint(rng) + any_uint(rng)
    return head(ARRAY, rng.randrange(4)) + any_item(rng)


def _a_dtype(rng: Random) -> bytes:
    kind = rng.randrange(8)
    if kind < 3:
        return cbor2.dumps(rng.choice(PLAIN))
    if kind == 3:
        return cbor2.dumps(rng.choice(("Bool", "F8", "f32", "QFloat", "", "F32\0", "I128")))
    if kind == 4:
        return cbor2.dumps(rng.choice(BOOL_MAPS))
    if kind == 5:
        return cbor2.dumps(
            rng.choice(({"Bool": "I8"}, {"Bool": None}, {"F32": None}, {"Bool": "Native", "F32": 0}, {"QFloat": {}}))
        )
    return cbor2.dumps(rng.choice(quantized_dtypes()))


def _a_scheme_part(rng: Random) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        return cbor2.dumps(rng.choice(("Q8F", "Q4S", "Q2S", "Q2F", "E4M3", "E2M1", "E5M2", "Q8S", "Q16S")))
    if kind == 1:
        return cbor2.dumps(
            rng.choice(("F32", "F16", "BF16", "UE8M0", "UE4M3", "F64", "Tensor", "Symmetric", "Lookup", "U32"))
        )
    if kind == 2:
        return cbor2.dumps(
            {rng.choice(("PackedU32", "PackedNative", "Native")): rng.choice((0, 1, 2, 9, 2**64 - 1, None, -1, "0"))}
        )
    if kind == 3:
        extents = [rng.choice((0, 1, 1, 1, 2, 4, 255, 256)) for _ in range(rng.choice((4, 5, 5, 5, 6)))]
        size = {"storage": extents, "len": rng.choice((0, 1, 2, 5, 6))}
        return cbor2.dumps(
            rng.choice((size, {"Block": size}, {"size": size, "dtype": "F16"}, {"block": size, "global": "F32"}))
        )
    if kind == 4:
        return cbor2.dumps(rng.choice((None, None, "Native", 0, 1, 2, 255, {"Tensor": None})))
    return any_item(rng)


def _a_scalar(rng: Random) -> bytes:
    kind = rng.choice(("Int", "UInt", "Float", "Bool", "Text"))
    half = b"\xf9" + rng.randbytes(2)
    single = b"\xfa" + rng.randbytes(4)
    payload = b"\xfa\x7f" + bytes((rng.getrandbits(8) | 128,)) + rng.randbytes(2)
    value = rng.choice((half, single, payload, b"\xf9\x7e\x01", b"\xfb" + rng.randbytes(8), b"\xf4", b"\xf5", b"\xf6"))
    if kind in ("Int", "UInt") and rng.random() < 0.7:
        value = head(rng.choice((UINT, NINT)), rng.choice(EDGES) & (2**64 - 1))
    return head(MAP, 1) + cbor2.dumps(kind) + value


def _a_text(raw: bytes, rng: Random) -> bytes:
    kind = rng.randrange(9)
    if kind == 0:
        return head(TEXT, len(raw), rng.choice((1, 2, 4, 8)) if len(raw) < 256 else 8) + raw
    if kind == 1:
        cut = rng.randrange(len(raw) + 1)
        return b"\x7f" + head(TEXT, cut) + raw[:cut] + head(TEXT, len(raw) - cut) + raw[cut:] + b"\xff"
    if kind == 2:
        return head(BYTES, len(raw)) + raw
    if kind == 3:
        bad = raw + rng.choice(_BAD_UTF8)
        return head(TEXT, len(bad)) + bad
    if kind == 4:
        return head(TEXT, max(0, len(raw) + rng.choice((-1, 1, 2, 200)))) + raw
    if kind == 5:
        return head(TEXT, rng.choice(EDGES) & (2**64 - 1)) + raw
    if kind == 6:
        return cbor2.dumps(rng.choice(_TEXTS))
    longer = raw + b"x" * rng.choice((1, 20, 24, 230, 300))
    return head(TEXT, len(longer)) + longer


# ------------------------------------------------------------------------------- edits


def _replace(seed: Seed, node: Node, rng: Random) -> list[Splice]:
    return [(node.start, node.end, _REPLACEMENTS.get(node.role, any_item)(rng))]


_REPLACEMENTS: dict[str, Callable[[Random], bytes]] = {
    "dtype": _a_dtype,
    "shape": _a_shape,
    "extent": any_uint,
    "offset": any_uint,
    "param_id": any_uint,
    "scalar": _a_scalar,
    "scheme": _a_scheme_part,
}


def _by_kind(seed: Seed, node: Node, rng: Random) -> list[Splice]:
    """Another spelling or another neighbour of what is there."""
    if node.major == UINT:
        kind = rng.randrange(4)
        if kind < 2:
            return [(node.start, node.end, _near(node.value, rng))]
        same = any_uint(rng, node.value)
        if kind == 2:
            return [(node.start, node.end, same)]
        bignum = b"\xc2\x49\x00" + struct.pack(">Q", node.value)
        double = b"\xfb" + struct.pack(">d", float(node.value))
        negative = head(NINT, node.value)
        return [(node.start, node.end, rng.choice((bignum, double, negative, b"\xd8\x18" + same)))]
    if node.major in (TEXT, BYTES):
        return [(node.start, node.end, _a_text(seed.metadata[node.head_end : node.end], rng))]
    if node.major in (ARRAY, MAP):
        return _recount(seed, node, rng)
    return [(node.start, node.end, any_item(rng))]


def _recount(seed: Seed, node: Node, rng: Random) -> list[Splice]:
    kind = rng.randrange(5)
    if kind == 0:  # the same without a count
        return [(node.start, node.head_end, bytes((node.major << 5 | 31,))), (node.end, node.end, b"\xff")]
    if kind == 1:
        return [(node.start, node.head_end, head(node.major, max(0, node.value + rng.choice((-1, 1, 2)))))]
    if kind == 2:
        return [(node.start, node.head_end, head(node.major, rng.choice(EDGES) & (2**64 - 1)))]
    if kind == 3:
        widths = [w for w in (1, 2, 4, 8) if node.value < 1 << 8 * w]
        return [(node.start, node.head_end, head(node.major, node.value, rng.choice(widths)))]
    return [(node.start, node.head_end, bytes((rng.choice((ARRAY, MAP)) << 5 | rng.randrange(32),)))]


def _tagged(seed: Seed, node: Node, rng: Random) -> list[Splice]:
    return [(node.start, node.start, head(TAG, rng.choice(_TAGS)))]


def _copied(seed: Seed, node: Node, rng: Random) -> list[Splice]:
    """What another node of the role holds."""
    other = rng.choice(seed.by_role[node.role])
    return [(node.start, node.end, seed.metadata[other.start : other.end])]


def _pairs(seed: Seed, node: Node, rng: Random) -> list[Splice]:
    """A pair of a map deleted, doubled, exchanged with another, or added; the count follows, or not."""
    maps = [
        m
        for role in ("top", "tensors", "descriptor", "metadata", "scalars", "scalar", "scheme", "dtype")
        for m in seed.by_role.get(role, ())
        if m.major == MAP
    ]
    node = node if node.major == MAP else rng.choice(maps)
    pairs = node.pairs()
    kind = rng.randrange(5)
    splices: list[Splice] = []
    count = node.value
    if kind == 0 and len(pairs) > 1:
        (k1, v1), (k2, v2) = sorted(rng.sample(pairs, 2), key=lambda pair: pair[0].start)
        first, second = seed.metadata[k1.start : v1.end], seed.metadata[k2.start : v2.end]
        return [(k1.start, v1.end, second), (k2.start, v2.end, first)]
    if kind in (1, 2) and pairs:
        key, value = rng.choice(pairs)
        if kind == 1:
            count -= 1
            splices.append((key.start, value.end, b""))
        else:
            count += 1
            splices.append((value.end, value.end, seed.metadata[key.start : value.end]))
    else:
        count += 1
        place = rng.choice(pairs)[1].end if pairs else node.head_end
        new_key = cbor2.dumps(rng.choice(_TEXTS)) if rng.random() < 0.9 else any_item(rng)
        splices.append((place, place, new_key + (any_item(rng) if rng.random() < 0.7 else b"\xa0")))
    if rng.random() < 0.9:
        splices.append((node.start, node.head_end, head(MAP, count)))
    return splices


_EDITS: tuple[Callable[[Seed, Node, Random], list[Splice]], ...] = (
    *(_replace, _replace, _replace, _by_kind, _by_kind, _by_kind, _by_kind),
    *(_copied, _tagged, _pairs, _pairs),
)


def mutate(seed: Seed, rng: Random) -> bytes:
    """A mutant of a seed: one field edited, now and then two."""
    splices: list[Splice] = []
    for _ in range(1 if rng.random() < 0.75 else 2):
        node = rng.choice(seed.by_role[rng.choice(seed.roles)])
        new = rng.choice(_EDITS)(seed, node, rng)
        if not any((start < b and a < end) or start == a for start, end, _ in splices for a, b, _ in new):
            splices += new
    metadata = seed.metadata
    for start, end, piece in sorted(splices, key=lambda splice: splice[0], reverse=True):
        metadata = metadata[:start] + piece + metadata[end:]
    return finish(metadata, seed, rng)


def finish(metadata: bytes, seed: Seed, rng: Random) -> bytes:
    """The file around edited metadata: most of the time as it must be, else wrong in one of the lengths."""
    kind = rng.random()
    unaligned = seed.unaligned
    if kind < 0.04:
        unaligned = not unaligned
    data = pack(metadata, seed.body, unaligned=unaligned)
    if kind < 0.80:
        return data
    if kind < 0.84:
        return data[:6] + seed.data[6:10] + data[10:]
    if kind < 0.87:
        return data[:6] + struct.pack("<I", max(0, len(metadata) + rng.choice((-256, -2, -1, 1, 2, 256)))) + data[10:]
    if kind < 0.90:
        return data[: 10 + len(metadata)] + seed.data[10 + len(seed.metadata) :]
    if kind < 0.93:
        return data + rng.choice((b"\0", b"\1", bytes(256), b"NRUB", bytes(255)))
    if kind < 0.96:
        return data[: len(data) - rng.choice((1, 2, 4, 8, 256))]
    if kind < 0.98:
        at = 10 + len(metadata)
        return data[:at] + b"\1" + data[at + 1 :]
    cut = 10 + len(metadata) + len(seed.body)
    return data[:cut]
