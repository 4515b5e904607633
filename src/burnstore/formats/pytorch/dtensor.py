"""DTensors in a pickle: the part of a tensor that one rank has, and its place in the whole (PT-29).

A DTensor is a local tensor and a spec: a mesh of ranks, a placement for each axis of the mesh (`Shard`, `Replicate`,
`_StridedShard`, `Partial`), and the shape of the whole. The place of the local tensor is not stored. It follows from
the rank's coordinate in the mesh, which is: torch splits an axis as `torch.chunk` does, for one axis of the mesh after
the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...errors import CorruptError, UnsupportedError, printable
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.facts import TOGETHER, Piece, describe_place
from ..codec.pickle_values import Call, Symbol, kind_of
from .tensors import PickledTensor, PlacedTensor, UnbuiltTensor, whole_numbers

_MODULES = ("torch.distributed.tensor", "torch.distributed._tensor")
_MESHES = ("torch.distributed.device_mesh", "torch.distributed._tensor.device_mesh")
_SHARDED = ("torch.distributed._shard.sharded_tensor",)
SHARDED_TENSOR = ("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")
_MOST_AXES = 16
_AS_CHECKPOINT = "save it with torch.distributed.checkpoint, whose folders are read as whole tensors"


def is_dtensor(kind: Any) -> bool:
    """Return whether a class is torch's DTensor, in the modules of any release."""
    return isinstance(kind, Symbol) and kind.name == "DTensor" and kind.module.startswith(_MODULES)


