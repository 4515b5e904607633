"""The command: ``python -m tests.gpu [DEVICE] [NAME]`` runs the checks on a GPU, or with ``cpu`` on the CPU."""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from pathlib import Path

import tests.gpu.cast_checks  # it adds to the checks
import tests.gpu.load_checks  # it adds to the checks
import tests.gpu.rank_checks  # it adds to the checks
import tests.gpu.remote_checks  # noqa: F401  # it adds to the checks
from tests.gpu.checks import CHECKS, ring_for


def main(device: str = "cuda", chosen: str = "") -> int:
    failed = 0
    for check in CHECKS:
        if chosen not in check.__name__:
            continue
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                with ring_for(device):
                    check(device, Path(folder))
            except Exception:
                failed += 1
                print(f"FAILED {check.__name__}")
                traceback.print_exc(file=sys.stdout)
                continue
        print(f"passed {check.__name__} ({time.perf_counter() - begun:.1f} s)", flush=True)
    print(f"{failed} failed on {device}")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
