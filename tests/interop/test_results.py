"""What became of each tensor: the lists of Burn and ours, over files that fit and files that do not."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import burnstore as bs
from declared_models import Basic, Enums

from . import zoo
from .program import NEWEST, VERSIONS, Loading
from .scenarios import (
    Scenario,
    anonymous,
    as_data,
    both,
    cast,
    changed,
    nothing,
    only,
    prefixed,
    renamed,
    torch_layout,
    with_extra,
    without,
)

_OLD_ALTERNATIVES = "up to 0.21 a tensor found under its PyTorch name is reported as unused as well"
_EXCLUDED = "from 0.23 on a parameter that the filter leaves out and the file has not is skipped, not missing"
_UNCHECKED = "up to 0.21 the kind of a dtype is not checked"
_BEFORE_0_22 = ("0.19", "0.20", "0.21")

SCENARIOS = [
    Scenario("everything fits", "basic"),
    Scenario("a tensor is missing", "basic", without("linear.bias")),
    Scenario("tensors may be missing", "basic", without("linear.bias", "batch.running_mean"), partial=True),
    Scenario("an empty file", "basic", nothing, partial=True),
    Scenario("an empty file for an empty model", "empty", nothing),
    Scenario("a file with more than the model has", "basic", with_extra("extra", "linear.extra", "a.b.c")),
    Scenario("a misspelled name", "basic", renamed({"linear.bias": "linear.bais"}), partial=True),
    Scenario("another case of letters", "basic", renamed({"linear.weight": "Linear.weight"}), partial=True),
    Scenario("a whole model under a prefix", "basic", prefixed("model.")),
    Scenario("a transposed weight", "basic", changed("linear.weight", np.transpose)),
    Scenario("another rank", "basic", changed("linear.bias", lambda bias: bias[None])),
    Scenario("more elements", "basic", changed("embedding.weight", lambda weight: np.tile(weight, (2, 1)))),
    Scenario("an error beside a missing tensor", "basic",
             both(changed("rms.gamma", lambda gamma: gamma[:-1]), without("layer.beta"))),
    Scenario("errors are tolerated", "basic", changed("linear.weight", np.transpose), validate=False),
    Scenario("integers for floats", "basic", changed("linear.bias", lambda bias: bias.astype(np.int32)),
             differs=dict.fromkeys(_BEFORE_0_22, _UNCHECKED)),
    Scenario("bools for floats", "basic", changed("linear.bias", lambda bias: bias > 0),
             differs=dict.fromkeys(_BEFORE_0_22, _UNCHECKED)),
    Scenario("floats for bools", "bools", changed("mask", lambda mask: mask.astype(np.float32)),
             differs=dict.fromkeys(_BEFORE_0_22, _UNCHECKED)),
    Scenario("floats for integers", "dtypes", changed("i64", lambda value: value.astype(np.float32)),
             differs=dict.fromkeys(_BEFORE_0_22, _UNCHECKED)),
    Scenario("bytes for bools", "bools", as_data("mask", bs.DType.U8, 1), since="0.22"),
    Scenario("words for bools", "bools", as_data("mask", bs.DType.U32, 4), since="0.22"),
    Scenario("another store for bools", "bools", as_data("mask", bs.DType.BoolU32, 4), since="0.22"),
    Scenario("64-bit integers for bools", "bools", changed("mask", lambda mask: mask.astype(np.int64)),
             since="0.22"),
    Scenario("unsigned for signed integers", "dtypes", changed("i64", lambda value: value.astype(np.uint16)),
             since="0.22"),
    Scenario("doubles for floats", "basic", cast(np.float64), since="0.20"),
    Scenario("halves for floats", "basic", cast(np.float16), since="0.22"),
    Scenario("bfloats for floats", "basic", cast(ml_dtypes.bfloat16), since="0.22"),
    Scenario("a file without ids", "basic", anonymous),
    Scenario("a filter", "basic", regexes=(r"^linear\.",)),
    Scenario("two patterns", "basic", regexes=(r"^linear\.", r"gamma$")),
    Scenario("a pattern in the middle", "nested", regexes=(r"\.1\d*\.",)),
    Scenario("a pattern that matches nothing", "basic", regexes=(r"^nothing$",)),
    Scenario("a full path", "basic", full_paths=("linear.weight",)),
    Scenario("a full path that is not there", "basic", full_paths=("linear",)),
    Scenario("a pattern and full paths", "basic", regexes=("beta$",), full_paths=("linear.bias", "rms.gamma")),
    Scenario("a filter with an excluded tensor absent", "basic", only("linear.weight", "linear.bias"),
             regexes=(r"^linear\.",), partial=True, differs={"0.23-pre": _EXCLUDED}),
    Scenario("a strict filter with an excluded tensor absent", "basic", only("linear.weight", "linear.bias"),
             regexes=(r"^linear\.",), differs={"0.23-pre": _EXCLUDED}),
    Scenario("a filter over a tensor that does not fit", "basic", changed("linear.weight", np.transpose),
             regexes=("bias",)),
    Scenario("a prefix taken away", "basic", prefixed("model."), remaps=((r"^model\.", ""),)),
    Scenario("a rename with a group", "nested", renamed({f"stack.{i}.weight": f"stack_{i}_weight" for i in range(11)}),
             remaps=((r"stack_(\d+)_(\w+)", "stack.$1.$2"),)),
    Scenario("a group in braces", "basic", renamed({"linear.weight": "linearweight"}),
             remaps=((r"^(linear)(weight)$", "${1}.${2}"),)),
    Scenario("a named group", "basic", renamed({"linear.weight": "linear/weight"}),
             remaps=((r"(?P<layer>\w+)/", "$layer."),)),
    Scenario("a dollar sign", "basic", remaps=((r"^linear\.bias$", "linear.$$bias"),), partial=True),
    Scenario("a chain of renames", "basic", prefixed("a."), remaps=((r"^a\.", "b."), (r"^b\.", ""))),
    Scenario("all matches are replaced", "basic", renamed({"linear.weight": "lineaarr.weaight"}),
             remaps=(("a+", "a"), ("weai", "wei"), ("linearr", "linear"))),
    Scenario("a rename into nowhere", "basic", remaps=((r"^linear\.", "elsewhere."),), partial=True),
    Scenario("a rename and a filter", "basic", prefixed("m."), remaps=((r"^m\.", ""),), regexes=("weight$",)),
    Scenario("enum variants in paths", "enums"),
    Scenario("enum variants missing in the file", "enums",
             lambda given: [each.with_path(each.path.replace(".Dense", "")) for each in given], partial=True),
    Scenario("another variant in the file", "enums", renamed({"head.Dense.weight": "head.Conv.weight"}), partial=True),
    Scenario("a missing tensor in a list of enums", "enums", without("blocks.1.Norm.gamma"), partial=True),
    Scenario("a missing tensor in lists and tuples", "nested", without("stack.10.bias", "pair.1.beta", "raw.1"),
             partial=True),
    Scenario("deep containers", "containers", without("grid.0.1.bias", "pairs.1.0.weight", "triple.1.scale"),
             partial=True, since="0.20"),
    Scenario("PyTorch's names and layout", "basic", torch_layout(Basic), adapter="pytorch", since="0.21",
             differs={"0.21": _OLD_ALTERNATIVES}),
    Scenario("PyTorch's layout without the adapter", "basic", torch_layout(Basic), partial=True, since="0.22"),
    Scenario("PyTorch's names in enums", "enums", torch_layout(Enums), adapter="pytorch", since="0.22"),
    Scenario("PyTorch's adapter on a file of Burn", "basic", adapter="pytorch", since="0.21"),
    Scenario("PyTorch's adapter, names of both kinds", "basic",
             both(torch_layout(Basic), with_extra("layer.gamma.old")), adapter="pytorch", since="0.22"),
    Scenario("PyTorch's adapter and a filter", "basic", torch_layout(Basic), adapter="pytorch",
             regexes=("gamma$",), since="0.22"),
    Scenario("halves made floats", "basic", cast(np.float16), adapter="half", since="0.22"),
    Scenario("floats made halves", "basic", adapter="half", since="0.22"),
    Scenario("two errors in the order of the model", "basic",
             both(changed("rms.gamma", lambda gamma: gamma[:-1]), changed("conv.bias", lambda bias: bias[:-1]))),
]  # fmt: skip


def test_the_newest_stable_release_differs_in_nothing():
    assert all(NEWEST not in scenario.differs for scenario in SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
def test_a_load_ends_alike_and_its_lists_are_the_same(burn, generated, scenario, tmp_path):
    if VERSIONS.index(burn.version) < VERSIONS.index(scenario.since):
        pytest.skip(f"Burn {burn.version} has no such thing")
    file = tmp_path / "edited.bpk"
    with bs.open(generated.file(scenario.model)) as given:
        # Some edits put tensors in PyTorch's layout into a file of Burn: what such a file states is wrong on purpose.
        edited = [tensor.replace(layout="burn") for tensor in scenario.edit(list(given.values()))]
        bs.save(edited, file, metadata=dict(given.metadata), layout="burn", burn_version=burn.release)
    restores_ids = VERSIONS.index(burn.version) >= VERSIONS.index("0.22")
    ids = {tensor.path: tensor.param_id for tensor in edited if restores_ids}
    burns = by_burn(burn.load(scenario.model, file, *scenario.arguments()), ids)
    mine = by_us(scenario, file, burn.version, ids)
    if burn.version == "0.19":  # which sorts nothing, and tells no containers
        mine, burns = mine.plain(), burns.plain()
    if burn.version in scenario.differs:
        assert mine != burns, "no longer different"
    else:
        assert mine == burns


@dataclass
class Outcome:
    """How a load ended, in words that both sides share."""

    ended: str
    applied: list[str]
    skipped: list[str]
    missing: list[tuple[str, str]]
    unused: list[str]
    errors: list[tuple[str, str]]
    values: dict[str, tuple[bs.DType, str]]
    took_their_ids: list[str]

    def plain(self) -> Outcome:
        """With paths only, in an order of their own."""
        missing = sorted(pair[0] if isinstance(pair, tuple) else pair for pair in self.missing)
        return replace(self, skipped=sorted(self.skipped), missing=missing, unused=sorted(self.unused))


def by_us(scenario: Scenario, file: Path, version: str, ids: dict[str, int | None]) -> Outcome:
    model = zoo.declare(scenario.model, version)
    try:
        result, ended = scenario.store(file).load(model), "loaded"
    except (bs.errors.LoadError, bs.errors.MissingTensorsError) as refused:
        result, ended = refused.result, refused.message.partition(":")[0]
    after = {tensor.path: tensor for tensor in bs.collect(model)}
    applied = result.applied if ended == "loaded" else []
    return Outcome(
        ended,
        result.applied,
        result.skipped,
        [(str(path), ".".join(zoo.spelled(path.container_path.split("."), version))) for path in result.missing],
        result.unused,
        [(error.path, error.kind) for error in result.errors],
        {path: as_burn_holds_it(after[path]) for path in applied},
        [path for path in applied if path in ids and ids[path] == after[path].param_id],
    )


def as_burn_holds_it(tensor: bs.TensorSnapshot) -> tuple[bs.DType, str]:
    """Dtype and digest; bools in the one form of Burn's CPU backend, where burnstore keeps that of the file."""
    raw, dtype = tensor.to_bytes(), tensor.dtype
    if dtype.is_bool:
        raw, dtype = tensor.numpy().tobytes(), bs.DType.Bool
    return dtype, hashlib.sha256(raw).hexdigest()


def by_burn(loading: Loading, ids: dict[str, int | None]) -> Outcome:
    ended = "loaded"
    if loading.error is not None:
        ended = next((words for words in ("Import errors", "Missing tensors") if words in loading.error), loading.error)
    result = loading.result or dict.fromkeys(("applied", "skipped", "missing", "unused", "errors"), ())
    after = {tensor.path: tensor for tensor in loading.tensors}
    applied = result["applied"] if ended == "loaded" else []
    return Outcome(
        ended,
        result["applied"],
        result["skipped"],
        [tuple(pair) if isinstance(pair, list) else pair for pair in result["missing"]],
        result["unused"],
        [error_of(text) for text in result["errors"]],
        {path: (after[path].dtype, after[path].sha256) for path in applied},
        [path for path in applied if path in ids and ids[path] == after[path].param_id],
    )


_ERRORS = {"Shape mismatch": "ShapeMismatch", "DType mismatch": "DTypeMismatch", "Load error": "LoadError"}


def error_of(text: str) -> tuple[str, str]:
    words, path = re.match(r"(\w+ \w+) for '(.*?)'", text).groups()
    return path, _ERRORS[words]
