"""Plan a Burnpack file, byte for byte as the asked-for release of Burn writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from ...errors import FormatError, LimitError, located, warn
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType, Kind
from ...tensor.scalar import Scalar
from ...tensor.snapshot import TensorSnapshot
from ..base import WritePlan, no_dtype
from ..codec.cbor import Tree, encode, encode_map_head, encode_text, encode_uint
from ..columns import check_count, check_names, check_shape, checked_metadata, utf8, wrong_size
from .descriptors import BOOL_STORES, PLAIN
from .eras import DEFAULT_VERSION, Era, Release, named_release, stamp, stamped_release, unsupported_by
from .header import HEADER, MAGIC, MOST_HEADER_BYTES, MOST_TENSORS, VERSION, aligned

_STORE_OF = {dtype: store for store, dtype in BOOL_STORES.items()}


def plan(
    tensors: Sequence[TensorSnapshot],
    metadata: Mapping[str, str] | None,
    limits: Limits,
    *,
    burn_version: str | None = None,
    scalars: Mapping[str, Any] | None = None,
) -> WritePlan:
    """Plan a Burnpack file of these tensors, data in the order given.

    ``metadata=None`` writes the stamp of Burn's store (format, producer, version), a mapping is written unchanged.
    ``burn_version`` chooses whose bytes to write. By default it is the release that the metadata's own stamp names, so
    that a file read from an old Burn is written back unchanged, and 0.22.1 where there is no such stamp.
    """
    release, stored = _release(metadata, burn_version)
    limits = limits.or_defaults(header_bytes=MOST_HEADER_BYTES, tensors=MOST_TENSORS)
    names = [tensor.path for tensor in tensors]
    check_count(len(names), limits, "BP-07")
    check_names(names, limits, "BP-08", "BP-08")
    sizes = [tensor.nbytes for tensor in tensors]
    starts, extent = _places(sizes, unaligned=release.era is Era.V0_19)
    numbers = _checked_scalars(scalars, release)
    encoded = _encode_metadata(tensors, names, sizes, starts, stored, numbers, release, limits)
    if len(encoded) > (limits.header_bytes or 0):
        raise LimitError(
            f"metadata of {len(encoded)} bytes, more than the limit of {limits.header_bytes}", rule="BP-03"
        )
    header = HEADER.pack(MAGIC, VERSION, len(encoded)) + encoded
    if release.era is not Era.V0_19:
        header = header.ljust(aligned(len(header)), b"\0")
    return WritePlan(header, tensors, [len(header) + start for start in starts], len(header) + extent)


def model_stamp(layout: str, *, burn_version: str | None = None, **_: Any) -> dict[str, str]:
    """Return the metadata that Burn's store writes beside a model."""
    return stamp(named_release(DEFAULT_VERSION if burn_version is None else burn_version))


def _release(metadata: Mapping[str, str] | None, burn_version: str | None) -> tuple[Release, dict[str, str]]:
    if metadata is None:
        release = named_release(DEFAULT_VERSION if burn_version is None else burn_version)
        return release, stamp(release)
    stored = checked_metadata(metadata)
    for key, value in stored.items():
        utf8(key, "BP-17"), utf8(value, "BP-17")
    stamped = stamped_release(stored)
    if burn_version is None:
        release = stamped or named_release(DEFAULT_VERSION)
        if release.era is Era.V0_19:
            warn(
                f"the metadata states Burn {release.version}, so the file is written in that release's unaligned form, "
                'which no newer Burn opens; pass burn_version="0.22" to write a current one'
            )
        return release, stored
    release = named_release(burn_version)
    if stamped is not None and stamped.era is not release.era:
        stored.update(stamp(release))  # the stamp must name the release whose bytes these are
    return release, stored


def _places(sizes: list[int], *, unaligned: bool) -> tuple[list[int], int]:
    """Return where each tensor's data starts in the data section, and where the section ends."""
    if unaligned:
        ends = list(accumulate(sizes, initial=0))
        return ends[:-1], ends[-1]
    starts = []
    cursor = 0
    for size in sizes:
        start = aligned(cursor)
        starts.append(start)
        cursor = start + size
    return starts, cursor


