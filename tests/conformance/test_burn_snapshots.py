"""What Burn's own tests ask of a tensor that is known but not yet read (docs/conformance.md says which is which)."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import DType, TensorData, TensorSnapshot, nn
from burnstore.errors import CorruptError
from burnstore.tensor.quantization import QuantBlock, QuantizedTensor, QuantScheme, QuantStore, encode

MATRIX = np.arange(4, dtype=np.float32).reshape(2, 2)


def of_every_kind() -> dict[str, TensorSnapshot]:
    data = TensorData.from_numpy(MATRIX)
    packed = bs.serialize({"w": MATRIX}, format="burnpack")
    return {
        "array": TensorSnapshot.from_numpy("w", MATRIX, param_id=7),
        "data": TensorSnapshot.from_data("w", data, param_id=7),
        "function": TensorSnapshot.from_closure("w", DType.F32, [2, 2], lambda: data, param_id=7),
        "file": bs.open(packed)["w"],
    }


@pytest.mark.parametrize("kind", ["array", "data", "function"])
def test_a_snapshot_has_name_dtype_shape_id_and_bytes_together(kind: str) -> None:
    snapshot = of_every_kind()[kind]
    assert (snapshot.path, snapshot.dtype, snapshot.shape, snapshot.param_id) == ("w", DType.F32, (2, 2), 7)
    assert (snapshot.nbytes, snapshot.to_bytes()) == (16, MATRIX.tobytes())


@pytest.mark.parametrize("kind", ["array", "data", "function", "file"])
def test_a_snapshot_may_be_read_from_many_threads_at_once(kind: str) -> None:
    snapshot = of_every_kind()[kind]
    wrong: list[bytes] = []

    def read() -> None:
        for _ in range(50):
            if snapshot.to_bytes() != MATRIX.tobytes():
                wrong.append(snapshot.to_bytes())

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.float32([[1, 2], [3, 4]]), DType.F32),
        (np.int64([[1, 2], [3, 4]]), DType.I64),
        (np.array([[True, False], [False, True]]), DType.Bool),
    ],
    ids=["float", "int", "bool"],
)
def test_a_parameter_of_every_kind_is_seen_with_its_place_and_its_values(array: Any, dtype: DType) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.encoder = {"weight": nn.Param.from_data(array, id=bs.ParamId(5))}

    (snapshot,) = bs.collect(Model())
    assert (snapshot.path, snapshot.container_path) == ("encoder.weight", "Struct:Model.Dict")
    assert (snapshot.dtype, snapshot.shape, snapshot.param_id) == (dtype, (2, 2), 5)
    assert snapshot.nbytes == snapshot.data_len == len(snapshot.to_bytes()) == array.nbytes
    assert snapshot.to_data().numpy().tolist() == array.tolist()


NAMES = "F64 F32 Flex32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 Bool Bool(U8) Bool(U32) F8_E4M3 C64"


@pytest.mark.parametrize("name", NAMES.split())
def test_the_length_is_known_before_reading_and_is_the_real_one(name: str) -> None:
    dtype = DType.parse(name)
    for shape in ((), (0,), (3,), (2, 3), (2, 0, 4)):
        raw = bytes(dtype.bits // 8 * int(np.prod(shape)))
        snapshot = TensorSnapshot.from_closure(
            "t", dtype, shape, lambda r=raw, s=shape: TensorData.from_bytes(r, dtype, s)
        )
        assert snapshot.nbytes == snapshot.data_len == len(raw) == len(snapshot.to_bytes())


def scales(dtype: str) -> float:
    return 2.0 if dtype == "UE8M0" else 1.5


NATIVE, PACKED = QuantStore("Native"), QuantStore("PackedU32")
BLOCKS = [((8,), 4), ((6,), 3), ((10,), 5), ((3, 8), 4)]
QUANTIZED: list[tuple[QuantScheme, tuple[int, ...], int | None]] = [
    *(
        (QuantScheme("Q8S", NATIVE, block=QuantBlock((block,), dtype), tensor=tensor), shape, None)
        for shape, block in BLOCKS
        for dtype in ("F32", "UE4M3", "UE8M0")
        for tensor in (None, "F32")
    ),
    *(
        (QuantScheme(value, store), shape, None)
        for value in ("Q8S", "Q4S", "Q2S")
        for store in (NATIVE, PACKED)
        for shape in ((32, 32), (3, 3), (5, 5), (2, 3))
    ),
    (QuantScheme("Q4S", PACKED), (3, 3), 12 + 4),
    (QuantScheme("Q4S", PACKED), (2, 5, 9), 80 + 4),
    (QuantScheme("Q4S", PACKED), (4, 8), 16 + 4),
    (QuantScheme("Q8F", PACKED), (3,), 4 + 4),
    (QuantScheme("Q8F", PACKED), (4,), 4 + 4),
    (QuantScheme("Q8F", PACKED), (5,), 8 + 4),
]


@pytest.mark.parametrize(("scheme", "shape", "length"), QUANTIZED)
def test_the_length_of_quantized_data_is_known_before_reading_and_is_the_real_one(
    scheme: QuantScheme, shape: tuple[int, ...], length: int | None
) -> None:
    grid = (1,)
    if scheme.block is not None:
        grid = (*shape[:-1], shape[-1] // scheme.block.size[0])
    codes = np.ones(shape, np.int8)
    whole = 1.0 if scheme.block is not None and scheme.tensor is not None else None
    tensor = QuantizedTensor(codes, np.full(grid, scales(scheme.scale_dtype), np.float32), whole, scheme, shape)
    raw = encode(tensor)
    dtype = DType.qfloat(scheme)
    snapshot = TensorSnapshot.from_closure("q", dtype, shape, lambda: TensorData.from_bytes(raw, dtype, shape))
    assert snapshot.nbytes == len(raw) == len(snapshot.to_bytes())
    assert length is None or len(raw) == length
    with bs.open(bs.serialize([snapshot], format="burnpack")) as f:
        assert f["q"].to_bytes() == raw and f["q"].shape == shape


def test_a_function_is_not_run_for_what_is_declared_and_once_for_the_data() -> None:
    calls: list[int] = []

    def provide() -> TensorData:
        calls.append(1)
        return TensorData.from_numpy(MATRIX)

    stack = ["Struct:Model", "Struct:Linear"]
    lazy = TensorSnapshot.from_closure("fc.weight", DType.F32, [2, 2], provide, param_id=3, container_stack=stack)
    assert (lazy.full_path, lazy.dtype, lazy.shape, lazy.data_len, lazy.param_id) == (
        "fc.weight", DType.F32, (2, 2), 16, 3,
    )  # fmt: skip
    assert (lazy.container_type, lazy.module_type, repr(lazy)) == (
        "Struct:Linear", "Struct:Linear", "TensorSnapshot('fc.weight', F32, [2, 2])",
    )  # fmt: skip
    assert calls == []
    assert lazy.to_data().to_bytes() == MATRIX.tobytes()
    assert calls == [1]


def test_a_snapshot_of_data_says_what_the_data_say() -> None:
    data = TensorData.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    snapshot = TensorSnapshot.from_data("model.weight", data, container_stack=["Struct:Model", "Struct:Linear"])
    assert (snapshot.path, snapshot.dtype, snapshot.shape) == ("model.weight", DType.F32, (2, 3))
    assert (snapshot.container_type, snapshot.data_len, snapshot.param_id) == ("Struct:Linear", 24, None)
    assert snapshot.to_data().to_bytes() == data.to_bytes()


@pytest.mark.parametrize("failure", [OSError(5, "gone"), RuntimeError("no"), ValueError("bad"), MemoryError()])
def test_what_a_function_raises_comes_out_as_it_is_whoever_asks(failure: BaseException) -> None:
    """Rust turns a panic into an error so that it cannot unwind; an exception of Python's is an error already."""

    def fail() -> Any:
        raise failure

    broken = TensorSnapshot.from_closure("the.one", DType.F32, [2], fail)
    for ask in (broken.to_bytes, broken.to_data, broken.numpy, lambda: bs.serialize([broken], format="burnpack")):
        with pytest.raises(type(failure)) as caught:
            ask()
        assert caught.value is failure


