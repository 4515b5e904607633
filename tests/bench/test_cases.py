"""Every case of the benchmarks runs and gives the right answer: a change of the package cannot break one unnoticed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import smallest
import toy_contestants as toy
from benchmarks import ALL_SUBJECTS
from benchmarks.harness import ROOT, Case, Contestant

pytestmark = pytest.mark.slow("benchmarks")

# What a comparison beside a GPU needs; without one, the same code moves the tensors on the CPU.
_ON_THE_CPU = "import benchmarks.gpu as b; b.main('--device cpu --gib 0.01 --tensors 8 --small 50 --rounds 1'.split())"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("subject", ALL_SUBJECTS)
def test_every_case_gives_the_right_answer_at_the_smallest_size(subject: str, tmp_path: Path) -> None:
    done = run(Path(__file__).with_name("smallest.py"), subject, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ cases, [1-9]\d* contestants checked, 0 failed$", done.stdout, re.MULTILINE)


def test_the_comparison_on_a_gpu_runs_on_the_cpu_as_well() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    done = run("-c", _ON_THE_CPU)
    assert done.returncode == 0, done.stderr
    assert "| 50 small tensors saved from the GPU" in done.stdout


def test_a_case_that_raises_or_answers_wrongly_is_noticed(tmp_path: Path) -> None:
    broken = tuple(Contestant(each.__name__, each) for each in (toy.fails, toy.wrong, toy.unchecked, toy.value))
    result = smallest.OneProcess(tmp_path).run(smallest.smallest(Case("toy", "a toy", broken, None, 2), "toy"))
    said = smallest.failures(result)
    assert len(said) == 4
    for text, line in zip(("the disk is on fire", "2 + 2 is not 5", "never checked", "KeyError"), said, strict=True):
        assert text in line
