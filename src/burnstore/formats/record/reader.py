"""From bytes to contents: which of the encodings a record has, and where the bytes of its tensors lie."""

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
from ..base import Contents, Table
from ..codec.bincode import BincodeReader
from ..codec.gzip import MAGIC as GZIP
from ..codec.gzip import begins, inflated
from ..codec.json_document import JsonReader
from ..codec.window import Extent
from .binary import Reading
from .declaration import declare, parameters_of
from .document import MOST_DEPTH, MOST_TENSORS, NODES_PER_TENSOR, Document, Planter, Rows, number_forms
from .heading import Heading
from .parameters import ParameterReader
from .scan import scan
from .training import OPTIMIZERS, SCHEDULERS, read_optimizer, read_scheduler

_LEAST_INFLATED = 256 << 20
_MOST_RATIO = 200
_HEAD = 64
_LONGEST_TEXT = 256
_COPIED_AT_ONCE = 8 << 20
_UUID_LENGTH = 36

_TEXT = re.compile(rb'[ \t\n\r]*\{[ \t\n\r]*"metadata"[ \t\n\r]*:[ \t\n\r]*\{[ \t\n\r]*"float"[ \t\n\r]*:')
_PACKED = re.compile(rb"[\x81-\x8f]\xa8metadata[\x81-\x8f]\xa5float")
_BINARY = re.compile(rb"(?:\x03f32\x03i32|\x03f64\x03i64|\x13half::binary16::f16\x03i16)[\x20-\xfa]burn_core::record")
_ENCODINGS = {"json": _TEXT, "mpk": _PACKED, "bin": _BINARY}
_NAMES = {"mpk": "NamedMpk", "json": "Json", "bin": "Bin"}


@dataclass(frozen=True, slots=True)
class Opened:
    """A record file, read: the document, the source that its rows lead into, and how it was encoded."""

    document: Document
    data: Source
    encoding: str
    compressed: bool
    nameless: bool

    def notes(self) -> list[str]:
        """What should be known of the tensors, a sentence each."""
        found = []
        if self.nameless:
            found.append("a binary record has no names, so tensors are numbered; like= a declaration names them")
        if any(text is not None and len(text) == _UUID_LENGTH for text in self.document.rows.ids):
            found.append("the ids are UUIDs, as up to Burn 0.13, and have no number")
        return found

    def table(self) -> Table:
        """The tensors in the order of the file."""
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
        """In words: the recorder, the release, the precision."""
        heading = self.document.heading
        named = ", nameless" if self.nameless else ""
        recorder = _NAMES[self.encoding] + ("Gz" if self.compressed else "")
        return f"{recorder}, Burn {heading.version}, {heading.settings}{named}"


def is_record(head: bytes) -> bool:
    """Whether these are the first bytes of a record in any of its encodings (BR-01)."""
    return _encoding_of(begins(head, len(head)) if head.startswith(GZIP) else head) is not None


def read(source: Source, limits: Limits, *, like: Any = None, undecided: DType | str | None = None) -> Contents:
    """The contents of a record. ``like`` declares the model where the bytes do not tell (BR-13, BR-17)."""
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
    """A record as a document; what had to be unpacked lies in memory or in a temporary file."""
    limits = limits.or_defaults(header_bytes=_bound(source, limits), tensors=MOST_TENSORS)
    if isinstance(undecided, str):
        undecided = DType.parse(undecided)
    if source.size > limits.file_bytes:
        raise LimitError(f"{source.size} bytes, more than the limit of {limits.file_bytes}", rule="BR-02")
    compressed = source.read_at(0, min(len(GZIP), source.size)) == GZIP
    plain = _unpacked(source, limits) if compressed else source
    spelled = Spool()
    try:
        with located(path=source.name):
            encoding = _encoding_of(plain.read_at(0, min(_HEAD, plain.size)))
            if encoding is None:
                raise UnknownFormatError("it does not begin like a record of Burn", rule="BR-01", offset=0)
            if encoding == "bin":
                document, nameless = _read_binary(plain, limits, spelled, like)
            else:
                document, nameless = _read_tree(encoding, plain, limits, spelled, like, undecided), False
            data = _data(document.rows, plain, spelled, (source, limits, like, undecided))
    except BaseException:
        spelled.close()
        if plain is not source:
            plain.close()
        raise
    if plain is not source and data is not plain:
        plain.close()
    return Opened(document, data, encoding, compressed, nameless)


