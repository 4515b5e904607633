"""SafeTensors files of both sides, plain and for PyTorch."""

from __future__ import annotations

import hashlib
import json

import pytest

import burnstore as bs

from . import across, zoo
from .adapting import to_adapter
from .program import NEWEST

SUFFIXES = ("safetensors", "torch.safetensors")


@pytest.fixture(params=SUFFIXES)
def written(request, burn, generated, model):
    """A file that Burn wrote, and its suffix."""
    path = generated.file(model, request.param)
    if not path.exists():
        pytest.skip(f"Burn {burn.version} does not write it: {generated.failure(model, request.param)}")
    if request.param == "torch.safetensors" and (burn.version, model) in zoo.WITHOUT_CONTAINERS:
        pytest.skip(zoo.WITHOUT_CONTAINERS[burn.version, model])
    return path


def adapters(path, version):
    """The adapters of a load of this file and of a save like it."""
    if path.suffixes[-2:] != [".torch", ".safetensors"]:
        return None, None
    return bs.PyTorchToBurnAdapter(), to_adapter("pytorch", version)


def store_for(place, adapter):
    """A store that saves with this adapter, if there is one; to bytes without a place."""
    store = bs.SafetensorsStore.from_bytes(None) if place is None else bs.SafetensorsStore.from_file(place)
    return store if adapter is None else store.with_to_adapter(adapter)


def taken_apart(raw):
    """A file as its header and its data: the order of texts in a header changes from run to run of Burn."""
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def test_a_file_of_burn_loads_with_the_values_of_its_module(generated, model, burn, written):
    declared = zoo.declare(model, burn.version, generated.paths(model))
    store, adapter = bs.SafetensorsStore.from_file(written), adapters(written, burn.version)[0]
    result = (store if adapter is None else store.with_from_adapter(adapter)).load(declared)
    assert result.is_complete and not result.unused
    assert [(t.path, t.dtype, t.shape, hashlib.sha256(t.to_bytes()).hexdigest()) for t in bs.collect(declared)] == [
        (t.path, t.dtype, t.shape, t.sha256) for t in generated.tensors(model)
    ]


def test_a_model_is_written_as_burn_writes_it(generated, model, burn, written):
    theirs, data = taken_apart(written.read_bytes())
    store = store_for(None, adapters(written, burn.version)[1]).clear_metadata()
    for key, text in theirs.get("__metadata__", {}).items():
        store.metadata(key, text)
    store.save(generated.filled(model, burn.version))
    header, body = taken_apart(store.get_bytes())
    own = set(header.get("__metadata__", {})) - set(theirs.get("__metadata__", {}))
    assert own <= {"burnstore.layout"}  # a file for PyTorch says so
    for key in own:
        del header["__metadata__"][key]
    assert header == theirs
    assert list(header)[1:] == list(theirs)[1:]
    assert body == data


def test_burn_loads_our_file_into_its_module_as_it_loads_its_own(generated, model, burn, written, tmp_path):
    path = tmp_path / written.name
    from_adapter, to_adapter = adapters(written, burn.version)
    store_for(path, to_adapter).save(generated.filled(model, burn.version))
    options = ["--from-adapter", "pytorch"] if from_adapter else []
    loading, own = burn.load(model, path, *options), burn.load(model, written, *options)
    assert loading.made() == own.made()
    if burn.version == NEWEST:  # before, some cannot load what they saved
        assert loading.made()[-1] == [(t.path, t.dtype, t.shape, t.sha256) for t in generated.tensors(model)]


def test_a_file_of_burn_opens_with_what_is_in_it(burn, written):
    header, _ = taken_apart(written.read_bytes())
    with bs.open(written) as found:
        assert dict(found.metadata) == header.pop("__metadata__")
        assert {tensor.path: list(tensor.shape) for tensor in across.described(found)} == {
            name: entry["shape"] for name, entry in header.items()
        }
