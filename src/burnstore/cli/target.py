"""Targets: what ``net:Net`` on a command line stands for, imported and made."""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import BurnstoreError, ModelError, located, printable
from ..models.bindings import binding_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SPELLING = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*(\.[^\W\d]\w*)*)")
_HINT = "write MODULE:NAME, for example net:Net for the class Net in ./net.py"


def names_object(text: str) -> bool:
    """Whether this is the spelling of something to import, such as ``net:Net``, and not a file's name.

    >>> names_object("net:Net"), names_object("models.vision:Net.small"), names_object("C:\\\\net.bpk")
    (True, True, False)
    """
    return _SPELLING.fullmatch(text) is not None and not os.path.exists(text)


def imported(text: str) -> Any:
    """The model that ``module:name`` stands for: an object, or what a class or function gives without arguments.

    The module is looked for in the current folder first. A torch model is made on the meta device where it can be, so
    that it takes no memory. Whatever the module prints goes to stderr. ModelError, on one line, where it cannot be
    imported or made, or is no model.
    """
    with located(path=text):
        spelled = _SPELLING.fullmatch(text)
        if spelled is None:
            raise ModelError("this does not name a model", hint=_HINT)
        with _beside_current_folder(), redirect_stdout(sys.stderr):
            found = _imported(spelled["module"])
            for name in spelled["name"].split("."):
                found = _attribute(found, name, spelled["module"])
            made = _made(found, spelled["name"]) if callable(found) and not _is_model(found) else found
        if not _is_model(made):
            raise ModelError(f"it is a {type(made).__name__} that holds no tensors, so no model")
        return made


@contextmanager
def _beside_current_folder() -> Iterator[None]:
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path.pop(0)


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise ModelError(f"there is no module {error.name!r} here or among those installed", hint=_HINT) from error
        raise ModelError(f"importing it failed: {_said(error)}", hint=f"is {error.name} installed?") from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"importing it failed: {_said(error)}") from error


def _attribute(owner: Any, name: str, module: str) -> Any:
    found = getattr(owner, name, None)
    if found is not None:
        return found
    from difflib import get_close_matches

    close = get_close_matches(name, [each for each in dir(owner) if not each.startswith("_")], n=1)
    raise ModelError(
        f"the module {module} has no {name}", hint=f"did you mean {printable(close[0])}?" if close else None
    )


def _made(factory: Callable[[], Any], name: str) -> Any:
    import inspect

    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ModelError(
            f"{name} cannot be made without arguments: {error}",
            hint="write a function without arguments that makes it, and name that",
        ) from error
    except ValueError:  # a class whose signature Python does not know: trying tells
        pass
    torch = sys.modules.get("torch")
    if hasattr(torch, "device"):
        try:
            with torch.device("meta"):  # type: ignore[union-attr]  # it is there
                made = factory()
            if isinstance(made, torch.nn.Module):  # type: ignore[union-attr]
                return made
        except Exception:  # some models compute with their values as they are made: those need memory
            pass
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise ModelError(f"making {name} failed: {_said(error)}") from error


def _is_model(value: Any) -> bool:
    try:
        return next(iter(binding_for(value).walk(value)), None) is not None
    except (BurnstoreError, TypeError):
        return False


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {printable(text)}" if text else type(error).__name__
