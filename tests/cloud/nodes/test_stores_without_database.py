"""Identities and exclusive files while their database is away: callers may try again, and a stop ends their calls."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.postgres_server import PostgresServer, postgres_server
from walle.access.audit import AuditError
from walle.access.identity.service import IdentityService
from walle.access.identity.store import IdentityStore, IdentityStoreError
from walle.access.identity.watch import IdentityWatch
from walle.base.clock import SystemClock
from walle.cloud.api.releases import error_answer
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.nodes.identity import IdentityNode
from walle.deploy.exclusive_files.store import ExclusiveStoreError

LIMIT_S = 120.0
_AT_ONCE_S = 0.2


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may stop."""
    with postgres_server() as server:
        yield server


@pytest.mark.asyncio
async def test_callers_are_asked_to_retry_and_a_stop_ends_waiting_calls(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    node = IdentityNode(CloudConfig(folder=tmp_path, database=own_server.dsn()))
    service = await node.start()
    with contextlib.closing(CloudHome(tmp_path, database=own_server.dsn())) as home:
        exclusive = await asyncio.to_thread(lambda: home.exclusive)
        own_server.freeze()
        calls = [
            asyncio.create_task(service.make_token("", 1, 60.0)),
            asyncio.create_task(service.revoke("phone", "lost")),
            asyncio.create_task(asyncio.to_thread(exclusive.files, "phone", 1)),
            asyncio.create_task(asyncio.to_thread(exclusive.remove, "phone", "shop/ipv", "one")),
        ]
        await asyncio.sleep(_AT_ONCE_S)  # calls that have begun end as those that begin later
        node.hurry(_AT_ONCE_S)
        home.hurry(_AT_ONCE_S)
        async with asyncio.timeout(LIMIT_S):
            failed = await asyncio.gather(*calls, return_exceptions=True)
        own_server.thaw()
    assert [type(one) for one in failed] == [IdentityStoreError] * 2 + [ExclusiveStoreError] * 2
    for one in failed:
        assert isinstance(one, (IdentityStoreError, ExclusiveStoreError))
        assert one.may_pass  # a start waits for the database, and continues
        answer = error_answer(one)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    await node.close()


@pytest.mark.asyncio
async def test_records_of_the_audit_log_that_wait_leave_threads_for_others(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    """Else devices that fetch files would wait for the database with them."""
    with contextlib.closing(CloudHome(tmp_path, database=own_server.dsn())) as home:
        await home.audit.record("file.put", who="anna")
        own_server.freeze()
        waiting = [asyncio.create_task(home.audit.record("file.put", who="anna")) for _ in range(50)]
        await asyncio.sleep(_AT_ONCE_S)
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(asyncio.to_thread(int, number) for number in range(20)))
        assert not any(one.done() for one in waiting)
        home.hurry(_AT_ONCE_S)
        async with asyncio.timeout(LIMIT_S):
            failed = await asyncio.gather(*waiting, return_exceptions=True)
        own_server.thaw()
    assert {type(one) for one in failed} == {AuditError}


class CountedIdentities(IdentityService):
    """Sets `has_failed` once two questions about revocations have failed."""

    def __init__(self, folder: Path, store: IdentityStore) -> None:
        super().__init__(folder, store)
        self.has_failed = asyncio.Event()
        self._failures = 0

    async def revocations(self, after: int) -> tuple[int, dict[str, int]]:
        try:
            return await super().revocations(after)
        except IdentityStoreError:
            self._failures += 1
            if self._failures == 2:
                self.has_failed.set()
            raise


@pytest.mark.asyncio
async def test_a_gateway_does_not_log_each_second_of_an_outage(
    own_server: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(CloudHome(tmp_path, database=own_server.dsn())) as home:
        service = CountedIdentities(home.identity_folder, home.identity_store())
        await asyncio.to_thread(service.open)
        watch = IdentityWatch(service, SystemClock())
        await watch.start()

        async def on_change(_: object) -> None:
            raise AssertionError("nothing was revoked")

        following = asyncio.create_task(watch.follow(on_change))
        own_server.kill()
        home.hurry(_AT_ONCE_S)
        async with asyncio.timeout(LIMIT_S):
            await service.has_failed.wait()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert "what is revoked is not known" not in caplog.text
