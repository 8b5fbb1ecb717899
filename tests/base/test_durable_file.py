"""Durable file writes: whole or unchanged, whatever interrupts them."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from walle.base import durable_file
from walle.base.durable_file import (
    NoExclusiveNamesError,
    NotSyncedError,
    make_folders,
    move_folder,
    remove_unfinished,
    sync_tree,
    write_file,
    write_new_file,
)


def test_a_written_file_has_its_content_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, "grüße", mode=0o640)
    assert path.read_bytes() == "grüße".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    write_file(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)


@pytest.fixture(params=["links", "renames", "neither"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system with hard links, one with renames that replace no file alone, or one with neither."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported here")

    if request.param != "links":
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    if request.param == "neither":
        monkeypatch.setattr(durable_file, "_renameat2", lambda: None)
    return str(request.param)


def test_one_of_two_writers_of_a_new_file_wins_at_each_try(file_system: str, tmp_path: Path) -> None:
    if file_system == "neither":
        with pytest.raises(NoExclusiveNamesError, match="neither hard links nor renames"):
            write_new_file(tmp_path / "file", "x", strict=True)
        assert list(tmp_path.iterdir()) == []
        return
    together = threading.Barrier(2)

    def write(name: str) -> list[bool]:
        found = []
        for number in range(100):
            together.wait(30)
            found.append(write_new_file(tmp_path / f"{number}", name, strict=True))
        return found

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(write, ["first", "second"])
    for number, (is_first, is_second) in enumerate(zip(first, second, strict=True)):
        assert is_first != is_second
        assert (tmp_path / f"{number}").read_text() == ("first" if is_first else "second")
    assert len(list(tmp_path.iterdir())) == 100


@pytest.mark.usefixtures("file_system")
def test_a_new_file_is_whole_and_replaces_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_new_file(path, "first", mode=0o640)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert not write_new_file(path, "second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_nlink == 1
    with pytest.raises(FileNotFoundError):
        write_new_file(tmp_path / "nowhere" / "file", b"x")


def test_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    program = (
        "import os, pathlib, signal, sys\n"
        "from walle.base import durable_file\n"
        "durable_file.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "durable_file.write_file(pathlib.Path(sys.argv[1]), b'new')\n"
    )
    run = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert (run.returncode, path.read_bytes()) == (-signal.SIGKILL, b"old")


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_file(path, b"n" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("file", b"old")]


def test_leftovers_of_killed_writers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    write_file(tmp_path / "file", b"old")
    (tmp_path / ".file.0a.unfinished").write_bytes(b"half")
    (tmp_path / "file.unfinished").write_bytes(b"another's")
    remove_unfinished(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "file.unfinished"}


@pytest.fixture
def broken_folder_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(durable_file, "sync_folder", fail)


@pytest.mark.usefixtures("broken_folder_sync")
def test_a_folder_that_cannot_be_synced_raises_another_error_than_a_failed_write(tmp_path: Path) -> None:
    with pytest.raises(NotSyncedError, match="Input/output error"):
        write_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    with pytest.raises(OSError, match="No such file") as failed:
        write_file(tmp_path / "none" / "file", b"new")
    assert not isinstance(failed.value, NotSyncedError)


def test_folders_and_files_are_made_in_a_folder_that_can_be_written_and_not_read(tmp_path: Path) -> None:
    program = (
        "import os, pathlib\n"
        "from walle.base import durable_file\n"
        "os.chmod('.', 0o300)\n"
        "if os.getuid() == 0:\n"  # root may read everything
        "    os.chown('.', 65534, -1)\n"
        "    os.setuid(65534)\n"
        "durable_file.make_folders(pathlib.Path('a/b'))\n"
        "durable_file.write_file(pathlib.Path('file'), b'content')\n"
        "durable_file.move_folder(pathlib.Path('a/b'), pathlib.Path('c'))\n"
    )
    folder = tmp_path / "write-only"
    folder.mkdir()
    try:
        run = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    finally:
        folder.chmod(0o700)
    assert (run.returncode, run.stderr) == (0, "")
    assert {path.name for path in folder.iterdir()} == {"a", "c", "file"}


def test_folders_are_made_and_moved_with_both_parents_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = durable_file._sync

    def note(path: Path, flags: int) -> None:
        synced.append(path.relative_to(tmp_path).as_posix())
        real(path, flags)

    monkeypatch.setattr(durable_file, "_sync", note)
    make_folders(tmp_path / "a/b", mode=0o700)
    assert synced == [".", "a"]
    assert stat.S_IMODE((tmp_path / "a/b").stat().st_mode) == 0o700
    (tmp_path / "a/b/c").mkdir()
    (tmp_path / "a/b/c/file").write_bytes(b"content")
    synced.clear()
    sync_tree(tmp_path / "a/b")
    assert sorted(synced) == ["a/b", "a/b/c", "a/b/c/file"]
    synced.clear()
    move_folder(tmp_path / "a/b", tmp_path / "d")
    assert sorted(synced) == [".", "a"]
    assert (tmp_path / "d/c/file").read_bytes() == b"content"
    (tmp_path / "e").mkdir()
    with pytest.raises(OSError, match="not empty"):
        move_folder(tmp_path / "e", tmp_path / "d")
