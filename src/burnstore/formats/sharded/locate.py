"""Find the file or the set of files that a path stands for; called for every path, so it imports little.

The rules of a set, SH-01 to SH-07, are in `burnstore.formats.sharded.read`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, cast

from ...errors import CorruptError, ReadError, UnsupportedError, located, printable
from ...io.opening import open_source
from ...io.paths import OpenFile, is_remote, join, names_in
from ...io.remote.location import Location
from ...io.source import Source

INDEX_SUFFIX = ".index.json"
MOST_SHARDS = 10_000
_MOST_FOLDERS = 1_000

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.[a-z]+)", re.DOTALL)
_SUFFIXES = ((".safetensors",), (".bin", ".pt", ".pth", ".ckpt"), (".bpk",), (".mpk", ".mpk.gz"), (".npz",), (".gguf",))
"""The files that a folder may stand for; the first kind that it has counts."""

_DISTRIBUTED, _METADATA = ".distcp", ".metadata"
_METADATA_OF_RANK = re.compile(r"__[0-9]{1,9}\.metadata")

_SHARD_OF_TORCH = re.compile(r"shard-(\d{5})-model-(\d{5})-of-(\d{5})\.safetensors")
_OF_RANK = re.compile(r"(.*?)(?:world_size_(\d{1,6})_)?rank[_-]?(\d{1,6})((?:\D.*)?\.(?:pt|pth|bin|ckpt))", re.DOTALL)
"""A file of one rank: what precedes its number, the number of ranks if it is stated, the number, and what follows."""
ZERO_MODEL = re.compile(r"(?:zero_pp_rank_(\d{1,6})_)?mp_rank_(\d{1,6})_model_states\.pt")
ZERO_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})_optim_states\.pt")
"""The files of DeepSpeed ZeRO: of the model, and the partitions of its optimizer."""
_BESIDE_RANKS = ("optim", "extra_state", "scheduler", "rng", "dataloader")

_BESIDE = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state(_\d+)?|random_states_\d+)\.(bin|pt|pth|pkl)")
"""Files that trainers write beside a model."""


def begins_like_index(head: bytes) -> bool:
    """Return whether a file with these first bytes may be an index: a JSON object, never the length of a header."""
    if not int.from_bytes(head[:8], "little") >> 48:
        return False
    return head.lstrip(b" \t\n\r")[:1] == b"{" and (b'"weight_map"' in head or b'"total_size"' in head)


def locate(path: str) -> tuple[str, dict[str, Any]]:
    """Return the file that a path stands for, and the options to open it with.

    A folder stands for the one checkpoint in it, and the name under which a set of shards was saved for its index. Of
    the same weights in several formats, as some folders of Hugging Face have them, SafeTensors are taken, then a
    distributed checkpoint. Files beside the model that trainers write (optimizer, scheduler, random state) are not it.
    """
    if is_remote(path):
        source, options = open_located(path)
        source.close()
        return source.name, options
    if path.endswith(_DISTRIBUTED):
        raise UnsupportedError(
            "part of a distributed checkpoint of torch (DCP): one of the files that its .metadata describes",
            path=path,
            hint=f"open its folder, {os.path.dirname(path) or os.curdir}",
        )
    if isinstance(path, OpenFile):
        return path, {}
    if not os.path.isdir(path):
        index = path + INDEX_SUFFIX
        return (index if not os.path.lexists(path) and os.path.isfile(index) else path), {}
    return _in_folder(path, names_in(path))


def open_located(path: str, *, zero_copy: bool = False) -> tuple[Source, dict[str, Any]]:
    """Open the file that a path stands for; return it and the options to read it with.

    A remote path is opened as a file first, which takes one request; only if there is none is it listed.
    """
    if not is_remote(path):
        file, options = locate(path)
        return open_source(file, zero_copy=zero_copy), options
    if zero_copy:
        raise UnsupportedError("a remote file cannot be mapped", path=path, hint="leave out zero_copy=True")
    return _open_remote(cast(Location, path))


def _open_remote(path: Location) -> tuple[Source, dict[str, Any]]:
    from ...io.remote.folder import open_or_list  # not at import: few programs have a URL

    if path.is_hub:
        from ...io.remote.hub import local_snapshot

        local = local_snapshot(path)
        if local is not None:
            return open_located(local)
    try:
        source, folder, names = open_or_list(path)
    except FileNotFoundError as error:
        missing = error
    else:
        if source is not None:
            return source, {}
        file, options = _in_folder(folder, names)
        return open_source(file), options
    try:
        return open_source(path.beside(INDEX_SUFFIX)), {}
    except FileNotFoundError:
        raise missing from None


def _in_folder(path: str, listed: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the file that a folder stands for, by the names in it."""
    with located(path=path):
        every = [name for name in listed if not name.endswith("/")]
        names = [name for name in every if not name.startswith(".")]
        for suffixes in _SUFFIXES:
            found = _checkpoint_in(path, [name for name in names if name.endswith(suffixes)], names, suffixes)
            if found is None and suffixes == _SUFFIXES[0]:
                found = _distributed_in(path, every)  # before other files of torch: trainers write some beside it
            if found is not None:
                return found
        folders = [name.rstrip("/") for name in listed if name.endswith("/")]
        inner = folders if is_remote(path) else list(_folders_with_checkpoints(path))
        if inner:
            where = "below it are the folders" if is_remote(path) else "there are some in"
            raise ReadError(
                f"the directory has no checkpoint of its own; {where} {_some(inner, 8)}",
                hint=f"open one of them, such as {join(path, inner[0])}",
            )
        raise ReadError(
            "the directory has no checkpoint; looked for *.safetensors.index.json, *.safetensors, *.bin.index.json, "
            "*.bin, *.pt, *.pth, *.ckpt, *.bpk, *.mpk, *.npz, *.gguf and for folders with one of them",
            hint="open a file by its name",
        )


