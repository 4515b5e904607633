"""Files and pages that the tests look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import burnstore as bs

HOSTILE = [
    "</script><img src=x onerror=window.pwned=1>",
    "<!--<script>",
    "\u2028\u2029\u202e[bidi]\x1b[31m",
    "'\"&amp;${window.pwned=1}",
    "__proto__.constructor",
    "toString",
    "..",
    "",
]


def arrays() -> dict[str, np.ndarray]:
    """A small model: modules in modules, several dtypes, values of every kind."""
    rng = np.random.default_rng(11)
    found: dict[str, np.ndarray] = {"embed.weight": rng.standard_normal((50, 16)).astype(np.float32)}
    for layer in range(12):
        path = f"layers.{layer}"
        found[f"{path}.attention.query.weight"] = rng.standard_normal((16, 16)).astype(np.float32)
        found[f"{path}.mlp.up.weight"] = (rng.standard_normal((64, 16)) * (layer + 1)).astype(np.float16)
        found[f"{path}.norm.gamma"] = np.ones(16, np.float32)
    found["layers.3.mlp.up.weight"][1, 2] = np.nan
    found["layers.5.attention.query.weight"][0, 0] = 900.0
    found["layers.7.attention.query.weight"][:2, 0] = np.inf
    found["steps"] = np.array(1 << 60, np.int64)
    found["mask"] = np.array([True, False, True])
    found["empty"] = np.zeros((0, 4), np.float32)
    return found


def page_of(folder: Path, named: dict[str, np.ndarray], name: str = "model.bpk", **options: object) -> Path:
    """The page of a file with these tensors."""
    bs.save(named, folder / name, overwrite=True, layout="burn")
    page = folder / f"{name}.html"
    bs.report(folder / name, output=page, overwrite=True, **options)  # type: ignore[arg-type]
    return page
