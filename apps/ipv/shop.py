"""The shop's API, as any shop app has one: items, search, carts. It does not know about machine-learning tasks."""

import collections
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Path, Query
from pydantic import BaseModel, Field

from apps.ipv import catalogue

MAX_CARTS = 10_000  # the least recently changed cart is dropped first
MAX_LINES = 100
PAGE_SIZE = 20


class CartLine(BaseModel):
    """A line of a cart, as a shopper adds it."""

    shopper: str = Field(min_length=1, max_length=200)
    item_id: str = Field(max_length=32)
    quantity: int = Field(default=1, ge=1, le=99)


def create_shop() -> FastAPI:
    """Return the shop as an ASGI app. Carts live in its memory, at most MAX_CARTS of MAX_LINES items each."""
    app = FastAPI(title="Shop")
    carts: collections.OrderedDict[str, collections.Counter[str]] = collections.OrderedDict()

    @app.get("/shop/items/{item_id}")
    async def get_item(item_id: str) -> dict[str, Any]:
        return _item(item_id).to_json()

    @app.get("/shop/search")
    async def search(
        q: Annotated[str, Query(max_length=200)] = "", page: Annotated[int, Query(ge=0)] = 0
    ) -> dict[str, Any]:
        """Return items whose category or title starts with `q`, every item if it is empty; `page` counts from 0."""
        matching = [item for item in _ALL_ITEMS if item.category.startswith(q) or item.title.startswith(q)]
        shown = matching[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]
        return {"total": len(matching), "items": [item.to_json() for item in shown]}

    @app.post("/shop/cart")
    async def add_to_cart(line: CartLine) -> dict[str, Any]:
        item = _item(line.item_id)
        cart = carts.setdefault(line.shopper, collections.Counter())
        if item.item_id not in cart and len(cart) == MAX_LINES:
            raise HTTPException(409, f"a cart holds {MAX_LINES} different items; take one out first")
        cart[item.item_id] += line.quantity
        carts.move_to_end(line.shopper)
        if len(carts) > MAX_CARTS:
            carts.popitem(last=False)
        total = sum(_item(item_id).price_cents * quantity for item_id, quantity in cart.items())
        return {"lines": len(cart), "quantity": cart.total(), "total_cents": total}

    @app.get("/shop/cart/{shopper}")
    async def get_cart(shopper: Annotated[str, Path(max_length=200)]) -> dict[str, int]:
        """Return the quantity of each item in a shopper's cart, by item id; empty without a cart."""
        return dict(carts.get(shopper, {}))

    return app


_ALL_ITEMS = tuple(catalogue.item(number) for number in range(catalogue.ITEMS))


def _item(item_id: str) -> catalogue.Item:
    item = catalogue.find(item_id)
    if item is None:
        raise HTTPException(404, f"the shop has no item {item_id[:32]!r}")
    return item
