"""One model in, a fleet of fitting models out (Guo, Hu and Hu, Mistify: Automating DNN Model Porting, NSDI'21).

`run(config)` adapts the model of a file of goals; `GoalTree` orders goals; an `AdaptationExecutor` is an algorithm. A
`BranchSession` runs a model whose cost changes from one run to the next within a `Budget`.
"""

from walle.adapt.adaptation import Fitted, Outcome, Progress, run
from walle.adapt.branches.monitor import Budget
from walle.adapt.branches.session import BranchSession
from walle.adapt.executor import AdaptationExecutor, Settings
from walle.adapt.goals.tree import GoalTree

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
