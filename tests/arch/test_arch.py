"""Rules about the source tree: how large it is, what is public and documented, which calls are allowed where."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import burnstore

pytestmark = pytest.mark.xdist_group("source")  # one worker parses the source for all of them

ROOT = Path(__file__).resolve().parent.parent.parent
SRC = ROOT / "src" / "burnstore"
MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(burnstore.__path__, "burnstore.")
    if not name.endswith("__main__")  # importing it runs the command
)


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_of(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


# --- the size of the package ------------------------------------------------------------------------------------------


def test_the_package_has_at_most_8_files_at_its_root_and_11_packages() -> None:
    packages = sorted(path.parent.name for path in SRC.glob("*/__init__.py"))
    assert len(packages) <= 11, packages
    files = sorted(path.name for path in SRC.glob("*.py"))
    assert len(files) <= 8, files


def test_the_public_surface_is_small() -> None:
    import burnstore

    assert len(burnstore.__all__) <= 60
    assert dir(burnstore) == burnstore.__all__


@pytest.fixture(scope="module")
def architecture() -> ModuleType:
    """The program that draws docs/architecture.svg."""
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "docs" / "tools" / "architecture.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_modules_import_each_other_in_a_circle(architecture: ModuleType) -> None:
    graph = dict(architecture.imports())
    graph[""] = set()  # the package itself imports nearly everything, lazily
    assert architecture.circles(graph) == []


def test_a_circle_would_be_found(architecture: ModuleType) -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert architecture.circles(graph) == [["b", "c"]]


def test_imports_are_those_of_the_source(architecture: ModuleType) -> None:
    found = architecture.imports()
    assert {"io", "errors"} <= {name.split(".")[0] for name in found["tensor.snapshot"]}
    assert "checkpoint" in found[""]


def test_the_picture_of_the_architecture_is_current(architecture: ModuleType) -> None:
    assert architecture.main(["--check"]) == 0, "run `make architecture`"


# --- what is public ---------------------------------------------------------------------------------------------------


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
        tree = tree_of(path)
        assert ast.get_docstring(tree), f"{shown(path)} has no docstring"
        imported = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
        assert imported or len(tree.body) == 1, f"{shown(path)} lacks from __future__ import annotations"


@pytest.mark.parametrize("name", ["burnstore", *MODULES])
def test_the_examples_in_the_docstrings_are_right(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


# --- which calls are allowed where ------------------------------------------------------------------------------------


@cache
def calls(path: Path) -> list[tuple[str, int]]:
    return list(calls_in(tree_of(path)))


def dotted(called: ast.expr) -> str:
    if isinstance(called, ast.Name):
        return called.id
    return f"{dotted(called.value)}.{called.attr}" if isinstance(called, ast.Attribute) else ast.unparse(called)


def calls_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every call as the dotted name of what is called, whatever it was imported as, with its line."""
    renamed: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            renamed.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Import):
            renamed.update({alias.asname or alias.name: alias.name for alias in node.names})
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            head, dot, rest = called.partition(".")
            yield renamed.get(head, head) + dot + rest, node.lineno


BANNED = [
    # what is called, where it is allowed, why it is not elsewhere
    (
        r"(cP|_p|p)ickle\.(load|loads|Unpickler)|marshal\.loads?|shelve\.open",
        ("testing/", "io/workers.py"),
        "a pickle runs code",
    ),
    (r"eval|exec|compile|__import__|builtins\.(eval|exec|compile)", (), "text is never run"),
    (r"(numpy|np)\.(load|save|savez|fromfile|memmap)", (), "numpy.load allocates what a header says"),
    (
        r"os\.(replace|rename|renames|link|truncate)",
        ("io/atomic.py", "io/remote/cache.py", "testing/"),
        "saves are whole or nothing",
    ),
    (
        r"shutil\.(move|copy.*|rmtree)|os\.(remove|unlink|rmdir|system|popen)|subprocess\..*",
        ("io/atomic.py", "io/remote/cache.py"),
        "side effects",
    ),
    (
        r"json\.(load|loads|JSONDecoder|decoder\..*)|tomll?ib?\..*|tomli\..*",
        ("io/json.py", "io/documents.py"),
        "documents have one strict reader",
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
    found = [
        f"{shown(path)}:{line}: {called}"
        for path in python_files("src")
        if not path.relative_to(SRC).as_posix().startswith(allowed or ("\0",))
        for called, line in calls(path)
        if re.fullmatch(pattern, called) or re.fullmatch(pattern, called.lstrip("."))
    ]
    assert found == [], reason


def test_the_ban_finds_what_it_looks_for() -> None:
    sample = (
        "import pickle as p, os\nfrom os import replace as r\np.loads(b'')\nr(1, 2)\nprint(1)\nopen('x')\neval('1')\n"
        "import tomllib\nfrom json import loads as l\nl('')\ntomllib.loads('')\n"
    )
    found = {called for called, _ in calls_in(ast.parse(sample))}
    assert found == {"pickle.loads", "os.replace", "print", "open", "eval", "json.loads", "tomllib.loads"}


def test_an_option_of_the_command_line_is_declared_once() -> None:
    """Several verbs have ``--filter``: its spelling and its help are in the table of shared options, nowhere else."""
    own = [
        argument.value.lstrip("-").replace("-", "_")
        for path in python_files("src/burnstore/cli")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and dotted(node.func).endswith(".add_argument")
        for argument in node.args
        if isinstance(argument, ast.Constant) and argument.value.startswith("--")
    ]
    declared = Counter([*own, *importlib.import_module("burnstore.cli.arguments")._OPTIONS])
    assert len(own) > 20
    assert {name for name, count in declared.items() if count > 1} == set()


FRAMEWORKS = {"torch", "jax", "flax", "tensorflow", "keras", "mlx", "safetensors"}


def test_no_framework_is_imported_but_torch_for_its_tensors() -> None:
    found = []
    for path in python_files("src"):
        for node in ast.walk(tree_of(path)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            found += [f"{shown(path)}: {name}" for name in names if name.split(".")[0] in FRAMEWORKS]
    assert set(found) <= {"src/burnstore/tensor/torch.py: torch"}


def test_no_bare_except_and_no_swallowed_base_exception() -> None:
    for path in python_files("src"):
        if "testing" in path.parts:
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ExceptHandler):
                caught = "BaseException" if node.type is None else ast.unparse(node.type)
                raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
                assert "BaseException" not in caught or raises, f"{shown(path)}:{node.lineno} swallows everything"


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    machines = re.compile(
        "|".join(("/" + "home/", "/" + "root/", "/" + "work/", "/" + "Users/", "/" + "tmp/", "C:" + r"\\Users"))
    )
    found = [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in python_files("src", "tests", "docs")
        for number, line in enumerate(lines_of(path), 1)
        if machines.search(line)
    ]
    assert found == []
