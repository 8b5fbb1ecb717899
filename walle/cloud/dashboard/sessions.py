"""Sessions of people at the dashboard, and read-only links to a release.

A session is a cookie that this cloud sealed: the hash of the person's token, when it ends, and a random id. Nothing of
it is stored, so that it outlives a restart and every gateway of the cloud knows it. It ends with its token, at its
time, or when the person logs out (`walle.access.ended_sessions`).

The form of the login has a separate session before that of the person: a cookie, and a key in the form, without
which no login begins. So no other site can log a browser in as somebody else.
"""

import dataclasses
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from walle.access.access import Identity, Role, TokenOwners
from walle.access.ended_sessions import SESSION_S, EndedSession, EndedSessions
from walle.base.clock import Clock
from walle.cloud.dashboard.sealing import Sealer

COOKIE = "walle_session"
LOGIN_COOKIE = "walle_login"
LOGIN_S = 3600.0  # time for which the form of the login is valid
LINK_HOURS = (1, 24, 168)  # lifetimes that a read-only link may have


@dataclasses.dataclass(frozen=True)
class Session:
    """Session of a person. `form_key` is what a form of it has to send, which no other site can know."""

    identity: Identity
    id: str
    expires_s: int
    form_key: str

    def may(self, scenario: str, role: Role) -> bool:
        return self.identity.role(scenario) >= role


@dataclasses.dataclass(frozen=True)
class SharedRelease:
    """A release that a read-only link shows until `expires_s`; `identity` is who made the link."""

    release_id: str
    identity: Identity
    expires_s: float


class Sessions:
    """Makes and opens the sessions and the links of one cloud, whose `key` and `ended` its gateways share."""

    def __init__(self, key: bytes, tokens: TokenOwners, clock: Clock, ended: EndedSessions) -> None:
        self._cookies = Sealer(key, "session")
        self._forms = Sealer(key, "form")
        self._links = Sealer(key, "link")
        self._logins = Sealer(key, "login")
        self._login_forms = Sealer(key, "login form")
        self._tokens = tokens
        self._clock = clock
        self._ended = ended

    def begin(self, token: str) -> tuple[Session, str] | None:
        """Return a session of the token's owner, and the cookie's value; None for a token that is not accepted."""
        identity = self._tokens.identify(token)
        if identity is None:
            return None
        session_id = secrets.token_urlsafe(16)
        expires_s = int(self._clock.time() + SESSION_S)
        value = self._cookies.seal({"token": identity.sha256, "expires_s": expires_s, "id": session_id})
        return self._session(identity, session_id, expires_s), value

    def find(self, cookie_header: str) -> Session | None:
        """Return the session of a Cookie header, None without one that is valid now."""
        value = self._cookies.open(_cookie(cookie_header, COOKIE))
        identity = self._owner(value)
        if value is None or identity is None:
            return None
        session = self._session(identity, str(value.get("id")), int(value["expires_s"]))
        return None if self._ended.has(identity.sha256, EndedSession(session.expires_s, session.id)) else session

    def end(self, session: Session) -> None:
        """End a session at all gateways, also after a restart: the cookie, if it was copied, opens nothing. Blocks.

        Raises:
            DiskFullError, ConfigError: it has ended in this process, and the others cannot be told.
        """
        self._ended.add(session.identity.sha256, EndedSession(session.expires_s, session.id))

    def login_form(self, cookie_header: str) -> tuple[str, str]:
        """Return the key that a form of the login has, and the cookie for it; that of the request if it has one."""
        value = self._cookie_of_login(cookie_header)
        if value is None:
            value = {"id": secrets.token_urlsafe(16), "expires_s": int(self._clock.time() + LOGIN_S)}
        return self._login_key(value), self._logins.seal(value)

    def is_own_login(self, cookie_header: str, form_key: str) -> bool:
        """Return whether a form of the login was made for the browser with these cookies."""
        value = self._cookie_of_login(cookie_header)
        if value is None:
            return False
        return hmac.compare_digest(self._login_key(value).encode(), form_key.encode("utf-8", "replace"))

    def _cookie_of_login(self, cookie_header: str) -> Mapping[str, Any] | None:
        value = self._logins.open(_cookie(cookie_header, LOGIN_COOKIE))
        return value if value is not None and value["expires_s"] > self._clock.time() else None

    def _login_key(self, value: Mapping[str, Any]) -> str:
        return self._login_forms.seal({"id": value["id"]}).rpartition(".")[2]

    def is_own_form(self, session: Session, form_key: str) -> bool:
        """Return whether a form was made for this session."""
        return hmac.compare_digest(session.form_key.encode(), form_key.encode("utf-8", "replace"))

    def share(self, release_id: str, identity: Identity, hours: int) -> tuple[str, float]:
        """Return a link to a release that anyone may read, and when it expires. It ends with its maker's token too."""
        expires_s = int(self._clock.time() + hours * 3600)
        value = {"release": release_id, "token": identity.sha256, "expires_s": expires_s}
        return self._links.seal(value), expires_s

    def shared(self, link: str) -> SharedRelease | None:
        """Return what a link shows, None where it is not valid now."""
        value = self._links.open(link)
        identity = self._owner(value)
        if value is None or identity is None:
            return None
        return SharedRelease(str(value.get("release")), identity, float(value["expires_s"]))

    def _session(self, identity: Identity, session_id: str, expires_s: int) -> Session:
        return Session(identity, session_id, expires_s, self._forms.seal({"id": session_id}).rpartition(".")[2])

    def _owner(self, value: Mapping[str, Any] | None) -> Identity | None:
        if value is None or not value.get("expires_s", 0) > self._clock.time():
            return None
        return self._tokens.owner(str(value.get("token")))


def cookie_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the Cookie header among these headers, by their names in lower case."""
    return headers.get(b"cookie", b"").decode("latin-1")


def _cookie(header: str, wanted: str) -> str:
    """Return a cookie. Others are of other apps of this host; SimpleCookie ends at one that has JSON."""
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return next((value for name, _, value in pairs if name == wanted), "")
