"""PytorchStore: files of torch.save into models of Burn's layout and of PyTorch's, by the words of the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import PytorchStore, nn
from burnstore.errors import LoadError, MissingTensorsError, ModelError, TensorNotFoundError, UnsupportedError

torch = pytest.importorskip("torch")

LEGACY = {"_use_new_zipfile_serialization": False}


class Net(nn.Module):
    def __init__(self) -> None:
        self.fc1 = nn.Linear(3, 4)
        self.fc2 = nn.Linear(4, 2, bias=False)


class Renamed(nn.Module):
    def __init__(self) -> None:
        self.linear1 = nn.Linear(3, 4)
        self.linear2 = nn.Linear(4, 2, bias=False)


class TorchNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(3, 4)
        self.fc2 = torch.nn.Linear(4, 2, bias=False)


class Listed(nn.Module):
    """A list of so many Linears, as Burn's Vec."""

    def __init__(self, count: int) -> None:
        self.fc = [nn.Linear(2, 2, bias=False) for _ in range(count)]


def saved(folder: Path, value: Any, name: str = "model.pt", **options: Any) -> Path:
    torch.save(value, folder / name, **options)
    return folder / name


def sequential(*indices: int) -> dict[str, Any]:
    return {f"fc.{index}.weight": torch.full((2, 2), float(index)) for index in indices}


def values(model: Any) -> list[float]:
    return [float(layer.weight.value[0, 0]) for layer in model.fc]


@pytest.fixture
def net() -> Any:
    torch.manual_seed(1)
    return TorchNet()


# --- what it is -------------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_original(tmp_path: Path) -> None:
    path = saved(tmp_path, sequential(0, 2))
    store = PytorchStore.from_file(path)
    assert store.keys() == ["fc.0.weight", "fc.1.weight"]  # mapping is on, no key is asked for
    with pytest.raises(MissingTensorsError):  # not partial
        PytorchStore.from_file(path).map_indices_contiguous(False).load(Listed(2))
    with pytest.raises(LoadError):  # validated
        PytorchStore.from_file(saved(tmp_path, {"fc.0.weight": torch.ones(3, 3)}, "other.pt")).load(Listed(1))


def test_each_option_can_be_set_by_method_and_by_keyword(tmp_path: Path, net: Any) -> None:
    path = saved(tmp_path, {"my_state_dict": net.state_dict(), "epoch": 3})
    by_method = (
        PytorchStore.from_file(path)
        .with_top_level_key("my_state_dict")
        .with_regex(r"^linear1\.")
        .with_key_remapping(r"^fc", "linear")
        .allow_partial(True)
        .validate(False)
        .skip_enum_variants(False)
    )
    for store in (by_method, by_method.copy()):
        result = store.load(Renamed())
        assert result.applied == ["linear1.weight", "linear1.bias"] and result.skipped == ["linear2.weight"]


def test_a_top_level_key_is_a_text() -> None:
    with pytest.raises(TypeError, match="top-level key must be a str"):
        PytorchStore.from_file("model.pt").with_top_level_key(1)  # type: ignore[arg-type]


def test_saving_is_refused_with_the_stores_that_save(tmp_path: Path) -> None:
    for refused in (PytorchStore.from_file(tmp_path / "x.pt").save, PytorchStore.from_bytes(None).collect_from):
        with pytest.raises(UnsupportedError, match="Saving to PyTorch format is not yet supported") as caught:
            refused(Net())
        assert "SafetensorsStore" in str(caught.value.hint)
    with pytest.raises(UnsupportedError):
        PytorchStore.from_file(tmp_path / "x.pt").save(Net())
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    bs.save(Net(), tmp_path / "model.bpk")
    with pytest.raises(bs.errors.FormatError):
        PytorchStore.from_file(tmp_path / "model.bpk").load(Net())


def test_a_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PytorchStore.from_file(tmp_path / "nonexistent.pth").load(Net())


