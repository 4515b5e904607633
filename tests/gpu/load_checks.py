"""What must hold of models on a device that are loaded from files of other layouts, ties and devices; as `checks`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tests.gpu.checks import assert_same, bits, check, noise, raised, state
from torch import nn

import burnstore as bs
from burnstore.io.gpu.buffers import configure_transfers
from burnstore.models.load import gpu as on_device


@contextmanager
def account() -> Iterator[list[str]]:
    """The names of the tensors that were carried to a device in the block."""
    names: list[str] = []

    def deliver(deliveries: Any) -> None:
        names.extend(each.slot.path for each in deliveries)
        carried(deliveries)

    carried = on_device.deliver
    with mock.patch.object(on_device, "deliver", deliver):
        yield names


def outcome(job: Callable[[], Any]) -> tuple[str, list[str], list[str]]:
    """What a load says, be it a result or an error."""
    try:
        result = job()
        error = ""
    except bs.errors.LoadError as failure:
        result, error = failure.result, str(failure)
    return error, result.applied, result.notes


def assert_as_on_the_host(model: nn.Module, path: Path, device: str) -> list[str]:
    """Load a file into a model on the device, and into one on the host, and compare; which were carried."""
    wanted, found = copy.deepcopy(model), copy.deepcopy(model).to(device)
    for name, tensor in state(model).items():  # a move does not keep all strides
        if tensor.stride() != state(found)[name].stride():
            raise AssertionError(f"{name} was laid out anew")
    with account() as names:
        told = outcome(lambda: bs.load(found, path))
    assert told == outcome(lambda: bs.load(wanted, path, in_place=False)), told
    assert_same(state(found), state(wanted))
    return names


class Layers(nn.Module):
    """Layers that Burn has otherwise: turned, in parts, under other names."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        kind = getattr(torch, dtype)
        self.large = nn.Linear(1100, 900, dtype=kind)
        self.wide = nn.Linear(30_000, 3, dtype=kind)
        self.lstm = nn.LSTM(96, 128, num_layers=2, dtype=kind)
        self.backwards = nn.GRU(24, 40, bidirectional=True, dtype=kind)
        self.attention = nn.MultiheadAttention(64, 4, dtype=kind)
        self.bare = nn.MultiheadAttention(32, 4, bias=False, dtype=kind)
        self.norm = nn.GroupNorm(4, 32, dtype=kind)
        self.back = nn.ConvTranspose2d(6, 8, 3, groups=2, dtype=kind)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dtype=kind)


@check
def what_layouts_turn_and_split_is_cast_too(device: str, folder: Path) -> None:
    for given, held in (
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
        ("float16", "float32"),
        ("float32", "float64"),
    ):
        torch.manual_seed(8)
        bs.save(Layers(given), folder / f"{given}.bpk", overwrite=True)
        bs.save(Layers(given), folder / f"{given}.safetensors", overwrite=True)
        model = Layers(held)
        for size in (1 << 23, 1 << 16):
            configure_transfers(buffer_bytes=size)
            for suffix in ("bpk", "safetensors"):
                names = assert_as_on_the_host(model, folder / f"{given}.{suffix}", device)
                assert set(names) == set(state(model)), (given, held, suffix, set(state(model)) - set(names))


class InBurnsLayout:
    """Tensors of torch as Burn has them, where what torch has as one is in parts."""

    burnstore_layout = "burn"

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            *path, last = name.split(".")
            place = self.__dict__
            for segment in path:
                place = place.setdefault(segment, {})
            place[last] = tensor

    def tensor(self, name: str) -> torch.Tensor:
        place: Any = self.__dict__
        for segment in name.split("."):
            place = place[segment]
        assert isinstance(place, torch.Tensor)
        return place


@check
def a_model_of_burns_layout_takes_the_parts_of_what_torch_has_as_one(device: str, folder: Path) -> None:
    torch.manual_seed(10)
    kinds = {"fc": "Linear", "rnn": "Lstm", "attention": "MultiHeadAttention", "gru": "Gru"}
    source = nn.ModuleDict(
        {
            "fc": nn.Linear(30, 20),
            "rnn": nn.LSTM(8, 16),
            "attention": nn.MultiheadAttention(16, 4),
            "gru": nn.GRU(8, 16),
        }
    )
    bs.save(source, folder / "source.bpk")
    bs.save(source, folder / "source.safetensors")
    torch.save(source.state_dict(), folder / "source.pt")
    with bs.open(folder / "source.bpk") as file:
        wanted = file.torch()
    for path in (folder / "source.safetensors", folder / "source.pt"):
        for dtype in (torch.float32, torch.float16, torch.float64):
            empty = {name: torch.zeros(tensor.shape, dtype=dtype, device=device) for name, tensor in wanted.items()}
            model = InBurnsLayout(empty)
            with account() as names:
                bs.load(model, path, rules={f"^{name}$": kind for name, kind in kinds.items()})
            assert set(names) == set(wanted)
            assert_same({name: model.tensor(name) for name in wanted}, {k: v.to(dtype) for k, v in wanted.items()})


