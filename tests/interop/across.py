"""Across: one file before both readers. What each makes of it, and whether the two agree as far as they should.

Where both open a file they find the same. Burn may open what burnstore refuses only by a rule that the documentation of
the format marks as stricter; burnstore may open what Burn refuses only for one of `WIDER`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2

import burnstore as bs
from fuzz.oracle import STRICTER

from .program import Reading, Tensor

WIDER = {
    "unaligned": "a file of Burn 0.19, whose tensors lie end to end",
    "bool text": "a Bool as Burn 0.19 and 0.20 spell it",
    "store U32": "a quantized tensor whose store is spelled as in Burn 0.19",
}
"""What burnstore opens and Burn 0.22 refuses, as docs/formats/burnpack.md lists it."""

_FORM = re.compile(
    r"found tag|with indefinite length|\d items in \d+ bytes|are not a pair"
    r"|expected text, found byte string|expected map, found text"
)
"""What burnstore says of CBOR that Burn's decoder takes: tags and indefinite lengths, which CBOR has, and which are
refused under the rule of the place where they stand, a byte string where a word is meant; and what is no CBOR at all,
an array that announces more items than are read from it, and a variant without the map around it."""


class DisagreementError(Exception):
    """The two readers do not agree, and no rule says that they need not."""


@dataclass(frozen=True, slots=True)
class Ours:
    """What burnstore made of a file: its contents, or the rule by which it was refused."""

    reading: Reading
    rule: str | None = None
    variant: str = ""
    wider: frozenset[str] = frozenset()
    has_old_schemes: bool = False


def described(checkpoint: Mapping[str, bs.TensorSnapshot]) -> list[Tensor]:
    """The tensors of an open file in the order of their data, as Burn describes its own."""
    return [
        Tensor(
            name,
            snapshot.dtype,
            snapshot.shape,
            None if snapshot.param_id is None else int(snapshot.param_id),
            hashlib.sha256(snapshot.to_bytes()).hexdigest(),
        )
        for name, snapshot in checkpoint.items()
    ]


def by_name(tensors: list[Tensor]) -> list[Tensor]:
    return sorted(tensors, key=lambda tensor: tensor.path.encode())


def ours(file: Path | bytes, **options: Any) -> Ours:
    """What burnstore makes of a file. Whatever is no error of its own is raised: a crash is a finding."""
    name = file.name if isinstance(file, Path) else "<bytes>"
    try:
        with bs.open(file, **options) as found:
            tensors = tuple(by_name(described(found)))
            schemes = [snapshot.dtype.scheme for snapshot in found.values() if snapshot.dtype.scheme is not None]
            reading = Reading(name, None, metadata=dict(found.metadata), tensors=tensors)
            raw = file if isinstance(file, bytes) else file.read_bytes()
            old = any(scheme.old_style for scheme in schemes)
            return Ours(reading, None, found.variant, frozenset(_wider(raw, found)), old)
    except bs.BurnstoreError as error:
        return Ours(Reading(name, str(error)), getattr(error, "rule", None))


def _wider(raw: bytes, found: bs.Checkpoint) -> list[str]:
    reasons = []
    unpadded = 10 + int.from_bytes(raw[6:10], "little")
    if len(found) and found.data_offset == unpadded and unpadded % 256:
        reasons.append("unaligned")
    dtypes = [tensor["dtype"] for tensor in cbor2.loads(raw[10:unpadded])["tensors"].values()]
    if "Bool" in dtypes:
        reasons.append("bool text")
    if any(isinstance(dtype, dict) and dtype.get("QFloat", {}).get("store") == "U32" for dtype in dtypes):
        reasons.append("store U32")
    return reasons


def judge(mine: Ours, burns: Reading) -> str:
    """In a few words how the two readings stand to each other; DisagreementError if they may not stand so."""
    if burns.panicked:
        return f"Burn panicked, burnstore {'opened it' if mine.reading.ok else 'refused it'}"
    if not mine.reading.ok and not burns.ok:
        return "both refused it"
    if not mine.reading.ok:
        if mine.rule in STRICTER:
            return f"refused by {mine.rule}, which is stricter"
        if _FORM.search(str(mine.reading.error)):
            return "refused for the form of its CBOR"
        raise DisagreementError(f"refused by {mine.rule}, which Burn has as well: {mine.reading.error}")
    if not burns.ok:
        if not mine.wider:
            raise DisagreementError(f"burnstore opened ({mine.variant}) what Burn refuses: {burns.error}")
        return f"opened, Burn refuses it: {' and '.join(sorted(mine.wider))}"
    compare(mine.reading, burns, schemes=not mine.has_old_schemes)
    return "both opened it, equal" if not mine.has_old_schemes else "both opened it, equal but for old schemes"


def compare(mine: Reading, burns: Reading, *, schemes: bool = True) -> None:
    """Raise unless both found the same; without ``schemes`` the spelling of a quantized dtype does not count."""
    if mine.metadata != burns.metadata:
        raise DisagreementError(f"metadata {burns.metadata!r:.200} were read as {mine.metadata!r:.200}")
    theirs = by_name(list(burns.tensors))
    if len(mine.tensors) != len(theirs):
        raise DisagreementError(f"{len(theirs)} tensors were read as {len(mine.tensors)}")
    for own, other in zip(mine.tensors, theirs, strict=True):
        if _comparable(own, schemes=schemes) != _comparable(other, schemes=schemes):
            raise DisagreementError(f"{other} was read as {own}")


def _comparable(tensor: Tensor, *, schemes: bool) -> tuple[object, ...]:
    quantized = isinstance(tensor.dtype, str) or tensor.dtype.is_quantized
    dtype = tensor.dtype if schemes or not quantized else None
    return tensor.path, dtype, tensor.shape, tensor.param_id, tensor.sha256
