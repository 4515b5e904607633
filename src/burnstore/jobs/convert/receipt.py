"""Receipts: what a conversion read, did and wrote, as JSON that can be checked and replayed.

    {"burnstore": "0.1.0", "receipt": 2,
     "sources": [{"path": "model.pt", "format": "pytorch", "files": [{"path": .., "size": .., "sha256": ..}]}],
     "target":  {"path": "model.bpk", "format": "burnpack", "layout": "burn", "metadata": {..}, "files": [..], ..},
     "tensors": [{"name": .., "from": [[source, input, [operation, ..]]], "operations": [..],
                  "dtype": .., "shape": [..], "sha256": ..}]}

The tensors are the plan itself: the sources of each and the operations on them. Replaying a receipt executes that plan;
no pattern or module kind is needed again. Digests are SHA-256: of files as they are on disk, of tensors of their bytes,
row-major and little-endian, as proved against the source when they were written. Paths are relative to the receipt, so
that everything can be moved together. A receipt is parsed as strictly as any file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal, TypedDict

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import BurnstoreError, CorruptError, located
from ...formats.base import is_layout_name
from ...io.atomic import atomic_file
from ...io.documents import Bounds, read_json
from ...io.opening import open_source, read_whole
from ...io.paths import as_path, base_name, exists, folder_of, is_remote, join, size_of
from ...io.sizes import CHUNK_BYTES
from ...io.workers import Workers, run_batches, run_tasks
from ...limits import Limits
from ...pipeline.write import check_apart
from ...tensor.snapshot import TensorSnapshot
from ...tensor.tabular import Result
from ...transforms.operations import operation_from_json

RECEIPT_SUFFIX = ".receipt.json"

_SCHEMA = 2  # also in ReceiptDocument
_BOUNDS = Bounds(1 << 30, 50_000_000, 16)

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class ReceiptFile:
    """A file: its path, size and SHA-256."""

    path: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        """Refuse numbers that no file has."""
        check_counts(self.size)
        _check_digest(self.sha256)


@dataclass(frozen=True, slots=True)
class ReceiptTensor:
    """A tensor that was written: its move, and the SHA-256 of its bytes."""

    name: str
    move: Mapping[str, Any]
    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the source tensors that it was made from."""
        return tuple(origin[0] for origin in self.move["from"] if origin[0] is not None)


@dataclass(frozen=True, slots=True)
class ReceiptSource:
    """A source of a conversion: the given path, its format, the files that were read, and its top-level key."""

    path: str
    format: str
    files: tuple[ReceiptFile, ...]
    top_level_key: str | None = None

    def to_dict(self, folder: str) -> dict[str, Any]:
        """Return the source as plain data for JSON, with paths relative to this folder."""
        key = {} if self.top_level_key is None else {"top_level_key": self.top_level_key}
        return {
            "path": _from(folder, self.path),
            "format": self.format,
            **key,
            "files": _files_from(folder, self.files),
        }


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one conversion read, did and wrote; `burnstore.replay` repeats it."""

    burnstore: str
    sources: tuple[ReceiptSource, ...]
    target: str
    format: str
    layout: str | None
    max_shard_size: int | None
    metadata: Mapping[str, str]
    options: Mapping[str, Any]
    files: tuple[ReceiptFile, ...]
    tensors: tuple[ReceiptTensor, ...] = field(repr=False)

    def to_dict(self, folder: str) -> dict[str, Any]:
        """Return the receipt as plain data for JSON, with paths relative to this folder."""
        return {
            "burnstore": self.burnstore,
            "receipt": _SCHEMA,
            "sources": [each.to_dict(folder) for each in self.sources],
            "target": {
                "path": _from(folder, self.target),
                "format": self.format,
                "layout": self.layout,
                "max_shard_size": self.max_shard_size,
                "metadata": dict(self.metadata),
                "options": dict(self.options),
                "files": _files_from(folder, self.files),
            },
            "tensors": [
                {**tensor.move, "dtype": tensor.dtype, "shape": list(tensor.shape), "sha256": tensor.sha256}
                for tensor in self.tensors
            ],
        }

    def save(self, path: Path, *, overwrite: bool = False, durable: bool = True) -> None:
        """Write the receipt, all or nothing; SaveError if a file that it describes has this path."""
        place = as_path(path)
        read = [file.path for each in self.sources for file in each.files]
        check_apart([*read, *(file.path for file in self.files)], place)
        folder = folder_of(place) if is_remote(place) else os.path.dirname(os.path.abspath(place))
        document = self.to_dict(folder)
        tensors = ",\n  ".join(json.dumps(each) for each in document.pop("tensors"))
        text = f'{json.dumps(document, indent=1)[:-2]},\n "tensors": [\n  {tensors}\n ]\n}}\n'.encode()
        with atomic_file(path, overwrite=overwrite, durable=durable, size=len(text)) as scratch:
            scratch.write(text)


@dataclass(frozen=True, slots=True)
class ReceiptCheck(Result):
    """The outcome of checking a receipt: ``problems`` has a sentence for everything that differs from it.

    ``unchecked`` are sources that no longer exist; they are not a problem of the target.
    """

    path: str
    tensors: int
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether sources and target match the receipt."""
        return not self.problems


