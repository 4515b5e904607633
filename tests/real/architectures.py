"""Convert random small architectures to Burn's layout and back: bit-equal, or refused with a reason.

The same is done with a file of the whole model, which names its classes: it becomes the same file, or is refused.

``make architectures`` prints the table; the exit code is 1 if one of them comes back changed or raises an error of
another kind than burnstore's. Weights are random, nothing is downloaded. ``--only PATTERN`` selects some, ``--limit N``
a number of them.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import burnstore as bs

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
MOST_BYTES = 1 << 30

TORCHVISION = """
alexnet convnext_tiny deeplabv3_mobilenet_v3_large densenet121 efficientnet_b0 efficientnet_v2_s
fasterrcnn_mobilenet_v3_large_320_fpn googlenet inception_v3 lraspp_mobilenet_v3_large maxvit_t mnasnet0_5
mobilenet_v2 mobilenet_v3_small r2plus1d_18 raft_small regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5
squeezenet1_1 ssdlite320_mobilenet_v3_large swin_t swin_v2_t vit_b_32
"""

TIMM = """
beit_base_patch16_224 botnet26t_256 cait_xxs24_224 coat_tiny coatnet_nano_rw_224 convmixer_768_32 convnext_atto
convnextv2_atto crossvit_tiny_240 cspdarknet53 deit_tiny_patch16_224 dla34 dpn48b edgenext_xx_small
efficientformer_l1 efficientvit_b0 eva02_tiny_patch14_224 fastvit_t8 fbnetc_100 focalnet_tiny_srf gcvit_xxtiny
ghostnet_050 gmixer_12_224 hardcorenas_a hgnetv2_b0 hrnet_w18_small inception_next_atto levit_128s mambaout_femto
maxvit_rmlp_pico_rw_256 mixer_s32_224 mobilenetv3_small_050 mobilenetv4_conv_small mobileone_s0 mobilevit_xxs
mvitv2_tiny nest_tiny nf_resnet26 pit_ti_224 poolformer_s12 pvt_v2_b0 regnetx_002 repvgg_a0 resmlp_12_224 resnet10t
rexnet_100 sequencer2d_s swin_tiny_patch4_window7_224 tinynet_e tresnet_m twins_svt_small vit_tiny_patch16_224
vovnet39a xcit_nano_12_p16_224
"""

TRANSFORMERS = """
AlbertForMaskedLM BartForConditionalGeneration BertForMaskedLM BloomForCausalLM CLIPModel CodeGenForCausalLM
ConvBertForMaskedLM DebertaV2ForMaskedLM DistilBertForMaskedLM ElectraForPreTraining GPT2LMHeadModel
GPTNeoXForCausalLM Gemma2ForCausalLM GemmaForCausalLM LlamaForCausalLM MPNetForMaskedLM MambaForCausalLM
MistralForCausalLM MixtralForCausalLM MobileBertForMaskedLM OPTForCausalLM PegasusForConditionalGeneration
PhiForCausalLM Qwen2ForCausalLM RobertaForMaskedLM RoFormerForMaskedLM SwinModel T5ForConditionalGeneration
ViTModel WhisperForConditionalGeneration XLMRobertaForMaskedLM
"""

# Arguments that make each model of diffusers small.
# fmt: off
DIFFUSERS: dict[str, dict[str, Any]] = {
    "UNet2DModel": {
        "sample_size": 8, "block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": 4,
    },
    "UNet2DConditionModel": {
        "sample_size": 8, "block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1,
        "cross_attention_dim": 8, "attention_head_dim": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    },
    "UNet1DModel": {
        "block_out_channels": (8, 16), "in_channels": 4, "out_channels": 4, "extra_in_channels": 0,
        "time_embedding_type": "positional", "use_timestep_embedding": True,
        "down_block_types": ("DownResnetBlock1D", "DownResnetBlock1D"), "up_block_types": ("UpResnetBlock1D",),
        "mid_block_type": "MidResTemporalBlock1D", "out_block_type": "OutConv1DBlock", "act_fn": "swish",
        "norm_num_groups": 4, "layers_per_block": 1,
    },
    "UNet3DConditionModel": {
        "block_out_channels": (4, 8), "norm_num_groups": 2, "layers_per_block": 1, "cross_attention_dim": 8,
        "attention_head_dim": 4, "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
        "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
    },
    "UNetMotionModel": {
        "block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1, "cross_attention_dim": 8,
        "num_attention_heads": 2, "motion_num_attention_heads": 2,
        "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
        "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"),
    },
    "AutoencoderKL": {
        "block_out_channels": (8, 16), "norm_num_groups": 4,
        "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
        "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
    },
    "AutoencoderTiny": {
        "encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "num_encoder_blocks": (1, 1),
        "num_decoder_blocks": (1, 1),
    },
    "AsymmetricAutoencoderKL": {"down_block_out_channels": (8,), "up_block_out_channels": (8,), "norm_num_groups": 4},
    "ConsistencyDecoderVAE": {
        "encoder_block_out_channels": (8, 16), "encoder_norm_num_groups": 4,
        "encoder_down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
        "decoder_block_out_channels": (8, 16), "decoder_norm_num_groups": 4,
        "decoder_down_block_types": ("ResnetDownsampleBlock2D", "ResnetDownsampleBlock2D"),
        "decoder_up_block_types": ("ResnetUpsampleBlock2D", "ResnetUpsampleBlock2D"), "decoder_layers_per_block": 1,
    },
    "VQModel": {
        "block_out_channels": (8, 16), "norm_num_groups": 4,
        "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
        "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
    },
    "AutoencoderKLTemporalDecoder": {
        "block_out_channels": (32, 32), "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
        "layers_per_block": 1,
    },
    "AutoencoderKLWan": {
        "base_dim": 4, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1,
        "temperal_downsample": [False, True, True],
    },
    "AutoencoderDC": {
        "in_channels": 3, "latent_channels": 4, "attention_head_dim": 2,
        "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "decoder_block_types": ("ResBlock", "EfficientViTBlock"), "encoder_block_out_channels": (8, 8),
        "decoder_block_out_channels": (8, 8), "encoder_qkv_multiscales": ((), (5,)),
        "decoder_qkv_multiscales": ((), (5,)), "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1),
    },
    "ControlNetModel": {
        "block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1, "cross_attention_dim": 8,
        "attention_head_dim": 4, "conditioning_embedding_out_channels": (8, 8),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    },
    "MotionAdapter": {
        "block_out_channels": (8, 16), "motion_norm_num_groups": 4, "motion_num_attention_heads": 2,
        "motion_layers_per_block": 1,
    },
    "Transformer2DModel": {
        "num_attention_heads": 2, "attention_head_dim": 4, "in_channels": 8, "norm_num_groups": 4, "num_layers": 1,
    },
    "DiTTransformer2DModel": {
        "num_attention_heads": 2, "attention_head_dim": 4, "in_channels": 4, "out_channels": 4, "num_layers": 1,
        "sample_size": 8, "num_embeds_ada_norm": 10,
    },
    "PixArtTransformer2DModel": {
        "num_attention_heads": 2, "attention_head_dim": 4, "num_layers": 1, "sample_size": 8,
        "cross_attention_dim": 8, "caption_channels": 8,
    },
    "SD3Transformer2DModel": {
        "sample_size": 8, "num_layers": 2, "attention_head_dim": 4, "num_attention_heads": 2,
        "joint_attention_dim": 8, "caption_projection_dim": 8, "pooled_projection_dim": 8, "pos_embed_max_size": 8,
    },
    "FluxTransformer2DModel": {
        "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 8, "num_attention_heads": 2,
        "joint_attention_dim": 8, "pooled_projection_dim": 8, "axes_dims_rope": (2, 2, 4),
    },
    "HunyuanDiT2DModel": {
        "patch_size": 2,
        "num_attention_heads": 2, "attention_head_dim": 4, "num_layers": 2, "sample_size": 8, "hidden_size": 8,
        "cross_attention_dim": 8, "cross_attention_dim_t5": 8, "pooled_projection_dim": 4, "text_len": 4,
        "text_len_t5": 4, "in_channels": 4,
    },
    "AuraFlowTransformer2DModel": {
        "sample_size": 8, "num_mmdit_layers": 1, "num_single_dit_layers": 1, "attention_head_dim": 8,
        "num_attention_heads": 2, "joint_attention_dim": 8, "caption_projection_dim": 16, "pos_embed_max_size": 16,
    },
    "CogVideoXTransformer3DModel": {
        "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "text_embed_dim": 8, "time_embed_dim": 4,
        "sample_width": 8, "sample_height": 8, "sample_frames": 5, "max_text_seq_length": 8,
    },
    "WanTransformer3DModel": {
        "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4, "text_dim": 8,
        "freq_dim": 16, "ffn_dim": 16, "num_layers": 1,
    },
    "LTXVideoTransformer3DModel": {
        "in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 8,
        "cross_attention_dim": 16, "num_layers": 1, "caption_channels": 8,
    },
    "MochiTransformer3DModel": {
        "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "pooled_projection_dim": 8,
        "text_embed_dim": 8, "time_embed_dim": 8,
    },
    "SanaTransformer2DModel": {
        "in_channels": 4, "out_channels": 4, "num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 4,
        "num_cross_attention_heads": 2, "cross_attention_head_dim": 4, "cross_attention_dim": 8,
        "caption_channels": 8, "sample_size": 8,
    },
    "Lumina2Transformer2DModel": {
        "sample_size": 8, "in_channels": 4, "hidden_size": 24, "num_layers": 1, "num_refiner_layers": 1,
        "num_attention_heads": 3, "num_kv_heads": 1, "multiple_of": 2, "axes_dim_rope": (4, 2, 2), "cap_feat_dim": 8,
    },
    "QwenImageTransformer2DModel": {
        "in_channels": 16, "out_channels": 4, "num_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
        "joint_attention_dim": 16, "axes_dims_rope": (8, 4, 4),
    },
    "StableCascadeUNet": {
        "in_channels": 4, "out_channels": 4, "conditioning_dim": 8, "block_out_channels": (8, 8),
        "num_attention_heads": (2, 2), "down_num_layers_per_block": (1, 1), "up_num_layers_per_block": (1, 1),
        "down_blocks_repeat_mappers": (1, 1), "up_blocks_repeat_mappers": (1, 1),
        "block_types_per_layer": (
            ("SDCascadeResBlock", "SDCascadeTimestepBlock"),
            ("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),
        ),
        "clip_text_in_channels": 8, "clip_text_pooled_in_channels": 8, "clip_image_in_channels": 8, "clip_seq": 1,
    },
    "PriorTransformer": {
        "num_attention_heads": 2, "attention_head_dim": 4, "num_layers": 1, "embedding_dim": 8, "num_embeddings": 5,
    },
    "T2IAdapter": {"channels": [8, 8], "num_res_blocks": 1, "downscale_factor": 8},
}
# fmt: on

_SMALL = {
    **dict.fromkeys(("vocab_size",), 128),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads",), 4),
    **dict.fromkeys(("num_key_value_heads",), 2),
    **dict.fromkeys(("head_dim", "d_kv"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1),
    **dict.fromkeys(("num_local_experts",), 2),
}


def architectures() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names and functions that build models of random weights."""
    import diffusers
    import timm
    import torchvision
    import transformers

    for name, small in DIFFUSERS.items():
        yield f"diffusers:{name}", lambda name=name, small=small: getattr(diffusers, name)(**small)
    for name in TORCHVISION.split():
        options = {"weights": None, **({"weights_backbone": None} if "_fpn" in name or "lite" in name else {})}
        if name.startswith(("deeplab", "lraspp")):
            options["weights_backbone"] = None
        yield f"torchvision:{name}", lambda name=name, options=options: torchvision.models.get_model(name, **options)
    for name in TIMM.split():
        yield f"timm:{name}", lambda name=name: timm.create_model(name, pretrained=False)
    for name in TRANSFORMERS.split():
        kind = getattr(transformers, name, None)
        if kind is not None:
            yield f"transformers:{name}", lambda kind=kind: kind(_small_config(kind.config_class))


