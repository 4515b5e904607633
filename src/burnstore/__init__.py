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
    ConfigError,
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
    from .config import config_from_file, save_config
    from .conversion import Conversion, convert
    from .formats.pytorch.values import Opaque
    from .loading import load, load_from, save_into
    from .migration import Migration, migrate, migrate_folder
    from .modules.apply import apply
    from .modules.bindings import register_binding
    from .modules.collect import collect
    from .modules.result import ApplyError, ApplyResult, MissingTensor
    from .pytorch_reader import PytorchMetadata, PytorchReader
    from .saving import save, serialize
    from .scanning import Finding, Scan, scan, scan_folder
    from .stores.base import Store
    from .stores.burnpack import BurnpackStore
    from .stores.importers import AdapterType, LoadArgs, PyTorchFileRecorder, SafetensorsFileRecorder
    from .stores.pytorch import PytorchStore
    from .stores.record import (
        BinFileRecorder,
        BinGzFileRecorder,
        CompactRecorder,
        DefaultRecorder,
        DoublePrecisionSettings,
        FullPrecisionSettings,
        HalfPrecisionSettings,
        JsonGzFileRecorder,
        NamedMpkFileRecorder,
        NamedMpkGzFileRecorder,
        PrettyJsonFileRecorder,
        Record,
        RecordTensor,
        load_file,
        load_record,
        open_record,
        record_of,
        save_file,
    )
    from .stores.safetensors import SafetensorsStore
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
    from .transforms.guess import guess_kinds
    from .transforms.indices import map_indices_contiguous, map_indices_contiguous_except
    from .transforms.remap import KeyRemapper

__version__ = "0.1.0"

# What opening a file does not need is imported when it is first asked for.
_LATER = {
    "AdapterType": "stores.importers",
    "ApplyError": "modules.result",
    "ApplyResult": "modules.result",
    "BinFileRecorder": "stores.record",
    "BinGzFileRecorder": "stores.record",
    "BurnToPyTorchAdapter": "transforms.adapters",
    "BurnpackStore": "stores.burnpack",
    "ChainAdapter": "transforms.adapters",
    "CompactRecorder": "stores.record",
    "ContainerPath": "transforms.containers",
    "Conversion": "conversion",
    "DefaultRecorder": "stores.record",
    "DoublePrecisionSettings": "stores.record",
    "FloatCastAdapter": "transforms.adapters",
    "FullPrecisionSettings": "stores.record",
    "HalfPrecisionAdapter": "transforms.adapters",
    "HalfPrecisionSettings": "stores.record",
    "IdentityAdapter": "transforms.adapters",
    "JsonGzFileRecorder": "stores.record",
    "KeyRemapper": "transforms.remap",
    "LoadArgs": "stores.importers",
    "Migration": "migration",
    "Opaque": "formats.pytorch.values",
    "MissingTensor": "modules.result",
    "ModuleAdapter": "transforms.adapters",
    "NamedMpkFileRecorder": "stores.record",
    "NamedMpkGzFileRecorder": "stores.record",
    "Finding": "scanning",
    "PathFilter": "transforms.filter",
    "PrettyJsonFileRecorder": "stores.record",
    "PyTorchFileRecorder": "stores.importers",
    "PyTorchToBurnAdapter": "transforms.adapters",
    "PytorchMetadata": "pytorch_reader",
    "PytorchReader": "pytorch_reader",
    "PytorchStore": "stores.pytorch",
    "Record": "stores.record",
    "RecordTensor": "stores.record",
    "SafetensorsFileRecorder": "stores.importers",
    "SafetensorsStore": "stores.safetensors",
    "Scan": "scanning",
    "Store": "stores.base",
    "apply": "modules.apply",
    "collect": "modules.collect",
    "config_from_file": "config",
    "convert": "conversion",
    "guess_kinds": "transforms.guess",
    "load": "loading",
    "load_file": "stores.record",
    "load_from": "loading",
    "load_record": "stores.record",
    "map_indices_contiguous": "transforms.indices",
    "map_indices_contiguous_except": "transforms.indices",
    "migrate": "migration",
    "migrate_folder": "migration",
    "open_record": "stores.record",
    "record_of": "stores.record",
    "register_binding": "modules.bindings",
    "save": "saving",
    "save_config": "config",
    "save_file": "stores.record",
    "save_into": "loading",
    "scan": "scanning",
    "scan_folder": "scanning",
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
    "AdapterType",
    "AlreadyExistsError",
    "ApplyError",
    "ApplyResult",
    "BinFileRecorder",
    "BinGzFileRecorder",
    "BurnToPyTorchAdapter",
    "BurnpackStore",
    "BurnstoreError",
    "ChainAdapter",
    "ChangedError",
    "Checkpoint",
    "ClosedError",
    "CompactRecorder",
    "ConfigError",
    "ContainerPath",
    "Conversion",
    "CorruptError",
    "DType",
    "DTypeError",
    "DefaultRecorder",
    "DoublePrecisionSettings",
    "DuplicateNameError",
    "Finding",
    "FloatCastAdapter",
    "FormatError",
    "FullPrecisionSettings",
    "HalfPrecisionAdapter",
    "HalfPrecisionSettings",
    "IdentityAdapter",
    "JsonGzFileRecorder",
    "KeyRemapper",
    "Kind",
    "LimitError",
    "Limits",
    "LoadArgs",
    "LoadError",
    "Migration",
    "MissingDependencyError",
    "MissingTensor",
    "MissingTensorsError",
    "ModelError",
    "ModuleAdapter",
    "NamedMpkFileRecorder",
    "NamedMpkGzFileRecorder",
    "Opaque",
    "ParamId",
    "PathFilter",
    "PatternError",
    "PrettyJsonFileRecorder",
    "PyTorchFileRecorder",
    "PyTorchToBurnAdapter",
    "PytorchMetadata",
    "PytorchReader",
    "PytorchStore",
    "ReadError",
    "Record",
    "RecordTensor",
    "SafetensorsFileRecorder",
    "SafetensorsStore",
    "SaveError",
    "Scalar",
    "Scan",
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
    "config_from_file",
    "convert",
    "format_names",
    "guess_kinds",
    "load",
    "load_file",
    "load_from",
    "load_record",
    "map_indices_contiguous",
    "map_indices_contiguous_except",
    "migrate",
    "migrate_folder",
    "nn",
    "open",
    "open_record",
    "record_of",
    "register_binding",
    "register_format",
    "save",
    "save_config",
    "save_file",
    "save_into",
    "scan",
    "scan_folder",
    "serialize",
]
