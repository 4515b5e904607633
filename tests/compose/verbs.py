"""More compositions: merge, diff, odd objects in PyTorch files, nested mappings, damaged bools, the command line."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
from collections import OrderedDict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from tests.parity.exceptions import exempt
from tests.parity.ways import answer
from tests.parity.ways import same as same_answer

import burnstore as bs
from burnstore.cli import main

from . import reference
from .cases import (
    CLASSES,
    SUFFIXES,
    Case,
    Outcome,
    Source,
    _shapes,
    described,
    live,
    patterns,
    read_file,
    shown,
    source,
    with_other_values,
    written,
)
from .contents import COMMON, NUMPY, Content, Own, content, numpy_array, torch_model, torch_tensor, values
from .terms import Expected, Layer, Named, Refused, kind_of

# --- the command line -------------------------------------------------------------------------------------------------


def cli_case(random: Random) -> Case:
    """A file into a file, by ``burnstore convert`` in this process."""
    model, file, options = source(random, dtypes=COMMON)
    if isinstance(options.rename, dict):
        options.rename = None
    format = random.choice(["burnpack", "burnpack", "safetensors"])
    is_free = file.writer not in CLASSES
    options.layout = random.choice(["torch", "burn"]) if is_free and random.random() < 0.4 else None
    options.keep_layout = random.random() < 0.15
    options.cast = random.choice(list(reference.FLOATS)) if random.random() < 0.3 else None
    options.guess = random.random() < 0.3
    options.filter = ["weight", "^fc"] if random.random() < 0.3 else None

    def act(folder: str) -> Outcome:
        path, made = f"{folder}/source{file.suffix}", f"{folder}/made{_suffix(format)}"
        _write(path, file.data)
        arguments = ["convert", path, made, "--overwrite", "--json"]
        arguments += [text for rule in options.rename or () for text in ("--rename", rule)]
        arguments += [text for pattern in options.filter or () for text in ("--filter", pattern)]
        arguments += [] if options.layout is None else ["--layout", options.layout]
        arguments += [] if options.cast is None else ["--cast", options.cast]
        arguments += ["--keep-layout"] * options.keep_layout + ["--guess"] * options.guess
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
        if code:
            raise ValueError(err.getvalue())
        tensors, layout = read_file(_read(made), format)
        done = json.loads(out.getvalue())
        return Outcome(tensors, "\n".join(done["notes"]), layout, states_layout=True, result_layout=done["layout"])

    text = {"writer": file.writer, "source": shown(model), "format": format, "options": described(options)}
    return Case("cli", text, act, lambda: reference.convert(file.file, format, options))


# --- merge and diff ---------------------------------------------------------------------------------------------------


def merge_case(random: Random) -> Case:
    """Two files into one: parts of a model, or two models blended."""
    model = content(random, dtypes=COMMON)
    layout = random.choice(["torch", "burn"])
    is_blend = random.random() < 0.5
    writer = random.choice(["bpk-said", "safetensors", "st-arrays"])
    format = "burnpack" if writer == "bpk-said" and layout == "burn" else "safetensors"
    whole = model.torch if layout == "torch" else model.burn
    names = list(whole)
    cut = random.randint(0, len(names))
    t = random.choice([0.25, 0.5, 0.0])
    other = {name: _nudged(random, array) if is_blend else array for name, array in whole.items()}
    overlap = random.random() < 0.15
    first = whole if is_blend else {name: whole[name] for name in names[:cut]}
    second = other if is_blend else {name: other[name] for name in names[cut - overlap if cut else cut :]}
    sources = [_of_arrays(random, tensors, writer, layout) for tensors in (first, second)]

    def act(folder: str) -> Outcome:
        paths = [f"{folder}/m{at}{each.suffix}" for at, each in enumerate(sources)]
        for path, each in zip(paths, sources, strict=True):
            _write(path, each.data)
        made = f"{folder}/merged{_suffix(format)}"
        how: dict[str, Any] = {"method": "linear", "t": t} if is_blend else {}
        done = bs.merge(paths, made, overwrite=True, durable=False, **how)
        tensors, stated = read_file(_read(made), format)
        return Outcome(tensors, "\n".join(done.notes), stated, states_layout=True, result_layout=done.layout)

    def expect() -> Expected:
        both = {**first, **second}
        stated = sources[0].file.layout
        if is_blend:
            if stated is None and reference.hides_transpose(first, second):
                raise Refused("of two square matrices of unknown layout one may be the transpose")
            both = {name: reference.blended(first[name], second[name], t) for name in first}
        elif set(first) & set(second):
            raise Refused("two sources have one name")
        if not both:
            raise Refused("nothing to write")
        return Expected(both, stated)

    text = {"writer": writer, "layout": layout, "first": _shapes(first), "second": _shapes(second), "t": t * is_blend}
    return Case("merge", text, act, expect)


def _of_arrays(random: Random, tensors: Named, writer: str, layout: str) -> Source:
    part = Content([Layer("", "Own", tensors)])
    part.__class__ = _Flat
    return written(random, part, writer, layout, {})


class _Flat(Content):
    """Tensors whose names are paths already."""

    @property
    def torch(self) -> Named:
        return self.layers[0].tensors

    burn = torch


def _nudged(random: Random, array: Any) -> Any:
    if kind_of(array.dtype) != "f" or random.random() < 0.2:
        return array.copy()
    return (array.astype(np.float64) * 0.5 + 1).astype(array.dtype)


def list_case(random: Random) -> Case:
    """Snapshots of a torch model, of a Burn model, or arrays, in one list: one layout, or it is refused or unknown."""
    model = content(random, dtypes=COMMON)
    kinds = random.choice([["torch"], ["burn"], ["torch", "burn"], ["torch", None], ["burn", None], ["mlx", "torch"]])
    format = random.choice(list(SUFFIXES)) if len(model.layers) < 4 else "burnpack"
    given = random.choice([None, None, *LAYOUTS])
    small = {name: each for name, each in model.burn.items() if each.dtype in reference.HELD_BY[format]}

    def snapshots(kind: str | None, prefix: str) -> list[bs.TensorSnapshot]:
        made = [bs.TensorSnapshot.from_numpy(f"{prefix}.{name}", each) for name, each in small.items()]
        return [each.replace(layout=kind) for each in made]

    def act(folder: str) -> Outcome:
        both = [each for at, kind in enumerate(kinds) for each in snapshots(kind, f"p{at}")]
        done = bs.save(both, f"{folder}/list{SUFFIXES[format]}", overwrite=True, durable=False, layout=given)
        tensors, layout = read_file(_read(f"{folder}/list{SUFFIXES[format]}"), format)
        return Outcome(tensors, "\n".join(done.notes), layout, states_layout=True, result_layout=done.layout)

    def expect() -> Expected:
        made = {f"p{at}.{name}": each for at in range(len(kinds)) for name, each in small.items()}
        stated = {kind for kind in kinds if kind is not None}
        if not small:
            return Expected({}, "any", loose="there is no tensor")
        if len(stated) > 1 or (given is not None and stated - {given}):
            raise Refused("tensors of two layouts in one file, or of another than the given")
        if given is not None or None not in kinds:
            return Expected(made, given or kinds[0])
        return Expected(made, None, ["recorded as unknown"])

    text = {"kinds": kinds, "format": format, "layout": given, "tensors": _shapes(small)}
    return Case("list", text, act, expect)


LAYOUTS = ("torch", "burn")


class Asked:
    """A question for `tests.parity`: a file, a model and options."""

    def __init__(self, path: str, model: Any, options: dict[str, Any]) -> None:
        self.path, self._model, self._options = path, model, options
        self.model = "drawn"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self._options)

    def fresh(self) -> Any:
        return copy.deepcopy(self._model)


def parity_case(random: Random) -> Case:
    """The same question asked of `load` and of another verb, which gives the same tensors or refuses as well."""
    model, file, options = source(random, dtypes=("F32", "F64", "I64"))
    if isinstance(options.rename, dict):
        options.rename = None
    way = random.choice(["convert to bpk", "convert to safetensors", "convert to pt", "merge", "merge", "store"])
    target = live(random, with_other_values(random, model), random.choice(["torch", "nn"]))
    chance = random.random
    asked: dict[str, Any] = {} if options.rename is None else {"rename": options.rename}
    asked |= {"layout": random.choice(LAYOUTS)} if chance() < 0.2 else {}
    if chance() < 0.2:  # a conversion filters by the names of its target: those of the model only in its layout
        # Burn has no counters: a filter that leaves only these is refused where Burn's layout is read.
        names = [name for name in target.place.tensors if not name.endswith(reference.COUNT)]
        asked["filter"] = patterns(random, names)
        way = random.choice(
            ["store", "convert to pt"] if target.place.layout == "torch" else ["convert to bpk", "merge"]
        )
        if file.writer == "bpk-arrays":  # It states no layout, and a copy in its format keeps PyTorch's names.
            way = "store"
    asked |= {"cast": "bf16"} if chance() < 0.15 else {}

    def act(folder: str) -> Outcome:
        path = f"{folder}/asked{file.suffix}"
        _write(path, file.data)
        question: Any = Asked(path, target.model, asked)
        for name in os.listdir(folder):
            if name.startswith(("converted", "merged")):
                os.remove(f"{folder}/{name}")
        by_load, other = (_uncounted(answer(each, question, Path(folder))) for each in ("load", way))
        is_same = other is None or same_answer(by_load, other) or is_exempt(way, by_load, other)
        return Outcome({"same": np.array(is_same)}, f"load: {by_load}\n{way}: {other}")

    text = {"way": way, "writer": file.writer, "source": shown(model), "file": _shapes(file.file.tensors)}
    text |= {"target": target.place.kind, "options": asked}
    return Case("parity", text, act, lambda: Expected({"same": np.array(True)}))


def _uncounted(found: Any) -> Any:
    """Return an answer without counters: Burn has none, so a load leaves them alone and a conversion writes 0."""
    if isinstance(found, dict):
        return {name: each for name, each in found.items() if not name.endswith(reference.COUNT)}
    return found


def is_exempt(way: str, by_load: Any, other: Any) -> bool:
    """Return whether one of the documented exceptions covers two answers."""
    if isinstance(other, str) and not isinstance(by_load, str) and "given as like, has this tensor" in other:
        return True  # a load of tensors that share memory, or of counters, may do without
    return exempt(Asked("", None, {}), way, by_load, other) is not None  # type: ignore[arg-type]


def diff_case(random: Random) -> Case:
    """Two files of one model by different writers; sometimes one value differs, or a tensor is missing."""
    model = content(random, dtypes=COMMON)
    change = random.choice(["none", "none", "value", "drop"])
    ways = {"torch": ["torch.save", "safetensors-pt", "st-arrays"], "burn": ["bpk-said", "st-nn", "bpk-arrays"]}
    layouts = [random.choice(["torch", "burn"]) for _ in "ab"]
    first = written(random, model, random.choice(ways[layouts[0]]), layouts[0], {})
    tensors = dict(model.torch if layouts[1] == "torch" else model.burn)
    name = random.choice(list(tensors))
    if change == "value" and tensors[name].size:
        tensors[name] = values(random, tensors[name].shape, _dtype(tensors[name]))
    elif change == "drop" and len(tensors) > 1:
        del tensors[name]
    writer = random.choice(["bpk-said", "safetensors-pt" if layouts[1] == "torch" else "bpk-said"])
    second = _of_arrays(random, tensors, writer, layouts[1])
    like = random.random() < 0.8

    def act(folder: str) -> Outcome:
        options = {"like": torch_model(model)} if like else {}
        found = bs.diff(first.data, second.data, **options)
        names = sorted(each.shown_name for each in found.tensors if each.status == "equal")
        return Outcome({name: np.array(True) for name in [*names, "all"][: len(names) + found.is_equal]}, _said(found))

    def expect() -> Expected:
        return reference.diff(first.file, second.file, model.layers if like else None)

    text = {"first": first.writer, "second": writer, "layouts": layouts, "change": f"{change} {name}", "like": like}
    return Case("diff", text | {"model": shown(model)}, act, expect)


def _said(found: bs.Diff) -> str:
    return "\n".join((*found.notes, *found.uncompared))


def _dtype(array: Any) -> str:
    return next(key for key, known in NUMPY.items() if np.dtype(known) == array.dtype)


# --- what is in a PyTorch file ----------------------------------------------------------------------------------------


class Bag:
    """An object with attributes."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


