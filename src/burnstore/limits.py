"""Limits: the most work that a file may cause before it is refused."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from .errors import expect

_LIFTED = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What opening or reading one file may cost; a file beyond a limit raises a `LimitError` that names it.

    ``None`` means the format's own default, that of its reference reader: Burnpack headers up to 100 MiB and 100,000
    tensors, SafeTensors headers up to 100 MB (and 1,000,000 tensors, which it does not limit). Limits bound sizes only;
    they switch no rule of a format off.

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
            if expect(value, int, f"Limits({field.name}=...)") < 0:
                raise ValueError(f"Limits({field.name}=...) must not be negative, got {value}")

    @classmethod
    def trusted(cls) -> Limits:
        """Return limits for trusted files: no size limits, while every rule of the format is still checked."""
        return cls(**{field.name: _LIFTED for field in fields(cls) if field.name != "rank"})

    def or_defaults(self, *, header_bytes: int, tensors: int) -> Limits:
        """Return these limits with a format's own defaults where the caller set none."""
        return replace(
            self,
            header_bytes=header_bytes if self.header_bytes is None else self.header_bytes,
            tensors=tensors if self.tensors is None else self.tensors,
        )


def check_options(*, limits: Limits | None = None, **flags: bool) -> None:
    """Raise TypeError for a flag that is no bool (``overwrite="no"`` would replace a file), or other limits.

    >>> check_options(overwrite="no")
    Traceback (most recent call last):
    TypeError: overwrite must be a bool, got str
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    if limits is not None and not isinstance(limits, Limits):
        raise TypeError(f"limits must be a Limits, got {type(limits).__name__}")
