"""The recorders and importers of older Burn releases, for reading, writing and migrating their files.

Every recorder of Burn up to 0.21 is here under its name, with its three precision settings. They write the files of
Burn 0.21.0 and read those of every older release. The importers of Burn up to 0.20 (``burn-import``) load PyTorch
weights as the record of a Burn model, which a recorder can write. New code uses `BurnpackStore`, `SafetensorsStore` or
`convert`.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from ..checkpoint import open_checkpoint
from ..errors import ModelError, UnknownFormatError, located, printable
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
from ..io.opening import open_source
from ..io.paths import as_path, base_name, folder_of, is_remote, join
from ..limits import Limits
from ..models.bindings import binding_for
from ..models.result import ApplyResult
from ..pipeline.ends import input_of_file
from ..pipeline.execute import apply
from ..pipeline.load import load_input
from ..pipeline.options import Pipeline
from ..pipeline.save import collect
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import PyTorchToBurnAdapter
from ..transforms.remap import KeyRemapper

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "AdapterType",
    "BinFileRecorder",
    "BinGzFileRecorder",
    "CompactRecorder",
    "DefaultRecorder",
    "DoublePrecisionSettings",
    "FullPrecisionSettings",
    "HalfPrecisionSettings",
    "JsonGzFileRecorder",
    "LoadArgs",
    "NamedMpkFileRecorder",
    "NamedMpkGzFileRecorder",
    "PrecisionSettings",
    "PrettyJsonFileRecorder",
    "PyTorchFileRecorder",
    "Record",
    "RecordTensor",
    "SafetensorsFileRecorder",
    "load_file",
    "load_record",
    "open_record",
    "record_of",
    "save_file",
]

_MINOR = int(LAST_VERSION.split(".")[1])
_WRITTEN_AT_ONCE = 1 << 20
_RULE = "---"


class _WithSettings:
    """The precision of a recorder or an importer."""

    def __init__(self, settings: PrecisionSettings = FullPrecisionSettings) -> None:
        if not isinstance(settings, PrecisionSettings):
            raise TypeError(f"settings must be a class such as FullPrecisionSettings, got {type(settings).__name__}")
        self.settings = settings

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings.name})"


class FileRecorder(_WithSettings):
    """The base of all recorders; a recorder is one encoding with one precision.

    As in Burn the extension of a path is the recorder's own: ``model`` and ``model.v1`` both mean ``model.mpk``. Unlike
    in Burn a path that has it already is left alone (``a.mpk.gz`` does not become ``a.mpk.mpk.gz``), and an existing
    file is replaced only with ``overwrite=True``.
    """

    encoding: ClassVar[str]
    extension: ClassVar[str]
    compressed: ClassVar[bool] = False

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        like: Any = None,
        undecided: DType | str | None = None,
        limits: Limits | None = None,
    ) -> Record:
        """Open the record in this file; its tensors are read on request.

        ``like`` declares the model, which binary records need; ``"Adam"``, ``"Sgd"``, ``"Cosine"`` ... for the state of
        an optimizer or a scheduler. Precision and release are the file's own. Raises FileNotFoundError, FormatError,
        and UnknownFormatError for a record of another recorder.
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
        """Write a record into this file, all or nothing, as Burn 0.21.0 writes it; missing folders are created.

        Tensors are converted to the recorder's precision as they are written. ``like`` declares the model where the
        record itself does not know its shape and the encoding needs it: a binary record.
        """
        if not isinstance(record, Record):
            raise TypeError(f"expected a Record, got {type(record).__name__}; save_file saves a model")
        if like is not None:
            record = Record(record.item, shape=like if isinstance(like, str) else declare(like, _MINOR))
        path = self.path_of(path)
        if not is_remote(path):
            os.makedirs(os.path.dirname(path) or os.curdir, exist_ok=True)
        with located(path=path):
            made = pieces(record, self.encoding, self.settings, compressed=self.compressed)
            if self.compressed:
                made = deflated(made)
            with atomic_file(path, overwrite=overwrite, durable=durable) as scratch:
                for batch in _batches(made):
                    scratch.write(*batch)

    def path_of(self, path: str | os.PathLike[str]) -> str:
        """Return the path with the recorder's extension in place of its own."""
        text = as_path(path)
        name = base_name(text)
        if name.lower().endswith(f".{self.extension}"):
            return text
        return join(folder_of(text), f"{os.path.splitext(name)[0]}.{self.extension}")


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

    encoding, extension = "mpk", "mpk"


class NamedMpkGzFileRecorder(FileRecorder):
    """MessagePack with names, compressed (``.mpk.gz``)."""

    encoding, extension, compressed = "mpk", "mpk.gz", True


class BinFileRecorder(FileRecorder):
    """Bincode (``.bin``): no names, so loading needs ``like=`` a declaration of the model with all its fields."""

    encoding, extension = "bin", "bin"


class BinGzFileRecorder(FileRecorder):
    """Bincode, compressed (``.bin.gz``)."""

    encoding, extension, compressed = "bin", "bin.gz", True


