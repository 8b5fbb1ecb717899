"""Token by which the processes of a Ray know each other (`~/.ray/auth_token`), readable to its owner alone.

Ray makes the file as the umask says, which others can read; whoever has the token runs code as its owner.
"""

import contextlib
import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import ray
from ray._private.authentication.authentication_utils import is_token_auth_enabled

from walle.errors import ConfigError

_LOG = logging.getLogger(__name__)

_MODE = "RAY_AUTH_MODE"
_GIVEN = "RAY_AUTH_TOKEN"
_GIVEN_FILE = "RAY_AUTH_TOKEN_PATH"
_OTHERS = 0o077
_TOKEN_BYTES = 32
_ASK_S = 10.0  # time for a process of the cluster, which may have to start


def prepare_token(environment: Mapping[str, str], home: Path) -> None:
    """Make the token of a Ray on this machine unless there is one, and narrow an existing file to its owner.

    Raises:
        ConfigError: tokens are turned off; the token that was given is blank; the file cannot be made, is not the
            user's, or is empty.
    """
    if environment.get(_MODE, "token").lower() != "token":
        raise ConfigError(
            f"{_MODE}={environment[_MODE]}: a Ray without a token runs the code of whoever reaches its ports, as this"
            f" user; unset {_MODE}, so that a token is made"
        )
    if token := environment.get(_GIVEN):
        if not token.strip():  # Ray would write a file of its own
            raise ConfigError(f"{_GIVEN} is blank; give a token of 32 characters or more, or unset it")
        return
    if given := environment.get(_GIVEN_FILE):
        _warn_of_readers(Path(given))
        return
    path = home / ".ray" / "auth_token"
    try:
        if not _narrow(path):
            _make(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: the token of Ray cannot be kept there ({error.strerror}); make the folder writable, or give a"
            f" token as {_GIVEN}"
        ) from error


def warn_of_open_cluster(address: str) -> None:
    """Log a warning if the cluster that was joined asks for no token, also where this process has one; blocks."""
    if not (is_token_auth_enabled() and _has_token_cluster()):
        _LOG.warning(
            "the Ray cluster at %s asks for no token: whoever reaches its ports runs code there; set %s=token and %s"
            " on all machines (docs/how-to/cluster.md)",
            address,
            _MODE,
            _GIVEN,
        )


def _has_token_cluster() -> bool:
    """Return whether processes of the cluster ask for a token; True where none answers within _ASK_S."""
    try:
        return bool(ray.get(ray.remote(num_cpus=0)(is_token_auth_enabled).remote(), timeout=_ASK_S))
    except ray.exceptions.RayError:  # a timeout too
        return True


def _warn_of_readers(path: Path) -> None:
    """Log a warning if others can read a token's file, whose permissions are its maker's to change."""
    with contextlib.suppress(OSError):  # Ray says why it cannot read it
        if path.stat().st_mode & _OTHERS:
            _LOG.warning("%s can be read by others: who has read it runs code in this Ray; chmod 600 it", path)


def _narrow(path: Path) -> bool:
    """Narrow the file's permissions to its owner; return whether there is a file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or not found.st_size:
            raise ConfigError(f"{path} holds no token of Ray; remove it, and another is made")
        if found.st_mode & _OTHERS:
            os.fchmod(file, stat.S_IMODE(found.st_mode) & ~_OTHERS)
            _LOG.warning(
                "%s could be read by others, until now: who has read it runs code in each Ray of this user;"
                " end these, remove the file, and another is made",
                path,
            )
    finally:
        os.close(file)
    return True


def _make(path: Path) -> None:
    """Write a token, whole and for its owner alone; where another process is faster, its token stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file, name = tempfile.mkstemp(dir=path.parent, prefix=".auth_token-")  # 0600
    try:
        with os.fdopen(file, "w") as whole:
            whole.write(secrets.token_hex(_TOKEN_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        Path(name).unlink()
