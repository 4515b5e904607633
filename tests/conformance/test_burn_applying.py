"""What Burn's own tests ask of applying: dtypes, ids, norms by their other names, failures, the policies of records."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import burnstore as bs
from burnstore import DType, PathFilter, TensorSnapshot, nn
from burnstore.errors import LoadError, MissingTensorsError
from burnstore.models.result import similarity

pytestmark = pytest.mark.filterwarnings("ignore::burnstore.errors.BurnstoreWarning")


def tensor(path: str, array: Any, **facts: Any) -> TensorSnapshot:
    return TensorSnapshot.from_numpy(path, np.asarray(array), **facts)


class Root(nn.Module):
    def __init__(self) -> None:
        self.weight = nn.Param([2, 2])
        self.bias = nn.Param([2])


def test_parameters_of_the_root_are_applied() -> None:
    model = Root()
    result = bs.apply(model, [tensor("weight", np.float32([[1, 2], [3, 4]])), tensor("bias", np.float32([5, 6]))])
    assert (len(result.applied), result.errors) == (2, [])
    assert (model.weight.value.tolist(), model.bias.value.tolist()) == ([[1, 2], [3, 4]], [5, 6])


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name
)
def test_a_float_parameter_takes_the_precision_of_the_source(dtype: Any) -> None:
    values = np.array([[1.5, -2.25], [1 / 3, 1e-3]]).astype(dtype)
    model = Root()
    source = tensor("weight", values)
    assert source.to_data().dtype is source.dtype is DType.of(np.dtype(dtype))
    assert bs.apply(model, [source]).applied == ["weight"]
    assert model.weight.dtype is DType.of(np.dtype(dtype))
    assert model.weight.value.tobytes() == values.tobytes()


class Norms(nn.Module):
    def __init__(self) -> None:
        self.norm = nn.RmsNorm(3)


class Outer(nn.Module):
    def __init__(self) -> None:
        self.encoder = Norms()


@pytest.mark.parametrize(("model", "prefix"), [(Norms, ""), (Outer, "encoder.")], ids=["root", "nested"])
def test_a_norm_takes_its_parameter_by_pytorchs_name(model: type[nn.Module], prefix: str) -> None:
    target = model()
    result = bs.apply(
        target, [tensor(f"{prefix}norm.weight", np.float32([1, 2, 3]))], adapter=bs.PyTorchToBurnAdapter()
    )
    assert (result.applied, result.missing, result.unused) == ([f"{prefix}norm.gamma"], [], [])
    assert bs.collect(target)[0].numpy().tolist() == [1, 2, 3]


def test_a_stored_id_replaces_the_targets_and_an_absent_one_does_not() -> None:
    model = Root()
    model.weight.id = model.bias.id = bs.ParamId(7)
    bs.apply(model, [tensor("weight", np.zeros((2, 2), "f4"), param_id=42), tensor("bias", np.zeros(2, "f4"))])
    assert (model.weight.id, model.bias.id) == (42, 7)


def test_a_tensor_that_cannot_be_read_is_reported_and_leaves_its_parameter_untouched() -> None:
    model = Root()
    model.weight.set(np.full((2, 2), 9, np.float32))

    def fail() -> Any:
        raise OSError(5, "gone")

    result = bs.apply(model, [TensorSnapshot.from_closure("weight", DType.F32, (2, 2), fail, param_id=1)])
    assert [(error.kind, error.path) for error in result.errors] == [("LoadError", "weight")]
    assert (model.weight.value == 9).all() and model.weight.id != 1
    assert result.missing == ["bias"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(3)])
def test_an_interrupt_while_reading_passes_and_leaves_the_model_untouched(interrupt: BaseException) -> None:
    def stop() -> Any:
        raise interrupt

    model = Root()
    model.weight.set(np.full((2, 2), 9, np.float32))
    with pytest.raises(type(interrupt)):
        bs.apply(
            model,
            [tensor("weight", np.zeros((2, 2), "f4")), TensorSnapshot.from_closure("bias", DType.F32, (2,), stop)],
        )
    assert (model.weight.value == 9).all()


def test_an_adapter_that_fails_leaves_the_model_untouched_and_the_process_alive() -> None:
    """Rust aborts the process there, for a module that was moved out could not be put back."""

    class Failing(bs.ModuleAdapter):
        def adapt(self, snapshot: TensorSnapshot) -> TensorSnapshot:
            if snapshot.path == "bias":
                raise RuntimeError("in the adapter")
            return snapshot

    model = Root()
    model.weight.set(np.full((2, 2), 9, np.float32))
    with pytest.raises(RuntimeError, match="in the adapter"):
        bs.apply(
            model, [tensor("weight", np.zeros((2, 2), "f4")), tensor("bias", np.zeros(2, "f4"))], adapter=Failing()
        )
    assert (model.weight.value == 9).all() and not model.bias.is_initialized


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("dixon", "dicksonx", 0.76667),
        ("a", "ab", 0.83333),
        ("dwayne", "duane", 0.82222),
        ("Friedrich Nietzsche", "Jean-Paul Sartre", 0.39189),
        ("norm.gamma", "norm.weight", 0.71515),
        ("", "", 1),
        ("", "a", 0),
        ("a", "a", 1),
        ("a", "b", 0),
    ],
)
def test_names_are_alike_by_burns_own_measure(first: str, second: str, expected: float) -> None:
    assert round(similarity(first, second), 5) == expected


# --- kinds of dtypes --------------------------------------------------------------------------------------------------


class Kinds(nn.Module):
    def __init__(self) -> None:
        self.number = nn.Param([4])
        self.count = nn.Param([4], dtype=DType.I32)
        self.flag = nn.Param([4], dtype=DType.Bool)


def refused(path: str, array: Any) -> Any:
    """The one error of applying this, after which the parameter is as it was."""
    model = Kinds()
    before = [snapshot.to_bytes() for snapshot in bs.collect(model)]
    (error,) = bs.apply(model, [tensor(path, array)]).errors
    assert [snapshot.to_bytes() for snapshot in bs.collect(model)] == before
    assert str(error) == f"DType mismatch for '{path}': expected {error.expected}, found {error.found}"
    return error


def test_an_integer_parameter_keeps_the_width_of_the_source() -> None:
    model = Kinds()
    bs.apply(model, [tensor("count", np.int64([1, 2, 3, 2**40]))])
    assert model.count.dtype is DType.I64 and model.count.value.tolist() == [1, 2, 3, 2**40]


def test_a_float_parameter_keeps_the_precision_of_the_source() -> None:
    model = Kinds()
    bs.apply(model, [tensor("number", np.float16([1, 2, 3, 0.5]))])
    assert model.number.dtype is DType.F16 and model.number.value.tolist() == [1, 2, 3, 0.5]


@pytest.mark.parametrize(
    ("path", "array", "found"),
    [
        ("count", np.zeros(4, np.float32), DType.F32),
        ("number", np.zeros(4, np.int64), DType.I64),
        ("flag", np.zeros(4, np.float32), DType.F32),
        ("flag", np.ones(4, np.int64), DType.I64),
        ("flag", np.ones(4, np.int32), DType.I32),
        ("flag", np.ones(4, np.int8), DType.I8),
        ("flag", np.ones(4, np.uint64), DType.U64),
        ("flag", np.ones(4, np.uint16), DType.U16),
        ("number", np.ones(4, bool), DType.Bool),
        ("count", np.ones(4, bool), DType.Bool),
    ],
)
def test_data_of_another_kind_is_refused_and_changes_nothing(path: str, array: Any, found: DType) -> None:
    error = refused(path, array)
    assert (error.kind, error.found) == ("DTypeMismatch", found)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, bool])
def test_a_bool_parameter_takes_every_width_that_bools_are_stored_in(dtype: Any) -> None:
    model = Kinds()
    assert bs.apply(model, [tensor("flag", np.array([1, 0, 1, 0], dtype))]).applied == ["flag"]
    assert model.flag.value.tolist() == [True, False, True, False] and model.flag.dtype.is_bool


# --- what Burn's records do -------------------------------------------------------------------------------------------


def filled(value: float = 1.0) -> Root:
    model = Root()
    for param in (model.weight, model.bias):
        param.set(np.full(param.shape, value, np.float32))
    return model


def record(model: Any) -> bytes:
    """A module's record as Burn writes it: the same container without any texts."""
    return bs.serialize(model, format="burnpack", metadata={})


