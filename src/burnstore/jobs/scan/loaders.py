"""Follow what common programs would do with the bytes of a file, for each way in which one may read them.

    pickle.load, torch.load, joblib   a pickle at the first byte, whatever the format; then those that follow it
    torch.load                        the five pickles of a legacy stream; the members of a zip or a tar
    torch.jit.load                    the pickles and the code of TorchScript in a zip
    torch.export.load, AOTInductor    pickled weights and constants, symbolic expressions, shared libraries in a zip
    numpy.load                        an array of objects, alone or in a zip; otherwise a pickle
    joblib.load                       the same, compressed by zlib (also behind ZF), gzip, bz2, lzma or xz
    torch.package                     the sources in a zip, which it imports
    zipfile, tarfile                  members of any name, also of an archive that does not begin the file

Archives inside archives, and files inside strings of a pickle, are followed as files of their own. Nothing is run.
Programs run a pickle before they notice that the stream around it is damaged, so what precedes the damage counts. Data
that cannot be unpacked completely is an error: no verdict is possible.
"""

from __future__ import annotations

import ast
import bz2
import contextlib
import io
import lzma
import math
import operator
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import BurnstoreError, LimitError, TruncatedError, UnsafeContentError, UnsupportedError, printable
from ...formats.codec.pickle_trace import LOADS_PICKLE, Trace, trace_all
from ...formats.codec.tar import BLOCK, read_members
from ...formats.codec.zip import DEFLATED, END_MAGIC, LOCAL_MAGIC, Member, inflate
from ...formats.pytorch.archive import ZipFile, kind_of_zip, tensor_members
from ...formats.pytorch.salvage import LOCAL_HEADER, find_bytes
from ...formats.pytorch.stream import MAX_PICKLE_BYTES, begins_like_legacy, read_legacy
from ...io.documents import Bounds, read_json
from ...io.source import BytesSource, Source
from ...limits import Limits
from ...tensor.plain import Plain
from .severity import DANGEROUS, HARMLESS, SUSPICIOUS, severity_of

