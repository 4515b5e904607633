"""Normalizations: ``gamma`` and ``beta`` are PyTorch's ``weight`` and ``bias``."""

from __future__ import annotations

from .arguments import check_divisible, extent, flag, positive
from .initializer import Ones, Zeros
from .module import Enum, Module, variant
from .param import Param, RunningState
from .parameterless import Identity

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "Normalization", "RmsNorm"]


class BatchNorm(Module):
    """A batch normalization of any number of axes; its running statistics are stored right after ``beta``.

    >>> from burnstore import nn
    >>> nn.BatchNorm(3).num_params()
    12
    """

    def __init__(self, num_features: int, *, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        num_features = extent("num_features", num_features, least=1)
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must be between 0 and 1, got {momentum}")
        self.gamma = Param([num_features], Ones())
        self.beta = Param([num_features], Zeros())
        self.running_mean = RunningState([num_features], Zeros())
        self.running_var = RunningState([num_features], Ones())
        self.momentum = float(momentum)
        self.epsilon = positive("epsilon", epsilon)


class LayerNorm(Module):
    """A normalization over the last axis.

    Burn 0.19 has no ``bias`` argument: it always stores ``beta``, as the default does here.
    """

    def __init__(self, d_model: int, *, epsilon: float = 1e-5, bias: bool = True) -> None:
        d_model = extent("d_model", d_model)
        self.gamma = Param([d_model], Ones())
        self.beta = Param([d_model], Zeros()) if flag("bias", bias) else None
        self.epsilon = float(epsilon)


class _ChannelNorm(Module):
    """The parameters of a normalization of channels: ``gamma`` and ``beta``, if ``affine``."""

    def __init__(self, num_channels: int, epsilon: float, affine: bool) -> None:
        self.num_channels = extent("num_channels", num_channels)
        self.affine = flag("affine", affine)
        self.gamma = Param([self.num_channels], Ones()) if self.affine else None
        self.beta = Param([self.num_channels], Zeros()) if self.affine else None
        self.epsilon = float(epsilon)


class GroupNorm(_ChannelNorm):
    """A normalization over groups of channels; it has ``gamma`` and ``beta`` if ``affine``."""

    def __init__(self, num_groups: int, num_channels: int, *, epsilon: float = 1e-5, affine: bool = True) -> None:
        super().__init__(num_channels, epsilon, affine)
        self.num_groups = extent("num_groups", num_groups)
        check_divisible("num_channels", self.num_channels, "num_groups", self.num_groups)


class InstanceNorm(_ChannelNorm):
    """A normalization of each channel; affine by default, unlike PyTorch's, and without statistics."""

    def __init__(self, num_channels: int, *, epsilon: float = 1e-5, affine: bool = True) -> None:
        super().__init__(num_channels, epsilon, affine)


class RmsNorm(Module):
    """A normalization over the last axis by its root mean square."""

    def __init__(self, d_model: int, *, epsilon: float = 1e-5) -> None:
        if not epsilon > 0:
            raise ValueError(f"epsilon must be above 0, got {epsilon}")
        self.gamma = Param([extent("d_model", d_model)], Ones())
        self.epsilon = float(epsilon)


class Normalization(Enum):
    """Any of the normalizations; the names of the variants are not those of the layers.

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
