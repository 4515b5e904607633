"""Adapters: files for PyTorch and in half precision, made by both sides of every model, and brought back."""

from __future__ import annotations

import hashlib
import json

import pytest

import burnstore as bs

from . import zoo
from .adapting import FROM, TO, to_adapter
from .program import VERSIONS


def needs_adapters(burn, model):
    if VERSIONS.index(burn.version) < VERSIONS.index("0.21"):
        pytest.skip(f"Burnpack files have no adapters in Burn {burn.version}")
    if (burn.version, model) in zoo.WITHOUT_CONTAINERS:
        pytest.skip(zoo.WITHOUT_CONTAINERS[burn.version, model])


@pytest.mark.parametrize("adapter", TO)
def test_an_adapted_file_is_byte_for_byte_the_one_that_burn_adapts(burn, generated, model, adapter, tmp_path):
    needs_adapters(burn, model)
    store = (
        bs.BurnpackStore.from_bytes(None).burn_version(burn.release).with_to_adapter(to_adapter(adapter, burn.version))
    )
    store.save(generated.filled(model, burn.version))
    with bs.open(store.get_bytes()) as ours:  # which may say of itself whose layout it has: Burn is told to, as well
        texts = [word for text in ours.metadata.items() for word in ("--metadata", *text)]
    path = tmp_path / "theirs.bpk"
    burn.save(model, generated.file(model), path, "--to-adapter", adapter, *texts)
    with bs.open(path) as theirs:  # it loaded the model first, and gave ids of their own to what keeps them in a load
        store.save(generated.filled(model, burn.version, [found.param_id for found in theirs.values()]))
    assert store.get_bytes() == path.read_bytes()


@pytest.mark.parametrize("adapter", FROM)
def test_an_adapted_file_comes_back_alike_on_both_sides(burn, generated, model, adapter, tmp_path):
    needs_adapters(burn, model)
    file = tmp_path / "adapted.bpk"
    burn.save(model, generated.file(model), file, "--to-adapter", adapter)
    loading = burn.load(model, file, "--from-adapter", adapter)
    assert loading.ok, loading.error
    declared = zoo.declare(model, burn.version, generated.paths(model))
    result = bs.BurnpackStore.from_file(file).with_from_adapter(FROM[adapter]()).load(declared)
    assert result.applied == loading.result["applied"]
    assert [(t.path, t.dtype, t.shape, hashlib.sha256(t.to_bytes()).hexdigest()) for t in bs.collect(declared)] == [
        (t.path, t.dtype, t.shape, t.sha256) for t in loading.tensors
    ]


def test_burns_safetensors_for_pytorch_has_the_names_shapes_and_bytes_of_our_adapter(burn, generated, model):
    path = generated.file(model, "torch.safetensors")
    if not path.exists():
        pytest.skip(f"Burn {burn.version} does not write it: {generated.failure(model, 'torch.safetensors')}")
    if (burn.version, model) in zoo.WITHOUT_CONTAINERS:
        pytest.skip(zoo.WITHOUT_CONTAINERS[burn.version, model])
    adapted = bs.collect(generated.filled(model, burn.version), adapter=to_adapter("pytorch", burn.version))
    assert {t.path: (list(t.shape), hashlib.sha256(t.to_bytes()).hexdigest()) for t in adapted} == in_safetensors(path)


def in_safetensors(path):
    """Shape and digest of every tensor of a SafeTensors file, taken by hand so that no reader of ours is involved."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: (entry["shape"], hashlib.sha256(data[slice(*entry["data_offsets"])]).hexdigest())
        for name, entry in header.items()
    }
