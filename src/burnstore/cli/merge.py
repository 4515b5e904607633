"""``burnstore merge``: overlay or blend files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from ..errors import BurnstoreError, quoted
from ..io.atomic import refuse_existing
from ..io.paths import base_name, exists, is_remote
from ..jobs.merge.combine import CONFLICTS, METHODS
from ..jobs.merge.merge import MergeResult, MergeSource, merge
from ..pipeline.write import check_apart
from .arguments import add_option, add_options, expand_patterns, like_from, pipeline_from
from .errors import JOB_ERRORS, OK, fail, misuse, shown_notes
from .progress import shown_progress
from .table import Column, name_column, render
from .text import Screen, counted, escape, escape_controls, print_json, size

DESCRIPTION = """\
Write the tensors of several files into one. An overlay takes each tensor from the source that has it; the methods
linear and slerp blend tensors of the same name; lora folds adapters of PEFT into their base, the first source. Every
tensor is computed twice and compared before the file gets its name. Conflicts (a name in two sources, different shapes)
are errors, unless --conflicts selects a source.
"""

EXAMPLES = """\
examples:
  burnstore merge encoder.bpk decoder.bpk model.bpk                         tensors of both
  burnstore merge base.bpk tuned.bpk out.bpk --only 2 '^encoder\\.' --conflicts last
                                                                            the second's encoder over the first
  burnstore merge a.safetensors b.safetensors c.safetensors soup.safetensors --method linear
                                                                            the mean of three
  burnstore merge a.bpk b.bpk out.bpk --t 0.3                               30 % of the way from a to b
  burnstore merge a.bpk b.bpk out.bpk --method slerp --t 0.5 --weight '^head\\.=1,0'
  burnstore merge a.bpk tuned.bpk base.bpk out.bpk --weights 1,0.5,-0.5     add half of what tuning changed to a
  burnstore merge base adapter out.safetensors --method lora                fold a LoRA adapter into its base

exit codes:
  0  ok: the target is written and verified
  2  an error: the target is unchanged, and the line on stderr has a hint

Weights are one per source, in their order; they may be negative and must add up to 1, or --normalize scales them. A
source of weight 0 is ignored. Integers, bools and quantized tensors cannot be averaged: they must be equal.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument(
        "paths", nargs="+", metavar="SRC... DST", help="files, folders, indexes or patterns, and the file to write"
    )
    how = parser.add_argument_group("method")
    how.add_argument("--method", choices=METHODS, help="default: overlay; linear with weights")
    how.add_argument(
        "--weights", type=_numbers, metavar="W,W...", help="one per source (default: equal); for lora one per adapter"
    )
    how.add_argument("--t", type=float, metavar="T", help="for two sources: 0 is the first, 1 the second")
    how.add_argument(
        "--weight",
        action="append",
        type=_tensor_weights,
        metavar="REGEX=W,W...",
        help="weights for tensors whose names match; the last match counts",
    )
    how.add_argument("--normalize", action="store_true", help="scale the weights to add up to 1")
    how.add_argument("--conflicts", choices=CONFLICTS, default="error", help="which source wins (default: error)")
    what = parser.add_argument_group("contents")
    what.add_argument(
        "--only", nargs=2, action="append", metavar=("N", "REGEX"), help="take only these tensors of source N"
    )
    add_option(what, "rename", nargs=2, metavar=("N", "OLD=>NEW"), help="rename tensors of source N")
    add_options(what, "cast", "top_level_key", "metadata")
    layout = parser.add_argument_group("layout")
    add_options(layout, "like", "rules", "guess", "keep_layout", "layout", "target_layout")
    add_options(parser, "format", "shard", "no_verify", "limit", "allow_empty", "overwrite", "jobs", "quiet", "json")


