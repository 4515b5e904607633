"""What must come out of a composition: slow, plain NumPy and dict loops, and nothing of burnstore.

Every function returns arrays by name, or raises `Refused` with the reason. `Expected.noted` has pieces of text that a
result must have in its notes or lists; `Expected.loose` says that a refusal would be right as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

Array = Any
Named = dict[str, Array]


class Refused(Exception):  # noqa: N818  # it is a verdict, not an error
    """The composition must be refused, for this reason."""


@dataclass
class Layer:
    """A module: its path in torch and in Burn, its kind in torch, its tensors by torch's names, its sizes."""

    path: str
    kind: str
    tensors: Named
    options: Mapping[str, Any] = field(default_factory=dict)
    burn: str = ""

    def __post_init__(self) -> None:
        self.burn = self.burn or self.path


@dataclass
class File:
    """A file as its writer left it."""

    tensors: Named
    format: str
    layout: str | None
    """The layout that the file states; None if it states none."""
    by_metadata: bool = False
    """Whether metadata of burnstore states it, so that nothing may contradict it."""
    record: list[Layer] | None = None
    """The modules that the file records."""


@dataclass
class Place:
    """A model: its tensors by its own names, and the layers that it declares (none for plain containers)."""

    kind: str
    tensors: Named
    layers: list[Layer]
    ties: Sequence[tuple[str, str]] = ()

    @property
    def layout(self) -> str:
        return "torch" if self.kind == "torch" else "burn"


@dataclass
class Options:
    """The options of a composition; each means the same for every verb."""

    rename: Mapping[str, str] | Sequence[str] | None = None
    filter: Sequence[str] | None = None
    """Regular expressions, of which one must be found in the name."""
    layout: str | None = None
    target_layout: str | None = None
    keep_layout: bool = False
    rules: dict[str, str] | None = None
    guess: bool = False
    like: Place | None = None
    adapter: str | None = None
    """``negate`` changes values only, ``rename`` names, ``turn`` axes; ``own`` says that it converts layouts itself."""
    cast: str | None = None
    allow_partial: bool = False

    def keeps(self, name: str) -> bool:
        return self.filter is None or any(re.search(pattern, name) for pattern in self.filter)


@dataclass
class Expected:
    """The verdict: the tensors that must be there, what must be noted, and whether a refusal would be right too."""

    tensors: Named
    layout: str | None = None
    noted: list[str] = field(default_factory=list)
    unused: list[str] | None = None
    loose: str | None = None


# --- dtypes -----------------------------------------------------------------------------------------------------------

FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
_EXTRA = {np.dtype(ml_dtypes.float8_e4m3fn): "f", np.dtype(ml_dtypes.float8_e5m2): "f"}
_KINDS = {**{np.dtype(each): "f" for each in FLOATS.values()}, **_EXTRA}
BURN_DTYPES = {
    np.dtype(each) for each in (*FLOATS.values(), np.bool_, *(f"{sign}{n}" for sign in "iu" for n in "1248"))
}
SAFE_DTYPES = BURN_DTYPES | set(_EXTRA) | {np.dtype(np.complex64)}


def kind_of(dtype: np.dtype[Any]) -> str:
    """Return f, i (integers of both signs), b or c."""
    found = _KINDS.get(dtype, dtype.kind)
    return "i" if found == "u" else found


def cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return floats in another float dtype, rounded to nearest even; refused if a finite value becomes infinite."""
    if array.dtype == dtype:
        return array
    wide = array.astype(np.float64)  # exact: every float dtype here has fewer bits
    with np.errstate(all="ignore"):
        narrow = _nearest16(wide, dtype) if dtype.itemsize == 2 else wide.astype(dtype)
    if (np.isfinite(wide) & ~np.isfinite(narrow.astype(np.float64))).any():
        raise Refused(f"a finite value is too large for {dtype}")
    return narrow


ZEROED = "became 0"


def zeroed(before: Array, after: Array) -> list[str]:
    """Return what must be noted if a value that is not 0 became 0."""
    return [ZEROED] if kind_of(before.dtype) == "f" and ((before != 0) & (after == 0)).any() else []


_TABLES: dict[Any, tuple[Array, Array]] = {}


def _nearest16(wide: Array, dtype: np.dtype[Any]) -> Array:
    """Round to a 16-bit float by looking at all of its values: the patterns 0, 1, 2 … are ascending numbers."""
    if dtype not in _TABLES:
        patterns = np.arange(1 << 15, dtype=np.uint16)
        numbers = patterns.view(dtype).astype(np.float64)
        infinity = int(np.isinf(numbers).argmax())
        numbers[infinity] = 2 * numbers[infinity - 1] - numbers[infinity - 2]  # where the next number would be
        _TABLES[dtype] = patterns[: infinity + 1], numbers[: infinity + 1]
    patterns, numbers = _TABLES[dtype]
    size = np.abs(wide)
    finite = np.isfinite(size)
    size = np.where(finite, size, 0.0)
    above = np.clip(np.searchsorted(numbers, size), 1, len(numbers) - 1)
    low, high = numbers[above - 1], numbers[above]
    nearer = (size - low) < (high - size)
    tied = (size - low) == (high - size)
    is_low = nearer | (tied & (patterns[above - 1] % 2 == 0)) | (size == low)
    found = np.where(is_low, patterns[above - 1], patterns[above])
    found = np.where(np.isinf(wide), patterns[-1], found)
    result = np.where(np.signbit(wide), found | 0x8000, found).astype(np.uint16).view(dtype)
    result[np.isnan(wide)] = np.nan
    return result.reshape(wide.shape)


def held(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return values in the dtype of a torch parameter, which keeps its own."""
    if array.dtype == dtype:
        return array
    if kind_of(dtype) == "f":
        return cast(array, dtype)
    if dtype.kind in "iu" and array.size:
        bounds = np.iinfo(dtype)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise Refused("an integer does not fit")
    return array.astype(dtype)


