"""Low-bit numbers: fields of 2, 4 or 8 bits in bytes, floats of 4 and 8 bits, and scales of 1 to 4 bytes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import DTypeError

SCALE_WIDTHS: Final = {"F32": 4, "F16": 2, "BF16": 2, "UE8M0": 1, "UE4M3": 1}

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]


def _minifloat(exponent_bits: int, mantissa_bits: int) -> npt.NDArray[np.float64]:
    """Return the number of every code of such a float, without infinities and NaN."""
    bias = 2 ** (exponent_bits - 1) - 1
    codes = np.arange(2 ** (1 + exponent_bits + mantissa_bits))
    mantissa = codes % 2**mantissa_bits
    exponent = codes >> mantissa_bits & (2**exponent_bits - 1)
    significand = np.where(exponent == 0, mantissa, mantissa + 2**mantissa_bits)
    magnitude: npt.NDArray[np.float64] = np.ldexp(
        significand.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits
    )
    magnitude[codes.size // 2 :] *= -1.0
    return magnitude


def _all_tables() -> dict[str, _Floats]:
    e4m3, e5m2, e2m1 = _minifloat(4, 3), _minifloat(5, 2), _minifloat(2, 1)
    for sign, code in ((1.0, 0), (-1.0, 128)):
        e4m3[code + 0x7F] = np.copysign(np.nan, sign)  # the "fn" flavour: no infinities
        e5m2[code + 0x7C] = np.copysign(np.inf, sign)
        e5m2[code + 0x7D : code + 0x80] = np.copysign(np.nan, sign)
    ue8m0 = np.ldexp(1.0, np.arange(256) - 127)
    ue8m0[0xFF] = np.nan
    numbers = {"E4M3": e4m3, "E5M2": e5m2, "E2M1": e2m1, "UE8M0": ue8m0, "UE4M3": e4m3}
    return {name: table.astype(np.float32) for name, table in numbers.items()}


_TABLES = _all_tables()
CODE_TABLES: Final = {name: _TABLES[name] for name in ("E4M3", "E5M2", "E2M1")}


def unpack_fields(packed: _Bytes, bits: int) -> _Bytes:
    """Return the fields of ``bits`` bits in the bytes along the last axis, lowest bits first.

    >>> unpack_fields(np.uint8([0x21, 0xF3]), 4)
    array([ 1,  2,  3, 15], dtype=uint8)
    """
    per_byte = 8 // bits
    if per_byte == 1:
        return packed
    fields = np.empty((*packed.shape[:-1], packed.shape[-1] * per_byte), dtype=np.uint8)
    for k in range(per_byte):
        fields[..., k::per_byte] = (packed >> (k * bits)) & (2**bits - 1)
    return fields


def pack_fields(fields: _Bytes, bits: int) -> _Bytes:
    """Pack fields into bytes, the inverse of `unpack_fields`; the last axis must fill whole bytes.

    >>> pack_fields(np.uint8([1, 2, 3, 15]), 4).tobytes().hex()
    '21f3'
    """
    per_byte = 8 // bits
    packed: _Bytes = fields[..., ::per_byte].copy()
    for k in range(1, per_byte):
        packed |= fields[..., k::per_byte] << (k * bits)
    return packed


def decode_scales(data: _Bytes, dtype: str) -> _Floats:
    """Return the scales of these bytes as float32, which has all values of every scale dtype.

    >>> decode_scales(np.uint8([0x7E, 0x38]), "UE4M3")
    array([448.,   1.], dtype=float32)
    """
    if dtype == "F32":
        return data.view("<f4").astype(np.float32)
    if dtype == "F16":
        with np.errstate(all="ignore"):  # a signalling NaN would warn
            return data.view("<f2").astype(np.float32)
    if dtype == "BF16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return _TABLES[dtype][data]


def encode_scales(scales: npt.NDArray[np.floating[Any]], dtype: str) -> bytes:
    """Encode scales row-major, the inverse of `decode_scales`; `DTypeError` for a scale that would be rounded.

    >>> encode_scales(np.float32([0.5, 4]), "UE8M0").hex()
    '7e81'
    """
    with np.errstate(all="ignore"):
        singles = np.ascontiguousarray(scales, dtype=np.float32)
        if dtype == "F32":
            stored: npt.NDArray[Any] = singles.astype("<f4")
        elif dtype == "F16":
            stored = singles.astype("<f2")
        elif dtype == "BF16":
            stored = (singles.view(np.uint32) >> 16).astype("<u2")
        else:
            stored = _nearest_codes(singles, _TABLES[dtype])
    held = decode_scales(stored.reshape(-1).view(np.uint8), dtype).reshape(scales.shape)
    exact = (held == scales) | (np.isnan(held) & np.isnan(scales))
    if not exact.all():
        raise DTypeError(
            f"{dtype} cannot represent the scale {scales[~exact][0]} exactly",
            hint="write the scales as F32, or quantize again with scales of that dtype",
        )
    return stored.tobytes()


def _nearest_codes(scales: _Floats, table: _Floats) -> _Bytes:
    """Return the code of every scale in the table, signs of zero and NaN kept; any code for other scales."""
    codes = np.argsort(table.view(np.uint32)).astype(np.uint8)
    bits = np.where(np.isnan(scales), np.copysign(np.float32(np.nan), scales), scales).view(np.uint32)
    place = np.searchsorted(table.view(np.uint32)[codes], bits)
    return codes[np.minimum(place, codes.size - 1)]
