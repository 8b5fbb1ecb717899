"""Training of a masked network, evaluation of it, and what is left of it as a model of its own."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from walle import nn, np, optim
from walle.adapt.executor import Settings, labels_of
from walle.adapt.masked.evaluation import Evaluation, outputs_of
from walle.adapt.masked.network import MaskedNetwork, model_outputs
from walle.adapt.structure.cut import Widths, cut, cut_arrays, cut_structure
from walle.adapt.structure.network import Structure

_GATES = "gates"
_TEMPERATURE = 2.0
_OPEN = 4.0  # a gate's number whose chance is 0.98, and still has a gradient
_CERTAIN = 8.0  # a gate's number whose chance is 0.9997
_PROBE_STEPS = 5  # first steps of a training, whose loss says how much a cut has added
_LAST_STEPS = 10  # last steps of a training, whose loss later ones are compared with
_LEAST_STEPS = 20  # training after any cut
_FOR_A_NAT = 0.8  # part of the steps of the settings for each nat of loss that a cut has added
_SETTLING = 512  # training samples that give a network its running statistics


def distilled_loss(loss: Any, logits: Any, teacher: Any) -> Any:
    """Return the mean of a loss and of the divergence from the given model's outputs (Hinton et al. 2015)."""
    warm = 1.0 / _TEMPERATURE
    wanted = nn.functional.softmax(teacher * warm, -1)
    found = nn.functional.log_softmax(logits * warm, -1)
    divergence = np.mean(np.sum(wanted * (nn.functional.log_softmax(teacher * warm, -1) - found), axis=-1))
    return loss * 0.5 + divergence * (0.5 * _TEMPERATURE**2)


