"""``burnstore migrate``: write the contents of old records into new files, and verify them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..jobs.migrate import Migration, migrate, migrate_each
from .arguments import add_options
from .errors import ERROR, FOUND, JOB_ERRORS, OK, as_burnstore_error, error_facts, print_error, shown_notes
from .progress import ProgressDisplay
from .text import escape, print_json, size

DESCRIPTION = """\
Write the contents of a record of Burn 0.13 to 0.21 (.mpk, .bin, .json, each also .gz) into a file that Burn of today
loads. The record stays unchanged; every tensor of the new file is read back and compared. In a folder every record
is migrated to the same place below DESTINATION.
"""

EXAMPLES = """\
examples:
  burnstore migrate model.mpk.gz model.bpk
  burnstore migrate checkpoint/ migrated/                       model-1.mpk becomes migrated/model-1.bpk, and so on
  burnstore migrate optim-3.mpk optim-3.bpk --model model-3.mpk
  burnstore migrate scheduler-3.mpk scheduler-3.bpk --scheduler Cosine
  burnstore migrate checkpoint/ migrated/ --rules refactoring.toml       parameters get new names, with their state

exit codes:
  0  ok: everything was migrated and verified
  1  there was nothing to migrate
  2  an error: at least one record could not be migrated, or wrong arguments

A binary record (.bin) has no names; it is migrated from Python: burnstore.migrate(old, new, like=Model()).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("source", metavar="SOURCE", help="a record, or a folder with records")
    parser.add_argument("destination", metavar="DESTINATION", help="the new file (.bpk), or a folder")
    parser.add_argument("--model", metavar="RECORD", help="the record of the model that an optimizer's belongs to")
    parser.add_argument(
        "--scheduler",
        choices=("Linear", "Cosine", "Exponential", "Noam", "Step"),
        help="the kind of scheduler of a record with a single number",
    )
    parser.add_argument(
        "--undecided",
        choices=("F16", "I16"),
        help="the dtype of tensors that a Half record of Burn 0.13 leaves open; F16 if all are floats",
    )
    add_options(parser, "rename", "rules", "allow_empty", "overwrite", "quiet", "json")


def run(arguments: argparse.Namespace) -> int:
    """Migrate a file, or every record below a folder; the worst outcome decides the exit code."""
    done: list[Migration] = []
    with ProgressDisplay(quiet=arguments.quiet) as display:
        for outcome in _outcomes(arguments, display):
            display.clear()
            done.append(outcome)
            _print(outcome, as_json=arguments.json)
    failed = [each for each in done if each.error is not None]
    if arguments.json:
        print_json({"records": [_facts(each) for each in done]})
        return FOUND if not done else ERROR if failed else OK
    if not done:
        print(f"no Burn records below {escape(arguments.source)}")
        return FOUND
    if len(done) > 1:
        total = sum(each.nbytes for each in done)
        summary = f"{len(done) - len(failed)} of {len(done)} records migrated and verified, {size(total)}"
        print(summary + (f"; {len(failed)} not, see above" if failed else ""))
    return ERROR if failed else OK


def _facts(outcome: Migration) -> dict[str, Any]:
    error = None if outcome.error is None else error_facts(outcome.error, outcome.source)
    return {**outcome.to_dict(), "error": error}


def _print(outcome: Migration, *, as_json: bool) -> None:
    if outcome.error is not None:
        print_error(outcome.error, outcome.source)
    if as_json or outcome.error is not None:
        return
    what = f"{outcome.kind}, {outcome.tensors} {'tensor' if outcome.tensors == 1 else 'tensors'}"
    print(f"{escape(outcome.source)} -> {escape(outcome.destination)}: {what}, {size(outcome.nbytes)}, verified")
    for note in shown_notes(outcome.notes):
        print(f"  note: {note}")


def _outcomes(arguments: argparse.Namespace, display: ProgressDisplay) -> Iterator[Migration]:
    names = ("scheduler", "undecided", "allow_empty", "overwrite", "rename", "rules")
    wanted = {name: getattr(arguments, name) for name in names}
    if os.path.isdir(arguments.source):
        progress_of = partial(partial, display.show)
        yield from migrate_each(arguments.source, arguments.destination, progress_of=progress_of, **wanted)
        return
    try:
        yield migrate(
            arguments.source,
            arguments.destination,
            model=arguments.model,
            progress=partial(display.show, arguments.source),
            **wanted,
        )
    except JOB_ERRORS as error:
        shown = as_burnstore_error(error, arguments.source)
        yield Migration(arguments.source, arguments.destination, error=shown)
