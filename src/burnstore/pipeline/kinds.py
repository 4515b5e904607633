"""Kinds: determine the kinds of the modules that named tensors belong to.

A conversion between layouts needs the kind of every module. The sources, in this order: rules of the caller for the
modules that they match; a live model or a declaration; the record in a file; the classes that a file of a whole model
names; a guess by names and shapes, on request. Each results in a `LayoutView`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..errors import AmbiguousError, BurnstoreError, CorruptError, ModelError, PatternError, Ways, located, quoted
from ..formats.base import ModuleClass
from ..io.documents import read_json
from ..io.opening import read_whole
from ..io.paths import folder_of, is_folder
from ..io.paths import join as join_paths
from ..models.binding import Slot
from ..models.bindings import binding_for
from ..tensor.data import Shape, TensorData
from ..tensor.dtype import Kind
from ..tensor.snapshot import TensorSnapshot
from ..transforms.classes import kind_of_class
from ..transforms.guess import Guess, guess_kinds
from ..transforms.layout import (
    AS_IS,
    BURN_OF_TORCH,
    CONTAINERS,
    COUNT,
    Layout,
    ModuleKind,
    burn_map_of_torch,
    is_burn_leaf,
    is_known_torch,
    torch_map,
    torch_name,
)
from ..transforms.patterns import compile_pattern
from ..transforms.view import (
    LayoutView,
    PlacedModule,
    check_levels,
    join,
    module_tree,
    same_names,
    view_of_burn,
    view_of_torch,
)
from .options import Pipeline, layout_named

MODULES_KEY = "burnstore.modules"
"""The metadata key under which a file records its modules: PyTorch path → kind, and Burn's path if it is another.

