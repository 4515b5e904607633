"""Every error that burnstore raises, in one tree.

    BurnstoreError
    ├── FormatError (ValueError)            a file breaks a rule of its format
    │   ├── UnknownFormatError              no format claims these bytes
    │   ├── TruncatedError                  the file ends before the end that its header states
    │   ├── CorruptError                    the file contradicts itself or its format
    │   ├── UnsupportedError                valid, but of a version or kind that burnstore does not read
    │   └── LimitError                      larger than the caller's Limits allow
    ├── UnsafeContentError (ValueError)     content that would run code or reach a path outside its folder
    ├── TensorNotFoundError (KeyError)      no tensor of that name
    ├── DTypeError (TypeError)              a format, framework or cast does not support this dtype or its values
    ├── DuplicateNameError (ValueError)     two tensors claim one name
    ├── PatternError (ValueError)           a regular expression or a replacement text is invalid
    ├── ModelError (ValueError)             a model cannot be walked, or cannot take a value
    │   └── AmbiguousError                  names and shapes fit several module kinds; ``guess`` has the evidence
    ├── LoadError (ValueError)              tensors did not fit the model; ``result`` has the report
    │   └── MissingTensorsError             parameters found no tensor
    ├── MergeError (ValueError)             files disagree, and no option selects one
    ├── ConfigError (ValueError)            a configuration does not match the requested type
    ├── DeviceError (RuntimeError)          a GPU or other device failed or has no memory left
    ├── ReadError (OSError)                 the operating system failed a read
    │   └── ChangedError                    the file was changed in place while it was open
    ├── SaveError (OSError)                 a save failed at a ``stage``; the old file is intact
    │   └── AlreadyExistsError (FileExistsError)   the destination exists already
    ├── ClosedError (ValueError)            the checkpoint was closed
    └── MissingDependencyError (ImportError)       an optional package is needed; the hint names it

A missing file stays the builtin ``FileNotFoundError``. Errors have the attributes ``path`` (the file), ``tensor`` (the
name inside it), ``offset`` (the byte), ``rule`` (the number in the format's documentation) and ``hint`` (what to do).
The layer that knows a fact attaches it with `located`; lower layers raise without it. All errors are picklable.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_PACKAGE = os.path.dirname(__file__) + os.sep
_FACTS = ("path", "tensor", "offset", "rule", "hint")
_LONGEST_NAME_SHOWN = 200
_SECRET = "***"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s'\"<>]*")
_URL_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://([^/?#]*)(.*)", re.DOTALL)


class BurnstoreWarning(UserWarning):
    """A note of a function whose result has no place for notes, such as `burnstore.serialize`."""


class BurnstoreError(Exception):
    """The root of the tree: every error of burnstore's own.

    >>> error = BurnstoreError("the header ends early", path="model.bpk", offset=10, rule="BP-03")
    >>> print(error)
    model.bpk: the header ends early [BP-03, at byte 10]
    """

    path: str | None
    tensor: str | None
    offset: int | None
    rule: str | None
    hint: str | None

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        tensor: str | None = None,
        offset: int | None = None,
        rule: str | None = None,
        hint: str | None = None,
    ) -> None:
        message = redact(message)
        super().__init__(message)
        self.message = message
        self.path = None if path is None else redact(path)
        self.tensor = tensor
        self.offset = offset
        self.rule = rule
        self.hint = None if hint is None else redact(hint)

    def __str__(self) -> str:
        subject = ""
        if self.path is not None:
            subject += f"{printable(self.path)}: "
        if self.tensor is not None:
            subject += f"tensor '{printable(self.tensor)}': "
        place = [self.rule] if self.rule is not None else []
        if self.offset is not None:
            place.append(f"at byte {self.offset}")
        where = f" [{', '.join(place)}]" if place else ""
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{subject}{self.message}{where}{hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        facts = dict(self.__dict__)
        # OSError and ImportError keep some of these outside of __dict__.
        facts.update({name: getattr(self, name) for name in _FACTS})
        if isinstance(self, OSError):
            facts["errno"] = self.errno
        return _rebuild, (type(self), self.message, facts, self.__cause__)


def _rebuild(
    kind: type[BurnstoreError], message: str, facts: dict[str, Any], cause: BaseException | None
) -> BurnstoreError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    for name, value in facts.items():
        setattr(error, name, value)
    error.__cause__ = cause
    return error


class located:  # noqa: N801  # used as a verb: with located(path=...)
    """Attach facts (``path=``, ``tensor=``, ...) to any burnstore error that passes through; earlier facts are kept.

    A class, because it surrounds the read of every tensor and a generator would cost four times as much.
    """

    __slots__ = ("_facts",)

    def __init__(
        self,
        *,
        path: str | None = None,
        tensor: str | None = None,
        offset: int | None = None,
        rule: str | None = None,
        hint: str | None = None,
    ) -> None:
        self._facts = (path, tensor, offset, rule, hint)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, BurnstoreError):
            for fact, value in zip(_FACTS, self._facts, strict=True):
                if value is not None and getattr(error, fact) is None:
                    setattr(error, fact, redact(value) if isinstance(value, str) else value)


def expect(value: Any, kind: type[T], name: str) -> T:
    """Return the value if it is of this type, otherwise raise TypeError; a bool is not an int.

    >>> expect("no", int, "rank")
    Traceback (most recent call last):
    TypeError: rank must be an int, got str
    """
    if isinstance(value, kind) and (kind is not int or not isinstance(value, bool)):
        return value
    article = "an" if kind.__name__[0].lower() in "aeiou" else "a"
    raise TypeError(f"{name} must be {article} {kind.__name__}, got {type(value).__name__}")


def redact(text: str) -> str:
    """Return text without the secrets of the URLs in it: passwords, and the values of queries, which may be signed.

    Every name of a remote file is made by this function, and every error passes its texts through it.

    >>> redact("https://me:secret@host/model.bpk?X-Amz-Signature=abc: not found")
    'https://***@host/model.bpk?***: not found'
    """
    return _URL.sub(lambda match: redact_url(match[0]), text) if "://" in text else text


def redact_url(url: str) -> str:
    """Return one URL without its secrets; spaces and quotes do not end it.

    >>> redact_url("s3://key:secret@bucket/a b"), redact_url("abfs://files@account.dfs.core.windows.net/a")
    ('s3://***@bucket/a b', 'abfs://files@account.dfs.core.windows.net/a')
    """
    parts = _URL_PARTS.fullmatch(url)
    if parts is None:
        return url
    scheme, authority, rest = parts[1], parts[2], parts[3]
    user, at, host = authority.rpartition("@")
    if at and (":" in user or not scheme.lower().startswith("abfs")):
        authority = f"{_SECRET}@{host}"
    elif "@" in rest and ":" in authority and not authority.startswith("[") and not authority.split(":")[1].isdigit():
        authority, rest = f"{_SECRET}@", rest.rpartition("@")[2]  # a password with an unescaped slash
    place = min((at for at in (rest.find("?"), rest.find("#")) if at >= 0), default=len(rest))
    secret = rest[place + 1 :]
    if "=" in secret or (secret and scheme.lower() in ("http", "https")):
        rest = rest[: place + 1] + _SECRET + (":" if secret.endswith(":") else "")
    return f"{scheme}://{authority}{rest}"


def printable(text: str, most: int = _LONGEST_NAME_SHOWN) -> str:
    """Return text from a file, safe to print: control and format characters escaped, very long text shortened.

    The secrets of URLs are left out.
    """
    text = redact(text)
    if len(text) > most:
        text = f"{text[: most - 40]}…({len(text)} characters)…{text[-20:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called burnstore, however many of its own functions are in between."""
    frame, level = sys._getframe(1), 3
    while frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun.

    >>> counted(1, "tensor"), counted(2000, "tensor"), counted(2, "tensor does not fit", "tensors do not fit")
    ('1 tensor', '2,000 tensors', '2 tensors do not fit')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def quoted(pattern: str) -> str:
    """Return a pattern or rule as it was typed, in quotes that a shell takes.

    >>> print(quoted(r"^encoder\\."), quoted("it's"))
    '^encoder\\.' 'it'\\''s'
    """
    return "'" + printable(pattern).replace("'", "'\\''") + "'"


