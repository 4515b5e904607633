"""Hostile checkpoints in parts: mutants of real files in memory, each of which follows from its seed and number.

    python -m tests.fuzz.dcp --cases 1000000 --seed 1 --minutes 5 --jobs 16
    python -m tests.fuzz.dcp --subject metadata --seed 1 --only 1234

The subjects are the metadata of a distributed checkpoint, its files, files of ranks (DTensors, ShardedTensors), torch's
shards as SafeTensors, and DeepSpeed's partitions. Every outcome must be tensors or an error of burnstore's own;
anything else, and a case of more than a second, is printed with its number, and the command fails. It needs NumPy,
ml_dtypes and torch, no network and no free port.
"""

from __future__ import annotations

import io
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from burnstore.errors import BurnstoreError
from burnstore.formats import dcp, pytorch, safetensors
from burnstore.formats.base import Contents
from burnstore.io.source import BytesSource, JoinedSource
from burnstore.limits import Limits
from burnstore.tensor.facts import PieceData
from burnstore.tensor.sources import SourceData

from .drive import Judge, run

_SAVED = Path(__file__).parents[1] / "fixtures" / "dcp4"
_NUMBERS = (b"\x00", b"\xff", b"\x7f", b"\x80", b"K\x00", b"K\xff", b"J\xff\xff\xff\xff", b"N", b"]", b"}", b")", b"0")
_WIDE = (0, 1, 2, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**64 - 1)

Files = Mapping[str, bytes]


class HeldFile(BytesSource):
    """A file of a folder that is in memory."""

    def __init__(self, files: Files, name: str) -> None:
        super().__init__(files[name], name=f"/held/{name}")
        self.files = files

    @property
    def identity(self) -> tuple[Any, ...]:
        """The name: no two files are one."""
        return (self.name,)

    def is_current(self) -> bool:
        """Return True: the files do not change."""
        return True

    def open_sibling(self, name: str) -> HeldFile:
        """Return the file of that name."""
        if name not in self.files:
            raise FileNotFoundError(name)
        return HeldFile(self.files, name)

    def prefetch_siblings(self, names: Sequence[str]) -> None:
        """Do nothing: they are here."""


def mutate(raw: bytes, random: Random) -> bytes:
    """Return other bytes: some changed, cut, doubled, or taken from elsewhere in the file; often numbers alone."""
    data = bytearray(raw)
    kinds: Sequence[int] = (0, 6, 6, 6) if random.random() < 0.4 else range(8)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        at = random.randrange(len(data) or 1)
        kind = random.choice(kinds)
        if kind == 0:
            data[at : at + 1] = bytes([random.randrange(256)])
        elif kind == 1:
            data[at : at + 1] = random.choice(_NUMBERS)
        elif kind == 2:
            del data[at : at + random.randrange(1, 40)]
        elif kind == 3:
            data[at:at] = data[at : at + random.randrange(1, 40)]
        elif kind == 4:
            other = random.randrange(len(data) or 1)
            length = random.randrange(1, 60)
            data[at : at + length] = data[other : other + length]
        elif kind == 5 and random.random() < 0.3:
            del data[at:]
        elif kind == 6:
            _change_number(data, at, random)
        else:
            data[at : at + 8] = random.choice(_WIDE).to_bytes(8, "little")
    return bytes(data)


def mutate_pickle(raw: bytes, random: Random) -> bytes:
    """Return a file of ``torch.save`` whose pickle is changed, in a zip that is whole and has the right checksums."""
    source, target = zipfile.ZipFile(io.BytesIO(raw)), io.BytesIO()
    with zipfile.ZipFile(target, "w") as made:
        for member in source.infolist():
            held = source.read(member)
            made.writestr(
                zipfile.ZipInfo(member.filename), mutate(held, random) if member.filename.endswith(".pkl") else held
            )
    return target.getvalue()


def _change_number(data: bytearray, at: int, random: Random) -> None:
    """Change the small number behind the next opcode that has one, as sizes, offsets and lengths are."""
    place = data.find(b"K", at)
    if 0 <= place < len(data) - 1:
        data[place + 1] = random.choice((0, 1, 2, 3, data[place + 1] ^ 1, data[place + 1] + 1 & 255, 255))


@cache
def _folder(name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((_SAVED / name).iterdir())}


def _saved(value: Any) -> bytes:
    import torch

    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


@cache
def _small_checkpoint() -> dict[str, bytes]:
    """Return a checkpoint of two ranks with a tensor in two pieces, a plain one and a number."""
    import pickle

    import torch
    import torch.distributed.checkpoint.filesystem as fs
    import torch.distributed.checkpoint.metadata as md

    entries: dict[str, Any] = {"step": md.BytesStorageMetadata()}
    places: dict[Any, Any] = {}
    files = {"__0_0.distcp": b"", "__1_0.distcp": b""}

    def put(index: Any, file: str, value: Any) -> None:
        raw = _saved(value)
        places[index] = fs._StorageInfo(file, len(files[file]), len(raw))
        files[file] += raw

    def describe(shape: tuple[int, ...], starts: Sequence[tuple[int, ...]], size: tuple[int, ...]) -> Any:
        chunks = [md.ChunkStorageMetadata(torch.Size(start), torch.Size(size)) for start in starts]
        return md.TensorStorageMetadata(md.TensorProperties(torch.float32), torch.Size(shape), chunks)

    put(md.MetadataIndex("step"), "__0_0.distcp", 7)
    entries["w"] = describe((4, 2), [(0, 0), (2, 0)], (2, 2))
    for rank in (0, 1):
        put(md.MetadataIndex("w", (2 * rank, 0), rank), f"__{rank}_0.distcp", torch.full((2, 2), float(rank)))
    entries["b"] = describe((3,), [(0,)], (3,))
    put(md.MetadataIndex("b", (0,)), "__1_0.distcp", torch.arange(3.0))
    paths = {"step": ("step",), "w": ("w",), "b": ("b",)}
    return {**files, ".metadata": pickle.dumps(md.Metadata(entries, paths, places))}


