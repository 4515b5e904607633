"""Quantized bytes: the vectors of the format, its lengths, and everything that is refused."""

from __future__ import annotations

import math
import pickle
import struct
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from burnstore.errors import CorruptError, DTypeError, UnsupportedError
from burnstore.tensor.lowbit import decode_scales, encode_scales
from burnstore.tensor.quantization import QuantBlock, QuantizedTensor, QuantScheme, QuantStore, decode, encode

NATIVE = QuantStore("Native")
ONE = struct.pack("<f", 1.0)


def scheme_of(value: str, store: QuantStore = NATIVE, **facts: Any) -> QuantScheme:
    return QuantScheme(value, store, **facts)


def packed(value: str, dim: int = 0, **facts: Any) -> QuantScheme:
    return QuantScheme(value, QuantStore("PackedU32", dim), **facts)


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def read(raw: bytes, scheme: QuantScheme, shape: list[int], *, old_style: bool = False) -> QuantizedTensor:
    return decode(raw, scheme, shape, old_style=old_style)


# ------------------------------------------------------------------------------- vectors of the format


@pytest.mark.parametrize(
    ("scheme", "codes", "stored"),
    [
        (packed("Q4S"), [list(range(8)), [-1] * 8], words(0x76543210, 0xFFFFFFFF)),
        (packed("Q4S", 1), [[k, -1] for k in range(8)], words(0x76543210, 0xFFFFFFFF)),
        (
            packed("Q8S", 2),
            np.arange(24).reshape(4, 2, 3).tolist(),
            words(0x120C0600, 0x150F0903, 0x130D0701, 0x16100A04, 0x140E0802, 0x17110B05),
        ),
        (packed("Q8S"), [[0, 1, 2], [3, 4, 5]], words(0x00020100, 0x00050403)),
        (packed("E4M3"), [[0, 1, 2], [3, 4, 5]], words(0x00020100, 0x00050403)),
        (scheme_of("E2M1", QuantStore("PackedNative")), [0x1, 0xF, 0x6], bytes([0xF1, 0x06])),
        (packed("Q8S"), [-128, 2, -3, 127], words(2147287680)),
    ],
)
def test_packed_words_are_those_of_burn(scheme: QuantScheme, codes: list[Any], stored: bytes) -> None:
    array = np.array(codes, dtype=np.uint8 if scheme.is_float_coded else np.int8)
    tensor = QuantizedTensor(array, np.float32([1]), None, scheme, array.shape)
    assert encode(tensor) == stored + ONE
    assert read(stored + ONE, scheme, list(array.shape)).codes.tolist() == codes


def test_block_scales_of_an_outer_packed_axis_are_stored_exchanged() -> None:
    scheme = packed("Q8S", 1, block=QuantBlock((2, 4), "F32"))
    scales = np.float32([[1, 2], [3, 4]])
    raw = encode(QuantizedTensor(np.zeros((4, 8), np.int8), scales, None, scheme, (4, 8)))
    assert struct.unpack("<4f", raw[-16:]) == (1, 3, 2, 4)
    assert read(raw, scheme, [4, 8]).scales.tolist() == scales.tolist()


def test_the_old_style_leaves_an_outer_packed_axis_in_place() -> None:
    scheme = packed("Q4S", 1, block=QuantBlock((4, 1), "F32"), old_style=True)
    raw = words(0x76543210, 0xFFFFFFFF) + struct.pack("<4f", 1, 2, 3, 4)
    tensor = decode(raw, scheme, [8, 2])
    assert tensor.codes.tolist() == [[k, -1] for k in range(8)]
    assert tensor.scales.tolist() == [[1, 2], [3, 4]]
    assert encode(tensor) == raw
    assert read(raw, scheme, [8, 2], old_style=False).scales.tolist() == [[1, 3], [2, 4]]


