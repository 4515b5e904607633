"""What must hold of tensors that are carried to a device, as functions of the device and an empty folder.

They need torch alone, so that they run where there is a GPU and no pytest (``python -m tests.gpu``). With the device
``"cpu"`` the same engine fills tensors on the CPU.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import burnstore as bs
from burnstore.io.gpu.buffers import POOL, configure_transfers
from burnstore.tensor import torch as torch_tensor

Check = Callable[[str, Path], None]
CHECKS: list[Check] = []

DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32"),
    *("uint64", "bool", "float8_e4m3fn", "float8_e5m2", "complex64"),
)


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def _readers() -> int:
    """Return the number of threads, without those of remote requests and of servers, which outlive a check."""
    lasting = ("remote-requests", "serve_forever", "process_request_thread")
    return sum(not any(name in thread.name for name in lasting) for thread in threading.enumerate())


@contextmanager
def ring_for(device: str) -> Iterator[None]:
    """Let the ring transfer to this device, also if it is the CPU."""
    before = set(torch_tensor.TRANSFER_DEVICES)
    torch_tensor.TRANSFER_DEVICES.add(torch.device(device).type)
    threads = _readers()
    try:
        yield
        assert _readers() <= threads, "a reader was left behind"
        assert POOL._lent == 0, f"{POOL._lent} buffers were not given back"
        if torch.device(device).type == "cuda":
            assert torch.cuda.current_stream() == torch.cuda.default_stream(), "the stream was not given back"
    finally:
        torch_tensor.TRANSFER_DEVICES.clear()
        torch_tensor.TRANSFER_DEVICES.update(before)
        configure_transfers()


def noise(dtype: str, *shape: int) -> torch.Tensor:
    """Random bits, so that NaNs of all kinds are among them."""
    kind = getattr(torch, dtype)
    if kind is torch.bool:
        return torch.randint(0, 2, shape, dtype=torch.uint8).bool()
    width = torch.empty(0, dtype=kind).element_size()
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * width) if shape else (width,), dtype=torch.uint8)
    return raw.view(kind).reshape(shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def assert_same(found: Any, wanted: Any) -> None:
    assert found.keys() == wanted.keys(), "the names differ"
    for name, tensor in wanted.items():
        other = found[name]
        assert other.dtype is tensor.dtype and other.shape == tensor.shape, (name, other.dtype, tuple(other.shape))
        assert torch.equal(bits(other), bits(tensor)), f"{name}: the bits differ"


def raised(kind: type[bs.BurnstoreError], job: Callable[[], Any]) -> bs.BurnstoreError:
    try:
        job()
    except kind as error:
        return error
    raise AssertionError(f"it raised no {kind.__name__}")


def every_dtype(rows: int = 300) -> dict[str, torch.Tensor]:
    tensors = {}
    for number, dtype in enumerate(DTYPES):
        tensors[f"{dtype}.matrix"] = noise(dtype, rows, 700 + number)
        tensors[f"{dtype}.odd"] = noise(dtype, 7)
        tensors[f"{dtype}.one"] = noise(dtype, 1)
        tensors[f"{dtype}.none"] = noise(dtype, 0, 3)
    tensors["no_axes"] = torch.tensor(3.5)
    return tensors


def saved(tensors: dict[str, torch.Tensor], folder: Path) -> Iterator[Path]:
    bs.save(tensors, folder / "tensors.safetensors")
    yield folder / "tensors.safetensors"
    bs.save(tensors, folder / "sharded.safetensors", max_shard_size=400_000)
    yield folder / "sharded.safetensors.index.json"
    torch.save(tensors, folder / "tensors.pt")
    yield folder / "tensors.pt"
    plain = {name: tensor for name, tensor in tensors.items() if tensor.dtype not in (torch.complex64,)}
    plain = {name: tensor for name, tensor in plain.items() if "float8" not in name}
    bs.save(plain, folder / "tensors.bpk", layout="torch")
    yield folder / "tensors.bpk"


@check
def all_dtypes_of_all_formats_are_bit_equal_to_the_cpu(device: str, folder: Path) -> None:
    tensors = every_dtype()
    for path in saved(tensors, folder):
        for zero_copy in (False, True):
            with bs.open(path, zero_copy=zero_copy) as file:
                found = file.torch(device=device)
                wanted = file.torch()
                some = list(wanted)[5:17:3]
                assert_same(file.torch(some, device=device), {name: wanted[name] for name in some})
            assert all(tensor.device.type == torch.device(device).type for tensor in found.values())
            assert_same(found, wanted)
            assert_same(wanted, {name: tensors[name] for name in wanted})


@check
def rings_of_any_size_give_the_same(device: str, folder: Path) -> None:
    tensors = every_dtype(2000)
    path = next(saved(tensors, folder))
    for readers, buffers, size in ((1, 1, 1 << 16), (3, 2, 1 << 16), (12, 5, 1 << 18), (4, 24, 1 << 23)):
        configure_transfers(readers=readers, buffers=buffers, buffer_bytes=size)
        with bs.open(path) as file:
            assert_same(file.torch(device=device), tensors)


@check
def tensors_that_are_not_aligned_come_whole(device: str, folder: Path) -> None:
    tensors = {"a": noise("uint8", 3), "b": noise("float32", 1 << 19), "c": noise("uint8", 1), "d": noise("float64", 9)}
    tensors["e"] = noise("complex128", 40)
    order = list(tensors)
    header = '{"__metadata__":{}'
    at = 0
    names = {"uint8": "U8", "float32": "F32", "float64": "F64", "complex128": "C128"}
    for name in order[:-1]:
        kind = str(tensors[name].dtype).removeprefix("torch.")
        stop = at + tensors[name].nbytes
        header += (
            f',"{name}":{{"dtype":"{names[kind]}","shape":{list(tensors[name].shape)},"data_offsets":[{at},{stop}]}}'
        )
        at = stop
    header += "}"
    raw = b"".join(bits(tensors[name]).numpy().tobytes() for name in order[:-1])
    (folder / "crooked.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode() + raw)
    with bs.open(folder / "crooked.safetensors") as file:
        assert_same(file.torch(device=device), {name: tensors[name] for name in order[:-1]})


@check
def tensors_without_elements_need_no_transfer(device: str, folder: Path) -> None:
    tensors = {"a": noise("float32", 0), "b": noise("int8", 3, 0)}
    bs.save(tensors, folder / "none.safetensors")
    with bs.open(folder / "none.safetensors") as file:
        assert_same(file.torch(device=device), tensors)
        assert file.torch([], device=device) == {}


@check
def many_small_tensors_arrive_and_share_few_allocations(device: str, folder: Path) -> None:
    tensors = {f"layer.{i}.w": noise("float32", *((64,), (16, 16), (3, 5, 7), (1,))[i % 4]) for i in range(3000)}
    bs.save(tensors, folder / "small.safetensors")
    with bs.open(folder / "small.safetensors") as file:
        found = file.torch(device=device)
        assert_same(found, tensors)
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values()}) < 10
    one, other = (found[f"layer.{i}.w"].clone() for i in (1, 5))
    weight = found["layer.1.w"].requires_grad_()
    (weight * weight).sum().backward()
    assert torch.equal(bits(weight.grad), bits(one + one))
    with torch.no_grad():
        weight.fill_(7)
    assert torch.equal(bits(found["layer.5.w"]), bits(other)) and bool((found["layer.1.w"] == 7).all())


@check
def repeated_layers_are_cut_in_their_order_and_know_nothing_of_each_other(device: str, folder: Path) -> None:
    layer = {"q": (8, 8), "k": (8, 8), "up": (16, 8), "down": (8, 16), "norm": (8,), "one": (1, 1), "none": (0, 3)}
    dtypes = ("bfloat16", "float32")
    tensors = {
        f"{dtype}.layers.{i}.{name}": noise(dtype, *shape)
        for dtype in dtypes
        for i in range(120)
        for name, shape in layer.items()
    }
    torch.save(tensors, folder / "layers.pt")
    bs.save(tensors, folder / "layers.bpk", layout="torch")
    bs.save(tensors, folder / "layers.safetensors")
    for suffix in ("pt", "bpk", "safetensors"):
        with bs.open(folder / f"layers.{suffix}") as file:
            found, wanted = file.torch(device=device), file.torch()
        assert list(found) == list(wanted)
        assert_same(found, wanted)
        for name, tensor in found.items():
            assert tensor.stride() == wanted[name].stride() and tensor.is_contiguous(), name
            assert not tensor._is_view() and tensor.is_leaf and tensor._version == 0, name


class Mixed(nn.Module):
    """Layers of which each arrives in another way: turned, joined, of other strides, small, large."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Linear(1500, 1100)
        self.again = nn.Linear(64, 48, bias=False, dtype=torch.bfloat16)
        self.lstm = nn.LSTM(96, 128, num_layers=2)
        self.attention = nn.MultiheadAttention(64, 4)
        self.conv = nn.Conv2d(16, 32, 3)
        self.norm = nn.BatchNorm2d(32)
        self.wide = nn.Linear(300_000, 3, dtype=torch.bfloat16)
        self.embedding = nn.Embedding(700, 65, dtype=torch.float16)
        self.scales = nn.ParameterList([torch.rand(5) for _ in range(40)])


