"""Receipts: they tell what was read, done and written; any change of it is found, and what they say can be redone."""

from __future__ import annotations

import copy
import functools
import json
import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore import nn
from burnstore.errors import CorruptError
from burnstore.jobs.convert.receipt import check_receipt, read_receipt

pytestmark = pytest.mark.usefixtures("spawning")


def rand(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


class Net(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(6, 4)
        self.attn = nn.MultiHeadAttention(4, 2)
        self.norm = nn.BatchNorm(4)


TORCH = {
    "fc.weight": rand(4, 6),
    "fc.bias": rand(4),
    "attn.in_proj_weight": rand(12, 4),
    "attn.in_proj_bias": rand(12),
    "attn.out_proj.weight": rand(4, 4),
    "attn.out_proj.bias": rand(4),
    "norm.weight": rand(4),
    "norm.bias": rand(4),
    "norm.running_mean": rand(4),
    "norm.running_var": rand(4),
    "norm.num_batches_tracked": np.array(3, np.int64),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    bs.save(TORCH, path, metadata={"format": "pt", "epochs": "3"})
    return path


@pytest.fixture
def receipt(source: Path, tmp_path: Path) -> Path:
    done = bs.convert(source, tmp_path / "model.bpk", like=Net(), cast="f16", receipt=True)
    assert done.receipt == str(tmp_path / "model.bpk.receipt.json")
    return Path(done.receipt)


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def test_a_receipt_tells_what_was_read_done_and_written(source: Path, receipt: Path, tmp_path: Path) -> None:
    document = json.loads(receipt.read_text())
    assert document["burnstore"] == bs.__version__
    (given,) = document["sources"]
    assert given["files"] == [{"path": "model.safetensors", "size": source.stat().st_size, "sha256": digest(source)}]
    assert document["target"]["files"][0]["sha256"] == digest(tmp_path / "model.bpk")
    with bs.open(tmp_path / "model.bpk") as f:
        assert [each["name"] for each in document["tensors"]] == list(f)
        for each in document["tensors"]:
            tensor = f[each["name"]]
            assert (each["dtype"], tuple(each["shape"])) == (str(tensor.dtype), tensor.shape)
            assert each["sha256"] == sha256(tensor.to_bytes()).hexdigest()
    moves = {each["name"]: (each["from"], each["operations"]) for each in document["tensors"]}
    split = [["attn.in_proj_weight", 0, [["split", 1, 3, 0], ["transpose"]]]]
    assert moves["attn.key.weight"] == (split, [["cast", "F16"]])
    assert moves["norm.gamma"] == ([["norm.weight", 0, []]], [["cast", "F16"]])


def test_what_is_made_of_several_tensors_names_them_all(receipt: Path, tmp_path: Path) -> None:
    bs.convert(
        tmp_path / "model.bpk", tmp_path / "back.safetensors", target_layout="torch", receipt=tmp_path / "r.json"
    )
    made_of = {tensor.name: tensor.sources for tensor in read_receipt(tmp_path / "r.json").tensors}
    assert made_of["attn.in_proj_weight"] == ("attn.query.weight", "attn.key.weight", "attn.value.weight")
    assert made_of["norm.num_batches_tracked"] == ()
    bs.replay(tmp_path / "r.json", tmp_path / "again.safetensors")
    assert digest(tmp_path / "again.safetensors") == digest(tmp_path / "back.safetensors")


@pytest.mark.parametrize("executor", [None, 2])
def test_a_receipt_is_checked_and_replayed_to_the_same_bytes(receipt: Path, tmp_path: Path, executor: Any) -> None:
    found = check_receipt(receipt, executor=executor)
    assert found.ok and found.problems == () and found.tensors == len(read_receipt(receipt).tensors)
    done = bs.replay(receipt, tmp_path / "again.bpk", executor=executor)
    assert done.tensors == found.tensors and digest(tmp_path / "again.bpk") == digest(tmp_path / "model.bpk")
    with pytest.raises(bs.errors.AlreadyExistsError):
        bs.replay(receipt)
    bs.replay(receipt, overwrite=True)


def test_source_target_and_receipt_can_be_moved_together(receipt: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("model.safetensors", "model.bpk", "model.bpk.receipt.json"):
        shutil.move(tmp_path / name, moved / name)
    assert check_receipt(moved / "model.bpk.receipt.json").ok
    assert not check_receipt(moved / "model.bpk.receipt.json").unchecked
    (moved / "model.safetensors").unlink()
    found = check_receipt(moved / "model.bpk.receipt.json")
    assert found.ok and found.unchecked == (str(moved / "model.safetensors"),)


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)


def test_a_bit_that_changed_is_found_wherever_it_is(receipt: Path, tmp_path: Path) -> None:
    with bs.open(tmp_path / "model.bpk") as f:
        offset = f.offset_of("fc.weight")
    flip(tmp_path / "model.bpk", offset + 3)
    problems = check_receipt(receipt).problems
    assert any("SHA-256 mismatch" in each for each in problems)
    assert any("tensor 'fc.weight': SHA-256 mismatch" in each for each in problems) and len(problems) == 2
    flip(tmp_path / "model.bpk", offset + 3)
    flip(tmp_path / "model.safetensors", -1)
    assert [each.partition(": ")[2] for each in check_receipt(receipt).problems] == ["SHA-256 mismatch with receipt"]
    assert check_receipt(receipt, sources=False).ok
    with pytest.raises(bs.errors.CorruptError, match="this source has changed") as caught:
        bs.replay(receipt, tmp_path / "again.bpk")
    assert caught.value.path == str(tmp_path / "model.safetensors") and not (tmp_path / "again.bpk").exists()


def test_a_target_that_is_gone_cut_or_another_is_found(receipt: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.bpk"
    whole = target.read_bytes()
    target.write_bytes(whole[:-1])
    assert any(f"found {len(whole) - 1}" in each for each in check_receipt(receipt).problems)
    target.unlink()
    problems = check_receipt(receipt).problems
    assert any("the file is missing" in each for each in problems) and any(
        "cannot be opened" in each for each in problems
    )
    bs.save({"fc.weight": rand(2), "strange": rand(3)}, target)
    problems = check_receipt(receipt).problems
    assert any("tensor 'strange' is not in the receipt" in each for each in problems)
    assert any("tensor 'norm.gamma' is missing" in each for each in problems)


def test_a_replay_that_comes_out_otherwise_is_not_written(receipt: Path, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"operations": [["cast", "BF16"]]},
        {"operations": []},
        {"from": [["fc.weight", 0, []]]},
        {"from": []},
    ]
    for change in changes:
        document = json.loads(receipt.read_text())
        document["tensors"][0].update(change)
        other = tmp_path / "other.json"
        other.write_text(json.dumps(document))
        with pytest.raises(bs.BurnstoreError):
            bs.replay(other, tmp_path / "again.bpk")
        assert not (tmp_path / "again.bpk").exists()


def test_sets_of_shards_have_receipts(source: Path, tmp_path: Path) -> None:
    done = bs.convert(source, tmp_path / "set.safetensors", max_shard_size=200, receipt=True)
    said = read_receipt(str(done.receipt))
    assert len(said.files) == len(done.files) > 3 and said.max_shard_size == 200
    assert check_receipt(str(done.receipt)).ok
    bs.convert(tmp_path / "set.safetensors", tmp_path / "one.bpk", keep_layout=True, receipt=True)
    (given,) = read_receipt(tmp_path / "one.bpk.receipt.json").sources
    assert len(given.files) == len(done.files)
    (tmp_path / "again").mkdir()
    bs.replay(str(done.receipt), tmp_path / "again" / "set.safetensors")
    assert sorted(os.listdir(tmp_path / "again")) == sorted(Path(file).name for file in done.files)
    with bs.open(tmp_path / "set.safetensors") as one, bs.open(tmp_path / "again" / "set.safetensors") as other:
        assert {name: t.to_bytes() for name, t in one.items()} == {name: t.to_bytes() for name, t in other.items()}


def test_what_cannot_be_written_down_is_refused_before_any_work(source: Path, tmp_path: Path) -> None:
    def doubled(snapshot: bs.TensorSnapshot) -> bs.TensorSnapshot:
        return bs.TensorSnapshot.from_numpy(snapshot.path, snapshot.numpy() * 2)

    with pytest.raises(bs.errors.UnsupportedError, match="doubled is a function of the caller"):
        bs.convert(source, tmp_path / "x.safetensors", receipt=True, adapter=doubled)
    with pytest.raises(bs.errors.UnsupportedError, match="cannot hold the option"):
        bs.convert(source, tmp_path / "x.bpk", keep_layout=True, receipt=True, scalars={"a": np.float32(1)})
    assert not (tmp_path / "x.safetensors").exists() and not (tmp_path / "x.bpk").exists()
    bs.convert(source, tmp_path / "x.safetensors", adapter=doubled)


def test_an_adapter_of_ones_own_that_uses_our_operations_has_a_receipt(source: Path, tmp_path: Path) -> None:
    from burnstore.transforms.precision import cast

    done = bs.convert(
        source,
        tmp_path / "x.safetensors",
        adapter=lambda tensor: cast(tensor, bs.DType.F64) if tensor.dtype.is_float else tensor,
        receipt=True,
    )
    bs.replay(str(done.receipt), tmp_path / "y.safetensors")
    assert digest(tmp_path / "x.safetensors") == digest(tmp_path / "y.safetensors")


def test_a_source_that_is_replaced_meanwhile_gets_no_receipt(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from burnstore.jobs.convert import convert as conversion

    real = conversion.files_of

    def replace_and_digest(paths: Any, executor: Any) -> Any:
        bs.save({**TORCH, "fc.bias": rand(4) + 1}, source, metadata={"format": "pt"}, overwrite=True)
        return real(paths, executor)

    monkeypatch.setattr(conversion, "files_of", replace_and_digest)
    with pytest.raises(bs.errors.ChangedError, match="without a receipt"):
        bs.convert(source, tmp_path / "x.bpk", keep_layout=True, receipt=True)
    assert (tmp_path / "x.bpk").exists() and not (tmp_path / "x.bpk.receipt.json").exists()


def test_an_existing_receipt_is_kept_and_the_target_not_written(source: Path, tmp_path: Path) -> None:
    (tmp_path / "x.bpk.receipt.json").write_text("precious")
    with pytest.raises(bs.errors.AlreadyExistsError) as caught:
        bs.convert(source, tmp_path / "x.bpk", keep_layout=True, receipt=True)
    assert caught.value.path == str(tmp_path / "x.bpk.receipt.json")
    assert (tmp_path / "x.bpk.receipt.json").read_text() == "precious" and not (tmp_path / "x.bpk").exists()
    bs.convert(source, tmp_path / "x.bpk", keep_layout=True, receipt=True, overwrite=True)
    assert check_receipt(tmp_path / "x.bpk.receipt.json").ok


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"[]", b"{}", b"3", b"null", b"\xff\xfe", b"[" * 100_000, b'{"receipt": 2}', b'{"receipt": 1}'),
        b'{"receipt": 2, "receipt": 2, "burnstore": "x", "sources": [], "target": {}, "tensors": []}',
        b'{"receipt": 2, "burnstore": "x", "sources": 3, "target": {}, "tensors": []}',
        b'{"receipt": 2, "burnstore": "x", "sources": [], "target": [], "tensors": []}',
        b'{"receipt": 2, "burnstore": "x", "sources": [{"path": 3}], "target": {}, "tensors": []}',
    ],
)
def test_what_is_no_receipt_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "r.json").write_bytes(text)
    for act in (read_receipt, check_receipt, bs.replay):
        with pytest.raises(bs.errors.CorruptError, match="not a receipt of a conversion") as caught:
            act(tmp_path / "r.json")
        assert caught.value.path == str(tmp_path / "r.json")
    with pytest.raises(FileNotFoundError):
        read_receipt(tmp_path / "not there")


