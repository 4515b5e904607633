"""Compare the tracer of `scan` with Python's own unpicklers: ``python -m tests.fuzz.pickles --cases 1000000 --seed 1``.

Random and mutated pickles of all protocols go through the unpickler in C (as bytes, as a file, as a file that can be
peeked into) and the one in Python. Their ``find_class`` returns stand-ins that accept everything, so that nothing is
imported or run. Violations, each by its letter:

    (n) an import that the tracer missed: Python's imports must be the first of the tracer's, in the same order;
    (c) a call of an imported global that the tracer missed, or items or a state that such a global was given;
    (l) bytes that ``torch.storage._load_from_bytes`` would unpickle and the tracer neither returned nor flagged;
    (e) a tracer that raises an error;
    (w) a pickle that Python loads to its STOP, and the tracer does not reach it.

Where the tracer says that Python's unpicklers disagree (``is_ambiguous``) a file is never clean, and only (e) counts.
"""

from __future__ import annotations

import _codecs
import argparse
import collections
import copyreg
import io
import pickle
import pickletools
import resource
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from burnstore.formats.codec import pickle_trace as tracer
from burnstore.formats.codec.pickle_trace import _DOTTED, LOADS_PICKLE, UNKNOWN, Trace, trace_ways

EXTENSIONS = {1: ("ext", "one"), 7: ("ext", "seven"), 300: ("ext", "wide"), 70_000: ("ext", "widest")}
ENCODINGS = ("ASCII", "latin1", "utf-8", "bytes")
MEMORY = 2 << 30
_LONGEST_NAME = 512


# --- Python's unpicklers, with stand-ins -----------------------------------------------------------------------------


class Record:
    """What one unpickler did."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self.called: set[tuple[str, str]] = set()
        self.changed: set[tuple[str, str]] = set()
        self.loaded: list[bytes] = []
        self.is_whole = False


RECORD = Record()


class Everything(type):
    """The type of stand-ins: classes that can be called, iterated, filled, and given a state."""

    key: tuple[str, str] | None = None

    def __call__(cls, *args: Any, **options: Any) -> Any:
        return cls.run(args)

    def run(cls, args: tuple[Any, ...]) -> Any:
        key = cls.key
        if key is None:
            return RESULT
        RECORD.called.add(key)
        if key[1] == "text":
            return "made"
        if key == LOADS_PICKLE and len(args) == 1 and isinstance(args[0], (bytes, bytearray, memoryview)):
            RECORD.loaded.append(bytes(args[0]))
        if key == ("_codecs", "encode") and all(isinstance(arg, (str, bytes)) for arg in args):
            return _codecs.encode(*args)  # It raises the errors that Python would raise.
        return RESULT

    def change(cls, *args: Any) -> None:
        if cls.key is not None:
            RECORD.changed.add(cls.key)

    append = extend = add = update = __setitem__ = __setstate__ = change

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def keys(cls) -> tuple[str, ...]:
        return ()

    def __getitem__(cls, key: Any) -> Any:
        return RESULT


class Result(metaclass=Everything):
    """What a call returns."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        return cls.run(args)


RESULT: Any = Result
STAND_INS: dict[tuple[str, str], Any] = {}


def stand_in(module: str, name: str) -> Any:
    key = (module, name)
    made = STAND_INS.get(key)
    if made is None:
        if len(STAND_INS) > 5_000:
            STAND_INS.clear()
        made = STAND_INS[key] = Everything("StandIn", (Result,), {"key": key})
    return made


class Hooks:
    """The functions that an unpickler asks for what a pickle names."""

    foreign = False

    def find_class(self, module: str, name: str) -> Any:
        if self.foreign:  # What `__import__` and `getattr` would say in a program without odd modules.
            if not _DOTTED.fullmatch(module):
                raise ModuleNotFoundError(module)
            if not _DOTTED.fullmatch(name):
                if module.partition(".")[0] in sys.stdlib_module_names:
                    RECORD.names.append((module, name))
                raise AttributeError(name)
        RECORD.names.append((module, name))
        return stand_in(module, name)


class Persistent:
    def persistent_load(self, identity: Any) -> Any:
        return RESULT


class InC(Hooks, pickle.Unpickler):
    pass


class InCPersistent(Persistent, InC):
    pass


class InPython(Hooks, pickle._Unpickler):  # type: ignore[misc,name-defined]
    pass


class InPythonPersistent(Persistent, InPython):
    pass


class Peeked(io.BytesIO):
    """A file that shows all that is left of it: C's unpickler reads it as it reads bytes."""

    def peek(self, length: int) -> bytes:
        return self.getvalue()[self.tell() :]