class FormatError(BurnstoreError, ValueError):
    """A file breaks a rule of its format."""


class UnknownFormatError(FormatError):
    """No known format claims these bytes."""


class TruncatedError(FormatError):
    """The file ends before the end that its header states."""


class CorruptError(FormatError):
    """The file contradicts itself or its format."""


class UnsupportedError(FormatError):
    """The file is valid, but of a version or kind that burnstore does not read."""


class LimitError(FormatError):
    """The file asks for more than the caller's `Limits` allow."""


class UnsafeContentError(BurnstoreError, ValueError):
    """The file would run code, or names a path outside its own folder."""


class TensorNotFoundError(BurnstoreError, KeyError):
    """There is no tensor of that name."""


class DTypeError(BurnstoreError, TypeError):
    """A format, framework or cast does not support this dtype or its values."""


class DuplicateNameError(BurnstoreError, ValueError):
    """Two tensors claim one name."""


class PatternError(BurnstoreError, ValueError):
    """A regular expression or a replacement text is invalid."""


class ModelError(BurnstoreError, ValueError):
    """A model cannot be walked, or cannot take a value."""


class AmbiguousError(ModelError):
    """Names and shapes do not determine the kind of some modules; ``guess`` has the evidence for all of them."""

    guess: Any

    def __init__(self, message: str, *, guess: Any = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.guess = guess


class LoadError(BurnstoreError, ValueError):
    """Tensors did not fit the model, which is unchanged unless the message states that it is partly loaded.

    ``result`` is the `ApplyResult` with every case.
    """

    result: Any

    def __init__(self, message: str, *, result: Any = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.result = result


class MissingTensorsError(LoadError):
    """Parameters of the model found no tensor, and ``allow_partial`` was not given."""


class MergeError(BurnstoreError, ValueError):
    """The files to merge disagree, and no option selects one."""


class ConfigError(BurnstoreError, ValueError):
    """A configuration does not match the requested type; ``problems`` has every case with its place."""

    problems: tuple[str, ...]

    def __init__(self, message: str, *, problems: Iterable[str] = (), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.problems = tuple(problems)


class DeviceError(BurnstoreError, RuntimeError):
    """A device failed or has no memory left; torch's error is the cause."""


class ReadError(BurnstoreError, OSError):
    """The operating system failed a read."""


class ChangedError(ReadError):
    """The file was changed in place while it was open."""


class SaveError(BurnstoreError, OSError):
    """A save failed. ``stage`` names the step; unless it is ``"published"``, the destination is unchanged."""

    stage: str

    def __init__(self, message: str, *, stage: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.stage = stage


class AlreadyExistsError(SaveError, FileExistsError):
    """The destination exists already and ``overwrite=True`` was not given."""


class ClosedError(BurnstoreError, ValueError):
    """The checkpoint, or the source behind a snapshot, was closed."""


class MissingDependencyError(BurnstoreError, ImportError):
    """An optional package is needed for this; the hint names it."""


UNREPRESENTABLE = (DTypeError, UnsupportedError, MissingDependencyError)
"""The errors for values of a valid file that NumPy or torch cannot represent."""


class Ways(str):
    """A hint of alternatives, of which an entry point shows those whose options it has, see `spell_options`.

    >>> Ways("like= a model", "guess=True", "keep_layout=True to copy names unchanged")
    'pass like= a model, guess=True, or keep_layout=True to copy names unchanged'
    """

    ways: tuple[str, ...]
    lead: str
    tail: str
    shows_one: bool

    def __new__(cls, *ways: str, lead: str = "pass ", tail: str = "", shows_one: bool = False) -> Ways:
        """Join the alternatives, or show the first alone, after ``lead`` and before ``tail``."""
        shown = ways[:1] if shows_one else ways
        listed = ", ".join(shown[:-1]) + (" or " if lead and len(shown) == 2 else ", or ") if len(shown) > 1 else ""
        hint = super().__new__(cls, (f"{lead}{listed}{shown[-1]}" if shown else "") + tail)
        hint.ways, hint.lead, hint.tail, hint.shows_one = ways, lead, tail, shows_one
        return hint

    def __reduce__(self) -> tuple[Any, ...]:
        return _ways, (self.ways, self.lead, self.tail, self.shows_one)


def _ways(ways: tuple[str, ...], lead: str, tail: str, shows_one: bool) -> Ways:
    return Ways(*ways, lead=lead, tail=tail, shows_one=shows_one)


def add_hint(first: str | None, more: str) -> str:
    """Return two hints as one."""
    if isinstance(first, Ways):
        return Ways(*first.ways, lead=first.lead, tail=f"{first.tail}; {more}", shows_one=first.shows_one)
    return f"{first}; {more}" if first else more


Spell = Callable[[str, str], "str | None"]
"""Return how an entry point spells an option and its value; None if it has no such option."""

_LIST = r"""\[r?'(?:[^'\\]|\\.)*'\]|\[[^\]]*\]"""
_VALUE = rf"""(?:True|False|None)\b|"[^"]*"|'[^']*'|\{{[^}}]*\}}|{_LIST}|\.\.\.|[A-Z][\w.]*\([^)]*\)|(?=[\s,;.)]|$)"""
_CALL_OR_OPTION = rf"(?P<call>[\w.]+\((?:[^()]|\([^()]*\))*\))|\b(?P<option>[a-z][a-z_]*)=(?P<value>{_VALUE})"
"""Matches a whole call, which names its function and stays unchanged, or an option with its value."""


def spell_options(hint: str, spell: Spell) -> str | None:
    """Return a hint as an entry point spells its options; ways that need an option it lacks are left out.

    The options of a whole call (``burnstore.open(path, salvage=True)``) are that function's, and stay unchanged. None
    if no way is left. A hint that is not `Ways` keeps an option that the entry point lacks.

    >>> spell_options(Ways("layout=\\"burn\\"", "guess=True"), lambda option, value: f".{option}({value})")
    'pass .layout("burn") or .guess(True)'
    >>> ways = Ways("like= a model", "guess=True")
    >>> spell_options(ways, lambda option, value: "--guess" if option == "guess" else None)
    'pass --guess'
    """
    import re  # not at import: most programs print no hint

    lacked: list[str] = []

    def spelled(text: str) -> str:
        def replaced(match: re.Match[str]) -> str:
            if match["call"]:
                return match[0]
            word = spell(match["option"], match["value"])
            if word is None:
                lacked.append(match["option"])
            return match[0] if word is None else word

        return re.sub(_CALL_OR_OPTION, replaced, text)

    if not isinstance(hint, Ways):
        return spelled(hint)
    kept = []
    for way in hint.ways:
        lacked.clear()
        text = spelled(way)
        if not lacked:
            kept.append(text)
    tail = spelled(hint.tail) if kept else spelled(hint.tail.removeprefix("; "))
    return Ways(*kept, lead=hint.lead, tail=tail, shows_one=hint.shows_one) if kept or tail else None


_SYNONYMS = {"save": {"keep_layout": 'layout="torch"'}, "serialize": {"keep_layout": 'layout="torch"'}}
"""Options under other names in some entry points; all of these hints are about models of PyTorch."""

_IN_PIPELINE = ("indices", "indices_except", "on_collision", "skip_enum_variants")
"""Options that functions take only in ``pipeline=``."""


def entry_point(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a public function: spell the hints of its errors with its own options, and explain unknown keywords."""
    from inspect import signature

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            try:
                return function(*arguments, **options)
            except BurnstoreError as error:
                if error.hint is not None:
                    error.hint = spell_options(error.hint, _keywords_of(name, function))
                raise
            except TypeError as error:
                stream = next((each for each in (*arguments, *options.values()) if hasattr(each, "read")), None)
                if stream is not None and str(error).endswith(type(stream).__name__):
                    raise TypeError(f"{error}; write it to a file first, or pass its bytes to burnstore.open") from None
                if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # the call itself failed
                    known = signature(function).parameters
                    refuse_unknown(name, [option for option in options if option not in known], function)
                raise

        return call

    return decorate


def _keywords_of(name: str, function: Callable[..., Any]) -> Spell:
    """Return how a function spells options: as its keywords."""
    from inspect import signature

    known, synonyms = signature(function).parameters, _SYNONYMS.get(name, {})

    def spell(option: str, value: str) -> str | None:
        if option in _IN_PIPELINE and "pipeline" in known:
            return f"pipeline=Pipeline({option}={value})"
        return synonyms.get(option) if option in synonyms or option not in known else f"{option}={value}"

    return spell


_OTHER_WORDS = {
    "strict": "it is an option of load: strict=True refuses unused tensors; allow_partial=True tolerates missing ones",
    "map_location": 'device="cuda" is for meta models; burnstore.open(...).torch(device="cuda") places all of a file',
    "weights_only": "leave it out: nothing in a file is ever run, so every load is of weights only",
    "pickle_module": "leave it out: nothing in a file is ever run",
    "mmap": "zero_copy=True maps the file",
    "assign": "zero_copy=True lets the model share memory with the file",
    "dtype": 'cast="bf16" converts floats',
    "torch_dtype": 'cast="bf16" converts floats',
    "framework": "a snapshot has numpy() and torch(), an open file as well",
    "key_mapping": "rename= takes a mapping of names, or patterns",
    "prefix": 'rename=["^prefix[.]=>"] strips a prefix',
    "ignore_mismatched_sizes": "validate=False reports tensors that do not fit instead of refusing them",
    "safe_serialization": 'leave it out: the suffix decides the format, such as ".safetensors"',
    "state_dict": "the first argument is the model, or a mapping of names to tensors",
    "like": "like= is for burnstore.convert, merge, diff and explain",
}
"""Keywords of other libraries, and what to use instead."""


def refuse_unknown(
    name: str, given: Iterable[str], function: Callable[..., Any], of_format: Callable[..., Any] | None = None
) -> None:
    """Raise TypeError for a keyword that neither a function nor a format has, with our word for it or a similar one.

    >>> refuse_unknown("open", ["mmap"], open)
    Traceback (most recent call last):
    TypeError: open has no option 'mmap'; zero_copy=True maps the file
    """
    options = list(given)
    if not options:
        return
    from difflib import get_close_matches  # not at import: few calls have further options
    from inspect import Parameter, signature

    own = signature(of_format).parameters if of_format is not None else {}
    for option in options:
        if option in own or any(each.kind is Parameter.VAR_KEYWORD for each in own.values()):
            continue
        known = [*own, *signature(function).parameters]
        similar = get_close_matches(option, known, 1)
        meant = _OTHER_WORDS.get(option) or (similar and f"did you mean {similar[0]!r}?")
        meant = "it is for files of another format" if option in known else meant
        raise TypeError(f"{name} has no option {option!r}{f'; {meant}' if meant else ''}") from None
