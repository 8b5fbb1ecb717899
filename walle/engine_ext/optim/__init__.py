"""`walle.optim`: optimizers and schedules of the learning rate, with PyTorch's names, argument order and defaults.

An optimizer has no list of parameters: `walle.nn.TrainStep` takes those of its model. Names are loaded on first use, as
those of `walle.nn`.
"""

from __future__ import annotations

from walle.engine_ext import lazy

TYPE_CHECKING = False  # `typing` would double a task VM's start-up time
if TYPE_CHECKING:
    from walle.engine_ext.optim.clipping import *  # noqa: F403
    from walle.engine_ext.optim.optimizer import *  # noqa: F403
    from walle.engine_ext.optim.schedules import *  # noqa: F403

# Module → its names.
_MODULES = {
    "clipping": "clip_grad_norm clip_grad_value",
    "optimizer": "Adagrad Adam AdamW Optimizer RMSprop SGD",
    "schedules": (
        "CosineAnnealingLR CosineLR ExponentialLR LRScheduler LambdaLR LinearLR LinearWarmup MultiStepLR SequentialLR "
        "StepLR"
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker takes the names from the imports above
    __all__ = sorted(_MODULE_OF)  # noqa: PLE0605 -- a list, made from the table


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        module = lazy.load(f"walle.engine_ext.optim.{_MODULE_OF[name]}")
        found = globals()[name] = getattr(module, name)
        return found
    raise AttributeError(f"walle.optim has no {name!r}")


def __dir__() -> list[str]:
    return sorted(_MODULE_OF)
