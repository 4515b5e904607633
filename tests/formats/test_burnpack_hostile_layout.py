"""Hostile layouts: ranges (row H12), polyglots (H14), what is no file (H22), and which release wrote it (BP-14)."""

from __future__ import annotations

import io
import os
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile import FOUR, ONE_TENSOR, at_most, descriptor, mapping, pack, refused, tensors, text, uints
from hypothesis import example, given, settings
from hypothesis import strategies as st

import burnstore as bs
from burnstore.errors import CorruptError, TruncatedError, UnknownFormatError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "burn"
WHOLE = pack(ONE_TENSOR, FOUR)

# ------------------------------------------------------------------------------- H12: ranges

Range = tuple[int, int]


def file_of(ranges: list[Range], *, unaligned: bool, longer: int = 0) -> bytes:
    """A file of bytes that are not zero, its tensors lying so."""
    named = (
        (f"t{number}", descriptor(shape=uints(max(end - start, 0)), offsets=uints(start, end)))
        for number, (start, end) in enumerate(ranges)
    )
    extent = max((end for _, end in ranges), default=0) + longer
    return pack(tensors(*named), b"\xab" * extent, padding=b"" if unaligned else None)


RANGES: dict[str, tuple[list[Range], bool, int, type[bs.errors.FormatError], str, str | None]] = {
    "overlap": ([(0, 4), (2, 6)], True, 0, CorruptError, "BP-13", "t1"),
    "overlap by one": ([(0, 257), (256, 260)], False, 0, CorruptError, "BP-13", "t1"),
    "identical": ([(0, 4), (0, 4)], False, 0, CorruptError, "BP-13", "t1"),
    "one inside another": ([(0, 600), (256, 300)], False, 0, CorruptError, "BP-13", "t1"),
    "reversed": ([(4, 0)], False, 4, CorruptError, "BP-11", "t0"),
    "hole at the start": ([(256, 260)], False, 0, CorruptError, "BP-13", "t0"),
    "hole at the start, unaligned": ([(1, 5)], True, 0, CorruptError, "BP-13", "t0"),
    "hole of one": ([(0, 4), (5, 9)], True, 0, CorruptError, "BP-13", "t1"),
    "hole of one multiple": ([(0, 4), (512, 516)], False, 0, CorruptError, "BP-13", "t1"),
    "hole of 256 after a multiple": ([(0, 256), (512, 516)], False, 0, CorruptError, "BP-13", "t1"),
    "a multiple of 128": ([(0, 4), (128, 132)], False, 0, CorruptError, "BP-13", "t1"),
    "half aligned": ([(0, 4), (4, 8), (256, 260)], False, 0, CorruptError, "BP-13", "t2"),
    "aligned tensors, no padding before": ([(0, 4), (256, 260)], True, 0, CorruptError, "BP-16", None),
    "end to end, padding before": ([(0, 4), (4, 8)], False, 0, CorruptError, "BP-15", None),
    "a byte follows": ([(0, 4)], False, 1, CorruptError, "BP-15", None),
    "256 bytes follow": ([(0, 4)], False, 256, CorruptError, "BP-15", None),
    "padding to 256 follows": ([(0, 4)], False, 252, CorruptError, "BP-15", None),
    "a byte follows, unaligned": ([(0, 4), (4, 8)], True, 1, CorruptError, "BP-15", None),
    "a byte is missing": ([(0, 4)], False, -1, TruncatedError, "BP-15", None),
    "a byte is missing, unaligned": ([(0, 4), (4, 8)], True, -1, TruncatedError, "BP-15", None),
    "all is missing": ([(0, 4)], False, -4, TruncatedError, "BP-15", None),
    "past the end": ([(0, 2**40)], False, 4 - 2**40, TruncatedError, "BP-15", None),
    "empty in the middle of another": ([(0, 4), (2, 2)], True, 0, CorruptError, "BP-13", "t1"),
    "empty past the end": ([(0, 4), (300, 300)], False, 0, CorruptError, "BP-13", "t1"),
    "empty at an odd place": ([(0, 4), (5, 5)], True, 0, CorruptError, "BP-13", "t1"),
    "empty one multiple on": ([(0, 256), (512, 512)], False, 0, CorruptError, "BP-13", "t1"),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges_that_no_burn_writes_are_refused(name: str) -> None:
    ranges, unaligned, longer, kind, rule, tensor = RANGES[name]
    if ranges == [(0, 2**40)]:
        data = pack(tensors(("t0", descriptor(shape=uints(2**40), offsets=uints(0, 2**40)))), FOUR)
    else:
        data = file_of(ranges, unaligned=unaligned, longer=longer)
    error = refused(data, kind, rule, tensor=tensor)
    assert rule != "BP-15" or error.offset is not None


@pytest.mark.parametrize(
    ("ranges", "unaligned"),
    [
        ([], False),
        ([], True),
        ([(0, 0)], False),
        ([(0, 4), (4, 4), (4, 8)], True),
        ([(0, 4), (256, 256), (256, 260)], False),
        ([(0, 4), (256, 256)], False),
        ([(256, 260), (0, 4)], False),
        ([(0, 256), (256, 512)], False),
        ([(0, 256), (256, 512)], True),
        ([(0, 0), (0, 0), (0, 1)], True),
    ],
)
def test_ranges_that_a_burn_writes_are_read(ranges: list[Range], unaligned: bool) -> None:
    data = file_of(ranges, unaligned=unaligned)
    with bs.open(data) as f:
        assert f.data_offset == (10 + data[6] + 256 * data[7] if unaligned else f.data_offset // 256 * 256)
        for number, (start, end) in enumerate(ranges):
            assert f.offset_of(f"t{number}") == f.data_offset + start
            assert f[f"t{number}"].to_bytes() == b"\xab" * (end - start)


def data_start_by_brute_force(data: bytes, ranges: list[Range]) -> int | None:
    """Where the data start if some Burn placed the tensors byte after byte and stopped there; None if none did."""
    metadata_end = 10 + data[6] + 256 * data[7]
    for step in (1, 256):
        place = metadata_end
        while place % step:
            if data[place : place + 1] != b"\0":
                break
            place += 1
        data_start, owner = place, {}
        for number, (start, end) in sorted(enumerate(ranges), key=lambda item: item[1]):
            while (place - data_start) % step:
                place += 1
            if place != data_start + start or end < start:
                break
            for byte in range(start, end):
                owner[byte] = number
            place = data_start + end
        else:
            if data_start % step == 0 and place == len(data) and len(owner) == sum(e - s for s, e in ranges):
                return data_start
    return None


SIZES = st.sampled_from([0, 0, 1, 3, 128, 255, 256, 257, 512])


@st.composite
def range_sets(draw: st.DrawFn) -> tuple[list[Range], bool, int]:
    """Tensors laid out by one of the rules, and then, half of the time, one of them moved or resized."""
    unaligned = draw(st.booleans())
    step = draw(st.sampled_from([1, 256]))
    ranges, cursor = [], 0
    for size in draw(st.lists(SIZES, max_size=5)):
        cursor = -(-cursor // step) * step
        ranges.append((cursor, cursor + size))
        cursor += size
    if ranges and draw(st.booleans()):
        number = draw(st.integers(0, len(ranges) - 1))
        by, which = (
            draw(st.sampled_from([-256, -128, -1, 1, 128, 256])),
            draw(st.sampled_from(["both", "start", "end"])),
        )
        start, end = ranges[number]
        ranges[number] = (max(0, start + by * (which != "end")), max(0, end + by * (which != "start")))
    return draw(st.permutations(ranges)), unaligned, draw(st.sampled_from([0, 0, 0, 0, -1, 1, 256]))


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(range_sets())
@example(([(0, 256), (256, 512)], True, 0))
@example(([(0, 0), (0, 0)], True, 0))
@example(([(256, 256), (0, 3)], False, 0))
def test_ranges_are_read_exactly_where_brute_force_finds_a_file(case: tuple[list[Range], bool, int]) -> None:
    ranges, unaligned, longer = case
    data = file_of(ranges, unaligned=unaligned, longer=longer)
    expected = data_start_by_brute_force(data, ranges)
    if expected is None:
        with pytest.raises(bs.errors.FormatError) as caught:
            bs.open(data)
        assert caught.value.rule in ("BP-11", "BP-13", "BP-14", "BP-15", "BP-16")
        return
    f = bs.open(data)
    assert f.data_offset == expected
    for number, (start, end) in enumerate(ranges):
        assert (f.offset_of(f"t{number}"), f[f"t{number}"].nbytes) == (expected + start, end - start)


def test_padding_before_the_data_is_checked_byte_by_byte() -> None:
    start = 10 + len(ONE_TENSOR)
    for at in range(start, 256):
        for wrong in (b"\1", b"\x80", b"\xff"):
            data = WHOLE[:at] + wrong + WHOLE[at + 1 :]
            refused(data, CorruptError, "BP-16", offset=start)


def test_padding_between_tensors_is_not_read() -> None:
    metadata = tensors(("a", descriptor()), ("b", descriptor(offsets=uints(256, 260))))
    with bs.open(pack(metadata, FOUR + b"\xff" * 252 + FOUR)) as f:
        assert [t.to_bytes() for t in f.values()] == [FOUR, FOUR]


# ------------------------------------------------------------------------------- H14: polyglots


def a_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    return buffer.getvalue()


PDF = b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\ntrailer\n<<>>\n%%EOF\n"
HDF5 = b"\x89HDF\r\n\x1a\n"
SAFETENSORS = b"\x02\0\0\0\0\0\0\0{}"
IN_PADDING = 10 + len(ONE_TENSOR)


def in_padding(content: bytes) -> bytes:
    return WHOLE[:IN_PADDING] + content + WHOLE[IN_PADDING + len(content) :]


POLYGLOTS: dict[str, tuple[bytes, type[bs.errors.FormatError], str | None]] = {
    "a ZIP follows": (WHOLE + a_zip(), CorruptError, "BP-15"),
    "a PDF follows": (WHOLE + PDF, CorruptError, "BP-15"),
    "a pickle follows": (WHOLE + b"\x80\x02}q\x00.", CorruptError, "BP-15"),
    "another Burnpack follows": (WHOLE + WHOLE, CorruptError, "BP-15"),
    "a PDF in the padding": (in_padding(PDF), CorruptError, "BP-16"),
    "a script in the padding": (in_padding(b"\n#!/bin/sh\nid\n"), CorruptError, "BP-16"),
    "HDF5 in the padding": (in_padding(HDF5), CorruptError, "BP-16"),
    "a ZIP end in the padding": (in_padding(a_zip()[-22:]), CorruptError, "BP-16"),
    "MZ before": (b"MZ" + WHOLE, UnknownFormatError, None),
    "an ELF before": (b"\x7fELF" + WHOLE, UnknownFormatError, None),
    "a ZIP before": (a_zip() + WHOLE, TruncatedError, "PT-02"),
    "a PDF before": (PDF + WHOLE, UnknownFormatError, None),
    "a script before": (b"#!/bin/sh\n" + WHOLE, UnknownFormatError, None),
    "safetensors before": (SAFETENSORS + WHOLE, CorruptError, "ST-12"),
    "a ZIP after the metadata": (pack(ONE_TENSOR + a_zip(), FOUR), CorruptError, "BP-04"),
    "a ZIP instead of data": (pack(ONE_TENSOR, a_zip()), CorruptError, "BP-15"),
}


@pytest.mark.parametrize("name", POLYGLOTS)
def test_a_file_that_is_also_another_is_refused(name: str) -> None:
    data, kind, rule = POLYGLOTS[name]
    refused(data, kind, rule)


@pytest.mark.parametrize("content", [a_zip(), PDF, HDF5 + bytes(100)], ids=["ZIP", "PDF", "HDF5"])
def test_a_tensor_may_hold_any_bytes_and_its_file_stays_a_burnpack(content: bytes) -> None:
    named = descriptor(shape=uints(len(content)), offsets=uints(0, len(content)))
    with bs.open(pack(tensors(("t", named)), content)) as f:
        assert f.format == "burnpack"
        assert f["t"].to_bytes() == content


# ------------------------------------------------------------------------------- H22: no such files


def _fifo(path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("needs FIFOs")
    os.mkfifo(path)


def _socket(path: Path) -> None:
    if not hasattr(socket, "AF_UNIX"):
        pytest.skip("needs sockets with a path")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


NO_FILES: dict[str, tuple[Callable[[Path], object], type[BaseException], str | None]] = {
    "empty": (lambda path: path.write_bytes(b""), UnknownFormatError, None),
    "one byte": (lambda path: path.write_bytes(b"N"), UnknownFormatError, None),
    "three bytes": (lambda path: path.write_bytes(b"NRU"), UnknownFormatError, None),
    "magic number only": (lambda path: path.write_bytes(b"NRUB"), TruncatedError, "BP-01"),
    "nine bytes": (lambda path: path.write_bytes(b"NRUB\1\0\0\0\0"), TruncatedError, "BP-01"),
    "zeros": (lambda path: path.write_bytes(bytes(1000)), UnknownFormatError, None),
    "text": (lambda path: path.write_text("weights"), UnknownFormatError, None),
    "a directory": (lambda path: path.mkdir(), bs.errors.ReadError, None),
    "a FIFO": (_fifo, bs.errors.ReadError, None),
    "a socket": (_socket, OSError, None),
    "nothing": (lambda path: None, FileNotFoundError, None),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), FileNotFoundError, None),
    "a link to itself": (lambda path: path.symlink_to(path), OSError, None),
    "a link to a device": (lambda path: path.symlink_to("/dev/zero"), bs.errors.ReadError, None),
}


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("name", NO_FILES)
def test_what_is_no_file_of_tensors_is_refused_at_once(tmp_path: Path, name: str, zero_copy: bool) -> None:
    make, kind, rule = NO_FILES[name]
    path = tmp_path / "model.bpk"
    make(path)
    with at_most(2), pytest.raises(kind) as caught:
        bs.open(path, zero_copy=zero_copy)
    error = caught.value
    if isinstance(error, bs.BurnstoreError):
        assert type(error) is kind
        assert error.path == str(path)
        assert error.rule == rule
    else:
        assert isinstance(error, OSError)
        assert error.filename == str(path)


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize(
    "path", ["/dev/zero", "/dev/null", "/dev/full", "/dev/tty", "/proc/self/mem", "/proc/self/environ", "/"]
)
def test_devices_and_windows_into_the_system_are_refused_at_once(path: str, zero_copy: bool) -> None:
    if not os.path.exists(path):
        pytest.skip("not on this system")
    with at_most(2), pytest.raises((bs.errors.ReadError, UnknownFormatError, OSError)) as caught:
        bs.open(path, zero_copy=zero_copy)
    named = caught.value.path if isinstance(caught.value, bs.BurnstoreError) else caught.value.filename  # type: ignore[union-attr]
    assert named == path


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".txt", ".zip", "", ".BPK"])
def test_the_bytes_decide_and_not_the_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(WHOLE)
    with bs.open(path) as f:
        assert f.format == "burnpack"
        assert f["t"].to_bytes() == FOUR


