"""Parameters recognised at sight are what reading them value by value gives, and nothing else is recognised."""

from __future__ import annotations

from random import Random
from typing import Any

import msgpack
import numpy as np
import pytest
from test_record_files import FILES, heading

import burnstore as bs
from burnstore.formats.codec.msgpack import MsgpackReader
from burnstore.formats.record import reader
from burnstore.formats.record.document import FoundParameter, ParameterReader
from burnstore.io.source import BytesSource
from burnstore.io.spool import Spool
from burnstore.limits import Limits

RECORDS = [path.read_bytes() for path in FILES if path.suffix == ".mpk" and path.parent.name != "0.13.2"]


def outcome(data: bytes) -> Any:
    """What the file holds, or the error and rule with which it is refused."""
    try:
        with bs.open(data, format="record", limits=Limits(tensors=60)) as f:
            tensors = [(name, t.dtype, t.shape, t.param_id, t.to_bytes(), f.offset_of(name)) for name, t in f.items()]
            return tensors, dict(f.constants)
    except bs.BurnstoreError as error:
        return type(error), error.rule


def both(data: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    at_sight = outcome(data)
    with monkeypatch.context() as patched:
        patched.setattr(reader, "ParameterReader", MsgpackReader)
        return at_sight, outcome(data)


def test_records_of_burn_are_recognised() -> None:
    for data in RECORDS:
        found = ParameterReader(BytesSource(data), Spool(), nodes=10_000).tree(depth=100, longest_text=1000)
        stack, recognised = [found], 0
        while stack:
            node = stack.pop()
            recognised += isinstance(node, FoundParameter)
            stack += node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
        assert recognised or b"\xa2id" not in data or b"Bool" in data or b"QFloat" in data


def test_both_ways_of_reading_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in RECORDS:
        at_sight, one_by_one = both(data, monkeypatch)
        assert at_sight == one_by_one
        assert isinstance(at_sight[0], list)


@pytest.mark.slow("fuzzing")
def test_both_ways_agree_on_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(5)
    hot = [b"\xa5shape", b"\xa5dtype", b"\xa5bytes", b"\xa5param", b"\xa2id"]
    for _ in range(3000):
        data = bytearray(rng.choice(RECORDS))
        for _ in range(rng.choice((1, 1, 2))):
            mark = rng.choice(hot)
            places = [at for at in range(len(data)) if data.startswith(mark, at)] or [len(data) // 2]
            at = min(max(0, rng.choice(places) + rng.randint(-6, 12)), len(data) - 1)
            data[at : at + rng.choice((0, 1, 1))] = bytes(
                (rng.choice((0, 1, 0x7F, 0x80, 0x90, 0x93, 0xC4, 0xC5, 0xCC, 0xCD, 0xFF)),)
            )
        at_sight, one_by_one = both(bytes(data), monkeypatch)
        assert at_sight == one_by_one, bytes(data)


@pytest.mark.parametrize(
    "extents", [[], [0], [127, 0], [128, 0], [255, 0], [256, 0, 1], [65535, 0], [65536, 0], [0] * 8, [0] * 9]
)
def test_every_spelling_of_a_shape(extents: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    raw = np.zeros(int(np.prod(extents)), "<f4").tobytes()
    tensor = {"id": "0400000000000", "param": {"bytes": raw, "shape": extents, "dtype": "F32"}}
    data = msgpack.packb({"metadata": heading(), "item": {"w": tensor}, "_b": []})
    at_sight, one_by_one = both(data, monkeypatch)
    assert at_sight == one_by_one
    assert at_sight[0][0][2] == tuple(extents)


def test_the_limit_on_values_counts_recognised_ones_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = {"id": "0400000000000", "param": {"bytes": bytes(4), "shape": [1] * 8, "dtype": "F32"}}
    for count in range(40, 60):
        data = msgpack.packb({"metadata": heading(), "item": {str(n): tensor for n in range(count)}, "_b": []})
        at_sight, one_by_one = both(data, monkeypatch)
        assert at_sight == one_by_one