def negated(array: Array) -> Array:
    """Return floats with the other sign, NaN included; other values unchanged."""
    if kind_of(array.dtype) != "f":
        return array
    bits = np.dtype(f"u{array.dtype.itemsize}")
    flipped = np.ascontiguousarray(array).view(bits) ^ bits.type(1 << (8 * bits.itemsize - 1))
    return flipped.view(array.dtype).reshape(array.shape)


# --- modules: the names and axes of one kind in both frameworks -------------------------------------------------------

NORM = {"weight": "gamma", "bias": "beta"}
STATISTICS = {"running_mean": "running_mean", "running_var": "running_var"}
PLAIN = {"weight": "weight", "bias": "bias"}
TABLE: dict[str, dict[str, str]] = {
    "Linear": PLAIN,
    "Embedding": {"weight": "weight"},
    "Conv1d": PLAIN,
    "Conv2d": PLAIN,
    "ConvTranspose1d": PLAIN,
    "PReLU": {"weight": "alpha"},
    "LayerNorm": NORM,
    "RMSNorm": {"weight": "gamma"},
    "GroupNorm": NORM,
    "InstanceNorm1d": NORM,
    "BatchNorm1d": {**NORM, **STATISTICS},
    "BatchNorm2d": {**NORM, **STATISTICS},
}
BURN_KINDS = {"PReLU": "PRelu", "RMSNorm": "RmsNorm", "InstanceNorm1d": "InstanceNorm", "BatchNorm1d": "BatchNorm"}
BURN_KINDS |= {"LSTM": "Lstm", "GRU": "Gru", "MultiheadAttention": "MultiHeadAttention"}
FILLED = ("LayerNorm", "RMSNorm", "BatchNorm1d", "BatchNorm2d")
GATES = {"LSTM": ("input", "forget", "cell", "output"), "GRU": ("reset", "update", "new")}
COUNT = "num_batches_tracked"


def parts_of(kind: str) -> dict[str, tuple[str, int, int, bool]]:
    """Return for each tensor of Burn's module: torch's tensor, which of how many equal parts, and if transposed."""
    if kind in TABLE:
        return {burn: (torch, 0, 1, kind == "Linear" and torch == "weight") for torch, burn in TABLE[kind].items()}
    found = {}
    if kind in GATES:
        gates = GATES[kind]
        for at, gate in enumerate(gates):
            for short, long in (("ih", "input"), ("hh", "hidden")):
                for name in ("weight", "bias"):
                    place = f"{gate}_gate.{long}_transform.{name}"
                    found[place] = (f"{name}_{short}_l0", at, len(gates), name == "weight")
    if kind == "MultiheadAttention":
        for at, part in enumerate(("query", "key", "value")):
            found[f"{part}.weight"] = ("in_proj_weight", at, 3, True)
            found[f"{part}.bias"] = ("in_proj_bias", at, 3, False)
        found["output.weight"] = ("out_proj.weight", 0, 1, True)
        found["output.bias"] = ("out_proj.bias", 0, 1, False)
    return found


def module_to_burn(
    kind: str, own: Named, options: Mapping[str, Any], declares: Iterable[str] | None
) -> tuple[Named, list[str]]:
    """Return the tensors of one of Burn's modules, and which of them are made up (ones and zeros).

    ``declares`` are the tensors that the module is known to have; None if only those that are here are known.
    """
    if kind == "Own":
        return dict(own), []
    parts = parts_of(kind)
    unknown = set(own) - {torch for torch, *_ in parts.values()} - ({COUNT} if kind.startswith("BatchNorm") else set())
    if unknown:
        raise Refused(f"{kind} has no {min(unknown)}")
    made: Named = {}
    for burn, (torch, at, count, turned) in parts.items():
        if torch in own:
            array = own[torch]
            if array.ndim == 0 or array.shape[0] % count or (turned and array.ndim != 2):
                raise Refused(f"{torch} has no {count} parts, or is no matrix")
            if kind not in TABLE and not turned and array.ndim != 1:
                raise Refused(f"{torch} is a bias with {array.ndim} axes")
            part = array.shape[0] // count
            array = array[at * part : (at + 1) * part] if count > 1 else array
            made[burn] = array.T if turned else array
    if kind not in FILLED and kind not in ("GroupNorm", "InstanceNorm1d"):
        return made, []
    absent = [name for name in ("weight", "bias") if name not in (own if declares is None else declares)]
    if kind.startswith("BatchNorm") and "running_mean" not in (own if declares is None else declares):
        raise Refused("Burn's BatchNorm has statistics")
    if kind == "LayerNorm" and absent == ["bias"]:
        absent = []  # Burn's can do without
    if kind == "RMSNorm":
        absent = [name for name in absent if name == "weight"]
    elif declares is None and len(absent) == 1:
        raise Refused(f"a norm without {absent[0]}, and nothing declares that")
    like = next((array for name, array in own.items() if name != COUNT), None)
    if kind not in FILLED or (like is None and declares):
        return made, []
    features = options.get("features") if like is None else like.shape[0]
    filled = [NORM[name] for name in absent] if features is not None else []
    dtype = np.dtype(np.float32) if like is None else like.dtype
    made |= {name: np.full(features, 1.0 if name == "gamma" else 0.0).astype(dtype) for name in filled}
    return made, filled


