"""What Burn's own tests ask of its PyTorch reader: dtypes, shapes, containers, facts of the file, values."""

from __future__ import annotations

import io
import math
import pickle
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import DType, PytorchReader
from burnstore.errors import ConfigError, CorruptError, FormatError, TensorNotFoundError, TruncatedError
from burnstore.formats.pytorch.values import Opaque
from fuzz import torch_bytes as tb

torch = pytest.importorskip("torch")

LEGACY = {"_use_new_zipfile_serialization": False}
CONTAINERS = pytest.mark.parametrize("options", [{}, LEGACY], ids=["zip", "legacy"])


def saved(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


# --- dtypes and shapes ------------------------------------------------------------------------------------------------

SPARSELY = [0.0] * 10_000
SPARSELY[0], SPARSELY[5050], SPARSELY[9999] = 1.0, 2.0, 3.0

TENSORS: dict[str, tuple[Any, Any, str]] = {
    "float32": ([1.0, 2.5, -3.7, 0.0], torch.float32, "F32"),
    "float64": ([1.1, 2.2, 3.3], torch.float64, "F64"),
    "int64": ([100, -200, 300, 0], torch.int64, "I64"),
    "int32": ([10, 20, -30], torch.int32, "I32"),
    "int16": ([1000, -2000, 3000], torch.int16, "I16"),
    "int8": ([127, -128, 0, 50], torch.int8, "I8"),
    "uint8": ([0, 128, 255, 42], torch.uint8, "U8"),
    "bool": ([True, False, True, True, False], torch.bool, "Bool"),
    "float16": ([1.5, -2.25, 3.125], torch.float16, "F16"),
    "bfloat16": ([1.5, -2.5, 3.5], torch.bfloat16, "BF16"),
    "2 axes": (np.arange(1.0, 7).reshape(3, 2).tolist(), torch.float32, "F32"),
    "3 axes": (np.arange(24.0).reshape(2, 3, 4).tolist(), torch.float32, "F32"),
    "4 axes": (np.arange(24.0).reshape(2, 3, 2, 2).tolist(), torch.float32, "F32"),
    "scalar": (42.0, torch.float32, "F32"),
    "empty": ([], torch.float32, "F32"),
    "large": (np.array(SPARSELY).reshape(100, 100).tolist(), torch.float32, "F32"),
    "extreme": ([1e-38, 3e38, -1e-38, -3e38], torch.float32, "F32"),
}


@CONTAINERS
@pytest.mark.parametrize(("value", "dtype", "name"), TENSORS.values(), ids=TENSORS)
def test_a_tensor_is_what_was_saved(value: Any, dtype: Any, name: str, options: dict[str, Any]) -> None:
    tensor = torch.tensor(value, dtype=dtype)
    found = PytorchReader.from_bytes(saved({"tensor": tensor}, **options)).get("tensor")
    assert found is not None and str(found.dtype) == name and found.shape == tuple(tensor.shape)
    assert found.numpy().astype(np.float64).tolist() == tensor.double().tolist()


def test_special_values_are_what_was_saved() -> None:
    found = PytorchReader.from_bytes(saved({"t": torch.tensor([math.nan, math.inf, -math.inf, 0, 1])})).get("t")
    assert found is not None
    values = found.numpy().tolist()
    assert math.isnan(values[0]) and values[1:] == [math.inf, -math.inf, 0, 1]


def test_several_dtypes_stand_in_one_file() -> None:
    kinds = {"a": torch.float32, "b": torch.int64, "c": torch.bool, "d": torch.float16}
    reader = PytorchReader.from_bytes(saved({name: torch.ones(2, dtype=kind) for name, kind in kinds.items()}))
    assert [str(tensor.dtype) for tensor in reader.tensors().values()] == ["F32", "I64", "Bool", "F16"]


# --- structure --------------------------------------------------------------------------------------------------------


def test_a_state_dict_is_read() -> None:
    norm = torch.nn.BatchNorm1d(3)
    state = {name: tensor for name, tensor in norm.state_dict().items() if name != "num_batches_tracked"}
    reader = PytorchReader.from_bytes(saved(state))
    assert reader.keys() == ["weight", "bias", "running_mean", "running_var"] and len(reader) == 4
    assert reader.tensors()["running_mean"].numpy().tolist() == [0] * 3
    assert reader.tensors()["running_var"].numpy().tolist() == [1] * 3


def test_nested_dicts_are_flattened() -> None:
    nested = {"layer1": {"weight": torch.ones(2), "bias": torch.ones(2)}, "layer2": {"weight": torch.ones(2)}}
    assert PytorchReader.from_bytes(saved(nested)).keys() == ["layer1.weight", "layer1.bias", "layer2.weight"]
    deep = {"state": {"encoder": {"layer_0": {"weight": torch.ones(2)}}, "decoder": {"bias": torch.ones(1)}}}
    reader = PytorchReader.from_bytes(saved(deep), top_level_key="")
    assert reader.keys() == ["state.encoder.layer_0.weight", "state.decoder.bias"]


def test_a_checkpoint_has_its_model_found_and_all_of_it_on_request() -> None:
    data = saved({"epoch": 42, "loss": 0.123, "model_state_dict": {"fc.weight": torch.ones(2, 3)}})
    reader = PytorchReader.from_bytes(data)
    assert reader.keys() == ["fc.weight"] and "model_state_dict" in reader.notes[0]
    whole = PytorchReader.from_bytes(data, top_level_key="")
    assert whole.keys() == ["model_state_dict.fc.weight"] and whole.notes == []
    assert whole.tensors()["model_state_dict.fc.weight"].shape == (2, 3)


def test_parameters_and_buffers_are_tensors() -> None:
    state = {
        "param": torch.nn.Parameter(torch.eye(3)),
        "ints": torch.tensor([1, 2], dtype=torch.int32),
        "flags": torch.tensor([True, False, True]),
    }
    tensors = PytorchReader.from_bytes(saved(state)).tensors()
    assert tensors["param"].numpy().tolist() == np.eye(3).tolist()
    assert tensors["ints"].dtype is DType.I32 and tensors["flags"].numpy().tolist() == [True, False, True]


def test_a_tensor_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    torch.save({"weight": torch.arange(12.0).reshape(3, 4)}, tmp_path / "model.pt")
    with PytorchReader(tmp_path / "model.pt") as reader:
        weight = reader.get("weight")
        assert weight is not None and weight.shape == (3, 4) and reader.get("nothing") is None
        assert weight.numpy().tolist() == np.arange(12.0).reshape(3, 4).tolist()
        assert not reader.is_empty() and "1 tensor>" in repr(reader)


def test_a_top_level_key_leaves_its_own_name_out(tmp_path: Path) -> None:
    torch.save({"model": {"a": torch.ones(1)}, "other": {"b": torch.ones(1)}}, tmp_path / "model.pt")
    assert PytorchReader.with_top_level_key(tmp_path / "model.pt", "model").keys() == ["a"]
    assert PytorchReader(tmp_path / "model.pt", top_level_key="other").keys() == ["b"]


# --- the legacy stream ------------------------------------------------------------------------------------------------


def test_views_into_one_storage_of_a_legacy_file_are_read() -> None:
    base = torch.arange(100.0)
    state = {"a": base[10:20], "b": base[50:60], "ones": torch.ones(3), "zeros": torch.zeros(2, 2)}
    tensors = PytorchReader.from_bytes(saved(state, **LEGACY)).tensors()
    assert tensors["a"].numpy().tolist() == list(range(10, 20))
    assert tensors["b"].numpy().tolist() == list(range(50, 60))
    assert tensors["ones"].numpy().tolist() == [1, 1, 1] and tensors["zeros"].numpy().tolist() == [[0, 0], [0, 0]]


def test_storage_offsets_of_a_legacy_file_are_applied() -> None:
    base = torch.arange(20.0)
    state = {"first": base[5:8], "second": base[8:].reshape(3, 4), "third": base[19]}
    tensors = PytorchReader.from_bytes(saved(state, **LEGACY)).tensors()
    assert tensors["first"].numpy().tolist() == [5, 6, 7]
    assert tensors["second"].numpy().tolist() == np.arange(8.0, 20).reshape(3, 4).tolist()
    assert tensors["third"].numpy().tolist() == 19


# --- the tar ----------------------------------------------------------------------------------------------------------


def tar_of(*tensors: tuple[str, str, np.ndarray[Any, Any]]) -> bytes:
    """A tar of torch 0.1 with these tensors: name, class, values."""
    storages = {str(at): (kind, array.tobytes(), array.itemsize) for at, (_, kind, array) in enumerate(tensors)}
    table = {
        str(100 + at): (str(at), array.shape, tb.row_major(array.shape), 0) for at, (_, _, array) in enumerate(tensors)
    }
    value = tb.dict_of(*((tb.text(name), tb.persistent(str(100 + at))) for at, (name, _, _) in enumerate(tensors)))
    return tb.tar(tb.pickled(value), storages, table)


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        ("Float", np.array([1, 2.5, -3.7, 0], np.float32)),
        ("Double", np.array([1.1, 2.2, 3.3])),
        ("Long", np.array([100, -200, 300, 0])),
        ("Float", np.arange(1, 13, dtype=np.float32).reshape(3, 4)),
    ],
    ids=["float32", "float64", "int64", "3 by 4"],
)
def test_a_tensor_of_a_tar_is_what_was_saved(kind: str, array: np.ndarray[Any, Any]) -> None:
    found = PytorchReader.from_bytes(tar_of(("tensor", kind, array))).get("tensor")
    assert found is not None and found.numpy().dtype == array.dtype and found.numpy().tolist() == array.tolist()


