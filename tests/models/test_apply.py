from __future__ import annotations

import itertools
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import burnstore as bs
from burnstore import nn
from burnstore.errors import CorruptError, LoadError, MissingTensorsError, ModelError
from burnstore.models.result import ApplyResult, MissingTensor
from burnstore.pipeline.execute import apply
from burnstore.pipeline.save import collect
from burnstore.tensor.data import TensorData
from burnstore.tensor.snapshot import TensorSnapshot
from burnstore.transforms.adapters import ModuleAdapter, PyTorchToBurnAdapter
from burnstore.transforms.filter import PathFilter


def tensor(path, array, **facts):
    return TensorSnapshot.from_numpy(path, np.asarray(array), **facts)


class Net(nn.Module):
    def __init__(self):
        self.encoder = nn.Linear(2, 3)
        self.norm = nn.LayerNorm(3)


def full(value=1.0):
    return [
        tensor("encoder.weight", np.full((2, 3), value, np.float32), param_id=42),
        tensor("encoder.bias", np.full(3, value, np.float32)),
        tensor("norm.gamma", np.full(3, value, np.float32)),
        tensor("norm.beta", np.full(3, value, np.float32)),
    ]


def test_every_parameter_takes_its_tensor_in_the_models_order():
    model = Net()
    result = apply(model, reversed(full()))
    assert result.applied == ["encoder.weight", "encoder.bias", "norm.gamma", "norm.beta"]
    assert result.is_success() and result.is_complete
    assert (model.encoder.weight.value == 1).all()


def test_a_stored_id_is_taken_and_an_absent_one_leaves_the_models():
    model = Net()
    before = model.encoder.bias.id
    apply(model, full())
    assert model.encoder.weight.id == 42
    assert model.encoder.bias.id == before


def test_of_tensors_with_one_path_the_last_counts():
    model = Net()
    apply(model, full(1.0) + full(2.0)[:1])
    assert (model.encoder.weight.value == 2).all()
    assert (model.encoder.bias.value == 1).all()


def test_missing_and_unused_are_sorted_and_missing_carry_their_containers():
    result = apply(Net(), [tensor("z", [1.0]), tensor("a", [1.0])])
    assert result.unused == ["a", "z"]
    assert result.missing == ["encoder.bias", "encoder.weight", "norm.beta", "norm.gamma"]
    assert result.missing[0].container_path == "Struct:Net.Struct:Linear"


def test_what_the_filter_leaves_out_is_skipped_if_the_source_has_it_and_missing_if_not():
    result = apply(Net(), full()[:3], PathFilter().with_regex("^encoder"))
    assert result.applied == ["encoder.weight", "encoder.bias"]
    assert result.skipped == ["norm.gamma"]
    assert result.missing == ["norm.beta"]
    assert result.unused == []


def test_a_filter_sees_the_models_containers():
    only_norms = PathFilter().with_predicate(lambda path, container: container.endswith("LayerNorm"))
    assert apply(Net(), full(), only_norms).applied == ["norm.gamma", "norm.beta"]


def test_a_shape_that_does_not_fit_is_an_error_and_leaves_the_parameter():
    model = Net()
    apply(model, full(5.0))
    result = apply(model, [tensor("encoder.weight", np.zeros((3, 2), np.float32)), *full()[1:]])
    (error,) = result.errors
    assert (error.kind, error.expected, error.found) == ("ShapeMismatch", (2, 3), (3, 2))
    assert "encoder.weight" not in [*result.missing, *result.unused, *result.applied]
    assert (model.encoder.weight.value == 5).all()
    path, same = error
    assert path == "encoder.weight" and same is error


@pytest.mark.parametrize("shape", [(), (1, 3), (3, 1), (6,)])
def test_shapes_are_compared_exactly(shape):
    model = {"a": np.zeros(3, np.float32)}
    assert apply(model, [tensor("a", np.zeros(shape, np.float32))]).errors[0].kind == "ShapeMismatch"


FLOATS = ["f8", "f4", "f2", ml_dtypes.bfloat16]
INTS = ["i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1"]


@pytest.mark.parametrize(("wanted", "given"), [*itertools.product(FLOATS, FLOATS), *itertools.product(INTS, INTS)])
def test_a_parameter_takes_the_tensors_own_dtype_within_its_kind(wanted, given):
    model = {"a": np.zeros(2, wanted)}
    assert apply(model, [tensor("a", np.ones(2, given))]).applied == ["a"]
    assert model["a"].dtype == given and (model["a"] == 1).all()


