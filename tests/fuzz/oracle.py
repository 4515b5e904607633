"""The oracle: what must be true of whatever burnstore does with a file. A violation is raised with its letter.

    (a) it is opened, or refused with a FormatError that carries path and rule and prints as short, printable text;
    (b) within 50 ms + 1 µs a byte (what takes longer is tried again and judged by its CPU time: the machine may be
        busy); after 5 s the process is ended;
    (c) within 64 MB + 25 times its size of traced memory;
    (d) without an import, exec, compile, unpickling, process, socket, ctypes call, or another file opened;
    (e) if opened: every tensor reads (or is refused by BP-19, BP-20), ranges are disjoint and inside the file, and what
        `serialize` makes of it is read as the same again;
    (f) if opened: `reference` opens it too and finds the same; if the reference opens what we refuse, the rule that
        refused is one of those that the format's documentation marks as stricter;
    (g) the quick scan of descriptors, where it gives an answer, gives that of the strict reader.

Sampled by a checksum of the file, so that a file is always judged alike: (c), and that errors can be pickled, 1 in 256;
(e) reading each tensor by itself, zero-copy reading and saving 1 in 8 of those opened; (f) quantized values 1 in 4 of
those opened, refused files 1 in 4; ``burn_version=`` as a caller may give it 1 in 16. All else holds for every file.
``thorough`` samples nothing.
"""

from __future__ import annotations

import itertools
import pickle
import re
import struct
import sys
import time
import tracemalloc
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import burnstore as bs
import burnstore.saving  # imported at its first use, which the audit hook would see
from burnstore.formats import burnpack, registry
from burnstore.formats.burnpack import descriptors, fast_header
from burnstore.formats.burnpack.descriptors import Columns
from burnstore.formats.burnpack.eras import Era
from burnstore.formats.codec.cbor import CborReader
from burnstore.limits import Limits

from . import reference
from .reference import RefusedError, Scheme

MEMORY_1_IN = 256
SAVE_1_IN = 8
VALUES_1_IN = 4
REFUSED_1_IN = 4
SETTLED_1_IN = 16

_BASE_SECONDS, _SECONDS_PER_BYTE = 0.050, 1e-6
_BASE_BYTES, _BYTES_PER_BYTE = 64 << 20, 25
_LONGEST_MESSAGE = 2500

_RULES = re.findall(r"^ +(BP-\d\d) (.*?)(?=^ +BP-\d\d |^$)", burnpack.__doc__ or "", re.MULTILINE | re.DOTALL)
STRICTER = {rule for rule, said in _RULES if "Stricter" in said}
"""Rules that refuse what Burn 0.22 opens, as the documentation of the format says of each."""
STRICTER |= {
    "BP-09",  # not said: Burn ignores keys of a scheme that it does not know, and takes missing ones for null
    "BP-20",  # said in other words: Burn 0.22 does not check the length of quantized tensors
}

FORBIDDEN = {"import", "exec", "compile", "pickle.find_class", "os.system", "subprocess.Popen", "open", "os.exec"}
FORBIDDEN_FAMILIES = ("socket.", "ctypes.", "os.spawn", "os.posix_spawn", "os.fork")


class ViolationError(Exception):
    """A promise was broken; ``letter`` says which."""

    def __init__(self, letter: str, message: str) -> None:
        super().__init__(f"({letter}) {message}")
        self.letter = letter


class AuditHook:
    """Notes forbidden events while armed. A hook cannot be removed: there is one for the process."""

    def __init__(self) -> None:
        self.armed = False
        self.events: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.armed and (event in FORBIDDEN or event.startswith(FORBIDDEN_FAMILIES)):
            self.events.append(f"{event} {args[:1]!r}"[:200])


_HOOKS: list[AuditHook] = []


def audit_hook() -> AuditHook:
    """The hook of this process."""
    if not _HOOKS:
        _HOOKS.append(AuditHook())
    return _HOOKS[0]


