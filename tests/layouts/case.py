"""A case: one module in PyTorch, its declaration in Burn, and how both compute."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore import nn as burn

from .burn_forward import Array, Weights

Inputs = Callable[[np.random.Generator], tuple[Array, ...]]


@dataclass(frozen=True)
class Case:
    """The module lies at ``m`` of a model in both layouts.

    ``constants`` are the tensors of Burn that PyTorch has not (a pattern of their paths, and the value they must have);
    ``unseen`` is a pattern of the tensors on which the output does not depend.
    """

    name: str
    torch: Callable[[], torch.nn.Module]
    burn: Callable[[], Any]
    run_burn: Callable[..., Array]
    inputs: Inputs
    run_torch: Callable[..., Any] = lambda module, *inputs: module(*inputs)
    beside: Callable[[], Mapping[str, Any]] = dict
    constants: Mapping[str, float] = field(default_factory=dict)
    unseen: str = r"(?!)"

    def __repr__(self) -> str:
        return self.name

    def torch_model(self, seed: int = 0) -> TorchModel:
        """PyTorch's model, every tensor random."""
        return randomised(TorchModel(self.torch()), seed)

    def burn_model(self, seed: int = 0) -> BurnModel:
        """Burn's model, every tensor random but for those that are constant in PyTorch."""
        model = BurnModel(self.burn(), **self.beside())
        rng = np.random.default_rng(seed)
        values = []
        for tensor in bs.collect(model):
            value = random_values(rng, tensor.path, tensor.shape)
            for pattern, constant in self.constants.items():
                if re.fullmatch(pattern, tensor.path):
                    value = np.full(tensor.shape, constant, np.float32)
            values.append(bs.TensorSnapshot.from_numpy(tensor.path, value))
        bs.apply(model, values, validate=True, allow_partial=False)
        return model

    def torch_output(self, model: TorchModel, inputs: tuple[Array, ...]) -> Array:
        """What PyTorch computes in evaluation, in f64. With gradients: without, its encoders take a short cut."""
        module = copy.deepcopy(model).double().eval().m
        found = self.run_torch(module, *(torch.from_numpy(each) for each in inputs))
        return found.detach().numpy()

    def burn_output(self, weights: Mapping[str, Array], inputs: tuple[Array, ...]) -> Array:
        """What Burn's equations give."""
        return self.run_burn(Weights(weights), *inputs)


class TorchModel(torch.nn.Module):
    """A model with a module of PyTorch in it."""

    def __init__(self, m: torch.nn.Module) -> None:
        super().__init__()
        self.m = m


class BurnModel(burn.Module):
    """A model with a layer of Burn in it, and perhaps others beside it."""

    def __init__(self, m: Any, **beside: Any) -> None:
        self.m = m
        for name, value in beside.items():
            setattr(self, name, value)


def random_values(rng: np.random.Generator, path: str, shape: tuple[int, ...]) -> Array:
    """Random f32 for a tensor of this name; a variance is positive."""
    if path.endswith("running_var"):
        return rng.uniform(0.5, 2.0, shape).astype(np.float32)
    return rng.normal(0.0, 0.7, shape).astype(np.float32)


def randomised(model: Any, seed: int = 0) -> Any:
    """A model of PyTorch with a random value in each of its tensors, be it a weight, a bias, a norm or a counter."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if tensor.dtype.is_floating_point:
                tensor.copy_(torch.from_numpy(random_values(rng, name, tuple(tensor.shape))))
            else:
                tensor.fill_(int(rng.integers(1, 1000)))
    return model


def bits(model: torch.nn.Module) -> dict[str, tuple[torch.dtype, bytes]]:
    """Every tensor of a model of PyTorch, to be compared bit by bit."""
    state = model.state_dict()
    return {name: (value.dtype, bytes(value.reshape(-1).view(torch.uint8).numpy())) for name, value in state.items()}


def contents(path: Any) -> dict[str, Array]:
    """The tensors of a file."""
    with bs.open(path) as checkpoint:
        return checkpoint.numpy()


def floats(*shapes: tuple[int, ...]) -> Inputs:
    """Random inputs of these shapes."""
    return lambda rng: tuple(rng.normal(size=shape) for shape in shapes)


def on_m(run: Callable[..., Array], **options: Any) -> Callable[..., Array]:
    """Burn's equation on the weights of the module."""
    return lambda weights, *inputs: run(weights.at("m"), *inputs, **options)


def rows(table: dict[str, Any]) -> list[Any]:
    """The rows of a table as parameters."""
    return [pytest.param(*row, id=name) for name, row in table.items()]


class Custom(torch.nn.Module):
    """A class of one's own: tensors directly in it, in lists and dicts, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.weight = torch.nn.Parameter(torch.ones(3, 3))
        self.register_buffer("table", torch.ones(2, 4))
        self.listed = torch.nn.ParameterList([torch.ones(2), torch.ones(1, 2)])
        self.by_name = torch.nn.ParameterDict({"a": torch.ones(2, 2)})
        self.inner = torch.nn.Linear(3, 3)


def is_counter(name: str) -> bool:
    """Whether this is what PyTorch counts and Burn does not."""
    return name.endswith("num_batches_tracked")


def kept(model: torch.nn.Module) -> dict[str, tuple[torch.dtype, bytes]]:
    """As `bits`, without what Burn has no place for."""
    return {name: value for name, value in bits(model).items() if not is_counter(name)}
