"""Read NumPy's files: one array, or the arrays of a zip."""

from __future__ import annotations

import ast
import math
import re
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from ...errors import (
    CorruptError,
    FormatError,
    LimitError,
    TruncatedError,
    UnknownFormatError,
    UnsupportedError,
    located,
    printable,
)
from ...io.source import Source, expect_reads
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.note import Note
from ...tensor.sources import Data, RangeData, SourceData
from ..base import LAYOUT_KEY, Check, Contents, Part, Table, layout_record
from ..codec.zip import DEFLATED, Directory, Member, inflate_start, read_directory
from ..columns import check_count, check_names, check_shape
from ..pytorch.data import CheckedData, DeflatedData, StridedData
from ..pytorch.reader import MemberCheck
from ..pytorch.tensors import PickledTensor, Storage

MAGIC = b"\x93NUMPY"
SUFFIX = ".npy"
ARRAY = "array"
MAX_TENSORS = 1_000_000

MAX_HEADER = 10_000
_MOST_PACKED_HEADER = 64 << 10  # Deflate does not make 10,000 bytes longer than that.
_LARGEST = (1 << 62) - 1
_USUAL_HEADER = 128 + 64  # NumPy pads the header to a multiple of 64
_KINDS = {"O": "objects, which is a pickle and never read", "V": "records or raw bytes", "U": "strings", "S": "bytes"}
_KINDS |= {"M": "dates", "m": "durations", "f": "floats of another width", "c": "complex numbers of another width"}


def read(source: Source, limits: Limits) -> Contents:
    """Return the contents of a ``.npy`` or a ``.npz``."""
    limits = limits.or_defaults(header_bytes=MAX_HEADER, tensors=MAX_TENSORS)
    head = source.read_at(0, min(4, source.size))
    if head == MAGIC[:4]:
        found = _array(lambda start, stop: source.read_at(start, stop - start), source.size, limits)
        data = _data(found, SourceData(source, found.start, found.nbytes))
        return _contents([(ARRAY, found, 0, data)], limits, "array", ())
    if not head.startswith(b"PK"):
        raise UnknownFormatError("it is neither a .npy nor a .npz file", rule="NP-01", offset=0)
    directory = _directory(source, limits)
    check_count(len(directory.names), limits, "NP-05")
    rows: list[tuple[str, _Array, int, Data | None]] = []
    left_out = []
    headers = zip(directory.starts.tolist(), directory.packed.tolist(), strict=True)
    expect_reads(source, [(start, min(_USUAL_HEADER, packed)) for start, packed in headers])
    for name, member in zip(directory.names, directory.members(), strict=True):
        if not name.endswith(SUFFIX):
            raise CorruptError(f"the member {printable(name)!r} is not a {SUFFIX} file", rule="NP-05")
        short, size = name.removesuffix(SUFFIX), member.size or 0
        window = (_inflated if member.method == DEFLATED else _window)(source, member)
        with located(tensor=short):
            try:
                found = _array(window, size, limits)
            except UnsupportedError as error:
                left_out.append(Note("left out", f"left out: {printable(short)!r}: {error.message}", short))
                continue
        rows.append((short, found, member.start, _data(found, _values(found, source, member))))
    return _contents(rows, limits, "zip of arrays", left_out, _layout(directory.comment))


def _layout(comment: bytes) -> str | None:
    """Return the layout that the comment of a zip states (NP-10)."""
    key, equals, name = comment.decode("ascii", "replace").partition("=")
    return layout_record(name, "NP-10") if key == LAYOUT_KEY and equals else None


def _window(source: Source, member: Member) -> Callable[[int, int], bytes]:
    return lambda first, stop: source.read_at(member.start + first, stop - first)


def _inflated(source: Source, member: Member) -> Callable[[int, int], bytes]:
    """Return a function that inflates no more of a member than its header."""
    packed = source.read_at(member.start, min(member.packed, _MOST_PACKED_HEADER))
    return lambda first, stop: inflate_start(packed, stop)[first:]


def _values(found: _Array, source: Source, member: Member) -> Data:
    """Return the values of a member, which are compared with its checksum."""
    if member.method == DEFLATED:
        return RangeData(DeflatedData(source, member), found.start, found.nbytes)
    return CheckedData(source, member, found.nbytes, found.head_crc)


def _directory(source: Source, limits: Limits) -> Directory:
    most = None if limits.file_bytes <= Limits().file_bytes else limits.file_bytes
    with located(rule="NP-05"):
        return read_directory(
            source.read_at, source.size, partial(expect_reads, source), any_names=True, most_inflated=most
        )


