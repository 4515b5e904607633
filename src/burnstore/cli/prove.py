"""``burnstore prove``: prove a mapping by what both models compute."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ..io.atomic import refuse_existing
from ..jobs.prove.proof import TOLERANCE
from ..jobs.prove.prove import ProveResult, prove
from .arguments import add_answers, add_option, add_options, import_model
from .errors import FOUND, JOB_ERRORS, OK, fail, shown_notes
from .text import counted, escape, print_json

DESCRIPTION = """\
Prove that a mapping between a torch model and a Burn model is right: with the values of the Burn model, torch must
compute the outputs that the Burn program recorded (record_forward of the crate burnstore-outline). If it does not, the
first module that differs is named, and the exchange, transposition or order of tensors that explains it.
"""

EXAMPLES = """\
examples:
  burnstore prove model.bpk --like model.outline.bpk --torch net:Net model.pt
  burnstore prove model.outline.bpk --torch net:Net --rules rules.toml
  burnstore prove trained.bpk --torch net:Net --rules rules.toml     a forward pass recorded after training in Burn
  burnstore prove model.outline.bpk --torch net:Net model.pt --output rules.toml     answers found by the outputs

exit codes:
  0  proved: the outputs agree and would show every mistake; the file has the checkpoint's values
  1  not proved: outputs differ, would not show every mistake, or the file has other values than the checkpoint
  2  an error: a file without a recorded forward pass, a model that cannot be run, or wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("file", metavar="FILE", help="a file of the Burn model, or its outline")
    parser.add_argument(
        "--torch",
        nargs="+",
        required=True,
        metavar="ARG",
        help="MODULE:NAME of the torch model, and the checkpoint that FILE was converted from",
    )
    add_option(parser, "like", metavar="OUTLINE", help="the outline of the Burn model, if FILE is not it")
    add_option(parser, "rules", help="the rules file of the mapping (default: what burnstore map finds)")
    add_answers(parser)
    parser.add_argument(
        "--pair",
        action="append",
        metavar="RECORDED=TORCH",
        help="torch's name of an input, an output or a module that was recorded under another; repeatable",
    )
    parser.add_argument(
        "--max-error",
        type=float,
        default=TOLERANCE,
        metavar="X",
        help="the largest difference of an output, relative to its root mean square (default: %(default)s)",
    )
    add_option(parser, "output", help="write the proved mapping as a rules file")
    add_options(parser, "top_level_key", "overwrite", "json")


def run(arguments: argparse.Namespace) -> int:
    """Prove, and print what agrees and what differs."""
    from .errors import misuse

    model, *weights = arguments.torch
    pairs = [text.partition("=") for text in arguments.pair or ()]
    if len(weights) > 1 or not all(recorded and torch for recorded, _, torch in pairs):
        return misuse("expected --torch MODULE:NAME [CHECKPOINT], and --pair RECORDED=TORCH", "prove")
    if not 0 < arguments.max_error < 1:
        return misuse("--max-error is between 0 and 1", "prove")
    try:
        if arguments.output is not None:
            refuse_existing(arguments.output, overwrite=arguments.overwrite)
        found = prove(
            arguments.file,
            model=import_model(model, weights, has_values=True),
            like=arguments.like,
            weights=weights[0] if weights else None,
            rules=arguments.rules,
            rope=arguments.rope,
            qkv=arguments.qkv,
            names={recorded: torch for recorded, _, torch in pairs},
            top_level_key=arguments.top_level_key,
            tolerance=arguments.max_error,
        )
        if arguments.output is not None:
            found.save_rules(arguments.output, overwrite=arguments.overwrite)
    except JOB_ERRORS as error:
        return fail(error, arguments.file)
    if arguments.json:
        print_json(found.to_dict())
    else:
        print("\n".join(_lines(found)))
    return OK if found.ok else FOUND


def _lines(found: ProveResult) -> Iterator[str]:
    for name, torch, error, is_equal in found.compared:
        shown = f" by {error:.1e}" if error < 1e9 else ": no comparable numbers"
        where = "" if name == torch else f" (torch: {escape(torch)})"
        yield f"  agrees: {escape(name)}{where}" if is_equal else f"  differs: {escape(name)}{where}{shown}"
    if found.module is not None:
        # A module that was recorded, or whose mistake explains everything, is known; any other is a guess.
        is_known = any(name == found.module and not is_equal for name, _, _, is_equal in found.compared)
        is_known |= any(suspect.explains for suspect in found.suspects)
        yield f"  {'first difference in' if is_known else 'the difference may begin in'} {escape(found.module)}"
    for modules, what, tensors, explains in found.suspects:
        outcome = "without this, the outputs agree" if explains else "suspicious"
        shown = ", ".join(map(escape, modules[:4])) + (f" and {len(modules) - 4} more" if len(modules) > 4 else "")
        yield f"  {shown}: {what} ({counted(len(tensors), 'tensor')}); {outcome}"
    for text in found.uncovered[:10]:
        yield f"  not proved: {text}"
    if len(found.uncovered) > 10:
        yield f"  not proved: {len(found.uncovered) - 10} more"
    for note in shown_notes(found.notes):
        yield f"  note: {note}"
    verdicts = {"proved": "proved", "agrees": "not proved: the outputs agree, and would not show every mistake"}
    verdict = verdicts.get(found.outcome, "not proved: the outputs differ")
    if found.is_copy is not None:
        verdict += ", verified copy" if found.is_copy else ", but the file has other values than the checkpoint"
    yield f"{escape(found.path)}: {verdict}"
