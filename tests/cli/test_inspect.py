from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from terminal import burnstore, environment, in_terminal, run_here

import burnstore as bs
from burnstore.cli import parser
from burnstore.cli.text import width
from burnstore.jobs.inspect.inspect import SORTS

FIXTURES = Path(__file__).parents[1] / "fixtures" / "burn"
BASIC = FIXTURES / "0.22.1" / "basic.bpk"

# Names that a file may bear, and how they have to be shown.
HOSTILE = {
    "plain.weight": "plain.weight",
    "ansi\x1b[31mred\x1b[0m": r"ansi\x1b[31mred\x1b[0m",
    "title\x1b]0;owned\x07": r"title\x1b]0;owned\x07",
    "c1\x9b31m": r"c1\x9b31m",
    "new\nline\r\ttab": r"new\nline\r\ttab",
    "nul\x00": r"nul\x00",
    "rtl\u202eevil\u2066": r"rtl\u202eevil\u2066",
    "line\u2028para\u2029": r"line\u2028para\u2029",
    "zero\u200bwidth\u200d": r"zero\u200bwidth\u200d",
    "\ufeffbom": r"\ufeffbom",
    "tag\U000e0041": r"tag\U000e0041",
    "[red]markup[/red]": "[red]markup[/red]",
    "%s {0} $HOME `id`": "%s {0} $HOME `id`",
    "../../etc/passwd": "../../etc/passwd",
    "back\\slash": r"back\\slash",
    "back\\\\slash": r"back\\\\slash",
    "": '""',
    " pad ": '" pad "',
    'quote"': r'"quote\""',
    "nbsp\xa0": r"nbsp\xa0",
    "\u3164": r"\u3164",
    "caf\u00e9": "caf\u00e9",
    "cafe\u0301": r"cafe\u0301",
    "\u1100\u1161": r"\u1100\u1161",
    "\uac00": "\uac00",
    "\u212b": r"\u212b",
    "\u0301lead": r"\u0301lead",
    "zalg\u0335\u0336\u0337\u0338\u034f": "zalg\u0335\u0336\u0337" + r"\u0338\u034f",
    "日本語.重み": "日本語.重み",
    "🔥.burn": "🔥.burn",
    "נמל": "נמל",
    "नमस्ते": "नमस्ते",
    "w" * 300: "w" * 300,
}


def table(out: str) -> list[list[str]]:
    """The rows of the table, split at blanks."""
    lines = out.split("\n")
    first = next(at for at, line in enumerate(lines) if line.startswith("NAME"))
    rows = []
    for line in lines[first + 1 :]:
        if not line:
            break
        rows.append(line.split())
    return rows


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("hostile") / "hostile.bpk"
    tensors = {name: np.full((at + 1, 2), at, np.float32) for at, name in enumerate(HOSTILE)}
    metadata = {"key\x1b[2J": "value\nline", "long": "x" * 400, "": "", **{f"n{at:02}": "v" for at in range(40)}}
    scalars = {"lr": 0.5, "nan": math.nan, "big": 2**64 - 1, "bad\x1b": True}
    bs.save(tensors, file, metadata=metadata, scalars=scalars, layout="burn")
    return file


@pytest.fixture(scope="module")
def unsound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("unsound") / "nan.bpk"
    bs.save({"bad": np.array([np.nan, np.inf, -np.inf, 1.0], np.float32), "good": np.arange(5)}, file, layout="burn")
    return file


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("many") / "many.bpk"
    tensors = {f"layers.{at}.weight": np.zeros(2, np.float32) for at in range(20_000)}
    bs.save(tensors, file, durable=False, layout="burn")
    return file


