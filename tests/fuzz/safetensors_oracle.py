"""The oracle for SafeTensors: (a) to (e) and (g) as for Burnpack, and the package itself for (f).

(f) if opened: the package opens it too and finds the same tensors; if the package opens what we refuse, the rule
    that refused is one of those that the format's documentation marks as stricter, and the reason is one of these.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zlib
from typing import Any, ClassVar

import safetensors

import burnstore as bs
from burnstore.formats import safetensors as format_module
from burnstore.formats.safetensors import fast_header, header, reader

from .oracle import (
    MEMORY_1_IN,
    SAVE_1_IN,
    Oracle,
    Verdict,
    ViolationError,
    audit_hook,
    has_a_third_bool,
    refuses_to_copy,
    stored_bytes,
)

_RULES = re.findall(r"^ +(ST-\d\d) (.*?)(?=^ +ST-\d\d |^$)", format_module.__doc__ or "", re.MULTILINE | re.DOTALL)
STRICTER = {rule for rule, said in _RULES if "Stricter" in said}
"""Rules that refuse what the package opens, as the documentation of the format says of each."""

_REASONS = {
    "ST-03": "comes twice",
    "ST-04": "nested|brackets|quotes|tensors, more",
    "ST-06": "unknown field|not an object",
    "ST-07": "unknown dtype an object",
    "ST-08": "axes, more|overflow",
    "ST-13": "a name of more",
    "ST-15": "DCP_SHARDING_INFO|a piece of .* exceeds|JSON|comes twice|surrogate",
}


class SafetensorsOracle(Oracle):
    """Judges SafeTensors files; the format is named, so that what has a strange beginning is judged, too."""

    rules = "ST-"
    options: ClassVar[dict[str, Any]] = {"format": "safetensors"}

    def __init__(self) -> None:
        super().__init__()
        super().close()  # Burnpack's scan has no part in this
        self._columns: Any = None
        self._text: tuple[str, bs.Limits] | None = None
        self._real_scan = fast_header.read_header
        fast_header.read_header = self._spy_header

    def close(self) -> None:
        fast_header.read_header = self._real_scan

    def _spy_header(self, text: str, limits: bs.Limits) -> Any:
        self._columns, self._text = self._real_scan(text, limits), (text, limits)
        return self._columns

    def judge(self, data: bytes, *, thorough: bool = False) -> Verdict:
        draw = 0 if thorough else zlib.crc32(data)
        self._columns = None
        outcome = self._timed(data, lambda: bs.open(data, **self.options))
        self._compare_columns()
        if draw % MEMORY_1_IN == 0:
            self._check_memory(data)
        theirs = _by_package(data)
        if isinstance(outcome, bs.BurnstoreError):
            verdict = self._refusal(outcome)
            if draw % MEMORY_1_IN == 0 and str(pickle.loads(pickle.dumps(outcome))) != str(outcome):
                raise ViolationError("a", "a pickled error is another")
            if theirs is not None:
                _check_stricter(outcome)
            return verdict
        if theirs is None:
            raise ViolationError("f", "opened, and the package refuses it")
        self._check_same(data, outcome, theirs, saved=(draw >> 8) % SAVE_1_IN == 0)
        return Verdict("scanned" if self._columns is not None else "read strictly")

    def _compare_columns(self) -> None:
        """(g): the scan gives what the strict reader gives."""
        columns, given = self._columns, self._text
        if columns is None or given is None:
            return
        try:
            strict = header.read_header(*given)
        except bs.errors.FormatError as error:
            raise ViolationError("g", f"the scan takes what the strict reader refuses: {error}"[:300]) from error
        kinds = [[each.kinds[n] for n in each.kind.tolist()] for each in (columns, strict)]
        same = columns.names == strict.names and columns.metadata == strict.metadata and kinds[0] == kinds[1]
        offsets = (columns.starts.tolist(), columns.ends.tolist()) == (strict.starts.tolist(), strict.ends.tolist())
        if not (same and offsets):
            raise ViolationError("g", "the scan gives other columns")

    def _check_same(self, data: bytes, checkpoint: bs.Checkpoint, theirs: dict[str, Any], *, saved: bool) -> None:
        found = {name: (stored_bytes(t), list(t.shape)) for name, t in checkpoint.items()}
        if found.keys() != theirs.keys():
            raise ViolationError("f", f"names {sorted(found)} instead of {sorted(theirs)}"[:300])
        for name, (raw, shape) in found.items():
            their = theirs[name]
            spelling = {"Bool": "BOOL"}.get(str(checkpoint[name].dtype), str(checkpoint[name].dtype))
            if (spelling, shape, raw) != (their["dtype"], their["shape"], bytes(their["data"])):
                raise ViolationError("f", f"{name!r} differs")
            start = checkpoint.offset_of(name)
            if data[start : start + len(raw)] != raw:
                raise ViolationError("e", f"{name!r} has other bytes than its range")
        if sum(t.nbytes for t in checkpoint.values()) + checkpoint.data_offset != len(data):
            raise ViolationError("e", "the tensors do not fill the file")
        if not saved:
            return
        arrays, _ = self._watched(checkpoint.numpy)
        if isinstance(arrays, bs.BurnstoreError) and not isinstance(arrays, bs.errors.DTypeError):
            self._reading_refused(arrays)
        if any(map(has_a_third_bool, checkpoint.values())):
            refuses_to_copy(lambda: bs.serialize(checkpoint, format="safetensors"))
            return
        with warnings.catch_warnings():  # FP8 numbers without scales are noted
            warnings.simplefilter("ignore", bs.errors.BurnstoreWarning)
            packed = bs.serialize(checkpoint, format="safetensors", metadata=checkpoint.metadata)
        again = bs.open(packed)
        kept = {name: (t.to_bytes(), list(t.shape)) for name, t in again.items()}
        if kept != found or dict(again.metadata) != dict(checkpoint.metadata):
            raise ViolationError("e", "saved, it is another")
        if checkpoint and _by_package(packed) is None:
            raise ViolationError("e", "saved, the package refuses it")


def _by_package(data: bytes) -> dict[str, Any] | None:
    """What the package finds in a file, None if it refuses it."""
    hook = audit_hook()
    assert not hook.armed
    try:
        return dict(safetensors.deserialize(data))
    except safetensors.SafetensorError:
        return None


def _check_stricter(error: bs.BurnstoreError) -> None:
    rule = error.rule or ""
    if rule not in STRICTER:
        raise ViolationError("f", f"refused by {rule}, which is not said to be stricter: {error}"[:300])
    if not re.search(_REASONS[rule], error.message):
        raise ViolationError("f", f"refused by {rule} for another reason: {error}"[:300])


READER_FILES = ["io/json.py"] + [f"formats/safetensors/{name}.py" for name in ("header", "reader", "scan")]
assert reader.read  # the module that is judged
