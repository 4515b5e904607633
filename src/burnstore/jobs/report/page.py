"""Page: data and the files of this folder's ``web/`` assembled into one HTML text that needs nothing else.

Nothing is loaded from anywhere: a Content Security Policy allows the one script and the one style that stand in the
page, by their digests, and nothing more. What comes from a file of tensors is JSON whose characters cannot end the
element that it stands in; the script only ever puts it on the page as text.
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
# "<" could begin a tag, "&" an entity in XHTML, ">" the end of a comment; the rest is ASCII already.
_HARMLESS = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


def page(title: str, overview: Any, details: Iterable[Any]) -> str:
    """The whole page; ``details`` are what it looks at one by one, each when its tensor is shown."""
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
    pieces = (folder / "page.html").read_text("utf-8").split("%%")  # every second piece is the name of a part
    return "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(data: Any) -> str:
    """Data as JSON that can stand in a script element: plain ASCII, and nothing in it looks like markup."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_HARMLESS)