def test_a_record_goes_through_memory_and_through_a_file(tmp_path: Any) -> None:
    bs.save(filled(3.0), tmp_path / "record.bpk", metadata={})
    for source in (record(filled(3.0)), tmp_path / "record.bpk"):
        model = Root()
        assert bs.load(model, source).is_complete
        assert (model.weight.value == 3).all() and (model.bias.value == 3).all()
        with bs.open(source) as f:
            assert dict(f.metadata) == {} and all(f[name].param_id is not None for name in f)


def test_a_part_of_a_model_records_its_own_parameters_only() -> None:
    with bs.open(record(Outer().encoder)) as f:
        assert list(f) == ["norm.gamma"]
    with bs.open(record([Root().bias])) as f:
        assert list(f) == ["0"]


def test_a_tensor_that_no_parameter_wants_is_reported_and_is_no_error() -> None:
    data = record({"weight": filled().weight, "bias": filled().bias, "stranger": np.zeros(1, np.float32)})
    result = bs.load(Root(), data)
    assert result.unused == ["stranger"] and result.is_complete


def test_a_missing_tensor_needs_allow_partial() -> None:
    model = filled(5.0)
    data = record({"weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(MissingTensorsError, match="bias"):
        bs.load(model, data)
    assert (model.weight.value == 5).all()
    assert bs.load(model, data, allow_partial=True).missing == ["bias"]
    assert (model.weight.value == 0).all() and (model.bias.value == 5).all()


def test_the_dtype_of_the_record_is_kept_unless_an_adapter_casts_it() -> None:
    data = record({"weight": np.ones((2, 2), np.float16), "bias": np.ones(2, np.float16)})
    kept, cast = filled(), filled()
    bs.load(kept, data)
    assert {kept.weight.dtype, kept.bias.dtype} == {DType.F16}
    bs.load(cast, data, adapter=bs.FloatCastAdapter.to(DType.F32))
    assert {cast.weight.dtype, cast.bias.dtype} == {DType.F32} and (cast.weight.value == 1).all()


def test_a_shape_that_does_not_fit_fails_unless_validation_is_off() -> None:
    data = record({"weight": np.zeros((3, 3), np.float32), "bias": np.zeros(2, np.float32)})
    model = filled(5.0)
    with pytest.raises(LoadError, match=r"Shape mismatch for 'weight': expected \[2, 2\], found \[3, 3\]"):
        bs.load(model, data)
    assert (model.bias.value == 5).all()
    result = bs.load(model, data, validate=False)
    assert ([error.path for error in result.errors], result.applied) == (["weight"], ["bias"])
    assert (model.weight.value == 5).all() and (model.bias.value == 0).all()


def test_a_record_brings_the_ids_of_its_parameters() -> None:
    source, target = filled(), Root()
    bs.load(target, record(source))
    assert (target.weight.id, target.bias.id) == (source.weight.id, source.bias.id)


def test_a_parameter_that_is_kept_transposed_is_stored_in_its_stored_form() -> None:
    source, target = nn.Linear(2, 3, layout="Col"), nn.Linear(2, 3, layout="Col")
    source.weight.set(np.arange(6, dtype=np.float32).reshape(3, 2))
    data = record(source)
    with bs.open(data) as f:
        assert f["weight"].shape == (3, 2) and f["weight"].numpy().tolist() == [[0, 1], [2, 3], [4, 5]]
    bs.load(target, data)
    assert target.weight.transposed and target.weight.memory_shape == (2, 3)
    assert np.array_equal(target.weight.value, source.weight.value)


def test_flags_are_not_recorded_and_a_load_leaves_the_targets() -> None:
    class Flagged(nn.Module):
        def __init__(self, *, training: bool) -> None:
            self.weight = nn.Param([1])
            self.training = training

    with bs.open(record(Flagged(training=True))) as f:
        assert list(f) == ["weight"]
    target = Flagged(training=False)
    assert bs.load(target, record(Flagged(training=True))).is_complete
    assert target.training is False


def test_an_optimizer_record_keeps_its_names_ids_ranks_and_paths(tmp_path: Any) -> None:
    moment = TensorSnapshot.from_numpy("42.moment", np.float32([1, 2]), param_id=42)
    options: dict[str, Any] = {"metadata": {"42": "encoder.weight"}, "scalars": {"42.__rank": 1}}
    bs.save([moment], tmp_path / "optimizer.bpk", layout="burn", **options)
    for source in (tmp_path / "optimizer.bpk", bs.serialize([moment], format="burnpack", layout="burn", **options)):
        with bs.open(source) as f:
            assert (f["42.moment"].param_id, f["42.moment"].numpy().tolist()) == (42, [1, 2])
            assert (dict(f.metadata), f.scalars["42.__rank"].value) == ({"42": "encoder.weight"}, 1)


# --- feed-forward layers with an activation that learns (Burn 0.23) ---------------------------------------------------


def feed_forward(activation: str, **words: Any) -> nn.PositionWiseFeedForward:
    return nn.PositionWiseFeedForward(2, 4, activation=activation, burn_version="0.23", **words)


@pytest.mark.parametrize(
    ("activation", "learned"),
    [
        ("PRelu", ["activation.PRelu.alpha"]),
        ("SwiGlu", [f"activation.SwiGlu.linear_{part}.weight" for part in ("inner", "outer")]),
    ],
)
def test_what_an_activation_learned_goes_through_a_file(activation: Any, learned: list[str]) -> None:
    if activation == "SwiGlu":
        activation = nn.SwiGlu(4, 4)
    source, target = feed_forward(activation), feed_forward(activation)
    for snapshot in bs.collect(source):
        bs.apply(source, [tensor(snapshot.path, np.full(snapshot.shape, 0.75, np.float32))])
    store = bs.BurnpackStore.from_bytes(None)
    store.save(source)
    assert set(learned) <= set(store.keys())
    assert bs.BurnpackStore.from_bytes(store.get_bytes()).load(target).is_complete
    assert {snapshot.path: snapshot.numpy().tolist() for snapshot in bs.collect(target)} == {
        snapshot.path: snapshot.numpy().tolist() for snapshot in bs.collect(source)
    }


def test_an_older_file_without_the_activation_loads_strictly_where_nothing_is_learned() -> None:
    older = record(nn.PositionWiseFeedForward(2, 4, activation="Gelu"))
    with bs.open(older) as f:
        assert len(f) == 4
    assert bs.load(feed_forward("Gelu"), older).is_complete


def test_an_older_file_of_a_learning_activation_needs_allow_partial_and_leaves_what_it_lacks() -> None:
    """Burn 0.23 calls skipped what the filter excludes and the file lacks; up to 0.22.1, and here, it is missing."""
    older = record(nn.PositionWiseFeedForward(2, 4, activation="PRelu"))
    target = feed_forward("PRelu")
    linears = PathFilter().with_regex(r"^linear_")
    with pytest.raises(MissingTensorsError, match=r"activation\.PRelu\.alpha"):
        bs.BurnpackStore.from_bytes(older).with_filter(linears).load(target)
    result = bs.BurnpackStore.from_bytes(older).with_filter(linears).allow_partial(True).load(target)
    assert (len(result.applied), result.missing, result.skipped) == (4, ["activation.PRelu.alpha"], [])
    (alpha,) = bs.collect(target, PathFilter().with_regex("alpha"))
    assert alpha.numpy().tolist() == [0.25]
    lacking = record({"linear_inner": nn.Linear(2, 4)})
    with pytest.raises(MissingTensorsError, match=r"linear_outer\.bias"):
        bs.BurnpackStore.from_bytes(lacking).with_filter(linears).load(target)


def test_including_only_what_the_file_lacks_fails_as_missing() -> None:
    with pytest.raises(MissingTensorsError, match="bias"):
        bs.load(Root(), record({"weight": np.zeros((2, 2), np.float32)}), filter=bs.PathFilter().with_full_path("bias"))
