"""What is worked out once for modules that are alike is not taken for those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import burnstore as bs
from burnstore.errors import ModelError
from burnstore.models.torch.binding import kinds, walk
from burnstore.models.torch.kinds import kind_of
from burnstore.transforms.layout import Fill, ModuleKind, torch_map

LINEAR = ModuleKind("Linear")
NORM = ModuleKind("LayerNorm", (("axes", 1), ("features", 4)))


def test_modules_that_are_alike_have_one_map() -> None:
    assert torch_map(LINEAR, {"weight": (2, 3)}) is torch_map(ModuleKind("Linear"), {"weight": (2, 3)})


@pytest.mark.parametrize(
    ("tensors", "options"),
    [
        ({"weight": (2, 3), "bias": (2,)}, {}),
        ({"weight": (2, 3)}, {"all_biases": True}),
        ({"weight": (5, 3)}, {"all_biases": True}),
    ],
)
def test_modules_with_other_tensors_have_another_map(tensors: Any, options: Any) -> None:
    found = torch_map(LINEAR, tensors, **options)
    assert found != torch_map(LINEAR, {"weight": (2, 3)})
    assert [link.torch for link in found.links] == list(tensors)
    assert found.fills == ((Fill("bias", tensors["weight"][:1], 0.0),) if options else ())


def test_modules_of_other_shapes_have_other_constants() -> None:
    fills = [torch_map(ModuleKind("LayerNorm", (("features", width),)), {}).fills for width in (4, 5)]
    assert [fill.shape for found in fills for fill in found] == [(4,), (4,), (5,), (5,)]


def test_what_is_refused_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ModelError, match="it normalises over several axes"):
            torch_map(NORM, {"weight": (3, 4)})
        assert torch_map(NORM, {"weight": (4,)}).links[0].burn == "gamma"
        with pytest.raises(ModelError, match="Burn's pads with zeros only"):
            torch_map(ModuleKind("Conv1d", (("padding_mode", True),)), {"weight": (2, 2, 3)})
        assert torch_map(ModuleKind("Conv1d"), {"weight": (2, 2, 3)}).owner == "Conv1d"


def test_a_map_has_the_parts_of_a_tensor_in_their_order() -> None:
    shapes = {"weight": (8, 2), "bias": (8,)}
    wide = {f"{tensor}_{side}_l0": shape for tensor, shape in shapes.items() for side in ("ih", "hh")}
    found = dict(torch_map(ModuleKind("LSTM"), wide).by_torch_name)
    assert found.keys() == wide.keys()
    assert all([link.part for link in links] == [0, 1, 2, 3] for links in found.values())


class Delegating(nn.Conv1d):
    """One that finds its options elsewhere than in itself."""

    def __init__(self, told: Any) -> None:
        super().__init__(2, 2, 3)
        del self.padding_mode
        self.__dict__["told"] = told

    def __getattr__(self, name: str) -> Any:
        return self.told.padding_mode if name == "padding_mode" else super().__getattr__(name)


class Opaque(Delegating):
    """One that may find its tensors elsewhere, too, as far as its code shows."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["told"], name) if name == "padding_mode" else super().__getattr__(name)


def test_options_count_wherever_a_module_has_them() -> None:
    circular = nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular")
    of_class = type("Circular", (nn.Linear,), {"padding_mode": "circular"})(2, 2)
    of_instance = nn.Linear(2, 2)
    of_instance.padding_mode = "circular"  # type: ignore[assignment]  # a str is no tensor, and may be set all the same
    for module in (circular, of_class, of_instance, Delegating(circular)):
        kind = kind_of(module)
        assert kind is not None and kind.option("padding_mode") is True
    plain = nn.Conv1d(2, 2, 3)
    assert [kind_of(module) for module in (plain, Delegating(plain))] == [ModuleKind("Conv1d")] * 2
    assert kind_of(nn.Linear(2, 2)) == LINEAR


class Doubled(nn.Conv1d):
    """One whose weight is not the one that is kept."""

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return value * 2 if name == "weight" else value


class Replaced(nn.Conv1d):
    """One that gives another weight than the one that is kept."""

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            return super().__getattr__(name).abs()
        return super().__getattr__(name)


class BelowDoubled(Doubled):
    """One that passes on what its base changes."""

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)


class Scaled(nn.Linear):
    """One that computes with another weight."""

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, self.weight * 2, self.bias)


class BelowScaled(Scaled):
    """One that calls the forward of a class that is not the layer."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) + 1


class Around(nn.Linear):
    """One that calls the layer's own forward."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) + 1


class BelowAround(Around):
    """One that calls a forward that calls the layer's own."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


@pytest.mark.parametrize("kind", [Doubled, Replaced, BelowDoubled])
def test_a_module_that_changes_the_tensors_it_is_asked_for_is_of_no_known_kind(kind: Any) -> None:
    assert kind_of(kind(2, 2, 3)) == ModuleKind(
        f"{kind.__name__}, which derives from Conv1d and has a forward of its own"
    )


def test_every_forward_that_is_run_counts() -> None:
    for kind in (Scaled, BelowScaled):
        unknown = ModuleKind(f"{kind.__name__}, which derives from Linear and has a forward of its own")
        assert kind_of(kind(2, 2)) == unknown
    assert kind_of(Around(2, 2)) == kind_of(BelowAround(2, 2)) == LINEAR


def test_a_module_whose_tensors_may_come_from_elsewhere_is_of_no_known_kind() -> None:
    unknown = ModuleKind("Opaque, which derives from Conv1d and has a forward of its own")
    assert kind_of(Opaque(nn.Conv1d(2, 2, 3))) == unknown


def test_kinds_follow_a_module_that_changes() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 6)
    assert kinds(layer)[""] == ModuleKind("TransformerEncoderLayer", (("norm_first", False),))
    layer.norm_first = True
    assert kinds(layer)[""] == ModuleKind("TransformerEncoderLayer", (("norm_first", True),))


def test_layers_that_differ_come_back_as_they_were(tmp_path: Path) -> None:
    def build() -> nn.Sequential:
        sizes = [(3, 4, True), (4, 4, False), (4, 4, True), (4, 4, False), (4, 3, False)]
        return nn.Sequential(*(nn.Linear(given, made, bias=bias) for given, made, bias in sizes))

    saved, loaded = build(), build()
    bs.save(saved, tmp_path / "model.bpk")
    bs.load(loaded, tmp_path / "model.bpk")
    assert all(map(torch.equal, saved.state_dict().values(), loaded.state_dict().values()))


def test_tensors_that_begin_at_one_address_are_one_only_if_they_are_the_same() -> None:
    memory = torch.arange(12.0)
    held = {
        "whole": memory,
        "again": memory.view(12),
        "part": memory[:4],
        "matrix": memory.view(3, 4),
        "turned": memory.view(4, 3).t(),
        "part_again": memory[:4],
        "bits": memory.view(torch.int32),
    }
    slots = {slot.path: slot.identity() for slot in walk(held)}
    assert slots["whole"] == slots["again"]
    assert slots["part"] == slots["part_again"]
    assert len(set(slots.values())) == len(slots) - 2
