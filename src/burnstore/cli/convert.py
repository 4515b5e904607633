"""``burnstore convert``: write tensors into another format or layout, and verify them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from ..errors import AmbiguousError, BurnstoreError
from ..formats.registry import name_with_suffix_of
from ..formats.sharded.write import JOURNAL_SUFFIX
from ..io.atomic import refuse_existing
from ..io.paths import base_name, exists, is_remote, join
from ..jobs.convert.convert import convert, replay
from ..jobs.convert.result import ConvertResult
from ..pipeline.write import check_apart
from ..transforms.guess import Guess
from .arguments import add_answers, add_option, add_options, expand_patterns, like_from, pipeline_from
from .errors import ERROR, JOB_ERRORS, OK, error_facts, fail, misuse, print_error, shown_notes
from .progress import shown_progress
from .text import counted, escape, escape_controls, print_json, size

DESCRIPTION = """\
Write the tensors of files of any format, also of sharded ones, into a file whose suffix gives the format (.bpk,
.safetensors). Every tensor is read back and compared with its source before the file gets its name. If the layouts
differ (PyTorch's Linear is [out, in], Burn's [in, out]), the module kinds must be known: from --like, --rules, --guess,
or from the source itself, if burnstore wrote it.
"""

EXAMPLES = """\
examples:
  burnstore convert model.pt model.safetensors
  burnstore convert model.pt model.bpk --like net:Net          into Burn's layout, by the class Net in ./net.py
  burnstore convert model.pt model.bpk --like model.outline.bpk --map    names found, if nothing is uncertain
  burnstore convert trained.bpk back.safetensors --rules rules.toml --invert
  burnstore convert model.pt model.bpk --guess                 by names and shapes, if they are unambiguous
  burnstore convert encoder.pt decoder.pt model.safetensors    several sources, one target
  burnstore convert '*.pt' converted/ --format safetensors     each source into a file of its name
  burnstore convert model.safetensors half.safetensors --cast bf16 --rename '^encoder\\.=>' --filter '^fc\\.'
  burnstore convert huge.pt huge.safetensors --shard 5GB --resume --receipt
  burnstore convert --replay model.bpk.receipt.json again.bpk  repeat a conversion, and require the same digests
  burnstore convert huge.pt huge.safetensors --plan job.json   a job for many machines; then, on each of them,
  burnstore convert --plan job.json --part 3/64                a share of it, and once, at the end,
  burnstore convert --plan job.json --finish                   the target, proved

exit codes:
  0  ok: the target is written and verified
  2  an error: the target is unchanged, and the line on stderr has a hint

The steps are, in this order: --rename, the layout, --filter, --adapter, --cast. A file of rules has lines such as
`^encoder\\.fc\\d$ = Linear`: a pattern that matches in a module's path, and its kind.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="SRC... DST",
        help="files, folders, indexes or patterns, and the target",
    )
    what = parser.add_argument_group("contents")
    add_options(what, "rename", "filter", "adapter", "cast", "indices", "top_level_key", "metadata")
    layout = parser.add_argument_group("layout")
    add_options(layout, "like", "rules", "invert", "guess", "keep_layout", "layout", "target_layout")
    add_options(layout, "skip_enum_variants")
    layout.add_argument("--map", action="store_true", help="find the rules from SRC to the outline given as --like")
    layout.add_argument("--missing", choices=("outline",), help="take what SRC lacks from the outline given as --like")
    add_answers(layout)
    layout.add_argument("--no-record", action="store_true", help="do not record the module kinds in the file")
    how = parser.add_argument_group("output")
    add_options(how, "format", "shard", "no_verify")
    how.add_argument(
        "--burn-version", metavar="V", help="the Burn version to write Burnpack for, such as 0.21 (default: the newest)"
    )
    how.add_argument("--quantize", metavar="TYPE", help="write the matrices of a GGUF file in blocks: q8_0")
    how.add_argument(
        "--resume",
        action="store_true",
        help="continue an interrupted sharded conversion; keep complete shards on failure",
    )
    described = "record sources, options and digests (default: DST.receipt.json)"
    add_option(how, "receipt", nargs="?", const=True, help=described)
    how.add_argument("--plan", metavar="JOB", help="with SRC and DST: compile the conversion into this file, a job")
    how.add_argument("--part", metavar="I/N", help="with --plan JOB: do share I of N of the job")
    how.add_argument("--finish", action="store_true", help="with --plan JOB: put the shares together, prove, publish")
    how.add_argument("--replay", metavar="RECEIPT", help="repeat the conversion of a receipt, and require its digests")
    add_options(parser, "allow_empty", "overwrite", "jobs", "quiet", "json")


