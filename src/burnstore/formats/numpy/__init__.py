"""NumPy's files: ``.npy``, one array, and ``.npz``, a zip of such files. Read and written without NumPy's own reader.

    .npy    "\\x93NUMPY", two bytes of version (1, 2 or 3), the length of the header (2 bytes, 4 since version 2), the
            header, a dict such as ``{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }``, then the values
    .npz    a zip: the member ``name.npy`` is the array ``name``; stored, or deflated (``savez_compressed``)

No pickle is ever read: an array of objects is one. A ``.npy`` file has one tensor, called ``array``. Neither format
has metadata, parameter ids or scalars. A ``.npz`` that burnstore writes states the layout of its tensors if that is
known.

The rules. Errors and tests cite them.

    NP-01  A ``.npy`` begins with the magic bytes and version 1.0, 2.0 or 3.0; its header is inside the file and has
           at most 10,000 bytes, as NumPy has it.
    NP-02  The header is a dict of exactly ``descr``, ``fortran_order`` and ``shape``: a text, a bool and a tuple of
           natural numbers, nothing else and no expression.
    NP-03  A dtype is bool, an integer, a float of 2, 4 or 8 bytes or a complex number of 8 or 16, in either byte order.
           Arrays of objects, strings, dates, records and raw bytes are not tensors: a ``.npy`` of one is refused, and
           such a member of a ``.npz`` is left out with a note.
    NP-04  The values fill the rest of the file or member exactly.
    NP-05  A zip is whole, and both its descriptions of each member agree; members are stored or deflated (at most 1032
           times their packed size, in all four times the file or 1 GiB unless `Limits.trusted` lifts that), and each
           name ends in ``.npy``. (Stricter: NumPy does not compare the descriptions, and has no limit.)
    NP-06  Checksums are those of the bytes: compared when an array is read, as NumPy does, and by ``verify`` for all.
           A part of a stored array that is read on its own is not compared.
    NP-07  A name has no zero byte, and no other member has it. What is written is printable, relative, without
           backslashes and ``..``, and unlike other names when case is ignored.
    NP-08  A shape has at most 64 axes unless `Limits` sets another, and its bytes fit a file.
    NP-09  A bool is stored as 0 or 1. Checked when a tensor is read.
    NP-10  A zip whose comment is ``burnstore.layout=`` and a name states the layout of its tensors; NumPy ignores the
           comment. Other comments are ignored. A ``.npy`` states none, and tensors of a known layout are not written
           as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace

from ..base import LAYOUT_KEY
from .reader import checks, describe_header, read
from .writer import plan

name = "npz"
holds_metadata = False

npy = SimpleNamespace(
    name="npy", holds_metadata=False, read=read, plan=partial(plan, single=True), describe_header=describe_header
)
"""The format of one array."""

__all__ = ["checks", "describe_header", "holds_metadata", "name", "npy", "plan", "read", "stated_layout"]


def stated_layout(metadata: Mapping[str, str]) -> str | None:
    """Return the layout that a file states: none, unless its comment (NP-10) names one."""
    return metadata.get(LAYOUT_KEY)
