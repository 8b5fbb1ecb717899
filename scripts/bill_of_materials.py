"""Bill of materials of a wheel (CycloneDX 1.7), written beside it and checked against the schema.

It lists each file of the wheel with its SHA-256, the libraries of others among them, what is compiled into the native
core (pybind11), and what is needed from elsewhere: shared libraries and Python packages. These are external: the
version is that of the environment that built the wheel, beside the range that the wheel accepts.

usage: python scripts/bill_of_materials.py dist/walle-0.1.0-cp313-cp313-linux_x86_64.whl
"""

import datetime as dt
import email.message
import email.parser
import hashlib
import importlib.metadata
import re
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot7
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_LICENCES = "dashboard/licences.txt"
_OTHERS = re.compile(r"^(\S+\.min\.\w+(?:, \S+\.min\.\w+)*): (\S+) (\d\S*)$", re.MULTILINE)
_SPDX = {"Zero-Clause BSD": "0BSD", "The MIT License (MIT)": "MIT"}
_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")


class BillError(Exception):
    """A wheel whose materials cannot be listed, or a list that the schema refuses."""


def bill_of(wheel: Path) -> str:
    """Return the bill of materials of a wheel as JSON. The same wheel and environment give the same bytes.

    Raises:
        BillError: files of others have no licence in the wheel, or the result is not valid.
    """
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in sorted(archive.namelist()) if not name.endswith("/")}
    metadata = _metadata(contents)
    root = Component(
        name="walle",
        bom_ref=wheel.name,
        version=metadata["Version"],
        type=ComponentType.LIBRARY,
        licenses=[LicenseFactory().make_from_string(metadata["License-Expression"])],
        purl=PackageURL("generic", None, "walle", metadata["Version"], {"file_name": wheel.name}),
        hashes=[_sha256(wheel.read_bytes())],
        description="the wheel; no package index has it",
    )
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_OID, str(root.hashes)))
    bom.metadata.component = root
    bom.metadata.timestamp = dt.datetime.fromtimestamp(wheel.stat().st_mtime, dt.UTC)
    vendored = list(_files_of_others(contents))
    native = list(_native_parts(contents))
    packages = list(_required_packages(metadata.get_all("Requires-Dist") or []))
    files = [_file(name, data) for name, data in contents.items()]
    for component in (*vendored, *native, *packages, *files):
        bom.components.add(component)
    bom.register_dependency(root, [*vendored, *native, *packages])
    text = JsonV1Dot7(bom).output_as_string(indent=1)
    if fault := JsonStrictValidator(SchemaVersion.V1_7).validate_str(text):
        raise BillError(f"{wheel}: the bill of materials is not CycloneDX 1.7: {fault}")
    return text


def _metadata(contents: dict[str, bytes]) -> email.message.Message:
    name = next((name for name in contents if name.endswith(".dist-info/METADATA")), "")
    if not name:
        raise BillError("the wheel has no METADATA; build it with make wheel")
    return email.parser.BytesParser().parsebytes(contents[name])


def _files_of_others(contents: dict[str, bytes]) -> Iterator[Component]:
    """Return the libraries of the dashboard, as their licences list them, with their files."""
    listing = next((data.decode() for name, data in contents.items() if name.endswith(_LICENCES)), "")
    listed: set[str] = set()
    for entry in _OTHERS.finditer(listing):
        names, package, version = entry[1].split(", "), entry[2], entry[3]
        paths = [path for path in contents if path.rpartition("/")[2] in names]
        licence = listing[entry.end() :].strip().splitlines()[0]
        listed |= set(names)
        yield Component(
            name=package,
            bom_ref=f"{package}@{version}",
            version=version,
            type=ComponentType.LIBRARY,
            purl=PackageURL("npm", None, package, version),
            licenses=[LicenseFactory().make_from_string(_SPDX[licence])],
            components=[_file(path, contents[path], within=package) for path in paths],
        )
    if missing := {Path(name).name for name in contents if ".min." in name} - listed:
        raise BillError(f"{', '.join(sorted(missing))}: add the version and licence to {_LICENCES}")


def _native_parts(contents: dict[str, bytes]) -> Iterator[Component]:
    """Return what is compiled into the native core, and the shared libraries that it loads."""
    cores = {name: data for name, data in contents.items() if name.endswith(".so")}
    if not cores:
        raise BillError("the wheel has no native core")
    yield Component(
        name="pybind11",
        bom_ref="pybind11",
        version=importlib.metadata.version("pybind11"),
        type=ComponentType.LIBRARY,
        purl=PackageURL("pypi", None, "pybind11", importlib.metadata.version("pybind11")),
        description="headers, compiled into the native core",
        licenses=[LicenseFactory().make_from_string("BSD-3-Clause")],
    )
    for needed in sorted({library for data in cores.values() for library in _needed(data)}):
        yield Component(
            name=needed,
            bom_ref=needed,
            type=ComponentType.LIBRARY,
            is_external=True,
            scope=ComponentScope.REQUIRED,
            description="shared library of the system, loaded by the native core",
        )


def _needed(core: bytes) -> list[str]:
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(core)
        file.flush()
        read = subprocess.run(["readelf", "--dynamic", file.name], capture_output=True, text=True, check=True)
    return _NEEDED.findall(read.stdout)


def _required_packages(requirements: Sequence[str]) -> Iterator[Component]:
    """Return the packages that the wheel requires; those of extras are optional."""
    found: dict[str, list[Requirement]] = {}
    for text in requirements:
        requirement = Requirement(text)
        if requirement.name != "walle":  # extras that name others
            found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    for name, ranges in sorted(found.items()):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # the package is of another system, or of a missing extra
            version = None
        is_required = any("extra" not in str(one.marker) for one in ranges)
        yield Component(
            name=name,
            bom_ref=f"pypi:{name}",
            version=version,
            type=ComponentType.LIBRARY,
            is_external=True,
            scope=ComponentScope.REQUIRED if is_required else ComponentScope.OPTIONAL,
            purl=PackageURL("pypi", None, name, version),
            properties=[Property(name="walle:requires", value=str(one)) for one in ranges],
        )


def _file(name: str, data: bytes, *, within: str = "") -> Component:
    return Component(name=name, bom_ref=f"{within}:{name}", type=ComponentType.FILE, hashes=[_sha256(data)])


def _sha256(data: bytes) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(data).hexdigest())


def main() -> None:
    (wheel,) = map(Path, sys.argv[1:])
    try:
        bill = bill_of(wheel)
    except (BillError, OSError, zipfile.BadZipFile) as error:
        sys.exit(f"{wheel}: {error}")
    wheel.with_name(f"{wheel.name}.cdx.json").write_text(bill + "\n")


if __name__ == "__main__":
    main()
