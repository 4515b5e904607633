"""SafeTensors passes the tests that every format passes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from burnstore import DType
from burnstore.testing import FormatConformance


class TestSafetensors(FormatConformance):
    format = "safetensors"
    suffix = ".safetensors"
    dtypes = (
        *(DType.F64, DType.F32, DType.F16, DType.BF16),
        *(DType.I64, DType.I32, DType.I16, DType.I8, DType.U64, DType.U32, DType.U16, DType.U8, DType.Bool),
        *(DType.F8_E4M3, DType.F8_E5M2, DType.F8_E8M0, DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ),
        *(DType.F6_E2M3, DType.F6_E3M2, DType.F4, DType.C64),
    )
    stored_as: ClassVar = {DType.Flex32: DType.F32, DType.BoolU8: DType.Bool}
    holds_param_ids = False
    keeps_order = False

    def test_an_open_checkpoint_can_be_saved_again(self, tmp_path: Path) -> None:
        # No texts and an empty set of texts are two headers here, as they are for the package; both read as none.
        first, second, third = (tmp_path / f"{name}{self.suffix}" for name in ("first", "second", "third"))
        self.save(self.floats(), first, metadata={"b": "1", "a": "2"})
        with self.open(first) as f:
            self.save(f, second, metadata=f.metadata)
            self.save(f, third, metadata={})
        assert first.read_bytes() == second.read_bytes()
        with self.open(first) as f, self.open(third) as g:
            assert {name: t.to_bytes() for name, t in f.items()} == {name: t.to_bytes() for name, t in g.items()}
            assert (list(f.metadata), dict(g.metadata)) == (["b", "a"], {})
        assert b'{"__metadata__":{},"a.second"' in third.read_bytes()