def test_native_bytes_are_codes_then_the_scale() -> None:
    raw = bytes.fromhex("00 19 33 4c 66 7f 85 42 21 3d")
    tensor = read(raw, scheme_of("Q8S"), [6])
    assert tensor.codes.tolist() == [0, 25, 51, 76, 102, 127]
    assert tensor.scales.tolist() == [np.float32(0.03937008)]
    assert encode(tensor) == raw


@pytest.mark.parametrize(
    ("value", "code", "number"),
    [
        ("E4M3", 0x7E, 448),
        ("E4M3", 0x38, 1),
        ("E4M3", 0x01, 1 / 512),
        ("E4M3", 0xC4, -3),
        ("E4M3", 0x7F, math.nan),
        ("E4M3", 0xFF, math.nan),
        ("E5M2", 0x7B, 57344),
        ("E5M2", 0x3C, 1),
        ("E5M2", 0x01, 1 / 65536),
        ("E5M2", 0x7C, math.inf),
        ("E5M2", 0xFC, -math.inf),
        ("E5M2", 0x7D, math.nan),
        ("E2M1", 1, 0.5),
        ("E2M1", 7, 6),
        ("E2M1", 0xD, -3),
    ],
)
def test_float_codes_are_the_numbers_of_burn(value: str, code: int, number: float) -> None:
    found = read(bytes([code]) + ONE, scheme_of(value), []).dequantize()
    assert found.shape == ()
    assert found == number or (math.isnan(number) and np.isnan(found))


@pytest.mark.parametrize(
    ("name", "oracle", "codes"),
    [
        ("E4M3", ml_dtypes.float8_e4m3fn, 256),
        ("E5M2", ml_dtypes.float8_e5m2, 256),
        ("E2M1", ml_dtypes.float4_e2m1fn, 16),
    ],
)
def test_every_float_code_agrees_with_ml_dtypes(name: str, oracle: Any, codes: int) -> None:
    raw = bytes(range(codes))
    numbers = read(raw + ONE, scheme_of(name), [codes]).dequantize()
    expected = np.frombuffer(raw, oracle).astype(np.float32)
    np.testing.assert_array_equal(numbers, expected)
    assert (np.signbit(numbers) == np.signbit(expected)).all()


@pytest.mark.parametrize(
    ("dtype", "oracle", "width"),
    [
        ("UE4M3", ml_dtypes.float8_e4m3fn, 1),
        ("UE8M0", ml_dtypes.float8_e8m0fnu, 1),
        ("F16", np.float16, 2),
        ("BF16", ml_dtypes.bfloat16, 2),
    ],
)
def test_every_narrow_scale_agrees_with_ml_dtypes_and_comes_back(dtype: str, oracle: Any, width: int) -> None:
    raw = np.arange(256**width, dtype=f"<u{width}").view(np.uint8)
    scales = decode_scales(raw, dtype)
    np.testing.assert_array_equal(scales, raw.view(oracle).astype(np.float32))
    sound = ~np.isnan(scales)
    again = np.frombuffer(encode_scales(scales, dtype), f"<u{width}")
    assert (again[sound] == raw.view(f"<u{width}")[sound]).all()
    assert np.isnan(decode_scales(again[~sound].view(np.uint8), dtype)).all()


def test_ue8m0_reaches_from_its_smallest_power_to_nan() -> None:
    scales = decode_scales(np.uint8([0, 127, 254, 255]), "UE8M0")
    assert scales[:3].tolist() == [2.0**-127, 1.0, 2.0**127]
    assert np.isnan(scales[3])


@pytest.mark.parametrize(
    ("dtype", "scale"), [("F16", 1e6), ("BF16", 1.001), ("UE8M0", 3), ("UE4M3", 0.3), ("F16", 0.1)]
)
def test_a_scale_that_its_dtype_cannot_hold_is_refused(dtype: str, scale: float) -> None:
    tensor = QuantizedTensor(np.int8([1]), np.float32([scale]), None, scheme_of("Q8S", tensor=dtype), (1,))
    with pytest.raises(DTypeError, match=f"{dtype} cannot represent the scale"):
        encode(tensor)


# ------------------------------------------------------------------------------- lengths


