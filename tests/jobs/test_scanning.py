"""Scanning: what other programs would run is found in every container, nothing harmless is blamed, nothing is run."""

from __future__ import annotations

import io
import logging
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import burnstore as bs
from burnstore.errors import UnsafeContentError
from burnstore.formats.codec.pickle_trace import UNKNOWN, trace_pickle
from burnstore.jobs.scan.scan import Finding
from burnstore.jobs.scan.severity import severity_of
from fuzz import torch_bytes as tb
from fuzz.pickle_payloads import payloads

torch = pytest.importorskip("torch")

LEGACY = {"_use_new_zipfile_serialization": False}
PAYLOADS = dict(payloads())


def in_a_dict(payload: bytes) -> bytes:
    return tb.pickled(tb.dict_of((tb.text("w"), payload)))


def scanned(folder: Path, data: bytes, name: str = "x.pt") -> bs.ScanResult:
    (folder / name).write_bytes(data)
    return bs.scan(folder / name)


# --- everything that runs is found ------------------------------------------------------------------------------------


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("container", ["zip", "zip, deflated", "legacy", "tar", "bare", "zip in zip"])
def test_every_payload_is_found_in_every_container(container: str, tmp_path: Path) -> None:
    missed = []
    for name, payload in PAYLOADS.items():
        found = scanned(tmp_path, tb.containers(in_a_dict(payload))[container])
        expected = "suspicious" if name.startswith("a class of its own") else "dangerous"
        if found.verdict != expected or not found.findings:
            missed.append((name, found.verdict))
    assert missed == []
    assert len(PAYLOADS) >= 150


def test_scanning_imports_and_runs_nothing(tmp_path: Path) -> None:
    scanned(tmp_path, in_a_dict(PAYLOADS["os.system by REDUCE"]))  # what scanning itself imports is imported now
    events: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("import", "exec", "compile", "os.system", "subprocess.Popen", "pickle.find_class"):
            events.append(f"{event} {arguments}")

    sys.addaudithook(hook)
    for payload in PAYLOADS.values():
        scanned(tmp_path, in_a_dict(payload))
    watching = False
    assert events == []


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
def test_whatever_picklescan_flags_is_flagged(tmp_path: Path) -> None:
    scanner = pytest.importorskip("picklescan.scanner")
    flagged = 0
    for name, payload in PAYLOADS.items():
        data = in_a_dict(payload)
        if scanner.scan_pickle_bytes(io.BytesIO(data), name).issues_count:
            flagged += 1
            assert scanned(tmp_path, data).verdict == "dangerous", name
    assert flagged > 100


@pytest.mark.usefixtures("quiet")
def test_whatever_fickling_flags_is_flagged(tmp_path: Path) -> None:
    fickle = pytest.importorskip("fickling.fickle")
    analysis = pytest.importorskip("fickling.analysis")
    flagged = 0
    for name, payload in PAYLOADS.items():
        data = in_a_dict(payload)
        try:
            verdict = analysis.check_safety(fickle.Pickled.load(io.BytesIO(data)))
        except Exception:  # what it cannot read it does not flag; we must all the same, see above
            continue
        if verdict.severity > analysis.Severity.LIKELY_SAFE:
            flagged += 1
            assert not scanned(tmp_path, data).is_clean, name
    assert flagged > 100


HIDDEN = in_a_dict(tb.call(tb.name("os", "system"), tb.text("id")))
HARMLESS = in_a_dict(tb.integer(1))


def edited(**changes: Any) -> bytes:
    members = tb.torch_members(HIDDEN, {})
    return tb.zipped([tb.replace(m, **changes) if m.name.endswith("data.pkl") else m for m in members])


def array_of_objects(pickled: bytes) -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([1], object), allow_pickle=True)
    header = 10 + int.from_bytes(out.getvalue()[8:10], "little")
    return out.getvalue()[:header] + pickled


