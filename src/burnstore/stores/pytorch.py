"""PytorchStore: the files of ``torch.save``, read without PyTorch."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from ..errors import UnsupportedError
from .base import Store

S = TypeVar("S", bound="PytorchStore")


class PytorchStore(Store):
    """A file of PyTorch (``.pt``, ``.pth``, ``.bin``, ``.ckpt``), with the builder methods of Burn's store.

    Nothing in the file is run. For a model in Burn's layout the tensors are converted without an adapter: the weights
    of Linear are transposed, norms and recurrent layers get Burn's form, indices are contiguous, enum variants are left
    out of the names. A PyTorch model gets them unchanged. A state dict under a usual key is found, and the result notes
    the key; ``with_top_level_key`` names another. The store does not write; `burnstore.save` writes ``.pt``.

    >>> import pickle, numpy as np
    >>> from burnstore import nn
    >>> state = {"weight": np.ones((3, 2), np.float32), "bias": np.zeros(3, np.float32)}
    >>> checkpoint = pickle.dumps({"epoch": 3, "my_state_dict": state})
    >>> store = PytorchStore.from_bytes(checkpoint).with_top_level_key("my_state_dict")
    >>> store.keys()
    ['bias', 'weight']
    >>> store.load(nn.Linear(2, 3)).applied
    ['weight', 'bias']
    """

    format = "pytorch"

    def __init__(self) -> None:
        super().__init__()
        self._top_level_key: str | None = None

    def with_top_level_key(self: S, key: str) -> S:
        """Take the tensors below this key; ``a.b`` is b below a, ``""`` selects everything in the file."""
        if not isinstance(key, str):
            raise TypeError(f"a top-level key must be a str, got {type(key).__name__}")
        self._top_level_key = key
        return self._reset()

    def save(self, model: Any) -> NoReturn:
        """Refuse, as Burn's store does: `burnstore.save` writes ``.pt``."""
        raise UnsupportedError(
            "Saving to PyTorch format is not yet supported. Use other formats for saving.",
            path=self.path,
            hint="burnstore.save writes .pt; BurnpackStore and SafetensorsStore save their formats",
        )

    collect_from = save

    def _open_options(self) -> dict[str, Any]:
        return {} if self._top_level_key is None else {"top_level_key": self._top_level_key}
