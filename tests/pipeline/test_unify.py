"""Layout is a fact of a tensor: what happens where layouts meet, and that a file states the layout of its result."""

from __future__ import annotations

import io
import itertools
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import burnstore as bs
from burnstore import nn
from burnstore.errors import CorruptError, FormatError, ModelError
from burnstore.pipeline.unify import convertible, unify

SQUARE = np.arange(9, dtype=np.float32).reshape(3, 3)


class Torch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)
        self.norm = torch.nn.LayerNorm(3)
        with torch.no_grad():
            self.fc.weight.copy_(torch.from_numpy(SQUARE))


class Burn(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)


def weight_of(model: Any) -> Any:
    return next(each.numpy() for each in bs.collect(model) if each.path == "fc.weight")


def silent(path: Path, tensors: dict[str, Any], **metadata: str) -> Path:
    """Write a file that states no layout, or the given format."""
    save_file(tensors, path, metadata or None)
    return path


# --- the table of unify -----------------------------------------------------------------------------------------------

_BOTH = [("a", "torch"), ("b", "burn")]
_HALF = [("a", "torch"), ("b", None)]
_NONE = [("a", None), ("b", None)]
_OTHER = [("a", "torch"), ("b", "mlx")]


@pytest.mark.parametrize(
    ("meeting", "sides", "outcome"),
    [
        ("load", _BOTH, "convert"),
        ("write", _BOTH, "refuse"),
        ("overlay", _BOTH, "convert"),
        ("blend", _BOTH, "convert"),
        ("compare", _BOTH, "convert"),
        ("write", _HALF, "note"),
        ("overlay", _HALF, "refuse"),
        ("blend", _HALF, "refuse"),
        ("compare", _HALF, "note"),
        ("write", _NONE, "keep"),
        ("overlay", _NONE, "note"),
        ("blend", _NONE, "refuse"),
        ("compare", _NONE, "note"),
        *((meeting, _OTHER, "refuse") for meeting in ("load", "write", "overlay", "blend", "compare")),
        *((meeting, [("a", "mlx"), ("b", "mlx")], "keep") for meeting in ("load", "write", "blend", "compare")),
        *((meeting, [("a", "burn"), ("b", "burn")], "keep") for meeting in ("load", "write", "blend", "compare")),
    ],
)
def test_each_meeting_has_one_outcome(meeting: Any, sides: list[tuple[str, str | None]], outcome: str) -> None:
    for order in (sides, sides[::-1]):
        if outcome == "refuse":
            with pytest.raises(ModelError, match="layout"):
                unify(order, meeting)
            continue
        met = unify(order, meeting)
        assert met.is_converted == (outcome == "convert")
        assert bool(met.notes) == (outcome == "note")


def test_only_two_layouts_are_converted() -> None:
    assert [convertible(each) for each in ("torch", "burn", "mlx", "unknown", None)] == ["torch", "burn", *[None] * 3]


# --- files ------------------------------------------------------------------------------------------------------------

_SUFFIXES = (".bpk", ".safetensors", ".pt", ".npz")
_METADATA = (
    None,
    {},
    {"a": "b"},
    {"format": "pt"},
    {"producer": "burn"},
    {"format": "mlx"},
    {"burnstore.layout": "burn"},
)
_SAVED: dict[str, Any] = {
    "torch": Torch,
    "burn": Burn,
    "arrays": lambda: {"w": SQUARE},
    "nested arrays": lambda: {"fc": {"weight": SQUARE}},
    "snapshots of torch": lambda: bs.collect(Torch()),
    "snapshots of burn": lambda: bs.collect(Burn()),
    "snapshots and arrays": lambda: {**{each.path: each for each in bs.collect(Burn())}, "w": SQUARE},
    "nothing": list,
}


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("suffix", _SUFFIXES)
@pytest.mark.parametrize("saved", _SAVED)
@pytest.mark.parametrize("layout", [None, "torch", "burn"])
def test_a_saved_file_states_the_layout_of_the_result(
    saved: str, layout: str | None, suffix: str, tmp_path: Path
) -> None:
    takes_metadata = suffix in (".bpk", ".safetensors")
    for number, metadata in enumerate(_METADATA if takes_metadata else _METADATA[:1]):
        path = tmp_path / f"{number}{suffix}"
        try:
            done = bs.save(_SAVED[saved](), path, layout=layout, metadata=metadata, durable=False)
        except ModelError as error:
            assert "contradicts" in str(error) and "snapshots" in saved  # noqa: PT017  (the refusal is the other outcome)
            continue
        with bs.open(path) as file:
            assert file.layout == done.layout
            assert {each.layout for each in file.values()} <= {done.layout}


