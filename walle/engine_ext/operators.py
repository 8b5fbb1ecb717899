"""The operator registry: every operator in one of the paper's four categories (§4.1)."""

from collections import Counter
from typing import NamedTuple

from walle.engine_ext import _core

# Sequence operators stand beside the paper's categories: like control flow they have one implementation for all
# backends.
CATEGORIES = ("atomic", "transform", "composite", "control-flow", "sequence")


class OperatorInfo(NamedTuple):
    """One operator: "atomic" and the raster have kernels; "transform" becomes regions; "composite" is made of both.

    Its gradient is by "rule", "flat" (0 wherever it has one), "refused", by the "raster" of a transform, or "parts",
    those of a composite's; empty for control flow and sequences.
    """

    name: str
    category: str
    decomposes_to: tuple[str, ...]
    gradient: str


class Workload(NamedTuple):
    """The number of implementations that an engine needs, by the paper's formula (§4.1)."""

    atomic: int
    transform: int
    composite: int
    control_flow: int
    backends: int

    @property
    def by_hand(self) -> int:
        """Return the number with a kernel for each operator on each backend."""
        return (self.atomic + self.transform + self.composite) * self.backends + self.control_flow

    @property
    def by_geometry(self) -> int:
        """Return the number with kernels for atomic operators and the raster only."""
        return (self.atomic + 1) * self.backends + self.transform + self.composite + self.control_flow

    @property
    def saved(self) -> float:
        """Return the share of the work that geometric computing saves."""
        return 1 - self.by_geometry / self.by_hand

    def __str__(self) -> str:
        return (
            f"by hand ({self.atomic} atomic + {self.transform} transform + {self.composite} composite)"
            f" × {self.backends} backends + {self.control_flow} control flow = {self.by_hand}; by geometry"
            f" ({self.atomic} atomic + 1 raster) × {self.backends} + {self.transform} + {self.composite}"
            f" + {self.control_flow} = {self.by_geometry}, {self.saved:.0%} less"
        )


# The paper's counts: 1,954 implementations by hand, 1,055 with geometric computing.
PAPER = Workload(atomic=61, transform=45, composite=16, control_flow=2, backends=16)


# Gradient of an operator without an entry in the list of rules, by category.
_OTHER_GRADIENTS = {"transform": "raster", "composite": "parts"}


def operators() -> list[OperatorInfo]:
    """Return all operators in alphabetical order."""
    gradients = {name: kind for name, kind, _ in _core.gradient_rules()}
    return [
        OperatorInfo(name, category, tuple(parts), gradients.get(name, _OTHER_GRADIENTS.get(category, "")))
        for name, category, parts in _core.operators()
    ]


def refused_gradients() -> dict[str, str]:
    """Return the reason for each operator whose gradient is refused."""
    return {name: reason for name, kind, reason in _core.gradient_rules() if kind == "refused"}


def workload(backends: int | None = None) -> Workload:
    """Return this engine's own counts, on the backends that it knows or on as many as asked for."""
    counts = Counter(one.category for one in operators())
    return Workload(
        counts["atomic"],
        counts["transform"],
        counts["composite"],
        counts["control-flow"] + counts["sequence"],
        len(_core.backends()) if backends is None else backends,
    )


def markdown() -> str:
    """Return the page of the operators, docs/reference/operators.md."""
    known = operators()
    lines = [
        "# Operators",
        "",
        "Written from the registry by `walle operators --markdown`. Names are ONNX's where ONNX has the operator;",
        "a node of domain `walle` in an ONNX model is the engine's operator of that name.",
        "Only atomic operators and the raster have kernels. A transform operator is a movement of elements, given as",
        "regions for the raster; a composite operator is made of both; control flow and sequences are run by a",
        "`walle.Module`.",
        "",
        "## Workload",
        "",
        "With N operators of a category and B backends, the work by hand is",
        "(N_atomic + N_transform + N_composite) × B + N_flow implementations, and with geometric computing",
        "(N_atomic + 1) × B + N_transform + N_composite + N_flow (the paper, §4.1).",
        "",
        "| | atomic | transform | composite | control flow and sequences | backends | by hand | by geometry | saved |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    names = ", ".join(name for name, *_ in _core.backends())
    rows = {"paper": PAPER, f"here ({names})": workload(), "here on the paper's 16": workload(PAPER.backends)}
    for name, one in rows.items():
        cells = " | ".join(f"{number:,}" for number in (*one, one.by_hand, one.by_geometry))
        lines.append(f"| {name} | {cells} | {one.saved:.0%} |")
    for category in CATEGORIES:
        members = [one for one in known if one.category == category]
        lines += ["", f"## {category.capitalize().replace('-', ' ')} ({len(members)})", ""]
        if category == "composite":
            lines += ["| operator | made of |", "| --- | --- |"]
            lines += [f"| {one.name} | {', '.join(one.decomposes_to) or 'a constant'} |" for one in members]
        else:
            lines.append(", ".join(one.name for one in members))
    return "\n".join([*lines, *_gradient_lines(known)]) + "\n"


def _gradient_lines(known: list[OperatorInfo]) -> list[str]:
    """Return the part of the page on gradients."""
    lines = [
        "",
        "## Gradients",
        "",
        "Training differentiates a graph operator by operator: an atomic operator by its rule, a transform by the",
        "raster with its views swapped, a composite by its parts unless it has a rule that needs less. The derivative",
        "of a flat operator is 0 wherever it has one; a graph with a refused operator on the way is refused.",
        "",
    ]
    for kind in ("rule", "flat"):
        members = [one.name for one in known if one.gradient == kind]
        lines += [f"By {kind}:" if kind == "rule" else "Flat:", ", ".join(members), ""]
    lines += ["| refused | reason |", "| --- | --- |"]
    lines += [f"| {name} | {reason} |" for name, reason in refused_gradients().items()]
    return lines
