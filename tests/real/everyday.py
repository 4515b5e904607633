"""The checkpoints that people have × everything that can be done with them: the table in docs/everyday.md.

``make everyday`` writes the page. Each cell is the outcome of the function and of the command, with the libraries that
make such files: right (the values are compared with those of the library), or refused with the message and the hint.
Anything else is a traceback, and the exit code is 1.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import burnstore as bs
from burnstore.cli import main as command
from burnstore.jobs.migrate import migrate
from burnstore.jobs.skeleton import skeleton
from burnstore.models.outline import OUTLINE_KEY
from burnstore.stores.records import NamedMpkFileRecorder, save_file

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TQDM_DISABLE", "1")
import torch

PAGE = Path(__file__).parents[2] / "docs" / "everyday.md"
MODULE = "everyday" if __name__ == "__main__" else __name__
VERBS = ("load", "save", "convert", "inspect", "verify", "explain", "diff", "merge", "report", "scan", "skeleton")
VERBS += ("migrate",)
RIGHT, NOT_APPLICABLE = "✓", ""


@dataclass
class Kind:
    """A checkpoint: where it is, its tensors, and the function in this file that makes its model."""

    path: Path
    tensors: Mapping[str, Any] | None = None
    model: Callable[[], Any] | None = None
    key: str | None = None
    states_kinds: bool = False
    """Whether the file itself states the kinds of its modules, so that a conversion needs no model."""
    in_model: Mapping[str, Any] | None = field(default=None)
    """The tensors under the names of the model, if the file has others."""


# --- models -----------------------------------------------------------------------------------------------------------


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def normed() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(2, 3, 3)))


def bert() -> Any:
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, intermediate_size=20)).eval()


def gpt2() -> Any:
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "n_positions": 8, "n_embd": 12, "n_layer": 2, "n_head": 3}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()


def gemma() -> Any:
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    return transformers.GemmaForCausalLM(transformers.GemmaConfig(**sizes, **heads)).eval()


def unet() -> Any:
    import diffusers

    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    sizes = {"sample_size": 8, "block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
    return diffusers.UNet2DModel(in_channels=1, out_channels=1, attention_head_dim=4, **blocks, **sizes)


def training() -> dict[str, Any]:
    model = net()
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    adam.step()
    ema = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in net().state_dict().items()}
    return {"model": net().state_dict(), "ema": ema, "optimizer": adam.state_dict(), "epoch": 3}


# --- checkpoints ------------------------------------------------------------------------------------------------------


def _saved(value: Any, file: Path) -> Path:
    torch.save(value, file)
    return file


def _state(model: Any) -> dict[str, Any]:
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def _once(model: Any) -> dict[str, Any]:
    """Return the tensors that save_pretrained writes: of tied ones the first."""
    found: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), name)
    kept = set(found.values())
    return {name: array for name, array in _state(model).items() if name in kept}


def pretrained(folder: Path, model: Callable[[], Any], **options: Any) -> Kind:
    model().save_pretrained(folder, **options)
    return Kind(folder, _once(model()), model, in_model=_state(model()))


def bin_index(folder: Path) -> Kind:
    state, weight_map = bert().state_dict(), {}
    for number, part in enumerate((list(state)[:9], list(state)[9:]), 1):
        file = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save({name: state[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    bert().config.save_pretrained(folder)
    return Kind(folder, _state(bert()), bert)


def pipeline(folder: Path) -> Kind:
    import diffusers

    diffusers.DDPMPipeline(unet(), diffusers.DDPMScheduler()).save_pretrained(folder)
    return Kind(folder)


def component(folder: Path) -> Kind:
    return Kind(pipeline(folder).path / "unet", _state(unet()), unet)


def adapter(folder: Path) -> Kind:
    import peft

    model = peft.get_peft_model(net(), peft.LoraConfig(target_modules=["0"], r=2))
    model.save_pretrained(folder)
    return Kind(folder, {name: t.numpy() for name, t in peft.get_peft_model_state_dict(model).items()})


def lightning(folder: Path) -> Kind:
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.net(batch[0]).sum() * 0

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 3)), batch_size=2)
    trainer = pytorch_lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    model = Module()
    trainer.fit(model, data)
    trainer.save_checkpoint(folder / "last.ckpt")
    return Kind(folder / "last.ckpt", _state(model), trained)


def trained() -> Any:
    return torch.nn.ModuleDict({"net": net()})


def wrapped(file: Path, prefix: str) -> Kind:
    state = {f"{prefix}.{name}": tensor for name, tensor in net().state_dict().items()}
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    return Kind(_saved(state, file), arrays, net, in_model=_state(net()))


def part(file: Path, key: str) -> Kind:
    saved = training()
    if key == "optimizer":
        state = {f"state.{n}.{k}": t.numpy() for n, row in saved[key]["state"].items() for k, t in row.items()}
        return Kind(_saved(saved, file), state, key=key)
    return Kind(_saved(saved, file), {name: t.numpy() for name, t in saved[key].items()}, net, key=key)


def whole(file: Path) -> Kind:
    return Kind(_saved(net(), file), _state(net()), net, states_kinds=True)


def script(file: Path) -> Kind:
    torch.jit.script(net().eval()).save(str(file))
    return Kind(file, _state(net()), net, states_kinds=True)


def frozen(file: Path) -> Kind:
    torch.jit.freeze(torch.jit.script(net().eval())).save(str(file))
    return Kind(file)


def quantized(file: Path) -> Kind:
    weight = torch.quantize_per_tensor(torch.arange(6.0).reshape(2, 3), 0.1, 0, torch.qint8)
    return Kind(_saved({"0.weight": weight}, file))


def outline(file: Path) -> Kind:
    modules = {"": "Struct:Net", "fc": "Struct:Linear"}
    text = {"format": 1, "burn": "0.22.1", "modules": modules, "display": ""}
    arrays = {"fc.weight": np.zeros((3, 4), np.float32), "fc.bias": np.zeros(4, np.float32)}
    bs.save(arrays, file, metadata={OUTLINE_KEY: json.dumps(text)}, layout="burn")
    return Kind(file, arrays)


def written(file: Path, **options: Any) -> Kind:
    bs.save(net(), file, **options)
    with bs.open(file) as f:
        arrays = {name: np.array(f[name].numpy()) for name in f}
    return Kind(file, arrays, net, states_kinds=file.suffix == ".bpk", in_model=_state(net()))


def gguf(file: Path) -> Kind:
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    values = np.linspace(-1, 1, 4 * 32, dtype=np.float32).reshape(4, 32)
    blocks = quants.quantize(values, GGMLQuantizationType.Q8_0)
    writer = GGUFWriter(file, "toy")
    writer.add_tensor("fc.weight", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.add_tensor("fc.bias", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Kind(file, {"fc.weight": quants.dequantize(blocks, GGMLQuantizationType.Q8_0), "fc.bias": values[0]})


def fp8(file: Path) -> Kind:
    from safetensors.torch import save_file

    codes, scales = torch.randn(4, 3).to(torch.float8_e4m3fn), torch.rand(4, 1)
    save_file({"0.weight": codes, "0.weight_scale": scales}, file, metadata={"format": "pt"})
    return Kind(file, {"0.weight": (codes.float() * scales).numpy()})


def mxfp4(file: Path) -> Kind:
    from safetensors.torch import save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = torch.randint(0, 256, (2, 4, 3, 16), dtype=torch.uint8), torch.full((2, 4, 3), 126).byte()
    save_file({"p_blocks": blocks, "p_scales": scales}, file, metadata={"format": "pt"})
    values = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return Kind(file, {"p": values.numpy()})


def gptq(at: Path) -> Kind:
    """Weights of 4 bits by GPTQ's layout: eight codes of a column in a word, zero points stored less 1."""
    from safetensors.numpy import save_file

    codes, scales = np.arange(64).reshape(8, 8) % 16, np.full((1, 8), 0.5, np.float16)
    shifts = 4 * np.arange(8)
    packed = (codes.astype(np.uint32) << shifts[:, None].astype(np.uint32)).sum(0, dtype=np.uint32)[None].view(np.int32)
    zeros = np.array([[0x77777777]], np.uint32).view(np.int32)  # 8 less 1
    parts = {"m.qweight": packed, "m.qzeros": zeros, "m.scales": scales, "m.g_idx": np.zeros(8, np.int32)}
    save_file(parts, at / "model.safetensors", metadata={"format": "pt"})
    config = {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": False, "checkpoint_format": "gptq"}
    (at / "config.json").write_text(json.dumps({"quantization_config": config}))
    return Kind(at, {"m.weight": ((codes - 8) * 0.5).T})


def nf4(file: Path) -> Kind:
    import bitsandbytes.functional as functional
    from safetensors.torch import save_file

    codes, state = functional.quantize_4bit(torch.randn(64, 128), quant_type="nf4")
    more = {f"m.weight.{name}": value for name, value in state.as_dict(packed=True).items()}
    save_file({"m.weight": codes, **more}, file, metadata={"format": "pt"})
    return Kind(file, {"m.weight": functional.dequantize_4bit(codes, state).numpy()})


def parts(at: Path, folder: str, name: str = "") -> Kind:
    """Return a checkpoint that torch's own writers made in four processes, or one file of it."""
    saved = Path(__file__).parents[1] / "fixtures" / "dcp4"
    shutil.copytree(saved / folder, at, dirs_exist_ok=True)
    if name:
        return Kind(at / name)
    with bs.open(saved / "expected.safetensors") as file:
        whole = {path: np.array(file[path].numpy()) for path in file if path.startswith("model.")}
    if folder == "sharded":
        whole = {"rows.weight": whole["model.rows.weight"], "bias": whole["model.plain.bias"]}
    elif folder == "dcp":
        whole = {path.removeprefix("model."): value for path, value in whole.items()}
    return Kind(at, whole)


def zero(at: Path) -> Kind:
    """Return partitions of DeepSpeed ZeRO stage 2 of two ranks, by its documented layout."""
    shapes = OrderedDict(a=torch.Size((3, 2)), b=torch.Size((2,)))
    state = {"module": {"n": torch.zeros(1)}, "buffer_names": ["n"], "param_shapes": [shapes], "ds_version": "0.15.0"}
    _saved(state, at / "mp_rank_00_model_states.pt")
    for rank in (0, 1):
        flat = [torch.arange(4.0) + 4 * rank]
        held = {"zero_stage": 2, "partition_count": [2], "single_partition_of_fp32_groups": flat}
        _saved({"optimizer_state_dict": held}, at / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    values = {"a": np.arange(6.0).reshape(3, 2), "b": np.array([6.0, 7.0]), "n": np.zeros(1)}
    return Kind(at, {name: value.astype(np.float32) for name, value in values.items()})


def record(file: Path) -> Kind:
    save_file(bs.nn.Linear(3, 4), file.with_suffix(""), NamedMpkFileRecorder())
    return Kind(file)


def array(file: Path) -> Kind:
    np.save(file, np.arange(6.0))
    return Kind(file)


KINDS: dict[str, Callable[[Path], Kind]] = {
    "state dict, `.pt`": lambda at: Kind(_saved(net().state_dict(), at / "a.pt"), _state(net()), net),
    "`.safetensors`": lambda at: written(at / "a.safetensors"),
    "Hugging Face folder (BERT, tied)": lambda at: pretrained(at, bert),
    "Hugging Face folder, sharded (GPT-2, Conv1D)": lambda at: pretrained(at, gpt2, max_shard_size="8KB"),
    "Hugging Face folder (Gemma)": lambda at: pretrained(at, gemma),
    "`pytorch_model.bin.index.json`": bin_index,
    "diffusers pipeline": pipeline,
    "folder of a diffusers model": component,
    "PEFT adapter": adapter,
    "Lightning `.ckpt`": lightning,
    "training dict": lambda at: Kind(
        _saved({k: v for k, v in training().items() if k != "ema"}, at / "a.pt"), _state(net()), net
    ),
    "the EMA of a training dict": lambda at: part(at / "a.pt", "ema"),
    "the optimizer of a training dict": lambda at: part(at / "a.pt", "optimizer"),
    "DDP, `module.`": lambda at: wrapped(at / "a.pt", "module"),
    "compiled, `_orig_mod.`": lambda at: wrapped(at / "a.pt", "_orig_mod"),
    "weight norm": lambda at: Kind(_saved(normed().state_dict(), at / "a.pt"), _state(normed()), normed),
    "whole model, `torch.save(model)`": lambda at: whole(at / "a.pt"),
    "TorchScript": lambda at: script(at / "a.pt"),
    "frozen TorchScript": lambda at: frozen(at / "a.pt"),
    "quantized tensors, `.pt`": lambda at: quantized(at / "a.pt"),
    "`.npz`": lambda at: written(at / "a.npz", layout="torch"),
    "`.gguf` in blocks": lambda at: gguf(at / "a.gguf"),
    "FP8 with scales, `.safetensors`": lambda at: fp8(at / "a.safetensors"),
    "GPTQ folder": gptq,
    "bitsandbytes NF4, `.safetensors`": lambda at: nf4(at / "a.safetensors"),
    "MXFP4 experts (gpt-oss), `.safetensors`": lambda at: mxfp4(at / "a.safetensors"),
    "distributed checkpoint (DCP) folder": lambda at: parts(at, "dcp"),
    "one `.distcp` of it": lambda at: parts(at, "dcp", "__1_0.distcp"),
    "rank files of FSDP2 (DTensor)": lambda at: parts(at, "ranks"),
    "one of the rank files": lambda at: parts(at, "ranks", "model_world_size_4_rank_1.pt"),
    "rank files with ShardedTensors": lambda at: parts(at, "sharded"),
    "DCP as SafeTensors, sharded": lambda at: parts(at, "hf"),
    "one of its shards": lambda at: parts(at, "hf", "shard-00002-model-00001-of-00002.safetensors"),
    "DeepSpeed ZeRO folder": zero,
    "`.npy`": lambda at: array(at / "a.npy"),
    "Burn, `.bpk`": lambda at: written(at / "a.bpk"),
    "Burn's record, `.mpk`": lambda at: record(at / "a.mpk"),
    "outline of a Burn model": lambda at: outline(at / "a.bpk"),
    "empty folder": Kind,
}


# --- functions --------------------------------------------------------------------------------------------------------


def _equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert set(found) == set(expected), sorted(set(found) ^ set(expected))[:3]
    for name, value in expected.items():
        assert np.array_equal(np.asarray(found[name]), value), name


def _tensors(file: Path, key: str | None = None) -> dict[str, Any]:
    with bs.open(file, **({} if key is None else {"top_level_key": key})) as f:
        return {name: np.array(f[name].numpy()) for name in f}


def _loaded(kind: Kind, file: Path, **options: Any) -> None:
    """Load a file into a model whose values were erased, and compare."""
    assert kind.model is not None
    other = kind.model()
    for tensor in other.state_dict().values():
        tensor.zero_()
    bs.load(other, file, **options)
    _equal(_state(other), kind.in_model or kind.tensors or {})


def function(verb: str, kind: Kind, out: Path) -> str:
    """Do one thing by its function, and compare; raise what it raises."""
    key = {} if kind.key is None else {"top_level_key": kind.key}
    if verb == "load":
        if kind.model is None:
            return NOT_APPLICABLE
        _loaded(kind, kind.path, **key)
    elif verb == "save":
        if kind.model is None:
            return NOT_APPLICABLE
        bs.save(kind.model(), out / "s.bpk")
        _loaded(Kind(kind.path, _state(kind.model()), kind.model), out / "s.bpk")
    elif verb == "convert":
        like = {} if kind.model is None or kind.states_kinds else {"like": kind.model()}
        bs.convert(kind.path, out / f"c.{_target(kind)}", **like, **key)
        if _target(kind) == "safetensors" and kind.tensors is not None:
            _equal(_tensors(out / "c.safetensors"), kind.tensors)
        elif kind.model is not None:
            _loaded(kind, out / "c.bpk")
    elif verb == "inspect":
        rows = bs.inspect(kind.path, **key).tensors
        assert kind.tensors is None or {row.name for row in rows} == set(kind.tensors)
    elif verb == "verify":
        found = bs.verify(kind.path)
        if found.warnings and not found.files:
            raise bs.errors.ReadError("; ".join(found.warnings))
        if found.errors:
            raise found.errors[0]
        assert found.is_whole
    elif verb == "explain":
        assert bs.explain(kind.path, kind.model() if kind.model else None, **key).to_dict()
    elif verb == "diff":
        assert bs.diff(kind.path, kind.path, **key).is_equal
    elif verb == "merge":
        bs.merge([bs.MergeSource(kind.path, **key)], out / "m.safetensors", keep_layout=True)
        if kind.tensors is not None:
            _equal(_tensors(out / "m.safetensors"), kind.tensors)
    elif verb == "report":
        bs.report(kind.path, output=out / "r.html", **key)
        first = next(iter(kind.tensors or {"": 0}))
        assert json.dumps(first)[1:-1] in (out / "r.html").read_text()
    elif verb == "scan":
        judged = bs.scan(kind.path)
        if judged.verdict == "error" and judged.error is not None:
            raise judged.error
        return judged.verdict.replace("clean", RIGHT)
    elif verb == "skeleton":
        assert "pub struct" in skeleton(kind.path, **key)
    else:
        migrate(kind.path, out / "g.bpk")
    return RIGHT


def _target(kind: Kind) -> str:
    return "bpk" if kind.model is not None or kind.states_kinds else "safetensors"


def arguments(verb: str, kind: Kind, out: Path) -> list[str] | None:
    """Return the command that does the same; None if there is none."""
    file, key = str(kind.path), [] if kind.key is None else ["--top-level-key", kind.key]
    made = "" if kind.model is None else f"{MODULE}:{kind.model.__name__}"
    like = ["--like", made] if made and not kind.states_kinds else []
    return {
        "convert": ["convert", file, f"{out}/c.{_target(kind)}", "--quiet", *like, *key],
        "inspect": ["inspect", file, *key],
        "verify": ["verify", file, "--quiet"],
        "explain": ["explain", file, *(["--into", made] if made else []), *key],
        "diff": ["diff", file, file, "--quiet", *key],
        "merge": ["merge", file, f"{out}/m.safetensors", "--keep-layout", "--quiet", *key],
        "report": ["report", file, "-o", f"{out}/r.html", "--quiet", *key],
        "scan": ["scan", file],
        "skeleton": ["skeleton", file, "--rust", *key],
        "migrate": ["migrate", file, f"{out}/g.bpk", "--quiet"],
    }.get(verb)


def cell(verb: str, kind: Kind) -> tuple[str, str]:
    """Return the outcome of a verb: a mark, and the refusal with its hint; AssertionError if it is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        (out / "f").mkdir(), (out / "c").mkdir()
        refusal = ""
        try:
            mark = function(verb, kind, out / "f")
        except bs.errors.BurnstoreError as error:
            hint = f" Hint: {error.hint}" if error.hint else ""
            mark, refusal = "", _plain(f"{error.message}{hint}", kind, error)
        given = arguments(verb, kind, out / "c")
        if given is None or (mark == NOT_APPLICABLE and not refusal):
            return mark, refusal
        printed, complaint = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaint):
            code = command(given)
        said = complaint.getvalue()
        assert "internal error" not in said and "Traceback" not in said, f"{given}: {said}"
        # Of a folder these verbs report what they found: nothing is their exit code 1.
        is_verdict = mark in ("suspicious", "dangerous")
        is_refused = code == 2 or (code == 1 and verb in ("verify", "scan", "migrate") and not is_verdict)
        assert is_refused == bool(refusal), f"{given}: the function: {mark or refusal}; the command: {code} {said}"
        return mark, refusal


def _plain(text: str, kind: Kind, error: Any) -> str:
    """Return a message in one line, without the paths of this run."""
    named = f"tensor '{error.tensor}': " if error.tensor and error.tensor not in text else ""
    text = re.sub(r"\s+", " ", named + text.partition("\n┌")[0].partition("┌")[0] + _hint_after(text))
    folder = kind.path if kind.path.is_dir() else kind.path.parent
    text = text.replace(str(folder.parent) + "/", "").replace(str(folder), "FOLDER")
    return text.strip()


def _hint_after(text: str) -> str:
    """Return the hint of a message with a drawn result in it."""
    return text.rpartition("└─")[2] if "┌" in text else ""


def table() -> Iterator[tuple[str, dict[str, tuple[str, str]]]]:
    """Yield each kind of checkpoint and the outcome of each verb."""
    for name, make in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "model"
            place.mkdir()
            kind = make(place)
            cells = {}
            for verb in VERBS:
                try:
                    cells[verb] = cell(verb, kind)
                except Exception as error:
                    cells[verb] = ("TRACEBACK", f"{type(error).__name__}: {error}")
            yield name, cells


HEAD = """# What works with which file

Each row is a checkpoint that people have, made by the library that makes such files; each column is something to do
with it, by the function and by the command of that name (`load` and `save` are functions only). ✓: done, and the values
are those of the library. A number: refused, with the message and the hint below. Empty: it has no meaning there.
`make everyday` makes this page, and a test fails if it is not current.

"""


def page(rows: list[tuple[str, dict[str, tuple[str, str]]]]) -> str:
    """Return the page."""
    refusals: dict[str, int] = {}
    lines = [f"| | {' | '.join(VERBS)} |", f"|---|{'---|' * len(VERBS)}"]
    for name, cells in rows:
        marks = []
        for mark, refusal in (cells[verb] for verb in VERBS):
            number = refusals.setdefault(refusal, len(refusals) + 1) if refusal else 0
            marks.append(mark if not number else f"[{number}](#refused)" if not mark else f"{mark} {number}")
        lines.append(f"| {name} | {' | '.join(marks)} |")
    shown = {text.replace(" Hint: ", " `` **hint:** `` "): number for text, number in refusals.items()}
    notes = [f"{number}. `` {text} ``" for text, number in shown.items()]
    return HEAD + "\n".join(lines) + "\n\n## Refused\n\n" + "\n".join(notes) + "\n"


def main() -> int:
    """Write the page."""
    warnings.simplefilter("ignore")
    rows = list(table())
    PAGE.write_text(page(rows))
    marks = [mark for _, cells in rows for mark, refusal in cells.values() if mark or refusal]
    broken = [(name, verb, cells[verb][1]) for name, cells in rows for verb in VERBS if cells[verb][0] == "TRACEBACK"]
    for name, verb, why in broken:
        sys.stdout.write(f"{name}, {verb}: {why}\n")
    right, refused = sum(mark not in ("", "TRACEBACK") for mark in marks), marks.count("")
    sys.stdout.write(f"{len(rows)} kinds, {len(VERBS)} verbs: {right} right, {refused} refused, {len(broken)} broken\n")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
