"""Scheme maps of every style, the hex of the format's examples, and the quantized tensors of real files."""

from __future__ import annotations

import hashlib
import json
import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore.errors import CorruptError, DTypeError
from burnstore.formats.burnpack.quant_spelling import scheme_from_tree, scheme_to_tree
from burnstore.tensor.quantization import QuantBlock, QuantizedTensor, QuantScheme, QuantStore, decode, encode

FIXTURES = Path(__file__).parents[1] / "fixtures" / "burn"
NATIVE, PACKED = QuantStore("Native"), QuantStore("PackedU32")


def size(*extents: int) -> dict[str, Any]:
    return {"storage": [*extents, *[1] * (5 - len(extents))], "len": len(extents)}


def p(**changes: Any) -> dict[str, Any]:
    return {"value": "Q8S", "param": "F32", "store": "Native", "level": "Tensor", "mode": "Symmetric", **changes}


def t(**changes: Any) -> dict[str, Any]:
    return {"value": "Q8S", "store": "Native", "mode": "Symmetric", "tensor": None, "block": None, **changes}


def hex_of(text: str) -> bytes:
    """The notation of the format's examples: two hex digits, or a word for its own bytes."""
    out = b""
    for item in text.split():
        is_hex = len(item) == 2 and all(c in "0123456789abcdef" for c in item)
        out += bytes.fromhex(item) if is_hex else item.encode()
    return out


# ------------------------------------------------------------------------------- styles

BOTH_WAYS = [
    ("P", p(), QuantScheme("Q8S", NATIVE)),
    ("P", p(param="F16"), QuantScheme("Q8S", NATIVE, tensor="F16")),
    ("P", p(store={"PackedU32": 0}), QuantScheme("Q8S", PACKED)),
    ("P", p(store={"PackedU32": 1}, value="Q2F"), QuantScheme("Q2F", QuantStore("PackedU32", 1))),
    ("P", p(store={"PackedNative": 0}, value="E2M1"), QuantScheme("E2M1", QuantStore("PackedNative"))),
    ("P", p(level={"Block": size(8)}, param="BF16"), QuantScheme("Q8S", NATIVE, block=QuantBlock((8,), "BF16"))),
    ("P", p(level={"Block": size(1, 8)}), QuantScheme("Q8S", NATIVE, block=QuantBlock((1, 8), "F32"))),
    (
        "P",
        p(level={"Block": size(2, 4)}),
        QuantScheme("Q8S", NATIVE, block=QuantBlock((2, 4), "F32"), flat_blocks=True),
    ),
    (
        "P",
        p(level={"Block": size(4, 1)}),
        QuantScheme("Q8S", NATIVE, block=QuantBlock((4, 1), "F32"), flat_blocks=True),
    ),
    (
        "P",
        p(level={"Block": size(2, 4)}, store={"PackedU32": 0}),
        QuantScheme("Q8S", PACKED, block=QuantBlock((2, 4), "F32")),
    ),
    (
        "P",
        p(level={"BlockTensor": {"block": size(2, 16), "global": "F32"}}, param="UE4M3"),
        QuantScheme("Q8S", NATIVE, tensor="F32", block=QuantBlock((2, 16), "UE4M3")),
    ),
    ("P-0.19", p(store="U32"), QuantScheme("Q8S", PACKED)),
    ("P-0.19", p(level={"Block": size(8)}), QuantScheme("Q8S", NATIVE, block=QuantBlock((8,), "F32"))),
    ("T", t(), QuantScheme("Q8S", NATIVE)),
    ("T", t(tensor="F32"), QuantScheme("Q8S", NATIVE, tensor="F32")),
    ("T", t(mode="Lookup"), QuantScheme("Q8S", NATIVE, mode="Lookup")),
    ("T", t(store={"PackedU32": 2}), QuantScheme("Q8S", QuantStore("PackedU32", 2))),
    (
        "T",
        t(tensor="F32", block={"size": size(2, 16), "dtype": "UE4M3"}, store={"PackedNative": 0}, value="E2M1"),
        QuantScheme("E2M1", QuantStore("PackedNative"), tensor="F32", block=QuantBlock((2, 16), "UE4M3")),
    ),
]


