"""Page: assemble data and the files in ``web/`` into one HTML document without external files.

The page loads nothing: a Content Security Policy allows only its own script and style, by their digests. Data from a
file of tensors is JSON whose characters cannot end their element; the script puts them on the page only as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from ...errors import printable

_SCRIPTS = ("text.js", "rows.js", "treemap.js", "drawing.js", "detail.js", "table.js", "page.js")
# "<" could begin a tag, "&" an entity in XHTML, ">" the end of a comment; the rest is ASCII.
_HARMLESS = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def page(title: str, overview: Any, details: Iterable[Any]) -> str:
    """Return the page; it parses each of ``details`` when the tensor is shown."""
    folder = files(__package__) / "web"
    style = (folder / "page.css").read_text("utf-8")
    script = "".join(["(() => {\n", '"use strict";\n', *((folder / s).read_text("utf-8") for s in _SCRIPTS), "})();\n"])
    policy = "; ".join(
        [
            "default-src 'none'",
            f"style-src '{_digest(style)}'",
            f"script-src '{_digest(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    parts = {
        "policy": policy,
        "title": html.escape(printable(title)),
        "style": style,
        "overview": _embedded(overview),
        "details": "\n".join(map(_embedded, details)),
        "script": script,
    }
    pieces = (folder / "page.html").read_text("utf-8").split("%%")  # Every second piece is the name of a part.
    return "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(data: Any) -> str:
    """Return JSON for a script element: ASCII, and nothing in it looks like markup."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_HARMLESS)