READERS: dict[str, tuple[bool, Callable[[bytes, Random], Any]]] = {
    "bytes": (False, lambda data, _: Peeked(data)),
    "file": (False, lambda data, _: io.BytesIO(data)),
    "buffered": (False, lambda data, random: io.BufferedReader(io.BytesIO(data), random.randint(1, 60))),  # type: ignore[arg-type]
    "python": (True, lambda data, _: io.BytesIO(data)),
}


def unpickled(data: bytes, reader: str, encoding: str, *, persistent: bool, foreign: bool, random: Random) -> Record:
    """Return what one of Python's unpicklers does."""
    global RECORD
    RECORD = record = Record()
    copyreg._extension_cache.clear()  # type: ignore[attr-defined]
    in_python, opened = READERS[reader]
    kinds = (InPython, InPythonPersistent) if in_python else (InC, InCPersistent)
    unpickler = kinds[persistent](opened(data, random), encoding=encoding)
    unpickler.foreign = foreign
    try:
        unpickler.load()
        record.is_whole = True
    except RecursionError:
        raise
    except Exception:
        pass
    return record


# --- the comparison ---------------------------------------------------------------------------------------------------


class MissedError(AssertionError):
    """The tracer missed something."""


def check(data: bytes, random: Random) -> None:
    """Compare the tracer with the unpicklers; raise MissedError where it misses what one of them does."""
    # C reads files and bytes in the same way where there is no frame.
    readers = tuple(READERS) if b"\x95" in data or random.random() < 0.1 else ("file", "python")
    persistent, foreign, encoding = random.random() < 0.7, random.random() < 0.2, random.choice(ENCODINGS)
    try:
        ways = trace_ways(data, foreign=foreign, persistent=persistent)
    except Exception as error:
        raise MissedError(f"(e) {type(error).__name__}: {error}\n{data!r}") from error
    ambiguous = any(way.is_ambiguous for way in ways)
    for reader in readers:
        record = unpickled(data, reader, encoding, persistent=persistent, foreign=foreign, random=random)
        if (len(ways) == 1 and not ambiguous) or reader == "bytes":
            problem = _missed(record, ways[0], encoding)
        else:
            problem = all(_missed(record, way, encoding) for way in ways) and "(n) in every way"
        if problem and not (ambiguous and reader == "buffered"):
            raise MissedError(f"{problem}\nreader {reader}, {encoding}, persistent {persistent}, {foreign}\n{data!r}")


def _missed(record: Record, trace: Trace, encoding: str) -> str | None:
    if not record.names:
        return "(w) Python reaches STOP" if record.is_whole and not trace.is_whole else None
    # Python finds the class of an extension once, and remembers it.
    names = {
        key: [each for each in trace.names if each.name == f"extension {code}"] for code, key in EXTENSIONS.items()
    }
    imported = [name for name in record.names if name not in names]
    expected = [each for each in trace.names if not each.name.startswith("extension ")]
    if len(imported) > len(expected) or not all(names[name] for name in record.names if name in names):
        return f"(n) {record.names} of {[(each.module, each.name) for each in trace.names]}"
    for name, traced in zip(imported, expected, strict=False):
        if not _is_same(name, traced, encoding):
            return f"(n) {name} is traced as {(traced.module, traced.name)}"
        names.setdefault(name, []).append(traced)
    for key in record.called:
        if not any(traced.called for traced in names[key]) and not _is_flagged(names[key]):
            return f"(c) {key} is called"
    for key in record.changed:
        if not any(traced.changed for traced in names[key]) and not _is_flagged(names[key]):
            return f"(c) {key} is changed"
    loaded = {blob.content(data) for data, blob in trace.loaded}
    if set(record.loaded) - loaded and None not in loaded and not _is_flagged(names[LOADS_PICKLE]):
        return f"(l) {record.loaded} of {loaded}"
    if record.is_whole and not trace.is_whole:
        return "(w) Python reaches STOP"
    return None


def _is_flagged(traced: Any) -> bool:
    """Return whether a use of the global remains that the tracer does not explain: it is reported as code."""
    return any(each.uses != each.loads for each in traced if (each.module, each.name) == LOADS_PICKLE)


def _is_same(name: tuple[str, str], traced: Any, encoding: str) -> bool:
    return all(
        made == UNKNOWN
        or text[:_LONGEST_NAME] == made
        or (encoding == "utf-8" and text.encode("utf-8", "surrogatepass") == made.encode("latin-1", "replace"))
        for text, made in zip(name, (traced.module, traced.name), strict=True)
    )


# --- pickles ----------------------------------------------------------------------------------------------------------

