"""The table of classes known by name, against the libraries that are installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import burnstore as bs

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
for library in ("diffusers", "timm", "torchvision"):
    pytest.importorskip(library)

from . import classes  # noqa: E402

pytestmark = [pytest.mark.slow("imports every model of four libraries"), pytest.mark.filterwarnings("ignore")]


def test_the_table_is_what_the_classes_compute() -> None:
    assert classes.text_of(classes.table()) == classes.TABLE.read_text(), "run: make classes"


def _mixtral() -> Any:
    config = transformers.MixtralConfig(
        vocab_size=50,
        hidden_size=12,
        intermediate_size=20,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=3,
    )
    return transformers.MixtralForCausalLM(config)


def test_the_router_and_the_norms_of_mixtral_are_burns(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = _mixtral()
    torch.save(model, tmp_path / "mixtral.pt")
    bs.save(model, tmp_path / "live.bpk")
    bs.convert(tmp_path / "mixtral.pt", tmp_path / "saved.bpk", rules={r"experts$": "AsIs"})
    assert bs.diff(tmp_path / "live.bpk", tmp_path / "saved.bpk").is_equal
    with bs.open(tmp_path / "live.bpk") as f:
        gate = next(name for name in f if name.endswith("gate.weight"))
        assert f[gate].shape == (12, 3)
        assert "model.norm.gamma" in f
        x = torch.randn(2, 12)
        router = model.get_submodule(gate.removesuffix(".weight"))
        assert torch.allclose(x @ f[gate].torch(), torch.nn.functional.linear(x, router.weight))


@pytest.mark.parametrize("name", ["Gemma", "Gemma2", "Nemotron"])
def test_norms_that_add_one_are_refused(tmp_path: Path, name: str) -> None:
    config = getattr(transformers, f"{name}Config")(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with pytest.raises(bs.errors.ModelError, match=r"multiplies by 1 \+ weight") as caught:
        bs.save(model, tmp_path / "a.bpk")
    assert "add_one = true" in (caught.value.hint or "")
    assert "norm" in (caught.value.tensor or "")
