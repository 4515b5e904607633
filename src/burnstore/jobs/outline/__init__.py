"""The Rust code that writes the outline of a Burn model, for programs without the crate ``burnstore-outline``."""

from __future__ import annotations

import pkgutil

from ...errors import UnsupportedError

BURN_VERSIONS = {"0.20": "snippet_backend.rs", "0.21": "snippet_backend.rs", "0.22": "snippet.rs", "0.23": "snippet.rs"}
"""The versions of Burn that there is code for; modules lost their backend parameter in 0.22."""


def outline_snippet(burn: str = "0.22") -> str:
    """Return Rust source to paste: ``outline::save(&model, "model.outline.bpk")`` with burn and burn-store alone.

    >>> print(outline_snippet().splitlines()[6])
    pub fn save<M: Module + ModuleDisplay>(model: &M, path: &str) -> Result<(), String> {
    """
    series = ".".join(burn.split(".")[:2])
    if series not in BURN_VERSIONS:
        raise UnsupportedError(
            f"no code for Burn {burn}; expected one of {', '.join(BURN_VERSIONS)}",
            hint="update Burn: older versions name no modules",
        )
    source = pkgutil.get_data(__name__, BURN_VERSIONS[series])
    assert source is not None
    return source.decode("utf-8")
