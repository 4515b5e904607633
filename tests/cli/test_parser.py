"""The shape of the command line: a line of VERBS and a file for each verb, and none imported before it is called."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import subprocess
import sys

import pytest
from terminal import environment

from burnstore import cli
from burnstore.cli import arguments, main, parser

Captured = pytest.CaptureFixture[str]
IMPORTANCE = ["convert", "inspect", "explain", "diff", "verify", "merge", "report", "migrate", "config", "scan"]


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
    assert imported_by(*given) == {"parser", "text"}


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
    assert (given.filter.pattern, given.limit, given.jobs, given.quiet) == ("^a", 0, 3, True)
    for wrong in (["--jobs", "0"], ["--jobs", "x"], ["--limit", "-1"], ["--filter", "("]):
        with pytest.raises(SystemExit):
            shared.parse_args(wrong)
        assert f"argument {wrong[0]}: " in capsys.readouterr().err
