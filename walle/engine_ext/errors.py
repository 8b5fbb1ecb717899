"""What the engine refuses: the Python side of `core/error.h`."""

from walle.errors import EngineError


class ModelError(EngineError):
    """A model file or graph that is broken, of another version, or not what it says."""


class ShapeError(EngineError, ValueError):
    """Shapes, axes or indices that do not fit together."""


class DTypeError(EngineError, TypeError):
    """An element type that an operator does not take."""


class UnsupportedError(EngineError):
    """An operator, attribute or opset that the engine does not have; the message names the node."""


class BackendError(EngineError):
    """A backend that this machine does not have, or an unknown name."""
