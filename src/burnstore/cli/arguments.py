"""Arguments that several verbs take, under the same names and with the same words."""

from __future__ import annotations

import argparse
import re
import warnings


def add_json(parser: argparse.ArgumentParser) -> None:
    """``--json``: for programs."""
    parser.add_argument("--json", action="store_true", help="write one JSON document")


def add_filter(parser: argparse.ArgumentParser) -> None:
    """``--filter REGEX``: only some tensors."""
    parser.add_argument(
        "--filter", type=pattern, metavar="REGEX", help="only tensors in whose names this is found (Python's re)"
    )


def add_limit(parser: argparse.ArgumentParser) -> None:
    """``--limit N``: a shorter table."""
    parser.add_argument(
        "--limit", type=tensor_count, metavar="N", help="only the first N tensors (0: only the summary)"
    )


def add_overwrite(parser: argparse.ArgumentParser, what: str = "the file if it exists") -> None:
    """``--overwrite``: leave to replace."""
    parser.add_argument("--overwrite", action="store_true", help=f"replace {what}")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """``--quiet``: no progress."""
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """``--jobs N``: processes instead of threads."""
    parser.add_argument("--jobs", type=job_count, metavar="N", help="work in N processes (default: in threads)")


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression, or the reason why it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about patterns that a future Python may read otherwise
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def tensor_count(text: str) -> int:
    """A number of tensors, which may be 0."""
    return _whole(text, 0, "a number of tensors")


def module_depth(text: str) -> int:
    """A number of levels, which may be 0."""
    return _whole(text, 0, "a number of levels")


def job_count(text: str) -> int:
    """A number of processes, at least 1."""
    return _whole(text, 1, "a number of processes")


def byte_size(text: str) -> int:
    """A number of bytes, also as ``5GB``."""
    from ..formats.sharded.write import byte_count  # not at import: few verbs write shards

    try:
        return byte_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def key_and_text(text: str) -> tuple[str, str]:
    """A text beside the tensors, as ``KEY=TEXT``."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is no text for the file: write KEY=TEXT")
    return key, value


def _whole(text: str, least: int, what: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return number