# --- loading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, LEGACY, {"pickle_protocol": 4}], ids=["zip", "legacy", "protocol 4"])
def test_a_burn_model_is_loaded_without_an_adapter(tmp_path: Path, net: Any, options: dict[str, Any]) -> None:
    model = Net()
    result = PytorchStore.from_file(saved(tmp_path, net.state_dict(), **options)).load(model)
    assert result.is_success() and result.applied == ["fc1.weight", "fc1.bias", "fc2.weight"]
    assert np.array_equal(model.fc1.weight.value, net.fc1.weight.detach().numpy().T)
    assert np.array_equal(model.fc1.bias.value, net.fc1.bias.detach().numpy())


def test_every_entry_point_loads_the_same(tmp_path: Path, net: Any) -> None:
    path = saved(tmp_path, net.state_dict())
    expected = net.fc2.weight.detach().numpy().T
    for load in (
        lambda model: PytorchStore.from_file(path).apply_to(model),
        lambda model: bs.load(model, PytorchStore.from_file(path)),
        lambda model: PytorchStore.from_bytes(path.read_bytes()).load(model),
        lambda model: bs.load(model, path),
        lambda model: bs.load(model, path, top_level_key=""),
    ):
        model = Net()
        load(model)
        assert np.array_equal(model.fc2.weight.value, expected)


def test_structural_modules_are_converted_too(tmp_path: Path) -> None:
    module = torch.nn.LSTM(3, 4, batch_first=True)
    model = nn.Lstm(3, 4, True)
    assert PytorchStore.from_file(saved(tmp_path, module.state_dict())).load(model).is_success()
    gate = model.input_gate.input_transform.weight.value
    assert np.array_equal(gate, module.weight_ih_l0.detach().numpy()[:4].T)


def test_norms_find_their_parameters_under_the_names_of_pytorch(tmp_path: Path) -> None:
    model = nn.LayerNorm(3)
    file = saved(tmp_path, {"weight": torch.tensor([1.0, 2, 3]), "bias": torch.tensor([4.0, 5, 6])})
    PytorchStore.from_file(file).load(model)
    assert model.gamma.value.tolist() == [1, 2, 3] and model.beta.value.tolist() == [4, 5, 6]


def test_an_explicit_adapter_takes_the_place_of_the_view(tmp_path: Path, net: Any) -> None:
    model = Net()
    PytorchStore.from_file(saved(tmp_path, net.state_dict())).with_from_adapter(bs.PyTorchToBurnAdapter).load(model)
    assert np.array_equal(model.fc1.weight.value, net.fc1.weight.detach().numpy().T)


def test_filters_choose_by_the_paths_of_the_model(tmp_path: Path, net: Any) -> None:
    path = saved(tmp_path, net.state_dict())
    result = PytorchStore.from_file(path).with_regex(r"^fc1\.").allow_partial(True).load(Net())
    assert result.applied == ["fc1.weight", "fc1.bias"] and result.skipped == ["fc2.weight"]
    store = PytorchStore.from_file(path).with_predicate(lambda found, _: not found.endswith("bias")).allow_partial(True)
    assert store.load(Net()).applied == ["fc1.weight", "fc2.weight"]


def test_names_are_remapped_in_a_chain(tmp_path: Path, net: Any) -> None:
    store = PytorchStore.from_file(saved(tmp_path, net.state_dict()))
    store.with_key_remapping(r"^fc(\d)", "layer$1").with_key_remapping("layer", "linear")
    assert store.load(Renamed()).applied == ["linear1.weight", "linear1.bias", "linear2.weight"]
    unmatched = PytorchStore.from_file(tmp_path / "model.pt").with_key_remapping("^nothing", "x").load(Net())
    assert any("'^nothing' matched no tensor" in note for note in unmatched.notes)


def test_a_tensor_that_does_not_fit_is_an_error_or_a_report(tmp_path: Path) -> None:
    path = saved(tmp_path, {"fc1.weight": torch.ones(2, 2), "fc1.bias": torch.ones(4), "fc2.weight": torch.ones(2, 4)})
    with pytest.raises(LoadError, match=r"fc1\.weight"):
        PytorchStore.from_file(path).load(Net())
    result = PytorchStore.from_file(path).validate(False).load(Net())
    assert [error.path for error in result.errors] == ["fc1.weight"]


