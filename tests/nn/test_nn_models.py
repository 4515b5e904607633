"""Declaring models: fields, enums, arrays, ids, activations, versions, adapters, states."""

from __future__ import annotations

import copy
import doctest
import importlib
import pickle
import pkgutil
import threading

import numpy as np
import pytest

from burnstore import nn
from burnstore.errors import ModelError
from burnstore.models.plain import walk
from burnstore.tensor.data import TensorData
from burnstore.tensor.dtype import DType
from burnstore.tensor.param_id import ParamId


def paths(model: object) -> list[str]:
    return [slot.path for slot in walk(model)]


def test_normalization_puts_the_variant_between_field_and_parameter():
    class Net(nn.Module):
        def __init__(self):
            self.norm = nn.Normalization.Layer(nn.LayerNorm(4))
            self.none = nn.Normalization.Identity(nn.Identity())

    assert [(slot.path, slot.container_stack) for slot in walk(Net())] == [
        ("norm.Layer.gamma", ("Struct:Net", "Enum:Normalization", "Struct:LayerNorm")),
        ("norm.Layer.beta", ("Struct:Net", "Enum:Normalization", "Struct:LayerNorm")),
    ]
    assert list(nn.Normalization.variants()) == ["Identity", "Batch", "Group", "Instance", "Layer", "Rms"]


def test_activation_has_burns_variants_in_order():
    assert " ".join(nn.Activation.variants()) == (
        "Identity Gelu PRelu Relu LeakyRelu SwiGlu Selu Sigmoid Tanh HardSigmoid HardSwish Softplus Softsign Elu Celu "
        "ThresholdedRelu HardShrink SoftShrink Shrink"
    )


@pytest.mark.parametrize("name", [name for name in nn.Activation.variants() if name != "SwiGlu"])
def test_every_activation_is_built_from_its_name(name):
    built = nn.Activation.build(name)
    assert built.variant == name
    assert type(built.payload).__name__ == name


def test_gelu_approximate_is_a_gelu():
    built = nn.Activation.build("GeluApproximate")
    assert (built.variant, built.payload.approximate) == ("Gelu", True)


def test_learned_activations_come_after_the_gates_with_parameters_of_their_own():
    pattern = nn.PRelu()
    lstm = nn.BiLstm(2, 3, False, gate_activation=pattern, cell_activation=nn.Activation.PRelu(pattern))
    learned = [slot for slot in walk(lstm) if "activation" in slot.path]
    assert [slot.path for slot in learned] == [
        "forward.gate_activation.PRelu.alpha",
        "forward.cell_activation.PRelu.alpha",
        "reverse.gate_activation.PRelu.alpha",
        "reverse.cell_activation.PRelu.alpha",
    ]
    assert learned[0].container_stack == ("Struct:BiLstm", "Struct:Lstm", "Enum:Activation", "Struct:PRelu")
    assert len({slot.holder.id for slot in learned} | {pattern.alpha.id}) == 5
    assert len({id(slot.holder) for slot in learned} | {id(pattern.alpha)}) == 5
    swish = nn.Rnn(2, 3, True, hidden_activation=nn.SwiGlu(3, 3))
    assert paths(swish)[-2:] == [
        "hidden_activation.SwiGlu.linear_inner.weight",
        "hidden_activation.SwiGlu.linear_outer.weight",
    ]
    gru = nn.Gru(2, 3, True, gate_activation="PRelu", hidden_activation="PRelu")
    assert paths(gru)[-2:] == ["gate_activation.PRelu.alpha", "hidden_activation.PRelu.alpha"]


def test_the_activation_of_a_feed_forward_layer_is_stored_from_0_23_on():
    assert paths(nn.PositionWiseFeedForward(2, 3, activation="PRelu"))[-1] == "linear_outer.bias"
    newer = list(walk(nn.PositionWiseFeedForward(2, 3, activation="PRelu", burn_version="0.23.0-pre.1")))
    assert newer[-1].path == "activation.PRelu.alpha"
    assert newer[-1].container_stack == ("Struct:PositionWiseFeedForward", "Enum:Activation", "Struct:PRelu")
    for stack in (nn.TransformerEncoder, nn.TransformerDecoder):
        model = stack(2, 4, 2, 2, activation=nn.PRelu(), burn_version="0.23")
        learned = [slot for slot in walk(model) if "activation" in slot.path]
        assert [slot.path for slot in learned] == [f"layers.{i}.pwff.activation.PRelu.alpha" for i in range(2)]
        assert len({slot.holder.id for slot in learned}) == 2
        assert not any("activation" in path for path in paths(stack(2, 4, 2, 2, activation=nn.PRelu())))


