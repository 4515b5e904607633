"""``burnstore merge``: lay files over each other, or blend them."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from typing import Any

from ..errors import BurnstoreError
from ..jobs.merge.combine import CONFLICTS, METHODS
from ..jobs.merge.merge import Merge, MergeSource, merge
from ..pipeline.translation import rules_from_file
from . import ERROR, FINE
from .arguments import add_jobs, add_json, add_limit, add_overwrite, add_quiet, byte_size, key_and_text
from .complaint import complain, misuse
from .progress import shown_progress
from .table import Column, render
from .target import imported, names_object
from .text import Screen, escape, escape_controls, size

_SCHEMA = 1

DESCRIPTION = """\
Write the tensors of several files into one. An overlay takes each tensor from the source that has it; the methods
linear and slerp blend those of one name. Every tensor is computed twice and compared before the file gets its name.
Where sources do not go together (a name in two of them, shapes that differ) it is an error, unless --conflicts says
whose tensor counts.
"""

EXAMPLES = """\
examples:
  burnstore merge encoder.bpk decoder.bpk model.bpk                         tensors of both
  burnstore merge base.bpk tuned.bpk out.bpk --only 2 '^encoder\\.' --conflicts last
                                                                            the encoder of the second over the first
  burnstore merge a.safetensors b.safetensors c.safetensors soup.safetensors --method linear
                                                                            the mean of three
  burnstore merge a.bpk b.bpk out.bpk --t 0.3                               3 of 10 steps from a to b
  burnstore merge a.bpk b.bpk out.bpk --method slerp --t 0.5 --weight '^head\\.=1,0'
  burnstore merge a.bpk tuned.bpk base.bpk out.bpk --weights 1,0.5,-0.5     half of what tuning changed, added to a

exit codes:
  0  fine: the target is there, and proved
  2  an error: the target is as it was, and the line on stderr says what to do

Weights are one for each source, in their order; they may be negative and must add up to 1, or --normalize scales them.
A source of weight 0 plays no part. Integers, bools and quantized tensors have no mean: they must be equal.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be said after the verb."""
    parser.add_argument("paths", nargs="+", metavar="SRC... DST", help="files, folders or indexes, and the file to be")
    how = parser.add_argument_group("how tensors of one name become one")
    how.add_argument("--method", choices=METHODS, help="default: overlay; linear if there are weights")
    how.add_argument("--weights", type=_numbers, metavar="W,W...", help="one for each source (default: equal ones)")
    how.add_argument("--t", type=float, metavar="T", help="of two sources: 0 is the first, 1 the second")
    how.add_argument(
        "--weight",
        action="append",
        type=_tensor_weights,
        metavar="REGEX=W,W...",
        help="weights for tensors in whose names this is found; the last that matches counts",
    )
    how.add_argument("--normalize", action="store_true", help="scale weights so that they add up to 1")
    how.add_argument("--conflicts", choices=CONFLICTS, default="error", help="whose tensor counts (default: error)")
    what = parser.add_argument_group("what is written")
    what.add_argument("--only", nargs=2, action="append", metavar=("N", "REGEX"), help="of source N only these tensors")
    what.add_argument(
        "--rename", nargs=2, action="append", metavar=("N", "OLD=>NEW"), help="rename tensors of source N"
    )
    what.add_argument("--cast", metavar="DTYPE", help="floats in this dtype: bf16, f16, f32, f64")
    what.add_argument(
        "--metadata", action="append", metavar="KEY=TEXT", type=key_and_text, help="a text beside the tensors"
    )
    layout = parser.add_argument_group("whose layout it has")
    layout.add_argument("--like", metavar="MODULE:NAME|FILE", help="a model, or a file that records its modules")
    layout.add_argument("--rules", metavar="FILE", help="which modules are of which kind, a pattern and a kind a line")
    layout.add_argument("--keep-layout", action="store_true", help="write the tensors as they are")
    layout.add_argument("--source-layout", choices=("burn", "torch"), help="that of sources that do not tell")
    parser.add_argument("--format", choices=("burnpack", "safetensors"), help="the format, if its name does not tell")
    parser.add_argument("--shard", type=byte_size, metavar="SIZE", help="SafeTensors in files of at most this size")
    parser.add_argument("--no-verify", action="store_true", help="do not read back and compare what was written")
    add_limit(parser)
    add_overwrite(parser)
    add_jobs(parser)
    add_quiet(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Merge, and print what every tensor was made of."""
    if len(arguments.paths) < 2:
        return misuse("at least one source and a target are needed", "merge")
    *paths, target = arguments.paths
    try:
        sources = _sources(paths, arguments)
    except ValueError as error:
        return misuse(str(error), "merge")
    try:
        with shown_progress(os.path.basename(target), quiet=arguments.quiet) as progress:
            done = _merged(sources, target, arguments, progress)
    except (BurnstoreError, OSError, MemoryError, TypeError) as error:
        complain(error, target)
        return ERROR
    for line in _told(done, arguments, Screen.of_stdout()):
        print(line)
    return FINE


