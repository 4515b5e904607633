"""The arguments of every verb; a verb's own code is imported when it runs."""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from typing import Any, NoReturn

from .text import escape_controls, terminal_columns

_SORTS = ("name", "size", "dtype", "offset")

_INSPECT_HELP = """\
Show what a file of tensors holds: names, dtypes, shapes, sizes, parameter ids and where the bytes lie.
Without --stats only the header is read, whatever the size of the file.
"""

_INSPECT_EXAMPLES = """\
examples:
  burnstore inspect model.bpk
  burnstore inspect model.bpk --sort size --limit 10      the ten largest tensors
  burnstore inspect model.bpk --filter '^encoder\\.'       only the encoder
  burnstore inspect model.bpk --stats                     ranges; exit code 1 if there is a NaN or Inf
  burnstore inspect model.bpk --json | jq '.files[0].total'

exit codes:
  0  fine
  1  inspected, and found something: --filter matched no tensor, or --stats met a NaN or Inf
  2  an error: a file that cannot be read, or wrong arguments

In a terminal long names are shortened in the middle, and columns are left out where there is no room; into a pipe or
a file every name and column is written in full. Figures of --stats are over the finite values and shown with four
digits; --json has all of them, and is what programs should read. NO_COLOR is honoured.
"""


class _Parser(argparse.ArgumentParser):
    """Says errors as every other part does, on one line and with a hint."""

    def error(self, message: str) -> NoReturn:
        print(f"burnstore: error: {escape_controls(message)}\n  hint: {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Measures the terminal by our own means: argparse would import shutil for it, help wanted or not."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(terminal_columns(), 120) - 2)


class _Version(argparse.Action):
    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from burnstore import __version__

        print(f"burnstore {__version__}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; what it gives has the verb's function as ``run``."""
    parser = _Parser(
        prog="burnstore",
        description="Burn's model store for Python.",
        epilog="burnstore VERB --help tells of a verb's options, with examples.",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, dest=argparse.SUPPRESS, help="show the version and exit")
    verbs = parser.add_subparsers(prog="burnstore", metavar="VERB", required=True, parser_class=_Parser)
    inspect = verbs.add_parser(
        "inspect",
        help="show what files hold",
        description=_INSPECT_HELP,
        epilog=_INSPECT_EXAMPLES,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    inspect.set_defaults(run=_inspect)
    inspect.add_argument("files", nargs="+", metavar="FILE", help="a file of tensors; its bytes tell the format")
    inspect.add_argument("--json", action="store_true", help="write one JSON document")
    inspect.add_argument(
        "--sort", choices=_SORTS, help="order of the tensors; size: largest first (default: the order of the data)"
    )
    inspect.add_argument(
        "--filter", type=_pattern, metavar="REGEX", help="only tensors in whose names this is found (Python's re)"
    )
    inspect.add_argument("--limit", type=_count, metavar="N", help="only the first N tensors (0: only the summary)")
    inspect.add_argument(
        "--stats", action="store_true", help="read the tensors shown: min, max, mean, std; NaN, Inf and zero counts"
    )
    return parser


def _inspect(arguments: argparse.Namespace) -> int:
    from .inspect import run

    return run(arguments)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about patterns that a future Python may read otherwise
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = -1
    if count < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tensors")
    return count
