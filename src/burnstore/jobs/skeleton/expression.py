"""Rust expressions that make modules, and what several of them have in common.

The constructor of a struct that a model has many times over is one expression with holes: what differs between the
instances becomes a parameter, what is the same stays a literal. `unify` finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Expression:
    """Rust source of a value: a text with places for other expressions, and its type.

    ``name`` is what a parameter is called that stands for it.
    """

    text: str
    type: str
    parts: tuple[Expression, ...] = ()
    name: str = ""
    options: tuple[tuple[str, Expression], ...] = ()
    """Settings that differ from Burn's default, as calls of ``with_<name>``."""

    end: str = ""
    is_copy: bool = False

    def render(self) -> str:
        """Return the source."""
        if self.text == _LIST:
            return _rendered_list(self.parts)
        settings = "".join(f".with_{name}({value.render()})" for name, value in self.options)
        return self.text.format(*(part.render() for part in self.parts)) + settings + self.end

    def named(self, name: str) -> Expression:
        """Return the same expression with another name for its parameter."""
        return replace(self, name=name)


_LIST = "vec!"


def vec(items: Sequence[Expression], element: str) -> Expression:
    """Return a Vec."""
    return Expression(_LIST, f"Vec<{element}>", tuple(items))


def _rendered_list(parts: Sequence[Expression]) -> str:
    rendered = [part.render() for part in parts]
    if len(rendered) > 1 and len(set(rendered)) == 1:
        return f"(0..{len(rendered)}).map(|_| {rendered[0]}).collect()"
    return f"vec![{', '.join(rendered)}]"


def number(value: int, name: str = "") -> Expression:
    """Return a usize."""
    return Expression(str(int(value)), "usize", name=name, is_copy=True)


def real(value: float, name: str = "") -> Expression:
    """Return an f64."""
    return Expression(repr(float(value)), "f64", name=name, is_copy=True)


def flag(value: object, name: str = "") -> Expression:
    """Return a bool."""
    return Expression("true" if value else "false", "bool", name=name, is_copy=True)


def array(values: Sequence[int], name: str = "", names: Sequence[str] = ()) -> Expression:
    """Return an array of usize."""
    parts = tuple(number(value, names[place] if names else name) for place, value in enumerate(values))
    places = ", ".join("{}" for _ in parts)
    return Expression(f"[{places}]", f"[usize; {len(parts)}]", parts, name, is_copy=True)


def call(function: str, type: str, *parts: Expression, name: str = "") -> Expression:
    """Return a call, such as ``Some(x)``."""
    return Expression(f"{function}({', '.join('{}' for _ in parts)})", type, parts, name)


@dataclass
class Template:
    """An expression with holes, the holes as parameters, and what each instance puts there."""

    parameters: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[Expression]] = field(default_factory=dict)

    def arguments(self, instance: int) -> list[Expression]:
        """Return what an instance passes, in the order of the parameters."""
        return [self.values[name][instance] for name in self.parameters]

    def unify(self, expressions: Sequence[Expression], name: str, defaults: Mapping[str, Expression]) -> Expression:
        """Return the expression that all of these are instances of, with holes for what differs.

        ``defaults`` are the values of options that an expression does not set.
        """
        first = expressions[0]
        if all(other == first for other in expressions):
            return first
        alike = len({(other.text, other.type, other.end, len(other.parts)) for other in expressions}) == 1
        options = {option for other in expressions for option, _ in other.options}
        known = all(f"{first.type}.{option}" in defaults for option in options)
        known = known or len({tuple(option for option, _ in other.options) for other in expressions}) == 1
        if not alike or not (first.parts or options) or not known:
            return self._hole(expressions, name)
        parts = tuple(
            self.unify(column, "_".join(filter(None, (name, column[0].name))), defaults)
            for column in zip(*(other.parts for other in expressions), strict=True)
        )
        return replace(first, parts=parts, options=tuple(self._options(expressions, name, defaults)))

    def _options(
        self, expressions: Sequence[Expression], name: str, defaults: Mapping[str, Expression]
    ) -> Iterator[tuple[str, Expression]]:
        each_type = expressions[0].type
        given = [dict(other.options) for other in expressions]
        for option in dict.fromkeys(option for each in given for option in each):
            column = [each[option] if option in each else defaults[f"{each_type}.{option}"] for each in given]
            yield option, self.unify(column, "_".join(filter(None, (name, option))), defaults)

    def _hole(self, expressions: Sequence[Expression], name: str) -> Expression:
        """Return a parameter for these values; one that has the same values everywhere serves again."""
        column = list(expressions)
        kind = column[0].type
        if column[0].is_copy:
            for known, values in self.values.items():
                if self.parameters[known] == kind and _rendered(values) == _rendered(column):
                    return Expression(known, kind, name=known, is_copy=True)
        name = "device_" if name == "device" else name
        free, count = name, 1
        while free in self.parameters:
            count += 1
            free = f"{name}_{count}"
        self.parameters[free], self.values[free] = kind, column
        return Expression(free, kind, name=free, is_copy=column[0].is_copy)


def _rendered(expressions: Sequence[Expression]) -> list[str]:
    return [each.render() for each in expressions]
