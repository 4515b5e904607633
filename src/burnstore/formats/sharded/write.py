"""Save one set of tensors into several files and an index, so that a crash leaves the old set or the new.

    split      tensors in their order, into shards of at most the size asked for; a larger tensor has its own
    write      each shard under a name that no file has, whole and on disk: existing files are not touched
    publish    the index, by the atomic replacement of one file: from here on the new set counts
    remove     the shards that the replaced index named, and a single file of the set's name

A kill before *publish* leaves the old set, and complete shards that no index names; after it the new set, and old
shards that no index names. Neither is in the way: a later save takes other names. An exception removes the new shards.

Two saves to one place leave one whole set, and no shard of the other: *publish* and *remove* are one step for other
saves, which hold the same lock on the folder (without locks, as on some network file systems, shards of one of the two
may be left). Each save has a random identity, which is in its index and in all its shards: a reader never joins shards
of two saves (SH-07), and a save removes an old shard only if it is still the file that the replaced index named. The
names are those of Hugging Face, such as ``model-00001-of-00003.safetensors``, with eight letters of the identity in
them where there is an index or such a file already (``model.1f3a90c2-00001-of-00003.safetensors``); every reader finds
them by the index.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import accumulate
from typing import Any, Protocol

from ...errors import AlreadyExistsError, BurnstoreError, DuplicateNameError, FormatError, LimitError, SaveError, Ways
from ...io.atomic import already_exists, atomic_file, folder_locked, remove_files, stale_scratch_files
from ...io.documents import Bounds, read_json
from ...io.opening import read_whole
from ...io.paths import base_name, exists, folder_of, identity_of, is_remote, join, real_path
from ...io.sizes import parse_size
from ...progress import Progress
from ...tensor.snapshot import TensorSnapshot
from ..base import WriteOne, WriteOptions, WritePlan
from .locate import INDEX_SUFFIX, MOST_SHARDS
from .read import SET_KEY, weight_map_at

Plan = Callable[[Sequence[TensorSnapshot], Mapping[str, str]], WritePlan]
"""How the format plans the file of some tensors, with this metadata besides its own."""


JOURNAL_SUFFIX = ".burnstore-resume.json"

_SCHEMA = 2
_BOUNDS = Bounds(64 << 20)
_IDENTITY = re.compile("[0-9a-f]{32}")


class Prove(Protocol):
    """Show that an existing file is the planned one, byte for byte, or raise."""

    def __call__(self, plan: WritePlan, path: str, progress: Progress | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of one target. With ``resume`` a save continues from it, and a save that fails keeps its shards.

    The file is there from before the first shard until after the index. It has the identity of the set, and the name,
    size and header digest of each shard; it is no evidence of what the shards hold. A resumed save proves every shard
    that is there against the source, as if it had just been written, and writes the others.
    """

    target: str
    resume: bool
    durable: bool = True

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.target + JOURNAL_SUFFIX

    def identity(self) -> str | None:
        """Return the identity of the set of the interrupted save, None if there was none.

        SaveError where there was one and the caller did not ask to resume it, or where its journal is damaged.
        """
        if not exists(self.path):
            return None
        if not self.resume:
            raise AlreadyExistsError(
                "an earlier save into shards was interrupted here",
                stage="check",
                path=self.path,
                hint=Ways("resume it with resume=True", f"delete {base_name(self.path)} to start over", lead=""),
            )
        return str(self._read()["set"])

    def names(self, plans: Sequence[WritePlan], ours: re.Pattern[str]) -> list[str]:
        """Return the names of the shards of the interrupted save; SaveError where it was of other shards than these."""
        shards = self._read()["shards"]
        names = [str(shard.get("name")) for shard in shards]
        found = [(shard.get("size"), shard.get("header")) for shard in shards]
        if (
            found != [_facts(plan) for plan in plans]
            or len(set(names)) != len(names)
            or not all(map(ours.fullmatch, names))
        ):
            raise self._stale("it had other tensors, sizes or metadata than this one")
        return names

    def begin(self, identity: str, names: Sequence[str], plans: Sequence[WritePlan]) -> None:
        """Record the shards that will be written."""
        facts = [_facts(plan) for plan in plans]
        shards = [{"name": name, "size": size, "header": head} for name, (size, head) in zip(names, facts, strict=True)]
        text = (json.dumps({"schema": _SCHEMA, "set": identity, "shards": shards}, indent=1) + "\n").encode()
        with atomic_file(self.path, overwrite=True, durable=self.durable, size=len(text)) as scratch:
            scratch.write(text)

    def end(self) -> None:
        """Remove the journal: the save is complete, or given up."""
        folder, name = folder_of(self.path), base_name(self.path)
        if remove_files(folder, [name]):
            raise SaveError("saved, but its journal could not be removed", stage="published", path=self.path)

    def _read(self) -> dict[str, Any]:
        try:
            document = read_json(read_whole(self.path, _BOUNDS.nbytes), _BOUNDS)
        except OSError as error:
            raise SaveError(f"the journal cannot be read: {error.strerror}", stage="check", path=self.path) from error
        except FormatError:
            document = None
        if (
            not isinstance(document, dict)
            or document.get("schema") != _SCHEMA
            or not _IDENTITY.fullmatch(str(document.get("set")))
            or not isinstance(document.get("shards"), list)
            or not all(isinstance(shard, dict) for shard in document["shards"])
        ):
            raise self._stale("its journal is damaged")
        return document

    def _stale(self, why: str) -> SaveError:
        return SaveError(
            f"the interrupted save cannot be resumed: {why}",
            stage="check",
            path=self.path,
            hint=f"rerun with the original options, or delete {base_name(self.path)} to start over",
        )