def _distributed_in(path: str, names: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """Return the metadata of the distributed checkpoint in a folder; None if the folder is not one."""
    metadata = [name for name in names if name == _METADATA or _METADATA_OF_RANK.fullmatch(name)]
    pieces = [name for name in names if name.endswith(_DISTRIBUTED)]
    if not metadata and not pieces:
        return None
    if not metadata:
        raise CorruptError(
            f"the directory has {len(pieces)} *{_DISTRIBUTED} files of a distributed checkpoint, and no {_METADATA}",
            hint=f"copy {_METADATA} too: its name begins with a dot, and torch writes it last, when a save is complete",
        )
    return join(path, _METADATA if _METADATA in metadata else metadata[0]), {"format": "dcp"}


def _folders_with_checkpoints(path: str) -> Iterator[str]:
    """Yield the folders with checkpoints up to three levels below, as in the cache of the Hugging Face hub."""
    for place, folders, names in islice(os.walk(path, followlinks=True), _MOST_FOLDERS):
        inner = os.path.relpath(place, path)
        if inner != os.curdir and any(name.endswith(suffixes) for name in names for suffixes in _SUFFIXES):
            yield inner
        is_last = inner.count(os.sep) >= 2
        folders[:] = [] if is_last else sorted(name for name in folders if not name.startswith("."))


def _checkpoint_in(
    path: str, files: list[str], names: list[str], suffixes: tuple[str, ...]
) -> tuple[str, dict[str, Any]] | None:
    """Return the one checkpoint among files of a kind; None if there is none, ReadError if it is not known which."""
    files = [name for name in files if _BESIDE.fullmatch(name) is None]
    indexes = [name for name in names if name.endswith(tuple(suffix + INDEX_SUFFIX for suffix in suffixes))]
    if len(indexes) > 1:
        raise ReadError(f"the directory has {len(indexes)} indexes: {_some(indexes)}", hint="open one by its name")
    if indexes:
        whole = indexes[0].removesuffix(INDEX_SUFFIX)
        if whole in files:
            raise ReadError(
                f"the directory has both {printable(whole)} and its index", hint="open one of them by its name"
            )
        return join(path, indexes[0]), {}
    if not files:
        return None
    shards = _shards_of_torch(files) or _files_of_zero(files) or _files_of_ranks(files)
    if shards:
        return join(path, shards[0]), {"shards": shards}
    if len(files) == 1 and _NUMBERED.fullmatch(files[0]) is None:
        return join(path, files[0]), {}
    return join(path, files[0]), {"shards": _complete_set(files)}


def _shards_of_torch(files: Sequence[str]) -> list[str]:
    """Return the files, if all are shards of torch's HuggingFaceStorageWriter: one for each rank and output.

    A rank without tensors of an output writes no file, so a missing one is not noticed here, but by its pieces.
    """
    matches = [_SHARD_OF_TORCH.fullmatch(name) for name in files]
    if not matches or not all(matches):
        return []
    outputs = {int(match[2]) for match in matches if match}
    counts = {int(match[3]) for match in matches if match}
    missing = sorted(set(range(1, min(*counts, MOST_SHARDS) + 1)) - outputs)
    if len(counts) > 1 or missing:
        problem = f"output {missing[0]} of {min(counts)} is missing" if missing else "they are of several sets"
        raise CorruptError(f"the directory has {len(files)} shards of torch: {problem}", rule="SH-05")
    return list(files)


def _files_of_zero(files: Sequence[str]) -> list[str]:
    """Return the model states and the partitions of all ranks, in order, if they are of DeepSpeed ZeRO."""
    optimizers = {int(match[1]): match for match in map(ZERO_OPTIMIZER.fullmatch, files) if match and not int(match[2])}
    if not optimizers:
        return []
    parallel = next((name for name in files if (m := ZERO_OPTIMIZER.fullmatch(name)) and int(m[2])), None)
    if parallel is not None:
        raise UnsupportedError(
            f"a checkpoint of DeepSpeed with tensor parallelism ({parallel}), which is not read here",
            hint="convert it to a universal checkpoint with DeepSpeed first",
        )
    missing = next((rank for rank in range(max(optimizers)) if rank not in optimizers), None)
    if missing is not None:
        raise CorruptError(f"the partition of rank {missing} is missing, of {max(optimizers) + 1}", rule="SH-05")
    models = sorted(name for name in files if ZERO_MODEL.fullmatch(name))
    if not models:
        raise CorruptError("a checkpoint of DeepSpeed ZeRO without its *model_states.pt", rule="SH-05")
    return [*models, *(optimizers[rank][0] for rank in sorted(optimizers))]


def _files_of_ranks(files: Sequence[str]) -> list[str]:
    """Return the files of all ranks, if some are named by their rank; those of the model, not of the optimizer."""
    groups: dict[tuple[str, str | None, str], dict[int, str]] = {}
    others = []
    for name in files:
        match = _OF_RANK.fullmatch(name)
        if match is None:
            others.append(name)
        elif not match[1].startswith(_BESIDE_RANKS):
            groups.setdefault((match[1], match[2], match[4]), {})[int(match[3])] = name
    if len(groups) != 1 or others:
        return []
    (_, count, _), ranks = next(iter(groups.items()))
    if count is None and len(ranks) == 1:
        return []
    size = max(ranks) + 1 if count is None else int(count)
    missing = next((rank for rank in range(min(size, MOST_SHARDS)) if rank not in ranks), None)
    if missing is not None or size > MOST_SHARDS:
        problem = f"the file of rank {missing} is missing" if missing is not None else "too many"
        raise CorruptError(f"{len(ranks)} files of {size} ranks are there: {problem}", rule="SH-05")
    return [ranks[rank] for rank in sorted(ranks)]


def _complete_set(files: Sequence[str]) -> list[str]:
    """Return the files, if they are numbered as one set and none is missing (SH-05)."""
    found = [_NUMBERED.fullmatch(name) for name in files]
    sets = {(match[1], match[3]) if match else None for match in found}
    if None in sets or len(sets) != 1:
        raise ReadError(
            f"the directory has {len(files)} *{os.path.splitext(files[0])[1]} files and no index: {_some(files)}",
            rule="SH-05",
            hint="open one of them by its name",
        )
    count = int(next(match for match in found if match)[3])
    numbers = [int(match[2]) for match in found if match]
    if sorted(numbers) != list(range(1, count + 1)):
        missing = sorted(set(range(1, min(count, MOST_SHARDS) + 1)) - set(numbers))
        raise CorruptError(
            f"{len(numbers)} of {count} shards are there, number {missing[0] if missing else count} is missing",
            rule="SH-05",
        )
    return list(files)


def _some(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(printable(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown}, ..."
