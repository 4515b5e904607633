"""Draw a composition: contents, a writer, options, a target and a verb, with what the reference expects of it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import safetensors.torch
import torch

import burnstore as bs
from burnstore.stores import records

from . import reference
from .contents import (
    COMMON,
    FUSED,
    NORMS,
    NUMPY,
    Content,
    burn_model,
    burn_values,
    content,
    flat,
    nested,
    numpy_array,
    torch_model,
    torch_tensor,
    torch_values,
    values,
)
from .terms import BURN_KINDS, Expected, File, Layer, Named, Options, Place, Refused, negated

SAFE = tuple(name for name in NUMPY if name != "C128")


@dataclass
class Case:
    """A composition: the description, what burnstore is asked to do, and what the reference says."""

    verb: str
    text: dict[str, Any]
    act: Callable[[str], Outcome]
    expect: Callable[[], Expected]


@dataclass
class Outcome:
    """What burnstore did: the tensors that are there now, and everything that it said."""

    tensors: Named
    said: str = ""
    layout: str | None = None
    unused: list[str] | None = None
    states_layout: bool = False
    result_layout: str | None = "any"
    """The layout that the result names; the file must state the same."""
    left_out: set[str] | None = None


# --- files ------------------------------------------------------------------------------------------------------------


@dataclass
class Source:
    """A file to read: its bytes, its suffix, and the facts that the reference is told."""

    data: bytes
    suffix: str
    file: File
    writer: str
    is_whole: bool = True


TORCH_WRITERS = (
    "torch.save",
    "torch.save",
    "safetensors-pt",
    "safetensors",
    "bpk-arrays",
    "st-arrays",
    "bpk-said",
    "st-model",
    "safetensors-mlx",
    "torch.save-model",
    "torchscript-model",
)
BURN_WRITERS = ("bpk-model", "bpk-model", "bpk-nn", "st-nn", "bpk-arrays", "safetensors", "bpk-said", "st-arrays")


def written(
    random: Random, model: Content, writer: str, layout: str, names: Mapping[str, str], *, is_whole: bool = True
) -> Source:
    """Return a model written by a writer; ``names`` are other names for some tensors.

    Unless it ``is_whole``, a tensor may be missing, and tied tensors may differ.
    """
    tensors = dict(model.torch if layout == "torch" else model.burn)
    is_whole = is_whole or writer.endswith(("-model", "-nn"))
    if not is_whole and len(tensors) > 1 and random.random() < 0.12:
        norms = [f"{each.path}.{name}" for each in model.layers if each.kind in NORMS for name in ("weight", "bias")]
        halves = [name for name in norms if name in tensors]
        tensors.pop(random.choice(halves if halves and random.random() < 0.8 else list(tensors)))
    if not is_whole and layout == "burn" and random.random() < 0.1:
        made_up = [f"{each.burn}.gamma" for each in model.layers if "gamma" in reference.declared(each)[1]]
        tensors |= {name: negated(tensors[name]) for name in made_up if name in tensors}
    if not is_whole and layout == "burn" and random.random() < 0.5:
        tensors = without_parts(random, tensors, [each for each in model.layers if each.kind in FUSED])
    named = {names.get(name, name): array for name, array in tensors.items()}
    is_tied = all(names.get(name, name) in named for pair in model.ties for name in pair)
    if model.ties and is_tied and not is_whole and random.random() < 0.2:
        second = names.get(model.ties[0][1], model.ties[0][1])
        named[second], is_tied = negated(named[second]), False
    if writer == "torch.save":
        saved = {name: viewed(random, torch_tensor(array)) for name, array in named.items()}
        for first, second in model.ties if is_tied else ():
            saved[names.get(second, second)] = saved[names.get(first, first)]
        buffer = io.BytesIO()
        torch.save(saved, buffer)
        return Source(buffer.getvalue(), ".pt", File(named, "pytorch", "torch"), writer)
    if writer.startswith("safetensors"):
        format, stated = {"pt": ("pt", "torch"), "mlx": ("mlx", "mlx")}.get(writer.partition("-")[2], (None, None))
        metadata = None if format is None else {"format": format}
        data = safetensors.torch.save({name: torch_tensor(array) for name, array in named.items()}, metadata)
        return Source(data, ".safetensors", File(named, "safetensors", stated), writer)
    if writer.endswith(("-arrays", "-said")):
        format = "burnpack" if writer.startswith("bpk") else "safetensors"
        stated = layout if writer.endswith("-said") else None
        data = bs.serialize(named, format=format, layout=stated)
        own = format == "burnpack" and stated == "burn"
        file = File(named, format, stated, by_metadata=stated is not None and not own)
        return Source(data, ".bpk" if format == "burnpack" else ".safetensors", file, writer)
    if writer.startswith("torch"):
        record = [replace(each, kind="Unknown") if is_odd(each) else each for each in model.layers]
        return Source(pickled(model, writer), ".pt", File(named, "pytorch", "torch", record=record), writer)
    live: Any = burn_model(model) if writer.endswith("-nn") else torch_model(model)
    recorder = recorder_for(named) if writer == "bpk-nn" else None
    if recorder is not None:
        return Source(recorded(live, recorder), f".{recorder.extension}", File(named, "record", "burn"), repr(recorder))
    format = "burnpack" if writer.startswith("bpk") else "safetensors"
    data = bs.serialize(live, format=format)
    record = model.layers if writer == "bpk-model" else None
    file = File(named, format, layout, by_metadata=record is not None, record=record)
    return Source(data, ".bpk" if format == "burnpack" else ".safetensors", file, writer)


def is_odd(each: Layer) -> bool:
    """Return whether a class of one's own may derive from a layer of torch, as the names of its tensors suggest."""
    return each.kind == "Own" and "weight" in each.tensors


