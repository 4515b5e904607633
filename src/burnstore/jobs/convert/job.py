"""A job: a compiled conversion as data, of which any process on any machine can do a share.

The document has the sources with what identifies their content, the target, and the move of each tensor, as receipts
have them; and the units, which are runs of tensors of about 256 MiB. It holds no credentials: each process gets them
from its environment or from ``storage_options``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import __version__
from ...checkpoint import Checkpoint
from ...errors import CorruptError, UnsupportedError, located
from ...io.atomic import atomic_file
from ...io.documents import Bounds, read_json
from ...io.opening import open_source, read_whole
from ...io.paths import as_path, content_stamp, is_remote, join
from ...io.remote.location import Location
from ...pipeline.write import files_read
from ...tensor.snapshot import TensorSnapshot
from .receipt import _count, _layout, _list, _mapping, _objects, _origins, _steps, _text

_SCHEMA = 1
_UNIT_BYTES = 256 << 20
_MOST_UNITS = 10_000
_BOUNDS = Bounds(1 << 30, 50_000_000, 16)
_KEYS = ("burnstore", "job", "id", "sources", "target", "left_out", "tensors", "units")
_FLAGS = ("overwrite", "durable", "verify", "allow_empty")
_OF_TARGET = ("path", "format", "layout", "source_layout", "max_shard_size", "metadata", "options", *_FLAGS)


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file that a job reads: its path, its size, and the ETag or the time of its content."""

    path: str
    size: int
    stamp: str

    def check(self) -> None:
        """Raise CorruptError if the file is not the one that the job was planned for."""
        source = open_source(self.path)
        try:
            found = source.size, content_stamp(source)
        finally:
            source.close()
        if found != (self.size, self.stamp):
            raise CorruptError("the source was changed after the job was planned", path=self.path, hint="plan it again")


@dataclass(frozen=True, slots=True)
class JobSource:
    """A source of a job: what to open, and the files behind it."""

    path: str
    files: tuple[JobFile, ...]
    top_level_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A compiled conversion."""

    id: str
    sources: tuple[JobSource, ...]
    target: str
    format: str
    layout: str | None
    source_layout: str | None
    max_shard_size: int | None
    metadata: Mapping[str, str]
    options: Mapping[str, Any]
    overwrite: bool
    durable: bool
    verify: bool
    allow_empty: bool
    left_out: Mapping[str, str]
    tensors: tuple[Mapping[str, Any], ...] = field(repr=False)
    units: tuple[tuple[int, int], ...]
    """The first tensor of each unit and the number of tensors."""

    @property
    def stage(self) -> str:
        """The folder of the units that are done, beside the target."""
        return self.target + f".burnstore-job-{self.id[:12]}"

    def unit_path(self, number: int) -> str:
        """Return where a unit is kept until the job is finished."""
        return join(self.stage, f"unit-{number + 1:05d}-of-{len(self.units):05d}")

    def save(self, path: str, *, overwrite: bool) -> None:
        """Write the job, all or nothing."""
        document = {
            "burnstore": __version__,
            "job": _SCHEMA,
            "id": self.id,
            "sources": [
                {
                    "path": each.path,
                    "top_level_key": each.top_level_key,
                    "files": [{"path": file.path, "size": file.size, "stamp": file.stamp} for file in each.files],
                }
                for each in self.sources
            ],
            "target": {
                **{name: getattr(self, name) for name in _OF_TARGET if name != "path"},
                "path": self.target,
                "metadata": dict(self.metadata),
                "options": dict(self.options),
            },
            "left_out": dict(self.left_out),
            "units": [list(unit) for unit in self.units],
        }
        tensors = ",\n  ".join(json.dumps(each) for each in self.tensors)
        text = f'{json.dumps(document, indent=1)[:-2]},\n "tensors": [\n  {tensors}\n ]\n}}\n'.encode()
        with atomic_file(path, overwrite=overwrite, size=len(text)) as scratch:
            scratch.write(text)


def job_sources(sources: Sequence[Checkpoint]) -> tuple[JobSource, ...]:
    """Return open files as the sources of a job."""
    return tuple(
        JobSource(
            _absolute(source.path),
            tuple(JobFile(_absolute(file.name), file.size, content_stamp(file)) for file in files_read(source)),
            source.top_level_key,
        )
        for source in sources
    )


def units_of(snapshots: Sequence[TensorSnapshot]) -> tuple[tuple[int, int], ...]:
    """Split tensors into runs of about 256 MiB; more where there would be too many."""
    most = max(_UNIT_BYTES, sum(each.nbytes for each in snapshots) // _MOST_UNITS)
    units: list[tuple[int, int]] = []
    first = size = 0
    for number, snapshot in enumerate(snapshots):
        if number > first and size + snapshot.nbytes > most:
            units.append((first, number - first))
            first, size = number, 0
        size += snapshot.nbytes
    return (*units, (first, len(snapshots) - first)) if snapshots else ()


def without_secrets(path: str) -> str:
    """Return an absolute path to store; UnsupportedError for a URL that has credentials in it."""
    place = _absolute(path)
    if isinstance(place, Location) and place.url != str(place):
        raise UnsupportedError(
            "a job is stored without credentials, and this URL has some",
            path=place,
            hint="pass them in storage_options or in the environment, for each part too",
        )
    return place


def _absolute(path: str) -> str:
    return path if is_remote(path) else os.path.abspath(path)


def read_job_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the document of a job, to send it to workers that cannot read its file."""
    return read_whole(path, _BOUNDS.nbytes)


