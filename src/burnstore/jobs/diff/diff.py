"""Compare two files, models or mappings tensor by tensor, and measure how much they differ.

    equal           the same name, dtype, shape and bytes
    close           bytes differ, every value is within the given tolerance
    moved           the same dtype, shape and bytes under another name, among the added and removed tensors
    changed         the same dtype and shape, other bytes
    dtype changed   the same shape, another dtype; the difference shows whether the values are equal
    shape changed   another shape
    added, removed  only in the second, only in the first

Bytes are compared first, at reading speed; differences are measured only where bytes differ. Workers share large
tensors in pieces; a few megabytes of each are in memory, unless a tensor must be made whole (a transposed matrix).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import BurnstoreError, counted, entry_point, printable
from ...io.paths import with_options
from ...io.workers import Workers, checked_workers
from ...limits import Limits, check_options
from ...models.bindings import digests_of_left_out
from ...models.plain import NOT_PERSISTENT
from ...pipeline.align import Aligned, align, opened_inputs
from ...pipeline.ends import Input
from ...pipeline.options import FilterLike, Pipeline, RenameLike, RulesLike, pipeline_of, refuse_unused
from ...progress import Advance, ProgressLike, progress_from
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.note import Note
from ...tensor.snapshot import TensorSnapshot
from .compare import Comparison, Pair, pieces_of
from .difference import Difference, Tolerance
from .result import Diff, Status, TensorDiff


@entry_point("diff")
def diff(
    a: Any,
    b: Any,
    *,
    tolerance: float | None = None,
    relative_tolerance: float | None = None,
    filter: FilterLike | None = None,
    rename: RenameLike | None = None,
    ignore_dtype: bool = False,
    layout: str | None = None,
    like: Any = None,
    rules: RulesLike | None = None,
    guess: bool = False,
    keep_layout: bool = False,
    allow_empty: bool = False,
    top_level_key: str | None = None,
    executor: Workers = None,
    progress: ProgressLike | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
    pipeline: Pipeline | None = None,
) -> Diff:
    """Compare two files (of any formats), open checkpoints, models, mappings of arrays or lists of snapshots.

    If one side has PyTorch's layout and the other Burn's, both are compared in Burn's. The module kinds must then come
    from the record in a file, from ``like`` (a model of either layout, or a file that records its modules) or from
    ``rules`` (a pattern that matches in a module's path → kind), or with ``guess=True`` from names and shapes, if they
    are unambiguous. ``keep_layout=True`` compares the tensors unchanged. ``layout`` is that of a side that does not
    state its own. ``filter`` keeps the tensors that match by the names under which they are compared.
    Without any tensor to compare the two are not equal, unless ``allow_empty=True``.
    ``top_level_key`` is the part of both files, see `burnstore.open`.

    With a ``tolerance`` (absolute) or a ``relative_tolerance``, tensors whose values are all within one of the two are
    close, and count as equal. ``ignore_dtype=True`` counts tensors of different dtypes as equal if their values are.
    `burnstore.jobs.diff.difference` defines the figures, and how NaN and zeros are compared.

    ``executor`` is None for threads, a number of processes, or an executor like those of ``concurrent.futures``; the
    last two accept only files. Raises ModelError if module kinds are needed and unknown, and the errors of opening and
    reading files.

    >>> import numpy as np, burnstore as bs
    >>> old = {"a": np.zeros(3), "b": np.float32([1, 2]), "c": np.ones(2)}
    >>> new = {"a": np.zeros(3), "b": np.float32([1, 2.5]), "d": np.ones(2)}
    >>> found = bs.diff(old, new)
    >>> print(found)
    3 tensors: 1 equal, 1 moved, 1 changed
    changed: b: 1 of 2 values, by at most 0.5 (2097152 ulp) at [1]: 2 -> 2.5; relative L2 0.224, cosine 0.996546
    moved: c -> d
    >>> found.is_equal, found.changed[0].difference.max_abs
    (False, 0.5)
    """
    allowed = _tolerance(tolerance, relative_tolerance)
    checked_workers(executor)
    check_options(limits=limits, ignore_dtype=ignore_dtype)
    chosen = pipeline_of(
        pipeline,
        filter=filter,
        rename=rename,
        layout=layout,
        rules=rules,
        guess=guess,
        keep_layout=keep_layout,
        allow_empty=allow_empty,
    )
    a, b, like = with_options(storage_options, a, b, like)
    refuse_unused(chosen, "diff", "adapter", "cast", "part", "target_layout", "strict")
    with opened_inputs(a, b, limits, top_level_key) as (first, second), progress_from(progress) as report:
        tensors = align(first, second, chosen, like)
        work = _Work(tensors, allowed, ignore_dtype)
        found = work.run(Comparison([*work.pairs, *work.apart], executor, Advance(report, work.nbytes)))
        notes = [*tensors.notes, *_notes_on_ids(work.pairs)]
        sides = [first] if first.snapshots is second.snapshots else [first, second]
        read_notes = [(side.name, note) for side in sides for note in side.notes]
        hidden = list(_left_out(first, second)) if len(sides) == 2 else []
        if len(sides) == 2 and all(entry.status in ("equal", "close") for entry in found) and not top_level_key:
            hidden += _other_parts(a, b, first, second, limits)
        return Diff(
            first.name,
            second.name,
            tensors.layout,
            allowed,
            tuple(found),
            _differing(first.metadata, second.metadata),
            _differing(first.scalars, second.scalars),
            (
                *notes,
                *(note.about(name) for name, note in read_notes if note.kind != "left out"),
                *(note for note in hidden if note.kind != "left out"),
            ),
            (
                *([] if found or chosen.allow_empty else [_nothing(chosen)]),
                *(note.about(name) for name, note in read_notes if note.kind == "left out" and len(sides) == 2),
                *(note for note in hidden if note.kind == "left out"),
            ),
        )


def _left_out(first: Input, second: Input) -> Iterator[Note]:
    """Yield notes about numbers of models that are no tensors of theirs, unless both sides have the same.

    Buffers that are not persistent are in no file: where the other side is one, they are only noted.
    """
    if not first.left_out and not second.left_out:
        return
    digests = [{} if side.model is None else digests_of_left_out(side.model) for side in (first, second)]
    are_models = first.model is not None and second.model is not None
    for name in [*first.left_out, *(name for name in second.left_out if name not in first.left_out)]:
        ours, theirs = (held.get(name) for held in digests)
        if ours is not None and ours == theirs:
            continue
        side = first if name in first.left_out else second
        why = side.left_out[name]
        is_expected = why.endswith(NOT_PERSISTENT) and not are_models
        yield Note("unknown" if is_expected else "left out", f"{side.name}: left out: {name} ({why})", name)


def _other_parts(a: Any, b: Any, first: Input, second: Input, limits: Limits | None) -> Iterator[Note]:
    """Yield a note if both are files of which one part was taken as the model, and the other parts differ."""
    files = [side.checkpoint for side in (first, second) if side.checkpoint is not None]
    if len(files) < 2 or not all(any(note.kind == "part" for note in side.notes) for side in (first, second)):
        return
    given = [file.path if isinstance(each, Checkpoint) else each for each, file in zip((a, b), files, strict=True)]
    try:
        with ExitStack() as opened:
            whole = [opened.enter_context(open_checkpoint(each, limits=limits, top_level_key="")) for each in given]
            compared = diff(*whole, keep_layout=True)
    except (BurnstoreError, OSError) as error:
        yield Note("left out", f"left out: the parts besides the model, which cannot be read: {error}")
        return
    if not compared.is_equal:
        names = [each.shown_name for each in compared.tensors if each.status not in ("equal", "close")]
        shown = f", such as {printable(names[0])}" if names else ""
        count = counted(len(names), "tensor besides the model differs", "tensors besides the model differ")
        yield Note(
            "left out",
            f'left out: {count}{shown}; top_level_key="" compares everything',
        )


def _nothing(pipeline: Pipeline) -> Note:
    """Return the note for a comparison without tensors: nothing shows that the two are equal."""
    why = "neither side has a tensor" if pipeline.filter is None else "the filter leaves no tensor to compare"
    return Note("empty", why)


def _tolerance(absolute: float | None, relative: float | None) -> Tolerance | None:
    if absolute is None and relative is None:
        return None
    return Tolerance(0.0 if absolute is None else absolute, 0.0 if relative is None else relative)


class _Work:
    """The pairs of tensors to compare, by the names of both sides."""

    def __init__(self, tensors: Aligned, tolerance: Tolerance | None, ignore_dtype: bool) -> None:
        self._tensors = tensors
        self._tolerance = tolerance
        self._ignore_dtype = ignore_dtype
        first, second = tensors.first, tensors.second
        common = [(one, second[name]) for name, one in first.items() if name in second]
        self._reshaped = [(one, other) for one, other in common if one.shape != other.shape]
        alike = [(one, other) for one, other in common if one.shape == other.shape]
        self.pairs: list[Pair] = [pair for pair in alike if _has_same_form(*pair)]
        """Pairs of one dtype, shape and length, which may be equal."""
        self.apart: list[Pair] = [pair for pair in alike if not _has_same_form(*pair)]
        """Pairs that have only their shape in common."""
        kinds = {_form(tensor) for name, tensor in second.items() if name not in first}
        self._removed = [one for name, one in first.items() if name not in second]
        self._lost = [one for one in self._removed if _form(one) in kinds]
        kinds = {_form(tensor) for tensor in self._removed}
        self._added = [other for name, other in second.items() if name not in first]
        self._new = [other for other in self._added if _form(other) in kinds]

    @property
    def nbytes(self) -> int:
        """How many bytes to compare, or to read in search of moved tensors."""
        looked_at = [one for one, _ in [*self.pairs, *self.apart]] + self._lost + self._new
        return sum(tensor.nbytes for tensor in looked_at)

    def run(self, comparison: Comparison) -> list[TensorDiff]:
        """Return the status of each tensor, in the order of the first side."""
        unequal = comparison.unequal(self.pairs)
        measured = [*unequal.values(), *(pieces_of(*pair) for pair in self.apart)]
        differences = comparison.differences(measured, self._tolerance)
        found: dict[str, TensorDiff] = {}
        equal = [pair for row, pair in enumerate(self.pairs) if row not in unequal]
        found.update((one.path, _entry("equal", one, other)) for one, other in equal)
        found.update((one.path, _entry("shape changed", one, other)) for one, other in self._reshaped)
        for pieces, difference in zip(measured, differences, strict=True):
            one, other = pieces[0].one, pieces[0].other
            found[one.path] = self._judge(one, other, difference)
        moved = dict(self._moved(comparison))
        for one in self._removed:
            found[one.path] = _entry("moved" if one.path in moved else "removed", one, moved.get(one.path))
        taken = {other.path for other in moved.values()}
        added = [_entry("added", None, other) for other in self._added if other.path not in taken]
        return [found[name] for name in self._tensors.first] + added

    def _judge(self, one: TensorSnapshot, other: TensorSnapshot, found: Difference | str) -> TensorDiff:
        """Return the status of a pair whose bytes or dtypes differ."""
        same_dtype = one.dtype is other.dtype
        if isinstance(found, str):
            return _entry("changed" if same_dtype else "dtype changed", one, other, problem=found)
        status: Status
        if not same_dtype and not self._ignore_dtype:
            status = "dtype changed"
        elif not same_dtype and not found.differing:
            status = "equal"
        else:
            status = "close" if self._tolerance is not None and not found.beyond else "changed"
        return _entry(status, one, other, found)

    def _moved(self, comparison: Comparison) -> Iterator[tuple[str, TensorSnapshot]]:
        """Yield the names of tensors that have another name on the second side, with the tensor there.

        Tensors with the same bytes are paired in the order of each side.
        """
        if not self._lost:
            return
        sums = comparison.checksums([*self._lost, *self._new])
        new: dict[Any, list[TensorSnapshot]] = {}
        for other, checksum in zip(self._new, sums[len(self._lost) :], strict=True):
            new.setdefault((_form(other), checksum), []).append(other)
        pairs = []
        for one, checksum in zip(self._lost, sums, strict=False):
            others = new.get((_form(one), checksum))
            if others:
                pairs.append((one, others.pop(0)))
        # Bytes with one checksum can be crafted to differ.
        unequal = Comparison(pairs, comparison.workers, lambda nbytes: None).unequal(pairs)
        yield from ((one.path, other) for row, (one, other) in enumerate(pairs) if row not in unequal)


def _form(tensor: TensorSnapshot) -> tuple[DType, Shape, int]:
    return tensor.dtype, tensor.shape, tensor.nbytes


def _has_same_form(one: TensorSnapshot, other: TensorSnapshot) -> bool:
    return one.dtype is other.dtype and one.nbytes == other.nbytes


def _entry(
    status: Status,
    one: TensorSnapshot | None,
    other: TensorSnapshot | None,
    difference: Difference | None = None,
    problem: str | None = None,
) -> TensorDiff:
    return TensorDiff(
        status,
        None if one is None else one.path,
        None if other is None else other.path,
        None if one is None else one.dtype,
        None if other is None else other.dtype,
        None if one is None else one.shape,
        None if other is None else other.shape,
        one.nbytes if one is not None else other.nbytes if other is not None else 0,
        difference,
        problem,
    )


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    both = {key: (first.get(key), second.get(key)) for key in [*first, *(key for key in second if key not in first)]}
    # By repr: NaN equals NaN, 0.0 and -0.0 differ, as in tensors.
    return {key: (one, other) for key, (one, other) in both.items() if repr(one) != repr(other)}


def _notes_on_ids(pairs: Sequence[Pair]) -> Iterator[Note]:
    others = [(one, other) for one, other in pairs if one._param_id is not None and other._param_id is not None]
    count = sum(one._param_id != other._param_id for one, other in others)
    if count:
        yield Note("check", f"the parameter ids of {counted(count, 'tensor')} differ")
