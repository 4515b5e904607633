"""A distributed checkpoint of eight ranks into one file, against torch's `dcp_to_torch_save`; and one tensor of it.

``python -m benchmarks.dcp FOLDER [GIBIBYTES]`` writes the checkpoint with eight processes of torch over gloo if FOLDER
has none. Then it prints the seconds of three runs each, the peak of memory and the seconds of the processor of a
process that does nothing else, and the bytes that reading one tensor of 1 % takes. burnstore runs with its defaults,
which read the file back and flush it to the disk; "plain" does neither, as torch does neither. The runs take turns,
each after its target was removed and everything else was written to the disk.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time

RANKS, TENSORS = 8, 100


def _write_rank(rank: int, folder: str, nbytes: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    rows = nbytes // TENSORS // 4 // 1024 // RANKS
    state = {
        f"layers.{number}.weight": dt.DTensor.from_local(torch.randn(rows, 1024), mesh, [dt.Shard(0)])
        for number in range(TENSORS)
    }
    dcp.save(state, checkpoint_id=folder)
    dist.destroy_process_group()


def _convert(kind: str, folder: str, target: str) -> None:
    if kind == "torch":
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        start = time.perf_counter()
        dcp_to_torch_save(folder, target)
    else:
        import burnstore as bs

        start = time.perf_counter()
        bs.convert(folder, target, **({"verify": False, "durable": False} if kind == "plain" else {}))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{kind} {time.perf_counter() - start:.2f} s, peak {used.ru_maxrss / 1024:.0f} MiB, "
        f"processor {used.ru_utime + used.ru_stime:.2f} s with its imports"
    )


def _one_tensor(folder: str) -> None:
    import burnstore as bs
    from burnstore.io.source import FileSource

    taken = 0
    plain_at, plain_into = FileSource.read_at, FileSource.read_into

    def read_at(self: FileSource, offset: int, length: int) -> bytes:
        nonlocal taken
        taken += length
        return plain_at(self, offset, length)

    def read_into(self: FileSource, reads: object) -> None:
        nonlocal taken
        taken += sum(len(buffer) for _, buffer in reads)  # type: ignore[attr-defined]
        plain_into(self, reads)  # type: ignore[arg-type]

    FileSource.read_at, FileSource.read_into = read_at, read_into  # type: ignore[method-assign]
    with bs.open(folder) as file:
        file["layers.7.weight"].numpy()
        print(f"one tensor of {TENSORS}: {taken / file.file_size:.2%} of the bytes")


def main() -> None:
    """Write the checkpoint if needed, and print the table."""
    folder, size = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    checkpoint = os.path.join(folder, "dcp")
    if not os.path.exists(os.path.join(checkpoint, ".metadata")):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "benchmarks.dcp", "--rank"]
        ranks = [
            subprocess.Popen([*command, str(rank), checkpoint, str(int(size * 2**30)), str(port)])
            for rank in range(RANKS)
        ]
        if any(rank.wait() for rank in ranks):
            raise SystemExit("a rank failed")
    for kind, name in [("burnstore", "a.safetensors"), ("plain", "a.safetensors"), ("torch", "b.pt")] * 3:
        target = os.path.join(folder, name)
        for old in ("a.safetensors", "b.pt"):
            if os.path.exists(os.path.join(folder, old)):
                os.remove(os.path.join(folder, old))
        os.sync()
        subprocess.run([sys.executable, "-m", "benchmarks.dcp", "--convert", kind, checkpoint, target], check=True)
    _one_tensor(checkpoint)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        _write_rank(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    elif sys.argv[1] == "--convert":
        _convert(*sys.argv[2:5])
    else:
        main()
