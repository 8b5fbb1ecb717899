"""Push (§6): a device's profile goes up, directives come down, in headers of ordinary HTTP requests."""

import base64
import binascii
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from walle.protocol.fields import (
    ProtocolError,
    canonical_json,
    check_sha256,
    parse_object,
    take,
    take_id,
    take_map,
    take_optional,
)

PROFILE_HEADER = "X-Walle-Profile"
TASKS_HEADER = "X-Walle-Tasks"

MODEL_GOAL = "model_goal"  # attribute of a profile by which a device asks for a model of another goal (Mistify §6)

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
    def from_header(cls, header: str, *, max_bytes: int = MAX_HEADER_BYTES) -> Self:
        """Parse the header. Raises ProtocolError, which names the part, if it is not a profile."""
        if len(header) > max_bytes:
            raise ProtocolError(PROFILE_HEADER, f"{len(header)} bytes, more than {max_bytes}")
        value = parse_object(header, PROFILE_HEADER)
        return cls(
            take_id(value, "d", PROFILE_HEADER),
            take(value, "a", str, PROFILE_HEADER),
            take_map(value, "x", (str, int, float, bool), PROFILE_HEADER),
            take_map(value, "t", (str,), PROFILE_HEADER),
        )


@dataclasses.dataclass(frozen=True)
class ShortProfile:
    """A device's profile without its id, which its session has, and with digests in place of its tasks.

    `parts` are the digests of `walle.protocol.task_parts`, "" for an empty part; `place` is that of the last answer,
    where that was cut (`PushAnswer`).
    """

    app_version: str
    attributes: Mapping[str, Attribute] = dataclasses.field(default_factory=dict)
    parts: Sequence[str] = ("",)
    place: str = ""

    def to_header(self) -> str:
        fields = {"a": self.app_version, "p": list(self.parts), "x": dict(self.attributes)}
        return canonical_json({**fields, "n": self.place} if self.place else fields).decode()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audience:
    """The devices that a directive is for, as each of them can check by itself (`walle.trust.audience`).

    A device belongs to it if its app version is in `app_version` and in none of `but_not`, and its place in the
    directive's release is below `below` or begins with one of `devices`. The default takes every device.
    """

    app_version: str = ""  # a PEP 440 range, empty for all
    but_not: tuple[str, ...] = ()  # ranges of the app versions that another directive is for
    below: int = 1 << 53  # bound of the places, of which there are 2**53
    devices: tuple[bytes, ...] = ()  # first 4 bytes of the digests of named devices in the release

    PLACES = 1 << 53
    PREFIX_BYTES = 4
    _KEYS = frozenset({"app", "not", "below", "devices"})

    def to_json(self) -> dict[str, Any]:
        """Return the rules that leave a device out: an empty object for every device."""
        value: dict[str, Any] = {}
        if self.app_version:
            value["app"] = self.app_version
        if self.but_not:
            value["not"] = list(self.but_not)
        if self.below < self.PLACES:
            value["below"] = self.below
            if self.devices:
                value["devices"] = base64.b64encode(b"".join(self.devices)).decode()
        return value

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """Parse an audience. Raises ProtocolError, also for a rule that is unknown: it may leave this device out."""
        if not isinstance(value, dict):
            raise ProtocolError(where, f"must be an object, is {type(value).__name__}")
        if unknown := sorted(value.keys() - cls._KEYS):
            raise ProtocolError(f"{where}.{unknown[0][:40]}", "is a rule of a newer walle; update walle on this device")
        ranges = take(value, "not", list, where) if "not" in value else []
        if not all(isinstance(one, str) for one in ranges):
            raise ProtocolError(f"{where}.not", "must be a list of ranges of app versions")
        below = take(value, "below", int, where) if "below" in value else cls.PLACES
        if not 0 <= below <= cls.PLACES:
            raise ProtocolError(f"{where}.below", f"{str(below)[:30]} is not from 0 to 2**53")
        try:
            named = base64.b64decode(take_optional(value, "devices", where), validate=True)
        except (ValueError, binascii.Error) as error:
            raise ProtocolError(f"{where}.devices", f"is not base64 ({error})") from error
        if len(named) % cls.PREFIX_BYTES:
            raise ProtocolError(f"{where}.devices", f"{len(named)} bytes are not a multiple of {cls.PREFIX_BYTES}")
        devices = tuple(named[at : at + cls.PREFIX_BYTES] for at in range(0, len(named), cls.PREFIX_BYTES))
        return cls(app_version=take_optional(value, "app", where), but_not=tuple(ranges), below=below, devices=devices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Directive:
    """The cloud's order for one task on one device: activate `version`, or remove the task if `version` is empty.

    The release key signs all fields, and the fleet that they are for. A device outside of `audience` refuses it.
    `serial` grows with every order for this task in an `epoch`, so that a rollback is newer metadata that points at an
    older version, and a replayed old directive has no effect. `manifest` is the sha256 of the manifest's envelope,
    `size_bytes` its length.
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
    audience: Audience = Audience()
    signature: str = ""  # base64 of Ed25519 over signed_bytes(fleet)

    _DOMAIN = b"walle directive 3\0"

    @property
    def order(self) -> str:
        """Name of this order among those for its task, by which a device states that it refused it."""
        return f"{self.epoch}.{self.serial}"

    def signed_bytes(self, fleet: str) -> bytes:
        """Return what the release key signs; `fleet` is the id in the root metadata, which is not sent."""
        fields = self.to_json()
        del fields["signature"]
        return self._DOMAIN + canonical_json({**fields, "fleet": fleet})

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "audience": self.audience.to_json()}

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
            audience=Audience.from_json(value.get("audience", {}), f"{where}.audience"),  # stored ones may lack it
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
    return directives_from_values(values)


def directives_from_values(values: Sequence[Any]) -> list[Directive]:
    """Parse the elements of a list of directives. Raises ProtocolError."""
    for index, value in enumerate(values):
        if isinstance(value, dict) and "audience" not in value:
            raise ProtocolError(
                f"{TASKS_HEADER}[{index}].audience", "is missing: the cloud has an older walle; update the cloud"
            )
    return [Directive.from_json(value, f"{TASKS_HEADER}[{index}]") for index, value in enumerate(values)]