MODULES = [b"os", b"m", b"torch.storage", b"_codecs", b"__builtin__", b"a.b", b"copyreg", b"\xc3\xa9", b"o s", b""]
NAMES = [b"system", b"f", b"_load_from_bytes", b"encode", b"text", b"x.y", b"eval", b"\xed\xa0\x80", b"a b", b""]
NUMBERS = [
    b"%d",
    b"%d",
    b"+%d",
    b" %d",
    b"%d ",
    b"0%d",
    b"%d\r",
    b"%d\0x",
    b"-%d",
    b"\t%d",
    b"0_%d",
    b"0x%d",
    b"%dL",
    b"_%d",
]
TEXTS = [
    b"",
    b"a",
    b"os",
    b"system",
    b"latin1",
    b"utf-8",
    b"id\\n",
    b"\\x41",
    b"\\u0061",
    b"\xff\xfe",
    b"\xc3\xa9",
    b"\\",
]
INNER = [b"cos\nsystem\n.", b"\x80\x02N.", b"I1\n.", b"\x80\x04\x95\x01\0\0\0\0\0\0\0.", b"PK\3\4"]
Part = bytes


def pickled(random: Random) -> bytes:
    """Return a pickle, or something like one."""
    kind = random.random()
    if kind < 0.25:
        parts = list(random.choice(CORPUS))
        for _ in range(random.randint(0, 3)):
            _edit(parts, random)
    else:
        parts = _program(random)
        if kind > 0.9:
            _edit(parts, random)
    if random.random() < 0.35:
        _frame(parts, random)
        if random.random() < 0.3:
            _frame(parts, random)
    data = b"".join(parts)
    if random.random() < 0.25:
        data = _mutated(data, random)
    return data


def _program(random: Random) -> list[Part]:
    """Return opcodes that mostly find what they need on the stack."""
    parts = [] if random.random() < 0.3 else [bytes((0x80, random.randint(0, 5)))]
    depths, memo, choice = [0], 0, random.choice
    for _ in range(random.randint(2, 18)):
        room = depths[-1]
        step = random.random()
        if step < 0.30 or (room == 0 and step < 0.9):
            parts.append(choice(PUSHES)(random))
            depths[-1] += 1
        elif step < 0.36:
            parts.append(b"(")
            depths.append(0)
        elif step < 0.44:
            parts.append(
                choice((b"p" + choice(NUMBERS) % (memo % 12) + b"\n", b"q%c" % memo, b"\x94", b"r%c\0\0\0" % memo))
            )
            memo += 1
        elif step < 0.52 and memo:
            which = random.randrange(memo)
            parts.append(choice((b"g" + choice(NUMBERS) % which + b"\n", b"h%c" % which, b"j%c\0\0\0" % which)))
            depths[-1] += 1
        elif step < 0.62 and len(depths) > 1:
            parts.append(choice((b"t", b"t", b"l", b"d", b"o", b"\x91", b"1", b"e", b"u", b"\x90", _instance(random))))
            depths.pop()
            depths[-1] += parts[-1] not in (b"1", b"e", b"u", b"\x90")
        elif step < 0.80 and room >= 2:
            parts.append(choice((b"R", b"R", b"\x81", b"a", b"b", b"\x86", b"\x93", b"\x92")))
            depths[-1] -= 2 if parts[-1] == b"\x92" else 1
            depths[-1] = max(depths[-1], 0)
        elif step < 0.86:
            called = (
                _named(random) + choice((b"", choice(PUSHES)(random))) + choice((b"\x85", b")", b"(t", b"]", b"U\1a"))
            )
            parts += [called, choice((b"R", b"R", b"\x81"))]
            depths[-1] += 1
        elif step < 0.90:
            inner = choice(INNER)
            spelled = inner.decode("latin-1").encode()
            text = b"X" + struct.pack("<I", len(spelled)) + spelled
            made = choice((b"B", b"B", b"T")) + struct.pack("<I", len(inner)) + inner
            if random.random() < 0.5:
                made = (
                    b"c_codecs\nencode\n" + text + b"X\6\0\0\0" + choice((b"latin1", b"utf-16", b"cp1252")) + b"\x86R"
                )
            parts += [b"ctorch.storage\n_load_from_bytes\n", made, choice((b"", b"", b"\x98")), b"\x85", b"R"]
            depths[-1] += 1
        else:
            parts.append(
                choice((b"0", b"2", b"\x85", b"\x87", b"s", b"Q", b"Pid\n", b"\x98", b"\x97", b"}", b"i", b"c"))
            )
    if random.random() < 0.85:
        parts.append(b".")
    return parts


