"""The other side of the gallery: small random models of PyTorch, their checkpoints, inputs and outputs.

Every tensor is random, norms and running statistics too, so that a tensor in the wrong place shows in the outputs.
Checkpoints are what their authors would publish: ``save_pretrained`` of transformers, ``torch.save`` of a state dict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """A random model: its checkpoint, the configuration of the Burn model, inputs, and what torch computes."""

    checkpoint: Path
    config: Path
    inputs: Arrays
    outputs: Arrays
    model: Any = None

    @property
    def numbers(self) -> dict[str, Any]:
        """The configuration as data: rules refer to its numbers by name."""
        found: dict[str, Any] = json.loads(self.config.read_text(encoding="utf-8"))
        return found


def make(case: str, folder: Path) -> Source:
    """Make the model of that name in a folder."""
    torch.manual_seed(20)
    return CASES[case](folder)


def _source(
    folder: Path,
    model: Any,
    config: Mapping[str, Any],
    inputs: Arrays,
    outputs: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]],
    *,
    pretrained: bool = True,
) -> Source:
    stir(model)
    model.eval()
    if pretrained:
        model.save_pretrained(folder)
        checkpoint = folder / "model.safetensors"
    else:
        checkpoint = folder / "model.pt"
        torch.save(model.state_dict(), checkpoint)
    (folder / "gallery.json").write_text(json.dumps(config), encoding="utf-8")
    with torch.no_grad():
        found = outputs(model, {name: torch.from_numpy(value) for name, value in inputs.items()})
    arrays = {name: held.numpy() for name, held in found.items()}
    return Source(checkpoint, folder / "gallery.json", inputs, arrays, model)


def stir(model: Any) -> None:
    """Give every tensor random values that keep the numbers of a forward pass near one."""
    with torch.no_grad():
        for module in model.modules():
            is_norm = "norm" in type(module).__name__.lower()
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None and tensor.is_floating_point():
                    tensor.copy_(_stirred(module, name, tensor, is_norm=is_norm))


def _stirred(module: Any, name: str, tensor: Any, *, is_norm: bool) -> Any:
    noise = torch.randn(tensor.shape)
    if name == "running_var":
        return torch.rand(tensor.shape) + 0.5
    if name in ("inv_freq", "original_inv_freq"):  # rotary frequencies: computed, not learned
        return tensor
    if is_norm and name == "weight":
        return 1 + 0.3 * noise
    if tensor.ndim < 2 or isinstance(module, nn.Embedding):
        return 0.3 * noise
    is_input_first = type(module).__name__ == "Conv1D"  # GPT-2's: a Linear that keeps its matrix transposed
    fan_in = tensor.shape[0] if is_input_first else tensor[0].numel()
    return noise / fan_in**0.5


def _tokens(vocabulary: int, *shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(3, vocabulary, shape)


def _floats(*shape: int) -> Any:
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


def _padded(batch: int, length: int) -> Any:
    mask = np.ones((batch, length), np.int64)
    mask[-1, length - 3 :] = 0
    return mask


def _resnet(folder: Path, *, bottleneck: bool) -> Source:
    from torchvision.models import resnet

    block = resnet.Bottleneck if bottleneck else resnet.BasicBlock
    depths = [2, 1, 2, 1]
    model = resnet.ResNet(block, depths, num_classes=7, width_per_group=64)
    config = {"depths": depths, "num_classes": 7, "bottleneck": bottleneck, "width": 64}
    inputs = {"images": _floats(2, 3, 64, 48)}
    return _source(
        folder, model, config, inputs, lambda model, given: {"logits": model(given["images"])}, pretrained=False
    )


def _bert(folder: Path) -> Source:
    from transformers import BertConfig, BertModel

    theirs = BertConfig(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=40,
        num_attention_heads=3,
        num_hidden_layers=3,
        max_position_embeddings=20,
    )
    config = {"vocab_size": 50, "d_model": 24, "d_ff": 40, "n_heads": 3, "n_layers": 3, "max_positions": 20}
    config |= {"token_types": 2, "norm_eps": 1e-12, "first_position": 0}
    types = np.zeros((2, 11), np.int64)
    types[:, 6:] = 1
    inputs = {"tokens": _tokens(50, 2, 11), "types": types, "mask": _padded(2, 11)}

    def outputs(model: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        found = model(given["tokens"], attention_mask=given["mask"], token_type_ids=given["types"])
        return {"hidden": found.last_hidden_state, "pooled": found.pooler_output}

    return _source(folder, BertModel(theirs), config, inputs, outputs)


def _roberta(folder: Path) -> Source:
    from transformers import RobertaConfig, RobertaForMaskedLM

    theirs = RobertaConfig(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=40,
        num_attention_heads=3,
        num_hidden_layers=2,
        max_position_embeddings=20,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
    )
    config = {"vocab_size": 50, "d_model": 24, "d_ff": 40, "n_heads": 3, "n_layers": 2, "max_positions": 20}
    config |= {"token_types": 1, "norm_eps": 1e-5, "first_position": 2}
    inputs = {"tokens": _tokens(50, 2, 11), "mask": _padded(2, 11)}

    def outputs(model: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"logits": model(given["tokens"], attention_mask=given["mask"]).logits}

    return _source(folder, RobertaForMaskedLM(theirs), config, inputs, outputs)


def _gpt2(folder: Path) -> Source:
    from transformers import GPT2Config, GPT2LMHeadModel

    theirs = GPT2Config(vocab_size=50, n_embd=24, n_head=3, n_layer=3, n_positions=20)
    config = {"vocab_size": 50, "d_model": 24, "d_ff": 96, "n_heads": 3, "n_layers": 3, "max_positions": 20}
    inputs = {"tokens": _tokens(50, 2, 11)}
    return _source(
        folder, GPT2LMHeadModel(theirs), config, inputs, lambda model, given: {"logits": model(given["tokens"]).logits}
    )


def _llama(folder: Path) -> Source:
    from transformers import LlamaConfig, LlamaForCausalLM

    theirs = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=3,
        max_position_embeddings=32,
    )
    config = {"vocab_size": 50, "d_model": 32, "d_ff": 48, "n_heads": 4, "n_kv_heads": 2, "n_layers": 3}
    config |= {"max_positions": 32, "rope_theta": 10000.0, "norm_eps": 1e-6}
    inputs = {"tokens": _tokens(50, 2, 13)}
    return _source(
        folder, LlamaForCausalLM(theirs), config, inputs, lambda model, given: {"logits": model(given["tokens"]).logits}
    )


def _whisper(folder: Path) -> Source:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    theirs = WhisperConfig(
        vocab_size=60,
        num_mel_bins=10,
        d_model=24,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=40,
        decoder_ffn_dim=40,
        max_source_positions=12,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    config = {"n_mels": 10, "d_model": 24, "d_ff": 40, "n_heads": 3, "audio_layers": 2, "audio_positions": 12}
    config |= {"text_layers": 3, "text_positions": 16, "vocab_size": 60}
    inputs = {"mels": _floats(2, 10, 24), "tokens": _tokens(60, 2, 9)}

    def outputs(model: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"logits": model(given["mels"], decoder_input_ids=given["tokens"]).logits}

    return _source(folder, WhisperForConditionalGeneration(theirs), config, inputs, outputs)


def _vit(folder: Path) -> Source:
    from transformers import ViTConfig, ViTForImageClassification

    theirs = ViTConfig(
        hidden_size=24,
        intermediate_size=40,
        num_attention_heads=3,
        num_hidden_layers=3,
        image_size=16,
        patch_size=4,
        num_labels=7,
    )
    config = {"image_size": 16, "patch_size": 4, "d_model": 24, "d_ff": 40, "n_heads": 3, "n_layers": 3}
    config |= {"num_classes": 7, "norm_eps": 1e-12}
    inputs = {"images": _floats(2, 3, 16, 16)}
    return _source(
        folder,
        ViTForImageClassification(theirs),
        config,
        inputs,
        lambda model, given: {"logits": model(given["images"]).logits},
    )


def _clip(folder: Path) -> Source:
    from transformers import CLIPConfig, CLIPModel

    text = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 3, "num_hidden_layers": 2}
    text |= {"vocab_size": 60, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 59, "pad_token_id": 1}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3}
    vision |= {"image_size": 16, "patch_size": 4}
    theirs = CLIPConfig(text_config=text, vision_config=vision, projection_dim=20)
    config = {
        "text": {"d_model": 24, "d_ff": 40, "n_heads": 3, "n_layers": 2},
        "image": {"d_model": 32, "d_ff": 48, "n_heads": 4, "n_layers": 3},
    }
    config |= {"vocab_size": 60, "max_positions": 16, "image_size": 16, "patch_size": 4, "d_shared": 20}
    tokens = _tokens(58, 3, 9)
    tokens[np.arange(3), [8, 5, 7]] = 59
    inputs = {"images": _floats(2, 3, 16, 16), "tokens": tokens}

    def outputs(model: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"logits": model(input_ids=given["tokens"], pixel_values=given["images"]).logits_per_image}

    return _source(folder, CLIPModel(theirs), config, inputs, outputs)


def _t5(folder: Path, *, gated: bool) -> Source:
    from transformers import T5Config, T5ForConditionalGeneration

    theirs = T5Config(
        vocab_size=50,
        d_model=24,
        d_kv=6,
        d_ff=40,
        num_heads=3,
        num_layers=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=not gated,
    )
    config = {"vocab_size": 50, "d_model": 24, "d_head": 6, "d_ff": 40, "n_heads": 3, "n_layers": 2}
    config |= {"num_buckets": 8, "max_distance": 12, "gated": gated}
    inputs = {"tokens": _tokens(50, 2, 17), "decoder_tokens": _tokens(50, 2, 15, seed=3)}

    def outputs(model: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"logits": model(given["tokens"], decoder_input_ids=given["decoder_tokens"]).logits}

    model = T5ForConditionalGeneration(theirs)
    if gated:  # as Google's versions 1.1 have it; transformers would tie it
        model.lm_head = nn.Linear(24, 50, bias=False)
    return _source(folder, model, config, inputs, outputs, pretrained=not gated)


CASES: dict[str, Callable[[Path], Source]] = {
    "resnet-basic": lambda folder: _resnet(folder, bottleneck=False),
    "resnet-bottleneck": lambda folder: _resnet(folder, bottleneck=True),
    "bert": _bert,
    "roberta": _roberta,
    "gpt2": _gpt2,
    "llama": _llama,
    "whisper": _whisper,
    "vit": _vit,
    "clip": _clip,
    "t5-plain": lambda folder: _t5(folder, gated=False),
    "t5-gated": lambda folder: _t5(folder, gated=True),
}
"""What is made, by name; the part before a hyphen is the model's name in `rust/gallery`."""
