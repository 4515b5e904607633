"""Scanning: whether loading a file with other programs would run code in it, and what can be taken from it safely.

SafeTensors, Burnpack and Burn's records are data, and clean if they open. A pickle is a program: here every name that
it would import is listed, with what is known of it, whether the file is whole or broken on purpose. Nothing is run.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...checkpoint import open_checkpoint
from ...errors import BurnstoreError, UnknownFormatError, UnsafeContentError, located
from ...formats import pytorch
from ...formats.codec.pickle import read_pickle
from ...formats.codec.pickle_names import spelled_names
from ...formats.pytorch.pickles import ANYTHING, Parts, PicklePart, pickle_parts
from ...formats.registry import HEAD_BYTES, format_for_bytes
from ...io.source import FileSource
from ...limits import Limits
from ..json_output import json_text
from .severity import DANGEROUS, HARMLESS, severity_of

CLEAN, SUSPICIOUS, ERROR = "clean", "suspicious", "error"

_SUFFIXES = (
    *(".pt", ".pth", ".bin", ".ckpt", ".pt2", ".pkl", ".pickle", ".joblib", ".dill", ".npy", ".npz", ".safetensors"),
    *(".bpk", ".mpk", ".th", ".tar"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A name that a pickle would import, and that is not known to be harmless."""

    severity: str
    """``dangerous``, or ``suspicious`` if nothing is known of it."""
    name: str
    """Module and name, joined by a dot."""
    called: bool
    """Whether the pickle calls it; where it breaks off, that is assumed."""
    member: str
    """The member of the archive, empty if the file is none."""
    position: int
    """The byte in the member, or in the file."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found in one file. ``verdict`` is ``clean``, ``suspicious``, ``dangerous`` or ``error``."""

    path: str
    format: str | None
    verdict: str
    findings: tuple[Finding, ...] = ()
    tensors: tuple[str, ...] = ()
    """The names of the tensors that burnstore takes out of the file without running anything."""
    error: BurnstoreError | OSError | None = None
    """Why the file could not be judged, or why no tensors can be had."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing but data is in the file."""
        return self.verdict == CLEAN

    def to_dict(self) -> dict[str, Any]:
        """The scan as plain data, for JSON."""
        return {
            "path": json_text(self.path),
            "format": self.format,
            "verdict": self.verdict,
            "findings": [
                {name: getattr(finding, name) for name in ("severity", "name", "called", "member", "position")}
                for finding in self.findings
            ],
            "tensors": list(self.tensors),
            "error": None if self.error is None else str(self.error),
        }


def scan(path: str | os.PathLike[str], *, limits: Limits | None = None) -> Scan:
    """Say whether loading this file with other programs would run code, and which tensors can be taken safely anyway.

    A name that is not known to be data makes a file suspicious, one that is known for what it can do dangerous. Errors
    do not pass: they are the verdict. Raises FileNotFoundError, and what else the system says about opening it.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "downloaded.pkl")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(b"cos\\nsystem\\n(S'id'\\ntR.")
    ...     found = scan(path)
    >>> found.verdict, found.findings[0].name, found.findings[0].called
    ('dangerous', 'os.system', True)
    """
    shown = os.fsdecode(path)
    limits = limits or Limits()
    source = FileSource(path)
    try:
        with located(path=shown):
            format_name = _format_of(source.read_at(0, min(HEAD_BYTES, source.size)))
            if format_name is not None and format_name != "pytorch":
                return _opened(shown, format_name, limits)
            parts = pickle_parts(source, limits)
            return _judged(shown, format_name, parts, _strict_error(source, limits), limits)
    except BurnstoreError as error:
        return Scan(shown, None, ERROR, error=error)
    finally:
        source.close()


def _format_of(head: bytes) -> str | None:
    try:
        return format_for_bytes(head).name
    except UnknownFormatError:
        return None


def _opened(path: str, format_name: str, limits: Limits) -> Scan:
    """A file of a format that is data: clean if it opens."""
    try:
        with open_checkpoint(path, limits=limits) as file:
            return Scan(path, format_name, CLEAN, tensors=tuple(file))
    except (BurnstoreError, OSError) as error:
        return Scan(path, format_name, ERROR, error=error)


