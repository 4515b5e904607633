"""Activations with parameters, and the enum of every activation that other layers take."""

from __future__ import annotations

from . import parameterless
from .arguments import extent
from .initializer import KAIMING, Constant, Initializer
from .linear import Linear, LinearLayout
from .module import Enum, Module, fresh, variant
from .param import Param

__all__ = ["Activation", "PRelu", "SwiGlu"]


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
        self, d_input: int, d_output: int, *, bias: bool = False, initializer: Initializer = KAIMING,
        layout: LinearLayout = "Row",
    ) -> None:  # fmt: skip
        self.linear_inner = Linear(d_input, d_output, bias=bias, initializer=initializer, layout=layout)
        self.linear_outer = Linear(d_input, d_output, bias=bias, initializer=initializer, layout=layout)


class Activation(Enum):
    """Any of the activations that other layers take; only PRelu and SwiGlu have parameters.

    >>> from burnstore import nn
    >>> nn.Activation.build("Gelu").variant, nn.Activation.build(nn.PRelu()).variant
    ('Gelu', 'PRelu')
    """

    Identity = variant(parameterless.Identity)
    Gelu = variant(parameterless.Gelu)
    PRelu = variant(PRelu)
    Relu = variant(parameterless.Relu)
    LeakyRelu = variant(parameterless.LeakyRelu)
    SwiGlu = variant(SwiGlu)
    Selu = variant(parameterless.Selu)
    Sigmoid = variant(parameterless.Sigmoid)
    Tanh = variant(parameterless.Tanh)
    HardSigmoid = variant(parameterless.HardSigmoid)
    HardSwish = variant(parameterless.HardSwish)
    Softplus = variant(parameterless.Softplus)
    Softsign = variant(parameterless.Softsign)
    Elu = variant(parameterless.Elu)
    Celu = variant(parameterless.Celu)
    ThresholdedRelu = variant(parameterless.ThresholdedRelu)
    HardShrink = variant(parameterless.HardShrink)
    SoftShrink = variant(parameterless.SoftShrink)
    Shrink = variant(parameterless.Shrink)

    @classmethod
    def build(cls, choice: ActivationChoice) -> Activation:
        """Make the activation that a layer's argument names.

        A layer or `Activation` is a pattern, as a config is in Burn: each use of it gets parameters of its own.
        """
        if isinstance(choice, Module):
            choice = cls.of(choice)
        if isinstance(choice, Activation):
            return fresh(choice)
        if choice == "GeluApproximate":
            return cls("Gelu", parameterless.Gelu(approximate=True))
        kind = cls.variants().get(choice)
        if kind is None or kind.payload_type is None:
            known = ", ".join(["GeluApproximate", *cls.variants()])
            raise ValueError(f"{choice!r} is not an activation; expected one of {known}")
        if kind.payload_type is SwiGlu:
            raise ValueError("SwiGlu needs its sizes; pass SwiGlu(d_input, d_output)")
        return cls(choice, kind.payload_type())


ActivationChoice = str | Module | Activation
"""What a layer takes as an activation: a name such as ``"Gelu"``, a layer such as ``PRelu()``, or an `Activation`."""
