"""Doing nothing is no success: no verb writes, loads, compares or verifies nothing without being asked to."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import nn
from burnstore.cli import main
from burnstore.jobs.convert.receipt import read_receipt
from burnstore.tensor.note import Note, as_note

F32 = np.float32


class Net(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(2, 3)
        self.out = nn.Linear(3, 2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    bs.save(Net(), tmp_path / "net.bpk")
    return tmp_path / "net.bpk"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    bs.save({}, tmp_path / "empty.bpk", layout="burn")
    return tmp_path / "empty.bpk"


def never(path: str, containers: Any) -> bool:
    return False


NOTHING: dict[str, Callable[[Path], Any]] = {
    "a pattern": lambda path: bs.save(Net(), path, filter="^typo", overwrite=True),
    "a function": lambda path: bs.save(Net(), path, filter=never, overwrite=True),
    "no pattern at all": lambda path: bs.save(Net(), path, filter=[], overwrite=True),
    "an empty mapping": lambda path: bs.save({}, path, overwrite=True),
    "an empty list": lambda path: bs.save([], path, overwrite=True),
    "an empty generator": lambda path: bs.save((each for each in ()), path, overwrite=True),
    "empty mappings": lambda path: bs.save({"a": {"b": {}}}, path, overwrite=True),
    "a model of nothing": lambda path: bs.save(nn.Relu(), path, overwrite=True),
    "snapshots": lambda path: bs.save(bs.collect(Net()), path, filter="^typo", overwrite=True),
    "a store": lambda path: bs.BurnpackStore.from_file(path).overwrite(True).with_regex("^typo").save(Net()),
    "a store of a function": lambda path: bs.BurnpackStore.from_file(path).overwrite(True).filter(never).save(Net()),
    "a store of nothing": lambda path: bs.BurnpackStore.from_file(path).overwrite(True).save(nn.Relu()),
    "bytes": lambda path: bs.serialize(Net(), format="burnpack", filter="^typo"),
}


@pytest.mark.parametrize("way", NOTHING)
def test_a_save_of_nothing_is_refused_and_replaces_no_file(file: Path, way: str) -> None:
    before = file.read_bytes()
    with pytest.raises((bs.errors.SaveError, TypeError), match=r"no tensor"):
        NOTHING[way](file)
    assert file.read_bytes() == before and os.listdir(file.parent) == [file.name]


def test_a_save_of_nothing_names_the_filter_and_the_way_out(file: Path) -> None:
    with pytest.raises(bs.errors.SaveError, match=r"the filter '\^typo' matches none of 4 tensors") as caught:
        bs.save(Net(), file, filter="^typo", overwrite=True)
    assert caught.value.stage == "check" and caught.value.path == str(file)
    assert "allow_empty=True" in (caught.value.hint or "")


def test_what_has_no_tensors_is_written_as_that_and_the_result_is_false(tmp_path: Path) -> None:
    for given in ({}, [], bs.open(bs.serialize({}, format="burnpack"))):
        done = bs.save(given, tmp_path / "a.bpk")
        assert not done and [note.kind for note in done.notes] == ["empty"]
        (tmp_path / "a.bpk").unlink()
        assert bs.save(given, tmp_path / "a.bpk", allow_empty=True)
        assert bs.save(given, tmp_path / "a.bpk", allow_empty=True, overwrite=True)
        (tmp_path / "a.bpk").unlink()


def test_a_set_of_shards_is_not_replaced_by_nothing(tmp_path: Path) -> None:
    bs.save(Net(), tmp_path / "set.safetensors", max_shard_size=24)
    before = sorted(os.listdir(tmp_path))
    for size in (24, None):
        with pytest.raises(bs.errors.SaveError, match="no tensor"):
            bs.save({}, tmp_path / "set.safetensors", max_shard_size=size, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == before


def test_nothing_is_saved_and_loaded_on_request(tmp_path: Path) -> None:
    done = bs.save(Net(), tmp_path / "a.bpk", filter="^typo", allow_empty=True)
    assert done and done.tensors == () and [note.kind for note in done.notes] == ["unmatched"]
    found = bs.load(Net(), tmp_path / "a.bpk", allow_partial=True, allow_empty=True)
    assert found and found.applied == []


def test_a_store_writes_and_loads_a_model_without_tensors_with_a_note() -> None:
    store = bs.BurnpackStore.from_bytes(None)
    for result in (store.save(nn.Relu()), store.load(nn.Relu())):
        assert not result and [note.kind for note in result.notes] == ["empty"]
    full = bs.BurnpackStore.from_bytes(bs.serialize(Net(), format="burnpack"))
    found = full.load(nn.Relu())
    assert not found and found.is_success() and len(found.unused) == 4


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize(
    "options",
    [
        {"filter": "^typo"},
        {"filter": never},
        {"filter": "^typo", "allow_partial": True},
        {"rename": ["^=>other."], "allow_partial": True},
        {"rename": ["^=>other."], "allow_partial": True, "validate": False},
    ],
)
def test_a_load_of_nothing_is_refused(file: Path, options: dict[str, Any]) -> None:
    model = Net()
    with pytest.raises(bs.errors.LoadError, match="Nothing to load") as caught:
        bs.load(model, file, **options)
    assert caught.value.result is not None and not caught.value.result.applied
    assert bs.explain(file, model, **options).refusal == "LoadError"
    assert not bs.explain(file, model, **options)
    store = bs.BurnpackStore.from_file(file)
    store.pipeline = bs.Pipeline(**options)
    with pytest.raises(bs.errors.LoadError, match="Nothing to load"):
        store.load(model)
    store.allow_empty(True)
    assert store.load(model).applied == []


def test_strict_refuses_what_no_parameter_takes(file: Path, tmp_path: Path) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            self.fc = nn.Linear(2, 3)

    assert bs.load(Half(), file).unused == ["out.bias", "out.weight"]
    for load in (
        lambda: bs.load(Half(), file, strict=True),
        lambda: bs.BurnpackStore.from_file(file).strict(True).load(Half()),
        lambda: bs.apply(Half(), list(bs.open(file).values()), strict=True),
    ):
        with pytest.raises(bs.errors.LoadError, match="Unused tensors: 2"):
            load()
    assert bs.explain(file, Half(), strict=True).refusal == "LoadError"
    assert bs.load(Net(), file, strict=True)
    bs.save(Half(), tmp_path / "half.bpk")
    with pytest.raises(bs.errors.MissingTensorsError):
        bs.load(Net(), tmp_path / "half.bpk", strict=True)
    for other in ({"allow_partial": True}, {"validate": False}):
        with pytest.raises(ValueError, match="exclude each other"):
            bs.load(Net(), file, strict=True, **other)


def test_an_apply_of_nothing_is_noted_and_false() -> None:
    found = bs.apply(Net(), [])
    assert not found and found.notes[-1].kind == "empty"
    with pytest.raises(bs.errors.LoadError, match="Nothing to load"):
        bs.apply(Net(), [], allow_empty=False)


def test_jobs_of_nothing_are_refused_unless_allowed(file: Path, empty: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.bpk"
    left_out = bs.MergeSource(file, filter=never)
    jobs: list[tuple[Callable[..., Any], type[Exception]]] = [
        (lambda **how: bs.convert(file, out, filter=never, overwrite=True, **how), bs.errors.SaveError),
        (lambda **how: bs.convert(file, out, filter=[], overwrite=True, **how), bs.errors.SaveError),
        (lambda **how: bs.convert(empty, out, overwrite=True, **how), bs.errors.SaveError),
        (lambda **how: bs.explain(file, target=out, filter=never, **how), bs.errors.SaveError),
        (lambda **how: bs.merge([file, left_out], out, overwrite=True, **how), bs.errors.MergeError),
        (lambda **how: bs.merge([empty, empty], out, overwrite=True, **how), bs.errors.MergeError),
        (lambda **how: bs.merge([file, file], out, conflicts="skip", overwrite=True, **how), bs.errors.MergeError),
    ]
    for job, error in jobs:
        with pytest.raises(error) as caught:
            job()
        assert "allow_empty=True" in (getattr(caught.value, "hint", None) or "") and not out.exists()
    for job, _ in jobs:
        assert job(allow_empty=True)
    rules = {"tensors": [{"source": "*", "drop": "not wanted"}]}
    with pytest.raises(bs.errors.SaveError, match="not wanted"):
        bs.convert(file, tmp_path / "dropped.bpk", rules=rules)


def test_verdicts_on_nothing_are_bad_unless_allowed(empty: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    verdicts: list[Callable[..., Any]] = [
        lambda **how: bs.verify(empty, **how),
        lambda **how: bs.verify(folder, **how),
        lambda **how: bs.scan(folder, **how),
        lambda **how: bs.diff({}, {}, **how),
        lambda **how: bs.diff(empty, empty, **how),
        lambda **how: bs.report(empty, **how),
        lambda **how: bs.report(empty, empty, **how),
    ]
    for verdict in verdicts:
        found = verdict()
        assert not found and not found.ok and found.to_dict()["ok"] is False
        assert verdict(allow_empty=True)
    assert bs.verify(empty).is_whole


def test_a_bad_result_is_false_and_states_so(file: Path, tmp_path: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-4:] = np.float32(np.nan).tobytes()
    (tmp_path / "nan.bpk").write_bytes(raw)
    (tmp_path / "cut.bpk").write_bytes(raw[:-9])
    (tmp_path / "evil.pkl").write_bytes(b"cos\nsystem\n(S'id'\ntR.")
    other = Net()
    other.fc = nn.Linear(2, 5)
    good = [bs.verify(file), bs.scan(file), bs.diff(file, file), bs.report(file), bs.load(Net(), file)]
    good += [bs.convert(file, tmp_path / "b.bpk", receipt=True), bs.save(Net(), tmp_path / "c.bpk")]
    bad = [bs.verify(tmp_path / "nan.bpk"), bs.verify(tmp_path / "cut.bpk"), bs.scan(tmp_path / "evil.pkl")]
    bad += [bs.diff(file, tmp_path / "nan.bpk"), bs.load(other, file, validate=False), bs.explain(file, other)]
    bad += [bs.report(tmp_path / "nan.bpk")]
    assert all(good) and not any(bad)
    for result in (*good, *bad):
        document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert document["ok"] is bool(result), type(result)


def test_a_report_never_replaces_what_it_reports(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bs.save(Net(), tmp_path / "set.safetensors", max_shard_size=24)
    shards = sorted(tmp_path.glob("set*"))
    monkeypatch.chdir(tmp_path)
    reports = [bs.report("net.bpk"), bs.report("set.safetensors"), bs.report(file, "set.safetensors")]
    monkeypatch.chdir("/")
    (tmp_path / "link.html").symlink_to(file)
    os.link(shards[0], tmp_path / "hard.html")
    sources = {path: path.read_bytes() for path in (file, *shards)}
    for report, path in (
        (reports[0], file),
        (reports[0], tmp_path / "link.html"),
        *((reports[1], shard) for shard in shards),
        (reports[1], tmp_path / "hard.html"),
        (reports[2], file),
        (reports[2], shards[-1]),
    ):
        with pytest.raises(bs.errors.SaveError, match="the same file"):
            report.save(path, overwrite=True)
    assert {path: path.read_bytes() for path in sources} == sources
    reports[0].save(tmp_path / "page.html")


def test_a_receipt_never_replaces_what_it_describes(file: Path, tmp_path: Path) -> None:
    receipt = read_receipt(bs.convert(file, tmp_path / "b.safetensors", keep_layout=True, receipt=True).receipt or "")
    before = file.read_bytes()
    for path in (file, tmp_path / "b.safetensors"):
        with pytest.raises(bs.errors.SaveError, match="the same file"):
            receipt.save(path, overwrite=True)
    assert file.read_bytes() == before


# --- hostile receipts -------------------------------------------------------------------------------------------------


def forge(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    document = json.loads(path.read_text())
    change(document)
    forged = path.with_name("forged.receipt.json")
    forged.write_text(json.dumps(document))
    return forged


def made_of(document: dict[str, Any], origins: list[Any], operations: list[Any], shape: list[int]) -> None:
    document["tensors"][0] |= {"from": origins, "operations": operations, "shape": shape, "dtype": "F32"}


HOSTILE: dict[str, Callable[[dict[str, Any]], None]] = {
    "a fill of terabytes": lambda d: made_of(d, [[None, 0, [["fill", 0, [1 << 40], "F32"]]]], [], [1 << 40]),
    "a fill of many axes": lambda d: made_of(d, [[None, 0, [["fill", 0, [1] * 70, "F32"]]]], [], [1] * 70),
    "a join of one source": lambda d: made_of(d, [["w", 0, []]] * 2000, [["concat"]], [2000 * 4096, 4]),
    "too many origins": lambda d: made_of(d, [["w", 0, []]] * 17_000, [["concat"]], [17_000 * 4096, 4]),
    "a long chain": lambda d: made_of(d, [["w", 0, [["transpose"]] * 5000]], [], [4096, 4]),
    "a long chain on the whole": lambda d: made_of(d, [["w", 0, []]], [["add", 1]] * 5000, [4096, 4]),
    "another shape": lambda d: made_of(d, [["w", 0, [["transpose"]]]], [], [4096, 4]),
    "an option of the job": lambda d: d["target"]["options"].update({"overwrite": True}),
    "an option of the plan": lambda d: d["target"]["options"].update({"ties": "w"}),
    "a negative shape": lambda d: made_of(d, [[None, 0, [["fill", 0, [-1], "F32"]]]], [], [0]),
}


@pytest.mark.parametrize("way", HOSTILE)
def test_a_hostile_receipt_is_refused_before_any_work(tmp_path: Path, way: str) -> None:
    bs.save({"w": np.ones((4096, 4), F32)}, tmp_path / "a.bpk")
    done = bs.convert(tmp_path / "a.bpk", tmp_path / "b.bpk", receipt=True)
    forged = forge(Path(done.receipt or ""), HOSTILE[way])
    with pytest.raises((bs.errors.CorruptError, bs.errors.LimitError)) as caught:
        bs.replay(forged, tmp_path / "c.bpk")
    assert str(forged) in str(caught.value) and not (tmp_path / "c.bpk").exists()


# --- notes ------------------------------------------------------------------------------------------------------------


def test_a_note_is_its_text_and_keeps_its_kind() -> None:
    note = Note("unmatched", "the filter's 'x' matched nothing", "x")
    assert note == "the filter's 'x' matched nothing" and "matched" in note
    for copy in (pickle.loads(pickle.dumps(note)), note.about("a.pt")):
        assert (copy.kind, copy.subject) == ("unmatched", "x")
    assert as_note(note) is note and as_note("left out: a blob").kind == "left out"


def test_data_that_a_reader_leaves_out_is_not_equal_to_anything(tmp_path: Path) -> None:
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", w=np.ones(2, F32), blob=np.array([{"a": 1}], dtype=object))
    found = bs.diff(tmp_path / "a.npz", tmp_path / "b.npz")
    assert not found.is_equal and len(found.uncompared) == 2


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("convert empty.bpk out.bpk", 2),
        ("merge empty.bpk empty.bpk out.bpk", 2),
        ("diff empty.bpk empty.bpk", 1),
        ("verify empty.bpk", 1),
        ("verify folder", 1),
        ("scan folder", 1),
        ("report empty.bpk", 1),
        ("explain net.bpk --into net.bpk --filter typo", 1),
    ],
)
def test_commands_that_do_nothing_do_not_exit_with_0_unless_allowed(
    file: Path, empty: Path, monkeypatch: pytest.MonkeyPatch, line: str, code: int
) -> None:
    monkeypatch.chdir(file.parent)
    Path("folder").mkdir()
    assert main(line.split()) == code
    allowed = [*line.split(), "--allow-empty", *(["--overwrite"] if "report" in line else [])]
    assert main(allowed) == 0
