"""Burn's old records (``.mpk``, ``.bin``, ``.json``, each also ``.gz``), in which Burn 0.13 to 0.21 saved models.

A record is one document in one of three encodings, plain or in gzip:

    metadata   five strings: float, int (Rust types), format (the recorder), version (of Burn), settings (the precision)
    item       the record: a map for a struct, an array for a Vec, array or tuple, one entry for the variant of an enum
    _b         empty, or not there up to Burn 0.11

Of a model only its parameters have values; every other field stores nothing, so a record has neither a stride nor an
epsilon. A parameter is ``{id, param}`` with a tensor as ``param``. A tensor is ``{bytes, shape, dtype}`` from Burn 0.14
on, and before that ``{value, shape}`` with its elements one by one, whose types the precision states. An optimizer's
record maps the id of each parameter to ``{V1: {RankN: state}}``, a scheduler's is a number or a few.

MessagePack and JSON name everything. Bincode names nothing: a ``.bin`` is read along a declaration of its model, or its
tensors are found by their ids and stay without names.

The rules. Errors and tests cite them; "stricter" marks what Burn's own readers let pass.

    BR-01  The first bytes show the encoding: a map that begins with ``metadata``, the text of such an object, or the
           float and int type in bincode; or a gzip member that holds one of these. The file's name plays no part.
    BR-02  A compressed record is one gzip member with the right checksum and length, and nothing after it (stricter).
           It holds at most 200 times its size, or 256 MiB (64 MiB of JSON) if that is more, unless
           ``Limits.header_bytes`` states another number.
    BR-03  MessagePack: text keys in UTF-8, none twice in a map, no extension types (stricter: the keys), lengths that
           the file has room for, at most 256 levels and ten values for each tensor that `Limits` allows.
    BR-04  JSON: the grammar and nothing beside it, UTF-8, no lone surrogates, no key twice, the same bounds.
    BR-05  Bincode 2, ``standard()``: integers in their shortest form, lengths that the file has room for.
    BR-06  The document has ``metadata``, then ``item``, and besides them at most an empty ``_b`` (stricter: the order,
           other keys, and a ``_b`` that is not there).
    BR-07  ``metadata`` has five strings; settings and types are those of one of the three precisions (stricter: Burn
           never looks at them).
    BR-08  An id is the 13 characters of a number, the 10 of Burn 0.14, or a UUID as up to Burn 0.13, which has no
           number.
    BR-09  A tensor has exactly its keys; bytes are a byte string or an array of 0 .. 255, extents are integers.
    BR-10  A shape has at most 64 axes and no more elements than a file can have.
    BR-11  There are exactly as many bytes as elements need. (Stricter: Burn 0.21 takes the first of too many.)
    BR-12  A dtype is spelled as some release of Burn spells it.
    BR-13  The elements of a tensor up to Burn 0.13 are all of one kind. Half precision stores floats as the integers of
           their bits; where the values could be either, a declaration or ``undecided=`` decides.
    BR-14  No two tensors have one path; paths have at most 64 KiB; there are at most 100,000 tensors unless `Limits`
           sets another.
    BR-15  Bytes stand nowhere but in a tensor.
    BR-16  Nothing follows the document. (Stricter: Burn ignores what follows MessagePack and bincode.)
    BR-17  A binary record is read along a declaration in exactly one way, to the last byte.
    BR-18  Without one, every id in it is followed by its tensor, and tensors are called ``tensor_0``, ``tensor_1`` ...
    BR-19  A bool is stored as 0 or 1. Checked when a tensor is read. (Burn 0.21 reads 2 as false.)
    BR-20  A quantized tensor has the length that its scheme and shape need.
    BR-21  A MessagePack tensor has less than 4 GiB: Burn truncates the length of longer ones, which no reader can
           recover; here they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UnsupportedError
from ...limits import Limits
from ...tensor.snapshot import TensorSnapshot
from ..base import WritePlan
from .reader import describe_header, read

name = "record"


def plan(
    tensors: Sequence[TensorSnapshot], metadata: Mapping[str, str] | None, limits: Limits, **options: Any
) -> WritePlan:
    """Refuse: a record is written from a model, whose fields it must have in their order, by one of the recorders."""
    raise UnsupportedError(
        "a record is written from a model, not from named tensors",
        hint="use save_file of burnstore.stores.records with a recorder, or save Burnpack (.bpk)",
    )


__all__ = ["describe_header", "name", "plan", "read"]
