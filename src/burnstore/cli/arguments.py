"""Arguments of several verbs, and their values: patterns, sizes, files, and models such as ``net:Net``."""

from __future__ import annotations

import argparse
import os
import re
import sys
import warnings
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import BurnstoreError, ModelError, PatternError, ReadError, UnsupportedError, located, printable, quoted
from ..io.opening import read_whole
from ..io.paths import folder_of, is_file, is_folder, is_remote, join
from ..transforms.patterns import compile_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..pipeline.options import Pipeline


def pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about patterns that a future Python may read differently
            return compile_pattern(text)
    except PatternError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def tensor_count(text: str) -> int:
    """Parse a number of tensors, which may be 0."""
    return _at_least(text, 0, "a number of tensors")


def module_depth(text: str) -> int:
    """Parse a number of levels, which may be 0."""
    return _at_least(text, 0, "a number of levels")


def job_count(text: str) -> int:
    """Parse a number of processes, at least 1."""
    return _at_least(text, 1, "a number of processes")


def byte_size(text: str) -> int:
    """Parse a number of bytes, such as ``5GB``."""
    from ..formats.sharded.write import byte_count  # not at import: few verbs write shards

    try:
        return byte_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def key_and_text(text: str) -> tuple[str, str]:
    """Parse a metadata entry ``KEY=TEXT``."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a metadata entry: write KEY=TEXT")
    return key, value


def _at_least(text: str, least: int, what: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not {what}")
    return number


def expand_patterns(paths: Sequence[str]) -> list[str]:
    """Return the paths, with the files that a pattern such as ``*.pt`` matches in its place, in the order of names.

    A shell does the same where the pattern is not quoted; Windows does not. BurnstoreError if nothing matches.
    """
    found: list[str] = []
    for path in paths:
        if not any(character in path for character in "*?[") or "://" in path or os.path.lexists(path):
            found.append(path)
            continue
        from glob import glob  # not at import: a pattern is rare

        from ..jobs.inspect.tree import natural_order

        matches = sorted(glob(path, recursive=True), key=natural_order)
        if not matches:
            raise BurnstoreError("no file matches this pattern", path=path)
        found += matches
    return found


def stands_for_files(path: str) -> bool:
    """Return whether a path is a folder of separate files, not the folder of one checkpoint."""
    from ..formats.sharded.locate import locate  # not at import: outline and completion need no files

    try:
        locate(path)
    except ReadError:
        return is_folder(path)
    except UnsupportedError:  # its reason is the one to show
        pass
    return False


# --- options ----------------------------------------------------------------------------------------------------------

_LAYOUTS = ("burn", "torch")
_OPTIONS: dict[str, dict[str, Any]] = {
    # of the pipeline, under the names of its fields
    "filter": {
        "action": "append",
        "type": pattern,
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
    "adapter": {"help": "one of the library's adapters"},
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
    "strict": {"action": "store_true", "help": "tensors that no parameter takes are an error"},
    "allow_empty": {"action": "store_true", "help": "doing nothing is no error: no tensor at all may be left"},
    # of what is read
    "like": {"metavar": "MODULE:NAME|FILE", "help": "a model, or a file that records its modules"},
    "top_level_key": {
        "metavar": "KEY",
        "help": "the part of a file to use, such as state_dict or optimizer; '' for everything",
    },
    # of what is written
    "format": {
        "choices": ("burnpack", "safetensors", "pytorch", "npz", "gguf"),
        "help": "the format (default: by the suffix)",
    },
    "shard": {
        "type": byte_size,
        "metavar": "SIZE",
        "help": "write SafeTensors in files of at most this size (5GB)",
    },
    "metadata": {"action": "append", "metavar": "KEY=TEXT", "type": key_and_text, "help": "add a metadata entry"},
    "no_verify": {"action": "store_true", "help": "do not read back and compare the result"},
    "overwrite": {"action": "store_true", "help": "replace existing files"},
    "receipt": {"metavar": "FILE", "help": "the receipt of a conversion"},
    "output": {"metavar": "FILE", "help": "write it to this file"},
    "rust": {"action": "store_true", "required": True, "help": "print Rust source"},
    # of the job and its display
    "json": {"action": "store_true", "help": "write one JSON document"},
    "sort": {"help": "order of the tensors"},
    "limit": {"type": tensor_count, "metavar": "N", "help": "only the first N tensors (0: only the summary)"},
    "quiet": {"action": "store_true", "help": "show no progress"},
    "jobs": {"type": job_count, "metavar": "N", "help": "use N processes (default: threads)"},
}
"""Every option that several verbs share, as argparse declares it; a verb declares its own options itself."""


def add_options(parser: Any, *names: str) -> None:
    """Add shared options to a parser or a group of one."""
    for name in names:
        add_option(parser, name)


def add_option(parser: Any, name: str, **changes: Any) -> None:
    """Add a shared option, with the changes that a verb needs."""
    if name == "adapter":
        from ..transforms.adapters import ADAPTERS  # not at import: few verbs have this option

        changes["choices"] = tuple(ADAPTERS)
    flags = ["-o"] if name == "output" else []
    parser.add_argument(*flags, f"--{name.replace('_', '-')}", **{**_OPTIONS[name], **changes})


def pipeline_from(arguments: argparse.Namespace, **more: Any) -> Pipeline:
    """Return the pipeline that the options of a command line stand for."""
    from dataclasses import fields

    from ..pipeline.options import Pipeline  # not at import: a file is inspected without it

    given = {each.name: getattr(arguments, each.name, None) for each in fields(Pipeline) if each.name not in more}
    unset = {each.name: (None, each.default) for each in fields(Pipeline)}
    return Pipeline(**{name: value for name, value in {**given, **more}.items() if value not in unset[name]})


def like_from(arguments: argparse.Namespace) -> Any:
    """Return what ``--like`` stands for: a model that is imported and made, or a path."""
    given = (getattr(arguments, name, None) for name in ("paths", "sources", "file", "other", "a", "b"))
    beside = [path for each in given if each for path in ([each] if isinstance(each, str) else each)]
    return model_or_path(arguments.like, [path for path in beside if isinstance(path, str)])


# --- models -----------------------------------------------------------------------------------------------------------

_MODEL = re.compile(
    r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*(\.[^\W\d]\w*)*)(?P<arguments>\(.*\))?", re.DOTALL
)
_LONGEST_CONFIG = 16 << 20
_HINT = "write MODULE:NAME, for example net:Net for the class Net in ./net.py"


def names_object(text: str) -> bool:
    """Return whether this names an object to import, such as ``net:Net``, and not a file.

    >>> names_object("net:Net"), names_object("models.vision:Net.small"), names_object("C:\\\\net.bpk")
    (True, True, False)
    >>> names_object("net:make(64, bias=False)")
    True
    """
    return _MODEL.fullmatch(text) is not None and not os.path.exists(text)


def model_or_path(text: str | None, beside: Iterable[str] = ()) -> Any:
    """Return the model that ``module:name`` names, or the text itself if it is a path or None."""
    return import_model(text, beside) if text is not None and names_object(text) else text


def import_model(text: str, beside: Iterable[str] = (), *, has_values: bool = False) -> Any:
    """Import the model ``module:name``: an object, or the result of calling a class or function.

    ``module:name(64, bias=False)`` passes arguments, which must be literals of Python. A class of transformers or
    diffusers gets the ``config.json`` beside one of the files ``beside``. The current folder is searched first. A torch
    model is built on the meta device if possible, so that it takes no memory, unless it ``has_values``. Output of the
    module goes to stderr.
    Raises ModelError if it cannot be imported or built.
    """
    with located(path=text):
        spelled = _MODEL.fullmatch(text)
        if spelled is None:
            raise ModelError("not the name of a model", hint=_HINT)
        with _beside_current_folder(), redirect_stdout(sys.stderr):
            found = _import(spelled["module"])
            for name in spelled["name"].split("."):
                found = _attribute(found, name, spelled["module"])
            if spelled["arguments"] is not None:
                found = _build(_with_arguments(found, spelled["arguments"]), spelled["name"], has_values)
            elif callable(found) and not _is_model(found):
                found = _build(_configured(found, beside), spelled["name"], has_values)
            made = found
        if not _is_model(made):
            raise ModelError(f"expected a model, got {type(made).__name__} without tensors")
        return made


@contextmanager
def _beside_current_folder() -> Iterator[None]:
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path.pop(0)


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ModelError(f"no module {error.name!r}, in the current folder or installed", hint=_HINT) from error
        raise ModelError(f"the import failed: {_message(error)}", hint=f"install {error.name}") from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"the import failed: {_message(error)}") from error


def _attribute(owner: Any, name: str, module: str) -> Any:
    found = getattr(owner, name, None)
    if found is not None:
        return found
    from difflib import get_close_matches

    close = get_close_matches(name, [each for each in dir(owner) if not each.startswith("_")], n=1)
    raise ModelError(
        f"the module {module} has no {name}", hint=f"did you mean {printable(close[0])}?" if close else None
    )


def _configuration(kind: Any, path: str) -> Any:
    if not is_remote(path):
        return kind.from_json_file(path)
    from ..io.documents import Bounds, read_json

    bounds = Bounds(constants=True)
    return kind.from_dict(read_json(read_whole(path, bounds.nbytes), bounds, into=dict[str, Any]))


def _with_arguments(factory: Any, arguments: str) -> Callable[[], Any]:
    """Return a call of a class or function with arguments as they are typed; nothing in them is run."""
    import ast

    if not callable(factory):
        raise ModelError("arguments are given to something that cannot be called")
    try:
        call = ast.parse(f"_{arguments}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("not one call")
        given = [ast.literal_eval(value) for value in call.args]
        named = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg is not None}
        if len(named) < len(call.keywords):
            raise ValueError("** is not a literal")
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise ModelError(
            f"the arguments {quoted(arguments)} are not literals of Python, such as (64, bias=False)",
            hint="write a function without arguments that returns the model, and name that",
        ) from error
    return partial(factory, *given, **named)


def _configured(factory: Callable[..., Any], beside: Iterable[str]) -> Callable[..., Any]:
    """Return a model class with its configuration, if it needs one and the file is there; otherwise the class."""
    kind: Any = getattr(factory, "config_class", None)
    from_config: Any = getattr(factory, "from_config", None)
    is_configured = hasattr(kind, "from_json_file")  # a class of transformers
    if not is_configured and not (from_config is not None and hasattr(factory, "load_config")):  # of diffusers
        return factory
    folders = [path if is_folder(path) else folder_of(path) for path in beside]
    for path in (join(folder, "config.json") for folder in folders):
        if is_file(path):
            try:
                if is_configured:
                    return partial(factory, _configuration(kind, path))
                from ..io.documents import read_json  # not at import: few commands read JSON

                return partial(from_config, read_json(read_whole(path, _LONGEST_CONFIG), into=dict[str, Any]))
            except Exception as error:
                raise ModelError(f"{path} is not its configuration: {_message(error)}") from error
    where = " or ".join(folder or "." for folder in folders) or "."
    raise ModelError(
        f"it needs its configuration, and there is no config.json in {where}",
        hint="put config.json beside the file, or write a function without arguments that returns the model",
    )


def _build(factory: Callable[[], Any], name: str, has_values: bool) -> Any:
    import inspect

    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ModelError(
            f"{name} cannot be called without arguments: {error}",
            hint="write a function without arguments that returns the model, and name that",
        ) from error
    except ValueError:  # A class without a known signature may still work.
        pass
    torch = sys.modules.get("torch")
    if hasattr(torch, "device") and not has_values:
        try:
            with torch.device("meta"):  # type: ignore[union-attr]  # it is imported
                made = factory()
            if isinstance(made, torch.nn.Module):  # type: ignore[union-attr]
                return made
        except Exception:  # Some models compute with their values while they are built.
            pass
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise ModelError(f"calling {name} failed: {_message(error)}") from error


def _is_model(value: Any) -> bool:
    from ..models.bindings import binding_for  # not at import: only verbs that take a model need it

    try:
        return next(iter(binding_for(value).walk(value)), None) is not None
    except (BurnstoreError, TypeError):
        return False


def _message(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {printable(text)}" if text else type(error).__name__


def add_answers(parser: argparse._ActionsContainer) -> None:
    """Declare the answers to what a mapping asks and no file states."""
    parser.add_argument(
        "--rope",
        choices=("halves", "pairs"),
        help="how the source rotates queries and keys; halves are brought into the order of Burn's RotaryEncoding",
    )
    parser.add_argument(
        "--qkv", choices=("parts", "heads"), help="how the source fuses query, key and value, where nothing states it"
    )
