"""Sharded checkpoints: read as one, named as Hugging Face names them, and no name of an index is trusted (H21)."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import burnstore as bs
from burnstore import SafetensorsStore, TensorSnapshot, nn
from burnstore.errors import ChangedError, CorruptError, LimitError, ReadError, UnsafeContentError
from burnstore.formats.sharded import read as sharded
from burnstore.formats.sharded import write as sharded_write
from burnstore.io.paths import plain_name

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
ONE = {"a.weight": np.arange(6.0).reshape(2, 3), "a.bias": np.ones(3, np.float32)}
TWO = {"b.weight": np.arange(5, dtype=np.int16)}


def write_index(folder: Path, weight_map: Any, **more: Any) -> Path:
    path = folder / INDEX
    path.write_text(json.dumps({"metadata": {"total_size": 10}, "weight_map": weight_map, **more}))
    return path


def weight_map() -> dict[str, str]:
    return {**dict.fromkeys(ONE, FIRST), **dict.fromkeys(TWO, SECOND)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set of two shards with its index, in a folder of its own."""
    made = tmp_path / "repository"
    made.mkdir()
    save_file(ONE, made / FIRST, {"format": "pt"})
    save_file(TWO, made / SECOND, {"format": "pt"})
    write_index(made, weight_map())
    return made


def same(found: Any, expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero_copy", [False, True], ids=["read", "zero-copy"])
@pytest.mark.parametrize("name", [INDEX, "", "model.safetensors"], ids=["index", "folder", "the name it was saved by"])
def test_a_set_is_read_as_one_checkpoint(folder: Path, name: str, zero_copy: bool) -> None:
    with bs.open(folder / name, zero_copy=zero_copy) as f:
        assert (f.format, f.variant, f.layout, dict(f.metadata)) == (
            "safetensors",
            "2 shards",
            "torch",
            {"format": "pt"},
        )
        assert f.path == str(folder / INDEX)
        assert same(f.numpy(), {**ONE, **TWO})
        assert same(f.numpy(["b.weight", "a.bias"]), {"b.weight": TWO["b.weight"], "a.bias": ONE["a.bias"]})
        assert f["b.weight"][1:3].tolist() == [1, 2]
        assert f["a.weight"][1].tolist() == [3, 4, 5]
        assert (len(f), f.nbytes) == (3, 48 + 12 + 10)
        writable = {array.flags.writeable for array in f.numpy().values()}
        assert writable == {not zero_copy}


def test_a_set_can_be_loaded_inspected_and_saved_as_one_file(folder: Path, tmp_path: Path) -> None:
    model = {"a": {"weight": np.zeros((2, 3)), "bias": np.zeros(3, np.float32)}, "b": {"weight": np.zeros(5, np.int16)}}
    for load in (lambda: bs.load(model, folder), lambda: SafetensorsStore.from_file(folder / INDEX).load(model)):
        model["a"]["weight"][:] = 0
        assert len(load().applied) == 3
        assert model["a"]["weight"][1].tolist() == [3, 4, 5]
    with bs.open(folder) as f:
        bs.save(f, tmp_path / "one.safetensors", durable=False)
    assert same(load_file(tmp_path / "one.safetensors"), {**ONE, **TWO})


def test_a_tensor_has_a_place_in_its_own_file(folder: Path) -> None:
    with bs.open(folder) as f:
        for name, array in {**ONE, **TWO}.items():
            path = folder / weight_map()[name]
            assert f.file_of(name) == str(path)
            start = f.offset_of(name)
            assert path.read_bytes()[start : start + array.nbytes] == array.tobytes()
        assert f.file_size == sum((folder / name).stat().st_size for name in (FIRST, SECOND, INDEX))
    (folder / INDEX).unlink()
    with bs.open(folder) as f:
        assert f.file_size == sum((folder / name).stat().st_size for name in (FIRST, SECOND))


def test_nothing_but_headers_is_read_before_tensors_are_asked_for(folder: Path) -> None:
    with bs.open(folder) as f:
        os.truncate(folder / SECOND, 20)
        assert same(f.numpy(["a.weight"]), {"a.weight": ONE["a.weight"]})
        with pytest.raises((ChangedError, bs.errors.TruncatedError)) as caught:
            f["b.weight"].numpy()
        assert caught.value.path == str(folder / SECOND)


def test_snapshots_and_checkpoints_of_a_set_can_be_pickled(folder: Path) -> None:
    with bs.open(folder) as f:
        taken = pickle.loads(pickle.dumps(f["b.weight"]))
        with pickle.loads(pickle.dumps(f)) as again:
            assert same(again.numpy(), {**ONE, **TWO})
        pickled = pickle.dumps(f["b.weight"])
    assert taken.numpy().tolist() == [0, 1, 2, 3, 4]
    save_file(TWO, folder / SECOND)
    with pytest.raises(ChangedError):
        pickle.loads(pickled)


def test_many_threads_read_a_set(folder: Path) -> None:
    wrong: list[Any] = []
    with bs.open(folder) as f:

        def work() -> None:
            for _ in range(50):
                if not same(f.numpy(), {**ONE, **TWO}):
                    wrong.append(f)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_set_without_an_index_is_read_if_it_is_complete(folder: Path) -> None:
    (folder / INDEX).unlink()
    with bs.open(folder) as f:
        assert same(f.numpy(), {**ONE, **TWO})
        with pickle.loads(pickle.dumps(f)) as again:
            assert same(again.numpy(), {**ONE, **TWO})
    (folder / FIRST).unlink()
    with pytest.raises(CorruptError, match="1 of 2 shards are there, number 1 is missing") as caught:
        bs.open(folder)
    assert (caught.value.rule, caught.value.path) == ("SH-05", str(folder))


def test_a_folder_with_one_file_is_that_file(tmp_path: Path) -> None:
    save_file(ONE, tmp_path / "weights.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with bs.open(tmp_path) as f:
        assert f.path == str(tmp_path / "weights.safetensors")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("other.safetensors.index.json", "2 indexes"),
        ("model.safetensors", "both model.safetensors and its index"),
    ],
)
def test_a_folder_that_can_mean_two_things_is_refused(folder: Path, extra: str, message: str) -> None:
    (folder / extra).write_bytes((folder / INDEX).read_bytes())
    with pytest.raises(ReadError, match=message) as caught:
        bs.open(folder)
    assert caught.value.path == str(folder)
    with bs.open(folder / INDEX) as f:
        assert len(f) == 3


