"""Snapshots: known but not read; described without reading, read when asked, and only the part asked for."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import burnstore as bs
from burnstore import DType, ParamId, TensorData, TensorSnapshot
from burnstore.errors import BurnstoreError, CorruptError, DTypeError, UnsupportedError
from burnstore.io.sizes import CHUNK_BYTES
from burnstore.io.source import BytesSource
from burnstore.tensor.quantization import QuantScheme, QuantStore
from burnstore.tensor.sources import SourceData

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


def of_source(array: np.ndarray[Any, Any], *, share: bool = False) -> TensorSnapshot:
    """A snapshot whose bytes lie in the middle of a source."""
    source = BytesSource(b"before" + array.tobytes() + b"after", share=share)
    data = SourceData(source, 6, array.nbytes)
    return TensorSnapshot("t", DType.of(array.dtype), array.shape, data)


KINDS: dict[str, Any] = {
    "array": lambda: TensorSnapshot.from_numpy("t", ARRAY),
    "strided-array": lambda: TensorSnapshot.from_numpy("t", np.asfortranarray(ARRAY)),
    "data": lambda: TensorSnapshot.from_data("t", TensorData.from_numpy(ARRAY)),
    "closure-of-array": lambda: TensorSnapshot.from_closure("t", DType.F32, [3, 4], lambda: ARRAY),
    "closure-of-data": lambda: TensorSnapshot.from_closure(
        "t", DType.F32, (3, 4), lambda: TensorData.from_numpy(ARRAY)
    ),
    "source": lambda: of_source(ARRAY),
    "shared-source": lambda: of_source(ARRAY, share=True),
}


@pytest.fixture(params=KINDS)
def snapshot(request: pytest.FixtureRequest) -> TensorSnapshot:
    return KINDS[request.param]()


def test_every_kind_of_snapshot_gives_the_same(snapshot: TensorSnapshot) -> None:
    assert (snapshot.path, snapshot.full_path) == ("t", "t")
    assert (snapshot.dtype, snapshot.shape) == (DType.F32, (3, 4))
    assert snapshot.nbytes == snapshot.data_len == 48
    assert snapshot.numpy().tolist() == ARRAY.tolist()
    assert snapshot.to_bytes() == ARRAY.tobytes()
    assert snapshot.to_data().to_bytes() == ARRAY.tobytes()
    assert snapshot.to_data().shape == (3, 4)
    assert b"".join(snapshot.chunks()) == ARRAY.tobytes()
    assert snapshot[1:3, ::2].tolist() == ARRAY[1:3, ::2].tolist()
    assert repr(snapshot) == "TensorSnapshot('t', F32, [3, 4])"


def test_reading_twice_gives_the_same(snapshot: TensorSnapshot) -> None:
    assert snapshot.to_bytes() == snapshot.to_bytes()
    assert snapshot.numpy().tolist() == snapshot.numpy().tolist()


def test_a_copy_is_owned_and_writable(snapshot: TensorSnapshot) -> None:
    copied = snapshot.numpy(copy=True)
    copied[...] = -1
    assert snapshot.numpy().tolist() == ARRAY.tolist() == np.arange(12).reshape(3, 4).tolist()


def test_renaming_shares_the_data(snapshot: TensorSnapshot) -> None:
    renamed = snapshot.with_path("another.name")
    assert (renamed.path, snapshot.path) == ("another.name", "t")
    assert (renamed.dtype, renamed.shape, renamed.nbytes) == (snapshot.dtype, snapshot.shape, snapshot.nbytes)
    assert renamed.to_bytes() == snapshot.to_bytes()


def test_a_snapshot_cannot_be_changed(snapshot: TensorSnapshot) -> None:
    for name in ("path", "dtype", "shape", "nbytes", "param_id", "container_stack", "anything"):
        with pytest.raises(AttributeError):
            setattr(snapshot, name, None)


@pytest.mark.parametrize("kind", ["array", "strided-array", "data", "source", "shared-source"])
def test_a_snapshot_can_be_pickled_and_copied(kind: str) -> None:
    original = KINDS[kind]().with_path("renamed")
    for again in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original), copy.copy(original)):
        assert (again.path, again.dtype, again.shape, again.param_id) == ("renamed", DType.F32, (3, 4), None)
        assert again.to_bytes() == ARRAY.tobytes()


def test_a_snapshot_of_a_function_is_pickled_with_it() -> None:
    again = pickle.loads(pickle.dumps(TensorSnapshot.from_closure("t", DType.F32, [3, 4], give_the_array)))
    assert again.to_bytes() == ARRAY.tobytes()


def give_the_array() -> np.ndarray[Any, Any]:
    return ARRAY


def test_data_can_be_pickled() -> None:
    data = pickle.loads(pickle.dumps(TensorData.from_numpy(ARRAY)))
    assert (data.dtype, data.shape, data.to_bytes()) == (DType.F32, (3, 4), ARRAY.tobytes())


def test_nothing_is_read_before_it_is_asked_for_and_each_time_anew() -> None:
    calls = []

    def provide() -> np.ndarray[Any, Any]:
        calls.append(1)
        return ARRAY

    lazy = TensorSnapshot.from_closure("t", DType.F32, [3, 4], provide)
    described = (repr(lazy), lazy.nbytes, lazy.shape, lazy.with_path("u"), lazy.container_path)
    assert described
    assert calls == []
    lazy.to_bytes()
    lazy.numpy()
    lazy[1]
    assert len(calls) == 3


def test_an_array_is_shared_so_that_later_changes_count() -> None:
    array = ARRAY.copy()
    shared = TensorSnapshot.from_numpy("t", array)
    array[0, 0] = 99
    assert shared.to_bytes() == array.tobytes()
    assert np.shares_memory(shared.numpy(), array)


def test_the_container_stack_names_the_module_that_owns_a_tensor() -> None:
    plain = TensorSnapshot.from_numpy("w", ARRAY)
    assert (plain.container_stack, plain.container_path, plain.container_type) == ((), "", "Unknown")
    assert plain.module_type is None
    nested = TensorSnapshot.from_numpy(
        "m.0.w", ARRAY, container_stack=["Struct:Model", "Struct:Linear", "Vec", "Array"]
    )
    assert nested.container_stack == ("Struct:Model", "Struct:Linear", "Vec", "Array")
    assert nested.container_path == "Struct:Model.Struct:Linear.Vec.Array"
    assert (nested.container_type, nested.module_type) == ("Array", "Struct:Linear")
    assert TensorSnapshot.from_numpy("w", ARRAY, container_stack=["Vec", "Tuple"]).module_type is None
    assert TensorSnapshot.from_numpy("w", ARRAY, container_stack=["Enum:Any", "Tuple"]).module_type == "Enum:Any"
    assert nested.with_path("other").container_stack == nested.container_stack


def test_a_parameter_id_is_kept_as_one() -> None:
    with_id = TensorSnapshot.from_numpy("w", ARRAY, param_id=2**64 - 1)
    assert with_id.param_id == 2**64 - 1
    assert isinstance(with_id.param_id, ParamId)
    assert with_id.with_path("x").param_id == with_id.param_id
    for wrong, error in [(-1, ValueError), (2**64, ValueError), ("5", TypeError), (True, TypeError), (1.0, TypeError)]:
        with pytest.raises(error):
            TensorSnapshot.from_numpy("w", ARRAY, param_id=wrong)


def test_an_odd_name_is_printed_escaped() -> None:
    assert repr(TensorSnapshot.from_numpy("a\x1b[31m\nb", ARRAY[0])) == r"TensorSnapshot('a\\x1b[31m\\nb', F32, [4])"
    assert len(repr(TensorSnapshot.from_numpy("x" * 10_000, ARRAY))) < 300


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        (DType.Bool, np.array([True, False])),
        (DType.BoolU8, np.array([True, False])),
        (DType.Flex32, np.array([1, 2], np.float32)),
        (DType.F32, np.array([1, 2], ">f4")),
        (DType.Flex32, np.array([1, 2], ">f4")),
        (DType.BF16, np.array([1, 2], ml_dtypes.bfloat16)),
        (DType.F8_E4M3, np.array([1, 2], ml_dtypes.float8_e4m3fn)),
    ],
)
def test_a_function_may_give_an_array_for_every_dtype_of_its_width(
    declared: DType, given: np.ndarray[Any, Any]
) -> None:
    lazy = TensorSnapshot.from_closure("t", declared, [2], lambda: given)
    assert len(lazy.to_bytes()) == declared.nbytes([2])
    assert lazy.numpy().tolist() == given.tolist()


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        (DType.BoolU32, np.array([True, False])),
        (DType.F32, np.array([1, 2], np.int32)),
        (DType.U8, np.array([True, False])),
        (DType.F16, np.array([1, 2], ml_dtypes.bfloat16)),
        (DType.F32, np.array([[1, 2]], np.float32)),
        (DType.F32, np.array([1, 2, 3], np.float32)),
        (DType.F32, TensorData.from_bytes(bytes(8), DType.Flex32, [2])),
        (DType.qfloat(QuantScheme("Q8S", QuantStore("Native"))), np.array([1, 2], np.int8)),
    ],
)
def test_a_function_that_gives_another_tensor_than_declared_is_refused(declared: DType, given: Any) -> None:
    lazy = TensorSnapshot.from_closure("the.tensor", declared, [2], lambda: given)
    for read in (lazy.to_bytes, lazy.numpy, lazy.to_data, lambda: list(lazy.chunks())):
        with pytest.raises(CorruptError, match="declared") as caught:
            read()
        assert caught.value.tensor == "the.tensor"


def test_a_function_that_gives_quantized_data_of_another_length_is_refused() -> None:
    """An old file may hold an F32 scale where its scheme says F16; cut to the announced length it is another."""
    scheme = DType.qfloat(QuantScheme("Q8S", QuantStore("Native"), tensor="F16", old_style=True))
    long = TensorData.from_bytes(bytes(6) + np.float32(0.5).tobytes(), scheme, [6])
    lazy = TensorSnapshot.from_closure("q", scheme, [6], lambda: long)
    with pytest.raises(CorruptError, match="declared 8 bytes, its function returned 10"):
        lazy.numpy()
    assert TensorSnapshot.from_data("q", long).numpy().tolist() == [0] * 6


def test_a_function_may_give_a_numpy_scalar_for_a_tensor_without_axes() -> None:
    assert TensorSnapshot.from_closure("t", DType.F64, [], lambda: np.zeros(3).sum()).numpy()[()] == 0


def test_a_function_that_gives_no_tensor_is_a_type_error() -> None:
    for wrong in (None, b"12345678", [1.0, 2.0], 5):
        lazy = TensorSnapshot.from_closure("t", DType.F32, [2], lambda wrong=wrong: wrong)
        with pytest.raises(TypeError, match="must return TensorData or an array"):
            lazy.numpy()


def test_what_a_function_raises_passes_unchanged() -> None:
    def fail() -> Any:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        TensorSnapshot.from_closure("t", DType.F32, [2], fail).to_bytes()


@pytest.mark.parametrize(
    "call",
    [
        lambda: TensorSnapshot.from_numpy(5, ARRAY),
        lambda: TensorSnapshot.from_numpy(b"t", ARRAY),
        lambda: TensorSnapshot.from_numpy("t", "text"),
        lambda: TensorSnapshot.from_numpy("t", np.array([None])),
        lambda: TensorSnapshot.from_numpy("t", np.ma.masked_array([1.0, 2.0], [True, False])),
        lambda: TensorSnapshot.from_numpy("t", np.zeros(2, np.longdouble)),
        lambda: TensorSnapshot.from_numpy("t", np.zeros(2, "M8[s]")),
        lambda: TensorSnapshot.from_numpy("t", np.zeros(2, [("a", "f4")])),
        lambda: TensorSnapshot.from_data(5, TensorData.from_numpy(ARRAY)),
        lambda: TensorSnapshot.from_data("t", ARRAY),
        lambda: TensorSnapshot.from_closure(5, DType.F32, [2], lambda: ARRAY),
        lambda: TensorSnapshot.from_closure("t", "F32", [2], lambda: ARRAY),
        lambda: TensorSnapshot.from_closure("t", np.dtype("f4"), [2], lambda: ARRAY),
        lambda: TensorSnapshot.from_closure("t", DType.F32, [2.0], lambda: ARRAY),
        lambda: TensorSnapshot.from_closure("t", DType.F32, 2, lambda: ARRAY),
        lambda: TensorSnapshot.from_closure("t", DType.F32, [2], ARRAY),
        lambda: TensorSnapshot.from_numpy("t", ARRAY).with_path(5),
        lambda: TensorData.from_bytes("text", DType.F32, [1]),
        lambda: TensorData.from_bytes(b"1234", "F32", [1]),
        lambda: TensorData.from_numpy(np.ma.masked_array([1.0], [True])),
    ],
)
def test_arguments_of_the_wrong_type_are_type_errors(call: Any) -> None:
    with pytest.raises(TypeError):
        call()


def test_shapes_have_no_negative_extent() -> None:
    with pytest.raises(ValueError, match="negative"):
        TensorSnapshot.from_closure("t", DType.F32, [-1], lambda: ARRAY)
    with pytest.raises(ValueError, match="negative"):
        TensorData.from_bytes(b"", DType.F32, [-1, 0])


@pytest.mark.parametrize(("count", "shape"), [(7, [2]), (9, [2]), (0, [1]), (4, [0]), (4, [2, 0])])
def test_bytes_that_do_not_fit_dtype_and_shape_are_refused(count: int, shape: list[int]) -> None:
    for make in (TensorData.from_bytes, lambda raw, *rest: TensorData(memoryview(raw), rest[0], tuple(rest[1]))):
        with pytest.raises(CorruptError, match=f"got {count}"):
            make(bytes(count), DType.F32, shape)


@pytest.mark.parametrize("dtype", [ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn])
def test_numpys_one_to_a_byte_form_of_narrow_floats_is_not_taken_for_the_packed_one(dtype: Any) -> None:
    array = np.array([1, 2, 0.5, 4], dtype)
    for make in (TensorData.from_numpy, lambda array: TensorSnapshot.from_numpy("t", array)):
        with pytest.raises(DTypeError, match="value per byte") as caught:
            make(array)
        assert "from_bytes" in (caught.value.hint or "")
    lazy = TensorSnapshot.from_closure("t", DType.of(np.dtype(dtype)), [4], lambda: array)
    with pytest.raises(DTypeError):
        lazy.to_bytes()


def test_packed_values_are_given_as_bytes_only() -> None:
    packed = TensorSnapshot.from_data("t", TensorData.from_bytes(b"\x12\x34", DType.F4, [4]))
    assert packed.to_bytes() == b"\x12\x34"
    for read in (packed.numpy, lambda: packed[1:]):
        with pytest.raises(DTypeError, match="packed 2 to a byte") as caught:
            read()
        assert caught.value.tensor == "t"


@pytest.mark.parametrize("shape", [(0, 2**40, 2**40), (1,) * 70])
def test_a_shape_that_numpy_cannot_have_is_unsupported_and_not_a_crash(shape: tuple[int, ...]) -> None:
    for dtype in (DType.F32, DType.Bool):
        raw = bytes(dtype.nbytes(shape))
        odd = TensorSnapshot.from_data("t", TensorData.from_bytes(raw, dtype, shape))
        assert odd.to_bytes() == raw
        with pytest.raises(UnsupportedError, match="NumPy has no array") as caught:
            odd.numpy()
        assert caught.value.tensor == "t"


def test_what_is_not_quantized_has_no_codes() -> None:
    with pytest.raises(DTypeError, match="is not quantized") as caught:
        TensorSnapshot.from_numpy("t", ARRAY).quantized()
    assert caught.value.tensor == "t"
    with pytest.raises(DTypeError):
        TensorData.from_numpy(ARRAY).quantized()


def test_a_large_source_comes_in_chunks_and_a_small_one_in_one() -> None:
    large = of_source(np.arange(CHUNK_BYTES // 4 * 2 + 1, dtype=np.float32))
    assert [len(chunk) for chunk in large.chunks()] == [CHUNK_BYTES, CHUNK_BYTES, 4]
    assert [len(chunk) for chunk in of_source(ARRAY).chunks()] == [48]
    assert list(of_source(np.zeros(0, np.float32)).chunks()) == []


INDEX = st.integers(-5, 5) | st.slices(6) | st.just(...)


@given(
    hnp.arrays(
        st.sampled_from([np.uint8, np.int16, np.float64, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    st.lists(INDEX, max_size=5),
    st.booleans(),
)
def test_an_index_gives_what_numpy_gives_or_the_same_error(
    array: np.ndarray[Any, Any], index: list[Any], share: bool
) -> None:
    wanted: Any = tuple(index)
    try:
        expected = array[wanted]
    except IndexError:
        with pytest.raises(IndexError):
            of_source(array, share=share)[wanted]
        return
    found = of_source(array, share=share)[wanted]
    assert np.asarray(found).shape == np.asarray(expected).shape
    assert np.asarray(found).dtype == array.dtype
    assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


def test_an_error_names_the_tensor_and_the_file() -> None:
    source = BytesSource(b"12", name="model.bin")
    cut = TensorSnapshot("a.b", DType.F32, (1,), SourceData(source, 0, 4))
    for read in (cut.numpy, cut.to_bytes, cut.to_data, lambda: cut[0], lambda: list(cut.chunks())):
        with pytest.raises(BurnstoreError) as caught:
            read()
        assert (caught.value.tensor, caught.value.path) == ("a.b", "model.bin")
        assert str(caught.value).startswith("model.bin: tensor 'a.b': ")


def test_replace_changes_only_the_given_fields() -> None:
    snapshot = TensorSnapshot.from_numpy(
        "a", np.arange(6, dtype=np.float32).reshape(2, 3), param_id=7, container_stack=("Struct:Net",)
    )
    renamed = snapshot.replace(path="b")
    assert (renamed.path, renamed.shape, renamed.nbytes, renamed.param_id) == ("b", (2, 3), 24, snapshot.param_id)
    assert renamed.container_stack == ("Struct:Net",)
    assert snapshot.path == "a"
    without = snapshot.replace(param_id=None, container_stack=())
    assert without.param_id is None
    assert without.container_stack == ()


def test_replace_computes_nbytes_of_a_new_dtype_or_shape() -> None:
    snapshot = TensorSnapshot.from_numpy("a", np.zeros((2, 3), np.float32))
    assert snapshot.replace(dtype=DType.F16).nbytes == 12
    assert snapshot.replace(shape=(1,)).nbytes == 4
    assert snapshot.replace(shape=(0,), nbytes=0).nbytes == 0
    assert snapshot.replace(data=snapshot._data).nbytes == 24


def test_numpy_takes_a_snapshot_as_an_array() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    with bs.open(bs.serialize({"w": values}, format="burnpack", layout="burn")) as file:
        snapshot = file["w"]
        assert np.array_equal(np.asarray(snapshot), values) and np.asarray(snapshot).dtype == np.float32
        assert np.asarray(snapshot, dtype=np.float64).dtype == np.float64
        assert np.array(snapshot).flags.writeable and np.allclose(snapshot, values)
        assert np.stack([snapshot, snapshot]).shape == (2, 2, 3)
