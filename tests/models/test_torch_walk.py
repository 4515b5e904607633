"""PyTorch modules are walked as their state_dict() is written: its names, its order, its tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import burnstore as bs
from burnstore.models.bindings import binding_for
from burnstore.models.torch import binding as binding


class Tied(nn.Module):
    """The shape of a GPT: the embedding is also the last layer's matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(7, 4)
        self.h = nn.ModuleList(nn.TransformerEncoderLayer(4, 2, 8) for _ in range(2))
        self.lm_head = nn.Linear(4, 7, bias=False)
        self.lm_head.weight = self.wte.weight


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))
        self.norm = nn.BatchNorm2d(3)
        self.parts = nn.ModuleDict({"left": nn.LayerNorm(4), "right": nn.GroupNorm(2, 4)})
        self.scales = nn.ParameterList([torch.zeros(2), torch.zeros(3)])
        self.named = nn.ParameterDict({"alpha": torch.zeros(1)})
        self.register_buffer("kept", torch.arange(3))
        self.register_buffer("derived", torch.zeros(9), persistent=False)
        self.register_parameter("absent", None)
        self.own = nn.Parameter(torch.zeros(()))


def weight_normed() -> nn.Module:
    return parametrizations.weight_norm(nn.Linear(3, 2))


def spectral_normed() -> nn.Module:
    return parametrizations.spectral_norm(nn.Linear(3, 2))


def old_weight_normed() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(3, 2))


def old_spectral_normed() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.spectral_norm(nn.Linear(3, 2))


def pruned() -> nn.Module:
    return prune.l1_unstructured(nn.Linear(4, 4), "weight", amount=0.5)


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))


ZOO: list[Callable[[], nn.Module]] = [
    Tied,
    Mixed,
    weight_normed,
    spectral_normed,
    old_weight_normed,
    old_spectral_normed,
    pruned,
    scripted,
    lambda: nn.Linear(3, 2),
    lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    lambda: nn.GRUCell(3, 4),
    lambda: nn.MultiheadAttention(4, 2),
    lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True),
    lambda: nn.Sequential(nn.Conv2d(2, 3, 1), nn.SyncBatchNorm(3), nn.PReLU()),
    lambda: nn.DataParallel(nn.Linear(3, 2)),
    lambda: torch.compile(nn.Linear(3, 2), backend="eager"),
    lambda: torch.optim.swa_utils.AveragedModel(nn.Linear(3, 2)),
    lambda: nn.Linear(3, 2, device="meta"),
]


@pytest.mark.parametrize("make", ZOO)
def test_tensors_are_those_of_the_state_dict_in_its_order(make: Callable[[], nn.Module]) -> None:
    model = make()
    state = model.state_dict()
    found = bs.collect(model)
    assert [tensor.path for tensor in found] == list(state)
    assert [tensor.shape for tensor in found] == [tuple(tensor.shape) for tensor in state.values()]
    for tensor in found:
        if not state[tensor.path].is_meta:
            assert torch.equal(tensor.torch(), state[tensor.path])


def test_containers_are_the_classes_that_own_each_segment() -> None:
    found = {tensor.path: tensor.container_path for tensor in bs.collect(Mixed())}
    assert found["steps.2.weight"] == "Struct:Mixed.Vec.Struct:Linear"
    assert found["norm.num_batches_tracked"] == "Struct:Mixed.Struct:BatchNorm2d"
    assert found["parts.left.weight"] == "Struct:Mixed.Dict.Struct:LayerNorm"
    assert found["scales.1"] == "Struct:Mixed.Vec"
    assert found["named.alpha"] == "Struct:Mixed.Dict"
    assert found["own"] == "Struct:Mixed"
    named = nn.Sequential()
    named.add_module("first", nn.Linear(1, 1))
    assert bs.collect(named)[0].container_path == "Struct:Sequential.Struct:Linear"


def test_buffers_that_are_not_persistent_and_parameters_that_are_none_do_not_count() -> None:
    names = [tensor.path for tensor in bs.collect(Mixed())]
    assert "kept" in names and "derived" not in names and "absent" not in names


def test_a_tensor_without_axes_and_without_elements_is_a_tensor() -> None:
    model = nn.Module()
    model.register_buffer("counter", torch.tensor(5))
    model.register_buffer("nothing", torch.zeros(0, 3))
    counter, nothing = bs.collect(model)
    assert (counter.dtype, counter.shape, counter.numpy().item()) == (bs.DType.I64, (), 5)
    assert (nothing.shape, nothing.to_bytes()) == ((0, 3), b"")


