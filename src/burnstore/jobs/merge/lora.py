"""Fold PEFT's LoRA adapters into the tensors of their base model, as ``merge_and_unload`` does.

An adapter is a folder of ``adapter_config.json`` and ``adapter_model.safetensors`` (or ``.bin``). For each module it
has two thin matrices, A of r rows and B of r columns; the base tensor becomes W + s B A with s = alpha / r, or
alpha / sqrt(r) for rank-stabilized adapters. Sums are computed in float32 (float64 for F64) and rounded once to the
dtype of the base.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...checkpoint import Checkpoint
from ...errors import BurnstoreError, MergeError, located, printable
from ...io.documents import Bounds, read_json
from ...io.opening import read_whole
from ...io.paths import base_name, folder_of, is_file, is_folder, is_remote, join
from ...pipeline.ends import Input
from ...tensor.data import Array, array_from_bytes, bytes_of_array
from ...tensor.dtype import DType
from ...tensor.note import Note
from ...tensor.snapshot import TensorSnapshot
from ...tensor.sources import WrappedData
from ...transforms.layout import CONV1D
from ...transforms.precision import rounded_results, underflows
from .combine import listed
from .lora_config import CONFIG, LoraConfig, read_config

_PREFIX = "base_model.model."
_PART = re.compile(r"(?P<module>.*)\.(?P<part>lora_(?:embedding_)?[AB])(?:\.weight)?", re.DOTALL)
_WRAPPED = re.compile(r"\.(base_layer|original_module|modules_to_save)(?=\.)")
_CONFIG = Bounds(constants=True)
_ROWS = 256  # Rows are always computed in these blocks, so that reading a part gives the bits of the whole.


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter: its settings, its tensors under the names of the base, and the weight with which it is added."""

    path: str
    config: LoraConfig
    tensors: Mapping[str, TensorSnapshot]
    weight: float


def is_adapter(path: str) -> bool:
    """Return whether a path is the folder of an adapter, or its file."""
    is_whole = is_folder(path)
    if not is_whole and not base_name(path).startswith("adapter_model."):
        return False
    return is_file(join(path if is_whole else folder_of(path), CONFIG))


def adapter_of(file: Checkpoint, path: str, weight: float) -> Adapter:
    """Read an adapter and its settings; MergeError if it cannot be folded exactly."""
    folder = path if is_folder(path) else folder_of(path)
    with located(path=path):
        config = read_config(folder)
        tensors = {}
        for name, snapshot in file.items():
            if not name.startswith(_PREFIX):
                raise MergeError(f"expected a name that begins with {_PREFIX}", tensor=name)
            tensors[name.removeprefix(_PREFIX)] = snapshot
        return Adapter(path, config, tensors, weight)


@dataclass(slots=True, eq=False)
class LoraData(WrappedData):
    """The values of a base tensor with products of thin matrices added, row by row."""

    dtype: DType
    rows: int
    columns: int
    terms: Sequence[tuple[Array, Array]] = field(default_factory=list)
    """Pairs of a matrix of all rows and one of all columns; the scale is in the first."""

    underflowed: bool = False
    """Whether a sum that is not 0 was rounded to 0."""

    @property
    def identity(self) -> Hashable | None:
        inner = self.data.identity
        return None if inner is None else (LoraData, inner, id(self.terms))

    @property
    def streams(self) -> bool:
        return self.data.streams

    def bytes_held(self, nbytes: int) -> int:
        block = _ROWS * self.columns * 16
        return self.data.bytes_held(nbytes) + min(nbytes, 4 << 20) + block

    def window(self, start: int, stop: int) -> memoryview:
        if stop <= start:
            return memoryview(b"")
        row_bytes = self.columns * self.dtype.bits // 8
        first, last = start // row_bytes // _ROWS * _ROWS, min(-(-stop // row_bytes), self.rows)
        blocks = [self._block(at, min(at + _ROWS, self.rows)) for at in range(first, last, _ROWS)]
        values = bytes_of_array(blocks[0] if len(blocks) == 1 else np.concatenate(blocks))
        return values[start - first * row_bytes : stop - first * row_bytes]

    def _block(self, first: int, last: int) -> Array:
        row_bytes = self.columns * self.dtype.bits // 8
        raw = self.data.window(first * row_bytes, last * row_bytes)
        wide = np.float64 if self.dtype is DType.F64 else np.float32
        given: Array = array_from_bytes(raw, self.dtype, (last - first, self.columns))
        values: Array = given.astype(wide)
        with np.errstate(all="ignore"):
            for left, right in self.terms:
                values += left[first:last] @ right
            terms = (part for left, right in self.terms for part in (left[first:last], right))
            sums = rounded_results(values, self.dtype, [given, *terms])
        self.underflowed = self.underflowed or underflows(values, sums)
        return sums


