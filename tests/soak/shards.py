"""Read a sharded set again and again while two processes save it; count the reads that mix two saves.

    python tests/soak/shards.py --reads 1000000 --seed 1 [--folder /dev/shm]

Every save has a number, which is the value of all its tensors, and a random count and size of shards. A read opens the
set, by its name or by its folder, and takes all tensors: they must have one value. Exit code 1 if any read was mixed or
failed, or if what remains in the end is not one whole set and nothing else.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.sharedctypes import Synchronized
from random import Random
from typing import Any

import numpy as np

import burnstore as bs

TENSORS = 4
ROUND = 10_000  # reads in one folder: then what two saves left is counted, and another is made


def save(path: str, number: int, random: Random) -> None:
    tensors = {f"layers.{n}.weight": np.full(10, number, np.int64) for n in range(TENSORS)}
    size = random.choice((80, 160))
    bs.save(tensors, path, max_shard_size=size, overwrite=True, durable=False)


def write(path: str, seed: int, first: int, stop: Any, saves: Synchronized[int]) -> None:
    random = Random(seed)
    number = first
    while not stop.is_set():
        save(path, number, random)
        number += 2
        with saves.get_lock():
            saves.value += 1
        time.sleep(random.random() * 0.03 if random.random() < 0.7 else 0)


def value_of(path: str) -> int | None:
    """The one value of all tensors, None if there are several."""
    with bs.open(path) as f:
        found = {int(value) for array in f.numpy().values() for value in array} if len(f) == TENSORS else set()
    return found.pop() if len(found) == 1 else None


def soak(reads: int, random: Random, folder: str) -> Counter[str]:
    """Read a set so many times under two writers, and check what they leave."""
    counts: Counter[str] = Counter()
    values: set[int | None] = set()
    path = os.path.join(folder, "model.safetensors")
    save(path, 0, random)
    context = multiprocessing.get_context("fork")
    stop, saves = context.Event(), context.Value("q", 0)
    seeds = random.sample(range(1 << 30), 2)
    writers = [context.Process(target=write, args=(path, seed, n + 1, stop, saves)) for n, seed in enumerate(seeds)]
    for writer in writers:
        writer.start()
    for _ in range(reads):
        try:
            value = value_of(folder if random.random() < 0.1 else path)
            counts["mixed"] += value is None
            values.add(value)
        except (bs.BurnstoreError, OSError) as error:
            counts["failed"] += 1
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    stop.set()
    for writer in writers:
        writer.join()
    with open(f"{path}.index.json", encoding="utf-8") as index:
        named = set(json.load(index)["weight_map"].values())
    counts["orphans"] += sum(name.endswith(".safetensors") and name not in named for name in os.listdir(folder))
    counts["not_whole"] += value_of(path) is None
    counts["saves"] += saves.value
    counts["sets"] += len(values)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default=None, help="where to make the sets; a file system in memory is fastest")
    arguments = parser.parse_args()
    random = Random(arguments.seed)
    counts: Counter[str] = Counter()
    begun = time.monotonic()
    for done in range(0, arguments.reads, ROUND):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            counts += soak(min(ROUND, arguments.reads - done), random, folder)
        if arguments.reads > ROUND:
            print(f"{min(done + ROUND, arguments.reads)} reads: {dict(counts)}", file=sys.stderr, flush=True)
    wrong = {name: counts[name] for name in ("mixed", "failed", "not_whole", "orphans")}
    print(
        f"reads={arguments.reads} {' '.join(f'{name}={count}' for name, count in wrong.items())} "
        f"saves={counts['saves']} sets={counts['sets']} "
        f"seconds={time.monotonic() - begun:.0f} seed={arguments.seed}"
    )
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
