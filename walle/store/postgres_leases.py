"""Leases in PostgreSQL, between machines; see `walle.store.lease.Leases`. Times are the server's."""

from walle.store.lease import Grant, LeaseState, check_grant
from walle.store.postgres_database import Connection, PostgresDatabase

_ACQUIRE = """
INSERT INTO walle.leases AS l VALUES ($1, $2, 1, clock_timestamp() + make_interval(secs => $3))
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, fence = l.fence + 1, until = excluded.until
WHERE l.until <= clock_timestamp() RETURNING fence
"""
_RENEW = "UPDATE walle.leases SET until = clock_timestamp() + make_interval(secs => $2) WHERE name = $1"
_RELEASE = "UPDATE walle.leases SET until = '-infinity', holder = '' WHERE name = $1 AND holder = $2 AND fence = $3"
_STATE = """
SELECT holder, fence, greatest(extract(epoch FROM until - clock_timestamp()), 0)::float8 FROM walle.leases
WHERE name = $1 AND until > '-infinity' UNION ALL
SELECT holder, fence, 0 FROM walle.leases WHERE name = $1 AND until = '-infinity'
"""


_CALL_S = 3.0


class PostgresLeases:
    """The leases in an open database. Nobody can take one while the database is away, and it decides afterwards."""

    decides_later = True

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    async def acquire(self, name: str, holder: str, life_s: float) -> Grant | None:
        async def write(connection: Connection) -> int | None:
            found: int | None = await connection.fetchval(_ACQUIRE, name, holder, life_s)
            return found

        fence = await self._database.write(write)
        return None if fence is None else Grant(name, holder, fence)

    async def renew(self, grant: Grant, life_s: float) -> None:
        async def write(connection: Connection) -> None:
            await check_grant(connection, grant, changes=True)
            await connection.execute(_RENEW, grant.name, life_s)

        await self._database.write(write, retry_s=life_s / 5, limit_s=max(life_s / 2, _CALL_S))

    async def release(self, grant: Grant) -> None:
        async def write(connection: Connection) -> None:
            await connection.execute(_RELEASE, grant.name, grant.holder, grant.fence)

        await self._database.write(write, retry_s=0, limit_s=_CALL_S)

    async def state(self, name: str) -> LeaseState | None:
        rows = await self._database.read(_STATE, name)
        return LeaseState(*rows[0]) if rows else None
