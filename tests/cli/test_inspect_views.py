"""``burnstore inspect``: the tree, the first bytes, every format, shards and folders, statistics by several workers."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from terminal import burnstore, in_terminal, run_here

import burnstore as bs

FIXTURES = Path(__file__).parents[1] / "fixtures"
BASIC = FIXTURES / "burn" / "0.22.1" / "basic.bpk"
RECORDS = FIXTURES / "records" / "0.21.0"
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tensors = {
        "embed": np.zeros((10, 4), np.float16),
        "layers.0.fc.weight": np.zeros((4, 4), np.float32),
        "layers.0.fc.bias": np.zeros(4, np.float32),
        "layers.0.scale": np.ones(1, np.float32),
        "layers.10.fc.weight": np.zeros((4, 8), np.float32),
        "layers.2.fc.weight": np.zeros((4, 2), np.float32),
        "steps": np.zeros((), np.int64),
    }
    bs.save(tensors, tmp_path / "model.bpk", metadata={}, durable=False)
    return tmp_path / "model.bpk"


def after_summary(out: str) -> str:
    return out.split("\n\n", 1)[1]


# --- the tree ---------------------------------------------------------------------------------------------------------


def test_a_tree_shows_modules_with_what_they_hold(model: Path, capsys: Captured) -> None:
    code, out, err = run_here(capsys, "inspect", model, "--tree")
    assert (code, err) == (0, "")
    assert after_summary(out) == (
        "MODULE              TENSORS  PARAMETERS  SIZE  BYTES  DTYPE        SHAPE\n"
        "(all)                     7         102  332B    332  F16,F32,I64\n"
        "├─ embed                  1          40   80B     80  F16          [10,4]\n"
        "├─ steps                  1           1    8B      8  I64          []\n"
        "└─ layers                 5          61  244B    244  F32\n"
        "   ├─ 0                   3          21   84B     84  F32\n"
        "   │  ├─ scale            1           1    4B      4  F32          [1]\n"
        "   │  └─ fc               2          20   80B     80  F32\n"
        "   │     ├─ weight        1          16   64B     64  F32          [4,4]\n"
        "   │     └─ bias          1           4   16B     16  F32          [4]\n"
        "   ├─ 10                  1          32  128B    128  F32\n"
        "   │  └─ fc               1          32  128B    128  F32\n"
        "   │     └─ weight        1          32  128B    128  F32          [4,8]\n"
        "   └─ 2                   1           8   32B     32  F32\n"
        "      └─ fc               1           8   32B     32  F32\n"
        "         └─ weight        1           8   32B     32  F32          [4,2]\n"
    )


def names_of_tree(out: str) -> list[str]:
    return [line.split("─ ")[-1].split()[0] for line in after_summary(out).splitlines()[2:]]


def test_a_tree_is_cut_at_a_depth_and_sorted_as_asked(model: Path, capsys: Captured) -> None:
    _, out, _ = run_here(capsys, "inspect", model, "--tree", "--depth", 2)
    assert names_of_tree(out) == ["embed", "steps", "layers", "0", "scale", "10", "2"]
    _, out, _ = run_here(capsys, "inspect", model, "--tree", "--depth", 2, "--sort", "name")
    assert names_of_tree(out) == ["embed", "steps", "layers", "0", "scale", "2", "10"]
    _, out, _ = run_here(capsys, "inspect", model, "--tree", "--depth", 2, "--sort", "size")
    assert names_of_tree(out) == ["embed", "steps", "layers", "10", "0", "scale", "2"]
    _, out, _ = run_here(capsys, "inspect", model, "--tree", "--depth", 0)
    assert names_of_tree(out) == ["embed", "steps"]


def test_a_tree_is_of_the_tensors_that_a_filter_leaves(model: Path, capsys: Captured) -> None:
    code, out, _ = run_here(capsys, "inspect", model, "--tree", "--filter", "fc")
    assert code == 0
    assert "(all)                     4          60  240B    240  F32" in out
    code, out, _ = run_here(capsys, "inspect", model, "--tree", "--filter", "nothing")
    assert code == 1 and "MODULE" not in out


def test_json_has_the_modules_of_a_tree(model: Path, capsys: Captured) -> None:
    _, out, _ = run_here(capsys, "inspect", model, "--tree", "--depth", 1, "--json")
    (file,) = json.loads(out)["files"]
    assert file["modules"] == [
        {"path": "", "tensors": 7, "elements": 102, "nbytes": 332, "dtypes": ["F16", "F32", "I64"]},
        {"path": "layers", "tensors": 5, "elements": 61, "nbytes": 244, "dtypes": ["F32"]},
    ]
    assert len(file["tensors"]) == 7
    _, out, _ = run_here(capsys, "inspect", model, "--json")
    assert "modules" not in json.loads(out)["files"][0]


def test_a_tree_fits_into_a_narrow_terminal(model: Path) -> None:
    out, code = in_terminal(50, "inspect", model, "--tree", env={"NO_COLOR": "1"})
    assert code == 0
    tree = out[out.index("MODULE") : out.index("(no room for ")]
    assert max(map(len, tree.splitlines())) <= 50
    assert "PARAMETERS" in tree and "BYTES" not in tree


def test_a_tree_is_drawn_in_ascii_where_nothing_else_can_be_shown(model: Path) -> None:
    done = burnstore("inspect", model, "--tree", env={"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"})
    assert done.stdout.isascii() and "|- embed" in done.stdout and "`- layers" in done.stdout


def test_hostile_names_make_a_harmless_tree(tmp_path: Path, capsys: Captured) -> None:
    names = ["a\x1b[31m.b\n.c", "..", "", "." * 3000, "x." * 200 + "y", "a.b", "a"]
    bs.save({name: np.zeros(1) for name in names}, tmp_path / "x.bpk", durable=False)
    code, out, err = run_here(capsys, "inspect", tmp_path / "x.bpk", "--tree")
    assert (code, err) == (0, "")
    assert all(line.isprintable() for line in out.split("\n"))
    assert r"a\x1b[31m" in out and r"b\n" in out
    assert out.count("[1]") == len(names)


# --- the first bytes --------------------------------------------------------------------------------------------------


def test_the_first_bytes_are_shown_with_what_they_mean(capsys: Captured) -> None:
    code, out, err = run_here(capsys, "inspect", BASIC, "--hex")
    assert (code, err) == (0, "")
    assert out.startswith(f"{BASIC}\n  format    burnpack\n  file      5,504 bytes\n\n")
    lines = after_summary(out).splitlines()
    assert lines[1].startswith("00000000  4e 52 55 42 ") and lines[1].endswith("  magic: NRUB")
    assert lines[4].startswith("0000000a  a2 67 74 65 6e 73 6f 72 73 ") and lines[4].endswith("  metadata: CBOR")
    assert lines[8] == "0000004a" + " " * 69 + "(1,204 bytes more)"


def test_the_first_bytes_of_a_broken_file_can_be_seen(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "cut.bpk").write_bytes(BASIC.read_bytes()[:100])
    (tmp_path / "other").write_bytes(b"\x1b[31mGIF8")
    (tmp_path / "none").touch()
    for name, told in (
        ("cut.bpk", "metadata, cut off"),
        ("other", "unknown format"),
        ("none", "empty file"),
    ):
        code, out, err = run_here(capsys, "inspect", "--hex", tmp_path / name)
        assert (code, err) == (0, "") and told in out and "\x1b" not in out
    code, out, err = run_here(capsys, "inspect", "--hex", tmp_path / "missing")
    assert (code, out) == (2, "") and "no such file" in err


def test_json_has_the_first_bytes(capsys: Captured, tmp_path: Path) -> None:
    _, out, _ = run_here(capsys, "inspect", BASIC, tmp_path / "missing", "--hex", "--json")
    file, missing = json.loads(out)["files"]
    assert file["first_bytes"]["format"] == "burnpack" and file["error"] is None
    assert file["first_bytes"]["parts"][0] == {"offset": 0, "nbytes": 4, "meaning": "magic: NRUB", "hex": "4e525542"}
    assert missing["error"]["kind"] == "FileNotFoundError"


@pytest.mark.parametrize("columns", [30, 60])
def test_the_first_bytes_fit_into_a_narrow_terminal(columns: int) -> None:
    out, code = in_terminal(columns, "inspect", BASIC, "--hex", env={"NO_COLOR": "1"})
    assert code == 0
    table = [line for line in out[out.index("OFFSET") :].splitlines() if not line.startswith("(no room")]
    assert max(map(len, table)) <= columns


# --- every format, shards, folders ------------------------------------------------------------------------------------


def test_a_set_of_shards_is_shown_as_one_with_the_file_of_each_tensor(tmp_path: Path, capsys: Captured) -> None:
    tensors = {f"t{at}": np.full(100, at, np.float32) for at in range(4)}
    bs.save(tensors, tmp_path / "m.safetensors", max_shard_size=900, durable=False)
    shown = []
    for path in (tmp_path, tmp_path / "m.safetensors.index.json", tmp_path / "m.safetensors"):
        code, out, err = run_here(capsys, "inspect", path, "--stats")
        assert (code, err) == (0, "")
        shown.append(after_summary(out))
        assert "  format    safetensors (2 shards)\n" in out
    assert shown[0] == shown[1] == shown[2]
    lines = shown[0].splitlines()
    assert " SHARD " in lines[0] and " m-00001-of-00002.safetensors " in lines[1]
    assert " m-00002-of-00002.safetensors " in lines[4]
    (tmp_path / "m.safetensors.index.json").unlink()
    code, out, _ = run_here(capsys, "inspect", tmp_path, "--json")
    rows = json.loads(out)["files"][0]["tensors"]
    assert [row["shard"] for row in rows] == [f"m-0000{at}-of-00002.safetensors" for at in (1, 1, 2, 2)]
    raw = (tmp_path / rows[3]["shard"]).read_bytes()
    assert raw[rows[3]["offset"] :][:400] == tensors["t3"].tobytes()


def test_every_file_of_tensors_in_a_folder_is_shown(tmp_path: Path, model: Path, capsys: Captured) -> None:
    shutil.copy(RECORDS / "basic.namedmpk.full.mpk", tmp_path / "record.mpk")
    (tmp_path / "state.pt").write_bytes(pickle.dumps({"w": np.zeros(3)}))
    (tmp_path / "config.json").write_text('{"hidden": 3}')
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "empty.bin").touch()
    (tmp_path / "deeper").mkdir()
    code, out, err = run_here(capsys, "inspect", tmp_path, "--limit", 0)
    assert (code, err) == (0, "")
    titles = [line for line in out.splitlines() if line.startswith(str(tmp_path))]
    assert titles == [str(tmp_path / name) for name in ("model.bpk", "record.mpk", "state.pt")]


def test_a_folder_without_any_is_an_error(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "config.json").write_text('{"hidden": 3}')
    code, out, err = run_here(capsys, "inspect", tmp_path)
    assert (code, out) == (2, "") and "no checkpoint" in err


def test_a_folder_with_two_sets_is_an_error(tmp_path: Path, capsys: Captured) -> None:
    for name in ("a", "b"):
        tensors = {f"t{at}": np.zeros(100) for at in range(2)}
        bs.save(tensors, tmp_path / f"{name}.safetensors", max_shard_size=900, durable=False)
    code, out, err = run_here(capsys, "inspect", tmp_path)
    assert (code, out) == (2, "") and "has 2 indexes" in err and "open one by its name" in err


@pytest.mark.parametrize(
    "name", ["basic.namedmpkgz.full.mpk.gz", "basic.jsongz.full.json.gz", "basic.prettyjson.full.json"]
)
def test_bytes_that_do_not_lie_in_the_file_have_no_offset(name: str, capsys: Captured) -> None:
    code, out, _ = run_here(capsys, "inspect", RECORDS / name)
    assert code == 0
    assert "tensor data from byte" not in out
    table = after_summary(out).splitlines()
    assert table[0].split()[-1] == "ID" and "OFFSET" not in table[0]
    _, out, _ = run_here(capsys, "inspect", RECORDS / name, "--json")
    assert {row["offset"] for row in json.loads(out)["files"][0]["tensors"]} == {None}


def test_offsets_of_a_plain_record_are_those_of_the_file(capsys: Captured) -> None:
    file = RECORDS / "basic.namedmpk.full.mpk"
    _, out, _ = run_here(capsys, "inspect", file, "--json")
    raw = file.read_bytes()
    with bs.open(file) as f:
        for row in json.loads(out)["files"][0]["tensors"]:
            assert raw[row["offset"] :][: row["nbytes"]] == f[row["name"]].to_bytes()


def test_tensors_put_together_from_several_places_have_no_offset(tmp_path: Path, capsys: Captured) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.arange(12.0).reshape(3, 4)
    torch.save({"whole": whole, "turned": whole.T, "part": whole[1]}, tmp_path / "x.pt")
    _, out, _ = run_here(capsys, "inspect", tmp_path / "x.pt", "--json")
    rows = {row["name"]: row["offset"] for row in json.loads(out)["files"][0]["tensors"]}
    raw = (tmp_path / "x.pt").read_bytes()
    assert raw[rows["whole"] :][:48] == whole.numpy().tobytes()
    assert raw[rows["part"] :][:16] == whole[1].numpy().tobytes()
    assert rows["turned"] is None


def test_notes_about_a_file_are_shown(capsys: Captured) -> None:
    file = RECORDS / "basic.bin.full.bin"
    with bs.open(file) as f:
        (note,) = f.notes
    _, out, _ = run_here(capsys, "inspect", file)
    assert f"\n  notes     {note}\n" in out  # inspect has no --like, so the note names Python's function
    _, out, _ = run_here(capsys, "inspect", file, "--json")
    assert json.loads(out)["files"][0]["notes"] == [note]


# --- statistics by several workers, and what does not go together -----------------------------------------------------


def test_statistics_do_not_depend_on_who_takes_them(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    tensors = {f"t{at}": generator.standard_normal((300, 7000)).astype(np.float32) for at in range(2)}
    bs.save({**tensors, "small": np.arange(5)}, tmp_path / "x.bpk", durable=False)
    outputs = {
        burnstore("inspect", tmp_path / "x.bpk", "--stats", "--json", *jobs).stdout for jobs in ([], ["--jobs", "2"])
    }
    assert len(outputs) == 1
    row = json.loads(outputs.pop())["files"][0]["tensors"][0]
    assert row["stats"]["mean"] == pytest.approx(tensors["t0"].mean(dtype=np.float64), rel=1e-9)
    assert row["stats"]["min"] == tensors["t0"].min()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--depth", "1"], "--depth needs --tree"),
        (["--tree", "--limit", "3"], "--limit and --stats apply to the table, not to --tree"),
        (["--tree", "--stats"], "--limit and --stats apply to the table, not to --tree"),
        (["--hex", "--stats"], "--hex shows bytes"),
        (["--hex", "--filter", "x"], "--hex shows bytes"),
        (["--hex", "--tree"], "not allowed with argument"),
        (["--tree", "--depth", "-1"], "'-1' is not a number of levels"),
        (["--jobs", "0"], "'0' is not a number of processes"),
    ],
)
def test_what_does_not_go_together_is_refused(given: list[str], told: str, capsys: Captured) -> None:
    code, out, err = run_here(capsys, "inspect", BASIC, *given)
    assert (code, out) == (2, "")
    assert err.startswith("burnstore: error: ") and told in err
    assert err.endswith("; hint: burnstore inspect --help\n")