@dataclass(slots=True)
class Verdict:
    """What burnstore did: the variant of an opened file, or the class and rule of the refusal."""

    opened: str | None
    error: str = ""
    rule: str | None = None


@dataclass(slots=True)
class _Scanned:
    data: bytes
    position: int
    end: int
    count: int
    limits: Limits
    columns: Columns
    eras: Era
    after: int


class Oracle:
    """Judges files. One per process; it puts a spy between the reader and its quick scan."""

    rules = "BP-"
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        registry.format_names()  # reads the entry points of installed packages, once
        self._hook = audit_hook()
        self._scanned: _Scanned | None = None
        self._compared: dict[bytes, None] = {}
        self._scan = fast_header.read_descriptors
        fast_header.read_descriptors = self._spy
        self.places: Counter[tuple[str, int]] = Counter()
        self.slowest = 0.0
        self.largest_peak = 0.0

    def close(self) -> None:
        """Take the spy away."""
        fast_header.read_descriptors = self._scan

    def warm_up(self, files: list[bytes]) -> None:
        """Open and read files, so that what is imported once is imported now."""
        for data in files:
            try:
                checkpoint = bs.open(data)
                _ = repr(checkpoint), str(checkpoint.variant)
                checkpoint.numpy()
                _serialized(checkpoint)
            except bs.BurnstoreError as error:
                str(error)
        str(bs.errors.CorruptError("", tensor="\0"))  # the codec that escapes control characters

    def judge(self, data: bytes, *, thorough: bool = False) -> Verdict:
        """What burnstore does with the file, if it is right; `ViolationError` if not."""
        draw = 0 if thorough else zlib.crc32(data)
        self._scanned = None
        outcome = self._timed(data, lambda: bs.open(data, **self.options))
        self._compare_scan()
        if draw % MEMORY_1_IN == 0:
            self._check_memory(data)
        if (draw >> 13) % SETTLED_1_IN == 0:
            self._check_settled(data)
        if isinstance(outcome, bs.BurnstoreError):
            verdict = self._refusal(outcome)
            if draw % MEMORY_1_IN == 0 and str(pickle.loads(pickle.dumps(outcome))) != str(outcome):
                raise ViolationError("a", "a pickled error is another")
            if (draw >> 8) % REFUSED_1_IN == 0:
                self._check_stricter(data, verdict)
            return verdict
        self._check_opened(data, outcome, draw)
        return Verdict(outcome.variant)

    # --------------------------------------------------------------------------- (a), (b), (c), (d)

    def _timed(self, data: bytes, call: Callable[[], Any]) -> Any:
        """What the call gives, or the burnstore error that it raises."""
        allowed = _BASE_SECONDS + _SECONDS_PER_BYTE * len(data)
        outcome, seconds = self._watched(call)
        if seconds > allowed:
            started = time.process_time()
            outcome, _ = self._watched(call)
            seconds = time.process_time() - started
        self.slowest = max(self.slowest, seconds)
        if seconds > allowed:
            raise ViolationError("b", f"{seconds:.3f} s for {len(data)} bytes")
        return outcome

    def _watched(self, call: Callable[[], Any]) -> tuple[Any, float]:
        hook = self._hook
        hook.armed = True
        started = time.perf_counter()
        try:
            outcome = call()
        except bs.BurnstoreError as error:
            outcome = error
        except ViolationError:
            raise
        except Exception as error:
            hook.armed = False
            raise ViolationError("a", f"{type(error).__name__}: {error}"[:300]) from error
        finally:
            seconds = time.perf_counter() - started
            hook.armed = False
        if hook.events:
            events, hook.events = hook.events, []
            raise ViolationError("d", f"audit events {events[:3]}")
        return outcome, seconds

    def _check_memory(self, data: bytes) -> None:
        tracemalloc.start()
        try:
            bs.open(data, **self.options).numpy()
        except bs.BurnstoreError as error:
            str(error)
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        self.largest_peak = max(self.largest_peak, peak / max(len(data), 1))
        if peak > _BASE_BYTES + _BYTES_PER_BYTE * len(data):
            raise ViolationError("c", f"{peak} bytes at the peak for {len(data)} bytes")

    def _refusal(self, error: bs.BurnstoreError) -> Verdict:
        name = type(error).__name__
        if not isinstance(error, bs.errors.FormatError):
            raise ViolationError("a", f"refused with {name}, which is no FormatError")
        if error.path != "<bytes>":
            raise ViolationError("a", f"{name} does not name the file")
        if not isinstance(error, bs.errors.UnknownFormatError) and not (error.rule or "").startswith(self.rules):
            raise ViolationError("a", f"{name} cites no rule: {error}"[:300])
        text = str(error)
        if len(text) > _LONGEST_MESSAGE:
            raise ViolationError("a", f"a message of {len(text)} characters")
        if not text.replace("\n  hint: ", "").isprintable():
            raise ViolationError("a", f"unprintable message {text!r}"[:300])
        self._note_place(error)
        return Verdict(None, name, error.rule)

    def _note_place(self, error: BaseException) -> None:
        trace = error.__traceback__
        while trace is not None:
            last, trace = trace, trace.tb_next
        self.places[last.tb_frame.f_code.co_filename, last.tb_lineno] += 1

    # --------------------------------------------------------------------------- (e)

    def _check_opened(self, data: bytes, checkpoint: bs.Checkpoint, draw: int) -> None:
        arrays = self._timed(data, checkpoint.numpy)
        names = list(checkpoint)
        ranges = []
        raw: dict[str, bytes] = {}
        for name in names:
            start = checkpoint.offset_of(name)
            raw[name] = stored_bytes(checkpoint[name])
            if raw[name] != data[start : start + len(raw[name])]:
                raise ViolationError("e", f"{name!r} has other bytes than its range")
            if len(raw[name]) != checkpoint[name].nbytes:
                raise ViolationError("e", f"{name!r} has another length than it says")
            ranges.append((start, start + len(raw[name])))
        ranges.sort()
        inside = not ranges or (checkpoint.data_offset <= ranges[0][0] and ranges[-1][1] <= len(data))
        if not inside:
            raise ViolationError("e", f"ranges {ranges} leave the data section")
        disjoint = all(before[1] <= after[0] for before, after in itertools.pairwise(ranges))
        if not (disjoint and checkpoint.nbytes <= len(data)):
            raise ViolationError("e", f"ranges {ranges} overlap")
        if isinstance(arrays, bs.BurnstoreError):
            self._reading_refused(arrays)
        if (draw >> 8) % SAVE_1_IN == 0:
            self._check_each(checkpoint, arrays)
            self._check_shared(data, arrays)
            if any(map(has_a_third_bool, checkpoint.values())):
                refuses_to_copy(lambda: self._saved(checkpoint))
            else:
                self._check_saved(checkpoint, raw, arrays)
        self._check_reference(data, checkpoint, raw, arrays, values=(draw >> 11) % VALUES_1_IN == 0)

    def _check_settled(self, data: bytes) -> None:
        """A caller who names the release gets a file that this release could have written, or a refusal."""
        for version in ("0.19", "0.21"):
            outcome, _ = self._watched(lambda version=version: bs.open(data, burn_version=version))
            if isinstance(outcome, bs.BurnstoreError):
                self._refusal(outcome)
                continue
            whole = reference.whole_files(data, _read_by_reference(data))
            if outcome.data_offset not in whole:
                raise ViolationError("f", f"asked for {version}: data from {outcome.data_offset}, whole from {whole}")

    def _reading_refused(self, error: bs.BurnstoreError) -> None:
        good = isinstance(error, (bs.errors.CorruptError, bs.errors.UnsupportedError)) and error.tensor is not None
        if not good:
            raise ViolationError("e", f"reading was refused with {type(error).__name__}: {error}"[:300])
        self._note_place(error)

    def _check_each(self, checkpoint: bs.Checkpoint, arrays: Any) -> None:
        refused = False
        for name in checkpoint:
            array, _ = self._watched(checkpoint[name].numpy)
            if isinstance(array, bs.BurnstoreError):
                self._reading_refused(array)
                refused = True
            elif isinstance(arrays, dict) and not _same_array(array, arrays[name]):
                raise ViolationError("e", f"{name!r} reads differently alone and with the others")
        if refused == isinstance(arrays, dict):
            raise ViolationError("e", "refused with the others, not alone, or the reverse")

    def _check_shared(self, data: bytes, arrays: Any) -> None:
        shared, _ = self._watched(lambda: bs.open(data, zero_copy=True, **self.options).numpy())
        if isinstance(arrays, dict) != isinstance(shared, dict):
            raise ViolationError("e", "refused with zero_copy, not without, or the reverse")
        if isinstance(arrays, dict) and not all(_same_array(shared[name], array) for name, array in arrays.items()):
            raise ViolationError("e", "other values with zero_copy")

    def _check_saved(self, checkpoint: bs.Checkpoint, raw: dict[str, bytes], arrays: Any) -> None:
        """Written as a release that writes such files, it is the same again; written by default, the same values."""
        newest = checkpoint.variant.split(",")[0].split(" .. ")[-1]
        quantized = any(checkpoint[name].dtype.is_quantized for name in checkpoint)
        if newest == "0.19" and quantized:
            newest = "0.20"  # Burn 0.19 spelled quantized tensors but could not save them
        saved = self._saved(checkpoint, burn_version=newest)
        if isinstance(saved, bs.BurnstoreError):
            raise ViolationError("e", f"cannot be saved as {newest}: {saved}"[:300])
        again = bs.open(saved, burn_version="0.19" if newest == "0.19" else None)
        # Empty tensors at one place have no order in a file; all others keep theirs.
        orders = [[name for name in names if raw.get(name)] for names in (checkpoint, again)]
        if sorted(again) != sorted(checkpoint) or orders[0] != orders[1]:
            raise ViolationError("e", "saved, other names or another order")
        for name in checkpoint:
            first, second = checkpoint[name], again[name]
            same = (first.dtype, first.shape, first.param_id) == (second.dtype, second.shape, second.param_id)
            if not (same and second.to_bytes() == raw[name]):
                raise ViolationError("e", f"saved, {name!r} is {second}, not {first}")
        stamps = {"format", "producer", "version"}
        kept = [{k: v for k, v in m.items() if k not in stamps} for m in (checkpoint.metadata, again.metadata)]
        if not (kept[0] == kept[1] and checkpoint.metadata.keys() == again.metadata.keys()):
            raise ViolationError("e", "saved, other metadata")
        if _scalars(checkpoint) != _scalars(again):
            raise ViolationError("e", "saved, other scalars")
        by_default = self._saved(checkpoint)
        if not isinstance(by_default, bs.BurnstoreError) and isinstance(arrays, dict):
            version = "0.19" if checkpoint.metadata.get("version", "").startswith(("0.19", "0.20.0-pre")) else None
            again, _ = self._watched(lambda: bs.open(by_default))
            if isinstance(again, bs.BurnstoreError) and again.rule == "BP-14" and version is not None:
                return  # zeros at the start of an unaligned file: refused, as it must be
            if isinstance(again, bs.BurnstoreError):
                raise ViolationError("e", f"saved by default, refused: {again}"[:300])
            values = again.numpy()
            if dict(again.metadata) != dict(checkpoint.metadata):
                raise ViolationError("e", "saved by default, other metadata")
            for name in checkpoint:
                if not _same_array(values[name], arrays[name]):
                    raise ViolationError("e", f"saved by default, {name!r} has other values")

    def _saved(self, checkpoint: bs.Checkpoint, **options: Any) -> Any:
        return self._watched(lambda: _serialized(checkpoint, **options))[0]

    # --------------------------------------------------------------------------- (f)

    def _check_reference(
        self, data: bytes, checkpoint: bs.Checkpoint, raw: dict[str, bytes], arrays: Any, *, values: bool
    ) -> None:
        reading = _read_by_reference(data)
        whole = reference.whole_files(data, reading)
        if checkpoint.data_offset not in whole:
            raise ViolationError("f", f"data from {checkpoint.data_offset}, but whole only from {whole}")
        if checkpoint.data_offset < reading.aligned_start and reference.may_be_cut(data, reading):
            version = checkpoint.metadata.get("version", "")
            told = version.startswith("0.19.") or version in {f"0.20.0-pre.{n}" for n in range(5)}
            if not told:
                raise ViolationError("f", "read as Burn 0.19, but it may be a later file cut short")
        if sorted(reading.tensors) != sorted(checkpoint):
            raise ViolationError("f", "other names than the reference")
        for name, tensor in reading.tensors.items():
            ours = checkpoint[name]
            same = (ours.shape, ours.param_id) == (tensor.shape, tensor.param_id) and _same_dtype(
                ours.dtype, tensor.dtype
            )
            start = checkpoint.data_offset + tensor.start
            if not (same and raw[name] == data[start : start + tensor.end - tensor.start]):
                raise ViolationError("f", f"{name!r} differs: {ours}")
            if isinstance(arrays, dict):
                self._check_values(tensor, raw[name], arrays[name], values=values)
        if dict(checkpoint.metadata) != reading.metadata:
            raise ViolationError("f", "other metadata than the reference")
        theirs = {name: (kind, _exact(value)) for name, (kind, value) in reading.scalars.items()}
        if _scalars(checkpoint) != theirs:
            raise ViolationError("f", "other scalars than the reference")

    def _check_values(self, tensor: reference.Tensor, raw: bytes, array: Any, *, values: bool) -> None:
        if isinstance(tensor.dtype, str):
            if tensor.dtype == "Bool(U32)":
                wide = array.astype("<u4").tobytes()
                if wide != raw:
                    raise ViolationError("f", "a bool differs")
            else:
                if array.tobytes() != raw:
                    raise ViolationError("f", f"values of {tensor.dtype} differ from their bytes")
                if tensor.dtype.startswith("Bool") and raw.strip(b"\0\1"):
                    raise ViolationError("f", "a bool is neither 0 nor 1")
            return
        if values and len(raw) <= 512:
            with np.errstate(all="ignore"):
                expected = reference.numbers(tensor.dtype, tensor.shape, raw)
            if expected is not None and not _same_array(array.reshape(-1), expected):
                raise ViolationError("f", f"{tensor.dtype} {tensor.shape}: other values")

    def _check_stricter(self, data: bytes, verdict: Verdict) -> None:
        if verdict.rule in STRICTER:
            return
        try:
            reading = reference.read(data, strict=True)  # whatever the rule, BP-04 lies behind what only CBOR allows
        except RefusedError:
            return
        if not reading.only_older:
            raise ViolationError("f", f"refused with {verdict.error} {verdict.rule}, but the reference opens it")

    # --------------------------------------------------------------------------- (g)

    def _spy(self, reader: CborReader, count: int, limits: Limits) -> Columns | None:
        position = reader.position
        columns = self._scan(reader, count, limits)
        if columns is not None:
            # The eras now: the reader narrows them later.
            self._scanned = _Scanned(
                reader.data, position, reader.end, count, limits, columns, columns.eras, reader.position
            )
        return columns

    def _compare_scan(self) -> None:
        """Both readers must give the same columns. Equal bytes (mutants of the data alone) are compared once."""
        scanned = self._scanned
        if scanned is None or scanned.data in self._compared:
            return
        reader = CborReader(scanned.data, scanned.position, scanned.end)
        try:
            strict = descriptors.read_descriptors(reader, scanned.count, scanned.limits)
        except bs.BurnstoreError as error:
            raise ViolationError("g", f"the scan accepts what the strict reader refuses: {error}"[:300]) from None
        if reader.position != scanned.after:
            raise ViolationError("g", f"the scan ends at {scanned.after}, strict at {reader.position}")
        if _rows(strict) != _rows(scanned.columns) or strict.eras != scanned.eras:
            raise ViolationError("g", "the scan gives other columns than the strict reader")
        if len(self._compared) > 4096:
            self._compared.clear()
        self._compared[scanned.data] = None


