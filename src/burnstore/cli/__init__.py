"""The command line: one file per verb; the only part of the library that prints.

Every verb exits with 0 (ok), 1 (it worked and found something) or 2 (an error, printed on stderr). Two more follow the
shell's convention: 130 after Ctrl-C, 141 after a broken pipe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn, TextIO

_ERROR = 2
_INTERRUPTED = 128 + 2
_NO_READER = 128 + 13


def command() -> NoReturn:
    """Run the command line as a process; a Ctrl-C while the interpreter ends is ignored."""
    try:
        code = main()
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:  # in one of the few steps outside of main
        code = _INTERRUPTED
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    burnstore ...
    0
    """
    parsed: list[Any] = []
    try:
        # Names are escaped before they are printed; the rest fails only on terminals with few characters.
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):  # None, replaced by another object, or detached
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        if sys.stdout is None:
            return _fail("standard output is closed")
        code = _run(sys.argv[1:] if argv is None else argv, parsed)
        sys.stdout.flush()  # here, where a failure can be reported, not when the interpreter ends
        return code
    except BrokenPipeError:
        _silence(sys.stdout, sys.stderr)
        return _NO_READER
    except KeyboardInterrupt:
        return _interrupted(parsed)
    except OSError as error:  # The verbs handle errors of files, so this one is of stdout.
        _silence(sys.stdout)
        return _fail(f"cannot write the output: {error.strerror or error}")
    except Exception as error:
        return _report_bug(error)


def _run(argv: Sequence[str], parsed: list[Any]) -> int:
    from ..errors import BurnstoreError
    from .errors import fail, write_errors_as_json
    from .parser import build_parser

    write_errors_as_json("--json" in argv)
    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as end:  # after --help, --version or a usage error
        return end.code if isinstance(end.code, int) else _ERROR
    try:
        _name_remote_files(arguments)
    except (BurnstoreError, ValueError) as error:
        return fail(error, "")
    parsed.append(arguments)
    code: int = arguments.run(arguments)
    return code


def _name_remote_files(arguments: Any) -> None:
    """Replace the URLs among the arguments by locations, whose text has no secrets, before anything is printed."""
    for name, value in vars(arguments).items():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(each, str) and "://" in each for each in values):
            from ..io.paths import as_path  # not at import: few commands have a URL
            from ..io.remote.location import is_url

            named = [as_path(each) if isinstance(each, str) and is_url(each) else each for each in values]
            setattr(arguments, name, named if isinstance(value, list) else named[0])


def _interrupted(parsed: list[Any]) -> int:
    """Report after Ctrl-C what is left on the disk, if the verb writes files; another Ctrl-C is ignored meanwhile."""
    import signal

    before = None
    with suppress(ValueError, OSError):  # not in the main thread
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _silence(sys.stdout)
        describe = getattr(sys.modules.get(parsed[0].run.__module__), "interrupted", None) if parsed else None
        if describe is not None:
            with suppress(OSError, ValueError):
                print(f"burnstore: interrupted: {describe(parsed[0])}", file=sys.stderr)
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    return _INTERRUPTED


def _report_bug(error: Exception) -> int:
    """Print an unexpected exception on one line; only a developer wants its traceback."""
    import traceback

    if os.environ.get("BURNSTORE_TRACEBACK"):
        traceback.print_exc()
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}:{place.lineno}"
    hint = "report this line as a bug in burnstore; BURNSTORE_TRACEBACK=1 adds the traceback"
    return _fail(f"internal error: {type(error).__name__}: {error} ({where}); hint: {hint}")


def _fail(message: str) -> int:
    from ..errors import redact
    from .errors import print_json_error
    from .text import escape_controls

    message = redact(message)
    with suppress(OSError, ValueError):
        print_json_error({"kind": "Error", "message": message})
        print(f"burnstore: error: {escape_controls(message)}", file=sys.stderr)
    return _ERROR


def _silence(*streams: TextIO | None) -> None:
    """Discard buffered output, or the interpreter prints an error when it ends."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in streams:
            with suppress(OSError, ValueError, AttributeError):
                os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
