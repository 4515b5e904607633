"""Convert: from files to a file, of another format, in another layout; a tensor at a time, proved before it counts.

gather      the sources are opened; no two of them may have a tensor of one name
prepare     what the recipe says is done to the tensors as they are described; nothing is read yet
assemble    tensors are read, brought into their form, written, read back and compared, by many workers at once
receipt     on request: what was read, done and written, with digests, beside the target
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ... import __version__
from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import ChangedError, CorruptError, SaveError, UnsupportedError, located
from ...formats.base import Format
from ...formats.registry import format_for_path, format_named
from ...formats.sharded.journal import Journal
from ...formats.sharded.write import byte_count, set_at
from ...io.atomic import already_exists
from ...io.joined import JoinedSource
from ...io.source import FileSource
from ...io.workers import Workers
from ...limits import Limits
from ...models.layouts import Rules, record_of
from ...pipeline.preparation import Prepared, prepare
from ...pipeline.recipe import Pattern, Recipe, Renames, recipe_of
from ...pipeline.translation import rules_from_file
from ...pipeline.write import Assembled, assemble
from ...progress import Progress, ProgressLike, progress_from
from ...tensor.dtype import DType
from ...transforms.adapters import ModuleAdapter
from ...transforms.guess import Guess
from .receipt import (
    RECEIPT_SUFFIX,
    Receipt,
    ReceiptSource,
    ReceiptTensor,
    file_digest,
    files_of,
    read_receipt,
)

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion did: how many tensors and bytes were written, and in which layout they were and are.

    ``receipt`` is where its receipt lies, ``guess`` the evidence by which modules were told apart, if it was asked for.
    """

    tensors: int
    nbytes: int
    source_layout: str | None
    layout: str | None
    verified: bool
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list, repr=False)
    receipt: str | None = field(default=None, repr=False)
    guess: Guess | None = field(default=None, repr=False)


def convert(
    source: Path | Sequence[Path],
    target: Path,
    *,
    filter: Pattern | Iterable[Pattern] | None = None,
    rename: Renames | None = None,
    like: Any = None,
    rules: Rules | Path | None = None,
    guess: bool = False,
    keep_layout: bool = False,
    source_layout: str | None = None,
    layout: str | None = None,
    adapter: ModuleAdapter | type[ModuleAdapter] | str | None = None,
    cast: DType | str | None = None,
    format: str | None = None,
    max_shard_size: int | str | None = None,
    metadata: Mapping[str, str | None] | None = None,
    record_modules: bool = True,
    overwrite: bool = False,
    durable: bool = True,
    verify: bool = True,
    receipt: bool | Path = False,
    resume: bool = False,
    executor: Workers = None,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
    **options: Any,
) -> Conversion:
    """Write the tensors of files into another, whose format follows its suffix unless ``format`` names it.

    ``source`` is a file of any format, a folder or index of shards, or several of them whose tensors together make the
    target; DuplicateNameError if two have one name. It happens, in this order:

    * ``filter``: only tensors in whose names one of these patterns is found.
    * ``rename``: rules such as ``"^h\\.=>layers."``, or pairs of pattern and replacement, one after the other.
    * The layout: a file in the layout that the target has (or, where the format has none, any) is copied. Otherwise the
      kinds of the modules must be known: from ``like`` (a model of either layout, or the path of a file that records
      its modules), from what the source itself records, from ``rules`` (a pattern that is found in a module's path →
      kind; or the path of a file of such rules), or with ``guess=True`` from names and shapes, where those decide
      (AmbiguousError with the evidence where not). ``keep_layout=True`` writes the tensors as they are, and the file
      says so. ``source_layout`` and ``layout`` (``"burn"``, ``"torch"``) replace what the source says of itself and
      what the target would have.
    * ``adapter``: one of the adapters, or its name. One that changes names or axes takes the place of the above.
    * ``cast``: floats in this dtype (``"bf16"``); DTypeError if a finite value would become infinite.

    Texts are kept, but for those that say whose layout it is; ``metadata`` adds to them, None takes one away. What the
    modules are is recorded beside them, unless ``record_modules=False``, so that the way back needs nobody's help.

    The target is there as a whole or not at all. With ``verify`` (default) every tensor is read back and compared with
    its source before that. ``receipt=True`` (or a path) writes down what was read, done and written, see
    `check_receipt` and `replay`. ``max_shard_size`` (``"5GB"``) makes shards with an index; with ``resume=True`` such a
    conversion goes on where an earlier one was cut off, and leaves what it has if it fails.

    At most the largest tensor and some megabytes are in memory. ``executor`` says who works: threads of this process
    (None), so many processes (a number), or whatever has ``submit``, such as a client of Dask; for the latter two files
    must be found under the same paths. Raises ModelError where something is not known or does not fit; the target is
    then as it was.

    >>> import tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bs.save({"fc.weight": np.ones((4, 3), np.float32)}, f"{folder}/a.safetensors", metadata={"format": "pt"})
    ...     done = bs.convert(f"{folder}/a.safetensors", f"{folder}/a.bpk", rules={"^fc$": "Linear"})
    ...     with bs.open(f"{folder}/a.bpk") as f:
    ...         done.source_layout, done.layout, f["fc.weight"].shape
    ('torch', 'burn', (3, 4))
    """
    recipe = recipe_of(
        filter=filter,
        rename=rename,
        like=like,
        rules=rules_from_file(rules) if isinstance(rules, (str, os.PathLike)) else rules,
        guess=guess,
        keep_layout=keep_layout,
        source_layout=source_layout,
        layout=layout,
        adapter=adapter,
        cast=cast,
        metadata=metadata,
        record_modules=record_modules,
        options=options,
    )
    way = _Way(
        target=os.fsdecode(target),
        format=format,
        max_shard_size=None if max_shard_size is None else byte_count(max_shard_size),
        overwrite=overwrite,
        durable=durable,
        verify=verify,
        receipt=_receipt_path(receipt, os.fsdecode(target)),
        resume=resume,
        executor=executor,
        limits=limits,
    )
    with progress_from(progress) as report:
        return _converted(_paths(source), recipe, way, report)


