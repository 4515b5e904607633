"""What must come out of a composition: slow, plain NumPy and dict loops, and nothing of burnstore.

Every function returns arrays by name, or raises `Refused` with the reason. `Expected.noted` has pieces of text that a
result must have in its notes or lists; `Expected.loose` says that a refusal would be right as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from .terms import Array, Expected, File, Known, Layer, Named, Options, Place, Refused, kind_of, negated, same

# --- numbers ----------------------------------------------------------------------------------------------------------

FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
BURN_DTYPES = {np.dtype(each) for each in (*FLOATS.values(), "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")}
SAFE_DTYPES = BURN_DTYPES | {np.dtype(each) for each in ("c8", ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)}
NUMPY_DTYPES = {np.dtype(each) for each in ("f8", "f4", "f2", "c8", "c16", "?", "i1", "i2", "i4", "i8")}
NUMPY_DTYPES |= {np.dtype(each) for each in ("u1", "u2", "u4", "u8")}
HELD_BY = {"burnpack": BURN_DTYPES, "safetensors": SAFE_DTYPES, "npz": NUMPY_DTYPES}
HELD_BY["pytorch"] = SAFE_DTYPES | NUMPY_DTYPES
USUAL = {"burnpack": "burn", "pytorch": "torch"}
"""The layout in which a format has models, where it has one."""
ZEROED = "became 0"


def cast(array: Array, dtype: np.dtype[Any], noted: list[str]) -> Array:
    """Return values in another dtype of their kind, floats rounded to nearest even; refused if one is too large."""
    if array.dtype == dtype:
        return array
    if kind_of(dtype) != "f":
        if kind_of(dtype) == "i" and array.astype(dtype).tolist() != array.tolist():
            raise Refused("an integer does not fit")
        return array.astype(dtype)
    wide = array.astype(np.float64)  # exact: every float dtype here has fewer bits
    limits = ml_dtypes.finfo(dtype)
    step = np.maximum(np.frexp(wide)[1] - 1, limits.minexp) - limits.nmant  # the exponent of the last binary digit
    with np.errstate(all="ignore"):
        narrow = np.ldexp(np.rint(np.ldexp(wide, -step)), step).astype(dtype)
    if (np.isfinite(wide) & ~np.isfinite(narrow.astype(np.float64))).any():
        raise Refused(f"a finite value is too large for {dtype}")
    noted += [ZEROED] if ((wide != 0) & (narrow == 0)).any() else []
    return narrow


def blended(one: Array, other: Array, t: float) -> Array:
    """Return a linear blend; integers and bools must be equal, unless one of them has no weight."""
    if not t or (kind_of(one.dtype) != "f" and same(one, other)):
        return one
    if kind_of(one.dtype) != "f":
        raise Refused("integers have no mean")
    wide = np.dtype(np.float32 if one.dtype.itemsize <= 2 else np.float64)
    return cast(one.astype(wide) * wide.type(1 - t) + other.astype(wide) * wide.type(t), one.dtype, [])


# --- modules: the names and axes of one kind in both frameworks -------------------------------------------------------

COUNT = "num_batches_tracked"
NORM = {"gamma": "weight", "beta": "bias"}
PLAIN = {"weight": "weight", "bias": "bias"}
CONSTANTS = {"gamma": 1.0, "beta": 0.0}

Verdict = tuple[str | None, str | None]  # a layout, and why a refusal is right too
Parts = dict[str, tuple[str, int, int, bool]]
"""For each tensor of Burn's module: torch's tensor, which of how many equal parts it is, and whether it is turned."""


def _whole(names: Mapping[str, str], turned: str = "") -> Parts:
    return {burn: (torch, 0, 1, burn == turned) for burn, torch in names.items()}


def _gates(*gates: str) -> Parts:
    return {
        f"{gate}_gate.{long}_transform.{name}": (f"{name}_{short}_l0", at, len(gates), name == "weight")
        for at, gate in enumerate(gates)
        for short, long in (("ih", "input"), ("hh", "hidden"))
        for name in PLAIN
    }


PARTS: dict[str, Parts] = {
    "Linear": _whole(PLAIN, turned="weight"),
    "Embedding": _whole({"weight": "weight"}),
    **dict.fromkeys(("Conv1d", "Conv2d", "ConvTranspose1d"), _whole(PLAIN)),
    "PReLU": _whole({"alpha": "weight"}),
    "RMSNorm": _whole({"gamma": "weight"}),
    **dict.fromkeys(("LayerNorm", "GroupNorm", "InstanceNorm1d"), _whole(NORM)),
    "BatchNorm1d": _whole({**NORM, "running_mean": "running_mean", "running_var": "running_var"}),
    "LSTM": _gates("input", "forget", "cell", "output"),
    "GRU": _gates("reset", "update", "new"),
    "MultiheadAttention": {
        f"{part}.{name}": (f"in_proj_{name}", at, 3, name == "weight")
        for at, part in enumerate(("query", "key", "value"))
        for name in PLAIN
    }
    | {f"output.{name}": (f"out_proj.{name}", 0, 1, name == "weight") for name in PLAIN},
    "Unknown": {},
}
AXES = {"Linear": 2, "Conv1d": 3, "Conv2d": 4, "ConvTranspose1d": 3}
FUSED = ("LSTM", "GRU", "MultiheadAttention")
FILLED = ("LayerNorm", "RMSNorm", "BatchNorm1d")  # with gamma (and beta) in Burn: ones and zeros if torch has none
TORCH_NAMES = {kind: {torch for torch, *_ in parts.values()} for kind, parts in PARTS.items()}
TORCH_NAMES["BatchNorm1d"].add(COUNT)


def module_to_burn(each: Layer, own: Named, declares: Iterable[str] | None) -> tuple[Named, list[str]]:
    """Return one of Burn's modules, and what in it is made up (ones, zeros); ``declares`` is what it surely has."""
    kind = each.kind
    if kind == "Own":
        return dict(own), []
    if unknown := set(own) - TORCH_NAMES[kind]:
        raise Refused(f"{kind} has no {min(unknown)}")
    made: Named = {}
    for burn, (torch, at, count, turned) in PARTS[kind].items():
        if torch in own:
            array = own[torch]
            axes = 2 if turned else 1 if kind in FUSED else max(array.ndim, 1)
            if array.ndim != axes or array.shape[0] % count:
                raise Refused(f"{torch} has not {axes} axes, or no {count} equal parts")
            part = np.split(array, count)[at]
            made[burn] = part.T if turned else part
    there = own if declares is None else declares  # None: only what is here is known
    if kind == "BatchNorm1d" and not {"running_mean", "running_var"} <= set(there):
        raise Refused("Burn's BatchNorm has both statistics")
    absent = [burn for burn in NORM if burn in PARTS[kind] and PARTS[kind][burn][0] not in there]
    if kind == "LayerNorm" and absent == ["beta"]:
        absent = []  # Burn's can do without
    if declares is None and len(absent) == 1 and kind != "RMSNorm":
        raise Refused(f"a norm without {absent[0]}, and nothing declares that")
    like = next((array for name, array in own.items() if name != COUNT), None)
    features = each.options.get("features") if like is None else like.shape[0]
    if kind not in FILLED or (like is None and declares) or features is None:
        return made, []
    dtype = np.dtype(np.float32) if like is None else like.dtype
    return made | {name: np.full(features, CONSTANTS[name]).astype(dtype) for name in absent}, absent


