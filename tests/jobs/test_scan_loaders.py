"""A file is clean only if no loader that people use would run code in it; and what torch writes is clean (law 10)."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import struct
import tarfile
import time
import warnings
import zipfile
import zlib
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


def evil() -> bytes:
    """A pickle that calls a function of this module, so that a test can see whether a loader runs it."""
    return tb.pickled(tb.call(tb.name(__name__, "ran"), tb.text("it")))


def ran(what: str) -> int:
    RUN.append(what)
    return 1


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    RUN.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def scanned(folder: Path, data: bytes, name: str = "x.pt") -> bs.ScanResult:
    (folder / name).write_bytes(data)
    return bs.scan(folder / name)


def legacy_stream() -> bytes:
    out = io.BytesIO()
    torch.save({"a": torch.ones(3)}, out, _use_new_zipfile_serialization=False)
    return out.getvalue()


def zipped(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/"), data)
    return out.getvalue()


def tarred(*members: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for member in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member[0])
            data = b"" if isinstance(member, tarfile.TarInfo) else member[1]
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def array_of(descr: str, version: int = 1, data: bytes | None = None) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes((version, 0)) + length + header.encode() + (evil() if data is None else data)


def without_magic(data: bytes) -> bytes:
    """A tar of before POSIX: Python reads it, although nothing in it says that it is one."""
    head = bytearray(data[:512])
    head[257:265] = bytes(8)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + data[512:]


def safetensors(raw: bytes) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(raw)], "data_offsets": [0, len(raw)]}}).encode()
    return struct.pack("<Q", len(header)) + header + raw


def safetensors_with_a_zip() -> bytes:
    """A file of SafeTensors whose tensor is a zip with offsets from the file's beginning."""
    length = len(tb.zipped(tb.torch_members(evil(), {}), align=1))
    prefix = len(safetensors(bytes(length))) - length
    archive = tb.zipped(tb.torch_members(evil(), {}), align=1, prefix=bytes(prefix))[prefix:]
    assert len(archive) == length
    return safetensors(archive)


def exported(**changes: Any) -> bytes:
    """The archive of torch.export.save, with members added or replaced."""
    out = io.BytesIO()
    module = torch.nn.Linear(3, 2).eval()
    torch.export.save(torch.export.export(module, (torch.ones(1, 3),)), out)
    with zipfile.ZipFile(out) as archive:
        root = archive.namelist()[0].split("/")[0]
        members = {name.removeprefix(f"{root}/"): archive.read(name) for name in archive.namelist()}
    for name, change in changes.items():
        path = name.replace("__", "/")
        members[path] = change(members.get(path, b"")) if callable(change) else change
    return tb.zipped([tb.Member(f"{root}/{name}", data) for name, data in members.items()])


def pickled_weight() -> bytes:
    def edit(raw: bytes) -> bytes:
        table = json.loads(raw)
        table["config"]["weight"] |= {"use_pickle": True, "path_name": "weight_0"}
        return json.dumps(table).encode()

    inner = tb.torch_zip(evil(), {})
    return exported(**{"data__weights__model_weights_config.json": edit, "data__weights__weight_0": inner})


def opaque_constant() -> bytes:
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    table = json.dumps({"config": {"c": entry}}).encode()
    return exported(**{"data__constants__model_constants_config.json": table, "data__constants__opaque_obj_0": evil()})


def expression(text: str) -> bytes:
    def edit(raw: bytes) -> bytes:
        program = json.loads(raw)
        program["range_constraints"]["s0"] = {"expr_str": text}
        return json.dumps(program).encode()

    return exported(**{"models__model.json": edit})


def in_base64_of_numbers() -> bytes:
    """The bytes that torch would load are put together by a call, so that no string of the pickle shows them."""
    listed = b"](" + b"".join(tb.integer(byte) for byte in tb.legacy(evil(), {})) + b"e"
    made = tb.call(tb.name("builtins", "bytes"), listed)
    return tb.pickled(tb.call(tb.name("torch.storage", "_load_from_bytes"), made))


def by_way_of_a_rebuild() -> bytes:
    """A harmless function that calls another, which loads a pickle."""
    raw = tb.legacy(evil(), {})
    inner = tb.tuple_of(b"B" + struct.pack("<I", len(raw)) + raw)
    load, kind = tb.name("torch.storage", "_load_from_bytes"), tb.name("torch", "Tensor")
    return tb.pickled(tb.call(tb.name("torch._tensor", "_rebuild_from_type_v2"), load, kind, inner, b"}"))