def _serialized(checkpoint: bs.Checkpoint, **options: Any) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the metadata ask for the form of Burn 0.19
        kept = {"metadata": checkpoint.metadata, "scalars": checkpoint.scalars}
        return bs.serialize(checkpoint, format="burnpack", **kept, **options)


def _read_by_reference(data: bytes) -> reference.Reading:
    try:
        return reference.read(data, strict=True)
    except RefusedError as error:
        raise ViolationError("f", f"opened, but the reference refuses it: {error}") from None


def _rows(columns: Columns) -> tuple[Any, ...]:
    kinds = [columns.kinds[number] for number in columns.kind.tolist()]
    starts, ends = columns.starts.tolist(), columns.ends.tolist()
    return columns.names, kinds, starts, ends, columns.param_ids


def _same_array(first: Any, second: Any) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.tobytes() == second.tobytes():
        return True
    if first.dtype.kind != "f":
        return False
    nan = np.isnan(first) & np.isnan(second)
    return bool((nan | ((first == second) & (np.signbit(first) == np.signbit(second)))).all())


def _exact(value: Any) -> Any:
    """Values that compare by their bits and their type."""
    return struct.pack(">d", value) if type(value) is float else (type(value), value)


def _scalars(checkpoint: bs.Checkpoint) -> dict[str, Any]:
    return {name: (scalar.kind, _exact(scalar.value)) for name, scalar in checkpoint.scalars.items()}


