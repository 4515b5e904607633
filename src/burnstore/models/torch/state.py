"""What a PyTorch module itself calls its state, where that may be more or less than its tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import ModelError
from ...tensor.torch import Tensor, is_tensor, torch_package

Module = Any
"""A torch.nn.Module."""

_METHODS = ("state_dict", "_save_to_state_dict", "get_extra_state")


def check_state_dicts(modules: Iterable[tuple[str, Module]], tensors: dict[str, Tensor]) -> None:
    """Raise ModelError for a module whose ``state_dict()`` is not simply its tensors; modules come with their paths."""
    base = torch_package().nn.Module
    own: dict[type, bool] = {}
    for path, module in modules:
        kind = type(module)
        if kind not in own:
            own[kind] = any(getattr(kind, name) is not getattr(base, name) for name in _METHODS)
        if own[kind] or module._state_dict_hooks or module._state_dict_pre_hooks:
            _check_state_dict(path, module, tensors)


def _check_state_dict(path: str, module: Module, tensors: dict[str, Tensor]) -> None:
    """Raise ModelError unless what the module itself calls its state are the tensors that were found in it."""
    prefix = f"{path}." if path else ""
    given = module.state_dict(prefix=prefix, keep_vars=True)
    found = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    odd = sorted(given.keys() ^ found.keys()) or [name for name in found if not _same(given[name], found[name])]
    if odd:
        raise ModelError(
            f"a {type(module).__name__} whose state_dict() is not its parameters and buffers; {odd[0]!r} differs",
            tensor=path or None,
            hint="give the state dict: bs.save(model.state_dict(), ...), or load into it and call load_state_dict",
        )


def _same(given: Any, found: Tensor) -> bool:
    if given is found:
        return True
    return (
        is_tensor(given)
        and given.data_ptr() == found.data_ptr()
        and given.shape == found.shape
        and given.stride() == found.stride()
        and given.dtype is found.dtype
        and not found.is_meta
    )