@pytest.mark.parametrize("failure", [OSError(5, "gone"), RuntimeError("no such luck"), CorruptError("bad bytes")])
def test_a_load_reports_what_a_function_raised_with_the_tensors_name_and_the_text(failure: Exception) -> None:
    def fail() -> Any:
        raise failure

    model = {"the": {"one": np.zeros(2, np.float32)}}
    (error,) = bs.apply(model, [TensorSnapshot.from_closure("the.one", DType.F32, [2], fail)]).errors
    assert (error.kind, error.path, error.found) == ("LoadError", "the.one", failure)
    assert "the.one" in str(error) and str(failure) in str(error)


@pytest.mark.parametrize(
    "given",
    [np.zeros(2, np.int32), np.zeros((1, 2), np.float32), TensorData.from_bytes(bytes(8), DType.Flex32, [2])],
    ids=["another dtype of the width", "another shape of the count", "another dtype of the same numbers"],
)
def test_a_failure_of_ours_while_writing_keeps_its_class_and_names_the_tensor(given: Any) -> None:
    lying = TensorSnapshot.from_closure("the.one", DType.F32, [2], lambda: given)
    with pytest.raises(CorruptError, match="declared F32") as caught:
        bs.serialize([TensorSnapshot.from_numpy("first", MATRIX), lying], format="burnpack")
    assert caught.value.tensor == "the.one" and "tensor 'the.one'" in str(caught.value)


def test_a_failed_read_of_another_file_keeps_its_class_and_names_the_tensor() -> None:
    closed = bs.open(bs.serialize({"w": MATRIX}, format="burnpack"))
    snapshot = closed["w"]
    closed.close()
    with pytest.raises(bs.errors.ClosedError) as caught:
        bs.serialize([snapshot], format="burnpack")
    assert caught.value.tensor == "w"
