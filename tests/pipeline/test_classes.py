"""Whole models in files state the kinds of their modules by the names of their classes, which are never imported."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

import burnstore as bs
from burnstore.jobs.skeleton import skeleton
from burnstore.models.torch.kinds import kind_of
from burnstore.transforms.classes import kind_of_class

torch = pytest.importorskip("torch")
LLAMA = "transformers.models.llama.modeling_llama"
GEMMA = "transformers.models.gemma.modeling_gemma"
NEMOTRON = "transformers.models.nemotron.modeling_nemotron"
MIXTRAL = "transformers.models.mixtral.modeling_mixtral"
GPT2 = "transformers.pytorch_utils"


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A model with everything that a file must state: numbered lists, norms without tensors, options."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.position = nn.Parameter(torch.randn(3, 4))
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4, bias=False))
        self.norm = nn.LayerNorm(4, elementwise_affine=False)
        self.tokens = nn.Embedding(4, 4)
        self.batch = nn.BatchNorm1d(4)
        self.batch.num_batches_tracked += 7
        layer = nn.TransformerEncoderLayer(4, 2, 8, norm_first=True, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.memory = nn.LSTM(4, 4, num_layers=2)


def _layer(module: str, name: str, monkeypatch: pytest.MonkeyPatch, base: Any = None, **shapes: tuple[int, ...]) -> Any:
    """Return an object of a class of this name, and let torch.save find the class there."""

    def init(self: Any) -> None:
        (base or torch.nn.Module).__init__(self)
        for each, shape in shapes.items():
            setattr(self, each, torch.nn.Parameter(torch.randn(shape)))

    made = type(name, (base or torch.nn.Module,), {"__init__": init, "__module__": module, "__qualname__": name})
    found = sys.modules[module] if module in sys.modules else types.ModuleType(module)
    monkeypatch.setitem(sys.modules, module, found)
    monkeypatch.setattr(found, name, made, raising=False)
    return made()


def _burn(file: Path, **options: Any) -> dict[str, Any]:
    target = file.with_suffix(".bpk")
    bs.convert(file, target, **options)
    with bs.open(target) as f:
        return {name: f[name].numpy() for name in f}


def test_a_pickled_model_is_converted_as_the_live_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    torch.save(net, tmp_path / "net.pt")
    done = bs.convert(tmp_path / "net.pt", tmp_path / "a.bpk")
    bs.save(net, tmp_path / "b.bpk")
    assert bs.diff(tmp_path / "a.bpk", tmp_path / "b.bpk").is_equal
    assert bs.diff(tmp_path / "net.pt", tmp_path / "b.bpk").is_equal
    assert any("'position'" in note for note in done.notes)
    bs.convert(tmp_path / "a.bpk", tmp_path / "c.safetensors", target_layout="torch")
    with bs.open(tmp_path / "c.safetensors") as f:
        for name, tensor in net.state_dict().items():
            assert torch.equal(f[name].torch(), tensor), name
    assert "names the classes of its modules" in str(bs.explain(tmp_path / "net.pt"))


@pytest.mark.filterwarnings("ignore")  # torch calls scripts deprecated
@pytest.mark.parametrize("how", ["script", "trace"])
def test_a_script_is_converted_as_the_live_model(tmp_path: Path, how: str) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.BatchNorm1d(4)).eval()
    made = torch.jit.script(net) if how == "script" else torch.jit.trace(net, torch.randn(2, 4))
    made.save(str(tmp_path / "net.pt"))
    bs.convert(tmp_path / "net.pt", tmp_path / "a.bpk")
    bs.save(net, tmp_path / "b.bpk")
    assert bs.diff(tmp_path / "a.bpk", tmp_path / "b.bpk").is_equal


def test_a_class_that_may_derive_from_a_layer_is_refused_until_a_rule_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = torch.nn.Sequential(_layer("mine", "MyLinear", monkeypatch, weight=(4, 4), bias=(4,)))
    torch.save(net, tmp_path / "net.pt")
    with pytest.raises(bs.errors.ModelError, match="a saved MyLinear") as caught:
        _burn(tmp_path / "net.pt")
    assert caught.value.tensor == "0"
    with pytest.raises(bs.errors.ModelError, match="a saved MyLinear"):
        skeleton(tmp_path / "net.pt")
    assert "a saved MyLinear" in str(bs.explain(tmp_path / "net.pt"))
    assert (_burn(tmp_path / "net.pt", rules={"^0$": "Linear"})["0.weight"] == net[0].weight.detach().numpy().T).all()


def test_a_list_with_gaps_in_a_class_that_is_not_known_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = _layer("mine", "Stack", monkeypatch)
    net.add_module("0", torch.nn.Linear(2, 2))
    net.add_module("2", torch.nn.Linear(2, 2))
    torch.save(net, tmp_path / "net.pt")
    with pytest.raises(bs.errors.ModelError, match="a saved Stack"):
        _burn(tmp_path / "net.pt")


def test_norms_without_tensors_that_derive_from_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (("diffusers.models.normalization", "FP32LayerNorm"), ("mine", "MyNorm")):
        made = type(name, (torch.nn.LayerNorm,), {"__module__": module, "__qualname__": name})
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
        monkeypatch.setattr(sys.modules[module], name, made, raising=False)
        net = torch.nn.Sequential(made(4, elementwise_affine=False), torch.nn.Linear(4, 2))
        torch.save(net, tmp_path / f"{name}.pt")
    bs.save(net, tmp_path / "live.bpk")
    assert set(_burn(tmp_path / "FP32LayerNorm.pt")) == {"0.gamma", "0.beta", "1.weight", "1.bias"}
    with pytest.raises(bs.errors.ModelError, match="a saved MyNorm without tensors"):
        _burn(tmp_path / "MyNorm.pt")


def test_a_dict_of_models_states_the_classes_of_each(tmp_path: Path) -> None:
    made = {
        "first": torch.nn.Linear(2, 3),
        "second": {"inner": torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(3, 3))},
    }
    torch.save(made, tmp_path / "two.pt")
    found = _burn(tmp_path / "two.pt")
    assert (found["first.weight"] == made["first"].weight.detach().numpy().T).all()
    assert (found["second.inner.0.weight"] == made["second"]["inner"][1].weight.detach().numpy().T).all()
    torch.save({**made, "loose": {"weight": torch.ones(2, 2)}}, tmp_path / "loose.pt")
    with pytest.raises(bs.errors.ModelError, match="no rule names the kind") as caught:
        _burn(tmp_path / "loose.pt")
    assert caught.value.tensor == "loose.weight"


def test_a_dict_that_holds_itself_states_no_classes(tmp_path: Path) -> None:
    made: dict[str, Any] = {"": torch.nn.Linear(2, 2)}
    made["self"] = made
    torch.save(made, tmp_path / "loop.pt")
    with bs.open(tmp_path / "loop.pt") as f:
        assert f.classes == {}


def test_a_prefix_that_all_names_lack_or_have_is_named(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3))
    torch.save({f"backbone.{name}": tensor for name, tensor in net.state_dict().items()}, tmp_path / "a.pt")
    torch.save({f"_fsdp_wrapped_module.{name}": tensor for name, tensor in net.state_dict().items()}, tmp_path / "f.pt")
    for attempt in (
        lambda: bs.load(net, tmp_path / "a.pt"),
        lambda: bs.convert(tmp_path / "a.pt", tmp_path / "a.bpk", like=net),
    ):
        with pytest.raises(bs.errors.BurnstoreError) as caught:
            attempt()
        assert r"rename=[r'^backbone\.=>']" in (caught.value.hint or "")
    assert bs.load(net, tmp_path / "a.pt", rename=[r"^backbone\.=>"]).is_complete
    assert bs.load(net, tmp_path / "f.pt").is_complete
    outer = torch.nn.ModuleDict({"model": net})
    torch.save(net.state_dict(), tmp_path / "b.pt")
    with pytest.raises(bs.errors.BurnstoreError) as caught:
        bs.load(outer, tmp_path / "b.pt")
    assert "rename=[r'^=>model.']" in (caught.value.hint or "")
    assert bs.load(outer, tmp_path / "b.pt", rename=["^=>model."]).is_complete


def test_a_lora_adapter_in_the_place_of_a_model_is_named(tmp_path: Path) -> None:
    names = ("q.lora_A", "q.lora_B")
    torch.save({f"base_model.model.{name}.weight": torch.zeros(2, 2) for name in names}, tmp_path / "a.pt")
    with pytest.raises(bs.errors.BurnstoreError) as caught:
        bs.load(torch.nn.ModuleDict({"q": torch.nn.Linear(2, 2)}), tmp_path / "a.pt")
    assert 'method="lora"' in (caught.value.hint or "")

    def wrapped(inner: Any, *names: str) -> Any:
        return wrapped(torch.nn.ModuleDict({names[-1]: inner}), *names[:-1]) if names else inner

    lora = {name: torch.nn.ModuleDict({"default": torch.nn.Linear(2, 2, bias=False)}) for name in ("lora_A", "lora_B")}
    model = wrapped(torch.nn.ModuleDict({"base_layer": torch.nn.Linear(2, 2), **lora}), "base_model", "model", "q")
    found = bs.load(model, tmp_path / "a.pt", allow_partial=True, allow_empty=True)
    rename = found.notes[-1].partition("rename=[r'")[2].partition("']")[0]
    done = bs.load(model, tmp_path / "a.pt", allow_partial=True, rename=[rename])
    assert len(done.applied) == 2 and not done.unused


@pytest.mark.parametrize(
    ("head", "hint"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
    ],
)
def test_what_people_have_in_the_place_of_a_file_is_named(tmp_path: Path, head: bytes, hint: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(head + bytes(64))
    with pytest.raises(bs.errors.UnknownFormatError) as caught:
        bs.open(tmp_path / "model.safetensors")
    assert hint in (caught.value.hint or "")


def test_known_classes_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "norm": _layer(LLAMA, "LlamaRMSNorm", monkeypatch, weight=(4,)),
        "router": _layer(MIXTRAL, "MixtralTopKRouter", monkeypatch, weight=(3, 4)),
        "attention": _layer(GPT2, "Conv1D", monkeypatch, weight=(4, 4), bias=(4,)),
    }
    net = torch.nn.ModuleDict(made)
    torch.save(net, tmp_path / "net.pt")
    found = _burn(tmp_path / "net.pt")
    weights = {name: module.weight.detach().numpy() for name, module in made.items()}
    assert (found["norm.gamma"] == weights["norm"]).all()
    assert (found["router.weight"] == weights["router"].T).all()
    assert (found["attention.weight"] == weights["attention"]).all()  # Burn's Linear has these axes
    bs.save(net, tmp_path / "live.bpk")
    assert bs.diff(tmp_path / "net.bpk", tmp_path / "live.bpk").is_equal
    bs.convert(tmp_path / "net.bpk", tmp_path / "back.safetensors", target_layout="torch")
    with bs.open(tmp_path / "back.safetensors") as f:
        for name, tensor in net.state_dict().items():
            assert torch.equal(f[name].torch(), tensor), name


@pytest.mark.parametrize(
    ("module", "name", "base"), [(GEMMA, "GemmaRMSNorm", None), (NEMOTRON, "NemotronLayerNorm1P", "LayerNorm")]
)
def test_a_norm_that_adds_one_is_never_a_plain_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, base: str | None
) -> None:
    norm = _layer(module, name, monkeypatch, weight=(4,))
    if base is not None:
        made = type(name, (torch.nn.LayerNorm,), {"__module__": module, "__qualname__": name})
        monkeypatch.setattr(sys.modules[module], name, made)
        norm = made(4)
    net = torch.nn.ModuleDict({"norm": norm})
    torch.save(net, tmp_path / "net.pt")
    for convert in (lambda: _burn(tmp_path / "net.pt"), lambda: bs.save(net, tmp_path / "a.bpk")):
        with pytest.raises(bs.errors.ModelError, match=r"multiplies by 1 \+ weight") as caught:
            convert()
        assert caught.value.tensor == "norm" and "add_one = true" in (caught.value.hint or "")
    assert "norm.weight" in _burn(tmp_path / "net.pt", rules={"^norm$": "AsIs"})


def test_a_known_name_with_other_tensors_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norm = _layer(LLAMA, "LlamaRMSNorm", monkeypatch, weight=(2, 4))
    assert kind_of(norm) is None
    assert kind_of_class(LLAMA, "LlamaRMSNorm", {"weight": (4,), "shift": (4,)}) is None
    assert kind_of_class("mine.models.llama", "LlamaRMSNorm", {"weight": (4,)}) is None
    torch.save(torch.nn.ModuleDict({"norm": norm}), tmp_path / "net.pt")
    with pytest.raises(bs.errors.ModelError, match="a saved LlamaRMSNorm"):
        _burn(tmp_path / "net.pt")


def test_weight_norm_is_refused_with_the_line_that_folds_it(tmp_path: Path) -> None:
    from torch.nn.utils.parametrizations import weight_norm

    torch.manual_seed(0)
    net = torch.nn.Sequential(weight_norm(torch.nn.Conv1d(2, 3, 3)))
    torch.save(net.state_dict(), tmp_path / "net.pt")
    plain = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3))
    attempts = [
        lambda: bs.save(net, tmp_path / "a.bpk"),
        lambda: bs.convert(tmp_path / "net.pt", tmp_path / "a.bpk"),
        lambda: bs.convert(tmp_path / "net.pt", tmp_path / "a.bpk", guess=True),
        lambda: bs.convert(tmp_path / "net.pt", tmp_path / "a.bpk", like=plain),
        lambda: bs.load(plain, tmp_path / "net.pt"),
    ]
    for attempt in attempts:
        with pytest.raises(bs.errors.BurnstoreError) as caught:
            attempt()
        line = (caught.value.hint or "").partition("with the line ")[2]
        assert "fold_weight_norm = { axis = 0 }" in line
        (tmp_path / "rules.toml").write_text(line)
        bs.load(plain, tmp_path / "net.pt", rules=tmp_path / "rules.toml")
        assert torch.allclose(plain[0].weight, net[0].weight)


def test_the_count_of_batches_survives_without_the_model(tmp_path: Path) -> None:
    norm = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    norm[0].num_batches_tracked += 7
    torch.save(norm.state_dict(), tmp_path / "a.pt")
    other = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    for number, options in enumerate(({"guess": True}, {"rules": {"^0$": "BatchNorm1d"}}, {"like": other})):
        bs.convert(tmp_path / "a.pt", tmp_path / f"{number}.bpk", **options)
        bs.convert(tmp_path / f"{number}.bpk", tmp_path / f"{number}.safetensors", target_layout="torch")
        with bs.open(tmp_path / f"{number}.safetensors") as f:
            assert f["0.num_batches_tracked"].numpy() == 7


def _counting(**counts: int) -> Any:
    net = torch.nn.ModuleDict({name: torch.nn.BatchNorm1d(2) for name in counts})
    for name, count in counts.items():
        net[name].num_batches_tracked.fill_(count)
    return net


def test_recorded_counts_follow_their_renamed_modules(tmp_path: Path) -> None:
    bs.save(_counting(a=7, b=9), tmp_path / "net.bpk")
    swap = [r"^a\.=>c.", r"^b\.=>a.", r"^c\.=>b."]
    net = _counting(a=0, b=0)
    bs.load(net, tmp_path / "net.bpk", rename=swap)
    assert (int(net["a"].num_batches_tracked), int(net["b"].num_batches_tracked)) == (9, 7)
    outer = torch.nn.ModuleDict({"model": _counting(a=0, b=0)})
    assert not bs.load(outer, tmp_path / "net.bpk", rename=["^=>model."]).notes
    assert int(outer["model"]["a"].num_batches_tracked) == 7
    for options in ({"like": net}, {}):
        made = tmp_path / "net.safetensors"
        bs.convert(tmp_path / "net.bpk", made, target_layout="torch", rename=swap, overwrite=True, **options)
        with bs.open(made) as f:
            assert (f["a.num_batches_tracked"].numpy(), f["b.num_batches_tracked"].numpy()) == (9, 7)


def test_renamed_modules_keep_their_classes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Net()
    torch.save(net, tmp_path / "net.pt")
    renames = [r"^=>model.", r"^model\.(tokens)\.=>${1}_table.", r"^model\.body\.=>model.mlp."]
    bs.convert(tmp_path / "net.pt", tmp_path / "a.bpk", rename=renames[:1])
    outer = torch.nn.ModuleDict({"model": net})
    bs.save(outer, tmp_path / "b.bpk")
    assert bs.diff(tmp_path / "a.bpk", tmp_path / "b.bpk").is_equal
    assert bs.diff(tmp_path / "net.pt", tmp_path / "b.bpk", rename=renames[:1]).is_equal
    del net.norm  # Where it goes if the modules around it part, nothing states.
    torch.save(net, tmp_path / "net.pt")
    bs.convert(tmp_path / "net.pt", tmp_path / "c.bpk", rename=renames)
    moved = torch.nn.ModuleDict({"model": net, "tokens_table": net.tokens})
    net.mlp = net.body
    del net.body, net.tokens
    bs.save(moved, tmp_path / "d.bpk")
    assert bs.diff(tmp_path / "c.bpk", tmp_path / "d.bpk").is_equal


def test_swapped_names_carry_their_classes_with_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4, bias=False), "b": torch.nn.Embedding(4, 4)})
    torch.save(net, tmp_path / "net.pt")
    swap = {"a.weight": "b.weight", "b.weight": "a.weight"}
    found = _burn(tmp_path / "net.pt", rename=swap)
    assert (found["b.weight"] == net["a"].weight.detach().numpy().T).all()
    assert (found["a.weight"] == net["b"].weight.detach().numpy()).all()
    assert bs.diff(tmp_path / "net.pt", tmp_path / "net.bpk", rename=swap).is_equal


@pytest.mark.parametrize("rename", [r"^body\.0\.=>first.", r"\.in_proj_=>.joined_", r"^tokens\.weight$=>table"])
def test_renames_within_a_layer_or_a_numbered_list_are_refused(tmp_path: Path, rename: str) -> None:
    torch.save(Net(), tmp_path / "net.pt")
    with pytest.raises(bs.errors.ModelError, match="the renames change names within a layer"):
        _burn(tmp_path / "net.pt", rename=[rename])


def test_a_tensor_that_like_lacks_is_named_with_a_way_out(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    torch.save({**net.state_dict(), "extra.weight": torch.zeros(2)}, tmp_path / "a.pt")
    for suffix in (".bpk", ".safetensors"):
        with pytest.raises(bs.errors.ModelError, match="given as like, has no such tensor") as caught:
            bs.convert(tmp_path / "a.pt", tmp_path / f"b{suffix}", like=net)
        assert "like=" not in (caught.value.hint or "") and caught.value.tensor == "extra.weight"
    bs.convert(tmp_path / "a.pt", tmp_path / "b.bpk", like=net, filter=r"^0\.")
