"""Progress on stderr: bars in a terminal, lines elsewhere, nothing of what is soon done; and Ctrl-C in the middle."""

from __future__ import annotations

import itertools
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from terminal import burnstore, environment, in_terminal

import burnstore as bs
from burnstore import nn
from burnstore.cli import progress as module
from burnstore.cli.progress import ProgressDisplay, shown_progress
from burnstore.progress import phase
from burnstore.stores.records import NamedMpkFileRecorder, save_file

Captured = pytest.CaptureFixture[str]
Pretend = Callable[[], None]
Slow = Callable[[float], None]
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
COMMANDS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose tensors take seconds to read, and no room on the disk: it has holes."""
    folder = tmp_path_factory.mktemp("large")
    each, count = 1 << 28, 24
    header = json.dumps(
        {
            f"t{at}": {"dtype": "F16", "shape": [each // 2], "data_offsets": [at * each, (at + 1) * each]}
            for at in range(count)
        }
    ).encode()
    with open(folder / "large.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        out.truncate(8 + len(header) + each * count)
    return folder / "large.safetensors"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Make every look at the clock come so many seconds after the last."""

    def tick(seconds: float) -> None:
        clock = itertools.count(100.0, seconds)
        monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))

    return tick


@pytest.fixture
def in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> Pretend:
    """Let the stderr that is captured look like a terminal."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return lambda: monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def on_screen(written: str) -> list[str]:
    """The frames that were drawn, without colours."""
    return [COMMANDS.sub("", frame).strip("\n\r ") for frame in written.split("\r")]


@pytest.mark.slow("a large file")
def test_a_terminal_shows_a_bar_with_bytes_speed_and_what_is_left(large: Path) -> None:
    written, code = in_terminal(100, "inspect", "--stats", large, stream="stderr", interrupt_at="GB/s, ")
    assert code == 130
    frame = next(frame for frame in on_screen(written) if "GB/s" in frame)
    assert re.fullmatch(r"large\.safetensors ━*─* [\d.]+( MiB)? of 6\.0 GiB, \d+\.\d\d GB/s, .+ left", frame)


@pytest.mark.slow("a large file")
def test_the_bar_is_gone_in_the_end_and_the_cursor_is_back(large: Path) -> None:
    written, _ = in_terminal(100, "inspect", "--stats", large, stream="stderr", interrupt_at="GB/s, ")
    after = written.rpartition(HIDE)[2]
    assert written.count(HIDE) == written.count(SHOW) == 1
    assert after.endswith("\x1b[2K")
    assert "Traceback" not in written and "KeyboardInterrupt" not in written


@pytest.mark.parametrize("columns", [10, 20, 40, 100])
def test_a_bar_fits_into_its_terminal(
    columns: int, slow: Slow, in_a_terminal: Pretend, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    in_a_terminal()
    slow(1.0)
    with ProgressDisplay() as display:
        display.show("model-00001-of-00003.safetensors", 5 << 30, 12 << 30)
    frames = on_screen(capsys.readouterr().err)
    assert 5 < max(map(len, frames)) <= columns


# The command, with bars from the first moment on, and each of them shown for a while.
UNHURRIED = """
import sys, time
from burnstore.cli import main, progress

