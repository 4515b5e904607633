"""Every layer against Burn's tables: words, defaults, paths, order, shapes, containers, counts, initial values."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
from appendix import MODULES, TABLES, default_params, leaves

from burnstore import nn
from burnstore.models.plain import HolderSlot, walk

VERSIONED = {"Lstm", "BiLstm", "PositionWiseFeedForward"} | {name for name in MODULES if name.startswith("Transformer")}

SMALL: dict[str, dict[str, Any]] = {
    "Linear": {"d_input": 3, "d_output": 5},
    "Embedding": {"n_embedding": 7, "d_model": 4},
    "Conv1d": {"channels_in": 4, "channels_out": 6, "kernel_size": 3},
    "Conv2d": {"channels": [4, 6], "kernel_size": [3, 5]},
    "Conv3d": {"channels": [4, 6], "kernel_size": [1, 3, 5]},
    "ConvTranspose1d": {"channels": [4, 6], "kernel_size": 3},
    "ConvTranspose2d": {"channels": [4, 6], "kernel_size": [3, 5]},
    "ConvTranspose3d": {"channels": [4, 6], "kernel_size": [1, 3, 5]},
    "DeformConv2d": {"channels": [4, 6], "kernel_size": [3, 5]},
    "BatchNorm": {"num_features": 3},
    "LayerNorm": {"d_model": 6},
    "GroupNorm": {"num_groups": 3, "num_channels": 6},
    "InstanceNorm": {"num_channels": 6},
    "RmsNorm": {"d_model": 6},
    "PRelu": {},
    "SwiGlu": {"d_input": 3, "d_output": 5},
    "MultiHeadAttention": {"d_model": 6, "n_heads": 2},
    "CrossAttention": {"d_model": 6, "d_context": 5, "n_heads": 4, "n_heads_kv": 2, "d_head": 3},
    "PositionWiseFeedForward": {"d_model": 3, "d_ff": 7},
    "TransformerEncoderLayer": {"d_model": 4, "d_ff": 7, "n_heads": 2},
    "TransformerEncoder": {"d_model": 4, "d_ff": 7, "n_heads": 2, "n_layers": 2},
    "TransformerDecoderLayer": {"d_model": 4, "d_ff": 7, "n_heads": 2},
    "TransformerDecoder": {"d_model": 4, "d_ff": 7, "n_heads": 2, "n_layers": 2},
    "GateController": {"d_input": 2, "d_output": 3, "bias": True},
    **{
        name: {"d_input": 2, "d_hidden": 3, "bias": True} for name in ("Rnn", "BiRnn", "Lstm", "BiLstm", "Gru", "BiGru")
    },
}

CHANGED: list[tuple[str, dict[str, Any]]] = [
    ("Linear", {"bias": False}),
    *((name, {"bias": False, "groups": 2}) for name in ("Conv1d", "Conv2d", "Conv3d")),
    *((f"ConvTranspose{axes}d", {"bias": False}) for axes in (1, 2, 3)),
    *((f"ConvTranspose{axes}d", {"groups": 2}) for axes in (1, 2, 3)),
    ("DeformConv2d", {"weight_groups": 2, "offset_groups": 4}),
    ("DeformConv2d", {"bias": False}),
    ("LayerNorm", {"bias": False}),
    ("GroupNorm", {"affine": False}),
    ("InstanceNorm", {"affine": False}),
    ("PRelu", {"num_parameters": 5, "alpha": 0.5}),
    ("SwiGlu", {"bias": True}),
    *(("MultiHeadAttention", {word: False}) for word in ("query_bias", "key_bias", "value_bias", "output_bias")),
    ("MultiHeadAttention", {"n_heads": 4}),
    ("TransformerEncoder", {"n_layers": 3}),
    ("TransformerEncoder", {"n_layers": 0}),
    ("TransformerDecoder", {"n_layers": 3, "norm_first": True}),
    ("GateController", {"bias": False}),
    *((name, {"bias": False}) for name in ("Rnn", "BiRnn", "Lstm", "BiLstm", "Gru", "BiGru")),
    ("Lstm", {"input_forget": True}),
    ("BiLstm", {"input_forget": True, "bias": False}),
    ("Gru", {"reset_after": False}),
]

LARGE: dict[str, dict[str, Any]] = {
    "Linear": {"d_input": 200, "d_output": 150},
    "Embedding": {"n_embedding": 150, "d_model": 200},
    "Conv1d": {"channels_in": 64, "channels_out": 96, "kernel_size": 5, "groups": 2},
    "Conv2d": {"channels": [32, 48], "kernel_size": [3, 5], "groups": 2},
    "Conv3d": {"channels": [16, 32], "kernel_size": [3, 3, 5], "groups": 2},
    "ConvTranspose1d": {"channels": [64, 96], "kernel_size": 5, "groups": 2},
    "ConvTranspose2d": {"channels": [32, 48], "kernel_size": [3, 5], "groups": 2},
    "ConvTranspose3d": {"channels": [16, 32], "kernel_size": [3, 3, 5], "groups": 2},
    "DeformConv2d": {"channels": [32, 48], "kernel_size": [3, 5], "weight_groups": 2},
    "SwiGlu": {"d_input": 120, "d_output": 90, "bias": True},
    "MultiHeadAttention": {"d_model": 100, "n_heads": 4},
    "CrossAttention": {"d_model": 100, "d_context": 60, "n_heads": 4, "n_heads_kv": 2, "d_head": 30},
    "PositionWiseFeedForward": {"d_model": 80, "d_ff": 160},
    "TransformerEncoder": {"d_model": 60, "d_ff": 120, "n_heads": 2, "n_layers": 1},
    "TransformerDecoder": {"d_model": 60, "d_ff": 120, "n_heads": 2, "n_layers": 1},
    "GateController": {"d_input": 90, "d_output": 120, "bias": True},
    **{name: {"d_input": 90, "d_hidden": 120, "bias": True} for name in ("BiRnn", "BiLstm", "BiGru")},
}


def make(name: str, words: dict[str, Any]) -> nn.Module:
    if name == "GateController":
        words = {**words, "initializer": nn.XavierNormal()}
    made: nn.Module = getattr(nn, name)(**words)
    return made


def plain_word(value: Any) -> Any:
    """A default as the tables spell it."""
    if isinstance(value, nn.Initializer):
        return {type(value).__name__: {field: getattr(value, field) for field in type(value).__dataclass_fields__}}
    return list(value) if isinstance(value, tuple) else value


def test_every_module_of_the_tables_is_tried_here():
    assert set(SMALL) == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_required_words_are_positional_in_burns_order_and_options_are_keywords_with_burns_defaults(name):
    words = inspect.signature(getattr(nn, name)).parameters.values()
    required = [word.name for word in words if word.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    options = {word.name: plain_word(word.default) for word in words if word.kind is inspect.Parameter.KEYWORD_ONLY}
    version = options.pop("burn_version", None)
    assert required == MODULES[name]["args"]
    assert all(word.default is inspect.Parameter.empty for word in words if word.name in required)
    assert list(options.items()) == list(MODULES[name]["options"].items())
    assert version == ("0.22.1" if name in VERSIONED else None)


@pytest.mark.parametrize("name", MODULES)
def test_the_default_configuration_has_burns_paths_and_shapes_in_order(name):
    found = [(slot.path, slot.shape) for slot in walk(make(name, SMALL[name]))]
    assert found == default_params(name, SMALL[name])


@pytest.mark.parametrize(
    ("name", "words"), [*SMALL.items(), *((name, {**SMALL[name], **changed}) for name, changed in CHANGED)]
)
def test_leaves_and_containers_follow_the_words(name, words):
    slots = list(walk(make(name, words)))
    expected = list(leaves(name, words))
    assert [(slot.path, slot.shape, slot.container_stack) for slot in slots] == [
        (leaf.path, leaf.shape, leaf.containers) for leaf in expected
    ]
    assert all(str(slot.dtype) == "F32" for slot in slots)
    for slot, leaf in zip(slots, expected, strict=True):
        assert isinstance(slot, HolderSlot)
        assert isinstance(slot.holder, nn.Param)
        state = leaf.initial.startswith("state")
        assert slot.holder.require_grad is not state
        assert slot.holder.is_initialized is state  # nothing else exists before it is used
        assert isinstance(slot.holder, nn.RunningState) is state


@pytest.mark.parametrize(("name", "words", "count"), TABLES["num_params"])
def test_num_params_is_what_burns_own_tests_state(name, words, count):
    module = make(name, words)
    assert nn.num_params(module) == module.num_params() == count
    assert not any(slot.holder.is_initialized for slot in walk(module) if not slot.path.startswith("running_"))


@pytest.mark.parametrize("name", LARGE)
def test_random_initial_values_have_burns_bounds_and_moments(name):
    nn.seed(7)
    module = make(name, LARGE[name])
    for slot, leaf in zip(walk(module), leaves(name, LARGE[name]), strict=True):
        values = slot.snapshot().numpy().astype(np.float64)
        uniform, normal = leaf.bound("uniform"), leaf.bound("normal")
        if uniform is None and normal is None:
            assert leaf.initial in {"ones", "zeros"}
            assert set(values.flat) == {1.0 if leaf.initial == "ones" else 0.0}
            continue
        std = uniform / math.sqrt(3) if uniform is not None else normal
        assert abs(values.mean()) < 6 * std / math.sqrt(values.size)
        assert values.std() == pytest.approx(std, rel=5 / math.sqrt(values.size))
        if uniform is not None:
            assert -uniform * (1 + 1e-7) <= values.min()
            assert values.max() < uniform * (1 + 1e-7)
            assert abs(values).max() > uniform * (1 - 12 / values.size)
        else:
            assert abs(values).max() < 6.5 * std
            assert (abs(values) > std).mean() == pytest.approx(0.317, abs=3 / math.sqrt(values.size))


@pytest.mark.parametrize("name", ["BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RmsNorm", "PRelu"])
def test_constant_initial_values_are_exact(name):
    for slot, leaf in zip(walk(make(name, SMALL[name])), leaves(name, SMALL[name]), strict=True):
        expected = {"ones": 1.0, "zeros": 0.0, "state zeros": 0.0, "state ones": 1.0, "constant(alpha)": 0.25}
        assert set(slot.snapshot().numpy().flat) == {expected[leaf.initial]}


def test_fans_reach_other_initializers():
    nn.seed(3)
    linear = nn.Linear(400, 100, initializer=nn.KaimingUniform(gain=1.0, fan_out_only=True))
    assert abs(linear.weight.value).max() == pytest.approx(math.sqrt(3) / 10, rel=1e-3)
    conv = nn.Conv2d([8, 32], [3, 3], groups=2, initializer=nn.XavierUniform())
    assert abs(conv.weight.value).max() == pytest.approx(math.sqrt(6 / (4 * 9 + 16 * 9)), rel=1e-2)
    assert conv.bias.value.shape == (32,)


@pytest.mark.parametrize(
    "make_param",
    [
        lambda: nn.Conv1d(2, 4, 3, initializer=nn.XavierNormal()).bias,
        lambda: nn.Conv1d(2, 4, 3, initializer=nn.KaimingNormal(fan_out_only=True)).bias,
        lambda: nn.ConvTranspose2d([2, 4], [3, 3], initializer=nn.XavierUniform()).weight,
        lambda: nn.ConvTranspose1d([2, 4], 3, initializer=nn.KaimingUniform(fan_out_only=True)).bias,
        lambda: nn.Embedding(4, 3, initializer=nn.KaimingUniform()).weight,
        lambda: nn.Linear(4, 3, initializer=nn.Orthogonal()).bias,
        lambda: nn.Linear(0, 3).weight,
        lambda: nn.Linear(4, 3, initializer=nn.KaimingUniform(gain=0.0)).weight,
    ],
)
def test_an_initializer_without_its_fan_fails_at_first_use_not_before(make_param):
    param = make_param()
    with pytest.raises(ValueError, match=r"fan|two axes|range"):
        _ = param.value
    assert not param.is_initialized


def test_conv1d_passes_fan_out_to_its_weight():
    assert nn.Conv1d(2, 4, 3, initializer=nn.XavierNormal()).weight.value.shape == (4, 2, 3)


def test_a_column_linear_has_its_stored_form_and_swapped_fans():
    nn.seed(11)
    linear = nn.Linear(400, 25, layout="Col")
    assert linear.weight.shape == (25, 400)
    assert linear.weight.memory_shape == (400, 25)
    assert linear.weight.transposed
    assert not nn.Linear(400, 25).weight.transposed
    assert abs(linear.weight.value).max() == pytest.approx(1 / 5, rel=1e-3)  # 1/√d_output, not 1/√d_input
    assert abs(linear.bias.value).max() <= 1 / 20
    inner = nn.SwiGlu(3, 5, layout="Col")
    assert inner.linear_inner.weight.shape == inner.linear_outer.weight.shape == (5, 3)
