"""``burnstore verify``: say whether files are whole, and whether their numbers are finite."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..errors import UNSHOWN, BurnstoreError
from ..io.atomic import remove_files, stale_scratch_files
from ..jobs.convert.receipt import check_receipt
from ..jobs.json_output import json_text
from ..jobs.verify.folder import verify_folder
from ..jobs.verify.verify import Verification, checked_digest, verify
from . import ERROR, FINE, FOUND
from .arguments import add_jobs, add_json, add_quiet
from .complaint import complain, in_our_words
from .progress import ProgressDisplay
from .text import Screen, escape, size

_SCHEMA = 1
_MOST_SHOWN = 20
_VERDICTS = {FINE: ("fine", "32"), FOUND: ("whole, with findings", "1;33"), ERROR: ("broken", "1;31")}

DESCRIPTION = """\
Read files from the first byte to the last: every rule of their format, every checksum, every tensor; count NaN and
infinities. Of a folder every file of tensors below it is verified, a set of shards as one.
"""

EXAMPLES = """\
examples:
  burnstore verify model.bpk
  burnstore verify checkpoints/ --clean                 also removes what killed saves left behind
  burnstore verify model.safetensors --digest sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
  burnstore verify model.bpk --receipt model.bpk.receipt.json
  burnstore verify model.pt --json | jq '.files[0].tensors[] | {name, digest}'

exit codes:
  0  fine
  1  whole, and found something: a NaN or Inf, another digest than expected, values that cannot be shown, odd padding
  2  an error: a file that is broken or cannot be read, or wrong arguments

--json also has the SHA-256 of every file and of every tensor.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be said after the verb."""
    parser.add_argument("paths", nargs="+", metavar="FILE|FOLDER", help="a file of any format, or a folder")
    parser.add_argument(
        "--digest", type=_digest, metavar="SHA256", help="what the one file should have: sha256:..., or sha512:..."
    )
    parser.add_argument(
        "--receipt", metavar="RECEIPT", help="what a conversion said of its files and tensors is checked as well"
    )
    parser.add_argument(
        "--clean", action="store_true", help="remove scratch files of saves that were killed, older than a day"
    )
    add_json(parser)
    add_jobs(parser)
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Verify every file, and those below every folder; the worst outcome decides the exit code."""
    if arguments.digest is not None and (len(arguments.paths) > 1 or os.path.isdir(arguments.paths[0])):
        complain(BurnstoreError("--digest is of one file"), arguments.paths[0])
        return ERROR
    outcome, files = FINE, []
    screen = Screen.of_stdout()
    for path in arguments.paths:
        try:
            for found in _verifications(path, arguments):
                outcome = max(outcome, _code(found))
                files.append(found.to_dict())
                if not arguments.json:
                    _show(found, screen)
                _complain(found)
        except (BurnstoreError, OSError, MemoryError) as error:
            outcome = ERROR
            complain(error, path)
            files.append({"path": json_text(path), "is_fine": False, "errors": [str(in_our_words(error, path))]})
    document: dict[str, Any] = {"files": files}
    for wanted, step in ((arguments.receipt, _check_receipt), (arguments.clean, _clean)):
        if wanted:
            code, said = step(arguments)
            outcome = max(outcome, code)
            document.update(said)
    if arguments.json:
        from burnstore import __version__

        # ASCII only: whatever the names are, no terminal acts on them.
        print(json.dumps({"burnstore": __version__, "schema": _SCHEMA, **document}, allow_nan=False))
    elif len(files) != 1:
        print(f"{len(files)} files verified" if files else "no files of tensors")
    return outcome


