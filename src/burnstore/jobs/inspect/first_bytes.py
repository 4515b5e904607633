"""Show the first bytes of a file and their meaning, also of a file that cannot be opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...errors import UnknownFormatError
from ...formats.base import DescribesHeader, Part
from ...formats.registry import HEAD_BYTES, format_for_bytes
from ...formats.sharded.locate import locate
from ...io.source import FileSource


@dataclass(frozen=True, slots=True)
class FirstBytes:
    """The first bytes of a file in the parts that its format names; one part if the format is unknown."""

    path: str
    size: int
    format: str | None
    head: bytes
    parts: Sequence[Part]

    def bytes_of(self, part: Part) -> bytes:
        """Return the bytes of a part, as far as they were read."""
        return self.head[part.offset : part.offset + part.nbytes]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; bytes are hexadecimal."""
        parts = [
            {"offset": part.offset, "nbytes": part.nbytes, "meaning": part.meaning, "hex": self.bytes_of(part).hex()}
            for part in self.parts
        ]
        return {"size": self.size, "format": self.format, "parts": parts}


def read_first_bytes(path: str | os.PathLike[str]) -> FirstBytes:
    """Read the first bytes of a file, or of the index of a set of shards.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = bs.save({"bias": np.zeros(3)}, f"{folder}/x.bpk")
    ...     [(part.offset, part.meaning) for part in read_first_bytes(f"{folder}/x.bpk").parts[:2]]
    [(0, 'magic: NRUB'), (4, 'version: 1')]
    """
    file, _ = locate(os.fsdecode(path))
    source = FileSource(file)
    try:
        head, size = source.read_at(0, min(HEAD_BYTES, source.size)), source.size
    finally:
        source.close()
    known, parts = None, [Part(0, size, "unknown format" if size else "empty file")]
    with suppress(UnknownFormatError):
        found = format_for_bytes(head)
        known = found.name
        parts = [Part(0, size, found.name)]
        if isinstance(found, DescribesHeader):
            parts = found.describe_header(head, size)
    return FirstBytes(file, size, known, head, parts)
