"""A note: something in a result that is not an error but worth knowing, with a kind that programs can ask for."""

from __future__ import annotations

from typing import Literal

NoteKind = Literal[
    "part",  # the tensors are one part of the file; the rest was not read
    "unclear part",  # the file has several parts that may be the model
    "nameless",  # the file stores no names; tensors are numbered
    "left out",  # data of the source that no tensor of the result shows
    "filtered",  # left out because the filter does not match it
    "unmatched",  # a filter, a rename or another pattern that matched nothing
    "empty",  # there was nothing to do, as was allowed
    "names",  # how tensors got their names
    "layout",  # how the layout of a file was decided, and what a conversion did
    "filled",  # constants that stand for tensors which the source leaves out
    "tied",  # tensors that share their values
    "cast",  # values in another dtype
    "metadata",  # metadata or scalars that were not written
    "unknown",  # modules of unknown kind, or code of the model that was not run
    "code",  # code in a file that other programs would run
    "check",  # what a check did not cover
    "hint",  # what to do next
]


class Note(str):
    """A note for people, with its kind and its subject (a tensor, a pattern, a file) for programs.

    It is a string, so it prints and compares as its text; the library itself decides by ``kind`` alone.

    >>> note = Note("unmatched", "the filter's '^head' matched no parameter", "^head")
    >>> note, note.kind, note.subject
    ("the filter's '^head' matched no parameter", 'unmatched', '^head')
    >>> note.about("a.bpk"), note.about("a.bpk").kind
    ("a.bpk: the filter's '^head' matched no parameter", 'unmatched')
    """

    __slots__ = ("kind", "subject")

    kind: NoteKind
    subject: str | None

    def __new__(cls, kind: NoteKind, text: str, subject: str | None = None) -> Note:
        note = super().__new__(cls, text)
        note.kind, note.subject = kind, subject
        return note

    def __reduce__(self) -> tuple[type[Note], tuple[NoteKind, str, str | None]]:
        return Note, (self.kind, str(self), self.subject)

    def about(self, name: str) -> Note:
        """Return the note with the name of the file that it concerns before it."""
        return Note(self.kind, f"{name}: {self}", self.subject)


def as_note(text: str) -> Note:
    """Return a note, also of a string: a reader of another package may return strings.

    Such a string is a note about names, or about data that cannot be compared if it begins with ``left out:``.

    >>> as_note("left out: 'blob', an object").kind
    'left out'
    """
    if isinstance(text, Note):
        return text
    return Note("left out" if text.startswith("left out:") else "names", text)


def note_kind(text: str) -> NoteKind | None:
    """Return the kind of a note or a reason; None for a plain string."""
    return text.kind if isinstance(text, Note) else None
