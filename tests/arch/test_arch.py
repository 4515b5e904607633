"""Rules about the source tree: what is public and documented, which calls may stand where, how large files are."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import burnstore

ROOT = Path(__file__).resolve().parent.parent.parent
SRC = ROOT / "src" / "burnstore"
MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(burnstore.__path__, "burnstore.")
    if not name.endswith("__main__")  # importing it runs the command
)

PUBLIC = [
    *("BinFileRecorder", "BinGzFileRecorder", "CompactRecorder", "DefaultRecorder", "DoublePrecisionSettings"),
    *("FullPrecisionSettings", "HalfPrecisionSettings", "JsonGzFileRecorder", "Migration", "NamedMpkFileRecorder"),
    *("NamedMpkGzFileRecorder", "PrettyJsonFileRecorder", "Record", "RecordTensor", "load_file", "migrate"),
    *("open_record", "record_of", "save_file", "load_record"),
    *("AdapterType", "LoadArgs", "PyTorchFileRecorder", "SafetensorsFileRecorder"),
    *("AlreadyExistsError", "ApplyError", "ApplyResult", "BurnToPyTorchAdapter", "BurnpackStore", "BurnstoreError"),
    *("ChainAdapter", "ChangedError", "Checkpoint", "ClosedError", "ContainerPath", "CorruptError", "DType"),
    *("DTypeError", "DuplicateNameError", "FloatCastAdapter", "FormatError", "HalfPrecisionAdapter", "IdentityAdapter"),
    "DeviceError",
    *("KeyRemapper", "Kind", "LimitError", "Limits", "LoadError", "MissingDependencyError", "MissingTensor"),
    *("MissingTensorsError", "ModelError", "ModuleAdapter", "ParamId", "PathFilter", "PatternError"),
    *("Conversion", "SafetensorsStore", "convert", "guess_kinds", "PytorchStore"),
    *("ConfigError", "Opaque", "config_from_file", "save_config", "PytorchMetadata", "PytorchReader"),
    *("Finding", "ScanResult", "scan", "Partition"),
    *("AmbiguousError", "Receipt", "ReceiptCheck", "check_receipt", "read_receipt", "replay"),
    *("Inspection", "TensorRow", "TensorStats", "Totals", "inspect"),
    *("Report", "report"),
    *("Diff", "Difference", "TensorDiff", "diff"),
    *("TensorCheck", "Verification", "verify"),
    *("Merge", "MergeError", "MergeSource", "MergedTensor", "merge"),
    *("Explanation", "LayoutChange", "Move", "explain"),
    *("PyTorchToBurnAdapter", "ReadError", "SaveError", "Scalar", "Store", "TensorData", "TensorNotFoundError"),
    *("TensorSnapshot", "TruncatedError", "UnknownFormatError", "UnsafeContentError", "UnsupportedError", "apply"),
    *("collect", "format_names", "load", "load_from", "map_indices_contiguous", "map_indices_contiguous_except", "nn"),
    *("configure_transfers", "release_pinned_memory"),
    *("open", "register_binding", "register_format", "save", "save_into", "serialize"),
]


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_of(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


# --- what is public ---------------------------------------------------------------------------------------------------


def test_the_public_names_are_these() -> None:
    assert sorted(burnstore.__all__) == sorted(PUBLIC)
    assert sorted(set(burnstore.__all__)) == sorted(burnstore.__all__)


def test_everything_public_exists_and_nothing_else_shows() -> None:
    for name in burnstore.__all__:
        assert hasattr(burnstore, name)
    visible = {
        name
        for name, value in vars(burnstore).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("burnstore")
    }
    assert visible <= set(burnstore.__all__)


def members() -> Iterator[tuple[str, Any]]:
    """Everything public, and the public methods and properties of public classes."""
    for name in burnstore.__all__:
        value = getattr(burnstore, name)
        yield name, value
        if inspect.isclass(value):
            for attribute, member in vars(value).items():
                if not attribute.startswith("_") and (callable(member) or isinstance(member, property | classmethod)):
                    yield f"{name}.{attribute}", getattr(value, attribute)


def test_everything_public_has_a_docstring_that_begins_with_a_sentence() -> None:
    for name, member in members():
        doc = inspect.getdoc(member)
        assert doc, f"{name} has no docstring"
        first = doc.split("\n\n")[0].strip()
        assert first[0].isupper() or first[0] in "`<", f"{name}: {first}"
        assert first.endswith((".", ":", ")")) or ". " in first, f"{name}: {first}"


def test_every_module_has_a_docstring_and_annotations_that_are_not_evaluated() -> None:
    for path in python_files("src"):
        tree = ast.parse(path.read_text("utf-8"))
        assert ast.get_docstring(tree), f"{shown(path)} has no docstring"
        imported = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
        assert imported or len(tree.body) == 1, f"{shown(path)} lacks from __future__ import annotations"


@pytest.mark.parametrize("name", ["burnstore", *MODULES])
def test_the_examples_in_the_docstrings_are_right(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


# --- which calls may stand where --------------------------------------------------------------------------------------


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every call as the dotted text of what is called, with its line; also what is imported by name."""
    renamed: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            renamed.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Import):
            renamed.update({alias.asname or alias.name: alias.name for alias in node.names})
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            head, dot, rest = called.partition(".")
            yield renamed.get(head, head) + dot + rest, node.lineno


