"""Hooks of the site generator: pages outside docs/, the API reference, and code blocks that can be copied.

MkDocs calls the functions ``on_*``; mkdocs.yml names this file. The API reference follows the code: one page per part
of the package, with every name in ``burnstore.__all__`` and in ``__all__`` of the modules that are public themselves.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import posixpath
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

import burnstore

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import rewritten  # a neighbour of this file, which MkDocs loads by its path

ROOT = Path(__file__).resolve().parents[2]
# Files of the repository that are pages or targets of links, and their place in the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE-APACHE": "LICENSE-APACHE.txt",
    "LICENSE-MIT": "LICENSE-MIT.txt",
}
# What the theme would load from the network to make search work for pages opened from the file system, and our own.
SHIM, OUR_SHIM = "https://unpkg.com/iframe-worker/shim", "assets/search-from-files.js"
# The pages of the API reference: the part of the package, the title, one sentence.
PARTS = {
    "": ("Save, load, open", "Open any file, save and load any model."),
    "stores": ("Stores", "The fluent interface: a place, a format and the steps in between."),
    "jobs": ("Jobs", "Convert, merge, compare, verify and inspect files."),
    "transforms": ("Filters, renames, adapters", "Choose, rename and change tensors on their way."),
    "models": ("Models", "Collect tensors from a model and apply tensors to a model."),
    "pipeline": ("Pipeline", "All options of a load, a save or a conversion as one value."),
    "tensor": ("Tensors", "Lazy tensors, dtypes, parameter ids and scalars."),
    "formats": ("Formats", "What a format is, and how to register one."),
    "io": ("Input and output", "Settings for transfers to a GPU."),
    "errors": ("Errors", "Every error derives from `BurnstoreError` and from the builtin that fits."),
    "nn": ("nn: Burn's layers", "Declare a Burn model in Python."),
    "testing": ("testing", "The conformance tests for a format of your own."),
}


def public_names() -> dict[str, list[str]]:
    """Return the full public names by page: ``{"": ["burnstore.load", ...], "errors": [...], ...}``.

    A name is public if it is in ``burnstore.__all__``, in ``__all__`` of any module below, or an exception of
    ``burnstore.errors``. An object that has several public names is shown under the shortest.
    """
    listed = {"burnstore": list(burnstore.__all__)}
    for module in pkgutil.walk_packages(burnstore.__path__, "burnstore."):
        if not module.name.endswith("__main__") and "__all__" in _source(module.name):
            listed[module.name] = list(importlib.import_module(module.name).__all__)
    if "burnstore.errors" not in listed:
        found = vars(importlib.import_module("burnstore.errors")).items()
        listed["burnstore.errors"] = [name for name, value in found if _is_defined_in(value, "burnstore.errors")]
    pages: dict[str, list[str]] = {part: [] for part in PARTS}
    shown: set[int] = set()
    for module_name, names in sorted(listed.items(), key=lambda item: item[0].count(".")):
        module = importlib.import_module(module_name)
        for name in names:
            value = getattr(module, name)
            if inspect.ismodule(value) or id(value) in shown:
                continue
            shown.add(id(value))
            pages[_part_of(value, module_name)].append(f"{module_name}.{name}")
    return {part: sorted(names, key=_functions_first) for part, names in pages.items() if names}


def _functions_first(name: str) -> tuple[bool, str]:
    return inspect.isclass(_object(name)), name.lower()


def _object(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _is_defined_in(value: object, module: str) -> bool:
    return inspect.isclass(value) and value.__module__ == module and not value.__name__.startswith("_")


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    return Path(spec.origin).read_text("utf-8") if spec and spec.origin else ""


def _part_of(value: object, module: str) -> str:
    """Return the page of an object: the part of the package that defines it, or the first page for the root's files."""
    place = (getattr(value, "__module__", None) or module).split(".")
    return place[1] if len(place) > 1 and place[1] in PARTS else ""


