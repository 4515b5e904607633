"""Journal: what a long save into shards leaves beside them, so that one that was cut off can be taken up again.

The file ``<target>.burnstore-resume.json`` is there from before the first shard until after the index. It names the
shards and says how each of them begins; nothing in it is believed of what they hold. Whoever goes on proves every shard
that is there against the source, as if it had just been written, and writes the others.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

from ...errors import AlreadyExistsError, SaveError
from ...io.atomic import atomic_file, remove_files
from ...io.source import read_whole
from ...progress import Progress
from ..base import WritePlan

JOURNAL_SUFFIX = ".burnstore-resume.json"

_SCHEMA = 1
_MOST_BYTES = 64 << 20


class Prove(Protocol):
    """How a file that is there already is shown to be the planned one, byte for byte; raises if it is not."""

    def __call__(self, plan: WritePlan, path: str, progress: Progress | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of one target. With ``resume`` a save goes on from it, and one that fails keeps what it has."""

    target: str
    resume: bool
    durable: bool = True

    @property
    def path(self) -> str:
        """Where it lies."""
        return self.target + JOURNAL_SUFFIX

    def begun(self, plans: Sequence[WritePlan], ours: re.Pattern[str]) -> list[str] | None:
        """The names of the shards of the save that was cut off here, None if there was none.

        SaveError where there was one of other shards than these, or where nobody asked to go on.
        """
        if not os.path.lexists(self.path):
            return None
        if not self.resume:
            raise AlreadyExistsError(
                "an earlier save into shards was cut off here",
                stage="check",
                path=self.path,
                hint=f"resume=True (--resume) goes on with it; to begin anew, remove {os.path.basename(self.path)}",
            )
        document = self._read()
        wanted = [_facts(plan) for plan in plans]
        found = [(shard.get("size"), shard.get("begins")) for shard in document]
        names = [str(shard.get("name")) for shard in document]
        if found != wanted or len(set(names)) != len(names) or not all(ours.fullmatch(name) for name in names):
            raise self._stale("it was of other tensors, sizes or texts than this one")
        return names

    def begin(self, names: Sequence[str], plans: Sequence[WritePlan]) -> None:
        """Write down which shards there will be."""
        facts = [_facts(plan) for plan in plans]
        shards = [
            {"name": name, "size": size, "begins": begins} for name, (size, begins) in zip(names, facts, strict=True)
        ]
        text = (json.dumps({"schema": _SCHEMA, "shards": shards}, indent=1) + "\n").encode()
        with atomic_file(self.path, overwrite=True, durable=self.durable, size=len(text)) as scratch:
            scratch.write(text)

    def end(self) -> None:
        """Remove it: the save is complete, or given up."""
        folder, name = os.path.split(self.path)
        if remove_files(folder, [name]):
            raise SaveError("saved, but its journal could not be removed", stage="published", path=self.path)

    def _read(self) -> list[dict[str, Any]]:
        try:
            document = json.loads(read_whole(self.path, _MOST_BYTES))
        except OSError as error:
            raise SaveError(f"the journal cannot be read: {error.strerror}", stage="check", path=self.path) from error
        except (ValueError, RecursionError):  # among them LimitError
            document = None
        shards = document.get("shards") if isinstance(document, dict) and document.get("schema") == _SCHEMA else None
        if not isinstance(shards, list) or not all(isinstance(shard, dict) for shard in shards):
            raise self._stale("its journal is damaged")
        return shards

    def _stale(self, why: str) -> SaveError:
        return SaveError(
            f"the save that was cut off here cannot be taken up: {why}",
            stage="check",
            path=self.path,
            hint=f"say the same as then, or remove {os.path.basename(self.path)} to begin anew",
        )


def _facts(plan: WritePlan) -> tuple[int, str]:
    """What tells a planned file from others: its size, and the digest of the header, which names all tensors."""
    return plan.size, sha256(plan.header).hexdigest()
