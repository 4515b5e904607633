"""Configurations out of PyTorch files: as plain data, into types with every problem told, and as JSON."""

from __future__ import annotations

import argparse
import collections
import datetime
import enum
import io
import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, NewType, TypedDict

import numpy as np
import pytest

import burnstore as bs
from burnstore import config_from_file, save_config
from burnstore.errors import ConfigError, CorruptError, FormatError, LimitError, TensorNotFoundError, UnsupportedError
from burnstore.formats.pytorch.values import Opaque

torch = pytest.importorskip("torch")


@dataclass
class NetConfig:
    """The configuration of the original's guide."""

    n_head: int
    n_layer: int
    d_model: int
    some_float: float
    some_int: int
    some_bool: bool
    some_str: str
    some_list_int: list[int]
    some_list_str: list[str]
    some_list_float: list[float]
    some_dict: dict[str, str]


GOOD: dict[str, Any] = {
    "n_head": 2,
    "n_layer": 3,
    "d_model": 512,
    "some_float": 0.1,
    "some_int": 1,
    "some_bool": True,
    "some_str": "hello",
    "some_list_int": [1, 2, 3],
    "some_list_str": ["hello", "world"],
    "some_list_float": [0.1, 0.2],
    "some_dict": {"some_key": "some_value"},
}


