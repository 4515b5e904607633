"""TensorSnapshot: a tensor that is known but not yet read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import BurnstoreError, CorruptError, located, printable
from ..io.gather import gather
from ..io.source import Source
from .data import (
    Array,
    Shape,
    TensorData,
    array_from_bytes,
    bytes_of_array,
    checked_array,
    checked_shape,
    little_endian,
    quantized_from_bytes,
)
from .dtype import DType
from .param_id import ParamId

if TYPE_CHECKING:
    from .quantization import QuantizedTensor
    from .torch import Device, Tensor

CHUNK_BYTES = 8 << 20
"""How much of a tensor a streaming copy holds at a time."""

_MODULE_PREFIXES = ("Struct:", "Enum:")
_UNCHANGED: Any = object()
_new = object.__new__


class Data(Protocol):
    """Where a snapshot's bytes come from.

    Optional: ``streams``, True where `chunks` makes one after the other and never has them all in memory;
    ``bytes_held``, how much `chunks` has in memory at a time, where that is neither a chunk nor all of them;
    ``batch_key`` and ``fetch_together``, where many small ones are fetched best at once (`burnstore.formats.write`).
    """

    @property
    def file(self) -> str | None:
        """The file that errors about these bytes should name, if there is one."""

    def window(self, start: int, stop: int) -> memoryview:
        """These bytes; may share memory with what lies behind."""

    def owned(self, start: int, stop: int) -> Array:
        """These bytes in fresh memory that belongs to the caller."""

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        """All bytes in order; no chunk is needed once the next is asked for."""


class SourceData:
    """A range of a source."""

    __slots__ = ("nbytes", "offset", "source")

    streams = True

    def __init__(self, source: Source, offset: int, nbytes: int) -> None:
        self.source = source
        self.offset = offset
        self.nbytes = nbytes

    @property
    def file(self) -> str | None:
        return self.source.name

    def window(self, start: int, stop: int) -> memoryview:
        shared = self.source.view(self.offset + start, stop - start)
        return memoryview(self.owned(start, stop)) if shared is None else shared

    def owned(self, start: int, stop: int) -> Array:
        buffer = np.empty(stop - start, np.uint8)
        self.source.read_into([(self.offset + start, memoryview(buffer))])
        return buffer

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        for start in range(0, nbytes, CHUNK_BYTES):
            yield self.window(start, min(start + CHUNK_BYTES, nbytes))


class ArrayData:
    """An array in memory, of any strides and byte order."""

    __slots__ = ("array",)

    file = None

    def __init__(self, array: Array) -> None:
        self.array = array

    def window(self, start: int, stop: int) -> memoryview:
        return bytes_of_array(self.array)[start:stop]

    def owned(self, start: int, stop: int) -> Array:
        copied = np.array(self.array, little_endian(self.array.dtype), order="C")
        return copied.reshape(-1).view(np.uint8)[start:stop] if copied.size else np.empty(0, np.uint8)

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        yield bytes_of_array(self.array)


class HeldData:
    """Bytes in memory that lie as a file would hold them."""

    __slots__ = ("data",)

    file = None

    def __init__(self, data: TensorData) -> None:
        self.data = data

    def window(self, start: int, stop: int) -> memoryview:
        return self.data.raw[start:stop]

    def owned(self, start: int, stop: int) -> Array:
        return np.frombuffer(bytearray(self.window(start, stop)), np.uint8)

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        yield self.data.raw


class ProvidedData:
    """What a function gives when asked; it is asked anew each time and its answer is checked."""

    __slots__ = ("dtype", "provide", "shape")

    file = None

    def __init__(self, provide: Callable[[], Any], dtype: DType, shape: Shape) -> None:
        self.provide = provide
        self.dtype = dtype
        self.shape = shape

    def window(self, start: int, stop: int) -> memoryview:
        given = self.provide()
        if isinstance(given, np.generic):  # what NumPy makes of an array without axes at many an occasion
            given = np.asarray(given)
        data = TensorData.from_numpy(given) if isinstance(given, np.ndarray) else given
        if not isinstance(data, TensorData):
            raise TypeError(f"a snapshot's function must give TensorData or an array, not {type(given).__name__}")
        # Bool has one NumPy form and three stores, Flex32 shares F32's: an array stands for any of them of its width.
        alike = data.dtype == self.dtype or (
            isinstance(given, np.ndarray)
            and self.dtype.scheme is None
            and data.dtype is DType.of(self.dtype.numpy)
            and data.dtype.bits == self.dtype.bits
        )
        if not alike or data.shape != self.shape:
            raise CorruptError(
                f"declared {self.dtype.name} {list(self.shape)}, its function gave {data.dtype.name} {list(data.shape)}"
            )
        if data.nbytes != self.dtype.nbytes(self.shape):  # quantized data of an old release may have another length
            raise CorruptError(f"declared {self.dtype.nbytes(self.shape)} bytes, its function gave {data.nbytes}")
        return data.raw[start:stop]

    def owned(self, start: int, stop: int) -> Array:
        return np.frombuffer(bytearray(self.window(start, stop)), np.uint8)

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        yield self.window(0, nbytes)


class TensorSnapshot:
    """A tensor by name, dtype and shape, whose bytes are read when they are asked for.

    Immutable and cheap: renaming (`with_path`) shares the data. Nothing is kept after a read, so a snapshot never holds
    more than its description.

    >>> snapshot = TensorSnapshot.from_numpy("encoder.weight", np.arange(6, dtype=np.float32).reshape(3, 2))
    >>> snapshot
    TensorSnapshot('encoder.weight', F32, [3, 2])
    >>> snapshot[1:].tolist()
    [[2.0, 3.0], [4.0, 5.0]]
    """

    __slots__ = ("_container_stack", "_data", "_dtype", "_nbytes", "_param_id", "_path", "_shape")

    def __init__(
        self,
        path: str,
        dtype: DType,
        shape: Shape,
        data: Data,
        *,
        nbytes: int | None = None,
        param_id: int | None = None,
        container_stack: Sequence[str] = (),
    ) -> None:
        self._path = path
        self._dtype = dtype
        self._shape = shape
        self._data = data
        self._nbytes = dtype.nbytes(shape) if nbytes is None else nbytes
        self._param_id = param_id
        self._container_stack = container_stack

    @classmethod
    def from_numpy(
        cls, path: str, array: Array, *, param_id: int | None = None, container_stack: Sequence[str] = ()
    ) -> TensorSnapshot:
        """A snapshot of an array, which it shares: what is in the array when the snapshot is read counts."""
        path = _checked_path(path)
        with located(tensor=path):
            array, dtype = checked_array(array)
        return cls(
            path,
            dtype,
            array.shape,
            ArrayData(array),
            param_id=_checked(param_id),
            container_stack=tuple(container_stack),
        )

    @classmethod
    def from_torch(
        cls, path: str, tensor: Tensor, *, param_id: int | None = None, container_stack: Sequence[str] = ()
    ) -> TensorSnapshot:
        """A snapshot of a torch tensor, which it shares; it is copied, from its device too, when it is read."""
        from . import torch as torch_tensor
        from . import torch_source as torch_bytes  # not at import: whoever has a torch tensor has torch

        path = _checked_path(path)
        if not torch_tensor.is_tensor(tensor):
            raise TypeError(f"from_torch takes a torch tensor, not {type(tensor).__name__}")
        with located(tensor=path):
            dtype, shape = torch_tensor.described(tensor)
        data = torch_bytes.TorchData(tensor)
        return cls(path, dtype, shape, data, param_id=_checked(param_id), container_stack=tuple(container_stack))

    @classmethod
    def from_data(
        cls, path: str, data: TensorData, *, param_id: int | None = None, container_stack: Sequence[str] = ()
    ) -> TensorSnapshot:
        """A snapshot of data in memory."""
        if not isinstance(data, TensorData):
            raise TypeError(f"data is a TensorData, not {type(data).__name__}")
        return cls(
            _checked_path(path),
            data.dtype,
            data.shape,
            HeldData(data),
            nbytes=data.nbytes,
            param_id=_checked(param_id),
            container_stack=tuple(container_stack),
        )

    @classmethod
    def from_closure(
        cls,
        path: str,
        dtype: DType,
        shape: Sequence[int],
        provide: Callable[[], TensorData | Array],
        *,
        param_id: int | None = None,
        container_stack: Sequence[str] = (),
    ) -> TensorSnapshot:
        """A snapshot of what ``provide`` will give; dtype and shape are declared now and checked then."""
        path, shape = _checked_path(path), checked_shape(shape)
        if not isinstance(dtype, DType):
            raise TypeError(f"dtype is a DType, not {type(dtype).__name__}")
        if not callable(provide):
            raise TypeError(f"provide is a function without arguments, not {type(provide).__name__}")
        data = ProvidedData(provide, dtype, shape)
        return cls(path, dtype, shape, data, param_id=_checked(param_id), container_stack=tuple(container_stack))

    @property
    def path(self) -> str:
        """The name in the model or file, segments joined by dots."""
        return self._path

    full_path = path

    @property
    def dtype(self) -> DType:
        """What the elements are."""
        return self._dtype

    @property
    def shape(self) -> Shape:
        """The extent of each axis."""
        return self._shape

    @property
    def nbytes(self) -> int:
        """How many bytes `to_bytes` will give."""
        return self._nbytes

    data_len = nbytes

    @property
    def lies_in_source(self) -> bool:
        """Whether the bytes lie in a source as they are, so that any part can be read without the rest."""
        return isinstance(self._data, SourceData)

    @property
    def bytes_held(self) -> int:
        """How many bytes `chunks` has in memory at a time: some megabytes of data that stream, all of others."""
        told: int | None = getattr(self._data, "bytes_held", None)
        if told is not None:
            return told
        return min(self._nbytes, CHUNK_BYTES) if getattr(self._data, "streams", False) else self._nbytes

    @property
    def param_id(self) -> ParamId | None:
        """The parameter's identity, if the file or model has one."""
        return None if self._param_id is None else ParamId(self._param_id)

    @property
    def container_stack(self) -> tuple[str, ...]:
        """The types that own each segment of the path, outermost first (``Struct:Model``, ``Vec``, ...)."""
        return tuple(self._container_stack)

    @property
    def container_path(self) -> str:
        """The container stack joined by dots."""
        return ".".join(self._container_stack)

    @property
    def container_type(self) -> str:
        """The innermost container, ``Unknown`` if there is none."""
        return self._container_stack[-1] if self._container_stack else "Unknown"

    @property
    def module_type(self) -> str | None:
        """The innermost struct or enum, looking through lists, arrays and tuples."""
        return next((entry for entry in reversed(self._container_stack) if entry.startswith(_MODULE_PREFIXES)), None)

    def with_path(self, path: str) -> TensorSnapshot:
        """Return the same tensor under another name."""
        return self.replace(path=_checked_path(path))

    def replace(
        self,
        *,
        path: str | None = None,
        dtype: DType | None = None,
        shape: Shape | None = None,
        data: Data | None = None,
        nbytes: int | None = None,
        param_id: int | None = _UNCHANGED,
        container_stack: Sequence[str] | None = None,
    ) -> TensorSnapshot:
        """Return a copy with some fields changed; a new dtype or shape sets ``nbytes`` too, unless it is given.

        The fields are not checked: `with_path` checks a path that a user gave.
        """
        copy = _new(TensorSnapshot)  # __init__ would cost as much again, and every tensor comes through here
        copy._path = self._path if path is None else path
        copy._dtype = self._dtype if dtype is None else dtype
        copy._shape = self._shape if shape is None else shape
        copy._data = self._data if data is None else data
        if nbytes is None:
            nbytes = self._nbytes if dtype is None and shape is None else copy._dtype.nbytes(copy._shape)
        copy._nbytes = nbytes
        copy._param_id = self._param_id if param_id is _UNCHANGED else param_id
        copy._container_stack = self._container_stack if container_stack is None else container_stack
        return copy

    def numpy(self, *, copy: bool = False) -> Array:
        """The values. Shared and read-only where the source shares (zero-copy), otherwise, or with ``copy``, owned.

        Quantized tensors come dequantized as float32; `quantized` has their codes.
        """
        with located(tensor=self._path, path=self._data.file):
            if isinstance(self._data, ArrayData) and not copy:
                return self._data.array
            raw = self._data.owned(0, self._nbytes) if copy else self._data.window(0, self._nbytes)
            return array_from_bytes(raw, self._dtype, self._shape)

    def torch(self, *, device: Device = None, copy: bool = False) -> Tensor:
        """The values as a torch tensor, on the CPU or on ``device``.

        It shares memory with the source where writing to it does no harm, and is otherwise, or with ``copy``, owned.
        With zero-copy it shares the mapped file, privately: what is written to it stays in this process. Quantized
        tensors come dequantized as float32; F4 comes as ``float4_e2m1fn_x2``, whose last axis is half as long.

        Raises MissingDependencyError without PyTorch, DTypeError for a dtype that it has not (F6).
        """
        from . import torch as torch_tensor
        from . import torch_source as torch_bytes  # not at import: torch is imported when one of its tensors is wanted

        data = self._data
        with located(tensor=self._path, path=data.file):
            if isinstance(data, torch_bytes.TorchData):
                return torch_tensor.placed(data.tensor.detach(), device, copy=copy)
            if isinstance(data, ArrayData):
                return torch_tensor.placed(torch_tensor.tensor_from_array(data.array), device, copy=copy)
            if isinstance(data, SourceData) and torch_tensor.is_carried(self._dtype, self._nbytes, device):
                return torch_tensor.carried(data.source, data.offset, data.nbytes, self._dtype, self._shape, device)
            raw = data.owned(0, self._nbytes) if copy else data.window(0, self._nbytes)
            return torch_tensor.placed(torch_tensor.tensor_from_bytes(raw, self._dtype, self._shape), device)

    def to_data(self) -> TensorData:
        """The bytes with their dtype and shape."""
        with located(tensor=self._path, path=self._data.file):
            return TensorData(self._data.window(0, self._nbytes), self._dtype, self._shape)

    def to_bytes(self) -> bytes:
        """The bytes, row-major and little-endian, as Burn's TensorData holds them."""
        with located(tensor=self._path, path=self._data.file):
            return bytes(self._data.window(0, self._nbytes))

    def quantized(self) -> QuantizedTensor:
        """The codes and scales of a quantized tensor."""
        with located(tensor=self._path, path=self._data.file):
            return quantized_from_bytes(self._data.window(0, self._nbytes), self._dtype, self._shape)

    def chunks(self) -> Iterator[memoryview]:
        """The bytes in order, a few megabytes at a time where the data allows."""
        with located(tensor=self._path, path=self._data.file):
            yield from self._data.chunks(self._nbytes)

    def __getitem__(self, index: Any) -> Array:
        """A part of the values, by integers and slices; only the rows that it spans are read."""
        wanted = _full_index(index, len(self._shape))
        if self._dtype.bits % 8 or self._dtype.is_quantized:
            return self.numpy()[wanted]
        start, rows_shape, rest = _rows(wanted, self._shape)
        size = self._dtype.bits // 8
        with located(tensor=self._path, path=self._data.file):
            raw = self._data.window(start * size, (start + math.prod(rows_shape)) * size)
            return array_from_bytes(raw, self._dtype, rows_shape)[rest]

    def __repr__(self) -> str:
        return f"TensorSnapshot({printable(self._path)!r}, {self._dtype}, {list(self._shape)})"


