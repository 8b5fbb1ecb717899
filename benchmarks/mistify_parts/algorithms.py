"""Algorithms beside each other and beside a network that is narrower everywhere (Fig. 8).

That one learns from labels alone, for the given model's 300 steps and those of one goal; adapted ones also learn from
the given model's outputs, and goals of a chain have the steps of those before them.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.mistify_parts import digits
from walle.adapt.costs.formula import CostFormula
from walle.adapt.masked.evaluation import Evaluation, accuracy
from walle.adapt.structure.network import find_structure

NARROW = "narrower everywhere"
_WHOLE = 16  # width of the network that is adapted


def compared(found: dict[str, dict[str, Any]], budgets: list[float], steps: int) -> dict[str, Any]:
    """Return, for each budget of multiply-adds, the accuracy by algorithm and that of the widest network within it.

    `found` has the measurements of ten goals by algorithm, each front in the order of the budgets; `steps` is the
    training of a narrower network, from its first weights.
    """
    images, _ = digits.test()
    operations = {
        width: CostFormula(find_structure(digits.Network(width), [images[:2]]), None).whole()["operations"]
        for width in range(1, _WHOLE + 1)
    }
    widths = [max(width for width, own in operations.items() if own <= budget) for budget in budgets]
    narrow = {width: _accuracy(digits.trained(width, steps)) for width in sorted(set(widths))}
    rows = []
    for at, (budget, width) in enumerate(zip(budgets, widths, strict=True)):
        accuracies = {name: one["front"][at][1] for name, one in found.items()} | {NARROW: narrow[width]}
        most = max(accuracies.values())
        rows.append({
            "budget": budget, "narrow_operations": operations[width], "accuracies": accuracies,
            "best": [name for name, one in accuracies.items() if one == most],
        })  # fmt: skip
    return {"measured": found, "rows": rows}


def lines(result: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each algorithm, then the table by budget, then who is never below a narrower network."""
    for name, one in result["measured"].items():
        yield (
            f"{name}: {one['goals']} goals in {one['together_s']:.1f} CPU s, {one['alone_s']:.1f} one by one: "
            f"{one['together_s'] / one['alone_s']:.1%}; accuracy lost {one['lost']:.2%} on average, "
            f"{one['most_lost']:.2%} at most"
        )
    names = list(result["rows"][0]["accuracies"])
    yield "    multiply-adds  " + "".join(f"{name:>21}" for name in names) + "  best"
    for row in result["rows"]:
        yield (
            f"    {row['budget']:13.0f}  "
            + "".join(f"{row['accuracies'][name]:21.4f}" for name in names)
            + f"  {', '.join(row['best'])}"
        )
    for name in names[:-1]:
        above = [row["accuracies"][name] - row["accuracies"][NARROW] for row in result["rows"]]
        yield (
            f"    {name}: above at {sum(one > 0 for one in above)}, equal at {sum(one == 0 for one in above)}, below "
            f"at {sum(one < 0 for one in above)} budgets; mean {sum(above) / len(above):+.2%}"
        )


def _accuracy(network: Any) -> float:
    images, labels = digits.test()
    return accuracy(Evaluation(network)(images), labels)