PLACES: dict[str, bytes] = {
    "behind the first pickle": HARMLESS + HIDDEN,
    "behind STOP in a zip": tb.torch_zip(HARMLESS + HIDDEN, {}),
    "in a second pickle of a zip": tb.zipped([*tb.torch_members(HARMLESS, {}), tb.Member("archive/more.pkl", HIDDEN)]),
    "in a member without a suffix": tb.zipped([*tb.torch_members(HARMLESS, {}), tb.Member("archive/readme", HIDDEN)]),
    "in the constants of TorchScript": tb.zipped(
        [*tb.torch_members(HARMLESS, {}), tb.Member("archive/constants.pkl", HIDDEN)]
    ),
    "in another folder of a zip": tb.zipped([*tb.torch_members(HARMLESS, {}), tb.Member("other/data.pkl", HIDDEN)]),
    "in a zip whose checksum is wrong": edited(crc=1),
    "in a zip whose name is another one in its header": edited(local_name="archive/nothing"),
    "in a zip that is encrypted by its flag": edited(flags=0x0809),
    "in a zip that is cut": tb.torch_zip(HIDDEN, {})[:-30],
    "in a deflated zip that is cut": tb.torch_zip(HIDDEN, {}, method=8)[:-30],
    "in a zip in a deflated zip": tb.zipped([tb.Member("a/model.pt", tb.torch_zip(HIDDEN, {}), method=8)]),
    "in the facts of a legacy stream": tb.legacy(HARMLESS, {}).replace(
        pickle.dumps(1001, 2), HIDDEN + pickle.dumps(1001, 2), 1
    ),
    "in the facts of a tar": tb.tarred(
        {"sys_info": HIDDEN, "pickle": HARMLESS, "tensors": b"K\0.", "storages": b"K\0."}
    ),
    "in the storages of a tar": tb.tarred({"pickle": HARMLESS, "tensors": b"K\0.", "storages": HIDDEN}),
    "in bytes inside a pickle": pickle.dumps({"a": HIDDEN}),
    "in bytes as Python 2 spells them": pickle.dumps({"a": HIDDEN}, 2),
    "in a zip inside a pickle": pickle.dumps({"a": tb.torch_zip(HIDDEN, {})}),
    "in a pickle of protocol 0": b"cos\nsystem\n(S'id'\ntR.",
    "before a pickle breaks off": b"\x80\x02cos\nsystem\n(X\x02\0\0\0idtR",
    "behind what our machine refuses": b"\x80\x02]K\x01K\x02s0cos\nsystem\n(X\x02\0\0\0idtR.",
    "in an array of objects": array_of_objects(HIDDEN),
}


@pytest.mark.parametrize("data", PLACES.values(), ids=PLACES)
def test_what_is_hidden_is_found(data: bytes, tmp_path: Path) -> None:
    found = scanned(tmp_path, data)
    assert found.verdict == "dangerous"
    assert found.findings[0].name in ("os.system", "posix.system")


def named(data: bytes) -> list[tuple[str, str]]:
    return [(each.module, each.name) for each in trace_pickle(data).names]


def test_a_name_put_together_in_another_way_is_dangerous(tmp_path: Path) -> None:
    made = b"\x80\x04\x8c\x02os" + tb.call(tb.name("builtins", "bytes")) + b"\x93."  # the name is what a call gives
    assert named(made) == [("builtins", "bytes"), ("os", UNKNOWN)]
    assert scanned(tmp_path, made).verdict == "dangerous"


def test_names_by_way_of_the_memo_are_found_where_python_goes_on_and_no_further() -> None:
    data = b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94h\x00h\x01\x93]K\x01K\x02s."
    assert named(data) == [("os", "system")]
    old = b"V" + b"o\\u0073\np0\nS'sys\\x74em'\np1\ng0\ng1\n\x93\xff"
    assert named(old) == [("os", "system")] and not trace_pickle(old).is_whole
    assert named(b"N)R" + tb.name("os", "system") + b".") == []  # Python cannot call None
    assert named(b"R" + tb.name("os", "system") + b".") == []  # nothing is on the stack
    assert named(b"\x80\x09" + tb.name("os", "system") + b".") == []  # no such protocol


def test_where_and_whether_a_name_is_called_is_told(tmp_path: Path) -> None:
    named = tb.name("os", "getpid") + b"0" + tb.call(tb.name("my.models", "Net"))
    found = scanned(tmp_path, tb.torch_zip(in_a_dict(named), {}))
    assert found.findings == (
        Finding("dangerous", "os.getpid", False, "archive/data.pkl", 10),
        Finding("suspicious", "my.models.Net", True, "archive/data.pkl", 22),
    )
    assert found.format == "pytorch" and not found.is_clean
    assert found.to_dict()["findings"][0] == {
        "severity": "dangerous",
        "name": "os.getpid",
        "called": False,
        "member": "archive/data.pkl",
        "position": 10,
        "kind": "import",
    }


