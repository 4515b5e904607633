"""Losses: no parameters. The class weights of a cross entropy are plain numbers, and Burn does not store them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .module import Module

Reduction = Literal["Auto", "Mean", "Sum", "BatchMean"]


@dataclass(eq=False, kw_only=True)
class BinaryCrossEntropyLoss(Module):
    """Binary cross entropy between logits or probabilities and targets."""

    weights: Sequence[float] | None = None
    smoothing: float | None = None
    logits: bool = False

    def __post_init__(self) -> None:
        self.weights = _checked_weights(self.weights)
        _check_smoothing(self.smoothing)


@dataclass(eq=False, kw_only=True)
class CrossEntropyLoss(Module):
    """Cross entropy between logits or probabilities and target classes."""

    pad_tokens: Sequence[int] | None = None
    weights: Sequence[float] | None = None
    smoothing: float | None = None
    logits: bool = True

    def __post_init__(self) -> None:
        self.weights = _checked_weights(self.weights)
        _check_smoothing(self.smoothing)


@dataclass(eq=False, kw_only=True)
class CosineEmbeddingLoss(Module):
    """Cosine distance of similar pairs, cosine beyond a margin of dissimilar ones."""

    margin: float = 0.0
    reduction: Reduction = "Mean"


@dataclass(eq=False, kw_only=True)
class CTCLoss(Module):
    """Connectionist temporal classification."""

    blank: int = 0
    zero_infinity: bool = False


@dataclass(eq=False, kw_only=True)
class GaussianNLLLoss(Module):
    """Negative log likelihood of a Gaussian."""

    eps: float = 1e-6
    full: bool = False


@dataclass(eq=False, kw_only=True)
class HingeEmbeddingLoss(Module):
    """Hinge loss of pairs marked similar or dissimilar."""

    margin: float = 1.0


@dataclass(eq=False)
class HuberLoss(Module):
    """Squared error up to ``delta``, linear beyond."""

    delta: float

    def __post_init__(self) -> None:
        _check_above_zero("delta", self.delta)


@dataclass(eq=False, kw_only=True)
class KLDivLoss(Module):
    """Kullback-Leibler divergence."""

    log_target: bool = False


@dataclass(eq=False)
class LpLoss(Module):
    """The p-th power of the absolute error."""

    p: float

    def __post_init__(self) -> None:
        _check_above_zero("p", self.p)


@dataclass(eq=False, kw_only=True)
class MarginRankingLoss(Module):
    """Hinge loss of the order of two inputs."""

    margin: float = 0.0

    def __post_init__(self) -> None:
        _check_not_negative("margin", self.margin)


@dataclass(eq=False)
class MseLoss(Module):
    """Mean squared error."""


@dataclass(eq=False, kw_only=True)
class MultiMarginLoss(Module):
    """Hinge loss of classes."""

    margin: float = 1.0
    p: int = 1

    def __post_init__(self) -> None:
        _check_not_negative("margin", self.margin)
        if self.p not in (1, 2):
            raise ValueError(f"p is 1 or 2, not {self.p}")


@dataclass(eq=False, kw_only=True)
class PoissonNllLoss(Module):
    """Negative log likelihood of a Poisson distribution."""

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check_above_zero("eps", self.eps)


@dataclass(eq=False, kw_only=True)
class RNNTLoss(Module):
    """The loss of an RNN transducer."""

    blank: int = 0
    logits: bool = True


@dataclass(eq=False, kw_only=True)
class SmoothL1Loss(Module):
    """Squared error up to ``beta``, absolute error beyond."""

    beta: float = 1.0

    def __post_init__(self) -> None:
        _check_above_zero("beta", self.beta)


@dataclass(eq=False)
class SoftMarginLoss(Module):
    """Logistic loss of targets 1 and -1."""


@dataclass(eq=False, kw_only=True)
class TripletMarginLoss(Module):
    """The margin between the distances to a positive and to a negative example."""

    margin: float = 1.0
    p: float = 2.0


def _checked_weights(weights: Sequence[float] | None) -> tuple[float, ...] | None:
    # As numbers: an array in a field would be a parameter, which these weights are not.
    numbers = None if weights is None else tuple(float(each) for each in weights)
    if numbers is not None and not all(each > 0 for each in numbers):
        raise ValueError(f"weights are above 0, not {list(numbers)}")
    return numbers


def _check_smoothing(smoothing: float | None) -> None:
    if smoothing is not None and not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing is between 0 and 1, not {smoothing}")


def _check_above_zero(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} is above 0, not {value}")


def _check_not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} is not negative, not {value}")
