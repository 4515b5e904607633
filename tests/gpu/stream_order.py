"""Order of streams: who touches which bytes after whom. Two who touch the same ones in no order are found out.

What a stream does comes after what it did before, after what it was told to wait for, and after all that the host knew
when it asked for it. The host knows what it awaited. Whatever else comes first on one GPU may come last on the next:
so it is no order, though it may go well for years. Each actor therefore has a clock: how many acts of every other one
are over for sure before its own next one.

A transfer is watched for itself: when it ends the host must know that all is over, so what comes later is after it.
With memory that was there before the caller's stream may still work; and each stream with memory that is made in it, as
that may be what was let go there. All threads of the host are one actor.

`StreamOrder` is told of waits by streams and events (`tests.gpu.fake_cuda`), sees every call of torch in the thread in
which it is entered, and is told of reads into buffers while `reads_are_watched`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from burnstore.io.gpu.chunks import Chunk
from burnstore.io.gpu.transfer import Filled, KernelReaders, Readers, ThreadReaders

Clock = dict["Actor", int]
"""How many acts of each are over."""


class Actor:
    """Who does one thing after the other: a stream, the host, or those who read into one buffer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock: Clock = {self: 0}
        self.last: Act | None = None

    def learn(self, clock: Clock) -> None:
        """Do all else after what is over by this clock."""
        mine = self.clock
        for actor, count in clock.items():
            if mine.get(actor, 0) < count:
                mine[actor] = count

    def is_after(self, other: Actor) -> bool:
        """Whether all that the other one was asked for is over before what this one does next."""
        return self.clock.get(other, 0) >= other.clock[other]


class View(NamedTuple):
    """Bytes of a memory, as a tensor lies in it."""

    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    width: int

    @property
    def end(self) -> int:
        steps = zip(self.shape, self.strides, strict=True)
        return self.first + (sum((extent - 1) * stride for extent, stride in steps) + 1) * self.width

    @property
    def is_dense(self) -> bool:
        """Whether it has every byte from its first to its last one."""
        step = 1
        for stride, extent in sorted(zip(self.strides, self.shape, strict=True)):
            if extent > 1 and stride:
                if stride != step:
                    return False
                step *= extent
        return True

    def of(self, memory: Any, begin: int) -> Any:
        """These bytes of an array that has one element for each, from the byte ``begin`` on."""
        strides = [stride * self.width for stride in self.strides]
        return np.lib.stride_tricks.as_strided(memory[self.first - begin :], (*self.shape, self.width), (*strides, 1))


def share_bytes(one: View, other: View) -> bool:
    """Whether there is a byte that is of both."""
    if one.end <= other.first or other.end <= one.first:
        return False
    if one.is_dense and other.is_dense:
        return True
    begin = min(one.first, other.first)
    is_of_one = np.zeros(max(one.end, other.end) - begin, bool)
    one.of(is_of_one, begin)[...] = True
    return bool(other.of(is_of_one, begin).any())


class Act(NamedTuple):
    """What an actor does with bytes of a memory; its acts are numbered."""

    actor: Actor
    number: int
    writes: bool
    what: str
    callers: tuple[tuple[CodeType, int], ...]
    view: View

    def __str__(self) -> str:
        places = [f"{code.co_filename.rpartition('/')[2]}:{line} in {code.co_name}" for code, line in self.callers]
        did = "writes" if self.writes else "reads"
        where = f" ({', from '.join(places)})" if places else ""
        return f"{self.what} in {self.actor.name} {did} bytes {self.view.first} to {self.view.end}{where}"


class Memory:
    """An allocation, and what was done with it."""

    __slots__ = ("acts", "owner", "storage")

    def __init__(self, owner: Actor, storage: StorageWeakRef | None = None) -> None:
        self.owner = owner
        """The stream in which it was made: let go, it can be used there again at once."""
        self.storage = storage
        self.acts: dict[Actor, list[Act]] = {}

    def touch(self, act: Act) -> None:
        """Take note of an act; AssertionError if it may happen at the same time as one that it must not meet."""
        clock = act.actor.clock
        for actor, acts in self.acts.items():
            known = clock.get(actor, 0)
            for before in reversed(acts):
                if before.number <= known:
                    break  # it is over, and so are all before it
                if (before.writes or act.writes) and share_bytes(before.view, act.view):
                    raise AssertionError(f"nothing orders two acts:\n  {before}\n  {act}")
        self.acts.setdefault(act.actor, []).append(act)

    def check_reuse(self) -> None:
        """See that its stream may use it again, now that nobody has it any more."""
        for actor, acts in self.acts.items():
            if acts[-1].number > self.owner.clock.get(actor, 0):
                raise AssertionError(f"memory of {self.owner.name} was let go, which knows nothing of:\n  {acts[-1]}")


# What has the shape of a tensor that is given, and nothing of its values.
_MADE_LIKE = ("empty_like", "new_empty", "new_empty_strided", "zeros_like", "ones_like", "full_like")

_WATCHING = threading.local()


