"""Mutants by bytes: flips, edges of integers, insertions, deletions, splices, cuts. All from the caller's `Random`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

EDGES = sorted(
    {0, 1, 2, 3, 7, 8, 9, 10, 23, 24, 25, 31, 63, 64, 65, 127, 128, 255, 256, 257, 65535, 65536, 100_000, 100_001}
    | {sign + (1 << bits) for bits in (7, 15, 16, 31, 32, 47, 53, 62, 63, 64) for sign in (-1, 0, 1)}
)
"""Integers at which readers go wrong."""

HOT_BYTES = bytes(
    (0x00, 0x01, 0x17, 0x18, 0x19, 0x1A, 0x1B, 0x1F, 0x20, 0x3B, 0x40, 0x5F, 0x60, 0x77, 0x78, 0x7B, 0x7F)
)
HOT_BYTES += bytes((0x80, 0x82, 0x97, 0x98, 0x9B, 0x9F, 0xA0, 0xA1, 0xA3, 0xA4, 0xA5, 0xB8, 0xBB, 0xBF, 0xC2, 0xD8))
HOT_BYTES += bytes((0xF4, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFA, 0xFB, 0xFF, 0x0A, 0x7E))
"""Bytes with a meaning in CBOR, UTF-8 or text."""

Edit = Callable[[bytearray, int, Random], None]


def _flip(data: bytearray, at: int, rng: Random) -> None:
    data[at] ^= 1 << rng.getrandbits(3)


def _set(data: bytearray, at: int, rng: Random) -> None:
    data[at] = rng.getrandbits(8)


def _set_hot(data: bytearray, at: int, rng: Random) -> None:
    data[at] = rng.choice(HOT_BYTES)


def _nudge(data: bytearray, at: int, rng: Random) -> None:
    data[at] = (data[at] + rng.choice((-16, -2, -1, 1, 2, 16))) & 255


def _edge(data: bytearray, at: int, rng: Random) -> None:
    width = rng.choice((1, 2, 4, 8))
    value = rng.choice(EDGES) & ((1 << 8 * width) - 1)
    data[at : at + width] = value.to_bytes(width, rng.choice(("little", "big")))


def _insert(data: bytearray, at: int, rng: Random) -> None:
    data[at:at] = rng.randbytes(rng.choice((1, 1, 1, 2, 3, 8, 30)))


def _insert_hot(data: bytearray, at: int, rng: Random) -> None:
    data[at:at] = bytes((rng.choice(HOT_BYTES),))


def _delete(data: bytearray, at: int, rng: Random) -> None:
    del data[at : at + rng.choice((1, 1, 1, 2, 3, 8, 30))]


def _repeat(data: bytearray, at: int, rng: Random) -> None:
    data[at:at] = data[at : at + rng.randint(1, 70)]


def _move(data: bytearray, at: int, rng: Random) -> None:
    length = rng.randint(1, 40)
    piece = data[at : at + length]
    del data[at : at + length]
    to = rng.randrange(len(data) + 1)
    data[to:to] = piece


def _fill(data: bytearray, at: int, rng: Random) -> None:
    stop = min(len(data), at + rng.randint(2, 24))
    data[at:stop] = bytes((rng.choice(HOT_BYTES),)) * (stop - at)


_EDITS: tuple[Edit, ...] = (
    *(_flip, _flip, _flip, _set, _set_hot, _set_hot, _nudge, _nudge, _edge, _edge),
    *(_insert, _insert_hot, _delete, _repeat, _move, _fill),
)


def mutate(data: bytes, hot: int, others: Sequence[bytes], rng: Random) -> bytes:
    """A mutant of ``data``: a few edits, most of them before ``hot``; now and then a cut or a splice with another."""
    kind = rng.random()
    if kind < 0.03:
        return data[: rng.randrange(len(data) + 1)]
    if kind < 0.06:
        other = rng.choice(others)
        return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]
    mutant = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3, 5))):
        if not mutant:
            break
        reach = min(hot, len(mutant)) if rng.random() < 0.85 else len(mutant)
        rng.choice(_EDITS)(mutant, rng.randrange(reach or 1), rng)
    return bytes(mutant)
