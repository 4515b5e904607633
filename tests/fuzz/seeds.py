"""What mutants start from: every `.bpk` that a real Burn wrote, and files made here of all that Burnpack can hold.

Files are built with cbor2 and the layout rules alone, so that a mistake of burnstore's writer cannot hide one of its
reader.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import cbor2

from .reference import SCALES, VALUE_BITS, WIDTHS, Scheme, _flat, _scheme, _words, quantized_length

FIXTURES = Path(__file__).parents[1] / "fixtures" / "burn"
STAMP = {"format": "burnpack", "producer": "burn", "version": "0.22.1"}
PLAIN = [name for name in WIDTHS if not name.startswith("Bool")]
BOOL_MAPS = [{"Bool": store} for store in ("Native", "U8", "U32")]


class Entry(NamedTuple):
    """A tensor to be: dtype as Burn spells it, data in full."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    data: bytes
    param_id: int | None = None


def build(
    tensors: Sequence[Entry],
    metadata: Mapping[str, str] | None = None,
    scalars: Mapping[str, Any] | None = None,
    *,
    unaligned: bool = False,
) -> bytes:
    """A file as Burn writes it, data in the order given."""
    descriptors, body = {}, b""
    for entry in tensors:
        if not unaligned:
            body = body.ljust(-(-len(body) // 256) * 256, b"\0")
        tree = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [len(body), len(body) + len(entry.data)],
        }
        if entry.param_id is not None:
            tree["param_id"] = entry.param_id
        descriptors[entry.name] = tree
        body += entry.data
    top: dict[str, Any] = {"tensors": dict(sorted(descriptors.items(), key=lambda item: item[0].encode()))}
    if metadata:
        top["metadata"] = dict(metadata)
    if scalars:
        top["scalars"] = dict(scalars)
    return pack(cbor2.dumps(top), body, unaligned=unaligned)


def pack(metadata: bytes, body: bytes = b"", *, unaligned: bool = False) -> bytes:
    """A file of this metadata and these data."""
    head = struct.pack("<4sHI", b"NRUB", 1, len(metadata)) + metadata
    if not unaligned:
        head = head.ljust(-(-len(head) // 256) * 256, b"\0")
    return head + body


# ------------------------------------------------------------------------------- quantized tensors


def block_size(*extents: int) -> dict[str, Any]:
    return {"storage": [*extents, *[1] * (5 - len(extents))], "len": len(extents)}


def style_t(value: str, store: Any, tensor: str | None = None, block: Any = None, mode: str = "Symmetric") -> Any:
    return {"QFloat": {"value": value, "store": store, "mode": mode, "tensor": tensor, "block": block}}


def style_p(value: str, store: Any, param: str = "F32", level: Any = "Tensor") -> Any:
    return {"QFloat": {"value": value, "param": param, "store": store, "level": level, "mode": "Symmetric"}}


def quantized(name: str, dtype: Any, shape: tuple[int, ...], rng: Random) -> Entry:
    """A tensor of legal codes and any scales."""
    scheme = _scheme(dtype["QFloat"], set())
    raw = bytearray(rng.randbytes(quantized_length(scheme, shape)))
    words, word_bytes, per_word = _words(scheme, shape)
    raw[: math.prod(words) * word_bytes] = bytes(math.prod(words) * word_bytes)
    dims = shape or (1,)
    axis = len(dims) - 1 - scheme.dim
    bits = VALUE_BITS[scheme.value]
    for at in itertools.product(*map(range, dims)):
        word_at = [*at[:axis], at[axis] // per_word, *at[axis + 1 :]]
        place = _flat(word_at, words, None if scheme.old_style else axis) * word_bytes
        word = int.from_bytes(raw[place : place + word_bytes], "little")
        word |= _any_code(scheme, bits, per_word == 1 and word_bytes == 1, rng) << (at[axis] % per_word * bits)
        raw[place : place + word_bytes] = word.to_bytes(word_bytes, "little")
    return Entry(name, dtype, shape, bytes(raw))


def _any_code(scheme: Scheme, bits: int, whole_byte: bool, rng: Random) -> int:
    if scheme.value.startswith("E"):
        return rng.getrandbits(bits)
    code = rng.randint(1 - (1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return code & (255 if whole_byte else (1 << bits) - 1)


def _quantized_dtypes() -> Iterator[Any]:
    stores: list[Any] = ["Native", {"PackedU32": 0}, {"PackedU32": 1}, {"PackedNative": 0}, {"PackedNative": 1}]
    scales = itertools.cycle(SCALES)
    for value, store in itertools.product(VALUE_BITS, stores):
        level = next(scales)
        yield style_t(value, store)
        yield style_t(value, store, tensor=level)
        yield style_t(value, store, block={"size": block_size(4), "dtype": level})
        yield style_t(value, store, tensor="F32", block={"size": block_size(2, 2), "dtype": level})
        yield style_p(value, store)
        yield style_p(value, store, param=level)
        yield style_p(value, store, param=level, level={"Block": block_size(1, 2)})
        yield style_p(value, store, param=level, level={"Block": block_size(2, 2)})
        yield style_p(value, store, param=level, level={"BlockTensor": {"block": block_size(2, 2), "global": "F32"}})
    yield style_p("Q8F", "U32")
    yield style_t("Q8S", "Native", mode="Lookup")


@cache
def quantized_dtypes() -> list[Any]:
    """Schemes of both styles: every value in every store, scales of every dtype, one and two levels."""
    return list(_quantized_dtypes())


# ------------------------------------------------------------------------------- the seeds


def plain(name: str, dtype: Any, shape: tuple[int, ...], rng: Random, param_id: int | None = None) -> Entry:
    label = dtype if isinstance(dtype, str) else f"Bool({dtype['Bool']})".replace("(Native)", "")
    count, width = math.prod(shape), WIDTHS[label]
    data = rng.randbytes(count * width)
    if label.startswith("Bool"):
        data = b"".join(rng.getrandbits(1).to_bytes(width, "little") for _ in range(count))
    return Entry(name, dtype, shape, data, param_id)


SCALARS: dict[str, Any] = {
    "flag": {"Bool": True},
    "half": {"Float": 2.5},
    "inf": {"Float": -math.inf},
    "lr": {"Float": 0.001},
    "nan": {"Float": math.nan},
    "offset": {"Int": -3},
    "rank": {"UInt": (1 << 64) - 1},
    "step": {"UInt": 42},
    "worst": {"Int": -(1 << 63)},
}
NAMES = [
    "",
    "a",
    "a.b",
    "größe.重み",
    "x" * 23,
    "x" * 24,
    "x" * 255,
    "x" * 256,
    "tensors",
    "\U0001f525",
    "nul\0",
    "new\nline",
]


def _made() -> Iterator[tuple[str, bytes]]:
    rng = Random(2026)
    weight = plain("w", "F32", (2,), rng, 42)
    yield "single", build([weight])
    yield "single-stamped", build([weight], STAMP)
    yield "single-0.19", build([weight], unaligned=True)
    yield "single-0.19-stamped", build([weight], {**STAMP, "version": "0.19.1"}, unaligned=True)
    yield "single-0.20-pre", build([weight], {**STAMP, "version": "0.20.0-pre.3"}, unaligned=True)
    yield "empty", build([])
    yield "empty-0.19", build([], unaligned=True)
    yield "scalars-only", build([], scalars=SCALARS)
    yield "scalars", build([weight], {"1": "w"}, SCALARS)
    yield "plain", build([plain(f"p{i}", dtype, (2, 3), rng, i) for i, dtype in enumerate(PLAIN)])
    yield "plain-0.19", build([plain(f"p{i}", dtype, (3,), rng) for i, dtype in enumerate(PLAIN)], unaligned=True)
    yield "bools", build([plain(f"b{i}", dtype, (3,), rng) for i, dtype in enumerate(BOOL_MAPS)])
    yield "bool-text", build([plain("b", "Bool", (5,), rng), plain("a", "Bool", (300,), rng)])
    yield "bool-text-0.19", build([plain("b", "Bool", (5,), rng), plain("a", "F32", (2,), rng)], unaligned=True)
    yield "names", build([plain(name, "U8", (1,), rng, 1) for name in NAMES], {"größe": "\U0001f525", "": ""})
    yield (
        "zero-size",
        build([plain(n, "F32", s, rng) for n, s in (("c", (0,)), ("b", (2, 0)), ("a", (1,)), ("d", (0, 3)))]),
    )
    yield (
        "zero-size-0.19",
        build([plain(n, "F32", s, rng) for n, s in (("c", (0,)), ("a", (3,)), ("d", (0,)))], unaligned=True),
    )
    yield "only-zero-size", build([plain("z", "F32", (0,), rng)])
    yield (
        "rank",
        build([plain("s", "I64", (), rng), plain("r", "I8", (1,) * 23, rng), plain("q", "I8", (1,) * 24, rng)]),
    )
    yield "rank-64", build([plain("s", "F16", (1,) * 64, rng, (1 << 64) - 1)])
    yield "whole-blocks", build([plain(name, "U8", (256,), rng) for name in "cab"], unaligned=True)
    yield "order", build([plain("zebra", "U8", (3,), rng), plain("alpha", "U8", (2,), rng)])
    yield "no-gap", build([weight], {"fill": "x" * (256 - 10 - 58 - 9 - 1 - 5 - 2)})
    shapes = [(4, 4), (3, 5), (2, 8), (5, 2)]
    for is_p in (False, True):
        dtypes = [dtype for dtype in quantized_dtypes() if _is_style_p(dtype) == is_p]
        for number in range(0, len(dtypes), 2):
            group = zip(dtypes[number : number + 2], (shapes[number % 4], shapes[(number + 1) % 4]), strict=False)
            entries = [
                quantized(f"q{i}", dtype, _dividing(dtype, shape), rng) for i, (dtype, shape) in enumerate(group)
            ]
            yield f"quantized-{'P' if is_p else 'T'}-{number}", build(entries)
    yield (
        "quantized-0-d",
        build([quantized("q", style_t("Q8S", "Native"), (), rng), quantized("z", style_t("Q4S", "Native"), (0,), rng)]),
    )
    yield "quantized-zero-huge", build([Entry("z", style_t("Q8S", "Native"), (0, 1 << 60), b"\0\0\x80\x3f")])
    yield "quantized-F32-scales", build([_with_f32_scales(rng)], {**STAMP, "version": "0.21.0"})
    yield (
        "null-id",
        pack(
            cbor2.dumps({"tensors": {"w": {"dtype": "I8", "shape": [2], "data_offsets": [0, 2], "param_id": None}}}),
            b"\1\2",
        ),
    )
    yield (
        "other-order",
        pack(
            cbor2.dumps(
                {
                    "metadata": STAMP,
                    "tensors": {"w": {"shape": [2], "param_id": 7, "data_offsets": [0, 2], "dtype": "U8"}},
                }
            ),
            b"\1\2",
        ),
    )
    long_forms = (
        b"\xa1gtensors\xb8\x01\x78\x01w\xa3edtype\x78\x03F32eshape\x98\x01\x19\x00\x02ldata_offsets\x98\x02\x18\x00\x1b"
    )
    yield "long-forms", pack(long_forms + bytes(7) + b"\x08", weight.data)


def _is_style_p(dtype: Any) -> bool:
    return "param" in dtype["QFloat"]


def _dividing(dtype: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Flat blocks must divide the shape."""
    return (4, 4) if _is_style_p(dtype) and dtype["QFloat"]["store"] == "Native" else shape


def _with_f32_scales(rng: Random) -> Entry:
    """As the host backends of Burn 0.20 and 0.21 wrote: F16 says the scheme, F32 is the scale."""
    return Entry("q", style_p("Q8S", "Native", param="F16"), (2, 3), bytes(6) + rng.randbytes(4))


@cache
def fixtures() -> dict[str, bytes]:
    """The files that real Burns wrote."""
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in sorted(FIXTURES.glob("*/*.bpk"))}


@cache
def made() -> dict[str, bytes]:
    """The files made here."""
    return dict(_made())


def random_file(rng: Random) -> bytes:
    """A small file that some Burn might have written."""
    old = rng.random() < 0.3
    names = rng.sample(("a", "b", "w.weight", "w.bias", "\u00e9", "n" * 30), rng.choice((0, 1, 1, 1, 2, 3)))
    style = rng.getrandbits(1)
    entries = []
    for name in names:
        shape = tuple(rng.choice((0, 1, 1, 2, 3, 4, 5, 8)) for _ in range(rng.choice((0, 1, 1, 2, 2, 3))))
        kind = rng.random()
        if kind < 0.3:
            dtype = rng.choice(quantized_dtypes())
            if _is_style_p(dtype) == style:
                entries.append(quantized(name, dtype, (4, rng.choice((2, 4, 6))), rng))
            continue
        dtype = rng.choice(PLAIN) if kind < 0.8 else "Bool" if style or old else rng.choice(BOOL_MAPS)
        entries.append(plain(name, dtype, shape, rng, rng.getrandbits(64) if rng.random() < 0.5 else None))
    metadata = {}
    if rng.random() < 0.4:
        versions = ("0.19.1", "0.20.0-pre.4", "0.20.1", "0.21.0", "0.22.0-pre.2", "0.22.1", "0.23.0-pre.1", "9", "")
        metadata = {**STAMP, "version": rng.choice(versions)}
    scalars = dict(rng.sample(sorted(SCALARS.items()), rng.choice((1, 2)))) if rng.random() < 0.2 else {}
    return build(entries, metadata, scalars, unaligned=old)
