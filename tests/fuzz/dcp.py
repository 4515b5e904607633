"""Hostile distributed checkpoints: mutants of real metadata and real files, each of which follows from its number.

``python -m tests.fuzz.dcp --cases N --seed S`` opens and reads that many. Every outcome must be tensors or an error of
burnstore's own; anything else is printed with its number, and the command fails.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

import burnstore as bs
from burnstore.errors import BurnstoreError

_SAVED = Path(__file__).parents[1] / "fixtures" / "dcp4"
_TARGETS = ("dcp/.metadata", "dcp/__1_0.distcp", "dcp/__3_0.distcp", "hf/shard-00002-model-00001-of-00002.safetensors")
_TARGETS += ("ranks/model_world_size_4_rank_1.pt",)
_NUMBERS = (b"\x00", b"\xff", b"\x7f", b"\x80", b"K\x00", b"K\xff", b"J\xff\xff\xff\xff", b"N", b"]", b"}", b")", b"0")


def mutate(raw: bytes, random: Random) -> bytes:
    """Return other bytes: some changed, cut, doubled, or taken from elsewhere in the file."""
    data = bytearray(raw)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        at = random.randrange(len(data) or 1)
        kind = random.randrange(7)
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
        elif kind == 5:
            del data[at:]
        else:
            data[at : at + 8] = random.choice((0, 1, 2**31, 2**62, 2**63 - 1)).to_bytes(8, "little")
    return bytes(data)


def run(cases: int, seed: int) -> int:
    """Run the cases; return how many ended in a foreign exception."""
    foreign = opened = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(shutil.copytree(_SAVED, Path(place) / "saved"))
        for number in range(cases):
            random = Random(f"{seed}-{number}")
            target = folder / random.choice(_TARGETS)
            raw = target.read_bytes()
            target.write_bytes(mutate(raw, random))
            try:
                with bs.open(target.parent, top_level_key="") as file:
                    file.numpy()
                opened += 1
            except (BurnstoreError, FileNotFoundError):
                pass
            except Exception as error:  # what the command is for
                foreign += 1
                print(f"case {number} of seed {seed}, {target.name}: {type(error).__name__}: {error}")
            finally:
                target.write_bytes(raw)
    print(f"{cases} cases of seed {seed}: {opened} read, {foreign} foreign exceptions")
    return foreign


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.exit(bool(run(given.cases, given.seed)))