class StreamOrder(TorchDispatchMode):
    """The acts of one transfer, which is watched from where it is entered to where it is left."""

    def __init__(self, host: Actor, callers: Actor) -> None:
        super().__init__()
        self.current = callers
        """The stream in which torch does what it is asked for."""
        self._host = host
        self._callers = callers
        self._memories: dict[int, Memory] = {}
        self._buffers: dict[int, Memory] = {}
        self._reads: dict[int, Actor] = {}

    def __enter__(self) -> StreamOrder:
        self._callers.clock[self._callers] += 1  # what it was doing before
        _WATCHING.order = self
        super().__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        _WATCHING.order = None
        super().__exit__(*failure)

    def not_awaited(self, actors: Iterable[Actor]) -> list[str]:
        """What the host does not know to be over: the last act of each of these, and of those who read."""
        return [str(each.last) for each in (*actors, *self._reads.values()) if not self._host.is_after(each)]

    # --- calls of torch -----------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        read: list[torch.Tensor] = []
        written: list[torch.Tensor] = []
        for number, argument in enumerate(func._schema.arguments):
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            alias = argument.alias_info
            (written if alias is not None and alias.is_write else read).extend(_tensors(value))
        given = {_identity(tensor) for tensor in (*read, *written)}
        results = _tensors(result)
        made = [tensor for tensor in results if _identity(tensor) not in given]
        if results and not made and not written:
            return result  # views: nothing is touched
        if func.overloadpacket.__name__ in _MADE_LIKE:
            read = []
        self._did(func.overloadpacket.__name__, read, written, made)
        return result

    def _did(
        self, what: str, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        actor, number = self._next(self.current)
        callers = _code_that_calls()
        if made:
            self._reuse(actor)
        for tensor in made:
            self._memories[_identity(tensor)] = Memory(actor, StorageWeakRef(tensor.untyped_storage()))
        for tensors, writes in ((read, False), (written, True), (made, True)):
            for tensor in tensors:
                if tensor.numel():
                    actor.last = Act(actor, number, writes, what, callers, _view(tensor))
                    self._memory(tensor).touch(actor.last)

    def _next(self, actor: Actor) -> tuple[Actor, int]:
        """The number of an actor's next act, which is after all that the host knows."""
        actor.learn(self._host.clock)
        actor.clock[actor] += 1
        return actor, actor.clock[actor]

    def _memory(self, tensor: torch.Tensor) -> Memory:
        found = self._memories.get(_identity(tensor))
        if found is None:
            found = self._buffers.get(tensor.untyped_storage().data_ptr()) or self._memory_from_before(tensor)
            self._memories[_identity(tensor)] = found
        return found

    def _memory_from_before(self, tensor: torch.Tensor) -> Memory:
        """What was there before the transfer: its caller's stream may still work with all of it."""
        storage = tensor.untyped_storage()
        memory = Memory(self._callers, StorageWeakRef(storage))
        memory.touch(Act(self._callers, 1, True, "what came before", (), View(0, (storage.nbytes(),), (1,), 1)))
        return memory

    def _reuse(self, owner: Actor) -> None:
        """Memory is made in a stream: it may be what was let go there before."""
        for identity, memory in list(self._memories.items()):
            if memory.owner is owner and memory.storage is not None and memory.storage.expired():
                memory.check_reuse()
                del self._memories[identity]

    # --- reads of files -----------------------------------------------------------------------------------------------

    def read_begins(self, index: int, buffer: memoryview) -> None:
        """From now on a buffer is written, by whoever reads."""
        address = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
        memory = self._buffers.setdefault(address, Memory(self._host))
        reader, number = self._next(self._reads.setdefault(index, Actor(f"the reads into buffer {index}")))
        reader.last = Act(reader, number, True, "a read", _code_that_calls(), View(0, (len(buffer),), (1,), 1))
        memory.touch(reader.last)

    def read_ended(self, index: int) -> None:
        """The host was told that the buffer is filled."""
        self._host.learn(self._reads[index].clock)

    def reads_ended(self) -> None:
        """Nobody reads any more."""
        for index in self._reads:
            self.read_ended(index)


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors among what is given to torch, or comes from it: there are lists, and no lists in lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [each for each in value if isinstance(each, torch.Tensor)] if isinstance(value, (list, tuple)) else []


def _identity(tensor: torch.Tensor) -> int:
    """What no other memory has, as long as somebody remembers it."""
    found: int = tensor.untyped_storage()._cdata
    return found


def _view(tensor: torch.Tensor) -> View:
    width = tensor.element_size()
    return View(tensor.storage_offset() * width, tuple(tensor.shape), tensor.stride(), width)


def _code_that_calls() -> tuple[tuple[CodeType, int], ...]:
    """The next three that asked for what is being done, but for torch and what watches it."""
    frame = sys._getframe(2)
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < 3:
        if frame.f_code.co_filename != __file__ and "/torch/" not in frame.f_code.co_filename:
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)


@contextmanager
def reads_are_watched() -> Iterator[None]:
    """Tell the order of a transfer what the engine's readers do with its buffers."""
    with ExitStack() as patches:
        for kind in (KernelReaders, ThreadReaders):
            for name, watched in _watched(kind).items():
                patches.enter_context(mock.patch.object(kind, name, watched))
        yield


def _watched(kind: type[Readers]) -> dict[str, Any]:
    real_begin, real_finished, real_close = kind.begin, kind.finished, kind.close

    def begin(self: Readers, index: int, piece: Chunk, buffer: memoryview) -> None:
        if (order := _order()) is not None:
            order.read_begins(index, buffer)
        real_begin(self, index, piece, buffer)

    def finished(self: Readers, most: int, *, wait: bool = False) -> Sequence[Filled]:
        filled = real_finished(self, most, wait=wait)
        if (order := _order()) is not None:
            for index, _ in filled:
                order.read_ended(index)
        return filled

    def close(self: Readers) -> None:
        real_close(self)
        if (order := _order()) is not None:
            order.reads_ended()

    return {"begin": begin, "finished": finished, "close": close}


def _order() -> StreamOrder | None:
    """The one that watches this thread."""
    return getattr(_WATCHING, "order", None)