def replay(
    receipt: Path,
    target: Path | None = None,
    *,
    overwrite: bool = False,
    durable: bool = True,
    executor: Workers = None,
    limits: Limits | None = None,
    progress: ProgressLike | None = None,
) -> Conversion:
    """Do the conversion of a receipt once more, and require that every tensor comes out as it did.

    The sources must be as they were: their digests are looked at first. The target is the receipt's own, or another.
    CorruptError where a source is another, or a tensor does not come out with its digest; the target is then as it was.

    >>> import filecmp, tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bs.save({"w": np.ones(3, np.float32)}, f"{folder}/a.bpk")
    ...     done = bs.convert(f"{folder}/a.bpk", f"{folder}/a.safetensors", cast="bf16", receipt=True)
    ...     again = bs.replay(done.receipt, f"{folder}/b.safetensors")
    ...     filecmp.cmp(f"{folder}/a.safetensors", f"{folder}/b.safetensors", shallow=False)
    True
    """
    said = read_receipt(receipt)
    with located(path=os.fsdecode(receipt)):
        recipe = _recipe_in(said)
        for each in said.sources:
            for file in each.files:
                if file_digest(file.path) != file:
                    raise CorruptError(
                        "this source is not the one that was converted: its bytes are others",
                        path=file.path,
                        hint="bring back the file of then, or convert anew",
                    )
    way = _Way(
        target=said.target if target is None else os.fsdecode(target),
        format=said.format,
        max_shard_size=said.max_shard_size,
        overwrite=overwrite,
        durable=durable,
        executor=executor,
        limits=limits,
        expected={tensor.name: tensor.sha256 for tensor in said.tensors},
    )
    with progress_from(progress) as report:
        done = _converted([each.path for each in said.sources], recipe, way, report)
    if len(done.files) == 1 and file_digest(done.files[0]).sha256 != said.files[0].sha256:
        done.notes.append(f"all tensors came out the same; the file around them is not that of {said.burnstore}")
    return done


