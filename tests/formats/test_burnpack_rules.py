"""Every numbered rule of Burnpack is needed: for each, the smallest file that breaks it and no other."""

from __future__ import annotations

import re
import struct
from typing import Any

import cbor2
import pytest

import burnstore as bs
from burnstore import Limits
from burnstore.errors import CorruptError, FormatError, LimitError, TruncatedError, UnsupportedError
from burnstore.formats import burnpack

RULES = sorted(set(re.findall(r"^ +(BP-\d\d) ", burnpack.__doc__ or "", re.MULTILINE)))


def file(
    metadata: Any,
    data: bytes = b"",
    *,
    magic: bytes = b"NRUB",
    version: int = 1,
    length: int | None = None,
    padding: bytes | None = None,
) -> bytes:
    """A Burnpack file around this metadata (encoded unless it is bytes)."""
    text = metadata if isinstance(metadata, bytes) else cbor2.dumps(metadata)
    head = struct.pack("<4sHI", magic, version, len(text) if length is None else length) + text
    return head + (bytes(-len(head) % 256) if padding is None else padding) + data


def tensor(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def tensors(**named: Any) -> dict[str, Any]:
    return {"tensors": named}


SCHEME = {"value": "Q8S", "store": "Native", "mode": "Symmetric", "tensor": None, "block": None}
FOUR = b"\1\2\3\4"

BROKEN: list[tuple[str, type[FormatError], bytes, Limits]] = [
    (rule, error, data, Limits())
    for rule, error, data in [
        ("BP-01", TruncatedError, b"NRUB\1\0\0\0\0"),
        ("BP-01", CorruptError, file({"tensors": {}}, magic=b"BURN")),
        ("BP-02", UnsupportedError, file({"tensors": {}}, version=0)),
        ("BP-02", UnsupportedError, file({"tensors": {}}, version=2)),
        ("BP-03", LimitError, file({"tensors": {}}, length=(100 << 20) + 1)),
        ("BP-03", TruncatedError, file({"tensors": {}}, length=500)),
        ("BP-04", CorruptError, file(b"\xa1gtensors\xa0\x00")),
        ("BP-04", CorruptError, file(b"\xa2gtensors\xa0gtensors\xa0")),
        ("BP-05", CorruptError, file({})),
        ("BP-05", UnsupportedError, file({"tensors": {}, "more": {}})),
        ("BP-06", CorruptError, file(tensors(t={"dtype": "U8", "shape": [4]}), FOUR)),
        ("BP-06", UnsupportedError, file(tensors(t={**tensor(), "more": 1}), FOUR)),
        ("BP-06", CorruptError, file(tensors(t=tensor(param_id=-1)), FOUR)),
        ("BP-07", LimitError, file(b"\xa1gtensors\xba\x00\x01\x86\xa1" + bytes(300_000))),
        ("BP-08", CorruptError, file(b"\xa1gtensors\xa2" + 2 * (b"at" + cbor2.dumps(tensor())), FOUR)),
        ("BP-09", UnsupportedError, file(tensors(t=tensor("F128")), FOUR)),
        ("BP-09", UnsupportedError, file(tensors(t=tensor({"Bool": "U64"})), FOUR)),
        ("BP-10", LimitError, file(tensors(t=tensor(shape=(1,) * 65, offsets=(0, 1))), b"\1")),
        ("BP-10", CorruptError, file(tensors(t=tensor(shape=(2**62, 4), offsets=(0, 0))))),
        ("BP-10", CorruptError, file(tensors(t=tensor(shape=(2**63, 0), offsets=(0, 0))))),
        ("BP-11", CorruptError, file(tensors(t=tensor(offsets=(4, 0))), FOUR)),
        ("BP-11", CorruptError, file(tensors(t=tensor(offsets=(0, 2**62))), FOUR)),
        ("BP-11", CorruptError, file(tensors(t=tensor(offsets=(0, 4, 8))), FOUR)),
        ("BP-12", CorruptError, file(tensors(t=tensor(offsets=(0, 3))), FOUR[:3])),
        ("BP-12", CorruptError, file(tensors(t=tensor(offsets=(0, 5))), FOUR + b"\5")),
        ("BP-13", CorruptError, file(tensors(a=tensor(), b=tensor(offsets=(2, 6))), FOUR + b"\5\6")),
        ("BP-13", CorruptError, file(tensors(a=tensor(), b=tensor(offsets=(512, 516))), bytes(516))),
        ("BP-13", CorruptError, file(tensors(t=tensor(offsets=(256, 260))), bytes(260))),
        ("BP-14", CorruptError, file(tensors(a=tensor({"Bool": "Native"}), b=tensor(offsets=(4, 8))), bytes(8))),
        ("BP-14", CorruptError, file(tensors(t=tensor()), bytes(4), padding=b"")),
        ("BP-15", TruncatedError, file(tensors(t=tensor()), FOUR[:3])),
        ("BP-15", CorruptError, file(tensors(t=tensor()), FOUR + b"\5")),
        ("BP-16", CorruptError, file({"tensors": {}}, padding=bytes(235) + b"\1")),
        ("BP-17", CorruptError, file({"tensors": {}, "metadata": {"a": 1}})),
        ("BP-17", CorruptError, file({"tensors": {}, "metadata": []})),
        ("BP-18", CorruptError, file({"tensors": {}, "scalars": {"a": 1}})),
        ("BP-18", CorruptError, file({"tensors": {}, "scalars": {"a": {"UInt": -1}}})),
        ("BP-18", UnsupportedError, file({"tensors": {}, "scalars": {"a": {"Text": "b"}}})),
        ("BP-20", CorruptError, file(tensors(t=tensor({"QFloat": SCHEME}, offsets=(0, 4))), FOUR)),
    ]
] + [
    ("BP-03", LimitError, file({"tensors": {}}), Limits(header_bytes=5)),
    ("BP-03", LimitError, file({"tensors": {}}), Limits(file_bytes=255)),
    (
        "BP-07",
        LimitError,
        file(tensors(a=tensor(), b=tensor(offsets=(256, 260))), FOUR + bytes(252) + FOUR),
        Limits(tensors=1),
    ),
    ("BP-10", LimitError, file(tensors(t=tensor(shape=(2, 2))), FOUR), Limits(rank=1)),
]


@pytest.mark.parametrize(("rule", "error", "data", "limits"), BROKEN)
def test_a_file_that_breaks_one_rule_is_refused_by_that_rule(
    rule: str, error: type[FormatError], data: bytes, limits: Limits
) -> None:
    with pytest.raises(error) as caught:
        bs.open(data, format="burnpack", limits=limits)
    assert caught.value.rule == rule
    assert rule in str(caught.value)


def test_bp_19_a_bool_that_is_neither_0_nor_1_is_refused_when_it_is_read() -> None:
    for dtype, raw in [
        ("Bool", b"\0\1\2\1"),
        ({"Bool": "U8"}, b"\0\1\xff\1"),
        ({"Bool": "U32"}, bytes(12) + b"\2\0\0\0"),
    ]:
        data = file(tensors(ok=tensor(), t=tensor(dtype, offsets=(256, 256 + len(raw)))), FOUR + bytes(252) + raw)
        with bs.open(data) as f:
            assert f["ok"].numpy().tolist() == [1, 2, 3, 4]
            for read in (f.numpy, f["t"].numpy, lambda f=f: f["t"][2:4]):
                with pytest.raises(CorruptError, match="expected 0 or 1") as caught:
                    read()
                assert caught.value.tensor == "t"


def test_bp_20_a_code_outside_its_range_is_refused_when_it_is_read() -> None:
    scheme = {**SCHEME, "value": "Q4S"}
    data = file(tensors(t=tensor({"QFloat": scheme}, offsets=(0, 8))), b"\x7f\1\2\3" + bytes(4))
    with bs.open(data) as f, pytest.raises(CorruptError, match="0x7F is not a Q4S code") as caught:
        f["t"].numpy()
    assert caught.value.tensor == "t"


def test_every_rule_is_broken_by_some_file_here() -> None:
    assert len(RULES) == 20
    assert sorted({rule for rule, *_ in BROKEN} | {"BP-19"}) == RULES


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (file({"tensors": {}}), []),
        (file(tensors(t=tensor()), FOUR), ["t"]),
        (file(tensors(t=tensor(param_id=None)), FOUR), ["t"]),
        (file({"metadata": {}, "scalars": {}, "tensors": {"t": tensor()}}, FOUR), ["t"]),
        (file(tensors(t=tensor()), FOUR, padding=b""), ["t"]),
        (file(tensors(b=tensor(), a=tensor(offsets=(4, 8))), FOUR + FOUR, padding=b""), ["b", "a"]),
        (file(tensors(t={"shape": [4], "data_offsets": [0, 4], "dtype": "U8"}), FOUR), ["t"]),
    ],
)
def test_a_file_that_breaks_no_rule_opens(data: bytes, names: list[str]) -> None:
    with bs.open(data) as f:
        assert list(f) == names
        assert all(t.to_bytes() == FOUR for t in f.values())


@pytest.mark.parametrize(
    "metadata",
    [
        b"\xbfgtensors\xa0\xff",
        b"\xa1gtensors\xbf\xff",
        b"\xa1\x7fgtensors\xff\xa0",
        b"\xc0\xa1gtensors\xa0",
        b"\xa1gtensors\xc0\xa0",
        b"\xa1\x67tensor\xff\xa0",
        b"\xa1gtensors\xbc\xa0",
    ],
    ids=["map", "inner-map", "text", "tag", "inner-tag", "utf-8", "reserved"],
)
def test_bp_04_indefinite_lengths_tags_and_bad_text_are_refused(metadata: bytes) -> None:
    with pytest.raises(CorruptError):
        bs.open(file(metadata))


def test_limits_lift_sizes_and_no_rule() -> None:
    for rule, _, data, limits in BROKEN:
        if rule in ("BP-03", "BP-07", "BP-10") and limits != Limits():
            bs.open(data, limits=Limits.trusted()).close()
        else:
            with pytest.raises(FormatError):
                bs.open(data, limits=Limits.trusted())
