"""The demo behind `make demo`: convert a PyTorch file, prove it, look inside, read parts, prove it equal, load it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import burnstore as bs
from burnstore import nn


class Transformer(nn.Module):
    """A small transformer, declared with Burn's layers in Burn's layout."""

    def __init__(self) -> None:
        self.embedding = nn.Embedding(1000, 256)
        self.encoder = nn.TransformerEncoder(256, 512, 4, 2)
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, 1000, bias=False)
        self.steps = nn.Param.from_data(np.array(12_000))


NET = '''
from burnstore import nn


class Net(nn.Module):
    """The model of model.pt, declared with Burn's layers."""

    def __init__(self):
        self.encoder = nn.Linear(64, 128)
        self.norm = nn.LayerNorm(128)
        self.decoder = nn.Linear(128, 64, bias=False)
'''


def run(folder: str, *arguments: str) -> None:
    """Run the command line in a folder, and show how it was called."""
    print(f"   $ burnstore {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "burnstore", *arguments], cwd=folder, check=True)


def conversions(folder: str) -> bool:
    """From PyTorch to SafeTensors and to Burn, and back; True if what came back is what was there."""
    import torch

    torch.manual_seed(0)
    state = {
        "encoder.weight": torch.randn(128, 64),
        "encoder.bias": torch.randn(128),
        "norm.weight": torch.ones(128),
        "norm.bias": torch.zeros(128),
        "decoder.weight": torch.randn(64, 128),
    }
    torch.save(state, Path(folder) / "model.pt")
    (Path(folder) / "net.py").write_text(NET, encoding="utf-8")
    run(folder, "convert", "model.pt", "model.safetensors")
    run(folder, "convert", "model.pt", "net.bpk", "--like", "net:Net", "--receipt")
    run(folder, "convert", "--replay", "net.bpk.receipt.json", "replayed.bpk")
    run(folder, "convert", "net.bpk", "back.safetensors", "--layout", "torch")
    run(folder, "diff", "model.pt", "back.safetensors")
    with bs.open(Path(folder) / "back.safetensors") as f:
        return all(torch.equal(f[name].torch(), tensor) for name, tensor in state.items())


def digest(raw: bytes) -> str:
    """A fingerprint of some bytes."""
    return hashlib.sha256(raw).hexdigest()


def main() -> int:
    """Run the demo; 0 if everything was equal."""
    nn.seed(0)
    model = Transformer()
    with tempfile.TemporaryDirectory() as folder:
        print("1. convert: PyTorch to SafeTensors, to Burn's layout with a receipt, the receipt replayed, and back")
        if not conversions(folder):
            print("   what came back differs")
            return 1
        print("   what came back is bit-equal\n")

        path = Path(folder) / "model.bpk"

        print("2. save: all or nothing, durable, byte for byte what Burn 0.22.1 writes")
        bs.BurnpackStore.from_file(path).metadata("description", "a toy transformer").metadata("epochs", "100").save(
            model
        )
        print(f"   {path.name}: {path.stat().st_size:,} bytes, {len(bs.collect(model))} tensors\n")

        print("3. inspect: burnstore inspect model.bpk --filter 'layers.0.mha|head|steps'", flush=True)
        command = [sys.executable, "-m", "burnstore", "inspect", path.name, "--filter", "layers.0.mha|head|steps"]
        subprocess.run(command, cwd=folder, check=True)

        print("\n4. read lazily: one tensor, three rows of another, nothing else")
        with bs.open(path) as f:
            print(f"   {f!r}".replace(folder, ""))
            print(f"   {f['norm.gamma']!r} -> mean {f['norm.gamma'].numpy().mean()}")
            rows = f["embedding.weight"][10:13]
            print(f"   embedding.weight[10:13]: {rows.nbytes:,} of {f['embedding.weight'].nbytes:,} bytes read")

            print("\n5. prove it: every tensor equal, bit for bit")
            tensors = bs.collect(model)
            if any(digest(tensor.to_bytes()) != digest(f[tensor.path].to_bytes()) for tensor in tensors):
                print("   a tensor differs")
                return 1
            print(f"   {len(f)} of {len(tensors)} tensors equal")

            print("\n6. write it again from the open file: the same bytes")
            bs.save(dict(f), path.with_name("again.bpk"), metadata=dict(f.metadata))
        if path.read_bytes() != path.with_name("again.bpk").read_bytes():
            print("   the files differ")
            return 1
        print("   identical")

        print("\n7. load part of it into a fresh model, with a report")
        fresh = Transformer()
        result = bs.load(fresh, path, regex=r"^(embedding|head|encoder\.layers\.0)\.")
        print(f"   {len(result.applied)} applied, {len(result.skipped)} left out by the filter")
        same = np.array_equal(fresh.head.weight.value, model.head.weight.value)
        print(f"   head.weight equal: {same}, ids kept: {fresh.head.weight.id == model.head.weight.id}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
