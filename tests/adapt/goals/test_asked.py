"""Goals as texts that devices send: read, or refused with the form that is expected."""

import pytest

from walle.adapt.goals.asked import asked_goal, asked_text
from walle.errors import ConfigError


def test_budgets_are_read_and_the_rule_is_for_devices_that_ask() -> None:
    text = asked_text(" memory<=5MB,latency <= 8ms")
    assert text == asked_text("latency <= 0.008, memory <= 5 MB") == "latency <= 0.008, memory <= 5e+06"
    goal = asked_goal(text, "model_goal")
    assert goal.budgets == {"latency": 8e-3, "memory": 5e6}
    assert goal.rule == 'model_goal == "latency <= 0.008, memory <= 5e+06"'
    assert goal.name == asked_goal(text, "other").name
    assert goal.name != asked_goal("latency <= 0.008", "model_goal").name


@pytest.mark.parametrize(
    "text",
    ["", "fast", "latency", "latency < 3ms", "speed <= 3", "latency <= 3ms, latency <= 4ms", "latency <= 0",
     "memory <= -1B", "latency <= 3ms,", 'x" || true <= 1', "latency <= 3ms" + ", " * 200],
)  # fmt: skip
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"the goal .* of devices"):
        asked_goal(text, "model_goal")
