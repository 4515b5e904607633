"""The shape of the command line: a line of VERBS and a file for each verb, and none imported before it is called."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import environment

from burnstore import cli
from burnstore.cli import arguments, main, parser

Captured = pytest.CaptureFixture[str]
IMPORTANCE = ["convert", "inspect", "explain", "diff", "verify", "merge", "report", "migrate", "config"]
IMPORTANCE += ["map", "prove", "outline", "skeleton", "scan"]


def imported_by(*given: str) -> set[str]:
    """The modules of burnstore's command line that a process has after these arguments."""
    probe = (
        "import sys; from burnstore.cli import main; main(sys.argv[1:]); "
        "print(*(name for name in sys.modules if name.startswith('burnstore.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe, *given], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name.removeprefix("burnstore.cli.") for name in done.stderr.splitlines()[-1].split()}


@pytest.mark.parametrize("given", [["--help"], ["--version"], ["inspekt"], []])
def test_no_verb_is_imported_unless_it_is_called(given: list[str]) -> None:
    assert imported_by(*given) == {"errors", "parser", "text"}


def test_only_the_verb_that_is_called_is_imported() -> None:
    assert imported_by("scan", "--help") & parser.VERBS.keys() == {"scan"}


def test_the_verbs_come_in_the_order_of_their_importance() -> None:
    ordered = [*IMPORTANCE, "completion"]
    assert list(parser.VERBS) == [verb for verb in ordered if verb in parser.VERBS]


def test_the_help_has_a_line_for_each_verb(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out.split("VERB\n")[1].split("\n\n")[0]
    assert [line.split(maxsplit=1) for line in told.splitlines()] == [[*verb] for verb in parser.VERBS.items()]


def test_every_file_of_a_verb_has_its_line() -> None:
    modules = {module.name for module in pkgutil.iter_modules(cli.__path__)}
    assert parser.VERBS.keys() <= modules
    for name in modules - parser.VERBS.keys():
        assert not hasattr(importlib.import_module(f"burnstore.cli.{name}"), "add_arguments"), f"{name} has no line"


@pytest.mark.parametrize("verb", parser.VERBS)
def test_the_help_of_every_verb_has_examples_and_exit_codes(verb: str, capsys: Captured) -> None:
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: burnstore {verb} ")
    assert f"\nexamples:\n  burnstore {verb} " in out
    assert "\nexit codes:\n  0  " in out and "\n  2  an error: " in out
    assert "-h, --help" in out


def test_a_parser_learns_of_its_arguments_once() -> None:
    built = parser.build_parser()
    for _ in range(2):
        given = built.parse_args(["scan", "a", "b", "--json"])
        assert (given.paths, given.json) == (["a", "b"], True)


def test_shared_arguments_are_read_and_refused_alike(capsys: Captured) -> None:
    shared = argparse.ArgumentParser(prog="x")
    arguments.add_options(shared, "json", "filter", "limit", "overwrite", "quiet", "jobs")
    nothing = shared.parse_args([])
    assert vars(nothing) == {
        "json": False,
        "filter": None,
        "limit": None,
        "overwrite": False,
        "quiet": False,
        "jobs": None,
    }
    given = shared.parse_args(["--filter", "^a", "--limit", "0", "--jobs", "3", "--quiet"])
    assert (given.filter[0].pattern, given.limit, given.jobs, given.quiet) == ("^a", 0, 3, True)
    for wrong in (["--jobs", "0"], ["--jobs", "x"], ["--limit", "-1"], ["--filter", "("]):
        with pytest.raises(SystemExit):
            shared.parse_args(wrong)
        assert f"argument {wrong[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", "none.pt", "out.bpk"],
        ["convert", "only.pt"],
        ["convert", "a.pt", "b.bpk", "--no-such-option"],
        ["merge", "none.bpk", "out.bpk"],
        ["merge", "a.bpk"],
        ["diff", "none.bpk", "other.bpk"],
        ["explain", "none.pt"],
        ["explain", "a.pt", "--into", "nowhere:Net"],
        ["report", "none.bpk"],
        ["inspect", "a.bpk", "--depth", "1"],
        ["verify", "a.bpk", "b.bpk", "--digest", "0" * 64],
    ],
    ids=" ".join,
)
def test_errors_are_json_too(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    document = json.loads(out)
    error = document["error"]
    assert document["schema"] == 1 and error["kind"] and error["message"]
    assert err.count("\n") == 1 and error["message"].splitlines()[0] in err
    assert main(arguments) == 2
    assert capsys.readouterr().out == ""  # without --json it is on stderr alone


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_verbs_of_many_files_have_their_errors_beside_the_files(verb: str, tmp_path: Path, capsys: Captured) -> None:
    assert main([verb, str(tmp_path / "caf\udce9.bpk"), "--json"]) == 2
    (file,) = json.loads(capsys.readouterr().out)["files"]
    error = file["error"] if verb == "inspect" else file["errors"][0]
    assert error["kind"] == "FileNotFoundError" and error["message"] == "no such file"
