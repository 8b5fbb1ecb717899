"""Scrubbing of a cloud's stored files in the background of its release node, and its state for the gateways.

A pass takes a week, or runs at a given rate. A damaged file that nothing repairs pauses the releases under way whose
versions have it: the fault is the cloud's, not the version's. The state is in scrub.json, so that a pass continues
where a restart interrupted it, and every gateway shows it.
"""

import asyncio
import dataclasses
import json
import logging
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from walle.base.clock import Clock
from walle.base.durable_file import write_file
from walle.cloud.upkeep.scrub import Checked, Finding, Scrubber
from walle.deploy.releases.release import Release
from walle.deploy.shared_files.store import FileStoreError
from walle.metrics.table import counter_of, gauge_of

_LOG = logging.getLogger(__name__)
PASS_S = 7 * 86_400.0
_MIN_PASS_S = 3600.0  # shortest time between the beginnings of two passes at a given rate
_MAX_FILE_S = 3600.0  # time for one file, at the rate of a pass a week
_RETRY_S = 60.0
_SAVE_S = 60.0
_FAULTS_S = 300.0
_MAX_SHOWN = 100  # faults in the state
STATE_FILE = "scrub.json"

type Pause = Callable[[Release, str], Awaitable[None]]
"""`pause(release, reason)` pauses a release under way for a fault of the cloud; others are unchanged."""


@dataclasses.dataclass
class ScrubState:
    """State of the passes. `faults` are those that stand, STORE/SHA256 → what it is; times are of the epoch."""

    began_s: float = 0.0
    ended_s: float = 0.0  # end of the last whole pass
    after: str = ""  # STORE/SHA256 up to which the present pass has come
    checked_files: int = 0
    checked_bytes: int = 0
    repaired: int = 0
    faults: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> "ScrubState":
        """Return the state of the cloud in `folder`; a new one where there is none, or it is damaged."""
        try:
            return cls(**json.loads((folder / STATE_FILE).read_bytes()))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError):
            _LOG.warning("%s is damaged; checks of files start from the beginning", folder / STATE_FILE)
            return cls()

    def save(self, folder: Path) -> None:
        faults = dict(list(self.faults.items())[:_MAX_SHOWN])
        plain = {**dataclasses.asdict(self), "faults": faults}
        write_file(folder / STATE_FILE, json.dumps(plain, indent=1) + "\n", mode=0o644)


class Scrubbing:
    """Passes of `scrubber`, one after another. `mb_s` is the rate in MB/s, 0 for a pass a week."""

    def __init__(self, folder: Path, scrubber: Scrubber, pause: Pause, clock: Clock, *, mb_s: float = 0.0) -> None:
        self._folder = folder
        self._scrubber = scrubber
        self._pause = pause
        self._clock = clock
        self._mb_s = mb_s
        self._state = ScrubState.load(folder)
        self._saved_s = 0.0

    async def run(self) -> None:
        """Check the files again and again, until cancelled."""
        while True:
            try:
                await self.run_pass()
            except (FileStoreError, OSError) as error:
                _LOG.error("stored files cannot be checked, trying again in a minute: %s", error)
                await self._clock.sleep(_RETRY_S)
                continue
            every_s = PASS_S if not self._mb_s else _MIN_PASS_S
            await self._clock.sleep(max(_RETRY_S, self._state.began_s + every_s - self._clock.time()))

    async def run_pass(self) -> None:
        """Check each file once, from where the last pass was interrupted."""
        state = self._state
        if not state.after:
            state.began_s, state.checked_files, state.checked_bytes = self._clock.time(), 0, 0
        is_whole, seen = not state.after, set[str]()
        async for checked in self._scrubber.run(rate=self._rate, after=state.after):
            await self._take(checked)
            if checked.finding:
                seen.add(_name(checked))
            if self._clock.time() - self._saved_s >= _SAVE_S:
                await self._save()
        if is_whole:  # the others are of files that nothing reaches any more
            state.faults = {name: what for name, what in state.faults.items() if name in seen}
        state.after, state.ended_s = "", self._clock.time()
        await self._save()

    def _rate(self, all_bytes: int, file_bytes: int) -> float:
        """Return the bytes of a file to read in a second.

        One takes an hour at most: a restart begins it again, so that a model that took days was never read to its end.
        """
        return self._mb_s * 1e6 or max(all_bytes / PASS_S, file_bytes / _MAX_FILE_S) or math.inf

    async def check_faults(self) -> None:
        """Check the files whose faults stand, every few minutes, until cancelled: somebody may have put them again."""
        while True:
            await self._clock.sleep(_FAULTS_S)
            for name in list(self._state.faults):
                try:
                    checked = await self._scrubber.check(*name.rsplit("/", 1))
                except (FileStoreError, OSError) as error:
                    _LOG.debug("%s is not checked: %s", name, error)
                    continue
                if checked.finding is None or checked.finding.origin:
                    self._state.faults.pop(name, None)
                    await self._save()

    async def _take(self, checked: Checked) -> None:
        state, name = self._state, _name(checked)
        if checked.file.etag:  # the file was listed: the pass continues after it
            state.after = name
        state.checked_files += 1
        state.checked_bytes += checked.file.size_bytes
        finding = checked.finding
        if finding is None:
            state.faults.pop(name, None)
            return
        if finding.origin:
            state.repaired += 1
            state.faults.pop(name, None)
        elif finding.releases:
            state.faults[name] = str(finding)
            for release in finding.releases:
                await self._pause(release, _reason(finding))
        await self._save()

    async def _save(self) -> None:
        self._saved_s = self._clock.time()
        await asyncio.to_thread(self._state.save, self._folder)


def _name(checked: Checked) -> str:
    return f"{checked.store}/{checked.file.sha256}"


def _reason(finding: Finding) -> str:
    what = f"the cloud's own copy of {finding.store}/{finding.sha256} is {finding.fault.value}"
    return f"{what}, and nothing could repair it; restore it from a backup or release the version again, then resume"


class ScrubWatch:
    """State of the scrubbing for /healthz and /metrics, from the file that the release node writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def health(self) -> dict[str, Any]:
        """Return the state as JSON. `ok` stays True: another gateway has the same files."""
        state = ScrubState.load(self._folder)
        return {"ok": True, "faults": list(state.faults.values())[:5], "last_pass_s": state.ended_s}

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        state = ScrubState.load(self._folder)
        return [
            gauge_of("walle_stored_file_faults", len(state.faults)),
            counter_of("walle_stored_file_repairs_total", state.repaired),
            gauge_of("walle_stored_file_checked_bytes", state.checked_bytes),
            gauge_of("walle_stored_file_last_pass_timestamp_seconds", state.ended_s),
        ]
