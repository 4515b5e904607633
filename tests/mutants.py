"""Change the library at random places, and count the changes that no quick test notices.

    python -m tests.mutants --count 300 --seed 1 --jobs 16 [--room pipeline,tensor] [--tests pipeline,jobs]

    map       the quick tests of the rooms run once, and each notes the functions that it enters
    draw      small changes of the syntax tree: a comparison, a condition, a number, and/or, a `not`, + and -
    run       each change in a copy of the tree, with the tests that enter its function, until the first failure

The last lines are the changes that survived, with file and line. ``--only FILE:LINE`` tries all changes of one line,
``--map FILE`` keeps the map for another call. Every worker is a process with the libraries of the tests imported; it
forks for each change, so that a change costs what its tests cost. The exit status is 1 if more than one in twenty
survive.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("pipeline", "transforms", "models", "tensor", "stores")
_PRELOADED = ("numpy", "pytest", "hypothesis", "ml_dtypes", "torch", "safetensors.torch")
_PATIENCE = 60
"""Seconds that a change may take beyond three times what its tests took: longer ones are endless loops."""


# --- changes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes of a range of a file are replaced."""

    file: str
    line: int
    function: int | None
    """The first line of the function that contains the change; None outside of functions."""
    start: int
    stop: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {_short(self.old)}  =>  {_short(self.new)}"


def _short(code: str) -> str:
    return " ".join(code.split())[:110]


_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the small changes of one node: an expression and what replaces it."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        swapped = _OPPOSITES[type(node.ops[0])]()
        yield node, ast.Compare(node.left, [swapped], node.comparators)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, ast.BoolOp(other, node.values)
        yield node, node.values[0] if len(node.values) == 2 else ast.BoolOp(node.op, node.values[:-1])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, node.operand
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        other_operator = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield node, ast.BinOp(node.left, other_operator, node.right)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, ast.Constant(node.value + 1)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)) and not isinstance(node.test, (ast.Compare, ast.UnaryOp)):
        yield node.test, ast.UnaryOp(ast.Not(), node.test)


class _Finder(ast.NodeVisitor):
    """Collect the changes of a file; annotations, docstrings, messages and type checks are no places for them."""

    def __init__(self, file: str, source: bytes) -> None:
        self._file = file
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._functions: list[int] = []
        self.mutants: list[Mutant] = []

    def _place(self, line: int | None, column: int | None) -> int:
        assert line is not None and column is not None
        return self._starts[line - 1] + column

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.JoinedStr, ast.Assert, ast.Raise)):  # the positions inside f-strings are not exact
            return
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        for old, new in _changes(node):
            start = self._place(old.lineno, old.col_offset)
            stop = self._place(old.end_lineno, old.end_col_offset)
            text = self._source[start:stop].decode()
            changed = f"({ast.unparse(ast.fix_missing_locations(new))})"
            function = self._functions[-1] if self._functions else None
            self.mutants.append(Mutant(self._file, old.lineno, function, start, stop, text, changed))
        super().visit(node)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        decorated = node.decorator_list[0].lineno if node.decorator_list else node.lineno
        self._functions.append(decorated)
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._functions.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function  # noqa: N815  (names of `ast.NodeVisitor`)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)


def mutants_of(rooms: Sequence[str], root: Path = ROOT) -> list[Mutant]:
    """Return every change of the files of these rooms."""
    mutants: list[Mutant] = []
    for room in rooms:
        for path in sorted((root / "src" / "burnstore" / room).rglob("*.py")):
            source = path.read_bytes()
            finder = _Finder(str(path.relative_to(root)), source)
            finder.visit(ast.parse(source))
            mutants += finder.mutants
    return mutants


def mutated(source: bytes, mutant: Mutant) -> bytes:
    """Return the source with the change.

    >>> mutated(b"a < b", Mutant("", 1, None, 0, 5, "a < b", "(a <= b)"))
    b'(a <= b)'
    """
    assert source[mutant.start : mutant.stop] == mutant.old.encode(), mutant
    return source[: mutant.start] + mutant.new.encode() + source[mutant.stop :]


# --- the map of tests -------------------------------------------------------------------------------------------------


