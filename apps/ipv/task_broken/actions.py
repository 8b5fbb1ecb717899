"""The actions of the IPV feature: add-favourite, add-cart, purchase (§7.1), and their share of the clicks."""

from fields import text

ACTIONS = ("add_favorite", "add_cart", "purchase")


def action_counts(clicks):
    """Return how often each action was clicked on the page, and the share of the clicks that were actions.

    `clicks` are the contents of its click events.
    """
    counts = dict.fromkeys(ACTIONS, 0)
    for click in clicks:
        action = text(click.get("action"))
        if action in counts:
            counts[action] += 1
    counts["share"] = sum(counts.values()) / len(clicks)
    return counts
