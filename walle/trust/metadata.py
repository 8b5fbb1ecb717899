"""Verification of what devices act on: root and scenarios metadata, manifests, directives and timestamps. Pure.

The metadata are in the format of The Update Framework (TUF), so that its tools can make, sign and check them; its roles
are named here after what they sign (docs/adr/0004-trust.md):

    TUF name    here        kept     signs
    root        root        offline  root metadata: the keys and threshold of each role, and the id of the fleet
    targets     scenarios   offline  scenarios metadata: the keys and threshold that sign each scenario's manifests
    snapshot    release     online   directives: which device runs which of the signed versions
    timestamp   timestamp   online   timestamps: which metadata and which release table are the newest

A device needs `cryptography` alone. Numbers of the specification's sections are of version 1.0.33.
"""

import base64
import binascii
import contextlib
import dataclasses
import datetime as dt
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from walle.protocol import (
    MAX_EPOCH,
    Directive,
    Envelope,
    ExclusiveList,
    Manifest,
    ProtocolError,
    Timestamp,
    canonical_json,
)
from walle.protocol.fields import take
from walle.trust.ed25519_keys import KeyRefusedError, checked_key
from walle.trust.signing import MANIFEST_DOMAIN, SignatureError, key_id

ROOT, SCENARIOS, RELEASE, TIMESTAMP = "root", "targets", "snapshot", "timestamp"
ROLES = (ROOT, SCENARIOS, RELEASE, TIMESTAMP)
ONLINE_ROLES = (RELEASE, TIMESTAMP)
FLEET_FIELD = "x-walle-fleet"  # a field of root metadata: TUF keeps fields that it does not know

MAX_ROOT_BYTES = 64 << 10
MAX_SCENARIOS_BYTES = 2 << 20

_EXPIRES = "%Y-%m-%dT%H:%M:%SZ"
_FLEET = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclasses.dataclass(frozen=True)
class RoleKeys:
    """The keys of one role, key id → raw Ed25519 public key, and how many of them must sign.

    Ids are those of the keys themselves: a key that metadata lists under two ids counts once.

    Raises, from making one:
        KeyRefusedError: a key has another than its canonical encoding, or is of small or mixed order.
    """

    threshold: int
    keys: Mapping[str, bytes]
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)  # the metadata's name of a key → its id

    def __post_init__(self) -> None:
        for key in self.keys.values():
            checked_key(key)

    @classmethod
    def of(cls, keys: Iterable[bytes], threshold: int = 1) -> Self:
        """Return the role of these raw public keys."""
        return cls(threshold, {key_id(key): key for key in keys})

    def verify(self, what: str, signatures: Mapping[str, bytes], data: bytes) -> None:
        """Return where at least `threshold` of the keys signed `data`; `signatures` are by key id.

        Raises:
            SignatureError: fewer did.
        """
        self._count(what, signatures, data, {name: name for name in self.keys})

    def verify_metadata(self, what: str, signatures: Mapping[str, bytes], data: bytes) -> None:
        """As `verify`, for `signatures` by the names that the metadata which made this role gave its keys."""
        self._count(what, signatures, data, self.labels)

    def is_met(self, signatures: Mapping[str, bytes], data: bytes) -> bool:
        """Return whether `verify` would return."""
        valid = [name for name, key in self.keys.items() if _is_signed(key, signatures.get(name, b""), data)]
        return len(valid) >= self.threshold

    def metadata_signers(self, signatures: Mapping[str, bytes], data: bytes) -> set[str]:
        """Return the ids of the keys that signed metadata, as `verify_metadata` counts them."""
        return self._signers(signatures, data, self.labels)

    def _signers(self, signatures: Mapping[str, bytes], data: bytes, labels: Mapping[str, str]) -> set[str]:
        return {
            labels[name]
            for name, signature in signatures.items()
            if name in labels and _is_signed(self.keys[labels[name]], signature, data)
        }

    def _count(self, what: str, signatures: Mapping[str, bytes], data: bytes, labels: Mapping[str, str]) -> None:
        valid = self._signers(signatures, data, labels)
        if len(valid) < self.threshold:
            raise SignatureError(
                what,
                f"{len(valid)} valid signatures of the {self.threshold} that are needed; signed by"
                f" {_names(signatures)}, trusted {_names(labels)}",
            )