def test_several_tensors_of_a_tar_are_read() -> None:
    weight, bias = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([7, 8], np.float64)
    reader = PytorchReader.from_bytes(
        tar_of(("weight", "Float", weight), ("bias", "Double", bias), ("step", "Long", np.array([3])))
    )
    assert {name: tensor.numpy().tolist() for name, tensor in reader.tensors().items()} == {
        "weight": weight.tolist(),
        "bias": [7, 8],
        "step": [3],
    }
    assert [str(tensor.dtype) for tensor in reader.tensors().values()] == ["F32", "F64", "I64"]


def test_a_view_of_a_storage_in_a_tar_is_read() -> None:
    raw = np.arange(8, dtype=np.float32).tobytes()
    value = tb.dict_of((tb.text("view"), tb.persistent("1")))
    data = tb.tar(tb.pickled(value), {"5": ("Float", raw, 4)}, {"1": ("6", (4,), (1,), 0)}, views=[(6, 5, 2, 4)])
    assert PytorchReader.from_bytes(data).tensors()["view"].numpy().tolist() == [2, 3, 4, 5]


# --- facts of the file ------------------------------------------------------------------------------------------------


def test_the_facts_of_a_zip_are_told() -> None:
    facts = PytorchReader.from_bytes(saved({"t": torch.ones(4)})).metadata()
    assert (facts.format_type, facts.byte_order, facts.tensor_count) == ("Zip", "LittleEndian", 1)
    assert facts.total_data_size == 16 and facts.is_modern_format() and not facts.is_legacy_format()
    assert (facts.pytorch_version, facts.format_version, facts.has_storage_alignment) == ("3", "1", True)
    assert (facts.archive_root, facts.pickle_protocol) == ("archive", 2)