def declared(each: Layer) -> tuple[Named, list[str]]:
    return module_to_burn(each, each.tensors, each.tensors)


def parts_to_burn(each: Layer, own: Named) -> Named:
    """Return the tensors of a module of a Burn model from a file with torch's axes, whose names may be Burn's."""
    if stray := set(own) - used_names(each, own):
        raise Refused(f"{each.kind} has no {min(stray)}")
    parts, known = PARTS[each.kind], TORCH_NAMES[each.kind]
    if each.kind in FUSED and not known & set(own):  # a torch model that has the parts as modules of their own
        return {name: array.T if array.ndim == 2 else array for name, array in own.items()}
    if each.kind not in FUSED:
        names = {burn: torch for burn, (torch, *_) in parts.items() if torch not in own}
        own = {names.get(name, name): array for name, array in own.items()}
    return module_to_burn(each, {name: array for name, array in own.items() if name in known}, known)[0]


def used_names(each: Layer, own: Named) -> set[str]:
    """Return the names that a module of a Burn model uses in a file with torch's axes."""
    if each.kind == "Own":
        return set(each.tensors)
    return TORCH_NAMES[each.kind] | {burn for burn, (torch, *_) in PARTS[each.kind].items() if torch not in own}


def module_to_torch(each: Layer, own: Named, is_declared: bool | None) -> tuple[Named, list[str], list[str]]:
    """Return the tensors of torch's module that Burn's make, those that lack a part, and those made with zeros."""
    if each.kind == "Own":
        return dict(own), [], []
    filled = declared(each)[1] if is_declared else []  # torch's module has none of these
    if any(not (own[name].astype(np.float64) == CONSTANTS[name]).all() for name in filled if name in own):
        raise Refused("a constant of the layer has another value")
    own = {name: array for name, array in own.items() if name not in filled}
    parts, declares = PARTS[each.kind], each.tensors if is_declared is None else ()
    biases = [name for name in parts if name.endswith("bias")]
    zeros: Named = {}
    if each.kind == "MultiheadAttention" and any(name in own for name in biases):  # torch has all biases or none
        absent = [name for name in biases if name not in own and parts[name][0] not in declares]
        weights = {name: own[weight] for name in absent if (weight := name.replace("bias", "weight")) in own}
        zeros = {name: np.zeros(array.shape[1:], array.dtype) for name, array in weights.items()}
    whole: Named = {}
    broken = []
    for torch in dict.fromkeys(torch for torch, *_ in parts.values()):
        names = [burn for burn, part in parts.items() if part[0] == torch]
        given = [{**own, **zeros}[name] for name in names if name in own or name in zeros]
        if parts[names[0]][3]:
            if any(array.ndim != 2 for array in given):
                raise Refused(f"a part of {torch} is no matrix")
            given = [array.T for array in given]
        if len({(array.shape[1:], array.dtype) for array in given}) > 1:
            raise Refused("parts that do not fit each other")
        if len(given) == len(names):
            whole[torch] = np.concatenate(given) if len(given) > 1 else given[0]
        elif given:
            broken.append(torch)
    return whole, broken, [parts[name][0] for name in zeros if parts[name][0] in whole]


