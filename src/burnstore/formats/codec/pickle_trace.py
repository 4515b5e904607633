"""What Python's own unpickler would do with bytes: which globals it would import and call, in which order.

The machine of `pickle.py` is stricter than Python's and builds values; a file made to deceive ends it early. This one
follows Python: it goes on wherever Python might, and stops only where Python is certain to raise an error. It keeps
no values but strings, which name globals, and the bytes that a known function would unpickle.
"""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = "?"
"""The module or name of a global that is not given by two strings."""

_MAX_NAME = 512
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_MIN_EMBEDDED = 4
_NEWEST_PROTOCOL = 5
_U32, _U64 = (struct.Struct(code).unpack_from for code in ("<I", "<Q"))
_SKIPPED = {0x4B: 1, 0x4D: 2, 0x4A: 4, 0x47: 8}  # BININT1, BININT2, BININT, BINFLOAT
_COUNTED = {0x55: 1, 0x43: 1, 0x8C: 1, 0x8A: 1, 0x54: 4, 0x42: 4, 0x58: 4, 0x8B: 4, 0x8D: 8, 0x8E: 8, 0x96: 8}
_TEXTS, _RAW = frozenset((0x55, 0x8C, 0x54, 0x58, 0x8D)), frozenset((0x43, 0x42, 0x8E, 0x96))
_EXTENSIONS = {0x82: 1, 0x83: 2, 0x84: 4}
_PLAIN = {*b"N})]", 0x88, 0x89, 0x8F}  # NONE, EMPTY_DICT, EMPTY_TUPLE, EMPTY_LIST, NEWTRUE, NEWFALSE, EMPTY_SET
_TO_MARK = {*b"tldeu1", 0x90, 0x91}  # TUPLE, LIST, DICT, APPENDS, SETITEMS, POP_MARK, ADDITEMS, FROZENSET
_MAKES = {*b"tld", 0x91}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_POPS = {0x61: 1, 0x62: 1, 0x73: 2}  # APPEND, BUILD, SETITEM

_DATA, _OBJECT = object(), object()  # What is surely not callable; and the result of a call, which may be anything.


class _Text(str):
    """A string of the pickle that may name a global, and where its bytes are."""

    __slots__ = ("place",)
    place: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Blob:
    """Bytes, or a long string: where they are in the pickle."""

    place: tuple[int, int]


@dataclass(slots=True)
class TracedName:
    """A global that Python would import, whether it would be called, and how often it is used.

    ``loads`` counts the calls of a function that unpickles bytes of this pickle, which are among its ``blobs``.
    """

    position: int
    module: str
    name: str
    called: bool = False
    uses: int = 1
    loads: int = 0


@dataclass(slots=True)
class Trace:
    """What Python would do: ``names`` in order, ``end`` where it stops, and whether that is at STOP.

    ``blobs`` are the places of all strings. ``is_cut`` is set where only the end of the data stopped it.
    """

    names: list[TracedName] = field(default_factory=list)
    end: int = 0
    is_whole: bool = False
    is_cut: bool = False
    blobs: list[tuple[int, int]] = field(default_factory=list)


def trace_all(
    data: bytes, *, foreign: bool = False, persistent: bool = True, most: int | None = None
) -> Iterator[Trace]:
    """Trace the pickles that follow one another, up to ``most`` of them or to one that does not end with STOP."""
    position, done = 0, 0
    while position < len(data) and (most is None or done < most):
        found = trace_pickle(data, position, foreign=foreign, persistent=persistent)
        yield found
        if not found.is_whole:
            return
        position, done = found.end, done + 1


