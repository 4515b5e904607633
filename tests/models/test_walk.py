from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from burnstore import nn
from burnstore.errors import ModelError
from burnstore.models.plain import left_out, walk
from burnstore.pipeline.save import collect


def paths(model, **options):
    return [slot.path for slot in walk(model, **options)]


def containers(model):
    return {slot.path: slot.container_stack for slot in walk(model)}


class Linear:
    def __init__(self, d_input=2, d_output=3):
        self.weight = np.zeros((d_input, d_output), np.float32)
        self.bias = np.zeros(d_output, np.float32)
        self.d_input = d_input
        self._cache = np.zeros(9)


@dataclass
class Block:
    first: Linear = field(default_factory=Linear)
    second: Linear | None = None
    scale: np.ndarray = field(default_factory=lambda: np.ones(1, np.float32))


@dataclass(frozen=True)
class Frozen:
    weight: np.ndarray


class Slotted:
    __slots__ = ("absent", "bias", "weight")

    def __init__(self):
        self.weight = np.zeros(2)
        self.bias = np.zeros(2)


def test_public_attributes_are_walked_in_their_order():
    assert paths(Linear()) == ["weight", "bias"]
    assert containers(Linear())["weight"] == ("Struct:Linear",)


@pytest.mark.parametrize("container", [list, dict])
def test_a_module_that_is_a_container_as_well_is_walked_as_a_module(container):
    class Both(nn.Module, container):
        def __init__(self):
            super().__init__()
            self.weight = np.zeros(2)

    assert containers(Both()) == {"weight": ("Struct:Both",)}


def test_dataclasses_lists_tuples_dicts_and_none_nest():
    model = {"blocks": [Block(second=Linear()), Block()], "pair": (Linear(), np.zeros(1)), "none": None}
    assert paths(model) == [
        "blocks.0.first.weight", "blocks.0.first.bias", "blocks.0.second.weight", "blocks.0.second.bias",
        "blocks.0.scale",
        "blocks.1.first.weight", "blocks.1.first.bias", "blocks.1.scale",
        "pair.0.weight", "pair.0.bias", "pair.1",
    ]  # fmt: skip
    assert containers(model)["blocks.0.first.weight"] == ("Dict", "Vec", "Struct:Block", "Struct:Linear")
    assert containers(model)["pair.1"] == ("Dict", "Tuple")


def test_slots_frozen_dataclasses_and_namespaces_are_models_too():
    assert paths(Slotted()) == ["bias", "weight"]
    assert paths(Frozen(np.zeros(1))) == ["weight"]
    assert paths(SimpleNamespace(a=np.zeros(1))) == ["a"]
    assert paths(OrderedDict(a=np.zeros(1))) == ["a"]


def test_constants_and_code_are_not_tensors():
    numbers = {"a": 1, "b": 2.0, "c": "x", "d": True, "e": None, "f": np.float32(1), "g": range(3)}
    model = SimpleNamespace(**numbers, h=print, i=Linear, j=lambda: 0)
    assert paths(model) == []


def test_names_with_dots_slashes_and_unicode_are_kept():
    model = {"a.b": np.zeros(1), "c/d": np.zeros(1), "层": [np.zeros(1)], "": np.zeros(1)}
    assert paths(model) == ["a.b", "c/d", "层.0", ""]


def test_a_dict_with_keys_that_are_not_text_is_refused():
    with pytest.raises(ModelError, match="must be strings"):
        paths({"a": {1: np.zeros(1)}})


def test_a_model_that_contains_itself_is_refused():
    model = SimpleNamespace(weight=np.zeros(1))
    model.parent = [model]
    with pytest.raises(ModelError, match="contains itself") as caught:
        paths(model)
    assert caught.value.tensor == "parent.0"


def test_very_deep_models_are_walked():
    model = np.zeros(1)
    for _ in range(20_000):
        model = [model]
    assert len(paths(model)) == 1


def test_what_is_shared_is_met_under_each_of_its_paths():
    shared = Linear()
    model = SimpleNamespace(a=shared, b=shared)
    slots = list(walk(model))
    assert [slot.path for slot in slots] == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert slots[0].identity() == slots[2].identity() != slots[1].identity()


def test_a_single_tensor_is_not_a_model():
    with pytest.raises(TypeError):
        paths(np.zeros(1))
    with pytest.raises(TypeError):
        collect("model")
    with pytest.raises(TypeError):
        collect(None)


class Feature(nn.Enum):
    Base = nn.variant(nn.Linear)
    Raw = nn.variant()


class Holding(nn.Module):
    field_names = {"type_": "r#type"}  # noqa: RUF012  # as documented
    skipped = frozenset({"scratch"})

    def __init__(self):
        self.feature = Feature.Base(nn.Linear(2, 3))
        self.raw = Feature.Raw(nn.Param([2]))
        self.type_ = nn.Param([1])
        self.array = nn.FixedArray([nn.Linear(1, 1, bias=False)])
        self.scratch = np.zeros(5)


def test_enum_variants_are_segments_unless_they_are_skipped():
    assert paths(Holding()) == ["feature.Base.weight", "feature.Base.bias", "raw.Raw", "r#type", "array.0.weight"]
    assert paths(Holding(), skip_enum_variants=True)[:3] == ["feature.weight", "feature.bias", "raw"]
    stacks = containers(Holding())
    assert stacks["feature.Base.weight"] == ("Struct:Holding", "Enum:Feature", "Struct:Linear")
    assert stacks["raw.Raw"] == ("Struct:Holding", "Enum:Feature")
    assert stacks["array.0.weight"] == ("Struct:Holding", "Array", "Struct:Linear")


