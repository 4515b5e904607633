"""The zip that `torch.save` writes: one pickle and the storages that it refers to, each a member of its own."""

from __future__ import annotations

from typing import NamedTuple

from ...errors import CorruptError, LimitError, UnsafeContentError, UnsupportedError, located, printable
from ...io.source import Source
from ...limits import Limits
from ...tensor.snapshot import SourceData
from ..codec.pickle import Dialect
from ..codec.zip import DEFLATED, MOST_INFLATED, Directory, inflate, read_directory
from .archive import MOST_PICKLE_BYTES, DeflatedData, PickledFile, check_crc, check_stored_crc, parse
from .runs import TensorRuns
from .storages import Storage, Storages
from .tensor_calls import TensorCalls

_PICKLE = "data.pkl"
_LONGEST_TEXT = 4096
_VERSIONS = range(1, 11)
_NEW_EXPORT, _OLD_EXPORT, _PACKAGE = "archive_format", "serialized_exported_program.json", ".data/extern_modules"
_SCRIPT = ("constants.pkl", "model.json")


class ZipFile:
    """A zip and the folder in which all its members are."""

    def __init__(self, source: Source, limits: Limits) -> None:
        self._source = source
        self._limits = limits
        self.directory = _directory(source)
        self._rows = dict(zip(self.directory.names, range(len(self.directory.names)), strict=True))
        inflated = int(self.directory.sizes[self.directory.methods == DEFLATED].sum())
        if inflated > max(4 * source.size, MOST_INFLATED):
            raise LimitError(f"members that inflate to {inflated} bytes in a file of {source.size}", rule="PT-07")
        self.root = self._find_root()

    def _find_root(self) -> str:
        names = self.directory.names
        pickles = [name for name in names if name.endswith(_PICKLE) and (name == _PICKLE or name[-9] == "/")]
        if not pickles:
            shared = names[0].partition("/")[0] + "/" if names and "/" in names[0] else ""
            return shared if all(name.startswith(shared) for name in names) else ""
        if len(pickles) > 1:
            raise CorruptError(
                f"{len(pickles)} members are called {_PICKLE}; which one counts is unclear", rule="PT-05"
            )
        root = pickles[0].removesuffix(_PICKLE)
        outside = next((name for name in names if not name.startswith(root) and not root.startswith(name)), None)
        if outside is not None:
            raise CorruptError(
                f"the member {printable(outside)!r} is not in the folder {printable(root)!r} as the others are",
                rule="PT-05",
            )
        return root

    def has(self, record: str) -> bool:
        """Whether there is such a member in the folder."""
        return self.root + record in self._rows

    def size_of(self, record: str) -> int | None:
        """How many bytes a member has when unpacked; None if there is no such member."""
        row = self._rows.get(self.root + record)
        return None if row is None else int(self.directory.sizes[row])

    def text(self, record: str) -> str | None:
        """The text of a small member; None if there is no such member."""
        if not self.has(record):
            return None
        if self.directory.sizes[self._rows[self.root + record]] > _LONGEST_TEXT:
            raise CorruptError(f"the record {record} has more than {_LONGEST_TEXT} bytes", rule="PT-08")
        return self.read(record).decode("ascii", "replace")

    def read(self, record: str) -> bytes:
        """All bytes of a member, checked by their checksum."""
        row = self._rows[self.root + record]
        place, size, crc = self.place(row)
        most = MOST_PICKLE_BYTES if self._limits.header_bytes is None else self._limits.header_bytes
        if size > most:
            raise LimitError(
                f"the record {printable(record)} has {size} bytes, more than the limit of {most}", rule="PT-17"
            )
        data = self._source.read_at(place, int(self.directory.packed[row]))
        if self.directory.methods[row] == DEFLATED:
            with located(rule="PT-07", offset=place):
                data = inflate(data, size, most=size)
        check_crc(data, crc, place)
        return data

    def place(self, row: int) -> tuple[int, int, int]:
        """Where the bytes of a member begin, how many there are when unpacked, and their checksum."""
        directory = self.directory
        return int(directory.starts[row]), int(directory.sizes[row]), int(directory.crcs[row])

    def big_endian(self) -> bool:
        """Whether the machine that wrote the file was big-endian."""
        order = self.text("byteorder")
        if order not in (None, "little", "big"):
            raise CorruptError(f"Unrecognized byteorder {printable(order or '')!r}", rule="PT-08")
        return order == "big"

    def version(self) -> str | None:
        """The version of the archive, which torch checks as well."""
        version = self.text("version") or self.text(".data/version")
        number = (version or "1").strip()
        if not number.isdecimal() or not number.isascii() or int(number[:9]) not in _VERSIONS:
            raise UnsupportedError(f"an archive of the version {printable(number)!r}", rule="PT-08")
        return None if version is None else number

    def attach(self, storages: Storages, folder: str, *, big_endian: bool, checksums: bool) -> None:
        """Say where the bytes of each storage are; all must be there, and as many as declared (PT-20)."""
        starts, sizes = self.directory.starts.tolist(), self.directory.sizes.tolist()
        stored = (self.directory.methods != DEFLATED).tolist()
        rows, prefix = self._rows, self.root + folder
        for storage in storages:
            row = rows.get(prefix + storage.key)
            if row is None:
                raise CorruptError(f"the storage {printable(storage.key)!r} has no member in the archive", rule="PT-20")
            if storage.nbytes != sizes[row]:
                raise _other_size(storage, sizes[row], starts[row])
            if not stored[row]:
                storage.data = DeflatedData(
                    self._source,
                    starts[row],
                    int(self.directory.packed[row]),
                    sizes[row],
                    int(self.directory.crcs[row]),
                )
            elif big_endian:
                storage.data = SourceData(self._source, starts[row], sizes[row])
            else:
                storage.offset = starts[row]
            if checksums and stored[row]:
                check_stored_crc(self._source, *self.place(row))

    def facts(self) -> dict[str, str]:
        """What the small records say."""
        records = {
            "version": self.version(),
            "format_version": self.text(".format_version"),
            "storage_alignment": self.text(".storage_alignment"),
            "byteorder": self.text("byteorder"),
        }
        return {"root": self.root, **{name: text for name, text in records.items() if text is not None}}


