"""Eight models apart from the gallery, on both sides: what `map` is measured on, and was not written for.

``tests/fixtures/map`` has the tensors of small models of PyTorch by name and shape (transformers 5, torchvision, and
the U-Net of github.com/milesial/Pytorch-UNet). Here they are declared as a Burn user would declare them: for
each layer the module of the source, the field in Burn, and its type. The outline and the true mapping follow from that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import burnstore as bs
from burnstore.models.outline import OUTLINE_KEY
from burnstore.transforms.recipe import Template

FIXTURES = Path(__file__).resolve().parent / "fixtures" / "map"
_BURN_NAMES = {"weight": "gamma", "bias": "beta"}
_NORMS = ("LayerNorm", "RmsNorm", "GroupNorm", "BatchNorm")

Row = tuple[str, str, str]


@dataclass(frozen=True)
class Model:
    """A source and a Burn model: rows of source module, Burn module and type (``Param``: a tensor of its own)."""

    name: str
    rows: tuple[Row, ...]
    types: Mapping[str, str]
    """The types of modules around layers, by their path with placeholders."""

    attributes: Mapping[str, Mapping[str, str]]

    @property
    def source(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((FIXTURES / f"{self.name}.json").read_text(encoding="utf-8"))
        return found

    def write(self, folder: Path) -> tuple[Path, Path, dict[str, tuple[Any, ...]]]:
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
        truth: dict[str, tuple[Any, ...]] = {}
        for given, target, kind in self._expanded(list(tensors)):
            self._declare(target, kind, modules)
            for leaf in ("", ".weight", ".bias", ".running_mean", ".running_var"):
                if given + leaf in tensors:
                    self._add(given + leaf, target, leaf[1:], kind, tensors, arrays, truth)
            parts = [f"{given}.parametrizations.weight.original{at}" for at in range(2)]
            if parts[0] in tensors:
                arrays[f"{target}.weight"] = np.zeros_like(tensors[parts[1]])
                truth[f"{target}.weight"] = (tuple(parts), False)
        modules |= {
            path: f"Struct:{kind}" for path, kind in self.types.items() if "{" not in path and path not in modules
        }
        outline = {"format": 1, "burn": "0.22.1", "modules": modules, "display": self._display(modules)}
        bs.save(arrays, folder / "model.outline.bpk", metadata={OUTLINE_KEY: json.dumps(outline)}, layout="burn")
        return folder / "model.safetensors", folder / "model.outline.bpk", truth

    def _add(
        self, name: str, target: str, leaf: str, kind: str, tensors: Any, arrays: dict[str, Any], truth: dict[str, Any]
    ) -> None:
        burn = _BURN_NAMES.get(leaf, leaf) if kind in _NORMS else leaf
        is_turned = kind == "Linear" and leaf == "weight"
        path = f"{target}.{burn}" if leaf and kind != "Param" else target
        arrays[path] = np.zeros_like(tensors[name].T if is_turned else tensors[name])
        truth[path] = ((name,), is_turned)

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
        found = []
        for number, (source, target, kind) in enumerate(self.rows):
            for owner in owners:
                indices = Template(source).match(owner)
                if indices is not None and (
                    source != owner or any(n == owner or n.startswith(f"{owner}.") for n in names)
                ):
                    first = next(at for at, row in enumerate(self.rows) if row[1].split("{")[0] == target.split("{")[0])
                    numbers = [indices[letter] for letter, _ in Template(target).letters]
                    found.append(((first, numbers[:1], numbers, number), owner, Template(target).name(indices), kind))
        found.sort(key=lambda row: row[0])
        return iter([row[1:] for row in found])


def _rows(*lines: str) -> tuple[Row, ...]:
    rows = []
    for line in lines:
        source, target, kind = line.split()
        rows.append((source, target, kind))
    return tuple(rows)


MODELS = [
    Model(
        "distilbert",
        _rows(
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
        _rows(
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
        _rows(
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
        _rows(
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
        _rows(
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
        _rows(
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
        _rows(
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
        _rows(
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
