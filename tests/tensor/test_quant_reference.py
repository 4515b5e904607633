"""Quantized bytes against a slow reference, written with loops over coordinates, that shares no code with ours."""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from burnstore.errors import CorruptError
from burnstore.tensor.quantization import QuantBlock, QuantScheme, QuantStore, decode, encode

ONE = struct.pack("<f", 1.0)
BITS = {"Q8F": 8, "Q8S": 8, "E4M3": 8, "E5M2": 8, "Q4F": 4, "Q4S": 4, "E2M1": 4, "Q2F": 2, "Q2S": 2}
ORACLES = {
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "E2M1": ml_dtypes.float4_e2m1fn,
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": ml_dtypes.bfloat16,
    "UE8M0": ml_dtypes.float8_e8m0fnu,
    "UE4M3": ml_dtypes.float8_e4m3fn,
}


@dataclass
class Case:
    scheme: QuantScheme
    shape: tuple[int, ...]
    codes: dict[tuple[int, ...], int]
    scales: dict[tuple[int, ...], bytes]
    global_scale: bytes


def coordinates(sizes: Any) -> Any:
    return itertools.product(*(range(size) for size in sizes))


def exchange(items: Any, axis: int) -> tuple[int, ...]:
    items = list(items)
    items[axis], items[-1] = items[-1], items[axis]
    return tuple(items)


