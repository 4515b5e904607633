"""Fetching: what comes from a device comes in order, and a buffer is not used again while its bytes are needed."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

import burnstore as bs
from burnstore import torch_tensor
from burnstore.device.buffers import POOL
from burnstore.device.fetching import fetched
from burnstore.torch_tensor import TorchData, _pieces

LARGE = 1 << 20


@pytest.fixture(autouse=True)
def _all_comes_back() -> Iterator[None]:
    bs.release_pinned_memory()
    yield
    gc.collect()
    assert POOL._lent == 0
    bs.release_pinned_memory()


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


@pytest.mark.parametrize("lengths", [[], [5], [LARGE], [LARGE, 3, LARGE + 9, LARGE], [0, 1, 8 * LARGE]])
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


@pytest.mark.parametrize("name", tensors())
def test_pieces_are_the_bytes_of_a_tensor_in_its_own_order(name: str) -> None:
    bs.configure_transfers(buffer_bytes=1 << 16)
    tensor = tensors()[name]
    try:
        pieces = list(_pieces(tensor))
    finally:
        bs.configure_transfers()
    assert all(len(piece) <= 1 << 16 for piece in pieces)
    assert b"".join(piece.numpy().tobytes() for piece in pieces) == tensor.resolve_conj().numpy().tobytes()


class OnGpu(TorchData):
    """The data of a tensor that says it is on a GPU."""

    __slots__ = ()

    class Tensor:
        is_cpu = is_meta = False
        is_cuda = True

        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

        def detach(self) -> torch.Tensor:
            return self.tensor.detach()


def test_data_on_a_gpu_are_written_through_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_tensor, "_pinned", pin)
    monkeypatch.setattr(torch_tensor, "_copied", Arrivals())
    tensor = torch.rand(1500, 1700)
    data = OnGpu(OnGpu.Tensor(tensor))
    assert data.streams
    assert b"".join(map(bytes, data.chunks(tensor.nbytes))) == tensor.numpy().tobytes()
