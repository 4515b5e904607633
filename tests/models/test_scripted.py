"""Scripted and traced torch modules: their kind is the class that their TorchScript type names, or they are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import burnstore as bs
from burnstore.errors import ModelError

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.filterwarnings("ignore")


class Linear(nn.Module):  # type: ignore[misc, name-defined]
    """A class of the user's with the name of a layer, whose weight is not that layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Derived(nn.Linear):  # type: ignore[misc, name-defined]
    pass


def loaded(module: Any) -> Any:
    import io

    out = io.BytesIO()
    torch.jit.save(torch.jit.script(module), out)
    return torch.jit.load(io.BytesIO(out.getvalue()))


WAYS: dict[str, Callable[[Any], Any]] = {
    "script": torch.jit.script,
    "trace": lambda module: torch.jit.trace(module, torch.ones(2, 2)),
    "load": loaded,
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        yield


def layers() -> Any:
    return nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))).eval()


@pytest.mark.parametrize("way", WAYS)
def test_a_scripted_model_is_saved_and_loaded_as_the_model_it_was_made_from(way: str, tmp_path: Path) -> None:
    model = layers()
    scripted = WAYS[way](model)
    bs.save(model, tmp_path / "model.bpk")
    done = bs.save(scripted, tmp_path / "scripted.bpk")
    assert done.notes == ()
    with bs.open(tmp_path / "model.bpk") as one, bs.open(tmp_path / "scripted.bpk") as other:
        assert {name: tensor.shape for name, tensor in one.items()} == {n: t.shape for n, t in other.items()}
        assert one.keys() == other.keys() and one["0.weight"].shape == (2, 3) and "1.gamma" in one
    target = WAYS[way](layers())
    bs.load(target, tmp_path / "scripted.bpk")
    for name, value in model.state_dict().items():
        assert torch.equal(target.state_dict()[name], value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layer", [Linear, lambda: Derived(2, 3)])
def test_a_class_that_is_no_layer_of_torch_is_refused_and_a_rule_says_what_it_is(
    way: str, layer: Callable[[], Any], tmp_path: Path
) -> None:
    scripted = WAYS[way](nn.Sequential(layer()))
    with pytest.raises(ModelError, match="no rule states how Burn stores "):
        bs.save(scripted, tmp_path / "a.bpk")
    bs.save(scripted, tmp_path / "a.bpk", rules={"^0$": "AsIs"})
    bs.save(scripted, tmp_path / "a.safetensors")
    assert bs.load(scripted, tmp_path / "a.safetensors").is_success()


def test_options_that_tracing_loses_are_not_guessed(tmp_path: Path) -> None:
    norm = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2, elementwise_affine=False))
    assert "filled" in bs.save(torch.jit.script(norm), tmp_path / "a.bpk").notes[0]
    traced = torch.jit.trace(norm, torch.ones(1, 2))
    with pytest.raises(ModelError, match="its normalized_shape was lost by tracing"):
        bs.save(traced, tmp_path / "b.bpk")
    layer = nn.TransformerEncoderLayer(2, 1, 4, norm_first=True).eval()
    traced = torch.jit.trace(layer, torch.ones(1, 1, 2))
    with pytest.raises(ModelError, match="nothing states whether the norms of this "):
        bs.save(traced, tmp_path / "b.bpk")
    bs.save(torch.jit.script(layer), tmp_path / "b.bpk")


def test_filters_see_the_class_from_which_a_module_was_scripted() -> None:
    found = bs.collect(torch.jit.script(layers()))
    assert [tensor.container_stack[-1] for tensor in found][:4] == ["Struct:Linear"] * 2 + ["Struct:LayerNorm"] * 2