def test_the_tensors_of_a_dangerous_file_can_be_taken(tmp_path: Path) -> None:
    raw = np.arange(6, dtype="<f4").tobytes()
    tensor = tb.tensor(tb.storage(tb.text("0"), 6), (2, 3))
    pairs = (tb.text("w"), tensor), (tb.text("evil"), tb.call(tb.name("os", "system"), tb.text("id")))
    found = scanned(tmp_path, tb.torch_zip(tb.pickled(tb.dict_of(*pairs)), {"0": raw}))
    assert found.verdict == "dangerous" and found.tensors == ("w",)
    with bs.open(tmp_path / "x.pt") as file:
        assert file["w"].to_bytes() == raw


# --- nothing harmless is blamed ---------------------------------------------------------------------------------------

BENIGN: dict[str, Any] = {
    "a state dict": lambda: torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).state_dict(),
    "a checkpoint": lambda: {
        "epoch": 3,
        "model": torch.nn.LSTM(2, 3).state_dict(),
        "optimizer": torch.optim.Adam(torch.nn.Linear(2, 3).parameters()).state_dict(),
        "best": torch.tensor(0.5),
        "kind": torch.bfloat16,
        "size": torch.Size([1, 2]),
        "device": torch.device("cpu"),
    },
    "every dtype": lambda: {
        str(kind): torch.zeros(2, dtype=kind)
        for kind in (torch.float64, torch.int8, torch.bool, torch.uint16, torch.complex64, torch.float8_e4m3fn)
    },
    "parameters": lambda: {"p": torch.nn.Parameter(torch.ones(2)), "b": torch.nn.Buffer(torch.ones(2))},
    "sparse and quantized": lambda: {
        "s": torch.ones(2).to_sparse(),
        "q": torch.quantize_per_tensor(torch.ones(3), 0.5, 1, torch.qint8),
    },
    "numpy": lambda: {"a": np.arange(3), "s": np.float64(2)},
}


@pytest.mark.parametrize("options", [{}, LEGACY, {"pickle_protocol": 5}], ids=["zip", "legacy", "protocol 5"])
@pytest.mark.parametrize("kind", BENIGN)
@pytest.mark.filterwarnings("ignore")  # torch is about to drop its quantized tensors, and says so
def test_files_of_tensors_are_clean(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    torch.save(BENIGN[kind](), tmp_path / "x.pt", **options)
    found = bs.scan(tmp_path / "x.pt")
    assert found.is_clean and found.findings == () and found.tensors and found.error is None


def test_a_whole_model_is_suspicious_as_it_needs_its_code(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 3), tmp_path / "x.pt")
    found = bs.scan(tmp_path / "x.pt")
    assert found.verdict == "suspicious" and found.tensors == ("weight", "bias")
    assert found.findings[0].name == "torch.nn.modules.linear.Linear" and found.findings[0].called


def test_other_formats_are_clean_if_they_open(tmp_path: Path) -> None:
    for name in ("model.bpk", "model.safetensors"):
        bs.save({"w": np.ones(2, np.float32)}, tmp_path / name)
        found = bs.scan(tmp_path / name)
        assert (found.verdict, found.tensors) == ("clean", ("w",))
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[:-1])
        broken = bs.scan(tmp_path / name)
        assert broken.verdict == "error" and broken.error is not None


def test_pickles_without_tensors_and_arrays_of_numbers_are_clean(tmp_path: Path) -> None:
    assert scanned(tmp_path, pickle.dumps([1, "a", {"b": 2.5}]), "x.pkl").is_clean
    np.save(tmp_path / "x.npy", np.arange(3))
    np.savez(tmp_path / "x.npz", a=np.arange(3))
    assert bs.scan(tmp_path / "x.npy").is_clean
    assert bs.scan(tmp_path / "x.npz").is_clean


@pytest.mark.parametrize("data", [b"", b"hello, world", b"\x80\x02}", tb.torch_zip(HARMLESS, {})[:-5]])
def test_what_cannot_be_judged_is_an_error(data: bytes, tmp_path: Path) -> None:
    found = scanned(tmp_path, data)
    assert found.verdict == "error" and isinstance(found.error, bs.errors.BurnstoreError)


def test_a_missing_file_is_told_by_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bs.scan(tmp_path / "missing.pt")


