"""What burnstore.nn declares against the Rust modules of the same names."""

from __future__ import annotations

import pytest

from burnstore.models.plain import walk
from burnstore.tensor.dtype import DType

from . import zoo


def test_every_model_of_the_program_is_declared_and_every_declared_one_is_there(burn):
    assert sorted(burn.models) == sorted(zoo.models_of(burn.version))


def test_a_declared_model_has_the_paths_shapes_containers_and_dtypes_of_burns_module_in_its_order(
    burn, generated, model
):
    if (burn.version, model) in zoo.WITHOUT_CONTAINERS:
        pytest.skip(zoo.WITHOUT_CONTAINERS[burn.version, model])
    declared = [
        (slot.path, slot.dtype, slot.shape, zoo.spelled(slot.container_stack, burn.version))
        for slot in walk(zoo.declare(model, burn.version, generated.paths(model)))
    ]
    assert declared == [
        (tensor.path, DType.F32 if tensor.dtype.is_quantized else tensor.dtype, tensor.shape, tensor.containers)
        for tensor in generated.tensors(model)
    ]
