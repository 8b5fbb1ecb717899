"""Partitioned boolean quadratic problems (PBQP): one choice for each node of a graph, at the least sum of costs.

A network's selection is such a problem: nodes are operators, choices are primitives with their layouts, and an edge's
matrix has the time of the change of layout between two operators (Mulder et al., §2.1).
"""

from collections.abc import Buffer, Mapping, Sequence
from operator import index
from typing import NamedTuple

from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError, ShapeError
from walle.errors import EngineError

type Costs = Buffer | Sequence[float]
type CostMatrix = Buffer | Sequence[Costs]

MAX_STEPS = 1_000_000


class PbqpError(EngineError, ValueError):
    """A PBQP problem that is inconsistent, or that has no assignment of finite cost; the message names node or edge."""


class PbqpSolution(NamedTuple):
    """Choices of a PBQP problem, and their cost.

    `is_exact` is True where no other choices cost less, except for rounding: by more than 1e-12 of the sum of the
    absolute costs that are compared.
    """

    choices: list[int]
    cost: float
    is_exact: bool


def solve_pbqp(
    node_costs: Sequence[Costs], edges: Mapping[tuple[int, int], CostMatrix], *, max_steps: int = MAX_STEPS
) -> PbqpSolution:
    """Return the choice of each node that makes the sum of all costs least.

    `node_costs[u]` has the cost of each choice of node u, one or more. `edges[u, v]` has a matrix of shape
    (choices of u, choices of v); where (v, u) is given too, its transpose is added. Costs are numbers in anything with
    the buffer protocol (of `walle.np`, NumPy, `array.array`) or in nested sequences, and are computed in float64.
    +infinity forbids a choice or a pair of choices. Arrays are read without the GIL and must not change meanwhile.

    Graphs that R0, R1 and R2 reduce (chains, trees, residual blocks, inception modules) are solved exactly, others by
    branch and bound, which tries at most `max_steps` choices (a try in a part with n choices counts 1 + n // 1024).
    Then `is_exact` is False where it did not finish.
    Equal problems have equal solutions on every machine. No node has a choice of smaller index at the same or lower
    cost while the other nodes keep theirs. Ctrl-C stops a long search.

    Raises:
        PbqpError: costs of the wrong shape, NaN, -infinity or above 1e300 in sum, a node that does not exist or has no
            choices, an edge from a node to itself, or no assignment of finite cost within `max_steps`.

    Source: Mulder et al., §2.1; reductions of Scholz and Eckstein (2002).
    """
    costs = [_float64(given, f"costs of node {node}") for node, given in enumerate(node_costs)]
    for node, array in enumerate(costs):
        if array.ndim != 1 or array.size == 0:
            raise PbqpError(f"costs of node {node} have shape {array.shape}; give one cost for each choice, 1 or more")
    matrices = []
    for key, given in edges.items():
        u, v = _ends(key, len(costs))
        matrix = _float64(given, f"costs of edge ({u}, {v})")
        if matrix.shape != (costs[u].size, costs[v].size):
            raise PbqpError(
                f"costs of edge ({u}, {v}) have shape {matrix.shape}; the choices of its nodes need "
                f"{(costs[u].size, costs[v].size)}"
            )
        matrices.append((u, v, matrix))
    if max_steps < 0:
        raise PbqpError(f"max_steps is {max_steps}; give 0 or more")
    try:
        return PbqpSolution(*_core.solve_pbqp(costs, matrices, min(max_steps, 2**62)))
    except ModelError as error:
        raise PbqpError(str(error)) from None


def _ends(key: tuple[int, int], count: int) -> tuple[int, int]:
    try:
        u, v = map(index, key)
    except (TypeError, ValueError):
        raise PbqpError(f"edge {key!r} is not a pair of node numbers, such as (0, 1)") from None
    for node in (u, v):
        if not 0 <= node < count:
            raise PbqpError(f"edge ({u}, {v}): node {node} does not exist; there are {count} nodes")
    if u == v:
        raise PbqpError(f"edge ({u}, {v}) joins a node with itself; add its diagonal to the costs of node {u}")
    return u, v


def _float64(given: Costs | CostMatrix, place: str) -> _core.ndarray:
    try:
        # Numbers in lists would pass through float32 without a dtype.
        array = _core.asarray(given, "float64" if isinstance(given, list | tuple) else None)
        if array.dtype.kind == "c":
            raise PbqpError(f"{place} are complex; give real numbers")
        return _core.asarray(array, "float64")
    except (ShapeError, TypeError, OverflowError) as error:
        raise PbqpError(f"{place} are not an array of numbers: {error}") from None
