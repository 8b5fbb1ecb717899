"""Signing keys (Ed25519) and what they sign: manifests, directives, lists of exclusive files, timestamps, metadata.

The roles are in docs/adr/0004-trust.md.
Each kind of signed bytes begins differently: manifests with `MANIFEST_DOMAIN`, directives, lists and timestamps with
their own domains, metadata with a brace. None is accepted as another, even where one key has several roles.
Verification is in `walle.trust.metadata`.
"""

import base64
import dataclasses
import hashlib
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from walle.base.durable_file import write_file
from walle.errors import ConfigError, DeployError
from walle.protocol import Directive, Envelope, ExclusiveList, Manifest, Timestamp

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

    def sign(self, data: bytes) -> bytes:
        """Return the signature of `data`, 64 bytes."""
        return self._key.sign(data)

    def sign_manifest(self, manifest: Manifest) -> Envelope:
        """Return `manifest` as bytes with this key's signature over them; for a scenario's key."""
        payload = manifest.to_bytes()
        return Envelope(payload, {self.key_id: self._key.sign(MANIFEST_DOMAIN + payload)})

    def sign_directive(self, directive: Directive, fleet: str) -> Directive:
        """Return `directive` with this key's signature in place of any it had; for the release role of `fleet`."""
        signature = self._key.sign(directive.signed_bytes(fleet))
        return dataclasses.replace(directive, signature=base64.b64encode(signature).decode())

    def sign_exclusive(self, files: ExclusiveList, fleet: str) -> ExclusiveList:
        """Return `files` with this key's signature in place of any it had; for the release role of `fleet`."""
        signature = self._key.sign(files.signed_bytes(fleet))
        return dataclasses.replace(files, signature=base64.b64encode(signature).decode())

    def sign_audit_head(self, data: bytes) -> tuple[bytes, bytes]:
        """Return this key's signature over the signed bytes of an audit log's head, and its public key; audit role."""
        return self._key.sign(data), self.public_key

    def sign_timestamp(self, timestamp: Timestamp) -> Timestamp:
        """Return `timestamp` with this key's signature in place of any it had; for the timestamp role."""
        signature = self._key.sign(timestamp.signed_bytes())
        return dataclasses.replace(timestamp, signature=base64.b64encode(signature).decode())
