"""What Burn's own tests ask of collecting: paths, containers and filters over every way of nesting."""

from __future__ import annotations

import numpy as np
import pytest

import burnstore as bs
from burnstore import PathFilter, nn


def paths(model: object, chosen: PathFilter | None = None) -> list[str]:
    return [snapshot.path for snapshot in bs.collect(model, chosen)]


def zeros(*names: str) -> dict[str, np.ndarray]:
    return {name: np.zeros(1, np.float32) for name in names}


def test_a_tensor_is_collected_under_its_path_with_its_values() -> None:
    (snapshot,) = bs.collect({"model": {"weight": np.float32([[1, 2], [3, 4]])}})
    assert (snapshot.path, snapshot.shape, snapshot.numpy().tolist()) == ("model.weight", (2, 2), [[1, 2], [3, 4]])


def test_parameters_of_the_root_have_paths_of_one_segment() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Param.from_data([[1.0, 2.0], [3.0, 4.0]])
            self.bias = nn.Param.from_data([5.0, 6.0])

    weight, bias = bs.collect(Root())
    assert (weight.path, weight.numpy().tolist()) == ("weight", [[1, 2], [3, 4]])
    assert (bias.path, bias.numpy().tolist()) == ("bias", [5, 6])
    assert weight.container_stack == ("Struct:Root",)


FIVE = ("encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias", "head.weight")


@pytest.mark.parametrize(
    ("chosen", "kept"),
    [
        (PathFilter().with_regex(r"^encoder\..*"), ["encoder.weight", "encoder.bias"]),
        (
            PathFilter().with_regexes([r"^encoder\.", r"^decoder\.b"]),
            ["encoder.weight", "encoder.bias", "decoder.bias"],
        ),
        (
            PathFilter().with_predicate(lambda path, _: path.endswith("weight")),
            ["encoder.weight", "decoder.weight", "head.weight"],
        ),
        (
            PathFilter().with_predicate(lambda path, _: path.split(".")[0].endswith("coder") and path.endswith("t")),
            ["encoder.weight", "decoder.weight"],
        ),
    ],
    ids=["regex", "regexes", "predicate", "structure of the path"],
)
def test_a_filter_decides_what_is_collected(chosen: PathFilter, kept: list[str]) -> None:
    assert paths(zeros(*FIVE), chosen) == kept


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        self.layer1 = nn.Linear(3, 4)
        self.layer2 = nn.Linear(4, 2)


def test_modules_in_modules_add_a_segment_each() -> None:
    shapes = {snapshot.path: snapshot.shape for snapshot in bs.collect(TwoLayers())}
    assert shapes == {"layer1.weight": (3, 4), "layer1.bias": (4,), "layer2.weight": (4, 2), "layer2.bias": (2,)}


def test_a_linear_layer_has_a_weight_and_a_bias() -> None:
    assert {s.path: s.shape for s in bs.collect(nn.Linear(10, 20))} == {"weight": (10, 20), "bias": (20,)}


class Layer(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(2, 2)


class Block(nn.Module):
    def __init__(self) -> None:
        self.norm = nn.LayerNorm(2)
        self.layer = Layer()


class Branch(nn.Module):
    def __init__(self) -> None:
        self.scale = nn.Param([1])
        self.block1 = Block()
        self.block2 = Block()


class Deep(nn.Module):
    def __init__(self) -> None:
        self.backbone = Branch()
        self.head = Branch()


def test_eighteen_tensors_over_five_levels_have_the_expected_names() -> None:
    expected = [
        f"{branch}.{rest}"
        for branch in ("backbone", "head")
        for rest in (
            "scale",
            *(
                f"{block}.{leaf}"
                for block in ("block1", "block2")
                for leaf in ("norm.gamma", "norm.beta", "layer.fc.weight", "layer.fc.bias")
            ),
        )
    ]
    assert paths(Deep()) == expected
    assert len(expected) == 18 and max(path.count(".") for path in expected) == 4
    (deepest,) = bs.collect(Deep(), PathFilter.from_paths(["head.block2.layer.fc.bias"]))
    assert deepest.container_stack == ("Struct:Deep", "Struct:Branch", "Struct:Block", "Struct:Layer", "Struct:Linear")


@pytest.mark.parametrize(("pattern", "count"), [(r"\.fc\.", 8), (r"\.norm\.", 8), (r"^backbone\.", 9), (r"^head\.", 9)])
def test_a_deep_model_is_exported_in_part(pattern: str, count: int) -> None:
    store = bs.BurnpackStore.from_bytes(None).with_regex(pattern)
    store.save(Deep())
    assert len(store.keys()) == count == len(paths(Deep(), PathFilter().with_regex(pattern)))


class Optional(nn.Module):
    def __init__(self, *, filled: bool) -> None:
        self.required = nn.Param([2])
        self.maybe = nn.Param([3]) if filled else None


def test_an_optional_field_is_there_or_not_and_adds_no_segment() -> None:
    assert paths(Optional(filled=True)) == ["required", "maybe"]
    assert paths(Optional(filled=False)) == ["required"]


class Holding(nn.Module):
    def __init__(self, layers: object) -> None:
        self.layers = layers


@pytest.mark.parametrize(("collection", "container"), [(list, "Vec"), (tuple, "Tuple"), (nn.FixedArray, "Array")])
def test_collections_number_what_they_hold(collection: type, container: str) -> None:
    model = Holding(collection([nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 2)]))
    assert paths(model) == [f"layers.{n}.{leaf}" for n in range(3) for leaf in ("weight", "bias")]
    first = bs.collect(model)[0]
    assert first.container_stack == ("Struct:Holding", container, "Struct:Linear")
    assert first.module_type == "Struct:Linear"


