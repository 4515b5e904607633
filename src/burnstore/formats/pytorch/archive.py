"""The zips of torch: those of `torch.save` and TorchScript (a pickle and its storages), and exported programs (.pt2).

An exported program has no pickle: its weights are raw members that a table in JSON describes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ...errors import CorruptError, LimitError, UnsafeContentError, UnsupportedError, located, printable
from ...io.documents import Bounds, read_json
from ...io.source import Source, expect_reads
from ...limits import Limits
from ...tensor.note import Note
from ...tensor.sources import SourceData
from ..base import LAYOUT_KEY
from ..codec.zip import DEFLATED, Directory, read_directory
from .data import DeflatedData, check_member, read_member
from .stream import PickledFile, max_pickle_bytes, parse_whole, torch_dialect
from .tensors import DTYPES, PickledTensor, Storage, Storages, left_out_note, view

PICKLE = "data.pkl"
_MAX_TEXT = 4096
_VERSIONS = range(1, 11)
_NEW_EXPORT, _OLD_EXPORT, _PACKAGE = "archive_format", "serialized_exported_program.json", ".data/extern_modules"
_SCRIPT = ("constants.pkl", "model.json")

_WEIGHTS, _CONFIG = "data/weights/", "_weights_config.json"
_CONSTANTS, _CONSTANTS_CONFIG = "data/constants/", "_constants_config.json"
_OLD_CONFIG = "_model_param_config.json"
_RAW_NAME = re.compile(r"(?:weight|tensor)_[0-9]+")
_TABLE = Bounds(256 << 20, 20_000_000, 16, text=None)
_STRIDED = 7
_FROM_1 = "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool bfloat16"
_FROM_28 = "uint16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu uint32 uint64"
_EXPORTED_DTYPES = dict([*enumerate(_FROM_1.split(), 1), *enumerate(_FROM_28.split(), 28)])


class ZipFile:
    """A zip and the folder in which all its members are."""

    def __init__(self, source: Source, limits: Limits) -> None:
        self.source = source
        self._limits = limits
        directory = self.directory = _read_directory(source)
        self._rows = dict(zip(directory.names, range(len(directory.names)), strict=True))
        self.root = self._find_root()

    def _find_root(self) -> str:
        names = self.directory.names
        pickles = [name for name in names if name.endswith(PICKLE) and (name == PICKLE or name[-9] == "/")]
        if not pickles:
            shared = names[0].partition("/")[0] + "/" if names and "/" in names[0] else ""
            return shared if all(name.startswith(shared) for name in names) else ""
        if len(pickles) > 1:
            raise CorruptError(f"expected one member called {PICKLE}, found {len(pickles)}", rule="PT-05")
        root = pickles[0].removesuffix(PICKLE)
        outside = [name for name in names if not name.startswith(root) and not root.startswith(name)]
        if outside:
            raise CorruptError(
                f"the member {printable(outside[0])!r} is not in the folder {printable(root)!r} as the others are",
                rule="PT-05",
            )
        return root

    def has(self, record: str) -> bool:
        """Return whether the folder has such a member."""
        return self.root + record in self._rows

    def size_of(self, record: str) -> int | None:
        """Return how many bytes a member has when unpacked; None if there is no such member."""
        row = self._rows.get(self.root + record)
        return None if row is None else int(self.directory.sizes[row])

    def start_of(self, record: str) -> int:
        """Return where the bytes of a member begin."""
        return int(self.directory.starts[self._rows[self.root + record]])

    def text(self, record: str) -> str | None:
        """Return the text of a small member; None if there is no such member."""
        size = self.size_of(record)
        if size is None:
            return None
        if size > _MAX_TEXT:
            raise CorruptError(f"the record {record} has {size} bytes, expected at most {_MAX_TEXT}", rule="PT-08")
        return self.read(record).decode("ascii", "replace")

    def read(self, record: str) -> bytes:
        """Return all bytes of a member, compared with their checksum."""
        member = self.directory.member(self._rows[self.root + record])
        most = max_pickle_bytes(self._limits)
        if (member.size or 0) > most:
            raise LimitError(
                f"the record {printable(record)} has {member.size} bytes, more than the limit of {most}", rule="PT-17"
            )
        return read_member(self.source, member)

    def big_endian(self) -> bool:
        """Return whether the machine that wrote the file was big-endian."""
        order = self.text("byteorder")
        if order not in (None, "little", "big"):
            raise CorruptError(f"Unrecognized byteorder {printable(order or '')!r}", rule="PT-08")
        return order == "big"

    def facts(self) -> dict[str, str]:
        """Return what the small records state; torch checks the version as well."""
        version = self.text("version") or self.text(".data/version")
        number = (version or "1").strip()
        if not number.isdecimal() or not number.isascii() or int(number[:9]) not in _VERSIONS:
            raise UnsupportedError(f"an archive of the version {printable(number)!r}", rule="PT-08")
        records = {
            "version": version and number,
            "format_version": self.text(".format_version"),
            "storage_alignment": self.text(".storage_alignment"),
            "byteorder": self.text("byteorder"),
            LAYOUT_KEY: self.text(LAYOUT_KEY),
        }
        return {"root": self.root, **{name: text for name, text in records.items() if text is not None}}

    def attach(self, storages: Storages, folder: str, *, big_endian: bool, checksums: bool) -> None:
        """Set where the bytes of each storage are; all must exist, with the declared sizes (PT-20)."""
        directory = self.directory
        starts, sizes = directory.starts.tolist(), directory.sizes.tolist()
        stored = (directory.methods != DEFLATED).tolist()
        rows, prefix = self._rows, self.root + folder
        for storage in storages:
            row = rows.get(prefix + storage.key)
            if row is None:
                raise CorruptError(f"the storage {printable(storage.key)!r} has no member in the archive", rule="PT-20")
            if storage.nbytes != sizes[row]:
                raise CorruptError(
                    f"the storage {printable(storage.key)!r} is declared as {storage.count} of {storage.class_name}, "
                    f"which are {storage.nbytes} bytes; {sizes[row]} are available",
                    rule="PT-20",
                    offset=starts[row],
                )
            if not stored[row]:
                storage.data = DeflatedData(self.source, directory.member(row))
            elif big_endian:
                storage.data = SourceData(self.source, starts[row], sizes[row])
            else:
                storage.offset = starts[row]
            if checksums and stored[row]:
                check_member(self.source, directory.member(row))

    def unread(self, folder: str, storages: Storages, reason: str, *suffixes: str) -> list[Note]:
        """Return a note about the records of a folder that are not one of these storages."""
        prefix = self.root + folder
        names = [name.removeprefix(self.root) for name in self.directory.names if name.startswith(prefix)]
        if len(names) == len(storages.by_key):  # As attach has found them all, there are no others.
            return []
        known = {folder + key for key in storages.by_key}
        others = [name for name in names if name not in known and not name.endswith((*suffixes, "/"))]
        return [left_out_note(others, reason)] if others else []


def _read_directory(source: Source) -> Directory:
    try:
        with located(rule="PT-02"):
            return read_directory(source.read_at, source.size, partial(expect_reads, source))
    except (UnsupportedError, UnsafeContentError, LimitError) as error:
        rules = {UnsupportedError: "PT-03", UnsafeContentError: "PT-04", LimitError: "PT-07"}
        error.rule = rules[type(error)]
        raise


class Kind(NamedTuple):
    """Which of torch's archives a zip is; ``refusal`` states why one is not read, and ``rule`` by which rule."""

    name: str
    refusal: str | None = None
    rule: str = "PT-27"


