"""Quantized tensors of every scheme, made here: the values that Burn finds in them, and ours."""

from __future__ import annotations

import hashlib
from random import Random

import numpy as np
import pytest

import burnstore as bs
from burnstore.formats.burnpack.quant_spelling import scheme_from_tree
from burnstore.tensor.data import TensorData
from burnstore.tensor.dtype import DType
from burnstore.tensor.snapshot import TensorSnapshot
from fuzz import seeds

from . import zoo

SEED = 5
SCHEMES = [scheme_from_tree(tree["QFloat"]) for tree in seeds.quantized_dtypes() if "tensor" in tree["QFloat"]]
TREES = [tree for tree in seeds.quantized_dtypes() if "tensor" in tree["QFloat"]]


def decodes(version, scheme, shape):
    """Whether the CPU backend of a version can say what such a tensor stands for."""
    if scheme.mode != "Symmetric" or version not in ("0.22", "0.23-pre"):
        return False
    native = scheme.store.kind == "Native"
    whole_words = str(scheme.store) == "PackedU32(0)" and list(shape) == zoo.QUANTIZED_SHAPES["values"]
    return version == "0.23-pre" or (not scheme.is_float_coded and (native or whole_words))


def finite(tree, shape, rng):
    """The bytes of a tensor of that scheme, all of whose values are finite: a NaN has many spellings."""
    scheme = scheme_from_tree(tree["QFloat"])
    while True:
        raw = seeds.quantized("q", tree, tuple(shape), rng).data
        data = TensorData.from_bytes(raw, DType.qfloat(scheme), shape)
        if np.isfinite(data.numpy()).all():
            return data


@pytest.mark.parametrize("field", zoo.QUANTIZED_SHAPES)
def test_every_scheme_stands_for_the_values_that_burn_finds(burn, generated, field, tmp_path):
    shape = zoo.QUANTIZED_SHAPES[field]
    known = [tree for tree, scheme in zip(TREES, SCHEMES, strict=True) if decodes(burn.version, scheme, shape)]
    if not known:
        pytest.skip(f"Burn {burn.version} spells schemes in another way")
    places, rng = [path for path in generated.paths(zoo.QUANTIZED) if path.startswith(f"{field}.")], Random(SEED)
    compared = 0
    for start in range(0, len(known), len(places)):
        made = dict(
            zip(places, (finite(tree, shape, rng) for tree in known[start : start + len(places)]), strict=False)
        )
        file = tmp_path / f"{start}.bpk"
        bs.save([TensorSnapshot.from_data(path, data) for path, data in made.items()], file, layout="burn")
        loading = burn.load(zoo.QUANTIZED, file, "--partial")
        assert loading.ok, loading.error
        for found in loading.tensors:
            if found.path in made and found.dequantized_sha256 is not None:
                compared += 1
                data = made[found.path]
                assert found.dequantized_sha256 == hashlib.sha256(data.numpy().tobytes()).hexdigest(), data.dtype
    assert compared >= len(known) * 3 // 4
