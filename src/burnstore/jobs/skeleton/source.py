"""Rust source of a tree of modules: which structs there are, what their parameters are, and how they are written."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .expression import Expression, Template, call, vec
from .layers import OPTION_DEFAULTS, PLACES
from .tree import Layer, Node, Series, Struct, call_some

LONGEST_TUPLE = 10
_RUST = """\
as async await become box break const continue crate do dyn else enum extern false final fn for gen if impl in let loop
macro match mod move mut override priv pub ref return self Self static struct super trait true try type typeof unsafe
unsized use virtual where while yield abstract
_ device mapper"""
_KEYWORDS = frozenset(_RUST.split())
"""Words that cannot be fields: those that Rust keeps, and those that the derive of `Module` has for itself."""

_PRELUDE = """\
Bool BurnpackStore Clone Copy Debug Default Device Drop Err Fn From Initializer Int Into Iterator Module ModuleSnapshot
ModuleStore None Ok Option Param ParamId Result Self Send Some String Sync Tensor Vec Box"""
_LAYERS = """\
BatchNorm BiGru BiLstm BiRnn Dropout Embedding Gelu GroupNorm Gru Identity InstanceNorm LayerNorm Linear Lstm Relu
RmsNorm Rnn Sigmoid Tanh"""

_IMPORTS = {
    **dict.fromkeys(_LAYERS.split(), "burn::nn"),
    **{f"PaddingConfig{n}d": "burn::nn" for n in (1, 2, 3)},
    **dict.fromkeys(("Param", "ParamId", "Initializer"), "burn::module"),
    **dict.fromkeys(("Int", "Bool"), "burn::tensor"),
    **PLACES,
}
"""Where Burn has what a skeleton uses; a configuration is where its layer is."""

_TAKEN = frozenset((*_PRELUDE.split(), *_IMPORTS, *(f"{name}Config" for name in _IMPORTS)))


@dataclass
class _Type:
    """A struct of Rust: instances of one class of PyTorch that fit together."""

    name: str
    instances: list[Struct] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    """Names as PyTorch has them, and their types in Rust, without Option."""

    order: dict[str, str] = field(default_factory=dict)
    template: Template = field(default_factory=Template)
    made: dict[str, Expression] = field(default_factory=dict)
    soft: dict[str, str] = field(default_factory=dict)
    """Children without tensors that are not declared, and what PyTorch shows."""

    def is_optional(self, name: str) -> bool:
        return any(name not in instance.fields for instance in self.instances)


class Source:
    """The source of one model."""

    def __init__(self, root: Node, name: str) -> None:
        self._names: set[str] = set()
        self._types: dict[str, list[_Type]] = {}
        self._of: dict[int, _Type] = {}
        self._order: list[_Type] = []
        self._enums: dict[tuple[str, ...], str] = {}
        self._series: dict[int, str] = {}
        self.is_wrapped = not isinstance(root, Struct)
        self.root = root if isinstance(root, Struct) else Struct("", name, {"layers": root})
        self.root.name = name
        self._structs: dict[str, list[Struct]] = {}
        for struct in _structs(self.root, {}):
            self._structs.setdefault(struct.key, []).append(struct)
        structs = [struct for found in self._structs.values() for struct in found]
        self.words = _identifiers(name for struct in structs for name in (*struct.fields, *struct.soft))
        self.name = self._free(_camel(name))
        self._type(self.root, name)

    # --- types ----------------------------------------------------------------------------------------------------

    def _type(self, node: Node, label: str) -> str:
        if isinstance(node, Layer):
            return node.made.type
        if isinstance(node, Series):
            if id(node) not in self._series:
                self._series[id(node)] = self._series_type([self._type(item, label) for item in node.items], label)
            return self._series[id(node)]
        if id(node) not in self._of:
            self._resolve(node.key)
        return self._of[id(node)].name

    def _series_type(self, types: Sequence[str], label: str) -> str:
        distinct = tuple(dict.fromkeys(types))
        if len(distinct) == 1:
            return f"Vec<{distinct[0]}>"
        if len(types) <= LONGEST_TUPLE:
            return f"({', '.join(types)})"
        if distinct not in self._enums:
            self._enums[distinct] = self._free(f"{_camel(label)}Layer")
        return f"Vec<{self._enums[distinct]}>"

    def _resolve(self, key: str) -> None:
        """Sort the instances of a class into as few structs as fit them, and find what their constructors share."""
        instances = self._structs[key]
        fields = [{name: self._type(node, name) for name, node in each.fields.items()} for each in instances]
        found = self._types.setdefault(key, [])
        for instance, types in zip(instances, fields, strict=True):
            fitting = next((each for each in found if _fits(each.fields, types)), None)
            if fitting is None:
                fitting = _Type(self.name if instance is self.root else self._free(_camel(instance.name)))
                found.append(fitting)
            fitting.instances.append(instance)
            fitting.fields = _merged(fitting.fields, types)
            fitting.order = _merged(fitting.order, instance.order)
            self._of[id(instance)] = fitting
        for each in found:
            self._describe(each)
            self._order.append(each)

    def _describe(self, found: _Type) -> None:
        for name, kind in found.fields.items():
            column = [self._expression(each.fields[name]) if name in each.fields else None for each in found.instances]
            if None in column:
                absent = Expression("None", f"Option<{kind}>")
                column = [absent if made is None else call_some(made) for made in column]
            given = [made for made in column if made is not None]
            found.made[name] = found.template.unify(given, self.words[name], OPTION_DEFAULTS)
        for name in dict.fromkeys(name for each in found.instances for name in each.soft):
            held = [each.soft.get(name) for each in found.instances]
            made = [value for value in held if isinstance(value, Expression)]
            if name not in found.fields and len(made) == len(held) and len({each.type for each in made}) == 1:
                found.made[name] = found.template.unify(made, self.words[name], OPTION_DEFAULTS)
                found.fields[name] = made[0].type
            elif name not in found.fields:
                shown = next(value for value in held if value is not None)
                found.soft[name] = shown.render() if isinstance(shown, Expression) else shown
        places = {name: place for place, name in enumerate(found.order)}
        ordered = sorted(found.fields, key=lambda name: places.get(name, places.get(name.removesuffix("_norm"), -1)))
        found.fields = {name: found.fields[name] for name in ordered}

    def _free(self, name: str) -> str:
        wanted, count = name, 1
        if wanted in _TAKEN:
            wanted = name = f"{name}Module"
        while wanted in self._names:
            count += 1
            wanted = f"{name}{count}"
        self._names.add(wanted)
        return wanted

    # --- expressions ----------------------------------------------------------------------------------------------

    def _expression(self, node: Node) -> Expression:
        if isinstance(node, Layer):
            return node.made
        if isinstance(node, Struct):
            found = self._of[id(node)]
            place = next(place for place, each in enumerate(found.instances) if each is node)
            named = zip(found.template.parameters, found.template.arguments(place), strict=True)
            parts = [made.named(name) for name, made in named]
            return call(f"{found.name}::init", found.name, *parts, Expression("device", "&Device"))
        items = [self._expression(item) for item in node.items]
        kind = self._series[id(node)]
        if kind.startswith("("):
            return Expression(f"({', '.join('{}' for _ in items)})", kind, tuple(items))
        element = kind[4:-1]
        variants = self._variants(element)
        if variants:
            items = [call(f"{element}::{variants[item.type]}", element, item) for item in items]
        return vec(items, element)

    def _variants(self, enum: str) -> dict[str, str]:
        """Return the variants of an enum by the type of their payload; none if it is no enum of ours."""
        for types, name in self._enums.items():
            if name == enum:
                found: dict[str, str] = {}
                for kind in types:
                    words = "".join(re.findall(r"\w+", kind.replace("Vec<", "").replace("Option<", "")))
                    variant, count = words, 1
                    while variant in found.values():
                        count += 1
                        variant = f"{words}{count}"
                    found[kind] = variant
                return found
        return {}

    # --- text -----------------------------------------------------------------------------------------------------

    def declarations(self, forward: str | None) -> str:
        """Return the structs and enums; ``forward`` is the body of the model's own forward pass, if there is one."""
        parts = []
        for found in reversed(self._order):
            own = forward if found.name == self.name else None
            parts.append(_declared(found, own, self.words))
        for types, name in self._enums.items():
            variants = self._variants(name)
            lines = "".join(f"    {variants[kind]}({kind}),\n" for kind in types)
            parts.append(f"#[derive(Module, Debug)]\npub enum {name} {{\n{lines}}}\n")
        return "\n".join(parts)

    def remaps(self) -> list[tuple[str, str]]:
        """Return the renames of a file's tensors that Rust's identifiers ask for, the deepest first."""
        node = self.root.fields["layers"] if self.is_wrapped else self.root
        found = dict(_renames(node, "", 0, self.words))
        ordered = sorted(found.items(), key=lambda item: -item[1][1])
        renames = [(pattern, replacement) for pattern, (replacement, _) in ordered]
        return [*renames, ("^", "layers.")] if self.is_wrapped else renames

    def imports(self, text: str) -> str:
        """Return the lines that import what the text uses of Burn."""
        used: dict[str, set[str]] = {"burn::module": {"Module"}, "burn::tensor": {"Device"}}
        words = set(re.findall(r"(?<!::)\b[A-Z]\w*\b", re.sub(r"//.*", "", text)))
        for word in words - self._names:
            place = _IMPORTS.get(word) or _IMPORTS.get(word.removesuffix("Config"))
            if place is not None:
                used.setdefault(place, set()).add(word)
        if "Tensor" in words:
            used["burn::tensor"].add("Tensor")
        lists = {place: ", ".join(sorted(names)) for place, names in sorted(used.items())}
        braced = {place: f"{{{names}}}" if "," in names else names for place, names in lists.items()}
        return "".join(f"use {place}::{names};\n" for place, names in braced.items())


