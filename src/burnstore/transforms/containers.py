"""ContainerPath: the types around a tensor, as filters and adapters see them."""

from __future__ import annotations

from collections.abc import Iterable


class ContainerPath(str):
    """The names of the types that own each segment of a path, joined by dots: ``Model.Vec.Linear``.

    Burn writes kinds in front of names (``Struct:Model.Vec.Struct:Linear``), so that a predicate asking for ``Linear``
    silently matches nothing since 0.20. Here the text has the bare names, ``entries`` and ``prefixed`` have Burn's.

    >>> path = ContainerPath.of(["Struct:Model", "Vec", "Struct:Linear"])
    >>> path.split(".")[-1], path.prefixed
    ('Linear', 'Struct:Model.Vec.Struct:Linear')
    """

    __slots__ = ("entries",)

    entries: tuple[str, ...]

    @classmethod
    def of(cls, entries: Iterable[str]) -> ContainerPath:
        """Return the container path of a stack of entries."""
        stack = tuple(entries)
        path = cls(".".join(entry.rpartition(":")[2] for entry in stack))
        path.entries = stack
        return path

    @property
    def prefixed(self) -> str:
        """The entries as Burn joins them."""
        return ".".join(self.entries)
