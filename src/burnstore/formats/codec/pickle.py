"""Read pickles as data: a machine that follows every opcode of protocols 0 to 5 and runs nothing.

A pickle is a program for a small stack machine whose instructions include "import this" and "call that". Here an import
gives a `Symbol`, which is two strings, and a call gives a `Call`, which records what was asked. This file imports and
calls nothing that a pickle names, and has no switch to do so. Known harmless data (an OrderedDict, a tensor's
description) is made by ``builders``: functions of our own, chosen by name, that take and return values.

* The memo holds references, as in Python: a list filled after it was memoized is the filled list everywhere.
* A mark starts a stack of its own, so no opcode can reach below it.
* STOP must leave exactly one value and no open mark.
* Dict keys are plain values and unique. Keys whose hash a stranger can choose are limited in number.
* Lengths are checked against the bytes available before anything is allocated; see `PickleLimits` for the rest.

Speed: the opcodes that make up nearly all of a real file come first in one loop, in the order of how common they are;
the others are methods in two tables. A ``recogniser`` may take a whole run of opcodes in one step where it knows
the pattern; any later reference into such a run makes the machine start over without the recogniser.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ...errors import (
    BurnstoreError,
    CorruptError,
    LimitError,
    TruncatedError,
    UnsafeContentError,
    UnsupportedError,
)
from .pickle_values import Builder, Call, PickledDict, PickledSet, Symbol, kind_of

MAX_COSTLY_KEYS = 5_000
MAX_KEY_ITEMS = 64
MAX_LINE = 1 << 16
MAX_INT_BYTES = 1024
NEWEST_PROTOCOL = 5

_CHUNK = 4096
_PYTHON_2_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg", "UserDict": "collections"}
_PLAIN_KEYS = frozenset({str, bytes, bool, type(None), Symbol, Call})
_SAFE_HASH = 1 << 60  # An int below this is its own hash; beyond it, many share one.
_U16, _U32, _I32, _U64, _F64 = (struct.Struct(code).unpack_from for code in ("<H", "<I", "<i", "<Q", ">d"))

Run = tuple[int, list[Any], int]
"""A run taken in one step: where it ends, what it pushes, how many memo entries it made but did not keep."""
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
        """Return limits ``factor`` times as generous."""
        return PickleLimits(**{each.name: getattr(self, each.name) * factor for each in fields(self)})


@dataclass(frozen=True, slots=True)
class Pickle:
    """A pickle that was read: its value, every global it names with its position, its protocol, and where it ends."""

    value: Any
    globals: list[tuple[int, Symbol]]
    protocol: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What a reader of pickles knows: calls that are data, the meaning of persistent ids, runs it recognises."""

    builders: Mapping[tuple[str, str], Builder] = field(default_factory=dict)
    persistent: Callable[[Any], Any] | None = None
    recogniser: Recogniser | None = None
    restart: Callable[[], None] | None = None
    """Called before the machine starts over."""


def read_pickle(data: bytes, position: int = 0, *, dialect: Dialect, limits: PickleLimits | None = None) -> Pickle:
    """Read the pickle that starts at ``position``. Errors carry the offset in ``data``."""
    limits = limits or PickleLimits()
    try:
        return _Machine(data, position, dialect, dialect.recogniser, limits).run()
    except _StartOverError:
        if dialect.restart is not None:
            dialect.restart()
        return _Machine(data, position, dialect, None, limits).run()


class _StartOverError(Exception):
    """Something refers into a run that was taken in one step."""


