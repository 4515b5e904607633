"""Activations, most of them without parameters, and the enum that holds any of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import parameterless
from .initializer import Constant, Initializer
from .linear import KAIMING, Linear, LinearLayout
from .module import Enum, Module, fresh, variant
from .param import Param
from .words import extent


@dataclass(eq=False, kw_only=True)
class Gelu(Module):
    """Gaussian error linear unit; the approximate one is Burn's config ``GeluApproximate``."""

    approximate: bool = False


@dataclass(eq=False)
class Relu(Module):
    """Rectified linear unit."""


@dataclass(eq=False, kw_only=True)
class LeakyRelu(Module):
    """Rectified linear unit with a slope below zero."""

    negative_slope: float = 0.01


@dataclass(eq=False)
class Selu(Module):
    """Scaled exponential linear unit."""


@dataclass(eq=False)
class Sigmoid(Module):
    """Logistic function."""


@dataclass(eq=False)
class Tanh(Module):
    """Hyperbolic tangent."""


@dataclass(eq=False, kw_only=True)
class HardSigmoid(Module):
    """Logistic function made of straight lines."""

    alpha: float = 0.2
    beta: float = 0.5


@dataclass(eq=False)
class HardSwish(Module):
    """Swish made of a hard sigmoid."""


@dataclass(eq=False, kw_only=True)
class Softplus(Module):
    """Smooth rectified linear unit."""

    beta: float = 1.0


@dataclass(eq=False)
class Softsign(Module):
    """x / (1 + \\|x\\|)."""


@dataclass(eq=False, kw_only=True)
class Elu(Module):
    """Exponential linear unit."""

    alpha: float = 1.0


@dataclass(eq=False, kw_only=True)
class Celu(Module):
    """Continuously differentiable exponential linear unit."""

    alpha: float = 1.0


@dataclass(eq=False, kw_only=True)
class ThresholdedRelu(Module):
    """Zero up to ``alpha``."""

    alpha: float = 1.0


@dataclass(eq=False, kw_only=True)
class HardShrink(Module):
    """Zero between -lambda and lambda (Burn's word is ``lambda``)."""

    lambda_: float = 0.5


@dataclass(eq=False, kw_only=True)
class SoftShrink(Module):
    """Zero between -lambda and lambda, moved towards zero outside."""

    lambda_: float = 0.5


@dataclass(eq=False, kw_only=True)
class Shrink(Module):
    """Zero between -lambda and lambda, moved by ``bias`` outside."""

    lambda_: float = 0.5
    bias: float = 0.5


@dataclass(eq=False)
class GLU(Module):
    """Gated linear unit along an axis."""

    dim: int


@dataclass(eq=False, kw_only=True)
class Hardtanh(Module):
    """Values held between two bounds."""

    min_val: float = -1.0
    max_val: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.min_val) and math.isfinite(self.max_val) and self.min_val <= self.max_val):
            raise ValueError(f"min_val and max_val are finite and in order, not {self.min_val} and {self.max_val}")


@dataclass(eq=False)
class LogSigmoid(Module):
    """Logarithm of the logistic function."""


@dataclass(eq=False)
class Mish(Module):
    """x · tanh(softplus(x))."""


@dataclass(eq=False)
class Relu6(Module):
    """Rectified linear unit that ends at 6."""


@dataclass(eq=False, kw_only=True)
class RRelu(Module):
    """Leaky rectified linear unit with a random slope while training."""

    lower: float = 1 / 8
    upper: float = 1 / 3

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:
            raise ValueError(f"lower ({self.lower}) is not above upper ({self.upper})")


@dataclass(eq=False)
class SiLU(Module):
    """x · sigmoid(x)."""


@dataclass(eq=False)
class Tanhshrink(Module):
    """x - tanh(x)."""


@dataclass(eq=False)
class Threshold(Module):
    """``value`` up to ``threshold``."""

    threshold: float
    value: float


class PRelu(Module):
    """A rectified linear unit whose slope is learned; PyTorch calls the parameter ``weight``.

    >>> from burnstore import nn
    >>> nn.PRelu(num_parameters=2).alpha.value.tolist()
    [0.25, 0.25]
    """

    def __init__(self, *, num_parameters: int = 1, alpha: float = 0.25) -> None:
        self.alpha = Param([extent("num_parameters", num_parameters)], Constant(float(alpha)))
        self.alpha_value = float(alpha)


class SwiGlu(Module):
    """A gated linear unit of two linear layers that both map the input to the output; no bias by default."""

    def __init__(
        self,
        d_input: int,
        d_output: int,
        *,
        bias: bool = False,
        initializer: Initializer = KAIMING,
        layout: LinearLayout = "Row",
    ) -> None:
        self.linear_inner = Linear(d_input, d_output, bias=bias, initializer=initializer, layout=layout)
        self.linear_outer = Linear(d_input, d_output, bias=bias, initializer=initializer, layout=layout)


class Activation(Enum):
    """Any of the activations that other layers take; only PRelu and SwiGlu hold parameters.

    >>> from burnstore import nn
    >>> nn.Activation.build("Gelu").variant, nn.Activation.build(nn.PRelu()).variant
    ('Gelu', 'PRelu')
    """

    Identity = variant(parameterless.Identity)
    Gelu = variant(Gelu)
    PRelu = variant(PRelu)
    Relu = variant(Relu)
    LeakyRelu = variant(LeakyRelu)
    SwiGlu = variant(SwiGlu)
    Selu = variant(Selu)
    Sigmoid = variant(Sigmoid)
    Tanh = variant(Tanh)
    HardSigmoid = variant(HardSigmoid)
    HardSwish = variant(HardSwish)
    Softplus = variant(Softplus)
    Softsign = variant(Softsign)
    Elu = variant(Elu)
    Celu = variant(Celu)
    ThresholdedRelu = variant(ThresholdedRelu)
    HardShrink = variant(HardShrink)
    SoftShrink = variant(SoftShrink)
    Shrink = variant(Shrink)

    @classmethod
    def build(cls, choice: ActivationChoice) -> Activation:
        """The activation that a layer's word asks for: a name, an activation layer, or an `Activation`.

        A layer or `Activation` is a pattern, as a config is in Burn: every use of it gets parameters of its own.
        """
        if isinstance(choice, Activation):
            return fresh(choice)
        if isinstance(choice, Module):
            return fresh(cls.of(choice))
        if choice == "GeluApproximate":
            return cls("Gelu", Gelu(approximate=True))
        kind = cls.variants().get(choice)
        if kind is None or kind.payload_type is None:
            known = ", ".join(["GeluApproximate", *cls.variants()])
            raise ValueError(f"{choice!r} is not an activation; one of {known}")
        if kind.payload_type is SwiGlu:
            raise ValueError("SwiGlu needs its sizes; give SwiGlu(d_input, d_output)")
        return cls(choice, kind.payload_type())


ActivationChoice = str | Module | Activation
"""What a layer takes as an activation: a name such as ``"Gelu"``, a layer such as ``PRelu()``, or an `Activation`."""
