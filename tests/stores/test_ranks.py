"""Loading the part of a rank: the model has the shapes of the parts, the file those of the whole."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import Partition, nn
from burnstore.tensor import torch as torch_tensor

torch = pytest.importorskip("torch")

RULES = Partition(
    {
        r"\.(up|q)\.": "rows",  # weight and bias
        r"\.(down|o)\.weight$": "columns",
        r".*": "replicate",  # norms, and the biases that are added once
    }
)


def block(width: int, hidden: int, *, dtype: Any = None) -> Any:
    """A feed-forward block with the norm before it; a rank has a part of the hidden axis."""
    made = torch.nn.ModuleDict(
        {
            "norm": torch.nn.LayerNorm(width),
            "up": torch.nn.Linear(width, hidden),
            "down": torch.nn.Linear(hidden, width),
        }
    )
    return torch.nn.ModuleDict({"layer": made}).to(dtype or torch.float32)


def whole_state(parts: list[Any]) -> dict[str, Any]:
    """The tensors that the ranks have together."""
    states = [part.state_dict() for part in parts]
    joined = {}
    for name in states[0]:
        each = [state[name] for state in states]
        if ".up." in name:
            joined[name] = torch.cat(each)
        elif name.endswith("down.weight"):
            joined[name] = torch.cat(each, dim=1)
        else:
            assert all(torch.equal(one, each[0]) for one in each)
            joined[name] = each[0]
    return joined


def equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        first[name].dtype is second[name].dtype
        and torch.equal(first[name].contiguous().view(torch.uint8), second[name].contiguous().view(torch.uint8))
        for name in first
    )


def saved(model: Any, folder: Path, kind: str) -> Path:
    if kind == "pt":
        torch.save(model.state_dict(), folder / "model.pt")
        return folder / "model.pt"
    if kind == "shards":
        bs.save(model, folder / "model.safetensors", max_shard_size=4000)
        return folder
    bs.save(model, folder / f"model.{kind}")
    return folder / f"model.{kind}"


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("kind", ["bpk", "safetensors", "pt", "shards"])
@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("width", "dtype"), [(8, torch.float32), (256, torch.bfloat16)])  # small, and straight reads
def test_all_ranks_together_have_the_whole_model(
    tmp_path: Path, kind: str, world: int, in_place: bool, width: int, dtype: Any
) -> None:
    whole = block(width, 4 * width, dtype=dtype)
    path = saved(whole, tmp_path, kind)
    parts = []
    for rank in range(world):
        part = block(width, 4 * width // world, dtype=dtype)
        result = bs.load(part, path, part=RULES.part(rank=rank, world=world), in_place=in_place)
        assert not result.missing and not result.unused and not result.errors and not result.skipped
        parts.append(part)
    assert equal(whole_state(parts), whole.state_dict())


@pytest.mark.parametrize("kind", ["bpk", "safetensors"])
def test_the_parts_compute_together_what_the_whole_computes(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    whole = block(8, 32, dtype=torch.float64)
    path = saved(whole, tmp_path, kind)
    given = torch.randn(5, 8, dtype=torch.float64)

    def hidden(layer: Any) -> Any:
        return torch.relu(layer["up"](layer["norm"](given)))

    total = torch.zeros(5, 8, dtype=torch.float64)
    for rank in range(4):
        part = block(8, 8, dtype=torch.float64)
        bs.load(part, path, part=RULES.part(rank=rank, world=4))
        layer = part["layer"]
        total += hidden(layer) @ layer["down"].weight.T
    total += layer["down"].bias
    assert torch.allclose(total, whole["layer"]["down"](hidden(whole["layer"])))


@pytest.mark.parametrize("kind", ["bpk", "safetensors", "shards"])
@pytest.mark.parametrize("width", [8, 256])
def test_parts_are_carried_to_a_device_like_whole_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, width: int
) -> None:
    monkeypatch.setattr(torch_tensor, "TRANSFER_DEVICES", ("cuda", "cpu"))  # the engine takes the CPU for a GPU
    whole = block(width, 4 * width, dtype=torch.bfloat16)
    path = saved(whole, tmp_path, kind)
    parts = [block(width, width, dtype=torch.bfloat16) for _ in range(4)]
    for rank, part in enumerate(parts):
        bs.load(part, path, part=RULES.part(rank=rank, world=4))
    assert equal(whole_state(parts), whole.state_dict())


def test_a_meta_model_is_filled_with_its_part(tmp_path: Path) -> None:
    whole = block(256, 1024)
    path = saved(whole, tmp_path, "bpk")
    with torch.device("meta"):
        part = block(256, 512)
    bs.load(part, path, part=RULES.part(rank=1, world=2))
    assert torch.equal(part["layer"]["up"].weight, whole["layer"]["up"].weight[512:])
    assert torch.equal(part["layer"]["down"].weight, whole["layer"]["down"].weight[:, 512:])


def test_axes_are_those_of_the_model_whatever_the_layout_of_the_file(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self, d_input: int, d_output: int) -> None:
            self.fc = nn.Linear(d_input, d_output)

    whole = torch.nn.ModuleDict({"fc": torch.nn.Linear(4, 6)})
    bs.save(whole, tmp_path / "model.safetensors")  # PyTorch's layout: [6, 4]
    weight, bias = (tensor.detach().numpy() for tensor in (whole["fc"].weight, whole["fc"].bias))
    rules = Partition({r"weight$": "rows", ".*": "replicate"})
    inputs = Net(2, 6)
    bs.load(inputs, tmp_path / "model.safetensors", part=rules.part(rank=1, world=2))
    assert (inputs.fc.weight.value == weight.T[2:]).all() and (inputs.fc.bias.value == bias).all()
    outputs = torch.nn.ModuleDict({"fc": torch.nn.Linear(4, 3)})
    bs.save(whole, tmp_path / "model.bpk")  # Burn's: [4, 6]
    bs.load(outputs, tmp_path / "model.bpk", part=Partition({"fc": "rows"}).part(rank=1, world=2))
    assert (outputs["fc"].weight.detach().numpy() == weight[3:]).all()
    assert (outputs["fc"].bias.detach().numpy() == bias[3:]).all()


def test_three_matrices_in_one_are_divided_one_by_one_out_of_burns_three(tmp_path: Path) -> None:
    whole = torch.nn.MultiheadAttention(8, 4)
    with torch.no_grad():
        whole.in_proj_bias.copy_(torch.randn(24))
    bs.save(whole, tmp_path / "model.bpk")

    class Heads(torch.nn.MultiheadAttention):
        """A rank's heads; torch has no such module of its own."""

        def __init__(self) -> None:
            super().__init__(8, 4)
            self.in_proj_weight = torch.nn.Parameter(torch.zeros(12, 8))
            self.in_proj_bias = torch.nn.Parameter(torch.zeros(12))
            self.out_proj.weight = torch.nn.Parameter(torch.zeros(8, 4))

    rules = Partition({r"^in_proj": ("rows", 3), r"^out_proj\.weight$": "columns", r".*": "replicate"})
    for rank in range(2):
        part = Heads()
        bs.load(part, tmp_path / "model.bpk", part=rules.part(rank=rank, world=2), rules={"^$": "MultiheadAttention"})
        mine = [slice(8 * at + 4 * rank, 8 * at + 4 * rank + 4) for at in range(3)]
        assert torch.equal(part.in_proj_weight, torch.cat([whole.in_proj_weight[rows] for rows in mine]))
        assert torch.equal(part.in_proj_bias, torch.cat([whole.in_proj_bias[rows] for rows in mine]))
        assert torch.equal(part.out_proj.weight, whole.out_proj.weight[:, 4 * rank : 4 * rank + 4])
        assert torch.equal(part.out_proj.bias, whole.out_proj.bias)


