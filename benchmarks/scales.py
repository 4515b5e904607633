"""Decoding quantized weights against the ``gguf`` package and against transformers, and opening a GGUF file.

    python -m benchmarks.scales

Both sides decode the same bytes in memory, in this process; each figure is the best of several runs. A ratio above 1
means that burnstore is faster.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import burnstore as bs
from burnstore.formats.gguf.blocks import FILLS, NUMBERS, TYPES
from burnstore.formats.gguf.data import BlockData
from burnstore.tensor.data import TensorData
from burnstore.tensor.dtype import DType
from burnstore.tensor.sources import HeldData

ROWS, COLUMNS, RUNS = 1024, 4096, 7


def best(function: Callable[[], Any]) -> float:
    """Return the shortest of several runs, in milliseconds."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def gguf_types() -> None:
    """Decode a matrix of every type."""
    from gguf import GGMLQuantizationType, quants

    rng = np.random.default_rng(0)
    for name in sorted(FILLS):
        kind = TYPES[NUMBERS[name]]
        raw = rng.integers(0, 256, (ROWS, COLUMNS // kind.elements * kind.nbytes), dtype=np.uint8)
        held = HeldData(TensorData.from_bytes(raw.tobytes(), DType.U8, (raw.size,)))
        data = BlockData(held, NUMBERS[name], ROWS * COLUMNS, "w")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = best(lambda raw=raw, name=name: quants.dequantize(raw, GGMLQuantizationType[name]))
        ours = best(lambda data=data: data.owned(0, 4 * ROWS * COLUMNS))
        print(f"gguf {name:8} {theirs:8.1f} ms {ours:8.1f} ms {theirs / ours:6.2f} x")


def opening() -> None:
    """Open a sparse file of 4 GiB with 300 tensors of Q4_K."""

    def string(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text

    rows, infos, offset = (4 << 30) // 300 // (COLUMNS // 256 * 144), [], 0
    for number in range(300):
        shape = struct.pack("<IQQIQ", 2, COLUMNS, rows, NUMBERS["Q4_K"], offset)
        infos.append(string(b"blk.%d.weight" % number) + shape)
        offset += -(-rows * (COLUMNS // 256) * 144 // 32) * 32
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), 0) + b"".join(infos)
    head = head.ljust(-(-len(head) // 32) * 32, b"\0")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "big.gguf")
        with open(path, "wb") as file:
            file.write(head)
            file.truncate(len(head) + offset)
        print(
            f"open 300 tensors of {os.path.getsize(path) / 2**30:.1f} GiB: {best(lambda: bs.open(path).close()):.2f} ms"
        )


def transformers_schemes() -> None:
    """Decode FP8 in blocks and the experts of gpt-oss, from a file on both sides."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

    def read(path: str, *names: str) -> list[Any]:
        with safe_open(path, "pt") as file:
            return [file.get_tensor(name) for name in names]

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "fp8.safetensors")
        weight = torch.randn(COLUMNS, COLUMNS).to(torch.float8_e4m3fn)
        save_file({"m.weight": weight, "m.weight_scale_inv": torch.rand(COLUMNS // 128, COLUMNS // 128)}, path)
        fp8 = Fp8Dequantize(None)
        theirs = best(lambda: fp8._dequantize_one(*read(path, "m.weight", "m.weight_scale_inv")))
        with bs.open(path) as file:
            ours = best(lambda: file["m.weight"].numpy())
        print(f"FP8 in blocks {theirs:8.1f} ms {ours:8.1f} ms {theirs / ours:6.2f} x")
        path = os.path.join(folder, "mxfp4.safetensors")
        blocks = torch.randint(0, 256, (4, 2048, 64, 16), dtype=torch.uint8)
        save_file({"p_blocks": blocks, "p_scales": torch.randint(100, 140, (4, 2048, 64), dtype=torch.uint8)}, path)
        theirs = best(lambda: _convert_moe_packed_tensors(*read(path, "p_blocks", "p_scales")))
        with bs.open(path) as file:
            ours = best(lambda: file["p"].numpy())
        print(f"MXFP4 experts {theirs:8.1f} ms {ours:8.1f} ms {theirs / ours:6.2f} x")


if __name__ == "__main__":
    opening()
    gguf_types()
    transformers_schemes()
