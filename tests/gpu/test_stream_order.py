"""The order of streams: acts that have none are found, and told with both; acts that have one are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.gpu.fake_cuda import FakeCuda, FakeStream
from tests.gpu.stream_order import View, share_bytes

BYTES = 1 << 16


class Gpu:
    """A GPU on which a transfer is written by hand."""

    def __init__(self) -> None:
        self.cuda = FakeCuda()
        self.bus, self.work = self.cuda.Stream(), self.cuda.Stream()
        self.before = torch.zeros(BYTES, dtype=torch.uint8)  # nobody has seen it yet
        self._buffers: list[np.ndarray[Any, Any]] = []

    def empty(self, stream: FakeStream | None = None) -> torch.Tensor:
        self.cuda.set_stream(stream or self.cuda.callers)
        return torch.empty(BYTES, dtype=torch.uint8)

    def buffer(self) -> torch.Tensor:
        """A buffer that was filled."""
        self._buffers.append(np.zeros(BYTES, np.uint8))
        index = len(self._buffers) - 1
        self.fill(index)
        self.cuda.order.read_ended(index)
        return torch.from_numpy(self._buffers[index])

    def fill(self, index: int) -> None:
        self.cuda.order.read_begins(index, memoryview(self._buffers[index]))

    def copy(self, stream: FakeStream, target: torch.Tensor, source: torch.Tensor) -> None:
        self.cuda.set_stream(stream)
        target.copy_(source, non_blocking=True)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    """Both streams wait for the caller's; all is awaited in the end."""
    gpu = Gpu()
    with gpu.cuda.device("cuda"):
        for stream in (gpu.bus, gpu.work):
            stream.wait_stream(gpu.cuda.callers)
        yield gpu
        gpu.bus.synchronize()
        gpu.work.synchronize()
    assert not gpu.cuda.not_awaited


def refused(first: str, second: str) -> Any:
    """Two acts that nothing orders, by name and stream."""
    return pytest.raises(AssertionError, match=f"(?s)nothing orders two acts:\n  {first}.*\n  {second}")


def test_memory_that_is_made_is_used_after_its_stream_is_done_with_it(gpu: Gpu) -> None:
    staging, buffer = gpu.empty(), gpu.buffer()
    with refused("empty in the caller's stream", "copy_ in stream 1"):
        gpu.copy(gpu.bus, staging, buffer)
    gpu.bus.wait_event(gpu.cuda.callers.record_event())
    gpu.copy(gpu.bus, staging, buffer)


def test_an_event_that_was_recorded_too_early_orders_nothing_behind_it(gpu: Gpu) -> None:
    free = gpu.cuda.callers.record_event()
    staging, buffer = gpu.empty(), gpu.buffer()
    gpu.bus.wait_event(free)
    with refused("empty in the caller's stream", "copy_ in stream 1"):
        gpu.copy(gpu.bus, staging, buffer)


def test_memory_that_was_there_before_is_used_after_the_callers_stream(gpu: Gpu) -> None:
    late, buffer = gpu.cuda.Stream(), gpu.buffer()
    with refused("what came before in the caller's stream", "copy_ in stream 3"):
        gpu.copy(late, gpu.before, buffer)
    late.wait_stream(gpu.cuda.callers)
    gpu.copy(late, gpu.before, buffer)
    late.synchronize()


def test_what_is_staged_is_worked_on_when_it_is_there(gpu: Gpu) -> None:
    staging = gpu.empty(gpu.bus)
    gpu.copy(gpu.bus, staging, gpu.buffer())
    with refused("copy_ in stream 1 writes bytes 0 to 65536", "copy_ in stream 2 reads bytes 3 to 4"):
        gpu.copy(gpu.work, gpu.before[:1], staging[3:4])
    gpu.work.wait_event(gpu.bus.record_event())
    gpu.copy(gpu.work, gpu.before[:1], staging[3:4])


def test_staging_memory_is_filled_again_when_it_was_worked_on(gpu: Gpu) -> None:
    staging, buffer = gpu.empty(gpu.bus), gpu.buffer()
    for _ in range(2):
        gpu.copy(gpu.bus, staging, buffer)
        gpu.work.wait_event(gpu.bus.record_event())
        gpu.copy(gpu.work, gpu.before, staging)
        worked = gpu.work.record_event()
        with refused("copy_ in stream 2 reads", "copy_ in stream 1 writes"):
            gpu.copy(gpu.bus, staging, buffer)
        gpu.bus.wait_event(worked)


def test_a_wait_for_what_was_done_before_the_last_work_is_not_enough(gpu: Gpu) -> None:
    staging, buffer = gpu.empty(gpu.bus), gpu.buffer()
    gpu.copy(gpu.bus, staging, buffer)
    gpu.work.wait_event(gpu.bus.record_event())
    gpu.copy(gpu.work, gpu.before[:5], staging[:5])
    worked = gpu.work.record_event()
    gpu.copy(gpu.work, gpu.before[5:9], staging[5:9])
    gpu.bus.wait_event(worked)
    gpu.copy(gpu.bus, staging[:5], buffer[:5])
    with refused("copy_ in stream 2 reads bytes 5 to 9", "copy_ in stream 1 writes bytes 8 to 20"):
        gpu.copy(gpu.bus, staging[8:20], buffer[8:20])


def test_a_buffer_is_filled_again_when_the_host_knows_that_it_was_copied(gpu: Gpu) -> None:
    gpu.copy(gpu.bus, gpu.before, gpu.buffer())
    sent = gpu.cuda.Event()
    sent.record(gpu.bus)
    assert not sent.query()
    with refused("copy_ in stream 1 reads", "a read in the reads into buffer 0 writes"):
        gpu.fill(0)
    while not sent.query():
        pass
    gpu.fill(0)
    gpu.cuda.order.reads_ended()


