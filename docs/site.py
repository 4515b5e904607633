"""Build the documentation as a site: every page of the repository as HTML, every link checked.

    python docs/site.py [OUTPUT]        build/docs by default

A link to a page, a file or a heading that is not there is an error, and so is a page that no other leads to or that the
menu does not have. Addresses of the world outside are not visited: the build needs no network.
"""

from __future__ import annotations

import html
import posixpath
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build" / "docs"
HOME = "README.md"
# The sections of the menu: a title, and the pages or folders in it. A folder's README comes first.
SECTIONS = (
    ("Start", (HOME, "docs/tutorial.md", "docs/comparison.md")),
    ("How to", ("docs/howto",)),
    ("Command line", ("docs/verbs",)),
    ("Formats", ("docs/formats", "docs/migration.md")),
    ("Facts", ("docs/guarantees.md", "docs/compatibility.md", "docs/conformance.md", "docs/benchmarks.md")),
    ("Project", ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/decisions")),
)
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass
class Page:
    """A page: where it is in the repository, its title, its body as HTML, the places in it that links can lead to."""

    path: str
    title: str = ""
    body: str = ""
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Where it is in the site."""
        return (
            "index.html" if self.path == HOME else re.sub(r"(^|/)README\.md$", r"\1index.md", self.path)[:-3] + ".html"
        )


def pages_of(root: Path) -> dict[str, Page]:
    """Every page of the repository, rendered."""
    paths = [path for path in (HOME, "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md") if (root / path).is_file()]
    paths += sorted(path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md"))
    pages = {path: Page(path) for path in paths}
    for page in pages.values():
        _render(page, (root / page.path).read_text("utf-8"), pages)
    return pages


def problems_of(pages: dict[str, Page], root: Path) -> list[str]:
    """What is wrong with the links: a sentence for each that leads nowhere, and each page that none leads to."""
    found = []
    reached = {HOME}
    for page in pages.values():
        for link in page.links:
            target, _, anchor = link.partition("#")
            path = _resolved(page.path, target) if target else page.path
            reached.add(_page_at(path, pages) or path)
            known = pages.get(_page_at(path, pages) or "")
            if known is None and not (root / path).exists():
                found.append(f"{page.path}: there is no {link}")
            elif anchor and known is not None and anchor not in known.anchors:
                found.append(f"{page.path}: {known.path} has no heading #{anchor}")
    found += [f"{path}: no page leads to it" for path in pages if path not in reached]
    listed = {path for _, places in SECTIONS for place in places for path in _below(place, pages)}
    found += [f"{path}: it is in no section of the menu" for path in pages if path not in listed]
    return found


def build(root: Path = ROOT, output: Path = OUTPUT) -> list[str]:
    """Write the site and return what is wrong with it."""
    pages = pages_of(root)
    problems = problems_of(pages, root)
    _make_empty(output)
    style = (Path(__file__).parent / "site.css").read_text("utf-8")
    (output / "site.css").write_text(style, "utf-8")
    for page in pages.values():
        place = output / page.address
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_document(page, pages), "utf-8")
        for link in page.links:
            _copy_file(_resolved(page.path, link.partition("#")[0]), pages, root, output)
    return problems


def _make_empty(output: Path) -> None:
    """Remove an older site; a folder that holds anything else is left alone."""
    if output.exists() and any(output.iterdir()):
        if not (output / "site.css").is_file():
            raise SystemExit(f"{output} is not empty and holds no site; give another folder")
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)


def _render(page: Page, text: str, pages: dict[str, Page]) -> None:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    tokens = parser.parse(text)
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            words = _plain(tokens[at + 1])
            page.title = page.title or words
            token.attrSet("id", _anchor(words, page.anchors))
        for child in token.children or ():
            for name in ("href", "src"):
                link = child.attrGet(name)
                if isinstance(link, str) and not OUTSIDE.match(link):
                    page.links.append(link)
                    child.attrSet(name, _in_site(page, link, pages))
    page.body = parser.renderer.render(tokens, parser.options, {})


def _plain(inline: Any) -> str:
    return "".join(child.content for child in inline.children if child.type in ("text", "code_inline"))


def _anchor(words: str, taken: set[str]) -> str:
    """The name that a heading can be linked by, as on GitHub: lower case, no punctuation, hyphens for blanks."""
    base = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
    name, count = base, 0
    while name in taken:
        count += 1
        name = f"{base}-{count}"
    taken.add(name)
    return name


def _resolved(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _page_at(path: str, pages: dict[str, Page]) -> str | None:
    """The page that a path leads to: itself, or the README of a folder."""
    return next((each for each in (path, f"{path}/README.md") if each in pages), None)


def _in_site(page: Page, link: str, pages: dict[str, Page]) -> str:
    target, mark, anchor = link.partition("#")
    if not target:
        return link
    path = _resolved(page.path, target)
    known = _page_at(path, pages)
    return _relative(page, pages[known].address if known else path) + mark + anchor


def _relative(page: Page, address: str) -> str:
    return posixpath.relpath(address, posixpath.dirname(page.address) or ".")


def _copy_file(path: str, pages: dict[str, Page], root: Path, output: Path) -> None:
    """A picture, a licence, a program: what pages show or lead to and is no page itself."""
    if _page_at(path, pages) is None and (root / path).is_file():
        (output / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, output / path)


def _menu(page: Page, pages: dict[str, Page]) -> str:
    parts = []
    for title, places in SECTIONS:
        listed = [path for place in places for path in _below(place, pages)]
        if not listed:
            continue
        items = "".join(_entry(page, pages[path]) for path in listed)
        is_open = " open" if page.path in listed or title == "Start" else ""
        parts.append(f"<details{is_open}><summary>{title}</summary><ul>{items}</ul></details>")
    return "".join(parts)


def _entry(page: Page, other: Page) -> str:
    current = ' aria-current="page"' if other is page else ""
    return f'<li><a href="{html.escape(_relative(page, other.address))}"{current}>{html.escape(other.title)}</a></li>'


def _below(place: str, pages: dict[str, Page]) -> list[str]:
    if place in pages:
        return [place]
    inside = [path for path in pages if posixpath.dirname(path) == place]
    return sorted(inside, key=lambda path: (not path.endswith("README.md"), path))


def _document(page: Page, pages: dict[str, Page]) -> str:
    title = html.escape(page.title if page.path == HOME else f"{page.title} · burnstore")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{title}</title><link rel="stylesheet" href="{_relative(page, "site.css")}"></head>\n'
        f'<body><nav aria-label="Pages"><a class="brand" href="{_relative(page, "index.html")}">burnstore</a>'
        f"{_menu(page, pages)}</nav>\n<main>{page.body}</main></body></html>\n"
    )


def main(arguments: list[str]) -> int:
    """Build, and say what is wrong or where the site is."""
    output = Path(arguments[0]) if arguments else OUTPUT
    problems = build(ROOT, output)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(list(output.rglob('*.html')))} pages in {output / 'index.html'}, {len(problems)} broken links")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
