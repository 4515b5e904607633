"""The models that the benchmarks save and load: deterministic, cheap to make, and no two tensors alike.

Random numbers for a whole GiB would take longer than the benchmark; a random block is made once and every tensor is
filled with it from a starting point of its own, so that a tensor in the wrong place still fails the check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isqrt
from typing import Any

import ml_dtypes
import numpy as np

Arrays = dict[str, "np.ndarray[Any, Any]"]

_LAYERS = 16
_BLOCK = 1 << 20
_STEP = 4_099  # a prime: no two tensors of one model start at the same place of the block


def big_model(nbytes: int) -> Arrays:
    """A transformer of 16 layers, F32 and BF16 mixed, 112 tensors of together ``nbytes`` (and a little for biases).

    A layer has two ``[h, h]`` F32 and one ``[h, 4h]`` BF16 weight, 16 h² bytes; 1 GiB makes h = 2048.
    """
    return _fill(_big_plan(nbytes))


def small_tensors(count: int) -> Arrays:
    """``count`` small F32 tensors of mixed shapes, named as an attention stack names them."""
    shapes = ((64,), (16, 16), (8, 64), (1,), (3, 3, 4, 4))
    parts = ("attention.query", "attention.key", "attention.value", "attention.output", "feed_forward.linear_inner")
    plan = [
        (f"layers.{i // 10}.{parts[i // 2 % 5]}.{('weight', 'bias')[i % 2]}", shapes[i % 5], np.dtype(np.float32))
        for i in range(count)
    ]
    return _fill(plan)


def tiny_tensors(count: int) -> Arrays:
    """``count`` F32 tensors of one element each: a file that is almost all header."""
    return _fill(
        (f"layers.{i // 10}.block.{i % 10}.attention.query.weight", (1,), np.dtype(np.float32)) for i in range(count)
    )


def equal_tensors(count: int, nbytes: int) -> Arrays:
    """``count`` F32 tensors of ``nbytes`` each."""
    return _fill((f"layers.{i}.weight", (nbytes // 4,), np.dtype(np.float32)) for i in range(count))


def raw_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array's bytes as a flat view (a bfloat16 array has no buffer of its own)."""
    return array.reshape(-1).view(np.uint8)


def touch(arrays: Mapping[str, np.ndarray[Any, Any]]) -> int:
    """Read one byte of every page of every array."""
    return sum(int(raw_bytes(array)[::4096].sum()) for array in arrays.values())


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise unless both hold the same names, dtypes, shapes and bytes."""
    if set(found) != set(expected):
        odd = sorted(set(found) ^ set(expected))
        raise AssertionError(f"{len(odd)} names differ, such as {odd[:3]}")
    for name, want in expected.items():
        have = found[name]
        if have.dtype != want.dtype or have.shape != want.shape:
            raise AssertionError(f"{name}: {have.dtype}{have.shape} instead of {want.dtype}{want.shape}")
        if not np.array_equal(raw_bytes(have), raw_bytes(want)):
            raise AssertionError(f"{name}: the bytes differ")


_Plan = tuple[str, tuple[int, ...], "np.dtype[Any]"]


def _big_plan(nbytes: int) -> Iterator[_Plan]:
    h = isqrt(nbytes // (16 * _LAYERS))
    f32, bf16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
    for layer in range(_LAYERS):
        at = f"layers.{layer}"
        yield f"{at}.attention.query.weight", (h, h), f32
        yield f"{at}.attention.query.bias", (h,), f32
        yield f"{at}.attention.output.weight", (h, h), f32
        yield f"{at}.attention.output.bias", (h,), f32
        yield f"{at}.feed_forward.weight", (h, 4 * h), bf16
        yield f"{at}.feed_forward.bias", (h,), bf16
        yield f"{at}.norm.gamma", (h,), f32


def _fill(plan: Iterable[_Plan]) -> Arrays:
    block = np.random.default_rng(0).integers(0, 256, _BLOCK, dtype=np.uint8)
    # Bit 6 of every byte is cleared: read as F32 or BF16 no exponent is all ones, so every number is finite.
    block &= np.uint8(0xBF)
    twice = np.concatenate([block, block])
    arrays: Arrays = {}
    for index, (name, shape, dtype) in enumerate(plan):
        array = np.empty(shape, dtype)
        flat = raw_bytes(array)
        start = index * _STEP * 4 % _BLOCK
        source = twice[start : start + _BLOCK]
        for at in range(0, flat.size, _BLOCK):
            piece = flat[at : at + _BLOCK]
            piece[:] = source[: piece.size]
        flat[:4] = np.frombuffer(index.to_bytes(4, "little"), np.uint8)  # no tensor here is smaller than this
        arrays[name] = array
    return arrays
