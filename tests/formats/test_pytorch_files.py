"""Every kind of tensor in every container of torch is read as torch reads it, bit for bit."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import burnstore as bs
from burnstore import DType
from fuzz import torch_bytes as tb

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # torch's own

DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32"),
    *("uint64", "bool", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz"),
]
SAVERS: dict[str, dict[str, Any]] = {
    "zip": {},
    "zip, protocol 3": {"pickle_protocol": 3},
    "zip, protocol 4": {"pickle_protocol": 4},
    "zip, protocol 5": {"pickle_protocol": 5},
    "legacy": {"_use_new_zipfile_serialization": False},
    "legacy, protocol 4": {"_use_new_zipfile_serialization": False, "pickle_protocol": 4},
}


def saved(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def bits(tensor: torch.Tensor) -> bytes:
    """The values of a tensor as a file would hold them."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def random_bits(dtype: str, *shape: int) -> torch.Tensor:
    kind = getattr(torch, dtype)
    size = torch.empty(0, dtype=kind).element_size()
    raw = np.random.default_rng(len(dtype)).integers(
        0, 2 if dtype == "bool" else 256, size * int(np.prod(shape)), np.uint8
    )
    return torch.from_numpy(raw).view(kind).reshape(shape)


def assert_same(data: bytes, expected: dict[str, torch.Tensor], **options: Any) -> None:
    for zero_copy in (False, True):
        with bs.open(data, zero_copy=zero_copy, **options) as f:
            assert list(f) == list(expected)
            for name, tensor in expected.items():
                assert f[name].to_bytes() == bits(tensor), name
                assert f[name].shape == tuple(tensor.shape)
                assert b"".join(map(bytes, f[name].chunks())) == bits(tensor)
                assert f[name].dtype.torch_name == str(tensor.dtype).removeprefix("torch.")
            arrays = f.numpy([name for name in f if f[name].dtype is not DType.C32])
            for name, array in arrays.items():
                assert array.tobytes() == bits(expected[name]), name


def views() -> dict[str, torch.Tensor]:
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "base": base,
        "transposed": base.t(),
        "offset": base[2:],
        "step": base[1:3, ::2],
        "expanded": torch.tensor([1.5]).expand(3, 4),
        "expanded rows": torch.arange(3.0).expand(4, 3),
        "scalar": torch.tensor(3.5),
        "scalar of a view": base[3, 5],
        "empty": torch.zeros(3, 0, 2),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
        "overlapping": torch.arange(10.0).as_strided((4, 3), (2, 1)),
        "one row": torch.arange(12.0).as_strided((1, 3), (7, 1)),
        "empty beyond the end": torch.empty(0),
    }


@pytest.mark.parametrize("saver", SAVERS)
def test_every_layout_is_read_in_logical_order(saver: str) -> None:
    expected = views()
    assert_same(saved(expected, **SAVERS[saver]), expected)


