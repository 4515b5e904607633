"""Quantized weights: values bit-equal to those of the libraries, copies with all parts, ambiguity refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import burnstore as bs
from burnstore.errors import BurnstoreError, ModelError, UnsupportedError

Tensors = dict[str, torch.Tensor]


def written(folder: Path, tensors: Tensors, config: dict[str, Any] | None = None, **metadata: str) -> Path:
    """Write a folder as transformers does: a file, and the configuration of the quantization."""
    folder.mkdir(exist_ok=True)
    kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt", **metadata})
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    theirs = theirs.contiguous()
    return ours.dtype == theirs.dtype and torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def check(
    tmp_path: Path, tensors: Tensors, name: str, expected: torch.Tensor, config: dict[str, Any] | None = None
) -> str:
    """Read a file in every way, copy it and decode it; return the scheme."""
    folder = written(tmp_path / "m", tensors, config)
    with bs.open(folder) as file:
        assert list(file) == [name]
        tensor = file[name]
        assert tensor.shape == tuple(expected.shape)
        assert same_bits(tensor.torch(), expected)
        assert same_bits(file.torch()[name], expected)
        assert np.array_equal(tensor[1:3].astype(np.float32), expected[1:3].float().numpy(), equal_nan=True)
        assert np.array_equal(file.numpy()[name].astype(np.float32), expected.float().numpy(), equal_nan=True)
        assert {part.path for part in tensor.stored()} == set(tensors)
        scheme = str(tensor.scheme)
    bs.convert(folder, tmp_path / "copy.safetensors")
    copied = load_file(tmp_path / "copy.safetensors")
    assert copied.keys() == tensors.keys()
    assert all(copied[each].dtype == tensors[each].dtype for each in tensors)
    assert all(torch.equal(raw(copied[each]), raw(tensors[each])) for each in tensors)
    bs.convert(tmp_path / "copy.safetensors", tmp_path / "decoded.safetensors", cast="f32")
    decoded = load_file(tmp_path / "decoded.safetensors")
    assert list(decoded) == [name]
    assert torch.equal(decoded[name], expected.float())
    with bs.open(tmp_path / "decoded.safetensors") as file:
        assert file[name].scheme is None
        assert "burnstore.quantization" not in file.metadata
    return scheme


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


# --- FP8 --------------------------------------------------------------------------------------------------------------


def fp8(*shape: int, dtype: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return (torch.randn(*shape) * 3).to(dtype)


FP8_CASES: dict[str, tuple[torch.Tensor, str, torch.Tensor]] = {
    "blocks": (fp8(256, 384), "weight_scale_inv", torch.rand(2, 3) + 0.01),
    "blocks of bf16 scales": (fp8(256, 384), "weight_scale_inv", (torch.rand(2, 3) + 0.01).bfloat16()),
    "blocks of exponents": (fp8(64, 128), "weight_scale_inv", torch.randint(120, 130, (64, 4), dtype=torch.uint8)),
    "blocks of e8m0": (fp8(64, 128), "scale", torch.full((1, 4), 2.0**-7).to(torch.float8_e8m0fnu)),
    "per tensor": (fp8(48, 40), "weight_scale", torch.tensor(0.37)),
    "per tensor, one axis": (fp8(48, 40), "weight_scale", torch.tensor([0.37])),
    "per row": (fp8(48, 40), "weight_scale", torch.rand(48, 1) + 0.01),
    "per row, e5m2": (fp8(48, 40, dtype=torch.float8_e5m2), "weight_scale", (torch.rand(48, 1) + 0.01).bfloat16()),
    "scale": (fp8(256, 384), "scale", torch.rand(2, 3) + 0.01),
    "experts": (fp8(3, 256, 128), "weight_scale_inv", torch.rand(3, 2, 1) + 0.01),
}


@pytest.mark.parametrize("case", FP8_CASES)
def test_fp8_has_the_values_of_transformers(case: str, tmp_path: Path) -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight, leaf, scale = FP8_CASES[case]
    expected = Fp8Dequantize(None)._dequantize_one(weight, scale)
    scheme = check(tmp_path, {"m.weight": weight, f"m.{leaf}": scale}, "m.weight", expected)
    assert scheme.startswith("FP8, ")
    assert scheme.endswith(f"scales in m.{leaf}")


@pytest.mark.parametrize("shape", [(200, 300), (129, 127), (128, 1), (1, 257)])
def test_the_last_blocks_may_be_cropped(shape: tuple[int, int], tmp_path: Path) -> None:
    from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

    weight = fp8(*shape)
    scale = torch.rand(-(-shape[0] // 128), -(-shape[1] // 128)) + 0.01
    expected = _dequantize_fp8_weight(weight, scale, [128, 128], torch.float32)
    folder = written(tmp_path / "m", {"m.weight": weight, "m.weight_scale_inv": scale}, BLOCKS)
    with bs.open(folder) as file:
        assert same_bits(file["m.weight"].torch(), expected)
        assert np.array_equal(file["m.weight"][-1], expected[-1].numpy())


def test_a_cast_is_right_where_it_once_dropped_the_scales(tmp_path: Path) -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight, scale = fp8(256, 256), torch.full((2, 2), 0.01)
    folder = written(
        tmp_path / "fp8", {"m.weight": weight, "m.weight_scale_inv": scale, "norm.weight": torch.ones(4)}, BLOCKS
    )
    result = bs.convert(folder, tmp_path / "out.safetensors", cast="bf16")
    assert any("written decoded" in note for note in result.notes)
    found = load_file(tmp_path / "out.safetensors")
    assert set(found) == {"m.weight", "norm.weight"}
    assert same_bits(found["m.weight"], Fp8Dequantize(None)._dequantize_one(weight, scale, torch.bfloat16))


def test_scales_in_another_shard_are_found_by_the_index_and_missed_in_one_file(tmp_path: Path) -> None:
    weight, scale = fp8(128, 128), torch.rand(1, 1)
    other, own = fp8(128, 256), torch.rand(1, 2)
    save_file(
        {"m.weight": weight, "n.weight": other, "n.weight_scale_inv": own}, tmp_path / "a-00001-of-00002.safetensors"
    )
    save_file({"m.weight_scale_inv": scale}, tmp_path / "a-00002-of-00002.safetensors")
    files = {"m.weight": 1, "n.weight": 1, "n.weight_scale_inv": 1, "m.weight_scale_inv": 2}
    index = {"weight_map": {name: f"a-0000{number}-of-00002.safetensors" for name, number in files.items()}}
    (tmp_path / "a.safetensors.index.json").write_text(json.dumps(index))
    with bs.open(tmp_path) as file:
        assert torch.equal(file["m.weight"].torch(), weight.float() * scale)
    with bs.open(tmp_path / "a-00001-of-00002.safetensors") as file:
        assert file["n.weight"].torch().dtype is torch.float32
        with pytest.raises(UnsupportedError, match="FP8 without its scale") as caught:
            file["m.weight"].numpy()
        assert caught.value.rule == "QW-03"
    with pytest.raises(BurnstoreError, match="FP8 without its scale"):
        bs.convert(tmp_path / "a-00001-of-00002.safetensors", tmp_path / "x.safetensors", cast="f32")


def test_fp8_in_a_file_without_any_scale_is_plain(tmp_path: Path) -> None:
    weight = fp8(4, 4)
    folder = written(tmp_path / "m", {"m.weight": weight, "m.input_scale": torch.ones(())})
    with bs.open(folder) as file:
        assert str(file["m.weight"].dtype) == "F8_E4M3"
        assert file["m.weight"].scheme is None
        assert list(file.notes) == ["1 weight in FP8, and no scales in the file: numbers are taken as they are stored"]


def test_activation_scales_are_tensors_of_their_own(tmp_path: Path) -> None:
    tensors = {"m.weight": fp8(4, 4), "m.weight_scale": torch.tensor(2.0), "m.input_scale": torch.tensor(3.0)}
    with bs.open(written(tmp_path / "m", tensors)) as file:
        assert set(file) == {"m.weight", "m.input_scale"}
        assert torch.equal(file["m.weight"].torch(), tensors["m.weight"].float() * 2)


AMBIGUOUS: dict[str, tuple[Tensors, str]] = {
    "two scales": (
        {"m.weight": fp8(4, 4), "m.weight_scale": torch.ones(()), "m.weight_scale_inv": torch.ones(())},
        "several scales",
    ),
    "two sizes of blocks": ({"m.weight": fp8(200, 300), "m.weight_scale_inv": torch.ones(2, 3)}, "100 and 128 fit"),
    "a grid that fits nothing": ({"m.weight": fp8(256, 256), "m.weight_scale_inv": torch.ones(3, 5)}, "do not fit"),
    "too many axes": ({"m.weight": fp8(8, 8), "m.weight_scale": torch.ones(2, 2, 2)}, r"scales of \[2, 2, 2\]"),
    "int8 in groups or fp4": (
        {"m.weight": torch.zeros(4, 64, dtype=torch.int8), "m.weight_scale": torch.ones(4, 4)},
        "two FP4 numbers",
    ),
    "qweight of other shapes": (
        {
            "m.qweight": torch.zeros(4, 6, dtype=torch.int32),
            "m.qzeros": torch.zeros(1, 1, dtype=torch.int32),
            "m.scales": torch.ones(1, 7).half(),
        },
        "neither GPTQ's nor AWQ's",
    ),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_what_is_ambiguous_is_listed_copied_and_refused_when_read(case: str, tmp_path: Path) -> None:
    tensors, why = AMBIGUOUS[case]
    folder = written(tmp_path / "m", tensors)
    with bs.open(folder) as file:
        assert len(file) == 1
        assert any("cannot be decoded" in note for note in file.notes)
        with pytest.raises(UnsupportedError, match=why):
            next(iter(file.values())).numpy()
    with pytest.raises(UnsupportedError, match=why):
        bs.convert(folder, tmp_path / "x.safetensors", cast="bf16")
    assert not (tmp_path / "x.safetensors").exists()
    bs.convert(folder, tmp_path / "copy.safetensors")
    assert load_file(tmp_path / "copy.safetensors").keys() == tensors.keys()


# --- one tensor in every stage ----------------------------------------------------------------------------------------


def two_layers(folder: Path) -> Path:
    tensors = {"a.weight": fp8(128, 256), "a.weight_scale_inv": torch.rand(1, 2), "b.weight": fp8(256, 128),
               "b.weight_scale_inv": torch.rand(2, 1), "a.bias": torch.rand(128)}  # fmt: skip
    return written(folder, tensors, BLOCKS)


def test_a_filter_never_separates_a_tensor_from_its_scales(tmp_path: Path) -> None:
    folder = two_layers(tmp_path / "m")
    bs.convert(folder, tmp_path / "a.safetensors", filter=r"^a\.weight$")
    assert set(load_file(tmp_path / "a.safetensors")) == {"a.weight", "a.weight_scale_inv"}
    with pytest.raises(BurnstoreError, match="matched no"):
        bs.convert(folder, tmp_path / "b.safetensors", filter=r"scale_inv$")


def test_parts_follow_the_name_of_their_tensor(tmp_path: Path) -> None:
    folder = two_layers(tmp_path / "m")
    bs.convert(folder, tmp_path / "a.safetensors", rename={"a.weight": "x.y.weight"})
    assert {"x.y.weight", "x.y.weight_scale_inv", "b.weight_scale_inv"} <= set(load_file(tmp_path / "a.safetensors"))
    words = {"m.qweight": torch.zeros(8, 64, dtype=torch.int32), "m.qzeros": torch.zeros(1, 8, dtype=torch.int32),
             "m.scales": torch.ones(1, 64).half()}  # fmt: skip
    other = written(tmp_path / "w", words)
    bs.convert(other, tmp_path / "w.safetensors", rename=["^m=>q.m"])
    assert set(load_file(tmp_path / "w.safetensors")) == {"q.m.qweight", "q.m.qzeros", "q.m.scales"}
    with pytest.raises(ModelError, match="it would be separated from"):
        bs.convert(other, tmp_path / "v.safetensors", rename={"m.weight": "kernel"})


def test_a_receipt_repeats_a_copy_and_a_cast(tmp_path: Path) -> None:
    folder = two_layers(tmp_path / "m")
    for name, options in (("copy", {}), ("cast", {"cast": "bf16"}), ("same", {"cast": "f32"})):
        done = bs.convert(folder, tmp_path / f"{name}.safetensors", receipt=True, **options)
        assert done.receipt is not None
        bs.replay(done.receipt, tmp_path / f"{name}-again.safetensors")
        first, again = ((tmp_path / f"{name}{more}.safetensors").read_bytes() for more in ("", "-again"))
        assert first == again


def test_shards_of_a_copy_are_read_like_the_source(tmp_path: Path) -> None:
    folder = two_layers(tmp_path / "m")
    bs.convert(folder, tmp_path / "s.safetensors", max_shard_size=40_000)
    assert bs.diff(folder, tmp_path / "s.safetensors.index.json").is_equal


def test_a_float_model_gets_decoded_values_and_a_quantized_one_its_parts(tmp_path: Path) -> None:
    folder = two_layers(tmp_path / "m")

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(256, 128), torch.nn.Linear(128, 256, bias=False)

    class Quantized(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Module(), torch.nn.Module()
            for module, shape in ((self.a, (128, 256)), (self.b, (256, 128))):
                grid = (shape[0] // 128, shape[1] // 128)
                module.weight = torch.nn.Parameter(torch.zeros(shape).to(torch.float8_e4m3fn), requires_grad=False)
                module.weight_scale_inv = torch.nn.Parameter(torch.zeros(grid))
            self.a.bias = torch.nn.Parameter(torch.zeros(128))

    stored = load_file(folder / "model.safetensors")
    plain, quantized = Plain(), Quantized()
    bs.load(plain, folder)
    with bs.open(folder) as file:
        assert torch.equal(plain.a.weight.data, file["a.weight"].torch())
    bs.load(quantized, folder)
    assert torch.equal(quantized.a.weight.data.float(), stored["a.weight"].float())
    assert torch.equal(quantized.b.weight_scale_inv.data, stored["b.weight_scale_inv"])


def test_merges_and_differences_are_of_decoded_values(tmp_path: Path) -> None:
    folder = two_layers(tmp_path / "m")
    bs.convert(folder, tmp_path / "f.safetensors", cast="f32")
    assert bs.diff(folder, tmp_path / "f.safetensors").is_equal
    bs.merge([folder, tmp_path / "f.safetensors"], tmp_path / "x.safetensors", method="linear", weights=[0.5, 0.5])
    assert bs.diff(tmp_path / "x.safetensors", tmp_path / "f.safetensors").is_equal
    assert set(load_file(tmp_path / "x.safetensors")) == {"a.weight", "b.weight", "a.bias"}


def test_other_formats_keep_or_decode(tmp_path: Path) -> None:
    folder = two_layers(tmp_path / "m")
    bs.convert(folder, tmp_path / "m.pt")
    assert set(torch.load(tmp_path / "m.pt")) == set(load_file(folder / "model.safetensors"))
    done = bs.convert(folder, tmp_path / "m.bpk", rules={"^[ab]$": "Linear"}, receipt=True)
    assert any("stored as Burn's QFloat" in note for note in done.notes)
    assert done.receipt is not None
    bs.replay(done.receipt, tmp_path / "again.bpk")
    assert (tmp_path / "again.bpk").read_bytes() == (tmp_path / "m.bpk").read_bytes()
    bs.convert(folder, tmp_path / "floats.bpk", rules={"^[ab]$": "Linear"}, cast="f32")
    with bs.open(tmp_path / "m.bpk") as file, bs.open(folder) as own, bs.open(tmp_path / "floats.bpk") as floats:
        assert file["a.weight"].dtype.is_quantized
        assert str(floats["a.weight"].dtype) == "F32"
        for name in ("a.weight", "b.weight"):
            assert (file[name].numpy() == own[name].numpy().T).all()
            assert (floats[name].numpy() == own[name].numpy().T).all()
    bs.convert(folder, tmp_path / "m.gguf")
    with bs.open(tmp_path / "m.gguf") as file, bs.open(folder) as own:
        assert (file["a.weight"].numpy() == own["a.weight"].numpy()).all()
    bs.save(bs.open(folder), tmp_path / "saved.safetensors")
    assert set(load_file(tmp_path / "saved.safetensors")) == set(load_file(folder / "model.safetensors"))


@pytest.mark.parametrize("scale", [torch.tensor(0.3), torch.rand(48, 1), torch.tensor(0.3).bfloat16()])
def test_burns_qfloat_is_written_where_it_has_the_same_values(scale: torch.Tensor, tmp_path: Path) -> None:
    folder = written(tmp_path / "m", {"m.weight": fp8(48, 40, dtype=torch.float8_e5m2), "m.weight_scale": scale})
    done = bs.convert(folder, tmp_path / "m.bpk", rules={"^m$": "Linear"})
    with bs.open(tmp_path / "m.bpk") as file, bs.open(folder) as own:
        assert file["m.weight"].dtype.is_quantized is (scale.dtype is torch.float32)
        assert (file["m.weight"].numpy() == own["m.weight"].numpy().T).all()
    assert any("QFloat" in note or "written decoded" in note for note in done.notes)


def test_a_quantized_file_of_burn_becomes_floats_in_torchs_layout(tmp_path: Path) -> None:
    folder = two_layers(tmp_path / "m")
    bs.convert(folder, tmp_path / "m.bpk", rules={"^[ab]$": "Linear"})
    done = bs.convert(tmp_path / "m.bpk", tmp_path / "back.safetensors", target_layout="torch")
    assert any("written decoded" in note and "QFloat" in note for note in done.notes)
    with bs.open(tmp_path / "back.safetensors") as file, bs.open(folder) as own:
        assert all((file[name].numpy() == own[name].numpy()).all() for name in own)
    plain = torch.nn.Module()
    plain.a, plain.b = torch.nn.Linear(256, 128), torch.nn.Linear(128, 256, bias=False)
    bs.load(plain, tmp_path / "m.bpk")
    with bs.open(folder) as own:
        assert torch.equal(plain.a.weight.data, own["a.weight"].torch())


def test_inspect_shows_shape_dtype_and_scheme(tmp_path: Path) -> None:
    row = next(row for row in bs.inspect(two_layers(tmp_path / "m")).tensors if row.name == "a.weight")
    assert (str(row.dtype), row.shape, row.scheme) == (
        "F32",
        (128, 256),
        "FP8, blocks of 128x128, scales in a.weight_scale_inv",
    )


# --- the other schemes ------------------------------------------------------------------------------------------------


@pytest.mark.matrix(every=6)
@pytest.mark.parametrize("strategy", ["group", "channel"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
def test_packed_integers_are_those_of_compressed_tensors(
    bits: int, dtype: torch.dtype, symmetric: bool, strategy: str, tmp_path: Path
) -> None:
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    group = 32 if strategy == "group" else None
    weights = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, strategy=strategy, group_size=group)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    torch.manual_seed(bits)
    groups = 96 // group if group else 1
    zeros = (
        torch.zeros(40, groups, dtype=torch.int8) if symmetric else torch.randint(-2, 2, (40, groups), dtype=torch.int8)
    )
    state = {"weight": torch.randn(40, 96).to(dtype), "weight_scale": (torch.rand(40, groups) * 0.1 + 0.01).to(dtype)}
    packed = PackedQuantizationCompressor.compress({**state, "weight_zero_point": zeros}, scheme)
    expected = PackedQuantizationCompressor.decompress(dict(packed), scheme)["weight"]
    config = {
        "quant_method": "compressed-tensors",
        "config_groups": {"g": {"weights": {"num_bits": bits, "type": "int"}}},
    }
    shown = check(tmp_path, {f"m.{name}": tensor for name, tensor in packed.items()}, "m.weight", expected, config)
    assert shown.startswith(f"INT{bits}, ")


def test_ten_integers_of_three_bits_in_a_word_are_read_as_old_releases_wrote_them(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 8, (4, 40))
    words = np.zeros((4, 4), np.uint32)
    for column in range(40):
        words[:, column // 10] |= (codes[:, column] << (3 * (column % 10))).astype(np.uint32)
    tensors = {"m.weight_packed": torch.from_numpy(words.view(np.int32)), "m.weight_shape": torch.tensor([4, 40]),
               "m.weight_scale": torch.full((4, 1), 0.5)}  # fmt: skip
    with bs.open(written(tmp_path / "m", tensors)) as file, pytest.raises(UnsupportedError, match="these fit"):
        file["m.weight"].numpy()
    wide = {**tensors, "m.weight_shape": torch.tensor([4, 31]), "m.weight_packed": tensors["m.weight_packed"]}
    config = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 3, "type": "int"}}}}
    with bs.open(written(tmp_path / "w", wide, config)) as file:
        assert (file["m.weight"].numpy() == (codes[:, :31] - 4) * 0.5).all()


def test_int8_with_a_scale_per_row(tmp_path: Path) -> None:
    codes, scale = torch.randint(-127, 128, (16, 24), dtype=torch.int8), torch.rand(16, 1).bfloat16()
    shown = check(tmp_path, {"m.weight": codes, "m.weight_scale": scale}, "m.weight", codes.bfloat16() * scale)
    assert shown == "INT8, a scale per row, scales in m.weight_scale"


def test_nvfp4_and_mxfp4_are_those_of_compressed_tensors(tmp_path: Path) -> None:
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    torch.manual_seed(1)
    codes = torch.randint(0, 256, (32, 64), dtype=torch.uint8)
    for compressor, strategy, group, more in (
        (NVFP4PackedCompressor, "tensor_group", 16, {"weight_scale": (torch.rand(32, 8) * 400).to(torch.float8_e4m3fn),
                                                     "weight_global_scale": torch.tensor([2688.0 / 3.7])}),
        (MXFP4PackedCompressor, "group", 32, {"weight_scale": torch.randint(110, 140, (32, 4), dtype=torch.uint8)}),
    ):  # fmt: skip
        weights = QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy=strategy, group_size=group)
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        state = {"weight_packed": codes, **more}
        expected = compressor.decompress(dict(state), scheme)["weight"]
        folder = tmp_path / strategy
        folder.mkdir()
        check(folder, {f"m.{name}": tensor for name, tensor in state.items()}, "m.weight", expected)


def test_nvfp4_of_modelopt_multiplies_both_scales(tmp_path: Path) -> None:
    codes = torch.randint(0, 256, (32, 64), dtype=torch.uint8)
    inner, outer = (torch.rand(32, 8) * 400).to(torch.float8_e4m3fn), torch.tensor(0.0013)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    values = torch.stack([table[(codes & 15).long()], table[(codes >> 4).long()]], -1).reshape(32, 8, 16)
    expected = (values * (inner.float() * outer)[..., None]).reshape(32, 128).bfloat16()
    check(tmp_path, {"m.weight": codes, "m.weight_scale": inner, "m.weight_scale_2": outer}, "m.weight", expected)


def test_the_experts_of_gpt_oss_are_transposed_as_transformers_does(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

    blocks = torch.randint(0, 256, (3, 32, 4, 16), dtype=torch.uint8)
    scales = torch.randint(100, 140, (3, 32, 4), dtype=torch.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {f"{name}_blocks": blocks, f"{name}_scales": scales}
    check(tmp_path, tensors, name, _convert_moe_packed_tensors(blocks, scales), {"quant_method": "mxfp4"})


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bits_are_those_of_bitsandbytes(kind: str, dtype: torch.dtype, nested: bool, tmp_path: Path) -> None:
    import bitsandbytes.functional as functional

    torch.manual_seed(2)
    codes, state = functional.quantize_4bit(
        torch.randn(64, 128).to(dtype), blocksize=64, quant_type=kind, compress_statistics=nested
    )
    tensors = {"m.weight": codes, **{f"m.weight.{name}": each for name, each in state.as_dict(packed=True).items()}}
    shown = check(tmp_path, tensors, "m.weight", functional.dequantize_4bit(codes, state))
    assert shown.startswith(kind.upper())


def test_eight_bits_are_those_of_bitsandbytes(tmp_path: Path) -> None:
    import bitsandbytes.functional as functional

    codes, scale = torch.randint(-127, 128, (64, 32), dtype=torch.int8), torch.rand(64)
    expected = functional.int8_vectorwise_dequant(codes, scale)
    check(tmp_path, {"m.weight": codes, "m.SCB": scale}, "m.weight", expected)


def gptq(bits: int, version: int, *, ordered: bool, symmetric: bool) -> tuple[Tensors, torch.Tensor]:
    """Pack a weight as AutoGPTQ does (documented layout; no writer of it runs here)."""
    rng = np.random.default_rng(bits)
    inputs, outputs, group = 64, 32, 16
    codes = rng.integers(0, 1 << bits, (inputs, outputs))
    zeros = (
        np.full((inputs // group, outputs), 1 << (bits - 1)) if symmetric else rng.integers(1, 1 << bits, (4, outputs))
    )
    scales = (rng.random((inputs // group, outputs)) * 0.1).astype(np.float16)
    index = np.arange(inputs) // group if ordered else rng.permutation(np.arange(inputs) // group)

    def pack(values: Any) -> Any:  # along the last axis, without gaps
        stream = ((values[..., None] >> np.arange(bits)) & 1).reshape(*values.shape[:-1], -1).astype(np.uint8)
        return np.packbits(stream, axis=-1, bitorder="little").view("<i4")

    tensors = {
        "m.qweight": torch.from_numpy(np.ascontiguousarray(pack(codes.T).T)),
        "m.qzeros": torch.from_numpy(np.ascontiguousarray(pack(zeros - (version == 1)))),
        "m.scales": torch.from_numpy(scales),
        "m.g_idx": torch.from_numpy(index.astype(np.int32)),
    }
    expected = ((codes - zeros[index]).astype(np.float32) * scales[index].astype(np.float32)).astype(np.float16)
    return tensors, torch.from_numpy(np.ascontiguousarray(expected.T))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq_of_both_versions(bits: int, version: int, ordered: bool, tmp_path: Path) -> None:
    tensors, expected = gptq(bits, version, ordered=ordered, symmetric=False)
    config = {"quant_method": "gptq", "bits": bits, "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    check(tmp_path, tensors, "m.weight", expected, config)


@pytest.mark.parametrize("version", [1, 2])
def test_gptq_without_a_configuration_is_decoded_where_its_zero_points_show_the_version(
    version: int, tmp_path: Path
) -> None:
    tensors, expected = gptq(4, version, ordered=True, symmetric=True)
    check(tmp_path, tensors, "m.weight", expected)
    other, _ = gptq(4, version, ordered=True, symmetric=False)
    with bs.open(written(tmp_path / "o", other)) as file, pytest.raises(UnsupportedError, match="version 1"):
        file["m.weight"].numpy()


def test_awq_is_interleaved(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    inputs, outputs, group = 64, 32, 32
    codes, zeros = rng.integers(0, 16, (inputs, outputs)), rng.integers(0, 16, (inputs // group, outputs))
    scales = (rng.random((inputs // group, outputs)) * 0.1).astype(np.float16)

    def pack(values: Any) -> Any:
        words = np.zeros((len(values), outputs // 8), np.uint32)
        for place, column in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):  # AutoAWQ's order
            words |= (values[:, column::8] << (4 * place)).astype(np.uint32)
        return torch.from_numpy(words.view(np.int32))

    spread = np.repeat(zeros, group, axis=0), np.repeat(scales.astype(np.float32), group, axis=0)
    expected = torch.from_numpy(np.ascontiguousarray(((codes - spread[0]) * spread[1]).astype(np.float16).T))
    tensors = {"m.qweight": pack(codes), "m.qzeros": pack(zeros), "m.scales": torch.from_numpy(scales)}
    check(tmp_path, tensors, "m.weight", expected, {"quant_method": "awq", "bits": 4, "version": "gemm"})


def torchao_file(folder: Path, kind: str, tensors: Tensors, **data: Any) -> Path:
    """Write what torchao's ``flatten_tensor_state_dict`` writes (its documented layout)."""
    described = {"_type": kind, "_data": data, "_tensor_data_names": [name.rpartition("_")[2] for name in tensors]}
    names = {"tensor_names": json.dumps(["0.weight"]), "0.weight": json.dumps(described)}
    return written(folder, tensors, None, **names)


