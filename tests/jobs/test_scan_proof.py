"""Clean needs proof: files that a loader runs, each of which some reading of the bytes takes for data (law 10)."""

from __future__ import annotations

import io
import json
import lzma
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from fuzz import torch_bytes as tb

torch = pytest.importorskip("torch")

RUN: list[str] = []


def ran(what: str = "it") -> int:
    RUN.append(what)
    return 1


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    RUN.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


MODULE = __name__.encode()
CALL = b"c" + MODULE + b"\nran\n(tR"
EVIL = CALL + b"."
MAGIC = 0x1950A86A20F9469CFC6C
FACTS = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}


def stream(pickled: bytes, protocol: int) -> bytes:
    """A legacy stream of torch around a pickle, all of it in a protocol that torch does not write."""
    return (
        b"".join(pickle.dumps(value, protocol) for value in (MAGIC, 1001, FACTS)) + pickled + pickle.dumps([], protocol)
    )


def long_bytes(raw: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(raw)) + raw


def text_of(raw: bytes) -> bytes:
    spelled = raw.decode("latin-1").encode()
    return b"X" + struct.pack("<I", len(spelled)) + spelled


def encoded(raw: bytes, name: bytes) -> bytes:
    return b"c_codecs\nencode\n" + text_of(raw) + b"X" + struct.pack("<I", len(name)) + name + b"\x86R"


def loading(argument: bytes) -> bytes:
    return b"\x80\x02ctorch.storage\n_load_from_bytes\n" + argument + b"\x85R."


def framed(frame: bytes, rest: bytes, length: int | None = None) -> bytes:
    return b"\x80\x04\x95" + struct.pack("<Q", len(frame) if length is None else length) + frame + rest


def dropped_by_a_file() -> bytes:
    """A frame of a string that does not fit into it: of a file, C's unpickler drops the beginning of the string."""
    string = bytes(len(EVIL))
    return framed(b"X" + struct.pack("<I", len(string)) + b"abc", string + EVIL)