def saved(value: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def problems(data: dict[str, Any], into: Any = NetConfig, **options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        config_from_file(pickle.dumps(data), into=into, **options)
    for problem in caught.value.problems[:20]:
        assert problem in str(caught.value)
    return caught.value.problems


# --- plain data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
def test_the_configuration_of_the_guide_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "weights_with_config.pt"
    torch.save({"my_model": torch.nn.Linear(2, 2).state_dict(), "my_config": GOOD}, path, **options)
    assert config_from_file(path, "my_config") == GOOD
    config = config_from_file(path, "my_config", into=NetConfig)
    assert config == NetConfig(**GOOD)
    save_config(config, tmp_path / "my_config.json")
    assert config_from_file(tmp_path / "my_config.json", into=NetConfig) == config


def test_values_become_plain_data_and_the_rest_says_what_it_is() -> None:
    moment = datetime.datetime(2024, 1, 2, 3, 4)
    data = saved(
        {
            "numbers": (1, 2.5, True, None, 2**70, 1j),
            "sets": [{1}, frozenset([2])],
            "ordered": collections.OrderedDict(a=1),
            "numpy": (np.float64(3.5), np.arange(3)),
            "args": argparse.Namespace(lr=0.1, inner=argparse.Namespace(x=1)),
            "when": moment,
            "path": PurePosixPath("/a/b"),
            "bytes": b"ab",
            "tensor": torch.ones(2, 3),
            "sparse": torch.ones(2).to_sparse(),
            "class": torch.float32,
            "function": len,
            "range": range(10**18),
            "odd": {(1, 2): 3},
            1: "an integer key",
        }
    )
    assert config_from_file(data) == {
        "numbers": [1, 2.5, True, None, 2**70, 1j],
        "sets": [[1], [2]],
        "ordered": {"a": 1},
        "numpy": [3.5, Opaque("numpy.ndarray", "int64 [3]")],
        "args": {"lr": 0.1, "inner": {"x": 1}},
        "when": moment,
        "path": "/a/b",
        "bytes": b"ab",
        "tensor": Opaque("torch.Tensor", "F32 [2, 3]"),
        "sparse": Opaque("torch.Tensor"),
        "class": Opaque("torch.float32"),
        "function": Opaque("__builtin__.len"),
        "range": Opaque("range"),
        "odd": Opaque("dict", "with keys that are not plain values"),
        1: "an integer key",
    }
    assert repr(Opaque("torch.Tensor", "F32 [2]")) == "<torch.Tensor F32 [2]>"


class Arguments:
    def __init__(self) -> None:
        self.lr = 0.1
        self.inner = Opaque("x")


def test_an_object_that_is_chosen_gives_its_attributes_and_is_not_made() -> None:
    data = pickle.dumps({"args": Arguments()})
    assert config_from_file(data, "args")["lr"] == 0.1
    assert config_from_file(data, "args.lr") == 0.1
    assert config_from_file(data) == {"args": Opaque(f"{__name__}.Arguments")}


def test_a_key_may_be_dotted_and_a_wrong_one_lists_what_there_is() -> None:
    data = pickle.dumps({"a": {"b.c": {"d": 1}}})
    assert config_from_file(data, "a.b.c.d") == 1
    with pytest.raises(TensorNotFoundError, match=r"'x' not found; there are.*b\.c"):
        config_from_file(data, "a.x")
    with pytest.raises(CorruptError, match="no dictionary on the way"):
        config_from_file(data, "a.b.c.d.e")
    with pytest.raises(TypeError, match="top_level_key must be a str"):
        config_from_file(data, 1)  # type: ignore[arg-type]


@pytest.mark.slow("bombs")
def test_what_is_small_in_a_file_and_huge_when_walked_is_refused() -> None:
    bomb: list[Any] = []
    for _ in range(40):
        bomb = [bomb, bomb]
    with pytest.raises(LimitError):
        config_from_file(pickle.dumps(bomb))
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(CorruptError, match="holds itself"):
        config_from_file(pickle.dumps(itself))
    with pytest.raises(LimitError, match="200 deep"):
        config_from_file(b"\x80\x02" + b"]" * 300 + b"a" * 299 + b".")


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    bs.save({"w": np.ones(2, np.float32)}, tmp_path / "model.bpk")
    with pytest.raises(UnsupportedError, match="got a burnpack file"):
        config_from_file(tmp_path / "model.bpk")
    with pytest.raises(FileNotFoundError):
        config_from_file(tmp_path / "missing.pt")
    for broken in (b"", b"{", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"\x80\x02}", b"text"):
        with pytest.raises(FormatError):
            config_from_file(broken)


# --- into types -------------------------------------------------------------------------------------------------------


def test_every_problem_is_told_with_its_place() -> None:
    bad = {**GOOD, "some_list_int": [1, 2, "x"], "some_dict": {"a": 1}, "extra": 3, "some_bool": 1, "n_layer": 3.0}
    del bad["n_head"]
    assert problems(bad) == (
        "n_head: missing",
        "n_layer: expected int, found 3.0",
        "some_bool: expected bool, found 1",
        "some_list_int[2]: expected int, found 'x'",
        "some_dict.a: expected str, found 1",
        "extra: NetConfig has no such field",
    )


def test_what_the_type_does_not_have_can_be_left_out() -> None:
    data = pickle.dumps({**GOOD, "extra": torch.ones(1)})
    assert config_from_file(data, into=NetConfig, ignore_extra=True) == NetConfig(**GOOD)
    with pytest.raises(ConfigError, match="ignore_extra=True"):
        config_from_file(data, into=NetConfig)


def test_what_is_no_plain_data_is_refused_where_it_is_wanted() -> None:
    data = saved({**GOOD, "n_head": torch.ones(1), "some_str": torch.float32})
    with pytest.raises(ConfigError) as caught:
        config_from_file(data, into=NetConfig)
    assert caught.value.problems == (
        "n_head: a torch.Tensor, which is not plain data",
        "some_str: a torch.float32, which is not plain data",
    )


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int = 5


class Options(TypedDict, total=False):
    rate: float
    name: str


UserId = NewType("UserId", int)


@dataclass
class Inner:
    sizes: tuple[int, int]
    names: tuple[str, ...] = ()


@dataclass
class Everything:
    inner: Inner
    maybe: Inner | None
    number: int | float
    choice: Literal["a", "b"]
    colour: Colour
    point: Point
    options: Options
    user: UserId
    anything: Any
    bag: set[int]
    many: list[Inner]
    plain_list: list = field(default_factory=list)  # type: ignore[type-arg]
    derived: int = field(init=False, default=7)


EVERYTHING: dict[str, Any] = {
    "inner": {"sizes": (1, 2), "names": ["a"]},
    "maybe": None,
    "number": 3,
    "choice": "b",
    "colour": "red",
    "point": {"x": 1},
    "options": {"rate": 1},
    "user": 4,
    "anything": [1, {"a": None}],
    "bag": {1, 2},
    "many": [{"sizes": [3, 4]}],
}


def test_types_are_nested_in_types() -> None:
    made = config_from_file(pickle.dumps(EVERYTHING), into=Everything)
    assert made == Everything(
        inner=Inner((1, 2), ("a",)),
        maybe=None,
        number=3,
        choice="b",
        colour=Colour.RED,
        point=Point(1, 5),
        options={"rate": 1.0},
        user=UserId(4),
        anything=[1, {"a": None}],
        bag={1, 2},
        many=[Inner((3, 4))],
    )
    assert type(made.number) is int and type(made.options["rate"]) is float
    assert config_from_file(pickle.dumps({**EVERYTHING, "maybe": {"sizes": (5, 6)}}), into=Everything).maybe == Inner(
        (5, 6)
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"inner": {"sizes": (1, 2, 3)}}, "inner.sizes: expected 2 values, found 3"),
        ({"inner": [1]}, "inner: expected a Inner, found [1]"),
        ({"maybe": {"sizes": (1, "2")}}, "maybe.sizes[1]: expected int, found '2'"),
        ({"number": "3"}, "number: expected int | float, found '3'"),
        ({"choice": "c"}, "choice: expected Literal['a', 'b'], found 'c'"),
        ({"colour": "blue"}, "colour: expected Colour, found 'blue'"),
        ({"point": {"y": 2}}, "point.x: missing"),
        ({"options": {"rate": "fast"}}, "options.rate: expected float, found 'fast'"),
        ({"options": {"speed": 1.0}}, "options.speed: Options has no such field"),
        ({"user": True}, "user: expected int, found True"),
        ({"bag": {"a": 1}}, "bag: expected set, found {'a': 1}"),
        ({"many": [{"sizes": [3]}]}, "many[0].sizes: expected 2 values, found 1"),
        ({"plain_list": "abc"}, "plain_list: expected list, found 'abc'"),
        ({"derived": 8}, "derived: Everything has no such field"),
    ],
)
def test_a_problem_names_its_place_however_deep(changes: dict[str, Any], problem: str) -> None:
    assert problems({**EVERYTHING, **changes}, Everything) == (problem,)


