"""Models of the transformers library, from small configurations: what it writes we read, what we write it reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import burnstore as bs
from burnstore.transforms.values import regroup

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.slow("real models"),
    pytest.mark.filterwarnings("ignore"),  # the library's own, on import and on construction
]


def _gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=12, n_layer=2, n_head=3)
    return transformers.GPT2LMHeadModel(config)


def _bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20
    )
    return transformers.BertForMaskedLM(config)


def _vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, image_size=8, patch_size=4
    )
    return transformers.ViTForImageClassification(config)


def _whisper() -> Any:
    config = transformers.WhisperConfig(
        vocab_size=60,
        d_model=12,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=20,
        decoder_ffn_dim=20,
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=10,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
    )
    return transformers.WhisperForConditionalGeneration(config)


def _llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=12,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return transformers.LlamaForCausalLM(config)


MODELS = {"gpt2": _gpt2, "bert": _bert, "vit": _vit, "whisper": _whisper, "llama": _llama}
RULES = {"llama": {r"norm$": "RMSNorm"}}  # a class of their own that is one in all but name


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _fresh(name: str, seed: int) -> Any:
    torch.manual_seed(seed)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.normal_()
    return model


def _assert_equal(first: Any, second: Any) -> None:
    ours, theirs = first.state_dict(), second.state_dict()
    assert ours.keys() == theirs.keys()
    for key, tensor in ours.items():
        assert torch.equal(tensor, theirs[key]), key


def test_what_the_library_saved_is_loaded_bit_by_bit(name: str, tmp_path: Path) -> None:
    model, other = _fresh(name, 1), _fresh(name, 2)
    model.save_pretrained(tmp_path, save_original_format=False)
    result = bs.load(other, tmp_path / "model.safetensors")
    assert result.is_complete and result.unused == []
    _assert_equal(model, other)


def test_what_we_save_the_library_loads_bit_by_bit(name: str, tmp_path: Path) -> None:
    model, other = _fresh(name, 1), _fresh(name, 2)
    other.save_pretrained(tmp_path)  # for its config.json
    bs.save(model, tmp_path / "model.safetensors", overwrite=True)
    _assert_equal(model, type(model).from_pretrained(tmp_path))


def test_shards_go_both_ways(name: str, tmp_path: Path) -> None:
    model, other = _fresh(name, 1), _fresh(name, 2)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="8KB", save_original_format=False)
    index = json.loads((tmp_path / "theirs" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert bs.load(other, tmp_path / "theirs").is_complete
    _assert_equal(model, other)

    other.save_pretrained(tmp_path / "ours")
    (tmp_path / "ours" / "model.safetensors").unlink()
    bs.save(model, tmp_path / "ours" / "model.safetensors", max_shard_size="8KB")
    assert (tmp_path / "ours" / "model.safetensors.index.json").exists()
    _assert_equal(model, type(model).from_pretrained(tmp_path / "ours"))


def test_through_burns_layout_and_back_is_bit_equal(name: str, tmp_path: Path) -> None:
    model, other = _fresh(name, 1), _fresh(name, 2)
    rules = RULES.get(name)
    bs.save(model, tmp_path / "model.bpk", rules=rules)
    result = bs.load(other, tmp_path / "model.bpk", **({"rules": rules} if rules else {}))
    assert result.is_complete and result.unused == []
    _assert_equal(model, other)


def test_a_file_goes_to_burn_and_back_without_the_model(name: str, tmp_path: Path) -> None:
    model, other = _fresh(name, 1), _fresh(name, 2)
    bs.save(model, tmp_path / "model.safetensors")
    bs.convert(tmp_path / "model.safetensors", tmp_path / "model.bpk", like=other, rules=RULES.get(name))
    bs.convert(tmp_path / "model.bpk", tmp_path / "back.safetensors", target_layout="torch")
    assert bs.load(other, tmp_path / "back.safetensors").is_complete
    _assert_equal(model, other)


def test_conv1d_is_copied_since_it_lies_as_burns_linear(tmp_path: Path) -> None:
    model = _fresh("gpt2", 1)
    bs.save(model, tmp_path / "model.bpk")
    with bs.open(tmp_path / "model.bpk") as f:
        written = f["transformer.h.0.attn.c_attn.weight"].torch()
        head = f["lm_head.weight"].torch()
    assert torch.equal(written, model.transformer.h[0].attn.c_attn.weight)
    assert torch.equal(head.T, model.transformer.wte.weight)  # tied there; here the transpose, as a Linear has it


def test_guessing_refuses_what_it_cannot_know(name: str, tmp_path: Path) -> None:
    bs.save(_fresh(name, 1), tmp_path / "model.safetensors")
    with pytest.raises(bs.errors.ModelError, match="ambiguous"):
        bs.convert(tmp_path / "model.safetensors", tmp_path / "model.bpk", guess=True)
    assert not (tmp_path / "model.bpk").exists()


def test_like_a_class_of_transformers_takes_the_configuration_beside_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from burnstore.cli import main

    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **settings))
    model.save_pretrained(tmp_path / "bert")
    source = str(tmp_path / "bert" / "model.safetensors")
    like = ["--like", "transformers:BertForMaskedLM"]
    assert main(["convert", source, str(tmp_path / "a.bpk"), *like, "--quiet"]) == 0
    assert (
        main(["convert", str(tmp_path / "bert"), str(tmp_path / "b.bpk"), "--like", "transformers:BertForMaskedLM"])
        == 0
    )
    with bs.open(tmp_path / "a.bpk") as file:
        assert file["bert.encoder.layer.0.output.LayerNorm.gamma"].shape == (16,)
    (tmp_path / "bert" / "config.json").unlink()
    capsys.readouterr()
    assert main(["convert", source, str(tmp_path / "c.bpk"), *like]) == 2
    assert "there is no config.json in" in capsys.readouterr().err


def _fused_by(kind: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, list[Any]]:
    """Return the fused projection of a model with 3 heads of 4, its input, and the query, key and value it computes."""
    given = torch.randn(1, 1, 12)  # one token: its rotary encoding changes nothing
    seen: list[Any] = []
    if kind == "bloom":
        config = transformers.BloomConfig(vocab_size=20, hidden_size=12, n_layer=1, n_head=3)
        attention = transformers.BloomModel(config).h[0].self_attention
        attention.query_key_value.bias.normal_()
        return attention.query_key_value, given, list(attention._reshape(attention.query_key_value(given)))
    from transformers.models.gpt_neox import modeling_gpt_neox as module

    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 8}
    model = module.GPTNeoXModel(transformers.GPTNeoXConfig(vocab_size=20, attn_implementation="eager", **sizes))

    def attend(owner: Any, query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> Any:
        seen[:] = [query, key, value]
        return query.transpose(1, 2), None

    monkeypatch.setattr(module, "eager_attention_forward", attend)
    attention = model.layers[0].attention
    attention.query_key_value.bias.normal_()
    positions = model.rotary_emb(given, torch.zeros(1, 1, dtype=torch.long))
    attention(given, attention_mask=None, position_embeddings=positions)
    return attention.query_key_value, given, seen


@pytest.mark.parametrize("kind", ["bloom", "gpt_neox"])
def test_parts_within_heads_are_those_that_the_model_takes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `map` writes for these models: heads = 3."""
    torch.manual_seed(6)
    with torch.no_grad():
        fused, given, wanted = _fused_by(kind, monkeypatch)
        parts = {
            leaf: regroup(bs.TensorSnapshot.from_numpy(leaf, getattr(fused, leaf).numpy()), 3, (1, 1, 1)).numpy()
            for leaf in ("weight", "bias")
        }
        for at, part in enumerate(wanted):
            rows = slice(12 * at, 12 * at + 12)
            found = given @ torch.from_numpy(parts["weight"][rows]).T + torch.from_numpy(parts["bias"][rows])
            torch.testing.assert_close(found.reshape(part.shape), part)


def test_names_that_transformers_changes_in_memory_are_explained(tmp_path: Path) -> None:
    """The files of these models have the names of older releases, which from_pretrained changes."""
    config = transformers.GPTNeoXConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.GPTNeoXForCausalLM(config)
    other = {name.replace("lm_head", "embed_out"): tensor for name, tensor in model.state_dict().items()}
    torch.save(other, tmp_path / "pytorch_model.bin")
    for attempt in (
        lambda: bs.load(model, tmp_path),
        lambda: bs.convert(tmp_path, tmp_path / "a.bpk", like=model),
    ):
        with pytest.raises(bs.errors.BurnstoreError) as caught:
            attempt()
        assert "read the file with from_pretrained" in (caught.value.hint or "")
    assert "read the file with from_pretrained" in str(bs.explain(tmp_path, model))