def test_a_folder_of_files_that_are_no_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="the directory has no checkpoint"):
        bs.open(tmp_path)
    for name in ("a.safetensors", "b.safetensors"):
        save_file(ONE, tmp_path / name)
    with pytest.raises(ReadError, match="files and no index"):
        bs.open(tmp_path)


def test_files_that_an_index_does_not_name_do_not_matter(folder: Path) -> None:
    """What a killed save leaves behind is no part of the set."""
    save_file(ONE, folder / "model.0a1b2c3d-00001-of-00002.safetensors")
    with bs.open(folder) as f:
        assert len(f) == 3


# --- an index that lies -----------------------------------------------------------------------------------------------


def refused(path: Path, kind: type[bs.BurnstoreError], rule: str, match: str | None = None) -> bs.BurnstoreError:
    with pytest.raises(kind, match=match) as caught:
        bs.open(path, format="safetensors")
    assert (type(caught.value), caught.value.rule) == (kind, rule), caught.value
    assert caught.value.path
    assert str(caught.value).replace("\n  hint: ", "").isprintable()
    return caught.value


def test_a_tensor_that_is_not_in_its_shard_is_reported(folder: Path) -> None:
    write_index(folder, {**weight_map(), "c": SECOND})
    error = refused(folder / INDEX, CorruptError, "SH-04", "the index names this shard for it")
    assert (error.tensor, error.path) == ("c", str(folder / SECOND))
    write_index(folder, {**weight_map(), "a.bias": SECOND})
    refused(folder / INDEX, CorruptError, "SH-04")


def test_a_tensor_that_the_index_does_not_name_is_reported(folder: Path) -> None:
    given = weight_map()
    del given["a.bias"]
    write_index(folder, given)
    error = refused(folder / INDEX, CorruptError, "SH-04", "the index does not name it")
    assert (error.tensor, error.path) == ("a.bias", str(folder / FIRST))


def test_a_tensor_in_two_shards_is_reported(folder: Path) -> None:
    (folder / INDEX).unlink()
    save_file({**TWO, "a.bias": np.zeros(3, np.float32)}, folder / SECOND)
    assert refused(folder, CorruptError, "SH-05", "it is also in").tensor == "a.bias"


def test_a_shard_that_is_missing_is_reported(folder: Path) -> None:
    (folder / SECOND).unlink()
    assert refused(folder / INDEX, CorruptError, "SH-03", f"{SECOND} is missing").path == str(folder / INDEX)


def test_a_shard_that_is_damaged_is_reported_with_its_own_name(folder: Path) -> None:
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:-1])
    with pytest.raises(bs.errors.TruncatedError) as caught:
        bs.open(folder)
    assert (caught.value.path, caught.value.rule) == (str(folder / SECOND), "ST-12")


