"""``burnstore explain``: show what a load would do, without reading tensors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from ..jobs.explain.explain import RATE, Explanation, LayoutChange, explain
from ..pipeline.recipe import ADAPTERS
from ..pipeline.translation import rules_from_file
from . import FOUND, OK
from .arguments import add_options, byte_size, model_or_path
from .errors import JOB_ERRORS, fail, hint_with_options
from .table import Column, render
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
    parser.add_argument("--filter", action="append", metavar="REGEX", help="only parameters whose paths match")
    parser.add_argument("--rename", action="append", type=_rename, metavar="OLD=>NEW", help="rename the file's tensors")
    parser.add_argument("--layout", choices=("burn", "torch"), help="the layout of a file that does not state one")
    parser.add_argument("--rules", metavar="FILE", help="module kinds, one `pattern = kind` per line")
    parser.add_argument("--adapter", choices=tuple(ADAPTERS), help="apply one of the library's adapters")
    parser.add_argument("--top-level-key", metavar="KEY", help="the part of a PyTorch file that is the model")
    parser.add_argument("--allow-partial", action="store_true", help="parameters may be missing")
    parser.add_argument(
        "--keep-indices", action="store_true", help="do not close gaps in the numbers of PyTorch's layers"
    )
    parser.add_argument(
        "--rate", type=byte_size, metavar="BYTES", help="bytes per second for the estimate of time (1GB)"
    )
    add_options(parser, "limit", "json")


def run(arguments: argparse.Namespace) -> int:
    """Explain, and return whether the load would succeed."""
    try:
        options = _options(arguments)
        found = explain(arguments.file, model_or_path(arguments.into), **options)
    except JOB_ERRORS as error:
        return fail(error, arguments.file)
    if arguments.json:
        print_json(found.to_dict())
    else:
        print("\n".join(_lines(found, arguments, Screen.of_stdout())))
    return OK if found.is_clean else FOUND


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {"rate": float(arguments.rate or RATE), "allow_partial": arguments.allow_partial}
    if arguments.filter:
        options["regexes"] = arguments.filter
    if arguments.rename:
        options["key_remapping"] = dict(arguments.rename)
    if arguments.layout is not None:
        options["layout"] = arguments.layout
    if arguments.rules is not None:
        options["rules"] = rules_from_file(arguments.rules)
    if arguments.adapter is not None:
        options["from_adapter"] = ADAPTERS[arguments.adapter]()
    if arguments.top_level_key is not None:
        options["top_level_key"] = arguments.top_level_key
    if arguments.keep_indices:
        options["map_indices_contiguous"] = False
    return options


def _lines(found: Explanation, arguments: argparse.Namespace, screen: Screen) -> Iterator[str]:
    variant = f" ({found.variant})" if found.variant else ""
    what = f"{found.format}{variant}, {counted(found.tensors, 'tensor')}, {size(found.nbytes)}"
    yield f"{screen.paint(escape(found.path), '1')}: {escape_controls(what)}"
    for line in found.evidence:
        yield f"  {escape_controls(line)}"
    if found.result is None:
        for change in found.changes:
            needs = escape_controls(hint_with_options(change.needs))
            yield f"  into {change.layout}'s layout: {needs}{_counts(change)}"
        return
    yield f"  into {escape(arguments.into)}, {_layout_of(found.target_layout)}"
    rows = found.moves if arguments.limit is None else found.moves[: arguments.limit]
    if rows:
        yield ""
        yield from render(
            [
                Column("INTO", [escape(row.target) for row in rows], least=16),
                Column("FROM", [" + ".join(map(escape, row.sources)) or "-" for row in rows], least=16),
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
    assert result is not None
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
    for note in result.notes:
        yield f"note: {escape_controls(note)}"
    outcome = "a load would succeed" if found.refusal is None else f"a load would raise {found.refusal}"
    yield f"{counted(len(found.moves), 'tensor')} would be applied; {outcome}"


def _time(found: Explanation, *, stated: bool) -> str:
    seconds = "less than 0.01" if found.seconds < 0.01 else f"{found.seconds:.2f}"
    return f"{seconds} s at {found.rate / 1e9:g} GB/s ({'given' if stated else 'assumed'}, not measured)"


def _counts(change: LayoutChange) -> str:
    counts = {name: getattr(change, name) for name in ("renamed", "transposed", "split", "joined")}
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f" ({shown})" if shown else ""


def _layout_of(layout: str | None) -> str:
    return "of unknown layout, assumed to be the file's" if layout is None else f"in {layout}'s layout"


def _rename(text: str) -> tuple[str, str]:
    old, arrow, new = text.partition("=>")
    if not arrow:
        raise argparse.ArgumentTypeError(f"{text!r} is not a renaming rule: write OLD=>NEW")
    return old, new
