"""Do a share of a job, and finish it.

    convert(source, target, plan="job.json")     compile: nothing is written but the job
    run_part("job.json", 3, 64)                  a share: any order, any machine, twice is harmless
    finish_job("job.json")                       put the units together, prove the result and publish it
    run_job(client, "job.json")                  all of that with a cluster of Dask or Ray

A unit that is done is a file or object beside the target, written whole or not at all and compared with its source. If
its tensors are computed, a small document follows it, with the tensors in which a cast made values 0: this is known
only where they are computed, and `finish_job` notes it. A share that was lost is done again by calling it again: units
that are there are not made a second time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

from ...checkpoint import Checkpoint
from ...errors import CorruptError, MissingDependencyError, ReadError, located
from ...formats.base import Format, WriteOptions, WritePlan, loss_notes
from ...formats.registry import format_named
from ...io.atomic import atomic_file, remove_empty_folder, remove_files, stale_scratch_files
from ...io.documents import read_json
from ...io.opening import open_source, read_whole
from ...io.paths import as_path, base_name, exists, is_remote, size_of
from ...io.workers import Executor, Workers, run_tasks
from ...limits import Limits
from ...pipeline.compile import underflow_notes
from ...pipeline.ends import input_of_file
from ...pipeline.options import layout_named
from ...pipeline.plan import Plan, moves_from_json
from ...pipeline.ties import ties_of
from ...pipeline.write import FileWriter, assemble, held_in
from ...progress import Advance, ProgressLike, progress_from
from ...tensor.snapshot import TensorSnapshot
from ...tensor.sources import SourceData
from .job import BOUNDS, Job, is_ray, read_job, read_job_bytes
from .result import ConvertResult, opened_files, scalar_options

Path = str | os.PathLike[str]

_MOST_GROWTH = 64  # A cast makes a tensor at most that many times larger.
_SMALL = 64 << 20


@dataclass(frozen=True, slots=True)
class PartResult:
    """What a share did: the numbers of the units that it made, and of those that were there already."""

    done: tuple[int, ...]
    already: tuple[int, ...]
    units: int
    """The units of the whole job."""


def run_part(
    job: Path | bytes,
    part: int,
    of: int,
    *,
    storage_options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
) -> PartResult:
    """Do share ``part`` of ``of`` (counted from 1) of a job; every ``of``-th unit belongs to it.

    Units that are done already are left alone, so the call may be repeated, and shares may overlap. Raises CorruptError
    if a source was changed after the job was planned.
    """
    if not 1 <= part <= of:
        raise ValueError(f"expected a part from 1 to {of}, got {part}")
    stated = _stated(job, storage_options)
    mine = range(part - 1, len(stated.units), of)
    with _reopened(stated, limits) as (snapshots, _, _, _), progress_from(progress) as report:
        if not is_remote(stated.target):
            os.makedirs(stated.stage, exist_ok=True)
        sizes = {number: _unit_bytes(stated, number, snapshots) for number in mine}
        advance = Advance(report, sum(sizes.values()))
        done: list[int] = []
        already: list[int] = []
        for number, nbytes in sizes.items():
            if _is_made(stated, number, snapshots, nbytes):
                already.append(number)
            else:
                _make_unit(stated, number, snapshots, nbytes)
                done.append(number)
            advance(nbytes)
        return PartResult(tuple(done), tuple(already), len(stated.units))


def finish_job(
    job: Path | bytes,
    *,
    storage_options: Mapping[str, Any] | None = None,
    executor: Workers = None,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
) -> ConvertResult:
    """Put the units of a job together into its target, prove it, publish it, and remove the units.

    The target has the bytes that `convert` would have written. ReadError if a unit is missing; the target is then
    unchanged.
    """
    stated = _stated(job, storage_options)
    with _reopened(stated, limits) as (snapshots, sources, plan, chosen), ExitStack() as opened:
        units = []
        zeroed: set[str] = set()
        for number in range(len(stated.units)):
            units.append(_opened_unit(stated, number, _unit_bytes(stated, number, snapshots)))
            opened.callback(units[-1].close)
            if _is_computed(stated, number, snapshots):
                zeroed.update(_zeroed(stated, number))
        staged: list[TensorSnapshot] = []
        for unit, (first, count) in zip(units, stated.units, strict=True):
            staged += held_in(unit, snapshots[first : first + count])
        plan.check_not_empty(allow_empty=stated.allow_empty, path=stated.target)
        inputs = [input_of_file(file) for file in sources]
        options = {**scalar_options(inputs, chosen, plan, stated.options), **stated.options}
        ties = ties_of(plan, snapshots, chosen, stated.metadata)
        with progress_from(progress) as report:
            how = WriteOptions(
                overwrite=stated.overwrite,
                durable=stated.durable,
                verify=stated.verify,
                max_shard_size=stated.max_shard_size,
                resume=False,
                workers=executor,
                limits=limits,
                progress=report,
                format_options=options,
            )
            written = assemble(staged, stated.target, chosen, how, metadata=stated.metadata, ties=ties)
        plan.notes += underflow_notes((), zeroed)
        plan.notes += loss_notes(chosen, snapshots, options)
        nbytes = sum(each.nbytes for each in snapshots if each.path not in ties)
    remove_job_files(stated)
    return ConvertResult(
        len(snapshots),
        nbytes,
        plan.source_layout,
        plan.layout,
        stated.verify,
        plan.notes,
        written.files,
        left_out=dict(stated.left_out),
    )


def run_job(
    executor: Any,
    job: Path | bytes,
    *,
    parts: int = 64,
    attempts: int = 3,
    storage_options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
) -> ConvertResult:
    """Do all shares of a job with a cluster, at most ``parts`` of them, and finish it here.

    ``executor`` is a client of Dask, the module `ray` or ``"ray"``, or any object with ``submit``. Workers get the job
    itself and reach its files as this process does: with ``storage_options``, or by their own environment. A share
    whose worker was lost is done again, up to ``attempts`` times; an error of burnstore ends the job.
    """
    document = job if isinstance(job, bytes) else read_job_bytes(as_path(job, storage_options))
    parts = max(min(parts, len(read_job(document).units)), 1)
    share = partial(_share, document, parts, storage_options)
    with progress_from(progress) as report:
        advance = Advance(report, parts)
        for _ in run_tasks(share, range(1, parts + 1), _cluster(executor), attempts=attempts):
            advance(1)
    return finish_job(document, storage_options=storage_options, limits=limits)


def _share(document: bytes, parts: int, storage_options: Mapping[str, Any] | None, part: int) -> None:
    run_part(document, part, parts, storage_options=storage_options)


def _cluster(executor: Any) -> Executor:
    """Return what starts calls on a cluster."""
    if not is_ray(executor):
        if executor is None or not hasattr(executor, "submit"):
            raise TypeError(f'expected "ray", a client of Dask or an executor, got {type(executor).__name__}')
        return executor  # type: ignore[no-any-return]
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]  # with ray or without
    except ImportError:
        raise MissingDependencyError(
            "this executor needs the package ray", hint="pip install 'burnstore[ray]'"
        ) from None
    return _Ray(ray)


class _Ray:
    """Ray as an executor."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._call = ray.remote(max_retries=0)(_call)  # `run_tasks` starts what was lost again

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> _RayFuture:
        return _RayFuture(self._ray, self._call.remote(function, *arguments))