@pytest.mark.parametrize(("style", "tree", "scheme"), BOTH_WAYS)
def test_a_map_and_its_scheme_are_each_other_s_spelling(style: Any, tree: dict[str, Any], scheme: QuantScheme) -> None:
    old_style = style != "T"
    scheme = replace(scheme, old_style=old_style)
    assert scheme_from_tree(tree) == scheme and scheme.old_style is old_style
    written = scheme_to_tree(scheme, style)
    assert cbor2.dumps(written) == cbor2.dumps(tree)  # the order of the keys too


def test_styles_are_translated_into_each_other() -> None:
    scheme = scheme_from_tree(p(level={"Block": size(1, 1, 32)}, param="F16", store={"PackedU32": 0}))
    assert scheme_to_tree(scheme, "T") == t(block={"size": size(32), "dtype": "F16"}, store={"PackedU32": 0})
    assert scheme_to_tree(scheme, "P")["level"] == {"Block": size(1, 1, 32)}
    scheme = scheme_from_tree(t(tensor="F32"))
    assert scheme_to_tree(scheme, "P") == p()
    scheme = scheme_from_tree(t(block={"size": size(1, 1), "dtype": "F32"}))
    assert scheme_to_tree(scheme, "T")["block"]["size"] == size(1)


@pytest.mark.parametrize(
    ("tree", "spelled"),
    [
        (
            p(),
            (
                "a1 66 QFloat a5 65 value 63 Q8S 65 param 63 F32 65 store 66 Native 65 level 66 Tensor "
                "64 mode 69 Symmetric"
            ),
        ),
        (t(), "a1 66 QFloat a5 65 value 63 Q8S 65 store 66 Native 64 mode 69 Symmetric 66 tensor f6 65 block f6"),
        (
            p(value="Q4S", param="F16", store={"PackedU32": 0}, level={"Block": size(32)}),
            (
                "a1 66 QFloat a5 65 value 63 Q4S 65 param 63 F16 65 store a1 69 PackedU32 00 65 level "
                "a1 65 Block a2 67 storage 85 18 20 01 01 01 01 63 len 01 64 mode 69 Symmetric"
            ),
        ),
        (
            t(tensor="F32", block={"size": size(16), "dtype": "UE4M3"}),
            (
                "a1 66 QFloat a5 65 value 63 Q8S 65 store 66 Native 64 mode 69 Symmetric 66 tensor 63 F32 "
                "65 block a2 64 size a2 67 storage 85 10 01 01 01 01 63 len 01 65 dtype 65 UE4M3"
            ),
        ),
    ],
)
def test_the_bytes_of_a_written_map_are_burn_s(tree: dict[str, Any], spelled: str) -> None:
    scheme = scheme_from_tree(tree)
    old_style = scheme.old_style
    assert cbor2.dumps({"QFloat": scheme_to_tree(scheme, "P" if old_style else "T")}) == hex_of(spelled)


@pytest.mark.parametrize(
    ("store", "length", "digest"),
    [
        (PACKED, 268, "924e1ae73209c4553e80c046f0751a1159a6cfa666bab6cafb0b818281ce8ce0"),
        (NATIVE, 276, "7c2130626e4b5d912865c5069c23163beb642b071cf87f8d2b63ac6224ca303e"),
    ],
)
def test_a_whole_file_is_byte_equal_to_burn_s(store: QuantStore, length: int, digest: str) -> None:
    scheme = QuantScheme("Q4S", store)
    codes = np.int8([list(range(8)), [-1] * 8])
    data = encode(QuantizedTensor(codes, np.float32([1]), None, scheme, (2, 8)))
    dtype = {"QFloat": scheme_to_tree(scheme, "T")}
    metadata = cbor2.dumps({"tensors": {"q": {"dtype": dtype, "shape": [2, 8], "data_offsets": [0, len(data)]}}})
    head = struct.pack("<4sHI", b"NRUB", 1, len(metadata)) + metadata
    file = head.ljust(256, b"\0") + data
    assert len(file) == length
    assert hashlib.sha256(file).hexdigest() == digest


