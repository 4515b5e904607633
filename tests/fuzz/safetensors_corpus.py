"""SafeTensors files and their mutants: odd numbers by structure, even ones by bytes; each follows from its number."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from . import mutate

_BY_BITS = {
    4: ("F4",),
    6: ("F6_E2M3", "F6_E3M2"),
    8: ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
    16: ("I16", "U16", "F16", "BF16"),
    32: ("I32", "U32", "F32"),
    64: ("C64", "F64", "I64", "U64"),
}
DTYPES = {dtype: bits for bits, dtypes in _BY_BITS.items() for dtype in dtypes}

_INDEX_BITS = 48
_NAMES = ("a", "b", "encoder.layers.0.weight", "größe", "🔥", "", "x" * 70, "a b", "__metadata__x", "\x7f")
_EXTENTS = (0, 1, 1, 2, 3, 4, 5, 8)
# Raw JSON that stands where something else should.
_VALUES = (
    *("null", "true", "false", "0", "-0", "-1", "1.0", "4e0", "1e999", "NaN", "Infinity", "04", "+4", '""', '"4"'),
    *("[]", "{}", "[0]", "[0,0,0]", '{"F32":null}', '["U8",[4],[0,4]]', "9" * 400, '"\\ud800"', "[" * 20 + "]" * 20),
    *("[" * 130 + "]" * 130, '"F32"', '"f32"', '"\\u0046\\u0033\\u0032"', '{"dtype":"U8"}', "\v1", '{"a":"b","a":"c"}'),
)
_KEYS = ('"\\u0061"', '"a"', '"__metadata__"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\/"', '"a\\"b"', '"a\nb"', "a")
_TOKENS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0061", b"\\ud83d\\ude00", b"0", b"-", b"1e3", b"null"),
    *(b"true", b" ", b"\n", b"\0", b"\x1f", b"\xff", b"\xc3\xa9", b"\xed\xa0\x80", b"/", b'"x":1,', b'"__metadata__"'),
    *(b"\xef\xbb\xbf", b"1", b"9", b"'", b".5", b"}}", b'{"a":"b"}', b"shape", b"dtype", b"data_offsets"),
)


@dataclass
class Tensor:
    name: str
    dtype: str
    shape: list[int]
    start: int
    end: int


@dataclass
class Seed:
    """A file, and what is in it."""

    name: str
    metadata: dict[str, str] | None
    tensors: list[Tensor]
    data: bytes

    @property
    def header_end(self) -> int:
        return 8 + struct.unpack("<Q", self.data[:8])[0]


def pack(header: bytes, body: bytes) -> bytes:
    """A file with this header, whose length is right."""
    return struct.pack("<Q", len(header)) + header + body


def compact(tensor: Tensor) -> list[tuple[str, str]]:
    """The fields of a descriptor as raw JSON."""
    shape = ",".join(map(str, tensor.shape))
    offsets = f"[{tensor.start},{tensor.end}]"
    return [('"dtype"', json.dumps(tensor.dtype)), ('"shape"', f"[{shape}]"), ('"data_offsets"', offsets)]


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def written(metadata: dict[str, str] | None, tensors: list[Tensor]) -> bytes:
    """The header as the package writes it."""
    entries = [] if metadata is None else [f'"__metadata__":{json.dumps(metadata, ensure_ascii=False)}']
    for tensor in tensors:
        fields = ",".join(f"{key}:{value}" for key, value in compact(tensor))
        entries.append(f"{quoted(tensor.name)}:{{{fields}}}")
    raw = ("{" + ",".join(entries).replace('": "', '":"').replace('", "', '","') + "}").encode()
    return raw.ljust(-(-len(raw) // 8) * 8)


def random_seed(rng: Random, count: int | None = None) -> Seed:
    """A file that is right."""
    tensors: list[Tensor] = []
    end = 0
    names = rng.sample(_NAMES, k=rng.randrange(5) if count is None else min(count, len(_NAMES)))
    if count is not None and count > len(names):
        names += [f"layers.{n}.weight" for n in range(count - len(names))]
    for name in names:
        dtype = rng.choice(list(DTYPES))
        shape = [rng.choice(_EXTENTS) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))]
        if DTYPES[dtype] % 8:
            shape.append(4)
        bits = DTYPES[dtype]
        for extent in shape:
            bits *= extent
        tensors.append(Tensor(name, dtype, shape, end, end + bits // 8))
        end += bits // 8
    metadata = rng.choice((None, {}, {"format": "pt"}, {"a": "é", "b": 'q"\\\n', "": "{}[]"}))
    body = bytes(rng.choice((0, 1, 1, 0, 2)) if rng.random() < 0.02 else rng.getrandbits(1) for _ in range(end))
    listed = list(tensors)
    if rng.random() < 0.3:
        rng.shuffle(listed)
    return Seed("random", metadata, listed, pack(written(metadata, listed), body))


# ------------------------------------------------------------------------------- by structure

Fields = list[tuple[str, str]]


@dataclass
class Draft:
    """A header being spoiled: every key and value as raw JSON, so that anything can be wrong and come twice."""

    metadata: str | None
    tensors: list[tuple[str, Fields]]
    body: bytes
    rng: Random

    def field(self, key: str) -> tuple[Fields, int] | None:
        """A place of that key in some descriptor."""
        places = [(fields, n) for _, fields in self.tensors for n, (k, _) in enumerate(fields) if k == f'"{key}"']
        return self.rng.choice(places) if places else None


def _spoil_numbers(draft: Draft) -> None:
    rng = draft.rng
    found = draft.field(rng.choice(("shape", "data_offsets")))
    if found is None:
        return
    fields, at = found
    numbers = fields[at][1].strip("[]").split(",")
    choice = rng.random()
    if choice < 0.02:
        numbers = ["1"] * 65 + numbers
    elif choice < 0.4:
        numbers[rng.randrange(len(numbers))] = str(rng.choice(mutate.EDGES))
    elif choice < 0.7:
        numbers[rng.randrange(len(numbers))] = str(rng.randrange(12))
    elif choice < 0.85:
        numbers.insert(rng.randrange(len(numbers) + 1), str(rng.choice((0, 1, 2, 1 << 32))))
    else:
        numbers[rng.randrange(len(numbers))] = rng.choice(_VALUES)
    fields[at] = fields[at][0], f"[{','.join(n for n in numbers if n)}]"


def _spoil_value(draft: Draft) -> None:
    found = draft.field(draft.rng.choice(("dtype", "shape", "data_offsets")))
    if found is not None:
        fields, at = found
        fields[at] = fields[at][0], draft.rng.choice(_VALUES)


def _other_dtype(draft: Draft) -> None:
    found = draft.field("dtype")
    if found is not None:
        found[0][found[1]] = '"dtype"', f'"{draft.rng.choice([*DTYPES, "C128", "f32", "Q8"])}"'


def _more_fields(draft: Draft) -> None:
    if draft.tensors:
        rng = draft.rng
        _, fields = rng.choice(draft.tensors)
        key = rng.choice(('"x"', '"dtype"', '"sh\\u0061pe"', '"shape"', '"data_offsets"', '"param_id"', "x"))
        fields.insert(rng.randrange(len(fields) + 1), (key, rng.choice(_VALUES)))


def _fewer_fields(draft: Draft) -> None:
    if draft.tensors:
        _, fields = draft.rng.choice(draft.tensors)
        if fields:
            fields.pop(draft.rng.randrange(len(fields)))


def _shuffled_fields(draft: Draft) -> None:
    for _, fields in draft.tensors:
        draft.rng.shuffle(fields)


def _shuffled_tensors(draft: Draft) -> None:
    draft.rng.shuffle(draft.tensors)


def _twice(draft: Draft) -> None:
    if draft.tensors:
        name, fields = draft.rng.choice(draft.tensors)
        draft.tensors.insert(draft.rng.randrange(len(draft.tensors) + 1), (name, list(fields)))


def _without(draft: Draft) -> None:
    if draft.tensors:
        draft.tensors.pop(draft.rng.randrange(len(draft.tensors)))


def _renamed(draft: Draft) -> None:
    if draft.tensors:
        at = draft.rng.randrange(len(draft.tensors))
        draft.tensors[at] = draft.rng.choice(_KEYS), draft.tensors[at][1]


def _spoil_metadata(draft: Draft) -> None:
    draft.metadata = draft.rng.choice((*_VALUES, '{"x":1}', '{"x":null}', '{"x":"\\u0041"}', '{"x":"y","z":["a"]}'))


def _no_metadata(draft: Draft) -> None:
    draft.metadata = None


def _other_body(draft: Draft) -> None:
    rng = draft.rng
    draft.body = rng.choice((draft.body + b"\0", draft.body[:-1], draft.body * 2, b"", draft.body + bytes(8)))


_SPOILERS: tuple[Callable[[Draft], None], ...] = (
    *(_spoil_numbers, _spoil_numbers, _spoil_numbers, _spoil_value, _other_dtype, _more_fields, _fewer_fields),
    *(_shuffled_fields, _shuffled_tensors, _twice, _without, _renamed, _spoil_metadata, _no_metadata, _other_body),
)


def by_structure(seed: Seed, rng: Random) -> bytes:
    """A mutant whose header has the right length, and something else is wrong, or only unusual."""
    metadata = None if seed.metadata is None else json.dumps(seed.metadata, ensure_ascii=False)
    tensors = [(quoted(tensor.name), compact(tensor)) for tensor in seed.tensors]
    draft = Draft(metadata, tensors, seed.data[seed.header_end :], rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_SPOILERS)(draft)
    comma, colon = rng.choice(((",", ":"), (",", ":"), (", ", ": "), (",\n", " :\t")))
    if rng.random() < 0.02:
        return pack(rng.choice(_VALUES).encode("utf-8", "surrogatepass"), draft.body)
    entries = [f"{name}{colon}{{{comma.join(k + colon + v for k, v in fields)}}}" for name, fields in draft.tensors]
    if draft.metadata is not None:
        entries.insert(0 if rng.random() < 0.7 else len(entries), f'"__metadata__"{colon}{draft.metadata}')
    before, after = "", rng.choice(("", "   ", "\r\n"))
    if rng.random() < 0.1:
        before, after = rng.choice((" ", "\n\t", "\ufeff")), rng.choice(("", "\0", " x", "{}"))
    text = f"{before}{{{comma.join(entries)}}}{after}"
    return pack(text.encode("utf-8", "surrogatepass"), draft.body)


# ------------------------------------------------------------------------------- by bytes


def by_bytes(seed: Seed, rng: Random, others: list[bytes]) -> bytes:
    """A mutant by edits of bytes, anywhere or inside the header, whose length is then put right."""
    choice = rng.random()
    if choice < 0.3:
        return mutate.mutate(seed.data, seed.header_end, others, rng)
    header, body = bytearray(seed.data[8 : seed.header_end]), seed.data[seed.header_end :]
    if choice < 0.5:
        return pack(mutate.mutate(bytes(header), len(header), others, rng), body)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(header) + 1)
        length = rng.choice((0, 0, 1, 1, 2, 5))
        header[at : at + length] = rng.choice(_TOKENS) if rng.random() < 0.8 else b""
    return pack(bytes(header), body)


class SafetensorsCorpus:
    """The seeds, and the mutants made of them."""

    def __init__(self) -> None:
        rng = Random(20_261_115)
        self.seeds = [random_seed(rng) for _ in range(40)] + [random_seed(rng, count) for count in (0, 1, 12, 60)]
        self.files = [seed.data for seed in self.seeds]
        self._rng = Random()

    def mutant(self, seed: int, index: int) -> bytes:
        """The mutant of that number."""
        rng = self._rng
        rng.seed(seed << _INDEX_BITS | index)
        origin = random_seed(rng) if rng.random() < 0.3 else rng.choice(self.seeds)
        return by_structure(origin, rng) if index % 2 else by_bytes(origin, rng, self.files)

    def count_bits(self) -> int:
        """How many bits the headers of all seeds have together."""
        return sum(8 * seed.header_end for seed in self.seeds)

    def flipped(self, index: int) -> bytes:
        """The file with that one of all bits flipped."""
        for seed in self.seeds:
            bits = 8 * seed.header_end
            if index < bits:
                mutant = bytearray(seed.data)
                mutant[index // 8] ^= 1 << index % 8
                return bytes(mutant)
            index -= bits
        raise IndexError(index)
