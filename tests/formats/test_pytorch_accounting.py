"""Every tensor that a file of torch stores has a name, or a note that names it with the reason (law 1)."""

from __future__ import annotations

import collections
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.formats import pytorch
from burnstore.io.source import BytesSource
from fuzz import torch_bytes as tb

torch = pytest.importorskip("torch")


def saved(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


WRITERS: dict[str, Callable[[Any], bytes]] = {
    "zip": saved,
    "legacy": lambda value: saved(value, _use_new_zipfile_serialization=False),
    "protocol 5": lambda value: saved(value, pickle_protocol=5),
    "bare": pickle.dumps,
}


class MyDict(dict):  # type: ignore[type-arg]
    pass


class MyList(list):  # type: ignore[type-arg]
    pass


class MyOrderedDict(collections.OrderedDict):  # type: ignore[type-arg]
    pass


class WithArguments:
    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return WithArguments, self.arguments


class WithItems:
    def __reduce__(self) -> Any:
        return WithItems, (), None, iter([ones(2)]), iter([("key", ones(3))])

    def append(self, item: Any) -> None: ...

    def extend(self, items: Any) -> None: ...

    def __setitem__(self, key: Any, item: Any) -> None: ...


class WithState:
    def __init__(self, state: Any) -> None:
        self.state = state

    def __getstate__(self) -> Any:
        return self.state

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Slotted:
    __slots__ = ("a", "b")


Pair = collections.namedtuple("Pair", "left right")  # pickled as a call of the class


def ones(count: int) -> Any:
    return torch.ones(count)


def with_attributes(value: Any, **attributes: Any) -> Any:
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


NAMED: dict[str, tuple[Callable[[], Any], dict[str, int]]] = {
    "a dict subclass with attributes": (
        lambda: {"m": with_attributes(MyDict(w=ones(2)), extra=ones(3), w2=1)},
        {"m.extra": 3, "m.w": 2},
    ),
    "a dict subclass as the root": (lambda: with_attributes(MyDict(w=ones(2)), extra=ones(3)), {"extra": 3, "w": 2}),
    "an item and an attribute of one name": (
        lambda: with_attributes(MyDict(w=ones(2)), w=ones(3)),
        {"w": 3, "items.w": 2},
    ),
    "a list subclass with attributes": (
        lambda: with_attributes(MyList([ones(1), ones(2)]), extra=ones(5)),
        {"extra": 5, "0": 1, "1": 2},
    ),
    "an OrderedDict with attributes": (
        lambda: with_attributes(collections.OrderedDict(w=ones(2)), extra=ones(7)),
        {"w": 2, "extra": 7},
    ),
    "a subclass of OrderedDict": (
        lambda: with_attributes(MyOrderedDict(w=ones(2)), extra=ones(7)),
        {"extra": 7, "w": 2},
    ),
    "arguments of __reduce__": (
        lambda: {"r": WithArguments(ones(2), [ones(3)], {"k": ones(4)})},
        {"r.args.0": 2, "r.args.1.0": 3, "r.args.2.k": 4},
    ),
    "an object with arguments as the root": (lambda: WithArguments(ones(2)), {"args.0": 2}),
    "a tuple as the state": (lambda: {"s": WithState((ones(2), [ones(3)]))}, {"s.state.0": 2, "s.state.1.0": 3}),
    "a list as the state": (lambda: {"s": WithState([ones(2)])}, {"s.state.0": 2}),
    "appended and set items": (lambda: {"i": WithItems()}, {"i.key": 3, "i.0": 2}),
    "slots": (lambda: {"s": with_attributes(Slotted(), a=ones(1), b=ones(2))}, {"s.a": 1, "s.b": 2}),
    "a named tuple": (lambda: {"p": Pair(ones(1), ones(2))}, {"p.args.0": 1, "p.args.1": 2}),
    "a deque, a set and a defaultdict": (
        lambda: {
            "d": collections.deque([ones(1)]),
            "f": frozenset([ones(2)]),
            "e": collections.defaultdict(list, k=ones(3)),
        },
        {"d.0": 1, "f.0": 2, "e.k": 3},
    ),
    "a tensor with attributes": (
        lambda: {"t": with_attributes(ones(3), extra={"z": ones(8)})},
        {"t": 3, "t.extra.z": 8},
    ),
    "a parameter with attributes": (
        lambda: {"p": with_attributes(torch.nn.Parameter(ones(3)), extra=ones(8))},
        {"p": 3, "p.extra": 8},
    ),
    "an array of objects": (
        lambda: {"o": np.array([ones(2), None, np.ones(3)], dtype=object)},
        {"o.0": 2, "o.2": 3},
    ),
    "a matrix": (lambda: {"m": np.asmatrix([[1.0, 2.0]])}, {"m": 2}),
}


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of np.matrix
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", NAMED)
def test_every_tensor_is_named(kind: str, writer: str) -> None:
    make, expected = NAMED[kind]
    with bs.open(WRITERS[writer](make())) as f:
        assert {name: f[name].numpy().size for name in f} == expected
        assert not any("left out" in note for note in f.notes)
        assert all(f[name].numpy().all() for name in f)


def test_an_array_that_was_saved_alone_is_not_said_to_be_left_out() -> None:
    with bs.open(saved(np.ones(3))) as f:
        assert f.notes == ("the file is one tensor without a name; it is called 'tensor'",)


LEFT_OUT: dict[str, tuple[Callable[[], Any], str]] = {
    "a masked array": (lambda: np.ma.array([1.0, 2.0], mask=[0, 1]), "left out: x: a masked NumPy array"),
    "a record array": (lambda: np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]), "left out: x: a numpy.ndarray whose"),
    "a longdouble array": (lambda: np.ones(3, np.longdouble), "left out: x: a numpy.ndarray whose dtype"),
    "an array of text": (lambda: np.array(["a", "bc"]), "left out: x: an array of <U2"),
    "an array of bytes": (lambda: np.array([b"a"]), "left out: x: an array of |S1"),
    "an array of dates": (lambda: np.array(["2020-01-01"], "M8[D]"), "left out: x: a numpy.ndarray whose dtype"),
    "a storage": (lambda: ones(3).untyped_storage(), "left out: x: a storage without a tensor"),
    "a tensor as a key": (lambda: {ones(2): 1}, "left out: x.torch.Tensor: a key of a dictionary"),
    "a lazy parameter": (lambda: torch.nn.LazyLinear(2).weight, "left out: x: of a lazy module that was never used"),
    "bytes of an unknown class": (lambda: WithArguments(bytes(300)), "left out: x: bytes in an object of the class"),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_has_no_name_is_noted_with_the_reason(kind: str, writer: str) -> None:
    make, note = LEFT_OUT[kind]
    with bs.open(WRITERS[writer]({"w": ones(1), "x": make()})) as f:
        assert list(f) == ["w"]
        assert any(each.startswith(note) for each in f.notes)


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)
        self.register_buffer("transient", ones(2), persistent=False)
        self.plain = torch.arange(3.0)

    def forward(self, x):
        return self.fc(x) + self.transient + self.plain[:2]


