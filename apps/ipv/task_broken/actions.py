"""The part of the IPV feature on actions: add-favourite, add-cart, purchase (§7.1), and their share of the clicks."""

from fields import TEXT_CHARS

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from walle.task import Events

ACTIONS = ("add_favorite", "add_cart", "purchase")
PART = ("actions",)


def values(events: "Events") -> dict[str, object]:
    """Return the value of PART: how often each action was clicked, and the share of the clicks that were actions.

    `events` are those of `ctx.events`.
    """
    clicked = events.named("click").texts("action", TEXT_CHARS)
    counts: dict[str, float] = {action: clicked.count(action) for action in ACTIONS}
    counts["share"] = sum(counts.values()) / len(clicked)
    return {"actions": counts}
