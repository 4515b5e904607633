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

_MIGRATE_HELP = """\
Write what a record of Burn 0.13 to 0.21 holds (.mpk, .bin, .json, each also .gz) into a file that Burn of today loads.
The record stays as it is; every tensor of the new file is read back and compared. Of a folder every record below it
is migrated into the same place below DESTINATION.
"""

_MIGRATE_EXAMPLES = """\
examples:
  burnstore migrate model.mpk.gz model.bpk
  burnstore migrate checkpoint/ migrated/                       model-1.mpk becomes migrated/model-1.bpk, and so on
  burnstore migrate optim-3.mpk optim-3.bpk --model model-3.mpk
  burnstore migrate scheduler-3.mpk scheduler-3.bpk --scheduler Cosine

exit codes:
  0  fine: everything was migrated and verified
  1  there was nothing to migrate
  2  an error: at least one record could not be migrated, or wrong arguments

A binary record (.bin) has no names; it is migrated from Python: burnstore.migrate(old, new, like=Model()).
"""


_CONFIG_HELP = """\
Show the plain values that a PyTorch file carries beside its tensors, such as a model's configuration, as JSON.
Nothing in the file is run; tensors and objects are left out, and stderr says which.
"""

_CONFIG_EXAMPLES = """\
examples:
  burnstore config checkpoint.pt
  burnstore config checkpoint.pt --key my_config -o my_config.json
  burnstore config checkpoint.ckpt --key hyper_parameters.model

exit codes:
  0  fine
  2  an error: a file that cannot be read, a key that is not there, or wrong arguments
"""

_SCAN_HELP = """\
Say whether loading a file with other programs would run code in it: which functions and classes its pickles import
and call, where, and how dangerous that is; and which tensors can be taken safely anyway. Nothing in it is run.
Of a folder every file of tensors or pickles below it is scanned; links that lead out of it are not followed.
"""

_SCAN_EXAMPLES = """\
examples:
  burnstore scan downloaded.pt
  burnstore scan models/ --json | jq '.files[] | select(.verdict != "clean")'

exit codes:
  0  clean: nothing but data
  1  suspicious: at least one file asks for code that is not known to be harmless
  2  an error: a file that could not be judged, or wrong arguments
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
    migrate = verbs.add_parser(
        "migrate",
        help="bring old records of Burn into new files",
        description=_MIGRATE_HELP,
        epilog=_MIGRATE_EXAMPLES,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    migrate.set_defaults(run=_migrate)
    migrate.add_argument("source", metavar="SOURCE", help="a record, or a folder with records")
    migrate.add_argument("destination", metavar="DESTINATION", help="the new file (.bpk), or a folder")
    migrate.add_argument("--overwrite", action="store_true", help="replace files that exist")
    migrate.add_argument("--model", metavar="RECORD", help="the record of the model that an optimizer's belongs to")
    migrate.add_argument(
        "--scheduler",
        choices=("Linear", "Cosine", "Exponential", "Noam", "Step"),
        help="what kind of scheduler a record with a single number is of",
    )
    migrate.add_argument(
        "--undecided",
        choices=("F16", "I16"),
        help="what the tensors are that a Half record of Burn 0.13 does not tell; F16 if all are floats",
    )
    config = verbs.add_parser(
        "config",
        help="show the configuration in a PyTorch file",
        description=_CONFIG_HELP,
        epilog=_CONFIG_EXAMPLES,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    config.set_defaults(run=_config)
    config.add_argument("file", metavar="FILE", help="a PyTorch file, or JSON")
    config.add_argument("--key", metavar="KEY", help="the part that is wanted; a.b is b below a")
    config.add_argument("-o", "--output", metavar="JSON", help="write it to this file")
    config.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    scan = verbs.add_parser(
        "scan",
        help="say whether files would run code when loaded",
        description=_SCAN_HELP,
        epilog=_SCAN_EXAMPLES,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    scan.set_defaults(run=_scan)
    scan.add_argument("paths", nargs="+", metavar="FILE|FOLDER", help="a file of any format, or a folder")
    scan.add_argument("--json", action="store_true", help="write one JSON document")
    return parser


def _config(arguments: argparse.Namespace) -> int:
    from .config import run

    return run(arguments)


def _scan(arguments: argparse.Namespace) -> int:
    from .scan import run

    return run(arguments)


def _migrate(arguments: argparse.Namespace) -> int:
    from .migrate import run

    return run(arguments)


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
