"""Codes and scales on their way: a copy keeps what the file stores, everything else gets decoded values.

A tensor with a `scheme` is one tensor in every stage, so that no filter, rename or layout separates it from its scales.
At the end of a plan it is either copied, as all of its parts under names that follow its own, or decoded. It is decoded
where anything was done to it besides a rename, and where the target's format has no place for its parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..checkpoint import QUANTIZED
from ..errors import ModelError, printable
from ..formats.base import QUANTIZATION_KEY, Format, supports_metadata
from ..models.binding import Slot
from ..tensor.dtype import DType
from ..tensor.facts import DecodedData
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..transforms.operations import AsQFloat, Cast, StoredPart, qfloat_of
from ..transforms.view import Origin
from .ends import Input
from .plan import Move, Plan

_MOST_SHOWN = 3
_QFLOAT = ("burnpack", "record")
"""The formats that have Burn's quantized floats."""
_TO_FLOAT = Cast(DType.F32)


def keep_stored(plan: Plan, given: Iterable[TensorSnapshot], chosen: Format, *, is_cast: bool) -> None:
    """Replace the moves of unchanged coded tensors by those of their parts, and note the others, which are decoded.

    With a cast the caller asks for floats: nothing becomes Burn's QFloat.
    """
    coded = {each.path: each for each in given if isinstance(each._data, DecodedData) or each.dtype.is_quantized}
    if not coded:
        return
    from ..formats.gguf.data import BlockData  # not at import: few files have coded tensors

    moves: list[Move] = []
    decoded: list[str] = []
    as_qfloat: list[str] = []
    for move in plan.moves:
        data = move.snapshot._data
        if isinstance(data, BlockData) and chosen.name == "gguf":
            moves.append(move)  # the writer takes its blocks
        elif isinstance(data, DecodedData) and not isinstance(data, BlockData) and chosen.name in QUANTIZED:
            moves += _parts(move)
        elif move.snapshot.dtype.is_quantized and chosen.name in _QFLOAT:
            moves.append(move)
        elif chosen.name == "burnpack" and not is_cast and (found := qfloat_of(move.snapshot)) is not None:
            moves.append(move._replace(operations=(*move.operations, AsQFloat()), snapshot=found))
            as_qfloat.append(move.target)
        else:
            if any(origin.source in coded for origin in move.origins):
                decoded.append(move.target)
            if move.snapshot.dtype.is_quantized:
                move = move._replace(operations=(*move.operations, _TO_FLOAT), snapshot=_TO_FLOAT(move.snapshot))
            moves.append(move)
    plan.moves = moves
    if keeps_stored(plan) and not supports_metadata(chosen):
        text = "codes and scales are copied; keep the config.json beside the copy, since its format has no metadata"
        plan.notes.append(Note("metadata", text))
    if as_qfloat:
        more = f" and {len(as_qfloat) - 1} more" if len(as_qfloat) > 1 else ""
        text = f"stored as Burn's QFloat, with the same values: {printable(as_qfloat[0])}{more}"
        plan.notes.append(Note("cast", f"{text}; pass cast= for floats"))
    if decoded:
        shown = ", ".join(map(printable, decoded[:_MOST_SHOWN]))
        more = f" and {len(decoded) - _MOST_SHOWN} more" if len(decoded) > _MOST_SHOWN else ""
        names = (each.scheme.name if each.scheme is not None else each.dtype.name for each in coded.values())
        schemes = ", ".join(dict.fromkeys(names))
        plan.notes.append(Note("cast", f"written decoded, without the codes and scales of {schemes}: {shown}{more}"))


def keeps_stored(plan: Plan) -> bool:
    """Return whether a plan copies codes and scales."""
    return any(isinstance(step, StoredPart) for move in plan.moves for each in move.origins for step in each.operations)


def _parts(move: Move) -> list[Move]:
    """Return the moves of all parts of a tensor, under names that follow its new name."""
    origin = move.origins[0]
    whole = origin.source or move.target
    moves = []
    for number, part in enumerate(move.snapshot.stored()):
        name = part_name(part.path, whole, move.target)
        step = StoredPart(number)
        moves.append(Move(name, (Origin(whole, (step,), origin.input),), (), part.with_path(name)))
    return moves


def part_name(part: str, whole: str, target: str) -> str:
    """Return the name of a part of a tensor that is renamed.

    >>> part_name("a.weight_scale", "a.weight", "b.c.weight"), part_name("a.qzeros", "a.weight", "b.weight")
    ('b.c.weight_scale', 'b.qzeros')
    """
    if part.startswith(whole):
        return target + part[len(whole) :]
    module, _, leaf = whole.rpartition(".")
    prefix = f"{module}." if module else ""
    own, _, new_leaf = target.rpartition(".")
    if not part.startswith(prefix) or new_leaf != leaf:
        raise ModelError(
            f"renamed to {printable(target)!r}, it would be separated from {printable(part)!r}, on which it depends",
            tensor=whole,
            hint=f"keep the last part of its name, {leaf!r}; or pass cast= to write decoded values",
        )
    return (f"{own}." if own else "") + part[len(prefix) :]


def stored_for(source: Input, slots: Iterable[Slot | TensorSnapshot]) -> Input:
    """Return an input with codes and scales as tensors of their own, if the target has places for them.

    That is so for a model whose layers are quantized in the same way, and for a file that stores codes and scales as
    plain tensors: each has a place for a scale beside the weight.
    """
    coded = [snapshot for snapshot in source.snapshots if isinstance(snapshot._data, DecodedData)]
    if not coded:
        return source
    places = {(_ending(slot.path), slot.shape) for slot in slots}
    wanted = any(
        (_ending(part.path), part.shape) in places
        for snapshot in coded
        for part in snapshot.stored()
        if part.path != snapshot.path
    )
    if not wanted:
        return source
    return replace(source, snapshots=[part for snapshot in source.snapshots for part in snapshot.stored()])


def _ending(path: str) -> str:
    """Return the last two parts of a name, which a prefix does not change."""
    return ".".join(path.split(".")[-2:])


def drop_config(metadata: dict[str, str], plan: Plan) -> None:
    """Remove the configuration of a quantization of which nothing is left."""
    if QUANTIZATION_KEY in metadata and not keeps_stored(plan):
        del metadata[QUANTIZATION_KEY]