def test_the_facts_of_a_legacy_file_are_told() -> None:
    data = saved({"a": torch.ones(2), "b": torch.ones(2), "c": torch.ones(2)}, **LEGACY)
    facts = PytorchReader.from_bytes(data).metadata()
    assert (facts.format_type, facts.tensor_count, facts.is_legacy_format()) == ("Legacy", 3, True)
    assert facts.format_version is None and facts.pytorch_version is None and not facts.has_storage_alignment
    assert facts.total_data_size == 24


def test_the_facts_of_a_tar_and_of_a_pickle_are_told() -> None:
    tar = PytorchReader.from_bytes(tar_of(("t", "Float", np.ones(3, np.float32)))).metadata()
    assert (tar.format_type, tar.tensor_count, tar.total_data_size) == ("Tar", 1, 12)
    zipped = PytorchReader.from_bytes(saved({"t": torch.ones(1)})).metadata()
    assert zipped.format_type != "Tar"
    bare = PytorchReader.from_bytes(pickle.dumps({"t": torch.ones(1)})).metadata()
    assert (bare.format_type, bare.total_data_size) == ("Pickle", None)


def test_the_facts_count_what_a_key_selects() -> None:
    data = saved({"model": {"a": torch.ones(1)}, "optim": {"b": torch.ones(1), "c": torch.ones(1)}})
    assert PytorchReader.from_bytes(data, top_level_key="optim").metadata().tensor_count == 2