def mixed(seed: int) -> Mixed:
    torch.manual_seed(seed)
    return Mixed()


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.state_dict())


@check
def a_model_is_filled_where_it_is(device: str, folder: Path) -> None:
    source = mixed(1)
    paths = [folder / "model.safetensors", folder / "model.bpk", folder / "model.pt"]
    bs.save(source, paths[0])
    bs.save(source, paths[1])  # Burn's layout: Linears are transposed, gates are apart
    torch.save(source.state_dict(), paths[2])
    for size in (1 << 23, 1 << 16):
        configure_transfers(buffer_bytes=size)
        for path in paths:
            model = mixed(2).to(device)
            model.conv.to(memory_format=torch.channels_last)
            places = {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in state(model).items()}
            versions = {name: parameter._version for name, parameter in model.named_parameters()}
            result = bs.load(model, path)
            assert result.is_complete, result
            assert_same(state(model), state(source))
            assert places == {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in state(model).items()}
            for name, parameter in model.named_parameters():
                assert parameter.requires_grad and parameter._version > versions[name], name


@check
def a_model_without_memory_is_made_on_the_device(device: str, folder: Path) -> None:
    source = mixed(3)
    bs.save(source, folder / "model.bpk")
    with torch.device("meta"):
        model = Mixed()
    model.large.weight.burn_note = "kept"  # type: ignore[attr-defined]
    with torch.device(device):
        assert bs.load(model, folder / "model.bpk").is_complete
    assert_same(state(model), state(source))
    for name, parameter in model.named_parameters():
        assert isinstance(parameter, nn.Parameter) and parameter.device.type == torch.device(device).type, name
    assert model.large.weight.burn_note == "kept"


