"""Modules without parameters: they add nothing to a file, and keep their constructor words as attributes.

Declare them where the Burn model has them, or leave them out: paths and order stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from .module import Module
from .words import extent


@dataclass(eq=False)
class Identity(Module):
    """Gives back what it gets."""


@dataclass(eq=False)
class Dropout(Module):
    """Sets elements to zero at random while training."""

    prob: float

    def __post_init__(self) -> None:
        if not 0 <= self.prob < 1:
            raise ValueError(f"prob is at least 0 and below 1, not {self.prob}")


@dataclass(eq=False)
class GaussianNoise(Module):
    """Adds noise while training."""

    std: float

    def __post_init__(self) -> None:
        if not self.std >= 0:
            raise ValueError(f"std is not negative, not {self.std}")


@dataclass(eq=False)
class PositionalEncoding(Module):
    """Sinusoids added to embeddings; Burn computes them and never stores them."""

    d_model: int
    _: KW_ONLY
    max_sequence_size: int = 5000
    max_timescale: int = 10000

    def __post_init__(self) -> None:
        _even("d_model", self.d_model)
        if self.max_timescale < self.max_sequence_size:
            raise ValueError(
                f"max_timescale ({self.max_timescale}) is at least max_sequence_size ({self.max_sequence_size})"
            )


@dataclass(eq=False)
class RotaryEncoding(Module):
    """Rotations of queries and keys; Burn computes them and never stores them."""

    max_sequence_length: int
    d_model: int
    _: KW_ONLY
    theta: float = 10000.0

    def __post_init__(self) -> None:
        _even("d_model", self.d_model)
        if not self.theta > 0:
            raise ValueError(f"theta is above 0, not {self.theta}")


@dataclass(eq=False, kw_only=True)
class Interpolate1d(Module):
    """Resizes one axis to ``output_size`` or by ``scale_factor``."""

    output_size: int | None = None
    scale_factor: float | None = None
    mode: str = "Nearest"
    align_corners: bool = True


@dataclass(eq=False, kw_only=True)
class Interpolate2d(Module):
    """Resizes height and width to ``output_size`` or by ``scale_factor``."""

    output_size: Sequence[int] | None = None
    scale_factor: Sequence[float] | None = None
    mode: str = "Nearest"
    align_corners: bool = True


@dataclass(eq=False)
class Unfold4d(Module):
    """Takes sliding blocks out of a tensor of four axes."""

    kernel_size: Sequence[int]
    _: KW_ONLY
    stride: Sequence[int] = (1, 1)
    dilation: Sequence[int] = (1, 1)
    padding: Sequence[int] = (0, 0)


@dataclass(eq=False)
class Fold4d(Module):
    """Puts sliding blocks together into a tensor of four axes."""

    output_size: Sequence[int]
    kernel_size: Sequence[int]
    _: KW_ONLY
    stride: Sequence[int] = (1, 1)
    dilation: Sequence[int] = (1, 1)
    padding: Sequence[int] = (0, 0)


@dataclass(eq=False)
class PixelShuffle(Module):
    """Moves channels into height and width."""

    upscale_factor: int


@dataclass(eq=False)
class PixelUnshuffle(Module):
    """Moves height and width into channels."""

    downscale_factor: int


@dataclass(eq=False, kw_only=True)
class CosineSimilarity(Module):
    """The cosine between two tensors along an axis."""

    dim: int = 1
    eps: float = 1e-8


@dataclass(eq=False, kw_only=True)
class PairwiseDistance(Module):
    """The distance between the rows of two tensors."""

    p: float = 2.0
    eps: float = 1e-6


def _even(name: str, value: int) -> None:
    if extent(name, value) % 2:
        raise ValueError(f"{name} is even, not {value}")
