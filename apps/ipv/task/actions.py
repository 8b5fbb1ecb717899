"""The actions that the IPV feature counts: add-favourite, add-cart, purchase (§7.1)."""

ACTIONS = ("add_favorite", "add_cart", "purchase")


def action_counts(actions):
    """Return how often each action was clicked on the page. `actions` are those of its click events, as text."""
    return {action: actions.count(action) for action in ACTIONS}
