"""Models that are hard on a store: failing producers (S7), the file being read (S8), cycles, sharing, size, names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import DType, PathFilter, TensorData, TensorSnapshot, nn
from burnstore.errors import DuplicateNameError, FormatError, LimitError, LoadError, ModelError
from burnstore.models.result import ApplyResult
from burnstore.models.structure import Holder


def tensor(path: str, array: Any, **facts: Any) -> TensorSnapshot:
    return TensorSnapshot.from_numpy(path, np.asarray(array), **facts)


def content(model: Any) -> dict[str, list[Any]]:
    return {t.path: t.numpy().tolist() for t in bs.collect(model)}


# --- a producer fails in the middle (S7) ------------------------------------------------------------------------------


class Failing(Holder):
    """A parameter whose value cannot be had."""

    def __init__(self, failure: BaseException) -> None:
        self.failure = failure
        self.id = bs.ParamId(1)

    shape = (3,)
    dtype = DType.F32
    data = None

    @property
    def value(self) -> Any:
        raise self.failure

    def set(self, value: Any) -> None:
        raise self.failure


FAILURES = [OSError(5, "gone"), ValueError("no"), KeyboardInterrupt(), MemoryError(), SystemExit(1)]
WAYS: dict[str, Callable[[Any, Path], None]] = {
    "save": lambda model, path: bs.save(model, path, overwrite=True),
    "store": lambda model, path: bs.BurnpackStore.from_file(path).overwrite(True).save(model),
    "adapted": lambda model, path: (
        bs.BurnpackStore.from_file(path).overwrite(True).with_to_adapter(bs.FloatCastAdapter.to(DType.F16)).save(model)
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_a_parameter_that_fails_at_any_place_leaves_the_old_file_and_no_scratch(
    failure: BaseException, way: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.bpk"
    bs.save({"old": np.arange(10)}, path, durable=False)
    before = path.read_bytes()
    for at in range(5):
        parameters: list[Any] = [nn.Param.from_data(np.ones(100_000, np.float32)) for _ in range(5)]
        parameters[at] = Failing(failure)
        with pytest.raises(type(failure)) as caught:
            WAYS[way]({"layers": parameters}, path)
        assert caught.value is failure
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["model.bpk"]


def test_a_memory_store_keeps_what_it_had_when_a_save_fails() -> None:
    store = bs.BurnpackStore.from_bytes(None)
    store.save({"a": np.ones(2, np.float32)})
    before = store.get_bytes()
    with pytest.raises(OSError, match="gone"):
        store.save({"a": Failing(OSError(5, "gone"))})
    assert store.get_bytes() == before and store.keys() == ["a"]


def test_a_parameter_that_was_never_drawn_and_cannot_be_fails_the_save_and_stays_undrawn(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.first = nn.Linear(2, 2)
            self.table = nn.Embedding(3, 2, initializer=nn.KaimingUniform())  # finds no fan

    model = Model()
    with pytest.raises(ValueError, match="fan"):
        bs.save(model, tmp_path / "model.bpk")
    assert os.listdir(tmp_path) == [] and not model.table.weight.is_initialized


# --- onto the file being read (S8) ------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        self.encoder = nn.Linear(64, 128)
        self.norm = nn.LayerNorm(128)
        self.blocks = [nn.Linear(128, 128, bias=False) for _ in range(3)]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda store: store,
    "half precision": lambda store: store.with_to_adapter(bs.HalfPrecisionAdapter()),
    "pytorch's form": lambda store: store.with_to_adapter(bs.BurnToPyTorchAdapter()),
    "renamed": lambda store: store.with_key_remapping(r"^blocks\.(\d)", "layers.block${1}"),
    "filtered": lambda store: store.with_regex("^blocks"),
    "of another release": lambda store: store.burn_version("0.19"),
}


@pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "zero-copy"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_model_is_saved_onto_the_file_it_was_loaded_from(change: str, zero_copy: bool, tmp_path: Path) -> None:
    path, other = tmp_path / "model.bpk", tmp_path / "other.bpk"
    bs.save(Net(), path, durable=False)
    reading = bs.BurnpackStore.from_file(path).zero_copy(zero_copy)
    model = Net()
    assert reading.load(model).is_complete
    before = content(model)
    snapshots = reading.get_all_snapshots()
    for target in (other, path):
        CHANGES[change](bs.BurnpackStore.from_file(target).overwrite(True).durable(False)).save(model)
    assert path.read_bytes() == other.read_bytes()
    assert content(model) == before
    assert {name: t.numpy().tolist() for name, t in snapshots.items()} == before  # the old file is read on
    changed = CHANGES[change](bs.BurnpackStore.from_file(path))
    assert len(changed.keys()) == (3 if change == "filtered" else 7)


@pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "zero-copy"])
@pytest.mark.parametrize("binding", ["nn", "plain"])
def test_snapshots_of_a_file_are_saved_onto_it_through_a_filter_and_new_names(
    binding: str, zero_copy: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.bpk"
    model: Any = Net() if binding == "nn" else {"a": np.arange(50_000), "b": [np.arange(9), (np.ones(3),)]}
    bs.save(model, path, durable=False)
    before = content(model)
    lazily = bs.BurnpackStore.from_file(path).zero_copy(zero_copy).get_all_snapshots()
    bs.save([t.with_path(f"model.{name}") for name, t in lazily.items()], path, overwrite=True, durable=False)
    with bs.open(path) as f:
        assert {name: t.numpy().tolist() for name, t in f.items()} == {f"model.{k}": v for k, v in before.items()}


# --- models that contain themselves -----------------------------------------------------------------------------------


def in_an_attribute() -> Any:
    model = SimpleNamespace(weight=np.zeros(1))
    model.parent = model
    return model, "parent"


def in_a_dict() -> Any:
    model: dict[str, Any] = {"weight": np.zeros(1)}
    model["self"] = model
    return model, "self"


def in_a_list() -> Any:
    model: list[Any] = [np.zeros(1)]
    model.append([model])
    return model, "1.0"


def in_a_tuple() -> Any:
    inside: list[Any] = []
    model = (np.zeros(1), inside)
    inside.append(model)
    return model, "1.0"


def in_a_module() -> Any:
    model: Any = nn.Linear(1, 1)
    model.again = {"deeper": model}
    return model, "again.deeper"


def in_an_enum() -> Any:
    class Either(nn.Enum):
        This = nn.variant()

    value = Either.This([])
    value.payload.append(value)
    return {"either": value}, "either.This.0"


def by_way_of_another() -> Any:
    first, second = SimpleNamespace(), SimpleNamespace()
    first.other, second.other = second, first
    return first, "other.other"


CYCLES = [in_an_attribute, in_a_dict, in_a_list, in_a_tuple, in_a_module, in_an_enum, by_way_of_another]


@pytest.mark.parametrize("make", CYCLES, ids=lambda make: make.__name__)
def test_a_model_that_contains_itself_is_refused_by_every_way_in(make: Any, tmp_path: Path) -> None:
    model, place = make()
    path = tmp_path / "model.bpk"
    bs.save({"old": np.zeros(1)}, path)
    before = path.read_bytes()
    for way in (
        lambda: bs.collect(model),
        lambda: bs.apply(model, []),
        lambda: bs.load(model, path),
        lambda: bs.BurnpackStore.from_file(path).overwrite(True).save(model),
        lambda: nn.num_params(model),
    ):
        with pytest.raises(ModelError, match="contains itself") as caught:
            way()
        assert caught.value.tensor == place
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["model.bpk"]


def test_what_is_held_twice_but_not_by_itself_is_no_cycle() -> None:
    leaf = {"weight": np.ones(1, np.float32)}
    middle = [leaf, leaf]
    assert len(bs.collect({"a": middle, "b": middle})) == 4


# --- shared parameters ------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(4, 2)
        self.middle = nn.Linear(2, 2)
        self.output = {"weight": self.embedding.weight}


def test_a_shared_parameter_is_written_under_each_of_its_paths_and_comes_back_shared() -> None:
    source, target = Tied(), Tied()
    store = bs.BurnpackStore.from_bytes(None)
    store.save(source)
    found = store.get_all_snapshots()
    assert found["embedding.weight"].to_bytes() == found["output.weight"].to_bytes()
    assert found["embedding.weight"].param_id == found["output.weight"].param_id == source.embedding.weight.id
    result = store.load(target)
    assert result.applied == ["embedding.weight", "middle.weight", "middle.bias", "output.weight"]
    assert target.output["weight"] is target.embedding.weight
    assert content(target) == content(source)


@pytest.mark.parametrize("kept", ["embedding", "output"])
def test_one_tensor_in_the_file_suffices_for_all_who_share_it_and_a_note_says_so(kept: str) -> None:
    source, target = Tied(), Tied()
    data = bs.BurnpackStore.from_bytes(None).with_regexes([f"^{kept}", "^middle"])
    data.save(source)
    result = bs.BurnpackStore.from_bytes(data.get_bytes()).load(target)
    assert result.applied == ["embedding.weight", "middle.weight", "middle.bias", "output.weight"]
    assert any("is shared with" in note for note in result.notes)
    assert content(target) == content(source) and target.output["weight"] is target.embedding.weight


def test_two_different_tensors_for_one_shared_parameter_are_an_error_and_nothing_changes() -> None:
    model = Tied()
    before = content(model)
    different = [
        tensor("embedding.weight", np.ones((4, 2), np.float32)),
        tensor("output.weight", np.zeros((4, 2), np.float32)),
    ]
    with pytest.raises(LoadError, match=r"shared with 'embedding\.weight'"):
        bs.apply(model, different, validate=True)
    assert content(model) == before


def test_an_array_stays_shared_wherever_it_is_held() -> None:
    shared = np.zeros(2, np.float32)
    model: dict[str, Any] = {"list": [shared], "tuple": (shared,), "object": SimpleNamespace(w=shared), "dict": shared}
    data = bs.serialize({**model, "other": [np.ones(1)]}, format="burnpack")
    bs.load(model, data)
    assert model["dict"] is model["list"][0] is model["tuple"][0] is model["object"].w
    ones = [tensor(path, np.ones(2, np.float32)) for path in ("list.0", "tuple.0", "object.w", "dict")]
    bs.apply(model, ones)
    assert model["dict"] is model["list"][0] is model["tuple"][0] is model["object"].w
    assert model["dict"].tolist() == [1, 1] and shared is model["dict"]  # a tuple can only be filled


def test_shared_modules_are_walked_under_each_name_and_loaded_as_one() -> None:
    layer = nn.Linear(2, 2)
    model = {"encoder": layer, "decoder": [layer, layer]}
    source = {"encoder": nn.Linear(2, 2)}
    result = bs.apply(model, bs.collect(source))
    assert len(result.applied) == 6 and result.missing == []
    assert content(model)["decoder.1.weight"] == content(source)["encoder.weight"]


# --- what a load shares with where it came from -----------------------------------------------------------------------


def test_a_transfer_shares_no_memory_with_the_model_it_came_from() -> None:
    quantized = TensorData.from_bytes(bytearray(b"\0\1"), DType.BoolU8, [2])
    source = {"array": np.zeros(2, np.float32), "param": nn.Param.from_data(np.zeros(2, np.float32))}
    source["stored"] = nn.Param.from_data(quantized)
    target = {"array": np.ones(2, np.float32), "param": nn.Param([2]), "stored": nn.Param([2], dtype=DType.Bool)}
    bs.apply(target, bs.collect(source))
    source["array"][0] = source["param"].value[0] = 9
    source["stored"].value[0] = True
    assert target["array"].tolist() == target["param"].value.tolist() == [0, 0]
    assert target["stored"].value.tolist() == [False, True]


def test_a_load_shares_no_memory_with_the_bytes_unless_asked_to() -> None:
    data = bytearray(bs.serialize({"w": np.ones(2, np.float32)}, format="burnpack"))
    model = {"w": np.zeros(2, np.float32)}
    bs.BurnpackStore.from_bytes(data).load(model)
    data[-8:] = bytes(8)
    assert model["w"].tolist() == [1, 1]


# --- all or nothing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fixed",
    [
        lambda: (np.zeros(2, np.float64),),
        lambda: (np.broadcast_to(np.float32(0), 2),),
        lambda: MappingProxyType({"0": np.zeros(2, np.int32)}),
    ],
    ids=["another dtype", "read-only", "a mapping that cannot be changed"],
)
def test_an_array_that_can_be_neither_replaced_nor_filled_stops_the_load_before_anything_changes(fixed: Any) -> None:
    model = {"first": np.zeros(2, np.float32), "fixed": fixed(), "last": nn.Param([2])}
    kind = np.int64 if isinstance(model["fixed"], MappingProxyType) else np.float32
    source = [tensor(path, np.ones(2, np.float32)) for path in ("first", "last")]
    with pytest.raises(ModelError, match="cannot be changed") as caught:
        bs.apply(model, [*source, tensor("fixed.0", np.ones(2, kind))])
    assert caught.value.tensor == "fixed.0"
    assert model["first"].tolist() == [0, 0] and not model["last"].is_initialized


def test_an_array_in_a_tuple_takes_its_own_dtype_in_any_byte_order_and_numbers_for_codes() -> None:
    big, small = np.zeros(2, ">f4"), np.zeros(2, np.float32)
    model = {"pair": (big, small)}
    codes = TensorData.from_bytes(b"\1\2" + np.float32(0.5).tobytes(), _q8(), [2])
    bs.apply(model, [tensor("pair.0", np.float32([1, 2])), TensorSnapshot.from_data("pair.1", codes)])
    assert (big.tolist(), small.tolist()) == ([1, 2], [0.5, 1])


def _q8() -> DType:
    from burnstore.tensor.quantization import QuantScheme, QuantStore

    return DType.qfloat(QuantScheme("Q8S", QuantStore("Native")))


def test_two_parameters_of_one_path_are_refused_on_every_way() -> None:
    model = {"a.b": np.zeros(1, np.float32), "a": {"b": np.ones(1, np.float32)}}
    for way in (
        lambda: bs.apply(model, [tensor("a.b", np.full(1, 5, np.float32))]),
        lambda: bs.load(model, bs.serialize({"a.b": np.zeros(1, np.float32)}, format="burnpack")),
        lambda: bs.serialize(model, format="burnpack"),
    ):
        with pytest.raises(DuplicateNameError) as caught:
            way()
        assert caught.value.tensor == "a.b"
    assert model["a.b"].tolist() == [0] and model["a"]["b"].tolist() == [1]


def test_variants_that_are_told_apart_by_their_names_alone_cannot_be_skipped() -> None:
    class Part(nn.Enum):
        Left = nn.variant()

    model = {"parts": Part.Left({"w": np.zeros(1)}), "parts.w": np.ones(1)}
    assert len(bs.collect(model)) == 2
    with pytest.raises(DuplicateNameError, match=r"parts\.w"):
        bs.apply(model, [], skip_enum_variants=True)


def test_snapshots_are_given_as_a_list_and_not_as_a_mapping() -> None:
    model = {"w": np.zeros(1, np.float32)}
    store = bs.BurnpackStore.from_bytes(bs.serialize(model, format="burnpack"))
    with pytest.raises(TypeError, match=r"values\(\)"):
        bs.apply(model, store.get_all_snapshots())
    assert bs.apply(model, store.get_all_snapshots().values()).is_complete


# --- what no walk would find ------------------------------------------------------------------------------------------


class ForeignTensor:
    """An array of some other library: it can be made into one, and its numbers are nowhere to be seen."""

    __slots__ = ()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.zeros(2)


class Wrapped:
    """A number with a gradient, as people write them."""

    def __init__(self) -> None:
        self.data = np.ones(2, np.float32)
        self.grad = None

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.data


TorchModule = type("Module", (), {"__module__": "torch.nn.modules.module"})
TorchLinear = type("Linear", (TorchModule,), {"__init__": lambda self: setattr(self, "_parameters", {"weight": 1})})


@pytest.mark.parametrize(
    "hidden",
    [
        ForeignTensor,
        TorchLinear,
        lambda: tensor("x", np.ones(2)),
        lambda: TensorData.from_numpy(np.ones(2)),
    ],
    ids=["another library's array", "another library's module", "a snapshot", "data"],
)
def test_tensors_that_a_walk_would_not_see_are_refused_and_never_left_out(hidden: Any) -> None:
    model = {"seen": [np.zeros(1)], "part": {"hidden": hidden()}}
    for way in (
        lambda: bs.collect(model),
        lambda: bs.serialize(model, format="burnpack"),
        lambda: bs.apply(model, []),
    ):
        with pytest.raises(ModelError, match="cannot see the tensors") as caught:
            way()
        assert caught.value.tensor == "part.hidden"


def test_a_module_of_another_library_is_not_taken_for_an_empty_model() -> None:
    with pytest.raises(ModelError, match=r"torch\.nn\.modules\.module|Linear"):
        bs.load(TorchLinear(), bs.serialize({"weight": np.zeros(1)}, format="burnpack"))


def test_an_object_that_stands_for_its_own_array_is_walked() -> None:
    model = {"w": Wrapped()}
    assert [t.path for t in bs.collect(model)] == ["w.data"]
    bs.apply(model, [tensor("w.data", np.zeros(2, np.float32))])
    assert model["w"].data.tolist() == [0, 0]


# --- size and depth ---------------------------------------------------------------------------------------------------


@pytest.mark.slow("large models")
def test_twenty_thousand_parameters_go_through_a_file_filtered_and_renamed(tmp_path: Path) -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            self.layers = [nn.Linear(2, 3) for _ in range(10_000)]

    started = time.perf_counter()
    source, target = Large(), Large()
    path = tmp_path / "large.bpk"
    bs.save(source, path, durable=False)
    result = bs.load(target, path)
    assert len(result.applied) == 20_000 and result.is_complete
    for at in (0, 4_999, 9_999):
        assert np.array_equal(target.layers[at].weight.value, source.layers[at].weight.value)
        assert target.layers[at].bias.id == source.layers[at].bias.id
    some = PathFilter().with_regex(r"^layers\.\d*7\.").with_full_path("layers.0.bias")
    result = bs.BurnpackStore.from_file(path).with_filter(some).load(target)
    assert (len(result.applied), len(result.skipped)) == (2_001, 17_999)
    store = bs.BurnpackStore.from_file(path).with_key_remapping(r"^layers\.(\d+)\.", "blocks.${1}0.")
    assert len(store.keys()) == 20_000
    assert store.map_indices_contiguous(True).get_snapshot("blocks.9999.bias") is not None
    missing = store.allow_partial(True).allow_empty(True).load(target)
    assert len(missing.missing) == len(missing.unused) == 20_000
    assert "… and 19990 more" in str(missing)
    assert time.perf_counter() - started < 60  # two seconds when nothing else runs


def test_twenty_thousand_plain_arrays_of_which_many_are_shared() -> None:
    shared = [np.float32([number]) for number in range(100)]
    model = {f"layer{number}": shared[number % 100] for number in range(20_000)}
    data = bs.serialize({f"layer{number}": shared[number] for number in range(100)}, format="burnpack")
    result = bs.load(model, data)
    assert len(result.applied) == 20_000 and result.missing == []
    assert len({id(array) for array in model.values()}) == 100


@pytest.mark.slow("large models")
def test_deep_models_are_saved_up_to_the_longest_name_and_refused_beyond(tmp_path: Path) -> None:
    def nested(depth: int) -> Any:
        model: Any = [np.float32([depth])]
        for _ in range(depth - 1):
            model = [model]
        return model

    deep, fresh = nested(5_000), nested(5_000)
    store = bs.BurnpackStore.from_file(tmp_path / "deep.bpk").layout("burn")
    store.save(deep)
    assert store.load(fresh).applied == [".".join("0" * 5_000)]
    with pytest.raises(LimitError, match="name of more than 65536 bytes"):
        bs.BurnpackStore.from_file(tmp_path / "deeper.bpk").save(nested(40_000))
    assert os.listdir(tmp_path) == ["deep.bpk"]


def test_a_report_of_hostile_names_is_short_printable_and_quickly_made() -> None:
    """A file may hold many names of 64 KiB; comparing all of them with what is missing would take hours."""
    model = {"x" * 60_000: np.zeros(1, np.float32), "\x1b[31mred\x1b[0m": np.zeros(1, np.float32)}
    unused = [tensor("\n" * 100, np.zeros(1)), *(tensor(f"{'y' * 60_000}{n}", np.zeros(1)) for n in range(200))]
    result = bs.apply(model, unused)
    started = time.perf_counter()
    shown = str(result)
    assert time.perf_counter() - started < 10
    assert "\x1b" not in shown and max(map(len, shown.splitlines())) < 500
    assert len(result.missing) == 2 and len(result.unused) == 201
    assert ApplyResult(unused=["encoder.weihgt", "z" * 60_000]).suggestion("encoder.weight") == "encoder.weihgt"


# --- names ------------------------------------------------------------------------------------------------------------

NAMES = [
    "a.b", "a..b", ".", "..", "a/b", "../../etc/passwd", "C:\\x", "層.重み", "größe", "e\u0301", "é", "\u202eabc",
    "a\0b", "a\nb", "\x1b[31m", "", " ", "🔥", "r#type", "0", "00", "+1", "__class__", "self", "x" * 1000,
]  # fmt: skip


def test_names_of_every_sort_are_kept_apart_and_found_again(tmp_path: Path) -> None:
    def model(start: int) -> dict[str, Any]:
        return {name: {"w": np.float32([start + number])} if number % 2 else np.float32([start + number])
                for number, name in enumerate(NAMES)}  # fmt: skip

    source, target = model(1), model(-100)
    path = tmp_path / "names.bpk"
    bs.save(source, path)
    assert os.listdir(tmp_path) == ["names.bpk"]
    assert bs.load(target, path).is_complete
    assert content(target) == content(source)
    assert [t.path for t in bs.collect(source)] == list(content(target))


def test_a_name_that_no_file_can_hold_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="UTF-8"):
        bs.save({"bad": {"\ud800": np.zeros(1)}}, tmp_path / "model.bpk")
    assert os.listdir(tmp_path) == []
