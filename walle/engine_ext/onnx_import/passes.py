"""Rewritings that keep what a graph computes: each a pure function from a graph to a graph."""

from dataclasses import replace

from walle.engine_ext.onnx_import.graph import Graph


def optimise(graph: Graph) -> Graph:
    """Return the graph after all passes."""
    return drop_dead(graph)


def drop_dead(graph: Graph) -> Graph:
    """Remove nodes and constants that no output needs."""
    from walle.engine_ext.onnx_import.graph import free_values

    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(name for name in node.outputs if name):
            kept.append(node)
            needed.update(name for name in node.inputs if name)
            for inner in node.subgraphs():
                needed |= free_values(inner)
    constants = {name: value for name, value in graph.constants.items() if name in needed}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)
