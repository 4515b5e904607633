"""Assembly: a planned file, written by parallel tasks and verified before it gets its name.

    plan      the format computes the header and the offset of each tensor
    write     each task reads some tensors, converts them, and writes them at their offsets
    prove     the format's reader opens the written file; each tensor is read back and compared with its source,
              which is read and converted a second time; meanwhile the disk flushes the file
    publish   as in every save, the new file replaces the old one completely or not at all

Tensors that cannot be converted piece by piece (a transposed matrix) are in memory as a whole, within a budget of the
largest of them and some megabytes.
"""

from __future__ import annotations

import os
import pickle
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import dropwhile
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint, open_checkpoint
from ..errors import BurnstoreError, CorruptError, SaveError, located, printable
from ..formats.base import Format, WritePlan, WritesFolder
from ..formats.sharded.locate import INDEX_SUFFIX
from ..formats.sharded.write import Journal, byte_count, is_of_set, save_shards, set_at
from ..formats.write import batches
from ..io.atomic import PortionWriter, SharedScratch, atomic_file, remove_files
from ..io.gc_pause import gc_paused
from ..io.opening import open_source
from ..io.paths import as_path, base_name, folder_of, identity_at, is_remote, real_path
from ..io.source import InFolder, JoinedSource, same_bytes
from ..io.workers import (
    MemoryBudget,
    Workers,
    are_local,
    are_threads,
    checked_workers,
    in_runs,
    persistent,
    run_batches,
)
from ..limits import Limits
from ..progress import Advance, Progress, phase
from ..tensor.data import check_bools
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot, read_together
from ..tensor.sources import ComputedData, SourceData
from ..transforms.precision import underflowed

if TYPE_CHECKING:
    from ..tensor.quantization import QuantScheme

# What is read at a time, so that it is still in a core's cache when it is compared or written.
_PIECE = 512 << 10


@dataclass(frozen=True, slots=True)
class Assembled:
    """What was written: the files, the index first, and the SHA-256 of each tensor's bytes on request."""

    files: list[str]
    digests: dict[str, str]
    underflowed: set[str]
    """The tensors in which a cast made a value 0."""


