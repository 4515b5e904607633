"""Forward passes of models that are ``nn.Sequential`` throughout: layer after layer, with the axes known at each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...models.torch.kinds import kind_of
from ...tensor.torch import torch_package
from .layers import parameterless
from .source import LONGEST_TUPLE, Source

_SAME = ("Linear", "LayerNorm", "RMSNorm", "GroupNorm", "PReLU", "BatchNorm1d", "SyncBatchNorm")
_RANKS = {"1d": 3, "2d": 4, "3d": 5}
_CALLS = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}
_FUNCTIONS = {
    "ReLU": "relu(x)",
    "ReLU6": "relu6(x)",
    "Sigmoid": "sigmoid(x)",
    "Tanh": "tanh(x)",
    "SiLU": "silu(x)",
    "Mish": "mish(x)",
    "Hardswish": "hard_swish(x)",
    "SELU": "selu(x)",
    "Softsign": "softsign(x)",
}


class _UnknownError(Exception):
    """A module whose forward pass is not written here."""


def sequential_forward(model: Any, source: Source) -> str | None:
    """Return the method ``forward`` of a model of Sequentials alone, None for any other."""
    sequential = torch_package().nn.Sequential
    if type(model) is not sequential or not source.is_wrapped:
        return None
    try:
        first = type(next(_leaves(model))).__name__
        if first == "Flatten":
            return None  # nothing shows the axes of the input
        is_index = first == "Embedding"
        rank = _RANKS.get(first[-2:], 2)
        steps = _Steps(rank)
        steps.add(model, "self.layers", source.root.fields["layers"])
    except (_UnknownError, StopIteration):
        return None
    given = f"Tensor<{rank}, Int>" if is_index else f"Tensor<{rank}>"
    body = "".join(f"        let x = {line};\n" for line in steps.lines[:-1])
    return (
        f"    pub fn forward(&self, x: {given}) -> Tensor<{steps.rank}> {{\n{body}        {steps.lines[-1]}\n    }}\n"
    )


def _leaves(module: Any) -> Iterator[Any]:
    for child in module:
        if type(child) is torch_package().nn.Sequential:
            yield from _leaves(child)
        else:
            yield child


class _Steps:
    """The lines of a forward pass, and the number of axes after them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.lines: list[str] = []

    def add(self, module: Any, place: str, node: Any) -> None:
        """Add a Sequential; ``place`` is where Rust has its list."""
        taken = 0
        is_tuple = len({_type_of(item) for item in node.items}) > 1
        if is_tuple and len(node.items) > LONGEST_TUPLE:
            raise _UnknownError("an enum")
        for child in module:
            kind = type(child).__name__
            if not type(child).__module__.startswith("torch.nn.modules."):  # a subclass may compute anything
                raise _UnknownError(kind)
            if not any(True for _ in child.state_dict()) and kind_of_layer(child) is None:
                self._parameterless(kind, child)
                continue
            here = f"{place}.{taken}" if is_tuple else f"{place}[{taken}]"
            if type(child) is torch_package().nn.Sequential:
                self.add(child, here, node.items[taken])
            else:
                self._layer(kind, here)
            taken += 1

    def _layer(self, kind: str, here: str) -> None:
        if kind == "Embedding":
            self.rank += 1
        elif kind not in _SAME and _RANKS.get(kind[-2:]) != self.rank:
            raise _UnknownError(kind)
        self.lines.append(f"{here}.forward(x)")

    def _parameterless(self, kind: str, module: Any) -> None:
        made = parameterless(kind, lambda name, usual: getattr(module, name, usual))
        if kind in _FUNCTIONS:
            self.lines.append(f"burn::tensor::activation::{_FUNCTIONS[kind]}")
        elif kind in _CALLS and module.dim is not None:
            axis = module.dim % self.rank
            self.lines.append(f"burn::tensor::activation::{_CALLS[kind]}(x, {axis})")
        elif kind == "Flatten":
            first, last = module.start_dim % self.rank, module.end_dim % self.rank
            if last > first:
                self.rank -= last - first
                self.lines.append(f"x.flatten::<{self.rank}>({first}, {last})")
        elif kind == "Identity":
            return
        elif (
            made is not None
            and (not kind.endswith("2d") or self.rank == 4)
            and not getattr(module, "return_indices", False)
        ):
            self.lines.append(f"{made.render()}.forward(x)")
        else:
            raise _UnknownError(kind)


def kind_of_layer(module: Any) -> object | None:
    """Return the kind of a layer that holds tensors in Burn, None for one that does not."""
    kind = kind_of(module)
    return kind if kind is not None and kind.option("features") is not None else None


def _type_of(node: Any) -> str:
    made = getattr(node, "made", None)
    return made.type if made is not None else repr([_type_of(item) for item in getattr(node, "items", ())])