def fold(
    base: Input, adapters: Sequence[Adapter], names: Mapping[str, str], kinds: Mapping[str, str]
) -> tuple[Input, dict[str, list[int]]]:
    """Return the base with the adapters added, and the numbers of the adapters that changed each tensor.

    ``names`` maps the base's tensors to the names that the adapters use, ``kinds`` the modules of the base, under those
    names, to their kinds where they are known. Complete tensors of an adapter
    (``modules_to_save``, trained biases) replace those of the base.
    """
    tensors = {names[snapshot.path]: snapshot for snapshot in base.snapshots}
    own = {} if base.checkpoint is None else base.checkpoint.ties
    ties = {names[name]: names[first] for name, first in own.items()}
    terms: dict[str, list[tuple[Array, Array]]] = {}
    changed: dict[str, list[int]] = {}
    replaced: dict[str, TensorSnapshot] = {}
    notes: list[Note] = []
    orientation = _Orientation(tensors, kinds, _has_conv1d(base))
    for number, adapter in enumerate(adapters, 1):
        with located(path=adapter.path):
            pairs, whole = _pairs(adapter)
            notes += [Note("check", f"{printable(adapter.path)}: {note}") for note in adapter.config.notes()]
            for module, (a, b, is_embedding) in pairs.items():
                name = f"{module}.weight"
                first = ties.get(name, name)
                snapshot = tensors.get(name)
                if snapshot is None:
                    raise _no_such(name, tensors)
                with located(tensor=name):
                    term = _term(adapter, module, snapshot, a, b, None if is_embedding else orientation)
                terms.setdefault(first, []).append(term)
                changed.setdefault(first, []).append(number)
            for name, snapshot in whole.items():
                if name not in tensors:
                    raise _no_such(name, tensors)
                if name in replaced or snapshot.shape != tensors[name].shape:
                    raise MergeError("two adapters replace this tensor, or its shape differs", tensor=name)
                replaced[name] = snapshot.with_path(tensors[name].path)
                changed.setdefault(name, []).append(number)
    for kind in sorted(set(orientation.unproved.values())):
        modules = [printable(module) for module, chosen in orientation.unproved.items() if chosen == kind]
        text = f"square matrices taken as those of a {kind}, as other modules of the base suggest: {listed(modules)}"
        notes.append(Note("layout", f"{text}; {_KINDS_HINT} to be sure"))
    if replaced:
        shown = f"{', '.join(list(replaced)[:3])}{' …' if len(replaced) > 3 else ''}"
        notes.append(Note("left out", f"replaced by an adapter: {shown}"))
    if ties and any(first in terms for first in ties.values()):
        notes.append(Note("tied", "tied tensors stay tied: what an adapter adds to one is added under every name"))
    result = []
    for name, found in tensors.items():
        snapshot = replaced.get(name, found)
        added = terms.get(ties.get(name, name))
        if added is not None:
            rows = snapshot.shape[0]
            columns = math.prod(snapshot.shape[1:])
            snapshot = snapshot.replace(data=LoraData(snapshot._data, snapshot.dtype, rows, columns, added))
        result.append(snapshot)
    by_file = {tensors[name].path: numbers for name, numbers in changed.items()}
    return replace(base, snapshots=result, notes=[*base.notes, *notes], checkpoint=None), by_file


