"""Receipts: what a conversion read, did and wrote, as JSON that can be checked and replayed.

    {"burnstore": "0.1.0", "receipt": 1,
     "sources": [{"path": "model.pt", "format": "pytorch", "files": [{"path": .., "size": .., "sha256": ..}]}],
     "recipe":  {"filter": [..], "rename": [[.., ..]], "modules": .., "cast": "BF16", ..},
     "target":  {"path": "model.bpk", "format": "burnpack", "layout": "burn", "files": [..]},
     "tensors": [{"name": .., "from": [..], "dtype": .., "shape": [..], "sha256": ..}]}

Digests are SHA-256: of files as they lie on disk, of tensors of their bytes, row-major and little-endian, as proved
against the source when they were written. Paths are relative to the receipt, so that all can be moved together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import BurnstoreError, CorruptError, located
from ...io.atomic import atomic_file
from ...io.sizes import CHUNK_BYTES
from ...io.source import FileSource, read_whole
from ...io.workers import Workers, in_batches, run_tasks
from ...limits import Limits
from ...tensor.snapshot import TensorSnapshot

RECEIPT_SUFFIX = ".receipt.json"

_SCHEMA = 1
_MOST_BYTES = 1 << 30
_TASK_BYTES = 32 << 20

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class ReceiptFile:
    """A file as it was: where, how long, and its SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ReceiptTensor:
    """A tensor that was written: of which tensors of the source it was made, and the SHA-256 of its bytes."""

    name: str
    made_of: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True, slots=True)
