"""torch's distributed checkpoint loads any file of burnstore's, each rank the part that it needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.errors import BurnstoreError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def model() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 3))


@pytest.mark.parametrize("name", ["model.bpk", "model.safetensors", "model.pt", "model.dcp"])
def test_dcp_loads_a_file_in_the_names_and_axes_of_torch(model: Any, name: str, tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    from burnstore.stores.torch_reader import storage_reader

    bs.save(model, tmp_path / name)
    state = {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
    dcp.load(state, storage_reader=storage_reader(tmp_path / name), no_dist=True)
    for key, value in model.state_dict().items():
        assert torch.equal(state[key], value)


def test_a_file_of_burn_that_records_no_modules_is_refused(tmp_path: Path) -> None:
    import torch.distributed.checkpoint  # noqa: F401  (a reader is for it)

    from burnstore.stores.torch_reader import storage_reader

    bs.save({"fc.weight": np.ones((4, 4), np.float32)}, tmp_path / "model.bpk", layout="burn")
    with pytest.raises(BurnstoreError):
        storage_reader(tmp_path / "model.bpk")


def _load_rank(rank: int, ranks: int, path: str, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import init_device_mesh

    from burnstore.stores.torch_reader import storage_reader

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    whole = torch.arange(7 * 4, dtype=torch.float32).reshape(7, 4)
    for source in ("whole.safetensors", "whole.dcp"):
        for dim in (0, 1):
            state = {"w": dt.distribute_tensor(torch.zeros(7, 4), mesh, [dt.Shard(dim)])}
            if source.endswith(".dcp"):
                dcp.load(state, checkpoint_id=os.path.join(path, source))
            else:
                dcp.load(state, storage_reader=storage_reader(os.path.join(path, source)))
            assert torch.equal(state["w"].full_tensor(), whole)
    dist.destroy_process_group()


@pytest.mark.slow("starts three processes of torch")
def test_ranks_load_their_rows_and_columns(tmp_path: Path) -> None:
    import socket
    import subprocess
    import sys

    whole = {"w": np.arange(7 * 4, dtype=np.float32).reshape(7, 4)}
    bs.save(whole, tmp_path / "whole.safetensors", layout="torch")
    bs.save(whole, tmp_path / "whole.dcp", layout="torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen([sys.executable, __file__, str(rank), "3", str(tmp_path), str(port)]) for rank in range(3)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0, 0]


if __name__ == "__main__":
    import sys

    _load_rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
