"""Checkpoints of DeepSpeed ZeRO. The files are made here by its documented layout: deepspeed is not installed.

`zero_to_fp32`, which DeepSpeed writes beside a checkpoint, is the measure of the layout: stages 1 and 2 cut a group of
parameters, stage 3 each parameter.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.errors import BurnstoreError, CorruptError, UnsupportedError

RANKS = 3
SHAPES = {"a.weight": (4, 5), "a.bias": (4,), "b.weight": (2, 3, 2)}


def _parameters() -> dict[str, Any]:
    import torch

    return {
        name: torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape) + 100 * number
        for number, (name, shape) in enumerate(SHAPES.items())
    }


def _write(folder: Path, stage: int) -> None:
    import torch

    whole = _parameters()
    groups = [["a.weight", "a.bias"], ["b.weight"]]
    shapes = [OrderedDict((name, torch.Size(SHAPES[name])) for name in group) for group in groups]
    module = {name: (value.bfloat16() if stage < 3 else torch.zeros(0)) for name, value in whole.items()}
    module["running"] = torch.arange(3.0)
    state = {
        "module": module,
        "buffer_names": ["running"],
        "param_shapes": shapes,
        "shared_params": {"tied.weight": "a.weight"},
        "frozen_param_shapes": None,
        "ds_version": "0.15.0",
    }
    for rank in range(RANKS):
        if stage == 3:
            torch.save(state, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        parts = []
        for group in groups:
            if stage == 3:
                own = []
                for name in group:
                    flat, step = whole[name].flatten(), -(-whole[name].numel() // RANKS)
                    own.append(torch.nn.functional.pad(flat, (0, step * RANKS - len(flat)))[rank * step :][:step])
                parts.append(torch.cat(own))
            else:
                flat = torch.cat([whole[name].flatten() for name in group])
                flat = torch.nn.functional.pad(flat, (0, -len(flat) % (2 * RANKS)))
                step = len(flat) // RANKS
                parts.append(flat[rank * step : (rank + 1) * step].clone())
        optimizer = {
            "zero_stage": stage,
            "partition_count": RANKS if stage == 3 else [RANKS] * len(groups),
            ("fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"): parts,
        }
        torch.save({"optimizer_state_dict": optimizer}, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    if stage < 3:
        torch.save(state, folder / "mp_rank_00_model_states.pt")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_partitions_of_all_ranks_are_the_weights(stage: int, tmp_path: Path) -> None:
    _write(tmp_path, stage)
    with bs.open(tmp_path) as file:
        assert sorted(file) == ["a.bias", "a.weight", "b.weight", "running", "tied.weight"]
        for name, value in _parameters().items():
            assert file[name].numpy().tolist() == value.tolist() and file[name].dtype is bs.DType.F32
        assert file["a.weight"][1:3, 2:4].tolist() == _parameters()["a.weight"][1:3, 2:4].tolist()
        assert file["tied.weight"].numpy().tolist() == _parameters()["a.weight"].tolist()
        assert file["running"].numpy().tolist() == [0, 1, 2]
    bs.convert(tmp_path, tmp_path / "out.dcp")
    assert bs.verify(tmp_path / "out.dcp").ok


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_partition_alone_is_refused(stage: int, tmp_path: Path) -> None:
    _write(tmp_path, stage)
    path = tmp_path / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    with pytest.raises(UnsupportedError, match=f"partition of the flat parameters.*stage {stage}"):
        bs.convert(path, tmp_path / "out.safetensors")
    with bs.open(path) as file, pytest.raises(UnsupportedError, match="part of a tensor"):
        file.numpy()
    if stage == 3:
        path = tmp_path / "zero_pp_rank_1_mp_rank_00_model_states.pt"
        with pytest.raises(UnsupportedError, match=r"stage 3, \[0\] of \[4, 5\]"):
            bs.convert(path, tmp_path / "out.safetensors")
    else:  # the model's own weights are whole there
        bs.convert(tmp_path / "mp_rank_00_model_states.pt", tmp_path / "out.safetensors")


@pytest.mark.parametrize("stage", [4, [1], {}, None, True, "2"], ids=repr)
def test_a_stage_that_is_not_known_is_refused(stage: Any, tmp_path: Path) -> None:
    import torch

    _write(tmp_path, 2)
    for path in tmp_path.glob("bf16_zero*"):
        value = torch.load(path)
        value["optimizer_state_dict"]["zero_stage"] = stage
        torch.save(value, path)
    with pytest.raises(UnsupportedError, match="stages of ZeRO") as caught:
        bs.open(tmp_path)
    assert caught.value.rule == "PT-30"


def test_missing_and_wrong_partitions_are_refused(tmp_path: Path) -> None:
    import torch

    _write(tmp_path, 2)
    last = tmp_path / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"
    raw = last.read_bytes()
    last.unlink()
    with pytest.raises(CorruptError, match="2 ranks are there, the files state 3"):
        bs.open(tmp_path)
    state = torch.load(tmp_path / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt")
    state["optimizer_state_dict"]["single_partition_of_fp32_groups"][0] = torch.zeros(1)
    torch.save(state, last)
    with pytest.raises(CorruptError, match="elements"):
        bs.open(tmp_path)
    last.write_bytes(raw)
    (tmp_path / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CorruptError, match="partition of rank 1 is missing"):
        bs.open(tmp_path)
    (tmp_path / "zero_pp_rank_0_mp_rank_01_optim_states.pt").write_bytes(raw)
    with pytest.raises(BurnstoreError, match="tensor parallelism"):
        bs.open(tmp_path)
