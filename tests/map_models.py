"""Sixteen models apart from the gallery, on both sides: what `map` is measured on, and was not written for.

``tests/fixtures/map`` has the tensors of small models of PyTorch by name and shape (transformers 5, torchvision, the
U-Net of github.com/milesial/Pytorch-UNet, and a tagger of two bidirectional LSTMs). Here they are declared as a Burn
user would declare them: for each layer the module of the source, the field in Burn, and its type. The outline and the
true mapping follow from that. ``LATER`` are the eight that were declared after `map` could do the first eight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import burnstore as bs
from burnstore.models.outline import OUTLINE_KEY
from burnstore.transforms.recipe import Template

FIXTURES = Path(__file__).resolve().parent / "fixtures" / "map"
_BURN_NAMES = {"weight": "gamma", "bias": "beta"}
_NORMS = ("LayerNorm", "RmsNorm", "GroupNorm", "BatchNorm")

Row = tuple[str, str, str]
_PART = re.compile(r"\[(\d+)/(\d+)(?: in (\d+))?\]$")


class Truth(NamedTuple):
    """What a target is: its sources, whether it is transposed, and which part (of how many, within so many groups)."""

    names: tuple[str, ...]
    is_turned: bool
    part: tuple[int, int, int] | None = None

    def of(self, values: Any) -> Any:
        """Return the target's values, made of the source's."""
        if self.part is not None:
            at, parts, groups = self.part
            size = len(values) // parts // groups
            values = values.reshape(groups, parts, size, *values.shape[1:])[:, at].reshape(-1, *values.shape[1:])
        return values.T if self.is_turned else values


@dataclass(frozen=True)
class Model:
    """A source and a Burn model: rows of source module, Burn module and type (``Param``: a tensor of its own).

    ``qkv[0/3]`` is the first of three parts, ``qkv[0/3 in 4]`` the first of three within each of 4 heads, and ``*``
    stands for the tensor where its name is not at the end: ``lstm.*_ih_l{i}``.
    """

    name: str
    rows: tuple[Row, ...]
    types: Mapping[str, str]
    """The types of modules around layers, by their path with placeholders."""

    attributes: Mapping[str, Mapping[str, str]]

    @property
    def source(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((FIXTURES / f"{self.name}.json").read_text(encoding="utf-8"))
        return found

    def write(self, folder: Path) -> tuple[Path, Path, dict[str, Truth]]:
        """Write the checkpoint and the outline; return both paths, and the true sources of each target."""
        random = np.random.default_rng(3)
        source = self.source
        tensors = {
            name: random.standard_normal(shape).astype(dtype) for name, (shape, dtype) in source["tensors"].items()
        }
        bs.save(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(source["config"]), encoding="utf-8")
        arrays: dict[str, Any] = {}
        modules: dict[str, str] = {"": f"Struct:{self.name.title()}"}
        truth: dict[str, Truth] = {}
        for given, target, kind in self._expanded(list(tensors)):
            self._declare(target, kind, modules)
            owner, part = _part(given)
            for leaf in ("", "weight", "bias", "running_mean", "running_var"):
                name = owner.replace("*", leaf) if "*" in owner else f"{owner}.{leaf}".rstrip(".")
                if name in tensors:
                    true = Truth((name,), kind == "Linear" and leaf == "weight", part)
                    burn = _BURN_NAMES.get(leaf, leaf) if kind in _NORMS else leaf
                    path = f"{target}.{burn}" if leaf and kind != "Param" else target
                    arrays[path], truth[path] = np.zeros_like(true.of(tensors[name])), true
            parts = [f"{given}.parametrizations.weight.original{at}" for at in range(2)]
            if parts[0] in tensors:
                arrays[f"{target}.weight"] = np.zeros_like(tensors[parts[1]])
                truth[f"{target}.weight"] = Truth(tuple(parts), False)
        modules |= {
            path: f"Struct:{kind}" for path, kind in self.types.items() if "{" not in path and path not in modules
        }
        outline = {"format": 1, "burn": "0.22.1", "modules": modules, "display": self._display(modules)}
        bs.save(arrays, folder / "model.outline.bpk", metadata={OUTLINE_KEY: json.dumps(outline)}, layout="burn")
        return folder / "model.safetensors", folder / "model.outline.bpk", truth

    def _declare(self, target: str, kind: str, modules: dict[str, str]) -> None:
        segments = target.split(".")
        for depth in range(1, len(segments) + (kind != "Param")):
            path = ".".join(segments[:depth])
            is_list = depth < len(segments) and segments[depth].isdecimal()
            named = next((held for form, held in self.types.items() if Template(form).match(path) is not None), "Part")
            own = kind if depth == len(segments) else named
            modules.setdefault(path, "Vec" if is_list else f"Struct:{own}")

    def _display(self, modules: Mapping[str, str]) -> str:
        """Print the model as Burn does, as far as attributes need it."""

        def shown(path: str) -> str:
            kind = modules[path].removeprefix("Struct:")
            fields = []
            for form, attributes in self.attributes.items():
                if Template(form).match(path) is not None:
                    fields += [f"{key}: {value}" for key, value in attributes.items()]
            for other in modules:
                owner, _, name = other.rpartition(".")
                if owner == path and other:
                    fields.append(f"{name}: {shown(other)}")
            return f"{kind} {{ {', '.join(fields)} }}"

        return shown("")

    def _expanded(self, names: list[str]) -> Iterator[Row]:
        """Yield the layers in the order of their declaration, entry by entry."""
        owners = dict.fromkeys([name.rpartition(".")[0] for name in names] + names)
        owners |= dict.fromkeys(owner.removesuffix(".parametrizations.weight") for owner in list(owners))
        owners |= dict.fromkeys(re.sub(r"(weight|bias)(?=_[ih]h_l)", "*", name) for name in names)
        found = []
        for number, (source, target, kind) in enumerate(self.rows):
            form, part = _PART.sub("", source), source[len(_PART.sub("", source)) :]
            for owner in owners:
                indices = _matched(form, owner)
                if indices is not None and (
                    form != owner or "*" in owner or any(n == owner or n.startswith(f"{owner}.") for n in names)
                ):
                    first = next(at for at, row in enumerate(self.rows) if row[1].split("{")[0] == target.split("{")[0])
                    numbers = [indices[letter] for letter, _ in Template(target).letters]
                    found.append(
                        ((first, numbers[:1], numbers, number), owner + part, Template(target).name(indices), kind)
                    )
        found.sort(key=lambda row: row[0])
        return iter([row[1:] for row in found])


def _matched(form: str, owner: str) -> dict[str, int] | None:
    """Return the numbers in an owner of this form; a ``*`` of either is the other's."""
    return Template(form.replace("*", "#")).match(owner.replace("*", "#"))


