"""PyTorch's files (``.pt``, ``.pth``, ``.bin``, ``.ckpt``, ``.pt2``), read and written without PyTorch.

Nothing in a file is run. `writer` writes the zip of today.

A file is one pickle, the object that was saved, and storages, the elements that its tensors are views on. Where the two
are depends on when and how it was written:

    zip       since 1.6: ``<root>/data.pkl``, ``<root>/data/<key>`` for each storage, and small records beside them
              (``byteorder``, ``version``, ``.format_version``, ``.storage_alignment``); also TorchScript archives
    legacy    before 1.6: pickles of a magic number, of 1001, of facts about the machine, of the object, of the list of
              keys; then each storage as a 64-bit count of elements and the elements
    tar       2016 and 2017: members ``pickle``, ``storages`` and ``tensors``, the last two tables
    pickle    what ``pickle.dump`` makes: each storage is a legacy stream of its own inside the pickle
    exported  ``torch.export.save``: no pickle, a table in JSON and a member for each weight

A pickle is a program. Here a machine that imports and calls nothing follows it (`codec.pickle`): calls that are known
to be data (`calls`, `tensor_calls`) become data, all others are only recorded. `read_pickled` gives that object graph
with every name that torch would import; `read` finds the model in it and gives its tensors, lazily.

The rules. Errors and tests cite them; "stricter" marks what torch lets pass, "wider" what it refuses.

    PT-01  The file is one of the containers, by its first bytes, and no larger than the limit.
    PT-02  A zip is whole, and both its descriptions of each member agree: name, method, flags, sizes; names differ
           when case is ignored, and members do not overlap. (Stricter: torch believes the directory alone, the first
           of equal names, and accepts bytes behind the end.)
    PT-03  Members are stored or deflated, not encrypted, not patched, not on other disks.
    PT-04  The name of a member is a relative path without ``..``, backslashes, drives or control characters.
           (Stricter.)
    PT-05  All members are in one folder, and exactly one is called ``data.pkl``. (Wider: the folder may be left out.)
    PT-06  There is no zip inside the zip.
    PT-07  A deflated member gives exactly the bytes it announces; at most 1032 times its own, and in all at most four
           times the file or 1 GiB.
    PT-08  ``byteorder`` is ``little`` or ``big`` (little if left out), ``version`` is 1 to 10; such records are short.
    PT-09  The pickle, the small records and deflated storages have the checksum that the directory states; a checksum
           of 0 was left out by the writer. Stored storages are checked with ``checksums=True`` and when salvaging, as
           it means reading them. (Stricter: torch checks none.)
    PT-10  A legacy stream begins with the magic number, 1001, and a dict that has ``little_endian``.
    PT-11  Its keys are exactly those of the storages referred to; each count is the one declared; the file ends with
           the last storage. (Stricter: torch does not look behind the end.)
    PT-12  A tar has plain members, each once: ``pickle``, ``storages`` and ``tensors`` among them.
    PT-13  The tables of a tar are what they should be, and what the pickle refers to is in them.
    PT-14  A bare pickle fills its file; a storage inside it is one legacy stream, with no other inside. (Wider:
           torch's safe mode does not read these.)
    PT-15  Opcodes are those of protocols 0 to 5, without registered extensions and out-of-band buffers.
    PT-16  The pickle keeps the discipline of its stack: no value from below a mark, items only into lists, dicts, sets
           and objects that are not known, states only for objects, memo entries that exist, dict keys that are plain
           and come once, one value at STOP, nothing behind it. (Stricter: torch takes equal keys and what follows
           STOP.)
    PT-17  Work is bounded: a pickle of 256 MiB, 5 million opcodes, values nested 1,000 deep and a million of them on
           all paths together, a million tensors, strings of 16 MiB, integers of 1 KiB, unless `Limits` allows more.
    PT-18  Nothing that a pickle names is imported, looked up or called, and no option changes that.
    PT-19  A persistent id is a storage's (or in old files a class's); one key always has one class and one length.
    PT-20  A storage has exactly the bytes that its class and length need.
    PT-21  A view (offset, sizes, strides) is of integers that are not negative, of at most 64 axes, and does not leave
           its storage; one that repeats elements has at most 1 GiB.
    PT-22  A known call has valid arguments; sparse and quantized tensors have parts that fit.
    PT-23  The root is a dict, a list or an object, and contains the requested key.
    PT-24  Names are dict keys (strings or integers) and positions in lists, joined by dots; no two tensors have one
           name, and a name is text of at most 64 KiB unless `Limits` allows more.
    PT-25  A module is read as its state dict would be, also the packed weights of a quantized one; no name is
           registered twice in it.
    PT-26  The table of an exported program describes members that exist.
    PT-27  Archives that are code with data (torch.package, mobile models) and those of the first TorchScript are not
           read.
    PT-28  Salvaging needs a whole pickle; what is not whole is left out by name.
    PT-29  A DTensor is the part of a tensor that one rank has. Its mesh, its placements and the rank's coordinate state
           its place; its values are only read when the files of all ranks are opened together. One whose place is not
           a box is left out by name.
    PT-30  A partition of DeepSpeed ZeRO is part of the tensors of all ranks: its values are only read as the FP32
           weights of a folder with the partitions of all ranks, whose lengths fit the shapes of the parameters.
    PT-31  The record ``burnstore.layout`` beside the pickle names the layout of the tensors, where burnstore wrote them
           in another layout than PyTorch's, or does not know it; torch ignores the record.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..base import LAYOUT_KEY
from .reader import checks, describe_header, read, read_pickled
from .stream import PickledFile
from .writer import plan

name = "pytorch"
layout = "torch"
holds_metadata = False
holds_ties = True

__all__ = ["PickledFile", "checks", "describe_header", "holds_metadata", "holds_ties", "layout", "name", "plan", "read"]
__all__ += ["read_pickled", "stated_layout"]


def stated_layout(metadata: Mapping[str, str]) -> str:
    """Return the layout that a file states: PyTorch's, if no record (PT-31) names another."""
    return metadata.get(LAYOUT_KEY, layout)