def _checked_path(path: str) -> str:
    if not isinstance(path, str):
        raise TypeError(f"a path is a str, not {type(path).__name__}")
    return path


def _checked(param_id: int | None) -> int | None:
    return None if param_id is None else int(ParamId(param_id))


def _full_index(index: Any, rank: int) -> tuple[int | slice, ...]:
    """The index as one int or slice per axis."""
    parts = list(index) if isinstance(index, tuple) else [index]
    for part in parts:
        if part is not Ellipsis and not (isinstance(part, (int, np.integer, slice)) and not isinstance(part, bool)):
            raise TypeError(
                f"a snapshot is indexed by integers and slices, not {type(part).__name__}; numpy()[...] takes the rest"
            )
    if parts.count(Ellipsis) > 1:
        raise IndexError("an index can have one ellipsis")
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * (rank - len(parts) + 1)
    if len(parts) > rank:
        raise IndexError(f"{len(parts)} indices for a tensor of rank {rank}")
    return tuple(parts) + (slice(None),) * (rank - len(parts))


def _rows(index: tuple[int | slice, ...], shape: Shape) -> tuple[int, Shape, tuple[int | slice, ...]]:
    """The run of elements that the leading part of the index spans: its start, its shape, and what is left to index."""
    start = 0
    for axis, part in enumerate(index):
        extent, inner = shape[axis], math.prod(shape[axis + 1 :])
        if not isinstance(part, slice):
            position = int(part) + extent if part < 0 else int(part)
            if not 0 <= position < extent:
                raise IndexError(f"index {part} is out of bounds for axis {axis} with size {extent}")
            start += position * inner
            continue
        chosen = range(*part.indices(extent))
        ends = (chosen[0], chosen[-1]) if chosen else ()  # of the range itself min and max would count through it
        low, high = (min(ends), max(ends) + 1) if ends else (0, 0)
        if chosen and chosen.step < 0:
            relative = slice(None, None, chosen.step)
        else:
            relative = slice(0, high - low, chosen.step if chosen else None)
        return start + low * inner, (high - low, *shape[axis + 1 :]), (relative, *index[axis + 1 :])
    return start, (), ()


