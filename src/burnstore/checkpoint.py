"""Checkpoint: an open file as a read-only mapping of names to snapshots."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from .errors import (
    ChangedError,
    ClosedError,
    DTypeError,
    TensorNotFoundError,
    UnsupportedError,
    counted,
    entry_point,
    located,
    printable,
    refuse_unknown,
)
from .formats.base import LAYOUT_KEY, UNSTATED_LAYOUT, Check, Contents, HasChecks, ModuleClass, Table
from .formats.registry import HEAD_BYTES, format_for_bytes, format_named
from .formats.sharded.locate import INDEX_SUFFIX, locate, open_located
from .io.gather import gather
from .io.gc_pause import gc_paused
from .io.paths import as_path, is_remote
from .io.source import BytesSource, InFolder, JoinedSource, Source, is_file_object
from .limits import Limits
from .tensor.data import Array, Shape, array_from_bytes
from .tensor.dtype import DType, Kind
from .tensor.facts import Scheme
from .tensor.note import Note
from .tensor.scalar import Scalar
from .tensor.snapshot import TensorSnapshot
from .tensor.tabular import Tabular

if TYPE_CHECKING:
    from .tensor.torch import Device, Tensor


QUANTIZED = ("safetensors", "pytorch", "npz", "dcp")
"""The formats in which other programs store codes and scales as tensors of their own."""

_CODES = {"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "I32", "F4"}
_MOST_KEYS = 20
_MOST_ATTEMPTS = 100  # to open a set of shards that is saved again and again meanwhile


class Checkpoint(Tabular, Mapping[str, TensorSnapshot]):
    """A file of tensors, opened: its names in the order of the data, each a `TensorSnapshot` that reads when asked.

    Made by `burnstore.open`. It keeps reading the file that it opened, also when another is put in its place. Reading
    is safe from threads and forked workers; pickled, it opens the same file again and refuses if that was changed.
    """

    def __init__(self, source: Source, format_name: str | None, limits: Limits, options: dict[str, Any]) -> None:
        self._source = source
        self._limits = limits
        self._options = options
        self._closed = False
        with located(path=source.name), gc_paused():
            chosen = format_for_bytes(_head_of(source)) if format_name is None else format_named(format_name)
            self._format = chosen.name
            if isinstance(source, JoinedSource) and chosen.name not in ("safetensors", "pytorch"):
                raise UnsupportedError(
                    f"files of the format {chosen.name} are not opened together",
                    hint="open each of them, or pass them to convert as a list, which writes them into one",
                )
            own = dict(options)
            key = own.pop("top_level_key", None)
            if key is not None and self._format == "pytorch":
                own["top_level_key"] = key
            refuse_unknown("open", own, open_checkpoint, chosen.read)
            self._contents: Contents = chosen.read(source, limits, **own)
            if self._format in QUANTIZED:
                self._contents = _with_schemes(self._contents, source, limits)
            if key is None and self._contents.model_key is not None:
                self._contents = _below(self._contents, self._contents.model_key, '; top_level_key="" takes everything')
            elif key and self._format != "pytorch":
                self._contents = _below(self._contents, key)
        self._table = self._contents.table
        self._data = self._contents.source or source

    @property
    def path(self) -> str:
        """The file's name as it was given, ``<bytes>`` for bytes in memory."""
        return self._source.name

    @property
    def format(self) -> str:
        """The name of the format, decided by the bytes."""
        return self._format

    @property
    def top_level_key(self) -> str | None:
        """The key below which the tensors were taken, if one was given."""
        return self._options.get("top_level_key")

    @property
    def variant(self) -> str:
        """Which of the format's variants the file is, by evidence; for Burnpack the releases of Burn that write so."""
        return self._contents.variant

    @property
    def layout(self) -> str | None:
        """The framework whose conventions the tensors follow (``"burn"``); None if the file does not state it."""
        stated = self._contents.metadata.get(LAYOUT_KEY) or self._contents.layout
        return None if stated == UNSTATED_LAYOUT else stated

    @property
    def metadata(self) -> Mapping[str, str]:
        """The texts stored beside the tensors."""
        return self._contents.metadata

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        """The numbers stored beside the tensors."""
        return self._contents.scalars

    @property
    def constants(self) -> Mapping[str, Any]:
        """What a record holds besides tensors, by path: counters, and the fields of a model that store no value."""
        return self._contents.constants

    @property
    def notes(self) -> Sequence[Note]:
        """What should be known about how the tensors were found in the file, a sentence each."""
        return self._contents.notes

    @property
    def classes(self) -> Mapping[str, ModuleClass]:
        """The class of each module, by path, where a whole model was saved (``torch.save(model)``, TorchScript)."""
        return self._contents.classes

    def shares_with(self, name: str) -> tuple[str, ...]:
        """Return the other tensors that share this one's bytes in the file, such as tied weights."""
        self._row(name)
        group = next((group for group in self._contents.shared if name in group), ())
        return tuple(other for other in group if other != name)

    @property
    def data_offset(self) -> int:
        """The byte at which tensor data begins."""
        return self._contents.data_offset

    @property
    def file_size(self) -> int:
        """How many bytes the file has; all files together, where there are several."""
        several = self._contents.file_size
        return self._source.size if several is None else several

    @property
    def nbytes(self) -> int:
        """How many bytes all tensors have together; those of tied tensors count once."""
        return sum(self._table.sizes) - sum(self._table.sizes[self._row(name)] for name in self.ties)

    @cached_property
    def ties(self) -> Mapping[str, str]:
        """The tensors that are the same bytes as an earlier one, each with the name of the first of them."""
        table, firsts, ties = self._table, dict[Any, str](), dict[str, str]()
        for row in (self._row(name) for group in self._contents.shared for name in group):
            if table.sizes[row]:
                data = table.apart.get(row)
                place = table.offsets[row] if data is None else data.identity or id(data)
                first = firsts.setdefault((place, table.dtypes[row], table.shapes[row]), table.names[row])
                if first != table.names[row]:
                    ties[table.names[row]] = first
        return ties

    @cached_property
    def schemes(self) -> Mapping[str, Scheme]:
        """How tensors are stored whose values are decoded when they are read, by name: blocks, codes with scales."""
        facts, names = self._table.facts, self._table.names
        return {names[row]: fact.scheme for row, fact in facts.items() if fact.scheme is not None}

    def offset_of(self, name: str) -> int:
        """Return the byte of its file at which a tensor's data begins; UnsupportedError if they had to be unpacked."""
        row, (_, offset) = self._row(name), self._place_of(name)
        unpacked = self._data is not self._source and not isinstance(self._data, JoinedSource)
        if unpacked or (row in self._table.apart and offset == 0):  # No file of computed tensors begins with one.
            raise UnsupportedError("its data are compressed in the file and have no offset there", tensor=name)
        return offset

    def file_of(self, name: str) -> str:
        """Return the file that contains a tensor's data; shards have one file each."""
        return self._place_of(name)[0]

    def descriptions(self) -> Iterator[tuple[str, DType, Shape, int, int | None]]:
        """Return name, dtype, shape, size in bytes and parameter id of every tensor, without making snapshots."""
        table = self._table
        return zip(table.names, table.dtypes, table.shapes, table.sizes, table.param_ids, strict=True)

    def places(self) -> Iterator[tuple[str, int] | None]:
        """Return each tensor's file and the offset of its data; None if the data are not stored contiguously.

        That is the case of what had to be unpacked, or is put together from several places.
        """
        if self._data is not self._source and not isinstance(self._data, JoinedSource):
            return iter([None] * len(self))
        apart, joined = self._table.apart, self._data if isinstance(self._data, JoinedSource) else None
        return (
            None if row in apart else (self.path, offset) if joined is None else joined.place_of(offset)
            for row, offset in enumerate(self._table.offsets)
        )

    def checks(self) -> Sequence[Check]:
        """Return the checks beyond opening the file and reading its tensors: checksums, padding."""
        found = format_named(self._format)
        return found.checks(self._source, self._contents, self._limits) if isinstance(found, HasChecks) else []

    def _place_of(self, name: str) -> tuple[str, int]:
        offset = self._table.offsets[self._row(name)]
        return self._data.place_of(offset) if isinstance(self._data, JoinedSource) else (self.path, offset)

    def numpy(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Return all tensors, or those named, as arrays; they are read in few large pieces.

        Owned and writable by default; with ``zero_copy`` read-only views that keep the file's memory alive. Small owned
        arrays share a buffer of up to 8 MiB with their neighbours. Quantized tensors come dequantized.
        """
        table = self._picked(names, "numpy")
        plain = table.source_rows()
        with located(path=self._source.name), gc_paused():
            arrays = _cut(plain, *gather(self._data, plain.offsets, plain.sizes, plain.alignments()))
        return (
            arrays if plain is table else _completed(table, arrays, lambda row: table.snapshot(row, self._data).numpy())
        )

    def torch(self, names: Iterable[str] | None = None, *, device: Device = None) -> dict[str, Tensor]:
        """Return all tensors, or those named, as torch tensors on the CPU or on ``device``, read in few large pieces.

        Owned by default; with ``zero_copy`` they share the mapped file, privately: what is written to one stays in this
        process. To a GPU they go through pinned memory, at the bus's speed; tensors below 1 MiB share an allocation of
        up to 8 MiB there. Dtypes are as for `TensorSnapshot.torch`. Raises MissingDependencyError without PyTorch.
        """
        from .tensor import torch as torch_tensor  # not at import: torch is imported when tensors of it are asked for

        table = self._picked(names, "torch")
        plain = table.source_rows()
        with located(path=self._source.name), gc_paused():
            if device is None:
                buffers, places = gather(self._data, plain.offsets, plain.sizes, plain.alignments())
                columns = plain.names, plain.dtypes, plain.shapes, plain.sizes
                tensors = torch_tensor.tensors_from_buffers(*columns, buffers, places)
            else:
                from .formats.placement import place  # not at import: only who has a device needs it

                tensors = place(plain, self._data, device)
            named = dict(zip(plain.names, tensors, strict=True))
        if plain is table:
            return named
        return _completed(table, named, lambda row: table.snapshot(row, self._data).torch(device=device))

    def _picked(self, names: Iterable[str] | None, method: str) -> Table:
        self._check_open()
        if isinstance(names, str):
            raise TypeError(f"names must be a list of str; for one tensor use checkpoint[{names!r}].{method}()")
        return self._table if names is None else self._table.picked([self._row(name) for name in names])

    def get_tensor(self, name: str, framework: str = "np") -> Any:
        """Return a tensor as `safetensors.safe_open` would: an array, or with ``framework="pt"`` a torch tensor."""
        if framework not in ("np", "numpy", "pt", "torch"):
            raise ValueError(f"framework must be 'np' or 'pt', got {framework!r}")
        return self[name].numpy() if framework[0] == "n" else self[name].torch()

    def get_slice(self, name: str) -> TensorSnapshot:
        """Return a tensor that is not read yet: ``get_slice(name)[2:5]`` reads these rows, as in `safetensors`."""
        return self[name]

    def is_current(self) -> bool:
        """Return whether the path still names the file that was opened; always true for bytes in memory."""
        return not self._closed and (not isinstance(self._source, InFolder) or self._source.is_current())

    def close(self) -> None:
        """Let go of the file; arrays that were taken stay valid, snapshots that were not read can no longer be."""
        self._closed = True
        self._source.close()
        self._data.close()

    def stored(self, name: str) -> TensorSnapshot:
        """Return a tensor as the file stores it, by the file's own name: codes or scales of a decoded one, too."""
        found = self._stored.get(name) if self._table.facts else None
        return self[name] if found is None else found

    @cached_property
    def _stored(self) -> dict[str, TensorSnapshot]:
        """The tensors that decoded ones are made of, by name."""
        rows = (self[self._table.names[row]] for row in self._table.facts)
        return {part.path: part for row in rows for part in row.stored()}

    @property
    def stored_count(self) -> int:
        """The number of tensors that the file stores."""
        return len(self) - len(self._table.facts) + len(self._stored) if self._table.facts else len(self)

    def __getitem__(self, name: str) -> TensorSnapshot:
        return self._table.snapshot(self._row(name), self._data, self.layout)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.names)

    def __len__(self) -> int:
        return len(self._table.names)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __enter__(self) -> Checkpoint:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        return self is other  # comparing contents would read both files; that is a job of its own

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return (
            f"<Checkpoint {printable(self.path)!r}: {self._format}, {counted(len(self), 'tensor')}, "
            f"{counted(self.nbytes, 'byte')}{state}>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what the header states, as plain data; nothing is read."""
        return {
            "path": self.path,
            "format": self._format,
            "layout": self.layout,
            "nbytes": self.nbytes,
            "metadata": dict(self.metadata),
            "tensors": [
                {"name": name, "dtype": str(dtype), "shape": list(shape), "nbytes": nbytes}
                for name, dtype, shape, nbytes, _ in self.descriptions()
            ],
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        """Return HTML for a notebook."""
        from .tensor.notebook import tensors_panel  # not at import: most programs are no notebooks

        table = self._table
        dtypes = list(map(str, table.dtypes))
        return tensors_panel(self.path, self._format, self.layout, table.names, dtypes, table.shapes, self.nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        return Checkpoint, (self._source, self._format, self._limits, self._options)

    @cached_property
    def _rows(self) -> dict[str, int]:
        """Where each name stands; made when one is asked for: who takes all tensors does not need it."""
        return dict(zip(self._table.names, range(len(self._table.names)), strict=True))

    def _row(self, name: str) -> int:
        row = self._rows.get(name)
        if row is None:
            if not isinstance(name, str):
                raise TypeError(f"a tensor's name must be a str, got {type(name).__name__}")
            raise TensorNotFoundError(
                f"there is no tensor {printable(name)!r} among {len(self)}", path=self.path, hint=self._suggestion(name)
            )
        return row

    def _suggestion(self, name: str) -> str | None:
        from difflib import get_close_matches

        close = get_close_matches(name, self._table.names[:10_000], n=1)
        return f"did you mean {printable(close[0])!r}?" if close else None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the checkpoint was closed", path=self.path)


def _head_of(source: Source) -> bytes:
    """Return the first bytes of a file, or of the first of several."""
    first = source.parts[0] if isinstance(source, JoinedSource) else source
    return first.read_at(0, min(HEAD_BYTES, first.size))


def _with_schemes(contents: Contents, source: Source, limits: Limits) -> Contents:
    """Return the contents with codes and scales as one tensor each, where there are some."""
    if {dtype.name for dtype in _dtypes(contents.table)}.isdisjoint(_CODES):
        return contents
    from .formats.quantized import recognize  # not at import: few files have codes

    try:
        return recognize(contents, contents.source or source, source, limits)
    except BaseException:
        if contents.source is not None:  # the files of a set: no checkpoint will close them
            contents.source.close()
        raise


def _dtypes(table: Table) -> set[DType]:
    return set(table.dtypes) if table.known_kinds is None else {dtype for dtype, _ in table.known_kinds.pairs}


def _below(contents: Contents, key: str, advice: str = "") -> Contents:
    """Return the tensors whose names begin with this key, named by the rest."""
    if not isinstance(key, str):
        raise TypeError(f"top_level_key must be a str, got {type(key).__name__}")
    table, prefix = contents.table, f"{key}."
    rows = [row for row, name in enumerate(table.names) if name.startswith(prefix) and name != prefix]
    if not rows:
        counts = Counter(name.partition(".")[0] for name in table.names)
        shown = ", ".join(f"{printable(name)} ({count})" for name, count in sorted(counts.items())[:_MOST_KEYS])
        raise TensorNotFoundError(
            f"Key {printable(key)!r} not found; there are, with the number of tensors in each: {shown}"
        )
    kept = table.picked(rows)
    left_out = len(table.names) - len(rows)
    count = f"{left_out} tensor{'' if left_out == 1 else 's'}"
    text = f"left out because not below the key {printable(key)!r}: {count}{advice}"
    notes = [Note("part", text, key)] if left_out else []
    names = [name[len(prefix) :] for name in kept.names]
    known = set(kept.names)
    shared = [tuple(name[len(prefix) :] for name in group if name in known) for group in contents.shared]
    return replace(
        contents,
        table=replace(kept, names=names),
        notes=(*contents.notes, *notes),
        shared=[group for group in shared if len(group) > 1],
    )


def _completed(table: Table, found: dict[str, Any], read: Callable[[int], Any]) -> dict[str, Any]:
    """Return all rows in order: those found, and those read one by one because their bytes are not contiguous."""
    apart = {table.names[row]: read(row) for row in table.apart}
    return {name: apart[name] if name in apart else found[name] for name in table.names}


def _cut(table: Table, buffers: list[Any], places: list[int]) -> dict[str, Array]:
    """Return an array for each tensor, cut out of its buffer."""
    dtypes = set(table.dtypes)
    if all(dtype.kind not in (Kind.BOOL, Kind.QUANTIZED) and dtype.bits % 8 == 0 for dtype in dtypes):
        with suppress(ValueError, DTypeError):  # a shape or dtype that NumPy lacks: the code below names the tensor
            plain = {dtype: dtype.numpy for dtype in dtypes}
            kinds = map(plain.__getitem__, table.dtypes)
            columns = zip(table.names, table.shapes, kinds, buffers, places, strict=True)
            return {name: np.ndarray(shape, dtype, buffer, place) for name, shape, dtype, buffer, place in columns}
    arrays: dict[str, Array] = {}
    for row, name in enumerate(table.names):
        with located(tensor=name):
            raw = memoryview(buffers[row])[places[row] : places[row] + table.sizes[row]]
            arrays[name] = array_from_bytes(raw, table.dtypes[row], table.shapes[row])
    return arrays


@entry_point("open")
def open_checkpoint(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Sequence[str | os.PathLike[str]],
    *,
    format: str | None = None,
    zero_copy: bool = False,
    limits: Limits | None = None,
    top_level_key: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Checkpoint:
    """Open a file (or bytes) of tensors; its format is decided by its bytes, nothing but its header is read.

    ``source`` is a path, a URL (``s3://``, ``gs://``, ``az://``, ``https://``, ``hf://org/model``, ``file://``), bytes,
    or a file object opened in binary mode. ``storage_options`` has what a URL needs besides: credentials, a region, an
    endpoint, ``timeout`` (see the how-to "weights in a bucket").

    ``zero_copy=True`` maps the file: arrays are then read-only views on it, and the file must not be truncated while
    they live. By default tensors are read into memory of their own, and the file can be let go. Bytes are likewise
    copied from, or with ``zero_copy`` shared, and must then stay unchanged. ``format`` insists on a format, ``limits``
    replaces the default `Limits`, ``top_level_key`` takes the tensors below a key (``"optimizer"``; ``""`` takes
    everything), further options are the format's own. A folder stands for the checkpoint in it; a list of paths, or a
    pattern such as ``"ranks/*.pt"``, for files that are one checkpoint together, such as those of all ranks.

    Raises FileNotFoundError, FormatError for a file that breaks its format's rules, OSError for one that cannot be
    read.

    >>> import burnstore as bs
    >>> packed = bs.serialize({"bias": np.zeros(3, np.float32)}, format="burnpack")
    >>> with bs.open(packed) as f:
    ...     f.format, f["bias"].shape, f["bias"].numpy().tolist()
    ('burnpack', (3,), [0.0, 0.0, 0.0])
    """
    if top_level_key is not None:
        options["top_level_key"] = top_level_key
    if limits is not None and not isinstance(limits, Limits):
        raise TypeError(f"limits must be a Limits, got {type(limits).__name__}")
    if not isinstance(zero_copy, bool):
        raise TypeError(f"zero_copy must be a bool, got {type(zero_copy).__name__}")
    if isinstance(source, (str, os.PathLike)) or is_file_object(source):
        path = as_path(source, storage_options)
        _check_storage_options(storage_options, remote=is_remote(path))
        return _open_path(path, format, zero_copy, limits, options)
    if isinstance(source, (list, tuple)) and source and all(isinstance(p, (str, os.PathLike)) for p in source):
        paths = [as_path(path, storage_options) for path in source]
        _check_storage_options(storage_options, remote=all(map(is_remote, paths)))
        return _open_files(paths, format, zero_copy, limits, options)
    _check_storage_options(storage_options, remote=False)
    if not isinstance(source, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"expected a path, bytes or a file object, got {type(source).__name__}; save a model first, "
            "with burnstore.save, or collect its tensors with burnstore.collect"
        )
    return _opened(BytesSource(source, share=zero_copy), format, limits, options)


def _check_storage_options(storage_options: Mapping[str, Any] | None, *, remote: bool) -> None:
    if storage_options and not remote:
        raise ValueError("storage_options are for URLs such as s3://bucket/file; this file is local")


def _open_files(
    paths: Sequence[str], format: str | None, zero_copy: bool, limits: Limits | None, options: dict[str, Any]
) -> Checkpoint:
    """Open files that are one checkpoint together."""
    if len(paths) == 1:
        return _open_path(paths[0], format, zero_copy, limits, options)
    files: list[Source] = []
    try:
        for path in paths:
            files.append(open_located(path, zero_copy=zero_copy)[0])
    except BaseException:
        for file in files:
            file.close()
        raise
    return _opened(JoinedSource(f"{paths[0]} and {len(paths) - 1} more", files), format, limits, options)


def _matching(path: str) -> list[str]:
    """Return the files that a pattern such as ``ranks/*.pt`` stands for; none for a path."""
    if not any(mark in path for mark in "*?[") or is_remote(path) or os.path.lexists(path):
        return []
    from glob import glob  # not at import: few paths are patterns

    return sorted(file for file in glob(path) if not os.path.isdir(file))


def _open_path(
    path: str, format: str | None, zero_copy: bool, limits: Limits | None, options: dict[str, Any]
) -> Checkpoint:
    several = _matching(path)
    if several:
        return _open_files(several, format, zero_copy, limits, options)
    for attempt in range(_MOST_ATTEMPTS):
        try:
            source, found = open_located(path, zero_copy=zero_copy)
        except FileNotFoundError as error:  # a single file that a set of shards has just replaced
            if is_remote(path) or attempt == _MOST_ATTEMPTS - 1 or locate(path)[0] == error.filename:
                raise
            continue
        try:
            return _opened(source, found.pop("format", None) or format, limits, {**found, **options})
        except ChangedError:  # an index whose shards were replaced with it: the new index is in place now
            if not source.name.endswith(INDEX_SUFFIX) or attempt == _MOST_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _opened(source: Source, format: str | None, limits: Limits | None, options: dict[str, Any]) -> Checkpoint:
    try:
        return Checkpoint(source, format, limits or Limits(), options)
    except BaseException:
        source.close()
        raise