def assemble(
    tensors: Sequence[TensorSnapshot],
    path: str | os.PathLike[str],
    chosen: Format,
    *,
    metadata: Mapping[str, str] | None,
    ties: Mapping[str, str] | None = None,
    overwrite: bool = False,
    durable: bool = True,
    verify: bool = True,
    digests: bool = False,
    expected: Mapping[str, str] | None = None,
    max_shard_size: int | str | None = None,
    journal: Journal | None = None,
    workers: Workers = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Assembled:
    """Save snapshots into a file of this format, or into shards, by tasks for these workers; all or nothing.

    With ``verify`` every tensor is read back and compared before the file gets its name; CorruptError if one differs.
    With ``digests`` the SHA-256 of each tensor, as proved, comes back by its name; ``expected`` are such digests
    that they must have. ``ties`` maps tensors to others of the same bytes, under which the format stores them. A
    ``journal`` lets a save into shards be taken up again. For workers that are not threads the
    snapshots must be ones that can be pickled: of files, not of functions.
    """
    if (digests or expected is not None) and not verify:
        raise TypeError("digests require verify=True")
    path, limits = as_path(path), limits or Limits()
    if expected is not None and {tensor.path for tensor in tensors} != set(expected):
        raise CorruptError("tensor names differ from the expected set", path=path)
    if ties:
        tensors = [tensor for tensor in tensors if tensor.path not in ties]
        options["ties"] = ties
    if not are_threads(checked_workers(workers)):
        _check_portable(tensors)
    # One fsync suffices when all writers are local.
    apart = durable and not are_local(workers)
    with located(path=path), persistent(workers) as kept:
        builder = _Builder(chosen, limits, kept, durable, apart, verify, digests, expected)
        if isinstance(chosen, WritesFolder):
            if max_shard_size is not None or metadata:
                problem = "max_shard_size is for SafeTensors" if max_shard_size is not None else "no metadata"
                raise TypeError(f"{problem}: {chosen.name} is written to one file, without metadata")
            files = builder.save_folder(chosen, tensors, path, overwrite=overwrite, progress=progress)
            return Assembled(files, builder.digests_with(ties), builder.underflowed)
        if max_shard_size is None:
            with gc_paused():
                plan = chosen.plan(tensors, metadata, limits, **options)
            builder.write(plan, path, overwrite=overwrite, progress=progress)
            return Assembled([path], builder.digests_with(ties), builder.underflowed)
        if chosen.name != "safetensors":
            raise TypeError(f"max_shard_size is for SafeTensors; {chosen.name} has one file")
        files = save_shards(
            tensors,
            path,
            byte_count(max_shard_size),
            overwrite=overwrite,
            durable=durable,
            progress=progress,
            plan=lambda shard, own: chosen.plan(
                shard, {**(metadata or {}), **own} if own else metadata, limits, **options
            ),
            write=builder.write,
            prove=builder.prove_again,
            journal=journal,
        )
        return Assembled(files, builder.digests_with(ties), builder.underflowed)


def files_read(source: Checkpoint) -> list[InFolder]:
    """Return the files that a checkpoint is read from, the one that was opened first."""
    parts = source._data.parts if isinstance(source._data, JoinedSource) else []
    found = {file.name: file for file in (source._source, *parts) if isinstance(file, InFolder)}
    return list(found.values())


def check_apart(inputs: Iterable[Any], target: str, *, shards: bool = False, beside: str | None = None) -> None:
    """Refuse a target that is one of the files that are read, under whatever name, or would replace one of them.

    ``inputs`` are open files and paths; others (a model, None) are ignored. With ``shards`` the target is written as
    shards, which replace an older set. ``beside`` is another file that is written.
    """
    if beside is not None and (real_path(beside) == real_path(target) or (shards and is_of_set(beside, target))):
        raise SaveError(
            f"a file of {printable(target)} has this name",
            stage="check",
            path=beside,
            hint="give the receipt another name; nothing was written",
        )
    read: dict[tuple[Any, ...], str] = {}
    for each in inputs:
        if isinstance(each, Checkpoint):
            read |= {file.identity: file.name for file in files_read(each)}
        elif isinstance(each, (str, bytes, os.PathLike)):
            read |= _files_at(as_path(each))
    inside: list[str] = []
    with suppress(OSError):  # a checkpoint that is a folder
        inside = [] if is_remote(target) else [os.path.join(target, name) for name in os.listdir(target)]
    for path in [target, *inside, *(set_at(target) if shards else ()), *([] if beside is None else [beside])]:
        try:
            identity = identity_at(path)
        except OSError:
            continue
        # A remote file is known by its address, since each save gives it another content.
        same = read.get(identity) or next((name for key, name in read.items() if key[:1] == identity), None)
        if same is not None:
            raise SaveError(
                f"source and target are the same file, {same}",
                stage="check",
                path=path,
                hint="give the target another name; nothing was written",
            )


def _files_at(path: str) -> dict[tuple[Any, ...], str]:
    """Return what a path stands for, by identity: a file, the files of a folder, the shards of an index."""
    paths = [path, *set_at(path.removesuffix(INDEX_SUFFIX))]
    with suppress(OSError):
        paths += [] if is_remote(path) else [os.path.join(path, name) for name in os.listdir(path)]
    found: dict[tuple[Any, ...], str] = {}
    for each in paths:
        with suppress(OSError, ValueError):
            found[identity_at(each)] = each
    return found


def _check_portable(tensors: Sequence[TensorSnapshot]) -> None:
    """Refuse tensors that cannot be given to other processes, before anything is written."""
    with suppress(pickle.PicklingError, AttributeError, TypeError):
        pickle.dumps(list(tensors))  # together: what they share is packed once
        return
    for tensor in tensors:
        try:
            pickle.dumps(tensor)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise BurnstoreError(
                f"it cannot be given to another process: {error}",
                tensor=tensor.path,
                hint="leave executor= out to use threads, which can read any tensor",
            ) from error


@dataclass(frozen=True, slots=True)
class _Builder:
    """How planned files are written and proved."""

    format: Format
    limits: Limits
    workers: Workers
    durable: bool
    flush_apart: bool
    """Whether each worker flushes what it wrote: then it is on another machine."""

    verify: bool
    digests: bool
    expected: Mapping[str, str] | None
    digest_of: dict[str, str] = field(default_factory=dict)
    underflowed: set[str] = field(default_factory=set)

    def write(self, plan: WritePlan, path: str, *, overwrite: bool, progress: Progress | None) -> None:
        """Write and prove one file."""
        placed = list(zip(plan.tensors, plan.offsets, strict=True))
        room = _room_for(plan)
        report = Advance(progress, plan.size * (2 if self.verify else 1))
        if is_remote(path):
            self._upload(plan, path, room, report, overwrite=overwrite)
            return
        with atomic_file(path, overwrite=overwrite, durable=self.durable, size=plan.size) as scratch:
            place = scratch.shared(plan.size)
            with place.opened(durable=False) as portion:
                portion.write_at(0, plan.header)
            around = plan.around
            first_crcs = None
            if around is not None:
                first_crcs = {offset: around.first_crc(number) for number, offset in enumerate(plan.offsets)}
            writer = _Writer(place, room, self.flush_apart, first_crcs)
            with phase("write"):
                crcs: list[int] = []
                for _, (found, zeroed) in run_batches(writer, placed, _nbytes, self.workers, advance=report):
                    crcs += found
                    self.underflowed.update(zeroed)
            if plan.around is not None:
                with place.opened(durable=False) as portion:
                    for number, (tensor, offset) in enumerate(placed):
                        portion.write_at(offset + tensor.nbytes, plan.around.after(number, crcs))
            if self.verify:
                with (
                    phase("verify"),
                    _flushing(place, wanted=self.durable),
                    open_checkpoint(place.path, format=self.format.name, limits=self.limits) as written,
                ):
                    wrong = self._first_wrong(plan.tensors, written, room, report)
                if wrong is not None:
                    raise CorruptError(wrong[1], path=path, tensor=wrong[0], hint="check the disk and the memory")
            report.finish()

    def save_folder(
        self,
        chosen: WritesFolder,
        tensors: Sequence[TensorSnapshot],
        path: str,
        *,
        overwrite: bool,
        progress: Progress | None,
    ) -> list[str]:
        """Write and prove a checkpoint that is a folder: the proof reads it by the file that is published last."""

        def prove(metadata: str) -> None:
            room = MemoryBudget.for_each_of(tensor.bytes_held for tensor in tensors)
            report = Advance(None, sum(tensor.nbytes for tensor in tensors))
            with phase("verify"), open_checkpoint(metadata, limits=self.limits, top_level_key="") as written:
                wrong = self._first_wrong(tensors, written, room, report)
            if wrong is not None:
                raise CorruptError(wrong[1], path=path, tensor=wrong[0], hint="check the disk and the memory")

        writer = replace(self, verify=False)
        return chosen.save_folder(
            tensors,
            path,
            self.limits,
            overwrite=overwrite,
            durable=self.durable,
            progress=progress,
            write=writer.write,
            prove=prove if self.verify else None,
        )

    def _upload(self, plan: WritePlan, path: str, room: MemoryBudget, report: Advance, *, overwrite: bool) -> None:
        """Write an object of a store from front to back, and prove it by reading it back."""
        with atomic_file(path, overwrite=overwrite, durable=self.durable, size=plan.size) as upload, phase("write"):
            upload.prove = False  # type: ignore[attr-defined]  # the tensors are compared below
            for buffers in batches(plan):
                nbytes = sum(memoryview(buffer).nbytes for buffer in buffers)
                upload.write(*buffers)
                buffers.clear()  # or a tensor would stay in memory while the next one is made
                report(nbytes)
        self.underflowed.update(_zeroed((tensor, None) for tensor in plan.tensors))
        if self.verify:
            with phase("verify"), open_checkpoint(path, format=self.format.name, limits=self.limits) as written:
                wrong = self._first_wrong(plan.tensors, written, room, report)
            if wrong is not None:
                remove_files(folder_of(path), [base_name(path)])
                raise CorruptError(f"{wrong[1]}; the object was removed", path=path, tensor=wrong[0])
        report.finish()

    def digests_with(self, ties: Mapping[str, str] | None) -> dict[str, str]:
        """Return the digests of all tensors, tied ones included."""
        if ties and self.digest_of:
            self.digest_of.update({name: self.digest_of[kept] for name, kept in ties.items()})
        return self.digest_of

    def prove_again(self, plan: WritePlan, path: str, progress: Progress | None) -> None:
        """Prove that an existing file is what would be written now; CorruptError if it is not.

        A file with the same header has the same tensors at the same offsets, and nothing else.
        """
        report = Advance(progress, plan.size)
        hint = "delete the file to have it written again; a source or an option may have changed"
        with located(path=path, hint=hint):
            if not _begins_as(plan, path):
                raise CorruptError("it is not the shard that would be written")
            with phase("verify"), open_checkpoint(path, format=self.format.name, limits=self.limits) as found:
                wrong = self._first_wrong(plan.tensors, found, _room_for(plan), report)
            if wrong is not None:
                raise CorruptError(wrong[1], tensor=wrong[0])
        report.finish()

    def _first_wrong(
        self, tensors: Sequence[TensorSnapshot], written: Checkpoint, room: MemoryBudget, report: Advance
    ) -> tuple[str | None, str] | None:
        """Return the first tensor that is wrong, and why; None if all are right."""
        count = written.stored_count - len(written.ties)
        if count != len(tensors):
            return None, f"{len(tensors)} tensors were written, {count} are there"
        with gc_paused():
            pairs = [(tensor, written.stored(tensor.path)) for tensor in tensors]
        prover = _Prover(room, self.digests or self.expected is not None)
        for batch, (wrong, found, zeroed) in run_batches(prover, pairs, _nbytes, self.workers, advance=report):
            self.underflowed.update(zeroed)
            if wrong is not None:
                return wrong, "the file read back differs from the source"
            names = [tensor.path for tensor, _ in batch]
            self.digest_of.update(zip(names, found, strict=False))  # none, where they are not wanted
            if self.expected is not None:
                for name, digest in zip(names, found, strict=True):
                    if self.expected.get(name) != digest:
                        return name, "SHA-256 differs from the receipt"
        return None


def _begins_as(plan: WritePlan, path: str) -> bool:
    source = open_source(path)
    try:
        return source.size == plan.size and source.read_at(0, len(plan.header)) == plan.header
    finally:
        source.close()


def _room_for(plan: WritePlan) -> MemoryBudget:
    return MemoryBudget.for_each_of(tensor.bytes_held for tensor in plan.tensors)


def _nbytes(item: tuple[TensorSnapshot, Any]) -> int:
    return item[0].nbytes


@contextmanager
def _flushing(place: SharedScratch, *, wanted: bool) -> Iterator[None]:
    """While the block runs, bring the file to disk; what that raises is raised at the end."""
    failures: list[BurnstoreError] = []

    def flush() -> None:
        try:
            with place.opened(durable=True):
                pass
        except BurnstoreError as error:
            failures.append(error)

    thread = threading.Thread(target=flush, name="burnstore-flush", daemon=True)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        if wanted:
            thread.join()
    if failures:
        raise failures[0]


@dataclass(frozen=True, slots=True)
class _Writer:
    """The task of writing: some tensors, each to its place."""

    place: SharedScratch
    room: MemoryBudget
    durable: bool
    first_crcs: Mapping[int, int] | None = None
    """The checksums to continue with, by the offsets of tensors, if checksums are wanted."""

    def __call__(self, batch: list[tuple[TensorSnapshot, int]]) -> tuple[list[int], list[str]]:
        """Write them; return their checksums, if these are wanted, and the names of those with a value cast to 0."""
        crcs = None if self.first_crcs is None else {offset: self.first_crcs[offset] for _, offset in batch}
        with self.place.opened(durable=self.durable) as portion:
            for run in in_runs(batch, _nbytes):
                if len(run) == 1:
                    tensor, offset = run[0]
                    _write_one(portion, tensor, offset, self.room, crcs)
                elif crcs is not None:  # What is between them is not zeros, and written later.
                    for tensor, offset in run:
                        _write_one(portion, tensor, offset, self.room, crcs)
                else:
                    with self.room.reserve(sum(tensor.bytes_held for tensor, _ in run)):
                        _write_together(portion, run)
        return list((crcs or {}).values()), _zeroed(batch)


def _write_one(
    portion: PortionWriter, tensor: TensorSnapshot, offset: int, room: MemoryBudget, crcs: dict[int, int] | None
) -> None:
    position = offset
    for chunk in _chunks(tensor, room):
        with located(tensor=tensor.path, path=tensor._data.file):
            check_bools(chunk, tensor.dtype)
        portion.write_at(position, chunk)
        if crcs is not None:
            crcs[offset] = zlib.crc32(chunk, crcs[offset])
        position += len(chunk)
        del chunk  # or it would live on while the next one is made
    _check_length(tensor, position - offset)


def _write_together(portion: PortionWriter, run: list[tuple[TensorSnapshot, int]]) -> None:
    """Write neighbours in one piece, with the zeros between them."""
    start, (last, at) = run[0][1], run[-1]
    whole = bytearray(at + last.nbytes - start)
    for (tensor, offset), buffer in zip(run, read_together(tensor for tensor, _ in run), strict=True):
        if tensor.dtype.is_bool:
            with located(tensor=tensor.path, path=tensor._data.file):
                check_bools(buffer, tensor.dtype)
        whole[offset - start : offset - start + tensor.nbytes] = memoryview(buffer)
    portion.write_at(start, whole)


@dataclass(frozen=True, slots=True)
class _Prover:
    """The task of proving: some tensors as they should be, and as they were written."""

    room: MemoryBudget
    digests: bool

    def __call__(self, batch: list[tuple[TensorSnapshot, TensorSnapshot]]) -> tuple[str | None, list[str], list[str]]:
        """Return the first that differs, digests of those before it if wanted, and those with a cast to 0."""
        found: list[str] = []
        for run in in_runs(batch, _nbytes):
            for (tensor, written), pieces in zip(run, _pieces(run, self.room), strict=True):
                digest = sha256() if self.digests else None
                if not _alike(tensor, written) or not _same(pieces, digest):
                    return tensor.path, found, []
                if digest is not None:
                    found.append(digest.hexdigest())
        return None, found, _zeroed(batch)


def _zeroed(batch: Iterable[tuple[TensorSnapshot, Any]]) -> list[str]:
    return [each.path for each, _ in batch if type(each._data) is not SourceData and underflowed(each._data)]


Pieces = Iterable[tuple[memoryview, memoryview]]
"""The bytes of a tensor beside those that were written, piece by piece."""


def _pieces(run: list[tuple[TensorSnapshot, TensorSnapshot]], room: MemoryBudget) -> Iterator[Pieces]:
    if len(run) == 1:
        yield _side_by_side(*run[0], room)
        return
    with room.reserve(sum(tensor.bytes_held for tensor, _ in run)):
        for pair in zip(*map(read_together, zip(*run, strict=True)), strict=True):
            yield [pair]


def _side_by_side(tensor: TensorSnapshot, written: TensorSnapshot, room: MemoryBudget) -> Pieces:
    """Compare a few megabytes at a time."""
    position = 0
    for chunk in _chunks(tensor, room):
        for at in range(0, len(chunk), _PIECE):
            piece = chunk[at : at + _PIECE]
            with located(tensor=written.path, path=written._data.file):
                found = written._data.window(position, position + len(piece))
            yield piece, found
            position += len(piece)
            del piece, found
        del chunk  # or it would live on while the next one is made
    _check_length(tensor, position)


def _chunks(tensor: TensorSnapshot, room: MemoryBudget) -> Iterator[memoryview]:
    """Yield the tensor's bytes in order; those of a file in pieces that fit the cache of a core."""
    data = tensor._data
    with located(tensor=tensor.path, path=data.file):
        if isinstance(data, SourceData):
            for start in range(0, tensor.nbytes, _PIECE):
                yield data.window(start, min(start + _PIECE, tensor.nbytes))
        elif isinstance(data, ComputedData):
            with room.buffer(tensor.nbytes) as buffer:
                data.fill(buffer)
                yield memoryview(buffer)
        else:
            with room.reserve(tensor.bytes_held):
                yield from tensor.chunks()


def _same(pieces: Pieces, digest: Any) -> bool:
    for ours, theirs in pieces:
        if not same_bytes(ours, theirs):
            return False
        if digest is not None:
            digest.update(theirs)
        del ours, theirs
    return True


def _check_length(tensor: TensorSnapshot, given: int) -> None:
    if given != tensor.nbytes:
        raise CorruptError(f"expected {tensor.nbytes} bytes, got {given}", tensor=tensor.path)


def _alike(tensor: TensorSnapshot, written: TensorSnapshot) -> bool:
    same_dtype = tensor.dtype is written.dtype or _held_dtype(tensor.dtype) is _held_dtype(written.dtype)
    if tensor.dtype.scheme is not None and written.dtype.scheme is not None:
        same_dtype = _meaning(tensor.dtype.scheme) == _meaning(written.dtype.scheme)
    return same_dtype and tensor.shape == written.shape and tensor.nbytes == written.nbytes


def _meaning(scheme: QuantScheme) -> tuple[Any, ...]:
    """Return the meaning of a scheme for its bytes, whatever its style; axes of one element do not matter."""
    block = scheme.block
    size = None if block is None else tuple(dropwhile(lambda extent: extent == 1, block.size))
    return scheme.value, scheme.store, scheme.mode, scheme.tensor, None if block is None else block.dtype, size


def _held_dtype(dtype: DType) -> DType:
    """Return the dtype in files: other formats write two of Burn's dtypes as one with the same bits and meaning."""
    return {DType.Flex32: DType.F32, DType.BoolU8: DType.Bool}.get(dtype, dtype)
