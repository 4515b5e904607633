"""``burnstore skeleton``: print the Rust source of a Burn module for a model of PyTorch."""

from __future__ import annotations

import argparse
import sys

from ..jobs.skeleton import skeleton
from .arguments import add_options, import_model, names_object
from .errors import JOB_ERRORS, OK, fail
from .text import print_json

DESCRIPTION = """\
Print the Rust source of a Burn module for a model of PyTorch: structs with fields in Burn's types, constructors with
the model's configuration, and a function that loads the file that burnstore convert makes. Forward passes are left to
be written; that of a model of nn.Sequential alone is there.
"""

EXAMPLES = """\
examples:
  burnstore skeleton net:Net --rust | rustfmt > src/net.rs
  burnstore skeleton torchvision.models:resnet18 --rust --name ResNet18
  burnstore skeleton model.safetensors --rust

exit codes:
  0  ok
  2  an error: a model that cannot be imported, modules that Burn does not have, or wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument(
        "model",
        metavar="MODULE:CLASS|FILE",
        help="a torch model to import and make, or a checkpoint of PyTorch's layout",
    )
    parser.add_argument("--name", metavar="NAME", help="what the outermost struct is called (default: the class)")
    add_options(parser, "rust", "top_level_key", "json")


def run(arguments: argparse.Namespace) -> int:
    """Print the source."""
    try:
        given = import_model(arguments.model) if names_object(arguments.model) else arguments.model
        source = skeleton(given, name=arguments.name, top_level_key=arguments.top_level_key)
    except JOB_ERRORS as error:
        return fail(error, arguments.model)
    if arguments.json:
        print_json({"source": source})
    else:
        sys.stdout.write(source)
    return OK
