"""Devices, releases and check-ins of a cloud while faults happen to it, and counts of what was seen."""

import asyncio
import collections
import contextlib
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from tests.sim.device_session import session_headers
from tests.sim.shop_cloud import GATE, device_config, push
from tests.sim.visits import Visitor
from walle.base import plain
from walle.cloud import CloudHome, GatewayAddress
from walle.device import Device
from walle.pipeline.ingest.stores import open_uploads
from walle.protocol import PROFILE_HEADER, Profile
from walle.trust.audience import share

LIMIT_S = 400.0
NAMES = [f"d{number}" for number in range(4)]
NO_ANSWER = "no answer"
TOPIC = "shop/count"
_STEPS = [0.5, 1.0]


class CloudWalk:
    """Devices of a cloud at an address, and counts of what was seen. Its state and uploads are in a database."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.database = database
        self.home: CloudHome
        self.address: GatewayAddress
        self.token = ""
        self.ca: Path | None = None  # certificates that HTTPS trusts
        self.tls: ssl.SSLContext | bool = True
        self.devices: list[Device] = []
        self.visitors: list[Visitor] = []
        self.over_share: set[str] = set()
        self.check_ins: collections.Counter[str] = collections.Counter()
        self.longest_s = 0.0  # longest time without an answer to a check-in
        self._began_s = time.monotonic()

    def log(self, text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._began_s:5.1f} s: {text}\n")

    def found(self, home: CloudHome, address: GatewayAddress) -> None:
        """Note the cloud that was started."""
        self.home, self.address, self.token = home, address, home.admin_token
        if address.url.startswith("https:"):
            self.ca = home.authority_certificate
            self.tls = ssl.create_default_context(cafile=self.ca)

    async def play(self, undo: contextlib.AsyncExitStack) -> list[asyncio.Task[None]]:
        """Begin the devices and their users; return what the users do."""
        for name in NAMES:
            config = device_config(self.address, self.home, self.folder / name)
            self.devices.append(await undo.enter_async_context(Device(config)))
        self.visitors = [Visitor(device, None, 0.05) for device in self.devices]
        return [asyncio.create_task(one.run()) for one in self.visitors]

    async def call(self, method: str, path: str, **body: Any) -> Any:
        """Return the answer of the cloud, asked again while the process asked for is away."""
        headers = {"Authorization": f"Bearer {self.token}"}
        seen = ""
        try:
            async with (
                asyncio.timeout(LIMIT_S),
                httpx.AsyncClient(base_url=self.address.url, headers=headers, verify=self.tls) as http,
            ):
                while True:
                    try:
                        answer = await http.request(method, path, timeout=30.0, **body)
                        if answer.status_code != 503:
                            return answer.raise_for_status().json()
                        seen = answer.text
                    except httpx.TransportError as error:
                        seen = repr(error)
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{method} {path}: {seen}\n{self.actors()}") from error

    def actors(self) -> str:
        """Return what is known of the actors, for a failure of the test."""
        return ""

    async def release(self, version: str, hold_s: float = 0.0) -> str:
        """Begin the release of a new version, each of whose steps lasts `hold_s` seconds at least; return its id."""
        await push(self.address.url, self.token, self.folder / "work", version, {"note.txt": version}, ca=self.ca)
        body: dict[str, Any] = {
            "scenario": "shop",
            "task": "count",
            "version": version,
            "beta": ["d0"],
            "steps": _STEPS,
        }
        body["gate"] = {**GATE, "hold_s": hold_s}
        created = await self.call("POST", "/v1/releases", json=body)
        return str(created["id"])

    async def having(self, version: str) -> set[str]:
        """Return the devices that have the version."""
        summaries = [await device.summary() for device in self.devices]
        return {one.device_id for one in summaries if one.tasks.get(TOPIC) == version}

    async def follow(self, release: str, version: str, *states: str) -> None:
        """Return once the release is in one of the states; note devices that have it before their step."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                have = await self.having(version)  # read before the step: the devices with the version only become more
                shown = await self.call("GET", f"/v1/releases/{release}")
                assert shown["state"] not in ("paused", "failed", "rolled_back"), shown
                step = {"beta": 0.0, "full": 1.0}.get(shown["state"], float(shown.get("share", 1.0)))
                self.over_share |= {name for name in have - {"d0"} if share(release, name) >= step}
                if shown["state"] in states:
                    return
                await asyncio.sleep(0.1)

    async def all_have(self, version: str) -> bool:
        return await self.having(version) == set(NAMES)

    async def check_in(self) -> None:
        """Check in again and again as a device, each time on a new connection; count the answers."""
        headers = {
            **session_headers(self.home, "asking"),
            PROFILE_HEADER: Profile("asking", "10.1", {}, {}).to_header(),
        }
        answered_s = time.monotonic()
        while True:
            try:
                async with httpx.AsyncClient(base_url=self.address.url, timeout=30.0, verify=self.tls) as http:
                    self.check_ins[str((await http.post("/v1/checkin", headers=headers)).status_code)] += 1
                now_s = time.monotonic()
                self.longest_s = max(self.longest_s, round(now_s - answered_s, 2))
                answered_s = now_s
            except httpx.TransportError as error:
                self.check_ins[f"{NO_ANSWER}: {type(error).__name__}"] += 1
            await asyncio.sleep(0.05)

    def take_counts(self) -> dict[str, Any]:
        """Return the answers to check-ins since the last time, and the longest time without one."""
        found = {"check_ins": dict(self.check_ins), "longest_s": self.longest_s}
        self.check_ins, self.longest_s = collections.Counter(), 0.0
        return found

    async def produced(self) -> int:
        return sum([(await device.summary()).produced for device in self.devices])

    async def received(self) -> tuple[int, int]:
        """Return how many uploads the cloud has, and how many different ones."""
        async with open_uploads(self.database) as uploads:
            rows = await uploads.query(topic=TOPIC, after=0, limit=1_000_000)
        return len(rows), len({(one.device_id, plain.decode(one.payload)["page"]) for _, one in rows})

    async def settle(self) -> dict[str, Any]:
        """Return how many uploads the devices produced, how many the cloud has, and how many of those twice."""
        await asyncio.gather(*(device.settled() for device in self.devices))
        received, distinct = await self.received()
        return {"produced": await self.produced(), "received": received, "twice": received - distinct}
