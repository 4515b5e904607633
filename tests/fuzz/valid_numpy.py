"""Random files that NumPy itself writes: each must open here, with the same contents.

    python -m tests.fuzz.valid_numpy --files 20000 --seed 1

Files of `np.save`, `np.savez`, `np.savez_compressed` and of ``write_array`` with each version of the header: arrays of
every dtype and byte order, of C order, Fortran order and any strides, without elements, without axes, of zeros, names
of any characters, also such as differ in case only. What NumPy reads without a pickle is compared bit for bit; what it
reads only with one (objects), and what has no dtype here (strings, records, dates, floats of 16 bytes), is left out of
a ``.npz`` with a note that names it, and refused in a ``.npy``.
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from numpy.lib import format as npy

import burnstore as bs

Array = Any
NUMBERS = [
    "?",
    "i1",
    "u1",
    *(
        f"{order}{code}"
        for order in "<>"
        for code in ("i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
    ),
]
OTHERS = ["O", "U3", "S3", "S0", "V5", "M8[s]", "m8[D]", "g", "G", "i4,f4", "U0"]
LETTERS = [*"aAzZ09._/\\: -'\"$%{}[]", "\n", "\x1f", "\x7f", "é", "重", "🔥", "..", "../", "file", "arr_0", ".npy"]


def name_of(random: Random) -> str:
    if random.random() < 0.02:
        return random.choice("ab") * random.choice((200, 255, 256, 5000, 60_000))
    return "".join(random.choice(LETTERS) for _ in range(random.randrange(8)))


def array_of(random: Random) -> Array:
    rank = random.choice((0, 1, 1, 2, 2, 3, 4, 8, 20))
    shape = tuple(random.choice((1, 1, 2) if rank > 4 else (0, 1, 2, 3, 5, 8)) for _ in range(rank))
    if random.random() < 0.06:
        shape = random.choice(((1000,), (300, 500), (100_000,)))
    if random.random() < 0.08:
        return np.zeros(shape, random.choice(OTHERS))
    dtype = np.dtype(random.choice(NUMBERS))
    count = int(np.prod(shape, dtype=np.int64))
    if random.random() < 0.3:
        made = np.full(shape, random.choice((0, 1)), dtype)
    else:
        raw = (
            bytes(random.randrange(2) for _ in range(count))
            if dtype.kind == "b"
            else random.randbytes(count * dtype.itemsize)
        )
        made = np.frombuffer(raw, dtype).reshape(shape)
    way = random.randrange(6)
    if way == 0:
        return np.asfortranarray(made)
    if way == 1 and made.ndim:
        return made[::-1]
    if way == 2:
        return made.T
    if way == 3 and made.ndim > 1:
        return np.moveaxis(made, 0, -1)
    return made


def with_versions(random: Random, arrays: dict[str, Array], file: Any) -> None:
    """Write a zip as other programs do: each version of the header, stored or deflated at any level, zip64 or not."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            allow = array.dtype.hasobject
            npy.write_array(member, array, version=random.choice(((1, 0), (2, 0), (3, 0), None)), allow_pickle=allow)
            method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            archive.writestr(f"{name}.npy", member.getvalue(), method, random.choice((None, 1, 9)))


def zip_of(random: Random, save: Callable[..., None]) -> tuple[bytes, dict[str, Array]]:
    names = dict.fromkeys(name_of(random) for _ in range(random.randrange(7)))
    # A name of "file" is the parameter of savez; NumPy cuts names at a zero byte, and zip at 65,535 bytes.
    arrays = {name: array_of(random) for name in names if name != "file"}
    raw = io.BytesIO()
    save(raw, **arrays)
    return raw.getvalue(), arrays


def made(random: Random) -> tuple[str, bytes, dict[str, Array]]:
    """Return the way, the bytes of a file and the arrays in it."""
    way = random.choice(("npy", "savez", "savez", "savez_compressed", "savez_compressed", "versions"))
    if way == "npy":
        array, raw = array_of(random), io.BytesIO()
        npy.write_array(raw, np.asanyarray(array), version=random.choice(((1, 0), (2, 0), (3, 0), None)))
        return way, raw.getvalue(), {"array": array}
    if way == "versions":
        return way, *zip_of(random, lambda raw, **arrays: with_versions(random, arrays, raw))
    return way, *zip_of(random, np.savez if way == "savez" else np.savez_compressed)


def is_number(array: Array) -> bool:
    kind = array.dtype.kind
    return kind in "biu" or (kind == "f" and array.dtype.itemsize <= 8) or (kind == "c" and array.dtype.itemsize <= 16)


def judge(data: bytes, arrays: dict[str, Array]) -> str | None:
    """Return what is wrong with burnstore's reading of a file; None if it is right."""
    numbers = {name: array for name, array in arrays.items() if is_number(array)}
    try:
        file = bs.open(data)
    except bs.errors.UnsupportedError as error:
        return None if not numbers and list(arrays) == ["array"] else f"refused: {error}"
    except Exception as error:
        return f"refused: {type(error).__name__}: {error}"
    with file:
        if sorted(file) != sorted(numbers):
            return f"names differ: {sorted(file)} and {sorted(numbers)}"
        if len(file.notes) != len(arrays) - len(numbers) or not all(
            note.startswith("left out: ") for note in file.notes
        ):
            return f"{len(arrays) - len(numbers)} arrays are left out, the notes are {file.notes}"
        for name, array in numbers.items():
            wanted = array.astype(array.dtype.newbyteorder("<"), order="C")
            try:
                read = file[name].numpy()
            except Exception as error:
                return f"{array.dtype.str} {array.shape}: {type(error).__name__}: {error}"
            if read.shape != array.shape or read.dtype != wanted.dtype or read.tobytes() != wanted.tobytes():
                return f"the values of {name!r} differ"
    return None


def run(files: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return how many files of each way were compared, and what was wrong."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(files):
        random = Random(f"{seed}:{number}")
        way, data, arrays = made(random)
        counts[way] += 1
        problem = judge(data, arrays)
        if problem is not None:
            wrong.append(f"seed {seed}, file {number} ({way}): {problem}")
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    counts, wrong = run(arguments.files, arguments.seed)
    print(f"{sum(counts.values()):,} valid files: {dict(counts)}; {len(wrong)} wrong")
    for line in wrong[:20]:
        print(line)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
