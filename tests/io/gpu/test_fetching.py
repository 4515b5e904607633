"""Fetching: what comes from a device comes in order, and a buffer is not used again while its bytes are needed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import burnstore as bs
from burnstore import TensorSnapshot
from burnstore.formats.write import chunks_of_each
from burnstore.io.gpu.buffers import POOL, configure_transfers, fetched, release_pinned_memory
from burnstore.tensor import torch as torch_bytes
from burnstore.tensor.torch import TorchData, _pieces

LARGE = 1 << 20


@pytest.fixture(autouse=True)
def _all_comes_back() -> Iterator[None]:
    release_pinned_memory()
    yield
    gc.collect()
    assert POOL._lent == 0
    release_pinned_memory()


@pytest.fixture
def configured() -> Iterator[None]:
    """What is configured in a test is given up after it."""
    yield
    configure_transfers()


def pin(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8)


class Arrivals:
    """The ends of copies: which were awaited."""

    def __init__(self) -> None:
        self.made: list[Arrivals.Arrival] = []

    class Arrival:
        awaited = False

        def synchronize(self) -> None:
            self.awaited = True

    def __call__(self, piece: torch.Tensor) -> Arrivals.Arrival:
        self.made.append(Arrivals.Arrival())
        return self.made[-1]


def noise(*lengths: int) -> list[torch.Tensor]:
    return [torch.randint(0, 256, (length,), dtype=torch.uint8) for length in lengths]


@pytest.mark.parametrize("lengths", [[], [5], [LARGE], [LARGE, 3, LARGE + 9, LARGE], [0, 1, 2 * LARGE]])
def test_the_bytes_come_in_order_and_awaited(lengths: list[int]) -> None:
    pieces, arrivals = noise(*lengths), Arrivals()
    found = []
    for memory in fetched(iter(pieces), pin, arrivals):
        found.append(bytes(memory))
        del memory
    assert found == [piece.numpy().tobytes() for piece in pieces]
    assert len(arrivals.made) == sum(length >= LARGE for length in lengths)
    assert all(arrival.awaited for arrival in arrivals.made)


def test_what_is_kept_stays_what_it_was() -> None:
    pieces = noise(*[LARGE + 1] * 40)
    kept = list(fetched(iter(pieces), pin, Arrivals()))
    assert [bytes(memory) for memory in kept] == [piece.numpy().tobytes() for piece in pieces]


def test_few_buffers_are_enough_for_whoever_keeps_nothing() -> None:
    for memory in fetched(iter(noise(*[LARGE] * 30)), pin, Arrivals()):
        assert POOL._lent <= 3
        del memory
    assert POOL.waiting <= 3


def test_whoever_stops_early_waits_for_what_is_on_its_way() -> None:
    arrivals = Arrivals()
    chunks = fetched(iter(noise(LARGE, LARGE, LARGE)), pin, arrivals)
    next(chunks)
    assert [arrival.awaited for arrival in arrivals.made] == [True, False]
    chunks.close()
    assert all(arrival.awaited for arrival in arrivals.made)


def test_a_failing_copy_is_raised() -> None:
    def fail(nbytes: int) -> torch.Tensor:
        raise RuntimeError("cannot pin")

    with pytest.raises(RuntimeError, match="cannot pin"):
        list(fetched(iter(noise(LARGE)), fail, Arrivals()))


def tensors() -> dict[str, torch.Tensor]:
    block = torch.randint(-(2**15), 2**15, (70, 3000), dtype=torch.int16)
    return {
        "plain": block,
        "turned": block.t(),
        "every second": block[::2, ::3],
        "long rows": torch.randint(0, 9, (90_000, 3), dtype=torch.int32).t(),
        "three axes": torch.rand(7, 50, 60).permute(2, 0, 1),
        "conjugated": torch.rand(300, 200, dtype=torch.complex64).conj().t(),
        "no axes": torch.tensor(4.5),
        "empty": torch.rand(3, 0).t(),
    }


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("name", tensors())
def test_pieces_are_the_bytes_of_a_tensor_in_its_own_order(name: str, configured: None) -> None:
    configure_transfers(buffer_bytes=1 << 16)
    tensor = tensors()[name]
    pieces = list(_pieces(tensor))
    assert all(len(piece) <= 1 << 16 for piece in pieces)
    assert b"".join(piece.numpy().tobytes() for piece in pieces) == tensor.resolve_conj().numpy().tobytes()


class OnGpu(TorchData):
    """The data of a tensor that says it is on a GPU."""

    __slots__ = ()

    class Tensor:
        is_cpu = is_meta = False
        device = torch.device("cuda", 0)

        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor
            self.nbytes = tensor.nbytes

        def detach(self) -> torch.Tensor:
            return self.tensor.detach()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.tensor, name)  # its elements; where it is states this class


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> Arrivals:
    """What is on a GPU that is none arrives here."""
    found = Arrivals()
    monkeypatch.setattr(torch_bytes, "_pinned", pin)
    monkeypatch.setattr(torch_bytes, "_copied", found)
    return found


def on_gpu(tensors: dict[str, torch.Tensor]) -> list[TensorSnapshot]:
    found = []
    for name, tensor in tensors.items():
        host = TensorSnapshot.from_torch(name, tensor)
        found.append(TensorSnapshot(name, host.dtype, host.shape, OnGpu(OnGpu.Tensor(tensor))))
    return found


def on_host(tensors: dict[str, torch.Tensor]) -> list[TensorSnapshot]:
    return [TensorSnapshot.from_torch(name, tensor) for name, tensor in tensors.items()]


def test_data_on_a_gpu_are_written_through_the_ring(arrivals: Arrivals, configured: None) -> None:
    configure_transfers(buffer_bytes=1 << 22)
    tensor = torch.rand(1500, 1700)
    data = OnGpu(OnGpu.Tensor(tensor))
    assert data.streams and data.batch_key is None
    assert b"".join(map(bytes, data.chunks(tensor.nbytes))) == tensor.numpy().tobytes()
    assert len(arrivals.made) == 3  # of 10 MB


# --- small tensors ----------------------------------------------------------------------------------------------------


def small() -> dict[str, torch.Tensor]:
    """Tensors of every dtype and in every way in which one can lie."""
    found = dict(tensors())
    for dtype in ("float64", "bfloat16", "float8_e4m3fn", "bool", "int8", "uint16", "complex64", "float32"):
        kind = getattr(torch, dtype)
        raw = torch.randint(0, 2, (6, 10 * torch.empty(0, dtype=kind).element_size()), dtype=torch.uint8)
        found[dtype] = raw.view(kind)
        found[f"{dtype} turned"] = raw.view(kind).t()
        found[f"{dtype} one"] = raw.view(kind)[3, 4]
    found["repeated"] = torch.rand(1, 9).expand(50, 9)
    found["repeated once"] = torch.rand(()).expand(1, 1)
    found["one of a column"] = torch.rand(5, 7)[2:3, 3:4]
    found["negated"] = torch.rand(4, 5, dtype=torch.complex64).conj().imag
    found["parameter"] = torch.nn.Parameter(torch.rand(3, 3))
    return found


@pytest.mark.parametrize(("together", "buffer_bytes"), [(1 << 22, 1 << 23), (1 << 22, 1 << 16), (1, 1 << 23)])
def test_small_tensors_of_a_gpu_are_written_as_those_of_the_host(
    arrivals: Arrivals, monkeypatch: pytest.MonkeyPatch, configured: None, together: int, buffer_bytes: int
) -> None:
    monkeypatch.setattr(torch_bytes, "_BATCH_BYTES", together)
    configure_transfers(buffer_bytes=buffer_bytes)
    for format_name in ("safetensors", "burnpack"):
        given = small()
        if format_name == "burnpack":
            given = {name: tensor for name, tensor in given.items() if tensor.dtype not in OF_NO_BURNPACK}
        packed = bs.serialize(on_gpu(given), format=format_name, metadata={})
        assert packed == bs.serialize(on_host(given), format=format_name, metadata={})


OF_NO_BURNPACK = {torch.complex64, torch.float8_e4m3fn}


def test_many_small_tensors_take_few_copies_between_large_ones_too(
    arrivals: Arrivals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, torch.Tensor] = {}
    for number in range(40):
        given[f"{number}.weight"] = torch.rand(600, 600)  # larger than a megabyte
        given |= {f"{number}.{part}": torch.rand(50 + part, 7) for part in range(100)}
    real, joined = torch.cat, []

    def cat(pieces: list[torch.Tensor]) -> torch.Tensor:
        joined.append(real(pieces))
        return joined[-1]

    monkeypatch.setattr(torch, "cat", cat)
    bs.save(on_gpu(given), tmp_path / "gpu.safetensors", metadata={})
    assert len(joined) == 3 and all(len(each) <= 4 << 20 for each in joined)  # 11 MB
    assert len(arrivals.made) == 40 + 3 and POOL.waiting <= 11
    bs.save(on_host(given), tmp_path / "host.safetensors", metadata={})
    assert (tmp_path / "gpu.safetensors").read_bytes() == (tmp_path / "host.safetensors").read_bytes()


def test_tensors_of_several_devices_are_fetched_from_each(arrivals: Arrivals) -> None:
    given = {str(number): torch.rand(number + 1) for number in range(30)}
    snapshots = on_gpu(given)
    for snapshot in snapshots[1::3]:
        snapshot._data.tensor.device = torch.device("cuda", 1)  # type: ignore[attr-defined]
    snapshots[2::3] = on_host(given)[2::3]
    found = [b"".join(chunks) for chunks in chunks_of_each(snapshots)]
    assert found == [tensor.numpy().tobytes() for tensor in given.values()]


def test_a_device_that_fails_is_an_error_of_ours_with_the_tensor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal address\nmore lines")

    monkeypatch.setattr(torch_bytes, "_pinned", fail)
    for tensor in (torch.rand(600, 600), torch.rand(3)):
        monkeypatch.setattr(torch, "cat", fail)
        with pytest.raises(bs.errors.DeviceError, match=r"tensor 'w': cuda:0 failed .* illegal address$") as caught:
            bs.save(on_gpu({"w": tensor}), tmp_path / "w.safetensors")
        assert caught.value.tensor == "w" and list(tmp_path.iterdir()) == []