def test_a_file_is_shown_with_a_summary_and_a_table() -> None:
    done = burnstore("inspect", "basic.bpk", cwd=BASIC.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "basic.bpk\n"
        "  format    burnpack (0.20 .. 0.23-pre, aligned)\n"
        "  layout    burn\n"
        "  file      5.4 KiB (5,504 bytes), tensor data from byte 1,280\n"
        "  tensors   17 with 174 parameters: 696 bytes\n"
        "  dtypes    F32: 17 tensors, 174 parameters, 696 B\n"
        "  metadata  format = burnpack\n"
        "            producer = burn\n"
        "            version = 0.22.1\n"
        "\n"
        "NAME                  DTYPE  SHAPE      SIZE  BYTES  PARAM ID       OFFSET\n"
        "linear.weight         F32    [4,3]       48B     48  69n1ebiie0gn4    1280\n"
        "linear.bias           F32    [3]         12B     12  tvgjfvc88ads4    1536\n"
        "linear_nobias.weight  F32    [3,5]       60B     60  6u0vh0gqbm6jq    1792\n"
        "conv.weight           F32    [3,2,3,3]  216B    216  gvcld3vohlnni    2048\n"
        "conv.bias             F32    [3]         12B     12  gbfk9u56nmjv8    2304\n"
        "batch.gamma           F32    [6]         24B     24  ug5h564vq9nu0    2560\n"
        "batch.beta            F32    [6]         24B     24  cnfd0qm9i5bvu    2816\n"
        "batch.running_mean    F32    [6]         24B     24  dp2np9moh5eia    3072\n"
        "batch.running_var     F32    [6]         24B     24  l3jeqmq18e7cm    3328\n"
        "layer.gamma           F32    [5]         20B     20  762phtmfbir0u    3584\n"
        "layer.beta            F32    [5]         20B     20  h86rp0a9rpbjm    3840\n"
        "group.gamma           F32    [4]         16B     16  7scb5i0b995vg    4096\n"
        "group.beta            F32    [4]         16B     16  8hruqclge8cbo    4352\n"
        "instance.gamma        F32    [3]         12B     12  skbt3o2jsp194    4608\n"
        "instance.beta         F32    [3]         12B     12  kq2ak7ikpvncu    4864\n"
        "rms.gamma             F32    [7]         28B     28  28c6n0opeli5c    5120\n"
        "embedding.weight      F32    [8,4]      128B    128  0i0otg725sefm    5376\n"
    )


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("*/*.bpk")), ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_file_of_burn_is_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_here(capsys, "inspect", "--stats", file)
    assert (code, err) == (0, "")
    with bs.open(file) as f:
        assert len(f) == 0 or len(table(out)) == len(f)
    code, out, err = run_here(capsys, "inspect", "--stats", "--json", file)
    assert (code, err) == (0, "")
    assert json.loads(out)["files"][0]["total"]["tensors"] == len(f)


def test_an_empty_file_has_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_here(capsys, "inspect", FIXTURES / "0.22.1" / "empty.bpk")
    assert "  tensors   none\n" in out
    assert "NAME" not in out


def test_quantization_schemes_are_named_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_here(capsys, "inspect", FIXTURES / "0.22.1" / "quant_q8s_block8_native.bpk")
    assert {row[1] for row in table(out)} == {"QFloat(Q8S)"}
    assert "  schemes   QuantScheme { value: Q8S, store: Native, mode: Symmetric, tensor: None, block: Some(" in out


