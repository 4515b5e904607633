"""What `atomic_file` promises when the system fails: injected faults, power cuts, full disks (S3-S7, S14)."""

# ruff: noqa: PT012, PT017 - a save is a block, and what it raises may come out of the block's end

from __future__ import annotations

import errno
import gc
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from faulty_fs import KINDS, FaultyFS

from burnstore.errors import AlreadyExistsError, SaveError
from burnstore.io.atomic import atomic_file
from conftest import open_descriptors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the calls counted here are Linux's")

ERRNOS = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR, errno.EACCES, errno.EROFS, errno.ENOSYS]
OLD, NEW = b"old content", [b"new ", b"", b"content, ", b"longer than before", b"!" * 5000]
SCENARIOS = ["new", "overwrite", "link"]


def prepare(folder: Path, scenario: str) -> Path:
    """A fresh destination of that kind; for the old file, everything that can be kept is there to keep."""
    path = real = folder / "x"
    if scenario != "new":
        if scenario == "link":
            real = folder / "target"
            path.unlink(missing_ok=True)
            path.symlink_to("target")
        real.unlink(missing_ok=True)
        real.write_bytes(OLD)
        real.chmod(0o640)
        if os.geteuid() == 0:
            os.chown(real, 1234, 1234)
        with suppress(OSError):
            os.setxattr(real, "user.note", b"kept")
    else:
        path.unlink(missing_ok=True)
    return path


def save(path: Path, scenario: str, **options) -> None:
    with atomic_file(path, overwrite=scenario != "new", size=sum(map(len, NEW)), **options) as scratch:
        scratch.write(*NEW[:2])
        scratch.write(*NEW[2:4])
        scratch.write(NEW[4])


def stages_of(shim: FaultyFS) -> dict[tuple[str, int], str]:
    """The stage in which each call of a faultless save lies, by kind and index."""
    stages, counts, stage = {}, dict.fromkeys(KINDS, 0), "check"
    for name, args, _, _ in shim.calls:
        after = None
        if name == "open" and isinstance(args[0], str) and args[0].endswith("burnstore-tmp"):
            stage, after = "create", "metadata"
        elif name == "posix_fallocate":
            stage, after = "allocate", "write"
        elif name == "fstat" and stage == "write":
            stage = "sync"
        elif name in ("replace", "link"):
            stage, after = "publish", "published"
        stages[name, counts[name]] = stage
        counts[name] += 1
        stage = after or stage
    return stages


def tolerated(kind: str, at: int, stage: str, error: int, scenario: str, sticky: bool) -> bool:
    """Whether a save goes on after this fault, because what failed is not needed or has another way."""
    return (
        kind in ("fchown", "getxattr", "setxattr")
        or (kind in ("listxattr", "posix_fallocate") and error == errno.ENOSYS)
        or (kind == "readlink" and not (scenario == "link" and sticky and at == 0))  # the folder's own look decides
        or (kind == "close" and stage == "published")  # the folder was only read
        or kind == "link"  # then by rename
    )