# ------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (None, r"dtype\.QFloat is not a map but None"),
        ("Q8S", r"dtype\.QFloat is not a map but 'Q8S'"),
        ([], r"dtype\.QFloat is not a map but a value of type list"),
        ({}, r"dtype\.QFloat has no keys"),
        ({**p(), **t()}, r"dtype\.QFloat has the keys"),
        ({key: item for key, item in p().items() if key != "mode"}, r"dtype\.QFloat has the keys"),
        ({**t(), "levels": []}, r"dtype\.QFloat has the keys"),
        (dict.fromkeys(range(10**5)), r"0, 1, 2, 3, 4, 5, 6, 7, \.\.\.;"),
        (p(value="Q3S"), r"dtype\.QFloat\.value is 'Q3S'"),
        (t(value=8), r"dtype\.QFloat\.value is 8"),
        (t(value="q8s"), r"dtype\.QFloat\.value is 'q8s'"),
        (p(param="F64"), r"dtype\.QFloat\.param is 'F64'"),
        (p(param=None), r"dtype\.QFloat\.param is None"),
        (p(mode="Lookup"), r"dtype\.QFloat\.mode is 'Lookup'"),
        (t(mode="Affine"), r"dtype\.QFloat\.mode is 'Affine'"),
        (t(store="U32"), r"dtype\.QFloat\.store is 'U32'"),
        (t(store={"U32": 0}), r"dtype\.QFloat\.store is a map with the keys 'U32'"),
        (t(store="PackedU32"), r"dtype\.QFloat\.store is 'PackedU32'"),
        (t(store={"Native": 0}), r"dtype\.QFloat\.store is a map of Native"),
        (t(store={"PackedU32": 0, "PackedNative": 0}), r"dtype\.QFloat\.store is a map"),
        (t(store={"PackedU32": -1}), r"dtype\.QFloat\.store\.PackedU32 is -1"),
        (t(store={"PackedU32": True}), r"dtype\.QFloat\.store\.PackedU32 is True"),
        (t(store={"PackedNative": 1.0}), r"dtype\.QFloat\.store\.PackedNative is 1\.0"),
        (t(store={"PackedU32": 10**5000}), r"dtype\.QFloat\.store\.PackedU32 is a value of type int"),
        (t(store={"PackedU32": None}), r"dtype\.QFloat\.store\.PackedU32 is None"),
        (t(tensor="F64"), r"dtype\.QFloat\.tensor is 'F64'"),
        (t(tensor=False), r"dtype\.QFloat\.tensor is False"),
        (t(block="F32"), r"dtype\.QFloat\.block is not a map"),
        (t(block={"size": size(8)}), r"dtype\.QFloat\.block has the keys 'size'; Burn writes size, dtype"),
        (t(block={"size": size(8), "dtype": "I8"}), r"dtype\.QFloat\.block\.dtype is 'I8'"),
        (t(block={"size": [8], "dtype": "F32"}), r"dtype\.QFloat\.block\.size is not a map"),
        (p(level="Block"), r"dtype\.QFloat\.level is 'Block'"),
        (p(level={"Tensor": None}), r"dtype\.QFloat\.level is a map of Tensor"),
        (p(level={"Block": size(8), "Tensor": 0}), r"dtype\.QFloat\.level is a map"),
        (p(level={"Block": {"storage": [8, 1, 1, 1, 1]}}), r"level\.Block has the keys 'storage'"),
        (p(level={"Block": {"storage": [8, 1, 1, 1], "len": 1}}), r"level\.Block\.storage is not a list of 5"),
        (p(level={"Block": {"storage": "81111", "len": 1}}), r"level\.Block\.storage is not a list of 5"),
        (p(level={"Block": {"storage": [8, 1, 1, 1, 1], "len": 0}}), r"level\.Block\.len is 0"),
        (p(level={"Block": {"storage": [8, 1, 1, 1, 1], "len": 6}}), r"level\.Block\.len is 6"),
        (p(level={"Block": {"storage": [8, 1, 1, 1, 1], "len": True}}), r"level\.Block\.len is True"),
        (p(level={"Block": {"storage": [0, 1, 1, 1, 1], "len": 1}}), r"level\.Block\.storage\[0\] is 0"),
        (p(level={"Block": {"storage": [256, 1, 1, 1, 1], "len": 1}}), r"level\.Block\.storage\[0\] is 256"),
        (p(level={"Block": {"storage": [True, 1, 1, 1, 1], "len": 1}}), r"level\.Block\.storage\[0\] is True"),
        (p(level={"Block": {"storage": [8, 1, 2, 1, 1], "len": 1}}), r"level\.Block\.storage is \[8, 1, 2, 1, 1\]"),
        (p(level={"Block": {"storage": [8, 0, 0, 0, 0], "len": 1}}), r"level\.Block\.storage\[1\] is 0"),
        (p(level={"BlockTensor": size(8)}), r"level\.BlockTensor has the keys"),
        (p(level={"BlockTensor": {"block": size(8), "global": "F64"}}), r"level\.BlockTensor\.global is 'F64'"),
        (p(level={"BlockTensor": {"block": 8, "global": "F32"}}), r"level\.BlockTensor\.block is not a map"),
        (t(value="Q8S\n\x1b[31m" + "x" * 10**6), r"dtype\.QFloat\.value is 'Q8S\\n\\x1b"),
    ],
)
def test_a_map_that_burn_does_not_write_is_refused_with_its_place(tree: object, message: str) -> None:
    with pytest.raises(CorruptError, match=message) as caught:
        scheme_from_tree(tree)
    assert len(str(caught.value)) < 1000


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["Q8S", "Native", "F32"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*p(), *t(), "Block", "size", "len"]), inner),
    )
)
def test_any_tree_is_read_or_refused_as_corrupt(tree: object) -> None:
    for candidate in (tree, t(store=tree), t(block=tree), p(level=tree), p(level={"Block": tree}), t(tensor=tree)):
        with suppress(CorruptError):
            scheme_from_tree(candidate)


