"""The proof of a layout that a file does not state: which names prove it, and which do not."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore import nn
from burnstore.pipeline.layouts import proved_layout
from burnstore.tensor.snapshot import TensorSnapshot
from burnstore.transforms.layout import Link


def proved(link: Link, names: Collection[str]) -> Any:
    """Return what these tensors prove about a module that is ``mlp.1`` in Burn and ``mlp.2`` in PyTorch."""
    module = SimpleNamespace(kind="any", burn="mlp.1", torch="mlp.2", map=SimpleNamespace(links=[link]))
    view: Any = SimpleNamespace(modules=[module])
    index = {name: TensorSnapshot.from_numpy(name, np.zeros(3, np.float32)) for name in names}
    return proved_layout(view, index, {}, None, "a file")


def test_a_module_with_another_index_proves_pytorch_by_its_name_and_burn_never():
    link = Link("bias", "bias")
    assert proved(link, ["mlp.2.bias"])[0] == "torch"
    assert proved(link, ["mlp.1.bias"]) is None, "it may be another module of a file of PyTorch"
    assert proved(link, ["mlp.1.bias", "mlp.2.bias"]) is None


def test_a_part_of_a_fused_tensor_proves_burn_by_its_name():
    link = Link("bias_ih", "gate.bias", part=1, parts=2)
    assert proved(link, ["mlp.1.gate.bias"]) == ("burn", "'mlp.1.gate.bias' is named")
    assert proved(link, ["mlp.2.bias_ih"])[0] == "torch"
    assert proved(link, ["mlp.1.gate.bias", "mlp.2.bias_ih"]) is None


def test_square_gates_are_pytorchs_by_their_names_and_refused_by_burns(tmp_path: Path) -> None:
    source = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(4, 4)})
    bs.save(source, tmp_path / "stated.bpk")
    with bs.open(tmp_path / "stated.bpk") as file:
        expected = {name: tensor.numpy() for name, tensor in file.items()}
    declared = {"rnn": nn.Lstm(4, 4, bias=True)}
    bs.save({name: value.numpy() for name, value in source.state_dict().items()}, tmp_path / "fused.safetensors")
    result = bs.load(declared, tmp_path / "fused.safetensors")
    assert ["taken as PyTorch's" in note for note in result.notes] == [True]
    loaded = {snapshot.path: snapshot.numpy() for snapshot in bs.collect(declared)}
    assert loaded.keys() == expected.keys()
    assert all(np.array_equal(loaded[name], expected[name]) for name in expected)
    bs.save(expected, tmp_path / "apart.safetensors")  # a model of PyTorch may have Linears of these names
    with pytest.raises(bs.errors.ModelError, match="neither names nor shapes prove it"):
        bs.load(declared, tmp_path / "apart.safetensors")
