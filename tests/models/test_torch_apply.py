"""Loading into PyTorch models: in place, tied, typed, whole or not at all."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import burnstore as bs
from burnstore.io.source import FileSource
from burnstore.transforms.axes import transposed

LARGE = (400, 200)  # of F32: read straight into the model; smaller ones go through a buffer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.big = nn.Linear(LARGE[1], LARGE[0])
        self.small = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)
        self.tied = nn.ParameterList([self.small.weight])


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same(model: nn.Module, expected: dict[str, torch.Tensor]) -> None:
    found = model.state_dict()
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype is tensor.dtype, name
        assert torch.equal(found[name].cpu(), tensor.cpu()), name  # DataParallel moves a model to a GPU if there is one


@pytest.fixture
def trained() -> Net:
    model = Net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-1, 1)
    model.norm.num_batches_tracked.fill_(7)
    model.norm.running_mean.fill_(0.5)
    return model


@pytest.fixture
def file(trained: Net, tmp_path: Path) -> Path:
    path = tmp_path / "model.bpk"
    bs.save(trained, path, layout="torch")
    return path


def load(model: Any, path: Path, **options: Any) -> bs.ApplyResult:
    return bs.load(model, path, layout="torch", **options)


def test_what_was_saved_is_loaded_bit_by_bit(trained: Net, file: Path) -> None:
    for options in ({}, {"zero_copy": True}, {"in_place": False}):
        model = Net()
        result = load(model, file, **options)
        assert result.is_complete and result.applied == list(model.state_dict()) and result.notes == []
        assert_same(model, values(trained))


def test_bytes_are_loaded_too(trained: Net, file: Path) -> None:
    model = Net()
    bs.load(model, file.read_bytes(), layout="torch")
    assert_same(model, values(trained))


def test_parameters_stay_the_objects_they_were(file: Path) -> None:
    model = Net()
    model.small.weight.requires_grad_(False)
    before = {name: (parameter, parameter.data_ptr()) for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD([model.big.weight], lr=1.0, momentum=0.9)
    load(model, file)
    for name, parameter in model.named_parameters():
        assert before[name] == (parameter, parameter.data_ptr()) or name not in before
    assert not model.small.weight.requires_grad and model.small.bias.requires_grad
    assert model.big.weight.is_leaf and model.big.weight.grad is None
    loaded = model.big.weight.detach().clone()
    model.big.weight.sum().backward()
    optimizer.step()
    assert torch.allclose(model.big.weight, loaded - 1)


@pytest.mark.parametrize("name", ["big", "small"])
def test_autograd_notices_that_a_value_it_needs_was_overwritten(name: str, file: Path) -> None:
    model = Net()
    layer = getattr(model, name)
    loss = (layer.weight * layer.weight).sum()
    load(model, file)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_part_of_a_model_is_loaded_from_a_file_of_the_whole(trained: Net, file: Path) -> None:
    linear = nn.Linear(2, 3)
    result = load(linear, file, rename=[*{r"^small\.": ""}.items()])
    assert result.applied == ["weight", "bias"] and torch.equal(linear.weight, trained.small.weight)
    model = Net()
    result = load(model, file, filter=r"^big\.")
    assert result.applied == ["big.weight", "big.bias"] and torch.equal(model.big.bias, trained.big.bias)


# --- strides ----------------------------------------------------------------------------------------------------------


def test_strided_parameters_are_saved_right_and_filled_where_they_are() -> None:
    def make(value: float) -> nn.Module:
        model = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        model.turned = nn.Parameter(torch.arange(60_000.0).reshape(200, 300).t() + value)
        model.register_buffer("every_second", torch.arange(20.0)[::2] + value)
        model.register_buffer("part", torch.arange(20.0)[3:9] + value)
        return model

    source, target = make(1), make(0)
    strides = {name: tensor.stride() for name, tensor in target.state_dict().items()}
    with bs.open(bs.serialize(source, format="burnpack", layout="torch")) as packed:
        assert np.array_equal(packed["turned"].numpy(), source.turned.detach().numpy())
        assert bs.apply(target, packed.values()).is_complete
    assert_same(target, values(source))
    assert {name: tensor.stride() for name, tensor in target.state_dict().items()} == strides


# --- tied weights -----------------------------------------------------------------------------------------------------


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(300, 64)
        self.lm_head = nn.Linear(64, 300, bias=False)
        self.lm_head.weight = self.wte.weight


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("kept", [["wte.weight", "lm_head.weight"], ["wte.weight"], ["lm_head.weight"]])
def test_tied_weights_stay_tied_whichever_of_their_names_the_source_has(kept: list[str], device: str) -> None:
    source = Gpt()
    with torch.device(device):
        target = Gpt()
    result = bs.apply(target, [tensor for tensor in bs.collect(source) if tensor.path in kept])
    assert result.is_complete and result.applied == ["wte.weight", "lm_head.weight"]
    assert target.wte.weight is target.lm_head.weight and torch.equal(target.wte.weight, source.wte.weight)


def test_tied_weights_with_two_values_are_an_error_and_the_model_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "odd.bpk"
    bs.save({"wte.weight": torch.zeros(300, 64), "lm_head.weight": torch.ones(300, 64)}, path, layout="torch")
    model = Gpt()
    before = values(model)
    with pytest.raises(bs.errors.LoadError, match="shared with"):
        load(model, path)
    assert_same(model, before)


def test_parameters_that_only_share_memory_are_tied_too() -> None:
    model = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
    model[1].weight.data = model[0].weight.data
    odd = [bs.TensorSnapshot.from_torch(f"{i}.weight", torch.full((2, 2), float(i))) for i in range(2)]
    assert [error.path for error in bs.apply(model, odd).errors] == ["1.weight"]


# --- the meta device --------------------------------------------------------------------------------------------------


def test_a_model_on_the_meta_device_is_filled_by_assignment(trained: Net, file: Path) -> None:
    with torch.device("meta"):
        model = Net()
    model.big.bias.requires_grad_(False)
    model.small.weight.tag = "kept"
    assert load(model, file).is_complete
    assert_same(model, values(trained))
    assert isinstance(model.big.weight, nn.Parameter) and model.big.weight.requires_grad
    assert not model.big.bias.requires_grad and model.small.weight.tag == "kept"
    assert model.tied[0] is model.small.weight
    model.big(torch.zeros(1, LARGE[1])).sum().backward()


def test_the_default_device_decides_where_and_meta_is_none(trained: Net, file: Path) -> None:
    with torch.device("meta"):
        model = Net()
        load(model, file)
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}


def test_an_lstm_on_the_meta_device_works_after_a_load() -> None:
    source, target = nn.LSTM(3, 4, 2), nn.LSTM(3, 4, 2, device="meta")
    assert bs.apply(target, bs.collect(source)).is_complete
    given = torch.ones(5, 1, 3)
    assert torch.equal(target(given)[0], source(given)[0])


def test_without_a_copy_a_model_from_the_meta_device_lives_on_the_mapped_file(trained: Net, file: Path) -> None:
    with torch.device("meta"):
        model = Net()
    before = file.read_bytes()
    load(model, file, zero_copy=True)
    assert_same(model, values(trained))
    with bs.open(file, zero_copy=True) as opened, torch.no_grad():
        assert not np.shares_memory(opened["big.weight"].numpy(), model.big.weight.numpy())  # a mapping of its own
        model.big.weight.zero_()
    assert file.read_bytes() == before
    maps = Path("/proc/self/maps")
    if maps.exists():
        ranges = [line.split()[0].split("-") for line in maps.read_text().splitlines() if line.endswith(str(file))]
        place = model.big.weight.data_ptr()
        assert any(int(start, 16) <= place < int(stop, 16) for start, stop in ranges)


def test_an_embedding_with_a_largest_norm_is_loaded_on_the_meta_device(tmp_path: Path) -> None:
    source = nn.Embedding(3, 2, max_norm=10.0)
    bs.save(source, tmp_path / "embedding.bpk")
    target = nn.Embedding(3, 2, max_norm=10.0, device="meta")
    assert bs.load(target, tmp_path / "embedding.bpk").is_complete and torch.equal(target.weight, source.weight)


def test_what_found_no_tensor_stays_on_the_meta_device(file: Path) -> None:
    with torch.device("meta"):
        model = Net()
    result = load(model, file, filter="^small", allow_partial=True)
    assert result.is_success() and model.small.weight.device.type == "cpu" and model.big.weight.is_meta


# --- dtypes -----------------------------------------------------------------------------------------------------------

ALL = [
    *("float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2"),
]


def random_bits(name: str, rows: int) -> torch.Tensor:
    dtype = getattr(torch, name)
    top = 2 if name == "bool" else 256
    raw = np.random.default_rng(rows).integers(0, top, (rows, 8 * dtype.itemsize), dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    if tensor.dtype is torch.float4_e2m1fn_x2:
        tensor = tensor.view(torch.uint8)  # it cannot be copied as what it is
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rows", [3, 10_000])
@pytest.mark.parametrize("name", ALL)
def test_every_dtype_is_filled_bit_by_bit(name: str, rows: int, turned: bool, in_place: bool) -> None:
    given = random_bits(name, rows)
    model = nn.Module()
    held = torch.empty_strided(given.shape, (1, rows) if turned else given.stride(), dtype=given.dtype)
    model.register_buffer("t", held)
    result = bs.apply(model, [bs.TensorSnapshot.from_torch("t", given)], validate=True, in_place=in_place)
    assert result.notes == [] and model.t is held and held.stride() == ((1, rows) if turned else given.stride())
    assert bits(model.t) == bits(given)


def test_a_parameter_keeps_its_dtype_and_a_note_says_what_was_cast(trained: Net, file: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        model = Net().to(dtype)
        result = load(model, file)
        assert_same(model, {n: t.to(dtype) if t.is_floating_point() else t for n, t in values(trained).items()})
        name = bs.DType.of(dtype).name
        assert result.notes == [f"cast from F32 to {name}, the dtype of the model: 9 tensors"]


def one(name: str, tensor: torch.Tensor) -> tuple[nn.Module, torch.Tensor]:
    model = nn.Module()
    model.register_buffer(name, tensor)
    return model, tensor.clone()


@pytest.mark.parametrize(
    ("given", "held"),
    [
        (torch.tensor([1e5]), torch.zeros(1, dtype=torch.float16)),
        (torch.tensor([1e30], dtype=torch.bfloat16), torch.zeros(1, dtype=torch.float16)),
        (torch.tensor([1e300], dtype=torch.float64), torch.zeros(1)),
        (torch.tensor([1e4]), torch.zeros(1, dtype=torch.float8_e4m3fn)),
        (torch.tensor([1e300 + 1j], dtype=torch.complex128), torch.zeros(1, dtype=torch.complex64)),
        (torch.tensor([0.0]), torch.ones(1).to(torch.float8_e8m0fnu)),
        (torch.tensor([3.0]), torch.ones(1).to(torch.float8_e8m0fnu)),
        (torch.tensor([300]), torch.zeros(1, dtype=torch.uint8)),
        (torch.tensor([-1]), torch.zeros(1, dtype=torch.uint64)),
        (torch.tensor([2**63 + 1], dtype=torch.uint64), torch.zeros(1, dtype=torch.int64)),
    ],
)
def test_a_number_that_the_dtype_cannot_hold_is_an_error_and_nothing_is_changed(
    given: torch.Tensor, held: torch.Tensor
) -> None:
    model, before = one("x", held)
    with pytest.raises(bs.errors.LoadError, match=r"'x'.*(too large|do not fit|not powers of two)"):
        bs.apply(model, [bs.TensorSnapshot.from_torch("x", given)], validate=True)
    assert bits(model.x) == bits(before)


@pytest.mark.parametrize(
    ("given", "held", "expected"),
    [
        (torch.tensor([7]), torch.zeros(1, dtype=torch.uint8), [7]),
        (torch.tensor([0.25]), torch.ones(1).to(torch.float8_e8m0fnu), [0.25]),
        (torch.tensor([2**63], dtype=torch.uint64), torch.zeros(1, dtype=torch.uint64), [2**63]),
        (torch.tensor([1.5 + 1j], dtype=torch.complex64), torch.zeros(1, dtype=torch.complex128), [1.5 + 1j]),
        (torch.tensor([float("inf"), float("nan")]), torch.zeros(2, dtype=torch.float16), None),
        (torch.tensor([1, 0], dtype=torch.uint8), torch.zeros(2, dtype=torch.bool), [True, False]),
    ],
)
def test_a_number_that_it_can_hold_is_held(given: torch.Tensor, held: torch.Tensor, expected: list[Any] | None) -> None:
    model, _ = one("x", held)
    bs.apply(model, [bs.TensorSnapshot.from_torch("x", given)], validate=True)
    assert model.x.tolist() == expected if expected else not model.x.isfinite().any()


@pytest.mark.parametrize(("given", "held"), [("float32", "int32"), ("int64", "float32"), ("float32", "bool")])
def test_floats_integers_and_bools_are_never_taken_for_each_other(given: str, held: str) -> None:
    model, _ = one("x", torch.zeros(2, dtype=getattr(torch, held)))
    result = bs.apply(model, [bs.TensorSnapshot.from_torch("x", torch.zeros(2, dtype=getattr(torch, given)))])
    assert [error.kind for error in result.errors] == ["DTypeMismatch"]


def test_quantized_tensors_come_as_the_numbers_that_they_stand_for() -> None:
    path = Path(__file__).resolve().parents[1] / "fixtures" / "burn" / "0.22.1"
    quantized = next(
        (file, name) for file in sorted(path.glob("*.bpk")) for name, t in _opened(file).items() if t.dtype.is_quantized
    )
    with bs.open(quantized[0]) as opened:
        snapshot = opened[quantized[1]]
        model, _ = one("x", torch.zeros(snapshot.shape))
        result = bs.apply(model, [snapshot.with_path("x")], validate=True)
        assert np.array_equal(model.x.numpy(), snapshot.numpy())
        assert any("QFloat" in note for note in result.notes)


def _opened(path: Path) -> dict[str, bs.TensorSnapshot]:
    with bs.open(path) as opened:
        return dict(opened)


# --- whole or not at all ----------------------------------------------------------------------------------------------


def test_a_load_that_does_not_fit_leaves_the_model_as_it_was(file: Path) -> None:
    wider = Net()
    wider.small = nn.Linear(2, 4)
    longer = Net()
    longer.more = nn.Linear(1, 1)
    for model, error in ((wider, bs.errors.LoadError), (longer, bs.errors.MissingTensorsError)):
        before = values(model)
        with pytest.raises(error):
            load(model, file)
        assert_same(model, before)


def test_a_tensor_that_cannot_be_filled_is_found_before_any_is_changed(file: Path) -> None:
    with torch.inference_mode():
        frozen = nn.Linear(2, 3)
    expanded = nn.Module()
    expanded.register_buffer("weight", torch.zeros(1, 2).expand(3, 2))
    for part, reason in ((frozen, "inference tensor"), (expanded, "expanded")):
        model = nn.Module()
        model.big, model.small = nn.Linear(LARGE[1], LARGE[0]), part
        before = values(model)
        with pytest.raises(bs.errors.ModelError, match=rf"'small\.weight'.*{reason}"):
            load(model, file, allow_partial=True)
        assert_same(model, before)
    with torch.inference_mode():
        assert load(frozen, file, rename=[*{r"^small\.": ""}.items()]).is_complete


class Failing:
    """A disk that fails in the middle of the data."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        fill = FileSource._fill

        def failing(source: FileSource, offset: int, buffer: memoryview) -> None:
            if len(buffer) == size:
                fill(source, offset, buffer[:1000])
                raise bs.errors.ReadError("reading failed: Input/output error", path=source.name, offset=offset + 1000)
            fill(source, offset, buffer)

        monkeypatch.setattr(FileSource, "_fill", failing)


