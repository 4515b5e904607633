"""Folders of remote files: what a store or a repository of the hub lists."""

from __future__ import annotations

from ...errors import ReadError, UnsupportedError
from ..source import Source
from .hub import list_hub_folder, open_hub_file, parse
from .location import Location
from .requests import persist, run
from .source import Target, open_target
from .store import client_for, failure_of, list_folder, patience_of, require_obstore, stamp_of


def open_remote(location: Location) -> Source:
    """Open a remote file; FileNotFoundError if it does not exist."""
    return open_hub_file(location) if location.is_hub else open_target(Target(location))


def list_names(location: Location) -> tuple[Location, list[str]]:
    """Return the names directly in a folder, and the location of the folder they were listed from (a hub's commit).

    The names of folders end in a slash. FileNotFoundError if there is nothing.
    """
    if location.is_hub:
        pinned, names = list_hub_folder(location)
    else:
        pinned, names = location, [name for name, _ in list_folder(location)]
    if not names:
        raise FileNotFoundError(2, "No such file or directory", location)
    return pinned, names


def is_remote_folder(location: Location) -> bool:
    """Return whether there is an object below a location; False for a web server, which lists none."""
    if not location.is_bucket and not location.is_hub:
        return False
    try:
        list_names(location)
    except FileNotFoundError:
        return False
    return True


def size_of_object(location: Location) -> int | None:
    """Return the size of a remote file; None if there is none."""
    if location.is_hub:
        try:
            source = open_remote(location)
        except FileNotFoundError:
            return None
        source.close()
        return source.size
    obstore = require_obstore()
    client, key = client_for(location)
    if not key and location.is_bucket:
        return None

    async def attempt() -> int:
        try:
            return stamp_of(await obstore.head_async(client, key)).size
        except Exception as error:
            failure = failure_of(error, location, opened=False)
        raise failure

    slow = ReadError("the server did not answer in time", path=location)
    try:
        return run(lambda: persist(attempt, patience_of(location), 0, slow))
    except FileNotFoundError:
        return None


def open_or_list(location: Location) -> tuple[Source | None, Location, list[str]]:
    """Open a location if it is a file, otherwise list it: return the source or None, the folder, and its names."""
    is_root = location.is_bucket and not location.key.strip("/")
    if not (location.url.endswith("/") or is_root or _is_repository(location)):
        try:
            return open_remote(location), location, []
        except FileNotFoundError as error:
            missing = error
        if not location.is_bucket and not location.is_hub:
            raise missing
        try:
            return None, *list_names(location)
        except FileNotFoundError:
            raise missing from None
    if not location.is_bucket and not location.is_hub:
        raise UnsupportedError("a web server does not list folders", path=location, hint="open a file by its name")
    return None, *list_names(location)


def _is_repository(location: Location) -> bool:
    if not location.is_hub:
        return False
    return not parse(location).file
