"""Models of torchvision, timm and transformers, small, whose skeletons are compiled with real Burn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timm
import torch
import torchvision.models as vision
import transformers
from torch import nn
from torchvision.models.convnext import CNBlockConfig


class Mixed(nn.Module):
    """What the published models seldom have: recurrent layers, transformers, lists of lists, names that Rust keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.type = nn.Linear(4, 6)
        self.stack = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.cell = nn.GRUCell(5, 3)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True),
            2,
            norm=nn.LayerNorm(8),
            enable_nested_tensor=False,
        )
        self.layer = nn.TransformerDecoderLayer(8, 2, 12, activation="gelu", batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
        self.cross = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
        self.grid = nn.ModuleList([nn.ModuleList([nn.Linear(2, 3), nn.Linear(3, 2)]), nn.ModuleList([nn.Linear(2, 2)])])
        self.by_name = nn.ModuleDict({"1": nn.Conv1d(2, 3, 3, padding="same", dilation=2), "two-d": nn.PReLU(3)})
        self.norms = nn.Sequential(
            nn.GroupNorm(2, 4), nn.ReLU(), nn.LayerNorm(4, elementwise_affine=False), nn.BatchNorm1d(4, affine=False)
        )
        self.up = nn.ConvTranspose2d(4, 6, (3, 2), stride=2, output_padding=1, groups=2)
        self.mask = nn.Parameter(torch.zeros(2, 3), requires_grad=False)
        self.register_buffer("index", torch.arange(5))
        self.register_buffer("flags", torch.tensor([True, False]))

    def forward(self, x: Any, *, state: Any = None) -> Any:
        raise NotImplementedError


class Names(nn.Module):
    """Names that Rust or Burn's derive keeps, that are no identifiers, or that become the same; defaults of lines."""

    def __init__(self, width: int = 0) -> None:
        super().__init__()
        for name in (
            "1x1",
            "a-b",
            "a_b",
            "match",
            "match_",
            "_",
            "device",
            "mapper",
            'a"b c',
            "größe",
            "e\u0301",
            "$1",
        ):
            self.register_module(name, nn.Linear(width + 1, 2))
        if not width:
            self.self = nn.ModuleList([Names(1), Names(2)])

    def forward(self, x: Any, *, mask: Any = torch.zeros(2, 2)) -> Any:  # noqa: B008
        raise NotImplementedError


def _sequential() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Sequential(nn.Conv2d(6, 8, (3, 1), padding=(1, 0), groups=2), nn.GELU(), nn.AvgPool2d(2)),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
        nn.PReLU(10),
        nn.Linear(10, 4),
        nn.Softmax(dim=-1),
    )


def _convnext() -> Any:
    return vision.ConvNeXt([CNBlockConfig(8, 16, 2), CNBlockConfig(16, 24, 2), CNBlockConfig(24, None, 1)])


def _swin() -> Any:
    return vision.SwinTransformer([4, 4], 12, [2, 2, 1], [2, 3, 4], [7, 7])


def _bert() -> Any:
    return transformers.BertModel(
        transformers.BertConfig(
            vocab_size=50, hidden_size=24, intermediate_size=40, num_attention_heads=3, num_hidden_layers=3
        )
    )


def _llama() -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=48,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=3,
        )
    )


def _t5() -> Any:
    return transformers.T5Model(
        transformers.T5Config(vocab_size=50, d_model=24, d_kv=6, d_ff=40, num_heads=3, num_layers=2)
    )


def _whisper() -> Any:
    return transformers.WhisperModel(
        transformers.WhisperConfig(
            vocab_size=60,
            num_mel_bins=10,
            d_model=24,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=3,
            decoder_attention_heads=3,
            encoder_ffn_dim=40,
            decoder_ffn_dim=40,
            pad_token_id=0,
        )
    )


MODELS: dict[str, Callable[[], Any]] = {
    "resnet18": vision.resnet18,
    "mobilenet_v2": lambda: vision.mobilenet_v2(width_mult=0.35),
    "densenet": lambda: vision.DenseNet(growth_rate=8, block_config=(2, 3, 2), num_init_features=16),
    "efficientnet_b0": lambda: vision.efficientnet_b0(num_classes=10),
    "convnext": _convnext,
    "swin": _swin,
    "googlenet": lambda: vision.googlenet(num_classes=10, init_weights=False),
    "vision_transformer": lambda: vision.VisionTransformer(32, 8, 3, 2, 32, 64, num_classes=10),
    "timm_vit": lambda: timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=10),
    "timm_edgenext": lambda: timm.create_model("edgenext_xx_small", num_classes=10),
    "timm_regnet": lambda: timm.create_model("regnetx_002", num_classes=10),
    "bert": _bert,
    "gpt2": lambda: transformers.GPT2Model(transformers.GPT2Config(vocab_size=50, n_embd=24, n_head=3, n_layer=3)),
    "llama": _llama,
    "t5": _t5,
    "whisper": _whisper,
    "sequential": _sequential,
    "mixed": Mixed,
    "names": Names,
}
"""What is made, by the name of the module of Rust: sixteen published models and three of our own."""