def _named(random: Random) -> Part:
    module, name = random.choice(MODULES), random.choice(NAMES)
    if random.random() < 0.5:
        return b"c" + module + b"\n" + name + b"\n"
    return _text(random, module) + _text(random, name) + b"\x93"


def _instance(random: Random) -> Part:
    return b"i" + random.choice(MODULES) + b"\n" + random.choice(NAMES) + b"\n"


def _text(random: Random, text: bytes) -> Part:
    kind = random.randrange(7)
    if kind == 0:
        return b"S" + random.choice((b"'", b'"')) + text + random.choice((b"'", b'"', b"' ")) + b"\n"
    if kind == 1:
        return b"V" + text + b"\n"
    if kind == 2:
        return b"X" + struct.pack("<I", len(text)) + text
    if kind == 3:
        return b"U%c" % len(text) + text
    if kind == 4:
        return b"T" + struct.pack("<I", len(text)) + text
    if kind == 5:
        return b"\x8d" + struct.pack("<Q", len(text)) + text
    return b"\x8c%c" % len(text) + text


def _raw(random: Random) -> Part:
    raw = random.choice(INNER + TEXTS)
    return random.choice(
        (
            b"C%c" % len(raw) + raw,
            b"B" + struct.pack("<I", len(raw)) + raw,
            b"\x8e" + struct.pack("<Q", len(raw)) + raw,
            b"\x96" + struct.pack("<Q", len(raw)) + raw,
        )
    )


def _number(random: Random) -> Part:
    line = random.choice(NUMBERS) % random.choice((0, 1, 10, 12345678901234567890))
    return random.choice((b"I", b"L", b"F")) + line + random.choice((b"\n", b"\n", b"e5\n", b"L\n"))


def _extension(random: Random) -> Part:
    code = random.choice([*EXTENSIONS, 0, 2])
    return (
        struct.pack("<BB", 0x82, code)
        if code < 256
        else struct.pack("<BI", 0x84, code)
        if code > 65535
        else struct.pack("<BH", 0x83, code)
    )


PUSHES: tuple[Callable[[Random], Part], ...] = (
    _named,
    _named,
    _named,
    lambda random: _text(random, random.choice(TEXTS)),
    lambda random: _text(random, random.choice(MODULES)),
    lambda random: _text(random, random.choice(NAMES)),
    _raw,
    _number,
    _extension,
    lambda random: random.choice(
        (b"N", b"\x88", b"K\1", b"M\1\2", b"J\1\2\3\4", b"G" + bytes(8), b"\x8a\1\1", b"I01\n")
    ),
    lambda random: random.choice((b")", b"]", b"}", b"\x8f", b"(t", b"(l", b"(d")),
)


class _Class:
    def __reduce_ex__(self, protocol: int) -> Any:
        return collections.OrderedDict, ([("a", 1)],), {"b": 2}, iter([1, 2]), iter([("c", 3)])


def _values() -> list[Any]:
    shared = ["shared", {"a": (1, 2.5)}]
    return [
        {"a": [1, -2, 3 << 70], "b": ("x" * 300, b"raw" * 90, None, True), "c": shared, "d": shared},
        [bytearray(b"abc"), frozenset({1}), {1, 2}, complex(1, 2), range(3), "\u00e9\ud800"],
        collections.OrderedDict(a=collections.Counter("abca"), b=collections.deque([1])),
        [_Class(), collections.defaultdict(list, a=[1]), slice],
        [str(n) * 40 for n in range(40)],
        [pickle.dumps([1, b"a"], protocol) for protocol in range(6)],
    ]


def _corpus() -> list[list[Part]]:
    found = []
    for value in _values():
        for protocol in range(6):
            for dumps in (pickle.dumps, pickle._dumps):  # type: ignore[attr-defined]
                try:
                    data = dumps(value, protocol)
                except (pickle.PicklingError, TypeError):
                    continue
                places = [place for _, _, place in pickletools.genops(data)]
                found.append([data[a:b] for a, b in zip(places, [*places[1:], len(data)], strict=True)])
    return found


CORPUS = _corpus()


def _edit(parts: list[Part], random: Random) -> None:
    """Change an opcode: another one before it, none, itself again, one of another pickle, or another number."""
    at = random.randrange(len(parts)) if parts else 0
    kind = random.randrange(6)
    if kind == 0:
        parts.insert(at, random.choice(PUSHES)(random))
    elif kind == 1 and parts:
        del parts[at]
    elif kind == 2 and parts:
        parts.insert(at, parts[at])
    elif kind == 3:
        parts.insert(at, random.choice(random.choice(CORPUS)))
    elif kind == 4 and parts and parts[at][:1] in (b"g", b"p"):
        digits = parts[at][1:-1]
        spelled = random.choice((b"+", b" ", b"0_", b"00", b"\t")) + digits
        parts[at] = parts[at][:1] + spelled + random.choice((b"", b" ", b"\r", b"\0 1")) + b"\n"
    else:
        parts.insert(at, random.choice((b"R", b"0", b"2", b"(", b"t", b"\x94", b"b", b"\x98")))


