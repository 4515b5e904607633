"""Verification: whether a file is whole, from its first byte to its last, and whether its numbers are finite.

    opening    every rule of the format that does not need the tensors; of shards, that index and files agree
    tensors    each is read and its values are looked at: bools that are 0 or 1, codes in range, NaN and infinities
    checks     what the format has besides: the checksum of every member of a zip, padding that is zero
    digest     of the whole file, if one is expected or wanted; of each tensor, if wanted

All but the first are tasks for any executor. What is wrong is told, not raised, so that one finding does not hide the
others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import UNSHOWN, BurnstoreError, UnsupportedError, located
from ...formats.base import Check
from ...io.memory_budget import Room
from ...io.source import Source
from ...io.workers import Workers, checked_workers, in_batches, run_tasks
from ...limits import Limits
from ...progress import ProgressLike, progress_from
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.snapshot import TensorSnapshot, read_all
from ...tensor.stream import ByteStream
from ..json_output import json_text
from ..stats import value_runs
from .specials import count_special_values, count_specials

# A task has about so many bytes: enough to be worth a file that is opened, few enough to be shared out evenly.
_TASK_BYTES = 32 << 20
_SPARE = 64 << 20
_SMALL = 256 << 10  # tensors that are read together with their neighbours
_BLOCK_BYTES = 384 << 10  # stays in a core's own cache; whole elements of every dtype, also of 6 bits
_DIGEST_LENGTHS = {"sha256": 64, "sha512": 128}


@dataclass(frozen=True, slots=True)
class TensorCheck:
    """What was found of one tensor; ``error`` says why its values could not be had, or what is wrong with them."""

    name: str
    dtype: DType
    shape: Shape
    nbytes: int
    nan_count: int = 0
    inf_count: int = 0
    digest: str | None = None
    error: BurnstoreError | None = None

    @property
    def is_finite(self) -> bool:
        """Whether there is neither a NaN nor an infinity."""
        return self.nan_count == 0 and self.inf_count == 0

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for JSON."""
        return {
            "name": self.name,
            "dtype": str(self.dtype),
            "shape": list(self.shape),
            "nbytes": self.nbytes,
            "nan_count": self.nan_count,
            "inf_count": self.inf_count,
            "digest": self.digest,
            "error": None if self.error is None else _told(self.error),
        }


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found of one file.

    ``errors`` are what breaks a rule of its format, ``oddities`` what breaks none and is not as any writer makes it,
    ``notes`` what should be known about how its tensors were found. ``digest`` is that of the whole file, if it was
    wanted, and ``expected`` the one that it should have.

    >>> found = Verification("model.bpk", errors=(BurnstoreError("the header ends early"),))
    >>> found.is_whole, found.is_fine, str(found.errors[0])
    (False, False, 'the header ends early')
    """

    path: str
    format: str | None = None
    variant: str = ""
    layout: str | None = None
    file_size: int = 0
    tensors: tuple[TensorCheck, ...] = field(default=(), repr=False)
    errors: tuple[BurnstoreError, ...] = ()
    oddities: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    digest: str | None = None
    expected: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the file keeps all rules of its format, and every tensor in it can be read."""
        broken = (tensor.error for tensor in self.tensors if tensor.error is not None)
        return not self.errors and all(isinstance(error, UNSHOWN) for error in broken)

    @property
    def is_finite(self) -> bool:
        """Whether there is neither a NaN nor an infinity in it."""
        return all(tensor.is_finite for tensor in self.tensors)

    @property
    def is_expected(self) -> bool:
        """Whether the file has the digest that it should have; True where none was given."""
        return self.expected is None or self.digest == self.expected

    @property
    def is_fine(self) -> bool:
        """Whether nothing was found: the file is whole, as expected, finite, and nothing about it is odd."""
        unread = any(tensor.error is not None for tensor in self.tensors)
        return self.is_whole and self.is_expected and self.is_finite and not unread and not self.oddities

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for JSON."""
        return {
            "path": json_text(self.path),
            "is_fine": self.is_fine,
            "is_whole": self.is_whole,
            "is_finite": self.is_finite,
            "is_expected": self.is_expected,
            "format": self.format,
            "variant": self.variant,
            "layout": self.layout,
            "file_size": self.file_size,
            "digest": self.digest,
            "expected": self.expected,
            "errors": [_told(error) for error in self.errors],
            "oddities": list(self.oddities),
            "notes": list(self.notes),
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }


def _told(error: BurnstoreError) -> dict[str, Any]:
    facts = ("message", "rule", "tensor", "offset", "hint")
    return {"kind": type(error).__name__, **{fact: getattr(error, fact) for fact in facts}}


def verify(
    path: str | os.PathLike[str],
    *,
    digest: str | None = None,
    digests: bool = False,
    executor: Workers = None,
    progress: ProgressLike | None = None,
    limits: Limits | None = None,
) -> Verification:
    """Read a file (an index of shards, a folder with one) from its first byte to its last, and tell what is wrong.

    Every rule of its format is checked, every checksum that it has, and every tensor is read; NaN and infinities are
    counted. ``digest`` is what the whole file should have (``"sha256:..."`` or ``"sha512:..."``, of one file only).
    ``digests=True`` gives the SHA-256 of the file and of each tensor. ``executor`` is None for threads, a number of
    processes, or an executor in the manner of ``concurrent.futures``.

    A file that is broken is told of by the result, not raised; FileNotFoundError, and what else the system says about
    opening the file, is raised.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bs.save({"w": np.array([1, np.nan], np.float32)}, f"{folder}/model.bpk")
    ...     found = bs.verify(f"{folder}/model.bpk")
    >>> found.is_whole, found.is_fine, found.tensors[0].nan_count
    (True, False, 1)
    """
    expected = None if digest is None else checked_digest(digest)
    checked_workers(executor)
    shown = os.fsdecode(path)
    try:
        with open_checkpoint(path, limits=limits) as checkpoint, progress_from(progress) as report, located(path=shown):
            work = _Work(checkpoint, expected, digests=digests)
            return work.done(shown, executor, report)
    except BurnstoreError as error:
        return Verification(shown, errors=(error,), expected=expected)


def checked_digest(text: str) -> str:
    """A digest as ``algorithm:hex``; the algorithm may be left out where the length tells it. ValueError if it is none.

    >>> checked_digest("E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855")[:16]
    'sha256:e3b0c4429'
    """
    if not isinstance(text, str):
        raise TypeError(f"a digest is a str, not {type(text).__name__}")
    algorithm, colon, digits = text.strip().lower().rpartition(":")
    if not colon:
        algorithm = next((name for name, length in _DIGEST_LENGTHS.items() if length == len(digits)), "")
    if _DIGEST_LENGTHS.get(algorithm) != len(digits) or set(digits) - set("0123456789abcdef"):
        raise ValueError(f"{text!r} is no digest such as sha256:9f86d081... (64 digits) or sha512:...")
    return f"{algorithm}:{digits}"


class _Work:
    """What is to be done for one open file, as tasks."""

    def __init__(self, checkpoint: Checkpoint, expected: str | None, *, digests: bool) -> None:
        self._checkpoint = checkpoint
        self._expected = expected
        self.tasks: list[_Task] = []
        if expected is not None or digests:
            algorithm = "sha256" if expected is None else expected.partition(":")[0]
            is_one_file = all(checkpoint.file_of(name) == checkpoint.path for name in checkpoint)
            if is_one_file:
                self.tasks.append(_FileDigest(checkpoint._source, algorithm))
            elif expected is not None:
                raise UnsupportedError(
                    "a set of shards has no digest of its own", hint="verify each of its files with its digest"
                )
        checks = sorted(checkpoint.checks(), key=lambda check: -check.nbytes)  # a long one last would be waited for
        self.tasks += [_Checks(batch) for batch in in_batches(checks, lambda check: check.nbytes, _TASK_BYTES)]
        tensors = list(checkpoint.values())
        room = Room(max((tensor.bytes_held for tensor in tensors), default=0) + _SPARE)
        batches = in_batches(tensors, lambda tensor: tensor.nbytes, _TASK_BYTES)
        self.tasks += [_Tensors(batch, digests, room) for batch in batches]

    def done(self, path: str, executor: Workers, report: Callable[[int, int], None] | None) -> Verification:
        total, done = sum(task.nbytes for task in self.tasks), 0
        found = _Found()
        for task, outcome in zip(self.tasks, run_tasks(_done, self.tasks, executor), strict=True):
            found.add(outcome, path)
            done += task.nbytes
            if report is not None and task.nbytes:
                report(done, total)
        checkpoint = self._checkpoint
        return Verification(
            path,
            checkpoint.format,
            checkpoint.variant,
            checkpoint.layout,
            checkpoint.file_size,
            tuple(found.tensors),
            tuple(found.errors),
            tuple(found.oddities),
            tuple(checkpoint.notes),
            found.digest,
            self._expected,
        )


@dataclass(slots=True)
class _Found:
    """What a task found, or all of them."""

    tensors: list[TensorCheck] = field(default_factory=list)
    errors: list[BurnstoreError] = field(default_factory=list)
    oddities: list[str] = field(default_factory=list)
    digest: str | None = None

    def add(self, other: _Found, path: str) -> None:
        for error in (*other.errors, *(tensor.error for tensor in other.tensors)):
            if error is not None and error.path is None:
                error.path = path
        self.tensors += other.tensors
        self.errors += other.errors
        self.oddities += other.oddities
        self.digest = self.digest or other.digest


# --- the tasks, which may be done by another process, on another machine ----------------------------------------------


@dataclass(frozen=True, slots=True)
class _FileDigest:
    source: Source
    algorithm: str

    @property
    def nbytes(self) -> int:
        return self.source.size

    def __call__(self) -> _Found:
        digest = hashlib.new(self.algorithm)
        buffer = bytearray(_BLOCK_BYTES)
        for start in range(0, self.nbytes, _BLOCK_BYTES):
            part = memoryview(buffer)[: min(_BLOCK_BYTES, self.nbytes - start)]
            self.source.read_into([(start, part)])
            digest.update(part)
        return _Found(digest=f"{self.algorithm}:{digest.hexdigest()}")


@dataclass(frozen=True, slots=True)
class _Checks:
    checks: Sequence[Check]

    @property
    def nbytes(self) -> int:
        return sum(check.nbytes for check in self.checks)

    def __call__(self) -> _Found:
        found = _Found()
        for check in self.checks:
            try:
                odd = check()
            except BurnstoreError as error:
                found.errors.append(error)
            else:
                found.oddities += [] if odd is None else [odd]
        return found


@dataclass(frozen=True, slots=True)
class _Tensors:
    tensors: Sequence[TensorSnapshot]
    digests: bool
    room: Room
    """What tensors that must be made whole may take together."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def __call__(self) -> _Found:
        small = [tensor for tensor in self.tensors if tensor.nbytes <= _SMALL]
        with self.room.taken(sum(tensor.nbytes for tensor in small)):
            read = dict(zip((tensor.path for tensor in small), read_all(small), strict=True))
            found = {path: self._checked(tensor, read[path]) for path, tensor in zip(read, small, strict=True)}
        for tensor in self.tensors:
            if tensor.path not in found:
                with self.room.taken(tensor.bytes_held):
                    found[tensor.path] = self._checked(tensor, None)
        return _Found([found[tensor.path] for tensor in self.tensors])

    def _checked(self, tensor: TensorSnapshot, held: Any) -> TensorCheck:
        """What is to be said of a tensor, whose bytes may be held already; or the error that reading them gave."""
        digest = hashlib.sha256() if self.digests else None
        nans = infinities = 0
        error: BurnstoreError | None = None
        try:
            if isinstance(held, Exception):
                raise held
            with located(tensor=tensor.path):
                for nan_count, inf_count in _specials(tensor, _parts(tensor) if held is None else [held], digest):
                    nans += nan_count
                    infinities += inf_count
        except BurnstoreError as found:
            error, digest = found, None
        told = None if digest is None else f"sha256:{digest.hexdigest()}"
        return TensorCheck(tensor.path, tensor.dtype, tensor.shape, tensor.nbytes, nans, infinities, told, error)


_Task = _FileDigest | _Checks | _Tensors


def _done(task: _Task) -> _Found:
    return task()


def _parts(tensor: TensorSnapshot) -> Iterator[bytearray | memoryview]:
    stream = ByteStream(tensor)
    for start in range(0, tensor.nbytes, _BLOCK_BYTES):
        yield stream.take(min(_BLOCK_BYTES, tensor.nbytes - start))


def _specials(tensor: TensorSnapshot, parts: Iterable[Any], digest: Any) -> Iterator[tuple[int, int]]:
    """How many NaN and infinities there are in each part of a tensor; all of it is read, and goes into the digest."""
    dtype = tensor.dtype
    for part in parts:
        if digest is not None:
            digest.update(part)
        if not dtype.is_quantized:
            yield count_specials(part, dtype)
    if dtype.is_quantized:  # codes and scales mean something only together
        for values, _ in value_runs(tensor):
            yield count_special_values(values)
