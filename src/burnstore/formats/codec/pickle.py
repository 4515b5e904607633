"""Pickles as data: a machine that follows every opcode of protocols 0 to 5 and runs nothing.

A pickle is a program for a small stack machine whose instructions include "import this" and "call that". Here an import
gives a `Symbol`, which is two texts, and a call gives a `Call`, which is a note of what was asked. There is no import
in this file, no call of anything that a pickle names, and no switch. What is known to be harmless data (an OrderedDict,
a tensor's description) is made by ``builders``, functions of our own that are chosen by name and take and give values.

* The memo holds references, as in Python: a list that is filled after it was memoised is the filled list everywhere.
* A mark starts a stack of its own, so no opcode can reach below it.
* STOP must leave exactly one value and no open mark.
* Dict keys are plain values; none may come twice. Keys whose hash a stranger can choose are few.
* Lengths are checked against the bytes that are there before anything is allocated; see `PickleLimits` for the rest.

Speed: the opcodes that make up nearly all of a real file stand first in one loop, in the order of how common they are;
the others are methods in two tables. A ``recogniser`` may take a whole stretch of opcodes in one step where it knows
the pattern; whatever then refers to something inside that stretch makes the machine start over without it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import (
    BurnstoreError,
    CorruptError,
    LimitError,
    TruncatedError,
    UnsafeContentError,
    UnsupportedError,
)
from .pickle_literals import I32, U32, Literals
from .pickle_values import Builder, Call, PickledDict, PickledSet, Symbol, kind_of

MOST_COSTLY_KEYS = 5_000
MOST_KEY_ITEMS = 64

_CHUNK = 4096
_PYTHON_2_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg", "UserDict": "collections"}
_PLAIN_KEYS = frozenset({str, bytes, bool, type(None), Symbol, Call})
_SAFE_HASH = 1 << 60  # an int below is its own hash; beyond, many share one

Run = tuple[int, list[Any], int]
"""A stretch taken in one step: where it ends, what it pushes, how many memo entries it made but did not keep."""
Recogniser = Callable[[bytes, int, dict[int, Any]], "Run | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PickleLimits:
    """What one pickle may cost. Objects and memo entries grow with the pickle: real ones need 10 bytes for each."""

    opcodes: int = 5_000_000
    stack: int = 100_000
    text_bytes: int = 16 << 20
    objects: int = 500_000
    memo: int = 500_000

    def times(self, factor: int) -> PickleLimits:
        """The same, ``factor`` times as generous."""
        return PickleLimits(
            **{name: getattr(self, name) * factor for name in ("opcodes", "stack", "text_bytes", "objects", "memo")}
        )


@dataclass(frozen=True, slots=True)
class Pickle:
    """A pickle that was read: its value, every global it names with the place, its protocol, and where it ends."""

    value: Any
    globals: list[tuple[int, Symbol]]
    protocol: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What a reader of pickles knows: calls that are data, the meaning of persistent ids, stretches it recognises."""

    builders: Mapping[tuple[str, str], Builder] = field(default_factory=dict)
    persistent: Callable[[Any], Any] | None = None
    recogniser: Recogniser | None = None


def read_pickle(data: bytes, position: int = 0, *, dialect: Dialect, limits: PickleLimits | None = None) -> Pickle:
    """The pickle that starts at ``position``. Errors carry the offset in ``data``."""
    limits = limits or PickleLimits()
    try:
        return _Machine(data, position, dialect, dialect.recogniser, limits).run()
    except _StartOverError:
        return _Machine(data, position, dialect, None, limits).run()


class _StartOverError(Exception):
    """Something refers into a stretch that was taken in one step."""


