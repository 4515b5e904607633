"""A dtype that a format lacks: the ways out of the hint work."""

from __future__ import annotations

import re

import pytest

import burnstore as bs
from burnstore.tensor.data import TensorData

DTYPES = [dtype for dtype in vars(bs.DType).values() if isinstance(dtype, bs.DType) and not dtype.is_quantized]
FORMATS = {".bpk": "burnpack", ".safetensors": "safetensors", ".pt": "pytorch", ".npz": "npz"}


@pytest.mark.parametrize("format_name", FORMATS.values())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_missing_dtype_has_ways_out_that_work(dtype: bs.DType, format_name: str) -> None:
    tensors = {
        "w": TensorData.from_bytes(bytes(dtype.nbytes((8,))), dtype, (8,)),
        "v": TensorData.from_bytes(b"", dtype, (0,)),
    }
    try:
        bs.serialize(tensors, format=format_name)
        return
    except bs.errors.DTypeError as error:
        hint = error.hint or ""
    suffixes = re.findall(r"\((\.\w+)\)", hint)
    assert suffixes
    for suffix in suffixes:
        assert bs.open(bs.serialize(tensors, format=FORMATS[suffix]))["w"].dtype == dtype
    if "cast" in hint:
        assert bs.open(bs.serialize(tensors, format=format_name, cast="f32"))["w"].dtype == "F32"
    else:
        assert "filter=" in hint
        bs.serialize(
            {**tensors, "x": TensorData.from_bytes(bytes(4), bs.DType.F32, (1,))}, format=format_name, filter="^x$"
        )


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex32_is_written_as_torch_writes_it() -> None:
    torch = pytest.importorskip("torch")
    import io

    raw = bytes(range(16))
    packed = bs.serialize({"w": TensorData.from_bytes(raw, bs.DType.C32, (4,))}, format="pytorch")
    found = torch.load(io.BytesIO(packed), weights_only=True)["w"]
    assert found.dtype is torch.complex32
    assert bytes(found.view(torch.uint8).numpy()) == raw
