"""The known formats, by name, suffix and signature; each is imported when first needed.

An entry is a string such as ``burnstore.formats.burnpack``, so knowing a format costs nothing. Another package adds a
format with `register_format`, or through an entry point: a function in the group ``burnstore.formats`` that calls
`register_format`. Entry points are looked up only where no known format answers, so importing and opening files of
known formats never pays for them. `burnstore.testing.FormatConformance` tests a format.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from ..errors import MissingDependencyError, UnknownFormatError, expect
from ..io.paths import base_name
from .base import Format
from .sharded.locate import begins_like_index

HEAD_BYTES = 512
"""The number of first bytes of a file that a signature may look at."""

ENTRY_POINT_GROUP = "burnstore.formats"

Signature = Callable[[bytes], bool]

_PICKLES = (b"(d", b"(l", b"}q", b"}(", b"]q", b"}.", b"].", b"ccollections\n", b"L1195470")  # before protocol 2


@dataclass(frozen=True, slots=True)
class FormatEntry:
    """What is known about a format before it is imported."""

    name: str
    target: str
    suffixes: tuple[str, ...]
    signature: Signature
    install_hint: str | None = None

    def load(self) -> Format:
        """Import the format."""
        module_name, _, attribute = self.target.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise MissingDependencyError(
                f"the format {self.name!r} is known but could not be loaded: {error}",
                hint=self.install_hint or f"install {module_name}",
            ) from error
        found = getattr(module, attribute, None) if attribute else module
        if found is None or not all(hasattr(found, part) for part in ("name", "read", "plan")):
            raise MissingDependencyError(
                f"the format {self.name!r} is known, but {self.target} is not a format",
                hint="give it name, read and plan, see burnstore.formats.base.Format",
            )
        return cast(Format, found)


_ENTRIES: dict[str, FormatEntry] = {}
_broken_entry_points: list[str] | None = None  # None until they were looked up


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
    first bytes of its files, or a function of the first 512 bytes. A name that is taken is a ValueError. Formats may
    share a suffix, and one suffix may end in another (``.gz``, ``.mpk.gz``): the longest that fits decides, and a draw
    is refused when saving.
    """
    for what, value in (("name", name), ("target", target)):
        if not expect(value, str, f"a format's {what}"):
            raise ValueError(f"a format's {what} cannot be empty")
    if name in _ENTRIES:
        raise ValueError(f"there is a format {name!r} already")
    if isinstance(suffixes, str) or not all(isinstance(suffix, str) and suffix[:1] == "." for suffix in suffixes):
        raise TypeError("suffixes are a list of strings such as '.bpk'")
    if not isinstance(signature, bytes) and not callable(signature):
        raise TypeError(f"a signature must be bytes or a function of bytes, got {type(signature).__name__}")
    if isinstance(signature, bytes) and not 0 < len(signature) <= HEAD_BYTES:
        raise ValueError(f"a signature has 1 to {HEAD_BYTES} bytes, not {len(signature)}")
    matches = (lambda head, magic=signature: head.startswith(magic)) if isinstance(signature, bytes) else signature
    _ENTRIES[name] = FormatEntry(name, target, tuple(map(str.lower, suffixes)), matches, install_hint)


def format_names() -> list[str]:
    """Return the names of all known formats, those of installed packages included."""
    _register_entry_points()
    return list(_ENTRIES)


def format_named(name: str) -> Format:
    """Return the format of that name."""
    if expect(name, str, "a format's name") not in _ENTRIES:
        _register_entry_points()
    entry = _ENTRIES.get(name)
    if entry is None:
        raise _unknown(f"unknown format {name!r}; known: {', '.join(_ENTRIES)}")
    return entry.load()


