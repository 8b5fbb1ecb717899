"""scripts/bill_of_materials.py: what a wheel contains and needs, each with its hash or its version."""

import hashlib
import importlib.metadata
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.night.cases import at_night

pytest.importorskip("cyclonedx.validation.json", reason="cyclonedx-python-lib of the extra dev is not installed")
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts/bill_of_materials.py"
STATIC = "walle/cloud/dashboard/static"


def make_wheel(folder: Path, *, changed: dict[str, bytes | None] | None = None) -> Path:
    """Return a wheel of this checkout's package; `changed` are other contents of files, None for no file."""
    metadata = importlib.metadata.distribution("walle").read_text("METADATA")
    assert metadata is not None
    files: dict[str, bytes | None] = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for path in (ROOT / "walle").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "engine_ext/src" not in str(path)
    }
    files["walle-0.1.0.dist-info/METADATA"] = metadata.encode()
    files |= changed or {}
    wheel = folder / "walle-0.1.0-cp313-cp313-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            if data is not None:
                archive.writestr(name, data)
    return wheel


def run(wheel: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), str(wheel)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    wheel = make_wheel(tmp_path_factory.mktemp("wheel"))
    done = run(wheel)
    assert done.returncode == 0, done.stderr
    return wheel, wheel.with_name(f"{wheel.name}.cdx.json").read_text()


def by_name(text: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(text)["components"]}


@pytest.mark.night
def test_the_bill_is_valid_and_the_same_each_time(bill: tuple[Path, str]) -> None:
    wheel, text = bill
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(text) is None
    assert run(wheel).returncode == 0
    assert wheel.with_name(f"{wheel.name}.cdx.json").read_text() == text
    root = json.loads(text)["metadata"]["component"]
    assert root["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    assert root["version"] == importlib.metadata.version("walle")
    assert root["licenses"] == [{"license": {"id": "Apache-2.0"}}]


def test_each_file_of_the_wheel_is_listed_with_its_hash(bill: tuple[Path, str]) -> None:
    wheel, text = bill
    listed = {name: one["hashes"][0]["content"] for name, one in by_name(text).items() if one["type"] == "file"}
    with zipfile.ZipFile(wheel) as archive:
        assert listed == {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def test_vendored_compiled_and_required_packages_are_listed(bill: tuple[Path, str]) -> None:
    found = by_name(bill[1])
    vendored = {path.name for path in (ROOT / STATIC).glob("*.min.*")}
    assert vendored
    with_files = [one for one in found.values() if "components" in one]
    assert {Path(file["name"]).name for one in with_files for file in one["components"]} == vendored
    for one in with_files:
        assert all(one["version"] in file["name"] for file in one["components"])
        assert one["licenses"][0]["license"]["id"] in ("0BSD", "MIT")
    assert found["pybind11"]["version"] == importlib.metadata.version("pybind11")
    assert found["libc.so.6"]["isExternal"] is True
    required = {name for name, one in found.items() if one.get("scope") == "required" and "purl" in one}
    assert required == {"cryptography", "httpx", "msgpack", "packaging", "rich", "typer", "zstandard"}
    assert found["ray"]["scope"] == "optional"
    assert found["ray"]["version"] == importlib.metadata.version("ray")
    assert found["ray"]["properties"] == [{"name": "walle:requires", "value": 'ray<3,>=2.60; extra == "cloud"'}]
    assert "walle" not in found


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({f"{STATIC}/other-1.0.0.min.js": b"x"}, "other-1.0.0.min.js: add the version and licence"),
        *at_night(({"walle-0.1.0.dist-info/METADATA": None}, "the wheel has no METADATA")),
    ],
)
def test_a_wheel_whose_materials_are_not_known_is_refused(
    tmp_path: Path, changed: dict[str, bytes | None], fault: str
) -> None:
    wheel = make_wheel(tmp_path, changed=changed)
    done = run(wheel)
    assert done.returncode == 1
    assert fault in done.stderr
    assert not wheel.with_name(f"{wheel.name}.cdx.json").exists()
