"""ByteStream: the bytes of a tensor, read in order through one buffer."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import CorruptError, located
from .snapshot import TensorSnapshot
from .sources import SourceData


class ByteStream:
    """The bytes of one tensor in order; those of a file from any offset on.

    Bytes of a file are read into one buffer, which each `take` overwrites. Streams one after another can share it.

    >>> import numpy as np
    >>> stream = ByteStream(TensorSnapshot.from_numpy("x", np.arange(6, dtype=np.uint8)))
    >>> bytes(stream.take(2)), bytes(stream.take(3))
    (b'\\x00\\x01', b'\\x02\\x03\\x04')
    """

    def __init__(self, tensor: TensorSnapshot, start: int = 0, buffer: bytearray | None = None) -> None:
        if start and not isinstance(tensor._data, SourceData):
            raise ValueError("only tensors of files can be read from any offset")
        self._tensor = tensor
        self._position = start
        self._buffer = buffer
        self._chunks: Iterator[memoryview] = iter(()) if isinstance(tensor._data, SourceData) else tensor.chunks()
        self._rest = memoryview(b"")

    def take(self, length: int) -> bytearray | memoryview:
        """Return the next bytes."""
        data = self._tensor._data
        if not isinstance(data, SourceData):
            return self._next(length)
        position = data.offset + self._position
        self._position += length
        with located(tensor=self._tensor.path, path=data.file):
            shared = data.source.view(position, length)
            if shared is not None:
                return shared
            if self._buffer is None or len(self._buffer) < length:
                self._buffer = bytearray(length)
            part = memoryview(self._buffer)[:length]
            data.source.read_into([(position, part)])
        return self._buffer if length == len(self._buffer) else part

    def _next(self, length: int) -> memoryview:
        while len(self._rest) < length:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise CorruptError(f"ends {length - len(self._rest)} bytes early", tensor=self._tensor.path)
            self._rest = memoryview(bytes(self._rest) + bytes(chunk)) if self._rest else chunk
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken
