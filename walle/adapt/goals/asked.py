"""Goals that devices ask for (§6): budgets as a text, such as `latency <= 8ms, memory <= 5MB`, in their profiles."""

from __future__ import annotations

import hashlib
import json

from walle.adapt.goals.goal import UNITS, Goal
from walle.adapt.goals.quantity import quantity
from walle.errors import ConfigError

MAX_CHARS = 200


def asked_goal(text: str, attribute: str) -> Goal:
    """Return the goal that a text asks for, of the devices whose `attribute` is that text; its name is made from it.

    Raises:
        ConfigError: the text is not a list of budgets. It comes from devices, which may send anything.
    """
    budgets: dict[str, float] = {}
    where = f"the goal {text[:MAX_CHARS]!r} of devices"
    for part in text[: MAX_CHARS + 1].split(","):
        name, sign, amount = (one.strip() for one in part.partition("<="))
        if len(text) > MAX_CHARS or not sign or name not in UNITS or name in budgets:
            raise ConfigError(
                f"{where} is not of the form latency <= 8ms, memory <= 5MB; budgets are {', '.join(UNITS)}"
            )
        budgets[name] = quantity(amount, UNITS[name], f"{where}, {name}")
    name = f"asked-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return Goal(name, budgets, rule=f"{attribute} == {json.dumps(text)}")
