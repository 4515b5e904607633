"""The pickle machine: every opcode gives what Python gives, nothing runs, and nothing costs more than it may."""

from __future__ import annotations

import itertools
import pickle
import struct
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnstore.errors import (
    BurnstoreError,
    CorruptError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsafeContentError,
    UnsupportedError,
)
from burnstore.formats.codec.pickle import Dialect, PickleLimits, read_pickle
from burnstore.formats.codec.pickle_values import Call, PickledDict, PickledSet, Symbol

PLAIN = Dialect()


def read(data: bytes, **limits: int) -> Any:
    return read_pickle(data, dialect=PLAIN, limits=PickleLimits(**limits)).value


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, (set, frozenset)):
        return isinstance(ours, (PickledSet, Call)) and set(_items(ours)) == theirs
    if isinstance(theirs, float) and theirs != theirs:
        return struct.pack(">d", ours) == struct.pack(">d", theirs)
    if type(ours) is not type(theirs):
        return False
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[key], value) for key, value in theirs.items())
    return bool(ours == theirs)


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, PickledSet) else value.args[0]


KEYS = st.one_of(st.text(max_size=5), st.integers(-1000, 1000))
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**80), 2**80),
        st.floats(),
        st.text(max_size=20),
        st.binary(max_size=20),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(KEYS, inner, max_size=5),
        st.sets(st.integers(0, 99), max_size=4),
    ),
    max_leaves=20,
)


@given(value=VALUES, protocol=st.integers(3, 5))
def test_plain_values_are_what_python_reads(value: Any, protocol: int) -> None:
    assert same(read(pickle.dumps(value, protocol)), value)


@given(
    value=VALUES.filter(lambda value: "b'" not in repr(value) and 'b"' not in repr(value)), protocol=st.integers(0, 2)
)
def test_plain_values_of_old_protocols_are_what_python_reads(value: Any, protocol: int) -> None:
    pickled = pickle.dumps(value, protocol)  # protocol 0 spells floats as text, which has only one NaN
    assert same(read(pickled), pickle.loads(pickled))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"I01\n.", True),
        (b"I00\n.", False),
        (b"I-5\n.", -5),
        (b"L5L\n.", 5),
        (b"L5\n.", 5),
        (b"F2.5\n.", 2.5),
        (b"V\\u00e9\xe9\n.", "éé"),
        (b"S'it\\'s'\n.", "it's"),
        (b"U\x03abc.", "abc"),
        (b"U\x02\xff\xfe.", "ÿþ"),
        (b"T\x03\0\0\0abc.", "abc"),
        (b"\x8a\x00.", 0),
        (b"\x8a\x01\xff.", -1),
        (b"\x8b\x02\0\0\0\0\x01.", 256),
        (b"\x8a\x09\0\0\0\0\0\0\0\0\x01.", 1 << 64),
        (b"G?\xf0\0\0\0\0\0\0.", 1.0),
        (b"C\x02ab.", b"ab"),
        (b"B\x02\0\0\0ab.", b"ab"),
        (b"\x8e\x02\0\0\0\0\0\0\0ab.", b"ab"),
        (b"\x96\x02\0\0\0\0\0\0\0ab.", b"ab"),
        (b"\x8c\x02ab.", "ab"),
        (b"\x8d\x02\0\0\0\0\0\0\0ab.", "ab"),
        (b"(lp0\nI1\na.", [1]),
        (b"(I1\nI2\nl.", [1, 2]),
        (b"(K\x01K\x02d.", {1: 2}),
        (b"(K\x01t.", (1,)),
        (b"K\x01\x85.", (1,)),
        (b"K\x01K\x02K\x03\x87.", (1, 2, 3)),
        (b"K\x01K\x020.", 1),
        (b"(0K\x01.", 1),
        (b"K\x01(K\x02K\x031.", 1),
        (b"K\x012\x86.", (1, 1)),
        (b"K\x01p7\ng7\n\x86.", (1, 1)),
        (b"K\x01\x94h\x00\x86.", (1, 1)),
        (b"\x80\x05\x95\x02\0\0\0\0\0\0\0K\x01.", 1),
        (b"}K\x01K\x02s.", {1: 2}),
        (b"](K\x01K\x02e.", [1, 2]),
    ],
)
def test_an_opcode_gives_what_it_should(data: bytes, expected: Any) -> None:
    found = read(data)
    assert found == expected and type(found) is type(expected)


