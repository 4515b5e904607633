"""The models whose records real Burn wrote into tests/fixtures/records, declared in Python, field by field."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from burnstore import DType, TensorData, nn
from burnstore.tensor.quantization import QuantBlock, QuantScheme, QuantStore

VERSIONS = ("0.13.2", "0.16.1", "0.21.0")
MODELS = ("tiny", "basic", "nested", "enums", "constants", "adam", "quant_block")


class Tiny(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(2, 3)


class Basic(nn.Module):
    def __init__(self, minor: int = 21) -> None:
        self.fc = nn.Linear(3, 4)
        self.fc_nobias = nn.Linear(4, 2, bias=False)
        if minor >= 21:
            self.fc_col = nn.Linear(3, 2, layout="Col")
        self.conv = nn.Conv2d([2, 3], [2, 2])
        self.up = nn.ConvTranspose1d([2, 3], 2)
        self.bn = nn.BatchNorm(3)
        self.ln = nn.LayerNorm(4)
        self.gn = nn.GroupNorm(2, 4)
        self.gn_plain = nn.GroupNorm(2, 4, affine=False)
        self.rms = nn.RmsNorm(4)
        self.emb = nn.Embedding(5, 3)
        self.dropout = nn.Dropout(0.5)
        self.act = nn.Relu()
        self.gelu = nn.Gelu()
        self.prelu = nn.PRelu()
        self.pool = nn.MaxPool2d([2, 2])
        self.maybe_pool = nn.MaxPool2d([2, 2])
        self.no_pool = None
        if minor >= 21:
            self.ln_nobias = nn.LayerNorm(2, bias=False)
            self.activation = nn.Activation.build("PRelu")


class Block(nn.Module):
    def __init__(self) -> None:
        self.proj = nn.Linear(2, 3)
        self.scale = nn.Param([3])
        self.scalar = nn.Param([1])


class Mid(nn.Module):
    optional_fields: ClassVar = {"maybe", "absent"}

    def __init__(self) -> None:
        self.first = Block()
        self.layers = [nn.Linear(2, 2), nn.Linear(3, 2), nn.Linear(4, 2)]
        self.maybe = Block()
        self.absent = None


class Nested(nn.Module):
    optional_fields: ClassVar = {"some_vec", "no_vec", "head"}

    def __init__(self, minor: int = 21) -> None:
        def plain() -> nn.Linear:
            return nn.Linear(2, 2, bias=False)

        self.stem = nn.Linear(3, 2)
        self.mid = Mid()
        self.pair = (plain(), nn.LayerNorm(2))
        if minor > 13:
            self.trio = nn.FixedArray([plain(), plain(), plain()])
        self.empty: list[Any] = []
        self.grid = [[plain()], [], [plain(), plain()]]
        self.some_vec = [plain()]
        self.no_vec = None
        self.head = nn.Linear(2, 3, bias=False)


class Part(nn.Enum):
    Dense = nn.variant(nn.Linear)
    Conv = nn.variant(nn.Conv2d)
    Norm = nn.variant(nn.BatchNorm)
    Plain = nn.variant(nn.Relu)


class Outer(nn.Enum):
    Wrap = nn.variant(Part)
    Many = nn.variant(list)


class Enums(nn.Module):
    optional_fields: ClassVar = {"some", "none"}

    def __init__(self) -> None:
        def conv() -> Part:
            return Part.Conv(nn.Conv2d([1, 2], [2, 2]))

        def dense() -> Part:
            return Part.Dense(nn.Linear(2, 2))

        def norm() -> Part:
            return Part.Norm(nn.BatchNorm(2))

        self.single = conv()
        self.blocks = [dense(), norm(), conv(), Part.Plain(nn.Relu())]
        self.plain = Part.Plain(nn.Relu())
        self.some = norm()
        self.none = None
        self.wrapped = Outer.Wrap(dense())
        self.many = Outer.Many([dense(), conv()])


class Constants(nn.Module):
    optional_fields: ClassVar = {"some_param", "no_param", "some_plain", "no_plain"}

    def __init__(self, minor: int = 21) -> None:
        self.weight = nn.Param([2, 3])
        self.count = 3
        self.epsilon = 0.5
        self.flag = True
        self.label = "text"
        self.sizes = (1, 2)
        self.some_count = 3
        self.no_count = None
        self.list = [1, 2, 3]
        if minor > 13:
            self.ignored = "anything"
        if minor >= 21:
            self.skipped_ = "a Vec that is not stored"
        self.ids = nn.Param([8], dtype=DType.I64)
        self.mask = nn.Param([2, 3], dtype=DType.Bool)
        self.plain = 0
        self.some_plain = 0
        self.no_plain = None
        self.some_param = nn.Param([2])
        self.no_param = None
        if minor >= 21:
            self.skipped_linear = 0
        self.tail = nn.Param([1, 2, 2])

    field_names: ClassVar = {"skipped_": "skipped"}


class QuantizedLinear(nn.Module):
    """A Linear whose weight is quantized."""

    optional_fields: ClassVar = {"bias"}

    def __init__(self) -> None:
        scheme = QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((4,), "F32"), old_style=True)
        zeros = np.zeros(4 * 8 + 8 * 4, np.uint8)
        self.weight = nn.Param.from_data(TensorData.from_bytes(zeros.tobytes(), DType.qfloat(scheme), [4, 8]))
        self.bias = None


def declared(model: str, version: str) -> Any:
    """What to pass as ``like`` for the records of this model."""
    minor = int(version.split(".")[1])
    made = {
        "tiny": Tiny,
        "basic": lambda: Basic(minor),
        "nested": lambda: Nested(minor),
        "enums": Enums,
        "constants": lambda: Constants(minor),
        "adam": lambda: "Adam",
        "quant_block": QuantizedLinear,
    }
    return made[model]()