def format_for_path(path: str, format: str | None = None) -> Format:
    """Return the format of this name, or without one the format that files of this suffix have."""
    if format is not None:
        return format_named(format)
    name = base_name(path).lower()
    best = _with_longest_suffix(name)
    if not best and _register_entry_points():
        best = _with_longest_suffix(name)
    if len(best) == 1:
        return best[0].load()
    if best:
        raise UnknownFormatError(
            f"the suffix fits more than one format: {', '.join(entry.name for entry in best)}",
            path=path,
            hint=f'pass format="{best[0].name}"',
        )
    known = ", ".join(suffix for entry in _ENTRIES.values() for suffix in entry.suffixes)
    raise _unknown(
        f"the file name has no suffix of a known format (known suffixes: {known})",
        path=path,
        hint='add a suffix, or pass format="safetensors" or another format',
    )


def name_with_suffix_of(format: str, name: str) -> str:
    """Return a file name with the suffix of a format in place of its own.

    >>> name_with_suffix_of("burnpack", "model.pth.tar"), name_with_suffix_of("safetensors", "my.folder")
    ('model.bpk', 'my.folder.safetensors')
    """
    format_named(format)
    known = [suffix for entry in _ENTRIES.values() for suffix in entry.suffixes if name.lower().endswith(suffix)]
    return name.removesuffix(name[len(name) - max(map(len, known), default=0) :]) + _ENTRIES[format].suffixes[0]


def format_for_bytes(head: bytes) -> Format:
    """Return the format whose signature these first bytes match; the name of the file plays no part."""
    matching = [entry for entry in _ENTRIES.values() if entry.signature(head)]
    if not matching and head and _register_entry_points():
        matching = [entry for entry in _ENTRIES.values() if entry.signature(head)]
    if len(matching) == 1:
        return matching[0].load()
    if matching:
        raise UnknownFormatError(
            f"the bytes fit more than one format: {', '.join(entry.name for entry in matching)}",
            hint=f'state which: burnstore.open(path, format="{matching[0].name}")',
        )
    if not head:
        raise UnknownFormatError("the file is empty", offset=0)
    hint = next((hint for start, hint in _ELSEWHERE.items() if head.lstrip()[:64].lower().startswith(start)), "")
    raise _unknown(
        f"no known format begins with the bytes {head[:8].hex(' ')} (known: {', '.join(_ENTRIES)})", offset=0, hint=hint
    )


_ELSEWHERE = {
    b"version https://git-lfs": "it is a pointer of Git LFS, not the file: run git lfs pull",
    b"<!doctype html": "it is a web page, not the file: download the file itself",
    b"<html": "it is a web page, not the file: download the file itself",
    b"\x89hdf": "it is an HDF5 file, as of Keras: save the weights as .npz or .safetensors first",
    b"\x08\x07\x12": "it looks like an ONNX file: save the weights as .safetensors first",
    b"\x08\x08\x12": "it looks like an ONNX file: save the weights as .safetensors first",
}
"""The beginnings, in lower case, of files that are often mistaken for a checkpoint, and what to do."""


def _with_longest_suffix(name: str) -> list[FormatEntry]:
    fitting = [(suffix, e) for e in _ENTRIES.values() for suffix in e.suffixes if name.endswith(suffix)]
    longest = max((len(suffix) for suffix, _ in fitting), default=0)
    return [entry for suffix, entry in fitting if len(suffix) == longest]


def _register_entry_points() -> bool:
    """Let installed packages register their formats, once; return whether there are more formats than before."""
    global _broken_entry_points
    if _broken_entry_points is not None:
        return False
    _broken_entry_points = []
    from importlib.metadata import entry_points  # not at import: it takes 20 ms

    before = len(_ENTRIES)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            point.load()()
        except Exception as error:  # a broken package must not stop files of other formats
            _broken_entry_points.append(f"{point.value}: {error}")
    return len(_ENTRIES) > before


