"""Goals that devices ask for (§6): budgets as a text in their profiles, such as `latency <= 0.008, memory <= 5e+06`."""

from __future__ import annotations

import hashlib
import json

from walle.adapt.goals.goal import UNITS, Goal
from walle.adapt.goals.quantity import quantity
from walle.errors import ConfigError

MAX_CHARS = 200


def asked_text(text: str) -> str:
    """Return the one form of a list of budgets such as "latency <= 8ms, memory <= 5MB": sorted, in plain units.

    Raises:
        ConfigError: the text is not such a list.
    """
    budgets = _budgets(text)
    return ", ".join(f"{name} <= {budgets[name]:.6g}" for name in sorted(budgets))


def asked_goal(text: str, attribute: str) -> Goal:
    """Return the goal of the devices whose `attribute` is a text that `asked_text` returned; it is named after it.

    Raises:
        ConfigError: it is another text. Devices may send anything.
    """
    if text != asked_text(text):
        raise ConfigError(
            f"the goal {text[:MAX_CHARS]!r} of devices is not in the form that Device.ask_for_model sends"
        )
    name = f"asked-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return Goal(name, _budgets(text), rule=f"{attribute} == {json.dumps(text)}")


def _budgets(text: str) -> dict[str, float]:
    budgets: dict[str, float] = {}
    where = f"the goal {text[:MAX_CHARS]!r} of devices"
    for part in text[: MAX_CHARS + 1].split(","):
        name, sign, amount = (one.strip() for one in part.partition("<="))
        if len(text) > MAX_CHARS or not sign or name not in UNITS or name in budgets:
            known = ", ".join(UNITS)
            raise ConfigError(f"{where} is not of the form latency <= 8ms, memory <= 5MB; budgets are {known}")
        budgets[name] = quantity(amount, UNITS[name], f"{where}, {name}")
    return budgets
