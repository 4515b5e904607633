"""What Burn's own tests ask of writing: planned before read, read once and in order, a file whole or not there."""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import DType, Limits, TensorData, TensorSnapshot
from burnstore.errors import AlreadyExistsError, CorruptError, DuplicateNameError, FormatError, SaveError
from burnstore.formats.burnpack import plan
from burnstore.io.atomic import atomic_file
from burnstore.tensor.quantization import QuantScheme, QuantStore


def provided(events: list[str], count: int = 3) -> list[TensorSnapshot]:
    """Tensors of 16 bytes whose functions write down when they are asked."""

    def providing(name: str) -> Callable[[], Any]:
        return lambda: events.append(name) or np.arange(4, dtype=np.float32)

    return [TensorSnapshot.from_closure(f"t{n}", DType.F32, [4], providing(f"t{n}")) for n in reversed(range(count))]


def test_a_plan_reads_nothing_and_a_write_reads_each_once_in_the_order_given() -> None:
    events: list[str] = []
    given = provided(events)
    planned = plan(given, {}, Limits())
    assert events == []
    data = bs.serialize(given, format="burnpack", metadata={})
    assert events == ["t2", "t1", "t0"]
    assert planned.size == len(data)


def test_tensors_in_memory_and_tensors_of_functions_give_the_same_bytes(tmp_path: Path) -> None:
    resident = [TensorSnapshot.from_numpy(t.path, np.arange(4, dtype=np.float32)) for t in provided([])]
    assert bs.serialize(provided([]), format="burnpack") == bs.serialize(resident, format="burnpack")
    bs.save(provided([]), tmp_path / "model.bpk")
    assert (tmp_path / "model.bpk").read_bytes() == bs.serialize(resident, format="burnpack")


def test_a_refusal_while_planning_reads_nothing_and_creates_no_file(tmp_path: Path) -> None:
    events: list[str] = []
    given = provided(events)
    lying = TensorSnapshot("lying", DType.F32, (4,), given[0]._data, nbytes=8)
    for tensors, kind in ([[*given, lying], FormatError], [[*given, *given], DuplicateNameError]):
        with pytest.raises(kind):
            bs.save(tensors, tmp_path / "model.bpk")
    assert (events, os.listdir(tmp_path)) == ([], [])


@pytest.mark.parametrize("length", [0, 7, 9, 300])
def test_the_length_of_quantized_data_is_checked_when_planned_and_when_opened(length: int, tmp_path: Path) -> None:
    """Burn leaves it unchecked up to 0.22.1; the scheme says what it must be, so it is checked here."""
    dtype = DType.qfloat(QuantScheme("Q8S", QuantStore("Native")))
    held = TensorSnapshot.from_data("q", TensorData.from_bytes(bytes(8), dtype, [4]))._data
    with pytest.raises(CorruptError, match=f"got {length}") as caught:
        bs.save([TensorSnapshot("q", dtype, (4,), held, nbytes=length)], tmp_path / "model.bpk")
    assert caught.value.tensor == "q" and os.listdir(tmp_path) == []
    bs.save([TensorSnapshot("q", dtype, (4,), held, nbytes=8)], tmp_path / "model.bpk")
    with bs.open(tmp_path / "model.bpk") as f:
        assert f["q"].to_bytes() == bytes(8)


def test_a_function_that_gives_another_length_is_refused_while_writing(tmp_path: Path) -> None:
    short = TensorSnapshot.from_closure("short", DType.F32, [4], lambda: np.zeros(2, np.float32))
    with pytest.raises(CorruptError, match=r"declared F32 \[4\], its function returned F32 \[2\]") as caught:
        bs.save([*provided([]), short], tmp_path / "model.bpk")
    assert caught.value.tensor == "short" and os.listdir(tmp_path) == []


