"""Renewal of a device's trust by the timestamps of answers, and the alarms where one is wrong or none comes.

A timestamp announces metadata: roots, each signed by the one before, and the keys of scenarios. What is new of them is
fetched, verified (`walle.deploy.agent.trust`) and written to the device's disk before it counts.
"""

import asyncio
import logging
from pathlib import Path

from walle.base.clock import Clock
from walle.deploy.agent.fetch import Fetcher, FetchError
from walle.deploy.agent.outcomes import OutcomeReport
from walle.deploy.agent.pull import on_disk
from walle.deploy.agent.trust import MAX_ROOTS_AT_ONCE, DeviceTrust, TrustError, TrustFile
from walle.errors import DeployError
from walle.protocol import Alarm, ProtocolError, Timestamp
from walle.trust.metadata import MAX_ROOT_BYTES, MAX_SCENARIOS_BYTES

_LOG = logging.getLogger(__name__)


class TrustRenewal:
    """Keeper of `trust` and of the file in `folder` that holds it; alarms go into the next report of `outcomes`."""

    def __init__(
        self, folder: Path, trust: DeviceTrust, fetcher: Fetcher, outcomes: OutcomeReport, clock: Clock
    ) -> None:
        self._trust = trust
        self._file = TrustFile(folder)
        self._fetcher = fetcher
        self._outcomes = outcomes
        self._clock = clock
        self._renewing = asyncio.Lock()
        self._last_header = ""  # header of the timestamp that was accepted last
        self._alarmed: set[str] = set()  # kinds of alarms since the last fresh timestamp

    async def restore(self) -> None:
        """Take the trust that is on the disk."""
        await on_disk(self._file.read, self._trust)

    async def renew(self, header: str) -> DeployError | None:
        """Take a timestamp, with the metadata that it announces; return why it was refused, if it was."""
        if header == self._last_header:
            return None
        try:
            async with self._renewing:
                await self._follow_roots(stamp := Timestamp.from_header(header))
                if self._trust.check(stamp):
                    scenarios = None
                    if self._trust.needs_scenarios(stamp):
                        url = f"/trust/{stamp.scenarios}.scenarios.json"
                        scenarios = await self._fetcher.fetch_small(url, max_bytes=MAX_SCENARIOS_BYTES)
                    self._trust.accept(stamp, scenarios)
                    await on_disk(self._file.write, self._trust)
                    self._last_header = header
                    if not self._trust.stale():
                        self._alarmed.clear()
        except ProtocolError as error:
            return self.refuse(TrustError("metadata", str(error)))
        except TrustError as error:
            return self.refuse(error)
        except FetchError as error:  # says nothing of the metadata; the next answer tries again
            _LOG.info("%s", error)
            return error
        except OSError as error:
            _LOG.warning("the device's trust cannot be written: %s", error)
        return None

    async def _follow_roots(self, timestamp: Timestamp) -> None:
        """Walk the root metadata up to the version that a timestamp, not yet verified, announces."""
        before = self._trust.root.version
        try:
            for number in range(before + 1, min(timestamp.root, before + MAX_ROOTS_AT_ONCE) + 1):
                self._trust.follow(
                    await self._fetcher.fetch_small(f"/trust/{number}.root.json", max_bytes=MAX_ROOT_BYTES)
                )
        finally:
            if self._trust.root.version > before:
                self._last_header = ""
                await on_disk(self._file.write, self._trust)

    def watch(self, *, is_needed: bool) -> None:
        """Raise an alarm where no fresh timestamp has come; see `Agent.watch_freshness`."""
        if self._trust.timestamp is None and not is_needed:
            return
        if reason := self._trust.stale():
            self._alarm("frozen", reason)
        if fault := self._trust.clock_fault():
            self._alarm("clock", fault)

    def refuse(self, error: TrustError) -> TrustError:
        """Report what is wrong with metadata as an alarm, and return it."""
        self._alarm(error.kind, error.reason)
        return error

    def _alarm(self, kind: str, reason: str) -> None:
        """Report an alarm of this kind, once until a fresh timestamp comes."""
        if kind not in self._alarmed:
            self._alarmed.add(kind)
            _LOG.warning("%s", reason)
            self._outcomes.alarm(Alarm(kind, reason, self._clock.time()))
