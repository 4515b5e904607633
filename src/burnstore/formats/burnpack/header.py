"""The header: its constants and limits, and the metadata map, read strictly (BP-04, BP-05, BP-07, BP-17, BP-18).

Where the descriptors are written as every Burn writes them, `fast_header` reads that part many times as fast as
`descriptors` and gives the same columns.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from ...errors import CorruptError, FormatError, LimitError, UnsupportedError, located
from ...limits import Limits
from ...tensor.scalar import Scalar
from ..codec.cbor import CborReader
from ..columns import check_count
from . import fast_header
from .descriptors import Columns, read_descriptors, read_key, unknown_key

MAGIC = b"NRUB"
VERSION = 1
HEADER = struct.Struct("<4sHI")
ALIGNMENT = 256
MOST_HEADER_BYTES = 100 << 20
MOST_TENSORS = 100_000

_LONGEST_KIND = 64


def aligned(position: int) -> int:
    """Return the next multiple of 256 at or after a position."""
    return -(-position // ALIGNMENT) * ALIGNMENT


@dataclass(slots=True)
class Metadata:
    """The whole metadata map."""

    tensors: Columns
    metadata: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)


def read_metadata(raw: bytes, limits: Limits) -> Metadata:
    """Read the metadata item that fills ``raw``."""
    reader = CborReader(raw)
    tensors: Columns | None = None
    metadata: dict[str, str] = {}
    scalars: dict[str, Scalar] = {}
    seen: set[str] = set()
    with located(rule="BP-05"):
        for _ in range(reader.map()):  # ends with the first key that is unknown or comes twice
            key = read_key(reader, seen)
            if key == "tensors":
                count = reader.map()
                check_count(count, limits, "BP-07")
                tensors = fast_header.read_descriptors(reader, count, limits) or read_descriptors(reader, count, limits)
            elif key == "metadata":
                with located(rule="BP-17"):
                    for _ in range(_bounded(reader.map(), limits, "metadata entries")):
                        name = read_key(reader, metadata)
                        metadata[name] = reader.text()
            elif key == "scalars":
                with located(rule="BP-18"):
                    for _ in range(_bounded(reader.map(), limits, "scalars")):
                        name = read_key(reader, scalars)
                        scalars[name] = _read_scalar(reader)
            else:
                raise unknown_key(key, "the metadata")
        if tensors is None:
            raise CorruptError("the metadata has no 'tensors'")
    if not reader.at_end():
        raise CorruptError("bytes follow the metadata item", offset=reader.position, rule="BP-04")
    return Metadata(tensors, metadata, scalars)


def _read_scalar(reader: CborReader) -> Scalar:
    at = reader.position
    if reader.map() != 1:
        raise CorruptError("a scalar is a map of one entry", offset=at)
    at = reader.position
    kind = reader.text(_LONGEST_KIND)
    try:
        if kind == "Float":
            return Scalar("Float", reader.float())
        if kind == "Bool":
            return Scalar("Bool", reader.boolean())
        if kind in ("Int", "UInt"):
            return Scalar("Int" if kind == "Int" else "UInt", reader.integer())
    except FormatError:
        raise
    except ValueError as error:  # a number that is out of the kind's range
        raise CorruptError(str(error), offset=at) from None
    raise UnsupportedError(f"unknown scalar kind {kind!r}", offset=at)


def _bounded(count: int, limits: Limits, what: str) -> int:
    if count > limits.metadata_entries:
        raise LimitError(f"{count} {what}, more than the limit of {limits.metadata_entries}")
    return count