@dataclasses.dataclass(frozen=True)
class Root:
    """Verified root metadata: who may sign what in `fleet`. `expires_s` is in seconds since the Unix epoch."""

    version: int
    fleet: str
    expires_s: int
    roles: Mapping[str, RoleKeys]
    data: bytes  # received bytes, unchanged

    @classmethod
    def trusted(cls, data: bytes) -> Self:
        """Return the root metadata that a device was given over a trusted path. It must be signed by its own keys.

        Raises:
            SignatureError: it cannot be read, or is not signed by a threshold of its root keys.
        """
        signed = _Signed.parse("root metadata", data, MAX_ROOT_BYTES, ROOT)
        root = cls._of(signed, data)
        signed.verify(root.roles[ROOT])
        return root

    def next(self, data: bytes) -> Self:
        """Return the root metadata that follow these (TUF 5.3.4 and 5.3.5).

        Raises:
            SignatureError: a threshold of the keys before or of the new ones did not sign, the version is not the next
                one, or the fleet is another.
        """
        signed = _Signed.parse("root metadata", data, MAX_ROOT_BYTES, ROOT)
        root = type(self)._of(signed, data)
        signed.verify(self.roles[ROOT])
        signed.verify(root.roles[ROOT])
        self._check_follows(root, signed.what)
        return root

    def proposed(self, data: bytes) -> "ProposedRoot":
        """Return root metadata that may follow these and need not be signed by enough keys yet.

        Raises:
            SignatureError: they cannot be read, the version is not the next one, or the fleet is another.
        """
        signed = _Signed.parse("root metadata", data, MAX_ROOT_BYTES, ROOT)
        root = type(self)._of(signed, data)
        self._check_follows(root, signed.what)
        signers = [one.roles[ROOT].metadata_signers(signed.signatures, signed.signed_bytes) for one in (self, root)]
        missing = [
            max(0, one.roles[ROOT].threshold - len(found)) for one, found in zip((self, root), signers, strict=True)
        ]
        return ProposedRoot(root, signed.signed_bytes, frozenset().union(*signers), missing[0], missing[1])

    def _check_follows(self, root: "Root", what: str) -> None:
        if root.version != self.version + 1:
            raise SignatureError(what, f"version {root.version}; {self.version + 1} must follow {self.version}")
        if root.fleet != self.fleet:
            raise SignatureError(what, f"they are of fleet {root.fleet!r}, this is {self.fleet!r}")

    @classmethod
    def _of(cls, signed: "_Signed", data: bytes) -> Self:
        with _reading(signed.what):
            fleet = take(signed.body, FLEET_FIELD, str, "signed")
            if not _FLEET.fullmatch(fleet):
                raise ProtocolError(f"signed.{FLEET_FIELD}", f"{fleet[:80]!r} is not 1 to 64 letters, digits, . _ -")
            named = take(signed.body, "roles", dict, "signed")
            if set(named) != set(ROLES):
                raise ProtocolError("signed.roles", f"must be {', '.join(ROLES)}; are {_names(named)}")
            known = _keys(take(signed.body, "keys", dict, "signed"), "signed.keys")
            roles = {name: _role(role, known, f"signed.roles.{name}") for name, role in named.items()}
            for name in ONLINE_ROLES:
                if roles[name].threshold != 1:
                    raise ProtocolError(f"signed.roles.{name}.threshold", "must be 1: one online process signs")
        return cls(signed.version, fleet, signed.expires_s, roles, data)

    def verify_directive(self, directive: Directive) -> None:
        """Return where the release role of this fleet signed `directive`. Raises SignatureError."""
        what = f"directive for {directive.task!r}"
        signature = _decoded(what, directive.signature)
        self._verify_online(RELEASE, what, signature, directive.signed_bytes(self.fleet))

    def verify_exclusive(self, files: ExclusiveList) -> None:
        """Return where the release role of this fleet signed `files`. Raises SignatureError."""
        what = "list of exclusive files"
        self._verify_online(RELEASE, what, _decoded(what, files.signature), files.signed_bytes(self.fleet))

    def verify_timestamp(self, timestamp: Timestamp) -> None:
        """Return where the timestamp role of this fleet signed `timestamp`. Raises SignatureError."""
        what = "timestamp"
        if timestamp.fleet != self.fleet:
            raise SignatureError(what, f"it is of fleet {timestamp.fleet[:64]!r}, this is {self.fleet!r}")
        self._verify_online(TIMESTAMP, what, _decoded(what, timestamp.signature), timestamp.signed_bytes())

    def _verify_online(self, role: str, what: str, signature: bytes, data: bytes) -> None:
        keys = self.roles[role].keys
        if not any(_is_signed(key, signature, data) for key in keys.values()):
            name = "release" if role == RELEASE else role
            raise SignatureError(
                what, f"not signed by the {name} role of fleet {self.fleet!r} (trusted {_names(keys)})"
            )

    def replaces_online_keys_of(self, other: "Root") -> bool:
        """Return whether a key of an online role of `other` has lost its role (TUF 5.3.11, fast-forward attacks)."""
        return any(set(other.roles[role].keys) - set(self.roles[role].keys) for role in ONLINE_ROLES)