class ReceiptSource:
    """A source of a conversion: what was given, its format, and the files that were read of it."""

    path: str
    format: str
    files: tuple[ReceiptFile, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one conversion read, did and wrote. Paths are as they lead from here.

    ``recipe`` is everything that was asked for, in the form of JSON; `burnstore.replay` does it again.
    """

    burnstore: str
    sources: tuple[ReceiptSource, ...]
    recipe: Mapping[str, Any]
    target: str
    format: str
    layout: str | None
    max_shard_size: int | None
    files: tuple[ReceiptFile, ...]
    tensors: tuple[ReceiptTensor, ...] = field(repr=False)

    def to_dict(self, folder: str) -> dict[str, Any]:
        """As JSON has it, for a receipt in this folder."""
        return {
            "burnstore": self.burnstore,
            "receipt": _SCHEMA,
            "sources": [
                {"path": _from(folder, each.path), "format": each.format, "files": _files_from(folder, each.files)}
                for each in self.sources
            ],
            "recipe": dict(self.recipe),
            "target": {
                "path": _from(folder, self.target),
                "format": self.format,
                "layout": self.layout,
                "max_shard_size": self.max_shard_size,
                "files": _files_from(folder, self.files),
            },
            "tensors": [
                {
                    "name": tensor.name,
                    "from": list(tensor.made_of),
                    "dtype": tensor.dtype,
                    "shape": list(tensor.shape),
                    "sha256": tensor.sha256,
                }
                for tensor in self.tensors
            ],
        }

    def save(self, path: Path, *, overwrite: bool = False, durable: bool = True) -> None:
        """Write it, all or nothing."""
        folder = os.path.dirname(os.path.abspath(path))
        text = (json.dumps(self.to_dict(folder), indent=1) + "\n").encode()
        with atomic_file(path, overwrite=overwrite, durable=durable, size=len(text)) as scratch:
            scratch.write(text)


@dataclass(frozen=True, slots=True)
class ReceiptCheck:
    """What came of checking a receipt: ``problems`` are all that is not as it says, a sentence each.

    ``unchecked`` are the sources that are no longer there, which is not held against the target.
    """

    path: str
    tensors: int
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def is_fine(self) -> bool:
        """Whether the target is what the receipt says, made of what it says."""
        return not self.problems


def read_receipt(path: Path) -> Receipt:
    """The receipt in a file; CorruptError if it is none.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bs.save({"w": np.ones(3, np.float32)}, f"{folder}/a.bpk")
    ...     done = bs.convert(f"{folder}/a.bpk", f"{folder}/a.safetensors", rename=["^w$=>weight"], receipt=True)
    ...     [(tensor.name, tensor.made_of) for tensor in bs.read_receipt(done.receipt).tensors]
    [('weight', ('w',))]
    """
    shown = os.fsdecode(path)
    with located(path=shown):
        try:
            document = json.loads(read_whole(path, _MOST_BYTES))
            if document["receipt"] != _SCHEMA:
                raise ValueError(f"it is of the kind {document['receipt']!r}")
            return _receipt(document, os.path.dirname(shown))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptError(
                f"it is no receipt of a conversion: {_why(error)}",
                hint="convert with receipt=True (--receipt) makes one",
            ) from error


def check_receipt(
    receipt: Path, *, sources: bool = True, executor: Workers = None, limits: Limits | None = None
) -> ReceiptCheck:
    """Whether the files that a receipt speaks of are as they were when it was written.

    The target's files and each of its tensors must be there with their digests; so must the sources, unless
    ``sources=False`` or they are no longer there. What is not as it should be is told, not raised; only a receipt that
    cannot be read is an error.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bs.save({"w": np.ones(3, np.float32)}, f"{folder}/a.bpk")
    ...     done = bs.convert(f"{folder}/a.bpk", f"{folder}/a.safetensors", receipt=True)
    ...     bs.check_receipt(done.receipt).is_fine
    True
    """
    said = read_receipt(receipt)
    given = [file for each in said.sources for file in each.files] if sources else []
    gone = tuple(file.path for file in given if not os.path.lexists(file.path))
    wanted = [*said.files, *(file for file in given if file.path not in gone)]
    found = zip(wanted, run_tasks(_wrong_file, wanted, executor), strict=True)
    problems = [f"{file.path}: {problem}" for file, problem in found if problem is not None]
    try:
        with open_checkpoint(said.target, limits=limits) as target:
            problems += _wrong_tensors(said, target, executor)
    except (BurnstoreError, OSError) as error:
        problems.append(f"{said.target}: it cannot be opened: {_why(error)}")
    return ReceiptCheck(os.fsdecode(receipt), len(said.tensors), tuple(problems), gone)


def files_of(paths: Iterable[str], executor: Workers = None) -> list[ReceiptFile]:
    """These files with their digests."""
    return list(run_tasks(file_digest, list(paths), executor))


def file_digest(path: str) -> ReceiptFile:
    """A file with its digest, read a few megabytes at a time."""
    digest = sha256()
    source = FileSource(path)
    try:
        buffer = memoryview(bytearray(min(CHUNK_BYTES, source.size)))
        for start in range(0, source.size, CHUNK_BYTES):
            piece = buffer[: min(CHUNK_BYTES, source.size - start)]
            source.read_into([(start, piece)])
            digest.update(piece)
        return ReceiptFile(path, source.size, digest.hexdigest())
    finally:
        source.close()


def tensor_digest(tensor: TensorSnapshot) -> str:
    """The SHA-256 of a tensor's bytes."""
    digest = sha256()
    for chunk in tensor.chunks():
        digest.update(chunk)
    return digest.hexdigest()


def _wrong_file(said: ReceiptFile) -> str | None:
    """What is wrong with a file; None if nothing is."""
    try:
        if os.path.getsize(said.path) != said.size:
            return f"it has {os.path.getsize(said.path)} bytes, the receipt says {said.size}"
        found = file_digest(said.path)
    except FileNotFoundError:
        return "it is not there"
    except (BurnstoreError, OSError) as error:
        return f"it cannot be read: {_why(error)}"
    return None if found.sha256 == said.sha256 else "its bytes are others than the receipt says"


def _wrong_tensors(said: Receipt, target: Checkpoint, executor: Workers) -> list[str]:
    problems = [
        f"{target.path}: tensor {tensor.name!r} is not there" for tensor in said.tensors if tensor.name not in target
    ]
    names = {tensor.name for tensor in said.tensors}
    problems += [f"{target.path}: the receipt knows of no tensor {name!r}" for name in target if name not in names]
    there = [(tensor, target[tensor.name]) for tensor in said.tensors if tensor.name in target]
    batches = list(in_batches(there, lambda pair: pair[1].nbytes, _TASK_BYTES))
    for wrong in run_tasks(_wrong_in, batches, executor):
        problems += [f"{target.path}: tensor {name!r} is not as the receipt says" for name in wrong]
    return problems


def _wrong_in(batch: list[tuple[ReceiptTensor, TensorSnapshot]]) -> list[str]:
    return [
        said.name
        for said, found in batch
        if str(found.dtype) != said.dtype or found.shape != said.shape or tensor_digest(found) != said.sha256
    ]


def _receipt(document: Mapping[str, Any], folder: str) -> Receipt:
    target = document["target"]
    return Receipt(
        str(document["burnstore"]),
        tuple(
            ReceiptSource(_to(folder, each["path"]), str(each["format"]), _files_to(folder, each["files"]))
            for each in document["sources"]
        ),
        dict(document["recipe"]),
        _to(folder, target["path"]),
        str(target["format"]),
        None if target["layout"] is None else str(target["layout"]),
        None if target["max_shard_size"] is None else int(target["max_shard_size"]),
        _files_to(folder, target["files"]),
        tuple(
            ReceiptTensor(
                str(each["name"]),
                tuple(map(str, each["from"])),
                str(each["dtype"]),
                tuple(map(int, each["shape"])),
                str(each["sha256"]),
            )
            for each in document["tensors"]
        ),
    )


def _files_from(folder: str, files: Sequence[ReceiptFile]) -> list[dict[str, Any]]:
    return [{"path": _from(folder, file.path), "size": file.size, "sha256": file.sha256} for file in files]


def _files_to(folder: str, files: Sequence[Mapping[str, Any]]) -> tuple[ReceiptFile, ...]:
    return tuple(ReceiptFile(_to(folder, file["path"]), int(file["size"]), str(file["sha256"])) for file in files)


def _from(folder: str, path: str) -> str:
    """A path as it leads from a folder."""
    try:
        return os.path.relpath(os.path.abspath(path), folder).replace(os.sep, "/")
    except ValueError:  # another drive of Windows
        return os.path.abspath(path)


def _to(folder: str, path: Any) -> str:
    if not isinstance(path, str):
        raise TypeError(f"a path is a text, not {path!r}")
    return os.path.normpath(os.path.join(folder, path))


def _why(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"there is no {error.args[0]!r} in it"
    if isinstance(error, BurnstoreError):
        return error.message
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
