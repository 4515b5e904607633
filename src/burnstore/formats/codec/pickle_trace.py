"""What Python's own unpicklers would do with bytes: which globals they would import and call, in which order.

The machine of `pickle.py` is stricter than Python's and builds values; a file made to deceive ends it early. This one
follows Python: it goes on wherever Python might, and stops only where Python is certain to raise an error. It keeps
no values but strings, which name globals, and the places of bytes that a known function would unpickle.

Python has two unpicklers, in C and in Python, and the one in C reads bytes and files in different ways. A rule that
only one of them has is followed here:

    arguments of a call         in C a tuple; in Python anything that can be iterated
    INST without a mark         an error in C; Python imports the class first
    a last line without its end an error in C; Python takes the line without its last character
    GET and PUT                 whatever ``int`` accepts (`` +1_0``); in C the number ends at a NUL
    FRAME                       read from a file in C, what is left of a frame is dropped where an argument does not fit
                                into it, and behind STOP; read from bytes it is not (both ways are followed)

``tests/fuzz/pickles.py`` compares this module with both unpicklers.
"""

from __future__ import annotations

import codecs
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = "?"
"""The module or name of a global that is not given by two strings."""

LOADS_PICKLE = ("torch.storage", "_load_from_bytes")
"""The function that unpickles bytes of a pickle, which is how torch's storages are written by `pickle.dump`."""

_MAX_NAME = 512
_MAX_WAYS = 16
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_MIN_EMBEDDED = 4
_NEWEST_PROTOCOL = 5
_U32, _U64 = (struct.Struct(code).unpack_from for code in ("<I", "<Q"))
_FIXED = {0x4B: 1, 0x4D: 2, 0x4A: 4, 0x47: 8}  # BININT1, BININT2, BININT, BINFLOAT
_COUNTED = {0x55: 1, 0x43: 1, 0x8C: 1, 0x8A: 1, 0x54: 4, 0x42: 4, 0x58: 4, 0x8B: 4, 0x8D: 8, 0x8E: 8, 0x96: 8}
_TEXTS, _STRINGS = frozenset((0x8C, 0x58, 0x8D)), frozenset((0x55, 0x54))
_RAW, _NUMBERS = frozenset((0x43, 0x42, 0x8E, 0x96)), frozenset((0x8A, 0x8B))
_LINES = {0x49: 1, 0x4C: 1, 0x46: 1, 0x53: 1, 0x56: 1, 0x50: 1, 0x67: 1, 0x70: 1, 0x63: 2, 0x69: 2}
_EXTENSIONS = {0x82: 1, 0x83: 2, 0x84: 4}
_WIDTHS = {**_FIXED, **_EXTENSIONS, 0x68: 1, 0x71: 1, 0x6A: 4, 0x72: 4, 0x80: 1, 0x95: 8}
_FRAME = 0x95
_PLAIN = {0x4E, 0x88, 0x89}  # NONE, NEWTRUE, NEWFALSE
_EMPTY = {*b"}]", 0x8F}  # EMPTY_DICT, EMPTY_LIST, EMPTY_SET
_TO_MARK = {*b"tldeu1", 0x90, 0x91}  # TUPLE, LIST, DICT, APPENDS, SETITEMS, POP_MARK, ADDITEMS, FROZENSET
_MAKES = {*b"tld", 0x91}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_POPS = {0x61: 1, 0x62: 1, 0x73: 2}  # APPEND, BUILD, SETITEM

# What is certainly neither callable nor iterable; what is certainly not callable; and what may be anything.
_DATA, _ITEMS, _OBJECT = object(), object(), object()

_UTF8, _QUOTED, _ESCAPED, _BYTES = "utf-8", "quoted", "escaped", "bytes"
_ENCODINGS = {
    **dict.fromkeys(("latin1", "latin-1", "iso-8859-1", "iso8859-1"), "latin-1"),
    **dict.fromkeys(("utf8", "utf-8"), "utf-8"),
    **dict.fromkeys(("ascii", "us-ascii"), "ascii"),
}