def test_shards_of_two_layouts_are_refused_and_other_texts_left_out(folder: Path) -> None:
    save_file(TWO, folder / SECOND, {"format": "pt", "note": "two"})
    save_file(ONE, folder / FIRST, {"format": "pt", "note": "one", "more": "kept"})
    with bs.open(folder) as f:
        assert dict(f.metadata) == {"format": "pt", "more": "kept"}
        assert ["note" in note for note in f.notes] == [True]
    save_file(TWO, folder / SECOND, {"producer": "burn"})
    refused(folder / INDEX, CorruptError, "SH-06", "burn and torch")


@pytest.mark.parametrize(
    ("text", "kind", "rule"),
    [
        ('{"weight_map": {"a": "b", "a": "c"}}', CorruptError, "SH-01"),
        ('{"weight_map": {"a": 1}}', CorruptError, "SH-01"),
        ('{"weight_map": {"a": null}}', CorruptError, "SH-01"),
        ('{"weight_map": {"a": ["b"]}}', CorruptError, "SH-01"),
        ('{"weight_map": ["a"]}', CorruptError, "SH-01"),
        ('{"weight_map": "a"}', CorruptError, "SH-01"),
        ('{"metadata": {"total_size": 1}}', CorruptError, "SH-01"),
        ('{"weight_map": {"a": "b"}', CorruptError, "SH-01"),
        ('{"weight_map": {"\\ud800": "b"}}', CorruptError, "SH-01"),
        ('{"weight_map": {}, "x": ' + "[" * 100 + "]" * 100 + "}", LimitError, "SH-01"),
        ('{"weight_map": NaN}', CorruptError, "SH-01"),
        (json.dumps({"weight_map": {str(n): f"{n}.safetensors" for n in range(10_001)}}), LimitError, "SH-03"),
    ],
)
def test_an_index_that_is_broken_is_refused(
    tmp_path: Path, text: str, kind: type[bs.BurnstoreError], rule: str
) -> None:
    (tmp_path / INDEX).write_text(text)
    refused(tmp_path / INDEX, kind, rule)


def test_the_size_and_tensors_of_an_index_are_limited(folder: Path) -> None:
    for limits in (bs.Limits(header_bytes=100), bs.Limits(tensors=2)):
        with pytest.raises(LimitError) as caught:
            bs.open(folder, limits=limits)
        assert caught.value.rule == "SH-01"


def test_an_index_in_memory_finds_no_files(folder: Path) -> None:
    with pytest.raises(UnsafeContentError, match="in memory"):
        bs.open((folder / INDEX).read_bytes())


def test_an_index_of_nothing_has_no_tensors(tmp_path: Path) -> None:
    with bs.open(write_index(tmp_path, {})) as f:
        assert (len(f), f.numpy(), f.nbytes) == (0, {}, 0)


# --- H21: names are no paths ------------------------------------------------------------------------------------------

HOSTILE = [
    "", ".", "..", "/etc/passwd", "../secret.safetensors", "sub/inner.safetensors", "a/../../b", "./x.safetensors",
    "..\\secret.safetensors", "C:\\secret", "C:secret", "\\\\server\\share", "//server/share", "x\0.safetensors",
    "x\n.safetensors", "\x1b[31m", "x\x7f", "con", "CON.safetensors", "nul", "aux.txt", "com1", "LPT9.safetensors",
    "com¹.txt", "conin$", "x.", "x ", " x", "a|b", "a*b", "a?b", 'a"b', "a<b", "file.safetensors:stream",
    "x" * 256, "ä" * 128, "/dev/zero", "/proc/self/mem", "~/../x",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=[ascii(name)[:30] for name in HOSTILE])
def test_a_name_that_is_no_plain_name_is_refused_and_nothing_is_opened(
    folder: Path, name: str, watched: list[str]
) -> None:
    (folder.parent / "secret.safetensors").write_bytes((folder / FIRST).read_bytes())
    (folder / "sub").mkdir()
    (folder / "sub" / "inner.safetensors").write_bytes((folder / FIRST).read_bytes())
    index = write_index(folder, {**dict.fromkeys(ONE, FIRST), "x": name})
    watched.clear()
    refused(index, UnsafeContentError, "SH-02")
    assert set(watched) == {str(index)}  # not even the shards whose names are good


@pytest.mark.parametrize(
    "name", ["model.safetensors", "größe.safetensors", "a b.safetensors", "~x", ".hidden", "컴퓨터"]
)
def test_a_plain_name_is_taken(name: str) -> None:
    assert plain_name(name) == name


@pytest.fixture
def watched() -> Any:
    """The paths that are opened, by the audit hook; one hook for the process, armed while a test runs."""
    if not _HOOKED:
        sys.addaudithook(_hook)
        _HOOKED.append(True)
    _OPENED.clear()
    _ARMED.append(True)
    yield _OPENED
    _ARMED.clear()


