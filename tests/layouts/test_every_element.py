"""Whatever is put together: every element of a model is in the file exactly once, and comes back to its place."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import burnstore as bs

from .case import Custom, TorchModel, is_counter, kept
from .plain_cases import PLAIN_CASES
from .structural_cases import STRUCTURAL_CASES

pytestmark = pytest.mark.filterwarnings("ignore::burnstore.errors.BurnstoreWarning")

CASES = [*PLAIN_CASES, *STRUCTURAL_CASES]


def _ends_in_a_norm(module: nn.Module) -> bool:
    """Whether this is a stack with a last norm, which Burn keeps beside it: in a list that is refused."""
    return isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder)) and module.norm is not None


PIECES = [case.torch for case in CASES if not case.constants and not _ends_in_a_norm(case.torch())]


@st.composite
def models(draw: st.DrawFn, depth: int = 3) -> nn.Module:
    """Some modules, put together in one of PyTorch's ways or in a class of one's own."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(PIECES))()
    parts = draw(st.lists(models(depth=depth - 1), min_size=1, max_size=3))
    way = draw(st.sampled_from(["sequence", "list", "dict", "own"]))
    if way == "sequence":
        gaps = draw(st.lists(st.integers(0, 2), min_size=len(parts), max_size=len(parts)))
        return nn.Sequential(
            *(each for gap, part in zip(gaps, parts, strict=True) for each in [nn.ReLU()] * gap + [part])
        )
    if way == "list":
        return nn.ModuleList([nn.Identity(), *parts])
    if way == "dict":
        return nn.ModuleDict({f"part_{place}": part for place, part in enumerate(parts)})
    own = Custom()
    for place, part in enumerate(parts):
        own.add_module(f"part_{place}", part)
    return own


def numbered(model: nn.Module) -> nn.Module:
    """Every element of a model another number, so that each can be told from every other."""
    start = 1
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if not is_counter(name):
                tensor.copy_(torch.arange(start, start + tensor.numel()).reshape(tensor.shape))
                start += tensor.numel()
    return model


@settings(max_examples=60)
@given(models())
def test_every_element_is_in_the_file_exactly_once_and_comes_back_to_its_place(module: nn.Module) -> None:
    model = numbered(TorchModel(module))
    wanted = kept(model)
    packed = bs.serialize(model, format="burnpack")
    with bs.open(packed) as checkpoint:
        found = Counter(itertools.chain.from_iterable(value.ravel().tolist() for value in checkpoint.numpy().values()))
    total = sum(tensor.numel() for name, tensor in model.state_dict().items() if not is_counter(name))
    assert found == Counter(range(1, total + 1))
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not is_counter(name):
                tensor.zero_()
    result = bs.load(model, packed)
    assert result.is_complete and not result.unused
    assert kept(model) == wanted