@check
def a_bias_that_burn_leaves_out_comes_as_zeros(device: str, folder: Path) -> None:
    source = nn.ModuleDict({"attention": nn.MultiheadAttention(64, 4)})
    bs.save(source, folder / "whole.bpk")
    with bs.open(folder / "whole.bpk") as file:
        kept = [snapshot for name, snapshot in file.items() if name != "attention.key.bias"]
        bs.save(kept, folder / "some.bpk", metadata=file.metadata)
    for dtype in ("float32", "float16"):
        model = nn.ModuleDict({"attention": nn.MultiheadAttention(64, 4, dtype=getattr(torch, dtype))})
        nn.init.ones_(model["attention"].in_proj_bias)
        names = assert_as_on_the_host(model, folder / "some.bpk", device)
        assert set(names) == set(state(model)), names


@check
def parts_of_ranks_are_cast_and_cut(device: str, folder: Path) -> None:
    torch.manual_seed(9)
    source = nn.ModuleDict({"up": nn.Linear(64, 96), "down": nn.Linear(96, 64)})
    rules = bs.Partition({r"^up\.": "rows", r"^down\.weight": "columns", ".*": "replicate"})
    for suffix in ("bpk", "safetensors"):
        path = folder / f"model.{suffix}"
        bs.save(source, path)
        for rank in range(3):
            found, wanted = (
                nn.ModuleDict({"up": nn.Linear(64, 32), "down": nn.Linear(32, 64)}).bfloat16() for _ in range(2)
            )
            found.to(device)
            with account() as names:
                bs.load(found, path, part=rules.part(rank=rank, world=3))
            bs.load(wanted, path, part=rules.part(rank=rank, world=3), in_place=False)
            assert_same(state(found), state(wanted))
            assert set(names) == set(state(found))


@check
def what_lies_otherwise_in_a_file_of_pytorch_is_carried_too(device: str, folder: Path) -> None:
    laid = {
        "turned": torch.rand(300, 700).t(),
        "last": torch.rand(8, 3, 5, 7).to(memory_format=torch.channels_last),
        "deep": torch.rand(4, 5, 6).permute(2, 0, 1),
        "ones": torch.rand(1, 9, 1).permute(1, 2, 0),
        "part": torch.rand(90, 40)[10:50].t(),
    }
    scattered = {
        "columns": torch.rand(90, 40)[:, 3:9],
        "expanded": torch.rand(1, 9).expand(5, 9),
        "flags": noise("bool", 40, 30).t(),
    }
    torch.save({**laid, **scattered}, folder / "laid.pt")
    for dtype in (torch.float32, torch.float16):
        for form in (torch.contiguous_format, torch.channels_last):
            model = nn.Module()
            for name, tensor in {**laid, **scattered}.items():
                empty = torch.zeros(tensor.shape, dtype=torch.bool if name == "flags" else dtype)
                model.register_buffer(name, empty.to(memory_format=form) if tensor.dim() == 4 else empty)
            assert set(assert_as_on_the_host(model, folder / "laid.pt", device)) == set(laid)


class Tied(nn.Module):
    def __init__(self, rows: int = 1700, dtype: str = "float32") -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 300, dtype=getattr(torch, dtype))
        self.other = nn.Linear(300, 40, dtype=getattr(torch, dtype))
        self.head = nn.Linear(300, rows, bias=False)
        self.head.weight = self.table.weight
        self.again = nn.ParameterList([self.table.weight])


@check
def tied_weights_are_carried_once(device: str, folder: Path) -> None:
    source = Tied()
    bs.save(source, folder / "all.safetensors")
    bs.save(source, folder / "all.bpk")  # there the head is turned
    torch.save(source.state_dict(), folder / "all.pt")
    for kept in ("table.weight", "head.weight", "again.0"):
        some = {name: tensor for name, tensor in state(source).items() if name in (kept, "other.weight", "other.bias")}
        bs.save(some, folder / f"{kept}.safetensors")
    for dtype in ("float32", "bfloat16"):
        for path in sorted(folder.iterdir()):
            model = Tied(dtype=dtype)
            names = assert_as_on_the_host(model, path, device)
            assert len(names) == 3, (dtype, path.name, names)
            found = Tied(dtype=dtype).to(device)
            place = found.table.weight
            bs.load(found, path)
            assert found.head.weight is place and found.table.weight is place and found.again[0] is place
            with torch.device("meta"):
                made = Tied(dtype=dtype)
            with torch.device(device), account() as names:
                bs.load(made, path)
            assert_same(state(made), state(found))
            assert made.head.weight is made.table.weight is made.again[0] and len(names) == 3


