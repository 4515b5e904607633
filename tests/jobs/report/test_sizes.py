"""The page on a phone, a tablet and a desk: it fits, names keep their numbers, tensors are images and have links."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.jobs.report.image import image_of

from .pages import arrays

WIDTHS = [390, 768, 1280]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sizes")
    before = {f"model.text_encoder.{name}": values for name, values in arrays().items()}
    after = {name: values * 2 if values.dtype == np.float32 else values for name, values in before.items()}
    bs.save(before, folder / "before.bpk", layout="burn")
    bs.save(after, folder / "after.bpk", layout="burn")
    bs.report(folder / "before.bpk", output=folder / "one.html")
    bs.report(folder / "before.bpk", folder / "after.bpk", output=folder / "two.html")
    return {"one": folder / "one.html", "two": folder / "two.html"}


@pytest.fixture(params=WIDTHS)
def width(browser: Any, request: pytest.FixtureRequest) -> Iterator[int]:
    """A window of that width; the two narrow ones are touched, not pointed at."""
    is_touched = request.param < 1000
    metrics = {"width": request.param, "height": 840, "deviceScaleFactor": 1, "mobile": is_touched}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": is_touched, "maxTouchPoints": 5})
    features = [{"name": "hover", "value": "none"}, {"name": "pointer", "value": "coarse"}] if is_touched else []
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    yield request.param
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def run(page: Any, script: str, *arguments: object) -> Any:
    return page.execute_script(script, *arguments)


def open_first(page: Any, name: str) -> None:
    run(page, "location.hash = encodeURIComponent(arguments[0])", name)
    for _ in range(50):
        if run(page, "return document.querySelector('.sheet .full')?.textContent") == name:
            return
    pytest.fail(f"{name} did not open")


@pytest.mark.slow("a browser")
@pytest.mark.parametrize("name", ["one", "two"])
def test_page_and_sheet_fit_the_window(open_page: Any, pages: dict[str, Path], width: int, name: str) -> None:
    page = open_page(pages[name])
    assert run(page, "return document.documentElement.scrollWidth") <= width
    open_first(page, "model.text_encoder.layers.5.attention.query.weight")
    left, right, inner, shown = run(
        page,
        "const sheet = document.querySelector('.sheet'), box = sheet.getBoundingClientRect();"
        "return [box.left, box.right, sheet.scrollWidth, sheet.clientWidth]",
    )
    assert left >= 0 and right <= width, "all of the sheet is in view"
    assert inner <= shown, "nothing in it is cut off at the side"


@pytest.mark.slow("a browser")
def test_names_keep_their_numbers_and_their_ends(open_page: Any, pages: dict[str, Path], width: int) -> None:
    page = open_page(pages["one"])
    cells = run(
        page,
        "return [...document.querySelectorAll('#rows .ends')].map((each) => [each.textContent, "
        "...[...each.children].filter((part) => part.className === 'number' || part === each.lastChild)"
        ".map((part) => part.scrollWidth <= part.clientWidth)])",
    )
    assert len(cells) > 10 and all(all(is_whole) for text, *is_whole in cells if "layers" in text)


@pytest.mark.slow("a browser")
def test_hints_about_keys_are_for_keyboards(open_page: Any, pages: dict[str, Path], width: int) -> None:
    page = open_page(pages["one"])
    shown = run(page, "return getComputedStyle(document.getElementById('table-keys')).display !== 'none'")
    assert shown == (width > 1000)


@pytest.mark.slow("a browser")
def test_a_tensor_is_an_image_with_a_bar_of_colours(open_page: Any, pages: dict[str, Path]) -> None:
    page = open_page(pages["one"])
    open_first(page, "model.text_encoder.layers.5.attention.query.weight")
    label = run(page, "return document.querySelector('.heat').getAttribute('aria-label')")
    assert label.startswith("Heat map of the values, 16 \u00d7 16, from -")
    colours = run(
        page,
        "const canvas = document.querySelector('.heat'); return [canvas.width, canvas.height, "
        "...canvas.getContext('2d').getImageData(0, 0, 1, 1).data]",
    )
    assert colours[:2] == [16, 16] and colours[2] > colours[4], "900 is the largest value, and red"
    assert run(page, "return document.querySelector('.colours').width") == 128
    open_first(page, "model.text_encoder.layers.0.norm.gamma")
    assert run(page, "return document.querySelectorAll('.heat').length") == 0


@pytest.mark.slow("a browser")
def test_a_link_opens_a_tensor_and_opening_one_gives_the_link(open_page: Any, pages: dict[str, Path]) -> None:
    page = open_page(pages["one"])
    name = "model.text_encoder.layers.7.mlp.up.weight"
    page.get(f"{pages['one'].as_uri()}#{name}")
    page.refresh()
    assert run(page, "return document.querySelector('.sheet .full').textContent") == name
    run(page, "document.querySelector('#rows tr.item.open').click()")
    assert run(page, "return location.hash") == ""
    run(page, "document.querySelector('#rows tr.item').click()")
    assert run(page, "return decodeURIComponent(location.hash.slice(1))").startswith("model.text_encoder.")
    page.get(f"{pages['one'].as_uri()}#%E0%A4%A")  # no valid address
    page.get(f"{pages['one'].as_uri()}#nothing-of-this-name")


@pytest.mark.slow("a browser")
def test_each_changed_tensor_shows_both_distributions(open_page: Any, pages: dict[str, Path]) -> None:
    page = open_page(pages["two"])
    drawn = run(
        page,
        "return [...document.querySelectorAll('#rows tr.item')].filter((row) => row.textContent.includes('changed'))"
        ".map((row) => row.querySelectorAll('.spark .bars, .spark .bars-other').length)",
    )
    assert 2 in drawn and set(drawn) == {0, 2}, "only tensors of equal values have no distribution"


def test_images_are_samples_of_values_that_say_where_they_are_from() -> None:
    values = np.arange(100 * 200, dtype=np.float32).reshape(100, 200)
    values[0, 0] = np.nan
    found = image_of(bs.TensorSnapshot.from_numpy("x", values), 10)
    assert found is not None and (found.height, found.width, found.rows, found.columns) == (10, 10, 100, 200)
    assert found.pixels[0] == 0 and found.pixels[-1] == 255 and list(found.pixels[1:]) == sorted(found.pixels[1:])
    assert image_of(bs.TensorSnapshot.from_numpy("x", values[0]), 10) is None, "one axis is no image"
    assert image_of(bs.TensorSnapshot.from_numpy("x", np.full((2, 2), np.nan)), 10) is None
    extreme = image_of(bs.TensorSnapshot.from_numpy("x", np.float64([[-1.7e308, 1.7e308], [0, 0]])), 4)
    assert extreme is not None and list(extreme.pixels) == [1, 255, 128, 128]


def test_rows_of_large_tensors_are_read_alone(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((600, 1000)).astype(np.float32)
    bs.save({"x": values}, tmp_path / "x.safetensors")
    with bs.open(tmp_path / "x.safetensors") as file:
        read, kept = image_of(file["x"], 8), image_of(bs.TensorSnapshot.from_numpy("x", values), 8)
    assert read is not None and (kept is None or read == kept)
