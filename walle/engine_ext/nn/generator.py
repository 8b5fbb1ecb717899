"""Random numbers of walle.nn: initial weights and the masks of dropout."""

from __future__ import annotations

from walle.engine_ext import np

TYPE_CHECKING = False
if TYPE_CHECKING:
    from walle.engine_ext.np.random import Generator

__all__ = ["manual_seed"]

_current: list[Generator] = []  # one generator, made when it is first used


def manual_seed(seed: int) -> Generator:
    """Start the random numbers of walle.nn again, and return their generator.

    The same seed gives the same initial weights and masks, to the bit, on every machine and backend.

    Raises:
        ShapeError: the seed is negative.
    """
    _current[:] = [np.random.Generator(seed)]
    return _current[0]


def default_generator() -> Generator:
    """Return the generator; before `manual_seed`, one from the system's entropy."""
    return _current[0] if _current else _start()


def _start() -> Generator:
    _current[:] = [np.random.Generator()]
    return _current[0]
