"""Formats of one's own: two toys pass the conformance tests, and the registry tells its troubles apart."""

from __future__ import annotations

import itertools
import json
import pickle
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import DType, Limits, TensorSnapshot
from burnstore.errors import (
    CorruptError,
    DTypeError,
    DuplicateNameError,
    MissingDependencyError,
    TruncatedError,
    UnknownFormatError,
)
from burnstore.formats import registry
from burnstore.formats.base import Contents, Table, WritePlan
from burnstore.formats.registry import format_for_bytes, format_names, register_format
from burnstore.stores.records import PrettyJsonFileRecorder, save_file
from burnstore.testing import FormatConformance


class Toy:
    """A magic, the length of a JSON header, the header, the data end to end.

    ``bare`` leaves out all but tensors, sorts them, and ends with four zeros.
    """

    def __init__(self, name: str, magic: bytes, *, bare: bool) -> None:
        self.name = name
        self.magic = magic
        self.bare = bare
        self.tail = 4 if bare else 0
        self.dtypes = {dtype.name: dtype for dtype in (BARE_DTYPES if bare else RICH_DTYPES)}

    def read(self, source: Any, limits: Limits) -> Contents:
        if source.size < 8:
            raise TruncatedError("the header is cut")
        magic, length = struct.unpack("<4sI", source.read_at(0, 8))
        if magic != self.magic:
            raise CorruptError("not a toy")
        if 8 + length > source.size:
            raise TruncatedError("the header is cut")
        try:
            rows, metadata = json.loads(source.read_at(8, length))
            names = [str(row[0]) for row in rows]
            dtypes = [self.dtypes[row[1]] for row in rows]
            shapes = [tuple(map(int, row[2])) for row in rows]
            if not all(isinstance(text, str) for text in metadata.values()) or any(n < 0 for s in shapes for n in s):
                raise ValueError("unexpected header")
            sizes = [dtype.nbytes(shape) for dtype, shape in zip(dtypes, shapes, strict=True)]
            param_ids = [None if row[3] is None else int(bs.ParamId(row[3])) for row in rows]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise CorruptError(f"the header makes no sense: {error}") from None
        if len(set(names)) != len(names):
            raise CorruptError("a name twice")
        offsets = list(itertools.accumulate(sizes, initial=8 + length))
        end = offsets.pop() + self.tail
        if end > source.size:
            raise TruncatedError("the data are cut")
        if end < source.size or any(source.read_at(end - self.tail, self.tail)):
            raise CorruptError("bytes follow")
        table = Table(names, dtypes, shapes, offsets, sizes, param_ids)
        return Contents(table, MappingProxyType(metadata), data_offset=8 + length)

    def plan(self, tensors: Sequence[TensorSnapshot], metadata: Mapping[str, str] | None, limits: Limits) -> WritePlan:
        if self.bare:
            tensors = sorted(tensors, key=lambda tensor: tensor.path)
            if metadata:
                raise ValueError("toys of this kind hold no metadata")
        for key, value in (metadata or {}).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError("metadata maps str to str")
        seen = set()
        for tensor in tensors:
            if tensor.dtype.name not in self.dtypes:
                raise DTypeError(f"no {tensor.dtype} in toys", tensor=tensor.path)
            if tensor.path in seen:
                raise DuplicateNameError("twice", tensor=tensor.path)
            seen.add(tensor.path)
        rows = [[t.path, t.dtype.name, t.shape, None if self.bare else t.param_id] for t in tensors]
        header = json.dumps([rows, dict(metadata or {})]).encode()
        offsets = list(itertools.accumulate((t.nbytes for t in tensors), initial=8 + len(header)))
        end = offsets.pop() + self.tail
        return WritePlan(struct.pack("<4sI", self.magic, len(header)) + header, tensors, offsets, end)


