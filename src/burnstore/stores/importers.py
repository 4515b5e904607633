"""The importers of Burn up to 0.20 (``burn-import``): weights of PyTorch as a record of a Burn model.

They do what a store does with an adapter, in the words of the old guides. A model is declared with `burnstore.nn`; what
is loaded comes back as a `Record`, to be put into a model with `load_record` or written with a recorder, so that a
program in Rust needs no importer at run time. For anything new take `SafetensorsStore` or `convert`.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, ClassVar

from ..checkpoint import open_checkpoint
from ..errors import UnknownFormatError, printable
from ..formats.record.heading import FullPrecisionSettings, PrecisionSettings
from ..formats.record.record import Record
from ..pipeline.execute import apply
from ..tensor.snapshot import TensorSnapshot
from ..transforms.adapters import PyTorchToBurnAdapter
from ..transforms.indices import contiguous_names
from ..transforms.remap import KeyRemapper, keep_distinct
from .records import FileRecorder, NamedMpkFileRecorder, record_of

_RULE = "---"


class AdapterType(Enum):
    """How tensors are brought into Burn's form."""

    PyTorch = "PyTorch"
    """Transpose the weights of Linear layers, and rename weight and bias of norms to gamma and beta."""
    NoAdapter = "NoAdapter"
    """Take them as they are."""


class LoadArgs:
    """What to load and how; methods change it and return it.

    >>> args = LoadArgs("conv2d.pt").with_key_remap(r"conv\\.(.*)", "$1").with_top_level_key("my_state_dict")
    >>> args
    LoadArgs('conv2d.pt')
    """

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self.file = os.fsdecode(file)
        self.remapper = KeyRemapper()
        self.top_level_key: str | None = None
        self.adapter_type = AdapterType.PyTorch
        self.debug: Callable[[str], object] | None = None

    def with_key_remap(self, pattern: str | re.Pattern[str], replacement: str) -> LoadArgs:
        """Rename: in every name of the file, replace what the pattern matches; rules follow one another."""
        self.remapper.add_pattern(pattern, replacement)
        return self

    def with_top_level_key(self, key: str) -> LoadArgs:
        """Take the tensors below this key of a PyTorch file."""
        if not isinstance(key, str):
            raise TypeError(f"a top-level key is a str, not {type(key).__name__}")
        self.top_level_key = key
        return self

    def with_adapter_type(self, adapter_type: AdapterType) -> LoadArgs:
        """Bring tensors into Burn's form in this way; by default they are those of PyTorch."""
        if not isinstance(adapter_type, AdapterType):
            raise TypeError(f"adapter_type is AdapterType.PyTorch or AdapterType.NoAdapter, not {adapter_type!r}")
        self.adapter_type = adapter_type
        return self

    def with_debug_print(self, write: Callable[[str], object] = print) -> LoadArgs:
        """Print the names, old and new, with shapes and dtypes before anything is loaded."""
        self.debug = write
        return self

    def __repr__(self) -> str:
        return f"LoadArgs({self.file!r})"


class _Importer:
    """What both importers share."""

    format: ClassVar[str]

    def __init__(self, settings: PrecisionSettings = FullPrecisionSettings) -> None:
        if not isinstance(settings, PrecisionSettings):
            raise TypeError(f"settings are FullPrecisionSettings or one of the others, not {type(settings).__name__}")
        self.settings = settings

    def load(self, args: LoadArgs | str | os.PathLike[str], *, like: Any) -> Record:
        """The record of the model that ``like`` declares, with the tensors of the file; ``like`` itself stays as it is.

        Names are remapped, indices with gaps made contiguous, names of enum variants left out: the variant is the one
        that is declared. Tensors that the model has no place for are left out. Raises LoadError for a tensor that does
        not fit, MissingTensorsError for a parameter that finds none, DuplicateNameError where renaming makes two names
        one.
        """
        if not isinstance(args, LoadArgs):
            args = LoadArgs(args)
        model = copy.deepcopy(like)
        with open_checkpoint(args.file, **self._options(args)) as file:
            if file.format != self.format:
                raise UnknownFormatError(f"it is a {file.format} file, not one of {self.format}", path=args.file)
            given = list(file.values())
            renaming = args.remapper.remap_names([snapshot.path for snapshot in given])
            if args.debug is not None:
                args.debug(_described(renaming.names, given))
            names = contiguous_names(renaming.names).names
            rows = keep_distinct(names, renaming.originals, "error")
            adapter = PyTorchToBurnAdapter() if args.adapter_type is AdapterType.PyTorch else None
            apply(
                model,
                [given[row].with_path(names[row]) for row in rows],
                adapter=adapter,
                skip_enum_variants=True,
                allow_partial=False,
                validate=True,
            )
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

    def _options(self, args: LoadArgs) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings.name})"


class PyTorchFileRecorder(_Importer):
    """Loads a file of ``torch.save`` as the record of a Burn model; no code in it is ever run."""

    format = "pytorch"

    def _options(self, args: LoadArgs) -> dict[str, Any]:
        return {} if args.top_level_key is None else {"top_level_key": args.top_level_key}


class SafetensorsFileRecorder(_Importer):
    """Loads a SafeTensors file as the record of a Burn model; unless told otherwise its tensors are PyTorch's."""

    format = "safetensors"

    def _options(self, args: LoadArgs) -> dict[str, Any]:
        if args.top_level_key is not None:
            raise ValueError("a SafeTensors file has no top-level keys")
        return {}


def _described(names: Iterable[str], given: Iterable[TensorSnapshot]) -> str:
    """Every tensor by its old and new name, as Burn's importers print them."""
    lines = ["Debug information of keys and tensor shapes:", _RULE]
    for name, tensor in sorted(zip(names, given, strict=True), key=lambda pair: (pair[0], pair[1].path)):
        if name == tensor.path:
            lines.append(f"Key: {printable(name)}")
        else:
            lines += [f"Original Key: {printable(tensor.path)}", f"Remapped Key: {printable(name)}"]
        lines += [f"Shape: {list(tensor.shape)}", f"Dtype: {tensor.dtype.name}", _RULE]
    return "\n".join(lines)
