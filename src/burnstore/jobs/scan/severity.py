"""Severity: how dangerous a name in a pickle is.

A name that is known to be data is harmless. All others are code that loading imports, and usually calls: suspicious in
any case, dangerous if the name is known to be harmful. The lists only determine the verdict: burnstore imports and
calls none of these names.
"""

from __future__ import annotations

from functools import cache

from ...formats.codec.pickle_trace import UNKNOWN
from ...formats.pytorch.tensor_calls import TensorCalls
from ...formats.pytorch.tensors import Storages

HARMLESS, SUSPICIOUS, DANGEROUS = "harmless", "suspicious", "dangerous"

_PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_DTYPES = _words(
    """
    float16 float32 float64 half float double bfloat16 complex32 complex64 complex128 bool int8 int16 int32 int64 short
    int long uint8 uint16 uint32 uint64 qint8 qint32 quint8 quint4x2 quint2x4 float8_e4m3fn float8_e4m3fnuz float8_e5m2
    float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 bits8 bits16 bits1x8 bits2x4 bits4x2 int1 int2 int3 int4 int5 int6
    int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7
    """
)
_CLASSES = _words(
    """
    BFloat16 Bool Byte Char Double Float Half Int Long Short QInt8 QInt32 QUInt8 QUInt4x2 QUInt2x4 ComplexFloat
    ComplexDouble
    """
)
_SCHEMES = _words(
    """
    per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric per_channel_affine_float_qparams
    strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc contiguous_format channels_last preserve_format
    """
)
_OF_TORCH = _words(
    """
    torch.jit._pickle.build_intlist torch.jit._pickle.build_tensorlist torch.jit._pickle.build_doublelist
    torch.jit._pickle.build_boollist torch.jit._pickle.build_tensor_from_id torch.jit._pickle.restore_type_tag
    torch.distributed.checkpoint.metadata.Metadata torch.distributed.checkpoint.metadata.TensorStorageMetadata
    torch.distributed.checkpoint.metadata.BytesStorageMetadata torch.distributed.checkpoint.metadata.TensorProperties
    torch.distributed.checkpoint.metadata.ChunkStorageMetadata torch.distributed.checkpoint.metadata.MetadataIndex
    torch.distributed.checkpoint.metadata.StorageMeta torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING
    torch.distributed.checkpoint.filesystem._StorageInfo
    """
)
_OF_DTENSORS = _words(
    """
    torch.distributed.tensor.DTensor torch.distributed.tensor._dtensor_spec.DTensorSpec
    torch.distributed.tensor._dtensor_spec.TensorMeta torch.distributed.tensor._dtensor_spec.ShardOrderEntry
    torch.distributed.tensor.placement_types.Shard torch.distributed.tensor.placement_types.Replicate
    torch.distributed.tensor.placement_types.Partial torch.distributed.tensor.placement_types._StridedShard
    torch.distributed.tensor._api.DTensor torch.distributed._tensor.api.DTensor torch.distributed._tensor.DTensor
    torch.distributed._tensor.placement_types.DTensorSpec torch.distributed._tensor.placement_types.TensorMeta
    torch.distributed._tensor.placement_types.Shard torch.distributed._tensor.placement_types.Replicate
    torch.distributed._tensor.placement_types._Partial torch.distributed._tensor.placement_types.Partial
    torch.distributed._tensor.placement_types._StridedShard torch.distributed.device_mesh.DeviceMesh
    torch.distributed._mesh_layout._MeshLayout torch.distributed._mesh_layout._FlatLayout
    torch.distributed._shard.sharded_tensor.api.ShardedTensor torch.distributed._shard.sharded_tensor.shard.Shard
    torch.distributed._shard.metadata.ShardMetadata torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING
    torch.distributed._shard.sharded_tensor.metadata.ShardedTensorMetadata
    torch.distributed._shard.sharded_tensor.metadata.TensorProperties torch.distributed.remote_device._remote_device
    torch.distributed._shard.sharding_spec.chunk_sharding_spec.ChunkShardingSpec
    torch.distributed._shard.sharding_spec.api.EnumerableShardingSpec
    """
)
"""What a pickled DTensor or ShardedTensor consists of: made without arguments, then given attributes; no call runs."""
# The reader knows this call, but Python loads another pickle with it, which is judged separately.
_RUNS_A_PICKLE = ("torch.storage", "_load_from_bytes")

