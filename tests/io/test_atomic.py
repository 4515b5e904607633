"""What `atomic_file` promises when nothing, or only the caller, goes wrong."""

# ruff: noqa: PT012 - a save is a block, and what it raises may come out of the block's end

from __future__ import annotations

import errno
import itertools
import os
import signal
import stat
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from burnstore.errors import AlreadyExistsError, ClosedError, SaveError
from burnstore.io import atomic
from burnstore.io.atomic import atomic_file, stale_scratch_files

pytestmark = pytest.mark.usefixtures("no_leak")
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX only")


def save(path, content: bytes, **options) -> None:
    with atomic_file(path, **options) as scratch:
        scratch.write(content)


# --- the ordinary case ------------------------------------------------------------------------------------------------


def test_a_new_file_appears_only_when_the_block_ends(tmp_path):
    path = tmp_path / "model.bpk"
    with atomic_file(path) as scratch:
        scratch.write(b"abc")
        assert not path.exists()
        (name,) = os.listdir(tmp_path)
        assert name.startswith(f".model.bpk.{os.getpid()}-")
        assert name.endswith(".burnstore-tmp")
    assert path.read_bytes() == b"abc"
    assert os.listdir(tmp_path) == ["model.bpk"]


def test_overwriting_replaces_the_whole_file(tmp_path):
    path = tmp_path / "model.bpk"
    save(path, b"a long first version")
    save(path, b"short", overwrite=True)
    assert path.read_bytes() == b"short"


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("size", [None, 7])
@pytest.mark.parametrize("overwrite", [True, False])
def test_every_combination_of_options_saves(tmp_path, durable, size, overwrite):
    save(tmp_path / "x", b"seven!!", durable=durable, size=size, overwrite=overwrite)
    assert (tmp_path / "x").read_bytes() == b"seven!!"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("size", [None, 0])
def test_an_empty_file_can_be_saved(tmp_path, size):
    with atomic_file(tmp_path / "x", size=size):
        pass
    assert (tmp_path / "x").read_bytes() == b""


