"""Casts on a device: whatever the shapes, strides and sizes, in scratch memory that is no longer than it says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from burnstore.io.gpu.sinks import MAX_CAST, Cast, NativeCast, ShiftCast, TableCast
from burnstore.io.sizes import GPU_CAST_BYTES

Made = tuple[Cast, Callable[[torch.Tensor], torch.Tensor]]


def tabled(width: int, held: str) -> Made:
    """A table of random bits, and what it makes of values, looked up by hand."""
    table = np.random.default_rng(7).integers(0, 100, 1 << 8 * width).astype(held)

    def wanted(values: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(table[values.numpy().view(f"u{width}")])

    return TableCast(torch, "cpu", table), wanted


def shifted() -> Made:
    return ShiftCast(torch, "cpu"), lambda values: values.view(torch.bfloat16).float().view(torch.int32)


def native() -> Made:
    return NativeCast(torch.int64, torch.int16), lambda values: values.to(torch.int16)


CASTS = {
    "bytes to words": lambda: tabled(1, "int64"),
    "halves to words": lambda: tabled(2, "int64"),
    "halves to halves": lambda: tabled(2, "int16"),
    "halves to bytes": lambda: tabled(2, "uint8"),
    "shifted": shifted,
    "native": native,
}


@pytest.fixture
def scratch() -> torch.Tensor:
    return torch.empty(GPU_CAST_BYTES, dtype=torch.uint8)


def values_for(cast: Cast, *shape: int) -> torch.Tensor:
    return torch.randint(0, 1 << 7, shape, dtype=torch.int64).to(cast.given)


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize(
    "shape", [(1,), (7,), (0,), (0, 3), (3, 0), (1_700_001,), (2, MAX_CAST), (1333, 1501), (5, 7, 3)]
)
def test_a_tensor_in_order_is_filled(name: str, shape: tuple[int, ...], scratch: torch.Tensor) -> None:
    cast, wanted = CASTS[name]()
    values = values_for(cast, *shape)
    target = torch.full(shape, 101, dtype=cast.held)
    cast.fill(target, values, scratch)
    assert torch.equal(target, wanted(values))


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("shape", [(7, 3), (MAX_CAST // 5, 7), (3, MAX_CAST), (4, 3, 5)])
def test_a_tensor_that_lies_otherwise_is_filled_and_nothing_beside_it(
    name: str, shape: tuple[int, ...], scratch: torch.Tensor
) -> None:
    cast, wanted = CASTS[name]()
    values = values_for(cast, *shape)
    around = torch.full((*shape[::-1], 2), 101, dtype=cast.held)
    target = around[..., 0].permute(*range(len(shape))[::-1])
    cast.fill(target, values, scratch)
    assert torch.equal(target, wanted(values))
    assert (around[..., 1] == 101).all()


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("count", [1, 2, 5, 1001, MAX_CAST - 1, MAX_CAST])
def test_flat_values_are_cast_in_the_scratch_memory(name: str, count: int, scratch: torch.Tensor) -> None:
    cast, wanted = CASTS[name]()
    values = values_for(cast, count)
    found = cast.cast(values, scratch)
    assert torch.equal(found, wanted(values))
    first = found.data_ptr() - scratch.data_ptr()
    assert first >= 0 and first + found.nbytes <= GPU_CAST_BYTES


def test_every_bit_pattern_has_its_own_entry(scratch: torch.Tensor) -> None:
    for width in (1, 2):
        patterns = np.arange(1 << 8 * width, dtype=f"u{width}")
        cast = TableCast(torch, "cpu", patterns.astype(np.int32))
        found = cast.cast(torch.from_numpy(patterns.view("u1" if width == 1 else "i2")), scratch)
        assert found.tolist() == patterns.tolist()
