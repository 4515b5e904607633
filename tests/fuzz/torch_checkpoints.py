"""Random checkpoints, and what torch makes of a file: the oracle that files of torch are judged by."""

from __future__ import annotations

import io
import pickle
import warnings
from random import Random
from typing import Any

import numpy as np
import torch

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]
SAVERS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"pickle_protocol": 3},
    {"pickle_protocol": 4},
    {"pickle_protocol": 5},
    {"_use_new_zipfile_serialization": False},
    {"_use_new_zipfile_serialization": False, "pickle_protocol": 4},
)


def save(value: Any, rng: Random) -> bytes:
    """The value in one of the containers that Python of today can write."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if rng.random() < 0.15:
            return pickle.dumps(value, rng.randrange(6))
        out = io.BytesIO()
        torch.save(value, out, **rng.choice(SAVERS))
        return out.getvalue()


def tensor(rng: Random, made: list[torch.Tensor]) -> torch.Tensor:
    """A tensor of any dtype and layout; now and then a view on, or the very same as, one made before."""
    if made and rng.random() < 0.25:
        base = rng.choice(made)
    else:
        dtype = rng.choice(DTYPES)
        shape = [
            rng.choice((0, 1, 1, 2, 3, 5)) if rng.random() < 0.3 else rng.randint(1, 6) for _ in range(rng.randrange(5))
        ]
        size = torch.empty(0, dtype=dtype).element_size()
        count = int(np.prod(shape)) * size
        raw = np.frombuffer(rng.randbytes(count), np.uint8) & (1 if dtype is torch.bool else 255)
        base = torch.from_numpy(raw.copy()).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
        made.append(base)
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        base = viewed(base, rng)
    if rng.random() < 0.1 and base.is_floating_point():
        base = torch.nn.Parameter(base.detach(), requires_grad=rng.random() < 0.5)
    return base


def viewed(base: torch.Tensor, rng: Random) -> torch.Tensor:
    kind = rng.randrange(6)
    if kind == 0 and base.dim() >= 2:
        return base.transpose(rng.randrange(base.dim()), rng.randrange(base.dim()))
    if kind == 1 and base.dim() and base.shape[0] > 1:
        return base[rng.randrange(base.shape[0]) :: rng.randint(1, 2)]
    if kind == 2 and base.dim():
        return base.unsqueeze(rng.randrange(base.dim() + 1))
    if kind == 3 and base.dim() and base.shape[0]:
        return base[:1].expand(rng.randint(1, 3), *base.shape[1:])
    if kind == 4 and base.dim() and base.shape[-1] > 2:
        return base[..., 1:]
    if kind == 5 and base.is_complex():
        return base.conj()
    return base


def checkpoint(rng: Random) -> dict[Any, Any]:
    """A nested checkpoint with all sorts of things beside its tensors."""
    made: list[torch.Tensor] = []
    shared = {"shared": tensor(rng, made)}

    def value(depth: int) -> Any:
        kind = rng.random()
        if kind < 0.55 or depth > 3:
            return tensor(rng, made)
        if kind < 0.75:
            return {key(): value(depth + 1) for _ in range(rng.randrange(4))}
        if kind < 0.82:
            return [value(depth + 1) for _ in range(rng.randrange(4))]
        if kind < 0.86:
            return tuple(value(depth + 1) for _ in range(rng.randrange(4)))
        if kind < 0.9:
            return shared
        return rng.choice(
            (
                1,
                2.5,
                None,
                True,
                "text",
                2**70,
                b"bytes",
                torch.Size([1]),
                torch.float16,
                np.float32(2),
                {1, 2},
                (1, "a"),
            )
        )

    def key() -> Any:
        return rng.choice((rng.randrange(50), f"k{rng.randrange(99)}", "a.b", "größe", "weight", ""))

    return {f"top{number}": value(0) for number in range(rng.choice((1, 3, 6, 40)))}


def flat(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a loaded checkpoint by name."""
    if isinstance(value, torch.Tensor):
        return [(".".join(path), value)]
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return [entry for key, each in pairs for entry in flat(each, (*path, str(key)))]


def bits(found: torch.Tensor) -> bytes:
    """The values as a file would hold them."""
    values = found.detach().resolve_conj().resolve_neg().reshape(-1)
    plain = torch.empty(len(values), dtype=values.dtype)  # one element may have any stride and still be contiguous
    plain.copy_(values)
    if plain.dtype is torch.bool:
        plain = plain.view(torch.uint8) != 0  # any byte but zero is true
    return plain.view(torch.uint8).numpy().tobytes() if len(plain) else b""
