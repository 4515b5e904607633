from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import burnstore as bs
from burnstore import inspection
from burnstore.inspection import Totals, inspect_checkpoint, inspect_file, tensor_stats
from burnstore.quant import QuantBlock, QuantizedTensor, QuantScheme, QuantStore, encode

FIXTURES = sorted(Path(__file__).parent.glob("fixtures/burn/*/*.bpk"))
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


def assert_stats_equal_numpy(stats: inspection.TensorStats, values: np.ndarray) -> None:
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
def test_every_file_of_burn_is_described_as_its_maker_says(file: Path) -> None:
    expected = json.loads(file.with_suffix(".expected.json").read_text())
    found = inspect_file(file)
    described = {
        row.name: (row.dtype.name, list(row.shape), None if row.param_id is None else str(int(row.param_id)))
        for row in found.tensors
    }
    wanted = {row["path"]: (row["dtype"], row["shape"], row.get("param_id")) for row in expected["tensors"]}
    assert described.keys() == wanted.keys()
    for name, (dtype, shape, param_id) in wanted.items():
        assert described[name][1:] == (shape, param_id)
        assert described[name][0] in dtype  # Burn's own text of a quantized dtype has its scheme as well
    assert dict(found.metadata) == expected["metadata"]
    assert found.file_size == file.stat().st_size
    assert found.layout == "burn"
    for row in found.tensors:
        assert found.data_offset <= row.offset <= row.offset + row.nbytes <= found.file_size


