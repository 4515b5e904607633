"""Fold PEFT's LoRA adapters into the tensors of their base model, as ``merge_and_unload`` does.

An adapter is a folder of ``adapter_config.json`` and ``adapter_model.safetensors`` (or ``.bin``). For each module it
has two thin matrices, A of r rows and B of r columns; the base tensor becomes W + s B A with s = alpha / r, or
alpha / sqrt(r) for rank-stabilized adapters. Sums are computed in float32 (float64 for F64) and rounded once to the
dtype of the base.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...checkpoint import Checkpoint
from ...errors import ConfigError, FormatError, MergeError, located, printable
from ...io.documents import Bounds, read_json
from ...io.source import read_whole
from ...pipeline.ends import Input
from ...tensor.data import Array, array_from_bytes, bytes_of_array
from ...tensor.dtype import DType
from ...tensor.note import Note
from ...tensor.snapshot import TensorSnapshot
from ...tensor.sources import WrappedData
from ...transforms.precision import rounded_results, underflows

CONFIG = "adapter_config.json"

_PREFIX = "base_model.model."
_PART = re.compile(r"(?P<module>.*)\.(?P<part>lora_(?:embedding_)?[AB])(?:\.weight)?", re.DOTALL)
_ROWS = 256  # Rows are always computed in these blocks, so that reading a part gives the bits of the whole.
_BASE_CHANGING = ("pissa", "olora", "loftq", "corda")
_BOUNDS = Bounds(constants=True)


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter: its settings, its tensors under the names of the base, and the weight with which it is added."""

    path: str
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorSnapshot]
    weight: float

    def scale(self, module: str, rank: int) -> float:
        """Return the factor of a module's product."""
        alpha = float(_matching(self.config.get("alpha_pattern"), module, self.config.get("lora_alpha", 8)))
        return self.weight * alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


def is_adapter(path: str) -> bool:
    """Return whether a path is the folder of an adapter, or its file."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    name = os.path.basename(path)
    return os.path.isfile(os.path.join(folder, CONFIG)) and (os.path.isdir(path) or name.startswith("adapter_model."))


def adapter_of(file: Checkpoint, path: str, weight: float) -> Adapter:
    """Read an adapter and its settings; MergeError if it cannot be folded exactly."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    with located(path=path):
        try:
            raw = read_whole(os.path.join(folder, CONFIG), _BOUNDS.nbytes)
            config = read_json(raw, _BOUNDS, into=dict[str, Any])
        except FileNotFoundError:
            hint = "pass the base first, then the folders of adapters"
            raise MergeError(f"no {CONFIG} in the adapter's folder", hint=hint) from None
        except (FormatError, ConfigError) as error:
            raise MergeError(f"{CONFIG} is not a JSON object: {error.message}") from None
        _check_kind(config)
        tensors = {}
        for name, snapshot in file.items():
            if not name.startswith(_PREFIX):
                raise MergeError(f"expected a name that begins with {_PREFIX}", tensor=name)
            tensors[name.removeprefix(_PREFIX)] = snapshot
        return Adapter(path, config, tensors, weight)


