"""`walle.np.lib`: names that NumPy keeps in its `lib` module."""

from __future__ import annotations

from walle.engine_ext.np.manipulation import sliding_window_view

__all__ = ["stride_tricks"]


class stride_tricks:  # noqa: N801 -- NumPy's name
    sliding_window_view = staticmethod(sliding_window_view)
