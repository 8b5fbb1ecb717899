"""PBQP solver on graphs of networks at 70 choices: milliseconds of CPU time a call, and whether the result is proven.

Graphs are those of ResNet-34, GoogLeNet and DenseNet-121, a node for each convolution, pooling, sum and concatenation;
in a dense block each layer reads the values of all earlier ones. Costs are drawn: "layouts" gives each primitive one of
three layouts to read and one to write, with edges that convert (Mulder et al., §2.1); "uniform" gives every
choice and pair a cost in [0, 1), which no rule simplifies. For DenseNet-121 "uniform" is left out: its optimum is
unknown. No other solver is compared: PBQP solvers are internal parts of compilers.

    python -m benchmarks.primitives.solver [--rounds 30] [--seed 1] [--json]
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np

from walle.search import PbqpSolution, solve_pbqp

CHOICES = 70
LAYOUTS = 3

type Edges = list[tuple[int, int]]
type Problem = tuple[list[np.ndarray], dict[tuple[int, int], np.ndarray]]


def resnet_34() -> tuple[int, Edges]:
    """Return the count of nodes and the edges."""
    edges: Edges = []
    x, count = 0, 1
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            first, second, add = range(count, count + 3)
            count += 3
            edges += [(x, first), (first, second), (second, add)]
            if stage > 0 and block == 0:  # a convolution on the shortcut
                edges += [(x, count), (count, add)]
                count += 1
            else:
                edges.append((x, add))
            x = add
    edges.append((x, count))
    return count + 1, edges


def googlenet() -> tuple[int, Edges]:
    """Return the count of nodes and the edges."""
    edges: Edges = [(0, 1), (1, 2)]
    x = 2
    for _ in range(9):
        one, reduce_3, three, reduce_5, five, pool, project, cat = range(x + 1, x + 9)
        edges += [(x, one), (x, reduce_3), (reduce_3, three), (x, reduce_5), (reduce_5, five), (x, pool)]
        edges += [(pool, project), (one, cat), (three, cat), (five, cat), (project, cat)]
        x = cat
    edges.append((x, x + 1))
    return x + 2, edges


def densenet_121() -> tuple[int, Edges]:
    """Return the count of nodes and the edges."""
    edges: Edges = []
    x, count = 0, 1
    for layers in (6, 12, 24, 16):
        values = [x]
        for _ in range(layers):
            edges += [(value, count) for value in values]
            edges.append((count, count + 1))
            values.append(count + 1)
            count += 2
        edges += [(value, count) for value in values]
        x = count
        count += 1
    return count, edges


def with_layouts(rng: np.random.Generator, nodes: int, edges: Edges) -> Problem:
    """Return a problem whose edges convert between layouts, at times as those of a convolution."""
    reads, writes = rng.integers(0, LAYOUTS, (2, CHOICES))
    costs = [rng.lognormal(0, 0.5, CHOICES) * rng.lognormal(4, 1) for _ in range(nodes)]
    matrices = {}
    for edge in edges:
        times = rng.random((LAYOUTS, LAYOUTS)) * 50 * rng.lognormal(0, 1)
        np.fill_diagonal(times, 0)
        matrices[edge] = np.ascontiguousarray(times[np.ix_(writes, reads)])
    return costs, matrices


def uniform(rng: np.random.Generator, nodes: int, edges: Edges) -> Problem:
    """Return a problem of independent costs."""
    return list(rng.random((nodes, CHOICES))), {edge: rng.random((CHOICES, CHOICES)) for edge in edges}


CASES = {
    "ResNet-34, layouts": (resnet_34, with_layouts),
    "ResNet-34, uniform": (resnet_34, uniform),
    "GoogLeNet, layouts": (googlenet, with_layouts),
    "GoogLeNet, uniform": (googlenet, uniform),
    "DenseNet-121, layouts": (densenet_121, with_layouts),
}


def timed(problem: Problem, rounds: int) -> tuple[list[float], PbqpSolution]:
    """Return the CPU milliseconds of each call and the solution."""
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        solution = solve_pbqp(*problem)
        times.append((time.thread_time() - began) * 1e3)
    return times, solution


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="calls of each case (default 30)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the costs (default 1)")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    options = parser.parse_args()
    rows = []
    for name, (graph, draw) in CASES.items():
        nodes, edges = graph()
        problem = draw(np.random.default_rng(options.seed), nodes, edges)
        times, solution = timed(problem, options.rounds)
        rows.append(
            {
                "case": name,
                "nodes": nodes,
                "edges": len(edges),
                "median_ms": round(statistics.median(times), 3),
                "min_ms": round(min(times), 3),
                "cost": solution.cost,
                "is_exact": solution.is_exact,
            }
        )
    if options.json:
        json.dump(rows, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    print(f"{'case':24}{'nodes':>7}{'edges':>7}{'median ms':>12}{'min ms':>10}  exact")
    for row in rows:
        print(
            f"{row['case']:24}{row['nodes']:>7}{row['edges']:>7}{row['median_ms']:>12.2f}{row['min_ms']:>10.2f}"
            f"  {'yes' if row['is_exact'] else 'no'}"
        )


if __name__ == "__main__":
    main()