_FIRST_READ = 1 << 20
_LEGACY_PICKLES = 5
_NUMPY = b"\x93NUMPY"
_MAX_ARRAY_HEADER = 1 << 20
_NATIVE = (b"\x7fELF", b"MZ", b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe")
_UNIVERSAL = b"\xca\xfe\xba\xbe"  # programs for several processors; Java's classes begin in the same way
_BUILT = (".cpp", ".cc", ".cu", ".o", ".obj", ".ptx", ".hsaco", ".spv", ".so", ".dll", ".dylib", ".pyd")
_PICKLES = re.compile(r"\.(?:pkl|pickle|debug_pkl|joblib|dill|pt|pth|ckpt)$|(?:^|/)(?:opaque|custom)_obj_[^/]*$")
_PROGRAM = Bounds(MAX_PICKLE_BYTES, 20_000_000, 500, text=None, constants=True)
_PROTOCOL = re.compile(rb"\x80[\x00-\x05]")
_MAX_PARTS, _MAX_LEVELS, _MAX_FAILURES = 20_000, 5, 100
_MAX_UNPACKED = 64 << 20
_MAX_TOTAL, _TIMES_FILE = 32 << 20, 8
_END_OF_ZIP = 22 + (1 << 16)
_EMBEDDED = re.compile(rb"\x80[\x02-\x05]|\xc2\x80[\x02-\x05]|PK\x03\x04|\x93NUMPY|\xc2\x93NUMPY|\x1f\x8b\x08|\x7fELF")
_COMPRESSED: tuple[tuple[bytes, Callable[[], Any]], ...] = (
    (b"\x1f\x8b\x08", lambda: zlib.decompressobj(zlib.MAX_WBITS | 16)),
    *((bytes((0x78, level)), lambda: zlib.decompressobj()) for level in (0x01, 0x5E, 0x9C, 0xDA)),
    (b"BZh", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\0", lzma.LZMADecompressor),
    (b"\x5d\0", lzma.LZMADecompressor),
)
_OLD_JOBLIB = b"ZF0x"
_OLD_JOBLIB_BYTES = 21
_OPAQUE = {
    b"\x04\x22\x4d\x18": "lz4",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
    b"\x1f\x9d": "compress",
    b"LZIP": "lzip",
    b"\x89HDF\r\n\x1a\n": "HDF5",
}
_STEP = 64 << 10
_DAMAGE = (zlib.error, OSError, EOFError, lzma.LZMAError)
_SCRIPT_CALLS = re.compile(rb"\b(?:torch|ops\s*\.\s*\w+)\s*\.\s*(?:save|load|from_file|read_file|write_file)\b")
_EXPRESSION = re.compile(r"[\w\s()+\-*/,<>=!&|~%.]*")
_FUNCTIONS = """
    Max Min Mod PythonMod FloorDiv CleanDiv CeilDiv IntTrueDiv FloatTrueDiv ModularIndexing Where Piecewise Identity Abs
    Eq Ne Lt Le Gt Ge And Or Not Equality Unequality StrictLessThan StrictGreaterThan LessThan GreaterThan Pow
    PowByNatural FloatPow ToFloat TruncToInt TruncToFloat CeilToInt FloorToInt RoundToInt RoundDecimal LShift RShift
    IsNonOverlappingAndDenseIndicator Integer Float Rational Symbol sqrt floor ceiling exp log sin cos tan sinh cosh
    tanh asin acos atan BitwiseFn_bitwise_and BitwiseFn_bitwise_or BitwiseFn_bitwise_xor
"""
_KNOWN_FUNCTIONS = frozenset(_FUNCTIONS.split())


@dataclass(frozen=True, slots=True)
class Finding(Plain):
    """Code that a program would run or load because of a file."""

    severity: str
    """``dangerous``, or ``suspicious`` if its effect is not known."""
    name: str
    """The code: module and name, joined by a dot; or what kind of code it is."""
    called: bool
    """Whether it would be called, not only imported."""
    member: str
    """The member of the archive, empty if the file is not an archive."""
    position: int
    """The offset in the member, or in the file."""
    kind: str = "import"
    """``import`` for a name in a pickle; ``pickle``, ``native code``, ``Python source``, ``TorchScript``,
    ``expression`` or ``path`` for anything else."""


class Inspector:
    """Follow every way in which a program may read one file.

    ``error`` is set if something may have been missed.
    """

    def __init__(self, source: Source, limits: Limits) -> None:
        self.findings: list[Finding] = []
        self.error: BurnstoreError | None = None
        self.limits = limits
        self._parts = 0
        self._pending: list[tuple[Source, str, int]] = []
        self._bytes_left = _MAX_TOTAL + _TIMES_FILE * source.size

    def run(self, source: Source) -> bool:
        """Inspect the file; return whether it is known to be complete: pickles to its end, an array, an archive."""
        try:
            is_complete = self._inspect(source, "", 0)
            while self._pending:
                self._inspect(*self._pending.pop())
            return is_complete
        except BurnstoreError as error:
            self.error = self.error or error
            return False

    def run_part(self, source: Source, start: int, length: int, place: str) -> None:
        """Inspect bytes of a file that a program would load as a file of their own."""
        if start + length > source.size:
            self.error = self.error or TruncatedError(f"{place}: {length} bytes announced, the file ends before them")
            return
        try:
            self._inspect_loaded(_PartOfSource(source, start, length), place, 0)
            while self._pending:
                self._inspect(*self._pending.pop())
        except BurnstoreError as error:
            self.error = self.error or error

    def _inspect(self, source: Source, member: str, level: int) -> bool:
        """Judge bytes as a file; return whether they are known to be complete data."""
        self._parts += 1
        if self._parts > _MAX_PARTS or level > _MAX_LEVELS:
            raise LimitError(f"more than {_MAX_PARTS:,} files in a file, or {_MAX_LEVELS} levels of them", rule="PT-17")
        head = source.read_at(0, min(BLOCK, source.size))
        complete = self._inspect_pickles(source, head, member, level)
        if head.startswith((*_NATIVE, _UNIVERSAL)) and (source.size > 1 << 10 or head.startswith(b"\x7fELF")):
            self.findings.append(Finding(DANGEROUS, "a program or shared library", True, member, 0, "native code"))
        if head.startswith(_NUMPY):
            complete = self._inspect_array(source, member, level)
        for magic, decompressor in _COMPRESSED:
            if head.startswith(magic):
                complete = self._inspect_compressed(source, decompressor, member, level)
        if head.startswith(_OLD_JOBLIB):
            skipped = _OLD_JOBLIB_BYTES + (head[_OLD_JOBLIB_BYTES : _OLD_JOBLIB_BYTES + 1] == b" ")
            part = _PartOfSource(source, skipped, max(source.size - skipped, 0))
            complete = self._inspect_compressed(part, zlib.decompressobj, member, level)
        for magic, name in _OPAQUE.items():
            if head.startswith(magic):
                self.error = self.error or UnsupportedError(f"{member or 'the file'}: {name} data cannot be judged")
        if head.startswith(b"PK") or _is_zip_for_python(source):
            complete = self._inspect_zip(source, member, level)
        if len(head) == BLOCK and _is_tar_header(head):
            complete = self._inspect_tar(source, member, level)
        return complete

    def _inspect_inner(self, source: Source | bytes, member: str, level: int) -> bool:
        if isinstance(source, bytes):
            source = BytesSource(source, share=True)
        self._bytes_left -= source.size
        if self._bytes_left < 0:
            raise LimitError("the files inside this one are too large in total", rule="PT-17")
        return self._inspect(source, member, level + 1)

    def _inspect_pickles(self, source: Source, head: bytes, member: str, level: int, start: int = 0) -> bool:
        """Follow the pickles from a byte on; return whether they fill the file."""
        is_legacy, length = begins_like_legacy(head) and not start, _FIRST_READ
        while True:
            data = source.read_at(start, min(length, source.size - start))
            is_all = start + len(data) == source.size
            foreign = data[:1] != b"\x80"
            persistent = not foreign or is_legacy or bool(member)  # Of a bare file, pickle.load reads the first pickle.
            most = _LEGACY_PICKLES if is_legacy else None
            traces = list(trace_all(data, foreign=foreign, persistent=persistent, most=most))
            goes_on = bool(traces) and (traces[-1].is_whole or traces[-1].is_cut)
            if is_all or not goes_on or (is_legacy and len(traces) == _LEGACY_PICKLES):
                break
            if length >= MAX_PICKLE_BYTES:
                raise LimitError(f"pickles of more than {MAX_PICKLE_BYTES} bytes", rule="PT-17")
            length *= 8
        for trace in traces:
            self._add_names(trace, member, start, foreign=foreign)
            loaded = {(blob.start, blob.stop) for pickled, blob in trace.loaded if pickled is data}
            for pickled, blob in {
                (id(pickled), blob.start, blob.stop, blob.encoding): (pickled, blob) for pickled, blob in trace.loaded
            }.values():
                self._inspect_loaded(blob.content(pickled) or b"", f"{member}[{start + blob.start}]", level)
            for begin, end in trace.blobs:
                if (begin, end) not in loaded and _EMBEDDED.match(data, begin, end):
                    inner = data[begin:end]
                    if inner[:1] == b"\xc2":  # Bytes as Python 2 spells them: characters below 256, in UTF-8.
                        inner = inner.decode("utf-8", "ignore").encode("latin-1", "ignore")
                    self._inspect_inner(inner, f"{member}[{start + begin}]", level)
        whole = [trace for trace in traces if trace.is_whole]
        if whole and len(whole) < len(traces) and data.startswith(_NUMPY, traces[-1].end):  # A second numpy.load.
            after = start + whole[-1].end
            self._pending.append((_PartOfSource(source, after, source.size - after), f"{member}[{after}]", level))
        if is_legacy:
            rest = _after_legacy(source, self.limits) if len(whole) == _LEGACY_PICKLES else None
            if rest is not None:  # A second torch.load of an open file reads on.
                self._pending.append((rest, member, level))
            return len(whole) == _LEGACY_PICKLES
        return bool(whole) and len(whole) == len(traces) and is_all and whole[-1].end == len(data)

    def _inspect_loaded(self, data: Source | bytes, member: str, level: int) -> None:
        """Follow bytes that a call would unpickle."""
        if not self._inspect_inner(data, member, level):
            unproved = f"{member}: bytes that a call unpickles are neither whole pickles nor a file of torch"
            self.error = self.error or UnsupportedError(unproved)

    def _add_names(self, trace: Trace, member: str, start: int, *, foreign: bool) -> None:
        names: dict[tuple[str, str], tuple[int, bool]] = {}
        for traced in trace.names:
            key = traced.module, traced.name
            if key == LOADS_PICKLE and traced.uses == traced.loads and not traced.changed:
                continue  # What it loads is a string of this pickle, which is followed.
            if key[0] == "copyreg" and foreign and not trace.is_whole and not traced.called:
                continue  # A byte of something that is not a pickle.
            if traced.changed:
                self._suspect(f"{'.'.join(key)} is changed", "pickle", member, start + traced.position)
            first, called = names.get(key, (traced.position, False))
            names[key] = first, called or traced.called
        for (module, name), (position, called) in names.items():
            severity = severity_of(module, name)
            if severity != HARMLESS:
                self.findings.append(Finding(severity, f"{module}.{name}", called, member, start + position))
        if trace.is_ambiguous and (trace.is_whole or trace.names):
            self._suspect("frames that readers of pickles follow differently", "pickle", member, start + trace.end)

    def _suspect(self, what: str, kind: str, member: str, position: int = 0) -> None:
        self.findings.append(Finding(SUSPICIOUS, printable(what), False, member, position, kind))

    def _inspect_array(self, source: Source, member: str, level: int) -> bool:
        """Follow the pickle of an array of objects; an array of anything else is data."""
        begin, end = _array_bounds(source)
        if end is None:
            return begin < source.size and self._inspect_pickles(source, b"", member, level, begin)
        if end < source.size:  # A second numpy.load of an open file reads on.
            self._pending.append((_PartOfSource(source, end, source.size - end), f"{member}[{end}]", level))
        return begin <= source.size

    def _inspect_compressed(self, source: Source, make: Callable[[], Any], member: str, level: int) -> bool:
        """Follow what compressed data unpack to: all of it, or the first bytes if no program would read on."""
        data = source.read_at(0, min(source.size, MAX_PICKLE_BYTES))
        inner, is_sound = _unpacked(data, make, _FIRST_READ)
        if len(inner) == _FIRST_READ and _is_followed(inner):
            inner, is_sound = _unpacked(data, make, _MAX_UNPACKED)
            if len(inner) == _MAX_UNPACKED or len(data) < source.size:
                raise LimitError(f"compressed data of more than {_MAX_UNPACKED} bytes", rule="PT-17")
        if not is_sound and (inner or data[:1] not in b"x]"):  # two bytes also begin what is not compressed
            damaged = UnsupportedError(
                f"{member or 'the file'}: the compressed data is damaged; its end was not judged"
            )
            self.error = self.error or damaged
        self._inspect_inner(inner, f"{member}[unpacked]", level)
        return False

    def _inspect_zip(self, source: Source, member: str, level: int) -> bool:
        try:
            archive = ZipFile(source, self.limits)
        except BurnstoreError as error:
            if source.read_at(0, 4) == LOCAL_MAGIC and self._inspect_series(source, member, level):
                return True
            if isinstance(error, UnsafeContentError):
                self.findings.append(Finding(DANGEROUS, error.message, False, member, error.offset or 0, "path"))
            self.error = self.error or error
            for name, data in self._loose_members(source):
                self._inspect_member(BytesSource(data, share=True), name, member, level)
            return False
        try:
            raw = tensor_members(archive, self.limits)
        except BurnstoreError:
            raw = frozenset()  # Other programs may read what torch cannot.
        script = f"{archive.root}code/" if kind_of_zip(archive).name == "script" else None
        for name, stored in zip(archive.directory.names, archive.directory.members(), strict=True):
            is_script = script is not None and name.startswith(script)
            if name.endswith((".py", ".pyc")) and not is_script:  # torch.package and Python import it.
                self._suspect(name, "Python source", f"{member}/{name}" if member else name)
            if name.endswith(_BUILT):  # AOTInductor compiles and links it, and loads the result.
                place = f"{member}/{name}" if member else name
                self.findings.append(Finding(DANGEROUS, printable(name), True, place, 0, "native code"))
            # numpy.load takes a storage for an array if it begins like one.
            is_read = stored.size and (name not in raw or _head(source, stored) == _NUMPY)
            if is_read and not _is_plain_array(source, stored):
                if (stored.size or 0) > max(self._bytes_left, 0):  # before it is unpacked
                    raise LimitError("the files inside this one are too large in total", rule="PT-17")
                self._inspect_member(_content(source, stored), name, member, level)
        return True

    def _inspect_member(self, source: Source, name: str, member: str, level: int) -> None:
        place = f"{member}/{name}" if member else name
        is_text = name.endswith((".py", ".json"))
        if is_text and source.size > MAX_PICKLE_BYTES:
            raise LimitError(f"a member of {source.size} bytes, more than {MAX_PICKLE_BYTES}", rule="PT-17")
        data = source.read_at(0, source.size if is_text else min(2, source.size))
        if name.endswith(".py"):
            for match in _SCRIPT_CALLS.finditer(data):
                self._suspect(match[0].decode("utf-8", "replace"), "TorchScript", place, match.start())
        elif name.endswith(".json"):
            self._inspect_expressions(data, place)
        is_complete = self._inspect_inner(source, place, level)
        if not is_complete and (_PICKLES.search(name) or _PROTOCOL.match(data)):
            unproved = UnsupportedError(f"{place}: the pickles in it do not fill it, each up to its STOP")
            self.error = self.error or unproved

    def _inspect_series(self, source: Source, member: str, level: int) -> bool:
        """Follow zips that follow each other without gaps, as in the files of a distributed checkpoint."""
        begin, at, failures, parts = 0, 0, 0, []
        while begin < source.size and failures < _MAX_FAILURES:
            at = find_bytes(source, END_MAGIC, at)
            if at < 0 or at + 22 > source.size:
                return False
            end = at + 22 + int.from_bytes(source.read_at(at + 20, 2), "little")
            part = _PartOfSource(source, begin, min(end, source.size) - begin)
            try:
                ZipFile(part, self.limits)
            except BurnstoreError:
                failures, at = failures + 1, at + 1
            else:
                parts.append(part)
                begin = at = end
        if begin != source.size or len(parts) < 2:
            return False
        for part in parts:
            self._inspect(part, f"{member}[{part.start}]", level + 1)
        return True

    def _loose_members(self, source: Source) -> Iterator[tuple[str, bytes]]:
        """Yield the members of a damaged zip: as Python's reader finds them, and by their own headers."""
        archive = _open_zip(source)
        for info in archive.infolist()[:_MAX_PARTS] if archive is not None else ():
            if info.file_size <= min(_MAX_UNPACKED, self._bytes_left):
                try:
                    yield info.filename, archive.read(info)  # type: ignore[union-attr]
                except Exception:  # It may still be found by its own header.
                    continue
        if source.size > MAX_PICKLE_BYTES:
            raise LimitError(f"a damaged zip of more than {MAX_PICKLE_BYTES} bytes", rule="PT-17")
        data = source.read_at(0, source.size)
        at = data.find(LOCAL_MAGIC)
        while 0 <= at <= len(data) - LOCAL_HEADER.size:
            _, _, _, method, _, _, _, packed, size, name_length, extra = LOCAL_HEADER.unpack_from(data, at)
            name_at = at + LOCAL_HEADER.size
            name = data[name_at : name_at + name_length].decode("utf-8", "replace")
            start = name_at + name_length + extra
            after = data.find(LOCAL_MAGIC, at + 1)
            if method == DEFLATED:
                try:
                    most = min(_MAX_UNPACKED, max(self._bytes_left, 1))
                    content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(memoryview(data)[start:], most)
                except zlib.error:
                    content = b""
            else:
                end = start + size if 0 < size == packed else after if after > 0 else len(data)
                content = data[start:end]
            yield name, content
            at = after

    def _inspect_tar(self, source: Source, member: str, level: int) -> bool:
        try:
            with tarfile.open(fileobj=io.BufferedReader(_SourceFile(source)), mode="r:") as archive:
                for count, info in enumerate(archive):
                    name = printable(info.name)
                    if count >= _MAX_PARTS:
                        raise LimitError(f"a tar of more than {_MAX_PARTS:,} members", rule="PT-17")
                    if info.name.startswith("/") or ".." in info.name.split("/") or info.issym() or info.islnk():
                        what = f"a member or link that leads out of the archive: {name}"
                        self.findings.append(Finding(DANGEROUS, what, False, member, info.offset, "path"))
                    if info.size > max(source.size, 1) or info.size > MAX_PICKLE_BYTES:
                        raise LimitError(f"a member of {info.size} bytes in a tar of {source.size}", rule="PT-17")
                    held = archive.extractfile(info) if info.isreg() else None
                    if held is not None:
                        self._inspect_member(BytesSource(held.read(), share=True), name, member, level)
            read_members(source.read_at, source.size)
        except LimitError:
            raise
        except (tarfile.TarError, EOFError, OSError, KeyError, ValueError) as error:
            unread = UnsupportedError(f"the tar cannot be read: {error}", rule="PT-12")
            self.error = self.error or (error if isinstance(error, BurnstoreError) else unread)
            return False
        return True

    def _inspect_expressions(self, data: bytes, member: str) -> None:
        """Judge the symbolic expressions of an exported program, which its loader evaluates as Python."""
        if b"expr_str" not in data and b"\\u" not in data:
            return
        try:
            todo: list[Any] = [read_json(data, _PROGRAM)]
        except BurnstoreError as error:
            self.error = self.error or UnsupportedError(f"{member}: the JSON cannot be judged: {error.message}")
            return
        while todo:
            value = todo.pop()
            if isinstance(value, dict):
                text = value.get("expr_str")
                if isinstance(text, str) and not _is_expression(text):
                    self.findings.append(Finding(DANGEROUS, printable(text), True, member, 0, "expression"))
                todo += value.values()
            elif isinstance(value, list):
                todo += value


def _unpacked(data: bytes, make: Callable[[], Any], most: int) -> tuple[bytes, bool]:
    """Return what consecutive streams unpack to, up to a length, and whether they are intact.

    A decompressor withholds the bytes that it unpacked just before the damage; a second pass takes them one at a time.
    """
    out, is_sound = bytearray(), True
    while data and len(out) < most and is_sound:
        before = len(out)
        try:
            rest = _unpack_stream(make(), data, out, most)
        except _DAMAGE:
            good, rest = len(out) - before, None
            del out[before:]
            with contextlib.suppress(*_DAMAGE):
                _unpack_stream(make(), data, out, most, good)
        is_sound = rest is not None
        data = (rest or b"").lstrip(b"\0")
    return bytes(out), is_sound


def _unpack_stream(machine: Any, data: bytes, out: bytearray, most: int, good: int | None = None) -> bytes | None:
    """Append what one stream unpacks to, one byte at a time after ``good`` bytes; return the bytes after the stream.

    Return None if the stream does not end.
    """
    start = len(out)
    while len(out) < most:
        step = 1 if good is not None and len(out) - start >= good else _STEP
        made = machine.decompress(data, min(step, most - len(out)))
        out += made
        if machine.eof:
            return bytes(machine.unused_data)
        data = getattr(machine, "unconsumed_tail", b"")
        if not made and not data:
            return None
    return b""


def _is_followed(data: bytes) -> bool:
    """Return whether a program would read more than these first bytes of a file."""
    traces = list(trace_all(data, foreign=data[:1] != b"\x80"))
    if any(trace.is_whole or trace.is_cut for trace in traces):
        return True
    return data.startswith((b"PK", _NUMPY, *_NATIVE)) or (len(data) >= BLOCK and _is_tar_header(data[:BLOCK]))


def _after_legacy(source: Source, limits: Limits) -> Source | None:
    """Return the bytes after the last storage of a legacy stream; None if there are none, or torch cannot read it."""
    try:
        read_legacy(source, limits)
    except BurnstoreError as error:
        if error.rule == "PT-11" and error.offset is not None and "follow the last storage" in error.message:
            if isinstance(source, _PartOfSource):
                return _PartOfSource(source._source, source.start + error.offset, source.size - error.offset)
            return _PartOfSource(source, error.offset, source.size - error.offset)
    return None


class _PartOfSource:
    """A range of a source, as a source of its own."""

    def __init__(self, source: Source, start: int, size: int) -> None:
        self._source = source
        self.start = start
        self.size = size
        self.name = source.name

    def read_at(self, offset: int, length: int) -> bytes:
        return self._source.read_at(self.start + offset, length)

    def read_into(self, reads: Sequence[tuple[int, memoryview]]) -> None:
        self._source.read_into([(self.start + offset, buffer) for offset, buffer in reads])

    def view(self, offset: int, length: int) -> memoryview | None:
        return self._source.view(self.start + offset, length)

    def close(self) -> None:
        """Do nothing: the owner closes the source."""


class _SourceFile(io.RawIOBase):
    """A source as a file object, for readers of the standard library."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = max((0, self._position, self._source.size)[whence] + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        length = max(min(len(buffer), self._source.size - self._position), 0)
        buffer[:length] = self._source.read_at(self._position, length) if length else b""
        self._position += length
        return length


def _open_zip(source: Source) -> zipfile.ZipFile | None:
    try:
        return zipfile.ZipFile(io.BufferedReader(_SourceFile(source)))
    except Exception:  # Any error means that the standard library does not read this file.
        return None


def _is_zip_for_python(source: Source) -> bool:
    """Return whether a reader that looks for a zip's directory at the end of a file finds one."""
    at = max(source.size - _END_OF_ZIP, 0)
    if END_MAGIC not in source.read_at(at, source.size - at):
        return False
    archive = _open_zip(source)
    return archive is not None and bool(archive.infolist())


def _array_bounds(source: Source) -> tuple[int, int | None]:
    """Return where the values of an array of NumPy begin and end; None for objects, which are a pickle.

    A header that cannot be parsed counts as that of objects.
    """
    head = source.read_at(0, min(12, source.size))
    fixed = 10 if head[6:7] == b"\x01" else 12
    begin = fixed + int.from_bytes(head[8:fixed], "little")
    with contextlib.suppress(ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        text = source.read_at(fixed, min(begin, source.size, _MAX_ARRAY_HEADER) - fixed).decode("latin-1")
        header = ast.literal_eval(text.strip())
        count = math.prod(map(operator.index, header["shape"]))
        dtype = np.lib.format.descr_to_dtype(header["descr"])
        return begin, None if dtype.hasobject else begin + max(count, 0) * dtype.itemsize
    return begin, None


def _is_plain_array(source: Source, member: Member) -> bool:
    """Return whether a deflated member is nothing but an array of numbers, which needs no unpacking."""
    if member.method != DEFLATED or _head(source, member) != _NUMPY:
        return False
    packed = source.read_at(member.start, min(member.packed, _STEP))
    try:
        first = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, _STEP)
    except zlib.error:
        return False
    return _array_bounds(BytesSource(first, share=True))[1] == member.size


def _content(source: Source, member: Member) -> Source:
    """Return a member as a source, without checking its checksum, which torch does not check either."""
    if member.method != DEFLATED:
        return _PartOfSource(source, member.start, member.packed)
    if max(member.packed, member.size or 0) > MAX_PICKLE_BYTES:
        raise LimitError(f"a member of {member.size} bytes, more than the limit of {MAX_PICKLE_BYTES}", rule="PT-17")
    data = inflate(source.read_at(member.start, member.packed), member.size or 0, most=MAX_PICKLE_BYTES)
    return BytesSource(data, share=True)


def _head(source: Source, member: Member) -> bytes:
    """Return the first bytes of a member, as many as begin an array of NumPy."""
    deflated = member.method == DEFLATED
    head = source.read_at(member.start, min(member.packed, _STEP if deflated else len(_NUMPY)))
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(head, len(_NUMPY)) if deflated else head
    except zlib.error:
        return _NUMPY  # The whole member is inspected, which reports the damage.


def _is_tar_header(head: bytes) -> bool:
    """Return whether Python's reader accepts these bytes as the header of a tar, which needs no magic number."""
    try:
        tarfile.TarInfo.frombuf(head, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _is_expression(text: str) -> bool:
    text = re.sub(r"'\w*'", "q", text)  # The name of a symbol.
    if not _EXPRESSION.fullmatch(text) or "__" in text or re.search(r"\.\s*[^\W\d]|[\w)]\s*\.\s*[^\W\d]", text):
        return False
    return all(name in _KNOWN_FUNCTIONS for name in re.findall(r"([^\W\d]\w*)\s*\(", text))
