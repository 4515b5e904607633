"""H15: no file makes anything run: every payload in every container, watched by an audit hook in another process."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from fuzz import torch_bytes as tb
from fuzz.pickle_payloads import FORMS, TARGETS, payloads

CHILD = """
import json, sys, os, pickle
sys.path.insert(0, sys.argv[1])
import numpy as np
import burnstore as bs
from burnstore.formats import pytorch
from burnstore.io.source import BytesSource
from fuzz import torch_bytes as tb
from fuzz.pickle_payloads import payloads

events, armed = [], False

def hook(event, args):
    if armed and not event.startswith(("object.", "builtins.id")):
        events.append((event, repr(args)[:80]))

sys.addaudithook(hook)
counts = {"opened": 0, "refused": 0, "files": 0, "payloads": 0}

def look_at(data):
    counts["files"] += 1
    try:
        for options in ({}, {"top_level_key": ""}, {"salvage": True}, {"dense": True}):
            with bs.open(data, format="pytorch", **options) as f:
                f.numpy()
                repr([f, f.notes, f.variant, list(f.items())])
        file = pytorch.read_pickled(BytesSource(data))
        repr(file.value), repr(file.globals)
        counts["opened"] += 1
    except bs.BurnstoreError as error:
        str(error), repr(error)
        counts["refused"] += 1

RAW = np.arange(1, dtype="<f4").tobytes()
def files(payload):
    weight = tb.tensor(tb.storage(tb.text("0"), 1), (1,))
    around = tb.pickled(tb.dict_of((tb.text("w"), weight), (tb.text("x"), payload)), 4)
    alone = tb.pickled(payload, 4)
    for pickle_bytes, storages in ((around, {"0": RAW}), (alone, {})):
        yield from tb.containers(pickle_bytes, storages).values()

for warm in (tb.integer(1), tb.text("a"), b"\\xff", b"\\x82\\x01"):
    for data in files(warm):
        look_at(data)
made = [(name, list(files(payload))) for name, payload in payloads(int(sys.argv[2]))]
for key in counts: counts[key] = 0
armed = True
for name, datas in made:
    counts["payloads"] += 1
    for data in datas:
        look_at(data)
armed = False
seen, events = events, []
armed = True
try:
    pickle.loads(b"cos\\ngetcwd\\n)R.")
finally:
    armed = False
print(json.dumps({"events": seen, "counts": counts, "stdlib": [event for event, _ in events]}))
"""


def watched(run_python: Any, every: int) -> dict[str, Any]:
    from pathlib import Path

    tests = Path(__file__).resolve().parent.parent
    return json.loads(run_python(CHILD, tests, every).splitlines()[-1])


@pytest.mark.slow("starts PyTorch")
def test_no_payload_in_any_container_causes_a_single_event(run_python: Any) -> None:
    """H15: PT-18."""
    found = watched(run_python, 1)
    assert found["events"] == []
    assert found["counts"]["payloads"] >= 150
    assert found["counts"]["files"] == 12 * found["counts"]["payloads"]
    assert found["counts"]["opened"] > 100
    assert "pickle.find_class" in found["stdlib"]  # the hook does see what Python's own unpickler does


def test_the_payloads_are_many_and_different() -> None:
    every = dict(payloads(0))
    assert len(every) == len(TARGETS) * len(FORMS) + 3
    assert len(set(every.values())) > 0.9 * len(every)
    assert len(dict(payloads())) >= 150


def test_tensors_beside_a_payload_can_be_taken_safely() -> None:
    """PT-18: and what the file would have run is listed."""
    from burnstore.formats import pytorch
    from burnstore.io.source import BytesSource

    raw = np.arange(3, dtype="<f4").tobytes()
    evil = tb.call(tb.name("os", "system"), tb.text("echo"))
    value = tb.dict_of((tb.text("w"), tb.tensor(tb.storage(tb.text("0"), 3), (3,))), (tb.text("x"), evil))
    data = tb.torch_zip(tb.pickled(value), {"0": raw})
    with bs.open(data) as f:
        assert f.numpy()["w"].tolist() == [0, 1, 2]
    file = pytorch.read_pickled(BytesSource(data))
    assert [(s.full_name, s.called) for _, s in file.globals if s.module == "os"] == [("os.system", True)]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_call_is_seen_by_the_list_of_globals(form: str) -> None:
    from burnstore.formats import pytorch
    from burnstore.io.source import BytesSource

    payload = FORMS[form]("os", "system", (tb.text("echo"),))
    data = tb.torch_zip(tb.pickled(tb.dict_of((tb.text("x"), payload)), 4), {"0": bytes(4)})
    try:
        named = {symbol.full_name for _, symbol in pytorch.read_pickled(BytesSource(data)).globals}
    except bs.BurnstoreError:
        return  # refused whole, which is as safe
    assert "os.system" in named or ".os.system" in named
