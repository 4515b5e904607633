"""The metadata of a Burnpack file (BP-04, BP-05, BP-07, BP-17, BP-18): one map, read strictly.

Where its tensors are written as every Burn writes them, `scan` takes that part at many times the speed of `descriptors`
and gives the same columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import CorruptError, LimitError, UnsupportedError, located
from ...limits import Limits
from ...tensor.scalar import Scalar, ScalarKind
from ..codec.cbor import CborReader
from . import scan
from .descriptors import Columns, read_descriptors, read_key, unknown_key

_LONGEST_KIND = 64


@dataclass(slots=True)
class Metadata:
    """The whole metadata map."""

    tensors: Columns
    metadata: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, Scalar] = field(default_factory=dict)


def read_metadata(raw: bytes, limits: Limits) -> Metadata:
    """The metadata item that fills ``raw``."""
    reader = CborReader(raw)
    found: Metadata | None = None
    metadata: dict[str, str] = {}
    scalars: dict[str, Scalar] = {}
    seen: set[str] = set()
    with located(rule="BP-05"):
        for _ in range(reader.map()):  # ends with the first key that is unknown or comes twice
            key = read_key(reader, seen)
            if key == "tensors":
                count = reader.map()
                if count > (limits.tensors or 0):
                    raise LimitError(
                        f"{count} tensors, more than the limit of {limits.tensors}",
                        rule="BP-07",
                        hint="if you trust the file, open it with limits=Limits(tensors=...)",
                    )
                found = Metadata(
                    scan.scan_descriptors(reader, count, limits) or read_descriptors(reader, count, limits)
                )
            elif key == "metadata":
                metadata = _read_texts(reader, limits)
            elif key == "scalars":
                scalars = _read_scalars(reader, limits)
            else:
                raise unknown_key(key, "the metadata")
        if found is None:
            raise CorruptError("the metadata has no 'tensors'")
    if not reader.at_end():
        raise CorruptError("bytes follow the metadata item", offset=reader.position, rule="BP-04")
    found.metadata = metadata
    found.scalars = scalars
    return found


def _read_texts(reader: CborReader, limits: Limits) -> dict[str, str]:
    texts: dict[str, str] = {}
    with located(rule="BP-17"):
        for _ in range(_bounded(reader.map(), limits.metadata_entries, "metadata entries")):
            key = read_key(reader, texts)
            texts[key] = reader.text()
    return texts


def _read_scalars(reader: CborReader, limits: Limits) -> dict[str, Scalar]:
    scalars: dict[str, Scalar] = {}
    with located(rule="BP-18"):
        for _ in range(_bounded(reader.map(), limits.metadata_entries, "scalars")):
            key = read_key(reader, scalars)
            at = reader.position
            if reader.map() != 1:
                raise CorruptError("a scalar is a map of one entry", offset=at)
            scalars[key] = _read_scalar(reader)
    return scalars


def _read_scalar(reader: CborReader) -> Scalar:
    at = reader.position
    kind = reader.text(_LONGEST_KIND)
    if kind == "Float":
        return Scalar("Float", reader.float())
    if kind == "Bool":
        return Scalar("Bool", reader.boolean())
    if kind in ("Int", "UInt"):
        value = reader.integer()
        named: ScalarKind = "Int" if kind == "Int" else "UInt"
        try:
            return Scalar(named, value)
        except ValueError as error:
            raise CorruptError(str(error), offset=at) from None
    raise UnsupportedError(f"unknown scalar kind {kind!r}", offset=at)


def _bounded(count: int, most: int, what: str) -> int:
    if count > most:
        raise LimitError(f"{count} {what}, more than {most}")
    return count
