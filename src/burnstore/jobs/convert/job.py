"""A job: a compiled conversion as data, of which any process on any machine can do a share.

The document has the sources with what identifies their content, the target, and the move of each tensor, as receipts
have them; and the units, which are runs of tensors of about 256 MiB. It holds no credentials: each process gets them
from its environment or from ``storage_options``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

from ... import __version__
from ...checkpoint import Checkpoint
from ...errors import BurnstoreError, CorruptError, UnsupportedError, located
from ...io.atomic import atomic_file
from ...io.documents import Bounds, read_json
from ...io.opening import open_source, read_whole
from ...io.paths import as_path, content_stamp, is_remote, join
from ...io.remote.location import Location
from ...pipeline.write import files_read
from ...tensor.snapshot import TensorSnapshot
from .receipt import MoveFields, check_counts, check_layout, check_move, move_of

_SCHEMA = 1  # also in JobDocument
_UNIT_BYTES = 256 << 20
_MOST_UNITS = 10_000
BOUNDS = Bounds(1 << 30, 50_000_000, 16)
_FLAGS = ("overwrite", "durable", "verify", "allow_empty")
_OF_TARGET = ("path", "format", "layout", "source_layout", "max_shard_size", "metadata", "options", *_FLAGS)


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file that a job reads: its path, its size, and the ETag or the time of its content."""

    path: str
    size: int
    stamp: str

    def __post_init__(self) -> None:
        """Refuse a size that no file has."""
        check_counts(self.size)

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

    def zeroed_path(self, number: int) -> str:
        """Return where the names of a unit's tensors are kept in which a cast made values 0."""
        return self.unit_path(number) + ".zeroed.json"

    def document(self) -> bytes:
        """Return the job as the JSON document that `read_job` reads."""
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
        return f'{json.dumps(document, indent=1)[:-2]},\n "tensors": [\n  {tensors}\n ]\n}}\n'.encode()

    def save(self, path: str, *, overwrite: bool) -> None:
        """Write the job, all or nothing."""
        text = self.document()
        with atomic_file(path, overwrite=overwrite, size=len(text)) as scratch:
            scratch.write(text)


def is_ray(executor: Any) -> bool:
    """Return whether an executor is Ray: ``"ray"`` or the module."""
    return executor == "ray" if isinstance(executor, str) else getattr(executor, "__name__", None) == "ray"


def is_cluster(executor: Any) -> bool:
    """Return whether an executor is Ray or a client of Dask, whose workers may be on other machines."""
    return is_ray(executor) or hasattr(executor, "get_executor")


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
    return read_whole(path, BOUNDS.nbytes)


def read_job(job: str | os.PathLike[str] | bytes) -> Job:
    """Read a job, a file or its bytes; CorruptError if it is not one."""
    with located(path="<job>" if isinstance(job, bytes) else as_path(job)):
        try:
            raw = job if isinstance(job, bytes) else read_job_bytes(job)
            return _job(read_json(raw, BOUNDS, into=JobDocument))
        except ValueError as error:
            why = error.message if isinstance(error, BurnstoreError) else error
            raise CorruptError(
                f"not a job: {why}",
                hint="write one with burnstore convert SRC DST --plan JOB, "
                "or burnstore.convert(source, target, plan=job)",
            ) from error


class _Target(TypedDict):
    path: str
    format: str
    layout: str | None
    source_layout: str | None
    max_shard_size: int | None
    metadata: dict[str, str]
    options: dict[str, Any]
    overwrite: bool
    durable: bool
    verify: bool
    allow_empty: bool


class JobDocument(TypedDict):
    """The JSON document of a job."""

    burnstore: str
    job: Literal[1]
    id: str
    sources: list[JobSource]
    target: _Target
    left_out: dict[str, str]
    tensors: list[MoveFields]
    units: list[tuple[int, int]]


def _job(document: JobDocument) -> Job:
    target, units = document["target"], document["units"]
    tensors = [{**move_of(each), "dtype": each["dtype"], "shape": each["shape"]} for each in document["tensors"]]
    for each in tensors:
        check_move(each, each["shape"])
    check_counts(target["max_shard_size"] or 0, *(number for unit in units for number in unit))
    if [first for first, _ in units] != _starts(units) or sum(count for _, count in units) != len(tensors):
        raise ValueError("its units are not all tensors, each once")
    if not document["id"].isalnum():
        raise ValueError("the id is no word")
    check_layout(target["layout"])
    check_layout(target["source_layout"])
    files = [tuple(replace(file, path=as_path(file.path)) for file in each.files) for each in document["sources"]]
    sources = zip(document["sources"], files, strict=True)
    return Job(
        id=document["id"],
        sources=tuple(replace(each, path=as_path(each.path), files=own) for each, own in sources),
        target=as_path(target["path"]),
        left_out=document["left_out"],
        tensors=tuple(tensors),
        units=tuple(units),
        **{name: target[name] for name in _OF_TARGET if name != "path"},  # type: ignore[literal-required]
    )


def _starts(units: Sequence[tuple[int, int]]) -> list[int]:
    starts, at = [], 0
    for _, count in units:
        starts.append(at)
        at += count
    return starts