def test_torchaos_tensors_are_decoded_or_refused_by_name(tmp_path: Path) -> None:
    codes, scale = fp8(16, 32), torch.rand(16, 1)
    folder = torchao_file(tmp_path / "f", "Float8Tensor", {"0._weight_qdata": codes, "0._weight_scale": scale},
                          block_size=[1, 32], dtype={"_type": "torch.dtype", "_data": "bfloat16"})  # fmt: skip
    with bs.open(folder) as file:
        assert list(file) == ["0.weight"]
        assert same_bits(file["0.weight"].torch(), (codes.float() * scale).bfloat16())
    bs.convert(folder, tmp_path / "copy.safetensors")
    assert set(load_file(tmp_path / "copy.safetensors")) == {"0._weight_qdata", "0._weight_scale"}
    packed = {"0._weight_qdata": torch.zeros(16, 16, dtype=torch.uint8), "0._weight_scale": scale}
    with (
        bs.open(torchao_file(tmp_path / "i", "Int4Tensor", packed)) as file,
        pytest.raises(UnsupportedError, match="Int4T"),
    ):
        file["0.weight"].numpy()


# --- hostile ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"quantization_config": 3}', '{"quantization_config": {"quant_method": [1]}}']
)
def test_a_strange_configuration_leaves_the_evidence(text: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "m", {"m.weight": fp8(4, 4), "m.weight_scale": torch.tensor(2.0)})
    (folder / "config.json").write_text(text)
    with bs.open(folder) as file:
        assert torch.equal(file["m.weight"].torch(), fp8(4, 4).float() * 2)


