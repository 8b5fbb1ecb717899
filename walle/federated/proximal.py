"""Loss of FedProx on a device: that of the task plus half of mu times the squared distance from the global model.

Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020), algorithm 2. The server's side is FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from walle.errors import ConfigError
from walle.federated.weights import Weights


class ProximalLoss:
    """A loss for `walle.nn.TrainStep`, called with the global model's arrays after the targets.

        loss = ProximalLoss(nn.functional.cross_entropy, module, mu=0.1)
        step = nn.TrainStep(module, loss, optim.SGD(lr=0.1))
        step(inputs, targets, *loss.anchors(model))

    The arrays are inputs of the step's plan, so another round's model needs no other plan.

    Raises:
        ConfigError: `mu` is below 0.
    """

    def __init__(self, loss: Callable[..., Any], module: Any, mu: float) -> None:
        if not mu >= 0.0:
            raise ConfigError(f"mu of FedProx is {mu}; it is 0 or more")
        self._loss = loss
        self._mu = mu
        self._parameters = [(name, one) for name, one in module.named_parameters() if one.requires_grad]

    def anchors(self, model: Weights) -> list[Any]:
        """Return the global model's array of each trained parameter, in the order in which a call takes them.

        Raises:
            KeyError: the model lacks one.
        """
        arrays = model.arrays()
        return [arrays[name] for name, _ in self._parameters]

    def __call__(self, outputs: Any, *rest: Any) -> Any:
        """Return the loss of outputs, targets and anchors, one number."""
        count = len(rest) - len(self._parameters)
        loss = self._loss(outputs, *rest[:count])
        for (_, parameter), anchor in zip(self._parameters, rest[count:], strict=True):
            apart = parameter - anchor
            loss = loss + (0.5 * self._mu) * (apart * apart).sum()
        return loss