FILES: dict[str, Callable[[], bytes]] = {
    "a pickle before a zip": lambda: evil() + tb.torch_zip(tb.pickled(b"}"), {}),
    "a zip behind a pickle of data": lambda: pickle.dumps({"a": 1}) + zipped(a__data=evil()),
    "a zip inside SafeTensors": safetensors_with_a_zip,
    "a zip behind a picture": lambda: b"\x89PNG\r\n\x1a\n" + bytes(100) + zipped(**{"model__data.pkl": evil()}),
    "an archive of no known name": lambda: zipped(readme=evil()),
    "a tar without a magic number": lambda: without_magic(tarred(("pickle", evil()))),
    "a tar in a zip in a tar": lambda: tarred(("a.zip", zipped(inner__tar=tarred(("pickle", evil()))))),
    "a member of a tar that leads out": lambda: tarred(("../../x", b"data")),
    "a link of a tar": lambda: tarred(link("storages", "/etc/passwd")),
    "gzip": lambda: gzip.compress(evil()),
    "the second stream of a gzip": lambda: gzip.compress(b"") + gzip.compress(evil()),
    "a long pickle in gzip": lambda: gzip.compress(tb.pickled(b"(" + b"N" * 2_000_000 + b"1" + evil()[2:-1])),
    "zlib": lambda: zlib.compress(evil()),
    "bz2": lambda: bz2.compress(evil()),
    "xz": lambda: lzma.compress(evil()),
    "lzma": lambda: lzma.compress(evil(), lzma.FORMAT_ALONE),
    "an array of objects": lambda: array_of("'|O'"),
    "an array of objects, spelled otherwise": lambda: array_of("'object'"),
    "an array of objects, with a width": lambda: array_of("'O8'"),
    "an array of objects, escaped": lambda: array_of("'\\x4f'"),
    "an array of records with objects": lambda: array_of("[('a', '<f4'), ('b', '|O')]"),
    "an array of objects, version 3": lambda: array_of("'|O'", 3),
    "an array in a zip": lambda: zipped(a=array_of("'|O'")),
    "a pickled weight": pickled_weight,
    "a constant that is an object": opaque_constant,
    "a shared library": lambda: exported(**{"data__aotinductor__model__x.so": b"\x7fELF" + bytes(2000)}),
    "an expression": lambda: expression("__import__('os').system('id')"),
    "an expression without quotes": lambda: expression("s0.func.mro"),
    "an expression that calls": lambda: expression("preview(s0)"),
    "a storage that nothing refers to": lambda: tb.torch_zip(tb.pickled(b"}"), {"7": evil()}),
    "a pickle without a protocol": lambda: tb.torch_zip(
        tb.storage(tb.text("0"), 1) + b"0" + evil()[2:], {"0": bytes(4)}
    ),
    "bytes that a call makes": in_base64_of_numbers,
    "a load by way of a rebuild": by_way_of_a_rebuild,
    "TorchScript that writes files": lambda: zipped(
        **{
            "m__data.pkl": tb.pickled(b"}"),
            "m__constants.pkl": tb.pickled(b")"),
            "m__code__x.py": b"def f(x):\n  torch.save(x, 'f')\n",
        }
    ),
    "a second object behind a legacy stream": lambda: legacy_stream() * 3 + evil(),
    "a wrong checksum": lambda: tb.zipped(
        [tb.replace(m, crc=5) if "pkl" in m.name else m for m in tb.torch_members(evil(), {})]
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_what_a_loader_would_run_is_never_clean(kind: str, tmp_path: Path) -> None:
    found = scanned(tmp_path, FILES[kind]())
    assert found.verdict in ("dangerous", "suspicious"), (found.verdict, found.error)
    assert RUN == []


LOADERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "pickle": ("a pickle before a zip", lambda path: pickle.loads(path.read_bytes())),
    "numpy": ("an array of objects, escaped", lambda path: np.load(path, allow_pickle=True)),
    "numpy zip": ("an array in a zip", lambda path: list(np.load(path, allow_pickle=True).values())),
    "torch": ("a wrong checksum", lambda path: torch.load(path, weights_only=False)),
    "torch export": ("a pickled weight", torch.export.load),
    "torch export, constants": ("a constant that is an object", torch.export.load),
    "torch, no protocol": ("a pickle without a protocol", lambda path: torch.load(path, weights_only=False)),
    "torch, bytes": ("bytes that a call makes", lambda path: pickle.loads(path.read_bytes())),
}


@pytest.mark.parametrize("loader", LOADERS)
def test_the_loaders_would_run_it(loader: str, tmp_path: Path) -> None:
    """The files above are no straw men."""
    kind, load = LOADERS[loader]
    path = tmp_path / "x.pt2"
    path.write_bytes(FILES[kind]())
    with suppress(Exception):  # what comes after the call may be anything
        load(path)
    assert RUN == ["it"]


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)
        self.register_buffer("mask", torch.ones(2), persistent=False)

    def forward(self, x):
        return self.fc(x) * self.mask