@pytest.fixture
def quiet() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("quiet")
def test_the_weights_of_a_frozen_model_are_read_and_the_constants_of_others_are_noted(tmp_path: Path) -> None:
    net = Net().eval()
    torch.jit.save(torch.jit.freeze(torch.jit.script(net)), tmp_path / "frozen.pt")
    with bs.open(tmp_path / "frozen.pt") as f:
        assert list(f) == ["constants.0", "constants.1", "constants.2", "constants.3"]
        assert any(np.array_equal(f[name].numpy(), net.fc.weight.detach().numpy()) for name in f)
        assert "the model is frozen" in f.notes[0]
    torch.jit.save(torch.jit.trace(net, torch.ones(1, 3)), tmp_path / "traced.pt")
    with bs.open(tmp_path / "traced.pt") as f:
        assert list(f) == ["transient", "fc.weight", "fc.bias"]
        assert "left out: constants/0: a constant of the code, not in the state dict" in f.notes


class Lists(torch.nn.Module):
    """A module with a list of tensors that are no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 3)
        self.held: list[torch.Tensor] = [torch.full((2,), 7.0), self.fc.weight.detach()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + self.held[0].sum()


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_a_scripted_rnn_has_the_names_of_its_state_dict(tmp_path: Path, kind: type[torch.nn.LSTM]) -> None:
    net = torch.nn.ModuleDict({"rnn": kind(3, 4)})
    torch.jit.save(torch.jit.script(net), tmp_path / "net.pt")
    with bs.open(tmp_path / "net.pt") as f:
        assert list(f) == list(net.state_dict())
    bs.convert(tmp_path / "net.pt", tmp_path / "converted.bpk")
    bs.save(net, tmp_path / "saved.bpk")
    assert bs.diff(tmp_path / "converted.bpk", tmp_path / "saved.bpk").is_equal


@pytest.mark.usefixtures("quiet")
def test_tensors_in_a_list_of_a_scripted_module_are_noted(tmp_path: Path) -> None:
    net = Lists()
    torch.jit.save(torch.jit.script(net), tmp_path / "net.pt")
    with bs.open(tmp_path / "net.pt") as f:
        assert list(f) == list(net.state_dict())
        assert any("held.args.0.0" in note and "neither a parameter nor a buffer" in note for note in f.notes)


SCRIPTED = "uint16 uint32 uint64 bits8 bits16 bits1x8 bits2x4 bits4x2 complex32 float8_e4m3fn float8_e5m2"
SCRIPTED += " float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", SCRIPTED.split())
def test_torchscript_has_storage_classes_for_every_dtype(name: str) -> None:
    dtype = getattr(torch, name)
    net = torch.nn.Module()
    raw = torch.arange(4 * dtype.itemsize, dtype=torch.uint8)
    net.register_buffer("held", raw.view(dtype))
    out = io.BytesIO()
    torch.jit.save(torch.jit.script(net), out)
    with bs.open(out.getvalue()) as f:
        assert f["held"].to_bytes() == raw.numpy().tobytes()


@pytest.mark.slow("exports a program of PyTorch")
@pytest.mark.usefixtures("quiet")
def test_the_constants_of_an_exported_program_are_noted(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Net().eval(), (torch.ones(1, 3),)), tmp_path / "x.pt2")
    with bs.open(tmp_path / "x.pt2") as f:
        assert list(f) == ["fc.weight", "fc.bias"]
        assert "left out: plain, transient: constants, not in the state dict" in f.notes
        assert any("inputs of the program" in note for note in f.notes)


def test_attributes_of_a_module_that_are_not_in_its_state_dict_are_noted() -> None:
    with bs.open(saved({"a": Net(), "b": Net()})) as f:
        assert "left out: b.transient, a.transient: a buffer that is not persistent" in f.notes
        assert "left out: b.plain, a.plain: neither a parameter nor a buffer of its module" in f.notes


def zipped_tensor(value: bytes, storages: dict[str, bytes]) -> bytes:
    return tb.torch_zip(tb.pickled(tb.dict_of((tb.text("w"), value))), storages)


def test_a_storage_that_the_object_does_not_refer_to_is_noted() -> None:
    dropped = tb.tensor(tb.storage(tb.text("1"), 1), (1,)) + b"0"
    data = zipped_tensor(dropped + tb.tensor(tb.storage(tb.text("0"), 1), (1,)), {"0": bytes(4), "1": bytes(4)})
    with bs.open(data) as f:
        assert list(f) == ["w"]
        assert list(f.notes) == ["left out: the storage '1': the saved object does not refer to it"]
    with bs.open(zipped_tensor(tb.tensor(tb.storage(tb.text("0"), 1), (1,)), {"0": bytes(4), "7": bytes(4)})) as f:
        assert list(f.notes) == ["left out: data/7: the pickle does not refer to it"]


def test_a_tensor_in_the_hooks_of_another_is_noted() -> None:
    hooks = tb.call(tb.name("collections", "OrderedDict"), b"](" + tb.tuple_of(tb.text("h"), tb.tensor(
        tb.storage(tb.text("1"), 1), (1,))) + b"e")  # fmt: skip
    arguments = (tb.storage(tb.text("0"), 1), tb.integer(0), tb.ints(1), tb.ints(1), b"\x89", hooks)
    data = zipped_tensor(tb.call(tb.V2, *arguments), {"0": bytes(4), "1": bytes(4)})
    with bs.open(data) as f:
        assert any("the storage '1'" in note for note in f.notes)


def test_a_state_built_tensor_on_a_view_of_a_storage_has_the_values_of_the_view() -> None:
    """A storage of the first releases may be a view on another, which alone has bytes in the file."""
    pid = tb.tuple_of(
        *(tb.text("storage"), tb.name("torch", "FloatStorage"), tb.text("0"), tb.text("cpu"), tb.integer(6)),
        tb.tuple_of(tb.text("view"), tb.integer(2), tb.integer(4)),
    )
    state = tb.tuple_of(pid + b"Q", tb.integer(1), tb.ints(3), tb.ints(1))
    old = tb.name("torch", "FloatTensor") + b")\x81" + state + b"b"
    value = tb.pickled(tb.dict_of((tb.text("w"), old)))
    data = tb.legacy(value, {"0": np.arange(6, dtype="<f4").tobytes()})
    with bs.open(data) as f:
        assert f["w"].numpy().tolist() == [3, 4, 5]


def test_two_files_that_differ_only_in_such_tensors_are_not_equal(tmp_path: Path) -> None:
    for name, value in (("a.pt", 1.0), ("b.pt", 2.0)):
        torch.save({"m": with_attributes(MyDict(w=torch.full((2,), value)))}, tmp_path / name)
    assert not bs.diff(tmp_path / "a.pt", tmp_path / "b.pt").is_equal


def test_the_graph_of_a_run_that_is_read_again_has_each_storage_once() -> None:
    """The machine starts over without its recogniser; nothing of the first attempt may remain."""
    state = collections.OrderedDict((f"layer{n}.weight", ones(2)) for n in range(40))
    file = pytorch.read_pickled(BytesSource(saved({"a": state, "b": state, "c": np.ones(3)})))
    assert len(file.storages.by_key) == 40 and len(file.storages.arrays) == 1
