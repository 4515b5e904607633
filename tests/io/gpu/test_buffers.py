"""Pinned buffers: kept for the next who needs one, never more than were agreed, never lent twice at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from burnstore.io.gpu import buffers
from burnstore.io.gpu.buffers import (
    POOL,
    Pool,
    configure_transfers,
    lend,
    page_aligned,
    release_pinned_memory,
    transfer_settings,
)
from burnstore.io.sizes import PAGE


class Pinned:
    """What stands for a pinned tensor."""

    made = 0

    def __init__(self, nbytes: int) -> None:
        Pinned.made += 1
        self.array = np.zeros(nbytes, np.uint8)

    def numpy(self) -> Any:
        return self.array


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    Pinned.made = 0
    configure_transfers()
    yield
    configure_transfers()
    assert POOL._lent == 0


def test_a_buffer_that_came_back_is_lent_again() -> None:
    pool = Pool()
    first, era = pool.take(Pinned)
    assert pool.waiting == 0
    pool.give_back(first, era)
    assert pool.waiting == 1
    assert pool.take(Pinned)[0] is first and Pinned.made == 1


def test_no_more_are_kept_than_were_agreed() -> None:
    configure_transfers(buffers=2)
    pool = Pool()
    taken = [pool.take(Pinned) for _ in range(5)]
    assert len({id(buffer) for buffer, _ in taken}) == 5
    for buffer, era in taken:
        pool.give_back(buffer, era)
    assert pool.waiting == 2 and pool._lent == 0


def test_what_is_in_use_when_all_is_given_up_does_not_come_back() -> None:
    pool = Pool()
    buffer, era = pool.take(Pinned)
    pool.clear()
    pool.give_back(buffer, era)
    assert pool.waiting == 0 and pool._lent == 0


def test_memory_that_cannot_be_pinned_is_not_counted() -> None:
    def fail(nbytes: int) -> Any:
        raise RuntimeError("cannot pin")

    pool = Pool()
    with pytest.raises(RuntimeError, match="cannot pin"):
        pool.take(fail)
    assert pool._lent == 0


def test_lent_memory_comes_back_when_the_last_view_of_it_is_gone() -> None:
    release_pinned_memory()
    _, memory = lend(Pinned)
    part = memory[5:10]
    del memory
    gc.collect()
    assert POOL._lent == 1 and POOL.waiting == 0
    array = np.frombuffer(part, np.uint8)
    del part
    gc.collect()
    assert POOL._lent == 1
    del array
    gc.collect()
    assert POOL._lent == 0 and POOL.waiting == 1
    release_pinned_memory()
    assert POOL.waiting == 0


def test_settings_are_checked_and_go_back_to_their_defaults() -> None:
    default = transfer_settings()
    assert default.buffers * default.buffer_bytes <= 256_000_000
    configure_transfers(readers=1, buffers=3, buffer_bytes=1 << 16)
    assert transfer_settings() == buffers.TransferSettings(1, 3, 1 << 16)
    configure_transfers(buffers=4)
    assert transfer_settings().buffers == 4 and transfer_settings().buffer_bytes == default.buffer_bytes
    for wrong in ({"readers": 0}, {"buffers": 0}, {"buffer_bytes": 1 << 15}, {"buffer_bytes": 100_000}):
        with pytest.raises(ValueError, match=r"at least one reader|power of two"):
            configure_transfers(**wrong)
    assert transfer_settings().buffers == 4


def test_there_are_no_more_readers_than_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, readers in ((64, 14), (4, 4), (1, 2), (None, 2)):
        monkeypatch.setattr(buffers.os, "cpu_count", lambda count=count: count)
        assert transfer_settings().readers == readers


def test_memory_of_a_ring_begins_at_a_page() -> None:
    for nbytes in (1, PAGE, 100_000):
        memory = page_aligned(nbytes)
        assert len(memory) == nbytes and memory.__array_interface__["data"][0] % PAGE == 0
