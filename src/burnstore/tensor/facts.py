"""Facts that a tensor carries besides its name, dtype and shape: that it is part of another, and what it depends on.

Most tensors have none: `TensorSnapshot` keeps None for them. A reader that knows such a fact puts `Facts` into its
table, and wraps the data of a piece in `PieceData`. The values of a piece are then never taken for those of the whole
tensor, whichever function reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from ..errors import UnsupportedError
from .data import Array, Shape, array_from_bytes, bytes_of_array
from .dtype import DType
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

    number: int | None = None
    """Which of the parts it is, where replicas are numbered too: no number may occur twice."""

    def refusal(self, path: str | None = None, tensor: str | None = None) -> UnsupportedError:
        """Return the error of an operation that needs the whole tensor."""
        return UnsupportedError(f"part of a tensor: {self.text}", path=path, tensor=tensor, hint=self.hint)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the numbers of a tensor are stored: in codes that mean nothing without their scales.

    >>> str(Scheme("FP8", ("m.weight", "m.weight_scale_inv"), "blocks of 128x128"))
    'FP8, blocks of 128x128, scales in m.weight_scale_inv'
    """

    name: str
    """The scheme in the word of its library, such as ``FP8`` or ``Q4_K``."""

    stored: tuple[str, ...]
    """The names of the tensors in the file that make up this one, the codes first."""

    detail: str = ""
    """What else the numbers depend on, such as the size of blocks."""

    @property
    def kind(self) -> str:
        """The name and the detail, which many tensors share."""
        return f"{self.name}, {self.detail}" if self.detail else self.name

    def __str__(self) -> str:
        return f"{self.kind}, scales in {', '.join(self.stored[1:])}" if len(self.stored) > 1 else self.kind


class Facts(NamedTuple):
    """The facts of one tensor."""

    piece: Piece | None = None
    scheme: Scheme | None = None
    """What the numbers depend on: a quantization scheme and the names of its scales; None if on nothing."""


class DecodedData(Data):
    """The values of a tensor that is stored in codes: decoded when they are read.

    A copy writes what is `stored` instead, so that it has the same codes and scales.
    """

    __slots__ = ()

    @property
    def stored(self) -> Sequence[Stored]:
        """The tensors of the file that are decoded, the codes first."""
        raise NotImplementedError

    def qfloat(self, *, is_transposed: bool) -> tuple[DType, Data] | None:
        """Return Burn's quantized dtype and its bytes for the same values, or for those of the transposed matrix.

        None where Burn has no such scheme.
        """
        return None


@dataclass(slots=True, eq=False)
class ValuesData(WrappedData):
    """Decoded values as numbers of their own: a copy writes them, and not what they are decoded from."""

    @property
    def streams(self) -> bool:
        return self.data.streams

    @property
    def in_source(self) -> bool:
        return self.data.in_source

    def window(self, start: int, stop: int) -> memoryview:
        return self.data.window(start, stop)

    def owned(self, start: int, stop: int) -> Array:
        return self.data.owned(start, stop)

    def fill(self, buffer: Array) -> None:
        self.data.fill(buffer)


@dataclass(slots=True, eq=False)
class DequantizedData(WrappedData):
    """The float32 values of a tensor of Burn's QFloat, which has its scales among its own bytes."""

    dtype: DType
    shape: Shape
    stored_bytes: int

    @property
    def in_source(self) -> bool:
        return self.data.in_source

    def window(self, start: int, stop: int) -> memoryview:
        raw = self.data.window(0, self.stored_bytes)
        return bytes_of_array(array_from_bytes(raw, self.dtype, self.shape))[start:stop]


class Stored(NamedTuple):
    """A tensor of a file that is part of a decoded one: codes, scales, offsets."""

    path: str
    dtype: DType
    shape: Shape
    data: Data
    nbytes: int


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
