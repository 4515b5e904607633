"""Layouts: the names and the order of axes that PyTorch and Burn give to the tensors of each kind of module.

All of it is data in this file. A `ModuleMap` pairs the tensors of one module:

- a `Link` pairs a tensor of Burn with one of PyTorch, or with one of several equal parts of it along the first axis
  (the gates of an LSTM, the three matrices of an attention), transposed or not;
- a `Fill` is a tensor that only Burn has, because its values are all ones or zeros (a norm without affine);
- ``lost`` are tensors that only PyTorch has (``num_batches_tracked``).

tests/layouts proves every row: NumPy computes what Burn does with the converted weights, and PyTorch must agree. What
has no counterpart is refused by name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import ModelError, Ways
from ..tensor.data import Shape
from .shapes import contradiction

Layout = Literal["burn", "torch"]
LAYOUTS: tuple[Layout, ...] = ("burn", "torch")

AS_IS = "AsIs"
"""The kind of a module whose tensors have the same names and axes in both layouts."""

CONV1D = "Conv1D"
"""The Linear of GPT-2 in transformers, whose weight is [inputs, outputs] as Burn has it."""

PLUS_ONE = {"RMSNormPlusOne": "RMSNorm", "LayerNormPlusOne": "LayerNorm"}
"""Norms that multiply by 1 + weight (Gemma, Nemotron), and the norms that they would be with that sum as weight."""

COUNT = "num_batches_tracked"
"""A tensor that only PyTorch has, and the option of a kind that gives its value."""

Tensors = Mapping[str, Shape]
"""The shapes of a module's tensors, those of its submodules included, by their path below the module."""

# A model has many modules of few kinds and shapes: the size of the cache of their maps.
_MOST_ALIKE = 1024

_KIND = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\((.*)\))?\s*")
_OPTION = re.compile(r"\s*([a-z_]\w*)\s*=\s*(True|False|-?\d+)\s*")


@dataclass(frozen=True, slots=True)
class ModuleKind:
    """The kind of a module: its type's name in its framework, and the options that its tensors do not show.

    >>> str(ModuleKind.parse("TransformerEncoderLayer(norm_first=True)"))
    'TransformerEncoderLayer(norm_first=True)'
    """

    name: str
    options: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> ModuleKind:
        """Return the kind that a text names, as ``str`` writes it."""
        if not isinstance(text, str):
            raise TypeError(f"a module kind must be a str such as 'Linear', got {type(text).__name__}")
        return _parsed(text)

    def option(self, name: str) -> int | None:
        """Return the value of an option; None if it is not known."""
        return dict(self.options).get(name) if self.options else None

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.options)})"