def _bound(source: Source, limits: Limits) -> int:
    """How many bytes a compressed file may hold; ``Limits.header_bytes`` replaces it (BR-02)."""
    return max(_LEAST_INFLATED, _MOST_RATIO * source.size) if limits.header_bytes is None else limits.header_bytes


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
    """The data of a record once more, for a snapshot that was pickled."""
    return read_record(source, limits, like=like, undecided=undecided).data


def _data(rows: Rows, plain: Source, spelled: Spool, again: tuple[Any, ...]) -> Source:
    """The source that all rows lead into; where some lie in the file and others were spelled out, one for all."""
    if not any(extent.spelled_out and extent.nbytes for extent in rows.extents):
        spelled.close()
        return plain
    for row, extent in enumerate(rows.extents):
        if not extent.spelled_out:
            start = spelled.size
            for at in range(0, extent.nbytes, _COPIED_AT_ONCE):
                spelled.write(plain.read_at(extent.offset + at, min(_COPIED_AT_ONCE, extent.nbytes - at)))
            rows.extents[row] = Extent(start, extent.nbytes, spelled_out=True)
    return spelled.source(plain.name, (_reread, again))


def _encoding_of(head: bytes) -> str | None:
    return next((name for name, pattern in _ENCODINGS.items() if pattern.match(head)), None)


def _read_tree(
    encoding: str, source: Source, limits: Limits, spelled: Spool, like: Any, undecided: DType | None
) -> Document:
    """The document of a MessagePack or JSON record (BR-03, BR-04, BR-06)."""
    reader_type = ParameterReader if encoding == "mpk" else JsonReader
    reader = reader_type(source, spelled, nodes=(limits.tensors or 0) * NODES_PER_TENSOR)
    heading: Heading | None = None
    document: Document | None = None
    seen: set[str] = set()
    with located(rule="BR-03" if encoding == "mpk" else "BR-04"):
        for key in reader.entries(limits.name_bytes):
            if key in seen or key not in ("metadata", "item", "_b"):
                raise CorruptError(f"{key[:_LONGEST_TEXT]!r} is no part of a record, or there twice", rule="BR-06")
            seen.add(key)
            if key == "metadata":
                heading = Heading.from_tree(reader.tree(depth=1, longest_text=_LONGEST_TEXT))
            elif key == "item":
                if heading is None:
                    raise CorruptError("item before metadata, which says how to read it", rule="BR-06")
                forms = number_forms(heading.precision)
                tree = reader.tree(depth=MOST_DEPTH, longest_text=limits.name_bytes, forms=forms)
                document = Planter(heading, limits, _kinds(like, heading), undecided).document(tree)
            elif reader.tree(depth=1, longest_text=0) not in (None, []):
                raise CorruptError("_b is neither empty nor null", rule="BR-06")
        if document is None:
            raise CorruptError("a record without item", rule="BR-06")
        if not reader.at_end():
            raise CorruptError(f"{reader.left} bytes follow the record", rule="BR-16", offset=reader.position)
    return document


def _kinds(like: Any, heading: Heading) -> Mapping[str, Kind]:
    if like is None or isinstance(like, str):
        return {}
    return {path: parameter.kind for path, parameter in parameters_of(declare(like, heading.minor))}


def _read_binary(source: Source, limits: Limits, spelled: Spool, like: Any) -> tuple[Document, bool]:
    """The document of a bincode record, and whether its tensors are without names (BR-05)."""
    reader = BincodeReader(source)
    with located(rule="BR-05"):
        heading = Heading(*(reader.text(_LONGEST_TEXT) for _ in range(5)))
        heading.precision, heading.minor  # noqa: B018  # both are needed, and refuse what they do not know
        if like is None:
            return scan(reader, heading, limits), True
        if isinstance(like, str):
            if like in OPTIMIZERS:
                return read_optimizer(reader, heading, like, limits, spelled), False
            if like in SCHEDULERS:
                return read_scheduler(reader, heading, like), False
            raise UnsupportedError(
                f"like={like!r} is neither a declaration nor one of {', '.join((*OPTIMIZERS, *SCHEDULERS))}"
            )
        # The tree of 0.14 was numbered 0.15 while tensors were still lists of elements.
        start, declared = reader.position, declare(like, heading.minor)
        if heading.minor == 15:
            with suppress(CorruptError, TruncatedError):
                return Reading(reader, heading, limits, spelled, as_lists=True).document(declared), False
            reader.move_to(start)
        return Reading(reader, heading, limits, spelled, as_lists=heading.minor <= 13).document(declared), False
