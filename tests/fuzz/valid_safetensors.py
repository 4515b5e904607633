"""Random files that are valid for the safetensors package: each must open here, with the same contents.

    python -m tests.fuzz.valid_safetensors --files 20000 --seed 1

A file is written by the package itself, or spelled by hand as another writer might: white space anywhere, descriptors
with their fields in any order, escapes, metadata first, last, empty, null or absent, tensors of any dtype and shape
(without elements, without axes), data in another order than the header, padding of any length. The package judges what
is valid; what it refuses is not counted. What burnstore refuses on purpose (the rules that its specification marks as
stricter) is not made: other fields, equal names, more than 64 axes, names of more than 64 KiB.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save

import burnstore as bs

WIDTHS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
NUMPY = ["bool", "u1", "i1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8"]
LETTERS = [
    "a",
    "Z",
    "9",
    ".",
    "_",
    "/",
    "\\",
    '"',
    " ",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\n",
    "\0",
    "\x1f",
    "\x7f",
    "é",
    "重",
    "🔥",
]
WHITE = ["", "", "", " ", "\n", "\t", "\r\n", "    "]


@dataclass(frozen=True)
class Made:
    """A file and what is in it."""

    data: bytes
    tensors: dict[str, tuple[tuple[int, ...], bytes]]
    metadata: dict[str, str]
    way: str


def text(random: Random, longest: int = 12) -> str:
    if random.random() < 0.02:
        return random.choice("ab") * random.choice((200, 255, 256, 5000, 60_000))
    return "".join(random.choice(LETTERS) for _ in range(random.randrange(longest)))


def shape_of(random: Random) -> tuple[int, ...]:
    rank = random.choice((0, 1, 1, 2, 2, 3, 4, 8, 20))
    return tuple(random.choice((1, 1, 2) if rank > 4 else (0, 1, 2, 3, 5, 8)) for _ in range(rank))


def raw_of(random: Random, dtype: str, nbytes: int) -> bytes:
    return bytes(random.randrange(2) for _ in range(nbytes)) if dtype == "BOOL" else random.randbytes(nbytes)


def by_the_package(random: Random) -> Made:
    arrays = {}
    for _ in range(random.randrange(6)):
        kind = np.dtype(random.choice(NUMPY))
        shape = shape_of(random)
        raw = raw_of(random, "BOOL" if kind.kind == "b" else "", kind.itemsize * math.prod(shape))
        arrays[text(random)] = np.frombuffer(raw, kind).reshape(shape)
    arrays.pop("__metadata__", None)
    metadata = {text(random): text(random) for _ in range(random.randrange(4))}
    data = save(arrays, metadata or None)
    return Made(data, {name: (array.shape, array.tobytes()) for name, array in arrays.items()}, metadata, "package")


def by_hand(random: Random) -> Made:
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for _ in range(random.randrange(7)):
        dtype, shape = random.choice(list(WIDTHS)), shape_of(random)
        bits = WIDTHS[dtype] * math.prod(shape)
        if bits % 8 == 0:
            tensors[text(random)] = dtype, shape, raw_of(random, dtype, bits // 8)
    placed = list(tensors)
    random.shuffle(placed)
    places, end = {}, 0
    for name in placed:
        places[name] = (end, end + len(tensors[name][2]))
        end = places[name][1]
    entries = []
    for name, (dtype, shape, _) in tensors.items():
        fields = [
            ("dtype", json.dumps(dtype)),
            ("shape", spelled_list(random, shape)),
            ("data_offsets", spelled_list(random, places[name])),
        ]
        if random.random() < 0.5:
            random.shuffle(fields)
        entries.append(f"{quoted(random, name)}{white(random)}:{white(random)}{spelled_object(random, fields)}")
    random.shuffle(entries)
    metadata: dict[str, str] = {}
    kind = random.choice(("absent", "null", "empty", "some", "some"))
    if kind != "absent":
        metadata = {text(random): text(random) for _ in range(random.randrange(1, 4))} if kind == "some" else {}
        pairs = [(key, quoted(random, value)) for key, value in metadata.items()]
        value = "null" if kind == "null" else spelled_object(random, pairs)
        entries.insert(random.choice((0, len(entries))), f'"__metadata__"{white(random)}:{white(random)}{value}')
    body = f"{white(random)},{white(random)}".join(entries)
    header = f"{{{white(random)}{body}{white(random)}}}{' ' * random.choice((0, 0, 1, 7, 100))}".encode()
    data = len(header).to_bytes(8, "little") + header + b"".join(tensors[name][2] for name in placed)
    return Made(data, {name: (shape, raw) for name, (_, shape, raw) in tensors.items()}, metadata, f"hand, {kind}")


def white(random: Random) -> str:
    return random.choice(WHITE)


def quoted(random: Random, name: str) -> str:
    return json.dumps(name, ensure_ascii=random.random() < 0.5)


def spelled_list(random: Random, numbers: tuple[int, ...]) -> str:
    return "[" + ",".join(f"{white(random)}{number}{white(random)}" for number in numbers) + "]"


def spelled_object(random: Random, pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{white(random)}{quoted(random, key)}:{white(random)}{value}" for key, value in pairs) + "}"


def with_second_names(made: Made) -> dict[str, Any]:
    """The tensors, and those that the metadata names again, as ``safetensors.torch.save_model`` notes ties."""
    stated = ("format", "producer", "version")
    second = {
        name: made.tensors[kept]
        for name, kept in made.metadata.items()
        if kept in made.tensors and name not in made.tensors and name not in stated
    }
    is_torch = made.metadata.get("format") == "pt"
    return made.tensors | (second if is_torch or len(second) == len(made.metadata) else {})


def check(made: Made) -> str:
    """How it went: ``invalid`` where the package refuses the file, ``opened``, or what is wrong."""
    try:
        found = dict(safetensors.deserialize(made.data))
    except safetensors.SafetensorError:
        return "invalid"
    assert found.keys() == made.tensors.keys()
    try:
        with bs.open(made.data) as f:
            if f.format != "safetensors" or dict(f.metadata) != made.metadata:
                return f"wrong: {f.format}, {dict(f.metadata)}"
            if {name: (t.shape, t.to_bytes()) for name, t in f.items()} != with_second_names(made):
                return "wrong: other tensors"
    except bs.BurnstoreError as error:
        return f"refused: {type(error).__name__}: {error}"
    return "opened"


def run(files: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Check so many valid files; the counts, and what is wrong with those that are not opened."""
    random = Random(seed)
    counts: Counter[str] = Counter()
    wrong = []
    while counts["opened"] + len(wrong) < files:
        made = by_the_package(random) if random.random() < 0.3 else by_hand(random)
        outcome = check(made)
        if outcome in ("opened", "invalid"):
            counts[outcome] += 1
            counts[made.way] += outcome == "opened"
        else:
            wrong.append(f"{outcome}: {made.data[:200]!r}")
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    counts, wrong = run(arguments.files, arguments.seed)
    print(f"files={arguments.files} seed={arguments.seed} wrong={len(wrong)} {dict(counts)}")
    for each in wrong[:20]:
        print(each)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