@pytest.mark.parametrize(
    ("scheme", "shape", "length"),
    [
        (scheme_of("Q8S"), [0], 4),
        (scheme_of("Q8S", block=QuantBlock((8,), "F32")), [0], 0),
        (scheme_of("Q8S"), [], 5),
        (packed("Q4S"), [], 8),
        (packed("Q4S"), [3, 3], 16),
        (packed("Q8F"), [3], 8),
        (packed("Q8F"), [4], 8),
        (packed("Q8F"), [5], 12),
        (packed("Q8F"), [3, 3], 16),
        (scheme_of("Q2S", QuantStore("PackedNative")), [3, 3], 13),
        (scheme_of("E2M1", QuantStore("PackedNative", 1)), [3, 3], 10),
        (scheme_of("Q8S", block=QuantBlock((2, 4), "UE4M3"), tensor="F32"), [5, 5], 25 + 6 + 4),
        (scheme_of("Q8S", tensor="F16"), [2**40, 2**40], 2**80 + 2),
    ],
)
def test_byte_len_is_words_and_scales_and_the_global_scale(scheme: QuantScheme, shape: list[int], length: int) -> None:
    assert scheme.byte_len(shape) == length
    scheme.check_length(shape, length)
    for wrong in (length - 1, length + 1):
        with pytest.raises(CorruptError, match=f"expected {length} bytes.*got {wrong}"):
            scheme.check_length(shape, wrong)


@pytest.mark.parametrize(
    ("scheme", "shape"),
    [
        (packed("Q8S", 2), [4, 4]),
        (packed("Q8S", 1), []),
        (scheme_of("Q8S", block=QuantBlock((1, 4), "F32")), [4]),
        (scheme_of("Q8S", block=QuantBlock((1,), "F32")), []),
        (scheme_of("Q8S"), [-1, 4]),
        (scheme_of("Q8S", block=QuantBlock((2, 4), "F32"), flat_blocks=True), [3, 8]),
    ],
)
def test_a_layout_that_cannot_be_is_refused(scheme: QuantScheme, shape: list[int]) -> None:
    with pytest.raises(CorruptError):
        scheme.byte_len(shape)
    with pytest.raises(CorruptError):
        read(b"", scheme, shape)


def test_data_of_a_wrong_length_is_refused_with_both_numbers() -> None:
    for length in (0, 9, 15, 17):
        with pytest.raises(CorruptError, match=rf"expected 16 bytes.*\[3, 3\], got {length}"):
            read(bytes(length), packed("Q4S"), [3, 3])


def test_lines_without_their_padding_are_refused_in_the_new_style() -> None:
    with pytest.raises(CorruptError, match=r"expected 16 bytes.*got 13"):
        read(bytes(9) + ONE, packed("Q8S"), [3, 3])


def test_the_old_style_reads_f32_scales_where_the_scheme_says_narrower_ones() -> None:
    raw = bytes([1, 2]) + struct.pack("<f", 0.1)
    tensor = read(raw, scheme_of("Q8S", tensor="F16"), [2], old_style=True)
    assert tensor.scales.tolist() == [np.float32(0.1)]
    assert tensor.scheme.scale_dtype == "F32"
    assert encode(tensor) == raw
    blocks = scheme_of("Q8S", block=QuantBlock((1,), "UE8M0"), old_style=True)
    tensor = decode(bytes([1, 2]) + struct.pack("<2f", 0.1, 0.2), blocks, [2])
    assert tensor.scheme.block == QuantBlock((1,), "F32")
    with pytest.raises(CorruptError, match=r"expected 4 bytes.*got 6"):
        read(raw, scheme_of("Q8S", tensor="F16"), [2])


def test_the_old_style_prefers_the_exact_length() -> None:
    raw = bytes([1, 2, 3, 4]) + struct.pack("<e", 0.5)
    assert read(raw, scheme_of("Q8S", tensor="F16"), [4], old_style=True).scales.tolist() == [0.5]


