"""Files of the Hugging Face hub: ``hf://org/model[@revision][/file]``.

A revision is resolved to its commit once, and everything is read from that commit. A file that huggingface_hub has in
its cache is read there. Otherwise its address is resolved once and the server behind the redirect is asked for ranges;
when the address expires (403) it is resolved again. The token is sent to the hub alone, never to the redirect's host.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from ...errors import MissingDependencyError, ReadError, UnsupportedError
from ..source import FileSource, Source
from .location import Location
from .source import Target, open_target
from .store import Stamp, web_client

_INDEX = ".index.json"
_OWN = ("token", "endpoint")
_HUB_PATH = re.compile(
    r"(?:(?P<kind>models|datasets|spaces)/)?(?P<org>[^/@]+)/(?P<name>[^/@]+)"
    r"(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(?P<file>.*))?",
    re.DOTALL,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubPath:
    """What a URL of the hub names."""

    repository: str
    kind: str
    revision: str | None
    file: str

    def at(self, commit: str, location: Location) -> Location:
        """Return the URL of the same file at a commit."""
        kind = "" if self.kind == "model" else f"{self.kind}s/"
        file = f"/{self.file}" if self.file else ""
        return Location(f"hf://{kind}{self.repository}@{commit}{file}", location.options)


def parse(location: Location) -> HubPath:
    """Return what a URL of the hub names."""
    rest = location.url.partition("://")[2].rstrip("/")
    if rest.startswith("buckets/"):
        raise UnsupportedError("buckets of the hub are not read", path=location, hint="open a repository of the hub")
    match = _HUB_PATH.fullmatch(rest)
    if match is None:
        raise ReadError("expected hf://org/model[@revision][/file]", path=location)
    kind = (match["kind"] or "models")[:-1]
    revision = match["revision"]
    return HubPath(
        f"{match['org']}/{match['name']}", kind, None if revision is None else unquote(revision), match["file"] or ""
    )


def require_hub() -> Any:
    """Import huggingface_hub; MissingDependencyError with what to install."""
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.file_download
    except ImportError:
        raise MissingDependencyError(
            "files of the Hugging Face hub need the package huggingface_hub", hint="pip install 'burnstore[hub]'"
        ) from None
    return huggingface_hub


def pin(location: Location) -> tuple[Location, list[str] | None]:
    """Return a location at its commit, and the names of all files of the repository where they had to be listed."""
    path = parse(location)
    if path.revision is not None and _COMMIT.fullmatch(path.revision):
        return location, None
    commit, names = _listing(location, path)
    return path.at(commit, location), names


def list_hub_folder(location: Location) -> tuple[Location, list[str]]:
    """Return a folder of a repository at its commit, and the names in it; those of folders end in a slash."""
    path = parse(location)
    commit, names = _listing(location, path)
    prefix = f"{path.file}/" if path.file else ""
    inside = {name[len(prefix) :] for name in names if name.startswith(prefix)}
    found = {name if "/" not in name else name.partition("/")[0] + "/" for name in inside if name}
    return path.at(commit, location), sorted(found)


def local_snapshot(location: Location) -> str | None:
    """Return the local path of a file or folder in huggingface_hub's cache, in its offline mode; None if online."""
    hub = require_hub()
    if not hub.is_offline_mode():
        return None
    path = parse(location)
    try:
        folder: str = hub.snapshot_download(
            path.repository, repo_type=path.kind, revision=path.revision, local_files_only=True
        )
    except Exception as error:
        _refuse(error, location)
    return f"{folder}/{path.file}" if path.file else folder


def open_hub_file(location: Location) -> Source:
    """Open a file of a repository."""
    cached = local_snapshot(location)
    if cached is not None:
        return FileSource(cached)
    pinned, _ = pin(location)
    if not parse(pinned).file:
        raise ReadError("expected the name of a file in the repository", path=location)
    return open_target(HubTarget(pinned))


