"""Burn's model store for Python: save, load, convert, inspect and compare model weights.

>>> import numpy as np, burnstore as bs
>>> packed = bs.serialize({"weight": np.eye(2, dtype=np.float32)}, format="burnpack")
>>> with bs.open(packed) as f:
...     print(f["weight"])
TensorSnapshot('weight', F32, [2, 2])

The names here are those that most programs need; everything else is in a submodule: all errors in
`burnstore.errors`, recorders of old Burn files in `burnstore.stores.records`, settings of GPU transfers in
`burnstore.io.gpu`, the conformance kit for formats in `burnstore.testing`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors as errors
    from . import nn as nn
    from .checkpoint import Checkpoint as Checkpoint
    from .checkpoint import open_checkpoint as open
    from .errors import BurnstoreError as BurnstoreError
    from .jobs.convert.convert import convert as convert
    from .jobs.convert.convert import replay as replay
    from .jobs.convert.result import ConvertResult as ConvertResult
    from .jobs.diff.diff import diff as diff
    from .jobs.diff.result import Diff as Diff
    from .jobs.explain.explain import Explanation as Explanation
    from .jobs.explain.explain import explain as explain
    from .jobs.inspect.inspect import Inspection as Inspection
    from .jobs.inspect.inspect import inspect as inspect
    from .jobs.map.map import map_names as map_names
    from .jobs.merge.merge import MergeResult as MergeResult
    from .jobs.merge.merge import MergeSource as MergeSource
    from .jobs.merge.merge import merge as merge
    from .jobs.migrate import Migration as Migration
    from .jobs.migrate import migrate as migrate
    from .jobs.prove.prove import prove as prove
    from .jobs.report.report import Report as Report
    from .jobs.report.report import report as report
    from .jobs.scan.scan import ScanResult as ScanResult
    from .jobs.scan.scan import scan as scan
    from .jobs.verify.verify import Verification as Verification
    from .jobs.verify.verify import verify as verify
    from .limits import Limits as Limits
    from .loading import load as load
    from .models.result import ApplyResult as ApplyResult
    from .pipeline.execute import apply as apply
    from .pipeline.options import Pipeline as Pipeline
    from .pipeline.save import SaveResult as SaveResult
    from .pipeline.save import collect as collect
    from .saving import save as save
    from .saving import serialize as serialize
    from .stores.base import Store as Store
    from .stores.burnpack import BurnpackStore as BurnpackStore
    from .stores.config import config_from_file as config_from_file
    from .stores.config import save_config as save_config
    from .stores.pytorch import PytorchStore as PytorchStore
    from .stores.pytorch_reader import PytorchReader as PytorchReader
    from .stores.safetensors import SafetensorsStore as SafetensorsStore
    from .tensor.data import TensorData as TensorData
    from .tensor.dtype import DType as DType
    from .tensor.param_id import ParamId as ParamId
    from .tensor.scalar import Scalar as Scalar
    from .tensor.snapshot import TensorSnapshot as TensorSnapshot
    from .transforms.adapters import BurnToPyTorchAdapter as BurnToPyTorchAdapter
    from .transforms.adapters import ChainAdapter as ChainAdapter
    from .transforms.adapters import FloatCastAdapter as FloatCastAdapter
    from .transforms.adapters import HalfPrecisionAdapter as HalfPrecisionAdapter
    from .transforms.adapters import IdentityAdapter as IdentityAdapter
    from .transforms.adapters import ModuleAdapter as ModuleAdapter
    from .transforms.adapters import PyTorchToBurnAdapter as PyTorchToBurnAdapter
    from .transforms.filter import PathFilter as PathFilter
    from .transforms.partition import Partition as Partition
    from .transforms.remap import KeyRemapper as KeyRemapper

__version__ = "0.1.0"

# Each room is imported when one of its names is first used: the command line handles Ctrl-C before it imports NumPy.
_ROOMS = {
    "checkpoint": ("Checkpoint",),
    "errors": ("BurnstoreError",),
    "limits": ("Limits",),
    "tensor.data": ("TensorData",),
    "tensor.dtype": ("DType",),
    "tensor.param_id": ("ParamId",),
    "tensor.scalar": ("Scalar",),
    "tensor.snapshot": ("TensorSnapshot",),
    "jobs.convert.convert": ("convert", "replay"),
    "jobs.convert.result": ("ConvertResult",),
    "jobs.diff.diff": ("diff",),
    "jobs.diff.result": ("Diff",),
    "jobs.explain.explain": ("Explanation", "explain"),
    "jobs.inspect.inspect": ("Inspection", "inspect"),
    "jobs.map.map": ("map_names",),
    "jobs.merge.merge": ("MergeResult", "MergeSource", "merge"),
    "jobs.migrate": ("Migration", "migrate"),
    "jobs.prove.prove": ("prove",),
    "jobs.report.report": ("Report", "report"),
    "jobs.scan.scan": ("ScanResult", "scan"),
    "jobs.verify.verify": ("Verification", "verify"),
    "loading": ("load",),
    "saving": ("save", "serialize"),
    "models.result": ("ApplyResult",),
    "pipeline.execute": ("apply",),
    "pipeline.options": ("Pipeline",),
    "pipeline.save": ("SaveResult", "collect"),
    "stores.base": ("Store",),
    "stores.burnpack": ("BurnpackStore",),
    "stores.pytorch": ("PytorchStore",),
    "stores.safetensors": ("SafetensorsStore",),
    "stores.config": ("config_from_file", "save_config"),
    "stores.pytorch_reader": ("PytorchReader",),
    "transforms.adapters": (
        "BurnToPyTorchAdapter",
        "ChainAdapter",
        "FloatCastAdapter",
        "HalfPrecisionAdapter",
        "IdentityAdapter",
        "ModuleAdapter",
        "PyTorchToBurnAdapter",
    ),
    "transforms.filter": ("PathFilter",),
    "transforms.partition": ("Partition",),
    "transforms.remap": ("KeyRemapper",),
}
_LATER = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("errors", "nn"):
        return import_module(f".{name}", __name__)
    if name == "open":
        value = globals()[name] = import_module(".checkpoint", __name__).open_checkpoint
        return value
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=import_module(__name__))
    value = globals()[name] = getattr(import_module(f".{_LATER[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)


__all__ = [
    "ApplyResult",
    "BurnToPyTorchAdapter",
    "BurnpackStore",
    "BurnstoreError",
    "ChainAdapter",
    "Checkpoint",
    "ConvertResult",
    "DType",
    "Diff",
    "Explanation",
    "FloatCastAdapter",
    "HalfPrecisionAdapter",
    "IdentityAdapter",
    "Inspection",
    "KeyRemapper",
    "Limits",
    "MergeResult",
    "MergeSource",
    "Migration",
    "ModuleAdapter",
    "ParamId",
    "Partition",
    "PathFilter",
    "Pipeline",
    "PyTorchToBurnAdapter",
    "PytorchReader",
    "PytorchStore",
    "Report",
    "SafetensorsStore",
    "SaveResult",
    "Scalar",
    "ScanResult",
    "Store",
    "TensorData",
    "TensorSnapshot",
    "Verification",
    "apply",
    "collect",
    "config_from_file",
    "convert",
    "diff",
    "explain",
    "inspect",
    "load",
    "map_names",
    "merge",
    "migrate",
    "nn",
    "open",
    "prove",
    "replay",
    "report",
    "save",
    "save_config",
    "scan",
    "serialize",
    "verify",
]
