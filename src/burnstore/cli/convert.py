"""``burnstore convert``: write the tensors of files into another, in its format and layout, and prove them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from ..errors import AmbiguousError, BurnstoreError
from ..jobs.convert.convert import Conversion, convert, replay
from ..jobs.json_output import json_text
from ..pipeline.recipe import ADAPTERS
from ..transforms.guess import Guess
from . import ERROR, FINE
from .arguments import add_jobs, add_json, add_overwrite, add_quiet, byte_size, key_and_text
from .complaint import complain
from .progress import shown_progress
from .target import imported, names_object
from .text import escape, escape_controls, size

_SCHEMA = 1

DESCRIPTION = """\
Write the tensors of files of any format, also of sharded ones, into a file of the format that its name tells (.bpk,
.safetensors). Every tensor is read back and compared with its source before the file gets its name. Where the layouts
differ (PyTorch's Linear is [out, in], Burn's [in, out]), something must tell what the modules are: --like, --rules,
--guess, or the source itself, if burnstore wrote it.
"""

EXAMPLES = """\
examples:
  burnstore convert model.pt model.safetensors
  burnstore convert model.pt model.bpk --like net:Net          into Burn's layout, by the class Net in ./net.py
  burnstore convert model.pt model.bpk --guess                 by names and shapes, if they decide
  burnstore convert encoder.pt decoder.pt model.safetensors    several sources, one target
  burnstore convert model.safetensors half.safetensors --cast bf16 --filter '^encoder\\.' --rename '^encoder\\.=>'
  burnstore convert huge.pt huge.safetensors --shard 5GB --resume --receipt
  burnstore convert --replay model.bpk.receipt.json again.bpk  the same once more, with the same digests

exit codes:
  0  fine: the target is there, and proved
  2  an error: the target is as it was, and the line on stderr says what to do

What happens to a tensor, in this order: --filter, --rename, the layout, --adapter, --cast. A file of rules has lines
such as `^encoder\\.fc\\d$ = Linear`: a pattern that is found in a module's path, and its kind.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be said after the verb."""
    parser.add_argument("paths", nargs="*", metavar="SRC... DST", help="files, folders or indexes, and the file to be")
    _add_what(parser.add_argument_group("what is written"))
    _add_layout(parser.add_argument_group("whose layout it has"))
    how = parser.add_argument_group("how it is written")
    how.add_argument("--format", choices=("burnpack", "safetensors"), help="the format, if its name does not tell")
    how.add_argument("--burn-version", metavar="V", help="whose Burnpack to write, such as 0.21 (default: today's)")
    how.add_argument("--shard", type=byte_size, metavar="SIZE", help="SafeTensors in files of at most this size (5GB)")
    how.add_argument(
        "--resume", action="store_true", help="go on with shards that were cut off; keep them on a failure"
    )
    how.add_argument("--no-verify", action="store_true", help="do not read back and compare what was written")
    how.add_argument(
        "--receipt", nargs="?", const=True, metavar="FILE", help="write down what was done (default: DST.receipt.json)"
    )
    how.add_argument("--replay", metavar="RECEIPT", help="do what a receipt says, and require its digests")
    add_overwrite(parser)
    add_jobs(parser)
    add_quiet(parser)
    add_json(parser)


def _add_what(group: Any) -> None:
    group.add_argument("--filter", action="append", metavar="REGEX", help="only tensors in whose names it is found")
    group.add_argument("--rename", action="append", metavar="OLD=>NEW", help="OLD is a regular expression, NEW has $1")
    group.add_argument("--cast", metavar="DTYPE", help="floats in this dtype: bf16, f16, f32, f64")
    group.add_argument("--adapter", choices=tuple(ADAPTERS), help="one of the library's adapters")
    group.add_argument(
        "--metadata", action="append", metavar="KEY=TEXT", type=key_and_text, help="a text beside the tensors"
    )


def _add_layout(group: Any) -> None:
    group.add_argument("--like", metavar="MODULE:NAME|FILE", help="a model, or a file that records its modules")
    group.add_argument("--rules", metavar="FILE", help="which modules are of which kind, a pattern and a kind a line")
    group.add_argument("--guess", action="store_true", help="go by names and shapes, and show the evidence")
    group.add_argument("--keep-layout", action="store_true", help="write the tensors as they are")
    group.add_argument("--source-layout", choices=("burn", "torch"), help="the layout of a file that does not tell")
    group.add_argument("--layout", choices=("burn", "torch"), help="another layout than the format's own")
    group.add_argument("--no-record", action="store_true", help="do not record the modules in the file")


