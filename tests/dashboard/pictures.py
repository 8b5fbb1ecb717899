"""Pictures of the dashboard for docs: python -m tests.dashboard.pictures [FOLDER] (needs chromium on PATH).

It plays releases over 240 devices on a cloud in this process, and writes docs/img/dashboard/*.png.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from tests.dashboard.chromium import PHONE, chromium
from tests.dashboard.fleet import TASK, play
from tests.sim.shop_cloud import shop_cloud
from walle.access.access import Role
from walle.base import plain
from walle.cloud.dashboard.sessions import COOKIE
from walle.pipeline.tunnel.received import Received

FOLDER = Path(__file__).parents[2] / "docs/img/dashboard"
WIDE = (1120, 800)
_COLORS = 64


async def draw(folder: Path) -> None:
    """Write the pictures into a folder."""
    with tempfile.TemporaryDirectory() as work:
        async with shop_cloud(Path(work), outlived=True) as shop, chromium() as browser:
            ids = await play(shop)
            gateway = shop.cloud.gateway
            token = gateway._home.access.add("anna", {"*": Role.ADMIN})
            begun = gateway._callers.sessions.begin(token)
            assert begun is not None
            for number in range(1, 61):
                now_ms = int(time.time() * 1000)
                payload = plain.encode({"page_id": "home", "clicks": number % 7, "dwell_ms": 137 * number})
                feature = Received(f"phone-000{number % 3}", "e", number, TASK, payload, now_ms - 12, now_ms)
                await gateway._uploads.store.accept([feature])
                families = [one for part in gateway._parts.values() for one in part.metrics()]
                gateway._series.note(time.time() - 610 + 10 * number, families)  # spread over part of an hour
            pages = {
                "releases": "",
                "rolled-back": f"/releases/{ids['bad']}",
                "paused": f"/releases/{ids['paused']}",
                "running": f"/releases/{ids['running']}",
                "confirm": f"/releases/{ids['running']}/confirm/rollback",
                "devices": "/devices?by=model",
                "device": "/device/phone-0001",
                "targeting": "/targeting?scenario=shop&rule=&app_version=%3E%3D10.1&device=phone-0001",
                "task": f"/tasks/{TASK}",
                "features": "/features",
                "metrics": "/metrics",
            }
            for suffix, size, dark in (("", WIDE, False), ("-phone", PHONE, True)):
                async with browser.page(size=size, dark=dark) as page:
                    url = shop.cloud.address.url
                    await page.call(
                        "Network.setCookie", name=COOKIE, value=begun[1], url=f"{url}/dashboard", httpOnly=True
                    )
                    for name, path in pages.items():
                        await page.go(f"{url}/dashboard{path}")
                        await page.until(
                            "[...document.querySelectorAll('[data-chart]')].every((one) => one.querySelector('canvas'))"
                        )
                        file = folder / f"{name}{suffix}.png"
                        await page.screenshot(file, whole=True)
                        shrink(file)
                    if page.complaints:
                        raise SystemExit(f"the browser complained: {page.complaints}")


def shrink(path: Path) -> None:
    """Write a picture again with few colors."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(_COLORS)
    small.save(path, optimize=True)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(draw(target))