@pytest.mark.parametrize(
    ("wanted", "given"), [("f4", "i4"), ("i4", "f4"), ("?", "f4"), ("f4", "?"), ("i8", "?"), ("?", "i8"), ("?", "u2")]
)
def test_another_kind_is_refused_before_anything_is_read(wanted, given):
    model = {"a": np.zeros(2, wanted)}
    unread = TensorSnapshot.from_closure("a", bs.DType.of(np.dtype(given)), (2,), lambda: pytest.fail("read"))
    (error,) = apply(model, [unread]).errors
    assert error.kind == "DTypeMismatch"
    assert error.message.startswith("DType mismatch for 'a': expected ")
    assert model["a"].dtype == wanted


@pytest.mark.parametrize("given", ["u1", "u4", "?"])
def test_a_bool_parameter_takes_bools_and_the_integers_that_backends_store_them_in(given):
    model = {"a": np.zeros(4, bool)}
    apply(model, [tensor("a", np.array([1, 0, 1, 0], given))])
    assert model["a"].dtype == bool and model["a"].tolist() == [True, False, True, False]


def test_an_integer_that_is_no_bool_is_a_load_error():
    model = {"a": np.zeros(1, bool)}
    (error,) = apply(model, [tensor("a", np.array([2], np.uint8))]).errors
    assert error.kind == "LoadError"


def test_a_tensor_that_cannot_be_read_is_reported_and_the_others_are_applied():
    def broken():
        raise CorruptError("no such bytes")

    model = Net()
    snapshots = [TensorSnapshot.from_closure("encoder.weight", bs.DType.F32, (2, 3), broken), *full()[1:]]
    result = apply(model, snapshots)
    assert [error.kind for error in result.errors] == ["LoadError"]
    assert "no such bytes" in str(result.errors[0])
    assert len(result.applied) == 3


def test_validate_and_allow_partial_raise_and_leave_the_model_as_it_was():
    model = Net()
    apply(model, full(3.0))
    wrong = [tensor("encoder.weight", np.zeros((9, 9), np.float32)), *full(7.0)[1:]]
    with pytest.raises(LoadError, match="Import errors") as caught:
        apply(model, wrong, validate=True)
    assert isinstance(caught.value.result, ApplyResult)
    with pytest.raises(MissingTensorsError, match="Missing tensors") as caught:
        apply(model, full(7.0)[:3], allow_partial=False)
    assert caught.value.result.missing == ["norm.beta"]
    assert "allow_partial" in str(caught.value)
    assert all((slot.numpy() == 3).all() for slot in collect(model))


def test_a_function_that_raises_anything_leaves_the_model_as_it_was():
    model = Net()
    apply(model, full(3.0))
    bad = TensorSnapshot.from_closure("norm.beta", bs.DType.F32, (3,), lambda: 1 / 0)
    with pytest.raises(LoadError):
        apply(model, [*full(7.0)[:3], bad], validate=True)
    assert all((slot.numpy() == 3).all() for slot in collect(model))


def test_an_adapter_transposes_and_finds_other_names_which_count_as_used():
    source = [
        tensor("encoder.weight", np.arange(6, dtype=np.float32).reshape(3, 2)),
        tensor("encoder.bias", np.zeros(3, np.float32)),
        tensor("norm.weight", np.ones(3, np.float32)),
        tensor("norm.bias", np.ones(3, np.float32)),
    ]
    model = Net()
    result = apply(model, source, adapter=PyTorchToBurnAdapter())
    assert result.is_complete and result.unused == []
    assert model.encoder.weight.value.tolist() == [[0, 2, 4], [1, 3, 5]]


class SplitFused(ModuleAdapter):
    """A file keeps weight and bias of a Linear as one matrix."""

    def adapt_module(self, module_type, tensors):
        if module_type != "Struct:Linear" or "fused" not in tensors:
            return tensors
        fused = tensors["fused"]
        rows, columns = fused.shape
        return {
            "weight": TensorSnapshot.from_closure("weight", fused.dtype, (rows - 1, columns), lambda: fused[:-1]),
            "bias": TensorSnapshot.from_closure("bias", fused.dtype, (columns,), lambda: fused[-1]),
        }


def test_a_structural_adapter_gives_another_set_of_tensors():
    source = [tensor("encoder.fused", np.arange(9, dtype=np.float32).reshape(3, 3)), *full()[2:]]
    model = Net()
    result = apply(model, source, adapter=SplitFused())
    assert result.is_complete and result.unused == []
    assert model.encoder.weight.value.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert model.encoder.bias.value.tolist() == [6, 7, 8]


class FuseGates(ModuleAdapter):
    """A file keeps the input weights of an LSTM's gates side by side; the model has one Linear per gate."""

    def adapt_module(self, module_type, tensors):
        if module_type != "Struct:Lstm" or "weight_ih" not in tensors:
            return tensors
        fused = tensors["weight_ih"]
        width = fused.shape[1] // 4
        gates = ("input_gate", "forget_gate", "cell_gate", "output_gate")
        return {
            f"{gate}.input_transform.weight": TensorSnapshot.from_closure(
                gate, fused.dtype, (fused.shape[0], width), lambda at=at: fused[:, at * width : (at + 1) * width]
            )
            for at, gate in enumerate(gates)
        }


