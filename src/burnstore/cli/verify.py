"""``burnstore verify``: check that files are whole and their numbers finite."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..errors import UNREPRESENTABLE, BurnstoreError
from ..io.atomic import remove_files, stale_scratch_files
from ..io.paths import base_name, is_folder, is_remote
from ..jobs.convert.receipt import check_receipt
from ..jobs.verify.verify import Verification, parse_digest, verify_each
from ..tensor.plain import json_text
from .arguments import add_option, add_options, expand_patterns
from .errors import ERROR, FOUND, JOB_ERRORS, OK, as_burnstore_error, error_facts, misuse, print_error, shown_notes
from .progress import ProgressDisplay
from .text import Screen, counted, escape, print_json, size

_MOST_SHOWN = 20
_VERDICTS = {OK: ("ok", "32"), FOUND: ("whole, with findings", "1;33"), ERROR: ("broken", "1;31")}

DESCRIPTION = """\
Read files from the first byte to the last: check every rule of the format, every checksum and every tensor, and count
NaN and infinities. Of a folder every file of tensors below it is verified, a set of shards as one.
"""

EXAMPLES = """\
examples:
  burnstore verify model.bpk
  burnstore verify checkpoints/ --clean                 also remove scratch files of killed saves
  burnstore verify model.safetensors --digest sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
  burnstore verify model.bpk --receipt model.bpk.receipt.json
  burnstore verify model.pt --json | jq '.files[0].tensors[] | {name, digest}'

exit codes:
  0  ok
  1  whole, with findings: a NaN or Inf, an unexpected digest, values that cannot be represented, padding that is not
     zero, a file without tensors, a folder without files of tensors or one that cannot be listed
  2  an error: a file that is broken or cannot be read, or wrong arguments

--json also has the SHA-256 of every file and of every tensor.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("paths", nargs="+", metavar="FILE|FOLDER", help="a file of any format, or a folder")
    parser.add_argument(
        "--digest", type=_digest, metavar="SHA256", help="the expected digest of the file: sha256:... or sha512:..."
    )
    add_option(parser, "receipt", help="also check the files and tensors that this receipt lists")
    parser.add_argument(
        "--clean", action="store_true", help="remove scratch files of killed saves that are older than a day"
    )
    add_options(parser, "allow_empty", "json", "jobs", "quiet")


def run(arguments: argparse.Namespace) -> int:
    """Verify every file, and every file below each folder; the worst result decides the exit code."""
    if arguments.digest is not None and (len(arguments.paths) > 1 or is_folder(arguments.paths[0])):
        return misuse("--digest needs exactly one file", "verify")
    code, files = OK, []
    screen = Screen.of_stdout()
    for path in arguments.paths:
        try:
            for found in (found for file in expand_patterns([path]) for found in _verify(file, arguments)):
                code = max(code, _code(found))
                files.append(found.to_dict())
                if not arguments.json:
                    _show(found, screen)
                _print_errors(found)
        except JOB_ERRORS as error:
            code = ERROR
            print_error(error, path)
            files.append({"path": json_text(path), "ok": False, "errors": [error_facts(error, path)]})
    document: dict[str, Any] = {"files": files}
    for wanted, step in ((arguments.receipt, _check_receipt), (arguments.clean, _clean)):
        if wanted:
            step_code, facts = step(arguments)
            code = max(code, step_code)
            document.update(facts)
    if arguments.json:
        print_json(document)
    elif len(files) != 1:
        print(f"{counted(len(files), 'file')} verified")
    return code


