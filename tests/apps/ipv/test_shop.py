from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from apps.ipv import catalogue, shop


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(shop.create_shop())
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
        yield client


@pytest.mark.asyncio
async def test_an_item_is_found_by_its_id(client: httpx.AsyncClient) -> None:
    item = catalogue.item(12)
    response = await client.get(f"/shop/items/{item.item_id}")
    assert response.json() == item.to_json()


@pytest.mark.asyncio
@pytest.mark.parametrize("item_id", ["1", "x", "9" * 5000, "%2e%2e"])
async def test_an_unknown_item_is_not_found(client: httpx.AsyncClient, item_id: str) -> None:
    response = await client.get(f"/shop/items/{item_id}")
    assert response.status_code == 404
    assert len(response.content) < 200


@pytest.mark.asyncio
async def test_search_pages_through_what_matches(client: httpx.AsyncClient) -> None:
    first = (await client.get("/shop/search", params={"q": "tea"})).json()
    second = (await client.get("/shop/search", params={"q": "tea", "page": 1})).json()
    assert first["total"] == catalogue.ITEMS // 8
    assert {item["category"] for item in first["items"] + second["items"]} == {"tea"}
    assert len({item["item_id"] for item in first["items"] + second["items"]}) == 2 * shop.PAGE_SIZE
    assert (await client.get("/shop/search", params={"q": "nothing"})).json() == {"total": 0, "items": []}
    assert (await client.get("/shop/search", params={"page": -1})).status_code == 422


@pytest.mark.asyncio
async def test_a_cart_adds_up(client: httpx.AsyncClient) -> None:
    one, two = catalogue.item(1), catalogue.item(2)
    for item, quantity in ((one, 1), (two, 2), (one, 3)):
        line = {"shopper": "ann", "item_id": item.item_id, "quantity": quantity}
        answer = (await client.post("/shop/cart", json=line)).json()
    assert answer == {"lines": 2, "quantity": 6, "total_cents": 4 * one.price_cents + 2 * two.price_cents}
    assert (await client.get("/shop/cart/ann")).json() == {one.item_id: 4, two.item_id: 2}
    assert (await client.get("/shop/cart/nobody")).json() == {}
    other = (await client.post("/shop/cart", json={"shopper": "bob", "item_id": one.item_id})).json()
    assert other["quantity"] == 1


@pytest.mark.asyncio
async def test_wrong_lines_are_refused(client: httpx.AsyncClient) -> None:
    item_id = catalogue.item(1).item_id
    assert (await client.post("/shop/cart", json={"shopper": "ann", "item_id": "1"})).status_code == 404
    for line in ({"shopper": "", "item_id": item_id}, {"shopper": "ann", "item_id": item_id, "quantity": 0}, {}):
        assert (await client.post("/shop/cart", json=line)).status_code == 422


@pytest.mark.asyncio
async def test_carts_have_limits(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop, "MAX_LINES", 2)
    monkeypatch.setattr(shop, "MAX_CARTS", 2)
    lines = [{"shopper": "ann", "item_id": catalogue.item(number).item_id} for number in range(3)]
    assert [(await client.post("/shop/cart", json=line)).status_code for line in lines] == [200, 200, 409]
    for shopper in ("bob", "cid"):
        await client.post("/shop/cart", json=lines[0] | {"shopper": shopper})
    assert (await client.post("/shop/cart", json=lines[0])).json()["lines"] == 1  # ann's cart was the oldest