def _part(given: str) -> tuple[str, tuple[int, int, int] | None]:
    found = _PART.search(given)
    if found is None:
        return given, None
    return given[: found.start()], (int(found[1]), int(found[2]), int(found[3] or 1))


def rows(*lines: str) -> tuple[Row, ...]:
    rows = []
    for line in lines:
        source, target, kind = line.rsplit(maxsplit=2)
        rows.append((source, target, kind))
    return tuple(rows)


MODELS = [
    Model(
        "distilbert",
        rows(
            "distilbert.embeddings.word_embeddings embeddings.token Embedding",
            "distilbert.embeddings.position_embeddings embeddings.position Embedding",
            "distilbert.embeddings.LayerNorm embeddings.norm LayerNorm",
            "distilbert.transformer.layer.{i}.attention.q_lin encoder.layers.{i}.mha.query Linear",
            "distilbert.transformer.layer.{i}.attention.k_lin encoder.layers.{i}.mha.key Linear",
            "distilbert.transformer.layer.{i}.attention.v_lin encoder.layers.{i}.mha.value Linear",
            "distilbert.transformer.layer.{i}.attention.out_lin encoder.layers.{i}.mha.output Linear",
            "distilbert.transformer.layer.{i}.ffn.lin1 encoder.layers.{i}.pwff.linear_inner Linear",
            "distilbert.transformer.layer.{i}.ffn.lin2 encoder.layers.{i}.pwff.linear_outer Linear",
            "distilbert.transformer.layer.{i}.sa_layer_norm encoder.layers.{i}.norm_1 LayerNorm",
            "distilbert.transformer.layer.{i}.output_layer_norm encoder.layers.{i}.norm_2 LayerNorm",
            "pre_classifier pooler Linear",
            "classifier head Linear",
        ),
        {
            "encoder": "TransformerEncoder",
            "encoder.layers.{i}": "TransformerEncoderLayer",
            "encoder.layers.{i}.mha": "MultiHeadAttention",
            "encoder.layers.{i}.pwff": "PositionWiseFeedForward",
        },
        {"encoder.layers.{i}": {"norm_first": "false"}},
    ),
    Model(
        "convnext",
        rows(
            "convnext.embeddings.patch_embeddings stem.conv Conv2d",
            "convnext.embeddings.layernorm stem.norm LayerNorm",
            "convnext.encoder.stages.{i}.downsampling_layer.0 stages.{i}.downsample.norm LayerNorm",
            "convnext.encoder.stages.{i}.downsampling_layer.1 stages.{i}.downsample.conv Conv2d",
            "convnext.encoder.stages.{i}.layers.{j}.dwconv stages.{i}.blocks.{j}.depthwise Conv2d",
            "convnext.encoder.stages.{i}.layers.{j}.layernorm stages.{i}.blocks.{j}.norm LayerNorm",
            "convnext.encoder.stages.{i}.layers.{j}.pwconv1 stages.{i}.blocks.{j}.pointwise_in Linear",
            "convnext.encoder.stages.{i}.layers.{j}.pwconv2 stages.{i}.blocks.{j}.pointwise_out Linear",
            "convnext.encoder.stages.{i}.layers.{j}.layer_scale_parameter stages.{i}.blocks.{j}.scale Param",
            "convnext.layernorm norm LayerNorm",
            "classifier head Linear",
        ),
        {},
        {},
    ),
    Model(
        "mobilenet",
        rows(
            "features.0.0 stem.conv Conv2d",
            "features.0.1 stem.norm BatchNorm",
            "features.1.conv.0.0 blocks.0.depthwise.conv Conv2d",
            "features.1.conv.0.1 blocks.0.depthwise.norm BatchNorm",
            "features.1.conv.1 blocks.0.project.conv Conv2d",
            "features.1.conv.2 blocks.0.project.norm BatchNorm",
            *(
                f"features.{at + 1}.conv.{place} blocks.{at}.{name} {kind}"
                for at in range(1, 6)
                for place, name, kind in (
                    ("0.0", "expand.conv", "Conv2d"),
                    ("0.1", "expand.norm", "BatchNorm"),
                    ("1.0", "depthwise.conv", "Conv2d"),
                    ("1.1", "depthwise.norm", "BatchNorm"),
                    ("2", "project.conv", "Conv2d"),
                    ("3", "project.norm", "BatchNorm"),
                )
            ),
            "features.7.0 last.conv Conv2d",
            "features.7.1 last.norm BatchNorm",
            "classifier.1 classifier Linear",
        ),
        {},
        {},
    ),
    Model(
        "mistral",
        rows(
            "model.embed_tokens embed Embedding",
            "model.layers.{i}.input_layernorm layers.{i}.norm_1 RmsNorm",
            "model.layers.{i}.self_attn.q_proj layers.{i}.attn.wq Linear",
            "model.layers.{i}.self_attn.k_proj layers.{i}.attn.wk Linear",
            "model.layers.{i}.self_attn.v_proj layers.{i}.attn.wv Linear",
            "model.layers.{i}.self_attn.o_proj layers.{i}.attn.wo Linear",
            "model.layers.{i}.post_attention_layernorm layers.{i}.norm_2 RmsNorm",
            "model.layers.{i}.mlp.gate_proj layers.{i}.mlp.gate Linear",
            "model.layers.{i}.mlp.up_proj layers.{i}.mlp.up Linear",
            "model.layers.{i}.mlp.down_proj layers.{i}.mlp.down Linear",
            "model.norm norm RmsNorm",
            "lm_head lm_head Linear",
        ),
        {"rope": "RotaryEncoding"},
        {"layers.{i}.attn": {"n_heads": "4", "n_kv_heads": "2"}},
    ),
    Model(
        "swin",
        rows(
            "swin.embeddings.patch_embeddings.projection patch_embed.proj Conv2d",
            "swin.embeddings.norm patch_embed.norm LayerNorm",
            "swin.encoder.layers.{i}.blocks.{j}.layernorm_before stages.{i}.blocks.{j}.norm1 LayerNorm",
            "swin.encoder.layers.{i}.blocks.{j}.attention.q_proj stages.{i}.blocks.{j}.attn.query Linear",
            "swin.encoder.layers.{i}.blocks.{j}.attention.k_proj stages.{i}.blocks.{j}.attn.key Linear",
            "swin.encoder.layers.{i}.blocks.{j}.attention.v_proj stages.{i}.blocks.{j}.attn.value Linear",
            "swin.encoder.layers.{i}.blocks.{j}.attention.o_proj stages.{i}.blocks.{j}.attn.proj Linear",
            "swin.encoder.layers.{i}.blocks.{j}.attention.relative_position_bias.relative_position_bias_table "
            "stages.{i}.blocks.{j}.attn.bias_table Param",
            "swin.encoder.layers.{i}.blocks.{j}.layernorm_after stages.{i}.blocks.{j}.norm2 LayerNorm",
            "swin.encoder.layers.{i}.blocks.{j}.mlp.fc1 stages.{i}.blocks.{j}.mlp.fc1 Linear",
            "swin.encoder.layers.{i}.blocks.{j}.mlp.fc2 stages.{i}.blocks.{j}.mlp.fc2 Linear",
            "swin.encoder.layers.{i}.downsample.norm stages.{i}.downsample.norm LayerNorm",
            "swin.encoder.layers.{i}.downsample.reduction stages.{i}.downsample.reduction Linear",
            "swin.layernorm norm LayerNorm",
            "classifier head Linear",
        ),
        {},
        {},
    ),
    Model(
        "wav2vec2",
        rows(
            "masked_spec_embed mask_embedding Param",
            "feature_extractor.conv_layers.{i}.conv features.layers.{i}.conv Conv1d",
            "feature_extractor.conv_layers.{i}.layer_norm features.layers.{i}.norm GroupNorm",
            "feature_projection.layer_norm projection.norm LayerNorm",
            "feature_projection.projection projection.linear Linear",
            "encoder.pos_conv_embed.conv encoder.position.conv Conv1d",
            "encoder.layer_norm encoder.norm LayerNorm",
            "encoder.layers.{i}.attention.q_proj encoder.layers.{i}.attention.query Linear",
            "encoder.layers.{i}.attention.k_proj encoder.layers.{i}.attention.key Linear",
            "encoder.layers.{i}.attention.v_proj encoder.layers.{i}.attention.value Linear",
            "encoder.layers.{i}.attention.out_proj encoder.layers.{i}.attention.output Linear",
            "encoder.layers.{i}.layer_norm encoder.layers.{i}.attention_norm LayerNorm",
            "encoder.layers.{i}.feed_forward.intermediate_dense encoder.layers.{i}.feed_forward.linear_inner Linear",
            "encoder.layers.{i}.feed_forward.output_dense encoder.layers.{i}.feed_forward.linear_outer Linear",
            "encoder.layers.{i}.final_layer_norm encoder.layers.{i}.final_norm LayerNorm",
        ),
        {},
        {},
    ),
    Model(
        "unet",
        rows(
            *(
                f"{source}.double_conv.{place} {target}.{name} {kind}"
                for source, target in (
                    ("inc", "inc"),
                    ("down{i+1}.maxpool_conv.1", "down.{i}"),
                    ("up{i+1}.conv", "up.{i}.conv"),
                )
                for place, name, kind in (
                    ("0", "conv1", "Conv2d"),
                    ("1", "norm1", "BatchNorm"),
                    ("3", "conv2", "Conv2d"),
                    ("4", "norm2", "BatchNorm"),
                )
            ),
            "up{i+1}.up up.{i}.up ConvTranspose2d",
            "outc.conv out Conv2d",
        ),
        {},
        {},
    ),
    Model(
        "efficientnet",
        rows(
            "features.0.0 stem.conv Conv2d",
            "features.0.1 stem.norm BatchNorm",
            *(
                f"features.{stage}.{{j}}.block.{place} stages.{stage - 1}.blocks.{{j}}.{name} {kind}"
                for stage in (1, 2, 3)
                for place, name, kind in (
                    *(() if stage == 1 else (("0.0", "expand.conv", "Conv2d"), ("0.1", "expand.norm", "BatchNorm"))),
                    (f"{stage > 1:d}.0", "depthwise.conv", "Conv2d"),
                    (f"{stage > 1:d}.1", "depthwise.norm", "BatchNorm"),
                    (f"{1 + (stage > 1):d}.fc1", "squeeze.reduce", "Conv2d"),
                    (f"{1 + (stage > 1):d}.fc2", "squeeze.expand", "Conv2d"),
                    (f"{2 + (stage > 1):d}.0", "project.conv", "Conv2d"),
                    (f"{2 + (stage > 1):d}.1", "project.norm", "BatchNorm"),
                )
            ),
            "features.4.0 top.conv Conv2d",
            "features.4.1 top.norm BatchNorm",
            "classifier.1 head Linear",
        ),
        {},
        {},
    ),
]
"""The models; their order is that in which the issue names them, and means nothing."""