@pytest.mark.parametrize("version", ["0.19", "0.20.1", "0.21.0"])
def test_a_coupled_lstm_keeps_its_forget_gate_up_to_0_21(version):
    whole = paths(nn.Lstm(2, 3, True))
    assert paths(nn.Lstm(2, 3, True, input_forget=True, burn_version=version)) == whole
    coupled = [path for path in whole if not path.startswith("forget_gate")]
    assert paths(nn.Lstm(2, 3, True, input_forget=True)) == coupled
    assert paths(nn.Lstm(2, 3, True, burn_version=version)) == whole
    both = nn.BiLstm(2, 3, True, input_forget=True, burn_version=version)
    assert sum("forget_gate" in path for path in paths(both)) == 8


def test_ids_are_unique_and_stay():
    model = nn.TransformerDecoder(4, 8, 2, 6)
    ids = [slot.snapshot().param_id for slot in walk(model)]
    assert len(set(ids)) == len(ids)
    assert [slot.snapshot().param_id for slot in walk(model)] == ids
    assert [slot.holder.id for slot in walk(copy.deepcopy(model))] == ids  # a clone keeps them, as in Burn


def test_a_load_gives_a_parameter_the_id_of_the_file_but_never_a_running_state():
    norm = nn.BatchNorm(2)
    before = {slot.path: slot.holder.id for slot in walk(norm)}
    for slot in walk(norm):
        slot.assign(np.full(2, 3.0, np.float32), 42)
    assert (norm.gamma.id, norm.beta.id) == (42, 42)
    assert norm.running_mean.id == before["running_mean"]
    assert norm.running_var.id == before["running_var"]
    assert norm.running_var.value.tolist() == [3.0, 3.0]
    assert not norm.running_var.require_grad


def test_a_load_never_draws():
    linear = nn.Linear(2, 3, initializer=nn.Orthogonal())  # drawing the bias would fail
    for slot in walk(linear):
        slot.assign(np.ones(slot.shape, np.float16), None)
    assert (linear.bias.dtype, linear.bias.value.tolist()) == (DType.F16, [1.0, 1.0, 1.0])


def test_fields_keep_their_order_when_they_are_replaced():
    attention = nn.MultiHeadAttention(2, 1)
    attention.query = nn.Linear(2, 2, bias=False)
    attention.set_field("key", None)
    assert paths(attention) == ["query.weight", "value.weight", "value.bias", "output.weight", "output.bias"]


def test_field_names_and_skipped_decide_what_is_stored():
    class Net(nn.Module):
        field_names = {"fields_": "fields", "lambda_": "lambda"}  # noqa: RUF012
        skipped = frozenset({"cache"})

        def __init__(self):
            self.fields_ = [nn.Param([1])]
            self.lambda_ = np.zeros(2, np.float32)
            self.cache = np.zeros(3)

    net = Net()
    assert paths(net) == ["fields.0", "lambda"]
    slots = {slot.path: slot for slot in walk(net)}
    slots["lambda"].assign(np.ones(2, np.float32), None)
    assert net.lambda_.tolist() == [1.0, 1.0]
    assert nn.num_params(net) == 3


@pytest.mark.parametrize("name", ["fields", "set_field", "skipped", "field_names"])
def test_a_field_that_would_hide_the_walk_is_refused_with_the_way_out(name):
    class Net(nn.Module):
        def __init__(self):
            setattr(self, name, nn.Linear(2, 2))

    with pytest.raises(AttributeError, match=f'"{name}_": "{name}"'):
        Net()


def test_options_arrays_and_lists_nest():
    class Net(nn.Module):
        def __init__(self):
            self.rows = [[nn.Linear(1, 1, bias=False)], [None, nn.Linear(1, 1, bias=False)]]
            self.variant = nn.FixedArray([(nn.Param([1]), nn.Param([2]))])

    assert [(slot.path, slot.container_stack[1:]) for slot in walk(Net())] == [
        ("rows.0.0.weight", ("Vec", "Vec", "Struct:Linear")),
        ("rows.1.1.weight", ("Vec", "Vec", "Struct:Linear")),
        ("variant.0.0", ("Array", "Tuple")),
        ("variant.0.1", ("Array", "Tuple")),
    ]


def test_an_enum_may_hold_a_parameter_or_a_tuple():
    class Any_(nn.Enum):  # noqa: N801
        Raw = nn.variant()
        Pair = nn.variant(tuple)

    class Net(nn.Module):
        def __init__(self):
            self.a = Any_.Raw(nn.Param([2]))
            self.b = Any_.Pair((nn.Linear(1, 1, bias=False),))

    assert paths(Net()) == ["a.Raw", "b.Pair.0.weight"]