def test_paths_may_be_relative_text_or_path_objects(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("plain", b"1")
    save(Path("object"), b"2")
    save(os.path.join(".", "dotted"), b"3")
    assert sorted(os.listdir(tmp_path)) == ["dotted", "object", "plain"]


def test_a_relative_destination_stays_put_when_the_working_folder_changes(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with atomic_file("x") as scratch:
        os.chdir("elsewhere")
        scratch.write(b"1")
    assert (tmp_path / "x").read_bytes() == b"1"
    assert os.listdir(tmp_path / "elsewhere") == []


# --- write ------------------------------------------------------------------------------------------------------------


def test_write_takes_every_kind_of_buffer_in_order(tmp_path):
    matrix = np.arange(6, dtype="<i4").reshape(2, 3)
    scalar = np.array(1.5, dtype="<f8")
    empty = np.zeros((0, 3), dtype="<f4")
    buffers = [b"ab", bytearray(b"cd"), memoryview(b"efgh")[1:3], matrix, scalar, b"", empty, b"end"]
    with atomic_file(tmp_path / "x") as scratch:
        scratch.write(*buffers)
        scratch.write()
        assert scratch.position == 2 + 2 + 2 + 24 + 8 + 3
    expected = b"abcdfg" + matrix.tobytes() + scalar.tobytes() + b"end"
    assert (tmp_path / "x").read_bytes() == expected


@pytest.mark.parametrize("bad", [np.zeros((4, 4), dtype="<f4").T[1:], np.arange(10)[::2], memoryview(b"abcdef")[::2]])
def test_a_buffer_that_is_not_contiguous_is_refused_and_nothing_is_published(tmp_path, bad):
    with pytest.raises((BufferError, TypeError, ValueError)), atomic_file(tmp_path / "x") as scratch:
        scratch.write(b"before", bad)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("window", [1, 7, 64, 1000])
@pytest.mark.parametrize("most", [1, 3, 1024])
def test_windows_and_batches_never_change_the_bytes(tmp_path, monkeypatch, window, most):
    monkeypatch.setattr(atomic, "SYSCALL_BYTES", window)
    monkeypatch.setattr(atomic, "_MAX_BUFFERS", most)
    random = np.random.default_rng(1)
    buffers = [random.bytes(int(n)) for n in random.integers(0, 40, size=60)]
    buffers += [random.bytes(window), random.bytes(3 * window), b"", random.bytes(3 * window + 1)]
    with atomic_file(tmp_path / "x", durable=False, size=sum(map(len, buffers))) as scratch:
        scratch.write(*buffers)
    assert (tmp_path / "x").read_bytes() == b"".join(buffers)


@posix
def test_many_small_buffers_need_few_system_calls_and_little_time(tmp_path, monkeypatch):
    calls = []
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, batch: calls.append(len(batch)) or real(fd, batch))
    buffers = [bytes([n % 256]) * 100 for n in range(20_000)]
    with atomic_file(tmp_path / "x", durable=False) as scratch:
        start = time.perf_counter()
        scratch.write(*buffers)
        took = time.perf_counter() - start
    assert calls == [1024] * 19 + [20_000 - 19 * 1024]
    assert took < 0.5  # 6 ms on an idle machine
    assert (tmp_path / "x").read_bytes() == b"".join(buffers)


def test_large_buffers_are_not_copied(tmp_path):
    content = bytearray(64 << 20)
    tracemalloc.start()
    try:
        with atomic_file(tmp_path / "x", durable=False, size=len(content)) as scratch:
            scratch.write(content, memoryview(content)[:0])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_without_writev_the_bytes_are_the_same(tmp_path, use_os):
    class Windowslike:
        def __getattr__(self, name):
            if name in ("writev", "posix_fallocate", "fchmod", "fchown", "listxattr", "fpathconf", "O_NOFOLLOW"):
                raise AttributeError(name)
            return getattr(os, name)

    use_os(Windowslike())
    save(tmp_path / "x", b"old")
    with atomic_file(tmp_path / "x", overwrite=True, size=300) as scratch:
        scratch.write(*[bytes([n]) for n in range(100)], bytes(200))
    assert (tmp_path / "x").read_bytes() == bytes(range(100)) + bytes(200)


@pytest.mark.parametrize("overwrite", [True, False])
def test_without_dir_fd_the_protocol_is_the_same(tmp_path, monkeypatch, overwrite):
    monkeypatch.setattr(atomic, "_HAS_DIR_FD", False)
    if overwrite:
        save(tmp_path / "x", b"old")
    save(tmp_path / "x", b"new", overwrite=overwrite)
    assert (tmp_path / "x").read_bytes() == b"new"
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "none" / "x", b"")
    with pytest.raises(SaveError):
        save(tmp_path / "x" / "y", b"")
    assert os.listdir(tmp_path) == ["x"]


