"""The examples of every ``--help`` run as they stand, in a folder with files of the names that they use."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import burnstore as bs
from burnstore import nn
from burnstore.cli import main
from burnstore.cli.parser import VERBS
from burnstore.models.outline import OUTLINE_KEY
from burnstore.models.recording import FORWARD_KEY, Recording
from burnstore.stores.records import NamedMpkFileRecorder, NamedMpkGzFileRecorder, save_file
from jobs.test_migration import _adam, _scheduler

_NET = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.ModuleDict({"fc": torch.nn.Linear(6, 4)})
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.encoder["fc"](x).relu())
"""
_RULES = """\
source_layout = "torch"
target_layout = "burn"
tensors = [
    { source = "encoder.fc.weight", target = "encoder.fc.weight", transpose = true },
    { source = "encoder.fc.bias", target = "encoder.fc.bias" },
    { source = "head.weight", target = "head.weight", transpose = true },
    { source = "head.bias", target = "head.bias" },
]
"""
_UNLIKE_ANY = ("torchvision.models:resnet18",)  # a minute of torch: tests/interop builds skeletons of such models


def _examples() -> Iterator[tuple[str, str]]:
    """Yield each verb with each of its examples, without the remark beside it and what follows in a pipe."""
    for verb in VERBS:
        text = import_module(f"burnstore.cli.{verb}").EXAMPLES.partition("examples:\n")[2].partition("\n\n")[0]
        for line in text.splitlines():
            command = re.split(r"  +", line.strip())[0]
            if command.startswith('eval "$('):
                command = command[len('eval "$(') : -2]
            if command.startswith("burnstore ") and not any(word in command for word in _UNLIKE_ANY):
                yield verb, re.split(r" \| | > ", command)[0]


