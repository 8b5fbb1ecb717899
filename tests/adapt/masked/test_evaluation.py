"""Evaluation of a network by the statistics of a batch, and statistics that are set from one."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from tests.adapt.networks import images, network
from walle.adapt.algorithms.morphnet import MorphNet
from walle.adapt.dataset import Dataset
from walle.adapt.executor import Settings
from walle.adapt.masked.evaluation import Evaluation, outputs_of
from walle.adapt.masked.network import model_outputs


def test_statistics_of_a_batch_take_the_place_of_running_ones() -> None:
    model, _ = network("residual")
    x = images(12)
    before = {name: one.tolist() for name, one in model.named_buffers()}
    by_batch = Evaluation(model, of_batch=True)
    normal, own = Evaluation(model)(x), by_batch(x)
    assert not numpy.allclose(normal, own, atol=1e-2)
    assert {name: one.tolist() for name, one in model.named_buffers()} == before
    assert not any(module.training for module in model.modules())
    assert numpy.array_equal(Evaluation(model)(x), normal)


@pytest.mark.parametrize("count", [1, 256, 257, 600])
def test_many_samples_are_evaluated_in_batches(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = network("residual")
    x, sizes, planned = images(count), [], Evaluation._planned
    data = Dataset((x,), numpy.zeros(count, "int64"))
    executor = MorphNet()
    executor.init(Settings(model, Dataset((images(8),), numpy.zeros(8, "int64")), data))
    whole, masked = Evaluation(model)(x), Evaluation(executor.trainer.network, part=model_outputs)(x)

    def counted(self: Evaluation, given: list[Any]) -> Any:
        sizes.append(len(given[0]))
        return planned(self, given)

    monkeypatch.setattr(Evaluation, "_planned", counted)
    assert numpy.allclose(outputs_of(model, [x]), whole, rtol=1e-4, atol=1e-5)
    assert executor.measure(model)["accuracy"] == pytest.approx(numpy.mean(whole.argmax(1) == 0))
    assert executor.trainer.accuracy() == pytest.approx(numpy.mean(masked.argmax(1) == 0))
    assert max(sizes) <= 256


def test_settled_statistics_are_the_batchs() -> None:
    model, _ = network("residual")
    x = images(12)
    by_batch = Evaluation(model, of_batch=True)
    own = by_batch(x)
    by_batch.settle(x)
    before = numpy.asarray(model.stem[0](x))
    norm = dict(model.named_modules())["stem.1"]
    assert numpy.allclose(norm.running_mean, before.mean((0, 2, 3)), atol=1e-5)
    assert numpy.allclose(norm.running_var, before.var((0, 2, 3), ddof=1), rtol=1e-4)
    assert norm.momentum == 0.1
    assert numpy.allclose(Evaluation(model)(x), own, atol=2e-3)