def _pairs(adapter: Adapter) -> tuple[dict[str, tuple[Array, Array, bool]], dict[str, TensorSnapshot]]:
    """Return the two matrices of each module, and the adapter's complete tensors."""
    halves: dict[str, dict[str, TensorSnapshot]] = {}
    whole: dict[str, list[tuple[str, TensorSnapshot]]] = {}
    for name, snapshot in adapter.tensors.items():
        match = _PART.fullmatch(name)
        if match is not None:
            halves.setdefault(match["module"], {})[match["part"]] = snapshot
        elif ".lora_" in name or "trainable_tokens" in name:
            problem = "an adapter with this tensor cannot be folded exactly"
            raise MergeError(problem, tensor=name, hint="merge it with peft")
        else:
            whole.setdefault(_WRAPPED.sub("", name), []).append((name, snapshot))
    pairs: dict[str, tuple[Array, Array, bool]] = {}
    for module, parts in halves.items():
        kinds = set(parts)
        if kinds not in ({"lora_A", "lora_B"}, {"lora_embedding_A", "lora_embedding_B"}):
            raise MergeError(f"expected a pair of A and B, found {', '.join(sorted(kinds))}", tensor=module)
        is_embedding = "lora_embedding_A" in kinds
        adapter.config.check_target(module)
        for part, snapshot in parts.items():
            if not snapshot.dtype.is_float or snapshot.dtype.bits % 8:
                raise MergeError(f"expected floats, found {snapshot.dtype.name}", tensor=f"{module}.{part}")
        a, b = (parts[f"lora_{'embedding_' if is_embedding else ''}{side}"].numpy() for side in "AB")
        pairs[module] = a, b, is_embedding
    return pairs, {name: _in_use(name, several) for name, several in whole.items()}


def _in_use(name: str, several: Sequence[tuple[str, TensorSnapshot]]) -> TensorSnapshot:
    """Return the complete tensor that a model with the adapter computes with; some are saved several times.

    A module of ``modules_to_save`` takes the place of the original one, whose bias may be saved as well.
    """
    used = [snapshot for wrapped, snapshot in several if ".original_module." not in f".{wrapped}"]
    first, *others = used or [snapshot for _, snapshot in several]
    for other in others:
        if other.shape != first.shape or other.dtype is not first.dtype or other.to_bytes() != first.to_bytes():
            raise MergeError("the adapter has two different tensors of this name", tensor=name)
    return first


_KINDS_HINT = 'pass rules={pattern: "Linear" or "Conv1D"} or like= the base model'
_CONV1D_NAMES = frozenset(("c_attn", "c_fc", "c_proj", "q_attn"))
"""The names that transformers gives to its Conv1D modules."""
_CONV1D_TYPES = frozenset(("gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp", "clvp_decoder"))
"""The values of ``model_type`` in a config.json whose models have a Conv1D."""


class _Orientation:
    """Which way a module keeps its matrix: Conv1D of transformers has it transposed, a Linear has not.

    PEFT decides by the class of each module; ``fan_in_fan_out`` of a saved adapter is only that of the last one. Here
    the kind decides where it is known, then the shape, unless the matrix is square. A Conv1D always has a bias, so a
    square matrix without one is a Linear's. With one, the class of the model decides, if a config.json beside the base
    names one of transformers; then modules with the same last part of their name, whose biases are as long as the
    number of outputs. Without these it is a Linear's if all other modules of the base are, and nothing points to a
    Conv1D.
    """

    def __init__(
        self, tensors: Mapping[str, TensorSnapshot], kinds: Mapping[str, str], has_conv1d: bool | None
    ) -> None:
        self._tensors = tensors
        self._kinds = kinds
        self._has_conv1d = has_conv1d
        self.unproved: dict[str, str] = {}
        """The kinds of modules with a square matrix and a bias, which other modules of the base suggest."""

    @functools.cached_property
    def _evidence(self) -> dict[str, set[bool]]:
        """Whether matrices that are not square are transposed: of each last part of a name, and of all ("")."""
        found: dict[str, set[bool]] = {"": set()}
        for name, weight in self._tensors.items():
            module = name.removesuffix(".weight")
            bias = self._tensors.get(f"{module}.bias")
            if module == name or bias is None or len(weight.shape) != 2 or weight.shape[0] == weight.shape[1]:
                continue
            if bias.shape in (weight.shape[:1], weight.shape[1:]):
                is_turned = bias.shape == weight.shape[1:]
                found[""].add(is_turned)
                found.setdefault(module.rpartition(".")[2], set()).add(is_turned)
        return found

    def is_turned(self, module: str, shape: tuple[int, ...], base: tuple[int, ...], stated: bool) -> bool:
        """Return whether the base has the transposed matrix of a product of this shape."""
        kind = self._kinds.get(module)
        if kind in (CONV1D, "Linear"):
            return kind == CONV1D
        if len(shape) != 2 or shape[0] != shape[1]:
            return shape != base and shape[::-1] == base
        if f"{module}.bias" not in self._tensors:
            return False
        leaf = module.rpartition(".")[2]
        alike, others = self._evidence.get(leaf, set()), self._evidence[""]
        if self._has_conv1d is not None:
            is_turned = self._has_conv1d and leaf in _CONV1D_NAMES
            if alike <= {is_turned}:
                return is_turned
        elif len(alike) == 1 or (others == {False} and not stated and not alike and leaf not in _CONV1D_NAMES):
            is_turned = alike == {True}
            self.unproved[module] = CONV1D if is_turned else "Linear"
            return is_turned
        raise MergeError(
            "its matrix is square, and nothing in the base proves whether the module is a Linear or a Conv1D, "
            "which keeps it transposed",
            hint=_KINDS_HINT,
        )


