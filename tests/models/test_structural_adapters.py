"""Adapters that see a module as a whole: all of its tensors, once, wherever in the model they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import TensorSnapshot, nn
from burnstore.errors import DuplicateNameError, MissingTensorsError


def tensor(path: str, array: Any) -> TensorSnapshot:
    return TensorSnapshot.from_numpy(path, np.asarray(array))


class Looking(bs.ModuleAdapter):
    """Changes nothing, and remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, list[str]]] = []

    def adapt_module(self, module_type: str, tensors: Mapping[str, TensorSnapshot]) -> Mapping[str, TensorSnapshot]:
        self.shown.append((module_type, list(tensors)))
        return tensors


class Fuse(bs.ModuleAdapter):
    """Weight and bias of a Scale as one tensor, changed in the very mapping that was given."""

    def adapt_module(self, module_type: str, tensors: Any) -> Mapping[str, TensorSnapshot]:
        if module_type == "Struct:Scale":
            weight, bias = tensors.pop("weight"), tensors.pop("bias")
            tensors["fused"] = TensorSnapshot.from_closure(
                "fused", weight.dtype, (3,), lambda: np.concatenate([weight.numpy(), bias.numpy()])
            )
        return tensors


class Split(bs.ModuleAdapter):
    def adapt_module(self, module_type: str, tensors: Mapping[str, TensorSnapshot]) -> Mapping[str, TensorSnapshot]:
        if module_type != "Struct:Scale" or "fused" not in tensors:
            return tensors
        fused = tensors["fused"]
        return {
            "weight": TensorSnapshot.from_closure("weight", fused.dtype, (2,), lambda: fused[:2]),
            "bias": TensorSnapshot.from_closure("bias", fused.dtype, (1,), lambda: fused[2:]),
        }


class Scale(nn.Module):
    def __init__(self) -> None:
        self.weight = nn.Param.from_data([1.0, 2.0])
        self.inner = nn.Linear(1, 1)
        self.bias = nn.Param.from_data([3.0])


def test_a_module_is_shown_whole_though_another_stands_between_its_tensors() -> None:
    looking = Looking()
    collected = bs.collect({"scale": Scale()}, adapter=looking)
    assert looking.shown == [("Struct:Scale", ["weight", "bias"]), ("Struct:Linear", ["weight", "bias"])]
    assert [t.path for t in collected] == ["scale.weight", "scale.inner.weight", "scale.inner.bias", "scale.bias"]


def test_a_layer_with_a_low_rank_adapter_is_shown_whole() -> None:
    model = {"fc": nn.Linear(4, 4)}
    nn.apply_lora(model, 2, 4.0)
    looking = Looking()
    bs.collect(model, adapter=looking)
    assert looking.shown == [("Struct:Linear", ["weight", "bias"]), ("Struct:LoraAdapter", ["a", "b"])]


def test_what_an_adapter_fused_another_splits_and_the_file_has_it_in_the_first_place() -> None:
    store = bs.BurnpackStore.from_bytes(None).with_to_adapter(Fuse())
    store.save({"scale": Scale()})
    with bs.open(store.get_bytes()) as f:
        assert list(f) == ["scale.fused", "scale.inner.weight", "scale.inner.bias"]
        assert f["scale.fused"].numpy().tolist() == [1, 2, 3]
    target = Scale()
    target.weight.set(np.zeros(2, np.float32))
    assert bs.BurnpackStore.from_bytes(store.get_bytes()).with_from_adapter(Split()).load({"scale": target}).is_complete
    assert (target.weight.value.tolist(), target.bias.value.tolist()) == ([1, 2], [3])


def test_two_tensors_of_one_path_are_both_there_or_refused_and_never_one_of_them() -> None:
    plain = {"a.b": np.zeros(1), "a": {"b": np.ones(1)}}
    assert len(bs.collect(plain, adapter=Looking())) == 2

    class Clash(nn.Module):
        field_names = {"other": "weight"}  # noqa: RUF012  # read only

        def __init__(self) -> None:
            self.weight = nn.Param([1])
            self.other = nn.Param([1])

    with pytest.raises(DuplicateNameError, match="weight"):
        bs.collect(Clash(), adapter=Looking())


def test_an_adapter_that_gives_what_is_there_already_is_refused() -> None:
    class Deeper(bs.ModuleAdapter):
        def adapt_module(self, module_type: str, tensors: Mapping[str, TensorSnapshot]) -> Any:
            return {"inner.bias": tensors["fused"]} if "fused" in tensors else tensors

    source = [tensor("scale.fused", np.zeros(1, np.float32)), tensor("scale.inner.bias", np.ones(1, np.float32))]
    with pytest.raises(DuplicateNameError, match=r"scale\.inner\.bias"):
        bs.apply({"scale": Scale()}, source, adapter=Deeper())


class Gates(bs.ModuleAdapter):
    """A file keeps the biases of a recurrent layer's gate in one vector."""

    def adapt_module(self, module_type: str, tensors: Mapping[str, TensorSnapshot]) -> Any:
        if module_type != "Struct:Rnn" or "bias" not in tensors:
            return tensors
        bias = tensors["bias"]
        return {
            f"gate.{part}_transform.bias": TensorSnapshot.from_closure(
                part, bias.dtype, (2,), lambda at=at: bias[2 * at : 2 * at + 2]
            )
            for at, part in enumerate(("input", "hidden"))
        }


class Layer(nn.Enum):
    Plain = nn.variant()


@pytest.mark.parametrize("skip", [False, True], ids=["variant in the path", "variant skipped"])
def test_a_module_inside_an_enum_is_found_with_and_without_its_variant(skip: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.raw = Layer.Plain(nn.Param([1]))
            self.recurrent = Layer.Plain(nn.Rnn(1, 2, True))

    model = Model()
    path = "recurrent.bias" if skip else "recurrent.Plain.bias"
    result = bs.apply(model, [tensor(path, np.float32([1, 2, 3, 4]))], adapter=Gates(), skip_enum_variants=skip)
    assert len(result.applied) == 2 and result.unused == []
    assert model.recurrent.payload.gate.hidden_transform.bias.value.tolist() == [3, 4]


def test_names_with_dots_lead_no_adapter_astray() -> None:
    looking = Looking()
    bs.apply(
        {"a.b": nn.Linear(1, 1)}, [tensor("a.b.weight", np.zeros((1, 1), "f4")), tensor("a.x", [1])], adapter=looking
    )
    assert looking.shown == [("Struct:Linear", ["weight"])]


def test_a_rename_that_matched_nothing_is_in_the_report_of_a_load_that_failed() -> None:
    data = bs.serialize({"x": np.zeros(2, np.float32)}, format="burnpack")
    with pytest.raises(MissingTensorsError, match=r"\^typo") as caught:
        bs.load({"w": np.zeros(2, np.float32)}, data, rename=[*{"^typo": "w"}.items()], filter="^mistake")
    assert len(caught.value.result.notes) == 2
