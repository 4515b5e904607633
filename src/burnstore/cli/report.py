"""``burnstore report``: write a page to look at in a browser."""

from __future__ import annotations

import argparse

from ..io.atomic import refuse_existing
from ..io.paths import base_name
from ..jobs.report.report import Report, report
from .arguments import add_option, add_options, like_from, pipeline_from
from .errors import FOUND, JOB_ERRORS, OK, fail, misuse
from .progress import shown_progress
from .text import counted, escape, print_json

_PAGE = "report.html"
_OF_TWO = ("rename", "rules", "guess", "layout", "keep_layout")

DESCRIPTION = """\
Write one page that shows what a file of tensors contains: a treemap of its parameters by module, a table of its tensors
to sort and filter, the histogram and outliers of each tensor, its metadata and the evidence for its layout. Of two
files it also shows what changed from the first to the second. The page needs no network and no other files.
"""

EXAMPLES = """\
examples:
  burnstore report model.bpk                               writes report.html
  burnstore report model.safetensors -o model.html
  burnstore report before.bpk after.bpk -o changes.html    what training changed
  burnstore report model.bpk --no-stats                    reads only the header
  burnstore report model.bpk --json | jq '.files[0].tensors[0].outliers'

exit codes:
  0  ok
  1  the page is written, and something needs attention: a NaN or Inf, values that cannot be read, a difference
  2  an error: a file that cannot be read, a page that cannot be written, or wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("file", metavar="FILE", help="a file of tensors, an index of shards or a folder with one")
    parser.add_argument("other", metavar="FILE2", nargs="?", help="a second file to compare with the first")
    add_option(parser, "output", metavar="PAGE", help=f"the page to write (default: {_PAGE})")
    parser.add_argument("--no-stats", action="store_true", help="read no tensors: no figures, histograms or outliers")
    add_option(parser, "json", help="write one JSON document to stdout, and a page only with -o")
    comparison = parser.add_argument_group("two files")
    add_options(comparison, "like", *_OF_TWO)
    add_options(parser, "top_level_key", "allow_empty", "overwrite", "jobs", "quiet")


def run(arguments: argparse.Namespace) -> int:
    """Make the report, write the page, and print where it is."""
    output = arguments.output or (None if arguments.json else _PAGE)
    try:
        given = [name for name in ("like", *_OF_TWO) if getattr(arguments, name)]
        if given and arguments.other is None:
            return misuse(f"--{given[0].replace('_', '-')} needs two files", "report")
        if output is not None:  # before --like imports a framework
            files = [path for path in (arguments.file, arguments.other) if path is not None]
            refuse_existing(output, overwrite=arguments.overwrite, sources=files)
        options = (
            {"like": like_from(arguments), "pipeline": pipeline_from(arguments, allow_empty=False)}
            if arguments.other
            else {}
        )
        with shown_progress(base_name(arguments.file), quiet=arguments.quiet) as progress:
            found = report(
                arguments.file,
                arguments.other,
                output=output,
                overwrite=arguments.overwrite,
                stats=not arguments.no_stats,
                allow_empty=arguments.allow_empty,
                top_level_key=arguments.top_level_key,
                executor=arguments.jobs,
                progress=progress,
                **options,
            )
    except JOB_ERRORS as error:
        return fail(error, arguments.file)
    if arguments.json:
        print_json(found.to_dict())
    else:
        sources = " and ".join(escape(path) for path in (arguments.file, arguments.other) if path is not None)
        print(f"{sources} -> {escape(output or '')}: {_summary(found)}")
    return FOUND if found.found else OK


def _summary(found: Report) -> str:
    total = found.files[-1].inspection.total
    facts = [f"{counted(total.tensors, 'tensor')}, {counted(total.elements, 'parameter')}"]
    unsound = sum(file.unsound for file in found.files)
    if unsound:
        facts.append(f"{unsound:,} with NaN, Inf or unreadable values")
    if found.diff is not None:
        counts = [f"{count:,} {status}" for status, count in found.diff.counts.items() if count]
        facts.append(", ".join(counts) or "nothing to compare")
    return "; ".join(facts)
