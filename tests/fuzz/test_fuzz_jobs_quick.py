"""verify and diff on mutants of every format: whatever is in a file, the answer is a result or an error of ours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import burnstore as bs

from .corpus import Corpus
from .pytorch import Corpus as PytorchCorpus
from .records_corpus import RecordsCorpus
from .safetensors_corpus import SafetensorsCorpus
from .test_fuzz_quick import at_most

MUTANTS, SEED = 400, 20_261_115
CORPORA: dict[str, Callable[[], object]] = {
    "burnpack": Corpus,
    "pytorch": PytorchCorpus,
    "record": RecordsCorpus,
    "safetensors": SafetensorsCorpus,
}


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("name", CORPORA)
def test_whatever_is_in_a_file_verify_tells_and_does_not_raise(name: str, tmp_path: Path) -> None:
    corpus = CORPORA[name]()
    path, before = tmp_path / "mutant", tmp_path / "before"
    whole = broken = 0
    with at_most(240):
        for number in range(MUTANTS):
            path.write_bytes(corpus.mutant(SEED, number))  # type: ignore[attr-defined]
            found = bs.verify(path, digests=number % 2 == 0)
            assert found.is_whole or found.errors or any(tensor.error is not None for tensor in found.tensors)
            assert all(error.path is not None for error in found.errors)
            found.to_dict()
            if found.is_whole:
                whole += 1
                with bs.open(path) as f:
                    assert [tensor.name for tensor in found.tensors] == list(f)
            else:
                broken += 1
            if before.exists():
                with suppress(bs.BurnstoreError):
                    bs.diff(before, path, keep_layout=True).to_dict()
            if number % 7 == 0:
                path.replace(before)
    assert whole and broken
