"""Scan a file for code that other programs would run, and list the tensors that can be read safely anyway.

A file is judged by what common programs would do with its bytes (`loaders`), whatever its format; a file of a format
that contains only data must also open. Nothing is run.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...checkpoint import open_checkpoint
from ...errors import (
    BurnstoreError,
    ReadError,
    UnknownFormatError,
    UnsafeContentError,
    UnsupportedError,
    entry_point,
    located,
    printable,
)
from ...formats.dcp.metadata import read_metadata
from ...formats.registry import HEAD_BYTES, format_for_bytes
from ...formats.sharded.locate import begins_like_index
from ...io.opening import open_source
from ...io.paths import as_path, is_folder, is_remote, is_within, join, walk, with_options
from ...io.source import Source
from ...limits import Limits, check_options
from ...tensor.tabular import Result
from .loaders import Finding as Finding
from .loaders import Inspector
from .severity import DANGEROUS, SUSPICIOUS

CLEAN, ERROR = "clean", "error"

_SUFFIXES = (
    *(".pt", ".pth", ".bin", ".ckpt", ".pt2", ".pkl", ".pickle", ".joblib", ".dill", ".npy", ".npz", ".safetensors"),
    *(".bpk", ".mpk", ".th", ".tar", ".gguf"),
)
_TEXT_BYTES = 1 << 20
_PACKAGE = ".data/extern_modules"
_UNPACKED = Finding(SUSPICIOUS, "an unpacked torch.package, whose sources are imported", False, "", 0, "Python source")
_MAX_VOCABULARY_BYTES = 64 << 20
_VOCABULARY_TAGS = tuple(field << 3 | 2 for field in range(1, 6))
_PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8")


@dataclass(frozen=True, slots=True)
class ScanResult(Result):
    """The findings about a file or a folder; ``verdict`` is ``clean``, ``suspicious``, ``dangerous`` or ``error``.

    The verdict on a folder is the worst of its ``files``.
    """

    path: str
    format: str | None
    verdict: str
    findings: tuple[Finding, ...] = ()
    tensors: tuple[str, ...] = field(default=(), repr=False)
    """The names of the tensors that burnstore reads from the file without running anything."""
    error: BurnstoreError | OSError | None = None
    """Why the file could not be judged, or why no tensors can be read."""
    files: tuple[ScanResult, ...] = ()
    """The results for the files below a folder, in the order of their names."""

    @property
    def is_clean(self) -> bool:
        """Whether there is only data."""
        return self.verdict == CLEAN

    ok = is_clean

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for strict JSON; only a folder has ``files``."""
        facts = super(ScanResult, self).to_dict()
        return facts if self.files else {name: fact for name, fact in facts.items() if name != "files"}