def test_a_missing_tensor_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = saved(tmp_path, {"fc1.weight": torch.ones(4, 3)})
    with pytest.raises(MissingTensorsError, match=r"fc1\.bias"):
        PytorchStore.from_file(path).load(Net())
    result = PytorchStore.from_file(path).allow_partial(True).load(Net())
    assert result.missing == ["fc1.bias", "fc2.weight"]


def test_a_filter_that_matches_nothing_does_not_hide_what_is_missing(tmp_path: Path) -> None:
    path = saved(tmp_path, {"fc1.weight": torch.ones(4, 3), "fc1.bias": torch.ones(4)})
    with pytest.raises(MissingTensorsError):
        PytorchStore.from_file(path).with_regex("^does_not_exist$").load(Net())


# --- where the state dict is ------------------------------------------------------------------------------------------


def test_a_nested_state_dict_is_found_and_announced(tmp_path: Path, net: Any) -> None:
    path = saved(tmp_path, {"epoch": 3, "state_dict": net.state_dict(), "optimizer": {"m": torch.ones(2)}})
    result = PytorchStore.from_file(path).load(Net())
    assert result.is_success()
    assert any("under the key 'state_dict'" in note and "optimizer (1)" in note for note in result.notes)
    assert any("under the key 'state_dict'" in note for note in bs.load(Net(), path).notes)


def test_a_top_level_key_may_be_dotted_and_everything_can_be_had(tmp_path: Path, net: Any) -> None:
    path = saved(tmp_path, {"trainer": {"net.best": net.state_dict()}})
    for key in ("trainer.net.best",):
        result = PytorchStore.from_file(path).with_top_level_key(key).load(Net())
        assert result.is_success() and result.notes == []
    assert "trainer.net.best.fc1.bias" in PytorchStore.from_file(path).with_top_level_key("").keys()  # noqa: SIM118


def test_a_wrong_top_level_key_lists_those_that_are_there(tmp_path: Path, net: Any) -> None:
    path = saved(tmp_path, {"my_state_dict": net.state_dict(), "epoch": 3})
    with pytest.raises(TensorNotFoundError, match=r"epoch \(0\), my_state_dict \(3\)"):
        PytorchStore.from_file(path).with_top_level_key("state_dict").load(Net())
    with pytest.raises(MissingTensorsError):  # without the key the names have it in front
        PytorchStore.from_file(path).load(Net())


def test_an_ambiguous_file_lists_the_candidates(tmp_path: Path, net: Any) -> None:
    path = saved(tmp_path, {"generator": net.state_dict(), "discriminator": net.state_dict()})
    with pytest.raises(MissingTensorsError) as caught:
        PytorchStore.from_file(path).load(Net())
    assert any("generator (3), discriminator (3)" in note for note in caught.value.result.notes)
    assert PytorchStore.from_file(path).with_top_level_key("generator").load(Net()).is_success()


def test_a_whole_model_is_loaded_as_its_state_dict_and_said_so(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 2, bias=False))
    path = saved(tmp_path, torch.nn.ModuleDict({"fc": module}))
    result = PytorchStore.from_file(path).load(Listed(2))
    assert result.is_success() and any("the whole model was saved" in note for note in result.notes)


# --- direct access ----------------------------------------------------------------------------------------------------


def test_direct_access_is_renamed_unfiltered_and_unadapted(tmp_path: Path, net: Any) -> None:
    store = PytorchStore.from_file(saved(tmp_path, net.state_dict())).with_regex(r"^linear1\.")
    store.with_key_remapping("^fc", "linear")
    assert store.keys() == ["linear1.bias", "linear1.weight", "linear2.weight"]
    assert list(store.get_all_snapshots()) == store.keys() == list(store.get_all_tensors())
    weight = store.get_snapshot("linear1.weight")
    assert weight is not None and weight.shape == (4, 3) and weight.dtype is bs.DType.F32
    assert np.array_equal(weight.numpy(), net.fc1.weight.detach().numpy())
    assert store.get_snapshot("fc1.weight") is None and store.get_tensor("linear2.bias") is None


