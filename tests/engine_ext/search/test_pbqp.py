"""PBQP solver: against brute force on small graphs and dynamic programming on chains and grids; errors with places."""

import array
import math
import signal
import time
from collections.abc import Callable, Iterable
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walle.np as wnp
from walle.search import PbqpError, PbqpSolution, solve_pbqp

type Node = np.ndarray[Any, np.dtype[np.float64]]
type Problem = tuple[list[Node], dict[tuple[int, int], Node]]
type Draw = Callable[..., Node]

INF = math.inf


def total(problem: Problem, choices: Iterable[int]) -> float:
    costs, edges = problem
    at = list(choices)
    nodes = sum(float(cost[c]) for cost, c in zip(costs, at, strict=True))
    return nodes + sum(float(matrix[at[u], at[v]]) for (u, v), matrix in edges.items())


def all_costs(problem: Problem) -> Node:
    """Return the cost of every assignment, an axis for each node."""
    costs, edges = problem
    sums = np.zeros([len(cost) for cost in costs])
    for u, cost in enumerate(costs):
        shape = [1] * len(costs)
        shape[u] = len(cost)
        sums = sums + cost.reshape(shape)
    for (u, v), matrix in edges.items():
        shape = [1] * len(costs)
        shape[u], shape[v] = matrix.shape
        sums = sums + (matrix if u < v else matrix.T).reshape(shape)
    return sums


def check(problem: Problem, solution: PbqpSolution, least: float) -> None:
    assert solution.is_exact
    assert solution.cost == pytest.approx(least, rel=1e-9, abs=1e-9)
    assert solution.cost == pytest.approx(total(problem, solution.choices), rel=1e-12, abs=1e-12)


def draw_of(rng: np.random.Generator, kind: str) -> Draw:
    def draw(*shape: int) -> Node:
        if kind == "few integers":
            return rng.integers(0, 3, shape).astype(float)
        if kind == "normal":
            return rng.normal(size=shape)
        if kind == "spread":
            return rng.lognormal(0, 3, shape)
        costs = rng.integers(-3, 6, shape).astype(float)
        costs[rng.random(shape) < 0.35] = INF
        return costs

    return draw


KINDS = ("few integers", "normal", "spread", "infinities")


def random_problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    draw = draw_of(rng, KINDS[seed % len(KINDS)])
    counts = rng.integers(1, 5, rng.integers(1, 8)).tolist()
    density = rng.random()
    edges = {
        (u, v): draw(counts[u], counts[v])
        for u, v in permutations(range(len(counts)), 2)
        if rng.random() < density * (1 if u < v else 0.2)  # some pairs have edges in both directions
    }
    return [draw(count) for count in counts], edges


@pytest.mark.parametrize("first", range(0, 300, 20))
def test_random_graphs_equal_brute_force(first: int) -> None:
    for seed in range(first, first + 20):
        problem = random_problem(seed)
        least = float(all_costs(problem).min())
        if least == INF:
            with pytest.raises(PbqpError, match="every assignment costs infinity"):
                solve_pbqp(*problem)
        else:
            check(problem, solve_pbqp(*problem), least)


def test_random_graphs_have_each_kind_of_outcome() -> None:
    least = [float(all_costs(random_problem(seed)).min()) for seed in range(300)]
    assert 20 < sum(value == INF for value in least) < 70


@pytest.mark.parametrize("seed", range(40))
def test_no_node_could_have_a_smaller_choice_of_the_same_cost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    draw = draw_of(rng, "few integers")
    problem = ([draw(4) for _ in range(6)], {(u, v): draw(4, 4) for u, v in combinations(range(6), 2)})
    solution = solve_pbqp(*problem)
    for node, chosen in enumerate(solution.choices):
        for choice in range(chosen):
            assert total(problem, [*solution.choices[:node], choice, *solution.choices[node + 1 :]]) > solution.cost


def test_equal_costs_give_the_first_choices() -> None:
    costs = [np.zeros(7) for _ in range(9)]
    edges = {pair: np.ones((7, 7)) for pair in combinations(range(9), 2)}
    assert solve_pbqp(costs, edges) == ([0] * 9, 36.0, True)
    assert solve_pbqp(costs, {}) == ([0] * 9, 0.0, True)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), constant=st.integers(-50, 50), data=st.data())
