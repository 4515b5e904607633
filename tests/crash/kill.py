"""Kill saves and look at what they leave: the destination must be the old file or the new one, whole.

    python tests/crash/kill.py --kills 2000 --seed 1        SIGKILL at random instants (S1, S14)
    python tests/crash/kill.py --minutes 30 --seed 7        as many as fit
    python tests/crash/kill.py --saver shards               sets of shards with an index (S13)
    python tests/crash/kill.py --saver dcp                  distributed checkpoints, folders with their metadata
    python tests/crash/kill.py --saver convert              conversions: files that many workers write, and prove
    python tests/crash/kill.py --syscalls                   SIGKILL at every system call, and faults in them (S2, S3)

A child saves generation after generation to one destination and reports each one that returned; the parent kills it at
some instant of a save. Then the destination must hold a complete generation, and none older than the last that was
reported. Scratch files of killed saves are left where they are, and now and then a child removes them before it saves,
so that this is killed as well. The last line printed gives the counts; the exit status is 1 when anything was damaged.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import numpy as np

import burnstore
from burnstore.io.atomic import atomic_file, stale_scratch_files

SCRATCH = re.compile(r"\..+\.[0-9]+-[0-9]+\.burnstore-tmp", re.DOTALL)
MIB = 1 << 20
DESTINATIONS = ["new", "overwrite", "link"]


# --- savers: how a generation is saved, and how one is recognised -----------------------------------------------------


@dataclass
class Saver:
    """`save(path, generation, size, overwrite)`; `read(path)` gives the generation and size of a complete file.

    What counts is the file ``path + commit``; ``others`` are the names of files that may lie beside it.
    """

    suffix: str
    save: Callable[[str, int, int, bool], None]
    read: Callable[[str], tuple[int, int]]
    commit: str = ""
    others: re.Pattern[str] = re.compile("(?!)")


class DamagedError(Exception):
    pass


def save_bytes(path: str, generation: int, size: int, overwrite: bool) -> None:
    fill = np.full(size, generation % 256, dtype=np.uint8)
    with atomic_file(path, overwrite=overwrite, size=16 + size if generation % 2 else None) as scratch:
        scratch.write(struct.pack("<QQ", generation, size))
        step = max(1, size // 7)
        for start in range(0, size, step):
            scratch.write(fill[start : start + step])


def read_bytes(path: str) -> tuple[int, int]:
    data = np.fromfile(path, dtype=np.uint8)
    if len(data) < 16:
        raise DamagedError(f"only {len(data)} bytes")
    generation, size = struct.unpack("<QQ", data[:16].tobytes())
    if len(data) != 16 + size or (data[16:] != generation % 256).any():
        raise DamagedError(f"generation {generation} is not whole: {len(data)} bytes of {16 + size}")
    return generation, size


def save_tensors(path: str, generation: int, size: int, overwrite: bool) -> None:
    shares = [size // 2, size // 4, size // 8, 100, 0]
    tensors = {f"layer.{n}.weight": np.full(share, generation % 256, dtype=np.uint8) for n, share in enumerate(shares)}
    tensors["generation"] = np.array([generation, size], dtype=np.int64)
    burnstore.save(tensors, path, overwrite=overwrite)  # type: ignore[attr-defined]


def read_tensors(path: str) -> tuple[int, int]:
    try:
        with burnstore.open(path) as file:  # type: ignore[attr-defined]
            tensors = dict(file.numpy())
    except (burnstore.BurnstoreError, KeyError) as error:  # type: ignore[attr-defined]
        raise DamagedError(str(error)) from error
    generation, size = (int(value) for value in tensors.pop("generation"))
    lengths = [tensors[f"layer.{n}.weight"].size for n in range(5)]
    if lengths != [size // 2, size // 4, size // 8, 100, 0]:
        raise DamagedError(f"generation {generation} has tensors of {lengths} elements")
    if any((tensor != generation % 256).any() for tensor in tensors.values()):
        raise DamagedError(f"generation {generation} is mixed with another")
    return generation, size


def save_shards(path: str, generation: int, size: int, overwrite: bool) -> None:
    """The tensors of `save_tensors` in shards, between two and nine of them."""
    shares = [size // 2, size // 4, size // 8, 100, 0]
    tensors = {f"layer.{n}.weight": np.full(share, generation % 256, dtype=np.uint8) for n, share in enumerate(shares)}
    tensors["generation"] = np.array([generation, size], dtype=np.int64)
    burnstore.save(tensors, path, overwrite=overwrite, max_shard_size=max(200, size // (2 + generation % 4)))


def save_checkpoint(path: str, generation: int, size: int, overwrite: bool) -> None:
    """The tensors of `save_tensors` as a distributed checkpoint, converted from a file outside of the folder."""
    source = Path(path).parent.parent / "source.safetensors"
    save_tensors(str(source), generation, size, True)
    burnstore.convert(source, path, format="dcp", layout="torch", overwrite=overwrite)


def save_converted(path: str, generation: int, size: int, overwrite: bool) -> None:
    """The tensors of `save_tensors`, converted from a file outside of the folder that is looked at."""
    source = Path(path).parent.parent / "source.safetensors"
    save_tensors(str(source), generation, size, True)
    burnstore.convert(source, path, layout="burn", overwrite=overwrite)


SHARD = re.compile(r"model(\.[0-9a-f]{8})?-[0-9]{5}-of-[0-9]{5}\.safetensors")
SAVERS = {
    "atomic": Saver("bin", save_bytes, read_bytes),
    "model": Saver("bpk", save_tensors, read_tensors),
    "safetensors": Saver("safetensors", save_tensors, read_tensors),
    "convert": Saver("bpk", save_converted, read_tensors),
    "shards": Saver("safetensors", save_shards, read_tensors, ".index.json", SHARD),
    "dcp": Saver("dcp", save_checkpoint, read_tensors, "/.metadata", re.compile(r"__0_0(\.[0-9a-f]{8})?\.distcp")),
}


def default_saver() -> str:
    return "model" if hasattr(burnstore, "save") and hasattr(burnstore, "open") else "atomic"


# --- one destination --------------------------------------------------------------------------------------------------


@dataclass
class Place:
    """A folder with one destination in it, and what it is known to hold: a generation, or None for nothing."""

    folder: Path
    kind: str
    saver: Saver
    generation: int | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.path = self.folder / f"model.{self.saver.suffix}"
        self.real = Path(f"{self.path}{self.saver.commit}")
        if self.kind == "link":
            (self.folder / "far").mkdir()
            self.real = self.folder / "far" / f"real.{self.saver.suffix}"
            self.path.symlink_to(os.path.join("far", self.real.name))

    def renew(self, generation: int) -> None:
        """Nothing at a "new" destination, a file at the others."""
        if self.kind == "new":
            self.clear()
        elif self.generation is None:
            self.saver.save(str(self.path), generation, 200_000, True)
            self.generation = generation

    def clear(self) -> None:
        """Remove what counts, and what belongs to it."""
        self.real.unlink(missing_ok=True)
        self.generation = None
        for name in self.beside():
            if self.saver.others.fullmatch(name):
                (self.real.parent / name).unlink()

    def beside(self) -> list[str]:
        """The names in the folder of what counts; there are none before the first checkpoint made it."""
        return os.listdir(self.real.parent) if self.real.parent.exists() else []

    def sweep(self) -> None:
        if not self.real.parent.exists():
            return
        for stale in stale_scratch_files(self.real.parent, older_than=0):
            Path(stale).unlink(missing_ok=True)

    def sweep_others(self) -> None:
        """Remove the shards that killed saves left; nobody saves meanwhile."""
        named = self.real.read_bytes() if self.saver.commit and self.real.exists() else b""
        for name in self.beside():
            if self.saver.others.fullmatch(name) and name.encode() not in named:
                (self.real.parent / name).unlink()

    def leftovers(self) -> int:
        """The number of scratch files; raises `DamagedError` when anything else is there."""
        found = 0
        for folder in {self.folder, self.real.parent}:
            for name in os.listdir(folder) if folder.exists() else ():
                if SCRATCH.fullmatch(name):
                    found += 1
                elif self.saver.others.fullmatch(name):
                    continue
                elif name not in (self.path.name, self.real.name, "far"):
                    raise DamagedError(f"{name} is there and nobody made it")
        return found

    def look(self, returned: int | None, started: int, count: int) -> str:
        """Say what the destination holds after a kill, or raise `DamagedError`."""
        if self.kind == "link" and not self.path.is_symlink():
            raise DamagedError("the link is gone")
        if not os.path.lexists(self.real):
            if self.generation is not None or returned is not None:
                raise DamagedError("the file is gone")
            return "absent"
        generation, _ = self.saver.read(str(self.path))
        lowest = started if returned is None else returned
        if not lowest <= generation < started + count and (returned is not None or generation != self.generation):
            raise DamagedError(f"generation {generation}, not one of {lowest} to {started + count - 1}")
        before, self.generation = self.generation, generation
        return "old" if generation == before else "new"


def start(place: Place, first: int, sizes: list[int], sweep: bool) -> tuple[int, int]:
    """Fork a child that saves these sizes, and wait until it lives; its pid and the pipe by which it reports."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        os.read(reader, 8)
        return pid, reader
    try:
        os.close(reader)
        os.write(writer, struct.pack("<q", -1))
        if sweep:
            place.sweep()
        for generation, size in enumerate(sizes, first):
            place.saver.save(str(place.path), generation, size, place.kind != "new" or generation > first)
            os.write(writer, struct.pack("<q", generation))
        time.sleep(60)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(3)


