"""Remote files on a device, as the checks of `python -m tests.gpu`, which needs a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("obstore", reason="obstore is not installed: requirements/test.txt has it")

from tests.gpu.checks import ring_for
from tests.gpu.fake_cuda import gpu_that_is_none
from tests.gpu.remote_checks import remote_files_arrive_as_local_ones

from remote_servers import _no_configuration, _no_descriptor_leaks


@pytest.mark.slow("several files of every dtype")
@pytest.mark.parametrize("gpu", [nullcontext, gpu_that_is_none], ids=["plain memory", "a GPU that is none"])
def test_remote_files_arrive_as_local_ones(tmp_path: Path, gpu: type) -> None:
    with ring_for("cpu"), gpu():
        remote_files_arrive_as_local_ones("cpu", tmp_path)