def _sources(paths: list[str], arguments: argparse.Namespace) -> list[MergeSource]:
    filters: list[list[str]] = [[] for _ in paths]
    renames: list[list[str]] = [[] for _ in paths]
    for option, given, several in (("--only", arguments.only, filters), ("--rename", arguments.rename, renames)):
        for number, text in given or ():
            if not number.isdecimal() or not 1 <= int(number) <= len(paths):
                raise ValueError(f"{option} {number}: sources are numbered from 1 to {len(paths)}")
            several[int(number) - 1].append(text)
    return [MergeSource(path, filter=filters[at] or None, rename=renames[at] or None) for at, path in enumerate(paths)]


def _merged(sources: list[MergeSource], target: str, arguments: argparse.Namespace, progress: Any) -> Merge:
    like = arguments.like
    has_weights = arguments.weights is not None or arguments.t is not None or arguments.weight
    return merge(
        sources,
        target,
        method=arguments.method or ("linear" if has_weights else "overlay"),
        weights=arguments.weights,
        t=arguments.t,
        tensor_weights=dict(arguments.weight or ()),
        normalize=arguments.normalize,
        conflicts=arguments.conflicts,
        cast=arguments.cast,
        like=imported(like) if like is not None and names_object(like) else like,
        rules=None if arguments.rules is None else rules_from_file(arguments.rules),
        source_layout=arguments.source_layout,
        keep_layout=arguments.keep_layout,
        format=arguments.format,
        metadata=dict(arguments.metadata or ()),
        max_shard_size=arguments.shard,
        overwrite=arguments.overwrite,
        verify=not arguments.no_verify,
        executor=arguments.jobs,
        progress=progress,
    )


def _told(done: Merge, arguments: argparse.Namespace, screen: Screen) -> Iterator[str]:
    *paths, target = arguments.paths
    if arguments.json:
        from burnstore import __version__

        known = {"burnstore": __version__, "schema": _SCHEMA, "sources": paths, "target": target}
        # ASCII only: whatever the names are, no terminal acts on them.
        yield json.dumps({**known, **done.to_dict()}, allow_nan=False)
        return
    rows = done.tensors if arguments.limit is None else done.tensors[: arguments.limit]
    if rows:
        columns = [
            Column("NAME", [escape(row.name) for row in rows], least=16),
            Column("SOURCES", ["+".join(str(at + 1) for at in row.sources) for row in rows]),
            Column("WEIGHTS", [_weights(row.weights) for row in rows], spare=2),
        ]
        if any(row.conflict for row in rows):
            columns.append(Column("CONFLICT", [escape_controls(row.conflict or "-") for row in rows], spare=1))
        yield from render(columns, screen)
        yield ""
    count = f"{len(done.tensors):,} {'tensor' if len(done.tensors) == 1 else 'tensors'}"
    facts = [count, size(done.nbytes), "verified" if done.verified else "not verified"]
    facts.insert(2, f"{done.layout}'s layout" if done.layout else "of no known layout")
    yield f"{escape(target)}: {', '.join(facts)}"
    for name, why in done.left_out.items():
        yield f"  left out: {escape(name)} ({escape_controls(why)})"
    for note in done.notes:
        yield f"  note: {escape_controls(note)}"


def _weights(weights: tuple[float, ...] | None) -> str:
    return "-" if weights is None else ", ".join(f"{weight:.4g}" for weight in weights)


def _numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of weights: write 0.3,0.7") from None


def _tensor_weights(text: str) -> tuple[str, list[float]]:
    pattern, equals, numbers = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} names no weights: write REGEX=0.3,0.7")
    return pattern, _numbers(numbers)
