"""``burnstore config``: exit codes, what it says, and that it says it safely."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from burnstore.cli import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    value = {"my_config": {"n_head": 2, "rates": (0.5, 1), "name": "größe\x1b"}, "w": np.ones(3, np.float32)}
    (tmp_path / "x.pt").write_bytes(pickle.dumps(value))
    return tmp_path / "x.pt"


def test_the_configuration_is_shown_as_json(file: Path, capsys: Captured) -> None:
    assert main(["config", str(file), "--key", "my_config"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {"n_head": 2, "rates": [0.5, 1], "name": "größe\x1b"} and told.err == ""
    assert told.out.isascii() and "\x1b" not in told.out


def test_what_is_no_plain_data_is_left_out_and_named(file: Path, capsys: Captured) -> None:
    assert main(["config", str(file)]) == 0
    told = capsys.readouterr()
    assert list(json.loads(told.out)) == ["my_config"]
    assert told.err == "burnstore: left out values that are not plain data: 1 of numpy.ndarray; the first is w\n"
    assert main(["config", str(file), "--key", "w"]) == 2
    assert "expected plain data" in capsys.readouterr().err


def test_the_configuration_is_written(file: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "my_config.json"
    assert main(["config", str(file), "--key", "my_config", "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{file} -> {out}\n"
    assert json.loads(out.read_text("utf-8"))["n_head"] == 2
    assert main(["config", str(file), "-o", str(out)]) == 2
    assert "already" in capsys.readouterr().err
    assert main(["config", str(file), "--key", "my_config.rates", "-o", str(out), "--overwrite"]) == 0
    assert json.loads(out.read_text("utf-8")) == [0.5, 1]


def test_errors_are_told_with_the_file(file: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["config", str(file), "--key", "nothing"]) == 2
    told = capsys.readouterr().err
    assert str(file) in told and "my_config" in told
    assert main(["config", str(tmp_path / "missing.pt")]) == 2
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "nan.pt").write_bytes(pickle.dumps({"a": float("nan")}))
    assert main(["config", str(tmp_path / "nan.pt")]) == 2
    assert "a is nan" in capsys.readouterr().err
