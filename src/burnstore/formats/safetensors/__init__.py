"""SafeTensors (``.safetensors``), the format of Hugging Face's package of that name.

A file is a length, one JSON object of that length, and the data of the tensors.

    offset   size   what
    0        8      N, the length of the header, little-endian
    8        N      header: one JSON object, with white space around it at will; writers pad it with spaces to eight
    8 + N    ...    data: tensors end to end, in the order of their offsets

The object maps each name to ``{"dtype": .., "shape": [..], "data_offsets": [start, end]}``, offsets counted from the
start of the data. The name ``__metadata__`` is no tensor: it may map text to text. The format has no parameter
ids, no scalars and no checksums.

Tensors that share memory are stored once, as ``safetensors.torch.save_model`` does: the metadata maps each name that is
left out to the name that is stored. Such an entry (its key is not a tensor of the file, its value is) is read as a
second name of the tensor.

The rules. Errors and tests cite them; "stricter" marks what the package (0.8) lets pass.

    ST-01  The file has at least 8 bytes; N is no more than the limit (100,000,000 unless `Limits` sets another) and
           the header is inside the file.
    ST-02  The header is UTF-8 and one JSON object; numbers, strings and escapes as RFC 8259 has them, no half of a
           surrogate pair.
    ST-03  No key comes twice in an object, also when one of them is spelled with escapes. (Stricter: the package
           refuses it of ``__metadata__`` and of a descriptor's fields, and takes the last of equal names.)
    ST-04  There are no more tensors than the limit (1,000,000 unless `Limits` sets another), and no more brackets,
           quotes and nesting in the header than that many tensors need. (Stricter.)
    ST-05  ``__metadata__`` maps text to text, or is null.
    ST-06  A descriptor is an object of ``dtype``, ``shape`` and ``data_offsets``, in any order, and nothing else.
           (Stricter: the package ignores other fields, and takes an array of the three.)
    ST-07  A dtype is one of the package's twenty-two. (Stricter: the package takes ``{"F32": null}`` for ``"F32"``.)
    ST-08  A shape has at most 64 axes unless `Limits` sets another, each a natural number below 2^63; their product,
           zeros left out, times the bits of an element stays below 2^63. (Stricter: the number of axes; the package
           takes an extent of 2^64 - 1 beside one of zero.)
    ST-09  ``data_offsets`` are two natural numbers, the first not above the second.
    ST-10  The second less the first is exactly the bytes that dtype and shape need; elements of 4 and 6 bits fill whole
           bytes.
    ST-11  In the order of their offsets the first tensor starts at 0 and each other where the one before ends: no
           overlap, no gap.
    ST-12  The file ends with its last tensor.
    ST-13  A name has at most 64 KiB unless `Limits` sets another. (Stricter.)
    ST-14  A bool is stored as 0 or 1. Checked when a tensor is read. (Stricter.)
    ST-15  Where the metadata has ``DCP_SHARDING_INFO``, as torch's ``HuggingFaceStorageWriter`` writes it, each tensor
           is a piece of another: ``saved_offsets`` (and in newer files ``global_shape``) state its place. The values
           are only read when all files of the set are opened together. (Stricter: the package ignores it.)

Why own code, where there is a package: it copies each tensor out of its map one by one (1 GiB of NumPy arrays takes it
2.3 times as long as reading into place on two threads, 20,000 small tensors 1.8 times as long), it cannot give
part of a NumPy array without a framework or write from lazily read tensors, its NumPy writer writes the memory of a
strided array as if it were in order, its `save({}, {})` writes a header that is no JSON, and saves are not atomic by
default. What it writes and what it refuses is the measure all the same: for equal input the bytes are equal, and a
million mutants were opened by both (``make fuzz-safetensors``); nothing that it refuses is opened here.
"""

from __future__ import annotations

from ..sharded.locate import INDEX_SUFFIX
from .reader import describe_header, read, stated_layout
from .writer import model_stamp as stamp
from .writer import plan

name = "safetensors"
layout = None
index_suffix = INDEX_SUFFIX
holds_ties = True

__all__ = ["describe_header", "holds_ties", "index_suffix", "layout", "name", "plan", "read", "stamp", "stated_layout"]