def test_an_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a\n\x1b[31mb.bpk"
    path.write_bytes(WHOLE + b"\0")
    error = refused(path, CorruptError, "BP-15", path=str(path), offset=260)
    assert "\\n\\x1b[31mb.bpk" in str(error)


# ------------------------------------------------------------------------------- BP-14: which release wrote it

ALIGNED = sorted(path for path in FIXTURES.glob("*/*.bpk") if path.parent.name != "0.19.1")
STAMP_KEYS = ("format", "producer", "version")


def metadata_end(data: bytes) -> int:
    return 10 + int.from_bytes(data[6:10], "little")


def extent(f: bs.Checkpoint) -> int:
    return max((f.offset_of(name) + f[name].nbytes - f.data_offset for name in f), default=0)


@pytest.mark.parametrize("path", ALIGNED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_later_file_cut_to_the_length_of_an_earlier_is_refused(path: Path) -> None:
    data = path.read_bytes()
    with bs.open(data) as f:
        length = metadata_end(data) + extent(f)
    assert length < len(data)
    refused(data[:length], TruncatedError, "BP-15", offset=length)


def test_the_cut_file_of_the_trap_is_refused() -> None:
    data = (FIXTURES / "0.21.0" / "bools.bpk").read_bytes()
    assert len(data) == 527
    refused(data[:470], TruncatedError, "BP-15", offset=470)
    with pytest.raises(CorruptError) as caught:
        bs.open(data[:470], burn_version="0.19")
    assert caught.value.rule == "BP-14"


@pytest.mark.parametrize("path", ALIGNED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_without_a_stamp_a_cut_file_is_refused_or_whole(path: Path) -> None:
    with bs.open(path) as f:
        data = bs.serialize(f, format="burnpack", metadata={}, burn_version=path.parent.name, scalars=f.scalars)
    with bs.open(data) as f:
        length, empty = metadata_end(data) + extent(f), not f
    if empty:
        assert bs.open(data[:length]).variant == "0.19, unaligned"  # byte for byte what Burn 0.19 writes
        return
    with pytest.raises((TruncatedError, CorruptError)) as caught:
        bs.open(data[:length])
    assert caught.value.rule in ("BP-14", "BP-15")


def single(data: bytes, *, version: str | None = None, unaligned: bool = True, dtype: bytes = text("U8")) -> bytes:
    named = descriptor(dtype=dtype, shape=uints(len(data)), offsets=uints(0, len(data)))
    more = b""
    if version is not None:
        stamp = [("format", text("burnpack")), ("producer", text("burn")), ("version", text(version))]
        more = text("metadata") + mapping(*stamp)
    metadata = tensors(("t", named), more=more, keys=1 if version is None else 2)
    return pack(metadata, data, padding=b"" if unaligned else None)


@pytest.mark.parametrize(
    ("data", "variant"),
    [
        (single(FOUR), "0.19, unaligned"),
        (single(FOUR, unaligned=False), "0.20 .. 0.23-pre, aligned"),
        (single(bytes(4), unaligned=False), "0.20 .. 0.23-pre, aligned"),
        (single(bytes(4), version="0.19.1"), "0.19, unaligned"),
        (single(bytes(4), version="0.20.0-pre.4"), "0.19, unaligned"),
        (single(FOUR, version="0.19.1", unaligned=False), "0.20 .. 0.23-pre, aligned"),  # users set such texts
        (single(b"\0\0\0\1"), "0.19, unaligned"),
        (single(bytes(400) + b"\1", version="0.19.0"), "0.19, unaligned"),
        (single(b""), "0.19, unaligned"),
        (single(b"", unaligned=False), "0.20 .. 0.23-pre, aligned"),
        (single(b"\1\0", dtype=text("Bool")), "0.19, unaligned"),
        (single(b"\1\0", dtype=text("Bool"), unaligned=False), "0.20, aligned"),
        (single(b"\1\0", dtype=mapping(("Bool", text("Native"))), unaligned=False), "0.21 .. 0.23-pre, aligned"),
    ],
)
def test_one_tensor_tells_its_release_where_it_can_be_told(data: bytes, variant: str) -> None:
    with bs.open(data) as f:
        assert f.variant == variant
        assert f["t"].to_bytes() == data[f.data_offset :]


@pytest.mark.parametrize("data", [single(bytes(4)), single(bytes(400) + b"\1"), single(bytes(4), version="1.0")])
def test_zeros_where_padding_would_be_leave_it_open_until_the_caller_settles_it(data: bytes) -> None:
    error = refused(data, CorruptError, "BP-14", offset=metadata_end(data))
    assert 'burn_version="0.19"' in (error.hint or "")
    with bs.open(data, burn_version="0.19") as f:
        assert f.data_offset == metadata_end(data)
        assert f["t"].to_bytes() == data[metadata_end(data) :]
    with pytest.raises(TruncatedError) as caught:
        bs.open(data, burn_version="0.22")
    assert caught.value.rule == "BP-15"


@pytest.mark.parametrize("version", ["0.20.0", "0.20.0-pre.5", "0.21.0", "0.22.1", "0.23.0-pre.1"])
def test_a_stamp_of_a_later_release_tells_that_the_end_is_missing(version: str) -> None:
    refused(single(FOUR, version=version), TruncatedError, "BP-15")


@pytest.mark.parametrize(
    ("data", "version", "kind", "rule"),
    [
        (single(b"\1\0", dtype=mapping(("Bool", text("Native"))), unaligned=False), "0.19", CorruptError, "BP-14"),
        (
            pack(mapping(("tensors", mapping()), ("scalars", mapping(("s", mapping(("Int", b"\1"))))))),
            "0.19",
            CorruptError,
            "BP-14",
        ),
        (single(FOUR, unaligned=False), "0.19", CorruptError, "BP-15"),
        (single(FOUR), "0.22", TruncatedError, "BP-15"),
        (file_of([(0, 4), (256, 260)], unaligned=False), "0.19", CorruptError, "BP-14"),
        (file_of([(0, 4), (4, 8)], unaligned=True), "0.21", CorruptError, "BP-14"),
    ],
)
def test_a_release_that_did_not_write_the_file_is_refused(
    data: bytes, version: str, kind: type[bs.errors.FormatError], rule: str
) -> None:
    refused(data, kind, rule, burn_version=version)


@pytest.mark.parametrize("mixed", [("Bool", "map"), ("Bool", "scalars"), ("map", "end to end")])
def test_evidence_that_contradicts_itself_is_refused(mixed: tuple[str, str]) -> None:
    words = {"Bool": text("Bool"), "map": mapping(("Bool", text("Native")))}
    step = 4 if "end to end" in mixed else 256
    second = descriptor(dtype=words["map"] if mixed == ("Bool", "map") else text("U8"), offsets=uints(step, step + 4))
    more = text("scalars") + mapping(("s", mapping(("Int", b"\1")))) if "scalars" in mixed else b""
    named = [("a", descriptor(dtype=words[mixed[0]])), ("b", second)]
    metadata = tensors(*named, more=more, keys=1 + bool(more))
    refused(pack(metadata, b"\1" * (step + 4), padding=b"" if step == 4 else None), CorruptError, "BP-14")


def test_a_release_that_there_is_not_is_the_callers_mistake() -> None:
    for version in ("0.18", "1.0", "", "0.22.x", "latest"):
        with pytest.raises(ValueError, match="burn_version"):
            bs.open(WHOLE, burn_version=version)
    with pytest.raises(TypeError, match="burn_version"):
        bs.open(WHOLE, burn_version=22)