class Kind(nn.Enum):
    LayerA = nn.variant(nn.Linear)
    LayerB = nn.variant(nn.Linear)


def test_the_live_variant_of_an_enum_is_a_segment() -> None:
    assert paths(Holding(Kind.LayerA(nn.Linear(2, 3)))) == ["layers.LayerA.weight", "layers.LayerA.bias"]
    assert paths(Holding(Kind.LayerB(nn.Linear(2, 3)))) == ["layers.LayerB.weight", "layers.LayerB.bias"]
    weight = bs.collect(Holding(Kind.LayerB(nn.Linear(2, 3))))[0]
    assert weight.container_stack == ("Struct:Holding", "Enum:Kind", "Struct:Linear")
    skipping = bs.collect(Holding(Kind.LayerB(nn.Linear(2, 3))), skip_enum_variants=True)
    assert [snapshot.path for snapshot in skipping] == ["layers.weight", "layers.bias"]


def test_a_raw_parameter_in_an_enum_belongs_to_the_enum() -> None:
    class Raw(nn.Enum):
        Only = nn.variant()

    (snapshot,) = bs.collect(Holding([Raw.Only(nn.Param([1]))]))
    assert (snapshot.path, snapshot.module_type) == ("layers.0.Only", "Enum:Raw")


class Complex(nn.Module):
    def __init__(self) -> None:
        self.array = nn.FixedArray([nn.Linear(1, 1), nn.Linear(1, 1)])
        self.vec = [nn.Linear(1, 1), nn.Linear(1, 1)]
        self.single = nn.Linear(1, 1)


def test_ten_tensors_across_array_vec_and_field_are_all_of_linear_layers() -> None:
    snapshots = bs.collect(Complex())
    assert len(snapshots) == 10
    assert {snapshot.module_type for snapshot in snapshots} == {"Struct:Linear"}
    assert {snapshot.container_type for snapshot in snapshots} == {"Struct:Linear"}


def test_a_filter_on_the_innermost_container_keeps_what_it_holds() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            self.first = nn.Linear(1, 1)
            self.norm = nn.LayerNorm(1)
            self.layers = [nn.Linear(1, 1)]
            self.raw = nn.Param([1])

    linear = PathFilter().with_predicate(lambda path, container: container.split(".")[-1] == "Linear")
    assert paths(Mixed(), linear) == ["first.weight", "first.bias", "layers.0.weight", "layers.0.bias"]
    burns = PathFilter().with_predicate(lambda path, container: container.entries[-1] == "Struct:Linear")
    assert paths(Mixed(), burns) == paths(Mixed(), linear)


def test_what_lies_in_wrappers_alone_has_no_module_type() -> None:
    (snapshot,) = bs.collect([(np.zeros(1),)])
    assert (snapshot.container_stack, snapshot.module_type) == (("Vec", "Tuple"), None)
    (inside,) = bs.collect(Holding([[np.zeros(1)]]))
    assert inside.module_type == "Struct:Holding"


def test_what_an_adapter_renames_is_filtered_under_the_models_own_name() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            self.norm = nn.LayerNorm(2)

    kept = bs.collect(Norm(), PathFilter().with_regex("gamma"), bs.BurnToPyTorchAdapter())
    assert [snapshot.path for snapshot in kept] == ["norm.weight"]


def test_duplicates_and_order_are_the_models() -> None:
    shared = nn.Param([1])
    assert paths(Holding([shared, nn.Param([1]), shared])) == ["layers.0", "layers.1", "layers.2"]
