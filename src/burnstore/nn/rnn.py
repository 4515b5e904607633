"""Recurrent layers: one `GateController` per gate, where PyTorch concatenates the gates.

Burn's order of gates is not PyTorch's (LSTM: input, forget, output, cell; GRU: update, reset, new). There is one layer
only: no ``num_layers``, no projection; ``bias`` is required.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .activation import Activation, ActivationChoice
from .arguments import BURN_VERSION, flag, minor_version
from .initializer import Initializer, XavierNormal
from .linear import Linear
from .module import Module

__all__ = ["BiGru", "BiLstm", "BiRnn", "GateController", "Gru", "Lstm", "Rnn"]

_XAVIER = XavierNormal(gain=1.0)


class GateController(Module):
    """One gate: a linear layer for the input and one for the hidden state, each with its own bias."""

    def __init__(self, d_input: int, d_output: int, bias: bool, initializer: Initializer) -> None:
        self.input_transform = Linear(d_input, d_output, bias=bias, initializer=initializer)
        self.hidden_transform = Linear(d_output, d_output, bias=bias, initializer=initializer)


class _Bidirectional(Module):
    """Two layers, one for each direction."""

    def __init__(self, direction: Callable[[], Module], d_hidden: int, batch_first: bool) -> None:
        self.forward: Any = direction()
        self.reverse: Any = direction()
        self.d_hidden = d_hidden
        self.batch_first = flag("batch_first", batch_first)


class Rnn(Module):
    """A plain recurrent layer (since Burn 0.21)."""

    def __init__(
        self, d_input: int, d_hidden: int, bias: bool, *, initializer: Initializer = _XAVIER,
        batch_first: bool = True, reverse: bool = False, clip: float | None = None,
        hidden_activation: ActivationChoice = "Tanh",
    ) -> None:  # fmt: skip
        self.gate = GateController(d_input, d_hidden, bias, initializer)
        self.hidden_activation = Activation.build(hidden_activation)
        self.d_hidden = d_hidden
        self.batch_first = flag("batch_first", batch_first)
        self.reverse = flag("reverse", reverse)
        self.clip = clip


class BiRnn(_Bidirectional):
    """Two `Rnn`, one for each direction (since Burn 0.21)."""

    def __init__(
        self, d_input: int, d_hidden: int, bias: bool, *, initializer: Initializer = _XAVIER,
        batch_first: bool = True, clip: float | None = None, hidden_activation: ActivationChoice = "Tanh",
    ) -> None:  # fmt: skip
        options: dict[str, Any] = {"initializer": initializer, "clip": clip, "hidden_activation": hidden_activation}
        super().__init__(lambda: Rnn(d_input, d_hidden, bias, **options), d_hidden, batch_first)


class Lstm(Module):
    """A long short-term memory.

    With ``input_forget`` there is no forget gate since Burn 0.22. Up to 0.21 Burn stores it although it is unused;
    ``burn_version`` selects that.

    >>> from burnstore import nn
    >>> coupled = nn.Lstm(2, 3, True, input_forget=True)
    >>> old = nn.Lstm(2, 3, True, input_forget=True, burn_version="0.21")
    >>> coupled.num_params(), old.num_params()
    (63, 84)
    """

    def __init__(
        self, d_input: int, d_hidden: int, bias: bool, *, initializer: Initializer = _XAVIER,
        batch_first: bool = True, reverse: bool = False, clip: float | None = None, input_forget: bool = False,
        gate_activation: ActivationChoice = "Sigmoid", cell_activation: ActivationChoice = "Tanh",
        hidden_activation: ActivationChoice = "Tanh", burn_version: str = BURN_VERSION,
    ) -> None:  # fmt: skip
        def gate() -> GateController:
            return GateController(d_input, d_hidden, bias, initializer)

        self.input_forget = flag("input_forget", input_forget)
        stores_all_gates = minor_version(burn_version) < 22
        self.input_gate = gate()
        self.forget_gate = gate() if stores_all_gates or not input_forget else None
        self.output_gate = gate()
        self.cell_gate = gate()
        self.gate_activation = Activation.build(gate_activation)
        self.cell_activation = Activation.build(cell_activation)
        self.hidden_activation = Activation.build(hidden_activation)
        self.d_hidden = d_hidden
        self.batch_first = flag("batch_first", batch_first)
        self.reverse = flag("reverse", reverse)
        self.clip = clip


class BiLstm(_Bidirectional):
    """Two `Lstm`, one for each direction."""

    def __init__(
        self, d_input: int, d_hidden: int, bias: bool, *, initializer: Initializer = _XAVIER,
        batch_first: bool = True, clip: float | None = None, input_forget: bool = False,
        gate_activation: ActivationChoice = "Sigmoid", cell_activation: ActivationChoice = "Tanh",
        hidden_activation: ActivationChoice = "Tanh", burn_version: str = BURN_VERSION,
    ) -> None:  # fmt: skip
        options: dict[str, Any] = {
            "initializer": initializer,
            "clip": clip,
            "input_forget": input_forget,
            "gate_activation": gate_activation,
            "cell_activation": cell_activation,
            "hidden_activation": hidden_activation,
            "burn_version": burn_version,
        }
        super().__init__(lambda: Lstm(d_input, d_hidden, bias, **options), d_hidden, batch_first)


class Gru(Module):
    """A gated recurrent unit; ``reset_after`` (PyTorch's convention) changes results, not shapes."""

    def __init__(
        self, d_input: int, d_hidden: int, bias: bool, *, reset_after: bool = True,
        initializer: Initializer = _XAVIER, gate_activation: ActivationChoice = "Sigmoid",
        hidden_activation: ActivationChoice = "Tanh", clip: float | None = None,
    ) -> None:  # fmt: skip
        self.update_gate = GateController(d_input, d_hidden, bias, initializer)
        self.reset_gate = GateController(d_input, d_hidden, bias, initializer)
        self.new_gate = GateController(d_input, d_hidden, bias, initializer)
        self.gate_activation = Activation.build(gate_activation)
        self.hidden_activation = Activation.build(hidden_activation)
        self.d_hidden = d_hidden
        self.reset_after = flag("reset_after", reset_after)
        self.clip = clip


class BiGru(_Bidirectional):
    """Two `Gru`, one for each direction (since Burn 0.21)."""

    def __init__(
        self, d_input: int, d_hidden: int, bias: bool, *, reset_after: bool = True,
        initializer: Initializer = _XAVIER, batch_first: bool = True, gate_activation: ActivationChoice = "Sigmoid",
        hidden_activation: ActivationChoice = "Tanh", clip: float | None = None,
    ) -> None:  # fmt: skip
        options: dict[str, Any] = {
            "reset_after": reset_after,
            "initializer": initializer,
            "gate_activation": gate_activation,
            "hidden_activation": hidden_activation,
            "clip": clip,
        }
        super().__init__(lambda: Gru(d_input, d_hidden, bias, **options), d_hidden, batch_first)
