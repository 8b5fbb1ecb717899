"""The access file of a cloud, which every gateway reads again when it changes, and the times when tokens were used."""

import asyncio
import dataclasses
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from walle.access.access import ANY_SCENARIO, Access, Identity, Role, hash_of, token_of
from walle.access.scenario_groups import GroupFile
from walle.base.clock import Clock, SystemClock
from walle.base.durable_file import write_file
from walle.errors import ConfigError, DeployError
from walle.metrics.table import gauge_of
from walle.store.disk_space import DiskFullError, is_full
from walle.store.toml_file import file_lock, file_state

_LOG = logging.getLogger(__name__)
_LOOK_S = 0.5  # interval between two looks at the file: a revocation acts within this time
_USE_S = 60.0  # how exact the time of the last use is
_HASH_CHARS = 16  # characters of a token's hash under which its use is kept
_SPARE_BYTES = 64 << 10  # beyond the size of the file, for a revocation on a full disk


class TokenExistsError(DeployError):
    """A name that a token has already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is a token {name[:80]!r} already; revoke it first, or choose another name")


class UnknownTokenError(DeployError):
    """A name that no token has."""

    def __init__(self, name: str) -> None:
        super().__init__(f"token {name[:80]!r} does not exist; list them with: walle token list")


class LastAdminError(DeployError):
    """A revocation after which nobody could make tokens."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name[:80]!r} is the only lasting token with the role admin; make another first")