# --- all containers, from files and from bytes ------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["zip", "legacy", "tar", "bare"])
def test_bytes_give_what_the_file_gives(container: str, tmp_path: Path) -> None:
    state = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.tensor([1.0, 2.0])}
    arrays = [(name, "Float", tensor.numpy()) for name, tensor in state.items()]
    data = {
        "zip": lambda: saved(state),
        "legacy": lambda: saved(state, **LEGACY),
        "tar": lambda: tar_of(*arrays),
        "bare": lambda: pickle.dumps(state),
    }[container]()
    (tmp_path / "model.pt").write_bytes(data)
    with PytorchReader(tmp_path / "model.pt") as from_file:
        from_bytes = PytorchReader.from_bytes(data)
        assert from_file.keys() == from_bytes.keys() == list(state)
        for name, tensor in state.items():
            assert (
                from_file.tensors()[name].to_bytes() == from_bytes.tensors()[name].to_bytes() == bytes(tensor.numpy())
            )


def test_from_bytes_takes_bytes() -> None:
    with pytest.raises(TypeError, match="expected bytes"):
        PytorchReader.from_bytes("model.pt")  # type: ignore[arg-type]


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "small.pt").write_bytes(b"\x80\x02}q")
    with pytest.raises(FormatError):
        PytorchReader(tmp_path / "small.pt")


def test_a_missing_file_is_told_by_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PytorchReader(tmp_path / "missing.pt")


def test_a_file_that_was_cut_after_it_was_opened_gives_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"w": torch.arange(10_000.0)}, path)
    with PytorchReader(path) as reader:
        weight = reader.tensors()["w"]
        with path.open("r+b") as file:
            file.truncate(5000)
        with pytest.raises((TruncatedError, bs.errors.ChangedError)):
            weight.numpy()


