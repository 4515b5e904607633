"""Classes of other libraries that are layers of PyTorch in all but name, known by name; the table is data.

``classes.json`` has library → kind → names. ``make classes`` writes it from the installed libraries, and compares what
the classes compute with the formulas. A class is trusted only if its tensors have the names and shapes of its kind.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Mapping

from ..errors import ModelError
from ..io.documents import read_json
from ..tensor.data import Shape
from .layout import AS_IS, CONV1D, PLUS_ONE, SERIES, ModuleKind, is_torch_leaf, torch_map

KINDS = frozenset(
    (
        *("Linear", "Embedding", "PReLU", "LayerNorm", "RMSNorm", "GroupNorm", "Conv1d", "Conv2d", "Conv3d"),
        *("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d"),
        *(*PLUS_ONE, *SERIES, "ModuleDict", CONV1D, AS_IS),
    )
)
"""The kinds that the table may have."""


@functools.cache
def _table() -> Mapping[tuple[str, str], str]:
    source = pkgutil.get_data(__name__, "classes.json")
    assert source is not None
    libraries: dict[str, dict[str, str]] = read_json(source, into=dict[str, dict[str, str]])
    return {
        (library, name): kind
        for library, rows in libraries.items()
        for kind, names in rows.items()
        for name in names.split()
    }


def kind_of_class(module: str, name: str, tensors: Mapping[str, Shape] | None = None) -> str | None:
    """Return the kind of a class of another library; None if it is not in the table.

    ``tensors`` are those of one object of it; None if they are not the tensors of that kind.

    >>> kind_of_class("transformers.models.llama.modeling_llama", "LlamaRMSNorm", {"weight": (8,)})
    'RMSNorm'
    >>> kind_of_class("transformers.models.llama.modeling_llama", "LlamaRMSNorm", {"weight": (8, 8)})
    """
    kind = _table().get((module.partition(".")[0], name))
    if kind is None or tensors is None or not is_torch_leaf(ModuleKind(kind)):
        return kind
    if "weight" not in tensors:
        return None
    try:
        torch_map(ModuleKind(PLUS_ONE.get(kind, kind)), tensors)
    except ModelError:
        return None
    return kind
