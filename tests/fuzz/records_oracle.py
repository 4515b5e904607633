"""The oracle for records: (a) to (d) as for Burnpack, and the packages msgpack and json for (f).

(f) if opened, and it is MessagePack or JSON: the package decodes it too, and a walk of its own over what the package
    gives finds the same tensors.
"""

from __future__ import annotations

import gzip
import json
import pickle
import zlib
from typing import Any, ClassVar

import msgpack
import numpy as np

import burnstore as bs

from .oracle import MEMORY_1_IN, Oracle, Verdict, ViolationError, stored_bytes

READER_FILES = [
    *(f"codec/{name}.py" for name in ("msgpack", "json_document", "bincode", "gzip", "window")),
    *(
        f"formats/record/{name}.py"
        for name in ("reader", "document", "heading", "spelling", "scan", "binary", "training")
    ),
]


class RecordsOracle(Oracle):
    """Judges records; the format is named, so that what has a strange beginning is judged, too."""

    rules = "BR-"
    options: ClassVar[dict[str, Any]] = {"format": "record", "undecided": "F16"}

    def __init__(self) -> None:
        super().__init__()
        super().close()  # Burnpack's scan has no part in this

    def close(self) -> None:
        pass

    def warm_up(self, files: list[bytes]) -> None:
        for data in files:
            try:
                bs.open(data, **self.options).numpy()
            except bs.BurnstoreError as error:
                str(error)
        str(bs.errors.CorruptError("", tensor="\0"))
        _ = bs.DType.BF16.numpy  # imports ml_dtypes

    def judge(self, data: bytes, *, thorough: bool = False) -> Verdict:
        draw = 0 if thorough else zlib.crc32(data)
        outcome = self._timed(data, lambda: bs.open(data, **self.options))
        if draw % MEMORY_1_IN == 0:
            self._check_memory(data)
        if isinstance(outcome, bs.BurnstoreError):
            if draw % MEMORY_1_IN == 0 and str(pickle.loads(pickle.dumps(outcome))) != str(outcome):
                raise ViolationError("a", "a pickled error is another")
            return self._refusal(outcome)
        arrays, _ = self._watched(outcome.numpy)
        if isinstance(arrays, bs.BurnstoreError):
            self._reading_refused(arrays)
        found = {name: (list(tensor.shape), stored_bytes(tensor)) for name, tensor in outcome.items()}
        _check_same(data, found, outcome.metadata)
        return Verdict(outcome.variant.split(",")[0])


def _check_same(data: bytes, found: dict[str, Any], metadata: Any) -> None:
    plain = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    try:
        if plain[:1] in b"{ \t\n\r":
            document = json.loads(plain.decode("utf-8"))
        elif plain[1:10] == b"\xa8metadata":
            document = msgpack.unpackb(plain)
        else:
            return
    except (ValueError, msgpack.UnpackException) as error:
        raise ViolationError("f", f"opened, and the package refuses it: {error}"[:300]) from error
    if document["metadata"] != dict(metadata):
        raise ViolationError("f", "other metadata than the package finds")
    theirs = dict(_tensors(document["item"], "", metadata["settings"]))
    differing = sorted(name for name in theirs.keys() | found.keys() if theirs.get(name) != found.get(name))
    for name in differing:
        if (
            name not in theirs
            or name not in found
            or not _same_but_for_nan(found[name], theirs[name], metadata["float"])
        ):
            raise ViolationError("f", f"{name!r} differs from what the package finds")


def _same_but_for_nan(ours: Any, theirs: Any, width: str) -> bool:
    """Whether two tensors are equal but for the bits of NaNs, some of which a Python float does not keep."""
    if ours[0] != theirs[0] or len(ours[1]) != len(theirs[1]) or width not in ("f32", "f64"):
        return False
    first, second = (np.frombuffer(raw, f"<f{int(width[1:]) // 8}") for raw in (ours[1], theirs[1]))
    return bool(np.array_equal(first, second, equal_nan=True))


def _tensors(node: Any, path: str, settings: str) -> Any:
    if isinstance(node, dict):
        inner = node["param"] if node.keys() == {"id", "param"} else node
        if isinstance(inner, dict) and inner.keys() == {"bytes", "shape", "dtype"} and inner["shape"] is not None:
            yield path, (inner["shape"], bytes(inner["bytes"]))
            return
        if isinstance(inner, dict) and inner.keys() == {"value", "shape"} and _are_numbers(inner["value"]):
            yield path, (inner["shape"], _elements(inner["value"], settings))
            return
        for key, each in node.items():
            yield from _tensors(each, f"{path}.{key}" if path else key, settings)
    elif isinstance(node, list):
        for index, each in enumerate(node):
            yield from _tensors(each, f"{path}.{index}" if path else str(index), settings)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, (int, float)) for each in value)


def _elements(values: list[Any], settings: str) -> bytes:
    if values and isinstance(values[0], bool):
        return bytes(values)
    if settings == "HalfPrecisionSettings":
        return np.array([each & 0xFFFF for each in values], "<u2").tobytes()
    width = 4 if settings == "FullPrecisionSettings" else 8
    kind = "f" if values and isinstance(values[0], float) else "i"
    return np.array(values, f"<{kind}{width}").tobytes()