def test_the_event_of_another_stream_tells_nothing_of_a_copy(gpu: Gpu) -> None:
    gpu.copy(gpu.work, gpu.before, gpu.buffer())
    gpu.bus.record_event().synchronize()
    with refused("copy_ in stream 2 reads", "a read in the reads into buffer 0 writes"):
        gpu.fill(0)
    gpu.cuda.order.reads_ended()


def test_a_buffer_is_copied_from_when_the_host_was_told_that_it_is_filled(gpu: Gpu) -> None:
    buffer = gpu.buffer()
    gpu.fill(0)
    with refused("a read in the reads into buffer 0", "copy_ in stream 1 reads"):
        gpu.copy(gpu.bus, gpu.before, buffer)
    gpu.cuda.order.read_ended(0)
    gpu.copy(gpu.bus, gpu.before, buffer)


def test_copies_from_one_buffer_are_in_no_order_and_need_none(gpu: Gpu) -> None:
    buffer = gpu.buffer()
    gpu.copy(gpu.bus, gpu.before[:9], buffer[:9])
    gpu.copy(gpu.work, gpu.before[9:99], buffer[:90])


def test_rows_of_a_transposed_tensor_are_apart_though_they_lie_between_each_other(gpu: Gpu) -> None:
    turned = gpu.before.view(256, 256).t()
    buffer = gpu.buffer()
    gpu.copy(gpu.bus, turned[:7], buffer[: 7 * 256].view(7, 256))
    gpu.copy(gpu.work, turned[7:9], buffer[: 2 * 256].view(2, 256))
    with refused("copy_ in stream 2", "copy_ in stream 1"):
        gpu.copy(gpu.bus, turned[8:20], buffer[: 12 * 256].view(12, 256))


def test_what_is_written_as_a_list_or_as_an_out_is_seen_and_views_are_not(gpu: Gpu) -> None:
    table = torch.arange(9, dtype=torch.int32)  # of the caller
    gpu.cuda.set_stream(gpu.bus)
    index = torch.zeros(4, dtype=torch.int32)
    gpu.cuda.set_stream(gpu.work)
    torch.empty_like(index)
    index.view(2, 2).t().unsqueeze(0)
    with refused("zeros in stream 1 writes", "index_select in stream 2 reads"):
        torch.index_select(gpu.before, 0, index)
    with refused("zeros in stream 1 writes bytes 0 to 16", "add in stream 2 writes bytes 0 to 16"):
        torch.add(gpu.before[:4], gpu.before[4:8], out=index)
    with refused("zeros in stream 1 writes bytes 0 to 16", "_foreach_copy_ in stream 2 writes bytes 4 to 8"):
        torch._foreach_copy_([gpu.before[:4], index[1:2]], [gpu.before[4:8], gpu.before[:1]])
    with refused("arange in stream|arange in the caller's stream", "sum in stream 2 reads"):
        table.sum()


def test_memory_that_is_let_go_while_another_stream_works_with_it_is_not_used_again(gpu: Gpu) -> None:
    made = gpu.empty(gpu.bus)
    gpu.work.wait_event(gpu.bus.record_event())
    gpu.copy(gpu.work, made, gpu.before)
    del made
    gpu.empty(gpu.work)
    with pytest.raises(
        AssertionError, match="memory of stream 1 was let go, which knows nothing of:\n  copy_ in strea"
    ):
        gpu.empty(gpu.bus)
    gpu.bus.wait_stream(gpu.work)
    gpu.empty(gpu.bus)


def test_two_acts_are_told_with_the_lines_that_asked_for_them(gpu: Gpu) -> None:
    staging = gpu.empty()
    with pytest.raises(
        AssertionError, match=r"test_stream_order.py:\d+ in copy, from test_stream_order.py:\d+ in test"
    ):
        gpu.copy(gpu.bus, staging, gpu.before)


def test_what_nobody_awaits_is_found_in_the_end() -> None:
    gpu = Gpu()
    with gpu.cuda.device("cuda"):
        for stream in (gpu.bus, gpu.work):
            stream.wait_stream(gpu.cuda.callers)
        gpu.copy(gpu.bus, gpu.before[:5], gpu.before[5:10])
        gpu.copy(gpu.work, gpu.before[10:15], gpu.before[15:20])
        gpu.buffer()
        gpu.fill(0)
        gpu.bus.synchronize()
    of_work, of_reads = gpu.cuda.not_awaited
    assert "copy_ in stream 2 writes bytes 10 to 15" in of_work and "a read in the reads into buffer 0" in of_reads


views = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 7)), max_size=3).flatmap(
    lambda axes: st.builds(
        View,
        st.integers(0, 30),
        st.just(tuple(extent for extent, _ in axes)),
        st.just(tuple(stride for _, stride in axes)),
        st.sampled_from([1, 2, 4]),
    )
)


def bytes_of(view: View) -> set[int]:
    places = [0]
    for extent, stride in zip(view.shape, view.strides, strict=True):
        places = [at + number * stride for at in places for number in range(extent)]
    return {view.first + at * view.width + byte for at in places for byte in range(view.width)}


@given(views, views)
def test_views_share_bytes_if_one_byte_is_in_both(one: View, other: View) -> None:
    assert share_bytes(one, other) == bool(bytes_of(one) & bytes_of(other))
    assert one.is_dense <= (len(bytes_of(one)) == one.end - one.first)