@functools.lru_cache(maxsize=_MOST_ALIKE)
def _parsed(text: str) -> ModuleKind:
    found = _KIND.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a module kind; 'Linear' or 'LSTM(bias=False)' would be one")
    options: list[tuple[str, int]] = []
    for part in (found[2] or "").split(",") if (found[2] or "").strip() else ():
        option = _OPTION.fullmatch(part)
        if option is None:
            raise ValueError(f"{part.strip()!r} is not an option of a module kind; 'norm_first=True' would be one")
        value = {"True": True, "False": False}.get(option[2])
        options.append((option[1], int(option[2]) if value is None else value))
    return ModuleKind(found[1], tuple(options))


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor of Burn, and the tensor of PyTorch, or the part of it, that holds the same numbers.

    ``zero_if_absent``: Burn may leave this one out where PyTorch has all or none; its part is zeros then.
    """

    torch: str
    burn: str
    part: int = 0
    parts: int = 1
    transposed: bool = False
    zero_if_absent: bool = False


@dataclass(frozen=True, slots=True)
class Fill:
    """A tensor of Burn that holds one number throughout where PyTorch has none."""

    burn: str
    shape: Shape
    value: float


@dataclass(frozen=True)  # without slots, for what is worked out once and kept
class ModuleMap:
    """One module in both layouts; names are relative to the module. ``owner`` is what holds the tensors in Burn."""

    links: tuple[Link, ...]
    owner: str
    fills: tuple[Fill, ...] = ()
    lost: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    """All names that such a module of Burn may have, in its order; needed where there are fills among them."""

    @functools.cached_property
    def by_torch_name(self) -> tuple[tuple[str, tuple[Link, ...]], ...]:
        """The tensors of PyTorch, and the links that each is made of, in the order of its parts."""
        found: dict[str, list[Link]] = {}
        for link in self.links:
            found.setdefault(link.torch, []).append(link)
        return tuple((name, tuple(sorted(links, key=lambda link: link.part))) for name, links in found.items())


def _refused(kind: str, why: str) -> ModelError:
    return ModelError(
        f"a {kind}: {why}",
        hint=Ways(
            "keep_layout=True to keep PyTorch's layout",
            f'rules={{pattern: "{AS_IS}"}} to copy these tensors unchanged',
        ),
    )


# --- one kind, one row ------------------------------------------------------------------------------------------------

_AFFINE = {"weight": "gamma", "bias": "beta"}
_COPIED = {"weight": "weight", "bias": "bias"}
_STATISTICS = {"running_mean": "running_mean", "running_var": "running_var"}


@dataclass(frozen=True, slots=True)
class _Plain:
    """A kind whose tensors are renamed, and perhaps transposed, one by one."""

    burn: str
    names: Mapping[str, str]
    transposed: frozenset[str] = frozenset()
    lost: tuple[str, ...] = ()


_LINEAR = _Plain("Linear", _COPIED, frozenset({"weight"}))

_PLAIN: dict[str, _Plain] = {
    "Linear": _LINEAR,
    "Embedding": _Plain("Embedding", {"weight": "weight"}),
    "PReLU": _Plain("PRelu", {"weight": "alpha"}),
    "LayerNorm": _Plain("LayerNorm", _AFFINE),
    "RMSNorm": _Plain("RmsNorm", {"weight": "gamma"}),
    "GroupNorm": _Plain("GroupNorm", _AFFINE),
    **{f"InstanceNorm{n}d": _Plain("InstanceNorm", _AFFINE) for n in (1, 2, 3)},
    **{
        name: _Plain("BatchNorm", {**_AFFINE, **_STATISTICS}, lost=(COUNT,))
        for name in ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
    },
    **{f"Conv{n}d": _Plain(f"Conv{n}d", _COPIED) for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": _Plain(f"ConvTranspose{n}d", _COPIED) for n in (1, 2, 3)},
    "DeformConv2d": _Plain("DeformConv2d", _COPIED),
    CONV1D: _Plain("Linear", _COPIED),
}

# PyTorch stacks the gates along the first axis in this order; Burn declares them in the other. By name, never by place.
GATES: Mapping[str, tuple[str, ...]] = {
    "LSTM": ("input_gate", "forget_gate", "cell_gate", "output_gate"),
    "GRU": ("reset_gate", "update_gate", "new_gate"),
    "RNN": ("gate",),
}
_BURN_GATES = {
    "LSTM": ("input_gate", "forget_gate", "output_gate", "cell_gate"),
    "GRU": ("update_gate", "reset_gate", "new_gate"),
    "RNN": ("gate",),
}
_RECURRENT_BURN = {"Lstm": "LSTM", "Gru": "GRU", "Rnn": "RNN"}

# What a module calls its children in both layouts, in Burn's order. Norms are named by place in Burn, and the places
# are shifted when the norms come first; names and shapes do not show it.
_ENCODER_LAYER = (("self_attn", "mha"), ("linear1", "pwff.linear_inner"), ("linear2", "pwff.linear_outer"))
_DECODER_LAYER = (
    ("multihead_attn", "cross_attn"),
    ("self_attn", "self_attn"),
    ("linear1", "pwff.linear_inner"),
    ("linear2", "pwff.linear_outer"),
)
_NORMS: dict[str, dict[bool, tuple[str, ...]]] = {
    "TransformerEncoderLayer": {False: ("norm1", "norm2"), True: ("norm2", "norm1")},
    "TransformerDecoderLayer": {False: ("norm1", "norm2", "norm3"), True: ("norm2", "norm3", "norm1")},
}
_STACKS = ("TransformerEncoder", "TransformerDecoder")
_LAYERS = {"TransformerEncoderLayer": _ENCODER_LAYER, "TransformerDecoderLayer": _DECODER_LAYER}

_REFUSED = {
    "Bilinear": "Burn has no such module",
    "EmbeddingBag": "Burn has no such module (its Embedding neither sums nor averages)",
    "AdaptiveLogSoftmaxWithLoss": "Burn has no such module",
    "CrossEntropyLoss": "Burn's losses hold no weights",
    "NLLLoss": "Burn's losses hold no weights",
    "BCELoss": "Burn's losses hold no weights",
    "BCEWithLogitsLoss": "Burn's losses hold no weights",
    "MultiMarginLoss": "Burn's losses hold no weights",
    "MultiLabelSoftMarginLoss": "Burn's losses hold no weights",
    **dict.fromkeys(PLUS_ONE, "it multiplies by 1 + weight, Burn's norm by gamma"),
}
SERIES = frozenset({"Sequential", "ModuleList"})
CONTAINERS = SERIES | {"ModuleDict"}
"""Kinds of PyTorch whose children are numbered; Burn's Vec numbers only those that hold tensors."""

