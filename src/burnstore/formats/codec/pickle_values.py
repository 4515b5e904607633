"""What a pickle becomes here: plain Python values, and inert nodes for everything that a pickle would run.

A value is None, bool, int, float, complex, str, bytes, tuple, list, dict, or one of the nodes below. A node only
records what the pickle asked for; nothing in it can be called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import CorruptError, printable

Builder = Callable[[tuple[Any, ...]], Any]
"""Makes data out of the arguments of one known call; raises CorruptError where they are not what the call takes."""


class Symbol:
    """A global that a pickle names: a module and a name in it, as strings, and the builder for its calls, if known."""

    __slots__ = ("build", "called", "module", "name")

    def __init__(self, module: str, name: str, build: Builder | None = None) -> None:
        self.module = module
        self.name = name
        self.build = build
        self.called = False

    @property
    def full_name(self) -> str:
        """The module and the name, joined by a dot."""
        return f"{self.module}.{self.name}"

    def __repr__(self) -> str:
        return f"<{printable(self.full_name)}>"


class Call:
    """A call that a pickle asks for and that is not known here: kept with all its arguments, never made.

    ``function`` is what would be called (usually a `Symbol`), ``state`` what would be set on its result, ``appended``
    and ``pairs`` what would be put into it.
    """

    __slots__ = ("appended", "args", "function", "kwargs", "pairs", "state")

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[Any, Any] | None = None) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.state: Any = None
        self.appended: list[Any] | None = None
        self.pairs: list[tuple[Any, Any]] | None = None

    def take_state(self, state: Any) -> None:
        """Take what the BUILD opcode gives."""
        if self.state is not None:
            raise CorruptError(f"the state of {self!r} is given twice")
        self.state = state

    def append(self, items: list[Any]) -> None:
        """Take what the APPEND and ADDITEMS opcodes give."""
        if self.appended is None:
            self.appended = []
        self.appended += items

    def set_items(self, items: list[Any]) -> None:
        """Take what the SETITEM opcodes give: keys and values in turn."""
        if self.pairs is None:
            self.pairs = []
        self.pairs += zip(items[::2], items[1::2], strict=True)

    @property
    def function_name(self) -> str:
        """The name of what would be called."""
        return self.function.full_name if isinstance(self.function, Symbol) else type(self.function).__name__

    def __repr__(self) -> str:
        return f"<call of {printable(self.function_name)}>"


class PickledDict(dict[Any, Any]):
    """An OrderedDict or another dict subclass; ``state`` is what was set on it besides its items."""

    __slots__ = ("state",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.state: Any = None

    def take_state(self, state: Any) -> None:
        """Take what the BUILD opcode gives."""
        self.state = state


class PickledSet(list[Any]):
    """The items of a set; values from a stranger are not hashed here."""

    __slots__ = ()


def kind_of(value: Any) -> str:
    """Return what a value is, in a word fit for messages."""
    if isinstance(value, Symbol):
        return printable(value.full_name)
    if isinstance(value, Call):
        return printable(value.function_name)
    name = type(value).__name__
    return {"NoneType": "None", "PickledDict": "dict", "PickledSet": "set"}.get(name, name)
