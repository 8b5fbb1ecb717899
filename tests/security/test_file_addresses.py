"""Addresses of shared files: signed, expiring, with keys that rotate, and still good for caches."""

import asyncio
import functools
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.sim.device_session import session_headers
from tests.sim.release_world import ReleaseWorld
from tests.sim.shop_cloud import User, shop_cloud
from walle.base.clock import ManualClock
from walle.deploy.releases.journal import Journal
from walle.deploy.releases.request import ReleaseRequest
from walle.deploy.shared_files.cdn import cdn_app
from walle.deploy.shared_files.file_address import FileAddresses, signed_files
from walle.deploy.shared_files.folder_store import FolderStore
from walle.errors import ConfigError
from walle.protocol import Directive

DAY_S = 86_400
CONTENT = b"0123456789" * 100


class Served:
    """A store of one file behind signed addresses, at a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.path = folder / "files.json"
        store = FolderStore(folder / "files")
        self.sha256 = store.put(CONTENT)
        self.signing = self.process()
        app = signed_files(cdn_app(store), self.process())
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app, root_path="/cdn"), base_url="http://cloud")

    def process(self) -> FileAddresses:
        """Return the addresses as another process of the cloud has them."""
        return FileAddresses(self.path, clock=self.clock)

    async def status(self, prefix: str) -> int:
        return (await self.http.get(f"{prefix}/{self.sha256}")).status_code


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    served = Served(tmp_path)
    async with served.http:
        yield served


@pytest.mark.asyncio
async def test_a_signed_address_gives_the_file_with_ranges_and_tags(served: Served) -> None:
    url = f"{served.signing.prefix()}/{served.sha256}"
    answer = await served.http.get(url)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    etag = answer.headers["etag"]
    assert (await served.http.get(url, headers={"If-None-Match": etag})).status_code == 304
    part = await served.http.get(url, headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, b"56789")
    head = await served.http.head(url)
    assert (head.status_code, head.headers["content-length"]) == (200, "1000")
    assert (await served.http.get(f"{served.signing.prefix()}/{'0' * 64}")).status_code == 404


@pytest.mark.asyncio
async def test_an_address_is_the_same_all_day_and_expires_after_two_days_or_more(served: Served) -> None:
    await served.clock.advance(DAY_S - served.clock.time() % DAY_S)
    prefix = served.signing.prefix()
    await served.clock.advance(DAY_S - 1)
    assert served.signing.prefix() == prefix  # the prefix stays: a directive need not be signed again
    await served.clock.advance(1)
    assert served.signing.prefix() != prefix
    await served.clock.advance(2 * DAY_S - 1)
    assert await served.status(prefix) == 200
    await served.clock.advance(1)
    answer = await served.http.get(f"{prefix}/{served.sha256}")
    assert (answer.status_code, answer.headers["cache-control"]) == (403, "no-store")
    assert answer.json() == {"error": "this address expired 0 s ago; check in for another", "type": "FileAddressError"}


@pytest.mark.asyncio
async def test_an_unsigned_address_is_refused(served: Served) -> None:
    prefix = served.signing.prefix()
    permission = prefix.rpartition("/")[2]
    expires, key, mac = permission.split("-", 2)
    later = f"{int(expires, 16) + 1:x}"
    forged = [f"{later}-{key}-{mac}", f"{expires}-{'0' * 8}-{mac}", f"{expires}-{key}-{'A' * 22}", f"{permission}x"]
    forged += [permission[:-1], permission.upper(), f"-{key}-{mac}", f"{expires}-{key}-", "x" * 5000, "..", "%2e%2e"]
    for text in forged:
        assert await served.status(f"/cdn/{text}") == 403, text
    for path in (f"/cdn/{served.sha256}", "/cdn/", f"{prefix}/../{served.sha256}/x", f"{prefix}/x/{served.sha256}"):
        assert (await served.http.get(path)).status_code == 403
    assert (await served.http.get(f"{prefix}/")).status_code == 404
    other = FileAddresses(served.path.with_name("other.json"), clock=served.clock)
    assert await served.status(other.prefix()) == 403
    assert await served.status(prefix) == 200


@pytest.mark.asyncio
async def test_a_cache_can_ask_whether_a_permission_is_valid(served: Served) -> None:
    prefix = served.signing.prefix()
    assert (await served.http.get(prefix)).status_code == 204
    assert (await served.http.get(f"{prefix}x")).status_code == 403


@pytest.mark.asyncio
async def test_keys_rotate_and_old_ones_are_accepted_until_what_they_signed_has_expired(served: Served) -> None:
    async def keys() -> list[str]:
        return [one["id"] for one in json.loads(await asyncio.to_thread(served.path.read_bytes))["keys"]]

    first = served.signing.prefix()
    (first_key,) = await keys()
    await served.clock.advance(30 * DAY_S - 1)
    last_of_first = served.signing.prefix()
    assert last_of_first.split("-")[1] == first_key
    await served.clock.advance(1)
    second = served.signing.prefix()
    assert second.split("-")[1] != first_key
    assert served.process().prefix() == second  # another process signs with the same key
    for prefix, status in ((first, 403), (last_of_first, 200), (second, 200)):
        assert await served.status(prefix) == status  # the server reads the new key by itself
    await served.clock.advance(30 * DAY_S)
    served.signing.prefix()
    assert first_key not in await keys()
    assert len(await keys()) == 2
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o600


def test_a_removed_file_of_keys_ends_all_addresses_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    clock = ManualClock()
    signing, checking = (FileAddresses(tmp_path / "k", clock=clock) for _ in range(2))
    old = signing.prefix()
    assert checking.refusal(old.removeprefix("/cdn/")) == ""
    (tmp_path / "k").unlink()
    new = signing.prefix()
    assert checking.refusal(new.removeprefix("/cdn/")) == ""
    assert "not signed by this cloud" in checking.refusal(old.removeprefix("/cdn/"))
    for text in ("{", "{}", '{"keys": [{"id": 1}]}'):
        (tmp_path / "k").write_text(text)
        with pytest.raises(ConfigError, match="remove it"):
            FileAddresses(tmp_path / "k")


@pytest.mark.asyncio
async def test_devices_of_a_cloud_pull_by_the_addresses_of_their_directives(tmp_path: Path) -> None:
    async with shop_cloud(tmp_path) as shop, shop.device(tmp_path / "d0") as device:
        await shop.push("v1")
        await shop.release("v1", beta=["d0"])
        user = User(device)
        await user.until(lambda: user.has("v1"))
        (blob, *_) = (path.name for path in (tmp_path / "cloud" / "files").glob("*/*"))
        for headers in ({}, session_headers(shop.cloud.home, "d0")):
            assert (await shop.http.get(f"/cdn/{blob}", headers=headers)).status_code == 403
        prefix = shop.cloud.home.file_addresses.prefix()
        assert (await shop.http.get(f"{prefix}/{blob}", headers={"Authorization": ""})).status_code == 200


@pytest.mark.asyncio
async def test_directives_of_an_earlier_address_are_signed_again_at_start(tmp_path: Path) -> None:
    """A cloud that is upgraded has directives without a permission, and one whose keys were removed, dead ones."""
    clock = ManualClock()
    directives = list[Directive]()
    async with Journal.in_file(tmp_path / "journal.sqlite") as journal:
        for url in ("/cdn", "/cdn/permission", "/cdn/permission"):
            world = ReleaseWorld(tmp_path, clock, journal)
            world.service._table._cdn_url = functools.partial(str, url)
            async with world.service:
                if not directives:
                    request = ReleaseRequest(scenario="shop", task="ipv", version="v1", beta=("d1",))
                    release = await world.service.create(request)
                    await world.reached(release.id, "beta")
                await world.service.settled()
                (candidate,) = world.answerer.table.rows["shop/ipv"].candidates
                directives.append(candidate.directive)
    first, second, third = directives
    assert (first.url, second.url) == ("/cdn", "/cdn/permission")
    assert second.serial > first.serial
    assert third == second
