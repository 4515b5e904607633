"""The machine-readable tables of Burn's layers (burn_nn_0_22_1.json), read as the file's "language" says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLES = json.loads((Path(__file__).parent / "burn_nn_0_22_1.json").read_text(encoding="utf-8"))
MODULES: dict[str, dict[str, Any]] = TABLES["modules"]


@dataclass(frozen=True)
class Leaf:
    path: str
    shape: tuple[int, ...]
    containers: tuple[str, ...]
    initial: str
    words: dict[str, Any]

    def bound(self, kind: str) -> float | None:
        """The number in ``kind(number)``, None if the initial value is of another kind."""
        if not self.initial.startswith(f"{kind}("):
            return None
        return float(evaluate(self.initial[len(kind) :], self.words))


def evaluate(text: str, words: dict[str, Any]) -> Any:
    return eval(text, {"__builtins__": {}}, {**words, "prod": math.prod, "sqrt": math.sqrt})


def with_defaults(module: str, words: dict[str, Any]) -> dict[str, Any]:
    return {**MODULES[module]["options"], **words}


def leaves(module: str, words: dict[str, Any]) -> Iterator[Leaf]:
    """The tensors of a module made with these words, from "leaves" and "children"."""
    table, words = MODULES[module], with_defaults(module, words)
    own = f"Struct:{module}"
    for name, shape, condition, initial in table.get("leaves", ()):
        if condition is None or evaluate(condition, words):
            yield Leaf(name, tuple(evaluate(shape, words)), (own,), initial, words)
    for i in range(evaluate(table.get("repeat", "1"), words)):
        for field, kind, passed, condition, *initial in table.get("children", ()):
            if condition is not None and not evaluate(condition, words):
                continue
            vec = ("Vec",) if "{i}" in field else ()
            inner = {word: evaluate(text, words) for word, text in passed.items()}
            for leaf in leaves(kind, inner):
                how, of = (initial[0], words) if initial else (leaf.initial, leaf.words)
                path = f"{field.format(i=i)}.{leaf.path}"
                yield Leaf(path, leaf.shape, (own, *vec, *leaf.containers), how, of)


def default_params(module: str, words: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """The paths and shapes of the default configuration, from "params"."""
    table, words = MODULES[module], with_defaults(module, words)
    return [
        (path.format(i=i), tuple(evaluate(shape, words)))
        for i in range(evaluate(table.get("repeat", "1"), words))
        for path, shape in table["params"]
    ]
