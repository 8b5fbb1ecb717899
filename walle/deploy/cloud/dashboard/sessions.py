"""Sessions of people at the dashboard, and read-only links to a release.

A session is a cookie that this cloud sealed: the hash of the person's token, when it ends, and a random id. Nothing of
it is stored, so that it outlives a restart and every gateway of the cloud knows it. It ends with its token, at its
time, or at this gateway when the person logs out.
"""

import collections
import dataclasses
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from walle.clock import Clock
from walle.deploy.cloud.access import Identity, Role, TokenOwners
from walle.deploy.cloud.dashboard.sealing import Sealer

COOKIE = "walle_session"
SESSION_S = 12 * 3600.0
LINK_HOURS = (1, 24, 168)  # that a read-only link may be valid
MAX_FORM_BYTES = 64 << 10
_MAX_ENDED = 10_000


@dataclasses.dataclass(frozen=True)
class Session:
    """Session of a person. `form_key` is what a form of it has to send, which no other site can know."""

    identity: Identity
    id: str
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
    """Makes and opens the sessions and the links of one cloud, whose `key` its gateways share."""

    def __init__(self, key: bytes, tokens: TokenOwners, clock: Clock) -> None:
        self._cookies = Sealer(key, "session")
        self._forms = Sealer(key, "form")
        self._links = Sealer(key, "link")
        self._tokens = tokens
        self._clock = clock
        self._ended: collections.OrderedDict[str, None] = collections.OrderedDict()

    def begin(self, token: str) -> tuple[Session, str] | None:
        """Return a session of the token's owner, and the cookie's value; None for a token that is not accepted."""
        identity = self._tokens.identify(token)
        if identity is None:
            return None
        session_id = secrets.token_urlsafe(16)
        expires_s = int(self._clock.time() + SESSION_S)
        value = self._cookies.seal({"token": identity.sha256, "expires_s": expires_s, "id": session_id})
        return self._session(identity, session_id), value

    def find(self, cookie_header: str) -> Session | None:
        """Return the session of a Cookie header, None without one that is valid now."""
        value = self._cookies.open(_cookie(cookie_header))
        identity = self._owner(value)
        if value is None or identity is None or value.get("id") in self._ended:
            return None
        return self._session(identity, str(value.get("id")))

    def end(self, session: Session) -> None:
        """End a session at this gateway: the cookie, if it was copied, opens nothing here any more."""
        self._ended[session.id] = None
        while len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)

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

    def _session(self, identity: Identity, session_id: str) -> Session:
        return Session(identity, session_id, self._forms.seal({"id": session_id}).rpartition(".")[2])

    def _owner(self, value: Mapping[str, Any] | None) -> Identity | None:
        if value is None or not value.get("expires_s", 0) > self._clock.time():
            return None
        return self._tokens.owner(str(value.get("token")))


def cookie_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the Cookie header among these headers, by their names in lower case."""
    return headers.get(b"cookie", b"").decode("latin-1")


def _cookie(header: str) -> str:
    """Return the session's cookie. Others are of other apps of this host; SimpleCookie ends at one that has JSON."""
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")
