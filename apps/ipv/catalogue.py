"""The shop's catalogue: fixed items that `shop.py` serves and `generator.py` clicks.

Item `n` is always the same; nothing is stored.
"""

import dataclasses
from typing import Any

ITEMS = 20_000
_FIRST_ID = 600_000_000_000
_STRIDE = 7_919  # ids of real shops have gaps
_CATEGORIES = ("tea", "coffee", "lamps", "shoes", "phones", "toys", "books", "garden")
_ADJECTIVES = ("small", "large", "blue", "green", "quiet", "bright", "plain", "folding", "classic", "light")


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """One item on sale. `price_cents` is the price of one piece."""

    item_id: str
    title: str
    category: str
    price_cents: int

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def item(number: int) -> Item:
    """Return item `number`, 0 <= number < ITEMS.

    Raises:
        IndexError: the number is outside the catalogue.
    """
    if not 0 <= number < ITEMS:
        raise IndexError(f"item {number}: the catalogue holds items 0 to {ITEMS - 1}")
    category = _CATEGORIES[number % len(_CATEGORIES)]
    adjective = _ADJECTIVES[number // len(_CATEGORIES) % len(_ADJECTIVES)]
    return Item(
        str(_FIRST_ID + number * _STRIDE), f"{adjective} {category} no. {number}", category, 199 + number * 37 % 49_800
    )


def find(item_id: str) -> Item | None:
    """Return the item with this id, or None if there is none."""
    if not (item_id.isascii() and item_id.isdigit() and len(item_id) == len(str(_FIRST_ID))):
        return None
    number, rest = divmod(int(item_id) - _FIRST_ID, _STRIDE)
    return item(number) if rest == 0 and 0 <= number < ITEMS else None