def placed_tensor(state: Any) -> PickledTensor:
    """Return the local tensor of a DTensor with its place; UnsupportedError for placements that are no box."""
    held = _merged(state)
    local, spec = held.get("_local_tensor"), _attributes(held.get("_spec"), "DTensorSpec", _MODULES)
    if not isinstance(local, PickledTensor):
        raise CorruptError("a DTensor without its local tensor", rule="PT-29")
    meta = spec.get("tensor_meta")
    if not isinstance(meta, Call) or not meta.args:
        raise UnsupportedError("a DTensor that does not state the shape of the whole tensor", rule="PT-29")
    whole = whole_numbers(meta.args[0], "size")
    sizes, coordinate = _mesh(spec.get("mesh"))
    placements = spec.get("placements")
    if not isinstance(placements, (tuple, list)) or len(placements) != len(sizes):
        raise CorruptError("a DTensor whose placements do not fit its mesh", rule="PT-29")
    cuts = [_cut(placement) for placement in placements]
    order = _order(cuts, sizes, spec.get("shard_order"), len(whole))
    offset, shape = [0] * len(whole), list(whole)
    for axis in order:
        cut = cuts[axis]
        if cut is None:
            continue
        dim, _ = cut
        if not 0 <= dim < len(whole):
            raise CorruptError(f"a DTensor that is sharded along axis {dim} of {len(whole)}", rule="PT-29")
        step = -(-shape[dim] // sizes[axis])
        first = min(step * coordinate[axis], shape[dim])
        offset[dim], shape[dim] = offset[dim] + first, min(step, shape[dim] - first)
    if tuple(shape) != local.shape and not (0 in shape and 0 in local.shape):
        raise CorruptError(
            f"a DTensor whose local tensor is {list(local.shape)}, its place is {list(shape)} of {list(whole)}",
            rule="PT-29",
        )
    if all(cut is None or sizes[axis] == 1 for axis, cut in enumerate(cuts)):
        return local  # a replica, which is whole
    number, count = 0, math.prod(sizes)
    for extent, at in zip(sizes, coordinate, strict=True):
        number = number * extent + at
    place = describe_place(offset, shape, whole)
    piece = Piece(whole, tuple(offset), f"DTensor {number} of {count}, {place}", number=number)
    return PlacedTensor(local, tuple(shape), piece)


def unplaced_tensor(state: Any, reason: str, hint: str | None) -> PickledTensor | None:
    """Return the local tensor of a DTensor whose place is not known here, so that it is a part of a tensor by name."""
    local = _merged(state).get("_local_tensor")
    if not isinstance(local, PickledTensor):
        return None
    return PlacedTensor(local, local.shape, Piece(None, None, reason, hint or TOGETHER))


def sharded_piece(state: Any, dtype: DType | None = None) -> PickledTensor:
    """Return the shards that one rank has of a ShardedTensor, the older class of torch, with their place.

    Several shards of one rank have no place as a whole: they are known by name, and not read.
    """
    if not isinstance(state, tuple) or len(state) < 2:
        raise CorruptError("a ShardedTensor of an impossible form", rule="PT-29")
    shards, metadata = state[:2]
    whole = whole_numbers(_attributes(metadata, "ShardedTensorMetadata", _SHARDED).get("size"), "size")
    if not isinstance(shards, list):
        raise CorruptError(f"a ShardedTensor whose shards are a {kind_of(shards)}", rule="PT-29")
    group = _merged(state[2].state) if len(state) > 2 and isinstance(state[2], Call) else {}
    rank = group.get("global_rank")
    number = rank if type(rank) is int and rank >= 0 else None
    if not shards:  # a rank without rows
        shape = (0, *whole[1:]) if whole else whole
        empty = PickledTensor(None, dtype or DType.F32, 0, shape, (1,) * len(shape))
        text = f"ShardedTensor, no shard of {list(whole)}"
        return PlacedTensor(empty, shape, Piece(whole, (0,) * len(shape), text, number=number))
    places = [_shard(shard, whole) for shard in shards]
    local, offset = places[0]
    if len(places) == 1:
        text = f"ShardedTensor, {describe_place(offset, local.shape, whole)}"
        return PlacedTensor(local, local.shape, Piece(whole, offset, text, number=number))
    for other, _ in places:
        if other.storage is not None:
            other.storage.is_understood = True
    shown = "; ".join(describe_place(at, tensor.shape, whole) for tensor, at in places[:4])
    text = f"ShardedTensor, {len(places)} shards in this file: {shown}"
    return PlacedTensor(local, local.shape, Piece(whole, None, text, _AS_CHECKPOINT, number))


def _shard(value: Any, whole: Shape) -> tuple[PickledTensor, Shape]:
    """Return the tensor of a shard, and its offset."""
    shard = _attributes(value, "Shard", _SHARDED)
    place = _attributes(shard.get("metadata"), "ShardMetadata", (*_SHARDED, "torch.distributed._shard"))
    offset, local = whole_numbers(place.get("shard_offsets"), "offset"), shard.get("tensor")
    if not isinstance(local, PickledTensor) or len(local.shape) != len(whole) or len(offset) != len(whole):
        raise CorruptError("a ShardedTensor without its local tensor", rule="PT-29")
    if any(o + n > w for o, n, w in zip(offset, local.shape, whole, strict=True)):
        raise CorruptError(f"a shard of {list(local.shape)} at {list(offset)} of {list(whole)}", rule="PT-29")
    return local, offset


class ShardedTensor(UnbuiltTensor):
    """A ShardedTensor of releases that gave it its state last."""

    __slots__ = ()

    def take_state(self, state: Any) -> None:
        self.state = state
        if self.tensor is not None:
            raise CorruptError("a ShardedTensor of an impossible form", rule="PT-29")
        self.tensor = sharded_piece(state)


def is_sharded_tensor(kind: Any) -> bool:
    """Return whether a class is torch's ShardedTensor."""
    return isinstance(kind, Symbol) and (kind.module, kind.name) == SHARDED_TENSOR


def sharded_tensor(args: tuple[Any, ...]) -> ShardedTensor:
    """Return a ShardedTensor whose state comes later."""
    return ShardedTensor(Symbol(SHARDED_TENSOR[0], SHARDED_TENSOR[1]), args)


def _attributes(value: Any, name: str, modules: tuple[str, ...]) -> dict[Any, Any]:
    symbol = value.function if isinstance(value, Call) else None
    if not isinstance(symbol, Symbol) or symbol.name != name or not symbol.module.startswith(modules):
        raise UnsupportedError(f"a DTensor with a {kind_of(value)} in place of its {name}", rule="PT-29")
    return _merged(value.state)


def _merged(state: Any) -> dict[Any, Any]:
    """Return the attributes of an object, those in slots included: its state is a dict, or a pair of dicts or None."""
    parts = state if isinstance(state, tuple) else (state,)
    return {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}


def _mesh(mesh: Any) -> tuple[Shape, Shape]:
    """Return the extents of a mesh, and the coordinate of the rank that saved it."""
    state = _attributes(mesh, "DeviceMesh", _MESHES)
    for held in state.values():
        if isinstance(held, PickledTensor) and held.storage is not None:
            held.storage.is_understood = True
    sizes: Any = None
    ranks = state.get("mesh", state.get("_mesh"))
    layout = state.get("_layout")
    if isinstance(ranks, PickledTensor):
        sizes = ranks.shape
    elif isinstance(layout, Call):
        sizes = _layout_sizes(_merged(layout.state))
    coordinate = state.get("_coordinate_on_dim")
    if isinstance(coordinate, list):
        coordinate = tuple(coordinate)
    if not isinstance(sizes, tuple) or not isinstance(coordinate, tuple):
        raise UnsupportedError("a DTensor whose mesh does not state its extents and the coordinate", rule="PT-29")
    right = all(type(n) is int and n > 0 for n in sizes) and all(type(n) is int for n in coordinate)
    if not right or len(sizes) != len(coordinate) or len(sizes) > _MOST_AXES or math.prod(sizes) >> 32:
        raise CorruptError("a DTensor with an impossible mesh", rule="PT-29")
    if not all(0 <= at < extent for at, extent in zip(coordinate, sizes, strict=True)):
        raise CorruptError(f"a DTensor at {list(coordinate)} of a mesh of {list(sizes)}", rule="PT-29")
    return sizes, coordinate


def _layout_sizes(state: dict[Any, Any]) -> Any:
    """Return the extents that the layout of a mesh has, in the spellings of torch 2.10 and later."""
    axes = state.get("axes")
    if isinstance(axes, (tuple, list)):
        shapes = [
            axis.state.get("shape") if isinstance(axis, Call) and isinstance(axis.state, dict) else axis
            for axis in axes
        ]
        return tuple(_product(shape) for shape in shapes)
    sizes = state.get("shape", state.get("sizes"))
    return tuple(_product(extent) for extent in sizes) if isinstance(sizes, (tuple, list)) else _product(sizes)


def _product(extent: Any) -> Any:
    if isinstance(extent, (tuple, list)) and extent and all(type(n) is int for n in extent):
        return math.prod(extent)
    return extent


def _cut(placement: Any) -> tuple[int, int | None] | None:
    """Return the axis that a placement cuts, and the factor of a strided one; None for a replica."""
    symbol = placement.function if isinstance(placement, Call) else None
    if not isinstance(symbol, Symbol) or not symbol.module.startswith(_MODULES):
        raise UnsupportedError(f"a DTensor that is placed by {kind_of(placement)}", rule="PT-29")
    facts = _merged(placement.state)
    if symbol.name == "Replicate":
        return None
    if symbol.name in ("Shard", "_StridedShard"):
        dim = facts.get("dim", placement.args[0] if placement.args else None)
        factor = facts.get("split_factor") if symbol.name == "_StridedShard" else None
        if symbol.name == "_StridedShard" and factor is None and len(placement.args) > 1:
            factor = placement.args[1]
        if type(dim) is not int or (symbol.name == "_StridedShard" and type(factor) is not int):
            raise CorruptError("a DTensor that is sharded along no axis", rule="PT-29")
        return dim, factor
    raise UnsupportedError(
        f"a DTensor that is placed by {printable(symbol.name)}: its values are not those of the whole tensor",
        rule="PT-29",
        hint="redistribute it before saving, with full_tensor() or get_model_state_dict",
    )


def _order(cuts: Sequence[tuple[int, int | None] | None], sizes: Shape, stated: Any, rank: int) -> list[int]:
    """Return the axes of the mesh in the order in which they cut the tensor.

    FSDP of a tensor that tensor parallelism has cut along the same axis gives a strided shard: the axes of the mesh to
    its right cut first. Its factor is then the number of parts that they make.
    """
    order = [axis for axis, cut in enumerate(cuts) if cut is None or cut[1] is None]
    for axis in reversed(range(len(cuts))):
        cut = cuts[axis]
        if cut is None or cut[1] is None:
            continue
        right = [a for a in range(axis + 1, len(cuts)) if (other := cuts[a]) is not None and other[0] == cut[0]]
        if cut[1] != math.prod(sizes[a] for a in right):
            raise UnsupportedError(f"a DTensor with a strided shard of the factor {cut[1]}", rule="PT-29")
        order.append(axis)
    if isinstance(stated, (tuple, list)):
        _check_stated(stated, cuts, order)
    return order


def _check_stated(stated: Sequence[Any], cuts: Sequence[tuple[int, int | None] | None], order: list[int]) -> None:
    """Refuse an order of the axes, which newer releases state, that is not the one that the placements give."""
    for entry in stated:
        args = entry.args if isinstance(entry, Call) else ()
        if len(args) != 2 or type(args[0]) is not int or not isinstance(args[1], (tuple, list)):
            raise UnsupportedError("a DTensor with an unknown order of shards", rule="PT-29")
        own = [axis for axis in order if (cut := cuts[axis]) is not None and cut[0] == args[0]]
        if list(args[1]) != own:
            raise UnsupportedError(f"a DTensor that is cut along {list(args[1])} in this order", rule="PT-29")
