"""What a new user gets wrong: every mistake has one line that helps, on stderr and, with --json, as a document."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from terminal import run_here

import burnstore as bs
from burnstore.cli import main
from burnstore.cli.parser import VERBS

torch = pytest.importorskip("torch")
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.save({"fc.weight": torch.ones(4, 3), "fc.bias": torch.zeros(4)}, "net.pt")
    torch.save({"fc.weight": torch.ones(3, 3), "fc.bias": torch.zeros(3)}, "square.pt")
    torch.save({"c": torch.zeros(3, dtype=torch.complex64)}, "complex.pt")
    torch.save({"state_dict": {"fc.weight": torch.ones(4, 3)}, "epoch": 3}, "train.pt")
    bs.save(torch.nn.Sequential(torch.nn.Linear(3, 4)), "net.bpk")
    bs.save({"w": np.ones(2, np.float32)}, "unknown.safetensors")
    for name in ("a1.bpk", "a2.bpk", "a10.bpk"):
        bs.save({name[:-4]: np.ones(2, np.float32)}, name, layout="burn")
    (tmp_path / "text.txt").write_text("hello\n")
    (tmp_path / "none").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("inspct net.pt", "'inspct' is not one of convert, inspect"),
        ("inspct net.pt", "(did you mean inspect?)"),
        ("inspect net.pt --colums name", "(did you mean --columns?)"),
        ("inspect net.pt --sort sise", "'sise' is not one of name, size, dtype, offset (did you mean size?)"),
        ("inspect nett.pt", "no such file; hint: did you mean net.pt?"),
        ("inspect *.zip", "*.zip: no file matches this pattern"),
        ("diff a1.bpk", "expected two files to compare"),
        ("diff a1.bpk a2.bpk a10.bpk", "expected two files, or files and a folder"),
        ("diff a1.bpk *.zip", "*.zip: no file matches this pattern"),
        ("merge a*.zip out.bpk", "a*.zip: no file matches this pattern"),
        ("convert *.zip out.bpk", "*.zip: no file matches this pattern"),
        ("convert net.pt none", "a folder as the target needs --format"),
        ("convert net.pt none --format burnpack --receipt r.json", "pass --receipt without FILE"),
        ("convert net.pt ./net.pt none/ --format safetensors", "net.pt and ./net.pt would both become net.safetensors"),
        ("merge a1.bpk a2.bpk o.bpk --weights 1", "expected 2 weights (one per source), got 1"),
        ("merge net.pt a1.bpk o.bpk", "--guess to decide by names and shapes"),
        ("convert a1.bpk a2.bpk", "hint: pass --overwrite"),
        (
            "convert complex.pt o.bpk --guess",
            "hint: leave it out with --filter, or save SafeTensors (.safetensors), which has it",
        ),
        ("convert square.pt o.bpk --guess", "tensor 'fc': ambiguous: a square matrix: Linear and Conv1D look the same"),
        ("report a1.bpk --layout torch", "--layout needs two files"),
        ("diff net.bpk a2.bpk --layout torch", 'layout="torch" contradicts the source: net.bpk states burn\'s layout'),
        ("merge net.bpk a2.bpk o.bpk --layout torch", 'layout="torch" contradicts the source'),
        ("skeleton text.txt --rust", "no known format begins with"),
        ("config none", "none"),
        ("migrate text.txt o.bpk", "is not a Burn record"),
    ],
)
def test_each_mistake_has_one_helpful_line_and_a_document(
    folder: Path, capsys: Captured, line: str, words: str
) -> None:
    before = sorted(os.listdir())
    code, _, err = run_here(capsys, *line.split())
    assert code == 2 and words in err and "Traceback" not in err
    assert err.startswith("burnstore: error: ") and err.count("\n") == 1
    code, out, _ = run_here(capsys, *line.split(), "--json")
    document = json.loads(out)
    error = document.get("error") or document.get("records", document.get("files"))[0]["error"]
    assert code == 2 and error["message"] and sorted(os.listdir()) == before


def test_a_failing_guess_does_not_recommend_itself(folder: Path, capsys: Captured) -> None:
    for line in ("convert square.pt o.bpk --guess", "convert a1.bpk o.safetensors --guess --target-layout torch"):
        code, _, err = run_here(capsys, *line.split())
        assert code == 2 and "--guess" not in err and "--like" in err


def test_every_verb_has_json(capsys: Captured) -> None:
    for verb in VERBS:
        code, out, _ = run_here(capsys, verb, "--help")
        assert code == 0 and "--json" in out, verb


def test_code_and_configuration_come_as_json(folder: Path, capsys: Captured) -> None:
    code, out, _ = run_here(capsys, "config", "train.pt", "--json")
    document = json.loads(out)
    assert code == 0 and document["config"] == {"state_dict": {}, "epoch": 3}
    assert document["left_out"] == [{"path": "state_dict.fc.weight", "type": "torch.Tensor"}]
    for line in ("outline --rust", "skeleton net.pt --rust"):
        code, out, _ = run_here(capsys, *line.split(), "--json")
        assert code == 0 and "struct" in json.loads(out)["source"]
    code, out, _ = run_here(capsys, "completion", "bash", "--json")
    assert code == 0 and "burnstore" in json.loads(out)["script"]


def test_notes_use_the_words_of_the_command_line(folder: Path, capsys: Captured) -> None:
    code, out, _ = run_here(capsys, "inspect", "train.pt")
    assert code == 0 and "--top-level-key '' takes everything" in out and "top_level_key" not in out


def test_patterns_stand_for_files_in_the_order_of_their_numbers(folder: Path, capsys: Captured) -> None:
    code, out, _ = run_here(capsys, "merge", "a*.bpk", "all.bpk")
    assert code == 0 and [line.split()[:2] for line in out.splitlines()[1:4]] == [
        ["a1", "1"],
        ["a2", "2"],
        ["a10", "3"],
    ]
    code, out, _ = run_here(capsys, "convert", "a?.bpk", "both.safetensors", "--keep-layout")
    assert code == 0 and "2 tensors" in out
    for verb in ("inspect", "verify", "scan"):
        code, out, _ = run_here(capsys, verb, "a*.bpk")
        assert code == 0 and "a10.bpk" in out and "a1.bpk" in out
    Path("a[1].bpk").write_bytes(Path("a1.bpk").read_bytes())  # a file of this name is that file
    code, out, _ = run_here(capsys, "diff", "a[1].bpk", "a1.bpk")
    assert code == 0 and "all equal" in out


def test_each_source_goes_into_a_folder(folder: Path, capsys: Captured) -> None:
    line = ["convert", "net.pt", "square.pt", "complex.pt", "out/", "--format", "safetensors"]
    code, out, _ = run_here(capsys, *line)
    assert code == 0 and sorted(os.listdir("out")) == ["complex.safetensors", "net.safetensors", "square.safetensors"]
    assert out.count("verified") == 3
    code, out, _ = run_here(capsys, *line, "--json")
    conversions = json.loads(out)["conversions"]
    assert code == 2 and len(conversions) == 3 and {one["error"]["hint"] for one in conversions} == {"pass --overwrite"}


def test_files_are_compared_with_those_of_their_names_in_a_folder(folder: Path, capsys: Captured) -> None:
    for name in ("one", "two"):
        os.mkdir(name)
    for name in ("a1.bpk", "a2.bpk"):
        for place in ("one", "two"):
            Path(place, name).write_bytes(Path(name).read_bytes())
    bs.save({"a2": np.zeros(2, np.float32)}, "two/a2.bpk", layout="burn", overwrite=True)
    code, out, _ = run_here(capsys, "diff", "one/a1.bpk", "one/a2.bpk", "two")
    assert code == 1 and "1 tensor, all equal" in out and "1 changed" in out and "2 of 2 pairs of files compared" in out
    code, out, _ = run_here(capsys, "diff", "one/a1.bpk", "two")
    assert code == 0 and "all equal" in out
    Path("two/a3.bpk").write_bytes(Path("a1.bpk").read_bytes())
    code, out, _ = run_here(capsys, "diff", "one", "two", "--json")
    document = json.loads(out)
    assert code == 1 and [each["is_equal"] for each in document["diffs"]] == [True, False]
    assert document["only_in_second"] == [os.path.join("two", "a3.bpk")]
    code, out, err = run_here(capsys, "diff", "one/a1.bpk", "a10.bpk", "two", "--json")
    assert code == 2 and "a10.bpk: no such file" in err and json.loads(out)["diffs"][1]["error"]["message"]


def test_a_layout_that_a_format_contradicts_is_noted_by_every_verb(folder: Path, capsys: Captured) -> None:
    code, out, _ = run_here(capsys, "diff", "a1.bpk", "a1.bpk", "--layout", "torch")
    assert code == 0 and "read as torch's, because of --layout torch" in out
    code, out, _ = run_here(capsys, "merge", "a1.bpk", "a2.bpk", "o.safetensors", "--layout", "torch")
    assert code == 0 and "read as torch's, because of --layout torch (and 1 more like this)" in out


@pytest.mark.parametrize("arguments", [["inspect", "-dash.bpk"], ["verify", "-dash.bpk"]])
def test_the_name_of_a_file_that_begins_with_a_dash_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-dash.bpk").write_bytes(b"x")
    assert main(arguments) == 2
    assert f"write {os.path.join(os.curdir, '-dash.bpk')}" in capsys.readouterr().err


def test_paths_that_stand_for_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bs.save({"w": np.ones(2)}, "m.bpk", layout="burn")
    for arguments, text in (
        (["inspect", "-"], "- stands for no file"),
        (["convert", "m.bpk", "-", "--format", "safetensors"], "- stands for no file"),
        (["inspect", ""], "the path is empty"),
        (["convert", "m.bpk", "none/x.safetensors"], "no such folder; hint: create the folder first"),
        (["report", "m.bpk", "-o", "none/r.html"], "no such folder; hint: create the folder first"),
        (["inspect", ".\\m.bpk"], "did you mean ./m.bpk?"),
    ):
        assert main(arguments) == 2
        assert text in capsys.readouterr().err, arguments
    assert os.listdir() == ["m.bpk"]
