"""How the format spells dtypes, and the order in which it lays their tensors out (ST-07)."""

from __future__ import annotations

from ...errors import DTypeError
from ...tensor.dtype import DType

# The package sorts tensors by dtype, the last of this list first, so that wide elements lie aligned.
_ASCENDING = (
    *("BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
    *("I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"),
)

BY_SPELLING = {spelling: DType.Bool if spelling == "BOOL" else DType.parse(spelling) for spelling in _ASCENDING}
"""What each spelling means."""

_SPELLINGS = {
    **{dtype: spelling for spelling, dtype in BY_SPELLING.items()},
    DType.Flex32: "F32",  # Burn's own store writes it so: it is F32 wherever it is stored
    DType.BoolU8: "BOOL",  # the same byte
}

_RANKS = {spelling: rank for rank, spelling in enumerate(reversed(_ASCENDING))}


def spelling_of(dtype: DType) -> str:
    """The format's word for a dtype."""
    spelling = _SPELLINGS.get(dtype)
    if spelling is None:
        raise DTypeError(f"SafeTensors has no dtype for {dtype.name}", rule="ST-07", hint=_hint(dtype))
    return spelling


def rank_of(spelling: str) -> int:
    """The place of a dtype's tensors in a file: those of the smallest rank come first."""
    return _RANKS[spelling]


def _hint(dtype: DType) -> str:
    if dtype.is_quantized:
        return "Burnpack holds quantized tensors; or save the values that numpy() gives"
    if dtype.is_bool:
        return "give the values as bool, one byte each"
    return "cast it to a dtype that the format has, such as F32 or C64"
