"""Remove the central mechanisms of each law one at a time; the unit tests that guard the law must fail.

Each row of `MUTANTS` names a law, a mechanism, the attributes to replace so that it is gone, and its guards: tests that
pass on the unchanged burnstore. With the mutant, at least one case of every guard must fail. One child process runs all
of them, so a mutant never reaches the other tests.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import burnstore
from burnstore.errors import CorruptError

from .holes import CHECKS, HOLES, Patch, _no_list, _none_changed, _nothing, planted

ROOT = Path(__file__).resolve().parents[2]


def _true(*_: Any, **__: Any) -> bool:
    return True


def _false(*_: Any, **__: Any) -> bool:
    return False


def _no_dict(*_: Any, **__: Any) -> dict[Any, Any]:
    return {}


def _one_memory_for_all(self: Any, offset: int, length: int) -> Any:
    self._lent = []
    return _WRITABLE(self, offset, length)


_WRITABLE = importlib.import_module("burnstore.io.source").FileMap.writable

MUTANTS: list[tuple[int, str, Patch, list[str]]] = [
    (1, "the count of stored tensors against names and notes",
     {"formats.pytorch.graph:_unnamed": _no_list, "formats.pytorch.graph:_unreferenced": _no_list},
     ["formats/test_pytorch_accounting.py::test_what_has_no_name_is_noted_with_the_reason",
      "formats/test_pytorch_accounting.py::test_a_storage_that_the_object_does_not_refer_to_is_noted"]),
    (1, "the arguments and items of an object", HOLES["arguments and items of an object are not read"],
     ["formats/test_pytorch_accounting.py::test_every_tensor_is_named"]),
    (2, "the refusal of values that no format can hold", HOLES["a number in a nested mapping is dropped"],
     ["pipeline/test_save_accounting.py::test_a_number_or_text_in_a_nested_mapping_is_refused"]),
    (2, "the search for tensors that a model hides", {"models.plain:_Search.tensors_in": _no_dict},
     ["pipeline/test_save_accounting.py::test_what_is_not_written_is_named_with_the_reason"]),
    (3, "the proof of a layout that a file does not state", HOLES["an unstated layout is taken as Burn's"],
     ["formats/test_safetensors_burn.py::test_a_file_of_burn_fills_the_model_that_it_is_of",
      "conformance/test_burn_safetensors.py::test_without_the_adapter_the_layout_is_proved_by_names_and_noted"]),
    (3, "the refusal of Burn's names for a torch model", {"pipeline.layouts:check_not_burn": _nothing},
     ["layouts/test_contradictions.py::test_a_file_of_burns_names_is_not_taken_for_pytorchs"]),
    (3, "the comparison of rules with shapes", CHECKS["transforms.layout: check_shapes"],
     ["layouts/test_contradictions.py::test_a_rule_that_the_shapes_contradict_is_refused"]),
    (3, "the notes on modules of unknown kind", HOLES["modules of unknown kind are copied unsaid"],
     ["layouts/test_contradictions.py::test_convert_groups_modules_of_unknown_kind_by_class"]),
    (3, "the layout beside an adapter of values", HOLES["an adapter of values drops the layout conversion"],
     ["pipeline/test_compositions.py::test_an_adapter_of_values_keeps_the_layout_conversion"]),
    (3, "the comparison with like", HOLES["like does not check names and shapes"],
     ["layouts/test_contradictions.py::"
      "test_a_file_given_as_like_in_the_other_layout_must_have_every_tensor_of_the_source"]),
    (4, "the refusal of half a norm", HOLES["half of a norm is filled with ones or zeros"],
     ["pipeline/test_compositions.py::test_a_norm_with_a_bias_alone_is_refused"]),
    (4, "the comparison of constants with the file", CHECKS["transforms.view: constants that have another value"],
     ["layouts/test_constants.py::test_a_constant_that_no_longer_holds_is_refused"]),
    (5, "the check that a value fits its new dtype", {"transforms.precision:_changed": _none_changed},
     ["transforms/test_exact_casts.py::test_the_example_of_the_law"]),
    (5, "the note on values that a cast makes 0", HOLES["a cast makes values 0 silently"],
     ["pipeline/test_compositions.py::test_values_that_a_cast_makes_0_are_noted_by_every_verb"]),
    (5, "the check that a bool is 0 or 1", HOLES["a bool byte of 2 is accepted"],
     ["formats/test_safetensors_rules.py::test_a_bool_that_is_neither_is_refused_when_it_is_read",
      "formats/test_burnpack_rules.py::test_bp_19_a_bool_that_is_neither_0_nor_1_is_refused_when_it_is_read"]),
    (6, "the identity that the shards of one save share", {"formats.sharded.read:SET_KEY": "no such key"},
     ["formats/test_sharded.py::test_a_shard_of_another_save_is_refused"]),
    (6, "the question whether the file was replaced", {"io.source:FileSource.is_current": _true},
     ["formats/test_sharded.py::"
      "test_an_index_without_identity_that_is_replaced_while_its_shards_are_opened_is_read_anew",
      "jobs/test_receipt.py::test_a_source_that_is_replaced_meanwhile_gets_no_receipt",
      "stores/test_burnpack_store.py::test_a_file_that_was_replaced_is_read_by_the_same_store"]),
    (6, "the refusal to write onto a source", {"jobs.merge.merge:check_apart": _nothing},
     ["jobs/test_merging.py::test_a_target_that_exists_or_is_a_source_is_refused"]),
    (7, "the comparison of values in shared memory", {"pipeline.execute:disagreeing": _no_dict},
     ["models/test_overlaps.py::test_values_that_do_not_agree_are_refused_before_anything_changes"]),
    (7, "the comparison of two values for a tie", HOLES["tied parameters take the first of two values"],
     ["models/test_torch_apply.py::test_tied_weights_with_two_values_are_an_error_and_the_model_is_as_it_was"]),
    (7, "memory of its own for each tensor of a mapped file", {"io.source:FileMap.writable": _one_memory_for_all},
     ["models/test_zero_copy.py::test_a_tensor_that_outlives_its_checkpoint_is_private_too"]),
    (8, "the bound on the length of all names", {"formats.pytorch.graph:_CHARACTERS_PER_BYTE": 1 << 40},
     ["formats/test_pytorch_bounds.py::test_a_small_file_never_costs_much[a long prefix of many names]"]),
    (8, "the budget for tensors that share bytes", {"jobs.budget:_TIMES": 1 << 40},
     ["jobs/test_verification.py::test_statistics_have_the_same_budget"]),
    (9, "reading on where a block ends inside an opcode", {"formats.codec.pickle:TruncatedError": CorruptError},
     ["formats/test_pytorch_valid.py::test_every_prefix_of_a_pickle_is_truncated_so_a_stream_reads_on"]),
    (9, "the precedence of SafeTensors' signature", {"formats.registry:_begins_like_safetensors": _false},
     ["formats/test_registry.py::test_the_length_of_a_safetensors_header_is_no_pickle"]),
    (9, "leaving out tensors whose bytes are damaged", {"formats.pytorch.salvage:_is_whole": _true},
     ["formats/test_pytorch_salvage.py::test_a_storage_with_a_flipped_bit_is_lost_and_the_others_are_not",
      "formats/test_pytorch_valid.py::test_no_damaged_tensor_of_a_legacy_stream_is_salvaged"]),
    (10, "judging a file by what each loader would run", {"jobs.scan.scan:Inspector.run": _true},
     ["jobs/test_scan_loaders.py::test_what_a_loader_would_run_is_never_clean"]),
    (10, "verifying bytes that are in no tensor", {"checkpoint:Checkpoint.checks": _no_list},
     ["jobs/test_verification.py::test_members_that_no_tensor_refers_to_are_checked_too"]),
    (11, "the union of several filters", HOLES["of two filters only the last counts"],
     ["jobs/test_conversion.py::test_filters_with_flags_and_several_of_them"]),
    (11, "renaming simultaneously", HOLES["a mapping of renames is applied in sequence"],
     ["transforms/test_remap.py::test_the_names_of_a_mapping_are_swapped",
      "pipeline/test_compositions.py::test_a_mapping_swaps_names_in_every_verb"]),
    (11, "the refusal of options that exclude each other", {"pipeline.options:Pipeline._check_conflicts": _nothing},
     ["pipeline/test_option_pairs.py::test_every_pair_combines_or_is_refused_in_either_order[convert]"]),
]  # fmt: skip


def test_every_law_has_a_mutant() -> None:
    assert {law for law, *_ in MUTANTS} == set(range(1, 12))


@pytest.mark.slow("runs the guards of each law with and without its mechanisms")
def test_no_mechanism_can_be_removed_unnoticed(tmp_path: Path) -> None:
    paths = [str(Path(burnstore.__file__).parents[1]), str(ROOT / "tests")]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "PYTEST_"))}
    command = [sys.executable, "-m", "compose.test_law_mutants", str(tmp_path)]
    environment = {**inherited, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == {"fail without a mutant": [], "pass with a mutant": []}, done.stdout


# --- in the child -----------------------------------------------------------------------------------------------------


class _Calls:
    """The tests that ran, and those that failed with the reason; errors in fixtures do not count."""

    def __init__(self) -> None:
        self.ran: set[str] = set()
        self.failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.removeprefix("tests/")
        if report.when == "call" and not report.skipped:
            self.ran.add(name)
            if report.failed:
                self.failed[name] = report.longrepr.reprcrash.message


def _run(guards: Iterable[str], folder: str) -> _Calls:
    calls = _Calls()
    options = ["-p", "no:cacheprovider", "--no-summary", "--tb=line", f"--basetemp={folder}/run"]
    pytest.main([*options, *(f"tests/{guard}" for guard in guards)], plugins=[calls])
    return calls


def _has_case(names: Iterable[str], guard: str) -> bool:
    return any(name == guard or name.startswith(f"{guard}[") for name in names)


def main(folder: str) -> None:
    """Run every guard without a mutant, then the guards of each mutant with it; write what is not as it must be."""
    every = sorted({guard for *_, guards in MUTANTS for guard in guards})
    usual = _run(every, folder)
    broken = [*usual.failed, *(guard for guard in every if not _has_case(usual.ran, guard))]
    unnoticed = []
    for law, removed, patch, guards in MUTANTS:
        with planted(patch):
            failed = _run(guards, folder).failed
        unnoticed += [f"law {law}, {removed}: {guard}" for guard in guards if not _has_case(failed, guard)]
        for name, reason in failed.items():
            print(f"law {law}, {removed}: {name}: {reason[:200]}")
    found = {"fail without a mutant": broken, "pass with a mutant": unnoticed}
    Path(folder, "found.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