@dataclass(frozen=True, slots=True)
class _RayFuture:
    """A call of Ray with the methods of a future."""

    ray: Any
    reference: Any

    def result(self) -> Any:
        try:
            return self.ray.get(self.reference)
        except self.ray.exceptions.RayTaskError as error:
            failure = error.cause
        raise failure  # the error of the call, without the text of the worker's traceback

    def cancel(self) -> None:
        self.ray.cancel(self.reference)

    def cancelled(self) -> bool:
        return True  # after `cancel` there is nothing to wait for


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def remove_job_files(job: Job) -> None:
    """Remove the units of a job."""
    numbers = range(len(job.units))
    names = [base_name(path(number)) for number in numbers for path in (job.unit_path, job.zeroed_path)]
    if not is_remote(job.stage):  # what killed processes left
        names += [base_name(path) for path in stale_scratch_files(job.stage, older_than=0)]
    remove_files(job.stage, names)
    remove_empty_folder(job.stage)


def _stated(job: Path | bytes, storage_options: Mapping[str, Any] | None) -> Job:
    given = job if isinstance(job, bytes) else as_path(job, storage_options)
    return _with_options(read_job(given), storage_options)


def _with_options(job: Job, storage_options: Mapping[str, Any] | None) -> Job:
    """Return the job with the options to reach its files."""
    if not storage_options:
        return job
    sources = tuple(
        replace(
            source,
            path=as_path(source.path, storage_options),
            files=tuple(replace(file, path=as_path(file.path, storage_options)) for file in source.files),
        )
        for source in job.sources
    )
    return replace(job, sources=sources, target=as_path(job.target, storage_options))


