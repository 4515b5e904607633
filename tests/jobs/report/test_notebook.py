"""What a notebook shows: short, escaped, without script, and readable on light and dark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from selenium.webdriver.common.by import By

import burnstore as bs
from burnstore.jobs.inspect.inspect import inspect as inspect_file

from .pages import HOSTILE, arrays
from .test_report import Parsed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    bs.save(arrays(), tmp_path / "model.bpk")
    return tmp_path / "model.bpk"


def test_an_open_file_shows_its_size_where_its_parameters_are_and_its_first_tensors(file: Path) -> None:
    with bs.open(file) as opened:
        shown = opened._repr_html_()
    for told in (
        "model.bpk",
        "burnpack",
        "16,356",
        "F32",
        "layers",
        "95 %",
        "layers.0.mlp.up.weight",
        "40 tensors",
        "search",
    ):
        assert told in shown, told
    assert inspect_file(file)._repr_html_() == shown
    assert bs.report(file)._repr_html_() == shown


def test_only_the_tensors_that_were_wanted_are_shown(file: Path) -> None:
    shown = inspect_file(file, pattern="norm", limit=3)._repr_html_()
    assert shown.count("<tr>") == 1 + 3 and "embed" not in shown


def test_a_difference_shows_what_changed(file: Path, tmp_path: Path) -> None:
    bs.save({**arrays(), "steps": np.array(7), "extra": np.ones(2)}, tmp_path / "after.bpk")
    shown = bs.diff(file, tmp_path / "after.bpk")._repr_html_()
    assert "model.bpk" in shown and "after.bpk" in shown and "changed: steps" in shown and "added: extra" in shown
    assert "<b>39</b>" in shown
    assert shown in bs.report(file, tmp_path / "after.bpk")._repr_html_()


def test_a_file_without_tensors_is_shown() -> None:
    with bs.open(bs.serialize({}, format="burnpack")) as opened:
        assert "tensors" in opened._repr_html_()
    assert "none" in bs.diff({}, {})._repr_html_()


def test_names_cannot_inject_and_nothing_runs(tmp_path: Path) -> None:
    path = tmp_path / "<b>&.bpk"
    bs.save({name: np.ones(2) for name in HOSTILE}, path)
    with bs.open(path) as opened:
        page = Parsed(opened._repr_html_())
    tags = {"div", "span", "b", "table", "thead", "tbody", "tr", "th", "td", "code", "details", "summary"}
    assert set(page.tags) <= tags, "a short table has no field for searching"
    assert {name for name, _ in page.attributes} == {"style", "open"}
    changed = bs.diff(path, {})._repr_html_()
    assert set(Parsed(changed).tags) <= tags


@pytest.mark.slow("a browser")
def test_a_long_table_is_searched_and_folds(open_page: Any, file: Path, tmp_path: Path) -> None:
    with bs.open(file) as opened:
        (tmp_path / "notebook.html").write_text(f'<meta charset="utf-8"><body>{opened._repr_html_()}', "utf-8")
    browser = open_page(tmp_path / "notebook.html")
    browser.find_element(By.TAG_NAME, "input").send_keys("LAYERS.5")
    rows = browser.find_elements(By.CSS_SELECTOR, "tbody tr")
    assert [row.text.split()[0] for row in rows if row.is_displayed()] == [
        name for name in arrays() if "layers.5" in name
    ]
    browser.find_element(By.TAG_NAME, "summary").click()
    assert not browser.find_element(By.TAG_NAME, "table").is_displayed()


def results(file: Path, folder: Path) -> list[Any]:
    """One of every kind of result."""
    other, model = folder / "other.bpk", {name: values for name, values in arrays().items() if "norm" in name}
    saved = bs.save(model, other, layout="burn")
    fitting = {name: np.zeros_like(values) for name, values in model.items()}
    return [
        bs.open(file),
        saved,
        bs.load(fitting, other),
        bs.inspect(file, stats=True),
        bs.diff(file, other),
        bs.verify(file),
        bs.scan(file),
        bs.explain(other, fitting),
        bs.merge([other], folder / "merged.bpk"),
        bs.convert(other, folder / "converted.safetensors", keep_layout=True),
    ]


def test_every_result_has_html_plain_data_and_a_table(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    pandas = ModuleType("pandas")
    pandas.DataFrame = lambda rows: made.append(rows) or len(rows)  # type: ignore[attr-defined]
    for result in results(file, tmp_path):
        json.dumps(result.to_dict(), allow_nan=False)
        shown = Parsed(result._repr_html_())
        assert "script" not in shown.tags and "details" in shown.tags, type(result)
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(bs.errors.MissingDependencyError, match="to_pandas needs pandas"):
            result.to_pandas()
        monkeypatch.setitem(sys.modules, "pandas", pandas)
        assert (result.to_pandas() > 0 and "name" in made[-1][0]) or "target" in made[-1][0]
        if isinstance(result, bs.Checkpoint):
            result.close()


CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text("utf-8")


@pytest.mark.slow("a browser")
@pytest.mark.parametrize(("paper", "ink"), [("#ffffff", "#000000"), ("#111111", "#e0e0e0")])
def test_it_is_readable_on_light_and_dark(open_page: Any, file: Path, tmp_path: Path, paper: str, ink: str) -> None:
    with bs.open(file) as opened:
        shown = opened._repr_html_()
    page = tmp_path / "notebook.html"
    page.write_text(f'<meta charset="utf-8"><body style="background:{paper};color:{ink}">{shown}', "utf-8")
    browser = open_page(page)
    assert browser.find_element(By.TAG_NAME, "table").is_displayed()
    contrasts = [each for each in browser.execute_script(CONTRASTS) if each[2] != "■"]  # a square of colour, no text
    assert len(contrasts) > 60 and contrasts[0][0] >= 4.5, contrasts[:3]
