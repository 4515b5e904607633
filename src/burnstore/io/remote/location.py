"""Location: the name of a remote file. As text it never contains a secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ReadError, UnsupportedError, redact_url

BUCKET_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl")
"""Schemes of object stores: what follows the bucket is a key, taken literally."""

WEB_SCHEMES = ("http", "https")
HUB_SCHEME = "hf"
SCHEMES = (*BUCKET_SCHEMES, *WEB_SCHEMES, HUB_SCHEME)

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://", re.DOTALL)
_COLLAPSED = re.compile(rf"({'|'.join((*SCHEMES, 'file'))}):[/\\](?![/\\])", re.IGNORECASE)


class Location(str):
    """The URL of a file or folder, with the options to reach it.

    As text it is the URL without secrets, so whatever is made of it, an error or a report, contains none. ``url`` has
    them and is given to the client alone.
    """

    __slots__ = ("options", "url")

    url: str
    options: Mapping[str, Any]

    def __new__(cls, url: str, options: Mapping[str, Any] | None = None) -> Location:
        shown = redact_url(url)
        location = super().__new__(cls, shown)
        location.url = url
        location.options = dict(options or {})
        return location

    @property
    def scheme(self) -> str:
        """The scheme, in lower case."""
        return self.url.partition("://")[0].lower()

    @property
    def authority(self) -> str:
        """The bucket or host, with what belongs to it; the organization on the hub."""
        return re.split(r"[/?#]" if self.scheme in WEB_SCHEMES else "/", self.url.partition("://")[2], maxsplit=1)[0]

    @property
    def key(self) -> str:
        """What follows the bucket."""
        return self.url.partition("://")[2].partition("/")[2]

    @property
    def is_bucket(self) -> bool:
        """Whether it is in an object store, which can list and write."""
        return self.scheme in BUCKET_SCHEMES

    @property
    def is_hub(self) -> bool:
        """Whether it is on the Hugging Face hub."""
        return self.scheme == HUB_SCHEME

    @property
    def name(self) -> str:
        """The last part of the path."""
        if self.scheme in WEB_SCHEMES:
            from urllib.parse import unquote, urlsplit  # not at import: few programs have a URL

            return unquote(urlsplit(self.url).path.rpartition("/")[2])
        return self.url.partition("://")[2].rpartition("/")[2]

    @property
    def folder(self) -> Location:
        """The location of the folder that contains it."""
        if self.scheme in WEB_SCHEMES:
            return self._with_path(lambda path: path.rpartition("/")[0])
        return Location(self.url.rpartition("/")[0], self.options)

    def join(self, *names: str) -> str:  # type: ignore[override]  # a location is no separator
        """Return the location of a file below this one; a query, such as the token of a container, is kept."""
        more = "/".join(names)
        if self.scheme in WEB_SCHEMES:
            from urllib.parse import quote

            return self._with_path(lambda path: f"{path.rstrip('/')}/{quote(more)}")
        return Location(f"{self.url.rstrip('/')}/{more}", self.options)

    def beside(self, suffix: str) -> Location:
        """Return the location whose name has this suffix in addition."""
        if self.scheme in WEB_SCHEMES:
            return self._with_path(lambda path: path + suffix)
        return Location(self.url + suffix, self.options)

    def __add__(self, suffix: str) -> Location:
        return self.beside(suffix)

    def _with_path(self, change: Callable[[str], str]) -> Location:
        from urllib.parse import urlsplit, urlunsplit

        parts = urlsplit(self.url)
        return Location(urlunsplit(parts._replace(path=change(parts.path))), self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return Location, (self.url, self.options)  # a worker needs the secrets


def is_url(text: str) -> bool:
    """Return whether a text begins like a URL; ``C://`` does not.

    >>> is_url("s3://bucket/model.bpk"), is_url("C://model.bpk"), is_url("model.bpk")
    (True, False, False)
    """
    return "://" in text and _URL.match(text) is not None


def location_of(text: str, options: Mapping[str, Any] | None = None) -> str:
    """Return the location that a URL names, or the local path of a ``file://`` URL; UnsupportedError for others.

    >>> location_of("file:///data/a%20b.bpk")
    '/data/a b.bpk'
    """
    if isinstance(text, Location):
        return Location(text.url, {**text.options, **options}) if options else text
    scheme, _, rest = text.partition("://")
    if scheme.lower() == "file":
        host, slash, path = rest.partition("/")
        if host.lower() not in ("", "localhost") or not slash:
            raise ReadError("a file URL must have an absolute path and no host", path=text, hint="file:///path/to/file")
        from urllib.parse import unquote

        return unquote(slash + path)
    location = Location(text, options)
    if location.scheme not in SCHEMES:
        raise UnsupportedError(
            f"the scheme {location.scheme}:// is not supported; supported: "
            f"{', '.join(f'{each}://' for each in ('s3', 'gs', 'az', 'abfs', 'http', 'https', 'hf', 'file'))}",
            path=location,
        )
    if not location.authority or location.authority.startswith(":"):
        raise ReadError(f"a {location.scheme} URL must name a {_first_part(location)}", path=location)
    if "***" in re.split(r"[/?#]", rest)[0] or rest.endswith("?***"):
        raise ReadError(
            "this is the shown name of a file, from which the credentials were removed",
            path=location,
            hint="pass the original URL, or credentials in storage_options",
        )
    if location.is_bucket and "@" in location.authority and not location.scheme.startswith("abfs"):
        raise ReadError(
            "credentials are not read from the URL of a bucket",
            path=location,
            hint="pass them in storage_options, or in the environment",
        )
    return location


def refuse_collapsed(text: str) -> None:
    """Refuse ``s3:/bucket``, which `pathlib.Path` makes of ``s3://bucket``."""
    match = _COLLAPSED.match(text)
    if match is not None:
        raise ReadError(
            f"a URL begins with {match[1]}://, and pathlib removes one of the slashes", path=text, hint="pass a str"
        )


def _first_part(location: Location) -> str:
    return "host" if location.scheme in WEB_SCHEMES else "repository" if location.is_hub else "bucket"
