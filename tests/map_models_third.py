"""Eight more models, declared after `map` could do the sixteen of map_models.py, and before it saw them.

The sources are those of transformers 5 (SegFormer, DINOv2, OPT, Gemma, DETR), timm (MLP-Mixer), diffusers (the VAE of
Stable Diffusion), and a translator of two GRUs with additive attention.
"""

from __future__ import annotations

from map_models import Model, rows

_GATES = ("reset_gate", "update_gate", "new_gate")
_ATTENTION = (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "output"))


def _vae_block(source: str, target: str) -> tuple[str, ...]:
    fields = (("norm1", "norm1 GroupNorm"), ("conv1", "conv1 Conv2d"), ("norm2", "norm2 GroupNorm"))
    fields = (*fields, ("conv2", "conv2 Conv2d"), ("conv_shortcut", "shortcut Conv2d"))
    return tuple(f"{source}.{given} {target}.{field}" for given, field in fields)


def _vae_side(side: str, way: str) -> tuple[str, ...]:
    return (
        f"{side}.conv_in {side}.conv_in Conv2d",
        *_vae_block(f"{side}.{way}_blocks.{{i}}.resnets.{{j}}", f"{side}.blocks.{{i}}.resnets.{{j}}"),
        f"{side}.{way}_blocks.{{i}}.{way}samplers.0.conv {side}.blocks.{{i}}.{way}sample Conv2d",
        *_vae_block(f"{side}.mid_block.resnets.0", f"{side}.mid.block_1"),
        f"{side}.mid_block.attentions.0.group_norm {side}.mid.attn.norm GroupNorm",
        f"{side}.mid_block.attentions.0.to_q {side}.mid.attn.q Linear",
        f"{side}.mid_block.attentions.0.to_k {side}.mid.attn.k Linear",
        f"{side}.mid_block.attentions.0.to_v {side}.mid.attn.v Linear",
        f"{side}.mid_block.attentions.0.to_out.0 {side}.mid.attn.proj_out Linear",
        *_vae_block(f"{side}.mid_block.resnets.1", f"{side}.mid.block_2"),
        f"{side}.conv_norm_out {side}.norm_out GroupNorm",
        f"{side}.conv_out {side}.conv_out Conv2d",
    )