def test_what_is_set_after_a_read_takes_effect_at_the_next(tmp_path: Path) -> None:
    store = PytorchStore.from_file(saved(tmp_path, {"a": sequential(0, 2), "b": sequential(5)}))
    assert store.with_top_level_key("a").keys() == ["fc.0.weight", "fc.1.weight"]
    assert store.keys() == ["fc.0.weight", "fc.1.weight"]
    assert store.map_indices_contiguous(False).keys() == ["fc.0.weight", "fc.2.weight"]
    assert store.with_top_level_key("b").keys() == ["fc.5.weight"]
    assert store.map_indices_contiguous(True).map_indices_contiguous_except("^fc$").keys() == ["fc.5.weight"]


# --- indices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indices", [(0, 2), (1, 3), (0, 4), (2, 10), (3,)])
def test_gaps_are_closed_for_a_burn_model(tmp_path: Path, indices: tuple[int, ...]) -> None:
    model = Listed(len(indices))
    result = PytorchStore.from_file(saved(tmp_path, sequential(*indices))).load(model)
    assert result.is_success() and not result.missing and values(model) == list(indices)
    by_default = Listed(len(indices))
    bs.load(by_default, tmp_path / "model.pt")
    assert values(by_default) == list(indices)


def test_without_mapping_the_indices_are_missing(tmp_path: Path) -> None:
    store = PytorchStore.from_file(saved(tmp_path, sequential(0, 2, 4))).map_indices_contiguous(False)
    result = store.allow_partial(True).load(Listed(5))
    assert result.missing == ["fc.1.weight", "fc.3.weight"] and len(result.applied) == 3


@pytest.mark.parametrize("explicit", [False, True])
def test_a_part_of_a_model_is_not_taken_for_one_with_gaps(tmp_path: Path, explicit: bool) -> None:
    """The trap: layer 2 of the file would sit in layer 1 of the model, and nobody would know."""
    store = PytorchStore.from_file(saved(tmp_path, sequential(0, 2))).allow_partial(True)
    if explicit:
        store.map_indices_contiguous(True)
    model = Listed(3)
    before = [layer.weight.value.copy() for layer in model.fc]
    with pytest.raises(ModelError) as caught:
        store.load(model)
    told = str(caught.value)
    assert "'fc' the file has the indices 0, 2 and the model 0, 1, 2" in told
    assert "map_indices_contiguous(False)" in told and "map_indices_contiguous_except" in told
    assert all(np.array_equal(old, layer.weight.value) for old, layer in zip(before, model.fc, strict=True))
    for answer in (store.copy().map_indices_contiguous(False), store.copy().map_indices_contiguous_except("^fc$")):
        model = Listed(3)
        assert answer.load(model).missing == ["fc.1.weight"]
        assert (values(model)[0], values(model)[2]) == (0, 2)


def test_the_trap_is_found_at_every_depth(tmp_path: Path) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            self.blocks = [Listed(3), Listed(3)]

    tensors = {
        f"blocks.{block}.fc.{layer}.weight": torch.full((2, 2), 10.0 * block + layer)
        for block in (0, 3)
        for layer in (0, 1, 2)
    }
    model = Deep()
    PytorchStore.from_file(saved(tmp_path, tensors)).load(model)
    assert values(model.blocks[1]) == [30, 31, 32]
    del tensors["blocks.3.fc.1.weight"]
    with pytest.raises(ModelError, match=r"'blocks\.1\.fc' the file has the indices 0, 2 and the model 0, 1, 2"):
        PytorchStore.from_file(saved(tmp_path, tensors)).allow_partial(True).load(Deep())


def test_a_model_with_fewer_entries_takes_the_first_and_says_so(tmp_path: Path) -> None:
    model = Listed(2)
    result = PytorchStore.from_file(saved(tmp_path, sequential(0, 2, 4))).load(model)
    assert values(model) == [0, 2] and result.unused == ["fc.2.weight"]
    assert any("0, 2, 4 were renumbered, and the model has only 0, 1" in note for note in result.notes)