@pytest.mark.parametrize("sort", SORTS)
def test_tensors_are_sorted_as_asked(sort: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_here(capsys, "inspect", BASIC, "--sort", sort)
    rows = table(out)
    assert code == 0
    if sort == "size":
        sizes = [int(row[4]) for row in rows]
        assert sizes == sorted(sizes, reverse=True)
    elif sort == "offset":
        assert [int(row[6]) for row in rows] == sorted(int(row[6]) for row in rows)
    else:
        assert [row[0 if sort == "name" else 1] for row in rows] == sorted(
            row[0 if sort == "name" else 1] for row in rows
        )


def test_a_filter_leaves_the_tensors_whose_names_it_is_found_in(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_here(capsys, "inspect", BASIC, "--filter", r"^conv\.|gamma$")
    assert code == 0
    assert [row[0] for row in table(out)] == [
        "conv.weight",
        "conv.bias",
        "batch.gamma",
        "layer.gamma",
        "group.gamma",
        "instance.gamma",
        "rms.gamma",
    ]
    assert r"  filter    '^conv\.|gamma$' matches 7 tensors with 82 parameters: 328 bytes" in out
    assert "  tensors   17 with 174 parameters" in out


def test_a_filter_that_matches_nothing_ends_with_1() -> None:
    done = burnstore("inspect", BASIC, "--filter", "decoder")
    assert (done.returncode, done.stderr) == (1, "")
    assert "  filter    decoder matches no tensor\n" in done.stdout


def test_a_filter_needs_to_match_in_one_of_several_files(capsys: pytest.CaptureFixture[str]) -> None:
    other = FIXTURES / "0.22.1" / "bools.bpk"
    assert run_here(capsys, "inspect", BASIC, other, "--filter", "^mask$")[0] == 0
    assert run_here(capsys, "inspect", BASIC, other, "--filter", "decoder")[0] == 1


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}", "(" * 5000, "(?P<\x1b[31m>x)"])
def test_an_invalid_filter_is_an_error(pattern: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_here(capsys, "inspect", BASIC, "--filter", pattern)
    assert (code, out) == (2, "")
    assert err.startswith("burnstore: error: argument --filter: ")
    assert "Invalid regex pattern " in err
    assert err.endswith("; hint: burnstore inspect --help\n")
    assert "\x1b" not in err


def test_a_filter_that_python_warns_of_is_used_quietly() -> None:
    done = burnstore("inspect", BASIC, "--filter", "[[a]")
    assert done.stderr == ""


def test_a_limit_shows_the_first_and_tells_of_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_here(capsys, "inspect", BASIC, "--sort", "size", "--limit", 2)
    assert code == 0
    assert [row[0] for row in table(out)][:2] == ["conv.weight", "embedding.weight"]
    assert out.endswith("\n(15 more; --limit 2)\n")
    _, out, _ = run_here(capsys, "inspect", BASIC, "--limit", 0)
    assert "NAME" not in out
    assert out.endswith("(17 more; --limit 0)\n")
    _, out, _ = run_here(capsys, "inspect", BASIC, "--limit", 17)
    assert "more" not in out


def test_statistics_are_shown_and_nan_or_inf_end_with_1(unsound: Path) -> None:
    done = burnstore("inspect", "--stats", unsound)
    assert (done.returncode, done.stderr) == (1, "")
    header = next(line for line in done.stdout.split("\n") if line.startswith("NAME"))
    assert header.split()[-7:] == ["MIN", "MAX", "MEAN", "STD", "NAN", "INF", "ZEROS"]
    bad, good = table(done.stdout)
    assert bad[-7:] == ["1", "1", "1", "0", "1", "2", "0"]
    assert good[-7:] == ["0", "4", "2", "1.414", "0", "0", "1"]
    assert done.stdout.endswith("\n1 of 2 tensors not finite: 1 NaN, 2 Inf\n")


def test_statistics_look_only_at_what_is_shown(unsound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(capsys, "inspect", "--stats", unsound, "--filter", "good")[0] == 0
    assert run_here(capsys, "inspect", "--stats", unsound, "--sort", "size", "--limit", "1")[0] == 0
    assert run_here(capsys, "inspect", unsound)[0] == 0


def test_a_broken_tensor_is_told_of_and_the_others_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broken.bpk"
    packed = bytearray(bs.serialize({"ma\x1bsk": np.zeros(3, bool), "w": np.ones(2)}, format="burnpack"))
    with bs.open(packed) as f:
        packed[f.offset_of("ma\x1bsk")] = 9
    file.write_bytes(packed)
    code, out, err = run_here(capsys, "inspect", file, "--stats")
    assert code == 2
    assert err == f"burnstore: error: {file}: tensor 'ma\\x1bsk': expected 0 or 1 in a Bool, found 9\n"
    assert [row[7] for row in table(out)] == ["broken", "1"]
    assert run_here(capsys, "inspect", file)[0] == 0
    code, out, _ = run_here(capsys, "inspect", file, "--stats", "--json")
    assert code == 2
    assert [row["problem"] for row in json.loads(out)["files"][0]["tensors"]] == [
        "expected 0 or 1 in a Bool, found 9",
        None,
    ]


def refuse_constant(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def test_json_is_one_strict_and_complete_document(hostile: Path) -> None:
    done = burnstore("inspect", "--json", "--stats", hostile, FIXTURES / "0.22.1" / "bools.bpk")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    document = json.loads(done.stdout, parse_constant=refuse_constant)
    assert list(document) == ["burnstore", "schema", "files"]
    assert (document["burnstore"], document["schema"]) == (bs.__version__, 1)
    first, second = document["files"]
    keys = ["path", "format", "variant", "layout", "file_size", "data_offset", "metadata", "scalars", "total", "dtypes"]
    assert list(first) == list(second) == [*keys, "selected", "notes", "error", "tensors"]
    assert first["path"] == str(hostile)
    assert (first["format"], first["layout"], first["error"]) == ("burnpack", "burn", None)
    assert first["metadata"]["key\x1b[2J"] == "value\nline"
    assert first["scalars"]["nan"] == {"kind": "Float", "value": "NaN"}
    assert first["scalars"]["big"] == {"kind": "UInt", "value": str(2**64 - 1)}
    assert first["total"] == first["selected"] == first["dtypes"]["F32"]
    assert [row["name"] for row in first["tensors"]] == list(HOSTILE)
    with bs.open(hostile) as f:
        assert (first["file_size"], first["data_offset"]) == (f.file_size, f.data_offset)
        for at, row in enumerate(first["tensors"]):
            assert row == {
                "name": row["name"],
                "dtype": "F32",
                "quantization": None,
                "shape": [at + 1, 2],
                "elements": 2 * (at + 1),
                "nbytes": 8 * (at + 1),
                "offset": f.offset_of(row["name"]),
                "shard": None,
                "param_id": None,
                "stats": {
                    "min": at,
                    "max": at,
                    "mean": at,
                    "std": 0,
                    "nan_count": 0,
                    "inf_count": 0,
                    "zero_count": 0 if at else 2,
                },
                "problem": None,
                "tied_to": None,
            }
    assert {row["name"]: row["param_id"] for row in second["tensors"]} == {
        "weight": {"number": str(int(bs.ParamId.parse("36vie7uuv08mi"))), "text": "36vie7uuv08mi"},
        "mask": {"number": str(int(bs.ParamId.parse("94c7njl2bsrhu"))), "text": "94c7njl2bsrhu"},
    }


def test_json_tells_of_errors_in_the_document_too(tmp_path: Path) -> None:
    (tmp_path / "cut.bpk").write_bytes(BASIC.read_bytes()[:700])
    done = burnstore("inspect", "--json", tmp_path / "cut.bpk", BASIC, tmp_path / "none.bpk")
    assert done.returncode == 2
    cut, fine, missing = json.loads(done.stdout)["files"]
    assert cut["path"] == str(tmp_path / "cut.bpk")
    assert list(cut["error"]) == ["kind", "message", "rule", "tensor", "offset", "hint"]
    assert cut["error"]["kind"] == "TruncatedError"
    assert cut["error"]["rule"].startswith("BP-")
    assert fine["error"] is None
    nothing = dict.fromkeys(["rule", "tensor", "offset", "hint"])
    assert missing["error"] == {"kind": "FileNotFoundError", "message": "no such file", **nothing}
    assert done.stderr.count("burnstore: error: ") == 2


def test_hostile_names_are_shown_complete_and_harmless(hostile: Path) -> None:
    done = burnstore("inspect", hostile)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(line.isprintable() for line in done.stdout.split("\n"))
    lines = done.stdout.split("\n")
    first = next(at for at, line in enumerate(lines) if line.startswith("NAME")) + 1
    assert len(lines) == first + len(HOSTILE) + 1
    for line, (at, shown) in zip(lines[first:], enumerate(HOSTILE.values()), strict=False):
        assert line.startswith(f"{shown}  ")
        assert f" [{at + 1},2] " in line
    assert '  metadata  "" = ""\n' in done.stdout
    assert r"key\x1b[2J = value\nline" in done.stdout
    assert f"long = {'x' * 400}\n" in done.stdout
    assert r"bad\x1b = True (Bool)" in done.stdout
    assert "big = 18446744073709551615 (UInt)" in done.stdout


def test_one_very_long_name_does_not_push_the_other_rows_away(
    hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run_here(capsys, "inspect", hostile)
    assert max(len(line) for line in out.split("\n") if "www" not in line and "xxx" not in line) < 90


def test_a_terminal_that_knows_only_ascii_gets_escapes(hostile: Path) -> None:
    done = burnstore("inspect", hostile, env={"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert r"\U0001f525.burn" in done.stdout


ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def test_a_terminal_gets_colours_and_no_other_commands(hostile: Path) -> None:
    out, code = in_terminal(120, "inspect", hostile)
    assert code == 0
    assert ESCAPE.search(out)
    assert "\x1b" not in ESCAPE.sub("", out)
    assert "…" in out
    assert r"ansi\x1b[31mred\x1b[0m" in out
    assert "(19 more; pipe, or --json, shows all)" in ESCAPE.sub("", out)


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_in_a_narrow_terminal_names_are_shortened_and_no_row_wraps(columns: int, hostile: Path) -> None:
    out, code = in_terminal(columns, "inspect", hostile, env={"NO_COLOR": "1"})
    assert code == 0
    assert "\x1b" not in out
    lines = out[out.index("NAME") :].rstrip("\n").split("\n")
    rows = [line for line in lines if not line.startswith("(no room for ")]
    assert len(rows) == len(HOSTILE) + 1
    assert max(map(width, rows)) <= columns
    long_name = next(line for line in rows if line.startswith("ww"))
    assert re.match(r"w+…w+  ", long_name)
    if columns < 80:
        assert lines[-1].startswith("(no room for ")


def test_statistics_that_alarm_are_the_last_to_go(unsound: Path) -> None:
    out, code = in_terminal(36, "inspect", "--stats", unsound)
    assert code == 1
    assert "\x1b[1;31m  1\x1b[0m  \x1b[1;31m  2\x1b[0m" in out
    assert "NAN  INF" in out
    assert "MEAN" not in ESCAPE.sub("", out).split("(no room")[0]


@pytest.mark.parametrize("extra", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_none_is_wanted(extra: dict[str, str]) -> None:
    out, _ = in_terminal(100, "inspect", BASIC, env=extra)
    assert "\x1b" not in out


def test_the_environment_may_tell_the_width(hostile: Path) -> None:
    out, _ = in_terminal(200, "inspect", hostile, env={"NO_COLOR": "1", "COLUMNS": "50"})
    assert max(map(width, out[out.index("NAME") : out.index("(no room")].split("\n"))) <= 50


@pytest.mark.parametrize("lines", [0, 3])
def test_a_closed_pipe_ends_quietly(lines: int, many: Path) -> None:
    command = [sys.executable, "-m", "burnstore", "inspect", str(many)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as child:
        for _ in range(lines):
            child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 141


def test_help_into_a_closed_pipe_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = burnstore("--help", stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # argparse looks away where stdout is not buffered


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = burnstore("inspect", BASIC, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == "burnstore: error: cannot write the output: No space left on device\n"


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
def test_no_output_at_all_is_an_error() -> None:
    command = f'exec "{sys.executable}" -m burnstore inspect "{BASIC}" >&-'
    done = subprocess.run(["sh", "-c", command], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "burnstore: error: standard output is closed\n")


# Python ends itself with the signal where it came while the text of a dataclass was run; a shell shows 130 for both.
INTERRUPTED = (130, -signal.SIGINT)


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize(
    "at", [b"burnstore.cli", b"argparse", b"numpy.version", b"numpy.linalg", b"burnstore.checkpoint"]
)
def test_an_interrupt_while_modules_are_imported_ends_quietly(at: bytes) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "burnstore", "inspect", str(BASIC)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as child:
        for line in child.stderr:
            if line.rstrip().endswith(at):
                break
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode in (0, *INTERRUPTED)  # 0 if the command was quicker than the signal
    assert b"Traceback" not in err and b"KeyboardInterrupt" not in err


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    file = tmp_path / "big.bpk"
    bs.save({f"t{at}": np.zeros(1 << 23, np.float16) for at in range(16)}, file, durable=False)
    command = [sys.executable, "-X", "importtime", "-m", "burnstore", "inspect", "--stats", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as child:
        for line in child.stderr:  # the last import before the tensors are read
            if b"burnpack.fast_header" in line:
                break
        time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert child.returncode in INTERRUPTED
    assert b"Traceback" not in err
    assert out == b""


def test_20_000_tensors_are_shown_within_a_moment(many: Path) -> None:
    begun = time.perf_counter()
    done = burnstore("inspect", many, "--sort", "name")
    taken = time.perf_counter() - begun
    assert done.returncode == 0
    rows = table(done.stdout)
    assert len(rows) == 20_000
    assert rows[-1][0] == "layers.19999.weight"
    assert taken < 10  # 0.6 s alone on a core; tests share theirs
    document = json.loads(burnstore("inspect", many, "--json").stdout)
    assert len(document["files"][0]["tensors"]) == 20_000


def test_several_files_are_shown_one_after_another_and_errors_do_not_stop_them(tmp_path: Path) -> None:
    done = burnstore("inspect", BASIC, tmp_path / "none.bpk", FIXTURES / "0.19.1" / "bools.bpk")
    assert done.returncode == 2
    assert done.stdout.count("  format    burnpack") == 2
    assert done.stderr == f"burnstore: error: {tmp_path / 'none.bpk'}: no such file\n"


def test_files_that_cannot_be_read_are_errors_with_their_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.bpk").touch()
    (tmp_path / "other.bin").write_bytes(b"GIF8 something else")
    (tmp_path / "cut.bpk").write_bytes(BASIC.read_bytes()[:-1])
    (tmp_path / "model.bpk").write_bytes(BASIC.read_bytes())
    cases = {
        "empty.bpk": "the file is empty [at byte 0]",
        "other.bin": "no known format begins with the bytes 47 49 46 38",
        "cut.bpk": "[BP-",
        "empty": "the directory has no checkpoint; looked for",
        "modle.bpk": f"no such file; hint: did you mean {tmp_path / 'model.bpk'}?\n",
        "folder/x.bpk": f"no such file; hint: the folder {tmp_path / 'folder'} does not exist either\n",
        "evil\x1b[2J.bpk": r"evil\x1b[2J.bpk: no such file",
    }
    for name, message in cases.items():
        code, out, err = run_here(capsys, "inspect", f"{tmp_path}/{name}")
        assert (code, out) == (2, "")
        assert err.startswith("burnstore: error: ")
        assert message in err
        assert "\x1b" not in err


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_file_name_that_is_no_text_can_be_shown(tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/caf\xe9.bpk"
    with open(file, "wb") as out:
        out.write(BASIC.read_bytes())
    done = burnstore("inspect", "--limit", "0", os.fsdecode(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path}/caf\\udce9.bpk\n")
    done = burnstore("inspect", "--json", os.fsdecode(file), os.fsdecode(file + b"x"))
    shown = [entry["path"] for entry in json.loads(done.stdout)["files"]]
    assert shown == [f"{tmp_path}/caf\\udce9.bpk", f"{tmp_path}/caf\\udce9.bpkx"]
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: VERB; hint: burnstore --help"),
        (["inspect"], "the following arguments are required: FILE; hint: burnstore inspect --help"),
        (["inspekt", "x"], "'inspekt' is not one of"),
        (["inspect", "x", "--sort", "weight"], "'weight' is not one of name, size"),
        (["inspect", "x", "--limit", "-1"], "argument --limit: '-1' is not a number of tensors"),
        (["inspect", "x", "--limit", "many"], "argument --limit: 'many' is not a number of tensors"),
        (["inspect", "x", "--stat"], "unrecognized arguments: --stat"),
        (["inspect", "x", "--\x1b[2J"], r"unrecognized arguments: --\x1b[2J"),
    ],
)
def test_wrong_arguments_end_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_here(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("burnstore: error: ")
    assert message in err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(capsys, "--version") == (0, f"burnstore {bs.__version__}\n", "")
    code, out, _ = run_here(capsys, "--help")
    assert code == 0
    assert re.search(r"^ +inspect +show what files contain$", out, re.MULTILINE)
    code, out, _ = run_here(capsys, "inspect", "--help")
    assert code == 0
    assert "examples:\n  burnstore inspect model.bpk\n" in out
    assert "exit codes:\n  0  ok\n" in out
    for option in (
        "--json",
        "--sort",
        "--filter",
        "--limit",
        "--stats",
        "--tree",
        "--depth",
        "--hex",
        "--jobs",
        "--quiet",
    ):
        assert option in out


def test_a_bug_of_ours_is_told_apart_from_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("no\x1b[2J")

    monkeypatch.setattr(parser, "build_parser", broken)
    code, out, err = run_here(capsys, "inspect", BASIC, "--json")
    assert code == 2 and err.count("\n") == 1 and "Traceback" not in err and "\x1b" not in err
    assert err.startswith("burnstore: error: internal error: ZeroDivisionError: no\\x1b[2J (test_inspect.py:")
    assert "report this line" in err and "internal error" in json.loads(out)["error"]["message"]
    monkeypatch.setenv("BURNSTORE_TRACEBACK", "1")
    assert "Traceback" in run_here(capsys, "inspect", BASIC)[2]


def test_nothing_slow_is_imported() -> None:
    probe = (
        "import sys; import numpy; before = set(sys.modules); from burnstore.cli import main; "
        "main(sys.argv[1:]); print(*sorted(set(sys.modules) - before), file=sys.stderr)"
    )
    for arguments in (["inspect", str(BASIC)], ["inspect", "--json", str(BASIC)]):
        done = subprocess.run(
            [sys.executable, "-c", probe, *arguments], env=environment(), capture_output=True, text=True, check=True
        )
        imported = set(done.stderr.split())
        heavy = {"rich", "torch", "ml_dtypes", "cbor2", "msgpack", "shutil", "concurrent.futures", "subprocess", "ssl"}
        assert not imported & heavy
        assert ("json" in imported) == ("--json" in arguments)