_HOOKED: list[bool] = []
_ARMED: list[bool] = []
_OPENED: list[str] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _ARMED and event == "open" and isinstance(args[0], str) and not args[0].endswith((".py", ".pyc")):
        _OPENED.append(args[0])


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
class TestLinks:
    def test_a_link_out_of_the_folder_is_refused(self, folder: Path, watched: list[str]) -> None:
        outside = folder.parent / "secret.safetensors"
        (folder / SECOND).rename(outside)
        for target in (outside, Path("..") / outside.name):
            (folder / SECOND).unlink(missing_ok=True)
            (folder / SECOND).symlink_to(target)
            watched.clear()
            refused(folder / INDEX, UnsafeContentError, "SH-03", "a link to a file outside the folder")
            assert str(outside) not in watched

    def test_a_link_inside_the_folder_is_followed(self, folder: Path) -> None:
        (folder / SECOND).rename(folder / "real.bin")
        (folder / SECOND).symlink_to("real.bin")
        with bs.open(folder / INDEX) as f:
            assert same(f.numpy(), {**ONE, **TWO})

    def test_the_cache_of_the_hub_is_read(self, folder: Path, tmp_path: Path) -> None:
        """There every file of a snapshot, the index too, is a link into a folder of blobs."""
        blobs, snapshot = tmp_path / "models" / "blobs", tmp_path / "models" / "snapshots" / "0123abcd"
        blobs.mkdir(parents=True)
        snapshot.mkdir(parents=True)
        for number, name in enumerate((FIRST, SECOND, INDEX)):
            (blobs / f"hash{number}").write_bytes((folder / name).read_bytes())
            (snapshot / name).symlink_to(f"../../blobs/hash{number}")
        for path in (snapshot, snapshot / INDEX):
            with bs.open(path) as f:
                assert same(f.numpy(), {**ONE, **TWO})

    def test_a_folder_that_is_a_link_is_read(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "linked").symlink_to(folder)
        with bs.open(tmp_path / "linked") as f:
            assert len(f) == 3

    def test_links_in_a_circle_are_refused(self, folder: Path) -> None:
        (folder / SECOND).unlink()
        (folder / SECOND).symlink_to(SECOND)
        with pytest.raises(bs.BurnstoreError):
            bs.open(folder / INDEX)

    def test_a_link_to_a_device_is_refused(self, folder: Path) -> None:
        (folder / SECOND).unlink()
        (folder / SECOND).symlink_to("/dev/zero")
        refused(folder / INDEX, UnsafeContentError, "SH-03")


def test_a_shard_that_is_no_regular_file_is_refused(folder: Path) -> None:
    (folder / SECOND).unlink()
    (folder / SECOND).mkdir()
    refused(folder / INDEX, ReadError, "SH-03", "not a regular file")
    (folder / SECOND).rmdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / SECOND)
        refused(folder / INDEX, ReadError, "SH-03", "not a regular file")


def test_one_file_under_two_names_is_refused(folder: Path) -> None:
    (folder / SECOND).unlink()
    os.link(folder / FIRST, folder / SECOND)
    write_index(folder, {"a.weight": FIRST, "a.bias": FIRST})
    with bs.open(folder / INDEX) as f:
        assert len(f) == 2  # a hard link alone is a file like any other
    empty = {"none": np.zeros(0, np.float32)}
    save_file(empty, folder / "x.safetensors")
    (folder / "y.safetensors").unlink(missing_ok=True)
    os.link(folder / "x.safetensors", folder / "y.safetensors")
    (folder / INDEX).unlink()
    for name in (FIRST, SECOND):
        (folder / name).unlink()
    os.rename(folder / "x.safetensors", folder / FIRST)
    os.rename(folder / "y.safetensors", folder / SECOND)
    refused(folder, CorruptError, "SH-03", "the same file")


# --- writing ----------------------------------------------------------------------------------------------------------


def model(value: float = 1.0, count: int = 6) -> dict[str, Any]:
    return {f"layers.{n}.weight": np.full(100, value + n, np.float32) for n in range(count)}