@pytest.mark.parametrize(("dtype", "scale"), [("F32", ONE), ("F16", struct.pack("<e", 1)), ("F16", ONE)])
def test_the_old_style_reads_8_bit_packed_codes_without_padding(dtype: str, scale: bytes) -> None:
    tensor = read(bytes(range(9)) + scale, packed("Q8S", tensor=dtype), [3, 3], old_style=True)
    assert tensor.codes.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert tensor.scales.tolist() == [1]
    assert len(encode(tensor)) == 12 + len(scale)


@pytest.mark.parametrize(
    "scheme",
    [
        packed("Q4S"),  # 9 codes of 4 bits in a row are 5 bytes, which no version wrote
        packed("Q8S", 1),
        packed("Q8S", block=QuantBlock((3,), "UE4M3"), tensor="F32"),
    ],
)
def test_the_old_style_reads_no_other_wrong_length(scheme: QuantScheme) -> None:
    lengths = {scheme.byte_len([3, 3])}
    for length in range(40):
        if length not in lengths:
            with pytest.raises(CorruptError):
                read(bytes(length), scheme, [3, 3], old_style=True)


# ------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("value", "byte"),
    [("Q4S", 100), ("Q4S", 0xF8), ("Q4F", 8), ("Q4F", 0xF7), ("Q2S", 2), ("Q2S", 0xFE), ("Q2F", 2), ("E2M1", 0x10)],
)
def test_a_native_byte_outside_the_value_s_range_is_refused(value: str, byte: int) -> None:
    with pytest.raises(CorruptError, match=value):
        read(bytes([0, byte]) + ONE, scheme_of(value), [2])


def test_a_natively_packed_byte_may_carry_the_sign_above_its_field_and_nothing_else() -> None:
    scheme = scheme_of("Q4S", QuantStore("PackedNative"))
    assert read(bytes([0x0F, 0xFF, 0x07]) + ONE, scheme, [3]).codes.tolist() == [-1, -1, 7]
    with pytest.raises(CorruptError, match="0x1F"):
        read(bytes([0x1F]) + ONE, scheme, [1])


def test_padding_that_is_not_zero_is_refused() -> None:
    with pytest.raises(CorruptError, match="padding"):
        read(words(0x01000000) + ONE, packed("Q8S"), [3])
    with pytest.raises(CorruptError, match="padding"):
        read(bytes([0x11, 0x11]) + ONE, scheme_of("E2M1", QuantStore("PackedNative")), [3])


def test_the_lookup_mode_cannot_be_decoded_or_encoded() -> None:
    lookup = scheme_of("Q8S", mode="Lookup")
    with pytest.raises(UnsupportedError, match="Lookup"):
        read(bytes(5), lookup, [1])
    with pytest.raises(UnsupportedError, match="Lookup"):
        encode(QuantizedTensor(np.int8([1]), np.float32([1]), None, lookup, (1,)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: QuantStore("Packed"),  # type: ignore[arg-type]
        lambda: QuantStore("PackedU32", -1),
        lambda: QuantStore("PackedU32", True),
        lambda: QuantStore("Native", 1),
        lambda: QuantBlock((), "F32"),
        lambda: QuantBlock((1,) * 6, "F32"),
        lambda: QuantBlock((0,), "F32"),
        lambda: QuantBlock((256,), "F32"),
        lambda: QuantBlock((8,), "F64"),
        lambda: QuantScheme("Q3S", NATIVE),
        lambda: QuantScheme("Q8S", NATIVE, "Affine"),
        lambda: QuantScheme("Q8S", NATIVE, tensor="Q8S"),
        lambda: QuantScheme("Q8S", NATIVE, flat_blocks=True),
        lambda: QuantScheme("Q8S", QuantStore("PackedU32"), block=QuantBlock((2, 2), "F32"), flat_blocks=True),
    ],
)
def test_a_word_that_burn_does_not_have_is_refused(make: Any) -> None:
    with pytest.raises(CorruptError):
        make()


