"""Burn's model store for Python: save, load, inspect and convert model weights.

>>> import numpy as np, burnstore as bs
>>> packed = bs.serialize({"weight": np.eye(2, dtype=np.float32)}, format="burnpack")
>>> with bs.open(packed) as f:
...     print(f["weight"])
TensorSnapshot('weight', F32, [2, 2])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    LoadError,
    MissingDependencyError,
    MissingTensorsError,
    ModelError,
    PatternError,
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
from .scalar import Scalar
from .snapshot import TensorSnapshot
from .tensor_data import TensorData

if TYPE_CHECKING:
    from . import nn
    from .loading import load, load_from, save_into
    from .modules.apply import apply
    from .modules.bindings import register_binding
    from .modules.collect import collect
    from .modules.result import ApplyError, ApplyResult, MissingTensor
    from .saving import save, serialize
    from .stores.base import Store
    from .stores.burnpack import BurnpackStore
    from .transforms.adapters import (
        BurnToPyTorchAdapter,
        ChainAdapter,
        FloatCastAdapter,
        HalfPrecisionAdapter,
        IdentityAdapter,
        ModuleAdapter,
        PyTorchToBurnAdapter,
    )
    from .transforms.containers import ContainerPath
    from .transforms.filter import PathFilter
    from .transforms.indices import map_indices_contiguous, map_indices_contiguous_except
    from .transforms.remap import KeyRemapper

__version__ = "0.1.0"

# What opening a file does not need is imported when it is first asked for.
_LATER = {
    "ApplyError": "modules.result",
    "ApplyResult": "modules.result",
    "BurnToPyTorchAdapter": "transforms.adapters",
    "BurnpackStore": "stores.burnpack",
    "ChainAdapter": "transforms.adapters",
    "ContainerPath": "transforms.containers",
    "FloatCastAdapter": "transforms.adapters",
    "HalfPrecisionAdapter": "transforms.adapters",
    "IdentityAdapter": "transforms.adapters",
    "KeyRemapper": "transforms.remap",
    "MissingTensor": "modules.result",
    "ModuleAdapter": "transforms.adapters",
    "PathFilter": "transforms.filter",
    "PyTorchToBurnAdapter": "transforms.adapters",
    "Store": "stores.base",
    "apply": "modules.apply",
    "collect": "modules.collect",
    "load": "loading",
    "load_from": "loading",
    "map_indices_contiguous": "transforms.indices",
    "map_indices_contiguous_except": "transforms.indices",
    "register_binding": "modules.bindings",
    "save": "saving",
    "save_into": "loading",
    "serialize": "saving",
}


def __getattr__(name: str) -> Any:
    if name == "nn":
        return import_module(".nn", __name__)
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_LATER[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "AlreadyExistsError",
    "ApplyError",
    "ApplyResult",
    "BurnToPyTorchAdapter",
    "BurnpackStore",
    "BurnstoreError",
    "ChainAdapter",
    "ChangedError",
    "Checkpoint",
    "ClosedError",
    "ContainerPath",
    "CorruptError",
    "DType",
    "DTypeError",
    "DuplicateNameError",
    "FloatCastAdapter",
    "FormatError",
    "HalfPrecisionAdapter",
    "IdentityAdapter",
    "KeyRemapper",
    "Kind",
    "LimitError",
    "Limits",
    "LoadError",
    "MissingDependencyError",
    "MissingTensor",
    "MissingTensorsError",
    "ModelError",
    "ModuleAdapter",
    "ParamId",
    "PathFilter",
    "PatternError",
    "PyTorchToBurnAdapter",
    "ReadError",
    "SaveError",
    "Scalar",
    "Store",
    "TensorData",
    "TensorNotFoundError",
    "TensorSnapshot",
    "TruncatedError",
    "UnknownFormatError",
    "UnsafeContentError",
    "UnsupportedError",
    "apply",
    "collect",
    "format_names",
    "load",
    "load_from",
    "map_indices_contiguous",
    "map_indices_contiguous_except",
    "nn",
    "open",
    "register_binding",
    "register_format",
    "save",
    "save_into",
    "serialize",
]