def test_the_memo_holds_references_so_what_is_filled_later_is_full_everywhere() -> None:
    shared: dict[str, Any] = {}
    graph = [shared, shared]
    shared["late"] = [1, 2]
    found = read(pickle.dumps(graph, 2))
    assert found[0] is found[1] and found[0] == {"late": [1, 2]}


def test_a_list_that_holds_itself_is_read() -> None:
    loop: list[Any] = []
    loop.append(loop)
    found = read(pickle.dumps(loop))
    assert found[0] is found


def test_a_global_is_two_texts_and_a_call_is_a_note() -> None:
    found = read_pickle(b"cos\nsystem\n(X\x02\0\0\0lstR.", dialect=PLAIN)
    call = found.value
    assert isinstance(call, Call) and isinstance(call.function, Symbol)
    assert (call.function.module, call.function.name, call.args) == ("os", "system", ("ls",))
    assert [(at, symbol.full_name, symbol.called) for at, symbol in found.globals] == [(0, "os.system", True)]


def test_a_global_that_is_only_named_is_not_called() -> None:
    found = read_pickle(b"\x80\x04\x8c\x02os\x8c\x06system\x93.", dialect=PLAIN)
    assert [(at, s.full_name, s.called) for at, s in found.globals] == [(14, "os.system", False)]


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n)R.",
        b"cos\nsystem\n)\x81.",
        b"cos\nsystem\n)}\x92.",
        b"cos\nsystem\n)}X\x01\0\0\0aK\x01s\x92.",
        b"(ios\nsystem\n.",
        b"(cos\nsystem\nK\x01o.",
        b"cos\nsystem\n)RK\x01b.",
        b"cos\nsystem\n)RK\x01a.",
        b"cos\nsystem\n)R(K\x01e.",
        b"cos\nsystem\n)RK\x01K\x02s.",
        b"cos\nsystem\n)R(K\x01\x90.",
        b"cos\nsystem\n)R)R.",
        b"cos\nsystem\n)R0K\x01.",
    ],
)
def test_whatever_calls_gives_an_inert_note(data: bytes) -> None:
    found = read_pickle(data, dialect=PLAIN)
    assert isinstance(found.value, (Call, int))
    assert found.globals[0][1].called


def test_a_state_and_items_are_kept_with_the_call() -> None:
    call = read(b"cm\nC\n)\x81}X\x01\0\0\0aK\x01sb(K\x02e(K\x03K\x04u.")
    assert call.state == {"a": 1} and call.appended == [2] and call.pairs == [(3, 4)]


# --- refusals (H16) ---------------------------------------------------------------------------------------------------