_MODULES = frozenset(
    _words(
        """
        os posix nt sys subprocess commands popen2 pty socket ssl shutil pickle _pickle cPickle dill cloudpickle marshal
        shelve runpy importlib imp pkgutil pydoc code codeop ctypes _ctypes cffi webbrowser http httplib urllib urllib2
        urllib3 requests aiohttp httpx ftplib smtplib telnetlib poplib imaplib xmlrpc asyncio multiprocessing concurrent
        threading _thread signal pdb bdb profile cProfile trace timeit doctest test unittest idlelib lib2to3 venv
        ensurepip pip distutils setuptools site platform tempfile io _io operator _operator uuid _osx_support
        _aix_support _pyrepl linecache fileinput zipfile tarfile sqlite3 antigravity turtle tkinter inspect gc sysconfig
        logging glob pathlib winreg msvcrt fcntl
        """
    )
)
_BUILTINS = frozenset(
    _words(
        """
        eval exec execfile compile open file input raw_input breakpoint getattr setattr delattr __import__ globals
        locals vars apply reload map filter reduce help exit quit type super
        """
    )
)
_NAMES = frozenset(
    _words(
        """
        functools.partial functools.reduce types.CodeType types.FunctionType types.LambdaType codecs.open numpy.load
        numpy.fromfile numpy.memmap torch.load torch.save torch.serialization.load
        """
    )
)
_PREFIXES = _words(
    """
    numpy.f2py numpy.testing numpy.distutils numpy.ctypeslib torch._dynamo torch._inductor torch._functorch torch.fx
    torch.hub torch.jit torch.package torch.utils torch.distributed torch.multiprocessing torch._export torch.export
    joblib.externals pandas.io
    """
)


@cache
def _harmless() -> frozenset[tuple[str, str]]:
    """Return the names that become data: calls that the reader knows, and mere labels."""
    labels = {("torch", name) for name in (*_DTYPES, *_SCHEMES)}
    for place in ("torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse"):
        labels |= {(place, f"{name}{what}") for name in _CLASSES for what in ("Tensor", "Storage")}
    labels |= {("torch.storage", name) for name in ("TypedStorage", "UntypedStorage", "_TypedStorage")}
    labels |= {("torch.storage", f"{name}Storage") for name in _CLASSES}
    labels |= {("torch", "UntypedStorage"), ("numpy", "ndarray"), ("builtins", "object")}
    labels |= {(module, name) for module, _, name in (path.rpartition(".") for path in (*_OF_TORCH, *_OF_DTENSORS))}
    return frozenset((labels | TensorCalls(Storages()).builders().keys()) - {_RUNS_A_PICKLE})


def severity_of(module: str, name: str) -> str:
    """Return ``harmless``, ``suspicious`` or ``dangerous`` for a name in a pickle.

    >>> severity_of("os", "system"), severity_of("my.models", "Net"), severity_of("collections", "OrderedDict")
    ('dangerous', 'suspicious', 'harmless')
    """
    module = _PYTHON_2.get(module, module)
    # TorchScript's own classes, in a namespace that Python cannot import.
    if (module, name) in _harmless() or module == "__torch__" or module.startswith("__torch__."):
        return HARMLESS
    # Name and module may be split anywhere, os + path.system as well as os.path + system.
    path = f"{module}.{name}"
    top, _, rest = path.partition(".")
    if UNKNOWN in (module, name) or top in _MODULES or name.startswith("extension "):
        return DANGEROUS
    if top == "builtins" and rest.split(".")[0] in _BUILTINS:
        return DANGEROUS
    if path in _NAMES or "__" in name:
        return DANGEROUS
    return DANGEROUS if path.startswith(tuple(f"{prefix}." for prefix in _PREFIXES)) else SUSPICIOUS