def reference_bytes(case: Case) -> bytes:
    scheme, rank = case.scheme, max(len(case.shape), 1)
    dims = case.shape or (1,)
    axis, bits = rank - 1 - scheme.store.dim, BITS[scheme.value]
    n, width = {"Native": (1, 1), "PackedU32": (32 // bits, 4), "PackedNative": (1, 1)}[scheme.store.kind]
    if scheme.store.kind == "PackedNative" and scheme.value == "E2M1":
        n = 2
    stored = list(dims)
    stored[axis] = math.ceil(dims[axis] / n)
    moved = not scheme.old_style
    out = b""
    for place in coordinates(exchange(stored, axis) if moved else stored):
        place = exchange(place, axis) if moved else place
        word = 0
        for k in range(n):
            at = (*place[:axis], place[axis] * n + k, *place[axis + 1 :])
            if at[axis] < dims[axis]:
                word += (case.codes[at] % 2**bits) << (bits * k)
        if scheme.store.kind == "Native":
            word = case.codes[place] % 256
        out += word.to_bytes(width, "little")
    grid = grid_of(scheme, case.shape)
    for place in coordinates(exchange(grid, axis) if moved and scheme.block else grid):
        out += case.scales[exchange(place, axis) if moved and scheme.block else place]
    return out + case.global_scale


def grid_of(scheme: QuantScheme, shape: tuple[int, ...]) -> tuple[int, ...]:
    if scheme.block is None:
        return (1,)
    size = (1,) * (len(shape) - len(scheme.block.size)) + scheme.block.size
    return tuple(math.ceil(a / b) for a, b in zip(shape, size, strict=True))


def number_of(raw: bytes, dtype: str) -> np.float32:
    return np.frombuffer(raw, ORACLES[dtype])[0].astype(np.float32)  # type: ignore[no-any-return]


def reference_number(case: Case, at: tuple[int, ...]) -> np.float32:
    scheme, code = case.scheme, case.codes[at or (0,)]
    q = number_of(bytes([code]), scheme.value) if scheme.value in ORACLES else np.float32(code)
    place: tuple[int, ...] = (0,)
    if scheme.block is not None:
        size = (1,) * (len(at) - len(scheme.block.size)) + scheme.block.size
        place = tuple(a // b for a, b in zip(at, size, strict=True))
        if scheme.flat_blocks:
            flat = 0
            for a, extent in zip(at, case.shape, strict=True):
                flat = flat * extent + a
            run = flat // math.prod(size)
            place = list(coordinates(grid_of(scheme, case.shape)))[run]
    scale = number_of(case.scales[place], scheme.scale_dtype)
    if scheme.global_dtype is not None:
        scale = number_of(case.global_scale, scheme.global_dtype) * scale
    return scale * q


def scale_bytes(dtype: str) -> st.SearchStrategy[bytes]:
    width = {"F32": 4, "F16": 2, "BF16": 2}.get(dtype, 1)
    # A NaN has many spellings, of which we write one; the tables above cover them.
    return st.binary(min_size=width, max_size=width).filter(lambda raw: not np.isnan(number_of(raw, dtype)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = tuple(draw(st.lists(st.integers(0, 3) | st.integers(1, 9), max_size=4)))
    value = draw(st.sampled_from(sorted(BITS)))
    kind = draw(st.sampled_from(["Native", "PackedU32", "PackedNative"]))
    dim = 0 if kind == "Native" else draw(st.integers(0, max(len(shape) - 1, 0)))
    dtypes = st.sampled_from(["F32", "F16", "BF16", "UE8M0", "UE4M3"])
    block, flat = None, False
    if shape and draw(st.booleans()):
        size = draw(st.lists(st.integers(1, 4), min_size=1, max_size=len(shape)))
        block = QuantBlock(tuple(size), draw(dtypes))
        dividing = all(a % b == 0 for a, b in zip(shape[len(shape) - len(size) :], size, strict=True))
        flat = kind == "Native" and dividing and draw(st.booleans())
    tensor = draw(st.none() | (st.just("F32") if block else dtypes))
    store = QuantStore(kind, dim)
    scheme = QuantScheme(value, store, "Symmetric", tensor, block, flat, draw(st.booleans()))
    bits = BITS[value]
    if value.startswith("E"):
        least, most = 0, 2**bits - 1
    else:
        least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        least += value.endswith("S") and kind == "Native" and bits < 8
    places = list(coordinates(shape or (1,)))
    drawn = draw(st.lists(st.integers(least, most), min_size=len(places), max_size=len(places)))
    grid = list(coordinates(grid_of(scheme, shape)))
    scales = draw(st.lists(scale_bytes(scheme.scale_dtype), min_size=len(grid), max_size=len(grid)))
    global_scale = draw(scale_bytes("F32")) if scheme.global_dtype else b""
    codes = dict(zip(places, drawn, strict=True))
    return Case(scheme, shape, codes, dict(zip(grid, scales, strict=True)), global_scale)


def _q4(dim: int, *, old_style: bool = False) -> QuantScheme:
    return QuantScheme("Q4S", QuantStore("PackedU32", dim), old_style=old_style)


@pytest.mark.slow("a slow reference")
@settings(max_examples=600, deadline=None)
@given(cases())
@example(Case(_q4(1), (0, 3), {}, {(0,): ONE}, b""))
@example(Case(_q4(0), (3, 0), {}, {(0,): ONE}, b""))
@example(Case(_q4(1, old_style=True), (0, 3), {}, {(0,): ONE}, b""))
@example(Case(_q4(1, old_style=True), (3, 0), {}, {(0,): ONE}, b""))
def test_decode_encode_and_dequantize_agree_with_a_slow_reference(case: Case) -> None:
    raw = reference_bytes(case)
    scheme, shape = case.scheme, case.shape
    assert scheme.byte_len(shape) == len(raw)
    tensor = decode(raw, scheme, shape)
    assert tensor.scheme == scheme
    assert tensor.codes.shape == shape
    assert tensor.scales.shape == grid_of(scheme, shape)
    for at in coordinates(shape):
        assert tensor.codes[at] == case.codes[at or (0,)]
    for at in coordinates(tensor.scales.shape):
        assert tensor.scales[at] == number_of(case.scales[at], scheme.scale_dtype)
    assert encode(tensor) == raw
    numbers = tensor.dequantize()
    assert numbers.shape == shape
    assert numbers.dtype == np.float32
    with np.errstate(all="ignore"):
        expected = np.array([reference_number(case, at) for at in coordinates(shape)], np.float32).reshape(shape)
    np.testing.assert_array_equal(numbers, expected)
    assert (np.signbit(numbers) == np.signbit(expected))[~np.isnan(numbers)].all()


@settings(max_examples=300, deadline=None)
@given(cases(), st.binary(max_size=40), st.booleans())
def test_any_bytes_are_decoded_or_refused_as_corrupt(case: Case, raw: bytes, old_style: bool) -> None:
    try:
        tensor = decode(raw, case.scheme, case.shape, old_style=old_style)
    except CorruptError:
        return
    assert tensor.dequantize().shape == case.shape
