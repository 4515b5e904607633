"""Files and folders that people have: every function takes the same things, and says what it looked for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs

torch = pytest.importorskip("torch")


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def training_files(folder: Path) -> None:
    torch.save({"lr": 0.1}, folder / "training_args.bin")
    torch.save({"state": {0: torch.zeros(2)}}, folder / "optimizer.pt")
    torch.save({"x": torch.zeros(2)}, folder / "rng_state.pth")
    (folder / "config.json").write_text('{"model_type": "x"}')


def bin_file(folder: Path) -> Path:
    torch.save(model().state_dict(), folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


def bin_folder(folder: Path) -> Path:
    bin_file(folder)
    training_files(folder)
    return folder


def bin_index(folder: Path) -> Path:
    names, weight_map = list(model().state_dict()), {}
    for number, part in enumerate((names[:4], names[4:]), 1):
        file = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save({name: model().state_dict()[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}, indent=2))
    training_files(folder)
    return index


def bin_shards_without_index(folder: Path) -> Path:
    bin_index(folder).unlink()
    return folder


def safetensors_folder(folder: Path) -> Path:
    bs.save(model(), folder / "model.safetensors")
    training_files(folder)
    return folder


def both_formats(folder: Path) -> Path:
    bin_file(folder)
    return safetensors_folder(folder)


def component_of_diffusers(folder: Path) -> Path:
    (folder / "unet").mkdir()
    bs.save(model(), folder / "unet" / "diffusion_pytorch_model.safetensors")
    (folder / "model_index.json").write_text("{}")
    return folder / "unet"


def burnpack_folder(folder: Path) -> Path:
    bs.save(model(), folder / "model.bpk")
    return folder


def lightning(folder: Path) -> Path:
    adam = torch.optim.Adam(made := model().parameters())
    del made
    torch.save(
        {
            "epoch": 3,
            "pytorch-lightning_version": "2.5.0",
            "state_dict": model().state_dict(),
            "optimizer_states": [adam.state_dict()],
            "hyper_parameters": {"lr": 0.1},
        },
        folder / "last.ckpt",
    )
    return folder / "last.ckpt"


def wrapped(folder: Path) -> Path:
    torch.save({f"module._orig_mod.{name}": t for name, t in model().state_dict().items()}, folder / "ddp.pt")
    return folder / "ddp.pt"


def hub_snapshot(folder: Path) -> Path:
    """Return a folder of the Hugging Face hub's cache: every file is a link into the folder of blobs."""
    for name in ("blobs", "snapshots/0a1b", "plain"):
        (folder / "models--org--net" / name).mkdir(parents=True)
    bin_index(folder / "models--org--net" / "plain")
    for file in (folder / "models--org--net" / "plain").iterdir():
        blob = file.rename(folder / "models--org--net" / "blobs" / f"sha-{file.name}".replace(".", "-"))
        (folder / "models--org--net" / "snapshots" / "0a1b" / file.name).symlink_to(f"../../blobs/{blob.name}")
    return folder / "models--org--net" / "snapshots" / "0a1b"


KINDS = [bin_file, bin_folder, bin_index, bin_shards_without_index, safetensors_folder, both_formats]
KINDS += [component_of_diffusers, burnpack_folder, lightning, wrapped]
KINDS += [hub_snapshot] if os.name == "posix" else []