class _Machine:
    """One pickle being read."""

    def __init__(
        self, data: bytes, position: int, dialect: Dialect, recogniser: Recogniser | None, limits: PickleLimits
    ) -> None:
        self._data = data
        self._start = position
        self._dialect = dialect
        self._recogniser = recogniser
        self._limits = limits
        self._protocol = 0
        self._memo: dict[int, Any] = {}
        self._skipped = 0
        self._objects = 0
        self._costly_keys = 0
        self._symbols: dict[tuple[str, str], Symbol] = {}
        self._globals: list[tuple[int, Symbol]] = []

    def run(self) -> Pickle:  # noqa: C901 (one branch per opcode: a call for each would cost half of the speed)
        """Follow the opcodes up to STOP."""
        data, memo, recogniser, persistent = self._data, self._memo, self._recogniser, self._dialect.persistent
        call, simple, marked, u16, u32, i32 = self._call, self._SIMPLE, self._MARKED, _U16, _U32, _I32
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
                    elif op == 0x52 or op == 0x81:  # REDUCE, NEWOBJ
                        args = stack.pop()
                        stack[-1] = call(stack[-1], args)
                    elif op == 0x29:  # EMPTY_TUPLE
                        append(())
                    elif op == 0x89:  # NEWFALSE
                        append(False)
                    elif op == 0x51 and persistent is not None:  # BINPERSID
                        stack[-1] = persistent(stack[-1])
                    elif op == 0x4D:  # BININT2
                        append(u16(data, position)[0])
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
                    elif op == 0x30:  # POP: a value, or the mark if no value is on top of it
                        if stack:
                            stack.pop()
                        else:
                            stack = marks.pop()
                            append = stack.append
                    elif op == 0x2E:  # STOP
                        if marks or len(stack) != 1:
                            raise CorruptError(
                                f"expected one value at STOP, found {len(stack)} values and {len(marks)} open marks"
                            )
                        self._check_limits(0, 0, 0)
                        return Pickle(stack[0], self._globals, self._protocol, position)
                    else:
                        raise _refusal(op)
                done += _CHUNK
                self._check_limits(done, len(stack), len(marks))
        except IndexError:
            if position >= len(data):
                raise TruncatedError("the pickle ends before its STOP", offset=at) from None
            raise CorruptError("an opcode needs a value, or a mark, that is not on the stack", offset=at) from None
        except struct.error:
            raise TruncatedError("the pickle ends inside an opcode", offset=at) from None
        except KeyError as error:
            if self._skipped:
                raise _StartOverError from None
            raise CorruptError(f"memo entry {error.args[0]} does not exist", offset=at) from None
        except BurnstoreError as error:
            if error.offset is None:
                error.offset = at
            raise

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

    # ----------------------------------------------------------------------------------------------- literals

    def _text(self, start: int, end: int) -> str:
        try:
            return self._bytes(start, end, self._limits.text_bytes).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise CorruptError(f"text is not UTF-8: {error.reason}", offset=start + error.start) from None

    def _bytes(self, start: int, end: int, most: int | None = None) -> bytes:
        if end > len(self._data):
            raise TruncatedError(f"{end - start} bytes announced, {len(self._data) - start} left in the pickle")
        if most is not None and end - start > most:
            raise LimitError(f"a text of {end - start} bytes, more than the limit of {most}")
        return self._data[start:end]

    def _line(self, position: int) -> tuple[bytes, int]:
        end = self._data.find(b"\n", position, position + MAX_LINE)
        if end < 0:
            if len(self._data) - position < MAX_LINE:
                raise TruncatedError("the pickle ends inside a line")
            raise LimitError(f"a line of more than {MAX_LINE} bytes")
        return self._data[position:end], end + 1

    def _unicode(self, stack: list[Any], start: int, length: int) -> None:
        stack.append(self._text(start, start + length))

    def _raw(self, stack: list[Any], start: int, length: int) -> None:
        stack.append(self._bytes(start, start + length))

    def _string(self, stack: list[Any], start: int, length: int) -> None:
        stack.append(_python_2_text(self._bytes(start, start + length, self._limits.text_bytes)))

    def _integer(self, stack: list[Any], start: int, length: int) -> None:
        if length > MAX_INT_BYTES:
            raise LimitError(f"an integer of {length} bytes, more than the limit of {MAX_INT_BYTES}")
        stack.append(int.from_bytes(self._bytes(start, start + length), "little", signed=True))

    def _long4(self, stack: list[Any], position: int) -> int:
        (length,) = _I32(self._data, position)
        if length < 0:
            raise CorruptError(f"an integer of {length} bytes")
        self._integer(stack, position + 4, length)
        return position + 4 + int(length)

    def _push(self, stack: list[Any], value: Any, position: int) -> int:
        stack.append(value)
        return position

    def _proto(self, stack: list[Any], position: int) -> int:
        self._protocol = self._data[position]
        if self._protocol > NEWEST_PROTOCOL:
            raise UnsupportedError(f"pickle protocol {self._protocol}; the newest supported is {NEWEST_PROTOCOL}")
        return position + 1

    def _frame(self, stack: list[Any], position: int) -> int:
        (length,) = _U64(self._data, position)
        if length > len(self._data) - position - 8:
            raise TruncatedError(f"a frame of {length} bytes, {len(self._data) - position - 8} are left")
        return position + 8

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
            raise CorruptError(f"a global is named by a {kind_of(module)} and a {kind_of(name)}, not by two strings")
        symbol = self._symbols.get((module, name))
        if symbol is None:
            known = _PYTHON_2_MODULES.get(module, module), name
            symbol = self._symbols[module, name] = Symbol(module, name, self._dialect.builders.get(known))
        self._globals.append((position, symbol))
        self._objects += 1
        return symbol

    def _named(self, position: int) -> tuple[Symbol, int]:
        module, after = self._line(position)
        name, after = self._line(after)
        return self._symbol(_utf8(module), _utf8(name), position - 1), after

    def _global(self, stack: list[Any], position: int) -> int:
        symbol, after = self._named(position)
        stack.append(symbol)
        return after

    def _stack_global(self, stack: list[Any], position: int) -> int:
        name = stack.pop()
        stack[-1] = self._symbol(stack[-1], name, position - 1)
        return position

    def _newobj_ex(self, stack: list[Any], position: int) -> int:
        kwargs, args = stack.pop(), stack.pop()
        if not isinstance(kwargs, dict):
            raise CorruptError(f"the keyword arguments of a call are a {kind_of(kwargs)}, not a dict")
        if not kwargs:
            stack[-1] = self._call(stack[-1], args)
            return position
        if type(args) is not tuple or not isinstance(stack[-1], (Symbol, Call)):
            raise CorruptError("a call with keyword arguments of something that cannot be called")
        if isinstance(stack[-1], Symbol):
            stack[-1].called = True
        self._objects += 1
        stack[-1] = Call(stack[-1], args, kwargs)
        return position

    def _inst(self, stack: list[Any], items: list[Any], position: int) -> int:
        symbol, after = self._named(position)
        stack.append(self._call(symbol, tuple(items)))
        return after

    def _build(self, stack: list[Any], position: int) -> int:
        state, target = stack.pop(), stack[-1]
        if not isinstance(target, (Call, PickledDict)):
            raise CorruptError(f"a state is given to a {kind_of(target)}")
        target.take_state(state)
        return position

    def _persid(self, stack: list[Any], position: int) -> int:
        line, after = self._line(position)
        if self._dialect.persistent is None:
            raise _refusal(0x51)
        stack.append(self._dialect.persistent(_utf8(line)))
        return after

    # ----------------------------------------------------------------------------------------------- containers

    def _push_object(self, stack: list[Any], value: Any, position: int) -> int:
        self._objects += 1
        stack.append(value)
        return position

    def _dict(self, stack: list[Any], items: list[Any], position: int) -> int:
        self._push_object(stack, {}, position)
        return self._setitems(stack, items, position)

    def _appends(self, stack: list[Any], items: list[Any], position: int, collection: type[Any] = list) -> int:
        target = stack[-1]
        if type(target) is collection:
            target += items
        elif isinstance(target, Call):
            target.append(items)
        else:
            raise CorruptError(f"items are added to a {kind_of(target)}")
        return position

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
            raise CorruptError("a key occurs twice in one dict")
        return position

    def _check_key(self, key: Any) -> None:
        """Refuse a key that may be expensive to hash or to compare."""
        kind = type(key)
        if kind in _PLAIN_KEYS or (kind is int and -_SAFE_HASH < key < _SAFE_HASH):
            return
        self._costly_keys += 1
        if self._costly_keys > MAX_COSTLY_KEYS:
            raise LimitError(f"more than {MAX_COSTLY_KEYS:,} dict keys that are neither text nor plain integers")
        if kind is tuple and len(key) <= MAX_KEY_ITEMS:
            if all(type(item) is str for item in key):
                self._costly_keys -= 1  # Hashes of strings cannot be foreseen.
            elif not all(type(item) in (str, bytes, int, float, bool, type(None)) for item in key):
                raise UnsupportedError("a tuple of more than plain values is a dict key")
        elif kind not in (int, float, complex) and kind.__hash__ is not object.__hash__:  # type: ignore[comparison-overlap]
            raise CorruptError(f"a {kind_of(key)} cannot be a dict key")

    # ----------------------------------------------------------------------------------------------- the memo

    def _memoize(self, stack: list[Any], position: int) -> int:
        if self._skipped:
            raise _StartOverError
        self._memo[len(self._memo)] = stack[-1]
        return position

    def _put(self, stack: list[Any], position: int) -> int:
        line, after = self._line(position)
        self._memo[_int_of(line, 10)] = stack[-1]
        return after

    def _get(self, stack: list[Any], position: int) -> int:
        line, after = self._line(position)
        stack.append(self._memo[_int_of(line, 10)])
        return after

    _SIMPLE: Mapping[int, Callable[[_Machine, list[Any], int], int]]
    _MARKED: Mapping[int, Callable[[_Machine, list[Any], list[Any], int], int]] = {
        0x75: _setitems,
        0x65: _appends,
        0x6C: lambda m, s, items, p: m._push_object(s, items, p),  # LIST
        0x64: _dict,
        0x90: lambda m, s, items, p: m._appends(s, items, p, PickledSet),  # ADDITEMS
        0x91: lambda m, s, items, p: m._push_object(s, PickledSet(items), p),  # FROZENSET
        0x69: _inst,
        0x6F: lambda m, s, items, p: m._push(s, m._call(items[0], tuple(items[1:])), p),  # OBJ
        0x31: lambda m, s, items, p: p,  # POP_MARK
    }