def _write_files(folder: Path) -> None:
    chance = np.random.default_rng(1)
    state = {
        "encoder.fc.weight": chance.normal(size=(4, 6)).astype("f4"),
        "encoder.fc.bias": chance.normal(size=4).astype("f4"),
        "head.weight": chance.normal(size=(2, 4)).astype("f4"),
        "head.bias": chance.normal(size=2).astype("f4"),
    }
    burn = {name: array.T.copy() if array.ndim == 2 else array for name, array in state.items()}
    (folder / "net.py").write_text(_NET)
    (folder / "rules.toml").write_text(_RULES)
    import torch

    config = {"model": {"layers": 2}}
    torch.save(
        {"state_dict": {"w": torch.ones(2)}, "my_config": config, "hyper_parameters": config}, folder / "checkpoint.pt"
    )
    shutil.copy(folder / "checkpoint.pt", folder / "checkpoint.ckpt")
    for name in ("model", "downloaded", "huge"):
        bs.save({**state}, folder / f"{name}.pt", layout="torch")
    bs.save(state, folder / "model.safetensors", metadata={"format": "pt"})
    bs.save(state, folder / "half.safetensors", cast="bf16", metadata={"format": "pt"})
    for part in ("encoder", "decoder"):
        bs.save({f"{part}.w": state["head.weight"]}, folder / f"{part}.pt", layout="torch")
        bs.save({f"{part}.w": state["head.weight"]}, folder / f"{part}.bpk", layout="burn")
    names = ("model", "before", "after", "a", "b", "base", "tuned", "trained")
    for at, name in enumerate(names):
        bs.save({key: array + at for key, array in burn.items()}, folder / f"{name}.bpk", layout="burn")
    for at, name in enumerate(("a", "b", "c", "new")):
        bs.save({key: array + at for key, array in state.items()}, folder / f"{name}.safetensors", layout="torch")
    bs.convert(folder / "new.safetensors", folder / "old.bpk", guess=True)
    for run in ("run1", "run2", "models", "checkpoints", "base", "adapter"):
        (folder / run).mkdir()
    for run in ("run1", "run2", "models", "checkpoints"):
        bs.save(burn, folder / run / "model.bpk", layout="burn")
    modules = {"": "Struct:Net", "encoder.fc": "Struct:Linear", "head": "Struct:Linear"}
    outline = {OUTLINE_KEY: json.dumps({"format": 1, "burn": "0.22.1", "modules": modules})}
    x = chance.normal(size=(5, 6)).astype("f4")
    hidden = np.maximum(x @ burn["encoder.fc.weight"] + burn["encoder.fc.bias"], 0)
    recording = Recording({"x": x}, {"output": hidden @ burn["head.weight"] + burn["head.bias"]})
    forward = {FORWARD_KEY: recording.to_text()}
    bs.save(burn, folder / "model.outline.bpk", metadata={**outline, **forward, "producer": "burn"})
    bs.save(burn, folder / "trained.bpk", metadata={**outline, **forward}, layout="burn", overwrite=True)
    bs.save(state, folder / "base" / "model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["fc"], "bias": "none"}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    lora = {"lora_A": np.ones((1, 6), "f4"), "lora_B": np.ones((4, 1), "f4")}
    named = {f"base_model.model.encoder.fc.{key}.weight": array for key, array in lora.items()}
    bs.save(named, folder / "adapter" / "adapter_model.safetensors", metadata={"format": "pt"})
    _write_records(folder)


def _write_records(folder: Path) -> None:
    model = nn.Linear(3, 2)
    (folder / "checkpoint").mkdir()
    save_file(model, folder / "model", NamedMpkGzFileRecorder())
    for name in ("model-3", "checkpoint/model-1"):
        save_file(model, folder / name, NamedMpkFileRecorder())
    _adam(folder / "optim-3.mpk", model)
    _adam(folder / "checkpoint" / "optim-1.mpk", model)
    _scheduler(folder / "scheduler-3.mpk", 12)
    (folder / "refactoring.toml").write_text('tensors = [{ source = "weight", target = "kernel" }]\n')


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    _write_files(folder)
    return folder


@pytest.mark.parametrize(("verb", "command"), list(_examples()), ids=lambda text: text.removeprefix("burnstore "))
def test_an_example_runs_as_it_stands(
    verb: str,
    command: str,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "files"
    shutil.copytree(files, folder)
    monkeypatch.chdir(folder)
    _, *arguments = shlex.split(command)
    if "model.bpk.receipt.json" in arguments:  # that of the conversion that the example is about
        (folder / "model.bpk").unlink()
        assert main(shlex.split("convert model.pt model.bpk --guess --receipt")) == 0
    for target in _targets(arguments):
        target.unlink(missing_ok=True)
    if arguments[:2] == ["convert", "--plan"]:  # a later step of the job that the first example compiles
        assert main(shlex.split("convert huge.pt huge.safetensors --plan job.json")) == 0
    if arguments[-1] == "--finish":
        assert main(shlex.split("convert --plan job.json --part 1/1")) == 0
    code = main([word for each in arguments for word in sorted(map(str, folder.glob(each))) or [each]])
    shown = capsys.readouterr()
    # 1 is a finding, such as a difference of the files here; 2 would be an error.
    assert code in (0, 1), shown.out + shown.err
    if arguments[-1] == "--finish":
        assert bs.diff("huge.pt", "huge.safetensors").equal
    elif "--plan" in arguments:
        assert code == 0 and Path("job.json").exists() and not Path("huge.safetensors").exists()


def _targets(arguments: list[str]) -> Iterator[Path]:
    """Yield the files that a command writes, which must not exist."""
    verb, *rest = arguments
    for option in ("-o", "--output"):
        if option in rest:
            yield Path(rest[rest.index(option) + 1])
    if verb in ("convert", "merge", "migrate"):
        positional = rest[: next((at for at, word in enumerate(rest) if word.startswith("--") and at), len(rest))]
        if not positional[-1].endswith("/"):
            yield Path(positional[-1])


def test_every_verb_has_examples() -> None:
    assert {verb for verb, _ in _examples()} == set(VERBS)
