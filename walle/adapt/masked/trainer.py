"""Training of a masked network, evaluation of it, and what is left of it as a model of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from walle import nn, np, optim
from walle.adapt.executor import Settings, labels_of
from walle.adapt.masked.evaluation import Evaluation, accuracy
from walle.adapt.masked.network import MaskedNetwork
from walle.adapt.structure.cut import Widths, cut
from walle.adapt.structure.network import Structure
from walle.errors import ConfigError

_CERTAIN = 8.0  # a gate's number whose chance is 0.9997


class MaskedTrainer:
    """A masked network with its optimizer; one plan serves all masks."""

    def __init__(self, settings: Settings, structure: Structure) -> None:
        self.settings = settings
        self.network = MaskedNetwork(copy.deepcopy(settings.model), structure)
        loss = getattr(nn.functional, settings.training.loss, None)
        if loss is None:
            raise ConfigError(f"walle.nn.functional has no loss {settings.training.loss!r}")
        self.step = nn.TrainStep(
            self.network,
            lambda outputs, *targets: loss(outputs[0], *targets) + outputs[1],
            optim.Adam(lr=settings.training.learning_rate),
        )
        self._evaluate = Evaluation(self.network)
        self._labels = labels_of(settings.train)
        self._epoch: tuple[int, list[Any]] = (-1, [])
        self.steps = 0  # count of all training; with the seed it gives all random numbers

    def train(self, steps: int, *, noisy: bool) -> float:
        """Take steps on random batches, with logistic noise in the gates or none; return the mean loss."""
        total = 0.0
        network, data = self.network, self.settings.train
        still = np.zeros(network.mask.shape, "float32")
        for _ in range(steps):
            places = self._places()
            if noisy:
                u = self._random().uniform(1e-6, 1 - 1e-6, network.mask.shape).astype("float32")
                network.noise = np.log(u) - np.log(1.0 - u)
            else:
                network.noise = still
            total += float(self.step(*(one[places] for one in data.inputs), self._labels[places]))
            self.steps += 1
        network.noise = still
        return total / max(steps, 1)

    def _random(self) -> Any:
        """Return the random numbers of the step at hand."""
        return np.random.default_rng((self.settings.seed << 32) + self.steps)

    def _places(self) -> Any:
        """Return the samples of the step at hand: each once in a pass over the data, in an order of its own."""
        count, batch = len(self.settings.train), self.settings.training.batch
        size = min(batch, count)
        epoch, at = divmod(self.steps, count // size)
        if self._epoch[0] != epoch:
            order = np.random.default_rng((self.settings.seed << 32) + (1 << 31) + epoch).permutation(count)
            self._epoch = epoch, [order[first : first + size] for first in range(0, count - size + 1, size)]
        return self._epoch[1][at]

    def accuracy(self, samples: int | None = None) -> float:
        """Return the accuracy on the test data, or on its first samples, with the gates at their chances."""
        test = self.settings.test
        inputs = test.inputs if samples is None else tuple(one[:samples] for one in test.inputs)
        labels = test.labels if samples is None else test.labels[:samples]
        return accuracy(self._evaluate(*inputs), labels)

    def keep(self, kept: Widths) -> None:
        """Close the gates of all other channels, and open those of these."""
        network = self.network
        mask = self.mask_of(kept)
        network.mask = mask
        network.gates.data = np.where(mask > 0, network.number(_CERTAIN), network.gates.data)

    def mask_of(self, kept: Widths) -> Any:
        """Return 1 for each channel that is kept, in the order of the groups."""
        marks: list[float] = []
        for group, channels in zip(self.network.structure.groups, kept, strict=True):
            stay = set(channels)
            marks += [1.0 if channel in stay else 0.0 for channel in range(group.count)]
        return np.asarray(marks, "float32")

    def model(self, kept: Widths) -> nn.Module:
        """Return the network of the kept channels as a model of its own, the gates within its weights."""
        network = self.network
        factors = network.open_factors()
        folded = copy.deepcopy(network.model)
        for name, parameter in folded.named_parameters():
            for axis, factor in factors.get(name, ()):
                shape = [1] * parameter.data.ndim
                shape[axis] = -1
                parameter.data = parameter.data * factor.reshape(tuple(shape))
        return cut(folded, network.structure, kept)

    def state(self) -> dict[str, Any]:
        """Return arrays from which `restore` goes on."""
        return {f"step/{name}": array for name, array in self.step.state_dict().items()} | {
            "steps": np.asarray(self.steps)
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.steps = int(state["steps"])
        start = "step/"
        self.step.load_state_dict(
            {name.removeprefix(start): one for name, one in state.items() if name.startswith(start)}
        )
