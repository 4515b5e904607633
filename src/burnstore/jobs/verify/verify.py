"""Verify files: every rule of the format, every checksum, every tensor; count NaN and infinities.

    opening    every rule of the format that does not need the tensors; whether index and shards agree
    tensors    each tensor is read and its values are checked: bools are 0 or 1, codes in range, NaN, infinities
    checks     the format's own checks: checksums of zip members, padding that is zero
    digest     of the whole file, if one is expected or wanted; of each tensor, if wanted

All but opening are tasks for any executor. Problems are collected in the result and not raised, so that one does not
hide the others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import (
    UNREPRESENTABLE,
    BurnstoreError,
    CorruptError,
    ReadError,
    UnknownFormatError,
    UnsupportedError,
    counted,
    entry_point,
    located,
    printable,
)
from ...formats.base import Check
from ...formats.registry import format_for_path
from ...formats.sharded.locate import INDEX_SUFFIX, locate
from ...formats.sharded.read import weight_map_at
from ...io.paths import as_path, folder_of, is_folder, is_path, join, size_of, walk, with_options
from ...io.sizes import TASK_BYTES
from ...io.source import Source
from ...io.workers import MemoryBudget, Workers, checked_workers, in_batches, in_runs, run_tasks
from ...limits import Limits, check_options
from ...pipeline.model_tensors import ModelTensors
from ...progress import Advance, Progress, ProgressLike, progress_from
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.note import Note, note_kind
from ...tensor.plain import Plain
from ...tensor.snapshot import ByteStream, TensorSnapshot, read_all
from ...tensor.tabular import Result
from ..budget import Shared, plan_reads, too_much
from ..scan.scan import code_in
from ..scan.severity import DANGEROUS
from ..stats import count_special_values, count_specials, value_runs

_BLOCK_BYTES = 384 << 10  # It fits into a core's cache and has whole elements of every dtype, also of 6 bits.
_MOST_CODE = 20
_DIGEST_LENGTHS = {"sha256": 64, "sha512": 128}


@dataclass(frozen=True, slots=True)
class TensorCheck(Plain):
    """The findings about one tensor; ``error`` is the reason why its values could not be read or are invalid."""

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
        """Whether no value is NaN or infinite."""
        return self.nan_count == 0 and self.inf_count == 0


@dataclass(frozen=True, slots=True)
class Verification(Result):
    """The findings about a file, a set of shards, a folder, or a model.

    ``errors`` break a rule of the format. ``warnings`` break none, but no known writer produces them. ``notes`` concern
    how the tensors were found. ``digest`` is that of the whole file, if wanted, and ``expected`` the required one.
    ``files`` has a result for each file of a folder.

    >>> found = Verification("model.bpk", errors=(BurnstoreError("the header ends early"),))
    >>> found.is_whole, found.ok, str(found.errors[0])
    (False, False, 'the header ends early')
    """

    _facts: ClassVar[tuple[str, ...]] = ("ok", "is_whole", "is_finite", "is_expected")

    path: str
    format: str | None = None
    variant: str = ""
    layout: str | None = None
    file_size: int = 0
    tensors: tuple[TensorCheck, ...] = field(default=(), repr=False)
    errors: tuple[BurnstoreError, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    digest: str | None = None
    expected: str | None = None
    files: tuple[Verification, ...] = field(default=(), repr=False)

    @property
    def is_whole(self) -> bool:
        """Whether every rule of the format is kept and every tensor can be read."""
        broken = (tensor.error for tensor in self.tensors if tensor.error is not None)
        own = not self.errors and all(isinstance(error, UNREPRESENTABLE) for error in broken)
        return own and all(file.is_whole for file in self.files)

    @property
    def is_finite(self) -> bool:
        """Whether no value is NaN or infinite."""
        return all(tensor.is_finite for tensor in self.tensors) and all(file.is_finite for file in self.files)

    @property
    def is_expected(self) -> bool:
        """Whether the file has the expected digest; True if none was given."""
        return self.expected is None or self.digest == self.expected

    @property
    def ok(self) -> bool:
        """Whether nothing was found: the file is whole, as expected, finite, fully read, and has no warnings.

        A file without tensors, of which nothing could be verified, is not ok unless ``allow_empty=True`` was given.
        """
        clean = not self.warnings and all(tensor.error is None for tensor in self.tensors)
        clean = clean and super(Verification, self).ok
        return self.is_whole and self.is_expected and self.is_finite and clean and all(file.ok for file in self.files)


@entry_point("verify")
def verify(
    path: Any,
    *,
    digest: str | None = None,
    digests: bool = False,
    allow_empty: bool = False,
    executor: Workers = None,
    progress: ProgressLike | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Verification:
    """Read a file, a set of shards or every file below a folder completely, and report what is wrong.

    Every rule of the format and every checksum is checked, every tensor is read (also those of a PyTorch file that are
    not the model's, under their full names), NaN and infinities are counted.
    ``digest`` is the expected digest of one file (``"sha256:..."`` or ``"sha512:..."``). ``digests=True`` returns the
    SHA-256 of each file and tensor. ``executor`` is None for threads, a number of processes, or an executor like those
    of ``concurrent.futures``.

    A folder that is one set of shards is verified as that set. Of any other folder every file with a known suffix is
    verified, a set of shards as one; names that begin with a dot and links to folders are skipped. A folder without
    such files, and a file without tensors and scalars, are not ok, unless ``allow_empty=True``.

    Broken files are reported in the result. Errors of the system, such as FileNotFoundError, are raised.

    Instead of a path it takes a model, as `save` does, or snapshots: every tensor is read and its values are checked.
    ``notes`` have what `save` would leave out, and numbers that are in no tensor of the model are warned about, unless
    they are buffers that are not persistent. A model has no digest; ``digests=True`` returns those of its tensors.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = bs.save({"w": np.array([1, np.nan], np.float32)}, f"{folder}/model.bpk")
    ...     saved = bs.save({"w": np.ones(2)}, f"{folder}/other.safetensors")
    ...     file, whole = bs.verify(f"{folder}/model.bpk"), bs.verify(folder)
    >>> file.is_whole, file.ok, file.tensors[0].nan_count, [each.ok for each in whole.files]
    (True, False, 1, [False, True])
    """
    check_options(limits=limits, digests=digests, allow_empty=allow_empty)
    if not is_path(path) and not isinstance(path, bytes):
        return _verify_model(path, digest, digests, allow_empty, executor, progress)
    (shown,) = with_options(storage_options, path)
    results = verify_each(
        shown, digest, digests, allow_empty=allow_empty, executor=executor, progress=progress, limits=limits
    )
    files = tuple(results)
    if len(files) == 1 and (not is_folder(shown) or _is_about(shown, files[0])):
        return files[0]
    return Verification(shown, files=files, file_size=sum(file.file_size for file in files))


def _verify_model(
    model: Any, digest: str | None, digests: bool, allow_empty: bool, executor: Workers, progress: ProgressLike | None
) -> Verification:
    if isinstance(model, (Checkpoint, bytearray, memoryview)):
        raise TypeError(f"expected a path or a model, got {type(model).__name__}; pass the path of the file")
    if digest is not None:
        raise TypeError("digest is that of a file, got a model; pass digests=True for the digests of its tensors")
    checked_workers(executor)
    tensors = ModelTensors(model, allow_empty=allow_empty)
    with progress_from(progress) as report:
        found = _Work(tensors, None, digests=digests).run(tensors.path, executor, report)
    hidden = tuple(f"not verified: {note}" for note in found.notes if note_kind(note) == "left out")
    kept = tuple(note for note in found.notes if not allow_empty or note_kind(note) != "empty")
    return replace(found, notes=kept, warnings=(*found.warnings, *hidden))


def verify_each(
    path: str | os.PathLike[str],
    digest: str | None = None,
    digests: bool = False,
    *,
    allow_empty: bool = False,
    executor: Workers = None,
    progress: ProgressLike | None = None,
    limits: Limits | None = None,
) -> Iterator[Verification]:
    """Yield the result of a file, or of each file below a folder as soon as it is known; arguments as for `verify`."""
    expected = None if digest is None else parse_digest(digest)
    checked_workers(executor)
    shown = as_path(path)
    units = list(_units(shown)) if is_folder(shown) else [_Unit(shown, 1)]
    total, before = sum(unit.nbytes for unit in units), 0
    with progress_from(progress) as report:
        for unit in units:
            if unit.is_empty and allow_empty:
                continue
            if unit.problem is not None:
                yield Verification(unit.path, warnings=(unit.problem,))
                continue
            scaled = report if report is None or len(units) == 1 else _scaled(report, before, unit.nbytes, total)
            found = _verify_one(unit.path, expected, digests, executor, scaled, limits)
            kept = tuple(note for note in found.notes if not allow_empty or note_kind(note) != "empty")
            yield replace(found, notes=kept)
            before += unit.nbytes


def _scaled(report: Progress, before: int, nbytes: int, total: int) -> Progress:
    return lambda done, of: report(before + nbytes * done // of, total)


def _verify_one(
    path: str, expected: str | None, digests: bool, executor: Workers, report: Progress | None, limits: Limits | None
) -> Verification:
    warnings: list[str] = []
    try:
        with located(path=path), _open_all(path, limits, warnings) as checkpoint:
            found = _Work(checkpoint, expected, digests=digests).run(path, executor, report)
            found = replace(found, warnings=(*found.warnings, *warnings))
            files = dict.fromkeys(checkpoint.file_of(name) for name in checkpoint)
    except BurnstoreError as error:
        found, files = Verification(path, errors=(error,), expected=expected), {}
    return _with_code(found, files or (path,), limits)


def _with_code(found: Verification, files: Iterable[str], limits: Limits | None) -> Verification:
    """Add the code that other programs would run: a warning if it is dangerous, else a note."""
    warnings, notes = [], []
    for file in files:
        try:
            findings = () if is_folder(file) else code_in(file, limits)
        except OSError:  # The error of opening the file is in the result.
            continue
        for finding in findings:
            does = "imports and calls" if finding.called else "imports"
            what = f"{does} {finding.name}" if finding.kind == "import" else f"{finding.kind}: {finding.name}"
            where = f" ({printable(finding.member)})" if finding.member else ""
            text = f"other programs that load {os.path.basename(file)} would run code: {printable(what)}{where}"
            if finding.severity == DANGEROUS:
                warnings.append(text)
            else:
                notes.append(Note("code", text, file))
    most = slice(None, _MOST_CODE)
    return replace(found, warnings=(*found.warnings, *warnings[most]), notes=(*found.notes, *notes[most]))


def _open_all(path: str, limits: Limits | None, warnings: list[str]) -> Checkpoint:
    """Open a file with all of its tensors: of a PyTorch file also those that are not the model's (optimizer states)."""
    model = open_checkpoint(path, limits=limits)
    if not any(note_kind(note) == "part" for note in model.notes):
        return model
    try:
        everything = open_checkpoint(path, limits=limits, top_level_key="")
    except BurnstoreError as error:
        warnings.append(f"only the model was verified, the rest of the file cannot be read: {error.message}")
        return model
    if set(everything) == set(model):
        everything.close()
        return model
    model.close()
    return everything


def parse_digest(text: str) -> str:
    """Return a digest as ``algorithm:hex``; without the algorithm, the length decides. Raises ValueError.

    >>> parse_digest("E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855")[:16]
    'sha256:e3b0c4429'
    """
    if not isinstance(text, str):
        raise TypeError(f"a digest must be a str, got {type(text).__name__}")
    algorithm, colon, digits = text.strip().lower().rpartition(":")
    if not colon:
        algorithm = next((name for name, length in _DIGEST_LENGTHS.items() if length == len(digits)), "")
    if _DIGEST_LENGTHS.get(algorithm) != len(digits) or set(digits) - set("0123456789abcdef"):
        raise ValueError(f"{text!r} is not a digest; expected sha256:9f86d081... (64 digits) or sha512:...")
    return f"{algorithm}:{digits}"


# --- folders ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Unit:
    """A file or a set of shards to verify, or a folder that cannot be verified."""

    path: str
    nbytes: int = 0
    problem: str | None = None
    is_empty: bool = False


def _units(folder: str) -> Iterator[_Unit]:
    """Yield the files and sets of shards below a folder in the order of their names."""
    unreadable: list[OSError] = []
    found = False
    for place, folders, names in walk(folder, onerror=unreadable.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = sorted(name for name in names if not name.startswith("."))
        in_sets: set[str] = set()
        for path, shards in _sets(place, names):
            in_sets |= shards
            found = True
            yield _Unit(path, sum(_size(join(place, name)) for name in shards) or 1)
        for name in names:
            if name not in in_sets and _has_known_suffix(name):
                found = True
                yield _Unit(join(place, name), _size(join(place, name)))
    for error in unreadable:
        yield _Unit(os.fsdecode(error.filename), problem=f"the folder cannot be listed: {error.strerror}")
    if not found and not unreadable:
        problem = "the folder contains no files of tensors, such as *.safetensors, *.pt, *.bpk, *.npz"
        yield _Unit(folder, problem=problem, is_empty=True)


def _size(path: str) -> int:
    try:
        return max(size_of(path), 1)
    except OSError:  # The error of opening the file is the one to report.
        return 1


def _sets(place: str, names: Sequence[str]) -> Iterator[tuple[str, set[str]]]:
    """Yield the sets of shards directly in a folder, each with the names of its shards."""
    indexes = [name for name in names if _is_index(name)]
    for name in indexes:
        path = join(place, name)
        yield path, set((weight_map_at(path) or {}).values())  # verifying the index reports what is wrong with it
    try:
        options = {} if indexes else locate(place)[1]
        shards = options.get("shards", [])
        if options.get("format") == "dcp":
            shards = [name for name in names if name.endswith(".distcp")]
    except CorruptError:  # Verifying the folder reports which shard is missing.
        yield place, set()
    except ReadError:  # The folder has several files, or none.
        return
    else:
        if shards:
            yield place, set(shards)


def _is_about(folder: str, found: Verification) -> bool:
    """Return whether the result is about the folder itself, or about the set of shards that it is."""
    return found.path == folder or (_is_index(found.path) and folder_of(found.path) == folder)


def _is_index(name: str) -> bool:
    """Return whether a name is that of the index of a set of shards: ``model.safetensors.index.json``."""
    return name.endswith(INDEX_SUFFIX) and _has_known_suffix(name.removesuffix(INDEX_SUFFIX))


def _has_known_suffix(name: str) -> bool:
    try:
        return name.endswith(".distcp") or bool(format_for_path(name))  # refused with a hint
    except UnknownFormatError:
        return False


# --- one file ---------------------------------------------------------------------------------------------------------


class _Work:
    """The tasks for one open file."""

    def __init__(self, checkpoint: Checkpoint, expected: str | None, *, digests: bool) -> None:
        self._checkpoint = checkpoint
        self._expected = expected
        self._digests = digests
        self.tasks: list[_Task] = []
        if expected is not None or digests:
            algorithm = "sha256" if expected is None else expected.partition(":")[0]
            is_one_file = all(checkpoint.file_of(name) == checkpoint.path for name in checkpoint)
            if is_one_file and not isinstance(checkpoint, ModelTensors):
                self.tasks.append(_FileDigest(checkpoint._source, algorithm))
            elif expected is not None:
                raise UnsupportedError(
                    "a set of shards has no digest of its own", hint="verify each of its files with its digest"
                )
        checks = sorted(checkpoint.checks(), key=lambda check: -check.nbytes)  # the longest first, for balance
        self.tasks += [_Checks(batch) for batch in in_batches(checks, lambda check: check.nbytes, TASK_BYTES)]
        listed = list(checkpoint.values())
        self._pieces = [tensor for tensor in listed if tensor.piece is not None]
        every = [tensor.local() for tensor in listed]
        self._plan = plan_reads(every)
        tensors = [every[at] for at in self._plan.alone]
        room = MemoryBudget.for_each_of(tensor.bytes_held for tensor in tensors)
        batches = in_batches(tensors, lambda tensor: tensor.nbytes, TASK_BYTES)
        self.tasks += [_Tensors(batch, digests, room) for batch in batches]
        self.tasks += [_SharedTensors(shared, [every[at] for at in shared.places]) for shared in self._plan.shared]

    def run(self, path: str, executor: Workers, report: Progress | None) -> Verification:
        advance = Advance(report, sum(task.nbytes for task in self.tasks))
        found = _Found()
        for task, outcome in zip(self.tasks, run_tasks(_run, self.tasks, executor), strict=True):
            found.add(outcome, path)
            advance(task.nbytes)
        checkpoint = self._checkpoint
        names = list(checkpoint)
        by_name = {tensor.name: tensor for tensor in found.tensors}
        for at, other in self._plan.copies.items():
            by_name[names[at]] = replace(by_name[names[other]], name=names[at], shape=checkpoint[names[at]].shape)
        return Verification(
            path,
            checkpoint.format,
            checkpoint.variant,
            checkpoint.layout,
            checkpoint.file_size,
            tuple(by_name[name] for name in names),
            tuple(found.errors),
            tuple(found.warnings),
            (*checkpoint.notes, *self._notes()),
            found.digest,
            self._expected,
        )

    def _notes(self) -> Iterator[Note]:
        if not len(self._checkpoint) and not self._checkpoint.scalars:
            yield Note("empty", "the file contains no tensors: only its header was verified")
        pieces = self._pieces
        if pieces and pieces[0].piece is not None:
            text = (
                f"{counted(len(pieces), 'tensor is a part of another', 'tensors are parts of others')}, "
                "of which only the bytes that are here were verified: "
                f"{printable(pieces[0].path)} is {pieces[0].piece.text}"
            )
            yield Note("check", text)
        count = sum(len(shared.places) for shared in self._plan.shared)
        if count and self._digests:
            many = counted(count, "tensor has", "tensors have")
            text = f"{many} no digest: together they need more than four times the bytes that they share"
            yield Note("check", text)


@dataclass(slots=True)
class _Found:
    """The findings of one task, or of all."""

    tensors: list[TensorCheck] = field(default_factory=list)
    errors: list[BurnstoreError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    digest: str | None = None

    def add(self, other: _Found, path: str) -> None:
        for error in (*other.errors, *(tensor.error for tensor in other.tensors)):
            if error is not None and error.path is None:
                error.path = path
        self.tensors += other.tensors
        self.errors += other.errors
        self.warnings += other.warnings
        self.digest = self.digest or other.digest


# --- tasks, which may run in another process or on another machine ----------------------------------------------------


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
                warning = check()
            except BurnstoreError as error:
                found.errors.append(error)
            else:
                found.warnings += [] if warning is None else [warning]
        return found


@dataclass(frozen=True, slots=True)
class _Tensors:
    tensors: Sequence[TensorSnapshot]
    digests: bool
    room: MemoryBudget
    """The memory that tensors which must be made whole may use together."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def __call__(self) -> _Found:
        checked: list[TensorCheck] = []
        for run in in_runs(self.tensors, lambda tensor: tensor.nbytes):
            with self.room.reserve(sum(tensor.bytes_held for tensor in run)):
                checked += map(self._check, run, read_all(run) if len(run) > 1 else [None])
        return _Found(checked)

    def _check(self, tensor: TensorSnapshot, held: Any) -> TensorCheck:
        """Check a tensor; ``held`` are its bytes or the error of reading them, None if they are not yet read."""
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
        hexed = None if digest is None else f"sha256:{digest.hexdigest()}"
        return TensorCheck(tensor.path, tensor.dtype, tensor.shape, tensor.nbytes, nans, infinities, hexed, error)


@dataclass(frozen=True, slots=True)
class _SharedTensors:
    """Tensors beyond the budget, whose bytes are read once for all of them."""

    shared: Shared
    tensors: Sequence[TensorSnapshot]

    @property
    def nbytes(self) -> int:
        return self.shared.nbytes

    def __call__(self) -> _Found:
        dtype = self.tensors[0].dtype
        # The codes and scales of quantized tensors are meaningful only together.
        readable = self.shared.range.plain and not dtype.is_quantized
        counts = [count_specials(block, dtype) for block in (self.shared.range.blocks() if readable else ())]
        nans, infinities = sum(count[0] for count in counts), sum(count[1] for count in counts)
        found = []
        for tensor, times in zip(self.tensors, self.shared.times, strict=True):
            known = readable and (times is not None or not (nans or infinities))
            finding = (nans * (times or 0), infinities * (times or 0), None, None if known else too_much(tensor))
            found.append(TensorCheck(tensor.path, tensor.dtype, tensor.shape, tensor.nbytes, *finding))
        return _Found(found)


_Task = _FileDigest | _Checks | _Tensors | _SharedTensors


def _run(task: _Task) -> _Found:
    return task()


def _parts(tensor: TensorSnapshot) -> Iterator[bytearray | memoryview]:
    stream = ByteStream(tensor)
    for start in range(0, tensor.nbytes, _BLOCK_BYTES):
        yield stream.take(min(_BLOCK_BYTES, tensor.nbytes - start))


def _specials(tensor: TensorSnapshot, parts: Iterable[Any], digest: Any) -> Iterator[tuple[int, int]]:
    """Yield the numbers of NaN and infinities in each part of a tensor; all of it is read and goes into the digest."""
    dtype = tensor.dtype
    for part in parts:
        if digest is not None:
            digest.update(part)
        if not dtype.is_quantized:
            yield count_specials(part, dtype)
    if dtype.is_quantized:  # Codes and scales are meaningful only together.
        for values, _ in value_runs(tensor):
            yield count_special_values(values)