BARE_DTYPES = (DType.F32, DType.U8)
RICH_DTYPES = (
    *(DType.F64, DType.F32, DType.Flex32, DType.F16, DType.BF16, DType.I64, DType.I8, DType.U64, DType.U8),
    *(DType.Bool, DType.BoolU8, DType.BoolU32, DType.F8_E4M3, DType.F8_E5M2, DType.F8_E8M0, DType.F4, DType.F6_E2M3),
    *(DType.C64, DType.C128),
)
RICH = Toy("toy", b"TOY1", bare=False)
BARE = Toy("bare-toy", b"TOY0", bare=True)


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toys are registered while a test of this module runs, and forgotten afterwards."""
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    register_format("toy", f"{__name__}:RICH", suffixes=[".toy"], signature=b"TOY1")
    register_format("bare-toy", f"{__name__}:BARE", suffixes=[".bare"], signature=lambda head: head[:4] == b"TOY0")


class TestToy(FormatConformance):
    format = "toy"
    suffix = ".toy"
    dtypes = RICH_DTYPES


class TestBareToy(FormatConformance):
    format = "bare-toy"
    suffix = ".bare"
    dtypes = BARE_DTYPES
    holds_metadata = False
    holds_param_ids = False
    keeps_order = False


def test_the_names_of_all_formats_are_listed() -> None:
    assert {"burnpack", "toy", "bare-toy"} <= set(format_names())


def test_a_format_is_imported_when_it_is_first_needed_and_not_before(tmp_path: Path, run_python: Any) -> None:
    (tmp_path / "late_format.py").write_text("name = 'late'\ndef read(*a): ...\ndef plan(*a): ...\n")
    run_python(
        "import sys; sys.path.append(sys.argv[1])\n"
        "import burnstore as bs\n"
        "from burnstore.formats.registry import format_named, register_format\n"
        "register_format('late', 'late_format', suffixes=['.late'], signature=b'LATE')\n"
        "bs.open(bs.serialize({}, format='burnpack')).close()\n"
        "assert 'late_format' not in sys.modules\n"
        "assert format_named('late').name == 'late'\n",
        tmp_path,
    )


def test_a_format_whose_package_is_missing_says_what_to_install(tmp_path: Path) -> None:
    register_format(
        "gone",
        "no_such_package_anywhere.format",
        suffixes=[".gone"],
        signature=b"GONE",
        install_hint="pip install gone",
    )
    path = tmp_path / "model.gone"
    path.write_bytes(b"GONE and more")
    for use in (
        lambda: bs.open(path),
        lambda: bs.open(path, format="gone"),
        lambda: bs.save({}, tmp_path / "new.gone"),
    ):
        with pytest.raises(MissingDependencyError, match=r"'gone' is known but could not be loaded") as caught:
            use()
        assert isinstance(caught.value, ImportError)
        assert caught.value.hint == "pip install gone"
        assert str(tmp_path) in str(caught.value)


def test_a_format_whose_package_is_missing_without_a_hint_names_the_package() -> None:
    register_format("gone", "no_such_package_anywhere", suffixes=[".gone"], signature=b"GONE")
    with pytest.raises(MissingDependencyError) as caught:
        bs.serialize({}, format="gone")
    assert caught.value.hint == "install no_such_package_anywhere"


@pytest.mark.parametrize("target", ["json", "json:dumps", "json:nothing", f"{__name__}:BARE_DTYPES"])
def test_a_target_that_is_no_format_is_reported(target: str) -> None:
    register_format("odd", target, suffixes=[".odd"], signature=b"ODD!")
    with pytest.raises(MissingDependencyError, match="is not a format"):
        bs.serialize({}, format="odd")


def test_bytes_that_no_format_claims_are_shown_with_the_known_formats() -> None:
    with pytest.raises(UnknownFormatError, match=r"begins with the bytes 47 49 46 38 .*known: .*burnpack"):
        bs.open(b"GIF8 and so on")
    with pytest.raises(UnknownFormatError, match="the file is empty"):
        bs.open(b"")


def test_bytes_that_two_formats_claim_are_refused_until_one_is_named() -> None:
    data = bs.serialize({"t": np.zeros(2, np.float32)}, format="toy")
    register_format("rival", f"{__name__}:RICH", suffixes=[".rival"], signature=b"TOY")
    with pytest.raises(UnknownFormatError, match="more than one format: toy, rival") as caught:
        bs.open(data)
    assert caught.value.hint == 'state which: burnstore.open(path, format="toy")'
    with bs.open(data, format="toy") as f:
        assert list(f) == ["t"]


def test_a_suffix_that_two_formats_claim_is_refused_until_one_is_named(tmp_path: Path) -> None:
    register_format("rival", f"{__name__}:RICH", suffixes=[".toy"], signature=b"RIVAL")
    with pytest.raises(UnknownFormatError, match="more than one format: toy, rival"):
        bs.save({}, tmp_path / "model.toy")
    bs.save({}, tmp_path / "model.toy", format="toy", durable=False)


def test_the_longest_suffix_decides(tmp_path: Path) -> None:
    register_format("inner", f"{__name__}:BARE", suffixes=[".inner.toy"], signature=b"INNER")
    bs.save({}, tmp_path / "model.inner.toy", durable=False)
    assert (tmp_path / "model.inner.toy").read_bytes()[:4] == b"TOY0"


def test_suffixes_are_found_whatever_their_case(tmp_path: Path) -> None:
    register_format("loud", f"{__name__}:BARE", suffixes=[".LOUD"], signature=b"LOUD")
    bs.save({}, tmp_path / "model.Loud", durable=False)
    assert (tmp_path / "model.Loud").exists()


def test_a_name_without_a_known_suffix_is_refused_with_the_suffixes_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match=r"known suffixes: .*\.bpk.*\.toy") as caught:
        bs.save({}, tmp_path / "bpk")
    assert caught.value.path == str(tmp_path / "bpk")


def test_an_unknown_format_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UnknownFormatError, match=r"unknown format 'Burnpack'; known: .*burnpack"):
        bs.serialize({}, format="Burnpack")


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ValueError, match="there is a format 'toy' already"):
        register_format("toy", "a.b", suffixes=[".x"], signature=b"X")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": 5}, TypeError),
        ({"name": ""}, ValueError),
        ({"target": None}, TypeError),
        ({"target": ""}, ValueError),
        ({"suffixes": ".x"}, TypeError),
        ({"suffixes": ["x"]}, TypeError),
        ({"suffixes": [5]}, TypeError),
        ({"suffixes": 5}, TypeError),
        ({"signature": "text"}, TypeError),
        ({"signature": None}, TypeError),
        ({"signature": b""}, ValueError),
        ({"signature": bytes(513)}, ValueError),
    ],
)
def test_bad_arguments_are_refused_when_a_format_is_registered(change: dict[str, Any], error: type[Exception]) -> None:
    arguments = {"name": "new", "target": "a.b", "suffixes": [".x"], "signature": b"X", **change}
    before = format_names()
    with pytest.raises(error):
        register_format(arguments.pop("name"), arguments.pop("target"), **arguments)
    assert format_names() == before


def test_the_conformance_tests_find_a_format_that_cheats() -> None:
    """A format that forgets the last byte of every tensor fails them; so they do look."""

    class Forgetful(Toy):
        def read(self, source: Any, limits: Limits) -> Contents:
            contents = super().read(source, limits)
            contents.table.offsets[:] = [max(0, offset - 1) for offset in contents.table.offsets]
            return contents

    sys.modules[__name__].FORGETFUL = Forgetful("forgetful", b"TOY2", bare=False)  # type: ignore[attr-defined]
    register_format("forgetful", f"{__name__}:FORGETFUL", suffixes=[".forget"], signature=b"TOY2")

    class Suite(FormatConformance):
        format = "forgetful"
        suffix = ".forget"

    with pytest.raises(AssertionError):
        Suite().test_a_tensor_of_any_bits_comes_back_bit_for_bit(DType.F32, (6,))


# --- one signature a file ---------------------------------------------------------------------------------------------


def safetensors_of(length: int, first: bytes = b"{") -> bytes:
    """A valid file whose header has this length, by white space and a name that is long enough."""
    entry = b'"%s":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    header = first + entry % (b"n" * max(1, min(300, length - 60)))
    return length.to_bytes(8, "little") + header.ljust(length) + b"\x07"


@pytest.mark.parametrize("start", [b"(d", b"(l", b"}q", b"}(", b"]q", b"}.", b"].", b"\x80\0", b"\x80\2", b"\x80\5"])
@pytest.mark.parametrize("more", [b"", b"\0", b"\1"])
def test_the_length_of_a_safetensors_header_is_no_pickle(start: bytes, more: bytes) -> None:
    data = safetensors_of(int.from_bytes(start + more, "little") if start + more != b"\x80\0" else 0x80)
    assert data.startswith(start[:1])
    with bs.open(data) as f:
        assert f.format == "safetensors" and [t.to_bytes() for t in f.values()] == [b"\x07"]


def test_every_length_of_two_bytes_is_a_safetensors_header() -> None:
    for length in [*range(56, 400), *range(400, 65_536, 61)]:
        assert format_for_bytes(safetensors_of(length)[:512]).name == "safetensors", length


def test_the_word_of_a_tar_in_a_header_is_no_tar() -> None:
    data = safetensors_of(600)
    at = 257
    marked = data[:at] + b"ustar" + data[at + 5 :]
    with bs.open(marked) as f:
        assert f.format == "safetensors" and "ustar" in next(iter(f))


def test_a_header_whose_length_is_the_mark_of_a_zip_is_none() -> None:
    head = int.from_bytes(b"PK\3\4", "little").to_bytes(8, "little") + b'{"a":'
    assert format_for_bytes(head.ljust(512)).name == "safetensors"


@pytest.mark.parametrize("key", ["{a", " {", "\t{", "plain"])
@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_a_pickle_is_no_safetensors_whatever_its_first_key(key: str, protocol: int) -> None:
    data = pickle.dumps({key: np.zeros(2, np.float32)}, protocol)
    assert format_for_bytes(data[:512]).name == "pytorch"
    with bs.open(data) as f:
        assert list(f) == [key]


def test_a_burnpack_file_whose_length_spells_a_brace_is_no_safetensors() -> None:
    head = b"NRUB\1\0" + (0x7B0000).to_bytes(4, "little")
    assert format_for_bytes(head.ljust(512, b"\xa1")).name == "burnpack"


def test_a_record_with_the_words_of_an_index_is_a_record() -> None:
    model = {"total_size": np.zeros(1, np.float32), "weight_map": np.zeros(1, np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        save_file(model, f"{folder}/m", PrettyJsonFileRecorder(), durable=False)
        with bs.open(f"{folder}/m.json") as f:
            assert f.format == "record" and sorted(f) == ["total_size", "weight_map"]


# --- formats of other packages ----------------------------------------------------------------------------------------


def test_a_format_is_found_through_an_entry_point(tmp_path: Path, run_python: Any) -> None:
    package = tmp_path / "plugged-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[burnstore.formats]\nplugged = plugged:register\nbroken = nowhere:f\n")
    (tmp_path / "plugged.py").write_text(
        "from burnstore.formats.base import Contents, Table\n"
        "from burnstore.formats.registry import register_format\n"
        "name = 'plugged'\n"
        "def register():\n"
        "    register_format('plugged', 'plugged', suffixes=['.plug'], signature=b'PLUG')\n"
        "def read(source, limits): return Contents(Table([], [], [], [], [], []))\n"
        "def plan(*arguments): raise NotImplementedError\n"
    )
    run_python(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import burnstore as bs\n"
        "from burnstore.formats.registry import format_names\n"
        "bs.open(bs.serialize({}, format='burnpack')).close()\n"
        "assert 'plugged' not in sys.modules and 'importlib.metadata' not in sys.modules\n"
        "with bs.open(b'PLUG and more') as f: assert f.format == 'plugged'\n"
        "assert 'plugged' in format_names()\n"
        "try: bs.open(b'GIF8')\n"
        "except bs.errors.UnknownFormatError as error: assert 'nowhere:f' in error.hint, error.hint\n"
        "else: raise AssertionError\n",
        tmp_path,
    )