class _Array:
    """What the header of an array states, and where its values begin."""

    __slots__ = ("big_endian", "dtype", "fortran", "head_crc", "shape", "start")

    def __init__(self, dtype: DType, shape: Shape, head: bytes, *, fortran: bool, big_endian: bool) -> None:
        self.dtype, self.shape, self.fortran, self.big_endian = dtype, shape, fortran, big_endian
        self.start, self.head_crc = len(head), zlib.crc32(head)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the values."""
        return self.dtype.nbytes(self.shape)


def _array(window: Callable[[int, int], bytes | memoryview], size: int, limits: Limits) -> _Array:
    """Read the header of an array whose file or member has this size."""
    head = bytes(window(0, min(12, size)))
    if head[:6] != MAGIC:
        raise CorruptError("an array begins with \\x93NUMPY", rule="NP-01")
    if len(head) < 12:
        raise TruncatedError("the header is not whole", rule="NP-01", offset=size)
    if head[6] not in (1, 2, 3) or head[7]:
        raise UnsupportedError(f"version {head[6]}.{head[7]} of the format", rule="NP-01", offset=6)
    width = 2 if head[6] == 1 else 4
    length = int.from_bytes(head[8 : 8 + width], "little")
    start = 8 + width + length
    if length > MAX_HEADER:
        raise LimitError(f"a header of {length} bytes, more than the limit of {MAX_HEADER}", rule="NP-01")
    if start > size:
        raise TruncatedError("the header is not whole", rule="NP-01", offset=size)
    fields = bytes(window(8 + width, start))
    descr, fortran, shape = _fields(fields)
    dtype, big_endian = _dtype(descr)
    if math.prod(extent or 1 for extent in shape) * dtype.bits > _LARGEST:
        raise CorruptError(f"shape {list(shape)}: the byte length calculation overflows", rule="NP-08")
    check_shape(shape, dtype.nbytes(shape), limits, "NP-08")
    wanted = dtype.nbytes(shape)
    if size - start != wanted:
        error = TruncatedError if size - start < wanted else CorruptError
        raise error(f"{wanted} bytes of values are stated, {size - start} are there", rule="NP-04", offset=size)
    return _Array(dtype, shape, head[: 8 + width] + fields, fortran=fortran, big_endian=big_endian)


def _fields(raw: bytes) -> tuple[str, bool, Shape]:
    """Read the dict of a header: a literal of Python, as NumPy itself reads it; Python 2 may have written 3L for 3."""
    text = raw.decode("utf-8", "replace").strip()
    wrong = CorruptError(
        f"the header is not a dict of descr, fortran_order and shape: {printable(text[:80])}", rule="NP-02"
    )
    try:
        node = ast.parse(re.sub(r"(?<=\d)L\b", "", text), mode="eval").body
        found = ast.literal_eval(node)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise wrong from None
    if not isinstance(node, ast.Dict) or len(node.keys) != 3 or found.keys() != {"descr", "fortran_order", "shape"}:
        raise wrong
    descr, fortran, shape = found["descr"], found["fortran_order"], found["shape"]
    if isinstance(descr, list):
        raise UnsupportedError("it is an array of records", rule="NP-03")
    right = type(descr) is str and type(fortran) is bool and type(shape) is tuple
    if not right or any(type(extent) is not int or not 0 <= extent < 1 << 64 for extent in shape):
        raise wrong
    return descr, fortran, shape


def _dtype(descr: str) -> tuple[DType, bool]:
    if re.fullmatch(r"[<>|=]?[biufc]\d{1,2}", descr):
        try:
            plain = np.dtype(descr)
            return DType.of(plain.newbyteorder("=")), plain.byteorder == ">"
        except (TypeError, ValueError, FormatError):
            pass
    kind = descr.lstrip("<>|=")[:1]
    raise UnsupportedError(
        f"it is an array of {_KINDS.get(kind, 'unknown elements')} ({printable(descr)!r})", rule="NP-03"
    )


def _data(found: _Array, stored: Data) -> Data | None:
    """Return what gives the values; None if they are a range of the file."""
    strided = found.fortran and sum(extent > 1 for extent in found.shape) > 1
    if not strided and not (found.big_endian and found.dtype.bits > 8):
        return None if isinstance(stored, SourceData) else stored
    storage = Storage(ARRAY, ARRAY, found.dtype, math.prod(found.shape))
    extents = found.shape if strided else found.shape[::-1]
    strides = [math.prod(extents[:axis]) for axis in range(len(extents))]
    tensor = PickledTensor(storage, found.dtype, 0, found.shape, tuple(strides if strided else strides[::-1]))
    return StridedData(tensor, stored, big_endian=found.big_endian)


def _contents(
    rows: Sequence[tuple[str, _Array, int, Data | None]],
    limits: Limits,
    variant: str,
    notes: Sequence[Note],
    layout: str | None = None,
) -> Contents:
    names = [row[0] for row in rows]
    check_names(names, limits, "NP-07", "NP-07")
    arrays = [row[1] for row in rows]
    in_place = [row[3] is None or isinstance(row[3], CheckedData) for row in rows]
    offsets = [row[2] + row[1].start if is_plain else 0 for row, is_plain in zip(rows, in_place, strict=True)]
    table = Table(
        names,
        [each.dtype for each in arrays],
        [each.shape for each in arrays],
        offsets,
        [each.dtype.nbytes(each.shape) for each in arrays],
        [None] * len(rows),
        {at: row[3] for at, row in enumerate(rows) if row[3] is not None},
    )
    return Contents(
        table,
        metadata=MappingProxyType({} if layout is None else {LAYOUT_KEY: layout}),
        variant=variant,
        layout=layout,
        data_offset=min(filter(None, offsets), default=0),
        notes=tuple(notes),
    )


def checks(source: Source, contents: Contents, limits: Limits) -> Sequence[Check]:
    """Return a check of the checksum of each member."""
    if source.read_at(0, min(2, source.size)) != b"PK":
        return []
    directory = _directory(source, limits)
    members = zip(directory.names, directory.members(), strict=True)
    return [MemberCheck(source, name, member, member.packed) for name, member in members]


def describe_header(head: bytes, size: int) -> list[Part]:
    """Name the parts of the first bytes."""
    if not head.startswith(MAGIC) or len(head) < 10:
        return [Part(0, size, "zip of .npy files")]
    width = 2 if head[6] == 1 else 4
    start = min(8 + width + int.from_bytes(head[8 : 8 + width], "little"), size)
    parts = [Part(0, 6, "magic"), Part(6, 2, f"version {head[6]}.{head[7]}"), Part(8, width, "length of the header")]
    return [*parts, Part(8 + width, start - 8 - width, "header: a dict"), Part(start, size - start, "values")]
