"""Text from files, made safe to print and measured as a terminal shows it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

_MOST_MARKS = 3
# Letters and symbols that show as nothing or as a blank; the invisible ones of other categories are not printable, or
# are marks.
_BLANKS = frozenset("\u115f\u1160\u3164\uffa0\u2800")
_INVISIBLE_MARKS = (("\u034f", "\u034f"), ("\u17b4", "\u17b5"), ("\u180b", "\u180f"), ("\ufe00", "\ufe0f"))


def escape(text: str) -> str:
    r"""Text in one line of visible characters, complete; no two texts come out alike.

    Control, format and bidirectional characters, blanks other than the space, characters that show as nothing and marks
    that would heap up or change their neighbours become escapes as in Python; so does all that is not ASCII in text
    that Unicode has a shorter form of (NFC), since the two look alike. Text that is empty, or would not show where it
    begins or ends, is quoted.

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
    marks = _MOST_MARKS  # in a row; full where there is nothing that a mark could belong to
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


def escape_controls(message: str) -> str:
    r"""A message of ours that may quote foreign text: whatever a terminal could take as a command is escaped.

    >>> print(escape_controls("no such file: \x1b[2J"))
    no such file: \x1b[2J
    """
    if message.isprintable():
        return message
    return "".join(c if c.isprintable() else _escape_one(c) for c in message)


def width(text: str) -> int:
    """How many cells of a terminal the text takes.

    >>> width("weight"), width("重み"), width("🔥")
    (6, 4, 2)
    """
    if text.isascii():
        return len(text)
    return sum(map(_CELLS.__getitem__, text))


class _Cells(dict[str, int]):
    """How many cells each character takes, found out when it is first met."""

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
    """The text, if it is wider than ``room`` cells with its middle left out: beginnings and ends of names tell most.

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
    """A number of bytes for people.

    >>> size(0), size(1023), size(1536), size(5 << 40)
    ('0 B', '1023 B', '1.5 KiB', '5.0 TiB')
    """
    amount, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if amount < 1023.95 or (unit == "B" and nbytes < 1024):
            break
        amount, unit = amount / 1024, larger
    return f"{nbytes}{gap}B" if unit == "B" else f"{amount:.1f}{gap}{unit}"


def counted(count: int, noun: str) -> str:
    """So many of something.

    >>> counted(1, "tensor"), counted(2000, "tensor")
    ('1 tensor', '2,000 tensors')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def can_show(text: str) -> bool:
    """Whether stdout has all of these characters."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")  # a text in memory has no encoding
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Screen:
    """What is known of the place that the output goes to; ``columns`` is None unless that is a terminal."""

    columns: int | None = None
    colour: bool = False
    ellipsis: str = "…"

    @classmethod
    def of_stdout(cls) -> Screen:
        """The screen behind stdout."""
        stream = sys.stdout
        if not stream.isatty():
            return cls()
        return cls(terminal_columns(), _colour_wanted(), "…" if can_show("…") else "...")

    def paint(self, text: str, style: str) -> str:
        """The text in a style (the parameters of an SGR sequence), if this screen shows any."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.colour and style and text else text


def terminal_columns() -> int:
    """The width of the terminal, 80 where there is none. As shutil has it, whose import would take a while."""
    try:
        columns = int(os.environ.get("COLUMNS", ""))
    except ValueError:
        columns = 0
    if columns <= 0:
        try:
            columns = os.get_terminal_size(sys.stdout.fileno()).columns
        except (OSError, ValueError, AttributeError):
            columns = 0
    return columns if columns > 0 else 80


def _colour_wanted() -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb"):
        return os.name == "nt" and not os.environ.get("NO_COLOR") and "WT_SESSION" in os.environ
    return True