def test_enum_of_refuses_what_no_or_several_variants_hold():
    class Twice(nn.Enum):
        A = nn.variant(nn.Linear)
        B = nn.variant(nn.Linear)

    with pytest.raises(TypeError, match="several"):
        Twice.of(nn.Linear(1, 1))
    with pytest.raises(TypeError, match="no variant"):
        nn.Normalization.of(nn.Linear(1, 1))


def test_lora_follows_its_base_and_freezes_the_rest():
    class Net(nn.Module):
        def __init__(self):
            self.embedding = nn.Embedding(9, 4)
            self.fc = nn.Linear(4, 6)
            self.col = nn.Linear(4, 6, layout="Col", bias=False)
            self.conv = nn.Conv1d(2, 3, 3, bias=False)
            self.steps = nn.Param([2, 2], dtype=DType.I64)

    net = Net()
    before = net.num_params()
    assert nn.apply_lora(net, 2, 8.0, select=lambda path: path != "embedding.weight") == ["fc.weight", "col.weight"]
    assert [(slot.path, slot.shape) for slot in walk(net)] == [
        ("embedding.weight", (9, 4)),
        ("fc.weight", (4, 6)),
        ("fc.weight.lora.a", (4, 2)),
        ("fc.weight.lora.b", (2, 6)),
        ("fc.bias", (6,)),
        ("col.weight", (6, 4)),  # as it is stored; the factors have the shape that the layer computes with
        ("col.weight.lora.a", (4, 2)),
        ("col.weight.lora.b", (2, 6)),
        ("conv.weight", (3, 2, 3)),
        ("steps", (2, 2)),
    ]
    slots = {slot.path: slot for slot in walk(net)}
    base = ("Struct:Net", "Struct:Linear")
    assert slots["fc.weight"].container_stack == base
    assert slots["fc.weight.lora.b"].container_stack == (*base, "Reparameterization", "Struct:LoraAdapter")
    trained = [path for path, slot in slots.items() if slot.holder.require_grad]
    assert trained == ["fc.weight.lora.a", "fc.weight.lora.b", "col.weight.lora.a", "col.weight.lora.b"]
    assert net.num_params() == before + 2 * (4 * 2 + 2 * 6)
    assert net.fc.weight.reparameterization[1].scale == 4.0
    assert not any(slot.holder.is_initialized for slot in slots.values())
    assert set(slots["fc.weight.lora.b"].snapshot().numpy().flat) == {0.0}


def test_lora_factors_are_drawn_with_their_deviation():
    nn.seed(5)
    assert nn.LoraAdapter(500, 3, 20, 1.0).a.value.std() == pytest.approx(1 / 20, rel=0.05)
    assert nn.LoraAdapter(500, 3, 20, 1.0, init_std=0.5).a.value.std() == pytest.approx(0.5, rel=0.05)


def test_lora_refuses_to_do_nothing_or_to_do_it_twice():
    net = nn.Linear(3, 4)
    with pytest.raises(ModelError, match="selected"):
        nn.apply_lora(net, 2, 1.0, select=lambda path: False)
    assert net.weight.require_grad
    nn.apply_lora(net, 2, 1.0)
    with pytest.raises(ModelError, match="already"):
        nn.apply_lora(net, 2, 1.0)
    with pytest.raises(ModelError, match="bare array"):
        nn.apply_lora({"weight": np.zeros((2, 2), np.float32)}, 2, 1.0)


def test_num_params_counts_floats_only():
    model = {
        "weight": np.zeros((2, 3), np.float32),
        "steps": np.zeros(4, np.int64),
        "mask": nn.Param([5], dtype=DType.Bool),
        "half": nn.Param([7], dtype=DType.BF16),
    }
    assert nn.num_params(model) == 6 + 7


@pytest.mark.parametrize(
    "dtype", ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "Bool"]
)
def test_a_parameter_of_any_dtype_is_declared_and_drawn_lazily(dtype):
    kind = DType.parse(dtype)
    param = nn.Param([3], nn.Ones(), dtype=kind)
    assert param.dtype is kind
    assert param.require_grad is kind.is_float
    assert not param.is_initialized
    assert param.value.dtype == kind.numpy
    assert param.dtype is kind
    assert param.value.astype(np.float64).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", [DType.Flex32, DType.BoolU8, DType.BoolU32])
def test_a_dtype_that_numpy_cannot_tell_apart_is_not_drawn(dtype):
    with pytest.raises(ValueError, match="from_data"):
        nn.Param([3], dtype=dtype)


