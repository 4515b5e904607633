"""Random files that torch itself writes: none may be refused, no value may differ, no tensor may vanish.

``python -m fuzz.torch_valid --seed 1 --cases 20000`` from the folder of the tests; the suite runs a few hundred.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import io
import pathlib
import pickle
import random
import sys
import time
import types
import uuid
import warnings
from typing import Any

import numpy as np
import torch

import burnstore as bs

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128, torch.complex32)
DTYPES = (*FLOATS, *FLOAT8, *INTEGERS, *COMPLEX, torch.bool)
NUMPY = ("f2", "f4", "f8", ">f4", "i1", "<i8", ">i4", "u2", "?", "c8", "c16", "S3", "U4", "g", "M8[s]", "V3", "O", "S0")


class Colour(enum.Enum):
    RED = 1


class MyDict(dict):  # type: ignore[type-arg]
    pass


class MyList(list):  # type: ignore[type-arg]
    pass


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Tuple3(tuple):  # type: ignore[type-arg]
    pass


class Subclass(torch.Tensor):
    pass


Pair = collections.namedtuple("Pair", "left right")


PLAIN = (
    *(None, True, 0, -1, 2**70, -(2**31), 255, 65535, 1.5, float("nan"), 1j, "", "text", "é" * 300, b"", b"ab" * 200),
    *(bytearray(b"x"), (), [], {}, {1, 2}, frozenset("ab"), range(3), slice(1, None, 2), Colour.RED),
    *(datetime.datetime(2020, 1, 2, 3, 4, 5, 6), datetime.date(2020, 1, 2), datetime.timedelta(3)),
    *(datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc), pathlib.PurePosixPath("/a/b"), len, Holder),
    *(torch.float16, torch.Size([1, 2]), torch.device("cpu"), torch.strided, torch.channels_last),
    *(np.float32(1.5), np.int64(3), np.bool_(True), np.str_("a"), np.dtype("f4"), np.longdouble(1)),
    *(decimal.Decimal("1.5"), uuid.UUID(int=5), collections.Counter("aab"), object, type, complex, Ellipsis),
    *("x" * 70_000, list(range(300)), {str(n): n for n in range(30)}, {0.5: 1, None: 2, (1, 2): 3}),
)


class Maker:
    """Makes one random value, and remembers the tensors whose names are known: those in plain containers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.expected: dict[str, Any] = {}
        self.shared: list[Any] = []

    def file(self) -> bytes:
        """The bytes of a random file."""
        count = self.random.choice((0, 1, 2, 5, 5, 10, 30))
        if self.random.random() < 0.02:
            count = self.random.randint(300, 900)  # Its pickle is longer than a block that is read.
        value: Any = {}
        if self.random.random() < 0.5:
            value = collections.OrderedDict()
        for number in range(count):
            key = self.key(number)
            value[key] = self.value(str(key), 0)
        if self.random.random() < 0.1 and isinstance(value, collections.OrderedDict):
            value._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
        if self.random.random() < 0.05 and count:
            value["itself"] = value
        if self.random.random() < 0.04:
            value = self.tensor()
            self.expected = {"tensor": value}
        return self.write(value)

    def write(self, value: Any) -> bytes:
        out = io.BytesIO()
        kind = self.random.random()
        if kind < 0.15:
            return pickle.dumps(value, self.random.choice((2, 3, 4, 5)))
        options: dict[str, Any] = {"_use_new_zipfile_serialization": kind < 0.65}
        if self.random.random() < 0.4:
            options["pickle_protocol"] = self.random.choice((2, 3, 4, 5))
        torch.save(value, out, **options)
        return out.getvalue()

    def key(self, number: int) -> Any:
        kind = self.random.random()
        if kind < 0.1:
            return number
        if kind < 0.2:
            return f"läyer {number}/é中"
        if kind < 0.25:
            return self.random.choice(
                (f"{number}", number + 0.5, (number, "a"), f" {number}\t", f"%{number}", "x" * 300 + str(number))
            )
        return f"layers.{number}.{self.random.choice(('weight', 'bias', 'running_mean'))}"

    def value(self, name: str, depth: int) -> Any:
        kind = self.random.random()
        if kind < 0.62:
            tensor = self.tensor()
            self.expected[name] = tensor
            return tensor
        if depth < 3 and kind < 0.8:
            return self.container(name, depth)
        return self.random.choice((self.plain, self.array, self.plain))()

    def container(self, name: str, depth: int) -> Any:
        count = self.random.choice((0, 1, 2, 4))
        kind = self.random.randrange(12)
        if kind < 4:
            made: dict[Any, Any] = collections.OrderedDict() if kind == 1 else {}
            for number in range(count):
                key = self.random.choice((f"k{number}", number))
                made[key] = self.value(f"{name}.{key}", depth + 1)
            return made
        if kind < 6:
            items = [self.value(f"{name}.{number}", depth + 1) for number in range(count)]
            return items if kind == 4 else tuple(items)
        if kind == 6:
            return collections.deque([self.value(f"{name}.{n}", depth + 1) for n in range(count)], maxlen=5)
        if kind == 7:
            return collections.defaultdict(list, {"k": self.value(f"{name}.k", depth + 1)})
        known, self.expected = self.expected, {}  # Names below other objects are not foreseen here.
        inner = [self.value("", depth + 1) for _ in range(count)]
        self.expected = known
        return (
            lambda: Holder(a=inner, b=1),
            lambda: MyDict(zip("abcd", inner, strict=False)),
            lambda: Pair(inner, None),
            lambda: types.SimpleNamespace(a=inner),
            lambda: MyList(inner),
            lambda: Tuple3(inner),
        )[self.random.randrange(6)]()

    def plain(self) -> Any:
        return self.random.choice(PLAIN)

    def array(self) -> Any:
        code = self.random.choice(NUMPY)
        shape = self.random.choice(((), (0,), (3,), (2, 3), (2, 0, 3)))
        array = (
            np.zeros(shape, code)
            if code == "O"
            else np.ones(shape, "u1").astype(code)
            if code != "V3"
            else np.zeros(shape, code)
        )
        kind = self.random.random()
        if kind < 0.1 and code in ("f4", "f8"):
            return np.ma.array(array, mask=False)
        if kind < 0.2:
            return np.asfortranarray(array)
        if kind < 0.3:
            return array.T
        if kind < 0.35:
            return np.zeros(3, [("a", "f4"), ("b", "i8")])
        return array

    # --- tensors ------------------------------------------------------------------------------------------------------

    def tensor(self) -> Any:
        kind = self.random.random()
        if kind < 0.06 and self.shared:
            return self.random.choice(self.shared)
        if kind < 0.14:
            return self.sparse()
        if kind < 0.2:
            return self.quantized()
        made = self.strided()
        self.shared.append(made)
        kind = self.random.random()
        if kind < 0.1 and made.is_floating_point():
            return torch.nn.Parameter(made.detach(), requires_grad=self.random.random() < 0.5)
        if kind < 0.13:
            return torch.nn.Buffer(made)
        if kind < 0.16:
            return made.detach().as_subclass(Subclass)
        if kind < 0.18 and not made.dtype.is_complex and made.dtype not in FLOAT8:
            made = made.clone()
            made.note = "an attribute"
        if kind > 0.99:
            return torch.empty(2, 3, dtype=made.dtype, device="meta")
        return made

    def numbers(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
        item = torch.empty((), dtype=dtype).element_size()
        size = item
        for extent in shape:
            size *= extent
        if dtype is torch.bool:
            return torch.rand(shape, generator=self.generator) > 0.5
        raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=self.generator)
        return raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)

    def strided(self) -> Any:
        dtype = self.random.choice(DTYPES)
        shape = tuple(self.random.choice((0, 1, 2, 3, 4, 7)) for _ in range(self.random.choice((0, 1, 1, 2, 2, 3, 4))))
        if self.random.random() < 0.02:
            shape = (self.random.choice((300, 70_000)),)
        made = self.numbers(dtype, shape)
        kind = self.random.random()
        if kind < 0.15 and made.dim() > 1:
            made = made.transpose(0, -1)
        elif kind < 0.25 and made.dim():
            made = made[self.random.randint(0, max(made.shape[0] - 1, 0)) :: self.random.choice((1, 2))]
        elif kind < 0.3 and made.dim() and made.shape[0] == 1:
            made = made.expand(self.random.choice((3, 5)), *made.shape[1:])
        elif kind < 0.35 and made.numel() > 6 and made.is_contiguous():
            made = made.as_strided((3, 2), (1, 2), 1)
        elif kind < 0.4:
            made = made.permute(*self.random.sample(range(made.dim()), made.dim())) if made.dim() else made
        if made.dtype in (torch.complex64, torch.complex128):
            kind = self.random.random()
            if kind < 0.2:
                made = made.conj()
            elif kind < 0.3:
                made = made.conj().imag
        return made

    def sparse(self) -> Any:
        dtype = self.random.choice((*FLOATS, torch.int64, torch.int32, torch.bool, torch.complex64))
        shape = self.random.choice(((), (0,), (4,), (4, 6), (0, 4), (2, 4, 6)))
        dense = (torch.rand(shape, generator=self.generator) > 0.5).to(dtype)
        layout = self.random.choice(("coo", "csr", "csc", "bsr", "bsc"))
        if layout == "coo" or len(shape) < 2 or 0 in shape:
            return dense.to_sparse() if self.random.random() < 0.7 else dense.to_sparse().coalesce()
        return getattr(dense, f"to_sparse_{layout}")(*([(2, 2)] if layout[0] == "b" else []))

    def quantized(self) -> Any:
        values = torch.randn(self.random.choice(((4,), (3, 4), (2, 3, 4))), generator=self.generator)
        dtype = self.random.choice((torch.qint8, torch.quint8, torch.qint32))
        if self.random.random() < 0.5:
            return torch.quantize_per_tensor(values, self.random.random() + 0.01, self.random.randint(0, 9), dtype)
        axis = self.random.randrange(values.dim())
        count = values.shape[axis]
        scales = torch.rand(count, generator=self.generator, dtype=torch.float64) + 0.01
        if self.random.random() < 0.5 and dtype is not torch.qint32:
            zeros = torch.rand(count, generator=self.generator)
            return torch.quantize_per_channel(values, scales.float(), zeros, axis, dtype)
        return torch.quantize_per_channel(values, scales, torch.randint(0, 9, (count,)), axis, dtype)


