"""The documentation as a site, built as `make docs` builds it and looked at in Chromium."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import burnstore

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.slow("a browser"),
    pytest.mark.skipif(not (ROOT / "mkdocs.yml").is_file(), reason="the pages are not part of the wheel"),
]


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", config, "--site-dir", site]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built site."""
    folder: Path = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    return folder


@pytest.fixture
def look(browser: Any, site: Path) -> Iterator[Callable[..., Any]]:
    """Open a page of the site in the browser, 1280 px wide; other tests get the browser back with its own size."""

    def look(page: str) -> Any:
        browser.get((site / page).as_uri())
        return browser

    size = browser.get_window_size()
    browser.set_window_size(1280, 900)
    yield look
    browser.set_window_size(size["width"], size["height"])


def test_every_page_of_the_repository_is_in_the_site(site: Path) -> None:
    written = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    expected = [re.sub(r"README$", "index", path.with_suffix("").as_posix()) + ".html" for path in written]
    assert len(expected) > 60
    assert [page for page in expected if not (site / page).is_file()] == []
    assert all((site / page).is_file() for page in ("index.html", "contributing.html", "changelog.html"))


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = "".join(path.read_text("utf-8") for path in (site / "api").glob("*.html"))
    anchors = set(re.findall(r'id="(burnstore\.[\w.]+)"', text))
    missing = [name for name in burnstore.__all__ if name != "nn" and f"burnstore.{name}" not in anchors]
    assert missing == []
    assert {"burnstore.nn.Linear", "burnstore.testing.FormatConformance"} <= anchors


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link|iframe)\b[^>]*?(?:src|href)="(https?:[^"]*)"', path.read_text("utf-8")
        )
        assert loaded == [], path


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Title\n\n[gone](gone.md) [here](#nowhere)\n", "utf-8")
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    settings = "".join(re.findall(r"^strict: .*\n|^validation:\n(?:  .*\n)+", text, re.MULTILINE))
    (tmp_path / "mkdocs.yml").write_text(f"site_name: test\n{settings}", "utf-8")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "gone.md" in done.stderr and "nowhere" in done.stderr


def test_no_code_block_scrolls_sideways_at_1280_pixels(look: Callable[..., Any], site: Path) -> None:
    script = """
        const all = [...document.querySelectorAll("pre, pre > code")];
        return all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent.slice(0, 80));
    """
    found = {}
    for path in sorted(site.rglob("*.html")):
        page = path.relative_to(site).as_posix()
        wide = look(page).execute_script(script)
        if wide:
            found[page] = wide
    assert found == {}


def test_search_finds_a_name_from_the_file_system(look: Callable[..., Any]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    page = look("index.html")
    page.find_element(By.CSS_SELECTOR, "[data-md-component=search-query]").send_keys("KeyRemapper")
    found = "[data-md-component=search-result] .md-search-result__link"
    WebDriverWait(page, 20).until(lambda page: page.find_elements(By.CSS_SELECTOR, found))
    links = [link.get_attribute("href") for link in page.find_elements(By.CSS_SELECTOR, found)]
    assert any("rename.html" in link or "KeyRemapper" in link for link in links)


def test_there_is_a_dark_mode(look: Callable[..., Any]) -> None:
    page = look("tutorial.html")
    try:
        media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        page.refresh()
        assert page.execute_script("return document.body.getAttribute('data-md-color-scheme')") == "slate"
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_what_is_copied_has_neither_prompts_nor_output(look: Callable[..., Any]) -> None:
    """The theme copies the visible text of a block while it has this attribute."""
    copied = look("tutorial.html").execute_script("""
        const all = [...document.querySelectorAll("pre code")];
        const code = all.find((each) => each.textContent.includes("weight[1:3]"));
        code.setAttribute("data-md-copying", "");
        return code.innerText;
    """)
    assert "weight[1:3]" in copied
    assert ">>>" not in copied and "array(" not in copied and "Traceback" not in copied
