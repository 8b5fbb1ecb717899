"""The journal in PostgreSQL; see `walle.deploy.releases.journal`. The monitor has its own tables there."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from walle.deploy.releases.journal import PendingEffect, Transition
from walle.deploy.releases.release import Effect, Release, ReleaseEvent
from walle.deploy.releases.table import TaskRow
from walle.store.lease import Grant
from walle.store.postgres_database import Action, Connection, PostgresDatabase


class PostgresJournal:
    """The journal in an open database, which outlives it. `grant` is of a lease in the same database."""

    def __init__(self, database: PostgresDatabase, *, grant: Grant | None = None) -> None:
        self._database = database
        self._grant = grant

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def _write[T](self, action: Action[T]) -> T:
        return await self._database.write(action, grant=self._grant)

    async def confirm(self) -> None:
        async def write(connection: Connection) -> None:
            pass

        await self._write(write)

    # --- releases ---

    async def record(
        self, release: Release, event: ReleaseEvent | None, effects: tuple[Effect, ...]
    ) -> tuple[PendingEffect, ...]:
        details = json.dumps(dataclasses.asdict(event) if event else {})
        name = type(event).__name__ if event else "Create"

        async def write(connection: Connection) -> list[int]:
            await connection.execute(
                "INSERT INTO walle.releases VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET release = $3",
                release.id,
                release.number,
                json.dumps(release.to_plain()),
            )
            await connection.execute(
                "INSERT INTO walle.transitions (release_id, at_s, event, details, state) VALUES ($1, $2, $3, $4, $5)",
                release.id,
                release.updated_s,
                name,
                details,
                release.state.value,
            )
            insert = "INSERT INTO walle.effects (release_id, effect) VALUES ($1, $2) RETURNING number"
            return [await connection.fetchval(insert, release.id, effect.value) for effect in effects]

        numbers = await self._write(write)
        return tuple(PendingEffect(number, release.id, one) for number, one in zip(numbers, effects, strict=True))

    async def releases(self) -> list[Release]:
        rows = await self._database.read("SELECT release FROM walle.releases ORDER BY number")
        return [Release.from_plain(json.loads(text)) for (text,) in rows]

    async def history(self, release_id: str) -> list[Transition]:
        query = "SELECT at_s, event, details, state FROM walle.transitions WHERE release_id = $1 ORDER BY number"
        rows = await self._database.read(query, release_id)
        return [Transition(at_s, event, json.loads(details), state) for at_s, event, details, state in rows]

    async def pending(self) -> list[PendingEffect]:
        rows = await self._database.read("SELECT number, release_id, effect FROM walle.effects ORDER BY number")
        return [PendingEffect(number, release_id, Effect(effect)) for number, release_id, effect in rows]

    async def strike(self, effect: PendingEffect) -> None:
        async def write(connection: Connection) -> None:
            await connection.execute("DELETE FROM walle.effects WHERE number = $1", effect.number)

        await self._write(write)

    # --- rows of the release table ---

    async def draw(self, counter: str, count: int = 1) -> int:
        async def write(connection: Connection) -> int:
            query = (
                "INSERT INTO walle.counters AS c VALUES ($1, $2)"
                " ON CONFLICT (name) DO UPDATE SET value = c.value + $2 RETURNING value"
            )
            last: int = await connection.fetchval(query, counter, count)
            return last - count + 1

        return await self._write(write)

    async def save_row(self, row: TaskRow) -> None:
        text = json.dumps(row.to_plain())

        async def write(connection: Connection) -> None:
            query = "INSERT INTO walle.table_rows VALUES ($1, $2) ON CONFLICT (task) DO UPDATE SET task_row = $2"
            await connection.execute(query, row.task, text)

        await self._write(write)

    async def rows(self) -> list[TaskRow]:
        rows = await self._database.read("SELECT task_row FROM walle.table_rows ORDER BY task")
        return [TaskRow.from_plain(json.loads(text)) for (text,) in rows]

    # --- evidence of the monitor ---

    async def save_evidence(
        self, evidence: Mapping[str, Any], batches: Sequence[tuple[str, str]] = (), *, keep: int = 0
    ) -> None:
        texts = [json.dumps(plain) for plain in evidence.values()]
        # As JSON: a device may choose ids with characters that PostgreSQL does not store.
        devices, ids = [json.dumps(one) for one, _ in batches], [json.dumps(one) for _, one in batches]

        async def write(connection: Connection) -> None:
            await connection.execute(
                "INSERT INTO walle.evidence SELECT * FROM unnest($1::text[], $2::text[])"
                " ON CONFLICT (release_id) DO UPDATE SET evidence = excluded.evidence",
                list(evidence),
                texts,
            )
            if batches:
                await connection.execute(
                    "INSERT INTO walle.batches (device_id, batch_id)"
                    " SELECT d, b FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS n (d, b, place)"
                    " ORDER BY place",
                    devices,
                    ids,
                )
                await connection.execute(
                    "DELETE FROM walle.batches WHERE number <= (SELECT max(number) FROM walle.batches) - $1", keep
                )

        await self._write(write)

    async def batches(self) -> list[tuple[str, str]]:
        rows = await self._database.read("SELECT device_id, batch_id FROM walle.batches ORDER BY number")
        return [(json.loads(device_id), json.loads(batch_id)) for device_id, batch_id in rows]

    async def evidence(self) -> dict[str, Any]:
        rows = await self._database.read("SELECT release_id, evidence FROM walle.evidence ORDER BY release_id")
        return {release_id: json.loads(text) for release_id, text in rows}
