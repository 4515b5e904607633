"""Tied tensors: written once where the format allows it, read back under every name, counted once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
safe_open = pytest.importorskip("safetensors").safe_open


class Tied(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model whose embedding is also its head, and whose two biases are one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 5)
        self.first = torch.nn.Linear(5, 5)
        self.second = torch.nn.Linear(5, 5)
        self.head = torch.nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.second.bias = self.first.bias


PARAMETERS = 7 * 5 + 2 * 25 + 5


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_a_tied_model_is_stored_once_as_safetensors_does(tmp_path: Path) -> None:
    model = Tied()
    result = bs.save(model, tmp_path / "ours.safetensors")
    safetensors.save_model(model, str(tmp_path / "theirs.safetensors"), metadata={"format": "pt"})
    ours, theirs = (safe_open(str(tmp_path / f"{who}.safetensors"), "pt") for who in ("ours", "theirs"))
    assert ours.metadata() == theirs.metadata()
    assert ours.metadata()["head.weight"] == "embedding.weight"
    assert list(ours.keys()) == list(theirs.keys())
    assert (tmp_path / "ours.safetensors").stat().st_size == (tmp_path / "theirs.safetensors").stat().st_size
    assert "head.weight" in result.tensors and result.nbytes == PARAMETERS * 4
    assert "stored once" in result.notes[0]


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_file_of_save_model_is_read_under_every_name(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    model, other, file = Tied(), Tied(), tmp_path / "a.safetensors"
    safetensors.save_model(model, str(file), metadata=metadata)
    with bs.open(file) as f:
        assert set(f) == set(model.state_dict())
        assert f.ties == {"head.weight": "embedding.weight", "second.bias": "first.bias"}
        assert f.shares_with("head.weight") == ("embedding.weight",)
        assert f.nbytes == PARAMETERS * 4
        assert np.array_equal(f.numpy()["head.weight"], f["embedding.weight"].numpy())
        assert torch.equal(f.torch()["second.bias"], model.first.bias)
    bs.load(other, file)
    assert same(model, other)
    found = bs.inspect(file)
    assert found.total.elements == found.tree.total.elements == PARAMETERS
    assert found.tree.modules["head"].elements == 35  # a module that only has the second name has its parameters
    assert next(row for row in found.tensors if row.name == "head.weight").tied_to == "embedding.weight"


def test_parameters_of_a_pytorch_file_are_counted_once(tmp_path: Path) -> None:
    torch.save(Tied().state_dict(), tmp_path / "a.pt")
    found = bs.inspect(tmp_path / "a.pt")
    assert (found.total.elements, found.total.nbytes) == (PARAMETERS, PARAMETERS * 4)
    assert found.dtypes["F32"].elements == PARAMETERS and found.total.tensors == 6
    assert bs.inspect(tmp_path / "a.pt", pattern="^head").selected.elements == 35


def test_views_of_one_storage_that_are_not_the_same_view_count_each(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    torch.save({"a": base[:3], "b": base[3:], "c": base[:3], "t": base.view(2, 3).t()}, tmp_path / "a.pt")
    with bs.open(tmp_path / "a.pt") as f:
        assert f.ties == {"c": "a"}
    assert bs.inspect(tmp_path / "a.pt").total.elements == 12


@pytest.mark.parametrize("cast", [None, "bf16"])
def test_ties_survive_a_conversion(tmp_path: Path, cast: str | None) -> None:
    model = Tied()
    torch.save(model.state_dict(), tmp_path / "a.pt")
    done = bs.convert(tmp_path / "a.pt", tmp_path / "a.safetensors", cast=cast, receipt=True)
    assert done.nbytes == PARAMETERS * (2 if cast else 4)
    bs.replay(done.receipt, tmp_path / "again.safetensors")
    renamed = bs.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", rename=["^head=>z", "^embed=>m.embed"])
    with bs.open(tmp_path / "b.safetensors") as f:
        assert f.ties == {"z.weight": "m.embedding.weight", "second.bias": "first.bias"}
        assert "head.weight" not in f.metadata and "embedding.weight" not in f.metadata.values()
    assert any("stored once" in note for note in renamed.notes)


def test_ties_survive_shards(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    bs.save(model, tmp_path / "m.safetensors", max_shard_size=150)
    index = json.loads((tmp_path / "m.safetensors.index.json").read_text())
    assert "head.weight" not in index["weight_map"]
    with bs.open(tmp_path / "m.safetensors") as f:
        assert f.ties == {"head.weight": "embedding.weight", "second.bias": "first.bias"}
    bs.load(other, tmp_path)
    assert same(model, other)
    done = bs.convert(tmp_path, tmp_path / "again.safetensors", max_shard_size=150)
    assert done.nbytes == PARAMETERS * 4


def test_a_format_without_ties_stores_copies_and_says_so(tmp_path: Path) -> None:
    model = Tied()
    result = bs.save(model, tmp_path / "a.bpk")
    assert any("more than once, because burnpack has no ties: 'head.weight', 'second.bias'" in n for n in result.notes)
    burn = bs.save(model, tmp_path / "burn.safetensors", layout="burn")
    assert any("safetensors in Burn's layout has no ties" in note for note in burn.notes)
    with bs.open(tmp_path / "burn.safetensors") as f:
        assert not f.ties and "head.weight" in f
    back = bs.convert(tmp_path / "a.bpk", tmp_path / "back.safetensors", like=model, target_layout="torch")
    assert any("stored once" in note for note in back.notes)
    other = Tied()
    bs.load(other, tmp_path / "back.safetensors")
    assert same(model, other)
    with bs.open(tmp_path / "back.safetensors") as f:
        assert f.ties == {"head.weight": "embedding.weight", "second.bias": "first.bias"}


def test_copies_that_differ_are_not_tied_again(tmp_path: Path) -> None:
    model = Tied()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["head.weight"] += 1
    torch.save(state, tmp_path / "a.pt")
    bs.convert(tmp_path / "a.pt", tmp_path / "a.safetensors", like=model)
    with bs.open(tmp_path / "a.safetensors") as f:
        assert list(f.ties) == ["second.bias"]
        assert torch.equal(f["head.weight"].torch(), state["head.weight"])


def test_metadata_that_only_looks_like_a_tie_is_not_one(tmp_path: Path) -> None:
    tensors = {"pt": np.ones(2, np.float32), "a": np.zeros(2, np.float32)}
    bs.save(tensors, tmp_path / "a.safetensors", metadata={"format": "pt", "a": "pt", "title": "b"})
    with bs.open(tmp_path / "a.safetensors") as f:
        assert sorted(f) == ["a", "pt"] and not f.ties
        assert dict(f.metadata) == {"format": "pt", "a": "pt", "title": "b"}


def test_arrays_given_twice_are_written_twice_as_safetensors_does(tmp_path: Path) -> None:
    once = np.ones(2, np.float32)
    bs.save({"a": once, "b": once}, tmp_path / "a.safetensors")
    with bs.open(tmp_path / "a.safetensors") as f:
        assert not f.ties and f.nbytes == 16


MODELS = {
    "BertForMaskedLM": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    "GPT2LMHeadModel": {
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 16,
        "bos_token_id": 1,
        "eos_token_id": 1,
    },
    "T5ForConditionalGeneration": {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 32, "d_kv": 8},
    "GemmaForCausalLM": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    | {"num_key_value_heads": 1, "head_dim": 8},
}


@pytest.mark.slow("real models")
@pytest.mark.parametrize("name", MODELS)
def test_files_of_hugging_face_leave_tied_tensors_out(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, name)
    model = kind(kind.config_class(vocab_size=40, **MODELS[name]))
    model.save_pretrained(tmp_path / "hf")
    with bs.open(tmp_path / "hf") as f:
        assert set(model.state_dict()) - set(f)  # or the test is about nothing
    done = bs.convert(tmp_path / "hf", tmp_path / "a.safetensors", like=model)
    assert done.nbytes == sum(p.numel() * 4 for p in model.parameters())
    rules = {"norm": "AsIs"} if name.startswith("Gemma") else None  # its norms multiply by 1 + weight, Burn's do not
    bs.convert(tmp_path / "hf", tmp_path / "a.bpk", like=model, rules=rules)
    for file in ("a.safetensors", "a.bpk"):
        other = kind(model.config)
        for parameter in other.parameters():
            parameter.data.zero_()
        bs.load(other, tmp_path / file, rules=rules if file == "a.bpk" else None)
        assert same(model, other)


@pytest.mark.parametrize("name", ["version", "format", "producer", "burnstore.x", "note"])
def test_a_tie_whose_name_the_metadata_has_for_something_else_is_stored_twice(name: str, tmp_path: Path) -> None:
    shared = torch.arange(3.0)
    metadata = {"note": "x"} if name == "note" else None
    bs.save({"a": shared, name: shared}, tmp_path / "x.safetensors", metadata=metadata)
    with bs.open(tmp_path / "x.safetensors") as file:
        assert sorted(file) == sorted(["a", name])
        assert all(torch.equal(file[each].torch(), shared) for each in file)


def test_metadata_that_names_a_tensor_by_chance_makes_no_second_one(tmp_path: Path) -> None:
    bs.save({"weight": np.ones(3)}, tmp_path / "x.safetensors", metadata={"best_layer": "weight", "author": "me"})
    with bs.open(tmp_path / "x.safetensors") as file:
        assert list(file) == ["weight"] and not file.notes
