"""Image: sample a tensor as a small grid of values, which the page draws as a heat map."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass

import numpy as np

from ...errors import BurnstoreError
from ...tensor.data import Array
from ...tensor.dtype import Kind
from ...tensor.snapshot import TensorSnapshot

_READ_WHOLE = 1 << 20  # bytes; of larger tensors only some rows are read
_TAILS = (0.5, 99.5)  # percentiles: values beyond them share the last colours, so that an outlier does not hide others
_LEVELS = 254


@dataclass(frozen=True, slots=True)
class Image:
    """Values of a tensor, seen as rows of its first axis: every value if it is small, otherwise evenly spaced ones.

    ``pixels`` has a byte for each: 0 for NaN and infinities, else 1 for ``low`` and less up to 255 for ``high``.
    """

    height: int
    width: int
    rows: int
    columns: int
    low: float
    high: float
    pixels: bytes

    def to_list(self) -> list[object]:
        """Return the data for the page."""
        text = base64.b64encode(self.pixels).decode("ascii")
        return [self.height, self.width, self.rows, self.columns, self.low, self.high, text]


def image_of(snapshot: TensorSnapshot, most: int) -> Image | None:
    """Return an image of at most ``most`` rows and columns; None if no values can be shown.

    >>> found = image_of(TensorSnapshot.from_numpy("x", np.arange(6.0).reshape(2, 3)), 2)
    >>> found.height, found.width, found.columns, list(found.pixels)
    (2, 2, 3, [1, 64, 192, 255])
    """
    shape, dtype = snapshot.shape, snapshot.dtype
    rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (0, 0)
    if not rows or not columns or dtype.kind is Kind.COMPLEX:
        return None
    height, width = min(rows, most), min(columns, most)
    down, across = _spread(rows, height), _spread(columns, width)
    try:
        if snapshot.nbytes <= _READ_WHOLE:
            values = snapshot.numpy().reshape(rows, columns)[down][:, across]
        elif snapshot.is_source_range and not (dtype.bits % 8 or dtype.is_quantized):
            values = np.stack([snapshot[at : at + 1].reshape(-1)[across] for at in down])
        else:
            return None
    except BurnstoreError:  # The profile of the tensor has the reason.
        return None
    return _drawn(values.astype(np.float64), rows, columns)


def _spread(length: int, count: int) -> list[int]:
    """Return evenly spaced places."""
    return [at * length // count for at in range(count)]


def _drawn(values: Array, rows: int, columns: int) -> Image | None:
    finite = np.isfinite(values)
    if not finite.any():
        return None
    low, high = (float(edge) for edge in np.percentile(values[finite], _TAILS))
    if low == high:
        low, high = float(values[finite].min()), float(values[finite].max())
    spread = high / 2 - low / 2  # Halves, because the difference of extreme values could overflow.
    parts = (values / 2 - low / 2) / spread if spread else np.zeros_like(values)
    levels = 1 + np.rint(np.clip(np.where(finite, parts, 0), 0, 1) * _LEVELS)
    pixels = np.where(finite, levels, 0).astype(np.uint8)
    height, width = values.shape
    return Image(height, width, rows, columns, low, high, pixels.tobytes())
