"""``burnstore migrate``: write what old records hold into new files, and verify it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial

from ..errors import BurnstoreError
from ..jobs.migrate import Migration, migrate, migrate_folder
from . import ERROR, FINE, FOUND
from .arguments import add_overwrite, add_quiet
from .complaint import complain
from .progress import ProgressDisplay
from .text import escape, size

DESCRIPTION = """\
Write what a record of Burn 0.13 to 0.21 holds (.mpk, .bin, .json, each also .gz) into a file that Burn of today loads.
The record stays as it is; every tensor of the new file is read back and compared. Of a folder every record below it
is migrated into the same place below DESTINATION.
"""

EXAMPLES = """\
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be said after the verb."""
    parser.add_argument("source", metavar="SOURCE", help="a record, or a folder with records")
    parser.add_argument("destination", metavar="DESTINATION", help="the new file (.bpk), or a folder")
    add_overwrite(parser, "files that exist")
    parser.add_argument("--model", metavar="RECORD", help="the record of the model that an optimizer's belongs to")
    parser.add_argument(
        "--scheduler",
        choices=("Linear", "Cosine", "Exponential", "Noam", "Step"),
        help="what kind of scheduler a record with a single number is of",
    )
    parser.add_argument(
        "--undecided",
        choices=("F16", "I16"),
        help="what the tensors are that a Half record of Burn 0.13 does not tell; F16 if all are floats",
    )
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Migrate a file, or every record below a folder; the worst outcome decides the exit code."""
    done: list[Migration] = []
    with ProgressDisplay(quiet=arguments.quiet) as display:
        for outcome in _outcomes(arguments, display):
            display.clear()
            done.append(outcome)
            _tell(outcome)
    if not done:
        print(f"no records of Burn below {escape(arguments.source)}")
        return FOUND
    failed = [each for each in done if each.error is not None]
    if len(done) > 1:
        fine = [each for each in done if each.error is None]
        total = sum(each.nbytes for each in fine)
        summary = f"{len(fine)} of {len(done)} records migrated and verified, {size(total)}"
        print(summary + (f"; {len(failed)} not, see above" if failed else ""))
    return ERROR if failed else FINE


def _tell(outcome: Migration) -> None:
    if outcome.error is not None:
        complain(outcome.error, outcome.source)
        return
    what = f"{outcome.kind}, {outcome.tensors} {'tensor' if outcome.tensors == 1 else 'tensors'}"
    print(f"{escape(outcome.source)} -> {escape(outcome.destination)}: {what}, {size(outcome.nbytes)}, verified")


def _outcomes(arguments: argparse.Namespace, display: ProgressDisplay) -> Iterator[Migration]:
    wanted = {"scheduler": arguments.scheduler, "undecided": arguments.undecided, "overwrite": arguments.overwrite}
    if os.path.isdir(arguments.source):
        yield from migrate_folder(arguments.source, arguments.destination, progress=display.show, **wanted)
        return
    try:
        yield migrate(
            arguments.source,
            arguments.destination,
            model=arguments.model,
            progress=partial(display.show, arguments.source),
            **wanted,
        )
    except (BurnstoreError, OSError, MemoryError) as error:
        told = BurnstoreError("there is not enough memory") if isinstance(error, MemoryError) else error
        yield Migration(arguments.source, arguments.destination, error=told)
