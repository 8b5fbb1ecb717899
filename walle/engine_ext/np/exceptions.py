"""`walle.np.exceptions`: warnings of the array functions."""

from __future__ import annotations

__all__ = ["ComplexWarning"]


class ComplexWarning(RuntimeWarning):
    """A conversion of complex numbers to real ones discards their imaginary parts."""
