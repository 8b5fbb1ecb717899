"""`walle.search`: learned costs of primitives, and the choice of primitives and layouts for a whole network.

Mulder, Radu and Dubach, Fast Optimisation of Convolutional Neural Network Inference using System Performance Models.
"""

from walle.engine_ext.search.pbqp import PbqpError, PbqpSolution, solve_pbqp
from walle.engine_ext.search.performance_model import PerformanceModel

__all__ = ["PbqpError", "PbqpSolution", "PerformanceModel", "solve_pbqp"]
