"""Program: real Burn of one version, built by `interop/build` and spoken to by the commands of `interop/README.md`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from burnstore.errors import CorruptError
from burnstore.formats.burnpack.quant_spelling import scheme_from_tree, scheme_to_tree
from burnstore.tensor.dtype import DType

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "interop" / "build"
VERSIONS = ("0.19", "0.20", "0.21", "0.22", "0.23-pre")
NEWEST = "0.22"
"""The newest stable release: the one that is proven with every change."""

_SECONDS = 600


class UnavailableError(Exception):
    """Why there is no program of a version on this machine."""


class ProgramError(Exception):
    """The program did not do what its protocol says."""


def dtype_from_json(tree: Any) -> DType | str:
    """A dtype as Burn serializes it: a word, or a map of Bool or QFloat; as text if burnstore would refuse it."""
    if isinstance(tree, str):
        return DType.parse(tree)
    ((word, content),) = tree.items()
    if word == "Bool":
        return DType.parse(f"Bool({content})")
    try:
        return DType.qfloat(scheme_from_tree(content))
    except CorruptError:
        return json.dumps(tree)


def dtype_to_json(dtype: DType) -> Any:
    """A dtype as Burn 0.22 and later serialize it."""
    if dtype.scheme is not None:
        return {"QFloat": scheme_to_tree(dtype.scheme, "T")}
    return {"Bool": _BOOL_STORES[dtype]} if dtype.is_bool else dtype.name


_BOOL_STORES = {DType.Bool: "Native", DType.BoolU8: "U8", DType.BoolU32: "U32"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as Burn describes it; ``sha256`` is of its bytes, row-major and little-endian."""

    path: str
    dtype: DType | str
    shape: tuple[int, ...]
    param_id: int | None
    sha256: str
    containers: tuple[str, ...] = ()
    module_type: str | None = None
    dequantized_sha256: str | None = None

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> Tensor:
        param_id = tree.get("param_id")
        return Tensor(
            tree["path"],
            dtype_from_json(tree["dtype"]),
            tuple(tree["shape"]),
            None if param_id is None else int(param_id),
            tree["sha256"],
            tuple(tree.get("containers") or ()),
            tree.get("module_type"),
            tree.get("dequantized_sha256"),
        )


@dataclass(frozen=True, slots=True)
class Reading:
    """What Burn's reader made of one file."""

    file: str
    error: str | None
    panicked: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True, slots=True)
class Loading:
    """What a load into one of Burn's modules gave: the lists of its result, and the module's tensors afterwards."""

    error: str | None
    result: dict[str, Any]
    tensors: tuple[Tensor, ...]

    @property
    def ok(self) -> bool:
        return self.error is None

    def made(self) -> tuple[Any, ...]:
        """What of it does not change from run to run: whether it went well, and the lists and tensors if so."""
        tensors = [(tensor.path, tensor.dtype, tensor.shape, tensor.sha256) for tensor in self.tensors]
        return self.ok, self.result if self.ok else None, tensors if self.ok else None