def _digest(text: str) -> str:
    try:
        return checked_digest(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _verifications(path: str, arguments: argparse.Namespace) -> Iterator[Verification]:
    with ProgressDisplay(quiet=arguments.quiet) as display:
        options = {
            "digests": arguments.json,
            "executor": arguments.jobs,
            "progress": partial(display.show, os.path.basename(path) or path),
        }
        if os.path.isdir(path):
            for found in verify_folder(path, **options):
                display.clear()
                yield found
        else:
            found = verify(path, digest=arguments.digest, **options)
            display.clear()
            yield found


def _code(found: Verification) -> int:
    if not found.is_whole:
        return ERROR
    return FINE if found.is_fine else FOUND


def _show(found: Verification, screen: Screen) -> None:
    if found.format is None:  # it could not be opened, which stderr says
        return
    count, nbytes = len(found.tensors), sum(tensor.nbytes for tensor in found.tensors)
    variant = f" ({escape(found.variant)})" if found.variant else ""
    print(
        f"{escape(found.path)}: {screen.paint(*_VERDICTS[_code(found)])}: {found.format}{variant}, {count:,} "
        f"{'tensor' if count == 1 else 'tensors'}, {size(nbytes)}"
    )
    for line in _findings(found):
        print(f"  {line}")
    for note in found.notes:
        print(f"  note: {escape(note)}")
    if found.expected is not None and found.is_expected:
        print(f"  the digest is the expected one, {found.digest}")


def _findings(found: Verification) -> Iterator[str]:
    if not found.is_expected:
        yield f"its digest is {found.digest}, expected was {found.expected}"
    yield from (escape(oddity) for oddity in found.oddities)
    alarming = [tensor for tensor in found.tensors if not tensor.is_finite]
    for tensor in alarming[:_MOST_SHOWN]:
        counts = ((tensor.nan_count, "NaN"), (tensor.inf_count, "Inf"))
        yield f"{escape(tensor.name)}: {', '.join(f'{count:,} {what}' for count, what in counts if count)}"
    if len(alarming) > _MOST_SHOWN:
        yield f"and {len(alarming) - _MOST_SHOWN:,} more tensors that are not finite; --json shows all"


def _complain(found: Verification) -> None:
    for error in found.errors:
        complain(error, found.path)
    broken = [tensor.error for tensor in found.tensors if tensor.error is not None]
    for error in broken[:_MOST_SHOWN]:
        label = "note" if isinstance(error, UNSHOWN) else "error"
        complain(error, found.path, label=label)
    if len(broken) > _MOST_SHOWN:
        complain(BurnstoreError(f"and {len(broken) - _MOST_SHOWN} more tensors; --json shows all"), found.path)


def _check_receipt(arguments: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    path = arguments.receipt
    try:
        found = check_receipt(path, executor=arguments.jobs)
    except (BurnstoreError, OSError, MemoryError) as error:
        complain(error, path)
        return ERROR, {
            "receipt": {"path": json_text(path), "is_fine": False, "problems": [str(in_our_words(error, path))]}
        }
    if not arguments.json:
        verdict = f"{found.tensors:,} tensors are as it says" if found.is_fine else "not everything is as it says"
        print(f"{escape(path)}: {verdict}")
        for problem in found.problems:
            print(f"  {escape(problem)}")
        for gone in found.unchecked:
            print(f"  not checked, as it is no longer there: {escape(gone)}")
    said = {"path": json_text(path), "is_fine": found.is_fine, "problems": [json_text(each) for each in found.problems]}
    return FINE if found.is_fine else FOUND, {"receipt": said}


def _clean(arguments: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Remove what killed saves left behind, and nothing else."""
    removed: list[str] = []
    outcome = FINE
    for folder in dict.fromkeys(_folders(arguments.paths)):
        try:
            stale = [os.path.basename(path) for path in stale_scratch_files(folder)]
        except OSError:  # which was told of when it was to be verified
            continue
        left = remove_files(folder, stale)
        for name in left:
            outcome = ERROR
            complain(BurnstoreError("it could not be removed"), os.path.join(folder, name))
        removed += [os.path.join(folder, name) for name in stale if name not in left]
    if not arguments.json:
        for path in removed:
            print(f"removed {escape(path)}")
    return outcome, {"removed": [json_text(path) for path in removed]}


def _folders(paths: list[str]) -> Iterator[str]:
    for path in paths:
        if os.path.isdir(path):
            yield from (place for place, _, _ in os.walk(path))
        else:
            yield os.path.dirname(path) or os.curdir
