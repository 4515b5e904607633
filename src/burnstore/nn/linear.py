"""Linear and Embedding."""

from __future__ import annotations

from typing import Literal

from .initializer import Initializer, KaimingUniform, Normal
from .module import Module
from .param import Param
from .words import extent, flag

LinearLayout = Literal["Row", "Col"]

_STANDARD_NORMAL = Normal(0.0, 1.0)
KAIMING = KaimingUniform()
"""What Burn fills most layers with; on a fan_in f it is uniform on [-1/√f, 1/√f)."""


class Linear(Module):
    """A linear layer; the weight is ``[d_input, d_output]``, the transpose of PyTorch's.

    With ``layout="Col"`` Burn keeps the weight in the file as ``[d_output, d_input]``, under the same names, and
    transposes it as it loads: that stored form is what the parameter has here, and ``weight.transposed`` is true.

    >>> from burnstore import nn
    >>> nn.Linear(3, 5).weight.shape, nn.Linear(3, 5, layout="Col").weight.shape
    ((3, 5), (5, 3))
    """

    def __init__(
        self,
        d_input: int,
        d_output: int,
        *,
        bias: bool = True,
        initializer: Initializer = KAIMING,
        layout: LinearLayout = "Row",
    ) -> None:
        d_input, d_output = extent("d_input", d_input), extent("d_output", d_output)
        if layout not in ("Row", "Col"):
            raise ValueError(f"layout is 'Row' or 'Col', not {layout!r}")
        if layout == "Row":
            self.weight = Param([d_input, d_output], initializer, fan_in=d_input, fan_out=d_output)
        else:  # Burn draws this one with the fans the other way round
            self.weight = Param([d_output, d_input], initializer, fan_in=d_output, fan_out=d_input, transposed=True)
        self.bias = Param([d_output], initializer, fan_in=d_input, fan_out=d_output) if flag("bias", bias) else None
        self.layout = layout


class Embedding(Module):
    """A table of ``n_embedding`` vectors; an initializer that needs fans finds none here."""

    def __init__(self, n_embedding: int, d_model: int, *, initializer: Initializer = _STANDARD_NORMAL) -> None:
        self.weight = Param([extent("n_embedding", n_embedding), extent("d_model", d_model)], initializer)