class _Machine(Literals):
    """One pickle being read."""

    def __init__(
        self, data: bytes, position: int, dialect: Dialect, recogniser: Recogniser | None, limits: PickleLimits
    ) -> None:
        super().__init__(data, limits.text_bytes)
        self._start = position
        self._dialect = dialect
        self._recogniser = recogniser
        self._limits = limits
        self._memo: dict[int, Any] = {}
        self._skipped = 0
        self._objects = 0
        self._costly_keys = 0
        self._symbols: dict[tuple[str, str], Symbol] = {}
        self._globals: list[tuple[int, Symbol]] = []

    def run(self) -> Pickle:
        """Follow the opcodes up to STOP."""
        data, memo, recogniser, persistent = self._data, self._memo, self._recogniser, self._dialect.persistent
        call, simple, marked, u32, i32 = self._call, self._SIMPLE, self._MARKED, U32, I32
        position = at = self._start
        stack: list[Any] = []
        marks: list[list[Any]] = []
        append, done = stack.append, 0
        try:
            while True:
                for _ in range(_CHUNK):
                    at = position
                    op = data[at]
                    position = at + 1
                    if op == 0x72:  # LONG_BINPUT
                        (number,) = u32(data, position)
                        memo[number] = stack[-1]
                        position += 4
                    elif op == 0x4B:  # BININT1
                        append(data[position])
                        position += 1
                    elif op == 0x68:  # BINGET
                        append(memo[data[position]])
                        position += 1
                    elif op == 0x71:  # BINPUT
                        memo[data[position]] = stack[-1]
                        position += 1
                    elif op == 0x28:  # MARK
                        marks.append(stack)
                        stack = []
                        append = stack.append
                    elif op == 0x74:  # TUPLE
                        items = stack
                        stack = marks.pop()
                        append = stack.append
                        append(tuple(items))
                    elif op == 0x58:  # BINUNICODE
                        (length,) = u32(data, position)
                        end = position + 4 + length
                        if recogniser is not None and (
                            data[end + 7 : end + 9] == b"((" or data[end + 10 : end + 12] == b"(("
                        ):
                            run = recogniser(data, at, memo)
                            if run is not None:
                                position, values, skipped = run
                                self._skipped += skipped
                                stack += values
                                continue
                        append(self._text(position + 4, end))
                        position = end
                    elif op == 0x86:  # TUPLE2
                        second = stack.pop()
                        stack[-1] = (stack[-1], second)
                    elif op == 0x52:  # REDUCE
                        args = stack.pop()
                        stack[-1] = call(stack[-1], args)
                    elif op == 0x29:  # EMPTY_TUPLE
                        append(())
                    elif op == 0x89:  # NEWFALSE
                        append(False)
                    elif op == 0x51 and persistent is not None:  # BINPERSID
                        stack[-1] = persistent(stack[-1])
                    elif op == 0x4D:  # BININT2
                        append(data[position] | data[position + 1] << 8)
                        position += 2
                    elif op == 0x4A:  # BININT
                        append(i32(data, position)[0])
                        position += 4
                    elif op == 0x6A:  # LONG_BINGET
                        append(memo[u32(data, position)[0]])
                        position += 4
                    elif op == 0x87:  # TUPLE3
                        third = stack.pop()
                        second = stack.pop()
                        stack[-1] = (stack[-1], second, third)
                    elif op in marked:
                        items = stack
                        stack = marks.pop()
                        append = stack.append
                        position = marked[op](self, stack, items, position)
                    elif op in simple:
                        position = simple[op](self, stack, position)
                    elif op == 0x30:  # POP: a value, or the mark where no value is on top of it
                        if stack:
                            stack.pop()
                        else:
                            stack = marks.pop()
                            append = stack.append
                    elif op == 0x2E:  # STOP
                        return self._stopped(stack, marks, position)
                    else:
                        raise self._refusal(op)
                done += _CHUNK
                self._check_limits(done, len(stack), len(marks))
        except IndexError:
            if position >= len(data):
                raise TruncatedError("the pickle ends before its STOP", offset=at) from None
            raise CorruptError("an opcode needs a value, or a mark, that is not there", offset=at) from None
        except struct.error:
            raise TruncatedError("the pickle ends inside an opcode", offset=at) from None
        except KeyError as error:
            if self._skipped:
                raise _StartOverError from None
            raise CorruptError(f"memo entry {error.args[0]} is used but was never made", offset=at) from None
        except BurnstoreError as error:
            if error.offset is None:
                error.offset = at
            raise

    def _stopped(self, stack: list[Any], marks: list[list[Any]], position: int) -> Pickle:
        if marks or len(stack) != 1:
            raise CorruptError(f"STOP with {len(stack)} values and {len(marks)} open marks, not with one value")
        self._check_limits(0, 0, 0)
        return Pickle(stack[0], self._globals, self._protocol, position)

    def _check_limits(self, opcodes: int, stack: int, marks: int) -> None:
        limits, grown = self._limits, len(self._data) // 8
        for what, found, most in (
            ("opcodes", opcodes, limits.opcodes),
            ("values on the stack", stack, limits.stack),
            ("open marks", marks, limits.stack),
            ("objects", self._objects, limits.objects + grown),
            ("memo entries", len(self._memo), limits.memo + grown),
        ):
            if found > most:
                raise LimitError(f"a pickle of more than {most:,} {what}")

    def _refusal(self, op: int) -> BurnstoreError:
        if op in (0x82, 0x83, 0x84):  # EXT1, EXT2, EXT4
            return UnsafeContentError("the pickle asks for code by its number in a registry of the running program")
        if op in (0x97, 0x98):  # NEXT_BUFFER, READONLY_BUFFER
            return UnsupportedError("the pickle refers to buffers that were kept outside of it")
        if op == 0x51:
            return UnsupportedError("the pickle refers to something outside of it by a persistent id")
        return CorruptError(f"{op:#04x} is not an opcode of pickles")

    # ----------------------------------------------------------------------------------------------- calls

    def _call(self, function: Any, args: Any) -> Any:
        if type(args) is not tuple:
            raise CorruptError(f"the arguments of a call are a {kind_of(args)}, not a tuple")
        self._objects += 1
        if type(function) is not Symbol:
            if not isinstance(function, Call):
                raise CorruptError(f"a {kind_of(function)} is called")
            return Call(function, args)
        function.called = True
        return Call(function, args) if function.build is None else function.build(args)

    def _symbol(self, module: Any, name: Any, position: int) -> Symbol:
        if type(module) is not str or type(name) is not str:
            raise CorruptError(f"a global is named by a {kind_of(module)} and a {kind_of(name)}, not by two texts")
        symbol = self._symbols.get((module, name))
        if symbol is None:
            known = _PYTHON_2_MODULES.get(module, module), name
            symbol = self._symbols[module, name] = Symbol(module, name, self._dialect.builders.get(known))
        self._globals.append((position, symbol))
        self._objects += 1
        return symbol

    def _global(self, stack: list[Any], position: int) -> int:
        module, after = self._line(position)
        name, after = self._line(after)
        stack.append(self._symbol(_utf8(module), _utf8(name), position - 1))
        return after

    def _stack_global(self, stack: list[Any], position: int) -> int:
        name = stack.pop()
        stack[-1] = self._symbol(stack[-1], name, position - 1)
        return position

    def _newobj(self, stack: list[Any], position: int) -> int:
        args = stack.pop()
        stack[-1] = self._call(stack[-1], args)
        return position

    def _newobj_ex(self, stack: list[Any], position: int) -> int:
        kwargs, args = stack.pop(), stack.pop()
        if not isinstance(kwargs, dict):
            raise CorruptError(f"the named arguments of a call are a {kind_of(kwargs)}, not a dict")
        if not kwargs:
            stack[-1] = self._call(stack[-1], args)
            return position
        if type(args) is not tuple or not isinstance(stack[-1], (Symbol, Call)):
            raise CorruptError("a call with named arguments of something that cannot be called")
        if isinstance(stack[-1], Symbol):
            stack[-1].called = True
        self._objects += 1
        stack[-1] = Call(stack[-1], args, kwargs)
        return position

    def _inst(self, stack: list[Any], items: list[Any], position: int) -> int:
        module, after = self._line(position)
        name, after = self._line(after)
        stack.append(self._call(self._symbol(_utf8(module), _utf8(name), position - 1), tuple(items)))
        return after

    def _obj(self, stack: list[Any], items: list[Any], position: int) -> int:
        stack.append(self._call(items[0], tuple(items[1:])))
        return position

    def _build(self, stack: list[Any], position: int) -> int:
        state, target = stack.pop(), stack[-1]
        if not isinstance(target, (Call, PickledDict)):
            raise CorruptError(f"a state is given to a {kind_of(target)}")
        target.take_state(state)
        return position

    def _persid(self, stack: list[Any], position: int) -> int:
        line, after = self._line(position)
        if self._dialect.persistent is None:
            raise self._refusal(0x51)
        stack.append(self._dialect.persistent(_utf8(line)))
        return after

    # ----------------------------------------------------------------------------------------------- containers

    def _empty(self, stack: list[Any], value: Any, position: int) -> int:
        self._objects += 1
        stack.append(value)
        return position

    def _tuple1(self, stack: list[Any], position: int) -> int:
        self._objects += 1
        stack[-1] = (stack[-1],)
        return position

    def _dup(self, stack: list[Any], position: int) -> int:
        stack.append(stack[-1])
        return position

    def _pop_mark(self, stack: list[Any], items: list[Any], position: int) -> int:
        return position

    def _list(self, stack: list[Any], items: list[Any], position: int) -> int:
        return self._empty(stack, items, position)

    def _dict(self, stack: list[Any], items: list[Any], position: int) -> int:
        self._empty(stack, {}, position)
        return self._setitems(stack, items, position)

    def _frozenset(self, stack: list[Any], items: list[Any], position: int) -> int:
        return self._empty(stack, PickledSet(items), position)

    def _append(self, stack: list[Any], position: int) -> int:
        item = stack.pop()
        return self._appends(stack, [item], position)

    def _appends(self, stack: list[Any], items: list[Any], position: int) -> int:
        target = stack[-1]
        if type(target) is list:
            target += items
        elif isinstance(target, Call):
            target.append(items)
        else:
            raise CorruptError(f"items are appended to a {kind_of(target)}")
        return position

    def _additems(self, stack: list[Any], items: list[Any], position: int) -> int:
        target = stack[-1]
        if not isinstance(target, (PickledSet, Call)):
            raise CorruptError(f"items are added to a {kind_of(target)}")
        if isinstance(target, PickledSet):
            target += items
        else:
            target.append(items)
        return position

    def _setitem(self, stack: list[Any], position: int) -> int:
        value, key = stack.pop(), stack.pop()
        return self._setitems(stack, [key, value], position)

    def _setitems(self, stack: list[Any], items: list[Any], position: int) -> int:
        target, keys = stack[-1], items[::2]
        if len(items) % 2:
            raise CorruptError("a key without a value")
        if isinstance(target, Call):
            target.set_items(items)
            return position
        if not isinstance(target, dict):
            raise CorruptError(f"an item is set in a {kind_of(target)}")
        if not _PLAIN_KEYS.issuperset(map(type, keys)):
            for key in keys:
                self._check_key(key)
        expected = len(target) + len(keys)
        target.update(zip(keys, items[1::2], strict=True))
        if len(target) != expected:
            raise CorruptError("a key comes twice in one dict")
        return position

    def _check_key(self, key: Any) -> None:
        """Whether hashing and comparing this key is sure to be cheap."""
        kind = type(key)
        if kind in _PLAIN_KEYS or (kind is int and -_SAFE_HASH < key < _SAFE_HASH):
            return
        self._costly_keys += 1
        if self._costly_keys > MOST_COSTLY_KEYS:
            raise LimitError(f"more than {MOST_COSTLY_KEYS:,} dict keys that are neither text nor plain integers")
        if kind is tuple and len(key) <= MOST_KEY_ITEMS:
            if all(type(item) is str for item in key):
                self._costly_keys -= 1  # hashes of texts cannot be foreseen
            elif not all(type(item) in (str, bytes, int, float, bool, type(None)) for item in key):
                raise UnsupportedError("a tuple that holds more than plain values is a dict key")
        elif kind not in (int, float, complex) and not _by_identity(kind):
            raise CorruptError(f"a {kind_of(key)} cannot be a dict key")

    # ----------------------------------------------------------------------------------------------- the memo

    def _memoize(self, stack: list[Any], position: int) -> int:
        if self._skipped:
            raise _StartOverError
        self._memo[len(self._memo)] = stack[-1]
        return position

    def _put(self, stack: list[Any], position: int) -> int:
        number, after = self._number(position)
        self._memo[number] = stack[-1]
        return after

    def _get(self, stack: list[Any], position: int) -> int:
        number, after = self._number(position)
        stack.append(self._memo[number])
        return after

    _SIMPLE: Mapping[int, Callable[[_Machine, list[Any], int], int]] = {
        **Literals.LITERALS,
        0x7D: lambda m, s, p: m._empty(s, {}, p),  # EMPTY_DICT
        0x5D: lambda m, s, p: m._empty(s, [], p),  # EMPTY_LIST
        0x8F: lambda m, s, p: m._empty(s, PickledSet(), p),  # EMPTY_SET
        0x85: _tuple1,
        0x73: _setitem,
        0x61: _append,
        0x63: _global,
        0x93: _stack_global,
        0x81: _newobj,
        0x92: _newobj_ex,
        0x62: _build,
        0x50: _persid,
        0x32: _dup,
        0x94: _memoize,
        0x70: _put,
        0x67: _get,
    }
    _MARKED: Mapping[int, Callable[[_Machine, list[Any], list[Any], int], int]] = {
        0x75: _setitems,
        0x65: _appends,
        0x6C: _list,
        0x64: _dict,
        0x90: _additems,
        0x91: _frozenset,
        0x69: _inst,
        0x6F: _obj,
        0x31: _pop_mark,
    }


def _by_identity(kind: type[Any]) -> bool:
    """Whether equal means the same object, so that hashing looks at no content."""
    return kind.__hash__ is object.__hash__  # type: ignore[comparison-overlap]


def _utf8(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptError(f"the name of a global is not UTF-8: {error.reason}") from None
