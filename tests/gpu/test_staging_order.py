"""The order in which a staging has its streams work: every wait that is left out is found, and every one too many."""

from __future__ import annotations

import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.checks import Check, noise, ring_for
from tests.gpu.fake_cuda import FakeTorch, gpu_that_is_none
from torch import nn

import burnstore as bs
from burnstore.io.gpu import transfer as transfers
from burnstore.io.gpu.buffers import TransferSettings, configure_transfers
from burnstore.io.gpu.staging import CudaStaging
from burnstore.io.gpu.transfer import _Transfer

BYTES = 1 << 16


def turned_matrices(device: str, folder: Path) -> None:
    """What is staged row by row."""
    configure_transfers(buffer_bytes=BYTES)
    model = nn.ModuleDict({"a": nn.Linear(400, 500), "b": nn.Linear(500, 300)})
    bs.save(model, folder / "model.bpk")
    bs.load(model.to(device), folder / "model.bpk")


def cast_values(device: str, folder: Path) -> None:
    """What is staged piece by piece, and looked up in a table."""
    configure_transfers(buffer_bytes=BYTES)
    model = nn.Module()
    model.register_buffer("a", torch.zeros(300_000, device=device))
    bs.save({"a": noise("float16", 300_000)}, folder / "half.safetensors")
    bs.load(model, folder / "half.safetensors")


def small_values(device: str, folder: Path) -> None:
    """What is staged twice from a buffer, for two casts, and distributed; through a ring of one."""
    configure_transfers(buffers=1, buffer_bytes=BYTES)
    model, tensors = nn.Module(), {}
    for number in range(400):
        model.register_buffer(f"t{number}", torch.zeros(500, device=device))
        tensors[f"t{number}"] = noise(("float16", "bfloat16")[number % 2], 500)
    torch.save(tensors, folder / "small.pt")  # in their order
    bs.load(model, folder / "small.pt")


def new_tensors(device: str, folder: Path) -> None:
    """What is nothing but copied, into memory that is made for it."""
    configure_transfers(buffers=2, buffer_bytes=BYTES)
    bs.save({"a": noise("float32", 300_000), "b": noise("float32", 300_000)}, folder / "plain.safetensors")
    with bs.open(folder / "plain.safetensors") as file:
        file.torch(device=device)


def a_tensor_that_is_there(device: str, folder: Path) -> None:
    """What is nothing but copied, into memory of a model."""
    model = nn.Linear(1000, 300, bias=False)
    bs.save(model, folder / "plain.safetensors")
    bs.load(model.to(device), folder / "plain.safetensors")


JOBS: list[Check] = [turned_matrices, cast_values, small_values, new_tensors, a_tensor_that_is_there]

Left = tuple[str, str, str, Check]
"""A method of the staging, what stands in it, what is to stand there instead, and a job in which that matters."""

AWAITS_HALF = ("_await_half", "self._bus.wait_event(self._worked[self._half])", "pass")
AWAITS_BUS = ("_begin_work", "self._work.wait_event(self._bus.record_event())", "pass")
AWAITS_FREE = ("empty", "stream.wait_event(free)", "pass")
SENT_FIRST = ("end_batch", "self._start()\n", "event = self._bus.record_event(); self._start(); return event\n")

LEFT_OUT: dict[str, Left] = {
    "a half is filled with rows before it was worked on": (*AWAITS_HALF, turned_matrices),
    "a half is filled with values before it was worked on": (*AWAITS_HALF, cast_values),
    "a half is filled with tensors before it was worked on": (*AWAITS_HALF, small_values),
    "rows are worked on before they are there": (*AWAITS_BUS, turned_matrices),
    "values are worked on before they are there": (*AWAITS_BUS, cast_values),
    "tensors are worked on before they are there": (*AWAITS_BUS, small_values),
    "nobody says when a half was worked on": ("_end_work", "= self._work.record_event()", "= None", turned_matrices),
    "a half was worked on when the bus says so": ("_end_work", "_work.record", "_bus.record", cast_values),
    "copies go on where work is done": ("_end_work", "self.torch.cuda.set_stream(self._bus)", "pass", small_values),
    "work does not end before the next is staged": ("_start", "self._end_work()", "pass", small_values),
    "new tensors are filled before they are free": (*AWAITS_FREE, new_tensors),
    "staging memory is filled before it is free": (*AWAITS_FREE, turned_matrices),
    "the bus does not wait until memory is free": ("empty", "(self._bus, self._work)", "(self._work,)", new_tensors),
    "the work does not wait until memory is free": ("empty", "(self._bus, self._work)", "(self._bus,)", cast_values),
    "the caller still works": ("__enter__", "stream.wait_stream(self._callers)", "pass", a_tensor_that_is_there),
    "copies are the caller's": ("begin_batch", "self.torch.cuda.set_stream(self._bus)", "pass", new_tensors),
    "buffers are free when work is done": (
        "end_batch",
        "record(self._bus)",
        "record(self._work)",
        new_tensors,
    ),
    "buffers are free before they are copied": (*SENT_FIRST, new_tensors),
    "nobody awaits the bus": ("_synchronize", "self._bus.synchronize()", "pass", new_tensors),
    "nobody awaits the work": ("_synchronize", "self._work.synchronize()", "pass", turned_matrices),
}


