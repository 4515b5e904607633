"""Migrate Burn's old records to files that current Burn loads; each tensor is verified, nothing is deleted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import BurnstoreError, ModelError, ReadError, SaveError, UnsupportedError, entry_point, located
from ..formats.base import LAYOUT_KEY, WriteOptions
from ..formats.record.reader import is_record
from ..formats.record.record import Record
from ..formats.record.training import RecordKind
from ..formats.registry import HEAD_BYTES, format_for_path, format_named
from ..io.opening import read_head
from ..io.paths import is_folder, is_remote, with_options
from ..limits import Limits, check_options
from ..pipeline.compile_file import compile_convert
from ..pipeline.ends import Input
from ..pipeline.metadata import written_layout
from ..pipeline.options import Pipeline, RenameLike, RulesLike
from ..pipeline.plan import Plan
from ..pipeline.write import assemble
from ..progress import ProgressLike, progress_from
from ..stores.records import open_record, placed
from ..tensor.dtype import DType
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..tensor.tabular import Result
from .convert.training import training_plan

SUFFIXES = (".mpk.gz", ".bin.gz", ".json.gz", ".mpk", ".bin", ".json")
_EPOCH = re.compile(r"-(\d+)$")


@dataclass(frozen=True, slots=True)
class Migration(Result):
    """The outcome for one record, or for a folder of ``records``: the new file and its contents, or the error."""

    source: str
    destination: str
    kind: RecordKind | None = None
    tensors: int = 0
    nbytes: int = 0
    error: BurnstoreError | OSError | None = None
    paths: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For a module: the id of each parameter, in decimal, and its path, which an optimizer's new file needs."""
    records: Sequence[Migration] = ()
    """For a folder: the outcome for each record below it."""
    left_out: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The tensors that ``rules`` drop, each with the reason."""
    notes: Sequence[Note] = ()

    @property
    def ok(self) -> bool:
        """Whether the record, and every record of a folder, was migrated."""
        return self.error is None and super(Migration, self).ok and all(record.ok for record in self.records)


@dataclass(frozen=True, slots=True)
class _Options:
    """How records are read and written."""

    like: Any
    scheduler: str | None
    undecided: DType | str | None
    overwrite: bool
    durable: bool
    limits: Limits | None
    pipeline: Pipeline | None = None
    allow_empty: bool = False

    def open(self, path: str) -> Record:
        return open_record(path, like=self.like, undecided=self.undecided, limits=self.limits)


@entry_point("migrate")
def migrate(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    like: Any = None,
    model: str | os.PathLike[str] | None = None,
    scheduler: str | None = None,
    undecided: DType | str | None = None,
    rename: RenameLike | None = None,
    rules: RulesLike | None = None,
    allow_empty: bool = False,
    overwrite: bool = False,
    durable: bool = True,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Migration:
    """Write the contents of an old record into a new file, which gets its name after every tensor was compared.

    A model becomes a file of the destination's format with the same names, dtypes, values and parameter ids. The state
    of an optimizer or a scheduler becomes the Burnpack record that Burn 0.22 reads. ``like`` declares the model of a
    binary record (or names its optimizer). ``model`` is the record of the model that an optimizer belongs to, from
    which the new file gets the paths of the parameters. ``scheduler`` names the kind of a scheduler, ``undecided`` the
    dtype of tensors for which a Half record of Burn 0.13 does not state it.

    ``rename`` and ``rules`` (docs/howto/rules.md) rename the parameters of a model, for example after a refactoring of
    its struct. The state of an optimizer follows them; this needs ``model``. ModelError if a parameter is split or
    joined: its parts have no id for their state. SaveError for a record without tensors and scalars, unless
    ``allow_empty=True``.

    If ``source`` is a folder, every record below it is migrated to the same place below ``destination``:
    ``model-1.mpk`` becomes ``model-1.bpk``, and an optimizer's record gets the paths of its parameters from the model's
    record of the same folder and epoch. The bytes of a file decide whether it is a record; links are skipped. A record
    that cannot be migrated, or whose new name another record would get, too, has its error in ``records`` and does not
    stop the others.

    >>> import tempfile, burnstore as bs
    >>> from burnstore.stores import records
    >>> from burnstore import nn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records.save_file(nn.Linear(2, 3), f"{folder}/old", records.NamedMpkGzFileRecorder())
    ...     done = bs.migrate(f"{folder}/old.mpk.gz", f"{folder}/new.bpk")
    ...     done.kind, done.tensors, done.nbytes, sorted(bs.open(f"{folder}/new.bpk"))
    ('module', 2, 36, ['bias', 'weight'])
    """
    check_options(limits=limits, allow_empty=allow_empty, overwrite=overwrite, durable=durable)
    old, new, model = with_options(storage_options, source, destination, model)
    if is_remote(old) and is_folder(old):
        raise UnsupportedError(
            "a folder of records is migrated from this machine; this one is remote",
            path=old,
            hint="download it, or migrate its records one by one",
        )
    options = _Options(like, scheduler, undecided, overwrite, durable, limits, _renaming(rename, rules), allow_empty)
    if not os.path.isdir(old):
        paths: Mapping[str, str] = {}
        if model is not None:
            with open_record(model, limits=limits) as opened:
                paths = _paths(opened)
        with options.open(old) as record:
            return _migrated(record, old, new, paths, options, progress)
    if like is not None or model is not None:
        raise TypeError("like and model need a single record, and the source is a folder")
    records = tuple(_each(old, new, options, lambda _: progress))
    if not records:
        hint = f"records end with {', '.join(SUFFIXES)}; pass their folder"
        raise ReadError("no Burn records below this folder", path=old, hint=hint)
    nbytes = sum(record.nbytes for record in records)
    return Migration(old, new, None, sum(record.tensors for record in records), nbytes, records=records)


def migrate_each(
    source: str,
    destination: str,
    *,
    scheduler: str | None = None,
    undecided: DType | str | None = None,
    allow_empty: bool = False,
    overwrite: bool = False,
    rename: RenameLike | None = None,
    rules: RulesLike | None = None,
    progress_of: Callable[[str], ProgressLike | None] = lambda _: None,
) -> Iterator[Migration]:
    """Migrate a folder as `migrate` does, and yield the outcome for each record as soon as it is known."""
    options = _Options(None, scheduler, undecided, overwrite, True, None, _renaming(rename, rules), allow_empty)
    return _each(source, destination, options, progress_of)


def _renaming(rename: RenameLike | None, rules: RulesLike | None) -> Pipeline | None:
    if rename is None and rules is None:
        return None
    return Pipeline(rename=rename, rules=rules, unmatched="error")


def _each(
    source: str, destination: str, options: _Options, progress_of: Callable[[str], ProgressLike | None]
) -> Iterator[Migration]:
    models: dict[tuple[str, str], Mapping[str, str]] = {}
    optimizers: list[tuple[str, str]] = []

    def one(old: str, new: str, *, postpone: bool) -> Migration | None:
        place = os.path.dirname(old), _epoch(old)
        try:
            with options.open(old) as record:
                if record.kind == "optimizer" and postpone:  # until the models' paths are known
                    return None
                os.makedirs(os.path.dirname(new) or os.curdir, exist_ok=True)
                done = _migrated(record, old, new, models.get(place, {}), options, progress_of(old))
        except (BurnstoreError, OSError) as error:
            return Migration(old, new, error=error)
        if done.kind == "module":
            models[place] = {**models.get(place, {}), **done.paths}
        return done

    found = list(_records_below(source, destination))
    targets: dict[str, list[str]] = {}
    for old, new in found:
        targets.setdefault(os.path.normcase(new), []).append(old)
    for old, new in found:
        rivals = targets[os.path.normcase(new)]
        if len(rivals) > 1:
            names = " and ".join(os.path.basename(rival) for rival in rivals)
            message = f"not migrated: {names} would get the same name"
            hint = "migrate each of them separately, to different names"
            yield Migration(old, new, error=SaveError(message, stage="check", path=new, hint=hint))
            continue
        outcome = one(old, new, postpone=True)
        if outcome is None:
            optimizers.append((old, new))
        else:
            yield outcome
    for old, new in optimizers:
        outcome = one(old, new, postpone=False)
        assert outcome is not None
        yield outcome


def _migrated(
    record: Record,
    source: str,
    destination: str,
    paths: Mapping[str, str],
    options: _Options,
    progress: ProgressLike | None,
) -> Migration:
    tensors: Sequence[TensorSnapshot]
    metadata: dict[str, str] | None = None
    more: dict[str, Any] = {}
    with located(path=source):
        if record.nameless:
            raise UnsupportedError(
                "a binary record has no tensor names",
                rule="BR-18",
                hint="declare the model in Python: burnstore.migrate(old, new, like=Model())",
            )
        kind = record.kind
        if kind == "module":
            tensors = record.snapshots() if options.like is None else placed(record, options.like)
        else:
            state, scalars = record.training_state(scheduler=options.scheduler)
            tensors = list(state.values())
            ids = {name.partition(".")[0] for name in (*state, *scalars)}
            metadata = {number: path for number, path in paths.items() if number in ids}
            more = {"scalars": scalars}
        plan = Plan()
        if options.pipeline is not None and kind != "scheduler":
            given = Input(source, tensors, "burn", metadata=metadata or {}, **more)
            plan, given = _renamed(given, kind, options.pipeline)
            tensors = [move.snapshot for move in plan.moves]
            if kind == "optimizer":
                metadata, more = dict(given.metadata), {"scalars": given.scalars}
    if not tensors and not more.get("scalars"):
        plan.check_not_empty(allow_empty=options.allow_empty, path=destination)
    if os.path.exists(destination) and os.path.samefile(source, destination):
        raise SaveError("not migrated: the new file would replace the record itself", stage="check", path=destination)
    chosen = format_for_path(destination) if kind == "module" else format_named("burnpack")
    if written_layout(chosen) != "burn":
        metadata = {**(metadata or {}), LAYOUT_KEY: "burn"}
    with progress_from(progress) as report:
        how = WriteOptions(
            overwrite=options.overwrite,
            durable=options.durable,
            limits=options.limits,
            progress=report,
            format_options=more,
        )
        assemble(tensors, destination, chosen, how, metadata=metadata)
    nbytes = sum(tensor.nbytes for tensor in tensors)
    paths = _paths(record) if kind == "module" else {}
    return Migration(
        source, destination, kind, len(tensors), nbytes, paths=paths, left_out=plan.fates, notes=plan.notes
    )


def _renamed(given: Input, kind: RecordKind, pipeline: Pipeline) -> tuple[Plan, Input]:
    """Return the plan of a record's tensors under other names, and its metadata and scalars."""
    if kind == "module":
        plan = compile_convert(given, pipeline, "burn")
        plan.check_constants()
        return plan, given
    found = training_plan(given, pipeline)
    if found is None:
        raise ModelError(
            "the paths of this optimizer's parameters are not known, so they cannot be renamed",
            hint="pass model= the record of its model before the renames",
        )
    return found


def _paths(record: Record) -> dict[str, str]:
    return {str(int(each.param_id)): path for path, each in record.tensors().items() if each.param_id is not None}


def _records_below(source: str, destination: str) -> Iterator[tuple[str, str]]:
    for folder, below, names in os.walk(source):
        below.sort()
        for name in sorted(names):
            old = os.path.join(folder, name)
            if _is_record_file(old):
                new = os.path.join(destination, os.path.relpath(folder, source), _stem(name) + ".bpk")
                yield old, os.path.normpath(new)


def _is_record_file(path: str) -> bool:
    try:
        return not os.path.islink(path) and is_record(read_head(path, HEAD_BYTES))
    except OSError:  # a socket, or a file that may not be read
        return False


def _stem(name: str) -> str:
    suffix = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)]


def _epoch(path: str) -> str:
    found = _EPOCH.search(_stem(os.path.basename(path)))
    return found[1] if found else ""
