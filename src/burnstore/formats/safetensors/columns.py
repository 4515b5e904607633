"""The descriptors of a header as columns, however they were read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tensor.data import Shape
from ...tensor.dtype import DType

Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Columns:
    """The tensors in the order of the header; offsets relative to the data.

    Most tensors of a model are of the dtype and shape of others: ``kinds`` holds each pair once, ``kind`` says which
    one a tensor is of, and what follows from it is worked out once for all.
    """

    names: list[str]
    kinds: list[tuple[DType, Shape]]
    kind: Int64s
    starts: Int64s
    ends: Int64s
    metadata: dict[str, str]
