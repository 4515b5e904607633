"""Skeletons with real Burn: the source compiles, and the file that a conversion makes is loaded to the last tensor."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.jobs.skeleton import skeleton

from .program import ROOT, UnavailableError, cache_folder, cargo

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
pytest.importorskip("timm")
pytest.importorskip("transformers")

skeletons = pytest.importorskip("interop.skeletons")

_MANIFEST = """\
[package]
name = "skeletons"
version = "0.0.0"
edition = "2024"

# As interop/burn-0.22 has them, so that Burn is built once.
[dependencies]
burn = { version = "=0.22.1", default-features = false, features = ["std", "flex", "simd", "rayon"] }
burn-store = { version = "=0.22.1", default-features = false, features = ["std", "safetensors", "pytorch", "memmap"] }
half = "2"
safetensors = "0.8"

[profile.release]
opt-level = 3
strip = true

[profile.release.package.skeletons]
opt-level = 0

[workspace]
"""

_FORWARD = """
#[test]
fn forward_of_sequential() {
    use burn::tensor::{Device, Tensor};
    use burn_store::burn_pack::{Reader, Writer};
    use burn_store::bridge;

    let inputs = Reader::from_file_exact(std::path::Path::new("inputs.bpk")).unwrap().into_tensors().unwrap();
    let x = bridge::into_data(inputs.into_iter().next().unwrap()).unwrap();
    let device = Device::default();
    let model = sequential::Sequential::init(&device).load("sequential.bpk").unwrap();
    let output = model.forward(Tensor::from_data(x, &device)).into_data();
    let packed = bridge::from_data(output, "output".to_owned(), None);
    Writer::new(vec![packed]).write_to_file("outputs.bpk").unwrap();
}

#[test]
fn lost_and_stray_tensors_are_refused() {
    let load = |file| sequential::Sequential::init(&Default::default()).load(file).unwrap_err();
    assert!(load("lost.bpk").contains("layers.1.gamma"));
    assert!(load("stray.bpk").contains("layers.stray"));
}
"""


@dataclass(frozen=True)
class CrateRun:
    """What the tests in the crate of all skeletons said, and where the crate is."""

    folder: Path
    output: str
    models: dict[str, Any]

    def verdict(self, test: str) -> str:
        found = re.search(rf"^test {re.escape(test)} \.\.\. (\w+)$", self.output, re.MULTILINE)
        return found[1] if found else self.output


def _stirred(name: str) -> Any:
    torch.manual_seed(3)
    model = skeletons.MODELS[name]().eval()
    with torch.no_grad():
        for path, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(
                    torch.rand(tensor.shape) + 0.5 if path.endswith("running_var") else torch.randn(tensor.shape)
                )
    return model


def _written(folder: Path, models: dict[str, Any]) -> None:
    """Write the crate; an unchanged source keeps its time, so that cargo does not rebuild it."""
    (folder / "src").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "rust" / "gallery" / "Cargo.lock", folder / "Cargo.lock")
    lock = (folder / "Cargo.lock").read_text(encoding="utf-8")
    lock = re.sub(r'\[\[package\]\]\nname = "burnstore-outline".*?\n\n', "", lock, flags=re.DOTALL)
    lock = lock.replace(' "burnstore-outline",\n', "").replace('name = "gallery"', 'name = "skeletons"')
    sources = {f"src/{name}.rs": skeleton(model, name=_camel(name)) for name, model in models.items()}
    library = "".join(f"pub mod {name};\n" for name in models) + _FORWARD
    for path, text in {**sources, "src/lib.rs": library, "Cargo.toml": _MANIFEST, "Cargo.lock": lock}.items():
        file = folder / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def _camel(name: str) -> str:
    return "".join(word.title() for word in name.split("_"))


@pytest.fixture(scope="module")
def crate() -> CrateRun:
    """All skeletons in one crate, built and tested once."""
    folder = cache_folder() / "skeletons"
    models = {name: _stirred(name) for name in skeletons.MODELS}
    _written(folder, models)
    for name, model in models.items():
        torch.save(model.state_dict(), folder / "source.pt")
        bs.convert(folder / "source.pt", folder / f"{_camel(name).lower()}.bpk", like=model, overwrite=True)
    bs.save({"x": _inputs()}, folder / "inputs.bpk", overwrite=True)
    with bs.open(folder / "sequential.bpk") as whole:
        tensors = {name: whole[name].numpy() for name in whole}
    lost = {name: held for name, held in tensors.items() if name != "1.gamma"}
    bs.save(lost, folder / "lost.bpk", overwrite=True)
    bs.save({**tensors, "stray": np.zeros(1, np.float32)}, folder / "stray.bpk", overwrite=True)
    try:
        command = cargo("test", "--release", "--offline", "--lib", "--manifest-path", folder / "Cargo.toml")
    except UnavailableError as reason:
        pytest.skip(str(reason))
    environment = {**os.environ, "CARGO_TARGET_DIR": str(cache_folder() / "0.22")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return CrateRun(folder, done.stdout + done.stderr, models)


def _inputs() -> Any:
    return np.random.default_rng(4).standard_normal((2, 3, 32, 16)).astype(np.float32)


@pytest.mark.parametrize("name", skeletons.MODELS)
def test_a_skeleton_compiles_and_loads_the_converted_file(crate: CrateRun, name: str) -> None:
    assert crate.verdict(f"{name}::tests::loads_the_converted_file") == "ok"


def test_the_forward_pass_of_a_sequential_is_torchs(crate: CrateRun) -> None:
    assert crate.verdict("forward_of_sequential") == "ok"
    with torch.no_grad():
        wanted = crate.models["sequential"](torch.from_numpy(_inputs())).numpy()
    with bs.open(crate.folder / "outputs.bpk") as file:
        np.testing.assert_allclose(file["output"].numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_a_skeleton_does_not_load_a_file_with_a_tensor_less_or_more(crate: CrateRun) -> None:
    assert crate.verdict("lost_and_stray_tensors_are_refused") == "ok"
