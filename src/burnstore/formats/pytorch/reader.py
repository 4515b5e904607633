"""From a file of torch to contents: which container it is, and the steps from its bytes to a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import LimitError, TruncatedError, UnknownFormatError, UnsupportedError
from ...io.source import Source
from ...limits import Limits
from ...tensor.snapshot import TensorSnapshot
from ..base import Contents, WritePlan
from .archive import PickledFile
from .bare_file import read_bare
from .contents import Rows
from .exported_file import read_exported
from .graph import find_tensors
from .legacy_file import begins_like_legacy, read_legacy
from .salvage import salvaged, without_lost
from .tar_file import read_tar
from .zip_file import ZipFile, kind_of_zip, read_zip

_HEAD = 512


def read_pickled(source: Source, limits: Limits | None = None, *, checksums: bool = False) -> PickledFile:
    """The object graph of a file of torch, whichever of its containers it is; nothing in it is run."""
    limits = limits or Limits()
    if source.size > limits.file_bytes:
        raise LimitError(f"{source.size} bytes, more than the limit of {limits.file_bytes}", rule="PT-01")
    head = source.read_at(0, min(_HEAD, source.size))
    if head.startswith(b"PK"):
        archive = ZipFile(source, limits)
        kind = kind_of_zip(archive)
        if kind.refusal is not None:
            raise UnsupportedError(f"it is {kind.refusal}", rule=kind.rule)
        if kind.name == "exported":
            return read_exported(archive, checksums=checksums)
        return read_zip(archive, limits, checksums=checksums)
    if head[257:262] == b"ustar":
        return read_tar(source, limits)[0]
    if begins_like_legacy(head):
        return read_legacy(source, limits)[0]
    if head[4:8] == b"PTMF":
        raise UnsupportedError("it is a model for mobile devices, a flatbuffer with code in it", rule="PT-27")
    if not head.startswith((b"\x80", b"(", b"}", b"]", b"c")):
        raise UnknownFormatError("it is not a PyTorch checkpoint", rule="PT-01", offset=0)
    return read_bare(source, limits)


def read(
    source: Source,
    limits: Limits,
    *,
    top_level_key: str | None = None,
    dense: bool = False,
    checksums: bool = False,
    salvage: bool = False,
) -> Contents:
    """The contents of a file of torch.

    ``top_level_key`` names the part that is the model (dotted for a part of a part, ``""`` for everything); by default
    it is found where savers put it. ``dense=True`` gives sparse and quantized tensors as plain values, not as their
    parts. ``checksums=True`` compares the checksum of every storage, which reads the whole file.
    ``salvage=True`` takes a damaged file: the tensors whose bytes are all there, each checked as far as can be.
    """
    for option, value in (("dense", dense), ("checksums", checksums), ("salvage", salvage)):
        if not isinstance(value, bool):
            raise TypeError(f"{option} is a bool, not {type(value).__name__}")
    if top_level_key is not None and not isinstance(top_level_key, str):
        raise TypeError(f"top_level_key is a str, not {type(top_level_key).__name__}")
    if salvage:
        file, broken = salvaged(source, limits)
    else:
        file, broken = _whole(source, limits, checksums=checksums), None
    found = find_tensors(file.value, top_level_key)
    found.notes += file.notes
    if broken is not None:
        found = without_lost(found, broken)
    rows = Rows(file, source, limits)
    rows.add(found.tensors, dense=dense)
    return rows.contents(found)


def _whole(source: Source, limits: Limits, *, checksums: bool) -> PickledFile:
    try:
        return read_pickled(source, limits, checksums=checksums)
    except TruncatedError as error:
        error.hint = error.hint or "salvage=True gives the tensors that are whole"
        raise


def plan(
    tensors: Sequence[TensorSnapshot], metadata: Mapping[str, str] | None, limits: Limits, **options: Any
) -> WritePlan:
    """Refuse: files of torch are read, not written."""
    raise UnsupportedError(
        "Saving to PyTorch format is not yet supported. Use other formats for saving.",
        hint='format="burnpack" (.bpk) and format="safetensors" (.safetensors) can be written',
    )
