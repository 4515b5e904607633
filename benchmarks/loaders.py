"""The command ``python -m benchmarks.loaders``: a SafeTensors file onto a GPU, by every fast loader that is installed.

Before every process the parent establishes and checks (mincore) the state of the page cache, whatever ran before: all
of the file is in it, or none. A loader runs in processes of its own,

    hot     all of the file is in the cache: the first load of the process, then more of the same
    cold    none of it is: one load

and the order of the loaders is rotated from turn to turn. Every load is compared with the others by a checksum of all
tensors. The result is a table in Markdown with medians and ranges; loaders that are not installed are named below it.
``--device cpu`` is a smoke test, without the loaders that need a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .gpu_tools import cached_share, drop_from_cache, fill_cache


def _burnstore(path: str) -> dict[str, Any]:
    import burnstore as bs

    with bs.open(path) as file:
        return dict(file.torch(device=_DEVICE))


def _safetensors(path: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(path, device=_DEVICE)


def _instanttensor(path: str) -> dict[str, Any]:
    from instanttensor import safe_open

    with safe_open(path, framework="pt", device=0) as file:
        return dict(file.tensors())


def _instanttensor_buffered(path: str) -> dict[str, Any]:
    from instanttensor import BackendPolicy, safe_open

    with safe_open(path, framework="pt", device=0, backend=BackendPolicy.BUFFERED) as file:
        return dict(file.tensors())


def _fastsafetensors(path: str) -> dict[str, Any]:
    from fastsafetensors import fastsafe_open

    with fastsafe_open([path], device="cuda:0", nogds=True) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping


def _runai(path: str) -> dict[str, Any]:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files([path], device="cuda")
        return dict(streamer.get_tensors())


_DEVICE = "cuda"

LOADERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "burnstore": _burnstore,
    "instanttensor": _instanttensor,
    "instanttensor, buffered": _instanttensor_buffered,
    "fastsafetensors": _fastsafetensors,
    "runai-model-streamer": _runai,
    "safetensors": _safetensors,
}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loaders", description="a file onto a GPU")
    parser.add_argument("--gib", type=float, default=8.0)
    parser.add_argument("--tensors", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3, help="processes of each kind for each loader (default 3)")
    parser.add_argument("--folder", help="where the file is written (default: a temporary folder)")
    parser.add_argument("--only", nargs="*", default=list(LOADERS), choices=list(LOADERS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--child", nargs=3, metavar=("STATE", "NAME", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(_measure(*options.child, options.device)))
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = _write(Path(folder) / "model.safetensors", options.gib, options.tensors)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.only}
        for turn in range(options.turns):
            at = turn % max(len(options.only), 1)
            for name in [*options.only[at:], *options.only[:at]]:
                for state, establish in (("hot", fill_cache), ("cold", drop_from_cache)):
                    establish(path)
                    command = [sys.executable, "-m", "benchmarks.loaders", "--device", options.device]
                    command += ["--child", state, name, str(path)]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    if done.returncode == 0:
                        found[name].append(json.loads(done.stdout.splitlines()[-1]))
                    else:
                        print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
                        break
        print(_table(found, path.stat().st_size, options.device))
    return 0


def _write(path: Path, gib: float, tensors: int) -> Path:
    from safetensors.torch import save_file

    each = int(gib * 2**30 / tensors / 2)
    rows = max(1, each // 4096)
    made = torch.randn(rows, 4096).bfloat16()
    save_file({f"layers.{at}.weight": made.roll(at) for at in range(tensors)}, path)
    return path


def _measure(state: str, name: str, path: str, device: str) -> dict[str, Any]:
    """Load a file whose state in the page cache is as stated, and return the seconds of each load."""
    global _DEVICE
    _DEVICE = device
    load = LOADERS[name]
    torch.zeros(1, device=device)

    def timed() -> tuple[float, float]:
        _wait(device)
        started = time.perf_counter()
        tensors = load(path)
        _wait(device)
        seconds = time.perf_counter() - started
        if any(tensor.device.type != torch.device(device).type for tensor in tensors.values()):
            raise SystemExit(f"{name} left tensors elsewhere than on {device}")
        return seconds, float(sum(tensor.double().sum() for tensor in tensors.values()))

    before = cached_share(Path(path))
    if not (before > 0.999 if state == "hot" else before < 0.01):
        raise SystemExit(f"{before:.1%} of the file is in the page cache; it was to be {state}")
    first, checksum = timed()
    later = []
    for _ in range(4 if state == "hot" else 0):
        fill_cache(Path(path))  # a loader may have changed that
        later.append(timed())
    if {each[1] for each in later} - {checksum}:
        raise SystemExit(f"{name} gave different tensors")
    return {"state": state, "first": first, "later": [seconds for seconds, _ in later], "sum": checksum}


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def _table(found: dict[str, list[dict[str, Any]]], size: int, device: str) -> str:
    sums = {run["sum"] for runs in found.values() for run in runs}
    if len(sums) > 1:
        raise SystemExit(f"the loaders gave different tensors: {sums}")
    shown = torch.cuda.get_device_name() if torch.device(device).type == "cuda" else device
    lines = [
        f"{shown}, {os.cpu_count()} processors, torch {torch.__version__}, {size / 2**30:.1f} GiB of BF16; medians "
        "(lowest to highest), GB/s; the state of the page cache is checked before every process",
        "",
        "| | in the page cache | first load of a process, in the page cache | not in the page cache |",
        "|---|---|---|---|",
    ]
    for name, runs in found.items():
        hot = [run for run in runs if run["state"] == "hot"]
        columns = [
            [seconds for run in hot for seconds in run["later"]],
            [run["first"] for run in hot],
            [run["first"] for run in runs if run["state"] == "cold"],
        ]
        if any(columns):
            lines.append(f"| {name} | {' | '.join(_speed(each, size) for each in columns)} |")
    absent = [name for name, runs in found.items() if not runs]
    return "\n".join([*lines, *(["", f"Not measured: {', '.join(absent)}."] if absent else [])])


def _speed(seconds: list[float], size: int) -> str:
    if not seconds:
        return "–"
    speeds = [size / each / 1e9 for each in seconds]
    return f"{statistics.median(speeds):.1f} ({min(speeds):.1f} to {max(speeds):.1f})"


if __name__ == "__main__":
    sys.exit(main())
