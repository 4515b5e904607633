"""No password, token or signature of a URL or of its options appears in any text."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnstore as bs
import remote_servers as servers
from burnstore.cli import main
from burnstore.errors import BurnstoreError, located, printable, redact, redact_url
from burnstore.io.paths import as_path
from remote_servers import RangeServer, _no_configuration, _no_descriptor_leaks, packed, serve, some_tensors

pytest.importorskip("obstore", reason="obstore is not installed: requirements/test.txt has it")

Serve = Callable[..., RangeServer]
SECRETS = ("s3cret-password", "s3cret-signature", "s3cret-token", "s3cret-fragment")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pw@host/a.bpk", "https://***@host/a.bpk"),
        ("https://token@host/a.bpk", "https://***@host/a.bpk"),
        ("https://me:p@w@host/a", "https://***@host/a"),
        ("https://me:p/w@host/a", "https://***@host/a"),
        ("https://host:8080/a@b", "https://host:8080/a@b"),
        ("https://[::1]:80/a@b", "https://[::1]:80/a@b"),
        ("https://host/a?X-Amz-Signature=x&y=1", "https://host/a?***"),
        ("https://host/a?opaque", "https://host/a?***"),
        ("https://host/a#token", "https://host/a#***"),
        ("https://host?sig=x/y", "https://host?***"),
        ("https://host/a b?sig=x y", "https://host/a b?***"),
        ("HTTPS://me:pw@host/a", "HTTPS://***@host/a"),
        ("s3://key:secret@bucket/a", "s3://***@bucket/a"),
        ("s3://bucket/a?versionId=x", "s3://bucket/a?***"),
        ("s3://bucket/is it?", "s3://bucket/is it?"),
        ("az://c/a?sv=1&sig=x", "az://c/a?***"),
        ("abfs://files@account.dfs.core.windows.net/a", "abfs://files@account.dfs.core.windows.net/a"),
        ("abfss://me:pw@account/a", "abfss://***@account/a"),
        ("hf://org/model@main/a", "hf://org/model@main/a"),
        ("ftp://me:pw@host/a", "ftp://***@host/a"),
        ("model.bpk", "model.bpk"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert redact(shown) == shown  # twice is harmless
    if " " not in url:
        assert redact(f"cannot open {url} today") == f"cannot open {shown} today"


def test_an_error_redacts_whatever_it_is_given() -> None:
    url = "https://me:s3cret-password@host/a.bpk?X-Amz-Signature=s3cret-signature"
    error = BurnstoreError(f"bad {url}", path=url, hint=f"try {url}")
    with suppress(BurnstoreError), located(path=url):
        raise (later := BurnstoreError("bad"))
    for text in (
        str(error),
        repr(error),
        error.message,
        error.path,
        error.hint,
        str(later),
        later.path,
        printable(url),
    ):
        assert not any(secret in str(text) for secret in SECRETS), text


def test_a_location_is_redacted_in_every_text_that_is_made_of_it() -> None:
    place = as_path("https://me:s3cret-password@host/a.bpk?X-Amz-Signature=s3cret-signature", {"key": "s3cret-token"})
    texts = [place, str(place), repr(place), f"{place}", place + ".index.json", "%s" % place, json.dumps(place)]  # noqa: UP031
    texts += [place.upper().lower(), place[:200], f"{[place]}", f"{ {'path': place} }"]
    assert not [text for text in texts if any(secret in str(text) for secret in SECRETS)]
    assert place.url.count("s3cret") == 2  # type: ignore[attr-defined]


def url_on(server: RangeServer, name: str) -> str:
    query = "X-Amz-Signature=s3cret-signature&token=s3cret-token"
    return f"http://me:s3cret-password@{server.url.partition('://')[2]}/{name}?{query}"


CALLS: dict[str, Callable[[str, Path], Any]] = {
    "open": lambda url, folder: bs.open(url),
    "to_dict": lambda url, folder: bs.open(url).to_dict(),
    "numpy": lambda url, folder: bs.open(url).numpy(),
    "load": lambda url, folder: bs.load({"layer.0.weight": np.zeros((2, 2), np.float32)}, url),
    "save": lambda url, folder: bs.save(some_tensors(), url),
    "convert": lambda url, folder: bs.convert(url, folder / "a.bpk", receipt=True, overwrite=True),
    "convert to": lambda url, folder: bs.convert(url, url),
    "merge": lambda url, folder: bs.merge([url, url], folder / "b.safetensors", method="linear", overwrite=True),
    "source": lambda url, folder: bs.MergeSource(url),
    "diff": lambda url, folder: bs.diff(url, some_tensors(2)),
    "inspect": lambda url, folder: bs.inspect(url, stats=True),
    "explain": lambda url, folder: bs.explain(url),
    "verify": lambda url, folder: bs.verify(url, digests=True),
    "scan": lambda url, folder: bs.scan(url),
    "report": lambda url, folder: bs.report(url).html,
    "skeleton": lambda url, folder: bs.skeleton(url),
    "map": lambda url, folder: bs.map_names(url, like=url),
    "store": lambda url, folder: bs.SafetensorsStore.from_file(url).get_all_tensors(),
    "config": lambda url, folder: bs.config_from_file(url, "a"),
}


@pytest.mark.parametrize("fault", [None, servers.status(403), servers.status(404), servers.cut, servers.another_tag])
@pytest.mark.parametrize("call", list(CALLS))
@pytest.mark.matrix(every=8)
def test_no_function_shows_a_secret(serve: Serve, tmp_path: Path, call: str, fault: Any, caplog: Any) -> None:
    server = serve({"a.safetensors": packed(some_tensors(60, 400)), "config.json": b"{}"})
    server.fault = fault
    as_path(url_on(server, "a.safetensors"))
    texts = []
    try:
        done = CALLS[call](as_path(url_on(server, "a.safetensors"), {"retries": 0}), tmp_path)
        texts += [str(done), repr(done), json.dumps(getattr(done, "to_dict", dict)(), default=str)]
    except Exception as error:
        error = error.with_traceback(None)
        texts += [str(error), repr(error), repr(vars(error)), "".join(traceback.format_exception(error))]
        texts += [repr(error.__context__), repr(error.__cause__)]
    texts += [path.read_text("latin-1") for path in tmp_path.iterdir()]
    texts += [record.getMessage() for record in caplog.records]
    assert not [text for text in texts for secret in SECRETS if secret in text]


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "URL"],
        ["inspect", "--json", "URL"],
        ["inspect", "--stats", "URL", "URL-missing"],
        ["verify", "URL"],
        ["verify", "--json", "URL-missing"],
        ["scan", "URL"],
        ["diff", "URL", "URL"],
        ["explain", "URL"],
        ["explain", "URL", "--json"],
        ["convert", "URL", "FOLDER/out.bpk", "--receipt"],
        ["convert", "URL"],
        ["convert", "URL", "URL-missing"],
        ["merge", "URL", "URL", "-o", "URL-missing"],
        ["report", "URL", "-o", "FOLDER/out.html"],
        ["config", "URL"],
        ["skeleton", "URL"],
        ["map", "URL", "--like", "URL"],
        ["migrate", "URL", "FOLDER/out"],
        ["nonsense", "URL"],
        ["inspect", "--nonsense=URL"],
        ["inspect", "--sort", "URL", "URL"],
    ],
    ids=" ".join,
)
@pytest.mark.matrix(every=8)
def test_no_verb_prints_a_secret(serve: Serve, tmp_path: Path, arguments: list[str], capfd: Any) -> None:
    server = serve({"a.safetensors": packed(some_tensors(4))})
    words = {"URL": url_on(server, "a.safetensors"), "URL-missing": url_on(server, "none.safetensors")}
    given = [words.get(word, word.replace("FOLDER", str(tmp_path)).replace("URL", words["URL"])) for word in arguments]
    main(given)
    out, err = capfd.readouterr()
    written = [path.read_text("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert out or err
    assert not [text for text in (out, err, *written) for secret in SECRETS if secret in text]
