"""Burn's model store for Python: save, load, inspect and convert model weights.

>>> import numpy as np, burnstore as bs
>>> packed = bs.serialize({"weight": np.eye(2, dtype=np.float32)}, format="burnpack")
>>> with bs.open(packed) as f:
...     print(f["weight"])
TensorSnapshot('weight', F32, [2, 2])
"""

from __future__ import annotations

from .checkpoint import Checkpoint
from .checkpoint import open_checkpoint as open
from .dtype import DType, Kind
from .errors import (
    AlreadyExistsError,
    BurnstoreError,
    ChangedError,
    ClosedError,
    CorruptError,
    DTypeError,
    DuplicateNameError,
    FormatError,
    LimitError,
    MissingDependencyError,
    ReadError,
    SaveError,
    TensorNotFoundError,
    TruncatedError,
    UnknownFormatError,
    UnsafeContentError,
    UnsupportedError,
)
from .formats.registry import format_names, register_format
from .limits import Limits
from .param_id import ParamId
from .saving import save, serialize
from .scalar import Scalar
from .snapshot import TensorSnapshot
from .tensor_data import TensorData

__version__ = "0.1.0"

__all__ = [
    "AlreadyExistsError",
    "BurnstoreError",
    "ChangedError",
    "Checkpoint",
    "ClosedError",
    "CorruptError",
    "DType",
    "DTypeError",
    "DuplicateNameError",
    "FormatError",
    "Kind",
    "LimitError",
    "Limits",
    "MissingDependencyError",
    "ParamId",
    "ReadError",
    "SaveError",
    "Scalar",
    "TensorData",
    "TensorNotFoundError",
    "TensorSnapshot",
    "TruncatedError",
    "UnknownFormatError",
    "UnsafeContentError",
    "UnsupportedError",
    "format_names",
    "open",
    "register_format",
    "save",
    "serialize",
]