class _Text(str):
    """A string of the pickle that may name a global, and its place."""

    __slots__ = ("blob",)
    blob: Blob


@dataclass(slots=True, eq=False)
class Blob:
    """Bytes or text of a pickle: where they are, how they are spelled there, and how text was encoded, if it was."""

    start: int
    stop: int
    spelling: str = _BYTES
    encoding: str | None = None

    def content(self, data: bytes) -> bytes | None:
        """Return the bytes that a function gets; None if this is text, or cannot be encoded."""
        raw = data[self.start : self.stop]
        if self.spelling == _BYTES:
            return raw
        if self.encoding is None:
            return None
        try:
            text = _decoded(raw, self.spelling)
            # The caller's choice decides which text the bytes of Python 2 are.
            return text.encode(self.encoding) if self.spelling in (_UTF8, _ESCAPED) or text.isascii() else None
        except ValueError:
            return None


@dataclass(slots=True)
class TracedName:
    """A global that Python would import, whether it would be called or changed, and how often it is used.

    ``loads`` counts the calls of a function that unpickles bytes of this pickle, which are among its ``loaded``.
    """

    position: int
    module: str
    name: str
    called: bool = False
    changed: bool = False
    uses: int = 1
    loads: int = 0


@dataclass(slots=True)
class Trace:
    """What Python would do: ``names`` in order, ``end`` where it stops, and whether that is at STOP.

    ``blobs`` are the places of all strings, ``loaded`` those that are unpickled, with their pickle. ``is_cut`` is set
    where only the end of the data stopped it, ``is_ambiguous`` where Python's unpicklers read different things,
    ``frame_end`` where a frame goes on behind STOP.
    """

    names: list[TracedName] = field(default_factory=list)
    end: int = 0
    is_whole: bool = False
    is_cut: bool = False
    is_ambiguous: bool = False
    blobs: list[tuple[int, int]] = field(default_factory=list)
    loaded: list[tuple[bytes, Blob]] = field(default_factory=list)
    frame_end: int = 0


def trace_all(
    data: bytes, *, foreign: bool = False, persistent: bool = True, most: int | None = None
) -> Iterator[Trace]:
    """Trace the pickles that follow one another, up to ``most`` of them or to one that does not end with STOP."""
    position, done = 0, 0
    while position < len(data) and (most is None or done < most):
        trace = trace_pickle(data, position, foreign=foreign, persistent=persistent)
        yield trace
        if not trace.is_whole:
            return
        if position < trace.end < trace.frame_end < len(data):
            yield trace_pickle(data, trace.frame_end, foreign=foreign, persistent=persistent)
        position, done = trace.end, done + 1


def trace_pickle(data: bytes, start: int = 0, *, foreign: bool = False, persistent: bool = True) -> Trace:
    """Follow the pickle at ``start``; without ``persistent``, a persistent id is an error, as for `pickle.load`.

    With ``foreign``, the bytes do not begin like a pickle of today: names that no module has, such as those in a text
    that begins with ``class``, are errors.

    >>> [(each.module, each.name, each.called) for each in trace_pickle(b"cos\\nsystem\\n(S'id'\\ntR.").names]
    [('os', 'system', True)]
    """
    trace, *others = trace_ways(data, start, foreign=foreign, persistent=persistent)
    for other in others:
        trace.names += other.names
        trace.loaded += other.loaded
        trace.is_cut |= other.is_cut
    trace.is_ambiguous |= bool(others)
    return trace


def trace_ways(data: bytes, start: int = 0, *, foreign: bool = False, persistent: bool = True) -> list[Trace]:
    """Follow the pickle in each way in which Python reads it: as bytes, and as a file if that differs.

    A file of C's unpickler loses the end of a frame where an argument crosses it: these bytes are taken out.
    """
    traces: list[Trace] = []
    frames: dict[int, int] = {}
    while True:
        trace = Trace(end=start)
        machine = _Machine(data, trace, foreign, persistent, frames)
        try:
            machine.follow(start)
        except (_CutError, struct.error):
            trace.is_cut = True
        except (_StopError, IndexError, ValueError):  # An empty stack; a text that cannot be decoded.
            pass
        crossing = machine.crossing or (None if trace.is_whole else machine.find_crossing(trace.end))
        trace.loaded += [(data, blob) for blob in machine.loaded]
        traces.append(trace)
        trace.is_ambiguous |= crossing is not None
        if crossing is None or len(traces) == _MAX_WAYS:
            return traces
        frame, at, stop = crossing
        # The frames before this one end where they did.
        frames = {**{begin: end for begin, end in frames.items() if begin < frame}, frame: at}
        data = data[:at] + data[stop:]


