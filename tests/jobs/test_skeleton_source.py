"""Skeletons as text; tests/interop compiles them with real Burn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import burnstore as bs
from burnstore.cli import main
from burnstore.errors import AmbiguousError, ModelError
from burnstore.jobs.skeleton import skeleton

torch = pytest.importorskip("torch")
nn = torch.nn


class Block(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, width: int, *, short: bool = False, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, 2 * width, 3, stride=stride, padding=1)
        self.norm = nn.BatchNorm2d(2 * width)
        self.act = nn.ReLU()
        self.short = nn.Conv2d(width, 2 * width, 1) if short else None

    def forward(self, x: Any, *, scale: float = 1.0) -> Any:
        raise NotImplementedError


def holder(**children: Any) -> Any:
    class Holder(nn.Module):  # type: ignore[misc, name-defined]
        pass

    made = Holder()
    for name, child in children.items():
        made.register_module(name, child)
    return made


def unlike_layers() -> Any:
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)
    stack.layers[1].norm1.eps = 1e-3
    return stack


def struct(source: str, name: str) -> str:
    """The declaration of a struct and what is implemented for it, without the loader."""
    start = source.index(f"pub struct {name} {{")
    return source[start : source.find("#[derive", start)]


def test_what_differs_between_blocks_is_a_parameter_and_what_some_lack_an_option() -> None:
    source = skeleton(holder(a=Block(4), b=Block(8, short=True, stride=2), c=Block(4)))
    block = struct(source, "Block")
    assert "    pub short: Option<Conv2d>,\n" in block
    assert "    pub act: Relu,\n" in block
    assert "pub fn init(conv_in: usize, conv_out: usize, conv_stride: usize, short: Option<Conv2d>, device" in block
    assert "BatchNormConfig::new(conv_out).init(device)" in block
    assert "a: Block::init(4, 8, 1, None, device)" in source
    assert "b: Block::init(8, 16, 2, Some(Conv2dConfig::new([8, 16], [1, 1]).init(device)), device)" in source
    assert "// The forward pass of PyTorch: forward(self, x: 'Any', *, scale: 'float' = 1.0) -> 'Any'" in block


def test_equal_blocks_are_made_in_a_loop() -> None:
    source = skeleton(holder(layers=nn.ModuleList([Block(4) for _ in range(3)])))
    assert "    pub layers: Vec<Block>,\n" in source
    assert "layers: (0..3).map(|_| Block::init(device)).collect()," in source


def test_one_class_with_fields_of_different_types_is_several_structs() -> None:
    source = skeleton(holder(a=holder(inner=nn.Linear(2, 3)), b=holder(inner=nn.LayerNorm(3))))
    assert "pub struct Holder2 {\n    pub inner: Linear,\n" in source
    assert "pub struct Holder3 {\n    pub inner: LayerNorm,\n" in source


def test_a_class_within_itself_is_told_apart_by_depth() -> None:
    source = skeleton(holder(below=holder(below=holder(fc=nn.Linear(2, 2)))))
    assert source.count("pub struct Holder") == 3


@pytest.mark.parametrize(
    ("items", "declared"),
    [
        ([nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)], "Vec<Linear>"),
        ([nn.Linear(2, 3), nn.ReLU(), nn.LayerNorm(3)], "(Linear, LayerNorm)"),
        ([nn.Linear(2, 2), nn.LayerNorm(2)] * 6, "Vec<SeqLayer>"),
        ([nn.Dropout(), nn.Linear(2, 2)], "Vec<Linear>"),
    ],
)
def test_a_list_is_a_vec_a_tuple_or_a_vec_of_an_enum(items: list[Any], declared: str) -> None:
    source = skeleton(holder(seq=nn.Sequential(*items)))
    assert f"    pub seq: {declared},\n" in source
    enum = "pub enum SeqLayer {\n    Linear(Linear),\n    LayerNorm(LayerNorm),\n}"
    assert (enum in source) == ("SeqLayer" in declared)


def test_names_that_rust_keeps_are_renamed_when_the_file_is_loaded() -> None:
    source = skeleton(holder(self=holder(match=nn.Linear(2, 2)), layers=nn.ModuleList([holder(fn=nn.Linear(2, 2))])))
    assert "pub self_: " in source and "pub match_: " in source
    remaps = [line.strip() for line in source.splitlines() if "with_remap_pattern" in line]
    assert remaps == [
        r'.with_remap_pattern(r"^(layers\.\d+\.)fn(\.|$)", "${1}fn_${2}")',
        r'.with_remap_pattern(r"^(self\.)match(\.|$)", "${1}match_${2}")',
        r'.with_remap_pattern(r"^()self(\.|$)", "${1}self_${2}");',
    ]


def test_a_class_that_is_called_as_one_of_burns_gets_another_name() -> None:
    own = type("LayerNorm", (nn.Module,), {})()
    own.weight = nn.Parameter(torch.zeros(3))
    source = skeleton(holder(norm=own))
    assert "pub struct LayerNormModule {\n    pub weight: Param<Tensor<1>>,\n" in source


@pytest.mark.parametrize(
    ("module", "made"),
    [
        (lambda: nn.Linear(2, 3, bias=False), "LinearConfig::new(2, 3).with_bias(false).init(device)"),
        (lambda: nn.Embedding(5, 4), "EmbeddingConfig::new(5, 4).init(device)"),
        (
            lambda: nn.Conv1d(4, 6, 5, stride=2, padding=2, dilation=3, groups=2),
            "Conv1dConfig::new(4, 6, 5).with_stride(2).with_padding(PaddingConfig1d::Explicit(2, 2)).with_dilation(3)"
            ".with_groups(2).init(device)",
        ),
        (
            lambda: nn.Conv2d(3, 4, (3, 2), padding="same", bias=False),
            "Conv2dConfig::new([3, 4], [3, 2]).with_padding(PaddingConfig2d::Explicit(1, 0, 1, 1)).with_bias(false)"
            ".init(device)",
        ),
        (
            lambda: nn.Conv3d(2, 3, 3, padding=1),
            "Conv3dConfig::new([2, 3], [3, 3, 3]).with_padding(PaddingConfig3d::Explicit(1, 1, 1)).init(device)",
        ),
        (
            lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
            "ConvTranspose1dConfig::new([4, 6], 3).with_stride(2).with_padding(1).with_padding_out(1).with_groups(2)"
            ".init(device)",
        ),
        (lambda: nn.BatchNorm1d(3, eps=1e-3, momentum=0.2), "new(3).with_epsilon(0.001).with_momentum(0.2).init"),
        (lambda: nn.LayerNorm(4, bias=False), "LayerNormConfig::new(4).with_bias(false).init(device)"),
        (lambda: nn.LayerNorm(4, elementwise_affine=False), "LayerNormConfig::new(4).init(device)"),
        (lambda: nn.RMSNorm(4), "RmsNormConfig::new(4).with_epsilon(1.1920929e-07).init(device)"),
        (lambda: nn.GroupNorm(2, 4), "GroupNormConfig::new(2, 4).init(device)"),
        (lambda: nn.InstanceNorm2d(3, affine=True), "InstanceNormConfig::new(3).init(device)"),
        (lambda: nn.PReLU(), "PReluConfig::new().init(device)"),
        (lambda: nn.LSTM(3, 4), "LstmConfig::new(3, 4, true).with_batch_first(false).init(device)"),
        (
            lambda: nn.RNN(3, 4, nonlinearity="relu", batch_first=True),
            "RnnConfig::new(3, 4, true).with_hidden_activation(ActivationConfig::Relu).init(device)",
        ),
        (lambda: nn.GRU(3, 4, bias=False, batch_first=True), "GruConfig::new(3, 4, false).init(device)"),
        (
            lambda: nn.MultiheadAttention(8, 2, add_zero_attn=True),
            "MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0).with_quiet_softmax(true).init(device)",
        ),
        (
            lambda: nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", norm_first=True),
            "TransformerEncoderLayer::new(&TransformerEncoderConfig::new(8, 16, 2, 1).with_norm_first(true), device)",
        ),
    ],
)
def test_a_layer_is_made_with_the_options_of_the_torch_module(module: Callable[[], Any], made: str) -> None:
    assert made in skeleton(holder(layer=module()))


def test_parameters_and_buffers_keep_their_axes_and_kinds() -> None:
    model = holder(fc=nn.Linear(2, 2))
    model.scale = nn.Parameter(torch.zeros(1, 3))
    model.register_buffer("index", torch.zeros(4, dtype=torch.int64))
    model.register_buffer("mask", torch.zeros(2, 2, dtype=torch.bool))
    model.register_buffer("passing", torch.zeros(9), persistent=False)
    source = skeleton(model)
    for declared in ("scale: Param<Tensor<2>>", "index: Param<Tensor<1, Int>>", "mask: Param<Tensor<2, Bool>>"):
        assert f"    pub {declared},\n" in source
    assert "passing" not in source


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: holder(fc=nn.Bilinear(2, 2, 2)), "Bilinear"),
        (lambda: holder(lstm=nn.LSTM(3, 4, proj_size=2)), "projection"),
        (lambda: holder(fc=nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))), "Parametrized"),
        (lambda: holder(act=nn.ReLU()), "no tensors"),
        (lambda: holder(layer=nn.TransformerEncoderLayer(8, 2, activation=nn.functional.silu)), "'silu'"),
        (lambda: holder(stack=unlike_layers()), "different options"),
    ],
)
def test_what_burn_has_no_place_for_is_refused(model: Callable[[], Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        skeleton(model())


def test_a_tensor_without_axes_is_refused_by_name() -> None:
    model = holder(fc=nn.Linear(2, 2))
    model.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ModelError, match="its scale has no axes"):
        skeleton(model)


def test_a_model_of_another_framework_is_refused() -> None:
    with pytest.raises(ModelError, match="PyTorch"):
        skeleton(bs.nn.Linear(2, 3))


def test_a_sequential_has_its_forward_pass_with_the_axes_that_it_leads_to() -> None:
    source = skeleton(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2), nn.Tanh(), nn.Flatten()), name="Net")
    assert "    pub fn forward(&self, x: Tensor<2, Int>) -> Tensor<2> {\n" in source
    assert "x.flatten::<2>(1, 2)" in source
    assert '.with_remap_pattern(r"^", "layers.")' in source


class Odd(nn.Linear):  # type: ignore[misc, name-defined]
    """A Linear that computes something else."""

    def forward(self, x: Any) -> Any:
        return -super().forward(x)


@pytest.mark.parametrize(
    "items",
    [
        [nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.Linear(3, 2)],
        [nn.Linear(4, 6), Odd(6, 2)],
        [nn.Flatten(), nn.Linear(4, 2)],
        [nn.Linear(4, 6), nn.Conv2d(2, 3, 1)],
        [nn.Conv2d(2, 3, 1), nn.MaxPool2d(2, return_indices=True)],
        [nn.Linear(2, 2), nn.LayerNorm(2)] * 6,
    ],
)
def test_a_sequential_whose_forward_pass_is_not_certain_is_left_to_be_written(items: list[Any]) -> None:
    source = skeleton(nn.Sequential(*items))
    assert "todo!()" in source and ".forward(x)" not in source


def test_a_complex_parameter_is_refused_by_name() -> None:
    model = holder(fc=nn.Linear(2, 2))
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ModelError, match="its phase is C64"):
        skeleton(model)


def test_a_file_whose_modules_burnstore_recorded_will_do(tmp_path: Path) -> None:
    convolutions = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    model = holder(fc=nn.Linear(3, 3), blocks=convolutions, norm=nn.BatchNorm2d(3))
    bs.save(model, tmp_path / "net.bpk")
    source = skeleton(tmp_path / "net.bpk")
    for declared in ("fc: Linear", "blocks: Vec<Conv2d>", "norm: BatchNorm"):
        assert f"    pub {declared},\n" in source
    assert "Conv2dConfig::new([2, 4], [3, 3]).init(device)" in source
    assert "PyTorch's defaults here" in source


def test_a_file_that_leaves_a_choice_is_ambiguous(tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.zeros(3, 3), "fc.bias": torch.zeros(3)}, tmp_path / "net.pt")
    with pytest.raises(AmbiguousError, match="fc"):
        skeleton(tmp_path / "net.pt")


def test_a_file_of_burns_layout_without_a_record_is_refused(tmp_path: Path) -> None:
    bs.save(bs.nn.Linear(2, 3), tmp_path / "net.bpk")
    with pytest.raises(ModelError, match="Burn's layout"):
        skeleton(tmp_path / "net.bpk")


def test_the_verb_prints_the_source_of_a_model_and_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "skeleton_net.py").write_text("import torch\ndef net(): return torch.nn.Linear(2, 3)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["skeleton", "skeleton_net:net", "--rust", "--name", "Net"]) == 0
    assert "pub struct Net {\n    pub layers: Linear,\n}" in capsys.readouterr().out
    torch.save({"fc.weight": torch.zeros(4, 3), "fc.bias": torch.zeros(4)}, "net.pt")
    assert main(["skeleton", "net.pt", "--rust"]) == 0
    assert "pub struct Net {" in capsys.readouterr().out


def test_the_verb_says_what_cannot_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skeleton", "no_such_module_here:Net", "--rust"]) == 2
    assert "no_such_module_here" in capsys.readouterr().err
    assert main(["skeleton", "no_such_file.pt", "--rust"]) == 2
    assert "no_such_file.pt" in capsys.readouterr().err


def test_fields_are_identifiers_of_their_own() -> None:
    """What two names become is not the same, and a name that is an identifier keeps it."""
    names = ["match", "match_", "a-b", "a_b", "_", "device", "mapper", "1x1", "e\u0301", "\U0001f600"]
    source = skeleton(holder(**{name: nn.Linear(2, 2) for name in names}))
    words = ["match__", "match_", "a_b_", "a_b", "__", "device_", "mapper_", "_1x1", "\u00e9", "_"]
    words[-1] = "___"
    assert [
        line.split(":")[0][8:] for line in source.splitlines() if line.startswith("    pub ") and "fn" not in line
    ] == words
    assert r'.with_remap_pattern(r"^()a\-b(\.|$)", "${1}a_b_${2}")' in source


def test_parameters_are_identifiers() -> None:
    source = skeleton(holder(a=holder(**{"1x1": nn.Linear(2, 2)}), b=holder(**{"1x1": nn.Linear(3, 2)})))
    assert "pub fn init(_1x1_input: usize, device" in source


def test_a_signature_of_several_lines_is_one_comment() -> None:
    class Masked(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Any, mask: Any = torch.zeros(2, 2)) -> Any:  # noqa: B008
            raise NotImplementedError

    source = skeleton(Masked())
    assert [line.strip()[:2] for line in source.splitlines() if "tensor([" in line or "]])" in line] == ["//"]


def test_a_module_without_counterpart_is_refused_with_what_helps_here() -> None:
    with pytest.raises(ModelError, match="proj_size") as caught:
        skeleton(holder(lstm=nn.LSTM(6, 5, proj_size=3)))
    assert caught.value.hint == "replace this module in the PyTorch model, or declare the model by hand"
