"""What tests of assembly share: tensors of many kinds, data that fail, and a look at what is left behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import burnstore as bs
from burnstore.formats.base import WriteOptions
from burnstore.pipeline import write
from burnstore.tensor.snapshot import TensorSnapshot
from burnstore.tensor.sources import Data


def arrays(seed: int = 0) -> dict[str, Any]:
    """Tensors small and large, wide and narrow, empty and scalar, whose data make several tasks."""
    draw = np.random.default_rng(seed)
    found: dict[str, Any] = {f"small.{n}": draw.standard_normal((n, 7)).astype(np.float32) for n in range(40)}
    found |= {f"matrix.{n}": draw.standard_normal((700, 900 + n)).astype(np.float32) for n in range(6)}
    found |= {"wide": draw.standard_normal((3, 2_000_000)).astype(np.float32), "scalar": np.float64(3.5).reshape(())}
    found |= {"empty": np.zeros((0, 4), np.int8), "flags": np.array([True, False, True]), "bytes": np.arange(301) % 5}
    return found


def nothing_left(folder: Path, *expected: str) -> None:
    assert sorted(os.listdir(folder)) == sorted(expected)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("burnstore")]


def same_tensors(path: Path, expected: list[TensorSnapshot]) -> None:
    with bs.open(path) as f:
        assert sorted(f) == sorted(tensor.path for tensor in expected)
        for tensor in expected:
            found = f[tensor.path]
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
            assert found.to_bytes() == tensor.to_bytes(), tensor.path


class Broken(Data):
    """Data that fail when they are read for the n-th time; they can be pickled."""

    def __init__(self, data: Any, fails: Callable[[], None]) -> None:
        self.data, self.fails = data, fails

    def window(self, start: int, stop: int) -> memoryview:
        self.fails()
        return self.data.window(start, stop)


def refuse() -> None:
    raise bs.errors.CorruptError("cannot be read")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def with_broken(tensors: list[TensorSnapshot], name: str, fails: Callable[[], None]) -> list[TensorSnapshot]:
    return [
        TensorSnapshot(each.path, each.dtype, each.shape, Broken(each._data, fails)) if each.path == name else each
        for each in tensors
    ]


def assemble(tensors: Any, path: Any, format: Any, *, metadata: Any, ties: Any = None, **how: Any) -> Any:
    """`burnstore.pipeline.write.assemble` with the options of writing by name."""
    return write.assemble(tensors, path, format, WriteOptions(**how), metadata=metadata, ties=ties)