def _listing(location: Location, path: HubPath) -> tuple[str, list[str]]:
    api = require_hub().HfApi(endpoint=location.options.get("endpoint"), token=location.options.get("token"))
    try:
        info = api.repo_info(path.repository, revision=path.revision, repo_type=path.kind, timeout=30)
        return str(info.sha), [each.rfilename for each in info.siblings or []]
    except Exception as error:
        _refuse(error, location)


class HubTarget(Target):
    """A file of a repository at a commit; its address is that behind the hub's redirect."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self.conditional = False  # the redirect's host may have another ETag than the hub states
        self._address = ""
        self._headers: dict[str, str] = {}
        self._size: int | None = None
        self._tag: str | None = None

    def resolve(self) -> None:
        """Ask the hub for the file's address."""
        hub, path, options = require_hub(), parse(self.location), self.location.options
        endpoint, token = options.get("endpoint"), options.get("token")
        try:
            url = hub.hf_hub_url(
                path.repository, path.file, repo_type=path.kind, revision=path.revision, endpoint=endpoint
            )
            metadata = hub.get_hf_file_metadata(url, token=token, endpoint=endpoint, retry_on_errors=True)
            headers = hub.utils.build_hf_headers(token=token)
        except Exception as error:
            _refuse(error, self.location)
        if metadata.size is None:
            raise ReadError("the hub does not state the file's size", path=self.location)
        if self._size not in (None, metadata.size):
            raise ReadError("the hub states another size than before", path=self.location)
        same_host = _origin(metadata.location) == _origin(url)
        own = {name: value for name, value in headers.items() if name.lower() == "authorization"}
        self._headers = own if same_host else {}
        self._address, self._size, self._tag = metadata.location, metadata.size, None

    def client(self) -> tuple[Any, str]:
        if not self._address:
            self.resolve()
        options = {name: value for name, value in self.location.options.items() if name not in _OWN}
        return web_client(self._address, Location(self.location.url, options), self._headers), ""

    def is_same(self, stamp: Stamp, found: Stamp) -> bool:
        if self._tag is None:  # the first answer of this host
            self._tag = found.tag
        return found.size == stamp.size == self._size and found.tag == self._tag

    def local_copy(self) -> Source | None:
        path = parse(self.location)
        if path.file.endswith(_INDEX):  # the shards beside an index may not be in the cache
            return None
        found = require_hub().try_to_load_from_cache(
            path.repository, path.file, revision=path.revision, repo_type=path.kind
        )
        return FileSource(found) if isinstance(found, str) else None

    async def refresh(self) -> bool:
        await asyncio.to_thread(self.resolve)
        return True


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.rpartition("@")[2].lower()


def _refuse(error: Exception, location: Location) -> NoReturn:
    """Raise our error for one of huggingface_hub, without its text: that may contain addresses."""
    kinds = {each.__name__ for each in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", None)
    raised: Exception
    if "GatedRepoError" in kinds or status in (401, 403):
        raised = ReadError(
            "access was denied by the hub", path=location, hint="accept the model's terms, then log in: hf auth login"
        )
    elif "RepositoryNotFoundError" in kinds:
        raised = FileNotFoundError(2, "no such repository on the hub, or access to it needs a token", location)
    elif "RevisionNotFoundError" in kinds:
        raised = FileNotFoundError(2, "no such revision of the repository", location)
    elif "EntryNotFoundError" in kinds or "CachedRepoTreeNotFoundError" in kinds:
        offline = "LocalEntryNotFoundError" in kinds
        raised = FileNotFoundError(2, "not in the hub's cache (offline mode)" if offline else "no such file", location)
    elif "OfflineModeIsEnabled" in kinds:
        raised = ReadError("the hub is in offline mode and the file is not in its cache", path=location)
    elif "HFValidationError" in kinds or "HfUriError" in kinds:
        raised = ReadError("expected hf://org/model[@revision][/file]", path=location)
    else:
        shown = f": status {status}" if status else f" ({type(error).__name__})"
        raised = ReadError(f"the hub did not answer as expected{shown}", path=location)
    try:
        raise raised from None
    finally:
        raised.__context__ = None  # its text may contain addresses, and some tools print it