BANNED = [
    # what is called, where it may stand all the same, why it may not elsewhere
    (
        r"(cP|_p|p)ickle\.(load|loads|Unpickler)|marshal\.loads?|shelve\.open",
        ("testing/", "io/workers.py"),
        "a pickle runs code",
    ),
    (r"eval|exec|compile|__import__|builtins\.(eval|exec|compile)", (), "text is never run"),
    (r"(numpy|np)\.(load|save|savez|fromfile|memmap)", (), "numpy.load allocates what a header says"),
    (
        r"os\.(replace|rename|renames|link|truncate)",
        ("io/atomic.py", "testing/"),
        "saves are whole or nothing",
    ),
    (
        r"shutil\.(move|copy.*|rmtree)|os\.(remove|unlink|rmdir|system|popen)|subprocess\..*",
        ("io/atomic.py",),
        "side effects",
    ),
    (r"print|input|sys\.std(out|err)\.write", ("cli/",), "a library does not print"),
    (r"open|(io|codecs)\.open|mmap\.mmap|tempfile\..*", ("io/",), "only io meets the content of files"),
    (r"os\.(open|read|pread|preadv|write|writev)", ("io/", "cli/"), "only io has descriptors, and the command its own"),
    (
        r"importlib\.import_module",
        ("__init__.py", "formats/registry.py", "cli/parser.py", "cli/arguments.py"),
        "imports are written down, but for registered formats, the verbs, and what a user names at the command line",
    ),
]


@pytest.mark.parametrize(("pattern", "allowed", "reason"), BANNED, ids=[reason for _, _, reason in BANNED])
def test_a_banned_call_stands_only_where_it_may(pattern: str, allowed: tuple[str, ...], reason: str) -> None:
    found = []
    for path in python_files("src"):
        place = path.relative_to(SRC).as_posix()
        if place.startswith(allowed or ("\0",)):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        found += [
            f"{shown(path)}:{line}: {called}"
            for called, line in calls(tree)
            if re.fullmatch(pattern, called) or re.fullmatch(pattern, called.lstrip("."))
        ]
    assert found == [], reason


def test_the_ban_finds_what_it_looks_for() -> None:
    sample = (
        "import pickle as p, os\nfrom os import replace as r\np.loads(b'')\nr(1, 2)\nprint(1)\nopen('x')\neval('1')\n"
    )
    found = {called for called, _ in calls(ast.parse(sample))}
    assert found == {"pickle.loads", "os.replace", "print", "open", "eval"}


def test_no_bare_except_and_no_swallowed_base_exception() -> None:
    for path in python_files("src"):
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ExceptHandler):
                caught = "BaseException" if node.type is None else ast.unparse(node.type)
                raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
                assert "BaseException" not in caught or raises, f"{shown(path)}:{node.lineno} swallows everything"


# --- files ------------------------------------------------------------------------------------------------------------


def test_no_file_has_more_than_600_lines() -> None:
    long = {shown(path): len(lines_of(path)) for path in python_files("src") if len(lines_of(path)) > 600}
    assert long == {}


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    machines = re.compile(
        "|".join(("/" + "home/", "/" + "root/", "/" + "work/", "/" + "Users/", "/" + "tmp/", "C:" + r"\\Users"))
    )
    found = [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in python_files("src", "tests")
        for number, line in enumerate(lines_of(path), 1)
        if machines.search(line)
    ]
    assert found == []


# --- numbered rules ---------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"\b[A-Z]{2}-\d\d\b")


def specifications() -> dict[str, list[str]]:
    """The rules that the docstring of each format numbers."""
    found = {}
    for path in python_files("src/burnstore/formats"):
        doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        rules = re.findall(r"^ +([A-Z]{2}-\d\d)  ", doc, re.MULTILINE)
        if rules:
            found[shown(path)] = rules
    return found


def test_every_numbered_rule_is_cited_by_a_test() -> None:
    cited = {rule for path in python_files("tests") for rule in NUMBER.findall(path.read_text("utf-8"))}
    for path, rules in specifications().items():
        assert rules == sorted(set(rules)), f"{path}: the rules are numbered in their order"
        assert set(rules) - cited == set(), f"{path}: no test cites these"
    assert any("burnpack" in path for path in specifications())


def test_every_rule_that_code_cites_is_in_a_specification() -> None:
    known = {rule for rules in specifications().values() for rule in rules}
    prefixes = {rule[:2] for rule in known}
    for path in python_files("src"):
        for rule in NUMBER.findall(path.read_text("utf-8")):
            assert rule in known or rule[:2] not in prefixes, f"{shown(path)} cites {rule}"
