"""GGUF files of models: names and axes become transformers', and the model computes the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, quants

import burnstore as bs

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEAD = {"head_dim": 8}


def permuted(weights: Any, heads: int) -> Any:
    """Order rows as llama.cpp's converter does (``LlamaModel.permute``)."""
    return (
        weights.reshape(heads, 2, len(weights) // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)
    )


def llama_rows(name: str, array: Any) -> Any:
    if ".q_proj." in name or ".k_proj." in name:
        return permuted(array, 4 if ".q_proj." in name else 2)
    return array


def gemma_norms(name: str, array: Any) -> Any:
    return array + np.float32(1) if name.endswith("norm.weight") else array


def unchanged(name: str, array: Any) -> Any:
    return array


MODELS: dict[str, tuple[Callable[[], Any], str, Callable[[str, Any], Any]]] = {
    "llama": (lambda: transformers.LlamaConfig(**SMALL, attention_bias=True), "llama", llama_rows),
    "llama-tied": (lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=True), "llama", llama_rows),
    "mistral": (lambda: transformers.MistralConfig(**SMALL, **HEAD, sliding_window=None), "llama", llama_rows),
    "mistral3": (lambda: transformers.MistralConfig(**SMALL, **HEAD, sliding_window=None), "mistral3", llama_rows),
    "qwen2": (lambda: transformers.Qwen2Config(**SMALL), "qwen2", unchanged),
    "qwen3": (lambda: transformers.Qwen3Config(**SMALL, **HEAD), "qwen3", unchanged),
    "gemma": (lambda: transformers.GemmaConfig(**SMALL, **HEAD), "gemma", gemma_norms),
    "gemma2": (lambda: transformers.Gemma2Config(**SMALL, **HEAD), "gemma2", gemma_norms),
    "gemma3": (lambda: transformers.Gemma3TextConfig(**SMALL, **HEAD), "gemma3", gemma_norms),
    "phi": (lambda: transformers.PhiConfig(**{**SMALL, "num_key_value_heads": 4}), "phi2", unchanged),
    "phi3": (lambda: transformers.Phi3Config(**SMALL), "phi3", unchanged),
}


def model_of(kind: str) -> Any:
    torch.manual_seed(len(kind))
    model = transformers.AutoModelForCausalLM.from_config(MODELS[kind][0]()).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)  # norms and biases are constants at first
    return model