def dynamic() -> bytes:
    out = io.BytesIO()
    rows = torch.export.Dim("rows", max=64)
    torch.export.save(torch.export.export(Net().eval(), (torch.ones(4, 3),), dynamic_shapes=({0: rows},)), out)
    return out.getvalue()


def of_jit(make: Callable[[Any], Any]) -> Callable[[], bytes]:
    def write() -> bytes:
        out = io.BytesIO()
        torch.jit.save(make(Net().eval()), out)
        return out.getvalue()

    return write


def saved(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


CLEAN: dict[str, Callable[[], bytes]] = {
    "a scripted model": of_jit(torch.jit.script),
    "a traced model": of_jit(lambda net: torch.jit.trace(net, torch.ones(1, 3))),
    "a frozen model": of_jit(lambda net: torch.jit.freeze(torch.jit.script(net))),
    "an exported program": exported,
    "an exported program with dynamic shapes": dynamic,
    "tensors that look like pickles": lambda: saved({"w": torch.frombuffer(bytearray(evil() * 9), dtype=torch.uint8)}),
    "a pickled state dict": lambda: pickle.dumps(Net().state_dict()),
    "a pickled state dict of protocol 2": lambda: pickle.dumps(Net().state_dict(), 2),
    "arrays in a zip": lambda: zipped(**{"a.npy": array_of("'<f4'", data=bytes(4))}),
    "gzip of text": lambda: zipped(**{"a.gz": gzip.compress(b"class A:\n  pass\n" * 9)}),
    "text that begins like an opcode": lambda: zipped(code__a=b"class M(Module):\n  pass\n", b=b"import os\nos\n"),
}


@pytest.mark.parametrize("kind", CLEAN)
def test_what_torch_writes_is_clean(kind: str, tmp_path: Path) -> None:
    found = scanned(tmp_path, CLEAN[kind]())
    assert found.verdict == "clean", (found.findings, found.error)


def test_a_distributed_checkpoint_is_clean(tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    state = {"m": Net().state_dict(), "epoch": 3, "list": [1, {"a": torch.ones(2)}]}
    checkpoint.save(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    found = bs.scan(tmp_path / "saved")
    assert {os.path.basename(file.path): file.verdict for file in found.files} == {
        ".metadata": "clean",
        "__0_0.distcp": "clean",
    }
    assert found.is_clean


SLOW: dict[str, Callable[[], bytes]] = {
    "headers of members": lambda: (b"PK\3\4" + bytes(26)) * 30_000,
    "headers of deflated members": lambda: (b"PK\3\4" + bytes(4) + b"\x08" + bytes(21)) * 20_000,
    "ends of zips": lambda: b"PK\3\4" + b"PK\5\6" * 250_000,
    "pickles in strings": lambda: pickle.dumps([pickle.dumps([n] * 40, 4) for n in range(9_000)], 4),
    "strings in strings": lambda: nested_strings(),
    "names": lambda: tb.pickled(b"".join(tb.name("m", f"n{n}") + b"0" for n in range(100_000)) + b"N"),
    "marks": lambda: b"\x80\x02" + b"(" * 1_000_000,
    "pickles in a row": lambda: b"\x80\x02N." * 250_000,
    "tar headers": lambda: tarred(*((str(n), b"") for n in range(1_900))),
    "lines": lambda: b"\x80\x02" + b"I1\n0" * 250_000,
}


def nested_strings() -> bytes:
    data = bytes(900_000)
    for _ in range(8):
        data = pickle.dumps(data, 4)
    return data


@pytest.mark.slow("bombs")
@pytest.mark.parametrize("kind", SLOW)
def test_the_time_of_a_scan_is_linear(kind: str, tmp_path: Path) -> None:
    data = SLOW[kind]()
    assert len(data) < 2_100_000
    started = time.process_time()
    scanned(tmp_path, data)
    assert time.process_time() - started < 10  # about 2 s on a machine with nothing else to do


# --- streams that are damaged or cannot be unpacked -------------------------------------------------------------------

NOISE = np.random.default_rng(1).bytes
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE),
    "zlib": zlib.compress,
}


def in_zip(data: bytes, name: str = "member") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(name, data)
    return made.getvalue()


@pytest.mark.parametrize("place", ["alone", "zip"])
@pytest.mark.parametrize("packer", PACKERS)
def test_what_a_damaged_stream_unpacks_to_before_its_damage_is_judged(packer: str, place: str, tmp_path: Path) -> None:
    for padding in (0, 100_000):
        packed = PACKERS[packer](evil() + NOISE(padding))
        wrong_sum = packed[:-2] + bytes([packed[-2] ^ 0xFF, packed[-1]])
        for data in (wrong_sum, packed[:-3]):
            (tmp_path / "file").write_bytes(data if place == "alone" else in_zip(data))
            found = bs.scan(tmp_path / "file")
            assert found.verdict in ("dangerous", "suspicious"), (padding, found)


@pytest.mark.parametrize("packer", PACKERS)
def test_the_end_of_a_damaged_stream_is_named_as_not_judged(packer: str, tmp_path: Path) -> None:
    packed = PACKERS[packer](NOISE(5000))
    (tmp_path / "whole.zip").write_bytes(in_zip(packed))
    assert bs.scan(tmp_path / "whole.zip").is_clean
    (tmp_path / "cut.zip").write_bytes(in_zip(packed[:2500]))
    found = bs.scan(tmp_path / "cut.zip")
    assert found.verdict == "error" and "damaged" in str(found.error)


@pytest.mark.parametrize("space", [b"", b" "])
def test_old_files_of_joblib_are_unpacked(space: bytes, tmp_path: Path) -> None:
    data = evil()
    (tmp_path / "old.joblib").write_bytes(b"ZF" + hex(len(data)).encode().ljust(19) + space + zlib.compress(data))
    assert bs.scan(tmp_path / "old.joblib").findings


@pytest.mark.parametrize("magic", [b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd", b"\x89HDF\r\n\x1a\n"])
def test_data_that_cannot_be_unpacked_are_never_clean(magic: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(in_zip(magic + bytes(100)))
    found = bs.scan(tmp_path / "a.zip")
    assert found.verdict == "error" and "cannot be judged" in str(found.error)


def test_sources_in_a_package_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(in_zip(b"import os", "pkg/model.py"))
    (finding,) = bs.scan(tmp_path / "a.pt").findings
    assert (finding.severity, finding.kind, finding.name) == ("suspicious", "Python source", "pkg/model.py")


def test_a_folder_names_what_it_cannot_judge_and_skips_texts_and_pictures(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    (tmp_path / "README.md").write_text("Grüße")
    (tmp_path / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + NOISE(50))
    assert bs.scan(tmp_path).is_clean
    (tmp_path / "tokens.model").write_bytes(b"\xff\xfe\x00" + NOISE(50))
    found = bs.scan(tmp_path)
    assert found.verdict == "error"
    assert [os.path.basename(file.path) for file in found.files if file.verdict == "error"] == ["tokens.model"]


def test_a_vocabulary_beside_a_model_is_data_and_nothing_that_only_begins_like_one(tmp_path: Path) -> None:
    pieces = b"".join(
        b"\x0a\x0e\x0a\x05" + text + b"\x15\x00\x00\xc0\xbf\x18\x03" for text in (b"<unk>", b"\xe2\x96\x81a\0")
    )
    vocabulary = pieces + b"\x12\xc8\x01" + bytes(200) + b"\x1a\x02nf"
    np.savez(tmp_path / "model.npz", w=np.ones(2))
    (tmp_path / "tokenizer.model").write_bytes(vocabulary)
    assert bs.scan(tmp_path).is_clean
    program = b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00idq\x00\x85R."
    for other in (
        vocabulary[:-1],
        vocabulary + b"\0",
        b"\n" + bytes(300),
        vocabulary + program,
        b"\x0a\xff\xff\xff\xff\xff",
    ):
        (tmp_path / "tokenizer.model").write_bytes(other)
        assert bs.scan(tmp_path).verdict == "error"
    (tmp_path / "tokenizer.model").write_bytes(program)
    assert bs.scan(tmp_path).verdict == "dangerous"


def test_large_arrays_that_are_compressed_well_are_clean_without_being_unpacked(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(40 << 20, np.uint8), b=np.ones(3))
    assert bs.scan(tmp_path / "a.npz").is_clean
    np.savez_compressed(tmp_path / "a.npz", a=np.array([ran], object), b=np.zeros(40 << 20, np.uint8))
    assert bs.scan(tmp_path / "a.npz").verdict == "suspicious"