RECTANGLES = QuantScheme("Q8S", NATIVE, block=QuantBlock((2, 4), "F32"))
TWO_LEVEL = QuantScheme("Q8S", NATIVE, tensor="F32", block=QuantBlock((2, 4), "F32"))


@pytest.mark.parametrize(
    ("scheme", "style", "message"),
    [
        (replace(RECTANGLES, flat_blocks=True), "T", "flat runs.*rectangles"),
        (RECTANGLES, "P", "rectangles.*flat runs"),
        (replace(TWO_LEVEL, flat_blocks=True), "P", "flat runs.*rectangles"),
        (QuantScheme("Q8S", NATIVE, mode="Lookup"), "P", "Lookup"),
        (QuantScheme("E2M1", QuantStore("PackedNative")), "P-0.19", "PackedNative"),
        (QuantScheme("Q8S", QuantStore("PackedU32", 1), old_style=True), "P-0.19", r"PackedU32\(1\)"),
        (QuantScheme("Q8S", NATIVE, tensor="F32", block=QuantBlock((4,), "F32")), "P-0.19", "two-level"),
        (QuantScheme("Q8S", QuantStore("PackedU32", 1), old_style=True), "T", "are ordered differently in style T"),
        (QuantScheme("Q8S", QuantStore("PackedU32", 1)), "P", "are ordered differently in style P"),
    ],
)
def test_a_style_that_would_change_the_meaning_is_refused(scheme: QuantScheme, style: Any, message: str) -> None:
    with pytest.raises(DTypeError, match=message) as caught:
        scheme_to_tree(scheme, style)
    assert caught.value.hint


