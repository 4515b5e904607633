"""Casts between all float dtypes, against exact rational arithmetic: rounded once, or refused; nothing is invented."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import DType
from burnstore.models.load.casting import casting
from burnstore.transforms.blend import blended
from burnstore.transforms.precision import cast, cast_array, held_as

# Bits of the significand with the hidden one, least normal exponent, greatest number, whether it has infinities.
FORMATS: dict[str, tuple[int, int, Fraction, bool]] = {
    "F64": (53, -1022, (2 - Fraction(1, 2**52)) * Fraction(2) ** 1023, True),
    "F32": (24, -126, (2 - Fraction(1, 2**23)) * Fraction(2) ** 127, True),
    "Flex32": (24, -126, (2 - Fraction(1, 2**23)) * Fraction(2) ** 127, True),
    "F16": (11, -14, Fraction(65504), True),
    "BF16": (8, -126, (2 - Fraction(1, 2**7)) * Fraction(2) ** 127, True),
    "F8_E4M3": (4, -6, Fraction(448), False),
    "F8_E5M2": (3, -14, Fraction(57344), True),
    "F8_E4M3FNUZ": (4, -7, Fraction(240), False),
    "F8_E5M2FNUZ": (3, -15, Fraction(57344), False),
    "F8_E8M0": (1, -127, Fraction(2) ** 127, False),
}
REFUSED = "refused"


def nearest(value: float, name: str) -> float | str:
    """What a value becomes in a dtype: the nearest number, ties to even, itself if it is none, or a refusal."""
    bits, least, greatest, has_infinities = FORMATS[name]
    if math.isnan(value):
        return value
    if math.isinf(value):
        return value if has_infinities else REFUSED
    exact = Fraction(value)
    if name == "F8_E8M0":
        if exact <= 0 or exact.numerator & (exact.numerator - 1) or exact.denominator & (exact.denominator - 1):
            return REFUSED
        return value if Fraction(2) ** -127 <= exact <= greatest else REFUSED
    if not exact:
        return value
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    step = Fraction(2) ** (max(exponent, least) - bits + 1)
    count, rest = divmod(size, step)
    count += rest * 2 > step or (rest * 2 == step and count % 2 == 1)
    rounded = count * step
    return REFUSED if rounded > greatest else math.copysign(float(rounded), value)


def expected(value: float, given: str, name: str) -> float | str:
    found = nearest(value, name)
    if given == "F8_E8M0" and found is not REFUSED and not math.isnan(value) and found != value:
        return REFUSED  # a power of two that became zero
    return found


def numbers(given: DType, wanted: DType) -> Any:
    """Values of a dtype: all of them where there are few, else many, and those around the ties of the other dtype."""
    draw = np.random.default_rng(5)
    if given.bits == 8:
        return np.arange(256, dtype=np.uint8).view(given.numpy)
    if given.bits == 16:
        codes = np.arange(1 << 16, dtype=np.uint16)
        ends = np.concatenate([codes[:64], codes[0x7B00:0x7D00], codes[0x7F00:0x8040]])
        return np.concatenate([codes[:: 1 << 4], codes[5 :: 1 << 5], ends, ends | 0x8000]).view(given.numpy)
    some = draw.integers(0, 1 << given.bits, 600, dtype=f"u{given.bits // 8}").view(given.numpy)
    codes = np.arange(256, dtype=np.uint8) if wanted.bits == 8 else draw.integers(0, 1 << 16, 400, dtype=np.uint16)
    with np.errstate(all="ignore"):
        if wanted.bits <= 16:
            close = np.unique(codes.view(wanted.numpy).astype(np.float64))
            next_ = np.unique((codes + 1).astype(codes.dtype).view(wanted.numpy).astype(np.float64))
        else:
            close = np.unique(some.astype(np.float64)).astype(np.float32).astype(np.float64)
            next_ = np.nextafter(close.astype(np.float32), np.float32(np.inf)).astype(np.float64)
        ends = np.concatenate([close, next_])
        ends = np.sort(ends[np.isfinite(ends)])
        ties = (ends[1:] + ends[:-1]) / 2
        around = [ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf), ties * (1 + 2.0**-30), ends]
        specials = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-320, -1e-320, 3e38, 3.5e38, -1e300]
        return np.concatenate([some.astype(np.float64), *around, specials]).astype(given.numpy)


def as_floats(values: Any) -> list[float]:
    with np.errstate(all="ignore"):
        found: list[float] = values.astype(np.float64).tolist()
        return found


PAIRS = [(DType.parse(one), DType.parse(other)) for one, other in itertools.permutations(FORMATS, 2)]


@pytest.mark.matrix(every=6)
@pytest.mark.parametrize(("given", "wanted"), PAIRS, ids=[f"{one}-{other}" for one, other in PAIRS])
def test_every_value_is_rounded_once_or_refused(given: DType, wanted: DType) -> None:
    values = numbers(given, wanted)
    hoped = [expected(value, given.name, wanted.name) for value in as_floats(values)]
    fits = np.array([each is not REFUSED for each in hoped])
    found = as_floats(cast_array(values[fits], wanted))
    for value, got, want in zip(
        as_floats(values[fits]), found, (each for each in hoped if each is not REFUSED), strict=True
    ):
        assert got == want or (math.isnan(got) and math.isnan(want)), (value, got, want)
    assert held_as(values[fits], wanted).tobytes() == cast_array(values[fits], wanted).tobytes()
    snapshot = bs.TensorSnapshot.from_numpy("w", values[fits])
    if given is not DType.Flex32:  # NumPy has no dtype of its own for it
        assert cast(snapshot, wanted).to_bytes() == cast_array(values[fits], wanted).tobytes()
    refused = values[~fits]
    for each in (refused[:40], refused[-40:]):
        for value in each:
            alone = np.array([value], given.numpy)
            with pytest.raises(bs.errors.DTypeError, match=wanted.name):
                cast_array(alone, wanted)
            if given is not DType.Flex32:
                with pytest.raises(bs.errors.DTypeError, match=wanted.name):
                    cast(bs.TensorSnapshot.from_numpy("w", alone), wanted).to_bytes()


@pytest.mark.matrix(every=6)
@pytest.mark.parametrize(("given", "wanted"), PAIRS, ids=[f"{one}-{other}" for one, other in PAIRS])
def test_a_device_casts_only_what_the_host_casts(given: DType, wanted: DType) -> None:
    found = casting(given, wanted)
    if found is None or found.make is None:
        return
    values = numbers(given, wanted)
    for value, number in zip(values, as_floats(values), strict=True):
        if expected(number, given.name, wanted.name) is REFUSED:
            assert not found.accepts([number]), value


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("F64", "F8_E8M0", "Flex32")])
def test_a_blend_in_double_precision_is_rounded_once(name: str) -> None:
    values = numbers(DType.F64, DType.parse(name))
    hoped = [nearest(value * 0.5, name) for value in as_floats(values)]
    fits = np.array(
        [each is not REFUSED and math.isfinite(value) for each, value in zip(hoped, as_floats(values), strict=True)]
    )
    tensors = [bs.TensorSnapshot.from_numpy("w", each) for each in (values[fits], np.zeros(int(fits.sum())))]
    found = as_floats(blended(tensors, [0.5, 0.5], dtype=DType.parse(name)).numpy())
    assert found == [each for each, keep in zip(hoped, fits.tolist(), strict=True) if keep]


def test_an_infinite_sum_is_not_a_nan() -> None:
    tensors = [bs.TensorSnapshot.from_numpy("w", np.float32([np.inf, 1])) for _ in range(2)]
    with pytest.raises(bs.errors.DTypeError, match="too large for F8_E4M3"):
        blended(tensors, [0.5, 0.5], dtype=DType.F8_E4M3).to_bytes()
    assert blended(tensors, [0.5, 0.5], dtype=DType.F8_E5M2).numpy().astype(np.float32).tolist() == [np.inf, 1]


def test_the_example_of_the_law(tmp_path: Any) -> None:
    scales = np.uint8([0, 127, 254]).view(DType.F8_E8M0.numpy)
    message = r"2 powers of two, from 5\.87747e-39 to 1\.70141e\+38, do not fit F16"
    with pytest.raises(bs.errors.DTypeError, match=message):
        cast_array(scales, DType.F16)
    bs.save([bs.TensorSnapshot.from_numpy("w", scales)], tmp_path / "scales.safetensors")
    with pytest.raises(bs.BurnstoreError, match="do not fit F16"):
        bs.convert(tmp_path / "scales.safetensors", tmp_path / "half.safetensors", cast="F16")
    assert not (tmp_path / "half.safetensors").exists()
