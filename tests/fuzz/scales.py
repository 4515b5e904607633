"""Mutants of GGUF files and of quantized weights: each is opened and read, or refused by an error of burnstore.

    python -m tests.fuzz.scales --cases 1000000 --seed 1 --minutes 5 --jobs 16
    python -m tests.fuzz.scales --subject gguf --seed 1 --only 1234

The last line of a subject counts what was opened and what was refused by which rule. Any other exception, and a mutant
that takes more than a second, is printed with its number; the exit status is then 1. It needs NumPy and ml_dtypes.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

import burnstore as bs
from burnstore.errors import BurnstoreError
from burnstore.formats.gguf.blocks import TYPES

from .drive import Judge, run

Array = np.ndarray[Any, np.dtype[Any]]

_INTERESTING = (0, 1, 2, 3, 4, 7, 8, 9, 12, 31, 32, 63, 127, 128, 254, 255)
_WIDE = (0, 1, 31, 32, 2**31, 2**32 - 1, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)


# --- GGUF -------------------------------------------------------------------------------------------------------------


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def gguf_file(rng: np.random.Generator) -> bytes:
    """Return a valid file with values and tensors of many types."""
    pairs = [
        _string(b"general.architecture") + struct.pack("<I", 8) + _string(b"toy"),
        _string(b"a.u32") + struct.pack("<II", 4, 7),
        _string(b"a.f32") + struct.pack("<If", 6, 0.5),
        _string(b"a.bool") + struct.pack("<I", 7) + b"\1",
        _string(b"a.texts") + struct.pack("<IIQ", 9, 8, 3) + _string(b"x") + _string(b"") + _string(b"\xc3\xa4"),
        _string(b"a.bytes") + struct.pack("<IIQ", 9, 0, 5) + b"12345",
        _string(b"a.deep") + struct.pack("<IIQIQ", 9, 9, 1, 4, 2) + bytes(8),
    ]
    infos, data = [], b""
    for number in rng.permutation(list(TYPES))[: int(rng.integers(1, 7))]:
        kind = TYPES[int(number)]
        shape = (kind.elements, int(rng.integers(0, 4)))
        infos.append(_string(b"t%d" % number) + struct.pack("<IQQIQ", 2, *shape, number, len(data)))
        size = shape[1] * kind.nbytes
        data += rng.integers(0, 256, size, dtype=np.uint8).tobytes()
        data += bytes(-len(data) % 32)
    head = struct.pack("<4sIQQ", b"GGUF", int(rng.integers(2, 4)), len(infos), len(pairs))
    raw = head + b"".join(pairs) + b"".join(infos)
    return raw + bytes(-len(raw) % 32) + data


def gguf_mutant(seed: int, number: int) -> bytes:
    """Return one mutant; the same seed and number give the same bytes."""
    rng = np.random.default_rng((seed, number))
    raw = bytearray(gguf_file(rng))
    for _ in range(int(rng.integers(0, 4))):
        at, what = int(rng.integers(max(len(raw), 1))), int(rng.integers(6))
        if what == 0:
            raw[at : at + 1] = bytes([_INTERESTING[int(rng.integers(len(_INTERESTING)))]])
        elif what == 1:
            raw[at : at + 1] = bytes([int(rng.integers(256))])
        elif what == 2:
            raw[at : at + 8] = struct.pack("<Q", _WIDE[int(rng.integers(len(_WIDE)))])
        elif what == 3:
            raw[at : at + 4] = struct.pack("<I", int(_WIDE[int(rng.integers(6))]))
        elif what == 4:
            del raw[at : at + int(rng.integers(1, 40))]
        else:
            raw[at:at] = raw[at : at + int(rng.integers(1, 40))]
    return bytes(raw)


# --- quantized weights ------------------------------------------------------------------------------------------------


def quantized_files() -> list[dict[str, tuple[str, Array]]]:
    """Return small sets of parts of every scheme, as dtype and raw array."""
    rng = np.random.default_rng(0)

    def of(dtype: str, *shape: int) -> tuple[str, Array]:
        widths = {"F8_E4M3": "u1", "U8": "u1", "I8": "i1", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4"}
        values = rng.integers(0, 100, shape)
        return dtype, values.astype(widths[dtype])

    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [8, 16]}
    nested = {**state, "nested_blocksize": 256, "nested_offset": 0.5}

    def text(data: dict[str, Any]) -> tuple[str, Array]:
        return "U8", np.frombuffer(json.dumps(data).encode(), np.uint8)

    shape = "I64", np.array([4, 64])
    bnb = {"m.weight": of("U8", 64, 1), "m.weight.quant_map": of("F32", 16)}
    return [
        {"m.weight": of("F8_E4M3", 200, 130), "m.weight_scale_inv": of("F32", 2, 2)},
        {"m.weight": of("F8_E4M3", 3, 8, 8), "m.weight_scale": of("F32", 3, 8), "n.weight": of("F8_E4M3", 4)},
        {"m.weight": of("I8", 8, 8), "m.weight_scale": of("F16", 8, 1), "m.weight_zero_point": of("I8", 8, 1)},
        {"m.weight": of("I8", 8, 8), "m.SCB": of("F32", 8)},
        {"m.weight_packed": of("I32", 4, 8), "m.weight_scale": of("F16", 4, 2), "m.weight_shape": shape,
         "m.weight_zero_point": of("I32", 1, 2), "m.weight_g_idx": of("I32", 64)},
        {"m.weight_packed": of("U8", 4, 32), "m.weight_scale": of("F8_E4M3", 4, 4),
         "m.weight_global_scale": of("F32", 1)},
        {"m.weight_packed": of("U8", 4, 32), "m.weight_scale": of("U8", 4, 2)},
        {"p_blocks": of("U8", 2, 4, 2, 16), "p_scales": of("U8", 2, 4, 2)},
        {"m.qweight": of("I32", 8, 32), "m.qzeros": of("I32", 4, 4), "m.scales": of("F16", 4, 32),
         "m.g_idx": of("I32", 64)},
        {"m.qweight": of("I32", 64, 4), "m.qzeros": of("I32", 2, 4), "m.scales": of("F16", 2, 32)},
        {**bnb, "m.weight.absmax": of("F32", 2), "m.weight.quant_state.bitsandbytes__nf4": text(state)},
        {**bnb, "m.weight.absmax": of("U8", 2), "m.weight.nested_absmax": of("F32", 1),
         "m.weight.nested_quant_map": of("F32", 256), "m.weight.quant_state.bitsandbytes__nf4": text(nested)},
    ]  # fmt: skip


_FILES = quantized_files()
_WIDTHS = {"F8_E4M3": 1, "U8": 1, "I8": 1, "I32": 4, "I64": 8, "F16": 2, "F32": 4, "BF16": 2, "F8_E8M0": 1}


def quantized_mutant(seed: int, number: int) -> bytes:
    """Return a SafeTensors file whose parts are changed: left out, of another shape, dtype or content, renamed."""
    rng = np.random.default_rng((seed, number))
    parts = {
        name: (dtype, array.shape, array.tobytes()) for name, (dtype, array) in _FILES[number % len(_FILES)].items()
    }
    for _ in range(int(rng.integers(0, 3))):
        name = list(parts)[int(rng.integers(len(parts)))]
        dtype, shape, raw = parts[name]
        what = int(rng.integers(5))
        if what == 0 and len(parts) > 1:
            del parts[name]
        elif what == 1:
            shape = tuple(int(extent) for extent in rng.integers(0, 9, int(rng.integers(0, 5))))
            parts[name] = dtype, shape, bytes(int(np.prod(shape)) * _WIDTHS[dtype])
        elif what == 2:
            dtype = list(_WIDTHS)[int(rng.integers(len(_WIDTHS)))]
            parts[name] = dtype, shape, bytes(int(np.prod(shape)) * _WIDTHS[dtype])
        elif what == 3:
            parts[name] = dtype, shape, rng.integers(0, 256, len(raw), dtype=np.uint8).tobytes()
        else:
            parts[name.replace("weight", "x", 1)] = parts.pop(name)
    header: dict[str, Any] = {}
    data = b""
    for name, (dtype, shape, raw) in parts.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


# --- the run ----------------------------------------------------------------------------------------------------------


def judge(raw: bytes) -> str:
    """Open a file and read all of it; return what came of it. Exceptions other than burnstore's pass through."""
    try:
        with bs.open(raw) as file:
            dict(file.metadata)
            for tensor in file.values():
                try:
                    tensor.numpy()
                except BurnstoreError as error:
                    return f"opened, a tensor refused by {error.rule}"
        return "opened and read"
    except BurnstoreError as error:
        return f"refused by {error.rule or type(error).__name__}"


def gguf_case(seed: int, number: int) -> str:
    """Open one mutant of a GGUF file."""
    return judge(gguf_mutant(seed, number))


def quantized_case(seed: int, number: int) -> str:
    """Open one mutant of quantized weights."""
    return judge(quantized_mutant(seed, number))


SUBJECTS: dict[str, Judge] = {"gguf": gguf_case, "quantized": quantized_case}

if __name__ == "__main__":
    run(__doc__, SUBJECTS)
