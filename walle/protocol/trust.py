"""Freshness of the cloud's answers (docs/adr/0004-trust.md): signed timestamps, and alarms of devices."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from walle.protocol.fields import ProtocolError, canonical_json, check_sha256, parse_object, take, take_id, take_map

TRUST_HEADER = "X-Walle-Trust"
MAX_EPOCH = 1 << 53  # largest number that every JSON reader keeps exactly; limits serials and versions too


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timestamp:
    """A statement of the timestamp role: these metadata and this release table are the newest at `time_s`.

    `epoch` grows when a cloud is restored from a backup: serials are ordered within it. `floor` is the lowest serial
    of a directive that still counts; `floors` are higher ones, of the tasks that changed last. Times are in whole
    seconds since the Unix epoch.
    """

    fleet: str
    epoch: int
    generation: int  # generation of the release table
    floor: int
    floors: Mapping[str, int] = dataclasses.field(default_factory=dict)
    root: int  # version of the root metadata
    scenarios: int  # version of the scenarios metadata
    scenarios_sha256: str
    time_s: int
    expires_s: int
    signature: str = ""  # base64 of Ed25519 over signed_bytes()

    MAX_BYTES = 8192
    MAX_FLOORS = 8
    _DOMAIN = b"walle timestamp 1\0"

    def signed_bytes(self) -> bytes:
        fields = self._fields()
        del fields["signature"]
        return self._DOMAIN + canonical_json(fields)

    def to_header(self) -> str:
        return canonical_json(self._fields()).decode()

    def _fields(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "floors": dict(self.floors)}

    @classmethod
    def from_header(cls, header: str) -> Self:
        """Parse the header. Raises ProtocolError, which names the field."""
        if len(header) > cls.MAX_BYTES:
            raise ProtocolError(TRUST_HEADER, f"{len(header)} characters, more than {cls.MAX_BYTES}")
        value = parse_object(header, TRUST_HEADER)
        floors = take_map(value, "floors", (int,), TRUST_HEADER)
        if len(floors) > cls.MAX_FLOORS or not all(0 <= floor <= MAX_EPOCH for floor in floors.values()):
            raise ProtocolError(f"{TRUST_HEADER}.floors", f"must be at most {cls.MAX_FLOORS} numbers from 0 to 2**53")
        numbers = {}
        for name in ("epoch", "generation", "floor", "root", "scenarios", "time_s", "expires_s"):
            numbers[name] = take(value, name, int, TRUST_HEADER)
            if not 0 <= numbers[name] <= MAX_EPOCH:
                raise ProtocolError(f"{TRUST_HEADER}.{name}", f"{str(numbers[name])[:30]} is not from 0 to 2**53")
        return cls(
            fleet=take_id(value, "fleet", TRUST_HEADER),
            scenarios_sha256=check_sha256(
                take(value, "scenarios_sha256", str, TRUST_HEADER), f"{TRUST_HEADER}.scenarios_sha256"
            ),
            floors=floors,
            signature=take(value, "signature", str, TRUST_HEADER),
            **numbers,
        )


@dataclasses.dataclass(frozen=True)
class Alarm:
    """Something that a device noticed of its cloud's answers or of its own clock, and reports with its outcomes.

    `kind` is one of KINDS: `frozen`, no fresh timestamp came; `clock`, the device's clock is behind a signed time;
    `metadata`, root or scenarios metadata were refused; `audience`, a directive for other devices came. `time_s` is the
    device's clock then, in seconds since the Unix epoch.
    """

    kind: str
    text: str
    time_s: float

    KINDS = ("frozen", "clock", "metadata", "audience")
    MAX_TEXT_CHARS = 500

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """Parse an alarm. Raises ProtocolError, which names the field."""
        if not isinstance(value, dict):
            raise ProtocolError(where, f"must be an object, is {type(value).__name__}")
        kind = take(value, "kind", str, where)
        if kind not in cls.KINDS:
            raise ProtocolError(f"{where}.kind", f"{kind[:40]!r} is not one of {', '.join(cls.KINDS)}")
        time_s = value.get("time_s")
        if isinstance(time_s, bool) or not isinstance(time_s, (int, float)) or not abs(time_s) <= MAX_EPOCH:
            raise ProtocolError(f"{where}.time_s", "must be a number of seconds")
        return cls(kind, take(value, "text", str, where)[: cls.MAX_TEXT_CHARS], float(time_s))
