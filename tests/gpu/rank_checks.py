"""What must hold of the part of a model that a rank has on its device; as `checks`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tests.gpu.checks import assert_same, check, noise, raised, state
from torch import nn

import burnstore as bs
from burnstore.io.gpu.buffers import configure_transfers
from burnstore.io.gpu.transfer import Range, transfer
from burnstore.io.sizes import PAGE
from burnstore.io.source import FileSource
from burnstore.models.load import gpu as on_device

WORLD = 4
RULES = bs.Partition(
    {
        r"^(q|up)\.": "rows",
        r"^qkv\.": ("rows", 3),
        r"^(o|down|long)\.weight": "columns",
        r"^experts": 1,
        r"^deep": 2,
        r".*": "replicate",
    }
)
AXES = {"q": 0, "up": 0, "o.weight": 1, "down": 1, "long": 1, "experts": 1, "deep": 2}


class Block(nn.Module):
    """Layers of which a rank has rows, columns, rows of several matrices in one, an inner axis, or all."""

    def __init__(self, ranks: int = 1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(640)
        self.q = nn.Linear(640, 320 // ranks)
        self.qkv = nn.Linear(640, 3 * (240 // ranks), bias=False)
        self.o = nn.Linear(640 // ranks, 320)
        self.up = nn.Linear(640, 5000 // ranks, dtype=torch.bfloat16)
        self.down = nn.Linear(5000 // ranks, 640, bias=False, dtype=torch.bfloat16)
        self.long = nn.Linear(70_000 // ranks, 12, bias=False, dtype=torch.bfloat16)
        self.experts = nn.Parameter(torch.rand(3, 800 // ranks, 300))
        self.deep = nn.Parameter(torch.rand(5, 6, 400 // ranks, 7))
        self.conv = nn.Conv2d(16, 32, 3)


def whole_files(folder: Path) -> tuple[Block, list[Path]]:
    torch.manual_seed(1)
    whole = Block()
    bs.save(whole, folder / "model.safetensors")
    bs.save(whole, folder / "model.bpk")  # Burn's layout: rows of the model are columns of the file
    bs.save(whole, folder / "shards.safetensors", max_shard_size="4MB")
    torch.save(whole.state_dict(), folder / "model.pt")
    names = ("model.safetensors", "model.bpk", "shards.safetensors.index.json", "model.pt")
    return whole, [folder / name for name in names]


def put_together(name: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """The whole tensor that the parts of all ranks make."""
    if name.startswith("qkv"):
        thirds = [part.cpu().chunk(3) for part in parts]
        return torch.cat([torch.cat([each[block] for each in thirds]) for block in range(3)])
    axis = next((axis for prefix, axis in AXES.items() if name.startswith(prefix)), None)
    return parts[0].cpu() if axis is None else torch.cat([part.cpu() for part in parts], axis)


@contextmanager
def carried() -> Iterator[list[int]]:
    """How many bytes each transfer into a model carries, in the block."""
    found: list[int] = []

    def counting(ranges: Iterable[Range], *arguments: Any, **options: Any) -> None:
        kept = list(ranges)
        found.append(sum(range_.length for range_ in kept))
        transfer(kept, *arguments, **options)

    with mock.patch.object(on_device, "transfer", counting):
        yield found


@contextmanager
def bytes_read() -> Iterator[list[int]]:
    """How many bytes of files are read with each call, in the block."""
    found: list[int] = []

    def of_reads(reads: Any) -> int:
        return sum(len(buffer) for _, buffer in reads)

    counts: dict[str, Callable[..., int]] = {
        "read_at": lambda offset, length: length,
        "read_into": of_reads,
        "read_pages": lambda offset, length, pages: length,
        "kernel_read": lambda offset, length: length,
    }
    with ExitStack() as patches:
        for name, count in counts.items():
            counting = _counting(getattr(FileSource, name), count, found)
            patches.enter_context(mock.patch.object(FileSource, name, counting))
        real = FileSource.read_cached_runs

        def read_cached_runs(self: FileSource, offset: int, row: int, run: int, buffer: memoryview) -> int:
            done = real(self, offset, row, run, buffer)
            found.append(done * run)
            return done

        patches.enter_context(mock.patch.object(FileSource, "read_cached_runs", read_cached_runs))
        yield found


def _counting(real: Callable[..., Any], count: Callable[..., int], found: list[int]) -> Callable[..., Any]:
    def counted(self: FileSource, *arguments: Any) -> Any:
        found.append(count(*arguments))
        return real(self, *arguments)

    return counted


def of_all_ranks(path: Path, device: str) -> dict[str, torch.Tensor]:
    """The whole that ranks make which each load their part."""
    ranks: list[dict[str, torch.Tensor]] = []
    for rank in range(WORLD):
        model = Block(WORLD).to(device)
        model.conv.to(memory_format=torch.channels_last)
        with carried() as transfers:
            result = bs.load(model, path, part=RULES.part(rank=rank, world=WORLD))
        assert result.is_complete, result
        assert sum(transfers) >= sum(tensor.nbytes for tensor in state(model).values()), "some went over the host"
        ranks.append(state(model))
    return {name: put_together(name, [part[name] for part in ranks]) for name in ranks[0]}


@check
def the_parts_of_all_ranks_are_the_whole_and_none_goes_over_the_host(device: str, folder: Path) -> None:
    whole, paths = whole_files(folder)
    for size in (1 << 23, 1 << 16):
        configure_transfers(buffer_bytes=size)
        for path in paths:
            assert_same(of_all_ranks(path, device), state(whole))
        paths = paths[:2]


@check
def parts_of_files_that_are_not_in_the_page_cache_are_read(device: str, folder: Path) -> None:
    whole, paths = whole_files(folder)
    for file in folder.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    for path in paths:
        assert_same(of_all_ranks(path, device), state(whole))


@check
def a_rank_reads_its_part_and_nothing_else(device: str, folder: Path) -> None:
    shapes = {"q.weight": (4096, 1024), "long.weight": (48, 65536), "experts": (3, 1600, 700), "o.weight": (3000, 2048)}
    tensors = {name: noise("float32", *shape) for name, shape in shapes.items()}
    bs.save(tensors, folder / "tensors.safetensors")
    bs.save(tensors, folder / "tensors.bpk", layout="torch")
    torch.save(tensors, folder / "tensors.pt")
    for path in sorted(folder.glob("tensors.*")):
        for name, shape in shapes.items():
            axis = AXES["o.weight" if name == "o.weight" else name.partition(".")[0]]
            part = [*shape[:axis], shape[axis] // WORLD, *shape[axis + 1 :]]
            total = 0
            for rank in range(WORLD):
                held = {name: torch.zeros(part, device=device)}
                with bs.open(path) as file, bytes_read() as reads:
                    [found] = RULES.slice([file[name]], rank=rank, world=WORLD)
                    bs.apply(held, [found])
                assert_same(held, {name: tensors[name].chunk(WORLD, axis)[rank].contiguous()})
                total += sum(reads)
            # Rows of 8 KiB that are not in the page cache are read through: by each rank, but by none twice.
            most = tensors[name].nbytes * (WORLD if name == "o.weight" else 1)
            assert tensors[name].nbytes <= total <= most + 64 * PAGE, (path, name, total / tensors[name].nbytes)


@check
def parts_of_snapshots_are_carried_one_by_one(device: str, folder: Path) -> None:
    tensors = {"q.weight": noise("bfloat16", 4096, 1024), "o.weight": noise("bfloat16", 3000, 2048)}
    tensors |= {"norm.weight": noise("float32", 700_000), "q.bias": noise("float32", 8)}
    bs.save(tensors, folder / "tensors.safetensors")
    with bs.open(folder / "tensors.safetensors") as file:
        for rank in range(WORLD):
            parts = {part.path: part for part in RULES.slice(file.values(), rank=rank, world=WORLD)}
            found = {name: part.torch(device=device) for name, part in parts.items()}
            assert all(tensor.device.type == torch.device(device).type for tensor in found.values())
            wanted = {name: tensors[name].chunk(WORLD, axis)[rank].contiguous() for name, axis in AXES_OF_PARTS.items()}
            assert_same(found, {**wanted, "norm.weight": tensors["norm.weight"]})


AXES_OF_PARTS = {"q.weight": 0, "o.weight": 1, "q.bias": 0}


@check
def a_file_that_is_cut_is_reported_with_the_tensor_of_the_part(device: str, folder: Path) -> None:
    path = folder / "cut.safetensors"
    bs.save({"o.weight": noise("float32", 3000, 2048)}, path)
    with bs.open(path) as file:
        [part] = RULES.slice(file.values(), rank=3, world=WORLD)
        os.truncate(path, 9_000_000)
        error = raised(bs.BurnstoreError, lambda: part.torch(device=device))
        assert isinstance(error, (bs.errors.TruncatedError, bs.errors.ChangedError))
        assert error.path == str(path) and error.tensor == "o.weight", (error.path, error.tensor)


@check
def many_small_tensors_on_the_device_are_saved_as_those_of_the_host(device: str, folder: Path) -> None:
    kinds = ("float32", "bfloat16", "int64", "uint8", "float8_e5m2", "bool", "complex64", "float16")
    tensors = {f"layer.{i}.w": noise(kinds[i % 8], *((64,), (16, 17), (3, 5, 7), (1,))[i % 4]) for i in range(3000)}
    tensors["large"] = noise("float32", 700, 800)
    there = {name: tensor.to(device) for name, tensor in tensors.items()}
    complex_ones, few = noise("complex64", 20, 30), noise("bfloat16", 1, 9)
    for found, where in ((tensors, "cpu"), (there, device)):
        values = complex_ones.to(where)
        found |= {"turned": values.t(), "conjugated": values.conj(), "negated": values.conj().imag}
        found["repeated"] = few.to(where).expand(40, 9)
    bs.save(tensors, folder / "host.safetensors")
    bs.save(there, folder / "device.safetensors")
    with bs.open(folder / "device.safetensors") as saved, bs.open(folder / "host.safetensors") as wanted:
        assert_same(saved.torch(), wanted.torch())
    assert (folder / "device.safetensors").read_bytes() == (folder / "host.safetensors").read_bytes()