@dataclass
class Report:
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def line(self, seconds: float, seed: int, saver: str) -> str:
        c = self.counts
        return (
            f"kills={c['kills']} old={c['old']} new={c['new']} absent={c['absent']} returned={c['returned']} "
            f"leftovers={c['leftovers']} damaged={len(self.problems)} seconds={seconds:.1f} "
            f"per_second={c['kills'] / max(seconds, 1e-9):.1f} saver={saver} seed={seed}"
        )


def random_kills(
    saver: Saver, folder: Path, *, kills: int, seed: int, seconds: float = float("inf"), largest: float = 64
) -> Report:
    """Kill `kills` children, each at a random instant within 1.3 times the time that its save takes."""
    draw = random.Random(seed)
    report = Report()
    kinds = [kind for kind in DESTINATIONS if not (saver.commit and kind == "link")]  # a set lies in one folder
    places = [Place(folder / kind, kind, saver) for kind in kinds]
    seconds_per_byte, base = time_saves(saver, folder)
    end = time.monotonic() + seconds
    next_generation = 1
    while report.counts["kills"] < kills and time.monotonic() < end:
        place = draw.choice(places)
        place.renew(next_generation)
        next_generation += 1
        # Mostly small, so that there are many; the rest up to the largest.
        high = draw.choices([0.5, 4, 16, 64], weights=[80, 13, 5, 2])[0]
        sizes = [int(draw.uniform(0.1, max(0.11, min(high, largest))) * MIB) for _ in range(3)]
        first, next_generation = next_generation, next_generation + len(sizes)
        sweep = draw.random() < 0.3
        instant = draw.uniform(0, 1.3) * (base + sizes[0] * seconds_per_byte)
        pid, reader = start(place, first, sizes, sweep)
        time.sleep(instant)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        reported = b""
        while piece := os.read(reader, 4096):
            reported += piece
        os.close(reader)
        returned = max((value for (value,) in struct.iter_unpack("<q", reported)), default=None)
        report.counts["kills"] += 1
        report.counts["returned"] += returned is not None
        try:
            if not os.WIFSIGNALED(status):
                raise DamagedError(f"the child ended by itself with {os.waitstatus_to_exitcode(status)}")
            report.counts[place.look(returned, first, len(sizes))] += 1
            left = place.leftovers()
            report.counts["leftovers"] += left
            if left > 20:
                place.sweep()
            place.sweep_others()
        except DamagedError as problem:
            report.problems.append(f"kill {report.counts['kills']}, {place.kind}: {problem}")
            print(report.problems[-1], file=sys.stderr)
            if len(report.problems) >= 10:
                break
            place.clear()
    return report