def own_of(tensors: Named, path: str, layers: Sequence[Layer], layout: str) -> Named:
    """Return the tensors in a module, by their names in it; those of modules inside of it are not its own."""
    inner = tuple(f"{each.at(layout)}." for each in layers if each.at(layout).startswith(f"{path}."))
    own = [name for name in tensors if name.startswith(f"{path}.") and not name.startswith(inner)]
    return {name[len(path) + 1 :]: tensors[name] for name in own}


# --- stages -----------------------------------------------------------------------------------------------------------


def new_names(names: Sequence[str], rename: Mapping[str, str] | Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the new name of each, and the rules that matched none; refused if two names become one."""
    unmatched: list[str] = []
    found = list(names)
    if isinstance(rename, Mapping):
        found = [rename.get(name, name) for name in names]
        unmatched = [old for old in rename if old not in names]
    else:
        for rule in rename or ():
            old, _, new = rule.partition("=>")
            pattern = old.removeprefix("?")
            if not any(re.search(pattern, name) for name in found) and not old.startswith("?"):
                unmatched.append(pattern)
            found = [re.sub(pattern, new.replace("$1", r"\1"), name) for name in found]
    if len(set(found)) < len(found):
        raise Refused("two tensors get one name")
    return found, unmatched


def renamed(file: File, place: Place | None, options: Options) -> tuple[Named, list[str]]:
    """Return a PyTorch file's tensors as a Burn model numbers them, without gaps in ``seq``; the idle renames."""
    names, unmatched = new_names(list(file.tensors), options.rename)
    if place is not None and file.format == "pytorch" and place.layout == "burn":
        entry = re.compile(r"^seq\.(\d+)\.")
        entries = [[int(found[1]) for name in each if (found := entry.match(name))] for each in (names, place.tensors)]
        numbers, there = (sorted(set(each)) for each in entries)
        if numbers not in (list(range(len(numbers))), there):
            if there and there[-1] >= len(numbers):
                raise Refused("nothing says which entries of the list the file has")
            names = [entry.sub(lambda found: f"seq.{numbers.index(int(found[1]))}.", name) for name in names]
    return dict(zip(names, file.tensors.values(), strict=True)), unmatched


def following(file: File, options: Options) -> File:
    """Return a file whose record follows its renamed modules; without the record if names within a module change."""
    record = []
    for each in file.record or ():
        own = list(own_of(file.tensors, each.at(file.layout or ""), file.record or (), file.layout or "")) or ["x"]
        homes: list[set[str]] = []
        for path in (each.path, each.burn):
            pairs = zip(own, new_names([f"{path}.{name}" for name in own], options.rename)[0], strict=True)
            homes.append({new.removesuffix(f".{name}") if new.endswith(f".{name}") else "" for name, new in pairs})
        if any(len(home) > 1 or "" in home for home in homes):
            return replace(file, record=None)
        record.append(replace(each, path=homes[0].pop(), burn=homes[1].pop()))
    return replace(file, record=record) if file.record is not None else file


def adapted(array: Array, options: Options, noted: list[str], *, is_converted: bool) -> Array:
    """Return a tensor after adapter and cast; the adapter may change values only if the layout is converted."""
    is_turned = array.ndim == 2 and options.adapter in ("turn", "own")
    is_changed = options.adapter == "rename" or (is_turned and array.shape[0] != array.shape[1])
    if is_converted and is_changed:
        raise Refused("the adapter changes names or axes, and the layout is converted")
    array = negated(array) if options.adapter == "negate" else array.T if is_turned else array
    is_cast = options.cast is not None and kind_of(array.dtype) == "f"
    return cast(array, np.dtype(FLOATS[options.cast or ""]), noted) if is_cast else array


def check_rules(options: Options, names: Iterable[str]) -> None:
    """Refuse a rule that matches no module, whether kinds are needed or not."""
    paths = {name[: at.start()] for name in names for at in re.finditer(r"\.", name)} | {""}
    if any(not any(re.search(rule, path) for path in paths) for rule in options.rules or ()):
        raise Refused("a rule matches no module")


def check_not_burn(given: Named, place: Place, options: Options) -> None:
    """Refuse a file without a stated layout for a torch model, if a name or an ignored shape is Burn's."""
    weights = {re.sub(r"\.(gamma|beta|alpha)$", ".weight", name) for name in given}
    if odd := (weights - set(given)) & set(place.tensors):
        raise Refused(f"the file has Burn's name for {min(odd)} of a torch model")
    for name, slot in place.tensors.items():
        is_turned = slot.ndim == 2 and name in given and given[name].shape == slot.shape[::-1] != slot.shape
        if is_turned and not options.keeps(name):
            raise Refused(f"the file has Burn's shape for {name}, which the filter leaves out")


def layout_of(file: File, given: Named, place: Place | None, options: Options, noted: list[str]) -> Verdict:
    """Return the layout that is stated, or proved by the model's layers, and why a refusal is right too."""
    layout = options.layout or file.layout
    if file.layout not in (None, layout):
        if file.by_metadata:
            raise Refused("the given layout contradicts the file's metadata")
        noted.append("because of layout=")
    if layout is not None or place is None:
        return layout, None
    found = ("torch", None) if place.layout == "torch" else proved(given, place.layers, options)
    noted += ["does not state its layout"] if found[0] else []
    return found


def proved(tensors: Named, layers: Sequence[Layer], options: Options) -> Verdict:
    """Return the layout that names and shapes prove for the layers of a Burn model, and why a refusal is right too."""
    proofs: set[str] = set()
    undecided = counted = False
    for each in layers:
        parts = PARTS.get(each.kind, {})
        is_fused = any(f"{each.burn}.{torch}" in tensors for torch, _, count, _ in parts.values() if count > 1)
        for burn, (torch, _, count, turned) in parts.items():
            ours, theirs = f"{each.burn}.{burn}", f"{each.burn}.{torch}"
            if torch not in each.tensors and burn not in NORM:
                continue
            if ours not in tensors:
                proofs |= {"torch"} if theirs in tensors else set()
            elif burn in (*NORM, "alpha") or (is_fused and ours != theirs):
                proofs.add("burn")
            elif turned and each.tensors[torch].ndim == 2:  # or it is a rule that does not fit
                rows, columns = each.tensors[torch].shape
                shape, in_torch = tensors[ours].shape, (rows // count, columns)
                if (shape == in_torch) != (shape == in_torch[::-1]):
                    proofs.add("torch" if shape == in_torch else "burn")
                elif shape == in_torch and options.keeps(ours):
                    undecided = True
        counted = counted or (each.kind != "Own" and f"{each.burn}.{COUNT}" in tensors)
    if len(proofs) > 1 or (undecided and not proofs and not counted):
        raise Refused("nothing states or proves the layout, or names and shapes contradict each other")
    if undecided and not proofs:
        return "torch", "only a counter says that it is torch's"
    return next(iter(proofs), None), None


def ruled(layers: Sequence[Layer], options: Options, layout: str, *, is_converted: bool = True) -> list[Layer]:
    """Return the layers with the kinds that rules give them; a rule must fit if it takes part."""
    found = list(layers)
    for pattern, kind in (options.rules or {}).items():
        for at, each in enumerate(found):
            is_meant = re.search(pattern, each.at(layout))
            if is_meant and fits(kind, each.tensors, layout):
                is_turned = layout == "burn" and kind == "Linear"  # values under torch's names are kept as torch's
                tensors = {name: array.T if is_turned else array for name, array in each.tensors.items()}
                found[at] = replace(each, kind=kind, tensors=tensors)
            elif is_meant and is_converted and options.keeps_any(each.at(layout), each.tensors):
                raise Refused("the shapes contradict the rule")
    return found


def fits(kind: str, own: Named, layout: str) -> bool:
    """Return whether the shapes do not contradict a rule."""
    if "weight" not in own or kind not in AXES:
        return True
    weight = own["weight"].shape
    bias = own["bias"].shape if "bias" in own and kind != "ConvTranspose1d" else None
    rows = -1 if kind == "Linear" and layout == "burn" else 0
    return len(weight) == AXES[kind] and bias in (None, (weight[rows],))


def convert_layers(tensors: Named, known: Known, own: str, noted: list[str], options: Options) -> Named:
    """Return all tensors of a file or model in the other layout; refused unless every one has a place there."""
    made: Named = {}
    left = {name for name in tensors if options.keeps(name)}
    for each in known.layers:
        path, other = (each.path, each.burn) if own == "torch" else (each.burn, each.path)
        inside = own_of(tensors, path, known.layers, own)
        left -= {f"{path}.{name}" for name in inside}
        try:
            is_ruled = not (known.is_declared or options.guess or (own == "torch" and known.is_declared is None))
            if is_ruled and not fits(each.kind, inside, own):
                raise Refused("the shapes contradict the rule")
            if each.kind == "Own":
                noted += ["unknown kind"] if options.keeps_any(path, inside) else []
                found = inside
            elif own == "torch" and known.is_declared is None:
                found = parts_to_burn(each, inside)
            elif own == "torch":
                given = {n: inside[n] for n in inside if n in TORCH_NAMES[each.kind] or options.keeps(f"{path}.{n}")}
                found, filled = module_to_burn(each, given, each.tensors if known.is_declared else None)
                noted += ["constant"] if options.keeps_any(each.burn, filled) else []
                found = {n: found[n] for n in found if n not in filled or options.keeps(f"{each.burn}.{n}")}
            else:
                found, broken, zeros = module_to_torch(each, inside, known.is_declared)
                noted += ["constant"] if options.keeps_any(each.path, zeros) else []
                stray = {name for name in inside if name not in PARTS[each.kind] and options.keeps(f"{path}.{name}")}
                needs = [*broken, *found] if broken and known.is_declared is False else broken  # by rules: all or none
                if stray or options.keeps_any(each.path, needs) or (zeros and known.is_declared is False):
                    raise Refused(f"{sorted(stray) or broken} has no counterpart")
                if each.kind == "BatchNorm1d" and found:
                    count = f"{each.path}.{COUNT}"
                    found[COUNT] = np.array(known.counts.get(count, 0), np.int64)
                    noted += [COUNT] if count not in known.counts and options.keeps(count) else []
        except Refused:
            if inside and not options.keeps_any(path, inside):
                continue  # the filter leaves the module out
            raise
        made |= {f"{other}.{name}": array for name, array in found.items()}
    if left:
        raise Refused(f"nothing states the module of {min(left)}")
    return made


# --- verbs ------------------------------------------------------------------------------------------------------------


def load(file: File, place: Place, options: Options) -> Expected:
    """Return the model's tensors after a load."""
    file = following(file, options)
    given, noted = renamed(file, place, options)
    noted += options.idle(place.tensors)
    own = options.adapter == "own"
    layers = ruled(place.layers, options, place.layout, is_converted=False)
    check_rules(options, place.tensors)
    if (options.layout or file.layout) is None and not own and place.layout == "torch":
        check_not_burn(given, place, options)
    if (options.layout or file.layout) not in (None, "torch", "burn") and not own:
        if place.layers:
            raise Refused("the layout of another framework cannot be converted")
        noted.append("names and axes are unchanged")
        file = replace(file, layout=place.layout)
    layout, loose = layout_of(file, given, None if own else replace(place, layers=layers), options, noted)
    known, used, lost = given, set(given) & set(place.tensors), set[str]()
    is_converted = layout not in (None, place.layout) and not own
    if is_converted and not place.layers:  # plain containers: nothing states a kind
        noted += ["unknown kind"] if place.tensors else []
    elif is_converted:
        place = replace(place, layers=ruled(place.layers, options, place.layout))
        known, used = into_model(given, place, noted, options)
        counting = [each.path for each in place.layers if COUNT in each.tensors]
        lost = {f"{path}.{COUNT}" for path in counting if own_of(known, path, (), place.layout)}
        known |= {path: array for path, array in file.counts.items() if path in lost}
    values = dict(place.tensors)
    taken = [path for path in place.tensors if path in known and options.keeps(path)]
    for path in taken:
        old = place.tensors[path]
        array = adapted(known[path], options, noted, is_converted=is_converted)
        if array.shape != old.shape or kind_of(array.dtype) != kind_of(old.dtype):
            raise Refused(f"{path} does not fit")
        if place.kind == "torch" and array.dtype != old.dtype:
            noted.append("cast from")
            array = cast(array, old.dtype, noted)
        values[path] = array
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
        if any(options.keeps(path) for path in missing):
            raise Refused(f"missing: {min(missing)}")
        loose = "what the filter leaves out is missing"
    if not taken and (place.tensors or options.filter is not None):
        raise Refused("nothing would be loaded")
    if not taken:
        loose = "a store loads a model without parameters"
    return Expected(values, place.layout, noted, sorted(set(given) - used), loose)


def into_model(given: Named, place: Place, noted: list[str], options: Options) -> tuple[Named, set[str]]:
    """Return a file's tensors in the layout of a model that declares its layers, and the names used."""
    known: Named = {}
    used: set[str] = set()
    is_torch = place.layout == "torch"
    for each in place.layers:
        inside = own_of(given, each.burn, place.layers, "burn")
        uses = set(declared(each)[0]) if is_torch else used_names(each, inside)
        own = {name: inside[name] for name in inside if name in uses}
        taken = set(own)
        zeros: list[str] = []
        try:
            if is_torch:
                made, broken, zeros = module_to_torch(each, own, is_declared=True)
                taken -= {burn for burn, part in PARTS.get(each.kind, {}).items() if part[0] in broken}
            else:
                made = own if each.kind == "Own" else parts_to_burn(each, own)
                taken -= {name for name in made if f"{each.burn}.{name}" not in place.tensors}  # a bias it has not
        except Refused:
            if is_torch or any(options.keeps(path) for path in place.tensors if path.startswith(f"{each.burn}.")):
                raise
            made = {name: inside[name] for name in inside if name in PARTS[each.kind]}  # the filter leaves it out
            taken = {name for name in own if f"{each.burn}.{name}" in place.tensors or name not in PARTS[each.kind]}
        used |= {f"{each.burn}.{name}" for name in taken}
        known |= {f"{each.at(place.layout)}.{name}": array for name, array in made.items()}
        noted += ["unknown kind"] if each.kind == "Own" and each.tensors else []
        noted += [COUNT] if COUNT in own else []
        noted += ["constant"] if options.keeps_any(each.path, zeros) else []
    return known, used


def written(rows: Named, options: Options, format: str, noted: list[str], *, is_converted: bool) -> Named:
    """Return tensors after adapter and cast, if the format can write them."""
    made = {path: adapted(array, options, noted, is_converted=is_converted) for path, array in rows.items()}
    for array in made.values():
        if array.dtype not in HELD_BY[format]:
            raise Refused(f"{format} has no {array.dtype}")
    return {f"{path}_new" if options.adapter == "rename" else path: array for path, array in made.items()}


def save(place: Place, format: str, options: Options) -> Expected:
    """Return the tensors of a file that a model is saved into."""
    noted = options.idle(place.tensors)
    usual = options.layout or USUAL.get(format) or place.layout
    if place.kind == "plain" and format == "pytorch" and options.rules is None:
        usual = place.layout  # arrays in containers: nothing is converted, and the file states that it is unknown
    check_rules(options, place.tensors)
    wanted = place.layout if options.adapter == "own" else usual
    rows = {path: array for path, array in place.tensors.items() if options.keeps(path)}
    is_converted = wanted != place.layout
    left_out = set(place.tensors) - set(rows)
    if (ruled_name := options.renamed_by_rules) is not None:
        if ruled_name not in rows or is_converted:
            raise Refused("a rule for tensors names none, or renames what is then converted")
        rows = {f"{path}_ruled" if path == ruled_name else path: array for path, array in rows.items()}
    if is_converted:  # no plain containers: a case names no layout for these
        layers = ruled(place.layers, options, place.layout)
        how = options if place.layout == "torch" else Options()  # what Burn's parts make is one tensor, kept or not
        rows = convert_layers(rows, replace(place.known, layers=layers), place.layout, noted, how)
    rows = written(rows, options, format, noted, is_converted=is_converted)
    names, unmatched = new_names(list(rows), options.rename)
    if not rows and place.tensors:
        raise Refused("no tensor would be written")
    loose = None if rows else "a store writes a model without tensors"
    made = dict(zip(names, rows.values(), strict=True))
    return Expected(made, wanted, noted + unmatched, loose=loose, left_out=left_out)


def convert(file: File, format: str, options: Options) -> Expected:
    """Return the tensors of a file that another is converted into."""
    noted: list[str] = []
    like = options.like
    file = following(file, options)
    given, unmatched = renamed(file, like, options)
    if unmatched:
        raise Refused("a rename matches nothing")
    check_rules(options, given if like is None else like.tensors)
    if like is not None and like.layout == "torch" and (options.layout or file.layout) is None:
        check_not_burn(given, like, options)
    if like is not None and (options.layout or file.layout) not in (None, "torch", "burn"):
        raise Refused("the layout of another framework cannot be converted")
    own, loose = layout_of(file, given, like, options, noted)
    if own is None and like is not None:
        own = like.layout  # no tensor that takes part differs between the layouts
    is_kept = options.keep_layout or (options.layout is None and file.layout is None and file.format == format)
    usual = USUAL.get(format) if not is_kept else None
    wanted = options.target_layout or usual or own
    replaced = options.adapter == "own"
    is_converted = own != wanted and not replaced
    if is_converted and own is None:
        raise Refused("the layout of the source is not stated")
    if is_converted and own not in ("torch", "burn"):
        raise Refused("the layout of another framework cannot be converted")
    for pair in like.ties if like is not None and own == like.layout else ():
        for one, other in (pair, pair[::-1]):  # one parameter, of which files may have one name only
            if one in given:
                given.setdefault(other, given[one])
    rows = given
    if is_converted:
        known = replace(known_layers(file, given, options, own or ""), counts=file.counts)
        rows = convert_layers(given, known, own or "", noted, options)
    if like is not None:
        found = given if own in (None, like.layout) else rows
        if own not in (None, like.layout) and wanted != like.layout:
            found = convert_layers(given, like.known, own or "", [], options)
        loose = check_like(found, like, options) or loose
    if options.idle(rows):
        raise Refused("a filter matches nothing")
    rows = {path: array for path, array in rows.items() if options.keeps(path)}
    if replaced and (not like or own is None):
        loose = "the adapter may go by the kinds, and they are not all known"
    rows = written(rows, options, format, noted, is_converted=is_converted)
    if not rows:
        raise Refused("no tensor would be written")
    return Expected(rows, own if replaced else wanted, noted, loose=loose)


def known_layers(file: File, given: Named, options: Options, own: str) -> Known:
    """Return the layers that something states."""
    if options.like is not None:
        return options.like.known
    if file.record is not None:
        return Known(file.record, True)
    if options.guess:
        if own != "torch":
            raise Refused("only torch's layout can be guessed")
        return Known(guessed(given, options), False)
    if options.rules is None:
        raise Refused("nothing states the kinds")
    paths = {name[: at.start()] for name in given for at in re.finditer(r"\.", name)} | {""}
    matched = [(path, rule) for path in sorted(paths) for rule in options.rules if re.search(rule, path)]
    if {rule for _, rule in matched} != set(options.rules):
        raise Refused("a rule matches no module")
    return Known([Layer(path, options.kinds[rule], own_of(given, path, (), own)) for path, rule in matched], False)


def guessed(tensors: Named, options: Options) -> list[Layer]:
    """Return the layers that names and shapes decide in torch's layout; refused if they do not decide one."""
    owners: dict[str, Named] = {}
    for name, array in tensors.items():
        path, _, last = name.rpartition(".")
        if path.endswith(".out_proj") and f"{path.removesuffix('.out_proj')}.in_proj_weight" in tensors:
            path, last = path.removesuffix(".out_proj"), f"out_proj.{last}"
        owners.setdefault(path, {})[last] = array
    kinds = {path: kind_by_shapes(own) for path, own in owners.items()}
    if any(kind == "" and options.keeps_any(path, owners[path]) for path, kind in kinds.items()):
        raise Refused("ambiguous")
    return [Layer(path, kinds[path] or "Own", own) for path, own in owners.items()]


def kind_by_shapes(own: Named) -> str:
    """Return the kind of a torch module; empty if it may be one of several."""
    shapes = {name: array.shape for name, array in own.items()}
    weight, bias, hidden = (shapes.get(name, ()) for name in ("weight", "bias", "weight_hh_l0"))
    kinds = [
        ("MultiheadAttention", "in_proj_weight" in own),
        ("LSTM", len(hidden) == 2 and hidden[0] == 4 * hidden[-1]),
        ("GRU", "weight_hh_l0" in own),
        ("BatchNorm1d", "running_mean" in own),
        ("Own", "weight" not in own and "bias" not in own),
        ("", "weight" not in own or set(own) - {"weight", "bias"}),
        ("Conv1d", len(weight) in (3, 4, 5)),
        ("Linear", len(weight) == 2 and weight[0] != weight[-1] and bias == weight[:1]),
        ("LayerNorm", len(weight) == 1 and bias == weight),
        ("", True),
    ]
    return next(kind for kind, fits in kinds if fits)


def check_like(found: Named, like: Place, options: Options) -> str | None:
    """Refuse tensors that only one of ``like`` and the file has, and other shapes; or say why refusing is right too."""
    if lone := [name for name in set(found) ^ set(like.tensors) if options.keeps(name)]:
        raise Refused(f"only one of like and the file has {min(lone)}")
    pairs = [(name, found[name], slot) for name, slot in like.tensors.items() if name in found]
    odd = [name for name, one, slot in pairs if one.shape != slot.shape or kind_of(one.dtype) != kind_of(slot.dtype)]
    if any(options.keeps(name) for name in odd):
        raise Refused(f"like has one of {odd} in another shape or dtype")
    return "like has what the filter leaves out in another shape or dtype" if odd else None


def hides_transpose(one: Named, other: Named) -> bool:
    """Return whether two sides have a square matrix of one name, of which one may be the other's transpose."""
    return any(a.ndim == 2 and a.shape[0] == a.shape[1] > 1 and name in other for name, a in one.items())


def diff(first: File, second: File, layers: Sequence[Layer] | None) -> Expected:
    """Return for each name whether both files have equal values; in Burn's layout if they have two layouts."""
    noted: list[str] = []
    sides = [first.tensors, second.tensors]
    if {first.layout, second.layout} == {"torch", "burn"}:
        if layers is None:
            raise Refused("two layouts, and nothing states the kinds")
        at = 0 if first.layout == "torch" else 1
        noted += sorted(name for name in sides[at] if name.endswith(COUNT))[:1]
        sides[at] = convert_layers(sides[at], Known(layers, True), "torch", [], Options())
    elif first.layout != second.layout:
        noted.append("does not state its layout")
    elif first.layout is None and hides_transpose(*sides):
        noted.append("do not state their layout")
    equal = [name for name in sides[0] if name in sides[1] and same(sides[0][name], sides[1][name])]
    if 0 < len(equal) == len(sides[0]) == len(sides[1]):
        equal.append("all")
    return Expected({name: np.array(True) for name in equal}, noted=noted)
