"""Snapshots and checkpoints as torch tensors, and the other way: every dtype, no copy too many and none too few."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import burnstore as bs
from burnstore.tensor.torch import flat_bytes

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")  # of the tests' own copies, once a process
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "burn"
DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2"),
]
SHAPES = [(2, 3), (5,), (), (0, 4), (1, 2, 1, 3)]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def random_tensor(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """All bits at random: NaN payloads included."""
    dtype = getattr(torch, name)
    if name == "bool":
        return torch.from_numpy(np.random.default_rng(1).integers(0, 2, shape).astype(bool).reshape(shape))
    width = dtype.itemsize
    raw = np.random.default_rng(0).bytes(max(1, int(np.prod(shape))) * width)
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype)
    return flat[: int(np.prod(shape))].reshape(shape)


def of_shapes() -> list[tuple[str, tuple[int, ...]]]:
    return [(name, shape) for name in DTYPES for shape in SHAPES if not (name.startswith("float4") and shape == ())]


@pytest.mark.parametrize(("name", "shape"), of_shapes())
def test_every_dtype_of_torch_goes_through_a_snapshot_bit_by_bit(name: str, shape: tuple[int, ...]) -> None:
    tensor = random_tensor(name, shape)
    snapshot = bs.TensorSnapshot.from_torch("t", tensor)
    assert snapshot.to_bytes() == bits(tensor)
    assert b"".join(snapshot.chunks()) == bits(tensor)
    data = bs.TensorSnapshot.from_data("t", snapshot.to_data())  # from here on nothing is torch's
    back = data.torch()
    assert back.dtype is tensor.dtype and back.shape == tensor.shape and bits(back) == bits(tensor)


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "complex32"])
def test_dtypes_have_one_name_in_numpy_and_torch(name: str) -> None:
    dtype = bs.DType.of(getattr(torch, name))
    assert dtype.torch_name == name
    if name not in ("float4_e2m1fn_x2",):
        tensor = random_tensor(name, (4,))
        assert bs.TensorSnapshot.from_torch("t", tensor).numpy().dtype == dtype.numpy


def test_a_pair_of_4_bit_values_is_two_elements() -> None:
    tensor = random_tensor("float4_e2m1fn_x2", (2, 3))
    snapshot = bs.TensorSnapshot.from_torch("t", tensor)
    assert (snapshot.dtype, snapshot.shape, snapshot.nbytes) == (bs.DType.F4, (2, 6), 6)
    assert snapshot.torch().shape == (2, 3)
    with pytest.raises(bs.errors.DTypeError, match="two values"):
        bs.TensorSnapshot.from_torch("t", tensor.reshape(-1)[0])
    odd = bs.TensorSnapshot.from_data("odd", bs.TensorData.from_bytes(b"123", bs.DType.F4, (2, 3)))
    with pytest.raises(bs.errors.DTypeError, match=r"'odd'.*pairs"):
        odd.torch()


def test_dtypes_that_only_one_side_has_are_refused_by_name() -> None:
    six = bs.TensorSnapshot.from_data("six", bs.TensorData.from_bytes(b"123", bs.DType.F6_E2M3, (4,)))
    with pytest.raises(bs.errors.DTypeError, match=r"'six'.*F6_E2M3"):
        six.torch()
    with pytest.raises(bs.errors.DTypeError, match="quint4x2"):
        bs.DType.of(torch.quint4x2)
    with pytest.raises(TypeError, match="NumPy array or a torch tensor"):
        bs.DType.of("float32")


@pytest.mark.parametrize("store", [bs.DType.Bool, bs.DType.BoolU8, bs.DType.BoolU32])
def test_bools_of_every_store_are_bools_and_other_bytes_are_refused(store: bs.DType) -> None:
    width = store.bits // 8
    good = b"".join(value.to_bytes(width, "little") for value in (1, 0, 1))
    snapshot = bs.TensorSnapshot.from_data("b", bs.TensorData.from_bytes(good, store, (3,)))
    assert snapshot.torch().tolist() == [True, False, True]
    with pytest.raises(bs.errors.CorruptError, match="expected 0 or 1"):
        bs.TensorData.from_bytes(b"\x02" * width, store, (1,))


def test_flex32_is_float32() -> None:
    raw = np.float32([1.5]).tobytes()
    assert bs.TensorSnapshot.from_data("f", bs.TensorData.from_bytes(raw, bs.DType.Flex32, (1,))).torch().item() == 1.5


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_copied_and_stored_whatever_its_strides(name: str) -> None:
    tensor = random_tensor(name, (4, 6))
    turned = tensor.t()
    expected = np.ndarray((4, 6), f"V{tensor.element_size()}", bits(tensor)).T.tobytes()
    if name != "float4_e2m1fn_x2":
        assert bits(turned) == expected
    snapshot = bs.TensorSnapshot.from_torch("t", turned)
    assert snapshot.to_bytes() == expected and b"".join(snapshot.chunks()) == expected
    copied = snapshot.torch(copy=True)
    assert copied.data_ptr() != tensor.data_ptr() and copied.dtype is tensor.dtype
    assert bs.TensorSnapshot.from_torch("t", copied).to_bytes() == expected


# --- strides ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.t(),
        lambda t: t[::2, 1:],
        lambda t: t.expand(3, 4, 6),
        lambda t: t.flip(0),
        lambda t: t.reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        lambda t: t.reshape(-1)[1:],
    ],
)
def test_a_strided_tensor_is_stored_row_by_row(make: Any) -> None:
    tensor = make(torch.arange(24, dtype=torch.float32).reshape(4, 6))
    snapshot = bs.TensorSnapshot.from_torch("t", tensor)
    assert snapshot.to_bytes() == bits(tensor)
    assert np.array_equal(snapshot.numpy(), tensor.numpy())
    assert np.array_equal(snapshot[1:], tensor.numpy()[1:])


def test_lazy_conjugates_and_negatives_are_resolved() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert bs.TensorSnapshot.from_torch("c", tensor.conj()).numpy().tolist() == [1 - 2j, 3 + 4j]
    assert bs.TensorSnapshot.from_torch("n", tensor.conj().imag).numpy().tolist() == [-2, 4]


@pytest.mark.parametrize("order", ["C", "F", "reversed", "big-endian", "read-only", "unaligned"])
def test_an_array_of_any_order_becomes_a_tensor(order: str) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    forms = {
        "C": array,
        "F": np.asfortranarray(array),
        "reversed": array[::-1, ::-1][::-1, ::-1][::-1],
        "big-endian": array.astype(">f4"),
        "read-only": np.frombuffer(array.tobytes(), np.float32).reshape(2, 3),
        "unaligned": np.ndarray((2, 3), np.float32, bytearray(b"\0" + array.tobytes()), 1),
    }
    given = forms[order]
    tensor = bs.TensorSnapshot.from_numpy("t", given).torch()
    assert np.array_equal(tensor.numpy(), given)
    assert np.shares_memory(tensor.numpy(), given) == (order in ("C", "F"))


# --- whose memory -----------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.bpk"
    bs.save({"w": np.arange(6, dtype=np.float32).reshape(2, 3), "h": np.ones(3, np.float16)}, path)
    return path


def test_a_tensor_that_was_read_is_owned(saved: Path) -> None:
    with bs.open(saved) as file:
        one, other = file["w"].torch(), file["w"].torch()
        all_of_them = file.torch()
    one.zero_()
    assert other.sum() == 15 and all_of_them["w"].sum() == 15
    all_of_them["w"].add_(1)
    assert all_of_them["h"].tolist() == [1, 1, 1]


def test_a_mapped_file_is_shared_privately(saved: Path) -> None:
    before = saved.read_bytes()
    with bs.open(saved, zero_copy=True) as file:
        tensor, same, array = file["w"].torch(), file.torch()["w"], file["w"].numpy()
        owned = file["w"].torch(copy=True)
        assert len({tensor.data_ptr(), same.data_ptr(), owned.data_ptr(), array.__array_interface__["data"][0]}) == 4
        assert not array.flags.writeable
        tensor.add_(1)  # would kill the process if the map were read-only
        assert all(each.tolist() == [[0, 1, 2], [3, 4, 5]] for each in (same, owned, array, file["w"].numpy()))
    assert tensor.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert saved.read_bytes() == before


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda data: memoryview(bytearray(data))])
def test_bytes_are_copied_because_they_must_not_change(saved: Path, kind: Any) -> None:
    with bs.open(kind(saved.read_bytes()), zero_copy=True) as file:
        file["w"].torch().zero_()
        file.torch()["w"].zero_()
        assert file["w"].numpy().sum() == file.torch()["w"].sum() == 15


def test_a_map_that_cannot_be_private_is_copied_from(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutMemory(mmap.mmap):
        def __new__(cls, fd: int, size: int, *, access: int) -> Any:
            if access == mmap.ACCESS_COPY:
                raise OSError(12, "Cannot allocate memory")
            return super().__new__(cls, fd, size, access=access)

    monkeypatch.setattr("burnstore.io.source.mmap.mmap", WithoutMemory)
    with bs.open(saved, zero_copy=True) as file:
        tensor, both = file["w"].torch(), file.torch()
    monkeypatch.undo()
    tensor.zero_()
    both["w"].zero_()
    with bs.open(saved, zero_copy=True) as file:
        assert file["w"].torch().sum() == 15


def test_a_snapshot_of_a_tensor_shares_it_until_a_copy_is_asked_for() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    snapshot = bs.TensorSnapshot.from_torch("p", parameter)
    with torch.no_grad():
        parameter.add_(1)
    shared, copied = snapshot.torch(), snapshot.torch(copy=True)
    assert shared.data_ptr() == parameter.data_ptr() != copied.data_ptr()
    assert not shared.requires_grad and shared.tolist() == copied.tolist() == [1, 1]


def test_a_device_is_honoured(saved: Path) -> None:
    with bs.open(saved) as file:
        assert file["w"].torch(device="cpu").device.type == "cpu"
        assert file["w"].torch(device="meta").device.type == "meta"
        assert {tensor.device.type for tensor in file.torch(device=torch.device("meta")).values()} == {"meta"}
    assert bs.TensorSnapshot.from_torch("t", torch.ones(1)).torch(device="meta").is_meta


def test_a_tensor_on_the_meta_device_has_no_values_to_give(tmp_path: Path) -> None:
    model = nn.Linear(2, 2, device="meta")
    snapshot = bs.collect(model)[0]
    assert snapshot.shape == (2, 2)
    with pytest.raises(bs.errors.ModelError, match=r"'weight'.*meta device"):
        snapshot.numpy()
    with pytest.raises(bs.errors.ModelError, match=r"'weight'.*meta device"):
        bs.save(model, tmp_path / "model.bpk", layout="torch")
    assert list(tmp_path.iterdir()) == []


# --- whole checkpoints ------------------------------------------------------------------------------------------------


def test_a_checkpoint_gives_all_its_tensors_or_those_that_are_named() -> None:
    tensors = {f"{name}.{len(shape)}": random_tensor(name, shape) for name, shape in of_shapes()}
    packed = bs.serialize(
        {n: t for n, t in tensors.items() if not n.startswith(("complex", "float8", "float4"))},
        format="burnpack",
        layout="torch",
    )
    for zero_copy in (False, True):
        with bs.open(packed, zero_copy=zero_copy) as file:
            found = file.torch()
            assert list(found) == list(file)
            for name, tensor in found.items():
                assert tensor.dtype is tensors[name].dtype and bits(tensor) == bits(tensors[name])
                assert tensor.shape == tensors[name].shape
            assert list(file.torch(["uint8.2", "float64.0"])) == ["uint8.2", "float64.0"]
            with pytest.raises(bs.errors.TensorNotFoundError):
                file.torch(["absent"])
            with pytest.raises(TypeError, match=r"\.torch\(\)"):
                file.torch("uint8.2")
    with pytest.raises(bs.errors.ClosedError):
        file.torch()


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*/*.bpk")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_files_of_burn_are_the_same_in_torch_as_in_numpy(path: Path, zero_copy: bool) -> None:
    with bs.open(path, zero_copy=zero_copy) as file:
        arrays, tensors = file.numpy(), file.torch()
        for name, array in arrays.items():
            assert bs.TensorSnapshot.from_torch(name, tensors[name]).to_bytes() == array.tobytes()
            assert bs.DType.of(tensors[name].dtype) is bs.DType.of(array.dtype)
            assert bits(file[name].torch()) == bits(tensors[name])


def test_a_tensor_that_cannot_be_given_is_named() -> None:
    data = bs.serialize({"fine": np.zeros(1), "broken": np.uint8([0, 1, 7])}, format="safetensors")
    data = data.replace(b'"U8"', b'"BOOL"')
    data = (int.from_bytes(data[:8], "little") + 2).to_bytes(8, "little") + data[8:]
    with (
        bs.open(data) as file,
        pytest.raises(bs.errors.CorruptError, match=r"'broken'.*7"),
    ):
        file.torch()


def test_tensors_of_one_buffer_live_their_own_lives(saved: Path) -> None:
    with bs.open(saved) as file:
        tensors = file.torch()
    weight = nn.Parameter(tensors["w"])
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.sum().backward()
    optimizer.step()
    assert weight.tolist() == [[-1, 0, 1], [2, 3, 4]]
    half = tensors["h"].requires_grad_()
    (half.float() ** 2).sum().backward()
    assert half.grad is not None and half.grad.tolist() == [2, 2, 2]
    assert tensors["w"].untyped_storage().nbytes() == 24  # so that torch.save writes it and not its neighbours


# --- torch is imported when it is asked for ---------------------------------------------------------------------------


@pytest.mark.slow("starts PyTorch")
def test_torch_is_installed_and_not_imported_unless_it_is_asked_for(saved: Path, run_python: Any) -> None:
    run_python(
        "import sys, numpy as np, burnstore as bs\n"
        "with bs.open(sys.argv[1]) as f: f.numpy(), f['w'].numpy(), f['w'].to_data()\n"
        "model = {'w': np.zeros((2, 3), np.float32)}\n"
        "bs.load(model, sys.argv[1]), bs.collect(model), bs.nn.Linear(1, 1)\n"
        "assert 'torch' not in sys.modules and 'burnstore.tensor.torch' not in sys.modules\n"
        "with bs.open(sys.argv[1]) as f: assert f['w'].torch().sum() == 15\n"
        "assert 'torch' in sys.modules",
        saved,
    )


def test_without_torch_the_error_says_what_to_install(saved: Path, run_python: Any) -> None:
    run_python(
        "import sys, burnstore as bs\n"
        "sys.modules['torch'] = None\n"
        "with bs.open(sys.argv[1]) as f:\n"
        "    for ask in (f['w'].torch, f.torch):\n"
        "        try: ask()\n"
        "        except bs.errors.MissingDependencyError as e: assert 'pip install torch' in str(e)\n"
        "        else: raise SystemExit('no error')",
        saved,
    )


def test_from_torch_takes_tensors_only() -> None:
    with pytest.raises(TypeError, match="got ndarray"):
        bs.TensorSnapshot.from_torch("a", np.zeros(1))
    with pytest.raises(TypeError, match="path must be a str"):
        bs.TensorSnapshot.from_torch(1, torch.zeros(1))


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_what_torch_only_noted_changes_signs_and_nothing_else_not_even_in_a_nan(dtype: torch.dtype) -> None:
    width = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (6, 5 * width), dtype=torch.uint8)
    values = raw.view(dtype)
    values.view(torch.uint8)[0] = 0xFF  # NaNs
    half = {4: np.uint16, 8: np.uint32, 16: np.uint64}[width]
    parts = values.contiguous().view(torch.uint8).numpy().view(half).reshape(6, 5, 2)
    sign = half(1) << half(8 * width // 2 - 1)

    def held(tensor: torch.Tensor) -> bytes:
        return flat_bytes(tensor).numpy().tobytes()

    conjugated = np.stack((parts[..., 0], parts[..., 1] ^ sign), -1)
    assert held(values.conj()) == conjugated.tobytes()
    assert held(values.conj().t()) == np.ascontiguousarray(conjugated.swapaxes(0, 1)).tobytes()
    assert held(values.conj().imag) == np.ascontiguousarray(parts[..., 1] ^ sign).tobytes()
    assert held(torch._neg_view(values)) == (parts ^ sign).tobytes()
    assert held(torch._neg_view(values.conj())) == np.stack((parts[..., 0] ^ sign, parts[..., 1]), -1).tobytes()
    assert held(values[:, 2].conj()) == np.ascontiguousarray(conjugated[:, 2]).tobytes()
    assert held(values[3, 2].conj()) == conjugated[3, 2].tobytes()
