"""The abilities of a format, as class attributes that a test class overrides, and the data that all tests use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from ..checkpoint import Checkpoint, open_checkpoint
from ..io.source import BytesSource, Read
from ..limits import Limits
from ..saving import save, serialize
from ..tensor.data import Array, TensorData
from ..tensor.dtype import DType

SHAPES = {str(list(shape)): shape for shape in [(), (3, 0, 2), (1,), (6,), (2, 1, 3, 1, 1, 1, 2, 2), (64, 130)]}

NAMES: dict[str, str] = {
    **{repr(name): name for name in ("encoder.layers.0.weight", "a/b\\c:d", "../../etc/x", " a b ", 'it\'s "quoted"')},
    **{ascii(name): name for name in ("größe.重み.🔥", "e\u0301", "a\nb", "a\0b", "\x1b[31m", "w", "")},
    "255-bytes": "x" * 255,
    "256-bytes": "x" * 256,
    "long": "layer." * 1000,
}

METADATA: dict[str, dict[str, str]] = {
    "none": {},
    "one": {"epochs": "100"},
    "unicode": {"ключ": "значение", "日本語": "重み", "🔥": "\U0010ffff"},
    "empty-key-and-value": {"": "", "a": ""},
    "long": {"long": "x" * 70_000},
    "control-characters": {"a\nb\0c": "\x1b[31m\r\n"},
    "many": {f"key {number}": str(number) for number in range(300)},
}

_SLICES = [slice(2, 5), slice(1, 9, 2), slice(None, None, -1), slice(8, 1, -3), slice(5, 5), slice(7, 1000)]
_PLACES = [(4, 2), (4, slice(1, 3)), (slice(2, 4), 1), (..., 1), ..., np.int64(6), (1, slice(None), 0), (9, 3, 1)]
INDICES = {repr(index): index for index in (3, -1, *_SLICES, *_PLACES)}


class CountingSource(BytesSource):
    """Bytes in memory that record every range that is read.

    >>> source = CountingSource(b"header and data")
    >>> source.read_at(0, 6)
    b'header'
    >>> source.ranges, source.bytes_read
    ([(0, 6)], 6)
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data, name="<counted bytes>")
        self.ranges: list[tuple[int, int]] = []

    @property
    def bytes_read(self) -> int:
        """The number of bytes read since the last `forget`; bytes read twice count twice."""
        return sum(length for _, length in self.ranges)

    def forget(self) -> None:
        """Start counting again."""
        self.ranges.clear()

    def read_at(self, offset: int, length: int) -> bytes:
        self.ranges.append((offset, length))
        return super().read_at(offset, length)

    def read_into(self, reads: Sequence[Read]) -> None:
        self.ranges.extend((offset, len(buffer)) for offset, buffer in reads)
        super().read_into(reads)


def f32(*values: float) -> Array:
    """Return a vector of singles."""
    return np.array(values, np.float32)


def layouts() -> dict[str, Callable[[Array], Array]]:
    """Return ways to arrange equal values in memory."""

    def unaligned(array: Array) -> Array:
        raw = np.empty(array.nbytes + 1, np.uint8)
        placed: Array = np.ndarray(array.shape, array.dtype, raw.data, 1)
        placed[...] = array
        return placed

    def every_other(array: Array) -> Array:
        wide: Array = np.zeros(tuple(2 * extent for extent in array.shape), array.dtype)
        placed = wide[tuple(slice(None, None, 2) for _ in array.shape)]
        placed[...] = array
        return placed

    def reversed_memory(array: Array) -> Array:
        return np.flip(np.ascontiguousarray(np.flip(array)))

    def read_only(array: Array) -> Array:
        frozen = array.copy()
        frozen.flags.writeable = False
        return frozen

    return {
        "row-major": np.ascontiguousarray,
        "fortran": np.asfortranarray,
        "transposed": lambda array: np.ascontiguousarray(array.T).T,
        "negative-strides": reversed_memory,
        "every-other": every_other,
        "broadcast": lambda array: np.broadcast_to(array[:1], array.shape),
        "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
        "unaligned": unaligned,
        "read-only": read_only,
    }


