"""PickledFile: what a file of torch is once it was read: one object graph and the storages that it refers to."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...errors import (
    BurnstoreError,
    CorruptError,
    LimitError,
    TruncatedError,
    UnsafeContentError,
    UnsupportedError,
    located,
)
from ...io.source import Source
from ...limits import Limits
from ...tensor.data import Array
from ...tensor.snapshot import CHUNK_BYTES
from ..codec.pickle import Dialect, Pickle, PickleLimits, read_pickle
from ..codec.pickle_values import Symbol
from ..codec.zip import inflate
from .storages import Storages

MOST_PICKLE_BYTES = 256 << 20
MOST_TENSORS = 1_000_000
_FIRST_READ = 64 << 10


@dataclass(frozen=True, slots=True)
class PickledFile:
    """A file of torch. ``value`` is its object graph, ``globals`` every name that loading it with torch would import.

    In the graph, tensors are `PickledTensor` or `CompositeTensor`, storages `Storage`, arrays `NumpyArray`; what is not
    known stays a `Symbol` or a `Call`. Nothing of it was run.
    """

    container: str
    value: Any
    globals: list[tuple[int, Symbol]]
    protocol: int
    storages: Storages
    big_endian: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)
    """What else the container says: ``root``, ``version``, ``format_version``, ``storage_alignment``, ``byteorder``."""
    notes: tuple[str, ...] = ()
    """What should be known about parts that could not be had, a sentence each."""


Broken = dict[str, int]
"""Of storages that are not whole, by key, how many of their first bytes are as they were."""


class DeflatedData:
    """The bytes of a compressed member; inflated, and checked against its checksum, each time they are asked for."""

    __slots__ = ("crc", "offset", "packed", "size", "source")

    def __init__(self, source: Source, offset: int, packed: int, size: int, crc: int) -> None:
        self.source = source
        self.offset = offset
        self.packed = packed
        self.size = size
        self.crc = crc

    @property
    def file(self) -> str | None:
        return self.source.name

    def window(self, start: int, stop: int) -> memoryview:
        with located(rule="PT-07", offset=self.offset):
            data = inflate(self.source.read_at(self.offset, self.packed), self.size, most=self.size)
        check_crc(data, self.crc, self.offset)
        return memoryview(data)[start:stop]

    def owned(self, start: int, stop: int) -> Array:
        return np.array(np.frombuffer(self.window(start, stop), np.uint8))

    def chunks(self, nbytes: int) -> Iterator[memoryview]:
        yield self.window(0, nbytes)


def check_crc(data: bytes | memoryview, crc: int, offset: int) -> None:
    """Compare a checksum; 0 means that the writer left it out."""
    if crc and zlib.crc32(data) != crc:
        raise CorruptError(
            f"Invalid checksum: the bytes were changed since {crc:08x} was written", rule="PT-09", offset=offset
        )


def check_stored_crc(source: Source, offset: int, size: int, crc: int) -> None:
    """Compare the checksum of bytes in the file, a few megabytes at a time."""
    found = 0
    for at in range(0, size if crc else 0, CHUNK_BYTES):
        found = zlib.crc32(source.read_at(offset + at, min(CHUNK_BYTES, size - at)), found)
    if crc and found != crc:
        raise CorruptError(
            f"Invalid checksum: the bytes were changed since {crc:08x} was written", rule="PT-09", offset=offset
        )


def pickle_limits(limits: Limits) -> PickleLimits:
    """What a pickle may cost: more where the caller allows more tensors, or longer headers, than usual."""
    factor = max((limits.tensors or MOST_TENSORS) // MOST_TENSORS, 1)
    usual = PickleLimits().times(factor)
    return replace(usual, text_bytes=max(usual.text_bytes, limits.header_bytes or 0))


def parse(data: bytes, position: int, dialect: Dialect, limits: Limits, *, base: int = 0) -> Pickle:
    """The pickle at a position of bytes that begin at ``base`` in the file (PT-15 .. PT-17)."""
    with located(rule="PT-16"):
        try:
            return read_pickle(data, position, dialect=dialect, limits=pickle_limits(limits))
        except BurnstoreError as error:
            for kind, rule in ((LimitError, "PT-17"), (UnsupportedError, "PT-15"), (UnsafeContentError, "PT-15")):
                if isinstance(error, kind) and error.rule is None:
                    error.rule = rule
            if error.offset is not None:
                error.offset += base
            raise


class PickleStream:
    """Pickles and raw bytes one after the other in a source; a pickle's length is known only once it was read."""

    def __init__(self, source: Source, limits: Limits, *, start: int = 0, end: int | None = None) -> None:
        self._source = source
        self._limits = limits
        self._end = source.size if end is None else end
        self._most = limits.header_bytes if limits.header_bytes is not None else MOST_PICKLE_BYTES
        self.position = start
        self._block, self._block_at = b"", start

    @property
    def left(self) -> int:
        """How many bytes follow."""
        return self._end - self.position

    def pickle(self, dialect: Dialect) -> Pickle:
        """The pickle that comes next."""
        length = _FIRST_READ
        while True:
            inside = self.position - self._block_at
            if not 0 <= inside < len(self._block):
                inside = self._read(length)
            whole = self._block_at + len(self._block) == self._end
            try:
                found = parse(self._block, inside, dialect, self._limits, base=self._block_at)
            except TruncatedError:
                if whole:
                    raise
            else:
                self.position = self._block_at + found.end
                return found
            if length > self._most:
                raise LimitError(f"a pickle of more than {self._most} bytes", rule="PT-17", offset=self.position)
            length = length if inside else 8 * length  # first all of a block, then larger and larger ones
            self._read(length)

    def _read(self, length: int) -> int:
        """Hold the bytes from here on; where the position is among them."""
        self._block_at = self.position
        self._block = self._source.read_at(self.position, min(length, self.left))
        return 0

    def take(self, length: int) -> bytes:
        """The bytes that come next."""
        if length > self.left:
            raise TruncatedError(f"File truncated: {length} bytes needed, {self.left} follow", offset=self.position)
        data = self._source.read_at(self.position, length)
        self.position += length
        return data

    def skip(self, length: int) -> int:
        """Go past bytes that must be there; where they begin."""
        if length > self.left:
            raise TruncatedError(
                f"{length} bytes announced, which extends beyond the end of the file: {self.left} follow",
                offset=self.position,
            )
        begin = self.position
        self.position += length
        return begin
