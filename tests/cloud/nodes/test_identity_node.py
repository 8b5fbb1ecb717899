"""The identity node's connection to its file: from its start to its end, also where the end comes during the start."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from walle.access.identity.store import IdentityStore
from walle.cloud.folder.config import CloudConfig
from walle.cloud.folder.folder import CloudHome
from walle.cloud.nodes.identity import IdentityNode
from walle.store.sqlite_file import SqliteFile

LIMIT_S = 20


class Held:
    """A call that waits in its thread until it is released."""

    def __init__(
        self, owner: type, name: str, monkeypatch: pytest.MonkeyPatch, when: Callable[[dict[str, Any]], bool]
    ) -> None:
        self.begun = threading.Event()
        self.released = threading.Event()
        whole = getattr(owner, name)

        def held(*args: Any, **options: Any) -> Any:
            if when(options):
                self.begun.set()
                assert self.released.wait(LIMIT_S)
            return whole(*args, **options)

        monkeypatch.setattr(owner, name, held)


def open_files(path: Path) -> int:
    """Return how many descriptors of this process are of a database: its file, its log, its index."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(one.readlink()).startswith(str(path))
    return found


@pytest.mark.asyncio
async def test_the_connection_is_the_nodes_from_its_start_to_its_end(tmp_path: Path) -> None:
    node = IdentityNode(CloudConfig(folder=tmp_path))
    service = await node.start()
    assert open_files(CloudHome(tmp_path).identities_db) > 0
    await node.close()
    assert open_files(CloudHome(tmp_path).identities_db) == 0
    assert await service.keys()  # what is asked while others end is answered
    await node.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("owner", "name"), [(IdentityStore, "open"), (SqliteFile, "connect")], ids=["before", "within"]
)
async def test_a_node_that_is_closed_while_it_starts_keeps_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    held = Held(owner, name, monkeypatch, lambda options: owner is IdentityStore or "is_shared" in options)
    node = IdentityNode(CloudConfig(folder=tmp_path))
    starting = asyncio.create_task(node.start())
    assert await asyncio.to_thread(held.begun.wait, LIMIT_S)
    closing = asyncio.create_task(node.close())
    if owner is SqliteFile:
        assert not (await asyncio.wait([closing], timeout=0.05))[0]  # nothing is closed that is being opened
    else:
        await closing
    held.released.set()
    await closing
    await starting
    assert open_files(CloudHome(tmp_path).identities_db) == 0
    await node.close()  # closed again without harm


@pytest.mark.asyncio
async def test_calls_that_wait_for_the_store_leave_threads_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its database does not answer: git and files of the same process go on."""
    node = IdentityNode(CloudConfig(folder=tmp_path))
    service = await node.start()
    held = Held(IdentityStore, "revocations", monkeypatch, lambda _: True)
    waiting = [asyncio.create_task(service.revocations(0)) for _ in range(50)]
    try:
        assert await asyncio.to_thread(held.begun.wait, LIMIT_S)
        async with asyncio.timeout(LIMIT_S / 2):
            assert await asyncio.gather(*(asyncio.to_thread(int, number) for number in range(20))) == list(range(20))
    finally:
        held.released.set()
    assert await asyncio.gather(*waiting) == [(0, {})] * 50
    await node.close()