class JsonGzFileRecorder(FileRecorder):
    """JSON without blanks, compressed (``.json.gz``)."""

    encoding, extension, compressed = "json", "json.gz", True


class PrettyJsonFileRecorder(FileRecorder):
    """JSON with a line for every number (``.json``); for looking at small models."""

    encoding, extension = "json", "json"


class DefaultRecorder(NamedMpkFileRecorder):
    """Burn's default: MessagePack in full precision."""

    def __init__(self) -> None:
        super().__init__(FullPrecisionSettings)


class CompactRecorder(NamedMpkFileRecorder):
    """Burn's compact recorder: MessagePack in half precision."""

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
    """Open the record in a file of any recorder, or of ``recorder`` alone; its bytes decide, not its name."""
    source = open_source(path)
    try:
        found = read_record(source, limits or Limits(), like=like, undecided=undecided)
        if recorder is not None and (found.encoding, found.compressed) != (recorder.encoding, recorder.compressed):
            found.data.close()
            raise UnknownFormatError(
                f"the record has another encoding: {found.variant}",
                path=source.name,
                rule="BR-01",
                hint="use burnstore.open or open_record, which take any",
            )
        shape = like if like is None or isinstance(like, str) else _shape(like, found.document)
        return Record.opened(found, source, shape=shape)
    except BaseException:
        source.close()
        raise


def _shape(like: Any, document: Document) -> Node:
    """Return the shape to write a record in: the declared one, with the Options that a binary file marks."""
    options = document.options
    if document.heading.minor < _MINOR:  # an Option of a number has a mark there, and none in the last release
        options &= {path for path, _ in parameters_of(declare(like, document.heading.minor))}
    return marked(declare(like, _MINOR), options)


