"""Adapters: tensors in the form that the other side expects, decided by the module that holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..errors import DTypeError
from ..tensor.dtype import DType
from ..tensor.snapshot import TensorSnapshot
from .axes import transposed
from .layout import Layout
from .precision import BURN_FLOATS, cast

_RENAMED_NORMS = frozenset({"Struct:BatchNorm", "Struct:LayerNorm", "Struct:GroupNorm", "Struct:RmsNorm"})
_HALF_PRECISION_MODULES = (
    "Linear",
    "Embedding",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "DeformConv2d",
    "LayerNorm",
    "GroupNorm",
    "InstanceNorm",
    "RmsNorm",
    "PRelu",
)


class ModuleAdapter:
    """The base of all adapters, which changes nothing; override what your adapter does.

    `adapt` sees one tensor at a time. `adapt_module` sees all tensors directly in one module, by the last
    segment of their paths, and may return another set (one matrix for three fused ones). On a save both see the model's
    tensors, on a load the file's under the model's module types. `alternative_param_name` is asked on a load for the
    name that a file may have for a parameter.

    >>> class Scale(ModuleAdapter):
    ...     def adapt(self, snapshot):
    ...         return snapshot.with_path(snapshot.path.replace("scale", "gamma"))
    """

    def adapt(self, snapshot: TensorSnapshot) -> TensorSnapshot:
        """Return one tensor in the other form."""
        return snapshot

    def alternative_param_name(self, param_name: str, module_type: str) -> str | None:
        """Return another name that the source may use for this parameter of a module of this type."""
        return None

    def adapt_module(self, module_type: str, tensors: Mapping[str, TensorSnapshot]) -> Mapping[str, TensorSnapshot]:
        """Return all tensors of one module in the other form, by the last segment of their paths."""
        return tensors

    def chain(self, following: ModuleAdapter) -> ModuleAdapter:
        """Return an adapter that applies this one and then ``following``."""
        return ChainAdapter(self, following)

    @property
    def is_structural(self) -> bool:
        """Whether modules must be shown to it as a whole."""
        return type(self).adapt_module is not ModuleAdapter.adapt_module

    replaces_layout: bool = False
    """Whether it converts between layouts itself, so that the automatic conversion is left out.

    An adapter that changes only values or dtypes leaves this False. One that changes names or axes of tensors whose
    layout must be converted as well is refused unless it sets this to True.
    """

    takes_layout: Layout | None = None
    """The layout of the tensors that it expects; None for any."""

    gives_layout: Layout | None = None
    """The layout of the tensors that it returns; None where it does not change it."""


class IdentityAdapter(ModuleAdapter):
    """Leave every tensor unchanged."""


class FunctionAdapter(ModuleAdapter):
    """An adapter made of a function of one snapshot, such as a lambda."""

    def __init__(self, function: Callable[[TensorSnapshot], TensorSnapshot]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def adapt(self, snapshot: TensorSnapshot) -> TensorSnapshot:
        adapted = self.function(snapshot)
        if not isinstance(adapted, TensorSnapshot):
            raise TypeError(f"{self.name} must return a TensorSnapshot, got {type(adapted).__name__}")
        return adapted


class ChainAdapter(ModuleAdapter):
    """One adapter after the other."""

    def __init__(self, first: ModuleAdapter, second: ModuleAdapter) -> None:
        for adapter in (first, second):
            if not isinstance(adapter, ModuleAdapter):
                raise TypeError(f"an adapter can only be chained with an adapter, got {type(adapter).__name__}")
        self.first = first
        self.second = second

    def adapt(self, snapshot: TensorSnapshot) -> TensorSnapshot:
        return self.second.adapt(self.first.adapt(snapshot))

    def alternative_param_name(self, param_name: str, module_type: str) -> str | None:
        name = self.first.alternative_param_name(param_name, module_type)
        if name is None:
            return self.second.alternative_param_name(param_name, module_type)
        return self.second.alternative_param_name(name, module_type) or name

    def adapt_module(self, module_type: str, tensors: Mapping[str, TensorSnapshot]) -> Mapping[str, TensorSnapshot]:
        return self.second.adapt_module(module_type, self.first.adapt_module(module_type, tensors))

    @property
    def is_structural(self) -> bool:
        return self.first.is_structural or self.second.is_structural

    @property
    def replaces_layout(self) -> bool:  # type: ignore[override]  # of two adapters it is computed
        """Whether either converts between layouts."""
        return self.first.replaces_layout or self.second.replaces_layout

    @property
    def takes_layout(self) -> Layout | None:  # type: ignore[override]
        """The layout that the first of the two to name one expects."""
        return self.first.takes_layout or self.second.takes_layout

    @property
    def gives_layout(self) -> Layout | None:  # type: ignore[override]
        """The layout of the tensors after both."""
        return self.second.gives_layout or self.first.gives_layout


class _TorchAdapter(ModuleAdapter):
    """What both directions share: a Linear's weight is transposed, the parameters of norms are renamed.

    A quantized weight is passed on unchanged, as Burn does since 0.22: its bytes are not its values.
    """

    names: Mapping[str, str]
    replaces_layout = True

    def adapt(self, snapshot: TensorSnapshot) -> TensorSnapshot:
        module_type = snapshot.module_type
        parent, dot, name = snapshot.path.rpartition(".")
        if module_type == "Struct:Linear":
            if name == "weight" and len(snapshot.shape) == 2 and not snapshot.dtype.is_quantized:
                return transposed(snapshot)
        elif module_type in _RENAMED_NORMS and name in self.names:
            return snapshot.with_path(parent + dot + self.names[name])
        return snapshot

    def alternative_param_name(self, param_name: str, module_type: str) -> str | None:
        if module_type not in _RENAMED_NORMS:
            return None
        return next((source for source, target in self.names.items() if target == param_name), None)


class PyTorchToBurnAdapter(_TorchAdapter):
    """From PyTorch's form to Burn's: Linear weights [out, in] → [in, out], norms weight → gamma, bias → beta."""

    takes_layout = "torch"
    gives_layout = "burn"
    names = {"weight": "gamma", "bias": "beta"}  # noqa: RUF012  # read only


class BurnToPyTorchAdapter(_TorchAdapter):
    """From Burn's form to PyTorch's: Linear weights [in, out] → [out, in], norms gamma → weight, beta → bias."""

    takes_layout = "burn"
    gives_layout = "torch"
    names = {"gamma": "weight", "beta": "bias"}  # noqa: RUF012  # read only


class HalfPrecisionAdapter(ModuleAdapter):
    """F32 → F16 on a save and F16 → F32 on a load, for the modules that take half precision well.

    Which way is decided by the tensor's dtype, so one adapter serves both; all other dtypes stay. BatchNorm is not
    among the modules: its running variance underflows.

    >>> HalfPrecisionAdapter().without_module("LayerNorm").with_module("MyLayer").module_count
    14
    """

    def __init__(self, modules: Iterable[str] = _HALF_PRECISION_MODULES) -> None:
        if isinstance(modules, str):
            raise TypeError(f"modules must be a list of types, got {modules!r}; with_module adds one")
        self._modules = {_qualified(name) for name in modules}

    def with_module(self, name: str) -> HalfPrecisionAdapter:
        """Also for modules of this type (``Linear``, or with its kind: ``Enum:Feature``)."""
        self._modules.add(_qualified(name))
        return self

    def without_module(self, name: str) -> HalfPrecisionAdapter:
        """Not for modules of this type; a type that is not among them is a ValueError."""
        if _qualified(name) not in self._modules:
            raise ValueError(f"{name!r} is not among the modules: {', '.join(sorted(self._modules))}")
        self._modules.discard(_qualified(name))
        return self

    @property
    def module_count(self) -> int:
        """How many module types are converted."""
        return len(self._modules)

    def adapt(self, snapshot: TensorSnapshot) -> TensorSnapshot:
        if snapshot.module_type in self._modules:
            if snapshot.dtype is DType.F32:
                return cast(snapshot, DType.F16)
            if snapshot.dtype is DType.F16:
                return cast(snapshot, DType.F32)
        return snapshot


class FloatCastAdapter(ModuleAdapter):
    """Cast every float tensor to one dtype, in any module; integers, bools and quantized tensors stay.

    >>> str(FloatCastAdapter.to(DType.BF16).dtype)
    'BF16'
    """

    def __init__(self, dtype: DType) -> None:
        if dtype not in BURN_FLOATS:
            raise DTypeError(f"the target must be a float dtype of Burn, got {dtype}")
        self.dtype = dtype

    @classmethod
    def to(cls, dtype: DType) -> FloatCastAdapter:
        """Return an adapter that casts to this dtype."""
        return cls(dtype)

    def adapt(self, snapshot: TensorSnapshot) -> TensorSnapshot:
        return cast(snapshot, self.dtype) if snapshot.dtype in BURN_FLOATS else snapshot


def _qualified(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a module type must be a str, got {type(name).__name__}")
    return name if ":" in name else f"Struct:{name}"


ADAPTERS: dict[str, type[ModuleAdapter]] = {
    adapter.__name__: adapter
    for adapter in (PyTorchToBurnAdapter, BurnToPyTorchAdapter, HalfPrecisionAdapter, IdentityAdapter)
}
"""The adapters that can be named on the command line and in files."""