def trace_pickle(data: bytes, start: int = 0, *, foreign: bool = False, persistent: bool = True) -> Trace:
    """Follow the pickle at ``start``; without ``persistent``, a persistent id is an error, as for `pickle.load`.

    With ``foreign``, the bytes do not begin like a pickle of today: registered extensions, and names that no module
    has, such as those in a text that begins with ``class``, are errors.

    >>> [(each.module, each.name, each.called) for each in trace_pickle(b"cos\\nsystem\\n(S'id'\\ntR.").names]
    [('os', 'system', True)]
    """
    trace = Trace(end=start)
    try:
        _follow(data, start, trace, foreign=foreign, persistent=persistent)
    except (_CutError, struct.error):
        trace.is_cut = True
    except (_StopError, IndexError):  # An IndexError: something is taken from an empty stack.
        pass
    return trace


class _StopError(Exception):
    """Python would raise an error here."""


class _CutError(Exception):
    """The data end here."""


# One branch per opcode, in one loop: a function for each would hide the order in which they are checked.
def _follow(data: bytes, position: int, trace: Trace, *, foreign: bool, persistent: bool) -> None:  # noqa: C901
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: dict[int, Any] = {}
    while True:
        trace.end = position
        if position >= len(data):
            raise _CutError
        op = data[position]
        position += 1
        if op in _SKIPPED:
            position += _SKIPPED[op]
            stack.append(_DATA)
        elif op in (0x71, 0x72, 0x94, 0x70):  # BINPUT, LONG_BINPUT, MEMOIZE, PUT
            key, position = (len(memo), position) if op == 0x94 else _memo_key(data, op, position)
            memo[key] = stack[-1]
        elif op in (0x68, 0x6A, 0x67):  # BINGET, LONG_BINGET, GET
            key, position = _memo_key(data, op, position)
            if key not in memo:
                raise _StopError
            stack.append(_used(memo[key]))
        elif op in _COUNTED:
            begin, position = _counted(data, op, position)
            if op in _TEXTS and position - begin <= _MAX_NAME:
                text = _Text(data[begin:position], "utf-8", "replace")
                text.place = (begin, position)
                stack.append(text)
            else:
                stack.append(_Blob((begin, position)) if op in _TEXTS or op in _RAW else _DATA)
            if position - begin >= _MIN_EMBEDDED and stack[-1] is not _DATA:
                trace.blobs.append((begin, position))
        elif op in _PLAIN:
            stack.append(_DATA if op != 0x29 else ())
        elif op == 0x28:  # MARK
            marks.append(stack)
            stack = []
        elif op in _TUPLES:
            count = _TUPLES[op]
            items = tuple(stack[-count:])
            if len(items) < count:
                raise _StopError
            stack[-count:] = [items]
        elif op in _TO_MARK:
            items, stack = tuple(stack), _below_mark(marks)
            if op in _MAKES:
                stack.append(items if op == 0x74 else _DATA)
            elif op != 0x31 and not stack:
                raise _StopError
        elif op in (0x52, 0x81, 0x92):  # REDUCE, NEWOBJ, NEWOBJ_EX
            if op == 0x92:
                stack.pop()
            args = stack.pop()
            stack[-1] = _called(stack[-1], args)
        elif op == 0x63 or op == 0x69:  # GLOBAL, INST
            module, position = _line(data, position)
            name, position = _line(data, position)
            if op == 0x69:
                stack = _below_mark(marks)
            texts = [each[:_MAX_NAME].decode("utf-8", "replace") for each in (module, name)]
            if foreign and not all(map(_DOTTED.fullmatch, texts)):
                raise _StopError
            stack.append(_named(trace, *texts))
            stack[-1].called = op == 0x69
        elif op == 0x93:  # STACK_GLOBAL
            name, module = stack.pop(), stack.pop()
            if any(each is _DATA or isinstance(each, tuple) for each in (name, module)):
                raise _StopError
            stack.append(_named(trace, *(str(each) if isinstance(each, str) else UNKNOWN for each in (module, name))))
        elif op == 0x6F:  # OBJ
            items, stack = tuple(stack), _below_mark(marks)
            if not items:
                raise _StopError
            stack.append(_called(items[0], items[1:]))
        elif op in _EXTENSIONS and not foreign:
            code = int.from_bytes(data[position : position + _EXTENSIONS[op]], "little")
            position += _EXTENSIONS[op]
            stack.append(_named(trace, "copyreg", f"extension {code}"))
            stack[-1].called = True
        elif op in _POPS:
            if len(stack) <= _POPS[op]:
                raise _StopError
            del stack[-_POPS[op] :]
        elif op in b"ILFSV":
            line, position = _line(data, position)
            stack.append(_spelled(op, line))
        elif op == 0x30:  # POP
            if stack:
                stack.pop()
            else:
                stack = _below_mark(marks)
        elif op == 0x32:  # DUP
            stack.append(_used(stack[-1]))
        elif op == 0x80:  # PROTO
            if data[position : position + 1] > bytes((_NEWEST_PROTOCOL,)):
                raise _StopError
            position += 1
        elif op == 0x95:  # FRAME
            _U64(data, position)
            position += 8
        elif op in b"PQ" and persistent:
            if op == 0x50:
                _, position = _line(data, position)
            else:
                stack.pop()
            stack.append(_OBJECT)
        elif op == 0x2E:  # STOP
            if not stack:
                raise _StopError
            trace.end, trace.is_whole = position, True
            return
        else:
            raise _StopError


