"""What is given to save is written, refused, or named in the result (law 2)."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.models.torch import binding

torch = pytest.importorskip("torch")
nn = torch.nn


def ones(count: int = 2) -> Any:
    return np.ones(count, np.float32)


class Labelled(dict):  # type: ignore[type-arg]
    pass


class ItemsAsAttributes(dict):  # type: ignore[type-arg]
    __getattr__ = dict.__getitem__  # raises KeyError, which getattr() and hasattr() let through


def with_attribute(owner: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(owner, name, value)
    return owner


class Net(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.loose = torch.ones(3)
        self.forgotten = [nn.Linear(2, 2)]  # torch wants a ModuleList here
        self._cache = {"a": torch.ones(2)}
        self.alias = self.fc.weight.data[0]
        self.sizes = [1, 2]
        self.register_buffer("mask", torch.ones(2), persistent=False)


class Slotted(nn.Linear):  # type: ignore[misc, name-defined]
    __slots__ = ("cache",)


class Hidden:
    __slots__ = ("__cache", "w")

    def __init__(self) -> None:
        self.w, self.__cache = ones(), ones(3)


class Script(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.loose = torch.ones(2)
        self.cache = [torch.ones(2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + self.loose + self.cache[0]  # type: ignore[no-any-return]


class Key(str, enum.Enum):
    A = "weight"


def unsaved_buffer() -> Any:
    module = nn.Linear(2, 2)
    module.register_buffer("cache", torch.ones(2), persistent=False)
    return module


ATTRIBUTE = "in an attribute that is no parameter, buffer or module"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"m": {"w": ones(), "none": None}}, {"m.none": "it is None"}),
        ({"m": {"w": ones(), "price": decimal.Decimal(1)}}, {"m.price": "not a tensor"}),
        ({"m": {"w": ones(), "day": datetime.date(2020, 1, 1)}}, {"m.day": "not a tensor"}),
        ({"m": {"w": ones(), "set": {1, 2}}}, {"m.set": "not a tensor"}),
        ({"m": {"w": ones(), "settings": SimpleNamespace(lr=1)}}, {"m.settings": "not a tensor"}),
        ({"m": {"w": ones(), "code": len}}, {"m.code": "not a tensor"}),
        ({"m": {"w": torch.ones(2), "code": len}}, {"m.code": "not a tensor"}),
        (SimpleNamespace(d={"w": ones(), "lr": 0.1}), {"d.lr": "not a tensor"}),
        (SimpleNamespace(w=ones(), _hidden=ones(3)), {"_hidden": "1 tensor in a private attribute"}),
        (SimpleNamespace(w=torch.ones(2), _h=torch.ones(3)), {"_h": "1 tensor in a private attribute"}),
        (with_attribute(Labelled(w=ones()), extra=ones()), {"extra": "1 tensor in an attribute of a container"}),
        (
            with_attribute(Labelled(m={"w": ones()}), extra=ones()),
            {"extra": "1 tensor in an attribute of a container"},
        ),
        (with_attribute(collections.OrderedDict(w=ones()), settings=3), {}),
        (ItemsAsAttributes(a=ones(), b=ItemsAsAttributes(c=ones())), {}),
        (
            Net(),
            {
                "loose": f"1 tensor {ATTRIBUTE}",
                "forgotten": f"2 tensors {ATTRIBUTE}",
                "_cache": f"1 tensor {ATTRIBUTE}",
                "mask": "1 tensor in a buffer that is not persistent",
            },
        ),
        (Hidden(), {"_Hidden__cache": "1 tensor in a private attribute"}),
        (nn.Sequential(nn.LSTM(2, 2), nn.BatchNorm1d(2)), {}),
        *(
            (
                nn.Sequential(nn.Linear(2, 2), with_attribute(kind(2, 2), cache=held)),
                {"1.cache": f"1 tensor {ATTRIBUTE}"},
            )
            for kind in (nn.Linear, Slotted)
            for held in (torch.ones(3), ones(), [ones()], (1, ones()), (1, (ones(),)), {"a": ones()}, {1, nn.PReLU()})
        ),
        (nn.Sequential(nn.Linear(2, 2), unsaved_buffer()), {"1.cache": "1 tensor in a buffer that is not persistent"}),
        (nn.Sequential(with_attribute(nn.Linear(2, 2), _sizes=(1, 2), cache=(), other=None, size=2)), {}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_is_not_written_is_named_with_the_reason(given: Any, expected: dict[str, str], tmp_path: Path) -> None:
    done = bs.save(given, tmp_path / "x.safetensors", durable=False, overwrite=True)
    assert done.left_out == expected
    assert len(done.tensors) >= 1
    assert bs.SafetensorsStore.from_bytes(None).save(given).left_out == expected


@pytest.mark.parametrize("value", [3, 0.5, "text", b"raw", True, 1j, np.float64(1), [1, 2]])
def test_a_number_or_text_in_a_nested_mapping_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"'m\.x(\.\d)?' is a \w+, which is neither a tensor"):
        bs.save({"m": {"w": ones(), "x": value}}, tmp_path / "x.bpk")
    assert not list(tmp_path.iterdir())
    for given in ({"m": {"w": ones(), "x": value}}, {"w": ones(), "x": value}):  # A model of a store may have settings.
        done = bs.BurnpackStore.from_bytes(None).save(given)
        assert done.tensors[0].endswith("w")
        assert len(done.tensors) == 1
        assert done.left_out
        assert all(re.fullmatch(r"(m\.)?x(\.\d)?", name) for name in done.left_out)


@pytest.mark.parametrize("given", [{"a": ones()}, {"a": {"b": ones()}}, [ones()], {"a": {}, "b": [ones()]}])
@pytest.mark.parametrize("store", [bs.BurnpackStore, bs.SafetensorsStore])
def test_a_store_states_no_layout_of_arrays_without_a_model(store: Any, given: Any) -> None:
    for layout in (None, "torch", "burn"):
        built = store.from_bytes(None) if layout is None else store.from_bytes(None).layout(layout)
        assert built.save(given).layout == layout
        assert bs.open(built.get_bytes()).layout == layout


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_attributes_of_a_script_are_named() -> None:
    done = bs.SafetensorsStore.from_bytes(None).save(torch.jit.script(Script()))
    assert done.left_out == {"loose": f"1 tensor {ATTRIBUTE}", "cache": f"1 tensor {ATTRIBUTE}"}


def test_a_mapping_that_contains_itself_is_refused(tmp_path: Path) -> None:
    for inner in ({}, []):
        given = {"a": ones(), "m": {"inner": inner}}
        inner.update(m=given) if isinstance(inner, dict) else inner.append(given)
        with pytest.raises(bs.BurnstoreError, match="contains itself"):
            bs.save(given, tmp_path / "x.bpk")
        with pytest.raises(bs.BurnstoreError, match="contains itself"):
            bs.BurnpackStore.from_bytes(None).save(given)


def test_a_member_of_an_enum_of_strings_is_the_key_that_it_equals() -> None:
    for given in (
        {Key.A: ones()},
        {Key.A: torch.ones(2)},
        {"m": {Key.A: ones()}},
        nn.ParameterDict({Key.A: torch.ones(2)}),
    ):
        done = bs.SafetensorsStore.from_bytes(None).save(given)
        assert [type(name) for name in done.tensors] == [str]
        assert done.tensors[0].endswith("weight")


def test_the_search_for_hidden_tensors_visits_each_object_once() -> None:
    visits = 0

    class Counting(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            nonlocal visits
            visits += 1
            return super().__iter__()

    root = nn.ModuleList()
    shared = Counting([root])  # a reference to the whole model in every module of it
    for _ in range(100):
        root.append(with_attribute(nn.Linear(1, 1), settings=[shared]))
    assert binding.left_out(root) == {}
    assert visits == 1


def test_metadata_and_scalars_of_a_file_that_is_saved_again_are_named(tmp_path: Path) -> None:
    bs.save({"w": ones()}, tmp_path / "a.bpk", layout="burn", metadata={"license": "MIT"}, scalars={"step": 3})
    with bs.open(tmp_path / "a.bpk") as file:
        done = bs.save(file, tmp_path / "b.safetensors")
        assert done.notes == (
            "metadata of the file was not written: 'license'; pass metadata= to keep it",
            "scalars of the file were not written: 'step'",
        )
        kept = bs.save(file, tmp_path / "c.bpk", metadata=file.metadata, scalars={"step": 3})
    assert kept.notes == ()


def test_what_the_reader_left_out_of_a_file_is_named_when_it_is_saved_again(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "m": np.ma.array([1.0], mask=[1])}, tmp_path / "a.pt")
    with bs.open(tmp_path / "a.pt") as file:
        done = bs.save(file, tmp_path / "b.safetensors")
    assert done.notes == ("left out: m: a masked NumPy array",)
