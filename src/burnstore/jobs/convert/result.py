"""What a conversion did, and what conversions and the shares of jobs have in common: open sources and scalars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...checkpoint import Checkpoint, open_checkpoint
from ...formats.base import Format
from ...limits import Limits
from ...pipeline.ends import Input
from ...pipeline.metadata import scalars_of
from ...pipeline.plan import Plan
from ...tensor.note import Note
from ...tensor.tabular import Result
from ...transforms.guess import Guess


@dataclass(frozen=True, slots=True)
class ConvertResult(Result):
    """What a conversion did: how many tensors and bytes it wrote, and in which layout they were and are.

    ``left_out`` has the tensors of the sources that were not written, each with the reason; ``receipt`` is the path of
    the receipt, ``guess`` the evidence for module kinds that were guessed.
    """

    tensors: int
    nbytes: int
    source_layout: str | None
    layout: str | None
    verified: bool
    notes: list[Note] = field(default_factory=list)
    files: list[str] = field(default_factory=list, repr=False)
    receipt: str | None = field(default=None, repr=False)
    guess: Guess | None = field(default=None, repr=False)
    left_out: Mapping[str, str] = field(default_factory=dict, repr=False)
    mapping: str | None = field(default=None, repr=False)
    """``verified copy`` where rules decided which tensor becomes which; only `prove` proves such rules."""

    _facts: ClassVar[tuple[str, ...]] = ("ok", "evidence")

    @property
    def evidence(self) -> dict[str, str] | None:
        """The reason for the guessed kind of each tensor's module; None if nothing was guessed."""
        return None if self.guess is None else {name: why for name, _, why in self.guess.by_tensor()}


def scalar_options(inputs: Sequence[Input], chosen: Format, plan: Plan, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option that writes the scalars of the sources, where there are some and the format has a place."""
    if "scalars" in given:
        return {}
    scalars = scalars_of(inputs, chosen, plan.notes)
    return {"scalars": scalars} if scalars else {}


@contextmanager
def opened_files(
    paths: Sequence[Any],
    limits: Limits | None,
    keys: Sequence[str | None] | None = None,
    *,
    together: bool = False,
) -> Iterator[list[Checkpoint]]:
    """Open several files, of each the part below its top-level key; ``together``, files with pieces are one."""
    keys = keys or [None] * len(paths)
    with ExitStack() as opened:
        files = [
            opened.enter_context(open_checkpoint(path, limits=limits, top_level_key=key))
            for path, key in zip(paths, keys, strict=True)
        ]
        if together and len(files) > 1 and len(set(keys)) == 1 and any(_has_pieces(file) for file in files):
            files = [opened.enter_context(open_checkpoint(paths, limits=limits, top_level_key=keys[0]))]
        yield files


def _has_pieces(file: Checkpoint) -> bool:
    return any(fact.piece is not None for fact in file._table.facts.values())