def read_receipt(path: Path) -> Receipt:
    """Read a receipt; CorruptError if the file is not one.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = bs.save({"w": np.ones(3, np.float32)}, f"{folder}/a.bpk")
    ...     done = bs.convert(f"{folder}/a.bpk", f"{folder}/a.safetensors", rename=["^w$=>weight"], receipt=True)
    ...     [(tensor.name, tensor.sources) for tensor in read_receipt(done.receipt).tensors]
    [('weight', ('w',))]
    """
    shown = as_path(path)
    with located(path=shown):
        try:
            raw = read_whole(path, _BOUNDS.nbytes)
            return _receipt(read_json(raw, _BOUNDS, into=ReceiptDocument), folder_of(shown))
        except ValueError as error:
            raise CorruptError(
                f"not a receipt of a conversion: {_why(error)}",
                hint="write one with burnstore convert SRC DST --receipt, "
                "or burnstore.convert(source, target, receipt=True)",
            ) from error


def check_receipt(
    receipt: Path, *, sources: bool = True, executor: Workers = None, limits: Limits | None = None
) -> ReceiptCheck:
    """Check whether the files of a receipt are unchanged since it was written.

    The target's files and tensors must exist with the recorded digests, and so must the sources, unless
    ``sources=False`` or they no longer exist. Differences are reported, not raised; only a receipt that cannot be read
    is an error.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = bs.save({"w": np.ones(3, np.float32)}, f"{folder}/a.bpk")
    ...     done = bs.convert(f"{folder}/a.bpk", f"{folder}/a.safetensors", receipt=True)
    ...     check_receipt(done.receipt).ok
    True
    """
    stated = read_receipt(receipt)
    given = [file for each in stated.sources for file in each.files] if sources else []
    gone = tuple(file.path for file in given if not exists(file.path))
    wanted = [*stated.files, *(file for file in given if file.path not in gone)]
    found = zip(wanted, run_tasks(_wrong_file, wanted, executor), strict=True)
    problems = [f"{file.path}: {problem}" for file, problem in found if problem is not None]
    try:
        with open_checkpoint(stated.target, limits=limits) as target:
            problems += _wrong_tensors(stated, target, executor)
    except (BurnstoreError, OSError) as error:
        problems.append(f"{stated.target}: cannot be opened: {_why(error)}")
    return ReceiptCheck(as_path(receipt), len(stated.tensors), tuple(problems), gone)


def files_of(paths: Iterable[str], executor: Workers = None) -> list[ReceiptFile]:
    """Return files with their digests."""
    return list(run_tasks(file_digest, list(paths), executor))


def file_digest(path: str) -> ReceiptFile:
    """Return a file with its digest, read a few megabytes at a time."""
    digest = sha256()
    source = open_source(path)
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
    """Return the SHA-256 of a tensor's bytes."""
    digest = sha256()
    for chunk in tensor.chunks():
        digest.update(chunk)
    return digest.hexdigest()


def _wrong_file(stated: ReceiptFile) -> str | None:
    """Return how a file differs from the receipt; None if it does not."""
    try:
        size = size_of(stated.path)
        if size != stated.size:
            return f"expected {stated.size} bytes, found {size}"
        found = file_digest(stated.path)
    except FileNotFoundError:
        return "the file is missing"
    except (BurnstoreError, OSError) as error:
        return f"cannot be read: {_why(error)}"
    return None if found.sha256 == stated.sha256 else "SHA-256 mismatch with receipt"


def _wrong_tensors(stated: Receipt, target: Checkpoint, executor: Workers) -> list[str]:
    problems = [
        f"{target.path}: tensor {tensor.name!r} is missing" for tensor in stated.tensors if tensor.name not in target
    ]
    names = {tensor.name for tensor in stated.tensors}
    problems += [f"{target.path}: tensor {name!r} is not in the receipt" for name in target if name not in names]
    there = [(tensor, target[tensor.name]) for tensor in stated.tensors if tensor.name in target]
    for _, wrong in run_batches(_wrong_in, there, lambda pair: pair[1].nbytes, executor):
        problems += [f"{target.path}: tensor {name!r}: SHA-256 mismatch with receipt" for name in wrong]
    return problems


def _wrong_in(batch: list[tuple[ReceiptTensor, TensorSnapshot]]) -> list[str]:
    return [
        stated.name
        for stated, found in batch
        if str(found.dtype) != stated.dtype or found.shape != stated.shape or tensor_digest(found) != stated.sha256
    ]