_RECURRENT = frozenset({*GATES, *(f"{name}Cell" for name in GATES)})
_TORCH_LEAVES = frozenset({*_PLAIN, *_REFUSED, *_RECURRENT, "MultiheadAttention"})
_TRANSPARENT = frozenset({"ModuleDict", "ParameterList", "ParameterDict", "Transformer", "Module"})
_KNOWN_AROUND = frozenset({*_LAYERS, *_STACKS, *SERIES, *_TRANSPARENT, AS_IS})
_TORCH_OF_BURN = {row.burn: name for name, row in reversed(_PLAIN.items())}
BURN_OF_TORCH = {name: row.burn for name, row in _PLAIN.items() if name != CONV1D}  # Burn's Linear is turned back
BURN_OF_TORCH["MultiheadAttention"] = "MultiHeadAttention"
BURN_OF_TORCH |= {name: burn for burn, name in _RECURRENT_BURN.items()}


def torch_name(burn_kind: str) -> str | None:
    """Return PyTorch's name for a kind of Burn; None if PyTorch has no such module."""
    found = _TORCH_OF_BURN.get(burn_kind) or _RECURRENT_BURN.get(burn_kind.removeprefix("Bi"))
    if found is not None:
        return found
    if burn_kind in ("MultiHeadAttention", "CrossAttention"):
        return "MultiheadAttention"
    return burn_kind if burn_kind in _LAYERS or burn_kind in _STACKS else None


def is_known(name: str) -> bool:
    """Return whether a module of this type name, in either framework, has a row here."""
    kind = ModuleKind(name)
    return is_torch_leaf(kind) or is_burn_leaf(kind) or holds_no_tensors(kind)


# --- from PyTorch's side ----------------------------------------------------------------------------------------------


def is_torch_leaf(kind: ModuleKind) -> bool:
    """Return whether a PyTorch module of this kind is mapped as one, with everything in it."""
    return kind.name in _TORCH_LEAVES


def is_known_torch(kind: ModuleKind) -> bool:
    """Return whether the table has this kind of PyTorch."""
    return is_torch_leaf(kind) or kind.name in _KNOWN_AROUND