@entry_point("scan")
def scan(
    path: str | os.PathLike[str],
    *,
    allow_empty: bool = False,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ScanResult:
    """Report whether loading a file with other programs would run code, and which tensors can be read safely anyway.

    The file is ``clean`` if neither pickle, torch, NumPy nor joblib would run code in it, whichever of their functions
    reads it. A name that is not known to be data makes it ``suspicious``; a name that is known to be harmful, native
    code, or a path out of an archive makes it ``dangerous``. A file that cannot be judged has the verdict ``error``. In
    a folder, every file below it is scanned except texts, pictures and vocabularies of SentencePiece. A link out of the
    folder (except the links of a Hugging Face hub snapshot to its files), a file that cannot be judged, and a folder
    without files to judge (unless ``allow_empty=True``) are errors.

    Raises FileNotFoundError and other OSErrors.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "downloaded.pkl")
    ...     with open(path, "wb") as file:
    ...         _ = file.write(b"cos\\nsystem\\n(S'id'\\ntR.")
    ...     found = scan(path)
    >>> found.verdict, found.findings[0].name, found.findings[0].called
    ('dangerous', 'os.system', True)
    """
    check_options(limits=limits, allow_empty=allow_empty)
    (shown,) = with_options(storage_options, path)
    shown = as_path(shown)
    if is_folder(shown):
        files = tuple(scan_files(shown, limits=limits))
        worst = {verdict: place for place, verdict in enumerate((CLEAN, ERROR, SUSPICIOUS, DANGEROUS))}
        verdict = max((file.verdict for file in files), key=worst.__getitem__, default=CLEAN if allow_empty else ERROR)
        hint = f"looked for {', '.join(f'*{suffix}' for suffix in _SUFFIXES)}"
        message = "the folder contains no files of tensors or pickles"
        empty = None if files or allow_empty else ReadError(message, path=shown, hint=hint)
        return ScanResult(shown, None, verdict, error=empty, files=files)
    return _scan_file(shown, limits or Limits())[0]


def _scan_file(path: str, limits: Limits) -> tuple[ScanResult, bool]:
    """Scan one file; return also whether every way to read it was followed to its end."""
    source = open_source(path)
    try:
        with located(path=path):
            return _judge(source, path, limits)
    except BurnstoreError as error:
        return ScanResult(path, None, ERROR, error=error), False
    finally:
        source.close()


def code_in(path: str, limits: Limits | None = None) -> tuple[Finding, ...]:
    """Return the code in one file that other programs would run, the most dangerous first."""
    limits = limits or Limits()
    source = open_source(path)
    try:
        inspector = Inspector(source, limits)
        inspector.run(source)
        return _ordered(inspector.findings)
    finally:
        source.close()


def _ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    order = sorted(findings, key=lambda finding: (finding.severity != DANGEROUS, finding.member, finding.position))
    return tuple(order)


def _judge(source: Source, path: str, limits: Limits) -> tuple[ScanResult, bool]:
    head = source.read_at(0, min(HEAD_BYTES, source.size))
    format_name = _format_of(head)
    found = Inspector(source, limits)
    is_complete = found.run(source)
    if os.path.basename(path).endswith(".metadata"):
        _inspect_objects(found, source, path, limits)
    findings = _ordered(found.findings)
    tensors, broken = _tensors(path, format_name or "pytorch", limits)
    is_data_format = format_name not in (None, "pytorch") or begins_like_index(head)
    if findings:
        verdict, error = findings[0].severity, broken
    elif isinstance(broken, UnsafeContentError):
        verdict, error = DANGEROUS, broken
    elif found.error is not None or (broken is not None and is_data_format):
        verdict, error = ERROR, found.error or broken
    elif not is_complete and not is_data_format:
        unproved = UnsupportedError("it is neither whole pickles from the first byte to the last, nor an archive")
        verdict, error = ERROR, broken or unproved
    else:
        verdict, error = CLEAN, broken
    if isinstance(error, BurnstoreError) and error.path is None:
        error.path = path
    return ScanResult(path, format_name, verdict, findings, tensors, error), found.error is None


def _inspect_objects(inspector: Inspector, source: Source, path: str, limits: Limits) -> None:
    """Follow the bytes that a distributed checkpoint unpickles: the metadata states where in other files they are."""
    try:
        objects = read_metadata(source, limits).objects.values()
    except BurnstoreError as error:
        inspector.error = inspector.error or error
        return
    folder, files = os.path.dirname(path), sorted({stored.file for stored in objects})
    for name in files:
        try:
            file = open_source(join(folder, name) if folder else name)
        except FileNotFoundError:
            continue  # Nothing is loaded, then.
        try:
            for stored in (stored for stored in objects if stored.file == name):
                inspector.run_part(file, stored.offset, stored.length, f"{name}[{stored.offset}]")
        finally:
            file.close()


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


def scan_files(folder: str, *, limits: Limits | None = None) -> Iterator[ScanResult]:
    """Yield the result for every file of tensors or pickles below a folder as soon as it is known."""
    for place, folders, files in walk(as_path(folder), onerror=_raise):
        folders.sort()
        linked = [] if is_remote(place) else [each for each in folders if os.path.islink(os.path.join(place, each))]
        for name in sorted([*files, *linked]):
            path = join(place, name)
            if not is_remote(path) and not is_within(path, folder):
                target = f"its target is {printable(os.path.realpath(path))}"
                outside = UnsafeContentError(
                    "the link leads out of the folder and is not followed", path=path, hint=target
                )
                yield ScanResult(path, None, ERROR, error=outside)
                continue
            try:
                if not is_remote(path) and not stat.S_ISREG(os.stat(path).st_mode):
                    continue
                found, is_followed = _scan_file(path, limits or Limits())
            except OSError as error:
                found, is_followed = ScanResult(path, None, ERROR, error=error), False
            if path.replace(os.sep, "/").endswith(_PACKAGE):
                found = replace(found, verdict=SUSPICIOUS, findings=(_UNPACKED,))
            unknown = found.format is None and is_followed and found.verdict == ERROR
            if not unknown or path.lower().endswith(_SUFFIXES) or not _is_document(path):
                yield found


def _is_document(path: str) -> bool:
    """Return whether a file that no loader follows is text, a picture, or a vocabulary (``tokenizer.model``)."""
    source = open_source(path)
    try:
        head = source.read_at(0, min(_TEXT_BYTES, source.size))
        if (
            head.startswith(b"\n")
            and source.size <= _MAX_VOCABULARY_BYTES
            and _is_vocabulary(source.read_at(0, source.size))
        ):
            return True
    finally:
        source.close()
    if head.startswith(_PICTURES):
        return True
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return "\0" not in text


def _is_vocabulary(data: bytes) -> bool:
    """Return whether these bytes are, from the first to the last, the pieces and settings of a SentencePiece model.

    It is a message of protobuf, with pieces in field 1 and settings in fields 2 to 5, each with its length. No pickle
    begins so: a line feed is no instruction.
    """
    at = 0
    while at < len(data):
        tag, length, shift = data[at], 0, 0
        if tag not in _VOCABULARY_TAGS:
            return False
        at += 1
        while at < len(data) and shift < 35:
            length |= (data[at] & 0x7F) << shift
            at, shift, is_last = at + 1, shift + 7, data[at] < 0x80
            if is_last:
                break
        at += length
    return at == len(data)


def _raise(error: OSError) -> None:
    raise error
