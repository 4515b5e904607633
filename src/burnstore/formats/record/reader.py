"""Read a record: find its encoding, decode its tree, and locate the bytes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ...errors import CorruptError, LimitError, TruncatedError, UnknownFormatError, UnsupportedError, located
from ...io.source import Source
from ...io.spool import Spool
from ...limits import Limits
from ...tensor.dtype import DType, Kind
from ...tensor.note import Note
from ..base import Contents, Part, Table
from ..codec.bincode import BincodeReader
from ..codec.gzip import MAGIC as GZIP
from ..codec.gzip import begins, inflated
from ..codec.json_document import NumberTexts, parse_document
from ..codec.window import Extent
from .binary import Reading, read_nameless
from .declaration import declare, parameters_of
from .document import (
    MOST_DEPTH,
    MOST_TENSORS,
    NODES_PER_TENSOR,
    Document,
    ParameterReader,
    Planter,
    Rows,
    number_forms,
)
from .heading import Heading
from .training import OPTIMIZERS, SCHEDULERS, read_optimizer, read_scheduler

_LEAST_INFLATED = 256 << 20
_LEAST_INFLATED_JSON = 64 << 20  # of text, which takes several times as long to read as bytes
_MOST_RATIO = 200
_HEAD = 512
_LONGEST_TEXT = 256
_COPIED_AT_ONCE = 8 << 20
_UUID_LENGTH = 36
_GZIP_HEADER = 10

_TEXT = re.compile(rb'[ \t\n\r]*\{[ \t\n\r]*"metadata"[ \t\n\r]*:[ \t\n\r]*\{[ \t\n\r]*"float"[ \t\n\r]*:')
_PACKED = re.compile(rb"[\x81-\x8f]\xa8metadata[\x81-\x8f]\xa5float")
_BINARY = re.compile(rb"(?:\x03f32\x03i32|\x03f64\x03i64|\x13half::binary16::f16\x03i16)[\x20-\xfa]burn_core::record")
_ENCODINGS = {"json": _TEXT, "mpk": _PACKED, "bin": _BINARY}
_NAMES = {"mpk": "NamedMpk", "json": "Json", "bin": "Bin"}


@dataclass(frozen=True, slots=True)
class Opened:
    """A decoded record file: the document, the source of its rows, and how it was encoded."""

    document: Document
    data: Source
    encoding: str
    compressed: bool
    nameless: bool

    def notes(self) -> list[Note]:
        """Return notes about the tensors, one sentence each."""
        found = []
        if self.nameless:
            text = "a binary record has no names, so tensors are numbered; burnstore.open(path, like=Model()) adds them"
            found.append(Note("nameless", text))
        if any(text is not None and len(text) == _UUID_LENGTH for text in self.document.rows.ids):
            found.append(Note("names", "the ids are UUIDs, as up to Burn 0.13, and have no number"))
        return found

    def table(self) -> Table:
        """Return the tensors in the order of the file."""
        rows = self.document.rows
        return Table(
            names=rows.names,
            dtypes=rows.dtypes,
            shapes=rows.shapes,
            offsets=[extent.offset for extent in rows.extents],
            sizes=[extent.nbytes for extent in rows.extents],
            param_ids=rows.param_ids,
        )

    @property
    def variant(self) -> str:
        """The recorder, the release and the precision."""
        heading = self.document.heading
        named = ", nameless" if self.nameless else ""
        recorder = _NAMES[self.encoding] + ("Gz" if self.compressed else "")
        return f"{recorder}, Burn {heading.version}, {heading.settings}{named}"


def is_record(head: bytes) -> bool:
    """Return whether these are the first bytes of a record in any of its encodings (BR-01)."""
    return _encoding_of(begins(head, len(head)) if head.startswith(GZIP) else head) is not None


def describe_header(head: bytes, size: int) -> list[Part]:
    """Name the header of gzip, or the beginning of the document."""
    if head.startswith(GZIP):
        rest = size - _GZIP_HEADER
        return [Part(0, min(size, _GZIP_HEADER), "gzip"), *([Part(_GZIP_HEADER, rest, "deflated")] if rest > 0 else [])]
    first = head[:1]
    if first.lstrip() == b"" or first == b"{":
        return [Part(0, size, "JSON")]
    if first >= b"\x80":
        return [Part(0, 1, f"MessagePack: a map of {head[0] & 15}"), Part(1, size - 1, "its keys and values")]
    return [Part(0, 1, f"bincode: a text of {head[0]} bytes, the float type"), Part(1, size - 1, "the fields in order")]


def read(source: Source, limits: Limits, *, like: Any = None, undecided: DType | str | None = None) -> Contents:
    """Read the contents of a record. ``like`` declares the model where the bytes are not enough (BR-13, BR-17)."""
    opened = read_record(source, limits, like=like, undecided=undecided)
    table = opened.table()
    return Contents(
        table,
        metadata=MappingProxyType(opened.document.heading.to_dict()),
        constants=MappingProxyType(opened.document.constants()),
        variant=opened.variant,
        layout="burn",
        data_offset=min(table.offsets, default=0),
        source=None if opened.data is source else opened.data,
        notes=opened.notes(),
    )


def read_record(source: Source, limits: Limits, *, like: Any = None, undecided: DType | str | None = None) -> Opened:
    """Read a record as a document; decompressed and decoded bytes are in memory or in a temporary file."""
    head = source.read_at(0, min(_HEAD, source.size))
    compressed = head.startswith(GZIP)
    least = _LEAST_INFLATED_JSON if _encoding_of(begins(head, _HEAD)) == "json" else _LEAST_INFLATED
    # The bytes that a compressed file may hold (BR-02).
    limits = limits.or_defaults(header_bytes=max(least, _MOST_RATIO * source.size), tensors=MOST_TENSORS)
    if isinstance(undecided, str):
        undecided = DType.parse(undecided)
    if source.size > limits.file_bytes:
        raise LimitError(f"{source.size} bytes, more than the limit of {limits.file_bytes}", rule="BR-02")
    plain = _unpacked(source, limits) if compressed else source
    decoded = Spool()
    try:
        with located(path=source.name):
            encoding = _encoding_of(plain.read_at(0, min(_HEAD, plain.size)))
            if encoding is None:
                hint = "burnstore.convert takes files of other formats"
                raise UnknownFormatError("the file is not a Burn record", rule="BR-01", offset=0, hint=hint)
            if encoding == "bin":
                document = _read_binary(plain, limits, decoded, like)
            elif encoding == "mpk":
                document = _read_msgpack(plain, limits, decoded, like, undecided)
            else:
                document = _read_json(plain, limits, decoded, like, undecided)
            data = _data(document.rows, plain, decoded, (source, limits, like, undecided))
    except BaseException:
        decoded.close()
        if plain is not source:
            plain.close()
        raise
    if plain is not source and data is not plain:
        plain.close()
    return Opened(document, data, encoding, compressed, nameless=encoding == "bin" and like is None)


def _unpacked(source: Source, limits: Limits) -> Source:
    spool = Spool()
    try:
        with located(rule="BR-02"):
            for piece in inflated(source, most=limits.header_bytes or 0):
                spool.write(piece)
    except BaseException:
        spool.close()
        raise
    return spool.source(source.name, (_unpacked, (source, limits)))


def _reread(source: Source, limits: Limits, like: Any, undecided: DType | None) -> Source:
    """Return the data of a record again, for a snapshot that was pickled."""
    return read_record(source, limits, like=like, undecided=undecided).data


def _data(rows: Rows, plain: Source, decoded: Spool, again: tuple[Any, ...]) -> Source:
    """Return the source of all rows; where some are in the file and others were decoded, one for all."""
    if not any(extent.spelled_out and extent.nbytes for extent in rows.extents):
        decoded.close()
        return plain
    for row, extent in enumerate(rows.extents):
        if not extent.spelled_out:
            start = decoded.size
            for at in range(0, extent.nbytes, _COPIED_AT_ONCE):
                decoded.write(plain.read_at(extent.offset + at, min(_COPIED_AT_ONCE, extent.nbytes - at)))
            rows.extents[row] = Extent(start, extent.nbytes, spelled_out=True)
    return decoded.source(plain.name, (_reread, again))


def _encoding_of(head: bytes) -> str | None:
    return next((name for name, pattern in _ENCODINGS.items() if pattern.match(head)), None)


def _read_msgpack(source: Source, limits: Limits, decoded: Spool, like: Any, undecided: DType | None) -> Document:
    """Read a MessagePack record (BR-03, BR-06)."""
    reader = ParameterReader(source, decoded, nodes=(limits.tensors or 0) * NODES_PER_TENSOR)
    parts: dict[str, Any] = {}
    with located(rule="BR-03"):
        for key in reader.entries(limits.name_bytes):
            _check_key(key, parts)
            if key == "metadata":
                parts[key] = Heading.from_tree(reader.tree(depth=1, longest_text=_LONGEST_TEXT))
            elif key == "item":
                forms = number_forms(parts["metadata"].precision)
                parts[key] = reader.tree(depth=MOST_DEPTH, longest_text=limits.name_bytes, forms=forms)
            else:
                parts[key] = reader.tree(depth=1, longest_text=0)
        document = _planted(parts, limits, like, undecided, source.size)
        if not reader.at_end():
            raise CorruptError(f"{reader.left} bytes follow the record", rule="BR-16", offset=reader.position)
    return document


def _read_json(source: Source, limits: Limits, decoded: Spool, like: Any, undecided: DType | None) -> Document:
    """Read a JSON record (BR-04, BR-06)."""
    raw = source.read_at(0, source.size)
    nodes = (limits.tensors or 0) * NODES_PER_TENSOR
    with located(rule="BR-04"):
        tree = parse_document(
            raw,
            ("bytes", "value"),
            nodes=nodes,
            depth=MOST_DEPTH + 1,
            longest_text=limits.name_bytes,
            rule_of_end="BR-16",
        )
        parts: dict[str, Any] = {}
        for key, value in tree.items():
            _check_key(key, parts)
            parts[key] = Heading.from_tree(value) if key == "metadata" else value
        return _planted(parts, limits, like, undecided, source.size, NumberTexts(raw, decoded, most_nulls=nodes))


def _check_key(key: str, parts: Mapping[str, Any]) -> None:
    if key in parts or key not in ("metadata", "item", "_b"):
        raise CorruptError(f"{key[:_LONGEST_TEXT]!r} is no part of a record, or comes twice", rule="BR-06")
    if key == "item" and "metadata" not in parts:
        raise CorruptError("item before metadata, which states how to read it", rule="BR-06")


def _planted(
    parts: Mapping[str, Any],
    limits: Limits,
    like: Any,
    undecided: DType | None,
    size: int,
    texts: NumberTexts | None = None,
) -> Document:
    if not {"metadata", "item"} <= parts.keys():
        raise CorruptError("a record without item", rule="BR-06")
    if parts.get("_b") not in (None, []):
        raise CorruptError("_b is neither empty nor null", rule="BR-06")
    heading: Heading = parts["metadata"]
    kinds: Mapping[str, Kind] = {}
    if like is not None and not isinstance(like, str):
        kinds = {path: parameter.kind for path, parameter in parameters_of(declare(like, heading.minor))}
    return Planter(heading, limits, kinds, undecided, size, texts).document(parts["item"])


def _read_binary(source: Source, limits: Limits, decoded: Spool, like: Any) -> Document:
    """Read a bincode record; without ``like`` its tensors have no names (BR-05)."""
    reader = BincodeReader(source)
    with located(rule="BR-05"):
        heading = Heading(*(reader.text(_LONGEST_TEXT) for _ in range(5)))
        heading.precision, heading.minor  # noqa: B018  # both are needed, and refuse unknown ones
        if like is None:
            return read_nameless(reader, heading, limits)
        if isinstance(like, str):
            if like in OPTIMIZERS:
                return read_optimizer(reader, heading, like, limits, decoded)
            if like in SCHEDULERS:
                return read_scheduler(reader, heading, like)
            raise UnsupportedError(
                f"like={like!r} is neither a declaration nor one of {', '.join((*OPTIMIZERS, *SCHEDULERS))}"
            )
        # The tree of 0.14 was numbered 0.15 while tensors were still lists of elements.
        start, declared = reader.position, declare(like, heading.minor)
        if heading.minor == 15:
            with suppress(CorruptError, TruncatedError):
                return Reading(reader, heading, limits, decoded, as_lists=True).document(declared)
            reader.move_to(start)
        return Reading(reader, heading, limits, decoded, as_lists=heading.minor <= 13).document(declared)
