"""A few mutants of distributed checkpoints, files of ranks and shards, at every run of the tests."""

from __future__ import annotations

from .dcp import run


def test_mutants_give_tensors_or_errors_of_our_own() -> None:
    assert run(60, 0) == 0