class _StopError(Exception):
    """Python would raise an error here."""


class _CutError(Exception):
    """The data end here."""


class _Machine:
    """One pickle that is followed."""

    def __init__(self, data: bytes, trace: Trace, foreign: bool, persistent: bool, frames: dict[int, int]) -> None:
        self._data = data
        self._trace = trace
        self._foreign = foreign
        self._persistent = persistent
        self._frames = frames
        self._frame = self._frame_end = 0
        self.loaded: list[Blob] = []
        self.crossing: tuple[int, int, int] | None = None
        """The first frame whose end is crossed, where its reader stopped, and where the frame ends."""

    # One branch per opcode, in one loop: a function for each would hide the order in which they are checked.
    def follow(self, position: int) -> None:  # noqa: C901
        """Follow the opcodes; return at STOP, raise where Python would."""
        data, trace = self._data, self._trace
        size = len(data)
        stack: list[Any] = []
        marks: list[list[Any]] = []
        memo: dict[int, Any] = {}
        frame_end = 0
        while True:
            if trace.end < frame_end < position:
                self.crossing = self.crossing or self.find_crossing(trace.end)
            trace.end = position
            if position >= size:
                raise _CutError
            op = data[position]
            position += 1
            # The memo's opcodes are half of a checkpoint's pickle: they come first, and no function is called.
            if op == 0x72:  # LONG_BINPUT
                (key,) = _U32(data, position)
                position += 4
                memo[key] = stack[-1]
            elif op == 0x68 or op == 0x71:  # BINGET, BINPUT
                if position == size:
                    raise _CutError
                key = data[position]
                position += 1
                if op == 0x71:
                    memo[key] = stack[-1]
                else:
                    stack.append(_used(_remembered(memo, key)))
            elif op in _FIXED:
                position += _FIXED[op]
                stack.append(_DATA)
            elif op == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif op == 0x6A:  # LONG_BINGET
                (key,) = _U32(data, position)
                position += 4
                stack.append(_used(_remembered(memo, key)))
            elif op == 0x70 or op == 0x67:  # PUT, GET
                key, position = _written_key(data, position)
                if op == 0x67:
                    stack.append(_used(_remembered(memo, key)))
                elif key < 0:
                    raise _StopError
                else:
                    memo[key] = stack[-1]
            elif op in _COUNTED:
                begin, position = _counted(data, op, position)
                stack.append(self._string(op, begin, position))
            elif op in _PLAIN:
                stack.append(_DATA)
            elif op in _EMPTY:
                stack.append(_ITEMS)
            elif op == 0x29:  # EMPTY_TUPLE
                stack.append(())
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
                    stack.append(items if op == 0x74 else _ITEMS)
                elif op != 0x31:
                    _change(stack)
            elif op in (0x52, 0x81, 0x92):  # REDUCE, NEWOBJ, NEWOBJ_EX
                if op == 0x92:
                    stack.pop()
                args = stack.pop()
                stack[-1] = self._called(stack[-1], args)
            elif op == 0x63 or op == 0x69:  # GLOBAL, INST
                module, position = _last_line(data, position)
                name, position = _last_line(data, position)
                named = self._named(_decoded(module, _UTF8), _decoded(name, _UTF8))
                if op == 0x69:
                    stack = _below_mark(marks)
                    named.called = True
                stack.append(named if op == 0x63 else _OBJECT)
            elif op == 0x93:  # STACK_GLOBAL
                name, module = stack.pop(), stack.pop()
                if any(part is _DATA or part is _ITEMS or isinstance(part, tuple) for part in (name, module)):
                    raise _StopError
                stack.append(self._named(_known(module), _known(name)))
            elif op == 0x6F:  # OBJ
                items, stack = tuple(stack), _below_mark(marks)
                if not items:
                    raise _StopError
                stack.append(self._called(items[0], items[1:]))
            elif op in _EXTENSIONS:
                code = int.from_bytes(data[position : position + _EXTENSIONS[op]], "little", signed=op == 0x84)
                position += _EXTENSIONS[op]
                if position > len(data):
                    raise _CutError
                if code <= 0:
                    raise _StopError
                trace.names.append(TracedName(trace.end, "copyreg", f"extension {code}"))
                stack.append(trace.names[-1])
            elif op in _POPS:
                if len(stack) <= _POPS[op]:
                    raise _StopError
                del stack[-_POPS[op] :]
                _change(stack)
            elif op in b"ILFSV":
                begin = position
                line, position = _line(data, position)
                stack.append(self._line_string(op, begin, line) if op in b"SV" else _DATA)
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
            elif op == _FRAME:
                (length,) = _U64(data, position)
                position += 8
                if length > sys.maxsize:
                    raise _StopError
                if not position + length <= frame_end:
                    self.crossing = self.crossing or self.find_crossing(trace.end)
                    frame_end = self._frames.get(position, position + length)
                    self._frame, self._frame_end = position, frame_end
            elif op == 0x98:  # READONLY_BUFFER
                if stack[-1] is _DATA or stack[-1] is _ITEMS or isinstance(stack[-1], tuple):
                    raise _StopError
            elif op in b"PQ" and self._persistent:
                if op == 0x50:
                    _, position = _last_line(data, position)
                else:
                    stack.pop()
                stack.append(_OBJECT)
            elif op == 0x2E:  # STOP
                if not stack:
                    raise _StopError
                trace.end, trace.is_whole = position, True
                if position < frame_end:
                    trace.frame_end, trace.is_ambiguous = frame_end, True
                return
            else:
                raise _StopError

    def find_crossing(self, at: int) -> tuple[int, int, int] | None:
        """Return the frame whose end an argument of the opcode at ``at`` crosses, where, and where the frame ends."""
        data, position, frame_end = self._data, at + 1, self._frame_end
        if not at < frame_end < len(data):
            return None
        for length in _reads(data, position):
            if position < frame_end < position + length:
                return self._frame, position, frame_end
            position += length
        return None

    def _string(self, op: int, begin: int, end: int) -> Any:
        if op in _NUMBERS:
            return _DATA
        if end - begin >= _MIN_EMBEDDED:
            self._trace.blobs.append((begin, end))
        if op in _RAW:
            return Blob(begin, end)
        # A str of Python 2 is decoded as the caller says; NumPy and torch let him choose.
        spelling = _UTF8 if op in _TEXTS else "latin-1"
        return self._text(Blob(begin, end, spelling), self._data[begin:end])

    def _line_string(self, op: int, begin: int, line: bytes) -> Any:
        spelling = _ESCAPED if op == 0x56 else _QUOTED
        blob = Blob(begin, begin + len(line), spelling)
        if op == 0x53 and (len(line) < 2 or line[:1] != line[-1:] or line[:1] not in b"'\""):
            raise _StopError
        return self._text(blob, line)

    def _text(self, blob: Blob, raw: bytes) -> Any:
        if len(raw) > 6 * _MAX_NAME:  # a character is at most six bytes: \uXXXX
            return blob
        text = _Text(raw, "ascii") if blob.spelling == _UTF8 and raw.isascii() else _Text(_decoded(raw, blob.spelling))
        text.blob = blob
        return text if len(text) <= _MAX_NAME else blob

    def _named(self, module: str, name: str) -> TracedName:
        trace = self._trace
        if self._foreign and UNKNOWN not in (module, name):
            if not _DOTTED.fullmatch(module):
                raise _StopError
            if not _DOTTED.fullmatch(name):  # Python imports the module before it looks for the name.
                if module.partition(".")[0] in sys.stdlib_module_names:
                    trace.names.append(TracedName(trace.end, module, name))
                raise _StopError
        trace.names.append(TracedName(trace.end, module[:_MAX_NAME], name[:_MAX_NAME]))
        return trace.names[-1]

    def _called(self, function: Any, args: Any) -> Any:
        if function is _DATA or function is _ITEMS or args is _DATA or isinstance(function, (tuple, str, Blob)):
            raise _StopError  # Python cannot call it.
        if not isinstance(function, TracedName):
            return _OBJECT
        function.called = True
        if not isinstance(args, tuple) or not args:
            return _OBJECT
        known = (function.module, function.name)
        if known == ("_codecs", "encode"):
            return _encoded(*args)
        first = args[0]
        if (
            known == LOADS_PICKLE
            and isinstance(first, Blob)
            and (first.spelling == _BYTES or first.encoding is not None)
        ):
            function.loads += 1
            self.loaded.append(first)
        return _OBJECT


