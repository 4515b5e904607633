"""Parallel: every piece is done once, and a failure of any is heard."""

from __future__ import annotations

import pytest

from burnstore.io import parallel
from burnstore.io.parallel import for_each


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("kind", [IndexError, ValueError, KeyError])
def test_whatever_a_job_raises_is_raised_here(
    monkeypatch: pytest.MonkeyPatch, threads: int, kind: type[Exception]
) -> None:
    monkeypatch.setattr(parallel, "IO_THREADS", threads)

    def job(piece: int) -> None:
        if piece == 3:
            raise kind("this piece")

    with pytest.raises(kind, match="this piece"):
        for_each(job, range(6))


@pytest.mark.parametrize("threads", [1, 4])
def test_every_piece_is_done_once(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(parallel, "IO_THREADS", threads)
    done: list[int] = []
    for_each(done.append, range(1000))
    assert sorted(done) == list(range(1000))
