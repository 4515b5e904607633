"""The archive of `torch.export.save` (``.pt2``): weights as raw members, described by a table in JSON."""

from __future__ import annotations

from typing import Any

from ...errors import CorruptError, located, printable
from ...tensor.dtype import DType
from ..codec.json import decode, parse
from .archive import PickledFile
from .storages import DTYPES, Storages, untyped
from .tensors import PickledTensor, view
from .zip_file import ZipFile

_TABLES, _CONFIG = "data/weights/", "_weights_config.json"
_MOST_NODES, _MOST_STRINGS = 4_000_000, 20_000_000
_STRIDED = 7
_CODES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}


def read_exported(archive: ZipFile, *, checksums: bool) -> PickledFile:
    """The weights of an exported program, as a dict."""
    facts, big_endian = archive.facts(), archive.big_endian()
    storages = Storages()
    notes: list[str] = []
    value: dict[str, PickledTensor] = {}
    prefix = archive.root + _TABLES
    tables = [name for name in archive.directory.names if name.startswith(prefix) and name.endswith(_CONFIG)]
    for table in tables:
        model = table[len(prefix) : -len(_CONFIG)]
        with located(rule="PT-26"):
            text = decode(
                archive.read(table.removeprefix(archive.root)), most_nodes=_MOST_NODES, most_strings=_MOST_STRINGS
            )
            entries = _dict(_dict(parse(text, rule="PT-26", rule_of_keys="PT-26"), "the table").get("config"), "config")
        for name, entry in entries.items():
            full_name = f"{model}.{name}" if len(tables) > 1 else name
            with located(tensor=full_name, rule="PT-26"):
                described = _dict(entry, "an entry")
                if described.get("use_pickle"):
                    notes.append(f"left out: {printable(full_name)}, which is a zip inside the zip")
                    continue
                value[full_name] = _tensor(archive, storages, described)
    archive.attach(storages, _TABLES, big_endian=big_endian, checksums=checksums)
    return PickledFile("exported", value, [], 0, storages, big_endian, facts, tuple(notes))


def _tensor(archive: ZipFile, storages: Storages, entry: dict[str, Any]) -> PickledTensor:
    path, meta = entry.get("path_name"), _dict(entry.get("tensor_meta"), "tensor_meta")
    size = archive.size_of(_TABLES + path) if isinstance(path, str) else None
    if not isinstance(path, str) or size is None:
        raise CorruptError("its bytes have no member in the archive")
    if meta.get("layout", _STRIDED) != _STRIDED:
        raise CorruptError(f"the layout {meta.get('layout')}, which its bytes cannot have")
    storage = untyped(storages, path, size)
    shape, strides = (_numbers(meta.get(name), name) for name in ("sizes", "strides"))
    (offset,) = _numbers([meta.get("storage_offset", {"as_int": 0})], "storage_offset")
    return view(
        storage, _dtype(meta.get("dtype")), offset, shape, strides, requires_grad=meta.get("requires_grad") is True
    )


def _dtype(code: Any) -> DType:
    if type(code) is not int or code not in _CODES:
        raise CorruptError("a dtype that is not known")
    return DTYPES[_CODES[code]]


def _numbers(values: Any, what: str) -> tuple[Any, ...]:
    if not isinstance(values, list) or not all(
        isinstance(value, dict) and list(value) == ["as_int"] for value in values
    ):
        raise CorruptError(f"{what} is not a list of numbers")
    return tuple(value["as_int"] for value in values)


def _dict(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CorruptError(f"{what} is not an object")
    return value