It is JSON: ``{"fc": "Linear", "net.2": ["Linear", "net.1"], "bn": ["BatchNorm2d", "bn", {"gamma": 1.0}]}``, where the
last entry has the tensors that Burn has and PyTorch does not, because they are constant.
"""

_DECLARE = ("like= a model or declaration", "rules={pattern: kind}")
_KEEP = "keep_layout=True to copy names and axes unchanged"
WAYS_OUT = Ways(*_DECLARE, _KEEP)


def ways_out(path: str, *, may_guess: bool) -> Ways:
    """Return what a caller can do for a file whose modules nothing states; its ``config.json`` may name the class."""
    named = _class_beside(path)
    declare = _DECLARE if named is None else (f"like= a {named}, which config.json names", _DECLARE[1])
    return Ways(*declare, *(["guess=True to decide by names and shapes"] if may_guess else []), _KEEP)


def _class_beside(path: str) -> str | None:
    """Return the class of transformers or diffusers that the ``config.json`` beside a file names, if there is one."""
    try:
        folder = path if is_folder(path) else folder_of(path)
        config = read_json(read_whole(join_paths(folder, "config.json"), _LONGEST_CONFIG), into=dict[str, Any])
    except (OSError, BurnstoreError):
        return None
    several = config.get("architectures")
    for library, name in (
        ("transformers", several[0] if isinstance(several, list) and several else None),
        ("diffusers", config.get("_class_name")),
    ):
        if isinstance(name, str) and name.isidentifier():
            return f"{library}.{name}"
    return None


_LONGEST_CONFIG = 16 << 20


def layout_of(model: Any) -> Layout:
    """Return the layout of a model's tensors: the one it declares as ``burnstore_layout``, else its framework's.

    >>> from burnstore import nn
    >>> layout_of(nn.Linear(2, 3))
    'burn'
    """
    declared = declared_layout(model)
    return layout_named(binding_for(model).layout if declared is None else declared)


def declared_layout(model: Any) -> Any:
    """Return the attribute ``burnstore_layout`` of a model, None if it has none."""
    try:
        return getattr(model, "burnstore_layout", None)
    except KeyError:  # of a dict whose items are its attributes
        return None


def states_layout(model: Any) -> bool:
    """Return whether a model has a layout; arrays in mappings and lists have none, unless it declares one.

    >>> states_layout({"fc": {"weight": np.zeros(2)}})
    False
    """
    if declared_layout(model) is not None:
        return True
    todo, visited = [model], set()
    while todo:
        value = todo.pop()
        if isinstance(value, (Mapping, list, tuple)):
            if id(value) not in visited:
                visited.add(id(value))
                todo += value.values() if isinstance(value, Mapping) else value
        elif not isinstance(value, (np.ndarray, np.generic, TensorData, TensorSnapshot, int, float, str, type(None))):
            return True
    return False


# --- live models ------------------------------------------------------------------------------------------------------


def view_of_model(
    model: Any,
    slots: Iterable[Slot],
    *,
    skip_enum_variants: bool = False,
    rules: Mapping[str, str] | None = None,
    present: Iterable[str] | None = None,
) -> LayoutView:
    """Return a model's tensors in both layouts.

    ``rules`` name kinds that the model does not state; ``present`` are the names in a file that is to be loaded.
    """
    layout = layout_of(model)
    shapes = {slot.path: slot.shape for slot in slots}
    kinds: dict[str, ModuleKind | None] = dict(binding_for(model).kinds(model, skip_enum_variants=skip_enum_variants))
    if rules:
        kinds.update(kinds_by_rules(shapes, rules, layout))
    if layout == "torch":
        _check_in_module(shapes, kinds)
    root = module_tree(shapes, kinds)
    view = view_of_torch(root) if layout == "torch" else view_of_burn(root, present)
    view.notes = getattr(binding_for(model), "code_notes", lambda model: ())(model)
    return view


def _check_in_module(paths: Iterable[str], kinds: Mapping[str, ModuleKind | None]) -> None:
    """Refuse tensors of PyTorch that are in no module, as in a state dict: their kind is unknown."""
    for path in paths:
        if path.rpartition(".")[0] not in kinds:
            raise ModelError(
                "cannot determine the module kind of this tensor: it is in no module",
                tensor=path,
                hint=Ways("the module itself", "rules={pattern: kind}", "keep_layout=True to keep PyTorch's layout"),
            )


def _kind_in(layout: Layout, kind: ModuleKind) -> ModuleKind:
    """Return a kind in the words of one framework, also if it is given in those of the other."""
    is_own = is_known_torch(kind) if layout == "torch" else is_burn_leaf(kind)
    other = None if is_own else torch_name(kind.name) if layout == "torch" else BURN_OF_TORCH.get(kind.name)
    return kind if other is None else ModuleKind(other, kind.options)


def kinds_by_rules(paths: Iterable[str], rules: Mapping[str, str], layout: Layout) -> dict[str, ModuleKind]:
    """Return the kinds that rules give to the modules of these tensors; the last rule that matches wins.

    Rules may name kinds in the words of either framework; the result has those of ``layout``.

    >>> kinds = kinds_by_rules(["fc.weight", "bn.gamma"], {"^fc$": "Linear", "^bn$": "BatchNorm2d"}, "burn")
    >>> {path: str(kind) for path, kind in kinds.items()}
    {'fc': 'Linear', 'bn': 'BatchNorm'}
    """
    compiled = [(compile_pattern(pattern), _kind_in(layout, ModuleKind.parse(kind))) for pattern, kind in rules.items()]
    modules: dict[str, None] = {}
    for path in paths:
        owner = path.rpartition(".")[0]
        check_levels(owner)
        while owner not in modules:
            modules[owner] = None
            owner = owner.rpartition(".")[0]
    found: dict[str, ModuleKind] = {}
    unmatched: dict[str, re.Pattern[str]] = {pattern.pattern: pattern for pattern, _ in compiled}
    for module in modules:
        for pattern, kind in compiled:
            if pattern.search(module):
                found[module] = kind
                unmatched.pop(pattern.pattern, None)
    if unmatched:
        raise PatternError(f"the rule {quoted(next(iter(unmatched)))} matched no module")
    return found


# --- the record in a file's metadata ----------------------------------------------------------------------------------


class RecordedModule(NamedTuple):
    """A module as metadata records it: its path in both layouts, its kind in PyTorch, and its constant tensors."""

    torch: str
    burn: str
    kind: ModuleKind
    filled: Mapping[str, float]

    def path(self, layout: Layout) -> str:
        """Return the path in a layout."""
        return self.torch if layout == "torch" else self.burn


def record_text(modules: Iterable[RecordedModule]) -> str:
    """Return modules as text for a file's metadata."""
    record: dict[str, Any] = {}
    for module in modules:
        kind = str(module.kind)
        if module.filled:
            record[module.torch] = [kind, module.burn, dict(module.filled)]
        else:
            record[module.torch] = kind if module.burn == module.torch else [kind, module.burn]
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def recorded_by(view: LayoutView, counts: Mapping[str, TensorSnapshot] | None = None) -> list[RecordedModule]:
    """Return the modules of a view as a file records them, so that it can be converted without the model.

    ``counts`` are the counters of the tensors' source, where the modules are those of something else (`like`).
    """
    modules = []
    unknown = ModuleKind(AS_IS)
    for module in view.modules:
        kind = module.kind or unknown
        options = kind.options
        if counts is not None:
            options = tuple(option for option in options if option[0] != COUNT)
            count = counts.get(join(module.torch, COUNT))
            if count is not None and not count.shape and count.dtype.kind in (Kind.INT, Kind.UINT):
                options += ((COUNT, int(count.numpy())),)
        name = torch_name(kind.name) or kind.name
        kind = kind if name == kind.name and options is kind.options else ModuleKind(name, options)
        filled = {fill.burn: fill.value for fill in module.map.fills} if module.map.fills else {}
        modules.append(RecordedModule(module.torch, module.burn, kind, filled))
    return modules


