"""Linear and Embedding."""

from __future__ import annotations

from typing import Literal

from .arguments import extent, flag
from .initializer import KAIMING, Initializer, Normal
from .module import Module
from .param import Param

__all__ = ["Embedding", "Linear"]

LinearLayout = Literal["Row", "Col"]
_STANDARD_NORMAL = Normal(0.0, 1.0)


class Linear(Module):
    """A linear layer; the weight is ``[d_input, d_output]``, the transpose of PyTorch's.

    With ``layout="Col"`` Burn keeps the weight in the file as ``[d_output, d_input]``, under the same names, and
    transposes it on loading. The parameter here has the stored form, and ``weight.transposed`` is true.

    >>> from burnstore import nn
    >>> nn.Linear(3, 5).weight.shape, nn.Linear(3, 5, layout="Col").weight.shape
    ((3, 5), (5, 3))
    """

    def __init__(
        self, d_input: int, d_output: int, *, bias: bool = True, initializer: Initializer = KAIMING,
        layout: LinearLayout = "Row",
    ) -> None:  # fmt: skip
        d_input, d_output = extent("d_input", d_input), extent("d_output", d_output)
        if layout not in ("Row", "Col"):
            raise ValueError(f"layout must be 'Row' or 'Col', got {layout!r}")
        # Burn draws the weight of a column layout with its fans swapped, as they are in the stored shape.
        first, second = (d_input, d_output) if layout == "Row" else (d_output, d_input)
        self.weight = Param([first, second], initializer, fan_in=first, fan_out=second, transposed=layout == "Col")
        self.bias = Param([d_output], initializer, fan_in=d_input, fan_out=d_output) if flag("bias", bias) else None
        self.layout = layout


class Embedding(Module):
    """A table of ``n_embedding`` vectors; it has no fans for an initializer that needs them."""

    def __init__(self, n_embedding: int, d_model: int, *, initializer: Initializer = _STANDARD_NORMAL) -> None:
        self.weight = Param([extent("n_embedding", n_embedding), extent("d_model", d_model)], initializer)