@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
def test_a_failing_function_leaves_the_folder_as_it_was(existing: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    if existing:
        bs.save({"old": np.arange(3)}, path)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

    def fail() -> Any:
        raise OSError(5, "gone")

    last = TensorSnapshot.from_closure("last", DType.F32, [4], fail)
    with pytest.raises(OSError, match="gone"):
        bs.save([*provided([]), last], path, overwrite=True)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


def test_a_folder_at_the_destination_is_refused_and_no_scratch_file_stays(tmp_path: Path) -> None:
    (tmp_path / "model.bpk").mkdir()
    with pytest.raises(SaveError, match="folder"):
        bs.save(provided([]), tmp_path / "model.bpk", overwrite=True)
    assert os.listdir(tmp_path) == ["model.bpk"] and os.listdir(tmp_path / "model.bpk") == []


def test_a_save_replaces_the_old_file_by_the_new_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    bs.save({"old": np.zeros(1000)}, path)
    bs.save(provided([]), path, overwrite=True)
    with bs.open(path) as f:
        assert set(f) == {"t0", "t1", "t2"}
    assert os.listdir(tmp_path) == ["model.bpk"]


@pytest.mark.skipif(os.name != "posix", reason="mode bits")
def test_a_save_keeps_the_mode_of_the_file_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    bs.save(provided([]), path)
    path.chmod(0o600)
    bs.save(provided([]), path, overwrite=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_path_without_an_extension_can_be_kept_and_is_opened_exactly(tmp_path: Path) -> None:
    bs.save(provided([]), tmp_path / "model", format="burnpack")
    assert os.listdir(tmp_path) == ["model"]
    with bs.open(tmp_path / "model") as f:
        assert len(f) == 3
    os.rename(tmp_path / "model", tmp_path / "model.bpk")
    with pytest.raises(FileNotFoundError):
        bs.open(tmp_path / "model")
    assert len(bs.BurnpackStore.from_file(tmp_path / "model").keys()) == 3


def planting(path: Path) -> list[TensorSnapshot]:
    """Tensors of which the second, while it is produced, puts another file at the destination."""

    def plant() -> Any:
        path.write_bytes(b"somebody else's")
        return np.zeros(4, np.float32)

    return [*provided([])[:1], TensorSnapshot.from_closure("planter", DType.F32, [4], plant)]


def test_a_file_that_appears_while_saving_is_kept_and_no_scratch_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    with pytest.raises(AlreadyExistsError, match="File already exists"):
        bs.save(planting(path), path)
    assert path.read_bytes() == b"somebody else's" and os.listdir(tmp_path) == ["model.bpk"]


def test_a_free_path_gets_the_file_and_nothing_else(tmp_path: Path) -> None:
    bs.save(provided([]), tmp_path / "model.bpk")
    assert os.listdir(tmp_path) == ["model.bpk"]
    with bs.open(tmp_path / "model.bpk") as f:
        assert len(f) == 3 and all(t.numpy().tolist() == [0, 1, 2, 3] for t in f.values())


def test_an_existing_file_is_refused_before_anything_is_read_and_again_when_publishing(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    path.write_bytes(b"old")
    events: list[str] = []
    with pytest.raises(AlreadyExistsError):
        bs.save(provided(events), path)
    assert (events, path.read_bytes()) == ([], b"old")
    path.unlink()

    def lose_the_race() -> None:
        with atomic_file(path) as scratch:
            scratch.write(b"new")
            path.write_bytes(b"old")

    with pytest.raises(AlreadyExistsError):
        lose_the_race()
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["model.bpk"]


def test_a_tensor_larger_than_a_window_is_written_exactly(tmp_path: Path) -> None:
    array = np.random.default_rng(1).integers(0, 256, (8 << 20) + 4096, np.uint8)
    bs.save({"large": array}, tmp_path / "model.bpk", durable=False)
    with bs.open(tmp_path / "model.bpk", zero_copy=True) as f:
        assert np.array_equal(f["large"].numpy(), array)
        bs.save(f, tmp_path / "again.bpk", durable=False, metadata=f.metadata)
    assert (tmp_path / "again.bpk").read_bytes() == (tmp_path / "model.bpk").read_bytes()


def test_each_large_tensor_is_freed_before_the_next_is_produced(tmp_path: Path) -> None:
    """Small ones are gathered into one system call first, up to 8 MiB of them."""
    alive: list[weakref.ref[Any]] = []
    seen: list[int] = []

    def produce() -> Any:
        seen.append(sum(reference() is not None for reference in alive))
        array = np.zeros(9 << 18, np.float32)
        alive.append(weakref.ref(array))
        return array

    given = [TensorSnapshot.from_closure(f"t{n}", DType.F32, [9 << 18], produce) for n in range(4)]
    bs.save(given, tmp_path / "model.bpk", durable=False)
    assert seen == [0, 0, 0, 0]
    assert not any(reference() is not None for reference in alive)
