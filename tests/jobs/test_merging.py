"""merge: overlays, weighted means and arcs of files, with every conflict an error unless a policy is given."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st

import burnstore as bs
from burnstore import DType
from burnstore.errors import AlreadyExistsError, DTypeError, MergeError, ModelError, PatternError
from burnstore.tensor.quantization import QuantScheme, QuantStore

F32 = np.float32
Arrays = dict[str, Any]


def rand(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


def model(seed: int) -> Arrays:
    return {
        "encoder.weight": rand(seed, 5, 4),
        "encoder.bias": rand(seed + 100, 4),
        "head.weight": rand(seed + 200, 4, 2),
    }


@pytest.fixture(scope="module", autouse=True)
def _tracker_of_processes() -> None:
    """The first process that is spawned leaves a pipe open to the end, for Python's own use."""
    resource_tracker.ensure_running()


class Files:
    """A folder in which files are made by a name and arrays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out.bpk"

    def __call__(self, name: str, arrays: Any, **options: Any) -> Path:
        path = self.folder / name
        bs.save(arrays, path, **options)
        return path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def two(files: Files) -> list[Path]:
    return [files("a.bpk", model(1)), files("b.bpk", model(2))]


def test_a_part_of_every_source_is_merged_and_a_source_may_state_its_own(files: Files) -> None:
    one = files("one.safetensors", {f"{part}.w": np.full(2, value, F32) for part, value in (("model", 1), ("ema", 2))})
    two = files("two.safetensors", {"ema.w": np.full(2, 4, F32)})
    out = files.folder / "out.safetensors"
    bs.merge([one, two], out, method="linear", t=0.5, top_level_key="ema")
    with bs.open(out) as f:
        assert f["w"].numpy().tolist() == [3, 3]
    bs.merge(
        [bs.MergeSource(one, top_level_key="model"), two],
        out,
        t=0.5,
        method="linear",
        top_level_key="ema",
        overwrite=True,
    )
    with bs.open(out) as f:
        assert f["w"].numpy().tolist() == [2.5, 2.5]


def contents(path: Path) -> dict[str, bytes]:
    with bs.open(path) as f:
        return {name: tensor.to_bytes() for name, tensor in f.items()}


def arrays(path: Path) -> Arrays:
    with bs.open(path) as f:
        return f.numpy()


# --- overlays ---------------------------------------------------------------------------------------------------------


def test_files_without_a_name_in_common_are_laid_together(files: Files) -> None:
    one, other = model(1), {f"other.{name}": array for name, array in model(2).items()}
    done = bs.merge([files("a.bpk", one), files("b.bpk", other)], files.out)
    assert list(contents(files.out)) == [*one, *other]
    assert contents(files.out) == {name: array.tobytes() for name, array in {**one, **other}.items()}
    assert done.verified and done.nbytes == sum(map(len, contents(files.out).values()))
    assert [row.sources for row in done.tensors] == [(0,)] * 3 + [(1,)] * 3


def test_a_name_in_two_sources_is_an_error_that_leaves_nothing_behind(two: list[Path], files: Files) -> None:
    with pytest.raises(MergeError, match=r"encoder.weight': 2 sources have this tensor: .*a\.bpk.*b\.bpk") as caught:
        bs.merge(two, files.out)
    assert caught.value.hint is not None and "conflicts" in caught.value.hint
    assert sorted(path.name for path in files.folder.iterdir()) == ["a.bpk", "b.bpk"]


@pytest.mark.parametrize(("policy", "seed"), [("first", 1), ("last", 2)])
def test_a_policy_says_whose_tensor_counts(two: list[Path], files: Files, policy: Any, seed: int) -> None:
    done = bs.merge(two, files.out, conflicts=policy)
    assert contents(files.out) == {name: array.tobytes() for name, array in model(seed).items()}
    assert all(row.sources == (seed - 1,) and row.conflict for row in done.tensors)


def test_a_policy_can_leave_out_what_conflicts(files: Files) -> None:
    a, b = files("a.bpk", model(1)), files("b.bpk", {"head.weight": rand(3, 1), "new": rand(4, 2)})
    done = bs.merge([a, b], files.out, conflicts="skip")
    assert list(contents(files.out)) == ["encoder.weight", "encoder.bias", "new"]
    assert list(done.left_out) == ["head.weight"]


def test_part_of_one_file_goes_over_another(two: list[Path], files: Files) -> None:
    b = bs.MergeSource(two[1], filter=r"^encoder\.")
    bs.merge([two[0], b], files.out, conflicts="last")
    wanted = {**model(2), "head.weight": model(1)["head.weight"]}
    assert contents(files.out) == {name: wanted[name].tobytes() for name in model(1)}


def test_a_source_can_be_renamed_and_filters_see_the_names_in_the_target(two: list[Path], files: Files) -> None:
    b = bs.MergeSource(two[1], filter=r"^decoder\.", rename=[r"^encoder\.=>decoder."])
    bs.merge([two[0], b], files.out)
    assert list(contents(files.out)) == [*model(1), "decoder.weight", "decoder.bias"]
    assert contents(files.out)["decoder.bias"] == model(2)["encoder.bias"].tobytes()


def test_a_filter_or_a_renaming_that_matches_nothing_is_an_error(two: list[Path], files: Files) -> None:
    with pytest.raises(PatternError, match=r"b\.bpk: the filter '\^enc0der' matched no"):
        bs.merge([two[0], bs.MergeSource(two[1], filter="^enc0der")], files.out)
    with pytest.raises(PatternError, match=r"b\.bpk: the rename '\^enc0der' matched no tensor"):
        bs.merge([two[0], bs.MergeSource(two[1], rename=["^enc0der=>x"])], files.out, conflicts="last")


@pytest.mark.slow("a slow reference")
@given(
    st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 99), max_size=6), min_size=1, max_size=4),
    st.sampled_from(["first", "last", "skip"]),
)
def test_an_overlay_is_that_of_dicts(tmp_path_factory: Any, given_: list[dict[str, int]], policy: Any) -> None:
    folder = tmp_path_factory.mktemp("overlay")
    paths = []
    for at, values in enumerate(given_):
        paths.append(folder / f"{at}.bpk")
        bs.save({name: np.float32([value]) for name, value in values.items()}, paths[-1])
    names = list(dict.fromkeys(name for values in given_ for name in values))
    holders = {name: [values[name] for values in given_ if name in values] for name in names}
    if policy == "skip":
        wanted = {name: values[0] for name, values in holders.items() if len(values) == 1}
    else:
        wanted = {name: values[0 if policy == "first" else -1] for name, values in holders.items()}
    if not wanted:
        with pytest.raises(MergeError, match="no tensor would be written"):
            bs.merge(paths, folder / "out.bpk", conflicts=policy)
        return
    bs.merge(paths, folder / "out.bpk", conflicts=policy)
    assert {name: array.item() for name, array in arrays(folder / "out.bpk").items()} == wanted


# --- weighted means ---------------------------------------------------------------------------------------------------


def test_a_soup_is_the_mean(files: Files) -> None:
    sources = [files(f"{seed}.bpk", model(seed)) for seed in range(5)]
    done = bs.merge(sources, files.out, method="linear")
    for name, found in arrays(files.out).items():
        mean = torch.stack([torch.from_numpy(model(seed)[name]).double() for seed in range(5)]).mean(0)
        np.testing.assert_allclose(found, mean.numpy(), rtol=2e-7, atol=1e-8)
    assert all(row.weights == (0.2,) * 5 and row.sources == (0, 1, 2, 3, 4) for row in done.tensors)


@pytest.mark.slow("a slow reference")
@given(st.data())
def test_a_mean_is_that_of_arrays(tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("mean")
    shapes = data.draw(st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 3), max_size=3), min_size=1))
    weights = data.draw(st.lists(st.floats(-2, 2), min_size=1, max_size=4).filter(lambda given: abs(sum(given)) > 0.1))
    models = [{name: rand(seed, *shape) for name, shape in shapes.items()} for seed in range(len(weights))]
    for seed, arrays_ in enumerate(models):
        bs.save(arrays_, folder / f"{seed}.bpk", layout="burn")
    paths = [folder / f"{seed}.bpk" for seed in range(len(weights))]
    bs.merge(paths, folder / "out.bpk", method="linear", weights=weights, normalize=True, durable=False)
    scaled = [weight / math.fsum(weights) for weight in weights]
    for name, found in arrays(folder / "out.bpk").items():
        wanted = sum(weight * model_[name].astype(np.float64) for weight, model_ in zip(scaled, models, strict=True))
        assert found.shape == tuple(shapes[name])
        np.testing.assert_allclose(found, wanted, rtol=2e-7, atol=1e-7)


def test_t_leads_from_the_first_source_to_the_second(two: list[Path], files: Files) -> None:
    for t in (0.0, 0.25, 1.0):
        bs.merge(two, files.out, method="linear", t=t, overwrite=True)
        for name, found in arrays(files.out).items():
            one, other = (model(seed)[name].astype(np.float64) for seed in (1, 2))
            np.testing.assert_allclose(found, ((1 - t) * one + t * other).astype(F32), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", ["linear", "slerp"])
def test_weights_of_1_and_0_give_the_first_file_bit_for_bit(files: Files, method: Any) -> None:
    odd = {"w": np.frombuffer(np.random.default_rng(0).bytes(4096), F32), "n": np.int64([3])}
    a = files("a.bpk", odd)
    b = files("b.bpk", {"w": np.full(1024, np.nan, F32), "n": np.int64([4]), "more": np.zeros(1, F32)})
    done = bs.merge([a, b], files.out, method=method, weights=[1, 0])
    assert contents(files.out) == contents(a) and list(done.left_out) == ["more"]
    bs.merge([a], files.folder / "alone.bpk", method="linear")
    assert contents(files.folder / "alone.bpk") == contents(a)


def test_weights_by_pattern_replace_the_others_and_the_last_that_matches_counts(two: list[Path], files: Files) -> None:
    rules = {r"^encoder\.": [0.3, 0.7], "bias$": [0.0, 1.0]}
    done = bs.merge(two, files.out, method="linear", weights=[1, 0], tensor_weights=rules)
    used = {row.name: row.weights or row.sources for row in done.tensors}
    assert used == {"encoder.weight": (0.3, 0.7), "encoder.bias": (1,), "head.weight": (0,)}
    assert contents(files.out)["encoder.bias"] == model(2)["encoder.bias"].tobytes()
    with pytest.raises(PatternError, match=r"'\^decoder' of weights matched no tensor"):
        bs.merge(two, files.out, method="linear", tensor_weights={"^decoder": [0, 1]}, overwrite=True)


def test_task_vectors_are_weights_that_add_up_to_one(files: Files) -> None:
    """What tuning changed in one model, added to another: a + (b - c)."""
    sources = [files(f"{seed}.bpk", model(seed)) for seed in range(3)]
    bs.merge(sources, files.out, method="linear", weights=[1, 1, -1])
    for name, found in arrays(files.out).items():
        a, b, c = (model(seed)[name].astype(np.float64) for seed in range(3))
        np.testing.assert_allclose(found, a + (b - c), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [0.5, 0.4]}, "the weights add up to 0.9, not to 1"),
        ({"weights": [0.5, 0.25, 0.25]}, "expected 2 weights \\(one per source\\), got 3"),
        ({"weights": [np.nan, 1]}, "must be finite"),
        ({"weights": [1, -1], "normalize": True}, "add up to 0"),
        ({"tensor_weights": {"head": [1]}}, "expected 2 weights \\(one per source\\) for 'head', got 1"),
        ({"t": 0.5, "weights": [0.5, 0.5]}, "t stands for the weights"),
        ({"method": "overlay", "weights": [0.5, 0.5]}, "an overlay takes no weights"),
        ({"method": "cubic"}, "method must be one of"),
        ({"conflicts": "both"}, "conflicts must be one of"),
    ],
)
def test_weights_that_make_no_sense_are_refused(
    two: list[Path], files: Files, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(MergeError, match=message):
        bs.merge(two, files.out, **{"method": "linear", **options})
    assert not files.out.exists()


def test_weights_are_scaled_when_that_is_asked_for(two: list[Path], files: Files) -> None:
    done = bs.merge(two, files.out, method="linear", weights=[1, 3], normalize=True)
    assert done.tensors[0].weights == (0.25, 0.75)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": np.zeros(3, F32)}, r"shape \[2\] in one source, \[3\] in another"),
        ({"w": np.zeros(2, np.float16)}, "dtype F32 in one source, F16 in another"),
        ({"v": np.zeros(2, F32)}, r"missing in .*b\.bpk"),
    ],
    ids=["shape", "dtype", "missing"],
)
def test_what_does_not_blend_is_a_conflict(files: Files, other: Arrays, message: str) -> None:
    a, b = files("a.bpk", {"w": np.ones(2, F32)}), files("b.bpk", other)
    with pytest.raises(MergeError, match=f"tensor 'w': {message}"):
        bs.merge([a, b], files.out, method="linear")
    bs.merge([a, b], files.out, method="linear", conflicts="first")
    assert contents(files.out)["w"] == np.ones(2, F32).tobytes()
    bs.merge([b, files("keep.bpk", {"w": np.ones(2, F32)})], files.out, conflicts="last", overwrite=True)
    with pytest.raises(MergeError, match="no tensor would be written"):
        bs.merge([a, b], files.out, method="linear", conflicts="skip", overwrite=True)


def test_floats_of_several_dtypes_blend_into_one_that_is_asked_for(files: Files) -> None:
    a, b = files("a.bpk", {"w": F32([1, 2]), "n": np.int64([1])}), files("b.bpk", {"w": np.float16([3, 4])})
    done = bs.merge([a, b], files.out, method="linear", cast="bf16", conflicts="first")
    with bs.open(files.out) as f:
        assert (str(f["w"].dtype), f["w"].numpy().tolist()) == ("BF16", [2.0, 3.0])
        assert str(f["n"].dtype) == "I64" and len(done.tensors) == 2
    with pytest.raises(DTypeError, match="cannot cast values to I64"):
        bs.merge([a, b], files.out, method="linear", cast="i64", overwrite=True)


def test_an_overlay_too_can_be_of_one_dtype(two: list[Path], files: Files) -> None:
    bs.merge(two, files.out, conflicts="first", cast="f16")
    assert contents(files.out) == {name: array.astype(np.float16).tobytes() for name, array in model(1).items()}


def test_integers_and_bools_must_agree(files: Files) -> None:
    same = {"steps": np.int64([7]), "mask": np.array([True, False])}
    a = files("a.bpk", {**same, "count": np.int32([1])})
    b = files("b.bpk", {**same, "count": np.int32([2])})
    with pytest.raises(MergeError, match=r"tensor 'count': differs from that of .*b\.bpk"):
        bs.merge([a, b], files.out, method="linear")
    assert not files.out.exists()
    for policy, wanted in (("first", 1), ("last", 2)):
        done = bs.merge([a, b], files.out, method="linear", conflicts=policy, overwrite=True)  # type: ignore[arg-type]
        assert arrays(files.out)["count"].tolist() == [wanted]
        assert [row.name for row in done.tensors if row.conflict] == ["count"]
    bs.merge([a, b], files.out, method="linear", conflicts="skip", overwrite=True)
    assert list(contents(files.out)) == ["steps", "mask"]


def test_quantized_tensors_are_laid_over_each_other_or_must_agree(files: Files) -> None:
    dtype = DType.qfloat(QuantScheme("Q8S", QuantStore("Native")))
    paths = [
        files(f"{value}.bpk", {"q": bs.TensorData.from_bytes(bytes([value] * 12), dtype, [8])}) for value in (1, 2)
    ]
    bs.merge(paths, files.out, conflicts="last")
    assert contents(files.out) == contents(paths[1])
    with pytest.raises(MergeError, match="tensor 'q': differs"):
        bs.merge(paths, files.out, method="linear", overwrite=True)
    (files.folder / "same.bpk").write_bytes(paths[0].read_bytes())
    bs.merge([paths[0], files.folder / "same.bpk"], files.out, method="linear", overwrite=True)
    assert contents(files.out) == contents(paths[0])


def test_a_sum_that_does_not_fit_leaves_the_old_file(two: list[Path], files: Files) -> None:
    a = files("large.bpk", {"w": np.float16([60000])})
    b = files("small.bpk", {"w": np.float16([-60000])})
    files("out.bpk", {"old": np.zeros(1)})
    with pytest.raises(DTypeError, match="tensor 'w': 1 sum is too large for F16"):
        bs.merge([a, b], files.out, method="linear", weights=[2, -1], overwrite=True)
    assert list(contents(files.out)) == ["old"]


# --- arcs -------------------------------------------------------------------------------------------------------------


def test_slerp_is_that_of_float64_arithmetic(two: list[Path], files: Files) -> None:
    done = bs.merge(two, files.out, method="slerp", t=0.3)
    for name, found in arrays(files.out).items():
        x, y = (model(seed)[name].astype(np.float64) for seed in (1, 2))
        angle = np.arccos(np.vdot(x, y) / np.linalg.norm(x) / np.linalg.norm(y))
        wanted = (np.sin(0.7 * angle) * x + np.sin(0.3 * angle) * y) / np.sin(angle)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
    assert not done.notes


def test_where_there_is_no_arc_slerp_is_linear_and_says_so(files: Files) -> None:
    a = files("a.bpk", {"same": rand(1, 8), "turned": rand(2, 8), "n": np.int64([1])})
    b = files("b.bpk", {"same": 2 * rand(1, 8), "turned": rand(3, 8), "n": np.int64([1])})
    done = bs.merge([a, b], files.out, method="slerp")
    assert done.notes == ["blended linearly, because there is no arc between them: same"]
    np.testing.assert_allclose(arrays(files.out)["same"], 1.5 * rand(1, 8), rtol=1e-6)
    with pytest.raises(MergeError, match="slerp needs two sources, got 3"):
        bs.merge([a, b, a], files.out, method="slerp", overwrite=True)


# --- whoever computes it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["linear", "slerp"])
def test_the_bits_are_the_same_whoever_computes_them(files: Files, method: Any) -> None:
    layers = {seed: {f"w{at}": rand(at + 9 * seed, 700, 300) for at in range(4)} for seed in (1, 2)}
    sources = [files(f"{seed}.safetensors", layers[seed]) for seed in layers]
    outcomes = []
    with ThreadPoolExecutor(3) as threads:
        for executor in (None, 2, threads):
            out = files.folder / f"out-{len(outcomes)}.safetensors"
            bs.merge(sources, out, method=method, t=0.4, executor=executor)
            outcomes.append(out.read_bytes())
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_processes_blend_strided_sharded_and_transposed_tensors_too(files: Files) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.LSTM(20, 8))
    for seed in (1, 2):
        torch.manual_seed(seed)
        torch.save({"w": torch.randn(50, 40).t(), "half": torch.randn(9).half()}, files.folder / f"strided{seed}.pt")
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter)
        torch.save(net.state_dict(), files.folder / f"net{seed}.pt")
        layers = {"a": rand(seed, 300, 200), "b": rand(seed + 5, 50_000)}
        files(f"shards{seed}.safetensors", layers, max_shard_size="220KB")
    ways: dict[str, dict[str, Any]] = {
        "strided{}.pt": {"keep_layout": True},
        "net{}.pt": {"like": net},
        "shards{}.safetensors.index.json": {"keep_layout": True},
    }
    for name, options in ways.items():
        outcomes = set()
        for executor in (None, 2):
            sources = [files.folder / name.format(seed) for seed in (1, 2)]
            bs.merge(sources, files.out, method="slerp", t=0.3, executor=executor, overwrite=True, **options)
            outcomes.add(files.out.read_bytes())
        assert len(outcomes) == 1


DASK = """
import sys
import distributed
import burnstore as bs
if __name__ == "__main__":
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        with distributed.Client(cluster) as client:
            bs.merge(sys.argv[1:3], sys.argv[3], method="slerp", t=0.4, executor=client, max_shard_size="400KB")