def test_a_structural_adapter_reaches_into_modules_whose_parameters_lie_deeper():
    class Model(nn.Module):
        def __init__(self):
            self.lstm = nn.Lstm(2, 3, False)

    fused = np.arange(24, dtype=np.float32).reshape(2, 12)
    model = Model()
    result = apply(model, [tensor("lstm.weight_ih", fused)], adapter=FuseGates())
    assert len(result.applied) == 4 and result.unused == []
    assert np.array_equal(model.lstm.cell_gate.input_transform.weight.value, fused[:, 6:9])


def test_quantized_tensors_stay_quantized_in_a_parameter_and_read_as_values():
    from burnstore.tensor.quantization import QuantScheme, QuantStore

    dtype = bs.DType.qfloat(QuantScheme("Q8S", QuantStore("Native")))
    data = TensorData.from_bytes(bytes([1, 2, 3, 4, 5, 6]) + np.float32(0.5).tobytes(), dtype, (2, 3))
    model = Net()
    apply(model, [TensorSnapshot.from_data("encoder.weight", data)])
    assert model.encoder.weight.dtype is dtype
    assert model.encoder.weight.value.tolist() == [[0.5, 1, 1.5], [2, 2.5, 3]]
    assert collect(model)[0].to_bytes() == data.to_bytes()


def test_arrays_in_tuples_are_filled_and_those_of_another_dtype_refused():
    inside = np.zeros(2, np.float32)
    model = SimpleNamespace(pair=(inside,))
    apply(model, [tensor("pair.0", np.ones(2, np.float32))])
    assert inside.tolist() == [1, 1]
    with pytest.raises(ModelError, match="tuple"):
        apply(model, [tensor("pair.0", np.ones(2, np.float64))])


def test_shared_parameters_stay_shared():
    shared = nn.Linear(2, 3)

    class Tied(nn.Module):
        def __init__(self):
            self.a = shared
            self.b = shared

    model = Tied()
    assert [s.path for s in collect(model)] == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert collect(model)[0].param_id == collect(model)[2].param_id
    apply(model, collect(model))
    assert model.a is model.b
    plain = {"a": np.zeros(2, np.float32)}
    plain["b"] = plain["a"]
    apply(plain, [tensor("a", np.ones(2, np.float32)), tensor("b", np.ones(2, np.float32))])
    assert plain["a"] is plain["b"]


def test_a_shared_parameter_cannot_take_two_different_tensors():
    plain = {"a": np.zeros(2, np.float32)}
    plain["b"] = plain["a"]
    result = apply(plain, [tensor("a", np.ones(2, np.float32)), tensor("b", np.zeros(2, np.float32))])
    assert [error.path for error in result.errors] == ["b"]
    assert "shared" in str(result.errors[0])


def test_an_empty_model_takes_nothing():
    result = apply({}, full())
    assert result.applied == [] and len(result.unused) == 4


def test_the_report_names_the_enum_variant_and_the_nearest_name():
    result = ApplyResult(
        missing=[MissingTensor.at("feature.BaseConv.weight", "Struct:M.Enum:Feature.Struct:Conv2d")],
        unused=["feature.weight", "other"],
    )
    shown = str(result)
    assert "enum variant" in shown and "did you mean 'feature.weight'?" in shown and "skip_enum_variants" in shown


def test_the_report_shows_ten_of_each_and_counts_the_rest():
    shown = str(ApplyResult(missing=[MissingTensor.at(f"m{i:02}", "") for i in range(25)], unused=["q" * 30] * 12))
    assert "m09" in shown and "m10" not in shown and "… and 15 more" in shown and "… and 2 more" in shown


def test_the_report_escapes_hostile_names_and_renders_as_html():
    result = ApplyResult(unused=["\x1b[31mred", "<script>"])
    assert "\x1b" not in str(result)
    assert "<script>" not in result._repr_html_() and "&lt;script&gt;" in result._repr_html_()


def test_the_result_is_plain_data():
    result = apply(Net(), full()[:1])
    assert result.to_dict()["applied"] == ["encoder.weight"]
    assert result.to_dict()["missing"][0] == {"path": "encoder.bias", "containers": "Struct:Net.Struct:Linear"}


@pytest.mark.parametrize("make", [lambda: {"a": np.ones(4, np.float32)}, lambda: nn.Linear(2, 2)])
def test_a_transfer_copies_and_the_models_stay_independent(make):
    source, target = make(), make()
    apply(target, collect(source))
    for adapted in (None, PyTorchToBurnAdapter()):
        apply(target, collect(source, adapter=adapted))
        for ours, theirs in zip(collect(source), collect(target), strict=True):
            assert not np.shares_memory(ours.numpy(), theirs.numpy())
