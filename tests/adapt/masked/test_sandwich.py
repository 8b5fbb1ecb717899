"""One training of a network at all widths."""

from __future__ import annotations

from tests.adapt.networks import Residual
from walle import nn, np, optim
from walle.adapt.algorithms.ranking import Quality
from walle.adapt.dataset import Dataset
from walle.adapt.executor import Settings, traced_structure
from walle.adapt.goals.config import Training
from walle.adapt.masked.sandwich import SandwichTrainer
from walle.adapt.masked.trainer import MaskedTrainer


def data() -> Dataset:
    """Images with a bright row or column, as their labels say."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 128)
    images = random.normal(size=(128, 1, 8, 8)).astype("float32")
    for label, place in enumerate([(0, 3), (0, slice(None), 3), (0, 6), (0, slice(None), 6)]):
        images[(labels == label).nonzero()[0], place[0], *place[1:]] += 2.0
    return Dataset((images,), labels)


def test_narrow_networks_learn_and_the_whole_one_stays() -> None:
    nn.manual_seed(1)
    model, given = Residual(), data()
    step = nn.TrainStep(model, nn.functional.cross_entropy, optim.Adam(lr=5e-3))
    for _ in range(40):
        step(given.inputs[0], given.labels)
    settings = Settings(model, given, given, training=Training(batch=64, learning_rate=5e-3))
    trainer = MaskedTrainer(settings, model, traced_structure(settings, model))
    quality = Quality(trainer)
    whole = [list(range(group.count)) for group in trainer.network.structure.groups]
    parts = [[own[: max(1, round(share * len(own)))] for own in whole] for share in (1.0, 0.5, 0.25)]
    before = [quality.of(part) for part in parts]
    sandwich = SandwichTrainer(trainer, whole, 0.25, 60)
    assert [sandwich.train(40), sandwich.train(40), sandwich.train(40)] == [40, 20, 0]
    after = [quality.of(part) for part in parts]
    assert after[0] > before[0] - 0.02
    assert after[1] > before[1]
    assert after[2] > before[2] + 0.15