def _checked_scalars(scalars: Mapping[str, Any] | None, release: Release) -> dict[str, Scalar]:
    if scalars is not None and not isinstance(scalars, Mapping):
        raise TypeError(f"scalars must map str to numbers, got {type(scalars).__name__}")
    if not scalars:
        return {}
    if not release.era & Era.SCALARS:
        raise unsupported_by(release.era, "scalars")
    for name in scalars:
        if not isinstance(name, str):
            raise TypeError(f"a scalar's name must be a str, got {type(name).__name__}")
        utf8(name, "BP-18")
    return {name: Scalar.of(value) for name, value in scalars.items()}


def _encode_metadata(
    tensors: Sequence[TensorSnapshot],
    names: list[str],
    sizes: list[int],
    starts: list[int],
    stored: dict[str, str],
    scalars: dict[str, Scalar],
    release: Release,
    limits: Limits,
) -> bytes:
    parts = [encode_map_head(1 + bool(stored) + bool(scalars)), encode_text("tensors"), encode_map_head(len(tensors))]
    keys = [utf8(name, "BP-08") for name in names]
    kinds: dict[tuple[DType, Shape], tuple[bytes, int]] = {}
    for row in sorted(range(len(tensors)), key=keys.__getitem__):
        tensor, start, key = tensors[row], starts[row], keys[row]
        with located(tensor=names[row]):
            dtype, shape, param_id = tensor.dtype, tensor.shape, tensor._param_id
            if dtype.scheme is not None:
                # Bytes that an old Burn laid out may have another length than a newer one expects of the same scheme.
                old_style = not release.era & Era.SCHEME_T
                replace(dtype.scheme, old_style=old_style).check_length(shape, sizes[row])
            kind = kinds.get((dtype, shape)) or kinds.setdefault(
                (dtype, shape), _encode_kind(dtype, shape, release.era, limits)
            )
            if dtype.scheme is None and sizes[row] != kind[1]:
                raise wrong_size(names[row], sizes[row], dtype, shape, kind[1], "BP-12")
        parts += (
            encode_uint(len(key), 3),
            key,
            b"\xa3\x65dtype" if param_id is None else b"\xa4\x65dtype",
            kind[0],
            b"\x6cdata_offsets\x82",
            encode_uint(start),
            encode_uint(start + sizes[row]),
        )
        if param_id is not None:
            parts += (b"\x68param_id", encode_uint(param_id))
    if stored:
        parts += (encode_text("metadata"), encode({key: stored[key] for key in sorted(stored, key=str.encode)}))
    if scalars:
        tree = {key: {scalars[key].kind: scalars[key].value} for key in sorted(scalars, key=str.encode)}
        parts += (encode_text("scalars"), encode(tree))  # type: ignore[arg-type]  # dict is invariant in its values
    return b"".join(parts)


def _encode_kind(dtype: DType, shape: Shape, era: Era, limits: Limits) -> tuple[bytes, int]:
    """Return the part of a descriptor with dtype and shape, and the bytes that such a tensor has."""
    spelled = encode(_spell(dtype, era))
    nbytes = dtype.nbytes(shape)
    if nbytes >= 1 << 63 or any(extent >= 1 << 63 for extent in shape):
        raise FormatError(f"shape {list(shape)}: the byte length calculation overflows u64", rule="BP-10")
    check_shape(shape, nbytes, limits, "BP-10")
    return spelled + b"\x65shape" + encode(list(shape)), nbytes


def _spell(dtype: DType, era: Era) -> Tree:
    """Return a dtype as that era writes it."""
    if dtype.name in PLAIN:
        return dtype.name
    if dtype.kind is Kind.BOOL:
        store = _STORE_OF[dtype]
        if era & Era.BOOL_MAP:
            return {"Bool": store}
        if store != "Native":
            raise unsupported_by(era, str(dtype))
        return "Bool"
    if dtype.scheme is not None:
        if era is Era.V0_19:
            raise unsupported_by(era, "quantized tensors")
        from .quant_spelling import scheme_to_tree  # few files have quantized tensors

        return {"QFloat": scheme_to_tree(dtype.scheme, "T" if era & Era.SCHEME_T else "P")}
    raise no_dtype("Burnpack", dtype, rule="BP-09")
