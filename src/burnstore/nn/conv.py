"""Convolutions; as in PyTorch, weights are ``[out, in/groups, ...]``, transposed ones ``[in, out/groups, ...]``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .initializer import Initializer
from .linear import KAIMING
from .module import Module
from .param import Param
from .words import Padding, checked_padding, divisible, extent, extents, flag

_AXES = {1: "length", 2: "height, width", 3: "depth, height, width"}
_Size = int | Sequence[int]


class _Convolution(Module):
    """The parameters and constants that all convolutions have."""

    def __init__(
        self,
        axes: int,
        channels: Sequence[int],
        kernel_size: _Size,
        stride: _Size,
        dilation: _Size,
        groups: int,
        bias: bool,
        initializer: Initializer,
        *,
        transposed: bool = False,
    ) -> None:
        (c_in, c_out), kernel = channels, _sizes("kernel_size", kernel_size, axes)
        divisible("channels in", c_in, "groups", groups)
        divisible("channels out", c_out, "groups", groups)
        first, second = (c_in, c_out) if transposed else (c_out, c_in)
        fan_in = second // groups * math.prod(kernel)
        # Burn passes no fan_out to transposed convolutions nor to the bias of Conv1d, so Xavier fails on them.
        fan_out = None if transposed else first // groups * math.prod(kernel)
        self.weight = Param([first, second // groups, *kernel], initializer, fan_in=fan_in, fan_out=fan_out)
        self.bias = (
            Param([c_out], initializer, fan_in=fan_in, fan_out=None if axes == 1 else fan_out)
            if flag("bias", bias)
            else None
        )
        self.stride = _constant(_sizes("stride", stride, axes))
        self.kernel_size = _constant(kernel)
        self.dilation = _constant(_sizes("dilation", dilation, axes))


class Conv1d(_Convolution):
    """A convolution over one axis; alone among the convolutions it takes its channels as two words.

    >>> from burnstore import nn
    >>> nn.Conv1d(4, 8, 3, groups=2).weight.shape
    (8, 2, 3)
    """

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel_size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        padding: Padding = "Valid",
        bias: bool = True,
        initializer: Initializer = KAIMING,
    ) -> None:
        channels = extent("channels_in", channels_in), extent("channels_out", channels_out)
        groups = extent("groups", groups)
        super().__init__(1, channels, kernel_size, stride, dilation, groups, bias, initializer)
        self.groups = groups
        self.padding = checked_padding(padding, [kernel_size])


class Conv2d(_Convolution):
    """A convolution over height and width.

    >>> from burnstore import nn
    >>> nn.Conv2d([3, 8], [5, 5], padding="Same").weight.shape
    (8, 3, 5, 5)
    """

    def __init__(
        self,
        channels: Sequence[int],
        kernel_size: Sequence[int],
        *,
        stride: Sequence[int] = (1, 1),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        padding: Padding = "Valid",
        bias: bool = True,
        initializer: Initializer = KAIMING,
    ) -> None:
        channels, groups = _in_out(channels), extent("groups", groups)
        super().__init__(2, channels, kernel_size, stride, dilation, groups, bias, initializer)
        self.groups = groups
        self.padding = checked_padding(padding, kernel_size)


class Conv3d(_Convolution):
    """A convolution over depth, height and width; padding ``Same`` needs odd kernel sizes."""

    def __init__(
        self,
        channels: Sequence[int],
        kernel_size: Sequence[int],
        *,
        stride: Sequence[int] = (1, 1, 1),
        dilation: Sequence[int] = (1, 1, 1),
        groups: int = 1,
        padding: Padding = "Valid",
        bias: bool = True,
        initializer: Initializer = KAIMING,
    ) -> None:
        channels, groups = _in_out(channels), extent("groups", groups)
        super().__init__(3, channels, kernel_size, stride, dilation, groups, bias, initializer)
        self.groups = groups
        self.padding = checked_padding(padding, kernel_size, odd_for_same=True)


class DeformConv2d(_Convolution):
    """A deformable convolution over height and width; ``offset_groups`` changes no shape."""

    def __init__(
        self,
        channels: Sequence[int],
        kernel_size: Sequence[int],
        *,
        stride: Sequence[int] = (1, 1),
        dilation: Sequence[int] = (1, 1),
        weight_groups: int = 1,
        offset_groups: int = 1,
        padding: Padding = "Valid",
        bias: bool = True,
        initializer: Initializer = KAIMING,
    ) -> None:
        channels = _in_out(channels)
        weight_groups, offset_groups = extent("weight_groups", weight_groups), extent("offset_groups", offset_groups)
        super().__init__(2, channels, kernel_size, stride, dilation, weight_groups, bias, initializer)
        divisible("channels in", channels[0], "offset_groups", offset_groups)
        self.weight_groups = weight_groups
        self.offset_groups = offset_groups
        self.padding = checked_padding(padding, kernel_size, odd_for_same=True)


class ConvTranspose1d(_Convolution):
    """A transposed convolution over one axis; channels are ``[in, out]``, padding is a plain integer.

    >>> from burnstore import nn
    >>> nn.ConvTranspose1d([4, 8], 3, groups=2).weight.shape
    (4, 4, 3)
    """

    def __init__(
        self,
        channels: Sequence[int],
        kernel_size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        padding: int = 0,
        padding_out: int = 0,
        bias: bool = True,
        initializer: Initializer = KAIMING,
    ) -> None:
        channels, groups = _in_out(channels), extent("groups", groups)
        super().__init__(1, channels, kernel_size, stride, dilation, groups, bias, initializer, transposed=True)
        self.groups = groups
        self.padding = extent("padding", padding)
        self.padding_out = extent("padding_out", padding_out)
        self.channels = channels


class ConvTranspose2d(_Convolution):
    """A transposed convolution over height and width."""

    def __init__(
        self,
        channels: Sequence[int],
        kernel_size: Sequence[int],
        *,
        stride: Sequence[int] = (1, 1),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        padding: Sequence[int] = (0, 0),
        padding_out: Sequence[int] = (0, 0),
        bias: bool = True,
        initializer: Initializer = KAIMING,
    ) -> None:
        channels, groups = _in_out(channels), extent("groups", groups)
        super().__init__(2, channels, kernel_size, stride, dilation, groups, bias, initializer, transposed=True)
        self.groups = groups
        self.padding = extents("padding", padding, _AXES[2])
        self.padding_out = extents("padding_out", padding_out, _AXES[2])
        self.channels = channels


class ConvTranspose3d(_Convolution):
    """A transposed convolution over depth, height and width."""

    def __init__(
        self,
        channels: Sequence[int],
        kernel_size: Sequence[int],
        *,
        stride: Sequence[int] = (1, 1, 1),
        dilation: Sequence[int] = (1, 1, 1),
        groups: int = 1,
        padding: Sequence[int] = (0, 0, 0),
        padding_out: Sequence[int] = (0, 0, 0),
        bias: bool = True,
        initializer: Initializer = KAIMING,
    ) -> None:
        channels, groups = _in_out(channels), extent("groups", groups)
        super().__init__(3, channels, kernel_size, stride, dilation, groups, bias, initializer, transposed=True)
        self.groups = groups
        self.padding = extents("padding", padding, _AXES[3])
        self.padding_out = extents("padding_out", padding_out, _AXES[3])
        self.channels = channels


def _in_out(channels: Sequence[int]) -> tuple[int, ...]:
    return extents("channels", channels, "in, out")


def _sizes(name: str, value: _Size, axes: int) -> tuple[int, ...]:
    return (extent(name, value),) if axes == 1 else extents(name, value, _AXES[axes])


def _constant(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    return sizes[0] if len(sizes) == 1 else sizes
