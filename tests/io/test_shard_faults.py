"""What a sharded save promises when the system fails (S13): faults and power cuts leave the old set or the new one."""

from __future__ import annotations

import errno
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_fs import FaultyFS

import burnstore as bs
from burnstore.errors import SaveError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the calls counted here are Linux's")

INDEX = "model.safetensors.index.json"
SHARDS = 3


def model(value: float) -> dict[str, Any]:
    return {f"t{n}": np.full(50, value + n, np.float32) for n in range(SHARDS)}


def save(folder: Path, value: float, **options: Any) -> None:
    bs.save(model(value), folder / "model.safetensors", max_shard_size=200, overwrite=True, **options)


def found(folder: Path) -> float | None:
    """The value of the set that is there; None if there is none. A set that is neither raises."""
    if not (folder / INDEX).exists():
        return None
    with bs.open(folder / INDEX) as f:
        arrays = f.numpy()
    value = float(arrays["t0"][0])
    assert all((arrays[name] == expected).all() for name, expected in model(value).items())
    return value


def named(folder: Path) -> set[str]:
    return set(json.loads((folder / INDEX).read_text())["weight_map"].values()) if (folder / INDEX).exists() else set()


# --- faults -----------------------------------------------------------------------------------------------------------

KINDS = ["open", "fstat", "posix_fallocate", "writev", "fsync", "close", "replace", "link", "unlink"]


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "sticky"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", ["new", "overwrite"])
def test_a_fault_at_any_call_leaves_the_old_set_or_the_new(
    tmp_path: Path, use_os: Any, scenario: str, kind: str, sticky: bool
) -> None:
    calls = 1
    at = -1
    while (at := at + 1) < calls:
        folder = tmp_path / f"{at}"
        folder.mkdir()
        if scenario == "overwrite":
            save(folder, 100.0, durable=False)
        before = found(folder)
        shim = FaultyFS(kind, at, errno.EIO, sticky=sticky)
        use_os(shim)
        try:
            save(folder, 200.0)
            failed = None
        except OSError as error:
            failed = error
        finally:
            use_os(os)
        calls = max(calls, shim.counts[kind])
        published = failed is None or (isinstance(failed, SaveError) and failed.stage == "published")
        assert found(folder) == (200.0 if published else before), f"{kind} {at}: {failed}"
        rest = {name for name in os.listdir(folder) if not name.endswith("burnstore-tmp")} - named(folder) - {INDEX}
        # What could not be removed may stay; else nothing is there that no index names.
        assert not rest or kind == "unlink" or sticky or published, f"{kind} {at}: {rest}"
    assert calls >= 1


# --- power cuts -------------------------------------------------------------------------------------------------------
# The disk is as unkind as POSIX allows: what was done to the folder since its last fsync may be there in any part, and
# a file that was not synced when the power went is torn. Every state after every call is looked at.


def events_of(shim: FaultyFS) -> list[tuple[Any, ...]]:
    events: list[tuple[Any, ...]] = []
    files: dict[int, str | None] = {}
    for name, args, _, result in shim.calls:
        if name == "open" and result is not None:
            scratch = os.path.basename(args[0])
            files[result] = scratch if scratch.endswith("burnstore-tmp") else None
            if files[result]:
                events.append(("create", scratch))
        elif name == "fsync":
            events.append(("sync file", files[args[0]]) if files[args[0]] else ("sync folder",))
        elif name in ("replace", "rename", "link") and result is None:
            events.append(("name", os.path.basename(args[0]), os.path.basename(args[1])))
        elif name == "unlink" and result is None:
            events.append(("unlink", os.path.basename(args[0])))
        elif name == "close":
            files.pop(args[0], None)
    return events


def folder_states(events: list[tuple[Any, ...]], old: set[str]) -> list[tuple[dict[str, str], set[str]]]:
    """What every name may lead to, and which scratch files are whole, after these calls and a power cut."""
    steps: list[tuple[Any, ...]] = []
    synced_steps, whole = 0, set()
    for event in events:
        if event[0] in ("name", "unlink"):
            steps.append(event)
        elif event[0] == "sync file":
            whole.add(event[1])
        elif event[0] == "sync folder":
            synced_steps = len(steps)
    states = []
    for kept in itertools.product((False, True), repeat=len(steps) - synced_steps):
        names = {name: f"old {name}" for name in old}
        for there, step in zip([True] * synced_steps + list(kept), steps, strict=True):
            if there and step[0] == "name":
                names[step[2]] = step[1]
            elif there:
                names.pop(step[1], None)
        states.append((names, whole))
    return states


def set_found(names: dict[str, str], whole: set[str], old: set[str], new: set[str]) -> str:
    """Which set the index leads to: "old", "new" or "none" if it is whole, "torn" if not."""
    index = names.get(INDEX)
    if index is None:
        return "none"
    if index.startswith("old "):
        return "old" if all(names.get(name) == f"old {name}" for name in old) else "torn"
    good = index in whole and all(names.get(name) in whole for name in new)
    return "new" if good else "torn"


@pytest.mark.parametrize("scenario", ["new", "overwrite"])
def test_a_power_cut_at_any_instant_leaves_the_old_set_or_the_new(tmp_path: Path, use_os: Any, scenario: str) -> None:
    if scenario == "overwrite":
        save(tmp_path, 100.0, durable=False)
    old = named(tmp_path)
    shim = FaultyFS()
    use_os(shim)
    save(tmp_path, 200.0)
    use_os(os)
    new, events = named(tmp_path), events_of(shim)
    before = old | ({INDEX} if old else set())

    def outcomes(events: list[tuple[Any, ...]], made: int) -> set[str]:
        return {set_found(*state, old, new) for state in folder_states(events[:made], before)}

    seen = [outcomes(events, made) for made in range(len(events) + 1)]
    assert set().union(*seen) == {"new", "old" if old else "none"}
    assert seen[-1] == {"new"}  # when save has returned, the new set is there for good
    # The model must be able to see the faults it is there to find.
    for harm in (
        [event for event in events if event[0] != "sync file"],
        [event for event in events if event[0] != "sync folder"],
        sorted(events, key=lambda event: event[0] == "name" and event[2] != INDEX),
    ):
        assert "torn" in set().union(*(outcomes(harm, made) for made in range(len(harm) + 1)))