def _counted(
    take: Callable[[_Machine, list[Any], int, int], None], width: int
) -> Callable[[_Machine, list[Any], int], int]:
    """Return the function of an opcode that is followed by a length of ``width`` bytes and by that many bytes."""
    unpack = struct.Struct({1: "<B", 4: "<I", 8: "<Q"}[width]).unpack_from

    def push(machine: _Machine, stack: list[Any], position: int) -> int:
        (length,) = unpack(machine._data, position)
        take(machine, stack, position + width, length)
        return position + width + int(length)

    return push


def _line_of(convert: Callable[[bytes], Any], what: str) -> Callable[[_Machine, list[Any], int], int]:
    """Return the function of an opcode that is followed by a line, which spells a value."""

    def push(machine: _Machine, stack: list[Any], position: int) -> int:
        line, after = machine._line(position)
        try:
            stack.append(convert(line))
        except ValueError as error:
            if isinstance(error, BurnstoreError):
                raise
            raise CorruptError(f"invalid {what}: {error}") from None
        return after

    return push


def _quoted(line: bytes) -> str:
    line = line.strip()
    if len(line) < 2 or line[:1] not in b"'\"" or line[:1] != line[-1:]:
        raise CorruptError("a string without its quotes")
    return _python_2_text(bytes(codecs.escape_decode(line[1:-1])[0]))


