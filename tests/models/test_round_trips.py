"""Any model at all goes through a file and comes back bit for bit, in its order (K1 through models)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

import burnstore as bs
from burnstore import DType, TensorData, nn
from burnstore.errors import DuplicateNameError
from burnstore.tensor.quantization import QuantScheme, QuantStore


class Slotted:
    __slots__ = ("first", "second")

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second


@dataclass(frozen=True)
class Frozen:
    first: Any
    second: Any


class Module(nn.Module):
    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)


class Choice(nn.Enum):
    One = nn.variant()
    Other = nn.variant()


# --- recipes: a model is built twice from one, once with values and once empty ----------------------------------------

DTYPES = [DType.parse(name) for name in ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16")]
DTYPES += [DType.U8, DType.Bool]
STORED = [DType.Flex32, DType.BoolU8, DType.BoolU32, DType.qfloat(QuantScheme("Q8S", QuantStore("Native")))]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(
    [
        "weight",
        "bias",
        "a.b",
        "a",
        "b",
        "0",
        "1",
        "",
        ".",
        "a/b",
        "..",
        "重み",
        "größe",
        "e\u0301",
        "é",
        "\x1b[31m",
        "\0",
    ]
)
FIELDS = st.sampled_from(["weight", "bias", "a", "b", "層", "_hidden", "first"])
LAYERS: list[Any] = [
    lambda: nn.Linear(2, 3),
    lambda: nn.Linear(3, 2, bias=False, layout="Col"),
    lambda: nn.BatchNorm(2),
    lambda: nn.LayerNorm(3),
    lambda: nn.Conv1d(1, 2, 3),
    lambda: nn.Embedding(3, 2),
    lambda: nn.Lstm(1, 2, True),
    lambda: nn.Normalization.of(nn.RmsNorm(2)),
    lambda: nn.Dropout(0.5),
]


def values(dtype: DType, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Any bits, NaNs with payloads included."""
    raw = np.random.default_rng(seed).integers(0, 2 if dtype.is_bool else 256, dtype.nbytes(shape), np.uint8)
    return np.ndarray(shape, dtype.numpy, raw.tobytes())


def array(dtype: DType, shape: tuple[int, ...], seed: int, form: str, *, empty: bool) -> np.ndarray[Any, Any]:
    if empty:
        return np.zeros(shape, dtype.numpy)
    made = values(dtype, shape, seed)
    if not shape:  # NumPy makes scalars or vectors of such arrays at the least occasion
        return made.copy()
    if form == "fortran":
        return np.asfortranarray(made)
    if form == "flipped":
        return np.flip(np.flip(made).copy())
    if form == "big-endian" and made.dtype.kind in "fiu" and dtype is not DType.BF16:
        return made.byteswap().view(made.dtype.newbyteorder(">"))
    return made.copy()


