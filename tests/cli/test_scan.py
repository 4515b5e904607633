"""``burnstore scan``: exit codes, what it says, and that it says it safely."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import burnstore as bs
from burnstore.cli import main

Captured = pytest.CaptureFixture[str]

EVIL = b"\x80\x02}X\x04\x00\x00\x00evilcos\nsystem\n(X\x02\x00\x00\x00idtRs."


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    bs.save({"w": np.ones(2, np.float32), "b": np.ones(1, np.float32)}, tmp_path / "clean.safetensors")
    return tmp_path / "clean.safetensors"


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    (tmp_path / "evil.pt").write_bytes(EVIL)
    return tmp_path / "evil.pt"


def test_a_clean_file_is_said_to_be_clean(clean: Path, capsys: Captured) -> None:
    assert main(["scan", str(clean)]) == 0
    told = capsys.readouterr()
    assert told.out == f"{clean}: clean, 2 tensors\n" and told.err == ""


def test_what_is_dangerous_is_said_with_its_place(evil: Path, capsys: Captured) -> None:
    assert main(["scan", str(evil)]) == 1
    assert capsys.readouterr().out == (
        f"{evil}: dangerous; no tensors can be read\n  dangerous: imports and calls os.system (byte 12)\n"
    )


def test_tensors_that_can_be_taken_are_counted(tmp_path: Path, capsys: Captured) -> None:
    held = pickle.dumps({"w": np.ones(3, np.float32), "a": Path})
    (tmp_path / "x.pt").write_bytes(held)
    assert main(["scan", str(tmp_path / "x.pt")]) == 0  # a path is data
    (tmp_path / "x.pt").write_bytes(held[:-2] + b"cmy.models\nNet\n)R0" + held[-2:])
    capsys.readouterr()
    assert main(["scan", str(tmp_path / "x.pt")]) == 1
    told = capsys.readouterr().out
    assert "suspicious; 1 tensor can be read safely, burnstore runs nothing" in told
    assert "suspicious: imports and calls my.models.Net (byte " in told


def test_a_file_that_cannot_be_judged_is_an_error(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "x.pt").write_bytes(b"nothing")
    assert main(["scan", str(tmp_path / "x.pt")]) == 2
    told = capsys.readouterr()
    assert f"{tmp_path / 'x.pt'}: error" in told.out and "burnstore: error:" in told.err
    assert main(["scan", str(tmp_path / "missing.pt")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_the_worst_outcome_decides(clean: Path, evil: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["scan", str(clean), str(evil)]) == 1
    assert capsys.readouterr().out.endswith("2 files scanned: 1 clean, 1 dangerous\n")
    (tmp_path / "x.pt").write_bytes(b"nothing")
    assert main(["scan", str(tmp_path)]) == 2
    assert capsys.readouterr().out.endswith("3 files scanned: 1 clean, 1 dangerous, 1 error\n")
    (tmp_path / "empty").mkdir()
    assert main(["scan", str(tmp_path / "empty")]) == 1
    assert "no files of tensors or pickles" in capsys.readouterr().out


def test_one_json_document_has_everything(clean: Path, evil: Path, capsys: Captured) -> None:
    assert main(["scan", str(clean), str(evil), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["burnstore"] == bs.__version__ and document["schema"] == 1
    first, second = document["files"]
    assert (first["verdict"], first["tensors"], first["findings"]) == ("clean", ["b", "w"], [])
    assert second["findings"] == [
        {"severity": "dangerous", "name": "os.system", "called": True, "member": "", "position": 12, "kind": "import"}
    ]


def test_names_of_a_file_cannot_write_to_the_terminal(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "x.pt").write_bytes(b"\x80\x04\x8c\x04a\x1b[2\x8c\x04\xe2\x80\xaeb\x93.")
    assert main(["scan", str(tmp_path / "x.pt")]) == 1
    told = capsys.readouterr().out
    assert "\x1b" not in told and "\u202e" not in told and "a\\x1b[2.\\u202eb" in told


def test_many_findings_are_cut_on_screen_and_whole_in_json(tmp_path: Path, capsys: Captured) -> None:
    body = b"".join(b"cmy\nName%d\n0" % at for at in range(30))
    (tmp_path / "x.pt").write_bytes(b"\x80\x02" + body + b"}.")
    assert main(["scan", str(tmp_path / "x.pt")]) == 1
    assert "and 10 more; --json shows all" in capsys.readouterr().out
    main(["scan", str(tmp_path / "x.pt"), "--json"])
    assert len(json.loads(capsys.readouterr().out)["files"][0]["findings"]) == 30