class _SourceFields(TypedDict):
    path: str
    format: str
    files: list[ReceiptFile]


class _Source(_SourceFields, total=False):
    top_level_key: str


class _Target(TypedDict):
    path: str
    format: str
    layout: str | None
    max_shard_size: int | None
    metadata: dict[str, str]
    options: dict[str, Any]
    files: list[ReceiptFile]


MoveFields = TypedDict(
    "MoveFields",
    {
        "name": str,
        "from": list[tuple[str | None, int, list[Any]]],
        "operations": list[Any],
        "dtype": str,
        "shape": list[int],
    },
)
"""The JSON of a move: each origin is the name of a tensor or null, the number of its file, and operations."""


class _Tensor(MoveFields):
    sha256: str


class ReceiptDocument(TypedDict):
    """The JSON document of a receipt; paths are relative to it."""

    burnstore: str
    receipt: Literal[2]
    sources: list[_Source]
    target: _Target
    tensors: list[_Tensor]


def _receipt(document: ReceiptDocument, folder: str) -> Receipt:
    target = document["target"]
    receipt = Receipt(
        document["burnstore"],
        tuple(
            ReceiptSource(
                _to(folder, each["path"]), each["format"], _files_to(folder, each["files"]), each.get("top_level_key")
            )
            for each in document["sources"]
        ),
        _to(folder, target["path"]),
        target["format"],
        target["layout"],
        target["max_shard_size"],
        target["metadata"],
        target["options"],
        _files_to(folder, target["files"]),
        tuple(
            ReceiptTensor(
                each["name"],
                move_of(each),
                each["dtype"],
                tuple(each["shape"]),
                each["sha256"],
            )
            for each in document["tensors"]
        ),
    )
    for tensor in receipt.tensors:
        check_move(tensor.move, tensor.shape)
        _check_digest(tensor.sha256)
    check_counts(receipt.max_shard_size or 0)
    check_layout(receipt.layout)
    if len({tensor.name for tensor in receipt.tensors}) < len(receipt.tensors):
        raise ValueError("two tensors have the same name")
    if not receipt.sources or not receipt.files:
        raise ValueError("it lists no sources or no target files")
    return receipt


def move_of(fields: MoveFields) -> dict[str, Any]:
    """Return the move of a tensor: where it is from, and the operations on it."""
    return {
        "name": fields["name"],
        "from": [list(origin) for origin in fields["from"]],
        "operations": fields["operations"],
    }


def check_move(move: Mapping[str, Any], shape: Sequence[int]) -> None:
    """Raise ValueError for operations that burnstore does not have, and for numbers below 0."""
    check_counts(*shape, *(number for _, number, _ in move["from"]))
    for steps in (move["operations"], *(steps for _, _, steps in move["from"])):
        for step in steps:
            operation_from_json(step)


def check_counts(*values: int) -> None:
    """Raise ValueError for numbers below 0."""
    if any(value < 0 for value in values):
        raise ValueError(f"expected a count, found {min(values)}")


def check_layout(name: str | None) -> None:
    """Raise ValueError for a text that is not the name of a layout."""
    if name is not None and not is_layout_name(name):
        raise ValueError(f"expected a layout, found {name!r:.80}")


def _check_digest(value: str) -> None:
    if len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise ValueError(f"expected a SHA-256, found {value!r:.80}")


def _files_from(folder: str, files: Sequence[ReceiptFile]) -> list[dict[str, Any]]:
    return [{"path": _from(folder, file.path), "size": file.size, "sha256": file.sha256} for file in files]


def _files_to(folder: str, files: Sequence[ReceiptFile]) -> tuple[ReceiptFile, ...]:
    return tuple(replace(file, path=_to(folder, file.path)) for file in files)


def _from(folder: str, path: str) -> str:
    """Return a path relative to a folder; a URL stays one."""
    if is_remote(path) or is_remote(folder):
        beside = is_remote(path) and is_remote(folder) and folder_of(path) == folder
        return base_name(path) if beside else str(path) if is_remote(path) else os.path.abspath(path)
    try:
        return os.path.relpath(os.path.abspath(path), folder).replace(os.sep, "/")
    except ValueError:  # another drive of Windows
        return os.path.abspath(path)


def _to(folder: str, path: str) -> str:
    if "\0" in path or not path:
        raise ValueError(f"expected a path, found {path!r:.80}")
    if "://" in path:
        return as_path(path)
    if is_remote(folder) and not os.path.isabs(path):
        return join(folder, path)
    return os.path.normpath(path if is_remote(folder) else os.path.join(folder, path))


def _why(error: BaseException) -> str:
    if isinstance(error, BurnstoreError):
        return error.message
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