def _facts(plan: WritePlan) -> tuple[int, str]:
    """Return the size of a planned file, and the digest of its header, which names all tensors."""
    return plan.size, sha256(plan.header).hexdigest()


def byte_count(size: int | str) -> int:
    """Return a size in bytes, from text such as ``"5GB"`` (powers of 1000, as Hugging Face) or ``"2GiB"`` (of 1024).

    >>> byte_count("5GB"), byte_count("1.5 MiB"), byte_count(1000)
    (5000000000, 1572864, 1000)
    """
    if isinstance(size, str):
        size = parse_size(size)
    elif not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"max_shard_size must be a number of bytes or a str such as '5GB', got {type(size).__name__}")
    if size <= 0:
        raise ValueError(f"max_shard_size must be positive, got {size}")
    return size


def split(tensors: Sequence[TensorSnapshot], most: int) -> list[list[TensorSnapshot]]:
    """Split tensors into shards of at most so many bytes, as Hugging Face does; at least one shard.

    >>> import numpy as np
    >>> sizes = {"a": 4, "b": 3, "c": 20, "d": 5}
    >>> tensors = [TensorSnapshot.from_numpy(name, np.zeros(size, np.int8)) for name, size in sizes.items()]
    >>> [[tensor.path for tensor in shard] for shard in split(tensors, 8)]
    [['c'], ['a', 'b'], ['d']]
    """
    shards: list[list[TensorSnapshot]] = []
    current: list[TensorSnapshot] = []
    size = 0
    for tensor in tensors:
        if tensor.nbytes > most:
            shards.append([tensor])
            continue
        if size + tensor.nbytes > most:
            shards.append(current)
            current, size = [], 0
        current.append(tensor)
        size += tensor.nbytes
    return [*shards, current] if current or not shards else shards


