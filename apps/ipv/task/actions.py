"""The part of the IPV feature on actions: how often add-favourite, add-cart and purchase were clicked (§7.1)."""

from fields import TEXT_CHARS

ACTIONS = ("add_favorite", "add_cart", "purchase")
PART = ("click", ("action", "tally", {"max_chars": TEXT_CHARS, "texts": ACTIONS}))


def values(events):
    """Return the values that Python computes for PART, by name: none, the plan counts the actions."""
    return {}
