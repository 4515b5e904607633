"""Report on a file of tensors, or on two and their differences: as data, and as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from ... import __version__
from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import BurnstoreError, entry_point, located
from ...io.atomic import atomic_file
from ...io.paths import as_path, base_name, is_path, is_remote, with_options
from ...io.workers import Workers
from ...limits import Limits, check_options
from ...pipeline.ends import UNKNOWN_LAYOUT, layout_evidence
from ...pipeline.kinds import MODULES_KEY
from ...pipeline.model_tensors import ModelTensors
from ...pipeline.options import FilterLike, Pipeline, RenameLike, RulesLike
from ...pipeline.write import check_apart, files_read
from ...progress import Progress, ProgressLike, progress_from
from ...tensor.note import Note
from ...tensor.plain import json_number
from ...tensor.tabular import Result
from ..diff.diff import diff
from ..diff.result import Diff
from ..inspect.inspect import Inspection, inspect
from .image import Image, image_of
from .page import page
from .profile import Profile, all_profiles

Outcome = tuple[Profile | None, str | None]
"""The profile of a tensor, or the reason why it has none; neither if no statistics were asked for."""

_IMAGE_SIDE, _SMALL_IMAGE_SIDE = 48, 16
_MANY_TENSORS = 1000  # whose images together would make the page large


@dataclass(frozen=True, slots=True)
class ReportedFile:
    """One file of a report: its contents, the evidence for its layout, and the profile of each tensor."""

    inspection: Inspection
    evidence: Sequence[str]
    notes: Sequence[Note]
    outcomes: Sequence[Outcome] = field(repr=False)
    places: Sequence[str] = field(repr=False)
    """The file name of each tensor: the shard that contains it."""
    images: Sequence[Image | None] = field(default=(), repr=False)
    """A small grid of the values of each tensor, if they were read."""

    @property
    def unsound(self) -> int:
        """How many tensors have a NaN, an infinity, or values that cannot be read."""
        return sum(
            problem is not None or (profile is not None and not profile.stats.is_finite)
            for profile, problem in self.outcomes
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for strict JSON."""
        facts = self.inspection.to_dict()
        for tensor, (profile, problem) in zip(facts["tensors"], self.outcomes, strict=True):
            tensor["problem"] = problem
            if profile is not None:
                tensor["stats"] = profile.stats.to_dict()
                histogram = profile.histogram
                tensor["histogram"] = None if histogram is None else histogram.to_dict()
                tensor["outliers"] = [outlier.to_dict() for outlier in profile.outliers]
        return {**facts, "layout_evidence": list(self.evidence), "notes": list(self.notes)}


@dataclass(frozen=True, slots=True)
class Report(Result):
    """A report on a file of tensors, or on two and their differences.

    ``html`` is one page without external files; `save` writes it.
    """

    files: tuple[ReportedFile, ...]
    with_stats: bool
    diff: Diff | None = None
    """The differences between the first file and the second, if there are two."""

    allow_empty: bool = False
    """Whether a file without tensors needs no attention."""

    _read: tuple[str, ...] = field(default=(), repr=False)
    """The files that were read, which `save` must not replace."""

    @property
    def found(self) -> bool:
        """Whether something needs attention: a NaN, an infinity, unreadable values, a difference, a file of nothing."""
        if not self.allow_empty and not all(file.inspection.total.tensors for file in self.files):
            return True
        return any(file.unsound for file in self.files) or (self.diff is not None and not self.diff.is_equal)

    @property
    def ok(self) -> bool:
        """Whether nothing needs attention."""
        return not self.found

    @property
    def html(self) -> str:
        """The page."""
        names = [base_name(file.inspection.path) for file in self.files]
        details = (
            _page_details(profile, image)
            for file in self.files
            for (profile, _), image in zip_longest(file.outcomes, file.images)
        )
        return page(f"{' → '.join(names)} · burnstore report", _page_overview(self), details)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the page atomically. Raises AlreadyExistsError unless ``overwrite``; never replaces a reported file."""
        check_apart(self._read, as_path(path))
        text = self.html.encode()
        with atomic_file(path, overwrite=overwrite, size=len(text)) as scratch:
            scratch.write(text)

    def _repr_html_(self) -> str:
        """Return HTML for a notebook."""
        changes = "" if self.diff is None else self.diff._repr_html_()
        return changes + "".join(file.inspection._repr_html_() for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for strict JSON."""
        compared = None if self.diff is None else self.diff.to_dict()
        return {"ok": self.ok, "files": [file.to_dict() for file in self.files], "diff": compared}


