"""Records of real Burn: every file of every release is read equal to what Burn says it holds, and written as it was."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from record_models import MODELS, VERSIONS, declared

import burnstore as bs
from burnstore.formats.record.reader import is_record
from burnstore.limits import Limits
from burnstore.stores.records import (
    BinFileRecorder,
    BinGzFileRecorder,
    DoublePrecisionSettings,
    FullPrecisionSettings,
    HalfPrecisionSettings,
    JsonGzFileRecorder,
    NamedMpkFileRecorder,
    NamedMpkGzFileRecorder,
    PrettyJsonFileRecorder,
    load_file,
    open_record,
    save_file,
)
from burnstore.testing import CountingSource

FIXTURES = Path(__file__).parents[1] / "fixtures" / "records"
FILES = sorted(path for path in FIXTURES.glob("*/*.*.*.*") if not path.name.endswith(".expected.json"))
RECORDERS = {
    "namedmpk": NamedMpkFileRecorder,
    "namedmpkgz": NamedMpkGzFileRecorder,
    "bin": BinFileRecorder,
    "bingz": BinGzFileRecorder,
    "jsongz": JsonGzFileRecorder,
    "prettyjson": PrettyJsonFileRecorder,
}
SETTINGS = {
    "full": FullPrecisionSettings,
    "half": HalfPrecisionSettings,
    "double": DoublePrecisionSettings,
}


def parts(path: Path) -> tuple[str, str, str, str]:
    """Version, model, recorder, precision."""
    model, recorder, precision = path.name.split(".")[:3]
    return path.parent.name, model, recorder, precision


def expected(path: Path) -> dict[str, dict[str, Any]]:
    version, model, _, precision = parts(path)
    document = json.loads((FIXTURES / version / f"{model}.expected.json").read_text())
    return {each["path"]: {"id": each["id"], **each["stored"][precision]} for each in document["tensors"]}


def facts(tensor: bs.TensorSnapshot) -> tuple[str, list[int], str]:
    return tensor.dtype.name, list(tensor.shape), hashlib.sha256(tensor.to_bytes()).hexdigest()


def expected_facts(each: dict[str, Any]) -> tuple[str, list[int], str]:
    name = each["dtype"]
    dtype = "QFloat" if name.startswith("QFloat") else bs.DType.parse(name).name
    return dtype, each["shape"], each["sha256"]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def of(version: str, model: str, recorder: str, precision: str) -> Path:
    [found] = (FIXTURES / version).glob(f"{model}.{recorder}.{precision}.*")
    return found


def test_the_files_are_all_here() -> None:
    assert len(FILES) == 323
    assert {parts(path)[0] for path in FILES} == set(VERSIONS)
    assert {parts(path)[1] for path in FILES} == set(MODELS)
    assert {parts(path)[2] for path in FILES} == set(RECORDERS)


def options(path: Path) -> dict[str, Any]:
    version, model, recorder, precision = parts(path)
    if recorder.startswith("bin") or (version == "0.13.2" and precision == "half" and model != "adam"):
        return {"like": declared(model, version)}
    return {"undecided": "F16"} if version == "0.13.2" and precision == "half" else {}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_record_of_real_burn_holds_what_burn_says(path: Path) -> None:
    version, model, _, _ = parts(path)
    wanted = expected(path)
    with bs.open(path, **options(path)) as f:
        assert f.format == "record"
        assert f.layout == "burn"
        assert f.metadata["version"] == version
        assert {name: facts(tensor) for name, tensor in f.items()} == {
            name: expected_facts(each) for name, each in wanted.items()
        }
        if model != "adam":  # the order of a HashMap is random
            assert list(f) == list(wanted)
            numbers = {name: None if f[name].param_id is None else str(f[name].param_id) for name in f}
            ids = {name: each["id"] for name, each in wanted.items()}
            assert numbers == (dict.fromkeys(ids) if version == "0.13.2" else ids)
        arrays = f.numpy()
        assert all(arrays[name].shape == tuple(each["shape"]) for name, each in wanted.items())


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name == "0.21.0"], ids=name_of)
def test_a_record_that_is_written_as_it_was_read_has_the_bytes_of_burn(path: Path, tmp_path: Path) -> None:
    _, model, recorder, precision = parts(path)
    ours = RECORDERS[recorder](SETTINGS[precision])
    with ours.load(path, like=declared(model, "0.21.0") if recorder.startswith("bin") else None) as record:
        ours.record(record, tmp_path / path.name, durable=False)
    written, real = (tmp_path / path.name).read_bytes(), path.read_bytes()
    if recorder.endswith("gz"):  # how deflate packs is left to its implementation; what it packs is not
        assert written[:10] == real[:10]
        written, real = gzip.decompress(written), gzip.decompress(real)
    assert written == real


def _crossings() -> Iterator[Any]:
    for model in MODELS[:-2]:
        for recorder in ("namedmpk", "prettyjson", "bin"):
            for precision in SETTINGS:
                yield pytest.param(model, recorder, precision, id=f"{model}-{recorder}-{precision}")


@pytest.mark.parametrize(("model", "recorder", "precision"), list(_crossings()))
def test_converting_the_precision_gives_the_bytes_that_burn_gives(
    model: str, recorder: str, precision: str, tmp_path: Path
) -> None:
    real = of("0.21.0", model, recorder, precision)
    source = of("0.21.0", model, "namedmpk", "double")
    with open_record(source) as record:
        RECORDERS[recorder](SETTINGS[precision]).record(
            record, tmp_path / real.name, like=declared(model, "0.21.0"), durable=False
        )
    assert (tmp_path / real.name).read_bytes() == real.read_bytes()


@pytest.mark.parametrize("model", ["tiny", "nested", "constants", "quant_block"])
@pytest.mark.parametrize("recorder", ["namedmpk", "prettyjson", "bin"])
def test_a_model_loaded_and_saved_again_has_the_bytes_of_burn(model: str, recorder: str, tmp_path: Path) -> None:
    real = of("0.21.0", model, recorder, "full")
    ours = RECORDERS[recorder]()
    instance = declared(model, "0.21.0")
    assert load_file(instance, real, ours).is_success()
    save_file(instance, tmp_path / real.name, ours, durable=False)
    assert (tmp_path / real.name).read_bytes() == real.read_bytes()


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_every_release_load_into_one_model(version: str) -> None:
    model = declared("basic", version)
    path = of(version, "basic", "bin", "full")
    result = load_file(model, path, BinFileRecorder())
    assert result.is_success() and not result.unused
    wanted = expected(of(version, "basic", "namedmpk", "full"))
    found = {tensor.path: facts(tensor) for tensor in bs.collect(model)}
    assert found == {name: expected_facts(each) for name, each in wanted.items()}


def test_the_place_of_a_layer_that_moved_is_found(tmp_path: Path) -> None:
    """InstanceNorm of Burn 0.13 kept its parameters in a GroupNorm."""
    import msgpack

    tensor = {"value": [1.5, 2.5], "shape": [2]}
    norm = {"group_norm": {name: {"id": UUID, "param": tensor} for name in ("gamma", "beta")}}
    item = {"norm": norm}
    (tmp_path / "old.mpk").write_bytes(
        msgpack.packb({"metadata": heading("0.13.2"), "item": item, "_b": []}, use_single_float=True)
    )
    model = bs.nn.Module()
    model.norm = bs.nn.InstanceNorm(2)
    assert load_file(model, tmp_path / "old", NamedMpkFileRecorder()).applied == ["norm.gamma", "norm.beta"]
    assert model.norm.beta.value.tolist() == [1.5, 2.5]


UUID = "00000000-0000-4000-8000-000000000001"


def heading(version: str = "0.21.0") -> dict[str, str]:
    recorder = "burn_core::record::file::NamedMpkFileRecorder<burn_core::record::settings::FullPrecisionSettings>"
    return {"float": "f32", "int": "i32", "format": recorder, "version": version, "settings": "FullPrecisionSettings"}


def test_opening_reads_the_places_of_tensors_and_not_their_bytes(tmp_path: Path) -> None:
    model = bs.nn.Module()
    model.large = bs.nn.Linear(1024, 512)
    model.small = bs.nn.Linear(2, 2)
    save_file(model, tmp_path / "m", NamedMpkFileRecorder(), durable=False)
    data = (tmp_path / "m.mpk").read_bytes()
    source = CountingSource(data)
    with bs.Checkpoint(source, None, Limits(), {}) as f:
        assert source.bytes_read < 100_000 < len(data)
        source.forget()
        assert f["small.bias"].numpy().shape == (2,)
        assert source.bytes_read == 8
        source.forget()
        assert f["large.weight"][3].shape == (512,)
        assert source.bytes_read == 2048


def test_with_zero_copy_tensors_are_views_on_the_file() -> None:
    path = of("0.21.0", "tiny", "namedmpk", "full")
    with bs.open(path, zero_copy=True) as f:
        weight = f["fc.weight"].numpy()
        assert not weight.flags.owndata and not weight.flags.writeable
        assert weight.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("recorder", RECORDERS)
def test_the_bytes_decide_and_not_the_name(recorder: str, tmp_path: Path) -> None:
    path = of("0.21.0", "tiny", recorder, "full")
    for name in ("a.json", "a.bin", "a.mpk.gz", "a.safetensors", "pytorch_model.bin", "nothing"):
        other = tmp_path / name
        other.write_bytes(path.read_bytes())
        with bs.open(other, like=declared("tiny", "0.21.0")) as f:
            assert (f.format, list(f)) == ("record", ["fc.weight", "fc.bias"])


@pytest.mark.parametrize("content", ["{}", "[]", '{"metadata": {"total_size": 1}, "weight_map": {}}', '{"a": 1}', " "])
def test_other_json_is_no_record(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(bs.errors.FormatError):
        bs.open(path, format="record")
    assert not is_record(content.encode())


def test_a_pytorch_file_called_bin_is_not_a_record(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    with bs.open(tmp_path / "pytorch_model.bin") as f:
        assert f.format == "pytorch"
    with pytest.raises(bs.errors.UnknownFormatError) as caught:
        BinFileRecorder().load(tmp_path / "pytorch_model.bin")
    assert caught.value.rule == "BR-01"


@pytest.mark.parametrize("version", VERSIONS[1:])
@pytest.mark.parametrize("model", ["tiny", "basic", "nested", "enums", "constants"])
def test_without_a_declaration_a_binary_record_shows_its_tensors_in_order_and_says_it_is_nameless(
    version: str, model: str
) -> None:
    """BR-18"""
    path = of(version, model, "bin", "half")
    wanted = list(expected(path).values())
    with bs.open(path) as f:
        assert f.variant.endswith("nameless")
        assert any("no names" in note for note in f.notes)
        assert list(f) == [f"tensor_{number}" for number in range(len(wanted))]
        assert [facts(tensor) for tensor in f.values()] == [expected_facts(each) for each in wanted]
        assert [str(tensor.param_id) for tensor in f.values()] == [each["id"] for each in wanted]


def test_a_quantized_tensor_is_found_without_a_declaration() -> None:
    path = of("0.21.0", "quant_block", "bin", "full")
    with bs.open(path) as f:
        assert [facts(tensor) for tensor in f.values()] == [expected_facts(each) for each in expected(path).values()]


@pytest.mark.parametrize(("version", "model"), [("0.13.2", "tiny"), ("0.16.1", "adam"), ("0.21.0", "adam")])
def test_a_binary_record_that_a_scan_cannot_tell_is_refused_with_the_way_out(version: str, model: str) -> None:
    with pytest.raises(bs.errors.UnsupportedError) as caught:
        bs.open(of(version, model, "bin", "full"))
    assert caught.value.rule == "BR-18"
    assert "like=" in str(caught.value)


def test_constants_are_what_is_no_tensor() -> None:
    with bs.open(of("0.16.1", "basic", "namedmpk", "full")) as f:
        assert f.constants["conv.stride"] == [None, None]
        assert f.constants["bn.epsilon"] is None
        assert f.constants["dropout"] is None
        assert set(f.constants).isdisjoint(f)
    with bs.open(of("0.21.0", "adam", "namedmpk", "full")) as f:
        times = {path: value for path, value in f.constants.items() if path.endswith(".time")}
        assert len(times) == 2 and set(times.values()) == {2}
    with bs.open(of("0.21.0", "enums", "jsongz", "full")) as f:
        assert f.constants["plain.Plain"] is None
        assert "blocks.3.Plain" in f.constants


@pytest.mark.parametrize("recorder", ["namedmpk", "namedmpkgz", "prettyjson", "jsongz"])
def test_checkpoints_and_snapshots_can_be_pickled(recorder: str) -> None:
    with bs.open(of("0.21.0", "basic", recorder, "full")) as f:
        with pickle.loads(pickle.dumps(f)) as again:
            assert again["conv.weight"].to_bytes() == f["conv.weight"].to_bytes()
        snapshot = pickle.loads(pickle.dumps(f["conv.weight"]))
        assert snapshot.to_bytes() == f["conv.weight"].to_bytes()
        snapshot._data.source.close()


def test_a_closed_checkpoint_reads_no_more() -> None:
    for recorder in ("namedmpk", "namedmpkgz", "prettyjson"):
        f = bs.open(of("0.21.0", "tiny", recorder, "full"))
        snapshot = f["fc.weight"]
        f.close()
        with pytest.raises(bs.errors.ClosedError):
            snapshot.numpy()


def test_a_half_record_of_0_13_says_where_floats_and_integers_cannot_be_told_apart() -> None:
    """BR-13"""
    path = of("0.13.2", "basic", "namedmpk", "half")
    with pytest.raises(bs.errors.UnsupportedError, match="could be either") as caught:
        bs.open(path)
    assert caught.value.rule == "BR-13" and caught.value.tensor is not None
    with bs.open(path, undecided="F16") as f:
        assert {str(tensor.dtype) for tensor in f.values()} == {"F16"}
    with bs.open(path, like=declared("basic", "0.13.2")) as f:
        assert {str(tensor.dtype) for tensor in f.values()} == {"F16"}
