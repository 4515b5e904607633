from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from burnstore.errors import DTypeError
from burnstore.tensor.data import TensorData
from burnstore.tensor.dtype import DType
from burnstore.tensor.snapshot import TensorSnapshot
from burnstore.transforms.adapters import (
    BurnToPyTorchAdapter,
    FloatCastAdapter,
    HalfPrecisionAdapter,
    IdentityAdapter,
    ModuleAdapter,
    PyTorchToBurnAdapter,
)
from burnstore.transforms.axes import transposed
from burnstore.transforms.precision import cast


def tensor(path: str, array: np.ndarray, module: str | None = None) -> TensorSnapshot:
    stack = ["Struct:Model"] + ([module] if module else [])
    return TensorSnapshot.from_numpy(path, array, param_id=7, container_stack=stack if module else [])


MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_identity_gives_the_snapshot_itself():
    snapshot = tensor("a", MATRIX)
    assert IdentityAdapter().adapt(snapshot) is snapshot


@pytest.mark.parametrize("adapter", [PyTorchToBurnAdapter(), BurnToPyTorchAdapter()])
def test_a_linear_weight_is_transposed_data_and_shape(adapter):
    adapted = adapter.adapt(tensor("fc.weight", MATRIX, "Struct:Linear"))
    assert adapted.shape == (3, 2)
    assert np.array_equal(adapted.numpy(), MATRIX.T)
    assert adapted.param_id == 7 and adapted.path == "fc.weight" and adapted.module_type == "Struct:Linear"
    assert adapter.adapt(tensor("fc.bias", np.zeros(3, np.float32), "Struct:Linear")).shape == (3,)
    assert adapter.adapt(tensor("fc.weight", np.zeros((2, 3, 4)), "Struct:Linear")).shape == (2, 3, 4)


@pytest.mark.parametrize("module", ["Struct:BatchNorm", "Struct:LayerNorm", "Struct:GroupNorm", "Struct:RmsNorm"])
def test_norm_parameters_are_renamed_both_ways(module):
    to_burn, to_torch = PyTorchToBurnAdapter(), BurnToPyTorchAdapter()
    array = np.ones(3, np.float32)
    assert to_burn.adapt(tensor("encoder.norm.weight", array, module)).path == "encoder.norm.gamma"
    assert to_burn.adapt(tensor("norm.bias", array, module)).path == "norm.beta"
    assert to_torch.adapt(tensor("norm.gamma", array, module)).path == "norm.weight"
    assert to_torch.adapt(tensor("beta", array, module)).path == "bias"
    assert to_burn.adapt(tensor("norm.running_mean", array, module)).path == "norm.running_mean"
    assert to_burn.alternative_param_name("gamma", module) == "weight"
    assert to_torch.alternative_param_name("bias", module) == "beta"
    assert to_burn.alternative_param_name("running_mean", module) is None


@pytest.mark.parametrize("module", ["Struct:InstanceNorm", "Struct:PRelu", "Struct:Conv2d", "Struct:Embedding"])
def test_other_modules_are_left_alone(module):
    snapshot = tensor("x.weight", MATRIX, module)
    assert PyTorchToBurnAdapter().adapt(snapshot) is snapshot
    assert PyTorchToBurnAdapter().alternative_param_name("gamma", module) is None


def test_without_containers_nothing_changes():
    snapshot = tensor("fc.weight", MATRIX)
    assert PyTorchToBurnAdapter().adapt(snapshot) is snapshot
    assert HalfPrecisionAdapter().adapt(snapshot) is snapshot


def test_the_module_type_looks_through_collections():
    snapshot = TensorSnapshot.from_numpy("l.0.weight", MATRIX, container_stack=["Struct:M", "Struct:Linear", "Vec"])
    assert PyTorchToBurnAdapter().adapt(snapshot).shape == (3, 2)


