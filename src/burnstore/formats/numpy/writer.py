"""Plan NumPy's files, as NumPy writes them: one array, or a zip of stored arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import DuplicateNameError, FormatError, located
from ...limits import Limits
from ...tensor.snapshot import TensorSnapshot
from ..base import LAYOUT_KEY, WritePlan, layout_to_record, no_dtype
from ..codec.zip import is_plain_path
from ..codec.zip_writer import NewMember, plan_zip
from ..columns import check_count, check_names
from .reader import MAGIC, MAX_HEADER, MAX_TENSORS, SUFFIX

_INTEGERS = (f"{sign}{bits}" for sign in "IU" for bits in (8, 16, 32, 64))
_HELD = frozenset(("F64", "F32", "F16", "Flex32", "C64", "C128", "Bool", "Bool(U8)", *_INTEGERS))
"""The dtypes that NumPy has without further packages."""


def plan(
    tensors: Sequence[TensorSnapshot],
    metadata: Mapping[str, str] | None,
    limits: Limits,
    *,
    single: bool = False,
) -> WritePlan:
    """Plan a zip of these arrays in this order; with ``single`` the file of the only one.

    Of metadata only the layout has a place, in a zip (NP-10).
    """
    layout = layout_to_record(metadata, "a file of NumPy")
    limits = limits.or_defaults(header_bytes=MAX_HEADER, tensors=MAX_TENSORS)
    check_count(len(tensors), limits, "NP-05")
    heads = []
    for tensor in tensors:
        with located(tensor=tensor.path):
            heads.append(_header(tensor))
    if single:
        if layout is not None:
            raise FormatError("a .npy file cannot state a layout", rule="NP-10", hint="save .npz, which can")
        if len(tensors) != 1:
            raise FormatError(f"a .npy file has one array, not {len(tensors)}", hint="save .npz, which has any number")
        return WritePlan(heads[0], tensors, [len(heads[0])], len(heads[0]) + tensors[0].nbytes)
    check_names([tensor.path for tensor in tensors], limits, "NP-07", "NP-07")
    seen: dict[str, str] = {}
    for tensor in tensors:
        _check_member(tensor.path, seen)
    members = zip(tensors, heads, strict=True)
    comment = b"" if layout is None else f"{LAYOUT_KEY}={layout}".encode()
    return plan_zip([NewMember(tensor.path + SUFFIX, head, tensor) for tensor, head in members], comment)


def _header(tensor: TensorSnapshot) -> bytes:
    if str(tensor.dtype) not in _HELD:
        raise no_dtype("NumPy", tensor.dtype, rule="NP-03")
    text = f"{{'descr': '{tensor.dtype.numpy.str}', 'fortran_order': False, 'shape': {tuple(tensor.shape)!r}, }}"
    if tensor.shape:  # NumPy leaves space for a longer first axis, so that arrays can be appended to in place.
        text += " " * max(21 - len(str(tensor.shape[0])), 0)
    length = len(text) + 1
    length += 64 - (10 + length) % 64
    return MAGIC + b"\1\0" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def _check_member(name: str, seen: dict[str, str]) -> None:
    """Refuse a name that another reader of the zip would not find, or would take for another."""
    if not is_plain_path(name):
        raise FormatError("no member of a zip can have this name", tensor=name, rule="NP-07", hint="rename the tensor")
    other = seen.setdefault(f"{name}{SUFFIX}".casefold(), name)
    if other != name:
        raise DuplicateNameError(f"it differs from {other!r} in case only", tensor=name, rule="NP-07", hint="rename it")
