"""The command line: one file per verb; the only part of the library that prints.

Every verb ends with 0 (fine), 1 (it did its work and found something) or 2 (an error, told of on stderr). Two more
follow the shell's custom: 130 after Ctrl-C, 141 when the reader of the output went away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

FINE = 0
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
        # Names are escaped before they are printed; what is left fails only where the terminal knows few characters.
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError):  # None, or replaced by something simpler, or detached
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        if sys.stdout is None:
            return _complain("standard output is closed")
        code = _run(argv)
        sys.stdout.flush()  # here, where a failure can be told of, not when the interpreter ends
        return code
    except BrokenPipeError:
        _silence(sys.stdout, sys.stderr)
        return _NO_READER
    except KeyboardInterrupt:
        _silence(sys.stdout)
        return _INTERRUPTED
    except OSError as error:  # those of files are dealt with where the file is known: this one is of stdout
        _silence(sys.stdout)
        return _complain(f"the output could not be written: {error.strerror or error}")
    except Exception:
        import traceback

        traceback.print_exc()
        return _complain("this is a bug in burnstore; please report it with the lines above")


def _run(argv: Sequence[str] | None) -> int:
    from .parser import build_parser

    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as end:  # after --help, --version or a usage error
        return end.code if isinstance(end.code, int) else ERROR
    code: int = arguments.run(arguments)
    return code


def _complain(message: str) -> int:
    with suppress(OSError, ValueError):
        print(f"burnstore: error: {message}", file=sys.stderr)
    return ERROR


def _silence(*streams: TextIO | None) -> None:
    """Let what is still buffered go nowhere, or the interpreter complains when it ends."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in streams:
            with suppress(OSError, ValueError, AttributeError):
                os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
