"""Checksums: every member of a zip of torch compared with what its directory says (PT-09), whoever refers to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import CorruptError, printable
from ...io.source import Source
from ...limits import Limits
from ..base import Check, Contents
from ..codec.zip import DEFLATED
from .archive import DeflatedData, check_stored_crc
from .zip_file import ZipFile


@dataclass(frozen=True, slots=True)
class MemberCheck:
    """The bytes of one member against its checksum."""

    source: Source
    name: str
    offset: int
    nbytes: int
    size: int
    crc: int
    is_deflated: bool

    def __call__(self) -> str | None:
        try:
            if self.is_deflated:
                DeflatedData(self.source, self.offset, self.nbytes, self.size, self.crc).window(0, self.size)
            else:
                check_stored_crc(self.source, self.offset, self.size, self.crc)
        except CorruptError as error:
            error.message = f"the member {printable(self.name)!r}: {error.message}"
            raise
        return None


def checks(source: Source, contents: Contents, limits: Limits) -> Sequence[Check]:
    """A check for each member that has a checksum; other containers of torch have none."""
    if not source.read_at(0, min(2, source.size)).startswith(b"PK"):
        return []
    directory = ZipFile(source, limits).directory
    columns = (directory.starts, directory.packed, directory.sizes, directory.crcs, directory.methods)
    rows = zip(directory.names, *(column.tolist() for column in columns), strict=True)
    return [
        MemberCheck(source, name, start, packed, size, crc, method == DEFLATED)
        for name, start, packed, size, crc, method in rows
        if crc
    ]
