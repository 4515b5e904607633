"""The names in a pickle that cannot be followed: every global that its opcodes spell, one opcode after the other.

The machine of `pickle.py` stops where a pickle breaks its rules. Python's own is less strict, and may have run by then
what precedes, or follows, the place of an error. Here opcodes are only told apart, not obeyed, so only bytes that are
no opcode stop the walk. A name that is not given by two strings right before it is `UNKNOWN`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

UNKNOWN = "?"

_FIXED = {
    **dict.fromkeys(b"(.012abd}el]oQRs)tuN", 0),
    **dict.fromkeys((0x81, *range(0x85, 0x8A), *range(0x8F, 0x95), 0x97, 0x98), 0),
    **dict.fromkeys((0x80, 0x4B, 0x71, 0x68, 0x82), 1),  # PROTO, BININT1, BINPUT, BINGET, EXT1
    **dict.fromkeys((0x4D, 0x83), 2),  # BININT2, EXT2
    **dict.fromkeys((0x4A, 0x72, 0x6A, 0x84), 4),  # BININT, LONG_BINPUT, LONG_BINGET, EXT4
    **dict.fromkeys((0x47, 0x95), 8),  # BINFLOAT, FRAME
}
_LINES = {**dict.fromkeys(b"ILFSVPgp", 1), **dict.fromkeys(b"ci", 2)}
_COUNTED = {0x55: 1, 0x43: 1, 0x8C: 1, 0x8A: 1, 0x54: 4, 0x42: 4, 0x58: 4, 0x8B: 4, 0x8D: 8, 0x8E: 8, 0x96: 8}
_TEXTS = frozenset((0x55, 0x8C, 0x54, 0x58, 0x8D))
_PUTS = frozenset(b"qrp") | {0x94}
_SILENT = _PUTS | {0x80, 0x95}  # These leave the stack unchanged.
_STOP, _STACK_GLOBAL, _MEMOIZE = 0x2E, 0x93, 0x94
_GLOBAL, _INST = b"ci"
_EXTENSIONS = frozenset((0x82, 0x83, 0x84))
_LONGEST_NAME = 512
_LONGEST_LINE = 1 << 16

_EMBEDDED = re.compile(rb"(?:\x80[\x02-\x05]|PK\x03\x04|\xc2\x80[\x02-\x05])")


@dataclass(frozen=True, slots=True)
class SpelledName:
    """A global as a pickle spells it, and its position."""

    position: int
    module: str
    name: str


def spelled_names(data: bytes) -> tuple[list[SpelledName], bool]:
    """Return every global in a series of pickles, and whether all of the bytes were opcodes.

    >>> spelled_names(b"cos\\nsystem\\n(S'id'\\ntR.")
    ([SpelledName(position=0, module='os', name='system')], True)
    """
    found: list[SpelledName] = []
    memo: dict[int, str | None] = {}
    last: list[str | None] = [None, None]  # What the two latest opcodes pushed, if it was text.
    position = 0
    while position < len(data):
        at, op = position, data[position]
        end = _end_of(data, op, position + 1)
        if end is None:
            return found, False
        argument = data[at + 1 + _COUNTED.get(op, 0) : end]
        if op in (_GLOBAL, _INST):
            module, name = argument.split(b"\n")[:2]
            _note(found, at, _decoded(module), _decoded(name))
        elif op == _STACK_GLOBAL:
            _note(found, at, last[0] or UNKNOWN, last[1] or UNKNOWN)
        elif op in _EXTENSIONS:
            found.append(SpelledName(at, "copyreg", f"extension {int.from_bytes(argument, 'little')}"))
        if op in _PUTS:
            memo[len(memo) if op == _MEMOIZE else _number(op, argument)] = last[1]
        elif op not in _SILENT:
            last = [last[1], _pushed(op, argument, memo)]
        if op == _STOP:
            memo, last = {}, [None, None]
        position = end
    return found, True


def _end_of(data: bytes, op: int, start: int) -> int | None:
    """Return where an opcode ends whose argument is at ``start``; None if it is no opcode, or is cut."""
    if op in _FIXED:
        end = start + _FIXED[op]
    elif op in _COUNTED:
        width = _COUNTED[op]
        if start + width > len(data):
            return None
        end = start + width + int.from_bytes(data[start : start + width], "little")
    elif op in _LINES:
        end = start
        for _ in range(_LINES[op]):
            end = data.find(b"\n", end, end + _LONGEST_LINE) + 1
            if not end:
                return None
    else:
        return None
    return end if end <= len(data) else None


def _pushed(op: int, argument: bytes, memo: dict[int, str | None]) -> str | None:
    if op in _TEXTS:
        return _decoded(argument)
    if op in b"SV":
        return _decoded(argument.rstrip(b"\n").strip(b"'\""))
    if op in b"hjg":
        return memo.get(_number(op, argument))
    return None


def _number(op: int, argument: bytes) -> int:
    if op not in b"gp":
        return int.from_bytes(argument, "little")
    line = argument.strip()
    return int(line) if line.isdigit() and len(line) < 20 else -1


def _decoded(raw: bytes) -> str:
    return raw[: _LONGEST_NAME + 1].decode("utf-8", "replace")


def _note(found: list[SpelledName], position: int, module: str, name: str) -> None:
    if len(module) <= _LONGEST_NAME and len(name) <= _LONGEST_NAME and (module + name).isprintable():
        found.append(SpelledName(position, module, name))


def embedded_files(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield strings in a pickle that are themselves a pickle or a zip, each with its position."""
    for match in _EMBEDDED.finditer(data, 1):
        start = match.start()
        for op, width in _COUNTED.items():
            head = start - width - 1
            if head < 0 or data[head] != op:
                continue
            length = int.from_bytes(data[start - width : start], "little")
            if len(match[0]) < length <= len(data) - start:
                inner = data[start : start + length]
                spelled = inner[:1] == b"\xc2"  # Bytes as Python 2 has them: characters below 256, in UTF-8.
                yield start, inner.decode("utf-8", "ignore").encode("latin-1", "ignore") if spelled else inner
