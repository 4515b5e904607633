"""Shards that were cut off: what is there is proved and kept, the rest is written, and nothing else counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from assembled import arrays, assemble, nothing_left, refuse, same_tensors, with_broken
from burnstore.formats.registry import format_named
from burnstore.tensor.snapshot import TensorSnapshot

SAFETENSORS = format_named("safetensors")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("assembly") / "source.safetensors"
    bs.save(arrays(), path)
    return path


@pytest.fixture
def tensors(source: Path) -> Iterator[list[TensorSnapshot]]:
    with bs.open(source) as f:
        yield list(f.values())


def shards(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if "-of-" in name)


def sharded(tensors: list[TensorSnapshot], path: Path, *, resume: bool, **options: Any) -> Any:
    return assemble(
        tensors,
        path,
        SAFETENSORS,
        metadata=None,
        max_shard_size="4MB",
        resume=resume,
        **options,
    )


def test_a_failure_removes_all_shards_and_with_resume_keeps_what_is_complete(
    tensors: list[TensorSnapshot], tmp_path: Path
) -> None:
    target = tmp_path / "m.safetensors"
    broken = with_broken(tensors, "matrix.4", refuse)
    with pytest.raises(bs.errors.CorruptError):
        sharded(broken, target, resume=False)
    nothing_left(tmp_path)
    with pytest.raises(bs.errors.CorruptError):
        sharded(broken, target, resume=True)
    kept = shards(tmp_path)
    assert kept and (tmp_path / "m.safetensors.burnstore-resume.json").exists()
    assert not (tmp_path / "m.safetensors.index.json").exists()
    before = {name: (tmp_path / name).stat().st_ino for name in kept}
    with pytest.raises(bs.errors.AlreadyExistsError, match="interrupted here") as caught:
        sharded(tensors, target, resume=False)
    journal = "m.safetensors.burnstore-resume.json"
    assert caught.value.hint == f"resume it with resume=True, or delete {journal} to start over"
    done = sharded(tensors, target, resume=True, digests=True)
    assert {name: (tmp_path / name).stat().st_ino for name in kept} == before
    assert len(done.digests) == len(tensors)
    nothing_left(tmp_path, "m.safetensors.index.json", *map(os.path.basename, done.files[1:]))
    same_tensors(target, tensors)


def cut_off(tensors: list[TensorSnapshot], target: Path) -> list[str]:
    with pytest.raises(bs.errors.CorruptError):
        sharded(with_broken(tensors, "matrix.4", refuse), target, resume=True)
    return shards(target.parent)


def test_a_kept_shard_that_is_not_what_would_be_written_is_refused(
    tensors: list[TensorSnapshot], tmp_path: Path
) -> None:
    target = tmp_path / "m.safetensors"
    kept = cut_off(tensors, target)
    path = tmp_path / kept[0]
    whole = path.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-1], whole + b"\0", b"", bytes(len(whole))):
        path.write_bytes(damaged)
        with pytest.raises(bs.errors.CorruptError) as caught:
            sharded(tensors, target, resume=True)
        assert (
            caught.value.path == str(path) and caught.value.hint is not None and "delete the file" in caught.value.hint
        )
        assert not (tmp_path / "m.safetensors.index.json").exists()
    path.unlink()
    sharded(tensors, target, resume=True)
    same_tensors(target, tensors)


def test_other_tensors_cannot_take_up_what_was_begun(tensors: list[TensorSnapshot], tmp_path: Path) -> None:
    target = tmp_path / "m.safetensors"
    kept = cut_off(tensors, target)
    with pytest.raises(bs.errors.SaveError, match="cannot be resumed") as caught:
        sharded(tensors[:-1], target, resume=True)
    assert "start over" in str(caught.value) and shards(tmp_path) == kept
    swapped = {"matrix.0": "matrix.1", "small.3": "small.4"}
    values = {tensor.path: tensor for tensor in tensors}
    other = [values[swapped.get(tensor.path, tensor.path)].with_path(tensor.path) for tensor in tensors]
    with pytest.raises((bs.errors.SaveError, bs.errors.CorruptError)):
        sharded(other, target, resume=True)
    (tmp_path / "m.safetensors.burnstore-resume.json").unlink()
    sharded(tensors, target, resume=False)
    same_tensors(target, tensors)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"schema": 1, "shards": [3]}', b"[" * 100_000, b"\xff"])
def test_a_damaged_journal_is_refused(tensors: list[TensorSnapshot], tmp_path: Path, text: bytes) -> None:
    (tmp_path / "m.safetensors.burnstore-resume.json").write_bytes(text)
    with pytest.raises(bs.errors.SaveError, match="cannot be resumed"):
        sharded(tensors, tmp_path / "m.safetensors", resume=True)
    nothing_left(tmp_path, "m.safetensors.burnstore-resume.json")


def test_a_journal_cannot_name_files_elsewhere(tensors: list[TensorSnapshot], tmp_path: Path) -> None:
    target = tmp_path / "m.safetensors"
    cut_off(tensors, target)
    journal = tmp_path / "m.safetensors.burnstore-resume.json"
    journal.write_text(journal.read_text().replace('"m-00001', '"../m-00001'))
    with pytest.raises(bs.errors.SaveError, match="cannot be resumed"):
        sharded(tensors, target, resume=True)


def test_one_that_was_cut_off_after_its_index_is_finished(tensors: list[TensorSnapshot], tmp_path: Path) -> None:
    target = tmp_path / "m.safetensors"
    cut_off(tensors, target)
    journal = (tmp_path / "m.safetensors.burnstore-resume.json").read_bytes()
    done = sharded(tensors, target, resume=True)
    (tmp_path / "m.safetensors.burnstore-resume.json").write_bytes(journal)
    again = sharded(tensors, target, resume=True)
    assert again.files == done.files
    nothing_left(tmp_path, *map(os.path.basename, done.files))
    with pytest.raises(bs.errors.AlreadyExistsError):
        sharded(tensors, target, resume=True)


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of files")
def test_a_resumed_save_removes_the_scratch_of_dead_processes_and_no_other(
    tensors: list[TensorSnapshot], tmp_path: Path
) -> None:
    import fcntl

    target = tmp_path / "m.safetensors"
    names = ["m-00002-of-00003.safetensors", "m.safetensors.index.json", "m.safetensors.burnstore-resume.json"]
    for name in names:
        (tmp_path / f".{name}.4194304-0.burnstore-tmp").write_bytes(b"half")
    others = [f".{name}-00001-of-00003.safetensors.4194304-0.burnstore-tmp" for name in ("n", "m")]
    for name in others:
        (tmp_path / name).write_bytes(b"half")
    with open(tmp_path / others[1], "rb") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        sharded(tensors, target, resume=True)
        assert sorted(name for name in os.listdir(tmp_path) if name.endswith("-tmp")) == sorted(others)
    same_tensors(target, tensors)


_KILLED = """
import sys
import burnstore as bs
if __name__ == "__main__":
    source, target, workers = sys.argv[1:]
    bs.convert(source, target, max_shard_size="2MB", resume=True, executor=int(workers) or None)