def named_children(kind: ModuleKind) -> Sequence[tuple[str, str]] | None:
    """Return the names of such a module's children in both frameworks, in Burn's order; None if the names are free."""
    if kind.name in _LAYERS:
        norms = _norms(kind)
        return (*_LAYERS[kind.name], *((norm, f"norm_{place}") for place, norm in enumerate(norms, 1)))
    return (("layers", "layers"),) if kind.name in _STACKS else None


_CHILD_KINDS = {"self_attn": "MultiheadAttention", "multihead_attn": "MultiheadAttention", "linear": "Linear"}


def child_kind(kind: ModuleKind, torch_child: str) -> str | None:
    """Return the PyTorch kind that a child of such a module must have; None if any kind is allowed."""
    if kind.name not in _LAYERS:
        return None
    return _CHILD_KINDS.get(torch_child.rstrip("123"), "LayerNorm")


def holds_no_tensors(kind: ModuleKind) -> bool:
    """Return whether a module of this kind has all its tensors in its children."""
    return kind.name in _LAYERS or kind.name in _STACKS


def has_final_norm(kind: ModuleKind) -> bool:
    """Return whether such a module may end in a norm that Burn keeps beside it."""
    return kind.name in _STACKS


def always_has_biases(kind: ModuleKind) -> bool:
    """Return whether Burn's module of this kind stores every bias; zeros replace those that PyTorch leaves out."""
    return kind.name in _LAYERS


def _norms(kind: ModuleKind) -> Sequence[str]:
    norm_first = kind.option("norm_first")
    if norm_first is None:
        raise ModelError(
            f"nothing states whether the norms of this {kind.name} come first, which decides their numbers in Burn",
            hint="name the kind with rules={pattern: kind}: "
            f"{kind.name}(norm_first=True) or {kind.name}(norm_first=False)",
        )
    return _NORMS[kind.name][bool(norm_first)]


def torch_map(kind: ModuleKind, tensors: Tensors, *, all_biases: bool = False, is_declared: bool = True) -> ModuleMap:
    """Return a PyTorch module with these tensors in both layouts, in Burn's order.

    With ``all_biases``, biases that PyTorch leaves out become zeros in Burn. ``is_declared``: a live module, an outline
    or a record states which tensors are absent; otherwise a norm with only one of weight and bias is refused, because
    the other may have been lost on the way. Raises ModelError for anything that Burn does not have.
    """
    return _torch_map(kind.name, kind.options, tuple(tensors.items()), all_biases, is_declared)


@functools.lru_cache(maxsize=_MOST_ALIKE)
def _torch_map(
    name: str, options: tuple[tuple[str, int], ...], named: tuple[tuple[str, Shape], ...], *flags: bool
) -> ModuleMap:
    kind, tensors, (all_biases, is_declared) = ModuleKind(name, options), dict(named), flags
    check_shapes(kind, tensors, "torch")
    if not is_torch_leaf(kind) or kind.name in _REFUSED:
        raise _refused(kind.name, _REFUSED.get(kind.name, "no rule states how Burn stores its tensors"))
    if kind.name in _RECURRENT:
        found = _recurrent_map(kind, tensors)
    elif kind.name == "MultiheadAttention":
        found = _attention_map(tensors, all_biases=all_biases)
    else:
        found = _plain_map(kind, tensors, all_biases=all_biases)
    if not is_declared:
        _check_pair(kind, found, tensors)
    covered = {link.torch for link in found.links} | set(found.lost)
    left_over = [name for name in tensors if name not in covered]
    if left_over:
        raise _refused(kind.name, f"its {left_over[0]} has no place in Burn's {found.owner}")
    return found


