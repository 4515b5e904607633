"""ParamId: the identity of a parameter, as Burn makes, prints and parses it."""

from __future__ import annotations

import os

from ..errors import expect

_ALPHABET = "0123456789abcdefghijklmnopqrstuv"
_DIGITS = {character: value for value, character in enumerate(_ALPHABET)}
_TEXT_LENGTHS = {13: 8, 10: 6}  # characters -> bytes; ids of Burn 0.14 had six bytes


class ParamId(int):
    """An unsigned 64-bit number that stays with a parameter through saves and loads.

    It is an int, and prints as in Burn: its eight little-endian bytes in lower-case base32hex, always 13 characters.

    >>> str(ParamId(42)), int(ParamId.parse("5800000000000"))
    ('5800000000000', 42)
    """

    __slots__ = ()

    def __new__(cls, value: int) -> ParamId:
        if not 0 <= expect(value, int, "a ParamId") < 1 << 64:
            raise ValueError(f"a ParamId must be an unsigned 64-bit number, got {value}")
        return super().__new__(cls, value)

    @classmethod
    def generate(cls) -> ParamId:
        """Return a new random id."""
        return cls(int.from_bytes(os.urandom(8), "little"))  # not `secrets`: it takes 5 ms to import

    @classmethod
    def parse(cls, text: str) -> ParamId:
        """Return the id of a text of 13 characters, or the 10 of Burn 0.14, in either case.

        Burn itself accepts more (other lengths, UUIDs through a hash that cannot be reproduced); such text is a
        ValueError here, because two texts would then mean one id.
        """
        size = _TEXT_LENGTHS.get(len(expect(text, str, "the text of a ParamId")))
        try:
            bits = 0
            for character in text.lower() if text.isascii() else text:  # the Kelvin sign's lower case is a plain k
                bits = bits << 5 | _DIGITS[character]
        except KeyError as error:
            raise ValueError(f"{text!r} is not the text of a ParamId: {error} is not one of {_ALPHABET}") from None
        if size is None:
            raise ValueError(f"{text!r} is not the text of a ParamId: 13 (or 10) characters expected, got {len(text)}")
        unused = len(text) * 5 - size * 8
        if bits & ((1 << unused) - 1):
            raise ValueError(f"{text!r} is not the text of a ParamId: its last character has bits that must be zero")
        return cls(int.from_bytes((bits >> unused).to_bytes(size, "big"), "little"))

    def __str__(self) -> str:
        bits = int.from_bytes(int(self).to_bytes(8, "little"), "big") << 1
        return "".join(_ALPHABET[bits >> shift & 31] for shift in range(60, -1, -5))

    def __repr__(self) -> str:
        return f"ParamId({int(self)})"
