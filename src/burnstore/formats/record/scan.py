"""A binary record without a declaration: its tensors are found by their ids, but not what they are called (BR-18)."""

from __future__ import annotations

import re

from ...errors import CorruptError, FormatError, TruncatedError, UnsupportedError, located
from ...limits import Limits
from ..codec.bincode import BincodeReader
from .binary import read_shape
from .document import Document, Leaf, Rows
from .heading import Heading
from .spelling import read_dtype

_ID = re.compile(rb"\x0d([0-9a-v]{13})|\x0a([0-9a-v]{10})|\x24([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_LONGEST_ID = 37
_HINT = "pass like= a declaration of the model"


def scan(reader: BincodeReader, heading: Heading, limits: Limits) -> Document:
    """Every parameter from the reader's position on, in order, named by its number.

    Between tensors there are only marks of a byte or two (options, counts, constants), so an id cannot be missed there.
    One that no tensor follows is that of an optimizer's state, or the file is damaged: both are refused.
    """
    if heading.minor <= 13:
        raise UnsupportedError(
            f"a binary record of Burn {heading.version} does not say what its numbers are", rule="BR-18", hint=_HINT
        )
    rows = Rows()
    item: dict[str, Leaf] = {}
    while True:
        start = _next_id(reader)
        if start is None:
            return Document(heading, item, rows)
        text = reader.text(_LONGEST_ID)
        name = f"tensor_{len(rows.names)}"
        try:
            extent = reader.bytes()
            if not extent.nbytes:
                raise CorruptError("a tensor without bytes, or the state of an optimizer")
            shape = read_shape(reader, limits)
            dtype = read_dtype(reader, heading.minor)
        except FormatError as error:
            raise UnsupportedError(
                f"an id that no tensor follows: {error.message}", rule="BR-18", offset=start, hint=_HINT
            ) from error
        with located(tensor=name, offset=start):
            item[name] = rows.add(name, dtype, shape, extent, text, limits)


def _next_id(reader: BincodeReader) -> int | None:
    """Go to the next id and give its offset; None at the end of the file."""
    while reader.left:
        reader.need(min(reader.left, _LONGEST_ID))
        found = _ID.search(reader.buffer, reader.at)
        if found is not None:
            reader.at = found.start()
            return reader.position
        if len(reader.buffer) - reader.at >= reader.left:
            reader.at = len(reader.buffer)
            return None
        reader.at = max(reader.at, len(reader.buffer) - _LONGEST_ID)
        if not reader.more():
            raise TruncatedError("the file ends inside an id", offset=reader.position)
    return None