@posix
def test_signals_during_a_large_write_do_not_disturb_it(tmp_path):
    ticks = []
    old = signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        content = np.arange(6 << 20, dtype="<i8")
        save(tmp_path / "x", content, durable=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert ticks
    assert np.array_equal(np.fromfile(tmp_path / "x", dtype="<i8"), content)


# --- what is refused before any work ----------------------------------------------------------------------------------


def test_an_existing_file_needs_overwrite_and_is_not_touched(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(AlreadyExistsError, match="File already exists") as caught, atomic_file(path):
        pytest.fail("the block must not run")
    error = caught.value
    assert (error.stage, error.path, error.hint, error.errno) == (
        "check",
        str(path),
        "pass overwrite=True",
        errno.EEXIST,
    )
    assert isinstance(error, FileExistsError)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_file_that_appears_during_the_save_survives(tmp_path, scratch_files):
    path = tmp_path / "x"
    with pytest.raises(AlreadyExistsError) as caught, atomic_file(path) as scratch:
        scratch.write(b"mine")
        path.write_bytes(b"theirs")
    assert (caught.value.stage, caught.value.errno) == ("publish", errno.EEXIST)
    assert path.read_bytes() == b"theirs"
    assert scratch_files(tmp_path) == []


@posix
def test_a_dangling_link_that_appears_during_the_save_survives(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(AlreadyExistsError), atomic_file(path) as scratch:
        scratch.write(b"mine")
        path.symlink_to("nowhere")
    assert os.listdir(tmp_path) == ["x"]
    assert os.readlink(path) == "nowhere"


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_missing_folder_is_a_plain_file_not_found_error(tmp_path, overwrite):
    with pytest.raises(FileNotFoundError, match="no such folder") as caught:
        save(tmp_path / "none" / "x", b"", overwrite=overwrite)
    assert caught.value.filename == str(tmp_path / "none")
    assert not isinstance(caught.value, SaveError)


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_file_in_place_of_the_folder_is_refused(tmp_path, overwrite):
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(SaveError) as caught:
        save(tmp_path / "file" / "x", b"", overwrite=overwrite)
    assert (caught.value.stage, caught.value.errno) == ("check", errno.ENOTDIR)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("path", ["", ".", "..", "folder/", "folder/.", "folder/..", "/", "new/", "a\0b"])
def test_a_path_that_names_no_file_is_refused(tmp_path, monkeypatch, path, overwrite):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(SaveError, match="not a file path") as caught:
        save(path, b"", overwrite=overwrite)
    assert caught.value.stage == "check"


@posix
@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("kind", ["folder", "fifo", "/dev/full", "/dev/null"])
def test_what_is_not_a_regular_file_is_never_replaced(tmp_path, kind, overwrite, linked):
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path = Path(kind)
    if linked:
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    before = os.lstat(path)
    with pytest.raises(SaveError, match=r"folder|regular") as caught:
        save(path, b"1", overwrite=overwrite)
    assert caught.value.stage == "check"
    assert not isinstance(caught.value, AlreadyExistsError)
    assert stat.S_IFMT(os.lstat(path).st_mode) == stat.S_IFMT(before.st_mode)


def test_a_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(SaveError) as caught:
        save(tmp_path / ("x" * 300), b"")
    assert (caught.value.stage, caught.value.errno) == ("check", errno.ENAMETOOLONG)


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "🔥" * 63, "x" * 230, ".hidden", "with\nnewline", " ", "\\"])
def test_every_name_that_a_file_may_have_can_be_saved(tmp_path, name, scratch_files):
    if sys.platform == "win32":
        pytest.skip("other rules for names")
    with atomic_file(tmp_path / name) as scratch:
        scratch.write(b"1")
        assert len(scratch_files(tmp_path)) == 1
    save(tmp_path / name, b"2", overwrite=True)
    assert os.listdir(tmp_path) == [name]


@pytest.mark.skipif(sys.platform != "linux", reason="names that are not UTF-8")
def test_a_name_that_is_not_utf8_can_be_saved(tmp_path):
    name = os.fsdecode(b"\xff" * 255)
    save(os.path.join(tmp_path, name), b"1")
    assert os.listdir(tmp_path) == [name]


def test_a_negative_size_is_refused(tmp_path):
    with pytest.raises(ValueError, match="negative"), atomic_file(tmp_path / "x", size=-1):
        pass


# --- a caller that fails (S7) -----------------------------------------------------------------------------------------


class Custom(BaseException):
    pass


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, MemoryError, SystemExit, OSError, StopIteration, GeneratorExit, Custom, ValueError]
)
def test_an_exception_of_the_block_passes_unchanged_and_leaves_the_old_file(tmp_path, kind, index, existing):
    path = tmp_path / "x"
    if existing:
        path.write_bytes(b"old")
    raised = kind("mine")
    with pytest.raises(kind) as caught, atomic_file(path, overwrite=True, size=50) as scratch:
        for number in range(5):
            if number == index:
                raise raised
            scratch.write(b"0123456789")
        raise raised
    assert caught.value is raised
    assert os.listdir(tmp_path) == (["x"] if existing else [])
    assert not existing or path.read_bytes() == b"old"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError, Custom])
