"""Accuracy of models that are wider than the given one, on digits."""

from pathlib import Path

import pytest

from walle import adapt

_FILE = """
from benchmarks.mistify_parts import digits

train, test = digits.train, digits.test


def make():
    return digits.trained(3, 200)
"""
_GOALS = """
model = "net.py:make"
data = {train = "net.py:train", test = "net.py:test"}
training = {steps = 300, learning_rate = 0.002}
algorithm = {name = "morphnet"}
[goals.loose]
operations = {from = "45k", to = "120k", steps = 3}
"""


@pytest.mark.night
def test_wider_models_are_more_accurate_than_the_given_one(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(_FILE)
    (tmp_path / "goals.toml").write_text(_GOALS)
    (outcome,) = adapt.run(tmp_path / "goals.toml", tmp_path / "out")
    assert outcome.whole["operations"] < 36e3
    given = outcome.whole["accuracy"]
    found = [one.costs["accuracy"] for one in outcome.fitted]
    assert min(found) >= given - 0.005
    assert sum(found) / len(found) > given
