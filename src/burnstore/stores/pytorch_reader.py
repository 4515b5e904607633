"""PytorchReader: a file of ``torch.save`` tensor by tensor, with the facts of its container."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ..checkpoint import open_checkpoint
from ..errors import counted, located
from ..formats import pytorch
from ..limits import Limits
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from .config import config_from_file

_FORMAT_TYPES = {"zip": "Zip", "script": "Zip", "exported": "Zip", "legacy": "Legacy", "tar": "Tar", "pickle": "Pickle"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PytorchMetadata:
    """The facts of a PyTorch file's container."""

    format_type: str
    """``Zip``, ``Legacy``, ``Tar`` or ``Pickle``."""
    format_version: str | None
    """The record ``.format_version`` of a zip."""
    pytorch_version: str | None
    """The record ``version`` of a zip: the version of the archive's format, not of PyTorch."""
    byte_order: str
    """``LittleEndian`` or ``BigEndian``."""
    has_storage_alignment: bool
    tensor_count: int
    total_data_size: int | None
    """The bytes of all storages; None where they are inside the pickle."""
    archive_root: str
    """The folder of the zip that contains everything."""
    pickle_protocol: int

    def is_modern_format(self) -> bool:
        """Return whether it is the zip that PyTorch writes since 1.6."""
        return self.format_type == "Zip"

    def is_legacy_format(self) -> bool:
        """Return whether it is the stream that PyTorch wrote before 1.6."""
        return self.format_type == "Legacy"


class PytorchReader:
    """The tensors of a PyTorch file, lazily, and the facts of its container; no model is needed, nothing in it is run.

    >>> import pickle, numpy as np
    >>> reader = PytorchReader.from_bytes(pickle.dumps({"weight": np.ones((2, 3), np.float32)}))
    >>> reader.keys(), reader.get("weight").shape, reader.metadata().format_type
    (['weight'], (2, 3), 'Pickle')
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | bytes,
        *,
        top_level_key: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        options: dict[str, Any] = {} if top_level_key is None else {"top_level_key": top_level_key}
        self._limits = limits or Limits()
        self._checkpoint = open_checkpoint(file, format="pytorch", limits=self._limits, **options)

    @classmethod
    def with_top_level_key(cls, path: str | os.PathLike[str], key: str, **options: Any) -> PytorchReader:
        """Open a file and take the tensors below this key; names do not repeat it."""
        return cls(path, top_level_key=key, **options)

    @classmethod
    def from_bytes(cls, data: bytes, **options: Any) -> PytorchReader:
        """Open a file that is in memory, whichever container it is."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"expected bytes, got {type(data).__name__}")
        return cls(bytes(data), **options)

    def keys(self) -> list[str]:
        """Return the names of all tensors, in the order of the file."""
        return list(self._checkpoint)

    def get(self, name: str) -> TensorSnapshot | None:
        """Return the tensor of this name, None if the file has none."""
        return self._checkpoint.get(name)

    def tensors(self) -> dict[str, TensorSnapshot]:
        """Return all tensors by name; each is read on request."""
        return dict(self._checkpoint)

    def metadata(self) -> PytorchMetadata:
        """Return the facts of the container."""
        with located(path=self._checkpoint.path):
            file = pytorch.read_pickled(self._checkpoint._source, self._limits)
        embedded = file.container == "pickle"
        return PytorchMetadata(
            format_type=_FORMAT_TYPES[file.container],
            format_version=file.facts.get("format_version"),
            pytorch_version=file.facts.get("version"),
            byte_order="BigEndian" if file.big_endian else "LittleEndian",
            has_storage_alignment="storage_alignment" in file.facts,
            tensor_count=len(self._checkpoint),
            total_data_size=None if embedded else sum(storage.nbytes for storage in file.storages),
            archive_root=file.facts.get("root", "").rstrip("/"),
            pickle_protocol=file.protocol,
        )

    @property
    def notes(self) -> list[Note]:
        """What should be known about how the tensors were found, one sentence each."""
        return list(self._checkpoint.notes)

    def is_empty(self) -> bool:
        """Return whether the file has no tensors."""
        return len(self) == 0

    def close(self) -> None:
        """Close the file; tensors that were not read can no longer be read."""
        self._checkpoint.close()

    @staticmethod
    def read_pickle_data(file: str | os.PathLike[str] | bytes, top_level_key: str | None = None) -> Any:
        """Return the contents of a file, or of a key, as plain data; tensors and objects as `Opaque`."""
        return config_from_file(file, top_level_key)

    @staticmethod
    def load_config(
        file: str | os.PathLike[str] | bytes, into: Any, top_level_key: str | None = None, *, ignore_extra: bool = False
    ) -> Any:
        """Return the configuration in a file as an object of this type; the same as `config_from_file`."""
        return config_from_file(file, top_level_key, into, ignore_extra=ignore_extra)

    def __len__(self) -> int:
        return len(self._checkpoint)

    def __enter__(self) -> PytorchReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PytorchReader {self._checkpoint.path!r}: {counted(len(self), 'tensor')}>"
