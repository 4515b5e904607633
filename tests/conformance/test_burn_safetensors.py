"""What Burn's own tests ask of SafetensorsStore: adapters, direct access, files, filters, texts, dtypes, imports."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as package_load

import burnstore as bs
from burnstore import (
    BurnToPyTorchAdapter,
    DType,
    HalfPrecisionAdapter,
    PathFilter,
    PyTorchToBurnAdapter,
    SafetensorsStore,
    TensorSnapshot,
    nn,
)
from burnstore.errors import AlreadyExistsError, LoadError, MissingTensorsError
from store_options import configured


class Nested(nn.Module):
    def __init__(self) -> None:
        self.gamma = nn.Param([2])
        self.beta = nn.Param([2])


class Model(nn.Module):
    def __init__(self) -> None:
        self.weight = nn.Param([2, 2])
        self.bias = nn.Param([2])
        self.nested = Nested()


class Layers(nn.Module):
    """An encoder, a decoder and a list: fourteen tensors."""

    def __init__(self) -> None:
        self.encoder = Coder()
        self.decoder = Coder()
        self.layers = [nn.Linear(2, 3)]


class Coder(nn.Module):
    def __init__(self) -> None:
        self.linear = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.scale = nn.Param([2, 2, 2])
        self.shift = nn.Param([1])


NAMES = ["bias", "nested.beta", "nested.gamma", "weight"]


def filled(model: Any, start: float = 1.0) -> Any:
    """The model with numbers in it that are nowhere else in it."""
    given = []
    for snapshot in bs.collect(model):
        count = int(np.prod(snapshot.shape))
        array = np.arange(start, start + count).reshape(snapshot.shape)
        given.append(TensorSnapshot.from_numpy(snapshot.path, array.astype(snapshot.dtype.numpy)))
        start += count
    bs.apply(model, given)
    return model


def arrays(model: Any) -> dict[str, Any]:
    return {snapshot.path: snapshot.numpy() for snapshot in bs.collect(model)}


def same(first: Any, second: Any) -> bool:
    one, other = arrays(first), arrays(second)
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def packed(model: Any, **options: Any) -> bytes:
    store = configured(SafetensorsStore.from_bytes(None), **options)
    store.save(model)
    return store.get_bytes()


def a_store(where: str, tmp_path: Path, model: Any) -> SafetensorsStore:
    if where == "memory":
        return SafetensorsStore.from_bytes(packed(model))
    path = tmp_path / "model.safetensors"
    SafetensorsStore.from_file(path).durable(False).save(model)
    return SafetensorsStore.from_file(path)


# --- adapters ---------------------------------------------------------------------------------------------------------


def test_saved_for_pytorch_and_loaded_from_it_the_weights_are_equal() -> None:
    given, target = filled(nn.Linear(2, 3)), nn.Linear(2, 3)
    data = packed(given, to_adapter=BurnToPyTorchAdapter)
    assert np.array_equal(package_load(data)["weight"], arrays(given)["weight"].T)
    SafetensorsStore.from_bytes(data).with_from_adapter(PyTorchToBurnAdapter).load(target)
    assert same(given, target)


def test_a_file_that_an_adapter_gave_pytorch_s_form_says_so() -> None:
    data = packed(filled(nn.Linear(2, 3)), to_adapter=BurnToPyTorchAdapter)
    with bs.open(data) as f:
        assert f.layout == "torch"
    target = nn.Linear(2, 3)
    SafetensorsStore.from_bytes(data).load(target)  # no adapter: the file tells
    assert same(filled(nn.Linear(2, 3)), target)


def test_names_that_only_look_like_those_of_norms_stay() -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            self.norm_gamma = nn.Param([3])
            self.norm_beta = nn.Param([3])

    given, target = filled(Custom()), Custom()
    data = packed(given, to_adapter=BurnToPyTorchAdapter)
    assert sorted(package_load(data)) == ["norm_beta", "norm_gamma"]
    SafetensorsStore.from_bytes(data).with_from_adapter(PyTorchToBurnAdapter).load(target)
    assert same(given, target)


def test_without_an_adapter_the_weights_are_the_same() -> None:
    given, target = filled(nn.Linear(2, 3)), nn.Linear(2, 3)
    data = packed(given)
    assert np.array_equal(package_load(data)["weight"], arrays(given)["weight"])
    SafetensorsStore.from_bytes(data).load(target)
    assert same(given, target)


class Precise(nn.Module):
    def __init__(self) -> None:
        self.linear = nn.Linear(2, 3)
        self.norm = nn.LayerNorm(3)
        self.raw = nn.Param([4])


@pytest.mark.parametrize(
    ("adapter", "halved"),
    [
        (HalfPrecisionAdapter(), {"linear.weight", "linear.bias", "norm.gamma", "norm.beta"}),
        (HalfPrecisionAdapter().without_module("LayerNorm"), {"linear.weight", "linear.bias"}),
    ],
    ids=["default", "without LayerNorm"],
)
def test_half_precision_is_stored_and_comes_back(adapter: HalfPrecisionAdapter, halved: set[str]) -> None:
    given, target = filled(Precise()), Precise()
    data = packed(given, to_adapter=adapter)
    with bs.open(data) as f:
        assert {name for name, t in f.items() if t.dtype is DType.F16} == halved
        assert {t.dtype for name, t in f.items() if name not in halved} == {DType.F32}
    SafetensorsStore.from_bytes(data).with_from_adapter(adapter).load(target)
    found = arrays(target)
    assert all(np.allclose(found[name], array, atol=0.01) for name, array in arrays(given).items())


# --- direct access ----------------------------------------------------------------------------------------------------

WHERE = pytest.mark.parametrize("where", ["memory", "file"])


@WHERE
def test_all_tensors_are_there_by_name(where: str, tmp_path: Path) -> None:
    store = a_store(where, tmp_path, filled(Model()))
    assert list(store.get_all_snapshots()) == NAMES
    assert list(store.get_all_tensors()) == NAMES
    assert store.keys() == NAMES


@WHERE
def test_one_tensor_is_there_by_name(where: str, tmp_path: Path) -> None:
    store = a_store(where, tmp_path, filled(Model()))
    weight, gamma = store.get_snapshot("weight"), store.get_tensor("nested.gamma")
    assert weight is not None
    assert gamma is not None
    assert (weight.shape, weight.dtype, weight.numpy().tolist()) == ((2, 2), DType.F32, [[1, 2], [3, 4]])
    assert gamma.numpy().tolist() == [7, 8]


@WHERE
def test_a_name_that_is_not_there_gives_none(where: str, tmp_path: Path) -> None:
    store = a_store(where, tmp_path, filled(Model()))
    assert store.get_snapshot("nothing") is None
    assert store.get_tensor("nothing") is None


@WHERE
def test_asking_again_gives_the_same(where: str, tmp_path: Path) -> None:
    store = a_store(where, tmp_path, filled(Model()))
    first = store.keys()
    again = store.get_all_snapshots()
    assert (store.keys(), list(again), list(store.get_all_snapshots())) == (first, first, first)
    assert store.get_snapshot("bias") is again["bias"]


def test_a_save_through_the_store_is_seen_by_its_next_read(tmp_path: Path) -> None:
    store = a_store("file", tmp_path, filled(Model())).overwrite(True).durable(False)
    assert store.get_all_snapshots()["bias"].numpy().tolist() == [5, 6]
    store.save(filled(Model(), 100.0))
    assert store.get_all_snapshots()["bias"].numpy().tolist() == [104, 105]


def test_some_prefixes_keep_their_indices() -> None:
    given = {name: np.zeros(1, np.float32) for name in ("fc.0", "fc.2", "flows.0", "flows.2", "flows.4")}
    store = SafetensorsStore.from_bytes(bs.serialize(given, format="safetensors"))
    assert store.keys() == ["fc.0", "fc.2", "flows.0", "flows.2", "flows.4"]  # off unless asked for
    store.map_indices_contiguous(True).map_indices_contiguous_except(r"^flows$")
    assert store.keys() == ["fc.0", "fc.1", "flows.0", "flows.2", "flows.4"]


def test_what_is_configured_after_a_read_counts_at_the_next() -> None:
    given = {name: np.zeros(1, np.float32) for name in ("fc.0", "fc.2")}
    store = SafetensorsStore.from_bytes(bs.serialize(given, format="safetensors"))
    seen = [store.keys()]
    seen.append(store.map_indices_contiguous(True).keys())
    seen.append(store.with_key_remapping("^fc", "linear").keys())
    assert seen == [["fc.0", "fc.2"], ["fc.0", "fc.1"], ["linear.0", "linear.1"]]


# --- errors and files -------------------------------------------------------------------------------------------------


def test_shapes_that_differ_are_reported_or_raised() -> None:
    data = packed(filled(nn.Linear(2, 3)))
    result = SafetensorsStore.from_bytes(data).validate(False).allow_partial(True).load(nn.Linear(2, 4))
    assert result.errors
    assert not result.is_success()
    with pytest.raises(LoadError):
        SafetensorsStore.from_bytes(data).load(nn.Linear(2, 4))


def test_a_file_of_any_name_is_loaded_with_its_texts(tmp_path: Path) -> None:
    path = tmp_path / "model.st"
    SafetensorsStore.from_file(path).metadata("note", "here").durable(False).save(filled(nn.Linear(2, 3)))
    assert os.listdir(tmp_path) == ["model.st"]
    target = nn.Linear(2, 3)
    assert sorted(SafetensorsStore.from_file(path).load(target).applied) == ["bias", "weight"]
    assert same(target, filled(nn.Linear(2, 3)))


def test_a_file_that_exists_is_refused_unless_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    store = SafetensorsStore.from_file(path).durable(False)
    store.save(filled(Model()))
    before = path.read_bytes()
    with pytest.raises(AlreadyExistsError, match="File already exists"):
        store.save(filled(Model(), 50.0))
    assert path.read_bytes() == before
    store.overwrite(True).save(filled(Model(), 50.0))
    target = Model()
    store.load(target)
    assert same(target, filled(Model(), 50.0))


def test_overwriting_saves_replace_the_texts(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for epochs in ("1", "2"):
        SafetensorsStore.from_file(path).overwrite(True).durable(False).metadata("epochs", epochs).save(filled(Model()))
    with bs.open(path) as f:
        assert f.metadata["epochs"] == "2"
    assert SafetensorsStore.from_file(path).load(Model()).is_success()


def test_a_loaded_model_computes_what_the_saved_one_does(tmp_path: Path) -> None:
    def forward(model: Any, x: Any) -> Any:
        return x @ arrays(model)["weight"] + arrays(model)["bias"]

    given, target, x = filled(nn.Linear(2, 3)), nn.Linear(2, 3), np.ones((1, 2), np.float32)
    assert not np.array_equal(forward(given, x), forward(target, x))
    a_store("file", tmp_path, given).load(target)
    assert np.array_equal(forward(given, x), forward(target, x))


def test_structs_lists_and_tuples_come_back(tmp_path: Path) -> None:
    class Composed(nn.Module):
        def __init__(self) -> None:
            self.model = Model()
            self.pair = (nn.Linear(2, 2), nn.LayerNorm(2))
            self.several = [nn.Param([1]), nn.Param([2])]

    given, target = filled(Composed()), Composed()
    a_store("file", tmp_path, given).load(target)
    assert same(given, target)


def test_fourteen_tensors_are_applied_and_nothing_is_left() -> None:
    result = SafetensorsStore.from_bytes(packed(filled(Layers()))).load(Layers())
    assert (len(result.applied), result.unused, result.errors, result.missing) == (14, [], [], [])
    assert result.is_success()


def test_each_tensor_is_read_from_its_own_range() -> None:
    given = {"a": np.arange(3.0), "b": np.arange(4, dtype=np.float32), "c": np.arange(5, dtype=np.int8)}
    found = SafetensorsStore.from_bytes(bs.serialize(given, format="safetensors")).get_all_tensors()
    assert {name: t.numpy().tolist() for name, t in found.items()} == {n: a.tolist() for n, a in given.items()}


def test_a_model_of_several_ranks_comes_back() -> None:
    given, target = filled(Layers()), Layers()
    result = SafetensorsStore.from_bytes(packed(given)).load(target)
    assert len(result.applied) > 5
    assert arrays(target)["encoder.scale"].shape == (2, 2, 2)
    assert same(given, target)


def test_the_target_keeps_its_ids() -> None:
    target = nn.Linear(2, 3)
    before = {snapshot.path: snapshot.param_id for snapshot in bs.collect(target)}
    SafetensorsStore.from_bytes(packed(filled(nn.Linear(2, 3)))).load(target)
    assert {snapshot.path: snapshot.param_id for snapshot in bs.collect(target)} == before


# --- filters ----------------------------------------------------------------------------------------------------------


def test_an_encoder_alone_is_saved_and_loaded() -> None:
    data = packed(filled(Layers()), regex=r"^encoder\.")
    target = Layers()
    result = SafetensorsStore.from_bytes(data).allow_partial(True).load(target)
    assert len(result.applied) == 6
    assert len(result.missing) == 8
    with pytest.raises(MissingTensorsError):
        SafetensorsStore.from_bytes(data).load(Layers())


def test_a_filter_of_a_load_applies_the_encoder_alone() -> None:
    result = (
        SafetensorsStore.from_bytes(packed(filled(Layers())))
        .with_regex(r"^encoder\.")
        .allow_partial(True)
        .load(Layers())
    )
    assert len(result.applied) == 6
    assert all(path.startswith("encoder.") for path in result.applied)


@pytest.mark.parametrize(
    ("configure", "kept"),
    [
        (lambda s: s.with_regex(r"^nested\.").with_regex("bias$"), {"nested.gamma", "nested.beta", "bias"}),
        (lambda s: s.with_regexes([r"^nested\.", "bias$"]), {"nested.gamma", "nested.beta", "bias"}),
        (lambda s: s.with_full_paths(["weight", "bias", "nested.beta"]), {"weight", "bias", "nested.beta"}),
        (lambda s: s.with_full_path("weight"), {"weight"}),
        (lambda s: s.with_predicate(lambda path, container: "weight" in path), {"weight"}),
        (lambda s: s.with_predicates([lambda p, c: p == "bias", lambda p, c: "gamma" in p]), {"bias", "nested.gamma"}),
        (
            lambda s: s.with_regex("^weight$").with_full_path("bias").with_predicate(lambda p, c: p.endswith("beta")),
            {"weight", "bias", "nested.beta"},
        ),
        (lambda s: s.with_regex("^nothing$").match_all(), set(NAMES)),
        (lambda s: s.filter(PathFilter().with_regex("a$")), {"nested.gamma", "nested.beta"}),
    ],
    ids=["patterns", "list", "paths", "path", "function", "functions", "combined", "all", "filter"],
)
def test_a_filter_saves_exactly_what_it_matches(configure: Any, kept: set[str]) -> None:
    store = configure(SafetensorsStore.from_bytes(None))
    store.save(filled(Model()))
    assert set(package_load(store.get_bytes())) == kept


# --- texts ------------------------------------------------------------------------------------------------------------


def texts(data: bytes) -> dict[str, str]:
    with bs.open(data) as f:
        return dict(f.metadata)


def test_the_stamp_of_burn_is_written() -> None:
    found = texts(packed(filled(Model())))
    assert (found["format"], found["producer"]) == ("safetensors", "burn")
    assert found["version"]


def test_more_texts_stand_beside_the_stamp() -> None:
    data = packed(filled(Model()), metadata={"author": "somebody", "epochs": "10"})
    assert texts(data).keys() == {"format", "producer", "version", "author", "epochs"}
    assert SafetensorsStore.from_bytes(data).load(Model()).is_success()


def test_cleared_texts_are_none() -> None:
    """Burn writes an empty map. Nothing else in the file would state its layout, so ours has that (decision 0028)."""
    store = SafetensorsStore.from_bytes(None).metadata("a", "b").clear_metadata()
    store.save(filled(Model()))
    assert texts(store.get_bytes()) == {"burnstore.layout": "burn"}
    assert b'{"__metadata__":{"burnstore.layout":"burn"},' in store.get_bytes()
    assert SafetensorsStore.from_bytes(store.get_bytes()).load(Model()).is_success()


def test_texts_after_clearing_stand_alone() -> None:
    store = SafetensorsStore.from_bytes(None).clear_metadata().metadata("only", "this")
    store.save(filled(Model()))
    assert texts(store.get_bytes()) == {"only": "this", "burnstore.layout": "burn"}
    assert SafetensorsStore.from_bytes(store.get_bytes()).load(Model()).is_success()


# --- dtypes -----------------------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    def __init__(self) -> None:
        self.linear = nn.Linear(2, 2)
        self.conv = nn.Conv2d([1, 2], [2, 2])
        self.cube = nn.Param([2, 2, 2])
        self.numbers = nn.Param([2, 3], dtype=DType.I32)
        self.flags = nn.Param([2, 2], dtype=DType.Bool)


def test_floats_integers_and_bools_come_back() -> None:
    given, target = filled(Mixed()), Mixed()
    bs.apply(given, [TensorSnapshot.from_numpy("flags", np.eye(2, dtype=bool))], allow_partial=True)
    SafetensorsStore.from_bytes(packed(given)).load(target)
    assert same(given, target)


def test_the_kinds_of_dtypes_are_those_of_the_model() -> None:
    found = SafetensorsStore.from_bytes(packed(filled(Mixed()))).get_all_snapshots()
    assert {name: t.dtype for name, t in found.items() if "." not in name} == {
        "cube": DType.F32, "numbers": DType.I32, "flags": DType.Bool,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (DType.F32, [np.finfo(np.float32).min, np.finfo(np.float32).max, np.finfo(np.float32).tiny, 0.0, np.inf]),
        (DType.I32, [-(2**31), 2**31 - 1, 0, -1, 1]),
        (DType.I8, [-128, 127, 0, -1, 1]),
        (DType.I16, [-(2**15), 2**15 - 1, 0, -1, 1]),
        (DType.I64, [-(2**63), 2**63 - 1, 0, -1, 1]),
    ],
    ids=str,
)
def test_extreme_numbers_come_back(dtype: DType, values: list[Any]) -> None:
    array = np.array(values, dtype.numpy)
    given = bs.serialize({"t": array}, format="safetensors")
    target = {"t": np.zeros(5, dtype.numpy)}
    SafetensorsStore.from_bytes(given).load(target)
    assert np.array_equal(target["t"], array)


def test_a_parameter_takes_the_precision_of_the_file() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            self.t = nn.Param([2])

    target = One()
    SafetensorsStore.from_bytes(bs.serialize({"t": np.array([0.1, 0.2])}, format="safetensors")).load(target)
    assert arrays(target)["t"].dtype == np.float64
    assert arrays(target)["t"].tolist() == [0.1, 0.2]


# --- files of PyTorch -------------------------------------------------------------------------------------------------


class MultiLayer(nn.Module):
    def __init__(self) -> None:
        self.conv1 = nn.Conv2d([3, 4], [3, 3])
        self.norm1 = nn.BatchNorm(4)
        self.fc1 = nn.Linear(16, 4)


@pytest.fixture
def pytorch_file(tmp_path: Path) -> tuple[Path, Any]:
    torch = pytest.importorskip("torch")
    safetensors_torch = pytest.importorskip("safetensors.torch")
    torch.manual_seed(1)
    model = torch.nn.Module()
    model.conv1 = torch.nn.Conv2d(3, 4, 3)
    model.norm1 = torch.nn.BatchNorm2d(4)
    model.fc1 = torch.nn.Linear(16, 4)
    model.norm1.running_mean.uniform_()
    state = {name: value for name, value in model.state_dict().items() if "num_batches" not in name}
    path = tmp_path / "multi_layer.safetensors"
    safetensors_torch.save_file(state, path)  # no texts: PyTorch's form must be told by the adapter
    return path, model


def test_a_pytorch_file_is_imported_strictly_with_the_adapter(pytorch_file: tuple[Path, Any]) -> None:
    path, model = pytorch_file
    target = MultiLayer()
    result = SafetensorsStore.from_file(path).with_from_adapter(PyTorchToBurnAdapter).load(target)
    assert (result.errors, result.missing, result.unused) == ([], [], [])
    found = arrays(target)
    assert np.array_equal(found["conv1.weight"], model.conv1.weight.detach().numpy())
    assert np.array_equal(found["norm1.gamma"], model.norm1.weight.detach().numpy())
    x = np.linspace(-1, 1, 16, dtype=np.float32)[None]
    import torch

    expected = model.fc1(torch.from_numpy(x)).detach().numpy()
    assert np.allclose(x @ found["fc1.weight"] + found["fc1.bias"], expected, atol=1e-6)


def test_an_imported_model_saved_and_loaded_again_is_the_same(pytorch_file: tuple[Path, Any]) -> None:
    imported, target = MultiLayer(), MultiLayer()
    SafetensorsStore.from_file(pytorch_file[0]).with_from_adapter(PyTorchToBurnAdapter).load(imported)
    SafetensorsStore.from_bytes(packed(imported)).load(target)
    assert same(imported, target)


def test_without_the_adapter_the_layout_is_proved_by_names_and_noted(pytorch_file: tuple[Path, Any]) -> None:
    model = MultiLayer()
    result = SafetensorsStore.from_file(pytorch_file[0]).load(model)
    assert result.is_complete and any("taken as PyTorch's" in note for note in result.notes)
    expected = MultiLayer()
    SafetensorsStore.from_file(pytorch_file[0]).with_from_adapter(PyTorchToBurnAdapter).load(expected)
    assert same(model, expected)


def test_in_the_wrong_layout_something_is_applied_and_the_rest_reported(pytorch_file: tuple[Path, Any]) -> None:
    store = SafetensorsStore.from_file(pytorch_file[0]).layout("burn")
    result = store.validate(False).allow_partial(True).load(MultiLayer())
    assert "conv1.weight" in result.applied
    assert [error.path for error in result.errors] == ["fc1.weight"]
    assert "norm1.gamma" in result.missing


def test_the_names_of_a_pytorch_file_are_there(pytorch_file: tuple[Path, Any]) -> None:
    keys = SafetensorsStore.from_file(pytorch_file[0]).keys()
    assert {key.split(".")[0] for key in keys} == {"conv1", "norm1", "fc1"}


# --- saving is whole or nothing ---------------------------------------------------------------------------------------


class Failing(nn.Module):
    """A model whose second tensor cannot be drawn."""


def failing(path: str) -> list[TensorSnapshot]:
    def fail() -> Any:
        raise RuntimeError("the device is gone")

    return [
        TensorSnapshot.from_numpy("first", np.ones(10, np.float32)),
        TensorSnapshot.from_closure(path, DType.F32, [10], fail),
    ]


def test_a_tensor_that_fails_says_why_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    bs.save({"old": np.zeros(3)}, path, durable=False)
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="the device is gone"):
        bs.save(failing("second"), path, overwrite=True, durable=False)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        bs.save(failing("second"), tmp_path / "model.safetensors", durable=False)
    assert os.listdir(tmp_path) == []


def test_a_save_is_one_file_that_loads(tmp_path: Path) -> None:
    target = Model()
    a_store("file", tmp_path, filled(Model())).load(target)
    assert os.listdir(tmp_path) == ["model.safetensors"]
    assert same(target, filled(Model()))


def test_a_save_keeps_the_permissions_of_the_file_that_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    store = SafetensorsStore.from_file(path).durable(False).overwrite(True)
    store.save(filled(Model()))
    path.chmod(0o600)
    store.save(filled(Model(), 7.0))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"

    def plant() -> Any:
        path.write_bytes(b"planted")
        return np.ones(3, np.float32)

    with pytest.raises(AlreadyExistsError, match="File already exists"):
        bs.save([TensorSnapshot.from_closure("t", DType.F32, [3], plant)], path, durable=False)
    assert path.read_bytes() == b"planted"
    assert os.listdir(tmp_path) == [path.name]


def test_every_option_is_a_keyword_too() -> None:
    store = configured(
        SafetensorsStore.from_bytes(None), metadata={"a": "b"}, regex="^weight$", overwrite=True, validate=False
    )
    store.save(filled(Model()))
    assert set(package_load(store.get_bytes())) == {"weight"}
    assert texts(store.get_bytes())["a"] == "b"
    with pytest.raises(TypeError):
        store.metadata("a", 1)  # type: ignore[arg-type]
