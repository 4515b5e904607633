"""Parse the command line. Each verb is a line of ``VERBS`` and a file of its name.

A verb's file has ``DESCRIPTION`` and ``EXAMPLES`` (with its exit codes), ``add_arguments(parser)`` and
``run(arguments)``, which returns the exit code. The file is imported only when its verb is used.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from ..errors import quoted
from .errors import misuse, use_options
from .text import terminal_columns

VERBS = {
    "convert": "write tensors into another format or layout",
    "inspect": "show what files contain",
    "explain": "show what a load would do, without reading tensors",
    "diff": "compare two files, tensor by tensor",
    "verify": "check that files are whole and their numbers finite",
    "merge": "overlay or blend files",
    "report": "write a page to look at in a browser",
    "migrate": "convert old records of Burn",
    "config": "show the configuration in a PyTorch file",
    "map": "match a checkpoint's tensors to a Burn model's",
    "prove": "prove a mapping by what both models compute",
    "outline": "print Rust code that saves the outline of a Burn model",
    "skeleton": "print the Rust source of a Burn module for a torch model",
    "scan": "check whether files would run code when loaded",
    "completion": "print the completion script for a shell",
}


_WRONG_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)
_QUOTED = re.compile(r"'([^']*)'")


class _Parser(argparse.ArgumentParser):
    """Print errors as every other part does, on one line and with a hint."""

    _given: Sequence[str] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        verb = self.prog.removeprefix("burnstore").strip()
        wrong = _WRONG_CHOICE.search(message)
        if wrong is not None:
            choices = _QUOTED.findall(wrong[2]) or wrong[2].split(", ")
            message = f"{quoted(wrong[1])} is not one of {', '.join(choices)}{_did_you_mean(wrong[1], choices)}"
        dashed = next((text for text in self._given if text.startswith("-") and os.path.isfile(text)), None)
        if dashed is not None:
            message += f"; the name of the file begins with a dash: write {os.path.join(os.curdir, dashed)}"
        raise SystemExit(misuse(message, verb))


class VerbParser(_Parser):
    """The parser of one verb, which imports the verb's file when it has arguments to parse."""

    def __init__(self, *, verb: str, **options: Any) -> None:
        super().__init__(**options)
        self._verb: str | None = verb

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, after loading the verb's arguments."""
        self.load()
        self._given = args or ()
        given, unknown = super().parse_known_args(args, namespace)
        if unknown:  # An error here has the hint of this verb.
            known = [flag for action in self._actions for flag in action.option_strings if len(flag) > 2]
            first = next((text for text in unknown if text.startswith("-")), unknown[0]).partition("=")[0]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_did_you_mean(first, known)}")
        if any("-" in (value if isinstance(value, list) else [value]) for value in vars(given).values()):
            self.error("- stands for no file: tensors are read and written by position, give the name of a file")
        return given, unknown

    def load(self) -> None:
        """Load the verb's arguments into this parser."""
        if self._verb is None:
            return
        verb = import_module(f"{__package__}.{self._verb}")
        self._verb = None
        self.description, self.epilog = verb.DESCRIPTION, verb.EXAMPLES
        verb.add_arguments(self)
        use_options(flag for action in self._actions for flag in action.option_strings)
        self.set_defaults(run=verb.run)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Measure the terminal without shutil, whose import argparse would need for every command."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(terminal_columns(), 120) - 2)

    def add_argument(self, action: argparse.Action) -> None:
        """Add an argument; argparse forgets the indentation of verbs when it computes their width."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


class _Version(argparse.Action):
    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from burnstore import __version__

        print(f"burnstore {__version__}")
        parser.exit()


def _did_you_mean(given: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # not at import: mistakes are rare

    close = get_close_matches(given, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; its result has the verb's function as ``run``."""
    parser = _Parser(
        prog="burnstore",
        description="Burn's model store for Python.",
        epilog="Run burnstore VERB --help for the options of a verb, with examples.",
    )
    parser.add_argument("--version", action=_Version, dest=argparse.SUPPRESS, help="show the version and exit")
    verbs = parser.add_subparsers(prog="burnstore", metavar="VERB", required=True, parser_class=VerbParser)
    for verb, summary in VERBS.items():
        verbs.add_parser(verb, verb=verb, help=summary)
    return parser