def _recipe_in(said: Receipt) -> Recipe:
    try:
        return Recipe.from_dict(said.recipe)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CorruptError(f"its recipe is damaged: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """Where the tensors go, and how: what of a conversion has no influence on their values."""

    target: str
    format: str | None
    max_shard_size: int | None = None
    overwrite: bool = False
    durable: bool = True
    verify: bool = True
    receipt: str | None = None
    resume: bool = False
    executor: Workers = None
    limits: Limits | None = None
    expected: Mapping[str, str] | None = None

    def chosen(self) -> Format:
        """The target's format; what cannot be written is refused before anything is opened."""
        if self.receipt is not None and not self.verify:
            raise ValueError("a receipt tells of what was proved: it needs verify=True")
        if self.resume and self.max_shard_size is None:
            raise ValueError("only a conversion into shards can be resumed: it needs max_shard_size")
        chosen = format_for_path(self.target) if self.format is None else format_named(self.format)
        with located(path=self.target):
            chosen.plan([], {}, self.limits or Limits())
        if self.receipt is not None and not self.overwrite and os.path.lexists(self.receipt):
            raise already_exists(self.receipt, stage="check")
        return chosen

    def write(self, ready: Prepared, chosen: Format, report: Progress | None) -> Assembled:
        """Write what was prepared."""
        sharded = self.max_shard_size is not None
        return assemble(
            ready.snapshots,
            self.target,
            chosen,
            metadata=ready.texts,
            overwrite=self.overwrite,
            durable=self.durable,
            verify=self.verify,
            digests=self.receipt is not None,
            expected=self.expected,
            max_shard_size=self.max_shard_size,
            journal=Journal(self.target, self.resume, self.durable) if sharded else None,
            workers=self.executor,
            limits=self.limits,
            progress=report,
            **ready.options,
        )


def _converted(paths: Sequence[str], recipe: Recipe, way: _Way, report: Progress | None) -> Conversion:
    chosen = way.chosen()
    if way.receipt is not None:
        _written_down(recipe)  # what cannot be is refused before any work
    with _opened(paths, way.limits) as sources:
        _check_apart(sources, way)
        ready = prepare(sources, recipe, chosen)
        done = way.write(ready, chosen, report)
        if way.receipt is not None:
            _receipt(sources, recipe, way, chosen, ready, done).save(
                way.receipt, overwrite=way.overwrite, durable=way.durable
            )
    return Conversion(
        len(ready.snapshots),
        sum(each.nbytes for each in ready.snapshots),
        ready.source_layout,
        ready.translated.layout,
        way.verify,
        ready.notes,
        done.files,
        way.receipt,
        ready.translated.guess,
    )


# --- the files that are read ------------------------------------------------------------------------------------------


def _paths(source: Path | Sequence[Path]) -> list[str]:
    several = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not several:
        raise ValueError("there is no source to convert")
    return [os.fsdecode(path) for path in several]


def _receipt_path(receipt: bool | Path, target: str) -> str | None:
    if isinstance(receipt, bool):
        return target + RECEIPT_SUFFIX if receipt else None
    return os.fsdecode(receipt)


@contextmanager
def _opened(paths: Sequence[str], limits: Limits | None) -> Iterator[list[Checkpoint]]:
    with ExitStack() as opened:
        yield [opened.enter_context(open_checkpoint(path, limits=limits)) for path in paths]


def _files(source: Checkpoint) -> list[FileSource]:
    """The files that a source is read from, the one that was opened first."""
    parts = source._data.parts if isinstance(source._data, JoinedSource) else []
    found = {file.name: file for file in (source._source, *parts) if isinstance(file, FileSource)}
    return list(found.values())


def _check_apart(sources: Sequence[Checkpoint], way: _Way) -> None:
    """Refuse a target that is one of the files that are read, under whatever name, or would replace one of them."""
    read = {file.identity: file.name for source in sources for file in _files(source)}
    written = [way.target, *(set_at(way.target) if way.max_shard_size is not None else ())]
    for path in [*written, *([way.receipt] if way.receipt is not None else ())]:
        try:
            status = os.stat(path)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in read:
            raise SaveError(
                f"source and target are the same file, {read[status.st_dev, status.st_ino]}",
                stage="check",
                path=path,
                hint="give the target another name; the source is as it was",
            )


# --- receipt ----------------------------------------------------------------------------------------------------------


def _receipt(
    sources: Sequence[Checkpoint], recipe: Recipe, way: _Way, chosen: Format, ready: Prepared, done: Assembled
) -> Receipt:
    names = [[file.name for file in _files(source)] for source in sources]
    files = files_of([*done.files, *(name for each in names for name in each)], way.executor)
    for source in sources:
        for file in _files(source):
            file.read_at(0, 0)  # raises if it was changed in place
            if not file.is_current():
                message = "converted, but without a receipt: the source was replaced by another meanwhile"
                raise ChangedError(message, path=file.name, hint="convert anew, or keep the file as it is without one")
    by_path = {file.path: file for file in files}
    view = ready.translated.view
    recorded = {**_written_down(recipe), "modules": recipe.modules if view is None else record_of(view)}
    return Receipt(
        __version__,
        tuple(
            ReceiptSource(source.path, source.format, tuple(by_path[name] for name in each))
            for source, each in zip(sources, names, strict=True)
        ),
        recorded,
        way.target,
        chosen.name,
        ready.translated.layout,
        way.max_shard_size,
        tuple(by_path[file] for file in done.files),
        tuple(
            ReceiptTensor(
                tensor.path,
                tuple(ready.old_names.get(name, name) for name in ready.translated.made_of.get(tensor.path, ())),
                str(tensor.dtype),
                tensor.shape,
                done.digests[tensor.path],
            )
            for tensor in ready.snapshots
        ),
    )


def _written_down(recipe: Recipe) -> dict[str, Any]:
    """The recipe in the form of JSON; UnsupportedError if it has none."""
    written = recipe.to_dict()
    try:
        json.dumps(written)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"a receipt cannot hold these options: {error}", hint="give them as plain values"
        ) from None
    return written