CORRUPT = {
    "set in a list": b"]K\x01K\x02s.",
    "set in a tuple": b")K\x01K\x02s.",
    "set in a symbol": b"cm\nC\nK\x01K\x02s.",
    "set in a text": b"X\x01\0\0\0aK\x01K\x02s.",
    "many set in a list": b"](K\x01K\x02u.",
    "append to a dict": b"}K\x01a.",
    "append to a tuple": b")K\x01a.",
    "append to a set": b"\x8fK\x01a.",
    "append to an int": b"K\x01K\x01a.",
    "add to a list": b"](K\x01\x90.",
    "add to a dict": b"}(K\x01\x90.",
    "state for an int": b"K\x01}b.",
    "state for a list": b"]}b.",
    "state for a dict": b"}}b.",
    "state for a symbol": b"cm\nC\n}b.",
    "state twice": b"cm\nC\n)R}b}b.",
    "call of an int": b"K\x01)R.",
    "call of a text": b"X\x01\0\0\0a)R.",
    "call of a dict": b"})R.",
    "arguments not a tuple": b"cm\nC\n]R.",
    "arguments an int": b"cm\nC\nK\x01R.",
    "named arguments not a dict": b"cm\nC\n)]\x92.",
    "new object of an int": b"K\x01)\x81.",
    "OBJ of nothing": b"(o.",
    "a key without a value": b"}(K\x01u.",
    "a dict of three": b"(K\x01K\x02K\x03d.",
    "a key twice": b"}(K\x01K\x02K\x01K\x03u.",
    "a key twice, one by one": b"}K\x01K\x02sK\x01K\x03s.",
    "a text key twice": b"}(X\x01\0\0\0aNX\x01\0\0\0aNu.",
    "a list as a key": b"}]K\x01s.",
    "a dict as a key": b"}}K\x01s.",
    "nothing on the stack": b".",
    "two values at the end": b"K\x01K\x02.",
    "an open mark at the end": b"K\x01(.",
    "a mark at the end": b"(.",
    "a value from below a mark": b"K\x01(\x85.",
    "a pair from below a mark": b"K\x01K\x02(\x86.",
    "a memo entry of a mark": b"K\x01(q\0.",
    "dup of nothing": b"2.",
    "pop of nothing": b"0.",
    "a mark that is not there": b"K\x01t.",
    "a memo entry that is not there": b"h\0.",
    "a memo entry far away": b"j\xff\xff\xff\xff.",
    "a memo number that is none": b"gx\n.",
    "a negative length": b"\x8b\xff\xff\xff\xff.",
    "a text that is not UTF-8": b"X\x01\0\0\0\xff.",
    "a text without quotes": b"Sabc\n.",
    "a text with a wrong escape": b"S'\\x1'\n.",
    "a raw text with a wrong escape": b"V\\u12\n.",
    "an integer that is none": b"Iabc\n.",
    "a long that is none": b"LabcL\n.",
    "a float that is none": b"Fabc\n.",
    "an opcode that is none": b"\xff.",
    "a zero byte": b"\0.",
    "a global named by ints": b"K\x01K\x02\x93.",
    "a global that is not UTF-8": b"c\xff\nC\n.",
}


@pytest.mark.parametrize("data", CORRUPT.values(), ids=CORRUPT)
def test_what_breaks_the_discipline_is_corrupt(data: bytes) -> None:
    """H16: PT-16."""
    with pytest.raises(CorruptError) as caught:
        read(data)
    assert caught.value.offset is not None


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x82\x01.", UnsafeContentError),
        (b"\x83\x01\0.", UnsafeContentError),
        (b"\x84\x01\0\0\0.", UnsafeContentError),
        (b"\x97.", UnsupportedError),
        (b"C\0\x98.", UnsupportedError),
        (b"Pabc\n.", UnsupportedError),
        (b"K\x01Q.", UnsupportedError),
        (b"\x80\x06K\x01.", UnsupportedError),
        (b"}(K\x01\x85\x85K\x01u.", UnsupportedError),
    ],
)
def test_what_reaches_outside_is_refused(data: bytes, kind: type[BurnstoreError]) -> None:
    """PT-15: extensions, buffers and persistent ids that nobody gave a meaning."""
    with pytest.raises(kind):
        read(data)


def test_every_prefix_of_a_pickle_is_truncated_or_corrupt() -> None:
    """H3."""
    for protocol in range(6):
        data = pickle.dumps({"a": [1, 2.5, "text", (None, True), {3: 4}], "b": 2**70, "c": b"x"}, protocol)
        for length in range(len(data)):
            with pytest.raises((TruncatedError, CorruptError)):
                read(data[:length])


