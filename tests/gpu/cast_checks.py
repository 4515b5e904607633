"""What must hold of models on a device that are loaded from files of other dtypes; as `checks`."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
from tests.gpu.checks import assert_same, bits, check, noise, state
from tests.gpu.load_checks import account, assert_as_on_the_host
from torch import nn

import burnstore as bs
from burnstore.tensor.dtype import DType, Kind

FLOATS = ("float64", "float32", "float16", "bfloat16")
EIGHTS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
PAIRS = [
    (given, held) for family in ((*FLOATS, *EIGHTS), INTEGERS) for given in family for held in family if given != held
]

# Pairs of which the host takes care, as docs/howto/gpu.md says.
ON_THE_HOST = {
    *(("float64", held) for held in ("float16", "bfloat16", *EIGHTS)),
    *(("float32", held) for held in EIGHTS),
    *((given, "float8_e8m0fnu") for given in (*FLOATS, *EIGHTS)),
    ("float8_e8m0fnu", "float16"),
    *((given, held) for given in EIGHTS for held in EIGHTS),
    *((given, held) for given in ("uint64", "uint32") for held in INTEGERS),
    *(("uint16", held) for held in ("int16", "int8", "uint8")),
}


class Holder(nn.Module):
    """Tensors of one dtype in all the ways in which they can lie: alone and in crowds, in order and turned."""

    def __init__(self, dtype: str, count: int) -> None:
        super().__init__()
        kind = getattr(torch, dtype)
        self.register_buffer("whole", torch.zeros(count, dtype=kind))
        self.register_buffer("turned", torch.zeros(3, count // 3, dtype=kind).t())
        self.register_buffer("deep", torch.zeros(4, count // 8, 2, dtype=kind).permute(2, 0, 1))
        for number in range(5):
            self.register_buffer(f"small{number}", torch.zeros(7 + number, dtype=kind))
        self.register_buffer("one", torch.zeros((), dtype=kind))
        self.register_buffer("none", torch.zeros(0, 3, dtype=kind))

    def filled_from(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Tensors for it, in which all of these values occur."""
        tensors = {}
        values = repeated(values, max(tensor.numel() for tensor in state(self).values()) + 100)
        for name, tensor in state(self).items():
            count = tensor.numel()
            start = 0 if count > 100 else len(name)
            tensors[name] = values[start : start + count].reshape(tensor.shape).clone()
        return tensors


def repeated(values: torch.Tensor, count: int) -> torch.Tensor:
    return values if len(values) >= count else values[torch.arange(count) % len(values)]


def patterns(dtype: str) -> torch.Tensor:
    """Elements of a dtype: all of them, or where there are too many those near which something changes."""
    kind = getattr(torch, dtype)
    width = kind.itemsize
    if width <= 2:
        every = np.arange(1 << 8 * width, dtype=f"u{width}").view(f"i{width}")
        return torch.from_numpy(np.tile(every, 1 << 16 - 8 * width)).view(kind)
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    words = (np.arange(1 << 16, dtype=np.uint32)[:, None] << np.uint32(16) | lower).reshape(-1)
    if width == 4:
        return torch.from_numpy(words.view(np.int32).copy()).view(kind)
    if not kind.is_floating_point:
        wide = words.view(np.int32).astype(np.int64)
        return torch.from_numpy(np.concatenate([wide, wide * 3, wide << 31])).view(kind)
    with np.errstate(all="ignore"):
        singles = words[::11].view(np.float32)  # all of the lower halves, as 11 and 9 have no common factor
        numbers = singles.astype(np.float64)
        halfway = (numbers + np.nextafter(singles, np.float32(np.inf)).astype(np.float64)) / 2
        near = [numbers, halfway, np.nextafter(halfway, np.inf), np.nextafter(halfway, -np.inf), numbers * 1e-200]
    return torch.from_numpy(np.concatenate(near))


