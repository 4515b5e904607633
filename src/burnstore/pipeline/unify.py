"""Unify: the one place where layouts meet, which decides to convert, to refuse, or to note.

A layout is ``torch``, ``burn``, another framework's name, or unknown (None). Only the first two are converted into each
other. Unknown equals nothing, not even another unknown: of two matrices of unknown layout one may be the transpose.

    meeting                      torch and burn   known and unknown     all unknown           another framework's
    load: a source, a model      convert          prove, see `layouts`  prove                 refuse
    write: tensors of one list   refuse           unknown, noted        unknown               refuse
    overlay: sources of a merge  convert          refuse                unknown, noted        refuse
    blend: their arithmetic      convert          refuse                refuse if square      refuse
    compare: sides of a diff     convert          as stored, noted      noted if square       refuse

Another framework's layout is refused beside any other known one; tensors that all have it are kept unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, NoReturn

from ..errors import ModelError, printable
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..transforms.layout import LAYOUTS, Layout

Meeting = Literal["load", "write", "overlay", "blend", "compare"]

_MOST_SHOWN = 3


class Unified(NamedTuple):
    """What becomes of tensors that meet: their common layout, whether some are converted to it, and a note."""

    layout: str | None
    is_converted: bool = False
    note: Note | None = None

    @property
    def notes(self) -> list[Note]:
        """The note as a list."""
        return [] if self.note is None else [self.note]


def convertible(layout: str | None) -> Layout | None:
    """Return a layout that can be converted into another; None for an unknown one and other frameworks'.

    >>> convertible("torch"), convertible("mlx"), convertible(None)
    ('torch', None, None)
    """
    return next((known for known in LAYOUTS if known == layout), None)


def hides_transpose(tensors: Mapping[str, TensorSnapshot], others: Mapping[str, TensorSnapshot]) -> bool:
    """Return whether two sides have a square matrix of one name: a transposed one would look the same.

    All other matrices of two layouts have different shapes, and vectors have no axes to exchange.
    """
    return any(
        len(shape := tensor.shape) == 2 and shape[0] == shape[1] > 1 and name in others
        for name, tensor in tensors.items()
    )


def unify(
    sides: Iterable[tuple[str, str | None]], meeting: Meeting, *, keep: bool = False, is_clear: bool = False
) -> Unified:
    """Decide what happens where tensors meet: each side is a name and a layout, see the table of this module.

    The common layout is the first side's; for a diff it is Burn's, into which everything can be converted. With
    ``keep`` the caller has asked for names and axes unchanged; ``is_clear`` says that no tensor of one side could be
    the transpose of another's unnoticed, see `hides_transpose`. Raises ModelError where no decision is safe.

    >>> unify([("a.pt", "torch"), ("b.bpk", "burn")], "overlay").is_converted
    True
    >>> unify([("a.npz", "torch"), ("b.npz", None)], "compare").note
    "b.npz does not state its layout; compared as torch's, like a.npz"
    """
    first: dict[str | None, str] = {}
    silent: list[str] = []
    for name, layout in sides:
        first.setdefault(layout, name)
        if layout is None and len(silent) < _MOST_SHOWN:
            silent.append(name)
    stated = [layout for layout in first if layout is not None]
    foreign = [layout for layout in stated if layout not in LAYOUTS]
    if foreign and len(stated) > 1 and not (keep and meeting == "compare"):
        _refuse_foreign(first, stated, foreign[0])
    if len(stated) > 1 and (meeting == "write" or (keep and meeting != "compare")):
        raise ModelError(
            f"the tensors have different layouts: {printable(first[stated[0]])!r} has {stated[0]}'s, "
            f"{printable(first[stated[1]])!r} {stated[1]}'s",
            hint="convert one of their files with burnstore.convert first, or write them into separate files",
        )
    if silent and stated:
        return _known_and_unknown(first, stated[0], meeting)
    if silent:
        return Unified(None) if is_clear else _all_unknown(list(map(printable, silent)), meeting, keep=keep)
    if len(stated) > 1:
        return Unified("burn" if meeting == "compare" else stated[0], is_converted=not keep)
    return Unified(stated[0] if stated else None)


def _refuse_foreign(first: dict[str | None, str], stated: list[str], foreign: str) -> NoReturn:
    other = next(layout for layout in stated if layout != foreign)
    known = convertible(other) or "torch"
    raise ModelError(
        f"it has {printable(foreign)}'s layout, and {printable(first[other])} {printable(other)}'s: burnstore converts "
        "only between torch's and burn's",
        path=first[foreign],
        hint=f'pass layout="{known}" if its tensors have the names and axes of {known}',
    )


def _known_and_unknown(first: dict[str | None, str], known: str, meeting: Meeting) -> Unified:
    silent, other = first[None], first[known]
    if meeting == "write":
        text = f"the layout is recorded as unknown: {other!r} has {known}'s, {silent!r} states none; pass layout="
        return Unified(None, note=Note("layout", printable(text), silent))
    if meeting == "compare":
        text = f"{silent} does not state its layout; compared as {known}'s, like {other}"
        return Unified(known, note=Note("layout", printable(text), silent))
    raise ModelError(
        f"the file does not state its layout; {printable(other)} has {known}'s",
        path=silent,
        hint=f'pass layout="{known}" if it has the same',
    )


def _all_unknown(silent: list[str], meeting: Meeting, *, keep: bool) -> Unified:
    if len(silent) < 2 or meeting in ("load", "write"):
        return Unified(None)
    if meeting == "blend" and not keep:
        raise ModelError(
            f"neither this source nor {silent[1]} states its layout: one may be the transpose of the other",
            path=silent[0],
            hint='pass layout="torch" or layout="burn", or keep_layout=True to blend names and axes unchanged',
        )
    done = {"compare": "compared as stored", "blend": "blended as stored"}.get(meeting, "taken as stored")
    text = f"{' and '.join(silent[:2])} do not state their layout: {done}"
    return Unified(None, note=Note("layout", text, silent[0]))