"""


@pytest.mark.slow("kills")
@pytest.mark.skipif(sys.platform == "win32", reason="kills")
@pytest.mark.parametrize("workers", [0, 2])
def test_kills_at_random_moments_leave_nothing_or_a_set_and_the_next_goes_on(
    source: Path, tmp_path: Path, workers: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(_KILLED)
    folder = tmp_path / "target"
    folder.mkdir()
    target = folder / "m.safetensors"
    command = list(map(str, [sys.executable, script, source, target, workers]))
    draw = np.random.default_rng(workers)
    seen: set[int] = set()
    for turn in range(25):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
        try:
            process.communicate(timeout=0.4 + float(draw.uniform(0, 0.2)) * turn)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        index = folder / "m.safetensors.index.json"
        seen.add(len(shards(folder)))
        if index.exists():
            break
        for name in shards(folder):  # each is whole
            with bs.open(folder / name) as f:
                f.numpy()
    while not index.exists() or (folder / "m.safetensors.burnstore-resume.json").exists():
        subprocess.run(command, check=True, timeout=120)
    with bs.open(source) as f:
        same_tensors(target, list(f.values()))
    with bs.open(target) as f:  # and no scratch file of a killed process
        assert sorted(os.listdir(folder)) == sorted({index.name, *(os.path.basename(f.file_of(name)) for name in f)})