@pytest.mark.parametrize("file", FIXTURES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_statistics_of_every_file_of_burn_equal_numpys(file: Path) -> None:
    found = inspect_file(file, stats=True)
    with bs.open(file) as f:
        for row in found.tensors:
            assert row.problem is None
            assert_stats_equal_numpy(row.stats, f[row.name].numpy())


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("count", [1, 1000])
def test_statistics_equal_numpys_for_every_dtype(name: str, count: int) -> None:
    snapshot = random_snapshot(name, count)
    assert_stats_equal_numpy(tensor_stats(snapshot), snapshot.numpy())


@pytest.mark.parametrize("name", PLAIN)
def test_statistics_of_many_blocks_equal_those_of_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_BLOCK", 13)
    snapshot = random_snapshot(name, 1000)
    assert_stats_equal_numpy(tensor_stats(snapshot), snapshot.numpy())


@pytest.mark.parametrize("name", ["F32", "I64", "Bool", "BF16", "F4", "F6_E2M3", "C32", "C64"])
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_an_empty_tensor_has_no_statistics_but_counts(name: str, shape: tuple[int, ...]) -> None:
    stats = tensor_stats(snapshot_of(bs.DType.parse(name), b"", shape))
    assert stats == inspection.TensorStats(None, None, None, None, 0, 0, 0)
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
    monkeypatch.setattr(inspection, "_BLOCK", 2)  # so that the extremes of one block meet the zeros of another
    values = np.array([0.0, 0.0, magnitude, -magnitude, magnitude, -magnitude, 0.0, 0.0])
    stats = tensor_stats(bs.TensorSnapshot.from_numpy("t", values))
    assert stats.mean == 0.0
    assert stats.std == pytest.approx(magnitude / math.sqrt(2), rel=1e-12, abs=5e-324)


def test_extremes_of_one_block_do_not_hide_behind_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_BLOCK", 2)
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
        patch.setattr(inspection, "_BLOCK", block)
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
    expected = inspection.TensorStats(None, None, None, None, 1, 1, 1)
    assert tensor_stats(bs.TensorSnapshot.from_numpy("t", values)) == expected
    halves = values.view(np.float32).astype("<f2").tobytes()
    assert tensor_stats(snapshot_of(bs.DType.C32, halves, (4,))) == expected


def test_floats_of_four_bits_are_unpacked() -> None:
    values = ml_dtypes.float4_e2m1fn
    codes = np.arange(16, dtype=np.uint8)
    stats = tensor_stats(snapshot_of(bs.DType.F4, (codes[::2] | codes[1::2] << 4).tobytes(), (4, 4)))
    assert_stats_equal_numpy(stats, codes.view(values))


def test_floats_of_six_bits_are_refused_by_name() -> None:
    with pytest.raises(bs.DTypeError, match="F6_E2M3 values are packed") as caught:
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
    monkeypatch.setattr(inspection, "_BLOCK", block)
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
    class Dribble:
        file = None

        def chunks(self, nbytes: int):  # type: ignore[no-untyped-def]
            raw = np.arange(10, dtype="<f4").tobytes()
            yield from (memoryview(raw[at : at + 7]) for at in range(0, nbytes, 7))

    stats = tensor_stats(bs.TensorSnapshot("t", bs.DType.F32, (10,), Dribble()))  # type: ignore[arg-type]
    assert (stats.min, stats.max, stats.mean) == (0.0, 9.0, 4.5)


def sample(**options: object) -> bytes:
    tensors = {
        "layers.10.w": np.zeros((4, 4), np.float32),
        "layers.2.w": np.ones(100, np.uint8),
        "layers.2.b": np.array([np.nan, 1.0, np.inf]),
        "empty": np.zeros((0, 3), np.float32),
        "layers.1.w": np.ones(3, np.int64),
    }
    return bs.serialize(tensors, format="burnpack", metadata={"epochs": "3"}, **options)


def names(found: inspection.Inspection) -> list[str]:
    return [row.name for row in found.tensors]


def test_rows_come_in_the_order_of_the_data_unless_sorted() -> None:
    packed = sample()
    data_order = ["layers.10.w", "layers.2.w", "layers.2.b", "empty", "layers.1.w"]
    assert names(inspect_file(packed)) == data_order
    assert names(inspect_file(packed, sort="offset")) == data_order
    assert names(inspect_file(packed, sort="name")) == [
        "empty",
        "layers.1.w",
        "layers.2.b",
        "layers.2.w",
        "layers.10.w",
    ]
    assert names(inspect_file(packed, sort="size")) == [
        "layers.2.w",
        "layers.10.w",
        "layers.2.b",
        "layers.1.w",
        "empty",
    ]
    assert names(inspect_file(packed, sort="dtype")) == [
        "layers.10.w",
        "empty",
        "layers.2.b",
        "layers.1.w",
        "layers.2.w",
    ]


def test_sorting_by_name_takes_numbers_of_any_length() -> None:
    wanted = ["a", "a.0", "a.00", "a.1", "a.9", "a.10", "a." + "9" * 6000, "a.x"]
    packed = bs.serialize({name: np.zeros(1) for name in reversed(wanted)}, format="burnpack")
    assert names(inspect_file(packed, sort="name")) == wanted


def test_pattern_and_limit_select_rows_and_totals_tell_of_both() -> None:
    found = inspect_file(sample(), pattern=r"layers\.\d\.", limit=2)
    assert names(found) == ["layers.2.w", "layers.2.b"]
    assert found.total == Totals(5, 122, 212)
    assert found.selected == Totals(3, 106, 148)
    assert found.dtypes == {
        "F32": Totals(2, 16, 64),
        "U8": Totals(1, 100, 100),
        "F64": Totals(1, 3, 24),
        "I64": Totals(1, 3, 24),
    }
    assert names(inspect_file(sample(), limit=0)) == []


def test_statistics_are_taken_of_the_wanted_rows_only() -> None:
    reports: list[tuple[int, int]] = []
    found = inspect_file(sample(), pattern="b$", stats=True, progress=lambda *report: reports.append(report))
    assert [row.stats.nan_count for row in found.tensors if row.stats] == [1]
    assert reports == [(24, 24)]
    assert all(row.stats is None for row in inspect_file(sample()).tensors)


def test_a_broken_tensor_is_a_problem_of_its_row() -> None:
    packed = bytearray(bs.serialize({"mask": np.zeros(3, bool), "w": np.ones(2)}, format="burnpack"))
    offset = inspect_file(packed).tensors[0].offset
    packed[offset + 1] = 7
    mask, weight = inspect_file(packed, stats=True).tensors
    assert mask.stats is None
    assert mask.problem == "a Bool holds 7, which is neither 0 nor 1"
    assert weight.problem is None
    assert weight.stats is not None


def test_an_inspection_is_strict_json() -> None:
    scalars = {"nan": math.nan, "low": -math.inf, "big": 2**64 - 1, "lr": 0.5, "on": True}
    found = inspect_file(sample(scalars=scalars), stats=True)
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["scalars"] == {
        "nan": {"kind": "Float", "value": "NaN"},
        "low": {"kind": "Float", "value": "-Infinity"},
        "big": {"kind": "UInt", "value": "18446744073709551615"},
        "lr": {"kind": "Float", "value": 0.5},
        "on": {"kind": "Bool", "value": True},
    }
    assert document["tensors"][2] == {
        "name": "layers.2.b",
        "dtype": "F64",
        "quantization": None,
        "shape": [3],
        "elements": 3,
        "nbytes": 24,
        "offset": found.tensors[2].offset,
        "param_id": None,
        "stats": {"min": 1.0, "max": 1.0, "mean": 1.0, "std": 0.0, "nan_count": 1, "inf_count": 1, "zero_count": 0},
        "problem": None,
    }


def test_ids_keep_all_their_bits_in_json() -> None:
    snapshot = bs.TensorSnapshot.from_numpy("w", np.zeros(1), param_id=2**64 - 1)
    row = inspect_file(bs.serialize([snapshot], format="burnpack")).to_dict()["tensors"][0]
    assert row["param_id"] == {"number": "18446744073709551615", "text": "vvvvvvvvvvvvu"}


def test_an_open_checkpoint_can_be_inspected_and_stays_open() -> None:
    with bs.open(sample()) as f:
        assert inspect_checkpoint(f, pattern="b$").path == "<bytes>"
        assert f["layers.2.w"].numpy().sum() == 100


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sort": "weight"}, ValueError, "sort is one of name, size, dtype, offset, not 'weight'"),
        ({"limit": "3"}, TypeError, "limit is an int, not str"),
        ({"limit": -1}, ValueError, "limit must not be negative"),
        ({"stats": 1}, TypeError, "stats is a bool, not int"),
        ({"pattern": "("}, ValueError, "is not a regular expression: missing"),
        ({"pattern": b"x"}, TypeError, "a pattern is a str, not bytes"),
    ],
)
def test_wrong_arguments_are_refused_before_the_file_is_opened(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        inspect_file("no such file", **options)  # type: ignore[arg-type]


def test_statistics_take_a_snapshot() -> None:
    with pytest.raises(TypeError, match="takes a TensorSnapshot, not ndarray"):
        tensor_stats(np.zeros(3))  # type: ignore[arg-type]
