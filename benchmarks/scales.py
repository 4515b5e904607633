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


def _spent(function: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds that a call took, and those of the processor."""
    start, work = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - start, time.process_time() - work


def gguf_types() -> None:
    """Decode a matrix of every type: the package and burnstore by turns, on a machine that others use as well."""
    from gguf import GGMLQuantizationType, quants

    rng = np.random.default_rng(0)
    for name in sorted(FILLS):
        kind = TYPES[NUMBERS[name]]
        raw = rng.integers(0, 256, (ROWS, COLUMNS // kind.elements * kind.nbytes), dtype=np.uint8)
        held = HeldData(TensorData.from_bytes(raw.tobytes(), DType.U8, (raw.size,)))
        data = BlockData(held, NUMBERS[name], ROWS * COLUMNS, "w")
        theirs, ours = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3 * RUNS):
                theirs.append(_spent(lambda raw=raw, name=name: quants.dequantize(raw, GGMLQuantizationType[name])))
                ours.append(_spent(lambda data=data: data.owned(0, 4 * ROWS * COLUMNS)))
        (wall, work), (own_wall, own_work) = (tuple(map(min, zip(*times, strict=True))) for times in (theirs, ours))
        print(
            f"gguf {name:8} {1000 * wall:8.1f} ms {1000 * own_wall:8.1f} ms {wall / own_wall:6.2f} x, "
            f"of the processor {work / own_work:6.2f} x"
        )


def opening() -> None:
    """Open a sparse file of 4 GiB with 300 tensors of Q4_K, without and with a vocabulary of 128,000 strings."""

    def string(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text

    rows, infos, offset = (4 << 30) // 300 // (COLUMNS // 256 * 144), [], 0
    for number in range(300):
        shape = struct.pack("<IQQIQ", 2, COLUMNS, rows, NUMBERS["Q4_K"], offset)
        infos.append(string(b"blk.%d.weight" % number) + shape)
        offset += -(-rows * (COLUMNS // 256) * 144 // 32) * 32
    texts = b"".join(string(b"token%d" % number) for number in range(128_000))
    array = struct.pack("<IIQ", 9, 8, 128_000) + texts
    for pairs in ([], [string(b"tokenizer.ggml.tokens") + array, string(b"tokenizer.ggml.merges") + array]):
        head = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
        head = head.ljust(-(-len(head) // 32) * 32, b"\0")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "big.gguf")
            with open(path, "wb") as file:
                file.write(head)
                file.truncate(len(head) + offset)
            size = f"{os.path.getsize(path) / 2**30:.1f} GiB, {len(pairs) * 128_000} strings"
            print(f"open 300 tensors of {size}: {best(lambda path=path: bs.open(path).close()):.2f} ms")


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
