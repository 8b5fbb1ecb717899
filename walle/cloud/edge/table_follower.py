"""Follower of another gateway's release table, with which a gateway answers profiles beside it."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from walle.access.identity.sessions import SessionRefusedError, SessionVerifier
from walle.base.clock import Clock
from walle.base.device_identity import Revocations
from walle.client.cloud_client import CloudClient, CloudClientError, CloudRefusedError, CloudUnreachableError
from walle.deploy.push.answerer import Answerer
from walle.deploy.push.table_feed import WAIT_S
from walle.deploy.releases.table import ReleaseTable
from walle.errors import WalleError
from walle.protocol import Directive
from walle.trust.ed25519_keys import KeyRefusedError

_LOG = logging.getLogger(__name__)

LATE_S = 30.0  # time without an answer of the other gateway after which /healthz says so
_MARGIN_S = 5.0  # time for an answer, beyond the time that it may wait
_RETRY_S = 0.2
_MAX_RETRY_S = 2.0


class TableFeedError(WalleError):
    """The other gateway cannot be followed. The message says why."""


class TableFollower:
    """Gives an answerer each table of another gateway, from its first one on.

    Tasks with a release by uploaded attributes, which are only in the other gateway's folder, are left out, unless this
    one `has_uploaded`: that one alone answers about them. `on_lost` is awaited after each question without an answer.

    While the other one does not answer, the last table is still served. Devices stop installing from it by
    themselves when its timestamp is over (`CloudConfig.timestamp_life_s`, an hour).
    """

    def __init__(
        self,
        cloud: CloudClient,
        answerer: Answerer,
        clock: Clock,
        *,
        has_uploaded: bool = False,
        on_lost: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._has_uploaded = has_uploaded
        self._on_lost = on_lost
        self.revocations = Revocations()
        self._cloud = cloud
        self._answerer = answerer
        self._clock = clock
        self._verifier: SessionVerifier | None = None
        self._session_key = ""
        self._number = ""
        self._left_out = 0  # tasks
        self._sizes: dict[str, int] = {}
        self._answered_s = clock.monotonic()
        self._error = "it has not answered yet"

    def device_id(self, session: bytes | None) -> str:
        """Return the device whose valid session this is; raises as `SessionVerifier.identity`."""
        if self._verifier is None:
            raise SessionRefusedError("this gateway has no table yet; try again")
        return self._verifier.device_id(session)

    def size_of(self, directive: Directive) -> int:
        """Return the bytes of a directive's version, those of its manifest if the cloud did not state them."""
        return self._sizes.get(directive.manifest, directive.size_bytes)

    async def follow(self) -> None:
        """Ask for the next table again and again, until cancelled."""
        retry_s = _RETRY_S
        while True:
            try:
                await self.ask(WAIT_S if self._number else 0.0)
                retry_s = _RETRY_S
            except TableFeedError as error:
                if str(error) != self._error:
                    _LOG.warning("%s; answers continue from the last table", error)
                self._error = str(error)
                if self._on_lost is not None:
                    await self._on_lost()
                await self._clock.sleep(retry_s)
                retry_s = min(2 * retry_s, _MAX_RETRY_S)

    async def ask(self, wait_s: float) -> None:
        """Ask for a table that is newer than the present one, for up to `wait_s`. Raises TableFeedError."""
        asked_s = self._clock.monotonic()
        try:
            answer = await self._cloud.send(
                "GET",
                "/v1/push-table",
                parameters={"number": self._number, "wait_s": wait_s},
                timeout_s=wait_s + _MARGIN_S,
            )
        except CloudUnreachableError as error:
            raise TableFeedError(f"the other gateway does not answer: {error.why}") from error
        except CloudRefusedError as error:
            raise TableFeedError(f"the other gateway refuses its table: {error.status} {error}"[:300]) from error
        except CloudClientError as error:
            raise TableFeedError(f"the other gateway's table cannot be read: {error}") from error
        if answer.status == HTTPStatus.NO_CONTENT:
            self._answered_s = self._clock.monotonic()
            self._error = ""
            return
        try:
            self._take(json.loads(answer.body))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, KeyRefusedError) as error:
            raise TableFeedError(f"the table of the other gateway cannot be read: {error!r}") from error
        self._answered_s = self._clock.monotonic()
        self._error = ""
        _LOG.info("generation %d after %.3f s", self._answerer.table.generation, self._answered_s - asked_s)

    def _take(self, plain: Mapping[str, Any]) -> None:
        table = ReleaseTable.from_plain(plain["table"])
        if plain["session_key"] != self._session_key:
            self._session_key = str(plain["session_key"])
            key = bytes.fromhex(self._session_key)
            self._verifier = SessionVerifier(key, self.revocations, now=self._clock.time)
        sizes = plain.get("sizes", {})  # an older cloud sends none
        self._sizes = {str(manifest): int(size) for manifest, size in sizes.items()}
        revoked = plain["revoked"]
        self.revocations.update(int(revoked["version"]), {str(one): int(at) for one, at in revoked["lowest"].items()})
        decided = table if self._has_uploaded else table.without_uploaded()
        self._left_out = len(table.rows) - len(decided.rows)
        number = str(plain["number"])
        if number.partition(".")[0] != self._number.partition(".")[0]:
            self._answerer.forget()  # another process, such as a restored cloud, may count generations again
        self._answerer.swap(decided)
        self._number = number

    @property
    def late_s(self) -> float:
        """Return the time since the other gateway has answered."""
        return self._clock.monotonic() - self._answered_s

    def health(self) -> Mapping[str, Any]:
        """Return whether the other gateway has answered lately, and the generation that is served."""
        late_s = self.late_s
        ok = self._verifier is not None and late_s < LATE_S
        late = {"why": self._error} if self._error else {}
        left_out = {"tasks_left_out": self._left_out} if self._left_out else {}
        generation = self._answerer.table.generation
        return {"ok": ok, "generation": generation, "answered_s": round(late_s, 1), **left_out, **late}
