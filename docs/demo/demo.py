"""Show the main job, without PyTorch: convert a .pt file for Burn, prove it, look inside, load it.

``make demo`` runs this in an environment that holds burnstore and its dependencies, nothing else. ``model.pt`` was
written by ``torch.save`` (a training checkpoint: epoch, configuration, state dict); ``net.py`` declares the same model
in Burn's terms.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import burnstore as bs

HERE = Path(__file__).resolve().parent


class Hostile:
    """An object that runs a command when a program unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("echo this command would run",)


def step(title: str) -> None:
    """Announce a step."""
    print(f"\n--- {title}", flush=True)


def run(*arguments: str, expected: int = 0) -> None:
    """Show a command, run it, and stop the demo if its exit code is not the expected one."""
    print(f"$ burnstore {' '.join(arguments)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "burnstore", *arguments], check=False).returncode
    if code != expected:
        raise SystemExit(f"demo: expected exit code {expected}, got {code}")


def main() -> None:
    """Run the demo in a folder of its own; any difference ends it with an error."""
    installed = "installed, but not needed" if importlib.util.find_spec("torch") else "not installed"
    print(f"burnstore {bs.__version__} on Python {sys.version.split()[0]}; PyTorch is {installed}")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in ("model.pt", "net.py"):
            shutil.copy(HERE / name, name)
        sys.path.insert(0, folder)
        from net import Net

        step("1. A checkpoint of torch.save, converted to Burn's layout and compared tensor by tensor")
        run("convert", "model.pt", "model.bpk", "--like", "net:Net", "--receipt")

        step("2. The receipt holds a digest of every tensor and file: check it, today or in a year")
        run("verify", "model.bpk", "--receipt", "model.bpk.receipt.json")

        step("3. Look inside: the fused attention of PyTorch is now query, key and value, as Burn has them")
        run("inspect", "model.bpk", "--filter", r"layers\.0\.mha|head")

        step("4. Back to PyTorch's layout, and compared with the original")
        run("convert", "model.bpk", "back.safetensors", "--target-layout", "torch")
        run("diff", "model.pt", "back.safetensors")

        step("5. Load part of it into a model, with a report; read three rows of one tensor and nothing else")
        chosen = bs.PathFilter().with_regex(r"^(embedding|head)\.")
        result = bs.load(Net(), "model.bpk", filter=chosen)
        print(f"{len(result.applied)} tensors applied, {len(result.skipped)} left out by the filter")
        with bs.open("model.bpk") as checkpoint:
            rows = checkpoint["embedding.weight"][10:13]
            print(f"embedding.weight[10:13]: {rows.nbytes} of {checkpoint['embedding.weight'].nbytes} bytes read")

        step("6. A .pt file from a stranger: nothing in it runs, and the scan names what other programs would run")
        Path("downloaded.pt").write_bytes(pickle.dumps({"weights": Hostile()}))
        run("scan", "downloaded.pt", expected=1)
        os.chdir(HERE)
    print("\nDone: converted, proved, inspected, converted back bit-equal, loaded.")


if __name__ == "__main__":
    main()
