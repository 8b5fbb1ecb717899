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

__getattr__, __dir__ = lazy.attributes(globals(), "walle.optim", _MODULES)

if not TYPE_CHECKING:  # a type checker takes the names from the imports above
    __all__ = __dir__()  # noqa: PLE0605 -- a list, made from the table
