"""Another revision of this project, built in a temporary folder, so that both can be timed in one run."""

import contextlib
import io
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _run(command: list[str], folder: Path) -> bytes:
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-15:]
        raise RuntimeError(f"{' '.join(command[:3])} failed:\n" + "\n".join(lines))
    return done.stdout


@contextlib.contextmanager
def built(revision: str) -> Iterator[Path]:
    """Yield a temporary folder with that revision's sources and its native core; it is removed on exit.

    Raises:
        RuntimeError: the revision is unknown to git, or does not build.
    """
    import pybind11

    with tempfile.TemporaryDirectory(prefix="walle-revision-") as name:
        folder = Path(name)
        archive = _run(["git", "archive", "--format=tar", revision], ROOT)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        shutil.rmtree(
            folder / "benchmarks", ignore_errors=True
        )  # this checkout's benchmarks run with that revision's engine
        scripts = Path(sysconfig.get_path("scripts"))
        settings = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_MAKE_PROGRAM": str(scripts / "ninja"),
            "WALLE_INPLACE": "ON",
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
        }
        cmake = str(scripts / "cmake")
        given = [f"-D{key}={value}" for key, value in settings.items()]
        _run([cmake, "-S", ".", "-B", "build/revision", "-G", "Ninja", *given], folder)
        _run([cmake, "--build", "build/revision"], folder)
        yield folder
