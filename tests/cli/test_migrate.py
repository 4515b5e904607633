"""``burnstore migrate``: exit codes, what it says, and that it says it safely."""

from __future__ import annotations

from pathlib import Path

import pytest

import burnstore as bs
from burnstore import nn
from burnstore.cli import main
from burnstore.stores.records import BinFileRecorder, NamedMpkFileRecorder, NamedMpkGzFileRecorder, save_file

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    save_file(nn.Linear(2, 3), tmp_path / "old", NamedMpkGzFileRecorder(), durable=False)
    return tmp_path / "old.mpk.gz"


def test_a_record_is_migrated(record: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["migrate", str(record), str(tmp_path / "new.bpk")]) == 0
    told = capsys.readouterr()
    assert told.out == f"{record} -> {tmp_path / 'new.bpk'}: module, 2 tensors, 36 B, verified\n"
    assert told.err == ""
    assert bs.load(nn.Linear(2, 3), tmp_path / "new.bpk").is_success()
    assert record.exists()


def test_an_existing_file_is_an_error_unless_overwriting_is_asked_for(
    record: Path, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "new.bpk").write_bytes(b"mine")
    assert main(["migrate", str(record), str(tmp_path / "new.bpk")]) == 2
    assert "burnstore: error:" in capsys.readouterr().err
    assert (tmp_path / "new.bpk").read_bytes() == b"mine"
    assert main(["migrate", str(record), str(tmp_path / "new.bpk"), "--overwrite"]) == 0


@pytest.mark.parametrize("content", [None, b"", b"x" * 100, b"\x83\xa8metadata\x85\xa5float"])
def test_what_is_no_record_is_an_error_with_the_file_in_it(
    content: bytes | None, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "file.mpk"
    if content is not None:
        path.write_bytes(content)
    assert main(["migrate", str(path), str(tmp_path / "new.bpk")]) == 2
    told = capsys.readouterr()
    assert told.out == "" and str(path) in told.err and "Traceback" not in told.err


def test_a_folder_is_migrated_with_a_summary(record: Path, tmp_path: Path, capsys: Captured) -> None:
    save_file(nn.Linear(4, 4), tmp_path / "deep" / "other", NamedMpkFileRecorder(), durable=False)
    assert main(["migrate", str(tmp_path), str(tmp_path / "new")]) == 0
    told = capsys.readouterr()
    assert told.out.endswith("2 of 2 records migrated and verified, 116 B\n")
    assert sorted(path.name for path in (tmp_path / "new").rglob("*.bpk")) == ["old.bpk", "other.bpk"]
    save_file(nn.Linear(4, 4), tmp_path / "binary", BinFileRecorder(), durable=False)
    assert main(["migrate", str(tmp_path), str(tmp_path / "more")]) == 2
    told = capsys.readouterr()
    assert "2 of 3 records migrated and verified, 116 B; 1 not, see above" in told.out
    assert "like=Model()" in told.err


def test_a_folder_without_records_is_something_found(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["migrate", str(tmp_path), str(tmp_path / "new")]) == 1
    assert "no Burn records" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


def test_names_from_a_folder_are_printed_escaped(record: Path, tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a\x1b[31m.mpk").write_bytes(record.read_bytes())
    (folder / "b\x1b[31m.mpk").write_bytes(record.read_bytes()[:-3])
    assert main(["migrate", str(folder), str(tmp_path / "new")]) == 2
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err


@pytest.mark.parametrize(
    "arguments", [[], ["one"], ["a", "b", "--scheduler", "cosine"], ["a", "b", "--undecided", "F32"]]
)
def test_wrong_arguments_are_errors(arguments: list[str], capsys: Captured) -> None:
    assert main(["migrate", *arguments]) == 2
    assert "hint: burnstore migrate --help" in capsys.readouterr().err


def test_help_names_the_exit_codes(capsys: Captured) -> None:
    assert main(["migrate", "--help"]) == 0
    told = capsys.readouterr().out
    assert "exit codes:" in told and "--overwrite" in told
