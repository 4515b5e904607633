"""Convolutions; as in PyTorch, weights are ``[out, in/groups, ...]``, transposed ones ``[in, out/groups, ...]``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .arguments import Padding, check_divisible, extent, extents, flag, padding_of
from .initializer import KAIMING, Initializer
from .module import Module
from .param import Param

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "DeformConv2d"]

_AXES = {1: "length", 2: "height, width", 3: "depth, height, width"}
_Size = int | Sequence[int]


class _Convolution(Module):
    """The parameters and constants that all convolutions have."""

    def __init__(
        self, axes: int, channels: tuple[int, ...], kernel_size: _Size, stride: _Size, dilation: _Size, groups: int,
        bias: bool, initializer: Initializer, *, transposed: bool = False,
    ) -> None:  # fmt: skip
        (c_in, c_out), kernel = channels, _sizes("kernel_size", kernel_size, axes)
        check_divisible("channels in", c_in, "groups", groups)
        check_divisible("channels out", c_out, "groups", groups)
        first, second = (c_in, c_out) if transposed else (c_out, c_in)
        fan_in = second // groups * math.prod(kernel)
        # Burn passes no fan_out to transposed convolutions nor to the bias of Conv1d, so Xavier fails on them.
        fan_out = None if transposed else first // groups * math.prod(kernel)
        self.weight = Param([first, second // groups, *kernel], initializer, fan_in=fan_in, fan_out=fan_out)
        bias_fan_out = None if axes == 1 else fan_out
        has_bias = flag("bias", bias)
        self.bias = Param([c_out], initializer, fan_in=fan_in, fan_out=bias_fan_out) if has_bias else None
        self.stride = _constant(_sizes("stride", stride, axes))
        self.kernel_size = _constant(kernel)
        self.dilation = _constant(_sizes("dilation", dilation, axes))


class Conv1d(_Convolution):
    """A convolution over one axis; the only convolution that takes its channels as two arguments.

    >>> from burnstore import nn
    >>> nn.Conv1d(4, 8, 3, groups=2).weight.shape
    (8, 2, 3)
    """

    def __init__(
        self, channels_in: int, channels_out: int, kernel_size: int, *, stride: int = 1, dilation: int = 1,
        groups: int = 1, padding: Padding = "Valid", bias: bool = True, initializer: Initializer = KAIMING,
    ) -> None:  # fmt: skip
        channels = extent("channels_in", channels_in), extent("channels_out", channels_out)
        self.groups = extent("groups", groups)
        super().__init__(1, channels, kernel_size, stride, dilation, self.groups, bias, initializer)
        self.padding = padding_of(padding, [kernel_size])


class Conv2d(_Convolution):
    """A convolution over height and width.

    >>> from burnstore import nn
    >>> nn.Conv2d([3, 8], [5, 5], padding="Same").weight.shape
    (8, 3, 5, 5)
    """

    def __init__(
        self, channels: Sequence[int], kernel_size: Sequence[int], *, stride: Sequence[int] = (1, 1),
        dilation: Sequence[int] = (1, 1), groups: int = 1, padding: Padding = "Valid", bias: bool = True,
        initializer: Initializer = KAIMING,
    ) -> None:  # fmt: skip
        channels, self.groups = _in_out(channels), extent("groups", groups)
        super().__init__(2, channels, kernel_size, stride, dilation, self.groups, bias, initializer)
        self.padding = padding_of(padding, kernel_size)


class Conv3d(_Convolution):
    """A convolution over depth, height and width; padding ``Same`` needs odd kernel sizes."""

    def __init__(
        self, channels: Sequence[int], kernel_size: Sequence[int], *, stride: Sequence[int] = (1, 1, 1),
        dilation: Sequence[int] = (1, 1, 1), groups: int = 1, padding: Padding = "Valid", bias: bool = True,
        initializer: Initializer = KAIMING,
    ) -> None:  # fmt: skip
        channels, self.groups = _in_out(channels), extent("groups", groups)
        super().__init__(3, channels, kernel_size, stride, dilation, self.groups, bias, initializer)
        self.padding = padding_of(padding, kernel_size, odd_for_same=True)


class DeformConv2d(_Convolution):
    """A deformable convolution over height and width; ``offset_groups`` changes no shape."""

    def __init__(
        self, channels: Sequence[int], kernel_size: Sequence[int], *, stride: Sequence[int] = (1, 1),
        dilation: Sequence[int] = (1, 1), weight_groups: int = 1, offset_groups: int = 1, padding: Padding = "Valid",
        bias: bool = True, initializer: Initializer = KAIMING,
    ) -> None:  # fmt: skip
        channels, self.weight_groups = _in_out(channels), extent("weight_groups", weight_groups)
        self.offset_groups = extent("offset_groups", offset_groups)
        super().__init__(2, channels, kernel_size, stride, dilation, self.weight_groups, bias, initializer)
        check_divisible("channels in", channels[0], "offset_groups", self.offset_groups)
        self.padding = padding_of(padding, kernel_size, odd_for_same=True)


class _Transposed(_Convolution):
    """The constants that only transposed convolutions have."""

    def _build(
        self,
        axes: int,
        channels: Sequence[int],
        sizes: tuple[_Size, _Size, _Size],
        groups: int,
        paddings: tuple[_Size, _Size],
        bias: bool,
        initializer: Initializer,
    ) -> None:
        self.channels, self.groups = _in_out(channels), extent("groups", groups)
        super().__init__(axes, self.channels, *sizes, self.groups, bias, initializer, transposed=True)
        self.padding = _constant(_sizes("padding", paddings[0], axes))
        self.padding_out = _constant(_sizes("padding_out", paddings[1], axes))


class ConvTranspose1d(_Transposed):
    """A transposed convolution over one axis; channels are ``[in, out]``, padding is an integer.

    >>> from burnstore import nn
    >>> nn.ConvTranspose1d([4, 8], 3, groups=2).weight.shape
    (4, 4, 3)
    """

    def __init__(
        self, channels: Sequence[int], kernel_size: int, *, stride: int = 1, dilation: int = 1, groups: int = 1,
        padding: int = 0, padding_out: int = 0, bias: bool = True, initializer: Initializer = KAIMING,
    ) -> None:  # fmt: skip
        sizes = kernel_size, stride, dilation
        self._build(1, channels, sizes, groups, (padding, padding_out), bias, initializer)


class ConvTranspose2d(_Transposed):
    """A transposed convolution over height and width."""

    def __init__(
        self, channels: Sequence[int], kernel_size: Sequence[int], *, stride: Sequence[int] = (1, 1),
        dilation: Sequence[int] = (1, 1), groups: int = 1, padding: Sequence[int] = (0, 0),
        padding_out: Sequence[int] = (0, 0), bias: bool = True, initializer: Initializer = KAIMING,
    ) -> None:  # fmt: skip
        sizes = kernel_size, stride, dilation
        self._build(2, channels, sizes, groups, (padding, padding_out), bias, initializer)


class ConvTranspose3d(_Transposed):
    """A transposed convolution over depth, height and width."""

    def __init__(
        self, channels: Sequence[int], kernel_size: Sequence[int], *, stride: Sequence[int] = (1, 1, 1),
        dilation: Sequence[int] = (1, 1, 1), groups: int = 1, padding: Sequence[int] = (0, 0, 0),
        padding_out: Sequence[int] = (0, 0, 0), bias: bool = True, initializer: Initializer = KAIMING,
    ) -> None:  # fmt: skip
        sizes = kernel_size, stride, dilation
        self._build(3, channels, sizes, groups, (padding, padding_out), bias, initializer)


def _in_out(channels: Sequence[int]) -> tuple[int, ...]:
    return extents("channels", channels, "in, out")


def _sizes(name: str, value: _Size, axes: int) -> tuple[int, ...]:
    return (extent(name, value),) if axes == 1 else extents(name, value, _AXES[axes])


def _constant(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    return sizes[0] if len(sizes) == 1 else sizes
