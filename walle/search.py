"""`walle.search`: choice of primitives for a whole network (003_88355cf18ea90307)."""

from walle.engine_ext.search.pbqp import PbqpError, PbqpSolution, solve_pbqp

__all__ = ["PbqpError", "PbqpSolution", "solve_pbqp"]
