"""Fuzz across: random contents and mutants, before Burn and burnstore alike.

    cd tests && python -m interop.fuzz --contents 20000 --mutants 100000 --seed 1

Contents are written by burnstore and read by Burn, written by Burn and read by burnstore, and the bytes of both files
compared. Mutants of `.bpk` files go to both readers, which must agree as `across` says. The figures come last; a
disagreement is kept as a file in ``tests/fuzz/crashers`` and makes the exit status 1.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.corpus import Corpus
from fuzz.run import CRASHERS

from . import across
from .contents import content
from .program import NEWEST, Program, program

_BATCH = 500


@dataclass(slots=True)
class Figures:
    """What was seen, counted, and what should not have been."""

    outcomes: Counter[str] = field(default_factory=Counter)
    disagreements: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        return self.outcomes.total()

    def __str__(self) -> str:
        lines = [f"  {count:>9,}  {outcome}" for outcome, count in self.outcomes.most_common()]
        return "\n".join([*lines, *(f"  {text}" for text in self.disagreements[:20])])


def contents(burn: Program, seed: int, numbers: range, folder: Path) -> Figures:
    """Write each content on both sides, let each side read the other's file, and compare the bytes."""
    figures = Figures()
    for batch in _batches(numbers):
        made = {index: content(seed, index) for index in batch}
        ours = {index: folder / f"{index}.ours.bpk" for index in batch}
        theirs = {index: folder / f"{index}.burn.bpk" for index in batch}
        for index, each in made.items():
            ours[index].write_bytes(each.packed())
        refused = burn.write(each.request(str(theirs[index])) for index, each in made.items())
        readings = burn.read(list(ours.values()))
        for (index, each), refusal, reading in zip(made.items(), refused, readings, strict=True):
            try:
                if refusal is not None:
                    raise across.DisagreementError(f"Burn does not write it: {refusal}")
                if not reading.ok:
                    raise across.DisagreementError(f"Burn does not read ours: {reading.error}")
                wanted = across.Reading("", None, metadata=each.metadata, tensors=tuple(each.described()))
                across.compare(wanted, reading)
                if theirs[index].read_bytes() != ours[index].read_bytes():
                    raise across.DisagreementError("the bytes differ")
                across.compare(across.ours(theirs[index]).reading, reading)
                figures.outcomes["read alike, written alike"] += 1
            except across.DisagreementError as error:
                figures.outcomes["DISAGREEMENT"] += 1
                figures.disagreements.append(f"content {index} of seed {seed}: {error}")
        for path in (*ours.values(), *theirs.values()):
            path.unlink(missing_ok=True)
    return figures


def mutants(burn: Program, seed: int, numbers: range, folder: Path, *, keep: Path | None = None) -> Figures:
    """Show every mutant to both readers."""
    figures, corpus = Figures(), Corpus()
    for batch in _batches(numbers):
        files = [folder / f"{index}.bpk" for index in batch]
        for index, path in zip(batch, files, strict=True):
            path.write_bytes(corpus.mutant(seed, index))
        for index, path, reading in zip(batch, files, burn.read(files), strict=True):
            try:
                figures.outcomes[across.judge(across.ours(path), reading)] += 1
            except across.DisagreementError as error:
                figures.outcomes["DISAGREEMENT"] += 1
                figures.disagreements.append(f"mutant {index} of seed {seed}: {error}")
                if keep is not None and len(figures.disagreements) <= 20:
                    data = path.read_bytes()
                    (keep / f"{hashlib.sha256(data).hexdigest()[:16]}.bpk").write_bytes(data)
            path.unlink()
    return figures


def _batches(numbers: range) -> Iterator[range]:
    for start in range(0, len(numbers), _BATCH):
        yield numbers[start : start + _BATCH]


def main() -> int:
    """Run both kinds and print what was seen."""
    parser = argparse.ArgumentParser(prog="python -m interop.fuzz", description="Burn and burnstore before one file")
    parser.add_argument("--contents", type=int, default=20_000)
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number to begin with")
    parser.add_argument("--version", default=NEWEST)
    options = parser.parse_args()
    burn = program(options.version)
    failed = False
    with tempfile.TemporaryDirectory(prefix="burnstore-interop-") as name:
        for what, count, run in (("contents", options.contents, contents), ("mutants", options.mutants, mutants)):
            started = time.monotonic()
            more = {"keep": CRASHERS} if what == "mutants" else {}
            figures = run(burn, options.seed, range(options.first, options.first + count), Path(name), **more)
            took = time.monotonic() - started
            print(f"{figures.done:,} {what} of seed {options.seed}, {burn}, {took:.0f} s\n{figures}", flush=True)
            failed |= bool(figures.disagreements)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
