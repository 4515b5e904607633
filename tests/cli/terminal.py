"""The command as a user runs it: in a process of its own, with a pipe or a terminal behind its streams."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import burnstore as bs
from burnstore.cli import main

HOME = str(Path(bs.__file__).parents[1])


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "PYTHONPATH")}
    return {**inherited, "PYTHONPATH": HOME, "PYTHONUTF8": "1", "TERM": "xterm-256color", **(extra or {})}


def burnstore(*arguments: object, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess:
    """Run the command in another process; warnings are errors there too."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "burnstore", *map(str, arguments)],
        env=environment(env),
        capture_output="stdout" not in options,
        encoding="utf-8",
        timeout=60,
        check=False,
        **options,
    )


def run_here(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run the command in this process, which is quicker where no process of its own is the point."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def in_terminal(
    columns: int,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    stream: str = "stdout",
    interrupt_at: str | None = None,
    program: Sequence[str] = ("-m", "burnstore"),
) -> tuple[str, int]:
    """Run the command with a terminal of that width as one of its streams; what it wrote there, and its exit code.

    With ``interrupt_at``, Ctrl-C is pressed in that terminal as soon as this text is on it.
    """
    pty = pytest.importorskip("pty")
    fcntl, struct, termios = (pytest.importorskip(name) for name in ("fcntl", "struct", "termios"))
    ours, theirs = pty.openpty()
    written = b""
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        modes = termios.tcgetattr(theirs)
        modes[3] &= ~termios.ECHO  # or it would show the Ctrl-C
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: theirs}
        child = subprocess.Popen(
            [sys.executable, "-W", "error", *program, *map(str, arguments)],
            stdin=theirs,
            env=environment(env),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            **streams,
        )
        os.close(theirs)
        while select.select([ours], [], [], 60)[0]:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # Linux's way to say that the other end is closed
                break
            if not part:
                break
            written += part
            if interrupt_at is not None and interrupt_at.encode() in written:
                os.write(ours, b"\x03")
                interrupt_at = None
        code = child.wait(60)
    finally:
        os.close(ours)
    return written.decode().replace("\r\n", "\n"), code
