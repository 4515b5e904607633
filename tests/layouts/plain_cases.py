"""Modules without inner structure: renamed, transposed or copied, one tensor by one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from burnstore import nn as burn

from . import burn_forward as equations
from .burn_forward import Array, Weights
from .case import Case, floats, on_m

_ONES_AND_ZEROS = {r"m\.gamma": 1.0, r"m\.beta": 0.0}
_NO_BETA = {r"m\.beta": 0.0}


def _linear() -> Iterator[Case]:
    for width_in, width_out in ((3, 5), (4, 4), (1, 3), (5, 1)):
        for bias in (True, False):
            yield Case(
                f"Linear-{width_in}x{width_out}{'' if bias else '-no-bias'}",
                lambda i=width_in, o=width_out, b=bias: nn.Linear(i, o, bias=b),
                lambda i=width_in, o=width_out, b=bias: burn.Linear(i, o, bias=b),
                on_m(equations.linear),
                floats((2, 3, width_in)),
            )
            yield Case(
                f"Linear-col-{width_in}x{width_out}{'' if bias else '-no-bias'}",
                lambda i=width_in, o=width_out, b=bias: _ColumnLinear(i, o, b),
                lambda i=width_in, o=width_out, b=bias: burn.Linear(i, o, bias=b, layout="Col"),
                on_m(equations.linear_col),
                floats((2, 3, width_in)),
            )


class _ColumnLinear(nn.Module):
    """A linear layer of one's own, of no known kind: its tensors go over as they are, which is what Col stores."""

    def __init__(self, width_in: int, width_out: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_out, width_in))
        self.bias = nn.Parameter(torch.empty(width_out)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


def _convolutions() -> Iterator[Case]:
    extents = {1: (9,), 2: (7, 6), 3: (5, 4, 5)}
    declared: dict[int, Any] = {
        1: lambda i, o, k, **more: burn.Conv1d(i, o, k, **more),
        2: lambda i, o, k, **more: burn.Conv2d([i, o], [k, k], **more),
        3: lambda i, o, k, **more: burn.Conv3d([i, o], [k, k, k], **more),
    }
    options: dict[str, tuple[int, int, int, dict[str, Any]]] = {
        "plain": (3, 5, 3, {}),
        "no-bias": (3, 5, 2, {"bias": False}),
        "square": (3, 3, 3, {}),
        "groups": (4, 6, 2, {"groups": 2}),
        "depthwise": (3, 3, 2, {"groups": 3}),
        "strided": (2, 3, 2, {"stride": 2, "padding": 1, "dilation": 2}),
    }
    for axes, extent in extents.items():
        torch_conv = getattr(nn, f"Conv{axes}d")
        for name, (i, o, k, more) in options.items():
            stored = {option: value for option, value in more.items() if option in ("groups", "bias")}
            computed = {option: value for option, value in more.items() if option != "bias"}
            yield Case(
                f"Conv{axes}d-{name}",
                lambda kind=torch_conv, i=i, o=o, k=k, more=more: kind(i, o, k, **more),
                lambda kind=declared[axes], i=i, o=o, k=k, more=stored: kind(i, o, k, **more),
                on_m(equations.conv, **computed),
                floats((2, i, *extent)),
            )
    for axes in (1, 2):
        for kernel in (3, 2):  # with an even kernel the extra row of padding comes last
            yield Case(
                f"Conv{axes}d-same-{kernel}",
                lambda a=axes, k=kernel: getattr(nn, f"Conv{a}d")(2, 3, k, padding="same"),
                lambda a=axes, k=kernel: declared[a](2, 3, k, padding="Same"),
                on_m(equations.conv, padding=((kernel - 1) // 2, kernel // 2)),
                floats((2, 2, *extents[axes])),
                _without_warning,
            )


def _without_warning(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a copy that an even kernel costs
        return module(x)


def _transposed_convolutions() -> Iterator[Case]:
    extents = {1: (5,), 2: (4, 3), 3: (3, 2, 3)}
    options: dict[str, tuple[int, int, int, dict[str, Any]]] = {
        "plain": (3, 5, 3, {}),
        "no-bias": (2, 3, 2, {"bias": False}),
        "square": (3, 3, 3, {}),
        "groups": (4, 6, 2, {"groups": 2}),
        "strided": (2, 3, 3, {"stride": 2, "padding": 1, "dilation": 2, "output_padding": 1}),
    }
    for axes, extent in extents.items():
        for name, (i, o, k, more) in options.items():
            stored = {option: value for option, value in more.items() if option in ("groups", "bias")}
            computed = {
                {"output_padding": "padding_out"}.get(option, option): value
                for option, value in more.items()
                if option != "bias"
            }
            kernel: Any = k if axes == 1 else [k] * axes
            yield Case(
                f"ConvTranspose{axes}d-{name}",
                lambda a=axes, i=i, o=o, k=k, more=more: getattr(nn, f"ConvTranspose{a}d")(i, o, k, **more),
                lambda a=axes, i=i, o=o, k=kernel, more=stored: getattr(burn, f"ConvTranspose{a}d")([i, o], k, **more),
                on_m(equations.conv_transpose, **computed),
                floats((2, i, *extent)),
            )


def _embeddings() -> Iterator[Case]:
    for name, count, width, more in (
        ("plain", 7, 3, {}),
        ("square", 5, 5, {}),
        ("padding", 7, 3, {"padding_idx": 2}),
        ("max-norm-kept", 7, 3, {"max_norm": 1e6}),
    ):
        yield Case(
            f"Embedding-{name}",
            lambda n=count, d=width, more=more: nn.Embedding(n, d, **more),
            lambda n=count, d=width: burn.Embedding(n, d),
            on_m(equations.embedding),
            # Every row is looked up, so that each counts.
            lambda rng, n=count: (rng.permutation(n).reshape(1, n),),
        )


def _activations() -> Iterator[Case]:
    for count, shape in ((1, (2, 3, 4)), (3, (2, 3, 4)), (3, (8, 3))):
        yield Case(
            f"PReLU-{count}-rank{len(shape)}",
            lambda n=count: nn.PReLU(n),
            lambda n=count: burn.PRelu(num_parameters=n),
            on_m(equations.prelu),
            floats(shape),
        )


def _norms() -> Iterator[Case]:
    x = floats((2, 3, 6))
    for name, more, declared, constants in (
        ("affine", {}, {}, {}),
        ("no-bias", {"bias": False}, {"bias": False}, {}),
        ("no-affine", {"elementwise_affine": False}, {}, _ONES_AND_ZEROS),
    ):
        yield Case(
            f"LayerNorm-{name}",
            lambda more=more: nn.LayerNorm(6, **more),
            lambda more=declared: burn.LayerNorm(6, **more),
            on_m(equations.layer_norm),
            x,
            constants=constants,
        )
    for name, affine in (("affine", True), ("no-affine", False)):
        yield Case(
            f"RMSNorm-{name}",
            lambda affine=affine: nn.RMSNorm(6, eps=1e-5, elementwise_affine=affine),
            lambda: burn.RmsNorm(6),
            on_m(equations.rms_norm),
            x,
            constants={} if affine else {r"m\.gamma": 1.0},
        )
    for groups in (1, 3, 6):
        for name, more, constants in (("affine", {}, {}), ("no-bias", {"bias": False}, _NO_BETA)):
            yield Case(
                f"GroupNorm-{groups}-{name}",
                lambda g=groups, more=more: nn.GroupNorm(g, 6, **more),
                lambda g=groups: burn.GroupNorm(g, 6),
                on_m(equations.group_norm, groups=groups),
                floats((2, 6, 4, 3)),
                constants=constants,
            )
    for axes, shape in ((1, (2, 3, 7)), (2, (2, 3, 4, 5)), (3, (2, 3, 2, 4, 3))):
        for name, more, constants in (("affine", {}, {}), ("no-bias", {"bias": False}, _NO_BETA)):
            yield Case(
                f"InstanceNorm{axes}d-{name}",
                lambda a=axes, more=more: getattr(nn, f"InstanceNorm{a}d")(3, affine=True, **more),
                lambda: burn.InstanceNorm(3),
                on_m(equations.instance_norm),
                floats(shape),
                constants=constants,
            )


def _batch_norms() -> Iterator[Case]:
    kinds = {
        "BatchNorm1d": (4, 3),
        "BatchNorm2d": (2, 3, 4, 5),
        "BatchNorm3d": (2, 3, 2, 4, 3),
        "SyncBatchNorm": (4, 3),
    }
    for kind, shape in kinds.items():
        for name, more, constants in (
            ("affine", {}, {}),
            ("no-affine", {"affine": False}, _ONES_AND_ZEROS),
            ("no-bias", {"bias": False}, _NO_BETA),
        ):
            if kind == "SyncBatchNorm" and name == "no-bias":  # has no such option
                continue
            yield Case(
                f"{kind}-{name}",
                lambda kind=kind, more=more: getattr(nn, kind)(3, **more),
                lambda: burn.BatchNorm(3),
                on_m(equations.batch_norm),
                floats(shape),
                constants=constants,
            )


class _BareNorms(nn.Module):
    """Norms that hold no tensors in either layout, between two layers that do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.group = nn.GroupNorm(2, 4, affine=False)
        self.instance = nn.InstanceNorm1d(4)
        self.last = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.instance(self.group(self.first(x))))


class _BareNormsDeclared(burn.Module):
    def __init__(self) -> None:
        self.first = burn.Linear(5, 5)
        self.group = burn.GroupNorm(2, 4, affine=False)
        self.instance = burn.InstanceNorm(4, affine=False)
        self.last = burn.Linear(5, 2)


def _bare_norms(p: Weights, x: Array) -> Array:
    x = equations.group_norm(None, equations.linear(p.at("first"), x), groups=2)
    return equations.linear(p.at("last"), equations.instance_norm(None, x))


class FeedForward(nn.Module):
    """What PyTorch has no module for, with Burn's names."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.linear_inner = nn.Linear(4, 7)
        self.linear_outer = nn.Linear(7, 4)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_outer(self.activation(self.linear_inner(x)))


class Gated(nn.Module):
    """The gated unit of a LLaMA, with Burn's names."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.linear_inner = nn.Linear(4, 4, bias=bias)
        self.linear_outer = nn.Linear(4, 4, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.linear_inner(x)) * self.linear_outer(x)


def _compositions() -> Iterator[Case]:
    yield Case("norms-without-tensors", _BareNorms, _BareNormsDeclared, on_m(_bare_norms), floats((2, 4, 5)))
    for name, activation, equation in (
        ("gelu", nn.GELU, equations.gelu),
        ("relu", nn.ReLU, equations.relu),
        ("tanh-gelu", lambda: nn.GELU("tanh"), equations.gelu_approximate),
    ):
        yield Case(
            f"PositionWiseFeedForward-{name}",
            lambda activation=activation: FeedForward(activation()),
            lambda: burn.PositionWiseFeedForward(4, 7),
            on_m(equations.feed_forward, activation=equation),
            floats((2, 3, 4)),
        )
    for bias in (True, False):
        yield Case(
            f"SwiGlu{'' if bias else '-no-bias'}",
            lambda b=bias: Gated(b),
            lambda b=bias: burn.SwiGlu(4, 4, bias=b),
            on_m(equations.swiglu),
            floats((2, 3, 4)),
        )


PLAIN_CASES = [
    *_linear(),
    *_convolutions(),
    *_transposed_convolutions(),
    *_embeddings(),
    *_activations(),
    *_norms(),
    *_batch_norms(),
    *_compositions(),
]
