"""The probability of a highlight from its evidence: a logistic regression, one for the device and one for the cloud.

Their weights are settings, which `fit_decision.py` writes from labelled clips, as are the thresholds between which the
device is not sure. A change of them is a version of the task like any other.
"""

import math

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any


def probability(evidence: "dict[str, Any]", model: "dict[str, Any]") -> float:
    """Return logistic(bias + the sum of weights x evidence)."""
    score = model["bias"] + sum(weight * evidence[kind] for kind, weight in model["weights"].items())
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, score))))