def _check_pair(kind: ModuleKind, found: ModuleMap, tensors: Tensors) -> None:
    """Refuse a module with one of two tensors where nothing declares that it has only that one."""
    row = _PLAIN.get(kind.name)
    biases = [name for name in ("in_proj_bias", "out_proj.bias") if name in tensors]
    if kind.name == "MultiheadAttention" and found.fills and len(biases) == 1:
        absent = "out_proj.bias" if biases == ["in_proj_bias"] else "in_proj_bias"
        raise ModelError(
            f"{kind.name} has an {biases[0]} but no {absent}, and nothing declares that it has none",
            hint=f"provide its {absent}, or pass like= a model that declares the module without it",
        )
    present = [name for name in ("weight", "bias") if name in tensors]
    if row is None or row.names.get("bias") != "beta" or len(present) != 1:
        return
    if row.burn != "LayerNorm" or present == ["bias"] or found.fills:  # Burn's LayerNorm can do without its bias
        absent = "bias" if present == ["weight"] else "weight"
        raise ModelError(
            f"{kind.name} has a {present[0]} but no {absent}, and nothing declares that it has none",
            hint=Ways(f"provide its {absent}", "pass like= a model that declares the module without it", lead=""),
        )


def check_shapes(kind: ModuleKind, tensors: Tensors, layout: Layout) -> None:
    """Refuse a kind that the shapes of a module's own tensors contradict, such as a Conv1D that a rule calls Linear."""
    outputs_at = 0 if (layout == "torch" and kind.name != CONV1D) or kind.option("col") else -1
    gates = len(GATES[kind.name.removesuffix("Cell")]) if layout == "torch" and kind.name in _RECURRENT else None
    expected = contradiction(kind.name, tensors, outputs_at=outputs_at, gates=gates)
    if expected is not None:
        hint = f'name its kind with rules={{pattern: kind}}; the kind "{AS_IS}" copies these tensors unchanged'
        raise ModelError(f"its shapes are not those of {kind.name}: expected {expected}", hint=hint)


def _plain_map(kind: ModuleKind, tensors: Tensors, *, all_biases: bool) -> ModuleMap:
    row = _PLAIN[kind.name]
    axes = kind.option("axes") if "weight" not in tensors else len(tensors["weight"])
    if row.burn in ("LayerNorm", "RmsNorm") and axes not in (1, None):
        raise _refused(kind.name, "it normalises over several axes, Burn's over the last only")
    for name in row.transposed & tensors.keys():
        if len(tensors[name]) != 2:
            raise _refused(kind.name, f"expected a matrix as its {name}, found shape {list(tensors[name])}")
    if row.burn == "BatchNorm" and ("running_mean" in tensors) != ("running_var" in tensors):
        raise _refused(kind.name, "it has one of running_mean and running_var, and both belong together")
    if row.burn == "BatchNorm" and "running_mean" not in tensors:
        raise _refused(kind.name, "it has no running statistics and takes those of the batch, Burn's always has them")
    if row.burn == "InstanceNorm" and "running_mean" in tensors:
        raise _refused(kind.name, "it has running statistics, Burn's has none")
    if kind.option("padding_mode"):
        raise _refused(
            kind.name, "Burn's pads with zeros only; a rule that names its kind takes the weights all the same"
        )
    if kind.option("max_norm"):
        raise _refused(kind.name, "max_norm rewrites its rows as they are used, Burn's has no such option")
    links = tuple(
        Link(torch, burn, transposed=torch in row.transposed) for torch, burn in row.names.items() if torch in tensors
    )
    fills = _plain_fills(kind, row, tensors, all_biases=all_biases)
    return ModuleMap(links, row.burn, fills, row.lost, tuple(row.names.values()))