def test_shared_tensors_are_one_by_identity() -> None:
    model = Tied()
    slots = {slot.path: slot for slot in binding_for(model).walk(model)}
    assert slots["wte.weight"].identity() == slots["lm_head.weight"].identity()
    assert len({slot.identity() for slot in slots.values()}) == len(slots) - 1
    twin = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    twin[1].weight.data = twin[0].weight.data  # two parameters, one memory
    first, _, second, _ = binding_for(twin).walk(twin)
    assert first.identity() == second.identity()


def test_a_module_that_is_registered_twice_has_both_names() -> None:
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"one": shared, "two": shared})
    assert [tensor.path for tensor in bs.collect(model)] == ["one.weight", "one.bias", "two.weight", "two.bias"]


def test_a_module_that_contains_itself_is_refused() -> None:
    model = nn.Module()
    model.add_module("inner", nn.Module())
    model.inner.add_module("outer", model)
    with pytest.raises(bs.errors.ModelError, match="contains itself"):
        bs.collect(model)


def test_no_module_is_too_deep() -> None:
    model = innermost = nn.Module()
    for _ in range(3000):
        inner = nn.Module()
        innermost.add_module("m", inner)
        innermost = inner
    innermost.register_buffer("x", torch.zeros(1))
    assert [tensor.path.count(".") for tensor in bs.collect(model)] == [3000]


def test_a_lazy_module_is_refused_until_it_was_used() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(bs.errors.ModelError, match=r"'0\.weight'.*lazy.*\n.*forward"):
        bs.collect(model)
    model(torch.zeros(1, 2))
    assert bs.collect(model)[0].shape == (3, 2)


