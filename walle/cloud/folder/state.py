"""State of a node that acts alone, the release service or the monitor: its lease, its journal, and the devices.

The node has the lease before it opens the journal, and waits for it as a standby. Where it loses the lease it stops.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from walle.base.clock import Clock
from walle.cloud.folder.folder import CloudHome
from walle.deploy.fleet.registry import DeviceRegistry
from walle.deploy.releases.journal import Journal
from walle.errors import WalleError
from walle.store.lease import MONITOR, RELEASES, LeaseKeeper, LeaseState
from walle.store.sqlite_leases import SqliteLeases

STOP_S = 3.0  # time for what waits for a database in a node that stops
_LOG = logging.getLogger(__name__)

type MakeRegistry = Callable[..., DeviceRegistry]


class NodeState:
    """The state while the node has its lease. `registry(clock, ...)` returns the registry of devices, not open yet.

    `hurry(limit_s)` has calls end in that time that wait for a database: for a node that stops.
    """

    def __init__(
        self, keeper: LeaseKeeper, journal: Journal, registry: MakeRegistry, hurry: Callable[[float], None]
    ) -> None:
        self.keeper = keeper
        self.journal = journal
        self.registry = registry
        self.hurry = hurry


@contextlib.asynccontextmanager
async def node_state(
    home: CloudHome, lease: str, clock: Clock, *, is_successor: bool = False
) -> AsyncIterator[NodeState]:
    """Give the state of the node that has `lease`, once it has it; see `LeaseKeeper`.

    Raises:
        StateError: the journal cannot be opened.
        LeaseLostError: as entering a `LeaseKeeper`.
    """
    if home.database_url:
        from walle.store.postgres_database import PostgresDatabase
        from walle.store.postgres_leases import PostgresLeases

        async with (
            PostgresDatabase(home.database_url) as database,
            LeaseKeeper(PostgresLeases(database), lease, clock, is_successor=is_successor) as keeper,
        ):

            def in_database(*args: Any, **options: Any) -> DeviceRegistry:
                return DeviceRegistry(database, *args, grant=keeper.grant, **options)

            yield NodeState(keeper, Journal(database, grant=keeper.grant), in_database, database.hurry)
        return
    path = home.monitor_db if lease == MONITOR else home.releases_db
    async with (
        LeaseKeeper(SqliteLeases(path), lease, clock, is_successor=is_successor) as keeper,
        Journal.in_file(path, grant=keeper.grant) as journal,
    ):

        def opened(*args: Any, **options: Any) -> DeviceRegistry:
            return DeviceRegistry.in_file(home.devices_db, *args, **options)

        yield NodeState(keeper, journal, opened, lambda _: None)


def is_database_away(home: CloudHome) -> bool:
    """Return whether the database that has the cloud's state did not answer at the latest call of this process."""
    if not home.database_url:
        return False
    from walle.store.postgres_connection import outage_of, without_password

    return outage_of(without_password(home.database_url)).is_on


async def lease_states(home: CloudHome) -> dict[str, LeaseState]:
    """Return the leases in the cloud's files that a node ever had, by name. Raises StateError."""
    places = {RELEASES: SqliteLeases(home.releases_db), MONITOR: SqliteLeases(home.monitor_db)}
    found = {name: await one.state(name) for name, one in places.items()}
    return {name: state for name, state in found.items() if state is not None}


class StopWhenLost:
    """Stops a node when its lease is lost: `stop` runs once, here. `lost` is set before it, `close` ends the wait."""

    def __init__(self, what: str, keeper: LeaseKeeper, stop: Callable[[], Awaitable[None]]) -> None:
        self.lost = keeper.lost
        self._what = what
        self._stop = stop
        self._waiting = asyncio.create_task(self._wait(), name=f"lease of the {what}")

    async def _wait(self) -> None:
        await self.lost.wait()
        _LOG.error("the %s stops: another node may have its lease", self._what)
        try:
            await self._stop()
        except WalleError as error:  # what it had not written the other node does not have
            _LOG.warning("the %s stopped: %s", self._what, error)

    async def close(self) -> None:
        """End the wait, or wait until the node has stopped."""
        if not self.lost.is_set():
            self._waiting.cancel()
        await asyncio.gather(self._waiting, return_exceptions=True)
