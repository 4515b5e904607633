from __future__ import annotations

import numpy as np
import pytest

import burnstore as bs
from burnstore.jobs.inspect.inspect import inspect
from burnstore.jobs.inspect.tree import DEEPEST, ModuleTree, TensorRow, Totals


def rows(**shapes: tuple[int, ...]) -> list[TensorRow]:
    return [row_of(name.replace("__", "."), shape) for name, shape in shapes.items()]


def row_of(name: str, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> TensorRow:
    chosen = bs.DType.parse(dtype)
    return TensorRow(name, chosen, shape, int(np.prod(shape)), chosen.nbytes(shape), 0, None)


def totals(whole: ModuleTree) -> dict[str, Totals]:
    return {".".join(path): module.total for path, module in whole.walk()}


def test_every_module_counts_what_lies_in_it_at_any_depth() -> None:
    whole = ModuleTree.of(rows(a__b__w=(2, 3), a__b__v=(4,), a__w=(1,), c__w=(5,), top=(7,)))
    assert totals(whole) == {
        "": Totals(5, 23, 92),
        "a": Totals(3, 11, 44),
        "a.b": Totals(2, 10, 40),
        "c": Totals(1, 5, 20),
    }
    assert list(whole.tensors) == ["top"]
    assert list(whole.modules["a"].tensors) == ["w"]
    assert list(whole.modules["a"].modules["b"].tensors) == ["w", "v"]


def test_modules_come_in_the_order_of_their_first_tensor() -> None:
    whole = ModuleTree.of([row_of("b.w"), row_of("a.w"), row_of("b.v"), row_of("a.c.w")])
    assert [".".join(path) for path, _ in whole.walk()] == ["", "b", "a", "a.c"]


def test_dtypes_of_a_module_are_all_that_it_holds() -> None:
    whole = ModuleTree.of([row_of("a.w"), row_of("a.n", dtype="I64"), row_of("b.w", dtype="BF16")])
    assert list(whole.dtypes) == ["F32", "I64", "BF16"]
    assert list(whole.modules["a"].dtypes) == ["F32", "I64"]


@pytest.mark.parametrize(
    ("depth", "modules", "tensors"),
    [(0, [""], ["top"]), (1, ["", "a"], ["top", "a.w"]), (2, ["", "a", "a.b"], ["top", "a.w", "a.b.w"])],
)
def test_a_depth_cuts_the_tree_but_no_total(depth: int, modules: list[str], tensors: list[str]) -> None:
    whole = ModuleTree.of(rows(a__b__w=(2, 3), a__w=(1,), top=(7,)), depth=depth)
    assert [".".join(path) for path, _ in whole.walk()] == modules
    assert [".".join([*path, name]) for path, module in whole.walk() for name in module.tensors] == tensors
    assert whole.total == Totals(3, 14, 56)


@pytest.mark.parametrize("name", ["", ".", "..", "a..b", ".a", "a.", "a.b\n.c", "\x00.\u202e.x"])
def test_a_name_is_whole_again_when_its_parts_are_joined(name: str) -> None:
    whole = ModuleTree.of([row_of(name)])
    assert [".".join([*path, last]) for path, module in whole.walk() for last in module.tensors] == [name]


def test_names_that_are_endlessly_nested_stay_small() -> None:
    deep = ".".join(["m"] * 30_000)
    whole = ModuleTree.of([row_of(f"{deep}.{at}") for at in range(50)])
    assert max(len(path) for path, _ in whole.walk()) == DEEPEST
    bottom = next(module for path, module in whole.walk() if len(path) == DEEPEST)
    assert bottom.count == len(bottom.tensors) == 50


def test_a_tensor_may_have_the_name_of_a_module() -> None:
    whole = ModuleTree.of([row_of("a"), row_of("a.b")])
    assert list(whole.tensors) == ["a"] and list(whole.modules) == ["a"]
    assert whole.count == 2


def test_a_tree_is_plain_data_for_json() -> None:
    assert ModuleTree.of(rows(a__w=(3,))).to_dicts() == [
        {"path": "", "tensors": 1, "elements": 3, "nbytes": 12, "dtypes": ["F32"]},
        {"path": "a", "tensors": 1, "elements": 3, "nbytes": 12, "dtypes": ["F32"]},
    ]
    assert ModuleTree.of([]).to_dicts() == [{"path": "", "tensors": 0, "elements": 0, "nbytes": 0, "dtypes": []}]


def test_a_negative_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        ModuleTree.of([], depth=-1)


def test_the_whole_has_the_totals_of_the_file() -> None:
    tensors = {f"l.{at}.{part}": np.zeros(at + 1) for at in range(20) for part in ("w", "b")}
    found = inspect(bs.serialize(tensors, format="safetensors"))
    assert found.tree.total == found.total