def api_pages() -> dict[str, str]:
    """Return the Markdown of the API reference by the path of each page."""
    pages = {}
    overview = ["# API reference", "", "Every public name, by the part of the package that defines it.", ""]
    for part, names in public_names().items():
        title, sentence = PARTS[part]
        address = f"{part or 'burnstore'}.md"
        overview += [f"## [{title}]({address})", "", sentence, ""]
        overview += ["| name | summary |", "|---|---|"]
        overview += [f"| [`{_short(name)}`]{_target(name, address)} | {_summary(name)} |" for name in names] + [""]
        body = [f"# {title}", "", sentence, ""]
        for name in names:
            body += [f"::: {name}" if _is_in_source(name) else _section(name), ""]
        pages[f"api/{address}"] = "\n".join(body)
    return {"api/index.md": "\n".join(overview), **pages}


def _target(name: str, address: str) -> str:
    """Return the target of a link to a name: mkdocstrings knows its own headings, and MkDocs those of a page."""
    return f"[{name}]" if _is_in_source(name) else f"({address}#{name})"


@cache
def _source_tree() -> Any:
    """Return what mkdocstrings finds, which reads the source and runs nothing."""
    return griffe.load("burnstore", search_paths=[ROOT / "src"])


def _is_in_source(name: str) -> bool:
    try:
        found = _source_tree()[_short(name)]
        return bool(found.is_class or found.is_function or not callable(_object(name)))
    except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
        return False


def _section(name: str) -> str:
    """Return the text for a class or function that a call creates, so that no ``class`` or ``def`` is in the source."""
    value = _object(name)
    signature = inspect.signature(value).replace(return_annotation=inspect.Signature.empty)
    short = name.rpartition(".")[2]
    symbol = '<code class="doc-symbol doc-symbol-heading doc-symbol-class"></code>'
    heading = f"## {symbol} {name} {{ #{name} data-toc-label='{short}' }}"
    return f"{heading}\n\n```python\n{short}{signature}\n```\n\n{rewritten(inspect.getdoc(value) or '')}"


def _short(name: str) -> str:
    return name.removeprefix("burnstore.")


def _summary(name: str) -> str:
    doc = inspect.getdoc(_object(name)) or ""
    return re.sub(r"\s+", " ", doc.split("\n\n")[0]).replace("|", r"\|")


# --- what MkDocs calls ------------------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Fill the two parts of the navigation that follow the code and the folder of decisions."""
    decisions = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    filled = {
        "api": [*api_pages()],
        "decisions": ["decisions/README.md", *(f"decisions/{name}" for name in decisions)],
    }
    config.nav = _fill(config.nav, filled)
    return config


def _fill(entry: Any, filled: dict[str, list[str]]) -> Any:
    if isinstance(entry, list):
        return [_fill(each, filled) for each in entry]
    if isinstance(entry, dict):
        return {title: filled.get(below, below) if isinstance(below, str) else _fill(below, filled)
                for title, below in entry.items()}  # fmt: skip
    return entry


def on_files(files: Files, config: Any) -> Files:
    """Add what is not in docs/: the README and its neighbours, and the generated pages."""
    for path, address in OUTSIDE.items():
        content = (ROOT / path).read_text("utf-8")
        files.append(
            File.generated(config, address, content=_relinked(content, path) if path[-3:] == ".md" else content)
        )
    for address, content in api_pages().items():
        files.append(File.generated(config, address, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links reach the pages outside docs/, and mark sessions, so that prompts are not copied."""
    if page.file.generated_by is None:
        markdown = _relinked(markdown, f"docs/{page.file.src_uri}")
    return re.sub(r"^```python\n(?=>>> )", "```pycon\n", markdown, flags=re.MULTILINE)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Replace the one script that the theme would load from the network."""
    return output.replace(SHIM, posixpath.relpath(OUR_SHIM, posixpath.dirname(page.url) or "."))


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same for the page that a server shows where there is none."""
    return output_content.replace(SHIM, OUR_SHIM)


def _relinked(markdown: str, path: str) -> str:
    """Return a page with its links to files of the repository turned into links within the site."""
    here = posixpath.dirname(_in_site(path))

    def replaced(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match["target"]))
        return f"]({posixpath.relpath(_in_site(target), here or '.')}{match['anchor']})"

    return re.sub(r"\]\((?P<target>[^)#:\s]+)(?P<anchor>(?:#[^)\s]*)?)\)", replaced, markdown)


def _in_site(path: str) -> str:
    return OUTSIDE.get(path, path.removeprefix("docs/"))
