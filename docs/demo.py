"""The demo behind `make demo`: write a small model as Burnpack, look inside, read parts of it, prove every byte equal."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import burnstore as bs


def small_transformer(layers: int = 4, width: int = 256) -> dict[str, np.ndarray]:
    """Weights of a toy transformer, in Burn's layout (a Linear is [in, out])."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32) / np.float32(width**0.5)

    model: dict[str, np.ndarray] = {"embedding.weight": weight(1000, width)}
    for i in range(layers):
        for name in ("query", "key", "value", "output"):
            model[f"layers.{i}.attention.{name}.weight"] = weight(width, width)
            model[f"layers.{i}.attention.{name}.bias"] = np.zeros(width, np.float32)
        model[f"layers.{i}.norm.gamma"] = np.ones(width, np.float32)
        model[f"layers.{i}.norm.beta"] = np.zeros(width, np.float32)
    model["head.weight"] = weight(width, 1000).T.copy().T  # column-major on purpose: what counts is the values
    model["steps"] = np.array(12_000, np.int64)
    return model


def main() -> int:
    """Run the demo; 0 if everything was equal."""
    model = small_transformer()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.bpk"

        print("1. save: all or nothing, durable, byte for byte what Burn 0.22.1 writes")
        bs.save(model, path, metadata={"description": "a toy transformer", "epochs": "100"})
        print(f"   {path.name}: {path.stat().st_size:,} bytes, {len(model)} tensors\n")

        print("2. inspect: burnstore inspect model.bpk --filter 'layers.0|head|steps'", flush=True)
        command = [sys.executable, "-m", "burnstore", "inspect", path.name, "--filter", "layers.0|head|steps"]
        subprocess.run(command, cwd=folder, check=True)

        print("\n3. read lazily: one tensor, three rows of another, nothing else")
        with bs.open(path) as f:
            print(f"   {f!r}".replace(folder, ""))
            print(f"   {f['layers.2.norm.gamma']!r} -> mean {f['layers.2.norm.gamma'].numpy().mean()}")
            rows = f["embedding.weight"][10:13]
            print(f"   embedding.weight[10:13] -> {rows.shape}, {rows.nbytes:,} of {f['embedding.weight'].nbytes:,} bytes")

            print("\n4. prove it: every tensor equal, bit for bit")
            for name, array in model.items():
                if hashlib.sha256(f[name].to_bytes()).digest() != hashlib.sha256(array.tobytes()).digest():
                    print(f"   {name} differs")
                    return 1
            print(f"   {len(f)} of {len(model)} tensors equal")

            print("\n5. write it again from the open file: the same bytes")
            bs.save(dict(f), path.with_name("again.bpk"), metadata=dict(f.metadata))
        if path.read_bytes() != path.with_name("again.bpk").read_bytes():
            print("   the files differ")
            return 1
        print("   identical")
    return 0


if __name__ == "__main__":
    sys.exit(main())
