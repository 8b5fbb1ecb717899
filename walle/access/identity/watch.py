"""A gateway's knowledge of identities: the public keys, and the revoked set, which it asks for each second."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from prometheus_client.core import Metric

from walle.access.identity.interface import Identities
from walle.access.identity.sessions import SessionVerifier
from walle.base.clock import Clock
from walle.base.device_identity import Revocations
from walle.metrics.table import counter, gauge_of

_LOG = logging.getLogger(__name__)

_ASK_S = 1.0
_LATE_S = 30.0  # time without an answer after which /healthz says so


class IdentityWatch:
    """The keys and the revoked set of one gateway, after `start`. A `WatchedPart` for /healthz and /metrics."""

    def __init__(self, identities: Identities, clock: Clock) -> None:
        self.revocations = Revocations()
        self.ca_pem = ""
        self.session_key = b""
        self.verifier: SessionVerifier
        self._identities = identities
        self._clock = clock
        self._asked_s = clock.monotonic()
        self._passed_on = 0  # the version of which `follow` has told

    async def start(self) -> None:
        """Get the keys and what is revoked: nobody is let in before."""
        keys = await self._identities.keys()
        self.ca_pem = keys.ca_pem
        self.session_key = keys.session_key
        self.verifier = SessionVerifier(keys.session_key, self.revocations, now=self._clock.time)
        await self._ask()
        self._passed_on = self.revocations.version

    async def follow(self, on_change: Callable[[Revocations], Awaitable[None]]) -> None:
        """Ask for changes each second, until cancelled; call `on_change` with the whole set after each."""
        while True:
            await self._clock.sleep(_ASK_S)
            try:
                await self._ask()
            except Exception as error:  # noqa: BLE001 - the identity node may be gone, with any error; it may come back
                if not getattr(error, "may_pass", False):  # else its database has logged it
                    _LOG.warning("what is revoked is not known since %.0f s: %s", self._late_s, error)
                continue
            if (version := self.revocations.version) != self._passed_on:
                await on_change(self.revocations)
                self._passed_on = version

    async def _ask(self) -> None:
        version, lowest = await self._identities.revocations(self.revocations.version)
        self._asked_s = self._clock.monotonic()
        self.revocations.update(version, lowest)

    @property
    def _late_s(self) -> float:
        return self._clock.monotonic() - self._asked_s

    def health(self) -> Mapping[str, Any]:
        """Return whether what is revoked is known, and since which change."""
        late_s = self._late_s
        return {"ok": late_s < _LATE_S, "revocations": self.revocations.version, "asked_s": round(late_s, 1)}

    def metrics(self) -> list[Metric]:
        sessions = counter("walle_device_sessions_total")
        sessions.add_metric(["verified"], self.verifier.verified)
        sessions.add_metric(["refused"], self.verifier.refused)
        return [sessions, gauge_of("walle_devices_revoked", len(self.revocations))]
