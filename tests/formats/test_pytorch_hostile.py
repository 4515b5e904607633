"""Files of torch that contradict themselves are refused by a numbered rule, in every container."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import burnstore as bs
from burnstore.formats.pytorch.tensors import check_view, is_contiguous
from fuzz import torch_bytes as tb

RAW = np.arange(6, dtype="<f4").tobytes()
NOISE = np.random.default_rng(0).bytes(1 << 20)
ONE = tb.storage(tb.text("0"), 6)
Made = Callable[[], bytes]


def zip_of(value: bytes, storages: dict[str, bytes] | None = None, **options: Any) -> bytes:
    return tb.torch_zip(tb.pickled(value), {"0": RAW} if storages is None else storages, **options)


def one(tensor: bytes, **options: Any) -> bytes:
    return zip_of(tb.dict_of((tb.text("t"), tensor)), **options)


def legacy_of(tensor: bytes = tb.tensor(tb.storage(tb.text("0"), 6, more=b"N"), (6,)), **options: Any) -> bytes:
    return tb.legacy(tb.pickled(tb.dict_of((tb.text("t"), tensor))), options.pop("storages", {"0": RAW}), **options)


def tar_of(**options: Any) -> bytes:
    value = options.pop("value", tb.dict_of((tb.text("t"), tb.persistent("1"))))
    storages = options.pop("storages", {"5": ("Float", RAW, 4)})
    return tb.tar(tb.pickled(value), storages, options.pop("tensors", {"1": ("5", (6,), (1,), 0)}), **options)


def rebuilt(function: str, *arguments: bytes, module: str = "torch._utils") -> bytes:
    return tb.call(tb.name(module, function), *arguments)


def edited(members: list[tb.Member], name: str, **changes: Any) -> bytes:
    return tb.zipped([replace(m, **changes) if m.name.endswith(name) else m for m in members])


GOOD = tb.torch_members(tb.pickled(tb.dict_of((tb.text("t"), tb.tensor(ONE, (2, 3))))), {"0": RAW})
INT8 = tb.storage(tb.text("0"), 6, tb.name("torch", "QInt8Storage"))
PER_TENSOR = tb.tuple_of(tb.name("torch", "per_tensor_affine"), b"G" + struct.pack(">d", 0.5), tb.integer(3))
VEC = tb.tensor(ONE, (6,))
LAYOUT = tb.call(tb.name("torch.serialization", "_get_layout"), tb.text("torch.sparse_coo"))


def quantized(how: bytes, size: tuple[int, ...] = (2, 3)) -> bytes:
    return rebuilt(
        "_rebuild_qtensor", INT8, tb.integer(0), tb.ints(*size), tb.ints(*tb.row_major(size)), how, b"\x89", tb.HOOKS
    )


CASES: dict[str, tuple[Made, str]] = {
    # H18: views
    "negative offset": (lambda: one(tb.tensor(ONE, (1,), offset=-1)), "PT-21"),
    "offset past the end": (lambda: one(tb.tensor(ONE, (1,), offset=6)), "PT-21"),
    "offset of 2^70": (lambda: one(tb.tensor(ONE, (1,), offset=1 << 70)), "PT-21"),
    "negative size": (lambda: one(tb.tensor(ONE, (-1,), (1,))), "PT-21"),
    "size past the end": (lambda: one(tb.tensor(ONE, (7,))), "PT-21"),
    "sizes that overflow 2^64": (lambda: one(tb.tensor(ONE, (1 << 33, 1 << 33), (1, 1))), "PT-21"),
    "negative stride": (lambda: one(tb.tensor(ONE, (2,), (-1,))), "PT-21"),
    "stride past the end": (lambda: one(tb.tensor(ONE, (2,), (6,))), "PT-21"),
    "huge stride": (lambda: one(tb.tensor(ONE, (2,), (1 << 62,))), "PT-21"),
    "stride of 2^70": (lambda: one(tb.tensor(ONE, (1,), (1 << 70,))), "PT-21"),
    "more strides than axes": (lambda: one(tb.tensor(ONE, (2,), (1, 1))), "PT-21"),
    "65 axes": (lambda: one(tb.tensor(ONE, (1,) * 65)), "PT-21"),
    "a bomb of stride 0": (lambda: one(tb.tensor(ONE, (1 << 40,), (0,))), "PT-21"),
    "size a text": (
        lambda: one(tb.call(tb.V2, ONE, tb.integer(0), tb.text("ab"), tb.ints(1), b"\x89", tb.HOOKS)),
        "PT-21",
    ),
    "size of bools": (
        lambda: one(tb.call(tb.V2, ONE, tb.integer(0), b"\x88\x85", tb.ints(1), b"\x89", tb.HOOKS)),
        "PT-21",
    ),
    "offset a bool": (lambda: one(tb.call(tb.V2, ONE, b"\x88", tb.ints(1), tb.ints(1), b"\x89", tb.HOOKS)), "PT-21"),
    # storages
    "a storage shorter than declared": (lambda: one(VEC, storages={"0": RAW[:-1]}), "PT-20"),
    "a storage longer than declared": (lambda: one(VEC, storages={"0": RAW + b"\0"}), "PT-20"),
    "a storage that is not there": (lambda: one(VEC, storages={}), "PT-20"),
    "one key, two lengths": (
        lambda: zip_of(tb.dict_of((tb.text("a"), VEC), (tb.text("b"), tb.tensor(tb.storage(tb.text("0"), 5), (5,))))),
        "PT-19",
    ),
    "one key, two classes": (
        lambda: zip_of(
            tb.dict_of(
                (tb.text("a"), VEC),
                (tb.text("b"), tb.tensor(tb.storage(tb.text("0"), 6, tb.name("torch", "IntStorage")), (6,))),
            )
        ),
        "PT-19",
    ),
    "an unknown class": (
        lambda: one(tb.tensor(tb.storage(tb.text("0"), 6, tb.name("torch", "MyStorage")), (6,))),
        "PT-19",
    ),
    "a class of elsewhere": (
        lambda: one(tb.tensor(tb.storage(tb.text("0"), 6, tb.name("os", "FloatStorage")), (6,))),
        "PT-19",
    ),
    "a class that is a text": (
        lambda: one(tb.tensor(tb.storage(tb.text("0"), 6, tb.text("FloatStorage")), (6,))),
        "PT-19",
    ),
    "a key that is None": (lambda: one(tb.tensor(tb.storage(b"N", 6), (6,))), "PT-19"),
    "an empty key": (lambda: one(tb.tensor(tb.storage(tb.text(""), 6), (6,))), "PT-19"),
    "a negative length": (lambda: one(tb.tensor(tb.storage(tb.text("0"), -1), (0,))), "PT-19"),
    "a length of 2^62": (lambda: one(tb.tensor(tb.storage(tb.text("0"), 1 << 62), (0,))), "PT-19"),
    "a persistent id that is a text": (lambda: one(tb.text("x") + b"Q"), "PT-19"),
    "a persistent id of two": (lambda: one(tb.tuple_of(tb.text("storage"), tb.text("0")) + b"Q"), "PT-19"),
    "a persistent id of another kind": (lambda: one(tb.tuple_of(tb.text("code"), *[b"N"] * 4) + b"Q"), "PT-19"),
    "an empty persistent id": (lambda: one(b")Q"), "PT-19"),
    "a persistent id that is a line": (lambda: zip_of(b"Pabc\n"), "PT-19"),
    "a view past its storage": (
        lambda: one(
            tb.tensor(tb.storage(tb.text("0"), 6, more=tb.tuple_of(tb.text("v"), tb.integer(4), tb.integer(3))), (1,))
        ),
        "PT-19",
    ),
    "a view of an untyped storage": (
        lambda: one(
            tb.tensor(
                tb.storage(
                    tb.text("0"),
                    24,
                    tb.name("torch.storage", "UntypedStorage"),
                    tb.tuple_of(tb.text("v"), tb.integer(0), tb.integer(1)),
                ),
                (1,),
            )
        ),
        "PT-19",
    ),
    # known calls
    "a tensor without a storage": (lambda: one(tb.tensor(b"N", (1,))), "PT-22"),
    "too few arguments": (lambda: one(rebuilt("_rebuild_tensor_v2", ONE)), "PT-22"),
    "too many arguments": (lambda: one(rebuilt("_rebuild_tensor", *[b"N"] * 9)), "PT-22"),
    "v3 of another dtype": (
        lambda: one(
            rebuilt(
                "_rebuild_tensor_v3",
                ONE,
                tb.integer(0),
                tb.ints(3),
                tb.ints(1),
                b"\x89",
                tb.HOOKS,
                tb.name("torch", "int64"),
            )
        ),
        "PT-19",
    ),
    "v3 of no dtype": (
        lambda: one(rebuilt("_rebuild_tensor_v3", ONE, tb.integer(0), tb.ints(3), tb.ints(1), b"\x89", tb.HOOKS, b"N")),
        "PT-22",
    ),
    "lazy bits that are a list": (lambda: one(tb.tensor(ONE, (6,), more=b"]")), "PT-22"),
    "lazy bits that are not known": (
        lambda: one(tb.tensor(ONE, (6,), more=tb.dict_of((tb.text("other"), b"\x88")))),
        "PT-22",
    ),
    "an item in a tensor": (lambda: one(VEC + tb.integer(1) + tb.integer(2) + b"s"), "PT-16"),
    "items in a tensor": (lambda: one(VEC + b"(" + tb.integer(1) + tb.integer(2) + b"u"), "PT-16"),
    "items behind a tensor": (lambda: one(VEC + b"(" + tb.integer(1) + b"e"), "PT-16"),
    "a state for a tensor": (lambda: one(VEC + b"}b"), "PT-16"),
    "an OrderedDict of an int": (lambda: zip_of(rebuilt("OrderedDict", tb.integer(1), module="collections")), "PT-22"),
    "an OrderedDict of triples": (
        lambda: zip_of(rebuilt("OrderedDict", b"](" + tb.ints(1, 2, 3) + b"e", module="collections")),
        "PT-22",
    ),
    "an OrderedDict with a key twice": (
        lambda: zip_of(rebuilt("OrderedDict", b"](" + tb.ints(1, 2) + tb.ints(1, 3) + b"e", module="collections")),
        "PT-16",
    ),
    "a set of two": (lambda: one(rebuilt("set", b"]", b"]", module="builtins")), "PT-22"),
    "a set of an int": (lambda: one(rebuilt("set", tb.integer(1), module="builtins")), "PT-22"),
    "bytes in another encoding": (
        lambda: one(rebuilt("encode", tb.text("a"), tb.text("rot13"), module="_codecs")),
        "PT-22",
    ),
    "bytes beyond latin1": (
        lambda: one(rebuilt("encode", tb.text("\u0394"), tb.text("latin1"), module="_codecs")),
        "PT-22",
    ),
    "a complex number of texts": (
        lambda: one(rebuilt("complex", tb.text("1"), tb.text("2"), module="builtins")),
        "PT-22",
    ),
    "a Size of texts": (lambda: one(rebuilt("Size", tb.tuple_of(tb.text("1")), module="torch")), "PT-22"),
    "a device of ints": (lambda: one(rebuilt("device", tb.integer(1), module="torch")), "PT-22"),
    "a path of ints": (lambda: one(rebuilt("PosixPath", tb.integer(1), module="pathlib")), "PT-22"),
    "a moment of no bytes": (lambda: one(rebuilt("datetime", b"C\x03abc", module="datetime")), "PT-22"),
    "a timedelta beyond all": (
        lambda: one(rebuilt("timedelta", tb.integer(1 << 40), tb.integer(0), tb.integer(0), module="datetime")),
        "PT-22",
    ),
    "a range with step 0": (
        lambda: one(rebuilt("range", tb.integer(0), tb.integer(1), tb.integer(0), module="builtins")),
        "PT-22",
    ),
    "quantized by nothing": (lambda: one(quantized(b")")), "PT-22"),
    "quantized by an unknown scheme": (
        lambda: one(quantized(tb.tuple_of(tb.name("torch", "other"), b"N", b"N"))),
        "PT-22",
    ),
    "quantized without a scale": (
        lambda: one(quantized(tb.tuple_of(tb.name("torch", "per_tensor_affine"), b"N", tb.integer(1)))),
        "PT-22",
    ),
    "quantized with too few scales": (
        lambda: zip_of(
            tb.dict_of(
                (
                    tb.text("t"),
                    quantized(
                        tb.tuple_of(
                            tb.name("torch", "per_channel_affine"),
                            tb.tensor(tb.storage(tb.text("1"), 1), (1,)),
                            tb.tensor(tb.storage(tb.text("1"), 1), (1,)),
                            tb.integer(0),
                        )
                    ),
                )
            ),
            {"0": RAW[:6], "1": RAW[:4]},
        ),
        "PT-22",
    ),
    "sparse of an unknown layout": (
        lambda: one(rebuilt("_rebuild_sparse_tensor", tb.text("torch.dense"), b")")),
        "PT-22",
    ),
    "sparse of one part": (lambda: one(rebuilt("_rebuild_sparse_tensor", LAYOUT, tb.tuple_of(VEC))), "PT-22"),
    "sparse of no tensors": (lambda: one(rebuilt("_rebuild_sparse_tensor", LAYOUT, tb.ints(1, 2, 3))), "PT-22"),
    "a NumPy array of other bytes": (
        lambda: one(
            rebuilt("_reconstruct", tb.name("numpy", "ndarray"), tb.ints(0), b"C\x01b", module="numpy.core.multiarray")
            + tb.tuple_of(
                tb.integer(1), tb.ints(3), rebuilt("dtype", tb.text("f4"), module="numpy"), b"\x89", b"C\x04abcd"
            )
            + b"b"
        ),
        "PT-22",
    ),
    "a NumPy array of 2^62 elements": (
        lambda: one(
            rebuilt("_reconstruct", tb.name("numpy", "ndarray"), tb.ints(0), b"C\x01b", module="numpy.core.multiarray")
            + tb.tuple_of(
                tb.integer(1), tb.ints(1 << 61), rebuilt("dtype", tb.text("f4"), module="numpy"), b"\x89", b"C\x04abcd"
            )
            + b"b"
        ),
        "PT-22",
    ),
    "a NumPy scalar without bytes": (
        lambda: one(rebuilt("scalar", rebuilt("dtype", tb.text("f8"), module="numpy"), module="numpy.core.multiarray")),
        "PT-22",
    ),
    "a NumPy dtype with fields": (
        lambda: one(
            rebuilt("dtype", tb.text("f8"), module="numpy")
            + tb.tuple_of(tb.integer(3), tb.text("<"), b"N", tb.text("x"), b"N")
            + b"b"
        ),
        "PT-22",
    ),
    # the pickle
    "an extension": (lambda: zip_of(b"\x82\x01"), "PT-15"),
    "an out-of-band buffer": (lambda: zip_of(b"\x97"), "PT-15"),
    "protocol 6": (lambda: tb.torch_zip(tb.pickled(b"}", 6), {}), "PT-15"),
    "an unknown opcode": (lambda: zip_of(b"\xfe"), "PT-16"),
    "an empty pickle": (lambda: tb.torch_zip(b"", {}), "PT-16"),
    "no STOP": (lambda: tb.torch_zip(b"\x80\x02}", {}), "PT-16"),
    "bytes behind STOP": (lambda: tb.torch_zip(tb.pickled(b"}") + b"x", {}), "PT-16"),
    "a second pickle behind STOP": (lambda: tb.torch_zip(tb.pickled(b"}") * 2, {}), "PT-16"),
    "two values at STOP": (lambda: zip_of(b"}}"), "PT-16"),
    "a key twice": (lambda: zip_of(tb.dict_of((tb.text("a"), VEC), (tb.text("a"), VEC))), "PT-16"),
    "a memo entry that is not there": (lambda: zip_of(b"h\x07"), "PT-16"),
    "a million of lists": (lambda: zip_of(b"](" + b"]" * 2_000_000 + b"e"), "PT-17"),
    # the zip
    "no version that is known": (lambda: tb.zipped([*GOOD[:-1], tb.Member("archive/version", b"11\n")]), "PT-08"),
    "version 0": (lambda: tb.zipped([*GOOD[:-1], tb.Member("archive/version", b"0")]), "PT-08"),
    "a version that is no number": (lambda: tb.zipped([*GOOD[:-1], tb.Member("archive/version", b"three")]), "PT-08"),
    "an unknown byteorder": (lambda: zip_of(b"}", {}, byteorder="Little\n"), "PT-08"),
    "a long byteorder": (lambda: zip_of(b"}", {}, byteorder="l" * 5000), "PT-08"),
    "two folders": (lambda: tb.zipped([*GOOD, tb.Member("other/data/1", b"")]), "PT-05"),
    "two pickles": (lambda: tb.zipped([*GOOD, tb.Member("archive/extra/data.pkl", b"N.")]), "PT-05"),
    "the checksum of the pickle": (lambda: edited(GOOD, "data.pkl", crc=1), "PT-09"),
    "the checksum of a text": (lambda: edited(GOOD, "byteorder", crc=1), "PT-09"),
    "an encrypted member": (lambda: edited(GOOD, "data/0", flags=0x0809), "PT-03"),
    "headers that disagree": (lambda: edited(GOOD, "data/0", local_name="archive/data/1"), "PT-02"),
    "a member above": (lambda: tb.zipped([*GOOD, tb.Member("../x", b"")]), "PT-04"),
    "a bomb": (lambda: tb.zipped([*GOOD, tb.Member("archive/bomb", bytes(1 << 20), method=8, size=2 << 20)]), "PT-07"),
    "a bomb of 1 GiB": (
        lambda: tb.zipped([*GOOD, tb.Member("archive/bomb", NOISE, method=8, size=(1 << 30) + 1)]),
        "PT-07",
    ),
    "a cut zip": (lambda: tb.zipped(GOOD)[:-1], "PT-02"),
    # the legacy stream
    "protocol 1002": (lambda: legacy_of().replace(b"M\xe9\x03.", b"M\xea\x03.", 1), "PT-10"),
    "no little_endian": (lambda: legacy_of(sys_info={"protocol_version": 1001}), "PT-10"),
    "facts that are a list": (lambda: legacy_of(sys_info=[1]), "PT-10"),
    "another magic number": (
        lambda: pickle.dumps(tb.MAGIC + 256, 2) + b"\x80\x02" + tb.MAGIC.to_bytes(10, "little"),
        "PT-16",
    ),
    "a count too large": (lambda: legacy_of().replace(struct.pack("<q", 6) + RAW, struct.pack("<q", 7) + RAW), "PT-11"),
    "a count too small": (lambda: legacy_of().replace(struct.pack("<q", 6) + RAW, struct.pack("<q", 5) + RAW), "PT-11"),
    "a negative count": (lambda: legacy_of().replace(struct.pack("<q", 6) + RAW, struct.pack("<q", -6) + RAW), "PT-11"),
    "a cut storage": (lambda: legacy_of()[:-1], "PT-11"),
    "bytes behind the last storage": (lambda: legacy_of() + b"x", "PT-11"),
    "a key nothing refers to": (lambda: legacy_of(storages={"0": RAW, "1": RAW}), "PT-11"),
    "a key that is not listed": (lambda: legacy_of(storages={}), "PT-11"),
    # the tar
    "no tensors": (lambda: tb.tarred({"pickle": b"N.", "storages": b"K\0."}), "PT-12"),
    "a cut tar": (lambda: tar_of().rstrip(b"\0"), "PT-12"),
    "a member twice": (lambda: tb.tarred({"pickle": b"N."}).rstrip(b"\0").ljust(2048, b"\0") + tar_of(), "PT-12"),
    "a reference to nothing": (lambda: tar_of(value=tb.dict_of((tb.text("t"), tb.persistent("9")))), "PT-13"),
    "a tensor on no storage": (lambda: tar_of(tensors={"1": ("6", (6,), (1,), 0)}), "PT-13"),
    "a tensor past its storage": (lambda: tar_of(tensors={"1": ("5", (7,), (1,), 0)}), "PT-21"),
    "a view of nothing": (lambda: tar_of(views=[(6, 7, 0, 1)]), "PT-13"),
    "a view past the end": (lambda: tar_of(views=[(6, 5, 5, 2)]), "PT-13"),
    "a view of three": (lambda: tar_of(views=[(6, 5, 5)]), "PT-13"),
    "an absurd count": (
        lambda: tb.tarred({"pickle": b"N.", "tensors": b"K\0.", "storages": pickle.dumps(1 << 40, 2)}),
        "PT-13",
    ),
    "an absurd element count": (
        lambda: tar_of().replace(struct.pack("<q", 6) + RAW, struct.pack("<q", 1 << 40) + RAW),
        "PT-13",
    ),
    # bare pickles
    "a persistent id in a bare pickle": (lambda: tb.pickled(tb.dict_of((tb.text("t"), VEC))), "PT-15"),
    "an embedded storage that is none": (
        lambda: tb.pickled(tb.dict_of((tb.text("t"), rebuilt("_load_from_bytes", b"C\x02ab", module="torch.storage")))),
        "PT-14",
    ),
    "an embedded file in an embedded file": (
        lambda: tb.pickled(
            tb.dict_of(
                (
                    tb.text("t"),
                    rebuilt(
                        "_load_from_bytes", b"B" + struct.pack("<I", len(_inner())) + _inner(), module="torch.storage"
                    ),
                )
            )
        ),
        "PT-14",
    ),
    "an embedded storage that is a text": (
        lambda: tb.pickled(
            tb.dict_of((tb.text("t"), rebuilt("_load_from_bytes", tb.text("x"), module="torch.storage")))
        ),
        "PT-14",
    ),
    "bytes behind a bare pickle": (lambda: tb.pickled(b"}") + b"x", "PT-16"),
}


def _inner() -> bytes:
    return tb.legacy(tb.pickled(rebuilt("_load_from_bytes", b"C\x02ab", module="torch.storage")), {})


@pytest.mark.parametrize(("make", "rule"), CASES.values(), ids=CASES)
def test_a_file_that_contradicts_itself_is_refused_by_its_rule(make: Made, rule: str) -> None:
    with (
        pytest.raises((bs.errors.FormatError, bs.errors.UnsafeContentError)) as caught,
        bs.open(make(), format="pytorch") as f,
    ):
        f.numpy()
    assert caught.value.rule == rule, str(caught.value)
    assert caught.value.path == "<bytes>"


def test_zeros_that_are_compressed_as_far_as_deflate_can_are_no_bomb() -> None:
    with bs.open(tb.zipped([*GOOD, tb.Member("archive/zeros", bytes(1 << 20), method=8)])) as f:
        assert f["t"].to_bytes() == RAW


def test_other_bytes_are_not_a_pytorch_checkpoint() -> None:
    """PT-01."""
    for data in (b"GIF89a" + bytes(100), b'{"a": 1}', bytes(300)):
        with pytest.raises(bs.errors.UnknownFormatError, match="not a PyTorch checkpoint") as caught:
            bs.open(data, format="pytorch")
        assert caught.value.rule == "PT-01"
    with pytest.raises(bs.errors.LimitError) as limited:
        bs.open(one(VEC), limits=bs.Limits(file_bytes=10))
    assert limited.value.rule == "PT-01"


def test_a_safetensors_file_whose_length_begins_like_a_pickle_is_not_one() -> None:
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    data = struct.pack("<Q", 0x280) + header.ljust(0x280) + b"x"
    assert data[0] == 0x80
    with bs.open(data) as f:
        assert f.format == "safetensors"


@pytest.mark.parametrize("method", [0, 8], ids=["stored", "deflated"])
def test_a_wrong_checksum_of_a_storage_is_found_where_it_is_looked_for(method: int) -> None:
    """PT-09: always in deflated ones, in stored ones with checksums=True."""
    members = [replace(m, method=method) for m in GOOD]
    data = edited(members, "data/0", crc=1)
    with pytest.raises(bs.errors.CorruptError, match="Invalid checksum") as caught, bs.open(data, checksums=True) as f:
        f["t"].numpy()
    assert caught.value.rule == "PT-09"
    good = tb.zipped(members)
    with bs.open(good, checksums=True) as f:
        assert f["t"].to_bytes() == RAW


def test_a_file_without_checksums_is_read() -> None:
    """PT-09: torch can be told to leave them out."""
    with bs.open(tb.zipped([replace(m, crc=0) for m in GOOD]), checksums=True) as f:
        assert f["t"].to_bytes() == RAW


def test_a_broken_deflated_storage_is_refused_when_it_is_read() -> None:
    """PT-07."""
    members = [replace(m, method=8) for m in GOOD]
    data = tb.zipped(members).replace(tb.deflated(RAW), bytes(len(tb.deflated(RAW))))
    with bs.open(data) as f, pytest.raises(bs.errors.CorruptError) as caught:
        f["t"].numpy()
    assert (caught.value.rule, caught.value.tensor) == ("PT-07", "t")


def test_sparse_parts_that_do_not_fit_are_refused_when_they_are_made_dense() -> None:
    """PT-22."""
    indices = tb.tensor(tb.storage(tb.text("1"), 2, tb.name("torch", "LongStorage")), (1, 2))
    values = tb.tensor(tb.storage(tb.text("0"), 6), (2,))
    for size, stored in (((2,), [0, 5]), ((2,), [-1, 0]), ((1, 1), [0, 0])):
        sparse = rebuilt("_rebuild_sparse_tensor", LAYOUT, tb.tuple_of(indices, values, tb.ints(*size)))
        data = zip_of(tb.dict_of((tb.text("t"), sparse)), {"0": RAW, "1": np.array(stored, "<i8").tobytes()})
        with bs.open(data, dense=True) as f, pytest.raises(bs.errors.CorruptError) as caught:
            f["t"].numpy()
        assert caught.value.rule == "PT-22"
    huge = rebuilt("_rebuild_sparse_tensor", LAYOUT, tb.tuple_of(indices, values, tb.ints(1 << 40)))
    with pytest.raises(bs.errors.LimitError):
        bs.open(zip_of(tb.dict_of((tb.text("t"), huge)), {"0": RAW, "1": bytes(16)}), dense=True)


@pytest.mark.parametrize("option", ["dense", "checksums", "salvage"])
def test_an_option_that_is_no_bool_is_a_type_error(option: str) -> None:
    with pytest.raises(TypeError, match=option):
        bs.open(one(VEC), **{option: 1})


ENTRY = b'{"config":{"w":{"path_name":"w0","tensor_meta":'
EXPORTED = {
    "a table that is a list": b"[]",
    "no config": b"{}",
    "an entry that is a number": b'{"config":{"w":1}}',
    "no member": b'{"config":{"w":{"path_name":"x","tensor_meta":{}}}}',
    "a dtype that is not known": ENTRY + b'{"dtype":99,"sizes":[],"strides":[]}}}}',
    "sizes that are numbers": ENTRY + b'{"dtype":7,"sizes":[1],"strides":[]}}}}',
    "another layout": ENTRY + b'{"dtype":7,"sizes":[],"strides":[],"layout":1}}}}',
    "a key twice": b'{"config":{},"config":{}}',
    "not JSON": b"{",
}


@pytest.mark.parametrize("table", EXPORTED.values(), ids=EXPORTED)
def test_a_table_of_an_exported_program_that_is_wrong_is_refused(table: bytes) -> None:
    """PT-26."""
    members = {
        "archive_format": b"pt2",
        "data/weights/m_weights_config.json": table,
        "data/weights/w0": bytes(4),
        ".data/version": b"6\n",
    }
    data = tb.zipped([tb.Member(f"archive/{name}", raw) for name, raw in members.items()])
    with pytest.raises(bs.errors.CorruptError) as caught:
        bs.open(data)
    assert caught.value.rule == "PT-26"


@given(
    available=st.integers(0, 40),
    item=st.sampled_from([1, 2, 4, 8]),
    offset=st.integers(0, 12),
    axes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=4),
)
def test_views_are_taken_exactly_if_every_element_is_inside(
    available: int, item: int, offset: int, axes: list[tuple[int, int]]
) -> None:
    """H18: PT-21, against every element one by one."""
    shape, strides = tuple(extent for extent, _ in axes), tuple(stride for _, stride in axes)
    places = np.zeros(shape, np.int64) + offset
    for axis, stride in enumerate(strides):
        places += (np.arange(shape[axis]) * stride).reshape([-1 if each == axis else 1 for each in range(len(shape))])
    inside = bool(((places + 1) * item <= available).all())
    try:
        check_view(available, item, offset, shape, strides)
    except bs.errors.CorruptError:
        assert not inside
    else:
        assert inside
        if places.size:
            assert is_contiguous(shape, strides) == bool((np.diff(places.reshape(-1)) == 1).all())


def test_every_prefix_of_a_file_is_refused_in_every_container(tmp_path: Path) -> None:
    """H3."""
    value = tb.dict_of((tb.text("t"), tb.tensor(tb.storage(tb.text("0"), 6, more=b"N"), (2, 3))))
    bare = pickle.dumps({"a": np.arange(3), "b": [1, 2]}, 4)
    for data in (tb.zipped(GOOD), tb.legacy(tb.pickled(value), {"0": RAW}), bare):
        for length in range(len(data)):
            with pytest.raises(bs.errors.FormatError), bs.open(data[:length], format="pytorch") as f:
                f.numpy()