class _Recorder:
    """A plugin of pytest: the functions of the library that each test enters, its time, and whether it passed."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._entered: set[Any] = set()
        self.tests: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> _Recorder:
        if hasattr(sys, "monitoring"):  # Python 3.12: a function that was entered costs nothing until the next test
            monitoring = sys.monitoring
            monitoring.use_tool_id(monitoring.COVERAGE_ID, "mutants")
            monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.PY_START, self._started)
            monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.PY_START)
        else:
            threading.setprofile(self._profiled)
            sys.setprofile(self._profiled)
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(sys, "monitoring"):
            sys.monitoring.free_tool_id(sys.monitoring.COVERAGE_ID)
        else:
            threading.setprofile(None)
            sys.setprofile(None)

    def _started(self, code: Any, _: int) -> Any:
        self._entered.add(code)
        return sys.monitoring.DISABLE

    def _profiled(self, frame: Any, event: str, _: Any) -> None:
        if event == "call":
            self._entered.add(frame.f_code)

    def pytest_runtest_logstart(self) -> None:
        self._entered = set()
        self._begun = time.monotonic()
        if hasattr(sys, "monitoring"):
            sys.monitoring.restart_events()

    def pytest_runtest_logreport(self, report: Any) -> None:
        row = self.tests.setdefault(report.nodeid, {"passed": True})
        row["passed"] = row["passed"] and not report.failed and not report.skipped

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        row = self.tests[nodeid]
        entered, self._entered = self._entered, set()  # what is recorded from here on must not change it
        row["seconds"] = round(time.monotonic() - self._begun, 4)
        inside = [code for code in entered if code.co_filename.startswith(self._source)]
        row["entered"] = sorted({f"{code.co_filename[len(self._source) :]}:{code.co_firstlineno}" for code in inside})


def _pytest(tree: Path, arguments: Sequence[str], plugins: Sequence[Any] = ()) -> int:
    """Run pytest in this process, which belongs to it from now on."""
    import pytest

    os.chdir(tree)
    sys.path[:0] = [str(tree / "src"), str(tree)]
    os.environ["PYTHONPATH"] = str(tree / "src")
    sys.dont_write_bytecode = True
    common = ["--tier", "quick", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--tb=no", "-W", "ignore"]
    return int(pytest.main([*common, *arguments], plugins=list(plugins)))


def _record(tree: Path, files: Sequence[str], output: Path) -> None:
    """Run test files and write what each test enters."""
    with _Recorder(f"{tree}/src/burnstore/") as recorder:
        _pytest(tree, files, [recorder])
    output.write_text(json.dumps(recorder.tests))


# --- workers ----------------------------------------------------------------------------------------------------------


def _copy_tree(target: Path) -> Path:
    """Copy what the tests need: everything that git knows, or all but the folders that are built."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout
    names = [name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]
    if not names:
        skipped = shutil.ignore_patterns(".*", "__pycache__", "target", "node_modules")
        return Path(shutil.copytree(ROOT, target, ignore=skipped, symlinks=True))
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    return target


def _forked(run: Any, seconds: float) -> int | None:
    """Call a function in a fork; return its status, None if it took longer."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setpgid(0, 0)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            status = run()
        finally:
            os._exit(status if status in range(256) else 1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, 9)  # the child leads a group of its own
    os.waitpid(child, 0)
    return None


def _work(tree: Path, todo: Any, done: Any) -> None:
    """Take jobs until there are no more: lists of test files to map, or changes to try."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    _copy_tree(tree)
    for name in _PRELOADED:
        with suppress(ImportError):
            __import__(name)
    while (job := todo.get()) is not None:
        kind, *arguments = job
        if kind == "map":
            done.put((arguments[0], _entered(tree, arguments[0])))
        else:
            mutant, tests, seconds, seed = arguments
            done.put((mutant, _try(tree, mutant, tests, seconds, seed)))


def _entered(tree: Path, files: Sequence[str]) -> dict[str, Any]:
    """Return what the tests of these files enter; nothing if they could not be run."""
    output = tree / "entered.json"
    output.unlink(missing_ok=True)

    def record() -> int:
        _record(tree, files, output)
        return 0

    return json.loads(output.read_text()) if _forked(record, 1800) == 0 else {}


def _try(tree: Path, mutant: Mutant, tests: Sequence[str], seconds: float, seed: int) -> str:
    """Return what became of a change: killed, survived, endless, or without tests."""
    if not tests:
        return "no test enters it"
    path = tree / mutant.file
    source = path.read_bytes()
    path.write_bytes(mutated(source, mutant))
    try:
        arguments = ["-x", f"--hypothesis-seed={seed}", *tests]
        status = _forked(lambda: _pytest(tree, arguments), 3 * seconds + _PATIENCE)
    finally:
        path.write_bytes(source)
    if status == 4 and _forked(lambda: _pytest(tree, ["--collect-only", *tests]), 600) == 4:
        return "no test enters it"  # the names of its tests are none that pytest finds again
    return "endless" if status is None else "survived" if status == 0 else "killed"


# --- the run ----------------------------------------------------------------------------------------------------------


def _test_files(rooms: Sequence[str]) -> list[str]:
    files = [path for room in rooms for path in (ROOT / "tests" / room).rglob("test_*.py")]
    return [str(path.relative_to(ROOT)) for path in sorted(files, key=lambda path: -path.stat().st_size)]


