"""Migration: from Burn's old records to files that Burn of today loads; each tensor verified, nothing deleted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint import open_checkpoint
from ..errors import BurnstoreError, CorruptError, UnsupportedError, located
from ..formats.record.reader import is_record
from ..formats.record.record import Record
from ..formats.record.training import RecordKind
from ..formats.registry import HEAD_BYTES
from ..io.source import FileSource
from ..limits import Limits
from ..progress import ProgressLike
from ..saving import save
from ..stores.records import open_record, placed
from ..tensor.dtype import DType
from ..tensor.scalar import Scalar
from ..tensor.snapshot import TensorSnapshot

SUFFIXES = (".mpk.gz", ".bin.gz", ".json.gz", ".mpk", ".bin", ".json")
_EPOCH = re.compile(r"-(\d+)$")


@dataclass(frozen=True, slots=True)
class Migration:
    """What became of one record: where it went and what it held, or the error that kept it from going."""

    source: str
    destination: str
    kind: RecordKind | None = None
    tensors: int = 0
    nbytes: int = 0
    error: BurnstoreError | OSError | None = None
    paths: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of a module: the id of each parameter, in decimal, and its path, which an optimizer's new file holds."""


def migrate(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    like: Any = None,
    model: str | os.PathLike[str] | None = None,
    scheduler: str | None = None,
    undecided: DType | str | None = None,
    overwrite: bool = False,
    durable: bool = True,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
) -> Migration:
    """Write what an old record holds into a new file, and read that back to compare every tensor; the record stays.

    A model becomes a file of the destination's format with the same names, dtypes, values and parameter ids. The state
    of an optimizer or a scheduler becomes the Burnpack record that Burn 0.22 keeps of it. ``like`` declares the model
    of a binary record (or names its optimizer), ``model`` is the record of the model that an optimizer belongs to, so
    that the new file can tell its parameters' paths, ``scheduler`` names the kind of a scheduler, ``undecided`` the
    dtype that a Half record of Burn 0.13 leaves open.

    >>> import tempfile, burnstore as bs
    >>> from burnstore import nn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bs.save_file(nn.Linear(2, 3), f"{folder}/old", bs.NamedMpkGzFileRecorder())
    ...     done = bs.migrate(f"{folder}/old.mpk.gz", f"{folder}/new.bpk")
    ...     done.kind, done.tensors, done.nbytes, sorted(bs.open(f"{folder}/new.bpk"))
    ('module', 2, 36, ['bias', 'weight'])
    """
    paths = {}
    if model is not None:
        with open_record(model, limits=limits) as opened:
            paths = _paths(opened)
    with open_record(source, like=like, undecided=undecided, limits=limits) as record:
        return _migrated(
            record,
            os.fsdecode(source),
            os.fsdecode(destination),
            paths,
            scheduler,
            like=like,
            overwrite=overwrite,
            durable=durable,
            progress=progress,
        )


