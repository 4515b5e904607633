# ruff: noqa: RUF001  # the table has multiplication signs
"""The command ``python -m benchmarks.gpu``: files to a GPU and back, next to safetensors, torch and the bus itself.

It needs a GPU, torch and safetensors, and about five times the model's size on the disk; ``--device cpu`` with small
sizes runs the same code on the CPU, as a smoke test. The result is a table in Markdown. Contestants take turns; what is
shown is the median of the rounds, and ratios are of medians. Every tensor that was loaded is compared bit by bit.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file

import burnstore as bs
from burnstore.io.gpu.buffers import release_pinned_memory, transfer_settings
from burnstore.tensor import torch as torch_tensor

from .gpu_tools import (
    bus,
    check,
    drop_from_cache,
    fill_cache,
    first_load,
    mb,
    processor_time,
    read_alone,
    reading,
    status,
    write_raw,
)

# So many ranks share the large model, and this is the one whose part is loaded.
_WORLD, _RANK = 8, 3


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table; 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="files to a GPU and back")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gib", type=float, default=8.0, help="the size of the large model (default 8)")
    parser.add_argument("--tensors", type=int, default=256, help="of how many matrices it is made (default 256)")
    parser.add_argument("--small", type=int, default=20_000, help="how many small tensors there are (default 20000)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", help="parts whose name contains this; repeatable")
    parser.add_argument("--dir", type=Path, help="where the files go (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--first", nargs=2, metavar=("WHO", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if torch.device(options.device).type == "cpu":
        torch_tensor.TRANSFER_DEVICES.add("cpu")
    if options.first:
        print(first_load(options.first[0], options.first[1], options.device))
        return 0
    with tempfile.TemporaryDirectory(prefix="burnstore-gpu-", dir=options.dir) as folder:
        bench = Bench(options, Path(folder))
        with suppress(KeyboardInterrupt):  # what was measured until then is shown
            bench.run()
    print(bench.report())
    if options.json:
        bench.figures["stolen"] = bench.stolen
        options.json.write_text(json.dumps(bench.figures, indent=1))
    return 1 if bench.missed else 0


@dataclass
class Row:
    """A line of the table."""

    case: str
    bar: str
    measured: str
    met: bool | None


@dataclass
class Bench:
    """One run: what is measured, in which order, and what came of it."""

    options: argparse.Namespace
    folder: Path
    rows: list[Row] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device = self.options.device
        side = int((self.options.gib * 2**30 / self.options.tensors / 2) ** 0.5) // 64 * 64
        self.side = max(side, 64)
        self.nbytes = self.side * self.side * 2 * self.options.tensors
        self.limit = self.limit_back = self.reading = 0.0
        self.begun_with = processor_time()

    @property
    def stolen(self) -> float:
        """The share of the processors' time that the host kept for others until now."""
        (kept, every), (kept_before, before) = processor_time(), self.begun_with
        return (kept - kept_before) / max(every - before, 1)

    @property
    def missed(self) -> list[str]:
        """The cases whose bar was not reached."""
        return [row.case for row in self.rows if row.met is False]

    def run(self) -> None:
        """All parts, or those asked for."""
        self.limit, self.limit_back = bus(self.device)
        self.figures["limit"] = self.limit, self.limit_back
        self._say(f"pinned limit {self.limit / 1e9:.1f} GB/s there, {self.limit_back / 1e9:.1f} GB/s back")
        self.model = self._linears(fill=True)
        self.tensors = dict(self.model.state_dict())
        self.safetensors = self.folder / "model.safetensors"
        self.bpk = self.folder / "model.bpk"
        self.pt = self.folder / "model.pt"
        bs.save(self.model, self.safetensors)  # durable: what is still being written to the disk would be in the way
        self.reading = reading(self.safetensors)
        self.figures["reading"] = self.reading
        self._say(f"{transfer_settings().readers} threads that only read: {self.reading / 1e9:.1f} GB/s")
        self.parts: dict[str, Callable[[], None]] = {
            "hot": self._hot,
            "model": self._into_model,
            "burn": self._burn,
            "small": self._small,
            "ranks": self._ranks,
            "first": self._first,
            "cold": self._cold,
            "save": self._save,
            "save, small": self._save_small,
        }
        for name, part in self.parts.items():
            if not self.options.only or any(text in name for text in self.options.only):
                part()
                self._clear()

    def report(self) -> str:
        """The table, and how it was measured."""
        cuda = torch.device(self.device).type == "cuda"
        where = torch.cuda.get_device_name() if cuda else "the CPU, which says nothing of a GPU"
        used = transfer_settings()
        lines = [
            f"{where}, {os.cpu_count()} processors, Python {platform.python_version()}, torch {torch.__version__}; "
            f"{self.nbytes / 2**30:.2f} GiB of bf16 in {self.options.tensors} matrices, median of "
            f"{self.options.rounds} rounds; ring of {used.buffers} × {used.buffer_bytes >> 20} MiB, "
            f"{used.readers} readers. Pinned copies in the same run: {self.limit / 1e9:.1f} GB/s to the device, "
            f"{self.limit_back / 1e9:.1f} GB/s back; as many threads that only read the file, from the page cache: "
            f"{self.reading / 1e9:.1f} GB/s. Of the processors' time the host kept {self.stolen:.1%} for others.",
            "",
            "| case | bar | measured |",
            "|---|---|---|",
        ]
        for row in self.rows:
            shown = row.measured if row.met is not False else f"**{row.measured}**"
            lines.append(f"| {row.case} | {row.bar} | {shown} |")
        return "\n".join(lines)

    # The parts

    def _hot(self) -> None:
        torch.save(self.tensors, self.pt)
        os.sync()
        sizes = f"{self.nbytes / 2**30:.2g} GiB"
        with self._memory() as memory, bs.open(self.safetensors) as file:
            found = file.torch(device=self.device)
        del found
        times = self._turns(
            {
                "burnstore": lambda: self._loaded_by_burnstore(self.safetensors, self.tensors),
                "safetensors": lambda: self._loaded_by_safetensors(self.safetensors, self.tensors),
                "torch": lambda: self._loaded_by_torch(self.pt, self.tensors),
                "burnstore, .pt": lambda: self._loaded_by_burnstore(self.pt, self.tensors),
            }
        )
        speed = self.nbytes / times["burnstore"]
        best = self._rate(min(self.figures["seconds"]["burnstore"][-1]))
        self._row(
            f"{sizes} from the page cache onto the GPU: share of the pinned limit",
            "≥ 90 %",
            f"{speed / self.limit:.0%} ({speed / 1e9:.1f} GB/s, best round {best}; a `.pt` "
            f"{self._rate(times['burnstore, .pt'])})",
            speed >= 0.9 * self.limit,
        )
        ratio = times["safetensors"] / times["burnstore"]
        others = f"{self._rate(times['safetensors'])}; torch.load with mmap {self._rate(times['torch'])}"
        self._row("the same, against `safetensors.torch.load_file`", "≥ 8 ×", f"{ratio:.1f} × ({others})", ratio >= 8)
        extra = memory["device"] - self.nbytes
        self._row("peak GPU memory of that load beyond the tensors", "≤ 64 MB", mb(extra), extra <= 64e6)
        ring = transfer_settings().buffers * transfer_settings().buffer_bytes
        self._row(
            "peak host memory of that load",
            f"≤ the ring ({ring / 1e6:.0f} MB) + 64 MB",
            mb(memory["host"]),
            memory["host"] <= ring + 64e6,
        )
        self.pt.unlink()

    def _into_model(self) -> None:
        target = self._linears(fill=False)
        with self._memory() as memory:
            bs.load(target, self.safetensors)
        times = self._turns(
            {
                "burnstore": lambda: self._into(target, lambda: bs.load(target, self.safetensors)),
                "safetensors": lambda: self._into(
                    target, lambda: load_model(target, self.safetensors, device=self.device)
                ),
            }
        )
        speed = self.nbytes / times["burnstore"]
        self._row(
            "`bs.load` into a model that is on the GPU: share of the pinned limit; against `load_model`",
            "≥ 90 %",
            f"{speed / self.limit:.0%} ({speed / 1e9:.1f} GB/s); {times['safetensors'] / times['burnstore']:.1f} ×",
            speed >= 0.9 * self.limit,
        )
        self._extra_memory(memory)

    def _burn(self) -> None:
        bs.save(self.model, self.bpk)
        target = self._linears(fill=False)
        with self._memory() as memory:
            bs.load(target, self.bpk)
        times = self._turns({"burnstore": lambda: self._into(target, lambda: bs.load(target, self.bpk))})
        speed = self.nbytes / times["burnstore"]
        self._row(
            "the same between Burn's layout and torch's, every matrix transposed on the GPU",
            "≥ 75 %",
            f"{speed / self.limit:.0%} ({speed / 1e9:.1f} GB/s)",
            speed >= 0.75 * self.limit,
        )
        self._extra_memory(memory)
        self.bpk.unlink()

    def _extra_memory(self, memory: dict[str, int]) -> None:
        extra = memory["device"] - memory["device before"]
        self._row("peak GPU memory of that load beyond the model", "≤ 64 MB", mb(extra), extra <= 64e6)

    def _small_tensors(self) -> dict[str, Any]:
        shapes = ((64,), (16, 16), (8, 64), (1,), (3, 3, 4, 4))
        return {
            f"layers.{i // 10}.part{i % 10}.weight": torch.randn(shapes[i % 5], device=self.device)
            for i in range(self.options.small)
        }

    def _small(self) -> None:
        path, tensors = self.folder / "small.safetensors", self._small_tensors()
        bs.save(tensors, path)
        times = self._turns(
            {
                "burnstore": lambda: self._loaded_by_burnstore(path, tensors),
                "safetensors": lambda: self._loaded_by_safetensors(path, tensors),
            }
        )
        ratio = times["safetensors"] / times["burnstore"]
        self._row(
            f"{self.options.small:,} small tensors onto the GPU, against `load_file`",
            "≥ 10 ×",
            f"{ratio:.1f} × ({times['burnstore'] * 1e3:.0f} ms, {times['safetensors'] * 1e3:.0f} ms)",
            ratio >= 10,
        )

    def _ranks(self) -> None:
        for how, axis in (("rows", 0), ("columns", 1)):
            shape = [self.side, self.side]
            shape[axis] //= _WORLD
            target = self._linears(fill=False, shape=(shape[0], shape[1]))
            wanted = {name: tensor.chunk(_WORLD, axis)[_RANK] for name, tensor in self.tensors.items()}
            rules = bs.Partition({"": how})

            times = self._turns(
                {
                    f"burnstore, {how}": partial(self._rank_by_burnstore, target, wanted, rules),
                    f"safetensors, {how}": partial(self._rank_by_safetensors, wanted, axis),
                },
                rounds=min(self.options.rounds, 3),
            )
            speeds = [self.nbytes / _WORLD / seconds / 1e9 for seconds in times.values()]
            self._row(
                f"the {how} of one of {_WORLD} ranks into its model on the GPU, against slices of `safe_open`",
                "",
                f"{speeds[0] / speeds[1]:.1f} × ({speeds[0]:.1f} GB/s of the part's bytes, {speeds[1]:.1f} GB/s)",
                None,
            )

    def _first(self) -> None:
        seconds = {}
        for who in ("burnstore", "safetensors"):
            command = [sys.executable, "-m", "benchmarks.gpu", "--device", self.device]
            command += ["--first", who, str(self.safetensors)]
            self._clear()
            fill_cache(self.safetensors)  # whatever ran before
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds[who] = float(done.stdout.split()[-1])
        self.figures["first"] = seconds
        self._row(
            "the first load of a process, pinning and allocating included, against `load_file`",
            "",
            f"{seconds['safetensors'] / seconds['burnstore']:.1f} × ({self._rate(seconds['burnstore'])}, "
            f"{self._rate(seconds['safetensors'])})",
            None,
        )

    def _cold(self) -> None:
        times = self._turns(
            {
                "burnstore": lambda: self._loaded_by_burnstore(self.safetensors, self.tensors),
                "safetensors": lambda: self._loaded_by_safetensors(self.safetensors, self.tensors),
                "direct reads alone": lambda: read_alone(self.safetensors, os.O_RDONLY | os.O_DIRECT),
            },
            before=lambda: drop_from_cache(self.safetensors),
            rounds=min(self.options.rounds, 3),
        )
        ratio = times["safetensors"] / times["burnstore"]
        self._row(
            "a file that is not in the page cache, against `load_file`",
            "≥ 1.5 ×",
            f"{ratio:.2f} × ({self._rate(times['burnstore'])}, {self._rate(times['safetensors'])}; direct reads that "
            f"go nowhere {self._rate(times['direct reads alone'])})",
            ratio >= 1.5,
        )

    def _save(self) -> None:
        path, raw = self.folder / "saved.safetensors", self.folder / "saved.raw"
        self.safetensors.unlink(missing_ok=True)
        host = torch.empty(self.nbytes, dtype=torch.uint8)
        flat = torch.cat([tensor.reshape(-1)[:1] for tensor in self.tensors.values()]).view(torch.uint8)
        host.copy_(flat.cpu().repeat(-(-self.nbytes // len(flat)))[: self.nbytes])
        with self._memory() as memory:
            bs.save(self.model, path, durable=False)
        self._check_saved(path)
        path.unlink()
        rounds = min(self.options.rounds, 2)

        def fresh() -> None:
            path.unlink(missing_ok=True)
            raw.unlink(missing_ok=True)
            os.sync()

        durable = self._turns(
            {
                "burnstore, durable": lambda: self._saved(lambda: bs.save(self.model, path)),
                "raw write, fsync": lambda: self._saved(lambda: write_raw(host, raw, sync=True)),
            },
            before=fresh,
            rounds=rounds,
        )
        quick = self._turns(
            {
                "burnstore, not durable": lambda: self._saved(lambda: bs.save(self.model, path, durable=False)),
                "raw write": lambda: self._saved(lambda: write_raw(host, raw, sync=False)),
                "safetensors, save": lambda: self._saved(lambda: save_file(self.tensors, path)),
            },
            before=fresh,
            rounds=rounds,
        )
        fresh()
        ratio = durable["burnstore, durable"] / durable["raw write, fsync"]
        again = quick["burnstore, not durable"] / quick["raw write"]
        self._row(
            "save from the GPU, durable, against writing the same bytes from host memory; `durable=False`",
            "≤ 1.2 ×",
            f"{ratio:.2f} × ({self._rate(durable['burnstore, durable'])}); "
            f"{again:.2f} × ({self._rate(quick['burnstore, not durable'])})",
            ratio <= 1.2,
        )
        ratio = quick["safetensors, save"] / quick["burnstore, not durable"]
        self._row(
            "save from the GPU, `durable=False`, against `safetensors.torch.save_file`",
            "≥ 2 ×",
            f"{ratio:.1f} × ({self._rate(quick['safetensors, save'])})",
            ratio >= 2,
        )
        ring = transfer_settings().buffers * transfer_settings().buffer_bytes
        self._row(
            "peak host memory of that save", "≤ the ring + 64 MB", mb(memory["host"]), memory["host"] <= ring + 64e6
        )

    def _save_small(self) -> None:
        path, tensors = self.folder / "small-saved.safetensors", self._small_tensors()
        host = {name: tensor.cpu() for name, tensor in tensors.items()}
        bs.save(tensors, path, durable=False)
        with bs.open(path) as file:
            check(file.torch(device=self.device), tensors)
        times = self._turns(
            {
                "burnstore, small": lambda: self._saved(lambda: bs.save(tensors, path, durable=False)),
                "burnstore, small, of the host": lambda: self._saved(lambda: bs.save(host, path, durable=False)),
                "safetensors, small": lambda: self._saved(lambda: save_file(tensors, path)),
            },
            before=lambda: path.unlink(missing_ok=True),
        )
        ratio = times["safetensors, small"] / times["burnstore, small"]
        self._row(
            f"{self.options.small:,} small tensors saved from the GPU, against `save_file`; from host memory",
            "",
            f"{ratio:.1f} × ({times['burnstore, small'] * 1e3:.0f} ms, {times['safetensors, small'] * 1e3:.0f} ms); "
            f"{times['burnstore, small, of the host'] * 1e3:.0f} ms",
            None,
        )

    # What the contestants do; each returns its seconds, and what it made is checked after the clock is stopped

    def _loaded_by_burnstore(self, path: Path, wanted: dict[str, Any]) -> float:
        begun = self._now()
        with bs.open(path) as file:
            found = file.torch(device=self.device)
        seconds = self._now() - begun
        check(found, wanted)
        return seconds

    def _loaded_by_safetensors(self, path: Path, wanted: dict[str, Any]) -> float:
        begun = self._now()
        found = load_file(path, device=self.device)
        seconds = self._now() - begun
        check(found, wanted)
        return seconds

    def _loaded_by_torch(self, path: Path, wanted: dict[str, Any]) -> float:
        begun = self._now()
        found = {
            name: tensor.to(self.device) for name, tensor in torch.load(path, mmap=True, map_location="cpu").items()
        }
        seconds = self._now() - begun
        check(found, wanted)
        return seconds

    def _rank_by_burnstore(self, target: Any, wanted: dict[str, Any], rules: bs.Partition) -> float:
        load = partial(bs.load, target, self.safetensors, part=rules.part(rank=_RANK, world=_WORLD))
        return self._into(target, load, wanted)

    def _rank_by_safetensors(self, wanted: dict[str, Any], axis: int) -> float:
        begun = self._now()
        found = {}
        with safe_open(self.safetensors, framework="pt", device=self.device) as file:
            for name, part in wanted.items():
                first = _RANK * part.shape[axis]
                mine = slice(first, first + part.shape[axis])
                sliced = file.get_slice(name)[mine] if axis == 0 else file.get_slice(name)[:, mine]
                found[name] = sliced.contiguous()
        seconds = self._now() - begun
        check(found, wanted)
        return seconds

    def _into(self, target: Any, load: Callable[[], Any], wanted: dict[str, Any] | None = None) -> float:
        for parameter in target.parameters():
            parameter.detach().zero_()
        begun = self._now()
        load()
        seconds = self._now() - begun
        check(dict(target.state_dict()), self.tensors if wanted is None else wanted)
        return seconds

    def _saved(self, save: Callable[[], Any]) -> float:
        begun = self._now()
        save()
        return self._now() - begun

    def _check_saved(self, path: Path) -> None:
        with bs.open(path) as file:
            check(file.torch(device=self.device), self.tensors)

    # Tools

    def _turns(
        self,
        contestants: dict[str, Callable[[], float]],
        before: Callable[[], None] | None = None,
        rounds: int | None = None,
    ) -> dict[str, float]:
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        warm_up = 0 if before else 1
        for turn in range((rounds or self.options.rounds) + warm_up):
            for name, contestant in contestants.items():
                gc.collect()
                if before:
                    before()
                took = contestant()
                if turn >= warm_up:
                    seconds[name].append(took)
        for name, values in seconds.items():
            self.figures.setdefault("seconds", {}).setdefault(name, []).append(values)
            self._say(f"{name}: {', '.join(f'{value:.3f}' for value in values)} s")
        return {name: statistics.median(values) for name, values in seconds.items()}

    def _linears(self, *, fill: bool, shape: tuple[int, int] | None = None) -> Any:
        model = torch.nn.Module()
        outputs, inputs = (self.side, self.side) if shape is None else shape
        for number in range(self.options.tensors):
            linear = torch.nn.utils.skip_init(
                torch.nn.Linear, inputs, outputs, bias=False, dtype=torch.bfloat16, device=self.device
            )
            if fill:
                linear.weight.detach().view(torch.int16).random_(-(2**15), 2**15)
            model.add_module(f"layer{number}", linear)
        return model.requires_grad_(False)

    @contextmanager
    def _memory(self) -> Iterator[dict[str, int]]:
        """The peaks of device and host memory in the block, above what was there before."""
        cuda = torch.device(self.device).type == "cuda"
        found: dict[str, int] = {"device": 0, "device before": 0}
        self._clear()
        release_pinned_memory()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        resident = status("VmRSS")
        yield found
        found["host"] = status("VmHWM") - resident
        if cuda:
            found["device"] = torch.cuda.max_memory_allocated() - before
        self._say(f"memory: {found}")

    def _clear(self) -> None:
        gc.collect()
        if torch.device(self.device).type == "cuda":
            torch.cuda.empty_cache()

    def _now(self) -> float:
        if torch.device(self.device).type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _rate(self, seconds: float) -> str:
        return f"{self.nbytes / seconds / 1e9:.1f} GB/s"

    def _row(self, case: str, bar: str, measured: str, met: bool | None) -> None:
        self.rows.append(Row(case, bar, measured, met))
        self._say(f"{case}: {measured} (bar {bar}: {met})")

    def _say(self, text: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
