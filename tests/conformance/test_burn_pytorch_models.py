"""What Burn's own tests ask of PyTorch's files in models and of the pickles in them: layers, names, odd pickles."""

from __future__ import annotations

import io
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import DType, PytorchReader, PytorchStore, nn
from burnstore.errors import CorruptError, FormatError, MissingTensorsError, TruncatedError
from fuzz import torch_bytes as tb

torch = pytest.importorskip("torch")


def saved(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def array(tensor: Any) -> Any:
    return tensor.detach().numpy()


# --- layers -----------------------------------------------------------------------------------------------------------


class Two(nn.Module):
    """Two layers, as the original's nets have them; the second is without bias."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second


LAYERS: dict[str, tuple[Any, Any, Any, Any]] = {
    "Linear": (
        lambda: torch.nn.Linear(2, 3),
        lambda: torch.nn.Linear(3, 4, bias=False),
        lambda: nn.Linear(2, 3),
        lambda: nn.Linear(3, 4, bias=False),
    ),
    "Conv1d": (
        lambda: torch.nn.Conv1d(2, 2, 2),
        lambda: torch.nn.Conv1d(2, 2, 2, bias=False),
        lambda: nn.Conv1d(2, 2, 2),
        lambda: nn.Conv1d(2, 2, 2, bias=False),
    ),
    "Conv2d": (
        lambda: torch.nn.Conv2d(2, 2, (2, 2)),
        lambda: torch.nn.Conv2d(2, 2, (2, 2), bias=False),
        lambda: nn.Conv2d([2, 2], [2, 2]),
        lambda: nn.Conv2d([2, 2], [2, 2], bias=False),
    ),
    "ConvTranspose1d": (
        lambda: torch.nn.ConvTranspose1d(2, 3, 2),
        lambda: torch.nn.ConvTranspose1d(3, 2, 2, bias=False),
        lambda: nn.ConvTranspose1d([2, 3], 2),
        lambda: nn.ConvTranspose1d([3, 2], 2, bias=False),
    ),
    "ConvTranspose2d": (
        lambda: torch.nn.ConvTranspose2d(2, 3, (2, 2)),
        lambda: torch.nn.ConvTranspose2d(3, 2, (2, 2), bias=False),
        lambda: nn.ConvTranspose2d([2, 3], [2, 2]),
        lambda: nn.ConvTranspose2d([3, 2], [2, 2], bias=False),
    ),
    "Embedding": (
        lambda: torch.nn.Embedding(10, 3),
        lambda: torch.nn.Embedding(4, 4),
        lambda: nn.Embedding(10, 3),
        lambda: nn.Embedding(4, 4),
    ),
    "LayerNorm": (
        lambda: torch.nn.LayerNorm(2),
        lambda: torch.nn.LayerNorm(3),
        lambda: nn.LayerNorm(2),
        lambda: nn.LayerNorm(3),
    ),
    "GroupNorm": (
        lambda: torch.nn.GroupNorm(2, 6),
        lambda: torch.nn.GroupNorm(3, 6),
        lambda: nn.GroupNorm(2, 6),
        lambda: nn.GroupNorm(3, 6),
    ),
}
NORMS = {"weight": "gamma", "bias": "beta"}


@pytest.mark.parametrize("half", [False, True], ids=["full", "half"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_gets_the_weights_of_pytorch(kind: str, half: bool) -> None:
    torch.manual_seed(1)
    torch_first, torch_second, first, second = (make() for make in LAYERS[kind])
    module = torch.nn.ModuleDict({"first": torch_first, "second": torch_second})
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    module = module.half() if half else module
    model = Two(first, second)
    result = PytorchStore.from_bytes(saved(module.state_dict())).load(model)
    assert len(result.applied) == len(module.state_dict())
    for name, tensor in module.state_dict().items():
        layer, _, parameter = name.partition(".")
        loaded = getattr(getattr(model, layer), NORMS[parameter] if kind.endswith("Norm") else parameter)
        expected = array(tensor).T if kind == "Linear" and parameter == "weight" else array(tensor)
        assert loaded.value.dtype == expected.dtype and np.array_equal(loaded.value, expected), name


def test_batch_norm_gets_its_parameters_and_running_statistics() -> None:
    norm = torch.nn.BatchNorm2d(3)
    norm(torch.randn(4, 3, 2, 2))
    model = nn.BatchNorm(3)
    result = PytorchStore.from_bytes(saved(norm.state_dict())).load(model)
    assert sorted(result.applied) == ["beta", "gamma", "running_mean", "running_var"] and result.unused == []
    assert np.array_equal(model.running_mean.value, array(norm.running_mean))
    assert np.array_equal(model.gamma.value, array(norm.weight))


class Buffers(nn.Module):
    def __init__(self) -> None:
        self.flags = nn.Param([3], dtype=DType.Bool)
        self.numbers = nn.Param([3], dtype=DType.I64)
        self.buffer = nn.Param([3, 3])


@pytest.mark.parametrize("half", [False, True], ids=["full", "half"])
def test_buffers_keep_their_kind(half: bool) -> None:
    buffer = torch.ones(3, 3).half() if half else torch.ones(3, 3)
    model = Buffers()
    state = {"flags": torch.tensor([True, False, True]), "numbers": torch.tensor([1, 2, 3]), "buffer": buffer}
    PytorchStore.from_bytes(saved(state)).load(model)
    assert model.flags.value.tolist() == [True, False, True] and model.flags.value.dtype == np.bool_
    assert model.numbers.value.tolist() == [1, 2, 3] and model.numbers.value.dtype == np.int64
    assert model.buffer.value.tolist() == [[1, 1, 1]] * 3


# --- whole nets -------------------------------------------------------------------------------------------------------


class ConvBlock(nn.Module):
    def __init__(self) -> None:
        self.conv = nn.Conv2d([2, 2], [3, 3], bias=False)
        self.norm = nn.BatchNorm(2)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        self.conv_blocks = [ConvBlock(), ConvBlock()]
        self.norm1 = nn.BatchNorm(2)
        self.fc1 = nn.Linear(8, 3)


class TorchBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 2, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(2)


class TorchConvNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_blocks = torch.nn.Sequential(TorchBlock(), TorchBlock())
        self.norm1 = torch.nn.BatchNorm2d(2)
        self.fc1 = torch.nn.Linear(8, 3)


@pytest.mark.parametrize("half", [False, True], ids=["full", "half"])
def test_a_net_of_blocks_is_loaded_strictly(half: bool) -> None:
    module = TorchConvNet().half() if half else TorchConvNet()
    model = ConvNet()
    result = PytorchStore.from_bytes(saved(module.state_dict())).load(model)
    assert result.is_success() and result.missing == result.unused == []
    assert np.array_equal(model.conv_blocks[1].conv.weight.value, array(module.conv_blocks[1].conv.weight))
    assert np.array_equal(model.fc1.weight.value, array(module.fc1.weight).T)


class Part(nn.Module):
    def __init__(self) -> None:
        self.conv1 = ConvBlock()
        self.note = "kept"


def test_a_part_of_a_net_is_loaded_by_renaming_and_other_fields_stay() -> None:
    module = TorchConvNet()
    store = PytorchStore.from_bytes(saved(module.state_dict())).with_key_remapping(r"conv_blocks\.0\.(.*)", "conv1.$1")
    model = Part()
    result = store.allow_partial(True).load(model)
    assert len(result.applied) == 5 and result.missing == [] and len(result.unused) > 0
    assert np.array_equal(model.conv1.conv.weight.value, array(module.conv_blocks[0].conv.weight))
    assert model.note == "kept"


class Net(nn.Module):
    def __init__(self) -> None:
        self.conv1 = nn.Conv2d([2, 2], [2, 2])
        self.conv2 = nn.Conv2d([2, 2], [2, 2], bias=False)


CONVS = {
    "conv1.weight": torch.ones(2, 2, 2, 2),
    "conv1.bias": torch.ones(2),
    "conv2.weight": torch.full((2, 2, 2, 2), 2.0),
}


def test_keys_are_remapped_as_in_the_original() -> None:
    data = saved({f"conv.{name}": tensor for name, tensor in CONVS.items()})
    assert len(PytorchStore.from_bytes(data).with_key_remapping(r"conv\.(.*)", "$1").load(Net()).applied) == 3


class Wrapped(nn.Module):
    def __init__(self) -> None:
        self.conv = nn.Conv2d([2, 2], [1, 1], bias=False)
        self.bn = nn.BatchNorm(2)


class Blocks(nn.Module):
    def __init__(self) -> None:
        self.blocks = [Wrapped(), Wrapped()]


class Chained(nn.Module):
    def __init__(self) -> None:
        self.layer = Blocks()


def test_a_chain_of_remappings_is_needed_whole() -> None:
    state = {}
    for at in range(2):
        state[f"layer.{at}.block.0.weight"] = torch.full((2, 2, 1, 1), float(at))
        for name in ("weight", "bias", "running_mean", "running_var"):
            state[f"layer.{at}.block.1.{name}"] = torch.ones(2)
    rules = [(r"block\.0", "conv"), (r"block\.1", "bn"), (r"layer\.([0-9])", "layer.blocks.$1")]
    store = PytorchStore.from_bytes(saved(state))
    for rule in rules[:2]:
        store.with_key_remapping(*rule)
    with pytest.raises(MissingTensorsError):
        store.load(Chained())
    model = Chained()
    store.with_key_remapping(*rules[2]).load(model)
    assert model.layer.blocks[1].conv.weight.value.tolist() == [[[[1]], [[1]]]] * 2


def test_a_missing_field_is_named() -> None:
    with pytest.raises(MissingTensorsError, match=r"conv2\.weight"):
        PytorchStore.from_bytes(saved({name: CONVS[name] for name in ("conv1.weight", "conv1.bias")})).load(Net())


def test_the_top_level_key_decides() -> None:
    data = saved({"my_state_dict": CONVS})
    with pytest.raises(MissingTensorsError):
        PytorchStore.from_bytes(data).load(Net())
    assert PytorchStore.from_bytes(data).with_top_level_key("my_state_dict").load(Net()).is_success()


class Five(nn.Module):
    def __init__(self) -> None:
        self.fc = [nn.Conv2d([2, 2], [1, 1], bias=False) for _ in range(5)]


def test_five_layers_with_gaps_between_them_fill_a_list() -> None:
    state = {f"fc.{at}.weight": torch.full((2, 2, 1, 1), float(at)) for at in (0, 2, 4, 6, 8)}
    model = Five()
    assert PytorchStore.from_bytes(saved(state)).load(model).is_success()
    assert [float(layer.weight.value[0, 0, 0, 0]) for layer in model.fc] == [0, 2, 4, 6, 8]


def test_a_weight_that_is_stored_transposed_is_loaded_right() -> None:
    stored = torch.arange(12.0).reshape(4, 3)
    model = nn.Linear(4, 3, bias=False)
    PytorchStore.from_bytes(saved({"out": stored.t()})).with_key_remapping("^out$", "weight").load(model)
    assert np.array_equal(model.weight.value, array(stored))


# --- odd pickles ------------------------------------------------------------------------------------------------------


def test_a_class_named_by_two_texts_is_known() -> None:
    ordered = b"\x80\x04\x8c\x0bcollections\x8c\x0bOrderedDict\x93)R\x8c\x01aK\x01s."
    assert PytorchReader.read_pickle_data(ordered) == {"a": 1}


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_an_integer_beyond_64_bits_stands_beside_the_weights(protocol: int) -> None:
    data = pickle.dumps({"big": 2**64, "low": -(2**63) - 1, "w": torch.ones(2)}, protocol)
    assert PytorchReader.from_bytes(data).tensors()["w"].numpy().tolist() == [1, 1]
    found = PytorchReader.read_pickle_data(data)
    assert found["big"] == 2**64 and found["low"] == -(2**63) - 1


def test_a_length_that_lies_allocates_nothing() -> None:
    with pytest.raises(TruncatedError):
        PytorchReader.read_pickle_data(b"\x80\x02X\xff\xff\xff\xffab")


def test_a_large_text_that_is_fetched_often_is_one_text() -> None:
    text = "x" * (2 << 20)
    begun = time.process_time()
    found = PytorchReader.read_pickle_data(pickle.dumps({"texts": [text] * 1000}, 2))
    assert time.process_time() - begun < 5
    assert len(found["texts"]) == 1000 and all(each is found["texts"][0] for each in found["texts"])


def test_a_module_that_is_shared_stands_under_both_names() -> None:
    shared = torch.nn.Linear(2, 2)
    reader = PytorchReader.from_bytes(saved(torch.nn.ModuleDict({"a": shared, "b": shared})))
    assert reader.keys() == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert reader.tensors()["a.weight"].to_bytes() == reader.tensors()["b.weight"].to_bytes()


@pytest.mark.parametrize("strides", [tb.tuple_of(tb.text("1")), tb.tuple_of(b"G" + b"\0" * 8), tb.ints(-1)])
def test_strides_are_integers_that_are_not_negative(strides: bytes) -> None:
    storage = tb.storage(tb.text("0"), 6)
    tensor = tb.call(tb.V2, storage, tb.integer(0), tb.ints(2), strides, b"\x89", tb.HOOKS)
    data = tb.torch_zip(tb.pickled(tb.dict_of((tb.text("t"), tensor))), {"0": bytes(24)})
    with pytest.raises(CorruptError) as caught:
        PytorchReader.from_bytes(data)
    assert caught.value.rule == "PT-21"


@pytest.mark.parametrize(
    ("size", "stride", "offset", "expected"),
    [((2, 3), (3, 1), 5, [[5, 6, 7], [8, 9, 10]]), ((3, 2), (1, 3), 5, [[5, 8], [6, 9], [7, 10]]), ((), (), 5, 5)],
    ids=["contiguous", "permuted", "scalar"],
)
def test_the_oldest_call_of_a_tensor_is_read(size: Any, stride: Any, offset: int, expected: Any) -> None:
    storage = tb.storage(tb.text("0"), 12)
    oldest = tb.name("torch._utils", "_rebuild_tensor")
    tensor = tb.call(oldest, storage, tb.integer(offset), tb.ints(*size), tb.ints(*stride))
    data = tb.torch_zip(tb.pickled(tb.dict_of((tb.text("t"), tensor))), {"0": np.arange(12, dtype="<f4").tobytes()})
    assert PytorchReader.from_bytes(data).tensors()["t"].numpy().tolist() == expected


def test_a_key_that_holds_no_dict_is_named_with_what_it_holds() -> None:
    with pytest.raises(FormatError, match="'epoch' does not hold a dictionary but a int"):
        PytorchReader.from_bytes(saved({"epoch": 3, "w": torch.ones(1)}), top_level_key="epoch")
    with pytest.raises(FormatError, match="a dictionary is expected at the root"):
        PytorchReader.from_bytes(saved(42))


def test_tensors_in_attributes_of_a_tensor_have_names_below_its_own() -> None:
    storage = tb.storage(tb.text("0"), 6)
    view = tb.tuple_of(storage, tb.integer(0), tb.ints(2), tb.ints(1), b"\x89", tb.HOOKS)
    attributes = tb.dict_of((tb.text("extra"), tb.tensor(storage, (3,))))
    tagged = tb.call(
        tb.name("torch._tensor", "_rebuild_from_type_v2"), tb.V2, tb.name("my", "Tagged"), view, attributes
    )
    data = tb.torch_zip(tb.pickled(tb.dict_of((tb.text("t"), tagged))), {"0": np.arange(6, dtype="<f4").tobytes()})
    tensors = PytorchReader.from_bytes(data).tensors()
    assert list(tensors) == ["t", "t.extra"] and tensors["t"].numpy().tolist() == [0, 1]


def test_a_protocol_4_file_is_read(tmp_path: Path) -> None:
    torch.save({"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}, tmp_path / "p.pt", pickle_protocol=4)
    with bs.open(tmp_path / "p.pt") as file:
        assert file["weight"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]] and file["bias"].numpy().tolist() == [1, 1]
