"""Models of PyTorch in real Burn: the weights that we carry over give the same numbers in both programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs

from .program import NEWEST, Program, UnavailableError, program

torch = pytest.importorskip("torch")
safetensors_numpy = pytest.importorskip("safetensors.numpy")

RTOL = 1e-4

nn = torch.nn


def _encoder() -> Any:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _decoder() -> Any:
    layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
    return nn.TransformerDecoder(layer, 2)


def _padded_conv2d() -> Any:
    return nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0))


MODELS: dict[str, tuple[Callable[[], Any], dict[str, tuple[int, ...]]]] = {
    "linear": (lambda: nn.Linear(5, 4), {"x": (3, 5)}),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, groups=2, padding=1), {"x": (2, 4, 9)}),
    "conv2d": (_padded_conv2d, {"x": (2, 3, 7, 6)}),
    "conv_transpose2d": (
        lambda: nn.ConvTranspose2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), output_padding=(1, 0)),
        {"x": (2, 3, 4, 5)},
    ),
    "batch_norm": (lambda: nn.BatchNorm2d(6), {"x": (2, 6, 3, 4)}),
    "layer_norm": (lambda: nn.LayerNorm(5), {"x": (3, 5)}),
    "group_norm": (lambda: nn.GroupNorm(2, 6), {"x": (2, 6, 3, 4)}),
    "rms_norm": (lambda: nn.RMSNorm(7, eps=1e-5), {"x": (3, 7)}),
    "embedding": (lambda: nn.Embedding(10, 4), {"x": (2, 5)}),
    "mha": (
        lambda: nn.MultiheadAttention(8, 2, batch_first=True),
        {"x": (2, 3, 8), "key": (2, 4, 8), "value": (2, 4, 8)},
    ),
    "transformer_encoder": (_encoder, {"x": (2, 5, 8)}),
    "transformer_decoder": (_decoder, {"x": (2, 3, 8), "memory": (2, 4, 8)}),
    "lstm": (lambda: nn.LSTM(5, 6, batch_first=True), {"x": (2, 4, 5)}),
    "gru": (lambda: nn.GRU(5, 6, batch_first=True), {"x": (2, 4, 5)}),
    "bilstm": (lambda: nn.LSTM(5, 6, batch_first=True, bidirectional=True), {"x": (2, 4, 5)}),
}


@pytest.fixture(scope="module")
def newest() -> Program:
    try:
        return program(NEWEST)
    except UnavailableError as reason:
        pytest.skip(str(reason))


def _made(name: str, seed: int) -> Any:
    torch.manual_seed(seed)
    model = MODELS[name][0]().eval()
    with torch.no_grad():
        for path, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(
                    torch.rand_like(tensor) + 0.5 if path.endswith("running_var") else torch.randn_like(tensor)
                )
    return model


def _inputs(name: str, folder: Path) -> tuple[dict[str, Any], Path]:
    rng = np.random.default_rng(7)
    arrays = {
        key: rng.integers(0, 10, shape) if name == "embedding" else rng.standard_normal(shape).astype(np.float32)
        for key, shape in MODELS[name][1].items()
    }
    safetensors_numpy.save_file(arrays, folder / "inputs.safetensors")
    return arrays, folder / "inputs.safetensors"


def _torch_output(model: Any, arrays: dict[str, Any]) -> Any:
    with torch.no_grad():
        given = model(*(torch.from_numpy(array) for array in arrays.values()))
    return (given[0] if isinstance(given, tuple) else given).numpy()


@pytest.mark.parametrize("name", MODELS)
def test_a_torch_model_saved_by_us_computes_the_same_in_burn(newest: Program, name: str, tmp_path: Path) -> None:
    model = _made(name, 1)
    bs.save(model, tmp_path / "model.bpk")
    arrays, inputs = _inputs(name, tmp_path)
    wanted = _torch_output(model, arrays)
    found = newest.forward(f"fwd_{name}", tmp_path / "model.bpk", inputs)
    np.testing.assert_allclose(found, wanted, rtol=RTOL, atol=RTOL * np.abs(wanted).max())


@pytest.mark.parametrize("name", MODELS)
def test_weights_of_burn_loaded_into_torch_compute_the_same(newest: Program, name: str, tmp_path: Path) -> None:
    """Burn writes the file itself: what it loaded of ours, saved anew by its own store."""
    bs.save(_made(name, 2), tmp_path / "ours.bpk")
    newest.save(f"fwd_{name}", tmp_path / "ours.bpk", tmp_path / "burns.bpk")
    model = _made(name, 3)
    assert bs.load(model, tmp_path / "burns.bpk").is_complete
    arrays, inputs = _inputs(name, tmp_path)
    wanted = _torch_output(model, arrays)
    found = newest.forward(f"fwd_{name}", tmp_path / "burns.bpk", inputs)
    np.testing.assert_allclose(found, wanted, rtol=RTOL, atol=RTOL * np.abs(wanted).max())


@pytest.mark.parametrize("name", MODELS)
def test_a_torch_file_mapped_to_an_outline_computes_the_same(newest: Program, name: str, tmp_path: Path) -> None:
    """Gates, fused projections and layers find their places in a model that only Burn declares."""
    model = _made(name, 4)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    newest.outline(f"fwd_{name}", tmp_path / "model.outline.bpk")
    bs.convert(tmp_path / "model.pt", tmp_path / "model.bpk", like=tmp_path / "model.outline.bpk", map=True)
    arrays, inputs = _inputs(name, tmp_path)
    wanted = _torch_output(model, arrays)
    found = newest.forward(f"fwd_{name}", tmp_path / "model.bpk", inputs)
    np.testing.assert_allclose(found, wanted, rtol=RTOL, atol=RTOL * np.abs(wanted).max())
