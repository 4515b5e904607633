"""Distributed checkpoints of torch (DCP): a folder that the ranks of a training run wrote together.

    checkpoint/
        .metadata          a pickle: the tensors, the place of each piece in its tensor, and where its bytes are
        __0_0.distcp       the pieces of rank 0: archives of `torch.save`, one after the other
        __1_0.distcp       ...

A checkpoint that was saved without collectives has a ``__0.metadata`` for each rank instead. Nothing in a file is run:
pickles are followed by the machine of `burnstore.formats.codec.pickle`. The pieces are put together by
`burnstore.formats.pieces`; a read takes the pieces that it needs, and of them the rows that it needs. Tensors have the
flat names of the checkpoint. If it has a part with one of the usual names of a model (``model``, ``state_dict``, ...)
beside others, that part is taken; ``top_level_key=""`` takes everything.

The rules. Errors and tests cite them; "stricter" marks what torch's reader lets pass.

    DC-01  The metadata is one pickle of `Metadata`, of version 1.x or none, no larger than the limit. (Stricter: torch
           runs the pickle.)
    DC-02  Its objects are of torch's own classes; a tensor or place of another class is refused by name.
    DC-03  A tensor has a dtype, natural numbers as its size, and chunks; it is strided. Properties have five or six
           fields, since torch 2.15 adds one.
    DC-04  Each piece with elements has one place, and each place belongs to a piece. (Stricter.)
    DC-05  A place is inside of a plain file beside the metadata, shares no byte with another, and is not transformed by
           a codec. (Stricter: torch follows any path, and reads what is there.)
    DC-06  Tensors that Megatron stores in another shape than their own are listed, and not read.
    DC-07  The bytes of a piece are an archive of one tensor with the dtype and the shape that the metadata states, and
           no more elements. Checked when the piece is read. (Stricter: torch copies what fits.)
    DC-08  Entries that are not tensors are left out, with a note that shows the plain ones.

Pieces must cover their tensors exactly (PC-01 to PC-03). Nothing in the format reveals that two pieces of one size were
exchanged, or that a file is of another save with the same shapes.
"""

from __future__ import annotations

from .reader import checks, read
from .writer import plan, save_folder

name = "dcp"
layout = "torch"
holds_metadata = False

__all__ = ["checks", "holds_metadata", "layout", "name", "plan", "read", "save_folder"]
