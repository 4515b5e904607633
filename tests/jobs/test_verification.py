"""verify: that a file is whole from its first byte to its last, and that its numbers are finite."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore.jobs.stats import count_specials
from burnstore.jobs.verify.verify import parse_digest

FIXTURES = Path(__file__).parents[1] / "fixtures"
F32 = np.float32


def rand(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


MODEL = {"fc.weight": rand(4, 3), "fc.bias": rand(5), "ids": np.arange(3), "mask": np.array([True, False, True])}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bs.save(MODEL, tmp_path / "model.bpk")
    bs.save(MODEL, tmp_path / "model.safetensors")
    return tmp_path


def edited(path: Path, offset: int, value: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] = value
    path.write_bytes(raw)


# --- whole files ------------------------------------------------------------------------------------------------------

WHOLE = [*sorted(FIXTURES.glob("burn/*/*.bpk"))[::5], *sorted(FIXTURES.glob("records/0.[12][61].?/*.mpk*"))[::5]]


@pytest.mark.parametrize("file", WHOLE, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_files_that_burn_wrote_are_whole(file: Path) -> None:
    found = bs.verify(file)
    with bs.open(file) as f:
        assert [tensor.name for tensor in found.tensors] == list(f)
        assert (found.format, found.variant, found.layout) == (f.format, f.variant, f.layout)
        counts = [count_nan(tensor.numpy()) for tensor in f.values()]
    assert found.is_whole and found.is_expected and not found.warnings
    assert [tensor.nan_count for tensor in found.tensors] == counts


def count_nan(values: Any) -> int:
    return int(np.isnan(values.astype(np.float64)).sum())


@pytest.mark.parametrize("name", ["model.bpk", "model.safetensors"])
def test_files_of_ours_are_fine(folder: Path, name: str) -> None:
    found = bs.verify(folder / name)
    assert found.ok and found.file_size == (folder / name).stat().st_size
    assert found.digest is None and all(tensor.digest is None for tensor in found.tensors)


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
def test_files_of_torch_are_fine(tmp_path: Path, options: dict[str, Any]) -> None:
    import torch

    torch.save(
        {"w": torch.randn(40, 3), "t": torch.randn(4, 5).T, "h": torch.ones(3).half()}, tmp_path / "m.pt", **options
    )
    found = bs.verify(tmp_path / "m.pt")
    assert found.ok and len(found.tensors) == 3


def test_a_set_of_shards_is_verified_as_one(tmp_path: Path) -> None:
    bs.save({f"w{at}": rand(100 + at) for at in range(5)}, tmp_path / "m.safetensors", max_shard_size=500)
    found = bs.verify(tmp_path / "m.safetensors.index.json")
    assert found.ok and len(found.tensors) == 5
    shard = sorted(tmp_path.glob("m-*.safetensors"))[0]
    bs.save({"other": rand(3)}, shard, overwrite=True)
    broken = bs.verify(tmp_path / "m.safetensors.index.json")
    assert not broken.is_whole and broken.errors[0].rule == "SH-07"


def test_a_record_that_does_not_tell_its_dtypes_is_told_of() -> None:
    found = bs.verify(FIXTURES / "records" / "0.13.2" / "tiny.namedmpkgz.half.mpk.gz")
    assert isinstance(found.errors[0], bs.errors.UnsupportedError) and found.errors[0].rule == "BR-13"


# --- what is broken ---------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_opened_is_told_of_with_its_rule(folder: Path) -> None:
    raw = (folder / "model.bpk").read_bytes()
    (folder / "cut.bpk").write_bytes(raw[:-2])
    found = bs.verify(folder / "cut.bpk")
    assert not found.is_whole and not found.ok and found.format is None
    assert found.errors[0].rule == "BP-15" and found.errors[0].path == str(folder / "cut.bpk")
    assert json.loads(json.dumps(found.to_dict()))["errors"][0]["kind"] == "TruncatedError"


@pytest.mark.parametrize("name", ["model.bpk", "model.safetensors"])
def test_a_bool_that_is_none_is_found_and_hides_nothing_else(folder: Path, name: str) -> None:
    with bs.open(folder / name) as f:
        mask, bias = f.offset_of("mask"), f.offset_of("fc.bias")
    edited(folder / name, mask, 9)
    raw = bytearray((folder / name).read_bytes())
    raw[bias : bias + 4] = F32(np.inf).tobytes()
    (folder / name).write_bytes(raw)
    whole = bs.verify(folder / name, digests=True)
    found = {tensor.name: tensor for tensor in whole.tensors}
    assert not whole.is_whole and not whole.is_finite and not whole.errors
    assert isinstance(found["mask"].error, bs.errors.CorruptError) and found["mask"].digest is None
    assert found["mask"].error.tensor == "mask"
    assert (found["fc.bias"].inf_count, found["fc.bias"].error) == (1, None)


def torch_zip(path: Path, **members: bytes) -> None:
    import torch

    torch.save({"w": torch.arange(300, dtype=torch.float32), "b": torch.ones(7)}, path)
    if members:
        with zipfile.ZipFile(path) as archive:
            held = {name: archive.read(name) for name in archive.namelist()}
        root = next(iter(held)).partition("/")[0]
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in {**held, **{f"{root}/{name}": data for name, data in members.items()}}.items():
                archive.writestr(name, data)


def test_a_bit_that_was_flipped_in_a_zip_of_torch_is_found_by_its_checksum(tmp_path: Path) -> None:
    torch_zip(tmp_path / "m.pt")
    with bs.open(tmp_path / "m.pt") as f:
        offset = f.offset_of("w")
    edited(tmp_path / "m.pt", offset + 1003, 0x41)
    with bs.open(tmp_path / "m.pt") as f:
        f.numpy()  # opening and reading do not notice
    found = bs.verify(tmp_path / "m.pt")
    assert not found.is_whole and len(found.errors) == 1
    assert found.errors[0].rule == "PT-09" and "/data/" in found.errors[0].message
    assert found.errors[0].path == str(tmp_path / "m.pt")


def test_members_that_no_tensor_refers_to_are_checked_too(tmp_path: Path) -> None:
    torch_zip(tmp_path / "m.pt", extra=b"nobody reads this")
    assert bs.verify(tmp_path / "m.pt").ok
    at = (tmp_path / "m.pt").read_bytes().index(b"nobody")
    edited(tmp_path / "m.pt", at, ord("N"))
    assert "extra" in bs.verify(tmp_path / "m.pt").errors[0].message


def test_deflated_members_are_checked(tmp_path: Path) -> None:
    torch_zip(tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "m.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in held.items():
            archive.writestr(name, data)
    assert bs.verify(tmp_path / "m.pt").ok
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        info = next(each for each in archive.infolist() if each.filename.endswith("data/0"))
    at = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
    edited(tmp_path / "m.pt", at, (tmp_path / "m.pt").read_bytes()[at] ^ 0x55)
    found = bs.verify(tmp_path / "m.pt")
    assert not found.is_whole and found.errors[0].rule in ("PT-07", "PT-09")


def test_the_checksum_of_a_compressed_record_is_checked(tmp_path: Path) -> None:
    file = sorted(FIXTURES.glob("records/0.21.0/*.mpk.gz"))[0]
    raw = bytearray(file.read_bytes())
    raw[-6] ^= 1
    (tmp_path / "m.mpk.gz").write_bytes(raw)
    found = bs.verify(tmp_path / "m.mpk.gz")
    assert not found.is_whole and found.errors[0].rule == "BR-02"
    (tmp_path / "m.mpk.gz").write_bytes(gzip.compress(gzip.decompress(file.read_bytes())))
    assert bs.verify(tmp_path / "m.mpk.gz").is_whole


def test_padding_between_tensors_that_is_not_zero_is_odd(folder: Path) -> None:
    with bs.open(folder / "model.bpk") as f:
        first = next(iter(f))
        end = f.offset_of(first) + f[first].nbytes
    edited(folder / "model.bpk", end + 3, 1)
    found = bs.verify(folder / "model.bpk")
    assert found.is_whole and not found.ok
    assert found.warnings == ("1 byte between tensors is not zero, as padding is (BP-16)",)


def test_values_that_were_never_saved_are_told_of(tmp_path: Path) -> None:
    import torch

    torch.save({"w": torch.ones(3), "m": torch.empty(3, device="meta")}, tmp_path / "m.pt")
    found = bs.verify(tmp_path / "m.pt")
    assert found.is_whole and not found.ok
    assert [isinstance(tensor.error, bs.errors.UnsupportedError) for tensor in found.tensors] == [False, True]


def test_a_missing_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bs.verify(tmp_path / "absent.bpk")


# --- NaN and infinities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["F64", "F32", "Flex32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"]
)
def test_specials_are_those_that_numpy_sees(name: str) -> None:
    dtype = bs.DType.parse(name)
    if dtype.bits <= 16:
        codes = np.arange(2**dtype.bits, dtype=f"<u{dtype.bits // 8}")
    else:
        values = np.array([0.0, -0.0, 1, np.nan, -np.nan, np.inf, -np.inf, np.finfo(dtype.numpy).max], dtype.numpy)
        codes = np.append(values.view(f"<u{dtype.bits // 8}"), 1)  # and the smallest of all
    with np.errstate(all="ignore"):
        values = codes.view(dtype.numpy).astype(np.float64)
    assert count_specials(codes.view(np.uint8), dtype) == (np.isnan(values).sum(), np.isinf(values).sum())


@pytest.mark.parametrize("name", ["I64", "U8", "F4", "F6_E2M3", "F6_E3M2"])
def test_what_has_no_nan_has_none(name: str) -> None:
    assert count_specials(memoryview(b"\xff" * 24), bs.DType.parse(name)) == (0, 0)


def test_a_complex_number_counts_once() -> None:
    values = np.array([complex(np.nan, np.nan), complex(np.inf, 1), complex(np.nan, np.inf), 1], np.complex64)
    assert count_specials(values.view(np.uint8), bs.DType.C64) == (2, 1)


def test_quantized_tensors_count_as_the_numbers_that_they_stand_for(tmp_path: Path) -> None:
    from burnstore.tensor.quantization import QuantizedTensor, QuantScheme, QuantStore, encode

    scheme = QuantScheme("Q8S", QuantStore("Native"))
    raw = encode(QuantizedTensor(np.int8([1, 2, 3]), F32([np.inf]), None, scheme, (3,)))
    data = bs.TensorData.from_bytes(raw, bs.DType.qfloat(scheme), (3,))
    bs.save([bs.TensorSnapshot.from_data("q", data)], tmp_path / "q.bpk")
    (found,) = bs.verify(tmp_path / "q.bpk", digests=True).tensors
    assert found.inf_count == 3 and found.digest == f"sha256:{hashlib.sha256(raw).hexdigest()}"


def test_parts_of_a_large_tensor_are_all_counted(tmp_path: Path) -> None:
    values = np.zeros(300_001, F32)
    values[[0, 98_304, 98_303, 300_000]] = np.nan
    values[200_000] = -np.inf
    bs.save({"w": values}, tmp_path / "m.bpk")
    (found,) = bs.verify(tmp_path / "m.bpk").tensors
    assert (found.nan_count, found.inf_count) == (4, 1)


# --- digests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_the_expected_digest_is_compared(folder: Path, algorithm: str) -> None:
    expected = hashlib.new(algorithm, (folder / "model.bpk").read_bytes()).hexdigest()
    for spelled in (f"{algorithm}:{expected}", expected.upper(), f" {expected}\n"):
        found = bs.verify(folder / "model.bpk", digest=spelled)
        assert found.ok and found.digest == f"{algorithm}:{expected}"
    wrong = bs.verify(folder / "model.safetensors", digest=expected)
    assert wrong.is_whole and not wrong.is_expected and not wrong.ok


def test_every_tensor_has_its_digest_if_wanted(folder: Path) -> None:
    found = bs.verify(folder / "model.bpk", digests=True)
    assert found.digest == f"sha256:{hashlib.sha256((folder / 'model.bpk').read_bytes()).hexdigest()}"
    with bs.open(folder / "model.bpk") as f:
        wanted = [f"sha256:{hashlib.sha256(tensor.to_bytes()).hexdigest()}" for tensor in f.values()]
    assert [tensor.digest for tensor in found.tensors] == wanted


@pytest.mark.parametrize("text", ["", "sha256:12", "md5:" + "0" * 32, "sha256:" + "g" * 64, "sha512:" + "0" * 64])
def test_what_is_no_digest_is_refused(text: str, folder: Path) -> None:
    with pytest.raises(ValueError, match="not a digest"):
        bs.verify(folder / "model.bpk", digest=text)
    with pytest.raises(TypeError):
        parse_digest(3)  # type: ignore[arg-type]


def test_a_set_of_shards_has_no_digest(tmp_path: Path) -> None:
    bs.save({f"w{at}": rand(100 + at) for at in range(3)}, tmp_path / "m.safetensors", max_shard_size=500)
    found = bs.verify(tmp_path, digest="0" * 64)
    assert not found.ok and "no digest of its own" in str(found.errors[0])
    assert bs.verify(tmp_path, digests=True).digest is None and bs.verify(tmp_path, digests=True).ok


# --- folders ----------------------------------------------------------------------------------------------------------


def test_every_file_of_tensors_below_a_folder_is_verified(folder: Path) -> None:
    (folder / "sub").mkdir()
    bs.save({f"w{at}": rand(100 + at) for at in range(3)}, folder / "sub" / "m.safetensors", max_shard_size=500)
    (folder / "config.json").write_text("{}")
    (folder / ".hidden.bpk").write_bytes(b"?")
    (folder / "broken.pt").write_bytes(b"nothing")
    found = {Path(each.path).relative_to(folder).as_posix(): each.ok for each in bs.verify(folder).files}
    assert found == {
        "broken.pt": False,
        "model.bpk": True,
        "model.safetensors": True,
        "sub/m.safetensors.index.json": True,
    }


def test_a_numbered_set_without_an_index_is_one(tmp_path: Path) -> None:
    for number in (1, 2):
        bs.save({f"w{number}": rand(number)}, tmp_path / f"m-0000{number}-of-00002.safetensors")
    found = bs.verify(tmp_path)
    assert found.ok and len(found.tensors) == 2
    (tmp_path / "m-00001-of-00002.safetensors").unlink()
    missing, left = bs.verify(tmp_path).files
    assert missing.errors[0].rule == "SH-05" and left.ok


def test_a_broken_index_is_told_of_and_its_shards_are_verified_by_themselves(tmp_path: Path) -> None:
    bs.save({f"w{at}": rand(100 + at) for at in range(2)}, tmp_path / "m.safetensors", max_shard_size=450)
    (tmp_path / "m.safetensors.index.json").write_text('{"weight_map": 3, "total_size": 1}')
    index, *shards = bs.verify(tmp_path).files
    assert index.errors[0].rule == "SH-01" and len(shards) == 2 and all(each.ok for each in shards)


def test_a_folder_without_files_of_tensors_is_not_ok(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_text("nothing here")
    found = bs.verify(tmp_path)
    assert not found.ok and "the folder contains no files of tensors, such as" in found.warnings[0]


def test_a_folder_that_cannot_be_listed_is_not_ok(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sub").mkdir()
    scandir = os.scandir

    def refusing(path: Any) -> Any:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = bs.verify(folder)
    assert [file.ok for file in found.files] == [True, True, False] and not found.ok
    assert found.files[2].warnings == ("the folder cannot be listed: Permission denied",)
    assert bs.verify(folder / "sub").warnings == found.files[2].warnings


def test_progress_over_a_folder_is_one(folder: Path) -> None:
    reports: list[tuple[int, int]] = []
    bs.verify(folder, progress=lambda done, total: reports.append((done, total)))
    sizes = sum(file.stat().st_size for file in folder.iterdir())
    assert reports == sorted(reports) and reports[-1] == (sizes, sizes)


# --- every tensor of a PyTorch file -----------------------------------------------------------------------------------


def test_tensors_beside_the_model_are_verified_too(tmp_path: Path) -> None:
    import torch

    state = {"state": {0: {"exp_avg": torch.tensor([1.0, float("nan")])}}, "param_groups": []}
    torch.save({"model": {"w": torch.ones(3)}, "optimizer": state, "epoch": 3}, tmp_path / "m.pt")
    with bs.open(tmp_path / "m.pt") as f:
        assert list(f) == ["w"]
    found = bs.verify(tmp_path / "m.pt")
    assert {tensor.name: tensor.nan_count for tensor in found.tensors} == {
        "model.w": 0,
        "optimizer.state.0.exp_avg": 1,
    }
    assert not found.ok and found.is_whole


def test_a_file_whose_rest_cannot_be_read_is_verified_as_far_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from burnstore.jobs.verify import verify as module

    torch.save({"w": torch.ones(3)}, tmp_path / "model.pt")
    torch.save({"model": {"w": torch.ones(3)}, "optimizer": {"state": torch.ones(2)}}, tmp_path / "m.pt")
    opened = module.open_checkpoint

    def refusing(path: Any, **options: Any) -> Any:
        if "top_level_key" in options:
            raise bs.errors.LimitError("too deep")
        return opened(path, **options)

    monkeypatch.setattr(module, "open_checkpoint", refusing)
    found = bs.verify(tmp_path / "m.pt")
    assert [tensor.name for tensor in found.tensors] == ["w"] and found.is_whole and not found.ok
    assert "too deep" in found.warnings[0]
    assert bs.verify(tmp_path / "model.pt").ok  # it has no other part, so it is opened once


# --- the budget: tensors that share bytes -----------------------------------------------------------------------------


class Counted:
    """How many bytes verify looks at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from burnstore.jobs.verify import verify as module

        self.nbytes = 0
        count = module.count_specials

        def counting(raw: Any, dtype: Any) -> tuple[int, int]:
            self.nbytes += memoryview(raw).nbytes
            return count(raw, dtype)

        monkeypatch.setattr(module, "count_specials", counting)


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr("burnstore.jobs.budget.FREE_BYTES", 1 << 16)
    return Counted(monkeypatch)


