"""The decision from evidence: a logistic regression for the device and one for the cloud, and when the device is sure.

resources/decision.json has them: `fit_decision.py` writes it from labelled clips. A change of a threshold is a version
of the task like any other.
"""

import json
import math

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from typing import Any

    from walle.task import Context

_decision: "dict[str, Any]" = {}


def decision(ctx: "Context") -> "dict[str, Any]":
    """Return resources/decision.json, read once.

    Raises:
        ValueError: it is not a JSON object with `rule`, `device`, `cloud` and `sure`.
    """
    if not _decision:
        loaded = json.loads(bytes(ctx.resource("decision.json")))
        lacking = [name for name in ("rule", "device", "cloud", "sure") if name not in loaded]
        if lacking:
            raise ValueError(f"resources/decision.json lacks {', '.join(lacking)}")
        _decision.update(loaded)
    return _decision


def probability(evidence: "dict[str, float]", model: "dict[str, Any]") -> float:
    """Return the probability of a highlight: logistic(bias + the sum of weights x evidence)."""
    score = model["bias"] + sum(weight * evidence[kind] for kind, weight in model["weights"].items())
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, score))))