@pytest.mark.parametrize("saver", SAVERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_keeps_every_bit(dtype: str, saver: str) -> None:
    tensor = random_bits(dtype, 5, 6)
    expected = {
        "plain": tensor,
        "transposed": random_bits(dtype, 4, 3).t(),
        "scalar": random_bits(dtype),
        "part": tensor[1:4, 2:],
    }
    assert_same(saved(expected, **SAVERS[saver]), expected)


@pytest.mark.parametrize("protocol", range(6))
def test_bare_pickles_are_read(protocol: int) -> None:
    """PT-14."""
    expected = {**views(), **{dtype: random_bits(dtype, 2, 3) for dtype in DTYPES}}
    assert_same(pickle.dumps(expected, protocol), expected)


@pytest.mark.parametrize("saver", SAVERS)
def test_lazy_conjugation_and_negation_are_applied(saver: str) -> None:
    """What Burn's reader gets silently wrong."""
    for dtype in (torch.complex64, torch.complex128):
        expected = {
            "conjugated": torch.randn(3, 4, dtype=dtype).conj(),
            "negated": torch.randn(3, 4, dtype=dtype).conj().imag,
            "both": torch.randn(3, 4, dtype=dtype).conj().t(),
        }
        assert expected["negated"].is_neg()
        assert_same(saved(expected, **SAVERS[saver]), expected)


@pytest.mark.parametrize("saver", SAVERS)
def test_parameters_and_buffers_are_tensors(saver: str) -> None:
    with_state = torch.nn.Parameter(torch.randn(3))
    with_state.note = "kept by torch, no part of the values"
    expected = {
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "frozen": torch.nn.Parameter(torch.randn(2), requires_grad=False),
        "with state": with_state,
        "buffer": torch.nn.Buffer(torch.randn(4)),
    }
    assert_same(saved(expected, **SAVERS[saver]), expected)


def test_4_bit_floats_count_their_values() -> None:
    raw = torch.arange(8, dtype=torch.uint8)
    with bs.open(saved({"t": raw.view(torch.float4_e2m1fn_x2).reshape(2, 4)})) as f:
        assert (f["t"].dtype, f["t"].shape, f["t"].to_bytes()) == (DType.F4, (2, 8), bytes(range(8)))


def test_bools_of_other_bytes_are_true() -> None:
    data = tb.torch_zip(tb.state_dict({"b": ("Bool", (4,))}), {"0": b"\x00\x01\x02\xff"})
    with bs.open(data) as f:
        assert f["b"].numpy().tolist() == f.numpy()["b"].tolist() == [False, True, True, True]
        assert f["b"].to_bytes() == b"\0\1\1\1"


@pytest.mark.parametrize("dtype", DTYPES)
def test_big_endian_files_are_swapped_element_by_element(dtype: str) -> None:
    """PT-08: the halves of complex numbers one by one, as torch does for those it knows."""
    tensor = random_bits(dtype, 3, 4)
    plain = bits(tensor)
    width = tensor.element_size() // (2 if tensor.is_complex() else 1)
    swapped = np.frombuffer(plain, np.uint8).reshape(-1, width)[:, ::-1].tobytes()
    data = saved({"t": tensor, "transposed": tensor.t()}).replace(b"little", b"bigbig")
    members = _members(data)
    members["byteorder"], members["data/0"] = b"big", swapped
    data = tb.zipped([tb.Member(f"archive/{name}", raw) for name, raw in members.items()])
    with bs.open(data) as f:
        assert f["t"].to_bytes() == plain
        assert f["transposed"].to_bytes() == bits(tensor.t())
        if dtype != "complex32":  # NumPy has no such dtype
            assert f["t"][1:2].tobytes() == bits(tensor[1:2])


def _members(data: bytes) -> dict[str, bytes]:
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data.replace(b"bigbig", b"little"))) as archive:
        return {name.removeprefix("archive/"): archive.read(name) for name in archive.namelist()}


def test_a_window_of_a_view_reads_only_what_it_reaches(tmp_path: Path) -> None:
    from burnstore.checkpoint import Checkpoint
    from burnstore.limits import Limits
    from burnstore.testing import CountingSource

    rows = torch.arange(1000 * 64.0).reshape(1000, 64)
    source = CountingSource(saved({"rows": rows[:, ::2], "bools": torch.ones(1000, 64, dtype=torch.bool)}))
    f = Checkpoint(source, None, Limits(), {})
    source.forget()
    assert np.array_equal(f["rows"][500:502], rows[500:502, ::2].numpy())
    assert source.bytes_read <= 2 * 64 * 4
    source.forget()
    assert f["bools"][7].all() and source.bytes_read == 64
    f.close()


