"""The actions that the IPV feature counts: add-favourite, add-cart, purchase (§7.1)."""

from fields import text

ACTIONS = ("add_favorite", "add_cart", "purchase")


def action_counts(clicks):
    """Return how often each action was clicked on the page. `clicks` are the contents of its click events."""
    counts = dict.fromkeys(ACTIONS, 0)
    for click in clicks:
        action = text(click.get("action"))
        if action in counts:
            counts[action] += 1
    return counts