@pytest.mark.parametrize(("suffix", "kind"), [(".bpk", bs.BurnpackStore), (".safetensors", bs.SafetensorsStore)])
@pytest.mark.parametrize("saved", ["torch", "burn", "nested arrays"])
def test_a_store_states_the_layout_of_its_result(suffix: str, kind: Any, saved: str, tmp_path: Path) -> None:
    changes = [lambda store: store, lambda store: store.clear_metadata(), lambda store: store.metadata("a", "b")]
    for layout, change in itertools.product((None, "torch", "burn"), changes):
        for store in (kind.from_file(tmp_path / f"m{suffix}").overwrite(True).durable(False), kind.from_bytes(None)):
            store = change(store if layout is None else store.layout(layout))
            done = store.save(_SAVED[saved]())
            with store.open() as file:
                assert file.layout == done.layout


@pytest.mark.parametrize("options", [{"burn_version": "0.19"}, {"burn_version": "0.23-pre"}, {"max_shard_size": 40}])
@pytest.mark.parametrize("layout", ["torch", "burn"])
def test_options_of_the_writer_keep_the_layout(options: dict[str, Any], layout: str, tmp_path: Path) -> None:
    path = tmp_path / ("m.safetensors" if "max_shard_size" in options else "m.bpk")
    for metadata in (None, {"a": "b"}):
        done = bs.save(Torch(), path, layout=layout, metadata=metadata, overwrite=True, durable=False, **options)
        with bs.open(path) as file:
            assert file.layout == done.layout == layout


@pytest.mark.parametrize("suffix", _SUFFIXES)
@pytest.mark.parametrize("options", [{"keep_layout": True}, {"target_layout": "burn"}, {"target_layout": "torch"}, {}])
def test_a_converted_or_merged_file_states_the_layout_of_its_result(
    suffix: str, options: dict[str, Any], tmp_path: Path
) -> None:
    sources = {}
    for name, model in (("torch.bpk", Torch()), ("burn.npz", Burn()), ("arrays.npz", {"w": SQUARE})):
        bs.save(model, tmp_path / name, durable=False)
        sources[name] = tmp_path / name
    silent(tmp_path / "mlx.safetensors", {"w": SQUARE}, format="mlx")
    sources["mlx"] = tmp_path / "mlx.safetensors"
    written = 0
    for source in sources.values():
        for verb in (bs.convert, lambda path, target, **given: bs.merge([path], target, **given)):
            for metadata in (None, {"a": "b"} if suffix in (".bpk", ".safetensors") else None, {"format": "pt"}):
                target = tmp_path / f"target{suffix}"
                try:
                    done = verb(source, target, overwrite=True, durable=False, metadata=metadata, **options)
                except (ModelError, FormatError):
                    continue
                written += 1
                with bs.open(target) as file:
                    assert file.layout == done.layout
    assert written