def test_tensors_on_one_storage_are_reported() -> None:
    weight = torch.randn(4, 4)
    data = saved({"embedding": weight, "head": weight, "part": weight[1:], "alone": torch.randn(2)})
    with bs.open(data) as f:
        assert f.shares_with("embedding") == ("head", "part")
        assert f.shares_with("part") == ("embedding", "head")
        assert f.shares_with("alone") == ()
        arrays = f.numpy()
        arrays["embedding"][...] = 0
        assert not np.array_equal(arrays["head"], arrays["embedding"])
        with pytest.raises(bs.errors.TensorNotFoundError):
            f.shares_with("nothing")


@pytest.mark.parametrize("method", [0, 8], ids=["stored", "deflated"])
@pytest.mark.parametrize("root", ["archive/", "any name at all/", "größe/", ""])
def test_any_folder_and_either_method(method: int, root: str) -> None:
    """PT-05: the folder may have any name, or be left out."""
    data = tb.torch_zip(tb.state_dict({"a": ("Float", (2, 3)), "b": ("Long", ())}), STORED, method=method, root=root)
    with bs.open(data) as f:
        assert f["a"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert f["b"].numpy() == 7
        assert f["a"][1, 1:].tolist() == [4, 5]


STORED = {"0": np.arange(6, dtype="<f4").tobytes(), "1": np.array(7, "<i8").tobytes()}


def test_a_tar_is_read_as_torch_reads_it(tmp_path: Path) -> None:
    """PT-12, PT-13."""
    raw = np.arange(6, dtype="<f4").tobytes()
    entries = tb.dict_of(
        (tb.text("x"), tb.persistent("11")), (tb.text("y"), tb.persistent("12")), (tb.text("z"), tb.persistent("13"))
    )
    data = tb.tar(
        tb.pickled(entries),
        {"5": ("Float", raw, 4)},
        {"11": ("5", (2, 2), (3, 1), 1), "12": ("5", (3, 2), (1, 3), 0), "13": ("6", (2,), (1,), 1)},
        views=[(6, 5, 2, 4)],
    )
    path = tmp_path / "old.pth.tar"
    path.write_bytes(data)
    expected = torch.load(path, weights_only=False)
    with bs.open(path) as f:
        assert f.variant == "tar"
        for name, tensor in expected.items():
            assert f[name].to_bytes() == bits(tensor), name
        assert f["z"].numpy().tolist() == [3, 4]


def test_views_of_storages_in_old_streams_are_applied() -> None:
    """PT-19: view offset 4 plus tensor offset 1."""
    view = tb.tuple_of(tb.text("v"), tb.integer(4), tb.integer(6))
    stored = tb.storage(tb.text("0"), 10, more=view)
    data = tb.legacy(
        tb.pickled(tb.dict_of((tb.text("t"), tb.tensor(stored, (3,), offset=1)))),
        {"0": np.arange(10, dtype="<f4").tobytes()},
    )
    with bs.open(data) as f:
        assert f["t"].numpy().tolist() == [5, 6, 7]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_the_magic_number_may_be_of_any_protocol(protocol: int) -> None:
    """PT-10."""
    value = tb.pickled(tb.dict_of((tb.text("t"), tb.tensor(tb.storage(tb.text("0"), 2, more=b"N"), (2,)))))
    data = tb.legacy(value, {"0": np.arange(2, dtype="<f4").tobytes()}, protocol=protocol)
    with bs.open(data) as f:
        assert f["t"].numpy().tolist() == [0, 1]


def test_a_little_endian_flag_of_false_is_ignored_as_torch_ignores_it() -> None:
    value = tb.pickled(tb.dict_of((tb.text("t"), tb.tensor(tb.storage(tb.text("0"), 2, more=b"N"), (2,)))))
    info = {"protocol_version": 1001, "little_endian": False, "type_sizes": {}}
    data = tb.legacy(value, {"0": np.arange(2, dtype="<f4").tobytes()}, sys_info=info)
    with bs.open(data) as f:
        assert f["t"].numpy().tolist() == torch.load(io.BytesIO(data), weights_only=False)["t"].tolist() == [0, 1]


def test_sparse_and_quantized_tensors_come_as_parts_or_dense() -> None:
    """PT-22."""
    values = {
        "per tensor": torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 3, torch.quint8),
        "per channel": torch.quantize_per_channel(
            torch.randn(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8
        ),
        "coo": torch.eye(3).to_sparse(),
        "hybrid": torch.eye(4).reshape(4, 2, 2).to_sparse(1),
        "uncoalesced": torch.sparse_coo_tensor([[0, 0, 1]], [1.0, 2.0, 3.0], (2,)),
        "csr": torch.randn(3, 5).to_sparse_csr(),
        "csc": torch.randn(3, 5).to_sparse_csc(),
        "bsr": torch.randn(4, 6).to_sparse_bsr((2, 3)),
        "bsc": torch.randn(4, 6).to_sparse_bsc((2, 3)),
    }
    data = saved(values)
    dense = {name: t.dequantize() if t.is_quantized else t.to_dense() for name, t in values.items()}
    assert_same(data, dense, dense=True)
    with bs.open(data) as f:
        assert list(f)[:3] == ["per tensor.int_repr", "per tensor.scale", "per tensor.zero_point"]
        assert f["per tensor.int_repr"].to_bytes() == bits(values["per tensor"].int_repr())
        assert f["per channel.scale"].numpy().tolist() == values["per channel"].q_per_channel_scales().tolist()
        assert f["per channel.axis"].numpy() == 0
        assert f["coo.indices"].to_bytes() == bits(values["coo"].indices())
        assert f["coo.size"].numpy().tolist() == [3, 3]
        assert f["csr.crow_indices"].to_bytes() == bits(values["csr"].crow_indices())


def test_nested_tensors_come_as_parts_and_meta_tensors_refuse_to_be_read() -> None:
    """PT-22."""
    data = saved(
        {
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "meta": torch.empty(2, 3, device="meta"),
        }
    )
    with bs.open(data) as f:
        assert list(f) == ["nested.buffer", "nested.sizes", "nested.strides", "nested.offsets", "meta"]
        assert f["nested.buffer"].shape == (5,)
        assert f["meta"].shape == (2, 3)
        for read in (f["meta"].numpy, f["meta"].to_bytes, lambda: f["meta"].numpy(copy=True), f.numpy):
            with pytest.raises(bs.errors.UnsupportedError, match="never saved"):
                read()


def test_numpy_arrays_are_tensors_too() -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(3, dtype=">i4"),
        "bool": np.array([True, False]),
    }
    for protocol in range(2, 6):
        for data in (pickle.dumps(arrays, protocol), saved(arrays, pickle_protocol=protocol)):
            with bs.open(data) as f:
                assert list(f) == list(arrays)
                assert all(np.array_equal(f[name].numpy(), array) for name, array in arrays.items())


