"""Files that Burn wrote, read by burnstore."""

from __future__ import annotations

import hashlib

import pytest

import burnstore as bs

from . import across
from .program import Tensor


def comparable(tensors: list[Tensor]) -> list[tuple[object, ...]]:
    return [(t.path, t.dtype, t.shape, t.param_id, t.sha256) for t in tensors]


@pytest.mark.parametrize("zero_copy", [False, True], ids=["owned", "zero-copy"])
def test_a_file_of_burn_has_its_values_dtypes_shapes_ids_order_and_metadata(burn, generated, model, zero_copy):
    with bs.open(generated.file(model), zero_copy=zero_copy) as found:
        assert comparable(across.described(found)) == comparable(generated.tensors(model))
        assert dict(found.metadata) == generated.metadata(model)


def test_metadata_that_a_user_gave_come_back(burn, generated):
    models = [model for model in burn.models if generated.file(model, "meta.bpk").exists()]
    assert models
    for model in models:
        with bs.open(generated.file(model, "meta.bpk")) as found:
            assert dict(found.metadata) == generated.metadata(model, "meta_metadata")
            assert comparable(across.described(found)) == comparable(generated.tensors(model))


def test_a_quantized_tensor_stands_for_the_values_that_burn_gives(burn, generated):
    known = [tensor for tensor in generated.tensors("quantized") if tensor.dequantized_sha256 is not None]
    if not known:
        pytest.skip(f"Burn {burn.version} writes no quantized tensors")
    with bs.open(generated.file("quantized")) as found:
        for tensor in known:
            assert hashlib.sha256(found[tensor.path].numpy().tobytes()).hexdigest() == tensor.dequantized_sha256, tensor
