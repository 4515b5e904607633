"""Clients of obstore, one for each bucket or host and its options, and what they raise in our words.

No text of obstore's errors is passed on: they contain URLs with signatures. Only the status code, the store's own code
(``NoSuchKey``) and known phrases are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ChangedError, MissingDependencyError, ReadError, UnsupportedError
from .location import WEB_SCHEMES, Location
from .requests import Patience, RetryError, persist, run

_OWN_OPTIONS = ("timeout", "retries", "whole", "headers", "cache", "cache_size")
"""The options that are not obstore's: ``timeout`` is in seconds without a byte, ``retries`` counts further attempts."""

_S3FS_NAMES = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
    "anon": "skip_signature",
}
"""Names that fsspec's S3 client uses, which users have in their configurations."""

_ENVIRONMENT = ("AWS_", "GOOGLE_", "AZURE_")
_MAX_CLIENTS = 64
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z.]{1,60})</Code>")
_PHRASES = (
    ("connection refused", "the connection was refused"),
    ("dns error", "the host name is not known"),
    ("failed to lookup", "the host name is not known"),
    ("certificate", "the server's certificate is not trusted"),
    ("timed out", "the server did not answer in time"),
    ("timeout", "the server did not answer in time"),
    ("connection reset", "the connection was reset"),
    ("broken pipe", "the connection was closed"),
    ("content-range", "the server sent another range than the one asked for"),
    ("requested range", "the server sent another range than the one asked for"),
    ("eof", "the connection was closed before the end of the answer"),
    ("incomplete", "the connection was closed before the end of the answer"),
    ("decoding response body", "the connection was closed before the end of the answer"),
)
_CLIENTS: dict[Any, Any] = {}


@dataclass(frozen=True, slots=True)
class Stamp:
    """What identifies the content of a remote file; ``tag`` is its ETag."""

    size: int
    tag: str | None
    modified: str | None

    def is_of(self, other: Stamp) -> bool:
        """Return whether two answers are about the same content; the time counts where there is no ETag."""
        return self.size == other.size and self.tag == other.tag and (self.tag is not None or self == other)

    @property
    def condition(self) -> str | None:
        """The ETag for If-Match; a weak one never matches there."""
        return None if self.tag is None or self.tag.startswith("W/") else self.tag


def stamp_of(meta: Mapping[str, Any]) -> Stamp:
    """Return the stamp of an object's metadata."""
    modified = meta.get("last_modified")
    return Stamp(int(meta["size"]), meta.get("e_tag"), None if modified is None else modified.isoformat())


def require_obstore() -> Any:
    """Import obstore; MissingDependencyError with what to install."""
    try:
        import obstore
        import obstore.store
    except ImportError:
        raise MissingDependencyError(
            "files in object stores and on web servers need the package obstore",
            hint="pip install 'burnstore[remote]'",
        ) from None
    return obstore


def patience_of(location: Location) -> Patience:
    """Return how long to wait for a location."""
    default = Patience()
    stall, retries = location.options.get("timeout", default.stall), location.options.get("retries")
    for name, value in (("timeout", stall), ("retries", 0 if retries is None else retries)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise ValueError(f"storage_options[{name!r}] must be a number of at least 0")
    return Patience(float(stall), default.attempts if retries is None else int(retries) + 1)


def client_for(location: Location, *, writing: bool = False) -> tuple[Any, str]:
    """Return a client for a location, and the key of its object.

    For ``writing`` obstore tries the parts of an upload again itself, and S3 compares the SHA-256 of each.
    """
    if location.scheme in WEB_SCHEMES:
        return web_client(location.url, location), ""
    key = location.key.rstrip("/")
    make = _writing_client if writing else _bucket_client
    return _cached(location, f"{location.scheme}://{location.authority}", make), key


def web_client(url: str, location: Location, headers: Mapping[str, str] | None = None) -> Any:
    """Return a client for one URL of a web server."""
    return _cached(location, url, _web_client, headers)


def _cached(location: Location, url: str, make: Any, headers: Mapping[str, str] | None = None) -> Any:
    environment = tuple(sorted(each for each in os.environ.items() if each[0].startswith(_ENVIRONMENT)))
    key = (
        os.getpid(),
        url,
        make.__name__,
        repr(sorted(location.options.items(), key=repr)),
        repr(headers),
        environment,
    )
    client = _CLIENTS.get(key)
    if client is None:
        if len(_CLIENTS) >= _MAX_CLIENTS:
            _CLIENTS.clear()
        client = _CLIENTS[key] = make(url, location, headers)
    return client


def _web_client(url: str, location: Location, headers: Mapping[str, str] | None) -> Any:
    store = require_obstore().store
    known = (*_OWN_OPTIONS, "client_options")
    unknown = [name for name in location.options if name not in known]
    if unknown:
        raise _unknown_option(location, unknown[0], ", ".join(_OWN_OPTIONS))
    bare, credentials = _without_credentials(url)
    own = {**credentials, **location.options.get("headers", {}), **(headers or {})}
    return _made(location, lambda options: store.HTTPStore.from_url(bare, **options), bare, own)


def _without_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without its user and password, and the header that states them instead."""
    from base64 import b64encode
    from urllib.parse import unquote, urlsplit, urlunsplit

    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    encoded = b64encode(unquote(user if ":" in user else f"{user}:").encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {encoded}"}


def _writing_client(url: str, location: Location, headers: Mapping[str, str] | None) -> Any:
    return _bucket_client(url, location, headers, writing=True)


def _bucket_client(url: str, location: Location, headers: Mapping[str, str] | None, *, writing: bool = False) -> Any:
    store = require_obstore().store
    config = {
        _S3FS_NAMES.get(name, name) if url.startswith("s3") else name: value
        for name, value in location.options.items()
        if name not in (*_OWN_OPTIONS, "client_options")
    }
    if url.startswith("s3"):
        if writing:
            config.setdefault("checksum_algorithm", "SHA256")
        provider = _boto_credentials(config)
        if provider is not None:
            config["credential_provider"] = provider
    # Environment variables are read by obstore; only whether the endpoint is encrypted must be known here.
    endpoint = config.get("endpoint") or config.get("aws_endpoint") or config.get("azure_endpoint")
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
    scheme = {"s3a": "s3", "gcs": "gs"}.get(location.scheme, location.scheme)
    base = f"{scheme}://{location.authority}"
    headers = location.options.get("headers", {})
    retries = patience_of(location).attempts - 1 if writing else 0
    return _made(location, lambda options: store.from_url(base, **config, **options), str(endpoint), headers, retries)


def s3_settings(location: Location) -> dict[str, Any]:
    """Return the options of an S3 location as boto3 names them; what is missing boto3 takes from the environment."""
    options = {_S3FS_NAMES.get(name, name).removeprefix("aws_"): value for name, value in location.options.items()}
    names = {
        "endpoint": "endpoint_url",
        "region": "region_name",
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
    }
    found = {theirs: options[ours] for ours, theirs in names.items() if options.get(ours)}
    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
    if endpoint:
        found.setdefault("endpoint_url", endpoint)
    return found


def _boto_credentials(config: Mapping[str, Any]) -> Any:
    """Return boto3's credentials (profiles, single sign-on) where neither options nor environment state any."""
    names = ("access_key_id", "aws_access_key_id", "skip_signature", "aws_skip_signature", "credential_provider")
    stated = any(config.get(name) for name in names) or any(
        os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE")
    )
    if stated:
        return None
    try:
        import boto3  # type: ignore[import-untyped]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    session = boto3.Session()
    if session.get_credentials() is None:
        return None
    return Boto3CredentialProvider(session)


def _made(location: Location, make: Any, endpoint: str, headers: Mapping[str, str], retries: int = 0) -> Any:
    patience = patience_of(location)
    client: dict[str, Any] = {
        "connect_timeout": f"{max(int(patience.stall * 1000), 1)}ms",
        "read_timeout": f"{max(int(patience.stall * 1000), 1)}ms",
        "timeout": "1h",  # `requests.persist` has the limits
        "pool_max_idle_per_host": "32",
    }
    if endpoint.lower().startswith("http://"):
        client["allow_http"] = True
    if headers:
        client["default_headers"] = dict(headers)
    client.update(location.options.get("client_options", {}))
    try:
        return make({"client_options": client, "retry_config": {"max_retries": retries}})
    except Exception as error:
        failure: Exception = _configuration_error(error, location)
    raise failure


def _configuration_error(error: Exception, location: Location) -> Exception:
    if type(error).__name__ == "UnknownConfigurationKeyError":
        names = [name for name in location.options if name not in (*_OWN_OPTIONS, "client_options")]
        quoted = [name for name in names if repr(name)[1:-1] in str(error)]
        return _unknown_option(location, (quoted or names or ["?"])[0], f"those of obstore, {', '.join(_OWN_OPTIONS)}")
    if isinstance(error, (TypeError, ValueError)):
        return ValueError(f"{location}: storage_options has a value of a type or form that is not supported")
    return ReadError(
        f"the client could not be set up{_missing(str(error))}",
        path=location,
        hint="set the account, region and credentials in the environment or in storage_options",
    )


def _missing(text: str) -> str:
    match = re.search(r"(?:Missing|missing) ([A-Za-z ]{3,40})", text)
    return f": the {match[1].strip()} is missing" if match else ""


def _unknown_option(location: Location, name: str, known: str) -> ValueError:
    return ValueError(f"{location}: unknown storage option {name!r}; known: {known}")


def failure_of(error: Exception, location: Location, *, opened: bool) -> Exception:
    """Return the error to raise, or a `RetryError` with it. ``opened``: the file existed when it was opened."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, FileNotFoundError) and opened:
        return ChangedError("the file was removed after it was opened", path=location, hint="open it again")
    if "NoSuchBucket" in text:
        return FileNotFoundError(2, "No such bucket", location)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(2, "No such file or directory", location)
    if kind in ("PreconditionError", "NotModifiedError"):
        return ChangedError("the file was replaced after it was opened", path=location, hint="open it again")
    if kind == "NotSupportedError" or "RangeNotSupported" in text:
        return UnsupportedError(
            "the server does not support range requests, so single tensors cannot be read",
            path=location,
            hint='pass storage_options={"whole": True} to download the file completely, or download it first',
        )
    status = _STATUS.search(text)
    number = int(status[1]) if status else 0
    code = _CODE.search(text)
    shown = f" ({code[1]})" if code else ""
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or number in (401, 403):
        return ReadError(
            f"access was denied{shown or (f' (status {number})' if number else '')}",
            path=location,
            hint="pass credentials in storage_options or in the environment; a signed URL may have expired",
        )
    if number == 416:
        return ChangedError("the file is shorter than when it was opened", path=location, hint="open it again")
    if "169.254.169.254" in text:
        return ReadError(
            "no credentials were found",
            path=location,
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass storage_options={'skip_signature': True}",
        )
    if 300 <= number < 500 and number not in (408, 425, 429):
        hint = "set the region of the bucket (AWS_REGION)" if number in (301, 307, 400) else None
        return ReadError(f"the server refused the request: status {number}{shown}", path=location, hint=hint)
    if number:
        return RetryError(ReadError(f"the server failed: status {number}{shown}", path=location))
    lower = text.lower()
    reason = next((said for phrase, said in _PHRASES if phrase in lower), "the request failed")
    return RetryError(ReadError(reason, path=location))


def list_folder(location: Location) -> list[tuple[str, Stamp]]:
    """Return the objects directly in a folder of an object store, sorted by name; none if the folder does not exist.

    Folders within it have names that end in a slash.
    """
    if not location.is_bucket:
        raise UnsupportedError(
            "a web server does not list folders", path=location, hint="open a file, or the index of its shards"
        )
    obstore = require_obstore()
    client, key = client_for(location)
    patience = patience_of(location)

    async def attempt() -> Any:
        try:
            return await obstore.list_with_delimiter_async(client, key or None)
        except Exception as error:
            failure = failure_of(error, location, opened=False)
        raise failure

    slow = ReadError("the server did not list the folder in time", path=location)
    try:
        listing = run(lambda: persist(attempt, patience, 0, slow))
    except FileNotFoundError:
        return []
    before = len(key) + 1 if key else 0
    found = [(meta["path"][before:], stamp_of(meta)) for meta in listing["objects"]]
    found += [(f"{prefix[before:].rstrip('/')}/", Stamp(0, None, None)) for prefix in listing["common_prefixes"]]
    return sorted(each for each in found if each[0] not in ("", "/"))
