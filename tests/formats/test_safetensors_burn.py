"""SafeTensors files that real Burn wrote: read equal, loaded into the models they are of, written again the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import SafetensorsStore
from declared_models import MODELS, Dtypes

BURN = Path(__file__).parents[1] / "fixtures" / "burn"
PLAIN = sorted(path for path in BURN.glob("*/*.safetensors") if path.name.count(".") == 1)
TORCH = sorted(BURN.glob("*/*.torch.safetensors"))
EVERY = sorted(BURN.glob("*/*.safetensors"))


def shown(path: Path) -> str:
    return f"{path.parent.name}-{path.name.removesuffix('.safetensors')}"


def expected(path: Path) -> dict[str, Any]:
    model = path.name.split(".")[0]
    described = json.loads((path.parent / f"{model}.expected.json").read_text())
    return {tensor["path"]: tensor for tensor in described["tensors"]}


def test_there_are_files_of_several_releases() -> None:
    assert len({path.parent.name for path in EVERY}) >= 4
    assert len(PLAIN) >= 24


@pytest.mark.parametrize("path", PLAIN, ids=shown)
def test_a_file_of_burn_is_read_as_burn_describes_it(path: Path) -> None:
    described = expected(path)
    with bs.open(path) as f:
        assert f.format == "safetensors"
        if path.name != "names.safetensors":  # there the texts are others
            assert f.metadata["producer"] == f.layout == "burn"
        assert set(f) == set(described)
        for name, snapshot in f.items():
            assert list(snapshot.shape) == described[name]["shape"]
            assert hashlib.sha256(snapshot.to_bytes()).hexdigest() == described[name]["sha256"]


@pytest.mark.parametrize("path", EVERY, ids=shown)
def test_a_file_of_burn_written_again_is_the_same_to_the_byte(path: Path) -> None:
    with bs.open(path) as f:
        assert bs.serialize(f, format="safetensors", metadata=f.metadata) == path.read_bytes()


# Burn 0.19 has other names for the parts of a tuple and of an enum, and fewer dtypes in its model of them.
FILLING = [path for path in PLAIN if path.parent.name != "0.19.1" or path.name[:5] in ("basic", "bools", "scala")]


@pytest.mark.parametrize("path", FILLING, ids=shown)
def test_a_file_of_burn_fills_the_model_that_it_is_of(path: Path) -> None:
    name = path.name.split(".")[0]
    model = Dtypes() if name == "dtypes" else MODELS[name]()
    store = SafetensorsStore.from_file(path)
    if name == "names":  # its metadata hides that Burn wrote it, and its only matrix is square
        with pytest.raises(bs.errors.ModelError, match="does not state its layout"):
            store.load(model)
        store = store.layout("burn")
    result = store.load(model)
    assert (result.errors, result.missing, result.unused) == ([], [], [])
    with bs.open(path) as f:
        found = {snapshot.path: snapshot.to_bytes() for snapshot in bs.collect(model)}
        assert found == {key: snapshot.to_bytes() for key, snapshot in f.items()}


@pytest.mark.parametrize("path", [path for path in TORCH if "basic" in path.name], ids=shown)
def test_what_burn_wrote_for_pytorch_is_loaded_with_the_adapter(path: Path) -> None:
    name = path.name.split(".")[0]
    model, plain = MODELS[name](), MODELS[name]()
    SafetensorsStore.from_file(path).with_from_adapter(bs.PyTorchToBurnAdapter).load(model)
    SafetensorsStore.from_file(path.parent / f"{name}.safetensors").load(plain)
    for one, other in zip(bs.collect(model), bs.collect(plain), strict=True):
        assert np.array_equal(one.numpy(), other.numpy()), one.path


@pytest.mark.parametrize("release", sorted({path.parent.name for path in EVERY}))
def test_enum_variants_can_be_left_out_of_the_names(release: str) -> None:
    path = BURN / release / "enums.skip.safetensors"
    if not path.is_file():
        assert release == "0.19.1"  # the option came with 0.20
        return
    model = MODELS["enums"]()
    result = SafetensorsStore.from_file(path).skip_enum_variants(True).load(model)
    assert (result.errors, result.missing, result.unused) == ([], [], [])
    store = SafetensorsStore.from_bytes(None).skip_enum_variants(True)
    store.save(model)
    with bs.open(path) as f, bs.open(store.get_bytes()) as g:
        assert {key: t.to_bytes() for key, t in f.items()} == {key: t.to_bytes() for key, t in g.items()}
        assert list(f) == list(g)
