"""A person at the dashboard of a cloud, without a browser: a session, its pages and its forms."""

import re
from html.parser import HTMLParser
from typing import Any, Self

import httpx

from tests.sim.shop_cloud import LIMIT_S, ShopCloud
from walle.access.access import Role


class Visitor:
    """A person with a token and a browser's cookies. `http` follows no redirect."""

    def __init__(self, shop: ShopCloud, token: str) -> None:
        self.shop = shop
        self.token = token
        self.http = httpx.AsyncClient(base_url=shop.cloud.address.url, timeout=LIMIT_S)

    async def __aenter__(self) -> Self:
        answer = await log_in(self.http, self.token)
        assert answer.status_code == 303, answer.text
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def get(self, path: str, status: int = 200) -> str:
        answer = await self.http.get(path)
        assert answer.status_code == status, (answer.status_code, answer.text[:2000])
        return answer.text

    async def press(self, path: str, form_path: str, **fields: str) -> httpx.Response:
        """Send the form for `path` that the page at `form_path` has, with some of its fields filled in."""
        form = forms(await self.get(form_path))[path]
        return await self.http.post(path, data={**form, **fields})

    async def act(self, release_id: str, verb: str, **fields: str) -> httpx.Response:
        address = f"/dashboard/releases/{release_id}"
        return await self.press(f"{address}/{verb}", f"{address}/confirm/{verb}", **fields)


async def log_in(http: httpx.AsyncClient, token: str, **fields: str) -> httpx.Response:
    """Send the form of the login's page with a token."""
    page = await http.get("/dashboard/login?again=1")
    return await http.post("/dashboard/login", data={**forms(page.text)["/dashboard/login"], "token": token, **fields})


def visitor(shop: ShopCloud, name: str, roles: dict[str, Role] | None = None) -> Visitor:
    """Return a visitor with a token of these roles; without, with the token of the cloud's admin."""
    if roles is None:
        return Visitor(shop, shop.cloud.home.admin_token)
    return Visitor(shop, shop.cloud.gateway._home.access.add(name, roles))


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, dict[str, str]] = {}
        self._fields: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given: dict[str, Any] = dict(attrs)
        if tag == "form":
            self._fields = self.found[given["action"]] = {}
        elif tag == "input" and "name" in given:
            self._fields[given["name"]] = given.get("value", "")


def forms(page: str) -> dict[str, dict[str, str]]:
    """Return the fields of each form of a page, by its address."""
    parser = _Forms()
    parser.feed(page)
    return parser.found


def words_of(page: str) -> str:
    """Return the text of a page, without tags, in one line."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())