class Odd(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def sparse() -> torch.Tensor:
    return torch.eye(2).to_sparse(layout=torch.sparse_coo)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (sparse, "sparse"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "quantized"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        (lambda: torch.Tensor._make_wrapper_subclass(Odd, (2,)), "Odd"),
        (lambda: torch.empty(2, dtype=torch.bits8), "bits8"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # torch warns of its own prototypes
def test_a_tensor_that_is_more_than_its_elements_is_refused_by_name(make: Any, word: str) -> None:
    model = nn.Module()
    model.register_buffer("odd", make())
    with pytest.raises((bs.errors.ModelError, bs.errors.DTypeError), match="'odd'.*" + word):
        bs.collect(model)


def test_a_subclass_that_is_only_a_name_is_a_tensor() -> None:
    class Tagged(torch.Tensor):
        pass

    found = bs.collect({"t": torch.ones(2).as_subclass(Tagged)})
    assert found[0].numpy().tolist() == [1, 1]


# --- modules that have a state_dict of their own ----------------------------------------------------------------------


class SameState(nn.Linear):
    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return super().state_dict(*arguments, **options)


class RenamedState(nn.Linear):
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "kernel"] = self.weight


class OtherValues(nn.Linear):
    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return {name: tensor * 2 for name, tensor in super().state_dict(*arguments, **options).items()}


class ExtraState(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"scale": 3}


def test_an_override_that_gives_the_same_tensors_is_fine() -> None:
    assert [tensor.path for tensor in bs.collect(nn.Sequential(SameState(2, 2)))] == ["0.weight", "0.bias"]


@pytest.mark.parametrize("kind", [RenamedState, OtherValues, ExtraState])
def test_a_state_that_is_not_the_tensors_is_refused_and_the_way_out_named(kind: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(1, 1), kind(2, 2))
    with pytest.raises(bs.errors.ModelError, match=rf"'1'.*{kind.__name__}.*\n.*state_dict\(\)") as caught:
        bs.collect(model)
    assert caught.value.tensor == "1"


def test_the_way_out_leads_out() -> None:
    model = RenamedState(2, 2)
    packed = bs.serialize(model.state_dict(), format="burnpack", layout="torch")
    with bs.open(packed) as file:
        assert list(file) == ["kernel"]


def test_a_hook_that_adds_to_the_state_is_refused_and_one_that_does_not_is_fine() -> None:
    model = nn.Linear(2, 2)
    handle = model.register_state_dict_post_hook(lambda module, state, prefix, metadata: None)
    assert len(bs.collect(model)) == 2
    handle.remove()

    def add(module: Any, state: Any, prefix: str, metadata: Any) -> None:
        state[prefix + "more"] = torch.zeros(1)

    model.register_state_dict_post_hook(add)
    with pytest.raises(bs.errors.ModelError, match="'more' differs"):
        bs.collect(model)


def test_a_state_dict_that_raises_raises() -> None:
    class Hostile(nn.Linear):
        def state_dict(self, *arguments: Any, **options: Any) -> Any:
            raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        bs.collect(Hostile(1, 1))


# --- modules, kinds, layouts ------------------------------------------------------------------------------------------


def test_modules_come_with_their_paths_each_before_those_in_it() -> None:
    model = Tied()
    assert list(binding.modules(model)) == list(model.named_modules(remove_duplicate=False))
    held = {"net": nn.Linear(1, 1), "list": [nn.ReLU()]}
    assert [path for path, _ in binding.modules(held)] == ["net", "list.0"]


def test_kinds_are_those_of_torchs_own_modules() -> None:
    kinds = {path: str(kind) for path, kind in binding.kinds(Tied()).items()}
    assert kinds["wte"] == "Embedding" and kinds["lm_head"] == "Linear" and kinds[""] == "None"
    assert kinds["h.0"] == "TransformerEncoderLayer(norm_first=False)" and kinds["h"] == "ModuleList"


def test_models_that_hold_torch_tensors_have_torchs_layout() -> None:
    class Holder:
        def __init__(self) -> None:
            self.steps = np.zeros(1)
            self.weight = torch.zeros(2)

    for model in (nn.Linear(1, 1), {"a": torch.zeros(1)}, Holder(), [nn.Linear(1, 1)], {"a": {"b": [torch.zeros(1)]}}):
        assert binding_for(model).layout == "torch"
    for plain in ({"a": np.zeros(1)}, bs.nn.Linear(1, 1), {}):
        assert binding_for(plain).layout == "burn"


def test_arrays_and_tensors_may_be_mixed() -> None:
    model = {"steps": np.arange(2), "net": nn.Linear(2, 1), "raw": [torch.ones(1)], "lr": 0.1}
    assert [tensor.path for tensor in bs.collect(model)] == ["steps", "net.weight", "net.bias", "raw.0"]


def test_a_model_of_two_layouts_is_refused() -> None:
    with pytest.raises(bs.errors.ModelError, match=r"'burn\.weight'.*'net\.weight'"):
        bs.collect({"net": nn.Linear(1, 1), "burn": bs.nn.Linear(1, 1)})


def test_names_with_dots_stay_names() -> None:
    state = Tied().state_dict()
    assert [tensor.path for tensor in bs.collect(state)] == list(state)
    assert bs.collect(state)[0].container_path == "Dict"


def test_a_single_tensor_is_no_model() -> None:
    with pytest.raises(TypeError, match="got a single tensor"):
        bs.collect(torch.zeros(1))


class Plus(nn.LayerNorm):
    def forward(self, x: Any) -> Any:
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias, self.eps)


class PlusBefore(nn.LayerNorm):
    def forward(self, x: Any) -> Any:
        return x * (1.0 + self.weight.float())


class PlusElsewhere(nn.LayerNorm):
    @property
    def scale(self) -> Any:
        return self.weight.float() + 1


class ChannelsFirst(nn.LayerNorm):
    def forward(self, x: Any) -> Any:
        return x.mean(1) + self.weight[:, None] * x + self.bias


@pytest.mark.parametrize("kind", [Plus, PlusBefore, PlusElsewhere])
def test_a_norm_that_scales_by_1_plus_weight_is_not_the_norm_it_derives_from(kind: Any, tmp_path: Path) -> None:
    result = bs.save(nn.ModuleDict({"norm": kind(3)}), tmp_path / "a.bpk")
    assert set(result.tensors) == {"norm.weight", "norm.bias"}
    assert any(f"modules of class {kind.__name__} of unknown kind" in note for note in result.notes)


def test_a_norm_with_another_forward_is_not_the_norm_it_derives_from(tmp_path: Path) -> None:
    with pytest.raises(bs.errors.ModelError, match="ChannelsFirst, which derives from LayerNorm"):
        bs.save(nn.ModuleDict({"norm": ChannelsFirst(3)}), tmp_path / "a.bpk")