def record_of(model: Any) -> Record:
    """Make the record of a model, as Burn's ``into_record`` does; its tensors are read when the record is written.

    >>> from burnstore import nn
    >>> record_of(nn.Linear(2, 3)).item["weight"].snapshot.shape
    (2, 3)
    """
    shape = declare(model, _MINOR)
    tensors = {snapshot.path: snapshot for snapshot in collect(model)}
    declared = [path for path, _ in parameters_of(shape)]
    unplaced = sorted(set(tensors) ^ set(declared))
    if unplaced:
        raise ModelError(
            "a record of Burn 0.21 has no place for this tensor of the model",
            tensor=unplaced[0],
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
    """Load a model with a recorder, as Burn's ``model.load_file(path, &recorder)``, and report on each tensor.

    Options are those of `load_record` (``allow_partial=True`` ...) and ``undecided=`` and ``limits=`` of the recorder's
    ``load``. Tensors that had another path in the release that wrote the file are moved to the model's.
    """
    given = {name: options.pop(name) for name in ("undecided", "limits") if name in options}
    with _checked(recorder).load(path, like=model, **given) as record:
        return load_record(model, record, **options)


def load_record(
    model: Any, record: Record, *, allow_partial: bool = False, validate: bool = True, **options: Any
) -> ApplyResult:
    """Load a model from a record, as Burn's ``model.load_record(record)``, and report on each tensor.

    Raises LoadError if a tensor does not fit, MissingTensorsError if a parameter finds none, unless ``validate`` or
    ``allow_partial`` allow it; the model then stays unchanged. Further options are those of `apply`.
    """
    if not isinstance(record, Record):
        raise TypeError(f"expected a Record, got {type(record).__name__}")
    tensors = placed(record, model)
    options.setdefault("allow_empty", not tensors)
    return apply(model, tensors, allow_partial=allow_partial, validate=validate, **options)


def placed(record: Record, model: Any) -> list[TensorSnapshot]:
    """Return the tensors of a record under the paths that they have in the model, whichever release wrote it."""
    places: dict[str, str] = {}
    if record.metadata:
        minor = int(record.metadata["version"].split(".")[1])
        here = {slot.identity(): slot.path for slot in binding_for(model).walk(model)}
        for path, parameter in parameters_of(declare(model, minor)):
            places[path] = here.get(id(parameter.holder), path)
    return [
        snapshot if places.get(name, name) == name else snapshot.with_path(places[name])
        for name, snapshot in record.tensors().items()
    ]


def _checked(recorder: FileRecorder) -> FileRecorder:
    if not isinstance(recorder, FileRecorder):
        raise TypeError(f"a recorder must be a FileRecorder such as NamedMpkFileRecorder(), got {recorder!r}")
    return recorder


def _batches(made: Iterator[Buffer]) -> Iterator[list[Buffer]]:
    """Group the pieces into lists that go out in one write each."""
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


class AdapterType(Enum):
    """How an importer converts tensors to Burn's form."""

    PyTorch = "PyTorch"
    """Transpose the weights of Linear layers, and rename weight and bias of norms to gamma and beta."""
    NoAdapter = "NoAdapter"
    """Leave them unchanged."""


class LoadArgs:
    """The file and the options of an import; methods change the object and return it.

    >>> args = LoadArgs("conv2d.pt").with_key_remap(r"conv\\.(.*)", "$1").with_top_level_key("my_state_dict")
    >>> args
    LoadArgs('conv2d.pt')
    """

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self.file = as_path(file)
        self.remapper = KeyRemapper()
        self.top_level_key: str | None = None
        self.adapter_type = AdapterType.PyTorch
        self.debug: Callable[[str], object] | None = None

    def with_key_remap(self, pattern: str | re.Pattern[str], replacement: str) -> LoadArgs:
        """Replace the matches of a pattern in every name of the file; rules are applied in order."""
        self.remapper.add_pattern(pattern, replacement)
        return self

    def with_top_level_key(self, key: str) -> LoadArgs:
        """Take the tensors below this key of a PyTorch file."""
        if not isinstance(key, str):
            raise TypeError(f"a top-level key must be a str, got {type(key).__name__}")
        self.top_level_key = key
        return self

    def with_adapter_type(self, adapter_type: AdapterType) -> LoadArgs:
        """Choose how tensors are converted to Burn's form; by default as those of PyTorch."""
        if not isinstance(adapter_type, AdapterType):
            raise TypeError(f"adapter_type must be AdapterType.PyTorch or AdapterType.NoAdapter, got {adapter_type!r}")
        self.adapter_type = adapter_type
        return self

    def with_debug_print(self, write: Callable[[str], object] = print) -> LoadArgs:
        """Print the names, old and new, with shapes and dtypes before anything is loaded."""
        self.debug = write
        return self

    def __repr__(self) -> str:
        return f"LoadArgs({self.file!r})"


class _Importer(_WithSettings):
    """The base of both importers."""

    format: ClassVar[str]

    def load(self, args: LoadArgs | str | os.PathLike[str], *, like: Any) -> Record:
        """Return the record of the model that ``like`` declares, with the tensors of the file.

        ``like`` itself stays unchanged. Names are remapped, indices with gaps made contiguous, names of enum variants
        left out: the declared variant counts. Tensors that the model has no place for are left out. Raises LoadError
        for a tensor that does not fit, MissingTensorsError for a parameter that finds none, DuplicateNameError where
        renaming makes two names equal.
        """
        if not isinstance(args, LoadArgs):
            args = LoadArgs(args)
        model = copy.deepcopy(like)
        with open_checkpoint(args.file, **self._options(args)) as file:
            if file.format != self.format:
                raise UnknownFormatError(f"expected a {self.format} file, got {file.format}", path=args.file)
            pipeline = Pipeline(
                rename=args.remapper,
                indices=True,
                skip_enum_variants=True,
                layout=None if args.adapter_type is AdapterType.PyTorch else "burn",
                adapter=PyTorchToBurnAdapter() if args.adapter_type is AdapterType.PyTorch else None,
            )
            if args.debug is not None:
                args.debug(_described(file.values(), args.remapper))
            load_input(model, input_of_file(file), pipeline)
        return record_of(model)

    def convert(
        self,
        args: LoadArgs | str | os.PathLike[str],
        path: str | os.PathLike[str],
        *,
        like: Any,
        recorder: FileRecorder | None = None,
        overwrite: bool = False,
    ) -> None:
        """Load and write the record in one call; by default as MessagePack (``.mpk``) in this importer's precision."""
        chosen = NamedMpkFileRecorder(self.settings) if recorder is None else recorder
        chosen.record(self.load(args, like=like), path, overwrite=overwrite)

    def _options(self, args: LoadArgs) -> Mapping[str, Any]:
        return {}


class PyTorchFileRecorder(_Importer):
    """Load a file of ``torch.save`` as the record of a Burn model; no code in it is ever run."""

    format = "pytorch"

    def _options(self, args: LoadArgs) -> Mapping[str, Any]:
        return {} if args.top_level_key is None else {"top_level_key": args.top_level_key}


class SafetensorsFileRecorder(_Importer):
    """Load a SafeTensors file as the record of a Burn model; by default its tensors have PyTorch's layout."""

    format = "safetensors"

    def _options(self, args: LoadArgs) -> Mapping[str, Any]:
        if args.top_level_key is not None:
            raise ValueError("a SafeTensors file has no top-level keys")
        return {}


def _described(given: Iterable[TensorSnapshot], remapper: KeyRemapper) -> str:
    """Describe every tensor by its old and new name, as Burn's importers print them."""
    lines = ["Debug information of keys and tensor shapes:", _RULE]
    for name, tensor in sorted(((remapper.remap_name(each.path), each) for each in given), key=lambda pair: pair[0]):
        if name == tensor.path:
            lines.append(f"Key: {printable(name)}")
        else:
            lines += [f"Original Key: {printable(tensor.path)}", f"Remapped Key: {printable(name)}"]
        lines += [f"Shape: {list(tensor.shape)}", f"Dtype: {tensor.dtype.name}", _RULE]
    return "\n".join(lines)