@check
def tied_weights_that_differ_are_refused_before_the_model_is_changed(device: str, folder: Path) -> None:
    source = Tied()
    apart = {name: tensor.clone() for name, tensor in state(source).items()}
    apart["head.weight"][-1, -1] += 1e-6  # BF16 does not see it
    bs.save(apart, folder / "apart.safetensors")
    model = Tied()
    assert assert_as_on_the_host(model, folder / "apart.safetensors", device) == []
    raised(bs.errors.LoadError, lambda: bs.load(model.to(device), folder / "apart.safetensors"))
    narrow = Tied(dtype="bfloat16")
    assert assert_as_on_the_host(narrow, folder / "apart.safetensors", device) == ["other.weight", "other.bias"]


@check
def a_tied_state_dict_on_the_device_stays_tied(device: str, folder: Path) -> None:
    source = Tied()
    bs.save(source, folder / "tied.safetensors")
    held = {name: tensor.to(device) for name, tensor in state(Tied()).items()}
    held["head.weight"] = held["table.weight"][:]
    held["again.0"] = held["table.weight"]
    bs.load(held, folder / "tied.safetensors")
    assert_same(held, state(source))
    assert held["again.0"] is held["table.weight"]
    assert held["head.weight"].data_ptr() == held["table.weight"].data_ptr()


@check
def a_device_that_is_named_is_where_tensors_are_made(device: str, folder: Path) -> None:
    source = Layers("float32")
    bs.save(source, folder / "model.bpk")
    with torch.device("meta"):
        model = Layers("float32")
    assert bs.load(model, folder / "model.bpk", device=device).is_complete
    assert_same(state(model), state(source))
    assert all(tensor.device.type == torch.device(device).type for tensor in state(model).values())
    assert bs.load(model, folder / "model.bpk", device=torch.device(device)).is_complete
    other = "cpu" if torch.device(device).type == "cuda" else "cuda"
    before = {name: bits(tensor) for name, tensor in state(model).items()}
    error = raised(
        bs.BurnstoreError if other == "cuda" else bs.errors.ModelError,
        lambda: bs.load(model, folder / "model.bpk", device=other),
    )
    assert isinstance(error, (bs.errors.ModelError, bs.errors.DeviceError)), error
    assert all(torch.equal(bits(tensor), before[name]) for name, tensor in state(model).items())


@check
def little_memory_of_the_device_is_used_beside_the_tensors(device: str, folder: Path) -> None:
    if torch.device(device).type != "cuda":
        return
    source = nn.ModuleDict({str(i): nn.Linear(2048, 4096) for i in range(12)})
    bs.save(source, folder / "model.bpk")
    bs.save(source.half(), folder / "half.safetensors")
    for path, dtype in ((folder / "model.bpk", torch.bfloat16), (folder / "half.safetensors", torch.float32)):
        model = nn.ModuleDict({str(i): nn.Linear(2048, 4096) for i in range(12)}).to(device, dtype)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        bs.load(model, path)
        assert torch.cuda.max_memory_allocated() - before < 64_000_000, torch.cuda.max_memory_allocated() - before


@check
def a_device_without_memory_is_told_of(device: str, folder: Path) -> None:
    if torch.device(device).type != "cuda":
        return
    source = nn.ModuleDict({"a": nn.Linear(4096, 4096), "b": nn.Linear(4096, 4096)})
    bs.save(source, folder / "model.safetensors")
    with torch.device("meta"):
        model = nn.ModuleDict({"a": nn.Linear(4096, 4096), "b": nn.Linear(4096, 4096)})
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (80 << 20)) / total)
    try:
        error = raised(bs.errors.LoadError, lambda: bs.load(model, folder / "model.safetensors", device=device))
        assert "the model is unchanged" in str(error) and error.tensor == "b.weight", error
        assert isinstance(error.__cause__, bs.errors.DeviceError), error
        assert isinstance(error.__cause__.__cause__, torch.OutOfMemoryError), error
        assert all(parameter.is_meta for parameter in model.parameters())
        with bs.open(folder / "model.safetensors") as file:
            error = raised(bs.errors.DeviceError, lambda: file.torch(device=device))
            assert error.path == str(folder / "model.safetensors"), error
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert bs.load(model, folder / "model.safetensors", device=device).is_complete
