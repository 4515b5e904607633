"""Combine: decide for every name which source's tensor, or which blend of them, the merged file gets.

Tensors stay unread, except for the angles of a slerp, and for integers where a policy decides conflicts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...errors import MergeError, PatternError, counted, located, printable, quoted
from ...io.workers import Workers, run_batches
from ...progress import Advance, Progress
from ...tensor.dtype import DType
from ...tensor.note import Note
from ...tensor.plain import Plain
from ...tensor.snapshot import TensorSnapshot
from ...transforms.blend import agreed, arc_weights, blended, can_blend
from ...transforms.patterns import compile_pattern
from ...transforms.precision import cast

Method = Literal["overlay", "linear", "slerp", "lora"]
METHODS: tuple[Method, ...] = ("overlay", "linear", "slerp", "lora")

Conflicts = Literal["error", "first", "last", "skip"]
CONFLICTS: tuple[Conflicts, ...] = ("error", "first", "last", "skip")

_WHOLE = 1e-9  # by how much weights may miss one: thirds and tenths do, in binary
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class MergedTensor(Plain):
    """How one tensor was made: from which sources (counted from 0), and blended with which weights.

    ``weights`` is None if it was copied unchanged. ``conflict`` is the conflict that the policy decided, if any.
    """

    name: str
    sources: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    conflict: str | None = None


@dataclass(frozen=True, slots=True)
class Blend:
    """The weights that tensors are blended with; an overlay has none."""

    method: Method
    weights: tuple[float, ...]
    by_pattern: tuple[tuple[re.Pattern[str], tuple[float, ...]], ...]

    def weights_of(self, name: str) -> tuple[float, ...]:
        """Return the weights of the sources for the tensor of this name."""
        return next((weights for pattern, weights in reversed(self.by_pattern) if pattern.search(name)), self.weights)


def checked_blend(
    method: Method,
    sources: int,
    weights: Sequence[float] | None,
    t: float | None,
    tensor_weights: Mapping[str, Sequence[float]] | None,
    *,
    normalize: bool,
) -> Blend:
    """Return the blend that a caller asks for; MergeError if it does not fit the number of sources."""
    if method not in METHODS:
        raise MergeError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    if method == "overlay":
        if weights is not None or t is not None or tensor_weights:
            raise MergeError('an overlay takes no weights; pass method="linear" or method="slerp"')
        return Blend(method, (), ())
    if method == "lora":
        if sources < 2 or t is not None or tensor_weights or normalize:
            raise MergeError("lora takes a base, then adapters, and optionally one weight per adapter")
        own = tuple(map(float, (1.0,) * (sources - 1) if weights is None else weights))
        if len(own) != sources - 1 or not all(map(math.isfinite, own)):
            raise MergeError(f"expected {sources - 1} finite weights (one per adapter), got {len(own)}")
        return Blend(method, own, ())
    if method == "slerp" and sources != 2:
        raise MergeError(f"slerp needs two sources, got {sources}")
    if t is not None:
        if weights is not None or sources != 2:
            raise MergeError("t needs exactly two sources and excludes weights: it stands for the weights 1 - t and t")
        weights = (1 - t, t)
    given = [1 / sources] * sources if weights is None else weights
    checked = _checked_weights(given, sources, "", normalize=normalize)
    by_pattern = tuple(
        (compile_pattern(pattern), _checked_weights(each, sources, f" for {quoted(str(pattern))}", normalize=normalize))
        for pattern, each in (tensor_weights or {}).items()
    )
    return Blend(method, checked, by_pattern)


def _checked_weights(given: Sequence[float], sources: int, what: str, *, normalize: bool) -> tuple[float, ...]:
    weights = tuple(float(weight) for weight in given)
    if len(weights) != sources:
        raise MergeError(
            f"expected {sources} weight{'' if sources == 1 else 's'} (one per source){what}, got {len(weights)}"
        )
    if not all(map(math.isfinite, weights)):
        raise MergeError(f"the weights{what} must be finite, not {', '.join(map(str, weights))}")
    total = math.fsum(weights)
    if normalize:
        if not total:
            raise MergeError(f"the weights{what} add up to 0 and cannot be scaled to 1")
        return tuple(weight / total for weight in weights)
    if abs(total - 1) > _WHOLE:
        raise MergeError(f"the weights{what} add up to {total:g}, not to 1", hint="scale them with normalize=True")
    return weights


@dataclass(frozen=True, slots=True)
class Contribution:
    """The tensors of one file, by the names under which they are merged, and its path for messages."""

    path: str
    tensors: Mapping[str, TensorSnapshot]


@dataclass(slots=True)
class Combined:
    """The tensors of the merged file, how each was made, the names left out with the reason, and notes."""

    snapshots: list[TensorSnapshot] = field(default_factory=list)
    rows: list[MergedTensor] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def add(
        self,
        snapshot: TensorSnapshot,
        sources: Iterable[int],
        *,
        weights: tuple[float, ...] | None = None,
        conflict: str | None = None,
    ) -> None:
        """Add a tensor."""
        self.snapshots.append(snapshot)
        self.rows.append(MergedTensor(snapshot.path, tuple(sources), weights, conflict))


def combine(
    files: Sequence[Contribution],
    blend: Blend,
    conflicts: Conflicts,
    *,
    dtype: DType | None,
    workers: Workers,
    progress: Progress | None = None,
) -> Combined:
    """Return the contents of the merged file: the names of the first file in order, then those that later files add.

    ``progress`` counts the bytes that are read for arcs.

    >>> import numpy as np
    >>> files = [Contribution(name, {name: TensorSnapshot.from_numpy(name, np.zeros(1))}) for name in ("a", "b")]
    >>> done = combine(files, checked_blend("overlay", 2, None, None, None, normalize=False), "error", dtype=None,
    ...                workers=None)
    >>> [(row.name, row.sources) for row in done.rows]
    [('a', (0,)), ('b', (1,))]
    """
    if conflicts not in CONFLICTS:
        raise MergeError(f"conflicts must be one of {', '.join(map(repr, CONFLICTS))}, got {conflicts!r}")
    return _Combining(files, blend, conflicts, dtype, workers, progress).combined()


@dataclass(frozen=True, slots=True)
class _Arc:
    """A pair of tensors to blend along an arc; its weights depend on the values of both."""

    first: TensorSnapshot
    second: TensorSnapshot
    t: float

    def weights(self) -> tuple[float, float] | None:
        return arc_weights(self.first, self.second, self.t)

    def nbytes(self) -> int:
        return self.first.nbytes + self.second.nbytes


def _weights_of(arcs: Sequence[_Arc]) -> list[tuple[float, float] | None]:
    return [arc.weights() for arc in arcs]


class _Combining:
    """Decide for every name what the merged file gets."""

    def __init__(
        self,
        files: Sequence[Contribution],
        blend: Blend,
        conflicts: Conflicts,
        dtype: DType | None,
        workers: Workers,
        progress: Progress | None,
    ) -> None:
        self._files = files
        self._blend = blend
        self._conflicts = conflicts
        self._dtype = dtype
        self._workers = workers
        self._progress = progress
        self._done = Combined()

    def combined(self) -> Combined:
        names = list(dict.fromkeys(name for file in self._files for name in file.tensors))
        for pattern, _ in self._blend.by_pattern:
            if not any(pattern.search(name) for name in names):
                raise PatternError(f"the pattern {quoted(pattern.pattern)} of weights matched no tensor")
        arcs = self._arcs(names) if self._blend.method == "slerp" else {}
        for name in names:
            with located(tensor=name):
                if self._blend.method == "overlay":
                    self._overlay(name, self._holders(name))
                else:
                    self._mix(name, arcs)
        if arcs and None in arcs.values():
            straight = [printable(name) for name, weights in arcs.items() if weights is None]
            text = f"blended linearly, because there is no arc between them: {listed(straight)}"
            self._done.notes.append(Note("check", text))
        return self._done

    def _holders(self, name: str) -> list[int]:
        return [at for at, file in enumerate(self._files) if name in file.tensors]

    def _tensors(self, name: str, sources: Iterable[int]) -> list[TensorSnapshot]:
        return [self._files[at].tensors[name] for at in sources]

    def _overlay(self, name: str, holders: list[int]) -> None:
        if len(holders) == 1:
            self._take(name, holders[0])
        else:
            where = listed([printable(self._files[at].path) for at in holders])
            self._settle(name, holders, f"{counted(len(holders), 'source has', 'sources have')} this tensor: {where}")

    def _mix(self, name: str, arcs: Mapping[str, tuple[float, float] | None]) -> None:
        weights = self._blend.weights_of(name)
        active = [at for at, weight in enumerate(weights) if weight]
        holders = [at for at in active if name in self._files[at].tensors]
        if not holders:
            self._done.left_out[name] = "only in sources of weight 0"
            return
        problem = self._problem(name, active, holders)
        if problem is not None:
            self._settle(name, holders, problem)
            return
        tensors = self._tensors(name, active)
        if len(active) == 1:
            self._take(name, active[0])
        elif not can_blend(tensors[0].dtype):
            self._agree(name, active, tensors)
        else:
            used = arcs.get(name) or tuple(weights[at] for at in active)
            wanted = self._dtype if tensors[0].dtype.is_float else None
            self._done.add(blended(tensors, used, dtype=wanted), active, weights=used)

    def _problem(self, name: str, active: list[int], holders: list[int]) -> str | None:
        """Return why the tensors of a name cannot be blended; None if their dtypes and shapes allow it."""
        if len(holders) < len(active):
            lacking = [printable(self._files[at].path) for at in active if at not in holders]
            return f"missing in {listed(lacking)}"
        first, *others = self._tensors(name, active)
        for tensor in others:
            if tensor.shape != first.shape:
                return f"shape {list(first.shape)} in one source, {list(tensor.shape)} in another"
            castable = self._dtype is not None and all(
                each.dtype.is_float and can_blend(each.dtype) for each in (first, tensor)
            )
            if tensor.dtype is not first.dtype and not castable:
                return f"dtype {first.dtype} in one source, {tensor.dtype} in another"
        return None

    def _agree(self, name: str, active: list[int], tensors: list[TensorSnapshot]) -> None:
        """Take a tensor that must be equal in all sources, or let the policy choose one."""
        same = agreed(tensors)
        if self._conflicts != "error" and not _holds(same):
            self._settle(name, active, f"{tensors[0].dtype} values cannot be averaged, and differ")
        else:
            self._done.add(self._cast(same), active)

    def _settle(self, name: str, holders: list[int], problem: str) -> None:
        """Resolve a conflict by the policy."""
        if self._conflicts == "error":
            raise MergeError(problem, hint='choose with conflicts="first", "last" or "skip"')
        if self._conflicts == "skip":
            self._done.left_out[name] = problem
            return
        self._take(name, holders[0 if self._conflicts == "first" else -1], conflict=problem)

    def _take(self, name: str, source: int, *, conflict: str | None = None) -> None:
        (tensor,) = self._tensors(name, [source])
        self._done.add(self._cast(tensor), [source], conflict=conflict)

    def _cast(self, tensor: TensorSnapshot) -> TensorSnapshot:
        """Return a tensor that is not blended in the dtype of the merge; only floats are cast."""
        return tensor if self._dtype is None or not tensor.dtype.is_float else cast(tensor, self._dtype)

    def _arcs(self, names: Iterable[str]) -> dict[str, tuple[float, float] | None]:
        """Return the weights for each tensor that both sources have, by reading it once."""
        first, second = self._files
        wanted = {name: _Arc(first.tensors[name], second.tensors[name], t) for name, t in self._bent(names)}
        advance = Advance(self._progress, sum(map(_Arc.nbytes, wanted.values())))
        batches = run_batches(_weights_of, wanted.values(), _Arc.nbytes, self._workers, advance=advance)
        return dict(zip(wanted, [weights for _, batch in batches for weights in batch], strict=True))

    def _bent(self, names: Iterable[str]) -> Iterator[tuple[str, float]]:
        for name in names:
            weights = self._blend.weights_of(name)
            fit = all(weights) and self._holders(name) == [0, 1] and self._problem(name, [0, 1], [0, 1]) is None
            if fit and can_blend(self._files[0].tensors[name].dtype):
                yield name, weights[1]


def _holds(same: TensorSnapshot) -> bool:
    """Return whether the sources agree on a tensor."""
    try:
        for _ in same.chunks():
            pass
    except MergeError:
        return False
    return True


def listed(names: Sequence[str]) -> str:
    """Return some of the names, and the number of the others."""
    shown = ", ".join(names[:_MOST_SHOWN])
    return shown if len(names) <= _MOST_SHOWN else f"{shown} and {len(names) - _MOST_SHOWN} more"
