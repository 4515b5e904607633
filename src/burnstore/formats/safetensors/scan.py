"""The header at full speed, where it is written as the package and every writer after its manner write it.

A tree of Python objects for 20,000 tensors, and a look at each of them, takes some 100 ms. Nearly all files spell a
descriptor in one form, so here one regular expression cuts the header into columns, in C, and NumPy takes it from
there. It is a recogniser, not a second parser: whatever does not fit the form to the last character gives None and is
left to the strict reader, which accepts it or says what is wrong. Both give the same columns; a test compares them on
every file and on mutants.

Why it cannot be fooled: splitting by the expression leaves what lies between its matches, and that must be nothing, so
the matches tile the text. There is no backslash and no control character in it, so a name ends at its quote and means
what it shows; a number has no sign, no fraction, no leading zero and few enough digits for int64; what is taken for a
dtype and a shape is judged once for all tensors that share it. No part of the expression runs past the next quote or
number, so that a header made to match almost everywhere costs no more than its length.
"""

from __future__ import annotations

import re

import numpy as np

from ...codec import json
from ...errors import FormatError
from ...limits import Limits
from .columns import Columns
from .dtypes import BY_SPELLING
from .header import METADATA

_NUMBER = "(0|[1-9][0-9]{0,17})"
_TENSOR = re.compile(
    r',"([^"]*)":\{"dtype":"([^"]+","shape":\[[0-9,]*)\],"data_offsets":\['
    rf"{_NUMBER},{_NUMBER}\]\}}"
)
_PARTS = 5  # what lies before a match, and its four groups
_SHAPE = re.compile("(?:[1-9][0-9]{0,17}|0)(?:,(?:[1-9][0-9]{0,17}|0))*")
_METADATA = f'{{"{METADATA}":'
_WHITE = " \t\n\r"


def scan_header(text: str, limits: Limits) -> Columns | None:
    """The columns of a header in the common form, None for any other."""
    text = text.strip(_WHITE)
    if text[:1] != "{" or text[-1:] != "}":
        return None
    texts: dict[str, str] = {}
    body = "," + text[1:-1]
    if text.startswith(_METADATA):
        try:
            found = json.parse_texts(text, len(_METADATA))
        except FormatError:
            return None
        if found is None or len(found[0]) > limits.metadata_entries:
            return None
        texts, end = found
        body = text[end:-1]
    if len(body) < 2:
        return None  # no tensors: not worth a form of its own
    if "\\" in body or (np.frombuffer(body.encode(), np.uint8) < ord(" ")).any():
        return None
    parts = _TENSOR.split(body)
    if any(parts[::_PARTS]):
        return None
    names = parts[1::_PARTS]
    if len(names) > (limits.tensors or 0) or len(set(names)) != len(names) or METADATA in names:
        return None
    if len(max(names, key=len)) * 4 > limits.name_bytes:
        return None
    spelled = parts[2::_PARTS]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(spelled))}
    kinds = []
    for kind in numbers:
        spelling, _, extents = kind.partition('","shape":[')
        dtype = BY_SPELLING.get(spelling)
        if dtype is None or (extents and not _SHAPE.fullmatch(extents)):
            return None
        shape = tuple(map(int, extents.split(","))) if extents else ()
        if len(shape) > limits.rank:
            return None
        kinds.append((dtype, shape))
    from_, to = parts[3::_PARTS], parts[4::_PARTS]
    ends = np.array(list(map(int, to)), np.int64)
    if from_[0] == "0" and from_[1:] == to[:-1]:  # end to end, as most files have it: no need to read a number twice
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    else:
        starts = np.array(list(map(int, from_)), np.int64)
    if (starts > ends).any():
        return None
    kind_column = np.fromiter(map(numbers.__getitem__, spelled), np.int64, len(spelled))
    return Columns(names, kinds, kind_column, starts, ends, texts)