@CONTAINERS
def test_an_open_file_is_read_on_after_it_was_replaced_or_removed(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "model.pt"
    torch.save({"w": torch.arange(5.0)}, path, **options)
    with PytorchReader(path) as reader:
        torch.save({"w": torch.zeros(5)}, tmp_path / "new.pt", **options)
        (tmp_path / "new.pt").replace(path)
        assert reader.tensors()["w"].numpy().tolist() == [0, 1, 2, 3, 4]
        path.unlink()
        assert reader.tensors()["w"].numpy().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", [0, 8], ids=["stored", "deflated"])
def test_threads_read_at_once(tmp_path: Path, method: int) -> None:
    raws = {str(at): np.full(1000, at, np.float32).tobytes() for at in range(8)}
    value = tb.dict_of(*((tb.text(key), tb.tensor(tb.storage(tb.text(key), 1000), (1000,))) for key in raws))
    (tmp_path / "model.pt").write_bytes(tb.torch_zip(tb.pickled(value), raws, method=method))
    with PytorchReader(tmp_path / "model.pt") as reader:
        got: dict[str, bytes] = {}

        def read(key: str) -> None:
            got[key] = reader.tensors()[key].to_bytes()

        threads = [threading.Thread(target=read, args=(key,)) for key in raws]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == raws


def test_a_deflated_file_without_checksums_is_read() -> None:
    raw = np.arange(4, dtype=np.float32).tobytes()
    value = tb.dict_of((tb.text("t"), tb.tensor(tb.storage(tb.text("0"), 4), (4,))))
    members = tb.torch_members(tb.pickled(value), {"0": raw})
    data = tb.zipped([tb.replace(member, method=8, crc=0) for member in members])
    assert PytorchReader.from_bytes(data).tensors()["t"].to_bytes() == raw


def test_offset_views_of_a_deflated_storage_are_read() -> None:
    raw = np.arange(100, dtype=np.float32).tobytes()
    view = tb.tensor(tb.storage(tb.text("0"), 100), (3,), offset=40)
    data = tb.torch_zip(tb.pickled(tb.dict_of((tb.text("t"), view))), {"0": raw}, method=8)
    assert PytorchReader.from_bytes(data).tensors()["t"].numpy().tolist() == [40, 41, 42]


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint() -> bytes:
    return saved(
        {
            "epoch": 42,
            "loss": 0.123,
            "model_state_dict": {"fc.weight": torch.ones(2, 3)},
            "optimizer_state_dict": {"lr": 0.5, "kind": torch.float32, "betas": (0.9, 0.99)},
        }
    )


def test_all_values_are_read_and_tensors_are_named(checkpoint: bytes) -> None:
    data = PytorchReader.read_pickle_data(checkpoint)
    assert list(data) == ["epoch", "loss", "model_state_dict", "optimizer_state_dict"]
    assert data["epoch"] == 42 and 0 < data["loss"] < 1
    assert data["model_state_dict"]["fc.weight"] == Opaque("torch.Tensor", "F32 [2, 3]")
    assert data["optimizer_state_dict"] == {"lr": 0.5, "kind": Opaque("torch.float32"), "betas": [0.9, 0.99]}


def test_values_below_a_key_are_read(checkpoint: bytes) -> None:
    assert list(PytorchReader.read_pickle_data(checkpoint, "model_state_dict")) == ["fc.weight"]
    assert PytorchReader.read_pickle_data(checkpoint, "optimizer_state_dict.lr") == 0.5
    with pytest.raises(TensorNotFoundError, match="not found"):
        PytorchReader.read_pickle_data(checkpoint, "nothing")
    with pytest.raises(TensorNotFoundError, match=r"'key' not found; there are.*: 0"):
        PytorchReader.read_pickle_data(saved([1, 2]), "key")
    with pytest.raises(CorruptError, match="no dictionary on the way"):
        PytorchReader.read_pickle_data(checkpoint, "epoch.key")


@dataclass
class Facts:
    epoch: int
    loss: float


def test_a_configuration_is_put_into_a_type(checkpoint: bytes) -> None:
    assert PytorchReader.load_config(checkpoint, Facts, ignore_extra=True) == Facts(42, 0.123)
    with pytest.raises(ConfigError, match="epoch: missing"):
        PytorchReader.load_config(checkpoint, Facts, "optimizer_state_dict")
    with pytest.raises(TensorNotFoundError):
        PytorchReader.load_config(checkpoint, Facts, "nothing")


@dataclass
class Kinds:
    kind: str | None = None
    lr: float = 0.0


def test_a_value_that_cannot_be_represented_is_refused_where_it_is_wanted(checkpoint: bytes) -> None:
    with pytest.raises(ConfigError, match=r"kind: a torch\.float32, which is not plain data"):
        PytorchReader.load_config(checkpoint, Kinds, "optimizer_state_dict", ignore_extra=True)

    @dataclass
    class Rate:
        lr: float

    found = PytorchReader.load_config(checkpoint, Rate, "optimizer_state_dict", ignore_extra=True)
    assert found == Rate(0.5)


@pytest.mark.parametrize("container", ["zip", "legacy", "bare", "tar"])
def test_values_are_read_from_every_container(container: str) -> None:
    value = {"n": 3, "names": ["a", "b"]}
    data = {
        "zip": lambda: saved(value),
        "legacy": lambda: saved(value, **LEGACY),
        "bare": lambda: pickle.dumps(value, 2),
        "tar": lambda: tb.tar(pickle.dumps(value, 2), {}, {}),
    }[container]()
    assert PytorchReader.read_pickle_data(data) == value


def test_a_whole_model_shows_as_a_dict() -> None:
    data = saved({"model": torch.nn.Linear(2, 3)}, pickle_protocol=4)
    assert PytorchReader.from_bytes(data, top_level_key="model").keys() == ["weight", "bias"]
    assert list(PytorchReader.read_pickle_data(data, "model")) == ["weight", "bias"]