def gguf_of(model: Any, kind: str, path: Path, quantized: Type | None = None) -> Path:
    """Write a model as llama.cpp's converter does: its own names, by the table of the gguf package."""
    _, architecture, change = MODELS[kind]
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture.upper()), 2)
    writer = GGUFWriter(path, architecture)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_block_count(2)
    written = set()
    for name, parameter in model.named_parameters():  # a tied weight comes once
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert own is not None, name
        array = change(name, parameter.detach().numpy())
        if quantized is not None and array.ndim == 2:
            writer.add_tensor(own, quants.quantize(array, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(own, np.ascontiguousarray(array))
        written.add(own)
    if architecture == "llama":
        writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


TOKENS = torch.tensor([[1, 5, 9, 33, 2, 60, 7]])


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_loaded_from_gguf_computes_the_same(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    path = gguf_of(model, kind, tmp_path / "m.gguf")
    torch.manual_seed(99)
    other = transformers.AutoModelForCausalLM.from_config(MODELS[kind][0]()).eval().float()
    result = bs.load(other, path)
    assert not result.missing
    with torch.no_grad():
        assert torch.allclose(other(TOKENS).logits, model(TOKENS).logits, atol=1e-6)
    if MODELS[kind][2] is not gemma_norms:  # 1 + weight rounds
        ours, theirs = other.state_dict(), model.state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow("all architectures through files in Burn's layout")
@pytest.mark.parametrize("kind", [kind for kind in MODELS if "gemma" not in kind])
def test_a_model_goes_through_burns_layout_and_back(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    path = gguf_of(model, kind, tmp_path / "m.gguf")
    done = bs.convert(path, tmp_path / "m.bpk", like=model)
    assert (done.source_layout, done.layout) == ("torch", "burn")
    with bs.open(tmp_path / "m.bpk") as file:
        assert file[
            "model.layers.0.mlp.down_proj.weight" if kind != "phi" else "model.layers.0.mlp.fc2.weight"
        ].shape == (
            64,
            32,
        )
    other = transformers.AutoModelForCausalLM.from_config(MODELS[kind][0]()).eval().float()
    bs.load(other, tmp_path / "m.bpk")
    with torch.no_grad():
        assert torch.allclose(other(TOKENS).logits, model(TOKENS).logits, atol=1e-6)


@pytest.mark.slow("three models through files in Burn's layout")
@pytest.mark.parametrize("kind", ["gemma", "gemma2", "gemma3"])
def test_the_norms_of_gemma_become_burns_which_multiply_by_gamma(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    path = gguf_of(model, kind, tmp_path / "m.gguf")
    with pytest.raises(bs.errors.ModelError, match=r"multiplies by 1 \+ weight"):
        bs.convert(path, tmp_path / "m.bpk", like=model)
    norms = {re.sub(r"\d+", "{i}", name) for name, _ in model.named_parameters() if name.endswith("norm.weight")}
    rules = [{"source": name, "target": name, "add_one": True} for name in sorted(norms)]
    kinds = {"norm$": "RMSNorm", "embed_tokens$": "Embedding", "_proj$": "Linear"}
    bs.convert(path, tmp_path / "m.bpk", rules={"tensors": rules, "kinds": kinds})
    with bs.open(tmp_path / "m.bpk") as file:
        for name, parameter in model.named_parameters():
            stored = file[name.replace("norm.weight", "norm.gamma") if name.endswith("norm.weight") else name].numpy()
            expected = parameter.detach().numpy()
            if name.endswith("norm.weight"):
                assert np.allclose(stored, 1 + expected, atol=1e-6)
            elif "embed" not in name:
                assert (stored == expected.T).all()


def test_quantized_weights_are_those_that_transformers_reads(tmp_path: Path) -> None:
    model = model_of("llama")
    path = gguf_of(model, "llama", tmp_path / "m.gguf", Type.Q8_0)
    bs.convert(path, tmp_path / "m.safetensors")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(model.config)
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=empty)["tensors"]
    with bs.open(tmp_path / "m.safetensors") as file:
        assert set(file) == set(theirs)
        assert all(torch.equal(file[name].torch(), tensor) for name, tensor in theirs.items())
        assert file.layout == "torch"
        assert "left out: rope_freqs" not in file


def test_what_transformers_computes_is_left_out_with_a_note(tmp_path: Path) -> None:
    path = gguf_of(model_of("llama"), "llama", tmp_path / "m.gguf")
    result = bs.convert(path, tmp_path / "m.safetensors")
    assert any("rope_freqs.weight" in note for note in result.notes)
    assert any("llama.cpp's llama" in note for note in result.notes)


def test_old_files_of_phi_have_the_three_projections_in_one(tmp_path: Path) -> None:
    arrays = {part: np.full((4, 4), number, np.float32) for number, part in enumerate("qkv")}
    fused = {"blk.0.attn_qkv.weight": np.concatenate(list(arrays.values()))}
    bs.save(fused, tmp_path / "m.gguf", metadata={"general.architecture": "phi2"})
    bs.convert(tmp_path / "m.gguf", tmp_path / "m.safetensors")
    with bs.open(tmp_path / "m.safetensors") as file:
        for part, array in arrays.items():
            assert (file[f"model.layers.0.self_attn.{part}_proj.weight"].numpy() == array).all()


@pytest.mark.parametrize(
    ("architecture", "extra", "why"),
    [
        ("starcoder2", {}, "not for the architecture starcoder2"),
        (
            "llama",
            {"blk.0.ffn_gate_exps.weight": np.zeros((2, 4, 4), np.float32)},
            "no rule of llama has blk.0.ffn_gate",
        ),
        ("llama", {}, "states no llama.attention.head_count"),
    ],
)
def test_a_file_without_rules_keeps_its_own_names(
    architecture: str, extra: dict[str, Any], why: str, tmp_path: Path
) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", architecture)
    if extra:
        writer.add_head_count(2)
    for name, array in {"token_embd.weight": np.zeros((8, 4), np.float32), **extra}.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    result = bs.convert(tmp_path / "m.gguf", tmp_path / "m.safetensors")
    assert any(why in note for note in result.notes)
    with bs.open(tmp_path / "m.safetensors") as file:
        assert "token_embd.weight" in file
        assert file.layout == "gguf"


def test_every_verb_sees_the_same_names(tmp_path: Path) -> None:
    model = model_of("qwen2")
    path = gguf_of(model, "qwen2", tmp_path / "m.gguf")
    bs.save(model, tmp_path / "m.safetensors")
    assert bs.diff(path, tmp_path / "m.safetensors").equal
    assert bs.diff(path, model).equal
    merged = bs.merge(
        [path, tmp_path / "m.safetensors"], tmp_path / "merged.safetensors", method="linear", weights=[0.5, 0.5]
    )
    assert merged
    assert bs.diff(tmp_path / "merged.safetensors", model).equal
    receipt = bs.convert(path, tmp_path / "a.safetensors", receipt=True).receipt
    assert receipt is not None
    bs.replay(receipt, tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    copied = bs.convert(path, tmp_path / "a.gguf", receipt=True).receipt
    assert copied is not None
    bs.replay(copied, tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == path.read_bytes()
