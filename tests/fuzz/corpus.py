"""Which mutant has which number: all follow from a seed and an index, so that any one can be made again."""

from __future__ import annotations

from random import Random

from . import mutate, structure
from .seeds import fixtures, made, pack, random_file
from .structure import Seed

_INDEX_BITS = 48


class Corpus:
    """The seeds, and the mutants made of them: odd numbers by structure, even ones by bytes."""

    def __init__(self) -> None:
        self.seeds = [Seed(name, data) for name, data in {**fixtures(), **made()}.items()]
        self.files = [seed.data for seed in self.seeds]
        # Small files are drawn more often: a reader takes all its branches with three tensors, and takes them sooner.
        self._deck = [seed for seed in self.seeds for _ in range(_weight(seed))]
        self._rng = Random()

    def mutant(self, seed: int, index: int) -> bytes:
        """The mutant of that number."""
        rng = self._rng
        rng.seed(seed << _INDEX_BITS | index)
        if index % 2:
            origin = Seed("random", random_file(rng)) if rng.random() < 0.15 else rng.choice(self._deck)
            return structure.mutate(origin, rng)
        origin = rng.choice(self._deck)
        if rng.random() < 0.4:  # the edit stays inside the metadata and the lengths around it are put right
            other = rng.choice(self._deck)
            metadata = mutate.mutate(origin.metadata, len(origin.metadata), [other.metadata], rng)
            return pack(metadata, origin.body, unaligned=origin.unaligned)
        return mutate.mutate(origin.data, origin.metadata_end + 4, self.files, rng)

    def count_bits(self) -> int:
        """How many bits the headers and metadata of all seeds have together."""
        return sum(8 * seed.metadata_end for seed in self.seeds)

    def flipped(self, index: int) -> bytes:
        """The file with that one of all bits flipped."""
        for seed in self.seeds:
            bits = 8 * seed.metadata_end
            if index < bits:
                return with_bit_flipped(seed.data, index)
            index -= bits
        raise IndexError(index)


def _weight(seed: Seed) -> int:
    if seed.name.startswith("quantized"):
        return 1  # there are many of them
    return 1 + 20 // (1 + len(seed.by_role.get("descriptor", ())))


def with_bit_flipped(data: bytes, bit: int) -> bytes:
    """The bytes with one bit the other way round."""
    mutant = bytearray(data)
    mutant[bit // 8] ^= 1 << bit % 8
    return bytes(mutant)
