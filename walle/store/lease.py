"""Leases: one holder at a time may act as a cloud's release service, or as its monitor.

A lease is a row of a database: its holder, the time at which it ends, and a fencing number that goes up each time it
changes hands. What the holder writes into the same database carries its `Grant`: the write's own transaction refuses
one that is not the row's any more. So a holder that was stopped for longer than its lease, and does not know that
another one has taken it, writes nothing.

`LeaseKeeper` acquires a lease, renews it, and says when it is lost::

    async with LeaseKeeper(leases, "releases", clock) as keeper:  # a standby waits here while another node has it
        async with Journal.in_file(path, grant=keeper.grant) as journal:
            ...  # LeaseLostError from a write: stop acting
            await keeper.lost.wait()  # stop, then enter a new keeper: it waits as a standby

There are two implementations: `walle.store.sqlite_leases.SqliteLeases` for one machine, and
`walle.store.postgres_leases.PostgresLeases` for several. Times are those of the database, so that machines
whose clocks differ agree.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import secrets
import socket
from typing import TYPE_CHECKING, Protocol, Self

from walle.base.clock import Clock
from walle.errors import DeployError

if TYPE_CHECKING:
    from walle.store.sql import Connection
from walle.store.errors import StateError

LIFE_S = 10.0  # life of a lease: another holder may take it after that, if it is not renewed
RELEASES = "releases"
MONITOR = "monitor"
_RENEWALS = 5  # renewals in the life of a lease: some may fail
_STANDBY_S = 1.0  # pause between two attempts of a standby
_HOLDER = "SELECT holder, fence FROM leases WHERE name = $1"
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Grant:
    """The right that a lease gives. `fence` goes up each time the lease changes hands; `holder` is unique."""

    name: str
    holder: str
    fence: int


@dataclasses.dataclass(frozen=True)
class LeaseState:
    """A lease as its database has it: `left_s` seconds until it ends, 0 where it has ended or was released."""

    holder: str
    fence: int
    left_s: float


class LeaseLostError(DeployError):
    """Another holder has the lease: what was to be written is not. Over HTTP: 503."""

    status = 503

    def __init__(self, name: str, holder: str = "") -> None:
        super().__init__(name, holder)
        self.name = name
        self.holder = holder

    def __str__(self) -> str:
        other = f"{self.holder} has it" if self.holder else "it was released"
        return f"lease {self.name!r} is lost: {other}; nothing was written, ask the node that has it"


class Leases(Protocol):
    """Interface to the leases of a database.

    `decides_later`: a holder that does not reach the database continues and changes nothing until it does: each of its
    writes asks there whether it still has the lease. Else a lease that was not renewed for its life is lost.

    Raises, from every call:
        StateError: the database cannot be read or written.
    """

    decides_later: bool

    async def acquire(self, name: str, holder: str, life_s: float) -> Grant | None:
        """Take the lease for `life_s` seconds; None while another holder has it. The fencing number goes up."""

    async def renew(self, grant: Grant, life_s: float) -> None:
        """Keep the lease for `life_s` seconds from now on, also where it has ended and nobody took it.

        Raises:
            LeaseLostError: another one has taken it, or it was released.
        """

    async def release(self, grant: Grant) -> None:
        """End the lease now; does nothing where it is not this grant's any more."""

    async def state(self, name: str) -> LeaseState | None:
        """Return the lease, None where nobody ever had it."""


def holder_name() -> str:
    """Return a name for a holder: of this host and process, and unique."""
    return f"{socket.gethostname()[:60]}/{os.getpid()}/{secrets.token_hex(4)}"


async def check_grant(connection: "Connection", grant: Grant, *, changes: bool = False) -> None:
    """Return if the lease is still the grant's, which it stays until the end of the connection's transaction.

    Transactions that use it run at the same time; one that `changes` it runs alone.

    Raises:
        LeaseLostError: it is another holder's, or released.
    """
    row = await connection.fetchrow(f"{_HOLDER} FOR {'UPDATE' if changes else 'SHARE'}", grant.name)
    found = () if row is None else tuple(row)
    if found != (grant.holder, grant.fence):
        raise LeaseLostError(grant.name, str(found[0]) if found else "")