def holdable(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """Which of the values a tensor of that dtype takes: integers in range, floats that are at most rounded."""
    given = DType.of(values.dtype)
    wanted = DType.of(getattr(torch, dtype))
    array = np.frombuffer(bits(values).numpy(), given.numpy)
    if wanted.kind is not Kind.FLOAT:
        range_ = np.iinfo(wanted.numpy)
        return torch.from_numpy((array >= range_.min) & (array <= range_.max))
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
        cast = (array.astype(np.float32) if given.bits == 8 else array).astype(wanted.numpy).astype(np.float64)
    if DType.F8_E8M0 in (given, wanted):
        return torch.from_numpy((cast == wide) | (np.isnan(cast) & np.isnan(wide)))
    same = (np.isnan(cast) & np.isnan(wide)) | (np.isinf(cast) & np.isinf(wide))
    return torch.from_numpy(np.isfinite(cast) | same)


@check
def every_dtype_is_cast_as_on_the_host(device: str, folder: Path) -> None:
    for number, (given, held) in enumerate(PAIRS):
        values = patterns(given)
        every = values[holdable(values, held)]
        if (given, held) in ON_THE_HOST:  # then both ways are one
            every = every[:: max(len(every) // 3000, 1)]
        # Among wider floats a NaN or an infinity is the host's: once without, and once with all of them.
        wide = given in ("float64", "float32") or (given in FLOATS and getattr(torch, held).itemsize <= 2)
        some = every[torch.isfinite(every.double())] if wide else every
        model = Holder(held, max(len(some), 3000))
        path = folder / f"{number}.pt"
        for chosen in (some,) if some is every else (some, every):
            torch.save(model.filled_from(chosen), path)
            names = assert_as_on_the_host(model, path, device)
            expected = [] if (given, held) in ON_THE_HOST else [name for name in state(model) if name != "none"]
            if chosen is some:
                assert sorted(set(names) - {"none"}) == sorted(expected), (given, held, names)
        path.unlink()


@check
def values_that_a_dtype_cannot_hold_are_refused_before_the_model_is_changed(device: str, folder: Path) -> None:
    for number, (given, held) in enumerate(PAIRS):
        values = patterns(given)
        lost = values[~holdable(values, held)]
        if not len(lost):
            continue
        fine = values[holdable(values, held)]
        fine = fine[torch.isfinite(fine.double())] if fine.is_floating_point() else fine
        model = Holder(held, 3000)
        tensors = model.filled_from(fine)
        for name in ("turned", "small3"):
            tensors[name].view(-1)[-1:].copy_(lost[number % len(lost)])
        torch.save(tensors, folder / f"{number}.pt")
        names = assert_as_on_the_host(model, folder / f"{number}.pt", device)
        assert not names, (given, held)


@check
def bools_are_carried_and_bytes_that_are_none_are_found_before(device: str, folder: Path) -> None:
    flags = nn.Module()
    flags.register_buffer("many", noise("bool", 700, 900))
    flags.register_buffer("few", noise("bool", 5))
    flags.register_buffer("one", torch.tensor(True))
    bs.save(flags, folder / "flags.safetensors")
    empty = copy.deepcopy(flags)
    for tensor in state(empty).values():
        tensor.zero_()
    assert set(assert_as_on_the_host(empty, folder / "flags.safetensors", device)) == set(state(flags))
    raw = bytearray((folder / "flags.safetensors").read_bytes())
    raw[-3] = 2
    (folder / "bad.safetensors").write_bytes(raw)
    assert assert_as_on_the_host(empty, folder / "bad.safetensors", device) == []
    for dtype in ("uint8", "uint32"):  # in which some backends of Burn hold bools
        kind = getattr(torch, dtype)
        for worst in (1, 2, 255):
            given = {name: tensor.to(torch.int64) for name, tensor in state(flags).items()}
            given["many"][3, 4] = worst
            bs.save({name: tensor.to(kind) for name, tensor in given.items()}, folder / f"{dtype}{worst}.safetensors")
            names = assert_as_on_the_host(empty, folder / f"{dtype}{worst}.safetensors", device)
            assert bool(names) == (worst == 1), (dtype, worst, names)


@check
def an_adapter_that_casts_has_it_done_on_the_device(device: str, folder: Path) -> None:
    source = nn.ModuleDict({"a": nn.Linear(300, 200), "b": nn.Linear(200, 5)})
    bs.save(source, folder / "model.safetensors")
    found = copy.deepcopy(source).half().to(device)
    wanted = copy.deepcopy(source).half()
    options = {"adapter": bs.HalfPrecisionAdapter()}
    with account() as names:
        bs.load(found, folder / "model.safetensors", **options)
    bs.load(wanted, folder / "model.safetensors", in_place=False, **options)
    assert_same(state(found), state(wanted))
    assert set(names) == set(state(found))


@check
def values_that_a_cast_makes_0_are_noted_by_name(device: str, folder: Path) -> None:
    for held in ("float16", "bfloat16"):
        for name in ("whole", "turned", "small3", "small4"):  # alone and among neighbours
            model = Holder(held, 100_000)
            tensors = model.filled_from(torch.ones(10))
            tensors[name].view(-1)[-1:] = 1e-42 if held == "bfloat16" else 1e-20
            torch.save(tensors, folder / "model.pt")
            names = assert_as_on_the_host(model, folder / "model.pt", device)
            assert name in names
            notes = bs.load(copy.deepcopy(model).to(device), folder / "model.pt").notes
            assert f"cast: values too small for the new dtype became 0 in '{name}'" in notes