def test_a_model_that_has_the_same_gaps_keeps_them(tmp_path: Path) -> None:
    path = saved(tmp_path, sequential(0, 2))
    model = {"fc": {index: {"weight": np.zeros((2, 2), np.float32)} for index in ("0", "2")}}
    assert PytorchStore.from_file(path).load(model).applied == ["fc.0.weight", "fc.2.weight"]
    assert model["fc"]["2"]["weight"][0, 0] == 2
    with pytest.raises(ModelError):  # asked for, they are closed, and then the model does not fit
        PytorchStore.from_file(path).map_indices_contiguous(True).load(model)


def test_long_lists_of_indices_are_shortened(tmp_path: Path) -> None:
    path = saved(tmp_path, sequential(*range(0, 80, 2)))
    with pytest.raises(ModelError, match=r"0, 2, 4, 6, 8, 10, 12, 14, 16, 18, … 78 and the model 0, 1, 2"):
        PytorchStore.from_file(path).load(Listed(41))


def test_into_a_torch_model_indices_stay_as_they_are(tmp_path: Path) -> None:
    module = torch.nn.ModuleDict(
        {
            "fc": torch.nn.Sequential(
                torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 2, bias=False)
            )
        }
    )
    path = saved(tmp_path, sequential(0, 2))
    assert PytorchStore.from_file(path).load(module).applied == ["fc.0.weight", "fc.2.weight"]
    assert module["fc"][2].weight[0, 0].item() == 2
    part = saved(tmp_path, sequential(2), "part.pt")
    assert PytorchStore.from_file(part).allow_partial(True).load(module).missing == ["fc.0.weight"]


def test_the_same_protection_holds_for_other_stores(tmp_path: Path) -> None:
    bs.save(
        {name: tensor.numpy() for name, tensor in sequential(0, 2).items()},
        tmp_path / "model.safetensors",
        layout="burn",
    )
    store = bs.SafetensorsStore.from_file(tmp_path / "model.safetensors").map_indices_contiguous(True)
    with pytest.raises(ModelError, match="0, 2 and the model 0, 1, 2"):
        store.allow_partial(True).load(Listed(3))
    model = Listed(2)
    store.load(model)
    assert values(model) == [0, 2]


# --- enums ------------------------------------------------------------------------------------------------------------


class ConvBlock(nn.Enum):
    BaseConv = nn.variant(nn.Conv2d)
    Depthwise = nn.variant(nn.Module)


class Pair(nn.Module):
    def __init__(self) -> None:
        self.dconv = nn.Conv2d([2, 2], [1, 1], bias=False)
        self.pconv = nn.Conv2d([2, 3], [1, 1], bias=False)


class WithEnum(nn.Module):
    def __init__(self, value: Any) -> None:
        self.feature = value


def test_names_of_enum_variants_are_left_out_by_default(tmp_path: Path) -> None:
    path = saved(tmp_path, {"feature.weight": torch.ones(2, 2, 1, 1), "feature.bias": torch.ones(2)})
    model = WithEnum(ConvBlock.BaseConv(nn.Conv2d([2, 2], [1, 1])))
    assert PytorchStore.from_file(path).load(model).is_success()
    struct = {"feature.dconv.weight": torch.ones(2, 2, 1, 1), "feature.pconv.weight": torch.ones(3, 2, 1, 1)}
    model = WithEnum(ConvBlock.Depthwise(Pair()))
    assert len(PytorchStore.from_file(saved(tmp_path, struct, "struct.pt")).load(model).applied) == 2


def test_with_the_names_of_variants_the_report_explains_what_is_missing(tmp_path: Path) -> None:
    path = saved(tmp_path, {"feature.weight": torch.ones(2, 2, 1, 1), "feature.bias": torch.ones(2)})
    model = WithEnum(ConvBlock.BaseConv(nn.Conv2d([2, 2], [1, 1])))
    store = PytorchStore.from_file(path).skip_enum_variants(False)
    with pytest.raises(MissingTensorsError) as caught:
        store.load(model)
    missing = caught.value.result.missing
    assert all("BaseConv" in path for path in missing)
    assert all("Enum:ConvBlock" in each.container_path for each in missing)
    assert "enum variant" in str(caught.value)
