"""The documentation as a site: it is built, its links lead somewhere, and one that does not would be noticed."""

from __future__ import annotations

import html.parser
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILDER = ROOT / "docs" / "site.py"

pytestmark = pytest.mark.skipif(not BUILDER.is_file(), reason="the pages are not part of the wheel")


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("documentation_site", BUILDER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by its name.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


class Links(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            if name == "id" and value:
                self.ids.add(value)


def test_the_site_is_built_and_every_link_in_it_leads_somewhere(site: ModuleType, tmp_path: Path) -> None:
    output = tmp_path / "site"
    assert site.build(ROOT, output) == []
    pages = {path: Links(path.read_text("utf-8")) for path in output.rglob("*.html")}
    assert output / "index.html" in pages and len(pages) > 30
    for path, links in pages.items():
        for target in links.targets:
            if site.OUTSIDE.match(target):
                continue
            place, _, anchor = target.partition("#")
            led = (path.parent / place).resolve() if place else path
            if led.is_dir():
                continue
            assert led.is_file(), f"{path.relative_to(output)} leads to {target}"
            assert not anchor or anchor in pages[led].ids, f"{path.relative_to(output)} leads to {target}"


def small(root: Path, readme: str, **pages: str) -> None:
    (root / "docs" / "howto").mkdir(parents=True)
    (root / "README.md").write_text(readme, "utf-8")
    for name, text in pages.items():
        (root / "docs" / "howto" / f"{name}.md").write_text(text, "utf-8")


@pytest.mark.parametrize(
    ("readme", "told"),
    [
        ("# R\n[x](docs/howto/a.md) [y](docs/howto/gone.md)", ["README.md: there is no docs/howto/gone.md"]),
        ("# R\n[x](docs/howto/a.md#nowhere)", ["README.md: docs/howto/a.md has no heading #nowhere"]),
        ("# R\n[x](docs/howto/a.md#b--c)", []),
        ("# R\n[x](#s) [x](docs/howto/a.md)", ["README.md: README.md has no heading #s"]),
        ("# R\n", ["docs/howto/a.md: no page leads to it"]),
        ("# R\n[x](docs/howto/a.md) ![p](p.svg)", ["README.md: there is no p.svg"]),
        ("# R\n[x](docs/howto/a.md) [out](https://example.org/gone)", []),
    ],
)
def test_what_is_wrong_with_links_is_told(site: ModuleType, tmp_path: Path, readme: str, told: list[str]) -> None:
    small(tmp_path, readme, a="# A\n\n## B & `c`\n")
    assert site.problems_of(site.pages_of(tmp_path), tmp_path) == told


def test_a_page_that_the_menu_does_not_have_is_told(site: ModuleType, tmp_path: Path) -> None:
    small(tmp_path, "# R\n[x](docs/new.md)")
    (tmp_path / "docs" / "new.md").write_text("# New\n", "utf-8")
    assert site.problems_of(site.pages_of(tmp_path), tmp_path) == ["docs/new.md: it is in no section of the menu"]


def test_text_of_a_page_is_no_markup_of_the_site(site: ModuleType, tmp_path: Path) -> None:
    small(tmp_path, "# <b>R</b>\n[x](docs/howto/a.md)", a="# A\n\n<script>alert(1)</script>\n")
    site.build(tmp_path, tmp_path / "out")
    assert "<script" not in (tmp_path / "out" / "docs" / "howto" / "a.html").read_text("utf-8")
    assert "&lt;b&gt;R" in (tmp_path / "out" / "index.html").read_text("utf-8")


def test_a_folder_that_holds_something_else_is_left_alone(site: ModuleType, tmp_path: Path) -> None:
    small(tmp_path, "# R\n")
    with pytest.raises(SystemExit, match="not empty"):
        site.build(tmp_path, tmp_path / "docs")
    assert (tmp_path / "docs" / "howto").is_dir()
