"""Schedules of the learning rate: each sets `optimizer.lr` as a function of its number of steps."""

from __future__ import annotations

import bisect
import math

from walle.engine_ext.errors import ModelError, ShapeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from walle.engine_ext.optim.optimizer import Optimizer

__all__ = [
    "CosineAnnealingLR", "CosineLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "LinearWarmup",
    "MultiStepLR", "SequentialLR", "StepLR",
]  # fmt: skip


class LRScheduler:
    """A schedule: `lr_at` is its rule; `step` counts one step and sets the optimizer's rate.

    The rate before the first step is set when the schedule is made.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.last_epoch = 0
        self._set()

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate after n steps."""
        raise NotImplementedError(f"{type(self).__name__} has no rule; define lr_at(self, epoch)")

    def step(self) -> None:
        """Count one step and set the optimizer's learning rate."""
        self.last_epoch += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """Return the learning rate that was set last, in a list as PyTorch does."""
        return [self.lr_at(self.last_epoch)]

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes: the number of steps."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after a number of steps, and set the optimizer's learning rate.

        Raises:
            ModelError: the state is not that of a schedule.
        """
        epoch = state_dict.get("last_epoch")
        if not isinstance(epoch, int) or epoch < 0:
            raise ModelError(f"state of {type(self).__name__}: last_epoch {epoch!r}; it takes a number of steps")
        self.last_epoch = epoch
        self._set()

    @property
    def base_lr(self) -> float:
        """Learning rate with which the optimizer was made."""
        return self.optimizer.initial_lr

    def _set(self) -> None:
        self.optimizer.lr = self.lr_at(self.last_epoch)


class StepLR(LRScheduler):
    """Multiplies the rate by gamma every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        if step_size < 1:
            raise ShapeError(f"StepLR: step_size {step_size}; it takes 1 or more")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer)

    def lr_at(self, epoch: int) -> float:
        return self.base_lr * self.gamma ** (epoch // self.step_size)


class MultiStepLR(LRScheduler):
    """Multiplies the rate by gamma at each milestone, a number of steps."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer)

    def lr_at(self, epoch: int) -> float:
        return self.base_lr * self.gamma ** bisect.bisect_right(self.milestones, epoch)


class ExponentialLR(LRScheduler):
    """Multiplies the rate by gamma at each step."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def lr_at(self, epoch: int) -> float:
        return self.base_lr * self.gamma**epoch


class CosineLR(LRScheduler):
    """Half a cosine from the optimizer's rate down to eta_min in T_max steps (Loshchilov and Hutter 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:  # noqa: N803 -- PyTorch's name
        if T_max < 1:
            raise ShapeError(f"{type(self).__name__}: T_max {T_max}; it takes 1 or more")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def lr_at(self, epoch: int) -> float:
        return self.eta_min + (self.base_lr - self.eta_min) * (1 + math.cos(math.pi * epoch / self.T_max)) / 2


CosineAnnealingLR = CosineLR


class LinearLR(LRScheduler):
    """Changes a factor of the rate linearly from `start_factor` to `end_factor` in `total_iters` steps."""

    def __init__(self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0,
                 total_iters: int = 5) -> None:  # fmt: skip
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ShapeError(f"LinearLR: factors {start_factor} and {end_factor}; they are above 0 and at most 1")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer)

    def lr_at(self, epoch: int) -> float:
        share = min(epoch / self.total_iters, 1.0) if self.total_iters else 1.0
        return self.base_lr * (self.start_factor + (self.end_factor - self.start_factor) * share)


class LinearWarmup(LinearLR):
    """Raises the rate linearly to the optimizer's in a number of steps: step i of n has (i + 1) / n of it."""

    def __init__(self, optimizer: Optimizer, total_iters: int) -> None:
        if total_iters < 1:
            raise ShapeError(f"LinearWarmup: total_iters {total_iters}; it takes 1 or more")
        super().__init__(optimizer, 1 / total_iters, 1.0, max(total_iters - 1, 0))


class LambdaLR(LRScheduler):
    """Multiplies the optimizer's first rate by a function of the number of steps."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float]) -> None:
        self.lr_lambda = lr_lambda
        super().__init__(optimizer)

    def lr_at(self, epoch: int) -> float:
        return self.base_lr * self.lr_lambda(epoch)


class SequentialLR(LRScheduler):
    """Schedules one after the other: at each milestone the next begins, at its step 0."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int]) -> None:
        if len(schedulers) != len(milestones) + 1 or list(milestones) != sorted(milestones):
            raise ShapeError(
                f"SequentialLR: {len(schedulers)} schedules with milestones {list(milestones)}; it takes one milestone "
                "fewer than schedules, in ascending order"
            )
        if any(scheduler.optimizer is not optimizer for scheduler in schedulers):
            raise ShapeError("SequentialLR: a schedule has another optimizer; all take this one")
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer)

    def lr_at(self, epoch: int) -> float:
        at = bisect.bisect_right(self.milestones, epoch)
        return self.schedulers[at].lr_at(epoch - (self.milestones[at - 1] if at else 0))
