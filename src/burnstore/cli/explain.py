"""``burnstore explain``: show what a load would do, without reading tensors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ..jobs.explain.explain import RATE, Explanation, LayoutChange, explain
from .arguments import add_options, byte_size, like_from, model_or_path, pipeline_from
from .errors import FOUND, JOB_ERRORS, OK, fail, shown_notes, with_options
from .table import Column, name_column, render
from .text import Screen, counted, escape, escape_controls, print_json, size

DESCRIPTION = """\
Show what loading a file into a model would do: which tensor goes where, renamed by which rule, transposed, split,
joined or cast; what is missing or unused; and the cost. No tensor is read. Without --into: the layout of the file, the
evidence for it, and what a conversion into another layout needs.
"""

EXAMPLES = """\
examples:
  burnstore explain model.pt
  burnstore explain model.pt --into net:Net                    the class Net in ./net.py, of torch or burnstore.nn
  burnstore explain new.safetensors --into old.bpk             in place of the tensors of another file
  burnstore explain model.pt --into net:Net --rename '^h\\.=>layers.' --filter '^layers\\.' --allow-partial

exit codes:
  0  ok: every tensor has a parameter, every parameter a tensor, and all fit
  1  something is missing, unused or does not fit
  2  an error: a file that cannot be read, a model that cannot be built, or wrong arguments

The output is the plan of the load itself. Only what depends on values is unknown: whether a number fits a narrower
dtype, whether tensors that are shared in the model are equal in the file.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("file", metavar="SRC", help="a file of tensors, a folder or an index of shards")
    parser.add_argument("--into", metavar="MODULE:NAME|FILE", help="a model to import and build, or a file")
    parser.add_argument("--target", metavar="DST", help="explain a conversion into this file instead of a load")
    add_options(parser, "rename", "filter", "layout", "target_layout", "keep_layout", "rules", "invert", "guess")
    add_options(parser, "adapter", "cast", "indices", "skip_enum_variants", "allow_partial", "like", "top_level_key")
    parser.add_argument(
        "--rate", type=byte_size, metavar="BYTES", help="bytes per second for the estimate of time (1GB)"
    )
    add_options(parser, "strict", "allow_empty", "limit", "json")


def run(arguments: argparse.Namespace) -> int:
    """Explain, and return whether the load would succeed."""
    try:
        found = explain(
            arguments.file,
            model_or_path(arguments.into),
            target=arguments.target,
            like=like_from(arguments),
            top_level_key=arguments.top_level_key,
            rate=float(arguments.rate or RATE),
            pipeline=pipeline_from(arguments),
        )
    except JOB_ERRORS as error:
        return fail(error, arguments.file)
    if arguments.json:
        print_json(found.to_dict())
    else:
        print("\n".join(_lines(found, arguments, Screen.of_stdout())))
    return OK if found.is_clean and found.ok else FOUND


def _lines(found: Explanation, arguments: argparse.Namespace, screen: Screen) -> Iterator[str]:
    variant = f" ({found.variant})" if found.variant else ""
    what = f"{found.format}{variant}, {counted(found.tensors, 'tensor')}, {size(found.nbytes)}"
    yield f"{screen.paint(escape(found.path), '1')}: {escape_controls(what)}"
    for line in found.evidence:
        yield f"  {escape_controls(line)}"
    if found.target is None:
        for change in found.changes:
            needs = escape_controls(with_options(change.needs))
            yield f"  into {change.layout}'s layout: {needs}{_counts(change)}"
        return
    layout = "of unknown layout, assumed to be the file's"
    layout = layout if found.target_layout is None else f"in {found.target_layout}'s layout"
    yield f"  into {escape(arguments.into or arguments.target)}, {layout}"
    rows = found.moves if arguments.limit is None else found.moves[: arguments.limit]
    if rows:
        yield ""
        yield from render(
            [
                name_column("INTO", [escape(row.target) for row in rows], screen, 16),
                name_column("FROM", [" + ".join(map(escape, row.sources)) or "-" for row in rows], screen, 16),
                Column("STEPS", [escape_controls("; ".join(row.steps) or "unchanged") for row in rows], least=12),
                Column("DTYPE", [escape(row.dtype) for row in rows], spare=2),
                Column("SHAPE", [str(list(row.shape)) for row in rows], spare=1),
                Column("BYTES", [f"{row.nbytes:,}" for row in rows], right=True, spare=3),
            ],
            screen,
        )
    if len(rows) < len(found.moves):
        yield screen.paint(f"({len(found.moves) - len(rows):,} more; --limit {arguments.limit})", "2")
    yield ""
    yield from _problems(found, screen)
    yield f"to read: {size(found.bytes_to_read)} of {size(found.nbytes)}"
    yield f"estimate: {size(found.peak_bytes)} of memory besides the model, {_time(found, stated=bool(arguments.rate))}"


def _problems(found: Explanation, screen: Screen) -> Iterator[str]:
    result = found.result
    if result is None:  # a conversion
        for name, why in found.left_out.items():
            yield f"{screen.paint('left out', '1;33')}: {escape(name)} ({escape_controls(why)})"
        for note in shown_notes(found.notes):
            yield f"note: {note}"
        yield f"{counted(len(found.moves), 'tensor')} would be written"
        return
    for path in map(str, result.missing):
        nearest = found.nearest(path)
        hint = "" if nearest is None else f" (did you mean {escape(nearest)}?)"
        yield f"{screen.paint('missing', '1;31')}: {escape(path)}{hint}"
    for error in result.errors:
        yield f"{screen.paint('does not fit', '1;31')}: {escape_controls(error.message)}"
    for path in result.unused:
        yield f"{screen.paint('unused', '1;33')}: {escape(path)}"
    if result.skipped:
        yield f"skipped by the filter: {counted(len(result.skipped), 'tensor')}"
    for note in shown_notes(result.notes):
        yield f"note: {note}"
    outcome = "a load would succeed" if found.refusal is None else f"a load would raise {found.refusal}"
    yield f"{counted(len(found.moves), 'tensor')} would be applied; {outcome}"


def _time(found: Explanation, *, stated: bool) -> str:
    seconds = "less than 0.01" if found.seconds < 0.01 else f"{found.seconds:.2f}"
    return f"{seconds} s at {found.rate / 1e9:g} GB/s ({'given' if stated else 'assumed'}, not measured)"


def _counts(change: LayoutChange) -> str:
    counts = {name: getattr(change, name) for name in ("renamed", "transposed", "split", "joined")}
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f" ({shown})" if shown else ""