def test_a_disk_that_fails_in_the_middle_is_told_and_the_model_said_to_be_partly_loaded(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net()
    before = values(model)
    Failing(monkeypatch, 4 * LARGE[0] * LARGE[1])
    with pytest.raises(bs.errors.LoadError, match=r"partly loaded.*Input/output error(.|\n)*in_place=False") as caught:
        load(model, file)
    assert caught.value.path == str(file) and caught.value.result is not None
    del before["big.weight"]
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


def test_without_in_place_a_disk_that_fails_leaves_the_model_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net()
    before = values(model)
    Failing(monkeypatch, 4 * LARGE[0] * LARGE[1])
    with pytest.raises(bs.errors.LoadError, match="Input/output error"):
        load(model, file, in_place=False)
    assert_same(model, before)


def test_large_tensors_are_read_into_the_memory_of_the_model(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    seen: list[int] = []
    read_into = FileSource.read_into

    def watching(source: FileSource, reads: Any) -> None:
        seen.extend(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] for _, buffer in reads)
        read_into(source, reads)

    monkeypatch.setattr(FileSource, "read_into", watching)
    load(model, file)
    assert model.big.weight.data_ptr() in seen and model.small.weight.data_ptr() not in seen


def test_a_file_of_burns_layout_is_turned_into_the_memory_of_the_model(
    trained: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "burn.bpk"
    bs.save(trained, path)
    model = Net()
    place = model.big.weight.data_ptr()
    bs.load(model, path)
    assert torch.equal(model.big.weight, trained.big.weight) and model.big.weight.data_ptr() == place
    other = Net()
    Failing(monkeypatch, 4 * LARGE[0] * LARGE[1])
    with pytest.raises(bs.errors.LoadError, match="partly loaded"):
        bs.load(other, path)
    before = values(other)
    with pytest.raises(bs.errors.LoadError, match="Input/output error"):
        bs.load(other, path, in_place=False)
    assert_same(other, before)


def test_a_model_can_be_given_its_own_tensors_in_another_order() -> None:
    class Turned(bs.ModuleAdapter):
        def adapt(self, snapshot: bs.TensorSnapshot) -> bs.TensorSnapshot:
            return transposed(snapshot)

    model = nn.Linear(300, 300, bias=False)
    before = model.weight.detach().clone()
    assert bs.apply(model, bs.collect(model), adapter=Turned()).is_complete
    assert torch.equal(model.weight, before.t())


# --- ids --------------------------------------------------------------------------------------------------------------


def test_ids_come_from_a_file_and_go_back_into_one(tmp_path: Path) -> None:
    burn = bs.nn.LayerNorm(4)
    bs.save(burn, tmp_path / "burn.bpk")
    model = nn.LayerNorm(4)
    assert bs.collect(model)[0].param_id is None
    bs.load(model, tmp_path / "burn.bpk")
    bs.load(model, tmp_path / "burn.bpk", in_place=False)
    model = pickle.loads(pickle.dumps(model.double().float()))
    bs.save(model, tmp_path / "torch.bpk")
    ids = [tensor.param_id for tensor in bs.collect(burn)]
    assert None not in ids
    with bs.open(tmp_path / "torch.bpk") as saved:
        assert [tensor.param_id for tensor in saved.values()] == ids
    assert bs.collect(copy.deepcopy(model))[0].param_id is None  # a copy is another parameter


def test_ids_of_large_tensors_and_of_the_meta_device_survive_too() -> None:
    given = [bs.TensorSnapshot.from_numpy("weight", np.zeros(LARGE, np.float32), param_id=42)]
    with bs.open(bs.serialize(given, format="burnpack")) as packed:
        for device in ("cpu", "meta"):
            model = nn.Linear(*LARGE[::-1], bias=False, device=device)
            bs.apply(model, packed.values())
            assert [tensor.param_id for tensor in bs.collect(model)] == [bs.ParamId(42)]


# --- state dicts ------------------------------------------------------------------------------------------------------


def test_a_state_dict_is_a_model_whose_entries_are_replaced(trained: Net, file: Path) -> None:
    model = Net()
    before = values(model)
    state = model.state_dict()
    assert isinstance(state, OrderedDict) and hasattr(state, "_metadata")
    assert load(state, file).applied == list(state)
    assert_same(model, before)  # it has other tensors now; the model's own are as they were
    model.load_state_dict(state)
    assert_same(model, values(trained))


def test_entries_keep_dtype_device_and_kind() -> None:
    held: dict[str, Any] = {
        "half": torch.zeros(2, dtype=torch.float16),
        "deep": {"parameter": nn.Parameter(torch.zeros(2)), "leaf": torch.zeros(2, requires_grad=True)},
        "tuple": (torch.zeros(2),),
        "meta": torch.zeros(2, device="meta"),
        "array": np.zeros(2, np.float32),
    }
    names = ["half", "deep.parameter", "deep.leaf", "tuple.0", "meta", "array"]
    inside = held["tuple"][0]
    result = bs.apply(held, [bs.TensorSnapshot.from_numpy(name, np.ones(2, np.float32)) for name in names])
    assert result.applied == names
    assert held["half"].dtype is torch.float16 and held["half"].tolist() == [1, 1]
    assert isinstance(held["deep"]["parameter"], nn.Parameter) and held["deep"]["leaf"].requires_grad
    assert held["tuple"][0] is inside and inside.tolist() == [1, 1]
    assert held["meta"].device.type == "cpu" and held["array"].tolist() == [1, 1]


def test_values_never_share_memory_with_what_they_came_from() -> None:
    source = {"w": torch.zeros(2)}
    target = {"w": torch.ones(2)}
    bs.apply(target, bs.collect(source))
    target["w"].add_(5)
    assert source["w"].tolist() == [0, 0]


def test_settings_beside_tensors_are_refused_on_a_save() -> None:
    with pytest.raises(TypeError, match="'epoch' is a int"):
        bs.serialize({"epoch": 3, "w": torch.zeros(1)}, format="burnpack")


# --- wrappers ---------------------------------------------------------------------------------------------------------

WRAPPED = [
    lambda model: nn.DataParallel(model),
    lambda model: torch.compile(model, backend="eager"),
    lambda model: torch.compile(nn.DataParallel(model), backend="eager"),
]


@pytest.mark.parametrize("wrap", WRAPPED)
def test_the_wrapper_is_stripped_from_the_names_of_a_file_of_a_wrapped_model(wrap: Any, tmp_path: Path) -> None:
    source = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    bs.save(wrap(source), tmp_path / "wrapped.bpk", layout="torch")
    target = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    result = load(target, tmp_path / "wrapped.bpk")
    assert result.is_complete and any("stripped the wrapper from its names" in note for note in result.notes)
    assert_same(target, values(source))


@pytest.mark.parametrize(("wrap", "attribute"), [(WRAPPED[0], "module"), (WRAPPED[1], "_orig_mod")])
def test_a_wrapped_model_is_recognised_and_the_hint_works(wrap: Any, attribute: str, tmp_path: Path) -> None:
    source = nn.Linear(2, 2)
    bs.save(source, tmp_path / "bare.bpk", layout="torch")
    wrapped = wrap(nn.Linear(2, 2))
    with pytest.raises(bs.errors.MissingTensorsError, match=rf"the model inside, its attribute '{attribute}'"):
        load(wrapped, tmp_path / "bare.bpk")
    assert load(getattr(wrapped, attribute), tmp_path / "bare.bpk").is_complete
    assert_same(getattr(wrapped, attribute), values(source))


def test_the_wrapper_is_stripped_from_a_file_of_burns_layout_too(tmp_path: Path) -> None:
    source, target = (nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)) for _ in range(2))
    bs.save(nn.DataParallel(source), tmp_path / "wrapped.bpk")
    assert bs.load(target, tmp_path / "wrapped.bpk").is_complete
    assert_same(target, values(source))


