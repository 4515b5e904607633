"""Files that burnstore wrote, read by Burn; and both sides' bytes."""

from __future__ import annotations

import pytest

import burnstore as bs

from .program import NEWEST


def saved_by_us(generated, model, version, burn_version=None, texts=()):
    """The file of the declared model, filled as Burn's is."""
    store = bs.BurnpackStore.from_bytes(None)
    if burn_version is not None:
        store.burn_version(burn_version)
    for key, text in texts:
        store.metadata(key, text)
    store.save(generated.filled(model, version))
    return store.get_bytes()


def test_a_model_is_written_byte_for_byte_as_burn_writes_it(burn, generated, model):
    written = needed(generated, model)
    assert saved_by_us(generated, model, burn.version, burn_version=burn.release) == written


def test_a_file_that_was_opened_is_written_back_byte_for_byte(burn, generated, model):
    written = needed(generated, model)
    with bs.open(generated.file(model)) as found:
        assert bs.serialize(found, format="burnpack", metadata=found.metadata, burn_version=burn.release) == written


def needed(generated, model):
    if not generated.file(model).exists():
        pytest.skip(f"Burn does not write it: {generated.failure(model, 'bpk')}")
    return generated.file(model).read_bytes()


def test_metadata_are_written_byte_for_byte_as_burn_writes_them(burn, generated):
    for model in [model for model in burn.models if generated.file(model, "meta.bpk").exists()]:
        given = generated.metadata(model, "meta_metadata")
        with bs.open(generated.file(model, "meta.bpk")) as found:
            ours = bs.serialize(found, format="burnpack", metadata=given, burn_version=burn.release)
        assert ours == generated.file(model, "meta.bpk").read_bytes()


def test_the_newest_stable_release_is_written_unless_another_is_asked_for(burn, generated, model):
    if burn.version != NEWEST:
        pytest.skip(f"that is Burn {NEWEST}")
    assert saved_by_us(generated, model, burn.version) == generated.file(model).read_bytes()


def test_burn_loads_a_file_of_ours_into_its_module_as_it_loads_its_own(burn, generated, model, tmp_path):
    path = tmp_path / "ours.bpk"
    texts = [("by", "burnstore")]
    path.write_bytes(saved_by_us(generated, model, burn.version, burn_version=burn.release, texts=texts))
    loading, own = burn.load(model, path), burn.load(model, generated.file(model))
    assert loading.made() == own.made()
    if burn.version != NEWEST:  # before, some cannot load what they saved: docs/compatibility.md
        return
    wanted = generated.tensors(model)
    assert loading.result["applied"] == [tensor.path for tensor in wanted]
    assert [loading.result[name] for name in ("skipped", "missing", "unused", "errors")] == [[], [], [], []]
    assert loading.made()[-1] == [(t.path, t.dtype, t.shape, t.sha256) for t in wanted]
