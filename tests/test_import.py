"""Importing burnstore, saving and opening: no framework and nothing heavy comes along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FRAMEWORKS = ["torch", "jax", "flax", "equinox", "tensorflow", "keras", "mlx", "safetensors", "pandas", "dask", "ray"]
_RECORDING = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n"

_USE = """
import sys
sys.path.insert(0, sys.argv[1])
import tempfile
import burnstore as bs
after_import = set(sys.modules)
import numpy as np
with tempfile.TemporaryDirectory() as folder:
    bs.save({"a": np.zeros(4, np.float32)}, folder + "/model.bpk")
    with bs.open(folder + "/model.bpk") as f:
        f["a"].numpy(), f.numpy(), f["a"][1:2], repr(f)
print(*sorted(after_import), "|", *sorted(set(sys.modules)))
"""


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fakes")
    for name in FRAMEWORKS:
        package = folder / name
        package.mkdir()
        (package / "__init__.py").write_text(_RECORDING)
    return folder


def test_no_framework_is_imported_merely_because_it_is_installed(fakes: Path, run_python: Any) -> None:
    run_python(_USE, fakes)
    assert sorted(mark.parent.name for mark in fakes.glob("*/imported")) == []


def test_the_fakes_would_tell(fakes: Path, tmp_path: Path, run_python: Any) -> None:
    other = tmp_path / "torch"
    other.mkdir()
    (other / "__init__.py").write_text(_RECORDING)
    run_python("import sys; sys.path.insert(0, sys.argv[1]); import torch", tmp_path)
    assert (other / "imported").exists()


def test_importing_is_light(fakes: Path, run_python: Any) -> None:
    after_import, after_use = (set(part.split()) for part in run_python(_USE, fakes).split("|"))
    heavy = {
        *("ml_dtypes", "rich", "concurrent.futures", "multiprocessing", "asyncio", "cbor2", "msgpack", "pytest"),
        *("json", "zipfile", "tarfile", "pickletools", "sqlite3", "difflib", "argparse", "importlib.metadata"),
        *("burnstore.testing", "burnstore.cli", "burnstore.tensor.quantization"),
    }
    numpy_alone = set(run_python("import sys, numpy; print(*sys.modules)").split())
    assert (heavy - numpy_alone) & after_import == set()
    unused = {"ml_dtypes", "rich", "concurrent.futures", "multiprocessing", "pytest", "burnstore.testing"}
    assert (unused - numpy_alone) & after_use == set()
    others = {name for name in after_import - numpy_alone if not name.startswith("burnstore")}
    assert len(others) < 60, sorted(others)


def test_the_conformance_tests_import_pytest_and_burnstore_does_not(run_python: Any) -> None:
    run_python("import sys, burnstore; assert 'pytest' not in sys.modules")
    run_python("import sys, burnstore.testing; assert 'pytest' in sys.modules")


def test_warnings_as_errors_do_not_hinder_an_import_without_assertions_or_docstrings(run_python: Any) -> None:
    run_python("import burnstore as bs; assert bs.open(bs.serialize({}, format='burnpack')).close() is None")
    run_python(
        "import subprocess, sys\n"
        "use = 'import burnstore as bs; bs.open(bs.serialize({}, format=\"burnpack\")).close()'\n"
        "subprocess.run([sys.executable, '-OO', '-W', 'error', '-c', use], check=True)"
    )