def recorded_modules(metadata: Mapping[str, str]) -> list[RecordedModule] | None:
    """Return the modules that a file records; None if it records none, CorruptError if the record is damaged."""
    text = metadata.get(MODULES_KEY)
    if text is None:
        return None
    try:
        record = read_json(text, into=dict[str, str | list[Any]])
        return [_recorded(path, stated) for path, stated in record.items()]
    except (ValueError, TypeError) as error:
        why = error.message if isinstance(error, BurnstoreError) else error
        raise CorruptError(f"the metadata's {MODULES_KEY} is damaged: {why}") from error


def _recorded(path: str, stated: Any) -> RecordedModule:
    if isinstance(stated, str):
        return RecordedModule(path, path, ModuleKind.parse(stated), {})
    kind, burn, *rest = stated
    filled = rest[0] if rest else {}
    is_sound = isinstance(filled, dict) and all(isinstance(value, (int, float)) for value in filled.values())
    if not isinstance(burn, str) or not is_sound or len(rest) > 1:
        raise ValueError(f"{path!r} is {stated!r}")
    return RecordedModule(path, burn, ModuleKind.parse(kind), filled)


def renamed_modules(
    modules: Sequence[RecordedModule], names: Mapping[str, str], layout: Layout
) -> list[RecordedModule] | None:
    """Return recorded modules under new names; ``names`` maps old tensor names of ``layout`` to new ones.

    None if a rename changes names within a module: the record then no longer describes the file.
    """
    below: dict[str, set[str]] = {}
    own = {module.path(layout) for module in modules}
    for old, new in names.items():
        path = old.rpartition(".")[0]
        while path and path not in own:
            path = path.rpartition(".")[0]
        if path not in own:
            return None
        target = path
        if new != old:
            suffix = old[len(path) :] if path else f".{old}"
            if not f".{new}".endswith(suffix):
                return None
            target = f".{new}"[: -len(suffix)].removeprefix(".")
        below.setdefault(path, set()).add(target)
    renamed = []
    for module in modules:
        targets = below.get(module.path(layout))
        if targets is None:
            continue  # none of its tensors takes part
        if len(targets) > 1:
            return None
        moved = _moved(module, next(iter(targets)), layout)
        if moved is None:
            return None
        renamed.append(moved)
    return renamed