def test_enum_variants_check_what_they_hold():
    with pytest.raises(TypeError, match="holds Linear"):
        Feature.Base(nn.LayerNorm(2))
    with pytest.raises(ValueError, match="no variant"):
        Feature("Other", None)


def test_snapshots_carry_ids_of_parameters_and_none_of_plain_arrays():
    module = nn.Linear(2, 3)
    assert collect(module)[0].param_id == module.weight.id
    assert collect(Linear())[0].param_id is None


def test_collecting_draws_nothing():
    module = nn.Linear(2, 3)
    snapshots = collect(module)
    assert not module.weight.is_initialized
    snapshots[0].numpy()
    assert module.weight.is_initialized


# --- what a walk leaves out (law 2: written, refused or listed) -------------------------------------------------------


class Hiding:
    def __init__(self, **hidden):
        self.weight = np.zeros((2, 3), np.float32)
        self.__dict__.update(hidden)


class Mangled:
    def __init__(self):
        self.weight = np.zeros(1)
        self.__secret = np.ones(2)


class PrivateSlots:
    __slots__ = ("_state", "weight")

    def __init__(self):
        self.weight, self._state = np.zeros(1), np.ones(2)


class Labelled(dict):
    pass


class Rows(list):
    pass


class Choice(nn.Enum):
    Only = nn.variant()


def with_attribute(owner, **attributes):
    owner.__dict__.update(attributes)
    return owner


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Hiding(_cache=np.ones(2)), {"_cache": "1 tensor in a private attribute"}),
        (Hiding(_parts=[np.ones(2), {"a": np.ones(1)}]), {"_parts": "2 tensors in a private attribute"}),
        (Hiding(_inner=Linear()), {"_inner": "3 tensors in a private attribute"}),
        (Hiding(_param=nn.Param([2])), {"_param": "1 tensor in a private attribute"}),
        (Mangled(), {"_Mangled__secret": "1 tensor in a private attribute"}),
        (PrivateSlots(), {"_state": "1 tensor in a private attribute"}),
        (
            with_attribute(Labelled(w=np.zeros(1)), extra=np.ones(2)),
            {"extra": "1 tensor in an attribute of a container"},
        ),
        (
            SimpleNamespace(rows=with_attribute(Rows([np.zeros(1)]), scale=np.ones(2))),
            {"rows.scale": "1 tensor in an attribute of a container"},
        ),
        (Hiding(group=frozenset([Linear()])), {"group.(set)": "3 tensors in a set, which has no order"}),
        (
            Hiding(choice=with_attribute(Choice.Only(nn.Param([1])), extra=np.ones(1))),
            {"choice.extra": "1 tensor in an attribute of a struct that does not store it"},
        ),
        (
            Hiding(ff=nn.PositionWiseFeedForward(2, 4, activation="PRelu")),
            {"ff.activation": "1 tensor in an attribute of a struct that does not store it"},
        ),
        (
            {"layer": {"w": np.zeros(1), "lr": 0.1, "name": "x", "none": None}, "steps": [1, 2, 3, 4, np.zeros(1)]},
            dict.fromkeys(
                ["layer.lr", "layer.name", "layer.none", "steps.0", "steps.1", "steps.2", "steps.3"], "not a tensor"
            ),
        ),
        ({"w": np.zeros(1), "epoch": 3}, {"epoch": "not a tensor"}),
    ],
)
def test_tensors_and_items_that_are_left_out_are_listed(model, expected):
    assert left_out(model) == expected


def test_what_is_written_under_another_name_is_not_left_out():
    weight = np.zeros((2, 3))
    model = SimpleNamespace(weight=weight, _alias=weight, _view=weight.T[1:], _again=[weight[0]])
    model._parent = {"me": model}
    model._empty = np.zeros(0)
    assert left_out(model) == {}
    param = nn.Param([2])
    assert left_out(SimpleNamespace(a=param, _b=param)) == {}


def test_settings_of_objects_and_skipped_fields_are_not_left_out():
    assert left_out(SimpleNamespace(a=np.zeros(1), sizes=[1, 2], name="x", config={"lr": 0.1})) == {}
    assert left_out(Holding()) == {}
    for model in (nn.TransformerEncoder(4, 8, 2, 2), nn.BiLstm(2, 3, True), nn.BatchNorm(3)):
        assert left_out(model) == {}


def test_hidden_cycles_depth_and_hostile_attributes_end():
    class Hostile:
        def __init__(self):
            self.weight = np.zeros(1)
            self._deep = self._loop = []
            self._loop.append(self._loop)

        @property
        def broken(self):
            raise RuntimeError

    model = Hostile()
    for _ in range(50_000):
        model._deep = [model._deep]
    assert left_out(model) == {}
    model._loop.append(np.ones(3))
    assert left_out(model) == {"_deep": "1 tensor in a private attribute"}  # _loop is a part of it


def test_a_shared_owner_is_listed_once():
    shared = Hiding(_cache=np.ones(2))
    assert left_out({"a": shared, "b": [shared]}) == {"a._cache": "1 tensor in a private attribute"}


def test_a_masked_array_is_refused():
    with pytest.raises(ModelError, match="mask of a masked array"):
        paths({"w": np.ma.array([1.0, 2.0], mask=[True, False])})
