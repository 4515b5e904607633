"""Report: everything that a page tells of a file, or of two, as data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import BurnstoreError, SaveError, located
from ...io.atomic import atomic_file
from ...io.workers import Workers
from ...limits import Limits
from ...progress import Progress, ProgressLike, progress_from
from ..diff.diff import diff
from ..diff.result import Diff
from ..inspect.inspect import Inspection, inspect_checkpoint
from .columns import details, overview
from .evidence import layout_evidence
from .page import page
from .profile import Profile, all_profiles

File = str | os.PathLike[str] | bytes | bytearray | memoryview
Outcome = tuple[Profile | None, str | None]
"""The profile of a tensor, or why it has none; neither where it was not asked for."""


@dataclass(frozen=True, slots=True)
class ReportedFile:
    """A file as a page shows it: what it holds, what speaks for its layout, and what each tensor is like."""

    inspection: Inspection
    evidence: Sequence[str]
    notes: Sequence[str]
    outcomes: Sequence[Outcome] = field(repr=False)
    places: Sequence[str] = field(repr=False)
    """The name of the file in which each tensor lies: another for each shard."""

    @property
    def unsound(self) -> int:
        """How many tensors have a NaN, an infinity, or values that cannot be had."""
        return sum(
            problem is not None or (profile is not None and not profile.stats.is_finite)
            for profile, problem in self.outcomes
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for strict JSON."""
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
class Report:
    """What there is to see of a file of tensors, or of two and their differences.

    ``html`` is one page that needs nothing else, `save` writes it.
    """

    files: tuple[ReportedFile, ...]
    with_stats: bool
    diff: Diff | None = None
    """What became of each tensor from the first file to the second, where there are two."""

    @property
    def found(self) -> bool:
        """Whether there is something to look into: a NaN, an infinity, unreadable values, a difference."""
        return any(file.unsound for file in self.files) or (self.diff is not None and not self.diff.is_equal)

    @property
    def html(self) -> str:
        """The page."""
        names = [os.path.basename(file.inspection.path) for file in self.files]
        return page(f"{' → '.join(names)} · burnstore report", overview(self), details(self))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the page: all or nothing, as every save. Raises AlreadyExistsError unless ``overwrite``."""
        text = self.html.encode()
        with atomic_file(path, overwrite=overwrite, size=len(text)) as scratch:
            scratch.write(text)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        changes = "" if self.diff is None else self.diff._repr_html_()
        return changes + "".join(file.inspection._repr_html_() for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data for strict JSON."""
        compared = None if self.diff is None else self.diff.to_dict()
        return {"files": [file.to_dict() for file in self.files], "diff": compared}


def report(
    file: File,
    other: File | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    stats: bool = True,
    limits: Limits | None = None,
    executor: Workers = None,
    progress: ProgressLike | None = None,
    **options: Any,
) -> Report:
    """Look through a file, or through two and their differences, for a page to look at in a browser.

    Every tensor is read a part at a time, and several side by side; without ``stats`` only headers are read, unless
    there are two files to compare. ``executor`` is who does that (threads by default), ``progress`` is told of bytes. A
    tensor whose values are broken or cannot be shown has a problem instead of figures. Further options, such as
    ``tolerance`` or ``like``, are those of `burnstore.diff`.

    The page is written to ``output``, all or nothing, if that is given; whether it can be is known before the work.
    Errors are those of `burnstore.open`, `burnstore.diff` and `Report.save`.

    >>> import os, tempfile
    >>> import numpy as np, burnstore as bs
    >>> packed = bs.serialize({"layer.weight": np.eye(4, dtype=np.float32)}, format="burnpack")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = bs.report(packed, output=os.path.join(folder, "report.html"))
    >>> found.found, found.html[:15]
    (False, '<!DOCTYPE html>')
    """
    if not isinstance(stats, bool):
        raise TypeError(f"stats is a bool, not {type(stats).__name__}")
    if options and other is None:
        raise TypeError(f"{next(iter(options))} is an option for two files, and there is only one")
    sources = [each for each in (file, other) if each is not None]
    with ExitStack() as held:
        checkpoints = [held.enter_context(open_checkpoint(each, limits=limits)) for each in sources]
        scratch = None
        if output is not None:
            _check_apart(output, checkpoints)
            scratch = held.enter_context(atomic_file(output, overwrite=overwrite))
        with progress_from(progress) as tell:
            compared = diff(*checkpoints, executor=executor, progress=tell, **options) if other is not None else None
            files = _profiled_files(checkpoints, tell, executor) if stats else map(_described, checkpoints)
            found = Report(tuple(files), stats, compared)
        if scratch is not None:
            scratch.write(found.html.encode())
    return found


def _check_apart(output: str | os.PathLike[str], checkpoints: Sequence[Checkpoint]) -> None:
    if any(_is_same_file(output, checkpoint.path) for checkpoint in checkpoints):
        raise SaveError(
            "the page would replace the file that it tells of",
            stage="check",
            path=os.fsdecode(output),
            hint="give it another name",
        )


def _is_same_file(path: str | os.PathLike[str], other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):  # what is not there yet, or is no path, is not the same
        return False


def _profiled_files(
    checkpoints: Sequence[Checkpoint], tell: Progress | None, workers: Workers
) -> Iterator[ReportedFile]:
    before, total = 0, sum(checkpoint.nbytes for checkpoint in checkpoints)
    for checkpoint in checkpoints:
        told = None if tell is None else (lambda done, _, before=before: tell(before + done, total))
        with located(path=checkpoint.path):
            profiles = all_profiles(list(checkpoint.values()), workers=workers, progress=told)
        yield replace(_described(checkpoint), outcomes=list(map(_outcome, profiles)))
        before += checkpoint.nbytes


def _outcome(found: Profile | BurnstoreError) -> Outcome:
    return (None, found.message) if isinstance(found, BurnstoreError) else (found, None)


def _described(checkpoint: Checkpoint) -> ReportedFile:
    """What the header says."""
    return ReportedFile(
        inspect_checkpoint(checkpoint),
        layout_evidence(checkpoint),
        tuple(checkpoint.notes),
        [(None, None)] * len(checkpoint),
        [os.path.basename(checkpoint.file_of(name)) for name in checkpoint],
    )