@cache
def _zero(stage: int) -> dict[str, bytes]:
    """Return a checkpoint of DeepSpeed ZeRO of two ranks with one group of two parameters."""
    import torch

    shapes = OrderedDict(a=torch.Size((3, 2)), b=torch.Size((2,)))
    state = {"module": {"n": torch.zeros(1)}, "buffer_names": ["n"], "param_shapes": [shapes], "ds_version": "0.15.0"}
    key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    files = {"mp_rank_00_model_states.pt": _saved(state)}
    if stage == 3:
        files = {f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt": _saved(state) for rank in (0, 1)}
    for rank in (0, 1):
        optimizer = {"zero_stage": stage, "partition_count": 2 if stage == 3 else [2], key: [torch.ones(4)]}
        files[f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"] = _saved({"optimizer_state_dict": optimizer})
    return files


# --- the subjects -----------------------------------------------------------------------------------------------------


def _read_all(contents: Contents, source: Any) -> None:
    """Read every tensor; that of a part as the part."""
    table = contents.table
    for row, size in enumerate(table.sizes):
        data = table.apart.get(row) or SourceData(contents.source or source, table.offsets[row], size)
        np.frombuffer((data.data if isinstance(data, PieceData) else data).window(0, size), np.uint8)


def _outcome(read: Callable[[Any], Contents], source: Any) -> str:
    try:
        contents = read(source)
    except BurnstoreError as error:
        return f"refused by {error.rule or type(error).__name__}"
    try:
        _read_all(contents, source)
    except BurnstoreError as error:
        return f"opened, a tensor refused by {error.rule or type(error).__name__}"
    return "opened and read"


def _changed(files: Files, random: Random, ending: str) -> tuple[dict[str, bytes], str]:
    name = random.choice([name for name in files if name.endswith(ending)])
    change = mutate_pickle if ending == ".pt" and random.random() < 0.7 else mutate
    return {**files, name: change(files[name], random)}, name


def metadata_case(seed: int, number: int) -> str:
    """Open a checkpoint whose metadata is changed."""
    random = Random(f"metadata-{seed}-{number}")
    files, _ = _changed(_folder("dcp") if number % 8 == 0 else _small_checkpoint(), random, ".metadata")
    return _outcome(lambda source: dcp.read(source, Limits()), HeldFile(files, ".metadata"))


def data_case(seed: int, number: int) -> str:
    """Open a checkpoint with a changed file of pieces."""
    random = Random(f"data-{seed}-{number}")
    files, _ = _changed(_folder("dcp") if number % 8 == 0 else _small_checkpoint(), random, ".distcp")
    return _outcome(lambda source: dcp.read(source, Limits()), HeldFile(files, ".metadata"))


def ranks_case(seed: int, number: int) -> str:
    """Open a changed file of a rank; one of four together with the others."""
    random = Random(f"ranks-{seed}-{number}")
    files, name = _changed(_folder(("ranks", "strided", "sharded", "several")[number // 4 % 4]), random, ".pt")
    source: Any = HeldFile(files, name)
    if number % 4 == 0:
        source = JoinedSource("/held", [HeldFile(files, each) for each in files])
    return _outcome(lambda source: pytorch.read(source, Limits(), top_level_key=""), source)


def shards_case(seed: int, number: int) -> str:
    """Open torch's shards as SafeTensors, one of them changed."""
    random = Random(f"shards-{seed}-{number}")
    files, name = _changed(_folder("hf"), random, ".safetensors")
    source: Any = JoinedSource("/held", [HeldFile(files, each) for each in files]) if number % 4 else None
    return _outcome(lambda source: safetensors.read(source, Limits()), source or HeldFile(files, name))


def zero_case(seed: int, number: int) -> str:
    """Open the partitions of DeepSpeed ZeRO, one file changed."""
    random = Random(f"zero-{seed}-{number}")
    files, _ = _changed(_zero((1, 2, 3)[number % 3]), random, ".pt")
    names = sorted(files, key=lambda name: (name.endswith("optim_states.pt"), name))
    return _outcome(lambda source: pytorch.read(source, Limits(), shards=names), HeldFile(files, names[0]))


SUBJECTS: dict[str, Judge] = {
    "metadata": metadata_case,
    "data": data_case,
    "ranks": ranks_case,
    "shards": shards_case,
    "zero": zero_case,
}

if __name__ == "__main__":
    run(__doc__, SUBJECTS)
