"""HTTP requests of a device to its cloud (§6): profile, check-in, and reports of outcomes."""

import asyncio
import email.utils
import json
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from walle.base.backoff import Pace
from walle.base.clock import Clock
from walle.base.durable_file import write_file
from walle.base.http_roots import http_tls
from walle.base.waiting import first_of
from walle.deploy.agent.agent import Agent
from walle.deploy.agent.trust import CLOCK_TOLERANCE_S
from walle.device.config import DeviceConfig
from walle.device.credentials import DeviceCredentials, asked_pause_s
from walle.protocol import (
    DEVICE_HEADER,
    HAVE_HEADER,
    LONGEST_REPORT_INTERVAL_S,
    PROFILE_HEADER,
    REPORT_INTERVAL_HEADER,
    TASKS_HEADER,
    TRUST_HEADER,
    Attribute,
    Directive,
    ProtocolError,
    PushAnswer,
    ShortProfile,
    canonical_json,
    part_digest,
    parts_of,
    parts_to_header,
    printable,
)
from walle.protocol.traces import TRACE_HEADER
from walle.trust.audience import is_named

_LOG = logging.getLogger(__name__)

_ASKED = "asked.json"  # file of the attributes that a device sends besides its own
_ERROR_HEADER = "X-Walle-Error"
_RETRY_STATUSES = (401, 403, 408, 425, 429)  # a proxy may answer so, or a cloud during its set-up

_TIMEOUT_S = 10.0
# Idle connections end before the gateway ends them (5 s): else a request may meet the end of one.
_LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=3.0)


