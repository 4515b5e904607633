"""Merge: every method × every dtype × casts gives the right values, or is refused."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import burnstore as bs
from burnstore.tensor.data import TensorData
from burnstore.tensor.dtype import DType, Kind

EXOTIC = [DType.parse(name) for name in ("F6_E2M3", "F6_E3M2", "F4", "Bool(U8)", "Bool(U32)")]
PLAIN = [
    *(DType.F64, DType.F32, DType.F16, DType.BF16, DType.I64, DType.I8, DType.U64, DType.U8, DType.Bool),
    *(DType.F8_E4M3, DType.F8_E5M2, DType.F8_E8M0, DType.parse("F8_E4M3FNUZ"), DType.C64, DType.C128),
]
BLENDED = [*PLAIN[:4], *PLAIN[9:11], *PLAIN[12:]]
CASTS = [None, "F32", "BF16", "F8_E8M0"]


def values_of(dtype: DType, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype.kind is Kind.COMPLEX:
        return (rng.standard_normal(8) + 1j * rng.standard_normal(8)).astype(dtype.numpy)
    if dtype is DType.F8_E8M0:
        return np.exp2(rng.integers(-3, 4, 8)).astype(np.float32).astype(dtype.numpy)
    if dtype.kind is Kind.FLOAT:
        return rng.standard_normal(8).astype(np.float32).astype(dtype.numpy)
    return rng.integers(0, 2, 8).astype(dtype.numpy)


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def slerp(x: np.ndarray, y: np.ndarray, t: float) -> np.ndarray:
    real_x, real_y = (each.view(np.float64) if each.dtype.kind == "c" else each for each in (x, y))
    angle = math.acos(real_x @ real_y / np.linalg.norm(real_x) / np.linalg.norm(real_y))
    return (math.sin((1 - t) * angle) * x + math.sin(t * angle) * y) / math.sin(angle)


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("method", ["overlay", "linear", "slerp"])
@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_every_method_and_dtype_gives_the_values_or_is_refused(
    tmp_path: Path, dtype: DType, method: str, cast: str | None
) -> None:
    x, y = values_of(dtype, 1), values_of(dtype, 2)
    bs.save({"w": x}, tmp_path / "a.pt", layout="torch")
    bs.save({"v" if method == "overlay" else "w": y}, tmp_path / "b.pt", layout="torch")
    options = {} if method == "overlay" else {"t": 0.25}
    sources, target = [tmp_path / "a.pt", tmp_path / "b.pt"], tmp_path / "c.pt"
    refusal = None
    try:
        bs.merge(sources, target, method=method, cast=cast, **options)
    except bs.BurnstoreError as error:
        refusal = str(error)
    if refusal is not None:
        if method != "overlay" and dtype not in BLENDED:
            assert "cannot be averaged" in refusal or "cannot cast" in refusal
        else:  # powers of two hold few values
            assert cast == "F8_E8M0", refusal
        assert not target.exists()
        return
    assert method == "overlay" or dtype in BLENDED
    expected = {"overlay": wide(x), "linear": 0.75 * wide(x) + 0.25 * wide(y)}.get(method)
    expected = slerp(wide(x), wide(y), 0.25) if expected is None else expected
    with bs.open(target) as file:
        found, written = file["w"].numpy(), file["w"].dtype
    assert written is (DType.parse(cast) if cast and dtype.is_float else dtype)
    close = 2.0 ** -np.finfo(found.dtype).nmant if found.dtype in (np.float32, np.float64) else None
    rough = {DType.F8_E4M3: 2**-4, DType.F8_E5M2: 2**-3, DType.parse("F8_E4M3FNUZ"): 2**-4, DType.F16: 2**-11}
    bound = close or rough.get(written, 2**-8 if written is DType.BF16 else 1e-6)
    np.testing.assert_allclose(wide(found), expected, rtol=bound, atol=2**-6 if written.bits == 8 else 1e-6)


@pytest.mark.parametrize("cast", [None, "F32"])
@pytest.mark.parametrize("method", ["overlay", "linear", "slerp"])
@pytest.mark.parametrize("dtype", EXOTIC, ids=str)
def test_packed_dtypes_are_copied_if_equal_and_never_left_uncast(
    tmp_path: Path, dtype: DType, method: str, cast: str | None
) -> None:
    raw = bytes([0, 1] * (dtype.bits * 8 // 16)) if dtype.kind is not Kind.BOOL else bytes(dtype.bits)
    data = TensorData.from_bytes(raw, dtype, (8,))
    suffix = ".bpk" if dtype.kind is Kind.BOOL else ".safetensors"
    first, second, target = (tmp_path / f"{name}{suffix}" for name in "abc")
    layout = "burn" if suffix == ".bpk" else "torch"
    bs.save({"w": data}, first, layout=layout)
    bs.save({"v" if method == "overlay" else "w": data}, second, layout=layout)
    options, sources = {} if method == "overlay" else {"t": 0.25}, [first, second]
    if cast is not None and dtype.is_float:
        with pytest.raises(bs.BurnstoreError):
            bs.merge(sources, target, method=method, cast=cast, **options)
        return
    bs.merge(sources, target, method=method, cast=cast, **options)
    with bs.open(target) as file:
        assert file["w"].dtype is dtype
        assert file["w"].to_bytes() == raw


def test_equal_powers_of_two_are_cast_exactly(tmp_path: Path) -> None:
    scales = np.exp2(np.arange(-4, 4)).astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)
    for name in "ab":
        bs.save({"w": scales}, tmp_path / f"{name}.pt", layout="torch")
    bs.merge(
        [tmp_path / "a.pt", tmp_path / "b.pt"],
        tmp_path / "c.pt",
        method="linear",
        cast="F32",
    )
    with bs.open(tmp_path / "c.pt") as file:
        assert file["w"].dtype is DType.F32
        assert file["w"].numpy().tolist() == scales.astype(np.float32).tolist()


def test_a_slerp_of_complex_tensors_follows_the_arc_of_both_parts(tmp_path: Path) -> None:
    bs.save({"w": np.array([1 + 0j, 0j])}, tmp_path / "a.pt", layout="torch")
    bs.save({"w": np.array([1j, 0j])}, tmp_path / "b.pt", layout="torch")
    sources = [tmp_path / "a.pt", tmp_path / "b.pt"]
    done = bs.merge(sources, tmp_path / "c.pt", method="slerp", t=0.5)
    half = math.sqrt(0.5)
    assert done.tensors[0].weights == pytest.approx((half, half))
    with bs.open(tmp_path / "c.pt") as file:
        assert file["w"].numpy()[0] == pytest.approx(complex(half, half))
