"""Upkeep of the task repositories of a cloud: what no ref leads to is removed, and their space on the disk is known."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from walle.base.clock import Clock
from walle.deploy.git.git_repack import repack
from walle.deploy.git.git_use import GitQuota, git_use
from walle.deploy.git.repo import RepoError, TaskRepos
from walle.metrics.table import MAX_SCENARIOS, counter, gauge, gauge_of
from walle.store.disk_space import DiskSpace

_LOOK_S = 30.0
_LONGEST_S = 6 * 3600.0  # longest pause before another try at a repository that failed; it doubles from _LOOK_S on
_LOG = logging.getLogger(__name__)
_OTHERS = "*"


class GitUpkeep:
    """The upkeep, by one process of several: what another does is left to it."""

    def __init__(self, repos: TaskRepos, quota: GitQuota, space: DiskSpace, clock: Clock) -> None:
        self._repos = repos
        self._quota = quota
        self._space = space
        self._clock = clock
        self._used: dict[str, int] = {}
        self._freed_bytes = 0
        self._errors: dict[str, str] = {}  # by scenario
        self._tries: dict[str, tuple[int, float]] = {}  # tries that failed in a row, and when the next one is due

    async def run(self) -> None:
        """Look at each repository in turn, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(_LOOK_S)

    async def look(self) -> None:
        """Remove from each repository what no ref leads to, where there may be some, and measure it."""
        used = {}
        scenarios = await asyncio.to_thread(self._repos.scenarios)
        for gone in (self._errors.keys() | self._tries.keys()).difference(scenarios):
            self._forget(gone)
        for scenario in scenarios:
            tries, due_s = self._tries.get(scenario, (0, 0.0))
            try:
                if self._clock.monotonic() >= due_s:
                    await _on_thread(self._repack, scenario)
                    self._forget(scenario)
            except RepoError:  # the repository was removed meanwhile
                continue
            except Exception as error:  # noqa: BLE001 - dulwich raises many kinds; the other repositories go on
                _LOG.warning("the repository of %s cannot be repacked: %s", scenario, error)
                self._errors[scenario] = (str(error) or type(error).__name__)[:300]
                pause_s = min(_LOOK_S * 2**tries, _LONGEST_S)
                self._tries[scenario] = min(tries + 1, 20), self._clock.monotonic() + pause_s
            try:
                used[scenario] = await asyncio.to_thread(self._measure, scenario)
            except RepoError:  # the repository was removed meanwhile
                continue
            except Exception as error:  # noqa: BLE001 - of a damaged one, as above
                _LOG.warning("the repository of %s cannot be measured: %s", scenario, error)
        self._used = used

    def _forget(self, scenario: str) -> None:
        self._errors.pop(scenario, None)
        self._tries.pop(scenario, None)

    def _repack(self, scenario: str) -> None:
        done = repack(self._repos, scenario, self._space)
        if done is not None and done.after_bytes < done.before_bytes:
            self._freed_bytes += done.before_bytes - done.after_bytes
            _LOG.info("the git repository of %s has %d bytes, %d before", scenario, done.after_bytes, done.before_bytes)

    def _measure(self, scenario: str) -> int:
        with self._repos.open(scenario) as repo:
            return git_use(Path(repo.path)).size_bytes

    def health(self) -> Mapping[str, Any]:
        """Return the bytes of the ten largest repositories, and why one is not repacked."""
        largest = sorted(self._used, key=self._used.__getitem__, reverse=True)[:10]
        return {
            "ok": True,
            "limit_bytes": self._quota.scenario_bytes,
            "token_limit_bytes": self._quota.token_bytes,
            "bytes": {scenario: self._used[scenario] for scenario in largest},
            "errors": dict(list(self._errors.items())[:10]),
        }

    def metrics(self) -> list[Metric]:
        """Return the state for a scrape."""
        used = gauge("walle_git_bytes")
        largest = sorted(self._used, key=self._used.__getitem__, reverse=True)
        for scenario in largest[:MAX_SCENARIOS]:
            used.add_metric([scenario], self._used[scenario])
        if others := largest[MAX_SCENARIOS:]:
            used.add_metric([_OTHERS], sum(map(self._used.__getitem__, others)))
        freed = counter("walle_git_freed_bytes_total")
        freed.add_metric([], self._freed_bytes)
        limit = gauge_of("walle_git_limit_bytes", self._quota.scenario_bytes)
        return [used, freed, limit, gauge_of("walle_git_repack_errors", len(self._errors))]


async def _on_thread(work: Callable[[str], None], scenario: str) -> None:
    """Do work on a thread for which the process does not wait when it ends: git may take many minutes."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: Exception | None = None
        try:
            work(scenario)
        except Exception as found:  # noqa: BLE001 - raised where it is awaited
            error = found
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, error)

    threading.Thread(target=run, name="walle-git-upkeep", daemon=True).start()
    await done
