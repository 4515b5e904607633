"""``burnstore verify``: exit codes, what it says, and that it removes nothing but what it may."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

import burnstore as bs
from burnstore.cli import main

Captured = pytest.CaptureFixture[str]
F32 = np.float32
DAY = 86400


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bs.save({"w": F32([1, 2]), "b": F32([3])}, tmp_path / "fine.bpk")
    bs.save({"w": F32([1, np.nan]), "b": F32([-np.inf])}, tmp_path / "nan.safetensors")
    (tmp_path / "cut.bpk").write_bytes((tmp_path / "fine.bpk").read_bytes()[:-1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["verify", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_file_that_is_fine_is_said_to_be(folder: Path, capsys: Captured) -> None:
    code, out, err = told(capsys, "fine.bpk")
    assert (code, err) == (0, "")
    assert out == "fine.bpk: ok: burnpack (0.20 .. 0.23-pre, aligned), 2 tensors, 12 B\n"


def test_what_is_not_finite_is_found(folder: Path, capsys: Captured) -> None:
    code, out, err = told(capsys, "nan.safetensors")
    assert (code, err) == (1, "")
    assert out == "nan.safetensors: whole, with findings: safetensors, 2 tensors, 12 B\n  b: 1 Inf\n  w: 1 NaN\n"


def test_a_broken_file_is_an_error_with_its_rule(folder: Path, capsys: Captured) -> None:
    code, out, err = told(capsys, "cut.bpk")
    assert (code, out) == (2, "") and err.startswith("burnstore: error: cut.bpk: File truncated") and "[BP-15" in err


def test_the_worst_of_several_decides(folder: Path, capsys: Captured) -> None:
    code, out, err = told(capsys, "fine.bpk", "nan.safetensors", "cut.bpk", "absent.bpk")
    assert code == 2 and out.endswith("4 files verified\n")
    assert err.count("burnstore: error:") == 2 and "absent.bpk: no such file" in err
    assert told(capsys, "fine.bpk", "nan.safetensors")[0] == 1


def test_a_folder_is_verified_whole(folder: Path, capsys: Captured) -> None:
    code, out, err = told(capsys, ".")
    assert code == 2 and "fine.bpk: ok" in out and "nan.safetensors: whole, with findings" in out and "cut.bpk" in err
    (folder / "empty").mkdir()
    code, out, err = told(capsys, "empty")
    assert (code, err) == (1, "") and out.startswith("empty: the folder contains no files of tensors, such as")


def test_a_tensor_that_is_broken_is_named(folder: Path, capsys: Captured) -> None:
    bs.save({"mask": np.array([True]), "w": F32([1])}, folder / "m.safetensors")
    raw = bytearray((folder / "m.safetensors").read_bytes())
    with bs.open(folder / "m.safetensors") as f:
        raw[f.offset_of("mask")] = 5
    (folder / "m.safetensors").write_bytes(raw)
    code, out, err = told(capsys, "m.safetensors")
    assert code == 2 and "m.safetensors: broken" in out and "tensor 'mask': expected 0 or 1 in a Bool, found 5" in err


def test_an_expected_digest_is_compared(folder: Path, capsys: Captured) -> None:
    right = hashlib.sha256((folder / "fine.bpk").read_bytes()).hexdigest()
    code, out, _ = told(capsys, "fine.bpk", "--digest", right)
    assert code == 0 and f"the digest is as expected, sha256:{right}" in out
    code, out, _ = told(capsys, "fine.bpk", "--digest", f"sha256:{'0' * 64}")
    assert code == 1 and f"expected the digest sha256:{'0' * 64}, got sha256:{right}" in out


def test_json_has_every_digest(folder: Path, capsys: Captured) -> None:
    code, out, err = told(capsys, "fine.bpk", "cut.bpk", "absent.bpk", "--json")
    fine, cut, absent = json.loads(out)["files"]
    assert code == 2 and fine["ok"] and fine["digest"].startswith("sha256:")
    assert {each["name"]: each["digest"] for each in fine["tensors"]}["b"] == (
        f"sha256:{hashlib.sha256(F32([3]).tobytes()).hexdigest()}"
    )
    assert cut["errors"][0]["rule"] == "BP-15" and absent["ok"] is False and err.count("error") == 2


@pytest.mark.usefixtures("spawning")
def test_processes_can_do_it(folder: Path, capsys: Captured) -> None:
    assert told(capsys, "nan.safetensors", "--quiet", "--jobs", "2") == told(capsys, "nan.safetensors")


# --- receipts ---------------------------------------------------------------------------------------------------------


def test_a_receipt_is_checked(folder: Path, capsys: Captured) -> None:
    done = bs.convert(folder / "fine.bpk", folder / "copy.safetensors", receipt=True)
    receipt = os.path.relpath(done.receipt, folder)
    code, out, _ = told(capsys, "copy.safetensors", "--receipt", receipt)
    assert code == 0 and f"{receipt}: 2 tensors match" in out
    bs.save({"w": F32([1, 3]), "b": F32([3])}, folder / "copy.safetensors", overwrite=True)
    code, out, _ = told(capsys, "copy.safetensors", "--receipt", receipt)
    assert code == 1 and "does not match" in out and "'w'" in out
    document = json.loads(told(capsys, "copy.safetensors", "--receipt", receipt, "--json")[1])
    assert document["receipt"]["ok"] is False and document["receipt"]["problems"]


def test_a_receipt_that_is_none_is_an_error(folder: Path, capsys: Captured) -> None:
    code, _, err = told(capsys, "fine.bpk", "--receipt", "fine.bpk")
    assert code == 2 and err.startswith("burnstore: error: fine.bpk: ")


# --- scratch files ----------------------------------------------------------------------------------------------------


def scratch(path: Path, age: float) -> Path:
    path.write_bytes(b"half of a file")
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_only_stale_scratch_files_are_removed_and_each_is_named(folder: Path, capsys: Captured) -> None:
    (folder / "sub").mkdir()
    stale = [
        scratch(folder / place / f".m.bpk.{pid}-0.burnstore-tmp", 2 * DAY) for place, pid in ((".", 11), ("sub", 12))
    ]
    kept = [
        scratch(folder / ".m.bpk.13-0.burnstore-tmp", 60),
        scratch(folder / "m.bpk.14-0.burnstore-tmp", 2 * DAY),
        scratch(folder / ".m.bpk.burnstore-tmp", 2 * DAY),
        scratch(folder / "old.txt", 9 * DAY),
    ]
    assert told(capsys, ".")[0] == 2 and all(path.exists() for path in stale)  # not without --clean
    before = sorted(path for path in folder.rglob("*") if path.is_file() and path not in stale)
    _, out, _ = told(capsys, ".", "--clean")
    assert [line for line in out.splitlines() if line.startswith("removed")] == [
        f"removed {os.path.join('.', '.m.bpk.11-0.burnstore-tmp')}",
        f"removed {os.path.join('.', 'sub', '.m.bpk.12-0.burnstore-tmp')}",
    ]
    assert not any(path.exists() for path in stale) and all(path.exists() for path in kept)
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == before


def test_beside_a_file_its_own_folder_is_cleaned(folder: Path, capsys: Captured) -> None:
    (folder / "sub").mkdir()
    here, below = (scratch(folder / place / ".m.1-0.burnstore-tmp", 2 * DAY) for place in (".", "sub"))
    code, out, _ = told(capsys, "fine.bpk", "--clean", "--json")
    assert code == 0 and json.loads(out)["removed"] == [os.path.join(".", ".m.1-0.burnstore-tmp")]
    assert not here.exists() and below.exists()


def test_a_scratch_file_that_is_being_written_stays(folder: Path, capsys: Captured) -> None:
    fcntl = pytest.importorskip("fcntl", reason="locks of POSIX")
    path = scratch(folder / ".m.1-0.burnstore-tmp", 2 * DAY)
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        told(capsys, "fine.bpk", "--clean")
        assert path.exists()


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the following arguments are required"),
        (("fine.bpk", "--digest", "abc"), "'abc' is not a digest"),
        (("fine.bpk", "nan.safetensors", "--digest", "0" * 64), "--digest needs exactly one file"),
        ((".", "--digest", "0" * 64), "--digest needs exactly one file"),
        (("fine.bpk", "--jobs", "many"), "'many' is not a number of processes"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    folder: Path, capsys: Captured, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = told(capsys, *arguments)
    assert (code, out) == (2, "") and said in err
    assert len([line for line in err.splitlines() if not line.startswith("  hint")]) == 1


def test_names_are_printed_safely(folder: Path, capsys: Captured) -> None:
    bs.save({"\x1b[2J": F32([np.nan])}, folder / "x.bpk")
    _, out, _ = told(capsys, "x.bpk")
    assert "\x1b" not in out and "\\x1b[2J: 1 NaN" in out
