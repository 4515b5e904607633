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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import accumulate, dropwhile
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint, open_checkpoint
from ..errors import BurnstoreError, CorruptError, SaveError, UnsupportedError, counted, located, printable
from ..formats.base import Format, Shardable, WriteOptions, WritePlan, WritesFolder
from ..formats.sharded.locate import INDEX_SUFFIX
from ..formats.write import batches
from ..io.atomic import PortionWriter, SharedScratch, atomic_file, remove_files
from ..io.gc_pause import gc_paused
from ..io.opening import open_source
from ..io.paths import as_path, base_name, folder_of, identity_at, is_remote, real_path
from ..io.source import InFolder, JoinedSource, Source, same_bytes
from ..io.workers import (
    MemoryBudget,
    are_local,
    are_threads,
    checked_workers,
    in_runs,
    persistent,
    run_batches,
)
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
_SMALL_FILE_BYTES = 64 << 20


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
    how: WriteOptions,
    *,
    metadata: Mapping[str, str] | None,
    ties: Mapping[str, str] | None = None,
) -> Assembled:
    """Save snapshots into a file of this format, into shards or a folder, all or nothing: the one writer.

    CorruptError if a tensor that is read back differs from its source. ``ties`` maps tensors to others of the same
    bytes, under which the format stores them. For workers that are not threads the snapshots must be ones that can be
    pickled: of files, not of functions.
    """
    if (how.digests or how.expected is not None) and not how.verify:
        raise TypeError("digests require verify=True")
    path = as_path(path)
    if how.expected is not None and {tensor.path for tensor in tensors} != set(how.expected):
        raise CorruptError("tensor names differ from the expected set", path=path)
    stored = [tensor for tensor in tensors if tensor.path not in ties] if ties else tensors
    if not are_threads(checked_workers(how.workers)):
        _check_portable(stored)
    with located(path=path), persistent(how.workers) as kept:
        writer = FileWriter(how if kept is how.workers else replace(how, workers=kept), chosen)
        files = _write_files(writer, stored, path, chosen, planner(chosen, how, metadata, ties), metadata)
        return Assembled(files, writer.digests_with(ties), writer.underflowed)


def _write_files(
    writer: FileWriter,
    tensors: Sequence[TensorSnapshot],
    path: str,
    chosen: Format,
    plan: Planner,
    metadata: Mapping[str, str] | None,
) -> list[str]:
    how = writer.how
    if how.max_shard_size is not None and not isinstance(chosen, Shardable):
        raise TypeError(f"max_shard_size is for SafeTensors; {chosen.name} is written to one file")
    if isinstance(chosen, WritesFolder):
        if metadata:
            raise UnsupportedError(f"the format {chosen.name} has no place for metadata: {next(iter(metadata))!r}")
        in_parts = FileWriter(replace(how, verify=False), chosen, underflowed=writer.underflowed)
        prove = partial(writer.prove_folder, tensors) if how.verify else None
        return chosen.save_folder(tensors, path, how, in_parts.write, prove)
    if how.max_shard_size is None:
        with gc_paused():
            planned = plan(tensors, {})
        writer.write(planned, path, overwrite=how.overwrite, progress=how.progress)
        return [path]
    from ..formats.sharded.write import save_shards  # not at import: most saves are of one file

    return save_shards(tensors, path, how, plan, writer.write, writer.prove_again)


Planner = Callable[[Sequence[TensorSnapshot], Mapping[str, str]], WritePlan]
"""Plan a file of some tensors, with this metadata besides that of all files."""


