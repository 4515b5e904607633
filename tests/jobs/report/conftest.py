"""Pages of reports in the browser that `tests/conftest.py` starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


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
