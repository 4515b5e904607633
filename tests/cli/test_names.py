"""Names in narrow columns: what tells them apart stays; notes that are alike are shown once."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from terminal import in_terminal, run_here

import burnstore as bs
from burnstore.cli.errors import group_notes
from burnstore.cli.names import readable_width, shorten_names

PARTS = ("attention.query_projection", "attention.key_projection", "attention.output", "mlp.gate", "mlp.down", "norm1")
NAMES = [
    f"model.text_encoder.transformer_layers.{layer}.{part}.{last}"
    for layer in range(112)
    for part in PARTS
    for last in ("weight", "bias")
] + ["model.text_encoder.embeddings.word_embeddings.weight", "lm_head.weight"]


@pytest.mark.parametrize("room", [60, 45, 38, 32])
def test_shortened_names_fit_stay_different_and_keep_their_numbers(room: int) -> None:
    shown = shorten_names(NAMES, room)
    assert max(map(len, shown)) <= room
    assert len(set(shown)) == len(NAMES)
    for name, short in zip(NAMES, shown, strict=True):
        assert re.findall("[0-9]+", short) == re.findall("[0-9]+", name)


def test_names_that_differ_in_numbers_are_cut_alike() -> None:
    shown = shorten_names(NAMES, 36)
    patterns = {re.sub("[0-9]+", "#", short) for short in shown[: 112 * 12]}
    assert len(patterns) == 12


def test_names_that_fit_are_not_changed_and_no_room_is_survived() -> None:
    assert shorten_names(NAMES, 200) == NAMES
    assert [len(short) for short in shorten_names(NAMES, 5)] == [5] * len(NAMES)
    assert shorten_names([], 3) == [] and readable_width([]) == 0


def test_similar_segments_keep_what_differs_at_their_end() -> None:
    names = [f"block.self_attention_with_bias_{part}.weight" for part in ("query", "key", "value")]
    assert shorten_names(names, 20) == ["block.…_query.weight", "block.…as_key.weight", "block.…_value.weight"]


def test_wide_characters_fit_in_cells() -> None:
    names = [f"模型.编码器的一个很长的部分.{at}.权重" for at in range(3)]
    from burnstore.cli.text import width

    shown = shorten_names(names, 24)
    assert all(width(short) <= 24 for short in shown) and len(set(shown)) == 3


def test_an_80_column_table_shows_layers_and_leaves_empty_columns_out(tmp_path: Path) -> None:
    values = np.zeros((2, 2), np.float32)
    bs.save(dict.fromkeys(NAMES[:300], values), tmp_path / "model.safetensors", durable=False)
    out, code = in_terminal(80, "inspect", tmp_path / "model.safetensors", env={"NO_COLOR": "1"})
    table = out[out.index("NAME") :].splitlines()
    assert code == 0 and "PARAM ID" not in table[0] and "SHARD" not in table[0]
    names = [line.split()[0] for line in table[1:301]]
    assert len(set(names)) == 300 and all(len(line) <= 80 for line in table[:301])
    assert ".24." in out and ".weight" in out


def test_columns_are_chosen_and_ordered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.bpk"
    bs.save({"a": np.arange(6, dtype=np.float32).reshape(2, 3)}, path, durable=False)
    code, out, _ = run_here(capsys, "inspect", path, "--columns", "shape,Name, max,elements")
    assert code == 0 and out.split("\n\n")[1] == "SHAPE  NAME  MAX  ELEMENTS\n[2,3]  a       5         6\n"
    code, _, err = run_here(capsys, "inspect", path, "--columns", "name,colour")
    assert code == 2 and "'colour' is not a column; the columns are name, dtype" in err
    code, _, err = run_here(capsys, "inspect", path, "--columns", "name", "--tree")
    assert code == 2 and "--columns applies to the table" in err


def test_notes_that_differ_in_names_and_numbers_are_shown_once() -> None:
    notes = [f"'layers.{at}.w' is tied to 'embed' and gets its values" for at in range(40)]
    notes += ["copied unchanged, modules of class Foo of unknown kind: 'a'", "of class Bar of unknown kind: 'b'"]
    assert group_notes(notes) == [f"{notes[0]} (and 39 more like this)", *notes[40:]]


def test_of_a_tensor_that_moved_both_names_are_shortened() -> None:
    names = ["module.layer.0.weight -> _orig_mod.layer.0.weight", "module.layer.1.weight -> _orig_mod.layer.1.weight"]
    for room in (30, 40):
        shown = shorten_names([*names, "n"], room)
        assert all(len(each) <= room for each in shown) and shown[-1] == "n"
        for number, each in enumerate(shown[:2]):
            assert all(f".{number}." in side for side in each.split(" -> ")) and each.count(" -> ") == 1
