"""Page: docs/compatibility.md, made of what `matrix` saw."""

from __future__ import annotations

from typing import Any

BURNSTORE = "burnstore"
LETTERS = {
    "=": "read right",
    "~": "read right, under another dtype or quantization scheme",
    "u": "read right; tensors for which the reader's module has no place are reported as unused",
    "W": "**read wrong, without an error**",
    "e": "refused",
    "a": "the process is aborted",
}

_TOP = """# Who reads whose files

Made by `make matrix` from what the programs of `interop/` did: {releases}, each built from crates.io with
its CPU backend, each writing the same models and loading what the others wrote. `make interop` checks the rows of the
newest stable release with every change, `make interop-all` all of them.

{letters}

A column is a reader. Rows that look alike are one row; a model that a reader does not have is not counted.
"""

_BURNSTORE = """## What burnstore does

It reads every file above, equal in values, dtypes, shapes, ids, order and metadata, whichever release wrote it: the era
of a file is found by evidence ([decision 0003](decisions/0003-the-era-of-a-file-is-found-by-evidence.md)), and where
that does not suffice the file is refused.

It writes, for every model above, the bytes that the release asked for writes (`burn_version=`, 0.22 by default): the
tables hold for its files as they do for Burn's. To be read by Burn 0.19 a file must be written for 0.19, to be read by
any later one for 0.20 or later; `Bool` tensors do not cross the step from 0.20 to 0.21, nor quantized tensors that from
0.21 to 0.22. In 0.19 a tuple adds nothing to the paths of what it holds (`pair.weight` where later releases say
`pair.0.weight`): such a model needs its names changed as well. A file of one release becomes one of another by opening
it and saving it with that `burn_version`:

```python
>>> import numpy as np, burnstore as bs
>>> _ = bs.save({"weight": np.ones(3, np.float32)}, "old.bpk", burn_version="0.19", layout="burn")
>>> with bs.open("old.bpk") as old:
...     _ = bs.save(old, "new.bpk", burn_version="0.22")
>>> bs.open("new.bpk").metadata["version"]
'0.22.1'

```

Records of optimizers and schedulers that Burn 0.21 saved, turned into Burnpack by `burnstore.migrate`, are loaded by
Burn 0.22, which goes on with the training as Burn 0.21 does: the same parameters and learning rates after the next
steps, for Adam (AMSGrad, too), AdamW, Sgd with momentum, AdaGrad, RmsProp (centered, too), Adan; for the schedulers
Linear, Cosine, Exponential, Noam, Step and a composed one.
"""


def rendered(seen: dict[str, Any]) -> str:
    """The page."""
    releases = ", ".join(f"Burn {release}" for release in seen["releases"].values())
    letters = "\n".join(["| | |", "|---|---|", *(f"| `{letter}` | {means} |" for letter, means in LETTERS.items())])
    parts = [_TOP.format(releases=releases, letters=letters)]
    parts += [_table(writer, seen) for writer in seen["cells"]]
    return "\n".join([*parts, _BURNSTORE, _evidence(seen)])


def _table(writer: str, seen: dict[str, Any]) -> str:
    readers = [*seen["releases"], BURNSTORE]
    rows: dict[tuple[str, ...], list[str]] = {}
    for model, found in seen["cells"][writer].items():
        rows.setdefault(tuple(found.get(reader, "") for reader in readers), []).append(model)
    merged = _merged(rows)
    lines = [f"## Written by Burn {seen['releases'][writer]}", "", f"| {' | '.join(['models', *readers])} |"]
    lines += ["|---" * (len(readers) + 1) + "|"]
    for letters, models in merged:
        shown = ", ".join(models) if len(models) <= 8 else f"{len(models)} models: {', '.join(models[:4])} …"
        lines.append(f"| {shown} | {' | '.join(f'`{letter}`' if letter else '-' for letter in letters)} |")
    return "\n".join([*lines, ""])


def _merged(rows: dict[tuple[str, ...], list[str]]) -> list[tuple[tuple[str, ...], list[str]]]:
    """Rows that differ only in readers which lack the model go into the one that says more."""
    merged: list[tuple[tuple[str, ...], list[str]]] = []
    for letters, models in sorted(rows.items(), key=lambda row: (row[0].count(""), -len(row[1]))):
        for known, others in merged:
            if all(mine in ("", theirs) for mine, theirs in zip(letters, known, strict=True)):
                others += models
                break
        else:
            merged.append((letters, list(models)))
    return merged


def _evidence(seen: dict[str, Any]) -> str:
    lines = ["## What the refusing programs said", "", "| written → read by | model | said |", "|---|---|---|"]
    for pair, texts in seen["said"].items():
        for text, model in list(texts.items())[:4]:
            lines.append(f"| {pair} | {model} | {_cell(text)} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return "`" + text.replace("|", "\\|").replace("`", "'")[:200] + "`"
