"""Figures of the dashboard: bytes of its files, and the first paint with 10,000 releases and 100,000 devices.

python -m tests.dashboard.first_paint (needs chromium on PATH); printed as JSON.
"""

import asyncio
import contextlib
import dataclasses
import gzip
import json
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.dashboard.chromium import Browser, chromium
from tests.sim.shop_cloud import ShopCloud, shop_cloud
from walle.cloud.dashboard.pages import Pages
from walle.cloud.dashboard.sessions import COOKIE
from walle.deploy.releases.release import ReleaseState

RELEASES, DEVICES, TIMES = 10_000, 100_000, 10


def sizes() -> dict[str, int]:
    """Return the bytes of each static file as gzip -9 makes them, and of all."""
    found = {name: len(gzip.compress(file.data, 9)) for name, file in Pages().static.items()}
    return {**found, "all": sum(found.values())}


async def fill(shop: ShopCloud) -> None:
    """Put releases and devices into a cloud, which were never there."""
    await shop.push("v1")
    first = await shop.cloud.releases.get((await shop.releases.create("shop", "count", "v1", start=False))["id"])
    states = list(ReleaseState)
    for number in range(2, RELEASES + 1):
        name = f"count-v1-{number}"
        state = states[number % len(states)]
        made = dataclasses.replace(first, id=name, number=number, state=state, reason=f"reason of {name}")
        shop.cloud.releases._releases[name] = made
    now_s = time.time()
    rows = [
        (
            f"phone-{n:06}",
            b"",
            f"10.{n % 7}",
            json.dumps({"os": ("android", "ios")[n % 2], "model": f"m{n % 40}"}),
            now_s,
        )
        for n in range(DEVICES)
    ]
    with contextlib.closing(sqlite3.connect(shop.cloud.home.devices_db)) as db, db:
        sql = "INSERT INTO devices VALUES (?, ?, ?, ?, 0, ?, NULL)"
        db.executemany(sql, rows)
        tasks = [(row[0], "shop/count", f"v{n % 5}", f"v{n % 5}", 20, n % 2) for n, row in enumerate(rows)]
        db.executemany("INSERT INTO tasks VALUES (?, ?, ?, ?, 'run', '', 0, ?, ?)", tasks)


async def paint_ms(browser: Browser, url: str, cookie: str, *, is_cold: bool) -> float:
    """Return the median first contentful paint of a page, in a new browser context or with its files cached."""
    found = []
    async with browser.page() as page:
        await page.call("Network.setCookie", name=COOKIE, value=cookie, url=url.split("?", maxsplit=1)[0])
        if not is_cold:
            await page.go(url)
        for _ in range(TIMES):
            if is_cold:
                await page.call("Network.clearBrowserCache")
            await page.go("data:text/html,x")
            await page.go(url)
            await page.until("performance.getEntriesByName('first-contentful-paint').length")
            found.append(await page.run("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    return float(round(statistics.median(found), 1))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with shop_cloud(Path(folder), outlived=True) as shop, chromium() as browser:
            await fill(shop)
            begun = shop.cloud.gateway._callers.sessions.begin(shop.cloud.home.admin_token)
            assert begun is not None
            figures: dict[str, Any] = {"gzipped_bytes": sizes(), "first_paint_ms": {}}
            paths = ["", "?show=paused", "/releases/count-v1-1", "/devices", "/devices?by=model", "/tasks/shop/count"]
            for path in paths:
                url = f"{shop.cloud.address.url}/dashboard{path}"
                cold = await paint_ms(browser, url, begun[1], is_cold=True)
                warm = await paint_ms(browser, url, begun[1], is_cold=False)
                figures["first_paint_ms"][path or "/"] = {"cold": cold, "warm": warm}
    print(json.dumps(figures, indent=1))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
