"""Files of torch put together byte by byte, without torch: so anything in them can be wrong."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MAGIC = 0x1950A86A20F9469CFC6C
CLASSES = {
    "f8": "Double",
    "f4": "Float",
    "f2": "Half",
    "i8": "Long",
    "i4": "Int",
    "i2": "Short",
    "i1": "Char",
    "u1": "Byte",
}

# --- pickles ----------------------------------------------------------------------------------------------------------


def text(content: str) -> bytes:
    raw = content.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes((value,))
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes((len(raw),)) + raw


def name(module: str, attribute: str) -> bytes:
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def tuple_of(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def ints(*values: int) -> bytes:
    return tuple_of(*map(integer, values))


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + tuple_of(*arguments) + b"R"


def dict_of(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"}(" + b"".join(key + value for key, value in pairs) + b"u"


def storage(key: bytes, count: int, class_name: bytes = name("torch", "FloatStorage"), more: bytes = b"") -> bytes:
    return tuple_of(text("storage"), class_name, key, text("cpu"), integer(count), more) + b"Q"


HOOKS = call(name("collections", "OrderedDict"))
V2 = name("torch._utils", "_rebuild_tensor_v2")


def tensor(
    stored: bytes, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0, more: bytes = b""
) -> bytes:
    return call(
        V2,
        stored,
        integer(offset),
        ints(*shape),
        ints(*(row_major(shape) if strides is None else strides)),
        b"\x89",
        HOOKS,
        more,
    )


def row_major(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return strides[::-1]


def pickled(value: bytes, protocol: int = 2) -> bytes:
    return b"\x80" + bytes((protocol,)) + value + b"."


def state_dict(entries: Mapping[str, tuple[str, Sequence[int]]], more: bytes = b"") -> bytes:
    """The pickle of tensors by name, each of a class (``Float``) and shape, on storages 0, 1, ...

    ``more`` ends the ids of the storages: ``N`` in a legacy stream.
    """
    pairs = []
    for number, (key, (kind, shape)) in enumerate(entries.items()):
        count = 1
        for extent in shape:
            count *= extent
        pairs.append(
            (text(key), tensor(storage(text(str(number)), count, name("torch", f"{kind}Storage"), more), shape))
        )
    return pickled(dict_of(*pairs))


# --- zips -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """A member whose headers can be made to lie: what differs from the truth is given, the rest follows from it."""

    name: str
    data: bytes
    method: int = 0
    flags: int = 0x0808
    crc: int | None = None
    local_name: str | None = None
    local_method: int | None = None
    local_flags: int | None = None
    local_sizes: tuple[int, int, int] | None = None
    size: int | None = None
    packed: int | None = None
    header: int | None = None
    extra: bytes = b""
    local_extra: bytes | None = None
    disk: int = 0
    attributes: int = 0
    descriptor: bool = True


def zipped(
    members: Sequence[Member],
    *,
    prefix: bytes = b"",
    suffix: bytes = b"",
    comment: bytes = b"",
    zip64: bool = True,
    count: int | None = None,
    directory_at: int | None = None,
    align: int = 64,
    **end: Any,
) -> bytes:
    """An archive as torch writes it, but for what was asked to differ."""
    out = bytearray(prefix)
    entries = bytearray()
    for member in members:
        packed = deflated(member.data) if member.method == 8 else member.data
        crc = zlib.crc32(member.data) if member.crc is None else member.crc
        at = len(out)
        raw = (member.local_name or member.name).encode()
        local_extra = member.local_extra
        if local_extra is None:
            pad = -(at + 30 + len(raw) + 4) % align
            local_extra = b"FB" + struct.pack("<H", pad) + b"Z" * pad
        flags = member.flags if member.local_flags is None else member.local_flags
        stated = member.local_sizes or ((0, 0, 0) if flags & 8 else (crc, len(packed), len(member.data)))
        method = member.method if member.local_method is None else member.local_method
        out += struct.pack("<4s5H3I2H", b"PK\3\4", 0, flags, method, 0, 0, *stated, len(raw), len(local_extra))
        out += raw + local_extra + packed
        if member.flags & 8 and member.descriptor:
            out += struct.pack("<4sIII", b"PK\7\x08", crc, len(packed), len(member.data))
        name_raw = member.name.encode()
        entries += struct.pack(
            "<4s6H3I5H2I",
            *(b"PK\1\2", 0, 0, member.flags, member.method, 0, 0, crc),
            *(
                len(packed) if member.packed is None else member.packed,
                len(member.data) if member.size is None else member.size,
            ),
            *(len(name_raw), len(member.extra), 0, member.disk, 0, member.attributes),
            at if member.header is None else member.header,
        )
        entries += name_raw + member.extra
    start = len(out) if directory_at is None else directory_at
    out += entries
    number = len(members) if count is None else count
    at = len(out)
    if zip64:
        wide = {"count": number, "length": len(entries), "start": start, **end}
        out += struct.pack(
            "<4sQ2H2I4Q", b"PK\6\6", 44, 0, 0, 0, 0, wide["count"], wide["count"], wide["length"], wide["start"]
        )
        out += struct.pack("<4sIQI", b"PK\6\7", 0, at, 1)
    out += struct.pack(
        "<4s4H2IH", b"PK\5\6", 0, 0, min(number, 65535), min(number, 65535), len(entries), start, len(comment)
    )
    return bytes(out) + comment + suffix


def deflated(data: bytes) -> bytes:
    machine = zlib.compressobj(9, zlib.DEFLATED, -15)
    return machine.compress(data) + machine.flush()


def torch_members(
    pickle_bytes: bytes, storages: Mapping[str, bytes], *, root: str = "archive/", byteorder: str | None = "little"
) -> list[Member]:
    members = [Member(f"{root}data.pkl", pickle_bytes)]
    if byteorder is not None:
        members.append(Member(f"{root}byteorder", byteorder.encode()))
    members += [Member(f"{root}data/{key}", raw) for key, raw in storages.items()]
    return [*members, Member(f"{root}version", b"3\n")]


def torch_zip(pickle_bytes: bytes, storages: Mapping[str, bytes], *, method: int = 0, **options: Any) -> bytes:
    members = torch_members(pickle_bytes, storages, **options)
    return zipped([replace(member, method=method) for member in members])


# --- the other containers ---------------------------------------------------------------------------------------------


def legacy(
    pickle_bytes: bytes, storages: Mapping[str, bytes], item: int = 4, *, protocol: int = 2, sys_info: Any = None
) -> bytes:
    """The stream before 1.6; storages have elements of ``item`` bytes each."""
    info = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    head = [pickle.dumps(value, protocol) for value in (MAGIC, 1001, info if sys_info is None else sys_info)]
    keys = pickle.dumps(list(storages), protocol)
    body = b"".join(struct.pack("<q", len(raw) // item) + raw for raw in storages.values())
    return b"".join(head) + pickle_bytes + keys + body


def tarred(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            info.mtime = 1.5  # not a whole number: an extended header comes before each member, as in real files
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def tar(
    pickle_bytes: bytes,
    storages: Mapping[str, tuple[str, bytes, int]],
    tensors: Mapping[str, tuple[str, Sequence[int], Sequence[int], int]],
    views: Sequence[tuple[Any, ...]] = (),
) -> bytes:
    """The tar of 2016: storages (class, bytes, item size) and tensors (storage, sizes, strides, offset) by key."""
    rows = pickle.dumps(len(storages), 2)
    for key, (kind, raw, item) in storages.items():
        row = tuple_of(integer(int(key)), text("cpu"), name("torch", f"{kind}Storage"))
        rows += pickled(row) + struct.pack("<q", len(raw) // item) + raw
    rows += pickle.dumps(list(views), 2)
    table = pickle.dumps(len(tensors), 2)
    for key, (stored, sizes, strides, offset) in tensors.items():
        row = tuple_of(integer(int(key)), integer(int(stored)), name("torch", "FloatTensor"))
        table += pickled(row) + struct.pack("<i4x", len(sizes))
        table += struct.pack(f"<{2 * len(sizes) + 1}q", *sizes, *strides, offset)
    info = pickle.dumps({"protocol_version": 1000, "little_endian": True, "type_sizes": {}}, 2)
    return tarred({"sys_info": info, "pickle": pickle_bytes, "tensors": table, "storages": rows})


def persistent(key: str) -> bytes:
    """What stands for a tensor in the pickle of a tar."""
    return text(key) + b"Q"


def containers(pickle_bytes: bytes, storages: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
    """One pickle in each of the containers; a zip in a zip is the sixth."""
    stored = dict(storages or {})
    inner = torch_zip(pickle_bytes, stored)
    return {
        "zip": inner,
        "zip, deflated": torch_zip(pickle_bytes, stored, method=8),
        "legacy": legacy(pickle_bytes, stored),
        "tar": tar(pickle_bytes, {}, {}),
        "bare": pickle_bytes,
        "zip in zip": zipped([Member("archive/model.pt", inner), Member("archive/version", b"3\n")]),
    }
