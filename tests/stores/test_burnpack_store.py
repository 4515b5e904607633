from __future__ import annotations

import os

import numpy as np
import pytest

import burnstore as bs
from burnstore import nn
from burnstore.errors import (
    AlreadyExistsError,
    DuplicateNameError,
    LoadError,
    MissingTensorsError,
    PatternError,
    ReadError,
)
from burnstore.io.source import FileSource
from store_options import configured


class Nested(nn.Module):
    def __init__(self):
        self.gamma = nn.Param([2])
        self.beta = nn.Param([2])


class Model(nn.Module):
    def __init__(self):
        self.weight = nn.Param([2, 2])
        self.bias = nn.Param([2])
        self.nested = Nested()


def filled(value: float = 1.0) -> Model:
    model = Model()
    for param in (model.weight, model.bias, model.nested.gamma, model.nested.beta):
        param.set(np.full(param.shape, value, np.float32))
    return model


def saved(model=None, **options) -> bytes:
    store = configured(bs.BurnpackStore.from_bytes(None), **options)
    store.save(model or filled())
    return store.get_bytes()


def values(model) -> list[float]:
    return [float(tensor.numpy().ravel()[0]) for tensor in bs.collect(model)]


def test_a_model_goes_through_bytes_and_comes_back():
    model = Model()
    result = bs.BurnpackStore.from_bytes(saved()).load(model)
    assert len(result.applied) == 4
    assert values(model) == [1, 1, 1, 1]


def test_ids_of_parameters_come_back():
    model, fresh = filled(), Model()
    bs.BurnpackStore.from_bytes(saved(model)).load(fresh)
    assert [a.param_id for a in bs.collect(model)] == [b.param_id for b in bs.collect(fresh)]


def test_default_metadata_is_there_users_add_to_it_and_clear_removes_all():
    def metadata(store):
        store.save(filled())
        return dict(bs.open(store.get_bytes()).metadata)

    default = {"format": "burnpack", "producer": "burn", "version": "0.22.1"}
    assert metadata(bs.BurnpackStore.from_bytes(None)) == default
    assert metadata(bs.BurnpackStore.from_bytes(None).metadata("epochs", "1")) == {**default, "epochs": "1"}
    assert metadata(bs.BurnpackStore.from_bytes(None).metadata("version", "mine")) == {**default, "version": "mine"}
    assert metadata(bs.BurnpackStore.from_bytes(None).metadata("a", "b").clear_metadata()) == {}
    assert metadata(bs.BurnpackStore.from_bytes(None).clear_metadata().metadata("a", "b")) == {"a": "b"}
    assert metadata(configured(bs.BurnpackStore.from_bytes(None), metadata={"a": "b"})) == {**default, "a": "b"}


def test_the_release_to_write_can_be_chosen():
    store = bs.BurnpackStore.from_bytes(None).burn_version("0.19")
    store.save(filled())
    with bs.open(store.get_bytes()) as f:
        assert f.variant == "0.19, unaligned"
        assert f.metadata["version"] == "0.19.1"
    assert bs.BurnpackStore.from_bytes(store.get_bytes()).load(Model()).is_complete


def test_a_filter_on_loading_skips_the_rest():
    model = filled(0.0)
    result = bs.BurnpackStore.from_bytes(saved()).with_regex("^nested").load(model)
    assert (len(result.applied), len(result.skipped)) == (2, 2)
    assert values(model) == [0, 0, 1, 1]


def test_a_filter_on_saving_leaves_the_rest_out():
    data = saved(filled(), regex="^nested")
    assert bs.BurnpackStore.from_bytes(data).keys() == ["nested.beta", "nested.gamma"]
    with pytest.raises(MissingTensorsError):
        bs.BurnpackStore.from_bytes(data).load(Model())
    result = bs.BurnpackStore.from_bytes(data).allow_partial(True).load(Model())
    assert (len(result.applied), len(result.missing)) == (2, 2)


def test_full_paths_predicates_and_match_all():
    data = saved()

    def applied(store):
        return store.allow_partial(True).load(Model()).applied

    assert applied(bs.BurnpackStore.from_bytes(data).with_full_path("bias")) == ["bias"]
    assert applied(bs.BurnpackStore.from_bytes(data).with_full_paths(["bias", "weight"])) == ["weight", "bias"]
    assert applied(bs.BurnpackStore.from_bytes(data).with_predicate(lambda p, c: c.endswith("Nested"))) == [
        "nested.gamma",
        "nested.beta",
    ]
    assert len(applied(bs.BurnpackStore.from_bytes(data).with_regex("^x").match_all())) == 4
    assert len(applied(bs.BurnpackStore.from_bytes(data).with_regexes(["^w", "^b"]))) == 2


def test_a_pattern_that_matches_nothing_is_noted_when_saving():
    saved = bs.BurnpackStore.from_bytes(None).with_regex("^typo").with_regex("^bias").save(filled())
    assert saved.notes == ("the filter's '^typo' matched no tensor of the model",)
    with pytest.warns(UserWarning, match="'wieght' matched no tensor"):
        bs.collect(filled(), bs.PathFilter().with_full_path("wieght"))


def test_a_filter_that_was_handed_in_is_not_changed():
    mine = bs.PathFilter().with_regex("^a")
    bs.BurnpackStore.from_bytes(b"").with_filter(mine).with_regex("^b")
    assert mine.criteria_count() == 1


def test_remapping_renames_what_a_load_sees_and_what_a_save_writes():
    data = saved()
    result = bs.BurnpackStore.from_bytes(data).with_key_remapping("^nested", "other").allow_partial(True).load(Model())
    assert (len(result.applied), len(result.unused), len(result.missing)) == (2, 2, 2)
    renamed = saved(filled(), key_remapping={"^nested": "other"})
    assert bs.BurnpackStore.from_bytes(renamed).get_snapshot("other.gamma") is not None
    back = bs.BurnpackStore.from_bytes(renamed).with_remap_pattern("^other", "nested").load(Model())
    assert back.is_complete
    whole = bs.BurnpackStore.from_bytes(data).remap({"bias": "b"}).keys()
    assert "b" in whole and "bias" not in whole


def test_a_rule_that_matches_nothing_is_reported():
    result = bs.BurnpackStore.from_bytes(saved()).with_key_remapping("^zzz", "a").load(Model())
    assert any("^zzz" in note for note in result.notes)


def test_names_that_collide_are_refused_on_both_ways():
    collide = {"pattern": r"\.(gamma|beta)$", "replacement": ".x"}
    with pytest.raises(DuplicateNameError):
        bs.BurnpackStore.from_bytes(saved()).with_key_remapping(*collide.values()).keys()
    with pytest.raises(DuplicateNameError):
        bs.BurnpackStore.from_bytes(None).with_key_remapping(*collide.values()).save(filled())
    kept = bs.BurnpackStore.from_bytes(saved()).with_key_remapping(*collide.values()).on_collision("first").keys()
    assert kept == ["bias", "nested.x", "weight"]


def test_invalid_patterns_raise_where_they_are_given():
    store = bs.BurnpackStore.from_bytes(None)
    for give in (store.with_regex, store.map_indices_contiguous_except, lambda p: store.with_key_remapping(p, "")):
        with pytest.raises(PatternError):
            give("[")


def test_options_that_change_after_a_read_take_effect():
    store = bs.BurnpackStore.from_bytes(saved({"fc": {"0": np.zeros(1, "f4"), "2": np.zeros(1, "f4")}}))
    assert store.keys() == ["fc.0", "fc.2"]
    assert store.map_indices_contiguous(True).keys() == ["fc.0", "fc.1"]
    assert store.map_indices_contiguous_except("fc").keys() == ["fc.0", "fc.2"]
    assert store.with_key_remapping("^fc", "gc").keys() == ["gc.0", "gc.1"]
    assert store.map_indices_contiguous(False).keys() == ["gc.0", "gc.2"]


def test_saving_again_is_seen_by_the_same_store(tmp_path):
    store = bs.BurnpackStore.from_file(tmp_path / "m").overwrite(True)
    store.save(filled(1.0))
    assert store.get_snapshot("bias").numpy()[0] == 1
    store.save(filled(2.0))
    assert store.get_snapshot("bias").numpy()[0] == 2
    assert store.get_snapshot("nothing") is None


def test_a_file_that_was_replaced_is_read_by_the_same_store(tmp_path):
    bs.save(filled(1.0), tmp_path / "m.bpk")
    store, model = bs.BurnpackStore.from_file(tmp_path / "m.bpk"), Model()
    store.load(model)
    assert values(model) == [1, 1, 1, 1]
    bs.save(filled(2.0), tmp_path / "m.bpk", overwrite=True)
    store.load(model)
    assert values(model) == [2, 2, 2, 2]
    assert store.get_snapshot("bias").numpy()[0] == 2


def test_direct_access_is_sorted_unfiltered_and_unadapted():
    store = (
        bs.BurnpackStore.from_bytes(saved()).with_regex("^bias").with_from_adapter(bs.FloatCastAdapter(bs.DType.F16))
    )
    assert store.keys() == ["bias", "nested.beta", "nested.gamma", "weight"]
    assert list(store.get_all_snapshots()) == store.keys() == list(store.get_all_tensors())
    assert store.get_tensor("weight").dtype is bs.DType.F32
    assert store.get_snapshot("nested.gamma").shape == (2,)


def test_an_existing_file_is_refused_unless_overwriting(tmp_path):
    path = tmp_path / "model.bpk"
    bs.BurnpackStore.from_file(path).save(filled())
    before = path.read_bytes()
    with pytest.raises(AlreadyExistsError, match="File already exists"):
        bs.BurnpackStore.from_file(path).save(filled(2.0))
    assert path.read_bytes() == before
    bs.BurnpackStore.from_file(path).overwrite(True).save(filled(2.0))
    assert path.read_bytes() != before
    dangling = tmp_path / "link.bpk"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(AlreadyExistsError):
        bs.BurnpackStore.from_file(dangling).save(filled())


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("model", "model.bpk"),
        ("model.bpk", "model.bpk"),
        ("m.mpk", "m.mpk"),
        ("model.v1", "model.v1"),
        (".model", ".model.bpk"),
    ],
)
def test_a_path_without_an_extension_gets_one_for_saving_and_loading(tmp_path, given, written):
    bs.BurnpackStore.from_file(tmp_path / given).save(filled())
    assert os.listdir(tmp_path) == [written]
    assert bs.BurnpackStore.from_file(tmp_path / given).load(Model()).is_complete


def test_auto_extension_can_be_switched_off_both_ways(tmp_path):
    exact = bs.BurnpackStore.from_file(tmp_path / "model").auto_extension(False)
    exact.save(filled())
    assert os.listdir(tmp_path) == ["model"]
    assert exact.load(Model()).is_complete
    with pytest.raises(AlreadyExistsError):
        exact.save(filled())
    os.rename(tmp_path / "model", tmp_path / "model.bpk")
    with pytest.raises(FileNotFoundError):
        bs.BurnpackStore.from_file(tmp_path / "model").auto_extension(False).load(Model())


def test_errors_are_raised_or_reported_as_validate_says():
    wrong = saved({"weight": np.zeros((3, 3), "f4"), "bias": np.zeros(2, "f4"), "nested": Nested()})
    model = filled(5.0)
    with pytest.raises(LoadError, match="weight"):
        bs.BurnpackStore.from_bytes(wrong).load(model)
    assert values(model) == [5, 5, 5, 5]
    result = bs.BurnpackStore.from_bytes(wrong).validate(False).load(model)
    assert len(result.errors) == 1 and len(result.applied) == 3 and not result.is_success()


def test_empty_stores_say_so():
    with pytest.raises(ReadError, match="No bytes to read from"):
        bs.BurnpackStore.from_bytes(None).load(Model())
    with pytest.raises(ReadError, match="No bytes available"):
        bs.BurnpackStore.from_bytes(None).get_bytes()
    with pytest.raises(ReadError, match="No bytes available"):
        bs.BurnpackStore.from_file("x.bpk").get_bytes()


@pytest.mark.parametrize("how", ["static", "bytes", "file"])
def test_zero_copy_shares_memory_and_copies_do_not(tmp_path, how):
    data = saved()
    (tmp_path / "m.bpk").write_bytes(data)
    make = {
        "static": lambda: bs.BurnpackStore.from_static(data),
        "bytes": lambda: bs.BurnpackStore.from_bytes(data).zero_copy(True),
        "file": lambda: bs.BurnpackStore.from_file(tmp_path / "m.bpk").zero_copy(True),
    }[how]
    shared, copied = Model(), Model()
    make().load(shared)
    make().zero_copy(False).load(copied)
    assert not shared.weight.value.flags.writeable and copied.weight.value.flags.writeable
    assert values(shared) == values(copied) == [1, 1, 1, 1]


def test_keywords_do_what_the_builder_methods_do():
    data = saved()
    by_methods = bs.BurnpackStore.from_bytes(data).with_regex("^b").allow_partial(True).validate(False)
    by_words = bs.load(Model(), data, filter="^b", allow_partial=True, validate=False)
    assert by_methods.load(Model()).to_dict() == by_words.to_dict()
    with pytest.raises(TypeError, match="regexp"):
        bs.load(Model(), data, regexp="^b")


@pytest.mark.parametrize(
    ("method", "argument"),
    [
        ("allow_partial", 1), ("validate", None), ("overwrite", "yes"), ("zero_copy", 0), ("auto_extension", []),
        ("skip_enum_variants", 1), ("map_indices_contiguous", 1), ("with_filter", 3), ("remap", 3),
        ("with_from_adapter", 3), ("with_to_adapter", None), ("limits", 5), ("durable", 1), ("burn_version", 22),
    ],
)  # fmt: skip
def test_arguments_of_a_wrong_type_raise_at_the_call(method, argument):
    with pytest.raises(TypeError):
        getattr(bs.BurnpackStore.from_bytes(None), method)(argument)


def test_metadata_is_text():
    with pytest.raises(TypeError):
        bs.BurnpackStore.from_bytes(None).metadata("epochs", 100)
    with pytest.raises(TypeError):
        bs.BurnpackStore.from_bytes("text")


def test_a_copy_branches():
    store = bs.BurnpackStore.from_bytes(saved()).with_regex("^b").metadata("a", "b")
    branch = store.copy().with_regex("^w").metadata("a", "c").with_key_remapping("x", "y")
    assert store.pipeline.filter.criteria_count() == 1 and branch.pipeline.filter.criteria_count() == 2
    assert store._metadata["a"] == "b" and store.pipeline.rename is None


def test_the_functions_are_the_methods():
    store = bs.BurnpackStore.from_bytes(None)
    assert store.save(filled()).tensors
    assert bs.load(Model(), store).is_complete
    store.collect_from(filled(3.0))
    model = Model()
    assert store.apply_to(model).is_complete and values(model) == [3, 3, 3, 3]
    with pytest.raises(TypeError, match="set these options on the store"):
        bs.load(Model(), store, filter="x")


def test_a_filtered_load_reads_no_bytes_of_what_it_leaves_out(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    model = {
        f"layer{i}": {"weight": rng.random((40, 50), np.float32), "tiny": rng.random(3, np.float32)} for i in range(50)
    }
    bs.save(model, tmp_path / "m.bpk")
    with bs.open(tmp_path / "m.bpk") as f:
        ranges = {name: (f.offset_of(name), f.offset_of(name) + f[name].nbytes) for name in f}
        data_offset = f.data_offset
    reads: list[tuple[int, int]] = []
    real = FileSource.read_into
    monkeypatch.setattr(
        FileSource,
        "read_into",
        lambda self, batch: reads.extend((at, at + len(buffer)) for at, buffer in batch) or real(self, batch),
    )
    result = bs.load(model, tmp_path / "m.bpk", filter=r"^layer(7|8|40)\.", allow_partial=True)
    assert len(result.applied) == 6 and len(result.skipped) == 94
    for name, (start, end) in ranges.items():
        touched = any(at < end and start < stop for at, stop in reads)
        assert touched == (name in result.applied), name
    assert all(at >= data_offset for at, _ in reads)


def test_half_precision_round_trip_keeps_what_it_should():
    class Net(nn.Module):
        def __init__(self):
            self.linear = nn.Linear(4, 2)
            self.bn = nn.BatchNorm(2)

    half = bs.HalfPrecisionAdapter()
    net, back = Net(), Net()
    store = bs.BurnpackStore.from_bytes(None).with_to_adapter(half)
    store.save(net)
    stored = {name: str(t.dtype) for name, t in store.get_all_snapshots().items()}
    assert {stored[n] for n in stored if n.startswith("linear")} == {"F16"}
    assert {stored[n] for n in stored if n.startswith("bn")} == {"F32"}
    bs.BurnpackStore.from_bytes(store.get_bytes()).with_from_adapter(half).load(back)
    assert np.allclose(net.linear.weight.value, back.linear.weight.value, atol=0.01)
    chain = bs.BurnToPyTorchAdapter().chain(bs.HalfPrecisionAdapter())
    store = bs.BurnpackStore.from_bytes(None).with_to_adapter(chain)
    store.save(net)
    assert (str(store.get_snapshot("linear.weight").dtype), store.get_snapshot("linear.weight").shape) == (
        "F16",
        (2, 4),
    )
    inverse = bs.HalfPrecisionAdapter().chain(bs.PyTorchToBurnAdapter())
    assert bs.BurnpackStore.from_bytes(store.get_bytes()).with_from_adapter(inverse).load(back).is_complete


def test_what_is_not_loaded_is_not_drawn():
    model = Model()
    bs.BurnpackStore.from_bytes(saved()).with_regex("^bias").load(model)
    assert model.bias.is_initialized and not model.weight.is_initialized


def test_a_load_of_another_format_is_refused(tmp_path):
    (tmp_path / "x.bpk").write_bytes(b"PK\x03\x04 something else entirely")
    with pytest.raises(bs.errors.FormatError, match="BP-01"):
        bs.BurnpackStore.from_file(tmp_path / "x.bpk").load(Model())


def test_saving_a_model_onto_the_file_it_was_lazily_loaded_from(tmp_path):
    path = tmp_path / "m.bpk"
    bs.save(filled(), path)
    model = Model()
    bs.BurnpackStore.from_file(path).zero_copy(True).load(model)
    bs.BurnpackStore.from_file(path).overwrite(True).save(model)
    fresh = Model()
    bs.load(fresh, path)
    assert values(fresh) == [1, 1, 1, 1] and values(model) == [1, 1, 1, 1]


def test_models_nested_in_mappings_are_saved_whole_and_stray_numbers_refused(tmp_path):
    bs.save({"a": [np.zeros(1, "f4")], "b": None, "net": Nested()}, tmp_path / "m.bpk")
    with bs.open(tmp_path / "m.bpk") as f:
        assert list(f) == ["a.0", "net.gamma", "net.beta"]
    for stray in (0.1, np.float32(0.1)):
        with pytest.raises(TypeError, match="'lr' is a float"):
            bs.save({"a": [np.zeros(1, "f4")], "lr": stray}, tmp_path / "n.bpk")
    with pytest.raises(TypeError, match="no tensors"):
        bs.save(object(), tmp_path / "n.bpk")


def test_real_files_of_burn_load_into_the_same_models_declared_here():
    from pathlib import Path

    from declared_models import MODELS

    fixtures = Path(__file__).resolve().parents[1] / "fixtures" / "burn"
    for version in ("0.19.1", "0.20.1", "0.21.0", "0.22.1", "0.23.0-pre.1"):
        for name in ("basic", "enums", "scalars", "names", "empty"):
            model = MODELS[name]()
            with bs.open(fixtures / version / f"{name}.bpk") as f:
                result = bs.load(model, fixtures / version / f"{name}.bpk")
                assert result.is_complete and result.unused == [], (version, name)
                for tensor in bs.collect(model):
                    assert tensor.to_bytes() == f[tensor.path].to_bytes(), (version, name, tensor)
