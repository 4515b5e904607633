"""Which part of a file is the model, and what its tensors are called; savers of the field, by the shapes they write."""

from __future__ import annotations

import argparse
import collections
import datetime
import enum
import io
import pathlib
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore.formats import pytorch
from burnstore.formats.codec.pickle_values import Call, PickledSet, Symbol
from burnstore.formats.pytorch.calls import NumpyArray
from burnstore.formats.pytorch.tensors import PickledTensor
from burnstore.io.source import BytesSource
from fuzz import torch_bytes as tb

LEGACY = {"_use_new_zipfile_serialization": False}


def saved(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.tied = self.fc
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        self.register_parameter("absent", None)
        self.plain = torch.ones(5)


def graph(data: bytes) -> Any:
    return pytorch.read_pickled(BytesSource(data)).value


def names(data: bytes, **options: Any) -> list[str]:
    with bs.open(data, **options) as f:
        return list(f)


STATE = Net().state_dict()


@pytest.mark.parametrize("options", [{}, LEGACY, {"pickle_protocol": 4}], ids=["zip", "legacy", "protocol 4"])
def test_a_whole_model_is_read_as_its_state_dict_and_says_so(options: dict[str, Any]) -> None:
    """PT-25."""
    model = Net()
    with bs.open(saved(model, **options)) as f:
        assert list(f) == list(model.state_dict())
        assert all(np.array_equal(f[name].numpy(), t.numpy()) for name, t in model.state_dict().items())
        assert any("whole model was saved" in note and "Net" in note for note in f.notes)
        assert f.layout == "torch"
        assert f.shares_with("fc.weight") == ("tied.weight",)


def test_a_whole_model_under_a_key_is_found() -> None:
    with bs.open(saved({"model": Net(), "epoch": 3})) as f:
        assert list(f) == list(STATE)
        assert len(f.notes) == 4
        assert "left out: scratch: a buffer that is not persistent" in f.notes
        assert "left out: plain: neither a parameter nor a buffer of its module" in f.notes


def test_a_module_that_registers_a_name_twice_is_refused() -> None:
    """PT-25."""
    model = Net()
    model.__dict__["_buffers"]["fc"] = torch.ones(1)
    with pytest.raises(bs.errors.DuplicateNameError):
        names(saved(model))


def test_a_malformed_set_of_transient_buffers_is_refused() -> None:
    """PT-25."""
    model = Net()
    model.__dict__["_non_persistent_buffers_set"] = 5
    with pytest.raises(bs.errors.CorruptError) as caught:
        names(saved(model))
    assert caught.value.rule == "PT-25"


SAVERS: dict[str, tuple[Any, str]] = {
    "lightning": (
        {
            "epoch": 3,
            "global_step": 9,
            "pytorch-lightning_version": "2.1",
            "state_dict": STATE,
            "loops": {"fit_loop": {"state_dict": {}}},
            "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5)}},
            "optimizer_states": [
                {"state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(2)}}, "param_groups": []}
            ],
            "lr_schedulers": [],
            "hyper_parameters": {"lr": 0.1},
        },
        "state_dict",
    ),
    "deepspeed": (
        {
            "module": STATE,
            "buffer_names": ["norm.running_mean"],
            "optimizer": None,
            "param_shapes": [OrderedDict(a=torch.Size([1, 2]))],
            "ds_config": {"fp16": {"enabled": True}},
            "ds_version": "0.12",
            "dp_world_size": 1,
        },
        "module",
    ),
    "timm": (
        {"arch": "resnet18", "epoch": 1, "state_dict": STATE, "optimizer": {"state": {}, "param_groups": []}},
        "state_dict",
    ),
    "torchvision reference": (
        {
            "model": STATE,
            "optimizer": {"state": {0: {"m": torch.ones(2)}}},
            "lr_scheduler": {},
            "args": argparse.Namespace(lr=1),
        },
        "model",
    ),
    "tutorial": (
        {"epoch": 1, "model_state_dict": STATE, "optimizer_state_dict": {}, "loss": torch.tensor(0.3)},
        "model_state_dict",
    ),
    "diffusers": (STATE, ""),
    "ema": ({"params_ema": STATE}, "params_ema"),
    "fairseq": (
        {"model": STATE, "args": None, "optimizer_history": [], "last_optimizer_state": {"a": torch.ones(1)}},
        "model",
    ),
}


@pytest.mark.parametrize("options", [{}, LEGACY], ids=["zip", "legacy"])
@pytest.mark.parametrize(("value", "key"), SAVERS.values(), ids=SAVERS)
def test_the_state_dict_is_found_where_savers_put_it(value: Any, key: str, options: dict[str, Any]) -> None:
    """PT-23: and the note says under which key."""
    with bs.open(saved(value, **options)) as f:
        assert list(f) == list(STATE)
        assert [f"{key!r}" in note for note in f.notes] == ([True] if key else [])


def test_what_is_left_out_is_said_and_can_be_had() -> None:
    data = saved({"model": STATE, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}})
    with bs.open(data) as f:
        assert "optimizer (1)" in f.notes[0]
    assert names(data, top_level_key="") == [*(f"model.{name}" for name in STATE), "optimizer.state.0.exp_avg"]
    assert names(data, top_level_key="optimizer") == ["state.0.exp_avg"]
    assert names(data, top_level_key="optimizer.state.0") == ["exp_avg"]


def test_an_ambiguous_file_gives_everything_and_lists_the_candidates() -> None:
    with bs.open(saved({"state_dict": STATE, "ema": STATE, "epoch": 1})) as f:
        assert len(f) == 2 * len(STATE)
        assert f"state_dict ({len(STATE)}), ema ({len(STATE)})" in f.notes[0]


def test_nested_dicts_without_a_known_key_are_flattened() -> None:
    data = saved({"encoder": {"layer": {"w": torch.ones(1)}}, "decoder": {"w": torch.ones(2)}})
    assert names(data) == ["encoder.layer.w", "decoder.w"]


def test_lists_and_tuples_are_named_by_place_and_integer_keys_by_their_digits() -> None:
    data = saved(
        {"weights": [torch.ones(1), None, {"w": torch.ones(2)}], "bias": (torch.ones(3),), 7: {-1: torch.ones(1)}}
    )
    assert names(data) == ["weights.0", "weights.2.w", "bias.0", "7.-1"]


def test_a_single_integer_key_is_read() -> None:
    assert names(saved({0: torch.ones(1)})) == ["0"]


def test_a_dict_shared_through_the_memo_is_full_in_both_places() -> None:
    """Burn's reader finds it empty the second time."""
    shared, entries = {"w": torch.ones(2)}, [torch.ones(3)]
    assert names(saved({"a": shared, "b": shared, "c": entries, "d": entries})) == ["a.w", "b.w", "c.0", "d.0"]


def test_the_metadata_of_a_state_dict_is_no_entry_of_it() -> None:
    """Burn's reader mixes it in."""
    value = graph(saved(STATE))
    assert "_metadata" not in value
    assert set(value.state["_metadata"]) >= {"", "fc", "norm"}


def test_two_tensors_of_one_name_are_refused() -> None:
    """PT-24: Burn's reader keeps whichever comes last in its hash table."""
    with pytest.raises(bs.errors.DuplicateNameError) as caught:
        names(saved({"a.b": torch.ones(1), "a": {"b": torch.ones(2)}}))
    assert (caught.value.rule, caught.value.tensor) == ("PT-24", "a.b")
    with pytest.raises(bs.errors.DuplicateNameError):
        names(saved({"1": torch.ones(1), 1: torch.ones(2)}))


def test_plain_keys_are_written_as_python_writes_them_and_others_are_noted() -> None:
    """PT-24."""
    assert names(saved({"w": torch.ones(1), (1, 2): "no tensor", 0.5: [1], None: 3})) == ["w"]
    plain = {0.5: torch.ones(1), (1, "a"): torch.ones(1), None: torch.ones(1), True: torch.ones(1), b"x": torch.ones(1)}
    assert names(saved(plain)) == ["0.5", "(1, 'a')", "None", "True", "b'x'"]
    with bs.open(saved({"w": torch.ones(1), Colour.RED: torch.ones(2)})) as f:
        assert list(f) == ["w"]
        assert f.notes[-1] == f"left out: <{__name__}.Colour>: under a key that is a {__name__}.Colour"


def test_names_that_are_no_text_or_too_long_are_refused() -> None:
    """PT-24."""
    with pytest.raises(bs.errors.CorruptError):
        names(saved({"\ud800": torch.ones(1)}))
    with pytest.raises(bs.errors.LimitError):
        names(saved({"x" * 70_000: torch.ones(1)}))


@pytest.mark.parametrize("value", [5, "text", None, [1, 2], ()], ids=["int", "text", "None", "list", "tuple"])
def test_a_root_that_is_no_dict_is_named(value: Any) -> None:
    """PT-23."""
    with pytest.raises(bs.errors.CorruptError, match="dictionary is expected at the root") as caught:
        names(saved(value))
    assert caught.value.rule == "PT-23"


def test_a_list_of_tensors_is_read() -> None:
    assert names(saved([torch.ones(1), torch.ones(2)])) == ["0", "1"]


def test_a_key_leads_through_lists() -> None:
    """As to the optimizers of Lightning."""
    data = saved({"optimizer_states": [{"state": {0: {"exp_avg": torch.ones(2)}}}], "epoch": [3]})
    assert names(data, top_level_key="optimizer_states") == ["0.state.0.exp_avg"]
    assert names(data, top_level_key="optimizer_states.0.state") == ["0.exp_avg"]
    with pytest.raises(bs.errors.CorruptError, match="does not hold a dictionary"):
        names(data, top_level_key="epoch")
    with pytest.raises(bs.errors.TensorNotFoundError, match=r"Key '1' not found.*: 0 \(1\)"):
        names(data, top_level_key="optimizer_states.1")
    assert names(saved([torch.ones(1)]), top_level_key="") == ["0"]


def test_a_wrong_key_lists_those_that_are_there() -> None:
    """PT-23."""
    data = saved({"model": STATE, "epoch": 3})
    with pytest.raises(
        bs.errors.TensorNotFoundError, match=rf"Key 'nothing' not found.*epoch \(0\), model \({len(STATE)}\)"
    ):
        names(data, top_level_key="nothing")
    with pytest.raises(bs.errors.CorruptError, match="does not hold a dictionary"):
        names(data, top_level_key="epoch")
    with pytest.raises(bs.errors.CorruptError, match="no dictionary on the way"):
        names(data, top_level_key="epoch.more")
    with pytest.raises(TypeError):
        bs.open(data, top_level_key=5)


def test_a_key_with_dots_is_taken_as_it_is() -> None:
    assert names(saved({"a.b": {"w": torch.ones(1)}, "a": {"b": {"v": torch.ones(1)}}}), top_level_key="a.b") == ["w"]


def test_a_tensor_that_was_saved_alone_is_read() -> None:
    """PT-23."""
    for value in (torch.arange(3.0), torch.nn.Parameter(torch.arange(3.0)), np.arange(3.0)):
        with bs.open(saved(value)) as f:
            assert list(f) == ["tensor"] and f["tensor"].numpy().tolist() == [0, 1, 2]
            assert "without a name" in f.notes[0]


def test_what_holds_itself_gives_its_tensors_once() -> None:
    """PT-23."""
    loop: dict[str, Any] = {"w": torch.ones(1), "deep": [{}]}
    loop["self"] = loop["deep"][0]["back"] = loop
    assert names(saved(loop)) == ["w"]


def test_depth_is_limited_and_900_levels_are_not_too_deep() -> None:
    """PT-17."""

    def nested(depth: int) -> bytes:
        inner = tb.tensor(tb.storage(tb.text("0"), 1), (1,))
        return tb.torch_zip(tb.pickled((b"}" + tb.text("a")) * depth + inner + b"s" * depth), {"0": bytes(4)})

    assert names(nested(900)) == [".".join("a" * 900)]
    with pytest.raises(bs.errors.LimitError):
        names(nested(1500))


def test_a_graph_that_is_small_in_the_file_and_huge_when_walked_is_refused_at_once() -> None:
    """H17: forty dicts, each holding the one before twice."""
    leaf = tb.dict_of((tb.text("w"), tb.tensor(tb.storage(tb.text("0"), 1), (1,)))) + b"q\0"
    body = leaf
    for _ in range(40):
        body += b"0}(" + tb.text("a") + b"h\0" + tb.text("b") + b"h\0uq\0"
    with pytest.raises(bs.errors.LimitError) as caught:
        names(tb.torch_zip(tb.pickled(body), {"0": bytes(4)}))
    assert caught.value.rule == "PT-17"


SHARED = {
    "siblings without tensors at every level": (
        (b"}(" + tb.text("s") + b"](" + b"]" * 300 + b"e" + tb.text("a")) * 500,
        b"u" * 500,
    ),
    "one large part under many keys": (
        b"}(" + tb.text("model") + tb.dict_of(*((tb.integer(n), b"]") for n in range(200))) + b"q\1"
        # the same part again and again, then the tensor
        + b"".join(tb.text(f"k{n}") + b"h\1" for n in range(5000)) + tb.text("w"),
        b"u",
    ),
    "one large call under many keys": (
        b"}(" + tb.text("first") + tb.name("m", "f") + b")R(" + b"N" * 50_000 + b"eq\1"
        + b"".join(tb.text(f"k{n}") + b"h\1" for n in range(5000)) + tb.text("w"),
        b"u",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after"), SHARED.values(), ids=SHARED)
def test_what_is_shared_or_deep_is_looked_at_once(before: bytes, after: bytes) -> None:
    """H17: time is linear in the graph, whatever its form."""
    import time

    value = before + tb.tensor(tb.storage(tb.text("0"), 1), (1,)) + after
    data = tb.torch_zip(tb.pickled(value), {"0": bytes(4)})
    started = time.process_time()
    assert len(names(data)) == 1
    assert time.process_time() - started < 5


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.Enum):
    RED = 1


def test_plain_values_are_data_and_the_rest_stays_inert() -> None:
    """PT-18."""
    moment = datetime.datetime(2020, 2, 29, 12, 30, 15, 99)
    value = graph(
        saved(
            {
                "numbers": (1, 2.5, True, None, 2**70, 1j, -(2**40)),
                "bytes": (b"abc", bytearray(b"x")),
                "numpy": (np.float64(3.5), np.int8(-3), np.bool_(True), np.str_("text")),
                "array": np.arange(3),
                "torch": (torch.device("cuda:0"), torch.device("cpu"), torch.Size([1, 2]), torch.float32),
                "dicts": (OrderedDict(a=1), collections.defaultdict(list, b=2), collections.Counter("aab")),
                "others": (collections.deque([1, 2], maxlen=3), {1}, frozenset([2]), range(3), slice(1, 2)),
                "times": (moment, moment.date(), moment.time(), datetime.timedelta(1, 2, 3)),
                "path": pathlib.PurePosixPath("/a/b"),
                "named": Point(1, 2),
                "enum": Colour.RED,
                "namespace": argparse.Namespace(lr=0.1),
                "function": len,
                "tensor": torch.ones(2),
            }
        )
    )
    assert value["numbers"] == (1, 2.5, True, None, 2**70, 1j, -(2**40))
    assert value["bytes"] == (b"abc", b"x")
    assert value["numpy"] == (3.5, -3, True, "text")
    assert isinstance(value["array"], NumpyArray) and value["array"].array.tolist() == [0, 1, 2]
    assert value["torch"][:3] == ("cuda:0", "cpu", (1, 2))
    assert isinstance(value["torch"][3], Symbol) and value["torch"][3].full_name == "torch.float32"
    assert value["dicts"] == ({"a": 1}, {"b": 2}, {"a": 2, "b": 1})
    assert value["others"] == ([1, 2], [1], [2], range(3), slice(1, 2))
    assert isinstance(value["others"][1], PickledSet)
    assert value["times"] == (moment, moment.date(), moment.time(), datetime.timedelta(1, 2, 3))
    assert value["path"] == "/a/b"
    assert isinstance(value["named"], Call) and value["named"].args == (1, 2)
    assert isinstance(value["enum"], Call) and value["enum"].args == (1,)
    assert value["namespace"].state == {"lr": 0.1}
    assert value["function"].name == "len"
    assert isinstance(value["tensor"], PickledTensor)


def test_the_globals_are_listed_with_their_places_and_whether_they_are_called() -> None:
    file = pytorch.read_pickled(BytesSource(saved({"w": torch.ones(2), "kind": torch.float32})))
    found = {symbol.full_name: symbol.called for _, symbol in file.globals}
    assert found == {
        "torch._utils._rebuild_tensor_v2": True,
        "torch.FloatStorage": False,
        "collections.OrderedDict": True,
        "torch.float32": False,
    }
    assert [at for at, _ in file.globals] == sorted(at for at, _ in file.globals)
    assert file.facts == {
        "root": "archive/",
        "version": "3",
        "format_version": "1",
        "storage_alignment": "64",
        "byteorder": "little",
    }


class Holder:
    def __init__(self) -> None:
        self.inner = torch.ones(2)


def test_tensors_in_other_objects_are_named_by_attributes_and_said_so() -> None:
    with bs.open(saved({"w": torch.ones(1), "holder": Holder()})) as f:
        assert list(f) == ["w", "holder.inner"]
        assert any("Holder" in note for note in f.notes)


def test_the_arguments_of_an_unknown_call_are_named() -> None:
    """PT-18."""
    inner = tb.tensor(tb.storage(tb.text("0"), 1), (1,))
    value = tb.dict_of((tb.text("w"), inner), (tb.text("x"), tb.call(tb.name("my.pkg", "rebuild"), inner)))
    with bs.open(tb.torch_zip(tb.pickled(value), {"0": bytes(4)})) as f:
        assert list(f) == ["w", "x.args.0"]
        assert any("my.pkg.rebuild" in note for note in f.notes)


def test_a_tensor_of_a_class_of_its_own_is_its_tensor() -> None:
    class Special(torch.Tensor):
        pass

    Special.__qualname__ = "Special"
    globals()["Special"] = Special
    try:
        data = saved({"t": torch.arange(4.0).as_subclass(Special)})
    finally:
        del globals()["Special"]
    with bs.open(data) as f:
        assert f["t"].numpy().tolist() == [0, 1, 2, 3]


def test_tensors_of_the_first_releases_are_read() -> None:
    """A class that is called and then given its storage as a state, and a parameter around it."""
    state = tb.tuple_of(tb.storage(tb.text("0"), 4), tb.integer(1), tb.ints(3), tb.ints(1))
    old = tb.name("torch", "FloatTensor") + b")\x81" + state + b"b"
    parameter = (
        tb.call(tb.name("torch.nn.parameter", "Parameter"), b"") + tb.tuple_of(old, b"N", b"N", b"\x88", b"\x89") + b"b"
    )
    data = tb.torch_zip(tb.pickled(tb.dict_of((tb.text("p"), parameter))), {"0": np.arange(4, dtype="<f4").tobytes()})
    with bs.open(data) as f:
        assert f["p"].numpy().tolist() == [1, 2, 3]


@pytest.mark.filterwarnings("ignore")  # torch calls these modules deprecated
def test_a_quantized_model_gives_the_packed_weights_of_its_state_dict(tmp_path: pathlib.Path) -> None:
    from torch.ao import quantization

    torch.manual_seed(0)
    nn = torch.nn
    layers = {"fc": nn.Linear(8, 4), "out": nn.Linear(4, 3, bias=False), "norm": nn.LayerNorm(4), "rnn": nn.LSTM(3, 5)}
    dynamic = quantization.quantize_dynamic(nn.ModuleDict(layers), {nn.Linear, nn.LSTM}, dtype=torch.qint8)
    half = quantization.quantize_dynamic(nn.ModuleDict(layers), {nn.Linear}, dtype=torch.float16)
    tables = dict.fromkeys((nn.Embedding, nn.EmbeddingBag), quantization.float_qparams_weight_only_qconfig)
    embedding = quantization.quantize_dynamic(nn.Sequential(nn.Embedding(10, 8), nn.EmbeddingBag(10, 8)), tables)
    static = nn.Sequential(quantization.QuantStub(), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5)).eval()
    static.qconfig = quantization.get_default_qconfig(torch.backends.quantized.supported_engines[-1])
    prepared = quantization.prepare(static)
    prepared(torch.randn(2, 3, 8, 8))
    for number, model in enumerate((dynamic, half, embedding, quantization.convert(prepared))):
        torch.save(model, tmp_path / f"{number}.pt")
        torch.save(model.state_dict(), tmp_path / f"{number}-state.pt")
        found = bs.diff(tmp_path / f"{number}.pt", tmp_path / f"{number}-state.pt")
        assert len(found.equal) + len(found.added) == len(found.tensors) and found.equal, number
        # The scale of a module's output is a number in the one file, a tensor in the other.
        assert all(
            added.shown_name.endswith((".scale", ".zero_point")) and added.new_shape == () for added in found.added
        ), number
    with bs.open(tmp_path / "0.pt") as f:
        weight, bias = dynamic.state_dict()["fc._packed_params._packed_params"]
        at = "fc._packed_params._packed_params"
        assert (f[f"{at}.0.int_repr"].numpy() == weight.int_repr().numpy()).all()
        assert f[f"{at}.0.scale"].numpy() == weight.q_scale() and torch.equal(f[f"{at}.1"].torch(), bias)


def test_a_tensor_that_was_saved_alone_has_its_storage() -> None:
    with bs.open(saved(torch.ones(3))) as f:
        assert list(f) == ["tensor"] and not any("left out" in note for note in f.notes)


@pytest.mark.filterwarnings("ignore")  # of what torch imports to compile
def test_a_compiled_model_is_read_as_its_state_dict() -> None:
    """What torch.compile returns is pickled as its class, called with the module and how it was compiled."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 3))
    outer = torch.nn.ModuleDict({"inner": torch.nn.Linear(2, 2)})
    for model, name in ((module, "_orig_mod.0.weight"), (outer, "inner._orig_mod.weight")):
        if model is outer:
            outer["inner"] = torch.compile(outer["inner"])
        with bs.open(saved(torch.compile(module) if model is module else model)) as f:
            assert name in f and not any(".args." in each for each in f)
            assert f.classes[name.rpartition(".")[0]].name == "Linear"


def test_the_model_of_lightning_is_its_state_dict_whatever_callbacks_add() -> None:
    state = {"fc.weight": torch.ones(2)}
    more = {"current_model_state": state, "averaging_state": {"n": torch.ones(1)}, "ema": {"fc.weight": torch.zeros(2)}}
    with bs.open(saved({"state_dict": state, "pytorch-lightning_version": "2.5.0", **more})) as f:
        assert list(f) == ["fc.weight"] and "current_model_state (1)" in f.notes[0] and "ema (1)" in f.notes[0]
    with bs.open(saved({"state_dict": state, **more})) as f:
        assert "state_dict.fc.weight" in f
