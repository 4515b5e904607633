"""Normalisations: ``gamma`` and ``beta`` where PyTorch says ``weight`` and ``bias``."""

from __future__ import annotations

from .initializer import Ones, Zeros
from .module import Enum, Module, variant
from .param import Param, RunningState
from .parameterless import Identity
from .words import divisible, extent, flag, positive


class BatchNorm(Module):
    """A batch normalisation of any number of axes; its running statistics are stored right after ``beta``.

    >>> from burnstore import nn
    >>> nn.BatchNorm(3).num_params()
    12
    """

    def __init__(self, num_features: int, *, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        num_features = extent("num_features", num_features, least=1)
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum is between 0 and 1, not {momentum}")
        self.gamma = Param([num_features], Ones())
        self.beta = Param([num_features], Zeros())
        self.running_mean = RunningState([num_features], Zeros())
        self.running_var = RunningState([num_features], Ones())
        self.momentum = float(momentum)
        self.epsilon = positive("epsilon", epsilon)


class LayerNorm(Module):
    """A normalisation over the last axis.

    Burn 0.19 has no ``bias`` word: there ``beta`` is always stored, as it is here by default.
    """

    def __init__(self, d_model: int, *, epsilon: float = 1e-5, bias: bool = True) -> None:
        d_model = extent("d_model", d_model)
        self.gamma = Param([d_model], Ones())
        self.beta = Param([d_model], Zeros()) if flag("bias", bias) else None
        self.epsilon = float(epsilon)


class GroupNorm(Module):
    """A normalisation over groups of channels; ``gamma`` and ``beta`` are there if ``affine``."""

    def __init__(self, num_groups: int, num_channels: int, *, epsilon: float = 1e-5, affine: bool = True) -> None:
        num_groups, num_channels = extent("num_groups", num_groups), extent("num_channels", num_channels)
        divisible("num_channels", num_channels, "num_groups", num_groups)
        self.gamma = Param([num_channels], Ones()) if flag("affine", affine) else None
        self.beta = Param([num_channels], Zeros()) if affine else None
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.epsilon = float(epsilon)
        self.affine = affine


class InstanceNorm(Module):
    """A normalisation of each channel by itself; affine by default, unlike PyTorch's, and without statistics."""

    def __init__(self, num_channels: int, *, epsilon: float = 1e-5, affine: bool = True) -> None:
        num_channels = extent("num_channels", num_channels)
        self.gamma = Param([num_channels], Ones()) if flag("affine", affine) else None
        self.beta = Param([num_channels], Zeros()) if affine else None
        self.num_channels = num_channels
        self.epsilon = float(epsilon)
        self.affine = affine


class RmsNorm(Module):
    """A normalisation over the last axis by its root mean square."""

    def __init__(self, d_model: int, *, epsilon: float = 1e-5) -> None:
        if not epsilon > 0:
            raise ValueError(f"epsilon is above 0, not {epsilon}")
        self.gamma = Param([extent("d_model", d_model)], Ones())
        self.epsilon = float(epsilon)


class LocalResponseNorm(Module):
    """A normalisation over neighbouring channels: four numbers and no parameters (``beta`` is a number here)."""

    def __init__(self, size: int, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        self.size = extent("size", size)
        self.alpha = float(alpha)
        self.beta = float(beta)
        self.k = float(k)


class Normalization(Enum):
    """Any of the normalisations; the names of the variants are not those of the layers.

    >>> from burnstore import nn
    >>> nn.Normalization.of(nn.LayerNorm(4)).variant
    'Layer'
    """

    Identity = variant(Identity)
    Batch = variant(BatchNorm)
    Group = variant(GroupNorm)
    Instance = variant(InstanceNorm)
    Layer = variant(LayerNorm)
    Rms = variant(RmsNorm)
