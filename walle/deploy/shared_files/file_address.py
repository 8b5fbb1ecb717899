"""Addresses of shared files that expire: `/cdn/{permission}/{sha256}`, and the keys that sign the permissions.

A permission is `EXPIRES-KEY-MAC`: when it expires (seconds since the epoch, in hex), the id of a key, and an
HMAC-SHA256 over both, cut to 128 bits, in URL-safe base64. It is for every file of which the caller knows the sha256:
a device knows those of the manifests that were signed for it. A cache keeps a file under its sha256 alone, and asks the
gateway at `/cdn/{permission}` whether the permission is valid (docs/how-to/operate.md).
"""

import base64
import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from walle.base.asgi import ASGIApp, Receive, Scope, Send
from walle.base.clock import Clock, SystemClock
from walle.base.durable_file import write_file
from walle.errors import ConfigError

_DAY_S = 86_400
_LIFE_DAYS = 3  # days from the start of an address's first day: longer than a directive, which lives for one day
_KEY_DAYS = 30  # a key signs for so long, and is accepted for as long as what it signed
_CONTEXT = b"walle file address\0"
_PERMISSION = re.compile(r"([0-9a-f]{1,12})-([0-9a-f]{8})-([A-Za-z0-9_-]{22})", re.ASCII)
_PATH = re.compile(r"/([^/]*)(/[^/]*)?")


class _Key(NamedTuple):
    id: str
    secret: bytes
    made_s: float


class FileAddresses:
    """Signs and checks the permissions of one cloud, whose keys are in `path`; several processes may share it.

    Raises:
        ConfigError: the file is damaged.
    """

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._state: tuple[int, int] | None = None
        self._keys: dict[str, _Key] = {}
        self._read()

    def prefix(self) -> str:
        """Return the address to which a file's sha256 is added; the same all day, valid for two days or more."""
        now_s = self._clock.time()
        key = max(self._keys.values(), key=lambda one: one.made_s, default=None)
        if key is None or key.made_s + _KEY_DAYS * _DAY_S <= now_s or self._state != self._state_of_file():
            key = self._renewed(now_s)
        expires_s = (int(now_s) // _DAY_S + _LIFE_DAYS) * _DAY_S
        head = f"{expires_s:x}-{key.id}"
        return f"/cdn/{head}-{_mac(key.secret, head)}"

    def refusal(self, permission: str) -> str:
        """Return why a permission is not valid, "" if it is."""
        match = _PERMISSION.fullmatch(permission)
        if match is None:
            return "files have addresses that expire; a device gets one with its directives"
        expires, key_id, mac = match.groups()
        if key_id not in self._keys and self._state != self._state_of_file():
            self._read()  # another process made a key
        key = self._keys.get(key_id)
        if key is None or not hmac.compare_digest(mac, _mac(key.secret, f"{expires}-{key_id}")):
            return "this address was not signed by this cloud, or its key is no longer in use; check in for another"
        late_s = self._clock.time() - int(expires, 16)
        return f"this address expired {late_s:.0f} s ago; check in for another" if late_s >= 0 else ""

    def _renewed(self, now_s: float) -> _Key:
        """Return the key to sign with, after making one if none is young enough; keys of nothing valid are removed."""
        with self._locked():
            self._read()
            newest = max(self._keys.values(), key=lambda one: one.made_s, default=None)
            if newest is not None and newest.made_s + _KEY_DAYS * _DAY_S > now_s:
                return newest
            made = _Key(secrets.token_hex(4), secrets.token_bytes(32), now_s)
            kept_from_s = now_s - (_KEY_DAYS + _LIFE_DAYS) * _DAY_S
            kept = [*(one for one in self._keys.values() if one.made_s > kept_from_s), made]
            plain = [{"id": one.id, "secret": one.secret.hex(), "made_s": one.made_s} for one in kept]
            write_file(self._path, json.dumps({"keys": plain}, indent=1) + "\n", mode=0o600)
            self._read()
            return made

    def _read(self) -> None:
        self._state = self._state_of_file()
        if self._state is None:
            self._keys = {}
            return
        try:
            plain = json.loads(self._path.read_bytes())["keys"]
            keys = [_Key(one["id"], bytes.fromhex(one["secret"]), float(one["made_s"])) for one in plain]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = "is damaged; remove it, and the cloud makes another: devices get new addresses at their next answer"
            raise ConfigError(f"keys of file addresses, {self._path}: {what}") from error
        self._keys = {key.id: key for key in keys}

    def _state_of_file(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from making a key; the lock goes with the process."""
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def signed_files(app: ASGIApp, addresses: FileAddresses) -> ASGIApp:
    """Return an ASGI app that gives requests of `{permission}/{sha256}` to `app` as `/{sha256}`, if they may be made.

    A request of `{permission}` alone is answered 204 if it is valid, for caches that ask.
    """

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "")
        match = _PATH.fullmatch(scope["path"].removeprefix(root))
        refusal = addresses.refusal(match[1] if match else "")
        if refusal:
            await _answer(send, 403, {"error": refusal, "type": "FileAddressError"})
        elif match and match[2] is None:
            await _answer(send, 204, None)
        else:
            await app({**scope, "path": f"{root}{match[2] if match else ''}"}, receive, send)

    return guarded


async def _answer(send: Send, status: int, plain: dict[str, str] | None) -> None:
    body = b"" if plain is None else json.dumps(plain).encode()
    headers = [(b"cache-control", b"no-store")]
    if plain is not None:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _mac(secret: bytes, head: str) -> str:
    digest = hmac.digest(secret, _CONTEXT + head.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest[:16]).rstrip(b"=").decode()
