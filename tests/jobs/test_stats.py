from __future__ import annotations

import math
import os
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import burnstore as bs
from burnstore.jobs import stats as stats_module
from burnstore.jobs.stats import TensorStats, all_stats, tensor_stats
from burnstore.tensor.quantization import QuantBlock, QuantizedTensor, QuantScheme, QuantStore, encode
from burnstore.tensor.sources import Data

FIXTURES = sorted(Path(__file__).parents[1].glob("fixtures/burn/*/*.bpk"))
PLAIN = [
    *("F64", "F32", "Flex32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"),
    *("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "Bool", "Bool(U8)", "Bool(U32)"),
]


def snapshot_of(dtype: bs.DType, raw: bytes, shape: tuple[int, ...]) -> bs.TensorSnapshot:
    return bs.TensorSnapshot.from_data("t", bs.TensorData.from_bytes(raw, dtype, shape))


def random_snapshot(name: str, count: int) -> bs.TensorSnapshot:
    dtype = bs.DType.parse(name)
    generator = np.random.default_rng(count)
    if dtype.is_bool:
        return snapshot_of(dtype, generator.integers(0, 2, count).astype(f"<u{dtype.bits // 8}").tobytes(), (count,))
    if dtype.name in ("F64", "F32", "Flex32"):
        values = generator.standard_normal(count).astype(dtype.numpy)
        values[::7], values[3::50], values[4::60] = 0, np.nan, -np.inf
        return snapshot_of(dtype, values.tobytes(), (count,))
    return snapshot_of(dtype, generator.bytes(dtype.nbytes([count])), (count,))  # every code of the narrow floats


def assert_stats_equal_numpy(stats: TensorStats, values: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        floats = values.astype(np.float64)
    finite = floats[np.isfinite(floats)]
    assert stats.nan_count == np.isnan(floats).sum()
    assert stats.inf_count == np.isinf(floats).sum()
    assert stats.zero_count == (floats == 0).sum()
    if not finite.size:
        assert (stats.min, stats.max, stats.mean, stats.std) == (None,) * 4
        return
    assert float(stats.min) == finite.min()
    assert float(stats.max) == finite.max()
    assert stats.mean == pytest.approx(finite.mean(), rel=1e-12, abs=1e-12 * np.abs(finite).max())
    assert stats.std == pytest.approx(finite.std(), rel=1e-9, abs=1e-12 * np.abs(finite).max())


@pytest.mark.parametrize("file", FIXTURES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_statistics_of_every_file_of_burn_equal_numpys(file: Path) -> None:
    with bs.open(file) as f:
        for snapshot in f.values():
            assert_stats_equal_numpy(tensor_stats(snapshot), snapshot.numpy())


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("count", [1, 1000])
def test_statistics_equal_numpys_for_every_dtype(name: str, count: int) -> None:
    snapshot = random_snapshot(name, count)
    assert_stats_equal_numpy(tensor_stats(snapshot), snapshot.numpy())


@pytest.mark.parametrize("name", PLAIN)
def test_statistics_of_many_blocks_equal_those_of_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "BLOCK", 13)
    snapshot = random_snapshot(name, 1000)
    assert_stats_equal_numpy(tensor_stats(snapshot), snapshot.numpy())


@pytest.mark.parametrize("name", ["F32", "I64", "Bool", "BF16", "F4", "F6_E2M3", "C32", "C64"])
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_an_empty_tensor_has_no_statistics_but_counts(name: str, shape: tuple[int, ...]) -> None:
    stats = tensor_stats(snapshot_of(bs.DType.parse(name), b"", shape))
    assert stats == TensorStats(None, None, None, None, 0, 0, 0)
    assert stats.is_finite


def test_integers_are_exact_at_the_ends_of_their_range() -> None:
    signed = tensor_stats(bs.TensorSnapshot.from_numpy("t", np.array([-(2**63), 2**63 - 1])))
    assert (signed.min, signed.max) == (-(2**63), 2**63 - 1)
    unsigned = tensor_stats(bs.TensorSnapshot.from_numpy("t", np.array([1, 2**64 - 1], np.uint64)))
    assert (unsigned.min, unsigned.max) == (1, 2**64 - 1)
    assert unsigned.to_dict()["max"] == "18446744073709551615"
    assert unsigned.to_dict()["min"] == 1


@pytest.mark.parametrize("magnitude", [5e-324, 1e-300, 1e-160, 1.0, 1e160, 1.7e308])
def test_mean_and_spread_survive_extreme_magnitudes(magnitude: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "BLOCK", 2)  # so that the extremes of one block meet the zeros of another
    values = np.array([0.0, 0.0, magnitude, -magnitude, magnitude, -magnitude, 0.0, 0.0])
    stats = tensor_stats(bs.TensorSnapshot.from_numpy("t", values))
    assert stats.mean == 0.0
    assert stats.std == pytest.approx(magnitude / math.sqrt(2), rel=1e-12, abs=5e-324)


def test_extremes_of_one_block_do_not_hide_behind_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "BLOCK", 2)
    for order in ([1e-200, 3e-200, 1e200, 3e200, 5.0, 7.0], [1e200, 3e200, 5.0, 7.0, 1e-200, 3e-200]):
        stats = tensor_stats(bs.TensorSnapshot.from_numpy("t", np.array(order)))
        assert stats.mean == pytest.approx(4e200 / 6)
        scaled = np.array(order) / 1e200
        assert stats.std == pytest.approx(scaled.std() * 1e200)


def test_equal_values_have_no_spread_and_their_own_mean() -> None:
    stats = tensor_stats(bs.TensorSnapshot.from_numpy("t", np.full(1_000_003, 0.1, np.float32)))
    assert stats.std == 0.0
    assert stats.mean == stats.min == stats.max == float(np.float32(0.1))


@given(st.lists(st.floats(width=64), max_size=40), st.integers(1, 8))
def test_the_mean_stays_inside_the_range_and_all_is_finite(values: list[float], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats_module, "BLOCK", block)
        stats = tensor_stats(bs.TensorSnapshot.from_numpy("t", np.array(values, np.float64)))
    finite = [value for value in values if math.isfinite(value)]
    assert stats.nan_count + stats.inf_count == len(values) - len(finite)
    if finite:
        assert stats.min == min(finite)
        assert stats.max == max(finite)
        assert stats.min <= stats.mean <= stats.max
        assert math.isfinite(stats.std)
        assert stats.std <= stats.max / 2 - stats.min / 2 + abs(stats.max) * 1e-9 + abs(stats.min) * 1e-9


def test_complex_numbers_are_counted_but_not_ordered() -> None:
    values = np.array([0, 1j, complex(math.nan, math.inf), complex(math.inf, 0)], np.complex64)
    expected = TensorStats(None, None, None, None, 1, 1, 1)
    assert tensor_stats(bs.TensorSnapshot.from_numpy("t", values)) == expected
    halves = values.view(np.float32).astype("<f2").tobytes()
    assert tensor_stats(snapshot_of(bs.DType.C32, halves, (4,))) == expected


def test_floats_of_four_bits_are_unpacked() -> None:
    values = ml_dtypes.float4_e2m1fn
    codes = np.arange(16, dtype=np.uint8)
    stats = tensor_stats(snapshot_of(bs.DType.F4, (codes[::2] | codes[1::2] << 4).tobytes(), (4, 4)))
    assert_stats_equal_numpy(stats, codes.view(values))


def test_floats_of_six_bits_are_refused_by_name() -> None:
    with pytest.raises(bs.errors.DTypeError, match="F6_E2M3 values are packed") as caught:
        tensor_stats(snapshot_of(bs.DType.F6_E2M3, bytes(3), (4,)))
    assert caught.value.tensor == "t"


@pytest.mark.parametrize(
    ("scheme", "shape"),
    [
        (QuantScheme("Q8S", QuantStore("Native")), (7, 5)),
        (QuantScheme("Q8S", QuantStore("Native")), ()),
        (QuantScheme("Q4S", QuantStore("PackedU32", 1)), (9, 4)),
        (QuantScheme("E4M3", QuantStore("Native"), tensor="F16"), (3, 0)),
        (QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((4,), "F32")), (6, 8)),
        (QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((2, 4), "F32")), (7, 8)),
        (QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((2, 4), "F32"), flat_blocks=True), (6, 8)),
        (QuantScheme("E2M1", QuantStore("PackedNative"), tensor="F32", block=QuantBlock((3,), "UE4M3")), (10,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("block", [4, 9, 1 << 18])
def test_quantized_tensors_count_as_the_numbers_they_stand_for(
    scheme: QuantScheme, shape: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_module, "BLOCK", block)
    generator = np.random.default_rng(1)
    top = 2 ** (scheme.value_bits - 1) - 1
    codes = generator.integers(-top, top + 1, shape).astype(np.int8)
    if scheme.is_float_coded:
        codes = np.abs(codes).astype(np.uint8)
    grid: tuple[int, ...] = (1,)
    if scheme.block is not None:
        extents = (1,) * (len(shape) - len(scheme.block.size)) + scheme.block.size
        grid = tuple(-(-size // extent) for size, extent in zip(shape, extents, strict=True))
    scales = (2.0 ** generator.integers(-3, 4, grid)).astype(np.float32)
    quantized = QuantizedTensor(codes, scales, None if scheme.global_dtype is None else 0.5, scheme, shape)
    snapshot = snapshot_of(bs.DType.qfloat(scheme), encode(quantized), shape)
    assert_stats_equal_numpy(tensor_stats(snapshot), quantized.dequantize())


def test_statistics_of_a_big_tensor_take_little_memory(tmp_path: Path) -> None:
    file = tmp_path / "big.bpk"
    bs.save({"x": np.full(16 << 20, 0.5, np.float32)}, file, durable=False)
    reports: list[int] = []
    with bs.open(file) as f:
        tracemalloc.start()
        stats = tensor_stats(f["x"], progress=reports.append)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert stats.mean == 0.5
    assert peak < 24 << 20
    assert reports == sorted(reports)
    assert reports[-1] == 64 << 20


def test_a_chunk_may_end_inside_an_element() -> None:
    class Dribble(Data):
        def chunks(self, nbytes: int):  # type: ignore[no-untyped-def]
            raw = np.arange(10, dtype="<f4").tobytes()
            yield from (memoryview(raw[at : at + 7]) for at in range(0, nbytes, 7))

    stats = tensor_stats(bs.TensorSnapshot("t", bs.DType.F32, (10,), Dribble()))  # type: ignore[arg-type]
    assert (stats.min, stats.max, stats.mean) == (0.0, 9.0, 4.5)


def test_statistics_take_a_snapshot() -> None:
    with pytest.raises(TypeError, match="expected a TensorSnapshot, got ndarray"):
        tensor_stats(np.zeros(3))  # type: ignore[arg-type]


# --- many tensors, in pieces ------------------------------------------------------------------------------------------


def in_file(folder: Path, **tensors: np.ndarray) -> Path:
    bs.save(tensors, folder / "many.safetensors", durable=False)
    return folder / "many.safetensors"


@pytest.mark.parametrize("workers", [None, "executor"])
def test_statistics_in_pieces_equal_numpys_whoever_takes_them(
    workers: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_module, "CHUNK_BYTES", 1000)
    generator = np.random.default_rng(7)
    tensors = {
        "long": generator.standard_normal(3000).astype(np.float32),
        "wide": generator.standard_normal((3, 700)),
        "small": np.arange(6, dtype=np.int16).reshape(2, 3),
        "holes": np.where(np.arange(900) % 7, 1.0, np.nan),
        "flags": np.arange(2500) % 3 == 0,
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 900), np.float32),
    }
    reports: list[tuple[int, int]] = []
    with bs.open(in_file(tmp_path, **tensors)) as f, ThreadPoolExecutor(3) as threads:
        chosen = threads if workers == "executor" else workers
        found = all_stats([f[name] for name in tensors], workers=chosen, progress=lambda *told: reports.append(told))
    for stats, values in zip(found, tensors.values(), strict=True):
        assert_stats_equal_numpy(stats, values)
    total = sum(values.nbytes for values in tensors.values())
    assert [told for _, told in reports] == [total] * len(reports) and reports[-1] == (total, total)
    assert reports == sorted(reports) and len(reports) > 5


def test_pieces_are_merged_as_blocks_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "CHUNK_BYTES", 16)
    orders = (
        [1e-200, 3e-200, 1e200, 3e200, 5.0, 7.0],
        [1e200, 3e200, 5.0, 7.0, 1e-200, 3e-200],
        [0.0, 0.0, 5e-324, 0.0],
    )
    with bs.open(in_file(tmp_path, **{f"t{at}": np.array(order) for at, order in enumerate(orders)})) as f:
        for stats, order in zip(all_stats(list(f.values())), orders, strict=True):
            scale = max(order)
            scaled = np.array(order) / scale
            assert stats.mean == pytest.approx(scaled.mean() * scale, rel=1e-12, abs=5e-324)
            assert stats.std == pytest.approx(scaled.std() * scale, rel=1e-12, abs=5e-324)
            assert (stats.min, stats.max) == (min(order), max(order))


@given(st.lists(st.floats(width=64), min_size=1, max_size=40), st.integers(1, 8))
def test_a_merge_is_what_one_run_would_have_been(values: list[float], size: int) -> None:
    array = np.array(values, np.float64)
    whole = stats_module.RunningStats()
    with np.errstate(all="ignore"):
        for start in range(0, len(array), size):
            part = stats_module.RunningStats()
            part.add(array[start : start + size])
            whole.merge(part)
    merged, once = whole.result(), tensor_stats(bs.TensorSnapshot.from_numpy("t", array))
    assert (merged.min, merged.max) == (once.min, once.max)
    assert (merged.nan_count, merged.inf_count, merged.zero_count) == (once.nan_count, once.inf_count, once.zero_count)
    if once.mean is not None:
        peak = max(abs(once.min), abs(once.max))
        assert math.isclose(merged.mean, once.mean, rel_tol=1e-9, abs_tol=peak * 1e-12)
        assert math.isclose(merged.std, once.std, rel_tol=1e-6, abs_tol=peak * 1e-7)
        assert merged.min <= merged.mean <= merged.max


def test_a_tensor_that_is_broken_does_not_keep_the_others_from_being_known(tmp_path: Path) -> None:
    file = in_file(tmp_path, mask=np.zeros(3, bool), w=np.ones(2))
    raw = bytearray(file.read_bytes())
    with bs.open(file) as f:
        raw[f.offset_of("mask") + 1] = 7
    with bs.open(raw) as f:
        names = list(f)
        found = dict(zip(names, all_stats(list(f.values())), strict=True))
    assert isinstance(found["mask"], bs.errors.CorruptError) and found["mask"].tensor == "mask"
    assert found["w"].mean == 1.0


def test_a_file_that_cannot_be_read_is_an_error_of_the_whole(tmp_path: Path) -> None:
    file = in_file(tmp_path, a=np.zeros(1 << 16), b=np.zeros(4))
    with bs.open(file) as f:
        os.truncate(file, 2000)
        with pytest.raises(bs.BurnstoreError):
            all_stats(list(f.values()))


def test_no_tensors_have_no_statistics() -> None:
    assert all_stats([]) == []


def test_snapshots_of_any_kind_are_taken() -> None:
    kinds = [
        bs.TensorSnapshot.from_numpy("array", np.arange(4.0)),
        bs.TensorSnapshot.from_closure("made", bs.DType.I32, (3,), lambda: np.array([1, 2, 6], np.int32)),
        snapshot_of(bs.DType.C32, np.zeros(4, "<f2").tobytes(), (2,)),
        snapshot_of(bs.DType.F4, bytes(2), (4,)),
    ]
    assert [(stats.mean, stats.zero_count) for stats in all_stats(kinds)] == [(1.5, 1), (3.0, 0), (None, 2), (0.0, 4)]
