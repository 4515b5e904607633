"""Random contents of a Burnpack file, and any of them again by its number; as both sides need them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from random import Random
from typing import Any

import burnstore as bs
from burnstore.formats.burnpack.quant_spelling import scheme_from_tree
from burnstore.tensor.data import TensorData
from burnstore.tensor.dtype import DType
from burnstore.tensor.snapshot import TensorSnapshot
from fuzz import seeds

from .program import Tensor, dtype_to_json

_INDEX_BITS = 48
_LETTERS = "abcdefghijklmnopqrstuvwxyz_0123456789"
_ODD_SEGMENTS = ("", "größe", "重み", "\U0001f525", "r#type", "nul\0", "new\nline", "a b", '"quoted"', "\\", "e\u0301")
_ODD_SEGMENTS += ("\u2028", "\ufeff", "\U0010ffff", "x" * 23, "x" * 24, "y" * 255, "y" * 256, "0", "01", "-1")
_PLAIN = [*seeds.PLAIN, "Bool", "Bool(U8)", "Bool(U32)"]
_IDS = (0, 1, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
_EXTENTS = (0, 1, 1, 1, 2, 2, 3, 4, 5, 7, 8, 16, 23, 24, 25, 64, 255, 256, 257)
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor to be."""

    path: str
    dtype: DType
    shape: tuple[int, ...]
    param_id: int | None
    raw: bytes

    def snapshot(self) -> TensorSnapshot:
        data = TensorData.from_bytes(self.raw, self.dtype, self.shape)
        return TensorSnapshot.from_data(self.path, data, param_id=self.param_id)

    def described(self) -> Tensor:
        digest = hashlib.sha256(self.raw).hexdigest()
        return Tensor(self.path, self.dtype, self.shape, self.param_id, digest)


@dataclass(frozen=True, slots=True)
class Content:
    """The tensors of a file in the order of their data, and its texts."""

    entries: tuple[Entry, ...]
    metadata: dict[str, str]

    def packed(self) -> bytes:
        """The file as burnstore writes it."""
        tensors = [entry.snapshot() for entry in self.entries]
        return bs.serialize(tensors, format="burnpack", metadata=self.metadata, layout="burn", burn_version="0.22")

    def described(self) -> list[Tensor]:
        """What a reader of the file should find, by name."""
        return sorted((entry.described() for entry in self.entries), key=lambda tensor: tensor.path.encode())

    def request(self, out: str) -> dict[str, Any]:
        """What Burn is asked to write."""
        return {
            "out": out,
            "metadata": self.metadata,
            "tensors": [
                {
                    "path": entry.path,
                    "dtype": dtype_to_json(entry.dtype),
                    "shape": list(entry.shape),
                    "param_id": entry.param_id,
                    "hex": entry.raw.hex(),
                }
                for entry in self.entries
            ],
        }


def content(seed: int, index: int) -> Content:
    """The content of that number."""
    rng = Random(seed << _INDEX_BITS | index)
    names = list(dict.fromkeys(_name(rng) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 6, 10, 30)))))
    return Content(tuple(_entry(name, rng) for name in names), _metadata(rng))


def _name(rng: Random) -> str:
    if rng.random() < 0.002:
        return "n" * rng.choice((65535, 65536))
    return ".".join(_segment(rng) for _ in range(rng.choice((1, 1, 2, 2, 3, 5))))


def _segment(rng: Random) -> str:
    if rng.random() < 0.15:
        return rng.choice(_ODD_SEGMENTS)
    if rng.random() < 0.05:
        return "".join(_character(rng) for _ in range(rng.randint(1, 8)))
    return "".join(rng.choices(_LETTERS, k=rng.randint(1, 9)))


def _character(rng: Random) -> str:
    while True:
        code = rng.randrange(0x110000)
        if not 0xD800 <= code < 0xE000:  # halves of a pair are no text
            return chr(code)


def _entry(name: str, rng: Random) -> Entry:
    param_id = rng.choice((None, rng.choice(_IDS), rng.getrandbits(64)))
    if rng.random() < 0.2:
        shape = rng.choice(((4, 4), (3, 5), (2, 8), (8, 2), (4, 2, 6), (16,), (2, 3, 4, 5)))
        tree = rng.choice([tree for tree in seeds.quantized_dtypes() if "tensor" in tree["QFloat"]])
        scheme = scheme_from_tree(tree["QFloat"])
        if scheme.store.dim < len(shape) and (scheme.block is None or len(scheme.block.size) <= len(shape)):
            made = seeds.quantized(name, tree, shape, rng)
            return Entry(name, DType.qfloat(scheme), shape, param_id, made.data)
    dtype = DType.parse(rng.choice(_PLAIN))
    shape = _shape(dtype, rng)
    count = math.prod(shape)
    if dtype.is_bool:
        raw = b"".join(rng.getrandbits(1).to_bytes(dtype.bits // 8, "little") for _ in range(count))
    else:
        raw = rng.randbytes(dtype.nbytes(shape))
    return Entry(name, dtype, shape, param_id, raw)


def _shape(dtype: DType, rng: Random) -> tuple[int, ...]:
    while True:
        rank = rng.choice((0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 8, 23, 24, 64))
        shape = tuple(rng.choice(_EXTENTS if rank < 6 else (1, 1, 1, 1, 2)) for _ in range(rank))
        if dtype.nbytes(shape) <= _MOST_BYTES:
            return shape


def _metadata(rng: Random) -> dict[str, str]:
    kind = rng.random()
    if kind < 0.2:
        return {}
    texts = {_name(rng)[:300]: _name(rng)[:2000] for _ in range(rng.choice((0, 1, 2, 5, 30)))}
    return texts if kind < 0.5 else {**texts, "format": "burnpack", "producer": "burn", "version": "0.22.1"}