def _plain_fills(kind: ModuleKind, row: _Plain, tensors: Tensors, *, all_biases: bool) -> tuple[Fill, ...]:
    known = next((shape for name, shape in tensors.items() if name in ("weight", "running_mean")), None)
    features = kind.option("features") if known is None else known[0]
    if features is None:
        return ()
    fills = []
    if "weight" not in tensors and row.burn in ("LayerNorm", "RmsNorm", "BatchNorm"):
        fills.append(Fill("gamma", (features,), 1.0))
    if "bias" not in tensors and row.names.get("bias") == "beta":
        # Burn's LayerNorm can do without beta; without gamma it cannot, and torch then has neither.
        without = row.burn == "LayerNorm" and "weight" in tensors and not all_biases
        absent = row.burn in ("GroupNorm", "InstanceNorm") and "weight" not in tensors
        if not without and not absent:
            fills.append(Fill("beta", (features,), 0.0))
    if all_biases and row.burn == "Linear" and "bias" not in tensors:
        fills.append(Fill("bias", (features,), 0.0))
    return tuple(fills)


def _recurrent_map(kind: ModuleKind, tensors: Tensors) -> ModuleMap:
    if any(name.startswith("weight_hr") for name in tensors):
        raise _refused(kind.name, "it has a projection (proj_size), Burn's has none")
    name = kind.name.removesuffix("Cell")
    if name != kind.name:
        return ModuleMap(tuple(_present(_cell(name, "", "", ""), tensors)), "Linear")
    # Any tensor shows its layer and direction; one of a layer after a gap has no link and is refused.
    named = (re.fullmatch(r"(?:weight|bias)_[ih]h_l(\d+)(_reverse)?", tensor) for tensor in tensors)
    shown = [found.groups() for found in named if found is not None]
    layers, both = len({layer for layer, _ in shown}), any(reverse for _, reverse in shown)
    return ModuleMap(tuple(_present(recurrent_links(name, layers, bidirectional=both), tensors)), "Linear")


def recurrent_links(name: str, layers: int, *, bidirectional: bool) -> Iterator[Link]:
    """Return all links of a recurrent module of PyTorch; several layers are a list in Burn."""
    for layer in range(layers):
        place = f"{layer}." if layers > 1 else ""
        if bidirectional:
            yield from _cell(name, f"_l{layer}", "", f"{place}forward.")
            yield from _cell(name, f"_l{layer}", "_reverse", f"{place}reverse.")
        else:
            yield from _cell(name, f"_l{layer}", "", place)


def _cell(name: str, layer: str, direction: str, place: str) -> Iterator[Link]:
    order = GATES[name]
    for gate in _BURN_GATES[name]:
        part = order.index(gate)
        for torch, burn in (("ih", "input_transform"), ("hh", "hidden_transform")):
            for tensor in ("weight", "bias"):
                yield Link(
                    f"{tensor}_{torch}{layer}{direction}",
                    f"{place}{gate}.{burn}.{tensor}",
                    part,
                    len(order),
                    transposed=tensor == "weight",
                )


def _present(links: Iterator[Link], tensors: Tensors) -> Iterator[Link]:
    return (link for link in links if link.torch in tensors)


def _attention_map(tensors: Tensors, *, all_biases: bool) -> ModuleMap:
    if "bias_k" in tensors or "bias_v" in tensors:
        raise _refused("MultiheadAttention", "it adds a key and a value (add_bias_kv), Burn's does not")
    separate = "q_proj_weight" in tensors
    if separate and tensors.get("k_proj_weight", ())[1:] != tensors.get("v_proj_weight", ())[1:]:
        raise _refused("MultiheadAttention", "its keys and values have different widths (kdim, vdim), Burn's have one")
    links = tuple(_present(attention_links(separate=separate), tensors))
    fills: tuple[Fill, ...] = ()
    if (all_biases or separate) and "out_proj.weight" in tensors:
        width, present = tensors["out_proj.weight"][0], {link.burn for link in links}
        biases = [f"{name}.bias" for name in ("query", "key", "value", "output")]
        fills = tuple(Fill(name, (width,), 0.0) for name in biases if name not in present)
    return ModuleMap(links, "Linear", fills, order=tuple(link.burn for link in attention_links(separate=separate)))


