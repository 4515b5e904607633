"""Recorders: Burn's old way to save models, kept so that its files can be read, written and left behind.

Every recorder of Burn up to 0.21 is here under its name, with its three precision settings. Files are those that Burn
0.21.0 writes; those of every older release are read. For anything new take `BurnpackStore`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ModelError, UnknownFormatError, located
from ..formats.codec.gzip import deflated
from ..formats.record.declaration import Node, declare, marked, parameters_of
from ..formats.record.document import Document
from ..formats.record.heading import (
    LAST_VERSION,
    DoublePrecisionSettings,
    FullPrecisionSettings,
    HalfPrecisionSettings,
    PrecisionSettings,
)
from ..formats.record.reader import read_record
from ..formats.record.record import Record, RecordTensor
from ..formats.record.writer import pieces, tree_of
from ..io.atomic import atomic_file
from ..io.source import FileSource
from ..limits import Limits
from ..models.bindings import binding_for
from ..models.collect import collect
from ..models.result import ApplyResult
from ..pipeline.execute import apply
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "BinFileRecorder",
    "BinGzFileRecorder",
    "CompactRecorder",
    "DefaultRecorder",
    "DoublePrecisionSettings",
    "FullPrecisionSettings",
    "HalfPrecisionSettings",
    "JsonGzFileRecorder",
    "NamedMpkFileRecorder",
    "NamedMpkGzFileRecorder",
    "PrecisionSettings",
    "PrettyJsonFileRecorder",
    "Record",
    "RecordTensor",
    "load_file",
    "load_record",
    "open_record",
    "record_of",
    "save_file",
]

_MINOR = int(LAST_VERSION.split(".")[1])
_WRITTEN_AT_ONCE = 1 << 20


class FileRecorder:
    """What the recorders share; a recorder is one encoding with one precision.

    As in Burn the extension of a path is the recorder's own: ``model`` and ``model.v1`` both mean ``model.mpk``. Unlike
    in Burn a path that has it already is left alone (``a.mpk.gz`` does not become ``a.mpk.mpk.gz``), and an existing
    file is replaced only if ``overwrite=True`` says so.
    """

    encoding: ClassVar[str]
    compressed: ClassVar[bool] = False
    extension: ClassVar[str]

    def __init__(self, settings: PrecisionSettings = FullPrecisionSettings) -> None:
        if not isinstance(settings, PrecisionSettings):
            raise TypeError(
                f"settings are FullPrecisionSettings or another of the three, not {type(settings).__name__}"
            )
        self.settings = settings

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        like: Any = None,
        undecided: DType | str | None = None,
        limits: Limits | None = None,
    ) -> Record:
        """The record in this file, opened: its tensors are read when they are asked for.

        ``like`` declares the model, which binary records need; ``"Adam"``, ``"Sgd"``, ``"Cosine"`` ... where it is the
        state of an optimizer or a scheduler. Precision and release are the file's own. Raises FileNotFoundError,
        FormatError, and UnknownFormatError where the file is a record of another recorder.
        """
        return open_record(self.path_of(path), like=like, undecided=undecided, limits=limits, recorder=self)

    def record(
        self,
        record: Record,
        path: str | os.PathLike[str],
        *,
        like: Any = None,
        overwrite: bool = False,
        durable: bool = True,
    ) -> None:
        """Write a record into this file, all or nothing, as Burn 0.21.0 writes it; folders that lack are made.

        Tensors are converted to the recorder's precision as they are written. ``like`` declares the model where the
        record itself does not know its shape and the encoding needs it: a binary record.
        """
        if not isinstance(record, Record):
            raise TypeError(f"record takes a Record, not {type(record).__name__}; save_file saves a model")
        if like is not None:
            record = Record(record.item, shape=like if isinstance(like, str) else declare(like, _MINOR))
        path = self.path_of(path)
        os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
        with located(path=path):
            made = pieces(record, self.encoding, self.settings, compressed=self.compressed)
            if self.compressed:
                made = deflated(made)
            with atomic_file(path, overwrite=overwrite, durable=durable) as scratch:
                for batch in _batches(made):
                    scratch.write(*batch)

    def path_of(self, path: str | os.PathLike[str]) -> str:
        """The path with the recorder's extension in place of its own."""
        text = os.fsdecode(path)
        if text.lower().endswith(f".{self.extension}"):
            return text
        return f"{os.path.splitext(text)[0]}.{self.extension}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings.name})"


class NamedMpkFileRecorder(FileRecorder):
    """MessagePack with names (``.mpk``), the default of Burn up to 0.21.

    >>> import tempfile
    >>> from burnstore import nn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file(nn.Linear(2, 3), f"{folder}/model", NamedMpkFileRecorder(HalfPrecisionSettings))
    ...     with NamedMpkFileRecorder().load(f"{folder}/model") as record:
    ...         [str(tensor) for tensor in record.snapshots()]
    ["TensorSnapshot('weight', F16, [2, 3])", "TensorSnapshot('bias', F16, [3])"]
    """

    encoding = "mpk"
    extension = "mpk"


class NamedMpkGzFileRecorder(FileRecorder):
    """MessagePack with names, compressed (``.mpk.gz``)."""

    encoding = "mpk"
    compressed = True
    extension = "mpk.gz"


class BinFileRecorder(FileRecorder):
    """Bincode (``.bin``): no names, so loading needs ``like=`` a declaration of the model with all its fields."""

    encoding = "bin"
    extension = "bin"


class BinGzFileRecorder(FileRecorder):
    """Bincode, compressed (``.bin.gz``)."""

    encoding = "bin"
    compressed = True
    extension = "bin.gz"


class JsonGzFileRecorder(FileRecorder):
    """JSON without blanks, compressed (``.json.gz``)."""

    encoding = "json"
    compressed = True
    extension = "json.gz"


