from __future__ import annotations

import functools
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tqdm
import tqdm.auto

import burnstore as bs
from burnstore import nn
from burnstore.progress import progress_from
from burnstore.stores.records import NamedMpkFileRecorder, save_file


class Bar:
    """A bar in tqdm's manner, which keeps what it is told."""

    made: list[Bar]

    def __init__(self, *, total: int, unit: str, unit_scale: bool) -> None:
        self.total, self.steps, self.closed = total, [], 0
        assert (unit, unit_scale) == ("B", True)
        type(self).made.append(self)

    def update(self, n: int) -> None:
        self.steps.append(n)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Bar.made = []


def test_nobody_who_wants_to_know_is_nobody() -> None:
    with progress_from(None) as report:
        assert report is None


@pytest.mark.parametrize(
    "make",
    [
        lambda seen: lambda done, total: seen.append((done, total)),
        lambda seen: lambda *told: seen.append(told),
        lambda seen: lambda *told, **_: seen.append(told),
        lambda seen: functools.partial(lambda name, *told: seen.append(told), "x"),
        lambda seen: Callback(seen).told,
        lambda seen: Callback(seen),
    ],
)
def test_a_function_of_two_numbers_is_called_as_it_is(make: Callable[[list[Any]], Any]) -> None:
    seen: list[tuple[int, int]] = []
    with progress_from(make(seen)) as report:
        report(1, 3)
        report(3, 3)
    assert seen == [(1, 3), (3, 3)]


class Callback:
    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def __call__(self, done: int, total: int) -> None:
        self.seen.append((done, total))

    def told(self, done: int, total: int) -> None:
        self.seen.append((done, total))


def test_a_built_in_function_is_called_as_it_is() -> None:
    seen: dict[int, int] = {}
    with progress_from(seen.__setitem__) as report:
        report(1, 3)
    assert seen == {1: 3}


@pytest.mark.parametrize("factory", [Bar, functools.partial(Bar), lambda **options: Bar(**options)])
def test_bars_are_told_of_steps_and_closed(factory: Any) -> None:
    with progress_from(factory) as report:
        assert Bar.made == []
        report(10, 100)
        report(10, 100)
        report(100, 100)
    (bar,) = Bar.made
    assert (bar.total, bar.steps, bar.closed) == (100, [10, 0, 90], 1)


def test_another_total_or_a_step_back_begins_another_bar() -> None:
    with progress_from(Bar) as report:
        report(5, 10)
        report(8, 20)
        report(2, 20)
    assert [(bar.total, bar.steps, bar.closed) for bar in Bar.made] == [(10, [5], 1), (20, [8], 1), (20, [2], 1)]


def test_a_bar_is_closed_when_the_job_fails() -> None:
    def stop(report: Any) -> None:
        report(5, 10)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), progress_from(Bar) as report:
        stop(report)
    assert Bar.made[0].closed == 1


@pytest.mark.parametrize("wrong", [5, "tqdm", True, [print]])
def test_anything_else_is_refused(wrong: Any) -> None:
    with (
        pytest.raises(TypeError, match="progress must be a function of two numbers or a class such as tqdm, got "),
        progress_from(wrong),
    ):
        pass


def test_a_bar_that_is_already_there_is_refused() -> None:
    with tqdm.tqdm(total=3, file=io.StringIO()) as bar, pytest.raises(TypeError, match="got tqdm"):
        bs.inspect(bs.serialize({"x": np.zeros(3)}, format="burnpack"), stats=True, progress=bar)


# --- with tqdm itself -------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    bs.save({"a": np.zeros(1 << 20, np.float32), "b": np.ones(5)}, tmp_path / "model.safetensors", durable=False)
    return tmp_path / "model.safetensors"


def jobs() -> dict[str, Callable[[Path, Any], object]]:
    def record(folder: Path) -> Path:
        save_file(nn.Linear(64, 64), folder / "record", NamedMpkFileRecorder(), durable=False)
        return folder / "record.mpk"

    zeros = {"x": np.zeros(1 << 16)}
    return {
        "save": lambda file, bars: bs.save(zeros, file.with_name("new.bpk"), progress=bars),
        "save in shards": lambda file, bars: bs.save(
            {"x": zeros["x"], "y": zeros["x"]}, file.with_name("new.safetensors"), max_shard_size="600KB", progress=bars
        ),
        "convert": lambda file, bars: bs.convert(file, file.with_name("new.bpk"), keep_layout=True, progress=bars),
        "migrate": lambda file, bars: bs.migrate(record(file.parent), file.with_name("new.bpk"), progress=bars),
        "inspect": lambda file, bars: bs.inspect(file, stats=True, progress=bars),
        "verify": lambda file, bars: bs.verify(file, progress=bars),
        "diff": lambda file, bars: bs.diff(file, shutil.copy(file, file.with_name("other.safetensors")), progress=bars),
        "merge": lambda file, bars: bs.merge([file], file.with_name("new.safetensors"), progress=bars),
    }


@pytest.mark.parametrize("job", jobs())
@pytest.mark.parametrize("kind", [tqdm.tqdm, tqdm.auto.tqdm])
def test_every_job_shows_itself_in_tqdm(job: str, kind: type, model: Path) -> None:
    screen = io.StringIO()
    made: list[Any] = []

    class Kept(kind):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    jobs()[job](model, functools.partial(Kept, file=screen, mininterval=0, desc="work"))
    assert made and all(bar.n == bar.total > 0 and bar.unit == "B" for bar in made)
    assert all(bar.disable for bar in made)  # tqdm's way to say that it is closed
    assert screen.getvalue().startswith("\rwork:   0%") and "100%" in screen.getvalue() and "B/s]" in screen.getvalue()


@pytest.mark.parametrize("job", jobs())
def test_every_job_refuses_what_is_no_progress_before_it_begins(job: str, model: Path) -> None:
    before = sorted(path for path in model.parent.iterdir())
    with pytest.raises(TypeError, match="progress must be a function"):
        jobs()[job](model, 5)
    assert [path for path in model.parent.iterdir() if path.name.startswith("new")] == []
    assert set(before) <= set(model.parent.iterdir())