def _structs(node: Node, above: dict[str, int]) -> Iterator[Struct]:
    """Yield all structs; modules of one class inside each other are distinguished by depth."""
    if isinstance(node, Series):
        for item in node.items:
            yield from _structs(item, above)
    if isinstance(node, Struct):
        depth = above.get(node.key, 0)
        below = {**above, node.key: depth + 1}
        if depth:
            node.key = f"{node.key} within itself, {depth}"
        yield node
        for child in node.fields.values():
            yield from _structs(child, below)


def _fits(fields: dict[str, str], types: dict[str, str]) -> bool:
    shared = [name for name in types if name in fields]
    in_order = shared == [name for name in fields if name in types]
    return in_order and (bool(shared) or not fields) and all(fields[name] == types[name] for name in shared)


def _merged(fields: dict[str, str], types: dict[str, str]) -> dict[str, str]:
    """Return both in one order, in which what is new stands after what it follows."""
    names = list(fields)
    place = 0
    for name in types:
        if name in names:
            place = names.index(name) + 1
        else:
            names.insert(place, name)
            place += 1
    return {name: fields.get(name) or types.get(name, "") for name in names}


def _declared(found: _Type, forward: str | None, words: Mapping[str, str]) -> str:
    sample = found.instances[0]
    lines = [f"/// PyTorch's `{sample.shown}`.\n"] if sample.shown else []
    lines.append(f"#[derive(Module, Debug)]\npub struct {found.name} {{\n")
    for name, kind in found.fields.items():
        node = next((each.fields[name] for each in found.instances if name in each.fields), None)
        if isinstance(node, Series) and node.shown:
            lines.append(f"    /// {node.shown}\n")
        optional = node is not None and found.is_optional(name)
        lines.append(f"    pub {words[name]}: {f'Option<{kind}>' if optional else kind},\n")
    lines += [f"    // {name}: {shown}\n" for name, shown in found.soft.items()]
    parameters = "".join(f"{name}: {kind}, " for name, kind in found.template.parameters.items())
    device = "device" if any("device" in made.render() for made in found.made.values()) else "_device"
    lines.append(
        f"}}\n\nimpl {found.name} {{\n    pub fn init({parameters}{device}: &Device) -> Self {{\n        Self {{\n"
    )
    for name in map(str, found.fields):
        word, value = words[name], found.made[name].render()
        lines.append(f"            {word},\n" if word == value else f"            {word}: {value},\n")
    lines.append("        }\n    }\n")
    if forward is not None:
        lines.append(f"\n{forward}")
    else:
        signature = f" of PyTorch: {sample.signature}" if sample.signature else ""
        lines.append(f"\n    // The forward pass{signature}\n    pub fn forward(&self) {{\n        todo!()\n    }}\n")
    lines.append("}\n")
    return "".join(lines)


