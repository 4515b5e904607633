"""``burnstore config``: show the configuration in a PyTorch file, or write it as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import Any

from ..errors import BurnstoreError
from ..formats.pytorch.values import Opaque, opaque_values
from ..pipeline.write import check_apart
from ..stores.config import config_from_file, json_value, save_config, to_json
from ..tensor.plain import json_text
from .arguments import add_option, add_options
from .errors import JOB_ERRORS, OK, fail
from .text import escape, print_json

_LEFT_OUT = object()
_MOST_SHOWN = 5

DESCRIPTION = """\
Show the plain values that a PyTorch file has beside its tensors, such as a model's configuration, as JSON.
Nothing in the file is run; tensors and objects are left out and listed on stderr.
"""

EXAMPLES = """\
examples:
  burnstore config checkpoint.pt
  burnstore config checkpoint.pt --key my_config -o my_config.json
  burnstore config checkpoint.ckpt --key hyper_parameters.model

exit codes:
  0  ok
  2  an error: a file that cannot be read, a key that is not there, or wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("file", metavar="FILE", help="a PyTorch file, or JSON")
    parser.add_argument("--key", metavar="KEY", help="the part to show; a.b is b below a")
    add_option(parser, "output", metavar="JSON")
    add_options(parser, "overwrite", "json")


def run(arguments: argparse.Namespace) -> int:
    """Read the configuration, and print it or write it."""
    try:
        data = config_from_file(arguments.file, arguments.key)
        left_out = list(opaque_values(data))
        kept = _without_opaque(data)
        if kept is _LEFT_OUT:
            raise BurnstoreError(f"expected plain data, got {data!r}", hint="choose another part with --key")
        to_json(kept)  # It raises an error for what JSON cannot hold.
        if arguments.output is not None:
            check_apart([arguments.file], arguments.output)
            save_config(kept, arguments.output, overwrite=arguments.overwrite)
        if arguments.json:
            places = [{"path": json_text(path), "type": value.type_name} for path, value in left_out]
            print_json({"config": json_value(kept), "left_out": places})
        elif arguments.output is None:
            # ASCII only: whatever the texts are, no terminal acts on them.
            print(json.dumps(json_value(kept), indent=2))
        else:
            print(f"{escape(arguments.file)} -> {escape(arguments.output)}")
    except JOB_ERRORS as error:
        return fail(error, arguments.file)
    if left_out and not arguments.json:
        _report(left_out)
    return OK


def _without_opaque(data: Any) -> Any:
    if isinstance(data, Opaque):
        return _LEFT_OUT
    if isinstance(data, dict):
        kept = {key: _without_opaque(held) for key, held in data.items()}
        return {key: held for key, held in kept.items() if held is not _LEFT_OUT}
    if isinstance(data, list):
        return [None if (kept := _without_opaque(held)) is _LEFT_OUT else kept for held in data]
    return data


def _report(left_out: list[tuple[str, Opaque]]) -> None:
    """List on stderr the values that are not plain data and so not part of the output."""
    kinds = Counter(value.type_name for _, value in left_out)
    shown = ", ".join(f"{count} of {escape(kind)}" for kind, count in kinds.most_common(_MOST_SHOWN))
    first = escape(left_out[0][0])
    sys.stdout.flush()
    print(f"burnstore: left out values that are not plain data: {shown}; the first is {first}", file=sys.stderr)
