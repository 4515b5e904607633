"""Facts that a tensor carries besides its name, dtype and shape: that it is part of another, and what it depends on.

Most tensors have none: `TensorSnapshot` keeps None for them. A reader that knows such a fact puts `Facts` into its
table, and wraps the data of a piece in `PieceData`. The values of a piece are then never taken for those of the whole
tensor, whichever function reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from ..errors import UnsupportedError
from .data import Array, Shape
from .sources import AxisSlice, Data, WrappedData

TOGETHER = "open all files of the checkpoint together: pass their folder, or a list of their paths"


@dataclass(frozen=True, slots=True)
class Piece:
    """The place of a tensor in the whole one that it is a part of.

    >>> Piece((10, 4), (0, 0), "DTensor 0 of 4, rows 0–2 of 10").refusal().message
    'part of a tensor: DTensor 0 of 4, rows 0–2 of 10'
    """

    global_shape: Shape | None
    """The shape of the whole tensor; None if the file does not state it."""

    offset: Shape | None
    """The index of the piece's first element in the whole tensor; None if the file does not state it."""

    text: str
    """What the piece is, in words, such as the rows of the whole tensor that it has."""

    hint: str = TOGETHER
    """What to do to get the whole tensor."""

    def refusal(self, path: str | None = None, tensor: str | None = None) -> UnsupportedError:
        """Return the error of an operation that needs the whole tensor."""
        return UnsupportedError(f"part of a tensor: {self.text}", path=path, tensor=tensor, hint=self.hint)


class Facts(NamedTuple):
    """The facts of one tensor."""

    piece: Piece | None = None
    scheme: Any = None
    """What the numbers depend on: a quantization scheme and the names of its scales; None if on nothing."""


@dataclass(slots=True, eq=False)
class PieceData(WrappedData):
    """The values of a piece: every read is refused, because a caller expects those of the whole tensor.

    `TensorSnapshot.local` gives the data within, to a caller that asks for the piece.
    """

    piece: Piece

    @property
    def in_source(self) -> bool:
        return self.data.in_source

    def window(self, start: int, stop: int) -> memoryview:
        self._refuse()

    def owned(self, start: int, stop: int) -> Array:
        self._refuse()

    def fill(self, buffer: Array) -> None:
        self._refuse()

    def range(self, start: int, nbytes: int) -> Data:
        self._refuse()

    def sliced(self, part: AxisSlice) -> Data:
        self._refuse()

    def transposed(self, rows: int, columns: int, width: int) -> Data:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise self.piece.refusal(self.data.file)


def describe_place(offset: Sequence[int], shape: Sequence[int], whole: Sequence[int] | None) -> str:
    """Describe a box in a tensor, as in ``rows 0–2 of 10``.

    >>> describe_place((0, 0), (3, 4), (10, 4)), describe_place((3, 2), (1, 2), (10, 4))
    ('rows 0–2 of 10', 'rows 3–3 of 10, columns 2–3 of 4')
    """
    names = ("rows", "columns") if len(shape) <= 2 else tuple(f"axis {axis}:" for axis in range(len(shape)))
    parts = []
    for axis, (first, extent) in enumerate(zip(offset, shape, strict=True)):
        total = None if whole is None else whole[axis]
        if total == extent and first == 0:
            continue
        of = "" if total is None else f" of {total}"
        parts.append(f"{names[axis]} {first}–{first + extent - 1}{of}" if extent else f"no {names[axis]}{of}")
    return ", ".join(parts) or "all of it"
