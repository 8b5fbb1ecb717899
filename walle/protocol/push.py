"""Push (§6): a device's profile goes up, directives come down, in headers of ordinary HTTP requests."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from walle.protocol.fields import ProtocolError, canonical_json, check_sha256, parse_object, take, take_id, take_map

PROFILE_HEADER = "X-Walle-Profile"
TASKS_HEADER = "X-Walle-Tasks"

type Attribute = str | int | float | bool


@dataclasses.dataclass(frozen=True)
class Profile:
    """A device's profile (§6). `tasks` maps `scenario/task` to the active version, such as `v3`."""

    device_id: str
    app_version: str
    attributes: Mapping[str, Attribute] = dataclasses.field(default_factory=dict)
    tasks: Mapping[str, str] = dataclasses.field(default_factory=dict)

    MAX_HEADER_BYTES = 8192

    def to_header(self) -> str:
        return canonical_json(
            {"d": self.device_id, "a": self.app_version, "x": dict(self.attributes), "t": dict(self.tasks)}
        ).decode()

    @classmethod
    def from_header(cls, header: str) -> Self:
        """Parse the header. Raises ProtocolError, which names the part, if it is not a profile."""
        if len(header) > cls.MAX_HEADER_BYTES:
            raise ProtocolError(PROFILE_HEADER, f"{len(header)} bytes, more than {cls.MAX_HEADER_BYTES}")
        value = parse_object(header, PROFILE_HEADER)
        return cls(
            take_id(value, "d", PROFILE_HEADER),
            take(value, "a", str, PROFILE_HEADER),
            take_map(value, "x", (str, int, float, bool), PROFILE_HEADER),
            take_map(value, "t", (str,), PROFILE_HEADER),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Directive:
    """The cloud's order for one task on one device: activate `version`, or remove the task if `version` is empty.

    The release key signs all fields, and the fleet that they are for. `serial` grows with every order for this task
    in an `epoch`, so that a rollback is newer metadata that points at an older version, and a replayed old directive
    has no effect. `manifest` is the sha256 of the manifest's envelope, `size_bytes` its length.
    """

    task: str  # scenario/task
    version: str  # "v3", or "" to remove
    manifest: str
    size_bytes: int
    serial: int
    expires_s: int  # seconds since the epoch
    url: str  # prefix of the files' addresses, such as https://cdn.example/cdn
    release: str  # release id, "" for the current version outside a release
    epoch: int = 0  # see `walle.protocol.Timestamp`
    signature: str = ""  # base64 of Ed25519 over signed_bytes(fleet)

    _DOMAIN = b"walle directive 2\0"

    def signed_bytes(self, fleet: str) -> bytes:
        """Return what the release key signs; `fleet` is the id in the root metadata, which is not sent."""
        fields = dataclasses.asdict(self)
        del fields["signature"]
        return self._DOMAIN + canonical_json({**fields, "fleet": fleet})

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str = TASKS_HEADER) -> Self:
        if not isinstance(value, dict):
            raise ProtocolError(where, f"must be an object, is {type(value).__name__}")
        directive = cls(
            task=take(value, "task", str, where),
            version=take(value, "version", str, where),
            manifest=take(value, "manifest", str, where),
            size_bytes=take(value, "size_bytes", int, where),
            serial=take(value, "serial", int, where),
            expires_s=take(value, "expires_s", int, where),
            url=take(value, "url", str, where),
            release=take(value, "release", str, where),
            epoch=take(value, "epoch", int, where) if "epoch" in value else 0,  # a stored one may have none
            signature=take(value, "signature", str, where),
        )
        if directive.version:
            check_sha256(directive.manifest, f"{where}.manifest")
        return directive


def directives_to_header(directives: Sequence[Directive]) -> str:
    return canonical_json([directive.to_json() for directive in directives]).decode()


def directives_from_header(header: str) -> list[Directive]:
    """Parse the header. Raises ProtocolError if it is not a list of directives."""
    try:
        values = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(TASKS_HEADER, f"not JSON ({error})") from error
    if not isinstance(values, list):
        raise ProtocolError(TASKS_HEADER, f"must be a list, is {type(values).__name__}")
    return [Directive.from_json(value, f"{TASKS_HEADER}[{index}]") for index, value in enumerate(values)]