class Abilities:
    """The name of the format under test and its abilities; a test class overrides those that differ.

    For an ability that a format lacks, the tests check that asking for it raises.
    """

    format: ClassVar[str]
    """The name under which the format is registered."""
    suffix: ClassVar[str]
    """The suffix of its files, such as ``.bpk``."""
    dtypes: ClassVar[Sequence[DType]] = (
        *(DType.F64, DType.F32, DType.F16, DType.BF16),
        *(DType.I64, DType.I32, DType.I16, DType.I8, DType.U64, DType.U32, DType.U16, DType.U8, DType.Bool),
    )
    """The dtypes that it can hold; others must be refused with a `DTypeError`."""
    stored_as: ClassVar[Mapping[DType, DType]] = {}
    """Dtypes that it writes as another dtype of equal bytes, and that dtype."""
    most_axes: ClassVar[int] = 64
    """The most axes that a tensor of it can have."""
    names: ClassVar[Mapping[str, str]] = NAMES
    """Names that it can hold, by the test's id."""
    holds_metadata: ClassVar[bool] = True
    """Whether metadata comes back; if not, giving some must raise."""
    holds_param_ids: ClassVar[bool] = True
    """Whether parameter ids come back; if not, they come back as None."""
    keeps_order: ClassVar[bool] = True
    """Whether data are stored in the order in which tensors were given, and come back in it."""
    shares_memory: ClassVar[bool] = True
    """Whether ``zero_copy=True`` gives views on the file."""
    reads_rows: ClassVar[bool] = True
    """Whether a slice reads only its own rows."""
    deterministic: ClassVar[bool] = True
    """Whether equal tensors give equal bytes."""
    refuses_trailing_bytes: ClassVar[bool] = True
    """Whether a byte after the end is an error."""
    save_options: ClassVar[Mapping[str, Any]] = {}
    """Options that every save is given."""
    open_options: ClassVar[Mapping[str, Any]] = {}
    """Options that every open is given."""

    def pack(self, tensors: Any, *, metadata: Mapping[str, str] | None = None) -> bytes:
        """Serialize these tensors."""
        return serialize(tensors, format=self.format, metadata=metadata, **self.save_options)

    def save(self, tensors: Any, path: str | os.PathLike[str], **more: Any) -> None:
        """Save these tensors, without fsync."""
        save(tensors, path, durable=False, format=self.format, **{**self.save_options, **more})

    def open(self, source: Any, **more: Any) -> Checkpoint:
        """Open such a file or its bytes; the bytes decide the format unless ``format`` is given."""
        return open_checkpoint(source, **{**self.open_options, **more})

    def open_counting(self, data: bytes) -> tuple[Checkpoint, CountingSource]:
        """Open such bytes; return the checkpoint and the source that records its reads."""
        source = CountingSource(data)
        return Checkpoint(source, None, Limits(), dict(self.open_options)), source

    def without_padding(self, data: bytes) -> bytes:
        """Return a file without the bytes at its end that may be missing; none, unless a format overrides this."""
        return data

    def floats(self) -> dict[str, Array]:
        """Return a few small arrays, one of them with three axes."""
        return {
            "z.first": np.arange(10 * 4 * 2, dtype=np.float32).reshape(10, 4, 2),
            "a.second": np.arange(5, dtype=np.float32) - 2.5,
            "m.third": np.array([[1, 2], [3, 4]], np.float32),
        }

    def any_bits(self, dtype: DType, shape: tuple[int, ...]) -> TensorData:
        """Return a tensor of arbitrary bits: floats include NaNs with payloads, bools only zeros and ones."""
        size = dtype.nbytes(shape)
        raw = np.random.default_rng(size + dtype.bits).integers(0, 256, size, np.uint8)
        if dtype.is_bool:
            raw &= 1
            raw.reshape(-1, dtype.bits // 8)[:, 1:] = 0
        return TensorData.from_bytes(raw.tobytes(), dtype, shape)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize the tests by the attributes above."""
        known: dict[str, Mapping[str, Any]] = {
            "dtype": {str(dtype): dtype for dtype in self.dtypes},
            "shape": {label: shape for label, shape in SHAPES.items() if len(shape) <= self.most_axes},
            "name": self.names,
            "layout": layouts(),
            "metadata": METADATA if self.holds_metadata else {"none": {}},
            "index": INDICES,
        }
        for fixture in metafunc.fixturenames:
            if fixture in known:
                cases = known[fixture]
                metafunc.parametrize(fixture, list(cases.values()), ids=list(cases))


def same_bits(first: Array, second: Array) -> bool:
    """Return whether two arrays are equal bit for bit, byte order aside."""
    alike = first.shape == second.shape and first.dtype == second.dtype.newbyteorder("=")
    return alike and first.tobytes() == second.astype(first.dtype, copy=False).tobytes()


def files_in(folder: Path) -> list[str]:
    """Return the names in a folder, scratch files included."""
    return sorted(os.listdir(folder))
