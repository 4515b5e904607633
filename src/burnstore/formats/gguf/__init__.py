"""GGUF, the format of llama.cpp: versions 2 and 3, little-endian. Numbers may be in blocks with their own scales.

    0    4    magic "GGUF"
    4    4    version, u32: 2 or 3
    8    8    T, the number of tensors, u64
    16   8    M, the number of metadata entries, u64
    24   ...  M entries: key (string), type (u32), value
    ...  ...  T tensors: name (string), number of axes (u32), extents (u64 each, the fastest first), type (u32), offset
              (u64, relative to the data)
    ...  ...  zeros up to the alignment, then the data: each tensor at its offset, zeros up to the alignment in between

A string is its length (u64) and its bytes. A value is a number, a bool, a string or an array (type, count, values).
Shapes are row-major here, as in torch: the extents of the file reversed. A tensor of blocks (``Q4_K``, 32 or 256 values
with scales) has the dtype F32 and a `scheme`; reading it decodes the blocks that it needs, bit-equal to the ``gguf``
package, and a copy in GGUF keeps the blocks. Names are llama.cpp's: the layout is ``gguf`` where the file names an
architecture (`burnstore.pipeline.gguf` has the rules into transformers' names).

Metadata is text: strings unchanged, numbers as Python prints them, bools ``true`` and ``false``, arrays as JSON.

The rules. Errors and tests cite them; "stricter" marks what the ``gguf`` package (0.19) lets pass.

    GG-01  The file begins with GGUF and version 2 or 3, in little-endian order. (Stricter: big-endian files and
           version 1 are refused by name.)
    GG-02  There are no more tensors (1,000,000), metadata entries (1,000,000) and bytes of the header (256 MiB) than
           the limits, nor more than the file has bytes for.
    GG-03  A string is inside the file. A key and a tensor's name have at most 64 KiB and are UTF-8; bytes of values
           that are not UTF-8 are shown as ``\\\\xff``.
    GG-04  A value has a known type; a bool is 0 or 1; an array is inside the file, and at most four are nested.
    GG-05  No key and no tensor comes twice.
    GG-06  ``general.alignment`` is a u32 and a power of two; it is 32 where it is not stated.
    GG-07  A tensor has at most 4 axes, and fewer than 2^61 elements. (Stricter.)
    GG-08  A type is known, and rows are whole blocks of it. Q8_1, Q8_K and Q1_0 are copied and listed, not decoded: the
           package defines no values for them.
    GG-09  Offsets are multiples of the alignment. In their order the first is 0, and each other follows the tensor
           before it, padded to the alignment: no overlap, no gap. (Stricter.)
    GG-10  The file ends with its last tensor, padded at most to the alignment; padding is zero: ``verify`` checks it.
    GG-11  The files of a split model have together the tensors that ``split.tensors.count`` announces.

Written are F32, F16, BF16, F64, I8 to I64, blocks that were read from a GGUF file, and with ``quantize="q8_0"`` Q8_0
for floats of two and more axes whose rows are whole blocks of 32.

Why own code, where there is a package: it reads every array of the metadata into Python objects (a vocabulary takes it
seconds), decodes through many temporary arrays (two to thirteen times as long), accepts offsets outside the file and
raises exceptions of NumPy.
"""

from __future__ import annotations

from .reader import checks, describe_header, read, stated_layout
from .writer import losses, plan

name = "gguf"
layout = None

__all__ = ["checks", "describe_header", "layout", "losses", "name", "plan", "read", "stated_layout"]
