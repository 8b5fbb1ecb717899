"""TreeEnsemble and LabelEncoder against Python."""

from typing import Any

import numpy as np
import pytest

from walle.engine_ext import _core
from walle.engine_ext.errors import ModelError, ShapeError

COMPARE = [np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal]


def forest(rng: Any, trees: int, depth: int, features: int, targets: int) -> dict[str, Any]:
    """Return full trees of a depth, with random conditions of all modes except membership."""
    each = 2**depth - 1
    attributes: dict[str, Any] = {key: [] for key in ("true", "false", "trueleaf", "falseleaf")}
    for tree in range(trees):
        for node in range(each):
            inner = 2 * node + 1 < each
            for side, name in enumerate(("true", "false")):
                child = 2 * node + 1 + side
                attributes[name].append(tree * each + child if inner else tree * (each + 1) + child - each)
                attributes[f"{name}leaf"].append(int(not inner))
    nodes, leaves = trees * each, trees * (each + 1)
    return {
        "nodes_splits": [float(one) for one in rng.integers(0, 4, nodes)],
        "nodes_featureids": rng.integers(0, features, nodes).tolist(),
        "nodes_modes": rng.integers(0, 6, nodes).tolist(),
        "nodes_truenodeids": attributes["true"],
        "nodes_falsenodeids": attributes["false"],
        "nodes_trueleafs": attributes["trueleaf"],
        "nodes_falseleafs": attributes["falseleaf"],
        "nodes_missing_value_tracks_true": rng.integers(0, 2, nodes).tolist(),
        "leaf_targetids": rng.integers(0, targets, leaves).tolist(),
        "leaf_weights": [float(one) for one in rng.normal(size=leaves)],
        "tree_roots": [tree * each for tree in range(trees)],
        "n_targets": targets,
    }


def walked(x: Any, trees: dict[str, Any], aggregate: int) -> Any:
    start = [0.0, 0.0, np.finfo(x.dtype).max, np.finfo(x.dtype).min][aggregate]
    result = np.full((len(x), trees["n_targets"]), start, dtype=x.dtype)
    for row, values in enumerate(x):
        for root in trees["tree_roots"]:
            node, leaf = root, False
            while not leaf:
                value = values[trees["nodes_featureids"][node]]
                met = COMPARE[trees["nodes_modes"][node]](value, trees["nodes_splits"][node])
                met = met or (np.isnan(value) and trees["nodes_missing_value_tracks_true"][node])
                side = "true" if met else "false"
                leaf, node = trees[f"nodes_{side}leafs"][node], trees[f"nodes_{side}nodeids"][node]
            weight, target = trees["leaf_weights"][node], trees["leaf_targetids"][node]
            if aggregate < 2:
                result[row, target] += weight / (len(trees["tree_roots"]) if aggregate == 0 else 1)
            else:
                result[row, target] = (min if aggregate == 2 else max)(result[row, target], weight)
    return result


@pytest.mark.parametrize("aggregate", range(4))
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_rows_end_at_the_leaves_that_a_walk_finds(depth: int, aggregate: int) -> None:
    rng = np.random.default_rng(depth)
    trees = forest(rng, trees=3, depth=depth, features=4, targets=3)
    x = rng.integers(0, 4, (40, 4)).astype(np.float64)
    x[rng.random(x.shape) < 0.1] = np.nan
    (found,) = _core.evaluate("TreeEnsemble", [x], {**trees, "aggregate_function": aggregate})
    np.testing.assert_allclose(np.array(found), walked(x, trees, aggregate), rtol=1e-12)


def test_broken_trees_are_refused() -> None:
    trees = forest(np.random.default_rng(0), trees=1, depth=2, features=2, targets=1)
    x = np.zeros((1, 2), dtype=np.float32)
    for change, error, text in [
        ({"nodes_truenodeids": [0, 0, 2], "nodes_trueleafs": [0, 1, 1]}, ModelError, "back to one of its own"),
        ({"nodes_truenodeids": [9, 0, 2]}, ModelError, "names 9"),
        ({"tree_roots": [5]}, ModelError, "names node 5"),
        ({"leaf_targetids": [0, 0, 0, 7]}, ModelError, "target 7"),
        ({"nodes_featureids": [0, 1, 2]}, ShapeError, "feature 2 of 2"),
    ]:
        with pytest.raises(error, match=text):
            _core.evaluate("TreeEnsemble", [x], {**trees, **change})


def test_labels_of_known_and_of_missing_keys() -> None:
    keys, values = np.array([3.0, np.nan, 1.0], dtype=np.float32), np.array([30, 99, 10], dtype=np.int64)
    x = np.array([[1, 2], [np.nan, 3]], dtype=np.float32)
    (found,) = _core.evaluate("LabelEncoder", [x, keys, values, np.array(-1)], {})
    np.testing.assert_array_equal(np.array(found), [[10, -1], [99, 30]])