@entry_point("report")
def report(
    file: Any,
    other: Any = None,
    *,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    stats: bool = True,
    allow_empty: bool = False,
    top_level_key: str | None = None,
    limits: Limits | None = None,
    executor: Workers = None,
    progress: ProgressLike | None = None,
    tolerance: float | None = None,
    relative_tolerance: float | None = None,
    ignore_dtype: bool = False,
    filter: FilterLike | None = None,
    rename: RenameLike | None = None,
    layout: str | None = None,
    like: Any = None,
    rules: RulesLike | None = None,
    guess: bool = False,
    keep_layout: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    pipeline: Pipeline | None = None,
) -> Report:
    """Report on a file or a model, or on two and their differences, as data and as a page for a browser.

    Every tensor is read in parts; ``stats=False`` reads only headers, unless two files are compared. ``executor`` is
    None for threads, a number of processes, or an executor like those of ``concurrent.futures``; ``progress`` is called
    with bytes. A tensor whose values cannot be read has a problem instead of statistics. The options from
    ``tolerance`` on are those of `burnstore.diff`, for two files. A file without tensors needs attention (``found``),
    unless ``allow_empty=True``.

    A model, as `save` takes it, has the same tensors here as there, and its notes have what `save` would leave out.

    If ``output`` is given, the page is written there atomically; whether that is possible is checked before the work.
    Errors are those of `burnstore.open`, `burnstore.diff` and `Report.save`.

    >>> import os, tempfile
    >>> import numpy as np, burnstore as bs
    >>> packed = bs.serialize({"layer.weight": np.eye(4, dtype=np.float32)}, format="burnpack")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = bs.report(packed, output=os.path.join(folder, "report.html"))
    >>> found.found, found.html[:15]
    (False, '<!DOCTYPE html>')
    """
    check_options(
        limits=limits,
        overwrite=overwrite,
        stats=stats,
        allow_empty=allow_empty,
        ignore_dtype=ignore_dtype,
        guess=guess,
        keep_layout=keep_layout,
    )
    compared_by = {
        "tolerance": tolerance,
        "relative_tolerance": relative_tolerance,
        "ignore_dtype": ignore_dtype or None,
        "filter": filter,
        "rename": rename,
        "layout": layout,
        "like": like,
        "rules": rules,
        "guess": guess or None,
        "keep_layout": keep_layout or None,
        "pipeline": pipeline,
    }
    options = {name: value for name, value in compared_by.items() if value is not None}
    if options and other is None:
        raise TypeError(f"{next(iter(options))} is an option for two files, got one file")
    file, other, output = with_options(storage_options, file, other, output)
    sources = [file] if other is None else [file, other]
    with ExitStack() as held:
        checkpoints: list[Checkpoint] = [
            held.enter_context(
                open_checkpoint(each, limits=limits, top_level_key=top_level_key)
                if is_path(each) or isinstance(each, (bytes, bytearray, memoryview, Checkpoint))
                else ModelTensors(each, allow_empty=allow_empty)
            )
            for each in sources
        ]
        scratch = None
        if output is not None:
            check_apart([*checkpoints, *options.values()], as_path(output))
            scratch = held.enter_context(atomic_file(output, overwrite=overwrite))
        with progress_from(progress) as advance:
            if other is not None:
                options = {**options, **({"allow_empty": True} if allow_empty else {})}
            # A model also has the kinds of its modules, which its tensors alone do not have.
            sides = [
                given if isinstance(each, ModelTensors) else each
                for given, each in zip(sources, checkpoints, strict=True)
            ]
            compared = diff(*sides, executor=executor, progress=advance, **options) if other is not None else None
            files = _profile_files(checkpoints, advance, executor) if stats else map(_describe, checkpoints)
            read = (*(file.name for each in checkpoints for file in files_read(each)), *_paths_in(like, rules))
            found = Report(
                tuple(files),
                stats,
                compared,
                allow_empty,
                tuple(each if is_remote(each) else os.path.abspath(each) for each in read),
            )
        if scratch is not None:
            scratch.write(found.html.encode())
    return found


def _paths_in(*options: Any) -> list[str]:
    """Return the options that are files: ``like`` and ``rules`` may be."""
    return [as_path(each) for each in options if isinstance(each, (str, os.PathLike))]