def parts_to_burn(kind: str, own: Named) -> Named:
    """Return the tensors of a module of a Burn model from a file with torch's axes, whose names may be Burn's."""
    parts = parts_of(kind)
    is_fused = any(torch in own for torch, *_ in parts.values())
    if kind not in TABLE and not is_fused:  # a torch model that has the parts as modules of their own
        return {name: array.T if array.ndim == 2 else array for name, array in own.items() if name in parts}
    names = {burn: torch for torch, burn in TABLE.get(kind, {}).items() if burn in own and torch not in own}
    own = {names.get(name, name): array for name, array in own.items()}
    known = {torch for torch, *_ in parts.values()}
    return module_to_burn(kind, {name: a for name, a in own.items() if name in known}, {}, known)[0]


def module_to_torch(kind: str, own: Named, declares: Iterable[str] = ()) -> tuple[Named, list[str], bool]:
    """Return the tensors of one of torch's modules that Burn's make, those without a part, and if zeros were added.

    Zeros stand for biases that Burn's module does not have; those of torch's tensors in ``declares`` it has.
    """
    if kind == "Own":
        return dict(own), [], False
    parts = parts_of(kind)
    zeros = set()
    if kind == "MultiheadAttention" and any(name.endswith("bias") and name in own for name in parts):
        zeros = {name for name in parts if name.endswith("bias") and name not in own}  # torch has all biases or none
        zeros = {name for name in zeros if parts[name][0] not in declares}
        weights = {name: own.get(f"{name.partition('.')[0]}.weight") for name in zeros}
        own |= {
            name: np.zeros(weight.shape[1:], weight.dtype) for name, weight in weights.items() if weight is not None
        }
    whole: Named = {}
    broken = []
    for torch in dict.fromkeys(each[0] for each in parts.values()):
        made_of = {at: burn for burn, (name, at, _, _) in parts.items() if name == torch}
        given = [own[made_of[at]] for at in sorted(made_of) if made_of[at] in own]
        if any(parts[made_of[0]][3] and array.ndim != 2 for array in given):
            raise Refused(f"a part of {torch} is no matrix")
        given = [array.T if parts[made_of[0]][3] else array for array in given]
        if len({(array.shape[1:], array.dtype) for array in given}) > 1:
            raise Refused("parts that do not fit each other")
        if len(given) == len(made_of):
            whole[torch] = given[0] if len(given) == 1 else np.concatenate(given)
        elif given:
            broken.append(torch)
    return whole, broken, bool(zeros)


def in_burn(layers: Iterable[Layer]) -> Named:
    """Return layers as Burn has them."""
    found: Named = {}
    for each in layers:
        made, _ = module_to_burn(each.kind, each.tensors, each.options, each.tensors)
        found |= {f"{each.burn}.{name}": array for name, array in made.items()}
    return found


def own_of(tensors: Named, path: str, layers: Sequence[Layer], layout: str) -> Named:
    """Return the tensors in a module, by their names in it; those of modules inside of it are not its own."""
    inner = [
        other for each in layers if (other := each.path if layout == "torch" else each.burn).startswith(f"{path}.")
    ]
    return {
        name[len(path) + 1 :]: array
        for name, array in tensors.items()
        if name.startswith(f"{path}.") and not any(name.startswith(f"{other}.") for other in inner)
    }


# --- stages -----------------------------------------------------------------------------------------------------------


