"""Signatures of commands: by a key file, or by a program that has the key, such as that of a hardware token."""

import base64
import binascii
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from walle.errors import WalleError

_SIGNER_TIMEOUT_S = 300.0  # a hardware key may wait for a touch

SignerOption = Annotated[
    str,
    typer.Option(
        help="Command instead of --key: it gets the bytes on standard input and prints their Ed25519 signature,"
        " raw or in base64. For a hardware key.",
    ),
]


class SignError(WalleError):
    """A signature that is not made. The message says why, and what to do."""


def signing(key: Path | None, command: str) -> Callable[[bytes], bytes]:
    """Return what makes the signature of some bytes. Raises typer.BadParameter unless one of both is given."""
    if (key is None) == (not command):
        raise typer.BadParameter("give either --key FILE or --signer COMMAND", param_hint="--key, --signer")
    if key is not None:
        from walle.trust.signing import Signer

        return Signer.load(key).sign

    def run(data: bytes) -> bytes:
        try:
            done = subprocess.run(
                shlex.split(command), input=data, capture_output=True, timeout=_SIGNER_TIMEOUT_S, check=False
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise SignError(f"--signer {command!r} cannot be run: {error}") from error
        if done.returncode:
            why = done.stderr.decode("utf-8", "replace").strip()[-500:]
            raise SignError(f"--signer {command!r} ended with {done.returncode}: {why}")
        if len(done.stdout) == 64:
            return done.stdout
        try:
            return base64.b64decode(done.stdout.strip(), validate=True)
        except (ValueError, binascii.Error) as error:
            raise SignError(f"--signer {command!r} printed neither 64 bytes nor base64") from error

    return run


def public_key(text: str) -> bytes:
    """Return the raw Ed25519 public key that an option names: 64 hex digits, or the path of a PEM public key.

    Raises:
        typer.BadParameter: it names none, or one that no role takes.
    """
    from walle.trust.ed25519_keys import KeyRefusedError, checked_key

    raw = _raw_key(text)
    try:
        checked_key(raw)
    except KeyRefusedError as error:
        raise typer.BadParameter(str(error), param_hint="--public-key") from error
    return raw


def _raw_key(text: str) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) == 32:
        return raw
    try:
        key = load_pem_public_key(Path(text).read_bytes())
    except (OSError, ValueError) as error:
        what = f"{text[:80]!r} is not a public key: 64 hex digits, or a PEM file that begins with BEGIN PUBLIC KEY"
        raise typer.BadParameter(what, param_hint="--public-key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise typer.BadParameter(f"{text[:80]!r} is not an Ed25519 key", param_hint="--public-key")
    return key.public_bytes_raw()
