"""Put a known mistake back, or take a check away, and count the cases until the oracle notices.

    python -m tests.compose.holes            the table of docs/oracle.md

Each entry replaces a few attributes of burnstore for as long as it is tried. `HOLES` are mistakes that were in
burnstore once; `CHECKS` are the checks of its mechanisms, each removed.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np

from burnstore.pipeline import options as pipeline_options
from burnstore.transforms import filter as path_filter

from .run import _memory, draw, judge

Patch = dict[str, Any]
"""Attributes by path, as ``module:name`` or ``module:Class.name``, and what stands in their place."""

BAR = 20_000


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no_list(*_: Any, **__: Any) -> list[Any]:
    return []


def _unchecked_mapping(*_: Any) -> tuple[dict[str, str], bool]:
    return {}, False


def _none_changed(values: Any, converted: Any) -> Any:
    return np.zeros(values.shape, bool)


def _no_underflow(values: Any, converted: Any) -> bool:
    return False


def _containers_of_burn(*given: Any) -> tuple[dict[str, str], bool]:
    return _CHECK_MAPPING(*given)[0], False


_CHECK_MAPPING = importlib.import_module("burnstore.pipeline.save")._check_mapping


def _in_order(self: Any, names: Any) -> Any:
    """Rename one after the other: a swap is lost."""
    for old, new in names.items():
        self._rules.append({old: new})
    return self


def _last_only(given: Any) -> Any:
    """Keep the last criterion of a filter only."""
    if isinstance(given, (list, tuple)):
        given = given[-1]
    if isinstance(given, path_filter.PathFilter):
        return given
    return path_filter.PathFilter().with_regex(given)


def _bools_unchecked(raw: Any, dtype: Any, shape: Any) -> Any:
    return np.ndarray(shape, np.dtype("u1"), raw).view(np.bool_)


def _given_or_stated(self: Any, given: Any, notes: Any, adapter: Any = None) -> Any:
    return given or self.layout


def _as_given(chosen: Any, metadata: Any, layout: Any, **_: Any) -> Any:
    """Write the metadata as the caller passes it, whatever the layout is."""
    return metadata, layout


def _models_own(target: Any, snapshots: Any, pipeline: Any) -> Any:
    return _ENDS.Input("<snapshots>", snapshots, target.layout)


def _first_layout(name: str, snapshots: Any, given: Any = None) -> Any:
    """Take the layout of the first tensor for that of all."""
    return _ENDS.Input(name, snapshots, given or (snapshots[0].layout if snapshots else None))


def _rules_unheard(snapshots: Any, *_: Any) -> Any:
    return _NAMES.Named(snapshots, {}, [], {})


def _unresolved(source: Any, *_: Any) -> Any:
    return source


def _silent_plan(*given: Any, **options: Any) -> Any:
    """Plan a save, and forget what was left out."""
    plan, metadata = _PLAN_OF(*given, **options)
    plan.fates = {}
    return plan, metadata


_ENDS = importlib.import_module("burnstore.pipeline.ends")
_NAMES = importlib.import_module("burnstore.pipeline.names")
_PLAN_OF = importlib.import_module("burnstore.stores.base").plan_of


def _unstated_as_burn(source: Any, target: Any, pipeline: Any, *_: Any) -> Any:
    return pipeline.layout or source.layout or "burn", None


def _state_only(value: Any) -> Iterator[Any]:
    """Read the state of an object, and neither its arguments nor its items."""
    if type(value).__name__ == "Call" and not _GRAPH.is_module(value):
        yield from _GRAPH._state_edges(value.state, ())
    else:
        yield from _OBJECT_EDGES(value)


_GRAPH = importlib.import_module("burnstore.formats.pytorch.graph")
_OBJECT_EDGES = _GRAPH._object_edges


def _without_filter(self: Any, moves: Any, known: Any) -> Any:
    return moves


def _without_last(self: Any, moves: Any, known: Any) -> Any:
    """Apply the filter, and lose a tensor of several."""
    kept = _FILTERED(self, moves, known)
    return kept[:-1] if len(kept) > 2 else kept


def _parts_used(seen: Any, module: Any, name: str, links: Any, snapshots: Any) -> None:
    """Count the parts of a tensor that cannot be made as used."""
    _ADD_WHOLE(seen, module, name, links, snapshots)
    parts = [f"{module.burn}.{link.burn}" for link in links]
    seen.used.update(part for part in parts if part in snapshots and len(parts) > 1)


def _old_names(self: Any, source: Any) -> Any:
    return source


def _up_to_the_declared(self: Any, declared: Any) -> Any:
    """Read a binary record, and ignore what follows the last declared field."""
    start = self._reader.position
    ends = self._read(declared, "", start)
    self._reader.move_to(start)
    if ends and self._reader.end not in ends:
        self._read = lambda *_: {self._reader.end: ends[max(ends)]}
    return _DOCUMENT(self, declared)


_DOCUMENT = importlib.import_module("burnstore.formats.record.binary").Reading.document
_ADD_WHOLE = importlib.import_module("burnstore.transforms.view")._add_whole
_FILTERED = importlib.import_module("burnstore.pipeline.compile_file")._Conversion._filtered

_BOOLS: Patch = {
    "tensor.data:check_bools": _nothing,
    "tensor.data:_bools": _bools_unchecked,
    "tensor.snapshot:check_bools": _nothing,
    "pipeline.write:check_bools": _nothing,
    "formats.write:check_bools": _nothing,
}

HOLES: dict[str, Patch] = {
    "arguments and items of an object are not read": {
        "formats.pytorch.graph:_object_edges": _state_only,
        "formats.pytorch.graph:_unreferenced": _no_list,
    },
    "a stored tensor without a name is not noted": {"formats.pytorch.graph:_unnamed": _no_list},
    "convert loses one of several tensors": {"pipeline.compile_file:_Conversion._filtered": _without_last},
    "a number in a nested mapping is dropped": {"pipeline.save:_check_mapping": _unchecked_mapping},
    "an unstated layout is taken as Burn's": {
        "pipeline.compile:decide_layout": _unstated_as_burn,
    },
    "modules of unknown kind are copied unsaid": {
        "pipeline.compile:unknown_notes": _no_list,
        "pipeline.compile_file:unknown_notes": _no_list,
    },
    "half of a norm is filled with ones or zeros": {"transforms.layout:_check_pair": _nothing},
    "an adapter of values drops the layout conversion": {"transforms.adapters:FunctionAdapter.replaces_layout": True},
    "a mapping of renames is applied in sequence": {"transforms.remap:KeyRemapper.add_names": _in_order},
    "a cast overflows silently": {"transforms.precision:_changed": _none_changed},
    "a cast makes values 0 silently": {
        "transforms.precision:underflows": _no_underflow,
        "pipeline.execute:underflows": _no_underflow,
    },
    "arrays in containers are taken as Burn's": {"pipeline.save:_check_mapping": _containers_of_burn},
    "a bool byte of 2 is accepted": _BOOLS,
    "of two filters only the last counts": {
        "pipeline.options:_CHECKS": {**pipeline_options._CHECKS, "filter": _last_only}
    },
    "like does not check names and shapes": {"pipeline.compile_file:_Conversion._check_like": _nothing},
    "tied parameters take the first of two values": {"pipeline.execute:_same_bits": lambda first, second: True},
    "what a filter leaves out still counts": {"pipeline.compile:_Load._kept": _nothing},
    "recorded modules keep their old names": {"pipeline.names:Named.renamed": _old_names},
    "a declaration may lack the end of a binary record": {
        "formats.record.binary:Reading.document": _up_to_the_declared
    },
    "parts of a tensor that lacks others are dropped": {"transforms.view:_add_whole": _parts_used},
    "a .pt does not record another layout": {"formats.pytorch.writer:layout_to_record": _nothing},
    "a .npz does not record its layout": {"formats.numpy.writer:layout_to_record": _nothing},
    "metadata of the caller drops the layout": {"pipeline.metadata:with_layout": _as_given},
    "two unknown layouts are the same in arithmetic": {"jobs.merge.merge:hides_transpose": lambda one, other: False},
    "a list of two layouts is written as the first's": {"pipeline.save:input_of_snapshots": _first_layout},
    "another framework's layout is taken as unstated": {
        "formats.safetensors.reader:_LAYOUTS_OF_FORMATS": {"pt": "torch"}
    },
    "apply takes snapshots as the model's layout": {"pipeline.execute:_input_for": _models_own},
    "a filter hides that a file is Burn's": {"pipeline.layouts:check_not_burn": _nothing},
    "save ignores rules for tensors": {"pipeline.compile_file:follow_rules": _rules_unheard},
    "merge does not prove the layout of a source": {"jobs.merge.merge:_resolved": _unresolved},
    "a store does not say what it left out": {"stores.base:plan_of": _silent_plan},
}

CHECKS: dict[str, Patch] = {
    "formats.pytorch.graph: notes of unnamed data": {"formats.pytorch.graph:_unnamed": _no_list},
    "transforms.layout: check_shapes": {"transforms.layout:check_shapes": _nothing},
    "transforms.layout: half of a norm": {"transforms.layout:_check_pair": _nothing},
    "transforms.view: modules without a counterpart": {"transforms.view:LayoutView.check": _nothing},
    "transforms.view: constants that have another value": {"pipeline.plan:Plan.check_constants": _nothing},
    "transforms.precision: values that do not fit": {"transforms.precision:_changed": _none_changed},
    "transforms.remap: two tensors of one name": {
        "pipeline.names:keep_distinct": lambda names, originals, policy: sorted(
            {name: row for row, name in enumerate(names)}.values()
        )
    },
    "tensor.data: bools": _BOOLS,
    "pipeline.layouts: proved_layout": {"pipeline.layouts:proved_layout": _nothing},
    "pipeline.ends: layout_given": {"pipeline.ends:Input.layout_given": _given_or_stated},
    "pipeline.compile: shape and dtype of a slot": {"pipeline.compile:_mismatch": _nothing},
    "pipeline.stages: adapters of converted tensors": {"pipeline.stages:check_adapted": _nothing},
    "pipeline.compile_file: like": {"pipeline.compile_file:_Conversion._check_like": _nothing},
    "pipeline.compile_file: filter": {"pipeline.compile_file:_Conversion._filtered": _without_filter},
    "pipeline.execute: missing tensors and misfits": {"pipeline.execute:raise_if_refused": _nothing},
    "pipeline.execute: values of ties": {"pipeline.execute:_same_bits": lambda first, second: True},
    "pipeline.save: numbers in mappings": {"pipeline.save:_check_mapping": _unchecked_mapping},
}


@contextmanager
def planted(patch: Patch) -> Iterator[None]:
    """Replace attributes of burnstore for as long as the block lasts."""
    caches = importlib.import_module("burnstore.transforms.layout")
    with ExitStack() as stack:
        for place, stand_in in patch.items():
            module, _, path = place.partition(":")
            owner: Any = importlib.import_module(f"burnstore.{module}")
            *around, name = path.split(".")
            for each in around:
                owner = getattr(owner, each)
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        caches._torch_map.cache_clear()
        try:
            yield
        finally:
            caches._torch_map.cache_clear()


def cases_until_found(patch: Patch, seed: int = 1, most: int = BAR) -> tuple[int, str] | None:
    """Return how many cases it takes until the oracle finds a violation, and which; None if it finds none.

    A case counts only if it has no violation without the patch.
    """
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        for number in range(most):
            with planted(patch):
                violation = judge(draw(seed, number), folder)[1]
            if violation is not None and judge(draw(seed, number), folder)[1] is None:
                return number + 1, violation
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the cases until each hole is found.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checks", action="store_true", help="remove checks instead of planting holes")
    arguments = parser.parse_args()
    lost = 0
    print("| hole | cases until found | seconds | first violation |\n|---|---:|---:|---|")
    for name, patch in (CHECKS if arguments.checks else HOLES).items():
        started = time.monotonic()
        found = cases_until_found(patch, arguments.seed)
        lost += found is None
        shown = ("not found", "") if found is None else (f"{found[0]:,}", found[1].partition("\n")[0][:90])
        print(f"| {name} | {shown[0]} | {time.monotonic() - started:.1f} | {shown[1]} |", flush=True)
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
