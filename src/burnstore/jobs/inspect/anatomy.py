"""Anatomy: the first bytes of a file and what they are, also of one that cannot be opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...errors import UnknownFormatError
from ...formats.base import Part, header_parts
from ...formats.registry import HEAD_BYTES, format_for_bytes
from ...formats.sharded.locate import locate
from ...io.source import FileSource


@dataclass(frozen=True, slots=True)
class Anatomy:
    """The first bytes of a file, in parts that its format has names for; one part if no format begins so."""

    path: str
    size: int
    format: str | None
    head: bytes
    parts: Sequence[Part]

    def bytes_of(self, part: Part) -> bytes:
        """The bytes of a part, as far as they are among the first of the file."""
        return self.head[part.offset : part.offset + part.nbytes]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for JSON, the bytes as hexadecimal text."""
        parts = [
            {"offset": part.offset, "nbytes": part.nbytes, "meaning": part.meaning, "hex": self.bytes_of(part).hex()}
            for part in self.parts
        ]
        return {"size": self.size, "format": self.format, "parts": parts}


def anatomy(path: str | os.PathLike[str]) -> Anatomy:
    """What a file begins with; of a set of shards, its index.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bs.save({"bias": np.zeros(3)}, f"{folder}/x.bpk")
    ...     [(part.offset, part.meaning) for part in anatomy(f"{folder}/x.bpk").parts[:2]]
    [(0, 'magic: NRUB'), (4, 'version: 1')]
    """
    file, _ = locate(os.fsdecode(path))
    source = FileSource(file)
    try:
        head, size = source.read_at(0, min(HEAD_BYTES, source.size)), source.size
    finally:
        source.close()
    known, parts = None, [Part(0, size, "of no known format" if size else "nothing: the file is empty")]
    with suppress(UnknownFormatError):
        found = format_for_bytes(head)
        known = found.name
        parts = header_parts(found, head, size)
    return Anatomy(file, size, known, head, parts)
