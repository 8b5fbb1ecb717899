"""One model in, a fleet of fitting models out (Guo, Hu and Hu, Mistify: Automating DNN Model Porting, NSDI'21).

`run(config)` adapts the model of a file of goals; `GoalTree` orders goals; an `AdaptationExecutor` is an algorithm. A
`BranchSession` runs a model whose cost changes from one run to the next within a `Budget`. Names are loaded at their
first use: a device that shares models (`tuning/`) loads no algorithm.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walle.adapt.adaptation import Fitted, Outcome, Progress, run
    from walle.adapt.branches.monitor import Budget
    from walle.adapt.branches.session import BranchSession
    from walle.adapt.executor import AdaptationExecutor, Settings
    from walle.adapt.goals.tree import GoalTree

_MODULES = {
    "AdaptationExecutor": "executor",
    "BranchSession": "branches.session",
    "Budget": "branches.monitor",
    "Fitted": "adaptation",
    "GoalTree": "goals.tree",
    "Outcome": "adaptation",
    "Progress": "adaptation",
    "Settings": "executor",
    "run": "adaptation",
}

__all__ = [
    "AdaptationExecutor",
    "BranchSession",
    "Budget",
    "Fitted",
    "GoalTree",
    "Outcome",
    "Progress",
    "Settings",
    "run",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(importlib.import_module(f"walle.adapt.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'walle.adapt' has no attribute {name!r}")