@pytest.mark.parametrize(
    "change",
    [
        {"operations": [["cast", 3]]},
        {"operations": [["cast"]]},
        {"operations": [["apply", "os.system"]]},
        {"operations": 3},
        {"from": [["fc.weight", 7, []]]},
        {"from": [["fc.weight", 0, [["split", 5, 3, 0]]]]},
        {"from": [[3, 0, []]]},
        {"from": "fc.weight"},
        {"name": 3},
        {"sha256": "x"},
        {"shape": [-1]},
    ],
    ids=str,
)
def test_a_damaged_move_is_refused(receipt: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    document = json.loads(receipt.read_text())
    document["tensors"][0].update(change)
    receipt.write_text(json.dumps(document))
    with pytest.raises(bs.BurnstoreError):
        bs.replay(receipt, tmp_path / "again.bpk")
    assert not (tmp_path / "again.bpk").exists()


@pytest.mark.parametrize("name", ["out.safetensors", "./out.safetensors", "link.safetensors"])
def test_a_receipt_with_the_name_of_the_target_is_refused(tmp_path: Path, name: str) -> None:
    bs.save({"w": np.ones(3)}, tmp_path / "a.safetensors")
    (tmp_path / "link.safetensors").symlink_to("out.safetensors")
    with pytest.raises(bs.errors.SaveError, match="has this name"):
        bs.convert(
            tmp_path / "a.safetensors", tmp_path / "out.safetensors", receipt=f"{tmp_path}/{name}", overwrite=True
        )
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("name", ["out.safetensors.index.json", "out-00001-of-00002.safetensors"])
def test_a_receipt_with_the_name_of_a_shard_or_the_index_of_the_target_is_refused(tmp_path: Path, name: str) -> None:
    bs.save({"w": np.ones(3), "v": np.ones(3)}, tmp_path / "a.safetensors")
    target = tmp_path / "out.safetensors"
    with pytest.raises(bs.errors.SaveError, match="has this name"):
        bs.convert(tmp_path / "a.safetensors", target, receipt=tmp_path / name, max_shard_size=24)
    assert bs.convert(
        tmp_path / "a.safetensors", target, receipt=tmp_path / name.replace("out", "r"), max_shard_size=24
    )


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    for key, held in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(held, (*place, key))


def test_a_receipt_is_read_as_strictly_as_a_file(tmp_path: Path) -> None:
    """No object may have an unknown or a missing key, and nothing may be of another type."""
    bs.save({"weight": np.ones((2, 3), np.float32)}, tmp_path / "a.safetensors", layout="torch")
    done = bs.convert(tmp_path / "a.safetensors", tmp_path / "b.bpk", rules={"^$": "Linear"}, receipt=True)
    good = json.loads(Path(done.receipt or "").read_text())
    free = {("target", "metadata"), ("target", "options")}
    cases: list[Any] = []
    for place in list(_places(good)):
        value = functools.reduce(lambda held, key: held[key], place, good)
        if isinstance(value, dict) and place not in free:
            cases += [_with(good, place, {**value, "surprise": 1})]
            cases += [_with(good, place, {k: v for k, v in value.items() if k != key}) for key in value]
        if place and place[:2] not in free and place[-1] != "operations" and "operations" not in place:
            others = [other for other in (3.5, {}, [[]], True, "x") if type(other) is not type(value)]
            cases += [_with(good, place, other) for other in others]
    assert len(cases) > 80
    for case in cases:
        (tmp_path / "r.json").write_text(json.dumps(case))
        with pytest.raises(CorruptError, match="not a receipt"):
            assert not read_receipt(tmp_path / "r.json"), f"accepted: {case}"
    (tmp_path / "r.json").write_text(json.dumps(_with(good, ("target", "layout"), "a layout")))
    with pytest.raises(CorruptError, match="expected a layout"):
        read_receipt(tmp_path / "r.json")


def _with(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    if not place:
        return value
    functools.reduce(lambda held, key: held[key], place[:-1], changed)[place[-1]] = value
    return changed


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_the_part_of_a_source_is_replayed_as_that_part(tmp_path: Path, suffix: str) -> None:
    parts = {key: {"a": torch.full((3,), value), "b": torch.ones(2)} for key, value in (("model", 1.0), ("ema", 2.0))}
    if suffix == ".pt":
        torch.save(parts, tmp_path / "both.pt")
    else:
        bs.save(
            {f"{key}.{name}": part[name] for key, part in parts.items() for name in part}, tmp_path / f"both{suffix}"
        )
    done = bs.convert(tmp_path / f"both{suffix}", tmp_path / "ema.npz", top_level_key="ema", receipt=True)
    assert done.receipt is not None and read_receipt(done.receipt).sources[0].top_level_key == "ema"
    assert check_receipt(done.receipt).ok
    bs.replay(done.receipt, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "ema.npz").read_bytes()
    with bs.open(tmp_path / "again.npz") as f:
        assert sorted(f) == ["a", "b"] and f["a"].numpy().tolist() == [2, 2, 2]
