"""Benchmarks of burnstore against its peers: ``python -m benchmarks [--quick] [--only NAME] [--json FILE]``.

A *case* has a name, a bar and contestants. Each contestant is a plain function that runs in a fresh process for every
repeat, in the order A B C, A B C, ..; it times only its own inner body, and in a first round, which is not counted, it
has to show that its answer is right. Numbers are reported as seconds (or bytes) and ratios; nothing is asserted.

    harness.py   cases, bars, rounds, results          (runs here)
    child.py     one contestant, once                  (runs in the fresh process)
    report.py    the table and the JSON
    data.py      the models that are saved and loaded
    burnpack.py  models.py  startup.py  ..             one subject each: ``cases(scale)`` and its contestants

A new case is one function per contestant and one ``Case(..)`` in the subject's ``cases``; a new subject is one more
name in `SUBJECTS`. Results are kept in ``benchmarks/results/``, which git ignores.
"""

from __future__ import annotations

SUBJECTS = ("burnpack", "safetensors", "records", "models", "torch", "pytorch", "jobs", "startup")
ALL_SUBJECTS = (*SUBJECTS, "burn")
"""Those that need more than Python (Rust, to build the original) run when they are asked for."""