def migrate_folder(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    scheduler: str | None = None,
    undecided: DType | str | None = None,
    overwrite: bool = False,
    durable: bool = True,
    limits: Limits | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Iterator[Migration]:
    """Migrate every record below a folder into the same place below another, one after the other.

    Which files are records their bytes decide; others are left alone, as are links. ``model-1.mpk`` becomes
    ``model-1.bpk``, and an optimizer's record finds the paths of its parameters in the model's of the same folder and
    epoch. What cannot be migrated is reported in its `Migration` and does not keep the rest from going.
    """
    models: dict[tuple[str, str], Mapping[str, str]] = {}
    options: dict[str, Any] = {"undecided": undecided, "limits": limits}
    postponed: list[tuple[str, str]] = []

    def one(old: str, new: str, *, last: bool) -> Migration | None:
        place = os.path.dirname(old), _epoch(old)
        told = None if progress is None else (lambda done, total: progress(old, done, total))
        try:
            with open_record(old, **options) as record:
                if record.kind == "optimizer" and not last:
                    return None
                os.makedirs(os.path.dirname(new) or os.curdir, exist_ok=True)
                done = _migrated(
                    record,
                    old,
                    new,
                    models.get(place, {}),
                    scheduler,
                    overwrite=overwrite,
                    durable=durable,
                    progress=told,
                )
        except (BurnstoreError, OSError) as error:
            return Migration(old, new, error=error)
        if done.kind == "module":
            models[place] = {**models.get(place, {}), **done.paths}
        return done

    for old, new in list(_records_below(os.fsdecode(source), os.fsdecode(destination))):
        outcome = one(old, new, last=False)
        if outcome is None:
            postponed.append((old, new))
        else:
            yield outcome
    for old, new in postponed:
        outcome = one(old, new, last=True)
        assert outcome is not None
        yield outcome


def _migrated(
    record: Record,
    source: str,
    destination: str,
    paths: Mapping[str, str],
    scheduler: str | None,
    *,
    like: Any = None,
    overwrite: bool,
    durable: bool,
    progress: ProgressLike | None,
) -> Migration:
    with located(path=source):
        if record.nameless:
            raise UnsupportedError(
                "a binary record has no names, so the new file would have none",
                rule="BR-18",
                hint="from Python: burnstore.migrate(old, new, like=Model()) with a declaration of the model",
            )
        kind = record.kind
        tensors, scalars, metadata = _parts(record, paths, scheduler, like)
    more: dict[str, Any] = {} if kind == "module" else {"scalars": scalars, "metadata": metadata, "format": "burnpack"}
    save(tensors, destination, overwrite=overwrite, durable=durable, progress=progress, **more)
    _verify(destination, tensors, scalars)
    nbytes = sum(tensor.nbytes for tensor in tensors)
    found = _paths(record) if kind == "module" else {}
    return Migration(source, destination, kind, len(tensors), nbytes, paths=found)


def _parts(
    record: Record, paths: Mapping[str, str], scheduler: str | None, like: Any
) -> tuple[Sequence[TensorSnapshot], Mapping[str, Scalar], Mapping[str, str]]:
    """What goes into the new file: tensors, scalars, and for an optimizer the paths of its parameters."""
    if record.kind == "module":
        return record.snapshots() if like is None else placed(record, like), {}, {}
    tensors, scalars = record.training_state(scheduler=scheduler)
    ids = {name.partition(".")[0] for name in (*tensors, *scalars)}
    return list(tensors.values()), scalars, {number: path for number, path in paths.items() if number in ids}


def _verify(destination: str, tensors: Sequence[TensorSnapshot], scalars: Mapping[str, Scalar]) -> None:
    """Read the new file and compare it, tensor by tensor and byte by byte, with what it was made of."""
    with open_checkpoint(destination) as written, located(path=destination):
        if len(written) != len(tensors) or dict(written.scalars) != dict(scalars):
            raise CorruptError("the new file does not hold what was written")
        for tensor in tensors:
            other = written[tensor.path]
            alike = (other.dtype.name, other.shape, other.nbytes) == (tensor.dtype.name, tensor.shape, tensor.nbytes)
            pairs = zip(tensor.chunks(), other.chunks(), strict=True)
            if not alike or any(first != second for first, second in pairs):
                raise CorruptError("the new file has another value", tensor=tensor.path)


def _paths(record: Record) -> dict[str, str]:
    return {str(int(each.param_id)): path for path, each in record.tensors().items() if each.param_id is not None}


def _records_below(source: str, destination: str) -> Iterator[tuple[str, str]]:
    for folder, below, names in os.walk(source):
        below.sort()
        for name in sorted(names):
            old = os.path.join(folder, name)
            if _begins_like_a_record(old):
                new = os.path.join(destination, os.path.relpath(folder, source), _stem(name) + ".bpk")
                yield old, os.path.normpath(new)


def _begins_like_a_record(path: str) -> bool:
    if os.path.islink(path):
        return False
    try:
        file = FileSource(path)
    except OSError:  # a socket, or a file that may not be read: not ours to complain about
        return False
    try:
        return is_record(file.read_at(0, min(HEAD_BYTES, file.size)))
    finally:
        file.close()


def _stem(name: str) -> str:
    suffix = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)]


def _epoch(path: str) -> str:
    found = _EPOCH.search(_stem(os.path.basename(path)))
    return found[1] if found else ""
