"""The command line: one file per verb; the only part of the library that prints.

Every verb exits with 0 (ok), 1 (it worked and found something) or 2 (an error, printed on stderr). Two more follow the
shell's convention: 130 after Ctrl-C, 141 after a broken pipe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

OK = 0
FOUND = 1
ERROR = 2
_INTERRUPTED = 128 + 2
_NO_READER = 128 + 13


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    burnstore ...
    0
    """
    try:
        # Names are escaped before they are printed; the rest fails only on terminals with few characters.
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):  # None, replaced by another object, or detached
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        if sys.stdout is None:
            return _fail("standard output is closed")
        code = _run(argv)
        sys.stdout.flush()  # here, where a failure can be reported, not when the interpreter ends
        return code
    except BrokenPipeError:
        _silence(sys.stdout, sys.stderr)
        return _NO_READER
    except KeyboardInterrupt:
        _silence(sys.stdout)
        return _INTERRUPTED
    except OSError as error:  # The verbs handle errors of files, so this one is of stdout.
        _silence(sys.stdout)
        return _fail(f"cannot write the output: {error.strerror or error}")
    except Exception:
        import traceback

        traceback.print_exc()
        return _fail("this is a bug in burnstore; please report it with the lines above")


def _run(argv: Sequence[str] | None) -> int:
    from .parser import build_parser

    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as end:  # after --help, --version or a usage error
        return end.code if isinstance(end.code, int) else ERROR
    code: int = arguments.run(arguments)
    return code


def _fail(message: str) -> int:
    with suppress(OSError, ValueError):
        print(f"burnstore: error: {message}", file=sys.stderr)
    return ERROR


def _silence(*streams: TextIO | None) -> None:
    """Discard buffered output, or the interpreter prints an error when it ends."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in streams:
            with suppress(OSError, ValueError, AttributeError):
                os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
