"""A manifest of published model files, in TOML: where each is, what it must hash to, how to feed it.

[models.face_yunet]
file = "face_yunet_n_320.onnx"      # its name in a folder of models
url = "https://..."
sha256 = "81dbde15..."
bytes = 317434
licence = "Apache-2.0"
source = "ShiqiYu/libfacedetection.train @ 0047ac24afb1"
task = "face"                       # what it is used for
input = "..."                       # pre-processing, in words and numbers
output = "..."                      # outputs and post-processing

In place of `url` an entry may name a Python package that has the file:

package = { name = "NAME==VERSION", wheel = "NAME-VERSION-...whl", sha256 = "...", bytes = 123, path = "inside/it" }
"""

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from walle.errors import ConfigError

MAX_MODEL_BYTES = 1 << 30
MAX_MANIFEST_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}==[A-Za-z0-9][A-Za-z0-9_.+!-]{0,49}")
_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+]*-[A-Za-z0-9_.+!]+(-[0-9][A-Za-z0-9_.]*)?(-[A-Za-z0-9_.]+){3}\.whl")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ModelManifestError(ConfigError):
    """A manifest that is wrong, or has no model of a given name. `where` is its path."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelPackage:
    """A Python package that has a model's file: the wheel of `bytes` and `sha256`, and the file's path inside of it.

    `name` is NAME==VERSION. `path` is that of a file in the wheel, which is a ZIP archive.
    """

    name: str
    wheel: str
    sha256: str
    bytes: int
    path: str

    @property
    def tags(self) -> tuple[str, str, str]:
        """Return the wheel's tags: Python, ABI and platform, each perhaps several with dots between them."""
        python, abi, platform = self.wheel.removesuffix(".whl").split("-")[-3:]
        return python, abi, platform


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One published file, at a `url` or in a `package`.

    `input` and `output` tell people how to prepare its input and read its outputs.
    """

    name: str
    file: str
    sha256: str
    bytes: int
    licence: str
    source: str
    task: str
    input: str
    output: str
    url: str = ""
    package: ModelPackage | None = None

    @property
    def origin(self) -> str:
        """Return where the file is fetched from, for a person."""
        return self.url if self.package is None else f"Python package {self.package.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class ModelManifest:
    """Entries by name, in the manifest's order. `where` is the manifest's path, for errors."""

    where: str
    entries: Mapping[str, ModelEntry]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the manifest in a file.

        Raises:
            ModelManifestError: the file cannot be read, or is wrong.
        """
        try:
            with path.open("rb") as file:
                data = file.read(MAX_MANIFEST_BYTES + 1)
        except OSError as error:
            raise ModelManifestError(str(path), f"cannot be read: {error.strerror}") from error
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: bytes, where: str) -> Self:
        """Return the manifest in these bytes; raises ModelManifestError."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise ModelManifestError(where, f"has more than {MAX_MANIFEST_BYTES} bytes")
        try:
            tree = tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ModelManifestError(where, f"is not TOML: {error}") from error
        models = tree.pop("models", None)
        if tree or not isinstance(models, dict) or not models:
            raise ModelManifestError(where, "must have tables [models.NAME] and nothing else")
        entries = {name: _entry(where, name, table) for name, table in models.items()}
        owners: dict[str, str] = {}
        for entry in entries.values():
            if owner := owners.get(entry.file):
                raise ModelManifestError(where, f"[models.{entry.name}] and [models.{owner}] are both {entry.file}")
            owners[entry.file] = entry.name
        return cls(where, entries)

    def chosen(self, names: Iterable[str]) -> list[ModelEntry]:
        """Return the entries of these names, each once; without names all.

        Raises:
            ModelManifestError: a name is unknown.
        """
        wanted = list(dict.fromkeys(names)) or list(self.entries)
        if unknown := [name for name in wanted if name not in self.entries]:
            raise ModelManifestError(
                self.where, f"unknown model {', '.join(unknown)}; it lists {', '.join(self.entries)}"
            )
        return [self.entries[name] for name in wanted]


def _entry(where: str, name: str, table: Any) -> ModelEntry:
    place = f"{where}: [models.{name}]"
    if not _NAME.fullmatch(name):
        raise ModelManifestError(place, "a name has lower-case letters, digits, '_', '.', '-', at most 64")
    kinds = {field.name: int if field.name == "bytes" else str for field in dataclasses.fields(ModelEntry)}
    del kinds["name"]
    is_package = isinstance(table, dict) and "package" in table
    del kinds["url" if is_package else "package"]
    if is_package:
        table = {**table, "package": _package(place, table["package"])}
    _check_keys(place, table, kinds, skipped=("package",) if is_package else ())
    entry = ModelEntry(name=name, **table)
    if not _FILE.fullmatch(entry.file):
        raise ModelManifestError(place, f"file {entry.file!r} is not a plain file name")
    _check_content(place, entry.sha256, entry.bytes)
    if not is_package and (refusal := url_refusal(entry.url)):
        raise ModelManifestError(place, f"url {refusal}")
    return entry


def _package(place: str, table: Any) -> ModelPackage:
    place = f"{place} package"
    kinds = {field.name: int if field.name == "bytes" else str for field in dataclasses.fields(ModelPackage)}
    _check_keys(place, table, kinds)
    package = ModelPackage(**table)
    if not _REQUIREMENT.fullmatch(package.name):
        raise ModelManifestError(place, f"name {package.name!r} is not NAME==VERSION")
    if not _WHEEL.fullmatch(package.wheel):
        raise ModelManifestError(place, f"wheel {package.wheel!r} is not the name of a wheel")
    _check_content(place, package.sha256, package.bytes)
    return package


def _check_keys(place: str, table: Any, kinds: Mapping[str, type], *, skipped: Iterable[str] = ()) -> None:
    if not isinstance(table, dict) or table.keys() != kinds.keys():
        found = set(table) if isinstance(table, dict) else set()
        parts = [
            f"lacks {', '.join(sorted(kinds.keys() - found))}" if kinds.keys() - found else "",
            f"has unknown keys: {', '.join(sorted(found - kinds.keys()))}" if found - kinds.keys() else "",
        ]
        raise ModelManifestError(place, "; ".join(filter(None, parts)))
    for key in kinds.keys() - set(skipped):
        kind = kinds[key]
        if type(table[key]) is not kind or table[key] == "":
            raise ModelManifestError(place, f"{key} must be {'an integer' if kind is int else 'a text'}")


def _check_content(place: str, sha256: str, size_bytes: int) -> None:
    if not _SHA256.fullmatch(sha256):
        raise ModelManifestError(place, "sha256 must be 64 lower-case hexadecimal digits")
    if not 0 < size_bytes <= MAX_MODEL_BYTES:
        raise ModelManifestError(place, f"bytes is {size_bytes}, must be 1 to {MAX_MODEL_BYTES}")


def url_refusal(url: str) -> str:
    """Return why a model is not fetched from an address; an empty text if it may be.

    An address is https. http is for a server on this machine only, such as a mirror or a test.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        return f"{url!r} is not an address: {error}"
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)):
        return f"{url!r} is not an https address"
    return ""
