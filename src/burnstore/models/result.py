"""The result of a load, tensor by tensor, as data and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import counted, printable
from ..tensor.note import Note
from ..tensor.plain import json_text
from ..tensor.tabular import Result

_SHOWN = 10
_LONGEST_NAME, _LONGEST_NOTE = 200, 2_000
_SIMILAR = 0.70
_MOST_COMPARED = 2000
_MOST_STEPS = 2_000_000

ErrorKind = Literal["ShapeMismatch", "DTypeMismatch", "AdapterError", "LoadError"]


class MissingTensor(str):
    """The path of a parameter without a tensor in the file, with the types that contain it."""

    __slots__ = ("container_path",)

    container_path: str

    @classmethod
    def at(cls, path: str, container_path: str) -> MissingTensor:
        """Return a missing tensor with this path in these containers (Burn's spelling)."""
        missing = cls(path)
        missing.container_path = container_path
        return missing

    def to_dict(self) -> dict[str, str]:
        """Return plain data for JSON."""
        return {"path": json_text(self), "containers": self.container_path}


@dataclass(frozen=True, slots=True)
class ApplyError:
    """The reason why one tensor could not be applied. Unpacks as (path, error)."""

    kind: ErrorKind
    path: str
    message: str
    expected: Any = None
    found: Any = None

    def __iter__(self) -> Iterator[Any]:
        yield self.path
        yield self

    def to_dict(self) -> dict[str, str]:
        """Return plain data for JSON."""
        return {"path": json_text(self.path), "kind": self.kind, "message": json_text(self.message)}

    def __str__(self) -> str:
        return self.message


@dataclass(slots=True)
class ApplyResult(Result):
    """The result of a load.

    ``applied`` tensors are in the model, in the model's order; the filter excluded ``skipped`` ones; ``missing``
    parameters have no tensor in the file; ``unused`` tensors have no parameter; ``errors`` did not fit. ``notes`` are
    not errors but worth knowing, such as a pattern that matched nothing.

    >>> print(ApplyResult(applied=["a.weight"], missing=[MissingTensor.at("a.bias", "")], unused=["a.bais"]))
    ┌─ load
    │
    ├─ applied: 1 tensor
    ├─ skipped: 0 tensors
    ├─ missing: 1 tensor
    ├─ unused:  1 tensor
    ├─ errors:  0
    │
    ├─ missing
    │    a.bias
    │      did you mean 'a.bais'?
    │
    ├─ unused
    │    a.bais
    │
    └─
    """

    applied: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    missing: list[MissingTensor] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    errors: list[ApplyError] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there were no errors, and something was applied unless doing nothing was allowed.

        A result is true in conditions if it is ok. Missing tensors, which ``allow_partial`` allows, do not matter here.
        """
        return not self.errors and super(ApplyResult, self).ok

    @property
    def is_complete(self) -> bool:
        """Whether there were no errors and no missing tensors."""
        return not self.errors and not self.missing

    def is_success(self) -> bool:
        """Return whether there were no errors; missing tensors do not matter here."""
        return not self.errors

    def suggestion(self, path: str) -> str | None:
        """Return the unused tensor whose name is most similar to a missing path."""
        return _suggestion(path, self.unused)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, refused: bool = False) -> str:
        """Return the report; of a refused load, which applied nothing, it states how many tensors fit."""
        lines = ["┌─ load, refused: the model is unchanged" if refused else "┌─ load", "│"]
        for name, values in (
            ("fitting: " if refused else "applied: ", self.applied),
            ("skipped: ", self.skipped),
            ("missing: ", self.missing),
            ("unused:  ", self.unused),
        ):
            lines.append(f"├─ {name}{counted(len(values), 'tensor')}")
        lines += [f"├─ errors:  {len(self.errors)}", "│"]
        if self.missing:
            lines.append("├─ missing")
            lines += self._enum_hint()
            for path in self.missing[:_SHOWN]:
                lines.append(f"│    {printable(path)}")
                meant = self.suggestion(path)
                if meant is not None:
                    lines.append(f"│      did you mean {printable(meant)!r}?")
            lines += _more(self.missing)
        for title, texts in (("unused", self.unused), ("errors", list(map(str, self.errors))), ("notes", self.notes)):
            if texts:
                lines.append(f"├─ {title}")
                most = _LONGEST_NOTE if title == "notes" else _LONGEST_NAME
                lines += [f"│    {printable(text, most)}" for text in texts[:_SHOWN]]
                lines += _more(texts)
        lines.append("└─")
        return "\n".join(lines)

    def _enum_hint(self) -> list[str]:
        inside = sum("Enum:" in path.container_path for path in self.missing)
        if not inside:
            return []
        return [
            f"│    {inside} of these are in an enum: Burn's paths contain the enum variant, PyTorch's do not.",
            "│    Load with skip_enum_variants(True), or insert the variant with a key remapping.",
        ]


def _more(values: Sequence[Any]) -> list[str]:
    return [f"│    … and {len(values) - _SHOWN} more", "│"] if len(values) > _SHOWN else ["│"]


def _suggestion(path: str, unused: Sequence[str]) -> str | None:
    segments = path.split(".")
    for at in range(1, len(segments) - 1):
        segment = segments[at]
        # CamelCase in the middle of a path looks like an enum variant, which PyTorch's paths do not have.
        if len(segment) > 1 and segment[0].isupper() and any(c.islower() for c in segment[1:]):
            without = ".".join(segments[:at] + segments[at + 1 :])
            if without in unused:
                return without
            break
    candidates = unused
    if len(unused) > _MOST_COMPARED:  # A comparison takes 20 µs, so among very many compare those with the same ending.
        candidates = [other for other in unused if other.endswith(segments[-1])][:_MOST_COMPARED]
    best, score, steps = None, _SIMILAR, _MOST_STEPS
    for other in candidates:
        shorter, longer = sorted((len(path), len(other)))
        if (2 + shorter / (longer or 1)) / 3 < score:  # too different in length
            continue
        steps -= shorter * longer  # Names may have 64 KiB, and a hint is not worth minutes.
        if steps < 0:
            break
        found = similarity(path, other)
        if found > score or (best is None and found == score):
            best, score = other, found
    return best


def similarity(first: str, second: str) -> float:
    """Return how similar two names are, from 0 to 1, by the Jaro variant that Burn's suggestions use.

    >>> round(similarity("dixon", "dicksonx"), 5), round(similarity("norm.gamma", "norm.weight"), 5)
    (0.76667, 0.71515)
    """
    if not first or not second or len(first) == len(second) == 1:
        return float(first == second)
    window = max(len(first), len(second)) // 2 - 1
    taken = [False] * len(second)
    matches = disorder = 0
    last = -1
    for at, character in enumerate(first):
        for other in range(max(0, at - window), min(len(second), at + window + 1)):
            if not taken[other] and second[other] == character:
                taken[other] = True
                matches += 1
                disorder += other < last
                last = other
                break
    if not matches:
        return 0.0
    return (matches / len(first) + matches / len(second) + (matches - disorder) / matches) / 3
