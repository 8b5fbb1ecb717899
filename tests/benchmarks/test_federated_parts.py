"""Parts of the figure of federated rounds: shards, training as Flower's side does it, and the peer that is absent."""

from __future__ import annotations

import sys

import numpy
import pytest

from benchmarks.federated_parts import flower, numpy_network, shards
from benchmarks.federated_parts.clients import BATCH, RATE, Trainer

pytest.importorskip("sklearn", reason="scikit-learn of the extra dev, which has the digits, is not installed")


def test_shards_have_two_labels_and_all_training_images_once() -> None:
    setting = shards.make_setting("digits", 3)
    assert sum(map(len, setting.labels)) == 1500
    assert len(setting.test_labels) == 297
    assert all(len(set(labels.tolist())) <= 4 for labels in setting.labels)  # a shard may begin in the label before
    assert sum(len(set(labels.tolist())) <= 2 for labels in setting.labels) >= 8
    rows = numpy.concatenate([*setting.images, setting.test_images])
    whole = numpy.concatenate(shards.make_setting("digits", 4).images)
    assert len(numpy.unique(rows, axis=0)) > 1700
    assert whole.shape == (1500, 64)


def test_a_seed_gives_the_same_setting_and_orders() -> None:
    first, again, other = (shards.make_setting("digits", seed) for seed in (1, 1, 2))
    assert all((first.first[name] == again.first[name]).all() for name in first.first)
    assert (first.order(4, 2) == again.order(4, 2)).all()
    assert (first.order(4, 2) != first.order(4, 3)).any()
    assert not all(map(numpy.array_equal, first.labels, other.labels))


def test_both_sides_train_the_same_network() -> None:
    setting = shards.make_setting("digits", 0)
    trainer = Trainer(setting)
    model = trainer.first()
    trained = trainer.client(5)(model, 1)
    assert trained.samples == len(setting.labels[5])
    given = [setting.first[name] for name in numpy_network.NAMES]
    theirs = numpy_network.train(given, setting.images[5], setting.labels[5], setting.order(5, 1), BATCH, RATE)
    for name, expected in zip(numpy_network.NAMES, theirs, strict=True):
        found = numpy.asarray(trained.weights.arrays()[name])
        assert found == pytest.approx(expected, abs=2e-5)
        assert numpy.abs(found - setting.first[name]).max() > 0.01
    of_test = numpy_network.accuracy(theirs, setting.test_images, setting.test_labels)
    assert trainer.accuracy(trained.weights) == pytest.approx(of_test, abs=1e-6)


def test_a_python_without_flower_is_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(flower.VARIABLE, raising=False)
    assert flower.flower_python(None) is None
    assert flower.flower_python(sys.executable) is None
