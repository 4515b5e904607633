"""What `atomic_file` promises about permissions (S9), links (S10), other writers (S12) and its own death (S1, S2)."""

# ruff: noqa: PT017 - a save is a block, and what it raises may come out of the block's end

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from burnstore.errors import AlreadyExistsError, SaveError
from burnstore.io.atomic import atomic_file

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="POSIX only"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.usefixtures("no_leak"),
]
needs_root = pytest.mark.skipif(os.name == "posix" and os.geteuid() != 0, reason="needs root, to become other users")
needs_xattr = pytest.mark.skipif(not hasattr(os, "setxattr"), reason="no extended attributes in this Python")
ROOT = Path(__file__).resolve().parents[2]
NOBODY, OTHER = 65534, 4321


def save(path, content: bytes = b"new", **options) -> None:
    with atomic_file(path, **options) as scratch:
        scratch.write(content)


def mode_of(path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


# --- permissions (S9) -------------------------------------------------------------------------------------------------

UMASKS = [0o000, 0o002, 0o007, 0o022, 0o027, 0o037, 0o066, 0o077]
MODES = [0o600, 0o400, 0o640, 0o644, 0o660, 0o664, 0o666, 0o444, 0o755, 0o777, 0o000, 0o604, 0o4755, 0o2755, 0o6711]


@pytest.fixture(params=["root", "user"])
def as_user(request, tmp_path, in_child):
    """Run a function as root (where we are) or as an ordinary user; `tmp_path` belongs to that user."""
    if os.geteuid() != 0:
        return in_child
    if request.param == "root":
        return in_child
    os.chown(tmp_path, NOBODY, NOBODY)
    for parent in tmp_path.parents:  # pytest keeps its folders to their owner
        if mode_of(parent) & 0o001 == 0:
            os.chmod(parent, mode_of(parent) | 0o001)

    def run(function):
        def child():
            os.setgroups([])
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
            return function()

        return in_child(child)

    return run


def test_the_mode_of_the_old_file_is_kept_under_every_umask(tmp_path, as_user):
    def child():
        wrong = []
        for mode in MODES:
            for mask in UMASKS:
                os.umask(mask)
                path = tmp_path / "x"
                path.unlink(missing_ok=True)
                path.write_bytes(b"old")
                os.chmod(path, mode)
                save(path, overwrite=True, durable=False)
                found = mode_of(path)
                os.chmod(path, 0o600)
                if found != mode & 0o777 or path.read_bytes() != b"new":
                    wrong.append((oct(mode), oct(mask), oct(found)))
        return wrong

    assert as_user(child) == []


def test_a_new_file_follows_the_umask(tmp_path, as_user):
    def child():
        found = []
        for mask in UMASKS:
            os.umask(mask)
            save(tmp_path / f"x{mask}", durable=False)
            found.append(mode_of(tmp_path / f"x{mask}"))
            (tmp_path / "dangling").unlink(missing_ok=True)
            (tmp_path / "dangling").symlink_to(f"y{mask}")
            save(tmp_path / "dangling", durable=False, overwrite=True)
            found.append(mode_of(tmp_path / f"y{mask}"))
        return found

    assert as_user(child) == [0o666 & ~mask for mask in UMASKS for _ in range(2)]


def test_the_scratch_file_is_never_more_open_than_the_old_file(tmp_path, monkeypatch, scratch_files):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(0o640)
    modes = []
    real = os.fchmod
    monkeypatch.setattr(os, "fchmod", lambda fd, mode: (modes.append(mode_of(fd)), real(fd, mode)))
    with atomic_file(path, overwrite=True):
        modes.append(mode_of(tmp_path / scratch_files(tmp_path)[0]))
    assert modes == [0o600, 0o640]


@needs_root
def test_owner_and_group_are_kept_where_permitted(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    os.chown(path, OTHER, NOBODY)
    os.chmod(path, 0o4640)
    save(path, overwrite=True)
    status = os.stat(path)
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (OTHER, NOBODY, 0o640)


@needs_root
@pytest.mark.parametrize("member", [True, False])
def test_a_user_keeps_the_group_of_another_users_file_only_as_its_member(tmp_path, in_child, member):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    os.chown(path, 0, OTHER)
    os.chmod(path, 0o664)
    os.chown(tmp_path, NOBODY, NOBODY)
    for parent in tmp_path.parents:
        os.chmod(parent, mode_of(parent) | 0o001)

    def child():
        os.setgroups([OTHER] if member else [])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        save(path, overwrite=True)

    in_child(child)
    status = os.stat(path)
    assert (status.st_uid, status.st_gid) == (NOBODY, OTHER if member else NOBODY)
    assert stat.S_IMODE(status.st_mode) == 0o664


@needs_root
@pytest.mark.parametrize(
    ("name", "folder_mode", "folder_owner", "stage"),
    [
        ("read-only folder", 0o555, NOBODY, "create"),
        ("folder of another", 0o755, 0, "create"),
        ("sticky folder, file of another", 0o1777, 0, "publish"),
        ("unsearchable folder", 0o666, NOBODY, "check"),
        ("unlistable folder", 0o300, NOBODY, "check"),
        ("no rights at all", 0o000, NOBODY, "check"),
    ],
)
def test_where_the_user_may_not_save_the_old_file_stays(tmp_path, in_child, name, folder_mode, folder_owner, stage):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "x"
    path.write_bytes(b"old")
    os.chown(folder, folder_owner, folder_owner)
    os.chmod(folder, folder_mode)
    for parent in folder.parents:
        os.chmod(parent, mode_of(parent) | 0o001)

    def child(**options):
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        try:
            save(path, overwrite=True, **options)
        except SaveError as error:
            return error.stage, error.errno in (errno.EACCES, errno.EPERM)
        return None

    assert in_child(child) == (stage, True)
    assert path.read_bytes() == b"old"
    assert os.listdir(folder) == ["x"]
    if name == "unlistable folder":  # it can be written to, but not flushed
        assert in_child(lambda: child(durable=False)) is None
        assert path.read_bytes() == b"new"
        assert os.listdir(folder) == ["x"]


@needs_xattr
def test_extended_attributes_are_kept(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    try:
        os.setxattr(path, "user.origin", b"somewhere")
        os.setxattr(path, "user.empty", b"")
    except OSError as error:
        pytest.skip(f"no extended attributes on this file system: {error}")
    save(path, overwrite=True)
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == {
        "user.origin": b"somewhere",
        "user.empty": b"",
    }


@needs_root
@needs_xattr
def test_what_vouches_for_the_old_content_is_not_kept(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    capability = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
    try:
        os.setxattr(path, "security.capability", capability)
    except OSError as error:
        pytest.skip(f"no file capabilities here: {error}")
    save(path, overwrite=True)
    assert "security.capability" not in os.listxattr(path)


def acl(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


USER_OBJ, USER, GROUP_OBJ, MASK, REST, NO_ID = 1, 2, 4, 0x10, 0x20, 0xFFFFFFFF
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"


def set_acl(path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"no ACLs on this file system: {error}")


@needs_xattr
def test_an_access_control_list_is_kept_and_an_inherited_one_is_not_added(tmp_path):
    path, plain = tmp_path / "x", tmp_path / "plain"
    path.write_bytes(b"old")
    plain.write_bytes(b"old")
    plain.chmod(0o640)
    one = acl((USER_OBJ, 6, NO_ID), (USER, 6, OTHER), (GROUP_OBJ, 0, NO_ID), (MASK, 6, NO_ID), (REST, 0, NO_ID))
    other = acl((USER_OBJ, 7, NO_ID), (USER, 7, NOBODY), (GROUP_OBJ, 5, NO_ID), (MASK, 7, NO_ID), (REST, 5, NO_ID))
    set_acl(path, ACCESS, one)
    set_acl(tmp_path, DEFAULT, other)
    save(path, overwrite=True)
    save(plain, overwrite=True)
    assert os.getxattr(path, ACCESS) == one
    assert mode_of(path) == 0o660
    assert ACCESS not in os.listxattr(plain)
    assert mode_of(plain) == 0o640
    save(tmp_path / "new")
    assert ACCESS in os.listxattr(tmp_path / "new")


@needs_xattr
def test_an_access_control_list_that_cannot_be_kept_stops_the_save(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    set_acl(path, ACCESS, acl((1, 6, NO_ID), (USER, 6, OTHER), (4, 0, NO_ID), (MASK, 6, NO_ID), (REST, 0, NO_ID)))

    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "no lists")

    monkeypatch.setattr(os, "setxattr", refuse)
    with pytest.raises(SaveError) as caught:
        save(path, overwrite=True)
    assert caught.value.stage == "metadata"
    assert path.read_bytes() == b"old"


# --- links (S10) ------------------------------------------------------------------------------------------------------


def test_a_chain_of_links_stays_and_its_end_is_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    target = tmp_path / "b" / "real"
    target.write_bytes(b"old")
    (tmp_path / "b" / "two").symlink_to("real")
    (tmp_path / "a" / "one").symlink_to("../b/two")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "one")
    save(tmp_path / "link", overwrite=True)
    assert target.read_bytes() == b"new"
    assert not target.is_symlink()
    assert os.readlink(tmp_path / "link") == str(tmp_path / "a" / "one")
    assert os.readlink(tmp_path / "a" / "one") == "../b/two"
    assert os.readlink(tmp_path / "b" / "two") == "real"
    assert os.listdir(tmp_path / "a") == ["one"]
    assert sorted(os.listdir(tmp_path / "b")) == ["real", "two"]


def test_a_link_through_a_linked_folder_is_resolved_as_the_system_does(tmp_path):
    deep = tmp_path / "far" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "near").symlink_to(deep)
    (deep / "link").symlink_to("../file")  # beside `deep`, and not beside `near`
    save(tmp_path / "near" / "link", overwrite=True)
    assert (tmp_path / "far" / "file").read_bytes() == b"new"
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("chain", [1, 2])
def test_a_dangling_link_creates_its_target_only_with_overwrite(tmp_path, chain):
    (tmp_path / "link").symlink_to("second" if chain == 2 else "target")
    if chain == 2:
        (tmp_path / "second").symlink_to("target")
    with pytest.raises(AlreadyExistsError) as caught:
        save(tmp_path / "link")
    assert caught.value.stage == "check"
    assert not (tmp_path / "target").exists()
    save(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_a_link_into_a_missing_folder_names_that_folder(tmp_path):
    (tmp_path / "link").symlink_to("none/target")
    with pytest.raises(FileNotFoundError) as caught:
        save(tmp_path / "link", overwrite=True)
    assert caught.value.filename == str(tmp_path / "none")


def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(SaveError) as caught:
        save(tmp_path / "a", overwrite=True)
    assert (caught.value.stage, caught.value.errno) == ("check", errno.ELOOP)
    with pytest.raises(AlreadyExistsError):
        save(tmp_path / "a")


def test_other_hard_links_keep_the_old_content(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    os.link(tmp_path / "x", tmp_path / "other")
    save(tmp_path / "x", overwrite=True)
    assert (tmp_path / "other").read_bytes() == b"old"
    assert (tmp_path / "x").read_bytes() == b"new"


def test_a_reader_keeps_the_file_that_it_opened(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    with open(tmp_path / "x", "rb") as reader:
        save(tmp_path / "x", overwrite=True)
        assert reader.read() == b"old"


def test_a_destination_that_turns_into_a_link_is_not_followed(tmp_path):
    path, victim = tmp_path / "x", tmp_path / "victim"
    path.write_bytes(b"old")
    victim.write_bytes(b"victim")
    with atomic_file(path, overwrite=True) as scratch:
        scratch.write(b"new")
        path.unlink()
        path.symlink_to(victim)
    assert victim.read_bytes() == b"victim"
    assert path.read_bytes() == b"new"
    assert not path.is_symlink()


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_folder_that_is_swapped_for_a_link_does_not_divert_the_save(tmp_path, overwrite, fails):
    folder, moved, outside = tmp_path / "folder", tmp_path / "moved", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    try:
        with atomic_file(folder / "x", overwrite=overwrite) as scratch:
            scratch.write(b"new")
            folder.rename(moved)
            folder.symlink_to(outside)
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert os.listdir(outside) == []
    assert os.listdir(moved) == ([] if fails else ["x"])


def test_a_link_that_flips_all_the_time_never_leads_to_a_mixture_or_a_write_elsewhere(tmp_path):
    link, folders = tmp_path / "link", [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "target").write_bytes(b"\0" * 4096)
        (folder / "bystander").write_bytes(b"bystander")
    link.symlink_to(folders[0] / "target")
    stop = threading.Event()
    flips = 0

    def flip() -> None:
        nonlocal flips
        while not stop.is_set():
            other = tmp_path / "next"
            if flips % 5 == 4:
                other.write_bytes(b"\1" * 4096)  # for a moment a file and not a link
            else:
                other.symlink_to(folders[flips % 2] / "target")
            os.replace(other, link)
            flips += 1

    thread = threading.Thread(target=flip)
    thread.start()
    saves = refused = 0
    try:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            try:
                save(link, bytes([2 + saves % 250]) * 4096, overwrite=True, durable=False)
                saves += 1
            except SaveError as error:
                assert error.stage == "check", error
                refused += 1
            for folder in folders:
                content = (folder / "target").read_bytes()
                assert len(content) == 4096
                assert len(set(content)) == 1
    finally:
        stop.set()
        thread.join()
    for folder in folders:
        assert sorted(os.listdir(folder)) == ["bystander", "target"]
        assert (folder / "bystander").read_bytes() == b"bystander"
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "link"]
    assert saves > 50
    assert flips > 50
    assert refused < saves


# --- many writers (S12) -----------------------------------------------------------------------------------------------


def _save_often(path: str, fill: int, times: int) -> None:
    for number in range(times):
        content = bytes([fill]) * (100_000 + fill * 1000 + number)
        with atomic_file(path, overwrite=True, size=len(content), durable=number % 5 == 0) as scratch:
            for start in range(0, len(content), 30_000):
                scratch.write(content[start : start + 30_000])


def _save_once(path: str, fill: int, queue) -> None:
    try:
        save(path, bytes([fill]) * 50_000, durable=False)
        queue.put(fill)
    except AlreadyExistsError:
        queue.put(None)


def test_eight_writers_of_one_file_never_mix(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\0" * 100_000)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_save_often, args=(str(path), fill, 25)) for fill in range(1, 9)]
    for writer in writers:
        writer.start()
    reads = 0
    while reads == 0 or any(writer.is_alive() for writer in writers):
        content = path.read_bytes()
        assert len(set(content)) == 1
        assert content[0] == 0 or 0 <= len(content) - 100_000 - content[0] * 1000 < 25
        reads += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
        writer.close()
    assert os.listdir(tmp_path) == ["x"]
    assert len(path.read_bytes()) - 100_000 - path.read_bytes()[0] * 1000 == 24


def test_of_eight_writers_without_overwrite_exactly_one_wins(tmp_path):
    context = multiprocessing.get_context("fork")
    for turn in range(3):
        path = tmp_path / f"x{turn}"
        queue = context.SimpleQueue()
        writers = [context.Process(target=_save_once, args=(str(path), fill, queue)) for fill in range(1, 9)]
        for writer in writers:
            writer.start()
        winners = [fill for fill in (queue.get() for _ in writers) if fill is not None]
        for writer in writers:
            writer.join()
            writer.close()
        queue.close()
        assert len(winners) == 1
        assert path.read_bytes() == bytes(winners) * 50_000
    assert sorted(os.listdir(tmp_path)) == ["x0", "x1", "x2"]


def test_threads_may_save_to_one_file_at_once(tmp_path):
    path = tmp_path / "x"
    threads = [threading.Thread(target=_save_often, args=(str(path), fill, 10)) for fill in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == ["x"]
    assert len(set(path.read_bytes())) == 1


# --- killed (S1, S2) --------------------------------------------------------------------------------------------------


def run_kill(*options: str) -> str:
    command = [sys.executable, str(ROOT / "tests" / "crash" / "kill.py"), "--saver", "atomic", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow("kills")
def test_sixty_kills_at_random_instants_leave_old_or_new():
    last = run_kill("--kills", "60", "--seed", str(time.time_ns() % 1_000_000), "--largest", "4")
    assert "kills=60 " in last
    assert "damaged=0" in last


@pytest.mark.slow("kills")
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_kill_at_each_publishing_system_call_leaves_old_or_new():
    last = run_kill("--syscalls", "--only", "renameat,linkat", "--destinations", "new,overwrite")
    assert "damaged=0" in last or "skipped" in last
