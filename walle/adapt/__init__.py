"""One model in, a fleet of fitting models out (Guo, Hu and Hu, Mistify: Automating DNN Model Porting, NSDI'21).

`run(config)` adapts the model of a file of goals; `GoalTree` orders goals; an `AdaptationExecutor` is an algorithm.
"""

from walle.adapt.adaptation import Fitted, Outcome, Progress, run
from walle.adapt.executor import AdaptationExecutor, Settings
from walle.adapt.goals.tree import GoalTree

__all__ = ["AdaptationExecutor", "Fitted", "GoalTree", "Outcome", "Progress", "Settings", "run"]
