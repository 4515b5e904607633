"""Reports as data and as files: what is in them, what is refused, and that nothing of a file becomes markup."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.cli import main

from .pages import HOSTILE, arrays

Captured = pytest.CaptureFixture[str]


class Parsed(html.parser.HTMLParser):
    """The elements of a page, and the text of each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._inside = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in self.texts:
            self.texts[self._inside][-1] += data

    @property
    def policy(self) -> str:
        return next(value for name, value in self.attributes if name == "content" and value and "default-src" in value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    bs.save(arrays(), tmp_path / "model.bpk", metadata={"epochs": "100"}, layout="burn")
    return tmp_path / "model.bpk"


def test_a_report_has_every_tensor_with_its_figures(file: Path) -> None:
    found = bs.report(file).to_dict()["files"][0]
    assert [tensor["name"] for tensor in found["tensors"]] == list(bs.open(file))
    by_name = {tensor["name"]: tensor for tensor in found["tensors"]}
    assert by_name["layers.3.mlp.up.weight"]["stats"]["nan_count"] == 1
    assert by_name["layers.5.attention.query.weight"]["outliers"][0]["index"] == [0, 0]
    assert by_name["layers.5.attention.query.weight"]["outliers"][0]["value"] == 900.0
    assert sum(by_name["embed.weight"]["histogram"]["counts"]) == 800
    assert by_name["steps"]["stats"]["min"] == str(1 << 60)
    assert found["metadata"] == {"epochs": "100"}
    json.dumps(found, allow_nan=False)


def test_what_is_found_is_said(file: Path, tmp_path: Path) -> None:
    assert bs.report(file).found and bs.report(file).files[0].unsound == 2
    assert not bs.report(file, stats=False).found
    bs.save({"w": np.ones(3)}, tmp_path / "sound.bpk")
    assert not bs.report(tmp_path / "sound.bpk").found


def test_without_stats_no_tensor_is_read(file: Path, tmp_path: Path) -> None:
    cut = bytearray(file.read_bytes())
    with bs.open(file) as opened:
        start = opened.data_offset
    cut[start:] = bytes(len(cut) - start)
    (told,) = bs.report(bytes(cut), stats=False).to_dict()["files"]
    (expected,) = bs.report(file, stats=False).to_dict()["files"]
    assert told == {**expected, "path": "<bytes>"}


def test_values_that_cannot_be_shown_are_a_problem_of_their_tensor_alone() -> None:
    packed = bytearray(bs.serialize({"flag": np.array([True, False]), "w": np.ones(2)}, format="burnpack"))
    with bs.open(bytes(packed)) as opened:
        packed[opened.offset_of("flag")] = 7
    found = bs.report(bytes(packed))
    (flag, w) = found.to_dict()["files"][0]["tensors"]
    assert "7" in flag["problem"] and w["problem"] is None and w["stats"]["mean"] == 1.0
    assert found.found


def test_threads_and_processes_give_the_same_page(file: Path, tmp_path: Path, run_python: Any) -> None:
    code = (
        "import sys, burnstore as bs\n"
        "if __name__ == '__main__':\n    bs.report(sys.argv[1], executor=2, output=sys.argv[2])"
    )
    run_python(code, file, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == bs.report(file).html


def test_progress_is_told_in_bytes(file: Path) -> None:
    told: list[tuple[int, int]] = []
    with bs.open(file) as opened:
        total = opened.nbytes
    bs.report(file, progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (total, total) and told == sorted(told)


def test_equal_files_give_equal_pages(file: Path, tmp_path: Path) -> None:
    assert bs.report(file).html == bs.report(file).html


# --- the page as text -------------------------------------------------------------------------------------------------


def test_the_policy_allows_the_scripts_of_the_page_and_nothing_else(file: Path) -> None:
    page = Parsed(bs.report(file).html)
    digests = re.findall(r"(\w+)-src '(sha256-[^']+)'", page.policy)
    assert page.policy.startswith("default-src 'none'") and "unsafe" not in page.policy and "http" not in page.policy
    for kind, digest in digests:
        text = page.texts[kind][-1]
        assert digest == "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert [kind for kind, _ in digests] == ["style", "script"]


def test_nothing_is_loaded_from_anywhere(file: Path) -> None:
    page = Parsed(bs.report(file).html)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    sources = [(name, value) for name, value in page.attributes if name in ("src", "href", "action", "style")]
    assert sources == [("href", "#tensors")]
    own = "".join([*page.texts["style"], page.texts["script"][-1]])
    assert "url(" not in own and "@import" not in own and "fetch(" not in own
    assert re.findall(r"https?://[^\"']*", own) == ["http://www.w3.org/2000/svg"]  # the name of a namespace
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert way not in own


def test_no_text_of_a_file_becomes_markup(tmp_path: Path) -> None:
    named = {name: np.ones(2, np.float32) for name in HOSTILE}
    path = tmp_path / "a<b>&'\".bpk"
    bs.save(named, path, metadata={text: text for text in HOSTILE}, layout="burn")
    hostile, plain = bs.report(path), bs.report(bs.serialize({"w": np.ones(2)}, format="burnpack"))
    page = Parsed(hostile.html)
    assert page.tags == Parsed(plain.html).tags
    assert page.texts["title"] == ["a<b>&'\".bpk · burnstore report"]
    overview = json.loads(page.texts["script"][0])
    assert overview["files"][0]["tensors"]["name"] == list(bs.open(path))
    assert overview["files"][0]["metadata"] == {text: text for text in HOSTILE}
    for embedded in page.texts["script"][:2]:
        assert embedded.isascii() and not set("<>&") & set(embedded)


def test_a_path_that_is_no_text_is_shown_all_the_same(tmp_path: Path) -> None:
    path = str(tmp_path / "a\udcff.bpk")
    bs.save({"w": np.ones(2)}, path)
    assert bs.report(path).html.encode()


# --- the evidence for a layout ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "layout", "stated"),
    [
        ({"format": "pt"}, "torch", "format=pt"),
        ({"producer": "burn"}, "burn", "producer=burn"),
        ({"burnstore.layout": "torch", "producer": "burn"}, "torch", "burnstore.layout=torch"),
        ({"burnstore.layout": "strange"}, "strange", "layout strange: the metadata has burnstore.layout=strange"),
        ({"burnstore.layout": "unknown"}, None, "layout unknown: the metadata has burnstore.layout=unknown"),
        ({"format": "mlx"}, "mlx", "layout mlx: the metadata has format=mlx"),
        ({}, None, "does not state"),
    ],
)
def test_the_evidence_for_a_layout_is_what_the_file_states(
    metadata: dict[str, str], layout: str | None, stated: str
) -> None:
    packed = bs.serialize({"w": np.ones(2)}, format="safetensors", metadata=metadata)
    (file,) = bs.report(packed, stats=False).files
    assert file.inspection.layout == layout
    assert stated in file.evidence[0] and len(file.evidence) == 1


def test_recorded_modules_are_evidence(tmp_path: Path) -> None:
    bs.save({"fc.weight": np.ones((4, 3))}, tmp_path / "a.safetensors", metadata={"format": "pt"})
    bs.convert(tmp_path / "a.safetensors", tmp_path / "a.bpk", rules={"^fc$": "Linear"})
    (file,) = bs.report(tmp_path / "a.bpk", stats=False).files
    assert len(file.evidence) == 2 and "burnstore.modules" in file.evidence[1]


# --- writing it -------------------------------------------------------------------------------------------------------


def test_a_page_is_written_whole_or_not_at_all(file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = bs.report(file, output=page)
    assert page.read_text("utf-8") == found.html
    with pytest.raises(bs.errors.AlreadyExistsError):
        found.save(page)
    found.save(page, overwrite=True)
    page.write_text("old")
    broken = bytearray(file.read_bytes())
    with pytest.raises(bs.errors.FormatError):
        bs.report(bytes(broken[:-3]), output=page, overwrite=True)
    assert page.read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.bpk", "page.html"]


def test_what_cannot_be_written_is_refused_before_the_work(file: Path, tmp_path: Path) -> None:
    told: list[int] = []
    (tmp_path / "page.html").write_text("old")
    for output, error in (
        (tmp_path / "page.html", bs.errors.AlreadyExistsError),
        (tmp_path / "no" / "p", FileNotFoundError),
    ):
        with pytest.raises(error):
            bs.report(file, output=output, progress=lambda done, total: told.append(done))
    assert told == []


@pytest.mark.parametrize("link", [False, True])
def test_a_page_never_replaces_the_file_that_it_tells_of(file: Path, tmp_path: Path, link: bool) -> None:
    target = file
    if link:
        target = tmp_path / "link"
        target.symlink_to(file)
    before = file.read_bytes()
    with pytest.raises(bs.errors.SaveError, match="same file"):
        bs.report(file, output=target, overwrite=True)
    assert file.read_bytes() == before


def test_wrong_arguments_are_told_of(file: Path) -> None:
    with pytest.raises(TypeError):
        bs.report(file, stats="yes")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        bs.report("missing.bpk")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page_and_says_what_it_found(
    file: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "model.bpk"]) == 1
    told = capsys.readouterr()
    assert told.out == "model.bpk -> report.html: 40 tensors, 16,356 parameters; 2 with NaN, Inf or unreadable values\n"
    assert told.err == "" and Path("report.html").read_text("utf-8") == bs.report("model.bpk").html
    assert main(["report", "model.bpk", "-o", "other.html", "--no-stats", "--quiet"]) == 0
    assert Path("other.html").is_file()


def test_the_command_gives_data_for_programs(file: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["report", str(file), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1 and len(document["files"][0]["tensors"]) == 40
    assert [each.name for each in tmp_path.iterdir()] == ["model.bpk"]
    assert main(["report", str(file), "--json", "-o", str(tmp_path / "page.html")]) == 1
    assert (tmp_path / "page.html").is_file()


def test_errors_of_the_command_are_one_line_and_leave_nothing(file: Path, tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "missing.bpk"), "-o", str(page)]) == 2
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "bad.bpk").write_bytes(b"nothing of ours")
    assert main(["report", str(tmp_path / "bad.bpk"), "-o", str(page)]) == 2
    assert "bad.bpk" in capsys.readouterr().err
    assert main(["report", str(file), "-o", str(file), "--overwrite"]) == 2
    assert "same file" in capsys.readouterr().err
    assert main(["report", str(file), "-o", str(tmp_path / "no" / "page.html")]) == 2
    assert "no such" in capsys.readouterr().err
    assert not page.exists()
    page.write_text("old")
    assert main(["report", str(file), "-o", str(page)]) == 2
    assert "already exists" in capsys.readouterr().err and page.read_text() == "old"
    assert main(["report", str(file), "-o", str(page), "--overwrite"]) == 1


# --- two files --------------------------------------------------------------------------------------------------------


@pytest.fixture
def after(tmp_path: Path) -> Path:
    changed = arrays()
    changed["embed.weight"] = changed["embed.weight"] + np.float32(1)
    changed["renamed"] = changed.pop("mask")
    bs.save(changed, tmp_path / "after.bpk")
    return tmp_path / "after.bpk"


def test_a_report_of_two_files_has_their_differences(file: Path, after: Path, capsys: Captured) -> None:
    found = bs.report(file, after)
    assert found.found and found.diff is not None and found.diff.counts["changed"] == 1
    assert found.to_dict()["diff"]["counts"]["moved"] == 1
    assert len(found.files) == 2
    assert main(["report", str(file), str(after), "-o", str(file.parent / "page.html")]) == 1
    assert "38 equal, 1 moved, 1 changed" in capsys.readouterr().out
    overview = json.loads(Parsed(found.html).texts["script"][0])
    rows = overview["diff"]["tensors"]
    at = rows["new_name"].index("renamed")
    assert rows["status"][at] == "moved" and rows["name"][at] == "mask"
    names = [each["tensors"]["name"] for each in overview["files"]]
    assert names[0][rows["before"][at]] == "mask" and names[1][rows["after"][at]] == "renamed"


def test_two_equal_files_are_fine(tmp_path: Path) -> None:
    for name in ("a.bpk", "b.safetensors"):
        bs.save({"w": np.arange(4.0)}, tmp_path / name)
    found = bs.report(tmp_path / "a.bpk", tmp_path / "b.safetensors")
    assert not found.found and found.diff is not None and found.diff.is_equal


def test_files_of_two_layouts_are_compared_in_one(tmp_path: Path, capsys: Captured) -> None:
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    bs.save(model, tmp_path / "burn.bpk")
    torch.save(model.state_dict(), tmp_path / "torch.pt")
    found = bs.report(tmp_path / "torch.pt", tmp_path / "burn.bpk", like=model)
    assert found.diff is not None and found.diff.is_equal and found.diff.layout == "burn"
    rows = json.loads(Parsed(found.html).texts["script"][0])["diff"]["tensors"]
    at = rows["new_name"].index("1.gamma")
    assert rows["before"][at] is None and rows["after"][at] is not None, "the file of torch has no gamma"
    arguments = ["report", str(tmp_path / "torch.pt"), str(tmp_path / "burn.bpk"), "--json"]
    assert main([*arguments, "--like", str(tmp_path / "burn.bpk")]) == 0
    assert main([*arguments, "--keep-layout"]) == 1
    capsys.readouterr()


def test_options_of_a_comparison_need_two_files(file: Path, capsys: Captured) -> None:
    with pytest.raises(TypeError, match="got one file"):
        bs.report(file, tolerance=1.0)
    assert main(["report", str(file), "--keep-layout"]) == 2
    assert "two files" in capsys.readouterr().err


# --- every format, any size -------------------------------------------------------------------------------------------


def test_files_of_every_format_are_reported_alike(tmp_path: Path) -> None:
    import torch

    named = {f"layer.{at}.weight": np.arange(12, dtype=np.float32).reshape(3, 4) + at for at in range(6)}
    bs.save(named, tmp_path / "model.bpk")
    bs.save(named, tmp_path / "model.safetensors")
    (tmp_path / "shards").mkdir()
    bs.save(named, tmp_path / "shards" / "model.safetensors", max_shard_size=120)
    torch.save({name: torch.tensor(array) for name, array in named.items()}, tmp_path / "model.pt")
    figures = []
    for path in ("model.bpk", "model.safetensors", "shards", "model.pt"):
        found = bs.report(tmp_path / path)
        tensors = {each["name"]: each for each in found.to_dict()["files"][0]["tensors"]}
        figures.append({name: (tensors[name]["stats"], tensors[name]["histogram"]) for name in named})
        places = json.loads(Parsed(found.html).texts["script"][0])["files"][0]["tensors"]["file"]
        assert (len(set(places)) > 1) == (path == "shards"), "a tensor of several files says in which it is"
    assert all(each == figures[0] for each in figures)


def test_memory_does_not_grow_with_the_file(tmp_path: Path, run_python: Any) -> None:
    rows = np.zeros((1 << 10, 1 << 15), np.float32)  # 128 MiB
    rows[5, 7] = 3
    bs.save({"large": rows}, tmp_path / "large.bpk")
    code = (
        "import resource, sys, burnstore as bs, burnstore.io.workers as execution\n"
        "from burnstore.jobs.report.report import report\n"
        "execution.TASK_THREADS = 2\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "found = report(sys.argv[1])\n"
        "assert found.files[0].outcomes[0][0].outliers[0].index == (5, 7)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    assert int(run_python(code, tmp_path / "large.bpk")) < 64 << 10  # KiB
