"""Training of a masked network, evaluation of it, and what is left of it as a model of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from walle import nn, np, optim
from walle.adapt.executor import Settings, batches, labels_of
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
        self.rng = np.random.default_rng(settings.seed)
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
        self._order: list[Any] = []
        self.steps = 0  # of all training so far

    def train(self, steps: int, *, noisy: bool) -> float:
        """Take steps on random batches, with logistic noise in the gates or none; return the mean loss."""
        total = 0.0
        network, data = self.network, self.settings.train
        still = np.zeros(network.mask.shape, "float32")
        for _ in range(steps):
            if not self._order:
                self._order = list(batches(len(data), self.settings.training.batch, self.rng))
            places = self._order.pop()
            if noisy:
                u = self.rng.uniform(1e-6, 1 - 1e-6, network.mask.shape).astype("float32")
                network.noise = np.log(u) - np.log(1.0 - u)
            else:
                network.noise = still
            total += float(self.step(*(one[places] for one in data.inputs), self._labels[places]))
        self.steps += steps
        network.noise = still
        return total / max(steps, 1)

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
        return {f"step/{name}": array for name, array in self.step.state_dict().items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.step.load_state_dict(
            {name.removeprefix("step/"): one for name, one in state.items() if name.startswith("step/")}
        )
