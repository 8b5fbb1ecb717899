"""Durable file writes: whole or unchanged, whatever interrupts them."""

import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from walle.durable_file import write_file


def test_a_written_file_has_its_content_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, "grüße", mode=0o640)
    assert path.read_bytes() == "grüße".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    write_file(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)


def test_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    program = (
        "import os, pathlib, signal, sys\n"
        "from walle import durable_file\n"
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