def pickled(model: Content, writer: str) -> bytes:
    """Return the file of a whole model: scripted, or pickled with its classes."""
    buffer, live = io.BytesIO(), torch_model(model)
    is_stated = all(each.tensors for each in model.layers)  # a script does not state the size of a norm without tensors
    if writer.startswith("torchscript") and is_stated:
        with contextlib.suppress(RuntimeError):  # an attention without biases cannot be scripted
            torch.jit.save(torch.jit.script(live), buffer)
    if not buffer.getvalue():
        torch.save(live, buffer)
    return buffer.getvalue()


def without_parts(random: Random, tensors: Named, fused: list[Layer]) -> Named:
    """Return Burn's tensors without some of the parts of which torch has one tensor: gates; query, key or value."""
    if not fused:
        return tensors
    prefix = f"{random.choice(fused).burn}."
    inside = [name for name in tensors if name.startswith(prefix)]
    one = random.choice(inside)
    gate, last = one.removeprefix(prefix).partition(".")[0], one.rpartition(".")[2]
    of_gate = [name for name in inside if name.startswith(f"{prefix}{gate}.")]
    of_kind = [name for name in inside if name.endswith(last)]
    gone = random.choice([[one], random.sample(inside, 2), of_gate, of_gate, of_kind])
    return {name: array for name, array in tensors.items() if name not in gone or len(gone) == len(tensors)}


RECORDERS = (None, records.NamedMpkFileRecorder, records.NamedMpkGzFileRecorder)
RECORDERS += (records.PrettyJsonFileRecorder, records.JsonGzFileRecorder)


def recorder_for(tensors: Named) -> records.FileRecorder | None:
    """Return a recorder of old Burn, or None, by the tensors' names: F32 only, which a recorder does not change."""
    if not tensors or {array.dtype for array in tensors.values()} != {np.dtype(np.float32)}:
        return None
    chosen = RECORDERS[zlib.crc32("\n".join(tensors).encode()) % len(RECORDERS)]
    is_finite = all(np.isfinite(array).all() for array in tensors.values())
    return None if chosen is None or ("Json" in chosen.__name__ and not is_finite) else chosen()


def recorded(model: Any, recorder: records.FileRecorder) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        records.save_file(model, f"{folder}/model", recorder)
        return Path(recorder.path_of(f"{folder}/model")).read_bytes()


def viewed(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values, sometimes as a view with strides or an offset of its own."""
    chance = random.random()
    if tensor.ndim == 2 and chance < 0.15:
        return tensor.t().contiguous().t()
    if tensor.ndim and tensor.dtype in (torch.float32, torch.int64) and chance < 0.3:
        return torch.cat([tensor, tensor])[: len(tensor)]
    return tensor


def source(
    random: Random, *, dtypes: tuple[str, ...] = tuple(NUMPY), renamed: bool = True
) -> tuple[Content, Source, Options]:
    """Return contents, a file of them, and the rename that gives its tensors the model's names back."""
    layout = random.choice(["torch", "burn"])
    writer = random.choice(TORCH_WRITERS if layout == "torch" else BURN_WRITERS)
    if writer.startswith("torchscript") and random.random() < 0.7:
        writer = "torch.save-model"  # scripting takes its time
    allowed = dtypes if writer.startswith("torch") else [name for name in dtypes if name in SAFE]
    if writer.startswith("bpk"):
        allowed = [name for name in allowed if name in COMMON]
    model = content(random, dtypes=tuple(allowed), wild=random.random() < 0.2)
    names: dict[str, str] = {}
    rename: Any = None
    if renamed and not writer.endswith(("-model", "-nn")) and random.random() < 0.35:
        names, rename = other_names(random, list(model.torch if layout == "torch" else model.burn))
    elsewhere = model
    if renamed and writer in RECORDING and random.random() < 0.6:
        elsewhere, rename = moved(random, model, layout)
    made = written(random, elsewhere, writer, layout, names, is_whole=False)
    made.is_whole = len(made.file.tensors) == len(model.torch if layout == "torch" else model.burn)
    if rename is None and len(made.file.tensors) > 1 and random.random() < 0.02:
        rename = dict([random.sample(list(made.file.tensors), 2)])  # two tensors of one name
    return model, made, Options(rename=rename)


CLASSES = ("torch.save-model", "torchscript-model")
RECORDING = (*CLASSES, "bpk-model")
"""The writers of files that state their modules; the first by the names of their classes."""


def moved(random: Random, model: Content, layout: str) -> tuple[Content, Any]:
    """Return a model whose modules have other paths, or the same, and a rename of its modules or of one tensor."""
    way = random.choice(["prefix", "prefix", "module", "module", "away", "tensor", "swap"])
    is_empty = any(not each.tensors for each in model.layers)  # where such a module goes, only a prefix states
    free = [each for each in model.layers if not each.path.startswith("seq.") and each.tensors]
    if way == "prefix" or is_empty or not free:
        return _at(model, "", "model."), ["^model\\.=>"]
    each = random.choice(free)
    if way == "module":
        part = each.path.split(".")[0]
        return _at(model, f"{part}.", "old_"), [f"^old_{part}\\.=>{part}."]
    names = model.torch if layout == "torch" else model.burn
    inside = [name for name in names if name.startswith(f"{each.path}.")]
    if way == "away":
        return model, {name: f"away.{name[len(each.path) + 1 :]}" for name in inside}
    if way == "tensor":
        return model, {random.choice(inside): "elsewhere.x"}
    other = random.choice(free)
    pairs = [(f"{each.path}.", f"{other.path}."), (f"{other.path}.", f"{each.path}.")]
    swap = {name: new + name[len(old) :] for old, new in pairs for name in names if name.startswith(old)}
    return model, swap if len(set(swap.values())) == len(swap) and each is not other else {inside[0]: "elsewhere.x"}


def _at(model: Content, start: str, prefix: str) -> Content:
    """Return a model with a prefix before the paths that start so."""

    def path(old: str) -> str:
        return f"{prefix}{old}" if f"{old}.".startswith(start) else old

    layers = [replace(each, path=path(each.path), burn=path(each.burn)) for each in model.layers]
    return Content(layers, tuple(map(path, model.series)), [(path(one), path(other)) for one, other in model.ties])


def other_names(random: Random, names: list[str]) -> tuple[dict[str, str], Any]:
    """Return other names for a file's tensors, and the option that undoes them."""
    way = random.choice(["prefix", "swap", "module", "mapping", "optional"])
    if way == "swap" and len(names) > 1:
        first, second = random.sample(names, 2)
        return {first: second, second: first}, {first: second, second: first}
    if way == "mapping":
        name = random.choice(names)
        return {name: "elsewhere.x"}, {"elsewhere.x": name}
    if way == "module":
        part = random.choice(names).split(".")[0]
        changed = {name: f"old_{name}" for name in names if name.startswith(f"{part}.")}
        return changed, [f"^old_{part}\\.=>{part}."]
    if way == "optional":
        return {name: f"model.{name}" for name in names}, ["?^backbone\\.=>", "^model\\.(.*)$=>$1"]
    return {name: f"model.{name}" for name in names}, ["^model\\.=>"]


# --- models -----------------------------------------------------------------------------------------------------------


@dataclass
class Live:
    """A model that can be loaded into, and how to read its tensors."""

    place: Place
    model: Any
    read: Callable[[Any], Named]


def with_other_values(random: Random, model: Content, dtype: str | None = None) -> Content:
    """Return the same layers with other values; floats in another dtype if one is given."""
    layers = []
    for each in model.layers:
        tensors = {}
        for name, array in each.tensors.items():
            kind = next(key for key, known in NUMPY.items() if np.dtype(known) == array.dtype)
            if dtype is not None and kind in reference.FLOATS:
                kind = dtype
            tensors[name] = values(random, array.shape, kind)
        layers.append(replace(each, tensors=tensors))
    found = Content(layers, model.series, model.ties)
    held = found.torch
    for first, second in model.ties:
        owner = next(each for each in layers if second.startswith(f"{each.path}."))
        owner.tensors["weight"] = held[first]
    return found


def live(random: Random, model: Content, kind: str, file: File | None = None) -> Live:
    """Return a model of these contents: a torch module, a `burnstore.nn` model, or nested dicts."""
    if kind == "torch":
        return Live(Place("torch", model.torch, model.layers, model.ties), torch_model(model), torch_values)
    if kind == "nn":
        layers = [replace(each, path=each.burn) for each in model.layers]  # its names are Burn's throughout
        return Live(Place("nn", model.burn, layers), burn_model(model), burn_values)
    tensors = model.torch if kind == "plain-torch" else model.burn
    return Live(Place("plain", tensors, []), nested(tensors), flat)


def mutated(random: Random, model: Content) -> Content:
    """Return a model that differs by a layer or a shape, so that a load or conversion should notice."""
    layers = list(model.layers)
    way = random.choice(["drop", "add", "shape", "none"])
    if way == "drop" and len(layers) > 1:
        layers.pop(random.randrange(len(layers)))
    elif way == "add":
        layers.append(Layer("extra", "Linear", {"weight": values(random, (2, 3), "F32")}))
    elif way == "shape":
        at = random.randrange(len(layers))
        if layers[at].kind == "Linear":
            wide = {"weight": values(random, (7, 6), "F32"), "bias": values(random, (7,), "F32")}
            layers[at] = replace(layers[at], tensors={name: wide[name] for name in layers[at].tensors})
    paths = {f"{each.path}.weight" for each in layers}
    ties = [pair for pair in model.ties if set(pair) <= paths and way != "shape"]
    for place, each in enumerate(sorted((each for each in layers if each.path.startswith("seq.")), key=_place)):
        layers[layers.index(each)] = replace(each, burn=f"seq.{place}")
    return Content(layers, model.series, ties)


def _place(each: Layer) -> int:
    return int(each.path.partition(".")[2])


# --- options ----------------------------------------------------------------------------------------------------------


def patterns(random: Random, names: list[str]) -> list[str]:
    """Return one or two patterns for a filter; most of them match something."""
    found = []
    for _ in range(random.choice([1, 1, 2])):
        name = random.choice(names) if names else "x"
        choices = [f"^{re.escape(name)}$", f"^{re.escape(name.split('.')[0])}", "weight", "bias$", r"^enc\.", "."]
        found.append(random.choice(choices))
    return found


class OwnLayout(bs.ModuleAdapter):
    """An adapter that says that it converts layouts itself: it transposes every matrix."""

    replaces_layout = True

    def adapt(self, snapshot: bs.TensorSnapshot) -> bs.TensorSnapshot:
        return _turn(snapshot)


def _negate(snapshot: bs.TensorSnapshot) -> bs.TensorSnapshot:
    if not snapshot.dtype.is_float:
        return snapshot
    return bs.TensorSnapshot.from_numpy(snapshot.path, negated(snapshot.numpy()))


def _turn(snapshot: bs.TensorSnapshot) -> bs.TensorSnapshot:
    if len(snapshot.shape) != 2:
        return snapshot
    return bs.TensorSnapshot.from_numpy(snapshot.path, snapshot.numpy().T)


def _rename(snapshot: bs.TensorSnapshot) -> bs.TensorSnapshot:
    return snapshot.with_path(f"{snapshot.path}_new")


ADAPTERS: dict[str, Any] = {"negate": _negate, "turn": _turn, "rename": _rename, "own": OwnLayout()}


def keywords(random: Random, options: Options, *names: str) -> dict[str, Any]:
    """Return the keywords that stand for options, in random order and spelling."""
    given: dict[str, Any] = {}
    for name in ("rename", "layout", "target_layout", "cast", "rules"):
        value = getattr(options, name)
        if value is not None and name in names:
            given[name] = value
    if options.rename is not None and not isinstance(options.rename, Mapping) and random.random() < 0.3:
        given["rename"] = [tuple(rule.split("=>")) for rule in options.rename]
    if options.filter is not None:
        given["filter"] = random.choice(_filters(options.filter))
    for name in ("keep_layout", "guess", "allow_partial"):
        if getattr(options, name):
            given[name] = True
    if options.adapter is not None:
        given["adapter"] = ADAPTERS[options.adapter]
    order = list(given)
    random.shuffle(order)
    return {name: given[name] for name in order}


def _filters(found: Any) -> list[Any]:
    """Return several spellings of one filter."""
    spellings = [list(found), bs.PathFilter.from_regex_patterns(found)]
    if len(found) == 1:
        spellings += [found[0], re.compile(found[0])]
    return spellings


def described(options: Options) -> dict[str, Any]:
    """Return the options that are not at their defaults, for a report."""
    plain = Options()
    return {name: value for name, value in vars(options).items() if value != getattr(plain, name) and name != "like"}


def shown(model: Content) -> str:
    """Return a model in one line."""
    layers = [
        f"{each.path}: {each.kind}{ {name: f'{a.dtype}{list(a.shape)}' for name, a in each.tensors.items()} }"
        for each in model.layers
    ]
    return "; ".join(layers) + (f"; ties {model.ties}" if model.ties else "")


# --- verbs ------------------------------------------------------------------------------------------------------------


def load_case(random: Random) -> Case:
    """A file into a model, by `load` or by a store."""
    model, file, options = source(random)
    declares: Content | None = None
    has_tensors = all(reference.declared(each)[0] for each in model.layers)
    if file.file.format == "record" and has_tensors and random.random() < 0.7:  # a declaration states the names
        recorder = random.choice([records.BinFileRecorder, records.BinGzFileRecorder])()
        declares = model if random.random() < 0.5 else mutated(random, model)
        data = recorded(burn_model(model), recorder)
        file = replace(file, data=data, writer=repr(recorder), is_whole=declares is model)
    kind = random.choice(["torch", "torch", "nn", "nn", "plain-torch", "plain-burn"])
    if kind.startswith("plain") and random.random() < 0.8:  # usually named as the file is
        kind = (
            "plain-torch"
            if file.writer in TORCH_WRITERS and set(file.file.tensors) == set(model.torch)
            else "plain-burn"
        )
    dtype = random.choice([None, None, None, "F32", "F64", "F16", "BF16"])
    wanted = with_other_values(random, model, dtype)
    if random.random() < 0.15:
        wanted = mutated(random, wanted)
    target = live(random, wanted, kind)
    chance = random.random
    options = replace(
        options,
        filter=patterns(random, list(target.place.tensors)) if chance() < 0.25 else None,
        layout=random.choice(["torch", "burn"]) if chance() < 0.2 else None,
        adapter=random.choice(["negate", "negate", "turn", "rename", "own"]) if chance() < 0.25 else None,
        cast=random.choice(list(reference.FLOATS)) if chance() < 0.2 else None,
        allow_partial=chance() < (0.2 if file.is_whole else 0.6),
        rules=_load_rules(random, wanted, target.place) if chance() < 0.15 else None,
    )
    way = "load" if chance() < 0.7 else "store"
    given = keywords(random, options, "rename", "layout", "cast", "rules")
    can_apply = set(given) <= {"filter", "adapter", "allow_partial"} and file.file.format not in ("pytorch", "record")
    if declares is None and can_apply and file.file.layout is not None and chance() < 0.3:
        way = "apply"

    def act(folder: str) -> Outcome:
        if way == "apply":
            with bs.open(file.data) as opened:
                partial = given.get("allow_partial", False)
                how = {**given, "allow_partial": partial, "validate": True, "allow_empty": False}
                done = bs.apply(target.model, list(opened.values()), **how)
        elif declares is not None:
            with bs.open(file.data, like=burn_model(declares)) as opened:
                done = bs.load(target.model, opened, **given)
        elif way == "load" or file.file.format == "record":  # no store is for records
            done = bs.load(target.model, file.data, **given)
        else:
            done = _stored(file, given).load(target.model)
        said = "\n".join([*done.notes, *done.unused, *map(str, done.missing), *done.skipped])
        return Outcome(target.read(target.model), said, unused=done.unused)

    def expect() -> Expected:
        if declares is not None and [each.burn for each in declares.layers] != [each.burn for each in model.layers]:
            raise Refused("a binary record of another model than the declared one")
        given_file = replace(file.file, record=None) if way == "apply" else file.file  # snapshots have no metadata
        found = reference.load(given_file, target.place, options)
        is_other = declares is not None and shown(declares) != shown(model)
        found.loose = "the declaration has another shape" if is_other else found.loose
        return found

    text = {
        "way": way,
        "writer": file.writer,
        "source": shown(model),
        "file": _shapes(file.file.tensors),
        "target": kind,
    }
    text |= {"model": _shapes(target.place.tensors), "options": described(options)}
    text |= {} if declares is None else {"declared": shown(declares)}
    case = Case("load", text, act, expect)
    case.text["unchanged"] = (target, dict(target.place.tensors))
    return case


def _shapes(tensors: Named) -> dict[str, str]:
    return {name: f"{array.dtype}{list(array.shape)}" for name, array in tensors.items()}


def _load_rules(random: Random, model: Content, place: Place) -> dict[str, str] | None:
    """Return a rule that calls a class of one's own a Linear, if there is one."""
    own = [each for each in model.layers if each.kind == "Own" and "weight" in each.tensors]
    if not own or not place.layers:
        return None
    path = own[0].path if place.layout == "torch" else own[0].burn
    return {f"^{re.escape(path)}$": "Linear"} if set(own[0].tensors) == {"weight"} else None


def _stored(file: Source, given: Mapping[str, Any]) -> Any:
    """Return a store with the options, which are set in the order of the keywords."""
    kinds: dict[str, Any] = {".pt": bs.PytorchStore, ".bpk": bs.BurnpackStore, ".safetensors": bs.SafetensorsStore}
    store = kinds[file.suffix].from_bytes(file.data)
    return _set_options(store, given, "with_from_adapter")


def _set_options(store: Any, given: Mapping[str, Any], adapter: str) -> Any:
    methods = {"filter": "with_filter", "rename": "remap", "adapter": adapter}
    for name, value in given.items():
        getattr(store, methods.get(name, name))(value)
    return store


def save_case(random: Random) -> Case:
    """A model into a file, by `save` or by a store."""
    format = random.choice(["burnpack", "burnpack", "safetensors", "safetensors", "pytorch", "npz"])
    kind = random.choice(["torch", "torch", "nn", "plain-burn"])
    dtypes = COMMON if random.random() < 0.9 else tuple(NUMPY)
    model = content(random, dtypes=dtypes, wild=random.random() < 0.2 and format in ("burnpack", "safetensors"))
    target = live(random, model, kind)
    chance = random.random
    options = Options(
        filter=patterns(random, list(target.place.tensors)) if chance() < 0.25 else None,
        layout=random.choice(["torch", "burn"]) if chance() < 0.3 and kind != "plain-burn" else None,
        adapter=random.choice(["negate", "negate", "turn", "rename", "own"]) if chance() < 0.2 else None,
        cast=random.choice(list(reference.FLOATS)) if chance() < 0.2 else None,
        rules=_load_rules(random, model, target.place) if chance() < 0.15 else None,
    )
    if chance() < 0.25:
        part = random.choice([each.path for each in model.layers]).split(".")[0]
        options.rename = random.choice([[f"^{part}\\.=>new."], {f"{part}.weight": f"{part}.kernel"}, ["$=>_x"]])
    if kind != "plain-burn" and options.rules is None and options.adapter != "own" and chance() < 0.08:
        options.renamed_by_rules = random.choice([*target.place.tensors, "nowhere.x"])
    is_store = kind != "plain-burn" and format in ("burnpack", "safetensors") and chance() < 0.3
    given = keywords(random, options, "rename", "layout", "cast", "rules")
    if (name := options.renamed_by_rules) is not None:
        given["rules"] = {"tensors": [{"source": name, "target": f"{name}_ruled"}]}
    takes_metadata = format in ("burnpack", "safetensors") and not is_store and chance() < 0.3
    metadata = {"metadata": random.choice([{}, {"epochs": "3"}, {"producer": "burn"}])} if takes_metadata else {}

    def act(folder: str) -> Outcome:
        if is_store:
            made = {"burnpack": bs.BurnpackStore, "safetensors": bs.SafetensorsStore}[format].from_bytes(None)
            done = _set_options(made, given, "with_to_adapter").save(target.model)
            data = made.get_bytes()
        else:
            path = f"{folder}/saved{SUFFIXES[format]}"
            done = bs.save(target.model, path, durable=False, overwrite=True, **given, **metadata)
            with open(path, "rb") as opened:
                data = opened.read()
        tensors, layout = read_file(data, format)
        said = "\n".join([*done.notes, *(f"{name} {why}" for name, why in done.left_out.items())])
        return Outcome(tensors, said, layout, None, True, done.layout, set(done.left_out))

    def expect() -> Expected:
        found = reference.save(target.place, format, options)
        if kind == "plain-burn" and not found.tensors and not target.place.tensors:
            raise Refused("nothing to save")
        if kind == "plain-burn" and found.tensors and options.rules is None:
            is_said = metadata.get("metadata") == {"producer": "burn"} and format == "safetensors"
            found.layout = "burn" if is_said else None  # arrays in containers state none
        elif kind == "plain-burn":
            found.layout = "any"
        return found

    text = {"way": "store" if is_store else "save", "model": shown(model), "kind": kind, "format": format}
    return Case("save", text | {"options": described(options)}, act, expect)


def convert_case(random: Random) -> Case:
    """A file into a file, by `convert` or by the command line."""
    model, file, options = source(random, dtypes=COMMON if random.random() < 0.9 else tuple(NUMPY))
    format = random.choice(["burnpack", "burnpack", "burnpack", "safetensors", "safetensors", "pytorch", "npz"])
    if any(not re.fullmatch(r"[\w.]+", name, re.ASCII) for name in file.file.tensors):
        format = "burnpack"  # a member of a zip cannot have every name
    own = file.file.layout
    chance = random.random
    options.layout = random.choice(["torch", "burn"]) if chance() < 0.2 and file.writer not in CLASSES else None
    options.target_layout = random.choice(["torch", "burn"]) if chance() < 0.2 else None
    options.keep_layout = options.target_layout is None and chance() < 0.1
    options.cast = random.choice(list(reference.FLOATS)) if chance() < 0.15 else None
    options.adapter = random.choice(["negate", "negate", "turn", "rename", "own"]) if chance() < 0.15 else None
    target: Live | None = None
    way = random.choice(["like-torch", "like-torch", "like-nn", "rules", "rules", "guess", "none"])
    if way.startswith("like"):
        wanted = with_other_values(random, model)
        target = live(
            random, mutated(random, wanted) if chance() < 0.2 else wanted, "torch" if way == "like-torch" else "nn"
        )
        options.like = target.place
    elif way == "rules" and not (file.writer in CLASSES or (file.file.record and options.rename)):
        options.rules = _rules(random, model, options.layout or own)
    elif way == "guess":
        options.guess = True
    if chance() < (0.6 if own is None and way == "like-torch" else 0.2):
        options.filter = patterns(random, list(model.burn if format == "burnpack" else model.torch))
    given = keywords(random, options, "rename", "layout", "target_layout", "cast", "rules")

    def act(folder: str) -> Outcome:
        path = f"{folder}/source{file.suffix}"
        with open(path, "wb") as opened:
            opened.write(file.data)
        made = f"{folder}/made{SUFFIXES[format]}"
        like = {} if target is None else {"like": target.model}
        done = bs.convert(path, made, overwrite=True, durable=False, **like, **given)
        with open(made, "rb") as opened:
            tensors, layout = read_file(opened.read(), format)
        said = "\n".join([*done.notes, *(f"{name} {why}" for name, why in done.left_out.items())])
        return Outcome(tensors, said, layout, states_layout=True, result_layout=done.layout)

    text = {
        "writer": file.writer,
        "source": shown(model),
        "file": _shapes(file.file.tensors),
        "format": format,
        "kinds": way,
    }
    if target is not None:
        text["like"] = _shapes(target.place.tensors)
    return Case(
        "convert", text | {"options": described(options)}, act, lambda: reference.convert(file.file, format, options)
    )


def _rules(random: Random, model: Content, layout: str | None) -> dict[str, str]:
    """Return rules for all layers, in the words of the layout; sometimes one is left out."""
    rules = {}
    for each in model.layers:
        if not each.tensors and not (layout == "burn" and each.kind in ("LayerNorm", "RMSNorm")):
            continue
        path = each.burn if layout == "burn" else each.path
        kind = "AsIs" if each.kind == "Own" else each.kind
        is_burn = layout == "burn" and random.random() < 0.7  # both frameworks' words are understood
        rules[f"^{re.escape(path)}$"] = BURN_KINDS.get(kind, kind) if is_burn else kind
    if len(rules) > 1 and random.random() < 0.1:
        rules.pop(next(iter(rules)))
    return rules


# --- reading what was written -----------------------------------------------------------------------------------------


SUFFIXES = {"burnpack": ".bpk", "safetensors": ".safetensors", "pytorch": ".pt", "npz": ".npz"}


def read_file(data: bytes, format: str) -> tuple[Named, str | None]:
    """Return the tensors of a file and the layout that it states, without burnstore."""
    found: Named = {}
    if format in ("pytorch", "npz"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if format == "npz":
                layout = archive.comment.decode().partition("burnstore.layout=")[2] or None
            else:
                record = [name for name in archive.namelist() if name.endswith("/burnstore.layout")]
                layout = archive.read(record[0]).decode() if record else "torch"
        if format == "npz":
            found = dict(np.load(io.BytesIO(data)))
        else:
            loaded = torch.load(io.BytesIO(data), weights_only=True)
            found = {name: numpy_array(tensor) for name, tensor in loaded.items()}
        return found, None if layout == "unknown" else layout
    if format == "safetensors":
        tensors = safetensors.torch.load(data)
        found = {name: numpy_array(tensor) for name, tensor in tensors.items()}
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        found |= {name: found[held] for name, held in metadata.items() if name not in found and held in found}  # ties
        layout = metadata.get("burnstore.layout")
        if layout is None:
            format = metadata.get("format")
            layout = "torch" if format == "pt" else "burn" if metadata.get("producer") == "burn" else None
            layout = "mlx" if format == "mlx" else layout
        return found, None if layout == "unknown" else layout
    from tests.fuzz.reference import read

    reading = read(data)
    for name, tensor in reading.tensors.items():
        start = reading.aligned_start
        dtype = NUMPY[str(tensor.dtype)]
        found[name] = np.frombuffer(data[start + tensor.start : start + tensor.end], dtype).reshape(tensor.shape)
    layout = reading.metadata.get("burnstore.layout", "burn")
    return found, None if layout == "unknown" else layout
