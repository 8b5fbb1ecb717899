"""Base of algorithms that make one network narrower from goal to goal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from walle import nn, np
from walle.adapt.costs.formula import CostFormula, Costs
from walle.adapt.executor import AdaptationExecutor, Settings
from walle.adapt.masked.trainer import MaskedTrainer
from walle.adapt.structure.cut import Widths

_SHRINKS = 0.85  # share of the operations below which a smaller network replaces the masked one


class Narrowing(AdaptationExecutor):
    """A masked network that goes from goal to goal; smaller ones replace it, so that its steps take less time."""

    def init(self, settings: Settings) -> None:
        super().init(settings)
        self._whole = self.structure
        self._last: tuple[nn.Module | None, Costs] = (None, {})
        whole = [list(range(group.count)) for group in self.structure.groups]
        self._take(MaskedTrainer(settings, settings.model, self.structure), whole)

    def measure(self, model: nn.Module) -> Costs:
        """As for any model; that of the last goal was measured while it was masked, which needs no other plan."""
        return self._last[1] if model is self._last[0] else super().measure(model)

    def _measured(self, model: nn.Module, kept: Widths) -> nn.Module:
        """Return the model, its costs and accuracy known."""
        costs = self.formula.of([len(one) for one in kept])
        self._last = model, costs | {"accuracy": self.trainer.accuracy()}
        return model

    def _shrink(self, kept: Widths) -> None:
        """Replace the network by one of these channels alone where that saves much of a step."""
        widths = [len(one) for one in kept]
        if self.formula.of(widths)["operations"] < _SHRINKS * self.formula.whole()["operations"]:
            of_model = [[own[at] for at in some] for own, some in zip(self._kept, kept, strict=True)]
            self._take(self.trainer.smaller(kept), of_model)

    def _take(self, trainer: MaskedTrainer, kept: Widths) -> None:
        """Go on with a trainer of these channels of the given model."""
        self.trainer, self._kept = trainer, kept
        self.structure = trainer.network.structure
        self.formula = CostFormula(self.structure, self.settings.hardware)

    def state(self) -> dict[str, Any]:
        kept = {f"kept/{at}": np.asarray(one, "int64") for at, one in enumerate(self._kept)}
        return {**self.trainer.state(), **kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        kept = [state[f"kept/{at}"].tolist() for at in range(len(self._kept))]
        if kept != self._kept:
            self._take(MaskedTrainer(self.settings, self.settings.model, self._whole).smaller(kept), kept)
        self.trainer.restore(state)
