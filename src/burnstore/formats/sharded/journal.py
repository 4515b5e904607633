"""The journal of a long save into shards, from which a save that was interrupted can be resumed.

The file ``<target>.burnstore-resume.json`` is there from before the first shard until after the index. It has the
identity of the set, and the name, size and header digest of each shard; it is no evidence of what the shards hold. A
resumed save proves every shard that is there against the source, as if it had just been written, and writes the others.
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

_SCHEMA = 2
_MOST_BYTES = 64 << 20
_IDENTITY = re.compile("[0-9a-f]{32}")


class Prove(Protocol):
    """Show that an existing file is the planned one, byte for byte, or raise."""

    def __call__(self, plan: WritePlan, path: str, progress: Progress | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Journal:
    """The journal of one target. With ``resume`` a save continues from it, and a save that fails keeps its shards."""

    target: str
    resume: bool
    durable: bool = True

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.target + JOURNAL_SUFFIX

    def identity(self) -> str | None:
        """Return the identity of the set of the interrupted save, None if there was none.

        SaveError where there was one and the caller did not ask to resume it, or where its journal is damaged.
        """
        if not os.path.lexists(self.path):
            return None
        if not self.resume:
            raise AlreadyExistsError(
                "an earlier save into shards was interrupted here",
                stage="check",
                path=self.path,
                hint=f"resume it with resume=True (--resume), or delete {os.path.basename(self.path)} to start over",
            )
        return str(self._read()["set"])

    def names(self, plans: Sequence[WritePlan], ours: re.Pattern[str]) -> list[str]:
        """Return the names of the shards of the interrupted save; SaveError where it was of other shards than these."""
        shards = self._read()["shards"]
        names = [str(shard.get("name")) for shard in shards]
        found = [(shard.get("size"), shard.get("header")) for shard in shards]
        if (
            found != [_facts(plan) for plan in plans]
            or len(set(names)) != len(names)
            or not all(map(ours.fullmatch, names))
        ):
            raise self._stale("it had other tensors, sizes or metadata than this one")
        return names

    def begin(self, identity: str, names: Sequence[str], plans: Sequence[WritePlan]) -> None:
        """Record the shards that will be written."""
        facts = [_facts(plan) for plan in plans]
        shards = [{"name": name, "size": size, "header": head} for name, (size, head) in zip(names, facts, strict=True)]
        text = (json.dumps({"schema": _SCHEMA, "set": identity, "shards": shards}, indent=1) + "\n").encode()
        with atomic_file(self.path, overwrite=True, durable=self.durable, size=len(text)) as scratch:
            scratch.write(text)

    def end(self) -> None:
        """Remove the journal: the save is complete, or given up."""
        folder, name = os.path.split(self.path)
        if remove_files(folder, [name]):
            raise SaveError("saved, but its journal could not be removed", stage="published", path=self.path)

    def _read(self) -> dict[str, Any]:
        try:
            document = json.loads(read_whole(self.path, _MOST_BYTES))
        except OSError as error:
            raise SaveError(f"the journal cannot be read: {error.strerror}", stage="check", path=self.path) from error
        except (ValueError, RecursionError):  # among them LimitError
            document = None
        if (
            not isinstance(document, dict)
            or document.get("schema") != _SCHEMA
            or not _IDENTITY.fullmatch(str(document.get("set")))
            or not isinstance(document.get("shards"), list)
            or not all(isinstance(shard, dict) for shard in document["shards"])
        ):
            raise self._stale("its journal is damaged")
        return document

    def _stale(self, why: str) -> SaveError:
        return SaveError(
            f"the interrupted save cannot be resumed: {why}",
            stage="check",
            path=self.path,
            hint=f"rerun with the original options, or delete {os.path.basename(self.path)} to start over",
        )


def _facts(plan: WritePlan) -> tuple[int, str]:
    """Return the size of a planned file, and the digest of its header, which names all tensors."""
    return plan.size, sha256(plan.header).hexdigest()
