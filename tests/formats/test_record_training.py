"""Training state: optimizers and schedulers as trees keyed by parameter, and as Burn 0.22 keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from test_record_files import FIXTURES, UUID, heading, of

import burnstore as bs
from burnstore.formats.codec.bincode import encode_float, encode_integer, encode_text, encode_uint
from burnstore.stores.records import BinFileRecorder, Record, open_record

ID = "0400000000000"


def packed(item: Any, version: str = "0.21.0") -> bytes:
    return msgpack.packb({"metadata": heading(version), "item": item, "_b": []})


@pytest.fixture
def record(tmp_path: Path) -> Any:
    opened: list[Record] = []

    def of_item(item: Any, version: str = "0.21.0") -> Record:
        path = tmp_path / f"{len(opened)}.mpk"
        path.write_bytes(packed(item, version))
        opened.append(open_record(path))
        return opened[-1]

    yield of_item
    for each in opened:
        each.close()


@pytest.mark.parametrize("recorder", ["namedmpk", "jsongz", "bingz"])
@pytest.mark.parametrize("version", ["0.13.2", "0.16.1", "0.21.0"])
def test_an_optimizers_record_is_a_tree_keyed_by_parameter(version: str, recorder: str) -> None:
    expected = json.loads((FIXTURES / version / "adam.expected.json").read_text())["tensors"]
    with open_record(of(version, "adam", recorder, "full"), like="Adam") as record:
        assert record.kind == "optimizer"
        states = record.states()
        assert {str(key) for key in states} == {each["path"].split(".")[0] for each in expected}
        assert all(isinstance(key, str if version == "0.13.2" else bs.ParamId) for key in states)
        for state in states.values():
            assert state["momentum"]["time"] == 2
            assert not state["momentum"]["moment_1"].is_parameter
            assert state["momentum"]["moment_1"].snapshot.numpy().dtype == np.float32


def test_adam_becomes_what_burn_0_22_keeps() -> None:
    with open_record(of("0.21.0", "adam", "namedmpk", "full")) as record:
        tensors, scalars = record.training_state()
        ids = sorted(int(key) for key in record.states())
        assert sorted(tensors) == sorted(
            f"{number}.momentum.{name}" for number in ids for name in ("moment_1", "moment_2")
        )
        assert all(int(tensor.param_id) == int(name.split(".")[0]) for name, tensor in tensors.items())
        ranks = {number: scalars[f"{number}.__rank"].value for number in ids}
        assert sorted(ranks.values()) == [1, 2]
        assert all(scalars[f"{number}.momentum.time"] == bs.Scalar("UInt", 2) for number in ids)
        assert len(scalars) == 4
        for number, state in record.states().items():
            old = state["momentum"]["moment_2"].snapshot
            assert tensors[f"{int(number)}.momentum.moment_2"].to_bytes() == old.to_bytes()


def test_a_state_without_tensors_keeps_its_rank(record: Any) -> None:
    found = record({ID: {"V1": {"Rank3": {"momentum": None}}}})
    assert found.kind == "optimizer"
    tensors, scalars = found.training_state()
    assert tensors == {}
    assert scalars == {"1.__rank": bs.Scalar("UInt", 3)}


def test_states_of_any_shape_are_flattened(record: Any) -> None:
    tensor = {"bytes": bytes(4), "shape": [1], "dtype": "F32"}
    state = {"history": [tensor, tensor], "rate": 0.5, "sign": -3, "on": True, "none": None}
    tensors, scalars = record({ID: {"V1": {"Rank1": state}}}).training_state()
    assert list(tensors) == ["1.history.0", "1.history.1"]
    assert {name: (scalar.kind, scalar.value) for name, scalar in scalars.items()} == {
        "1.__rank": ("UInt", 1),
        "1.history.len": ("UInt", 2),
        "1.rate": ("Float", 0.5),
        "1.sign": ("Int", -3),
        "1.on": ("Bool", True),
    }


def test_ids_that_are_uuids_cannot_be_carried_over(record: Any) -> None:
    found = record({UUID: {"V1": {"Rank1": {"momentum": None}}}}, "0.13.2")
    assert list(found.states()) == [UUID]
    with pytest.raises(bs.errors.UnsupportedError, match="UUID") as caught:
        found.training_state()
    assert caught.value.rule == "BR-08"


@pytest.mark.parametrize(
    ("item", "scheduler", "scalars"),
    [
        (7, "Cosine", {"0.current_iter": ("UInt", 7)}),
        ((1 << 64) - 1, "Cosine", {"0.current_iter": ("UInt", (1 << 64) - 1)}),
        (7, "Linear", {"0.remaining_iters": ("UInt", 7)}),
        (7, "Noam", {"0.step": ("Float", 7.0)}),
        (-1, "Step", {"0.iter_idx": ("Int", -1)}),
        (0.125, "Exponential", {"0.previous_lr": ("Float", 0.125)}),
        (
            {"schedulers": [{"Cosine": 2}, {"Noam": 3}, {"Exponential": 0.5}]},
            None,
            {"0.0.current_iter": ("UInt", 2), "0.1.step": ("Float", 3.0), "0.2.previous_lr": ("Float", 0.5)},
        ),
    ],
)
def test_a_scheduler_becomes_what_burn_0_22_keeps(record: Any, item: Any, scheduler: Any, scalars: Any) -> None:
    found = record(item)
    assert found.kind == "scheduler"
    tensors, given = found.training_state(scheduler=scheduler)
    assert tensors == {}
    assert {name: (scalar.kind, scalar.value) for name, scalar in given.items()} == scalars


@pytest.mark.parametrize(
    ("item", "scheduler"),
    [
        (7, None),
        (7, "Exponential"),
        (0.5, "Cosine"),
        ([0.1, 0.0, 1.0, 10, 3], "Cosine"),
        ({"schedulers": [{"X": 1}]}, None),
    ],
)
def test_a_scheduler_that_the_file_does_not_tell_is_refused(record: Any, item: Any, scheduler: Any) -> None:
    with pytest.raises(bs.errors.UnsupportedError):
        record(item).training_state(scheduler=scheduler)
    with pytest.raises(ValueError, match="one of"):
        record(7).training_state(scheduler="cosine")


def test_a_module_has_no_training_state(record: Any) -> None:
    with open_record(of("0.21.0", "tiny", "namedmpk", "full")) as found:
        assert found.kind == "module"
        with pytest.raises(ValueError, match="module"):
            found.training_state()
        with pytest.raises(ValueError, match="module"):
            found.states()
    assert record({}).kind == "module"
    assert record(None).kind == "module"


def binary(item: bytes, version: str = "0.21.0") -> bytes:
    return b"".join(map(encode_text, heading(version).values())) + item


@pytest.mark.parametrize(
    ("item", "like", "value"),
    [(encode_uint(300), "Cosine", 300), (encode_float(0.25), "Exponential", 0.25), (encode_integer(-4), "Step", -4)],
)
def test_binary_schedulers_are_read_by_their_kind(item: bytes, like: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "s.bin").write_bytes(binary(item))
    with BinFileRecorder().load(tmp_path / "s", like=like) as record:
        assert record.item == value
    (tmp_path / "s.bin").write_bytes(binary(item + b"\0"))
    with pytest.raises(bs.errors.CorruptError) as caught:
        BinFileRecorder().load(tmp_path / "s", like=like)
    assert caught.value.rule == "BR-17"


SGD = (
    encode_uint(2)
    + encode_text(ID)
    + b"\0\2\0"
    + encode_text("0800000000000")
    + b"\0\1\1"
    + b"\4"
    + bytes(4)
    + b"\1\1\1"
)


def test_a_binary_sgd_record_is_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "o.bin").write_bytes(binary(SGD))
    with BinFileRecorder().load(tmp_path / "o", like="Sgd") as record:
        assert [state["momentum"] is None for state in record.states().values()] == [True, False]
        BinFileRecorder().record(record, tmp_path / "again")
    assert (tmp_path / "again.bin").read_bytes().endswith(SGD)


@pytest.mark.parametrize("like", ["Adam", "AdamW", "RmsProp", "AdaGrad", "Noam"])
def test_a_binary_record_of_another_optimizer_does_not_fit(like: str) -> None:
    with pytest.raises(bs.errors.FormatError):
        bs.open(binary(SGD), like=like)


def test_every_cut_of_a_binary_optimizer_is_refused() -> None:
    data = binary(SGD)
    for length in range(len(binary(b"")), len(data)):
        with pytest.raises(bs.errors.FormatError):
            bs.open(data[:length], like="Sgd")