def run(arguments: argparse.Namespace) -> int:
    """Convert, and print what was written."""
    least = 0 if arguments.replay else 2
    if len(arguments.paths) < least or (arguments.replay and len(arguments.paths) > 1):
        wanted = "--replay takes at most the target" if arguments.replay else "a source and a target are needed"
        print(f"burnstore: error: {wanted}; hint: burnstore convert --help", file=sys.stderr)
        return ERROR
    subject = arguments.paths[0] if arguments.paths else arguments.replay
    target = arguments.paths[-1] if arguments.paths else arguments.replay
    try:
        with shown_progress(os.path.basename(target), quiet=arguments.quiet) as progress:
            done = _replayed(arguments, progress) if arguments.replay else _converted(arguments, progress)
    except (BurnstoreError, OSError, MemoryError, ValueError, TypeError) as error:
        if isinstance(error, AmbiguousError) and not arguments.json:
            print("\n".join(_evidence(error.guess)))
        complain(error, subject)
        return ERROR
    for line in _told(done, arguments):
        print(line)
    return FINE


def _converted(arguments: argparse.Namespace, progress: Any) -> Conversion:
    like = arguments.like
    options = {} if arguments.burn_version is None else {"burn_version": arguments.burn_version}
    return convert(
        arguments.paths[:-1],
        arguments.paths[-1],
        filter=arguments.filter,
        rename=arguments.rename,
        like=imported(like) if like is not None and names_object(like) else like,
        rules=arguments.rules,
        guess=arguments.guess,
        keep_layout=arguments.keep_layout,
        source_layout=arguments.source_layout,
        layout=arguments.layout,
        adapter=arguments.adapter,
        cast=arguments.cast,
        format=arguments.format,
        max_shard_size=arguments.shard,
        metadata=dict(arguments.metadata or ()),
        record_modules=not arguments.no_record,
        overwrite=arguments.overwrite,
        verify=not arguments.no_verify,
        receipt=arguments.receipt or False,
        resume=arguments.resume,
        executor=arguments.jobs,
        progress=progress,
        **options,
    )


def _replayed(arguments: argparse.Namespace, progress: Any) -> Conversion:
    return replay(
        arguments.replay,
        arguments.paths[0] if arguments.paths else None,
        overwrite=arguments.overwrite,
        executor=arguments.jobs,
        progress=progress,
    )


def _told(done: Conversion, arguments: argparse.Namespace) -> Iterator[str]:
    if arguments.json:
        from burnstore import __version__

        # ASCII only: whatever the names are, no terminal acts on them.
        yield json.dumps({"burnstore": __version__, "schema": _SCHEMA, **_as_json(done)}, allow_nan=False)
        return
    if done.guess is not None:
        yield from _evidence(done.guess)
    count = f"{done.tensors:,} {'tensor' if done.tensors == 1 else 'tensors'}"
    files = done.files[0] if len(done.files) == 1 else f"{done.files[0]} and {len(done.files) - 1} shards"
    facts = [count, size(done.nbytes), _layouts(done), "verified" if done.verified else "not verified"]
    yield f"{escape(files)}: {', '.join(fact for fact in facts if fact)}"
    for note in done.notes:
        yield f"  note: {escape_controls(note)}"
    if done.receipt is not None:
        yield f"  receipt: {escape(done.receipt)}"


def _layouts(done: Conversion) -> str:
    if done.layout is None:
        return ""
    if done.source_layout in (None, done.layout):
        return f"{done.layout}'s layout"
    return f"{done.source_layout}'s layout -> {done.layout}'s"


def _evidence(guess: Guess) -> Iterator[str]:
    """What each tensor was taken for, and why; then the modules that are ambiguous as a whole."""
    reasons = set()
    for name, kind, why in guess.by_tensor():
        reasons.add(why)
        yield f"  {escape(name)}: {'ambiguous' if kind is None else kind} ({escape_controls(why)})"
    for path, why in guess.ambiguous.items():
        if why not in reasons:
            yield f"  {escape(path)}: ambiguous ({escape_controls(why)})"


def _as_json(done: Conversion) -> dict[str, Any]:
    guess = done.guess
    return {
        "files": [json_text(path) for path in done.files],
        "tensors": done.tensors,
        "bytes": done.nbytes,
        "source_layout": done.source_layout,
        "layout": done.layout,
        "verified": done.verified,
        "notes": done.notes,
        "receipt": done.receipt,
        "guess": None if guess is None else {path: str(kind) for path, kind in guess.kinds.items()},
        "evidence": None if guess is None else {name: why for name, _, why in guess.by_tensor()},
    }