def save_shards(
    tensors: Sequence[TensorSnapshot],
    path: str,
    how: WriteOptions,
    plan: Plan,
    write: WriteOne,
    prove: Prove | None = None,
) -> list[str]:
    """Save tensors as shards beside ``path`` and an index of its name; into ``path`` itself where one shard is enough.

    An existing set is replaced with ``overwrite`` only, and stays a set. With ``resume`` an interrupted save is
    continued: shards that are there are not written again but given to ``prove``. Returns the files that were written,
    the index first. SaveError as for `save`; its stage is "published" where the new set is in place and an old file
    could not be removed.
    """
    _check_names(tensors)
    assert how.max_shard_size is not None
    shards = split(tensors, byte_count(how.max_shard_size))
    journal = None if how.resume is None else Journal(path, how.resume, how.durable)
    index_path = path + INDEX_SUFFIX
    if len(shards) == 1 and not exists(index_path):
        write(plan(shards[0], {}), path, overwrite=how.overwrite, progress=how.progress)
        return [path]
    if len(shards) > MOST_SHARDS:
        raise LimitError(f"{len(shards)} shards, more than {MOST_SHARDS}", hint="pass a larger max_shard_size")
    folder, base = folder_of(path), base_name(path)
    stem, suffix = os.path.splitext(base)
    ours = _names_of(stem, suffix)
    interrupted = None if journal is None else journal.identity()
    identity = interrupted or os.urandom(16).hex()
    plans = [plan(shard, {SET_KEY: identity}) for shard in shards]
    begun = None if interrupted is None or journal is None else journal.names(plans, ours)
    done = begun is not None and _holds(index_path, _index(begun, shards, identity))  # interrupted after publishing
    if not how.overwrite and not done:
        for there in (index_path, path):
            if exists(there):
                raise already_exists(there, stage="check")
    if journal is not None and journal.resume:
        others = (base, base_name(index_path), base_name(journal.path))
        _remove_dead_scratch(folder, lambda name: name in others or ours.fullmatch(name) is not None)
    writing = _Shards(folder, stem, suffix, identity, write, prove, journal)
    names = writing.write(plans, begun, how.progress, plain=not exists(index_path))
    index = _index(names, shards, identity)
    try:
        # The index that is read and the one that is replaced are the same, so no set is replaced without its shards.
        with folder_locked(folder):
            with atomic_file(
                index_path, overwrite=how.overwrite or done, durable=how.durable, size=len(index)
            ) as scratch:
                scratch.write(index)
                old = {} if done else _named_by(index_path, ours)
            unchanged = [name for name, file in old.items() if name not in names and _file_at(folder, name) == file]
            left = remove_files(folder, [base, *unchanged])
    except BaseException:
        if not _holds(index_path, index):  # else the new set counts, and a later step failed
            writing.give_up(names)
        raise
    current = weight_map_at(index_path)
    if current is not None and not set(names) & set(current.values()):
        remove_files(folder, names)  # another save replaced this one without the lock, and may not know of its shards
    if journal is not None:
        journal.end()
    if left:
        raise SaveError(f"saved, but the old file {left[0]} could not be removed", stage="published", path=path)
    return [index_path, *(join(folder, name) for name in names)]


def _remove_dead_scratch(folder: str, is_ours: Callable[[str], bool]) -> None:
    """Remove the scratch files of a process that no longer runs, by the names that the files would have got."""
    if os.name == "posix" and not is_remote(folder):  # Without locks nothing shows that a process no longer runs.
        stale = map(os.path.basename, stale_scratch_files(folder or os.curdir, older_than=0))
        remove_files(folder, [name for name in stale if is_ours(name[1:].rsplit(".", 2)[0])])


def set_at(path: str) -> list[str]:
    """Return the files of the set of shards that a save to this path would replace: the index and those it names."""
    folder, base = folder_of(path), base_name(path)
    index_path = path + INDEX_SUFFIX
    if not exists(index_path):
        return []
    named = _named_by(index_path, _names_of(*os.path.splitext(base)))
    return [index_path, *(join(folder, name) for name in named)]


def is_of_set(path: str, target: str) -> bool:
    """Return whether a save of shards to the target may write a file of this name."""
    folder, base = os.path.split(real_path(path))
    own, name = os.path.split(real_path(target))
    return folder == own and (base == name + INDEX_SUFFIX or bool(_names_of(*os.path.splitext(name)).fullmatch(base)))


