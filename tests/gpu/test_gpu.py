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
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


@pytest.mark.matrix(every=12)
@pytest.mark.parametrize("check", CHECKS, ids=names)
def test_through_a_ring_in_plain_memory(check: Check, tmp_path: Path) -> None:
    with ring_for("cpu"):
        check("cpu", tmp_path)


@pytest.mark.matrix(every=12)
@pytest.mark.parametrize("check", CHECKS, ids=names)
def test_through_the_ring_of_a_gpu_that_is_none(check: Check, tmp_path: Path) -> None:
    with ring_for("cpu"), gpu_that_is_none():
        check("cpu", tmp_path)


@needs_gpu
@pytest.mark.parametrize("check", CHECKS, ids=names)
def test_on_a_gpu(check: Check, tmp_path: Path) -> None:
    with ring_for("cuda"):
        check("cuda", tmp_path)