@pytest.mark.parametrize(
    ("codes", "scales", "global_scale", "error"),
    [
        (np.uint8([1, 2]), np.float32([1]), 1.0, DTypeError),
        (np.int8([1]), np.float32([1]), 1.0, CorruptError),
        (np.int8([1, 2]), np.float64([1]), 1.0, DTypeError),
        (np.int8([1, 2]), np.float32([1, 2]), 1.0, CorruptError),
        (np.int8([1, 2]), np.float32([1]), None, CorruptError),
    ],
)
def test_parts_that_do_not_fit_the_scheme_make_no_tensor(
    codes: Any, scales: Any, global_scale: Any, error: Any
) -> None:
    scheme = scheme_of("Q8S", tensor="F32", block=QuantBlock((2,), "F32"))
    with pytest.raises(error):
        QuantizedTensor(codes, scales, global_scale, scheme, (2,))


@pytest.mark.parametrize(("store", "code"), [(NATIVE, -8), (QuantStore("PackedU32"), 8), (QuantStore("PackedU32"), -9)])
def test_a_code_that_its_store_cannot_hold_makes_no_tensor(store: QuantStore, code: int) -> None:
    with pytest.raises(CorruptError, match=r"outside -\d\.\.7"):
        QuantizedTensor(np.int8([code]), np.float32([1]), None, QuantScheme("Q4S", store), (1,))


def test_a_global_scale_is_written_as_f32_only() -> None:
    block = QuantBlock((2,), "F32")
    narrow = QuantizedTensor(np.int8([1, 2]), np.float32([1]), 1.0, scheme_of("Q8S", tensor="F16", block=block), (2,))
    with pytest.raises(DTypeError, match="only supports a global scale of F32"):
        encode(narrow)
    inexact = QuantizedTensor(np.int8([1, 2]), np.float32([1]), 0.1, scheme_of("Q8S", tensor="F32", block=block), (2,))
    with pytest.raises(DTypeError, match="F32 cannot represent"):
        encode(inexact)


@pytest.mark.parametrize("shape", [[0, 2**62], [2**70, 0], [1] * 65])
def test_a_shape_beyond_numpy_is_refused_and_not_a_numpy_error(shape: list[int]) -> None:
    scheme = scheme_of("Q8S")
    with pytest.raises(UnsupportedError, match="NumPy"):
        read(bytes(scheme.byte_len(shape)), scheme, shape)


def test_a_huge_block_over_a_small_tensor_takes_no_memory() -> None:
    scheme = scheme_of("Q8S", block=QuantBlock((255,) * 5, "F32"))
    tensor = read(bytes([2]) + struct.pack("<f", 0.5), scheme, [1] * 5)
    assert tensor.dequantize().tolist() == [[[[[1.0]]]]]


def test_arrays_are_read_only_and_own_their_memory() -> None:
    raw = bytearray(bytes([1, 2]) + ONE)
    tensor = decode(memoryview(raw), scheme_of("Q8S"), [2])
    raw[0] = 9
    assert tensor.codes.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        tensor.codes[0] = 3
    tensor.dequantize()[0] = 5


def test_schemes_are_values_that_print_as_burn_prints_them() -> None:
    scheme = packed("Q4S", tensor="F32", block=QuantBlock([2, 16], "UE4M3"))  # type: ignore[arg-type]
    assert str(scheme) == (
        "QuantScheme { value: Q4S, store: PackedU32(0), mode: Symmetric, tensor: Some(F32), "
        "block: Some(BlockScale { size: BlockSize([2, 16]), dtype: UE4M3 }) }"
    )
    assert pickle.loads(pickle.dumps(scheme)) == scheme
    assert {scheme: 1}[replace(scheme)] == 1
    bits = {"Q8F": 8, "Q8S": 8, "E4M3": 8, "E5M2": 8, "Q4F": 4, "Q4S": 4, "E2M1": 4, "Q2F": 2, "Q2S": 2}
    assert {value: scheme_of(value).value_bits for value in bits} == bits
