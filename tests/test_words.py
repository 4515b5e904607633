"""Words of other libraries: spellings that are understood, and keywords that are answered with our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.pipeline.options import as_cast


@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        ("fp16 float16 half f16 F16 torch.float16 torch.half", bs.DType.F16),
        ("bf16 bfloat16 BF16 torch.bfloat16", bs.DType.BF16),
        ("fp32 float32 float f32 torch.float32", bs.DType.F32),
        ("fp64 float64 double f64 torch.double", bs.DType.F64),
    ],
)
def test_every_usual_name_of_a_dtype_is_understood(names: str, dtype: bs.DType) -> None:
    assert {as_cast(name) for name in names.split()} == {dtype}


def test_dtypes_of_numpy_and_torch_are_understood() -> None:
    torch = pytest.importorskip("torch")
    assert as_cast(np.float16) is as_cast(np.dtype("<f2")) is as_cast(torch.half) is bs.DType.F16
    assert as_cast(torch.bfloat16) is bs.DType.BF16
    for wrong in (3, object(), [1], None):
        with pytest.raises(TypeError, match="cast must be a DType"):
            as_cast(wrong)
    with pytest.raises(bs.errors.DTypeError, match="cannot cast values to I64"):
        as_cast(torch.int64)


WORDS = {
    "strict": "allow_partial",
    "map_location": "device=",
    "weights_only": "nothing in a file is ever run",
    "mmap": "zero_copy",
    "dtype": "cast=",
    "torch_dtype": "cast=",
    "key_mapping": "rename=",
    "ignore_mismatched_sizes": "validate=False",
}


@pytest.mark.parametrize("word", WORDS)
def test_a_keyword_of_another_library_is_answered_with_ours(tmp_path: Path, word: str) -> None:
    model = {"w": np.zeros(2, np.float32)}
    bs.save(model, tmp_path / "a.safetensors")
    given: dict[str, Any] = {word: True}
    for call in (
        *([] if word == "strict" else [lambda: bs.load(model, tmp_path / "a.safetensors", **given)]),
        lambda: bs.open(tmp_path / "a.safetensors", **given),
        lambda: bs.save(model, tmp_path / "b.safetensors", **given),
        lambda: bs.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", **given),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert f"has no option '{word}'" in str(caught.value) and WORDS[word] in str(caught.value)
    assert not (tmp_path / "b.safetensors").exists()


def test_an_unknown_keyword_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="load has no option 'nonsense'"):
        bs.load({}, b"", nonsense=1)  # type: ignore[call-arg, unused-ignore]
    bs.save({"w": np.zeros(1)}, tmp_path / "a.safetensors")
    for suffix in (".bpk", ".safetensors", ".pt", ".npz"):
        target = tmp_path / f"b{suffix}"
        with pytest.raises(TypeError, match=r"save has no option 'nonsense'$"):
            bs.save({"w": np.zeros(1)}, target, nonsense=1)
        with pytest.raises(TypeError, match=r"save has no option 'over_write'; did you mean 'overwrite'[?]"):
            bs.save({"w": np.zeros(1)}, target, over_write=True)
        with pytest.raises(TypeError, match="convert has no option 'nonsense'"):
            bs.convert(tmp_path / "a.safetensors", target, nonsense=1)
        with pytest.raises(TypeError, match=r"merge has no option 'weight'; did you mean 'weights'[?]"):
            bs.merge([tmp_path / "a.safetensors"], target, weight=[1])
        assert not target.exists()
    with pytest.raises(TypeError, match="save has no option 'burn_version'; it is for files of another format"):
        bs.save({"w": np.zeros(1)}, tmp_path / "b.npz", burn_version="0.21")
    with pytest.raises(TypeError, match=r"open has no option 'zerocopy'; did you mean 'zero_copy'[?]"):
        bs.open(tmp_path / "a.safetensors", zerocopy=True)
    with pytest.raises(TypeError, match="serialize has no option 'nonsense'"):
        bs.serialize({"w": np.zeros(1)}, format="burnpack", nonsense=1)


def test_an_open_file_answers_as_safe_open_does(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safe_open = pytest.importorskip("safetensors").safe_open
    bs.save({"a.w": np.arange(12, dtype=np.float32).reshape(4, 3), "b": np.ones(2)}, tmp_path / "a.safetensors")
    with bs.open(tmp_path / "a.safetensors") as ours, safe_open(str(tmp_path / "a.safetensors"), "pt") as theirs:
        assert list(ours.keys()) == list(theirs.offset_keys())
        assert torch.equal(ours.get_tensor("a.w", "pt"), theirs.get_tensor("a.w"))
        assert isinstance(ours.get_tensor("a.w"), np.ndarray)
        assert ours.get_slice("a.w")[1:3].tolist() == theirs.get_slice("a.w")[1:3].tolist()
        assert list(ours.get_slice("a.w").shape) == theirs.get_slice("a.w").get_shape()
        with pytest.raises(ValueError, match="framework"):
            ours.get_tensor("a.w", "jax")
        with pytest.raises(KeyError):
            ours.get_tensor("nothing")