def _directory(source: Source) -> Directory:
    try:
        with located(rule="PT-02"):
            return read_directory(source.read_at, source.size)
    except UnsupportedError as error:
        error.rule = "PT-03"
        raise
    except UnsafeContentError as error:
        error.rule = "PT-04"
        raise
    except LimitError as error:
        error.rule = "PT-07"
        raise


def _other_size(storage: Storage, size: int, offset: int) -> CorruptError:
    return CorruptError(
        f"the storage {printable(storage.key)!r} is declared as {storage.count} of {storage.class_name}, which are "
        f"{storage.nbytes} bytes; only {size} are available"
        if size < storage.nbytes
        else f"the storage {printable(storage.key)!r} is declared as {storage.nbytes} bytes; its member has {size}",
        rule="PT-20",
        offset=offset,
    )


class Kind(NamedTuple):
    """Which of torch's archives a zip is; ``refusal`` says why one is not read, and ``rule`` by which rule."""

    name: str
    refusal: str | None = None
    rule: str = "PT-27"


def kind_of_zip(archive: ZipFile) -> Kind:
    """Tell torch's archives apart by the members that only one of them has."""
    if archive.has(_NEW_EXPORT):
        return Kind("exported")
    if archive.has(_OLD_EXPORT):
        return Kind(
            "exported",
            "an exported program of torch 2.1 to 2.6, which keeps its weights in a zip inside the zip",
            "PT-06",
        )
    if archive.has(_PACKAGE):
        return Kind("package", "a torch.package, which is code with its data")
    if not archive.has(_PICKLE):
        inner = next(
            (name for name in archive.directory.names if name.endswith((".pt", ".pth", ".ckpt", ".bin"))), None
        )
        if inner is not None:
            return Kind(
                "other",
                f"a zip that holds {printable(inner)!r}, which may be a file of torch: unpack it first",
                "PT-06",
            )
        if any(archive.has(name) for name in _SCRIPT):
            return Kind("script", "a TorchScript archive of the first releases")
        return Kind("other", f"a zip without {_PICKLE}, so none that torch saved")
    return Kind("script" if archive.has(_SCRIPT[0]) else "zip")


def read_zip(archive: ZipFile, limits: Limits, *, checksums: bool) -> PickledFile:
    """The object graph of a zip of `torch.save` or of TorchScript."""
    facts, big_endian = archive.facts(), archive.big_endian()
    storages = Storages()
    calls = TensorCalls(storages)
    data = archive.read(_PICKLE)
    dialect = Dialect(builders=calls.builders(), persistent=calls.persistent, recogniser=TensorRuns(storages).recognise)
    start = archive.place(archive.directory.names.index(archive.root + _PICKLE))[0]
    found = parse(data, 0, dialect, limits, base=start)
    if found.end != len(data):
        raise CorruptError(f"{len(data) - found.end} bytes follow the pickle", rule="PT-16", offset=start + found.end)
    archive.attach(storages, "data/", big_endian=big_endian, checksums=checksums)
    container = kind_of_zip(archive).name
    return PickledFile(container, found.value, found.globals, found.protocol, storages, big_endian, facts)
