"""The proximal term of FedProx on a device."""

from __future__ import annotations

import pytest

from walle import nn, np, optim
from walle.errors import ConfigError
from walle.federated import ProximalLoss, Weights


def _squared(outputs: nn.Module, targets: nn.Module) -> nn.Module:
    return ((outputs - targets) ** 2).sum()  # type: ignore[operator, no-any-return]


def _network() -> nn.Module:
    nn.manual_seed(1)
    return nn.Linear(2, 1)


def test_the_loss_and_its_gradient_are_those_of_the_paper() -> None:
    module = _network()
    inputs, targets = np.asarray([[1.0, 2.0]], "float32"), np.asarray([[3.0]], "float32")
    plain = nn.TrainStep(module, _squared, optim.SGD(lr=0.1)).gradients(inputs, targets)
    model = Weights.of_module(module)
    anchor = Weights(model.layout, model.vector - np.asarray([1.0, 2.0, 3.0], "float32"))
    loss = ProximalLoss(_squared, module, mu=0.5)
    step = nn.TrainStep(module, loss, optim.SGD(lr=0.1))
    found = step.gradients(inputs, targets, *loss.anchors(anchor))
    added = {name: (found[name] - plain[name]).reshape(-1).tolist() for name in found}
    assert added["weight"] == pytest.approx([0.5, 1.0], abs=1e-5)  # mu times the distance
    assert added["bias"] == pytest.approx([1.5], abs=1e-5)
    bare = float(_squared(module(inputs), targets))  # type: ignore[arg-type]
    assert float(step(inputs, targets, *loss.anchors(anchor))) == pytest.approx(bare + 0.25 * 14, rel=1e-5)


def test_another_model_needs_no_other_plan_and_a_large_mu_holds_the_weights() -> None:
    module = _network()
    model = Weights.of_module(module)
    loss = ProximalLoss(_squared, module, mu=36.0)
    step = nn.TrainStep(module, loss, optim.SGD(lr=0.02))
    inputs, targets = np.asarray([[1.0, 2.0]], "float32"), np.asarray([[3.0]], "float32")
    for _ in range(50):
        step(inputs, targets, *loss.anchors(model))
    held = Weights.of_module(module).difference(model)
    for _ in range(50):
        step(inputs, targets, *loss.anchors(Weights.of_module(module)))
    assert len(step._plans) == 1
    free = Weights.of_module(module).difference(model)
    assert float(np.abs(held.vector).max()) < 0.5 * float(np.abs(free.vector).max())


def test_mu_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="mu of FedProx is -1"):
        ProximalLoss(_squared, _network(), mu=-1)
