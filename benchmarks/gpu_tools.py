"""What the benchmark of GPUs measures with: the bus, the page cache, a file without it, and whether bits are equal."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import burnstore as bs
from burnstore.io.gpu.buffers import transfer_settings

_WINDOW = 16 << 20
_READ = 4 << 20


def bus(device: str) -> tuple[float, float]:
    """Bytes per second of large copies from pinned memory to the device, and back."""
    cuda = torch.device(device).type == "cuda"
    size = 256 << 20 if cuda else 16 << 20
    host = torch.empty(size, dtype=torch.uint8, pin_memory=cuda)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    speeds = []
    for target, source in ((there, host), (host, there)):
        best = 0.0
        for _ in range(5):
            if cuda:
                torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(8):
                target.copy_(source, non_blocking=True)
            if cuda:
                torch.cuda.synchronize()
            best = max(best, 8 * size / (time.perf_counter() - begun))
        speeds.append(best)
    return speeds[0], speeds[1]


def reading(path: Path) -> float:
    """Bytes per second that the readers' number of threads take out of the page cache, into a buffer each."""
    return path.stat().st_size / min(read_alone(path, os.O_RDONLY) for _ in range(3))


def read_alone(path: Path, flags: int) -> float:
    """Seconds in which the readers' number of threads read a file, and do nothing with it."""
    readers = transfer_settings().readers
    end = path.stat().st_size
    buffers = [mmap.mmap(-1, _READ) for _ in range(readers)]
    descriptor = os.open(path, flags)

    def read(number: int) -> None:
        for offset in range(number * _READ, end, readers * _READ):
            os.preadv(descriptor, [buffers[number]], offset)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(readers)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    os.close(descriptor)
    return seconds


def processor_time() -> tuple[int, int]:
    """How much time of the processors was kept by the host of this machine since it runs, and how much there was.

    What is kept is zero where nobody tells.
    """
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return 0, 1
    columns = [int(number) for number in first.split()[1:9]]
    return columns[7], sum(columns)


def first_load(who: str, path: str, device: str) -> float:
    """Seconds that a file takes onto the device, where nothing was pinned or allocated before."""
    torch.empty(1, device=device)
    begun = time.perf_counter()
    if who == "burnstore":
        with bs.open(path) as file:
            found = file.torch(device=device)
    else:
        found = load_file(path, device=device)
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    if not found:
        raise AssertionError("nothing was loaded")
    return seconds


def drop_from_cache(path: Path) -> None:
    """Have the page cache forget a file; AssertionError if more than a hundredth of it stays."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if (share := cached_share(path)) > 0.01:
        raise AssertionError(f"{share:.1%} of {path} stayed in the page cache")


def fill_cache(path: Path) -> None:
    """Bring a file into the page cache; AssertionError if less than 99.9 % of it is there afterwards."""
    for _ in range(3):
        with open(path, "rb", buffering=0) as file:
            buffer = bytearray(_WINDOW)
            while file.readinto(buffer):
                pass
        if cached_share(path) > 0.999:
            return
    raise AssertionError(f"only {cached_share(path):.1%} of {path} is in the page cache")


def cached_share(path: Path) -> float:
    """Return which share of a file's pages is in the page cache, as mincore(2) states it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap failed")
        try:
            found = ctypes.create_string_buffer(pages)
            if libc.mincore(address, size, found):
                raise OSError(ctypes.get_errno(), "mincore failed")
            return sum(value & 1 for value in found.raw) / pages
        finally:
            libc.munmap(address, size)
    finally:
        os.close(descriptor)


def write_raw(host: Any, path: Path, *, sync: bool) -> None:
    """Write memory of the host into a new file, and nothing else."""
    rest = memoryview(host.numpy())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    while rest:
        rest = rest[os.write(descriptor, rest[:_WINDOW]) :]
    if sync:
        os.fsync(descriptor)
    os.close(descriptor)


def check(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise AssertionError if these are not the same tensors, bit by bit."""
    if found.keys() != wanted.keys():
        raise AssertionError("the names differ")
    for name, tensor in wanted.items():
        other = found[name]
        if other.dtype is not tensor.dtype or other.shape != tensor.shape:
            raise AssertionError(f"{name}: {other.dtype} {list(other.shape)}")
        if not torch.equal(other.contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8)):
            raise AssertionError(f"{name}: the bits differ")


def status(name: str) -> int:
    """A figure of this process's memory, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


def mb(nbytes: int) -> str:
    """Bytes as megabytes."""
    return f"{nbytes / 1e6:.1f} MB"
