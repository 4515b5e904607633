"""The checks of tensors on a device: through a plain ring and a GPU's on the CPU, and on a GPU where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import tests.gpu.cast_checks  # it adds to the checks
import tests.gpu.load_checks  # it adds to the checks
import tests.gpu.rank_checks  # noqa: F401  # it adds to the checks
import torch
from tests.gpu.checks import CHECKS, Check, ring_for
from tests.gpu.fake_cuda import gpu_that_is_none

names = [check.__name__ for check in CHECKS]
# Each of these takes several seconds without a GPU.
LONG = {
    "every_dtype_is_cast_as_on_the_host",
    "rings_of_any_size_give_the_same",
    "what_layouts_turn_and_split_is_cast_too",
    "values_that_a_dtype_cannot_hold_are_refused_before_the_model_is_changed",
    "the_parts_of_all_ranks_are_the_whole_and_none_goes_over_the_host",
    "parts_of_files_that_are_not_in_the_page_cache_are_read",
    "a_rank_reads_its_part_and_nothing_else",
    "tied_weights_are_carried_once",
}
marked = [
    pytest.param(check, id=name, marks=[pytest.mark.slow("casts and rings of every kind")] if name in LONG else [])
    for check, name in zip(CHECKS, names, strict=True)
]
assert set(names) >= LONG
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


@pytest.mark.matrix(every=10)
@pytest.mark.parametrize("check", marked)
def test_through_a_ring_in_plain_memory(check: Check, tmp_path: Path) -> None:
    with ring_for("cpu"):
        check("cpu", tmp_path)


@pytest.mark.matrix(every=10)
@pytest.mark.parametrize("check", marked)
def test_through_the_ring_of_a_gpu_that_is_none(check: Check, tmp_path: Path) -> None:
    with ring_for("cpu"), gpu_that_is_none():
        check("cpu", tmp_path)


@needs_gpu
@pytest.mark.parametrize("check", CHECKS, ids=names)
def test_on_a_gpu(check: Check, tmp_path: Path) -> None:
    with ring_for("cuda"):
        check("cuda", tmp_path)
