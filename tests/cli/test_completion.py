"""``burnstore completion``: what the shells offer, asked of the shells themselves."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from terminal import environment, run_here

from burnstore.cli import completion, parser

SHELLS = ("bash", "zsh", "fish")
SORTS = ["dtype", "name", "offset", "size"]


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


def script(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    code, out, err = run_here(capsys, "completion", shell)
    assert (code, err) == (0, "")
    (folder / f"burnstore.{shell}").write_text(out, "utf-8")
    return folder / f"burnstore.{shell}"


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", [pytest.param(shell, marks=needs(shell)) for shell in SHELLS])
def test_the_script_is_one_that_the_shell_can_read(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(shell, "-n", str(script(shell, tmp_path, capsys)), cwd=tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_option_and_choice_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_here(capsys, "completion", shell)
    words = set(out.replace('"', " ").replace("'", " ").replace("[", " ").replace("(", " ").replace(")", " ").split())
    for verb, verb_parser in completion._parsers():
        assert any(word == verb or word.startswith(f"{verb}:") for word in words)
        for action in verb_parser._actions:
            for flag in action.option_strings:
                bare = flag.lstrip("-") if shell == "fish" else flag
                assert bare in words or f"*{bare}" in words, (verb, flag)
            assert {str(choice) for choice in action.choices or ()} <= words


# What is on the line, and what is offered for its last word.
CASES = {
    ("",): [*parser.VERBS, "--help", "--version"],
    ("insp",): ["inspect"],
    ("inspect", "--so"): ["--sort"],
    ("inspect", "--sort", ""): SORTS,
    ("inspect", "x.bpk", "--sort", "n"): ["name"],
    ("inspect", "--s"): ["--sort", "--stats"],
    ("completion", ""): sorted(SHELLS),
    ("completion", "z"): ["zsh"],
    ("migrate", "a", "b", "--scheduler", "C"): ["Cosine"],
    ("nothing", "--so"): [],
}


@needs("bash")
@pytest.mark.parametrize("line", CASES, ids=" ".join)
def test_bash_offers(line: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert offered_by_bash(line, tmp_path, capsys) == sorted(CASES[line])


@needs("bash")
@pytest.mark.parametrize("line", [("inspect", "--sort", "="), ("inspect", "--sort", "=", "")])
def test_bash_offers_values_behind_an_equals_sign(
    line: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered_by_bash(line, tmp_path, capsys) == SORTS


@needs("bash")
@pytest.mark.parametrize(
    "line", [("inspect", ""), ("inspect", "mod"), ("config", "-o", ""), ("inspect", "--filter", "")]
)
def test_bash_is_left_to_offer_files(line: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert offered_by_bash(line, tmp_path, capsys) == []
    assert "complete -o bashdefault -o default -F _burnstore burnstore" in script("bash", tmp_path, capsys).read_text()


def offered_by_bash(line: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    command = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _burnstore; '
        '[[ ${#COMPREPLY[@]} == 0 ]] || printf "%s\\n" "${COMPREPLY[@]}"'
    )
    source = script("bash", folder, capsys)
    return sorted(run("bash", "-c", command, "bash", str(source), "burnstore", *line, cwd=folder).split())


@needs("fish")
@pytest.mark.parametrize("line", CASES, ids=" ".join)
def test_fish_offers(line: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = script("fish", tmp_path, capsys)
    asked = " ".join(["burnstore", *line])
    (tmp_path / "home").mkdir()
    out = run("fish", "--no-config", "-c", f"source {source}; complete -C {asked!r}", cwd=tmp_path / "home")
    found = sorted(entry.split("\t")[0] for entry in out.splitlines())
    assert found == sorted(word for word in CASES[line] if word[:1] != "-" or line[-1][:1] == "-")


@needs("zsh")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("burnstore insp", "burnstore inspect "),
        ("burnstore inspect --so", "burnstore inspect --sort "),
        ("burnstore inspect --sort na", "burnstore inspect --sort name "),
        ("burnstore inspect model.b", "burnstore inspect model.bpk "),
        ("burnstore completion z", "burnstore completion zsh "),
        ("burnstore migrate a b --scheduler Cos", "burnstore migrate a b --scheduler Cosine "),
    ],
)
def test_zsh_completes(typed: str, completed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pty = pytest.importorskip("pty")
    source = script("zsh", tmp_path, capsys)
    (tmp_path / "model.bpk").touch()
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        ["zsh", "-f", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env=environment({"TERM": "dumb", "HOME": str(tmp_path), "PS1": "> "}),
        start_new_session=True,
    )
    os.close(theirs)
    try:
        told = f"autoload -Uz compinit; compinit -D; source {source}; print rea''dy\n"
        os.write(ours, told.encode())
        assert "ready" in read_until(ours, "ready")
        os.write(ours, f"{typed}\t".encode())
        assert completed in read_until(ours, completed)
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def read_until(descriptor: int, wanted: str) -> str:
    """What a terminal shows, up to a text or for half a minute."""
    seen, end = "", time.monotonic() + 30
    while wanted not in seen and time.monotonic() < end:
        if select.select([descriptor], [], [], 0.5)[0]:
            seen += os.read(descriptor, 4096).decode("utf-8", "replace")
    return seen


@pytest.mark.parametrize("given", [[], ["tcsh"], ["bash", "zsh"]])
def test_another_shell_is_an_error(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_here(capsys, "completion", *given)
    assert (code, out) == (2, "") and err.endswith("; hint: burnstore completion --help\n")