def read_job(job: str | os.PathLike[str] | bytes) -> Job:
    """Read a job, a file or its bytes; CorruptError if it is not one."""
    with located(path="<job>" if isinstance(job, bytes) else as_path(job)):
        try:
            raw = job if isinstance(job, bytes) else read_job_bytes(job)
            document = _mapping(read_json(raw, _BOUNDS), *_KEYS)
            if document["job"] != _SCHEMA:
                raise ValueError(f"expected version {_SCHEMA}, found {document['job']!r}")
            return _job(document)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
            raise CorruptError(
                f"not a job: {why}",
                hint="write one with burnstore convert SRC DST --plan JOB, "
                "or burnstore.convert(source, target, plan=job)",
            ) from error


def _job(document: Mapping[str, Any]) -> Job:
    target = _mapping(document["target"], *_OF_TARGET)
    tensors = [
        {
            "name": _text(each["name"]),
            "from": _origins(each["from"]),
            "operations": _steps(each["operations"]),
            "dtype": _text(each["dtype"]),
            "shape": [_count(extent) for extent in _list(each["shape"])],
        }
        for each in _objects(document["tensors"], "name", "from", "operations", "dtype", "shape")
    ]
    units = [(_count(first), _count(count)) for first, count in map(_list, _list(document["units"]))]
    if [first for first, _ in units] != _starts(units) or sum(count for _, count in units) != len(tensors):
        raise ValueError("its units are not all tensors, each once")
    flags = {name: target[name] for name in _FLAGS}
    if not all(isinstance(flag, bool) for flag in flags.values()) or not _text(document["id"]).isalnum():
        raise ValueError("a flag of the target is not true or false, or the id is no word")
    return Job(
        id=document["id"],
        sources=tuple(
            JobSource(
                as_path(_text(each["path"])),
                tuple(
                    JobFile(as_path(_text(file["path"])), _count(file["size"]), _text(file["stamp"]))
                    for file in _objects(each["files"], "path", "size", "stamp")
                ),
                None if each["top_level_key"] is None else _text(each["top_level_key"]),
            )
            for each in _objects(document["sources"], "path", "top_level_key", "files")
        ),
        target=as_path(_text(target["path"])),
        format=_text(target["format"]),
        layout=_layout(target["layout"]),
        source_layout=_layout(target["source_layout"]),
        max_shard_size=None if target["max_shard_size"] is None else _count(target["max_shard_size"]),
        metadata={_text(key): _text(text) for key, text in _mapping(target["metadata"]).items()},
        options=dict(_mapping(target["options"])),
        left_out={_text(key): _text(text) for key, text in _mapping(document["left_out"]).items()},
        tensors=tuple(tensors),
        units=tuple(units),
        **flags,
    )


def _starts(units: Sequence[tuple[int, int]]) -> list[int]:
    starts, at = [], 0
    for _, count in units:
        starts.append(at)
        at += count
    return starts
