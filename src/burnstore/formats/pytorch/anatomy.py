"""What the first bytes of a PyTorch file are: the first member of a zip, or the beginning of a pickle."""

from __future__ import annotations

import struct

from ..base import Part

_MEMBER = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s5H3I2H")
_METHODS = {0: "stored", 8: "deflated"}
_PROTO = 0x80


def anatomy(head: bytes, size: int) -> list[Part]:
    """The first member's header, name and padding; or the pickle's protocol."""
    if head.startswith(b"PK") and len(head) >= _LOCAL.size:
        return _first_member(head, size)
    if head[:1] == bytes([_PROTO]) and len(head) > 1:
        opcodes = "opcodes of the pickle; nothing runs them"
        return [Part(0, 2, f"pickle, protocol {head[1]}"), Part(2, size - 2, opcodes)]
    return [Part(0, size, "an old pickle without a protocol, or a tar")]


def _first_member(head: bytes, size: int) -> list[Part]:
    signature, _, _, method, _, _, _, _, _, named, extra = _LOCAL.unpack_from(head)
    start = _LOCAL.size + named + extra
    parts = [
        Part(0, 4, "zip: the header of a member" if signature == _MEMBER else "zip, but not the header of a member"),
        Part(4, _LOCAL.size - 4, f"its version, flags, method ({_METHODS.get(method, method)}), checksum and sizes"),
        Part(_LOCAL.size, named, "its name"),
        Part(_LOCAL.size + named, extra, "padding, so that its data are aligned"),
        Part(start, size - start, "its data, then the other members"),
    ]
    return [Part(p.offset, min(p.nbytes, size - p.offset), p.meaning) for p in parts if p.nbytes and p.offset < size]
