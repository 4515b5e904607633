"""The models of tests/fixtures/burn declared in Python: their tensors are those of the files of Burn 0.22."""

from __future__ import annotations

from burnstore import nn
from burnstore.tensor.dtype import DType


class Basic(nn.Module):
    def __init__(self) -> None:
        self.linear = nn.Linear(4, 3)
        self.linear_nobias = nn.Linear(3, 5, bias=False)
        self.conv = nn.Conv2d([2, 3], [3, 3])
        self.batch = nn.BatchNorm(6)
        self.layer = nn.LayerNorm(5)
        self.group = nn.GroupNorm(2, 4)
        self.instance = nn.InstanceNorm(3)
        self.rms = nn.RmsNorm(7)
        self.embedding = nn.Embedding(8, 4)
        self.dropout = nn.Dropout(0.5)


class Leaf(nn.Module):
    def __init__(self) -> None:
        self.fc = nn.Linear(3, 2)
        self.scale = nn.Param([3])


class Branch(nn.Module):
    def __init__(self) -> None:
        self.left = Leaf()
        self.right = Leaf()
        self.maybe_some: nn.Linear | None = nn.Linear(2, 2, bias=False)
        self.maybe_none: nn.Linear | None = None


class Nested(nn.Module):
    def __init__(self) -> None:
        self.trunk = Branch()
        self.stack = [nn.Linear(2, 3) for _ in range(11)]
        self.array = nn.FixedArray([nn.LayerNorm(2), nn.LayerNorm(3)])
        self.pair = (nn.Linear(2, 4), nn.LayerNorm(4))
        self.raw = [nn.Param([2]), nn.Param([4])]


class Block(nn.Enum):
    Dense = nn.variant(nn.Linear)
    Conv = nn.variant(nn.Conv1d)
    Norm = nn.variant(nn.LayerNorm)


class Enums(nn.Module):
    def __init__(self) -> None:
        self.head = Block.Dense(nn.Linear(3, 2))
        self.blocks = [
            Block.Conv(nn.Conv1d(2, 3, 3)),
            Block.Norm(nn.LayerNorm(4)),
            Block.Dense(nn.Linear(2, 2, bias=False)),
        ]
        self.tail = Block.Norm(nn.LayerNorm(2))


class Names(nn.Module):
    field_names = {"type_": "r#type"}  # noqa: RUF012

    def __init__(self) -> None:
        self.größe = nn.Linear(2, 2)
        self.type_ = nn.Param([2])
        self._hidden = nn.Param([3])
        self.CamelCase = nn.Param([1])


class Scalars(nn.Module):
    def __init__(self) -> None:
        self.one = nn.Param([1])
        self.zero_first = nn.Param([0, 3])
        self.zero_mid = nn.Param([2, 0, 2])
        self.eight = nn.Param([1, 2, 1, 2, 1, 2, 1, 2])
        self.int_one = nn.Param([1], dtype=DType.I64)
        self.zero_last = nn.Param([0])


class Bools(nn.Module):
    def __init__(self) -> None:
        self.weight = nn.Param([3])
        self.mask = nn.Param([3, 5], dtype=DType.Bool)


class Dtypes(nn.Module):
    """The model of 0.22 on; with ``half=False`` that of earlier versions, which have no F16 and BF16 in it."""

    def __init__(self, *, half: bool = True) -> None:
        self.f64 = nn.Param([5], dtype=DType.F64)
        self.f32 = nn.Param([2, 3])
        if half:
            self.f16 = nn.Param([7], dtype=DType.F16)
            self.bf16 = nn.Param([3, 3], dtype=DType.BF16)
        self.i64 = nn.Param([5], dtype=DType.I64)
        self.i32 = nn.Param([2, 3], dtype=DType.I32)
        self.i16 = nn.Param([5], dtype=DType.I16)
        self.i8 = nn.Param([5], dtype=DType.I8)
        self.u64 = nn.Param([5], dtype=DType.U64)
        self.u32 = nn.Param([5], dtype=DType.U32)
        self.u16 = nn.Param([5], dtype=DType.U16)
        self.u8 = nn.Param([5], dtype=DType.U8)
        self.flag = nn.Param([3, 3], dtype=DType.Bool)


class Empty(nn.Module):
    pass


MODELS: dict[str, type[nn.Module]] = {
    "basic": Basic,
    "nested": Nested,
    "enums": Enums,
    "names": Names,
    "scalars": Scalars,
    "bools": Bools,
    "dtypes": Dtypes,
    "empty": Empty,
}