def _check_kind(config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise MergeError(f"expected peft_type LORA, found {kind!r}", hint="merge it with peft")
    if not isinstance(config.get("lora_alpha", 8), (int, float)) or not isinstance(config.get("r", 8), int):
        raise MergeError("r and lora_alpha must be numbers")
    for key, what in (
        ("use_dora", "DoRA scales each column by a learned magnitude"),
        ("lora_bias", "it has biases of its own"),
        ("layer_replication", "it replicates layers of the base"),
        ("target_parameters", "it targets parameters that are not those of a module"),
        ("trainable_token_indices", "it trains single rows of an embedding"),
        ("alora_invocation_tokens", "it is active for some tokens only"),
        ("use_qalora", "it is quantization-aware"),
    ):
        if config.get(key):
            raise MergeError(f"{key} is set: {what}; cannot fold it", hint="merge it with peft")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(_BASE_CHANGING):
        raise MergeError(
            f"init_lora_weights={start!r} changes the base when training starts, so the base alone is not enough",
            hint="merge it with peft, or convert the adapter with peft's path_initial_model_for_weight_conversion",
        )


def _matching(patterns: Any, module: str, default: Any) -> Any:
    """Return the value of the first pattern that a module's name ends with, as PEFT chooses it."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


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


def fold(base: Input, adapters: Sequence[Adapter], names: Mapping[str, str]) -> tuple[Input, dict[str, list[int]]]:
    """Return the base with the adapters added, and the numbers of the adapters that changed each tensor.

    ``names`` maps the base's tensors to the names that the adapters use. Complete tensors of an adapter
    (``modules_to_save``, trained biases) replace those of the base.
    """
    tensors = {names[snapshot.path]: snapshot for snapshot in base.snapshots}
    own = {} if base.checkpoint is None else base.checkpoint.ties
    ties = {names[name]: names[first] for name, first in own.items()}
    terms: dict[str, list[tuple[Array, Array]]] = {}
    changed: dict[str, list[int]] = {}
    replaced: dict[str, TensorSnapshot] = {}
    notes: list[Note] = []
    for number, adapter in enumerate(adapters, 1):
        with located(path=adapter.path):
            pairs, whole = _pairs(adapter)
            for module, (a, b, is_embedding) in pairs.items():
                name = f"{module}.weight"
                first = ties.get(name, name)
                snapshot = tensors.get(name)
                if snapshot is None:
                    raise _no_such(name, tensors)
                with located(tensor=name):
                    term = _term(adapter, module, snapshot, a, b, is_embedding=is_embedding)
                terms.setdefault(first, []).append(term)
                changed.setdefault(first, []).append(number)
            for name, snapshot in whole.items():
                if name not in tensors:
                    raise _no_such(name, tensors)
                if name in replaced or snapshot.shape != tensors[name].shape:
                    raise MergeError("two adapters replace this tensor, or its shape differs", tensor=name)
                replaced[name] = snapshot.with_path(tensors[name].path)
                changed.setdefault(name, []).append(number)
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
    whole: dict[str, TensorSnapshot] = {}
    for name, snapshot in adapter.tensors.items():
        match = _PART.fullmatch(name)
        if match is not None:
            halves.setdefault(match["module"], {})[match["part"]] = snapshot
        elif ".lora_" in name or "trainable_tokens" in name:
            problem = "an adapter with this tensor cannot be folded exactly"
            raise MergeError(problem, tensor=name, hint="merge it with peft")
        else:
            whole[re.sub(r"\.(base_layer|original_module)(?=\.)", "", name)] = snapshot
    pairs: dict[str, tuple[Array, Array, bool]] = {}
    for module, parts in halves.items():
        kinds = set(parts)
        if kinds not in ({"lora_A", "lora_B"}, {"lora_embedding_A", "lora_embedding_B"}):
            raise MergeError(f"expected a pair of A and B, found {', '.join(sorted(kinds))}", tensor=module)
        is_embedding = "lora_embedding_A" in kinds
        a, b = (parts[f"lora_{'embedding_' if is_embedding else ''}{side}"].numpy() for side in "AB")
        pairs[module] = a, b, is_embedding
    return pairs, whole


def _term(
    adapter: Adapter, module: str, base: TensorSnapshot, a: Array, b: Array, *, is_embedding: bool
) -> tuple[Array, Array]:
    """Return two matrices whose product is what the adapter adds to a base tensor, seen as rows and columns."""
    if not base.dtype.is_float or base.dtype.bits < 16:
        raise MergeError(f"expected a base of floats of 16 bits or more, found {base.dtype.name}")
    wide = np.float64 if base.dtype is DType.F64 else np.float32
    rank = a.shape[0]
    if b.ndim != a.ndim or b.shape[1] != rank or math.prod(b.shape[2:]) != 1:
        raise MergeError(f"A of shape {list(a.shape)} and B of shape {list(b.shape)} cannot be multiplied")
    left, right = b.reshape(b.shape[0], rank).astype(wide), a.reshape(rank, -1).astype(wide)
    shape = (b.shape[0], *a.shape[1:])
    if is_embedding or adapter.config.get("fan_in_fan_out"):
        left, right, shape = np.ascontiguousarray(right.T), np.ascontiguousarray(left.T), shape[::-1]
    if shape != base.shape:
        is_turned = shape[::-1] == base.shape
        hint = "check fan_in_fan_out of the adapter" if is_turned else "check that this is the adapter's base"
        raise MergeError(f"the base has shape {list(base.shape)}, the adapter's product {list(shape)}", hint=hint)
    scaled: Array = np.multiply(left, adapter.scale(module, rank), dtype=wide)
    return scaled, right


def _no_such(name: str, tensors: Mapping[str, TensorSnapshot]) -> MergeError:
    ends = [found for found in tensors if found.endswith(f".{name}") or name.endswith(f".{found}")]
    hint = "check that this is the adapter's base"
    if ends:
        hint = f"the base has {printable(ends[0])!r}: rename its tensors with MergeSource(rename=...)"
    return MergeError("the adapter changes this tensor, which the base does not have", tensor=name, hint=hint)