def kind_of_zip(archive: ZipFile) -> Kind:
    """Distinguish torch's archives by the members that only one of them has."""
    if archive.has(_NEW_EXPORT):
        return Kind("exported")
    if archive.has(_OLD_EXPORT):
        old = "an exported program of torch 2.1 to 2.6, which keeps its weights in a zip inside the zip"
        return Kind("exported", old, "PT-06")
    if archive.has(_PACKAGE):
        return Kind("package", "a torch.package, which is code with its data")
    if archive.has(PICKLE):
        return Kind("script" if archive.has(_SCRIPT[0]) else "zip")
    suffixes = (".pt", ".pth", ".ckpt", ".bin")
    inner = next((name for name in archive.directory.names if name.endswith(suffixes)), None)
    if inner is not None:
        nested = f"a zip that contains {printable(inner)!r}, which may be a file of torch: unpack it first"
        return Kind("other", nested, "PT-06")
    if any(archive.has(name) for name in _SCRIPT):
        return Kind("script", "a TorchScript archive of the first releases")
    return Kind("other", f"a zip without {PICKLE}, so torch did not save it")


def read_zip(archive: ZipFile, limits: Limits, *, checksums: bool) -> PickledFile:
    """Read a zip of torch."""
    kind = kind_of_zip(archive)
    if kind.refusal is not None:
        raise UnsupportedError(f"it is {kind.refusal}", rule=kind.rule)
    facts, big_endian, storages = archive.facts(), archive.big_endian(), Storages()
    notes: list[Note] = []
    if kind.name == "exported":
        value = _exported_weights(archive, storages, notes)
        archive.attach(storages, _WEIGHTS, big_endian=big_endian, checksums=checksums)
        notes += archive.unread(_WEIGHTS, storages, "no weight refers to it", _CONFIG)
        notes += _exported_constants(archive)
        file = PickledFile("exported", value, [], 0, storages, big_endian, facts)
        return replace(file, notes=tuple(notes), pickle_bytes=archive.source.size)
    folder, record = "data/", PICKLE
    found = parse_whole(archive.read(PICKLE), torch_dialect(storages), limits, base=archive.start_of(PICKLE))
    value = found.value
    if kind.name == "script" and not storages.by_key:
        # A frozen model: its weights are constants of its code.
        folder, record = "constants/", "constants.pkl"
        constants = parse_whole(archive.read(record), torch_dialect(storages), limits, base=archive.start_of(record))
        if storages.by_key:
            value = {"constants": constants.value}
            text = "the model is frozen: its weights are constants of its code, which are numbered, not named"
            notes.append(Note("nameless", text))
    archive.attach(storages, folder, big_endian=big_endian, checksums=checksums)
    notes += archive.unread("data/", storages if folder == "data/" else Storages(), "the pickle does not refer to it")
    if kind.name == "script":
        notes += archive.unread("traced_inputs/", Storages(), "an example input, not in the state dict")
        if folder == "data/":
            notes += archive.unread("constants/", Storages(), "a constant of the code, not in the state dict")
    file = PickledFile(kind.name, value, found.globals, found.protocol, storages, big_endian, facts)
    return replace(file, notes=tuple(notes), pickle_bytes=archive.size_of(record) or 0)