class LeaseKeeper:
    """Holder of one lease within `async with`: entering waits until it has the lease, leaving releases it.

    `lost` is set when another one has it, or may: when it could not be renewed for its whole life, unless the leases
    decide later. One that enters waits while the database that has them is away.
    One that `is_successor` of a holder that has ended waits for that one's lease only, never as a standby.
    """

    def __init__(
        self,
        leases: Leases,
        name: str,
        clock: Clock,
        *,
        is_successor: bool = False,
        life_s: float = LIFE_S,
        standby_s: float = _STANDBY_S,
    ) -> None:
        self.lost = asyncio.Event()
        self._is_successor = is_successor
        self._leases = leases
        self._name = name
        self._clock = clock
        self._life_s = life_s
        self._standby_s = standby_s
        self._grant: Grant | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def grant(self) -> Grant:
        """The grant of this holder."""
        assert self._grant is not None, "the keeper was not entered"
        return self._grant

    async def __aenter__(self) -> Self:
        """Return once this holder has the lease.

        Raises:
            StateError: the database cannot be read or written.
            LeaseLostError: another one than the predecessor of this successor has it.
        """
        holder, other = holder_name(), ""
        began_s = self._clock.monotonic()
        while True:
            asked_s = self._clock.monotonic()
            try:
                self._grant = await self._acquired(holder)
                if self._grant is not None:
                    break
                found = await self._leases.state(self._name)
            except StateError as error:  # LeaseLostError is not one
                if not error.may_pass:
                    raise
                _LOG.debug("lease %r: %s", self._name, error)
                began_s += self._clock.monotonic() - asked_s
                await self._clock.sleep(self._standby_s)
                continue
            if (
                self._is_successor and asked_s - began_s > self._life_s + self._standby_s
            ):  # another node renews the lease
                raise LeaseLostError(self._name, found.holder if found is not None else "")
            if found is not None and found.holder != other:
                other = found.holder
                _LOG.warning("standby: %s has the lease %r; this node waits for it", found.holder, self._name)
            await self._clock.sleep(self._standby_s)
        _LOG.info("lease %r: %s has it, fencing number %d", self._name, holder, self._grant.fence)
        self._renewing = asyncio.create_task(self._renew_periodically(asked_s), name=f"lease {self._name}")
        return self

    async def _acquired(self, holder: str) -> Grant | None:
        acquiring = asyncio.ensure_future(self._leases.acquire(self._name, holder, self._life_s))
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:  # a lease that was acquired must not keep others waiting
            with contextlib.suppress(DeployError):
                if (grant := await acquiring) is not None:
                    await self._leases.release(grant)
            raise

    async def __aexit__(self, *_: object) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self._grant is not None and not self.lost.is_set():
            with contextlib.suppress(DeployError):  # a lease that cannot be released ends by itself
                await self._leases.release(self._grant)

    async def _renew_periodically(self, renewed_s: float) -> None:
        """Renew the lease until it is lost. `renewed_s`: when the renewal that succeeded last was asked for."""
        while not self.lost.is_set():
            await self._clock.sleep(self._life_s / _RENEWALS)
            asked_s = self._clock.monotonic()
            try:
                async with asyncio.timeout(self._life_s):
                    await self._leases.renew(self.grant, self._life_s)
                renewed_s = asked_s
            except LeaseLostError as error:
                _LOG.error("%s; this node stops acting", error)
                self.lost.set()
            except (DeployError, TimeoutError) as error:
                is_logged = getattr(error, "may_pass", False)  # a fault of the database was logged there
                _LOG.log(
                    logging.DEBUG if is_logged else logging.WARNING, "lease %r cannot be renewed: %s", self._name, error
                )
                if not self._leases.decides_later and self._clock.monotonic() - renewed_s >= self._life_s:
                    _LOG.error("lease %r has ended: it was not renewed; this node stops acting", self._name)
                    self.lost.set()