def run(arguments: argparse.Namespace) -> int:
    """Convert, and print a summary."""
    if arguments.part is not None or arguments.finish:
        return _run_job(arguments)
    *sources, target = arguments.paths or [arguments.replay or ""]
    if arguments.replay and len(arguments.paths) > 1:
        return misuse("--replay takes at most a target", "convert")
    if not arguments.replay and not sources:
        return misuse("expected a source and a target", "convert")
    try:
        sources = expand_patterns(sources)
    except BurnstoreError as error:
        return fail(error, target)
    if sources and (target.endswith("/") or (not is_remote(target) and os.path.isdir(target))):
        return _convert_each(sources, target, arguments)
    if sources:
        arguments.paths = [*sources, target]
    code, document = _outcome(arguments)
    if arguments.json:
        print_json(document)
    return code


def _run_job(arguments: argparse.Namespace) -> int:
    """Do a share of a job, or finish it."""
    from ..jobs.convert.parts import finish_job, run_part  # not at import: few conversions are jobs

    if arguments.plan is None or arguments.paths or (arguments.part is not None and arguments.finish):
        return misuse("--part I/N and --finish take --plan JOB and nothing else", "convert")
    part, slash, of = (arguments.part or "1/1").partition("/")
    if not (slash and part.isdecimal() and of.isdecimal() and 1 <= int(part) <= int(of)):
        return misuse(f"{arguments.part!r} is not a part such as 3/64", "convert")
    try:
        with shown_progress(base_name(arguments.plan), quiet=arguments.quiet) as progress:
            if arguments.finish:
                done = finish_job(arguments.plan, executor=arguments.jobs, progress=progress)
                document, lines = done.to_dict(), list(_summary(done))
            else:
                made = run_part(arguments.plan, int(part), int(of), progress=progress)
                document = {"done": list(made.done), "already": list(made.already), "units": made.units}
                lines = [f"part {part} of {of}: {len(made.done)} of {counted(made.units, 'unit')} done now"]
                lines += [f"  {len(made.already)} were done before"] if made.already else []
    except (*JOB_ERRORS, ValueError, TypeError) as error:
        print_error(error, arguments.plan)
        document, lines = {"error": error_facts(error, arguments.plan)}, []
    if arguments.json:
        print_json(document)
    elif lines:
        print("\n".join(lines))
    return ERROR if "error" in document else OK


def _convert_each(sources: list[str], folder: str, arguments: argparse.Namespace) -> int:
    """Convert each source into a file of its name in a folder; the worst outcome decides the exit code."""
    if arguments.format is None:
        return misuse("a folder as the target needs --format", "convert")
    if isinstance(arguments.receipt, str):
        return misuse("a folder as the target writes a receipt for each file: pass --receipt without FILE", "convert")
    names: dict[str, str] = {}
    for source in sources:
        name = name_with_suffix_of(arguments.format, base_name(source.rstrip("/") if not is_remote(source) else source))
        if names.setdefault(name, source) != source:
            return misuse(f"{escape(names[name])} and {escape(source)} would both become {escape(name)}", "convert")
    try:
        if not is_remote(folder):
            os.makedirs(folder, exist_ok=True)
    except OSError as error:
        return fail(error, folder)
    outcomes = []
    for name, source in names.items():
        arguments.paths = [source, join(folder, name)]
        outcomes.append(_outcome(arguments))
    if arguments.json:
        print_json({"conversions": [document for _, document in outcomes]})
    return max(code for code, _ in outcomes)