def _encoder_layer(source: str, target: str, *names: str) -> tuple[str, ...]:
    """Rows of a transformer's layer, given the names of its parts in the source, in the order of Burn's encoder."""
    fields = ("mha.query", "mha.key", "mha.value", "mha.output", "pwff.linear_inner", "pwff.linear_outer")
    kinds = ["Linear"] * 6 + ["LayerNorm"] * 2
    rows = zip(names, (*fields, "norm_1", "norm_2"), kinds, strict=True)
    return tuple(f"{source}.{name} {target}.{field} {kind}" for name, field, kind in rows)


_ENCODER = {
    "encoder": "TransformerEncoder",
    "encoder.layers.{i}": "TransformerEncoderLayer",
    "encoder.layers.{i}.mha": "MultiHeadAttention",
    "encoder.layers.{i}.pwff": "PositionWiseFeedForward",
}
_GATES = ("input_gate", "forget_gate", "cell_gate", "output_gate")

LATER = [
    Model(
        "albert",
        rows(
            "albert.embeddings.word_embeddings embeddings.word Embedding",
            "albert.embeddings.position_embeddings embeddings.position Embedding",
            "albert.embeddings.token_type_embeddings embeddings.token_type Embedding",
            "albert.embeddings.LayerNorm embeddings.norm LayerNorm",
            "albert.encoder.embedding_hidden_mapping_in projection Linear",
            *(
                f"albert.encoder.albert_layer_groups.0.albert_layers.0.{source} block.{target}"
                for source, target in (
                    ("attention.query", "attention.query Linear"),
                    ("attention.key", "attention.key Linear"),
                    ("attention.value", "attention.value Linear"),
                    ("attention.dense", "attention.output Linear"),
                    ("attention.LayerNorm", "attention_norm LayerNorm"),
                    ("ffn", "linear_inner Linear"),
                    ("ffn_output", "linear_outer Linear"),
                    ("full_layer_layer_norm", "output_norm LayerNorm"),
                )
            ),
            "predictions.dense head.dense Linear",
            "predictions.LayerNorm head.norm LayerNorm",
            "predictions.bias head.bias Param",
        ),
        {"block.attention": "MultiHeadAttention"},
        {},
    ),
    Model(
        "electra",
        rows(
            "electra.embeddings.word_embeddings embeddings.tokens Embedding",
            "electra.embeddings.position_embeddings embeddings.positions Embedding",
            "electra.embeddings.token_type_embeddings embeddings.types Embedding",
            "electra.embeddings.LayerNorm embeddings.norm LayerNorm",
            "electra.embeddings_project embedding_projection Linear",
            *_encoder_layer(
                "electra.encoder.layer.{i}",
                "encoder.layers.{i}",
                *("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
                *("intermediate.dense", "output.dense", "attention.output.LayerNorm", "output.LayerNorm"),
            ),
            "classifier classifier Linear",
        ),
        _ENCODER,
        {"encoder.layers.{i}": {"norm_first": "false"}},
    ),
    Model(
        "deit",
        rows(
            "deit.embeddings.cls_token cls_token Param",
            "deit.embeddings.distillation_token dist_token Param",
            "deit.embeddings.position_embeddings pos_embed Param",
            "deit.embeddings.patch_embeddings.projection patch_embed Conv2d",
            *(
                f"deit.encoder.layer.{{i}}.{source} blocks.{{i}}.{target}"
                for source, target in (
                    ("layernorm_before", "norm1 LayerNorm"),
                    ("attention.attention.query", "attn.q Linear"),
                    ("attention.attention.key", "attn.k Linear"),
                    ("attention.attention.value", "attn.v Linear"),
                    ("attention.output.dense", "attn.proj Linear"),
                    ("layernorm_after", "norm2 LayerNorm"),
                    ("intermediate.dense", "mlp.fc1 Linear"),
                    ("output.dense", "mlp.fc2 Linear"),
                )
            ),
            "deit.layernorm norm LayerNorm",
            "cls_classifier head Linear",
            "distillation_classifier head_dist Linear",
        ),
        {},
        {},
    ),
    Model(
        "bart",
        rows(
            "model.shared embedding Embedding",
            *(
                line
                for side in ("encoder", "decoder")
                for line in (
                    f"model.{side}.embed_positions {side}.positions Embedding",
                    f"model.{side}.layernorm_embedding {side}.embedding_norm LayerNorm",
                    *(
                        f"model.{side}.layers.{{i}}.{source} {side}.layers.{{i}}.{target}"
                        for source, target in (
                            ("self_attn.q_proj", "self_attn.query Linear"),
                            ("self_attn.k_proj", "self_attn.key Linear"),
                            ("self_attn.v_proj", "self_attn.value Linear"),
                            ("self_attn.out_proj", "self_attn.output Linear"),
                            ("self_attn_layer_norm", "norm_1 LayerNorm"),
                            *(
                                (
                                    ("encoder_attn.q_proj", "cross_attn.query Linear"),
                                    ("encoder_attn.k_proj", "cross_attn.key Linear"),
                                    ("encoder_attn.v_proj", "cross_attn.value Linear"),
                                    ("encoder_attn.out_proj", "cross_attn.output Linear"),
                                    ("encoder_attn_layer_norm", "norm_2 LayerNorm"),
                                )
                                if side == "decoder"
                                else ()
                            ),
                            ("fc1", "linear_1 Linear"),
                            ("fc2", "linear_2 Linear"),
                            ("final_layer_norm", f"norm_{3 if side == 'decoder' else 2} LayerNorm"),
                        )
                    ),
                )
            ),
            "final_logits_bias logits_bias Param",
        ),
        {},
        {},
    ),
    Model(
        "gpt_neox",
        rows(
            "gpt_neox.embed_in embedding Embedding",
            *(
                f"gpt_neox.layers.{{i}}.{source} blocks.{{i}}.{target}"
                for source, target in (
                    ("input_layernorm", "ln_1 LayerNorm"),
                    ("attention.query_key_value[0/3 in 4]", "attn.query Linear"),
                    ("attention.query_key_value[1/3 in 4]", "attn.key Linear"),
                    ("attention.query_key_value[2/3 in 4]", "attn.value Linear"),
                    ("attention.dense", "attn.output Linear"),
                    ("post_attention_layernorm", "ln_2 LayerNorm"),
                    ("mlp.dense_h_to_4h", "mlp.up Linear"),
                    ("mlp.dense_4h_to_h", "mlp.down Linear"),
                )
            ),
            "gpt_neox.final_layer_norm norm LayerNorm",
            "embed_out lm_head Linear",
        ),
        {"rope": "RotaryEncoding"},
        {"blocks.{i}.attn": {"n_heads": "4"}},
    ),
    Model(
        "densenet",
        rows(
            "features.conv0 stem.conv Conv2d",
            "features.norm0 stem.norm BatchNorm",
            *(
                f"features.denseblock{{i+1}}.denselayer{{j+1}}.{name} blocks.{{i}}.layers.{{j}}.{name} {kind}"
                for name, kind in (
                    ("norm1", "BatchNorm"),
                    ("conv1", "Conv2d"),
                    ("norm2", "BatchNorm"),
                    ("conv2", "Conv2d"),
                )
            ),
            "features.transition{i+1}.norm transitions.{i}.norm BatchNorm",
            "features.transition{i+1}.conv transitions.{i}.conv Conv2d",
            "features.norm5 norm BatchNorm",
            "classifier classifier Linear",
        ),
        {},
        {},
    ),
    Model(
        "mobilenet_v3",
        rows(
            "features.0.0 stem.conv Conv2d",
            "features.0.1 stem.norm BatchNorm",
            *(
                f"features.{block}.block.{place} blocks.{block - 1}.{target}"
                for block, places in ((1, "-012"), (2, "01-2"), (3, "0123"))
                for part, place in zip(("expand", "depthwise", "squeeze", "project"), places, strict=True)
                if place != "-"
                for place, target in (
                    ((f"{place}.fc1", "squeeze.reduce Conv2d"), (f"{place}.fc2", "squeeze.expand Conv2d"))
                    if part == "squeeze"
                    else ((f"{place}.0", f"{part}.conv Conv2d"), (f"{place}.1", f"{part}.norm BatchNorm"))
                )
            ),
            "features.4.0 last.conv Conv2d",
            "features.4.1 last.norm BatchNorm",
            "classifier.0 fc1 Linear",
            "classifier.3 fc2 Linear",
        ),
        {},
        {},
    ),
    Model(
        "tagger",
        rows(
            "embedding embedding Embedding",
            *(
                f"lstm.*_{short}_l{{i}}{suffix}[{at}/4] lstm.{{i}}.{side}.{gate}.{field} Linear"
                for side, suffix in (("forward", ""), ("reverse", "_reverse"))
                for at, gate in enumerate(_GATES)
                for short, field in (("ih", "input_transform"), ("hh", "hidden_transform"))
            ),
            "hidden2tag output Linear",
        ),
        {
            "lstm.{i}": "BiLstm",
            **{f"lstm.{{i}}.{side}": "Lstm" for side in ("forward", "reverse")},
            **{f"lstm.{{i}}.{side}.{gate}": "GateController" for side in ("forward", "reverse") for gate in _GATES},
        },
        {},
    ),
]
"""Declared before `map` saw them; see tests/jobs/test_mapping.py for what it made of them."""
