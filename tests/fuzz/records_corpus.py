"""Records and their mutants: odd numbers by structure, even ones by bytes; each follows from its number."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import msgpack

from . import mutate
from .corpus import with_bit_flipped

FIXTURES = Path(__file__).parents[1] / "fixtures" / "records"
_INDEX_BITS = 48
_LARGEST = 3000
_GZIP = b"\x1f\x8b"
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        255,
        256,
        1 << 31,
        (1 << 63) - 1,
        (1 << 64) - 1,
        1.5,
        -0.0,
        "",
        "F32",
        "Bool",
        "x" * 70,
    ),
    *(
        [],
        {},
        [0],
        [1, 2],
        [None, None],
        [1.5],
        [True, 1],
        {"Bool": "Native"},
        {"QFloat": {}},
        {"a": 1},
        b"",
        b"\0" * 24,
    ),
    *("0400000000000", "00000000-0000-4000-8000-000000000001", [1 << 62, 4], [[]], {"": None}, [0, 65535], [-1, 5]),
)
_KEYS = (
    "bytes",
    "shape",
    "dtype",
    "id",
    "param",
    "value",
    "metadata",
    "item",
    "_b",
    "version",
    "weight",
    "",
    "a.b",
    "é",
)


class RecordsCorpus:
    """The seeds, and the mutants made of them."""

    def __init__(self) -> None:
        paths = sorted(FIXTURES.glob("*/*.full.*")) + sorted(FIXTURES.glob("*/*.half.*"))
        found = [path.read_bytes() for path in paths if path.stat().st_size <= _LARGEST]
        escaped = json.dumps({"metadata": {"float": "f32"}, "item": {'"\u00e9\n': None}}).encode()
        self.files = [*found, escaped]
        self._plain = [gzip.decompress(data) if data.startswith(_GZIP) else data for data in found]
        self._trees = [msgpack.unpackb(data) for data in self._plain if data.startswith(b"\x83\xa8metadata")]
        self._rng = Random()

    def mutant(self, seed: int, index: int) -> bytes:
        """The mutant of that number."""
        rng = self._rng
        rng.seed(seed << _INDEX_BITS | index)
        if index % 2:
            mutant = self._by_structure(rng)
        elif rng.random() < 0.1:
            return mutate.mutate(rng.choice(self.files), 200, self.files, rng)
        else:
            origin = rng.choice(self._plain)
            # Most of a record's length is its first five texts; what is to be read begins behind them.
            start = rng.choice((0, origin.find(b"PrecisionSettings", 100) + 17))
            mutant = origin[:start] + mutate.mutate(origin[start:], len(origin), self._plain, rng)
        return gzip.compress(mutant, 1) if rng.random() < 0.1 else mutant

    def count_bits(self) -> int:
        """How many bits all seeds have together."""
        return sum(8 * len(data) for data in self._plain)

    def flipped(self, index: int) -> bytes:
        """The file with that one of all bits flipped."""
        for data in self._plain:
            if index < 8 * len(data):
                return with_bit_flipped(data, index)
            index -= 8 * len(data)
        raise IndexError(index)

    def _by_structure(self, rng: Random) -> bytes:
        tree = _copied(rng.choice(self._trees))
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            _edit(tree, rng)
        if rng.random() < 0.5:
            return msgpack.packb(tree, use_single_float=rng.random() < 0.5)
        return json.dumps(tree, indent=rng.choice((None, 2)), default=list).encode()


def _copied(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copied(each) for key, each in tree.items()}
    return [_copied(each) for each in tree] if isinstance(tree, list) else tree


def _edit(tree: Any, rng: Random) -> None:
    """Change one place of the tree, deep down as often as not."""
    node = tree
    while True:
        below = [
            each
            for each in (node.values() if isinstance(node, dict) else node)
            if isinstance(each, (dict, list)) and each
        ]
        if not below or rng.random() < 0.12:
            break
        node = rng.choice(below)
    if isinstance(node, list):
        at = rng.randrange(len(node))
        if rng.random() < 0.3:
            del node[at]
        elif rng.random() < 0.5:
            node.insert(at, _copied(rng.choice(_VALUES)))
        else:
            node[at] = _copied(rng.choice(_VALUES))
        return
    key = rng.choice(list(node))
    kind = rng.random()
    if kind < 0.2:
        del node[key]
    elif kind < 0.6:
        node[key] = _copied(rng.choice(_VALUES))
    elif kind < 0.8:
        node[rng.choice(_KEYS)] = node[key]
    else:
        value = node[key]
        node[key] = value[:-1] if isinstance(value, (bytes, str)) and value else {"deeper": value}
