# ruff: noqa: RUF001  # the page has typographic characters
"""The page in a real browser: it opens without a complaint, does what it offers, by mouse and by keyboard alone."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

import burnstore as bs

from .pages import HOSTILE, arrays, page_of

pytestmark = pytest.mark.slow("a browser")
MOST_SECONDS = 1.0
LEAST_CONTRAST = 4.5


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    single = page_of(folder, arrays())
    changed = arrays()
    changed["embed.weight"] = changed["embed.weight"] + np.float32(0.5)
    changed["start"] = changed.pop("steps")
    changed["layers.0.norm.gamma"] = np.ones(8, np.float32)
    changed["layers.1.norm.gamma"] = np.ones(16, np.float16)
    changed["extra.weight"] = np.ones(5, np.float32)
    del changed["mask"]
    bs.save(changed, folder / "after.bpk", metadata={"epochs": "2"})
    bs.report(folder / "model.bpk", folder / "after.bpk", output=folder / "diff.html")
    return {
        "single": single,
        "diff": folder / "diff.html",
        "plain": page_of(folder, arrays(), "plain.bpk", stats=False),
        "hostile": page_of(folder, {name: np.arange(6.0) for name in HOSTILE}, "hostile.bpk"),
        "empty": page_of(folder, {}, "empty.bpk"),
    }


@pytest.fixture
def page(open_page: Any, pages: dict[str, Path]) -> Any:
    return open_page(pages["single"])


def one(page: Any, selector: str) -> Any:
    return page.find_element(By.CSS_SELECTOR, selector)


def several(page: Any, selector: str) -> list[Any]:
    return page.find_elements(By.CSS_SELECTOR, selector)


def column(page: Any, title: str) -> list[str]:
    """The texts of a column, of the rows that are in the document, in the order shown."""
    script = """
        const titles = [...document.querySelectorAll('#titles button')].map((each) => each.textContent);
        const at = titles.indexOf(arguments[0]);
        return [...document.querySelectorAll('#rows tr.item')].map((row) => row.cells[at].textContent);
    """
    found: list[str] = page.execute_script(script, title)
    return found


def title_button(page: Any, title: str) -> Any:
    return next(each for each in several(page, "#titles button") if each.text.strip() == title)


def order_of(page: Any, title: str) -> str | None:
    found: str | None = title_button(page, title).find_element(By.XPATH, "..").get_attribute("aria-sort")
    return found


def wait(page: Any, condition: str) -> None:
    WebDriverWait(page, 10).until(lambda page: page.execute_script(f"return {condition}"))


def press(page: Any, *keys: str) -> None:
    ActionChains(page).send_keys(*keys).perform()


def focused(page: Any) -> Any:
    return page.switch_to.active_element


# --- opening ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["single", "diff", "plain", "hostile", "empty"])
def test_a_page_opens_without_a_complaint(open_page: Any, pages: dict[str, Path], name: str) -> None:
    page = open_page(pages[name])
    wait(page, "performance.getEntriesByName('ready').length === 1")
    assert one(page, "h1").text != "" and "burnstore" in one(page, "footer").text


def test_the_heading_tells_what_the_file_is(page: Any) -> None:
    assert one(page, "h1").text == "model.bpk"
    tiles = [each.text for each in several(page, ".tile")]
    assert tiles[0] == "Tensors\n40"
    assert "16,356" in tiles[1] and "F16" in tiles[3] and "2 tensors" in tiles[4]
    assert "layout: burn" in one(page, ".chips").text
    assert "burnpack files have it" in one(page, "#about").text


def test_the_policy_stops_a_script_that_is_not_the_page_s_own(open_page: Any, pages: dict[str, Path]) -> None:
    page = open_page(pages["single"])
    page.execute_script(
        "const made = document.createElement('script');"
        "made.textContent = 'window.pwned = 1'; document.body.append(made)"
    )
    assert page.execute_script("return window.pwned") is None
    refused = page.get_log("browser")  # taken out of the log, which must be empty in the end
    assert len(refused) == 1 and "Content Security Policy" in refused[0]["message"]


def test_hostile_names_are_shown_as_text(open_page: Any, pages: dict[str, Path]) -> None:
    page = open_page(pages["hostile"])
    assert page.execute_script("return window.pwned") is None
    assert several(page, "img") == []
    shown = column(page, "Name")
    assert len(shown) == len(HOSTILE) and HOSTILE[0] in shown
    assert "\\u{2028}\\u{2029}\\u{202e}[bidi]\\u{1b}[31m" in shown
    for cell in several(page, "#treemap .cell"):
        assert "\u202e" not in cell.get_attribute("aria-label")
    one(page, "#rows tr.item").click()
    assert one(page, ".sheet .full").text == shown[0]
    assert page.execute_script("return window.pwned") is None


# --- the table --------------------------------------------------------------------------------------------------------


def sortable(text: str) -> Any:
    """What a cell is sorted by, as far as its text tells."""
    sizes = {"B": 0, "KiB": 10, "MiB": 20}
    size = re.fullmatch(r"([\d.]+) (B|KiB|MiB)", text)
    if size:
        return float(size[1]) * 2 ** sizes[size[2]]
    try:
        return float(text)
    except ValueError:
        return text


@pytest.mark.parametrize("title", ["Size", "Min", "Max", "Mean", "Std", "Max |z|", "NaN", "Inf"])
def test_every_column_of_numbers_sorts_both_ways(page: Any, title: str) -> None:
    start = column(page, "Name")
    for order in ("descending", "ascending"):
        title_button(page, title).click()
        assert order_of(page, title) == order
        texts = column(page, title)
        known = [sortable(text) for text in texts if text != "–"]
        assert known == sorted(known, reverse=order == "descending")
        assert all(text == "–" for text in texts[len(known) :]), "what is unknown comes last"
    title_button(page, title).click()
    assert order_of(page, title) == "none" and column(page, "Name") == start


def test_names_sort_by_the_numbers_in_them_and_dtypes_and_shapes_sort(page: Any) -> None:
    title_button(page, "Name").click()
    assert order_of(page, "Name") == "ascending"
    names = [name for name in column(page, "Name") if name.endswith("gamma")]
    assert names == [f"layers.{layer}.norm.gamma" for layer in range(len(names))] and len(names) > 5
    title_button(page, "Dtype").click()
    assert order_of(page, "Name") == "none"
    assert column(page, "Dtype") == sorted(column(page, "Dtype"))
    title_button(page, "Shape").click()
    assert column(page, "Shape")[0] == "scalar"
    title_button(page, "Values").click()
    assert order_of(page, "Values") == "descending"


def test_the_filter_takes_words_and_regular_expressions(page: Any) -> None:
    box = one(page, "#filter")
    box.send_keys("MLP weight")
    assert len(column(page, "Name")) == 12 and all(".mlp." in name for name in column(page, "Name"))
    assert one(page, "#shown").text == "12 of 40, 12.3 K parameters"
    box.clear()
    box.send_keys(r"/^layers\.1?1\.\w+\.gamma$/")
    assert column(page, "Name") == ["layers.1.norm.gamma", "layers.11.norm.gamma"]
    box.clear()
    box.send_keys("/(/")
    assert one(page, "#filter-problem").is_displayed() and len(column(page, "Name")) > 20
    box.clear()
    box.send_keys("nothing like that")
    assert "No tensor matches" in one(page, "#rows").text
    assert not one(page, "#filter-problem").is_displayed()


def test_dtypes_and_alarms_filter(page: Any) -> None:
    Select(one(page, "#filter-dtype")).select_by_value("F16")
    assert set(column(page, "Dtype")) == {"F16"} and len(column(page, "Name")) == 12
    Select(one(page, "#filter-dtype")).select_by_value("")
    one(page, "#filter-unsound").click()
    assert column(page, "Name") == ["layers.3.mlp.up.weight", "layers.7.attention.query.weight"]
    assert [each.text for each in several(page, "#rows td.bad")] == ["1", "2"]


def test_a_tensor_opens_and_shows_histogram_figures_and_outliers(page: Any) -> None:
    one(page, "#filter").send_keys("layers.5.attention")
    row = one(page, "#rows tr.item")
    assert row.get_attribute("aria-expanded") == "false"
    row.click()
    assert one(page, "#rows tr.item").get_attribute("aria-expanded") == "true"
    sheet = one(page, ".sheet")
    assert "layers.5.attention.query.weight" in sheet.text and "at byte" in sheet.text
    first = one(page, ".outliers tbody tr").text
    assert "[0, 0]" in first and "900" in first and "σ" in first
    path = one(page, ".chart .bars").get_attribute("d")
    one(page, ".chart .plain").click()
    assert one(page, ".chart .bars").get_attribute("d") != path, "logarithms look different"
    assert one(page, ".sheet").is_displayed(), "the button of a sheet does not close it"
    one(page, "#rows tr.item").click()
    assert several(page, ".sheet") == []


def test_equal_values_and_integers_beyond_those_of_javascript_are_told_exactly(page: Any) -> None:
    one(page, "#filter").send_keys("steps")
    one(page, "#rows tr.item").click()
    assert f"Every value is {1 << 60}." in one(page, ".sheet").text


def test_without_stats_the_page_has_no_figures_and_says_so(open_page: Any, pages: dict[str, Path]) -> None:
    page = open_page(pages["plain"])
    assert [each.text.strip() for each in several(page, "#titles button")] == ["Name", "Dtype", "Shape", "Size"]
    assert "not read" in one(page, "#heading").text
    one(page, "#rows tr.item").click()
    assert "were not read" in one(page, ".sheet").text


# --- the treemap ------------------------------------------------------------------------------------------------------


def cells(page: Any) -> list[str]:
    return [each.get_attribute("aria-label").split(",")[0] for each in several(page, "#treemap .cell")]


def test_areas_are_in_proportion_to_parameters_and_do_not_overlap(page: Any) -> None:
    boxes = page.execute_script(
        "return [...document.querySelectorAll('#treemap .cell')].map((cell) => [cell.ariaLabel, "
        "parseFloat(cell.style.left), parseFloat(cell.style.top), parseFloat(cell.style.width), "
        "parseFloat(cell.style.height)])"
    )
    areas = {label.split(",")[0]: (width + 2) * (height + 2) for label, _, _, width, height in boxes}
    assert math.isclose(areas["layers"] / areas["embed.weight"], 15552 / 800, rel_tol=0.02)
    for at, (_, left, top, width, height) in enumerate(boxes):
        for _, other_left, other_top, other_width, other_height in boxes[:at]:
            apart_x = left >= other_left + other_width or other_left >= left + width
            apart_y = top >= other_top + other_height or other_top >= top + height
            assert apart_x or apart_y


def test_a_click_zooms_in_and_the_trail_leads_back(page: Any) -> None:
    assert cells(page)[0] == "layers"
    several(page, "#treemap .cell")[0].click()
    assert sorted(cells(page)) == sorted(str(layer) for layer in range(12))
    assert one(page, "#scope").text == "below layers ×" and one(page, "#shown").text.startswith("36 of 40")
    next(each for each in several(page, "#treemap .cell") if each.get_attribute("aria-label").startswith("7,")).click()
    assert sorted(cells(page)) == ["attention.query.weight", "mlp.up.weight", "norm.gamma"]
    assert set(column(page, "Name")) == {f"layers.7.{name}" for name in cells(page)}
    one(page, "#trail button").click()
    assert cells(page)[0] == "layers" and not one(page, "#scope").is_displayed()
    assert one(page, "#shown").text.startswith("40,")


def test_a_tensor_of_the_map_is_opened_in_the_table(page: Any) -> None:
    next(
        each for each in several(page, "#treemap .cell") if each.get_attribute("aria-label").startswith("embed")
    ).click()
    assert one(page, ".sheet .full").text == "embed.weight"


def test_the_map_is_coloured_by_dtype(page: Any) -> None:
    assert "mlp.up.weight" in one(page, "#map-legend").text
    Select(one(page, "#map-colour")).select_by_value("dtype")
    assert {"F32", "F16", "I64"} <= set(one(page, "#map-legend").text.split())


# --- two files --------------------------------------------------------------------------------------------------------


def test_two_files_show_what_changed(open_page: Any, pages: dict[str, Path]) -> None:
    page = open_page(pages["diff"])
    assert one(page, "h1").text == "model.bpk → after.bpk"
    shown = dict(zip(column(page, "Name"), column(page, "Change"), strict=True))
    assert shown["embed.weight"] == "changed" and shown["start"] == "moved" and shown["mask"] == "removed"
    assert shown["layers.0.norm.gamma"] == "shape changed" and shown["layers.1.norm.gamma"] == "dtype changed"
    assert shown["extra.weight"] == "added"
    assert next(iter(shown)) == "embed.weight", "what changed comes first"
    button = next(each for each in several(page, ".status") if "removed" in each.text)
    button.click()
    assert button.get_attribute("aria-pressed") == "true" and column(page, "Name") == ["mask"]
    Select(one(page, "#filter-status")).select_by_value("added")
    assert button.get_attribute("aria-pressed") == "false" and column(page, "Name") == ["extra.weight"]
    Select(one(page, "#filter-status")).select_by_value("")
    one(page, "#filter").send_keys("embed")
    assert column(page, "Max |Δ|") == ["0.5"]
    one(page, "#rows tr.item").click()
    sheet = one(page, ".sheet").text
    assert "cosine" in sheet and "800 of 800 values" in sheet and several(page, ".bars-other") != []
    assert "epochs" in one(page, "#about").text


# --- light and dark ---------------------------------------------------------------------------------------------------


def prefer(page: Any, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def theme(page: Any) -> str:
    found: str = page.execute_script("return document.documentElement.dataset.theme")
    return found


def test_the_system_s_preference_counts_until_a_choice_is_made_and_the_choice_is_remembered(
    open_page: Any, pages: dict[str, Path]
) -> None:
    page = open_page(pages["single"])
    page.execute_script("localStorage.clear()")
    try:
        prefer(page, "dark")
        page.refresh()
        assert theme(page) == "dark" and one(page, "#theme").get_attribute("aria-pressed") == "true"
        prefer(page, "light")
        wait(page, "document.documentElement.dataset.theme === 'light'")
        one(page, "#theme").click()
        assert theme(page) == "dark"
        page.refresh()
        assert theme(page) == "dark"
    finally:
        page.execute_script("localStorage.clear()")
        prefer(page, "")


CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text("utf-8")


@pytest.mark.parametrize("name", ["single", "diff"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_what_is_behind_it(
    open_page: Any, pages: dict[str, Path], tmp_path: Path, name: str, scheme: str
) -> None:
    page = open_page(pages[name])
    page.execute_script(f"document.documentElement.dataset.theme = '{scheme}'")
    one(page, "#rows tr.item").click()
    one(page, "#filter").send_keys("layers")
    page.execute_script("document.querySelector('#rows tr.item').click()")
    contrasts = page.execute_script(CONTRASTS)
    assert len(contrasts) > 100
    assert contrasts[0][0] >= LEAST_CONTRAST, contrasts[:5]
    picture = tmp_path / f"{name}-{scheme}.png"
    assert page.save_screenshot(str(picture)) and picture.stat().st_size > 10_000


# --- the keyboard alone -----------------------------------------------------------------------------------------------


def test_every_part_is_reached_with_tab(page: Any) -> None:
    reached = []
    for _ in range(40):
        press(page, Keys.TAB)
        reached.append(focused(page).get_attribute("id") or focused(page).text.strip() or focused(page).tag_name)
        if reached[-1] == "table":
            break
    assert reached[:3] == ["Skip to the tensors", "theme", "map-colour"]
    wanted = ["filter", "filter-dtype", "filter-unsound", "table"]
    assert [each for each in reached if each in wanted] in (wanted, [*wanted[:3], "Name", "table"])
    assert focused(page).get_attribute("id") == "table"


def test_the_table_is_used_with_keys(page: Any) -> None:
    title = title_button(page, "Size")
    page.execute_script("arguments[0].focus()", title)
    press(page, Keys.ENTER)
    assert order_of(page, "Size") == "descending"
    page.execute_script("document.getElementById('table').focus()")
    names = column(page, "Name")

    def active() -> str:
        at = page.execute_script("return document.getElementById('table').getAttribute('aria-activedescendant')")
        found: str = page.execute_script("return document.getElementById(arguments[0]).cells[0].textContent", at)
        return found

    press(page, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert active() == names[2]
    press(page, Keys.ENTER)
    assert one(page, ".sheet .full").text == names[2]
    press(page, Keys.ARROW_UP)
    assert active() == names[1]
    press(page, Keys.END)
    wait(page, "document.getElementById('table').getAttribute('aria-activedescendant') === 'row-39'")
    press(page, Keys.HOME)
    assert active() == names[0]
    press(page, Keys.ESCAPE)
    assert several(page, ".sheet") == []


def test_the_treemap_is_used_with_keys(page: Any) -> None:
    page.execute_script("document.querySelector('#treemap .cell').focus()")
    start = focused(page).get_attribute("aria-label")
    press(page, Keys.ARROW_RIGHT)
    assert focused(page).get_attribute("aria-label") != start
    for _ in range(4):
        press(page, Keys.ARROW_LEFT)
    assert focused(page).get_attribute("aria-label") == start
    press(page, Keys.ENTER)
    assert "0" in cells(page) and focused(page).get_attribute("class").startswith("cell")
    press(page, Keys.ESCAPE)
    assert cells(page)[0] == "layers"
    tabbable = several(page, "#treemap .cell[tabindex='0']")
    assert len(tabbable) == 1, "one stop for Tab, arrow keys within"


def test_every_control_has_a_name(open_page: Any, pages: dict[str, Path]) -> None:
    page = open_page(pages["diff"])
    nodes = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {"button", "checkbox", "combobox", "searchbox", "textbox", "grid", "columnheader", "link", "img"}
    controls = [node for node in nodes if node.get("role", {}).get("value") in roles and not node["ignored"]]
    assert len(controls) > 20
    assert [node for node in controls if not node.get("name", {}).get("value")] == []


# --- many tensors -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((5000, 8, 16)).astype(np.float32)
    named = {f"decoder.layers.{at // 50}.part{at % 50}.weight": value for at, value in enumerate(values)}
    return page_of(tmp_path_factory.mktemp("large"), named, "large.bpk")


def test_5000_tensors_open_within_a_second(open_page: Any, large: Path, record_property: Any) -> None:
    times = []
    for _ in range(5):  # the best counts: other tests run beside this one
        page = open_page(large)
        wait(page, "performance.getEntriesByName('ready').length === 1")
        times.append(page.execute_script("return performance.getEntriesByName('ready')[0].startTime") / 1000)
        if times[-1] < MOST_SECONDS / 2:
            break
    record_property("seconds to open 5,000 tensors", min(times))
    assert min(times) < MOST_SECONDS, times


def test_only_the_rows_in_view_are_in_the_document(open_page: Any, large: Path) -> None:
    page = open_page(large)
    assert one(page, "#table").get_attribute("aria-rowcount") == "5001"
    assert 20 < len(several(page, "#rows tr.item")) < 100
    height = page.execute_script("return document.getElementById('scroller').scrollHeight")
    page.execute_script("document.getElementById('scroller').scrollTop = 1e9")
    wait(page, "document.getElementById('row-4999') !== null")
    assert 20 < len(several(page, "#rows tr.item")) < 100
    assert page.execute_script("return document.getElementById('scroller').scrollHeight") == height
    assert column(page, "Name")[-1] == "decoder.layers.99.part49.weight"
    page.execute_script("document.getElementById('row-4998').click()")
    assert one(page, ".sheet .full").text == "decoder.layers.99.part48.weight"
    one(page, "#filter").send_keys("layers.77.part7.")
    assert column(page, "Name") == ["decoder.layers.77.part7.weight"]
