"""The transfer of bytes to a GPU: plan chunks, read them into pinned staging buffers, copy them on one stream."""

from __future__ import annotations

from .buffers import configure_transfers, release_pinned_memory

__all__ = ["configure_transfers", "release_pinned_memory"]