def read_all(snapshots: Sequence[TensorSnapshot]) -> list[Any]:
    """The bytes of many snapshots, each a buffer, or the error that reading it gave; few large reads where they can be.

    A buffer belongs to the caller; only a source that shares its memory gives views on it. Snapshots of one source are
    read together. If that fails they are read one by one, to find out which cannot be.
    """
    buffers: list[Any] = [None] * len(snapshots)
    by_source: dict[int, list[tuple[int, SourceData]]] = {}
    for row, snapshot in enumerate(snapshots):
        data = snapshot._data
        if isinstance(data, SourceData):
            by_source.setdefault(id(data.source), []).append((row, data))
        else:
            buffers[row] = _read_one(snapshot)
    for ranges in by_source.values():
        source = ranges[0][1].source
        try:
            found, places = gather(source, [data.offset for _, data in ranges], [data.nbytes for _, data in ranges])
        except BurnstoreError:
            for row, _ in ranges:
                buffers[row] = _read_one(snapshots[row])
            continue
        for (row, data), buffer, place in zip(ranges, found, places, strict=True):
            buffers[row] = memoryview(buffer)[place : place + data.nbytes]
    return buffers


def _read_one(snapshot: TensorSnapshot) -> Any:
    try:
        with located(tensor=snapshot._path, path=snapshot._data.file):
            data = snapshot._data
            shared = isinstance(data, SourceData)  # elsewhere a window may be an array that somebody goes on using
            return data.window(0, snapshot._nbytes) if shared else data.owned(0, snapshot._nbytes)
    except Exception as error:  # a snapshot's function is the caller's: whatever it raises is reported as a load error
        return error
