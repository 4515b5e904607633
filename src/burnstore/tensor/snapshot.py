"""TensorSnapshot: a tensor that is known but not yet read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BurnstoreError, CorruptError, expect, located, printable
from ..io.gather import gather
from .data import (
    Array,
    Shape,
    TensorData,
    array_from_bytes,
    check_bools,
    checked_array,
    checked_shape,
    quantized_from_bytes,
)
from .dtype import DType, Kind
from .facts import DecodedData, DequantizedData, Facts, Piece, PieceData, Scheme, ValuesData
from .param_id import ParamId
from .sources import ArrayData, Data, HeldData, ProvidedData, SourceData

if TYPE_CHECKING:
    from .quantization import QuantizedTensor
    from .torch import Device, Tensor


_MODULE_PREFIXES = ("Struct:", "Enum:")
_UNCHANGED: Any = object()
_new = object.__new__


class TensorSnapshot:
    """A tensor by name, dtype and shape, whose bytes are read when they are asked for.

    Immutable and cheap: renaming (`with_path`) shares the data, and nothing is kept after a read.

    >>> snapshot = TensorSnapshot.from_numpy("encoder.weight", np.arange(6, dtype=np.float32).reshape(3, 2))
    >>> snapshot
    TensorSnapshot('encoder.weight', F32, [3, 2])
    >>> snapshot[1:].tolist()
    [[2.0, 3.0], [4.0, 5.0]]
    """

    __slots__ = ("_container_stack", "_data", "_dtype", "_facts", "_layout", "_nbytes", "_param_id", "_path", "_shape")

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
        layout: str | None = None,
        facts: Facts | None = None,
    ) -> None:
        self._path = path
        self._dtype = dtype
        self._shape = shape
        self._data = data
        self._nbytes = dtype.nbytes(shape) if nbytes is None else nbytes
        self._param_id = param_id
        self._container_stack = container_stack
        self._layout = layout
        self._facts = facts

    @classmethod
    def from_numpy(
        cls, path: str, array: Array, *, param_id: int | None = None, container_stack: Sequence[str] = ()
    ) -> TensorSnapshot:
        """Return a snapshot of an array, which it shares: a read returns the array's values at that time."""
        expect(path, str, "path")
        with located(tensor=path):
            array, dtype = checked_array(array)
        held = cls(path, dtype, array.shape, ArrayData(array), nbytes=array.nbytes)
        return held if param_id is None and not container_stack else held._of(param_id, container_stack)

    @classmethod
    def from_torch(
        cls, path: str, tensor: Tensor, *, param_id: int | None = None, container_stack: Sequence[str] = ()
    ) -> TensorSnapshot:
        """Return a snapshot of a torch tensor, which it shares; a read copies it, from its device too."""
        from . import torch as torch_tensor  # not at import: a caller with a torch tensor has torch
        from .torch import TorchData

        expect(path, str, "path")
        if not torch_tensor.is_tensor(tensor):
            raise TypeError(f"from_torch expects a torch tensor, got {type(tensor).__name__}")
        with located(tensor=path):
            dtype, shape = torch_tensor.described(tensor)
        return cls(path, dtype, shape, TorchData(tensor))._of(param_id, container_stack)

    @classmethod
    def from_data(
        cls, path: str, data: TensorData, *, param_id: int | None = None, container_stack: Sequence[str] = ()
    ) -> TensorSnapshot:
        """Return a snapshot of data in memory."""
        expect(data, TensorData, "data")
        held = cls(path, data.dtype, data.shape, HeldData(data), nbytes=data.nbytes)
        return held._of(param_id, container_stack)

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
        """Return a snapshot of what ``provide`` returns when it is read; its dtype and shape are checked then."""
        shape = checked_shape(shape)
        expect(dtype, DType, "dtype")
        if not callable(provide):
            raise TypeError(f"provide must be a function without arguments, got {type(provide).__name__}")
        return cls(path, dtype, shape, ProvidedData(provide, dtype, shape))._of(param_id, container_stack)

    def _of(self, param_id: int | None, container_stack: Sequence[str]) -> TensorSnapshot:
        """Set what every constructor takes from a caller, checked."""
        expect(self._path, str, "path")
        self._param_id = None if param_id is None else int(ParamId(param_id))
        self._container_stack = tuple(container_stack)
        return self

    @property
    def path(self) -> str:
        """The name in the model or file, segments joined by dots."""
        return self._path

    full_path = path

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._dtype

    @property
    def shape(self) -> Shape:
        """The extent of each axis."""
        return self._shape

    @property
    def nbytes(self) -> int:
        """The number of bytes that `to_bytes` returns."""
        return self._nbytes

    data_len = nbytes

    @property
    def is_source_range(self) -> bool:
        """Whether the bytes are one range of a source, so that any part can be read without the rest."""
        return isinstance(self._data, SourceData)

    @property
    def bytes_held(self) -> int:
        """The most bytes that `chunks` has in memory at a time: some megabytes of data that stream, all of others."""
        return self._data.bytes_held(self._nbytes)

    @property
    def param_id(self) -> ParamId | None:
        """The parameter's identity, if the file or model has one."""
        return None if self._param_id is None else ParamId(self._param_id)

    @property
    def container_stack(self) -> tuple[str, ...]:
        """The types that contain each segment of the path, outermost first (``Struct:Model``, ``Vec``, ...)."""
        return tuple(self._container_stack)

    @property
    def layout(self) -> str | None:
        """The layout of the file or model that it came from (``"burn"``, ``"torch"``); None if that is unknown."""
        return self._layout

    @property
    def piece(self) -> Piece | None:
        """The place in the whole tensor that this one is a part of; None for a whole tensor.

        The values of a part are not read under the name of the whole; `local` gives them.
        """
        return None if self._facts is None else self._facts.piece

    @property
    def scheme(self) -> Scheme | None:
        """What the numbers depend on: a quantization scheme and the names of its scales; None if on nothing.

        ``dtype`` and ``shape`` are those of the decoded values, which every read returns; `stored` has the codes.
        """
        if self._facts is None or not isinstance(self._data, (DecodedData, PieceData)):
            return None  # of a tensor that was computed from it, nothing depends on the scales any more
        return self._facts.scheme

    def decoded(self) -> TensorSnapshot:
        """Return the values of a tensor with a `scheme`, or of Burn's QFloat, as numbers of their own.

        A copy of it writes the values, where a copy of this one writes the codes and scales. Any other tensor is
        returned unchanged.
        """
        if self._dtype.is_quantized:
            data = DequantizedData(self._data, self._dtype, self._shape, self._nbytes)
            return self.replace(dtype=DType.F32, data=data)
        if not isinstance(self._data, DecodedData):
            return self
        facts = self._facts and self._facts._replace(scheme=None)
        return self.replace(data=ValuesData(self._data), facts=facts if facts and facts.piece else None)

    def stored(self) -> tuple[TensorSnapshot, ...]:
        """Return the tensors of the file that this one is decoded from, the codes first; itself if it is not coded."""
        data = self._data
        if not isinstance(data, DecodedData):
            return (self,)
        return tuple(
            TensorSnapshot(path, dtype, shape, own, nbytes=nbytes, layout=self._layout)
            for path, dtype, shape, own, nbytes in data.stored
        )

    def local(self) -> TensorSnapshot:
        """Return a part of a tensor (see `piece`) as a tensor of its own; a whole tensor is returned unchanged."""
        if self._facts is None or self._facts.piece is None:
            return self
        data = self._data.data if isinstance(self._data, PieceData) else self._data
        return self.replace(data=data, facts=None if self.scheme is None else self._facts._replace(piece=None))

    @property
    def container_path(self) -> str:
        """The container stack joined by dots."""
        return ".".join(self._container_stack)

    @property
    def container_type(self) -> str:
        """The innermost container, or ``Unknown``."""
        return self._container_stack[-1] if self._container_stack else "Unknown"

    @property
    def module_type(self) -> str | None:
        """The innermost struct or enum, ignoring lists, arrays and tuples."""
        return next((entry for entry in reversed(self._container_stack) if entry.startswith(_MODULE_PREFIXES)), None)

    def with_path(self, path: str) -> TensorSnapshot:
        """Return the same tensor under another name."""
        return self.replace(path=expect(path, str, "path"))

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
        layout: str | None = None,
        facts: Facts | None = _UNCHANGED,
    ) -> TensorSnapshot:
        """Return a copy with some fields changed; a new dtype or shape sets ``nbytes`` too, unless it is given.

        The fields are not checked: `with_path` checks a path that a user gave.
        """
        copy = _new(TensorSnapshot)  # not by __init__, which would double the cost: every tensor comes through here
        copy._path = self._path if path is None else path
        copy._dtype = self._dtype if dtype is None else dtype
        copy._shape = self._shape if shape is None else shape
        copy._data = self._data if data is None else data
        if nbytes is None:
            nbytes = self._nbytes if dtype is None and shape is None else copy._dtype.nbytes(copy._shape)
        copy._nbytes = nbytes
        copy._param_id = self._param_id if param_id is _UNCHANGED else param_id
        copy._container_stack = self._container_stack if container_stack is None else container_stack
        copy._layout = self._layout if layout is None else layout
        copy._facts = self._facts if facts is _UNCHANGED else facts
        return copy

    def numpy(self, *, copy: bool = False) -> Array:
        """Return the values: shared and read-only with zero-copy, otherwise, or with ``copy``, in memory of their own.

        Quantized tensors are dequantized to float32; `quantized` returns their codes.
        """
        with located(tensor=self._path, path=self._data.file):
            if isinstance(self._data, ArrayData) and not copy:
                return self._data.array
            raw = self._data.owned(0, self._nbytes) if copy else self._data.window(0, self._nbytes)
            return array_from_bytes(raw, self._dtype, self._shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the values for NumPy: ``np.asarray(snapshot)``, with NumPy's meaning of ``dtype`` and ``copy``."""
        values = self.numpy(copy=bool(copy))
        if dtype is None or values.dtype == dtype:
            return values
        if copy is False:
            raise ValueError(f"cannot convert {values.dtype} to {np.dtype(dtype)} without a copy")
        return values.astype(dtype)

    def torch(self, *, device: Device = None, copy: bool = False) -> Tensor:
        """Return the values as a torch tensor, on the CPU or on ``device``.

        It shares memory with the source where writing to it does no harm, and otherwise, or with ``copy``, has its own.
        With zero-copy it shares the mapped file, privately: writes to it stay in this process. Quantized tensors are
        dequantized to float32; F4 becomes ``float4_e2m1fn_x2``, whose last axis is half as long.

        Raises MissingDependencyError without PyTorch, DTypeError for a dtype that PyTorch does not have (F6).
        """
        from . import torch as torch_tensor  # not at import: torch is imported when a tensor of it is asked for
        from .torch import TorchData

        data = self._data
        with located(tensor=self._path, path=data.file):
            if isinstance(data, TorchData):
                return torch_tensor.placed(data.tensor.detach(), device, copy=copy)
            if isinstance(data, ArrayData):
                return torch_tensor.placed(torch_tensor.tensor_from_array(data.array), device, copy=copy)
            if isinstance(data, SourceData) and torch_tensor.is_transferred(self._dtype, self._nbytes, device):
                return torch_tensor.transferred(data.source, data.offset, data.nbytes, self._dtype, self._shape, device)
            raw = data.owned(0, self._nbytes) if copy else data.window(0, self._nbytes)
            return torch_tensor.placed(torch_tensor.tensor_from_bytes(raw, self._dtype, self._shape), device)

    def to_data(self) -> TensorData:
        """Return the bytes with their dtype and shape."""
        with located(tensor=self._path, path=self._data.file):
            return TensorData(self._data.window(0, self._nbytes), self._dtype, self._shape)

    def to_bytes(self) -> bytes:
        """Return the bytes, row-major and little-endian, as Burn's TensorData has them."""
        with located(tensor=self._path, path=self._data.file):
            raw = bytes(self._data.window(0, self._nbytes))
            check_bools(raw, self._dtype)
            return raw

    def quantized(self) -> QuantizedTensor:
        """Return the codes and scales of a quantized tensor."""
        with located(tensor=self._path, path=self._data.file):
            return quantized_from_bytes(self._data.window(0, self._nbytes), self._dtype, self._shape)

    def chunks(self) -> Iterator[memoryview]:
        """Return an iterator of the bytes in order, a few megabytes at a time where the data allow."""
        if type(self._data) is ArrayData and self._dtype.kind is not Kind.BOOL:
            return self._data.chunks(self._nbytes)  # nothing can fail: there may be very many tensors
        return self._chunks()

    def _chunks(self) -> Iterator[memoryview]:
        with located(tensor=self._path, path=self._data.file):
            if self._dtype.kind is not Kind.BOOL:
                yield from self._data.chunks(self._nbytes)
                return
            for chunk in self._data.chunks(self._nbytes):
                check_bools(chunk, self._dtype)
                yield chunk

    def __getitem__(self, index: Any) -> Array:
        """Return a part of the values, by integers and slices; only the rows that it spans are read."""
        wanted = _full_index(index, len(self._shape))
        if self._dtype.bits % 8 or self._dtype.is_quantized:
            return self.numpy()[wanted]
        if self._data.reads_boxes:
            low, extents, rest = _box(wanted, self._shape)
            with located(tensor=self._path, path=self._data.file):
                raw = memoryview(self._data.read_box(low, extents).reshape(-1).view(np.uint8))
                return array_from_bytes(raw, self._dtype, extents)[rest]
        start, rows_shape, rest = _rows(wanted, self._shape)
        size = self._dtype.bits // 8
        with located(tensor=self._path, path=self._data.file):
            nbytes = math.prod(rows_shape) * size
            is_whole = nbytes == self._nbytes
            raw = self._data.window(0, nbytes) if is_whole else self._data.range(start * size, nbytes).window(0, nbytes)
            return array_from_bytes(raw, self._dtype, rows_shape)[rest]

    def __repr__(self) -> str:
        facts = [self.piece.text] if self.piece is not None else []
        facts += [str(self.scheme)] if self.scheme is not None else []
        more = "".join(f", {printable(fact)}" for fact in facts)
        return f"TensorSnapshot({printable(self._path)!r}, {self._dtype}, {list(self._shape)}{more})"


def _full_index(index: Any, rank: int) -> tuple[int | slice, ...]:
    """Return the index as one int or slice per axis."""
    parts = list(index) if isinstance(index, tuple) else [index]
    for part in parts:
        if part is not Ellipsis and not (isinstance(part, (int, np.integer, slice)) and not isinstance(part, bool)):
            raise TypeError(
                f"index a snapshot by integers and slices, not {type(part).__name__}; numpy()[...] accepts more"
            )
    if parts.count(Ellipsis) > 1:
        raise IndexError("an index can only have one ellipsis")
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * (rank - len(parts) + 1)
    if len(parts) > rank:
        raise IndexError(f"{len(parts)} indices for a tensor of rank {rank}")
    return tuple(parts) + (slice(None),) * (rank - len(parts))


def _rows(index: tuple[int | slice, ...], shape: Shape) -> tuple[int, Shape, tuple[int | slice, ...]]:
    """Return the run of elements that the leading indices span: its start, its shape, and the index within it."""
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
        ends = (chosen[0], chosen[-1]) if chosen else ()  # min and max of the range itself would iterate it
        low, high = (min(ends), max(ends) + 1) if ends else (0, 0)
        if chosen and chosen.step < 0:
            relative = slice(None, None, chosen.step)
        else:
            relative = slice(0, high - low, chosen.step if chosen else None)
        return start + low * inner, (high - low, *shape[axis + 1 :]), (relative, *index[axis + 1 :])
    return start, (), ()


def _box(index: tuple[int | slice, ...], shape: Shape) -> tuple[Shape, Shape, tuple[int | slice, ...]]:
    """Return the box that an index spans: its start, its extents, and the index within it."""
    low, extents, rest = list[int](), list[int](), list[int | slice]()
    for axis, part in enumerate(index):
        is_slice = isinstance(part, slice)
        start, span, relative = _rows((part,), (shape[axis],))
        low.append(start)
        extents.append(span[0] if is_slice else 1)
        rest.append(relative[0] if is_slice else 0)
    return tuple(low), tuple(extents), tuple(rest)


def read_all(snapshots: Sequence[TensorSnapshot]) -> list[Any]:
    """Read many snapshots with few large reads; return a buffer for each, or the error of reading it.

    A buffer belongs to the caller, unless the source shares its memory. Snapshots of one source are read together. If
    that fails they are read one by one, to find those that cannot be read.
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


def read_together(snapshots: Iterable[TensorSnapshot]) -> list[Any]:
    """Read many snapshots as `read_all` does, and raise the first error."""
    buffers = read_all(list(snapshots))
    for buffer in buffers:
        if isinstance(buffer, Exception):
            raise buffer
    return buffers


def _read_one(snapshot: TensorSnapshot) -> Any:
    try:
        with located(tensor=snapshot._path, path=snapshot._data.file):
            data = snapshot._data
            shared = isinstance(data, SourceData)  # a window of other data may be an array that its owner changes
            return data.window(0, snapshot._nbytes) if shared else data.owned(0, snapshot._nbytes)
    except Exception as error:  # a snapshot's function may raise anything: report it as a load error
        return error


class ByteStream:
    """The bytes of one tensor in order; those of a file from any offset on.

    Bytes of a file are read into one buffer, which each `take` overwrites. Streams one after another can share it.

    >>> import numpy as np
    >>> stream = ByteStream(TensorSnapshot.from_numpy("x", np.arange(6, dtype=np.uint8)))
    >>> bytes(stream.take(2)), bytes(stream.take(3))
    (b'\\x00\\x01', b'\\x02\\x03\\x04')
    """

    def __init__(self, tensor: TensorSnapshot, start: int = 0, buffer: bytearray | None = None) -> None:
        if start and not isinstance(tensor._data, SourceData):
            raise ValueError("only tensors of files can be read from any offset")
        self._tensor = tensor
        self._position = start
        self._buffer = buffer
        self._chunks: Iterator[memoryview] = iter(()) if isinstance(tensor._data, SourceData) else tensor.chunks()
        self._rest = memoryview(b"")

    def take(self, length: int) -> bytearray | memoryview:
        """Return the next bytes."""
        data = self._tensor._data
        if not isinstance(data, SourceData):
            return self._next(length)
        position = data.offset + self._position
        self._position += length
        with located(tensor=self._tensor.path, path=data.file):
            shared = data.source.view(position, length)
            if shared is not None:
                return shared
            if self._buffer is None or len(self._buffer) < length:
                self._buffer = bytearray(length)
            part = memoryview(self._buffer)[:length]
            data.source.read_into([(position, part)])
        return self._buffer if length == len(self._buffer) else part

    def _next(self, length: int) -> memoryview:
        while len(self._rest) < length:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise CorruptError(f"ends {length - len(self._rest)} bytes early", tensor=self._tensor.path)
            self._rest = memoryview(bytes(self._rest) + bytes(chunk)) if self._rest else chunk
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken
