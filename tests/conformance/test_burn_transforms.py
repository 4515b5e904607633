"""What Burn's own tests ask of filters, renames and adapters, as exactly as they ask it; patterns of users (H23)."""

from __future__ import annotations

import copy
import re
import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import burnstore as bs
from burnstore import DType, KeyRemapper, PathFilter, TensorData, TensorSnapshot, nn
from burnstore.errors import DTypeError, PatternError
from burnstore.tensor.quantization import QuantScheme, QuantStore
from burnstore.transforms.axes import transposed


def tensor(path: str, array: Any, *stack: str) -> TensorSnapshot:
    return TensorSnapshot.from_numpy(path, np.asarray(array), param_id=7, container_stack=stack)


# --- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"^encoder\..*", "encoder.layer.weight", "decoder.encoder.weight"),
        (r".*\.weight$", "a.b.weight", "a.weight.b"),
        (r"layers\.[0-2]\.", "model.layers.1.weight", "model.layers.3.weight"),
        (r"layer\d+", "layer12.weight", "layers.weight"),
    ],
)
def test_the_usual_patterns_do_what_they_look_like(pattern: str, yes: str, no: str) -> None:
    chosen = PathFilter().with_regex(pattern)
    assert chosen.matches(yes) and not chosen.matches(no)


def test_every_criterion_counts_one() -> None:
    chosen = PathFilter().with_full_paths(["a", "b"]).with_predicate(lambda p, c: False).with_regex("c")
    assert chosen.criteria_count() == 4
    assert chosen.clear_paths().criteria_count() == 2 and not chosen.matches("a")
    assert chosen.clear().is_empty() and not chosen.matches("c")


def test_predicates_see_the_container_and_are_combined_with_paths_by_or() -> None:
    chosen = PathFilter().with_predicates([lambda p, c: c == "Linear", lambda p, c: p.startswith("head.")])
    assert chosen.matches_with_container("x.weight", "Linear") and chosen.matches_with_container("head.w", "Conv2d")
    assert not chosen.matches_with_container("x.weight", "Conv2d") and not chosen.matches("x.weight")


def test_a_pattern_or_a_predicate_of_the_container_suffices() -> None:
    chosen = PathFilter().with_regex(r"^encoder\.").with_predicate(lambda p, c: c == "Embedding")
    assert chosen.matches_with_container("encoder.weight", "Linear")
    assert chosen.matches_with_container("tokens.weight", "Struct:Embedding")
    assert not chosen.matches_with_container("decoder.weight", "Linear")


def test_predicates_may_ask_for_places_in_the_container_path() -> None:
    stack = ["Struct:Model", "Vec", "Struct:Block", "Struct:Linear"]

    def asked(predicate: Any) -> bool:
        return PathFilter().with_predicate(predicate).matches_with_container_path("blocks.0.fc.weight", stack)

    assert asked(lambda p, c: c.split(".")[0] == "Model" and c.split(".")[-2] == "Block")
    assert asked(lambda p, c: c.startswith("Model.Vec") and "Block" in c and c.endswith(".Linear"))
    assert asked(lambda p, c: c.prefixed.startswith("Struct:Model.Vec") and c.prefixed.endswith("Struct:Linear"))
    assert not asked(lambda p, c: c.split(".")[1] == "Block")


def test_joined_filters_match_what_either_matches() -> None:
    both = PathFilter().with_regex("^a").or_(PathFilter().with_full_path("b").with_predicate(lambda p, c: c == "X"))
    assert both.matches("a.1") and both.matches("b") and both.matches_with_container("z", "Struct:X")
    assert not both.matches("z") and both.criteria_count() == 3


ENTRIES: dict[str, Any] = {
    "with_regex": lambda pattern: PathFilter().with_regex(pattern),
    "with_regexes": lambda pattern: PathFilter().with_regexes(["fine", pattern]),
    "from_regex_patterns": lambda pattern: PathFilter.from_regex_patterns([pattern]),
    "add_pattern": lambda pattern: KeyRemapper().add_pattern(pattern, ""),
    "from_patterns": lambda pattern: KeyRemapper.from_patterns([("fine", "x"), (pattern, "")]),
    "store.with_regex": lambda pattern: bs.BurnpackStore.from_bytes(None).with_regex(pattern),
    "store.with_regexes": lambda pattern: bs.BurnpackStore.from_bytes(None).with_regexes([pattern]),
    "store.with_key_remapping": lambda pattern: bs.BurnpackStore.from_bytes(None).with_key_remapping(pattern, ""),
    "store.with_remap_pattern": lambda pattern: bs.BurnpackStore.from_bytes(None).with_remap_pattern(pattern, ""),
    "store.map_indices_contiguous_except": lambda pattern: bs.BurnpackStore.from_bytes(
        None
    ).map_indices_contiguous_except(pattern),
    "store(regex=)": lambda pattern: bs.BurnpackStore.from_bytes(None).with_regex(pattern),
    "store(key_remapping=)": lambda pattern: bs.BurnpackStore.from_bytes(None).with_key_remapping(pattern, ""),
    "load(regex=)": lambda pattern: bs.load({}, b"not even looked at", filter=pattern),
}
INVALID = ["[", "(", ")", "*", "a{2,1}", "(?P<a", "(?P<1>x)", "\\", "(?z)", "(?<n>a)(?<n>b)", "(?P=none)", "[b-a]"]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("pattern", INVALID)
def test_an_invalid_pattern_raises_where_it_is_given_and_is_shown(entry: str, pattern: str) -> None:
    with pytest.raises(PatternError, match="Invalid regex pattern") as caught:
        ENTRIES[entry](pattern)
    assert f"'{pattern}'" in str(caught.value)  # as it was typed


CATASTROPHIC = [r"^(a+)+$", r"^(a|aa)*$", r"^(.*a){20}$", r"(x+x+)+y"]


@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_a_pattern_that_backtracks_without_end_costs_nothing_until_it_meets_such_a_name(pattern: str) -> None:
    """Python's regular expressions have no limit of time; the documentation says so, and whose patterns they are."""
    started = time.perf_counter()
    for entry in ENTRIES.values():
        if entry is not ENTRIES["load(regex=)"]:
            entry(pattern)
    names = [f"encoder.layers.{n}.attention.weight" for n in range(2000)]
    assert not any(PathFilter().with_regex(pattern).select([(name, ()) for name in names]))
    assert KeyRemapper().add_pattern(pattern, "").remap_names(names).names == names
    assert time.perf_counter() - started < 5  # a fraction of a second, on a machine that has other things to do too
    assert "backtrack" in (PathFilter.__doc__ or "")


def test_names_of_the_greatest_length_are_matched_in_no_time() -> None:
    names = [(f"{'x' * 65_000}.{n}.weight", ()) for n in range(20)]
    started = time.perf_counter()
    assert all(PathFilter().with_regex(r"\.\d+\.weight$").with_regex(r"^x+\.").select(names))
    assert time.perf_counter() - started < 5


# --- renames ----------------------------------------------------------------------------------------------------------


def test_a_pattern_renames_and_the_pairs_tell_new_and_old() -> None:
    given = [tensor(f"{part}.layer1.weight", np.zeros(1)) for part in ("encoder", "decoder")]
    renamed, pairs = KeyRemapper().add_pattern(r"^encoder\.", "transformer.encoder.").remap(given)
    assert [snapshot.path for snapshot in renamed] == ["transformer.encoder.layer1.weight", "decoder.layer1.weight"]
    assert pairs[0] == ("transformer.encoder.layer1.weight", "encoder.layer1.weight")
    assert renamed[0].param_id == 7


@pytest.mark.parametrize("make", [KeyRemapper.from_patterns, KeyRemapper.from_pattern_iter], ids=["list", "iterator"])
def test_all_patterns_apply_to_one_name(make: Any) -> None:
    rules = [(r"^encoder\.", "transformer."), (r"\.weight$", ".kernel")]
    remapper = make(rules)
    assert remapper.remap_name("encoder.layer1.weight") == "transformer.layer1.kernel"
    assert [(pattern.pattern, text) for pattern, text in remapper.to_regex_pairs()] == rules
    assert KeyRemapper.from_compiled_patterns([(re.compile("^a"), "b")]).remap_name("a") == "b"


# --- adapters ---------------------------------------------------------------------------------------------------------

LAYERS: dict[str, nn.Module] = {
    "Linear": nn.Linear(2, 3),
    "Embedding": nn.Embedding(3, 2),
    "Conv1d": nn.Conv1d(2, 2, 3),
    "Conv2d": nn.Conv2d([2, 2], [3, 3]),
    "Conv3d": nn.Conv3d([2, 2], [3, 3, 3]),
    "ConvTranspose1d": nn.ConvTranspose1d([2, 2], 3),
    "ConvTranspose2d": nn.ConvTranspose2d([2, 2], [3, 3]),
    "ConvTranspose3d": nn.ConvTranspose3d([2, 2], [3, 3, 3]),
    "DeformConv2d": nn.DeformConv2d([2, 2], [3, 3]),
    "LayerNorm": nn.LayerNorm(2),
    "GroupNorm": nn.GroupNorm(1, 2),
    "InstanceNorm": nn.InstanceNorm(2),
    "RmsNorm": nn.RmsNorm(2),
    "PRelu": nn.PRelu(),
    "BatchNorm": nn.BatchNorm(2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_types_that_adapters_know_are_those_of_the_layers(name: str) -> None:
    assert {snapshot.module_type for snapshot in bs.collect(LAYERS[name])} == {f"Struct:{name}"}


@pytest.mark.parametrize("name", LAYERS)
def test_half_precision_takes_every_layer_but_batch_norm_and_says_the_new_length(name: str) -> None:
    before = bs.collect(LAYERS[name])
    after = bs.collect(LAYERS[name], adapter=bs.HalfPrecisionAdapter())
    if name == "BatchNorm":
        assert {snapshot.dtype for snapshot in after} == {DType.F32}
        after = bs.collect(LAYERS[name], adapter=bs.HalfPrecisionAdapter().with_module("BatchNorm"))
    for old, new in zip(before, after, strict=True):
        assert (new.dtype, new.shape, new.path, new.param_id) == (DType.F16, old.shape, old.path, old.param_id)
        assert new.nbytes == old.nbytes // 2 == len(new.to_bytes())
        assert new.to_data().dtype is DType.F16
    assert bs.HalfPrecisionAdapter().module_count == len(LAYERS) - 1


@pytest.mark.parametrize("name", ["MyLayer", "Struct:MyLayer"], ids=["short", "qualified"])
def test_half_precision_takes_and_leaves_types_by_both_spellings(name: str) -> None:
    mine = tensor("w", np.ones(3, np.float32), "Struct:MyLayer")
    linear = tensor("w", np.ones(3, np.float32), "Struct:Linear")
    half = bs.HalfPrecisionAdapter()
    assert half.adapt(mine).dtype is DType.F32
    assert half.with_module(name).adapt(mine).dtype is DType.F16
    assert half.without_module(name).adapt(mine).dtype is DType.F32
    assert half.adapt(linear).dtype is DType.F16
    with pytest.raises(ValueError, match="not among"):
        half.without_module(name)
    with pytest.raises(TypeError):
        bs.HalfPrecisionAdapter("Linear")


def test_half_precision_leaves_what_is_in_no_module_and_what_is_no_single() -> None:
    scheme = DType.qfloat(QuantScheme("Q8S", QuantStore("Native")))
    quantized = TensorSnapshot.from_data(
        "q", TensorData.from_bytes(bytes(8), scheme, [4]), container_stack=["Struct:Linear"]
    )
    half = bs.HalfPrecisionAdapter()
    for snapshot in (tensor("w", np.ones(3, np.float32)), tensor("w", np.ones(3), "Struct:Linear"), quantized):
        assert half.adapt(snapshot) is snapshot


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64])
def test_a_transposed_weight_has_its_numbers_moved(dtype: Any) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    for adapter in (bs.PyTorchToBurnAdapter(), bs.BurnToPyTorchAdapter()):
        turned = adapter.adapt(tensor("fc.weight", array, "Struct:Model", "Struct:Linear"))
        assert turned.shape == (3, 2) and turned.numpy().tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(37, 70), (70, 37), (32, 64), (1, 45), (45, 1), (0, 3), (3, 0)])
def test_a_transpose_is_what_its_definition_says(shape: tuple[int, int], width: int) -> None:
    array = np.random.default_rng(width).integers(0, 256, (*shape, width), np.uint8).view(f"<u{width}")[..., 0]
    turned = transposed(tensor("w", array)).numpy()
    assert turned.shape == shape[::-1]
    assert all(turned[j, i] == array[i, j] for i in range(shape[0]) for j in range(shape[1]))


def test_a_quantized_linear_weight_is_not_transposed() -> None:
    dtype = DType.qfloat(QuantScheme("Q4S", QuantStore("PackedU32")))
    raw = bytes(range(12)) + np.float32(0.5).tobytes()
    stored = TensorData.from_bytes(raw, dtype, (3, 8))
    for adapter in (bs.BurnToPyTorchAdapter(), bs.PyTorchToBurnAdapter()):
        passed = adapter.adapt(TensorSnapshot.from_data("fc.weight", stored, container_stack=["Struct:Linear"]))
        assert (passed.shape, passed.to_bytes()) == ((3, 8), raw)


def test_a_rename_changes_the_last_segment_only() -> None:
    norm = ("Struct:Model", "Vec", "Struct:LayerNorm")
    to_burn = bs.PyTorchToBurnAdapter()
    assert (
        to_burn.adapt(tensor("encoder.layers.0.norm.weight", np.ones(1), *norm)).path == "encoder.layers.0.norm.gamma"
    )
    assert to_burn.adapt(tensor("weight", np.ones(1), "Struct:LayerNorm")).path == "gamma"
    assert to_burn.adapt(tensor("weight.weight", np.ones(1), *norm)).path == "weight.gamma"


class Rename(bs.ModuleAdapter):
    def __init__(self, old: str, new: str) -> None:
        self.old, self.new, self.calls = old, new, 0

    def adapt(self, snapshot: TensorSnapshot) -> TensorSnapshot:
        self.calls += 1
        return snapshot.with_path(snapshot.path.replace(self.old, self.new))

    def alternative_param_name(self, param_name: str, module_type: str) -> str | None:
        return self.new if param_name == self.old else None


def test_a_chain_asks_each_adapter_once_and_a_copy_of_it_does_the_same() -> None:
    first, second = Rename("weight", "a"), Rename("a", "b")
    chain = first.chain(second)
    assert chain.adapt(tensor("weight", np.ones(1))).path == "b"
    assert (first.calls, second.calls) == (1, 1)
    for same in (chain, copy.copy(chain), copy.deepcopy(chain)):
        assert same.alternative_param_name("weight", "Struct:X") == "b"
        assert same.alternative_param_name("a", "Struct:X") == "b"
        assert same.alternative_param_name("other", "Struct:X") is None
    assert Rename("weight", "a").chain(Rename("q", "r")).alternative_param_name("weight", "Struct:X") == "a"


def test_transpose_and_half_precision_work_together() -> None:
    weight = tensor("fc.weight", np.arange(6, dtype=np.float32).reshape(2, 3), "Struct:Linear")
    for chain in (
        bs.PyTorchToBurnAdapter().chain(bs.HalfPrecisionAdapter()),
        bs.PyTorchToBurnAdapter().chain(bs.FloatCastAdapter.to(DType.F16)),
    ):
        both = chain.adapt(weight)
        assert (both.dtype, both.shape, both.nbytes) == (DType.F16, (3, 2), 12)
        assert both.numpy().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_float_cast_takes_any_float_of_any_module_and_nothing_else() -> None:
    to_half = bs.FloatCastAdapter.to(DType.F16)
    brain = tensor("encoder.w", np.array([1.5, -2, 0.25], ml_dtypes.bfloat16))
    cast = to_half.adapt(brain)
    assert (cast.path, cast.dtype, cast.numpy().tolist()) == ("encoder.w", DType.F16, [1.5, -2, 0.25])
    assert to_half.adapt(tensor("w", np.ones(2, np.float32), "Struct:Custom")).dtype is DType.F16
    for unchanged in (tensor("w", np.ones(2, np.float16)), tensor("w", np.ones(2, np.int64))):
        assert to_half.adapt(unchanged) is unchanged


@pytest.mark.parametrize("name", ["I64", "U8", "Bool"])
def test_a_float_cast_to_what_is_no_float_is_refused(name: str) -> None:
    with pytest.raises(DTypeError, match="must be a float dtype"):
        bs.FloatCastAdapter.to(DType.parse(name))


@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_flex32_stays_flex32_through_a_cast_and_a_file(source: Any) -> None:
    flexible = bs.FloatCastAdapter.to(DType.Flex32).adapt(tensor("w", np.array([1, 0.5], source)))
    assert flexible.dtype is flexible.to_data().dtype is DType.Flex32
    with bs.open(bs.serialize([flexible], format="burnpack")) as f:
        assert f["w"].dtype is DType.Flex32 and f["w"].numpy().tolist() == [1, 0.5]