def _reads(data: bytes, position: int) -> Iterator[int]:
    """Yield the lengths of the arguments before which a reader in C may drop the rest of a frame."""
    op = data[position - 1]
    for _ in range(_LINES.get(op, 0)):
        end = data.find(b"\n", position) + 1 or len(data) + 1
        yield end - position
        position = end
    width = _COUNTED.get(op) or _WIDTHS.get(op, 0)
    yield width
    # Bytes are copied from a frame and from what follows it, and nothing is dropped.
    if op == _FRAME or (op in _COUNTED and op not in _RAW):
        yield int.from_bytes(data[position : position + width], "little")


def _below_mark(marks: list[list[Any]]) -> list[Any]:
    if not marks:
        raise _StopError
    return marks.pop()


def _change(stack: list[Any]) -> None:
    """Note that the value on top gets a state or items."""
    if not stack:
        raise _StopError
    if type(stack[-1]) is TracedName:
        stack[-1].changed = True


def _used(token: Any) -> Any:
    if type(token) is TracedName:
        token.uses += 1
    return token


def _known(part: Any) -> str:
    """Return a string if every reader decodes it in the same way."""
    is_certain = isinstance(part, _Text) and (part.isascii() or part.blob.spelling in (_UTF8, _ESCAPED))
    return str(part) if is_certain else UNKNOWN


