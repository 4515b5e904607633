"""Parameters that overlap in memory load to the file's values or are refused, whatever the order and the way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import burnstore as bs
from burnstore.models.load.ties import overlapping
from burnstore.models.torch.binding import _overlaps
from burnstore.pipeline.ends import target_of_model

SIZE = 200  # 160 KB: read directly into the model, if nothing speaks against it


class Holder(nn.Module):
    """A module whose buffers are whatever a function makes of one matrix."""

    def __init__(self, make: Callable[[torch.Tensor], dict[str, torch.Tensor]], size: int = SIZE) -> None:
        super().__init__()
        base = torch.zeros(size, size)
        for name, tensor in make(base).items():
            self.register_buffer(name, tensor)


Made = dict[str, torch.Tensor]

OVERLAPS: dict[str, Callable[[torch.Tensor], Made]] = {
    "a transposed tie": lambda w: {"a": w, "b": w.t()},
    "a slice": lambda w: {"a": w, "b": w[10:20]},
    "columns": lambda w: {"a": w, "b": w[:, 3:9]},
    "a single element": lambda w: {"a": w, "b": w[7, 7]},
    "the slice first": lambda w: {"a": w[10:20], "b": w},
    "two slices that meet in a row": lambda w: {"a": w[:20], "b": w[19:]},
    "a row and a column": lambda w: {"a": w[3], "b": w[:, 5]},
    "bits": lambda w: {"a": w, "b": w.view(torch.int32)},
    "bytes of another width": lambda w: {"a": w, "b": w.view(-1)[:10].view(torch.float64)},
    "a reshaped view": lambda w: {"a": w, "b": w.view(SIZE // 2, SIZE * 2)},
    "every second": lambda w: {"a": w, "b": w[::2, ::2]},
    "a chain": lambda w: {"a": w[:20], "b": w[10:40], "c": w[30:60]},
}

DISJOINT: dict[str, Callable[[torch.Tensor], Made]] = {
    "rows": lambda w: {"a": w[:20], "b": w[20:]},
    "columns that alternate": lambda w: {"a": w[:, ::2], "b": w[:, 1::2]},
    "left and right": lambda w: {"a": w[:, :50], "b": w[:, 50:]},
    "both diagonals of blocks": lambda w: {"a": w[:50, :50], "b": w[50:, 50:], "c": w[:50, 50:], "d": w[50:, :50]},
    "a ninth each": lambda w: {f"t{i}{j}": w[i::3, j::3] for i in range(3) for j in range(3)},
}


def noise(model: nn.Module, seed: int) -> Made:
    """Values for every tensor, all independent."""
    draw = np.random.default_rng(seed)
    return {
        name: torch.from_numpy(draw.integers(1, 9, tuple(each.shape))).to(each.dtype)
        for name, each in model.state_dict().items()
    }


def state(model: nn.Module) -> Made:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


WAYS = [True, False]


@pytest.mark.parametrize("in_place", WAYS)
@pytest.mark.parametrize("case", OVERLAPS)
def test_values_that_agree_are_loaded(case: str, in_place: bool, tmp_path: Path) -> None:
    saved, model = Holder(OVERLAPS[case]), Holder(OVERLAPS[case])
    with torch.no_grad():
        for tensor in saved.buffers():  # whichever comes last, all agree: they are one memory
            tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    wanted = state(saved)
    for names in itertools.permutations(wanted):  # the order in the file does not matter
        bs.save({name: wanted[name].contiguous() for name in names}, tmp_path / "m.safetensors", overwrite=True)
        bs.load(model, tmp_path / "m.safetensors", in_place=in_place)
        for name, tensor in state(model).items():
            assert torch.equal(tensor, wanted[name]), name
        with torch.no_grad():
            for tensor in model.buffers():
                tensor.zero_()


@pytest.mark.parametrize("in_place", WAYS)
@pytest.mark.parametrize("case", OVERLAPS)
def test_values_that_do_not_agree_are_refused_before_anything_changes(
    case: str, in_place: bool, tmp_path: Path
) -> None:
    model = Holder(OVERLAPS[case])
    given = noise(model, 1)
    given["b"] = given["b"] + 9  # so that no element of it is one of the others
    bs.save({name: tensor.contiguous() for name, tensor in given.items()}, tmp_path / "m.safetensors")
    before = state(model)
    with pytest.raises(
        bs.errors.LoadError, match=r"'[abc]': shares memory with '[ab]', for which the source has other values"
    ):
        bs.load(model, tmp_path / "m.safetensors", in_place=in_place)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(model).items())


@pytest.mark.parametrize("in_place", WAYS)
@pytest.mark.parametrize("case", DISJOINT)
def test_disjoint_views_are_independent(case: str, in_place: bool, tmp_path: Path) -> None:
    model = Holder(DISJOINT[case], 300)
    given = noise(model, 2)
    bs.save({name: tensor.contiguous() for name, tensor in given.items()}, tmp_path / "m.safetensors")
    result = bs.load(model, tmp_path / "m.safetensors", in_place=in_place)
    assert all(torch.equal(tensor, given[name]) for name, tensor in state(model).items())
    assert not overlapping(target_of_model(model).slots)
    assert not [note for note in result.notes if "memory" in note]


def test_a_view_that_the_file_does_not_have_changes_with_what_it_views_and_is_noted(tmp_path: Path) -> None:
    model = Holder(OVERLAPS["a slice"])
    given = noise(model, 3)
    bs.save({"a": given["a"]}, tmp_path / "m.safetensors")
    result = bs.load(model, tmp_path / "m.safetensors", allow_partial=True)
    assert torch.equal(model.b, given["a"][10:20])
    assert "changed with 'a', whose memory they share: b" in result.notes


def test_a_conjugated_view_is_no_tie(tmp_path: Path) -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, dtype=torch.complex64))
            self.register_buffer("view", self.weight.detach().conj())

    values = torch.complex(torch.arange(4.0), torch.ones(4))
    bs.save({"weight": values}, tmp_path / "m.safetensors")
    model = Complex()
    bs.load(model, tmp_path / "m.safetensors", allow_partial=True)
    assert torch.equal(model.weight.detach(), values)
    bs.save({"weight": values, "view": values}, tmp_path / "m.safetensors", overwrite=True)
    model = Complex()
    with pytest.raises(bs.errors.LoadError, match="shares memory"):
        bs.load(model, tmp_path / "m.safetensors")
    assert not model.weight.detach().abs().sum()


def test_one_array_behind_two_storages_is_found(tmp_path: Path) -> None:
    memory = np.zeros((300, 300), np.float32)
    model = nn.Module()
    model.register_buffer("a", torch.from_numpy(memory))
    model.register_buffer("b", torch.from_numpy(memory[100:200]))
    given = {"a": torch.ones(300, 300), "b": torch.zeros(100, 300)}
    bs.save(given, tmp_path / "m.safetensors")
    with pytest.raises(bs.errors.LoadError, match="shares memory with 'a'"):
        bs.load(model, tmp_path / "m.safetensors")
    assert not memory.any()


def test_ties_and_overlaps_go_together(tmp_path: Path) -> None:
    model = Holder(lambda w: {"a": w, "tie": w, "b": w.t()})
    values = torch.arange(SIZE * SIZE, dtype=torch.float32).view(SIZE, SIZE)
    bs.save({"a": values, "tie": values, "b": values.t().contiguous()}, tmp_path / "m.safetensors")
    bs.load(model, tmp_path / "m.safetensors")
    assert torch.equal(model.a, values) and torch.equal(model.tie, values) and torch.equal(model.b, values.t())
    bs.save({"a": values, "tie": values + 1, "b": values.t().contiguous()}, tmp_path / "m.safetensors", overwrite=True)
    with pytest.raises(bs.errors.LoadError, match=r"'tie'.*shared with 'a'"):
        bs.load(model, tmp_path / "m.safetensors")


def test_tensors_that_are_replaced_do_not_share_what_they_shared(tmp_path: Path) -> None:
    base = torch.zeros(SIZE, SIZE)
    model: dict[str, Any] = {"a": base, "b": base.t()}
    given = {"a": torch.ones(SIZE, SIZE), "b": torch.full((SIZE, SIZE), 2.0)}
    bs.save(given, tmp_path / "m.safetensors")
    bs.load(model, tmp_path / "m.safetensors")
    assert torch.equal(model["a"], given["a"]) and torch.equal(model["b"], given["b"])
    assert not base.any()


def test_a_parameter_whose_own_elements_share_memory_is_refused(tmp_path: Path) -> None:
    bs.save({"a": torch.ones(3, 3)}, tmp_path / "m.safetensors")
    model = nn.Module()
    model.register_buffer("a", torch.zeros(5).as_strided((3, 3), (1, 1)))
    with pytest.raises(bs.errors.ModelError, match="several elements share memory"):
        bs.load(model, tmp_path / "m.safetensors")


def test_every_small_stride_is_judged_right() -> None:
    memory = torch.zeros(64)
    for shape in ((2,), (3, 2), (2, 3, 2)):
        for strides in itertools.product(range(5), repeat=len(shape)):
            tensor = memory.as_strided(shape, strides)
            places = [sum(map(int.__mul__, at, strides)) for at in itertools.product(*map(range, shape))]
            assert _overlaps(tensor) == (len(set(places)) < len(places)), (shape, strides)


def test_many_views_of_one_memory_are_sorted_out_in_little_time(tmp_path: Path) -> None:
    model = Holder(lambda w: {f"c{n:03}": w[:, n] for n in range(SIZE)})
    assert not overlapping(target_of_model(model).slots)


def test_arrays_of_a_tuple_that_overlap_are_checked_as_tensors_are(tmp_path: Path) -> None:
    """What cannot be replaced is filled in place, where one array would overwrite another."""
    for views in (lambda b: (b[:3], b[1:]), lambda b: (b, b.T), lambda b: (b[::-1], b), lambda b: (b, b[:])):
        memory = np.zeros((4, 4), np.float32)
        model = views(memory)
        agreeing = views(np.arange(16, dtype=np.float32).reshape(4, 4))
        bs.save(
            {str(at): np.ascontiguousarray(each) for at, each in enumerate(agreeing)},
            tmp_path / "a.bpk",
            layout="burn",
            overwrite=True,
        )
        if model[0].strides[0] > 0:
            bs.load(model, tmp_path / "a.bpk")
            assert all(np.array_equal(one, other) for one, other in zip(model, agreeing, strict=True))
        memory[...] = 0
        bs.save(
            {str(at): np.full(each.shape, at + 1, np.float32) for at, each in enumerate(model)},
            tmp_path / "b.bpk",
            layout="burn",
            overwrite=True,
        )
        with pytest.raises(bs.errors.LoadError):
            bs.load(model, tmp_path / "b.bpk")
        assert not memory.any()
    apart = np.zeros((4, 4), np.float32)
    bs.save({"0": np.ones((4, 2), np.float32), "1": np.full((4, 2), 2, np.float32)}, tmp_path / "c.bpk", layout="burn")
    bs.load((apart[:, ::2], apart[:, 1::2]), tmp_path / "c.bpk")
    assert apart[0].tolist() == [1, 2, 1, 2]


def test_a_tied_parameter_that_the_filter_leaves_out_is_noted_as_changed():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    values = {"a.weight": torch.ones(2, 2), "b.weight": torch.zeros(2, 2)}
    data = bs.serialize(values, format="safetensors")
    assert bs.load(model, data, filter="^a").notes == [
        "changed with 'a.weight', whose memory they share: b.weight, which the filter leaves out"
    ]
    shared = torch.zeros(2, 2)
    entries = {"a.weight": shared, "b.weight": shared}
    assert not bs.load(entries, data, filter="^a").notes  # The entry is replaced, and the other one stays.
    assert torch.equal(entries["b.weight"], torch.zeros(2, 2))
