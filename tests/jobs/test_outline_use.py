"""What the outline of a Burn model holds is used: its dtypes, and the hint to map."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import burnstore as bs
from burnstore.cli import main
from burnstore.errors import ModelError
from burnstore.models.outline import OUTLINE_KEY

_MODULES = {"": "Struct:Net", "fc": "Struct:Linear", "norm": "Struct:LayerNorm"}


def _files(
    folder: Path, dtype: str, outline_dtype: str, *, names: tuple[str, str] = ("fc", "norm")
) -> tuple[Path, Path]:
    linear, norm = names
    rng = np.random.default_rng(1)
    source = {f"{linear}.weight": rng.random((4, 3), np.float32), f"{norm}.weight": rng.random(4, np.float32)}
    source[f"{norm}.bias"] = rng.random(4, np.float32)
    bs.save(source, folder / "model.safetensors", metadata={"format": "pt"}, cast=dtype)
    target = {"fc.weight": np.zeros((3, 4), np.float32), "norm.gamma": np.ones(4, np.float32)}
    target["norm.beta"] = np.zeros(4, np.float32)
    metadata = {OUTLINE_KEY: json.dumps({"format": 1, "burn": "0.22.1", "modules": _MODULES})}
    bs.save(target, folder / "model.outline.bpk", metadata=metadata, layout="burn", cast=outline_dtype)
    return folder / "model.safetensors", folder / "model.outline.bpk"


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(("given", "wanted"), [("bf16", "f32"), ("f16", "f32"), ("f32", "bf16"), ("f32", "f32")])
def test_floats_get_the_dtype_of_the_outline_with_a_note(given: str, wanted: str, mapped: bool, tmp_path: Path) -> None:
    source, outline = _files(tmp_path, given, wanted)
    done = bs.convert(source, tmp_path / "model.bpk", like=outline, map=mapped)
    with bs.open(tmp_path / "model.bpk") as file:
        assert {str(file[name].dtype) for name in file} == {wanted.upper()}
    notes = [note for note in done.notes if note.kind == "cast"]
    assert [f"{given.upper()} → {wanted.upper()}" in note for note in notes] == ([True] if given != wanted else [])


def test_an_explicit_cast_is_obeyed(tmp_path: Path) -> None:
    source, outline = _files(tmp_path, "bf16", "f32")
    bs.convert(source, tmp_path / "model.bpk", like=outline, cast="f16")
    with bs.open(tmp_path / "model.bpk") as file:
        assert {str(file[name].dtype) for name in file} == {"F16"}


def test_a_number_that_the_outline_cannot_hold_is_refused(tmp_path: Path) -> None:
    _, outline = _files(tmp_path, "f32", "f16")
    large = {"fc.weight": np.full((4, 3), 1e6, np.float32), "norm.weight": np.ones(4, np.float32)}
    large["norm.bias"] = np.ones(4, np.float32)
    bs.save(large, tmp_path / "large.safetensors", metadata={"format": "pt"})
    with pytest.raises(bs.errors.DTypeError):
        bs.convert(tmp_path / "large.safetensors", tmp_path / "large.bpk", like=outline)
    assert not (tmp_path / "large.bpk").exists()


def test_a_source_with_other_names_is_told_about_the_mapping(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, outline = _files(tmp_path, "f32", "f32", names=("dense", "ln"))
    with pytest.raises(ModelError) as caught:
        bs.convert(source, tmp_path / "model.bpk", like=outline)
    assert "map=True" in str(caught.value.hint)
    assert main(["convert", str(source), str(tmp_path / "model.bpk"), "--like", str(outline)]) == 2
    assert "--map" in capsys.readouterr().err
    done = bs.convert(source, tmp_path / "model.bpk", like=outline, map=True)
    assert (done.verified, done.mapping) == (True, "verified copy")


def test_the_command_line_says_verified_copy_of_a_mapped_conversion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, outline = _files(tmp_path, "f32", "f32")
    command = ["convert", str(source), str(tmp_path / "model.bpk"), "--like", str(outline)]
    assert main(command) == 0
    assert ", verified\n" in capsys.readouterr().out
    assert main([*command, "--map", "--overwrite"]) == 0
    assert ", verified copy" in capsys.readouterr().out


def _with_mask(outline: Path) -> None:
    with bs.open(outline) as file:
        tensors = {name: file[name].numpy(copy=True) for name in file}
        metadata = dict(file.metadata)
    tensors["mask"] = np.triu(np.full((5, 5), -np.inf, np.float32), 1)
    bs.save(tensors, outline, metadata=metadata, layout="burn", overwrite=True)


@pytest.mark.parametrize("options", [{}, {"map": True}])
def test_the_outline_fills_what_the_source_lacks(options: dict[str, bool], tmp_path: Path) -> None:
    source, outline = _files(tmp_path, "f32", "f32")
    _with_mask(outline)
    with pytest.raises(ModelError, match="mask"):
        bs.convert(source, tmp_path / "model.bpk", like=outline, **options)
    done = bs.convert(source, tmp_path / "model.bpk", like=outline, missing="outline", **options)
    assert [note.subject for note in done.notes if note.kind == "filled"] == ["mask"]
    with bs.open(tmp_path / "model.bpk") as file, bs.open(outline) as wanted, bs.open(source) as given:
        assert file["mask"].to_bytes() == wanted["mask"].to_bytes()
        np.testing.assert_array_equal(file["fc.weight"].numpy(), given["fc.weight"].numpy().T)
        assert list(file) == sorted(wanted) or set(file) == set(wanted)


def test_values_of_the_outline_are_taken_only_where_they_are_asked_for(tmp_path: Path) -> None:
    source, outline = _files(tmp_path, "f32", "f32")
    with pytest.raises(ValueError, match="needs like"):
        bs.convert(source, tmp_path / "a.bpk", missing="outline", guess=True)
    with pytest.raises(ValueError, match="no receipt"):
        bs.convert(source, tmp_path / "a.bpk", like=outline, missing="outline", receipt=True)
    with pytest.raises(ModelError, match="like is none"):
        bs.convert(source, tmp_path / "a.safetensors", like=source, missing="outline")
    assert main(["convert", str(source), str(tmp_path / "a.bpk"), "--like", str(outline), "--missing", "outline"]) == 0
