"""Tensors that are cut out of shared memory, many with one call: each is what it is when it is cut alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.gpu.checks import bits, ring_for

import burnstore as bs
from burnstore.formats import placement
from burnstore.formats.placement import series
from burnstore.tensor.dtype import DType

Entry = tuple[str, str, list[int]]
"""The name, dtype and shape of a tensor of a SafeTensors file."""

BITS = {"F64": 64, "F32": 32, "BF16": 16, "I64": 64, "U8": 8, "F8_E4M3": 8, "F4": 4, "C64": 64, "BOOL": 8}

LAYER: list[tuple[str, str, list[int]]] = [
    *[(f"attention.{name}", "BF16", [4, 6]) for name in "qkvo"],
    *[
        ("up", "BF16", [8, 4]),
        ("down", "BF16", [4, 8]),
        ("scale", "F32", [2]),
        ("norm", "F32", [6]),
        ("step", "I64", []),
    ],
    *[("ones", "F32", [1, 3, 1, 1]), ("none", "F32", [0, 5]), ("packed", "F4", [2, 16]), ("bytes", "U8", [12])],
]


def repeated(layers: int, layer: list[Entry] | None = None) -> list[Entry]:
    return [
        (f"layers.{number}.{name}", dtype, shape)
        for number in range(layers)
        for name, dtype, shape in (LAYER if layer is None else layer)
    ]


def write(path: Path, entries: list[Entry], *, shift: int = 0) -> Path:
    """A file of these tensors in this order, of noise; its data begin ``shift`` bytes behind a multiple of 16."""
    header: dict[str, Any] = {}
    at = 0
    for name, dtype, shape in entries:
        stop = at + int(np.prod(shape, dtype=np.int64)) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * ((shift - 8 - len(text)) % 16)
    raw = np.random.default_rng(at).integers(0, 2, at, np.uint8)  # bytes that a bool can be
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw.tobytes())
    return path


def described(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All that can be seen of a tensor, but where its memory happens to be."""
    memory = tensor.untyped_storage().nbytes(), tensor.storage_offset(), tensor.stride()
    return tensor.shape, tensor.dtype, *memory, tensor._is_view(), tensor._version


@pytest.fixture(autouse=True)
def _ring() -> Iterator[None]:
    with ring_for("cpu"):
        yield


def loaded(path: Path, names: list[str] | None = None) -> dict[str, torch.Tensor]:
    with bs.open(path) as file:
        return file.torch(names, device="cpu")


def assert_cut_as_if_alone(path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str] | None = None) -> None:
    """Compare with tensors that are made singly, and these with what the host has."""
    found = loaded(path, names)
    with monkeypatch.context() as patched:
        patched.setattr(placement, "series", lambda *_, **__: iter(()))
        alone = loaded(path, names)
    with bs.open(path) as file:
        wanted = file.torch(names)
    assert list(found) == list(alone) == list(wanted)
    for name in wanted:
        assert described(found[name]) == described(alone[name]), name
        assert found[name].dtype == wanted[name].dtype and found[name].stride() == wanted[name].stride(), name
        assert torch.equal(bits(found[name]), bits(wanted[name])), name


def count_series(monkeypatch: pytest.MonkeyPatch) -> list[slice]:
    seen: list[slice] = []

    def spy(*columns: Any, shortest: int) -> Iterator[slice]:
        for rows in series(*columns, shortest=shortest):
            seen.append(rows)
            yield rows

    monkeypatch.setattr(placement, "series", spy)
    return seen


@pytest.mark.parametrize("shift", [0, 1, 2, 4, 8, 12])
@pytest.mark.parametrize("layers", [1, 2, 8, 9, 40])
def test_repeated_layers_are_cut_as_single_tensors_are(
    layers: int, shift: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_cut_as_if_alone(write(tmp_path / "a.safetensors", repeated(layers), shift=shift), monkeypatch)


def test_most_tensors_of_repeated_layers_are_cut_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count_series(monkeypatch)
    entries = repeated(300)
    loaded(write(tmp_path / "a.safetensors", entries))
    together = sum(len(range(*rows.indices(len(entries)))) for rows in seen)
    assert together > 0.95 * len(entries) and len(seen) < 2 * len(LAYER)


def test_tensors_that_share_several_allocations_are_cut_in_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.safetensors", repeated(60, [("w", "F32", [300, 300]), ("b", "F32", [300])]))
    assert len({tensor.untyped_storage().data_ptr() for tensor in loaded(path).values()}) > 2
    assert_cut_as_if_alone(path, monkeypatch)


def test_tensors_of_no_order_are_cut_singly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    entries: list[Entry] = [
        (f"t{i}", str(random.choice(list(BITS))), [int(e) for e in random.integers(1, 5, random.integers(1, 4))] + [8])
        for i in range(500)
    ]
    assert_cut_as_if_alone(write(tmp_path / "a.safetensors", entries), monkeypatch)


def test_what_cannot_be_carried_stands_between_what_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        tmp_path / "a.safetensors", repeated(30, [("w", "F32", [4]), ("mask", "BOOL", [4]), ("v", "F32", [4])])
    )
    assert_cut_as_if_alone(path, monkeypatch)


