"""A real browser, headless: Chromium of the system, driven by Selenium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def _found() -> tuple[str | None, str | None]:
    return next(filter(None, map(shutil.which, _BROWSERS)), None), shutil.which("chromedriver")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The driver. Without a browser tests are skipped and say so; in CI that is a failure."""
    program, driver = _found()
    if program is None or driver is None:
        reason = "no Chromium with chromedriver; .ci/install-tools installs them on Debian"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,1200"):
        options.add_argument(f"--{argument}")
    options.add_argument("--force-prefers-reduced-motion")  # a click does not wait for a page that scrolls smoothly
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield started
    finally:
        started.quit()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Open a page; when the test ends it must have logged nothing and loaded nothing."""

    def opened(path: Path) -> Any:
        browser.get(path.as_uri())
        return browser

    browser.get("about:blank")
    browser.get_log("browser")
    yield opened
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert loaded == []
    assert browser.get_log("browser") == []
