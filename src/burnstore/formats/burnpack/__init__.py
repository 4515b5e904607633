"""Burnpack (``.bpk``), Burn's own container.

A file is a 10-byte header, one CBOR item, and the data of the tensors. Integers of the header are little-endian.

    offset   size   what
    0        4      ``4E 52 55 42``, the ASCII text ``NRUB``
    4        2      version, 1 in every file that any Burn wrote
    6        4      M, the length of the metadata
    10       M      metadata: one CBOR map
    10 + M   P      zeros up to the next multiple of 256; none in files of Burn 0.19
    10+M+P   ...    data: each tensor from the next multiple of 256 on; end to end in files of Burn 0.19

The metadata map has ``tensors`` (name → descriptor, sorted by the bytes of the name) and, where there are any,
``metadata`` (text → text, sorted) and ``scalars`` (text → one of Int, UInt, Float, Bool; Burn 0.22 and later). A
descriptor has ``dtype``, ``shape``, ``data_offsets`` (start and end, counted from the start of the data) and, where the
tensor has one, ``param_id``. Data are in the order in which the model was walked, which need not be that of the names.

The rules. Errors and tests cite them; "stricter" marks what Burn's own readers let pass.

    BP-01  The file has at least 10 bytes and starts with NRUB.
    BP-02  The version is 1. (Stricter: Burn takes 0 too, which no Burn writes.)
    BP-03  The metadata is no longer than the limit (100 MiB unless `Limits` sets another) and is inside the file.
    BP-04  The metadata is one CBOR item of exactly M bytes: definite lengths, no tags, integers of at most 64 bits,
           text in UTF-8, no key twice in a map. (Stricter: Burn takes indefinite lengths, tags, trailing bytes, and the
           last of equal keys.)
    BP-05  The top map has ``tensors``, and besides it only ``metadata`` and ``scalars``. (Stricter: Burn ignores other
           keys; what a newer Burn might mean by one cannot be known.)
    BP-06  A descriptor has ``dtype``, ``shape`` and ``data_offsets``, and besides them only ``param_id``, an unsigned
           integer or null. (Stricter, as BP-05.)
    BP-07  There are no more tensors than the limit (100,000 unless `Limits` sets another).
    BP-08  No two tensors have one name; a name has at most 64 KiB unless `Limits` sets another. (Stricter: Burn takes
           the last of equal names and has no limit.)
    BP-09  A dtype is spelled as some release of Burn spells it.
    BP-10  A shape has at most 64 axes; no axis, and not the byte length, reaches 2^63. (Stricter: the number of axes.)
    BP-11  A start does not exceed its end, and both are below 2^62.
    BP-12  End less start is exactly the number of elements times their size. (Checked by Burn since 0.22.)
    BP-13  Tensors are end to end (0.19), or each starts at the next multiple of 256 after the one before (later
           releases): no overlap, no other gap. (Stricter: Burn checks neither.)
    BP-14  What differs between releases (the places of the tensors, the length of the file, the spelling of dtypes, the
           presence of scalars) agrees, and suffices to determine where the data starts. (Stricter: Burn up to 0.21
           reads files of 0.19 shifted; later releases refuse them.)
    BP-15  The file ends with its last tensor. (Stricter: Burn takes trailing bytes.)
    BP-16  The padding after the metadata is zero. (Stricter. Padding between tensors is read by
           `burnstore.verify` alone, which notes if it is not zero.)
    BP-17  ``metadata`` maps text to text.
    BP-18  A scalar is a map of one entry whose key names its kind and whose value fits it.
    BP-19  A bool is stored as 0 or 1. Checked when a tensor is read.
    BP-20  A quantized tensor has the length that its scheme and shape need; codes are in range. The length is checked
           when the file is opened, codes when the tensor is read. (Burn checks the length since 0.23, the codes never.)

Every constant is Burn's own: 256 is what lets a GPU map tensors in place, 100 MiB and 100,000 bound what a header can
make a reader allocate.
"""

from __future__ import annotations

from .reader import checks, describe_header, read, stated_layout
from .writer import model_stamp as stamp
from .writer import plan

name = "burnpack"
layout = "burn"
holds_scalars = True

__all__ = ["checks", "describe_header", "holds_scalars", "layout", "name", "plan", "read", "stamp", "stated_layout"]
