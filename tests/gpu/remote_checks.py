"""What must hold of remote files on a device: they go through the same transfer; as `checks`.

The server is written in Python and runs on the loopback; obstore is needed, and without it these checks say so.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from tests.gpu.checks import assert_same, check, every_dtype, noise, raised, saved

import burnstore as bs

sys.path.insert(0, str(Path(__file__).parent.parent))


@check
def remote_files_arrive_as_local_ones(device: str, folder: Path) -> None:
    if find_spec("obstore") is None:
        print("left out: obstore is not installed")
        return
    from remote_servers import RangeServer, status

    tensors = {**every_dtype(), "large": noise("float32", 3000, 2500), "rows": noise("bfloat16", 700, 999)}
    for path in saved(tensors, folder):
        server = RangeServer({each.name: each.read_bytes() for each in folder.iterdir()})
        try:
            with bs.open(path) as local, bs.open(f"{server.url}/{path.name}", storage_options={"retries": 1}) as remote:
                found = remote.torch(device=device)
                assert {tensor.device.type for tensor in found.values()} == {torch.device(device).type}
                assert_same(found, local.torch(device=device))
                server.fault = status(500)
                error = raised(bs.BurnstoreError, lambda file=remote: file.torch(device=device))
                assert "status 500" in str(error)
        finally:
            server.close()