def _digest(text: str) -> str:
    try:
        return parse_digest(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _verify(path: str, arguments: argparse.Namespace) -> Iterator[Verification]:
    with ProgressDisplay(quiet=arguments.quiet) as display:
        show = partial(display.show, base_name(path) or path)
        results = verify_each(
            path,
            arguments.digest,
            arguments.json,
            allow_empty=arguments.allow_empty,
            executor=arguments.jobs,
            progress=show,
        )
        for found in results:
            display.clear()
            yield found


def _code(found: Verification) -> int:
    return ERROR if not found.is_whole else OK if found.ok else FOUND


def _show(found: Verification, screen: Screen) -> None:
    if found.format is None:  # It could not be opened, and stderr has the reason.
        for warning in found.warnings:
            print(f"{escape(found.path)}: {screen.paint(escape(warning), '1;33')}")
        return
    nbytes = sum(tensor.nbytes for tensor in found.tensors)
    variant = f" ({escape(found.variant)})" if found.variant else ""
    verdict = screen.paint(*_VERDICTS[_code(found)])
    about = f"{found.format}{variant}, {counted(len(found.tensors), 'tensor')}, {size(nbytes)}"
    print(f"{escape(found.path)}: {verdict}: {about}")
    for line in _findings(found):
        print(f"  {line}")
    for note in shown_notes(found.notes):
        print(f"  note: {note}")
    if found.expected is not None and found.is_expected:
        print(f"  the digest is as expected, {found.digest}")


def _findings(found: Verification) -> Iterator[str]:
    if not found.is_expected:
        yield f"expected the digest {found.expected}, got {found.digest}"
    yield from (escape(warning) for warning in found.warnings)
    alarming = [tensor for tensor in found.tensors if not tensor.is_finite]
    for tensor in alarming[:_MOST_SHOWN]:
        counts = ((tensor.nan_count, "NaN"), (tensor.inf_count, "Inf"))
        yield f"{escape(tensor.name)}: {', '.join(f'{count:,} {what}' for count, what in counts if count)}"
    if len(alarming) > _MOST_SHOWN:
        yield f"and {len(alarming) - _MOST_SHOWN:,} more tensors that are not finite; --json shows all"


def _print_errors(found: Verification) -> None:
    for error in found.errors:
        print_error(error, found.path)
    broken = [tensor.error for tensor in found.tensors if tensor.error is not None]
    for error in broken[:_MOST_SHOWN]:
        print_error(error, found.path, label="note" if isinstance(error, UNREPRESENTABLE) else "error")
    if len(broken) > _MOST_SHOWN:
        print_error(BurnstoreError(f"and {len(broken) - _MOST_SHOWN} more tensors; --json shows all"), found.path)


def _check_receipt(arguments: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    path = arguments.receipt
    try:
        found = check_receipt(path, executor=arguments.jobs)
    except JOB_ERRORS as error:
        print_error(error, path)
        return ERROR, {"receipt": _receipt_facts(path, False, [str(as_burnstore_error(error, path))])}
    if not arguments.json:
        verdict = f"{counted(found.tensors, 'tensor')} match" if found.ok else "does not match"
        print(f"{escape(path)}: {verdict}")
        for problem in found.problems:
            print(f"  {escape(problem)}")
        for missing in found.unchecked:
            print(f"  not checked, because the file no longer exists: {escape(missing)}")
    return OK if found.ok else FOUND, {"receipt": _receipt_facts(path, found.ok, found.problems)}


def _receipt_facts(path: str, ok: bool, problems: Any) -> dict[str, Any]:
    return {"path": json_text(path), "ok": ok, "problems": [json_text(each) for each in problems]}


def _clean(arguments: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Remove scratch files of killed saves, and nothing else."""
    removed: list[str] = []
    code = OK
    for folder in dict.fromkeys(_folders(arguments.paths)):
        try:
            stale = [os.path.basename(path) for path in stale_scratch_files(folder)]
        except OSError:  # Verifying the folder reported it.
            continue
        left = remove_files(folder, stale)
        for name in left:
            code = ERROR
            print_error(BurnstoreError("the file could not be removed"), os.path.join(folder, name))
        removed += [os.path.join(folder, name) for name in stale if name not in left]
    if not arguments.json:
        for path in removed:
            print(f"removed {escape(path)}")
    return code, {"removed": [json_text(path) for path in removed]}


def _folders(paths: list[str]) -> Iterator[str]:
    for path in paths:
        if is_remote(path):
            continue  # an upload that did not end leaves no object
        if os.path.isdir(path):
            yield from (place for place, _, _ in os.walk(path))
        else:
            yield os.path.dirname(path) or os.curdir
