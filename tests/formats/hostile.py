"""Burnpack files put together byte by byte, so that anything in them can be wrong, and how their refusal is checked."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import burnstore as bs

UINT, NINT, BYTES, TEXT, ARRAY, MAP, TAG = range(7)
MIB = 1 << 20


def head(major: int, value: int, width: int | None = None) -> bytes:
    """The head of a CBOR item; ``width`` bytes for the value, as few as possible if None."""
    if width is None:
        width = next(w for w, most in ((0, 23), (1, 255), (2, 65535), (4, 2**32 - 1), (8, 2**64 - 1)) if value <= most)
    if width == 0:
        return bytes((major << 5 | value,))
    return bytes((major << 5 | {1: 24, 2: 25, 4: 26, 8: 27}[width],)) + value.to_bytes(width, "big")


def text(content: str | bytes) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return head(TEXT, len(raw)) + raw


def array(*items: bytes) -> bytes:
    return head(ARRAY, len(items)) + b"".join(items)


def uints(*values: int) -> bytes:
    return array(*(head(UINT, value) for value in values))


def mapping(*pairs: tuple[str | bytes, bytes]) -> bytes:
    """A map; keys may come twice."""
    return head(MAP, len(pairs)) + b"".join(text(key) + value for key, value in pairs)


def descriptor(
    *,
    dtype: bytes = text("U8"),
    shape: bytes = uints(4),
    offsets: bytes = uints(0, 4),
    more: bytes = b"",
    keys: int = 3,
) -> bytes:
    """A descriptor in Burn's order; ``more`` follows its keys."""
    fields = (text("dtype"), dtype, text("shape"), shape, text("data_offsets"), offsets, more)
    return head(MAP, keys) + b"".join(fields)


def tensors(*named: tuple[str | bytes, bytes], more: bytes = b"", keys: int = 1) -> bytes:
    """The metadata of a file with these tensors; ``more`` follows them."""
    return head(MAP, keys) + text("tensors") + mapping(*named) + more


FOUR = b"\1\2\3\4"
ONE_TENSOR = tensors(("t", descriptor()))


EMPTY = ("tensors", mapping())
NULL = b"\xf6"


def scheme(**changes: bytes) -> bytes:
    parts = {"value": text("Q8S"), "store": text("Native"), "mode": text("Symmetric"), "tensor": NULL, "block": NULL}
    return mapping(*{**parts, **changes}.items())


def block_size(storage: bytes = uints(4, 1, 1, 1, 1), length: bytes = b"\1") -> bytes:
    return mapping(("storage", storage), ("len", length))


def quantized(content: bytes) -> bytes:
    return tensors(("t", descriptor(dtype=mapping(("QFloat", content)), offsets=uints(0, 8))))


def scalar(kind: str, value: bytes) -> bytes:
    return mapping(EMPTY, ("scalars", mapping(("s", mapping((kind, value))))))


def pack(metadata: bytes, data: bytes = b"", *, length: int | None = None, padding: bytes | None = None) -> bytes:
    """The file; padded to 256 unless ``padding`` says otherwise."""
    start = struct.pack("<4sHI", b"NRUB", 1, len(metadata) if length is None else length) + metadata
    return start + (bytes(-len(start) % 256) if padding is None else padding) + data


def refused(
    source: Any,
    kind: type[bs.BurnstoreError],
    rule: str | None,
    *,
    tensor: str | None = None,
    offset: int | None = None,
    path: str = "<bytes>",
    **options: Any,
) -> bs.BurnstoreError:
    """Open what must not be opened; the error is of exactly that class, cites the rule and says where."""
    with pytest.raises(bs.BurnstoreError) as caught:
        bs.open(source, **options).close()
    error = caught.value
    assert (type(error), error.rule) == (kind, rule), error
    assert error.path == path
    assert error.tensor == tensor
    assert offset is None or error.offset == offset, error
    message = str(error)
    assert message.replace("\n  hint: ", "").isprintable()
    assert len(message) < 2000
    return error


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail, wherever the code is, when the time is over (where the system has an alarm)."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def over(*_: Any) -> None:
        raise TimeoutError(f"still at work after {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def in_little_memory(extra: int, function: Callable[[], Any]) -> tuple[Any, float]:
    """What the function gives in a child that may not take ``extra`` bytes more than it has, and its seconds of CPU."""
    resource = pytest.importorskip("resource")
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs /proc")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            with open("/proc/self/statm") as statm:
                now = int(statm.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + extra, now + extra))
            started = time.process_time()
            try:
                answer = function()
            except BaseException as error:
                answer = f"{type(error).__name__}: {error}"[:500]
            seconds = time.process_time() - started
            with open(writer, "wb") as pipe:
                pickle.dump((answer, seconds), pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as pipe:
        result = pipe.read()
    os.waitpid(pid, 0)
    assert result, "the child died"
    answer, seconds = pickle.loads(result)
    return answer, seconds