def content(path: Path) -> bytes | None:
    return path.read_bytes() if os.path.exists(path) else None


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("longest", [0, 600], ids=["whole", "short"])
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "sticky"])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_call_that_fails_leaves_old_or_new_and_names_its_stage(
    tmp_path, use_os, scratch_files, kind, scenario, sticky, longest
):
    clean = FaultyFS(longest_write=longest)
    path = prepare(tmp_path, scenario)
    use_os(clean)
    save(path, scenario)
    assert content(path) == b"".join(NEW)
    stages = stages_of(clean)
    if kind == "rename" or (kind == "removexattr" and not clean.counts[kind]):
        assert not clean.counts[kind]
        return
    for at, error in itertools.product(range(clean.counts[kind]), ERRNOS):
        path = prepare(tmp_path, scenario)
        before = open_descriptors()
        shim = FaultyFS(kind, at, error, sticky, longest)
        use_os(shim)
        stage = stages[kind, at]
        where = f"{kind} {at} {errno.errorcode[error]} in {stage}"
        try:
            save(path, scenario)
        except SaveError as failed:
            assert not tolerated(kind, at, stage, error, scenario, sticky), where
            assert failed.stage == stage, where
            assert failed.path == str(path), where
            if kind != "readlink":
                assert failed.errno == error, where
                assert isinstance(failed.__cause__, OSError), where
            assert ("saved, but" in str(failed)) == (stage == "published"), where
            assert ("not saved" in str(failed)) == (stage != "published"), where
            expected = b"".join(NEW) if stage == "published" else (None if scenario == "new" else OLD)
        else:
            assert tolerated(kind, at, stage, error, scenario, sticky), where
            expected = b"".join(NEW)
        assert shim.hits, where
        assert content(path) == expected, where
        assert os.path.islink(path) == (scenario == "link"), where
        assert open_descriptors() <= before, where
        left = scratch_files(tmp_path)
        assert len(left) == (kind == "unlink"), where
        for name in left:
            os.unlink(tmp_path / name)


@pytest.mark.parametrize("longest", [1, 2, 3, 100])
def test_short_writes_are_completed(tmp_path, use_os, longest):
    use_os(FaultyFS(longest_write=longest))
    save(tmp_path / "x", "new")
    assert content(tmp_path / "x") == b"".join(NEW)


@pytest.mark.parametrize("at", [1, 5, 40])
def test_a_fault_after_short_writes_leaves_the_old_file(tmp_path, use_os, at):
    path = prepare(tmp_path, "overwrite")
    use_os(FaultyFS("writev", at, errno.ENOSPC, sticky=True, longest_write=3))
    with pytest.raises(SaveError, match=r"writing failed after [0-9]+ bytes") as caught:
        save(path, "overwrite")
    assert caught.value.stage == "write"
    assert content(path) == OLD
    assert os.listdir(tmp_path) == ["x"]


def test_a_system_that_writes_nothing_and_reports_nothing_is_an_error(tmp_path, use_os):
    class Silent:
        def __getattr__(self, name):
            return (lambda fd, batch: 0) if name == "writev" else getattr(os, name)

    use_os(Silent())
    with pytest.raises(SaveError, match="accepts no more bytes"):
        save(tmp_path / "x", "new")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("sticky", [False, True])
def test_a_failed_fsync_is_never_tried_again(tmp_path, use_os, scenario, sticky):
    path = prepare(tmp_path, scenario)
    shim = FaultyFS("fsync", 0, errno.EIO, sticky)
    use_os(shim)
    with pytest.raises(SaveError) as caught:
        save(path, scenario)
    assert caught.value.stage == "sync"
    assert shim.counts["fsync"] == 1
    assert content(path) == (None if scenario == "new" else OLD)


def test_without_durable_there_is_no_fsync(tmp_path, use_os):
    shim = FaultyFS()
    use_os(shim)
    save(tmp_path / "x", "new", durable=False)
    assert shim.counts["fsync"] == 0
    assert shim.counts["link"] == 1


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_folder_that_cannot_be_flushed_at_all_is_no_error(tmp_path, use_os, error):
    use_os(FaultyFS("fsync", 1, error))
    save(tmp_path / "x", "new")
    assert content(tmp_path / "x") == b"".join(NEW)


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_a_file_system_that_cannot_reserve_room_is_no_error(tmp_path, use_os, error):
    use_os(FaultyFS("posix_fallocate", 0, error))
    save(tmp_path / "x", "new")
    assert content(tmp_path / "x") == b"".join(NEW)


