"""Explain: what a load will do, before any tensor is read: which goes where, what happens to it, what it will cost.

It is the plan of the load itself (`burnstore.pipeline.compile`) that is shown, so the two cannot disagree; only what
the values decide is not known: whether a number fits a narrower dtype, whether shared tensors are equal in the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...checkpoint import Checkpoint
from ...errors import LoadError, ModelError, printable
from ...formats.base import LAYOUT_KEY
from ...models.binding import Slot
from ...models.layouts import recorded_modules, view_of_record
from ...models.result import ApplyResult
from ...pipeline.compile import LoadPlan, Target, is_cast
from ...pipeline.execute import raise_if_refused
from ...stores.base import Store
from ...stores.pytorch import PytorchStore
from ...tensor.data import Shape
from ...tensor.snapshot import TensorSnapshot
from ...transforms.guess import guess_kinds
from ...transforms.layout import LAYOUTS, Layout
from ...transforms.view import Piece, Seen
from .file_target import file_target

File = str | os.PathLike[str] | bytes | bytearray | memoryview

RATE = 1e9
"""Bytes a second that an estimate of time supposes, where nothing else is said."""

_READ_IN_PLACE = 64 << 10  # what is smaller is read together with its neighbours, and then copied
_MOST_SHOWN = 3
# Names that one of the frameworks gives and the other does not.
_TELLING = {
    "burn": (".gamma", ".beta", ".input_transform.weight", ".linear_inner.weight"),
    "torch": (".num_batches_tracked", ".in_proj_weight", ".weight_ih_l0", ".weight_hh_l0"),
}


@dataclass(frozen=True, slots=True)
class Move:
    """How one tensor of the model will come about: of which tensors of the file, and by which steps."""

    target: str
    sources: tuple[str, ...]
    steps: tuple[str, ...]
    shape: Shape
    dtype: str
    nbytes: int
    """How many bytes of the file are read for it."""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, ready for JSON."""
        return {
            "target": self.target,
            "sources": list(self.sources),
            "steps": list(self.steps),
            "shape": list(self.shape),
            "dtype": self.dtype,
            "bytes": self.nbytes,
        }


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """What it takes to have a file in a layout: nothing (it is in it), what the file itself tells, or more than that.

    ``is_known`` says whether nobody's help is needed. The counts are of tensors, as far as they are known.
    """

    layout: str
    is_known: bool
    needs: str
    renamed: int = 0
    transposed: int = 0
    split: int = 0
    joined: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a file is, and what a load of it into a model (or in the place of another file) will do.

    ``result`` is what that load will report if all values can be read and held, None where nothing is to be loaded;
    ``refusal`` is the error that it would raise. ``peak_bytes`` is the memory that it needs beside the model. Bytes,
    memory and time are estimates: time is that of reading at ``rate`` bytes a second.
    """

    path: str
    format: str
    variant: str
    layout: str | None
    evidence: list[str]
    tensors: int
    nbytes: int
    target: str | None = None
    target_layout: str | None = None
    moves: list[Move] = field(default_factory=list)
    result: ApplyResult | None = None
    refusal: str | None = None
    changes: list[LayoutChange] = field(default_factory=list)
    bytes_to_read: int = 0
    peak_bytes: int = 0
    rate: float = RATE

    @property
    def seconds(self) -> float:
        """How long reading will take, as an estimate."""
        return self.bytes_to_read / self.rate

    @property
    def is_clean(self) -> bool:
        """Whether every tensor finds a place, every place a tensor, and all fit."""
        return self.result is None or not (self.result.errors or self.result.missing or self.result.unused)

    def nearest(self, missing: str) -> str | None:
        """The unused tensor that a missing one most probably means."""
        return None if self.result is None else self.result.suggestion(missing)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, ready for JSON."""
        told: dict[str, Any] = {
            "path": self.path,
            "format": self.format,
            "variant": self.variant,
            "layout": self.layout,
            "evidence": self.evidence,
            "tensors": self.tensors,
            "bytes": self.nbytes,
        }
        if self.result is None:
            keys = ("layout", "is_known", "needs", "renamed", "transposed", "split", "joined")
            told["changes"] = [{key: getattr(change, key) for key in keys} for change in self.changes]
            return told
        found = self.result.to_dict()
        found["missing"] = [{**each, "nearest": self.nearest(each["path"])} for each in found["missing"]]
        return {
            **told,
            "target": self.target,
            "target_layout": self.target_layout,
            "moves": [move.to_dict() for move in self.moves],
            **{key: found[key] for key in ("skipped", "missing", "unused", "errors", "notes")},
            "refusal": self.refusal,
            "estimate": {
                "bytes_to_read": self.bytes_to_read,
                "peak_bytes": self.peak_bytes,
                "seconds": self.seconds,
                "rate": self.rate,
            },
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{printable(self.path)}: {self.format}, {self.tensors} tensors, {self.nbytes:,} bytes"
        yield from self.evidence
        for change in self.changes:
            yield f"into {change.layout}'s layout: {change.needs}"
        for move in self.moves:
            origin = " + ".join(map(printable, move.sources)) or "nothing"
            yield f"{printable(move.target)} <- {origin}" + "".join(f"; {step}" for step in move.steps)
        if self.result is not None:
            yield str(self.result)


def explain(source: File, into: Any = None, *, rate: float = RATE, **options: Any) -> Explanation:
    """Say what a load of a file (or bytes) into a model would do; no tensor is read, and nothing is changed.

    ``into`` is a model, or the path of a file in whose place the tensors are to go. Without it, the explanation is of
    the file alone: whose layout it is in and how that is known, and what it takes to have it in another. Options are
    those of `load`, and mean the same; ``rate`` is how many bytes a second are read, for the estimate of time.

    Raises what the load would raise before it reads anything, but for tensors that are missing or do not fit: those are
    part of the explanation.

    >>> import numpy as np, burnstore as bs
    >>> packed = bs.serialize({"fc.weight": np.ones((3, 4), np.float32)}, format="burnpack")
    >>> plan = bs.explain(packed, {"fc": {"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(4, np.float32)}})
    >>> plan.moves[0].sources, plan.result.missing, plan.refusal, plan.bytes_to_read
    (('fc.weight',), ['fc.bias'], 'MissingTensorsError', 48)
    """
    if not rate > 0:
        raise ValueError(f"a rate is a positive number of bytes a second, not {rate!r}")
    kind = PytorchStore if "top_level_key" in options else Store  # only PyTorch's files have such keys
    if isinstance(source, (bytes, bytearray, memoryview)):
        store: Store = kind.from_bytes(source, **options)
    else:
        store = kind.from_file(source, **options)
    with store._checkpoint() as file:
        layout = store._layout_of_file()
        known: dict[str, Any] = {
            "path": file.path,
            "format": file.format,
            "variant": file.variant,
            "layout": layout,
            "evidence": _evidence(file, store._layout),
            "tensors": len(file),
            "nbytes": file.nbytes,
            "rate": rate,
        }
        if into is None:
            return Explanation(**known, changes=[_change(file, layout, wanted) for wanted in LAYOUTS])
        if isinstance(into, (str, os.PathLike)):
            with file_target(into, file, layout, store._rules) as target:
                return _explained(store, file, target, known, os.fsdecode(into))
        return _explained(store, file, store.target_of(into), known, type(into).__name__)


def _explained(store: Store, file: Checkpoint, target: Target, known: dict[str, Any], name: str) -> Explanation:
    plan, originals = store.plan_for(target)
    moves = _Moves(store, file, plan, originals)
    rows = list(moves.rows())
    return Explanation(
        **known,
        target=name,
        target_layout=target.layout,
        moves=rows,
        result=plan.result,
        refusal=_refusal(store, plan.result),
        bytes_to_read=sum(row.nbytes for row in rows),
        peak_bytes=_peak(store, plan),
    )


def _refusal(store: Store, result: ApplyResult) -> str | None:
    """The name of the error that a load with this result raises."""
    try:
        raise_if_refused(result, allow_partial=store._allow_partial, validate=store._validate)
    except LoadError as error:
        return type(error).__name__
    return None


def _peak(store: Store, plan: LoadPlan) -> int:
    """The memory that a load needs beside the model.

    All tensors are read before the first is assigned, but for the large ones of a torch model, which are read into its
    own memory; of those that are cast both forms exist for a moment.
    """
    held = [0]
    for slot, snapshot, _ in plan.matched:
        in_place = slot.keeps_dtype and snapshot.dtype is slot.dtype and snapshot.nbytes >= _READ_IN_PLACE
        if not (in_place and store._in_place):
            held.append(max(snapshot.nbytes, slot.dtype.nbytes(slot.shape) if is_cast(slot, snapshot) else 0))
    return sum(held) + max(held)


class _Moves:
    """Says of each tensor of a plan where it comes from and what happens to it."""

    def __init__(self, store: Store, file: Checkpoint, plan: LoadPlan, originals: Mapping[str, str]) -> None:
        self._store = store
        self._file = file
        self._plan = plan
        self._originals = originals
        self._names = {old: new for new, old in originals.items()}
        self._seen = {snapshot.path: snapshot for snapshot in plan.seen.snapshots}

    def rows(self) -> Iterator[Move]:
        """A move for each tensor that will be applied, in the order of the model."""
        plan = self._plan
        matched = {id(slot): (slot, snapshot) for slot, snapshot, _ in plan.matched}
        following = {id(slot) for slot in plan.followers}
        leaders = {slot.identity(): slot.path for slot, _, _ in reversed(plan.matched)}
        for slot in plan.target.slots:
            if id(slot) in matched:
                yield self._row(*matched[id(slot)])
            elif id(slot) in following:
                shared = f"shared with {leaders[slot.identity()]}"
                yield Move(slot.path, (), (shared,), slot.shape, str(slot.dtype), 0)

    def _row(self, slot: Slot, snapshot: TensorSnapshot) -> Move:
        name = self._plan.taken.get(slot.path)
        if name is None:
            return Move(slot.path, (), ("from the metadata",), slot.shape, str(slot.dtype), 0)
        pieces = self._plan.seen.made_of.get(name, (Piece(name),))
        paths = [piece.path for piece in pieces if piece.path is not None]
        sources = [self._originals[path] for path in paths if path in self._originals]
        steps = [step for source in sources for step in self._renames(source)]
        steps += _layout_steps(name, pieces)
        if len(sources) < len(paths):
            steps.append(f"made by {type(self._store._from_adapter).__name__}")
        else:
            steps += self._changes(slot.path, name, snapshot)
        if is_cast(slot, snapshot):
            steps.append(f"cast {snapshot.dtype} to {slot.dtype}")
        whole = sum(self._read_for(piece) for piece in pieces)
        nbytes = whole if self._store._part is None else min(whole, snapshot.nbytes)
        kept = slot.dtype if slot.keeps_dtype else snapshot.dtype
        return Move(slot.path, tuple(sources), tuple(dict.fromkeys(steps)), slot.shape, str(kept), nbytes)

    def _renames(self, source: str) -> Iterator[str]:
        renames = self._store._remapper.trace(source)
        yield from (f"renamed by {rule}" for rule, _ in renames)
        renamed = renames[-1][1] if renames else source
        if self._names[source] != renamed:
            yield f"indices closed up to {self._names[source]}"

    def _changes(self, path: str, name: str, snapshot: TensorSnapshot) -> Iterator[str]:
        """What an adapter or the part of a rank does to a tensor."""
        adapter, before, part = self._store._from_adapter, self._seen.get(name), self._store._part
        if before is None:
            return
        if adapter is None:
            if part is not None and before.shape != snapshot.shape:
                yield f"cut to {part}"
            return
        changed = []
        if name != path:
            changed.append(f"from {name}")
        if before.shape != snapshot.shape:
            changed.append(f"{list(before.shape)} to {list(snapshot.shape)}")
        if before.dtype is not snapshot.dtype:
            changed.append(f"{before.dtype} to {snapshot.dtype}")
        if changed:
            yield f"adapted by {type(adapter).__name__}: {', '.join(changed)}"

    def _read_for(self, piece: Piece) -> int:
        source = self._originals.get(piece.path or "")
        return 0 if source is None else self._file[source].nbytes // piece.parts


def _layout_steps(name: str, pieces: Sequence[Piece]) -> Iterator[str]:
    """What seeing a tensor in another layout does to it."""
    if not pieces:
        yield "a constant that the file leaves out"
    for piece in pieces:
        if piece.path is None:
            yield "zeros for a bias that the file leaves out"
        elif piece.parts > 1:
            yield f"part {piece.part + 1} of {piece.parts}"
    if any(piece.transposed for piece in pieces):
        yield "transposed"
    if len(pieces) > 1:
        yield f"joined from {len(pieces)}"
    if len(pieces) == 1 and pieces[0].path != name:
        yield "renamed by layout"


# --- a file alone -----------------------------------------------------------------------------------------------------


def _evidence(file: Checkpoint, stated: Layout | None) -> list[str]:
    """How the layout of a file is known, or what speaks for one of them where it is not."""
    metadata = file.metadata
    if stated is not None:
        return [f"layout {stated}: the caller says so"]
    if LAYOUT_KEY in metadata:
        return [f"layout {file.layout or 'unknown'}: its metadata says {LAYOUT_KEY}={printable(metadata[LAYOUT_KEY])}"]
    if file.format == "safetensors" and file.layout is not None:
        key = "format" if metadata.get("format") == "pt" else "producer"
        return [f"layout {file.layout}: its metadata says {key}={printable(metadata.get(key, ''))}"]
    if file.layout is not None:
        return [f"layout {file.layout}: files of the format {file.format} have it"]
    told = ["layout unknown: the file does not say whose it is"]
    for layout, endings in _TELLING.items():
        names = [name for name in file if name.endswith(endings)]
        if names:
            shown = ", ".join(printable(name) for name in names[:_MOST_SHOWN])
            told.append(f"{len(names)} names speak for {layout}'s: {shown}{' …' if len(names) > _MOST_SHOWN else ''}")
    return told


def _change(file: Checkpoint, layout: Layout | None, wanted: Layout) -> LayoutChange:
    """What it takes to have the file in that layout."""
    if layout == wanted:
        return LayoutChange(wanted, True, "nothing, it is in it")
    if layout is None:
        return LayoutChange(wanted, False, "somebody must say whose layout the file has: layout=")
    recorded = recorded_modules(file.metadata)
    if recorded is None:
        return LayoutChange(wanted, False, _wanting(file, layout))
    try:
        view = view_of_record(recorded, {name: file[name].shape for name in file}, layout)
        by_path = {name: file[name] for name in file}
        seen = view.to_burn(by_path) if wanted == "burn" else view.in_torch(by_path)
    except ModelError as error:
        return LayoutChange(wanted, False, f"other modules than those that the file records: {error}")
    return LayoutChange(wanted, True, "nothing, the file records its modules", **_counts(seen))


def _wanting(file: Checkpoint, layout: Layout) -> str:
    """What must be told about a file that does not record its modules."""
    help_needed = "somebody must tell its modules: like= a model, or rules="
    if layout != "torch":
        return help_needed
    guess = guess_kinds({name: file[name].shape for name in file})
    if not guess.ambiguous:
        return f"{help_needed}; or guess=True, as names and shapes decide all {len(guess.kinds)} modules"
    path, why = next(iter(guess.ambiguous.items()))
    return (
        f"{help_needed}; a guess is not enough, as {len(guess.ambiguous)} of "
        f"{len(guess.kinds.keys() | guess.ambiguous.keys())} modules are ambiguous, the first: "
        f"{printable(path) or '(the file)'} ({why})"
    )


def _counts(seen: Seen) -> dict[str, int]:
    pieces = {name: made for name, made in seen.made_of.items() if made}
    return {
        "renamed": sum(len(made) == 1 and made[0].path != name for name, made in pieces.items()),
        "transposed": sum(any(piece.transposed for piece in made) for made in pieces.values()),
        "split": sum(made[0].parts > 1 for made in pieces.values()),
        "joined": sum(len(made) > 1 for made in pieces.values()),
    }
