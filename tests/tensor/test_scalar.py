"""Scalars: numbers that keep their kind and convert only where they fit."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore import Scalar

RANGES = {
    f"{sign}{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if sign == "i" else (0, 2**bits - 1)
    for sign in "iu"
    for bits in (8, 16, 32, 64)
}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0, "Int"),
        (-1, "Int"),
        (2**63 - 1, "Int"),
        (-(2**63), "Int"),
        (2**63, "UInt"),
        (2**64 - 1, "UInt"),
        (True, "Bool"),
        (False, "Bool"),
        (0.5, "Float"),
        (math.inf, "Float"),
        (np.float64(0.5), "Float"),
    ],
)
def test_a_number_gets_the_kind_that_holds_it(value: Any, kind: str) -> None:
    scalar = Scalar.of(value)
    assert (scalar.kind, scalar.value) == (kind, value)
    assert Scalar.of(scalar) is scalar
    assert type(scalar.value) in (int, float, bool)


@pytest.mark.parametrize("wrong", [None, "5", b"5", 1j, [1], np.int64(1), np.float32(1), np.bool_(True), np.zeros(1)])
def test_what_is_no_python_number_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a scalar must be"):
        Scalar.of(wrong)


@pytest.mark.parametrize("wrong", [2**64, -(2**63) - 1])
def test_a_number_beyond_64_bits_is_a_value_error(wrong: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Scalar.of(wrong)


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("Int", 2**63, ValueError),
        ("UInt", -1, ValueError),
        ("UInt", 2**64, ValueError),
        ("Text", 1, ValueError),
        ("int", 1, ValueError),
        ("Int", 1.0, TypeError),
        ("Int", True, TypeError),
        ("UInt", True, TypeError),
        ("Float", 1, TypeError),
        ("Float", True, TypeError),
        ("Bool", 1, TypeError),
        ("Bool", "true", TypeError),
    ],
)
def test_a_value_of_another_kind_is_refused(kind: Any, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Scalar(kind, value)


def test_integers_survive_conversion() -> None:
    assert Scalar.of(-5).to("i32") == -5
    assert Scalar("UInt", 200).to("u8") == 200
    assert Scalar("UInt", 42).to("u64") == 42


@given(st.sampled_from(sorted(RANGES)), st.integers(-(2**63), 2**64 - 1))
def test_an_integer_converts_where_it_is_in_range_and_nowhere_else(name: str, value: int) -> None:
    low, high = RANGES[name]
    scalar = Scalar.of(value)
    if low <= value <= high:
        assert scalar.to(name) == value
    else:
        with pytest.raises(ValueError, match="does not fit"):
            scalar.to(name)


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_a_float_takes_every_number(name: str) -> None:
    for scalar in (Scalar.of(3), Scalar("UInt", 3), Scalar.of(3.0)):
        assert scalar.to(name) == 3.0
        assert type(scalar.to(name)) is float


@pytest.mark.parametrize(
    ("scalar", "name"),
    [
        (Scalar.of(1.0), "i32"),
        (Scalar.of(1.0), "u8"),
        (Scalar.of(1), "bool"),
        (Scalar.of(1.0), "bool"),
        (Scalar.of(True), "i32"),
        (Scalar.of(True), "f32"),
        (Scalar.of(1), "text"),
        (Scalar.of(1), "isize"),
    ],
)
def test_kinds_are_not_mixed(scalar: Scalar, name: str) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        scalar.to(name)


def test_a_bool_converts_to_bool() -> None:
    assert Scalar.of(True).to("bool") is True


def test_a_scalar_is_a_value() -> None:
    scalar = Scalar("UInt", 42)
    assert scalar == Scalar("UInt", 42)
    assert scalar != Scalar("Int", 42)
    assert hash(scalar) == hash(Scalar("UInt", 42))
    assert repr(scalar) == "Scalar(kind='UInt', value=42)"
    assert pickle.loads(pickle.dumps(scalar)) == copy.deepcopy(scalar) == scalar
    with pytest.raises(FrozenInstanceError):
        scalar.value = 5  # type: ignore[misc]
