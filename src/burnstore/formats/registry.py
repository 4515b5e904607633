"""Which formats there are, by name, suffix and signature; each is imported when first needed.

An entry is a string such as ``burnstore.formats.burnpack``, so knowing a format costs nothing. A format of one's own is
added with `register_format`; `burnstore.testing.FormatConformance` proves it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from ..errors import MissingDependencyError, UnknownFormatError
from .base import Format
from .sharded.locate import begins_like_index

HEAD_BYTES = 512
"""How many of a file's first bytes a signature may look at."""

Signature = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class FormatEntry:
    """What is known of a format before it is imported."""

    name: str
    target: str
    suffixes: tuple[str, ...]
    signature: Signature
    install_hint: str | None = None

    def load(self) -> Format:
        """The format itself."""
        module_name, _, attribute = self.target.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise MissingDependencyError(
                f"the format {self.name!r} is known but could not be loaded: {error}",
                hint=self.install_hint or f"is {module_name} installed?",
            ) from error
        found = getattr(module, attribute, None) if attribute else module
        if found is None or not all(hasattr(found, part) for part in ("name", "read", "plan")):
            raise MissingDependencyError(
                f"the format {self.name!r} is known, but {self.target} is not a format",
                hint="it must have name, read and plan, see burnstore.formats.base.Format",
            )
        return cast(Format, found)


_ENTRIES: dict[str, FormatEntry] = {}


def register_format(
    name: str,
    target: str,
    *,
    suffixes: Sequence[str],
    signature: bytes | Signature,
    install_hint: str | None = None,
) -> None:
    """Make a format known: where its code is, what its files end in and how they begin.

    ``target`` is ``"package.module"`` or ``"package.module:attribute"`` and must give a `Format`. ``signature`` is the
    first bytes of its files, or a function of the first 512 bytes. A name that is taken is a ValueError. Suffixes may
    be shared or end in one another (``.gz``, ``.mpk.gz``): the longest that fits decides, a draw is refused at saving.
    """
    for what, value in (("name", name), ("target", target)):
        if not isinstance(value, str):
            raise TypeError(f"a format's {what} is a str, not {type(value).__name__}")
        if not value:
            raise ValueError(f"a format's {what} cannot be empty")
    if name in _ENTRIES:
        raise ValueError(f"there is a format {name!r} already")
    if isinstance(suffixes, str) or not all(isinstance(suffix, str) and suffix[:1] == "." for suffix in suffixes):
        raise TypeError("suffixes are a list of strings such as '.bpk'")
    if not isinstance(signature, bytes) and not callable(signature):
        raise TypeError(f"a signature is bytes or a function of bytes, not {type(signature).__name__}")
    if isinstance(signature, bytes) and not 0 < len(signature) <= HEAD_BYTES:
        raise ValueError(f"a signature has 1 to {HEAD_BYTES} bytes, not {len(signature)}")
    matches = (lambda head, magic=signature: head.startswith(magic)) if isinstance(signature, bytes) else signature
    _ENTRIES[name] = FormatEntry(name, target, tuple(map(str.lower, suffixes)), matches, install_hint)


def format_names() -> list[str]:
    """The names of all known formats."""
    return list(_ENTRIES)


def format_named(name: str) -> Format:
    """The format of that name."""
    if not isinstance(name, str):
        raise TypeError(f"a format's name is a str, not {type(name).__name__}")
    entry = _ENTRIES.get(name)
    if entry is None:
        raise UnknownFormatError(f"there is no format {name!r}; there are: {', '.join(_ENTRIES)}")
    return entry.load()


def format_for_path(path: str) -> Format:
    """The format that files of this suffix have."""
    name = os.path.basename(path).lower()
    fitting = [(suffix, e) for e in _ENTRIES.values() for suffix in e.suffixes if name.endswith(suffix)]
    longest = max((len(suffix) for suffix, _ in fitting), default=0)
    best = [entry for suffix, entry in fitting if len(suffix) == longest]
    if len(best) == 1:
        return best[0].load()
    if best:
        raise UnknownFormatError(
            f"the suffix fits more than one format: {', '.join(entry.name for entry in best)}",
            path=path,
            hint="pass format=...",
        )
    known = ", ".join(suffix for entry in _ENTRIES.values() for suffix in entry.suffixes)
    raise UnknownFormatError(
        f"the name does not tell the format (known suffixes: {known})",
        path=path,
        hint="pass format=... or add a suffix",
    )


def format_for_bytes(head: bytes) -> Format:
    """The format whose signature these first bytes bear; the name of a file plays no part."""
    matching = [entry for entry in _ENTRIES.values() if entry.signature(head)]
    if len(matching) == 1:
        return matching[0].load()
    if matching:
        raise UnknownFormatError(
            f"the bytes fit more than one format: {', '.join(entry.name for entry in matching)}", hint="pass format=..."
        )
    if not head:
        raise UnknownFormatError("the file is empty", offset=0)
    raise UnknownFormatError(
        f"no known format begins with the bytes {head[:8].hex(' ')} (known: {', '.join(_ENTRIES)})", offset=0
    )


def _begins_like_safetensors(head: bytes) -> bool:
    """A length that some file could have, then a JSON object; text of any kind would be a length beyond all files.

    Or the JSON of an index of several such files.
    """
    if len(head) < 8 or int.from_bytes(head[:8], "little") >> 48:
        return begins_like_index(head)
    return head[8:].lstrip(b" \t\n\r")[:1] in (b"{", b"")


def _begins_like_a_record(head: bytes) -> bool:
    """The first key of a record in MessagePack, JSON or bincode, or gzip around it, into which the format looks."""
    if head[1:6] != b"\xa8meta" and not head.startswith((b"\x03f", b"\x13half::", b"\x1f\x8b\x08")):
        text = head.lstrip(b" \t\n\r")
        if not (text.startswith(b"{") and text[1:].lstrip(b" \t\n\r").startswith(b'"metadata"')):
            return False
    from .record.reader import is_record  # not at import: the first bytes decide for most files

    return is_record(head)


def _begins_like_pytorch(head: bytes) -> bool:
    """A zip, a tar, or a pickle of any protocol; none of torch's containers has a mark of its own."""
    if head[:4] in (b"PK\3\4", b"PK\5\6") or head[257:262] == b"ustar" or head[4:8] == b"PTMF":
        return True
    if head[:1] == b"\x80":
        return len(head) > 1 and head[1] <= 5 and not _begins_like_safetensors(head)
    return head[:2] in (b"(d", b"(l", b"}q", b"}(", b"]q", b"}.", b"].") or head.startswith(
        (b"ccollections\n", b"L1195470")
    )


register_format("burnpack", "burnstore.formats.burnpack", suffixes=[".bpk"], signature=b"NRUB")
register_format(
    "record",
    "burnstore.formats.record",
    suffixes=[".mpk", ".mpk.gz", ".bin.gz", ".json.gz"],
    signature=_begins_like_a_record,
)
register_format(
    "safetensors", "burnstore.formats.safetensors", suffixes=[".safetensors"], signature=_begins_like_safetensors
)
register_format(
    "pytorch",
    "burnstore.formats.pytorch",
    suffixes=[".pt", ".pth", ".bin", ".ckpt", ".pt2", ".pth.tar"],
    signature=_begins_like_pytorch,
)