def _has_conv1d(base: Input) -> bool | None:
    """Return whether the class of the base has Conv1D modules, by the config.json beside it; None if unknown.

    A model with code of its own may have any modules.
    """
    path = "" if base.checkpoint is None else base.checkpoint.path
    if not path:
        return None
    folder = path if is_folder(path) else folder_of(path if is_remote(path) else os.path.abspath(path))
    try:
        config = read_json(read_whole(join(folder, "config.json"), _CONFIG.nbytes), _CONFIG)
    except (BurnstoreError, OSError):  # a file of another program, or none: other evidence decides
        return None
    types, has_own_code, todo = set(), False, [config]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            types.add(part.get("model_type") if isinstance(part.get("model_type"), str) else None)
            has_own_code = has_own_code or "auto_map" in part
            todo += [held for key, held in part.items() if key != "auto_map"]
    types.discard(None)
    return None if not types or has_own_code else bool(types & _CONV1D_TYPES)


def _term(
    adapter: Adapter, module: str, base: TensorSnapshot, a: Array, b: Array, orientation: _Orientation | None
) -> tuple[Array, Array]:
    """Return two matrices whose product is what the adapter adds to a base tensor, seen as rows and columns.

    ``orientation`` is None for an embedding.
    """
    if not base.dtype.is_float or base.dtype.bits < 16:
        raise MergeError(f"expected a base of floats of 16 bits or more, found {base.dtype.name}")
    wide = np.float64 if base.dtype is DType.F64 else np.float32
    if a.ndim < 2 or b.ndim != a.ndim or b.shape[1] != a.shape[0] or math.prod(b.shape[2:]) != 1:
        raise MergeError(f"A of shape {list(a.shape)} and B of shape {list(b.shape)} cannot be multiplied")
    rank, stated = a.shape[0], adapter.config.rank_of(module)
    if rank != stated:
        raise MergeError(
            f"its matrices have rank {rank}, and {CONFIG} states {stated}",
            hint="check r and rank_pattern: the matrices and the settings are not of one adapter",
        )
    left, right = b.reshape(b.shape[0], rank).astype(wide), a.reshape(rank, -1).astype(wide)
    shape = (b.shape[0], *a.shape[1:])
    if orientation is None or orientation.is_turned(module, shape, base.shape, adapter.config.fan_in_fan_out):
        left, right, shape = np.ascontiguousarray(right.T), np.ascontiguousarray(left.T), shape[::-1]
    if shape != base.shape:
        hint = "check that this is the adapter's base"
        raise MergeError(f"the base has shape {list(base.shape)}, the adapter's product {list(shape)}", hint=hint)
    scale = adapter.weight * adapter.config.scale_of(module, rank)
    scaled: Array = np.multiply(left, scale, dtype=wide)
    return scaled, right


def _no_such(name: str, tensors: Mapping[str, TensorSnapshot]) -> MergeError:
    ends = [found for found in tensors if found.endswith(f".{name}") or name.endswith(f".{found}")]
    hint = "check that this is the adapter's base"
    if ends:
        hint = f"the base has {printable(ends[0])!r}: rename its tensors with MergeSource(rename=...)"
    return MergeError("the adapter changes this tensor, which the base does not have", tensor=name, hint=hint)
