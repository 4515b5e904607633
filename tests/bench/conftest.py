"""The benchmarks are no part of the package: the repository's root and the toy contestants are made importable here."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
for _entry in (_HERE, _HERE.parent.parent):
    if str(_entry) not in sys.path:
        sys.path.append(str(_entry))