@pytest.mark.parametrize(("kind", "scenario"), [("replace", "overwrite"), ("link", "new")])
@pytest.mark.parametrize("error", [errno.EIO, errno.EEXIST, errno.ENOENT])
def test_a_publication_that_happened_is_not_reported_as_failed(tmp_path, use_os, kind, scenario, error):
    path = prepare(tmp_path, scenario)
    use_os(FaultyFS(kind, 0, error, late=True))
    save(path, scenario)
    assert content(path) == b"".join(NEW)
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_without_hard_links_a_file_that_appeared_still_survives(tmp_path, use_os, error):
    path = tmp_path / "x"
    use_os(FaultyFS("link", 0, error))
    with pytest.raises(AlreadyExistsError) as caught, atomic_file(path) as scratch:
        scratch.write(b"mine")
        path.write_bytes(b"theirs")
    assert caught.value.stage == "publish"
    assert path.read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("second", ["stat", "rename"])
def test_without_hard_links_a_second_fault_is_a_publish_error(tmp_path, use_os, second):
    class Both(FaultyFS):
        def __getattr__(self, name):
            if name == "link":
                raise AttributeError(name)
            return super().__getattr__(name)

    use_os(Both(second, 1 if second == "stat" else 0, errno.EIO, sticky=True))
    with pytest.raises(SaveError) as caught:
        save(tmp_path / "x", "new")
    assert caught.value.stage == "publish"
    assert caught.value.errno == errno.EIO
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["writev", "fsync", "posix_fallocate", "fchmod", "replace", "close"])
@pytest.mark.parametrize("second", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_when_cleaning_up_fails_too_the_error_names_the_scratch_file(tmp_path, use_os, scratch_files, kind, second):
    path = prepare(tmp_path, "overwrite")
    faulty = FaultyFS(kind, 0, errno.ENOSPC, sticky=True)

    class Both:
        def __getattr__(self, name):
            return FaultyFS("unlink", 0, second).unlink if name == "unlink" else getattr(faulty, name)

    use_os(Both())
    with pytest.raises(SaveError) as caught:
        save(path, "overwrite")
    (left,) = scratch_files(tmp_path)
    assert caught.value.errno == errno.ENOSPC
    assert left in str(caught.value)
    assert content(path) == OLD
    use_os(os)
    save(path, "overwrite")  # what was left does not disturb the next save
    assert content(path) == b"".join(NEW)
    assert scratch_files(tmp_path) == [left]


def test_a_lock_that_is_refused_does_not_stop_a_save(tmp_path, monkeypatch):
    import fcntl

    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    save(tmp_path / "x", "new")
    assert content(tmp_path / "x") == b"".join(NEW)


def test_a_real_interrupt_at_any_instant_leaves_old_or_new_and_no_scratch_file(tmp_path):
    armed = False

    def interrupt(*_):
        if armed:  # a late signal must not hit the test itself
            raise KeyboardInterrupt

    path = tmp_path / "x"
    contents = {bytes([fill]) * 50_000 for fill in range(256)}
    path.write_bytes(b"\0" * 50_000)
    old = signal.signal(signal.SIGALRM, interrupt)
    random = np.random.default_rng(5)
    interrupts = 0
    gc.disable()  # whatever else hangs on the collector would be interrupted, too
    try:
        for fill in range(256):
            new = bytes([fill]) * 50_000
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, float(random.uniform(1e-6, 6e-4)))
                with atomic_file(path, overwrite=bool(fill % 2) or path.exists(), durable=fill % 8 == 0) as scratch:
                    for start in range(0, 50_000, 2_500):
                        scratch.write(new[start : start + 2_500])
                armed = False
            except KeyboardInterrupt:
                armed = False
                interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert os.listdir(tmp_path) in (["x"], [])
            if path.exists():
                assert path.read_bytes() in contents
            if fill % 16 == 0:
                path.unlink(missing_ok=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        gc.enable()
        _close_descriptors_in(tmp_path)
    assert interrupts > 20


def _close_descriptors_in(folder):
    # An interrupt between the return of os.open and the assignment of its result loses a descriptor. Python has no
    # means against that, and this test provokes it hundreds of times.
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{number}").startswith(str(folder)):
                os.close(int(number))
        except OSError:
            continue


# --- power cuts (S4) --------------------------------------------------------------------------------------------------
# A model of a disk that is as unkind as POSIX allows. Of what was written to a file since its last fsync each piece may
# be there, half there, or not. Of what was done to the folder since its last fsync any part may be there: a prefix on a
# journalling file system, here any subset. Every state after every call is looked at.


def events_of(shim: FaultyFS) -> list[tuple]:
    events, files = [], {}
    for name, args, _, result in shim.calls:
        if name == "open" and result is not None:
            if args[0].endswith("burnstore-tmp"):
                files[result] = args[0]
                events.append(("create", args[0]))
            else:
                files[result] = None
        elif name == "posix_fallocate":
            events.append(("data", 0, bytes(args[2])))
        elif name == "writev":
            events.append(("write", b"".join(args[1])[:result]))
        elif name == "fsync":
            events.append(("sync file",) if files[args[0]] else ("sync folder",))
        elif name in ("replace", "rename", "link", "unlink") and result is None:
            events.append((name, *args))
        elif name == "close":
            files.pop(args[0], None)
    return [*events, ("returned",)]


def file_states(pieces: list[tuple[int, bytes]], synced: int) -> set[bytes]:
    states = set()
    for kept in itertools.product((0.0, 0.5, 1.0), repeat=len(pieces) - synced):
        image = bytearray()
        for share, (offset, data) in zip([1.0] * synced + list(kept), pieces, strict=True):
            part = data[: int(len(data) * share)]
            if share:
                image.extend(bytes(max(0, offset + len(data) - len(image))))  # the size may be there before the bytes
                image[offset : offset + len(part)] = part
        states.add(bytes(image))
    return states


def folder_states(steps: list[tuple], synced: int, target: str) -> set[str]:
    """What the destination's name may lead to: the "old" file (or nothing) or the "new" one."""
    states = set()
    for kept in itertools.product((False, True), repeat=len(steps) - synced):
        names = {target: "old"}
        for there, step in zip([True] * synced + list(kept), steps, strict=True):
            if there and step[0] in ("replace", "rename", "link"):
                names[step[2]] = "new"
        states.add(names[target])
    return states


def crash_states(events: list[tuple], old: bytes | None, target: str) -> list[tuple[int, bytes | None]]:
    """Every content that the destination may have, with the number of calls that were made before the power went."""
    found = []
    for made in range(len(events) + 1):
        pieces, steps, file_synced, folder_synced, position = [], [], 0, 0, 0
        for event in events[:made]:
            if event[0] == "data":
                pieces.append(event[1:])
            elif event[0] == "write":
                pieces.append((position, event[1]))
                position += len(event[1])
            elif event[0] == "sync file":
                file_synced = len(pieces)
            elif event[0] == "sync folder":
                folder_synced = len(steps)
            elif event[0] != "returned":
                steps.append(event)
        for which in folder_states(steps, folder_synced, target):
            contents = {old} if which == "old" else file_states(pieces, file_synced)
            found += [(made, content) for content in contents]
    return found


def verdict(events: list[tuple], old: bytes | None, target: str) -> tuple[int, bool, bool]:
    """How many states there are, whether one is torn, and whether one lost the new file after the save returned."""
    states = crash_states(events, old, target)
    new = b"".join(NEW)
    torn = any(content not in (old, new) for _, content in states)
    lost = any(made == len(events) and content != new for made, content in states)
    return len(states), torn, lost


@pytest.mark.parametrize("size", [True, False], ids=["reserved", "growing"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_power_cut_at_any_instant_leaves_old_or_new(tmp_path, use_os, scenario, size):
    path = prepare(tmp_path, scenario)
    shim = FaultyFS() if size else FaultyFS("posix_fallocate", 0, errno.ENOSYS)
    use_os(shim)
    save(path, scenario)
    events = events_of(shim)
    old, target = (None, "x") if scenario == "new" else (OLD, "target" if scenario == "link" else "x")
    count, torn, lost = verdict(events, old, target)
    assert count > 10
    assert not torn
    assert not lost
    # The model must be able to see the faults it is there to find.
    assert verdict([event for event in events if event != ("sync file",)], old, target)[1]
    assert verdict([event for event in events if event != ("sync folder",)], old, target)[2]


def test_without_durable_a_power_cut_may_harm_and_the_model_sees_it(tmp_path, use_os):
    path = prepare(tmp_path, "overwrite")
    shim = FaultyFS()
    use_os(shim)
    save(path, "overwrite", durable=False)
    _, torn, lost = verdict(events_of(shim), OLD, "x")
    assert torn
    assert lost


# --- full disks (S6) --------------------------------------------------------------------------------------------------


@pytest.mark.matrix(every=8)
@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("limit", [0, 1, 4095, 4096, 9_999, 10_000, 10_001])
def test_a_file_size_limit_leaves_the_old_file(tmp_path, in_child, limit, announced):
    path = tmp_path / "x"
    path.write_bytes(OLD)

    def child():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            with atomic_file(path, overwrite=True, size=10_000 if announced else None) as scratch:
                scratch.write(*[b"0123456789"] * 1000)
        except SaveError as error:
            return error.stage, error.errno
        return None

    outcome = in_child(child)
    if limit < 10_000:
        assert outcome == ("allocate" if announced else "write", errno.EFBIG)
        assert path.read_bytes() == OLD
    else:
        assert outcome is None
        assert path.stat().st_size == 10_000
    assert os.listdir(tmp_path) == ["x"]


FULL_DISK = """
    import os, sys
    from burnstore.errors import SaveError
    from burnstore.io.atomic import atomic_file

    folder, need = sys.argv[1], 200_000
    path, filler = os.path.join(folder, "x"), os.path.join(folder, "filler")
    outcomes = {}
    for announced in (True, False):
        for pages in range(0, need // 4096 + 3):
            with open(path, "wb") as file:
                file.write(b"old")
            with open(filler, "wb") as file:
                status = os.statvfs(folder)
                os.posix_fallocate(file.fileno(), 0, (status.f_bavail - pages) * status.f_frsize)
            try:
                with atomic_file(path, overwrite=True, size=need if announced else None) as scratch:
                    for _ in range(10):
                        scratch.write(bytes([pages]) * (need // 10))
                outcome, expected = "saved", bytes([pages]) * need
            except SaveError as error:
                assert error.errno == 28, error
                outcome, expected = error.stage, b"old"
            with open(path, "rb") as file:
                assert file.read() == expected
            assert sorted(os.listdir(folder)) == ["filler", "x"]
            outcomes.setdefault((announced, outcome), []).append(pages)
            os.unlink(filler)
    print({key: (min(pages), max(pages)) for key, pages in outcomes.items()})
"""


def test_a_disk_that_is_really_full_leaves_the_old_file(tmp_path):
    unshare = shutil.which("unshare")
    folder = tmp_path / "small"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size=8m none "{folder}"'
    if unshare is None or subprocess.run([unshare, "-Umr", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("a small tmpfs cannot be mounted here (needs user namespaces)")
    source = Path(__file__).resolve().parents[2] / "src"
    script = tmp_path / "full.py"
    script.write_text(textwrap.dedent(FULL_DISK))
    done = subprocess.run(
        [unshare, "-Umr", "sh", "-c", f'{mount} && exec "{sys.executable}" "{script}" "{folder}"'],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    outcomes = eval(done.stdout)
    # 200,000 bytes need 49 pages; a page more or less may go to the folder.
    assert outcomes[True, "saved"][1] == outcomes[False, "saved"][1] == 50
    assert outcomes[True, "allocate"][1] in (48, 49)
    assert outcomes[False, "write"][1] in (48, 49)
    assert {stage for _, stage in outcomes} <= {"create", "metadata", "allocate", "write", "saved"}
