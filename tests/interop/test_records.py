"""Record files and Burn 0.21, the last with recorders: it loads what we write; we read and write what it writes."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
from burnstore import nn
from burnstore.stores.records import (
    BinFileRecorder,
    BinGzFileRecorder,
    DoublePrecisionSettings,
    FullPrecisionSettings,
    HalfPrecisionSettings,
    JsonGzFileRecorder,
    NamedMpkFileRecorder,
    NamedMpkGzFileRecorder,
    PrettyJsonFileRecorder,
    load_file,
    save_file,
)

from .program import UnavailableError, asked_versions, program

VERSION = "0.21"
RECORDERS = {
    "mpk": NamedMpkFileRecorder,
    "mpk.gz": NamedMpkGzFileRecorder,
    "bin": BinFileRecorder,
    "bin.gz": BinGzFileRecorder,
    "json": PrettyJsonFileRecorder,
    "json.gz": JsonGzFileRecorder,
}
SETTINGS = {
    "full": FullPrecisionSettings,
    "half": HalfPrecisionSettings,
    "double": DoublePrecisionSettings,
}

pytestmark = pytest.mark.skipif(VERSION not in asked_versions(), reason=f"BURN_VERSIONS does not name {VERSION}")


class Part(nn.Enum):
    Dense = nn.variant(nn.Linear)
    Norm = nn.variant(nn.BatchNorm)


class Mixed(nn.Module):
    """The module of interop/burn-0.21/records.rs."""

    optional_fields = frozenset({"maybe", "none"})

    def __init__(self) -> None:
        self.conv = nn.Conv2d([2, 3], [2, 2])
        self.act = nn.Relu()
        self.count = 3
        self.sizes = (1, 2)
        self.layers = [nn.Linear(3, 4), nn.Linear(4, 2, bias=False)]
        self.maybe = nn.Linear(2, 2)
        self.none = None
        self.part = Part.Norm(nn.BatchNorm(2))
        self.parts = [Part.Dense(nn.Linear(2, 1))]
        self.mask = nn.Param.from_data(np.array([True, False, True]))
        self.ids = nn.Param.from_data(np.array([5, -6, 700], np.int64))
        self.lstm = nn.Lstm(2, 3, True, burn_version=VERSION)
        self.tail = nn.Param([2, 2], nn.Normal(0.0, 1.0))


@pytest.fixture(scope="module")
def recorders() -> Path:
    try:
        return program(VERSION).binary.with_name("burn-records")
    except UnavailableError as reason:
        pytest.skip(str(reason))


def _values(array: Any, precision: str) -> list[float]:
    if array.dtype.kind == "f" and precision == "half":
        array = array.astype(np.float16)
    return array.astype(np.float64).reshape(-1).tolist()


@pytest.mark.parametrize("precision", SETTINGS)
@pytest.mark.parametrize("kind", RECORDERS)
def test_burn_loads_our_records_and_we_read_and_write_its_own(
    recorders: Path, kind: str, precision: str, tmp_path: Path
) -> None:
    recorder, settings = RECORDERS[kind], SETTINGS[precision]
    model = Mixed()
    save_file(model, tmp_path / "ours", recorder(settings), durable=False)
    asked = [recorders, kind, precision, tmp_path / "ours", tmp_path / "theirs"]
    done = subprocess.run(asked, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    found = {line["path"]: line for line in map(json.loads, done.stdout.splitlines())}
    wanted = {tensor.path: tensor for tensor in bs.collect(model)}
    assert found.keys() == wanted.keys()
    for path, tensor in wanted.items():
        assert found[path]["shape"] == list(tensor.shape), path
        assert found[path]["values"] == _values(tensor.numpy(), precision), path
        assert "running" in path or found[path]["id"] == str(tensor.param_id), path  # a running state keeps its own

    back = Mixed()
    assert load_file(back, tmp_path / "theirs", recorder()).is_success()
    for tensor in bs.collect(back):
        assert _values(tensor.numpy(), precision) == found[tensor.path]["values"], tensor.path
    with recorder().load(tmp_path / "theirs", like=Mixed()) as record:
        recorder(settings).record(record, tmp_path / "again", durable=False)
    theirs, again = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("theirs", "again"))
    if kind.endswith("gz"):  # what deflates differs, what is deflated must not
        theirs, again = gzip.decompress(theirs), gzip.decompress(again)
    assert theirs == again
