"""A network with a gate for each channel.

A gate multiplies the weights that read its channel, which is the same as multiplying the channel. Its chance to stay is
the logistic function of a number that is trained; while training, logistic noise makes it choose between 0 and 1
(FiGS: Chaudhuri et al. 2020, as MorphNet's authors recommend today over the scales of batch normalization).
"""

from __future__ import annotations

from typing import Any

from walle import nn, np
from walle.adapt.costs.formula import CostFormula
from walle.adapt.structure.network import Length, Structure, Term
from walle.engine_ext.nn.tracing import active_trace

_PENALISED = ("operations", "parameters")
_SCALE = 40.0  # optimizers move a gate's number so much faster than a weight
_SHARPNESS = 3.0  # slope of the choice between 0 and 1


class MaskedNetwork(nn.Module):
    """A model with gates; `forward` returns its outputs and the penalty on its costs, one number.

    `mask` has 1 for each channel that may stay, in the order of the groups; `strengths` weigh operations and parameters
    as shares of the whole network's. `noise` has the logistic noise of a step; zeros make gates their chance.
    """

    def __init__(self, model: nn.Module, structure: Structure, first: float = 2.0) -> None:
        super().__init__()
        self.model = model
        count = sum(structure.widths)
        self.gates = nn.Parameter(np.full((count,), first / _SCALE, "float32"))
        self.register_buffer("mask", np.ones(count, "float32"))
        self.register_buffer("noise", np.zeros(count, "float32"))
        self.register_buffer("strengths", np.zeros(len(_PENALISED), "float32"))
        own = self.__dict__
        own["structure"] = structure
        own["starts"] = [sum(structure.widths[:at]) for at in range(len(structure.groups))]
        own["_factors"] = self._factor_places()
        own["_formula"] = _TracedFormula(structure, own["starts"])

    def _factor_places(self) -> dict[str, list[tuple[int, Any]]]:
        """Return for each weight, by axis, the gate of each place; the number after the last gate is 1."""
        structure = self.structure
        shapes = {name: one.shape for name, one in self.model.named_parameters()}
        always = sum(structure.widths)
        found: dict[tuple[str, int], list[int]] = {}
        for group, start in zip(structure.groups, self.starts, strict=True):
            for name, axis in group.consumers:
                places = found.setdefault((name, axis), [always] * shapes[name][axis])
                for channel, of_channel in enumerate(group.places[name, axis]):
                    for place in of_channel:
                        places[place] = start + channel
        by_name: dict[str, list[tuple[int, Any]]] = {}
        for (name, axis), places in found.items():
            by_name.setdefault(name, []).append((axis, np.asarray(places, "int64")))
        return by_name

    def forward(self, *inputs: Any) -> tuple[Any, Any]:
        chances = nn.functional.sigmoid(self.gates * _SCALE) * self.mask
        chosen = nn.functional.sigmoid((self.gates * _SCALE + self.noise) * _SHARPNESS) * self.mask
        open_gates = chosen if self.training else chances
        factors = np.concatenate([open_gates, np.ones(1, "float32")])
        trace = active_trace()
        assert trace is not None  # a step or an evaluation is planned
        parameters = dict(self.model.named_parameters())
        for name, axes in self._factors.items():
            weight: Any = trace.value_of(parameters[name])
            for axis, places in axes:
                shape = [1] * weight.ndim
                shape[axis] = -1
                weight = weight * np.take(factors, places).reshape(shape)
            trace.bind(parameters[name], weight)
        costs = self._formula.shares(chances)
        return self.model(*inputs), np.sum(costs * self.strengths)

    def chances(self) -> Any:
        """Return the chance of each channel to stay, float32."""
        return nn.functional.sigmoid(self.gates.data * _SCALE) * self.mask

    def open_factors(self) -> dict[str, list[tuple[int, Any]]]:
        """Return for each weight that reads channels, by axis, the factor of each place."""
        factors = np.concatenate([self.chances(), np.ones(1, "float32")])
        return {
            name: [(axis, np.take(factors, places)) for axis, places in axes] for name, axes in self._factors.items()
        }

    def number(self, logit: float) -> float:
        """Return the gate's number whose chance is the logistic function of `logit`."""
        return logit / _SCALE

    def split(self, channels: Any) -> list[Any]:
        """Return an array by channel as one for each group."""
        return [
            channels[start : start + group.count]
            for group, start in zip(self.structure.groups, self.starts, strict=True)
        ]


def model_outputs(results: tuple[Any, Any]) -> Any:
    """Return the model's part of what a masked network returns."""
    return results[0]


class _TracedFormula:
    """Operations and parameters, as shares of the whole network's, for channels that stay with some chance."""

    def __init__(self, structure: Structure, starts: list[int]) -> None:
        count = sum(structure.widths)
        self._rows: list[list[float]] = []
        self._fixed: list[float] = []
        self._numbers: dict[Length, int] = {}
        self._structure, self._starts = structure, starts
        whole = CostFormula(structure, None).whole()
        self._terms = [
            self._placed(terms, whole[name])
            for name, terms in zip(_PENALISED, (structure.operations, structure.parameters), strict=True)
        ]
        self._matrix = np.asarray(self._rows, "float32").reshape(len(self._rows), count)
        self._fixed_lengths = np.asarray([*self._fixed, 1.0], "float32")

    def _placed(self, terms: tuple[Term, ...], whole: float) -> tuple[Any, Any]:
        """Return places of lengths, a row for each term filled up with the length 1, and factors by the whole cost."""
        most = max((len(term.lengths) for term in terms), default=1) or 1
        rows = [[self._number(length) for length in term.lengths] for term in terms]
        return [row + [-1] * (most - len(row)) for row in rows], np.asarray(
            [term.factor / whole for term in terms], "float32"
        )

    def _number(self, length: Length) -> int:
        found = self._numbers.get(length)
        if found is None:
            found = self._numbers[length] = len(self._rows)
            row = [0.0] * sum(self._structure.widths)
            for group, factor in length.factors:
                start = self._starts[group]
                row[start : start + self._structure.groups[group].count] = [float(factor)] * self._structure.groups[
                    group
                ].count
            self._rows.append(row)
            self._fixed.append(float(length.fixed))
        return found

    def shares(self, chances: Any) -> Any:
        """Return both shares, float32 (2,)."""
        summed = np.matmul(self._matrix, chances.reshape(-1, 1)).reshape(-1)
        lengths = np.concatenate([summed, np.zeros(1, "float32")]) + self._fixed_lengths
        last = len(self._rows)
        found = []
        for rows, factors in self._terms:
            places = np.asarray([[last if one < 0 else one for one in row] for row in rows], "int64")
            columns = [np.take(lengths, places[:, at]) for at in range(places.shape[1])]
            product = columns[0]
            for column in columns[1:]:
                product = product * column
            found.append(np.sum(product * factors).reshape(1))
        return np.concatenate(found)
