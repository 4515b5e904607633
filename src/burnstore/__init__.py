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
    AmbiguousError,
    BurnstoreError,
    ChangedError,
    ClosedError,
    ConfigError,
    CorruptError,
    DeviceError,
    DTypeError,
    DuplicateNameError,
    FormatError,
    LimitError,
    LoadError,
    MergeError,
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
from .version import __version__ as __version__

if TYPE_CHECKING:
    from . import nn
    from .comparing.diff_result import Diff, TensorDiff
    from .comparing.difference import Difference
    from .comparing.diffing import diff
    from .config import config_from_file, save_config
    from .converting.conversion import Conversion, convert, replay
    from .converting.receipt import Receipt, ReceiptCheck, check_receipt, read_receipt
    from .device.buffers import configure_transfers, release_pinned_memory
    from .explaining.explanation import Explanation, LayoutChange, Move, explain
    from .formats.pytorch.values import Opaque
    from .inspecting.inspection import Inspection, TensorRow, Totals, inspect
    from .inspecting.outlining import Outline, outline
    from .loading import load, load_from, save_into
    from .merging.combining import MergedTensor
    from .merging.merge import Merge, MergeSource, merge
    from .migration import Migration, migrate, migrate_folder
    from .modules.apply import apply
    from .modules.bindings import register_binding
    from .modules.collect import collect
    from .modules.result import ApplyError, ApplyResult, MissingTensor
    from .pytorch_reader import PytorchMetadata, PytorchReader
    from .reporting.report import Report, report
    from .saving import save, serialize
    from .scanning import Finding, Scan, scan, scan_folder
    from .stats import TensorStats
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
    from .transforms.partition import Partition
    from .transforms.remap import KeyRemapper
    from .verifying.folder_verification import verify_folder
    from .verifying.verification import TensorCheck, Verification, verify

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
    "Conversion": "converting.conversion",
    "DefaultRecorder": "stores.record",
    "Diff": "comparing.diff_result",
    "Difference": "comparing.difference",
    "DoublePrecisionSettings": "stores.record",
    "FloatCastAdapter": "transforms.adapters",
    "FullPrecisionSettings": "stores.record",
    "HalfPrecisionAdapter": "transforms.adapters",
    "HalfPrecisionSettings": "stores.record",
    "IdentityAdapter": "transforms.adapters",
    "JsonGzFileRecorder": "stores.record",
    "KeyRemapper": "transforms.remap",
    "LoadArgs": "stores.importers",
    "Merge": "merging.merge",
    "MergeSource": "merging.merge",
    "MergedTensor": "merging.combining",
    "Migration": "migration",
    "Opaque": "formats.pytorch.values",
    "MissingTensor": "modules.result",
    "ModuleAdapter": "transforms.adapters",
    "NamedMpkFileRecorder": "stores.record",
    "NamedMpkGzFileRecorder": "stores.record",
    "Explanation": "explaining.explanation",
    "Finding": "scanning",
    "LayoutChange": "explaining.explanation",
    "Move": "explaining.explanation",
    "explain": "explaining.explanation",
    "Partition": "transforms.partition",
    "PathFilter": "transforms.filter",
    "PrettyJsonFileRecorder": "stores.record",
    "PyTorchFileRecorder": "stores.importers",
    "PyTorchToBurnAdapter": "transforms.adapters",
    "PytorchMetadata": "pytorch_reader",
    "PytorchReader": "pytorch_reader",
    "PytorchStore": "stores.pytorch",
    "Receipt": "converting.receipt",
    "ReceiptCheck": "converting.receipt",
    "Record": "stores.record",
    "RecordTensor": "stores.record",
    "Report": "reporting.report",
    "SafetensorsFileRecorder": "stores.importers",
    "SafetensorsStore": "stores.safetensors",
    "Scan": "scanning",
    "Store": "stores.base",
    "TensorCheck": "verifying.verification",
    "TensorDiff": "comparing.diff_result",
    "Verification": "verifying.verification",
    "apply": "modules.apply",
    "check_receipt": "converting.receipt",
    "collect": "modules.collect",
    "config_from_file": "config",
    "configure_transfers": "device.buffers",
    "convert": "converting.conversion",
    "diff": "comparing.diffing",
    "guess_kinds": "transforms.guess",
    "load": "loading",
    "load_file": "stores.record",
    "load_from": "loading",
    "load_record": "stores.record",
    "map_indices_contiguous": "transforms.indices",
    "map_indices_contiguous_except": "transforms.indices",
    "merge": "merging.merge",
    "migrate": "migration",
    "migrate_folder": "migration",
    "open_record": "stores.record",
    "read_receipt": "converting.receipt",
    "record_of": "stores.record",
    "register_binding": "modules.bindings",
    "replay": "converting.conversion",
    "report": "reporting.report",
    "release_pinned_memory": "device.buffers",
    "save": "saving",
    "save_config": "config",
    "save_file": "stores.record",
    "save_into": "loading",
    "scan": "scanning",
    "scan_folder": "scanning",
    "serialize": "saving",
    "verify": "verifying.verification",
    "verify_folder": "verifying.folder_verification",
    "Inspection": "inspecting.inspection",
    "Outline": "inspecting.outlining",
    "TensorRow": "inspecting.inspection",
    "TensorStats": "stats",
    "Totals": "inspecting.inspection",
    "inspect": "inspecting.inspection",
    "outline": "inspecting.outlining",
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
    "AmbiguousError",
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
    "DeviceError",
    "Diff",
    "Difference",
    "DoublePrecisionSettings",
    "DuplicateNameError",
    "Explanation",
    "Finding",
    "FloatCastAdapter",
    "FormatError",
    "FullPrecisionSettings",
    "HalfPrecisionAdapter",
    "HalfPrecisionSettings",
    "IdentityAdapter",
    "Inspection",
    "JsonGzFileRecorder",
    "KeyRemapper",
    "Kind",
    "LayoutChange",
    "LimitError",
    "Limits",
    "LoadArgs",
    "LoadError",
    "Merge",
    "MergeError",
    "MergeSource",
    "MergedTensor",
    "Migration",
    "MissingDependencyError",
    "MissingTensor",
    "MissingTensorsError",
    "ModelError",
    "ModuleAdapter",
    "Move",
    "NamedMpkFileRecorder",
    "NamedMpkGzFileRecorder",
    "Opaque",
    "Outline",
    "ParamId",
    "Partition",
    "PathFilter",
    "PatternError",
    "PrettyJsonFileRecorder",
    "PyTorchFileRecorder",
    "PyTorchToBurnAdapter",
    "PytorchMetadata",
    "PytorchReader",
    "PytorchStore",
    "ReadError",
    "Receipt",
    "ReceiptCheck",
    "Record",
    "RecordTensor",
    "Report",
    "SafetensorsFileRecorder",
    "SafetensorsStore",
    "SaveError",
    "Scalar",
    "Scan",
    "Store",
    "TensorCheck",
    "TensorData",
    "TensorDiff",
    "TensorNotFoundError",
    "TensorRow",
    "TensorSnapshot",
    "TensorStats",
    "Totals",
    "TruncatedError",
    "UnknownFormatError",
    "UnsafeContentError",
    "UnsupportedError",
    "Verification",
    "apply",
    "check_receipt",
    "collect",
    "config_from_file",
    "configure_transfers",
    "convert",
    "diff",
    "explain",
    "format_names",
    "guess_kinds",
    "inspect",
    "load",
    "load_file",
    "load_from",
    "load_record",
    "map_indices_contiguous",
    "map_indices_contiguous_except",
    "merge",
    "migrate",
    "migrate_folder",
    "nn",
    "open",
    "open_record",
    "outline",
    "read_receipt",
    "record_of",
    "register_binding",
    "register_format",
    "release_pinned_memory",
    "replay",
    "report",
    "save",
    "save_config",
    "save_file",
    "save_into",
    "scan",
    "scan_folder",
    "serialize",
    "verify",
    "verify_folder",
]