def test_a_large_model_becomes_shards_with_hugging_face_s_names(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    bs.save(model(), path, max_shard_size=1000, metadata={"format": "pt"}, durable=False)
    names = [f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]
    assert sorted(os.listdir(tmp_path)) == [*names, INDEX]
    index = json.loads((tmp_path / INDEX).read_text())
    identity = index["metadata"].pop("burnstore.set")
    assert index["metadata"] == {"total_size": 2400}
    for name in names:
        with safe_open(tmp_path / name, "np") as shard:
            assert shard.metadata() == {"format": "pt", "burnstore.set": identity}
    assert index["weight_map"] == {f"layers.{n}.weight": names[n // 2] for n in range(6)}
    index["metadata"]["burnstore.set"] = identity
    assert (tmp_path / INDEX).read_text() == json.dumps(index, indent=2, sort_keys=True) + "\n"
    assert same({k: v for name in names for k, v in load_file(tmp_path / name).items()}, model())
    for where in (path, tmp_path, tmp_path / INDEX):
        with bs.open(where) as f:
            assert same(f.numpy(), model())
            assert f.layout == "torch"


def test_a_small_model_becomes_one_file(tmp_path: Path) -> None:
    bs.save(model(), tmp_path / "model.safetensors", max_shard_size="5GB", durable=False)
    assert os.listdir(tmp_path) == ["model.safetensors"]
    bs.save(model(2.0), tmp_path / "model.safetensors", max_shard_size="5GB", durable=False, overwrite=True)
    with bs.open(tmp_path) as f:
        assert same(f.numpy(), model(2.0))


def test_shards_are_split_as_hugging_face_splits_them(tmp_path: Path) -> None:
    """The sizes and shards are what split_torch_state_dict_into_shards of huggingface_hub 1.x gives for them."""
    sizes = {"a": 4, "big": 20, "b": 3, "c": 2, "d": 8, "e": 1, "bigger": 30, "f": 7}
    bs.save(
        {name: np.zeros(size, np.int8) for name, size in sizes.items()},
        tmp_path / "model.safetensors",
        max_shard_size=8,
        durable=False,
    )
    shards: dict[str, list[str]] = {}
    for tensor, name in json.loads((tmp_path / INDEX).read_text())["weight_map"].items():
        shards.setdefault(name, []).append(tensor)
    assert [sorted(shards[name]) for name in sorted(shards)] == HUGGING_FACE


HUGGING_FACE = [["big"], ["a", "b"], ["c"], ["d"], ["bigger"], ["e", "f"]]


@pytest.mark.parametrize(
    ("size", "count"), [(1, 6), (400, 6), (799, 6), (800, 3), ("1KB", 3), ("2.4kb", 1), ("1KiB", 3)]
)
def test_the_size_of_a_shard_is_a_number_or_a_text(tmp_path: Path, size: int | str, count: int) -> None:
    bs.save(model(), tmp_path / "model.safetensors", max_shard_size=size, durable=False)
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".safetensors")]) == count


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [(0, ValueError), (-1, ValueError), ("", ValueError), ("5 apples", ValueError), ("GB", ValueError),
     ("-5GB", ValueError), (True, TypeError), (5.0, TypeError), ("0GB", ValueError)],
)  # fmt: skip
def test_a_size_that_is_none_is_refused(tmp_path: Path, wrong: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        bs.save(model(), tmp_path / "model.safetensors", max_shard_size=wrong)
    assert os.listdir(tmp_path) == []


def test_burnpack_has_no_shards(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="SafeTensors"):
        bs.save(model(), tmp_path / "model.bpk", max_shard_size=100)


def test_the_store_saves_and_loads_shards(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.layers = [nn.Linear(10, 10) for _ in range(4)]

    path = tmp_path / "model.safetensors"
    given, target = Net(), Net()
    SafetensorsStore.from_file(path).max_shard_size("1KB").durable(False).save(given)
    assert len(os.listdir(tmp_path)) == 3
    store = SafetensorsStore.from_file(path)
    assert len(store.load(target).applied) == 8
    assert all(
        np.array_equal(one.numpy(), other.numpy())
        for one, other in zip(bs.collect(given), bs.collect(target), strict=True)
    )
    with store.open() as f:
        assert f.layout == "burn"


def test_progress_covers_all_shards(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    bs.save(
        model(),
        tmp_path / "model.safetensors",
        max_shard_size=1000,
        durable=False,
        progress=lambda done, total: seen.append((done, total)),
    )
    total = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)
    assert len(seen) == 3


def test_an_existing_set_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    bs.save(model(), path, max_shard_size=1000, durable=False)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    for size in (1000, "5GB"):
        with pytest.raises(bs.errors.AlreadyExistsError):
            bs.save(model(2.0), path, max_shard_size=size, durable=False)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


@pytest.mark.parametrize("size", [500, 1000, "5GB"], ids=["more shards", "as many", "one shard"])
def test_a_set_is_replaced_as_a_whole_and_its_old_shards_go(tmp_path: Path, size: int | str) -> None:
    path = tmp_path / "model.safetensors"
    bs.save(model(), path, max_shard_size=1000, durable=False)
    with bs.open(path) as old:
        bs.save(model(2.0), path, max_shard_size=size, durable=False, overwrite=True)
        assert same(old.numpy(), model())  # what was opened is read on
    with bs.open(tmp_path) as f:
        assert same(f.numpy(), model(2.0))
    named = set(json.loads((tmp_path / INDEX).read_text())["weight_map"].values())
    assert set(os.listdir(tmp_path)) == {INDEX, *named}


def test_a_set_can_be_saved_onto_itself(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    bs.save(model(), path, max_shard_size=1000, durable=False)
    for zero_copy in (False, True):
        with bs.open(path, zero_copy=zero_copy) as f:
            bs.save(f, path, max_shard_size=900, durable=False, overwrite=True)
    with bs.open(path) as f:
        assert same(f.numpy(), model())


def test_shards_take_the_place_of_a_single_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    bs.save(model(), path, durable=False)
    with pytest.raises(bs.errors.AlreadyExistsError):
        bs.save(model(2.0), path, max_shard_size=1000, durable=False)
    bs.save(model(2.0), path, max_shard_size=1000, durable=False, overwrite=True)
    assert not path.exists()
    with bs.open(tmp_path) as f:
        assert same(f.numpy(), model(2.0))


def test_only_shards_of_this_set_are_removed(tmp_path: Path) -> None:
    """A hostile index cannot make a save delete other files."""
    precious = ["precious.txt", "other-00001-of-00002.safetensors", "model.safetensors.bak", "model-1-of-2.safetensors"]
    for name in precious:
        (tmp_path / name).write_text("precious")
    (tmp_path.parent / "outside.txt").write_text("precious")
    write_index(
        tmp_path, {**{name: name for name in precious}, "x": "../outside.txt", "y": str(tmp_path / "precious.txt")}
    )
    bs.save(model(), tmp_path / "model.safetensors", max_shard_size=1000, durable=False, overwrite=True)
    assert all((tmp_path / name).read_text() == "precious" for name in precious)
    assert (tmp_path.parent / "outside.txt").read_text() == "precious"


@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("failure", [RuntimeError("no"), KeyboardInterrupt(), MemoryError()])
def test_a_tensor_that_fails_leaves_the_old_set_and_nothing_else(
    tmp_path: Path, at: int, failure: BaseException
) -> None:
    def fail() -> Any:
        raise failure

    path = tmp_path / "model.safetensors"
    bs.save(model(), path, max_shard_size=1000, durable=False)
    before = sorted(os.listdir(tmp_path))
    given = [TensorSnapshot.from_numpy(name, array) for name, array in model(2.0).items()]
    given[at] = TensorSnapshot.from_closure(given[at].path, bs.DType.F32, [100], fail)
    with pytest.raises(type(failure)):
        bs.save(given, path, max_shard_size=1000, durable=False, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == before
    with bs.open(path) as f:
        assert same(f.numpy(), model())


def test_two_tensors_of_one_name_in_two_shards_are_refused(tmp_path: Path) -> None:
    twice = [TensorSnapshot.from_numpy("a", np.zeros(100, np.float32)) for _ in range(2)]
    with pytest.raises(bs.errors.DuplicateNameError):
        bs.save(twice, tmp_path / "model.safetensors", max_shard_size=400, durable=False)
    assert os.listdir(tmp_path) == []


def test_a_reader_whose_shards_are_replaced_meanwhile_opens_the_new_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    bs.save(model(), path, max_shard_size=1000, durable=False)
    real, raced = sharded._read_index, []

    def racing(source: Any, limits: Any) -> Any:
        found = real(source, limits)
        if not raced:
            raced.append(True)
            bs.save(model(2.0), path, max_shard_size=1000, durable=False, overwrite=True)
        return found

    monkeypatch.setattr(sharded, "_read_index", racing)
    with bs.open(path) as f:
        assert same(f.numpy(), model(2.0))


def test_two_savers_leave_one_whole_set(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    bs.save(model(), path, max_shard_size=1000, durable=False)

    def work(value: float) -> None:
        for _ in range(10):
            bs.save(model(value), path, max_shard_size=1000, durable=False, overwrite=True)

    threads = [threading.Thread(target=work, args=(value,)) for value in (10.0, 20.0, 30.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with bs.open(path) as f:
        found = f.numpy()
    assert any(same(found, model(value)) for value in (10.0, 20.0, 30.0))


# --- H1, S13: by the thousand -----------------------------------------------------------------------------------------


@pytest.mark.slow("fuzzing")
def test_mutants_of_an_index_are_opened_and_right_or_refused(folder: Path, watched: list[str]) -> None:
    good = (folder / INDEX).read_bytes()
    random = Random(20_261_115)
    tokens = [b"\\u0000", b"..", b"null", b"\xff", *(bytes((code,)) for code in b'{}[":,/\\\0 1x')]
    outcomes: Counter[str] = Counter()
    for _ in range(3000):
        mutant = bytearray(good)
        for _ in range(random.choice((1, 1, 2, 3))):
            at = random.randrange(len(mutant))
            length = random.choice((0, 1, 1, 2, 8))
            mutant[at : at + length] = random.choice(tokens) if random.random() < 0.7 else random.randbytes(1)
        (folder / INDEX).write_bytes(mutant)
        watched.clear()
        try:
            with bs.open(folder / INDEX, format="safetensors") as f:
                assert same(f.numpy(), {**ONE, **TWO})
                outcomes["opened"] += 1
        except bs.BurnstoreError as error:
            outcomes[type(error).__name__ if str(error).replace("\n  hint: ", "").isprintable() else "unprintable"] += 1
        assert {os.path.dirname(path) for path in watched} <= {str(folder)}
    assert outcomes["opened"] > 30
    assert {"CorruptError", "UnsafeContentError"} <= set(outcomes)
    assert "unprintable" not in outcomes


@pytest.mark.slow("kills")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kills_at_random_instants_leave_the_old_set_or_the_new() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, str(root / "tests" / "crash" / "kill.py"), "--saver", "shards", "--kills", "30"]
    command += ["--seed", str(time.time_ns() % 1_000_000), "--largest", "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(bs.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "damaged=0" in done.stdout


# --- SH-07: one save, however many writers ----------------------------------------------------------------------------


def identities(folder: Path) -> list[str | None]:
    names = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    found = []
    for name in names:
        with safe_open(folder / name, "np") as shard:
            found.append((shard.metadata() or {}).get("burnstore.set"))
    return found


def test_the_identity_is_no_metadata_of_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    bs.save(model(), path, max_shard_size=1000, metadata={"format": "pt"}, durable=False)
    with bs.open(path) as f:
        assert dict(f.metadata) == {"format": "pt"} and f.notes == []
        bs.save(f, tmp_path / "again.safetensors", metadata=f.metadata, max_shard_size=1000, durable=False)
    assert len(set(identities(tmp_path))) == 2
    bs.save(model(), tmp_path / "bare.safetensors", max_shard_size=1000, durable=False)
    with bs.open(tmp_path / "bare.safetensors") as f:
        assert dict(f.metadata) == {}


@pytest.mark.parametrize("indexed", [True, False])
def test_a_shard_of_another_save_is_refused(tmp_path: Path, indexed: bool) -> None:
    for folder, value in (("one", 1.0), ("two", 2.0)):
        (tmp_path / folder).mkdir()
        bs.save(model(value), tmp_path / folder / "model.safetensors", max_shard_size=1000, durable=False)
    shard = "model-00002-of-00003.safetensors"
    os.replace(tmp_path / "two" / shard, tmp_path / "one" / shard)
    if not indexed:
        (tmp_path / "one" / INDEX).unlink()
    error = refused(tmp_path / "one", CorruptError, "SH-07", "of another save")
    assert error.path == str(tmp_path / "one" / shard)


def test_a_shard_without_an_identity_is_refused_beside_those_that_have_one(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    bs.save(model(), path, max_shard_size=1000, durable=False)
    for name in ("model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"):
        whole = (tmp_path / name).read_bytes()
        save_file(load_file(tmp_path / name), tmp_path / name)
        refused(path, CorruptError, "SH-07", "of another save")
        index = (tmp_path / INDEX).read_text()
        (tmp_path / INDEX).write_text(index.replace("burnstore.set", "another"))
        refused(path, CorruptError, "SH-07", "of another save")
        (tmp_path / INDEX).write_text(index)
        (tmp_path / name).write_bytes(whole)
    with bs.open(path) as f:
        assert same(f.numpy(), model())


def test_sets_that_others_index_or_write_open(folder: Path, tmp_path: Path) -> None:
    with bs.open(folder) as f:  # no identity anywhere, as Hugging Face writes it
        assert same(f.numpy(), {**ONE, **TWO})
    path = tmp_path / "model.safetensors"
    bs.save(model(), path, max_shard_size=1000, durable=False)
    index = json.loads((tmp_path / INDEX).read_text())
    for metadata in ({}, {"burnstore.set": None}, {"burnstore.set": 5}, None, "text", []):
        (tmp_path / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": index["weight_map"]}))
        with bs.open(path) as f:  # an index that somebody made of our shards
            assert same(f.numpy(), model())
    (tmp_path / INDEX).write_text(json.dumps({**index, "metadata": {"burnstore.set": "0" * 32}}))
    refused(path, CorruptError, "SH-07", "of another save")


def test_names_that_became_free_are_not_taken_again(tmp_path: Path) -> None:
    """A save that stalls between publishing and removing must not find another's shards under the old names."""
    path = tmp_path / "model.safetensors"
    for value in (1.0, 2.0, 3.0):
        bs.save(model(value), path, max_shard_size=1000, durable=False, overwrite=True)
        named = set(json.loads((tmp_path / INDEX).read_text())["weight_map"].values())
        plain = "model-00001-of-00003.safetensors" in named
        assert plain == (value == 1.0)


def test_a_save_removes_only_the_files_that_the_old_index_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another save takes the old names between the moment they are read and the moment they are removed."""
    path = tmp_path / "model.safetensors"
    bs.save(model(), path, max_shard_size=1000, durable=False)
    real = sharded_write._named_by

    def racing(*arguments: Any) -> Any:
        found = real(*arguments)
        for name in ("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"):
            (tmp_path / name).unlink()
            (tmp_path / name).write_bytes(b"another save's")
        return found

    monkeypatch.setattr(sharded_write, "_named_by", racing)
    bs.save(model(2.0), path, max_shard_size=1000, durable=False, overwrite=True)
    monkeypatch.undo()
    for name in ("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"):
        assert (tmp_path / name).read_bytes() == b"another save's"
    assert not (tmp_path / "model-00003-of-00003.safetensors").exists()
    with bs.open(path) as f:
        assert same(f.numpy(), model(2.0))


def test_an_index_without_identity_that_is_replaced_while_its_shards_are_opened_is_read_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hugging Face's writers put new shards under the old names: of both sets, none has an identity."""
    real, raced = sharded.sibling, []

    def racing(source: Any, name: str) -> Any:
        if name == SECOND and not raced:
            raced.append(True)
            save_file({name: array + 1 for name, array in ONE.items()}, folder / FIRST)
            save_file({name: array + 1 for name, array in TWO.items()}, folder / SECOND)
            (folder / "new").write_bytes((folder / INDEX).read_bytes())
            os.replace(folder / "new", folder / INDEX)
        return real(source, name)

    monkeypatch.setattr(sharded, "sibling", racing)
    with bs.open(folder / INDEX) as f:
        assert same(f.numpy(), {name: array + 1 for name, array in {**ONE, **TWO}.items()})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_reads_under_two_writers_are_never_mixed() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, str(root / "tests" / "soak" / "shards.py"), "--reads", "300"]
    command += ["--seed", str(time.time_ns() % 1_000_000)]
    environment = {**os.environ, "PYTHONPATH": str(Path(bs.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mixed=0 failed=0" in done.stdout


def test_an_index_of_pytorch_files_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for at in (1, 2):
        torch.save({f"w{at}": torch.ones(2)}, tmp_path / f"pytorch_model-0000{at}-of-00002.bin")
    weight_map = {f"w{at}": f"pytorch_model-0000{at}-of-00002.bin" for at in (1, 2)}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    with bs.open(index) as f:
        assert f.format == "pytorch" and list(f) == ["w1", "w2"]
    done = bs.convert([tmp_path / name for name in weight_map.values()], tmp_path / "whole.safetensors")
    assert done.tensors == 2


def test_a_set_is_not_saved_over_one_of_its_shards(tmp_path: Path) -> None:
    bs.save({f"w{n}": np.full(4, n, np.float32) for n in range(3)}, tmp_path / "m.safetensors", max_shard_size=16)
    with bs.open(tmp_path) as file:
        shard = next(path for path in tmp_path.iterdir() if path.suffix == ".safetensors")
        with pytest.raises(bs.errors.SaveError, match="source and target are the same file"):
            bs.save(file, shard, overwrite=True)
        bs.save(file, tmp_path / "m.safetensors", overwrite=True, max_shard_size=32)
    with bs.open(tmp_path) as file:
        assert [file[f"w{n}"].numpy()[0] for n in range(3)] == [0, 1, 2]


def test_tensors_of_a_set_are_not_saved_over_one_of_its_shards(tmp_path: Path) -> None:
    bs.save({f"w{n}": np.full(1000, n, np.float32) for n in range(3)}, tmp_path / "x.safetensors", max_shard_size=5000)
    shard = min(tmp_path.glob("*.safetensors"))
    with bs.open(tmp_path / "x.safetensors.index.json") as file:
        for given in (file, list(file.values()), dict(file)):
            with pytest.raises(bs.errors.SaveError, match="source and target are the same file"):
                bs.save(given, shard, overwrite=True)
            with pytest.raises(bs.errors.SaveError, match="source and target are the same file"):
                bs.SafetensorsStore.from_file(shard).overwrite(True).save(given)
    assert bs.verify(tmp_path / "x.safetensors.index.json").ok
