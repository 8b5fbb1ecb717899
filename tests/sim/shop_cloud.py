"""A whole cloud in this process, with the engineer who pushes and releases, and devices with users who visit pages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.sim.git_host import address, git
from tests.sim.visits import EVENTS, TASK_CONFIG, TASK_MAIN, event_at
from walle.client.release_client import ReleaseClient, ReleaseJson
from walle.cloud import Cloud, CloudConfig, CloudHome, GatewayAddress
from walle.device import Device, DeviceConfig

# Decided after some five reports: these tests are about what follows from a verdict.
GATE = {"p_good": 0.05, "p_bad": 0.5, "alpha": 0.05, "beta": 0.05, "trial_runs": 1_000}
LIMIT_S = 60.0  # long enough for a machine that is busy with other work


@contextlib.contextmanager
def no_task_left(*, besides: Collection[str] = ()) -> Iterator[None]:
    """Fail if a task of this loop outlives the block in which it was made, except of the coroutines named `besides`."""
    before = asyncio.all_tasks()
    yield
    made = asyncio.all_tasks() - before - {asyncio.current_task()}
    left = {task for task in made if getattr(task.get_coro(), "__qualname__", None) not in besides}
    assert not left, f"left behind: {left}"


async def until(condition: Callable[[], bool | Awaitable[bool]], limit_s: float = LIMIT_S) -> None:
    """Return once `condition()` holds; it is asked again and again, for at most `limit_s`."""
    async with asyncio.timeout(limit_s):
        while True:
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(0.005)


def device_config(cloud_address: GatewayAddress, home: CloudHome, folder: Path, **changes: Any) -> DeviceConfig:
    """Return a device named as its folder, which reports often."""
    values: dict[str, Any] = {
        "device_id": folder.name,
        "folder": folder,
        "app_version": "10.1",
        "attributes": {"performance": "low"},
        "cloud_url": cloud_address.url,
        "tunnel_host": cloud_address.tunnel_host,
        "tunnel_port": cloud_address.tunnel_port,
        "ca_pem": cloud_address.ca_pem,
        "trusted_keys": home.trusted_keys,
        "enrolment_token": home.identities().make_token(folder.name, life_s=3600.0),
        "vms": 1,
        "report_interval_s": 0.05,
    }
    return DeviceConfig(**{**values, **changes})


async def push(
    url: str, token: str, work: Path, version: str, files: Mapping[str, str | bytes], *, ca: Path | None = None
) -> None:
    """Push `files` as version `version` of shop/count, with git, which trusts the certificates of `ca` alone."""

    remote = address(url, token, "shop")

    def do() -> None:
        if not work.exists():
            trust = ["-c", f"http.sslCAInfo={ca}"] if ca else []
            git(work.parent, "clone", "-q", *trust, remote, str(work))
            git(work, "checkout", "-q", "-b", "count")
        for name, text in {"task.toml": TASK_CONFIG, "main.py": TASK_MAIN, **files}.items():
            (work / name).parent.mkdir(exist_ok=True)
            (work / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        git(work, "add", "-A")
        git(work, "commit", "-q", "--allow-empty", "-m", version)
        git(work, "tag", f"count/{version}")
        git(work, "push", "-q", remote, "count", f"count/{version}")

    await asyncio.to_thread(do)


class ShopCloud:
    """A cloud with the scenario shop, and the devices that were joined to it."""

    def __init__(self, cloud: Cloud, releases: ReleaseClient, http: httpx.AsyncClient, work: Path) -> None:
        self.cloud = cloud
        self.releases = releases
        self.http = http
        self._work = work

    async def push(self, version: str, **files: str | bytes) -> None:
        """Push a version of shop/count; `main` and `config` stand for main.py and task.toml."""
        names = {"main": "main.py", "config": "task.toml"}
        tree = {names.get(name, name): text for name, text in files.items()}
        await push(self.cloud.address.url, self.cloud.home.admin_token, self._work, version, tree)

    async def release(self, version: str, **body: Any) -> str:
        """Create and start a release, and return its id."""
        options = {"beta": 1, "steps": [1.0], "gate": GATE, **body}
        return (await self.releases.create("shop", "count", version, **options))["id"]

    async def until(self, release_id: str, *states: str, users: "list[User] | None" = None) -> ReleaseJson:
        """Let users visit pages until the release is in one of the states; return it with its history."""
        async with asyncio.timeout(LIMIT_S):
            while (shown := await self.releases.get(release_id))["state"] not in states:
                for user in users or []:
                    await user.visit()
                await asyncio.sleep(0.005)
        return shown

    def device(self, folder: Path, **changes: Any) -> Device:
        return Device(device_config(self.cloud.address, self.cloud.home, folder, **changes))

    async def received(self) -> int:
        return (await self.cloud.gateway.stats()).received


class User:
    """Visits one page after the other on a device, checks in each time, and remembers which versions were active.

    `seen` has the active version after each event, and when `until` returned, without repeats in a row.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.visits = device.resume_from // len(EVENTS)
        self.seen: list[str | None] = []

    async def visit(self) -> None:
        await self.device.checkin()
        for part in range(len(EVENTS)):
            position = self.visits * len(EVENTS) + part
            await self.device.on_event(event_at(position), position)
            await self.device.stream.settle()
            self._note_version()
        self.visits += 1

    def _note_version(self) -> None:
        version = self.device.tasks.get("shop/count")
        if not self.seen or self.seen[-1] != version:
            self.seen.append(version)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Visit pages until `condition()`."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await self.visit()
                await asyncio.sleep(0.005)
        self._note_version()

    def has(self, version: str | None) -> bool:
        return self.device.tasks.get("shop/count") == version


@contextlib.asynccontextmanager
async def shop_cloud(folder: Path, *, outlived: bool = False, **config: Any) -> AsyncIterator[ShopCloud]:
    """Give a cloud in `folder`/cloud; no task is left after the block, unless a device of the block outlives it."""
    with contextlib.nullcontext() if outlived else no_task_left():
        async with Cloud(CloudConfig(folder=folder / "cloud", scenarios=("shop",), **config)) as cloud:
            headers = {"Authorization": f"Bearer {cloud.home.admin_token}"}
            async with (
                ReleaseClient(cloud.address.url, cloud.home.admin_token) as releases,
                httpx.AsyncClient(base_url=cloud.address.url, headers=headers) as http,
            ):
                yield ShopCloud(cloud, releases, http, folder / "work")
