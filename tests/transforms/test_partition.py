"""Partitions: the parts of all ranks make the whole, bit for bit, and no rank reads what it does not need."""

from __future__ import annotations

import io
import math
import pickle
import re
import tempfile
import tracemalloc
from collections.abc import Callable
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import burnstore as bs
from burnstore import DType, Partition, TensorData, TensorSnapshot
from burnstore.checkpoint import Checkpoint
from burnstore.errors import DTypeError, ModelError
from burnstore.tensor.quantization import QuantBlock, QuantScheme, QuantStore
from burnstore.tensor.snapshot import read_all
from burnstore.testing import CountingSource
from burnstore.transforms.axes import joined, sliced, transposed
from burnstore.transforms.precision import cast
from burnstore.transforms.quantized_slices import sliced_codes

ROWS, COLUMNS = Partition({".*": "rows"}), Partition({".*": "columns"})


def bits(snapshot: TensorSnapshot) -> Any:
    """The elements as unsigned integers (or raw bytes), whatever they are."""
    width = snapshot.dtype.bits // 8
    return np.frombuffer(snapshot.to_bytes(), f"<u{width}" if width <= 8 else f"V{width}").reshape(snapshot.shape)


def counted(data: bytes) -> tuple[Checkpoint, CountingSource]:
    source = CountingSource(data)
    opened = Checkpoint(source, None, bs.Limits(), {})
    source.forget()
    return opened, source


def random_data(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> TensorData:
    raw = np.random.default_rng(seed).integers(0, 2 if dtype.is_bool else 256, dtype.nbytes(shape), np.uint8)
    if dtype.bits == 32 and dtype.is_bool:
        raw[np.arange(raw.size) % 4 > 0] = 0
    return TensorData.from_bytes(raw.tobytes(), dtype, shape)


# --- the parts make the whole -----------------------------------------------------------------------------------------

PLAIN = ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "Bool"]


@contextmanager
def as_burnpack(data: TensorData) -> Any:
    with bs.open(bs.serialize([TensorSnapshot.from_data("w", data)], format="burnpack")) as f:
        yield f["w"]


@contextmanager
def as_safetensors(data: TensorData) -> Any:
    with bs.open(bs.serialize([TensorSnapshot.from_data("w", data)], format="safetensors")) as f:
        yield f["w"]


@contextmanager
def as_mapped_file(data: TensorData) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        bs.save([TensorSnapshot.from_data("w", data)], f"{folder}/m.safetensors")
        with bs.open(f"{folder}/m.safetensors", zero_copy=True) as f:
            yield f["w"]


@contextmanager
def as_shards(data: TensorData) -> Any:
    before = TensorSnapshot.from_numpy("a", np.zeros(64, np.uint8))
    with tempfile.TemporaryDirectory() as folder:
        both = [before, TensorSnapshot.from_data("w", data)]
        bs.save(both, f"{folder}/model.safetensors", max_shard_size=max(data.nbytes, 64))
        with bs.open(folder) as f:
            yield f["w"]


@contextmanager
def as_pytorch(data: TensorData) -> Any:
    torch = pytest.importorskip("torch")
    packed = io.BytesIO()
    torch.save({"w": TensorSnapshot.from_data("w", data).torch()}, packed)
    with bs.open(packed.getvalue()) as f:
        yield f["w"]


@contextmanager
def as_strided_pytorch(data: TensorData) -> Any:
    torch = pytest.importorskip("torch")
    packed = io.BytesIO()
    whole = TensorSnapshot.from_data("w", data).torch()
    turned = whole.transpose(0, -1).contiguous().transpose(0, -1) if whole.dim() else whole
    torch.save({"w": turned}, packed)
    with bs.open(packed.getvalue()) as f:
        yield f["w"]


@contextmanager
def as_torch_tensor(data: TensorData) -> Any:
    pytest.importorskip("torch")
    yield TensorSnapshot.from_torch("w", TensorSnapshot.from_data("w", data).torch())