def _renames(node: Node, pattern: str, depth: int, words: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, int]]]:
    if isinstance(node, Series):
        for item in node.items:
            yield from _renames(item, rf"{pattern}\d+\.", depth + 1, words)
    if isinstance(node, Struct):
        for name, child in node.fields.items():
            if words[name] != name:
                yield rf"^({pattern}){re.escape(name)}(\.|$)", (f"${{1}}{words[name]}${{2}}", depth)
            yield from _renames(child, rf"{pattern}{re.escape(name)}\.", depth + 1, words)


def identifier(name: str) -> str:
    """Return a name as Rust takes it for a field; a raw identifier would be spelled in the file, too."""
    spelled = unicodedata.normalize("NFC", name)
    word = "".join(letter if f"a{letter}".isidentifier() else "_" for letter in spelled)
    word = word if word.isidentifier() else f"_{word}"
    return f"{word}_" if word in _KEYWORDS else word


def _identifiers(names: Iterable[str]) -> dict[str, str]:
    """Return names with identifiers of their own; a name that is one keeps it."""
    found = {name: identifier(name) for name in names}
    taken = {name for name, word in found.items() if name == word}
    for name, word in found.items():
        while name != word and word in taken:
            word += "_"
        taken.add(word)
        found[name] = word
    return found


def _camel(name: str) -> str:
    words = [word for word in re.split(r"\W|_", name) if word]
    joined = "".join(word[:1].upper() + word[1:] for word in words)
    return joined if joined[:1].isalpha() else f"Module{joined}"
