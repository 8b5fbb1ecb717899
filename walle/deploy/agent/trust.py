"""Trust of a device in its cloud: the newest root, scenarios metadata and timestamp that it has verified.

The rules are The Update Framework's for its client, and pure: nothing here fetches, and the clock is an argument.
Installed versions are kept whatever comes; what is refused here installs nothing new.

- Root metadata are followed one version at a time, each signed by the keys before and by its own.
- A timestamp counts if it is signed, not expired, and newer than the last in (epoch, time); within an epoch neither
  the release table nor the metadata go back.
- Where new root metadata take a role from an online key, the last timestamp is forgotten, and the serials of all tasks
  begin again: whoever had that key may have signed the highest numbers there are.
- Scenarios metadata that the keys of new root metadata have not signed are forgotten, with their version; what is
  installed under them stays.
- Time never goes back: a clock that is behind the last signed time counts from that time on.
"""

import base64
import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walle.base.clock import Clock
from walle.base.durable_file import NotSyncedError, make_folders, remove_unfinished, write_file
from walle.errors import ConfigError, DeployError
from walle.protocol import Directive, Manifest, ProtocolError, Timestamp, canonical_json
from walle.trust.audience import exclusion
from walle.trust.metadata import RoleKeys, Root, Scenarios, expires_text, verify_manifest
from walle.trust.signing import SignatureError

_LOG = logging.getLogger(__name__)

CLOCK_TOLERANCE_S = 300
MAX_ROOTS_AT_ONCE = 64  # steps of root metadata for one answer; the next answer goes on
_MAX_RETIRED = 32  # former keys that are remembered for each scenario
_FORMAT = 1