@check
def the_ids_of_what_a_tensor_was_made_of_are_kept(device: str, folder: Path) -> None:
    source = nn.LSTM(96, 128)
    source.weight_ih_l0.burn_param_ids = (11, 12, 13, 14)  # type: ignore[union-attr]
    source.bias_hh_l0.burn_param_ids = (21, 22, 23, 24)  # type: ignore[union-attr]
    bs.save(source, folder / "lstm.bpk")
    model = nn.LSTM(96, 128).to(device)
    bs.load(model, folder / "lstm.bpk")
    assert_same(state(model), state(source))
    assert model.weight_ih_l0.burn_param_ids == (11, 12, 13, 14)
    assert model.bias_hh_l0.burn_param_ids == (21, 22, 23, 24)


@check
def a_state_dict_on_the_device_is_replaced_there(device: str, folder: Path) -> None:
    source = mixed(4)
    bs.save(source, folder / "model.safetensors")
    old = {name: tensor.to(device) for name, tensor in state(mixed(5)).items()}
    held = dict(old)
    before = {name: bits(tensor) for name, tensor in held.items()}
    bs.load(old, folder / "model.safetensors")
    assert_same(old, state(source))
    assert all(torch.equal(bits(held[name]), before[name]) for name in held)


@check
def a_snapshot_alone_is_carried(device: str, folder: Path) -> None:
    tensors = {"large": noise("bfloat16", 1000, 1003), "small": noise("int8", 5), "flags": noise("bool", 2_000_000)}
    bs.save(tensors, folder / "some.safetensors")
    with bs.open(folder / "some.safetensors") as file:
        assert_same({name: file[name].torch(device=device) for name in tensors}, tensors)


