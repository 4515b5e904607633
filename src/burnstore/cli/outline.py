"""``burnstore outline``: print the Rust code that saves the outline of a Burn model."""

from __future__ import annotations

import argparse

from ..jobs.outline import BURN_VERSIONS, outline_snippet
from .arguments import add_options
from .errors import OK
from .text import print_json

DESCRIPTION = """\
Print Rust code that saves the outline of a Burn model: a file with its tensors and the kinds of its modules, so
that weights can be converted into exactly this model. The crate burnstore-outline does the same.
"""

EXAMPLES = """\
examples:
  burnstore outline --rust > src/outline.rs
  burnstore outline --rust --burn 0.21 > src/outline.rs

exit codes:
  0  ok
  2  an error: wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument(
        "--burn", choices=list(BURN_VERSIONS), default="0.22", help="the version of Burn (default: %(default)s)"
    )
    add_options(parser, "rust", "json")


def run(arguments: argparse.Namespace) -> int:
    """Print the code."""
    source = outline_snippet(arguments.burn)
    if arguments.json:
        print_json({"source": source})
    else:
        print(source, end="")
    return OK
