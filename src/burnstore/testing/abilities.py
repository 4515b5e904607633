"""What a format can do, as class attributes that a test class overrides, and the tensors that all tests use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from ..checkpoint import Checkpoint, open_checkpoint
from ..limits import Limits
from ..saving import save, serialize
from ..tensor.data import Array, TensorData
from ..tensor.dtype import DType
from .counting import CountingSource

SHAPES: dict[str, tuple[int, ...]] = {
    "scalar": (),
    "no-elements": (3, 0, 2),
    "one-element": (1,),
    "vector": (6,),
    "rank-8": (2, 1, 3, 1, 1, 1, 2, 2),
    "large": (64, 130),
}

NAMES: dict[str, str] = {
    "dots": "encoder.layers.0.weight",
    "slashes": "a/b\\c:d",
    "outside": "../../etc/x",
    "spaces": " a b ",
    "quotes": 'it\'s "quoted"',
    "unicode": "größe.重み.🔥",
    "combining": "e\u0301",
    "newline": "a\nb",
    "nul": "a\0b",
    "escape": "\x1b[31m",
    "one-character": "w",
    "255-bytes": "x" * 255,
    "256-bytes": "x" * 256,
    "long": "layer." * 1000,
    "empty": "",
}

TEXTS: dict[str, dict[str, str]] = {
    "none": {},
    "one": {"epochs": "100"},
    "unicode": {"ключ": "значение", "日本語": "重み", "🔥": "\U0010ffff"},
    "empty-key-and-value": {"": "", "a": ""},
    "long": {"long": "x" * 70_000},
    "control-characters": {"a\nb\0c": "\x1b[31m\r\n"},
    "many": {f"key {number}": str(number) for number in range(300)},
}

INDICES: dict[str, Any] = {
    "row": 3,
    "last-row": -1,
    "rows": slice(2, 5),
    "every-other": slice(1, 9, 2),
    "backwards": slice(None, None, -1),
    "backwards-some": slice(8, 1, -3),
    "nothing": slice(5, 5),
    "past-the-end": slice(7, 1000),
    "row-and-column": (4, 2),
    "row-and-columns": (4, slice(1, 3)),
    "rows-and-column": (slice(2, 4), 1),
    "ellipsis": (..., 1),
    "everything": ...,
    "numpy-integer": np.int64(6),
    "three": (1, slice(None), 0),
    "one-element": (9, 3, 1),
}


def f32(*values: float) -> Array:
    """A vector of singles."""
    return np.array(values, np.float32)


def layouts() -> dict[str, Callable[[Array], Array]]:
    """Ways in which equal values can lie in memory."""

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
    """What the format under test is called and what it can do; a test class overrides what differs.

    A format that cannot do a thing must say so: the tests then check that asking for it raises.
    """

    format: ClassVar[str]
    """The name under which it is registered."""
    suffix: ClassVar[str]
    """What its files end in, such as ``.bpk``."""
    dtypes: ClassVar[Sequence[DType]] = (
        *(DType.F64, DType.F32, DType.F16, DType.BF16),
        *(DType.I64, DType.I32, DType.I16, DType.I8, DType.U64, DType.U32, DType.U16, DType.U8, DType.Bool),
    )
    """The dtypes that it can hold; all others must be refused with a `DTypeError`."""
    stored_as: ClassVar[Mapping[DType, DType]] = {}
    """Dtypes that it writes under the name of another one of equal bytes, and which that is."""
    names: ClassVar[Mapping[str, str]] = NAMES
    """Names, by a word for the test's id, that it can hold."""
    holds_metadata: ClassVar[bool] = True
    """Whether texts beside the tensors come back; if not, giving some must raise."""
    holds_param_ids: ClassVar[bool] = True
    """Whether parameter ids come back; if not, they come back as None."""
    keeps_order: ClassVar[bool] = True
    """Whether data lie in the order in which tensors were given, and come back in it."""
    shares_memory: ClassVar[bool] = True
    """Whether ``zero_copy=True`` gives views on the file (it does where bytes are stored as they are)."""
    reads_rows: ClassVar[bool] = True
    """Whether a slice reads its own rows only."""
    deterministic: ClassVar[bool] = True
    """Whether equal tensors give equal bytes."""
    refuses_trailing_bytes: ClassVar[bool] = True
    """Whether a byte after the end is an error."""
    save_options: ClassVar[Mapping[str, Any]] = {}
    """Options that every save is given."""
    open_options: ClassVar[Mapping[str, Any]] = {}
    """Options that every open is given."""

    def pack(self, tensors: Any, *, metadata: Mapping[str, str] | None = None) -> bytes:
        """These tensors as the bytes of a file."""
        return serialize(tensors, format=self.format, metadata=metadata, **self.save_options)

    def save(self, tensors: Any, path: str | os.PathLike[str], **more: Any) -> None:
        """These tensors as a file; without fsync, which tests have no use for."""
        save(tensors, path, durable=False, format=self.format, **{**self.save_options, **more})

    def open(self, source: Any, **more: Any) -> Checkpoint:
        """Such a file or its bytes, opened; the format is left to the bytes unless ``format`` is given."""
        return open_checkpoint(source, **{**self.open_options, **more})

    def open_counting(self, data: bytes) -> tuple[Checkpoint, CountingSource]:
        """Such bytes opened, and the source that knows what was read."""
        source = CountingSource(data)
        return Checkpoint(source, None, Limits(), dict(self.open_options)), source

    def floats(self) -> dict[str, Array]:
        """A few small arrays, one of them with three axes."""
        return {
            "z.first": np.arange(10 * 4 * 2, dtype=np.float32).reshape(10, 4, 2),
            "a.second": np.arange(5, dtype=np.float32) - 2.5,
            "m.third": np.array([[1, 2], [3, 4]], np.float32),
        }

    def any_bits(self, dtype: DType, shape: tuple[int, ...]) -> TensorData:
        """A tensor of arbitrary bits: of floats also NaNs with payloads; of bools zeros and ones only."""
        size = dtype.nbytes(shape)
        raw = np.random.default_rng(size + dtype.bits).integers(0, 256, size, np.uint8)
        if dtype.is_bool:
            raw &= 1
            raw.reshape(-1, dtype.bits // 8)[:, 1:] = 0
        return TensorData.from_bytes(raw.tobytes(), dtype, shape)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give the tests their parameters out of the attributes above."""
        known: dict[str, Mapping[str, Any]] = {
            "dtype": {str(dtype): dtype for dtype in self.dtypes},
            "shape": SHAPES,
            "name": self.names,
            "layout": layouts(),
            "texts": TEXTS if self.holds_metadata else {"none": {}},
            "index": INDICES,
        }
        for fixture in metafunc.fixturenames:
            if fixture in known:
                cases = known[fixture]
                metafunc.parametrize(fixture, list(cases.values()), ids=list(cases))


def same_bits(first: Array, second: Array) -> bool:
    """Whether two arrays are equal bit for bit, byte order aside."""
    alike = first.shape == second.shape and first.dtype == second.dtype.newbyteorder("=")
    return alike and first.tobytes() == second.astype(first.dtype, copy=False).tobytes()


def files_in(folder: Path) -> list[str]:
    """The names in a folder, scratch files included."""
    return sorted(os.listdir(folder))