THIRD = [
    Model(
        "segformer",
        rows(
            "segformer.encoder.patch_embeddings.{i}.proj encoder.stages.{i}.patch_embed.conv Conv2d",
            "segformer.encoder.patch_embeddings.{i}.layer_norm encoder.stages.{i}.patch_embed.norm LayerNorm",
            *(
                f"segformer.encoder.block.{{i}}.{{j}}.{source} encoder.stages.{{i}}.blocks.{{j}}.{target}"
                for source, target in (
                    ("layer_norm_1", "norm1 LayerNorm"),
                    ("attention.self.query", "attn.query Linear"),
                    ("attention.self.key", "attn.key Linear"),
                    ("attention.self.value", "attn.value Linear"),
                    ("attention.output.dense", "attn.proj Linear"),
                    ("attention.self.sr", "attn.reduction Conv2d"),
                    ("attention.self.layer_norm", "attn.reduction_norm LayerNorm"),
                    ("layer_norm_2", "norm2 LayerNorm"),
                    ("mlp.dense1", "ffn.fc1 Linear"),
                    ("mlp.dwconv.dwconv", "ffn.depthwise Conv2d"),
                    ("mlp.dense2", "ffn.fc2 Linear"),
                )
            ),
            "segformer.encoder.layer_norm.{i} encoder.stages.{i}.norm LayerNorm",
            "decode_head.linear_c.{i}.proj decode_head.projections.{i} Linear",
            "decode_head.linear_fuse decode_head.fuse Conv2d",
            "decode_head.batch_norm decode_head.norm BatchNorm",
            "decode_head.classifier decode_head.classifier Conv2d",
        ),
        {},
        {},
    ),
    Model(
        "dinov2",
        rows(
            "dinov2.embeddings.cls_token cls_token Param",
            "dinov2.embeddings.mask_token mask_token Param",
            "dinov2.embeddings.position_embeddings pos_embed Param",
            "dinov2.embeddings.patch_embeddings.projection patch_embed.proj Conv2d",
            *(
                f"dinov2.encoder.layer.{{i}}.{source} blocks.{{i}}.{target}"
                for source, target in (
                    ("norm1", "norm1 LayerNorm"),
                    ("attention.attention.query", "attn.query Linear"),
                    ("attention.attention.key", "attn.key Linear"),
                    ("attention.attention.value", "attn.value Linear"),
                    ("attention.output.dense", "attn.proj Linear"),
                    ("layer_scale1.lambda1", "ls1.gamma Param"),
                    ("norm2", "norm2 LayerNorm"),
                    ("mlp.fc1", "mlp.fc1 Linear"),
                    ("mlp.fc2", "mlp.fc2 Linear"),
                    ("layer_scale2.lambda1", "ls2.gamma Param"),
                )
            ),
            "dinov2.layernorm norm LayerNorm",
            "classifier head Linear",
        ),
        {},
        {},
    ),
    Model(
        "mlp_mixer",
        rows(
            "stem.proj patch_embedding Conv2d",
            "blocks.{i}.norm1 layers.{i}.token_norm LayerNorm",
            "blocks.{i}.mlp_tokens.fc1 layers.{i}.token_mixing.linear_1 Linear",
            "blocks.{i}.mlp_tokens.fc2 layers.{i}.token_mixing.linear_2 Linear",
            "blocks.{i}.norm2 layers.{i}.channel_norm LayerNorm",
            "blocks.{i}.mlp_channels.fc1 layers.{i}.channel_mixing.linear_1 Linear",
            "blocks.{i}.mlp_channels.fc2 layers.{i}.channel_mixing.linear_2 Linear",
            "norm norm LayerNorm",
            "head head Linear",
        ),
        {},
        {},
    ),
    Model(
        "opt",
        rows(
            "model.decoder.embed_tokens token_embedding Embedding",
            "model.decoder.embed_positions position_embedding Embedding",
            "model.decoder.layers.{i}.self_attn_layer_norm layers.{i}.attn_norm LayerNorm",
            *(
                f"model.decoder.layers.{{i}}.self_attn.{source} layers.{{i}}.attn.{target} Linear"
                for source, target in _ATTENTION
            ),
            "model.decoder.layers.{i}.final_layer_norm layers.{i}.ffn_norm LayerNorm",
            "model.decoder.layers.{i}.fc1 layers.{i}.ffn.linear_inner Linear",
            "model.decoder.layers.{i}.fc2 layers.{i}.ffn.linear_outer Linear",
            "model.decoder.final_layer_norm final_norm LayerNorm",
        ),
        {"layers.{i}.attn": "MultiHeadAttention", "layers.{i}.ffn": "PositionWiseFeedForward"},
        {},
    ),
    Model(
        "gemma",
        rows(
            "model.embed_tokens embedder Embedding",
            "model.layers.{i}.input_layernorm layers.{i}.pre_attention_norm RmsNorm",
            *(
                f"model.layers.{{i}}.self_attn.{name}_proj layers.{{i}}.attention.{name}_proj Linear"
                for name in ("q", "k", "v", "o")
            ),
            "model.layers.{i}.post_attention_layernorm layers.{i}.pre_ffw_norm RmsNorm",
            "model.layers.{i}.mlp.gate_proj layers.{i}.feed_forward.gate Linear",
            "model.layers.{i}.mlp.up_proj layers.{i}.feed_forward.up Linear",
            "model.layers.{i}.mlp.down_proj layers.{i}.feed_forward.down Linear",
            "model.norm final_norm RmsNorm",
        ),
        {"rope": "RotaryEncoding"},
        {"layers.{i}.attention": {"n_heads": "4", "n_kv_heads": "1"}},
    ),
    Model(
        "detr",
        rows(
            "model.backbone.conv_encoder.model.embedder.embedder.convolution backbone.stem.conv Conv2d",
            "model.backbone.conv_encoder.model.embedder.embedder.normalization backbone.stem.norm BatchNorm",
            *(
                f"model.backbone.conv_encoder.model.encoder.stages.{{i}}.layers.{{j}}.{source} "
                f"backbone.stages.{{i}}.blocks.{{j}}.{target}"
                for source, target in (
                    *(
                        (f"layer.{at}.{given}", f"{field}{at + 1} {kind}")
                        for at in range(3)
                        for given, field, kind in (
                            ("convolution", "conv", "Conv2d"),
                            ("normalization", "bn", "BatchNorm"),
                        )
                    ),
                    ("shortcut.convolution", "downsample.conv Conv2d"),
                    ("shortcut.normalization", "downsample.bn BatchNorm"),
                )
            ),
            "model.input_projection input_proj Conv2d",
            "model.query_position_embeddings query_embed Embedding",
            *(
                f"model.{side}.layers.{{i}}.{source} transformer.{side}.layers.{{i}}.{target}"
                for side in ("encoder", "decoder")
                for source, target in (
                    *((f"self_attn.{given}", f"self_attn.{field} Linear") for given, field in _ATTENTION),
                    ("self_attn_layer_norm", "norm1 LayerNorm"),
                    *(
                        (
                            *((f"encoder_attn.{given}", f"cross_attn.{field} Linear") for given, field in _ATTENTION),
                            ("encoder_attn_layer_norm", "norm2 LayerNorm"),
                        )
                        if side == "decoder"
                        else ()
                    ),
                    ("fc1", "linear1 Linear"),
                    ("fc2", "linear2 Linear"),
                    ("final_layer_norm", f"norm{3 if side == 'decoder' else 2} LayerNorm"),
                )
            ),
            "model.decoder.layernorm transformer.decoder.norm LayerNorm",
            "class_labels_classifier class_embed Linear",
            "bbox_predictor.layers.{i} bbox_embed.layers.{i} Linear",
        ),
        {
            "transformer.encoder.layers.{i}.self_attn": "MultiHeadAttention",
            "transformer.decoder.layers.{i}.self_attn": "MultiHeadAttention",
            "transformer.decoder.layers.{i}.cross_attn": "MultiHeadAttention",
        },
        {},
    ),
    Model(
        "vae",
        rows(
            *_vae_side("encoder", "down"),
            *_vae_side("decoder", "up"),
            "quant_conv quant_conv Conv2d",
            "post_quant_conv post_quant_conv Conv2d",
        ),
        {},
        {},
    ),
    Model(
        "seq2seq",
        rows(
            "encoder.embedding encoder.embedding Embedding",
            *(
                f"encoder.gru.*_{short}_l{{i}}{suffix}[{at}/3] encoder.layers.{{i}}.{side}.{gate}.{field} Linear"
                for side, suffix in (("forward", ""), ("reverse", "_reverse"))
                for at, gate in enumerate(_GATES)
                for short, field in (("ih", "input_transform"), ("hh", "hidden_transform"))
            ),
            "encoder.fc encoder.bridge Linear",
            "decoder.embedding decoder.embedding Embedding",
            "decoder.attention.Wa decoder.attention.query Linear",
            "decoder.attention.Ua decoder.attention.key Linear",
            "decoder.attention.Va decoder.attention.score Linear",
            *(
                f"decoder.gru.*_{short}_l{{i}}[{at}/3] decoder.layers.{{i}}.{gate}.{field} Linear"
                for at, gate in enumerate(_GATES)
                for short, field in (("ih", "input_transform"), ("hh", "hidden_transform"))
            ),
            "decoder.out decoder.output Linear",
        ),
        {
            "encoder.layers.{i}": "BiGru",
            **{f"encoder.layers.{{i}}.{side}": "Gru" for side in ("forward", "reverse")},
            **{
                f"encoder.layers.{{i}}.{side}.{gate}": "GateController"
                for side in ("forward", "reverse")
                for gate in _GATES
            },
            "decoder.layers.{i}": "Gru",
            **{f"decoder.layers.{{i}}.{gate}": "GateController" for gate in _GATES},
        },
        {},
    ),
]
"""See tests/jobs/test_mapping.py for what `map` made of them."""
