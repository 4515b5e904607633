"""Burn's layers as holders of parameters: declare a Burn model in Python, with Burn's names, order, shapes and ids.

There is no forward pass. A declared model describes a file, receives its tensors, and is saved as a file that Burn
loads. Constructor arguments and defaults are Burn's: what a config requires is positional, its options are keywords.
Parameters get their values when they are first used, so a large model costs nothing until then.

>>> from burnstore import nn
>>> class Net(nn.Module):
...     def __init__(self):
...         self.conv = nn.Conv2d([3, 8], [3, 3], padding="Same")
...         self.norm = nn.BatchNorm(8)
...         self.head = nn.Linear(8, 10, bias=False)
>>> net = Net()
>>> net.head.weight.shape, net.num_params()
((8, 10), 336)

The layers are those of Burn 0.22.1. Where another version stores something else, the layer has the argument
``burn_version``: `Lstm` and `BiLstm` (a coupled forget gate), `PositionWiseFeedForward` and the transformers (a learned
activation). Arguments that a version lacks can stay at their defaults, which store what that version stores.
"""

# ruff: noqa: F403
from __future__ import annotations

from . import activation, conv, initializer, linear, lora, module, norm, param, parameterless, rnn, transformer
from .activation import *
from .conv import *
from .initializer import *
from .linear import *
from .lora import *
from .module import *
from .norm import *
from .param import *
from .parameterless import *
from .rnn import *
from .transformer import *

_MODULES = (activation, conv, initializer, linear, lora, module, norm, param, parameterless, rnn, transformer)
__all__ = sorted(name for each in _MODULES for name in each.__all__)
