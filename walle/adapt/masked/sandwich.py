"""One training of a network at all widths: the sandwich rule with distillation inside the step.

A step trains the whole network, the narrowest one and some of random widths; all but the first learn the outputs of
the first (Yu and Huang, Universally Slimmable Networks and Improved Training Techniques, 2019).
"""

from __future__ import annotations

from typing import Any

from walle import nn, np, optim
from walle.adapt.masked.network import MaskedNetwork
from walle.adapt.masked.trainer import MaskedTrainer, distilled_loss
from walle.adapt.structure.cut import Widths
from walle.engine_ext.nn.tracing import stop_gradient

_RANDOM = 2  # networks of random widths in a step


class Sandwich(nn.Module):
    """A masked network, run once for each row of `masks`; `forward` returns a list of outputs."""

    def __init__(self, network: MaskedNetwork, rows: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("masks", np.ones((rows, *network.mask.shape), "float32"))

    def forward(self, *inputs: Any) -> list[Any]:
        network = self.network
        mask, found = network.mask, []
        for row in range(self.masks.shape[0]):
            network.mask = self.masks[row]
            found.append(network(*inputs)[0])
        network.mask = mask
        return found


class SandwichTrainer:
    """Training of `trainer`'s network at all widths; `order` has the channels of each group, the last to go first."""

    def __init__(self, trainer: MaskedTrainer, order: Widths, narrowest: float, steps: int) -> None:
        self.trainer, self.left = trainer, steps
        self._order, self._narrowest, self._steps = order, narrowest, steps
        training = trainer.settings.training
        self._model = Sandwich(trainer.network, 2 + _RANDOM)

        def loss(outputs: list[Any], labels: Any, teacher: Any) -> Any:
            whole = outputs[0]
            total = distilled_loss(nn.functional.cross_entropy(whole, labels), whole, teacher)
            wanted = stop_gradient(nn.functional.softmax(whole, -1))
            for one in outputs[1:]:
                total = total - np.mean(np.sum(wanted * nn.functional.log_softmax(one, -1), axis=-1))
            return total

        self._step = nn.TrainStep(self._model, loss, optim.Adam(lr=training.learning_rate))

    def train(self, steps: int) -> int:
        """Take up to that many of the steps that are left, and return how many."""
        steps = min(steps, self.left)
        rate = self.trainer.settings.training.learning_rate
        for _ in range(steps):
            done = self._steps - self.left
            self._step.optimizer.lr = rate * (1.0 - 0.9 * done / self._steps)
            random = np.random.default_rng((self.trainer.settings.seed << 32) + (3 << 29) + done)
            shares = random.uniform(self._narrowest, 1.0, (_RANDOM, len(self._order))).tolist()
            rows = [[1.0] * len(self._order), [self._narrowest] * len(self._order), *shares]
            self._model.masks = np.stack([self.trainer.mask_of(self._prefixes(row)) for row in rows])
            self._step(*self.trainer.batch(done))
            self.left -= 1
        return steps

    def _prefixes(self, shares: list[float]) -> Widths:
        return [own[: max(1, round(share * len(own)))] for own, share in zip(self._order, shares, strict=True)]