"""


@pytest.mark.slow("a cluster")
@pytest.mark.skipif(
    find_spec("distributed") is None, reason="Dask's cluster, the package distributed, is not installed"
)
def test_a_cluster_of_dask_merges_into_shards(files: Files, run_python: Any) -> None:
    layers = {seed: {f"w{at}": rand(at + 9 * seed, 400, 100) for at in range(6)} for seed in (1, 2)}
    sources = [files(f"{seed}.safetensors", layers[seed]) for seed in layers]
    out = files.folder / "shards" / "m.safetensors"
    out.parent.mkdir()
    run_python(DASK, *sources, out)
    bs.merge(sources, files.folder / "one.safetensors", method="slerp", t=0.4)
    assert contents(out.parent) == contents(files.folder / "one.safetensors")
    assert len(list(out.parent.glob("*.safetensors"))) > 1


MEMORY = """
import resource, sys
import burnstore as bs
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bs.merge(sys.argv[1:4], sys.argv[4], method=sys.argv[5], durable=False)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
"""


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("method", ["linear", "overlay"])
def test_a_merge_needs_no_more_memory_than_the_largest_tensor_and_64_mb(
    files: Files, method: str, run_python: Any
) -> None:
    rows = 24 << 20  # 96 MiB a tensor
    prefixes = ("", "", "") if method == "linear" else ("a", "b", "c")
    for at, prefix in enumerate(prefixes):
        with open(files.folder / f"{at}.safetensors", "wb") as file:
            header = json.dumps({f"{prefix}w": {"dtype": "F32", "shape": [rows], "data_offsets": [0, rows * 4]}})
            file.write(len(header).to_bytes(8, "little") + header.encode())
            file.truncate(8 + len(header) + rows * 4)
    sources = [files.folder / f"{at}.safetensors" for at in range(3)]
    peak = int(run_python(MEMORY, *sources, files.folder / "out.safetensors", method))
    assert peak <= 64 << 20, f"{peak >> 20} MiB for blocks of three files of 96 MiB"  # not even the tensor: it streams


TRANSPOSED = """
import resource, sys
import numpy as np
import burnstore as bs
*sources, small, target, method = sys.argv[1:]
options = {"method": method, "rules": {"^fc$": "Linear"}, "durable": False, "overwrite": True}
bs.save({"fc.weight": np.eye(2, dtype=np.float32)}, small, layout="torch")
bs.merge([small, small], target, **options)  # what is imported late is imported now
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bs.merge(sources, target, **options)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
"""


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("method", ["linear", "slerp"])
def test_a_merge_of_sources_that_must_be_transposed_holds_one_matrix(
    files: Files, method: str, run_python: Any
) -> None:
    """Sums are computed before the transposition, so there is one matrix in memory and not one for each source."""
    extent = 4096  # 64 MiB a matrix
    for at in range(2):
        with open(files.folder / f"{at}.safetensors", "wb") as file:
            described = {"dtype": "F32", "shape": [extent, extent], "data_offsets": [0, extent * extent * 4]}
            header = json.dumps({"__metadata__": {"format": "pt"}, "fc.weight": described})
            file.write(len(header).to_bytes(8, "little") + header.encode())
            file.truncate(8 + len(header) + extent * extent * 4)
    sources = [files.folder / f"{at}.safetensors" for at in range(2)]
    peak = int(run_python(TRANSPOSED, *sources, files.folder / "small.safetensors", files.folder / "out.bpk", method))
    assert peak <= (64 << 20) + 64_000_000, f"{peak >> 20} MiB"


def test_a_blend_of_transposed_sources_has_the_bits_of_the_blend(files: Files) -> None:
    arrays = [{"fc.weight": rand(seed, 5, 3), "fc.bias": rand(seed, 5)} for seed in (1, 2)]
    sources = [files.folder / f"{at}.safetensors" for at in range(2)]
    for source, each in zip(sources, arrays, strict=True):
        bs.save(each, source, layout="torch")
    for method in ("linear", "slerp"):
        bs.merge(sources, files.folder / f"{method}.safetensors", method=method, t=0.3)
        bs.merge(sources, files.folder / f"{method}.bpk", method=method, t=0.3, rules={"^fc$": "Linear"})
        bs.merge(
            sources, files.folder / f"{method}.half.bpk", method=method, t=0.3, rules={"^fc$": "Linear"}, cast="f16"
        )
        with bs.open(files.folder / f"{method}.safetensors") as kept, bs.open(files.folder / f"{method}.bpk") as turned:
            assert np.array_equal(kept["fc.weight"].numpy().T, turned["fc.weight"].numpy())
        with bs.open(files.folder / f"{method}.half.bpk") as half:
            assert half["fc.weight"].shape == (3, 5) and half["fc.weight"].dtype is DType.F16


# --- layouts, formats, texts ------------------------------------------------------------------------------------------


def test_files_of_pytorch_merge_into_safetensors_that_say_whose_layout_it_is(files: Files) -> None:
    for seed in (1, 2):
        torch.save({"w": torch.from_numpy(rand(seed, 3, 2))}, files.folder / f"{seed}.pt")
    out = files.folder / "out.safetensors"
    done = bs.merge([files.folder / "1.pt", files.folder / "2.pt"], out, method="linear")
    with bs.open(out) as f:
        assert (f.layout, done.layout, f["w"].shape) == ("torch", "torch", (3, 2))
    assert safetensors.numpy.load_file(out)["w"].shape == (3, 2)


def saved_linear(files: Files, name: str, seed: int) -> tuple[Path, torch.nn.Module]:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 4))
    path = files.folder / name
    bs.save(net, path)
    return path, net


def test_a_file_whose_modules_are_recorded_is_brought_into_the_layout_of_the_target(files: Files) -> None:
    burn, one = saved_linear(files, "a.bpk", 1)  # Burn's layout, modules recorded
    layout_torch, other = saved_linear(files, "b.safetensors", 2)
    out = files.folder / "out.safetensors"
    with pytest.raises(ModelError, match=r"b\.safetensors: nothing states the kinds of the modules"):
        bs.merge([burn, layout_torch], files.out, method="linear")
    bs.merge([burn, layout_torch], files.out, method="linear", like=one)
    assert np.allclose(arrays(files.out)["0.weight"].T, (one[0].weight + other[0].weight).detach() / 2)
    done = bs.merge([layout_torch, burn], out, method="linear")
    assert done.layout == "torch"
    for name, found in arrays(out).items():
        mean = (one.state_dict()[name].double() + other.state_dict()[name].double()) / 2
        np.testing.assert_allclose(found, mean.numpy(), rtol=1e-6)


def test_sources_that_do_not_tell_their_layout_are_not_taken_for_another(files: Files) -> None:
    told = files("a.safetensors", {"w": rand(1, 2, 3)}, metadata={"format": "pt"})
    silent = files("b.safetensors", {"w": rand(2, 2, 3)}, metadata={})
    out = files.folder / "out.safetensors"
    with pytest.raises(ModelError, match=r"b\.safetensors: the file does not state its layout.* has torch's"):
        bs.merge([told, silent], out, method="linear")
    assert bs.merge([told, silent], out, method="linear", layout="torch").layout == "torch"
    assert bs.merge([silent, silent], out, method="linear", overwrite=True).layout is None
    with pytest.raises(ModelError, match="no source states its layout, and burnpack has burn's"):
        bs.merge([silent, silent], files.out, method="linear")
    kept = bs.merge([silent, silent], files.out, method="linear", keep_layout=True)
    with bs.open(files.out) as f:
        assert kept.layout is None and f.layout not in ("burn", "torch")


def test_texts_are_kept_where_sources_agree_and_told_of_where_they_do_not(files: Files) -> None:
    texts = {"author": "me", "format": "pt"}
    a = files("a.safetensors", {"w": rand(1, 2)}, metadata={**texts, "epochs": "3", "only": "a"})
    b = files("b.safetensors", {"w": rand(2, 2)}, metadata={**texts, "epochs": "4"})
    out = files.folder / "out.safetensors"
    done = bs.merge([a, b], out, method="linear")
    with bs.open(out) as f:
        assert dict(f.metadata) == {**texts, "only": "a"}
    assert done.notes == ["metadata on which the sources differ was left out: epochs"]
    bs.merge([a, b], out, method="linear", metadata={"mine": "1", "author": None}, overwrite=True)
    with bs.open(out) as f:
        assert dict(f.metadata) == {"mine": "1", "format": "pt", "only": "a"}


def test_the_outcome_is_plain_data_too(two: list[Path], files: Files) -> None:
    done = bs.merge(two, files.out, method="linear", t=0.25)
    told = json.loads(json.dumps(done.to_dict()))
    assert told["tensors"][0] == {
        "name": "encoder.weight",
        "sources": [0, 1],
        "weights": [0.75, 0.25],
        "conflict": None,
    }
    assert (told["verified"], told["layout"], told["bytes"]) == (True, None, done.nbytes)


def test_progress_is_told_to_the_end(two: list[Path], files: Files) -> None:
    told: list[tuple[int, int]] = []
    bs.merge(two, files.out, method="linear", progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0 and sorted(told) == told
    told.clear()
    bs.merge(two, files.out, method="slerp", progress=lambda done, total: told.append((done, total)), overwrite=True)
    read = sum(2 * array.nbytes for array in model(1).values())
    assert (read, read) in told and told[-1][0] == told[-1][1] > read


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_target_that_exists_or_is_a_source_is_refused(two: list[Path], files: Files) -> None:
    files("out.bpk", {"old": np.zeros(1)})
    with pytest.raises(AlreadyExistsError):
        bs.merge(two, files.out, method="linear")
    before = contents(two[0])
    with pytest.raises(bs.errors.SaveError, match="source and target are the same file"):
        bs.merge(two, two[0], method="linear", overwrite=True)
    assert contents(two[0]) == before and list(contents(files.out)) == ["old"]


def test_what_cannot_be_read_or_written_is_told_and_nothing_is_left(two: list[Path], files: Files) -> None:
    with pytest.raises(FileNotFoundError):
        bs.merge([two[0], files.folder / "none.bpk"], files.out, method="linear")
    with pytest.raises(bs.errors.UnknownFormatError, match="the file name has no suffix of a known format"):
        bs.merge(two, files.folder / "out.xyz", method="linear")
    (files.folder / "cut.bpk").write_bytes(two[1].read_bytes()[:-40])
    with pytest.raises(bs.errors.FormatError):
        bs.merge([two[0], files.folder / "cut.bpk"], files.out, method="linear")
    with pytest.raises(TypeError, match="sources must be a list of files, got a str"):
        bs.merge(str(two[0]), files.out)
    with pytest.raises(MergeError, match="expected at least one source, got none"):
        bs.merge([], files.out)
    assert not files.out.exists()


def test_what_the_reader_left_out_of_a_source_is_named_with_its_file(files: Files, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "m": np.ma.array([1.0], mask=[1])}, tmp_path / "a.pt")
    torch.save({"state_dict": {"v": torch.ones(2)}, "optimizer": {0: torch.ones(2)}}, tmp_path / "b.pt")
    done = bs.merge([tmp_path / "a.pt", tmp_path / "b.pt"], tmp_path / "c.safetensors")
    assert done.notes[0] == f"{tmp_path / 'a.pt'}: left out: m: a masked NumPy array"
    assert "left out, with the number of tensors in each: optimizer (1)" in done.notes[1]
    joined = bs.convert([tmp_path / "a.pt", tmp_path / "b.pt"], tmp_path / "d.safetensors")
    assert joined.notes == done.notes
