"""``burnstore diff``: exit codes, what it says, and that it says it safely."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.cli import main

Captured = pytest.CaptureFixture[str]
F32 = np.float32
OLD = {"same": F32([1, 2]), "w": F32([[1, 2], [3, 4]]), "old": F32([5, 6, 7]), "gone": np.int8([1])}
NEW = {"same": F32([1, 2]), "w": F32([[1, 2], [3, 4.5]]), "new": F32([5, 6, 7]), "more": np.int16([1])}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bs.save(OLD, tmp_path / "a.bpk", metadata={"epochs": "3"})
    bs.save(NEW, tmp_path / "b.bpk", metadata={"epochs": "4", "by": "me\x1b[2J"}, scalars={"step": 7})
    bs.save(OLD, tmp_path / "c.safetensors", metadata={"burnstore.layout": "burn"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["diff", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_equal_files_are_said_to_be_equal(folder: Path, capsys: Captured) -> None:
    assert told(capsys, "a.bpk", "a.bpk") == (0, "a.bpk -> a.bpk\n  4 tensors, all equal\n", "")
    code, out, err = told(capsys, "a.bpk", "c.safetensors")
    assert (code, err) == (0, "") and "4 tensors, all equal" in out


def test_differences_are_shown_as_a_table(folder: Path, capsys: Captured) -> None:
    code, out, err = told(capsys, "a.bpk", "b.bpk")
    assert (code, err) == (1, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[:7] == [
        "a.bpk -> b.bpk",
        "  5 tensors: 1 equal, 1 moved, 1 changed, 1 added, 1 removed",
        "  note: a.bpk and b.bpk do not state their layout: compared as stored",
        "  scalar step: none -> 7 (Int)",
        "  metadata epochs: 3 -> 4",
        "  metadata by: none -> me\\x1b[2J",
        "",
    ]
    assert [" ".join(line.split()) for line in lines[7:]] == [
        "STATUS NAME DTYPE SHAPE DIFFERING MAX ABS MAX ULP REL L2 COSINE REMARK",
        "moved old -> new F32 [3] - - - - - -",
        "changed w F32 [2,2] 1/4 0.5 1048576 0.09129 0.998295 largest at [1,1]",
        "added more I16 [1] - - - - - -",
        "removed gone I8 [1] - - - - - -",
    ]


def test_json_has_everything(folder: Path, capsys: Captured) -> None:
    code, out, _ = told(capsys, "a.bpk", "b.bpk", "--json")
    document = json.loads(out)
    assert code == 1 and document["schema"] == 1 and document["is_equal"] is False
    assert document["metadata"]["epochs"] == ["3", "4"] and "\x1b" not in out
    statuses = {each["name"] or each["new_name"]: each["status"] for each in document["tensors"]}
    assert statuses == {"same": "equal", "w": "changed", "old": "moved", "gone": "removed", "more": "added"}


@pytest.mark.parametrize(("option", "value"), [("--tolerance", "0.5"), ("--relative-tolerance", "0.2")])
def test_within_the_tolerance_is_fine(folder: Path, capsys: Captured, option: str, value: str) -> None:
    code, out, _ = told(capsys, "a.bpk", "b.bpk", "--filter", "^(same|w)$", option, value)
    assert code == 1 and "1 equal, 1 close" in out  # the scalar still differs
    bs.save(NEW, folder / "d.bpk")
    code, out, _ = told(capsys, "a.bpk", "d.bpk", "--filter", "^(same|w)$", option, value)
    assert code == 0 and "STATUS" not in out
    assert told(capsys, "a.bpk", "d.bpk", "--filter", "^(same|w)$", option, "0.001")[0] == 1


def test_a_filter_that_matches_nothing_is_no_equality(folder: Path, capsys: Captured) -> None:
    code, _, err = told(capsys, "a.bpk", "b.bpk", "--filter", "nobody")
    assert code == 1 and err == "burnstore: --filter nobody matches no tensor\n"


def test_the_table_can_be_limited(folder: Path, capsys: Captured) -> None:
    _, out, _ = told(capsys, "a.bpk", "b.bpk", "--limit", "1")
    assert "(3 more; --limit 1)" in out and "removed" not in out.split("STATUS")[1]


def test_other_dtypes_can_be_ignored(folder: Path, capsys: Captured) -> None:
    bs.save({**OLD, "w": OLD["w"].astype(np.float64)}, folder / "d.bpk")
    code, out, _ = told(capsys, "a.bpk", "d.bpk")
    assert code == 1 and "F32 -> F64" in out and "equal values" in out
    assert told(capsys, "a.bpk", "d.bpk", "--ignore-dtype")[0] == 0


@pytest.mark.usefixtures("spawning")
def test_processes_can_do_it(folder: Path, capsys: Captured) -> None:
    assert told(capsys, "a.bpk", "b.bpk", "--quiet", "--jobs", "2") == told(capsys, "a.bpk", "b.bpk")


# --- layouts ----------------------------------------------------------------------------------------------------------

TORCH = {"fc.weight": np.arange(12, dtype=F32).reshape(4, 3), "fc.bias": np.ones(4, F32)}


@pytest.fixture
def layouts(folder: Path) -> Path:
    bs.save(TORCH, folder / "t.safetensors", metadata={"format": "pt"})
    bs.convert(
        folder / "t.safetensors", folder / "t.bpk", pipeline=bs.Pipeline(rules={"^fc$": "Linear"}, record_modules=False)
    )
    return folder


def test_files_of_other_layouts_need_somebody_who_tells(layouts: Path, capsys: Captured) -> None:
    code, out, err = told(capsys, "t.safetensors", "t.bpk")
    assert (code, out) == (2, "")
    assert err.splitlines()[0].startswith("burnstore: error: t.safetensors: its tensors have torch's layout")
    assert "--like" in err and "--rules FILE" in err and "--keep-layout" in err


def test_a_model_a_file_of_rules_or_keeping_the_layout_helps(
    layouts: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (layouts / "diff_net.py").write_text(
        "from burnstore import nn\nclass Net(nn.Module):\n    def __init__(self): self.fc = nn.Linear(3, 4)\n"
    )
    (layouts / "rules").write_text("^fc$ = Linear\n")
    for way in (("--like", "diff_net:Net"), ("--rules", "rules")):
        code, out, _ = told(capsys, "t.safetensors", "t.bpk", *way)
        assert code == 0 and "  compared in Burn's layout\n" in out
    code, out, _ = told(capsys, "t.safetensors", "t.bpk", "--keep-layout")
    assert code == 1 and "[4,3] -> [3,4]" in out


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a.bpk", "absent.bpk"), "absent.bpk: no such file"),
        (("a.bpk", "broken.bpk"), "broken.bpk: "),
        (("broken.bpk", "a.bpk"), "broken.bpk: "),
        (("a.bpk", "t.safetensors", "--like", "no_such_module:Net"), "no_such_module"),
        (("a.bpk", "b.bpk", "--rules", "absent"), "absent"),
        (("a.bpk",), "expected two files to compare"),
        (("a.bpk", "b.bpk", "--tolerance", "-1"), "'-1' is not a number of 0 or more"),
        (("a.bpk", "b.bpk", "--tolerance", "nan"), "'nan' is not a number of 0 or more"),
        (("a.bpk", "b.bpk", "--filter", "("), "Invalid regex pattern"),
        (("a.bpk", "b.bpk", "--jobs", "0"), "is not a number of processes"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    layouts: Path, capsys: Captured, arguments: tuple[str, ...], said: str
) -> None:
    (layouts / "broken.bpk").write_bytes((layouts / "a.bpk").read_bytes()[:-1])
    code, out, err = told(capsys, *arguments)
    assert (code, out) == (2, "") and err.startswith("burnstore: error: ") and said in err
    assert len([line for line in err.splitlines() if not line.startswith("  hint")]) == 1


def test_names_are_printed_safely(folder: Path, capsys: Captured) -> None:
    bs.save({"\x1b[31mred\n": F32([1])}, folder / "x.bpk")
    bs.save({"\x1b[31mred\n": F32([2])}, folder / "y.bpk")
    _, out, _ = told(capsys, "x.bpk", "y.bpk")
    assert "\x1b" not in out and "\\x1b[31mred\\n" in out


def test_help_has_examples_and_exit_codes(capsys: Captured) -> None:
    assert main(["diff", "--help"]) == 0
    out = capsys.readouterr().out
    assert "examples:" in out and "exit codes:" in out


def test_progress_goes_to_stderr_and_quiet_silences_it(folder: Path, capsys: Captured, monkeypatch: Any) -> None:
    from burnstore.cli import progress

    monkeypatch.setattr(progress._Lines, "patience", -1.0)
    monkeypatch.setattr(progress._Lines, "between", -1.0)
    assert "b.bpk" in told(capsys, "a.bpk", "b.bpk")[2]
    assert told(capsys, "a.bpk", "b.bpk", "--quiet")[2] == ""