def _below_mark(marks: list[list[Any]]) -> list[Any]:
    if not marks:
        raise _StopError
    return marks.pop()


def _used(token: Any) -> Any:
    if type(token) is TracedName:
        token.uses += 1
    return token


def _called(function: Any, args: Any) -> Any:
    if (
        function is _DATA
        or args is _DATA
        or isinstance(function, (tuple, str, _Blob))
        or isinstance(args, (str, _Blob))
    ):
        raise _StopError  # Python cannot call it.
    if not isinstance(function, TracedName):
        return _OBJECT
    function.called = True
    known = (function.module, function.name)
    first = args[0] if isinstance(args, tuple) and args else None
    if known == ("_codecs", "encode") and isinstance(first, (_Blob, _Text)):
        return _Blob(first.place)  # How Python 2 spells bytes.
    if known == ("torch.storage", "_load_from_bytes") and isinstance(first, _Blob):
        function.loads += 1
    return _OBJECT


def _named(trace: Trace, module: str, name: str) -> TracedName:
    found = TracedName(trace.end, module[:_MAX_NAME], name[:_MAX_NAME])
    trace.names.append(found)
    return found


def _line(data: bytes, position: int) -> tuple[bytes, int]:
    end = data.find(b"\n", position)
    if end < 0:
        raise _CutError
    return data[position:end].rstrip(b"\r"), end + 1


def _memo_key(data: bytes, op: int, position: int) -> tuple[int, int]:
    if op in b"qh":
        if position >= len(data):
            raise _CutError
        return data[position], position + 1
    if op in b"rj":
        return _U32(data, position)[0], position + 4
    line, position = _line(data, position)
    if not line.strip().isdigit() or len(line) > 20:
        raise _StopError
    return int(line), position


def _counted(data: bytes, op: int, position: int) -> tuple[int, int]:
    width = _COUNTED[op]
    begin = position + width
    if begin > len(data):
        raise _CutError
    length = int.from_bytes(data[position:begin], "little", signed=op in (0x8B, 0x54))
    if length < 0:
        raise _StopError
    if begin + length > len(data):
        raise _CutError
    return begin, begin + length


def _spelled(op: int, line: bytes) -> Any:
    """Return what a line spells: text as it is decoded, anything else as data."""
    if op == 0x56:
        return codecs.raw_unicode_escape_decode(line, "replace")[0][: _MAX_NAME + 1]
    if op != 0x53:
        return _DATA
    line = line.strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in b"'\"":
        raise _StopError
    try:
        return codecs.escape_decode(line[1:-1])[0].decode("latin-1")[: _MAX_NAME + 1]
    except ValueError:
        raise _StopError from None