def _unknown(message: str, *, path: str | None = None, offset: int | None = None, hint: str = "") -> UnknownFormatError:
    """Return the error for an unknown format; its hint names the entry points that could not be loaded."""
    hints = [hint] if hint else []
    if _broken_entry_points:
        hints.append(f"repair these format packages, which could not be loaded: {'; '.join(_broken_entry_points)}")
    return UnknownFormatError(message, path=path, offset=offset, hint="; ".join(hints) or None)


def _begins_like_safetensors(head: bytes) -> bool:
    """Match a length that a file could have, then a JSON object; or the JSON of an index of such files.

    Two bytes of a length may spell the beginning of a pickle, a zip or a tar, so `_begins_like_pytorch` gives way to
    this signature. A Burnpack file and a pickle of the first protocols may look like a length beyond any header.
    """
    length = int.from_bytes(head[:8], "little")
    if len(head) < 8 or length >> 48:
        return begins_like_index(head) and not _names_pytorch_shards(head) and not _begins_like_a_record(head)
    if length >> 32 and head.startswith((b"NRUB", b"GGUF", *_PICKLES)):
        return False
    return head[8:].lstrip(b" \t\n\r")[:1] in (b"{", b"")


def _names_pytorch_shards(head: bytes) -> bool:
    """Match the first shard that an index names."""
    return b'.safetensors"' not in head and b'.bin"' in head


def _begins_like_a_record(head: bytes) -> bool:
    """Match the first key of a record in MessagePack, JSON or bincode, or gzip, which the format then looks into."""
    if head[1:6] != b"\xa8meta" and not head.startswith((b"\x03f", b"\x13half::", b"\x1f\x8b\x08")):
        text = head.lstrip(b" \t\n\r")
        if not (text.startswith(b"{") and text[1:].lstrip(b" \t\n\r").startswith(b'"metadata"')):
            return False
    from .record.reader import is_record  # not at import: the first bytes decide for most files

    return is_record(head)


def _begins_like_pytorch(head: bytes) -> bool:
    """Match a zip, a tar, or a pickle of any protocol; none of torch's containers has a signature of its own."""
    if _begins_like_safetensors(head) or _begins_like_dcp(head):
        return False
    if _begins_like_npz(head):
        return False
    if begins_like_index(head) and _names_pytorch_shards(head):
        return True
    if head[:4] in (b"PK\3\4", b"PK\5\6") or head[257:262] == b"ustar" or head[4:8] == b"PTMF":
        return True
    return head.startswith(_PICKLES) or (head[:1] == b"\x80" and len(head) > 1 and head[1] <= 5)


def _begins_like_dcp(head: bytes) -> bool:
    """Match the pickle of ``Metadata``, the first class that the metadata of a distributed checkpoint names."""
    return head[:1] == b"\x80" and b"torch.distributed.checkpoint.metadata" in head[:64] and b"Metadata" in head[:128]


def _begins_like_npz(head: bytes) -> bool:
    """Match a zip whose first member is called ``*.npy``, and an empty one, which NumPy writes for no arrays.

    An empty one may have a comment that states the layout, as burnstore writes it. A name that is longer
    than the first bytes is an array's: torch names the members itself.
    """
    end = 30 + int.from_bytes(head[26:28], "little")
    is_array = head[30:end].endswith(b".npy") or end > len(head) >= HEAD_BYTES
    is_empty = len(head) == 22 or head[22:].startswith(b"burnstore.layout=")
    return not _begins_like_safetensors(head) and (
        (head[:4] == b"PK\3\4" and is_array) or (head[:4] == b"PK\5\6" and is_empty)
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
register_format("dcp", "burnstore.formats.dcp", suffixes=[".dcp"], signature=_begins_like_dcp)
register_format("npz", "burnstore.formats.numpy", suffixes=[".npz"], signature=_begins_like_npz)
register_format("npy", "burnstore.formats.numpy:npy", suffixes=[".npy"], signature=b"\x93NUMPY")
register_format("gguf", "burnstore.formats.gguf", suffixes=[".gguf"], signature=b"GGUF")
