"""Sharding: saving one set of tensors into several files and an index, so that a crash leaves the old set or the new.

    split      tensors in their order, into shards of at most the size asked for; one that is larger has its own
    write      each shard under a name that no file has, whole and on disk: what is there is not touched
    publish    the index, by the atomic replacement of one file: from here on the new set counts
    remove     the shards that the replaced index named, and a single file of the set's name

A kill before *publish* leaves the old set, and complete shards that no index names; after it the new set, and old ones
that no index names. Neither is in the way: a later save takes other names. An exception removes what was written. Two
saves to one place leave one whole set, and maybe shards of the other. The names are those of Hugging Face, such as
``model-00001-of-00003.safetensors``, with a word of eight letters in them where such files are there already
(``model.1f3a90c2-00001-of-00003.safetensors``); every reader finds them by the index.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Protocol

from ...errors import AlreadyExistsError, BurnstoreError, DuplicateNameError, LimitError, SaveError
from ...io.atomic import already_exists, atomic_file, remove_files
from ...io.source import FileSource
from ...limits import Limits
from ...progress import Progress
from ...tensor.snapshot import TensorSnapshot
from ..base import WritePlan
from .journal import Journal, Prove
from .locate import INDEX_SUFFIX, MOST_SHARDS
from .read import read_weight_map

Plan = Callable[[Sequence[TensorSnapshot]], WritePlan]
"""How the format lays out the file of some tensors."""


class Write(Protocol):
    """How a planned file is written."""

    def __call__(self, plan: WritePlan, path: str, *, overwrite: bool, progress: Progress | None) -> None: ...


_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
# Limits for an index that is read only to know which old files it names.
_OLD_INDEX = Limits().or_defaults(header_bytes=100_000_000, tensors=1_000_000)


def byte_count(size: int | str) -> int:
    """A size in bytes, such as ``"5GB"`` (powers of 1000, as Hugging Face has it) or ``"2GiB"`` (of 1024).

    >>> byte_count("5GB"), byte_count("1.5 MiB"), byte_count(1000)
    (5000000000, 1572864, 1000)
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        unit = None if match is None else _UNITS.get(match[2].lower())
        if match is None or unit is None:
            raise ValueError(f"{size!r} is not a size such as '5GB' or '500MiB'")
        size = int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    elif not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"max_shard_size is a number of bytes or a text such as '5GB', not {type(size).__name__}")
    if size <= 0:
        raise ValueError(f"max_shard_size must be positive, got {size}")
    return size


