"""Devices: bytes carried between files and the memory of a GPU, through a ring of pinned buffers."""
