"""ParamId: the number of a file, printed and parsed as Burn does it."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore import ParamId

KNOWN = [
    (0, "0000000000000"),
    (1, "0400000000000"),
    (42, "5800000000000"),
    (2**64 - 1, "vvvvvvvvvvvvu"),
    (1 << 63, "0000000000080"),
]


@pytest.mark.parametrize(("number", "text"), KNOWN)
def test_an_id_prints_as_burn_prints_it(number: int, text: str) -> None:
    assert str(ParamId(number)) == f"{ParamId(number)}" == text
    assert ParamId.parse(text) == number
    assert ParamId.parse(text.upper()) == number


@given(st.integers(0, 2**64 - 1))
def test_every_id_is_parsed_from_its_own_text(number: int) -> None:
    text = str(ParamId(number))
    assert len(text) == 13
    assert ParamId.parse(text) == number


@given(st.text(alphabet="0123456789abcdefghijklmnopqrstuvABCDEFGHIJKLMNOPQRSTUV", min_size=13, max_size=13))
def test_a_text_is_refused_or_the_only_one_of_its_id(text: str) -> None:
    try:
        parsed = ParamId.parse(text)
    except ValueError:
        assert text[-1].lower() in "13579bdfhjlnprtv"  # its last bit belongs to no byte
        return
    assert str(parsed) == text.lower()


def test_the_ten_characters_of_burn_0_14_are_six_bytes() -> None:
    assert ParamId.parse("0400000000") == 1
    assert ParamId.parse("vvvvvvvvvs") == 2**48 - 1


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "0",
        "580000000000",
        "58000000000000",
        "5800000000001",
        "w800000000000",
        "58000 0000000",
        "-800000000000",
        "58000000000\n0",
        "5800000000000\n",
        "\u212a800000000000",
        "\uff15800000000000",
        "0400000001",
        "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
    ],
)
def test_other_text_is_a_value_error(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not the text of a ParamId"):
        ParamId.parse(wrong)


@pytest.mark.parametrize("wrong", [None, 5, b"5800000000000", ["5800000000000"]])
def test_parse_takes_text_only(wrong: Any) -> None:
    with pytest.raises(TypeError):
        ParamId.parse(wrong)


@pytest.mark.parametrize("wrong", [-1, 2**64, -(2**63)])
def test_an_id_is_an_unsigned_64_bit_number(wrong: int) -> None:
    with pytest.raises(ValueError, match="unsigned 64-bit"):
        ParamId(wrong)


@pytest.mark.parametrize("wrong", [None, "5", 1.0, True, b"5"])
def test_an_id_is_made_of_an_int_only(wrong: Any) -> None:
    with pytest.raises(TypeError):
        ParamId(wrong)


def test_an_id_is_the_number_in_the_file() -> None:
    number = ParamId(2**63 + 5)
    assert number == 2**63 + 5
    assert hash(number) == hash(2**63 + 5)
    assert {2**63 + 5: "found"}[number] == "found"
    assert repr(number) == "ParamId(9223372036854775813)"
    assert json.dumps(number) == "9223372036854775813"
    assert ParamId(number) == number


def test_an_id_can_be_pickled_and_copied() -> None:
    number = ParamId(2**64 - 1)
    for again in (pickle.loads(pickle.dumps(number)), copy.copy(number), copy.deepcopy(number)):
        assert again == number
        assert type(again) is ParamId


def test_generated_ids_differ_and_use_all_64_bits() -> None:
    made = {ParamId.generate() for _ in range(1000)}
    assert len(made) == 1000
    assert max(made) > 2**63
    assert all(isinstance(number, ParamId) for number in made)
