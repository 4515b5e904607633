"""Evidence: what in a file says whose layout its tensors have."""

from __future__ import annotations

from ...checkpoint import Checkpoint
from ...formats.base import LAYOUT_KEY
from ...models.layouts import MODULES_KEY

_OF_THE_FORMAT = {
    "burnpack": "Burnpack holds Burn's layout unless the metadata says otherwise.",
    "pytorch": "Files of PyTorch hold PyTorch's layout.",
    "record": "Records are written by Burn, in Burn's layout.",
}
_STAMPS = (
    ("format", "pt", "torch", "what PyTorch's users of SafeTensors write"),
    ("producer", "burn", "burn", "what Burn's own store writes"),
)


def layout_evidence(checkpoint: Checkpoint) -> list[str]:
    """What speaks for the layout that the checkpoint states, or why it states none; a sentence each.

    >>> import numpy as np, burnstore as bs
    >>> with bs.open(bs.serialize({"w": np.zeros(2)}, format="burnpack")) as f:
    ...     layout_evidence(f)
    ["Burnpack holds Burn's layout unless the metadata says otherwise."]
    """
    texts, found = checkpoint.metadata, []
    if LAYOUT_KEY in texts:
        told = "" if texts[LAYOUT_KEY] == checkpoint.layout else ", which is no layout that is known here"
        found.append(f"The metadata says {LAYOUT_KEY} = {texts[LAYOUT_KEY]}{told}.")
    elif checkpoint.format in _OF_THE_FORMAT:
        found.append(_OF_THE_FORMAT[checkpoint.format])
    else:
        for key, value, layout, meaning in _STAMPS:
            if texts.get(key) == value and checkpoint.layout == layout:
                found.append(f"The metadata says {key} = {value}: {meaning}.")
    if not found:
        found.append("Nothing in the file says whose layout its tensors have.")
    if MODULES_KEY in texts:
        found.append(f"The metadata records the kinds of its modules ({MODULES_KEY}), as burnstore writes them.")
    return found
