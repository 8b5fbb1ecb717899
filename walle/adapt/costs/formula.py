"""Costs of a network at any widths, by the paper's formulas (§4.1)."""

from __future__ import annotations

from collections.abc import Sequence

from walle.adapt.costs.hardware import Hardware
from walle.adapt.structure.network import Structure

WEIGHT_BYTES = 4

type Costs = dict[str, float]


class CostFormula:
    """Multiply-adds and parameters of a structure, bytes of its weights, and seconds on the hardware."""

    def __init__(self, structure: Structure, hardware: Hardware | None) -> None:
        self.structure, self.hardware = structure, hardware

    def of(self, widths: Sequence[int]) -> Costs:
        """Return the costs at these widths of the groups; latency only where the hardware is known."""
        operations = float(sum(term.of(widths) for term in self.structure.operations))
        parameters = float(sum(term.of(widths) for term in self.structure.parameters))
        costs = {"operations": operations, "parameters": parameters, "memory": parameters * WEIGHT_BYTES}
        if self.hardware is not None:
            costs["latency"] = self.hardware.latency_s(operations, parameters * WEIGHT_BYTES)
        return costs

    def whole(self) -> Costs:
        """Return the costs of the network as it is."""
        return self.of(self.structure.widths)

    def least(self) -> Costs:
        """Return the costs with one channel in each group: no goal can be below."""
        return self.of([1] * len(self.structure.groups))