def change(kind: type, name: str, given: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have something else stand in a method than what does."""
    source = textwrap.dedent(inspect.getsource(getattr(kind, name)))
    assert given in source, f"{name} has no {given!r} any more: say what must not be left out of it now"
    made: dict[str, Any] = {}
    exec(source.replace(given, wanted), vars(sys.modules[kind.__module__]), made)
    monkeypatch.setattr(kind, name, made[name])


@pytest.fixture(params=["kernel", "threads"])
def _read_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files with kernel threads, where the system permits them, and with Python threads."""
    if request.param == "threads":
        monkeypatch.setattr(transfers, "kernel_reads", lambda *_: None)


@pytest.mark.usefixtures("_read_by")
@pytest.mark.parametrize("job", JOBS)
def test_nothing_is_found_while_nothing_is_left_out(job: Check, tmp_path: Path) -> None:
    with ring_for("cpu"), gpu_that_is_none() as made:
        job("cpu", tmp_path)
    assert made and all(len(fake.cuda.made) == 2 for fake in made)


def assert_found(job: Check, folder: Path) -> None:
    told = "nothing orders two acts|the host did not await"
    with pytest.raises(AssertionError, match=told), ring_for("cpu"), gpu_that_is_none():
        job("cpu", folder)


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_is_left_out_of_a_carrier_is_found(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, given, wanted, job = LEFT_OUT[case]
    change(CudaStaging, name, given, wanted, monkeypatch)
    assert_found(job, tmp_path)


@pytest.mark.usefixtures("_read_by")
@pytest.mark.parametrize("job", [small_values, new_tensors])
def test_an_engine_that_does_not_ask_whether_a_buffer_is_free_is_found(
    job: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(_Transfer, "_refill", " and in_flight[0][0].query()", "", monkeypatch)
    assert_found(job, tmp_path)


def fills_beside_work() -> list[bool]:
    """For each that is staged after another one, whether it is copied without waiting for the work on that."""
    found = []
    fake = FakeTorch()
    staging = CudaStaging(fake, torch.device("cpu"), TransferSettings(buffer_bytes=BYTES))
    memory = torch.zeros(BYTES, dtype=torch.uint8)
    target = torch.zeros(BYTES, dtype=torch.uint8)
    with staging:
        bus, work = fake.cuda.made
        for number in range(7):
            before = work.clock[work]
            staging.begin_batch()
            if number % 2:
                staging.copy_rows(target, memory, torch.uint8)
            else:
                target.copy_(staging.stage(memory))
            staging.end_batch()
            found.append(bus.clock.get(work, 0) < before)
    assert not fake.cuda.not_awaited
    return found[1:]


def test_while_one_half_is_worked_on_the_other_is_filled() -> None:
    assert all(fills_beside_work())


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("_end_work", "self._half ^= 1", "pass"),
        ("_await_half", "wait_event(self._worked[self._half])", "wait_event(self._worked[self._half ^ 1])"),
        ("_await_half", "self._bus.wait_event(self._worked[self._half])", "self._bus.wait_stream(self._work)"),
        ("_begin_work", "self.torch.cuda.set_stream(self._work)", "pass"),
    ],
)
def test_work_that_copies_wait_for_is_found(
    name: str, given: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(CudaStaging, name, given, wanted, monkeypatch)
    assert not all(fills_beside_work())
