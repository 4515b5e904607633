"""Some faults between burnstore and the servers of remote files; `python -m tests.fuzz.remote` is the long form."""

from __future__ import annotations

import pytest

pytest.importorskip("obstore", reason="obstore is not installed: requirements/test.txt has it")

from remote_servers import _no_configuration, _no_descriptor_leaks  # noqa: F401  # fixtures

from .remote import run


@pytest.mark.slow("waits for servers that do not answer")
def test_faults_give_the_right_bytes_or_an_error_of_burnstore() -> None:
    counts, outcomes, wrong = run(40, 20_261_118, 120)
    assert wrong == []
    assert counts.total() >= 20 and outcomes["read"]  # fewer than asked for on a busy machine
