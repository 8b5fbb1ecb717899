"""Version of walle for a bug report: of the package, its commit, the engine's backends, Python and the system."""

import platform
import subprocess
from pathlib import Path

import walle

_COMMIT_FILE = "commit.txt"  # CMakeLists.txt writes it where it builds from a git checkout
_GIT_S = 10.0


def version_lines() -> list[str]:
    """Return the lines of `walle --version`."""
    backends = walle.backends()
    usable = ", ".join(backend.name for backend in backends if backend.available)
    missing = ", ".join(backend.name for backend in backends if not backend.available)
    return [
        f"walle {walle.__version__}, commit {commit(Path(walle.__file__).parent) or 'not known'}",
        f"engine: {_used_backend()}; this machine has {usable}" + (f", not {missing}" if missing else ""),
        f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}",
    ]


def _used_backend() -> str:
    from walle.engine_ext import _core

    return f"arrays on {_core.backend()}"


def commit(package: Path) -> str:
    """Return the commit that the package was built from, in hex; "" if it is not known.

    Of a checkout that is the present one, with ", changed" if files of the package differ from it.
    """
    root = package.parent
    if (root / ".git").exists():
        head = _git(root, "rev-parse", "HEAD").strip()
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", package.name)
        return f"{head}, changed" if head and changed else head
    try:
        return (package / _COMMIT_FILE).read_text().strip()
    except OSError:
        return ""


def _git(root: Path, *arguments: str) -> str:
    """Return what git prints; "" where it is missing or refuses."""
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
