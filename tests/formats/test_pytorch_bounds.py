"""Work and memory are bounded by the size of a file, in all (law 8); hostile tensors give errors of our own."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.errors import BurnstoreError
from fuzz import torch_bytes as tb

TENSOR = tb.tensor(tb.storage(tb.text("0"), 1), (1,))


WIDE = tb.storage(tb.text("0"), 40_000)


def zipped(value: bytes, raw: bytes = bytes(4)) -> bytes:
    return tb.torch_zip(tb.pickled(value), {"0": raw})


def nested(key: bytes, depth: int, width: int) -> bytes:
    """Dicts inside dicts, each under the same long key, with tensors in the innermost."""
    inner = b"}(" + b"".join(tb.text(str(n)) + b"h\2" for n in range(width)) + b"u"
    body = key + b"q\1" + b"0" + TENSOR + b"q\2" + b"0"
    return body + (b"}(" + b"h\1") * depth + inner + b"u" * depth


BOMBS: dict[str, Callable[[], bytes]] = {
    "a long key at many levels": lambda: zipped(nested(tb.text("k" * 60_000), 900, 1)),
    "a long prefix of many names": lambda: zipped(nested(tb.text("k" * 5_000), 10, 5_000)),
    "a long key in a list of many": lambda: zipped(
        tb.dict_of((tb.text("k" * 50_000), b"](" + TENSOR + b"q\1" + b"h\1" * 10_000 + b"e"))
    ),
    "objects that share objects": lambda: zipped(
        tb.dict_of((tb.text("w"), TENSOR)) + b"q\0"
        + b"".join(b"0}(" + tb.text("a") + b"h\0" + tb.text("b") + b"h\0uq\0" for _ in range(40))
    ),
    "views that expand one storage": lambda: zipped(
        tb.dict_of(*((tb.text(str(n)), tb.tensor(tb.storage(tb.text("0"), 1), (1 << 27,), (0,))) for n in range(60)))
    ),
    "windows on one storage": lambda: zipped(
        tb.dict_of(*((tb.text(str(n)), tb.tensor(WIDE, (20_000, 10_000), (1, 1))) for n in range(9))),
        bytes(160_000),
    ),
    "many names of one large tensor": lambda: zipped(
        b"](" + tb.tensor(tb.storage(tb.text("0"), 1), (1 << 25,), (0,)) + b"q\1" + b"h\1" * 20_000 + b"e"
    ),
}  # fmt: skip


@pytest.mark.slow("bombs")
@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_file_never_costs_much(kind: str) -> None:
    data = BOMBS[kind]()
    assert len(data) < 300_000
    bs.open(zipped(tb.dict_of((tb.text("w"), TENSOR)))).close()  # what opening imports is imported now
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(bs.errors.LimitError):
            bs.open(data)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 10


LONG: dict[str, Callable[[], bytes]] = {
    "a long path above many dicts": lambda: zipped(
        tb.text("k" * 60_000) + b"q\1" + b"0" + TENSOR + b"q\2" + b"0}(" + tb.text("w") + b"h\2h\1" + b"}(h\1" * 11
        + b"}(" + b"".join(tb.text(str(n)) + b"}" for n in range(800)) + b"u" + b"u" * 12
    ),
    "a long key below keys without a name": lambda: zipped(
        tb.text("k" * 60_000) + b"q\1" + b"0" + tb.call(tb.name("m", "Key")) + b"q\2" + b"0}(" + tb.text("w") + TENSOR
        + tb.text("l") + b"](" + (b"}h\2}h\1" + TENSOR + b"ss") * 1_500 + b"eu"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LONG)
def test_a_small_file_with_long_keys_opens_at_little_cost(kind: str) -> None:
    """Names that lead to no tensor, and places in notes, are not made in full."""
    data = LONG[kind]()
    assert len(data) < 300_000
    bs.open(zipped(tb.dict_of((tb.text("w"), TENSOR)))).close()  # what opening imports is imported now
    tracemalloc.start()
    try:
        with bs.open(data) as file:
            assert "w" in file and len("".join(file.notes)) < 10_000
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()


def test_what_is_shared_or_expanded_within_reason_is_read() -> None:
    """Layers that many names share, and masks that repeat one row, are common."""
    shared = tb.tensor(tb.storage(tb.text("0"), 100_000), (100_000,)) + b"q\1"
    value = b"](" + shared + b"h\1" * 200 + tb.tensor(tb.storage(tb.text("0"), 100_000), (1000, 1000), (0, 1)) + b"e"
    with bs.open(zipped(value, bytes(400_000))) as f:
        assert len(f) == 202


PARTS = [
    tb.tensor(tb.storage(tb.text(key), 4096, tb.name("torch", f"{kind}Storage")), shape)
    for key, kind in (("0", "Float"), ("1", "Long"), ("2", "Byte"), ("3", "ComplexFloat"), ("4", "Bool"))
    for shape in ((), (0,), (3,), (2, 3), (3, 2, 2), (1, 4096), (4, 2, 2, 2))
]


def hostile(maker: random.Random) -> bytes:
    """A sparse or quantized tensor of parts that do not belong together."""
    size = tb.ints(*(maker.choice((0, 1, 2, 3, 4, 50)) for _ in range(maker.randrange(5))))
    kind = maker.choice(("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "quantized"))
    if kind == "quantized":
        storage = tb.storage(tb.text("5"), 4096, tb.name("torch", f"{maker.choice(('QInt8', 'QUInt8'))}Storage"))
        shape = (maker.choice((0, 3, 4)), maker.choice((2, 3)))
        how = tb.tuple_of(
            *(tb.name("torch", "per_channel_affine"), maker.choice(PARTS), maker.choice(PARTS)),
            tb.integer(maker.randrange(3)),
        )
        arguments = (storage, tb.integer(0), tb.ints(*shape), tb.ints(*tb.row_major(shape)), how, b"\x89", tb.HOOKS)
        return tb.call(tb.name("torch._utils", "_rebuild_qtensor"), *arguments)
    layout = tb.call(tb.name("torch.serialization", "_get_layout"), tb.text(f"torch.{kind}"))
    parts = [maker.choice(PARTS) for _ in range(2 if kind == "sparse_coo" else 3)]
    if maker.random() < 0.3:  # nearly right: two rows of indices, three values
        parts, size = [PARTS[7 + 3] if kind == "sparse_coo" else PARTS[7 + 2], *parts[2:], PARTS[2]], tb.ints(5, 5)
    return tb.call(tb.name("torch._utils", "_rebuild_sparse_tensor"), layout, tb.tuple_of(*parts, size))


@pytest.mark.slow("bombs")
def test_hostile_composites_give_errors_of_our_own() -> None:
    maker = random.Random(4)
    numbers = np.random.default_rng(4)
    read = 0
    for case in range(1500):
        storages: dict[str, Any] = {
            "0": numbers.random(4096, np.float32),
            "1": numbers.integers(-2, 5, 4096),
            "2": numbers.integers(0, 5, 4096, np.uint8),
            "3": numbers.random(8192, np.float32),
            "4": numbers.integers(0, 2, 4096, np.uint8),
            "5": numbers.integers(0, 255, 4096, np.uint8),
        }
        used = tb.dict_of(*((tb.text(key), PARTS[7 * int(key)]) for key in "01234"))
        value = tb.pickled(tb.dict_of((tb.text("t"), hostile(maker)), (tb.text("used"), used)))
        if b"Q" not in value or (b"X\x01\0\0\x005" not in value):
            storages.pop("5")
        data = tb.torch_zip(value, {key: array.tobytes() for key, array in storages.items()})
        try:
            with bs.open(data, dense=True, top_level_key="") as f:
                f["t"].to_bytes()
                read += 1
        except BurnstoreError:
            continue
        except Exception as error:
            pytest.fail(f"case {case}: {type(error).__name__}: {error}")
    assert read > 5
