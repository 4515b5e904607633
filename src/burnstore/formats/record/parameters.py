"""Parameters of a MessagePack record, each taken in one step where it is spelled as Burn spells it.

A parameter is three maps, an array and a dozen values, always in the same order, in which only the id, the lengths and
the shape differ. Reading it value by value is slow for records of many thousand tensors; a regular expression matches
it as a whole. It is a recogniser, not a second reader: a parameter of another form is read value by value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import TruncatedError
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ..codec.msgpack import Found, MsgpackReader, Tree
from ..codec.window import Extent, Readable, Sink

_HEAD = re.compile(rb"\x82\xa2id\xad([0-9a-v]{13})\xa5param\x83\xa5bytes(?:\xc4(.)|\xc5(..)|\xc6(.{4}))", re.DOTALL)
_TAIL = re.compile(
    rb"\xa5shape([\x90-\x98](?:[\x00-\x7f]|\xcc.|\xcd..|\xce.{4}){0,8})\xa5dtype\xa3([FI](?:32|64|16))", re.DOTALL
)
_LONGEST_HEAD = 41
_LONGEST_TAIL = 64
_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4}
_NODES = 5  # id and param; bytes, shape and dtype


@dataclass(frozen=True, slots=True)
class FoundParameter(Found):
    """A recognised parameter: its id, and the description and place of its tensor."""

    id: str
    dtype: DType
    shape: Shape
    extent: Extent


class ParameterReader(MsgpackReader):
    """Read records, and parameters of the usual form in one step."""

    __slots__ = ("_tails",)

    def __init__(self, source: Readable, sink: Sink, *, nodes: int) -> None:
        super().__init__(source, sink, nodes=nodes)
        self._tails: dict[bytes, tuple[DType, Shape]] = {}

    def _recognised(self) -> Tree:
        if len(self.buffer) - self.at < _LONGEST_HEAD:
            self.need(min(self.left, _LONGEST_HEAD))
        head = _HEAD.match(self.buffer, self.at)
        if head is None:
            return None
        start = self.position
        length = int.from_bytes(head[2] or head[3] or head[4] or b"\0", "big")
        self.at = head.end()
        place = Extent(self.position, length)
        try:
            self.skip(length)
        except TruncatedError:
            self.move_to(start)
            return None
        if len(self.buffer) - self.at < _LONGEST_TAIL:
            self.need(min(self.left, _LONGEST_TAIL))
        tail = _TAIL.match(self.buffer, self.at)
        known = None if tail is None else self._tails.get(tail.group()) or self._read_tail(tail)
        if tail is None or known is None:
            self.move_to(start)
            return None
        self.at = tail.end()
        self._bounded(_NODES + len(known[1]), start)
        return FoundParameter(head[1].decode("ascii"), *known, place)

    def _read_tail(self, tail: re.Match[bytes]) -> tuple[DType, Shape] | None:
        spelled = tail[1]
        extents = []
        at = 1
        while at < len(spelled):
            width = _WIDTHS.get(spelled[at], 0)
            extents.append(int.from_bytes(spelled[at + 1 : at + 1 + width], "big") if width else spelled[at])
            at += 1 + width
        if len(extents) != spelled[0] & 15:
            return None
        known = self._tails[tail.group()] = DType.parse(tail[2].decode("ascii")), tuple(extents)
        return known
