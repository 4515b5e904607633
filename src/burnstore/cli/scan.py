"""``burnstore scan``: report whether files would run code when other programs load them."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator

from ..io.paths import is_folder
from ..jobs.scan.scan import CLEAN, ERROR, ScanResult, scan, scan_files
from .arguments import add_options, expand_patterns
from .errors import ERROR as FAILED
from .errors import FOUND, JOB_ERRORS, OK, as_burnstore_error, print_error
from .text import Screen, counted, escape

_SCHEMA = 1
_MAX_SHOWN = 20
_COLOURS = {"clean": "32", "suspicious": "1;33", "dangerous": "1;31", "error": "1;31"}

DESCRIPTION = """\
Report whether loading a file with other programs would run code in it: which functions and classes its pickles import
and call, where, and how dangerous that is; and which tensors can be read safely anyway. Nothing in it is run.
For a folder, every file below it is scanned apart from texts and pictures; links out of it are not followed.
"""

EXAMPLES = """\
examples:
  burnstore scan downloaded.pt
  burnstore scan models/ --json | jq '.files[] | select(.verdict != "clean")'

exit codes:
  0  clean: nothing but data
  1  suspicious or dangerous: at least one file asks for code that is not known to be harmless; or no file was found
  2  an error: a file that could not be judged, or wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("paths", nargs="+", metavar="FILE|FOLDER", help="a file of any format, or a folder")
    add_options(parser, "allow_empty", "json")


def run(arguments: argparse.Namespace) -> int:
    """Scan every file, and those below every folder; the worst outcome decides the exit code."""
    screen = Screen.of_stdout()
    encode = json.JSONEncoder(allow_nan=False).encode  # ASCII only, so that no terminal interprets it.
    outcome = OK
    verdicts: Counter[str] = Counter()
    if arguments.json:
        from burnstore import __version__

        print(f'{{"burnstore": {encode(__version__)}, "schema": {_SCHEMA}, "files": [')
    for found in _results(arguments.paths):
        outcome = max(outcome, {CLEAN: OK, ERROR: FAILED}.get(found.verdict, FOUND))
        if arguments.json:
            print(("," if verdicts else "") + encode(found.to_dict()))
        else:
            _show(found, screen)
        verdicts[found.verdict] += 1
    if arguments.json:
        print("]}")
    elif verdicts.total() != 1:
        print(_total(verdicts) if verdicts else "no files of tensors or pickles")
    return outcome if verdicts or arguments.allow_empty else FOUND  # nothing was judged, so nothing is clean


def _total(verdicts: Counter[str]) -> str:
    counts = [f"{verdicts[verdict]:,} {verdict}" for verdict in _COLOURS if verdicts[verdict]]
    return f"{counted(verdicts.total(), 'file')} scanned: {', '.join(counts)}"


def _results(paths: list[str]) -> Iterator[ScanResult]:
    for path in paths:
        try:
            for file in expand_patterns([path]):
                yield from scan_files(file) if is_folder(file) else [scan(file)]
        except JOB_ERRORS as error:
            yield ScanResult(path, None, ERROR, error=as_burnstore_error(error, path))


def _show(found: ScanResult, screen: Screen) -> None:
    print(f"{escape(found.path)}: {screen.paint(found.verdict, _COLOURS[found.verdict])}{_about_tensors(found)}")
    for finding in found.findings[:_MAX_SHOWN]:
        what = "imports and calls" if finding.called else "imports"
        what = what if finding.kind == "import" else f"contains {finding.kind}:"
        where = f"{escape(finding.member)}, byte {finding.position}" if finding.member else f"byte {finding.position}"
        print(f"  {finding.severity}: {what} {escape(finding.name)} ({where})")
    if len(found.findings) > _MAX_SHOWN:
        print(f"  and {len(found.findings) - _MAX_SHOWN} more; --json shows all")
    if found.error is not None and found.verdict != CLEAN:
        print_error(found.error, found.path, label="error" if found.verdict == ERROR else "note")


def _about_tensors(found: ScanResult) -> str:
    count = len(found.tensors)
    tensors = counted(count, "tensor")
    if found.verdict in (CLEAN, ERROR):
        return f", {tensors}" if count and found.verdict == CLEAN else ""
    return f"; {tensors} can be read safely, burnstore runs nothing" if count else "; no tensors can be read"
