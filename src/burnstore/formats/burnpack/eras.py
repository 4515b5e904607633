"""Eras: which releases of Burn write which Burnpack bytes, and how to recognize them.

The version field of the container was never changed, so a file's era is found from what only some releases write. Each
piece of evidence leaves a set of eras; a file whose evidence leaves none was written by no Burn and is refused (BP-14).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag

from ...errors import DTypeError


class Era(Flag):
    """Releases that write alike; also sets of them."""

    V0_19 = 1  # and 0.20.0-pre.1 .. pre.4: unaligned
    V0_20 = 2  # aligned to 256
    V0_21 = 4  # Bool as a map
    V0_22_PRE = 8  # scalars; two-level quantization
    V0_22 = 16  # quantization schemes of style T
    V0_23 = 32

    ALL = 63
    ALIGNED = 62
    BOOL_TEXT = 3
    BOOL_MAP = 60
    SCHEME_P = 15
    SCHEME_T = 48
    SCALARS = 56


# The name of each era, and its newest release.
_ERAS = {
    Era.V0_19: ("0.19", "0.19.1"),
    Era.V0_20: ("0.20", "0.20.1"),
    Era.V0_21: ("0.21", "0.21.0"),
    Era.V0_22_PRE: ("0.22-pre", "0.22.0-pre.2"),
    Era.V0_22: ("0.22", "0.22.1"),
    Era.V0_23: ("0.23-pre", "0.23.0-pre.1"),
}
NAMES = {era: name for era, (name, _) in _ERAS.items()}

DEFAULT_VERSION = "0.22.1"

_VERSION = re.compile(r"0\.(19|20|21|22|23)(?:\.(\d{1,3}))?(?:-(pre)(?:\.(\d{1,3}))?)?")


@dataclass(frozen=True, slots=True)
class Release:
    """One release of Burn: its era and the text it stamps into files."""

    era: Era
    version: str


def release_of(version: str) -> Release | None:
    """Return the release that a version names (``0.19``, ``0.22.1``, ``0.23.0-pre.1``), None if it names none."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return None
    minor, patch, pre, number = match.groups()
    if minor == "20" and pre and number and int(number) <= 4:
        era = Era.V0_19
    elif minor == "22" and pre:
        era = Era.V0_22_PRE
    else:
        era = next(
            era for era, name in NAMES.items() if name.split("-")[0] == f"0.{minor}" and era is not Era.V0_22_PRE
        )
    exact = patch is not None and (not pre or number is not None)
    return Release(era, version if exact else _ERAS[era][1])


def named_release(version: str) -> Release:
    """Return the release that a caller asked for by name."""
    if not isinstance(version, str):
        raise TypeError(f"burn_version must be a str such as '0.22', got {type(version).__name__}")
    release = release_of(version)
    if release is None:
        raise ValueError(f"burn_version={version!r} is none of {', '.join(NAMES.values())}")
    return release


def stamped_release(metadata: Mapping[str, str]) -> Release | None:
    """Return the release that a file's own metadata claims, where it has the stamp of Burn's store.

    Users may set ``version`` to anything, so this only breaks ties that the structure leaves open.
    """
    if metadata.get("producer") != "burn" or metadata.get("format") != "burnpack":
        return None
    release = release_of(metadata.get("version", ""))
    return release if release is not None and release.version == metadata["version"] else None


def stamp(release: Release) -> dict[str, str]:
    """Return the metadata that Burn's store of that release puts into every file."""
    return {"format": "burnpack", "producer": "burn", "version": release.version}


def describe(eras: Era) -> str:
    """Describe a set of eras, such as ``0.20 .. 0.23-pre, aligned``."""
    names = [name for era, name in NAMES.items() if era & eras]
    if not names:
        return "no release"
    span = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"
    if not eras & Era.V0_19:
        return f"{span}, aligned"
    return span if eras & Era.ALIGNED else f"{span}, unaligned"


def unsupported_by(era: Era, what: str) -> DTypeError:
    """Return the error for content that the asked-for release cannot hold."""
    return DTypeError(f"Burn {NAMES[era]} cannot hold {what}", hint="leave burn_version out, or ask for a newer one")
