"""HTTP requests of a device to its cloud (§6): profile, check-in, and reports of outcomes."""

import email.utils
import logging
import random
from collections.abc import Mapping
from typing import Any

import httpx

from walle.backoff import Pace
from walle.clock import Clock
from walle.deploy.device.agent import Agent
from walle.deploy.device.trust import CLOCK_TOLERANCE_S
from walle.device.config import DeviceConfig
from walle.device.credentials import DeviceCredentials, asked_pause_s
from walle.protocol import (
    DEVICE_HEADER,
    PROFILE_HEADER,
    TASKS_HEADER,
    TRUST_HEADER,
    Directive,
    Profile,
    ProtocolError,
)
from walle.protocol import directives_from_header as parse_directives

_LOG = logging.getLogger(__name__)

_RETRY_STATUSES = (401, 403, 408, 425, 429)  # from a proxy, or from a cloud during its set-up


class CloudRequests:
    """A device's requests to the gateway, and its part of an app's own requests."""

    def __init__(
        self,
        config: DeviceConfig,
        http: httpx.AsyncClient,
        agent: Agent,
        credentials: DeviceCredentials,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._config = config
        self._http = http
        self._agent = agent
        self._credentials = credentials
        self._clock = clock
        self._rng = rng
        self._profile: tuple[dict[str, str], str] | None = None  # the tasks, and the header that names them

    def headers(self) -> dict[str, str]:
        """Return the headers for the app's next request: profile and session; none before there is a session."""
        session = self._credentials.session_header
        return {PROFILE_HEADER: self._profile_header(), DEVICE_HEADER: session} if session else {}

    def _profile_header(self) -> str:
        tasks = self._agent.tasks
        if self._profile is None or self._profile[0] != tasks:
            config = self._config
            profile = Profile(config.device_id, config.app_version, config.attributes, tasks)
            self._profile = tasks, profile.to_header()
        return self._profile[1]

    def directives(self, header: str | None) -> list[Directive]:
        """Return the directives of `X-Walle-Tasks`; none if the header is missing or wrong, which is logged."""
        if not header:
            return []
        try:
            return list(parse_directives(header))
        except ProtocolError as error:
            _LOG.warning("%s: an answer that is not a list of directives: %s", self._config.device_id, error)
            return []

    async def checkin(self) -> tuple[str | None, str | None]:
        """Send a heartbeat and return `X-Walle-Tasks` and `X-Walle-Trust` of its answer, None for one that is missing.

        Raises:
            httpx.HTTPError: the cloud does not answer.
        """
        response = await self._post("/v1/checkin", headers={PROFILE_HEADER: self._profile_header()})
        response.raise_for_status()
        return response.headers.get(TASKS_HEADER), response.headers.get(TRUST_HEADER)

    async def report(self) -> None:
        """Send all outcomes.

        A batch that the cloud refuses permanently (a 4xx outside _RETRY_STATUSES) is dropped, so that it does not block
        the next.

        Raises:
            httpx.HTTPError: the cloud does not accept them now; the next report sends them again.
        """
        outcomes = self._agent.outcomes
        while (batch := outcomes.take_batch()) is not None:
            response = await self._post("/v1/outcomes", json=batch.to_json())
            if response.is_client_error and response.status_code not in _RETRY_STATUSES:
                _LOG.error("%s: outcomes were refused and are dropped: %s", self._config.device_id, response.text[:500])
            else:
                response.raise_for_status()
                if batch.alarms:
                    self._tell_time(response.headers.get("Date", ""))
            outcomes.confirm(batch.batch_id)

    def _tell_time(self, date: str) -> None:
        """Log how far this device's clock is from the cloud's, by the answer to a report with alarms."""
        try:
            ahead_s = self._clock.time() - email.utils.parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        if abs(ahead_s) > CLOCK_TOLERANCE_S:
            where = "ahead of" if ahead_s > 0 else "behind"
            _LOG.error("%s: the clock is %.0f s %s the cloud's: set it", self._config.device_id, abs(ahead_s), where)

    async def _post(self, path: str, *, headers: Mapping[str, str] | None = None, json: Any = None) -> httpx.Response:
        """Send a request with a session of the device; where the cloud does not know it any more, with another one."""
        for tries_left in (1, 0):
            session = await self._credentials.session()
            headed = {**(headers or {}), DEVICE_HEADER: session}
            response = await self._http.post(path, headers=headed, json=json)
            if response.status_code != httpx.codes.UNAUTHORIZED or not tries_left:
                return response
            self._credentials.drop_session(session)
        raise AssertionError

    async def report_periodically(self) -> None:
        """Report until this is cancelled; after failures with pauses that grow."""
        pace = Pace(self._rng, self._config.report_interval_s)
        pause_s = pace.worked()
        while True:
            await self._clock.sleep(pause_s)
            try:
                await self.report()
            except httpx.HTTPError as error:
                _LOG.info("%s: outcomes were not sent: %s", self._config.device_id, error)
                pause_s = pace.failed(asked_pause_s(error, self._clock.time()))
            else:
                pause_s = pace.worked()