def _check_names(tensors: Sequence[TensorSnapshot]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.path in seen:
            raise DuplicateNameError("two tensors have this name", tensor=tensor.path)
        seen.add(tensor.path)


@dataclass(frozen=True, slots=True)
class _Shards:
    """Write the shards of one set under names that no file has; on a failure remove them, unless there is a journal."""

    folder: str
    stem: str
    suffix: str
    identity: str
    write_one: WriteOne
    prove: Prove | None
    journal: Journal | None

    def write(
        self, plans: Sequence[WritePlan], begun: Sequence[str] | None, progress: Progress | None, *, plain: bool
    ) -> list[str]:
        """Write the shards, or those that are missing of an interrupted save; return their names."""
        ends = list(accumulate((planned.size for planned in plans), initial=0))
        while True:
            names = self._free_names(len(plans), plain=plain) if begun is None else list(begun)
            written: list[str] = []
            try:
                if begun is None and self.journal is not None:
                    self.journal.begin(self.identity, names, plans)
                for name, planned, before in zip(names, plans, ends[:-1], strict=True):
                    path = join(self.folder, name)
                    report = None if progress is None else partial(_report, progress, before, planned.size, ends[-1])
                    if begun is not None and self.prove is not None and exists(path):
                        self.prove(planned, path, report)
                    else:
                        _write_shard(planned, path, self.write_one, report, written)
                return names
            except AlreadyExistsError:  # another save took one of the names since
                if begun is not None:
                    raise
                remove_files(self.folder, written)
            except BaseException:
                self.give_up(written)
                raise

    def _free_names(self, count: int, *, plain: bool) -> list[str]:
        """Return names that no file has: those of Hugging Face, or with a word in them.

        Where there is an index, names without a word are never taken: those of an old set become free while it is
        replaced, and must not be taken again by another save.
        """
        word = "" if plain else f".{self.identity[:8]}"
        while True:
            names = [f"{self.stem}{word}-{number:05}-of-{count:05}{self.suffix}" for number in range(1, count + 1)]
            if not any(exists(join(self.folder, name)) for name in names):
                return names
            word = f".{os.urandom(4).hex()}"

    def give_up(self, names: Sequence[str]) -> None:
        """Remove these shards after a failure, unless the save may be resumed from them."""
        if self.journal is None:
            remove_files(self.folder, names)
        elif not self.journal.resume:
            remove_files(self.folder, [*names, base_name(self.journal.path)])


def _index(names: Sequence[str], shards: Sequence[Sequence[TensorSnapshot]], identity: str) -> bytes:
    """Return the index, as Hugging Face's libraries write it, with the identity of the set."""
    weight_map = {tensor.path: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    total = sum(tensor.nbytes for shard in shards for tensor in shard)
    document = {"metadata": {SET_KEY: identity, "total_size": total}, "weight_map": weight_map}
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _report(progress: Progress, before: int, size: int, total: int, done: int, of: int) -> None:
    """Report the work done for one shard, which may be more than writing it, as a part of all."""
    progress(before + (size * done // of if of else size), total)


def _write_shard(planned: WritePlan, path: str, write: WriteOne, progress: Progress | None, written: list[str]) -> None:
    """Write one shard, and note its name as soon as a file of ours may have it."""
    try:
        write(planned, path, overwrite=False, progress=progress)
        written.append(base_name(path))
    except SaveError as error:
        if error.stage != "published":
            raise
        written.append(base_name(path))
        # The shard has its name, but it may not survive a power cut: the set must not count on it.
        failure = SaveError("not saved: a shard could not be brought to disk", stage="sync", path=path)
        failure.errno = error.errno
        raise failure from error


def _names_of(stem: str, suffix: str) -> re.Pattern[str]:
    """Return the pattern of the names of a set's shards."""
    return re.compile(rf"{re.escape(stem)}(?:\.[0-9a-f]{{8}})?-\d{{5}}-of-\d{{5}}{re.escape(suffix)}")


def _named_by(index_path: str, ours: re.Pattern[str]) -> dict[str, object]:
    """Return the shards that an index names, if their names are those of this very set, with the files they are now."""
    folder, named = folder_of(index_path), set((weight_map_at(index_path) or {}).values())
    return {name: _file_at(folder, name) for name in sorted(named) if ours.fullmatch(name)}


def _file_at(folder: str, name: str) -> object:
    """Return what distinguishes a file from a later one of the same name; None if it does not exist."""
    with suppress(OSError):
        if is_remote(folder):
            return identity_of(join(folder, name))
        status = os.lstat(join(folder, name))
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
    return None


def _holds(path: str, content: bytes) -> bool:
    with suppress(OSError, BurnstoreError):
        return read_whole(path, len(content)) == content
    return False