# --- the order of the stages ------------------------------------------------------------------------------------------


def test_rules_see_the_names_of_the_model_after_filter_remapping_and_adapter(tmp_path: Path) -> None:
    whole = {"old.up.weight": np.arange(16, dtype=np.float32).reshape(8, 2), "old.skipped": np.ones(3, np.float32)}
    bs.save(whole, tmp_path / "model.safetensors")
    model = {"new": {"up": {"weight": np.zeros((2, 2), np.float32)}, "skipped": np.zeros(3, np.float32)}}
    store = (
        bs.SafetensorsStore.from_file(tmp_path / "model.safetensors")
        .with_key_remapping(r"^old\.", "new.")
        .with_regex(r"up")
        .with_from_adapter(bs.FloatCastAdapter(bs.DType.F64))
        .for_rank(Partition({r"^new\.up\.weight$": "rows"}), rank=3, world=4)  # what is skipped needs no rule
    )
    result = store.load(model)
    assert result.applied == ["new.up.weight"] and result.skipped == ["new.skipped"]
    assert model["new"]["up"]["weight"].tolist() == [[12.0, 13.0], [14.0, 15.0]]
    assert model["new"]["up"]["weight"].dtype == np.float64


def test_an_adapter_that_turns_a_matrix_does_so_before_it_is_cut(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.fc = nn.Linear(4, 3, bias=False)

    weight = np.arange(24, dtype=np.float32).reshape(6, 4)
    bs.save({"fc.weight": weight}, tmp_path / "model.safetensors")
    part = Net()
    rules = Partition({"": "columns"})
    options = {"part": rules.part(rank=1, world=2), "adapter": bs.PyTorchToBurnAdapter()}
    bs.load(part, tmp_path / "model.safetensors", **options)
    assert (part.fc.weight.value == weight.T[:, 3:]).all()


def test_names_and_snapshots_of_a_store_are_those_of_the_file(tmp_path: Path) -> None:
    bs.save({"w": np.zeros((4, 4), np.float32)}, tmp_path / "model.bpk")
    store = bs.BurnpackStore.from_file(tmp_path / "model.bpk").for_rank(Partition({"": 0}), rank=0, world=2)
    assert store.keys() == ["w"] and store.get_snapshot("w").shape == (4, 4)  # type: ignore[union-attr]
    assert store.copy().pipeline == store.pipeline


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    bs.save({"a": np.ones((6, 4), np.float32), "b": np.ones(5, np.float32)}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def model() -> dict[str, Any]:
    return {"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)}


def test_a_model_of_the_whole_shapes_is_refused_with_a_note_of_the_partition(file: Path) -> None:
    whole = {"a": np.zeros((6, 4), np.float32), "b": np.zeros(5, np.float32)}
    with pytest.raises(bs.errors.LoadError, match=r"expected \[6, 4\], found \[3, 4\]") as caught:
        bs.load(whole, file, part=Partition({"^a$": "rows", "": "replicate"}).part(rank=0, world=2))
    assert any("rank 0 of 2 by Partition({'^a$': 'rows'" in note for note in caught.value.result.notes)
    assert not whole["a"].any() and not whole["b"].any()


def test_a_rule_that_forgets_a_tensor_shows_as_a_shape_that_does_not_fit(file: Path) -> None:
    with pytest.raises(bs.errors.LoadError, match=r"expected \[3, 4\], found \[6, 4\]"):
        bs.load(model(), file, part=Partition({"": "replicate"}).part(rank=0, world=2))


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"^a$": "rows"}, "tensor 'b': no rule"),
        ({"": "rows"}, "tensor 'b': cannot divide the extent 5 of axis 0 evenly among 2 ranks"),
        ({"": "columns"}, "tensor 'b': .*has no axis 1"),
    ],
)
def test_rules_that_do_not_fit_leave_the_model_as_it_was(file: Path, rules: Any, words: str) -> None:
    target = model()
    with pytest.raises(bs.errors.ModelError, match=words):
        bs.load(target, file, part=Partition(rules).part(rank=0, world=2))
    assert not target["a"].any() and not target["b"].any()


