"""Pools: no parameters; the stride is the kernel size unless given, and is spelled ``strides`` from two axes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from .module import Module
from .words import Padding


class _Strided1d(Module):
    kernel_size: int
    stride: int | None

    def __post_init__(self) -> None:
        self.stride = self.kernel_size if self.stride is None else self.stride


class _StridedNd(Module):
    kernel_size: Sequence[int]
    strides: Sequence[int] | None

    def __post_init__(self) -> None:
        self.strides = self.kernel_size if self.strides is None else self.strides


@dataclass(eq=False)
class AvgPool1d(_Strided1d):
    """The average over windows of one axis."""

    kernel_size: int
    _: KW_ONLY
    stride: int | None = None
    padding: Padding = "Valid"
    count_include_pad: bool = True
    ceil_mode: bool = False


@dataclass(eq=False)
class AvgPool2d(_StridedNd):
    """The average over windows of height and width."""

    kernel_size: Sequence[int]
    _: KW_ONLY
    strides: Sequence[int] | None = None
    padding: Padding = "Valid"
    count_include_pad: bool = True
    ceil_mode: bool = False


@dataclass(eq=False)
class AvgPool3d(AvgPool2d):
    """The average over windows of depth, height and width (Burn 0.23)."""


@dataclass(eq=False)
class MaxPool1d(_Strided1d):
    """The largest value in windows of one axis."""

    kernel_size: int
    _: KW_ONLY
    stride: int | None = None
    padding: Padding = "Valid"
    dilation: int = 1
    ceil_mode: bool = False


@dataclass(eq=False)
class MaxPool2d(_StridedNd):
    """The largest value in windows of height and width."""

    kernel_size: Sequence[int]
    _: KW_ONLY
    strides: Sequence[int] | None = None
    padding: Padding = "Valid"
    dilation: Sequence[int] = (1, 1)
    ceil_mode: bool = False


@dataclass(eq=False)
class MaxPool3d(_StridedNd):
    """The largest value in windows of depth, height and width (Burn 0.23)."""

    kernel_size: Sequence[int]
    _: KW_ONLY
    strides: Sequence[int] | None = None
    padding: Padding = "Valid"
    dilation: Sequence[int] = (1, 1, 1)
    ceil_mode: bool = False


@dataclass(eq=False)
class LpPool1d(_Strided1d):
    """The power average over windows of one axis (Burn 0.23)."""

    kernel_size: int
    _: KW_ONLY
    stride: int | None = None
    p: float = 2.0
    ceil_mode: bool = False


@dataclass(eq=False)
class LpPool2d(_StridedNd):
    """The power average over windows of height and width (Burn 0.23)."""

    kernel_size: Sequence[int]
    _: KW_ONLY
    strides: Sequence[int] | None = None
    p: float = 2.0
    ceil_mode: bool = False


@dataclass(eq=False)
class AdaptiveAvgPool1d(Module):
    """The average over as many windows as the output has elements."""

    output_size: int


@dataclass(eq=False)
class AdaptiveAvgPool2d(Module):
    """The average over as many windows as the output has elements."""

    output_size: Sequence[int]


@dataclass(eq=False)
class AdaptiveAvgPool3d(Module):
    """The average over as many windows as the output has elements."""

    output_size: Sequence[int]