def zipped(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/"), data)
    return out.getvalue()


def array(descr: str, data: bytes, shape: str = "(1,)") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + data


def storage_that_is_an_array(deflated: bool = False) -> bytes:
    raw = array("'|O'", EVIL)
    raw += bytes(-len(raw) % 4)
    value = tb.pickled(tb.dict_of((tb.text("w"), tb.tensor(tb.storage(tb.text("0"), len(raw) // 4), (len(raw) // 4,)))))
    return tb.torch_zip(value, {"0": raw}, method=8 if deflated else 0)


def exported(**changes: Any) -> bytes:
    """The archive of torch.export.save, with members added or replaced."""
    out = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),)), out)
    with zipfile.ZipFile(out) as archive:
        root = archive.namelist()[0].split("/")[0]
        members = {name.removeprefix(f"{root}/"): archive.read(name) for name in archive.namelist()}
    for name, change in changes.items():
        path = name.replace("__", "/")
        members[path] = change(members.get(path, b"")) if callable(change) else change
    return tb.zipped([tb.Member(f"{root}/{name}", data) for name, data in members.items()])


def opaque(use_pickle: Any, path: str = "opaque_obj_0") -> bytes:
    meta = {"dtype": 7, "sizes": [{"as_int": 4}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}}
    meta |= {"requires_grad": False, "device": {"type": "cpu", "index": None}, "layout": 7}
    raw = EVIL + bytes(-len(EVIL) % 4)
    entry = {"path_name": path, "is_param": False, "use_pickle": use_pickle, "tensor_meta": meta}
    table = json.dumps({"config": {"c": entry}}).encode()
    return exported(**{"data__constants__model_constants_config.json": table, f"data__constants__{path}": raw})


def old_weights() -> bytes:
    """A weight in the place from which torch loads the weights of older archives."""

    def edit(raw: bytes) -> bytes:
        table = json.loads(raw)
        table["config"]["weight"]["path_name"] = "model.pt"
        return json.dumps(table).encode()

    return exported(
        **{"data__weights__model_weights_config.json": edit, "data__weights__model.pt": tb.torch_zip(EVIL, {})}
    )


def package(folder: str) -> bytes:
    return zipped(
        **{
            "p__.data__extern_modules": __name__.encode(),
            "p__.data__version": b"6",
            "p__version": b"6",
            f"p__{folder}__evil.py": f"import {__name__} as t\nt.ran()\n".encode(),
            "p__data.pkl": b"\x80\x02}.",
            "p__constants.pkl": b"\x80\x02).",
        }
    )


def attribute_of_an_instance() -> bytes:
    """The function is never called by the pickle: the state of an object calls it."""
    load = b"ctorch.storage\n_load_from_bytes\n"
    made = b"ccollections\nOrderedDict\n)R}X\x0c\0\0\0__setstate__" + load + b"sb"
    return b"\x80\x02" + made + long_bytes(stream(EVIL, 1)) + b"b."


def pickle_of(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def pickle_file(path: Path) -> Any:
    return pickle.load(io.BytesIO(path.read_bytes()))


def in_python(path: Path) -> Any:
    return pickle._Unpickler(io.BytesIO(path.read_bytes())).load()  # type: ignore[attr-defined]


def of_torch(path: Path) -> Any:
    return torch.load(path, weights_only=False)


def of_numpy(path: Path) -> Any:
    return list(np.load(path, allow_pickle=True).values())


def numpy_twice(path: Path) -> Any:
    with path.open("rb") as file:
        return np.load(file, allow_pickle=True), np.load(file, allow_pickle=True)


def of_export(path: Path) -> Any:
    return torch.export.load(io.BytesIO(path.read_bytes()))  # torch leaves a path open


def of_package(name: str) -> Callable[[Path], Any]:
    def load(path: Path) -> None:
        torch.package.PackageImporter(io.BytesIO(path.read_bytes())).import_module(name)

    return load


# What a loader runs: the file, and the loader that shows it.
RUNS: dict[str, tuple[Callable[[], bytes], Callable[[Path], Any]]] = {
    "a loaded stream of protocol 0": (lambda: loading(long_bytes(stream(EVIL, 0))), pickle_of),
    "a loaded stream of protocol 1": (lambda: loading(long_bytes(stream(EVIL, 1))), pickle_of),
    "a loaded pickle alone": (lambda: loading(long_bytes(EVIL)), pickle_of),
    "a loaded zip": (lambda: loading(long_bytes(tb.torch_zip(EVIL, {}))), pickle_of),
    "a loaded stream, encoded": (lambda: loading(encoded(stream(EVIL, 0), b"latin1")), pickle_of),
    "a loaded stream, encoded by another name": (lambda: loading(encoded(stream(EVIL, 1), b"iso8859-1")), pickle_of),
    "a loaded stream, encoded as UTF-8": (lambda: loading(encoded(stream(EVIL, 0), b"utf-8")), pickle_of),
    "a loaded stream, encoded as ASCII": (lambda: loading(encoded(stream(EVIL, 0), b"U8")), pickle_of),
    "a loaded stream in a view": (
        lambda: loading(b"\x96" + struct.pack("<Q", len(stream(EVIL, 0))) + stream(EVIL, 0) + b"\x98"),
        pickle_of,
    ),
    "a loaded stream, by an attribute": (attribute_of_an_instance, pickle_of),
    "a number with a sign": (lambda: b"\x80\x02c" + MODULE + b"\nran\np+1\n0g1\n(tR.", pickle_of),
    "a number with an underscore": (lambda: b"\x80\x02c" + MODULE + b"\nran\np1_0\n0g10\n(tR.", pickle_of),
    "a number with spaces": (lambda: b"\x80\x02c" + MODULE + b"\nran\np \t1\r\n0g 01 \n(tR.", pickle_of),
    "a number that ends at a NUL": (lambda: b"\x80\x02c" + MODULE + b"\nran\np1\0x\n0g1\n(tR.", pickle_of),
    "a long number": (lambda: b"\x80\x02c" + MODULE + b"\nran\np" + b"0" * 30 + b"1\n0g1\n(tR.", pickle_of),
    "numbers of other bases": (lambda: b"\x80\x02I0x1_0\n0L0b1L\n0Finf\n0I 010\n0" + EVIL, pickle_of),
    "an escaped name": (lambda: b"V" + MODULE + b"\nS'r\\x61n'\n\x93(tR.", pickle_of),
    "a raw escaped name": (lambda: b"V" + MODULE + b"\nVr\\u0061n\n\x93(tR.", pickle_of),
    "a string across a frame, in a file": (dropped_by_a_file, pickle_file),
    "a line across a frame, in a file": (lambda: framed(b"Sxx", b"''\n" + EVIL), pickle_file),
    "a frame in a frame": (lambda: framed(b"N0\x95" + struct.pack("<Q", 3) + b"N0N", b"0" + EVIL), pickle_of),
    "a frame beyond the end": (lambda: framed(EVIL, b"", 999), in_python),
    "a frame that goes on behind STOP": (
        lambda: framed(b"N.", b"N.", 4) + EVIL,
        lambda path: [pickle.load(file) for file in [io.BytesIO(path.read_bytes())] for _ in range(2)],
    ),
    "arguments in a list": (lambda: b"\x80\x02c" + MODULE + b"\nran\n]R.", in_python),
    "arguments in a dict": (lambda: b"\x80\x02c" + MODULE + b"\nran\n}R.", in_python),
    "a buffer that is made readonly": (lambda: b"\x80\x05\x96" + struct.pack("<Q", 1) + b"a\x980" + EVIL, pickle_of),
    "a storage that is an array of objects": (storage_that_is_an_array, of_numpy),
    "a deflated storage that is an array of objects": (lambda: storage_that_is_an_array(True), of_numpy),
    "a second array": (lambda: array("'<f4'", bytes(4)) + array("'|O'", EVIL), numpy_twice),
    "an array behind an array of objects": (lambda: array("'|O'", b"]N.") + array("'|O'", EVIL), numpy_twice),
    "a header of Python 2": (lambda: array("'|O'", EVIL, "(1L,)"), lambda path: np.load(path, allow_pickle=True)),
    "an opaque constant": (lambda: opaque(True), of_export),
    "an opaque constant that denies it": (lambda: opaque(False), of_export),
    "weights in the place of older ones": (old_weights, of_export),
    "code of a package": (lambda: package("pkg"), of_package("pkg.evil")),
    "code of a package in code": (lambda: package("code"), of_package("code.evil")),
    "code of a package below another code": (lambda: package("mycode"), of_package("mycode.evil")),
}


@pytest.mark.parametrize("kind", RUNS)
def test_what_runs_is_never_clean(kind: str, tmp_path: Path) -> None:
    """The loader runs it, so that the file is no straw man; scanning finds it, and runs nothing."""
    make, load = RUNS[kind]
    path = tmp_path / "x.pt2"
    path.write_bytes(make())
    found = bs.scan(path)
    assert RUN == []
    with suppress(Exception):  # what comes after the call may be anything
        load(path)
    assert RUN == ["it"], "the loader does not run it"
    assert found.verdict in ("dangerous", "suspicious"), (found.verdict, found.error)


# What loaders that are not here would run: joblib, and AOTInductor with a compiler.
FOUND: dict[str, Callable[[], bytes]] = {
    "LZMA of a small dictionary": lambda: lzma.compress(
        EVIL, lzma.FORMAT_ALONE, filters=[{"id": lzma.FILTER_LZMA1, "dict_size": 4096}]
    ),
    "a source that AOTInductor compiles": lambda: exported(**{"data__aotinductor__model__x.wrapper.cpp": b"int x;"}),
    "an object that AOTInductor links": lambda: exported(**{"data__aotinductor__model__x.o": b"\x00"}),
    "a program for several processors": lambda: exported(extra__x=b"\xca\xfe\xba\xbe" + bytes(2000)),
    "a class whose attribute is set": lambda: b"\x80\x02ctorch\nTensor\nN}X\1\0\0\0aNs\x86b.",
    "TorchScript with spaces": lambda: zipped(
        **{
            "m__data.pkl": b"\x80\x02}.",
            "m__constants.pkl": b"\x80\x02).",
            "m__code__x.py": b"def f(x):\n  ops . aten . save (x, 'f')\n",
        }
    ),
}


@pytest.mark.parametrize("kind", FOUND)
def test_what_other_loaders_would_run_is_found(kind: str, tmp_path: Path) -> None:
    (tmp_path / "x.pt2").write_bytes(FOUND[kind]())
    found = bs.scan(tmp_path / "x.pt2")
    assert found.verdict in ("dangerous", "suspicious"), (found.verdict, found.error)


# --- folders ----------------------------------------------------------------------------------------------------------


def test_bytes_that_a_distributed_checkpoint_unpickles_are_followed_into_other_files(tmp_path: Path) -> None:
    """The metadata states where an object is: it may be in the middle of a file that is nothing but data."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    checkpoint.save({"w": torch.ones(2), "epoch": 3}, checkpoint_id=tmp_path, no_dist=True)
    assert bs.scan(tmp_path).is_clean
    evil = stream(EVIL, 1)
    bs.save({"t": np.frombuffer(evil, np.uint8)}, tmp_path / "notes.safetensors")
    with (tmp_path / ".metadata").open("rb") as file:
        metadata = pickle.load(file)
    for index, place in metadata.storage_data.items():
        if index.fqn == "epoch":
            place.relative_path, place.length = "notes.safetensors", len(evil)
            place.offset = (tmp_path / "notes.safetensors").read_bytes().index(evil)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    found = bs.scan(tmp_path)
    assert (found.verdict, found.files[0].findings[0].member) == (
        "suspicious",
        f"notes.safetensors[{place_of(metadata)}]",
    )
    assert RUN == []
    with suppress(BaseException):
        checkpoint.load({"w": torch.ones(2), "epoch": 0}, checkpoint_id=tmp_path, no_dist=True)
    assert RUN == ["it"]


def place_of(metadata: Any) -> int:
    return next(place.offset for index, place in metadata.storage_data.items() if index.fqn == "epoch")


def test_an_unpacked_package_is_code(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(package("pkg"))) as archive:
        archive.extractall(tmp_path)
    torch.package.PackageImporter(str(tmp_path / "p")).import_module("pkg.evil")
    assert RUN == ["it"]
    assert bs.scan(tmp_path).verdict == "suspicious"


def test_a_text_that_could_not_be_followed_to_its_end_is_no_document(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(2))
    (tmp_path / "readme.txt").write_text("hello\n" * 10)
    assert bs.scan(tmp_path).is_clean
    (tmp_path / "readme.txt").write_bytes(b"PK\3\4" + b"hello\n" * 100)
    assert bs.scan(tmp_path).verdict == "error"


# --- what is not proved is an error -----------------------------------------------------------------------------------

UNPROVED: dict[str, Callable[[], bytes]] = {
    "a pickle without STOP in a zip": lambda: zipped(**{"a__more.pkl": b"\x80\x02}"}),
    "a pickle that Python refuses": lambda: zipped(**{"a__more.pkl": b"\x80\x02}N)R."}),
    "bytes behind the pickles of a member": lambda: zipped(**{"a__more.pkl": b"\x80\x02}.\xff"}),
    "an opaque object of a module that no name has": lambda: exported(
        data__constants__opaque_obj_0=b"cevil module\nf\n(tR."
    ),
    "a bare pickle with bytes behind it": lambda: b"\x80\x02}.\xff\xff",
    "loaded bytes that are no file": lambda: loading(long_bytes(b"\x00\x01 no pickle")),
    "JSON that cannot be parsed strictly": lambda: exported(
        **{"models__model.json": lambda raw: raw.replace(b"{", b'{"expr_str": "s0", "expr_str": "s1",', 1)}
    ),
}


@pytest.mark.parametrize("kind", UNPROVED)
def test_what_is_not_proved_is_an_error(kind: str, tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(UNPROVED[kind]())
    found = bs.scan(tmp_path / "x.pt")
    assert found.verdict == "error" and isinstance(found.error, bs.BurnstoreError), found.verdict
