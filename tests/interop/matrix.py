"""Matrix: who reads whose files, found by trying, and docs/compatibility.md made of it.

    cd tests && python -m interop.matrix            run every version, note what was seen, write the page
    cd tests && python -m interop.matrix --check    the same, but only say what differs from what is noted

What was seen is kept in ``matrix.json``; the page is made of that alone, so that one version on a machine is enough to
check its own rows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import burnstore as bs
from burnstore.tensor.dtype import DType
from burnstore.tensor.quantization import encode

from . import across, page
from .program import ROOT, VERSIONS, Loading, Program, Tensor, program
from .zoo import QUANTIZED

SEEN = Path(__file__).with_name("matrix.json")
PAGE = ROOT / "docs" / "compatibility.md"
BURNSTORE = "burnstore"

Cells = dict[str, dict[str, dict[str, str]]]
"""Writer, model, reader: what became of the file."""


def observe(versions: Sequence[str], folder: Path) -> dict[str, Any]:
    """Let every version write its zoo, and every version and burnstore read it."""
    programs = {version: program(version) for version in versions}
    cells: Cells = {}
    said: dict[str, dict[str, str]] = {}
    for writer, writing in programs.items():
        place = folder / writer
        place.mkdir()
        writing.gen(place)
        for model in writing.models:
            if not (place / f"{model}.bpk").exists():
                continue
            seen = cells.setdefault(writer, {}).setdefault(model, {})
            file = place / f"{model}.bpk"
            wanted = _wanted(place / f"{model}.json")
            for reader, reading in programs.items():
                if model in reading.models:
                    seen[reader], text = _outcome(reading, model, file, wanted)
                    if text:
                        said.setdefault(f"{writer} → {reader}", {}).setdefault(_plain(text, place), model)
            seen[BURNSTORE] = _ours(file, wanted)
    return {
        "releases": {version: each.release for version, each in programs.items()},
        "cells": cells,
        "said": said,
    }


def _wanted(path: Path) -> list[Tensor]:
    return [Tensor.from_json(tree) for tree in json.loads(path.read_text(encoding="utf-8"))["tensors"]]


def _outcome(reading: Program, model: str, file: Path, wanted: list[Tensor]) -> tuple[str, str]:
    """What Burn made of a file, as the letter of the table, and what it said."""
    # The versions have different schemes, so the file has not all that the module holds.
    loading = reading.load(model, file, *(["--partial"] if model == QUANTIZED else []))
    if not loading.ok:
        aborted = loading.error is not None and loading.error.startswith("exit status")
        return ("a" if aborted else "e"), str(loading.error)
    return _values(file, wanted, loading), ""


def _values(file: Path, wanted: list[Tensor], loading: Loading) -> str:
    found = {tensor.path: tensor for tensor in loading.tensors}
    letter = "="
    with bs.open(file) as original:
        for tensor in wanted:
            got = found.get(tensor.path)
            if got is None and tensor.path in loading.result["unused"]:
                letter = max(letter, "u", key="=~u".index)
                continue
            if got is None or got.shape != tensor.shape:
                return "W"
            if (got.sha256, got.dtype) == (tensor.sha256, tensor.dtype):
                continue
            if got.sha256 not in _other_forms(original[tensor.path], got.dtype):
                return "W"
            letter = max(letter, "~", key="=~u".index)
    return letter


def _other_forms(snapshot: bs.TensorSnapshot, dtype: DType) -> set[str]:
    """The digests that the same values may have in another dtype or quantization scheme."""
    scheme = snapshot.dtype.scheme
    if scheme is not None:
        quantized = snapshot.quantized()
        native = replace(quantized, scheme=replace(scheme, store=type(scheme.store)("Native"), old_style=False))
        return {_digest(snapshot.to_bytes()), _digest(encode(native)), _digest(quantized.dequantize().tobytes())}
    try:
        return {_digest(snapshot.numpy().astype(dtype.numpy).tobytes())}
    except bs.errors.DTypeError:
        return set()


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _ours(file: Path, wanted: list[Tensor]) -> str:
    try:
        with bs.open(file) as found:
            got = across.described(found)
    except bs.BurnstoreError:
        return "e"
    same = [(t.path, t.shape, t.param_id, t.sha256) for t in got] == [
        (t.path, t.shape, t.param_id, t.sha256) for t in wanted
    ]
    return "=" if same else "W"


def _plain(text: str, place: Path) -> str:
    """An error's text without what differs from run to run."""
    text = re.sub(r" \(/[^)]*\.rs:\d+:\d+\)", "", text.replace(str(place), "…"))
    return re.sub(r"\s+", " ", text)[:300]


def seen() -> dict[str, Any]:
    """What was noted."""
    noted: dict[str, Any] = json.loads(SEEN.read_text(encoding="utf-8"))
    return noted


def differences(noted: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Where what was seen now is not what is noted, of the versions that ran now."""
    versions = now["releases"]
    found = [f"Burn {v} is {release}, noted as {noted['releases'].get(v)}" for v, release in versions.items()
             if noted["releases"].get(v) != release]  # fmt: skip
    for writer, models in now["cells"].items():
        for model, readers in models.items():
            known = noted["cells"].get(writer, {}).get(model, {})
            found += [
                f"{model} by {writer}, read by {reader}: {letter!r}, noted as {known.get(reader)!r}"
                for reader, letter in readers.items()
                if known.get(reader) != letter
            ]
    return found


def main() -> int:
    """Run what there is, and write or compare."""
    parser = argparse.ArgumentParser(prog="python -m interop.matrix", description="who reads whose files")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--versions", nargs="*", default=VERSIONS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="burnstore-matrix-") as folder:
        now = observe(options.versions, Path(folder))
    if options.check:
        found = differences(seen(), now)
        print("\n".join(found) or "as noted")
        return int(bool(found))
    SEEN.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page.rendered(now), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