def _profile_files(
    checkpoints: Sequence[Checkpoint], advance: Progress | None, workers: Workers
) -> Iterator[ReportedFile]:
    before, total = 0, sum(checkpoint.nbytes for checkpoint in checkpoints)
    for checkpoint in checkpoints:
        shifted = None if advance is None else (lambda done, _, before=before: advance(before + done, total))
        with located(path=checkpoint.path):
            profiles = all_profiles(list(checkpoint.values()), workers=workers, progress=shifted)
        outcomes = [(None, each.message) if isinstance(each, BurnstoreError) else (each, None) for each in profiles]
        most = _IMAGE_SIDE if len(checkpoint) <= _MANY_TENSORS else _SMALL_IMAGE_SIDE
        images = [image_of(each, most) for each in checkpoint.values()]
        yield replace(_describe(checkpoint), outcomes=outcomes, images=images)
        before += checkpoint.nbytes


def _describe(checkpoint: Checkpoint) -> ReportedFile:
    """Return what the header contains."""
    return ReportedFile(
        inspect(checkpoint),
        _evidence(checkpoint),
        tuple(checkpoint.notes),
        [(None, None)] * len(checkpoint),
        [base_name(checkpoint.file_of(name)) for name in checkpoint],
    )


def _evidence(checkpoint: Checkpoint) -> list[str]:
    found = [layout_evidence(checkpoint, None) or UNKNOWN_LAYOUT]
    return (
        [*found, f"the metadata records the module kinds ({MODULES_KEY})"]
        if MODULES_KEY in checkpoint.metadata
        else found
    )


# --- the data of the page ---------------------------------------------------------------------------------------------
# Tensors are columns, because the script builds its rows itself. Histograms and outliers, most of the data, are
# separate lines, one per tensor: the script parses a line when its tensor comes into view.


def _page_overview(report: Report) -> dict[str, Any]:
    """Return the data that the page shows first."""
    return {
        "burnstore": __version__,
        "stats": report.with_stats,
        "files": [_file_columns(file) for file in report.files],
        "diff": None if report.diff is None else _diff_columns(report.diff, report.files),
    }


def _file_columns(file: ReportedFile) -> dict[str, Any]:
    facts = file.inspection.to_dict()
    tensors = facts.pop("tensors")
    profiles = [profile for profile, _ in file.outcomes]
    stats = [{} if profile is None else profile.stats.to_dict() for profile in profiles]
    keys = {"min": "min", "max": "max", "mean": "mean", "std": "std"}
    keys |= {"nan": "nan_count", "inf": "inf_count", "zeros": "zero_count"}
    facts["evidence"], facts["notes"] = list(file.evidence), list(file.notes)
    facts["tensors"] = {
        **{key: [tensor[key] for tensor in tensors] for key in ("name", "shape", "elements", "nbytes", "offset")},
        "dtype": [tensor["quantization"] or tensor["dtype"] for tensor in tensors],
        "param_id": [tensor["param_id"] and tensor["param_id"]["text"] for tensor in tensors],
        "file": list(file.places) if len(set(file.places)) > 1 else [None] * len(tensors),
        "problem": [problem for _, problem in file.outcomes],
        **{short: [each.get(key) for each in stats] for short, key in keys.items()},
        "z": [round(abs(p.outliers[0].z), 3) if p is not None and p.outliers else None for p in profiles],
    }
    return facts


def _diff_columns(diff: Diff, files: Sequence[ReportedFile]) -> dict[str, Any]:
    """Return the status of each tensor; ``before`` and ``after`` are its rows among the tensors of each file.

    A row is None where the files have different layouts and the tensor was split or renamed to be compared.
    """
    before, after = ({row.name: at for at, row in enumerate(file.inspection.tensors)} for file in files)
    facts = diff.to_dict()
    rows = []
    for tensor in facts.pop("tensors"):
        difference = tensor.pop("difference") or {}
        rows.append(
            {
                **tensor,
                "before": before.get(tensor["name"]),
                "after": after.get(tensor["new_name"]),
                **{key: difference.get(key) for key in ("differing", "max_abs", "max_ulp", "rel_l2", "cosine")},
            }
        )
    facts["tensors"] = {key: [row[key] for row in rows] for key in rows[0]} if rows else {"status": []}
    return facts


def _page_details(profile: Profile | None, image: Image | None) -> list[Any]:
    """Return ``[histogram, outliers, image]`` of a tensor."""
    if profile is None:
        return [None, [], None]
    histogram, outliers = profile.histogram, profile.outliers
    return [
        None if histogram is None else [histogram.first, histogram.exponent, histogram.counts],
        [[outlier.index, json_number(outlier.value), round(outlier.z, 3)] for outlier in outliers],
        None if image is None else image.to_list(),
    ]
