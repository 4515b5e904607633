"""The command ``python -m benchmarks.loaders``: a SafeTensors file onto a GPU, by every fast loader that is installed.

Each loader runs in processes of its own, in turns: a first load that is not counted, then loads of a file in the page
cache, then one of a file that is not. Every load is compared with the others by a checksum of all tensors. The
result is a table in Markdown; loaders that are not installed are named below it.
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

from .gpu_tools import drop_from_cache


def _burnstore(path: str) -> dict[str, Any]:
    import burnstore as bs

    with bs.open(path) as file:
        return dict(file.torch(device="cuda"))


def _safetensors(path: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(path, device="cuda")


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
    parser.add_argument("--turns", type=int, default=3, help="processes for each loader (default 3)")
    parser.add_argument("--folder", help="where the file is written (default: a temporary folder)")
    parser.add_argument("--only", nargs="*", default=list(LOADERS), choices=list(LOADERS))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(_measure(*options.child)))
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = _write(Path(folder) / "model.safetensors", options.gib, options.tensors)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.only}
        for _ in range(options.turns):
            for name in options.only:
                command = [sys.executable, "-m", "benchmarks.loaders", "--child", name, str(path)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    found[name].append(json.loads(done.stdout.splitlines()[-1]))
                else:
                    print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        print(_table(found, path.stat().st_size))
    return 0


def _write(path: Path, gib: float, tensors: int) -> Path:
    from safetensors.torch import save_file

    each = int(gib * 2**30 / tensors / 2)
    rows = max(1, each // 4096)
    save_file({f"layers.{at}.weight": torch.randn(rows, 4096).bfloat16() for at in range(tensors)}, path)
    return path


def _measure(name: str, path: str) -> dict[str, Any]:
    load = LOADERS[name]
    torch.zeros(1, device="cuda")

    def timed() -> tuple[float, float]:
        torch.cuda.synchronize()
        started = time.perf_counter()
        tensors = load(path)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        if any(tensor.device.type != "cuda" for tensor in tensors.values()):
            raise SystemExit(f"{name} left tensors on the CPU")
        return seconds, float(sum(tensor.double().sum() for tensor in tensors.values()))

    first, checksum = timed()
    hot = [timed() for _ in range(4)]
    drop_from_cache(Path(path))
    cold = timed()
    if {each[1] for each in (*hot, cold)} != {checksum}:
        raise SystemExit(f"{name} gave different tensors")
    hot_seconds = [seconds for seconds, _ in hot]
    return {"first": first, "hot": hot_seconds, "cold": cold[0], "sum": checksum}


def _table(found: dict[str, list[dict[str, Any]]], size: int) -> str:
    sums = {turn["sum"] for turns in found.values() for turn in turns}
    if len(sums) > 1:
        raise SystemExit(f"the loaders gave different tensors: {sums}")
    lines = [
        f"{torch.cuda.get_device_name()}, {os.cpu_count()} processors, torch {torch.__version__}, "
        f"{size / 2**30:.1f} GiB of BF16; medians, GB/s",
        "",
        "| | in the page cache | first load of a process | not in the page cache |",
        "|---|---|---|---|",
    ]
    for name, turns in found.items():
        if turns:
            hot = statistics.median(seconds for turn in turns for seconds in turn["hot"])
            first, cold = (statistics.median(turn[key] for turn in turns) for key in ("first", "cold"))
            speeds = " | ".join(f"{size / seconds / 1e9:.1f}" for seconds in (hot, first, cold))
            lines.append(f"| {name} | {speeds} |")
    absent = [name for name, turns in found.items() if not turns]
    return "\n".join([*lines, *(["", f"Not measured: {', '.join(absent)}."] if absent else [])])


if __name__ == "__main__":
    sys.exit(main())