def raw(tensor: Any) -> bytes:
    """The values of a tensor as bytes."""
    plain = tensor.detach()
    if plain.is_quantized:
        plain = plain.dequantize()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.as_subclass(torch.Tensor).resolve_conj().resolve_neg().reshape(-1)
    plain = plain.clone(memory_format=torch.contiguous_format)
    return plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def check(seed: int) -> str | None:
    """What is wrong with the way one random file is read; None if nothing is."""
    maker = Maker(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            data = maker.file()
        except (RuntimeError, NotImplementedError, TypeError, pickle.PicklingError):
            return None  # torch cannot make or write it
        dense = maker.random.random() < 0.5
        try:
            with bs.open(data, dense=dense, format="pytorch") as file:
                return _compare(maker, file, dense=dense)
        except Exception as error:  # Whatever it is, report it if the file is valid.
            return f"{type(error).__name__}: {error}" if _is_valid(data) else None


def _is_valid(data: bytes) -> bool:
    try:
        torch.load(io.BytesIO(data), weights_only=False)
    except Exception:
        try:
            pickle.loads(data)
        except Exception:
            return False
    return True


def _compare(maker: Maker, file: Any, *, dense: bool) -> str | None:
    for name, tensor in maker.expected.items():
        if tensor.device.type == "meta":
            if name not in file:
                return f"{name!r}, a meta tensor, is missing"
            continue
        composite = tensor.is_quantized or tensor.layout is not torch.strided
        if composite and not dense:
            parts = [each for each in file if each.startswith(f"{name}.")]
            if not parts:
                return f"{name!r}: no parts"
            for part in parts:
                file[part].to_bytes()
            continue
        if name not in file:
            return f"{name!r} is missing; notes: {file.notes}"
        if file[name].shape != tuple(tensor.shape):
            return f"{name!r} has shape {file[name].shape}, expected {tuple(tensor.shape)}"
        if file[name].to_bytes() != raw(tensor):
            return f"{name!r} has other values"
    for name in file:
        try:
            file[name].to_bytes()
        except bs.errors.UnsupportedError as error:
            if "never saved" not in str(error):  # as the values of a meta tensor are
                raise
    return None


def run(seed: int, cases: int) -> list[str]:
    """The problems of that many files, each with its seed."""
    return [f"seed {n}: {found}" for n in range(seed, seed + cases) if (found := check(n)) is not None]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=1000)
    arguments = parser.parse_args()
    started = time.perf_counter()
    problems = run(arguments.seed * 1_000_000, arguments.cases)
    for problem in problems[:30]:
        print(problem[:400])
    print(f"{arguments.cases} files, {len(problems)} problems, {time.perf_counter() - started:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
