"""Limits: how much work a file may ask for before it is refused."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

_LIFTED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What opening or reading one file may cost; each limit refuses with a `LimitError` that names it.

    ``None`` means the format's own default, the value its reference reader has: Burnpack headers up to 100 MiB and
    100,000 tensors, SafeTensors headers up to 100 MB (and 1,000,000 tensors, which it does not limit). Limits bound
    sizes only; no limit switches a rule of a format off.

    >>> Limits(tensors=250_000).tensors
    250000
    """

    header_bytes: int | None = None
    tensors: int | None = None
    metadata_entries: int = 1_000_000
    name_bytes: int = 65_536
    rank: int = 64
    tensor_bytes: int = 1 << 50
    file_bytes: int = 1 << 50

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"Limits({field.name}=...) takes an int, not {type(value).__name__}")
            if value < 0:
                raise ValueError(f"Limits({field.name}=...) must not be negative, got {value}")

    @classmethod
    def trusted(cls) -> Limits:
        """Limits for files of one's own: size caps lifted, every rule of the format still checked."""
        return cls(
            header_bytes=_LIFTED,
            tensors=_LIFTED,
            metadata_entries=_LIFTED,
            name_bytes=_LIFTED,
            tensor_bytes=_LIFTED,
            file_bytes=_LIFTED,
        )

    def or_defaults(self, *, header_bytes: int, tensors: int) -> Limits:
        """These limits with a format's own defaults filled in where the caller set none."""
        return replace(
            self,
            header_bytes=header_bytes if self.header_bytes is None else self.header_bytes,
            tensors=tensors if self.tensors is None else self.tensors,
        )
