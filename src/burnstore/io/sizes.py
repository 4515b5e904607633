"""Sizes and thread counts of all reads, writes and copies, chosen by measurement or by a limit of the system.

`parse_size` reads a size that a user states.
"""

from __future__ import annotations

import os
import re

IO_THREADS = min(4, os.cpu_count() or 1)
"""The threads that share one large read or copy (`burnstore.io.parallel`)."""

TASK_THREADS = min(8, os.cpu_count() or 1)
"""The threads that run the tasks of a job (`burnstore.io.workers`)."""

MAX_SUBMITTED = 256
"""The tasks that are submitted to a caller's executor at a time: enough for a large cluster, and soon cancelled."""

TASK_BYTES = 32 << 20
"""The bytes of a task: enough to pay for opening a file, few enough to distribute tasks evenly."""

SPARE_BYTES = 64 << 20
"""The memory that the tasks of a job may use together beyond the tensor that needs most."""

SYSCALL_BYTES = 16 << 20
"""The most that one system call moves: Ctrl-C is answered between two of them, and threads share them."""

PARALLEL_BYTES = 32 << 20
"""Below this, starting threads costs more than they save."""

CHUNK_BYTES = 8 << 20
"""The part of a tensor that a streaming copy holds at a time."""

SPOOL_BYTES = 8 << 20
"""Unpacked bytes beyond this go into a temporary file, so that inflating any file costs little memory."""

PAGE = 4096
"""The alignment of direct reads: no disk in use has larger sectors."""

GATHERED_BYTES = 256 << 10
"""Ranges below this are read together with their neighbours."""

SHARED_BITS = 23
"""Ranges that are read together share a buffer of at most ``1 << SHARED_BITS`` bytes."""

MAX_PADDING = 256
"""The most that formats put between two tensors: zeros, or the header of the next one."""

# Columns of a matrix, see `burnstore.io.runs`.
SHORT_ROW = 2 << 10
LONG_ROW = 128 << 10
RUNS_BAND_BYTES = 1 << 20  # what was read stays in the processor's cache until it is copied
RUNS_TASK_BYTES = 8 << 20

# Transfers to a GPU, see docs/decisions/0024.
GPU_READERS = 14
GPU_BUFFERS = 12
GPU_BUFFER_BYTES = 16 << 20
GPU_READ_BYTES = 4 << 20
"""A chunk is read by several threads, each this much: it arrives sooner, and is still in the processor's cache when
the GPU fetches it."""
GPU_SMALL_BYTES = 1 << 20
"""Tensors below this travel with their neighbours in the file."""
GPU_GAP_BYTES = 64 << 10
"""A gap between two ranges is read with them up to this size: a second read would cost more."""
GPU_STAGING_BYTES = 48 << 20
"""Device memory for staging."""
GPU_CAST_BYTES = 6 << 20
"""Device memory that a cast may use besides that of the values and of the target."""


_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``"5GB"`` (powers of 1000, as Hugging Face) or ``"2GiB"`` (of 1024).

    >>> parse_size("5GB"), parse_size("1.5 MiB"), parse_size("1000")
    (5000000000, 1572864, 1000)
    """
    match = _SIZE.fullmatch(text)
    unit = None if match is None else _UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size such as '5GB' or '500MiB'")
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