def _small_config(kind: Any) -> Any:
    usual = kind()
    return kind(**{key: value for key, value in _SMALL.items() if isinstance(getattr(usual, key, None), int)})


def outcome(model: Any) -> str:
    """Convert a model both ways, and say what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            bs.save(model, f"{folder}/a.safetensors", durable=False)
            bs.convert(f"{folder}/a.safetensors", f"{folder}/a.bpk", like=model, durable=False)
            back = f"{folder}/b.safetensors"
            bs.convert(f"{folder}/a.bpk", back, like=model, target_layout="torch", durable=False)
        except bs.errors.BurnstoreError as error:
            return f"refused: {str(error).replace(folder, '')}".replace("\n", " ")
        with bs.open(f"{folder}/a.safetensors") as f, bs.open(back) as g:
            if set(f) != set(g):
                return f"CHANGED: names {sorted(set(f) ^ set(g))[:2]}"
            changed = [name for name in f if f[name].to_bytes() != g[name].to_bytes()]
        return f"CHANGED: {changed[:2]}" if changed else f"equal{_whole(model, folder)}"


def _whole(model: Any, folder: str) -> str:
    """Convert the model saved as an object, by the classes that the file names: as the live one, or refused."""
    import torch

    try:
        torch.save(model, f"{folder}/whole.pt")
    except Exception:  # A model that holds a function cannot be pickled.
        return ""
    try:
        bs.convert(f"{folder}/whole.pt", f"{folder}/whole.bpk", durable=False)
    except bs.errors.BurnstoreError as error:
        return f": saved whole it is refused: {str(error).replace(folder, '')}".replace("\n", " ")
    with bs.open(f"{folder}/a.bpk") as f, bs.open(f"{folder}/whole.bpk") as g:
        assert set(f) == set(g), f"saved whole it has other names: {sorted(set(f) ^ set(g))[:2]}"
        for name in f:
            assert f[name].to_bytes() == g[name].to_bytes(), f"saved whole it has another {name}"
    return ": and saved whole"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--limit", type=int, default=None)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch

    counts = {"equal": 0, "refused": 0, "CHANGED": 0, "ERROR": 0}
    whole = 0
    chosen = [pair for pair in architectures() if re.search(arguments.only, pair[0])][: arguments.limit]
    for name, build in chosen:
        torch.manual_seed(0)
        try:
            model = build()
        except Exception as error:  # A library may refuse a small configuration; then there is nothing to convert.
            _say(f"{name:48} not built: {type(error).__name__}: {error}"[:150])
            continue
        parameters = sum(tensor.numel() for tensor in model.parameters())
        if parameters * 4 > MOST_BYTES:
            continue
        try:
            found = outcome(model)
        except Exception as error:
            found = f"ERROR: {type(error).__name__}: {error}"
        counts[found.partition(":")[0]] += 1
        whole += found.endswith("and saved whole")
        _say(f"{name:48} {parameters / 1e6:7.2f} M  {found}"[:200])
    _say(", ".join(f"{count} {what}" for what, count in counts.items()) + f"; {whole} equal as whole models, too")
    return 1 if counts["CHANGED"] or counts["ERROR"] or not counts["equal"] else 0


if __name__ == "__main__":
    sys.exit(main())