VERBS: dict[str, Callable[[Path, Path], Any]] = {
    "open": lambda source, _: bs.open(source).close(),
    "load": lambda source, _: bs.load(model(), source),
    "inspect": lambda source, _: bs.inspect(source, stats=True),
    "verify": lambda source, _: bs.verify(source),
    "convert": lambda source, out: bs.convert(source, out / "x.bpk", like=model()),
    "explain": lambda source, _: bs.explain(source, model()),
    "diff": lambda source, _: bs.diff(source, source),
    "merge": lambda source, out: bs.merge([source], out / "y.safetensors", keep_layout=True),
    "report": lambda source, _: bs.report(source),
    "scan": lambda source, _: bs.scan(source),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_function_takes_every_kind(tmp_path: Path, kind: Callable[[Path], Path], verb: str) -> None:
    (tmp_path / "in").mkdir()
    result = VERBS[verb](kind(tmp_path / "in"), tmp_path)
    if verb == "load":
        assert len(result.applied) == 9 and not result.missing
    if verb == "verify" and result.files == ():
        assert result.is_whole
    if verb == "scan":
        assert result.is_clean, [(file.path, file.verdict, str(file.error)) for file in result.files]
    if verb == "convert":
        other = model()
        for tensor in other.state_dict().values():
            tensor.zero_()
        bs.load(other, tmp_path / "x.bpk")
        assert all(torch.equal(a, b) for a, b in zip(model().parameters(), other.parameters(), strict=True))


def test_shards_of_torch_are_one_checkpoint(tmp_path: Path) -> None:
    with bs.open(bin_index(tmp_path)) as f:
        assert f.format == "pytorch" and f.variant == "2 shards" and len(f) == 9
        for name, tensor in model().state_dict().items():
            assert torch.equal(f[name].torch(), tensor), name
        assert Path(f.file_of("2.weight")).name == "pytorch_model-00002-of-00002.bin"
        assert torch.equal(f.torch()["1.num_batches_tracked"], torch.tensor(0))
    (tmp_path / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(bs.errors.CorruptError, match="is missing"):
        bs.open(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="links need rights there")
def test_links_of_the_hub_are_followed_into_its_cache_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from burnstore.cli import main

    snapshot = hub_snapshot(tmp_path)
    with bs.open(snapshot) as f:
        assert Path(f.file_of("2.weight")) == snapshot / "pytorch_model-00002-of-00002.bin"
    with pytest.raises(bs.errors.ReadError, match="there are some in models--org--net/snapshots/0a1b"):
        bs.open(tmp_path)
    (tmp_path / "other.bin").write_bytes((snapshot / "optimizer.pt").read_bytes())
    (snapshot / "other.bin").symlink_to(tmp_path / "other.bin")
    (snapshot / "gone.bin").symlink_to("../../blobs/gone")
    found = {Path(file.path).name: file for file in bs.scan(snapshot).files}
    assert [name for name, file in found.items() if not file.is_clean] == ["gone.bin", "other.bin"]
    assert str(tmp_path / "other.bin") in str(found["other.bin"].error)
    assert main(["inspect", str(snapshot / "gone.bin")]) == 2
    shown = capsys.readouterr().err
    assert "a link to a file that does not exist" in shown and "blobs/gone" in shown and "did you mean" not in shown


def test_a_folder_without_a_checkpoint_lists_what_was_looked_for(tmp_path: Path) -> None:
    training_files(tmp_path)
    for verb in ("open", "load", "inspect", "convert", "explain", "diff", "merge", "report"):
        with pytest.raises(bs.errors.ReadError, match=r"looked for \*.safetensors.index.json, .*\*.bin.*\*.bpk"):
            VERBS[verb](tmp_path, tmp_path)


def test_a_distributed_checkpoint_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from burnstore.cli import main

    (tmp_path / ".metadata").write_bytes(b"\x80\x04}.")
    (tmp_path / "__0_0.distcp").write_bytes(b"PK\x03\x04")
    for verb in ("open", "load", "inspect", "convert", "explain", "diff", "merge", "report"):
        for path, problem in ((tmp_path, "metadata.Metadata, got dict"), (tmp_path / "__0_0.distcp", "part of a")):
            with pytest.raises(bs.errors.UnsupportedError, match=problem) as caught:
                VERBS[verb](path, tmp_path)
            assert "dcp_to_torch" not in str(caught.value)  # it runs whatever is in the files
    assert main(["inspect", str(tmp_path)]) == 2
    assert "DC-02" in capsys.readouterr().err
    assert main(["verify", str(tmp_path)]) != 0
    bs.save({"a": np.zeros(1)}, tmp_path / "model.safetensors")  # of a trainer that writes both
    with bs.open(tmp_path) as f:
        assert list(f) == ["a"]


def test_a_pipeline_of_diffusers_names_its_models(tmp_path: Path) -> None:
    component_of_diffusers(tmp_path)
    (tmp_path / "vae").mkdir()
    bin_file(tmp_path / "vae")
    (tmp_path / "tokenizer").mkdir()
    for verb in ("open", "load", "inspect", "convert", "explain", "diff", "merge", "report"):
        with pytest.raises(bs.errors.ReadError, match="there are some in unet, vae") as caught:
            VERBS[verb](tmp_path, tmp_path)
        assert str(tmp_path / "unet") in str(caught.value)


def test_two_models_in_a_folder_are_refused(tmp_path: Path) -> None:
    torch.save(model().state_dict(), tmp_path / "a.pt")
    torch.save(model().state_dict(), tmp_path / "b.pt")
    with pytest.raises(bs.errors.ReadError, match=r"2 \*\.pt files and no index: a\.pt, b\.pt"):
        bs.open(tmp_path)


def test_a_part_of_a_training_checkpoint(tmp_path: Path) -> None:
    net = model()
    adam = torch.optim.Adam(net.parameters())
    net(torch.ones(2, 3)).sum().backward()
    adam.step()
    ema = {name: tensor + 1 for name, tensor in net.state_dict().items()}
    file = tmp_path / "a.pt"
    torch.save({"model": net.state_dict(), "ema": ema, "optimizer": adam.state_dict(), "step": 7}, file)
    assert (
        "choose one with top_level_key=, the number of tensors in each: model (9), ema (9)" in bs.inspect(file).notes[0]
    )
    assert "state.0.exp_avg" in [row.name for row in bs.inspect(file, top_level_key="optimizer").tensors]
    assert any(row.name == "optimizer.state.0.exp_avg" for row in bs.verify(file).tensors)
    bs.convert(file, tmp_path / "ema.safetensors", top_level_key="ema")
    with bs.open(tmp_path / "ema.safetensors") as f:
        assert torch.equal(f["0.weight"].torch(), ema["0.weight"])
    assert not bs.diff(file, tmp_path / "ema.safetensors").is_equal
    bs.convert(file, tmp_path / "all.safetensors", top_level_key="", keep_layout=True)
    assert bs.diff(file, tmp_path / "all.safetensors", top_level_key="ema").is_equal
    assert bs.load(net, tmp_path / "all.safetensors", top_level_key="ema").missing == []
    source = bs.MergeSource(tmp_path / "all.safetensors", top_level_key="model")
    mean = tmp_path / "mean.safetensors"
    bs.merge([source, tmp_path / "ema.safetensors"], mean, method="linear", t=0.5, conflicts="first")
    with bs.open(mean) as f:
        assert np.allclose(f["0.bias"].numpy(), ema["0.bias"].numpy() - 0.5)
    assert bs.report(file, top_level_key="optimizer").files[0].inspection.total.tensors > 6
    assert bs.explain(file, net, top_level_key="ema").to_dict()


def test_a_load_of_an_unclear_part_asks_for_the_key(tmp_path: Path) -> None:
    state = {f"a_long_name_of_a_model_with_{number}": torch.ones(1) for number in range(2)}
    parts = {
        "state_dict": model().state_dict(),
        "ema": model().state_dict(),
        **{f"more_{at}": state for at in range(9)},
    }
    torch.save(parts, tmp_path / "a.pt")
    with pytest.raises(bs.errors.MissingTensorsError) as caught:
        bs.load(model(), tmp_path / "a.pt")
    assert "choose one with top_level_key=" in (caught.value.hint or "") and "characters)" not in str(caught.value)
    assert bs.load(model(), tmp_path / "a.pt", top_level_key="ema").is_complete


@pytest.mark.parametrize("suffix", [".bpk", ".safetensors", ".npz"])
def test_a_key_is_a_prefix_in_formats_without_parts(tmp_path: Path, suffix: str) -> None:
    tensors = {"ema.w": np.ones(2), "ema.b": np.zeros(1), "model.w": np.zeros(2)}
    bs.save(tensors, tmp_path / f"a{suffix}", layout="torch")
    with bs.open(tmp_path / f"a{suffix}", top_level_key="ema") as f:
        assert sorted(f) == ["b", "w"] and f["w"].numpy().tolist() == [1.0, 1.0]
        assert "left out because not below the key 'ema': 1 tensor" in f.notes
    with pytest.raises(bs.errors.TensorNotFoundError, match=r"there are, .*: ema \(2\), model \(1\)"):
        bs.open(tmp_path / f"a{suffix}", top_level_key="optimizer")


def test_a_wrapper_is_stripped_only_if_the_model_fits_so(tmp_path: Path) -> None:
    done = bs.convert(wrapped(tmp_path), tmp_path / "a.bpk", like=model())
    assert any("stripped the wrapper" in note for note in done.notes)
    assert any("stripped the wrapper" in note for note in bs.load(model(), tmp_path / "ddp.pt").notes)
    with pytest.raises(bs.errors.ModelError):
        bs.convert(tmp_path / "ddp.pt", tmp_path / "b.bpk", like=torch.nn.Linear(2, 2))


def test_arguments_in_the_wrong_order_are_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="load takes the model first"):
        bs.load(str(tmp_path / "a.pt"), model())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="save takes the model first"):
        bs.save(tmp_path / "a.pt", model())


def test_notes_on_the_screen_have_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from burnstore.cli import main

    torch.save({"model": model().state_dict(), "ema": model().state_dict()}, tmp_path / "a.pt")
    assert main(["inspect", str(tmp_path / "a.pt")]) == 0
    shown = capsys.readouterr().out
    assert "choose one with --top-level-key" in shown and "top_level_key=" not in shown
    torch.save({f"net.{name}": tensor for name, tensor in model().state_dict().items()}, tmp_path / "b.pt")
    assert main(["explain", str(tmp_path / "b.pt"), "--into", f"{__name__}:model"]) == 1
    assert r"take it away with --rename '^net\.=>'" in capsys.readouterr().out
