"""``burnstore convert`` as people meet it: what it prints, what it refuses, and that nothing is half-written."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.cli import main

pytestmark = pytest.mark.usefixtures("spawning")

NET = """
from burnstore import nn

class Net(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(6, 4)
        self.norm = nn.LayerNorm(4)
"""


def rand(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


TENSORS = {"fc.weight": rand(4, 6), "fc.bias": rand(4), "norm.weight": rand(4), "norm.bias": rand(4)}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and its declaration, and in it."""
    bs.save(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def burnstore(*arguments: object, **options: Any) -> tuple[int, str, str]:
    """A real process: its exit code, what it printed, and what it complained of."""
    environment = {**os.environ, "PYTHONPATH": str(Path(bs.__file__).parent.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "burnstore", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
        **options,
    )
    return done.returncode, done.stdout, done.stderr


def refused(complaint: str, *arguments: object, **options: Any) -> str:
    """It ends with 2, one line says what is wrong and what to do, and the folder is as it was."""
    folder = options.get("cwd") or Path.cwd()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    code, out, err = burnstore("convert", *arguments, **options)
    assert (code, out) == (2, ""), (out, err)
    assert err.startswith("burnstore: error: ") and complaint in err and err.count("\n") == 1, err
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    return err


# --- what it does -----------------------------------------------------------------------------------------------------


def test_into_another_format_and_into_burns_layout(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert burnstore("convert", "model.safetensors", "copy.safetensors") == (
        0,
        "copy.safetensors: 4 tensors, 144 B, torch's layout, verified\n",
        "",
    )
    assert burnstore("convert", "model.safetensors", "model.bpk", "--like", "net:Net") == (
        0,
        "model.bpk: 4 tensors, 144 B, torch's layout -> burn's, verified\n",
        "",
    )
    with bs.open("model.bpk") as f:
        assert list(f) == ["fc.weight", "fc.bias", "norm.gamma", "norm.beta"]
        assert np.array_equal(f["fc.weight"].numpy(), TENSORS["fc.weight"].T)


def test_every_option_reaches_the_library(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "rules").write_text("^head$ = Linear\n")
    options = ["--filter", r"^head\.", "--rename", r"^fc\.=>head.", "--rules", "rules", "--cast", "f16"]
    options += ["--metadata", "epochs=3", "--metadata", "note=a=b", "--receipt", "--jobs", "2", "--quiet"]
    assert main(["convert", "model.safetensors", "x.bpk", *options]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == ["x.bpk: 2 tensors, 56 B, torch's layout -> burn's, verified", "  receipt: x.bpk.receipt.json"]
    with bs.open("x.bpk") as f:
        assert {name: str(f[name].dtype) for name in f} == {"head.weight": "F16", "head.bias": "F16"}
        assert (f.metadata["epochs"], f.metadata["note"]) == ("3", "a=b")
    assert main(["convert", "--replay", "x.bpk.receipt.json", "y.bpk"]) == 0
    assert Path("x.bpk").read_bytes() == Path("y.bpk").read_bytes()
    options = ["--shard", "60", "--resume", "--no-verify", "--adapter", "HalfPrecisionAdapter", "--like", "net:Net"]
    assert main(["convert", "model.safetensors", "set.safetensors", *options]) == 0
    assert "set.safetensors.index.json and 2 shards: 4 tensors" in capsys.readouterr().out
    assert main(["convert", "model.safetensors", "old.bpk", "--keep-layout", "--burn-version", "0.20"]) == 0
    with bs.open("old.bpk") as f:
        assert f.layout == "torch"
    assert main(["convert", "old.bpk", "back.safetensors"]) == 0
    assert main(["convert", "model.safetensors", "z.bpk", "--layout", "burn", "--no-record"]) == 0
    assert main(["convert", "x.bpk", "w", "--format", "safetensors", "--target-layout", "torch", "--overwrite"]) == 0


def test_an_interrupted_conversion_is_resumed_by_the_option_of_the_command_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("set.safetensors.burnstore-resume.json").write_text("{}")
    assert main(["convert", "model.safetensors", "set.safetensors", "--shard", "60"]) != 0
    told = capsys.readouterr().err
    assert "resume it with --resume, or delete set.safetensors.burnstore-resume.json to start over" in told


def test_json_is_one_document(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "model.safetensors", "x.bpk", "--guess", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["burnstore"] == bs.__version__ and document["schema"] == 1
    assert (document["tensors"], document["layout"], document["verified"]) == (4, "burn", True)
    assert document["guess"] == {"fc": "Linear", "norm": "LayerNorm"} and set(document["evidence"]) == set(TENSORS)


def test_a_guess_shows_its_evidence_and_writes_only_what_is_certain(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "model.safetensors", "x.bpk", "--guess"]) == 0
    assert "  fc.weight: Linear (the bias has as many numbers as the weight has rows)" in capsys.readouterr().out
    square = {**TENSORS, "out.weight": rand(4, 4), "out.bias": rand(4), "c.weight": rand(3, 5), "c.bias": rand(5)}
    bs.save(square, "square.safetensors", metadata={"format": "pt"})
    assert main(["convert", "square.safetensors", "y.bpk", "--guess"]) == 2
    out, err = capsys.readouterr()
    assert "  fc.bias: Linear" in out and "  out.weight: ambiguous (a square matrix" in out and "Conv1D" in out
    assert err.startswith("burnstore: error: square.safetensors: tensor '") and "2 modules are ambiguous" in err
    assert "--rules FILE" in err and not Path("y.bpk").exists()


def test_progress_is_on_stderr_only_and_can_be_left_out(here: Path) -> None:
    code, out, err = burnstore("convert", "model.safetensors", "x.bpk", "--keep-layout", "--quiet")
    assert (code, err) == (0, "") and out.count("\n") == 1


# --- what it refuses --------------------------------------------------------------------------------------------------


def test_source_and_target_are_one_file(here: Path) -> None:
    err = refused("source and target are the same file", "model.safetensors", "model.safetensors", "--overwrite")
    assert "another name" in err
    (here / "link.safetensors").symlink_to("model.safetensors")
    os.link("model.safetensors", "hard.safetensors")
    for name in ("link.safetensors", "hard.safetensors", "./model.safetensors"):
        refused("same file", "model.safetensors", name, "--overwrite")
        refused("same file", name, "model.safetensors")


def test_the_target_exists(here: Path) -> None:
    (here / "x.bpk").write_bytes(b"precious")
    err = refused("File already exists", "model.safetensors", "x.bpk", "--keep-layout")
    assert err.endswith("; hint: pass --overwrite\n")


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize(
    ("name", "complaint", "advice"),
    [
        ("x.xyz", "the file name has no suffix of a known format", "--format"),
        ("x", "the file name has no suffix of a known format", "--format"),
        ("x.mpk", "a record is written from a model", ".bpk"),
        ("no/such/folder/x.bpk", "no such", ""),
    ],
)
def test_targets_that_cannot_be_written(here: Path, name: str, complaint: str, advice: str) -> None:
    assert advice in refused(complaint, "model.safetensors", name, "--keep-layout")


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize(
    ("like", "complaint"),
    [
        ("nett:Net", "no module 'nett'"),
        ("net:Nett", "has no Nett"),
        ("broken:Net", "the import failed: ZeroDivisionError"),
        ("needs:Net", "cannot be called without arguments"),
        ("raises:Net", "calling Net failed: RuntimeError: no luck today"),
        ("net:NUMBER", "expected a model"),
        ("gone.bpk", "no such file"),
        ("model.safetensors", "neither records its modules"),
        ("garbage.bpk", "no known format begins with"),
    ],
)
def test_a_model_that_cannot_be_had(here: Path, like: str, complaint: str) -> None:
    (here / "broken.py").write_text("1 / 0\n")
    (here / "needs.py").write_text("class Net:\n    def __init__(self, size):\n        pass\n")
    (here / "raises.py").write_text(
        "class Net:\n    def __init__(self):\n        raise RuntimeError('no luck\\ntoday')\n"
    )
    (here / "net.py").write_text(NET + "\nNUMBER = 3\n")
    (here / "garbage.bpk").write_bytes(b"garbage")
    refused(complaint, "model.safetensors", "x.bpk", "--like", like)


def test_nothing_tells_the_modules(here: Path) -> None:
    err = refused("nothing states the kinds of the modules", "model.safetensors", "x.bpk")
    for way in ("--like MODULE:NAME", "--rules FILE", "--guess", "--keep-layout"):
        assert way in err


def test_two_sources_have_the_same_names(here: Path) -> None:
    bs.save({"fc.bias": rand(4)}, "other.safetensors", metadata={"format": "pt"})
    err = refused("fc.bias", "model.safetensors", "other.safetensors", "x.safetensors")
    assert "both model.safetensors and other.safetensors have this tensor" in err and "merge" in err


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("not-there.pt", "no such file"),
        ("modell.safetensors", "no such file"),
        ("empty.pt", "the file is empty"),
        ("garbage.pt", "no known format begins with"),
        ("cut.safetensors", ""),
        ("folder", "the directory has no checkpoint"),
        ("pipe", "not a regular file"),
        ("loop", ""),
    ],
)
def test_sources_that_cannot_be_read(here: Path, source: str, complaint: str) -> None:
    (here / "empty.pt").write_bytes(b"")
    (here / "garbage.pt").write_bytes(b"garbage!" * 100)
    (here / "cut.safetensors").write_bytes((here / "model.safetensors").read_bytes()[:-5])
    (here / "folder").mkdir()
    os.mkfifo("pipe")
    os.symlink("loop", "loop")
    refused(complaint, source, "x.bpk", "--keep-layout")


_SOMEBODY = """
import os, sys
from burnstore.cli import main
main(["convert", "not there", sys.argv[2]])  # imports what a complaint needs, while everything can be read
sys.stderr.flush()
os.dup2(3, 2)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(main(["convert", sys.argv[1], sys.argv[2]]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not read a file")
def test_a_source_that_may_not_be_read(here: Path, tmp_path: Path) -> None:
    (here / "model.safetensors").chmod(0)
    target = here / "out" / "x.safetensors"
    target.parent.mkdir()
    for folder in (target.parent, here, *here.parents[:3]):
        folder.chmod(0o777)
    with (tmp_path / "stderr").open("wb") as stderr:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _SOMEBODY.replace("os.dup2(3, 2)", f"os.dup2({stderr.fileno()}, 2)"),
                str(here / "model.safetensors"),
                str(target),
            ],
            capture_output=True,
            text=True,
            check=False,
            pass_fds=[stderr.fileno()],
        )
    err = (tmp_path / "stderr").read_text()
    assert (done.returncode, done.stdout) == (2, "") and os.listdir(target.parent) == []
    assert err.startswith("burnstore: error: ") and "Permission denied" in err and err.count("\n") <= 2


def test_a_full_disk(here: Path) -> None:
    """A limit on the size of files stands for it: the kernel refuses the room in the same call."""
    bs.save({"w": np.zeros(1 << 20, np.float32)}, "big.safetensors")

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    err = refused("not saved", "big.safetensors", "x.safetensors", preexec_fn=limit)
    assert "space" in err or "write" in err


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root can mount a small disk")
def test_a_disk_that_is_really_full(here: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount: " + mounted.stderr.decode().strip())
    try:
        bs.save({"w": np.zeros(1 << 20, np.float32), "v": np.zeros(9, np.float32)}, "big.safetensors")
        (disk / "kept").write_bytes(b"kept")
        for options in ([], ["--shard", "600kb"], ["--jobs", "2"]):
            err = refused("no space", here / "big.safetensors", disk / "x.safetensors", *options, cwd=disk)
            assert "No space left on device" in err
            assert os.listdir(disk) == ["kept"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["model.safetensors"],
        ["--replay", "r.json", "a", "b"],
        ["model.safetensors", "x.safetensors", "--cast", "int8"],
        ["model.safetensors", "x.safetensors", "--cast", "nonsense"],
        ["model.safetensors", "x.safetensors", "--rename", "nonsense"],
        ["model.safetensors", "x.safetensors", "--rename", "(=>x"],
        ["model.safetensors", "x.safetensors", "--filter", "("],
        ["model.safetensors", "x.safetensors", "--filter", "^nothing$"],
        ["model.safetensors", "x.safetensors", "--shard", "many"],
        ["model.safetensors", "x.safetensors", "--metadata", "nothing"],
        ["model.safetensors", "x.safetensors", "--adapter", "Unheard"],
        ["model.safetensors", "x.safetensors", "--jobs", "0"],
        ["model.safetensors", "x.safetensors", "--resume"],
        ["model.safetensors", "x.safetensors", "--receipt", "--no-verify"],
        ["model.safetensors", "x.bpk", "--rules", "not-there"],
        ["model.safetensors", "x.bpk", "--shard", "5GB", "--keep-layout"],
        ["model.safetensors", "x.bpk", "--keep-layout", "--burn-version", "9.9"],
        ["--replay", "not-there.json"],
        ["--replay", "net.py"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_told_in_one_line(
    here: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(os.listdir())
    assert main(["convert", *arguments]) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and lines[0].startswith("burnstore: error: ") and len(lines) <= 2 and "Traceback" not in err
    assert sorted(os.listdir()) == before


@pytest.mark.slow("starts Python")
def test_ctrl_c_leaves_the_old_file_and_ends_with_130(here: Path) -> None:
    bs.save({f"w{n}": rand(2000, 2000) for n in range(12)}, "big.safetensors", durable=False)
    (here / "out").mkdir()
    target = here / "out" / "x.safetensors"
    for seconds in (0.5, 0.8, 1.1, 1.4):
        target.write_bytes(b"old")
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "burnstore",
                "convert",
                "big.safetensors",
                str(target),
                "--overwrite",
                "--cast",
                "f16",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        if process.returncode == 0:
            break
        if process.returncode == -signal.SIGINT or b"KeyboardInterrupt" in err:
            continue  # before it began: Python itself was still starting
        assert (process.returncode, out) == (130, b""), err
        assert target.read_bytes() == b"old" and os.listdir(here / "out") == ["x.safetensors"]
