"""Runs of tensors in a pickle, each taken in one step where they are written as torch writes them.

For each entry of a state dict torch emits the same 32 opcodes, in which only names, numbers and memo entries differ.
The machine follows about two million opcodes a second, which is slow for files of many thousand tensors; a regular
expression finds the end of such an entry, and many entries are checked together, column by column. It is a recogniser,
not a second machine: an entry that differs in a single byte is left to the machine, which reads it or reports what is
wrong. Both give the same tensors; a test compares them on every file and on mutants.

    X len name  r memo  h ‹_rebuild_tensor_v2›  ((  h ‹"storage"›  h ‹class›  X len key  r memo  h ‹location›  count  t
    r memo  Q  offset  size  r memo  stride  r memo  requires_grad  h ‹OrderedDict›  )  R  r memo  t  r memo  R  r memo

Why it cannot be fooled: every opcode of the pattern has a fixed length but for the two strings, whose announced
lengths are compared; what a ``h`` (or ``j``) fetches is looked up in the machine's memo and must be the very object;
the memo entries must be new and numbered consecutively, as then none of them can change what a later entry fetches. Of
these only names, keys and tensors are kept. If anything fetches another, the machine starts over without runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ...errors import BurnstoreError
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ..codec.pickle import Run
from ..codec.pickle_values import Symbol
from .tensors import ITEM_SIZES, PickledTensor, Storage, Storages, check_view, storage_dtype

_FETCH = rb"(?:h.|j....)"
_GET = rb"(" + _FETCH + rb")"
_MEMO = rb"r(....)"
_INT = rb"(?:K.|M..|J...[\x00-\x7f])"
_TUPLE = rb"(" + _INT + rb"\x85|" + _INT + rb"{2}\x86|" + _INT + rb"{3}\x87|\(" + _INT + rb"{4,64}t)"
_ENTRY = re.compile(
    (
        rb"X(.)\0\0\0([ -~]{1,255})" + _MEMO + rb"(" + _FETCH + rb"\(\(" + _FETCH + _FETCH + rb")"
        # The key of a storage, or a fetch of one that came before.
        + rb"(?:X(.)\0\0\0([0-9]{1,20})" + _MEMO + rb"|" + _GET + rb")"
        + _GET + rb"(" + _INT + rb")t" + _MEMO + rb"Q(" + _INT + rb")"
        # Size and stride; those of a tensor without axes are not memoized.
        + rb"(?:" + _TUPLE + _MEMO + _TUPLE + _MEMO + rb"|\)\))"
        + rb"([\x88\x89])" + _GET + rb"\)R(r....tr....Rr....)"
    ),
    re.DOTALL,
)  # fmt: skip
_HEAD = re.compile(_GET + rb"\(\(" + _GET + _GET, re.DOTALL)
_LAST_MEMOS = np.dtype({"names": ["a", "b", "c"], "formats": ["<u4"] * 3, "offsets": [1, 7, 13], "itemsize": 17})
_NUMBER = re.compile(rb"K(.)|M(..)|J(....)", re.DOTALL)
_MAX_RUN = 4096

_StorageKind = tuple[str, DType | None]
_Geometry = tuple[str, DType, int, int, Shape, Shape]


class TensorRuns:
    """The recogniser for one pickle; its tensors share the file's storages."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._geometries: dict[tuple[Any, ...], _Geometry] = {}
        self._memo: dict[int, Any] = {}
        self._known = self._highest = 0

    def recognise(self, data: bytes, position: int, memo: dict[int, Any]) -> Run | None:
        """Return the run of entries from here on, or None where the next bytes are not in torch's form."""
        match = _ENTRY.match
        rows: list[tuple[bytes, ...]] = []
        while len(rows) < _MAX_RUN:
            found = match(data, position)
            if found is None:
                break
            rows.append(found.groups(b""))
            position = found.end()
        return self._run(rows, position, memo) if rows else None

    def _run(self, rows: list[tuple[bytes, ...]], end: int, memo: dict[int, Any]) -> Run | None:
        columns = list(zip(*rows, strict=True))
        name_lengths, names, name_memo, heads, key_lengths, keys, key_memo, key_gets, places = columns[:9]
        counts, id_memo, offsets, sizes, size_memo, strides, stride_memo, grads, dicts, last_memos = columns[9:]
        ends = np.frombuffer(b"".join(last_memos), _LAST_MEMOS)
        numbers = _memo_numbers((name_memo, key_memo, id_memo, size_memo, stride_memo), ends)
        first, last = int(numbers[0]), int(numbers[0]) + len(numbers)
        if b"".join(name_lengths) != bytes(map(len, names)) or not np.array_equal(numbers, np.arange(first, last)):
            return None
        own = [key for key in keys if key]
        if b"".join(key_lengths) != bytes(map(len, own)):
            return None
        fetches = {head: _HEAD.findall(head)[0] for head in set(heads)}
        gets = [*map(set, zip(*fetches.values(), strict=True)), set(places), set(dicts)]
        fetched = _fetched(memo, set().union(*gets))
        if fetched is None or not self._are_new(range(first, last), memo):
            return None
        if not (
            all(_is_symbol(fetched[get], "torch._utils", "_rebuild_tensor_v2") for get in gets[0])
            and all(fetched[get] == "storage" for get in gets[1])
            and all(type(fetched[get]) is str for get in gets[3])
            and all(_is_symbol(fetched[get], "collections", "OrderedDict") for get in gets[4])
        ):
            return None
        texts, own_texts = _texts(names), _texts(own)
        own_keys = dict(zip(_numbers(key_memo), own_texts, strict=True))
        try:
            kinds = {head: storage_dtype(fetched[get]) for head, (_, _, get) in fetches.items()}
            all_keys = own_texts
            if len(own) != len(rows):
                rest = iter(own_texts)
                all_keys = [
                    next(rest) if key else _key(get, memo, own_keys) for key, get in zip(keys, key_gets, strict=True)
                ]
            forms = zip(map(kinds.__getitem__, heads), counts, offsets, sizes, strides, strict=True)
            tensors = self._tensors(all_keys, forms, grads)
        except (BurnstoreError, LookupError):
            return None  # The machine will find the error and report its place.
        memo.update(zip(_numbers(name_memo), texts, strict=True))
        memo.update(own_keys)
        memo.update(zip(ends["c"].tolist(), tensors, strict=True))
        values: list[Any] = [None] * (2 * len(rows))
        values[::2], values[1::2] = texts, tensors
        return end, values, last - first - 2 * len(rows) - len(own_keys)

    def _are_new(self, numbers: range, memo: dict[int, Any]) -> bool:
        """Return whether a memo has no entry of these numbers; a memo only grows, so what it had is not asked again."""
        if memo is not self._memo:
            self._memo, self._known, self._highest = memo, 0, -1
        self._highest = max(self._highest, max(islice(reversed(memo), len(memo) - self._known), default=-1))
        self._known = len(memo)
        return self._highest < numbers[0] or memo.keys().isdisjoint(numbers)

    def _tensors(
        self, keys: Sequence[str], forms: Iterable[tuple[Any, ...]], grads: Sequence[bytes]
    ) -> list[PickledTensor]:
        geometries, by_key, tensors = self._geometries, self._storages.by_key, []
        for key, form, grad in zip(keys, forms, grads, strict=True):
            geometry = geometries.get(form)
            if geometry is None:
                geometry = geometries[form] = _geometry(*form)
            class_name, dtype, elements, start, shape, steps = geometry
            storage = by_key.get(key)
            if storage is None:
                storage = by_key[key] = Storage(key, class_name, dtype, elements)
            elif storage.class_name != class_name or storage.count != elements:
                raise LookupError(key)
            tensors.append(PickledTensor(storage, dtype, start, shape, steps, grad == b"\x88"))
        return tensors


def _geometry(kind: _StorageKind, count: bytes, offset: bytes, size: bytes, stride: bytes) -> _Geometry:
    class_name, dtype = kind
    if dtype is None:
        raise LookupError(class_name)  # torch writes untyped storages in another form.
    item = ITEM_SIZES[dtype]
    (elements,), (start,), shape, steps = _integers(count), _integers(offset), _integers(size), _integers(stride)
    check_view(elements * item, item, start, shape, steps)
    return class_name, dtype, elements, start, shape, steps


def _integers(raw: bytes) -> Shape:
    """Return the integers that these opcodes push; the opcodes that make a tuple of them push none."""
    body = raw[1:] if raw[:1] == b"(" else raw
    return tuple(int.from_bytes(b"".join(found), "little") for found in _NUMBER.findall(body))


def _texts(raw: Sequence[bytes]) -> list[str]:
    """Decode ASCII without control characters, which the pattern guarantees."""
    return b"\n".join(raw).decode("ascii").split("\n") if raw else []


def _memo_numbers(
    columns: Sequence[tuple[bytes, ...]], ends: np.ndarray[Any, Any]
) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the numbers of all memo entries in the order in which they are made; each entry ends with three."""
    joined = [b"".join(column) for column in columns]
    if len({len(column) for column in joined}) == 1:  # Every entry of the run has all of them.
        numbers = [np.frombuffer(column, "<u4") for column in joined]
        return np.stack([*numbers, ends["a"], ends["b"], ends["c"]], axis=1).reshape(-1)
    tails = (end.tobytes() for end in np.stack([ends["a"], ends["b"], ends["c"]], axis=1))
    return np.frombuffer(b"".join(b"".join(row) for row in zip(*columns, tails, strict=True)), "<u4")


def _numbers(column: tuple[bytes, ...]) -> list[int]:
    return np.frombuffer(b"".join(column), "<u4").tolist()  # type: ignore[no-any-return]  # of integers


def _fetched(memo: dict[int, Any], gets: set[bytes]) -> dict[bytes, Any] | None:
    """Return what each of these fetches; None where one is not in the memo."""
    found = {get: memo.get(int.from_bytes(get[1:], "little")) for get in gets}
    return None if any(value is None for value in found.values()) else found


def _key(get: bytes, memo: dict[int, Any], own: dict[int, str]) -> str:
    number = int.from_bytes(get[1:], "little")
    key = own[number] if number in own else memo[number]
    if type(key) is not str:
        raise LookupError(number)
    return key


def _is_symbol(value: Any, module: str, name: str) -> bool:
    return isinstance(value, Symbol) and value.module == module and value.name == name