def split(tensors: Sequence[TensorSnapshot], most: int) -> list[list[TensorSnapshot]]:
    """The tensors in shards of at most so many bytes, as Hugging Face splits them; at least one shard.

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
    most: int,
    *,
    overwrite: bool,
    durable: bool,
    progress: Progress | None,
    plan: Plan,
    write: Write,
    prove: Prove | None = None,
    journal: Journal | None = None,
) -> list[str]:
    """Save tensors as shards beside ``path`` and an index of its name; into ``path`` itself where one shard suffices.

    A set whose index is there is replaced with ``overwrite`` only, and stays a set. With a ``journal`` a save that was
    cut off is taken up: shards that are there are not written again but given to ``prove``. The files that were
    written come back, the one that counts first. SaveError as for `save`; its stage is "published" where the new set is
    in place and an old file could not be removed.
    """
    _check_names(tensors)
    shards = split(tensors, most)
    index_path = path + INDEX_SUFFIX
    if len(shards) == 1 and not os.path.lexists(index_path):
        write(plan(shards[0]), path, overwrite=overwrite, progress=progress)
        return [path]
    if len(shards) > MOST_SHARDS:
        raise LimitError(f"{len(shards)} shards, more than {MOST_SHARDS}", hint="pass a larger max_shard_size")
    folder, base = os.path.split(path)
    stem, suffix = os.path.splitext(base)
    ours = _names_of(stem, suffix)
    plans = [plan(shard) for shard in shards]
    begun = None if journal is None else journal.begun(plans, ours)
    done = begun is not None and _holds(index_path, _index(begun, shards))  # cut off after its last step but one
    if not overwrite and not done:
        for there in (index_path, path):
            if os.path.lexists(there):
                raise already_exists(there, stage="check")
    writing = _Shards(folder, stem, suffix, write, prove, journal)
    names = writing.write(plans, begun, progress)
    index = _index(names, shards)
    try:
        old = [] if done else _named_by(index_path, ours)
        with atomic_file(index_path, overwrite=overwrite or done, durable=durable, size=len(index)) as scratch:
            scratch.write(index)
    except BaseException:
        if not _holds(index_path, index):  # else the new set counts, and a later step failed
            writing.give_up(names)
        raise
    left = remove_files(folder, [base, *(name for name in old if name not in names)])
    if journal is not None:
        journal.end()
    if left:
        raise SaveError(f"saved, but the old file {left[0]} could not be removed", stage="published", path=path)
    return [index_path, *(os.path.join(folder, name) for name in names)]


def set_at(path: str) -> list[str]:
    """The files of the set of shards that a save to this path would replace: the index and what it names."""
    folder, base = os.path.split(path)
    index_path = path + INDEX_SUFFIX
    if not os.path.lexists(index_path):
        return []
    return [
        index_path,
        *(os.path.join(folder, name) for name in _named_by(index_path, _names_of(*os.path.splitext(base)))),
    ]


def _check_names(tensors: Sequence[TensorSnapshot]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.path in seen:
            raise DuplicateNameError("two tensors have this name", tensor=tensor.path)
        seen.add(tensor.path)


def _free_names(folder: str, stem: str, suffix: str, count: int) -> list[str]:
    """Names for the shards that no file has: those of Hugging Face, or with a random word in them."""
    word = ""
    while True:
        names = [f"{stem}{word}-{number:05}-of-{count:05}{suffix}" for number in range(1, count + 1)]
        if not any(os.path.lexists(os.path.join(folder, name)) for name in names):
            return names
        word = f".{os.urandom(4).hex()}"


@dataclass(frozen=True, slots=True)
class _Shards:
    """How the shards of one set are written: under names that no file has, and on a failure none of them stays.

    Unless there is a journal from which to go on.
    """

    folder: str
    stem: str
    suffix: str
    write_one: Write
    prove: Prove | None
    journal: Journal | None

    def write(self, plans: Sequence[WritePlan], begun: Sequence[str] | None, progress: Progress | None) -> list[str]:
        """Write the shards, or those that are not there yet of a set that was begun; their names."""
        ends = list(accumulate((planned.size for planned in plans), initial=0))
        while True:
            names = _free_names(self.folder, self.stem, self.suffix, len(plans)) if begun is None else list(begun)
            written: list[str] = []
            try:
                if begun is None and self.journal is not None:
                    self.journal.begin(names, plans)
                for name, planned, before in zip(names, plans, ends[:-1], strict=True):
                    path = os.path.join(self.folder, name)
                    report = None if progress is None else partial(_report, progress, before, planned.size, ends[-1])
                    if begun is not None and self.prove is not None and os.path.lexists(path):
                        self.prove(planned, path, report)
                    else:
                        _write_shard(planned, path, self.write_one, report, written)
                return names
            except AlreadyExistsError:  # another saver took one of the names since: ours must be others
                if begun is not None:
                    raise
                remove_files(self.folder, written)
            except BaseException:
                self.give_up(written)
                raise

    def give_up(self, names: Sequence[str]) -> None:
        """Remove these shards after a failure; not those from which somebody may want to go on."""
        if self.journal is None:
            remove_files(self.folder, names)
        elif not self.journal.resume:
            remove_files(self.folder, [*names, os.path.basename(self.journal.path)])


def _index(names: Sequence[str], shards: Sequence[Sequence[TensorSnapshot]]) -> bytes:
    """The index, as Hugging Face's libraries write it."""
    weight_map = {tensor.path: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    total = sum(tensor.nbytes for shard in shards for tensor in shard)
    document = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _report(progress: Progress, before: int, size: int, total: int, done: int, of: int) -> None:
    """What was done of one shard, which may be more than writing it, as a part of them all."""
    progress(before + (size * done // of if of else size), total)


def _write_shard(planned: WritePlan, path: str, write: Write, progress: Progress | None, written: list[str]) -> None:
    """Write one shard, and note its name as soon as a file of ours may have it."""
    try:
        write(planned, path, overwrite=False, progress=progress)
        written.append(os.path.basename(path))
    except SaveError as error:
        if error.stage != "published":
            raise
        written.append(os.path.basename(path))
        # The shard has its name, but nothing says that it survives a power cut: the set must not count on it.
        failure = SaveError("not saved: a shard could not be brought to disk", stage="sync", path=path)
        failure.errno = error.errno
        raise failure from error


def _names_of(stem: str, suffix: str) -> re.Pattern[str]:
    """What the shards of a set are called."""
    return re.compile(rf"{re.escape(stem)}(?:\.[0-9a-f]{{8}})?-\d{{5}}-of-\d{{5}}{re.escape(suffix)}")


def _named_by(index_path: str, ours: re.Pattern[str]) -> list[str]:
    """What the index there names, as far as the names are those of this very set; nothing if it is broken."""
    with suppress(OSError, BurnstoreError):
        source = FileSource(index_path)
        try:
            named = set(read_weight_map(source, _OLD_INDEX).values())
        finally:
            source.close()
        return sorted(name for name in named if ours.fullmatch(name))
    return []


def _holds(path: str, content: bytes) -> bool:
    with suppress(OSError, BurnstoreError):
        source = FileSource(path)
        try:
            return source.read_at(0, source.size) == content
        finally:
            source.close()
    return False