def attention_links(*, separate: bool) -> Iterator[Link]:
    """Return all links of a MultiheadAttention of PyTorch, with one fused input matrix or three separate ones."""
    for part, name in enumerate(("query", "key", "value")):
        if separate:
            yield Link(f"{name[0]}_proj_weight", f"{name}.weight", transposed=True)
        else:
            yield Link("in_proj_weight", f"{name}.weight", part, 3, transposed=True)
        yield Link("in_proj_bias", f"{name}.bias", part, 3, zero_if_absent=True)
    yield Link("out_proj.weight", "output.weight", transposed=True)
    yield Link("out_proj.bias", "output.bias", zero_if_absent=True)


# --- from Burn's side -------------------------------------------------------------------------------------------------

Present = Callable[[str], bool]
"""Whether the other side has a tensor of this name below the module; without another side everything may be there."""


def is_burn_leaf(kind: ModuleKind) -> bool:
    """Return whether a Burn module of this kind is mapped as one, with everything in it."""
    return kind.name in _TORCH_OF_BURN or is_burn_fused(kind)


def is_burn_fused(kind: ModuleKind) -> bool:
    """Return whether PyTorch fuses several tensors of such a Burn module into one."""
    return kind.name.removeprefix("Bi") in _RECURRENT_BURN or kind.name in ("MultiHeadAttention", "CrossAttention")


def burn_map(kind: ModuleKind, tensors: Tensors, present: Present) -> ModuleMap | None:
    """Return the map of a Burn module with these tensors.

    None if the other side has the module's parts by themselves (an attention made of four Linears), not fused. Raises
    ModelError for what PyTorch does not have.
    """
    if not is_burn_fused(kind):
        return _burn_plain_map(kind, tensors, present)
    attention = kind.name in ("MultiHeadAttention", "CrossAttention")
    fused = [list(attention_links(separate=kind.name == "CrossAttention"))] if attention else ()
    candidates = fused or _recurrent_candidates(kind)
    links = next((found for found in candidates if any(present(link.torch) for link in found)), None)
    return None if links is None else _fused_map(kind, links, tensors)


def burn_map_of_torch(kind: ModuleKind, tensors: Tensors, filled: Mapping[str, float]) -> ModuleMap:
    """Return the map of a module by its kind in PyTorch and its tensors in Burn; PyTorch has no ``filled`` ones."""
    own = {name: shape for name, shape in tensors.items() if name not in filled}
    if kind.name in _PLAIN:
        row = _PLAIN[kind.name]
        found = _burn_plain_map(ModuleKind(row.burn, kind.options), own, lambda _: True)
        if kind.name == CONV1D:
            found = replace(found, links=tuple(replace(link, transposed=False) for link in found.links))
    elif kind.name == "MultiheadAttention":
        separate = "key.weight" in own and own["key.weight"][:1] != own["query.weight"][:1]
        # A bias that the record fills is absent in PyTorch, also where the other one is present.
        links = [link for link in attention_links(separate=separate) if link.burn not in filled]
        found = _fused_map(ModuleKind("MultiHeadAttention"), links, own)
    elif kind.name in _RECURRENT:
        found = _fused_map(ModuleKind(kind.name), _recurrent_links_of_burn(kind.name, own), own)
    else:
        raise _refused(kind.name, _REFUSED.get(kind.name, "no rule states how Burn stores its tensors"))
    fills = tuple(Fill(name, tensors[name], value) for name, value in filled.items() if name in tensors)
    return ModuleMap(found.links, found.owner, (*found.fills, *fills), found.lost, found.order)


def _recurrent_links_of_burn(name: str, tensors: Tensors) -> list[Link]:
    if name.endswith("Cell"):
        return list(_cell(name.removesuffix("Cell"), "", "", ""))
    layers = {path.partition(".")[0] for path in tensors if path.partition(".")[0].isdecimal()}
    both = any("reverse." in path for path in tensors)
    return list(recurrent_links(name, max(len(layers), 1), bidirectional=both))


