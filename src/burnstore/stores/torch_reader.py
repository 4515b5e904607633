"""Read any file of burnstore's through torch's distributed checkpoint: ``dcp.load`` of a trainer, with resharding.

    import torch.distributed.checkpoint as dcp
    from burnstore.stores.torch_reader import storage_reader

    dcp.load(state_dict, storage_reader=storage_reader("model.bpk"))

Each rank reads the rows that it needs, and nothing else. torch is the caller's: nothing here imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from ..checkpoint import Checkpoint, open_checkpoint
from ..errors import MissingDependencyError, TensorNotFoundError, UnsupportedError
from ..pipeline.compile_file import compile_convert
from ..pipeline.ends import input_of_file
from ..pipeline.options import Pipeline
from ..tensor.snapshot import TensorSnapshot
from ..tensor.torch import torch_dtype


def storage_reader(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Checkpoint, *, top_level_key: str | None = None
) -> Any:
    """Return a ``StorageReader`` of torch for a file of any format, in torch's names and axes.

    A file of Burn's layout is converted by the modules that it records; ModelError if it records none. ``source`` is
    what `burnstore.open` takes. Raises MissingDependencyError unless torch.distributed.checkpoint is imported.
    """
    file = source if isinstance(source, Checkpoint) else open_checkpoint(source, top_level_key=top_level_key)
    plan = compile_convert(input_of_file(file), Pipeline(), None if file.layout is None else "torch", None)
    return _reader_class()(file, {move.snapshot.path: move.snapshot for move in plan.moves})


@cache
def _reader_class() -> type[Any]:
    """Return the class, which derives from torch's."""
    torch: Any = sys.modules.get("torch")
    dcp: Any = sys.modules.get("torch.distributed.checkpoint")
    if torch is None or dcp is None:
        raise MissingDependencyError(
            "a StorageReader is for torch.distributed.checkpoint, which is not imported",
            hint="import torch.distributed.checkpoint first",
        )
    metadata, planner = dcp.metadata, dcp.planner
    base: Any = dcp.StorageReader

    class StorageReader(base):  # type: ignore[misc]  # of torch, which is Any
        """Whole tensors of one open file, of which each rank reads its part."""

        def __init__(self, file: Checkpoint, tensors: dict[str, TensorSnapshot]) -> None:
            self._file = file
            self._tensors = tensors

        def reset(self, checkpoint_id: Any = None) -> None:
            """Keep the file that was opened; another one needs another reader."""

        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            """Return the metadata of the file, each tensor one chunk."""
            entries, places = {}, {}
            for name, tensor in self._tensors.items():
                size, origin = torch.Size(tensor.shape), torch.Size((0,) * len(tensor.shape))
                properties = metadata.TensorProperties(dtype=torch_dtype(tensor.dtype))
                chunk = metadata.ChunkStorageMetadata(offsets=origin, sizes=size)
                entries[name] = metadata.TensorStorageMetadata(properties, size, [chunk])
                places[metadata.MetadataIndex(name, origin)] = name
            return metadata.Metadata(entries, {name: (name,) for name in entries}, places, metadata.StorageMeta())

        def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
            """Need nothing of the metadata: the file is open."""

        def prepare_local_plan(self, plan: Any) -> Any:
            return plan

        def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
            return plans

        def read_data(self, plan: Any, planner_of_rank: Any) -> Any:
            """Read the part of each tensor that the plan of this rank asks for."""
            for item in plan.items:
                name = item.storage_index.fqn
                if item.type is planner.LoadItemType.BYTE_IO:
                    raise UnsupportedError("the state dict wants an object, a file has tensors", tensor=name)
                if name not in self._tensors:
                    raise TensorNotFoundError("the file has no such tensor", path=self._file.path, tensor=name)
                part = tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths, strict=True))
                tensor = self._tensors[name]
                is_whole = tuple(item.lengths) == tensor.shape
                values = tensor if is_whole else TensorSnapshot.from_numpy(name, tensor[part])
                target = planner_of_rank.resolve_tensor(item).detach()
                target.copy_(values.torch().reshape(target.shape))
                planner_of_rank.commit_tensor(item, target)
            done = torch.futures.Future()
            done.set_result(None)
            return done

        @classmethod
        def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
            return True

    return StorageReader
