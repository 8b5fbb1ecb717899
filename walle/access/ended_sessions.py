"""Sessions that people ended by logging out, in a file that every gateway of a cloud reads, until they would expire.

A session is a sealed cookie that nothing stores, so that what has ended has to be stored. Each token has room for
MAX_EACH ended sessions; the one after takes the place of the one that expires first, and all sessions of that token
that expire no later are ended with it.
"""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any, Self

from walle.base.clock import Clock
from walle.base.durable_file import write_file
from walle.errors import ConfigError
from walle.store.disk_space import DiskFullError, is_full
from walle.store.toml_file import FileState, file_lock, file_state

SESSION_S = 12 * 3600.0  # time from the login of a person
MAX_EACH = 100  # ended sessions that a token has by name
_LOOK_S = 0.5  # interval between two looks at the file: a logout at another gateway acts within this time
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, order=True)
class EndedSession:
    """An ended session: when it would expire, in seconds since the Unix epoch, and its id."""

    expires_s: int
    id: str


@dataclasses.dataclass(frozen=True)
class _Ended:
    """Ended sessions: all that expire before `before_s`; by token, those up to a time, and others by id."""

    before_s: int = 0
    upto_s: dict[str, int] = dataclasses.field(default_factory=dict)
    sessions: dict[str, frozenset[EndedSession]] = dataclasses.field(default_factory=dict)

    def has(self, token: str, session: EndedSession) -> bool:
        if session.expires_s < self.before_s or session.expires_s <= self.upto_s.get(token, 0):
            return True
        return session in self.sessions.get(token, frozenset())

    def plus(self, token: str, session: EndedSession, now_s: float) -> "_Ended":
        """Return this with one more session, without those that have expired."""
        sessions = {**self.sessions, token: self.sessions.get(token, frozenset()) | {session}}
        kept = {name: {one for one in of if one.expires_s > now_s} for name, of in sessions.items()}
        upto_s = {name: at_s for name, at_s in self.upto_s.items() if at_s > now_s}
        if len(kept[token]) > MAX_EACH:
            first = min(kept[token])
            kept[token].remove(first)
            upto_s[token] = max(first.expires_s, upto_s.get(token, 0))
        return _Ended(self.before_s, upto_s, {name: frozenset(of) for name, of in kept.items() if of})

    def to_json(self) -> str:
        sessions = {name: {one.id: one.expires_s for one in sorted(of)} for name, of in self.sessions.items()}
        return json.dumps({"before_s": self.before_s, "upto_s": self.upto_s, "sessions": sessions}) + "\n"

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Return what `to_json` gave. Raises ValueError, TypeError, KeyError, AttributeError."""
        plain: dict[str, Any] = json.loads(data)
        sessions = {
            str(name): frozenset(EndedSession(int(expires_s), str(one)) for one, expires_s in of.items())
            for name, of in plain["sessions"].items()
        }
        return cls(int(plain["before_s"]), {str(name): int(at_s) for name, at_s in plain["upto_s"].items()}, sessions)


class EndedSessions:
    """The ended sessions in `path`, for one process of several. A session lasts `session_s` at most.

    A file that cannot be read ends all sessions that have begun: one of them may have ended.
    """

    def __init__(self, path: Path, clock: Clock, *, session_s: float) -> None:
        self._path = path
        self._lock_path = path.with_suffix(".lock")
        self._clock = clock
        self._session_s = session_s
        self._ended = _Ended()
        self._state: FileState | None = None
        self._looked_s = clock.monotonic() - _LOOK_S

    def has(self, token: str, session: EndedSession) -> bool:
        """Return whether the session of the token with this hash has ended."""
        now_s = self._clock.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            state = file_state(self._path)
            if state != self._state:
                # Together, and after the read: where a change came between, the next look finds it.
                self._ended, self._state = self._read(), state
        return self._ended.has(token, session)

    def add(self, token: str, session: EndedSession) -> None:
        """End a session of the token with this hash, and return once that is durable; blocks.

        Raises:
            DiskFullError, ConfigError: the file cannot be written; the session has ended in this process alone.
        """
        self._ended = self._ended.plus(token, session, self._clock.time())
        with file_lock(self._lock_path):
            self._write(self._read().plus(token, session, self._clock.time()))

    def end_all(self) -> None:
        """End all sessions that have begun, and return once that is durable; blocks. Raises as `add`."""
        with file_lock(self._lock_path):
            self._write(_Ended(before_s=self._none_begun()))

    def _none_begun(self) -> int:
        return int(self._clock.time() + self._session_s)

    def _read(self) -> _Ended:
        try:
            return _Ended.from_json(self._path.read_bytes())
        except FileNotFoundError:
            return _Ended()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            _LOG.error("%s cannot be read (%s): everyone logs in again", self._path, error)
            return _Ended(before_s=self._none_begun())

    def _write(self, ended: _Ended) -> None:
        try:
            write_file(self._path, ended.to_json(), mode=0o600)
        except OSError as error:
            if is_full(error):
                raise DiskFullError.of(error, self._path.parent) from error
            raise ConfigError(f"{self._path} cannot be written: {error.strerror}") from error
        self._ended, self._state = ended, file_state(self._path)
