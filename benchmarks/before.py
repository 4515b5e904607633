"""Compare this checkout with another one: ``python -m benchmarks.before FOLDER_OR_REVISION [--rounds N]``.

Every everyday operation runs in alternating processes, one of each checkout, and the least CPU time of all rounds is
compared: other work on the machine adds time to a round and never takes any away. A revision is unpacked by git; a
folder is one that has ``src/burnstore`` in it, for machines without the repository.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_TENSORS = 2_000
_REPEATS = 7
_FORMATS = ("bpk", "safetensors", "pt", "npz")


def main() -> int:
    """Print one line an operation: milliseconds of both checkouts and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before", description=__doc__)
    parser.add_argument("before", help="a git revision, or a folder that has src/burnstore in it")
    parser.add_argument("--rounds", type=int, default=4, help="processes of each checkout (default 4)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_measure(Path(options.before))))
        return 0
    with tempfile.TemporaryDirectory(prefix="burnstore-before-") as name:
        directory = Path(name)
        checkouts = {"before": _unpacked(options.before, directory / "before"), "now": _ROOT}
        least: dict[str, dict[str, float]] = {"before": {}, "now": {}}
        for turn in range(2 * options.rounds):
            # before, now, now, before: neither is always first
            which = ("before", "now", "now", "before")[turn % 4]
            for operation, seconds in _child(checkouts[which], directory).items():
                least[which][operation] = min(seconds, least[which].get(operation, seconds))
    print(f"{'operation':44} {'before ms':>10} {'now ms':>10} {'ratio':>6}")
    for operation, seconds in least["now"].items():
        earlier = least["before"].get(operation)
        ratio = "new" if earlier is None else f"{seconds / earlier:.2f}"
        shown = "" if earlier is None else f"{earlier * 1e3:.2f}"
        print(f"{operation:44} {shown:>10} {seconds * 1e3:>10.2f} {ratio:>6}")
    return 0


def _unpacked(before: str, folder: Path) -> Path:
    if Path(before, "src", "burnstore").is_dir():
        return Path(before).resolve()
    archive = folder.with_suffix(".tar")
    subprocess.run(["git", "-C", str(_ROOT), "archive", "-o", str(archive), before, "src"], check=True)
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")
    return folder


def _child(checkout: Path, directory: Path) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.before", str(directory), "--child"]
    done = subprocess.run(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measure(directory: Path) -> dict[str, float]:
    """The least CPU seconds of each operation in this process, by the burnstore that is imported here."""
    import numpy as np
    import torch

    import burnstore as bs

    torch.set_num_threads(1)
    arrays = {f"block.{number}.weight": np.full((8, 8), number, np.float32) for number in range(_TENSORS)}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(_TENSORS // 2)))
    files = {suffix: directory / f"model.{suffix}" for suffix in _FORMATS}
    torch.save(model.state_dict(), files["pt"])
    bs.save(model, files["safetensors"], overwrite=True)
    bs.convert(files["safetensors"], files["bpk"], like=model, overwrite=True)
    bs.save(arrays, files["npz"], overwrite=True)
    same = directory / "same.bpk"
    same.write_bytes(files["bpk"].read_bytes())

    results = {}

    def measure(name: str, operation: Callable[[], object]) -> None:
        operation()
        seconds = []
        for _ in range(_REPEATS):
            gc.collect()
            started = time.process_time()
            operation()
            seconds.append(time.process_time() - started)
        results[name] = min(seconds)

    def read(path: Path, form: str) -> None:
        with bs.open(path) as opened:
            getattr(opened, form)()

    for suffix, path in files.items():
        measure(f"open .{suffix}", lambda path=path: bs.open(path).close())
        measure(f"read .{suffix} as NumPy", lambda path=path: read(path, "numpy"))
        if suffix == "npz":
            continue
        measure(f"read .{suffix} as torch", lambda path=path: read(path, "torch"))
        measure(f"load .{suffix} into a torch model", lambda path=path: bs.load(model, path))
        measure(f"verify .{suffix}", lambda path=path: bs.verify(path))
        for other in ("bpk", "safetensors"):
            out = directory / f"out.{other}"
            measure(
                f"convert .{suffix} to .{other}",
                lambda path=path, out=out: bs.convert(path, out, like=model, overwrite=True, durable=False),
            )
    save = functools.partial(bs.save, overwrite=True, durable=False)
    for suffix in ("bpk", "safetensors"):
        out = directory / f"saved.{suffix}"
        measure(f"save a torch model to .{suffix}", lambda out=out: save(model, out))
        measure(f"save a dict of torch to .{suffix}", lambda out=out: save(tensors, out, layout="torch"))
        measure(f"save a dict of NumPy to .{suffix}", lambda out=out: save(arrays, out))
    measure("diff of equal .bpk", lambda: bs.diff(files["bpk"], same))
    measure("scan .pt", lambda: bs.scan(files["pt"]))
    measure("explain .pt for a torch model", lambda: bs.explain(files["pt"], model))
    return results


if __name__ == "__main__":
    raise SystemExit(main())
