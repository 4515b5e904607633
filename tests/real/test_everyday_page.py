"""The page docs/everyday.md states what happens today, with the libraries that make the files."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
for library in ("transformers", "diffusers", "peft", "pytorch_lightning"):
    pytest.importorskip(library)

from . import everyday  # noqa: E402

pytestmark = [pytest.mark.slow("imports four libraries"), pytest.mark.filterwarnings("ignore")]


def test_the_page_is_current_and_has_no_traceback() -> None:
    rows = list(everyday.table())
    broken = {(name, verb): cell for name, cells in rows for verb, cell in cells.items() if cell[0] == "TRACEBACK"}
    assert not broken
    assert everyday.page(rows) == everyday.PAGE.read_text(), "run: make everyday"


@pytest.mark.parametrize("verb", ["inspect", "diff", "verify", "scan", "explain"])
def test_results_become_data_frames(tmp_path: everyday.Path, verb: str) -> None:
    pandas = pytest.importorskip("pandas")
    bs, file = everyday.bs, everyday.whole(tmp_path / "a.pt").path
    options = {"explain": (everyday.net(),), "diff": (file,)}.get(verb, ())
    frame = getattr(bs, verb)(file, *options).to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) and not frame.columns.has_duplicates