@pytest.mark.parametrize("protocol", [2, 4])
def test_torchscript_archives_give_their_parameters_and_buffers(protocol: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    out = io.BytesIO()
    torch.jit.save(torch.jit.script(model), out)
    with bs.open(out.getvalue()) as f:
        assert f.variant == "TorchScript"
        assert sorted(f) == sorted(model.state_dict())
        assert all(f[name].to_bytes() == bits(tensor) for name, tensor in model.state_dict().items())


@pytest.mark.slow("starts PyTorch")
def test_exported_programs_give_their_weights() -> None:
    """PT-26."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).eval()
    out = io.BytesIO()
    torch.export.save(torch.export.export(model, (torch.randn(4, 2),)), out)
    assert_same(out.getvalue(), model.state_dict())


def test_other_archives_of_torch_say_what_they_are() -> None:
    """PT-06, PT-27."""
    package = tb.zipped([tb.Member("x/.data/extern_modules", b""), tb.Member("x/a/b.pkl", b"N.")])
    old_export = tb.zipped([tb.Member("serialized_exported_program.json", b"{}"), tb.Member("version", b"1")])
    nested = tb.zipped([tb.Member("x/model.pt", tb.torch_zip(tb.pickled(b"}"), {}))])
    for data, rule, words in (
        (package, "PT-27", "torch.package"),
        (old_export, "PT-06", "exported program"),
        (nested, "PT-06", "unpack it first"),
        (tb.zipped([tb.Member("x/readme.txt", b"")]), "PT-27", r"without data\.pkl"),
        (tb.zipped([tb.Member("x/model.json", b"")]), "PT-27", "TorchScript"),
        (b"\0\0\0\0PTMF" + bytes(100), "PT-27", "mobile"),
    ):
        with pytest.raises(bs.errors.UnsupportedError, match=words) as caught:
            bs.open(data, format="pytorch")
        assert caught.value.rule == rule


def test_forty_thousand_tensors_are_no_bomb() -> None:
    """Burn's reader refuses more than some 30,000."""
    count = 40_000
    one = torch.zeros(1)
    data = saved({f"layer.{number}.weight": one for number in range(count)})
    with bs.open(data) as f:
        assert len(f) == count
    with pytest.raises(bs.errors.LimitError) as caught:
        bs.open(data, limits=bs.Limits(tensors=1000))
    assert caught.value.rule == "PT-17"


def test_a_file_of_torch_is_converted_by_saving_what_was_opened(tmp_path: Path) -> None:
    data = saved(views())
    with bs.open(data) as f:
        bs.save(f, tmp_path / "x.bpk", metadata={})
        with bs.open(tmp_path / "x.bpk") as again:
            assert all(again[name].to_bytes() == f[name].to_bytes() for name in f)


def test_arrays_that_are_read_are_the_callers_own() -> None:
    """Also where the values come out of a deflated member, a view, or the pickle itself."""
    value = {"bool": torch.ones(3, dtype=torch.bool), "transposed": torch.ones(2, 3).t(), "array": np.arange(3.0)}
    members = _members(saved(value))
    deflated = tb.zipped([tb.Member(f"archive/{name}", raw, method=8) for name, raw in members.items()])
    for data in (saved(value), deflated):
        with bs.open(data) as f:
            for arrays in (f.numpy(), {name: t.numpy() for name, t in f.items()}):
                for array in arrays.values():
                    array[...] = 0
            assert f["bool"].numpy().all() and f["transposed"].numpy().all() and f["array"].numpy()[2] == 2


def test_snapshots_of_every_kind_can_be_pickled() -> None:
    value = {
        "t": torch.arange(6.0).reshape(2, 3).t(),
        "bool": torch.ones(2, dtype=torch.bool),
        "s": torch.eye(2).to_sparse(),
    }
    members = _members(saved({**value, "array": np.arange(3)}))
    data = tb.zipped([tb.Member(f"archive/{name}", raw, method=8) for name, raw in members.items()])
    with bs.open(data, dense=True) as f:
        for name, snapshot in f.items():
            assert pickle.loads(pickle.dumps(snapshot)).to_bytes() == snapshot.to_bytes(), name


def test_a_cut_file_says_that_it_can_be_salvaged() -> None:
    with pytest.raises(bs.errors.TruncatedError) as caught:
        bs.open(saved({"t": torch.ones(100)})[:-30])
    assert "salvage=True" in str(caught.value)


def test_a_long_text_is_refused_unless_the_caller_allows_it() -> None:
    """PT-17: bare pickles of protocol 2 spell bytes as text."""
    data = pickle.dumps({"a": "x" * (17 << 20), "t": np.zeros(1)}, 2)
    with pytest.raises(bs.errors.LimitError) as caught:
        bs.open(data)
    assert caught.value.rule == "PT-17"
    with bs.open(data, limits=bs.Limits(header_bytes=1 << 30)) as f:
        assert list(f) == ["t"]
    with bs.open(data, limits=bs.Limits.trusted()) as f:
        assert list(f) == ["t"]
    with pytest.raises(bs.errors.LimitError):
        bs.open(data, limits=bs.Limits(header_bytes=1000))
