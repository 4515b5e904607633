"""The spelling of a quantization scheme in Burnpack and records: maps of text, numbers and lists, in three styles.

    P-0.19   value, param, store, level, mode     store is "Native" or "U32"                  Burn 0.19
    P        value, param, store, level, mode     store is "Native" or {"PackedU32": d} ...   0.20 to 0.22.0-pre.2
    T        value, store, mode, tensor, block    the same stores; absent scales are null     0.22.0 and later

Bytes follow the old rules (``QuantScheme.old_style``) in style P, and the new ones in style T.
Blocks of a Native store that reach over several lines are flat runs in style P, as the host backends of 0.20 and 0.21
made them, and rectangles in style T. The two-level schemes of 0.22.0-pre, which no such backend wrote, are rectangles.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from ...errors import CorruptError, DTypeError, printable
from ...tensor.lowbit import SCALE_WIDTHS
from ...tensor.quantization import MODES, MOST_BLOCK_DIMS, VALUE_BITS, QuantBlock, QuantScheme, QuantStore

Style = Literal["P-0.19", "P", "T"]

_KEYS_P = ("value", "param", "store", "level", "mode")
_KEYS_T = ("value", "store", "mode", "tensor", "block")
_PLACE = "dtype.QFloat"


def scheme_from_tree(tree: object) -> QuantScheme:
    """Return the scheme that the map under ``QFloat`` spells; ``old_style`` where it does so in style P.

    Raises `CorruptError` with the place where the map has not exactly the keys, types and words of its style.

    >>> scheme = scheme_from_tree(
    ...     {"value": "Q4S", "param": "F16", "store": {"PackedU32": 0}, "level": "Tensor", "mode": "Symmetric"}
    ... )
    >>> str(scheme.store), scheme.tensor, scheme.old_style
    ('PackedU32(0)', 'F16', True)
    """
    content = _map(tree, _PLACE)
    if content.keys() == frozenset(_KEYS_P):
        return _from_p(content)
    if content.keys() == frozenset(_KEYS_T):
        return _from_t(content)
    raise CorruptError(f"{_PLACE} has {_shown_keys(content)}; Burn writes {', '.join(_KEYS_T)} or {', '.join(_KEYS_P)}")


def scheme_to_tree(scheme: QuantScheme, style: Style) -> dict[str, Any]:
    """Return the map that Burn of that style writes under ``QFloat``, its keys in Burn's order.

    Raises `DTypeError` for a scheme that the style cannot express, or would give another meaning.

    >>> scheme_to_tree(QuantScheme("Q8S", QuantStore("Native")), "T")
    {'value': 'Q8S', 'store': 'Native', 'mode': 'Symmetric', 'tensor': None, 'block': None}
    """
    if style not in ("P-0.19", "P", "T"):
        raise ValueError(f"unknown style {style!r}; known: P-0.19, P, T")
    old_style = style != "T"
    _refuse(
        scheme.old_style != old_style and scheme.store.dim != 0,
        f"bytes packed along an axis before the last are ordered differently in style {style}",
        f"decode them and encode them with old_style={old_style} in the scheme",
    )
    return _to_p(scheme, style) if old_style else _to_t(scheme)


def _from_p(tree: dict[str, Any]) -> QuantScheme:
    value = _word(tree["value"], VALUE_BITS, "value")
    param = _word(tree["param"], SCALE_WIDTHS, "param")
    store = QuantStore("PackedU32") if tree["store"] == "U32" else _store(tree["store"])
    mode = _word(tree["mode"], ("Symmetric",), "mode")
    level, place = tree["level"], f"{_PLACE}.level"
    if level == "Tensor":
        return QuantScheme(value, store, mode, tensor=None if param == "F32" else param, old_style=True)
    variant, content = _variant(level, ("Tensor", "Block", "BlockTensor"), place)
    if variant == "Block":
        block = QuantBlock(_block_size(content, f"{place}.Block"), param)
        flat = store.kind == "Native" and block.spans_lines
        return QuantScheme(value, store, mode, block=block, flat_blocks=flat, old_style=True)
    if variant == "BlockTensor":
        place += ".BlockTensor"
        content = _keyed(content, ("block", "global"), place)
        size = _block_size(content["block"], f"{place}.block")
        tensor = _word(content["global"], SCALE_WIDTHS, "level.BlockTensor.global")
        return QuantScheme(value, store, mode, tensor=tensor, block=QuantBlock(size, param), old_style=True)
    raise CorruptError(f"{place} is a map of Tensor, which carries nothing")


def _from_t(tree: dict[str, Any]) -> QuantScheme:
    value = _word(tree["value"], VALUE_BITS, "value")
    store = _store(tree["store"])
    mode = _word(tree["mode"], MODES, "mode")
    tensor = None if tree["tensor"] is None else _word(tree["tensor"], SCALE_WIDTHS, "tensor")
    block = None
    if tree["block"] is not None:
        content = _keyed(tree["block"], ("size", "dtype"), f"{_PLACE}.block")
        size = _block_size(content["size"], f"{_PLACE}.block.size")
        block = QuantBlock(size, _word(content["dtype"], SCALE_WIDTHS, "block.dtype"))
    return QuantScheme(value, store, mode, tensor=tensor, block=block)


def _to_p(scheme: QuantScheme, style: Style) -> dict[str, Any]:
    _refuse(scheme.mode != "Symmetric", f"style {style} has no {scheme.mode} mode", "write style T")
    store: Any = _store_tree(scheme.store)
    if style == "P-0.19" and scheme.store.kind != "Native":
        _refuse(scheme.store != QuantStore("PackedU32"), f"Burn 0.19 has no {scheme.store} store", "write style P or T")
        store = "U32"
    level: Any = "Tensor"
    if scheme.block is not None:
        two_level = scheme.tensor is not None
        _refuse(two_level and style == "P-0.19", "Burn 0.19 has no two-level schemes", "write style P or T")
        if scheme.store.kind == "Native" and scheme.block.spans_lines:
            meant, read = ("flat runs", "rectangles") if scheme.flat_blocks else ("rectangles", "flat runs")
            _refuse(
                scheme.flat_blocks == two_level,
                f"the blocks are {meant}, but a Native block of size {list(scheme.block.size)} in style {style} "
                f"is read as {read}",
                "dequantize the tensor" if scheme.flat_blocks else "write style T, or dequantize the tensor",
            )
        size = _block_size_tree(scheme.block.size)
        level = {"BlockTensor": {"block": size, "global": scheme.tensor}} if two_level else {"Block": size}
    return {"value": scheme.value, "param": scheme.scale_dtype, "store": store, "level": level, "mode": scheme.mode}


def _to_t(scheme: QuantScheme) -> dict[str, Any]:
    block = None
    if scheme.block is not None:
        _refuse(
            scheme.flat_blocks and scheme.block.spans_lines,
            f"the blocks are flat runs, but blocks of size {list(scheme.block.size)} in style T are rectangles",
            "write style P for Burn 0.20 or 0.21, or dequantize the tensor",
        )
        size = scheme.block.size
        while len(size) > 1 and size[0] == 1:
            size = size[1:]
        block = {"size": _block_size_tree(size), "dtype": scheme.block.dtype}
    store = _store_tree(scheme.store)
    return {"value": scheme.value, "store": store, "mode": scheme.mode, "tensor": scheme.tensor, "block": block}


def _store_tree(store: QuantStore) -> Any:
    return store.kind if store.kind == "Native" else {store.kind: store.dim}


def _block_size_tree(size: tuple[int, ...]) -> dict[str, Any]:
    return {"storage": [*size, *[1] * (MOST_BLOCK_DIMS - len(size))], "len": len(size)}


def _refuse(wrong: bool, message: str, hint: str) -> None:
    if wrong:
        raise DTypeError(message, hint=hint)


def _store(tree: object) -> QuantStore:
    place = f"{_PLACE}.store"
    if tree == "Native":
        return QuantStore("Native")
    variant, dim = _variant(tree, ("Native", "PackedU32", "PackedNative"), place)
    if variant == "Native":
        raise CorruptError(f"{place} is a map of Native, which carries nothing")
    return QuantStore(variant, _number(dim, 0, 2**64 - 1, f"{place}.{variant}"))  # type: ignore[arg-type]


def _block_size(tree: object, place: str) -> tuple[int, ...]:
    content = _keyed(tree, ("storage", "len"), place)
    storage = content["storage"]
    if not isinstance(storage, list) or len(storage) != MOST_BLOCK_DIMS:
        raise CorruptError(f"{place}.storage is not a list of {MOST_BLOCK_DIMS} numbers")
    used = _number(content["len"], 1, MOST_BLOCK_DIMS, f"{place}.len")
    size = [_number(extent, 1, 255, f"{place}.storage[{i}]") for i, extent in enumerate(storage)]
    if any(extent != 1 for extent in size[used:]):
        raise CorruptError(f"{place}.storage is {size}, but past its first {used} entries only 1 may stand")
    return tuple(size[:used])


def _map(tree: object, place: str) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise CorruptError(f"{place} is not a map but {_shown(tree)}")
    return tree


def _keyed(tree: object, keys: tuple[str, ...], place: str) -> dict[str, Any]:
    content = _map(tree, place)
    if content.keys() != frozenset(keys):
        raise CorruptError(f"{place} has {_shown_keys(content)}; Burn writes {', '.join(keys)}")
    return content


def _variant(tree: object, variants: tuple[str, ...], place: str) -> tuple[str, Any]:
    """Return the one key of a map and its value, as Rust's enums with content are written."""
    if not isinstance(tree, dict) or len(tree) != 1 or next(iter(tree)) not in variants:
        raise CorruptError(f"{place} is {_shown(tree)}; known: {', '.join(variants)}")
    [(variant, content)] = tree.items()
    return variant, content


def _word(tree: object, words: Iterable[str], place: str) -> str:
    if not isinstance(tree, str) or tree not in words:
        raise CorruptError(f"{_PLACE}.{place} is {_shown(tree)}; known: {', '.join(words)}")
    return tree


def _number(tree: object, least: int, most: int, place: str) -> int:
    if not isinstance(tree, int) or isinstance(tree, bool) or not least <= tree <= most:
        raise CorruptError(f"{place} is {_shown(tree)}, not an integer of {least} to {most}")
    return tree


def _shown(tree: object) -> str:
    """Show enough of a wrong value to recognise it; a hostile one may be huge."""
    if isinstance(tree, str):
        return printable(repr(tree))
    if isinstance(tree, dict):
        return f"a map with {_shown_keys(tree)}"
    if tree is None or isinstance(tree, float) or (isinstance(tree, int) and abs(tree) < 2**64):
        return repr(tree)
    return f"a value of type {type(tree).__name__}"


def _shown_keys(content: dict[Any, Any]) -> str:
    keys = [_shown(key) for key in list(content)[:8]]
    return f"the keys {', '.join(keys)}{', ...' if len(content) > 8 else ''}" if keys else "no keys"