def param(dtype: DType, shape: tuple[int, ...], seed: int, *, empty: bool) -> nn.Param:
    if dtype in STORED:
        raw = bytearray(dtype.nbytes(shape))
        if not empty:
            raw[:: max(1, dtype.bits // 8)] = bytes(seed % 2 for _ in raw[:: max(1, dtype.bits // 8)])
        return nn.Param.from_data(TensorData.from_bytes(raw, dtype, shape))
    if empty:
        return nn.Param(shape, dtype=dtype)
    return nn.Param.from_data(values(dtype, shape, seed).copy())


Shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
Seeds = st.integers(0, 2**16)
Leaves = st.one_of(
    st.builds(
        lambda *recipe: lambda empty: array(*recipe, empty=empty),
        st.sampled_from(DTYPES),
        Shapes,
        Seeds,
        st.sampled_from(["plain", "fortran", "flipped", "big-endian"]),
    ),
    st.builds(
        lambda *recipe: lambda empty: param(*recipe, empty=empty), st.sampled_from(DTYPES + STORED), Shapes, Seeds
    ),
    st.sampled_from(LAYERS).map(lambda make: lambda empty: make()),
    st.sampled_from([None, 3, 0.5, "text", b"raw", True]).map(lambda constant: lambda empty: constant),
)


def nodes(children: Any) -> Any:
    named = st.dictionaries(NAMES, children, max_size=3)
    fields = st.dictionaries(FIELDS, children, max_size=3)
    several = st.lists(children, max_size=3)

    def built(kind: Any) -> Any:
        return lambda parts: (
            (lambda empty: kind({name: part(empty) for name, part in parts.items()}))
            if isinstance(parts, dict)
            else (lambda empty: kind([part(empty) for part in parts]))
        )

    return st.one_of(
        named.map(built(dict)),
        named.map(built(OrderedDict)),
        several.map(built(list)),
        several.map(built(tuple)),
        several.map(built(nn.FixedArray)),
        fields.map(built(lambda items: SimpleNamespace(**items))),
        fields.map(built(lambda items: Module(**items))),
        st.lists(children, min_size=2, max_size=2).map(built(lambda pair: Slotted(*pair))),
        st.lists(children, min_size=2, max_size=2).map(built(lambda pair: Frozen(*pair))),
        st.lists(children, min_size=1, max_size=1).map(built(lambda one: Choice.One(one[0]))),
        st.lists(children, min_size=1, max_size=1).map(built(lambda one: Choice.Other(one[0]))),
    )


MODELS = nodes(st.recursive(Leaves, nodes, max_leaves=12))


@given(MODELS, st.booleans(), st.booleans())
def test_any_model_comes_back_bit_for_bit_and_in_its_order(recipe: Any, zero_copy: bool, skip: bool) -> None:
    model, fresh = recipe(False), recipe(True)
    collected = bs.collect(model, skip_enum_variants=skip)
    assume(collected)
    expected = [(t.path, t.dtype, t.shape, t.to_bytes()) for t in collected]
    store = bs.BurnpackStore.from_bytes(None).skip_enum_variants(skip)
    if len({path for path, *_ in expected}) < len(expected):
        event("two tensors have one path")
        with pytest.raises(DuplicateNameError):
            store.save(model)
        with pytest.raises(DuplicateNameError):
            bs.apply(fresh, collected, skip_enum_variants=skip)
        return
    store.save(model)
    with bs.open(store.get_bytes()) as f:  # where tensors without bytes lie among the others no file can tell
        assert [name for name in f if f[name].nbytes] == [path for path, _, _, raw in expected if raw]
        assert len(f) == len(expected)
    result = store.copy().zero_copy(zero_copy).load(fresh)
    assert result.applied == [path for path, *_ in expected]
    assert (result.skipped, result.missing, result.unused, result.errors) == ([], [], [], [])
    found = bs.collect(fresh, skip_enum_variants=skip)
    assert [(t.path, t.dtype, t.shape, t.to_bytes()) for t in found] == expected
    ids = [(t.param_id, t.path) for t in collected if not t.path.endswith(("running_mean", "running_var"))]
    assert [(t.param_id, t.path) for t in found if not t.path.endswith(("running_mean", "running_var"))] == ids
    assert [(t.path, t.to_bytes()) for t in bs.collect(model, skip_enum_variants=skip)] == [
        (path, raw) for path, _, _, raw in expected
    ]


@given(MODELS)
def test_any_model_is_transferred_to_another_and_shares_nothing_with_it(recipe: Any) -> None:
    model, fresh = recipe(False), recipe(True)
    collected = bs.collect(model)
    assume(collected and len({t.path for t in collected}) == len(collected))
    expected = [(t.path, t.dtype, t.to_bytes()) for t in collected]
    assert bs.apply(fresh, collected).is_complete
    assert [(t.path, t.dtype, t.to_bytes()) for t in bs.collect(fresh)] == expected
    for ours, theirs in zip(bs.collect(model), bs.collect(fresh), strict=True):
        assert not np.may_share_memory(ours.numpy(), theirs.numpy())


@given(st.lists(NAMES, min_size=1, max_size=4, unique=True))
def test_names_of_any_characters_lead_from_the_file_to_the_same_place(names: list[str]) -> None:
    model = {name: np.float32([number]) for number, name in enumerate(names)}
    fresh = {name: np.zeros(1, np.float32) for name in names}
    data = bs.serialize(model, format="burnpack")
    assert bs.load(fresh, data).applied == names
    assert {name: found.tolist() for name, found in fresh.items()} == {
        name: [number] for number, name in enumerate(names)
    }