def _encoded(text: Any = None, encoding: Any = "utf-8", *errors: Any) -> Any:
    """Return the bytes that ``_codecs.encode`` makes of a text, which is how protocol 2 spells bytes."""
    blob = text.blob if isinstance(text, _Text) else text
    known = _ENCODINGS.get(str(encoding).lower()) if isinstance(encoding, str) else None
    if errors or known is None or not isinstance(blob, Blob) or blob.spelling == _BYTES or blob.encoding is not None:
        return _OBJECT
    return Blob(blob.start, blob.stop, blob.spelling, known)


def _decoded(raw: bytes, spelling: str) -> str:
    """Return a text as Python decodes it; ValueError where Python raises an error."""
    if spelling == _ESCAPED:
        return codecs.raw_unicode_escape_decode(raw)[0]
    if spelling == _QUOTED:
        return bytes(codecs.escape_decode(raw[1:-1])[0]).decode("latin-1")
    return raw.decode("utf-8", "surrogatepass") if spelling == _UTF8 else raw.decode("latin-1")


def _line(data: bytes, position: int) -> tuple[bytes, int]:
    end = data.find(b"\n", position)
    if end < 0:
        raise _CutError
    return data[position:end], end + 1


def _last_line(data: bytes, position: int) -> tuple[bytes, int]:
    """Return a line; of the last one, whose end is missing, all but a character, as Python does."""
    end = data.find(b"\n", position)
    if end < 0:
        return data[position : max(len(data) - 1, position)], len(data)
    return data[position:end], end + 1


def _remembered(memo: dict[int, Any], key: int) -> Any:
    if key not in memo:
        raise _StopError
    return memo[key]


def _written_key(data: bytes, position: int) -> tuple[int, int]:
    line, position = _line(data, position)
    return int(line.partition(b"\0")[0]), position


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