def renamed_classes(classes: Mapping[str, ModuleClass], names: Mapping[str, str]) -> Mapping[str, ModuleClass] | None:
    """Return the classes of modules under new names; ``names`` maps old tensor names to new ones.

    A module of which only some submodules are renamed goes where its own tensors go, or drops out. None if a rename
    changes names within a layer, or leaves numbers that no container states.
    """
    targets: dict[str, set[str | None]] = {}
    owned: dict[str, set[str | None]] = {}
    numbered: set[str] = set()
    for old, new in names.items():
        before, after = old.split("."), new.split(".")
        same = 0  # the segments at the end that the rename left alone
        while same < min(len(before), len(after)) and before[-1 - same] == after[-1 - same]:
            same += 1
        for depth in range(len(before)):
            below = len(before) - depth
            target = ".".join(after[: len(after) - below]) if below <= same else None
            targets.setdefault(".".join(before[:depth]), set()).add(target)
        owned.setdefault(".".join(before[:-1]), set()).add(target)
        numbered.update(".".join(after[:at]) for at, part in enumerate(after[:-1]) if part.isdecimal())
    renamed: dict[str, ModuleClass] = {}
    for path, cls in classes.items():
        around = path
        while around not in targets and around:  # a module without tensors goes where the modules around it go
            around = around.rpartition(".")[0]
        is_layer = cls.module.startswith("torch.nn.") and cls.name not in CONTAINERS
        found = targets.get(around, set())
        if len(found) > 1 and path in owned and not is_layer:
            found = owned[path]
        target = next(iter(found)) if len(found) == 1 else None
        if target is not None:
            new = join(target, path[len(around) :].removeprefix("."))
            if renamed.setdefault(new, cls) is not cls:
                return None
        elif path not in targets:
            if cls.options:  # a norm without tensors has some in Burn
                return None
        elif path in owned or is_layer:
            return None
    return renamed if numbered <= renamed.keys() else None


def _moved(module: RecordedModule, path: str, layout: Layout) -> RecordedModule | None:
    """Return a module whose path in one layout became another; its path in the other layout follows."""
    old, other = module.path(layout), module.burn if layout == "torch" else module.torch
    if old == path:
        return module
    if old == other:
        return module._replace(torch=path, burn=path)
    before, after = old.split("."), path.split(".")
    same = 0  # the segments at the end that the rename left alone
    while same < min(len(before), len(after)) and before[-1 - same] == after[-1 - same]:
        same += 1
    head, new_head = before[: len(before) - same], after[: len(after) - same]
    segments = other.split(".")
    if segments[: len(head)] != head:
        return None
    follows = ".".join([*new_head, *segments[len(head) :]])
    return module._replace(torch=path, burn=follows) if layout == "torch" else module._replace(torch=follows, burn=path)


def view_of_record(
    modules: Iterable[RecordedModule],
    shapes: Mapping[str, Shape],
    layout: Layout,
    keeps: Callable[[str], bool] = lambda name: True,
) -> LayoutView:
    """Return the tensors of a file in both layouts, by its recorded modules; its names are of ``layout``."""
    own = {module.path(layout): module for module in modules}
    below: dict[str, dict[str, Shape]] = {path: {} for path in own}
    for name, shape in shapes.items():
        path = name.rpartition(".")[0]
        while path and path not in own:
            path = path.rpartition(".")[0]
        if path not in own:
            if keeps(name):
                raise ModelError(f"the metadata's {MODULES_KEY} does not name its module", tensor=name)
            continue
        below[path][name[len(path) + 1 :] if path else name] = shape
    return LayoutView(_placed(own[path], tensors, layout) for path, tensors in below.items() if tensors)


def _placed(module: RecordedModule, tensors: Mapping[str, Shape], layout: Layout) -> PlacedModule:
    with located(tensor=module.path(layout)):
        if module.kind.name == AS_IS:
            return PlacedModule(module.torch, module.burn, None, same_names(tensors))
        if layout == "torch":
            found = torch_map(module.kind, tensors, all_biases=any(name.endswith("bias") for name in module.filled))
        else:
            found = burn_map_of_torch(module.kind, tensors, module.filled)
    return PlacedModule(module.torch, module.burn, module.kind, found)


def recorded_counts(modules: Iterable[RecordedModule] | None) -> dict[str, TensorSnapshot]:
    """Return the counters that PyTorch has and Burn does not, where the record states their values."""
    found = {}
    for module in modules or ():
        count = module.kind.option(COUNT)
        if count is not None and abs(count) < 1 << 63:
            path = join(module.torch, COUNT)
            found[path] = TensorSnapshot.from_numpy(path, np.array(count, np.int64))
    return found