@pytest.mark.parametrize("index", range(5))
def test_an_interrupt_inside_a_write_leaves_the_old_file(tmp_path, use_os, kind, index):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    counter = itertools.count()

    class Interrupted:
        def __getattr__(self, name):
            return getattr(os, name)

        def writev(self, fd, batch):
            if next(counter) == index:
                raise kind
            return os.writev(fd, batch)

    use_os(Interrupted())
    with pytest.raises(kind), atomic_file(path, overwrite=True) as scratch:
        for _ in range(5):
            scratch.write(b"0123456789")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("written", [0, 9, 11, 20])
def test_another_size_than_announced_is_never_published(tmp_path, written):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(SaveError, match=f"expected 10 bytes, {written} were written") as caught:
        save(path, bytes(written), overwrite=True, size=10)
    assert caught.value.stage == "write"
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_failed_write_that_the_block_swallows_is_never_published(tmp_path):
    with pytest.raises(SaveError, match="did not finish") as caught, atomic_file(tmp_path / "x") as scratch:
        with pytest.raises(TypeError):
            scratch.write(b"good", 3.5)
        with pytest.raises(SaveError, match="did not finish"):
            scratch.write(b"more")
    assert caught.value.stage == "write"
    assert os.listdir(tmp_path) == []


def test_a_file_that_somebody_else_cut_is_never_published(tmp_path, scratch_files):
    with pytest.raises(SaveError, match="5 bytes were written, the file has 2"), atomic_file(tmp_path / "x") as scratch:
        scratch.write(b"12345")
        os.truncate(tmp_path / scratch_files(tmp_path)[0], 2)
    assert os.listdir(tmp_path) == []


def test_writing_after_the_end_is_refused(tmp_path):
    with atomic_file(tmp_path / "x") as scratch:
        scratch.write(b"1")
    with pytest.raises(ClosedError):
        scratch.write(b"2")
    with pytest.raises(KeyError), atomic_file(tmp_path / "y") as other:
        raise KeyError
    with pytest.raises(ClosedError):
        other.write(b"2")
    assert (tmp_path / "x").read_bytes() == b"1"


def test_a_save_that_is_dropped_half_way_cleans_up(tmp_path):
    manager = atomic_file(tmp_path / "x")
    manager.__enter__().write(b"1")
    del manager
    assert os.listdir(tmp_path) == []


@posix
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("fails", [True, False])
def test_a_child_forked_inside_the_block_neither_publishes_nor_cleans(tmp_path, fails):
    path = tmp_path / "x"
    stages = []
    try:
        with atomic_file(path) as scratch:
            scratch.write(b"1")
            pid = os.fork()
            if pid == 0 and fails:
                raise KeyError
            if pid:
                assert os.waitpid(pid, 0)[1] == 0
                assert not path.exists()
                scratch.write(b"2")
    except (SaveError, KeyError) as error:
        stages.append(getattr(error, "stage", "body"))
    if pid == 0:
        os._exit(0 if stages == (["body"] if fails else ["write"]) else 1)
    assert path.read_bytes() == b"12"
    assert os.listdir(tmp_path) == ["x"]


# --- scratch names (S11) ----------------------------------------------------------------------------------------------