@contextmanager
def as_array(data: TensorData) -> Any:
    yield TensorSnapshot.from_numpy("w", np.asfortranarray(data.numpy()))


@contextmanager
def as_closure(data: TensorData) -> Any:
    yield TensorSnapshot.from_closure("w", data.dtype, data.shape, lambda: data)


HOLDERS: list[Callable[[TensorData], Any]] = [
    *(as_burnpack, as_safetensors, as_mapped_file, as_shards, as_pytorch, as_strided_pytorch),
    *(as_torch_tensor, as_array, as_closure),
]

shapes = st.lists(st.integers(0, 7), min_size=1, max_size=4).map(tuple)


@pytest.mark.slow("a slow reference")
@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.__name__)
@given(dtype=st.sampled_from(PLAIN), shape=shapes, world=st.integers(1, 8), data=st.data())
def test_the_parts_of_all_ranks_are_the_whole(
    holder: Any, dtype: str, shape: tuple[int, ...], world: int, data: Any
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    whole = random_data(DType.parse(dtype), shape)
    rules = Partition({"^w$": axis}, uneven=True)
    with holder(whole) as snapshot:
        parts = [rules.slice([snapshot], rank=rank, world=world)[0] for rank in range(world)]
        assert [part.dtype.name for part in parts] == [dtype] * world
        extents = [part.shape[axis] for part in parts]
        assert max(extents) - min(extents) <= 1 and extents == sorted(extents, reverse=True)
        expected = np.array_split(bits(TensorSnapshot.from_data("w", whole)), world, axis)
        for part, wanted in zip(parts, expected, strict=True):
            assert part.shape == wanted.shape and part.nbytes == wanted.nbytes
            assert part.to_bytes() == wanted.tobytes()
            assert b"".join(bytes(chunk) for chunk in part.chunks()) == wanted.tobytes()
            assert bytes(read_all([part])[0]) == wanted.tobytes()
            buffer = np.empty(part.nbytes, np.uint8)
            part._data.fill(buffer)
            assert buffer.tobytes() == wanted.tobytes()
            if part.nbytes:
                low = data.draw(st.integers(0, part.nbytes))
                high = data.draw(st.integers(low, part.nbytes))
                assert bytes(part._data.window(low, high)) == wanted.tobytes()[low:high]
                assert part._data.owned(low, high).tobytes() == wanted.tobytes()[low:high]


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("holder", [as_safetensors, as_mapped_file, as_array, as_closure], ids=lambda h: h.__name__)
@given(
    dtype=st.sampled_from(["F32", "BF16", "U8", "F64"]),
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    world=st.integers(1, 8),
    axis=st.integers(0, 1),
)
def test_a_part_of_a_transposed_matrix_is_the_transposed_part(
    holder: Any, dtype: str, rows: int, columns: int, world: int, axis: int
) -> None:
    whole = random_data(DType.parse(dtype), (rows, columns))
    with holder(whole) as snapshot:
        expected = bits(snapshot).T
        turned = transposed(snapshot)
        for rank in range(world):
            [part] = Partition({"": axis}, uneven=True).slice([turned], rank=rank, world=world)
            assert (bits(part) == np.array_split(expected, world, axis)[rank]).all()
            back = transposed(part)
            assert (bits(back) == np.array_split(expected, world, axis)[rank].T).all()


@given(
    heights=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    columns=st.integers(1, 6),
    world=st.integers(1, 8),
    axis=st.integers(0, 1),
    turned=st.booleans(),
)
def test_a_part_of_joined_tensors_is_the_part_of_what_they_make(
    heights: list[int], columns: int, world: int, axis: int, turned: bool
) -> None:
    arrays = [np.random.default_rng(rows).integers(0, 99, (rows, columns), np.int16) for rows in heights]
    stored = {str(at): np.ascontiguousarray(array.T) if turned else array for at, array in enumerate(arrays)}
    with bs.open(bs.serialize(stored, format="safetensors")) as f:
        parts = [f[name] for name in stored]
        whole = joined([transposed(part) if turned else part for part in parts])
        for rank in range(world):
            [part] = Partition({"": axis}, uneven=True).slice([whole], rank=rank, world=world)
            assert (part.numpy() == np.array_split(np.concatenate(arrays), world, axis)[rank]).all()


@given(shape=st.tuples(*[st.integers(1, 6)] * 3), data=st.data())
def test_a_part_of_a_part_is_right_along_any_two_axes(shape: tuple[int, ...], data: Any) -> None:
    array = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    axes = [data.draw(st.integers(0, 2)) for _ in range(3)]
    with bs.open(bs.serialize({"w": array}, format="safetensors")) as f:
        part, expected = f["w"], array
        for axis in axes:
            low = data.draw(st.integers(0, expected.shape[axis]))
            high = data.draw(st.integers(low, expected.shape[axis]))
            part = sliced(part, axis, low, high)
            expected = expected[(slice(None),) * axis + (slice(low, high),)]
        assert part.shape == expected.shape and (part.numpy() == expected).all()


def test_several_matrices_in_one_tensor_are_divided_each_by_itself() -> None:
    q, k, v = (np.arange(8).reshape(4, 2) + 100 * at for at in range(3))
    whole = [TensorSnapshot.from_numpy("qkv.weight", np.concatenate([q, k, v]))]
    for rank in range(2):
        [part] = Partition({"qkv": ("rows", 3)}).slice(whole, rank=rank, world=2)
        mine = slice(2 * rank, 2 * rank + 2)
        assert (part.numpy() == np.concatenate([q[mine], k[mine], v[mine]])).all()
    fewer = [TensorSnapshot.from_numpy("qkv.weight", np.concatenate([q, k[:2], v[:2]]))]
    [part] = Partition({"qkv": ("rows", (4, 2, 2))}).slice(fewer, rank=1, world=2)
    assert (part.numpy() == np.concatenate([q[2:], k[1:2], v[1:2]])).all()


# --- what is read -----------------------------------------------------------------------------------------------------


def read_by(source: CountingSource, rules: Partition, world: int, f: Checkpoint) -> list[int]:
    """How many bytes each rank reads."""
    found = []
    for rank in range(world):
        source.forget()
        for part in rules.slice(f.values(), rank=rank, world=world):
            part.numpy()
        found.append(source.bytes_read)
    return found


@pytest.mark.parametrize("format_name", ["burnpack", "safetensors"])
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_ranks_that_divide_rows_read_each_byte_once(format_name: str, world: int) -> None:
    tensors = {name: np.random.default_rng(0).random((64, 48), np.float32) for name in "abc"}
    f, source = counted(bs.serialize(tensors, format=format_name))
    assert read_by(source, ROWS, world, f) == [f.nbytes // world] * world
    assert len(source.ranges) == 3  # one range for each tensor
    assert source.ranges != [] and all(length == 64 * 48 * 4 // world for _, length in source.ranges)


def test_nothing_is_read_before_it_is_asked_for() -> None:
    f, source = counted(bs.serialize({"w": np.zeros((8, 8), np.float32)}, format="safetensors"))
    for rules in (ROWS, COLUMNS, Partition({"": "replicate"})):
        rules.slice(f.values(), rank=1, world=2)
    assert source.ranges == []


def test_of_short_rows_all_is_read_once_in_large_ranges() -> None:
    array = np.random.default_rng(0).integers(0, 99, (4096, 1024), np.int16)  # rows of 2 KiB, 8 MiB
    f, source = counted(bs.serialize({"w": array}, format="safetensors"))
    for rank in range(4):
        source.forget()
        [part] = COLUMNS.slice(f.values(), rank=rank, world=4)
        assert (part.numpy() == array[:, 256 * rank : 256 * (rank + 1)]).all()
        assert array.nbytes - 8 * 2048 < source.bytes_read <= array.nbytes
        ranges = sorted(source.ranges)
        assert all(first + length <= start for (first, length), (start, _) in pairwise(ranges))
        assert all(length <= 1 << 20 for _, length in ranges) and len(ranges) <= 9  # no second whole copy


def test_of_long_rows_only_the_runs_are_read() -> None:
    array = np.random.default_rng(0).integers(0, 99, (6, 64 << 10), np.int16)  # rows of 128 KiB
    f, source = counted(bs.serialize({"w": array}, format="safetensors"))
    assert read_by(source, COLUMNS, 4, f) == [array.nbytes // 4] * 4
    assert len(source.ranges) == 6


def test_of_an_inner_axis_only_the_runs_are_read_where_they_are_long() -> None:
    experts = np.random.default_rng(0).integers(0, 99, (3, 64, 2048), np.int16)  # [experts, out, in]
    f, source = counted(bs.serialize({"w": experts}, format="safetensors"))
    assert read_by(source, COLUMNS, 8, f) == [experts.nbytes // 8] * 8
    [part] = COLUMNS.slice(f.values(), rank=3, world=8)
    assert (part.numpy() == experts[:, 24:32]).all()


def test_rows_of_what_is_stored_transposed_are_runs_of_the_file() -> None:
    array = np.random.default_rng(0).integers(0, 99, (8, 64 << 10), np.int16)
    f, source = counted(bs.serialize({"w": array}, format="safetensors"))
    turned = transposed(f["w"])
    source.forget()
    for rank in range(4):
        [part] = ROWS.slice([turned], rank=rank, world=4)
        assert (part.numpy() == array.T[rank * 16384 : (rank + 1) * 16384]).all()
    assert source.bytes_read == array.nbytes
    source.forget()
    for rank in range(4):  # and its columns rows of the file
        [part] = COLUMNS.slice([turned], rank=rank, world=4)
        assert (part.numpy() == array.T[:, 2 * rank : 2 * rank + 2]).all()
    assert source.bytes_read == array.nbytes and len(source.ranges) == 4


def test_a_transposed_part_of_short_rows_is_read_through_once() -> None:
    array = np.random.default_rng(0).integers(0, 99, (3000, 520), np.int16)
    f, source = counted(bs.serialize({"w": array}, format="safetensors"))
    for rank in range(4):
        source.forget()
        [part] = ROWS.slice([transposed(f["w"])], rank=rank, world=4)
        assert (part.numpy() == array.T[130 * rank : 130 * (rank + 1)]).all()
        assert source.bytes_read <= array.nbytes


def test_rows_of_joined_tensors_are_read_of_those_that_have_them() -> None:
    arrays = {str(at): np.full((4, 8), at, np.int32) for at in range(4)}
    f, source = counted(bs.serialize(arrays, format="safetensors"))
    [part] = ROWS.slice([joined([f[name] for name in arrays])], rank=1, world=4)
    assert part.numpy().tolist() == arrays["1"].tolist()
    assert source.bytes_read == 4 * 8 * 4


def test_of_what_is_cast_only_the_part_is_read_and_cast() -> None:
    array = np.random.default_rng(0).random((6, 64 << 10), np.float32)
    f, source = counted(bs.serialize({"w": array}, format="safetensors"))
    half = cast(f["w"], DType.F16)
    for rank in range(4):
        [part] = COLUMNS.slice([half], rank=rank, world=4)
        assert (part.numpy() == array[:, rank << 14 : (rank + 1) << 14].astype(np.float16)).all()
        [part] = ROWS.slice([transposed(half)], rank=rank, world=4)
        assert (part.numpy() == array.T[rank << 14 : (rank + 1) << 14].astype(np.float16)).all()
    assert source.bytes_read == 2 * array.nbytes


def test_a_part_is_saved_in_pieces_of_some_megabytes() -> None:
    array = np.random.default_rng(0).integers(0, 99, (9000, 1024), np.int16)
    f, _ = counted(bs.serialize({"w": array}, format="safetensors"))
    [part] = COLUMNS.slice(f.values(), rank=0, world=2)
    sizes = [len(chunk) for chunk in part.chunks()]
    assert len(sizes) > 1 and max(sizes) <= 8 << 20 and sum(sizes) == part.nbytes
    assert part.bytes_held <= 8 << 20


@pytest.mark.parametrize("turned", [False, True])
def test_no_rank_has_the_whole_tensor_in_memory(tmp_path: Path, turned: bool) -> None:
    array = np.random.default_rng(0).integers(0, 99, (8192, 8192), np.int16)
    bs.save({"w": array}, tmp_path / "m.safetensors")
    with bs.open(tmp_path / "m.safetensors") as f:
        whole = transposed(f["w"]) if turned else f["w"]
        [part] = Partition({"": 0 if turned else 1}).slice([whole], rank=3, world=8)
        tracemalloc.start()
        read = part.numpy()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    expected = array[:, 3072:4096]
    assert (read == (expected.T if turned else expected)).all()
    assert part.nbytes <= peak < part.nbytes + (40 << 20) < array.nbytes / 2


def test_a_file_that_is_cut_meanwhile_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    bs.save({"w": np.zeros((64, 64), np.float32)}, path)
    with bs.open(path) as f:
        [part] = COLUMNS.slice(f.values(), rank=1, world=2)
        with path.open("r+b") as file:
            file.truncate(400)
        with pytest.raises((bs.errors.TruncatedError, bs.errors.ChangedError), match=r"model\.safetensors: tensor 'w'"):
            part.numpy()


# --- narrow and quantized elements ------------------------------------------------------------------------------------


def test_packed_values_are_cut_at_whole_bytes_only() -> None:
    raw = bytes(range(12))
    data = TensorData.from_bytes(raw, DType.F4, (4, 6))  # three bytes a row
    whole = [TensorSnapshot.from_data("w", data)]
    assert [ROWS.slice(whole, rank=r, world=4)[0].to_bytes() for r in range(4)] == [
        raw[3 * r : 3 * r + 3] for r in range(4)
    ]
    [part] = COLUMNS.slice(whole, rank=1, world=3)
    assert part.shape == (4, 2) and part.to_bytes() == raw[1::3]
    with pytest.raises(DTypeError, match=r"tensor 'w': 0 to 3 of axis 1 of .* whole bytes of packed F4"):
        COLUMNS.slice(whole, rank=0, world=2)
    assert COLUMNS.slice(whole, rank=0, world=1)[0].to_bytes() == raw


def test_pairs_of_a_torch_tensor_are_cut_as_pairs() -> None:
    torch = pytest.importorskip("torch")
    pairs = torch.arange(12, dtype=torch.uint8).reshape(4, 3).view(torch.float4_e2m1fn_x2)
    whole = [TensorSnapshot.from_torch("w", pairs)]
    assert whole[0].shape == (4, 6)
    [part] = COLUMNS.slice(whole, rank=2, world=3)
    assert part.shape == (4, 2) and part.to_bytes() == bytes([2, 5, 8, 11])
    assert ROWS.slice(whole, rank=1, world=2)[0].to_bytes() == bytes(range(6, 12))


def quantized(scheme: QuantScheme, shape: tuple[int, ...]) -> TensorSnapshot:
    """A tensor of that scheme with codes of every kind, and scales that all differ."""
    from burnstore.tensor.quantization import QuantizedTensor, code_layout, encode

    rng = np.random.default_rng(1)
    top = 2 ** (scheme.value_bits - 1)
    if scheme.is_float_coded:
        codes: Any = rng.integers(0, 100 if scheme.value_bits == 8 else 2 * top, shape).astype(np.uint8)
    else:
        codes = rng.integers(1 - top, top, shape).astype(np.int8)
    grid = code_layout(scheme, shape).grid
    scales = (np.arange(math.prod(grid), dtype=np.float32) + 1).reshape(grid)
    above = 0.5 if scheme.global_dtype else None
    raw = encode(QuantizedTensor(codes, scales, above, scheme, shape))
    return TensorSnapshot.from_data("w", TensorData.from_bytes(raw, DType.qfloat(scheme), shape))


SCHEMES = [
    QuantScheme("Q8S", QuantStore("Native")),
    QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((2, 4), "F32")),
    QuantScheme("Q4S", QuantStore("PackedU32")),
    QuantScheme("Q4S", QuantStore("PackedU32", 1)),
    QuantScheme("Q4S", QuantStore("PackedU32", 1), old_style=True),
    QuantScheme("Q2S", QuantStore("PackedU32"), block=QuantBlock((16,), "F16")),
    QuantScheme("E2M1", QuantStore("PackedNative", 1), block=QuantBlock((2, 8), "F16"), tensor="F32"),
    QuantScheme("E2M1", QuantStore("PackedNative"), block=QuantBlock((16,), "F16"), tensor="F32"),
    QuantScheme("E4M3", QuantStore("Native"), block=QuantBlock((1, 8), "F32"), old_style=True),
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_part_of_a_quantized_tensor_has_its_codes_and_scales(scheme: QuantScheme, axis: int, world: int) -> None:
    whole = quantized(scheme, (4, 32, 64))
    for rank in range(world):
        [part] = Partition({"": axis}).slice([whole], rank=rank, world=world)
        for found, wanted in [
            (part.numpy(), np.array_split(whole.numpy(), world, axis)[rank]),
            (part.quantized().codes, np.array_split(whole.quantized().codes, world, axis)[rank]),
        ]:
            assert found.tobytes() == np.ascontiguousarray(wanted).tobytes()
        assert part.dtype is whole.dtype and part.nbytes == scheme.byte_len(part.shape)


def test_a_part_of_a_part_of_a_quantized_tensor_is_right_too() -> None:
    whole = quantized(QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((2, 4), "F32")), (8, 16))
    [rows] = ROWS.slice([whole], rank=1, world=2)
    [both] = COLUMNS.slice([rows], rank=1, world=2)
    assert (both.numpy() == whole.numpy()[4:, 8:]).all()


def test_of_a_quantized_tensor_only_the_part_is_read() -> None:
    scheme = QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((2, 4), "F32"))
    f, source = counted(bs.serialize([quantized(scheme, (64, 32))], format="burnpack"))
    source.forget()
    for rank in range(4):
        for part in ROWS.slice(f.values(), rank=rank, world=4):
            part.numpy()
    assert source.bytes_read == f["w"].nbytes


@pytest.mark.parametrize(
    ("scheme", "axis", "words"),
    [
        (QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((2, 4), "F32")), 0, "block of 2"),
        (QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((3,), "F32")), 1, "block of 3"),
        (QuantScheme("Q4S", QuantStore("PackedU32")), 1, "word of 8"),
        (QuantScheme("Q8S", QuantStore("Native"), block=QuantBlock((4,), "F32"), flat_blocks=True), 0, "runs of the"),
    ],
    ids=str,
)
def test_a_block_or_word_of_a_quantized_tensor_is_never_cut(scheme: QuantScheme, axis: int, words: str) -> None:
    raw = bytes(scheme.byte_len((6, 12)))
    whole = TensorSnapshot.from_data("w", TensorData.from_bytes(raw, DType.qfloat(scheme), (6, 12)))
    with pytest.raises(DTypeError, match=f"tensor 'w': .*{words}"):
        Partition({"": axis}).slice([whole], rank=0, world=6)
    assert Partition({"": axis}).slice([whole], rank=0, world=1)[0].to_bytes() == raw


def test_a_quantized_tensor_of_an_old_length_is_left_whole_or_refused() -> None:
    scheme = QuantScheme("Q8S", QuantStore("Native"), tensor="F16", old_style=True)
    data = TensorData.from_bytes(bytes(4) + np.float32(2).tobytes(), DType.qfloat(scheme), (4,))
    whole = TensorSnapshot.from_data("w", data)
    with pytest.raises(DTypeError, match="an old release of Burn"):
        ROWS.slice([whole], rank=0, world=2)


def test_axes_and_ends_that_are_not_there_are_refused() -> None:
    plain = TensorSnapshot.from_numpy("w", np.zeros((4, 4)))
    codes = quantized(QuantScheme("Q8S", QuantStore("Native")), (4, 4))
    for cut, whole in ((sliced, plain), (sliced_codes, codes)):
        for ends in ((2, 0, 1), (-1, 0, 1), (0, 3, 2), (0, -1, 2), (1, 0, 5)):
            with pytest.raises(ModelError, match="tensor 'w'"):
                cut(whole, *ends)
    with pytest.raises(DTypeError, match="cannot be moved"):
        sliced(codes, 0, 0, 2)


# --- rules ------------------------------------------------------------------------------------------------------------


def part(
    rules: Any, name: str, shape: tuple[int, ...], rank: int = 0, world: int = 2, **options: Any
) -> TensorSnapshot:
    whole = TensorSnapshot.from_numpy(name, np.zeros(shape, np.float32))
    return Partition(rules, **options).slice([whole], rank=rank, world=world)[0]


def test_the_first_rule_that_matches_counts() -> None:
    rules = {r"\.bias$": "replicate", r"o_proj": "columns", r"proj": "rows", r".*": "replicate"}
    assert part(rules, "h.o_proj.bias", (4,)).shape == (4,)
    assert part(rules, "h.o_proj.weight", (4, 6)).shape == (4, 3)
    assert part(rules, "h.q_proj.weight", (4, 6)).shape == (2, 6)
    assert part(rules, "norm.weight", (4,)).shape == (4,)
    assert part({re.compile("W", re.IGNORECASE): 2}, "w", (2, 3, 4)).shape == (2, 3, 2)


def test_a_name_that_no_rule_matches_is_an_error_with_the_way_out() -> None:
    with pytest.raises(ModelError, match=r"tensor 'norm\.weight': no rule") as caught:
        part({"proj": "rows"}, "norm.weight", (4,))
    assert caught.value.hint is not None and '".*": "replicate"' in caught.value.hint


@pytest.mark.parametrize(("how", "shape"), [("columns", (4,)), ("rows", ()), (2, (4, 4))])
def test_a_tensor_without_the_axis_is_an_error_and_never_taken_whole(how: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"tensor 'o_proj\.bias': .*has no axis") as caught:
        part({"": how}, "o_proj.bias", shape)
    assert caught.value.hint is not None and "replicate" in caught.value.hint


def test_an_extent_that_does_not_divide_is_an_error_that_names_all_there_is_to_know() -> None:
    with pytest.raises(ModelError, match="tensor 'w': cannot divide the extent 7 of axis 1 evenly among 4 ranks"):
        part({"": "columns"}, "w", (4, 7), world=4)
    with pytest.raises(ModelError, match=r"extent 6 of axis 0 \(in a block of 2\) evenly among 4 ranks"):
        part({"": ("rows", 3)}, "w", (6, 2), world=4)
    with pytest.raises(ModelError, match="cannot divide the extent 7 of axis 0 into 3 equal blocks"):
        part({"": ("rows", 3)}, "w", (7, 2))
    with pytest.raises(ModelError, match=r"expected blocks of axis 0 that add up to 7, got \[4, 2\] \(6\)"):
        part({"": ("rows", (4, 2))}, "w", (7, 2))


def test_uneven_parts_differ_by_one_and_the_first_ranks_have_more() -> None:
    extents = [part({"": 1}, "w", (2, 7), rank=rank, world=4, uneven=True).shape[1] for rank in range(4)]
    assert extents == [2, 2, 2, 1]
    few = [part({"": 0}, "w", (2, 7), rank=rank, world=4, uneven=True).shape[0] for rank in range(4)]
    assert few == [1, 1, 0, 0]


@pytest.mark.parametrize("how", ["row", "", None, 1.5, True, -1, ("rows",), ("rows", 0), ("rows", True), ("rows", "3")])
def test_what_says_nothing_about_division_is_refused_where_it_is_given(how: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Partition({"w": how})


@pytest.mark.parametrize("how", [("columns", 3), ("replicate", 2), ("rows", ()), ("rows", (4, 0)), ("rows", 2, 3)])
def test_blocks_are_of_rows_only_and_none_is_empty(how: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Partition({"w": how})


def test_rules_and_snapshots_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match="rules must be a Mapping"):
        Partition([("w", "rows")])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bool"):
        Partition({}, uneven=1)  # type: ignore[arg-type]
    with pytest.raises(bs.errors.PatternError):
        Partition({"(": "rows"})
    with pytest.raises(TypeError, match="values"):
        ROWS.slice({"w": None}, rank=0, world=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0), (0, -1), (5, 2)])