class Items(dict):  # type: ignore[type-arg]
    """A dict with attributes."""


class Row(list):  # type: ignore[type-arg]
    """A list with attributes."""


class Reduced:
    """An object that is made again by a call with arguments."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __reduce__(self) -> Any:
        return Reduced, (self.held,)


class Stated:
    """An object whose state is a tuple."""

    def __init__(self, *held: Any) -> None:
        self.held = held

    def __getstate__(self) -> Any:
        return self.held

    def __setstate__(self, state: Any) -> None:
        self.held = state


def pickle_case(random: Random) -> Case:
    """Tensors in objects of every kind: each is named with its values, or noted; verify and convert see them too."""
    leaves: list[Any] = []

    def leaf() -> Any:
        tensor = torch_tensor(values(random, (random.randint(1, 3),), random.choice(["F32", "I64", "BF16", "U8"])))
        leaves.append(tensor)
        return tensor

    def tree(depth: int) -> Any:
        if depth == 0 or random.random() < 0.3:
            return leaf() if random.random() < 0.8 else random.choice([1, "x", None, 2.5])
        if random.random() < 0.08:
            return {leaf()}
        if random.random() < 0.1:
            module = Own()
            module.register_buffer("kept", leaf())
            module.register_buffer("passing", leaf(), persistent=False)
            return module
        held = [tree(depth - 1) for _ in range(random.randint(1, 3))]
        way = random.choice(
            ["dict", "dict", "list", "tuple", "ordered", "bag", "items", "row", "reduced", "stated", "keyed"]
        )
        if way == "list":
            return held
        if way == "tuple":
            return tuple(held)
        if way == "keyed":  # no name leads to what is under such a key
            return {(at, "x"): each for at, each in enumerate(held)}
        named = {f"k{at}": each for at, each in enumerate(held)}
        if way == "bag":
            return Bag(**named)
        if way == "items":
            made = Items(named)
            made.extra = leaf()
            return made
        if way == "row":
            row = Row(held)
            row.extra = leaf()
            return row
        if way == "reduced":
            return Reduced(held)
        if way == "stated":
            return Stated(*held)
        return OrderedDict(named) if way == "ordered" else named

    root = {"a": tree(3), "b": leaf()}
    buffer = io.BytesIO()
    torch.save(root, buffer)
    data = buffer.getvalue()
    way = random.choice(["open", "convert", "diff"])

    def act(folder: str) -> Outcome:
        wanted = sorted(numpy_array(each).tobytes() for each in leaves)
        if way == "diff":
            empty = bs.serialize({"b": numpy_array(root["b"])}, format="safetensors")
            found = bs.diff(data, empty)
            return Outcome({"equal": np.array(found.is_equal)})
        if way == "open":
            with bs.open(data) as file:
                tensors, notes = {name: file[name].numpy() for name in file}, list(file.notes)
        else:
            _write(f"{folder}/odd.pt", data)
            done = bs.convert(f"{folder}/odd.pt", f"{folder}/odd.safetensors", overwrite=True, durable=False)
            tensors, _ = read_file(_read(f"{folder}/odd.safetensors"), "safetensors")
            notes = [*done.notes, *(f"left out: {name}: {why}" for name, why in done.left_out.items())]
        found_bytes = sorted(np.ascontiguousarray(each).tobytes() for each in tensors.values())
        lost = len(wanted) - len(found_bytes)
        is_noted = any("left out" in note for note in notes)
        right = found_bytes == wanted or (lost > 0 and is_noted and set(found_bytes) <= set(wanted))
        return Outcome({"accounted": np.array(right)}, "\n".join(notes))

    def expect() -> Expected:
        if way == "diff":
            return Expected({"equal": np.array(len(leaves) == 1)})
        return Expected({"accounted": np.array(True)})

    return Case("pickle", {"way": way, "tree": _drawn(root)}, act, expect)


def _drawn(value: Any) -> str:
    """Return a tree of objects as text, tensors as T."""
    if isinstance(value, torch.Tensor):
        return "T"
    held = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if held:
        inside = f"{type(value).__name__}({', '.join(f'{name}={_drawn(each)}' for name, each in held.items())})"
        extra = "" if not isinstance(value, Items) else ", extra=T"
        return inside[:-1] + extra + ")"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{', '.join(map(_drawn, value))}]"
    return repr(value)


# --- nested mappings and damaged bools --------------------------------------------------------------------------------


def mapping_case(random: Random) -> Case:
    """A nested mapping into a file: arrays are written, None is named, numbers and text are refused."""
    tensors: Named = {}
    refused = False
    none: list[str] = []

    def tree(path: str, depth: int) -> Any:
        nonlocal refused
        chance = random.random()
        if depth and chance < 0.5:
            return {name: tree(f"{path}.{name}" if path else name, depth - 1) for name in random.sample("abcd", 2)}
        if depth and chance < 0.6:
            return [tree(f"{path}.{at}", depth - 1) for at in range(2)]
        if chance < 0.61 and path:
            refused = True
            return random.choice([3, 2.5, "text", True, np.float32(1)])
        if chance < 0.65 and path:
            none.append(path)
            return None
        tensors[path] = values(random, random.choice([(), (2,), (0, 3)]), random.choice(COMMON))
        return tensors[path]

    given: dict[str, Any] = {"x": tree("x", 2), "y": {"z": tree("y.z", 1)}}
    format = random.choice(["burnpack", "safetensors"])

    def act(folder: str) -> Outcome:
        path = f"{folder}/mapping{_suffix(format)}"
        done = bs.save(given, path, overwrite=True, durable=False)
        found, _ = read_file(_read(path), format)
        return Outcome(found, "\n".join((*done.notes, *done.left_out)))

    def expect() -> Expected:
        if refused:
            raise Refused("a number or a text has no place in a file of tensors")
        if not tensors:
            return Expected({}, noted=none, loose="there is no tensor")
        return Expected(tensors, noted=none)

    return Case(
        "mapping", {"tensors": _shapes(tensors), "refused": refused, "none": none, "format": format}, act, expect
    )


def bool_case(random: Random) -> Case:
    """A file with bools, of which sometimes one byte is neither 0 nor 1: then everything refuses it."""
    array = values(random, (random.randint(1, 5),), "Bool")
    format = random.choice(["burnpack", "safetensors"])
    data = bytearray(bs.serialize({"mask": array}, format=format))
    byte = random.choice([0, 1, 2, 255])
    at = len(data) - random.randint(1, len(array))
    data[at] = byte
    expected = np.frombuffer(bytes(data[-len(array) :]), np.uint8)
    way = random.choice(["numpy", "load", "convert", "verify"])

    def act(folder: str) -> Outcome:
        if way == "load":
            model = {"mask": ~array}
            bs.load(model, bytes(data))
            return Outcome({"mask": model["mask"]})
        if way == "numpy":
            with bs.open(bytes(data)) as file:
                return Outcome({"mask": file["mask"].numpy(copy=True)})
        path = f"{folder}/bools{_suffix(format)}"
        _write(path, data)
        if way == "convert":
            bs.convert(path, f"{folder}/copied{_suffix(format)}", overwrite=True, durable=False)
            return Outcome(read_file(_read(f"{folder}/copied{_suffix(format)}"), format)[0])
        if not bs.verify(path).ok:
            raise ValueError("not ok")
        return Outcome({"mask": expected.astype(bool)})

    def expect() -> Expected:
        if expected.max() > 1:
            raise Refused("a bool that is neither 0 nor 1")
        return Expected({"mask": expected.astype(bool)})

    return Case("bool", {"way": way, "format": format, "bytes": list(expected)}, act, expect)


def _suffix(format: str) -> str:
    return SUFFIXES[format]


def _write(path: str, data: bytes | bytearray) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