def zero_count(path: str) -> TensorSnapshot:
    """Return a counter that PyTorch has and Burn does not, at its start."""
    return TensorSnapshot.from_numpy(path, np.zeros((), np.int64))


# --- the classes in a file of a whole model ---------------------------------------------------------------------------

_OF_LAYERS = re.compile(
    r"weight|running_(mean|var)|(in|[qkv])_proj_\w+|bias_[kv]|(weight|bias)_[ih][hr]_?\w*|weight_[gv]"
)
"""The tensors of which layers of PyTorch, and what derives from one, have at least one: none has only a bias."""


def kinds_of_classes(classes: Mapping[str, ModuleClass], shapes: Mapping[str, Shape]) -> dict[str, ModuleKind | None]:
    """Return the kinds of a saved model's modules by the classes that the file names; None for one that is no layer.

    A class that is not known may derive from a layer: with tensors of such names its kind is one that no rule knows.
    """
    own: dict[str, dict[str, Shape]] = {}
    numbered: set[str] = set()
    for name, shape in shapes.items():
        *path, tensor = name.split(".")
        own.setdefault(".".join(path), {})[tensor] = shape
        numbered.update(".".join(path[:at]) for at, part in enumerate(path) if part.isdecimal())
    found: dict[str, ModuleKind | None] = {}
    for module, cls in classes.items():
        tensors = own.get(module, {})
        is_norm = not tensors and not cls.options.keys().isdisjoint(("normalized_shape", "track_running_stats"))
        if cls.module.startswith("torch.nn."):
            named: str | None = cls.name.removeprefix("NonDynamicallyQuantizable")
        else:
            named = kind_of_class(cls.module, cls.name, None if is_norm else tensors)
        with located(tensor=module or None):
            if named is not None:
                found[module] = ModuleKind(named, tuple(_options_of_class(named, cls.options, tensors)))
                continue
            if is_norm:
                raise ModelError(
                    f"a saved {cls.name} without tensors: a norm that it may derive from has some in Burn",
                    hint=Ways("like= the model that was saved"),
                )
        is_free = bool(tensors) and module not in numbered and not any(map(_OF_LAYERS.fullmatch, tensors))
        found[module] = None if is_free else ModuleKind(f"saved {cls.name}")
    return found


def _options_of_class(name: str, options: Mapping[str, Any], tensors: Mapping[str, Shape]) -> Iterator[tuple[str, int]]:
    """Yield the options of a saved layer that its tensors do not show; ModelError where the file has lost one."""
    if isinstance(options.get("norm_first"), bool):
        yield "norm_first", options["norm_first"]
    if options.get("padding_mode") not in (None, "zeros"):
        yield "padding_mode", True
    if options.get("max_norm") is not None:
        yield "max_norm", True
    lacks_weight = name in ("LayerNorm", "RMSNorm") and "weight" not in tensors
    if not lacks_weight and not ("BatchNorm" in name and "running_mean" not in tensors):
        return
    option = "normalized_shape" if lacks_weight else "num_features"
    shape = options.get(option)
    extents = shape if isinstance(shape, (tuple, list)) else (shape,)
    if not extents or not all(type(extent) is int for extent in extents):
        raise ModelError(
            f"a {name} without tensors that Burn's has, and the file does not have its {option}",
            hint=Ways("like= the model that was saved"),
        )
    if lacks_weight:
        yield "axes", len(extents)
    yield "features", extents[-1]


# --- files: whatever states their modules -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Known:
    """A view of a file's tensors in both layouts, and where the kinds come from."""

    view: LayoutView
    evidence: str
    is_declared: bool
    """Whether the source of the kinds also states which tensors are absent."""

    guess: Guess | None = None
    counts: Mapping[str, TensorSnapshot] = field(default_factory=dict)


