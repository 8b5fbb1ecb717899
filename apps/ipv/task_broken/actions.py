"""The actions that the IPV feature is about: add-favourite, add-cart, purchase (§7.1), and what the cart gained."""

from fields import text

ACTIONS = ("add_favorite", "add_cart", "purchase")


def action_counts(clicks):
    """Return how often each action was clicked on the page, and the cents added to the cart.

    `clicks` are the contents of its click events.
    """
    counts = dict.fromkeys(ACTIONS, 0)
    counts["cart_cents"] = 0
    for click in clicks:
        action = text(click.get("action"))
        if action in counts:
            counts[action] += 1
        if action == "add_cart":
            counts["cart_cents"] += click["price_cents"] * click["quantity"]
    return counts
