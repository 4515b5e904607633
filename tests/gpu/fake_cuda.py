"""Torch with a GPU that is none: tensors are on the CPU, streams and events keep account of how they are used.

What is started in a stream is done at once, and yet its events say for a while that it is not: so the code that waits
is run, and a buffer that is filled again before its event was awaited is found out.
"""

from __future__ import annotations

from typing import Any

import torch


class FakeEvent:
    def __init__(self, blocking: bool = False) -> None:
        self.asked = 0
        self.recorded = False

    def record(self, stream: FakeStream) -> None:
        assert isinstance(stream, FakeStream)
        self.recorded = True

    def query(self) -> bool:
        assert self.recorded
        self.asked += 1
        return self.asked > 2

    def synchronize(self) -> None:
        assert self.recorded
        self.asked = 3


class FakeStream:
    def __init__(self) -> None:
        self.waited_for: list[Any] = []

    def wait_stream(self, other: FakeStream) -> None:
        self.waited_for.append(other)

    def wait_event(self, event: FakeEvent) -> None:
        assert event.recorded
        self.waited_for.append(event)

    def record_event(self) -> FakeEvent:
        event = FakeEvent()
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.waited_for.append("end")


class FakeCuda:
    Event = FakeEvent

    def __init__(self) -> None:
        self.callers = self.current = FakeStream()
        self.made: list[FakeStream] = []
        self.selected: list[Any] = []

    def Stream(self) -> FakeStream:
        self.made.append(FakeStream())
        return self.made[-1]

    def current_stream(self) -> FakeStream:
        return self.current

    def set_stream(self, stream: FakeStream) -> None:
        self.current = stream

    def device(self, device: Any) -> FakeCuda:
        self.selected.append(device)
        return self

    def __enter__(self) -> FakeCuda:
        return self

    def __exit__(self, *_: object) -> None:
        self.selected.append(None)


class FakeTorch:
    def __init__(self) -> None:
        self.cuda = FakeCuda()
        self.pinned = 0

    def empty(self, *args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        self.pinned += pin_memory
        return torch.empty(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