def known_for_file(
    shapes: Mapping[str, Shape],
    layout: Layout,
    pipeline: Pipeline,
    recorded: Sequence[RecordedModule] | None,
    keeps: Callable[[str], bool],
    classes: Mapping[str, ModuleClass] | None = None,
) -> Known | None:
    """Return what is known about the modules of named tensors without a model; None if nothing states their kinds.

    Rules win for the modules that they match; the record, the classes, then a guess, fill in the others. ``keeps``
    returns whether the filter keeps a tensor: only the modules of such tensors must be known.
    """
    words: Layout = layout if recorded is None else "torch"  # a record has PyTorch's kinds
    by_rules = {} if pipeline.rules is None else kinds_by_rules(shapes, pipeline.rules, words)
    if recorded is not None:
        modules = [module._replace(kind=by_rules.pop(module.path(layout), module.kind)) for module in recorded]
        modules += [RecordedModule(path, path, kind, {}) for path, kind in by_rules.items()]
        view = view_of_record(modules, shapes, layout, keeps)
        return Known(view, "recorded in the file", True, counts=recorded_counts(recorded))
    if classes:
        stated = {**kinds_of_classes(classes, shapes), **by_rules}
        view = view_of_kinds(stated, shapes, layout, keeps, is_declared=True)
        return Known(view, "the classes that the file names", True)
    guess = None
    kinds: dict[str, ModuleKind] = by_rules
    evidence = "rules"
    if pipeline.guess:
        guess = _guessed(shapes, layout, by_rules, keeps)
        kinds = {**guess.kinds, **by_rules}
        evidence = "rules and guess" if by_rules else "guess"
    elif pipeline.rules is None:
        return None
    return Known(view_of_kinds(kinds, shapes, layout, keeps), evidence, False, guess)


def view_of_kinds(
    kinds: Mapping[str, ModuleKind | None],
    shapes: Mapping[str, Shape],
    layout: Layout,
    keeps: Callable[[str], bool] = lambda name: True,
    *,
    is_declared: bool = False,
) -> LayoutView:
    """Return the tensors of a file in both layouts, by the kinds of all its modules.

    ModelError where one is missing.
    """
    for path, kind in kinds.items():  # PyTorch's side refuses these itself
        if layout == "burn" and kind is not None and not is_burn_leaf(kind) and not is_known_torch(kind):
            raise ModelError(f"{kind.name} is not a kind of module that Burn or PyTorch has", tensor=path)
    root = module_tree(shapes, kinds)
    view = view_of_torch(root, is_declared=is_declared) if layout == "torch" else view_of_burn(root)
    left = [name for name in view.unknown(layout) if name.rpartition(".")[0] not in kinds and keeps(name)]
    if left:
        view.check(left, layout)  # A module whose kind was refused has its own reason.
        others = f", nor of {len(left) - 1} others" if len(left) > 1 else ""
        raise ModelError(f"no rule names the kind of its module{others}", tensor=left[0], hint=WAYS_OUT)
    return view


def _guessed(
    shapes: Mapping[str, Shape],
    layout: Layout,
    by_rules: Mapping[str, ModuleKind],
    keeps: Callable[[str], bool],
) -> Guess:
    if layout != "torch":
        raise ModelError("only files in PyTorch's layout can be guessed", hint=WAYS_OUT)
    guess = guess_kinds(shapes)
    wanted: set[str] = set()  # the modules around the tensors that the filter keeps
    for name in filter(keeps, shapes):
        path, dot, _ = name.rpartition(".")
        while path not in wanted and (path or not dot):
            wanted.add(path)
            path = path.rpartition(".")[0]
    for path in list(guess.ambiguous):
        if path in by_rules or (path and path not in wanted):
            del guess.ambiguous[path]
    guess.evidence = {path: why for path, why in guess.evidence.items() if path in wanted}
    guess.tensors = tuple(filter(keeps, guess.tensors))
    if guess.ambiguous:
        path, why = next(iter(guess.ambiguous.items()))
        count = len(guess.ambiguous)
        raise AmbiguousError(
            f"ambiguous: {why}" if count == 1 else f"{count} modules are ambiguous, the first: {why}",
            guess=guess,
            tensor=path or None,
            hint=Ways(
                "name the kinds of these modules with rules={pattern: kind}",
                "pass like= a model or declaration",
                lead="",
            ),
        )
    return guess
