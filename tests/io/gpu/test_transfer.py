"""The engine: every byte arrives at its place, whatever the ring; and whatever fails, nothing is left behind."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore.errors import ChangedError, ClosedError, ReadError, TruncatedError
from burnstore.io import kernel_reads, parallel
from burnstore.io.gpu import transfer as transfers
from burnstore.io.gpu.buffers import TransferSettings
from burnstore.io.gpu.chunks import Chunk, Range, Sink, max_unit, split_chunks
from burnstore.io.gpu.staging import HostStaging
from burnstore.io.gpu.transfer import KernelReaders, ThreadReaders, readers_for, transfer, transferring
from burnstore.io.kernel_reads import KernelReads
from burnstore.io.sizes import GPU_GAP_BYTES, PAGE
from burnstore.io.source import BytesSource, FileSource

SIZE = 1 << 16
TINY = TransferSettings(buffers=2, buffer_bytes=1 << 16)
READ = 2 * PAGE
DATA = np.random.default_rng(1).integers(0, 256, 40 * SIZE, np.uint8).tobytes()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/task"))
    yield
    for _ in range(100):  # the system takes a moment to remove a thread that has ended
        if len(os.listdir("/proc/self/task")) <= before:
            return
        time.sleep(0.01)
    raise AssertionError("a thread is left")


class Into:
    """A sink in memory of its own."""

    def __init__(self, nbytes: int) -> None:
        self.memory = bytearray(nbytes)
        self.lengths: list[int] = []

    def write(self, memory: Any, place: int) -> None:
        assert place + len(memory) <= len(self.memory)
        self.memory[place : place + len(memory)] = memory
        self.lengths.append(len(memory))


class Late:
    """A ticket that is done when it is awaited, or asked for often enough."""

    def __init__(self, staging: LateStaging, indices: list[int]) -> None:
        self.staging, self.indices, self.asked = staging, indices, 0

    def query(self) -> bool:
        self.asked += 1
        if self.asked > 3:
            self.synchronize()
        return self.asked > 3

    def synchronize(self) -> None:
        for job in self.staging.pending.pop(id(self), []):
            job()


class LateStaging(HostStaging):
    """A staging whose copies happen late: from a buffer that was filled again too early, they bring wrong bytes."""

    def __init__(self, buffers: int = 4) -> None:
        super().__init__(TransferSettings(readers=3, buffers=buffers, buffer_bytes=SIZE))
        self.pending: dict[int, list[Callable[[], None]]] = {}
        self.batch: list[Callable[[], None]] = []
        self.tickets: list[Late] = []

    def end_batch(self) -> Any:
        ticket = Late(self, [])
        self.pending[id(ticket)], self.batch = self.batch, []
        self.tickets.append(ticket)
        return ticket

    def __exit__(self, *failure: object) -> None:
        for ticket in self.tickets:
            ticket.synchronize()
        super().__exit__(*failure)


class IntoLate(Into):
    def __init__(self, staging: LateStaging, nbytes: int) -> None:
        super().__init__(nbytes)
        self.staging = staging

    def write(self, memory: Any, place: int) -> None:
        self.staging.batch.append(lambda: Into.write(self, memory, place))


def ring(buffers: int = 4) -> HostStaging:
    return HostStaging(TransferSettings(buffers=buffers, buffer_bytes=SIZE))


def without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "kernel_reads", lambda *_: None)


def with_short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "GPU_READ_BYTES", READ)


@pytest.fixture(params=["kernel", "kernel, many reads a chunk", "threads", "threads, many reads a chunk"])
def source(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileSource]:
    """A file whose chunks are each read by one thread of the kernel or of Python, or by several."""
    if request.param.startswith("threads"):
        without_the_kernel(monkeypatch)
    if request.param.endswith("many reads a chunk"):
        with_short_reads(monkeypatch)
    (tmp_path / "data").write_bytes(DATA)
    opened = FileSource(tmp_path / "data")
    yield opened
    opened.close()


@pytest.mark.parametrize("buffers", [1, 2, 5, 24])
@pytest.mark.parametrize("number", [1, 2, 12])
def test_every_byte_arrives(source: FileSource, buffers: int, number: int) -> None:
    spans = [(0, len(DATA)), (5, 3), (SIZE - 1, 2), (7 * SIZE + 11, 3 * SIZE), (len(DATA) - 1, 1), (9, 0)]
    sinks = [Into(length) for _, length in spans]
    ranges = [Range(source, at, length, sink) for (at, length), sink in zip(spans, sinks, strict=True)]
    transfer(ranges, ring(buffers), readers=number)
    for (at, length), sink in zip(spans, sinks, strict=True):
        assert sink.memory == DATA[at : at + length]


@pytest.mark.parametrize("buffers", [1, 2, 7])
def test_a_buffer_is_not_filled_again_before_its_copies_are_done(source: FileSource, buffers: int) -> None:
    staging = LateStaging(buffers)
    sinks = [IntoLate(staging, 6 * SIZE + 77) for _ in range(6)]
    starts = [number * 6 * SIZE for number in range(6)]
    transfer(
        [Range(source, at, 6 * SIZE + 77, each) for at, each in zip(starts, sinks, strict=True)], staging, readers=3
    )
    for at, sink in zip(starts, sinks, strict=True):
        assert sink.memory == DATA[at : at + 6 * SIZE + 77]


@given(st.lists(st.tuples(st.integers(0, 5 * SIZE), st.integers(0, 2 * SIZE), st.integers(1, 300)), max_size=12))
def test_pieces_fit_a_buffer_with_all_their_pages_and_cut_no_unit(spans: list[tuple[int, int, int]]) -> None:
    source = BytesSource(DATA)
    ranges = [Range(source, at, count // unit * unit, Into(count), None, unit) for at, count, unit in spans]
    got: dict[int, list[tuple[int, int, int]]] = {}
    group = sorted((each for each in ranges if each.length), key=lambda each: each.offset)
    for piece in split_chunks([group] if group else [], SIZE):
        first, last = piece.offset // PAGE * PAGE, -(-(piece.offset + piece.length) // PAGE) * PAGE
        assert last - first <= SIZE and piece.length > 0
        for start, length, sink, place, _ in piece.parts:
            assert start >= 0 and start + length <= piece.length
            got.setdefault(id(sink), []).append((piece.offset + start, length, place))
    for each in ranges:
        parts = sorted(got.get(id(each.sink), []), key=lambda part: part[2])
        assert sum(length for _, length, _ in parts) == each.length
        place = 0
        for at, length, where in parts:
            assert (at, where) == (each.offset + place, place) and where % each.unit == 0
            place += length


@given(st.integers(0, 3 * PAGE), st.integers(20 << 20, 90 << 20), st.integers(2, 1 << 15))
def test_a_long_range_is_cut_evenly(at: int, length: int, unit: int) -> None:
    for whole, rounding in ((1, 3 * PAGE), (unit, 2 * unit + PAGE)):  # pieces end with a page, or with a unit
        range_ = Range(BytesSource(b""), at, length // whole * whole, Into(0), None, whole)
        lengths = [piece.length for piece in split_chunks([[range_]], 1 << 20)][16:]
        assert 2 * min(lengths) + rounding >= max(lengths) > 1 << 19


def test_ranges_that_lie_near_each_other_are_one_read_and_far_ones_are_not() -> None:
    source = BytesSource(DATA)

    def reads(*spans: tuple[int, int]) -> list[int]:
        ranges = [Range(source, at, length, Into(length)) for at, length in spans]
        return [len(piece.parts) for piece in split_chunks([ranges], 1 << 23)]

    assert reads((0, 100), (100, 50), (200, 1000)) == [3]
    assert reads((0, 100), (100 + GPU_GAP_BYTES, 50)) == [2]
    assert reads((0, 100), (101 + GPU_GAP_BYTES, 50)) == [1, 1]


def test_the_longest_unit_fits_wherever_it_lies() -> None:
    unit = max_unit(SIZE)
    for at in (0, 1, PAGE - 1, PAGE, SIZE - 1):
        (piece,) = split_chunks([[Range(BytesSource(DATA), at, unit, Into(unit), None, unit)]], SIZE)
        assert [part.length for part in piece.parts] == [unit]


def test_nothing_is_done_for_nothing() -> None:
    class Untouched(HostStaging):
        def __enter__(self) -> HostStaging:
            raise AssertionError("it was entered")

    transfer([Range(BytesSource(b""), 0, 0, Into(0))], Untouched(), readers=2)


def test_a_small_transfer_takes_few_buffers(source: FileSource) -> None:
    class Counting(HostStaging):
        taken = 0

        def buffer(self, index: int) -> memoryview:
            self.taken += 1
            return super().buffer(index)

    staging = Counting(TransferSettings(buffers=24, buffer_bytes=1 << 20))
    transfer([Range(source, 0, len(DATA), Into(len(DATA)))], staging, readers=12)
    assert staging.taken <= len(DATA) // (1 << 20) + 2


# --- what fails -------------------------------------------------------------------------------------------------------


class Failing:
    """A source of which some reads fail."""

    def __init__(self, error: Exception, after: int) -> None:
        self.name, self.size = "failing", len(DATA)
        self.error, self.left = error, after

    def read_into(self, reads: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.error
        for offset, buffer in reads:
            buffer[:] = DATA[offset : offset + len(buffer)]


@pytest.mark.parametrize("after", [0, 1, 20])
def test_a_failing_read_is_raised_with_the_file_and_the_tensor(after: int) -> None:
    failing: Any = Failing(ReadError("the disk is gone"), after)
    with pytest.raises(ReadError) as caught:
        transfer([Range(failing, 0, len(DATA), Into(len(DATA)), "layer.weight")], ring(), readers=4)
    assert (caught.value.path, caught.value.tensor) == ("failing", "layer.weight")


def test_the_tensor_that_is_named_is_the_one_at_the_byte_that_failed() -> None:
    failing: Any = Failing(ReadError("the disk is gone", offset=2_000), 0)
    ranges = [Range(failing, number * 1000, 1000, Into(1000), f"t{number}") for number in range(5)]
    with pytest.raises(ReadError) as caught:
        transfer(ranges, ring(), readers=1)
    assert caught.value.tensor == "t2"
    failing = Failing(ReadError("the disk is gone"), 0)
    with pytest.raises(ReadError) as caught:
        transfer([Range(failing, *each[1:]) for each in ranges], ring(), readers=1)
    assert caught.value.tensor is None  # it may have been any of them


def test_an_error_of_another_kind_is_raised_as_it_is() -> None:
    failing: Any = Failing(MemoryError("no"), 3)
    with pytest.raises(MemoryError, match="no"):
        transfer([Range(failing, 0, len(DATA), Into(len(DATA)))], ring(), readers=4)


@pytest.mark.parametrize("error", [RuntimeError("the device is gone"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("after", [0, 1, 9])
def test_what_a_landing_raises_ends_the_transfer(source: FileSource, error: BaseException, after: int) -> None:
    class Raising(Into):
        def write(self, memory: Any, place: int) -> None:
            super().write(memory, place)
            if len(self.lengths) > after:
                raise error

    sink = Raising(len(DATA))
    with pytest.raises(type(error)):
        transfer([Range(source, 0, len(DATA), sink)], ring(), readers=4)
    assert len(sink.lengths) == after + 1


def test_there_is_time_for_something_while_the_last_pieces_are_read(source: FileSource) -> None:
    sink = Into(len(DATA))
    with transferring([Range(source, 0, len(DATA), sink)], ring(), readers=4):
        begun = sum(sink.lengths)
        assert begun < len(DATA)
    assert sink.memory == DATA
    with transferring([], ring(), readers=4):
        pass


@pytest.mark.parametrize("error", [RuntimeError("no view"), KeyboardInterrupt()])
def test_what_is_raised_meanwhile_ends_the_transfer(source: FileSource, error: BaseException) -> None:
    class Watched(HostStaging):
        left = 0

        def __exit__(self, *failure: object) -> None:
            self.left += 1
            super().__exit__(*failure)

    staging = Watched(TransferSettings(buffers=4, buffer_bytes=SIZE))
    with (
        pytest.raises(type(error)),
        transferring([Range(source, 0, len(DATA), Into(len(DATA)))], staging, readers=4),
    ):
        raise error
    assert staging.left == 1


def test_a_file_that_is_cut_before_the_last_pieces_are_read_is_reported(source: FileSource) -> None:
    with (
        pytest.raises((TruncatedError, ChangedError)),
        transferring([Range(source, 0, len(DATA), Into(len(DATA)))], ring(), readers=4),
    ):
        os.truncate(source.name, 10)


@pytest.mark.parametrize("step", ["buffer", "begin_batch", "memory", "end_batch"])
def test_what_a_carrier_raises_ends_the_transfer_and_it_is_left(source: FileSource, step: str) -> None:
    class Raising(HostStaging):
        left = False

        def __exit__(self, *failure: object) -> None:
            self.left = True
            super().__exit__(*failure)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    staging = Raising(TransferSettings(buffers=3, buffer_bytes=SIZE))
    setattr(staging, step, fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        transfer([Range(source, 0, len(DATA), Into(len(DATA)))], staging, readers=2)
    assert staging.left


def test_a_ticket_that_fails_ends_the_transfer(source: FileSource) -> None:
    class Broken(HostStaging):
        def query(self) -> bool:
            return False

        def synchronize(self) -> None:
            raise RuntimeError("illegal memory access")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        transfer(
            [Range(source, 0, len(DATA), Into(len(DATA)))],
            Broken(TINY),
            readers=2,
        )


def test_a_file_that_is_cut_meanwhile_is_reported(source: FileSource) -> None:
    class Cutting(Into):
        def write(self, memory: Any, place: int) -> None:
            os.truncate(source.name, 3 * SIZE)

    with pytest.raises(TruncatedError) as caught:
        transfer([Range(source, 0, len(DATA), Cutting(len(DATA)), "w")], ring(1), readers=1)
    assert (caught.value.path, caught.value.tensor) == (source.name, "w")


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.EIO])
def test_what_the_kernel_refuses_is_read_the_usual_way(
    source: FileSource, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    found = KernelReads.finished
    refused = []

    def refusing(self: KernelReads, most: int, *, wait: bool = False) -> list[tuple[int, int]]:
        done = found(self, most, wait=wait)
        refused.extend(done[::2])
        return [(key, -refusal if row % 2 == 0 else count) for row, (key, count) in enumerate(done)]

    monkeypatch.setattr(KernelReads, "finished", refusing)
    sink = Into(len(DATA))
    transfer([Range(source, 0, len(DATA), sink)], ring(), readers=4)
    assert sink.memory == DATA
    assert refused or transfers.kernel_reads(1, 1) is None


class Soiled(HostStaging):
    """A ring whose buffers contain other bytes than the file until they are read into."""

    def buffer(self, index: int) -> memoryview:
        memory = super().buffer(index)
        memory[:] = bytes(byte ^ 0xFF for byte in DATA[: len(memory)])
        return memory


class OneChunk:
    """A chunk that the kernel reads with several reads, one of which is short or refused."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        if transfers.kernel_reads(1, 1) is None:
            pytest.skip("the kernel does no reads for this process")
        with_short_reads(monkeypatch)
        self.path = folder / "data"
        self.path.write_bytes(DATA)
        self.reads = 0
        self.filled = 0
        self._wrong = -1
        self._lost: int | None = None
        request, fill = KernelReads.request, Chunk.fill

        def wrong(reads: KernelReads, read: tuple[int, int, int], address: int, key: int) -> None:
            fd, offset, length = read
            if self.reads == self._wrong:
                read = (-1, offset, length) if self._lost is None else (fd, offset, max(length - self._lost, 0))
            self.reads += 1
            request(reads, read, address, key)

        def counting(chunk: Chunk, *arguments: Any) -> None:
            self.filled += 1
            fill(chunk, *arguments)

        monkeypatch.setattr(KernelReads, "request", wrong)
        monkeypatch.setattr(Chunk, "fill", counting)

    def transfer(self, at: int, length: int, *, wrong: int, lost: int | None) -> bool:
        """Transfer a range with one wrong read; return whether Python read it. ``lost=None`` is a refusal."""
        self._wrong, self._lost = wrong, lost
        self.reads = self.filled = 0
        sink = Into(length)
        source = FileSource(self.path)
        try:
            transfer([Range(source, at, length, sink, "w", length)], Soiled(TINY), readers=4)
        finally:
            source.close()
        assert sink.memory == DATA[at : at + length] and sink.lengths == [length]
        assert self.reads == -(-(at + length) // READ) - at // READ > 1
        assert self.filled <= 1
        return self.filled == 1


@pytest.fixture
def one_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneChunk:
    return OneChunk(tmp_path, monkeypatch)


def by_whole_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files read as if they were not cached, through a descriptor that takes reads of any length."""
    monkeypatch.setattr("burnstore.io.source.is_cached", lambda *_: False)
    monkeypatch.setattr(FileSource, "_direct_fd", FileSource._open_fd)


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize(("at", "length"), [(0, 5 * READ), (3 * READ + 5, 4 * READ), (READ, 5 * READ + 77)])
def test_one_read_of_several_that_is_short_or_refused_has_its_chunk_read_the_usual_way(
    at: int, length: int, is_direct: bool, one_chunk: OneChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_direct:
        by_whole_pages(monkeypatch)
    assert not one_chunk.transfer(at, length, wrong=-1, lost=0)
    beyond = -(at + length) % PAGE if is_direct else 0  # what the last read has beyond the range
    for position in range(last := one_chunk.reads):
        surplus = beyond if position == last - 1 else 0
        for lost in (None, surplus + 1, READ):
            assert one_chunk.transfer(at, length, wrong=position, lost=lost), (position, lost)
        assert not one_chunk.transfer(at, length, wrong=position, lost=surplus)


def test_a_last_read_that_gets_more_than_is_needed_does_not_make_up_for_another_one(
    one_chunk: OneChunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_whole_pages(monkeypatch)
    length = 4 * READ + 100
    for position in range(4):
        for lost in (1, 1000, PAGE - 100):
            assert one_chunk.transfer(0, length, wrong=position, lost=lost)


def test_a_file_that_is_not_cached_is_read_past_the_cache(source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burnstore.io.source.is_cached", lambda *_: False)
    monkeypatch.setattr("burnstore.io.source.read_cached", lambda *_: 0)
    spans = [(3, 5 * SIZE + 1), (7 * SIZE + 9, 4 * SIZE), (len(DATA) - 5, 5)]
    sinks = [Into(length) for _, length in spans]
    transfer([Range(source, *span, each) for span, each in zip(spans, sinks, strict=True)], ring(), readers=4)
    for (at, length), sink in zip(spans, sinks, strict=True):
        assert sink.memory == DATA[at : at + length]


def test_a_file_that_is_closed_meanwhile_is_reported(source: FileSource) -> None:
    class Closing(Into):
        def write(self, memory: Any, place: int) -> None:
            source.close()

    with pytest.raises(ClosedError):
        transfer([Range(source, 0, len(DATA), Closing(len(DATA)))], ring(), readers=2)


def test_a_kernel_that_takes_no_more_reads_is_reported(source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> list[tuple[int, int]]:
        raise OSError(errno.ENOMEM, "no memory")

    if not isinstance(readers_for([source], 1, SIZE), KernelReaders):
        pytest.skip("this file is not read by the kernel")
    monkeypatch.setattr(KernelReads, "finished", failing)
    with pytest.raises(ReadError, match="accepts no more reads: no memory"):
        transfer([Range(source, 0, len(DATA), Into(len(DATA)))], ring(), readers=2)


def test_the_kernel_reads_files_where_it_can_and_threads_all_else(source: FileSource) -> None:
    reads = transfers.kernel_reads(1, 1)
    found = readers_for([source], 2, SIZE)
    assert isinstance(found, ThreadReaders if reads is None else KernelReaders)
    found.close()
    if reads is not None:
        reads.close()
    assert isinstance(readers_for([source, BytesSource(b"")], 2, SIZE), ThreadReaders)


@pytest.mark.parametrize("call", ["setup", "register"])
def test_threads_read_where_a_sandbox_forbids_the_system_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def forbidden(*_: object) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    calls = kernel_reads._calls()._replace(**{call: forbidden})
    monkeypatch.setattr(kernel_reads, "_calls", lambda: calls)
    (tmp_path / "data").write_bytes(DATA)
    source = FileSource(tmp_path / "data")
    sink = Into(len(DATA))
    transfer([Range(source, 0, len(DATA), sink)], ring(), readers=4)
    assert sink.memory == DATA and isinstance(readers_for([source], 2, SIZE), ThreadReaders)
    source.close()


def test_a_file_that_is_changed_meanwhile_is_reported(source: FileSource) -> None:
    class Changing(Into):
        def write(self, memory: Any, place: int) -> None:
            os.utime(source.name, ns=(1, 1))

    with pytest.raises(ChangedError):
        transfer([Range(source, 0, len(DATA), Changing(len(DATA)))], ring(), readers=2)


def test_one_reader_is_enough_where_the_system_gives_no_more(
    source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = parallel.start_new_thread, []

    def few(*arguments: Any) -> int:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(True)
        return start(*arguments)

    without_the_kernel(monkeypatch)
    monkeypatch.setattr(parallel, "start_new_thread", few)
    sink = Into(len(DATA))
    transfer([Range(source, 0, len(DATA), sink)], ring(), readers=4)
    assert sink.memory == DATA
    with pytest.raises(ReadError, match="starts no thread"):
        transfer([Range(source, 0, len(DATA), sink)], ring(), readers=4)


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_an_interrupt_while_readers_are_awaited_waits_for_them_all_the_same(
    source: FileSource, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    without_the_kernel(monkeypatch)
    reading, most = [], []

    class Slow(Into):
        def write(self, memory: Any, place: int) -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            raise RuntimeError("stop")

    real: Any = source.read_pages

    def read(offset: int, length: int, pages: memoryview) -> None:
        reading.append(offset)
        if offset:
            time.sleep(0.3)
        real(offset, length, pages)
        reading.remove(offset)
        most.append(offset)

    def interrupt(*_: object) -> None:
        raise kind

    monkeypatch.setattr(source, "read_pages", read)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(kind):
            transfer([Range(source, 0, len(DATA), Slow(len(DATA)))], ring(), readers=4)
        assert len(most) > 1
        assert not reading
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_sink_is_all_that_write_needs() -> None:
    memory = Into(4)
    sink: Sink = memory
    transfer([Range(BytesSource(b"abcd"), 0, 4, sink)], HostStaging(), readers=1)
    assert memory.memory == b"abcd"