def planner(
    chosen: Format, how: WriteOptions, metadata: Mapping[str, str] | None, ties: Mapping[str, str] | None
) -> Planner:
    """Return the function that plans the files of a format."""
    options = {**how.format_options, "ties": ties} if ties else how.format_options
    return lambda tensors, own: chosen.plan(
        tensors, {**(metadata or {}), **own} if own else metadata, how.bounds, **options
    )


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
    from ..formats.sharded.write import is_of_set, set_at  # not at import: few saves are of sets

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
    from ..formats.sharded.write import set_at

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
class FileWriter:
    """Write planned files, and prove them."""

    how: WriteOptions
    format: Format | None = None
    """None for files that have the bytes of the tensors and nothing else, as the units of a job."""

    digest_of: dict[str, str] = field(default_factory=dict)
    underflowed: set[str] = field(default_factory=set)

    def write(self, plan: WritePlan, path: str, *, overwrite: bool, progress: Progress | None) -> None:
        """Write and prove one file."""
        how, advance = self.how, Advance(progress, plan.size * (2 if self.how.verify else 1))
        is_object = is_remote(path)
        with atomic_file(path, overwrite=overwrite, durable=how.durable, size=plan.size) as scratch:
            if is_object or how.in_order:
                if is_object and how.verify:
                    scratch.prove = False  # type: ignore[attr-defined]  # the tensors are compared below
                self._write_in_order(plan, scratch, advance)
            else:
                place = self._write_in_parts(plan, scratch, advance)
            if how.verify and not is_object:
                with _flushing(place, wanted=how.durable):
                    wrong = self._first_wrong(plan, place.path, advance)
                if wrong is not None:
                    raise CorruptError(wrong[1], path=path, tensor=wrong[0], hint="check the disk and the memory")
        if how.verify and is_object:
            wrong = self._first_wrong(plan, path, advance)
            if wrong is not None:
                remove_files(folder_of(path), [base_name(path)])
                raise CorruptError(f"{wrong[1]}; the object was removed", path=path, tensor=wrong[0])
        advance.finish()

    def _write_in_order(self, plan: WritePlan, scratch: Any, advance: Advance) -> None:
        """Write a file from front to back."""
        # The garbage of functions that make the tensors of a small file is small, too.
        pause = gc_paused() if plan.size <= _SMALL_FILE_BYTES else nullcontext()
        with phase("write"), pause:
            for buffers in batches(plan):
                before = scratch.position
                scratch.write(*buffers)
                buffers.clear()  # or a tensor would stay in memory while the next one is made
                advance(scratch.position - before)
        self.underflowed.update(_zeroed((tensor, None) for tensor in plan.tensors))

    def _write_in_parts(self, plan: WritePlan, scratch: Any, advance: Advance) -> SharedScratch:
        """Write each tensor to its place by tasks; return the file."""
        placed = list(zip(plan.tensors, plan.offsets, strict=True))
        place: SharedScratch = scratch.shared(plan.size)
        with place.opened(durable=False) as portion:
            portion.write_at(0, plan.header)
        around, first_crcs = plan.around, None
        if around is not None:
            first_crcs = {offset: around.first_crc(number) for number, offset in enumerate(plan.offsets)}
        # One fsync suffices when all writers are local.
        apart = self.how.durable and not are_local(self.how.workers)
        task = _Writer(place, _room_for(plan.tensors), apart, first_crcs)
        crcs: list[int] = []
        with phase("write"):
            for _, (found, zeroed) in run_batches(task, placed, _nbytes, self.how.workers, advance=advance):
                crcs += found
                self.underflowed.update(zeroed)
        if around is not None:
            with place.opened(durable=False) as portion:
                for number, (tensor, offset) in enumerate(placed):
                    portion.write_at(offset + tensor.nbytes, around.after(number, crcs))
        return place

    def prove_folder(self, tensors: Sequence[TensorSnapshot], path: str) -> None:
        """Prove a checkpoint that is a folder, by the path of the file that is published last."""
        with phase("verify"), open_checkpoint(path, limits=self.how.bounds, top_level_key="") as written:
            wrong = self._first_different(tensors, _stored(tensors, written), None)
        if wrong is not None:
            raise CorruptError(wrong[1], tensor=wrong[0], hint="check the disk and the memory")

    def digests_with(self, ties: Mapping[str, str] | None) -> dict[str, str]:
        """Return the digests of all tensors, tied ones included."""
        if ties and self.digest_of:
            self.digest_of.update({name: self.digest_of[kept] for name, kept in ties.items()})
        return self.digest_of

    def prove_again(self, plan: WritePlan, path: str, progress: Progress | None) -> None:
        """Prove that an existing file is what would be written now; CorruptError if it is not.

        A file with the same header has the same tensors at the same offsets, and nothing else.
        """
        advance = Advance(progress, plan.size)
        hint = "delete the file to have it written again; a source or an option may have changed"
        with located(path=path, hint=hint):
            if not _begins_as(plan, path):
                raise CorruptError("it is not the shard that would be written")
            wrong = self._first_wrong(plan, path, advance)
            if wrong is not None:
                raise CorruptError(wrong[1], tensor=wrong[0])
        advance.finish()

    def _first_wrong(self, plan: WritePlan, path: str, advance: Advance) -> tuple[str | None, str] | None:
        """Open a file that was written; return the first tensor that is wrong, and why."""
        if self.format is None:
            source = open_source(path)
            try:
                with phase("verify"):
                    return self._first_different(plan.tensors, held_in(source, plan.tensors), advance)
            finally:
                source.close()
        with phase("verify"), open_checkpoint(path, format=self.format.name, limits=self.how.bounds) as written:
            return self._first_different(plan.tensors, _stored(plan.tensors, written), advance)

    def _first_different(
        self, tensors: Sequence[TensorSnapshot], stored: list[TensorSnapshot] | int, advance: Advance | None
    ) -> tuple[str | None, str] | None:
        """Return the first tensor that differs from the stored one, and why; None if all are equal."""
        if isinstance(stored, int):
            return None, f"{counted(len(tensors), 'tensor was', 'tensors were')} written, {stored} are there"
        how, pairs, room = self.how, list(zip(tensors, stored, strict=True)), _room_for(tensors)
        prover = _Prover(room, how.digests or how.expected is not None)
        for batch, (wrong, found, zeroed) in run_batches(prover, pairs, _nbytes, how.workers, advance=advance):
            self.underflowed.update(zeroed)
            if wrong is not None:
                return wrong, "the file read back differs from the source"
            names = [tensor.path for tensor, _ in batch]
            self.digest_of.update(zip(names, found, strict=False))  # none, where they are not wanted
            if how.expected is not None:
                for name, digest in zip(names, found, strict=True):
                    if how.expected.get(name) != digest:
                        return name, "SHA-256 differs from the receipt"
        return None


