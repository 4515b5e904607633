"""MemoryBudget: threads wait for memory, none gets more than there is, and buffers are reused as far as it allows."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from burnstore.errors import LimitError
from burnstore.io.opening import read_whole
from burnstore.io.workers import MemoryBudget


def test_what_is_taken_never_exceeds_what_there_is() -> None:
    budget, lock = MemoryBudget(100), threading.Lock()
    now, most = 0, 0

    def work(nbytes: int) -> None:
        nonlocal now, most
        with budget.buffer(nbytes) if nbytes % 2 else budget.reserve(nbytes):
            with lock:
                now += nbytes
                most = max(most, now)
            time.sleep(0.001)
            with lock:
                now -= nbytes

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [10, 45, 7, 80, 33, 100, 1, 60] * 20))
    assert most <= 100 and now == 0


def test_one_that_needs_more_than_there_is_gets_it_alone() -> None:
    budget = MemoryBudget(10)
    with budget.reserve(50):
        pass
    with budget.buffer(50) as buffer:
        assert len(buffer) == 50
    assert budget._spare == []  # for it there is no budget to stay


def test_a_buffer_of_the_same_size_is_used_again() -> None:
    budget = MemoryBudget(100)
    with budget.buffer(40) as first:
        pass
    with budget.buffer(40) as again, budget.buffer(40) as other:
        assert again is first and other is not first
    with budget.buffer(30) as another:
        assert len(another) == 30


def test_what_nobody_uses_goes_when_its_room_is_needed() -> None:
    budget = MemoryBudget(100)
    with budget.buffer(60):
        pass
    assert [len(spare) for spare in budget._spare] == [60]
    with budget.reserve(50):
        assert budget._spare == []


def test_a_failure_gives_back_what_was_taken() -> None:
    budget = MemoryBudget(10)
    with pytest.raises(RuntimeError), budget.reserve(10):
        raise RuntimeError
    with pytest.raises(RuntimeError), budget.buffer(10):
        raise RuntimeError
    with budget.reserve(10):
        pass


def test_a_pickled_one_is_another() -> None:
    budget = MemoryBudget(10)
    with budget.reserve(10), pickle.loads(pickle.dumps(budget)).reserve(10):
        pass


def test_a_small_file_is_read_whole_and_a_large_one_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    assert read_whole(tmp_path / "a", 7) == b"content"
    with pytest.raises(LimitError, match="7 bytes, more than 6"):
        read_whole(tmp_path / "a", 6)
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "b", 6)