@pytest.mark.parametrize(
    ("value", "into", "expected"),
    [
        (3, int, 3),
        (3, float, 3.0),
        ([1, 2], tuple[int, ...], (1, 2)),
        ({"a": 1}, dict[str, int], {"a": 1}),
        ({"rate": 2.0}, Options, {"rate": 2.0}),
        (None, type(None), None),
        (b"ab", bytes, b"ab"),
    ],
)
def test_any_type_may_be_the_whole(value: Any, into: Any, expected: Any) -> None:
    made = config_from_file(pickle.dumps({"it": value}), "it", into=into)
    assert made == expected and type(made) is type(expected)


def test_a_class_that_validates_itself_is_asked() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Net(pydantic.BaseModel):  # type: ignore[misc]
        n_head: int
        rates: list[float]

    made = config_from_file(pickle.dumps({"n_head": 2, "rates": [1, 2]}), into=Net)
    assert (made.n_head, made.rates) == (2, [1.0, 2.0])
    assert "rates.1" in problems({"n_head": 2, "rates": [1, "x"]}, Net)[0]


@dataclass
class Checked:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("n is negative")


def test_the_checks_of_a_type_are_problems_too() -> None:
    assert problems({"it": {"n": -1}}, dict[str, Checked]) == ("it: n is negative",)


def test_a_type_that_nothing_can_be_put_into_is_a_type_error() -> None:
    class Plain:
        n: int

    with pytest.raises(TypeError, match="expected a dataclass"):
        config_from_file(pickle.dumps({"n": 1}), into=Plain)

    @dataclass
    class Unresolvable:
        n: NotThere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match="cannot be resolved"):
        config_from_file(pickle.dumps({"n": 1}), into=Unresolvable)


def test_many_problems_are_counted() -> None:
    found = problems({"it": ["x"] * 50}, dict[str, list[int]])
    assert len(found) == 50
    with pytest.raises(ConfigError, match="and 30 more"):
        config_from_file(pickle.dumps({"it": ["x"] * 50}), into=dict[str, list[int]])