def _outcome(arguments: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Convert once; return the exit code and the JSON document."""
    subject, target = (arguments.paths[0], arguments.paths[-1]) if arguments.paths else (arguments.replay,) * 2
    try:
        with shown_progress(base_name(target), quiet=arguments.quiet) as progress:
            check_apart([arguments.rules], target)
            if not arguments.replay and arguments.shard is None:  # before --like imports a framework
                refuse_existing(target, overwrite=arguments.overwrite, sources=arguments.paths[:-1])
            done = _replay(arguments, progress) if arguments.replay else _convert(arguments, progress)
    except (*JOB_ERRORS, ValueError, TypeError) as error:
        if isinstance(error, AmbiguousError) and not arguments.json:
            print("\n".join(_evidence(error.guess)))
        print_error(error, subject)
        return ERROR, {"error": error_facts(error, subject)}
    if not arguments.json and arguments.plan is not None:
        what = f"a job of {counted(done.tensors, 'tensor')}, {size(done.nbytes)}"
        print(f"{escape(arguments.plan)}: {what}; do its parts with --part I/N, then --finish")
    elif not arguments.json:
        print("\n".join(_summary(done)))
    return OK, done.to_dict()


def interrupted(arguments: argparse.Namespace) -> str:
    """Return what is left on the disk after Ctrl-C, and how to continue."""
    target = arguments.paths[-1] if arguments.paths else ""
    if is_remote(target):  # asking the store would take time
        return f"{escape(target)} is unchanged"
    journal = target + JOURNAL_SUFFIX
    if exists(journal):
        start_over = f"delete {escape(journal)} to start over"
        return f"complete shards are kept; run the same command with --resume to continue, or {start_over}"
    again = "; with --resume complete shards would be kept" if arguments.shard is not None else ""
    return f"{escape(target) or 'the target'} is {'unchanged' if target and exists(target) else 'not written'}{again}"


def _convert(arguments: argparse.Namespace, progress: Any) -> ConvertResult:
    given = {"burn_version": arguments.burn_version, "quantize": arguments.quantize}
    options = {name: value for name, value in given.items() if value is not None}
    return convert(
        arguments.paths[:-1],
        arguments.paths[-1],
        like=like_from(arguments),
        missing=arguments.missing,
        map=arguments.map,
        rope=arguments.rope,
        qkv=arguments.qkv,
        top_level_key=arguments.top_level_key,
        format=arguments.format,
        max_shard_size=arguments.shard,
        metadata=dict(arguments.metadata or ()),
        overwrite=arguments.overwrite,
        verify=not arguments.no_verify,
        receipt=arguments.receipt or False,
        resume=arguments.resume,
        plan=arguments.plan,
        executor=arguments.jobs,
        progress=progress,
        pipeline=pipeline_from(arguments, record_modules=not arguments.no_record),
        **options,
    )


def _replay(arguments: argparse.Namespace, progress: Any) -> ConvertResult:
    return replay(
        arguments.replay,
        arguments.paths[0] if arguments.paths else None,
        allow_empty=arguments.allow_empty,
        overwrite=arguments.overwrite,
        executor=arguments.jobs,
        progress=progress,
    )


def _summary(done: ConvertResult) -> Iterator[str]:
    if done.guess is not None:
        yield from _evidence(done.guess)
    files = done.files[0] if len(done.files) == 1 else f"{done.files[0]} and {len(done.files) - 1} shards"
    facts = [
        counted(done.tensors, "tensor"),
        size(done.nbytes),
        _layouts(done),
        done.mapping or ("verified" if done.verified else "not verified"),
    ]
    yield f"{escape(files)}: {', '.join(fact for fact in facts if fact)}"
    for note in shown_notes(done.notes):
        yield f"  note: {note}"
    if done.receipt is not None:
        yield f"  receipt: {escape(done.receipt)}"


def _layouts(done: ConvertResult) -> str:
    if done.layout is None:
        return ""
    if done.source_layout in (None, done.layout):
        return f"{done.layout}'s layout"
    return f"{done.source_layout}'s layout -> {done.layout}'s"


def _evidence(guess: Guess) -> Iterator[str]:
    """Yield the kind of each tensor's module and the reason; then the modules that are ambiguous as a whole."""
    reasons = set()
    for name, kind, why in guess.by_tensor():
        reasons.add(why)
        yield f"  {escape(name)}: {'ambiguous' if kind is None else kind} ({escape_controls(why)})"
    for path, why in guess.ambiguous.items():
        if why not in reasons:
            yield f"  {escape(path)}: ambiguous ({escape_controls(why)})"
