"""``burnstore report``: write a page to look at in a browser."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from ..errors import BurnstoreError
from ..jobs.report.report import Report, report
from . import ERROR, FINE, FOUND
from .arguments import add_jobs, add_overwrite, add_quiet
from .complaint import complain
from .progress import shown_progress
from .target import imported, names_object
from .text import escape

_SCHEMA = 1
_PAGE = "report.html"

DESCRIPTION = """\
Write one page that shows what a file of tensors holds: a treemap of its parameters by module, a table of its tensors to
sort and filter, the histogram and outliers of each, its metadata, and what says whose layout it has. Of two files it
also shows what changed from the first to the second. The page needs no network and nothing beside it.
"""

EXAMPLES = """\
examples:
  burnstore report model.bpk                               writes report.html
  burnstore report model.safetensors -o model.html
  burnstore report before.bpk after.bpk -o changes.html    what training did
  burnstore report model.bpk --no-stats                    only the header is read, whatever the size
  burnstore report model.bpk --json | jq '.files[0].tensors[0].outliers'

exit codes:
  0  fine
  1  the page is written, and there is something to look into: a NaN or Inf, values that cannot be read, a difference
  2  an error: a file that cannot be read, a page that cannot be written, or wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be said after the verb."""
    parser.add_argument("file", metavar="FILE", help="a file of tensors, an index of shards or a folder with one")
    parser.add_argument("other", metavar="FILE2", nargs="?", help="another, which the first is compared with")
    parser.add_argument("-o", "--output", metavar="PAGE", help=f"where the page goes (default: {_PAGE})")
    add_overwrite(parser, "the page if it exists")
    parser.add_argument("--no-stats", action="store_true", help="read no tensors: no figures, histograms or outliers")
    parser.add_argument(
        "--json", action="store_true", help="write one JSON document to stdout, and a page only where -o says"
    )
    parser.add_argument(
        "--like", metavar="MODULE:NAME|FILE", help="what tells the kinds of the modules, for two files of other layouts"
    )
    parser.add_argument("--keep-layout", action="store_true", help="compare two files as they are, whatever layouts")
    add_jobs(parser)
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Make the report, write the page, and say where it is."""
    output = arguments.output or (None if arguments.json else _PAGE)
    try:
        options = _comparison_options(arguments)
        with shown_progress(os.path.basename(arguments.file), quiet=arguments.quiet) as progress:
            found = report(
                arguments.file,
                arguments.other,
                output=output,
                overwrite=arguments.overwrite,
                stats=not arguments.no_stats,
                executor=arguments.jobs,
                progress=progress,
                **options,
            )
    except (BurnstoreError, OSError, MemoryError) as error:
        complain(error, arguments.file)
        return ERROR
    if arguments.json:
        _print_json(found)
    else:
        print(f"{_sources(arguments)} -> {escape(output or '')}: {_told(found)}")
    return FOUND if found.found else FINE


def _comparison_options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if arguments.keep_layout:
        options["keep_layout"] = True
    if arguments.like is not None:
        options["like"] = imported(arguments.like) if names_object(arguments.like) else arguments.like
    if options and arguments.other is None:
        raise BurnstoreError("there is nothing to compare it with", hint="--like and --keep-layout are for two files")
    return options


def _sources(arguments: argparse.Namespace) -> str:
    return " and ".join(escape(path) for path in (arguments.file, arguments.other) if path is not None)


def _told(found: Report) -> str:
    total = found.files[-1].inspection.total
    told = [f"{total.tensors:,} {'tensor' if total.tensors == 1 else 'tensors'}, {total.elements:,} parameters"]
    unsound = sum(file.unsound for file in found.files)
    if unsound:
        told.append(f"{unsound:,} with NaN, Inf or unreadable values")
    if found.diff is not None:
        counts = [f"{count:,} {status}" for status, count in found.diff.counts.items() if count]
        told.append(", ".join(counts) or "nothing to compare")
    return "; ".join(told)


def _print_json(found: Report) -> None:
    from burnstore import __version__

    # ASCII only: whatever the names are, no terminal acts on them.
    print(json.dumps({"burnstore": __version__, "schema": _SCHEMA, **found.to_dict()}, allow_nan=False))