@posix
def test_taken_scratch_names_are_passed_over_and_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_numbers", itertools.count(100))
    victim = tmp_path / "victim"
    victim.write_bytes(b"victim")
    names = [f".x.{os.getpid()}-{n}.burnstore-tmp" for n in range(100, 107)]
    (tmp_path / names[0]).write_bytes(b"left by another")
    (tmp_path / names[1]).symlink_to(victim)
    (tmp_path / names[2]).symlink_to("nowhere")
    (tmp_path / names[3]).mkdir()
    os.mkfifo(tmp_path / names[4])
    os.link(victim, tmp_path / names[5])
    with atomic_file(tmp_path / "x") as scratch:
        scratch.write(b"new")
        assert (tmp_path / names[6]).is_file()
    assert (tmp_path / "x").read_bytes() == b"new"
    assert victim.read_bytes() == b"victim"
    assert not (tmp_path / "nowhere").exists()
    assert sorted(os.listdir(tmp_path)) == sorted(["victim", "x", *names[:6]])


def test_when_all_scratch_names_are_taken_the_save_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_numbers", itertools.count(0))
    monkeypatch.setattr(atomic, "_MAX_NAMES", 3)
    names = [f".x.{os.getpid()}-{n}.burnstore-tmp" for n in range(3)]
    for name in names:
        (tmp_path / name).write_bytes(b"taken")
    with pytest.raises(SaveError, match="taken") as caught:
        save(tmp_path / "x", b"")
    assert caught.value.stage == "create"
    assert not isinstance(caught.value, AlreadyExistsError)
    assert sorted(os.listdir(tmp_path)) == names


@posix
def test_a_forked_child_does_not_reuse_its_parents_names(tmp_path, in_child):
    def child():
        with atomic_file(tmp_path / "y"):
            return sorted(os.listdir(tmp_path))

    with atomic_file(tmp_path / "x"):
        names = in_child(child)
    assert len(names) == 2
    assert str(os.getpid()) in names[0]
    assert str(os.getpid()) not in names[1]


# --- stale scratch files ----------------------------------------------------------------------------------------------


def test_stale_scratch_files_are_old_ours_and_unlocked(tmp_path):
    old = time.time() - 2 * 86400
    for name in [".x.1-0.burnstore-tmp", ".a b.c.99-12.burnstore-tmp", ".new.1-1.burnstore-tmp"]:
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (old, old))
    os.utime(tmp_path / ".new.1-1.burnstore-tmp")
    for name in ["x", ".x.1-0.tmp", "x.1-0.burnstore-tmp", ".x.1-a.burnstore-tmp", ".1-0.burnstore-tmp"]:
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (old, old))
    (tmp_path / ".d.1-0.burnstore-tmp").mkdir()
    os.utime(tmp_path / ".d.1-0.burnstore-tmp", (old, old))
    before = sorted(os.listdir(tmp_path))
    found = stale_scratch_files(tmp_path)
    assert [os.path.basename(path) for path in found] == [".a b.c.99-12.burnstore-tmp", ".x.1-0.burnstore-tmp"]
    assert all(os.path.dirname(path) == str(tmp_path) for path in found)
    assert sorted(os.listdir(tmp_path)) == before
    assert len(stale_scratch_files(tmp_path, older_than=0)) == 3


@posix
def test_a_running_save_is_not_stale_however_old(tmp_path, scratch_files):
    with atomic_file(tmp_path / "x") as scratch:
        scratch.write(b"1")
        (name,) = scratch_files(tmp_path)
        os.utime(tmp_path / name, (1, 1))
        assert stale_scratch_files(tmp_path) == []
    (tmp_path / name).write_bytes(b"")
    os.utime(tmp_path / name, (1, 1))
    assert stale_scratch_files(tmp_path) == [str(tmp_path / name)]


@posix
def test_links_at_scratch_names_are_not_stale_files(tmp_path):
    (tmp_path / "victim").write_bytes(b"")
    os.utime(tmp_path / "victim", (1, 1))
    link = tmp_path / ".x.1-0.burnstore-tmp"
    link.symlink_to(tmp_path / "victim")
    os.utime(link, (1, 1), follow_symlinks=False)
    assert stale_scratch_files(tmp_path) == []
