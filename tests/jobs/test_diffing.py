"""diff: what two files, models or mappings have in common, across formats and layouts, whoever does the work."""

from __future__ import annotations

import json
import os
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import nn
from burnstore.io import workers as workers_module
from burnstore.jobs.diff import compare as comparison_module
from burnstore.tensor.quantization import QuantizedTensor, QuantScheme, QuantStore, encode

F32 = np.float32


def rand(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


def statuses(found: bs.Diff) -> dict[str, str]:
    return {tensor.shown_name: tensor.status for tensor in found.tensors}


# --- what became of each tensor ---------------------------------------------------------------------------------------


def test_every_tensor_has_its_status() -> None:
    old = {"same": rand(3), "values": rand(4), "dtype": rand(5), "shape": rand(6), "old": rand(7), "gone": rand(8)}
    new = {
        "same": rand(3),
        "values": rand(4) + 1,
        "dtype": rand(5).astype(np.float64),
        "shape": rand(6).reshape(2, 3),
        "new": rand(7),
        "more": rand(9),
    }
    found = bs.diff(old, new)
    assert statuses(found) == {
        "same": "equal",
        "values": "changed",
        "dtype": "dtype changed",
        "shape": "shape changed",
        "old": "moved",
        "gone": "removed",
        "more": "added",
    }
    assert [tensor.new_name for tensor in found.moved] == ["new"]
    assert found.dtype_changed[0].has_same_values and not found.changed[0].has_same_values
    assert [len(of) for of in (found.equal, found.close, found.removed, found.added, found.shape_changed)] == [
        *(1, 0, 1, 1, 1)
    ]
    assert found.counts["equal"] == 1 and not found.is_equal


def test_two_of_nothing_are_not_equal_unless_that_is_allowed() -> None:
    found = bs.diff({}, {})
    assert not found and not found.is_equal
    assert str(found) == "0 tensors: none\nnot compared: neither side has a tensor"
    assert bs.diff({}, {}, allow_empty=True).is_equal


def test_order_does_not_matter_and_that_of_the_first_is_kept() -> None:
    found = bs.diff({"b": rand(2), "a": rand(3)}, {"a": rand(3), "b": rand(2)})
    assert found.is_equal and [tensor.name for tensor in found.tensors] == ["b", "a"]


def test_tensors_without_elements_or_axes_are_compared() -> None:
    old = {"none": np.zeros((0, 3), F32), "scalar": F32(1)}
    assert bs.diff({k: np.asarray(v) for k, v in old.items()}, {k: np.asarray(v) for k, v in old.items()}).is_equal
    found = bs.diff({"s": np.asarray(F32(1))}, {"s": np.asarray(F32(2))})
    assert found.changed[0].difference.index == () and "at []" in str(found)


def test_equal_bytes_under_several_names_are_matched_in_their_order() -> None:
    zeros = np.zeros(4, F32)
    found = bs.diff({"a": zeros, "b": zeros, "c": zeros}, {"x": zeros, "y": zeros})
    assert [(tensor.name, tensor.new_name) for tensor in found.moved] == [("a", "x"), ("b", "y")]
    assert [tensor.name for tensor in found.removed] == ["c"]


def test_only_what_is_left_over_can_have_moved() -> None:
    found = bs.diff({"a": rand(3), "b": rand(3)}, {"a": rand(3), "c": rand(3)})
    assert statuses(found) == {"a": "equal", "b": "moved"}
    assert statuses(bs.diff({"a": rand(3)}, {"a": rand(3), "c": rand(3)})) == {"a": "equal", "c": "added"}


def test_what_has_one_checksum_and_other_bytes_did_not_move() -> None:
    one = b"weights!" * 2
    wanted = zlib.crc32(one)
    other = bytearray(b"anything" + bytes(8))
    # Checksums are linear: four bytes can be chosen so that any of them comes out.
    columns = [
        zlib.crc32(bytes(8) + (1 << bit).to_bytes(4, "little") + bytes(4)) ^ zlib.crc32(bytes(16)) for bit in range(32)
    ]
    rest, chosen = zlib.crc32(bytes(other)) ^ wanted, 0
    basis: dict[int, tuple[int, int]] = {}
    for bit, column in enumerate(columns):
        mask = 1 << bit
        while column:
            high = column.bit_length()
            if high not in basis:
                basis[high] = (column, mask)
                break
            column, mask = column ^ basis[high][0], mask ^ basis[high][1]
    while rest:
        column, mask = basis[rest.bit_length()]
        rest, chosen = rest ^ column, chosen ^ mask
    other[8:12] = chosen.to_bytes(4, "little")
    assert zlib.crc32(bytes(other)) == wanted and bytes(other) != one
    found = bs.diff({"a": np.frombuffer(one, np.uint8)}, {"b": np.frombuffer(bytes(other), np.uint8)})
    assert statuses(found) == {"a": "removed", "b": "added"}


def test_a_tolerance_makes_tensors_close() -> None:
    old, new = {"a": F32([1, 2]), "b": F32([1, 2])}, {"a": F32([1, 2.001]), "b": F32([1, 2.1])}
    found = bs.diff(old, new, tolerance=0.01)
    assert statuses(found) == {"a": "close", "b": "changed"} and not found.is_equal
    assert bs.diff(old, new, relative_tolerance=0.1).is_equal
    assert bs.diff(old, new, tolerance=0.2).close[0].difference.beyond == 0
    assert not bs.diff({"a": F32([1])}, {"a": F32([np.nan])}, tolerance=1e9).is_equal


def test_another_dtype_counts_unless_it_is_ignored() -> None:
    old, new = {"a": F32([1, 2])}, {"a": np.array([1, 2.0])}
    assert statuses(bs.diff(old, new, tolerance=1)) == {"a": "dtype changed"}
    same = bs.diff(old, new, ignore_dtype=True)
    assert same.is_equal and same.tensors[0].difference.differing == 0
    rounded = {"a": np.float16([1, 2.001])}
    assert statuses(bs.diff({"a": F32([1, 2.001])}, rounded, ignore_dtype=True)) == {"a": "changed"}
    assert bs.diff({"a": F32([1, 2.001])}, rounded, ignore_dtype=True, relative_tolerance=1e-3).is_equal


def test_a_filter_leaves_some_tensors() -> None:
    old, new = {"a.x": rand(2), "b.x": rand(3)}, {"a.x": rand(2), "b.x": rand(3) + 1, "c": rand(1)}
    assert bs.diff(old, new, filter=bs.PathFilter().with_regex("^a")).is_equal
    assert statuses(bs.diff(old, new, filter=bs.PathFilter().with_regex("^[bc]"))) == {"b.x": "changed", "c": "added"}


@pytest.mark.parametrize(
    "options", [{"filter": 3}, {"tolerance": "1"}, {"tolerance": -1}, {"executor": 0}, {"executor": "two"}]
)
def test_wrong_arguments_are_told_of(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        bs.diff({}, {}, **options)


# --- every dtype ------------------------------------------------------------------------------------------------------

DTYPES = [
    *("F64", "F32", "Flex32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4"),
    *("F6_E2M3", "F6_E3M2", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "C32", "C64", "C128"),
]


def tensor(name: str, raw: bytes, count: int) -> bs.TensorSnapshot:
    return bs.TensorSnapshot.from_data("t", bs.TensorData.from_bytes(raw, bs.DType.parse(name), (count,)))


@pytest.mark.parametrize("name", DTYPES)
def test_one_bit_is_found_in_every_dtype(name: str) -> None:
    raw = bytearray(np.random.default_rng(1).bytes(bs.DType.parse(name).nbytes([64])))
    one = tensor(name, bytes(raw), 64)
    raw[-3] ^= 1
    other = tensor(name, bytes(raw), 64)
    assert bs.diff([one], [one]).is_equal
    found = bs.diff([one], [other]).changed[0]
    if name.startswith("F6_"):
        assert found.difference is None and "packed" in (found.problem or "")
    else:
        assert found.difference is not None and found.difference.differing == 1


@pytest.mark.parametrize(("name", "width"), [("Bool", 1), ("Bool(U8)", 1), ("Bool(U32)", 4)])
def test_bools_are_compared(name: str, width: int) -> None:
    one, other = np.array([0, 1], f"<u{width}").tobytes(), np.array([1, 1], f"<u{width}").tobytes()
    found = bs.diff([tensor(name, one, 2)], [tensor(name, other, 2)]).changed[0].difference
    assert (found.differing, found.max_abs) == (1, 1)


def quantized(codes: list[int], scale: float, value: str = "Q8S") -> bs.TensorSnapshot:
    scheme = QuantScheme(value, QuantStore("Native"))  # type: ignore[arg-type]
    raw = encode(QuantizedTensor(np.int8(codes), F32([scale]), None, scheme, (len(codes),)))
    return bs.TensorSnapshot.from_data("q", bs.TensorData.from_bytes(raw, bs.DType.qfloat(scheme), (len(codes),)))


def test_quantized_tensors_are_compared_by_the_numbers_that_they_stand_for() -> None:
    assert bs.diff([quantized([1, 2, 3], 0.5)], [quantized([1, 2, 3], 0.5)]).is_equal
    found = bs.diff([quantized([1, 2, 3], 0.5)], [quantized([1, 2, 5], 0.5)]).changed[0].difference
    assert (found.differing, found.max_abs, found.values, found.max_ulp) == (1, 1.0, (1.5, 2.5), None)
    halved = bs.diff([quantized([2, 4], 0.5)], [quantized([1, 2], 1.0)]).changed[0]
    assert halved.has_same_values  # other bytes that stand for the same numbers
    assert bs.diff([quantized([2, 4], 0.5)], [quantized([1, 2], 1.0)], tolerance=0).is_equal
    values = bs.TensorSnapshot.from_numpy("q", F32([1, 2]))
    assert bs.diff([quantized([2, 4], 0.5)], [values]).dtype_changed[0].has_same_values
    assert bs.diff([quantized([2, 4], 0.5)], [quantized([2, 4], 0.5, "Q8F")]).dtype_changed[0].has_same_values


def test_quantized_tensors_are_compared_with_those_of_any_dtype() -> None:
    for values in (np.int64([1, 2]), np.complex64([1, 2]), np.array([True, True]), np.float16([1, 2])):
        other = bs.TensorSnapshot.from_numpy("q", values)
        found = bs.diff([quantized([2, 4], 0.5)], [other]).dtype_changed[0].difference
        assert found.differing == (1 if values.dtype == np.bool_ else 0)
    beyond = bs.TensorSnapshot.from_numpy("q", np.int64([2**53 + 1]))
    assert bs.diff([quantized([1], 2.0**53)], [beyond]).dtype_changed[0].difference.differing == 1


# --- files ------------------------------------------------------------------------------------------------------------

MODEL = {"fc.weight": rand(4, 3), "fc.bias": rand(4), "ids": np.arange(5), "half": rand(6).astype(np.float16)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bs.save(MODEL, tmp_path / "a.bpk", layout="burn")
    bs.save(MODEL, tmp_path / "a.safetensors", metadata={"burnstore.layout": "burn", "note": "x"})
    bs.save(MODEL, tmp_path / "plain.safetensors")
    bs.save(MODEL, tmp_path / "sharded.safetensors", max_shard_size=40)
    return tmp_path


@pytest.mark.parametrize("other", ["a.safetensors", "plain.safetensors", "sharded.safetensors.index.json"])
def test_formats_and_shards_make_no_difference(folder: Path, other: str) -> None:
    found = bs.diff(folder / "a.bpk", folder / other)
    assert found.is_equal and len(found.equal) == 4 and found.layout is None
    assert (found.first, found.second) == (str(folder / "a.bpk"), str(folder / other))


def test_a_file_that_does_not_say_its_layout_is_taken_as_it_is_and_that_is_said(folder: Path) -> None:
    (note,) = bs.diff(folder / "a.bpk", folder / "plain.safetensors").notes
    assert "does not state its layout" in note and "plain.safetensors" in note


def test_texts_that_differ_are_told_and_do_not_count(folder: Path) -> None:
    bs.save(MODEL, folder / "b.bpk", layout="burn", metadata={"epochs": "3", "name": "x"})
    bs.save(MODEL, folder / "c.bpk", layout="burn", metadata={"epochs": "4", "name": "x", "more": ""})
    found = bs.diff(folder / "b.bpk", folder / "c.bpk")
    assert found.metadata == {"epochs": ("3", "4"), "more": (None, "")} and found.is_equal


def test_scalars_that_differ_count(folder: Path) -> None:
    for name, step in (("b.bpk", 1), ("c.bpk", 2)):
        bs.save(MODEL, folder / name, scalars={"step": step, "eps": 0.5, "loss": float("nan")})
    found = bs.diff(folder / "b.bpk", folder / "c.bpk")
    assert list(found.scalars) == ["step"] and not found.is_equal
    assert json.loads(json.dumps(found.to_dict()))["scalars"]["step"][1]["value"] == 2


def test_other_parameter_ids_are_noted(folder: Path) -> None:
    for name, number in (("b.bpk", 1), ("c.bpk", 2)):
        bs.save([bs.TensorSnapshot.from_numpy("w", rand(2), param_id=number)], folder / name)
    found = bs.diff(folder / "b.bpk", folder / "c.bpk")
    assert found.is_equal and found.notes == ("the parameter ids of 1 tensor differ",)


def test_open_checkpoints_models_and_bytes_can_be_compared(folder: Path) -> None:
    with bs.open(folder / "a.bpk") as f, bs.open(folder / "a.bpk", zero_copy=True) as mapped:
        assert bs.diff(f, mapped).is_equal and bs.diff(f, MODEL).is_equal and bs.diff(f, f).is_equal
    packed = bs.serialize(MODEL, format="burnpack")
    assert bs.diff(packed, MODEL).is_equal and bs.diff(packed, packed).is_equal
    assert bs.diff(folder / "a.bpk", dict(MODEL)).second == "<b: dict>"


@pytest.mark.parametrize("link", [False, True])
def test_one_and_the_same_file_is_not_read(folder: Path, link: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    other = folder / "a.bpk"
    if link:
        other = folder / "b.bpk"
        os.link(folder / "a.bpk", other)
    for name in ("read_together", "ByteStream"):
        monkeypatch.setattr(comparison_module, name, None)
    found = bs.diff(folder / "a.bpk", other)
    assert found.is_equal and len(found.equal) == 4 and found.second == str(other)


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        bs.diff(folder / "a.bpk", folder / "absent.bpk")


def test_a_broken_file_is_an_error_that_names_it(folder: Path) -> None:
    raw = (folder / "a.bpk").read_bytes()
    (folder / "cut.bpk").write_bytes(raw[:-1])
    with pytest.raises(bs.errors.TruncatedError, match=r"cut\.bpk"):
        bs.diff(folder / "a.bpk", folder / "cut.bpk")


def test_a_bool_that_is_none_is_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    bs.save({"x": np.array([True, False]), "y": rand(3)}, tmp_path / "a.bpk")
    raw = bytearray((tmp_path / "a.bpk").read_bytes())
    with bs.open(tmp_path / "a.bpk") as f:
        raw[f.offset_of("x")] = 7
    (tmp_path / "b.bpk").write_bytes(raw)
    with pytest.raises(bs.errors.CorruptError, match=r"'x'"):
        bs.diff(tmp_path / "a.bpk", tmp_path / "b.bpk")


# --- layouts ----------------------------------------------------------------------------------------------------------

TORCH = {
    "fc.weight": rand(4, 3),
    "fc.bias": rand(4),
    "norm.weight": rand(4),
    "norm.bias": rand(4),
    "attn.in_proj_weight": rand(12, 4),
    "attn.in_proj_bias": rand(12),
    "attn.out_proj.weight": rand(4, 4),
    "attn.out_proj.bias": rand(4),
    "bn.weight": rand(2),
    "bn.bias": rand(2),
    "bn.running_mean": rand(2),
    "bn.running_var": rand(2),
    "bn.num_batches_tracked": np.array(17),
}
RULES = {"^fc$": "Linear", "^norm$": "LayerNorm", "^attn$": "MultiheadAttention", "^bn$": "BatchNorm2d"}


class Net(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.attn = nn.MultiHeadAttention(4, 2)
        self.bn = nn.BatchNorm(2)


@pytest.fixture
def layouts(tmp_path: Path) -> Path:
    bs.save(TORCH, tmp_path / "torch.safetensors", metadata={"format": "pt"})
    bs.convert(tmp_path / "torch.safetensors", tmp_path / "recorded.bpk", rules=RULES)
    bs.convert(
        tmp_path / "torch.safetensors", tmp_path / "silent.bpk", pipeline=bs.Pipeline(rules=RULES, record_modules=False)
    )
    return tmp_path


def test_a_converted_file_equals_its_source(layouts: Path) -> None:
    for pair in (("torch.safetensors", "recorded.bpk"), ("recorded.bpk", "torch.safetensors")):
        found = bs.diff(layouts / pair[0], layouts / pair[1])
        assert found.is_equal and found.layout == "burn"
        assert "fc.weight" in statuses(found) and "attn.query.weight" in statuses(found)
        assert found.second == str(layouts / pair[1])


@pytest.mark.parametrize("way", ["like", "rules", "file"])
def test_the_kinds_of_modules_can_be_told(layouts: Path, way: str) -> None:
    ways: dict[str, dict[str, Any]] = {
        "like": {"like": Net()},
        "rules": {"rules": RULES},
        "file": {"like": layouts / "recorded.bpk"},
    }
    found = bs.diff(layouts / "torch.safetensors", layouts / "silent.bpk", **ways[way])
    assert found.is_equal and found.layout == "burn"


def test_without_anybody_who_tells_it_is_an_error_with_ways_out(layouts: Path) -> None:
    with pytest.raises(bs.errors.ModelError, match="nothing states the kinds") as caught:
        bs.diff(layouts / "torch.safetensors", layouts / "silent.bpk")
    assert all(way in (caught.value.hint or "") for way in ("like=", "rules=", "keep_layout=True"))
    with pytest.raises(bs.errors.ModelError, match="does not record"):
        bs.diff(layouts / "torch.safetensors", layouts / "silent.bpk", like=layouts / "silent.bpk")
    with pytest.raises(bs.errors.ModelError, match="no rule names the kind") as caught:
        bs.diff(layouts / "torch.safetensors", layouts / "silent.bpk", rules={"^fc$": "Linear"})
    assert "to compare the tensors" in (caught.value.hint or "")


def test_layouts_can_be_kept(layouts: Path) -> None:
    found = bs.diff(layouts / "torch.safetensors", layouts / "silent.bpk", keep_layout=True)
    assert statuses(found)["fc.weight"] == "shape changed" and statuses(found)["norm.weight"] == "moved"
    assert found.layout is None


def test_a_change_is_found_across_layouts(layouts: Path) -> None:
    changed = {**TORCH, "attn.in_proj_weight": TORCH["attn.in_proj_weight"].copy()}
    changed["attn.in_proj_weight"][5, 2] += 1
    bs.save(changed, layouts / "changed.safetensors", metadata={"format": "pt"})
    found = bs.diff(layouts / "changed.safetensors", layouts / "recorded.bpk")
    (one,) = found.changed
    assert one.name == "attn.key.weight" and one.difference.index == (2, 1)  # row 5 is the key's second


def test_counts_that_burn_does_not_keep_are_left_out_and_that_is_said(layouts: Path) -> None:
    other = {**TORCH, "bn.num_batches_tracked": np.array(18)}
    bs.save(other, layouts / "other.safetensors", metadata={"format": "pt"})
    found = bs.diff(layouts / "other.safetensors", layouts / "silent.bpk", rules=RULES)
    assert found.is_equal
    assert found.notes == ("not compared, because Burn's layout has no such tensors: 'bn.num_batches_tracked'",)


def test_counts_that_were_recorded_are_compared() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    model[0].num_batches_tracked += 5
    packed = bs.serialize(model, format="burnpack")
    assert bs.diff(packed, model).is_equal and not bs.diff(packed, model).notes
    model[0].num_batches_tracked += 1
    (changed,) = bs.diff(packed, model).changed
    assert changed.name == "0.num_batches_tracked" and changed.difference.values == (5, 6)


def test_a_tensor_that_the_model_does_not_know_is_compared_under_its_own_name(layouts: Path) -> None:
    bs.save({**TORCH, "extra": rand(2)}, layouts / "more.safetensors", metadata={"format": "pt"})
    found = bs.diff(layouts / "more.safetensors", layouts / "silent.bpk", like=Net())
    assert [tensor.name for tensor in found.removed] == ["extra"] and len(found.equal) == len(found.tensors) - 1


def test_a_tensor_whose_module_nobody_named_is_an_error_with_ways_out(layouts: Path) -> None:
    bs.save({**TORCH, "head.weight": rand(2, 2)}, layouts / "more.safetensors", metadata={"format": "pt"})
    with pytest.raises(bs.errors.ModelError, match="does not name its module") as caught:
        bs.diff(layouts / "more.safetensors", layouts / "recorded.bpk")
    assert caught.value.tensor == "head.weight" and "keep_layout=True" in (caught.value.hint or "")


def test_models_of_torch_are_compared_with_files() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    packed = bs.serialize(model, format="burnpack")
    assert bs.diff(packed, model).is_equal
    with torch.no_grad():
        model[2].weight[1, 3] += 1
    (changed,) = bs.diff(packed, model).changed
    assert changed.name == "1.weight" and changed.difference.index == (3, 1)


def test_a_state_dict_is_compared_by_what_the_file_records(layouts: Path) -> None:
    import torch

    state = {name: torch.from_numpy(np.array(values)) for name, values in TORCH.items()}
    assert bs.diff(state, layouts / "recorded.bpk").is_equal
    assert bs.diff(layouts / "silent.bpk", state, rules=RULES).is_equal
    with pytest.raises(bs.errors.ModelError, match="nothing states the kinds"):
        bs.diff(state, layouts / "silent.bpk")


# --- pieces, memory, workers ------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    tensors = {f"w{at}": generator.standard_normal(50_000 + at).astype(F32) for at in range(3)}
    tensors["i"] = generator.integers(-(2**62), 2**62, 30_000)
    tensors["h"] = generator.standard_normal(70_000).astype(np.float16)
    tensors["moved"] = generator.standard_normal(100).astype(F32)
    bs.save(tensors, tmp_path / "a.bpk")
    tensors["w1"] = tensors["w1"].copy()
    tensors["w1"][[7, 40_000, 49_999]] += 1
    tensors["i"] = tensors["i"].copy()
    tensors["i"][29_999] += 3
    tensors["h"] = tensors["h"].astype(F32)
    tensors["h"][69_999] += 2
    tensors["renamed"] = tensors.pop("moved")
    bs.save(tensors, tmp_path / "b.safetensors", metadata={"burnstore.layout": "burn"})
    return tmp_path


def test_pieces_and_blocks_make_no_difference(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = large / "a.bpk", large / "b.safetensors"
    whole = bs.diff(*paths, tolerance=1e-3)
    assert statuses(whole) == {
        "w0": "equal",
        "w1": "changed",
        "w2": "equal",
        "i": "changed",
        "h": "dtype changed",
        "moved": "moved",
    }
    for module, name, value in (
        (comparison_module, "TASK_BYTES", 9000),
        (comparison_module, "_BLOCK_BYTES", 1000),
        (comparison_module, "_BLOCK_ELEMENTS", 1024),
        (workers_module, "TASK_BYTES", 9000),
        (workers_module, "GATHERED_BYTES", 100),
    ):
        monkeypatch.setattr(module, name, value)
    cut = bs.diff(*paths, tolerance=1e-3)
    for one, other in zip(whole.tensors, cut.tensors, strict=True):
        assert one.status == other.status
        if one.difference is not None:
            exact = ("elements", "differing", "beyond", "max_abs", "max_ulp", "index", "values")
            assert all(getattr(one.difference, name) == getattr(other.difference, name) for name in exact)
            assert one.difference.rel_l2 == pytest.approx(other.difference.rel_l2, rel=1e-12)
            assert one.difference.cosine == pytest.approx(other.difference.cosine, rel=1e-12)


def same_json(found: bs.Diff) -> str:
    return json.dumps(found.to_dict())


@pytest.mark.usefixtures("spawning")
def test_processes_find_what_threads_find(large: Path) -> None:
    paths = large / "a.bpk", large / "b.safetensors"
    assert same_json(bs.diff(*paths, executor=2)) == same_json(bs.diff(*paths))


def test_any_executor_will_do(large: Path) -> None:
    paths = large / "a.bpk", large / "b.safetensors"
    with ThreadPoolExecutor(3) as executor:
        assert same_json(bs.diff(*paths, executor=executor)) == same_json(bs.diff(*paths))


@pytest.mark.usefixtures("spawning")
def test_processes_compare_across_layouts(layouts: Path) -> None:
    assert bs.diff(layouts / "torch.safetensors", layouts / "recorded.bpk", executor=2).is_equal


DASK = """
import json, sys
import distributed
import burnstore as bs
if __name__ == "__main__":
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        with distributed.Client(cluster) as client:
            print(json.dumps(bs.diff(*sys.argv[1:], executor=client).to_dict()))
            assert bs.verify(sys.argv[1], executor=client).ok
"""


@pytest.mark.slow("a cluster")
def test_a_cluster_of_dask_compares_and_verifies(large: Path, run_python: Any) -> None:
    paths = large / "a.bpk", large / "b.safetensors"
    found = run_python(DASK, *paths)
    assert json.loads(found) == json.loads(same_json(bs.diff(*paths)))


def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    tensors = {f"w{at}": np.full(4 << 20, at, F32) for at in range(3)}  # 16 MiB each
    bs.save(tensors, tmp_path / "a.bpk", durable=False)
    tensors["w1"][12345] = -1
    bs.save(tensors, tmp_path / "b.bpk", durable=False)
    del tensors
    tracemalloc.start()
    try:
        found = bs.diff(tmp_path / "a.bpk", tmp_path / "b.bpk")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.changed[0].difference.index == (12345,)
    assert peak < 16 << 20


def test_progress_counts_every_byte_once(large: Path) -> None:
    reports: list[tuple[int, int]] = []
    bs.diff(large / "a.bpk", large / "b.safetensors", progress=lambda done, total: reports.append((done, total)))
    done = [each for each, _ in reports]
    assert done == sorted(set(done)) and len({total for _, total in reports}) == 1
    assert reports[-1][0] == reports[-1][1]


def test_a_file_that_changes_meanwhile_is_told_of(large: Path) -> None:
    with bs.open(large / "a.bpk") as f:
        with open(large / "a.bpk", "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        with pytest.raises(bs.errors.ChangedError, match="changed in place"):
            bs.diff(f, large / "b.safetensors")


# --- the result -------------------------------------------------------------------------------------------------------


def test_the_result_is_strict_json() -> None:
    found = bs.diff({"a": F32([0, np.nan]), "b": rand(2), "\ud800": rand(1)}, {"a": F32([1, 1]), "c": rand(3)})
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["counts"]["changed"] == 1 and document["is_equal"] is False
    assert document["tensors"][0]["difference"]["rel_l2"] == "Infinity"
    assert document["tensors"][-1] == {
        "status": "added",
        "name": None,
        "new_name": "c",
        "dtype": None,
        "new_dtype": "F32",
        "shape": None,
        "new_shape": [3],
        "nbytes": 12,
        "difference": None,
        "problem": None,
    }


def test_the_text_has_a_line_for_all_that_is_not_equal() -> None:
    old = {"same": rand(1), "a": F32([1, 2]), "s": rand(2), "d": np.int8([1]), "gone": rand(3, 3)}
    new = {"same": rand(1), "a": F32([1, 4]), "s": rand(3), "d": np.int16([1]), "new\n": rand(7)}
    assert str(bs.diff(old, new)).splitlines() == [
        "6 tensors: 1 equal, 1 changed, 1 dtype changed, 1 shape changed, 1 added, 1 removed",
        "changed: a: 1 of 2 values, by at most 2 (8388608 ulp) at [1]: 2 -> 4; relative L2 0.894, cosine 0.976187",
        "shape changed: s: [2] -> [3]",
        "dtype changed: d: I8 -> I16, the values are equal",
        "removed: gone (F32 [3, 3])",
        "added: new\\n (F32 [7])",
    ]


def test_a_status_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="a status must be one of"):
        bs.diff({}, {}).of("equals")  # type: ignore[arg-type]


# --- data without a name ----------------------------------------------------------------------------------------------


def test_files_with_data_that_cannot_be_compared_are_not_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.bpk", "b.bpk"):
        bs.save({"w": rand(3)}, tmp_path / name)
    assert bs.diff(tmp_path / "a.bpk", tmp_path / "b.bpk").is_equal
    notes = ("read with care", "left out: the storage '3': the saved object does not refer to it")
    monkeypatch.setattr(bs.Checkpoint, "notes", property(lambda checkpoint: notes))
    found = bs.diff(tmp_path / "a.bpk", tmp_path / "b.bpk")
    assert not found.is_equal and found.counts["equal"] == 1
    assert found.uncompared == tuple(f"{tmp_path / name}: {notes[1]}" for name in ("a.bpk", "b.bpk"))
    assert found.notes == tuple(f"{tmp_path / name}: {notes[0]}" for name in ("a.bpk", "b.bpk"))
    assert str(found).count("not compared: ") == 2 and len(found.to_dict()["uncompared"]) == 2
    assert bs.diff(tmp_path / "a.bpk", {"w": rand(3)}).uncompared == found.uncompared[:1]
    with bs.open(tmp_path / "a.bpk") as same:
        assert bs.diff(same, same).is_equal  # One file is equal to itself, whatever it contains.


def test_files_are_not_equal_if_the_filter_leaves_nothing_to_compare(tmp_path: Path) -> None:
    bs.save({"a": np.ones(2), "b": np.ones(2)}, tmp_path / "a.safetensors")
    bs.save({"a": np.zeros(2)}, tmp_path / "b.safetensors")
    for nothing in ("zzz", [], lambda path, _: False):
        found = bs.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors", filter=nothing)
        assert not found.is_equal
        assert "the filter leaves no tensor to compare" in str(found)
    found = bs.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors", filter=["a", "zzz"])
    assert not found.is_equal
    assert found.notes == ("the filter's 'zzz' matched no tensor",)
    assert bs.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors", filter="b").removed
