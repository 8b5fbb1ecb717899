"""Callers of a gateway: devices by their sessions, people and programs by their tokens or the dashboard's sessions."""

from collections.abc import Mapping

from walle.access.access import Identity
from walle.access.access_file import AccessFile
from walle.access.identity.watch import IdentityWatch
from walle.base.clock import Clock
from walle.cloud.api.interfaces import IdentityPeer, WatchedParts
from walle.cloud.dashboard import Sessions, cookie_of
from walle.cloud.folder.folder import CloudHome
from walle.deploy.push.middleware import IdentifyDevice
from walle.protocol import DEVICE_HEADER
from walle.store.background import Works

_DEVICE = DEVICE_HEADER.lower().encode()


class GatewayCallers:
    """Those that may call, from `start` on."""

    access: AccessFile
    identity: IdentityWatch
    sessions: Sessions
    device_id: IdentifyDevice

    def __init__(self, home: CloudHome, clock: Clock) -> None:
        self._home = home
        self._clock = clock

    async def start(self, identities: IdentityPeer) -> None:
        """Read the keys of device sessions, and what is revoked. Raises WalleError where the peer does not answer."""
        self.identity = IdentityWatch(identities, self._clock)
        await self.identity.start()
        self.device_id = self.identity.verifier.device_id
        self.access = self._home.access
        ended = self._home.ended_sessions(self._clock)
        self.sessions = Sessions(self._home.dashboard_key(), self.access, self._clock, ended)

    def knows(self, headers: Mapping[bytes, bytes]) -> bool:
        """Say whether a request's headers have a valid token of a person, or a session of a device.

        Raises:
            SessionRefusedError: the session is not valid; the device is told why.
        """
        session = headers.get(_DEVICE)
        if session is None:
            authorization = headers.get(b"authorization", b"").decode("latin-1")
            if self.access.identify_header(authorization) is not None:
                return True
            return self.sessions.find(cookie_of(headers)) is not None
        self.device_id(session)
        return True

    def session_owner(self, cookie_header: str) -> Identity | None:
        """Return the person of a dashboard's session, None without one."""
        session = self.sessions.find(cookie_header)
        return None if session is None else session.identity

    def works(self) -> Works:
        """Return what is done while the gateway runs, beside following what is revoked."""
        return {"use of tokens": self.access.save_uses}

    def parts(self) -> WatchedParts:
        """Return what /healthz and /metrics show."""
        return {"identity": self.identity, "tokens": self.access}
