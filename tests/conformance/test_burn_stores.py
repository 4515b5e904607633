"""What Burn's own tests ask of BurnpackStore: through memory, files and static bytes, filtered, renamed, adapted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import BurnpackStore, DType, PathFilter, TensorData, TensorSnapshot, nn
from burnstore.errors import AlreadyExistsError, MissingTensorsError
from burnstore.stores import base as stores
from burnstore.tensor.quantization import QuantBlock, QuantizedTensor, QuantScheme, QuantStore, encode
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


NAMES = ["bias", "nested.beta", "nested.gamma", "weight"]


def filled(value: float = 1.0) -> Model:
    model = Model()
    bs.apply(model, [TensorSnapshot.from_numpy(t.path, np.full(t.shape, value, np.float32)) for t in bs.collect(model)])
    return model


def zeros() -> Model:
    return filled(0.0)


def values(model: Any) -> dict[str, float]:
    return {t.path: float(t.numpy().ravel()[0]) for t in bs.collect(model)}


def packed(model: Any = None, **options: Any) -> bytes:
    store = configured(BurnpackStore.from_bytes(None), **options)
    store.save(filled() if model is None else model)
    return store.get_bytes()


# --- loading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "configure",
    [
        lambda store: store,
        lambda store: store.match_all(),
        lambda store: store.validate(True),
        lambda store: store.validate(False),
        lambda store: store.with_regex("^nothing$").match_all(),
    ],
    ids=["plain", "match all", "validate", "no validation", "match all after a pattern"],
)
@pytest.mark.parametrize(
    "data",
    [
        lambda: packed(),
        lambda: packed(metadata={"epochs": "10", "author": "somebody"}),
        lambda: BurnpackStore.from_bytes(None).clear_metadata(),
    ],
    ids=["default metadata", "more metadata", "no metadata"],
)
def test_everything_is_applied_whatever_the_texts_beside_the_tensors(data: Any, configure: Any) -> None:
    given = data()
    if isinstance(given, BurnpackStore):
        given.save(filled())
        given = given.get_bytes()
    model = zeros()
    result = configure(BurnpackStore.from_bytes(given)).load(model)
    assert (len(result.applied), result.unused, result.missing, result.errors) == (4, [], [], [])
    assert set(values(model).values()) == {1.0}


@pytest.mark.parametrize(
    ("configure", "kept"),
    [
        (lambda store: store.with_regex(r"^nested\."), {"nested.gamma", "nested.beta"}),
        (lambda store: store.with_full_path("weight").with_full_path("nested.beta"), {"weight", "nested.beta"}),
        (lambda store: store.filter(PathFilter().with_regex("bias|weight")), {"weight", "bias"}),
    ],
    ids=["regex", "paths", "filter"],
)
def test_a_filter_applies_some_and_skips_the_others(configure: Any, kept: set[str]) -> None:
    model = zeros()
    result = configure(BurnpackStore.from_bytes(packed())).load(model)
    assert (set(result.applied), set(result.skipped)) == (kept, set(NAMES) - kept)
    assert {path for path, value in values(model).items() if value} == kept


@pytest.mark.parametrize("how", ["remap", "with_remap_pattern"])
def test_renamed_tensors_miss_their_parameters_and_are_unused(how: str) -> None:
    store = BurnpackStore.from_bytes(packed()).allow_partial(True)
    if how == "remap":
        store.remap(bs.KeyRemapper().add_pattern(r"^nested\.", "renamed."))
    else:
        store.with_remap_pattern(r"^nested\.", "renamed.")
    result = store.load(zeros())
    assert (len(result.applied), result.unused) == (2, ["renamed.beta", "renamed.gamma"])
    assert result.missing == ["nested.beta", "nested.gamma"]


def test_what_was_left_out_of_the_file_is_missing_and_needs_allow_partial() -> None:
    data = packed(regex=r"^(weight)$")
    with pytest.raises(MissingTensorsError, match="Missing tensors"):
        BurnpackStore.from_bytes(data).load(zeros())
    result = BurnpackStore.from_bytes(data).allow_partial(True).load(zeros())
    assert (result.applied, len(result.missing)) == (["weight"], 3)


@pytest.mark.parametrize("where", ["memory", "file"])
def test_what_a_layer_computes_is_the_same_after_saving_and_loading(where: str, tmp_path: Path) -> None:
    def forward(layer: nn.Linear, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x @ layer.weight.value + layer.bias.value

    source, target = nn.Linear(8, 4), nn.Linear(8, 4)
    x = np.random.default_rng(0).random((3, 8), np.float32)
    expected = forward(source, x)
    assert not np.array_equal(forward(target, x), expected)
    path = tmp_path / "model.bpk"
    if where == "file":
        bs.save(source, path)
        BurnpackStore.from_file(path).load(target)
    else:
        BurnpackStore.from_bytes(packed(source)).load(target)
    assert np.array_equal(forward(target, x), expected)


def test_what_the_filter_skips_is_not_drawn_until_it_is_used() -> None:
    model = Model()
    BurnpackStore.from_bytes(packed()).with_regex(r"^nested").load(model)
    assert model.nested.gamma.is_initialized and not model.weight.is_initialized
    assert model.weight.value.shape == (2, 2) and model.weight.is_initialized


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_model_goes_through_a_file_named_without_extension(tmp_path: Path) -> None:
    BurnpackStore.from_file(tmp_path / "model").metadata("a", "b").save(filled(2.0))
    assert os.listdir(tmp_path) == ["model.bpk"]
    model = zeros()
    assert BurnpackStore.from_file(tmp_path / "model").load(model).is_complete
    assert set(values(model).values()) == {2.0}


def test_a_refused_save_leaves_the_file_and_overwriting_replaces_it_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"
    BurnpackStore.from_file(path).save(filled(1.0))
    before = path.read_bytes()
    with pytest.raises(AlreadyExistsError, match="File already exists"):
        BurnpackStore.from_file(path).save(filled(2.0))
    assert path.read_bytes() == before
    for epoch in ("1", "2"):
        BurnpackStore.from_file(path).overwrite(True).metadata("epoch", epoch).save(filled(float(epoch)))
        model = zeros()
        BurnpackStore.from_file(path).load(model)
        with bs.open(path) as f:
            assert (f.metadata["epoch"], set(values(model).values())) == (epoch, {float(epoch)})


def test_a_file_that_appears_while_a_model_is_saved_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "model.bpk"

    class Planting(bs.ModuleAdapter):
        def adapt(self, snapshot: TensorSnapshot) -> TensorSnapshot:
            def provide() -> Any:
                path.write_bytes(b"somebody else's")
                return snapshot.numpy()

            return TensorSnapshot.from_closure(snapshot.path, snapshot.dtype, snapshot.shape, provide)

    with pytest.raises(AlreadyExistsError):
        BurnpackStore.from_file(path).with_to_adapter(Planting()).save(filled())
    assert path.read_bytes() == b"somebody else's" and os.listdir(tmp_path) == ["model.bpk"]


def test_a_dangling_link_counts_as_existing_and_stays(tmp_path: Path) -> None:
    (tmp_path / "model.bpk").symlink_to(tmp_path / "nowhere")
    with pytest.raises(AlreadyExistsError):
        BurnpackStore.from_file(tmp_path / "model").save(filled())
    assert (tmp_path / "model.bpk").is_symlink() and os.listdir(tmp_path) == ["model.bpk"]


# --- single tensors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "file"])
def test_tensors_are_found_by_name_without_a_model(where: str, tmp_path: Path) -> None:
    data = packed()
    (tmp_path / "model.bpk").write_bytes(data)
    store = BurnpackStore.from_bytes(data) if where == "memory" else BurnpackStore.from_file(tmp_path / "model.bpk")
    assert store.keys() == NAMES == list(store.get_all_snapshots()) == list(store.get_all_tensors())
    weight, gamma = store.get_snapshot("weight"), store.get_tensor("nested.gamma")
    assert weight is not None and gamma is not None
    assert (weight.path, weight.shape, weight.numpy().tolist()) == ("weight", (2, 2), [[1, 1], [1, 1]])
    assert (gamma.path, gamma.shape, gamma.to_data().numpy().tolist()) == ("nested.gamma", (2,), [1, 1])
    assert store.get_snapshot("nothing") is None and store.get_tensor("nothing") is None


def test_tensors_are_found_under_their_new_names_and_in_spite_of_a_filter() -> None:
    store = BurnpackStore.from_bytes(packed()).with_key_remapping(r"^nested\.", "inner.").with_regex("^weight$")
    assert store.keys() == ["bias", "inner.beta", "inner.gamma", "weight"]
    assert store.get_tensor("inner.gamma") is not None and store.get_tensor("nested.gamma") is None


def test_a_file_is_opened_once_for_many_questions_and_anew_after_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    real = stores.open_checkpoint
    monkeypatch.setattr(stores, "open_checkpoint", lambda *given, **more: opened.append(given) or real(*given, **more))
    store = BurnpackStore.from_file(tmp_path / "model.bpk").overwrite(True)
    store.save(filled(1.0))
    for _ in range(2):
        assert store.keys() == NAMES and list(store.get_all_snapshots()) == NAMES
        assert store.get_snapshot("bias").numpy()[0] == 1
    assert len(opened) == 1
    store.save(filled(2.0))
    assert store.get_snapshot("bias").numpy()[0] == 2 and len(opened) == 2


def test_index_mapping_spares_a_kept_prefix_in_the_keys() -> None:
    names = ["fc.0", "fc.2", "flows.0", "flows.2", "flows.4"]
    store = BurnpackStore.from_bytes(packed({name: np.zeros(1, np.float32) for name in names}))
    assert store.map_indices_contiguous(True).keys() == ["fc.0", "fc.1", "flows.0", "flows.1", "flows.2"]
    assert store.map_indices_contiguous_except("^flows$").keys() == ["fc.0", "fc.1", "flows.0", "flows.2", "flows.4"]
    assert store.with_key_remapping("^fc", "flows.x").keys() == [
        "flows.0",
        "flows.2",
        "flows.4",
        "flows.x.0",
        "flows.x.1",
    ]


# --- without a model --------------------------------------------------------------------------------------------------


def test_snapshots_are_written_and_read_back_without_a_model() -> None:
    given = [
        TensorSnapshot.from_numpy("zebra", np.float32([1, 2]), param_id=1),
        TensorSnapshot.from_closure("alpha", DType.I64, [2], lambda: np.int64([3, 4])),
    ]
    data = bs.serialize(given, format="burnpack", metadata={"a": "b"}, layout="burn")
    found = BurnpackStore.from_bytes(data).get_all_snapshots()
    assert {name: t.numpy().tolist() for name, t in found.items()} == {"alpha": [3, 4], "zebra": [1, 2]}
    assert list(found) == ["alpha", "zebra"] and dict(bs.open(data).metadata) == {"a": "b"}


def quantized(shape: tuple[int, ...], scheme: QuantScheme) -> TensorData:
    rng = np.random.default_rng(0)
    grid = (1,)
    if scheme.block is not None:
        grid = (*shape[:-1], shape[-1] // scheme.block.size[0])
    limit = 2 ** (scheme.value_bits - 1) - 1
    codes = rng.integers(-limit, limit + 1, shape).astype(np.int8)
    tensor = QuantizedTensor(codes, rng.random(grid, np.float32) + 1, None, scheme, shape)
    return TensorData.from_bytes(encode(tensor), DType.qfloat(scheme), shape)


@pytest.mark.parametrize(
    ("shape", "scheme"),
    [
        ((512, 512), QuantScheme("Q8S", QuantStore("Native"))),
        ((128, 128), QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((32,), "F32"))),
        ((5, 5), QuantScheme("Q4S", QuantStore("PackedU32"))),
    ],
    ids=["per tensor", "per block", "packed"],
)
def test_a_quantized_parameter_goes_through_a_store_and_stays_quantized(
    shape: tuple[int, int], scheme: QuantScheme
) -> None:
    source, target = nn.Linear(*shape), nn.Linear(*shape)
    source.weight.set(quantized(shape, scheme))
    data = packed(source)
    stored = BurnpackStore.from_bytes(data).get_snapshot("weight")
    assert stored is not None and stored.shape == shape and stored.dtype is DType.qfloat(scheme)
    assert BurnpackStore.from_bytes(data).load(target).is_complete
    assert target.weight.dtype is DType.qfloat(scheme)
    assert np.array_equal(target.weight.value, source.weight.value)
    assert packed(target) == data


# --- half precision ---------------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    def __init__(self) -> None:
        self.linear = nn.Linear(4, 2)
        self.norm = nn.LayerNorm(2)
        self.bn = nn.BatchNorm(2)


@pytest.mark.parametrize(
    ("adapter", "halved"),
    [
        (lambda: bs.HalfPrecisionAdapter(), {"linear", "norm"}),
        (lambda: bs.HalfPrecisionAdapter().without_module("LayerNorm"), {"linear"}),
        (lambda: bs.HalfPrecisionAdapter().with_module("BatchNorm"), {"linear", "norm", "bn"}),
    ],
    ids=["default", "without LayerNorm", "with BatchNorm"],
)
def test_half_precision_is_stored_for_its_modules_and_comes_back(adapter: Any, halved: set[str]) -> None:
    source, target = Mixed(), Mixed()
    store = BurnpackStore.from_bytes(None).with_to_adapter(adapter())
    store.save(source)
    stored = store.get_all_snapshots()
    assert {name.split(".")[0] for name, t in stored.items() if t.dtype is DType.F16} == halved
    assert {t.dtype for t in stored.values()} <= {DType.F16, DType.F32}
    assert BurnpackStore.from_bytes(store.get_bytes()).with_from_adapter(adapter()).load(target).is_complete
    if "bn" not in halved:
        assert {t.dtype for t in bs.collect(target)} == {DType.F32}
    assert np.allclose(target.linear.weight.value, source.linear.weight.value, atol=1e-2)


def test_half_precision_chained_with_pytorchs_form_and_back() -> None:
    source, target = Mixed(), Mixed()
    store = BurnpackStore.from_bytes(None).with_to_adapter(bs.BurnToPyTorchAdapter().chain(bs.HalfPrecisionAdapter()))
    store.save(source)
    weight = store.get_snapshot("linear.weight")
    assert weight is not None and (weight.dtype, weight.shape) == (DType.F16, (2, 4))
    assert {"norm.weight", "norm.bias"} <= set(store.keys())
    inverse = bs.HalfPrecisionAdapter().chain(bs.PyTorchToBurnAdapter())
    result = BurnpackStore.from_bytes(store.get_bytes()).with_from_adapter(inverse).load(target)
    assert result.is_complete and result.unused == []
    assert target.linear.weight.dtype is DType.F32
    assert np.allclose(target.linear.weight.value, source.linear.weight.value, atol=1e-2)


# --- shared memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "shares"),
    [
        (lambda data, path: BurnpackStore.from_static(data), True),
        (lambda data, path: BurnpackStore.from_bytes(data).zero_copy(True), True),
        (lambda data, path: BurnpackStore.from_static(data).zero_copy(False), False),
        (lambda data, path: BurnpackStore.from_bytes(data), False),
        (lambda data, path: BurnpackStore.from_file(path).zero_copy(True), True),
        (lambda data, path: BurnpackStore.from_file(path), False),
    ],
    ids=["static", "bytes shared", "static copied", "bytes", "file mapped", "file read"],
)
def test_memory_is_shared_where_asked_for_and_the_values_are_the_same(make: Any, shares: bool, tmp_path: Path) -> None:
    data = packed(filled(3.0))
    (tmp_path / "model.bpk").write_bytes(data)
    model = zeros()
    assert make(data, tmp_path / "model.bpk").load(model).is_complete
    assert set(values(model).values()) == {3.0}
    assert model.weight.value.flags.writeable is not shares
    snapshots = make(data, tmp_path / "model.bpk").get_all_snapshots()
    assert [t.to_bytes() for t in snapshots.values()] == [t.numpy().tobytes() for t in snapshots.values()]
