from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import burnstore as bs
from burnstore.jobs.inspect import inspect as inspection
from burnstore.jobs.inspect.inspect import inspect
from burnstore.jobs.inspect.tree import Totals
from burnstore.jobs.stats import tensor_stats

FIXTURES = sorted(Path(__file__).parents[1].glob("fixtures/burn/*/*.bpk"))


@pytest.mark.parametrize("file", FIXTURES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_file_of_burn_is_described_as_its_maker_says(file: Path) -> None:
    expected = json.loads(file.with_suffix(".expected.json").read_text())
    found = inspect(file)
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
    assert names(inspect(packed)) == data_order
    assert names(inspect(packed, sort="offset")) == data_order
    assert names(inspect(packed, sort="name")) == [
        "empty",
        "layers.1.w",
        "layers.2.b",
        "layers.2.w",
        "layers.10.w",
    ]
    assert names(inspect(packed, sort="size")) == [
        "layers.2.w",
        "layers.10.w",
        "layers.2.b",
        "layers.1.w",
        "empty",
    ]
    assert names(inspect(packed, sort="dtype")) == [
        "layers.10.w",
        "empty",
        "layers.2.b",
        "layers.1.w",
        "layers.2.w",
    ]


def test_sorting_by_name_takes_numbers_of_any_length() -> None:
    wanted = ["a", "a.0", "a.00", "a.1", "a.9", "a.10", "a." + "9" * 6000, "a.x"]
    packed = bs.serialize({name: np.zeros(1) for name in reversed(wanted)}, format="burnpack")
    assert names(inspect(packed, sort="name")) == wanted


def test_pattern_and_limit_select_rows_and_totals_tell_of_both() -> None:
    found = inspect(sample(), pattern=r"layers\.\d\.", limit=2)
    assert names(found) == ["layers.2.w", "layers.2.b"]
    assert found.total == Totals(5, 122, 212)
    assert found.selected == Totals(3, 106, 148)
    assert found.dtypes == {
        "F32": Totals(2, 16, 64),
        "U8": Totals(1, 100, 100),
        "F64": Totals(1, 3, 24),
        "I64": Totals(1, 3, 24),
    }
    assert names(inspect(sample(), limit=0)) == []


@pytest.mark.parametrize("file", FIXTURES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_statistics_of_a_file_are_those_of_its_tensors(file: Path) -> None:
    found = inspect(file, stats=True)
    with bs.open(file) as f:
        assert [(row.stats, row.problem) for row in found.tensors] == [(tensor_stats(t), None) for t in f.values()]


def test_statistics_are_taken_of_the_wanted_rows_only() -> None:
    reports: list[tuple[int, int]] = []
    found = inspect(sample(), pattern="b$", stats=True, progress=lambda *report: reports.append(report))
    assert [row.stats.nan_count for row in found.tensors if row.stats] == [1]
    assert reports == [(24, 24)]
    assert all(row.stats is None for row in inspect(sample()).tensors)


def test_a_broken_tensor_is_a_problem_of_its_row() -> None:
    packed = bytearray(bs.serialize({"mask": np.zeros(3, bool), "w": np.ones(2)}, format="burnpack"))
    offset = inspect(packed).tensors[0].offset
    packed[offset + 1] = 7
    mask, weight = inspect(packed, stats=True).tensors
    assert mask.stats is None
    assert mask.problem == "expected 0 or 1 in a Bool, found 7"
    assert weight.problem is None
    assert weight.stats is not None


def test_an_inspection_is_strict_json() -> None:
    scalars = {"nan": math.nan, "low": -math.inf, "big": 2**64 - 1, "lr": 0.5, "on": True}
    found = inspect(sample(scalars=scalars), stats=True)
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
        "shard": None,
        "param_id": None,
        "stats": {"min": 1.0, "max": 1.0, "mean": 1.0, "std": 0.0, "nan_count": 1, "inf_count": 1, "zero_count": 0},
        "problem": None,
        "tied_to": None,
    }


def test_ids_keep_all_their_bits_in_json() -> None:
    snapshot = bs.TensorSnapshot.from_numpy("w", np.zeros(1), param_id=2**64 - 1)
    row = inspect(bs.serialize([snapshot], format="burnpack")).to_dict()["tensors"][0]
    assert row["param_id"] == {"number": "18446744073709551615", "text": "vvvvvvvvvvvvu"}


def test_an_open_checkpoint_can_be_inspected_and_stays_open() -> None:
    with bs.open(sample()) as f:
        assert inspect(f, pattern="b$").path == "<bytes>"
        assert f["layers.2.w"].numpy().sum() == 100


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sort": "weight"}, ValueError, "sort must be one of name, size, dtype, offset, got 'weight'"),
        ({"limit": "3"}, TypeError, "limit must be an int, got str"),
        ({"limit": -1}, ValueError, "limit must be 0 or more"),
        ({"stats": 1}, TypeError, "stats must be a bool, got int"),
        ({"pattern": "("}, ValueError, "Invalid regex pattern '\\(': missing"),
        ({"pattern": b"x"}, TypeError, "pattern must be a str, got bytes"),
    ],
)
def test_wrong_arguments_are_refused_before_the_file_is_opened(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        inspect("no such file", **options)  # type: ignore[arg-type]
