"""Search of the documentation site: what a person types leads to a page that says what to do."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.dashboard.chromium import Browser, chromium, chromium_path

WORDS = (
    "rollback", "trigger", "model", "token", "backup", "sign", "dashboard", "database", "cluster", "camera", "webhook",
    "rule",
)  # fmt: skip
_RESULTS = "[...document.querySelectorAll('ul.search li > a')].map((a) => a.getAttribute('href'))"

pytestmark = pytest.mark.skipif(chromium_path() is None, reason="chromium is not on PATH")


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as found:
        yield found


@pytest.mark.night
@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_a_page_that_says_what_to_do_is_among_the_first_three(site: Path, browser: Browser) -> None:
    ranks = {}
    for word in WORDS:
        async with browser.page() as page:
            await page.go(f"file://{site}/search.html?q={word}")
            await page.until("/found|did not match/.test(document.querySelector('#search-results').innerText)")
            found: list[str] = await page.run(_RESULTS)
        places = [number for number, href in enumerate(found, 1) if href.startswith(("how-to/", "tutorial"))]
        ranks[word] = (min(places, default=None), found[:3])
    assert {word: rank for word, rank in ranks.items() if rank[0] is None or rank[0] > 3} == {}