@contextmanager
def _reopened(job: Job, limits: Limits | None) -> Iterator[tuple[list[TensorSnapshot], list[Checkpoint], Plan, Format]]:
    """Open the sources of a job; yield its tensors, the open files, the plan and the format."""
    for source in job.sources:
        for file in source.files:
            file.check()
    paths = [source.path for source in job.sources]
    with opened_files(paths, limits, [source.top_level_key for source in job.sources]) as sources:
        inputs = [input_of_file(file) for file in sources]
        tensors = [
            {**file, **{each.path: each for each in own.snapshots}} for file, own in zip(sources, inputs, strict=True)
        ]
        plan = Plan(
            layout=None if job.layout is None else layout_named(job.layout),
            source_layout=None if job.source_layout is None else layout_named(job.source_layout),
        )
        given = [{name: each[name] for name in ("name", "from", "operations")} for each in job.tensors]
        most = max(_MOST_GROWTH * sum(source.nbytes for source in sources), _SMALL)
        plan.moves = list(moves_from_json(given, tensors, most_filled=most))
        for each, move in zip(job.tensors, plan.moves, strict=True):
            if (str(move.snapshot.dtype), list(move.snapshot.shape)) != (each["dtype"], each["shape"]):
                raise CorruptError("the job states another dtype or shape than its moves give", tensor=each["name"])
        yield [move.snapshot for move in plan.moves], sources, plan, format_named(job.format)


def _unit_bytes(job: Job, number: int, snapshots: list[TensorSnapshot]) -> int:
    first, count = job.units[number]
    return sum(each.nbytes for each in snapshots[first : first + count])


def _is_computed(job: Job, number: int, snapshots: list[TensorSnapshot]) -> bool:
    first, count = job.units[number]
    return any(type(each._data) is not SourceData for each in snapshots[first : first + count])


def _is_made(job: Job, number: int, snapshots: list[TensorSnapshot], nbytes: int) -> bool:
    path = job.unit_path(number)
    is_whole = exists(path) and size_of(path) == nbytes
    return is_whole and (not _is_computed(job, number, snapshots) or exists(job.zeroed_path(number)))


def _make_unit(job: Job, number: int, snapshots: list[TensorSnapshot], nbytes: int) -> None:
    """Write the bytes of a unit's tensors one after the other, and compare them with the sources."""
    first, count = job.units[number]
    mine = snapshots[first : first + count]
    offsets = list(accumulate((each.nbytes for each in mine), initial=0))[:-1]
    writer = FileWriter(WriteOptions(durable=job.durable, verify=job.verify))
    writer.write(WritePlan(b"", mine, offsets, nbytes), job.unit_path(number), overwrite=True, progress=None)
    if _is_computed(job, number, snapshots):  # Last: a unit without it is made again.
        document = json.dumps(sorted(writer.underflowed)).encode()
        with atomic_file(job.zeroed_path(number), overwrite=True, durable=job.durable, size=len(document)) as scratch:
            scratch.write(document)


def _zeroed(job: Job, number: int) -> list[str]:
    """Return the tensors of a unit in which a cast made values 0."""
    path = job.zeroed_path(number)
    try:
        with located(path=path):
            names: list[str] = read_json(read_whole(path, BOUNDS.nbytes), BOUNDS, into=list[str])
    except FileNotFoundError:
        raise ReadError("a unit of the job is missing", path=path, hint=_not_done(job, number)) from None
    return names


def _not_done(job: Job, number: int) -> str:
    return f"run the parts of the job first; unit {number + 1} of {len(job.units)} is not done"


def _opened_unit(job: Job, number: int, nbytes: int) -> Any:
    path = job.unit_path(number)
    hint = _not_done(job, number)
    try:
        source = open_source(path)
    except FileNotFoundError:
        raise ReadError("a unit of the job is missing", path=path, hint=hint) from None
    if source.size != nbytes:
        source.close()
        raise ReadError(f"expected a unit of {nbytes} bytes, found {source.size}", path=path, hint=hint)
    return source