def _chosen(mutant: Mutant, tests: dict[str, Any], entering: dict[str, list[str]], most: float) -> list[str]:
    """Return the tests for a change, those that enter the fewest other functions first, of about ``most`` seconds.

    Of a test with many cases, the second comes after the first of all others.
    """
    file = mutant.file.removeprefix("src/burnstore/")
    if mutant.function is not None:
        names = entering.get(f"{file}:{mutant.function}", [])
    else:  # outside of functions: every test that enters a function of the file
        names = sorted({name for place, tests in entering.items() if place.startswith(f"{file}:") for name in tests})
    room = f"tests/{file.split('/')[0]}/"
    cases: dict[str, int] = defaultdict(int)
    ranked = []
    for name in sorted(names, key=lambda name: (len(tests[name]["entered"]), name)):
        function = name.partition("[")[0]
        ranked.append((cases[function], not name.startswith(room), len(tests[name]["entered"]), name))
        cases[function] += 1
    selected, seconds = [], 0.0
    for *_, name in sorted(ranked):
        seconds += tests[name]["seconds"]
        if selected and seconds > most:
            break
        selected.append(name)
    return selected


class _Workers:
    """Processes, each with a copy of the tree, that take jobs from one queue."""

    def __init__(self, count: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._todo, self._done = context.Queue(), context.Queue()
        self._processes = [
            context.Process(target=_work, args=(folder / str(number), self._todo, self._done), daemon=False)
            for number in range(count)
        ]
        for process in self._processes:
            process.start()

    def results(self, jobs: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the result of each job, in any order."""
        for job in jobs:
            self._todo.put(job)
        for _ in jobs:
            yield self._done.get()

    def end(self) -> None:
        for _ in self._processes:
            self._todo.put(None)
        for process in self._processes:
            process.join()


def _mapped(workers: _Workers, files: Sequence[str]) -> dict[str, Any]:
    tests: dict[str, Any] = {}
    for names, found in workers.results([("map", [file]) for file in files]):
        if not found:
            print(f"not mapped: {', '.join(names)}", flush=True)
        tests |= {name: row for name, row in found.items() if row["passed"] and "seconds" in row}
    return tests


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="how many changes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--room", default=",".join(ROOMS), help="the rooms to change, by comma")
    parser.add_argument("--tests", help="the folders of tests, by comma: by default those of the rooms, and jobs")
    parser.add_argument("--seconds", type=float, default=25, help="the most time that the tests of a change take")
    parser.add_argument("--map", type=Path, help="read the map of tests from this file, or write it there")
    parser.add_argument("--only", help="FILE:LINE, relative to src/burnstore: all changes of one line")
    return parser.parse_args()


def main() -> int:
    """Draw changes, try them, and print what became of them."""
    given = _arguments()
    rooms = given.room.split(",")
    mutants = mutants_of(rooms if given.only is None else [given.only.partition("/")[0]])
    if given.only is None:
        drawn = random.Random(given.seed).sample(mutants, min(given.count, len(mutants)))
    else:
        drawn = [each for each in mutants if f"{each.file}:{each.line}" == f"src/burnstore/{given.only}"]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        workers = _Workers(given.jobs, Path(folder))
        try:
            if given.map is not None and given.map.exists():
                tests = json.loads(given.map.read_text())
            else:
                tests = _mapped(workers, _test_files((given.tests or f"{given.room},jobs").split(",")))
                if given.map is not None:
                    given.map.write_text(json.dumps(tests))
            entering: dict[str, list[str]] = defaultdict(list)
            for name, row in tests.items():
                for place in row["entered"]:
                    entering[place].append(name)
            print(f"{len(tests)} tests mapped in {time.monotonic() - begun:.0f} s", flush=True)
            jobs = []
            for mutant in drawn:
                selected = _chosen(mutant, tests, entering, given.seconds)
                seconds = sum(tests[name]["seconds"] for name in selected)
                jobs.append(("try", mutant, selected, seconds, given.seed))
            # Without a change all tests must pass, or a kill would mean nothing.
            controls = [("try", replace(mutant, new=mutant.old), *rest) for _, mutant, *rest in jobs[::20]]
            outcomes: dict[str, list[Mutant]] = defaultdict(list)
            for mutant, outcome in workers.results([*controls, *jobs]):
                if mutant.new == mutant.old:
                    outcomes[f"{outcome} without a change"].append(mutant)
                    continue
                outcomes[outcome].append(mutant)
                print(f"{outcome:9} {mutant}", flush=True)
        finally:
            workers.end()
    left = [mutant for outcome in ("survived", "no test enters it") for mutant in outcomes[outcome]]
    counts = ", ".join(f"{len(found)} {outcome}" for outcome, found in outcomes.items())
    print(f"\n{len(drawn)} changes in {time.monotonic() - begun:.0f} s: {counts}; {len(left)} left:")
    for mutant in sorted(left, key=lambda mutant: (mutant.file, mutant.line)):
        print(f"  {mutant}")
    unsound = outcomes["killed without a change"]
    for mutant in unsound:
        print(f"the tests of {mutant.file}:{mutant.line} fail without a change: kills may mean nothing")
    return 2 if unsound else int(20 * len(left) > len(drawn))


if __name__ == "__main__":
    sys.exit(main())