@dataclasses.dataclass(frozen=True)
class ProposedRoot:
    """Root metadata that may follow others, the ids of the root keys of either that signed, and how many still must."""

    root: Root
    signed_bytes: bytes
    signed_by: frozenset[str]
    missing_old: int  # signatures that the keys before have to add
    missing_new: int  # signatures that its own keys have to add


@dataclasses.dataclass(frozen=True)
class Scenarios:
    """Verified scenarios metadata: the keys that sign the manifests of each scenario."""

    version: int
    expires_s: int
    delegations: Mapping[str, RoleKeys]
    data: bytes

    @classmethod
    def verified(cls, data: bytes, root: Root) -> Self:
        """Return the metadata in `data`.

        Raises:
            SignatureError: it cannot be read, or a threshold of the scenarios role of `root` did not sign it.
        """
        signed = _Signed.parse("scenarios metadata", data, MAX_SCENARIOS_BYTES, SCENARIOS)
        signed.verify(root.roles[SCENARIOS])
        return cls._of(signed, data)

    @classmethod
    def stored(cls, data: bytes) -> Self:
        """Return metadata that this device verified before, perhaps under older root metadata than its present ones.

        Raises:
            SignatureError: they cannot be read.
        """
        return cls._of(_Signed.parse("scenarios metadata", data, MAX_SCENARIOS_BYTES, SCENARIOS), data)

    @classmethod
    def _of(cls, signed: "_Signed", data: bytes) -> Self:
        with _reading(signed.what):
            delegated = take(signed.body, "delegations", dict, "signed")
            known = _keys(take(delegated, "keys", dict, "signed.delegations"), "signed.delegations.keys")
            delegations: dict[str, RoleKeys] = {}
            for index, role in enumerate(take(delegated, "roles", list, "signed.delegations")):
                where = f"signed.delegations.roles[{index}]"
                if not isinstance(role, dict):
                    raise ProtocolError(where, "must be an object")
                name = take(role, "name", str, where)
                if name in delegations or name in ROLES:
                    raise ProtocolError(where, f"{name!r} is listed twice, or is the name of a role")
                delegations[name] = _role(role, known, where)
        return cls(signed.version, signed.expires_s, delegations, data)

    def verify_manifest(self, envelope_bytes: bytes) -> Manifest:
        """Return the manifest in an envelope that a threshold of its scenario's keys signed.

        Raises:
            SignatureError: the bytes are not an envelope, not signed by enough keys, or not a manifest.
        """
        return verify_manifest(envelope_bytes, self.delegations.get)


def verify_manifest(envelope_bytes: bytes, keys_of: Callable[[str], RoleKeys | None]) -> Manifest:
    """Return the manifest in an envelope. `keys_of(scenario)` returns the keys that must have signed it, or None.

    Raises:
        SignatureError: as `Scenarios.verify_manifest`.
    """
    try:
        envelope = Envelope.from_bytes(envelope_bytes)
        # Only the name of the scenario is used before the signature is checked: it says which keys count.
        scenario = take(json.loads(envelope.payload), "scenario", str, "manifest")
    except (ProtocolError, ValueError, TypeError, RecursionError) as error:
        raise SignatureError("manifest", f"cannot be read: {error}") from error
    keys = keys_of(scenario)
    if keys is None:
        raise SignatureError("manifest", f"no key is delegated to scenario {scenario[:80]!r}")
    keys.verify(f"manifest of scenario {scenario!r}", envelope.signatures, MANIFEST_DOMAIN + envelope.payload)
    try:
        manifest = envelope.manifest
    except ProtocolError as error:
        raise SignatureError("manifest", f"is signed, but cannot be read: {error}") from error
    if manifest.scenario != scenario:
        raise SignatureError("manifest", "is signed, but names two scenarios")
    return manifest