def _same_dtype(ours: bs.DType, theirs: str | Scheme) -> bool:
    if isinstance(theirs, str):
        return str(ours) == theirs
    scheme = ours.scheme
    if scheme is None:
        return False
    block = None if scheme.block is None else (scheme.block.size, scheme.block.dtype)
    same_block = block == (None if theirs.block is None else (theirs.block, theirs.block_dtype))
    found = (scheme.value, scheme.store.kind, scheme.store.dim, scheme.mode, scheme.tensor, scheme.old_style)
    return same_block and found == (
        theirs.value,
        theirs.store,
        theirs.dim,
        theirs.mode,
        theirs.tensor,
        theirs.old_style,
    )


def stored_bytes(snapshot: bs.TensorSnapshot) -> bytes:
    """The bytes in the file, also those of bools that are neither 0 nor 1, which no public way gives."""
    return bytes(snapshot._data.window(0, snapshot.nbytes))


def has_a_third_bool(snapshot: bs.TensorSnapshot) -> bool:
    """Whether a bool of the tensor is neither 0 nor 1."""
    if snapshot.dtype.kind.name != "BOOL":
        return False
    return any(np.frombuffer(stored_bytes(snapshot), f"<u{snapshot.dtype.bits // 8}") > 1)


def refuses_to_copy(save: Callable[[], Any]) -> None:
    """Check that bools that are neither 0 nor 1 are not written."""
    try:
        outcome = save()
    except bs.errors.CorruptError as error:
        outcome = error
    if not (isinstance(outcome, bs.errors.CorruptError) and "expected 0 or 1" in str(outcome)):
        raise ViolationError("e", f"bools that are neither 0 nor 1 were copied: {outcome!r}"[:300])