def new_names(names: Sequence[str], rename: Mapping[str, str] | Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the new name of each, and the rules that matched none; refused if two names become one."""
    unmatched: list[str] = []
    found = list(names)
    if isinstance(rename, Mapping):
        found = [rename.get(name, name) for name in names]
        unmatched = [old for old in rename if old not in names]
    elif rename is not None:
        for rule in rename:
            old, _, new = rule.partition("=>")
            pattern = old.removeprefix("?")
            if not any(re.search(pattern, name) for name in found) and not old.startswith("?"):
                unmatched.append(pattern)
            found = [re.sub(pattern, new.replace("$1", r"\1"), name) for name in found]
    if len(set(found)) < len(found):
        raise Refused("two tensors get one name")
    return found, unmatched


def adapted(array: Array, adapter: str | None) -> Array:
    if adapter == "negate":
        return negated(array)
    if adapter in ("turn", "own") and array.ndim == 2:
        return array.T
    return array


def cast_of(array: Array, dtype: str | None) -> Array:
    return array if dtype is None or kind_of(array.dtype) != "f" else cast(array, np.dtype(FLOATS[dtype]))


def numbered(tensors: Named, wanted: Iterable[str]) -> Named:
    """Close the gaps in the numbers of ``seq``, where the model has none; refused if the model has more entries."""
    numbers = sorted({int(name.split(".")[1]) for name in tensors if re.match(r"seq\.\d+\.", name)})
    there = sorted({int(name.split(".")[1]) for name in wanted if re.match(r"seq\.\d+\.", name)})
    if numbers in (list(range(len(numbers))), there):
        return tensors
    if there and there[-1] >= len(numbers):
        raise Refused("nothing says which entries of the list the file has")
    ranks = {number: at for at, number in enumerate(numbers)}
    return {
        re.sub(r"^seq\.(\d+)\.", lambda found: f"seq.{ranks[int(found[1])]}.", name): array
        for name, array in tensors.items()
    }


def stated(file: File, options: Options, noted: list[str]) -> str | None:
    if options.layout is None or file.layout in (None, options.layout):
        return options.layout or file.layout
    if file.by_metadata:
        raise Refused("the given layout contradicts the file's metadata")
    noted.append("says so")
    return options.layout


def proved(tensors: Named, layers: Sequence[Layer], keeps: Callable[[str], bool]) -> tuple[str | None, str | None]:
    """Return the layout that names and shapes prove for the layers of a Burn model, and why a refusal is right too."""
    proofs: set[str] = set()
    undecided = counted = False
    for each in layers:
        parts = parts_of(each.kind)
        is_fused = any(f"{each.burn}.{torch}" in tensors for torch, _, count, _ in parts.values() if count > 1)
        for burn, (torch, _, count, turned) in parts.items():
            ours, theirs = f"{each.burn}.{burn}", f"{each.burn}.{torch}"
            if torch not in each.tensors and burn not in ("gamma", "beta"):
                continue
            if burn in ("gamma", "beta", "alpha") and ours in tensors:
                proofs.add("burn")
            elif ours != theirs and theirs in tensors and ours not in tensors:
                proofs.add("torch")
            elif (
                ours in tensors and turned and not (is_fused and ours != theirs)
            ):  # in a file of either layout a Linear
                wanted = each.tensors[torch].shape
                if len(wanted) != 2:
                    continue  # a rule that does not fit
                wanted = (wanted[0] // count, wanted[1])
                is_torch, is_burn = tensors[ours].shape == wanted, tensors[ours].shape == wanted[::-1]
                if is_torch != is_burn:
                    proofs.add("torch" if is_torch else "burn")
                elif is_torch and keeps(ours):
                    undecided = True
            elif ours in tensors and is_fused and ours != theirs:
                proofs.add("burn")
        counted = counted or f"{each.burn}.{COUNT}" in tensors
    if len(proofs) > 1:
        raise Refused("names and shapes contradict each other")
    if not proofs and undecided:
        if counted:
            return "torch", "only a counter says that it is torch's"
        raise Refused("the layout is not stated, and nothing proves it")
    return (proofs.pop() if proofs else None), None


# --- verbs ------------------------------------------------------------------------------------------------------------


def load(file: File, place: Place, options: Options) -> Expected:
    """Return the model's tensors after a load."""
    noted: list[str] = []
    loose = None
    names, unmatched = new_names(list(file.tensors), options.rename)
    noted += unmatched
    given = dict(zip(names, file.tensors.values(), strict=True))
    if options.filter is not None:
        noted += [each for each in options.filter if not any(re.search(each, path) for path in place.tensors)]
    if file.format == "pytorch" and place.layout == "burn":
        given = numbered(given, place.tensors)
    layout = stated(file, options, noted)
    own = options.adapter == "own"
    is_needed = not own and layout != place.layout and not (layout is None and place.layout == "torch")
    layers = ruled(place.layers, options, place, is_converted=False) if is_needed else place.layers
    if layout is None and not own:
        if place.layout == "torch":
            layout = "torch"
            check_not_burn(given, place)
            noted.append("does not state its layout")
        else:
            layout, loose = proved(given, [each for each in layers if each.kind != "Own"], options.keeps)
            noted += ["does not state its layout"] if layout else []
    known = given
    used: set[str] = set()
    lost: list[str] = []
    is_converted = layout not in (None, place.layout) and not own
    if is_converted:
        layers = ruled(place.layers, options, place)
        known, used, lost = into_model(given, place, layers, noted, options.keeps)
        counts = recorded_counts(file)
        known |= {path: counts[path] for path in lost if path in counts}
    values = dict(place.tensors)
    taken: set[str] = set()
    for path, old in place.tensors.items():
        if path not in known:
            continue
        if not is_converted:
            used.add(path)
        if not options.keeps(path):
            continue
        if is_converted and options.adapter in ("rename", "turn") and changes(path, known[path], options.adapter):
            raise Refused("the adapter changes names or axes, and the layout is converted")
        whole = adapted(known[path], options.adapter)
        array = cast_of(whole, options.cast)
        if kind_of(array.dtype) != kind_of(old.dtype) or array.shape != old.shape:
            raise Refused(f"{path} does not fit")
        if place.kind == "torch" and array.dtype != old.dtype:
            noted.append("cast from")
            array = held(array, old.dtype)
        noted += zeroed(whole, array)
        values[path] = array
        taken.add(path)
    missing = {path for path in place.tensors if path not in known and path not in lost}
    for first, second in place.ties:
        if first in taken and second in taken and not same(values[first], values[second]):
            raise Refused("tied parameters with different values")
        for one, other in ((first, second), (second, first)):
            if one in taken and other not in taken:
                values[other] = values[one]
                noted += [other] if other in missing else []
                missing.discard(other)
    if missing and not options.allow_partial:
        if all(not options.keeps(path) for path in missing):
            loose = "what the filter leaves out is missing"
        else:
            raise Refused(f"missing: {min(missing)}")
    return Expected(values, place.layout, noted, sorted(set(given) - used), loose)


def check_not_burn(given: Named, place: Place) -> None:
    """Refuse a file that states no layout and has Burn's name for a tensor of a torch model."""
    for name in given:
        owner, _, leaf = name.rpartition(".")
        if leaf in ("gamma", "beta", "alpha") and f"{owner}.weight" in place.tensors and f"{owner}.weight" not in given:
            raise Refused(f"{name} is Burn's")


def recorded_counts(file: File) -> Named:
    return {f"{each.path}.{COUNT}": each.tensors[COUNT] for each in file.record or () if COUNT in each.tensors}


def ruled(layers: Sequence[Layer], options: Options, place: Place, *, is_converted: bool = True) -> list[Layer]:
    """Return the layers with the kinds that rules give them; a rule must match one, and fit it if it takes part."""
    found = list(layers)
    for pattern, kind in (options.rules or {}).items():
        hits = 0
        for at, each in enumerate(found):
            path = each.path if place.layout == "torch" else each.burn
            if re.search(pattern, path):
                hits += 1
                try:
                    check_shapes(kind, each.tensors, place.layout)
                except Refused:
                    if is_converted and any(options.keeps(f"{path}.{name}") for name in each.tensors):
                        raise
                    continue  # it takes no part
                is_turned = (
                    place.layout == "burn" and kind == "Linear"
                )  # values under torch's names are kept as torch's
                tensors = {name: array.T if is_turned else array for name, array in each.tensors.items()}
                found[at] = replace(each, kind=kind, tensors=tensors)
        if not hits:
            raise Refused("a rule matches no module")
    return found


def check_shapes(kind: str, own: Named, layout: str) -> None:
    """Refuse a rule that the shapes contradict."""
    weight, bias = (own[name].shape if name in own else None for name in ("weight", "bias"))
    if weight is None or not kind.startswith(("Linear", "Conv")):
        return
    rows = -1 if kind == "Linear" and layout == "burn" else 0
    if len(weight) != (2 if kind == "Linear" else int(kind[-2]) + 2):
        raise Refused("the shapes contradict the rule")
    if bias not in (None, (weight[rows],)) and not kind.startswith("ConvTranspose"):
        raise Refused("the shapes contradict the rule")


def changes(path: str, array: Array, adapter: str) -> bool:
    return adapter == "rename" or (adapter == "turn" and array.ndim == 2 and array.shape[0] != array.shape[1])


def into_model(
    given: Named, place: Place, layers: Sequence[Layer], noted: list[str], keeps: Callable[[str], bool]
) -> tuple[Named, set[str], list[str]]:
    """Return a file's tensors in the layout of a model that declares its layers; the names used; torch's counters."""
    known: Named = {}
    used: set[str] = set()
    lost: list[str] = []
    if not place.layers:  # plain containers: nothing states a kind
        noted += ["unknown kind"] if place.tensors else []
        return dict(given), set(given) & set(place.tensors), []
    for each in layers:
        if each.kind == "Own":
            noted += ["unknown kind"] if each.tensors else []
            for name in each.tensors:
                if (path := f"{each.path if place.layout == 'torch' else each.burn}.{name}") in given:
                    known[path] = given[path]
                    used.add(path)
            continue
        if place.layout == "burn":
            own = own_of(given, each.burn, layers, "burn")
            try:
                made = parts_to_burn(each.kind, own)
            except Refused:
                if any(keeps(path) for path in place.tensors if path.startswith(f"{each.burn}.")):
                    raise
                made = {name: own[name] for name in own if name in parts_of(each.kind)}  # the filter leaves it out
            known |= {f"{each.burn}.{name}": array for name, array in made.items()}
            used |= {f"{each.burn}.{name}" for name in own if is_used(each.kind, name, own)}
            if COUNT in own and each.kind.startswith("BatchNorm"):
                noted.append(COUNT)
            continue
        burnt, filled = module_to_burn(each.kind, each.tensors, each.options, each.tensors)
        own = {name: given[path] for name in burnt if (path := f"{each.burn}.{name}") in given}
        for name in filled:
            if name in own and not (own[name].astype(np.float64) == (1.0 if name == "gamma" else 0.0)).all():
                raise Refused("a constant of the layer has another value")
        used |= {f"{each.burn}.{name}" for name in own}
        whole, _, zeros = module_to_torch(each.kind, {name: array for name, array in own.items() if name not in filled})
        biases = [name for name in whole if name.endswith("bias") and keeps(f"{each.path}.{name}")]
        noted += ["constant"] if zeros and biases else []
        known |= {f"{each.path}.{name}": array for name, array in whole.items()}
        if COUNT in each.tensors and whole:
            lost.append(f"{each.path}.{COUNT}")
    return known, used, lost


def is_used(kind: str, name: str, own: Named) -> bool:
    """Return whether a module of a Burn model uses a tensor of a file with torch's axes."""
    parts = parts_of(kind)
    if name in {torch for torch, *_ in parts.values()} or (name == COUNT and kind.startswith("BatchNorm")):
        return True
    return name in parts and parts[name][0] not in own


def convert_layers(
    tensors: Named,
    layers: Sequence[Layer],
    own: str,
    noted: list[str],
    options: Options,
    *,
    is_declared: bool | None,
    counts: Mapping[str, Array] = MappingProxyType({}),
) -> Named:
    """Return all tensors of a file or model in the other layout; refused unless every one has a place there."""
    made: Named = {}
    left = {name for name in tensors if options.keeps(name)}
    for each in layers:
        path, other = (each.path, each.burn) if own == "torch" else (each.burn, each.path)
        inside = own_of(tensors, path, layers, own)
        left -= {f"{path}.{name}" for name in inside}
        try:
            found = convert_layer(each, inside, own, noted, options, is_declared=is_declared, counts=counts)
        except Refused:
            if inside and not any(options.keeps(f"{path}.{name}") for name in inside):
                continue  # the filter leaves the module out
            raise
        made |= {f"{other}.{name}": array for name, array in found.items()}
    if left:
        raise Refused(f"nothing states the module of {min(left)}")
    return made


def convert_layer(
    each: Layer,
    inside: Named,
    own: str,
    noted: list[str],
    options: Options,
    *,
    is_declared: bool | None,
    counts: Mapping[str, Array],
) -> Named:
    """Return the tensors of one module in the other layout."""
    path, other = (each.path, each.burn) if own == "torch" else (each.burn, each.path)
    if each.kind == "Own":
        noted += ["unknown kind"] if any(options.keeps(f"{path}.{name}") for name in inside) else []
        return dict(inside)
    if own == "torch" and is_declared is None:  # a Burn model
        if stray := [name for name in inside if not is_used(each.kind, name, inside)]:
            raise Refused(f"{each.kind} has no {stray[0]}")
        return parts_to_burn(each.kind, inside)
    if not is_declared and not options.guess:
        check_shapes(each.kind, inside, own)
    if own == "torch":
        found, filled = module_to_burn(each.kind, inside, each.options, each.tensors if is_declared else None)
        noted += ["constant"] if any(options.keeps(f"{other}.{name}") for name in filled) else []
        return found
    filled = filled_of(each) if is_declared else []
    for name in filled:
        if name in inside and not (inside.pop(name).astype(np.float64) == (1.0 if name == "gamma" else 0)).all():
            raise Refused("a constant of the layer has another value")
    stray = {name for name in set(inside) - set(parts_of(each.kind)) if options.keeps(f"{path}.{name}")}
    found, parts, zeros = module_to_torch(each.kind, inside, each.tensors if is_declared is None else ())
    broken = [name for name in parts if options.keeps(f"{other}.{name}")]
    noted += ["constant"] if zeros else []
    if stray or broken or (zeros and is_declared is False):
        raise Refused(f"{stray or broken} has no counterpart")
    if each.kind.startswith("BatchNorm") and inside:
        count = f"{other}.{COUNT}"
        found[COUNT] = np.array(counts.get(count, 0), np.int64)
        noted += [COUNT] if count not in counts and options.keeps(count) else []
    return found


def written(rows: Named, options: Options, format: str, noted: list[str], *, is_converted: bool) -> Named:
    """Return tensors after adapter and cast, if the format can write them."""
    made: Named = {}
    for path, array in rows.items():
        if is_converted and changes(path, array, options.adapter or ""):
            raise Refused("the adapter changes names or axes, and the layout is converted")
        whole = adapted(array, options.adapter)
        array = cast_of(whole, options.cast)
        noted += zeroed(whole, array)
        if array.dtype not in (BURN_DTYPES if format == "burnpack" else SAFE_DTYPES):
            raise Refused(f"{format} has no {array.dtype}")
        made[f"{path}_new" if options.adapter == "rename" else path] = array
    return made


def save(place: Place, format: str, options: Options) -> Expected:
    """Return the tensors of a file that a model is saved into."""
    noted: list[str] = []
    wanted = options.layout or ("burn" if format == "burnpack" else place.layout)
    if options.adapter == "own":
        wanted = place.layout
    if options.filter is not None:
        noted += [each for each in options.filter if not any(re.search(each, path) for path in place.tensors)]
    rows = {path: array for path, array in place.tensors.items() if options.keeps(path)}
    is_converted = wanted != place.layout
    if is_converted and not place.layers:
        noted.append("unknown kind")
    elif is_converted:
        layers = ruled(place.layers, options, place)
        whole = Options(filter=None)
        kept = [
            each for each in layers if each.kind == "Own" or options.filter is None or _has(rows, each, place.layout)
        ]
        declared = None if place.layout == "burn" else True
        notes: list[str] = []
        rows = convert_layers(rows, kept, place.layout, notes, whole, is_declared=declared)
        if place.layout == "torch":
            made = {f"{each.burn}.{name}" for each in kept for name in filled_of(each)}
            rows = {path: array for path, array in rows.items() if path not in made or options.keeps(path)}
            notes = [each for each in notes if each != "constant"] + ["constant"] * bool(made & set(rows))
        noted += notes
    rows = written(rows, options, format, noted, is_converted=is_converted)
    names, unmatched = new_names(list(rows), options.rename)
    return Expected(dict(zip(names, rows.values(), strict=True)), wanted, noted + unmatched)


def _has(rows: Named, each: Layer, layout: str) -> bool:
    path = each.path if layout == "torch" else each.burn
    return not each.tensors or any(name.startswith(f"{path}.") for name in rows)


def filled_of(each: Layer) -> list[str]:
    return module_to_burn(each.kind, each.tensors, each.options, each.tensors)[1]


def guessed(tensors: Named, options: Options) -> list[Layer]:
    """Return the layers that names and shapes decide in torch's layout; refused if they do not decide one."""
    owners: dict[str, Named] = {}
    for name, array in tensors.items():
        path, _, last = name.rpartition(".")
        if path.endswith(".out_proj") and f"{path.removesuffix('.out_proj')}.in_proj_weight" in tensors:
            path, last = path.removesuffix(".out_proj"), f"out_proj.{last}"
        owners.setdefault(path, {})[last] = array
    found = []
    for path, own in owners.items():
        weight, bias = (own[name].shape if name in own else None for name in ("weight", "bias"))
        if "in_proj_weight" in own:
            kind = "MultiheadAttention"
        elif "weight_hh_l0" in own:
            rows, columns = own["weight_hh_l0"].shape
            kind = "LSTM" if rows == 4 * columns else "GRU"
        elif "running_mean" in own:
            kind = "BatchNorm2d"
        elif weight is None and bias is None:
            kind = "Own"
        elif weight is None or set(own) - {"weight", "bias"}:
            kind = ""
        elif len(weight) in (3, 4, 5):
            kind = "Conv1d"
        elif len(weight) == 2 and bias is not None and weight[0] != weight[1] and bias == weight[:1]:
            kind = "Linear"
        elif len(weight) == 1 and bias == weight:
            kind = "LayerNorm"
        else:
            kind = ""
        if not kind and any(options.keeps(f"{path}.{name}") for name in own):
            raise Refused("ambiguous")
        found.append(Layer(path, kind or "Own", own))
    return found


def convert(file: File, format: str, options: Options) -> Expected:
    """Return the tensors of a file that another is converted into."""
    noted: list[str] = []
    loose = None
    names, unmatched = new_names(list(file.tensors), options.rename)
    if unmatched:
        raise Refused("a rename matches nothing")
    given = dict(zip(names, file.tensors.values(), strict=True))
    like = options.like
    if like is not None and file.format == "pytorch" and like.layout == "burn":
        given = numbered(given, like.tensors)
    own = stated(file, options, noted)
    if own is None and like is not None and like.layers:
        if like.layout == "torch":
            own = "torch"
            noted.append("does not state its layout")
        else:
            own, loose = proved(given, [each for each in like.layers if each.kind != "Own"], lambda name: True)
            noted += ["does not state its layout"] if own else []
    wanted = "burn" if format == "burnpack" else own
    if file.layout is None and options.layout is None and file.format == format:
        wanted = options.target_layout
    wanted = own if options.keep_layout else options.target_layout or wanted or own
    replaced = options.adapter == "own"
    is_converted = own != wanted and not replaced
    if is_converted and own is None:
        raise Refused("the layout of the source is not stated")
    if like is not None:
        for first, second in like.ties:  # one parameter, of which files may have one name only
            for one, other in ((first, second), (second, first)):
                if one in given and other not in given and own == like.layout:
                    given[other] = given[one]
    rows = given
    if is_converted:
        layers, is_declared = known_layers(file, given, options, own or "")
        rows = convert_layers(
            given, layers, own or "", noted, options, is_declared=is_declared, counts=recorded_counts(file)
        )
    if like is not None:
        check_like(given, rows, like, own, wanted, options)
    if options.filter is not None:
        if any(not any(re.search(each, path) for path in rows) for each in options.filter):
            raise Refused("a filter matches nothing")
        rows = {path: array for path, array in rows.items() if options.keeps(path)}
    if replaced and (not options.like or own is None):
        loose = "the adapter may go by the kinds, and they are not all known"
    rows = written(rows, options, format, noted, is_converted=is_converted)
    return Expected(rows, own if replaced else wanted, noted, loose=loose)


def known_layers(file: File, given: Named, options: Options, own: str) -> tuple[list[Layer], bool | None]:
    """Return the layers that something states, and whether it also declares which tensors are absent."""
    if options.like is not None:
        if not options.like.layers:
            return [Layer("", "Own", given)], True
        return options.like.layers, None if options.like.kind == "nn" else True
    layers: list[Layer] = []
    if file.record is not None:
        moved = {old: new for old, new in zip(file.tensors, given, strict=True) if old != new}
        for each in file.record:
            path = each.path if own == "torch" else each.burn
            names = [name for name in file.tensors if name.startswith(f"{path}.")]
            after = {moved.get(name, name)[: -len(name) + len(path)] for name in names}
            kept = all(moved.get(name, name).endswith(name[len(path) :]) for name in names)
            if names and (len(after) > 1 or not kept):
                raise Refused("the renames change names within a recorded module")
            new = after.pop() if names else path
            if new != path and each.path != each.burn:
                raise Refused("a renamed module of which the other name is not known")
            layers.append(each if new == path else replace(each, path=new, burn=new))
        return layers, True
    if options.guess:
        if own != "torch":
            raise Refused("only torch's layout can be guessed")
        return guessed(given, options), False
    if options.rules is None:
        raise Refused("nothing states the kinds")
    segments = [name.split(".") for name in given]
    paths = {".".join(each[:depth]) for each in segments for depth in range(len(each))}
    matched: set[str] = set()
    for path in sorted(paths):
        for pattern, kind in options.rules.items():
            if re.search(pattern, path):
                matched.add(pattern)
                torch = {burn: name for name, burn in BURN_KINDS.items()}.get(kind, kind)
                own_tensors = {n[len(path) + 1 :]: a for n, a in given.items() if n.startswith(f"{path}.")}
                layers.append(Layer(path, "Own" if kind == "AsIs" else torch, own_tensors))
    if len(matched) < len(options.rules):
        raise Refused("a rule matches no module")
    return layers, False


def check_like(given: Named, rows: Named, like: Place, own: str | None, wanted: str | None, options: Options) -> None:
    """Refuse tensors that ``like`` has not, those that it has and the file has not, and other shapes."""
    found = given if own == like.layout or own is None else rows
    if own not in (None, like.layout) and wanted != like.layout:
        found = convert_layers(given, like.layers, own, [], options, is_declared=None if like.kind == "nn" else True)
    for name, array in found.items():
        if name not in like.tensors:
            if options.keeps(name):
                raise Refused(f"like has no {name}")
        elif array.shape != like.tensors[name].shape:
            raise Refused(f"like has {name} in another shape")
        elif kind_of(array.dtype) != kind_of(like.tensors[name].dtype):
            raise Refused(f"like has {name} in another dtype")
    for name in like.tensors:
        if name not in found and options.keeps(name):
            raise Refused(f"like has {name}")


def blended(one: Array, other: Array, t: float) -> Array:
    """Return a linear blend; integers and bools must be equal, unless one of them has no weight."""
    if kind_of(one.dtype) != "f":
        if t and not same(one, other):
            raise Refused("integers have no mean")
        return one
    if not t:
        return one
    wide = np.dtype(np.float32 if one.dtype.itemsize <= 2 else np.float64)
    return cast(one.astype(wide) * wide.type(1 - t) + other.astype(wide) * wide.type(t), one.dtype)


def diff(first: File, second: File, layers: Sequence[Layer] | None) -> Expected:
    """Return for each name whether both files have equal values; in Burn's layout if they have two layouts."""
    noted: list[str] = []
    sides = [first.tensors, second.tensors]
    if None not in (first.layout, second.layout) and first.layout != second.layout:
        if layers is None:
            raise Refused("two layouts, and nothing states the kinds")
        for at, side in enumerate((first, second)):
            if side.layout == "torch":
                dropped = {name for name in sides[at] if name.endswith(COUNT)}
                noted += sorted(dropped)[:1]
                sides[at] = convert_layers(sides[at], layers, "torch", [], Options(), is_declared=True)
    elif first.layout != second.layout:
        noted.append("does not state its layout")
    equal = [name for name in sides[0] if name in sides[1] and same(sides[0][name], sides[1][name])]
    if len(equal) == len(sides[0]) == len(sides[1]):
        equal.append("all")
    return Expected({name: np.array(True) for name in equal}, noted=noted)


# --- comparing --------------------------------------------------------------------------------------------------------


def same(one: Array, other: Array, *, any_nan: bool = False) -> bool:
    """Return whether two arrays have one dtype, shape and bits; with ``any_nan`` one NaN is as good as another."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes():
        return True
    if not any_nan or kind_of(one.dtype) != "f":
        return False
    wide, broad = one.astype(np.float64), other.astype(np.float64)
    both = np.isnan(wide) & np.isnan(broad)
    return bool(np.where(both, True, (wide == broad) & (np.signbit(wide) == np.signbit(broad))).all())


def difference(found: Mapping[str, Array], expected: Mapping[str, Array], *, any_nan: bool = False) -> str | None:
    """Return how two sets of named arrays differ; None if they do not."""
    for name in sorted(set(found) | set(expected)):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} should not be there"
        if not same(found[name], expected[name], any_nan=any_nan):
            ours, theirs = found[name], expected[name]
            shown = f"{theirs.dtype}{theirs.shape} {theirs.tolist()}"
            return f"{name}: {ours.dtype}{ours.shape} {ours.tolist()}, expected {shown}"
    return None
