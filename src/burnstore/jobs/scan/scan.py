"""Scan: would loading a file with other programs run code in it, and which tensors can be read safely anyway?

SafeTensors, Burnpack and Burn's records are data, and clean if they open. A pickle is a program: every name that it
would import is listed with its severity, also if the file is broken on purpose. Nothing is run.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ...checkpoint import open_checkpoint
from ...errors import BurnstoreError, UnknownFormatError, UnsafeContentError, located
from ...formats import pytorch
from ...formats.codec.pickle import read_pickle
from ...formats.codec.pickle_names import spelled_names
from ...formats.registry import HEAD_BYTES, format_for_bytes
from ...io.source import FileSource
from ...limits import Limits
from ..json_output import json_text
from .parts import ANYTHING, Parts, PicklePart, pickle_parts
from .severity import DANGEROUS, HARMLESS, SUSPICIOUS, severity_of

CLEAN, ERROR = "clean", "error"

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
    """Whether the pickle calls it; assumed if the pickle is broken."""
    member: str
    """The member of the archive, empty if the file is not an archive."""
    position: int
    """The offset in the member, or in the file."""


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What was found in a file or a folder. ``verdict`` is ``clean``, ``suspicious``, ``dangerous`` or ``error``.

    The verdict on a folder is the worst one of its files, which are in ``files``.
    """

    path: str
    format: str | None
    verdict: str
    findings: tuple[Finding, ...] = ()
    tensors: tuple[str, ...] = ()
    """The names of the tensors that burnstore reads from the file without running anything."""
    error: BurnstoreError | OSError | None = None
    """Why the file could not be judged, or why no tensors can be read."""
    files: tuple[ScanResult, ...] = ()
    """The results for the files below a folder, in the order of their names."""

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing but data."""
        return self.verdict == CLEAN

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, for JSON."""
        plain: dict[str, Any] = {
            "path": json_text(self.path),
            "format": self.format,
            "verdict": self.verdict,
            "findings": [asdict(finding) for finding in self.findings],
            "tensors": list(self.tensors),
            "error": None if self.error is None else str(self.error),
        }
        return {**plain, "files": [file.to_dict() for file in self.files]} if self.files else plain


def scan(path: str | os.PathLike[str], *, limits: Limits | None = None) -> ScanResult:
    """Report whether loading a file with other programs would run code, and which tensors can be read safely anyway.

    A name that is not known to be data makes a file suspicious; one that is known to be harmful, dangerous. A file that
    cannot be judged has the verdict ``error``. For a folder, every file of tensors or pickles below it is scanned;
    other files are skipped, and a link out of the folder is an error. Raises FileNotFoundError and other OSErrors.

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
    if os.path.isdir(shown):
        files = tuple(scan_files(shown, limits=limits))
        worst = {verdict: place for place, verdict in enumerate((CLEAN, ERROR, SUSPICIOUS, DANGEROUS))}
        verdict = max((file.verdict for file in files), key=worst.__getitem__, default=CLEAN)
        return ScanResult(shown, None, verdict, files=files)
    limits = limits or Limits()
    source = FileSource(path)
    try:
        with located(path=shown):
            format_name = _format_of(source.read_at(0, min(HEAD_BYTES, source.size)))
            if format_name is not None and format_name != "pytorch":
                tensors, error = _tensors(shown, format_name, limits)
                return ScanResult(shown, format_name, ERROR if error else CLEAN, tensors=tensors, error=error)
            return _judge(shown, format_name, pickle_parts(source, limits), _strict_error(source, limits), limits)
    except BurnstoreError as error:
        return ScanResult(shown, None, ERROR, error=error)
    finally:
        source.close()


def _format_of(head: bytes) -> str | None:
    try:
        return format_for_bytes(head).name
    except UnknownFormatError:
        return None


def _tensors(path: str, format_name: str, limits: Limits) -> tuple[tuple[str, ...], BurnstoreError | OSError | None]:
    try:
        with open_checkpoint(path, format=format_name, limits=limits) as file:
            return tuple(file), None
    except (BurnstoreError, OSError) as error:
        return (), error


def _strict_error(source: FileSource, limits: Limits) -> BurnstoreError | None:
    """Return which rule of PyTorch's files this one breaks; None if it keeps them all."""
    try:
        pytorch.read_pickled(source, limits)
    except BurnstoreError as error:
        return error
    return None


def _judge(
    path: str, format_name: str | None, parts: Parts, broken: BurnstoreError | None, limits: Limits
) -> ScanResult:
    findings: list[Finding] = []
    followed = True
    for part in parts.found:
        names, whole = _names_in(part)
        followed = followed and whole
        findings += _findings(part, names)
    findings.sort(key=lambda finding: (finding.severity != DANGEROUS, finding.member, finding.position))
    tensors, error = _tensors(path, "pytorch", limits)
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
    return ScanResult(path, format_name, verdict, tuple(findings), tensors, error)


_Names = dict[tuple[str, str], tuple[int, bool]]
"""Each global with its first position and whether it is called."""


def _names_in(part: PicklePart) -> tuple[_Names, bool]:
    """Return the globals of all pickles in a part, and whether every pickle could be followed to its end."""
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


def scan_files(folder: str, *, limits: Limits | None = None) -> Iterator[ScanResult]:
    """Yield the result for every file of tensors or pickles below a folder as soon as it is known."""
    root = os.path.realpath(folder)
    for place, folders, files in os.walk(folder, onerror=_raise):
        folders.sort()
        for name in sorted([*files, *(each for each in folders if os.path.islink(os.path.join(place, each)))]):
            path = os.path.join(place, name)
            if os.path.commonpath([root, os.path.realpath(path)]) != root:
                outside = UnsafeContentError("a link out of the folder: not followed", path=path)
                yield ScanResult(path, None, ERROR, error=outside)
                continue
            try:
                if not stat.S_ISREG(os.stat(path).st_mode):
                    continue
                found = scan(path, limits=limits)
            except OSError as error:
                found = ScanResult(path, None, ERROR, error=error)
            unknown = found.format is None and isinstance(found.error, BurnstoreError) and found.verdict == ERROR
            if not unknown or path.lower().endswith(_SUFFIXES):
                yield found


def _raise(error: OSError) -> None:
    raise error
