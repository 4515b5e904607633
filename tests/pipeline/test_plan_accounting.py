"""Every tensor of a source is used by a plan, or has a reason; and a move names the tensors that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore.pipeline.compile import compile_load
from burnstore.pipeline.compile_file import compile_convert, compile_save
from burnstore.pipeline.ends import input_of_file, target_of_model

FIXTURES = Path(__file__).parent.parent / "fixtures"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.rnn = torch.nn.LSTM(3, 4)


class Fused(bs.ModuleAdapter):
    """Make the weight of each Linear from all its tensors."""

    def adapt_module(self, module_type: str, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        if not module_type.endswith("Linear") or "bias" not in tensors:
            return tensors
        return {**tensors, "weight": bs.TensorSnapshot.from_numpy("weight", np.zeros((3, 3), np.float32))}


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "filter": {"filter": "^fc"},
    "rename": {"rename": ["^fc=>head"]},
    "filter and rename": {"filter": "^norm", "rename": ["^fc=>head"]},
    "cast": {"cast": "f16"},
    "adapter": {"adapter": lambda snapshot: snapshot},
}


@pytest.mark.parametrize("suffix", ["bpk", "safetensors"])
@pytest.mark.parametrize("options", list(OPTIONS))
def test_a_source_tensor_is_used_or_has_a_reason(tmp_path: Path, options: str, suffix: str) -> None:
    path = tmp_path / f"net.{suffix}"
    bs.save(Net(), path)
    pipeline = bs.Pipeline(**OPTIONS[options])
    with bs.open(path) as file:
        source = input_of_file(file)
        names = [each.path for each in source.snapshots]
        loaded = compile_load(source, target_of_model(Net()), pipeline)
        assert loaded.unused(names) == []
        for layout in ("burn", "torch") if suffix == "bpk" else ("torch",):  # the other states no kinds
            assert compile_convert(source, pipeline, layout).unused(names) == []


@pytest.mark.parametrize("layout", ["burn", "torch"])
@pytest.mark.parametrize("options", list(OPTIONS))
def test_a_tensor_of_a_model_is_used_or_has_a_reason(options: str, layout: Any) -> None:
    names = {each.path for each in bs.collect(Net())}
    plan = compile_save(Net(), layout, bs.Pipeline(**OPTIONS[options]))
    assert plan.unused(names - {"norm.num_batches_tracked"}) == []


def test_what_an_adapter_makes_of_a_module_names_all_tensors_of_it(tmp_path: Path) -> None:
    bs.save(Net(), tmp_path / "net.safetensors")
    plan = bs.explain(tmp_path / "net.safetensors", Net(), adapter=Fused())
    weight = next(move for move in plan.moves if move.target == "fc.weight")
    assert set(weight.sources) == {"fc.weight", "fc.bias"} and weight.steps == ("adapted by Fused",)


@pytest.mark.parametrize(
    "verb",
    [lambda path: bs.load(Net(), path, pipeline=_REFUSING), lambda path: bs.diff(path, path, pipeline=_REFUSING)],
)
def test_a_filter_that_matches_nothing_is_refused_where_that_is_asked_for(
    tmp_path: Path, verb: Callable[[Path], Any]
) -> None:
    bs.save(Net(), tmp_path / "net.bpk")
    with pytest.raises(bs.errors.PatternError, match="'nothing' matched no"):
        verb(tmp_path / "net.bpk")


_REFUSING = bs.Pipeline(filter="nothing", unmatched="error")


def test_a_cast_to_the_dtype_of_a_slot_is_the_last_operation_of_its_move(tmp_path: Path) -> None:
    bs.save(Net(), tmp_path / "net.bpk")
    with bs.open(tmp_path / "net.bpk") as file:
        plan = compile_load(input_of_file(file), target_of_model(Net().half()), bs.Pipeline())
    assert {str(move.operations[-1]) for move in plan.moves if move.snapshot.dtype.is_float} == {"cast F32 to F16"}


def test_a_load_casts_quantized_tensors_as_a_conversion_does() -> None:
    model = {"wide": {"weight": np.zeros((0,), np.float32)}}
    with bs.open(FIXTURES / "burn/0.20.1/quant_q8s_tensor_native.bpk") as file:
        model["wide"]["weight"] = np.zeros(file["wide.weight"].shape, np.float32)
        bs.load(model, file, filter="^wide.weight$", cast="f16", allow_partial=True)
    assert model["wide"]["weight"].dtype == np.float16


def test_what_rules_make_and_the_filter_leaves_out_is_listed_by_the_names_of_the_file(tmp_path: Path) -> None:
    given = {name: np.ones(2, np.float32) for name in ("a", "b", "c")}
    bs.save(given, tmp_path / "a.safetensors", layout="torch")
    rules = {"tensors": [{"source": ["a", "b"], "target": "ab"}]}
    done = bs.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", rules=rules, filter="^c$")
    assert set(done.left_out) == {"a", "b"}
