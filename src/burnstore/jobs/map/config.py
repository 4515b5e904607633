"""Config: what a checkpoint's config.json states, held against the shapes of the source and the Burn model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...checkpoint import Checkpoint
from .align import Question
from .units import TargetSide
from .words import meaning

_HEADS = ("num_attention_heads", "n_head", "n_heads")
_WIDTH = ("hidden_size", "n_embd", "n_embed", "d_model")
_EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
_NESTED = ("text_config", "vision_config", "encoder", "decoder", "audio_config")


def contradictions(config: Mapping[str, Any], source: Checkpoint, side: TargetSide) -> list[Question]:
    """Return what config.json states and the tensors, the outline or config.json itself contradict.

    A model of several parts has a configuration for each; those are not compared.
    """
    if any(isinstance(config.get(key), Mapping) for key in _NESTED):
        return []
    rows = [*_of_itself(config), *_of_source(config, source), *_of_outline(config, side)]
    return [Question((place,), (), f"config.json contradicts it: {why}") for place, why in dict(rows).items()]


def _number(config: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, int] | None:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return key, value
    return None


def _of_itself(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    heads, width = _number(config, _HEADS), _number(config, _WIDTH)
    if heads is None or width is None or config.get("head_dim") is not None:
        return
    if heads[1] < 1 or width[1] % heads[1]:
        yield "config.json", f"{width[0]} = {width[1]} is no multiple of {heads[0]} = {heads[1]}"


def _of_source(config: Mapping[str, Any], source: Checkpoint) -> Iterator[tuple[str, str]]:
    vocabulary = _number(config, ("vocab_size",))
    embedding = config.get("embedding_size") or config.get("hidden_size")
    for name in source:
        words, shape = meaning(name.rpartition(".")[0]), source[name].shape
        is_table = {"token", "embedding"} <= words.keys() and len(shape) == 2 and embedding == shape[1]
        # A padded vocabulary has more rows than the configuration states, never fewer.
        if is_table and vocabulary is not None and shape[0] < vocabulary[1]:
            yield name, f"vocab_size = {vocabulary[1]}, and its shape is {list(shape)}"
    if config.get("tie_word_embeddings") is True:
        yield from _untied(source)


def _untied(source: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yield the head of a model that is tied according to config.json, and has other values than the embedding."""
    heads = [name for name in source if name in ("lm_head.weight", "embed_out.weight")]
    tables = [name for name in source if {"token", "embedding"} <= meaning(name.rpartition(".")[0]).keys()]
    if len(heads) == len(tables) == 1:
        head, table = source[heads[0]], source[tables[0]]
        if head.shape == table.shape and head.dtype is table.dtype and head.to_bytes() != table.to_bytes():
            yield heads[0], f"tie_word_embeddings = true, and {tables[0]} has other values"


def _of_outline(config: Mapping[str, Any], side: TargetSide) -> Iterator[tuple[str, str]]:
    heads, groups = _number(config, _HEADS), _number(config, ("num_key_value_heads",))
    epsilon = next(((key, config[key]) for key in _EPSILON if isinstance(config.get(key), float)), None)
    for path, attributes in side.outline.attributes.items():
        for name, text in attributes.items():
            if "head" in name and text.isdecimal() and ("n_" in name or "num" in name):
                stated = groups if "kv" in name else heads
                if stated is not None and stated[1] != int(text):
                    yield path, f"{stated[0]} = {stated[1]}, and the model has {name} = {text}"
        kind = side.outline.modules.get(path, "")
        if epsilon is not None and kind.endswith("Norm") and "epsilon" in attributes:
            value = _real(attributes["epsilon"])
            if value is not None and abs(value - epsilon[1]) > 1e-3 * epsilon[1]:
                yield path, f"{epsilon[0]} = {epsilon[1]}, and the model has epsilon = {attributes['epsilon']}"


def _real(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
