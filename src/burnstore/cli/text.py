"""Make text from files safe to print, measure and shorten it for a terminal, and format numbers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import counted as counted

if TYPE_CHECKING:
    from ..tensor.dtype import DType

SCHEMA = 1
"""The version of every verb's JSON document."""

_MOST_MARKS = 3
_MOST_EXACT_DIGITS = 10  # of integers in tables; --json has every digit
# Letters and symbols that are invisible; in other categories such characters are marks, or not printable.
_BLANKS = frozenset("\u115f\u1160\u3164\uffa0\u2800")
_INVISIBLE_MARKS = (("\u034f", "\u034f"), ("\u17b4", "\u17b5"), ("\u180b", "\u180f"), ("\ufe00", "\ufe0f"))


def escape(text: str) -> str:
    r"""Return text as one line of visible characters; no two texts have the same result.

    Control, format and bidirectional characters, blanks other than the space, invisible characters and excess marks
    become Python escapes. So does everything that is not ASCII in text that is not in normal form (NFC), because it
    looks like the normal form. Empty text, and text that begins or ends with a space or a quote, is quoted.

    >>> print(escape("layer.weight"), escape("a\x1b[31mb\n"), escape("c:\\x"), escape("e\u0301"), escape(" pad"))
    layer.weight a\x1b[31mb\n c:\\x e\u0301 " pad"
    """
    shown = text
    if not (text.isascii() and text.isprintable()) or "\\" in text:
        shown = _escaped(text)
    if not text or text[0] in ' "' or text[-1] in ' "':
        shown = '"' + shown.replace('"', '\\"') + '"'
    return shown


def _escaped(text: str) -> str:
    import unicodedata

    is_normal = unicodedata.is_normalized("NFC", text)
    pieces = []
    marks = _MOST_MARKS  # in a row; at the maximum after a character that cannot have a mark
    for character in text:
        is_mark = not character.isascii() and unicodedata.category(character) in ("Mn", "Me")
        marks = marks + 1 if is_mark else 0
        if (
            character == "\\"
            or not character.isprintable()
            or character in _BLANKS
            or not (is_normal or character.isascii())
            or (is_mark and (marks > _MOST_MARKS or _is_invisible_mark(character)))
        ):
            pieces.append(_escape_one(character))
            marks = _MOST_MARKS
        else:
            pieces.append(character)
            if character == " ":
                marks = _MOST_MARKS
    return "".join(pieces)


def _is_invisible_mark(character: str) -> bool:
    return any(first <= character <= last for first, last in _INVISIBLE_MARKS) or character >= "\U000e0000"


def _escape_one(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def shell_word(text: str) -> str:
    r"""Return text as typed, in quotes where a shell needs them.

    >>> print(shell_word("decoder"), shell_word(r"^conv\.|gamma$"))
    decoder '^conv\.|gamma$'
    """
    from shlex import quote  # not at import: few outputs show what was typed

    return quote(escape_controls(text))


def escape_controls(message: str) -> str:
    r"""Return a message with everything escaped that a terminal could take as a command.

    >>> print(escape_controls("no such file: \x1b[2J"))
    no such file: \x1b[2J
    """
    if message.isprintable():
        return message
    return "".join(c if c.isprintable() else _escape_one(c) for c in message)


def width(text: str) -> int:
    """Return how many cells of a terminal the text takes.

    >>> width("weight"), width("重み"), width("🔥")
    (6, 4, 2)
    """
    if text.isascii():
        return len(text)
    return sum(map(_CELLS.__getitem__, text))


class _Cells(dict[str, int]):
    """How many cells each character takes, computed on first use."""

    def __missing__(self, character: str) -> int:
        import unicodedata

        if unicodedata.category(character) in ("Mn", "Me"):
            cells = 0
        else:
            cells = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        self[character] = cells
        return cells


_CELLS = _Cells()


def shorten(text: str, room: int, ellipsis: str = "…") -> str:
    """Return the text, shortened in the middle if it is wider than ``room`` cells.

    >>> shorten("encoder.layers.11.attention.query.weight", 20)
    'encoder.l…ery.weight'
    """
    if width(text) <= room:
        return text
    keep = room - width(ellipsis)
    if keep <= 0:
        return ellipsis[: max(room, 0)]
    head = _prefix(text, keep // 2)
    tail = _prefix(text[::-1], keep - width(head))[::-1]
    return head + ellipsis + tail


def _prefix(text: str, room: int) -> str:
    for end, character in enumerate(text):
        room -= _CELLS[character]
        if room < 0:
            return text[:end]
    return text


def size(nbytes: int, gap: str = " ") -> str:
    """Return a number of bytes in a readable unit.

    >>> size(0), size(1023), size(1536), size(5 << 40)
    ('0 B', '1023 B', '1.5 KiB', '5.0 TiB')
    """
    amount, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if amount < 1023.95 or (unit == "B" and nbytes < 1024):
            break
        amount, unit = amount / 1024, larger
    return f"{nbytes}{gap}B" if unit == "B" else f"{amount:.1f}{gap}{unit}"


def figure(value: Any, digits: int = 4) -> str:
    """Return a number for a table: integers in full up to ten digits, other numbers shortened.

    >>> figure(None), figure(12345), figure(0.123456)
    ('-', '12345', '0.1235')
    """
    if value is None:
        return "-"
    exact = isinstance(value, int) and abs(value) < 10**_MOST_EXACT_DIGITS
    return str(value) if exact else f"{float(value):.{digits}g}"


def shape_label(shape: Iterable[int]) -> str:
    """Return a shape without spaces, so that the columns of a table can be split at spaces."""
    return f"[{','.join(map(str, shape))}]"


def dtype_label(dtype: DType) -> str:
    """Return a dtype's name, with the value type of a quantized one."""
    return dtype.name if dtype.scheme is None else f"{dtype.name}({dtype.scheme.value})"


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document; it is ASCII, so that no terminal acts on names in it."""
    import json

    from burnstore import __version__

    print(json.dumps({"burnstore": __version__, "schema": SCHEMA, **document}, allow_nan=False))


def can_show(text: str, stream: Any = None) -> bool:
    """Return whether the encoding of a stream (default: stdout) has all of these characters."""
    try:
        text.encode((stream or sys.stdout).encoding or "utf-8")  # A StringIO has no encoding.
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Screen:
    """The destination of the output; ``columns`` is None unless it is a terminal."""

    columns: int | None = None
    colour: bool = False
    ellipsis: str = "…"

    @classmethod
    def of_stdout(cls) -> Screen:
        """Return the screen of stdout."""
        stream = sys.stdout
        if not stream.isatty():
            return cls()
        return cls(terminal_columns(), _colour_wanted(), "…" if can_show("…") else "...")

    def paint(self, text: str, style: str) -> str:
        """Return the text in a style (SGR parameters), if this screen has colours."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.colour and style and text else text


def terminal_columns(stream: Any = None) -> int:
    """Return the width of the terminal, 80 if there is none; like shutil, whose import is slow."""
    try:
        columns = int(os.environ.get("COLUMNS", ""))
    except ValueError:
        columns = 0
    if columns <= 0:
        try:
            columns = os.get_terminal_size((stream or sys.stdout).fileno()).columns
        except (OSError, ValueError, AttributeError):
            columns = 0
    return columns if columns > 0 else 80


def _colour_wanted() -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb"):
        return os.name == "nt" and not os.environ.get("NO_COLOR") and "WT_SESSION" in os.environ
    return True
