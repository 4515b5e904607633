"""``burnstore merge``: what is printed, exit codes, and one clear line for every mistake."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from terminal import burnstore, run_here

import burnstore as bs

Captured = pytest.CaptureFixture[str]
F32 = np.float32


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    bs.save({"encoder.w": F32([1, 2]), "head.w": F32([4])}, "a.bpk")
    bs.save({"encoder.w": F32([3, 6]), "head.w": F32([8])}, "b.bpk")
    bs.save({"extra": F32([5])}, "c.bpk")
    return tmp_path


def values(path: str) -> dict[str, list[float]]:
    with bs.open(path) as f:
        return {name: array.tolist() for name, array in f.numpy().items()}


def test_an_overlay_is_the_default_and_every_tensor_is_told(folder: Path, capsys: Captured) -> None:
    code, out, err = run_here(capsys, "merge", "a.bpk", "c.bpk", "out.bpk")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "NAME       SOURCES",
        "encoder.w  1",
        "head.w     1",
        "extra      2",
        "",
        "out.bpk: 3 tensors, 16 B, unknown layout, verified",
        "  note: a.bpk and c.bpk do not state their layout: taken as stored",
    ]
    assert values("out.bpk") == {"encoder.w": [1, 2], "head.w": [4], "extra": [5]}


def test_weights_make_it_linear_and_patterns_have_their_own(folder: Path, capsys: Captured) -> None:
    code, out, _ = run_here(capsys, "merge", "a.bpk", "b.bpk", "out.bpk", "--t", "0.5", "--weight", "^head=0.25,0.75")
    assert code == 0 and "head.w     1+2      0.25, 0.75" in out
    assert values("out.bpk") == {"encoder.w": [2, 4], "head.w": [7]}
    code, _, _ = run_here(
        capsys, "merge", "a.bpk", "b.bpk", "a.bpk", "out.bpk", "--overwrite", "--weights=1,1,-1", "--cast", "f64"
    )
    assert code == 0 and values("out.bpk") == {"encoder.w": [3, 6], "head.w": [8]}
    with bs.open("out.bpk") as f:
        assert str(f["head.w"].dtype) == "F64"


def test_part_of_one_source_goes_over_another(folder: Path, capsys: Captured) -> None:
    arguments = ["--only", "2", r"^encoder\.", "--conflicts", "last", "--metadata", "by=me"]
    code, out, _ = run_here(capsys, "merge", "a.bpk", "b.bpk", "out.bpk", *arguments)
    assert code == 0 and values("out.bpk") == {"encoder.w": [3, 6], "head.w": [4]}
    assert "CONFLICT" in out and "2 sources have this tensor: a.bpk, b.bpk" in out
    code, _, _ = run_here(capsys, "merge", "a.bpk", "b.bpk", "two.bpk", "--rename", "2", "^=>other.")
    assert code == 0 and list(values("two.bpk")) == ["encoder.w", "head.w", "other.encoder.w", "other.head.w"]


def test_json_has_every_tensor(folder: Path, capsys: Captured) -> None:
    code, out, _ = run_here(capsys, "merge", "a.bpk", "b.bpk", "out.bpk", "--method", "slerp", "--json")
    told = json.loads(out)
    assert code == 0 and (told["schema"], told["sources"], told["target"]) == (1, ["a.bpk", "b.bpk"], "out.bpk")
    assert [row["name"] for row in told["tensors"]] == ["encoder.w", "head.w"]
    assert told["notes"] == ["blended linearly, because there is no arc between them: encoder.w, head.w"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.bpk", "b.bpk", "out.bpk"], "tensor 'encoder.w': 2 sources have this tensor: a.bpk, b.bpk"),
        (["a.bpk", "out.bpk", "--weights", "0.5"], "the weights add up to 0.5, not to 1"),
        (["a.bpk", "b.bpk", "out.bpk", "--weights", "1"], "expected 2 weights (one per source), got 1"),
        (["a.bpk", "c.bpk", "out.bpk", "--method", "linear"], "tensor 'encoder.w': missing in c.bpk"),
        (["a.bpk", "none.bpk", "out.bpk"], "none.bpk: no such file"),
        (["a.bpk", "c.bpk", "out.xyz"], "the file name has no suffix of a known format"),
        (["a.bpk", "c.bpk", "a.bpk", "--overwrite"], "source and target are the same file"),
        (["a.bpk", "c.bpk", "b.bpk"], "exists"),
        (["a.bpk"], "expected at least one source and a target"),
        (["a.bpk", "out.bpk", "--only", "2", "x"], "--only 2: sources are numbered from 1 to 1"),
        (["a.bpk", "out.bpk", "--only", "1", "^x"], "a.bpk: the filter '^x' matched no tensor of the target"),
        (["a.bpk", "out.bpk", "--only", "1", "("], "Invalid regex pattern"),
        (["a.bpk", "out.bpk", "--rename", "1", "x"], "'x' is not a rename rule"),
        (["a.bpk", "out.bpk", "--weights", "a,b"], "'a,b' is not a list of weights"),
        (["a.bpk", "out.bpk", "--weight", "0.5"], "'0.5' has no weights"),
        (["a.bpk", "out.bpk", "--cast", "i64"], "cannot cast values to I64"),
        (["a.bpk", "out.bpk", "--like", "nowhere:Net"], "nowhere:Net: no module 'nowhere'"),
        (["a.bpk", "c.bpk", "out.bpk", "--shard", "1MB"], "max_shard_size"),
    ],
)
def test_mistakes_are_told_in_one_line_and_leave_nothing_behind(
    folder: Path, capsys: Captured, arguments: list[str], message: str
) -> None:
    before = {name: (folder / name).read_bytes() for name in os.listdir(folder)}
    code, out, err = run_here(capsys, "merge", *arguments)
    first, *rest = err.splitlines()
    assert (code, out) == (2, "") and first.startswith("burnstore: error: ") and message in first
    assert all(line.startswith("  hint: ") for line in rest)
    assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == before


def test_the_hint_speaks_of_options(folder: Path, capsys: Captured) -> None:
    _, _, err = run_here(capsys, "merge", "a.bpk", "b.bpk", "out.bpk")
    assert err.endswith("; hint: choose with --conflicts first, last or skip\n")


def test_processes_do_the_same(folder: Path) -> None:
    for name, jobs in (("threads.bpk", []), ("processes.bpk", ["--jobs", "2"])):
        done = burnstore("merge", "a.bpk", "b.bpk", name, "--t", "0.3", *jobs, cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "threads.bpk").read_bytes() == (folder / "processes.bpk").read_bytes()


def test_names_from_files_are_harmless(folder: Path, capsys: Captured) -> None:
    bs.save({"a\x1b[31m\n": F32([1])}, "evil.bpk")
    code, out, _ = run_here(capsys, "merge", "c.bpk", "evil.bpk", "out.bpk")
    assert code == 0 and "\x1b" not in out and r"a\x1b[31m\n" in out
    code, _, err = run_here(capsys, "merge", "evil.bpk", "evil.bpk", "again.bpk")
    assert code == 2 and "\x1b" not in err
