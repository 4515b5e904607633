"""Room: threads wait for memory, nobody gets more than there is, and buffers are used again as far as there is room."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from burnstore.errors import LimitError
from burnstore.io.memory_budget import Room
from burnstore.io.whole import read_whole


def test_what_is_taken_never_exceeds_what_there_is() -> None:
    room, lock = Room(100), threading.Lock()
    now, most = 0, 0

    def work(nbytes: int) -> None:
        nonlocal now, most
        with room.buffer(nbytes) if nbytes % 2 else room.taken(nbytes):
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
    room = Room(10)
    with room.taken(50):
        pass
    with room.buffer(50) as buffer:
        assert len(buffer) == 50
    assert room._spare == []  # for it there is no room to stay


def test_a_buffer_of_the_same_size_is_used_again() -> None:
    room = Room(100)
    with room.buffer(40) as first:
        pass
    with room.buffer(40) as again, room.buffer(40) as other:
        assert again is first and other is not first
    with room.buffer(30) as another:
        assert len(another) == 30


def test_what_nobody_uses_goes_when_its_room_is_needed() -> None:
    room = Room(100)
    with room.buffer(60):
        pass
    assert [len(spare) for spare in room._spare] == [60]
    with room.taken(50):
        assert room._spare == []


def test_a_failure_gives_back_what_was_taken() -> None:
    room = Room(10)
    with pytest.raises(RuntimeError), room.taken(10):
        raise RuntimeError
    with pytest.raises(RuntimeError), room.buffer(10):
        raise RuntimeError
    with room.taken(10):
        pass


def test_a_pickled_one_is_another() -> None:
    room = Room(10)
    with room.taken(10), pickle.loads(pickle.dumps(room)).taken(10):
        pass


def test_a_small_file_is_read_whole_and_a_large_one_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    assert read_whole(tmp_path / "a", 7) == b"content"
    with pytest.raises(LimitError, match="7 bytes, more than 6"):
        read_whole(tmp_path / "a", 6)
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "b", 6)
