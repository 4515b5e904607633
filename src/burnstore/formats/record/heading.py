"""The heading: five strings at the beginning of every record, with the release of Burn and the precision they name."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from ...errors import CorruptError, UnsupportedError, printable
from ...tensor.dtype import DType

Minor = int
"""The 21 of Burn 0.21.0."""

LAST_VERSION = "0.21.0"
"""The last release of Burn that has recorders."""

_RELEASE = re.compile(r"0\.(\d{1,3})\.\d+(?:-[0-9A-Za-z.]+)?")
_RECORDERS = {
    ("mpk", False): "NamedMpkFileRecorder",
    ("mpk", True): "NamedMpkGzFileRecorder",
    ("bin", False): "BinFileRecorder",
    ("bin", True): "BinGzFileRecorder",
    ("json", False): "PrettyJsonFileRecorder",
    ("json", True): "JsonGzFileRecorder",
}


@dataclass(frozen=True, slots=True)
class PrecisionSettings:
    """One of Burn's three settings: the dtypes of float and integer tensors; others keep theirs.

    >>> str(HalfPrecisionSettings.float), HalfPrecisionSettings.name
    ('F16', 'HalfPrecisionSettings')
    """

    name: str
    float: DType
    int: DType
    float_text: str
    int_text: str


FullPrecisionSettings = PrecisionSettings("FullPrecisionSettings", DType.F32, DType.I32, "f32", "i32")
HalfPrecisionSettings = PrecisionSettings("HalfPrecisionSettings", DType.F16, DType.I16, "half::binary16::f16", "i16")
DoublePrecisionSettings = PrecisionSettings("DoublePrecisionSettings", DType.F64, DType.I64, "f64", "i64")

SETTINGS = {each.name: each for each in (FullPrecisionSettings, HalfPrecisionSettings, DoublePrecisionSettings)}


@dataclass(frozen=True, slots=True)
class Heading:
    """The types of numbers, the recorder that wrote the file, the release of Burn, and the precision."""

    float: str
    int: str
    format: str
    version: str
    settings: str

    @classmethod
    def of(cls, encoding: str, settings: PrecisionSettings, *, compressed: bool) -> Heading:
        """Return the heading that the last release of Burn writes for this recorder and precision."""
        recorder = _RECORDERS[encoding, compressed]
        kind = f"burn_core::record::file::{recorder}<burn_core::record::settings::{settings.name}>"
        return cls(settings.float_text, settings.int_text, kind, LAST_VERSION, settings.name)

    @classmethod
    def from_tree(cls, tree: Any) -> Heading:
        """Return the heading that a document holds under ``metadata`` (BR-07)."""
        wanted = [field.name for field in fields(cls)]
        if not isinstance(tree, dict) or sorted(tree) != sorted(wanted):
            raise CorruptError(f"metadata is a map of {', '.join(wanted)}", rule="BR-07")
        for key, value in tree.items():
            if not isinstance(value, str):
                raise CorruptError(f"metadata.{key} is not text", rule="BR-07")
        return cls(**tree)

    def to_dict(self) -> dict[str, str]:
        """Return the five strings, in the order of the file."""
        return asdict(self)

    @property
    def precision(self) -> PrecisionSettings:
        """The settings that the file was written with; they must agree with the types it names."""
        found = SETTINGS.get(self.settings)
        if found is None or (found.float_text, found.int_text) != (self.float, self.int):
            raise UnsupportedError(
                f"settings {printable(self.settings)!r} with {printable(self.float)!r} and {printable(self.int)!r}; "
                f"known are {', '.join(SETTINGS)}",
                rule="BR-07",
            )
        return found

    @property
    def minor(self) -> Minor:
        """The 21 of Burn 0.21.0."""
        match = _RELEASE.fullmatch(self.version)
        if match is None:
            raise UnsupportedError(f"{printable(self.version)!r} is not a version of Burn", rule="BR-07")
        return int(match[1])