def _strict_error(source: FileSource, limits: Limits) -> BurnstoreError | None:
    """Why the file breaks the rules of PyTorch's files; None if it keeps them all."""
    try:
        pytorch.read_pickled(source, limits)
    except BurnstoreError as error:
        return error
    return None


def _judged(path: str, format_name: str | None, parts: Parts, broken: BurnstoreError | None, limits: Limits) -> Scan:
    findings: list[Finding] = []
    followed = True
    for part in parts.found:
        names, whole = _names_in(part)
        followed = followed and whole
        findings += _findings(part, names)
    findings.sort(key=lambda finding: (finding.severity != DANGEROUS, finding.member, finding.position))
    tensors, unopened = _tensors(path, limits)
    error = unopened
    if findings:
        verdict = findings[0].severity
    elif isinstance(broken, UnsafeContentError):
        verdict, error = DANGEROUS, broken
    elif parts.error is None and (broken is None or followed) and (parts.found or parts.is_data or format_name):
        verdict = CLEAN
    else:
        verdict, error = ERROR, parts.error or broken
    if isinstance(error, BurnstoreError) and error.path is None:
        error.path = path
    return Scan(path, format_name, verdict, tuple(findings), tensors, error)


_Names = dict[tuple[str, str], tuple[int, bool]]
"""Each global with its first place and whether it is called."""


def _names_in(part: PicklePart) -> tuple[_Names, bool]:
    """The globals of all pickles in a part, and whether every one of them could be followed to its end."""
    names: _Names = {}
    position = 0
    try:
        while position < len(part.data):
            found = read_pickle(part.data, position, dialect=ANYTHING)
            for at, symbol in found.globals:
                _add(names, symbol.module, symbol.name, at, symbol.called)
            position = found.end
        return names, True
    except BurnstoreError:
        for spelled in spelled_names(part.data)[0]:
            _add(names, spelled.module, spelled.name, spelled.position, True)
        return names, False


def _add(names: _Names, module: str, name: str, position: int, called: bool) -> None:
    first, before = names.get((module, name), (position, False))
    names[module, name] = first, before or called


def _findings(part: PicklePart, names: _Names) -> Iterator[Finding]:
    for (module, name), (position, called) in names.items():
        severity = severity_of(module, name)
        if severity != HARMLESS:
            yield Finding(severity, f"{module}.{name}", called, part.member, part.offset + position)


def _tensors(path: str, limits: Limits) -> tuple[tuple[str, ...], BurnstoreError | OSError | None]:
    try:
        with open_checkpoint(path, format="pytorch", limits=limits) as file:
            return tuple(file), None
    except (BurnstoreError, OSError) as error:
        return (), error


def scan_folder(folder: str | os.PathLike[str], *, limits: Limits | None = None) -> Iterator[Scan]:
    """Scan every file of tensors or pickles below a folder, in the order of their names.

    Files of other kinds are passed over. A link that leads out of the folder is not followed: it is an error.
    """
    root = os.path.realpath(folder)
    if not os.path.isdir(root):
        raise NotADirectoryError(20, "it is not a folder", os.fsdecode(folder))
    for place, folders, files in os.walk(os.fsdecode(folder), onerror=_raise):
        folders.sort()
        for name in sorted([*files, *(each for each in folders if os.path.islink(os.path.join(place, each)))]):
            path = os.path.join(place, name)
            real = os.path.realpath(path)
            if os.path.commonpath([root, real]) != root:
                yield Scan(
                    path, None, ERROR, error=UnsafeContentError("a link out of the folder: not followed", path=path)
                )
                continue
            found = _scan_candidate(path, limits)
            if found is not None:
                yield found


def _scan_candidate(path: str, limits: Limits | None) -> Scan | None:
    """The scan of a file, if it is one that a scan is for."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        found = scan(path, limits=limits)
    except OSError as error:
        return Scan(path, None, ERROR, error=error)
    unknown = found.format is None and found.verdict == ERROR
    return None if unknown and not path.lower().endswith(_SUFFIXES) else found


def _raise(error: OSError) -> None:
    raise error
