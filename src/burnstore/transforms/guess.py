"""Guesses: what the modules of a file are, by names and shapes alone, with the evidence for each.

A file of PyTorch's layout does not state whether a matrix belongs to a Linear or an Embedding, whether its axes are
those of Linear or of Hugging Face's Conv1D, or where the norms of a transformer are. Names and shapes decide some of
that; the rest is ambiguous, and a file with an ambiguous module is not converted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..tensor.data import Shape
from .layout import AS_IS, ModuleKind
from .view import check_levels

_REPARAMETERIZED = re.compile(r"(^|\.)(weight_(g|v|orig|mask|u)|original\d?|_u|_v|fake_quant_enabled|zero_point)$")
_TRANSFORMER = frozenset({"self_attn", "linear1", "linear2", "norm1", "norm2"})
_RECURRENT = {4: "LSTM", 3: "GRU", 1: "RNN"}


@dataclass(slots=True)
class Guess:
    """Module kinds of a file with the evidence for each, and the ambiguous modules with the reason."""

    kinds: dict[str, ModuleKind] = field(default_factory=dict)
    evidence: dict[str, str] = field(default_factory=dict)
    ambiguous: dict[str, str] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()

    def by_tensor(self) -> Iterator[tuple[str, ModuleKind | None, str]]:
        """Yield each tensor, the kind of the module that decides for it (None if that is ambiguous), and the reason.

        >>> guess = guess_kinds({"fc.weight": (4, 3), "fc.bias": (4,), "out.weight": (4, 4), "out.bias": (4,)})
        >>> [(name, str(kind)) for name, kind, _ in guess.by_tensor()]
        [('fc.weight', 'Linear'), ('fc.bias', 'Linear'), ('out.weight', 'None'), ('out.bias', 'None')]
        """
        for name in self.tensors:
            path = name.rpartition(".")[0]
            while path and path not in self.kinds and path not in self.ambiguous:
                path = path.rpartition(".")[0]
            yield name, self.kinds.get(path), self.evidence.get(path) or self.ambiguous.get(path, "")

    def to_dict(self) -> dict[str, str]:
        """Return the kind of each module, as plain data for JSON."""
        return {path: str(kind) for path, kind in self.kinds.items()}

    def __str__(self) -> str:
        lines = [f"{path or '(the file)'}: {self.kinds[path]} ({why})" for path, why in self.evidence.items()]
        lines += [f"{path or '(the file)'}: ambiguous ({why})" for path, why in self.ambiguous.items()]
        return "\n".join(lines)


def guess_kinds(tensors: Mapping[str, Shape]) -> Guess:
    """Guess the module kinds of a file in PyTorch's layout.

    >>> print(guess_kinds({"fc.weight": (4, 3), "fc.bias": (4,), "out.weight": (4, 4), "out.bias": (4,)}))
    fc: Linear (the bias has as many numbers as the weight has rows)
    out: ambiguous (a square matrix: Linear and Conv1D look the same)
    """
    guess = Guess(tensors=tuple(tensors))
    modules: dict[str, dict[str, Shape]] = {}
    inside: dict[str, set[str]] = {}
    for path, shape in tensors.items():
        owner, _, name = path.rpartition(".")
        check_levels(owner)
        modules.setdefault(owner, {})[name] = shape
        while owner:
            owner, _, segment = owner.rpartition(".")
            inside.setdefault(owner, set()).add(segment)
    attentions = {path for path, own in modules.items() if "in_proj_weight" in own or "q_proj_weight" in own}
    for path, own in modules.items():
        parent, _, segment = path.rpartition(".")
        if segment == "out_proj" and parent in attentions:
            continue  # part of the attention
        layer = inside.get(path.rpartition(".")[0] if path else "", set())
        if path in attentions and layer >= _TRANSFORMER:
            guess.ambiguous[parent] = "a transformer layer: nothing states whether its norms come first"
        kind, why = _kind(own)
        if kind is None:
            guess.ambiguous[path] = why
        else:
            guess.kinds[path], guess.evidence[path] = ModuleKind(kind), why
    return guess


def _kind(own: Mapping[str, Shape]) -> tuple[str | None, str]:
    """Return the kind of a module with these tensors directly in it, or None, and the reason."""
    odd = next((name for name in own if _REPARAMETERIZED.search(name)), None)
    if odd is not None:
        return None, f"{odd} belongs to a weight that is computed from several tensors"
    if "in_proj_weight" in own or "q_proj_weight" in own:
        return "MultiheadAttention", "it has the input projections of one"
    recurrent = next((name for name in own if name.startswith("weight_hh")), None)
    if recurrent is not None:
        return _recurrent(own, recurrent)
    if "running_mean" in own:
        return "BatchNorm2d", "it has running statistics"
    if "weight" not in own:
        if "bias" in own:
            return None, "a bias without a weight"
        return AS_IS, "its tensors have names of their own"
    if set(own) - {"weight", "bias"}:
        extra = min(set(own) - {"weight", "bias"})
        return None, f"beside its weight it has {extra}"
    return _weighted(own["weight"], own.get("bias"))


def _recurrent(own: Mapping[str, Shape], name: str) -> tuple[str | None, str]:
    shape = own[name]
    if any(other.startswith("weight_hr") for other in own):
        return None, "an LSTM with a projection, which Burn does not have"
    gates = shape[0] // shape[1] if len(shape) == 2 and shape[1] and not shape[0] % shape[1] else 0
    kind = _RECURRENT.get(gates)
    if kind is None:
        return None, f"{name} of shape {list(shape)} fits no recurrent module"
    cell = "" if re.search(r"_l\d+", name) else "Cell"
    return kind + cell, f"{name} has {gates} times as many rows as columns"


def _weighted(weight: Shape, bias: Shape | None) -> tuple[str | None, str]:
    if len(weight) >= 3:
        rank = len(weight) - 2
        if rank > 3:
            return None, f"a weight with {len(weight)} axes"
        kind = "Conv" if bias is None or bias == weight[:1] else "ConvTranspose"
        return f"{kind}{rank}d", f"a weight with {len(weight)} axes (convolutions are copied, whichever they are)"
    if len(weight) == 2:
        if bias is None:
            return None, "a matrix without a bias: an Embedding is copied, a Linear transposed"
        if weight[0] == weight[1]:
            return None, "a square matrix: Linear and Conv1D look the same"
        if bias == weight[:1]:
            return "Linear", "the bias has as many numbers as the weight has rows"
        if bias == weight[1:]:
            return (
                None,
                "the bias has as many numbers as the weight has columns: a Conv1D, transposed like Burn's Linear",
            )
        return None, f"a matrix {list(weight)} with a bias {list(bias)}"
    if len(weight) == 1 and bias == weight:
        return "LayerNorm", "weight and bias of one length (every norm is renamed like that)"
    if len(weight) == 1 and bias is None:
        return None, "one vector: a norm's gamma, or the alpha of a PReLU"
    return None, f"a weight {list(weight)}"