class Program:
    """One version of Burn."""

    def __init__(self, version: str, binary: Path) -> None:
        self.version = version
        self.binary = binary
        self.about: dict[str, Any] = json.loads(self._run("version"))

    def __repr__(self) -> str:
        return f"<Burn {self.release}>"

    @property
    def release(self) -> str:
        """The exact release, such as ``0.22.1``; the text that it stamps into files."""
        return str(self.about["burn"])

    @property
    def models(self) -> list[str]:
        return list(self.about["models"])

    def gen(self, folder: Path) -> None:
        """Write the zoo: every model as files, each with a description beside it."""
        self._run("gen", folder)

    def load(self, model: str, file: Path, *options: str) -> Loading:
        """Load a file into the module of that name."""
        done = self._finished("load", model, file, *options)
        try:
            tree = json.loads(done.stdout)
        except json.JSONDecodeError:  # some versions abort the process instead of failing
            return Loading(f"exit status {done.returncode}: {_last_line(done.stderr)}", {}, ())
        result = tree.get("result") or {}
        tensors = tuple(map(Tensor.from_json, tree.get("tensors") or ()))
        return Loading(None if tree["ok"] else str(tree["error"]), result, tensors)

    def save(self, model: str, source: Path, out: Path, *options: str) -> None:
        """Load a file into the module of that name and save the module."""
        self._run("save", model, source, out, *options)

    def outline(self, model: str, out: Path, *options: str) -> None:
        """Save the outline of the module of that name, untrained."""
        self._run("outline", model, out, *options)

    def complaint(self, *arguments: object) -> str:
        """Run a command that must fail, and return its error."""
        done = self._finished(*arguments)
        if done.returncode == 0:
            raise ProgramError(f"{' '.join(map(str, arguments))}: it did not fail")
        return str(json.loads(done.stdout)["error"])

    def read(self, files: Sequence[Path]) -> list[Reading]:
        """What Burn's reader makes of each file; one that ends the program is reported and the rest goes on."""
        found: list[Reading] = []
        while len(found) < len(files):
            rest = files[len(found) :]
            done = self._finished("read", given="".join(f"{file}\n" for file in rest))
            lines = _whole_lines(done.stdout)
            found += [_reading(json.loads(line)) for line in lines]
            if len(lines) < len(rest):
                if done.returncode == 0:
                    raise ProgramError(f"read answered {len(lines)} of {len(rest)} files: {_last_line(done.stderr)}")
                how = f"exit status {done.returncode}: {_last_line(done.stderr)}"
                found.append(Reading(str(rest[len(lines)]), how, panicked=True))
        return found

    def write(self, requests: Iterable[Mapping[str, Any]]) -> list[str | None]:
        """Let Burn write files of given content; for each None, or the error."""
        asked = [json.dumps(request) for request in requests]
        done = self._finished("write", given="".join(f"{line}\n" for line in asked))
        lines = [json.loads(line) for line in _whole_lines(done.stdout)]
        if len(lines) != len(asked):
            raise ProgramError(f"write answered {len(lines)} of {len(asked)}: {_last_line(done.stderr)}")
        return [None if line["ok"] else str(line["error"]) for line in lines]

    def forward(self, model: str, file: Path, inputs: Path) -> Any:
        """What the module of that name computes with the weights of a file on the tensors of another."""
        tree = json.loads(self._run("forward", model, file, inputs))
        return np.array(tree["values"], np.float32).reshape(tree["shape"])

    def bench(self, folder: Path, case: str) -> dict[str, Any]:
        """One round of one case of Burn's own benchmark."""
        tree: dict[str, Any] = json.loads(self._run("bench", folder, "--rounds", "1", "--only", case))
        return tree

    def _run(self, *arguments: object) -> str:
        done = self._finished(*arguments)
        if done.returncode != 0:
            raise ProgramError(f"{' '.join(map(str, arguments))}: {_last_line(done.stderr)}")
        return done.stdout

    def _finished(self, *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.binary, *map(str, arguments)],
            input=given,
            capture_output=True,
            encoding="utf-8",
            timeout=_SECONDS,
            check=False,
        )


def program(version: str) -> Program:
    """The program of a version, built now if it is not yet; UnavailableError where it cannot be."""
    return _described(version, built(version))


@cache
def _described(version: str, binary: Path) -> Program:
    return Program(version, binary)


@cache
def built(version: str, name: str = "burn-interop") -> Path:
    """The binary of a version's package, built now if it is not yet; UnavailableError where it cannot be."""
    if not BUILD.is_file():
        raise UnavailableError("interop/build is not part of this tree")
    cargo()
    done = subprocess.run(
        [BUILD, version, name],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "PATH": _path()},
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise ProgramError(f"interop/build {version} {name} failed with status {done.returncode}")
    return Path(lines[-1])


def cargo(*arguments: object) -> list[str]:
    """The command that runs cargo; UnavailableError where it is not installed."""
    found = shutil.which("cargo", path=_path())
    if found is None:
        raise UnavailableError("there is no cargo on this machine: install Rust to run Burn itself")
    return [found, *map(str, arguments)]


def cache_folder() -> Path:
    """Where `interop/build` keeps what it builds."""
    given = os.environ.get("BURNSTORE_INTEROP_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(given) if given else Path(home) / "burnstore-interop"


def asked_versions() -> tuple[str, ...]:
    """The versions that BURN_VERSIONS names: the newest stable one by default."""
    asked = tuple(os.environ.get("BURN_VERSIONS", NEWEST).split())
    unknown = [version for version in asked if version not in VERSIONS]
    if unknown or not asked:
        raise SystemExit(f"BURN_VERSIONS={' '.join(asked)!r}: versions are {', '.join(VERSIONS)}")
    return asked


def _path() -> str:
    """PATH with the place where Rust's installer puts cargo."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), os.path.expanduser("~/.cargo/bin")))


def _reading(tree: Mapping[str, Any]) -> Reading:
    return Reading(
        tree["file"],
        None if tree["ok"] else str(tree["error"]),
        bool(tree.get("panic")),
        dict(tree.get("metadata") or {}),
        tuple(map(Tensor.from_json, tree.get("tensors") or ())),
    )


def _whole_lines(text: str) -> list[str]:
    return text.split("\n")[:-1]  # not splitlines: names may hold what Unicode calls a line separator


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:500] if lines else "(it said nothing)"