def test_names_in_another_order_come_in_that_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = repeated(40)
    path = write(tmp_path / "a.safetensors", entries)
    names = [name for name, *_ in entries]
    for some in (names[::-1], names[::13], names[5:200:2], sorted(names)):
        assert_cut_as_if_alone(path, monkeypatch, some)


def test_a_tensor_that_is_written_to_tells_the_others_nothing(tmp_path: Path) -> None:
    found = loaded(write(tmp_path / "a.safetensors", repeated(20, [("w", "F32", [4]), ("b", "F32", [4])])))
    before = {name: tensor.clone() for name, tensor in found.items()}
    weight = found["layers.3.w"].requires_grad_()
    (weight * found["layers.4.w"]).sum().backward()
    assert torch.equal(weight.grad, before["layers.4.w"])
    found["layers.4.w"].add_(1)
    assert found["layers.4.w"]._version == 1
    with torch.no_grad():
        weight.zero_()
    for name, tensor in found.items():
        assert not tensor._is_view() and tensor.is_leaf and tensor._base is None
        if name not in ("layers.3.w", "layers.4.w"):
            assert tensor._version == 0 and torch.equal(tensor, before[name])


def test_pairs_that_there_are_not_are_reported_with_their_tensor(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", [*repeated(10), ("odd", "F4", [2, 3, 1])][::-1])
    with pytest.raises(bs.errors.DTypeError, match="in pairs") as caught:
        loaded(path)
    assert caught.value.tensor == "odd"


def test_extents_beside_a_zero_are_no_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer: list[Entry] = [("none", "U8", [1 << 59, 0]), ("w", "U8", [3])]
    assert_cut_as_if_alone(write(tmp_path / "a.safetensors", repeated(40, layer)), monkeypatch)


# --- series -----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple), min_size=1, max_size=4),
    st.lists(st.integers(1, 12), min_size=4, max_size=4),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
    st.integers(2, 6),
)
def test_series_are_of_one_kind_and_of_equal_distances(
    layers: list[tuple[int, ...]], times: list[int], sizes: list[int], shortest: int
) -> None:
    kinds = np.array([kind for layer, many in zip(layers, times, strict=False) for kind in layer * many])
    begins = np.cumsum(np.array(sizes)[kinds]) - np.array(sizes)[kinds]
    taken: list[int] = []
    for rows in series(kinds, begins, shortest=shortest):
        numbers = list(range(*rows.indices(len(kinds))))
        assert len(numbers) >= shortest and rows.step > 0
        assert len(set(kinds[numbers])) == 1 and len(set(np.diff(begins[numbers]).tolist())) == 1
        taken += numbers
    assert len(set(taken)) == len(taken)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_few_rows_are_a_series_or_none(count: int) -> None:
    found = list(series(np.zeros(count, np.int64), np.arange(count) * 5, shortest=3))
    assert all(len(range(*rows.indices(count))) >= 3 for rows in found)


def test_rows_that_lie_in_one_place_are_no_series() -> None:
    assert list(series(np.zeros(20, np.int64), np.zeros(20, np.int64), shortest=2)) == []


def test_the_kinds_of_a_table_are_those_that_its_reader_knew(tmp_path: Path) -> None:
    with bs.open(write(tmp_path / "a.safetensors", repeated(5))) as file:
        table = file._table
    counted = table.picked(range(len(table.names))).kinds()
    assert table.known_kinds is not None and table.kinds() is table.known_kinds
    for kinds in (counted, table.kinds()):
        rows = [kinds.pairs[number] for number in kinds.which.tolist()]
        assert rows == list(zip(table.dtypes, table.shapes, strict=True))
        assert len(set(kinds.pairs)) == len(kinds.pairs)
    assert counted.pairs[counted.which[counted.first_of(3)]] == (DType.F32, (2,))
