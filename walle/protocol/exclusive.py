"""Exclusive files (§6): files of one device, listed by [[exclusive]] of task.toml, sealed to the device's key.

GET /cen/files             `ExclusiveList`, JSON, of the device whose session the request has
GET /cen/files/{sha256}    the sealed bytes of a file in it
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from walle.protocol.fields import ProtocolError, canonical_json, check_sha256, parse_object, shorten, take, take_id
from walle.protocol.trust import MAX_EPOCH

MAX_EXCLUSIVE_BYTES = 4 << 20  # limit of a file's contents
DEFAULT_EXCLUSIVE_BYTES = 1 << 20
MAX_EXCLUSIVE_FILES = 100  # files of one device; files of one task, in task.toml
SEAL_OVERHEAD_BYTES = 65 + 16  # bytes that a sealed file has more: an ephemeral public key and a tag
MAX_LIST_BYTES = 128 << 10
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_LIST = "exclusive files"


def is_exclusive_name(text: str) -> bool:
    """Return whether `text` may name an exclusive file."""
    return _NAME.fullmatch(text) is not None


EXCLUSIVE_NAME_RULE = "letters, digits and ._-, at most 100, the first a letter or digit"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExclusiveFile:
    """One [[exclusive]] table of task.toml. A version with a `required` file is activated where the device has it."""

    name: str
    required: bool = True
    max_bytes: int = DEFAULT_EXCLUSIVE_BYTES  # limit of the contents

    KEYS: ClassVar = ("name", "required", "max_bytes")

    @classmethod
    def parse(cls, table: object) -> Self:
        """Return the file that a table describes; `to_json` is the inverse. An unknown key is refused.

        Raises:
            ProtocolError: the table is wrong; `where` is the key, "" for the table.
        """
        if not isinstance(table, Mapping):
            raise ProtocolError("", f"must be a table, is {type(table).__name__}")
        for key in table:
            if key not in cls.KEYS:
                raise ProtocolError("", f"has an unknown key {shorten(key)}; there are {', '.join(cls.KEYS)}")
        name, required = table.get("name"), table.get("required", True)
        max_bytes = table.get("max_bytes", DEFAULT_EXCLUSIVE_BYTES)
        if not isinstance(name, str) or not is_exclusive_name(name):
            raise ProtocolError("name", f"must be {EXCLUSIVE_NAME_RULE}; is {shorten(name)}")
        if not isinstance(required, bool):
            raise ProtocolError("required", f"must be true or false, is {shorten(required)}")
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not 1 <= max_bytes <= MAX_EXCLUSIVE_BYTES:
            what = f"must be a whole number from 1 to {MAX_EXCLUSIVE_BYTES}, is {shorten(max_bytes)}"
            raise ProtocolError("max_bytes", what)
        return cls(name=name, required=required, max_bytes=max_bytes)

    def to_json(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in self.KEYS}


def parse_exclusive(tables: object) -> tuple[ExclusiveFile, ...]:
    """Return the files of a list of [[exclusive]] tables.

    Raises:
        ProtocolError: a table is wrong, or two have one name; `where` is "NUMBER.KEY", NUMBER from 1.
    """
    if not isinstance(tables, (list, tuple)):
        raise ProtocolError("", f"must be a list of tables, is {type(tables).__name__}")
    if len(tables) > MAX_EXCLUSIVE_FILES:
        raise ProtocolError("", f"lists {len(tables)} files, more than {MAX_EXCLUSIVE_FILES}")
    files: dict[str, ExclusiveFile] = {}
    for number, table in enumerate(tables, 1):
        try:
            file = ExclusiveFile.parse(table)
        except ProtocolError as error:
            raise ProtocolError(f"{number}.{error.where}".rstrip("."), error.what) from error
        if file.name in files:
            raise ProtocolError(f"{number}.name", f"{file.name!r} is listed twice")
        files[file.name] = file
    return tuple(files.values())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SealedFile:
    """An exclusive file of a device: the sha256 and length of its sealed bytes. `task` is scenario/task."""

    task: str
    name: str
    sha256: str
    size_bytes: int

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        if not isinstance(value, dict):
            raise ProtocolError(where, f"must be an object, is {type(value).__name__}")
        name, size_bytes = take(value, "name", str, where), take(value, "size_bytes", int, where)
        if not is_exclusive_name(name):
            raise ProtocolError(f"{where}.name", f"must be {EXCLUSIVE_NAME_RULE}; is {shorten(name)}")
        if not SEAL_OVERHEAD_BYTES <= size_bytes <= MAX_EXCLUSIVE_BYTES + SEAL_OVERHEAD_BYTES:
            raise ProtocolError(f"{where}.size_bytes", f"{str(size_bytes)[:30]} is not the length of a sealed file")
        sha256 = check_sha256(take(value, "sha256", str, where), f"{where}.sha256")
        return cls(task=take_id(value, "task", where), name=name, sha256=sha256, size_bytes=size_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExclusiveList:
    """A statement of the release role: these are all exclusive files of one key of one device.

    `serial` grows with every change for the device, within an `epoch` (see `walle.protocol.Timestamp`). The fleet is
    signed too, and not sent. `expires_s` is in whole seconds since the Unix epoch.
    """

    device_id: str
    generation: int  # generation of the device's key, to which the files are sealed
    serial: int
    epoch: int
    expires_s: int
    files: tuple[SealedFile, ...] = ()
    signature: str = ""  # base64 of Ed25519 over signed_bytes(fleet)

    _DOMAIN = b"walle exclusive files 1\0"

    def signed_bytes(self, fleet: str) -> bytes:
        fields = dataclasses.asdict(self)
        del fields["signature"]
        return self._DOMAIN + canonical_json({**fields, "fleet": fleet})

    def to_bytes(self) -> bytes:
        return canonical_json(dataclasses.asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a list. Raises ProtocolError, which names the field."""
        if len(data) > MAX_LIST_BYTES:
            raise ProtocolError(_LIST, f"{len(data)} bytes, more than {MAX_LIST_BYTES}")
        value = parse_object(data, _LIST)
        numbers = {}
        for key in ("generation", "serial", "epoch", "expires_s"):
            numbers[key] = take(value, key, int, _LIST)
            if not 0 <= numbers[key] <= MAX_EPOCH:
                raise ProtocolError(f"{_LIST}.{key}", f"{str(numbers[key])[:30]} is not from 0 to 2**53")
        entries = take(value, "files", list, _LIST)
        if len(entries) > MAX_EXCLUSIVE_FILES:
            raise ProtocolError(f"{_LIST}.files", f"lists {len(entries)}, more than {MAX_EXCLUSIVE_FILES}")
        files = tuple(SealedFile.from_json(entry, f"{_LIST}.files[{at}]") for at, entry in enumerate(entries))
        if len({(file.task, file.name) for file in files}) != len(files):
            raise ProtocolError(f"{_LIST}.files", "a file is listed twice")
        device_id, signature = take_id(value, "device_id", _LIST), take(value, "signature", str, _LIST)
        return cls(device_id=device_id, files=files, signature=signature, **numbers)

    def find(self, task: str, name: str) -> SealedFile | None:
        """Return the entry of a file, None where the device has none of this name for the task."""
        return next((file for file in self.files if (file.task, file.name) == (task, name)), None)


def seal_info(device_id: str, generation: int, task: str, name: str) -> bytes:
    """Return the `info` of HPKE for a file, so that no sealed file passes for another."""
    return b"walle exclusive file 1\0" + canonical_json([device_id, generation, task, name])