progress._Bar.patience = progress._Bar.between = 0.0
draw = progress._Bar.draw
progress._Bar.draw = lambda *told: (draw(*told), time.sleep(0.25))
sys.exit(main(sys.argv[1:]))
"""


def prepared(verb: str, folder: Path) -> list[object]:
    """The arguments of a job that writes model.bpk for a while."""
    if verb == "migrate":
        save_file(nn.Linear(4096, 1024), folder / "source", NamedMpkFileRecorder(), durable=False)
        return [folder / "source.mpk"]
    tensors = {f"t{at}": np.zeros(1 << 20, np.float32) for at in range(40)}
    bs.save(tensors, folder / "source.safetensors", durable=False)
    return [folder / "source.safetensors", *(["--keep-layout"] if verb == "convert" else [])]


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("verb", ["migrate", "convert"])
def test_ctrl_c_while_a_file_is_written_leaves_the_old_one(verb: str, tmp_path: Path) -> None:
    source, *options = prepared(verb, tmp_path)
    target = tmp_path / "model.bpk"
    target.write_bytes(b"the old file")
    before = sorted(os.listdir(tmp_path))
    written, code = in_terminal(
        *(100, verb, source, target, "--overwrite", *options),
        stream="stderr",
        interrupt_at=" of ",
        program=("-c", UNHURRIED),
    )
    assert code == 130, written
    assert "Traceback" not in written and "error" not in written
    if verb == "convert":
        assert written.endswith(f"burnstore: interrupted: {target} is unchanged\n")
    assert written.count(HIDE) == written.count(SHOW) == 1
    assert target.read_bytes() == b"the old file"
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("resume", [True, False])
def test_ctrl_c_says_how_to_go_on_with_shards(resume: bool, tmp_path: Path) -> None:
    source, *_ = prepared("convert", tmp_path)
    options = ["--shard", "20MB", *(["--resume"] if resume else [])]
    written, code = in_terminal(
        *(100, "convert", source, tmp_path / "out.safetensors", *options),
        stream="stderr",
        interrupt_at="verify",
        program=("-c", UNHURRIED),
    )
    assert code == 130, written
    told = written.rpartition("burnstore: interrupted: ")[2]
    if resume:
        assert told.startswith("complete shards are kept; run the same command with --resume to continue")
        assert (tmp_path / "out.safetensors.burnstore-resume.json").exists()
    else:
        assert told.endswith("out.safetensors is not written; with --resume complete shards would be kept\n")
        assert sorted(os.listdir(tmp_path)) == ["source.safetensors"]


def test_nothing_is_shown_of_work_that_is_soon_done(tmp_path: Path) -> None:
    bs.save({"x": np.zeros(3, np.float32)}, tmp_path / "x.bpk", durable=False)
    assert in_terminal(100, "inspect", "--stats", tmp_path / "x.bpk", stream="stderr") == ("", 0)


def draw(display: ProgressDisplay, *positions: int) -> None:
    for done in positions:
        display.show("x.bpk", done, 10_000)


def test_elsewhere_a_line_is_written_now_and_then(slow: Slow, capsys: Captured) -> None:
    slow(2.0)
    with ProgressDisplay() as display:
        draw(display, *range(1000, 11_000, 1000))
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [  # 1000 bytes every 2 s since the first report
        "burnstore: x.bpk: 2.9 of 9.8 KiB, 0.00 GB/s, 14 s left",
        "burnstore: x.bpk: 5.9 of 9.8 KiB, 0.00 GB/s, 8 s left",
        "burnstore: x.bpk: 8.8 of 9.8 KiB, 0.00 GB/s, 2 s left",
    ]


def test_the_clock_starts_with_the_work_and_each_phase_has_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    display = ProgressDisplay()
    now[0] = 3600.0  # an hour to open the file and to plan
    display.show("x", 0, 20_000_000_000)
    with phase("write"):
        for done in range(1, 11):
            now[0] += 10.0
            display.show("x", done * 1_000_000_000, 20_000_000_000)
    with phase("verify"):
        for done in range(11, 14):
            now[0] += 5.0
            display.show("x", done * 1_000_000_000, 20_000_000_000)
    lines = [line.removeprefix("burnstore: x: ") for line in capsys.readouterr().err.splitlines()]
    assert lines[:2] == ["0 B of 18.6 GiB", "write: 953.7 MiB of 18.6 GiB"]
    assert lines[2] == "write: 1.9 of 18.6 GiB, 0.10 GB/s, 3 min 0 s left"
    assert lines[10] == "write: 9.3 of 18.6 GiB, 0.10 GB/s, 1 min 40 s left"
    assert lines[11] == "verify: 10.2 of 18.6 GiB"  # nothing is known yet of its speed
    assert lines[13] == "verify: 12.1 of 18.6 GiB, 0.20 GB/s, 35 s left"


@pytest.mark.parametrize(("done", "seconds"), [(1, 600.0), (0, 600.0), (500, 0.01), (10_000, 5.0)])
def test_no_time_is_shown_that_means_nothing(
    done: int, seconds: float, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module._Lines, "patience", 0.0)
    display = ProgressDisplay()
    display.show("x", 0, 10_000)
    now[0] += seconds
    display.show("x", done, 10_000)
    assert " left" not in capsys.readouterr().err


def test_work_of_a_few_seconds_has_no_lines(slow: Slow, capsys: Captured) -> None:
    slow(0.4)
    with ProgressDisplay() as display:
        draw(display, *range(1000, 11_000, 1000))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("seconds", [0.001, 60.0])
def test_nothing_is_shown_when_quiet(seconds: float, slow: Slow, in_a_terminal: Pretend, capsys: Captured) -> None:
    in_a_terminal()
    slow(seconds)
    with shown_progress("x.bpk", quiet=True) as progress:
        for done in range(10):
            progress(done, 10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_move_its_cursor_has_lines(
    term: str,
    slow: Slow,
    in_a_terminal: Pretend,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", term)
    in_a_terminal()
    slow(6.0)
    with ProgressDisplay() as display:
        draw(display, 1000)
    assert "\x1b" not in capsys.readouterr().err


def test_names_are_shown_harmless_and_not_too_long(slow: Slow, in_a_terminal: Pretend, capsys: Captured) -> None:
    in_a_terminal()
    slow(1.0)
    with ProgressDisplay() as display:
        for label in ("mo\x1b]0;owned\x07del", "[red]markup[/red]", "w" * 300):
            display.show(label, 1, 2)
    err = capsys.readouterr().err
    assert r"mo\x1b]0;owned\x07del" in err and "[red]markup[/red]" in err
    assert "\x1b]" not in err and "w" * 33 not in err


def test_one_bar_follows_another_when_something_was_printed(
    slow: Slow, in_a_terminal: Pretend, capsys: Captured
) -> None:
    in_a_terminal()
    slow(1.0)
    with ProgressDisplay() as display:
        draw(display, 1, 2)
        display.clear()
        print("one done", file=sys.stderr)
        draw(display, 1, 2)
    err = capsys.readouterr().err
    first, _, second = err.partition("one done\n")
    assert first.count(HIDE) == first.count(SHOW) == second.count(HIDE) == second.count(SHOW) == 1


def test_a_closed_stderr_does_not_stop_the_work(tmp_path: Path, slow: Slow) -> None:
    class Closed:
        def isatty(self) -> bool:
            return False

        def write(self, text: str) -> int:
            raise BrokenPipeError

    slow(6.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", Closed())
        with shown_progress("x") as progress:
            for done in range(5):
                progress(done, 5)
        patch.setattr(sys, "stderr", None)
        with shown_progress("x") as progress:
            progress(1, 5)


@pytest.mark.skipif(os.name == "nt", reason="needs a terminal")
def test_a_bar_leaves_stdout_alone(tmp_path: Path) -> None:
    file = tmp_path / "x.bpk"
    bs.save({f"t{at}": np.zeros(10, np.float32) for at in range(4)}, file, durable=False)
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", UNHURRIED, "inspect", "--stats", "--json", file],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=theirs,
        check=True,
    )
    os.close(theirs)
    written = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "x.bpk" in written and HIDE in written
    assert done.stdout.decode() == burnstore("inspect", "--stats", "--json", file).stdout
