"""The part of the IPV feature on actions: how often add-favourite, add-cart and purchase were clicked (§7.1)."""

from fields import TEXT_CHARS

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from walle.task import Events

ACTIONS = ("add_favorite", "add_cart", "purchase")
PART = ("click", ("action", "tally", {"max_chars": TEXT_CHARS, "texts": ACTIONS}))


def values(events: "Events") -> dict[str, object]:
    """Return the values that Python computes for PART, by name: none, the plan counts the actions."""
    return {}