def _python_2_text(raw: bytes) -> str:
    """Decode a str of Python 2, which may be text or bytes; as Latin-1 the bytes can still be recovered."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _int_of(line: bytes, base: int = 0) -> int:
    if len(line) > 2 * MAX_INT_BYTES:
        raise LimitError(f"an integer of {len(line)} digits")
    try:
        return int(line, base)
    except ValueError:
        raise CorruptError("invalid integer") from None


def _utf8(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptError(f"the name of a global is not UTF-8: {error.reason}") from None


def _refusal(op: int) -> BurnstoreError:
    if op in (0x82, 0x83, 0x84):  # EXT1, EXT2, EXT4
        return UnsafeContentError("the pickle asks for code by its number in a registry of the running program")
    if op in (0x97, 0x98):  # NEXT_BUFFER, READONLY_BUFFER
        return UnsupportedError("the pickle refers to buffers that were stored outside of it")
    if op == 0x51:
        return UnsupportedError("the pickle refers to something outside of it by a persistent id")
    return CorruptError(f"{op:#04x} is not a pickle opcode")


_Machine._SIMPLE = {
    0x4E: lambda m, s, p: m._push(s, None, p),  # NONE
    0x88: lambda m, s, p: m._push(s, True, p),  # NEWTRUE
    0x47: lambda m, s, p: m._push(s, _F64(m._data, p)[0], p + 8),  # BINFLOAT
    0x46: _line_of(float, "float"),
    0x49: _line_of(lambda line: line == b"01" if line in (b"00", b"01") else _int_of(line), "integer"),
    0x4C: _line_of(lambda line: _int_of(line[:-1] if line.endswith(b"L") else line), "integer"),
    0x56: _line_of(lambda line: codecs.raw_unicode_escape_decode(line)[0], "text"),
    0x53: _line_of(_quoted, "string"),
    0x8A: _counted(_Machine._integer, 1),
    0x8B: _Machine._long4,
    0x8C: _counted(_Machine._unicode, 1),
    0x8D: _counted(_Machine._unicode, 8),
    0x55: _counted(_Machine._string, 1),
    0x54: _counted(_Machine._string, 4),
    0x43: _counted(_Machine._raw, 1),
    0x42: _counted(_Machine._raw, 4),
    0x8E: _counted(_Machine._raw, 8),
    0x96: _counted(_Machine._raw, 8),  # BYTEARRAY8
    0x80: _Machine._proto,
    0x95: _Machine._frame,
    0x7D: lambda m, s, p: m._push_object(s, {}, p),  # EMPTY_DICT
    0x5D: lambda m, s, p: m._push_object(s, [], p),  # EMPTY_LIST
    0x8F: lambda m, s, p: m._push_object(s, PickledSet(), p),  # EMPTY_SET
    0x85: lambda m, s, p: m._push_object(s, (s.pop(),), p),  # TUPLE1
    0x73: lambda m, s, p: m._setitems(s, [s.pop(), s.pop()][::-1], p),  # SETITEM
    0x61: lambda m, s, p: m._appends(s, [s.pop()], p),  # APPEND
    0x63: _Machine._global,
    0x93: _Machine._stack_global,
    0x92: _Machine._newobj_ex,
    0x62: _Machine._build,
    0x50: _Machine._persid,
    0x32: lambda m, s, p: m._push(s, s[-1], p),  # DUP
    0x94: _Machine._memoize,
    0x70: _Machine._put,
    0x67: _Machine._get,
}
