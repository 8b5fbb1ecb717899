"""Files of a cloud's folder that are secrets, and their one encrypted file (scrypt, AES-256-GCM) beside a backup."""

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from walle.base.durable_file import write_file
from walle.errors import ConfigError

_FORMAT = "walle-keys-1"
_COST = {"n": 1 << 15, "r": 8, "p": 1}  # 32 MiB and about 0.1 s for each guess
_MIN_PASSPHRASE_CHARS = 12
_MAX_FILE_BYTES = 64 << 20
_PROBE_BYTES = 4096
_PATTERNS = ("keys/**", "authority/**", "offline-keys/**", "identity/**", "*.token", "join.json", "*.pem", "*.key")


class SecretFilesError(ConfigError):
    """Keys of a backup that cannot be read or written. `path` is their file."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


def is_secret(path: PurePosixPath, head: bytes) -> bool:
    """Return whether a file of a cloud's folder is a secret, by its path in it or by a private key in `head`."""
    if path.parts[0] in ("repos", "files", "cloud-files"):  # named and filled by authors of tasks
        return False
    is_named = any(path.full_match(pattern) or PurePosixPath(path.name).full_match(pattern) for pattern in _PATTERNS)
    return is_named or b"PRIVATE KEY-----" in head[:_PROBE_BYTES]


def save_secrets(path: Path, files: Mapping[str, bytes], passphrase: str) -> None:
    """Write files, by their paths, encrypted; at every instant `path` does not exist or is whole.

    Raises:
        SecretFilesError: the passphrase is too short, or `path` exists.
    """
    if len(passphrase) < _MIN_PASSPHRASE_CHARS:
        raise SecretFilesError(path, f"the passphrase has fewer than {_MIN_PASSPHRASE_CHARS} characters")
    if path.exists():
        raise SecretFilesError(path, "exists; name another file")
    salt, nonce = os.urandom(16), os.urandom(12)
    plain = json.dumps({name: base64.b64encode(data).decode() for name, data in files.items()}).encode()
    head = {"format": _FORMAT, **_COST, "salt": salt.hex(), "nonce": nonce.hex()}
    text = json.dumps(head, sort_keys=True).encode() + b"\n"
    write_file(path, text + AESGCM(_key(passphrase, salt, _COST)).encrypt(nonce, plain, text), mode=0o600)


def load_secrets(path: Path, passphrase: str) -> dict[str, bytes]:
    """Return the files that `save_secrets` wrote.

    Raises:
        SecretFilesError: the file cannot be read, was changed, or has another passphrase.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise SecretFilesError(path, f"has more than {_MAX_FILE_BYTES} bytes: not a file of keys")
        text, newline, sealed = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise SecretFilesError(path, error.strerror or str(error)) from error
    try:
        head = json.loads(text)
        if head.pop("format") != _FORMAT or {name: head[name] for name in _COST} != _COST:
            raise SecretFilesError(path, f"is not of the format {_FORMAT}; restore it with the walle that made it")
        salt, nonce = bytes.fromhex(head["salt"]), bytes.fromhex(head["nonce"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SecretFilesError(path, "is not a file of keys that `walle cloud backup --keys` made") from error
    try:
        plain = AESGCM(_key(passphrase, salt, _COST)).decrypt(nonce, sealed, text + newline)
    except (InvalidTag, ValueError) as error:
        raise SecretFilesError(path, "cannot be decrypted: the passphrase is wrong, or the file was changed") from error
    return {name: base64.b64decode(data) for name, data in json.loads(plain).items()}


def _key(passphrase: str, salt: bytes, cost: Mapping[str, int]) -> bytes:
    return Scrypt(salt, 32, n=cost["n"], r=cost["r"], p=cost["p"]).derive(passphrase.encode())