def test_from_data_takes_arrays_lists_and_tensor_data():
    assert nn.Param.from_data([[1.0, 2.0]]).dtype is DType.F32  # Burn's default float
    assert nn.Param.from_data(np.zeros(2)).dtype is DType.F64
    integers = nn.Param.from_data([1, 2])
    assert (integers.dtype, integers.require_grad) == (DType.I64, False)
    flex = nn.Param.from_data(TensorData.from_bytes(bytes(8), DType.Flex32, [2]), id=ParamId(7))
    assert (flex.dtype, flex.id, flex.value.tolist(), flex.data.dtype) == (DType.Flex32, 7, [0.0, 0.0], DType.Flex32)
    with pytest.raises(ValueError, match=r"\[3\]"):
        flex.set(np.zeros(3, np.float32))


def test_a_seed_repeats_values_and_none_does_not():
    def drawn() -> list[float]:
        return nn.Linear(4, 4).weight.value.ravel().tolist()

    nn.seed(1)
    first = drawn()
    nn.seed(1)
    assert drawn() == first
    assert drawn() != first
    nn.seed(None)
    assert drawn() != first


def test_threads_that_read_one_parameter_at_once_see_one_value():
    for _ in range(20):
        param = nn.Linear(64, 64).weight
        gate = threading.Barrier(4)
        seen: list[np.ndarray] = []

        def read(param: nn.Param = param, gate: threading.Barrier = gate, seen: list[np.ndarray] = seen) -> None:
            gate.wait()
            seen.append(param.value)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(value) for value in seen}) == 1


def test_models_are_copied_and_pickled_whole():
    class_free = nn.BiGru(2, 3, True, gate_activation="PRelu")
    nn.apply_lora(class_free, 1, 1.0)
    drawn = class_free.forward.new_gate.input_transform.weight.value
    for twin in (copy.deepcopy(class_free), pickle.loads(pickle.dumps(class_free))):
        assert [(slot.path, slot.holder.id) for slot in walk(twin)] == [
            (slot.path, slot.holder.id) for slot in walk(class_free)
        ]
        assert np.array_equal(twin.forward.new_gate.input_transform.weight.value, drawn)
        assert not twin.reverse.new_gate.input_transform.weight.is_initialized


@pytest.mark.parametrize(
    "initializer",
    [nn.Uniform(1.0, 1.0 + 2**-22), nn.Uniform(-1e-3, 1e-3), nn.Uniform(0.0, 1.0), nn.Uniform(1e8, 1e8 + 3)],
)
def test_a_uniform_range_excludes_its_upper_bound(initializer):
    values = initializer.fill([20000], np.random.default_rng(0))
    assert values.dtype == np.float32
    assert values.min() >= np.float32(initializer.min)
    assert values.max() < max(
        np.float32(initializer.max), np.nextafter(np.float32(initializer.min), np.float32(np.inf))
    )


@pytest.mark.parametrize(
    "initializer",
    [
        nn.Uniform(1.0, 1.0),
        nn.Uniform(1.0, 0.0),
        nn.Uniform(0.0, float("inf")),
        nn.Uniform(float("nan"), 1.0),
        nn.Uniform(-3e38, 3e38),
        nn.Normal(0.0, float("nan")),
        nn.Normal(0.0, float("inf")),
        nn.Normal(float("nan"), 1.0),
    ],
)
def test_impossible_distributions_are_refused(initializer):
    with pytest.raises(ValueError, match="finite"):
        initializer.fill([2], np.random.default_rng(0))


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (3, 2, 5), (5, 5)])
def test_orthogonal_rows_or_columns(shape):
    flat = nn.Orthogonal(gain=2.0).fill(shape, np.random.default_rng(1)).reshape(shape[0], -1).astype(np.float64)
    gram = flat @ flat.T if flat.shape[0] <= flat.shape[1] else flat.T @ flat
    assert np.allclose(gram, 4 * np.eye(len(gram)), atol=1e-5)


def test_ones_and_zeros_have_no_words():
    assert (repr(nn.Ones()), repr(nn.Zeros())) == ("Ones()", "Zeros()")
    with pytest.raises(TypeError):
        nn.Ones(2.0)


def test_importing_burnstore_does_not_import_its_layers(run_python):
    run_python("import sys, burnstore; assert not any(name.startswith('burnstore.nn') for name in sys.modules)")


def test_all_names_what_is_there():
    assert sorted(nn.__all__) == sorted(set(nn.__all__))
    for name in nn.__all__:
        assert getattr(nn, name).__doc__, name


@pytest.mark.parametrize(
    "name", ["burnstore.nn", *(f"burnstore.nn.{each.name}" for each in pkgutil.iter_modules(nn.__path__))]
)
def test_the_examples_of_the_layers_hold(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