@pytest.mark.parametrize("dtype", ["f8", "i4", "i2", "u1", "u8", ml_dtypes.bfloat16, "?", "c16"])
def test_transposing_is_exact_for_every_dtype(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    assert np.array_equal(transposed(tensor("w", array)).numpy(), array.T)


def test_transposing_keeps_nan_payloads_and_other_bool_stores():
    bits = np.array([[0x7FC00001, 0xFFC12345], [0x7F800001, 0]], np.uint32)
    assert transposed(tensor("w", bits.view(np.float32))).to_bytes() == bits.T.tobytes()
    stored = TensorData.from_bytes(np.uint32([[1, 0, 1], [0, 0, 1]]).tobytes(), DType.BoolU32, (2, 3))
    turned = transposed(TensorSnapshot.from_data("m", stored))
    assert turned.dtype is DType.BoolU32 and turned.numpy().tolist() == [[True, False], [False, False], [True, True]]


def test_a_quantized_weight_is_passed_on_untouched():
    from burnstore.tensor.quantization import QuantScheme, QuantStore

    dtype = DType.qfloat(QuantScheme("Q8S", QuantStore("Native")))
    stored = TensorData.from_bytes(bytes(range(6)) + np.float32(1).tobytes(), dtype, (2, 3))
    snapshot = TensorSnapshot.from_data("fc.weight", stored, container_stack=["Struct:Linear"])
    assert BurnToPyTorchAdapter().adapt(snapshot) is snapshot
    assert HalfPrecisionAdapter().adapt(snapshot) is snapshot
    assert FloatCastAdapter.to(DType.F16).adapt(snapshot) is snapshot


def test_half_precision_goes_down_and_up_again():
    half = HalfPrecisionAdapter()
    down = half.adapt(tensor("w", MATRIX, "Struct:Linear"))
    assert down.dtype is DType.F16 and down.nbytes == 12 and down.numpy().dtype == np.float16
    up = half.adapt(tensor("w", MATRIX.astype(np.float16), "Struct:Linear"))
    assert up.dtype is DType.F32 and np.array_equal(up.numpy(), MATRIX)


def test_half_precision_has_burns_modules_and_can_be_changed():
    half = HalfPrecisionAdapter()
    assert half.module_count == 14
    assert half.adapt(tensor("w", MATRIX, "Struct:BatchNorm")).dtype is DType.F32
    assert half.with_module("BatchNorm").adapt(tensor("w", MATRIX, "Struct:BatchNorm")).dtype is DType.F16
    assert half.without_module("Struct:LayerNorm").adapt(tensor("w", MATRIX, "Struct:LayerNorm")).dtype is DType.F32
    assert half.with_module("Enum:Feature").adapt(tensor("w", MATRIX, "Enum:Feature")).dtype is DType.F16
    with pytest.raises(ValueError, match="not among"):
        half.without_module("LayerNorm")


@pytest.mark.parametrize("array", [MATRIX.astype(np.float64), np.arange(3), np.array([True])])
def test_half_precision_leaves_other_dtypes(array):
    snapshot = tensor("w", array, "Struct:Linear")
    assert HalfPrecisionAdapter().adapt(snapshot) is snapshot


def test_float_cast_changes_every_float_and_nothing_else():
    to_f16 = FloatCastAdapter.to(DType.F16)
    assert to_f16.adapt(tensor("w", MATRIX)).dtype is DType.F16
    assert to_f16.adapt(tensor("w", MATRIX.astype(ml_dtypes.bfloat16), "Struct:Odd")).dtype is DType.F16
    half = tensor("w", MATRIX.astype(np.float16))
    assert to_f16.adapt(half) is half
    integers = tensor("w", np.arange(3))
    assert to_f16.adapt(integers) is integers
    with pytest.raises(DTypeError, match="must be a float dtype"):
        FloatCastAdapter.to(DType.I64)


def test_flex32_keeps_its_name():
    flexible = FloatCastAdapter.to(DType.Flex32).adapt(tensor("w", MATRIX.astype(np.float64)))
    assert flexible.dtype is DType.Flex32 and np.array_equal(flexible.numpy(), MATRIX)
    assert flexible.to_data().dtype is DType.Flex32


def test_casts_round_to_nearest_even():
    values = np.float32([1 + 2**-8, 1 + 3 * 2**-8, -0.0, np.inf, np.nan])
    expected = values.astype(ml_dtypes.bfloat16)
    assert cast(tensor("w", values), DType.BF16).to_bytes() == expected.tobytes()


def test_a_finite_value_that_would_become_infinite_is_an_error():
    with pytest.raises(DTypeError, match=r"1 finite value, up to 1e\+06"):
        cast(tensor("w", np.float32([1e6, np.inf])), DType.F16).numpy()


def test_integers_are_not_cast():
    with pytest.raises(DTypeError):
        cast(tensor("w", np.arange(3)), DType.F32)


def test_a_chain_pipes_tensors_and_names():
    class Rename(ModuleAdapter):
        def __init__(self, old: str, new: str) -> None:
            self.old, self.new = old, new

        def adapt(self, snapshot):
            return snapshot.with_path(snapshot.path.replace(self.old, self.new))

        def alternative_param_name(self, param_name, module_type):
            return self.old if param_name == self.new else None

    chain = Rename("weight", "a").chain(Rename("a", "b"))
    assert chain.adapt(tensor("weight", MATRIX)).path == "b"
    assert Rename("x", "gamma").chain(Rename("y", "x")).alternative_param_name("gamma", "") == "y"
    assert Rename("x", "gamma").chain(Rename("q", "r")).alternative_param_name("gamma", "") == "x"
    assert Rename("q", "r").chain(Rename("x", "gamma")).alternative_param_name("gamma", "") == "x"
    with pytest.raises(TypeError):
        chain.chain("not an adapter")


def test_transpose_and_cast_chain():
    both = PyTorchToBurnAdapter().chain(FloatCastAdapter.to(DType.F16))
    adapted = both.adapt(tensor("fc.weight", MATRIX, "Struct:Linear"))
    assert (adapted.dtype, adapted.shape) == (DType.F16, (3, 2))
    assert np.array_equal(adapted.numpy(), MATRIX.T.astype(np.float16))


def test_nothing_is_read_before_it_is_asked_for():
    calls = []
    lazy = TensorSnapshot.from_closure(
        "fc.weight", DType.F32, (2, 3), lambda: calls.append(1) or MATRIX, container_stack=["Struct:Linear"]
    )
    adapted = PyTorchToBurnAdapter().chain(HalfPrecisionAdapter()).adapt(lazy)
    assert (adapted.shape, adapted.nbytes, calls) == ((3, 2), 12, [])
    adapted.numpy()
    assert calls == [1]
