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
from .tensor.data import TensorData
from .tensor.dtype import DType, Kind
from .tensor.param_id import ParamId
from .tensor.scalar import Scalar
from .tensor.snapshot import TensorSnapshot

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import nn
    from .formats.pytorch.values import Opaque
    from .io.gpu.buffers import configure_transfers, release_pinned_memory
    from .jobs.convert.convert import Conversion, convert, replay
    from .jobs.convert.receipt import Receipt, ReceiptCheck, check_receipt, read_receipt
    from .jobs.diff.diff import diff
    from .jobs.diff.difference import Difference
    from .jobs.diff.result import Diff, TensorDiff
    from .jobs.explain.explain import Explanation, LayoutChange, Move, explain
    from .jobs.inspect.inspect import Inspection, inspect
    from .jobs.inspect.tree import TensorRow, Totals
    from .jobs.merge.combine import MergedTensor
    from .jobs.merge.merge import Merge, MergeSource, merge
    from .jobs.migrate import Migration, migrate
    from .jobs.report.report import Report, report
    from .jobs.scan.scan import Finding, ScanResult, scan
    from .jobs.stats import TensorStats
    from .jobs.verify.verify import TensorCheck, Verification, verify
    from .loading import load, load_from, save_into
    from .models.bindings import register_binding
    from .models.collect import collect
    from .models.result import ApplyError, ApplyResult, MissingTensor
    from .pipeline.execute import apply
    from .saving import save, serialize
    from .stores.base import Store
    from .stores.burnpack import BurnpackStore
    from .stores.config import config_from_file, save_config
    from .stores.pytorch import PytorchStore
    from .stores.pytorch_reader import PytorchMetadata, PytorchReader
    from .stores.records import (
        AdapterType,
        BinFileRecorder,
        BinGzFileRecorder,
        CompactRecorder,
        DefaultRecorder,
        DoublePrecisionSettings,
        FullPrecisionSettings,
        HalfPrecisionSettings,
        JsonGzFileRecorder,
        LoadArgs,
        NamedMpkFileRecorder,
        NamedMpkGzFileRecorder,
        PrettyJsonFileRecorder,
        PyTorchFileRecorder,
        Record,
        RecordTensor,
        SafetensorsFileRecorder,
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

# What opening a file does not need is imported when it is first asked for.
_LATER = {
    "AdapterType": "stores.records",
    "ApplyError": "models.result",
    "ApplyResult": "models.result",
    "BinFileRecorder": "stores.records",
    "BinGzFileRecorder": "stores.records",
    "BurnToPyTorchAdapter": "transforms.adapters",
    "BurnpackStore": "stores.burnpack",
    "ChainAdapter": "transforms.adapters",
    "CompactRecorder": "stores.records",
    "ContainerPath": "transforms.containers",
    "Conversion": "jobs.convert.convert",
    "DefaultRecorder": "stores.records",
    "Diff": "jobs.diff.result",
    "Difference": "jobs.diff.difference",
    "DoublePrecisionSettings": "stores.records",
    "FloatCastAdapter": "transforms.adapters",
    "FullPrecisionSettings": "stores.records",
    "HalfPrecisionAdapter": "transforms.adapters",
    "HalfPrecisionSettings": "stores.records",
    "IdentityAdapter": "transforms.adapters",
    "JsonGzFileRecorder": "stores.records",
    "KeyRemapper": "transforms.remap",
    "LoadArgs": "stores.records",
    "Merge": "jobs.merge.merge",
    "MergeSource": "jobs.merge.merge",
    "MergedTensor": "jobs.merge.combine",
    "Migration": "jobs.migrate",
    "Opaque": "formats.pytorch.values",
    "MissingTensor": "models.result",
    "ModuleAdapter": "transforms.adapters",
    "NamedMpkFileRecorder": "stores.records",
    "NamedMpkGzFileRecorder": "stores.records",
    "Explanation": "jobs.explain.explain",
    "Finding": "jobs.scan.scan",
    "LayoutChange": "jobs.explain.explain",
    "Move": "jobs.explain.explain",
    "explain": "jobs.explain.explain",
    "Partition": "transforms.partition",
    "PathFilter": "transforms.filter",
    "PrettyJsonFileRecorder": "stores.records",
    "PyTorchFileRecorder": "stores.records",
    "PyTorchToBurnAdapter": "transforms.adapters",
    "PytorchMetadata": "stores.pytorch_reader",
    "PytorchReader": "stores.pytorch_reader",
    "PytorchStore": "stores.pytorch",
    "Receipt": "jobs.convert.receipt",
    "ReceiptCheck": "jobs.convert.receipt",
    "Record": "stores.records",
    "RecordTensor": "stores.records",
    "Report": "jobs.report.report",
    "SafetensorsFileRecorder": "stores.records",
    "SafetensorsStore": "stores.safetensors",
    "ScanResult": "jobs.scan.scan",
    "Store": "stores.base",
    "TensorCheck": "jobs.verify.verify",
    "TensorDiff": "jobs.diff.result",
    "Verification": "jobs.verify.verify",
    "apply": "pipeline.execute",
    "check_receipt": "jobs.convert.receipt",
    "collect": "models.collect",
    "config_from_file": "stores.config",
    "configure_transfers": "io.gpu.buffers",
    "convert": "jobs.convert.convert",
    "diff": "jobs.diff.diff",
    "guess_kinds": "transforms.guess",
    "load": "loading",
    "load_file": "stores.records",
    "load_from": "loading",
    "load_record": "stores.records",
    "map_indices_contiguous": "transforms.indices",
    "map_indices_contiguous_except": "transforms.indices",
    "merge": "jobs.merge.merge",
    "migrate": "jobs.migrate",
    "open_record": "stores.records",
    "read_receipt": "jobs.convert.receipt",
    "record_of": "stores.records",
    "register_binding": "models.bindings",
    "replay": "jobs.convert.convert",
    "report": "jobs.report.report",
    "release_pinned_memory": "io.gpu.buffers",
    "save": "saving",
    "save_config": "stores.config",
    "save_file": "stores.records",
    "save_into": "loading",
    "scan": "jobs.scan.scan",
    "serialize": "saving",
    "verify": "jobs.verify.verify",
    "Inspection": "jobs.inspect.inspect",
    "TensorRow": "jobs.inspect.tree",
    "TensorStats": "jobs.stats",
    "Totals": "jobs.inspect.tree",
    "inspect": "jobs.inspect.inspect",
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
    "ScanResult",
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
    "nn",
    "open",
    "open_record",
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
    "serialize",
    "verify",
]
