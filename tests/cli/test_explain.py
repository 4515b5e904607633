"""``burnstore explain``: what is printed, and exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from terminal import run_here

import burnstore as bs

Captured = pytest.CaptureFixture[str]

MODELS = """
import torch, burnstore as bs
print("a module may print")

class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

class Burn(bs.nn.Module):
    def __init__(self):
        self.fc = bs.nn.Linear(4, 3)

class Wide(torch.nn.Module):
    def __init__(self, width):
        super().__init__()

def made():
    return Torch()

def none():
    return 3

def broken():
    raise OSError("no\\nluck")

class Outer:
    Inner = Burn
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.save({"fc.weight": torch.zeros(3, 4), "fc.bias": torch.zeros(3)}, "net.pt")
    torch.save({"fc.weight": torch.zeros(3, 4), "fc.bais": torch.zeros(3)}, "typo.pt")
    (tmp_path / "explained_models.py").write_text(MODELS)
    (tmp_path / "lame.py").write_text("import no_such_package")
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    yield tmp_path
    for name in ("explained_models", "lame", "ends"):
        sys.modules.pop(name, None)


def test_a_file_alone(folder: Path, capsys: Captured) -> None:
    code, out, err = run_here(capsys, "explain", "net.pt")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "net.pt: pytorch (zip), 2 tensors, 60 B",
        "  layout torch: pytorch files have it",
        "  into burn's layout: the kinds of its modules: --like a model, or --rules; or --guess, because names and "
        "shapes decide 1 module",
        "  into torch's layout: nothing, the file has this layout",
    ]


def test_into_a_model_of_another_layout(folder: Path, capsys: Captured) -> None:
    code, out, err = run_here(capsys, "explain", "net.pt", "--into", "explained_models:Burn")
    assert (code, err) == (0, "a module may print\n")
    assert out.splitlines() == [
        "net.pt: pytorch (zip), 2 tensors, 60 B",
        "  layout torch: pytorch files have it",
        "  into explained_models:Burn, in burn's layout",
        "",
        "INTO       FROM       STEPS       DTYPE  SHAPE   BYTES",
        "fc.weight  fc.weight  transposed  F32    [4, 3]     48",
        "fc.bias    fc.bias    unchanged   F32    [3]        12",
        "",
        "2 tensors would be applied; a load would succeed",
        "to read: 60 B of 60 B",
        "estimate: 108 B of memory besides the model, less than 0.01 s at 1 GB/s (assumed, not measured)",
    ]


def test_what_is_missing_is_found_with_the_nearest_name(folder: Path, capsys: Captured) -> None:
    code, out, _ = run_here(capsys, "explain", "typo.pt", "--into", "explained_models:made")
    assert code == 1
    assert "missing: fc.bias (did you mean fc.bais?)" in out and "unused: fc.bais" in out
    assert "a load would raise MissingTensorsError" in out
    code, out, _ = run_here(
        capsys,
        "explain",
        "typo.pt",
        "--into",
        "explained_models:Outer.Inner",
        "--rename",
        "bais=>bias",
        "--rate",
        "2GB",
    )
    assert code == 0 and "renamed by bais => bias" in out and "at 2 GB/s (given, not measured)" in out


def test_into_a_file_and_as_json(folder: Path, capsys: Captured) -> None:
    bs.save({"fc.weight": np.zeros((3, 4), np.float16)}, "other.safetensors", metadata={"format": "pt"})
    code, out, _ = run_here(capsys, "explain", "net.pt", "--into", "other.safetensors", "--json")
    told = json.loads(out)
    assert code == 1 and told["unused"] == ["fc.bias"] and told["refusal"] is None
    assert told["moves"][0]["steps"] == ["cast F32 to F16"] and told["target"] == "other.safetensors"
    assert told["estimate"]["bytes_to_read"] == 48


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.pt"], "none.pt: no such file"),
        (["net.pt", "--into", "none.bpk"], "none.bpk: no such file"),
        (
            ["net.pt", "--into", "nowhere:Net"],
            "nowhere:Net: no module 'nowhere', in the current folder or installed",
        ),
        (["net.pt", "--into", "explained_models:Touch"], "the module explained_models has no Touch"),
        (["net.pt", "--into", "explained_models:Wide"], "Wide cannot be called without arguments"),
        (["net.pt", "--into", "explained_models:none"], "expected a model, got int without tensors"),
        (["net.pt", "--into", "explained_models:broken"], "calling broken failed: OSError: no luck"),
        (
            ["net.pt", "--into", "lame:Net"],
            "the import failed: ModuleNotFoundError: No module named 'no_such_package'",
        ),
        (["net.pt", "--into", "ends:Net"], "the import failed: SystemExit: 3"),
        (["net.pt", "--into", "explained_models:Burn", "--filter", "("], "("),
        (["net.pt", "--rename", "x"], "'x' is not a rename rule"),
        (["net.pt", "--rules", "none.rules"], "none.rules: no such file"),
    ],
)
def test_mistakes_are_told_in_one_line(folder: Path, capsys: Captured, arguments: list[str], message: str) -> None:
    code, out, err = run_here(capsys, "explain", *arguments)
    first, *rest = [line for line in err.splitlines() if line != "a module may print"]
    assert (code, out) == (2, "") and first.startswith("burnstore: error: ") and message in first
    assert all(line.startswith("  hint: ") for line in rest)


def test_a_model_of_torch_is_made_without_memory_if_it_can_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from burnstore.cli.arguments import import_model

    assert import_model("explained_models:Torch").fc.weight.is_meta
    (folder / "explained_models.py").write_text(
        "import torch\n"
        "class Counted(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(int(torch.ones(4).sum()), 3)\n"
    )
    sys.modules.pop("explained_models", None)
    assert not import_model("explained_models:Counted").weight.is_meta