def test_text_from_a_file_is_escaped_and_shortened() -> None:
    (problem,) = problems({"it": "\x1b[31m" + "x" * 500}, dict[str, int])
    assert "\x1b" not in problem and len(problem) < 100


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_a_configuration_is_written_as_json(tmp_path: Path) -> None:
    config = {
        "colour": Colour.RED,
        "point": Point(1, 2),
        "inner": Inner((1, 2)),
        "when": datetime.date(2024, 1, 2),
        "path": PurePosixPath("a/b"),
        "set": {3},
        1: "größe",
    }
    save_config(config, tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text("utf-8")) == {
        "colour": "red",
        "point": {"x": 1, "y": 2},
        "inner": {"sizes": [1, 2], "names": []},
        "when": "2024-01-02",
        "path": "a/b",
        "set": [3],
        "1": "größe",
    }
    with pytest.raises(bs.errors.AlreadyExistsError):
        save_config({}, tmp_path / "x.json")
    save_config({}, tmp_path / "x.json", overwrite=True)
    assert config_from_file(tmp_path / "x.json") == {}


def holds_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"a": [1, float("nan")]}, r"a\[1\] is nan"),
        ({"a": float("inf")}, "a is inf"),
        ({"a": Opaque("torch.Tensor", "F32 [2]")}, r"a is <torch\.Tensor F32 \[2\]>"),
        ({"a": object()}, "a is a object"),
        ({"a": b"x"}, "a is a bytes"),
        ({(1, 2): 3}, r"a dict with the key \(1, 2\)"),
        ({1: 2, "1": 3}, "as a str and as a number"),
        ({"a": "\ud800"}, "lone surrogate"),
        (holds_itself(), "deep"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_json_cannot_hold_is_refused_and_nothing_is_written(tmp_path: Path, config: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        save_config(config, tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_a_pydantic_model_is_written(tmp_path: Path) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Net(pydantic.BaseModel):  # type: ignore[misc]
        n_head: int

    save_config(Net(n_head=2), tmp_path / "x.json")
    assert config_from_file(tmp_path / "x.json", into=Net) == Net(n_head=2)


# --- numbers and depth: what is written is what is read ---------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [2**53 + 1, -(2**53) - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, -(2**63) - 1, 10**30 + 7, 3**2000, 0, -1]
)
def test_an_integer_of_any_size_survives_a_configuration_file(number: int, tmp_path: Path) -> None:
    save_config({"seed": number, "nested": [number]}, tmp_path / "c.json")
    found = config_from_file(tmp_path / "c.json")
    assert found == {"seed": number, "nested": [number]} and type(found["seed"]) is int
    assert config_from_file(tmp_path / "c.json", "seed", into=int) == number
    assert config_from_file(pickle.dumps({"seed": number}), "seed") == number


@pytest.mark.parametrize("number", [2**53 + 1, -(2**64) - 1, 10**400])
def test_an_integer_that_no_float_holds_is_no_float(number: int) -> None:
    with pytest.raises(ConfigError, match="expected float"):
        config_from_file(pickle.dumps({"rate": number}), into=dict[str, float])
    assert config_from_file(pickle.dumps({"rate": 2**60}), into=dict[str, float]) == {"rate": 2.0**60}


def test_integers_beyond_what_python_converts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="too many digits"):
        save_config({"seed": 1 << 40_000}, tmp_path / "c.json")
    assert not (tmp_path / "c.json").exists()
    (tmp_path / "c.json").write_text('{"seed": ' + "9" * 10_000 + "}")
    with pytest.raises(bs.errors.CorruptError, match="10000 digits"):
        config_from_file(tmp_path / "c.json")


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


def test_the_depth_that_is_written_is_read(tmp_path: Path) -> None:
    for depth in (1, 16, 17, 199, 200):
        save_config(nested(depth), tmp_path / "c.json", overwrite=True)
        assert config_from_file(tmp_path / "c.json") == nested(depth)
    with pytest.raises(ConfigError, match="nested more than 200 deep"):
        save_config(nested(201), tmp_path / "c.json", overwrite=True)
    assert config_from_file(tmp_path / "c.json") == nested(200)
    (tmp_path / "c.json").write_text(json.dumps(nested(201)))
    with pytest.raises(bs.errors.LimitError, match="nested 201 deep"):
        config_from_file(tmp_path / "c.json")
