"""Hostile names (row H10): what UTF-8 allows is loaded, kept and printed escaped; all else is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hostile import FOUR, TEXT, descriptor, head, mapping, pack, refused, tensors, text, uints

import burnstore as bs
from burnstore.errors import CorruptError, LimitError

LEGAL = [
    # empty, spaces, lengths at which the head of the text changes, the limit
    *("", " ", "  ", "a", "x" * 23, "x" * 24, "x" * 255, "x" * 256, "x" * 65_535, "x" * 65_536, "é" * 32_768),
    # control characters, terminals
    *("\0", "a\0b", "\0" * 300, "\n", "a\nb", "a\r\nb", "\t", "\b\b\b", "\x07", "\x7f", "\x1b", "\x85", "\x9b31m"),
    *("\x1b[31mred\x1b[0m", "\x1b[2J", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\link", "\x1bc", "\x90q\x9c"),
    # characters that hide, turn or join others
    *(
        "\ufeff",
        "\ufeffname",
        "\u200b",
        "a\u200bb",
        "\u202egnp.exe",
        "\u2066x\u2069",
        "\u2028",
        "\u2029",
        "\u00ad",
        "\u180e",
    ),
    *("\ufffd", "\uffff", "\ufdd0", "\U0010ffff", "\ue000", "\U000e0041", "\ud7ff", "\u00a0", "\u3000", "\u1160"),
    # equal to the eye
    *("é", "e\u0301", "Å", "\u212b", "a", "\u0430", "ﬁ", "fi", "Z\u0310\u0311\u0312", "İ", "\u0131", "ẞ", "ß"),
    # languages and pictures
    *("größe.重み", "وزن", "משקל", "น้ำหนัก", "\U0001f525", "👨\u200d👩\u200d👧", "\U0001d518\U0001d52b", "\U0001d11e"),
    # names with a meaning elsewhere
    *(
        "__metadata__",
        "__class__",
        "tensors",
        "dtype",
        "shape",
        "data_offsets",
        "param_id",
        "metadata",
        "scalars",
        "NRUB",
    ),
    *(
        "../x",
        "../../etc/passwd",
        "/etc/passwd",
        "~",
        "a/b",
        "a\\b",
        "C:\\x",
        "\\\\host\\x",
        "CON",
        "NUL",
        "aux.bpk",
        ".",
    ),
    *(
        "..",
        ".a",
        "a.",
        "a..b",
        "-rf",
        "--help",
        "%s%n",
        "{0}",
        "{tensor.__class__}",
        "$HOME",
        "${jndi:ldap://x}",
        "`id`",
    ),
    *(
        "'; DROP TABLE tensors; --",
        "<script>",
        "&lt;",
        '"',
        "'",
        "\\",
        "\\n",
        "\\u0041",
        "[red]x[/red]",
        "None",
        "0",
        "-1",
    ),
]
LEGAL = list(dict.fromkeys(LEGAL))


def shown(content: str) -> str:
    return ascii(content if len(content) < 30 else f"{content[:20]}...{len(content)}")


@pytest.mark.parametrize("name", LEGAL, ids=shown)
def test_a_legal_name_is_kept_and_printed_escaped(name: str) -> None:
    data = pack(tensors((name, descriptor(dtype=text("Bool")))), FOUR)
    with bs.open(data) as f:
        assert list(f) == [name]
        assert name in f
        assert f[name].path == name
        for printed in (repr(f[name]), str(f[name]), repr(f), str(f)):
            assert printed.isprintable()
            assert len(printed) < 1200
        with pytest.raises(CorruptError, match="expected 0 or 1") as wrong:
            f[name].numpy()
        assert wrong.value.tensor == name
        with pytest.raises(bs.errors.TensorNotFoundError) as missing:
            f[name + "?"]
        for error in (wrong.value, missing.value, pickle.loads(pickle.dumps(wrong.value))):
            message = str(error).replace("\n  hint: ", "")
            assert message.isprintable()
            assert len(message) < 2500
        assert name not in str(wrong.value) or name.isprintable()
    again = bs.open(bs.serialize({name: np.zeros(1)}, format="burnpack", metadata={}, burn_version="0.20"))
    assert list(again) == [name]


def test_there_are_enough_of_them_and_they_live_side_by_side() -> None:
    assert len(LEGAL) >= 80
    empty = descriptor(shape=uints(0), offsets=uints(0, 0))
    data = pack(tensors(*((name, empty) for name in LEGAL)))
    with bs.open(data) as f:
        assert sorted(f) == sorted(LEGAL)
        again = bs.open(bs.serialize(f, format="burnpack", metadata={}))
    assert sorted(again) == sorted(LEGAL)


def test_two_normal_forms_are_two_names() -> None:
    one, other = descriptor(), descriptor(offsets=uints(256, 260))
    with bs.open(pack(tensors(("é", one), ("e\u0301", other)), FOUR + bytes(252) + b"\5\6\7\x08")) as f:
        assert f["é"].numpy().tolist() == [1, 2, 3, 4]
        assert f["e\u0301"].numpy().tolist() == [5, 6, 7, 8]


def test_names_of_texts_and_scalars_are_kept_too() -> None:
    names = [name for name in LEGAL if len(name) < 1000]
    texts = mapping(*((name, text(name)) for name in names))
    scalars = mapping(*((name, mapping(("Int", b"\1"))) for name in names))
    with bs.open(pack(mapping(("tensors", mapping()), ("metadata", texts), ("scalars", scalars)))) as f:
        assert dict(f.metadata) == {name: name for name in names}
        assert list(f.scalars) == names


BAD_UTF8 = {
    "a continuation alone": b"\x80",
    "a start alone": b"\xc3",
    "a start before a letter": b"\xc3a",
    "three bytes cut": b"\xe2\x82",
    "four bytes cut": b"\xf0\x9f\x94",
    "an overlong NUL": b"\xc0\x80",
    "an overlong slash": b"\xc0\xaf",
    "overlong in three": b"\xe0\x80\xaf",
    "overlong in four": b"\xf0\x80\x80\xaf",
    "a high surrogate": b"\xed\xa0\x80",
    "a low surrogate": b"\xed\xbf\xbf",
    "a pair of surrogates": b"\xed\xa0\xbd\xed\xb4\xa5",
    "past the last character": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80",
    "FE": b"\xfe",
    "FF": b"\xff",
    "UTF-16 with a mark": b"\xff\xfea\x00",
    "Latin-1": "größe".encode("latin-1"),
}


@pytest.mark.parametrize("before", [b"", b"weight.", "重み".encode()], ids=["", "ascii", "wide"])
@pytest.mark.parametrize("bad", BAD_UTF8)
def test_a_name_that_is_not_utf_8_is_refused(bad: str, before: bytes) -> None:
    raw = before + BAD_UTF8[bad]
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        wrong_at = error.start
    start = 10 + len(b"\xa1gtensors\xa1") + 1
    refused(pack(tensors((raw, descriptor())), FOUR), CorruptError, "BP-08", offset=start + wrong_at)


@pytest.mark.parametrize("bad", BAD_UTF8)
def test_other_texts_that_are_not_utf_8_are_refused(bad: str) -> None:
    raw, empty = BAD_UTF8[bad], ("tensors", mapping())
    places = {
        "BP-05": mapping((raw, mapping())),
        "BP-06": tensors(("t", mapping((raw, b"\0")))),
        "BP-09": tensors(("t", descriptor(dtype=text(raw)))),
        "BP-17": mapping(empty, ("metadata", mapping((raw, text("v"))))),
        "BP-18": mapping(empty, ("scalars", mapping((raw, mapping(("Int", b"\1")))))),
    }
    for rule, metadata in places.items():
        error = refused(pack(metadata), CorruptError, rule, tensor="t" if rule in ("BP-06", "BP-09") else None)
        assert error.offset is not None
    refused(pack(mapping(empty, ("metadata", mapping(("k", text(raw)))))), CorruptError, "BP-17")


@pytest.mark.parametrize(
    "name",
    [b"\x41a", b"\x01", b"\x20", b"\xf6", b"\xf5", b"\x80", b"\xa0", b"\xc1\x61a", b"\x7f\x61a\xff", b"\xf9\0\0"],
    ids=["bytes", "uint", "negative", "null", "true", "array", "map", "tag", "endless text", "float"],
)
def test_a_name_that_is_no_text_is_refused(name: bytes) -> None:
    refused(pack(b"\xa1gtensors\xa1" + name + descriptor(), FOUR), CorruptError, "BP-08", offset=20)


@pytest.mark.parametrize("name", ["x" * 65_537, "x" * 10**6, "é" * 32_769, "\U0001f525" * 16_385], ids=len)
def test_a_name_past_the_limit_is_refused_unless_asked_for(name: str) -> None:
    data = pack(tensors((name, descriptor())), FOUR)
    refused(data, LimitError, "BP-08", offset=20)
    assert list(bs.open(data, limits=bs.Limits(name_bytes=len(name.encode())))) == [name]
    with pytest.raises(LimitError):
        bs.serialize(bs.open(data, limits=bs.Limits.trusted()), format="burnpack")


@pytest.mark.parametrize("length", [2, 255, 2**16, 2**32, 2**64 - 1])
def test_a_name_longer_than_what_is_left_is_refused(length: int) -> None:
    metadata = b"\xa1gtensors\xa1" + head(TEXT, length) + b"x"
    with pytest.raises((bs.errors.TruncatedError, LimitError)) as caught:
        bs.open(pack(metadata))
    assert caught.value.rule in ("BP-05", "BP-08")
