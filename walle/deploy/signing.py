"""Signatures on what devices run: Ed25519 keys in two roles, after The Update Framework (docs/adr/0010-two-keys.md).

The bundle key signs manifests: it stays where versions are made, and may be offline. The release key signs directives:
it is online, and can only choose among versions that the bundle key signed. A device holds the public keys
(`TrustedKeys`).

A manifest's signature covers `MANIFEST_DOMAIN` and the payload, a directive's covers `Directive.signed_bytes()`, which
begins with a bracket: neither is accepted as the other, even where one key has both roles. The agent checks expiry,
serials and that a manifest is the one that its directive names.
"""

import base64
import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from walle.durable_file import write_file
from walle.errors import ConfigError, DeployError
from walle.protocol import Directive, Envelope, Manifest, ProtocolError

MANIFEST_DOMAIN = b"walle manifest 1\0"
_KEY_ID_CHARS = 16


class SignatureError(DeployError):
    """Metadata that no trusted key of the right role signed. `what` is the part, `reason` why it was refused."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        self.reason = reason


def key_id(public_key: bytes) -> str:
    """Return the short name of a raw public key: the first 16 hex digits of its sha256."""
    return hashlib.sha256(public_key).hexdigest()[:_KEY_ID_CHARS]


class Signer:
    """A private key and what it may sign."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key().public_bytes_raw()
        self.key_id = key_id(self.public_key)

    @classmethod
    def generate(cls) -> Self:
        """Return a signer with a new key, which is on no disk yet."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the signer whose key `save` wrote.

        Raises:
            ConfigError: the file is absent, unreadable, or does not hold an Ed25519 private key.
        """
        try:
            key = load_pem_private_key(path.read_bytes(), password=None)
        except OSError as error:
            raise ConfigError(f"signing key {path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise ConfigError(f"signing key {path} is not an unencrypted PEM private key: {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"signing key {path} is not an Ed25519 key; make one with Signer.generate().save(path)")
        return cls(key)

    def save(self, path: Path) -> None:
        """Write the key as PEM, readable by its owner alone; at every instant `path` holds the old key or this one."""
        pem = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_file(path, pem, mode=0o600)

    def sign_manifest(self, manifest: Manifest) -> Envelope:
        """Return `manifest` as bytes with this key's signature over them; for the bundle role."""
        payload = manifest.to_bytes()
        return Envelope(payload, {self.key_id: self._key.sign(MANIFEST_DOMAIN + payload)})

    def sign_directive(self, directive: Directive) -> Directive:
        """Return `directive` with this key's signature in place of any it had; for the release role."""
        signature = self._key.sign(directive.signed_bytes())
        return dataclasses.replace(directive, signature=base64.b64encode(signature).decode())

    def sign_audit_head(self, data: bytes) -> tuple[bytes, bytes]:
        """Return this key's signature over the signed bytes of an audit log's head, and its public key; audit role."""
        return self._key.sign(data), self.public_key


class TrustedKeys:
    """The public keys that a device trusts, by role: key id → raw 32-byte Ed25519 public key."""

    def __init__(self, bundle: Mapping[str, bytes], release: Mapping[str, bytes]) -> None:
        """Raises ConfigError where a key is not one, or is filed under an id that is not its own."""
        self.bundle = dict(bundle)
        self.release = dict(release)
        self._bundle = _load_role("bundle", self.bundle)
        self._release = _load_role("release", self.release)

    @classmethod
    def of(cls, bundle: Signer, release: Signer) -> Self:
        """Return the keys with which a device trusts these two signers."""
        return cls({bundle.key_id: bundle.public_key}, {release.key_id: release.public_key})

    def to_json(self) -> dict[str, Any]:
        return {
            role: {name: base64.b64encode(key).decode() for name, key in keys.items()}
            for role, keys in (("bundle", self.bundle), ("release", self.release))
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Raises ConfigError, naming the role and key id, where `value` is not what `to_json` gives."""
        if not isinstance(value, dict):
            raise ConfigError(f"trusted keys must be an object with bundle and release, is {type(value).__name__}")
        roles: dict[str, dict[str, bytes]] = {}
        for role in ("bundle", "release"):
            keys = value.get(role)
            if not isinstance(keys, dict):
                raise ConfigError(f"trusted keys: {role} must map key ids to base64 public keys")
            roles[role] = {}
            for name, text in keys.items():
                try:
                    roles[role][name] = base64.b64decode(text, validate=True)
                except (ValueError, TypeError) as error:
                    raise ConfigError(f"trusted keys: {role} key {name!r} is not base64: {error}") from error
        return cls(roles["bundle"], roles["release"])

    def verify_manifest(self, envelope_bytes: bytes) -> Manifest:
        """Return the manifest in an envelope that a bundle key signed.

        Raises:
            SignatureError: the bytes are not an envelope, not signed by a trusted bundle key, or not a manifest.
        """
        try:
            envelope = Envelope.from_bytes(envelope_bytes)
        except ProtocolError as error:
            raise SignatureError("manifest", f"cannot be read: {error}") from error
        signed_bytes = MANIFEST_DOMAIN + envelope.payload
        for name, key in self._bundle.items():
            signature = envelope.signatures.get(name)
            if signature is not None and _is_signed(key, signature, signed_bytes):
                break
        else:
            raise SignatureError(
                "manifest",
                f"no valid signature of a trusted bundle key; signed by {_names(envelope.signatures)},"
                f" trusted {_names(self.bundle)}",
            )
        try:
            return Manifest.from_bytes(envelope.payload)
        except ProtocolError as error:
            raise SignatureError("manifest", f"is signed, but cannot be read: {error}") from error

    def verify_directive(self, directive: Directive) -> None:
        """Return where a trusted release key signed `directive`.

        Raises:
            SignatureError: none did, or a signed field was changed.
        """
        what = f"directive for {directive.task!r}"
        try:
            signature = base64.b64decode(directive.signature, validate=True)
        except ValueError as error:
            raise SignatureError(what, f"its signature is not base64: {error}") from error
        signed_bytes = directive.signed_bytes()
        if not any(_is_signed(key, signature, signed_bytes) for key in self._release.values()):
            raise SignatureError(what, f"not signed by a trusted release key (trusted {_names(self.release)})")


def _load_role(role: str, keys: Mapping[str, bytes]) -> dict[str, Ed25519PublicKey]:
    for name, key in keys.items():
        if len(key) != 32:
            raise ConfigError(f"trusted keys: {role} key {name!r} has {len(key)} bytes, an Ed25519 public key has 32")
        if name != key_id(key):
            raise ConfigError(
                f"trusted keys: {role} key {name!r} is filed under the wrong id, its own is {key_id(key)}"
            )
    return {name: Ed25519PublicKey.from_public_bytes(key) for name, key in keys.items()}


def _is_signed(key: Ed25519PublicKey, signature: bytes, data: bytes) -> bool:
    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _names(keys: Mapping[str, bytes]) -> str:
    return ", ".join(sorted(name[:40] for name in keys)[:8]) or "nobody"
