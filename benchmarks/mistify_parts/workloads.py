"""Networks with their data that adaptation is measured on; each is trained once in a process.

Files of goals name them "given.py:NAME", NAME_train and NAME_test, so that no run trains or reads them again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.mistify_parts import digits, docstrings, mnist, mobile
from walle import nn, np, optim
from walle.adapt.goals.config import Adaptation, parse_config

_FOLDER = Path(__file__).parent
_BATCH = 64


@dataclass(frozen=True)
class Workload:
    """A network, the module of its data, the steps and the learning rate of its training."""

    title: str
    make: Callable[[], nn.Module]
    data: ModuleType
    steps: int = 300
    learning_rate: float = 2e-3
    least: float = 0.0  # part of the operations below which a network of few channels has no budgets

    def train(self) -> tuple[Any, Any]:
        """Return inputs and labels to learn."""
        found: tuple[Any, Any] = self.data.train()
        return found

    def test(self) -> tuple[Any, Any]:
        """Return inputs and labels to test."""
        found: tuple[Any, Any] = self.data.test()
        return found


WORKLOADS = {
    "resnet_digits": Workload("ResNet, digits", digits.Network, digits),
    "mobilenet_digits": Workload("MobileNet, digits", mobile.Network, digits, steps=600),
    "resnet_mnist": Workload("ResNet, MNIST-5k", partial(digits.Network, 12), mnist, least=1 / 22),
    "text": Workload("convolutions, docstrings", docstrings.Network, docstrings, least=1 / 20),
}


@cache
def _trained(name: str) -> nn.Module:
    workload = WORKLOADS[name]
    nn.manual_seed(0)
    network = workload.make()
    inputs, labels = workload.train()
    random = np.random.default_rng(1)
    step = nn.TrainStep(network, nn.functional.cross_entropy, optim.Adam(lr=workload.learning_rate))
    for _ in range(workload.steps):
        places = random.integers(0, len(inputs), _BATCH)
        step(inputs[places], labels[places])
    return network


def given(name: str) -> nn.Module:
    """Return the trained network of a workload, a copy of its own."""
    return copy.deepcopy(_trained(name))


@cache
def whole_costs(name: str) -> dict[str, float]:
    """Return the costs of a workload's network, by §4.1."""
    from walle.adapt.costs.formula import CostFormula
    from walle.adapt.structure.network import find_structure

    workload = WORKLOADS[name]
    return CostFormula(find_structure(given(name), [workload.train()[0][:2]]), None).whole()


def job(name: str, goals: str, steps: int, algorithm: str = "morphnet", more: str = "") -> Adaptation:
    """Return the adaptation of a workload: `goals` has the tables of its goals, `more` other lines of the file."""
    workload = WORKLOADS[name]
    text = f"""
        {more}
        model = "given.py:{name}"
        data = {{train = "given.py:{name}_train", test = "given.py:{name}_test"}}
        training = {{steps = {steps}, learning_rate = {workload.learning_rate}}}
        algorithm = {{name = "{algorithm}"}}
        {goals}
    """
    (found,) = parse_config(text, _FOLDER, "goals", is_json=False)
    return found
