"""Keeper of the release table: makes and signs the rows of tasks, and publishes each new table with its timestamp."""

import asyncio
from collections.abc import Callable, Iterable

from walle.base.clock import Clock
from walle.deploy.releases.effects import Effects
from walle.deploy.releases.journal import Journal
from walle.deploy.releases.release import Release
from walle.deploy.releases.table import ReleaseTable, TaskRow, plan_row


class TableKeeper:
    """The release table of a journal. A row is signed again only when it changes, or half of its time is over.

    `releases` returns the releases of a task. A directive expires after `lifetime_s`.
    """

    def __init__(
        self,
        journal: Journal,
        effects: Effects,
        clock: Clock,
        releases: Callable[[str], Iterable[Release]],
        *,
        cdn_url: Callable[[], str],
        lifetime_s: float,
    ) -> None:
        self.generation = 0  # generation of the table that was published last
        self._journal = journal
        self._effects = effects
        self._clock = clock
        self._releases = releases
        self._cdn_url = cdn_url
        self._lifetime_s = lifetime_s
        self._rows: dict[str, TaskRow] = {}
        self._publishing = asyncio.Lock()

    async def load(self) -> None:
        """Read the rows from the journal."""
        self._rows = {row.task: row for row in await self._journal.rows()}

    async def publish(self, task: str) -> None:
        """Publish a table in which the row of a task is as its releases are now."""
        async with self._publishing:
            await self._make_row(task)
            await self._publish_table()

    async def publish_all(self) -> None:
        """Publish a table in which every row is as its task's releases are now."""
        async with self._publishing:
            for task in list(self._rows):
                await self._make_row(task)
            await self._publish_table()

    async def restamp(self) -> None:
        """Give the gateways the table with a new timestamp: it nears expiry, or the metadata that it names changed."""
        async with self._publishing:
            if self.generation:  # else the first table is on its way
                await self._journal.confirm()  # a service that was replaced tells devices nothing
                await self._stamp_and_publish()

    async def refresh(self) -> None:
        """Publish the table again where a row nears its expiry."""
        now_s = self._clock.time()
        if any(row.expires_s - now_s <= self._lifetime_s / 2 for row in self._rows.values()):
            await self.publish_all()

    async def _make_row(self, task: str) -> None:
        """Update the task's row from its releases; sign it again only if it has changed or is due."""
        plan = plan_row(task, self._releases(task), self._cdn_url())
        row = self._rows.get(task)
        if row is None and not plan.entries:
            return  # no device has ever received a version of the task
        kept = plan.keeps(row, self._effects.sign) if row is not None and self._stands(row) else None
        if kept is not None:
            row = kept
        else:
            first_serial = await self._journal.draw("serial", plan.serials)
            row = plan.sign(self._effects.sign, first_serial, int(self._clock.time() + self._lifetime_s))
        await self._journal.save_row(row)
        self._rows[task] = row

    def _stands(self, row: TaskRow) -> bool:
        """Return whether a row's signatures are far from expiry and by the current key (signing is deterministic)."""
        lasts_s = row.expires_s - self._clock.time()
        return lasts_s > self._lifetime_s / 2 and self._effects.sign(row.removal) == row.removal

    async def _publish_table(self) -> None:
        self.generation = await self._journal.draw("generation")
        await self._stamp_and_publish()

    async def _stamp_and_publish(self) -> None:
        table = ReleaseTable(self.generation, list(self._rows.values()))
        table.timestamp = await self._effects.stamp(table)
        await self._effects.publish(table)
