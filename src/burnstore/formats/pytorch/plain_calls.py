"""Calls that only make plain data: containers, bytes, numbers, dates, paths, and the small values of torch."""

from __future__ import annotations

import datetime
from typing import Any

from ...errors import CorruptError
from ..codec.pickle_values import Builder, Call, PickledDict, PickledSet, Symbol, kind_of

Args = tuple[Any, ...]


def arguments(args: Args, least: int, most: int, what: str) -> Args:
    """The arguments of a call, if there are as many as it takes."""
    if not least <= len(args) <= most:
        raise CorruptError(f"{what} with {len(args)} arguments", rule="PT-22")
    return args


def _ordered_dict(args: Args) -> Any:
    made = PickledDict()
    if not args:
        return made
    (pairs,) = arguments(args, 1, 1, "an OrderedDict")
    if isinstance(pairs, dict):
        made.update(pairs)
        return made
    if not isinstance(pairs, (list, tuple)):
        raise CorruptError(f"an OrderedDict of a {kind_of(pairs)}", rule="PT-22")
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], (str, int)):
            raise CorruptError("an OrderedDict of something else than keys with values", rule="PT-22")
        if pair[0] in made:
            raise CorruptError("a key comes twice in one dict", rule="PT-16")
        made[pair[0]] = pair[1]
    return made


def _default_dict(args: Args) -> Any:
    return _ordered_dict(arguments(args, 0, 2, "a defaultdict")[1:])  # the first is what would make missing values


def _items(args: Args) -> list[Any]:
    if not args:
        return []
    (items,) = arguments(args, 1, 1, "a collection")
    if not isinstance(items, (list, tuple)):
        raise CorruptError(f"a collection of a {kind_of(items)}", rule="PT-22")
    return list(items)


def _encode(args: Args) -> Any:
    text, *encoding = arguments(args, 1, 2, "_codecs.encode")
    if not isinstance(text, str) or encoding not in (["latin1"], ["latin-1"]):
        raise CorruptError("_codecs.encode of something else than text as latin1", rule="PT-22")
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise CorruptError("bytes that are spelled by characters beyond latin1", rule="PT-22") from None


def _bytes(args: Args) -> Any:
    if not args:
        return b""
    first = args[0]
    if isinstance(first, str) and len(args) == 2:
        return _encode((first, args[1]))
    if len(args) != 1 or not isinstance(first, bytes):
        return Call(Symbol("builtins", "bytes"), args)
    return first


def _complex(args: Args) -> Any:
    real, imag = arguments(args, 2, 2, "a complex number")
    if not all(isinstance(part, (int, float)) for part in (real, imag)):
        raise CorruptError("a complex number of something else than numbers", rule="PT-22")
    try:
        return complex(real, imag)
    except OverflowError:
        raise CorruptError("a complex number of integers beyond all floats", rule="PT-22") from None


def _integers(args: Args, least: int) -> bool:
    return least <= len(args) <= 3 and all(part is None or type(part) is int for part in args)


def _range(args: Args) -> Any:
    if not _integers(args, 1) or None in args or (len(args) == 3 and not args[2]):
        raise CorruptError("a range of something else than integers", rule="PT-22")
    return range(*args)


def _slice(args: Args) -> Any:
    if not _integers(args, 1):
        raise CorruptError("a slice of something else than integers", rule="PT-22")
    return slice(*args)


def _size(args: Args) -> Any:
    (extents,) = arguments(args, 1, 1, "torch.Size")
    if not isinstance(extents, (tuple, list)) or not all(type(extent) is int for extent in extents):
        raise CorruptError("a torch.Size of something else than integers", rule="PT-22")
    return tuple(extents)


def _device(args: Args) -> Any:
    kind, *index = arguments(args, 1, 2, "torch.device")
    if not isinstance(kind, str) or not all(type(number) is int for number in index):
        raise CorruptError("a torch.device of something else than a text and a number", rule="PT-22")
    return f"{kind}:{index[0]}" if index else kind


def _layout(args: Args) -> Any:
    (layout,) = arguments(args, 1, 1, "a layout")
    if not isinstance(layout, str):
        raise CorruptError(f"a layout named by a {kind_of(layout)}", rule="PT-22")
    return layout


def _path(args: Args) -> Any:
    if not all(isinstance(part, str) for part in args):
        raise CorruptError("a path of something else than texts", rule="PT-22")
    root, rest = ("/", args[1:]) if args[:1] == ("/",) else ("", args)
    return root + "/".join(rest)


def _moment(kind: type[datetime.datetime | datetime.date | datetime.time], name: str) -> Builder:
    """Dates and times pickle as a few bytes; with a time zone, or spelled otherwise, they stay a note of the call."""

    def build(args: Args) -> Any:
        if len(args) == 1 and isinstance(args[0], (bytes, str)):
            raw = args[0] if isinstance(args[0], bytes) else args[0].encode("latin-1", "replace")
            try:
                return kind(raw)  # type: ignore[arg-type,call-arg]  # the form that only pickles use
            except (TypeError, ValueError):
                raise CorruptError(f"a datetime.{name} of bytes that are none", rule="PT-22") from None
        return Call(Symbol("datetime", name), args)

    return build


def _timedelta(args: Args) -> Any:
    if len(args) != 3 or not all(type(part) is int for part in args):
        return Call(Symbol("datetime", "timedelta"), args)
    try:
        return datetime.timedelta(*args)
    except OverflowError:
        raise CorruptError("a datetime.timedelta beyond all times", rule="PT-22") from None


PLAIN_CALLS: dict[tuple[str, str], Builder] = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("collections", "Counter"): _ordered_dict,
    ("collections", "defaultdict"): _default_dict,
    ("builtins", "dict"): _ordered_dict,
    ("collections", "deque"): lambda args: _items(args[:1]),  # the second is how many it may hold
    ("builtins", "list"): _items,
    ("builtins", "tuple"): lambda args: tuple(_items(args)),
    ("builtins", "set"): lambda args: PickledSet(_items(args)),
    ("builtins", "frozenset"): lambda args: PickledSet(_items(args)),
    ("_codecs", "encode"): _encode,
    ("builtins", "bytearray"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("builtins", "complex"): _complex,
    ("builtins", "range"): _range,
    ("builtins", "xrange"): _range,
    ("builtins", "slice"): _slice,
    ("torch", "Size"): _size,
    ("torch", "device"): _device,
    ("torch.serialization", "_get_layout"): _layout,
    **{("pathlib", f"{pure}{system}Path"): _path for pure in ("Pure", "") for system in ("Posix", "Windows", "")},
    **{
        ("pathlib._local", f"{pure}{system}Path"): _path for pure in ("Pure", "") for system in ("Posix", "Windows", "")
    },
    ("datetime", "datetime"): _moment(datetime.datetime, "datetime"),
    ("datetime", "date"): _moment(datetime.date, "date"),
    ("datetime", "time"): _moment(datetime.time, "time"),
    ("datetime", "timedelta"): _timedelta,
}
"""What is known of calls that need nothing but their arguments."""