def test_other_missing_names_get_no_such_hint(file: Path) -> None:
    with pytest.raises(bs.errors.MissingTensorsError) as caught:
        load(nn.Linear(2, 2), file)
    assert caught.value.hint == "pass allow_partial=True if they may be missing"


class WithOwnLoad(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def _load_from_state_dict(self, *args):
        super()._load_from_state_dict(*args)
        self.fc.bias.data.mul_(3)


def test_code_of_a_class_for_load_state_dict_is_noted_as_not_run():
    hooked = nn.Sequential(nn.Linear(2, 2))
    hooked[0]._register_load_state_dict_pre_hook(lambda state, prefix, *args: state[prefix + "bias"].mul_(2))
    for model, name in ((WithOwnLoad(), "WithOwnLoad"), (hooked, "Linear")):
        notes = bs.load(model, bs.serialize(model, format="safetensors")).notes
        assert [note for note in notes if "load_state_dict" in note] == [
            f"code for load_state_dict was not run, of {name}; load into model.state_dict() and call load_state_dict "
            "to run it"
        ]
    plain = nn.Sequential(nn.BatchNorm1d(2), nn.utils.spectral_norm(nn.Linear(2, 2)), nn.LSTM(2, 2))
    assert not bs.load(plain, bs.serialize(plain, format="safetensors")).notes


class WithModule(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model that has a ``module`` of its own, with the same names as beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)
        self.module = torch.nn.Module()
        self.module.fc = torch.nn.Linear(3, 3)


@pytest.mark.parametrize("prefix", ["module.", "module._orig_mod.", "_orig_mod.", ""])
@pytest.mark.parametrize("allow_partial", [False, True])
def test_a_wrapper_is_stripped_once_from_a_model_with_its_own_module(
    tmp_path: Path, prefix: str, allow_partial: bool
) -> None:
    saved, model = WithModule(), WithModule()
    torch.save({prefix + name: tensor for name, tensor in saved.state_dict().items()}, tmp_path / "a.pt")
    bs.load(model, tmp_path / "a.pt", allow_partial=allow_partial)
    for name, tensor in saved.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    bs.convert(tmp_path / "a.pt", tmp_path / "a.bpk", like=model)
    bs.save(saved, tmp_path / "b.bpk")
    assert bs.diff(tmp_path / "a.bpk", tmp_path / "b.bpk").is_equal