def test_a_rank_outside_of_the_world_is_refused(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match="count from 0"):
        ROWS.slice([], rank=rank, world=world)


@pytest.mark.parametrize(("rank", "world"), [(0, 2.0), ("0", 2), (True, 2), (None, 1)])
def test_ranks_are_integers(rank: Any, world: Any) -> None:
    with pytest.raises(TypeError, match="must be an int"):
        ROWS.slice([], rank=rank, world=world)
    assert ROWS.slice([], rank=np.int64(0), world=np.int64(2)) == []  # type: ignore[arg-type]


def test_partitions_are_values() -> None:
    rules = {r"q": "rows", r"o": "columns", r"e": 2, r"qkv": ("rows", 3), r"g": ("rows", (4, 2)), r".*": "replicate"}
    first, second = Partition(rules), Partition(dict(rules))
    assert first == second and hash(first) == hash(second)
    assert first != Partition(rules, uneven=True) != Partition({**rules, "x": 0}, uneven=True)
    assert first != Partition(dict(reversed(rules.items()))) and first != rules
    assert pickle.loads(pickle.dumps(first)) == first
    assert eval(repr(first)) == first and eval(repr(Partition(rules, uneven=True))) == Partition(rules, uneven=True)


def test_parts_of_a_file_are_pickled_and_read_elsewhere(tmp_path: Path) -> None:
    array = np.arange(64, dtype=np.int16).reshape(8, 8)
    bs.save({"w": array}, tmp_path / "m.safetensors")
    with bs.open(tmp_path / "m.safetensors") as f:
        parts = [COLUMNS.slice(f.values(), rank=1, world=2)[0], transposed(ROWS.slice(f.values(), rank=1, world=2)[0])]
        first, second = pickle.loads(pickle.dumps(parts))
    assert (first.numpy() == array[:, 4:]).all() and (second.numpy() == array[4:].T).all()
    first._data.source.close()


def test_a_part_keeps_the_name_the_id_and_the_containers() -> None:
    whole = TensorSnapshot.from_numpy(
        "a.w", np.zeros((4, 4)), param_id=7, container_stack=["Struct:Net", "Struct:Linear"]
    )
    for rules in (ROWS, COLUMNS):
        [part] = rules.slice([whole], rank=0, world=2)
        assert (part.path, part.param_id, part.container_stack) == (whole.path, whole.param_id, whole.container_stack)


def test_parts_are_saved_like_any_tensor(tmp_path: Path) -> None:
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    bs.save({"w": array}, tmp_path / "whole.bpk")
    with bs.open(tmp_path / "whole.bpk") as f:
        for rank in range(2):
            bs.save(COLUMNS.slice(f.values(), rank=rank, world=2), tmp_path / f"{rank}.safetensors")
    for rank in range(2):
        with bs.open(tmp_path / f"{rank}.safetensors") as f:
            assert (f["w"].numpy() == array[:, 4 * rank : 4 * rank + 4]).all()