class PrettyJsonFileRecorder(FileRecorder):
    """JSON with a line for every number (``.json``); for looking at small models."""

    encoding = "json"
    extension = "json"


class DefaultRecorder(NamedMpkFileRecorder):
    """Burn's default: MessagePack in full precision."""

    def __init__(self) -> None:
        super().__init__(FullPrecisionSettings)


class CompactRecorder(NamedMpkFileRecorder):
    """Burn's compact one: MessagePack in half precision."""

    def __init__(self) -> None:
        super().__init__(HalfPrecisionSettings)


def open_record(
    path: str | os.PathLike[str],
    *,
    like: Any = None,
    undecided: DType | str | None = None,
    limits: Limits | None = None,
    recorder: FileRecorder | None = None,
) -> Record:
    """The record in a file of any recorder, or of ``recorder`` alone; its bytes decide, not its name."""
    source = FileSource(path)
    try:
        found = read_record(source, limits or Limits(), like=like, undecided=undecided)
        if recorder is not None and (found.encoding, found.compressed) != (recorder.encoding, recorder.compressed):
            found.data.close()
            raise UnknownFormatError(
                f"it is a record in another encoding: {found.variant}",
                path=source.name,
                rule="BR-01",
                hint="burnstore.open and open_record take any",
            )
        shape = like if like is None or isinstance(like, str) else _shape(like, found.document)
        return Record.opened(found, source, shape=shape)
    except BaseException:
        source.close()
        raise


def _shape(like: Any, document: Document) -> Node:
    """The shape to write a record in: the declared one, with the Options that a binary file showed."""
    options = document.options
    if document.heading.minor < _MINOR:  # an Option of a number has a mark there, and none in the last release
        options &= {path for path, _ in parameters_of(declare(like, document.heading.minor))}
    return marked(declare(like, _MINOR), options)


def record_of(model: Any) -> Record:
    """The record of a model, as Burn's ``into_record`` gives it: its tensors are read when the record is written.

    >>> from burnstore import nn
    >>> record_of(nn.Linear(2, 3)).item["weight"].snapshot.shape
    (2, 3)
    """
    shape = declare(model, _MINOR)
    tensors = {snapshot.path: snapshot for snapshot in collect(model)}
    declared = [path for path, _ in parameters_of(shape)]
    beside = sorted(set(tensors) ^ set(declared))
    if beside:
        raise ModelError(
            "a record of Burn 0.21 has no place for this tensor of the model",
            tensor=beside[0],
            hint="declare the model with burnstore.nn, or save Burnpack",
        )
    return Record(tree_of(shape, tensors), shape=shape)


def save_file(
    model: Any,
    path: str | os.PathLike[str],
    recorder: FileRecorder,
    *,
    overwrite: bool = False,
    durable: bool = True,
) -> None:
    """Save a model with a recorder, as Burn's ``model.save_file(path, &recorder)``."""
    _checked(recorder).record(record_of(model), path, overwrite=overwrite, durable=durable)


def load_file(model: Any, path: str | os.PathLike[str], recorder: FileRecorder, **options: Any) -> ApplyResult:
    """Load a model with a recorder, as Burn's ``model.load_file(path, &recorder)``, and say what became of each tensor.

    Options are those of `load_record` (``allow_partial=True`` ...) and ``undecided=`` and ``limits=`` of the recorder's
    ``load``. Tensors whose place was another in the release that wrote the file are brought to the model's.
    """
    given = {name: options.pop(name) for name in ("undecided", "limits") if name in options}
    with _checked(recorder).load(path, like=model, **given) as record:
        return load_record(model, record, **options)


def load_record(
    model: Any, record: Record, *, allow_partial: bool = False, validate: bool = True, **options: Any
) -> ApplyResult:
    """Load a model from a record, as Burn's ``model.load_record(record)``, and say what became of each tensor.

    Raises LoadError if a tensor does not fit, MissingTensorsError if a parameter finds none, unless ``validate`` and
    ``allow_partial`` say otherwise; the model is then as it was. Further options are those of `apply`.
    """
    if not isinstance(record, Record):
        raise TypeError(f"load_record takes a Record, not {type(record).__name__}")
    return apply(model, placed(record, model), allow_partial=allow_partial, validate=validate, **options)


def placed(record: Record, model: Any) -> list[TensorSnapshot]:
    """The tensors of a record under the paths that they have in the model, whichever release wrote it."""
    places = _places(model, record.metadata) if record.metadata else {}
    return [
        snapshot if places.get(name, name) == name else snapshot.with_path(places[name])
        for name, snapshot in record.tensors().items()
    ]


def _places(model: Any, metadata: Mapping[str, str]) -> dict[str, str]:
    """Where each tensor of a record of that release is in the model."""
    minor = int(metadata["version"].split(".")[1])
    here = {slot.identity(): slot.path for slot in binding_for(model).walk(model)}
    found = {}
    for path, parameter in parameters_of(declare(model, minor)):
        place = here.get(id(parameter.holder))
        if place is not None:
            found[path] = place
    return found


def _checked(recorder: FileRecorder) -> FileRecorder:
    if not isinstance(recorder, FileRecorder):
        raise TypeError(f"a recorder is a NamedMpkFileRecorder() or another one, not {recorder!r}")
    return recorder


def _batches(made: Iterator[Buffer]) -> Iterator[list[Buffer]]:
    """The pieces in groups that go out in one write each."""
    batch: list[Buffer] = []
    pending = 0
    for piece in made:
        batch.append(piece)
        pending += memoryview(piece).nbytes
        if pending >= _WRITTEN_AT_ONCE or len(batch) >= 1024:
            yield batch
            batch, pending = [], 0
    if batch:
        yield batch