def tensor_members(archive: ZipFile, limits: Limits) -> frozenset[str]:
    """Return the members that every loader takes as the elements of tensors, and never unpickles."""
    kind = kind_of_zip(archive)
    folders = {"zip": ("data/",), "script": ("data/",), "exported": (_WEIGHTS, _CONSTANTS)}.get(kind.name, ())
    names: set[str] = set()
    if kind.name == "exported":
        for folder, config in ((_WEIGHTS, _CONFIG), (_CONSTANTS, _CONSTANTS_CONFIG)):
            entries = _exported_table(archive, folder, config).values()
            pickled = {entry.get("path_name") for entry in entries if entry.get("use_pickle") is not False}
            stored = {str(entry.get("path_name")) for entry in entries if entry.get("path_name") not in pickled}
            # torch unpickles a member of another name, whatever the table says.
            names |= {f"{folder}{name}" for name in stored if _RAW_NAME.fullmatch(name)}
        if any(name.endswith(_OLD_CONFIG) for name in archive.directory.names):
            names.clear()  # Other releases may take the members from this table.
    elif folders and kind.refusal is None:
        names |= {f"{folders[0]}{storage.key}" for storage in read_zip(archive, limits, checksums=False).storages}
    if kind.name == "script":
        numbered = re.compile(re.escape(archive.root) + r"(?:constants|traced_inputs)/[0-9]+")
        names |= {name.removeprefix(archive.root) for name in archive.directory.names if numbered.fullmatch(name)}
    return frozenset(archive.root + name for name in names)


