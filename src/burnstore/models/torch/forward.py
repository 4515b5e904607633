"""Run a torch model with other tensors than its own, and see what its modules compute.

Nothing of the model changes: tensors are substituted for the time of a call, and hooks are removed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...errors import ModelError, printable
from ...tensor.torch import torch_package

_NAMES_HINT = "state the names that differ, as names={'recorded': 'torch'}"


class TorchForward:
    """The forward pass of a model with recorded inputs; ``names`` has torch's names for recorded ones."""

    def __init__(self, model: Any, inputs: Mapping[str, Any], names: Mapping[str, str]) -> None:
        self.torch = torch_package()
        if not isinstance(model, self.torch.nn.Module):
            raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
        self.model = model
        self.names = names
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.own = {**self.parameters, **dict(model.named_buffers(remove_duplicate=False))}
        if any(tensor.is_meta for tensor in self.own.values()):
            raise ModelError("the torch model is on the meta device, where nothing is computed")
        self.stored = [name for name in model.state_dict(keep_vars=True) if name in self.own]
        self.arguments, self.keywords = self._bind(inputs)

    def _bind(self, inputs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the inputs as arguments: by name where forward has all names, in their order where it has none."""
        given = {self.names.get(name, name): self.torch.from_numpy(array.copy()) for name, array in inputs.items()}
        parameters = inspect.signature(self.model.forward).parameters
        known = {name for name, each in parameters.items() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
        if given.keys() <= known:
            return [], given
        unknown = [name for name in given if name not in known]
        if len(unknown) < len(given) or any(name in self.names for name in inputs):
            raise ModelError(
                f"forward has no parameter {unknown[0]!r}; it has {', '.join(parameters)}", hint=_NAMES_HINT
            )
        return list(given.values()), {}

    def tied(self, name: str) -> list[str]:
        """Return the other names of a tensor of the model."""
        tensor = self.own.get(name)
        return [other for other, held in self.own.items() if other != name and held is tensor]

    def run(
        self, values: Mapping[str, Any], modules: Sequence[str] = (), *, grad: bool = False
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the outputs, and the outputs of modules, with these values in place of the model's tensors."""
        inner: dict[str, Any] = {}
        with self._evaluating(), self._watched(modules, inner), self.torch.set_grad_enabled(grad):
            try:
                made = self.torch.func.functional_call(
                    self.model, dict(values), tuple(self.arguments), self.keywords, tie_weights=False
                )
            except Exception as error:
                text = printable(" ".join(str(error).split()))[:300]
                raise ModelError(
                    f"the torch model's forward pass failed: {type(error).__name__}: {text}", hint=_NAMES_HINT
                ) from error
        return dict(self._flat(made, "")), inner

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        was_training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            yield
        finally:
            for module in was_training:
                module.training = True

    @contextmanager
    def _watched(self, modules: Sequence[str], inner: dict[str, Any]) -> Iterator[None]:
        hooks = []
        try:
            for path in modules:
                module = self.model.get_submodule(path)

                def keep(_module: Any, _inputs: Any, output: Any, path: str = path) -> None:
                    tensors = list(self._flat(output, ""))
                    if tensors:
                        inner.setdefault(path, tensors[0][1])  # a module that is called again: its first output

                hooks.append(module.register_forward_hook(keep))
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _flat(self, value: Any, name: str) -> Iterator[tuple[str, Any]]:
        """Yield the tensors of an output with their names: keys of mappings, numbers of tuples, joined by dots."""
        if isinstance(value, self.torch.Tensor):
            yield name or "output", value
        elif isinstance(value, Mapping):
            for key, held in value.items():
                yield from self._flat(held, f"{name}.{key}" if name else str(key))
        elif isinstance(value, (list, tuple)):
            for at, held in enumerate(value):
                yield from self._flat(held, f"{name}.{at}" if name else str(at))

    def pair_outputs(self, recorded: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, str]:
        """Return torch's name of each recorded output: the same, the one that is stated, or the only one that fits."""
        pairs: dict[str, str] = {}
        for name, array in recorded.items():
            wanted = self.names.get(name, name)
            fitting = [each for each, tensor in outputs.items() if tuple(tensor.shape) == array.shape]
            if wanted not in outputs and len(fitting) == 1 and name not in self.names:
                wanted = fitting[0]
            if wanted not in outputs:
                shown = ", ".join(f"{each} {list(tensor.shape)}" for each, tensor in outputs.items())
                raise ModelError(
                    f"the torch model has no output {wanted!r} of the shape {list(array.shape)}; it has {shown}",
                    hint=_NAMES_HINT,
                )
            pairs[name] = wanted
        return pairs

    def modules_called(self) -> dict[str, list[str]]:
        """Return the names of the tensors below each module of the model that has some."""
        owned: dict[str, list[str]] = {}
        for name in self.stored:
            segments = name.split(".")
            for depth in range(1, len(segments)):
                owned.setdefault(".".join(segments[:depth]), []).append(name)
        return owned

    def head_counts(self) -> list[int]:
        """Return the numbers that modules or the configuration call counts of heads."""
        found: dict[int, None] = {}
        places = [*self.model.modules(), getattr(self.model, "config", None)]
        for place in places:
            for key, value in vars(place).items() if hasattr(place, "__dict__") else ():
                if "head" in key and type(value) is int and 1 <= value <= 1024 and "dim" not in key:
                    found[value] = None
        return list(found)
