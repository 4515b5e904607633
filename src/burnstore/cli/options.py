"""Options of the pipeline on the command line: declared once, under the same names in every verb."""

from __future__ import annotations

import argparse
from typing import Any

from ..pipeline.options import Pipeline
from ..transforms.adapters import ADAPTERS
from .arguments import model_or_path

_LAYOUTS = ("burn", "torch")

OPTIONS: dict[str, dict[str, Any]] = {
    "filter": {
        "action": "append",
        "metavar": "REGEX",
        "help": "only tensors in whose names REGEX is found; repeatable",
    },
    "rename": {
        "action": "append",
        "metavar": "OLD=>NEW",
        "help": "rename: OLD is a regular expression, NEW may use $1; repeatable, in order; ?OLD may match nothing",
    },
    "layout": {"choices": _LAYOUTS, "help": "the layout of the source, where it does not state it"},
    "target_layout": {"choices": _LAYOUTS, "help": "the layout of the target, if not the format's own"},
    "keep_layout": {"action": "store_true", "help": "copy names and axes unchanged"},
    "rules": {"metavar": "FILE", "help": "a rules file: TOML, or module kinds in lines such as '^fc$ = Linear'"},
    "invert": {"action": "store_true", "help": "follow the rules for tensors backwards"},
    "guess": {"action": "store_true", "help": "decide module kinds by names and shapes, and show the evidence"},
    "adapter": {"choices": tuple(ADAPTERS), "help": "one of the library's adapters"},
    "cast": {"metavar": "DTYPE", "help": "convert floats: bf16, f16, f32, f64"},
    "indices": {
        "action": argparse.BooleanOptionalAction,
        "default": None,
        "help": "number the indices in names 0, 1, 2 without gaps",
    },
    "skip_enum_variants": {
        "action": argparse.BooleanOptionalAction,
        "default": None,
        "help": "leave the names of enum variants out of a Burn model's paths",
    },
    "allow_partial": {"action": "store_true", "help": "parameters may be missing"},
}
"""The options of `Pipeline` that the command line has, with their spelling for argparse."""


def add_pipeline_options(parser: Any, *names: str) -> None:
    """Add pipeline options to a parser or a group of one."""
    for name in names:
        parser.add_argument(f"--{name.replace('_', '-')}", **OPTIONS[name])


def add_like(parser: Any) -> None:
    """Add ``--like``: a model or a file that states the kinds of the modules."""
    parser.add_argument("--like", metavar="MODULE:NAME|FILE", help="a model, or a file that records its modules")


def pipeline_from(arguments: argparse.Namespace, **more: Any) -> Pipeline:
    """Return the pipeline that the options of a command line stand for."""
    given = {name: getattr(arguments, name) for name in OPTIONS if getattr(arguments, name, None) not in (None, False)}
    for name in ("indices", "skip_enum_variants"):
        if getattr(arguments, name, None) is False:
            given[name] = False
    return Pipeline(**given, **more)


def like_from(arguments: argparse.Namespace) -> Any:
    """Return what ``--like`` stands for: a model that is imported and made, or a path."""
    given = (getattr(arguments, name, None) for name in ("paths", "sources", "file", "other", "a", "b"))
    beside = [path for each in given if each for path in ([each] if isinstance(each, str) else each)]
    return model_or_path(arguments.like, [path for path in beside if isinstance(path, str)])