@check
def a_model_on_the_device_is_saved_byte_by_byte(device: str, folder: Path) -> None:
    source = mixed(6)
    bs.save(source, folder / "host.bpk", metadata={})
    bs.save(source, folder / "host.safetensors")
    model = mixed(7).to(device)
    model.load_state_dict(source.state_dict())
    model.conv.to(memory_format=torch.channels_last)
    bs.save(model, folder / "device.bpk", metadata={})
    bs.save(model, folder / "device.safetensors")
    for suffix in ("bpk", "safetensors"):
        assert (folder / f"device.{suffix}").read_bytes() == (folder / f"host.{suffix}").read_bytes(), suffix
    tensors = {"a": noise("float32", 3000, 1777), "b": noise("uint8", 11), "c": noise("bfloat16", 4, 1_500_001).t()}
    tensors["d"] = noise("complex64", 600, 900).conj()
    bs.save(tensors, folder / "host-tensors.safetensors")
    bs.save({name: tensor.to(device) for name, tensor in tensors.items()}, folder / "device-tensors.safetensors")
    assert (folder / "device-tensors.safetensors").read_bytes() == (folder / "host-tensors.safetensors").read_bytes()


@check
def a_file_that_is_cut_is_reported_with_its_tensor(device: str, folder: Path) -> None:
    path = folder / "cut.safetensors"
    bs.save({"first": noise("float32", 3_000_000), "second": noise("float32", 3_000_000)}, path)
    model = {"first": torch.zeros(3_000_000, device=device), "second": torch.zeros(3_000_000, device=device)}
    module = nn.Module()
    for name in model:
        module.register_parameter(name, nn.Parameter(model[name].clone()))
    with bs.open(path) as file:
        store = bs.SafetensorsStore.from_file(path)
        store.keys()
        os.truncate(path, 20_000_000)
        error = raised(bs.BurnstoreError, lambda: file.torch(device=device))
        assert isinstance(error, (bs.errors.TruncatedError, bs.errors.ChangedError))
        assert error.path == str(path) and error.tensor in ("first", "second"), (error.path, error.tensor)
    refused = raised(bs.errors.LoadError, lambda: store.load(module))
    assert "partly loaded" in str(refused) and refused.path == str(path)


@check
def a_file_that_is_not_in_the_page_cache_is_read(device: str, folder: Path) -> None:
    tensors = {"a": noise("uint8", 4097), "b": noise("bfloat16", 5_000_003), "c": noise("uint8", 31)}
    path = folder / "cold.safetensors"
    bs.save(tensors, path)
    for size in (1 << 16, 1 << 23):
        configure_transfers(buffer_bytes=size)
        for kept in (0, 1 << 20):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(descriptor, kept, 3 << 20)
            os.close(descriptor)
            with bs.open(path) as file:
                assert_same(file.torch(device=device), tensors)


@check
def two_threads_load_at_once(device: str, folder: Path) -> None:
    tensors = {f"t{i}": noise("float32", 700_000 + i) for i in range(20)}
    bs.save(tensors, folder / "both.safetensors")
    found: list[dict[str, torch.Tensor]] = []

    def load() -> None:
        with bs.open(folder / "both.safetensors") as file:
            found.append(file.torch(device=device))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for each in found:
        assert_same(each, tensors)


@check
def memory_that_the_device_still_works_with_is_not_overwritten(device: str, folder: Path) -> None:
    if torch.device(device).type != "cuda":
        return
    tensors = {"a": noise("float32", 8 << 20)}
    bs.save(tensors, folder / "a.safetensors")
    with bs.open(folder / "a.safetensors") as file:
        for _ in range(20):
            old = torch.full((8 << 20,), 3.0, device=device)
            for _ in range(200):
                old.mul_(1.0)
            total = old.sum()
            del old  # its memory may be given to the next tensor while it is still worked with
            found = file.torch(device=device)
            assert total.item() == 3.0 * (8 << 20)
            assert_same(found, tensors)