def time_saves(saver: Saver, folder: Path) -> tuple[float, float]:
    """The seconds that a save in a fresh child costs per byte, and however small it is."""
    place = Place(folder / "trial", "overwrite", saver)
    place.renew(0)  # also imports here what no child shall have to import
    times = {}
    for size in (MIB // 4, 8 * MIB):
        samples = []
        for turn in range(7):
            pid, reader = start(place, turn, [size], sweep=False)
            begin = time.perf_counter()
            os.read(reader, 8)
            samples.append(time.perf_counter() - begin)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reader)
        times[size] = sorted(samples)[3]
    slope = max(0.0, (times[8 * MIB] - times[MIB // 4]) / (8 * MIB))
    return slope, max(0.0, times[MIB // 4] - slope * (MIB // 4))


# --- at every system call (S2) ----------------------------------------------------------------------------------------

CALLS = (
    "openat,write,writev,pwrite64,fsync,fdatasync,close,flock,fallocate,ftruncate,fchmod,fchown,fsetxattr,"
    "rename,renameat,renameat2,link,linkat,unlink,unlinkat"
)
FAULTS = {
    "fsync": ["EIO", "ENOSPC"],
    "writev": ["EIO", "ENOSPC", "EDQUOT"],
    "write": ["EIO", "ENOSPC"],
    "fallocate": ["ENOSPC", "EOPNOTSUPP"],
    "fchmod": ["EPERM"],
    "renameat": ["EIO", "EROFS"],
    "linkat": ["EPERM", "ENOSPC"],
    "unlinkat": ["EIO"],
}
TRACED = 3  # the generation that is saved under strace; odd, so that its size is announced
BEGIN, END = "burnstore-save-begins", "burnstore-save-ends"


def one_save(saver: Saver, path: str, generation: int, size: int, overwrite: bool) -> int:
    """What runs under strace: one save between two marks; 0 when it returned, 5 when it failed and said so."""
    os.write(2, BEGIN.encode())
    code = 0
    try:
        saver.save(path, generation, size, overwrite)
    except OSError as error:
        print(getattr(error, "stage", "?"), error, file=sys.stderr)
        code = 6 if getattr(error, "stage", "") == "published" else 5
    os.write(2, END.encode())
    return code


def traced(name: str, place: Place, generation: int, *options: str) -> subprocess.CompletedProcess[str]:
    overwrite = place.kind != "new"
    command = [
        *("strace", "-f", "-qq", *options),
        *(
            sys.executable,
            "-B",
            __file__,
            "--saver",
            name,
            "--one-save",
            str(place.path),
            str(generation),
            str(int(overwrite)),
        ),
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def call_indexes(name: str, place: Place, only: list[str]) -> dict[str, tuple[int, int]]:
    """For each system call, the first and last index that one save makes of it, counted from the program's start."""
    log = place.folder.parent / "trace.log"
    traced(name, place, TRACED, "-o", str(log), "-e", "trace=" + ",".join(only))
    seen: Counter[str] = Counter()
    span: dict[str, tuple[int, int]] = {}
    inside = False
    for line in log.read_text(errors="replace").splitlines():
        found = re.match(r"(?:[0-9]+ +)?([a-z0-9_]+)\(", line)
        if found is None:
            continue
        call = found[1]
        seen[call] += 1
        if END in line:
            inside = False
        if inside:
            span[call] = (span.get(call, (seen[call], 0))[0], seen[call])
        if BEGIN in line:
            inside = True
    log.unlink()
    return span


def syscall_kills(name: str, folder: Path, *, only: list[str], destinations: list[str]) -> tuple[Report, str]:
    saver = SAVERS[name]
    report = Report()
    watched = sorted({*only, "write"})
    summary: Counter[str] = Counter()
    for kind in destinations:
        place = Place(folder / kind, kind, saver)

        def reset(place: Place = place) -> None:
            place.clear()
            if place.kind != "new":
                saver.save(str(place.path), 1, 300_000, True)
                os.chmod(place.real, 0o640)
                if os.geteuid() == 0:
                    os.chown(place.real, 1234, 1234)
                with suppress(OSError, AttributeError):
                    os.setxattr(place.real, "user.note", b"kept")
                place.generation = 1

        reset()
        call_indexes(name, place, watched)  # once for the caches
        reset()
        span = call_indexes(name, place, watched)
        for call, (first, last) in sorted(span.items()):
            if call not in only:
                continue
            faults = ["signal=KILL", *(f"error={fault}" for fault in FAULTS.get(call, []))]
            for index in range(first, last + 1):
                for fault in faults:
                    reset()
                    done = traced(name, place, TRACED, "-o", "/dev/null", "-e", f"inject={call}:{fault}:when={index}")
                    summary[call] += 1
                    kill = fault == "signal=KILL"
                    report.counts["kills" if kill else "faults"] += 1
                    try:
                        died = done.returncode not in (0, 5, 6)
                        if died != kill:
                            raise DamagedError(f"status {done.returncode}: {done.stderr[-300:]}")
                        found = place.look(TRACED if done.returncode in (0, 6) else None, TRACED, 1)
                        if done.returncode == 5 and found == "new":
                            raise DamagedError("it is saved, and the error says that it is not")
                        report.counts[found] += 1
                        left = place.leftovers()
                        if left > (kill or call == "unlinkat"):
                            raise DamagedError(f"{left} scratch files are left")
                        report.counts["leftovers"] += left
                        place.sweep()
                        place.sweep_others()
                    except DamagedError as problem:
                        report.problems.append(f"{kind}, {call} {index}, {fault}: {problem}")
                        print(report.problems[-1], file=sys.stderr)
    return report, " ".join(f"{call}:{count}" for call, count in sorted(summary.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--largest", type=float, default=64, help="MiB")
    parser.add_argument("--saver", choices=sorted(SAVERS), default=default_saver())
    parser.add_argument("--folder", default=None, help="work below this folder (its file system is what is tested)")
    parser.add_argument("--syscalls", action="store_true")
    parser.add_argument("--only", default=CALLS, help="with --syscalls: these calls")
    parser.add_argument("--destinations", default=",".join(DESTINATIONS), help="with --syscalls: these destinations")
    parser.add_argument("--one-save", nargs=3, metavar=("PATH", "GENERATION", "OVERWRITE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    saver = SAVERS[given.saver]
    if given.one_save:
        path, generation, overwrite = given.one_save
        return one_save(saver, path, int(generation), 500_000, overwrite == "1")
    if given.syscalls and shutil.which("strace") is None:
        print("skipped: strace is not installed")
        return 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        if given.syscalls:
            report, calls = syscall_kills(
                given.saver, Path(name), only=given.only.split(","), destinations=given.destinations.split(",")
            )
            print(f"faults={report.counts['faults']} {calls}")
        else:
            kills = given.kills if given.kills is not None else (2000 if given.minutes is None else sys.maxsize)
            seconds = float("inf") if given.minutes is None else 60 * given.minutes
            report = random_kills(
                saver, Path(name), kills=kills, seed=given.seed, seconds=seconds, largest=given.largest
            )
    print(report.line(time.monotonic() - begin, given.seed, given.saver))
    enough = report.counts["kills"] > 0
    return 1 if report.problems or not enough else 0


if __name__ == "__main__":
    sys.exit(main())