class AccessFile:
    """The tokens in `path`, for one process of several that read and change them.

    A file that cannot be read leaves the tokens that were read before, and `health` says so. Changes may be made
    on other threads. `groups` are the groups of scenarios for which tokens may have roles, in groups.toml beside it.

    Raises:
        ConfigError: the file cannot be read.

    A change raises ConfigError where the file cannot be written, DiskFullError where the disk has no room.
    """

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self._path = path
        self._use_path = path.with_name("token-use.json")
        self._lock_path = path.with_name("access.lock")
        self._spare_path = path.with_name("access.spare")
        self._clock = clock or SystemClock()
        self.groups = GroupFile(path.with_name("groups.toml"), clock=self._clock)
        self._state = file_state(self._path)
        self._access = Access.load(path, clock=self._clock)
        self._looked_s = self._clock.monotonic()
        self._error = ""
        self._used_s: dict[str, float] = {}  # by the start of the hash; since the last `save_use`

    # --- who is asking ------------------------------------------------------------------------------------------------

    def identify(self, token: str) -> Identity | None:
        """Return the owner of `token`, None if it is unknown, revoked or expired."""
        return self.owner(hash_of(token))

    def owner(self, sha256: str) -> Identity | None:
        """Return the owner of the token with this hash, None if it is unknown, revoked or expired."""
        self._refresh()
        identity = self._access.owner(sha256)
        if identity is None:
            return None
        self._used_s[identity.sha256[:_HASH_CHARS]] = self._clock.time()
        groups = self.groups.current()
        return identity if identity.groups is groups else dataclasses.replace(identity, groups=groups)

    def identify_header(self, authorization: str) -> Identity | None:
        """Return the owner of the token in an Authorization header: Basic with the token as password, or Bearer."""
        token = token_of(authorization)
        return None if token is None else self.identify(token)

    # --- changes ------------------------------------------------------------------------------------------------------

    def identities(self) -> tuple[Identity, ...]:
        """Return all tokens as the file has them now."""
        return Access.load(self._path, clock=self._clock).identities

    def add(
        self,
        name: str,
        roles: Mapping[str, Role],
        *,
        branches: Mapping[str, tuple[str, ...]] | None = None,
        expires_s: float | None = None,
        made_by: str = "",
    ) -> str:
        """Return a new token; only its hash is stored.

        Raises:
            TokenExistsError: a token has this name.
            ConfigError: the name, a role or a pattern is invalid, or there are too many tokens.
        """

        def change(access: Access) -> str:
            if any(one.name == name for one in access.identities):
                raise TokenExistsError(name)
            return access.issue(name, roles, branches=branches, expires_s=expires_s, made_by=made_by)

        return self._change(change)

    def revoke(self, name: str) -> None:
        """Remove a token.

        Raises:
            UnknownTokenError: no token has this name.
            LastAdminError: nobody could make tokens any more.
        """

        def change(access: Access) -> None:
            _check_revocable(access, name)
            access.remove(name)

        self._change(change, may_use_spare=True)

    def check_revocable(self, name: str) -> None:
        """Return where `revoke` would remove a token; raises as it does."""
        _check_revocable(Access.load(self._path, clock=self._clock), name)

    def rename_roles(self) -> bool:
        """Write the file with the names that roles have now, if it has earlier ones; return whether it had."""
        with file_lock(self._lock_path):
            access = Access.load(self._path, clock=self._clock)
            if access.has_earlier_roles:
                access.save(self._path)
            return access.has_earlier_roles

    # --- last use -----------------------------------------------------------------------------------------------------

    def last_uses_s(self) -> dict[str, float]:
        """Return when the token of each name was last used, exact to a minute."""
        kept = _read_uses(self._use_path) | self._used_s
        by_name = {one.name: kept.get(one.sha256[:_HASH_CHARS]) for one in self._access.identities}
        return {name: at_s for name, at_s in by_name.items() if at_s is not None}

    async def save_uses(self) -> None:
        """Store the times of use every minute, until cancelled."""
        while True:
            await self._clock.sleep(_USE_S)
            await asyncio.to_thread(self._save_uses)  # a machine that was cut off may have the lock for a while

    def _save_uses(self) -> None:
        used = dict(self._used_s)
        if not used:
            return
        with file_lock(self._lock_path):
            known = {one.sha256[:_HASH_CHARS] for one in self._access.identities}
            kept = _read_uses(self._use_path)
            for key, at_s in used.items():
                kept[key] = max(at_s, kept.get(key, 0.0))
            text = json.dumps({key: at_s for key, at_s in kept.items() if key in known})
            write_file(self._use_path, text, mode=0o600)
        for key, at_s in used.items():
            if self._used_s.get(key) == at_s:  # the token was not used meanwhile
                del self._used_s[key]

    # --- state --------------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        self._refresh()
        self.groups.current()
        error = "; ".join(filter(None, (self._error, self.groups.error)))
        return {"ok": not error, "tokens": len(self._access.identities), "error": error}

    def metrics(self) -> list[Metric]:
        return [gauge_of("walle_tokens", len(self._access.identities))]

    def _refresh(self) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        state = file_state(self._path)
        if state == self._state:
            return
        try:
            # Together, and after the read: where a change on another thread came between, the next look finds it.
            self._access, self._state, self._error = Access.load(self._path, clock=self._clock), state, ""
        except ConfigError as error:
            self._state = state
            self._error = f"the previous tokens stay in force: {error}"
            _LOG.error("%s", self._error)

    def keep_spare(self) -> None:
        """Take room on the disk in which a token can be revoked when nothing else is free; none where none is left."""
        size_bytes = self._path.stat().st_size + _SPARE_BYTES
        try:
            with self._spare_path.open("ab") as spare:
                self._spare_path.chmod(0o600)
                if spare.tell() < size_bytes:
                    os.posix_fallocate(spare.fileno(), 0, size_bytes)
        except OSError as error:
            _LOG.warning("no room is kept in %s to revoke tokens on a full disk: %s", self._spare_path, error)

    def _save(self, access: Access, *, may_use_spare: bool) -> None:
        try:
            access.save(self._path)
        except OSError as error:
            if not (may_use_spare and is_full(error) and self._spare_path.exists()):
                raise
            self._spare_path.unlink(missing_ok=True)
            access.save(self._path)
        self.keep_spare()  # again, or larger: of what the old file took

    def _change[T](self, change: Callable[[Access], T], *, may_use_spare: bool = False) -> T:
        with file_lock(self._lock_path):
            access = Access.load(self._path, clock=self._clock)
            result = change(access)
            try:
                self._save(access, may_use_spare=may_use_spare)
            except OSError as error:
                if is_full(error):
                    raise DiskFullError.of(error, self._path.parent) from error
                raise ConfigError(f"access file {self._path} cannot be written: {error.strerror}") from error
            self._access, self._state, self._error = access, file_state(self._path), ""
        return result


def _check_revocable(access: Access, name: str) -> None:
    names = [one.name for one in access.identities]
    if name not in names:
        raise UnknownTokenError(name)
    if [one.name for one in access.identities if _is_lasting_admin(one)] == [name]:
        raise LastAdminError(name)


def _is_lasting_admin(identity: Identity) -> bool:
    return identity.role(ANY_SCENARIO) == Role.ADMIN and identity.expires_s is None


def _read_uses(path: Path) -> dict[str, float]:
    """Return the times of use by the start of a hash; none from a file that is missing or damaged: they are a help."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _LOG.warning("when tokens were used last is not known: %s cannot be read: %s", path, error)
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: float(at_s) for key, at_s in found.items() if isinstance(at_s, int | float)}
