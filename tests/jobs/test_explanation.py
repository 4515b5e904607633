"""explain: the plan of a load before anything is read; what it says is what the load then reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import burnstore as bs
from burnstore import nn
from burnstore.errors import LoadError, ModelError
from burnstore.io import opening
from burnstore.io.source import FileSource
from burnstore.jobs.explain.explain import LayoutChange, TensorPlan

F32 = np.float32


def rand(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


class TorchNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 4)
        self.norm = torch.nn.LayerNorm(4)
        self.attn = torch.nn.MultiheadAttention(4, 2, batch_first=True)


class BurnNet(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.attn = nn.MultiHeadAttention(4, 2)


@pytest.fixture
def torch_file(tmp_path: Path) -> Path:
    torch.save(TorchNet().state_dict(), tmp_path / "net.pt")
    return tmp_path / "net.pt"


def by_target(explanation: bs.Explanation) -> dict[str, TensorPlan]:
    return {move.target: move for move in explanation.moves}


def test_renames_transposes_and_parts_between_layouts_are_told(torch_file: Path) -> None:
    plan = bs.explain(torch_file, BurnNet())
    moves = by_target(plan)
    assert (plan.layout, plan.target_layout, plan.target, plan.is_clean) == ("torch", "burn", "BurnNet", True)
    assert (moves["fc.weight"].sources, moves["fc.weight"].steps) == (("fc.weight",), ("transposed",))
    assert (moves["norm.gamma"].sources, moves["norm.gamma"].steps) == (("norm.weight",), ("renamed by layout",))
    key = moves["attn.key.weight"]
    assert key.sources == ("attn.in_proj_weight",)
    assert key.steps == ("part 2 of 3", "transposed", "renamed by layout")
    assert key.nbytes == 4 * 4 * 4 and key.shape == (4, 4)
    assert plan.bytes_to_read == plan.nbytes and plan.refusal is None


def test_joins_are_told_the_other_way_round(tmp_path: Path) -> None:
    bs.save(BurnNet(), tmp_path / "net.bpk")
    plan = bs.explain(tmp_path / "net.bpk", TorchNet())
    fused = by_target(plan)["attn.in_proj_weight"]
    assert fused.sources == ("attn.query.weight", "attn.key.weight", "attn.value.weight")
    assert fused.steps == ("transposed", "joined from 3") and fused.nbytes == 3 * 4 * 4 * 4


def test_a_rename_names_the_rule_that_did_it_and_closed_indices_are_told(tmp_path: Path) -> None:
    torch.save({"h.0.weight": torch.zeros(2), "h.2.weight": torch.zeros(2)}, tmp_path / "net.pt")
    model = {"layers": [{"weight": np.zeros(2, F32)}, {"weight": np.zeros(2, F32)}]}
    plan = bs.explain(tmp_path / "net.pt", model, rename=[*{"^h": "layers"}.items()])
    assert by_target(plan)["layers.0.weight"].steps == ("renamed by ^h => layers",)
    assert by_target(plan)["layers.1.weight"].steps == (
        "renamed by ^h => layers",
        "renumbered without gaps to layers.1.weight",
    )
    assert by_target(plan)["layers.1.weight"].sources == ("h.2.weight",)


def test_casts_adapters_and_shared_tensors_are_told(tmp_path: Path) -> None:
    bs.save({"a.weight": rand(3, 4)}, tmp_path / "net.safetensors", metadata={"format": "pt"})
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 3, bias=False)}).half()
    model["b"] = model["a"]
    plan = bs.explain(tmp_path / "net.safetensors", model)
    assert by_target(plan)["a.weight"].steps == ("cast F32 to F16",)
    assert by_target(plan)["a.weight"].dtype == "F16"
    assert by_target(plan)["b.weight"].steps == ("shared with a.weight",)
    burn = BurnNet()
    torch.save(TorchNet().state_dict(), tmp_path / "net.pt")
    plan = bs.explain(
        tmp_path / "net.pt", burn, adapter=bs.PyTorchToBurnAdapter(), filter="^(fc|norm)", allow_partial=True
    )
    assert by_target(plan)["fc.weight"].steps == ("transposed",)
    assert by_target(plan)["norm.gamma"].sources == ("norm.weight",)


def test_missing_unused_and_what_does_not_fit_are_told_with_the_nearest_name(tmp_path: Path) -> None:
    bs.save({"fc.wieght": rand(3, 4), "fc.bias": rand(5), "more": rand(1)}, tmp_path / "a.bpk")
    model = {"fc": {"weight": np.zeros((3, 4), F32), "bias": np.zeros(4, F32)}}
    plan = bs.explain(tmp_path / "a.bpk", model)
    assert plan.result is not None and not plan.is_clean and plan.refusal == "LoadError"
    assert plan.result.missing == ["fc.weight"] and plan.nearest("fc.weight") == "fc.wieght"
    assert plan.result.unused == ["fc.wieght", "more"] and [error.path for error in plan.result.errors] == ["fc.bias"]
    assert bs.explain(tmp_path / "a.bpk", model, validate=False).refusal == "MissingTensorsError"
    assert bs.explain(tmp_path / "a.bpk", model, validate=False, allow_partial=True).refusal is None
    told = json.loads(json.dumps(plan.to_dict()))
    assert told["missing"] == [{"path": "fc.weight", "containers": "Dict.Dict", "nearest": "fc.wieght"}]


class Watched(FileSource):
    """A file that tells what is read of it."""

    seen: ClassVar[list[tuple[int, int]]] = []

    def read_at(self, offset: int, length: int) -> bytes:
        self.seen.append((offset, length))
        return super().read_at(offset, length)

    def read_into(self, reads: Any) -> None:
        self.seen.extend((offset, len(buffer)) for offset, buffer in reads)
        super().read_into(reads)


@pytest.mark.parametrize("suffix", ["bpk", "safetensors"])
def test_no_tensor_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(64, bias=False), torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32))
    path = tmp_path / f"net.{suffix}"
    bs.save(model, path)
    with bs.open(path) as f:
        first = f.data_offset
    Watched.seen.clear()
    monkeypatch.setattr(opening, "FileSource", Watched)
    assert bs.explain(path, model).is_clean
    assert bs.explain(path, path).is_clean
    assert bs.explain(path).changes
    assert Watched.seen and all(offset < first for offset, _ in Watched.seen)  # of the header; no read begins beyond
    bs.load(model, path)
    assert any(offset >= first for offset, _ in Watched.seen)


def test_models_on_the_meta_device_are_explained_like_others(torch_file: Path) -> None:
    with torch.device("meta"):
        bare = TorchNet()
    assert bs.explain(torch_file, bare).to_dict() == bs.explain(torch_file, TorchNet()).to_dict()


def test_a_file_can_stand_for_a_model(torch_file: Path, tmp_path: Path) -> None:
    bs.save(TorchNet(), tmp_path / "net.bpk")
    plan = bs.explain(torch_file, tmp_path / "net.bpk")
    assert by_target(plan)["fc.weight"].steps == ("transposed",) and plan.is_clean
    assert plan.target == str(tmp_path / "net.bpk")
    back = bs.explain(tmp_path / "net.bpk", torch_file)
    assert by_target(back)["attn.in_proj_weight"].steps == ("transposed", "joined from 3")
    bs.save({"fc.weight": rand(3, 4)}, tmp_path / "bare.bpk", layout="burn")
    with pytest.raises(ModelError, match=r"bare\.bpk: the file has burn's layout, the source torch's, and neither"):
        bs.explain(torch_file, tmp_path / "bare.bpk")
    ruled = bs.explain(torch_file, tmp_path / "bare.bpk", rules={"^fc$": "Linear"})
    assert by_target(ruled)["fc.weight"].steps == ("transposed",)


def test_what_no_value_of_a_dtype_can_be_is_known_before(tmp_path: Path) -> None:
    packed = bs.TensorData.from_bytes(bytes(4), bs.DType.F4, [8])
    bs.save({"weight": packed}, tmp_path / "a.safetensors")
    model = {"weight": np.zeros(8, F32)}
    plan = bs.explain(tmp_path / "a.safetensors", model)
    with pytest.raises(LoadError) as caught:
        bs.load(model, tmp_path / "a.safetensors")
    assert plan.result is not None and plan.refusal == "LoadError"
    assert plan.result.to_dict() == caught.value.result.to_dict() and "packed" in str(plan.result.errors[0])


def test_estimates_rest_on_bytes_and_a_rate(tmp_path: Path) -> None:
    bs.save({"weight": rand(100, 300), "bias": rand(100)}, tmp_path / "a.safetensors")
    plan = bs.explain(tmp_path / "a.safetensors", torch.nn.Linear(300, 100), rate=1e6)
    assert plan.bytes_to_read == 120_400 and plan.seconds == pytest.approx(0.1204)
    assert plan.peak_bytes == 2 * 400  # the weight is read into the model's own memory, the bias with its like
    assert bs.explain(tmp_path / "a.safetensors", torch.nn.Linear(300, 100), in_place=False).peak_bytes > 120_000
    with pytest.raises(ValueError, match="rate must be a positive number"):
        bs.explain(tmp_path / "a.safetensors", rate=0)


def test_an_error_of_the_load_before_it_reads_is_one_of_the_explanation(tmp_path: Path) -> None:
    torch.save({"layers.0.weight": torch.zeros(2), "layers.5.weight": torch.zeros(2)}, tmp_path / "net.pt")
    model = {"layers": [{"weight": np.zeros(2, F32)} for _ in range(6)]}
    for act in (bs.explain, lambda path, model: bs.load(model, path)):
        with pytest.raises(ModelError, match="whether the file has gaps"):
            act(tmp_path / "net.pt", model)


# --- a file alone -----------------------------------------------------------------------------------------------------


def change_of(explanation: bs.Explanation, layout: str) -> LayoutChange:
    return next(change for change in explanation.changes if change.layout == layout)


def test_a_file_that_records_its_modules_needs_nothing_to_change_its_layout(tmp_path: Path) -> None:
    bs.save(TorchNet(), tmp_path / "net.bpk")
    plan = bs.explain(tmp_path / "net.bpk")
    assert plan.evidence == ["layout burn: burnpack files have it"] and plan.is_clean
    assert change_of(plan, "burn").is_known
    change = change_of(plan, "torch")
    assert change.is_known and (change.transposed, change.joined, change.renamed) == (3, 2, 4)


def test_what_must_be_told_of_a_file_is_told(torch_file: Path, tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.zeros(4, 3), "fc.bias": torch.zeros(4)}, tmp_path / "plain.pt")
    change = change_of(bs.explain(tmp_path / "plain.pt"), "burn")
    assert not change.is_known and "or guess=True, because names and shapes decide 1 module" in change.needs
    torch.save({"fc.weight": torch.zeros(4, 4), "fc.bias": torch.zeros(4)}, tmp_path / "square.pt")
    needs = change_of(bs.explain(tmp_path / "square.pt"), "burn").needs
    assert "1 of 1 module is ambiguous, the first: fc (a square matrix" in needs


def test_evidence_for_a_layout_is_shown_where_the_file_does_not_tell(tmp_path: Path) -> None:
    bs.save({"norm.gamma": rand(3)}, tmp_path / "a.safetensors", metadata={})
    plan = bs.explain(tmp_path / "a.safetensors")
    assert plan.layout is None
    assert plan.evidence == [
        "layout unknown: the file does not state it",
        "1 name that only burn uses: norm.gamma",
    ]
    assert "pass layout= to state which layout" in change_of(plan, "torch").needs
    bs.save({"w": rand(3)}, tmp_path / "b.safetensors", metadata={"format": "pt"})
    assert bs.explain(tmp_path / "b.safetensors").evidence == ["layout torch: the metadata has format=pt"]
    assert bs.explain(tmp_path / "a.safetensors", layout="burn").evidence == ["layout burn: given by the caller"]
    assert "into torch's layout: " in str(plan)


# --- what explain says is what load reports ---------------------------------------------------------------------------

DTYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "Bool": np.bool_}
MODULES = {
    "Linear": lambda n: torch.nn.Linear(n, n + 1),
    "LayerNorm": torch.nn.LayerNorm,
    "BatchNorm1d": torch.nn.BatchNorm1d,
    "Embedding": lambda n: torch.nn.Embedding(n + 2, n),
    "LSTM": lambda n: torch.nn.LSTM(n, n + 1),
    "Sequential": lambda n: torch.nn.Sequential(torch.nn.Linear(n, 2), torch.nn.ReLU(), torch.nn.Linear(2, n)),
}


@st.composite
def torch_models(draw: st.DrawFn) -> torch.nn.Module:
    model = torch.nn.ModuleDict()
    for at in range(draw(st.integers(1, 4))):
        model[f"m{at}"] = MODULES[draw(st.sampled_from(sorted(MODULES)))](draw(st.integers(1, 3)))
    if draw(st.booleans()) and len(model) > 1:
        model["tied"] = model["m0"]
    return model.half() if draw(st.booleans()) else model


def damaged(draw: st.DrawFn, snapshots: list[bs.TensorSnapshot]) -> dict[str, Any]:
    """The tensors with some of them left out, renamed, of another shape or dtype, or added."""
    tensors: dict[str, Any] = {}
    for snapshot in snapshots:
        array = snapshot.numpy()
        harm = draw(st.sampled_from(["none"] * 6 + ["drop", "rename", "shape", "dtype"]))
        if harm == "shape":
            array = np.zeros((*array.shape, 1), array.dtype)
        elif harm == "dtype":
            array = np.zeros(array.shape, DTYPES[draw(st.sampled_from(sorted(DTYPES)))])
        if harm != "drop":
            tensors[snapshot.path + ("x" if harm == "rename" else "")] = array
    if draw(st.booleans()):
        tensors["extra.weight"] = np.zeros(2, F32)
    return tensors


def outcome(act: Callable[[], Any]) -> tuple[Any, bs.BurnstoreError | None]:
    """What this gives, or the error that it raises."""
    try:
        return act(), None
    except bs.BurnstoreError as error:
        return None, error


@settings(max_examples=60)
@given(st.data())
def test_what_is_explained_is_what_is_loaded(tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("explained")
    made, target = data.draw(torch_models()), data.draw(torch_models())
    if data.draw(st.booleans()):
        target = made
    suffix = data.draw(st.sampled_from(["bpk", "safetensors"]))
    whole = folder / f"whole.{suffix}"
    bs.save(made, whole)
    with bs.open(whole) as f:
        layout = f.layout or "torch"
        tensors = damaged(data.draw, list(f.values()))
        bs.save(tensors, folder / f"damaged.{suffix}", metadata={"burnstore.layout": layout})
    options: dict[str, Any] = {
        "allow_partial": data.draw(st.booleans()),
        "validate": data.draw(st.booleans()),
        "in_place": data.draw(st.booleans()),
    }
    if data.draw(st.booleans()):
        options["filter"] = data.draw(st.sampled_from(["weight", "^m0", "nothing"]))
    if data.draw(st.booleans()):
        options["rename"] = data.draw(st.sampled_from(["^m1=>m2", "x$=>", "none=>y"]))
        options["pipeline"] = bs.Pipeline(on_collision="first")
    path = folder / f"damaged.{suffix}"
    told, trouble = outcome(lambda: bs.explain(path, target, **options))
    found, raised = outcome(lambda: bs.load(target, path, **options))
    if told is None:
        assert str(raised) == str(trouble) and type(raised) is type(trouble)
        return
    if isinstance(raised, LoadError):
        found = raised.result
    elif raised is not None:
        assert "it is not all" in str(raised)  # of a constant that was none: only its values tell
        return
    if any("it is shared with" in str(error) for error in found.errors):  # again a matter of values
        return
    assert told.result.to_dict() == found.to_dict()
    assert told.refusal == (None if raised is None else type(raised).__name__)
    assert [move.target for move in told.moves] == found.applied
