"""Pictures of the dashboard for docs: python -m tests.dashboard.pictures [FOLDER] (needs chromium on PATH).

It plays releases over 240 devices on a cloud in this process, and writes docs/img/dashboard/*.png.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.dashboard.chromium import chromium
from tests.dashboard.fleet import play
from tests.sim.shop_cloud import shop_cloud
from walle.access.access import Role
from walle.cloud.dashboard.sessions import COOKIE

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
            pages = {
                "rolled-back": f"/releases/{ids['bad']}",
                "targeting": "/targeting?scenario=shop&rule=&app_version=%3E%3D10.1&device=phone-0001",
            }
            async with browser.page(size=WIDE) as page:
                url = shop.cloud.address.url
                await page.call("Network.setCookie", name=COOKIE, value=begun[1], url=f"{url}/dashboard", httpOnly=True)
                for name, path in pages.items():
                    await page.go(f"{url}/dashboard{path}")
                    await page.until(
                        "[...document.querySelectorAll('[data-chart]')].every((one) => one.querySelector('canvas'))"
                    )
                    file = folder / f"{name}.png"
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