@dataclasses.dataclass(frozen=True)
class _Signed:
    """Metadata that were parsed and not yet verified. `signatures` are by the id that the metadata's keys have here."""

    what: str
    version: int
    expires_s: int
    body: Mapping[str, Any]
    signed_bytes: bytes
    signatures: Mapping[str, bytes]

    @classmethod
    def parse(cls, what: str, data: bytes, max_bytes: int, kind: str) -> Self:
        with _reading(what):
            if len(data) > max_bytes:
                raise ProtocolError("metadata", f"{len(data)} bytes, more than {max_bytes}")
            value = json.loads(data)
            if not isinstance(value, dict):
                raise ProtocolError("metadata", "must be an object")
            body = take(value, "signed", dict, "metadata")
            if take(body, "_type", str, "signed") != kind:
                raise ProtocolError("signed._type", f"must be {kind!r}")
            spec = take(body, "spec_version", str, "signed").split(".")
            if len(spec) not in (2, 3) or not all(part.isdigit() for part in spec) or spec[0] != "1":
                raise ProtocolError("signed.spec_version", "must be 1.x")
            version = take(body, "version", int, "signed")
            if not 0 < version <= MAX_EPOCH:
                raise ProtocolError("signed.version", f"{str(version)[:30]} is not from 1 to 2**53")
            expires_s = _seconds(take(body, "expires", str, "signed"))
            signatures = _signatures(take(value, "signatures", list, "metadata"))
            return cls(what, version, expires_s, body, canonical_metadata(body), signatures)

    def verify(self, role: RoleKeys) -> None:
        role.verify_metadata(self.what, self.signatures, self.signed_bytes)


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turn errors of reading within the block into SignatureError."""
    try:
        yield
    except (ProtocolError, ValueError, RecursionError) as error:
        raise SignatureError(what, f"cannot be read: {error}") from error


def canonical_metadata(value: Any) -> bytes:
    """Return the bytes of metadata that are signed: TUF's canonical JSON, for printable ASCII text and whole numbers.

    Within these, it is the encoding of `canonical_json`. Raises ProtocolError for anything else.
    """
    _check_plain(value)
    return canonical_json(value)


def _check_plain(value: Any) -> None:
    match value:
        case str():
            if not (value.isascii() and value.isprintable()):
                raise ProtocolError("metadata", f"text {value[:40]!r} is not printable ASCII")
        case bool() | int() | None:
            pass
        case list():
            for one in value:
                _check_plain(one)
        case dict():
            for name, one in value.items():
                _check_plain(name)
                _check_plain(one)
        case _:
            raise ProtocolError("metadata", f"{type(value).__name__} values are not signed")


def _signatures(values: Iterable[Any]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for index, value in enumerate(values):
        where = f"signatures[{index}]"
        if not isinstance(value, dict):
            raise ProtocolError(where, "must be an object")
        name = take(value, "keyid", str, where)
        if name in found:
            raise ProtocolError(where, f"a second signature of {name[:80]!r}")
        found[name] = bytes.fromhex(take(value, "sig", str, where))
    return found


def _keys(values: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """Return the Ed25519 keys by the metadata's ids. Keys of other types are left out: they never count."""
    keys = {}
    for name, value in values.items():
        here = f"{where}.{name}"
        if not isinstance(value, dict):
            raise ProtocolError(here, "must be an object")
        kind, scheme = take(value, "keytype", str, here), take(value, "scheme", str, here)
        public = take(take(value, "keyval", dict, here), "public", str, f"{here}.keyval")
        if (kind, scheme) != ("ed25519", "ed25519"):
            continue
        try:
            keys[name] = bytes.fromhex(public)
        except ValueError as error:
            raise ProtocolError(f"{here}.keyval.public", "is not hexadecimal") from error
        try:
            checked_key(keys[name])
        except KeyRefusedError as error:
            raise ProtocolError(f"{here}.keyval.public", error.fault) from error
    return keys


def _role(value: Any, keys: Mapping[str, bytes], where: str) -> RoleKeys:
    if not isinstance(value, dict):
        raise ProtocolError(where, "must be an object")
    threshold = take(value, "threshold", int, where)
    names = take(value, "keyids", list, where)
    if threshold < 1:
        raise ProtocolError(f"{where}.threshold", f"{threshold} is below 1")
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise ProtocolError(f"{where}.keyids", "must be different texts")
    labels = {name: key_id(keys[name]) for name in names if name in keys}
    return RoleKeys(threshold, {labels[name]: keys[name] for name in labels}, labels)


def _seconds(expires: str) -> int:
    moment = dt.datetime.strptime(expires, _EXPIRES).replace(tzinfo=dt.UTC)
    return int(moment.timestamp())


def expires_text(expires_s: float) -> str:
    """Return a time in seconds since the Unix epoch as TUF writes it."""
    return dt.datetime.fromtimestamp(expires_s, dt.UTC).strftime(_EXPIRES)


def _decoded(what: str, signature: str) -> bytes:
    try:
        return base64.b64decode(signature, validate=True)
    except (ValueError, binascii.Error) as error:
        raise SignatureError(what, f"its signature is not base64: {error}") from error


def _is_signed(key: bytes, signature: bytes, data: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _names(keys: Iterable[str]) -> str:
    return ", ".join(sorted(name[:40] for name in keys)[:8]) or "nobody"