def test_a_pattern_that_matches_nothing_is_noted(file: Path) -> None:
    rules = Partition({"^a$": "rows", "q_porj": "columns", "": "replicate"})
    result = bs.load(model(), file, part=rules.part(rank=0, world=2))
    assert result.notes == ["the partition's 'q_porj' matched no parameter"]


def test_a_store_takes_a_partition_by_its_rules_alone(file: Path) -> None:
    rules = {"^a$": "rows", "": "replicate"}
    stores = [bs.Store.from_file(file).for_rank(each, rank=0, world=2) for each in (rules, Partition(rules))]
    loaded = [store.load(model()).applied for store in stores]
    assert loaded[0] and loaded[0] == loaded[1]


def test_nothing_else_is_a_part(file: Path) -> None:
    with pytest.raises(TypeError, match="part must be a Part such as Partition"):
        bs.load(model(), file, part=["rows"])


def test_a_store_that_reads_for_a_rank_does_not_write_a_part_as_if_it_were_all(file: Path) -> None:
    store = bs.SafetensorsStore.from_file(file).for_rank(RULES, rank=0, world=2).overwrite(True)
    before = file.read_bytes()
    with pytest.raises(bs.errors.ModelError, match="rank 0 of 2"):
        store.save(model())
    assert file.read_bytes() == before


def test_quantized_tensors_arrive_as_the_part_of_their_values(tmp_path: Path) -> None:
    from burnstore.tensor.quantization import QuantBlock, QuantizedTensor, QuantScheme, QuantStore, encode

    scheme = QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((2, 4), "F32"))
    codes = np.arange(-32, 32, dtype=np.int8).reshape(8, 8)
    scales = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    whole = QuantizedTensor(codes, scales, None, scheme, (8, 8))
    data = bs.TensorData.from_bytes(encode(whole), bs.DType.qfloat(scheme), (8, 8))
    bs.save([bs.TensorSnapshot.from_data("w", data)], tmp_path / "model.bpk")
    target = {"w": torch.zeros(8, 4)}
    bs.load(target, tmp_path / "model.bpk", part=Partition({"": "columns"}).part(rank=1, world=2), layout="torch")
    assert target["w"].tolist() == whole.dequantize()[:, 4:].tolist()


def test_a_partition_travels_to_the_ranks(tmp_path: Path, run_python: Any) -> None:
    whole = block(8, 32)
    bs.save(whole, tmp_path / "model.safetensors")
    (tmp_path / "rules").write_bytes(pickle.dumps(RULES))
    for rank in range(2):
        run_python(
            "import pickle, sys, numpy as np, burnstore as bs\n"
            "folder, rank = sys.argv[1], int(sys.argv[2])\n"
            "rules = pickle.load(open(folder + '/rules', 'rb'))\n"
            "with bs.open(folder + '/model.safetensors') as f:\n"
            "    bs.save(rules.slice(f.values(), rank=rank, world=2), f'{folder}/{rank}.safetensors')\n",
            tmp_path,
            rank,
            PYTHONWARNINGS="ignore",
        )
    parts = [block(8, 16), block(8, 16)]
    for rank, part in enumerate(parts):
        bs.load(part, tmp_path / f"{rank}.safetensors")
    assert equal(whole_state(parts), whole.state_dict())
