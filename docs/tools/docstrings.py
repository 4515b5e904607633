"""Prepare docstrings for the site: doctests become code blocks, names in backticks become links."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

import burnstore

_SESSION = re.compile(r"(?m)^>>> .*(?:\n(?!\s*$).*)*(?:\n+>>> .*(?:\n(?!\s*$).*)*)*")


class Docstrings(Extension):
    """Rewrite the docstring of every object when it is collected."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value, obj.name)


def rewritten(text: str, own_name: str = "") -> str:
    """Return a docstring as Markdown.

    >>> print(rewritten("Return a `DType`.\\n\\n>>> 1 + 1\\n2"))
    Return a [`DType`][burnstore.DType].
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    text = _SESSION.sub(lambda match: f"```pycon\n{match[0]}\n```", text)
    names = set(burnstore.__all__) - {own_name, "nn"}
    return re.sub(
        r"(?<!`)`([A-Za-z_]+)`(?!`)",
        lambda match: f"[{match[0]}][burnstore.{match[1]}]" if match[1] in names else match[0],
        text,
    )