@pytest.mark.parametrize(
    ("module", "name", "severity"),
    [
        ("os", "system", "dangerous"),
        ("os.path", "join", "dangerous"),
        ("__builtin__", "eval", "dangerous"),
        ("builtins", "getattr", "dangerous"),
        ("collections", "OrderedDict.__init__.__globals__", "dangerous"),
        ("torch", "_utils._rebuild_tensor_v2", "suspicious"),
        ("torch", "jit.load", "dangerous"),
        ("torch.storage", "_load_from_bytes", "suspicious"),
        ("torch._utils", "_rebuild_tensor_v2", "harmless"),
        ("__builtin__", "set", "harmless"),
        ("torch.cuda", "FloatStorage", "harmless"),
        ("anything", "Else", "suspicious"),
        ("pathlib", "PosixPath", "harmless"),
        ("pathlib", "Path.write_text", "dangerous"),
    ],
)
def test_names_are_judged_however_they_are_split(module: str, name: str, severity: str) -> None:
    assert severity_of(module, name) == severity


@given(st.binary(max_size=200), st.sampled_from([b"", b"PK\3\4", b"\x80\x02", b"\x80\x04\x8c", b"\x93NUMPY\1\0"]))
def test_noise_gets_a_verdict(tmp_path_factory: pytest.TempPathFactory, noise: bytes, head: bytes) -> None:
    found = scanned(tmp_path_factory.mktemp("noise", numbered=True), head + noise)
    assert found.verdict in ("clean", "suspicious", "dangerous", "error")


@pytest.mark.slow("files of every length")
@pytest.mark.parametrize("container", ["zip", "zip, deflated", "legacy", "tar", "bare", "zip in zip"])
def test_a_file_that_was_cut_behind_what_it_hides_is_never_clean(container: str, tmp_path: Path) -> None:
    whole = tb.containers(HIDDEN)[container]
    for end in range(0, len(whole), 7):
        found = scanned(tmp_path, whole[:end])
        assert not found.is_clean or (container == "legacy" and b"system" not in whole[:end])  # whole pickles before it


def test_more_pickles_than_anybody_can_look_at_are_an_error(tmp_path: Path) -> None:
    inner = pickle.dumps(1, 2)
    found = scanned(tmp_path, pickle.dumps([inner + b"%d" % at for at in range(20_001)], 4))
    assert found.verdict == "error" and isinstance(found.error, bs.errors.LimitError)
    deep = HARMLESS
    for _ in range(6):
        deep = pickle.dumps(deep, 4)
    assert scanned(tmp_path, deep).verdict == "error"


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_is_scanned_with_all_below_it(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "b.bin").write_bytes(tb.torch_zip(HIDDEN, {}))
    (tmp_path / "a.pkl").write_bytes(HIDDEN)
    (tmp_path / "readme.md").write_text("hello")
    (tmp_path / "broken.pt").write_bytes(b"nothing")
    (tmp_path / "no_suffix").write_bytes(HIDDEN)
    bs.save({"w": np.ones(2, np.float32)}, tmp_path / "c.safetensors")
    found = {os.path.relpath(scan.path, tmp_path): scan.verdict for scan in bs.scan(tmp_path).files}
    assert found == {
        "a.pkl": "dangerous",
        "broken.pt": "error",
        "c.safetensors": "clean",
        "no_suffix": "dangerous",
        os.path.join("deep", "er", "b.bin"): "dangerous",
    }
    whole = bs.scan(tmp_path)
    assert whole.verdict == "dangerous" and not whole.is_clean and whole.path == str(tmp_path)
    assert [file["verdict"] for file in whole.to_dict()["files"]] == [file.verdict for file in whole.files]
    assert "files" not in whole.files[0].to_dict()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_out_of_a_folder_are_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "x.pkl").write_bytes(HIDDEN)
    (inside / "own.pkl").write_bytes(HARMLESS)
    (inside / "file.pkl").symlink_to(outside / "x.pkl")
    (inside / "folder").symlink_to(outside)
    (inside / "same.pkl").symlink_to(inside / "own.pkl")
    os.mkfifo(inside / "pipe.pkl")
    found = {os.path.basename(scan.path): scan for scan in bs.scan(inside).files}
    assert {name: scan.verdict for name, scan in found.items()} == {
        "file.pkl": "error",
        "folder": "error",
        "own.pkl": "clean",
        "same.pkl": "clean",
    }
    assert isinstance(found["folder"].error, UnsafeContentError) and "not followed" in str(found["file.pkl"].error)
