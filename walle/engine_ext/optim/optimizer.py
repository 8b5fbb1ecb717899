"""Optimizers: pure rules from parameter, gradient and states to the next parameter and states."""

from __future__ import annotations

from walle.engine_ext import np
from walle.engine_ext._core import operator
from walle.engine_ext.errors import ShapeError

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from walle.engine_ext._core import ndarray
    from walle.engine_ext.nn.likes import Values

    type States = dict[str, Values]

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "RMSprop"]


class Optimizer:
    """A rule of updates, with its learning rate.

    It has no list of parameters: a training step keeps their states and calls `update` for each one, with arrays or
    with values that it records. Schedules set `lr`; they count from `initial_lr`.
    """

    def __init__(self, lr: float, weight_decay: float = 0.0) -> None:
        check_not_negative(type(self).__name__, lr=lr, weight_decay=weight_decay)
        self.lr = self.initial_lr = lr
        self.weight_decay = weight_decay

    def states(self, parameter: Values) -> States:
        """Return the states before the first update, by name, in the parameter's shape and dtype."""
        raise NotImplementedError(f"{type(self).__name__} has no states; define states(self, parameter)")

    def update(self, parameter: Values, gradient: Values, states: States, lr: Values,
               count: Values) -> tuple[ndarray, States]:  # fmt: skip
        """Return the next parameter and its next states.

        `lr` and `count` are numbers without axes; `count` is 1 in the first update of this parameter.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rule; define update(self, parameter, ...)")

    def _decayed(self, parameter: Values, gradient: Values) -> Values:
        """Return the gradient of the loss and of weight_decay / 2 · |parameter|²."""
        return gradient + parameter * self.weight_decay if self.weight_decay else gradient

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name != "initial_lr")
        return f"{type(self).__name__}({shown})"


class SGD(Optimizer):
    """Gradient descent with momentum (Sutskever et al. 2013), as torch.optim.SGD."""

    def __init__(self, lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
                 nesterov: bool = False) -> None:  # fmt: skip
        super().__init__(lr, weight_decay)
        check_not_negative("SGD", momentum=momentum)
        if nesterov and (not momentum or dampening):
            raise ShapeError(
                f"SGD: nesterov with momentum {momentum} and dampening {dampening}; it takes a momentum, no dampening"
            )
        self.momentum, self.dampening, self.nesterov = momentum, dampening, nesterov

    def states(self, parameter: Values) -> States:
        return {"momentum_buffer": np.zeros(parameter.shape, parameter.dtype)} if self.momentum else {}

    def update(self, parameter: Values, gradient: Values, states: States, lr: Values,
               count: Values) -> tuple[ndarray, States]:  # fmt: skip
        direction = self._decayed(parameter, gradient)
        following: States = {}
        if self.momentum:
            share = direction
            if self.dampening:  # the first update has none
                share = direction * as_scale(np.where(count == 1, 1.0, 1.0 - self.dampening), parameter)
            buffer = states["momentum_buffer"] * self.momentum + share
            following = {"momentum_buffer": buffer}
            direction = direction + buffer * self.momentum if self.nesterov else buffer
        return parameter - direction * as_scale(lr, parameter), following


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), weight decay added to the gradient, as torch.optim.Adam."""

    def __init__(self, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0, amsgrad: bool = False, *,
                 decoupled_weight_decay: bool = False) -> None:  # fmt: skip
        super().__init__(lr, weight_decay)
        check_not_negative(type(self).__name__, eps=eps)
        if not all(0 <= beta < 1 for beta in betas):
            raise ShapeError(f"{type(self).__name__}: betas {betas}; each is from 0 to below 1")
        self.betas, self.eps, self.amsgrad = betas, eps, amsgrad
        self.decoupled_weight_decay = decoupled_weight_decay

    def states(self, parameter: Values) -> States:
        names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if self.amsgrad else [])]
        return {name: np.zeros(parameter.shape, parameter.dtype) for name in names}

    def update(self, parameter: Values, gradient: Values, states: States, lr: Values,
               count: Values) -> tuple[ndarray, States]:  # fmt: skip
        first, second = self.betas
        rate = as_double(lr)
        if self.decoupled_weight_decay and self.weight_decay:
            parameter = parameter * as_scale(1.0 - rate * self.weight_decay, parameter)
        elif self.weight_decay:
            gradient = self._decayed(parameter, gradient)
        mean = states["exp_avg"] * first + gradient * (1.0 - first)
        square = states["exp_avg_sq"] * second + np.square(gradient) * (1.0 - second)
        following = {"exp_avg": mean, "exp_avg_sq": square}
        if self.amsgrad:
            square = following["max_exp_avg_sq"] = np.maximum(states["max_exp_avg_sq"], square)
        # In float64: 1 - beta ** count of float32 loses four digits in the first updates.
        steps = as_double(count)
        size = as_scale(rate / (1.0 - np.power(first, steps)), parameter)
        root = as_scale(np.sqrt(1.0 - np.power(second, steps)), parameter)
        return parameter - size * mean / (np.sqrt(square) / root + self.eps), following


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), as torch.optim.AdamW."""

    def __init__(self, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, amsgrad: bool = False) -> None:  # fmt: skip
        super().__init__(lr, betas, eps, weight_decay, amsgrad, decoupled_weight_decay=True)


class RMSprop(Optimizer):
    """RMSprop (Hinton 2012), as torch.optim.RMSprop."""

    def __init__(self, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0,
                 momentum: float = 0.0, centered: bool = False) -> None:  # fmt: skip
        super().__init__(lr, weight_decay)
        check_not_negative("RMSprop", alpha=alpha, eps=eps, momentum=momentum)
        self.alpha, self.eps, self.momentum, self.centered = alpha, eps, momentum, centered

    def states(self, parameter: Values) -> States:
        names = ["square_avg"]
        names += ["grad_avg"] if self.centered else []
        names += ["momentum_buffer"] if self.momentum else []
        return {name: np.zeros(parameter.shape, parameter.dtype) for name in names}

    def update(self, parameter: Values, gradient: Values, states: States, lr: Values,
               count: Values) -> tuple[ndarray, States]:  # fmt: skip
        _ = count
        gradient = self._decayed(parameter, gradient)
        square = states["square_avg"] * self.alpha + np.square(gradient) * (1.0 - self.alpha)
        following = {"square_avg": square}
        variance = square
        if self.centered:
            mean = states["grad_avg"] * self.alpha + gradient * (1.0 - self.alpha)
            following["grad_avg"] = mean
            variance = square - np.square(mean)
        direction = gradient / (np.sqrt(variance) + self.eps)
        if self.momentum:
            direction = states["momentum_buffer"] * self.momentum + direction
            following["momentum_buffer"] = direction
        return parameter - direction * as_scale(lr, parameter), following


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011), as torch.optim.Adagrad."""

    def __init__(self, lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
                 initial_accumulator_value: float = 0.0, eps: float = 1e-10) -> None:  # fmt: skip
        super().__init__(lr, weight_decay)
        check_not_negative("Adagrad", lr_decay=lr_decay, initial_accumulator_value=initial_accumulator_value, eps=eps)
        self.lr_decay, self.initial_accumulator_value, self.eps = lr_decay, initial_accumulator_value, eps

    def states(self, parameter: Values) -> States:
        return {"sum": np.full(parameter.shape, self.initial_accumulator_value, parameter.dtype)}

    def update(self, parameter: Values, gradient: Values, states: States, lr: Values,
               count: Values) -> tuple[ndarray, States]:  # fmt: skip
        gradient = self._decayed(parameter, gradient)
        total = states["sum"] + np.square(gradient)
        size = as_scale(as_double(lr) / ((as_double(count) - 1.0) * self.lr_decay + 1.0), parameter)
        return parameter - size * gradient / (np.sqrt(total) + self.eps), {"sum": total}


def as_double(value: Values) -> ndarray:
    """Return a number without axes in float64."""
    return operator("Cast", [value], to="float64")


def as_scale(value: Values, parameter: Values) -> ndarray:
    """Return a number without axes in the parameter's dtype."""
    return operator("Cast", [value], to=str(parameter.dtype))


def check_not_negative(name: str, **options: float) -> None:
    """Check options of an optimizer.

    Raises:
        ShapeError: one is negative.
    """
    for option, value in options.items():
        if value < 0:
            raise ShapeError(f"{name}: {option} {value}; it must not be negative")