def views_of(kind: str) -> dict[str, Any]:
    import torch

    storage = torch.arange(1000, dtype=torch.float32)
    made = {
        "expanded": lambda at: storage[:1].expand(1000 + at),
        "expanded rows": lambda at: storage.expand(10 + at, 1000),
        "windows": lambda at: storage.as_strided((900 - at, 100), (1, 1)),
        "slices": lambda at: storage[at:],
        "reversed axes": lambda at: storage.view(10, 100).t()[at % 50 :],
        "copies": lambda at: storage.view(10, 100),
    }[kind]
    return {f"v{at}": made(at) for at in range(500)}


@pytest.mark.matrix(every=6)
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", ["expanded", "expanded rows", "windows", "slices", "reversed axes", "copies"])
def test_the_work_is_bound_by_the_bytes_that_views_share(
    kind: str, special: bool, compressed: bool, tmp_path: Path, small_budget: Counted
) -> None:
    import torch

    views = views_of(kind)
    if special:
        views["v499"].as_strided((1,), (1,), 0)[0] = float("nan")
        views["v499"].as_strided((1,), (1,), 999)[0] = float("inf")
    torch.save(views, tmp_path / "m.pt")
    if compressed:
        with zipfile.ZipFile(tmp_path / "m.pt") as archive:
            held = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(tmp_path / "m.pt", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in held.items():
                archive.writestr(name, data)
    found = bs.verify(tmp_path / "m.pt")
    assert small_budget.nbytes <= (1 << 16) + 6 * 4000 * 2  # the budget, and the storage once more
    assert len(found.tensors) == 500 and found.is_whole
    counts = {name: (int(view.isnan().sum()), int(view.isinf().sum())) for name, view in views.items()}
    for tensor in found.tensors:  # What is counted is right; what is not counted is an error, and only if it matters.
        assert tensor.error is not None or (tensor.nan_count, tensor.inf_count) == counts[tensor.name]
        assert tensor.error is None or special
    assert found.ok == (not special or not any(map(sum, counts.values())))
    if kind in ("expanded", "expanded rows", "copies"):
        assert all(tensor.error is None for tensor in found.tensors)


def test_statistics_have_the_same_budget(tmp_path: Path, small_budget: Counted) -> None:
    import torch

    torch.save(views_of("expanded"), tmp_path / "m.pt")
    rows = bs.inspect(tmp_path / "m.pt", stats=True).tensors
    counted = [row for row in rows if row.stats is not None]
    assert 10 < len(counted) < 500 and {row.stats.max for row in counted} == {0.0}
    assert all("more than 4 times" in str(row.problem) for row in rows if row.stats is None)
    torch.save(views_of("copies"), tmp_path / "c.pt")
    assert all(
        row.stats is not None and row.stats.max == 999 for row in bs.inspect(tmp_path / "c.pt", stats=True).tensors
    )


def test_tied_tensors_are_read_once_and_have_one_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    weight = torch.randn(300, 200)
    torch.save({"a": weight, "b": weight, "t": weight.T, "row": weight[3]}, tmp_path / "m.pt")
    counted = Counted(monkeypatch)
    found = {tensor.name: tensor for tensor in bs.verify(tmp_path / "m.pt", digests=True).tensors}
    assert counted.nbytes == 2 * weight.nbytes + 800
    assert found["a"].digest == found["b"].digest != found["t"].digest
    assert found["t"].shape == (200, 300)
    assert found["t"].digest == f"sha256:{hashlib.sha256(weight.T.contiguous().numpy().tobytes()).hexdigest()}"


def test_views_beyond_the_budget_have_no_digest_and_a_note(tmp_path: Path, small_budget: Counted) -> None:
    import torch

    torch.save(views_of("expanded"), tmp_path / "m.pt")
    found = bs.verify(tmp_path / "m.pt", digests=True)
    without = sum(tensor.digest is None for tensor in found.tensors)
    assert found.ok and without > 400 and found.notes[-1].startswith(f"{without} tensors have no digest")


# --- whoever does it --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("spawning")
def test_processes_find_what_threads_find(tmp_path: Path) -> None:
    torch_zip(tmp_path / "m.pt", extra=b"more")
    edited(tmp_path / "m.pt", (tmp_path / "m.pt").read_bytes().index(b"more"), ord("M"))
    threads, processes = (
        bs.verify(tmp_path / "m.pt", digests=True),
        bs.verify(tmp_path / "m.pt", digests=True, executor=2),
    )
    assert threads.to_dict() == processes.to_dict() and len(threads.errors) == 1


def test_progress_reaches_the_end(folder: Path) -> None:
    reports: list[tuple[int, int]] = []
    bs.verify(folder / "model.bpk", digests=True, progress=lambda done, total: reports.append((done, total)))
    assert reports == sorted(reports) and reports[-1][0] == reports[-1][1]


WITHOUT = """
import sys
sys.modules["ml_dtypes"] = None
import burnstore as bs

def tensor(name, raw):
    dtype = bs.DType.parse(name)
    return bs.TensorSnapshot.from_data(name, bs.TensorData.from_bytes(raw, dtype, (len(raw) * 8 // dtype.bits,)))

names = ("BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0")
bs.save([tensor(name, bytes(range(0, 120, 2))) for name in (*names, "F8_E4M3FNUZ")], sys.argv[1])
found = {each.name: each.error for each in bs.verify(sys.argv[1]).tensors}
assert all(found[name] is None for name in names), found
assert type(found["F8_E4M3FNUZ"]).__name__ == "MissingDependencyError"
assert bs.verify(sys.argv[1]).is_whole and not bs.verify(sys.argv[1]).ok
for name in names:
    assert bs.diff([tensor(name, bytes(60))], [tensor(name, bytes(range(60)))]).changed[0].difference.differing
problem = bs.diff([tensor("F8_E4M3FNUZ", bytes(4))], [tensor("F8_E4M3FNUZ", b"1234")]).changed[0].problem
assert "ml_dtypes" in problem, problem
"""


def test_without_ml_dtypes_only_what_it_alone_knows_is_not_shown(tmp_path: Path, run_python: Any) -> None:
    run_python(WITHOUT, tmp_path / "m.safetensors")


# --- what other programs do with the bytes ----------------------------------------------------------------------------


def bin_set(folder: Path, **changes: str) -> None:
    torch = pytest.importorskip("torch")
    names = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    for tensor, name in names.items():
        torch.save({tensor: torch.ones(2)}, folder / name)
    index = {"metadata": {"total_size": 16}, "weight_map": {**names, **changes}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def test_a_set_of_bin_files_is_verified_by_its_index_as_it_is_opened(tmp_path: Path) -> None:
    bin_set(tmp_path)
    whole = bs.verify(tmp_path)
    assert whole.ok and [tensor.name for tensor in whole.tensors] == ["a", "b"]
    bin_set(tmp_path, c="pytorch_model-00002-of-00002.bin")
    assert "the shard lacks it" in str(bs.verify(tmp_path).errors[0])
    bin_set(tmp_path)
    (tmp_path / "pytorch_model-00001-of-00002.bin").unlink()
    with pytest.raises(bs.errors.CorruptError, match="is missing") as opened:
        bs.open(tmp_path)
    assert str(bs.verify(tmp_path).errors[0]) == str(opened.value)


def test_the_checksums_of_a_set_of_bin_files_are_checked(tmp_path: Path) -> None:
    bin_set(tmp_path)
    path = tmp_path / "pytorch_model-00002-of-00002.bin"
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("pytorch_model-00002-of-00002/data/0").header_offset
    data = bytearray(path.read_bytes())
    at = bytes(data).index(np.ones(2, "<f4").tobytes(), place)
    data[at] ^= 1
    path.write_bytes(data)
    found = bs.verify(tmp_path)
    assert not found.is_whole and "checksum" in str(found.errors[0])


SPARSE = {
    "coo": lambda torch: torch.sparse_coo_tensor([[0, 5], [1, 2]], torch.ones(2), (3, 3), check_invariants=False),
    "coo, negative": lambda torch: torch.sparse_coo_tensor([[-1], [0]], torch.ones(1), (3, 3), check_invariants=False),
    "csr": lambda torch: torch.sparse_csr_tensor([0, 1, 1], [7], torch.ones(1), (2, 2), check_invariants=False),
    "csr, rows": lambda torch: torch.sparse_csr_tensor([0, 9, 1], [1], torch.ones(1), (2, 2), check_invariants=False),
    "csc": lambda torch: torch.sparse_csc_tensor([0, 0, 1], [2], torch.ones(1), (2, 2), check_invariants=False),
    "bsr": lambda torch: torch.sparse_bsr_tensor([0, 1], [3], torch.ones(1, 2, 2), (2, 4), check_invariants=False),
}


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
@pytest.mark.parametrize("kind", SPARSE)
@pytest.mark.filterwarnings("ignore")
def test_indices_beyond_a_sparse_tensor_are_an_error(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"model": {"s": SPARSE[kind](torch), "w": torch.ones(2)}}, tmp_path / "x.pt", **options)
    found = bs.verify(tmp_path / "x.pt")
    assert not found.is_whole
    (error,) = found.errors
    assert (error.tensor, error.rule) == ("model.s", "PT-22")


@pytest.mark.filterwarnings("ignore")
def test_sparse_tensors_with_indices_in_range_are_whole(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dense = torch.tensor([[0.0, 1.0, 0.0, 2.0], [3.0, 0.0, 0.0, 0.0]])
    state = {
        "coo": dense.to_sparse(),
        "csr": dense.to_sparse_csr(),
        "csc": dense.to_sparse_csc(),
        "bsr": dense.to_sparse_bsr((2, 2)),
        "batch": torch.stack([dense, dense]).to_sparse_csr(),
        "none": torch.zeros(0, 3).to_sparse(),
        "no rows": torch.zeros(0, 3).to_sparse_csr(),
    }
    torch.save(state, tmp_path / "x.pt")
    assert bs.verify(tmp_path / "x.pt").ok
    with bs.open(tmp_path / "x.pt") as file:  # as other processes get them
        assert {pickle.loads(pickle.dumps(check))() for check in file.checks()} == {None}


class Runs:
    def __reduce__(self) -> Any:
        return os.system, ("echo never",)


def test_code_that_other_programs_would_run_is_said(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(2), "more": Runs()}, tmp_path / "evil.pt")
    found = bs.verify(tmp_path / "evil.pt")
    assert found.is_whole and not found.ok
    assert "would run code: imports and calls posix.system (evil/data.pkl)" in found.warnings[0]
    torch.save(torch.nn.Linear(2, 3), tmp_path / "model.pt")
    found = bs.verify(tmp_path / "model.pt")
    assert found.ok and any("torch.nn.modules.linear.Linear" in note for note in found.notes)
    torch.save({"w": torch.ones(2)}, tmp_path / "data.pt")
    assert bs.verify(tmp_path / "data.pt").notes == ()


def test_code_in_a_shard_or_behind_other_data_is_said(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    bin_set(tmp_path)
    torch.save({"b": torch.ones(2), "more": Runs()}, tmp_path / "pytorch_model-00002-of-00002.bin")
    assert "pytorch_model-00002-of-00002.bin would run code" in bs.verify(tmp_path).warnings[0]
    np.savez(tmp_path / "x.npz", a=np.ones(2), b=np.array([Runs()], object))
    assert any("posix.system" in warning for warning in bs.verify(tmp_path / "x.npz").warnings)