# --------------------------------------------------------------------------------------------------- exported programs


def _exported_weights(archive: ZipFile, storages: Storages, notes: list[Note]) -> dict[str, PickledTensor]:
    """Return the weights of an exported program by name; note those that are left out."""
    weights: dict[str, PickledTensor] = {}
    for name, described in _exported_table(archive, _WEIGHTS, _CONFIG).items():
        with located(tensor=name, rule="PT-26"):
            if described.get("use_pickle"):
                notes.append(Note("left out", f"left out: {printable(name)}, which is a zip inside the zip", name))
            else:
                weights[name] = _exported_tensor(archive, storages, described)
    return weights


def _exported_table(archive: ZipFile, folder: str, suffix: str) -> dict[str, dict[str, Any]]:
    """Return the entries of the tables in a folder by name; with the model's name if there are several models."""
    prefix = archive.root + folder
    tables = [name for name in archive.directory.names if name.startswith(prefix) and name.endswith(suffix)]
    found: dict[str, dict[str, Any]] = {}
    for table in tables:
        model = f"{table[len(prefix) : -len(suffix)]}." if len(tables) > 1 else ""
        with located(rule="PT-26"):
            raw = archive.read(table.removeprefix(archive.root))
            entries = _object(_object(read_json(raw, _TABLE), "the table").get("config"), "config")
            found |= {model + name: _object(entry, "an entry") for name, entry in entries.items()}
    return found


def _exported_constants(archive: ZipFile) -> list[Note]:
    """Return notes about what an exported program stores besides its state dict."""
    names = list(_exported_table(archive, _CONSTANTS, _CONSTANTS_CONFIG))
    samples = [name for name in archive.directory.names if name.startswith(f"{archive.root}data/sample_inputs/")]
    groups = ((names, "constants"), (samples, "inputs of the program"))
    return [left_out_note(group, f"{what}, not in the state dict") for group, what in groups if group]


def _exported_tensor(archive: ZipFile, storages: Storages, entry: dict[str, Any]) -> PickledTensor:
    path, meta = entry.get("path_name"), _object(entry.get("tensor_meta"), "tensor_meta")
    size = archive.size_of(_WEIGHTS + path) if isinstance(path, str) else None
    if not isinstance(path, str) or size is None:
        raise CorruptError("its bytes have no member in the archive")
    if meta.get("layout", _STRIDED) != _STRIDED:
        raise CorruptError(f"the layout {meta.get('layout')}, which raw bytes cannot have")
    code = meta.get("dtype")
    if type(code) is not int or code not in _EXPORTED_DTYPES:
        raise CorruptError("an unknown dtype")
    storage = storages.by_key.setdefault(path, Storage(path, "UntypedStorage", None, size))
    shape, strides = _numbers(meta.get("sizes"), "sizes"), _numbers(meta.get("strides"), "strides")
    (offset,) = _numbers([meta.get("storage_offset", {"as_int": 0})], "storage_offset")
    requires_grad = meta.get("requires_grad") is True
    return view(storage, DTYPES[_EXPORTED_DTYPES[code]], offset, shape, strides, requires_grad=requires_grad)


def _numbers(values: Any, what: str) -> tuple[Any, ...]:
    right = isinstance(values, list) and all(isinstance(value, dict) and list(value) == ["as_int"] for value in values)
    if not right:
        raise CorruptError(f"{what} is not a list of numbers")
    return tuple(value["as_int"] for value in values)


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CorruptError(f"{what} is not an object")
    return value
