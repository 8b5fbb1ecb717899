"""The actions of the IPV feature: add-favourite, add-cart, purchase (§7.1), and their share of the clicks."""

ACTIONS = ("add_favorite", "add_cart", "purchase")


def action_counts(actions):
    """Return how often each action was clicked on the page, and the share of the clicks that were actions.

    `actions` are those of its click events, as text.
    """
    counts = {action: actions.count(action) for action in ACTIONS}
    counts["share"] = sum(counts.values()) / len(actions)
    return counts