class TrustError(DeployError):
    """Metadata or a timestamp that a device refuses. It keeps what is installed. `kind` is that of an `Alarm`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class DeviceTrust:
    """Trust of one device. `pinned` is the root metadata in its join file, which came over a trusted path.

    `device_id` and `app_version` are those of its profile: it obeys the directives whose audience has them.
    """

    def __init__(self, pinned: Mapping[str, Any], clock: Clock, *, device_id: str, app_version: str) -> None:
        """Raises ConfigError where `pinned` is not valid root metadata."""
        try:
            self.root = Root.trusted(json.dumps(pinned).encode())
        except SignatureError as error:
            raise ConfigError(f"trusted root: {error}; copy the join file again from the cloud's folder") from error
        self.scenarios: Scenarios | None = None
        self.timestamp: Timestamp | None = None
        self._clock = clock
        self._device_id = device_id
        self._app_version = app_version
        self._era = self.root.version  # the last root to take a role from an online key, or the pinned one
        self._retired: dict[str, dict[str, bytes]] = {}  # scenario → keys that signed versions here before
        self._known_at_s = clock.monotonic()  # time at which `timestamp` was accepted, or read from the disk

    # --- acceptance ---------------------------------------------------------------------------------------------------

    @property
    def era(self) -> str:
        """The fleet, and the root version from which on its online keys are in use: serials are ordered within it."""
        return f"{self.root.fleet}/{self._era}"

    def follow(self, data: bytes) -> None:
        """Take the next root metadata. Raises TrustError, and nothing has changed."""
        try:
            root = self.root.next(data)
        except SignatureError as error:
            raise TrustError("metadata", str(error)) from error
        if root.replaces_online_keys_of(self.root):
            self.timestamp = None
            self._era = root.version
        self.root = root
        self._forget_replaced_scenarios()

    def _forget_replaced_scenarios(self) -> None:
        """Forget scenarios metadata that the keys of the root have not signed; what is installed by them stays."""
        if self.scenarios is not None and not self._is_scenarios_role_kept(self.scenarios):
            self._retire({})
            self.scenarios = None

    def _is_scenarios_role_kept(self, held: Scenarios) -> bool:
        try:
            Scenarios.verified(held.data, self.root)
        except SignatureError:
            return False
        return True

    def check(self, timestamp: Timestamp) -> bool:
        """Return whether `timestamp` is newer than the last one; an older one is only a slower answer.

        Raises:
            TrustError: it is not signed, has expired, or goes back behind what this device has seen.
        """
        try:
            self.root.verify_timestamp(timestamp)
        except SignatureError as error:
            raise TrustError("metadata", str(error)) from error
        last = self.timestamp
        if last is not None and (timestamp.epoch, timestamp.time_s) < (last.epoch, last.time_s):
            return False
        if timestamp.expires_s <= self.now_s():
            raise TrustError("frozen", self._expired("the signed timestamp", timestamp.expires_s))
        if timestamp.root < self.root.version:
            raise TrustError("metadata", f"root version {self.root.version} was seen; {timestamp.root} is a replay")
        if timestamp.root > self.root.version:
            raise TrustError("metadata", f"root version {timestamp.root} is announced, but cannot be had yet")
        if self.scenarios is not None and timestamp.scenarios < self.scenarios.version:
            seen = self.scenarios.version
            raise TrustError("metadata", f"scenarios version {seen} was seen; {timestamp.scenarios} is a replay")
        if last is not None and timestamp.epoch == last.epoch and timestamp.generation < last.generation:
            raise TrustError(
                "metadata",
                f"the release table went back from generation {last.generation} to {timestamp.generation} in epoch"
                f" {last.epoch}; a cloud restored from a backup needs a new epoch",
            )
        return last is None or timestamp != last

    def needs_scenarios(self, timestamp: Timestamp) -> bool:
        """Return whether the scenarios metadata that a checked timestamp names must be pulled."""
        held = self.scenarios
        return held is None or hashlib.sha256(held.data).hexdigest() != timestamp.scenarios_sha256

    def accept(self, timestamp: Timestamp, scenarios: bytes | None = None) -> None:
        """Take a checked timestamp, with the scenarios metadata that it names where these are needed.

        Raises:
            TrustError: the metadata are not those that it names, are not signed, or have expired; nothing has changed.
        """
        if scenarios is not None:
            if hashlib.sha256(scenarios).hexdigest() != timestamp.scenarios_sha256:
                raise TrustError("metadata", "the scenarios metadata is not the one that the timestamp names")
            try:
                found = Scenarios.verified(scenarios, self.root)
            except SignatureError as error:
                raise TrustError("metadata", str(error)) from error
            if found.version != timestamp.scenarios:
                raise TrustError("metadata", f"scenarios version {found.version}, {timestamp.scenarios} was announced")
            self._retire(found.delegations)
            self.scenarios = found
        self.timestamp = timestamp
        self._known_at_s = self._clock.monotonic()

    def _retire(self, new: Mapping[str, RoleKeys]) -> None:
        """Remember the keys that lose a scenario: versions that they signed before may stay installed."""
        for scenario, role in self.scenarios.delegations.items() if self.scenarios else ():
            now = new.get(scenario, RoleKeys(1, {})).keys
            lost = {name: key for name, key in role.keys.items() if name not in now}
            if lost:
                kept = {**self._retired.get(scenario, {}), **lost}
                self._retired[scenario] = dict(list(kept.items())[-_MAX_RETIRED:])

    # --- time ---------------------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Return the time: the clock's, or the last signed time and what has passed since, whichever is later."""
        now_s = self._clock.time()
        if self.timestamp is None:
            return now_s
        return max(now_s, self.timestamp.time_s + max(0.0, self._clock.monotonic() - self._known_at_s))

    def clock_fault(self) -> str:
        """Return how far the device's clock is behind the last signed time, empty where it is not."""
        if self.timestamp is None:
            return ""
        behind_s = self.now_s() - self._clock.time()
        if behind_s <= CLOCK_TOLERANCE_S:
            return ""
        return (
            f"this device's clock is {behind_s:.0f} s behind the cloud's signed time; it is {self._text(self.now_s())}"
        )

    def stale(self) -> str:
        """Return why nothing new may be installed now, empty where it may."""
        if self.timestamp is None:
            return "no signed timestamp came with it"
        if self.scenarios is None:
            return "no scenarios metadata signed by the keys of the new root metadata was received"
        for what, expires_s in (
            ("the newest signed timestamp", self.timestamp.expires_s),
            ("the root metadata", self.root.expires_s),
            ("the scenarios metadata", self.scenarios.expires_s),
        ):
            if expires_s <= self.now_s():
                return self._expired(what, expires_s)
        return ""

    def _expired(self, what: str, expires_s: int) -> str:
        return (
            f"{what} expired at {self._text(expires_s)}, and it is {self._text(self.now_s())} on this device:"
            " answers are frozen, or the clock is ahead"
        )

    @staticmethod
    def _text(time_s: float) -> str:
        return expires_text(min(max(time_s, 0), 253_402_300_799))  # year 9999

    # --- what is signed -----------------------------------------------------------------------------------------------

    def verify_directive(self, directive: Directive) -> None:
        """Return where `directive` is signed for this device, and is one of those that count now.

        Raises:
            TrustError: there is no fresh timestamp, or it is for other devices.
            SignatureError: it is not signed, of another epoch, or was withdrawn.
        """
        self.root.verify_directive(directive)
        if reason := self.stale():
            raise TrustError("frozen", reason)
        assert self.timestamp is not None
        what = f"directive for {directive.task!r}"
        if directive.epoch != self.timestamp.epoch:
            raise SignatureError(what, f"it is of epoch {directive.epoch}, the cloud is in {self.timestamp.epoch}")
        floor = max(self.timestamp.floor, self.timestamp.floors.get(directive.task, 0))
        if directive.serial < floor:
            raise SignatureError(what, f"it was withdrawn: serials begin at {floor} now")
        if reason := exclusion(directive, self._device_id, self._app_version):
            raise TrustError("audience", f"{what} is not for this device: {reason}")

    def verify_manifest(self, envelope: bytes) -> Manifest:
        """Return the manifest of a version to be installed. Raises SignatureError."""
        if self.scenarios is None:
            raise SignatureError("manifest", "no scenarios metadata came yet")
        return self.scenarios.verify_manifest(envelope)

    def verify_installed(self, envelope: bytes) -> Manifest:
        """Return the manifest of a version that is installed: former keys count too. Raises SignatureError."""
        return verify_manifest(envelope, self._keys_with_retired)

    def _keys_with_retired(self, scenario: str) -> RoleKeys | None:
        role = self.scenarios.delegations.get(scenario) if self.scenarios else None
        keys = {**self._retired.get(scenario, {}), **(role.keys if role else {})}
        return RoleKeys(1, keys) if keys else None  # a threshold may have been raised since it was installed

    # --- the disk -----------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        body: dict[str, Any] = {
            "root": base64.b64encode(self.root.data).decode(),
            "era": self._era,
            "scenarios": base64.b64encode(self.scenarios.data).decode() if self.scenarios else "",
            "timestamp": self.timestamp.to_header() if self.timestamp else "",
            "retired": {
                scenario: [key.hex() for key in keys.values()] for scenario, keys in sorted(self._retired.items())
            },
        }
        digest = hashlib.sha256(canonical_json(body)).hexdigest()
        return canonical_json({"format": _FORMAT, "trust": body, "sha256": digest})

    def restore(self, data: bytes) -> None:
        """Take what `to_bytes` gave, unless it is of another fleet or older than the pinned root.

        Raises:
            ValueError, TypeError, KeyError: `to_bytes` did not make it; nothing has changed.
        """
        value: Mapping[str, Any] = json.loads(data)
        body = value["trust"]
        if value["format"] != _FORMAT or hashlib.sha256(canonical_json(body)).hexdigest() != value["sha256"]:
            raise ValueError("its format or checksum is wrong")
        try:
            root = Root.trusted(base64.b64decode(body["root"]))
            scenarios = Scenarios.stored(base64.b64decode(body["scenarios"])) if body["scenarios"] else None
            timestamp = Timestamp.from_header(body["timestamp"]) if body["timestamp"] else None
            retired = {
                scenario: dict(RoleKeys.of(bytes.fromhex(key) for key in keys).keys)
                for scenario, keys in body["retired"].items()
            }
        except (SignatureError, ProtocolError) as error:
            raise ValueError(str(error)) from error
        if root.fleet != self.root.fleet:
            _LOG.warning(
                "the join file is of fleet %s, before it was %s: trust starts again from the join file",
                self.root.fleet,
                root.fleet,
            )
            return
        if root.version >= self.root.version:
            self.root, self._era = root, body["era"]
            self.timestamp = timestamp
        self.scenarios = scenarios
        self._known_at_s = self._clock.monotonic()
        self._retired = retired
        self._forget_replaced_scenarios()  # those of a root before the pinned one, whose keys it may not have


class TrustFile:
    """The file that keeps a device's trust, replaced whole. Blocks on the disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trust.json"

    def read(self, trust: DeviceTrust) -> None:
        """Restore `trust`, and remove what a killed writer left.

        A file that cannot be read is left out: trust starts again with the root of the join file.
        """
        remove_unfinished(self.path.parent)
        try:
            trust.restore(self.path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            _LOG.error(
                "%s is corrupted (%s): trust starts again with the root of the join file",
                self.path,
                error,
            )

    def write(self, trust: DeviceTrust) -> None:
        """Keep `trust`, whole or not at all. Raises OSError."""
        make_folders(self.path.parent)
        try:
            write_file(self.path, trust.to_bytes())
        except NotSyncedError as error:  # the old state and the new one are both valid
            _LOG.warning("%s may not survive a power cut: %s", self.path, error)
