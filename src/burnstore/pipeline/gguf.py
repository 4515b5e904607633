"""From llama.cpp's names and axes to transformers': the rules of each architecture, as data.

A GGUF file names its architecture (``general.architecture``). For those below every verb that needs a model's names
takes the tensors under transformers' names, in torch's layout; a copy in GGUF, `burnstore.open` and ``inspect`` show
the file's own. What llama.cpp's converter did is undone: it orders the rows of query and key projections of ``llama``
by pairs, head by head, and adds 1 to the norms of Gemma. An architecture without rules, and a file with a tensor that
no rule has (experts, adapters), keeps GGUF's names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import located, printable
from ..formats.gguf.header import ARCHITECTURE_KEY, GgufMetadata
from ..formats.gguf.writer import TYPES_KEY
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..transforms.operations import Add, Operation, PermuteRope
from ..transforms.recipe import Recipe, TensorRule, template

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint

LAYOUT = "gguf"

_BLOCK, _LAYER = "blk.{i}.", "model.layers.{i}."
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_LLAMA = _ATTENTION | _MLP | _NORMS | {"attn_output": "self_attn.o_proj"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA2_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI2 = _ATTENTION | {
    "attn_output": "self_attn.dense",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
    "attn_norm": "input_layernorm",
}
_PHI3 = _NORMS | {
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}

MODULES: Mapping[str, Mapping[str, str]] = {
    "llama": _LLAMA,
    "mistral3": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | _HEAD_NORMS,
    "gemma": _LLAMA,
    "gemma2": _LLAMA | _GEMMA2_NORMS,
    "gemma3": _LLAMA | _GEMMA2_NORMS | _HEAD_NORMS,
    "phi2": _PHI2,
    "phi3": _PHI3,
}
"""The modules of a block of every architecture: llama.cpp's name and transformers'."""

_TOP_OF = {"phi2": _TOP | {"output_norm": "model.final_layernorm"}}
_IN_PAIRS = {"llama", "mistral3"}
_PLUS_ONE = {"gemma", "gemma2", "gemma3"}
_COMPUTED = {
    "rope_freqs.weight": "transformers computes it from rope_scaling in the configuration",
    "rope_factors_long.weight": "transformers has it in rope_scaling of the configuration",
    "rope_factors_short.weight": "transformers has it in rope_scaling of the configuration",
}


def recipe_for(architecture: str, heads: int = 0, kv_heads: int = 0) -> Recipe:
    """Return the rules from llama.cpp's names to transformers' for an architecture of `MODULES`.

    >>> print(recipe_for("qwen2").rules[0])
    token_embd.weight → model.embed_tokens.weight
    """
    rules = []
    top = _TOP_OF.get(architecture, _TOP)
    names = [(own, theirs, own, "") for own, theirs in top.items()]
    names += [(_BLOCK + own, _LAYER + theirs, own, "blk") for own, theirs in MODULES[architecture].items()]
    for own, theirs, module, _ in names:
        for leaf in ("weight", "bias"):
            step = _step(architecture, module, leaf, heads, kv_heads)
            rule = TensorRule(
                (f"{own}.{leaf}",), (f"{theirs}.{leaf}",), after=((step,),) if step else (), optional=True
            )
            rules.append(rule)
    if architecture == "phi2":  # files of older converters have the three projections in one
        for leaf in ("weight", "bias"):
            targets = tuple(f"{_LAYER}self_attn.{part}_proj.{leaf}" for part in "qkv")
            rules.append(TensorRule((f"{_BLOCK}attn_qkv.{leaf}",), targets, cut=(0, ()), optional=True))
    rules += [TensorRule((name,), drop=why, optional=True) for name, why in _COMPUTED.items()]
    return Recipe(tuple(rules))


def _step(architecture: str, module: str, leaf: str, heads: int, kv_heads: int) -> Operation | None:
    if architecture in _IN_PAIRS and module in ("attn_q", "attn_k"):
        return PermuteRope(heads if module == "attn_q" else kv_heads, "halves")
    if architecture in _PLUS_ONE and module.endswith("norm") and leaf == "weight":
        return Add(-1.0)
    return None


def transformers_names(file: Checkpoint) -> tuple[Sequence[TensorSnapshot], list[Note]] | None:
    """Return the tensors of a GGUF file under transformers' names, and notes; None where there are no rules for it."""
    metadata = file.metadata
    architecture = metadata.get(ARCHITECTURE_KEY, "")
    if file.layout != LAYOUT or architecture not in MODULES:
        return None
    heads = kv_heads = 0
    if architecture in _IN_PAIRS:
        heads = _count(metadata, f"{architecture}.attention.head_count")
        kv_heads = _count(metadata, f"{architecture}.attention.head_count_kv") or heads
    if architecture in _IN_PAIRS and not heads:
        return None
    recipe = recipe_for(architecture, heads, kv_heads)
    with located(path=file.path):
        followed = recipe.apply(dict(file.items()))
    if len(followed.used) < len(file):
        return None
    made = [snapshot.replace(layout="torch") for snapshot, _, _ in followed.made.values()]
    notes = [Note("names", f"names and axes of llama.cpp's {architecture} were converted to transformers'")]
    notes += [Note("left out", f"left out: {name} ({why})", name) for name, why in followed.dropped.items()]
    return made, notes


def untranslated_note(file: Checkpoint) -> list[Note]:
    """Return why a GGUF file keeps llama.cpp's names; nothing for other files."""
    if file.layout != LAYOUT:
        return []
    architecture = file.metadata.get(ARCHITECTURE_KEY, "")
    if architecture not in MODULES:
        why = f"there are rules for {', '.join(MODULES)}, not for the architecture {printable(architecture)}"
    elif architecture in _IN_PAIRS and not _count(file.metadata, f"{architecture}.attention.head_count"):
        why = f"the file states no {architecture}.attention.head_count"
    else:
        forms = [template(rule.sources[0]) for rule in recipe_for(architecture, 1, 1).rules]
        left = next((name for name in file if not any(form.match(name) is not None for form in forms)), "")
        why = f"no rule of {architecture} has {printable(left)}"
    return [Note("names", f"GGUF's own names are kept: {why}")]


def _count(metadata: Mapping[str, str], key: str) -> int:
    text = metadata.get(key, "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def typed_metadata(file: Checkpoint) -> Mapping[str, str]:
    """Return the metadata of a file with the types of GGUF's values, so that a copy writes them as they were."""
    metadata = file.metadata
    if not isinstance(metadata, GgufMetadata):
        return metadata
    import json  # not at import: only GGUF files need it

    types = metadata.types()
    return {**metadata, **({TYPES_KEY: json.dumps(types)} if types else {})}
