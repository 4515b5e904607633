"""The spelling of dtypes in records: text or a map in MessagePack and JSON, a number in bincode, by release."""

from __future__ import annotations

from typing import Any

from ...errors import CorruptError, DTypeError, located, printable
from ...tensor.dtype import DType, Kind
from ..burnpack.descriptors import BOOL_STORES, PLAIN
from ..burnpack.quant_spelling import scheme_from_tree, scheme_to_tree
from ..codec.bincode import BincodeReader, encode_uint

_SINCE_0_17 = (*PLAIN, "Bool", "QFloat")
_IN_0_16 = tuple(name for name in _SINCE_0_17 if name != "Flex32")
_UP_TO_0_15 = tuple(name for name in _IN_0_16 if name != "U16")
_STORE_OF = {dtype: store for store, dtype in BOOL_STORES.items()}

_VALUES = ("Q8F", "E5M2", "E4M3", "Q4F", "E2M1", "Q2F", "Q8S", "Q4S", "Q2S")
_PARAMS = ("F32", "F16", "BF16", "UE8M0", "UE4M3")
_QUANT_STORES = ("Native", "PackedNative", "PackedU32")
_BLOCK_DIMS = 5


def dtype_from_tree(tree: Any) -> DType:
    """Return the dtype that a document spells (BR-12)."""
    if isinstance(tree, str) and tree in PLAIN:
        return DType.parse(tree)
    if tree == "Bool":
        return DType.Bool
    if isinstance(tree, dict) and len(tree) == 1:
        [(name, content)] = tree.items()
        if name == "Bool" and isinstance(content, str) and content in BOOL_STORES:
            return BOOL_STORES[content]
        if name == "QFloat":
            with located(rule="BR-12"):
                return DType.qfloat(scheme_from_tree(content))
    shown = printable(repr(tree)) if isinstance(tree, str) else f"a value of type {type(tree).__name__}"
    raise CorruptError(f"the dtype is {shown}, which no Burn writes", rule="BR-12")


def dtype_to_tree(dtype: DType) -> Any:
    """Return the spelling of a dtype in the last release of Burn with recorders."""
    if dtype.name in PLAIN:
        return dtype.name
    if dtype.kind is Kind.BOOL:
        return {"Bool": _STORE_OF[dtype]}
    if dtype.scheme is not None:
        return {"QFloat": scheme_to_tree(dtype.scheme, "P")}
    hint = "leave it out" if dtype.kind is Kind.COMPLEX else "cast it to a dtype of Burn, such as F32"
    raise DTypeError(f"records have no dtype for {dtype.name}", rule="BR-12", hint=hint)


def read_dtype(reader: BincodeReader, minor: int) -> DType:
    """Read a dtype as bincode of that release spells it."""
    start = reader.position
    names = _SINCE_0_17 if minor >= 17 else _IN_0_16 if minor == 16 else _UP_TO_0_15
    name = _word(reader, names, "dtype")
    if name == "Bool":
        return BOOL_STORES[_word(reader, tuple(BOOL_STORES), "store of bools")] if minor >= 21 else DType.Bool
    if name != "QFloat":
        return DType.parse(name)
    tree: dict[str, Any] = {"value": _word(reader, _VALUES, "value"), "param": _word(reader, _PARAMS, "param")}
    store = _word(reader, _QUANT_STORES, "store")
    tree["store"] = store if store == "Native" else {store: reader.uint()}
    tree["level"] = "Tensor"
    if _word(reader, ("Tensor", "Block"), "level") == "Block":
        sizes = list(reader.take(_BLOCK_DIMS))
        tree["level"] = {"Block": {"storage": sizes, "len": reader.take(1)[0]}}
    tree["mode"] = _word(reader, ("Symmetric",), "mode")
    with located(rule="BR-12", offset=start):
        return DType.qfloat(scheme_from_tree(tree))


def encode_dtype(dtype: DType) -> bytes:
    """Encode a dtype as bincode of the last release spells it."""
    tree = dtype_to_tree(dtype)
    if isinstance(tree, str):
        return encode_uint(_SINCE_0_17.index(tree))
    if "Bool" in tree:
        return encode_uint(_SINCE_0_17.index("Bool")) + encode_uint(list(BOOL_STORES).index(tree["Bool"]))
    scheme = tree["QFloat"]
    parts = [_SINCE_0_17.index("QFloat"), _VALUES.index(scheme["value"]), _PARAMS.index(scheme["param"])]
    store, level = scheme["store"], scheme["level"]
    if store == "Native":
        parts.append(0)
    else:
        [(kind, dim)] = store.items()
        parts += (_QUANT_STORES.index(kind), dim)
    encoded = b"".join(map(encode_uint, parts))
    if level == "Tensor":
        return encoded + b"\0\0"
    if "Block" not in level:
        raise DTypeError("records have no schemes of two levels", rule="BR-12", hint="dequantize the tensor")
    return encoded + b"\1" + bytes(level["Block"]["storage"]) + bytes((level["Block"]["len"],)) + b"\0"


def _word(reader: BincodeReader, words: tuple[str, ...], what: str) -> str:
    start = reader.position
    index = reader.uint()
    if index >= len(words):
        raise CorruptError(f"expected a {what} number below {len(words)}, got {index}", rule="BR-12", offset=start)
    return words[index]
