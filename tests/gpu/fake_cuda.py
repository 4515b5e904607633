"""Torch with a GPU that is none: tensors are on the CPU, streams and events keep account of how they are used.

What is started in a stream is done at once, and yet its events say for a while that it is not: so the code that waits
is run. What a GPU may do at the same time, or in another order, though it must not, is found out (`StreamOrder`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from tests.gpu.stream_order import Actor, Clock, StreamOrder, reads_are_watched

from burnstore.io.gpu.buffers import page_aligned
from burnstore.io.gpu.staging import CudaStaging
from burnstore.models.load import gpu as on_device
from burnstore.tensor import torch as torch_tensor


class FakeStream(Actor):
    def __init__(self, name: str, host: Actor) -> None:
        super().__init__(name)
        self._host = host

    def until_now(self) -> Clock:
        """What is over when all is that the stream was asked for."""
        self.learn(self._host.clock)
        return dict(self.clock)

    def wait_stream(self, other: FakeStream) -> None:
        self.learn(other.until_now())

    def wait_event(self, event: FakeEvent) -> None:
        self.learn(event.recorded)

    def record_event(self) -> FakeEvent:
        event = FakeEvent(self._host)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._host.learn(self.clock)


class FakeEvent:
    def __init__(self, host: Actor) -> None:
        self._host = host
        self._clock: Clock | None = None
        self._asked = 0

    @property
    def recorded(self) -> Clock:
        assert self._clock is not None, "the event is of no stream"
        return self._clock

    def record(self, stream: FakeStream) -> None:
        self._clock = stream.until_now()

    def query(self) -> bool:
        self._asked += 1
        if self._asked <= 2:
            return False
        self.synchronize()
        return True

    def synchronize(self) -> None:
        self._asked = 2
        self._host.learn(self.recorded)


class FakeCuda:
    def __init__(self) -> None:
        self._host = Actor("the host")
        self.callers = FakeStream("the caller's stream", self._host)
        self.made: list[FakeStream] = []
        self.order = StreamOrder(self._host, self.callers)
        self.entered = 0
        self.not_awaited: list[str] = []

    def Stream(self) -> FakeStream:
        self.made.append(FakeStream(f"stream {len(self.made) + 1}", self._host))
        return self.made[-1]

    def Event(self, blocking: bool = False) -> FakeEvent:
        return FakeEvent(self._host)

    def current_stream(self) -> Actor:
        return self.order.current

    def set_stream(self, stream: FakeStream) -> None:
        self.order.current = stream

    def device(self, device: Any) -> FakeCuda:
        return self

    def __enter__(self) -> FakeCuda:
        self.entered += 1
        self.order.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self.entered -= 1
        self.order.__exit__(*failure)
        self.not_awaited += self.order.not_awaited(self.made)


class FakeTorch:
    def __init__(self) -> None:
        self.cuda = FakeCuda()

    def empty(self, *args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.from_numpy(page_aligned(*args)) if pin_memory else torch.empty(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def gpu_that_is_none(make: Callable[[], FakeTorch] = FakeTorch) -> Iterator[list[FakeTorch]]:
    """Let tensors on the CPU be carried as those on a GPU are; what was made for it, which must be given back."""
    made: list[FakeTorch] = []

    def staging_for(device: object) -> CudaStaging:
        made.append(make())
        return CudaStaging(made[-1], torch.device("cpu"))

    with (
        mock.patch.object(torch_tensor, "staging_for", staging_for),
        mock.patch.object(on_device, "staging_for", staging_for),
        reads_are_watched(),
    ):
        yield made
    for fake in made:
        assert fake.cuda.current_stream() is fake.cuda.callers, "the caller's stream was not given back"
        assert not fake.cuda.entered, "the caller's device was not given back"
        assert not fake.cuda.not_awaited, "the host did not await:\n  " + "\n  ".join(fake.cuda.not_awaited)