def _frame(parts: list[Part], random: Random) -> None:
    """Put a frame around opcodes, which often ends elsewhere than they do."""
    begin = random.randint(0, len(parts))
    end = random.randint(begin, len(parts))
    length = sum(map(len, parts[begin:end])) + random.choice((0, 0, 0, 1, 2, 3, 5, 9, 20, -1, -2, -5))
    parts.insert(begin, b"\x95" + struct.pack("<Q", max(length, 0)))


def _mutated(data: bytes, random: Random) -> bytes:
    at = random.randint(0, len(data))
    kind = random.randrange(5)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes((random.randrange(256),)) + data[at + 1 :]
    if kind == 2:
        return data[:at] + bytes((random.randrange(256),)) + data[at:]
    if kind == 3:
        return data[:at] + data[at + random.randint(1, 4) :]
    return data + data[at:]


# --- holes, planted to see that they are found ------------------------------------------------------------------------


def _strict_numbers(data: bytes, position: int) -> tuple[int, int]:
    key, after = _written_key(data, position)
    if not data[position : after - 1].isdigit():
        raise tracer._StopError
    return key, after


def _tuples_only(machine: Any, function: Any, args: Any) -> Any:
    if not isinstance(args, tuple):
        raise tracer._StopError
    return _called(machine, function, args)


_written_key, _called = tracer._written_key, tracer._Machine._called
HOLES: dict[str, tuple[Any, str, Any]] = {
    "numbers of the memo are digits": (tracer, "_written_key", _strict_numbers),
    "arguments are tuples": (tracer._Machine, "_called", _tuples_only),
    "lines have an end": (tracer, "_last_line", tracer._line),
    "frames do not matter": (tracer._Machine, "find_crossing", lambda machine, at: None),
    "nothing is encoded": (tracer, "_ENCODINGS", {"latin1": "utf-8"}),
    "a global is never changed": (tracer, "_change", lambda stack: stack[-1]),
    "text is ASCII": (tracer, "_decoded", lambda raw, spelling: raw.decode("ascii")),
}


def plant(seed: int, most: int) -> None:
    """Break the tracer in each of these ways; print after how many pickles that is found."""
    for name, (place, attribute, broken) in HOLES.items():
        whole = getattr(place, attribute)
        setattr(place, attribute, broken)
        try:
            for case in range(most):
                random = Random(seed << 40 | case)
                check(pickled(random), random)
            raise SystemExit(f"not found in {most:,} pickles: {name}")
        except MissedError:
            print(f"{name}: found after {case + 1:,} pickles")
        finally:
            setattr(place, attribute, whole)


# --- the command ------------------------------------------------------------------------------------------------------


def prepare() -> None:
    """Register the extensions, and bound the memory: a memo has as many places as its largest number."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for code, key in EXTENSIONS.items():
        copyreg.add_extension(*key, code)


def run(cases: int, seed: int, minutes: float, *, first: int = 0) -> int:
    """Run cases until the time is up; return how many."""
    started = shown = time.monotonic()
    for case in range(first, first + cases):
        random = Random(seed << 40 | case)
        check(pickled(random), random)
        now = time.monotonic() if case % 256 == 255 else shown
        if now > started + 60 * minutes:
            return case + 1 - first
        if now > shown + 60:
            print(f"{case + 1 - first:,} pickles, {(case + 1 - first) / (now - started):,.0f} a second", flush=True)
            shown = now
    return cases


def main() -> None:
    arguments = argparse.ArgumentParser(description="Compare the tracer of scan with Python's own unpicklers.")
    arguments.add_argument("--cases", type=int, default=1_000_000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--minutes", type=float, default=10)
    arguments.add_argument("--first", type=int, default=0, help="the number of the first case")
    arguments.add_argument(
        "--holes", action="store_true", help="plant holes in the tracer, each of which must be found"
    )
    given = arguments.parse_args()
    warnings.simplefilter("ignore")
    prepare()
    if given.holes:
        plant(given.seed, given.cases)
        return
    done = run(given.cases, given.seed, given.minutes, first=given.first)
    print(f"{done:,} pickles of seed {given.seed}: the tracer missed nothing")


if __name__ == "__main__":
    main()
