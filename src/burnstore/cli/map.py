"""``burnstore map``: match a checkpoint's tensors to a Burn model's."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from ..io.atomic import refuse_existing
from ..jobs.map.align import Question
from ..jobs.map.map import MapResult, map_names
from ..pipeline.write import check_apart
from .arguments import add_answers, add_option, add_options
from .errors import FOUND, JOB_ERRORS, OK, fail
from .text import counted, escape, escape_controls, print_json

DESCRIPTION = """\
Find which tensor of a PyTorch checkpoint becomes which tensor of a Burn model, by structure, shapes and names, and
write a rules file that convert takes. What fits several ways is shown with the choices, and never decided; what
rests on order is marked, because neither names nor shapes can prove it.
"""

EXAMPLES = """\
examples:
  burnstore map model.safetensors --like model.outline.bpk
  burnstore map model.safetensors --like model.outline.bpk --rope halves --output rules.toml
  burnstore convert model.safetensors model.bpk --rules rules.toml --like model.outline.bpk

exit codes:
  0  ok: everything has its place; equal entries of a list follow their places there
  1  something is open: a question, a tensor without a partner, or a pair that only numbers or fields decide
  2  an error: a file that cannot be read, or wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("source", metavar="SRC", help="a checkpoint of PyTorch, of any format")
    add_option(parser, "like", metavar="OUTLINE", required=True, help="the outline of a Burn model")
    add_option(parser, "output", help="write the rules file (TOML)")
    add_answers(parser)
    add_options(parser, "top_level_key", "overwrite", "json")


def run(arguments: argparse.Namespace) -> int:
    """Map, and print pairs, questions and what is left."""
    try:
        if arguments.output is not None:
            check_apart([arguments.source, arguments.like], arguments.output)
            refuse_existing(arguments.output, overwrite=arguments.overwrite)
        found = map_names(
            arguments.source,
            like=arguments.like,
            rope=arguments.rope,
            qkv=arguments.qkv,
            top_level_key=arguments.top_level_key,
        )
        if arguments.output is not None:
            found.save(arguments.output, overwrite=arguments.overwrite)
    except JOB_ERRORS as error:
        return fail(error, arguments.source)
    if arguments.json:
        print_json(found.to_dict())
    else:
        print("\n".join(_lines(found, arguments)))
    return OK if found.ok else FOUND


def _lines(found: MapResult, arguments: argparse.Namespace) -> Iterator[str]:
    if arguments.output is None:
        yield escape_controls(found.text.rstrip("\n").replace("\n", "\0")).replace("\\x00", "\n")
    alike: dict[str, list[Question]] = {}
    for question in found.questions:
        alike.setdefault(re.sub(r"\d+", "#", repr(question)), []).append(question)
    for question, *others in alike.values():
        yield f"open: {', '.join(map(escape, question.targets))}: {question.why}"
        yield from (f"  maybe {escape(choice)}" for choice in question.choices)
        if others:
            yield f"  {counted(len(others), 'question')} more with other numbers"
    for name in found.left_targets:
        yield f"open: {escape(name)}: nothing was found for it"
    for name in found.left_sources:
        yield f"left over: {escape(name)}"
    if found.by_order:
        yield f"only order decides {counted(len(found.by_order), 'tensor')}, the first is {escape(found.by_order[0])}"
    if found.by_list:
        count = counted(len(found.by_list), "tensor")
        yield f"the place in a list decides {count}, the first is {escape(found.by_list[0])}"
    outcome = "certain" if found.is_certain else "complete" if found.is_complete else "not complete"
    yield f"{counted(len(found.tensors), 'tensor')} mapped, {counted(len(found.rules['tensors']), 'rule')}: {outcome}"