def run(arguments: argparse.Namespace) -> int:
    """Merge, and print the sources of every tensor."""
    if len(arguments.paths) < 2:
        return misuse("expected at least one source and a target", "merge")
    *paths, target = arguments.paths
    try:
        paths = expand_patterns(paths)
    except BurnstoreError as error:
        return fail(error, target)
    try:
        sources = _sources(paths, arguments)
    except ValueError as error:
        return misuse(str(error), "merge")
    try:
        if arguments.shard is None:  # before --like imports a framework
            refuse_existing(target, overwrite=arguments.overwrite, sources=paths)
        with shown_progress(base_name(target), quiet=arguments.quiet) as progress:
            done = _merge(sources, target, arguments, progress)
    except (*JOB_ERRORS, TypeError) as error:
        return fail(error, target)
    if arguments.json:
        print_json({"sources": paths, "target": target, **done.to_dict()})
    else:
        print("\n".join(_lines(done, arguments, Screen.of_stdout())))
    return OK


def interrupted(arguments: argparse.Namespace) -> str:
    """Return what is left on the disk after Ctrl-C."""
    target = arguments.paths[-1]
    return f"{escape(target)} is {'unchanged' if is_remote(target) or exists(target) else 'not written'}"


def _sources(paths: list[str], arguments: argparse.Namespace) -> list[MergeSource]:
    filters: list[list[str]] = [[] for _ in paths]
    renames: list[list[str]] = [[] for _ in paths]
    for option, given, several in (("--only", arguments.only, filters), ("--rename", arguments.rename, renames)):
        for number, text in given or ():
            if not number.isdecimal() or not 1 <= int(number) <= len(paths):
                raise ValueError(f"{option} {number}: sources are numbered from 1 to {len(paths)}")
            several[int(number) - 1].append(text)
    return [MergeSource(path, filter=filters[at] or None, rename=renames[at] or None) for at, path in enumerate(paths)]


def _merge(sources: list[MergeSource], target: str, arguments: argparse.Namespace, progress: Any) -> MergeResult:
    check_apart([arguments.rules], target)
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
        like=like_from(arguments),
        top_level_key=arguments.top_level_key,
        pipeline=pipeline_from(arguments, rename=None, cast=None),
        format=arguments.format,
        metadata=dict(arguments.metadata or ()),
        max_shard_size=arguments.shard,
        overwrite=arguments.overwrite,
        verify=not arguments.no_verify,
        executor=arguments.jobs,
        progress=progress,
    )


def _lines(done: MergeResult, arguments: argparse.Namespace, screen: Screen) -> Iterator[str]:
    rows = done.tensors if arguments.limit is None else done.tensors[: arguments.limit]
    if rows:
        columns = [
            name_column("NAME", [escape(row.name) for row in rows], screen, 16),
            Column("SOURCES", ["+".join(str(at + 1) for at in row.sources) for row in rows]),
            Column("WEIGHTS", [_weights(row.weights) for row in rows], spare=2),
        ]
        if any(row.conflict for row in rows):
            columns.append(Column("CONFLICT", [escape_controls(row.conflict or "-") for row in rows], spare=1))
        yield from render(columns, screen)
        yield ""
    facts = [
        counted(len(done.tensors), "tensor"),
        size(done.nbytes),
        f"{done.layout}'s layout" if done.layout else "unknown layout",
        "verified" if done.verified else "not verified",
    ]
    yield f"{escape(arguments.paths[-1])}: {', '.join(facts)}"
    for name, why in done.left_out.items():
        yield f"  left out: {escape(name)} ({escape_controls(why)})"
    for note in shown_notes(done.notes):
        yield f"  note: {note}"


def _weights(weights: tuple[float, ...] | None) -> str:
    return "-" if weights is None else ", ".join(f"{weight:.4g}" for weight in weights)


def _numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a list of weights: write 0.3,0.7") from None


def _tensor_weights(text: str) -> tuple[str, list[float]]:
    pattern, equals, numbers = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{quoted(text)} has no weights: write REGEX=0.3,0.7")
    return pattern, _numbers(numbers)