def test_flat_runs_within_a_line_are_spelled_in_every_style() -> None:
    scheme = QuantScheme("Q8S", NATIVE, block=QuantBlock((8,), "F32"), flat_blocks=True)
    assert scheme_to_tree(scheme, "T")["block"]["size"] == size(8)
    assert scheme_to_tree(scheme, "P")["level"] == {"Block": size(8)}


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown style 'Q'"):
        scheme_to_tree(QuantScheme("Q8S", NATIVE), "Q")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- real files


def check_tensor(expected: dict[str, Any], scheme: QuantScheme, raw: bytes) -> None:
    tensor = decode(raw, scheme, expected["shape"])
    assert raw.hex() == expected["bytes_hex"]
    numbers = tensor.dequantize()
    assert list(numbers.shape) == expected["shape"]
    assert hashlib.sha256(numbers.tobytes()).hexdigest() == expected["dequantized_sha256"]
    assert numbers.reshape(-1)[: len(expected["first"])].tolist() == expected["first"]
    assert encode(tensor) == raw


@pytest.mark.parametrize(
    "path", sorted(FIXTURES.glob("*/quant_*.bpk")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_the_quantized_tensors_of_real_files_are_bit_equal(path: Path) -> None:
    expected = json.loads(path.with_suffix(".expected.json").read_text())
    file = path.read_bytes()
    length = struct.unpack_from("<I", file, 6)[0]
    start = -(-(10 + length) // 256) * 256
    tensors = cbor2.loads(file[10 : 10 + length])["tensors"]
    assert len(tensors) == len(expected["tensors"]) > 0
    for one in expected["tensors"]:
        found = tensors[one["path"]]
        tree = found["dtype"]["QFloat"]
        scheme = scheme_from_tree(tree)
        old_style = scheme.old_style
        assert old_style == path.parent.name.startswith(("0.20", "0.21"))
        assert list(scheme_to_tree(scheme, "P" if old_style else "T").items()) == list(tree.items())
        if not old_style:
            assert f"QFloat({scheme})" == one["dtype"]
        begin, end = found["data_offsets"]
        scheme.check_length(found["shape"], end - begin)
        check_tensor(one, scheme, file[start + begin : start + end])


@pytest.mark.parametrize(("name", "level"), [("tensor", "Tensor"), ("block8", {"Block": size(8)})])
def test_the_tensors_that_burn_0_19_held_but_could_not_save_are_bit_equal(name: str, level: Any) -> None:
    expected = json.loads((FIXTURES / "0.19.1" / f"quant_q8s_{name}_native.expected.json").read_text())
    scheme = scheme_from_tree(p(level=level))
    for one in expected["tensors"]:
        check_tensor(one, scheme, bytes.fromhex(one["bytes_hex"]))


def test_there_are_real_files_of_every_version_that_wrote_them() -> None:
    versions = {"0.19.1": 0, "0.20.1": 2, "0.21.0": 2, "0.22.1": 3, "0.23.0-pre.1": 3}
    assert {version: len(list((FIXTURES / version).glob("quant_*.bpk"))) for version in versions} == versions


def test_flat_blocks_of_old_files_are_runs_and_rectangles_those_of_new_ones() -> None:
    raw = bytes(range(1, 17)) + struct.pack("<4f", 1, 10, 100, 1000)
    old = scheme_from_tree(p(level={"Block": size(2, 2)}))
    new = scheme_from_tree(t(block={"size": size(2, 2), "dtype": "F32"}))
    codes = np.arange(1, 17).reshape(4, 4)
    runs = np.repeat([1, 10, 100, 1000], 4).reshape(4, 4)
    rectangles = np.kron([[1, 10], [100, 1000]], np.ones((2, 2)))
    assert (decode(raw, old, [4, 4]).dequantize() == codes * runs).all()
    assert (decode(raw, new, [4, 4]).dequantize() == codes * rectangles).all()