BOMBS = {
    "memo doubling": b"K\x01\x85" + b"2\x86" * 60 + b".",
    "a long text announced": b"X\xff\xff\xff\xffab.",
    "bytes of 2^60": b"\x8e" + struct.pack("<Q", 1 << 60) + b"ab.",
    "a text of 2^63": b"\x8d" + struct.pack("<Q", 1 << 63) + b"ab.",
    "a frame of 2^63": b"\x95" + struct.pack("<Q", 1 << 63) + b"K\x01.",
    "a long of 10^8 bytes": b"\x8b" + struct.pack("<i", 10**8) + b"\1" * 100 + b".",
    "a long of 2 KiB": b"\x8b" + struct.pack("<i", 2048) + b"\1" * 2048 + b".",
    "digits": b"I" + b"9" * 5000 + b"\n.",
    "a line": b"I" + b"9" * 100_000 + b"\n.",
    "lists": b"](" + b"]" * 2_000_000 + b"e.",
    "dicts": b"](" + b"}" * 2_000_000 + b"e.",
    "sets": b"](" + b"\x8f" * 2_000_000 + b"e.",
    "nested tuples": b"K\x01" + b"\x85" * 2_000_000 + b".",
    "marks": b"(" * 2_000_000 + b".",
    "values": b"N" * 2_000_000 + b".",
    "memo entries": b"N" + b"\x94" * 2_000_000 + b".",
    "calls": b"cm\nC\nq\0" + b"h\0)R0" * 2_000_000 + b"N.",
    "colliding ints": b"}("
    + b"".join(b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(2, 9000))
    + b"u.",
    "colliding tuples": b"}("
    + b"".join(
        b"(" + bytes(b for i in range(13) for b in b"J" + struct.pack("<i", -1 - (k >> i & 1))) + b"tN"
        for k in range(8192)
    )
    + b"u.",
}


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_or_harmless_at_once(data: bytes) -> None:
    """H17: PT-17."""
    started = time.process_time()
    with suppress(LimitError, TruncatedError, CorruptError):
        read(data)
    assert time.process_time() - started < 10  # linear work, on a machine that may be busy


def test_a_tuple_that_hashes_for_ever_is_no_key() -> None:
    with pytest.raises(UnsupportedError):
        read(b"}K\x01\x85" + b"2\x86" * 100 + b"Ns.")


def test_deep_nesting_is_read_without_recursion() -> None:
    """H7: the machine itself has no depth; walkers have a limit of their own."""
    depth, value = 0, read(b"]" * 90_000 + b"a" * 89_999 + b".")
    while value:
        depth, value = depth + 1, value[0]
    assert depth == 89_999


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (b"N0" * 5000 + b"N.", {"opcodes": 4096}),
        (b"N" * 5000 + b".", {"stack": 100}),
        (b"(" * 5000 + b".", {"stack": 100}),
        (b"X\x05\0\0\0abcde.", {"text_bytes": 4}),
        (b"](" + b"]" * 5000 + b"e.", {"objects": 100}),
        (b"N" + b"\x94" * 5000 + b".", {"memo": 100}),
    ],
)
def test_each_limit_can_be_met(data: bytes, limit: dict[str, int]) -> None:
    with pytest.raises(LimitError):
        read(data, **limit)


ALPHABET = (
    *(b"N", b"K\x01", b"X\x01\0\0\0a", b"(", b")", b"]", b"}", b"\x8f", b"t", b"l", b"d", b"a", b"e", b"s", b"u"),
    *(b"cm\nC\n", b"R", b"b", b"\x81", b"q\0", b"h\0", b"0", b"2", b"\x86", b"\x90"),
)


def outcome(data: bytes) -> str:
    try:
        read(data)
    except FormatError as error:
        return type(error).__name__
    return "read"


def test_every_short_sequence_of_opcodes_is_read_or_refused() -> None:
    """H16: all sequences of up to three of 25 opcodes; `python -m tests.fuzz.pytorch --sequences` runs longer ones."""
    assert len(ALPHABET) == 25
    seen = {outcome(b"".join(ops) + b".") for n in range(4) for ops in itertools.product(ALPHABET, repeat=n)}
    assert seen == {"read", "CorruptError", "TruncatedError"} or seen == {"read", "CorruptError"}


@given(ops=st.lists(st.sampled_from(ALPHABET), min_size=4, max_size=40))
def test_longer_sequences_are_read_or_refused(ops: list[bytes]) -> None:
    assert outcome(b"".join(ops) + b".") in ("read", "CorruptError", "TruncatedError", "UnsupportedError")


@given(data=st.binary(max_size=60))
def test_noise_is_read_or_refused(data: bytes) -> None:
    with suppress(BurnstoreError):
        read(data)


def test_dicts_of_other_classes_take_items_and_a_state() -> None:
    made = Dialect(builders={("collections", "OrderedDict"): lambda args: PickledDict()})
    found = read_pickle(b"ccollections\nOrderedDict\n)R(K\x01K\x02u}X\x01\0\0\0aNsb.", dialect=made).value
    assert found == {1: 2} and found.state == {"a": None}
