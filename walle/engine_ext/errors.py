"""Errors of the engine: the Python side of `core/error.h`."""

from walle.errors import EngineError


class ModelError(EngineError):
    """A model file or graph that is broken, of another version, or inconsistent."""


class ShapeError(EngineError, ValueError):
    """Shapes, axes or indices that do not fit together."""


class DTypeError(EngineError, TypeError):
    """An element type that an operator does not support."""


class UnsupportedError(EngineError):
    """An operator, attribute or opset that is not supported; the message names the node."""


class NonFiniteError(EngineError, ArithmeticError):
    """A loss or a gradient of training that is NaN or infinite; the message names the first node that made it."""


class BackendError(EngineError):
    """A backend that is not available on this machine, or an unknown name."""


class RunCancelled(EngineError):  # noqa: N818 -- as DeadlineExceeded of a VM
    """A run of a session or module that another thread cancelled by `cancel()`."""


class RunDeadlineExceeded(EngineError, TimeoutError):  # noqa: N818 -- the same
    """A run of a session or module that took longer than its `deadline`, its planning included, and was stopped."""
