"""Documents of strangers: one strict reader, within bounds, whose errors are burnstore's; and all that use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pytest

import burnstore as bs
from burnstore.io.documents import Bounds, below, fit, read_json, read_toml
from burnstore.models.outline import OUTLINE_KEY, outline_of

SMALL = Bounds(10_000, 1_000, 8, 500)

HOSTILE_JSON: dict[str, bytes] = {
    "nothing": b"",
    "text": b"hello",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "no UTF-8": b'{"a": "\xff"}',
    "a key twice": b'{"a": 1, "a": 2}',
    "a key twice, escaped": b'{"a": 1, "\\u0061": 2}',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "a number beyond floats": b'{"a": 1e999}',
    "many digits": b'{"a": ' + b"9" * 5_000 + b"}",
    "a lone surrogate": b'{"a": "\\ud800"}',
    "a lone surrogate as a key": b'{"\\udfff": 1}',
    "deep arrays": b"[" * 100 + b"]" * 100,
    "arrays without an end": b"[" * 5_000,
    "deep objects": b'{"a":' * 100 + b"1" + b"}" * 100,
    "depth behind brackets in strings": b'["]]]]", ' + b"[" * 50 + b"]" * 50 + b"]",
    "too many values": b"[" + b"1," * 2_000 + b"1]",
    "too many empty objects": b"[" + b"{}," * 1_500 + b"{}]",
    "a long string": b'"' + b"x" * 600 + b'"',
    "a long key": b'{"' + b"x" * 600 + b'": 1}',
    "too many bytes": b" " * 20_000 + b"1",
    "two values": b"{} {}",
    "a comment": b"{} // end",
    "a trailing comma": b"[1,]",
    "single quotes": b"{'a': 1}",
    "a control character": b'{"a": "\n"}',
}
HOSTILE_TOML: dict[str, bytes] = {
    "no UTF-8": b'a = "\xff"',
    "a key twice": b"a = 1\na = 2",
    "deep arrays": b"a = " + b"[" * 500 + b"]" * 500,
    "deep tables": b"[" + b".".join([b"a"] * 60) + b"]\nb = 1",
    "dotted keys without end": b".".join([b"a"] * 4_000) + b" = 1",
    "NaN": b"a = nan",
    "infinity": b"a = -inf",
    "many digits": b"a = " + b"9" * 5_000,
    "a surrogate": b'a = "\\ud800"',
    "a long string": b'a = "' + b"x" * 600 + b'"',
    "too many values": b"a = [" + b"1," * 2_000 + b"1]",
    "no TOML": b"a = = 1",
    "too many bytes": b"#" * 20_000,
}


@pytest.mark.parametrize("raw", HOSTILE_JSON.values(), ids=HOSTILE_JSON)
def test_hostile_json_is_refused_by_an_error_of_burnstore(raw: bytes) -> None:
    with pytest.raises(bs.errors.FormatError) as refused:
        read_json(raw, SMALL)
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("raw", HOSTILE_TOML.values(), ids=HOSTILE_TOML)
def test_hostile_toml_is_refused_by_an_error_of_burnstore(raw: bytes) -> None:
    with pytest.raises(bs.errors.FormatError) as refused:
        read_toml(raw, SMALL)
    assert len(str(refused.value)) < 1_000


def test_documents_within_bounds_are_read_exactly() -> None:
    document = {"a": [1, -2, 2**80, 0.5, True, None, "\u00e9\U0001f600"], "b": {"c": {}}}
    assert read_json(json.dumps(document)) == document
    assert read_json(json.dumps(document).encode()) == document
    assert read_toml("a = [1, 2.5, 'x']\n[b]\nc = true") == {"a": [1, 2.5, "x"], "b": {"c": True}}
    assert read_json(b"[Infinity]", Bounds(constants=True)) == [float("inf")]


class Known(TypedDict, total=False):
    name: str
    sizes: list[int]


@dataclass
class Exact:
    name: str


def test_unknown_fields_are_handled_as_declared() -> None:
    assert read_json('{"name": "a", "more": 1}', into=Known, ignore_extra=True) == {"name": "a"}
    with pytest.raises(bs.errors.ConfigError, match="no such field"):
        read_json('{"name": "a", "more": 1}', into=Known)
    with pytest.raises(bs.errors.ConfigError, match="name: missing"):
        read_json("{}", into=Exact)
    with pytest.raises(bs.errors.ConfigError, match=r"sizes\[1\]: expected int, found True"):
        read_json('{"sizes": [1, true]}', into=Known)


def test_a_place_is_never_longer_than_a_message_shows() -> None:
    place = ""
    for _ in range(1_000):
        place = below(place, "k" * 60_000)
    assert len(place) < 1_500
    nested: Any = "not an int"
    for _ in range(150):
        nested = {"k" * 60_000: nested}
    kind: Any = int
    for _ in range(150):
        kind = dict[str, kind]
    with pytest.raises(bs.errors.ConfigError) as unfit:
        fit(nested, kind)
    assert len(str(unfit.value)) < 3_000


# --- everything that reads a document ---------------------------------------------------------------------------------


def config_beside(raw: bytes, folder: Path) -> Any:
    (folder / "config.json").write_bytes(raw)
    return bs.config_from_file(folder / "config.json", into=dict)


def adapter(raw: bytes, folder: Path) -> Any:
    bs.save({"fc.weight": np.ones((2, 2), np.float32)}, folder / "base.safetensors", overwrite=True)
    (folder / "lora").mkdir(exist_ok=True)
    name = "base_model.model.fc.lora_A.weight"
    bs.save({name: np.ones((1, 2), np.float32)}, folder / "lora" / "adapter_model.safetensors", overwrite=True)
    (folder / "lora" / "adapter_config.json").write_bytes(raw)
    return bs.merge([folder / "base.safetensors", folder / "lora"], folder / "merged.safetensors", method="lora")


def rules(raw: bytes, folder: Path, suffix: str = ".json") -> Any:
    bs.save({"fc.weight": np.ones((2, 2), np.float32)}, folder / "a.safetensors", overwrite=True)
    (folder / f"rules{suffix}").write_bytes(raw)
    return bs.convert(folder / "a.safetensors", folder / "a.bpk", rules=folder / f"rules{suffix}", overwrite=True)


def index(raw: bytes, folder: Path) -> Any:
    raw = b'{"weight_map": {"a": 1}, ' + raw[1:] if raw.startswith(b"{") else raw  # by which an index is known
    (folder / "model.safetensors.index.json").write_bytes(raw)
    return bs.open(folder / "model.safetensors.index.json")


def receipt(raw: bytes, folder: Path) -> Any:
    from burnstore.jobs.convert.receipt import read_receipt

    (folder / "a.receipt.json").write_bytes(raw)
    return read_receipt(folder / "a.receipt.json")


def metadata(key: str) -> Callable[[bytes, Path], Any]:
    """A record in the metadata of a file, which is text of somebody else."""

    def read(raw: bytes, folder: Path) -> Any:
        tensors = {"fc.weight": np.ones((2, 2), np.float32)}
        text = raw.decode("utf-8")  # a text that is not UTF-8 is no metadata
        bs.save(tensors, folder / "a.safetensors", metadata={key: text, "format": "pt"}, overwrite=True)
        return bs.convert(folder / "a.safetensors", folder / "a.bpk", overwrite=True)

    return read


READERS: dict[str, Callable[[bytes, Path], Any]] = {
    "config": config_beside,
    "adapter": adapter,
    "rules": rules,
    "index": index,
    "receipt": receipt,
    "modules": metadata("burnstore.modules"),
    "outline": lambda raw, _: outline_of({OUTLINE_KEY: raw.decode()}),
}
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
WRONG: dict[str, bytes] = {
    **{name: HOSTILE_JSON[name] for name in ("a key twice", "a lone surrogate", "many digits", "no UTF-8", "NaN")},
    "deep": DEEP,
    "null": b"null",
    "an array": b"[]",
    "a number": b"1e5",
    "an overflow": b'{"a": 1e400}',
    "other types": b'{"format": [], "kinds": 3, "peft_type": {}, "modules": "x", "a": {"b": [[]]}}',
    "unfinished": b'{"weight_map": {"a": ',
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("reader", READERS)
def test_no_document_raises_another_error(reader: str, kind: str, tmp_path: Path) -> None:
    """A document of somebody else is read, or refused by an error of burnstore."""
    if reader in ("modules", "outline") and kind == "no UTF-8":
        return
    if (reader, kind) == ("config", "other types"):
        assert READERS[reader](WRONG[kind], tmp_path) == json.loads(WRONG[kind])
        return
    with pytest.raises(bs.BurnstoreError) as refused:
        READERS[reader](WRONG[kind], tmp_path)
    assert len(str(refused.value)) < 5_000


def test_rules_in_toml_are_bounded(tmp_path: Path) -> None:
    for kind in ("deep arrays", "dotted keys without end", "no UTF-8", "a key twice"):
        with pytest.raises(bs.BurnstoreError, match="not a rules file"):
            rules(HOSTILE_TOML[kind], tmp_path, ".toml")