def test_a_constant_of_a_node_or_an_edge_is_added_to_the_cost(seed: int, constant: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    draw = draw_of(rng, "few integers")
    problem = ([draw(3) for _ in range(5)], {pair: draw(3, 3) for pair in combinations(range(5), 2)})
    before = solve_pbqp(*problem)
    costs, edges = list(problem[0]), dict(problem[1])
    if data.draw(st.booleans()):
        node = data.draw(st.integers(0, 4))
        costs[node] = costs[node] + constant
    else:
        pair = data.draw(st.sampled_from(sorted(edges)))
        edges[pair] = edges[pair] + constant
    after = solve_pbqp(costs, edges)
    assert after.cost == before.cost + constant


@pytest.mark.parametrize(("seed", "place", "constant"), [(4164, 1, -35), (5966, (3, 4), 44)])
def test_rounding_does_not_move_nodes_in_circles(seed: int, place: int | tuple[int, int], constant: int) -> None:
    """With sums near zero, the local search once took the rounding of its own moves for gains, without an end."""
    draw = draw_of(np.random.default_rng(seed), "few integers")
    costs, edges = [draw(3) for _ in range(5)], {pair: draw(3, 3) for pair in combinations(range(5), 2)}
    before = solve_pbqp(costs, edges)
    if isinstance(place, int):
        costs[place] = costs[place] + constant
    else:
        edges[place] = edges[place] + constant
    assert solve_pbqp(costs, edges).cost == before.cost + constant


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), order=st.permutations(range(6)))
def test_the_order_of_nodes_does_not_change_the_cost(seed: int, order: list[int]) -> None:
    rng = np.random.default_rng(seed)
    draw = draw_of(rng, "few integers")
    costs = [draw(3) for _ in range(6)]
    edges = {pair: draw(3, 3) for pair in combinations(range(6), 2)}
    moved_costs = [costs[node] for node in order]
    place = {node: index for index, node in enumerate(order)}
    moved_edges = {(place[u], place[v]): matrix for (u, v), matrix in edges.items()}
    assert solve_pbqp(moved_costs, moved_edges).cost == solve_pbqp(costs, edges).cost


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_edges_in_both_directions_add_up(seed: int, data: st.DataObject) -> None:
    costs, edges = random_problem(4 * seed)  # few integers, which add up without rounding
    split = {}
    for (u, v), matrix in edges.items():
        if (v, u) in edges:
            continue
        part = np.full(matrix.shape, float(data.draw(st.integers(-3, 3))))
        split[u, v], split[v, u] = matrix - part, part.T
    whole = {pair: matrix for pair, matrix in edges.items() if pair[::-1] not in edges}
    assert solve_pbqp(costs, split).cost == solve_pbqp(costs, whole).cost


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_apart_graphs_are_solved_apart(seed: int) -> None:
    one, other = random_problem(4 * seed), random_problem(4 * seed + 4)
    count = len(one[0])
    both = ([*one[0], *other[0]], one[1] | {(u + count, v + count): matrix for (u, v), matrix in other[1].items()})
    assert solve_pbqp(*both).cost == solve_pbqp(*one).cost + solve_pbqp(*other).cost


def min_plus(a: Node, b: Node) -> Node:
    least: Node = (a[:, :, None] + b[None, :, :]).min(axis=1)
    return least


def test_a_chain_of_10_000_nodes_equals_dynamic_programming() -> None:
    rng = np.random.default_rng(0)
    costs = list(rng.random((10_000, 4)))
    matrices = rng.random((9_999, 4, 4))
    best = costs[0]
    for cost, matrix in zip(costs[1:], matrices, strict=True):
        best = (best[:, None] + matrix).min(axis=0) + cost
    problem = (costs, {(node, node + 1): matrix for node, matrix in enumerate(matrices)})
    check(problem, solve_pbqp(*problem), float(best.min()))