def stacked_map(kind: ModuleKind, layers: int, tensors: Tensors, present: Present) -> ModuleMap | None:
    """Map a list of Burn's recurrent modules to PyTorch's one module of several layers."""
    name = _RECURRENT_BURN[kind.name.removeprefix("Bi")]
    links = list(recurrent_links(name, layers, bidirectional=kind.name.startswith("Bi")))
    return _fused_map(kind, links, tensors) if any(present(link.torch) for link in links) else None


def _burn_plain_map(kind: ModuleKind, tensors: Tensors, present: Present) -> ModuleMap:
    row = _PLAIN[_TORCH_OF_BURN[kind.name]]
    check_shapes(kind, tensors, "burn")
    torch_names = {burn: torch for torch, burn in row.names.items()}
    links = []
    for name in tensors:
        if name in row.names and name not in torch_names:
            raise _refused(kind.name, f"Burn calls its {name} {row.names[name]}, so these names are not Burn's")
        torch = torch_names.get(name, name)
        if torch != name and not present(torch) and present(name):
            torch = name  # a file may have Burn's names and PyTorch's axes
        # LinearLayout::Col keeps the weight as PyTorch does.
        transposed = torch_names.get(name) in row.transposed and not kind.option("col")
        if transposed and len(tensors[name]) != 2:
            raise _refused(kind.name, f"expected a matrix as its {name}, found shape {list(tensors[name])}")
        links.append(Link(torch, name, transposed=transposed))
    return ModuleMap(tuple(links), row.burn, lost=row.lost)


def _recurrent_candidates(kind: ModuleKind) -> Iterator[list[Link]]:
    both = kind.name.startswith("Bi")
    name = _RECURRENT_BURN[kind.name.removeprefix("Bi")]
    yield list(recurrent_links(name, 1, bidirectional=both))
    if not both:
        yield list(_cell(name, "", "", ""))


def _fused_map(kind: ModuleKind, links: Sequence[Link], tensors: Tensors) -> ModuleMap:
    if kind.option("unlike_torch"):
        raise ModelError(
            f"a {kind.name} with options that PyTorch's {torch_name(kind.name)} does not have (reset_after, clip, "
            "reverse, input_forget, other activations): with the same weights it computes something else"
        )
    candidates = {link.burn: link for link in links}
    stray = next((name for name in tensors if name not in candidates), None)
    if stray is not None:
        raise ModelError(f"a {kind.name}: its {stray} has no place in PyTorch's {torch_name(kind.name)}")
    widths = [*tensors.get("query.weight", ()), *tensors.get("key.weight", ())[1:]]
    if kind.name == "CrossAttention" and len(set(widths)) > 1:
        raise ModelError(
            "a CrossAttention with fewer heads for keys and values, or heads of another width than the model's: "
            "PyTorch's MultiheadAttention has neither"
        )
    wanted = {link.torch for link in links if link.burn in tensors}
    absent = [link for link in links if link.torch in wanted and link.burn not in tensors]
    if any(link.zero_if_absent and link.burn in tensors for link in links):  # PyTorch has all biases or none
        absent += [each for each in links if each.zero_if_absent and each.burn not in tensors and each not in absent]
    needed = {link: link.burn.replace("bias", "weight") if link.zero_if_absent else link.burn for link in absent}
    missing = next((name for name in needed.values() if name not in tensors), None)
    if missing is not None:
        raise ModelError(f"a {kind.name} without {missing}: PyTorch's {torch_name(kind.name)} cannot do without it")
    # A part that the module has may be left out by a filter: zeros would then be wrong.
    kept = [replace(link, zero_if_absent=link in absent) for link in links if link.burn in tensors or link in absent]
    return ModuleMap(tuple(kept), "Linear", tuple(Fill(link.burn, tensors[needed[link]][1:], 0.0) for link in absent))