PLAIN: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
    "floats": (torch.rand(4, 6), torch.rand(4)),
    "wide integers": (torch.ones(4, 6, dtype=torch.int16), torch.rand(4)),
    "integers as a scale": (torch.ones(4, 6, dtype=torch.int8), torch.ones(4, dtype=torch.uint8)),
    "one axis": (fp8(6, 1)[:, 0].clone(), torch.rand(6)),
    "one axis and one scale": (torch.ones(6, dtype=torch.int8), torch.rand(1)),
    "no numbers": (torch.ones(0, 6, dtype=torch.int8), torch.rand(1)),
    "no scales": (torch.ones(4, 6, dtype=torch.int8), torch.rand(0)),
    "a scale that fits no axis": (torch.ones(4, 6, dtype=torch.int8), torch.rand(5)),
    "a scale per number": (torch.ones(4, 6, dtype=torch.int8), torch.rand(4, 6)),
    "another number of axes": (fp8(4, 6), torch.rand(2, 2, 2)),
}


@pytest.mark.parametrize("case", PLAIN)
def test_a_plain_module_may_have_a_scale_beside_its_weight(case: str, tmp_path: Path) -> None:
    weight, scale = PLAIN[case]
    tensors = {"m.weight": weight, "m.scale": scale}
    with bs.open(written(tmp_path / "m", tensors)) as file:
        assert set(file) == set(tensors)
        assert all(file[name].scheme is None for name in tensors)
        assert all(torch.equal(raw(file[name].torch()), raw(tensors[name])) for name in tensors)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_scale_that_fits_a_matrix_of_eight_bits_is_its_scale(dtype: torch.dtype, tmp_path: Path) -> None:
    weight, scale = torch.arange(24).reshape(4, 6).to(dtype), torch.rand(4)
    with bs.open(written(tmp_path / "m", {"m.weight": weight, "m.scale": scale})) as file:
        assert list(file) == ["m.weight"]
        assert torch.equal(file["m.weight"].torch(), weight.float() * scale[:, None])


class Coded(torch.nn.Module):
    """A layer that keeps codes and scales, as quantized models do."""

    def __init__(self, dtype: torch.dtype, scale: str) -> None:
        super().__init__()
        self.register_buffer("weight", torch.arange(24).reshape(4, 6).to(dtype))
        self.register_buffer(scale, torch.rand(4))


@pytest.mark.parametrize("scale", ["scale", "weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_every_verb_sees_codes_and_scales_where_the_other_side_has_them(
    dtype: torch.dtype, scale: str, tmp_path: Path
) -> None:
    model = torch.nn.Sequential(Coded(dtype, scale))
    path, copy = tmp_path / "m.safetensors", tmp_path / "copy.safetensors"
    bs.save(model, path)
    assert bs.diff(model, path)
    assert bs.diff(path, model)
    assert len(bs.diff(path, path).equal) == 1  # neither side has a place of its own for the scale
    bs.convert(path, copy, like=model)
    assert load_file(copy).keys() == model.state_dict().keys()
    other = torch.nn.Sequential(Coded(dtype, scale))
    bs.load(other, copy, strict=True)
    assert bs.diff(other, model)
    other[0]._buffers[scale][1] += 1
    assert [each.name for each in bs.diff(other, path).changed] == [f"0.{scale}"]
