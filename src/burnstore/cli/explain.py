"""``burnstore explain``: show what a load would do, before anything is read."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from ..errors import BurnstoreError
from ..jobs.explain.explain import RATE, Explanation, LayoutChange, explain
from ..pipeline.recipe import ADAPTERS
from ..pipeline.translation import rules_from_file
from . import ERROR, FINE, FOUND
from .arguments import add_json, add_limit, byte_size
from .complaint import complain
from .hints import in_options
from .table import Column, render
from .target import imported, names_object
from .text import Screen, escape, escape_controls, size

_SCHEMA = 1

DESCRIPTION = """\
Show what a load of a file into a model would do: which tensor goes where, renamed by which rule, transposed, split,
joined or cast; what is missing or unused; and what it will cost. No tensor is read. Without --into: whose layout the
file is in, how that is known, and what it takes to have it in another.
"""

EXAMPLES = """\
examples:
  burnstore explain model.pt
  burnstore explain model.pt --into net:Net                    the class Net in ./net.py, of torch or burnstore.nn
  burnstore explain new.safetensors --into old.bpk             in the place of the tensors of another file
  burnstore explain model.pt --into net:Net --rename '^h\\.=>layers.' --filter '^layers\\.' --allow-partial

exit codes:
  0  fine: every tensor finds a place, every place a tensor, and all fit
  1  something is missing, unused or does not fit
  2  an error: a file that cannot be read, a model that cannot be made, or wrong arguments

It is the plan of the load itself that is shown. Only what values decide is not known: whether a number fits a narrower
dtype, whether tensors that are shared in the model are equal in the file.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be said after the verb."""
    parser.add_argument("file", metavar="SRC", help="a file of tensors, a folder or an index of shards")
    parser.add_argument("--into", metavar="MODULE:NAME|FILE", help="a model that is imported and made, or a file")
    parser.add_argument("--filter", action="append", metavar="REGEX", help="only parameters in whose paths it is found")
    parser.add_argument("--rename", action="append", type=_rename, metavar="OLD=>NEW", help="rename the file's tensors")
    parser.add_argument("--layout", choices=("burn", "torch"), help="the layout of the file, if it does not tell")
    parser.add_argument("--rules", metavar="FILE", help="which modules are of which kind, a pattern and a kind a line")
    parser.add_argument("--adapter", choices=tuple(ADAPTERS), help="one of the library's adapters")
    parser.add_argument("--top-level-key", metavar="KEY", help="the part of a PyTorch file that is the model")
    parser.add_argument("--allow-partial", action="store_true", help="parameters may be missing")
    parser.add_argument(
        "--keep-indices", action="store_true", help="do not close gaps in the numbers of PyTorch's layers"
    )
    parser.add_argument(
        "--rate", type=byte_size, metavar="BYTES", help="bytes a second that the estimate of time supposes (1GB)"
    )
    add_limit(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Explain, and say whether all goes well."""
    try:
        options = _options(arguments)
        into = arguments.into
        if into is not None and names_object(into):
            into = imported(into)
        found = explain(arguments.file, into, **options)
    except (BurnstoreError, OSError, MemoryError) as error:
        complain(error, arguments.file)
        return ERROR
    if arguments.json:
        from burnstore import __version__

        # ASCII only: whatever the names are, no terminal acts on them.
        print(json.dumps({"burnstore": __version__, "schema": _SCHEMA, **found.to_dict()}, allow_nan=False))
    else:
        print("\n".join(_lines(found, arguments, Screen.of_stdout())))
    return FINE if found.is_clean else FOUND


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
    what = f"{found.format}{variant}, {_counted(found.tensors, 'tensor')}, {size(found.nbytes)}"
    yield f"{screen.paint(escape(found.path), '1')}: {escape_controls(what)}"
    for line in found.evidence:
        yield f"  {escape_controls(line)}"
    if found.result is None:
        for change in found.changes:
            yield f"  into {change.layout}'s layout: {escape_controls(in_options(change.needs))}{_counts(change)}"
        return
    yield f"  into {escape(arguments.into)}, {_whose(found.target_layout)}"
    rows = found.moves if arguments.limit is None else found.moves[: arguments.limit]
    if rows:
        yield ""
        yield from render(
            [
                Column("INTO", [escape(row.target) for row in rows], least=16),
                Column("FROM", [" + ".join(map(escape, row.sources)) or "-" for row in rows], least=16),
                Column("STEPS", [escape_controls("; ".join(row.steps) or "as it is") for row in rows], least=12),
                Column("DTYPE", [escape(row.dtype) for row in rows], spare=2),
                Column("SHAPE", [str(list(row.shape)) for row in rows], spare=1),
                Column("BYTES", [f"{row.nbytes:,}" for row in rows], right=True, spare=3),
            ],
            screen,
        )
    if len(rows) < len(found.moves):
        yield screen.paint(f"({len(found.moves) - len(rows):,} more; --limit {arguments.limit})", "2")
    yield ""
    yield from _troubles(found, screen)
    yield f"to read: {size(found.bytes_to_read)} of {size(found.nbytes)}"
    yield f"estimate: {size(found.peak_bytes)} of memory beside the model, {_time(found, stated=bool(arguments.rate))}"


def _troubles(found: Explanation, screen: Screen) -> Iterator[str]:
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
        yield f"skipped by the filter: {_counted(len(result.skipped), 'tensor')}"
    for note in result.notes:
        yield f"note: {escape_controls(note)}"
    outcome = "a load would go well" if found.refusal is None else f"a load would raise {found.refusal}"
    yield f"{_counted(len(found.moves), 'tensor')} would be applied; {outcome}"


def _time(found: Explanation, *, stated: bool) -> str:
    seconds = "less than 0.01" if found.seconds < 0.01 else f"{found.seconds:.2f}"
    return f"{seconds} s at {found.rate / 1e9:g} GB/s ({'as stated' if stated else 'supposed'}, not measured)"


def _counts(change: LayoutChange) -> str:
    counts = {name: getattr(change, name) for name in ("renamed", "transposed", "split", "joined")}
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return f" ({told})" if told else ""


def _whose(layout: str | None) -> str:
    return "of no known layout: taken to be the file's own" if layout is None else f"which is in {layout}'s layout"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _rename(text: str) -> tuple[str, str]:
    old, arrow, new = text.partition("=>")
    if not arrow:
        raise argparse.ArgumentTypeError(f"{text!r} is no rule for names: write OLD=>NEW")
    return old, new