def test_a_star_with_10_000_leaves_equals_the_best_hub() -> None:
    rng = np.random.default_rng(0)
    costs = list(rng.random((10_001, 3)))
    edges = {(0, leaf): rng.random((3, 3)) for leaf in range(1, 10_001)}
    hub = costs[0] + sum((edges[0, leaf] + costs[leaf]).min(axis=1) for leaf in range(1, 10_001))
    check((costs, edges), solve_pbqp(costs, edges), float(hub.min()))


@pytest.mark.parametrize("seed", range(5))
def test_residual_blocks_at_70_choices_equal_dynamic_programming(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs, edges = [rng.random(70)], {}
    best = costs[0]
    for block in range(16):
        x, first, second, add = range(3 * block, 3 * block + 4)
        costs += list(rng.random((3, 70)))
        for pair in ((x, first), (first, second), (second, add), (x, add)):
            edges[pair] = rng.random((70, 70))
        way = min_plus(
            edges[x, first] + costs[first], min_plus(edges[first, second] + costs[second], edges[second, add])
        )
        best = (best[:, None] + way + edges[x, add]).min(axis=0) + costs[add]
    check((costs, edges), solve_pbqp(costs, edges), float(best.min()))


@pytest.mark.parametrize("seed", range(5))
def test_inception_modules_at_70_choices_equal_dynamic_programming(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs, edges = [rng.random(70)], {}
    best = costs[0]
    for module in range(9):
        x, cat = 8 * module, 8 * module + 8
        costs += list(rng.random((8, 70)))
        way = np.zeros((70, 70))
        for branch in ([x + 1], [x + 2, x + 3], [x + 4, x + 5], [x + 6, x + 7]):
            path = np.where(np.eye(70) > 0, 0.0, INF)
            for one, other in zip([x, *branch], [*branch, cat], strict=True):
                edges[one, other] = rng.random((70, 70))
                path = min_plus(path, edges[one, other] + (0.0 if other == cat else costs[other]))
            way += path
        best = (best[:, None] + way).min(axis=0) + costs[cat]
    check((costs, edges), solve_pbqp(costs, edges), float(best.min()))


@pytest.mark.parametrize("seed", range(6))
def test_dense_blocks_equal_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = list(rng.random((7, 6)))
    edges = {pair: rng.random((6, 6)) for pair in combinations(range(7), 2)}
    check((costs, edges), solve_pbqp(costs, edges), float(all_costs((costs, edges)).min()))


def layout_problem(rng: np.random.Generator, pairs: Iterable[tuple[int, int]], nodes: int, choices: int) -> Problem:
    """Return a network's problem: each primitive reads one of three layouts and writes one, edges convert."""
    reads, writes = rng.integers(0, 3, (2, choices))
    edges = {}
    for pair in pairs:
        times = rng.random((3, 3)) * 60
        np.fill_diagonal(times, 0)
        edges[pair] = times[np.ix_(writes, reads)]
    return list(rng.lognormal(0, 0.5, (nodes, choices)) * 100), edges


@pytest.mark.parametrize("seed", range(4))
def test_a_dense_block_at_70_choices_equals_brute_force_over_its_layouts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reads, writes = rng.integers(0, 3, (2, 70))
    count = 6
    costs = list(rng.lognormal(0, 0.5, (count, 70)) * 100)
    times = {pair: rng.random((3, 3)) * 60 for pair in combinations(range(count), 2)}
    edges = {pair: time[np.ix_(writes, reads)] for pair, time in times.items()}
    # The cheapest primitive of each (reads, writes), which is all that edges see.
    ways = [(i, j) for i in range(3) for j in range(3)]
    small_costs = [np.array([cost[(reads == i) & (writes == j)].min(initial=INF) for i, j in ways]) for cost in costs]
    small_edges = {
        pair: np.array([[time[out, into] for into, _ in ways] for _, out in ways]) for pair, time in times.items()
    }
    check((costs, edges), solve_pbqp(costs, edges), float(all_costs((small_costs, small_edges)).min()))


@pytest.mark.parametrize("seed", range(3))
def test_a_block_of_24_layers_is_proven(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = layout_problem(rng, combinations(range(24), 2), 24, 70)
    solution = solve_pbqp(*problem)
    check(problem, solution, total(problem, solution.choices))
    # Proven, so that no change of two choices gains.
    for u, v in combinations(range(24), 2):
        for _ in range(20):
            other = list(solution.choices)
            other[u], other[v] = rng.integers(0, 70, 2).tolist()
            assert total(problem, other) >= solution.cost - 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_a_grid_equals_dynamic_programming_by_column(seed: int) -> None:
    rng = np.random.default_rng(seed)
    height, width, count = 3, 12, 3
    costs = list(rng.random((height * width, count)))
    edges = {}
    for x in range(width):
        for y in range(height):
            node = x * height + y
            if y + 1 < height:
                edges[node, node + 1] = rng.random((count, count))
            if x + 1 < width:
                edges[node, node + height] = rng.random((count, count))
    columns = list(np.ndindex(*[count] * height))
    best = np.zeros(len(columns))
    for x in range(width):
        first = x * height
        own = np.array(
            [
                sum(costs[first + y][c] for y, c in enumerate(column))
                + sum(edges[first + y, first + y + 1][column[y], column[y + 1]] for y in range(height - 1))
                for column in columns
            ]
        )
        if x > 0:
            step = [
                [sum(edges[first - height + y, first + y][a[y], b[y]] for y in range(height)) for b in columns]
                for a in columns
            ]
            best = (best[:, None] + np.array(step)).min(axis=0)
        best = best + own
    check((costs, edges), solve_pbqp(costs, edges), float(best.min()))


def different(count: int) -> Node:
    return np.where(np.eye(count) > 0, INF, 0.0)


def test_colours_of_a_complete_graph() -> None:
    edges = {pair: different(5) for pair in combinations(range(5), 2)}
    solution = solve_pbqp([np.zeros(5)] * 5, edges)
    assert sorted(solution.choices) == list(range(5))
    with pytest.raises(PbqpError, match="every assignment costs infinity"):
        solve_pbqp([np.zeros(4)] * 5, {pair: different(4) for pair in combinations(range(5), 2)})


def test_an_odd_ring_has_no_two_colours() -> None:
    ring = {(node, (node + 1) % 7): different(2) for node in range(7)}
    with pytest.raises(PbqpError, match="every assignment costs infinity"):
        solve_pbqp([np.zeros(2)] * 7, ring)


def test_a_search_that_finds_nothing_within_its_steps_says_so() -> None:
    edges = {pair: different(11) for pair in combinations(range(12), 2)}
    with pytest.raises(PbqpError, match="no assignment of finite cost was found within the limit of steps"):
        solve_pbqp([np.zeros(11)] * 12, edges, max_steps=1000)


def test_a_large_dense_problem_is_not_claimed_exact_and_repeats() -> None:
    rng = np.random.default_rng(0)
    costs = list(rng.random((24, 10)))
    edges = {pair: rng.random((10, 10)) for pair in combinations(range(24), 2)}
    first = solve_pbqp(costs, edges, max_steps=2000)
    assert not first.is_exact
    assert first == solve_pbqp(costs, edges, max_steps=2000)
    greedy = [0] * 24
    for _ in range(3):  # sweeps of single moves, which it must beat
        for node in range(24):
            trials = [[*greedy[:node], choice, *greedy[node + 1 :]] for choice in range(10)]
            greedy = min(trials, key=lambda trial: total((costs, edges), trial))
    assert first.cost < total((costs, edges), greedy)


def test_problems_without_nodes_and_with_single_choices() -> None:
    assert solve_pbqp([], {}) == ([], 0.0, True)
    assert solve_pbqp([[3.0], [4.0]], {(0, 1): [[5.0]]}) == ([0, 0], 12.0, True)
    assert solve_pbqp([[3.0], [4.0, 0.0]], {(0, 1): [[5.0, 10.0]]}) == ([0, 0], 12.0, True)


@pytest.mark.parametrize(
    "make",
    [
        lambda matrix: matrix.tolist(),
        lambda matrix: [array.array("d", row) for row in matrix],
        lambda matrix: matrix.astype("float32"),
        lambda matrix: matrix.astype("int16"),
        lambda matrix: np.asfortranarray(matrix),
        lambda matrix: np.repeat(matrix, 2, axis=1)[:, ::2],
        lambda matrix: wnp.array(matrix.tolist()),
        lambda matrix: memoryview(matrix),
    ],
)
def test_every_kind_of_array_is_accepted(make: Callable[[Node], Any]) -> None:
    rng = np.random.default_rng(5)
    costs = list(rng.integers(0, 90, (4, 3)).astype(float))
    edges = {pair: rng.integers(0, 90, (3, 3)).astype(float) for pair in combinations(range(4), 2)}
    rows = make(np.array(costs))
    made = solve_pbqp([rows[node] if not isinstance(rows, memoryview) else costs[node] for node in range(4)],
                      {pair: make(matrix) for pair, matrix in edges.items()})  # fmt: skip
    assert made == solve_pbqp(costs, edges)


def test_numbers_of_lists_are_float64() -> None:
    assert solve_pbqp([[1.0 + 1e-12, 1.0]], {}) == ([1], 1.0, True)
    assert solve_pbqp([[0.1]], {}).cost == 0.1


@pytest.mark.parametrize(
    ("costs", "edges", "words"),
    [
        ([[1.0], []], {}, "costs of node 1 have shape (0,)"),
        ([[1.0], [[1.0]]], {}, "costs of node 1 have shape (1, 1)"),
        ([1.0], {}, "costs of node 0 have shape ()"),
        ([["a"]], {}, "costs of node 0 are not an array of numbers"),
        ([np.array([1j])], {}, "costs of node 0 are complex"),
        ([[1.0, math.nan]], {}, "node 0: the cost of choice 1 is NaN"),
        ([[1.0, -INF]], {}, "node 0: the cost of choice 1 is -infinity"),
        ([[1e300], [1e300]], {}, "node 1: the costs are too large"),
        ([[INF, INF]], {}, "no choice of node 0 is compatible"),
        ([[1.0], [1.0]], {(0, 1): [[math.nan]]}, "edge (0, 1): the cost of choice (0, 0) is NaN"),
        ([[1.0, 2.0], [1.0]], {(0, 1): [[1.0, 2.0]]}, "costs of edge (0, 1) have shape (1, 2); the choices"),
        ([[1.0], [1.0, 2.0]], {(0, 1): [[1.0], [2.0]]}, "costs of edge (0, 1) have shape (2, 1)"),
        ([[1.0, 2.0], [1.0, 2.0]], {(0, 1): [[1.0], [2.0, 3.0]]}, "costs of edge (0, 1) are not an array of numbers"),
        ([[1.0], [1.0]], {(0, 2): [[1.0]]}, "edge (0, 2): node 2 does not exist; there are 2 nodes"),
        ([[1.0], [1.0]], {(-1, 0): [[1.0]]}, "edge (-1, 0): node -1 does not exist"),
        ([[1.0], [1.0]], {(1, 1): [[1.0]]}, "edge (1, 1) joins a node with itself"),
        ([[1.0]], {0: [[1.0]]}, "edge 0 is not a pair of node numbers"),
        ([[1.0]], {(0, 0.5): [[1.0]]}, "edge (0, 0.5) is not a pair of node numbers"),
    ],
)
def test_a_wrong_problem_is_refused_with_its_place(costs: Any, edges: Any, words: str) -> None:
    with pytest.raises(PbqpError) as error:
        solve_pbqp(costs, edges)
    assert words in str(error.value)


def test_negative_steps_are_refused() -> None:
    with pytest.raises(PbqpError, match="max_steps is -1"):
        solve_pbqp([[1.0]], {}, max_steps=-1)


class Alarm(Exception):  # noqa: N818 -- raised by the handler of a signal
    pass


def test_a_signal_stops_a_long_search() -> None:
    rng = np.random.default_rng(0)
    costs = list(rng.random((30, 20)))
    edges = {pair: rng.random((20, 20)) for pair in combinations(range(30), 2)}

    def ring(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        began = time.thread_time()
        with pytest.raises(Alarm):
            solve_pbqp(costs, edges, max_steps=10**12)
        assert time.thread_time() - began < 10  # all steps would take days
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