def _read_asked(path: Path) -> dict[str, Attribute]:
    """Return the attributes that were asked for; none where the file is not what `ask` wrote: the app asks again."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _LOG.warning("%s is ignored: %s", path, error)
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def device_http(cloud_url: str, ca_pem: str, *, timeout_s: float = _TIMEOUT_S) -> httpx.AsyncClient:
    """Return the HTTP client of a device. It trusts the authority of the join file where the cloud's URL is HTTPS."""
    tls = http_tls(ca_pem if cloud_url.startswith("https://") else "")
    return httpx.AsyncClient(base_url=cloud_url, timeout=timeout_s, verify=tls, limits=_LIMITS)


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
        self._asked: dict[str, Attribute] = _read_asked(config.folder / _ASKED)
        self._tasks: tuple[dict[str, str], dict[str, str]] | None = None  # active and refused, of which the parts are
        self._parts: list[bytes] = []
        self._profile: tuple[str, str] = "", ""  # the place, and the header that has it
        self._answer = PushAnswer()  # the latest one
        self._error = ""  # latest error of the profile that was logged
        self._asked_s = 0.0  # interval between reports that the cloud asks for, 0 for none
        self._is_awaited = asyncio.Event()  # set when reports are to come soon

    @property
    def is_asked(self) -> bool:
        """Return whether the cloud asked for parts of the profile, which the next request has."""
        return bool(self._answer.unknown)

    @property
    def wait_s(self) -> int:
        """Return after how many seconds the cloud may have more than in its latest answer, 0 if it has not."""
        return self._answer.wait_s

    def ask(self, attribute: str, value: str | None) -> None:
        """Send an attribute besides the device's own, from the next profile on and after restarts; None ends that."""
        asked = {**self._asked, attribute: value}
        self._asked = {name: text for name, text in asked.items() if text is not None}
        write_file(self._config.folder / _ASKED, canonical_json(self._asked), mode=0o600)
        self._tasks = None

    def headers(self) -> dict[str, str]:
        """Return the headers for the app's next request: profile and session; none before there is a session."""
        session = self._credentials.session_header
        return {**self._profile_headers(), DEVICE_HEADER: session} if session else {}

    def _profile_headers(self) -> dict[str, str]:
        now = self._agent.tasks, self._agent.refused
        place = self._answer.place
        if self._tasks != now or self._profile[0] != place:
            self._tasks = now
            self._parts = parts_of(*now)
            digests = [part_digest(part) if part else "" for part in self._parts]
            profile = ShortProfile(self._config.app_version, {**self._asked, **self._config.attributes}, digests, place)
            self._profile = place, profile.to_header()
        headers = {PROFILE_HEADER: self._profile[1]}
        asked = [self._parts[number] for number in self._answer.unknown if 0 <= number < len(self._parts)]
        if have := parts_to_header([part for part in asked if part]):
            headers[HAVE_HEADER] = have
        return headers

    def directives(self, header: str | None) -> list[Directive]:
        """Return the directives of `X-Walle-Tasks`; none if the header is missing or wrong, which is logged."""
        try:
            self._answer = PushAnswer.from_header(header) if header else PushAnswer()
        except ProtocolError as error:
            _LOG.warning("%s: an answer that is not a list of directives: %s", self._config.device_id, error)
            self._answer = PushAnswer()
        directives = list(self._answer.directives)
        if self._asked_s and any(is_named(one, self._config.device_id) for one in directives):
            self._asked_s = 0.0  # a release waits for this device
            self._is_awaited.set()
        return directives

    async def checkin(self) -> tuple[str | None, str | None, str]:
        """Send a heartbeat and return `X-Walle-Tasks`, `X-Walle-Trust` and `X-Walle-Trace` of its answer.

        None stands for one of the first two that is missing, an empty text for the third.

        Raises:
            httpx.HTTPError: the cloud does not answer.
        """
        response = await self._post("/v1/checkin", headers=self._profile_headers())
        response.raise_for_status()
        error = response.headers.get(_ERROR_HEADER, "")
        if error and error != self._error:
            _LOG.warning("%s: the profile was not answered: %s", self._config.device_id, printable(error[:300]))
        self._error = error
        headers = response.headers
        return headers.get(TASKS_HEADER), headers.get(TRUST_HEADER), headers.get(TRACE_HEADER, "")

    async def report(self) -> None:
        """Send all outcomes.

        A batch that the cloud refuses permanently (a 4xx outside _RETRY_STATUSES) is dropped, so that it does not block
        the next.

        Raises:
            httpx.HTTPError: the cloud does not accept them now; the next report sends them again.
        """
        outcomes = self._agent.outcomes
        response: httpx.Response | None = None
        while (batch := outcomes.take_batch()) is not None:
            response = await self._post("/v1/outcomes", json=batch.to_json())
            if response.is_client_error and response.status_code not in _RETRY_STATUSES:
                _LOG.error("%s: outcomes were refused and are dropped: %s", self._config.device_id, response.text[:500])
                outcomes.refused(batch)
            else:
                response.raise_for_status()
                if batch.alarms:
                    self._tell_time(response.headers.get("Date", ""))
                outcomes.confirm(batch.batch_id)
        if response is not None:
            self._take_interval(response.headers.get(REPORT_INTERVAL_HEADER, ""))

    def _take_interval(self, header: str) -> None:
        """Take the interval that the cloud asks for. It falls by half at most in one answer.

        A monitor that was started again has not heard of many devices yet, and would have all of them report at once.
        """
        interval_s = min(int(header[:9]), LONGEST_REPORT_INTERVAL_S) if header.isascii() and header.isdigit() else None
        self._asked_s = 0.0 if interval_s == 0 else max(interval_s or 0.0, self._asked_s / 2)
        if self._asked_s <= self._config.report_interval_s:
            self._asked_s = 0.0

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
        """Report until this is cancelled; after failures with pauses that grow.

        Between two reports is the device's own interval, or that of the cloud, if it is longer.
        """
        pace = Pace(self._rng, self._config.report_interval_s)
        pause_s = pace.worked()
        while True:
            if await self._pause(pause_s):
                pause_s = pace.worked()
                continue
            try:
                await self.report()
            except httpx.HTTPError as error:
                _LOG.info("%s: outcomes were not sent: %s", self._config.device_id, error)
                pause_s = pace.failed(asked_pause_s(error, self._clock.time()))
            else:
                pause_s = pace.worked(self._asked_s)

    async def _pause(self, pause_s: float) -> bool:
        """Return after a time, or at once with True when reports are to come soon."""
        await first_of(self._clock.sleep(pause_s), self._is_awaited.wait())
        was_awaited = self._is_awaited.is_set()
        self._is_awaited.clear()
        return was_awaited
