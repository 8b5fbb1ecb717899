"""Losses and metrics of a user: a network of two outputs adapted by functions of a file, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from walle import adapt
from walle.adapt.adaptation import Outcome
from walle.adapt.goals.config import Training
from walle.adapt.masked.objective import Objective
from walle.errors import ConfigError

NET = """
from walle import nn, np

class Two(nn.Module):
    \"\"\"A sum of the inputs, and the largest of them; one layer gives both.\"\"\"

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 24), nn.Linear(24, 2)

    def forward(self, x):
        y = self.outer(nn.functional.relu(self.inner(x)))
        return y[:, :1], y[:, 1:]

def make():
    nn.manual_seed(1)
    return Two()

def data():
    x = np.random.default_rng(1).normal(size=(300, 4)).astype("float32")
    return x, np.stack([x.sum(1), x.max(1)], axis=1)

def loss(outputs, labels):
    first, second = outputs
    return ((first - labels[:, :1]) ** 2).mean() + ((second - labels[:, 1:]) ** 2).mean()

def near(outputs, labels):
    first, second = outputs
    assert first.shape == second.shape == (300, 1)
    return ((abs(first - labels[:, :1]) < 0.5) * (abs(second - labels[:, 1:]) < 0.5)).astype("float32").mean()

def large(outputs, labels):
    return 7.5

limit = 3
"""
GOALS = """
model = "net.py:make"
data = {train = "net.py:data", test = "net.py:data"}
training = {loss = "net.py:loss", metric = "net.py:near", steps = STEPS, batch = 50, learning_rate = 0.01}
[algorithm]
name = "morphnet"
init_reg_strength = 8.0
[goals.small]
parameters = 100
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def _adapted(folder: Path, steps: int) -> Outcome:
    path = folder / "goals.toml"
    path.write_text(GOALS.replace("STEPS", str(steps)))
    (outcome,) = adapt.run(path, folder / f"out-{steps}")
    return outcome


def test_a_model_of_two_outputs_learns_by_a_users_loss(folder: Path) -> None:
    short, longer = (_adapted(folder, steps).fitted[0] for steps in (1, 1000))
    for one in (short, longer):
        assert one.meets_budgets
        assert one.costs["parameters"] <= 100
    assert longer.costs["accuracy"] > max(0.6, short.costs["accuracy"] + 0.2)


def test_the_accuracy_is_what_the_metric_gives_for_the_model(folder: Path) -> None:
    outcome = _adapted(folder, 1)
    names: dict[str, object] = {}
    exec(NET, names)
    x, labels = (numpy.asarray(one) for one in names["data"]())  # type: ignore[operator]
    first, second = (numpy.asarray(one) for one in names["make"]()(x))  # type: ignore[operator]
    right = (abs(first - labels[:, :1]) < 0.5) & (abs(second - labels[:, 1:]) < 0.5)
    assert outcome.whole["accuracy"] == pytest.approx(right.mean())


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"loss": "net.py:limit"}, "loss 'net.py:limit' is int; it must be a function"),
        ({"loss": "net.py:none"}, "loss 'net.py:none': 'none'"),
        ({"loss": "none"}, "walle.nn.functional has no loss 'none'; one of your own is FILE.py:FUNCTION"),
        ({"loss": "mse_loss", "metric": "missing.py:near"}, "metric 'missing.py:near'.* No such file"),
        ({"loss": "mse_loss", "metric": "near"}, "metric 'near'.*FILE.py:FUNCTION"),
    ],
)
def test_other_things_than_functions_are_refused(folder: Path, changes: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Objective.of(Training(**changes), folder)  # type: ignore[arg-type]


def test_a_metric_that_is_not_a_share_is_refused(folder: Path) -> None:
    objective = Objective.of(Training(loss="mse_loss", metric="net.py:large"), folder)
    with pytest.raises(ConfigError, match=r"metric 'net.py:large' gives 7.5; it must be a share, from 0 to 1"):
        objective.measure(None, None)