def _begins_as(plan: WritePlan, path: str) -> bool:
    source = open_source(path)
    try:
        return source.size == plan.size and source.read_at(0, len(plan.header)) == plan.header
    finally:
        source.close()


def _stored(tensors: Sequence[TensorSnapshot], written: Checkpoint) -> list[TensorSnapshot] | int:
    """Return the tensors as an open file has them, or how many it has if that is another number."""
    count = written.stored_count - len(written.ties)
    if count != len(tensors):
        return count
    with gc_paused():
        return [written.stored(tensor.path) for tensor in tensors]


def held_in(source: Source, tensors: Sequence[TensorSnapshot]) -> list[TensorSnapshot]:
    """Return tensors whose bytes are in a source, one after the other and nothing else."""
    ends = accumulate((tensor.nbytes for tensor in tensors), initial=0)
    return [
        TensorSnapshot(
            tensor.path,
            tensor.dtype,
            tensor.shape,
            SourceData(source, offset, tensor.nbytes),
            nbytes=tensor.nbytes,
            param_id=tensor._param_id,
            container_stack=tensor._container_stack,
            layout=tensor._layout,
            facts=tensor._facts,
        )
        for tensor, offset in zip(tensors, ends, strict=False)
    ]


def _room_for(tensors: Sequence[TensorSnapshot]) -> MemoryBudget:
    return MemoryBudget.for_each_of(tensor.bytes_held for tensor in tensors)


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