class MaskedTrainer:
    """A masked network with its optimizer; one plan serves all masks."""

    def __init__(self, settings: Settings, model: nn.Module, structure: Structure, teacher: Any = None) -> None:
        self.settings = settings
        self.network = MaskedNetwork(copy.deepcopy(model), structure)
        loss = settings.objective.loss
        if teacher is None and settings.objective.is_distilled:
            teacher = outputs_of(settings.given, settings.train.inputs)
        self.teacher = teacher

        def plain(outputs: Any, labels: Any) -> Any:
            return loss(outputs[0], labels) + outputs[1]

        def distilled(outputs: Any, labels: Any, teacher: Any) -> Any:
            return distilled_loss(loss(outputs[0], labels), outputs[0], teacher) + outputs[1]

        self.step = nn.TrainStep(
            self.network, plain if self.teacher is None else distilled, optim.Adam(lr=settings.training.learning_rate)
        )
        self._evaluate = Evaluation(self.network, part=model_outputs)
        self.by_batch = Evaluation(self.network, of_batch=True, part=model_outputs)
        self._labels = labels_of(settings.train)
        self._epoch: tuple[int, list[Any]] = (-1, [])
        self.steps = 0  # count of all training; with the seed it gives all random numbers
        self.settled_loss = math.nan  # loss at the end of the last training of a goal

    def explore(self, steps: int) -> None:
        """Take steps on random batches with logistic noise in the gates."""
        network = self.network
        for _ in range(steps):
            u = self._random().uniform(1e-6, 1 - 1e-6, network.mask.shape).astype("float32")
            network.noise = np.log(u) - np.log(1.0 - u)
            self._take_step()
        network.noise = np.zeros(network.mask.shape, "float32")

    def train(self, steps: int) -> None:
        """Take steps on random batches, the learning rate down to a tenth, so that the weights settle."""
        self._settle(steps, lambda _losses: steps)

    def settle(self, most: int) -> int:
        """Train a goal's model as `train` does, set its running statistics, and return the steps.

        The first goal takes `most`. A later one takes steps by the loss that the cut before has added, within `most`;
        with a loss of the user's own, whose scale is not known, it takes `most`.
        """
        losses = self._settle(most, lambda probed: self._needed(statistics.mean(probed), most))
        if losses:
            self.settled_loss = statistics.mean(losses[min(_PROBE_STEPS, len(losses) - 1) :][-_LAST_STEPS:])
        self.settle_statistics()
        return len(losses)

    def settle_statistics(self) -> None:
        """Set the running statistics to those of training samples: earlier ones are of other channels, or of noise."""
        count = len(self.settings.train)
        order = np.random.default_rng(self.settings.seed).permutation(count)
        self.by_batch.settle(*self.settings.train.part(order[:_SETTLING])[:-1])

    def _settle(self, steps: int, needed: Callable[[list[float]], int]) -> list[float]:
        """Take steps, and return their losses; `needed` gives the number from the losses of the first few."""
        first_rate = self.step.optimizer.lr
        losses: list[float] = []
        while len(losses) < steps:
            losses.append(self._take_step(first_rate * (1.0 - 0.9 * len(losses) / steps)))
            if len(losses) == _PROBE_STEPS:
                steps = needed(losses)
        self.step.optimizer.lr = first_rate
        return losses

    def _needed(self, loss: float, most: int) -> int:
        added = loss - self.settled_loss
        if not (self.settings.objective.is_distilled and math.isfinite(added)):
            return most
        return min(most, max(_LEAST_STEPS, round(_FOR_A_NAT * self.settings.training.steps * added)))

    def _take_step(self, rate: float | None = None) -> float:
        if rate is not None:
            self.step.optimizer.lr = rate
        loss = float(self.step(*self.batch(self.steps)))
        self.steps += 1
        return loss

    def _random(self) -> Any:
        """Return the random numbers of the step at hand."""
        return np.random.default_rng((self.settings.seed << 32) + self.steps)

    def batch(self, step: int) -> tuple[Any, ...]:
        """Return inputs, labels and the teacher's outputs, if any, for a step: each sample once in a pass over the
        data, in an order of that pass.
        """
        count, batch = len(self.settings.train), self.settings.training.batch
        size = min(batch, count)
        epoch, at = divmod(step, count // size)
        if self._epoch[0] != epoch:
            order = np.random.default_rng((self.settings.seed << 32) + (1 << 31) + epoch).permutation(count)
            self._epoch = epoch, [order[first : first + size] for first in range(0, count - size + 1, size)]
        places = self._epoch[1][at]
        teacher = () if self.teacher is None else (self.teacher[places],)
        return *(one[places] for one in self.settings.train.inputs), self._labels[places], *teacher

    def importance(self, batches: int) -> list[list[float]]:
        """Return for each channel of each group how much the loss depends on it: the mean square of its gate's
        gradient (Molchanov et al., Importance Estimation for Neural Network Pruning, 2019).
        """
        network = self.network
        gates, total = network.gates.data, np.zeros(network.mask.shape, "float32")
        network.gates.data = np.full(gates.shape, network.number(_OPEN), "float32")
        for at in range(batches):
            total = total + np.square(self.step.gradients(*self.batch(at))[_GATES])
        network.gates.data = gates
        return [one.tolist() for one in network.split(total / batches)]

    def accuracy(self, samples: int | None = None) -> float:
        """Return the accuracy on the test data, or on its first samples, with the gates at their chances."""
        test = self.settings.test
        inputs = test.inputs if samples is None else tuple(one[:samples] for one in test.inputs)
        labels = test.labels if samples is None else test.labels[:samples]
        return self.settings.objective.measure(self._evaluate.of_all(inputs), labels)

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

    def smaller(self, kept: Widths) -> MaskedTrainer:
        """Return a trainer of these channels alone, with their weights, gates and states of the optimizer."""
        network = self.network
        model = cut(network.model, network.structure, kept)
        made = MaskedTrainer(self.settings, model, cut_structure(network.model, network.structure, kept), self.teacher)
        places = [start + channel for start, channels in zip(network.starts, kept, strict=True) for channel in channels]
        made.network.gates.data = np.take(network.gates.data, places)
        made.network.mask = np.take(network.mask, places)
        start = "model."
        for key in next(iter(self.step.states.values()), {}):
            own = {name.removeprefix(start): states[key] for name, states in self.step.states.items() if name != _GATES}
            cut_states = cut_arrays(own, network.model, network.structure, kept)
            for name, array in cut_states.items():
                made.step.states.setdefault(start + name, {})[key] = array
            made.step.states.setdefault(_GATES, {})[key] = np.take(self.step.states[_GATES][key], places)
        made.step.count, made.steps, made.settled_loss = self.step.count, self.steps, self.settled_loss
        return made

    def state(self) -> dict[str, Any]:
        """Return arrays from which `restore` goes on."""
        return {f"step/{name}": array for name, array in self.step.state_dict().items()} | {
            "steps": np.asarray(self.steps),
            "settled loss": np.asarray(self.settled_loss, "float64"),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.steps, self.settled_loss = int(state["steps"]), float(state.get("settled loss", math.nan))
        start = "step/"
        self.step.load_state_dict(
            {name.removeprefix(start): one for name, one in state.items() if name.startswith(start)}
        )
