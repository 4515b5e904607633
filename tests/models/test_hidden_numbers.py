"""Numbers that a model holds outside of its tensors: every verb lists the same, and none is lost."""

from __future__ import annotations

import array
import collections
import dataclasses
import functools
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import burnstore as bs

KEPT: list[Any] = []


class Net(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        nn.init.ones_(self.fc.weight)
        nn.init.ones_(self.fc.bias)
        for name, value in attributes.items():
            setattr(self, name, value)


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def hook(self, *_: Any) -> None:
        """Do nothing."""


@dataclasses.dataclass
class Data:
    held: Any


Named = collections.namedtuple("Named", "held")


def of_parameter(tensor: Any) -> Any:
    model = Net()
    model.fc.weight.scale = tensor
    return model


def in_parameter_settings(tensor: Any) -> Any:
    model = Net()
    model.fc.bias.settings = {"scales": [tensor]}
    return model


def of_buffer(tensor: Any) -> Any:
    model = Net()
    model.register_buffer("b", torch.zeros(1))
    model.b.extra = tensor
    return model


def transient(tensor: Any) -> Any:
    model = Net()
    model.register_buffer("b", tensor, persistent=False)
    return model


def hooked(hook: Any) -> Any:
    model = Net()
    model.register_forward_hook(hook)
    return model


def weakly(tensor: Any) -> Any:
    KEPT.append(tensor)
    return Net(d=weakref.ref(tensor))


def cached(tensor: Any) -> Any:
    @functools.lru_cache
    def found(_: int) -> Any:
        return tensor

    found(1)
    return Net(d=found)


def of_class(tensor: Any) -> Any:
    return type("WithTensor", (Net,), {"table": tensor, "__module__": __name__})()


def with_default(tensor: Any) -> Any:
    def act(x: Any, held: Any = tensor) -> Any:
        return x + held

    return Net(act=act)


HIDING: dict[str, Callable[[Any], Any]] = {
    "attribute of a parameter": of_parameter,
    "settings of a parameter": in_parameter_settings,
    "attribute of a buffer": of_buffer,
    "buffer that is not persistent": transient,
    "partial": lambda tensor: Net(f=functools.partial(torch.add, tensor)),
    "keyword of a partial": lambda tensor: Net(f=functools.partial(torch.add, other=tensor)),
    "storage": lambda tensor: Net(s=tensor.untyped_storage()),
    "NumPy scalar": lambda tensor: Net(s=tensor.numpy()[0]),
    "NumPy array": lambda tensor: Net(s=tensor.numpy()),
    "attribute": lambda tensor: Net(s=tensor),
    "list": lambda tensor: Net(s=[tensor]),
    "dict with other keys": lambda tensor: Net(s={(1, 2): tensor}),
    "keys of a dict": lambda tensor: Net(s={tensor: 1}),
    "closure of a hook": lambda tensor: hooked(lambda module, given, output: output + tensor),
    "method as a hook": lambda tensor: hooked(Slotted(tensor).hook),
    "partial as a hook": lambda tensor: hooked(functools.partial(print, tensor)),
    "closure": lambda tensor: Net(act=lambda x: x + tensor),
    "default": with_default,
    "method": lambda tensor: Net(act=Slotted(tensor).hook),
    "dataclass": lambda tensor: Net(d=Data(tensor)),
    "named tuple": lambda tensor: Net(d=Named(tensor)),
    "slots": lambda tensor: Net(d=Slotted(tensor)),
    "set": lambda tensor: Net(d={tensor}),
    "generator": lambda tensor: Net(d=(each for each in [tensor])),
    "iterator": lambda tensor: Net(d=iter([tensor])),
    "weak reference": weakly,
    "deque": lambda tensor: Net(d=collections.deque([tensor])),
    "namespace": lambda tensor: Net(d=types.SimpleNamespace(held=tensor)),
    "mapping": lambda tensor: Net(d=types.MappingProxyType({"t": tensor})),
    "cache": cached,
    "class": of_class,
    "array of Python": lambda tensor: Net(d=array.array("f", tensor.tolist())),
    "buffer of Python": lambda tensor: Net(d=memoryview(tensor.numpy())),
    "module in a list": lambda tensor: Net(d=[nn.ParameterList([nn.Parameter(tensor)])]),
}


@pytest.mark.parametrize("hide", HIDING.values(), ids=HIDING)
def test_hidden_numbers_are_listed_and_compared(tmp_path: Path, hide: Callable[[Any], Any]) -> None:
    model, same, other = hide(torch.ones(2)), hide(torch.ones(2)), hide(torch.full((2,), 3.0))
    saved = bs.save(model, tmp_path / "a.safetensors")
    assert len(saved.left_out) == 1
    assert bs.collect(model).left_out == saved.left_out
    assert bs.save(bs.collect(model), tmp_path / "b.safetensors").left_out == saved.left_out
    assert not bs.diff(model, other).is_equal
    compared = bs.diff(model, same)
    is_storage = hide is HIDING["storage"]
    assert compared.is_equal is not is_storage, compared  # what a storage holds is not known
    (name,) = saved.left_out
    to_file = bs.diff(model, tmp_path / "a.safetensors")
    assert to_file.is_equal == (hide is transient)  # no file has buffers that are not persistent
    assert any(name in note for note in (*to_file.uncompared, *to_file.notes))
    assert bs.diff(model, model).is_equal


def test_what_is_written_is_not_hidden(tmp_path: Path) -> None:
    model = Net()
    model.alias, model.row, model.raw = model.fc.weight, model.fc.weight[0], model.fc.bias.untyped_storage()
    model.rate, model.name, model.act = 0.5, "net", torch.relu
    assert not bs.save(model, tmp_path / "a.safetensors").left_out
    assert not bs.collect(model).left_out


def test_numbers_beside_named_tensors_are_listed(tmp_path: Path) -> None:
    class Marked(np.ndarray):  # type: ignore[type-arg]
        pass

    marked = np.ones(2).view(Marked)
    marked.extra = np.ones(3)  # type: ignore[attr-defined]
    assert list(bs.save({"w": marked}, tmp_path / "a.safetensors").left_out) == ["w.extra"]
    stored = {"w": torch.ones(2), "s": torch.ones(2).untyped_storage()}
    assert list(bs.save(stored, tmp_path / "b.safetensors").left_out) == ["s"]


def test_arrays_that_are_no_tensors_make_files_unequal(tmp_path: Path) -> None:
    for name, value in (("a", [1, {}]), ("b", [2, {}])):
        np.savez(tmp_path / f"{name}.npz", w=np.ones(2), odd=np.array(value, object), wide=np.ones(2, np.longdouble))
    found = bs.diff(tmp_path / "a.npz", tmp_path / "b.npz")
    assert not found.is_equal
    assert sum("odd" in note for note in found.uncompared) == 2
    assert sum("wide" in note for note in found.uncompared) == 2
    for name in "ab":
        np.savez(tmp_path / f"only_{name}.npz", odd=np.array(["text"]))
    assert not bs.diff(tmp_path / "only_a.npz", tmp_path / "only_b.npz").is_equal
    assert not bs.diff({}, {}).is_equal


def test_other_parts_of_checkpoints_are_compared_before_they_are_called_equal(tmp_path: Path) -> None:
    for name, momentum in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        parts = {"state_dict": {"w": torch.ones(2)}, "optimizer": {"m": torch.full((2,), momentum)}}
        torch.save(parts, tmp_path / f"{name}.pt")
    assert bs.diff(tmp_path / "a.pt", tmp_path / "b.pt").is_equal
    found = bs.diff(tmp_path / "a.pt", tmp_path / "c.pt")
    assert not found.is_equal
    assert 'top_level_key=""' in found.uncompared[0]
    assert [tensor.status for tensor in found.tensors] == ["equal"]
    assert bs.diff(tmp_path / "a.pt", tmp_path / "c.pt", top_level_key="state_dict").is_equal


@pytest.mark.parametrize("verb", [bs.inspect, bs.scan, bs.open])
def test_verbs_of_files_refuse_a_model(verb: Any) -> None:
    with pytest.raises(TypeError, match="a path"):
        verb(Net())


@pytest.mark.parametrize("place", HIDING)
def test_verify_and_report_walk_a_model_as_save_does(place: str) -> None:
    model = HIDING[place](torch.ones(1))
    collected = bs.collect(model)
    names = [snapshot.path for snapshot in collected]
    verified, reported = bs.verify(model), bs.report(model).files[0]
    assert [tensor.name for tensor in verified.tensors] == names
    assert [tensor.name for tensor in reported.inspection.tensors] == names
    for notes in (verified.notes, reported.notes):
        assert {note.subject for note in notes} == set(collected.left_out)
    hidden = [why for why in collected.left_out.values() if "not persistent" not in why]
    assert verified.ok == (not hidden)
    assert len(verified.warnings) == len(hidden)


def test_verify_checks_the_values_of_a_model() -> None:
    model = Net()
    assert bs.verify(model)
    assert bs.verify(model).layout == "torch"
    model.twin = nn.Linear(2, 2)
    model.twin.weight = model.fc.weight
    digests = {tensor.name: tensor.digest for tensor in bs.verify(model, digests=True).tensors}
    assert digests["twin.weight"] == digests["fc.weight"] != digests["twin.bias"]
    assert bs.verify(model, digests=True).digest is None  # there is no file
    with torch.no_grad():
        model.fc.bias[0] = torch.inf
    found = bs.verify(model)
    assert not found
    assert [tensor.name for tensor in found.tensors if not tensor.is_finite] == ["fc.bias"]
    assert bs.report(model).found
    meta = bs.verify(nn.Linear(2, 2, device="meta"))
    assert not meta.is_whole
    assert all("meta device" in str(tensor.error) for tensor in meta.tensors)
    assert bs.verify({"w": np.ones(2)})
    assert bs.verify(bs.collect(Net()))


def test_verify_and_report_of_no_model_are_refused(tmp_path: Path) -> None:
    for verb in (bs.verify, bs.report):
        for given in (None, 5, object(), {}, [], nn.ReLU()):
            with pytest.raises(TypeError, match="model"):
                verb(given)
        assert verb({}, allow_empty=True)
    bs.save(Net(), tmp_path / "m.bpk")
    with bs.open(tmp_path / "m.bpk") as file, pytest.raises(TypeError, match="pass the path"):
        bs.verify(file)  # its tensors alone would leave out the checks of the format
    with pytest.raises(TypeError, match="digests=True"):
        bs.verify(Net(), digest="sha256:" + 64 * "0")


def test_a_report_compares_a_model_with_a_file_of_another_layout(tmp_path: Path) -> None:
    model = Net()
    bs.save(model, tmp_path / "m.bpk")
    assert not bs.report(model, tmp_path / "m.bpk").found
    found = bs.report(tmp_path / "m.bpk", Net(hidden=torch.ones(1)), output=tmp_path / "page.html")
    assert found.found
    assert "left out: hidden" in str(found.diff)
    assert "left out: hidden" in (tmp_path / "page.html").read_text()
