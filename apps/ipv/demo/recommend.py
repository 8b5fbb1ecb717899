"""The cloud's consumer of encodings in the demo: items ranked for some users, joined with the carts of the shop."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from apps.ipv import catalogue
from apps.ipv.demo.record import Recommendation
from apps.ipv.ranking import EncodedVisit, fitted_ranking

SHOWN_USERS = 6
_LATEST = 3  # visits of a user that the ranking looks at
_ITEMS = 5


async def fetch_carts(shop_url: str, users: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return each user's cart from the shop: quantities by item id."""
    async with httpx.AsyncClient(base_url=shop_url, timeout=10.0) as client:
        answers = await asyncio.gather(*(client.get(f"/shop/cart/{user}") for user in users))
    return {user: answer.raise_for_status().json() for user, answer in zip(users, answers, strict=True)}


def encoded_visit(user: str, output: Mapping[str, Any], cart: Mapping[str, int]) -> EncodedVisit:
    """Return an upload of the task, joined with the user's cart: `carted` has the page's item if it is there."""
    item_id = str(output.get("item_id", ""))
    return EncodedVisit(user, output["enter_ms"], output["encoding"], (item_id,) if item_id in cart else ())


def recommend(visits: Sequence[EncodedVisit], carts: Mapping[str, Mapping[str, int]]) -> list[Recommendation]:
    """Return the ranking for the first SHOWN_USERS users; items of the user's own cart are left out."""
    ranking = fitted_ranking(visits)
    found = []
    for user, cart in list(carts.items())[:SHOWN_USERS]:
        theirs = sorted((visit for visit in visits if visit.user == user), key=lambda visit: visit.enter_ms)
        ranked = ranking.rank(user, [visit.encoding for visit in theirs[-_LATEST:]], _ITEMS + len(cart))
        items = [(_title(item), score) for item, score in ranked if item not in cart][:_ITEMS]
        found.append(Recommendation(user=user, visits=len(theirs), cart=[_title(item) for item in cart], items=items))
    return found


def _title(item_id: str) -> str:
    item = catalogue.find(item_id)
    return item_id if item is None else item.title