# --- carriers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"weights_only": True}, {"weights_only": False}])
@pytest.mark.parametrize("mmap", [False, True])
def test_torch_ignores_the_record_of_a_layout(options: dict[str, Any], mmap: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    assert bs.save(Torch(), path, layout="burn").layout == "burn"
    found = torch.load(path, mmap=mmap, **options)
    assert list(found) == ["fc.weight", "fc.bias", "norm.gamma", "norm.beta"]
    assert np.array_equal(found["fc.weight"].numpy(), SQUARE.T)
    with torch.serialization.set_default_mmap_options(2), bs.open(path) as file:  # MAP_PRIVATE
        assert file.layout == "burn"
        assert np.array_equal(file["fc.weight"].numpy(), SQUARE.T)


def test_a_file_in_torchs_layout_has_no_record(tmp_path: Path) -> None:
    bs.save(Torch(), tmp_path / "m.pt")
    assert all("burnstore" not in name for name in zipfile.ZipFile(tmp_path / "m.pt").namelist())


def test_numpy_ignores_the_comment_with_a_layout(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    bs.save(Burn(), path)
    for options in ({}, {"mmap_mode": "r"}, {"allow_pickle": True}):
        with np.load(path, **options) as found:
            assert found.files == ["fc.weight", "fc.bias", "norm.gamma", "norm.beta"]
            assert all(isinstance(array, np.ndarray) for array in found.values())
    assert zipfile.ZipFile(path).testzip() is None


def test_arrays_without_a_layout_are_written_as_numpy_does_it(tmp_path: Path) -> None:
    bs.save({"w": SQUARE}, tmp_path / "m.npz")
    assert zipfile.ZipFile(tmp_path / "m.npz").comment == b""


def test_a_salvaged_file_keeps_its_layout(tmp_path: Path) -> None:
    bs.save(Torch(), tmp_path / "m.pt", layout="burn")
    whole = (tmp_path / "m.pt").read_bytes()
    with bs.open(whole[:-40], salvage=True) as file:
        assert file.layout == "burn"


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    bs.save(Burn(), tmp_path / "m.npz")
    raw = (tmp_path / "m.npz").read_bytes()
    comment = b"burnstore.layout=\xff\n"
    at = raw.rindex(b"PK\5\6") + 20
    with pytest.raises(CorruptError, match="NP-10"):
        bs.open(raw[:at] + struct.pack("<H", len(comment)) + comment)
    with bs.open(raw[:at] + struct.pack("<H", 5) + b"hello") as file:
        assert file.layout is None
    packed = io.BytesIO()
    torch.save({"w": torch.ones(2)}, packed)
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("archive/burnstore.layout", b"\n")
    with pytest.raises(CorruptError, match="PT-31"):
        bs.open(packed.getvalue())


def test_one_array_of_a_known_layout_is_not_written_as_npy(tmp_path: Path) -> None:
    assert bs.save({"w": SQUARE}, tmp_path / "w.npy").layout is None
    bs.save(Burn(), tmp_path / "m.bpk")
    with bs.open(tmp_path / "m.bpk") as file, pytest.raises(FormatError, match="cannot state burn's layout"):
        bs.save({"w": file["fc.weight"]}, tmp_path / "v.npy")
    assert not (tmp_path / "v.npy").exists()


# --- where tensors meet -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", _SUFFIXES)
def test_a_file_that_was_saved_from_an_open_file_loads_the_same(suffix: str, tmp_path: Path) -> None:
    bs.save(Torch(), tmp_path / "m.bpk")
    with bs.open(tmp_path / "m.bpk") as file:
        bs.save(file, tmp_path / f"n{suffix}")
    model, declared = Torch(), Burn()
    torch.nn.init.zeros_(model.fc.weight)
    bs.load(model, tmp_path / f"n{suffix}")
    bs.load(declared, tmp_path / f"n{suffix}")
    assert np.array_equal(weight_of(model), SQUARE)
    assert np.array_equal(weight_of(declared), SQUARE.T)


def test_apply_converts_snapshots_of_another_layout() -> None:
    declared, model = Burn(), Torch()
    bs.apply(declared, bs.collect(Torch()))
    assert np.array_equal(weight_of(declared), SQUARE.T)
    torch.nn.init.zeros_(model.fc.weight)
    bs.apply(model, bs.collect(declared))
    assert np.array_equal(weight_of(model), SQUARE)


def test_apply_takes_arrays_in_the_models_layout_and_refuses_a_mixture() -> None:
    own = bs.TensorSnapshot.from_numpy("fc.weight", SQUARE)
    declared = Burn()
    bs.apply(declared, [own])
    assert np.array_equal(weight_of(declared), SQUARE)
    with pytest.raises(ModelError, match="does not state its layout"):
        bs.apply(declared, [*bs.collect(Torch()), own])
    with pytest.raises(ModelError, match="different layouts"):
        bs.apply(declared, [*bs.collect(Torch()), *bs.collect(Burn())])


def test_lists_of_two_layouts_are_not_written_into_one_file(tmp_path: Path) -> None:
    both = [*bs.collect(Torch()), *(each.with_path(f"b.{each.path}") for each in bs.collect(Burn()))]
    with pytest.raises(ModelError, match=r"'fc\.weight' has torch's, 'b\.fc\.weight' burn's"):
        bs.save(both, tmp_path / "m.safetensors")
    with pytest.raises(ModelError, match="contradicts the tensor"):
        bs.save(bs.collect(Torch()), tmp_path / "m.safetensors", layout="burn")
    done = bs.save({**{each.path: each for each in bs.collect(Torch())}, "w": SQUARE}, tmp_path / "m.safetensors")
    assert done.layout is None
    assert "'fc.weight' has torch's, 'w' states none" in done.notes[0]


@pytest.mark.parametrize("method", ["linear", "slerp"])
def test_square_matrices_of_unknown_layout_are_not_blended(method: Any, tmp_path: Path) -> None:
    paths = [silent(tmp_path / f"{at}.safetensors", {"w": each}) for at, each in enumerate((SQUARE, SQUARE.T.copy()))]
    with pytest.raises(ModelError, match="one may be the transpose"):
        bs.merge(paths, tmp_path / "c.safetensors", method=method, t=0.5)
    done = bs.merge(paths, tmp_path / "c.safetensors", method=method, t=0.5, keep_layout=True)
    assert "blended as stored" in done.notes[0]
    assert bs.merge(paths, tmp_path / "d.safetensors", method=method, t=0.5, layout="torch").layout == "torch"


def test_tensors_that_cannot_be_transposed_unnoticed_are_blended(tmp_path: Path) -> None:
    tensors = {"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
    paths = [silent(tmp_path / f"{at}.safetensors", tensors) for at in range(2)]
    assert bs.merge(paths, tmp_path / "c.safetensors", method="linear").notes == []


def test_a_comparison_of_square_matrices_of_unknown_layout_is_noted(tmp_path: Path) -> None:
    paths = [silent(tmp_path / f"{at}.safetensors", {"w": SQUARE}) for at in range(2)]
    assert "compared as stored" in bs.diff(*paths).notes[0]
    assert bs.diff(paths[0], paths[0]).notes == ()


@pytest.mark.parametrize("name", ["mlx", "tf", "flax", "jax", "np", "paddle"])
def test_another_frameworks_layout_is_neither_torchs_nor_unknown(name: str, tmp_path: Path) -> None:
    state = {key: value.numpy() for key, value in Torch().state_dict().items()}
    path = silent(tmp_path / "m.safetensors", state, format=name)
    with bs.open(path) as file:
        assert file.layout == file["fc.weight"].layout == name
    for model in (Torch(), Burn()):
        with pytest.raises(ModelError, match=f"has {name}'s layout"):
            bs.load(model, path)
        with pytest.raises(ModelError, match=f"has {name}'s layout"):
            bs.convert(path, tmp_path / "c.safetensors", like=model)
    with pytest.raises(ModelError, match=f"has {name}'s layout"):
        bs.convert(path, tmp_path / "c.bpk")
    assert bs.convert(path, tmp_path / "c.bpk", keep_layout=True).layout == name
    assert bs.convert(path, tmp_path / "c.pt", keep_layout=True).layout == name
    notes = bs.load(Torch(), path, layout="torch").notes
    assert f"states {name}'s layout" in notes[0]
    with bs.open(tmp_path / "c.pt") as file:
        assert file.layout == name


def test_a_filter_does_not_hide_that_a_file_is_burns(tmp_path: Path) -> None:
    state = {"fc.weight": SQUARE, "norm.gamma": SQUARE[0], "norm.beta": SQUARE[0], "fc.bias": SQUARE[0]}
    path = silent(tmp_path / "m.safetensors", state)
    with pytest.raises(ModelError, match="this name is Burn's"):
        bs.load(Torch(), path, filter="^fc")
    with pytest.raises(ModelError, match="this name is Burn's"):
        bs.convert(path, tmp_path / "c.bpk", like=Torch(), filter="^fc")


def test_an_adapter_meets_layouts_too(tmp_path: Path) -> None:
    bs.save(Torch(), tmp_path / "m.pt")
    with pytest.raises(ModelError, match="gives burn's layout, and Torch has torch's"):
        bs.load(Torch(), tmp_path / "m.pt", adapter="PyTorchToBurnAdapter")
    bs.save(Torch(), tmp_path / "m.bpk")
    with pytest.raises(ModelError, match="PyTorchToBurnAdapter, which takes it contradicts the source"):
        bs.load(Burn(), tmp_path / "m.bpk", adapter="PyTorchToBurnAdapter")


def test_collect_knows_the_layout() -> None:
    assert {each.layout for each in bs.collect(Torch())} == {"torch"}
    assert {each.layout for each in bs.collect(Burn())} == {"burn"}
    assert {each.layout for each in bs.collect({"fc": {"weight": SQUARE}})} == {None}
