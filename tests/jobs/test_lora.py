"""LoRA adapters folded into their base: equal to peft's own merge, streaming, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.cli import main

torch = pytest.importorskip("torch")
MergeError = bs.errors.MergeError


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(9, 6)
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 700), torch.nn.Linear(700, 5)])
        self.head = torch.nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers[1](self.layers[0](self.embed(x))))


MODULES = {"embed": (9, 6), "conv": (4, 3, 3, 3), "layers.0": (700, 6), "layers.1": (5, 700)}


def adapter(folder: Path, seed: int = 0, rank: int = 2, dtype: Any = None, **config: Any) -> dict[str, Any]:
    """Write an adapter for all modules but the head, and return its tensors."""
    folder.mkdir()
    torch.manual_seed(seed)
    tensors = {}
    for module, shape in MODULES.items():
        if module == "embed":
            names = {"lora_embedding_A": (rank, shape[0]), "lora_embedding_B": (shape[1], rank)}
        else:
            ones = (1,) * (len(shape) - 2)
            names = {"lora_A.weight": (rank, *shape[1:]), "lora_B.weight": (shape[0], rank, *ones)}
        tensors |= {f"base_model.model.{module}.{name}": torch.randn(*size).to(dtype) for name, size in names.items()}
    bs.save(tensors, folder / "adapter_model.safetensors", layout="torch")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 8} | config))
    return tensors


def products(tensors: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for module, shape in MODULES.items():
        kind = "lora_embedding_{}" if module == "embed" else "lora_{}.weight"
        a, b = (tensors[f"base_model.model.{module}.{kind.format(side)}"].float() for side in "AB")
        delta = b.reshape(len(b), -1) @ a.reshape(len(a), -1)
        found[f"{module}.weight"] = (delta.T if module == "embed" else delta).reshape(shape)
    return found


@pytest.fixture
def base(tmp_path: Path) -> Any:
    torch.manual_seed(7)
    net = Net()
    torch.save(net.state_dict(), tmp_path / "base.pt")
    return net


@pytest.mark.parametrize(("config", "scale"), [({}, 4.0), ({"use_rslora": True}, 8 / 2**0.5)])
def test_an_adapter_is_added_to_its_base(tmp_path: Path, base: Any, config: dict[str, Any], scale: float) -> None:
    delta = products(adapter(tmp_path / "lora", **config))
    done = bs.merge([tmp_path / "base.pt", tmp_path / "lora"], tmp_path / "a.safetensors", method="lora")
    assert {row.name: row.sources for row in done.tensors}["layers.0.weight"] == (0, 1)
    assert {row.name: row.sources for row in done.tensors}["head.weight"] == (0,)
    with bs.open(tmp_path / "a.safetensors") as f:
        for name, tensor in base.state_dict().items():
            expected = tensor + scale * delta[name] if name in delta else tensor
            assert torch.allclose(f[name].torch(), expected, rtol=1e-5, atol=1e-5), name
        assert torch.equal(f["layers.0.bias"].torch(), base.layers[0].bias)


def test_several_adapters_have_weights(tmp_path: Path, base: Any) -> None:
    one, two = products(adapter(tmp_path / "one")), products(adapter(tmp_path / "two", seed=1, rank=3, lora_alpha=3))
    sources = [tmp_path / name for name in ("base.pt", "one", "two")]
    bs.merge(sources, tmp_path / "a.pt", method="lora", weights=[0.5, -1])
    found = torch.load(tmp_path / "a.pt", weights_only=True)
    expected = base.layers[0].weight + 0.5 * 4 * one["layers.0.weight"] - two["layers.0.weight"]
    assert torch.allclose(found["layers.0.weight"], expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(MergeError, match=r"expected 2 finite weights \(one per adapter\), got 3"):
        bs.merge(sources, tmp_path / "b.pt", method="lora", weights=[1, 1, 1])


def test_patterns_give_modules_their_own_alpha(tmp_path: Path, base: Any) -> None:
    delta = products(adapter(tmp_path / "lora", alpha_pattern={r"layers\.0": 2}))
    bs.merge([tmp_path / "base.pt", tmp_path / "lora"], tmp_path / "a.safetensors", method="lora")
    with bs.open(tmp_path / "a.safetensors") as f:
        for at, scale in ((0, 1.0), (1, 4.0)):
            expected = base.layers[at].weight + scale * delta[f"layers.{at}.weight"]
            assert torch.allclose(f[f"layers.{at}.weight"].torch(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_rounded_once(tmp_path: Path, base: Any, dtype: str) -> None:
    half = {name: tensor.to(getattr(torch, dtype)) for name, tensor in base.state_dict().items()}
    torch.save(half, tmp_path / "half.pt")
    delta = products(adapter(tmp_path / "lora"))
    bs.merge([tmp_path / "half.pt", tmp_path / "lora"], tmp_path / "a.safetensors", method="lora")
    with bs.open(tmp_path / "a.safetensors") as f:
        found = f["layers.0.weight"].torch()
    exact = half["layers.0.weight"].double() + 4 * delta["layers.0.weight"].double()
    assert found.dtype is half["layers.0.weight"].dtype
    assert torch.allclose(found.double(), exact, rtol=2**-8 if dtype == "bfloat16" else 2**-11, atol=1e-5)


def test_a_part_has_the_bits_of_the_whole_and_conversion_follows(tmp_path: Path, base: Any) -> None:
    adapter(tmp_path / "lora")
    sources = [tmp_path / "base.pt", tmp_path / "lora"]
    bs.merge(sources, tmp_path / "a.safetensors", method="lora")
    bs.merge(sources, tmp_path / "a.bpk", method="lora", like=base)
    bs.merge(sources, tmp_path / "shards.safetensors", method="lora", max_shard_size=9000)
    other = Net()
    bs.load(other, tmp_path / "a.bpk")
    with bs.open(tmp_path / "a.safetensors") as f, bs.open(tmp_path / "shards.safetensors") as g:
        assert torch.equal(f["layers.0.weight"].torch(), other.layers[0].weight)
        assert all(np.array_equal(f[name].numpy(), g[name].numpy()) for name in f)


def test_tied_tensors_stay_tied(tmp_path: Path) -> None:
    net = torch.nn.ModuleDict({"embed": torch.nn.Embedding(9, 6), "head": torch.nn.Linear(6, 9, bias=False)})
    net["head"].weight = net["embed"].weight
    bs.save(net, tmp_path / "base.safetensors")
    a, b = torch.randn(2, 9), torch.randn(6, 2)
    (tmp_path / "lora").mkdir()
    names = {"base_model.model.embed.lora_embedding_A": a, "base_model.model.embed.lora_embedding_B": b}
    bs.save(names, tmp_path / "lora" / "adapter_model.safetensors", layout="torch")
    (tmp_path / "lora" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 2}')
    done = bs.merge([tmp_path / "base.safetensors", tmp_path / "lora"], tmp_path / "a.safetensors", method="lora")
    assert any("stay tied" in note for note in done.notes)
    with bs.open(tmp_path / "a.safetensors") as f:
        assert f.ties == {"head.weight": "embed.weight"}
        assert torch.allclose(f["head.weight"].torch(), net["embed"].weight + (b @ a).T, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"use_dora": True}, "use_dora is set"),
        ({"lora_bias": True}, "lora_bias is set"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"lora_alpha": "x"}, "must be numbers"),
        ({"fan_in_fan_out": True}, "the adapter.s product"),
    ],
)
def test_what_cannot_be_folded_exactly_is_refused(
    tmp_path: Path, base: Any, config: dict[str, Any], complaint: str
) -> None:
    adapter(tmp_path / "lora", **config)
    with pytest.raises(MergeError, match=complaint):
        bs.merge([tmp_path / "base.pt", tmp_path / "lora"], tmp_path / "a.safetensors", method="lora")
    assert not (tmp_path / "a.safetensors").exists()


def test_another_base_is_refused(tmp_path: Path, base: Any) -> None:
    adapter(tmp_path / "lora")
    torch.save({f"model.{name}": tensor for name, tensor in base.state_dict().items()}, tmp_path / "other.pt")
    with pytest.raises(MergeError, match="the base does not have") as caught:
        bs.merge([tmp_path / "other.pt", tmp_path / "lora"], tmp_path / "a.safetensors", method="lora")
    assert "'model.conv.weight': rename" in str(caught.value)
    renamed = bs.MergeSource(tmp_path / "other.pt", rename=[r"^model\.=>"])
    bs.merge([renamed, tmp_path / "lora"], tmp_path / "a.safetensors", method="lora")
    bs.merge([tmp_path / "base.pt", tmp_path / "lora"], tmp_path / "b.safetensors", method="lora")
    assert bs.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors").is_equal
    with pytest.raises(MergeError, match="a PEFT adapter among"):
        bs.merge([tmp_path / "base.pt", tmp_path / "lora"], tmp_path / "c.safetensors")


def test_the_command_line_folds_adapters(
    tmp_path: Path, base: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter(tmp_path / "lora")
    monkeypatch.chdir(tmp_path)
    assert main(["merge", "base.pt", "lora", "a.safetensors", "--method", "lora", "--weights", "0.5", "--quiet"]) == 0
    assert main(["merge", "base.pt", "lora", "b.safetensors"]) != 0
    assert "method" in capsys.readouterr().err


@pytest.mark.slow("imports peft")
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_it_is_what_peft_makes(tmp_path: Path, kind: str, rslora: bool) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=1)
        model, targets = transformers.GPT2LMHeadModel(config), ["c_attn", "c_proj"]
    else:
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=40, **sizes))
        targets = ["q_proj", "v_proj", "embed_tokens", "down_proj"]
    bs.save(model, tmp_path / "base.safetensors")
    lora = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        target_modules=targets,
        use_rslora=rslora,
        fan_in_fan_out=kind == "gpt2",
        init_lora_weights=False,
    )
    wrapped = peft.get_peft_model(model, lora)
    wrapped.save_pretrained(str(tmp_path / "lora"))
    expected = wrapped.merge_and_unload().state_dict()
    bs.merge([tmp_path / "base.safetensors", tmp_path / "lora"], tmp_path / "a.safetensors", method="lora")
    with bs.open(tmp_path / "a.safetensors") as f:
        assert set(f) == set(expected)
        for name, tensor in expected.items():
            assert torch.allclose(f[name].torch(), tensor, rtol=1e-5, atol=1e-6), name
