"""Checkpoints of DeepSpeed ZeRO: the FP32 weights in the flat partitions of the optimizer, one for each rank (PT-30).

    mp_rank_00_model_states.pt                          stages 1 and 2: the shapes of the parameters, buffers
    [bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt    a partition of each flat group of parameters
    zero_pp_rank_R_mp_rank_00_model_states.pt           stage 3: as above, one for each rank, without values

Stages 1 and 2 cut each group, the parameters one after the other and padding at its end, into one part for each rank.
Stage 3 cuts each parameter, with padding in the last part. `zero_to_fp32`, which DeepSpeed writes beside a checkpoint,
is the measure of what the files mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...errors import CorruptError, UnsupportedError, located, printable
from ...io.source import JoinedSource, Source
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.facts import Piece
from ...tensor.note import Note
from ...tensor.sources import Data, JoinedData, RangeData
from ..base import Contents, Table, mark_pieces
from ..pieces import Box, BoxesData
from .contents import Rows
from .graph import Found
from .stream import PickledFile
from .tensors import PickledTensor, whole_numbers

_HINT = "open the folder of the checkpoint, which has the partitions of all ranks"


class ZeroFile(NamedTuple):
    """One file of a checkpoint: its source and its object graph."""

    source: Source
    file: PickledFile


def mark_partitions(file: PickledFile, contents: Contents, source: Source) -> Contents:
    """Return the contents of one file with the partitions of ZeRO in it marked as parts of tensors."""
    value = file.value
    if not isinstance(value, dict):
        return contents
    optimizer, shapes = value.get("optimizer_state_dict"), value.get("param_shapes")
    table, pieces = contents.table, dict[int, Piece]()
    if isinstance(optimizer, dict) and "zero_stage" in optimizer:
        stage = optimizer["zero_stage"]
        text = f"a partition of the flat parameters of all ranks, of DeepSpeed ZeRO stage {printable(str(stage))}"
        pieces = {row: Piece(None, None, text, _HINT) for row, shape in enumerate(table.shapes) if shape}
    elif shapes is not None and "ds_version" in value:
        stated = {name: shape for group in _groups(shapes) for name, shape in group.items()}
        for row, name in enumerate(table.names):
            whole = stated.get(name, stated.get(name.removeprefix("module.")))
            if whole is not None and whole != table.shapes[row]:
                text = f"DeepSpeed ZeRO stage 3, {list(table.shapes[row])} of {list(whole)} in this file"
                pieces[row] = Piece(whole, None, text, _HINT)
    return contents if not pieces else replace(contents, table=mark_pieces(table, source, pieces))


def zero_contents(
    joined: JoinedSource, models: Sequence[ZeroFile], optimizers: Sequence[ZeroFile], limits: Limits
) -> Contents:
    """Return the contents of a checkpoint of all ranks."""
    tensors, notes = read_zero(models, optimizers, limits)
    dtypes, shapes = [dtype for dtype, _, _ in tensors.values()], [shape for _, shape, _ in tensors.values()]
    sizes = [dtype.nbytes(shape) for dtype, shape in zip(dtypes, shapes, strict=True)]
    apart = {row: data for row, (_, _, data) in enumerate(tensors.values())}
    count = len(tensors)
    return Contents(
        Table(list(tensors), dtypes, shapes, [0] * count, sizes, [None] * count, apart),
        variant=f"DeepSpeed ZeRO, {len(optimizers)} ranks",
        layout="torch",
        source=joined,
        file_size=sum(part.size for part in joined.parts),
        notes=notes,
    )


def read_zero(
    models: Sequence[ZeroFile], optimizers: Sequence[ZeroFile], limits: Limits
) -> tuple[dict[str, tuple[DType, Shape, Data]], list[Note]]:
    """Return the FP32 parameters and the buffers of a checkpoint, of the files of all ranks in their order."""
    states = [_optimizer(each) for each in optimizers]
    stages = [state.get("zero_stage") for state in states]
    stage: Any = stages[0] if stages else None
    if any(other != stage for other in stages) or type(stage) is not int or stage not in (1, 2, 3):
        shown = ", ".join(sorted({repr(other)[:40] for other in stages}))
        raise UnsupportedError(
            f"the files state several stages of ZeRO, or one that is not known: {shown}", rule="PT-30"
        )
    counts = {_count(state.get("partition_count")) for state in states}
    if counts != {len(states)}:
        shown = " and ".join(map(str, sorted(counts)))
        raise CorruptError(f"the partitions of {len(states)} ranks are there, the files state {shown}", rule="PT-30")
    model = models[0].file.value
    if not isinstance(model, dict) or "param_shapes" not in model:
        raise UnsupportedError(
            "the model states have no param_shapes, as of DeepSpeed before 0.5",
            rule="PT-30",
            path=models[0].source.name,
        )
    groups = _groups(model["param_shapes"])
    flat = [_flat_groups(state, each, limits) for state, each in zip(states, optimizers, strict=True)]
    tensors = _stage_3(groups, flat) if stage == 3 else _stage_2(groups, flat)
    notes = [Note("names", f"FP32 weights of DeepSpeed ZeRO stage {stage}, of {len(states)} ranks")]
    if model.get("frozen_param_shapes"):
        names = list(model["frozen_param_shapes"]) if isinstance(model["frozen_param_shapes"], dict) else []
        if stage == 3:
            raise UnsupportedError("frozen parameters of ZeRO stage 3 are not read here", rule="PT-30")
        tensors |= _plain(model.get("frozen_param_fragments"), names, models[0], limits)
    buffers = model.get("buffer_names")
    if isinstance(buffers, list):
        tensors |= _plain(model.get("module"), [name for name in buffers if isinstance(name, str)], models[0], limits)
    for name, kept in _shared(model.get("shared_params")).items():
        if kept in tensors:
            tensors.setdefault(name, tensors[kept])
    return tensors, notes


def _optimizer(each: ZeroFile) -> dict[Any, Any]:
    state = each.file.value.get("optimizer_state_dict") if isinstance(each.file.value, dict) else None
    if not isinstance(state, dict) or "zero_stage" not in state:
        raise UnsupportedError("it has no optimizer_state_dict of ZeRO", rule="PT-30", path=each.source.name)
    return state


def _count(stated: Any) -> int:
    numbers = stated if isinstance(stated, (list, tuple)) else [stated]
    if not numbers or any(type(number) is not int or number < 1 for number in numbers):
        raise CorruptError("partition_count is not a number", rule="PT-30")
    return int(max(numbers))


def _groups(shapes: Any) -> list[dict[str, Shape]]:
    """Return the shapes of the parameters by name, for each group of the optimizer."""
    every = shapes if isinstance(shapes, list) else [shapes]
    groups = []
    for group in every:
        if not isinstance(group, dict) or not all(isinstance(name, str) for name in group):
            raise CorruptError("param_shapes do not map names to shapes", rule="PT-30")
        groups.append({name: whole_numbers(shape, "size") for name, shape in group.items()})
    return groups


def _flat_groups(state: dict[Any, Any], each: ZeroFile, limits: Limits) -> list[tuple[Data, int]]:
    """Return the flat FP32 partitions of one rank, each with its number of elements."""
    key = "fp32_flat_groups" if state.get("zero_stage") == 3 else "single_partition_of_fp32_groups"
    parts = state.get(key)
    if not isinstance(parts, list):
        raise UnsupportedError(f"the optimizer has no {key}", rule="PT-30", path=each.source.name)
    found = []
    for part in parts:
        if not isinstance(part, PickledTensor) or part.dtype is not DType.F32 or len(part.shape) != 1:
            raise CorruptError(f"{key} has a part that is not a vector of F32", rule="PT-30", path=each.source.name)
        found.append((_data_of(part, each, limits), part.shape[0]))
    return found


def _data_of(tensor: PickledTensor, each: ZeroFile, limits: Limits) -> Data:
    rows = Rows(each.file, each.source, limits)
    rows.add({"tensor": tensor}, dense=False)
    return rows.contents(Found({}, [])).table.snapshot(0, each.source)._data


def _stage_2(
    groups: Sequence[Mapping[str, Shape]], ranks: Sequence[Sequence[tuple[Data, int]]]
) -> dict[str, tuple[DType, Shape, Data]]:
    """Return the parameters of stages 1 and 2: each group is one vector, which the ranks have in parts."""
    if any(len(rank) != len(groups) for rank in ranks):
        raise CorruptError(f"param_shapes have {len(groups)} groups, the ranks others", rule="PT-30")
    tensors: dict[str, tuple[DType, Shape, Data]] = {}
    for number, group in enumerate(groups):
        boxes, total = list[Box](), 0
        for rank, parts in enumerate(ranks):
            data, count = parts[number]
            boxes.append(Box((total,), (count,), data, f"rank {rank}"))
            total += count
        flat, position = BoxesData(boxes, (0,), (total,), 4), 0
        for name, shape in group.items():
            count = math.prod(shape)
            if position + count > total:
                raise CorruptError(f"its group of all ranks has {total} elements, too few", tensor=name, rule="PT-30")
            _add(tensors, name, shape, RangeData(flat, 4 * position, 4 * count) if count else JoinedData([]))
            position += count
        step = 2 * len(ranks)
        if -(-position // step) != -(-total // step):
            raise CorruptError(f"the parameters of a group have {position} elements, the ranks {total}", rule="PT-30")
    return tensors


def _stage_3(
    groups: Sequence[Mapping[str, Shape]], ranks: Sequence[Sequence[tuple[Data, int]]]
) -> dict[str, tuple[DType, Shape, Data]]:
    """Return the parameters of stage 3: each is cut into one part for each rank."""
    flat: list[tuple[BoxesData, int]] = []
    for rank, parts in enumerate(ranks):
        boxes, total = list[Box](), 0
        for data, count in parts:
            boxes.append(Box((total,), (count,), data, f"rank {rank}"))
            total += count
        flat.append((BoxesData(boxes, (0,), (total,), 4), total))
    tensors: dict[str, tuple[DType, Shape, Data]] = {}
    position = 0
    for name, shape in (pair for group in groups for pair in group.items()):
        count, step = math.prod(shape), -(-math.prod(shape) // len(ranks))
        pieces: list[tuple[Data, int]] = []
        for rank, (data, total) in enumerate(flat):
            own = min(step, max(count - rank * step, 0))
            if position + step > total:
                raise CorruptError(f"rank {rank} has {total} elements, too few", tensor=name, rule="PT-30")
            if own:
                pieces.append((RangeData(data, 4 * position, 4 * own), 4 * own))
        _add(tensors, name, shape, JoinedData(pieces))
        position += step
    longest = max(total for _, total in flat)
    if {total for _, total in flat} != {longest}:
        raise CorruptError("the ranks have partitions of different lengths", rule="PT-30")
    if position != longest:
        raise CorruptError(f"the parameters need {position} elements of each rank, which has {longest}", rule="PT-30")
    return tensors


def _add(tensors: dict[str, tuple[DType, Shape, Data]], name: str, shape: Shape, data: Data) -> None:
    if name in tensors:
        raise CorruptError("it is in two groups", tensor=name, rule="PT-30")
    tensors[name] = DType.F32, shape, data


def _plain(held: Any, names: Sequence[Any], each: ZeroFile, limits: Limits) -> dict[str, tuple[DType, Shape, Data]]:
    """Return tensors that every rank has as a whole: buffers, frozen parameters."""
    tensors: dict[str, tuple[DType, Shape, Data]] = {}
    for name in names:
        value = held.get(name) if isinstance(held, dict) else None
        if isinstance(value, PickledTensor):
            with located(tensor=name):
                tensors[name] = value.dtype, value.shape, _data_of(value, each, limits)
    return tensors


def _shared(stated: Any) -> dict[str, str]:
    pairs = stated.items() if isinstance(stated, dict) else stated if isinstance(stated, list) else ()
    return {
        pair[0]: pair[1]
        for pair in pairs
        if isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(name, str) for name in pair)
    }
